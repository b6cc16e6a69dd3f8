//! Newline-delimited JSON over a process's pipes, stricter than the SDK's own: a line that is not a message, an answer
//! that was not requested or a line without end stops the exchange with a reason, where the SDK would wait on.

use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use rmcp::model::{ClientJsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::service::RoleClient;
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};

use super::fault::{Fault, FaultReason};
use super::{CLOSE_TIMEOUT, MAX_EXCHANGE_BYTES, MAX_MESSAGE_BYTES};
use crate::error::truncate_line;

/// The pipes of one server, as the SDK wants to see them.
pub(super) struct StdioTransport {
    stdout: Receiver,
    buffer: Vec<u8>,
    /// How much of `buffer` is known to hold no line break.
    searched: usize,
    received: usize,
    stdin: Arc<tokio::sync::Mutex<Option<Sender>>>,
    pending: Arc<Mutex<HashSet<RequestId>>>,
    fault: Fault,
}

impl StdioTransport {
    pub(super) fn new(stdin: Sender, stdout: Receiver, fault: Fault) -> Self {
        Self {
            stdout,
            buffer: Vec::new(),
            searched: 0,
            received: 0,
            stdin: Arc::new(tokio::sync::Mutex::new(Some(stdin))),
            pending: Arc::default(),
            fault,
        }
    }

    /// The next line without its end; `None` when the server closed its stdout. Safe to abandon at any await.
    async fn read_line(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            if let Some(found) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + found;
                let rest = self.buffer.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                self.searched = 0;
                line.pop();
                return Ok(Some(line));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_MESSAGE_BYTES {
                return Err(format!("it sent a message larger than {MAX_MESSAGE_BYTES} bytes"));
            }
            if self.received > MAX_EXCHANGE_BYTES {
                return Err(format!("it sent more than {MAX_EXCHANGE_BYTES} bytes"));
            }
            self.buffer.reserve(8192);
            match self.stdout.read_buf(&mut self.buffer).await {
                Ok(0) => return Ok(None),
                Ok(count) => self.received += count,
                Err(error) => return Err(format!("its stdout cannot be read: {error}")),
            }
        }
    }

    fn parse_line(&self, line: &[u8]) -> Result<Option<ServerJsonRpcMessage>, String> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(None);
        }
        let pending = &mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        parse_message(line, pending).map(Some)
    }
}

/// Reads one message and checks that an answer is to a question in `waiting`, which it then leaves.
pub(super) fn parse_message(
    bytes: &[u8],
    pending: &mut HashSet<RequestId>,
) -> Result<ServerJsonRpcMessage, String> {
    let excerpt = || truncate_line(&String::from_utf8_lossy(&bytes[..bytes.len().min(400)]), 100);
    let value: Value = rye_item::json::parse_unique(bytes).map_err(|error| match error.is_data() {
        true => format!("it sent a message with a {error}"),
        false => format!("it sent something that is not a message: `{}`", excerpt()),
    })?;
    let is_message = value.is_object() && value.get("jsonrpc").and_then(Value::as_str) == Some("2.0");
    if !is_message {
        return Err(format!("it sent something that is not a message: `{}`", excerpt()));
    }
    if value.get("method").is_none() {
        let id = match value.get("id") {
            // An error may come without an id when the server could not read the question.
            None | Some(Value::Null) if value.get("error").is_some() => None,
            Some(id) => {
                Some(serde_json::from_value::<RequestId>(id.clone()).map_err(|_| unexpected_response(id))?)
            }
            None => return Err(format!("it sent something that is not a message: `{}`", excerpt())),
        };
        if let Some(id) = &id
            && !pending.remove(id)
        {
            return Err(unexpected_response(&id.clone().into_json_value()));
        }
    }
    serde_json::from_value(value).map_err(|_| format!("it sent an unknown message: `{}`", excerpt()))
}

fn unexpected_response(id: &Value) -> String {
    format!("it sent an unexpected or duplicate response: id `{}`", truncate_line(&id.to_string(), 60))
}

impl Transport<RoleClient> for StdioTransport {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        if let ClientJsonRpcMessage::Request(request) = &message {
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(request.id.clone());
        }
        let stdin = Arc::clone(&self.stdin);
        async move {
            let mut bytes = serde_json::to_vec(&message)?;
            bytes.push(b'\n');
            match stdin.lock().await.as_mut() {
                Some(stdin) => stdin.write_all(&bytes).await,
                None => Err(io::ErrorKind::NotConnected.into()),
            }
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            let read = match self.read_line().await {
                Ok(Some(line)) => self.parse_line(&line),
                Ok(None) => return None,
                Err(reason) => Err(reason),
            };
            match read {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(reason) => {
                    self.fault.raise(FaultReason::Protocol(reason));
                    return None;
                }
            }
        }
    }

    /// Closes the server's stdin, which asks it to end, and gives it a moment to do so.
    async fn close(&mut self) -> Result<(), Self::Error> {
        drop(self.stdin.lock().await.take());
        let drained = async {
            let mut rest = [0; 4096];
            while matches!(self.stdout.read(&mut rest).await, Ok(count) if count > 0) {}
        };
        // A slow process is ended by the guard.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, drained).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_error(text: &str) -> String {
        let mut waiting = HashSet::from([RequestId::Number(1)]);
        parse_message(text.as_bytes(), &mut waiting).expect_err("refused")
    }

    #[test]
    fn invalid_messages_are_refused() {
        assert_eq!(parse_error("Listening\u{1b}[0m"), "it sent something that is not a message: `Listening`");
        assert_eq!(parse_error("[]"), "it sent something that is not a message: `[]`");
        assert_eq!(parse_error("{\"id\":1}"), "it sent something that is not a message: `{\"id\":1}`");
        assert_eq!(
            parse_error(r#"{"jsonrpc":"2.0"}"#),
            "it sent something that is not a message: `{\"jsonrpc\":\"2.0\"}`"
        );
        assert!(parse_error(&"[".repeat(100_000)).starts_with("it sent something that is not a message"));
        let twice = parse_error(r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"isError":false}}"#);
        assert!(twice.starts_with("it sent a message with a duplicate key `isError` at line 1"), "{twice}");
    }

    #[test]
    fn responses_must_match_a_pending_request() {
        let answer = |id: &str| format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"tools":[]}}}}"#);
        let unasked = "it sent an unexpected or duplicate response: id `2`";
        assert_eq!(parse_error(&answer("2")), unasked);
        let mut waiting = HashSet::from([RequestId::Number(2)]);
        assert!(parse_message(answer("2").as_bytes(), &mut waiting).is_ok());
        let again = parse_message(answer("2").as_bytes(), &mut waiting);
        assert_eq!(again.map(|_| ()), Err(unasked.to_owned()));
    }
}
