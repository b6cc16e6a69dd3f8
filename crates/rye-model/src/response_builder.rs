//! Builds a [`ModelResponse`] from the pieces that a protocol's parser finds.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::json_ref::JsonRef;
use crate::{
    ChatMessage, FinishReason, ModelError, ModelRequest, ModelResponse, ResponseDelta, ToolCall, Usage,
};
use rye_thread::model::INCOMPLETE;

/// How many calls an answer may have.
const MAX_CALLS: usize = 1000;

/// How long an answer may be, for each token that was asked for and beyond that: text has some five bytes a token, and
/// few answers more than sixteen. Servers that are only a little off are not cut: they are charged what was reserved.
const MAX_BYTES_PER_TOKEN: usize = 64;
const MAX_EXTRA_BYTES: usize = 256 << 10;

/// Why a reader cannot continue.
#[derive(Debug, PartialEq)]
pub(crate) enum ResponseParseError {
    /// What came is not what the protocol says.
    Protocol(String),
    /// The server says what went wrong.
    Api(ApiError),
}

impl ResponseParseError {
    pub(crate) fn protocol(message: impl Into<String>) -> Self {
        Self::Protocol(message.into())
    }
}

/// What a server says went wrong.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ApiError {
    pub kind: String,
    pub message: String,
    pub code: Option<String>,
    /// When to come back, in seconds, where the body says so.
    pub retry_after: Option<String>,
}

/// Reads one protocol's answers.
pub(crate) trait ResponseParser: Send {
    /// Takes one event of a stream: unless the protocol says otherwise, a piece of the answer in the answer's own form.
    fn parse_event(
        &mut self,
        data: &str,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError> {
        self.parse_response(&parse_json(data)?, response)
    }

    /// Takes an answer that came in one piece.
    fn parse_response(
        &mut self,
        body: &JsonRef<'_>,
        response: &mut ResponseBuilder<'_>,
    ) -> Result<(), ResponseParseError>;

    /// What the provider wants back with the next request, when all has been taken.
    fn replay_blocks(&mut self, calls: &[ToolCall]) -> Vec<Value>;

    /// Whether the server always counts both the request and the answer. A whole answer with one count only is then as if
    /// nothing were counted, and charged what was reserved for it.
    fn counts_both_sides(&self) -> bool {
        true
    }
}

/// A call in the making.
#[derive(Default)]
struct CallBuilder {
    /// Where the server keeps it.
    slot: u64,
    id: String,
    name: String,
    input: CallInput,
    is_announced: bool,
}

/// The arguments of a call, as far as they have come.
enum CallInput {
    Text(String),
    Whole(Value),
    /// Came whole, and yet its end is missing.
    Truncated(String),
}

impl Default for CallInput {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

/// An answer in the making.
pub(crate) struct ResponseBuilder<'a> {
    request: &'a ModelRequest,
    deltas: &'a (dyn Fn(ResponseDelta) + Send + Sync),
    text: String,
    reasoning: String,
    calls: Vec<CallBuilder>,
    pub finish_reason: Option<FinishReason>,
    pub usage: Usage,
    pub model: String,
    /// Whether the server said that nothing more comes.
    pub is_done: bool,
    /// Whether what is said is a refusal, however it ends.
    pub is_refused: bool,
    /// How many bytes of text, reasoning and arguments may still come.
    available: usize,
    /// Whether more came: the rest was cut off.
    is_too_long: bool,
}

impl<'a> ResponseBuilder<'a> {
    pub(crate) fn new(request: &'a ModelRequest, deltas: &'a (dyn Fn(ResponseDelta) + Send + Sync)) -> Self {
        Self {
            request,
            deltas,
            text: String::new(),
            reasoning: String::new(),
            calls: Vec::new(),
            finish_reason: None,
            usage: Usage::default(),
            model: String::new(),
            is_done: false,
            is_refused: false,
            available: max_bytes(request),
            is_too_long: false,
        }
    }

    /// The error of an answer that is longer than was asked for: what came before that is kept.
    pub(crate) fn length_error(&self) -> Option<ModelError> {
        let (bytes, tokens) = (max_bytes(self.request), self.request.max_output_tokens);
        let message = format!("the answer was cut off after {bytes} bytes: {tokens} tokens were asked for");
        self.is_too_long.then(|| ModelError::after_send("AnswerTooLong", message))
    }

