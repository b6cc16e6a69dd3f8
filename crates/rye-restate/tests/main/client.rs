//! What is sent to a server, and what its answers mean.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;

use rye_restate::{RestateClient, RestateError, RestateSettings};
use rye_thread::thread_id::ThreadId;
use serde_json::json;

/// Answers one request; gives what it was.
fn answer_once(status: &'static str, body: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut bytes = Vec::new();
        let mut part = [0; 4096];
        let is_whole = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).to_lowercase();
            let Some((head, rest)) = text.split_once("\r\n\r\n") else { return false };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            rest.len() >= length.map_or(0, |length| length.parse().expect("a number"))
        };
        while !is_whole(&bytes) {
            let count = stream.read(&mut part).expect("read");
            bytes.extend_from_slice(&part[..count]);
        }
        let length = body.len();
        let response =
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(response.as_bytes()).expect("written");
        String::from_utf8(bytes).expect("text")
    });
    (address, server)
}

fn client(address: &str) -> RestateClient {
    let settings = json!({"ingress": address, "admin": address, "endpoint": "http://workers.example:9080"});
    RestateClient::new(RestateSettings::from_value(&settings).expect("settings")).expect("a client")
}

fn thread() -> ThreadId {
    ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id")
}

#[test]
fn thread_is_sent_under_its_epoch() {
    let (address, server) = answer_once("202 Accepted", "{}");
    client(&address).send(&thread(), 7).expect("sent");
    let request = server.join().expect("a request");
    assert!(request.starts_with("POST /Thread/thread-0a1b2c3d4e5f/drive/send HTTP/1.1"), "{request}");
    assert!(request.contains("idempotency-key: thread-0a1b2c3d4e5f:7"), "{request}");
}

#[test]
fn endpoint_is_registered() {
    let (address, server) = answer_once("201 Created", "{}");
    assert_eq!(client(&address).register(), Ok(()));
    let request = server.join().expect("a request");
    assert!(request.starts_with("POST /deployments HTTP/1.1"), "{request}");
    assert!(request.contains(r#""uri":"http://workers.example:9080/""#), "{request}");
    let settings = RestateSettings::from_value(&json!({"ingress": address})).expect("settings");
    assert_eq!(RestateClient::new(settings).expect("a client").register(), Err(RestateError::NoAdmin));
}

#[test]
fn failures_name_the_server() {
    let (address, server) = answer_once("404 Not Found", r#"{"message": "service not found"}"#);
    let error = client(&address).send(&thread(), 1).expect_err("refused");
    assert_eq!(error, RestateError::NotRegistered { server: format!("{address}/") });
    server.join().expect("a request");

    let (address, server) =
        answer_once("500 Internal Server Error", "{\"message\": \"out\\nof\\u001b[31m order\"}");
    let error = client(&address).send(&thread(), 1).expect_err("refused").to_string();
    assert!(
        error.contains(&address) && error.contains("500") && !error.contains(['\n', '\u{1b}']),
        "{error}"
    );
    server.join().expect("a request");

    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let error = client(&format!("http://{free}")).send(&thread(), 1).expect_err("refused");
    assert!(matches!(error, RestateError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&free.to_string()), "{error}");
}
