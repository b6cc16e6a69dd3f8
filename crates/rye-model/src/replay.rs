//! Answering from a record: the same questions get the same answers, and another question gets none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use lillux::{Digest, canonical};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Completion, ModelError, ModelProvider, ModelRequest, ModelResponse, ResponseDelta};

/// One answer of a record, and what it answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedResponse {
    /// The [`request_digest`] of the request.
    pub request_digest: String,
    /// The answer.
    #[serde(rename = "answer")]
    pub response: ModelResponse,
}

/// What a model sees of a request, as a digest of each part:
/// `model:…,system:…,tools:…,limit:…,settings:…,messages:<count>:…`, without `settings` where none is set. The
/// same request has the same digest everywhere; how the answer travels and what stands behind a tool make no difference.
#[must_use]
pub fn request_digest(request: &ModelRequest) -> String {
    let tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| json!({"name": tool.name, "description": tool.description, "schema": tool.schema}))
        .collect();
    let messages: Vec<String> = request
        .messages
        .iter()
        .map(|message| {
            serde_json::to_value(message.as_ref())
                .map_or_else(|error| error.to_string(), |value| canonical::to_string(&value))
        })
        .collect();
    // Line breaks are escaped inside the texts: they part one message from the next.
    let messages = Digest::of_pieces(messages.iter().flat_map(|message| [message.as_bytes(), b"\n"]));
    let part_digest = |value: Value| short_hex(&canonical::digest(&value));
    let settings = match request.settings.is_default() {
        true => String::new(),
        false => format!("settings:{},", part_digest(request.settings.to_map().into())),
    };
    format!(
        "model:{},system:{},tools:{},limit:{},{settings}messages:{}:{}",
        part_digest(json!(request.model)),
        part_digest(json!(request.system)),
        part_digest(tools.into()),
        request.max_output_tokens,
        request.messages.len(),
        short_hex(&messages),
    )
}

/// Half a digest: against accident, not against malice.
fn short_hex(digest: &Digest) -> String {
    digest.to_hex()[..32].to_owned()
}

