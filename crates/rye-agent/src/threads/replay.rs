//! Replaying a tree of threads: what its record leads to under the directives, hooks, tools and settings of today.
//!
//! Each thread of the tree is created again under its own id and stepped through its journal beside the recorded thread.
//! Answers of models, tools, hooks, children and people come from the record: no model is asked, no tool runs, nothing is
//! written or spent. Where the two want different things, the replay of that thread ends and says what differs.

use std::sync::Arc;

use rye_engine::Result;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::ModelRequest;
use serde_json::{Value, json};

use super::{ThreadRuntime, Threads};
use crate::file_inputs::FileAccess;
use crate::machine::{Effect, ThreadOutcome, ThreadState, step};
use crate::models::OFFLINE_PROVIDER;
use crate::prepare::{ForkOrigin, ParentThread, ThreadRequest};
use crate::spec::{ThreadInstance, ThreadSpec, ThreadTemplate};
use crate::store::ThreadRow;
use crate::thread_id::ThreadId;

/// How many lines of each side a difference shows.
const MAX_SHOWN_LINES: usize = 12;

/// What came of replaying a tree, the root first.
#[derive(Clone, Debug)]
pub struct ReplayReport {
    /// Its threads.
    pub threads: Vec<ReplayedThread>,
}

impl ReplayReport {
    /// The threads that differ from their record.
    pub fn different(&self) -> impl Iterator<Item = &ReplayedThread> {
        self.threads.iter().filter(|thread| thread.difference.is_some())
    }
}

/// What came of replaying one thread.
#[derive(Clone, Debug)]
pub struct ReplayedThread {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// Turns of its record that were replayed.
    pub turns: u64,
    /// How it ended or why it stopped.
    pub outcome: Option<ThreadOutcome>,
    /// Where it differs from its record.
    pub difference: Option<ReplayDifference>,
}

/// Where a replay differs from the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayDifference {
    /// After how many turns.
    pub turn: u64,
    /// What differs.
    pub what: String,
    /// Lines of the record (`-`) and of now (`+`).
    pub lines: Vec<String>,
}

impl ReplayDifference {
    fn new(what: impl Into<String>, recorded: &str, now: &str) -> Self {
        Self { turn: 0, what: what.into(), lines: changed_lines(recorded, now) }
    }
}

impl Threads {
    /// Replays a thread and all below it.
    ///
    /// # Errors
    /// When a record does not verify, or a directive of the tree can no longer be prepared.
    pub async fn replay(&self, id: &ThreadId) -> Result<ReplayReport> {
        let mut threads = Vec::new();
        let mut queue = vec![id.clone()];
        while let Some(id) = queue.pop() {
            threads.push(self.runtime.replay_thread(&id).await?);
            let mut children: Vec<ThreadRow> = self.runtime.store.children(&id).await?;
            children.reverse();
            queue.extend(children.into_iter().map(|row| row.id));
        }
        Ok(ReplayReport { threads })
    }
}

impl ThreadRuntime {
    async fn replay_thread(self: &Arc<Self>, id: &ThreadId) -> Result<ReplayedThread> {
        let thread = id.clone();
        let (old, events) = self.records.run_blocking(move |records| records.load_history(&thread)).await?;
        let spec = self.current_spec(&old).await?;
        let mut recorded = ThreadState::new(Arc::clone(&old));
        let mut now = ThreadState::new(spec);
        let mut difference = None;
        for (at_ms, event) in events {
            let wanted = step(&mut recorded, at_ms, event.clone());
            let wants = step(&mut now, at_ms, event);
            if let Some(found) = compare(&wanted, &wants) {
                difference = Some(ReplayDifference { turn: recorded.cost.turns, ..found });
                break;
            }
        }
        Ok(ReplayedThread {
            thread_id: id.clone(),
            directive: old.template.directive.clone(),
            turns: recorded.cost.turns,
            outcome: now.outcome().cloned(),
            difference,
        })
    }