    /// As much of a piece as may still come.
    fn take_available<'p>(&mut self, piece: &'p str) -> &'p str {
        let end = piece.floor_char_boundary(self.available);
        self.is_too_long |= end < piece.len();
        // Once something was cut off, nothing may follow it.
        self.available = if self.is_too_long { 0 } else { self.available - end };
        &piece[..end]
    }

    pub(crate) fn push_text(&mut self, text: &str) {
        let text = self.take_available(text);
        if !text.is_empty() {
            self.text.push_str(text);
            (self.deltas)(ResponseDelta::Text(text.to_owned()));
        }
    }

    pub(crate) fn push_reasoning(&mut self, text: &str) {
        let text = self.take_available(text);
        if !text.is_empty() {
            self.reasoning.push_str(text);
            (self.deltas)(ResponseDelta::Reasoning(text.to_owned()));
        }
    }

    /// The call in this slot: the newest one there, or a new one when there is none or it has another id.
    pub(crate) fn start_call(
        &mut self,
        slot: u64,
        id: Option<&str>,
        name: Option<&str>,
    ) -> Result<(), ResponseParseError> {
        let id = id.unwrap_or_default();
        let is_full = self.calls.len() == MAX_CALLS;
        let known = self.calls.iter_mut().rev().find(|call| call.slot == slot);
        let known = known.filter(|call| id.is_empty() || call.id.is_empty() || call.id == id);
        let call = match known {
            Some(call) => call,
            None if is_full => {
                return Err(ResponseParseError::Protocol(format!(
                    "the answer has more than {MAX_CALLS} calls"
                )));
            }
            None => {
                self.calls.push(CallBuilder { slot, ..CallBuilder::default() });
                let last = self.calls.len() - 1;
                &mut self.calls[last]
            }
        };
        let mut stored = 0;
        for (known, piece) in [(&mut call.id, id), (&mut call.name, name.unwrap_or_default())] {
            if known.is_empty() {
                piece.clone_into(known);
                stored += piece.len();
            }
        }
        if !call.name.is_empty() && !call.is_announced {
            call.is_announced = true;
            (self.deltas)(ResponseDelta::CallStarted { id: call.id.clone(), name: call.name.clone() });
        }
        self.is_too_long |= stored > self.available;
        self.available = self.available.saturating_sub(stored);
        Ok(())
    }

    /// Adds a piece of JSON text to the arguments of the call in this slot.
    pub(crate) fn push_arguments(&mut self, slot: u64, piece: &str) -> Result<(), ResponseParseError> {
        let piece = self.take_available(piece);
        let call = self.calls.iter_mut().rev().find(|call| call.slot == slot);
        let call =
            call.ok_or_else(|| ResponseParseError::protocol("arguments came for a call that never began"))?;
        match &mut call.input {
            CallInput::Text(text) => text.push_str(piece),
            CallInput::Whole(_) | CallInput::Truncated(_) if piece.is_empty() => {}
            other => *other = CallInput::Text(piece.to_owned()),
        }
        Ok(())
    }

    /// Gives the call in this slot all its arguments at once.
    pub(crate) fn set_arguments(&mut self, slot: u64, input: Value) {
        let whole = input.to_string();
        let available = self.take_available(&whole);
        let input = match available.len() == whole.len() {
            true => CallInput::Whole(input),
            false => CallInput::Truncated(available.to_owned()),
        };
        if let Some(call) = self.calls.iter_mut().rev().find(|call| call.slot == slot) {
            call.input = input;
        }
    }

    /// Says that the last call's end is missing, though its arguments came whole.
    pub(crate) fn truncate_last_call(&mut self) {
        if let Some(call) = self.calls.last_mut() {
            let so_far = match &call.input {
                CallInput::Text(text) | CallInput::Truncated(text) => text.clone(),
                CallInput::Whole(whole) => whole.to_string(),
            };
            call.input = CallInput::Truncated(so_far);
        }
    }

    /// How many calls there are: the next free slot where the server numbers none.
    pub(crate) fn next_slot(&self) -> u64 {
        self.calls.len() as u64
    }

    /// An id for a call that the server gave none.
    pub(crate) fn generate_call_id(&self, slot: u64) -> String {
        generate_call_id(self.request, slot)
    }

    /// Whether nothing came at all.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty()
            && self.reasoning.is_empty()
            && self.calls.is_empty()
            && !self.usage.is_reported()
    }

    /// The answer, whole.
    pub(crate) fn build(mut self, parser: &mut dyn ResponseParser) -> ModelResponse {
        let finish = match self.finish_reason.take().unwrap_or(FinishReason::Stop) {
            FinishReason::Stop if self.is_refused => FinishReason::Refused("refusal".to_owned()),
            // Some servers stop for tools without saying so.
            FinishReason::Stop if !self.calls.is_empty() => FinishReason::ToolCalls,
            finish => finish,
        };
        let is_cut = finish == FinishReason::Length;
        let has_answer = !self.text.is_empty() || !self.reasoning.is_empty() || !self.calls.is_empty();
        let is_half = self.usage.input_tokens == 0 || has_answer && self.usage.output_tokens == 0;
        if is_half && parser.counts_both_sides() {
            self.usage = Usage::default();
        }
        self.build_with(finish, is_cut, parser)
    }

    /// What came of an answer that broke off.
    pub(crate) fn build_partial(mut self, parser: &mut dyn ResponseParser) -> ModelResponse {
        let finish = self.finish_reason.take().unwrap_or_else(|| FinishReason::Other(INCOMPLETE.to_owned()));
        self.build_with(finish, true, parser)
    }

    fn build_with(
        self,
        finish: FinishReason,
        is_cut: bool,
        parser: &mut dyn ResponseParser,
    ) -> ModelResponse {
        let last = self.calls.len().saturating_sub(1);
        let calls: Vec<ToolCall> = self
            .calls
            .into_iter()
            .enumerate()
            .map(|(index, call)| {
                let (input, malformed) = parse_arguments(call.input, is_cut && index == last);
                ToolCall { id: call.id, name: call.name, input, malformed }
            })
            .collect();
        let calls = ensure_call_ids(calls, self.request);
        let replay = parser.replay_blocks(&calls);
        let model = if self.model.is_empty() { self.request.model.clone() } else { self.model };
        let usage = self.usage.clamp_counts();
        ModelResponse {
            text: self.text,
            reasoning: self.reasoning,
            calls,
            replay,
            finish_reason: finish,
            usage,
            model,
        }
    }
}

