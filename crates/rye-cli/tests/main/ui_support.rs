//! `rye ui` as a client of its own sees it: raw HTTP on loopback, and the stream.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::support::{User, text};
use crate::tool_support::RYE;

/// A server of the page.
pub struct UiServer {
    pub process: Child,
    pub address: SocketAddr,
    pub code: String,
}

/// An answer.
#[derive(Debug)]
pub struct UiAnswer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl UiAnswer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn data(&self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.json()["data"].clone()
    }

    pub fn assert_refused(&self, status: u16, code: &str) {
        assert_eq!((self.status, text(&self.json()["code"]).as_str()), (status, code), "{self:?}");
    }
}

/// A session of a server.
pub struct UiClient {
    pub address: SocketAddr,
    pub token: String,
}

impl UiServer {
    pub fn start(user: &User, words: &[&str]) -> Self {
        Self::start_on(user, 0, words)
    }

    pub fn start_on(user: &User, port: u16, words: &[&str]) -> Self {
        Self::from_command(user.program(RYE), port, words)
    }

    pub fn from_command(mut command: std::process::Command, port: u16, words: &[&str]) -> Self {
        command.args(["--json", "ui", "--port", &port.to_string()]).args(words);
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a server");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("an output")).read_line(&mut line).expect("a line");
        let data = serde_json::from_str::<Value>(&line).expect("JSON")["data"].clone();
        let url = text(&data["url"]);
        let address = url.strip_prefix("http://").and_then(|rest| rest.strip_suffix('/')).expect("a URL");
        Self { process, address: address.parse().expect("an address"), code: text(&data["code"]) }
    }

    pub fn stop(&mut self) {
        let stopped = std::process::Command::new("kill").arg(self.process.id().to_string()).status();
        assert!(stopped.expect("asked").success());
        assert!(self.process.wait().expect("an end").success());
    }

    /// Exchanges the printed code.
    pub fn log_in(&self) -> UiClient {
        let answer = exchange(self.address, &self.code);
        UiClient { address: self.address, token: text(&answer.data()["token"]) }
    }
}

impl Drop for UiServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Asks for a session with a code.
pub fn exchange(address: SocketAddr, code: &str) -> UiAnswer {
    let body = serde_json::json!({ "code": code }).to_string();
    let headers = [("Host", address.to_string()), ("Content-Type", "application/json".to_owned())];
    send(address, "POST", "/api/v1/session", &headers, body.as_bytes())
}

/// Sends a request and reads the whole answer.
pub fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, String)],
    body: &[u8],
) -> UiAnswer {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(300))).expect("a bound");
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    stream.write_all(format!("{head}\r\n").as_bytes()).expect("sent");
    // A server may refuse before it has read everything.
    let _ = stream.write_all(body);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    let whole = String::from_utf8_lossy(&bytes).into_owned();
    let (headers, body) = whole.split_once("\r\n\r\n").expect("a head");
    let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    UiAnswer { status, headers: headers.to_ascii_lowercase(), body: body.to_owned() }
}

impl UiClient {
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        vec![
            ("Host", self.address.to_string()),
            ("Authorization", format!("Bearer {}", self.token)),
            ("Origin", format!("http://{}", self.address)),
        ]
    }

    pub fn get(&self, path: &str) -> UiAnswer {
        send(self.address, "GET", &format!("/api/v1{path}"), &self.headers(), b"")
    }

    pub fn data(&self, path: &str) -> Value {
        self.get(path).data()
    }

    pub fn post(&self, path: &str, body: &Value) -> UiAnswer {
        let mut headers = self.headers();
        headers.push(("Content-Type", "application/json".to_owned()));
        send(self.address, "POST", &format!("/api/v1{path}"), &headers, body.to_string().as_bytes())
    }

    /// Opens the event stream.
    pub fn stream(&self, query: &str) -> UiStream {
        let mut stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(300))).expect("a bound");
        let mut head = format!("GET /api/v1/events{query} HTTP/1.1\r\n");
        self.headers().iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        stream.write_all(format!("{head}\r\n").as_bytes()).expect("sent");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).expect("a head") > 0);
            assert!(!line.starts_with("HTTP/") || line.contains(" 200 "), "{line}");
        }
        UiStream { reader, text: String::new() }
    }
}

/// A frame of the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct UiFrame {
    pub event: String,
    pub id: Option<String>,
    pub data: Value,
}

/// The event stream.
pub struct UiStream {
    reader: BufReader<TcpStream>,
    text: String,
}

impl UiStream {
    /// The next frame; `None` at the end.
    pub fn next(&mut self) -> Option<UiFrame> {
        loop {
            while let Some((frame, rest)) = self.text.split_once("\n\n") {
                let (frame, rest) = (frame.to_owned(), rest.to_owned());
                self.text = rest;
                let field = |name: &str| {
                    frame
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(|value| value.trim().to_owned())
                };
                if let Some(event) = field("event:") {
                    let data = serde_json::from_str(&field("data:").expect("data")).expect("JSON");
                    return Some(UiFrame { event, id: field("id:"), data });
                }
            }
            let mut size = String::new();
            if self.reader.read_line(&mut size).ok()? == 0 {
                return None;
            }
            let size = usize::from_str_radix(size.trim(), 16).ok().filter(|size| *size > 0)?;
            let mut chunk = vec![0; size + 2];
            self.reader.read_exact(&mut chunk).ok()?;
            self.text.push_str(&String::from_utf8_lossy(&chunk[..size]));
        }
    }

    /// Reads frames until one that fits; gives it. Bounded by the number of frames.
    pub fn wait_for(&mut self, mut fits: impl FnMut(&UiFrame) -> bool) -> UiFrame {
        for _ in 0..10_000 {
            let frame = self.next().expect("the stream ended");
            if fits(&frame) {
                return frame;
            }
        }
        panic!("no such frame came");
    }
}