    /// The thread as it would be made today, with the name, limits and model it had.
    async fn current_spec(self: &Arc<Self>, old: &ThreadSpec) -> Result<Arc<ThreadSpec>> {
        let directive = ItemRef::new(ItemType::Directive, ItemId::new(&old.template.directive)?);
        let mut request = ThreadRequest::new(directive, old.instance.inputs.clone());
        request.provider = Some(OFFLINE_PROVIDER.to_owned());
        request.thread_id = Some(old.instance.thread_id.clone());
        request.is_summary = old.instance.cannot_suspend;
        request.files = FileAccess::Recorded(old.instance.files.clone());
        request.bounds = Some((old.instance.capabilities.clone(), old.instance.limits));
        if let Some(parent) = &old.instance.parent {
            let parent = parent.clone();
            let (spec, _) = self.records.run_blocking(move |records| records.load_record(&parent)).await?;
            request.parent = Some(ParentThread { limits: spec.instance.limits, spec });
        }
        if let Some(source) = old.instance.forked_from.clone() {
            let id = source.thread_id.clone();
            if let Ok((spec, _)) = self.records.run_blocking(move |records| records.load_record(&id)).await {
                request.fork = Some(ForkOrigin { source, spec, limits: old.instance.limits });
            }
        }
        let new = self.prepare(request).await?.spec;
        let instance = ThreadInstance {
            prompt: new.instance.prompt.clone(),
            inputs: new.instance.inputs.clone(),
            actions: new.instance.actions.clone(),
            capabilities: new.instance.capabilities.clone(),
            ..old.instance.clone()
        };
        let template = ThreadTemplate {
            revision: old.template.revision,
            model: old.template.model.clone(),
            provider: old.template.provider.clone(),
            price: old.template.price,
            context_window: old.template.context_window,
            max_output_tokens: old.template.max_output_tokens,
            wants_stream: old.template.wants_stream,
            ..(*new.template).clone()
        };
        Ok(Arc::new(ThreadSpec { instance, template: Arc::new(template) }))
    }
}

/// Where what a thread wants done differs from what it wanted.
fn compare(recorded: &[Effect], now: &[Effect]) -> Option<ReplayDifference> {
    let mut recorded = recorded.iter().filter_map(describe);
    let mut now = now.iter().filter_map(describe);
    loop {
        let (was, is) = match (recorded.next(), now.next()) {
            (None, None) => return None,
            (Some(was), Some(is)) => (was, is),
            (Some(was), None) => {
                return Some(ReplayDifference::new(format!("{} is missing", was.0), &text(&was.1), ""));
            }
            (None, Some(is)) => {
                return Some(ReplayDifference::new(format!("{} is new", is.0), "", &text(&is.1)));
            }
        };
        if was.0 != is.0 {
            return Some(ReplayDifference::new("what is done next", &was.0, &is.0));
        }
        if was.1 != is.1 {
            return Some(first_difference(&was.0, &was.1, &is.1));
        }
    }
}

/// What is done outside, in words, and all that matters of it. Lines of the transcript and saved states do not.
fn describe(effect: &Effect) -> Option<(String, Value)> {
    Some(match effect {
        Effect::RunHook { hook, action, .. } => (format!("hook `{hook}`"), action.action().to_value()),
        Effect::CallModel { request, .. } => ("the request to the model".to_owned(), request_value(request)),
        Effect::AwaitBudget { call, .. } => ("the wait for reserved money".to_owned(), json!({"call": call})),
        Effect::Sleep { ms } => ("the pause".to_owned(), json!({"milliseconds": ms})),
        Effect::Dispatch { index, action } | Effect::Orchestrate { index, action } => {
            (format!("call {index} ({})", action.action().summary()), action.action().to_value())
        }
        Effect::Spawn { index, action, child } => {
            let value = json!({"call": action.action().to_value(), "child": child});
            (format!("child of call {index}"), value)
        }
        Effect::ReadArtifact { index, params } => (format!("artifact of call {index}"), json!(params)),
        Effect::RequestApproval(request) => ("the question to a person".to_owned(), json!(request.prompt)),
        Effect::Suspend(outcome) => ("the suspension".to_owned(), json!(outcome)),
        Effect::End(outcome) => ("the end".to_owned(), json!(outcome)),
        Effect::Emit { .. } | Effect::EmitAs { .. } | Effect::RecordSpend { .. } | Effect::SaveState(_) => {
            return None;
        }
    })
}