/// The parts in which two digests differ, in words.
fn describe_difference(recorded: &str, now: &str) -> String {
    let parts = |digest: &str| -> BTreeMap<String, String> {
        let pairs = digest.split(',').filter_map(|part| part.split_once(':'));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    let (recorded, now) = (parts(recorded), parts(now));
    let differs = |part: &str| recorded.get(part) != now.get(part);
    let mut words: Vec<String> = [
        ("model", "the model"),
        ("system", "the system prompt"),
        ("tools", "the tools"),
        ("limit", "the output limit"),
        ("settings", "the model's settings"),
    ]
    .into_iter()
    .filter(|(part, _)| differs(part))
    .map(|(_, words)| words.to_owned())
    .collect();
    if differs("messages") {
        let count = |parts: &BTreeMap<String, String>| {
            let messages = parts.get("messages")?;
            messages.split(':').next().map(str::to_owned)
        };
        words.push(match (count(&recorded), count(&now)) {
            (Some(recorded), Some(now)) if recorded != now => {
                format!("the messages ({now} instead of {recorded})")
            }
            _ => "the messages".to_owned(),
        });
    }
    if words.is_empty() { "the record".to_owned() } else { words.join(" and ") }
}

/// Answers from a record, in order.
#[derive(Debug)]
pub struct ReplayProvider {
    recorded: Vec<RecordedResponse>,
    next: AtomicUsize,
}

impl ReplayProvider {
    /// A provider that gives these answers.
    #[must_use]
    pub fn new(recorded: Vec<RecordedResponse>) -> Self {
        Self { recorded, next: AtomicUsize::new(0) }
    }

    fn next_response(&self, request: &ModelRequest) -> Result<&ModelResponse, String> {
        let index = self.next.load(Ordering::SeqCst);
        let turn = index + 1;
        let recorded = self.recorded.get(index);
        let recorded = recorded
            .ok_or_else(|| format!("turn {turn}: the record ends after turn {}", self.recorded.len()))?;
        let actual = request_digest(request);
        if recorded.request_digest != actual {
            let difference = describe_difference(&recorded.request_digest, &actual);
            return Err(format!("turn {turn}: {difference} differ from what was recorded"));
        }
        // Only one thread asks; another that does finds its own question answered or differing.
        self.next.store(turn, Ordering::SeqCst);
        Ok(&recorded.response)
    }
}

impl ModelProvider for ReplayProvider {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        deltas: &'a (dyn Fn(ResponseDelta) + Send + Sync),
    ) -> Completion<'a> {
        Box::pin(async move {
            let response = self
                .next_response(request)
                .map_err(|message| ModelError::before_send("Diverged", message))?;
            response.emit_deltas(deltas);
            Ok(response.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{ChatMessage, FinishReason, ToolDefinition, Usage};

    fn request(text: &str) -> ModelRequest {
        let tool = ToolDefinition {
            name: "t".to_owned(),
            description: "d".to_owned(),
            schema: json!({"type": "object"}),
            target: json!({"item_id": "a"}),
        };
        ModelRequest {
            model: "m".to_owned(),
            system: None,
            messages: vec![Arc::new(ChatMessage::user(text.to_owned()))],
            tools: Arc::from([tool]),
            max_output_tokens: 100,
            settings: Arc::default(),
            files: Arc::default(),
            wants_stream: false,
        }
    }

    fn test_response(text: &str) -> ModelResponse {
        ModelResponse {
            text: text.to_owned(),
            reasoning: String::new(),
            calls: vec![],
            replay: vec![],
            finish_reason: FinishReason::Stop,
            usage: Usage::default(),
            model: "m".to_owned(),
        }
    }

    fn run(replay: &ReplayProvider, request: &ModelRequest) -> Result<String, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let answered = runtime.block_on(replay.complete(request, &|_| {}));
        answered.map(|response| response.text).map_err(|failure| {
            assert_eq!((failure.kind.as_str(), failure.reached_server), ("Diverged", false));
            failure.message
        })
    }

    #[test]
    fn same_requests_get_same_responses() {
        let record = |text: &str| RecordedResponse {
            request_digest: request_digest(&request(text)),
            response: test_response(text),
        };
        let replay = ReplayProvider::new(vec![record("one"), record("two")]);
        assert_eq!(run(&replay, &request("one")), Ok("one".to_owned()));
        let early = run(&replay, &request("one"));
        assert_eq!(early, Err("turn 2: the messages differ from what was recorded".to_owned()));
        assert_eq!(run(&replay, &request("two")), Ok("two".to_owned()));
        let late = run(&replay, &request("three"));
        assert_eq!(late, Err("turn 3: the record ends after turn 2".to_owned()));
    }

    #[test]
    fn differences_are_named() {
        let base = request("one");
        let replay = || {
            ReplayProvider::new(vec![RecordedResponse {
                request_digest: request_digest(&base),
                response: test_response("one"),
            }])
        };
        let differ = |request: ModelRequest| run(&replay(), &request).expect_err("another question");
        let tail = "differ from what was recorded";
        assert_eq!(
            differ(ModelRequest { model: "n".to_owned(), ..base.clone() }),
            format!("turn 1: the model {tail}")
        );
        let several = ModelRequest { system: Some("s".to_owned()), max_output_tokens: 7, ..base.clone() };
        assert_eq!(differ(several), format!("turn 1: the system prompt and the output limit {tail}"));
        assert_eq!(
            differ(ModelRequest { tools: Arc::from([]), ..base.clone() }),
            format!("turn 1: the tools {tail}")
        );
        let longer = ModelRequest {
            messages: [base.messages.clone(), base.messages.clone()].concat(),
            ..base.clone()
        };
        assert_eq!(differ(longer), format!("turn 1: the messages (2 instead of 1) {tail}"));
    }

    #[test]
    fn digest_ignores_streaming_and_targets() {
        let base = request("one");
        let mut other = ModelRequest { wants_stream: true, ..base.clone() };
        let mut tool = base.tools[0].clone();
        tool.target = json!({"item_id": "b"});
        other.tools = Arc::from([tool]);
        assert_eq!(request_digest(&base), request_digest(&other));
    }
}
