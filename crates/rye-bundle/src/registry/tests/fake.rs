//! A registry on loopback that keeps what it is given in memory, and lies when it is asked to.
#![allow(dead_code, reason = "several crates share this file, not all of them use all of it")]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use lillux::Digest;

/// One request, read.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    pub method: String,
    pub path: String,
    pub query: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl RecordedRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub fn request_line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// One answer, to be written.
#[derive(Clone, Debug)]
pub struct FakeResponse {
    pub status: &'static str,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    /// Keeps sending `x` until the client leaves.
    pub is_endless_body: bool,
}

pub fn response(status: &'static str, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> FakeResponse {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    FakeResponse { status, headers, body: body.into(), is_endless_body: false }
}

/// What the registry holds.
#[derive(Default)]
pub struct FakeStore {
    pub blobs: BTreeMap<String, Vec<u8>>,
    pub manifests: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, Vec<u8>>,
}

/// Answers a request before the registry does, if it wants to.
pub type ResponseOverride = Box<dyn Fn(&RecordedRequest, &mut FakeStore) -> Option<FakeResponse> + Send>;

pub struct FakeRegistry {
    pub address: SocketAddr,
    pub store: Arc<Mutex<FakeStore>>,
    requests: Arc<Mutex<Vec<RecordedRequest>>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FakeRegistry {
    pub fn new() -> Self {
        Self::start(Box::new(|_, _| None))
    }

    pub fn start(response_override: ResponseOverride) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (store, requests) =
            (Arc::new(Mutex::new(FakeStore::default())), Arc::new(Mutex::new(Vec::new())));
        let is_over = Arc::new(AtomicBool::new(false));
        let (thread_store, log, stop) = (Arc::clone(&store), Arc::clone(&requests), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.expect("a connection");
                let Some(request) = parse_request(&mut stream) else {
                    continue;
                };
                let mut store = thread_store.lock().expect("the store");
                let reply = response_override(&request, &mut store)
                    .unwrap_or_else(|| default_response(&request, &mut store));
                drop(store);
                log.lock().expect("the log").push(request.clone());
                write_response(&mut stream, &request, &reply);
            }
        });
        Self { address, store, requests, is_over, thread: Some(thread) }
    }

    /// Something in this registry.
    pub fn reference_text(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.requests.lock().expect("the log").clone()
    }

    pub fn request_lines(&self) -> Vec<String> {
        self.requests().iter().map(RecordedRequest::request_line).collect()
    }
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn parse_request(stream: &mut TcpStream) -> Option<RecordedRequest> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 64 << 10];
    loop {
        match stream.read(&mut buffer).ok()? {
            0 => return None,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
        // The beginning of TLS: nothing here speaks it.
        if bytes[0] == 0x16 {
            return None;
        }
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let mut lines = head.lines();
        let mut first = lines.next()?.split(' ');
        let (method, target) = (first.next()?.to_owned(), first.next()?.to_owned());
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let length = headers.iter().find(|(name, _)| name == "content-length");
        let length: usize = length.map_or(0, |(_, value)| value.parse().expect("a length"));
        while bytes.len() < end + 4 + length {
            match stream.read(&mut buffer).ok()? {
                0 => return None,
                count => bytes.extend_from_slice(&buffer[..count]),
            }
        }
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let body = bytes[end + 4..].to_vec();
        return Some(RecordedRequest {
            method,
            path: path.to_owned(),
            query: query.to_owned(),
            headers,
            body,
        });
    }
}

fn write_response(stream: &mut TcpStream, request: &RecordedRequest, response: &FakeResponse) {
    let mut head = format!("HTTP/1.1 {}\r\nConnection: close\r\n", response.status);
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !response.is_endless_body {
        head.push_str(&format!("Content-Length: {}\r\n", response.body.len()));
    }
    head.push_str("\r\n");
    // The client may have had enough already.
    if stream.write_all(head.as_bytes()).is_err() || request.method == "HEAD" {
        return;
    }
    if stream.write_all(&response.body).is_err() {
        return;
    }
    let more = [b'x'; 64 << 10];
    // 1 GiB at most: a client that takes that much has failed its test.
    for _ in 0..if response.is_endless_body { 1 << 14 } else { 0 } {
        if stream.write_all(&more).is_err() {
            return;
        }
    }
}

fn default_response(request: &RecordedRequest, store: &mut FakeStore) -> FakeResponse {
    let missing =
        || response("404 Not Found", &[], r#"{"errors":[{"code":"UNKNOWN","message":"not here"}]}"#);
    let Some((_, rest)) = request.path.split_once("/team/tools/") else {
        return missing();
    };
    let digest = || {
        let value = request.query.split('&').find_map(|pair| pair.strip_prefix("digest="));
        value.map(|value| value.replace("%3A", ":"))
    };
    let (kind, name) = rest.split_once('/').expect("kind and name");
    match (request.method.as_str(), kind, name) {
        ("GET" | "HEAD", "blobs", name) => match store.blobs.get(name) {
            Some(bytes) => response("200 OK", &[], bytes.clone()),
            None => missing(),
        },
        ("GET", "manifests", name) => match store.manifests.get(name) {
            Some(bytes) => {
                response("200 OK", &[("Docker-Content-Digest", &digest_text(bytes))], bytes.clone())
            }
            None => missing(),
        },
        ("GET", "tags", "list") => {
            let tags: Vec<&String> = store.manifests.keys().filter(|name| !name.contains(':')).collect();
            response("200 OK", &[], serde_json::json!({"name": "team/tools", "tags": tags}).to_string())
        }
        ("POST", "blobs", "uploads/") => {
            let name = format!("u{}", store.uploads.len());
            store.uploads.insert(name.clone(), Vec::new());
            response(
                "202 Accepted",
                &[("Location", &format!("/v2/team/tools/blobs/uploads/{name}?state=a"))],
                "",
            )
        }
        ("PATCH", "blobs", upload) => {
            let bytes = store.uploads.get_mut(upload.trim_start_matches("uploads/")).expect("an upload");
            let start: usize = request
                .header("content-range")
                .expect("a range")
                .split('-')
                .next()
                .expect("a start")
                .parse()
                .expect("a number");
            assert_eq!(start, bytes.len());
            bytes.extend_from_slice(&request.body);
            response("202 Accepted", &[("Location", &format!("{}?state=b", request.path))], "")
        }
        ("PUT", "blobs", upload) => {
            assert!(request.query.starts_with("state="), "{}", request.query);
            let mut bytes = store.uploads.remove(upload.trim_start_matches("uploads/")).expect("an upload");
            bytes.extend_from_slice(&request.body);
            let digest = digest().expect("a digest");
            if digest != digest_text(&bytes) {
                return response("400 Bad Request", &[], r#"{"errors":[{"code":"DIGEST_INVALID"}]}"#);
            }
            store.blobs.insert(digest.clone(), bytes);
            response("201 Created", &[("Location", &format!("/v2/team/tools/blobs/{digest}"))], "")
        }
        ("PUT", "manifests", name) => {
            let digest = digest_text(&request.body);
            store.manifests.insert(name.to_owned(), request.body.clone());
            store.manifests.insert(digest.clone(), request.body.clone());
            response("201 Created", &[("Docker-Content-Digest", &digest)], "")
        }
        _ => missing(),
    }
}

pub fn digest_text(bytes: &[u8]) -> String {
    format!("sha256:{}", Digest::of(bytes))
}
