//! A small web server on loopback: a function from request text to reply, one connection after the other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What the server does with one request.
#[allow(dead_code, reason = "several crates share this file, not all of them use all of it")]
pub enum Reply {
    /// Sends this and closes.
    Send(Vec<u8>),
    /// Sends this, then keeps the connection until the client leaves it.
    Hold(Vec<u8>),
}

/// A reply with headers (each line ended by `\r\n`) and body.
pub fn reply(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Reply {
    let body = body.as_ref();
    let mut bytes =
        format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len())
            .into_bytes();
    bytes.extend_from_slice(body);
    Reply::Send(bytes)
}

pub struct Server {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(answer: impl Fn(&str) -> Reply + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (seen, is_over) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (log, stop) = (Arc::clone(&seen), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.expect("a connection");
                let Some(request) = read_request(&mut stream) else {
                    continue;
                };
                let answer = answer(&request);
                log.lock().expect("the log").push(request);
                // The client may have had enough already.
                match answer {
                    Reply::Send(bytes) => drop(stream.write_all(&bytes)),
                    Reply::Hold(bytes) => {
                        let _ = stream.write_all(&bytes);
                        let _ = stream.read(&mut [0; 64]);
                    }
                }
            }
        });
        Self { address, seen, is_over, thread: Some(thread) }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The requests so far, as text.
    pub fn requests(&self) -> Vec<String> {
        self.seen.lock().expect("the log").clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some(end) = text.find("\r\n\r\n") {
            let head = text[..end].to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            if bytes.len() >= end + 4 + length.unwrap_or(0) {
                return Some(text);
            }
        }
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}
