//! One client over standard input and output: one JSON message per line.
//!
//! The framing is our own, because what is malformed or too large is answered here, not passed over.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use rmcp::RoleServer;
use rmcp::model::{ClientJsonRpcMessage, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, ServiceExt, TxJsonRpcMessage};
use rmcp::transport::{StdioReader, StdioWriter, Transport, stdio_pipes};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::session::{Session, Shared};

/// The largest message that is read.
const MOST_BYTES: usize = 16 << 20;
/// A buffer that grew beyond this is not kept.
const USUAL_BYTES: usize = 64 << 10;

/// Serves until the client leaves or `stop` is cancelled.
pub(crate) async fn serve(shared: Arc<Shared>, stop: CancellationToken) {
    let (reader, writer) = stdio_pipes();
    let gone = stop.child_token();
    let session = Session::new(shared, gone.clone());
    let transport = Lines {
        reader: BufReader::new(reader),
        line: Vec::new(),
        is_skipping: false,
        writer: Arc::new(Mutex::new(Some(writer))),
        gone,
    };
    // A client that leaves before it has said hello is no failure.
    if let Ok(running) = session.serve_with_ct(transport, stop).await {
        // Only a task that panicked fails to be waited for, and it has been reported.
        let _ = running.waiting().await;
    }
}

struct Lines {
    reader: BufReader<StdioReader>,
    line: Vec<u8>,
    is_skipping: bool,
    writer: Arc<Mutex<Option<StdioWriter>>>,
    gone: CancellationToken,
}

/// What came in.
enum Line {
    Whole,
    TooLong,
    End,
}

impl Lines {
    /// Reads up to the next line break. Dropped in between, it goes on where it was.
    async fn read(&mut self) -> Line {
        loop {
            let Ok(available) = self.reader.fill_buf().await else {
                return Line::End;
            };
            if available.is_empty() {
                return Line::End;
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            if !self.is_skipping {
                self.line.extend_from_slice(&available[..taken]);
            }
            self.reader.consume(taken);
            let was_skipping = self.is_skipping;
            if self.line.len() > MOST_BYTES {
                self.is_skipping = true;
                self.line = Vec::new();
            }
            match (end, self.is_skipping, was_skipping) {
                (Some(_), false, _) => return Line::Whole,
                (Some(_), true, _) => {
                    self.is_skipping = false;
                    return Line::TooLong;
                }
                (None, _, _) => {}
            }
        }
    }

    fn forget_line(&mut self) {
        if self.line.capacity() > USUAL_BYTES {
            self.line = Vec::new();
        } else {
            self.line.clear();
        }
    }

    async fn refuse(&mut self, refusal: Refused) {
        let error = ServerJsonRpcMessage::error(refusal.error, refusal.id);
        // Without anybody to read it, the next read ends.
        let _ = self.send(error).await;
    }
}

/// A line that is no message, and what to say about it.
struct Refused {
    id: Option<RequestId>,
    error: ErrorData,
}

fn parse(line: &[u8]) -> Result<ClientJsonRpcMessage, Box<Refused>> {
    if let Ok(message) = serde_json::from_slice(line) {
        return Ok(message);
    }
    let value: Value = serde_json::from_slice(line).map_err(|error| {
        let error = ErrorData::new(ErrorCode::PARSE_ERROR, format!("this is not JSON: {error}"), None);
        Box::new(Refused { id: None, error })
    })?;
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    let error = ErrorData::invalid_request("this is no message of the protocol", None);
    Err(Box::new(Refused { id, error }))
}

impl Transport<RoleServer> for Lines {
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let writer = Arc::clone(&self.writer);
        async move {
            let mut line = serde_json::to_vec(&message)?;
            line.push(b'\n');
            let mut writer = writer.lock().await;
            let writer = writer.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            writer.write_all(&line).await?;
            writer.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        loop {
            match self.read().await {
                Line::Whole => {}
                Line::TooLong => {
                    let error = format!("a message has at most {MOST_BYTES} bytes");
                    self.refuse(Refused { id: None, error: ErrorData::invalid_request(error, None) }).await;
                    continue;
                }
                Line::End => {
                    if has_no_reader() {
                        self.gone.cancel();
                    }
                    return None;
                }
            }
            let line = self.line.trim_ascii();
            if line.is_empty() {
                self.forget_line();
                continue;
            }
            let parsed = parse(line);
            self.forget_line();
            match parsed {
                Ok(message) => return Some(message),
                Err(refused) => self.refuse(*refused).await,
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.gone.cancel();
        self.writer.lock().await.take();
        Ok(())
    }
}

/// Whether nobody is left to read answers: the client is gone, and has not merely said all it had to say.
fn has_no_reader() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdout = io::stdout();
    let mut polled = [PollFd::from_borrowed_fd(stdout.as_fd(), PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok_and(|count| count > 0)
        && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_message_is_answered_with_what_is_wrong() {
        let refused =
            |line: &str| parse(line.as_bytes()).err().map(|refused| (refused.error.code, refused.id));
        assert_eq!(refused("{"), Some((ErrorCode::PARSE_ERROR, None)));
        assert_eq!(refused("\u{0}"), Some((ErrorCode::PARSE_ERROR, None)));
        assert_eq!(refused("[]"), Some((ErrorCode::INVALID_REQUEST, None)));
        assert_eq!(refused("7"), Some((ErrorCode::INVALID_REQUEST, None)));
        assert_eq!(refused(r#"{"id": 7}"#), Some((ErrorCode::INVALID_REQUEST, Some(RequestId::Number(7)))));
        assert_eq!(refused(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#), None);
        assert_eq!(refused(r#"{"jsonrpc":"2.0","id":1,"method":"nonsense","params":{}}"#), None);
    }
}
