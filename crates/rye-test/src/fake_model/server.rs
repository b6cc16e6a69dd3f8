//! HTTP/1.1 by hand: keep-alive, bodies with a length, answers in one write where that is the same.

use std::borrow::Cow;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::reply::{FakeReply, ReplyKind};
use super::request::{FakeProtocol, FakeRequest, LoggedRequest};
use super::{SharedLog, body};

const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_BODY_BYTES: usize = 256 << 20;

type Script = Arc<dyn Fn(&FakeRequest<'_>) -> FakeReply + Send + Sync>;

/// How many requests came, and what they were answered.
#[derive(Debug)]
struct RequestCounts {
    /// Requests to a model.
    requests: AtomicU64,
    /// Answers that call a tool.
    tool_calls: AtomicU64,
    /// All other answers.
    finals: AtomicU64,
    /// Requests by how many results of tools they brought; the last place is for more.
    by_results: [AtomicU64; 64],
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self {
            requests: AtomicU64::default(),
            tool_calls: AtomicU64::default(),
            finals: AtomicU64::default(),
            by_results: std::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

#[derive(Clone)]
pub(super) struct Server {
    script: Script,
    counts: Arc<RequestCounts>,
    shared: Option<Arc<SharedLog>>,
}

/// Serves on each of `listeners`, a thread each, without remembering requests. Never returns while one of them lives.
///
/// # Panics
/// When a thread cannot have a runtime.
pub fn serve(
    listeners: Vec<TcpListener>,
    script: impl Fn(&FakeRequest<'_>) -> FakeReply + Send + Sync + 'static,
) {
    let server = Server::new(Arc::new(script), None);
    let threads: Vec<_> = listeners
        .into_iter()
        .map(|listener| {
            let server = server.clone();
            std::thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(server.accept(listener));
            })
        })
        .collect();
    for thread in threads {
        // A panic ends one connection; the others continue.
        let _ = thread.join();
    }
}

/// A request, taken apart.
struct RequestHead {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    length: usize,
}

impl Server {
    pub(super) fn new(script: Script, shared: Option<Arc<SharedLog>>) -> Self {
        Self { script, counts: Arc::default(), shared }
    }

    /// Accepts connections until the listener fails.
    pub(super) async fn accept(&self, listener: TcpListener) {
        listener.set_nonblocking(true).expect("a listener that does not block");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        for connection in 0.. {
            // Out of descriptors, or a client that went away: the next may do better.
            let Ok((stream, _)) = listener.accept().await else {
                tokio::task::yield_now().await;
                continue;
            };
            let server = self.clone();
            tokio::spawn(async move {
                // A client that goes away ends its own connection.
                let _ = server.serve_connection(stream, connection).await;
            });
        }
    }

    async fn serve_connection(&self, mut stream: TcpStream, connection: usize) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut buffer: Vec<u8> = Vec::with_capacity(16 << 10);
        loop {
            let Some((head, body)) = receive(&mut stream, &mut buffer).await? else {
                return Ok(());
            };
            let is_open = match FakeProtocol::from_path(&head.path) {
                Some(protocol) if head.method == "POST" => {
                    self.respond(&mut stream, connection, head, protocol, &body).await?
                }
                _ => {
                    let counts = |count: &AtomicU64| count.load(Ordering::Relaxed);
                    let stats = json!({
                        "requests": counts(&self.counts.requests),
                        "tool_calls": counts(&self.counts.tool_calls),
                        "finals": counts(&self.counts.finals),
                        "by_results": self.counts.by_results.iter().map(counts).collect::<Vec<_>>(),
                    });
                    let code = if head.path.starts_with("/stats") { 200 } else { 404 };
                    stream
                        .write_all(&http_response(
                            code,
                            "application/json",
                            &[],
                            stats.to_string().as_bytes(),
                        ))
                        .await?;
                    true
                }
            };
            if !is_open {
                return Ok(());
            }
        }
    }

    /// Answers one request, and says whether the connection continues.
    async fn respond(
        &self,
        stream: &mut TcpStream,
        connection: usize,
        head: RequestHead,
        protocol: FakeProtocol,
        body: &[u8],
    ) -> std::io::Result<bool> {
        let value = match (&self.shared, protocol) {
            (None, FakeProtocol::Openai) => parse_sparse(body),
            _ => serde_json::from_slice(body),
        };
        let value = value.unwrap_or_default();
        let number = self.counts.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let request = FakeRequest::new(number, protocol, &head.path, &value, body.len());
        let reply = (self.script)(&request);
        let bucket = request.tool_results.min(self.counts.by_results.len() - 1);
        self.counts.by_results[bucket].fetch_add(1, Ordering::Relaxed);
        let tally = if reply.is_call() { &self.counts.tool_calls } else { &self.counts.finals };
        tally.fetch_add(1, Ordering::Relaxed);
        if let Some(shared) = &self.shared {
            shared.update(|memory| {
                let at_order = memory.requests.len();
                memory.requests.push(LoggedRequest {
                    path: head.path.clone(),
                    headers: head.headers,
                    body: value.clone(),
                    index: at_order,
                    connection,
                });
            });
        }
        if !reply.delay.is_zero() {
            tokio::time::sleep(reply.delay).await;
        }
        if let Some(gate) = reply.gate.as_ref().filter(|_| reply.pieces_before_gate == 0) {
            gate.wait_open().await;
        }
        match &reply.kind {
            ReplyKind::Content(content) => {
                let body = body::build_body(content, &request);
                if request.is_stream {
                    self.stream(stream, &body, &reply).await
                } else {
                    let bytes = http_response(200, body.content_type, &[], body.pieces.concat().as_bytes());
                    let length = if reply.disconnect_after.is_some() { bytes.len() - 1 } else { bytes.len() };
                    stream.write_all(&bytes[..length]).await?;
                    Ok(reply.disconnect_after.is_none())
                }
            }
            ReplyKind::Status { code, body, headers } => {
                stream.write_all(&http_response(*code, "application/json", headers, body)).await?;
                Ok(true)
            }
            ReplyKind::Raw(bytes) => {
                stream.write_all(bytes).await?;
                stream.shutdown().await?;
                Ok(false)
            }
            ReplyKind::Hang => {
                // What a client says while it waits means nothing; that it goes away does.
                let mut scrap = [0; 64];
                while stream.read(&mut scrap).await.is_ok_and(|count| count > 0) {}
                if let Some(shared) = &self.shared {
                    shared.update(|memory| memory.abandoned += 1);
                }
                Ok(false)
            }
        }
    }

    /// Writes a body in chunks: each alone where a test looks on, all at once where speed counts.
    async fn stream(
        &self,
        stream: &mut TcpStream,
        body: &body::Body,
        reply: &FakeReply,
    ) -> std::io::Result<bool> {
        let cut_after = reply.disconnect_after;
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
            body.content_type
        );
        let pieces = &body.pieces[..cut_after.unwrap_or(usize::MAX).min(body.pieces.len())];
        let chunks = pieces.iter().map(|piece| format!("{:x}\r\n{piece}\r\n", piece.len()));
        let end = if cut_after.is_none() { "0\r\n\r\n" } else { "" };
        if self.shared.is_some() {
            let parts = std::iter::once(head).chain(chunks).chain(Some(end.to_owned()));
            for (index, part) in parts.enumerate() {
                let gate = reply.gate.as_ref().filter(|_| index > 0 && index == reply.pieces_before_gate);
                if let Some(gate) = gate {
                    gate.wait_open().await;
                }
                stream.write_all(part.as_bytes()).await?;
            }
        } else {
            let parts: Vec<String> =
                std::iter::once(head).chain(chunks).chain(Some(end.to_owned())).collect();
            stream.write_all(parts.concat().as_bytes()).await?;
        }
        Ok(cut_after.is_none())
    }
}

