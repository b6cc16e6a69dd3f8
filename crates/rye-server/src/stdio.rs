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
use rye_item::json::parse_unique;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::session::{ServerState, Session};

/// The largest message that is read.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// A buffer that grew beyond this is not kept.
const MAX_IDLE_BUFFER_BYTES: usize = 64 << 10;

/// Serves until the client leaves or `stop` is cancelled.
pub(crate) async fn serve(shared: Arc<ServerState>, stop: CancellationToken) {
    let (reader, writer) = stdio_pipes();
    let disconnected = stop.child_token();
    let session = Session::new(shared, disconnected.clone());
    let transport = LineTransport {
        reader: BufReader::new(reader),
        line: Vec::new(),
        is_skipping: false,
        writer: Arc::new(Mutex::new(Some(writer))),
        disconnected,
    };
    // A client that leaves before it has said hello is not a failure.
    if let Ok(running) = session.serve_with_ct(transport, stop).await {
        // Only a task that panicked fails to be waited for, and it has been reported.
        let _ = running.waiting().await;
    }
}

struct LineTransport {
    reader: BufReader<StdioReader>,
    line: Vec<u8>,
    is_skipping: bool,
    writer: Arc<Mutex<Option<StdioWriter>>>,
    disconnected: CancellationToken,
}

/// What came in.
enum LineRead {
    Complete,
    TooLong,
    End,
}

impl LineTransport {
    /// Reads up to the next line break. If dropped in between, the next call continues there.
    async fn read_line(&mut self) -> LineRead {
        loop {
            let Ok(available) = self.reader.fill_buf().await else {
                return LineRead::End;
            };
            if available.is_empty() {
                return LineRead::End;
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let consumed = end.map_or(available.len(), |end| end + 1);
            if !self.is_skipping {
                self.line.extend_from_slice(&available[..consumed]);
            }
            self.reader.consume(consumed);
            let was_skipping = self.is_skipping;
            if self.line.len() > MAX_MESSAGE_BYTES {
                self.is_skipping = true;
                self.line = Vec::new();
            }
            match (end, self.is_skipping, was_skipping) {
                (Some(_), false, _) => return LineRead::Complete,
                (Some(_), true, _) => {
                    self.is_skipping = false;
                    return LineRead::TooLong;
                }
                (None, _, _) => {}
            }
        }
    }

    fn clear_line(&mut self) {
        if self.line.capacity() > MAX_IDLE_BUFFER_BYTES {
            self.line = Vec::new();
        } else {
            self.line.clear();
        }
    }

    async fn send_error(&mut self, parse_error: ParseError) {
        let error = ServerJsonRpcMessage::error(parse_error.error, parse_error.id);
        // Without a reader, the next read ends.
        let _ = self.send(error).await;
    }
}

/// A line that is not a message, and what to say about it.
struct ParseError {
    id: Option<RequestId>,
    error: ErrorData,
}

/// Reads a message. It may be the answer to a question: of a key that is there twice, neither value is taken.
fn parse(line: &[u8]) -> Result<ClientJsonRpcMessage, Box<ParseError>> {
    let value = parse_unique(line).map_err(|error| {
        let message = match error.is_data() {
            true => format!("this has a {error}"),
            false => format!("this is not JSON: {error}"),
        };
        let error = ErrorData::new(ErrorCode::PARSE_ERROR, message, None);
        Box::new(ParseError { id: None, error })
    })?;
    if let Ok(message) = serde_json::from_slice(line) {
        return Ok(message);
    }
    let id = value.get("id").and_then(|id| serde_json::from_value(id.clone()).ok());
    let error = ErrorData::invalid_request("not a message of the protocol", None);
    Err(Box::new(ParseError { id, error }))
}

impl Transport<RoleServer> for LineTransport {
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
            match self.read_line().await {
                LineRead::Complete => {}
                LineRead::TooLong => {
                    let error = format!("a message has at most {MAX_MESSAGE_BYTES} bytes");
                    self.send_error(ParseError { id: None, error: ErrorData::invalid_request(error, None) })
                        .await;
                    continue;
                }
                LineRead::End => {
                    if is_stdout_closed() {
                        self.disconnected.cancel();
                    }
                    return None;
                }
            }
            let line = self.line.trim_ascii();
            if line.is_empty() {
                self.clear_line();
                continue;
            }
            let parsed = parse(line);
            self.clear_line();
            match parsed {
                Ok(message) => return Some(message),
                Err(parse_error) => self.send_error(*parse_error).await,
            }
        }
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.disconnected.cancel();
        self.writer.lock().await.take();
        Ok(())
    }
}

/// Whether the client is gone, and has not only closed its output.
fn is_stdout_closed() -> bool {
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
    fn invalid_message_gets_a_specific_error() {
        let parse_error = |line: &str| {
            parse(line.as_bytes()).err().map(|parse_error| (parse_error.error.code, parse_error.id))
        };
        assert_eq!(parse_error("{"), Some((ErrorCode::PARSE_ERROR, None)));
        assert_eq!(parse_error("\u{0}"), Some((ErrorCode::PARSE_ERROR, None)));
        for twice in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"action":"decline","action":"accept"}}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{"a":"no","a":"yes"}}}"#,
        ] {
            assert_eq!(parse_error(twice), Some((ErrorCode::PARSE_ERROR, None)), "{twice}");
        }
        assert_eq!(parse_error("[]"), Some((ErrorCode::INVALID_REQUEST, None)));
        assert_eq!(parse_error("7"), Some((ErrorCode::INVALID_REQUEST, None)));
        assert_eq!(
            parse_error(r#"{"id": 7}"#),
            Some((ErrorCode::INVALID_REQUEST, Some(RequestId::Number(7))))
        );
        assert_eq!(parse_error(r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#), None);
        assert_eq!(parse_error(r#"{"jsonrpc":"2.0","id":1,"method":"nonsense","params":{}}"#), None);
    }
}
