//! Answering from a record: the same questions get the same answers, and another question gets none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use lillux::{Digest, canonical};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Answer, Completion, Delta, Failure, Provider, Request};

/// One answer of a record, and what it answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// The [`digest`] of the request.
    pub request_digest: String,
    /// The answer.
    pub answer: Answer,
}

/// What a model sees of a request, as a digest of each part: `model:…,system:…,tools:…,limit:…,messages:<count>:…`. The
/// same request has the same digest everywhere; how the answer travels and what stands behind a tool do not count.
#[must_use]
pub fn digest(request: &Request) -> String {
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
    let of = |value: Value| short(&canonical::digest(&value));
    format!(
        "model:{},system:{},tools:{},limit:{},messages:{}:{}",
        of(json!(request.model)),
        of(json!(request.system)),
        of(tools.into()),
        request.max_output_tokens,
        request.messages.len(),
        short(&messages),
    )
}

/// Half a digest: against accident, not against malice.
fn short(digest: &Digest) -> String {
    digest.to_hex()[..32].to_owned()
}

/// The parts in which two digests differ, in words.
fn difference(recorded: &str, now: &str) -> String {
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
pub struct Replay {
    recorded: Vec<Recorded>,
    next: AtomicUsize,
}

impl Replay {
    /// A provider that gives these answers.
    #[must_use]
    pub fn new(recorded: Vec<Recorded>) -> Self {
        Self { recorded, next: AtomicUsize::new(0) }
    }

    fn answer(&self, request: &Request) -> Result<&Answer, String> {
        let place = self.next.load(Ordering::SeqCst);
        let turn = place + 1;
        let recorded = self.recorded.get(place);
        let recorded = recorded
            .ok_or_else(|| format!("turn {turn}: the record ends after turn {}", self.recorded.len()))?;
        let now = digest(request);
        if recorded.request_digest != now {
            let difference = difference(&recorded.request_digest, &now);
            return Err(format!("turn {turn}: {difference} differ from what was recorded"));
        }
        // Only one thread asks; another that does finds its own question answered or differing.
        self.next.store(turn, Ordering::SeqCst);
        Ok(&recorded.answer)
    }
}

impl Provider for Replay {
    fn complete<'a>(
        &'a self,
        request: &'a Request,
        deltas: &'a (dyn Fn(Delta) + Send + Sync),
    ) -> Completion<'a> {
        Box::pin(async move {
            let answer = self.answer(request).map_err(|message| Failure::here("Diverged", message))?;
            answer.tell(deltas);
            Ok(answer.clone())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Finish, Message, ToolDefinition, Usage};

    fn request(text: &str) -> Request {
        let tool = ToolDefinition {
            name: "t".to_owned(),
            description: "d".to_owned(),
            schema: json!({"type": "object"}),
            target: json!({"item_id": "a"}),
        };
        Request {
            model: "m".to_owned(),
            system: None,
            messages: vec![Arc::new(Message::User { text: text.to_owned() })],
            tools: Arc::from([tool]),
            max_output_tokens: 100,
            wants_stream: false,
        }
    }

    fn answer(text: &str) -> Answer {
        Answer {
            text: text.to_owned(),
            reasoning: String::new(),
            calls: vec![],
            replay: vec![],
            finish: Finish::Stop,
            usage: Usage::default(),
            model: "m".to_owned(),
        }
    }

    fn ask(replay: &Replay, request: &Request) -> Result<String, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let answered = runtime.block_on(replay.complete(request, &|_| {}));
        answered.map(|answer| answer.text).map_err(|failure| {
            assert_eq!((failure.kind.as_str(), failure.reached_server), ("Diverged", false));
            failure.message
        })
    }

    #[test]
    fn the_same_questions_get_the_same_answers_in_order() {
        let record = |text: &str| Recorded { request_digest: digest(&request(text)), answer: answer(text) };
        let replay = Replay::new(vec![record("one"), record("two")]);
        assert_eq!(ask(&replay, &request("one")), Ok("one".to_owned()));
        let early = ask(&replay, &request("one"));
        assert_eq!(early, Err("turn 2: the messages differ from what was recorded".to_owned()));
        assert_eq!(ask(&replay, &request("two")), Ok("two".to_owned()));
        let late = ask(&replay, &request("three"));
        assert_eq!(late, Err("turn 3: the record ends after turn 2".to_owned()));
    }

    #[test]
    fn what_differs_is_named() {
        let base = request("one");
        let replay = || Replay::new(vec![Recorded { request_digest: digest(&base), answer: answer("one") }]);
        let differ = |request: Request| ask(&replay(), &request).expect_err("another question");
        let tail = "differ from what was recorded";
        assert_eq!(
            differ(Request { model: "n".to_owned(), ..base.clone() }),
            format!("turn 1: the model {tail}")
        );
        let several = Request { system: Some("s".to_owned()), max_output_tokens: 7, ..base.clone() };
        assert_eq!(differ(several), format!("turn 1: the system prompt and the output limit {tail}"));
        assert_eq!(
            differ(Request { tools: Arc::from([]), ..base.clone() }),
            format!("turn 1: the tools {tail}")
        );
        let longer =
            Request { messages: [base.messages.clone(), base.messages.clone()].concat(), ..base.clone() };
        assert_eq!(differ(longer), format!("turn 1: the messages (2 instead of 1) {tail}"));
    }

    #[test]
    fn how_an_answer_travels_and_what_stands_behind_a_tool_do_not_count() {
        let base = request("one");
        let mut other = Request { wants_stream: true, ..base.clone() };
        let mut tool = base.tools[0].clone();
        tool.target = json!({"item_id": "b"});
        other.tools = Arc::from([tool]);
        assert_eq!(digest(&base), digest(&other));
    }
}