/// A request without its body: recording it would take processor time from what is measured.
fn parse_sparse(body: &[u8]) -> serde_json::Result<Value> {
    #[derive(Deserialize, Serialize)]
    struct SparseRequest<'a> {
        #[serde(borrow)]
        model: Option<Cow<'a, str>>,
        stream: Option<bool>,
        stream_options: Option<Value>,
        #[serde(default, borrow)]
        messages: Vec<Message<'a>>,
        tools: Option<Value>,
    }
    #[derive(Deserialize, Serialize)]
    struct Message<'a> {
        #[serde(borrow)]
        role: Cow<'a, str>,
    }
    serde_json::to_value(serde_json::from_slice::<SparseRequest<'_>>(body)?)
}

fn http_response(code: u16, content_type: &str, headers: &[(String, String)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {code} Fake\r\nConnection: keep-alive\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str("\r\n");
    let mut bytes = bytes.into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Reads one request; `None` when the client is done, or says what is not understood.
async fn receive(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> std::io::Result<Option<(RequestHead, Vec<u8>)>> {
    let end = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        // A greeting in another protocol has no end to wait for.
        let is_other = buffer.first().is_some_and(|first| !first.is_ascii_uppercase());
        if is_other || buffer.len() > MAX_HEAD_BYTES || stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    };
    let Some(head) = parse_head(&buffer[..end]).filter(|head| head.length <= MAX_BODY_BYTES) else {
        return Ok(None);
    };
    while buffer.len() < end + head.length {
        if stream.read_buf(buffer).await? == 0 {
            return Ok(None);
        }
    }
    let body = buffer[end..end + head.length].to_vec();
    buffer.drain(..end + head.length);
    Ok(Some((head, body)))
}

fn parse_head(bytes: &[u8]) -> Option<RequestHead> {
    let text = std::str::from_utf8(bytes).ok()?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, path) = (first.next()?.to_owned(), first.next()?.to_owned());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.map_or(Some(0), |(_, value)| value.parse().ok())?;
    Some(RequestHead { method, path, headers, length })
}
