//! What a script answers.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::Semaphore;

/// Holds answers back until it is opened. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    /// Closed.
    #[must_use]
    pub fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    /// Lets everything through, from now on.
    pub fn open(&self) {
        self.0.close();
    }

    /// Ready when it is open.
    pub(super) async fn wait_open(&self) {
        // No permits are added: closing the semaphore ends the wait.
        let _ = self.0.acquire().await;
    }
}

/// How an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyEnd {
    Stop,
    ToolCalls,
    Length,
}

/// An answer that each protocol says in its own way.
#[derive(Clone, Debug)]
pub(super) struct ReplyContent {
    pub thinking: Option<String>,
    pub text: String,
    /// Names, and arguments as JSON text, whole or not.
    pub calls: Vec<(String, String)>,
    pub end: ReplyEnd,
    /// Tokens in, read from the cache, out; worked out if not given.
    pub usage: Option<(u64, u64, u64)>,
}

#[derive(Clone, Debug)]
pub(super) enum ReplyKind {
    Content(ReplyContent),
    Status { code: u16, body: Vec<u8>, headers: Vec<(String, String)> },
    Hang,
    Raw(Vec<u8>),
}

/// One answer.
#[derive(Clone, Debug)]
pub struct FakeReply {
    pub(super) kind: ReplyKind,
    pub(super) delay: Duration,
    pub(super) gate: Option<Gate>,
    /// How many pieces of a streamed body come before the gate.
    pub(super) pieces_before_gate: usize,
    /// After how many pieces of the body the connection ends.
    pub(super) disconnect_after: Option<usize>,
}

impl FakeReply {
    fn new(kind: ReplyKind) -> Self {
        Self { kind, delay: Duration::ZERO, gate: None, pieces_before_gate: 0, disconnect_after: None }
    }

    fn content(text: &str, calls: Vec<(String, String)>, end: ReplyEnd) -> Self {
        Self::new(ReplyKind::Content(ReplyContent {
            thinking: None,
            text: text.to_owned(),
            calls,
            end,
            usage: None,
        }))
    }

    /// Words, and the end. Streamed, each word is a piece.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self::content(text, Vec::new(), ReplyEnd::Stop)
    }

    /// Calls of tools, with their arguments.
    #[must_use]
    pub fn calls<'a>(calls: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        Self::calls_and_text("", calls)
    }

    /// Words, then calls of tools.
    #[must_use]
    pub fn calls_and_text<'a>(text: &str, calls: impl IntoIterator<Item = (&'a str, Value)>) -> Self {
        let calls = calls.into_iter().map(|(name, input)| (name.to_owned(), input.to_string())).collect();
        Self::content(text, calls, ReplyEnd::ToolCalls)
    }

    /// A call whose arguments end in the middle, because there was no more room.
    #[must_use]
    pub fn truncated_tool_json(name: &str, so_far: &str) -> Self {
        Self::content("", vec![(name.to_owned(), so_far.to_owned())], ReplyEnd::Length)
    }

    /// A call whose arguments are this text, whatever it is.
    #[must_use]
    pub fn call_with_arguments(name: &str, arguments: &str) -> Self {
        Self::content("", vec![(name.to_owned(), arguments.to_owned())], ReplyEnd::ToolCalls)
    }

    /// Nothing: no words, no calls.
    #[must_use]
    pub fn empty() -> Self {
        Self::text("")
    }

    /// Words that end because there was no more room.
    #[must_use]
    pub fn length(text: &str) -> Self {
        Self::content(text, Vec::new(), ReplyEnd::Length)
    }

    /// A status with a JSON body and headers.
    #[must_use]
    pub fn status(code: u16, body: &Value, headers: &[(&str, &str)]) -> Self {
        Self::status_text(code, &body.to_string(), headers)
    }

    /// A status with any body and headers.
    #[must_use]
    pub fn status_text(code: u16, body: &str, headers: &[(&str, &str)]) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self::new(ReplyKind::Status { code, body: body.as_bytes().to_vec(), headers })
    }

    /// No answer, until the client goes away.
    #[must_use]
    pub fn hang() -> Self {
        Self::new(ReplyKind::Hang)
    }

    /// A streamed text of six words whose connection ends after this many pieces of the body. In one piece, an answer
    /// whose connection ends in the middle.
    #[must_use]
    pub fn reset_mid_stream(pieces: usize) -> Self {
        Self::text("one two three four five six").disconnect_after(pieces)
    }

    /// An answer after a while.
    #[must_use]
    pub fn slow(delay: Duration, text: &str) -> Self {
        Self::text(text).with_delay(delay)
    }

    /// These bytes instead of an HTTP answer; then the connection ends.
    #[must_use]
    pub fn raw(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(ReplyKind::Raw(bytes.into()))
    }

    /// The same answer, after a while.
    #[must_use]
    pub fn with_delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// The same answer, once the gate is open.
    #[must_use]
    pub fn with_gate(mut self, gate: &Gate) -> Self {
        self.gate = Some(gate.clone());
        self
    }

    /// The same streamed answer, which ends after these pieces of the body until the gate is open.
    #[must_use]
    pub fn with_gate_after(self, pieces: usize, gate: &Gate) -> Self {
        Self { pieces_before_gate: pieces, ..self.with_gate(gate) }
    }

    /// The same answer, whose connection ends after this many pieces of the body.
    #[must_use]
    pub fn disconnect_after(mut self, pieces: usize) -> Self {
        self.disconnect_after = Some(pieces);
        self
    }

    /// The same answer, with reasoning before it (Anthropic's is signed).
    #[must_use]
    pub fn with_thinking(mut self, text: &str) -> Self {
        if let ReplyKind::Content(content) = &mut self.kind {
            content.thinking = Some(text.to_owned());
        }
        self
    }

    /// The same answer, with these tokens: all that went in, those of them that were cached, all that came out.
    #[must_use]
    pub fn with_usage(mut self, input: u64, cached: u64, output: u64) -> Self {
        if let ReplyKind::Content(content) = &mut self.kind {
            content.usage = Some((input, cached, output));
        }
        self
    }

    /// Whether it calls a tool.
    pub(super) fn is_call(&self) -> bool {
        matches!(&self.kind, ReplyKind::Content(content) if !content.calls.is_empty())
    }
}
