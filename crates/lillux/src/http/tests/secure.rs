//! https against a server on loopback whose certificate a test authority signed. The authority's key is gone; the
//! server's key is worth nothing outside this test.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;

/// Answers `count` connections to this address, whatever they come to, and returns the port.
fn serve(address: &str, count: usize) -> (u16, std::thread::JoinHandle<()>) {
    let certificate = CertificateDer::from_pem_slice(include_bytes!("localhost.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("localhost.key.pem")).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a config");
    let config = Arc::new(config);
    let listener = TcpListener::bind((address, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let thread = std::thread::spawn(move || {
        for _ in 0..count {
            let (stream, _) = listener.accept().expect("a connection");
            let connection = rustls::ServerConnection::new(Arc::clone(&config)).expect("a connection");
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let mut buffer = [0; 4096];
            // A client that does not trust the certificate leaves here.
            if stream.read(&mut buffer).is_ok() {
                let response = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nsafe";
                let _ = stream.write_all(response.as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        }
    });
    (port, thread)
}

#[test]
fn https_checks_name_and_authority() {
    let (port, thread) = serve("127.0.0.1", 3);
    let (other_port, other_thread) = serve("127.0.0.2", 1);
    let authority = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/tests/authority.pem");
    let trusting = client(&["127.0.0.0/8", "::1"]).with_certificate_file(authority);
    let ask_at = |client: &HttpClient, host: &str, port: u16| {
        client.send(&get(&format!("https://{host}:{port}/x?key=hush")), &cancel()).map(|answer| answer.body)
    };
    let ask = |client: &HttpClient, host: &str| ask_at(client, host, port);
    assert_eq!(ask(&trusting, "127.0.0.1"), Ok(b"safe".to_vec()));
    assert_eq!(ask(&trusting, "localhost"), Ok(b"safe".to_vec()));
    let wrong_name = ask_at(&trusting, "127.0.0.2", other_port).expect_err("another name").to_string();
    assert!(wrong_name.contains("certificate") && !wrong_name.contains("hush"), "{wrong_name}");
    let leaf = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/tests/localhost.pem");
    let stranger = loopback().with_certificate_file(leaf);
    let unknown = ask(&stranger, "127.0.0.1").expect_err("an unknown authority").to_string();
    assert!(unknown.contains("certificate"), "{unknown}");
    thread.join().expect("the server");
    other_thread.join().expect("the other server");
}