/// How long an answer to a request may be.
fn max_bytes(request: &ModelRequest) -> usize {
    let tokens = usize::try_from(request.max_output_tokens).unwrap_or(usize::MAX);
    tokens.saturating_mul(MAX_BYTES_PER_TOKEN).saturating_add(MAX_EXTRA_BYTES)
}

/// The arguments as an object, or what came instead. Where an answer broke off, no arguments at all are too few.
fn parse_arguments(input: CallInput, is_cut: bool) -> (Map<String, Value>, Option<String>) {
    match input {
        CallInput::Text(text) if text.trim().is_empty() => (Map::new(), is_cut.then_some(text)),
        CallInput::Text(text) => match serde_json::from_str(&text) {
            Ok(Value::Object(map)) => (map, None),
            Ok(_) | Err(_) => (Map::new(), Some(text)),
        },
        CallInput::Truncated(text) => (Map::new(), Some(text)),
        CallInput::Whole(Value::Object(map)) => (map, None),
        CallInput::Whole(Value::Null) => (Map::new(), None),
        CallInput::Whole(other) => (Map::new(), Some(other.to_string())),
    }
}

/// Gives each call that has no id, or one that the conversation knows already, one of its own.
fn ensure_call_ids(mut calls: Vec<ToolCall>, request: &ModelRequest) -> Vec<ToolCall> {
    if calls.is_empty() {
        return calls;
    }
    let mut known: BTreeSet<&str> = BTreeSet::new();
    for message in &request.messages {
        if let ChatMessage::Assistant { calls, .. } = message.as_ref() {
            known.extend(calls.iter().map(|call| call.id.as_str()));
        }
    }
    let mut assigned: BTreeSet<String> = BTreeSet::new();
    for (index, call) in (0..).zip(&mut calls) {
        let is_taken = |id: &str| id.is_empty() || known.contains(id) || assigned.contains(id);
        if is_taken(&call.id) {
            call.id = generate_call_id(request, index);
        }
        while is_taken(&call.id) {
            call.id.push('-');
        }
        assigned.insert(call.id.clone());
    }
    calls
}

/// Names a call by where it stands in the conversation, which only grows.
fn generate_call_id(request: &ModelRequest, index: u64) -> String {
    format!("call-{}-{index}", request.messages.len())
}

/// Reads one event as JSON.
pub(crate) fn parse_json(data: &str) -> Result<JsonRef<'_>, ResponseParseError> {
    serde_json::from_str(data)
        .map_err(|error| ResponseParseError::Protocol(format!("the stream holds invalid JSON: {error}")))
}

/// What went wrong, if the server says that something did, in any of the shapes the providers use.
pub(crate) fn api_error(body: &JsonRef<'_>) -> Option<ApiError> {
    let error = match body {
        // Gemini wraps what went wrong into a list when it streams.
        JsonRef::List(list) => return list.first().and_then(api_error),
        other => other.get("error").filter(|error| !error.is_null())?,
    };
    let code = match error.get("code") {
        Some(JsonRef::Text(text)) if !text.is_empty() => Some(text.clone().into_owned()),
        Some(JsonRef::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let kind = error.text_at("type").or_else(|| error.text_at("status")).filter(|kind| !kind.is_empty());
    let message = error.as_text().or_else(|| error.text_at("message")).unwrap_or("the server gave no reason");
    let details = error.get("details").and_then(JsonRef::as_list).into_iter().flatten();
    let retry_after = details.filter_map(|detail| detail.text_at("retryDelay")).find_map(|delay| {
        let seconds = delay.strip_suffix('s')?;
        seconds.parse::<f64>().ok().filter(|seconds| *seconds >= 0.0)?;
        Some(seconds.to_owned())
    });
    Some(ApiError {
        kind: kind.unwrap_or("unknown_error").to_owned(),
        message: message.to_owned(),
        code,
        retry_after,
    })
}