/// What a model sees of a request.
fn request_value(request: &ModelRequest) -> Value {
    let tools: serde_json::Map<String, Value> = request
        .tools
        .iter()
        .map(|tool| (tool.name.clone(), json!({"description": tool.description, "schema": tool.schema})))
        .collect();
    let messages: Vec<Value> = request.messages.iter().map(|message| json!(message.as_ref())).collect();
    json!({
        "system": request.system,
        "tools": tools,
        "messages": messages,
        "max_output_tokens": request.max_output_tokens,
        "settings": request.settings.to_map(),
    })
}

/// The first place in which two values differ.
fn first_difference(what: &str, recorded: &Value, now: &Value) -> ReplayDifference {
    let mut path = Vec::new();
    let (mut was, mut is) = (recorded, now);
    loop {
        let next = match (was, is) {
            (Value::Object(old), Value::Object(new)) => {
                let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
                let different = keys.into_iter().find(|key| old.get(*key) != new.get(*key));
                different.map(|key| (key.clone(), old.get(key), new.get(key)))
            }
            (Value::Array(old), Value::Array(new)) => {
                let different =
                    (0..old.len().max(new.len())).find(|index| old.get(*index) != new.get(*index));
                different.map(|index| ((index + 1).to_string(), old.get(index), new.get(index)))
            }
            _ => None,
        };
        let Some((key, old, new)) = next else { break };
        path.push(key);
        (was, is) = (old.unwrap_or(&Value::Null), new.unwrap_or(&Value::Null));
    }
    let place = if path.is_empty() { what.to_owned() } else { format!("{what}: {}", path.join(".")) };
    ReplayDifference::new(place, &text(was), &text(is))
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    }
}

/// The lines that differ, those of the record first; what both begin and end with is left out.
fn changed_lines(recorded: &str, now: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (recorded.lines().collect(), now.lines().collect());
    let head = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let (old, new) = (&old[head..], &new[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(old, new)| old == new).count();
    let show = |sign: char, lines: &[&str]| {
        let mut shown: Vec<String> =
            lines.iter().take(MAX_SHOWN_LINES).map(|line| format!("{sign} {line}")).collect();
        if lines.len() > MAX_SHOWN_LINES {
            shown.push(format!("{sign} … ({} more)", lines.len() - MAX_SHOWN_LINES));
        }
        shown
    };
    let mut all = show('-', &old[..old.len() - tail]);
    all.extend(show('+', &new[..new.len() - tail]));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{changed_lines, first_difference};

    #[test]
    fn difference_names_the_first_place() {
        let recorded = json!({"messages": [{"text": "a\nb\nc"}], "system": null});
        let now = json!({"messages": [{"text": "a\nx\nc"}], "system": null});
        let found = first_difference("the request", &recorded, &now);
        assert_eq!(found.what, "the request: messages.1.text");
        assert_eq!(found.lines, ["- b", "+ x"]);
    }

    #[test]
    fn long_differences_are_cut() {
        let many: String = (0..40).map(|line| format!("{line}\n")).collect();
        let lines = changed_lines(&many, "");
        assert_eq!((lines.len(), lines.last().map(String::as_str)), (13, Some("- … (28 more)")));
        assert!(changed_lines("same", "same").is_empty());
    }
}
