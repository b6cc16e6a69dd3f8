//! The tool calls of one turn: which may be made, in which order they start, and what the model is told.
//!
//! Calls run side by side up to a cap; calls of one item one after the other; results are told in the order of the calls.

use std::collections::HashSet;

use rye_model::{Message, ToolCall};
use serde_json::{Map, Value, json};

use super::effect::{Effect, Outcome, Trigger};
use super::event::ToolResult;
use super::hooks::{Then, cost_context};
use super::{Phase, State};
use crate::capability::{Asker, Permitted, permit};
use crate::definitions::{READ_ARTIFACT, Target};

/// Calls of one turn that run at once.
const MOST_AT_ONCE: usize = 25;

/// The calls of one turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolRun {
    slots: Vec<Slot>,
    /// The outputs the model returned in this turn.
    returned: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, PartialEq)]
struct Slot {
    call_id: String,
    name: String,
    /// What runs, and how; nothing for calls that are answered here.
    work: Option<Work>,
    progress: Progress,
}

#[derive(Clone, Debug, PartialEq)]
struct Work {
    kind: Doing,
    item: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Doing {
    Dispatch(Permitted),
    Spawn(Permitted),
    Orchestrate(Permitted),
    ReadArtifact(Map<String, Value>),
}

#[derive(Clone, Debug, PartialEq)]
enum Progress {
    Waiting,
    Running,
    Done(ToolResult),
}

impl ToolRun {
    pub(super) fn running(&self) -> Vec<(usize, String)> {
        let running = self.slots.iter().enumerate().filter(|(_, slot)| slot.progress == Progress::Running);
        running.filter_map(|(index, slot)| Some((index, slot.work.as_ref()?.item.clone()))).collect()
    }

    /// After a crash: the calls that had begun and cannot be made again.
    pub(super) fn lose(&mut self, repeatable: &[usize]) -> Vec<usize> {
        let running = self.running().into_iter().map(|(index, _)| index);
        running.filter(|index| !repeatable.contains(index)).collect()
    }

    /// The calls that can start now.
    fn start(&mut self) -> Vec<Effect> {
        let mut busy: HashSet<String> = self.running().into_iter().map(|(_, item)| item).collect();
        let mut effects = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(work) = slot.work.as_ref().filter(|_| slot.progress == Progress::Waiting) else {
                continue;
            };
            // Children are apart from each other; any other item is used by one call at a time.
            let is_apart = matches!(work.kind, Doing::Spawn(_));
            if busy.len() >= MOST_AT_ONCE || (!is_apart && busy.contains(&work.item)) {
                continue;
            }
            busy.insert(if is_apart { format!("{}#{index}", work.item) } else { work.item.clone() });
            slot.progress = Progress::Running;
            effects.push(work.effect(index));
        }
        effects
    }
}

impl Work {
    fn effect(&self, index: usize) -> Effect {
        match self.kind.clone() {
            Doing::Dispatch(action) => Effect::Dispatch { index, action },
            Doing::Spawn(action) => Effect::Spawn { index, action },
            Doing::Orchestrate(action) => Effect::Orchestrate { index, action },
            Doing::ReadArtifact(params) => Effect::ReadArtifact { index, params },
        }
    }
}

/// What the model is told of a call that had begun when the process died.
pub(super) fn unknown_outcome() -> ToolResult {
    ToolResult::refused(
        r#"{"status":"unknown","error":"the process ended while this call ran; whether it took effect is unknown. Check before you do it again."}"#,
    )
}

impl State {
    /// The model called tools.
    pub(super) fn call_tools(&mut self, calls: Vec<ToolCall>) -> Vec<Effect> {
        self.reminders = 0;
        self.pieces.clear();
        let mut effects = Vec::new();
        let mut run = ToolRun { slots: Vec::with_capacity(calls.len()), returned: None };
        for call in calls {
            effects.push(Self::emit(
                "tool_call_start",
                json!({"tool": call.name, "call_id": call.id, "input": call.input}),
            ));
            let (work, refusal) = match self.judge(&call, &mut run.returned) {
                Ok(work) => (work, None),
                Err(refused) => {
                    let (result, denied) = *refused;
                    if let Some(denied) = denied {
                        effects.push(Self::emit("permission_denied", denied));
                    }
                    (None, Some(result))
                }
            };
            let progress = match (&work, refusal) {
                (Some(_), _) => Progress::Waiting,
                (None, Some(refused)) => Progress::Done(refused),
                (None, None) => Progress::Done(ToolResult {
                    is_error: false,
                    ..ToolResult::refused(r#"{"status":"success"}"#)
                }),
            };
            if let Progress::Done(result) = &progress {
                effects.push(told(&call.id, result));
            }
            run.slots.push(Slot { call_id: call.id, name: call.name, work, progress });
        }
        effects.extend(run.start());
        self.phase = Phase::Tools(run);
        effects.extend(self.settle_tools());
        effects
    }

    /// What a call asks for, if the thread may do it; nothing if the outputs were returned with it.
    fn judge(
        &self,
        call: &ToolCall,
        returned: &mut Option<Map<String, Value>>,
    ) -> Result<Option<Work>, Box<(ToolResult, Option<Value>)>> {
        let refuse = |message: String| Box::new((ToolResult::refused(error_text(&message)), None));
        if let Some(raw) = &call.malformed {
            let shown = rye_item::text::one_line(&raw.chars().take(200).collect::<String>());
            return Err(refuse(format!("the arguments are no JSON object (cut off?): {shown}")));
        }
        let target =
            self.spec.shared.definitions.target(call).map_err(|refusal| refuse(refusal.to_string()))?;
        let (kind, action) = match target {
            Target::DirectiveReturn(outputs) => {
                let problem = self.missing_outputs(&outputs);
                if returned.is_some() {
                    return Err(refuse("the outputs were already returned in this turn".to_owned()));
                }
                return match problem {
                    None => {
                        *returned = Some(outputs);
                        Ok(None)
                    }
                    Some(problem) => Err(refuse(problem)),
                };
            }
            Target::ReadArtifact(params) => {
                let wanted = params.get("artifact_ref").and_then(Value::as_str).unwrap_or_default();
                if wanted.is_empty() || !self.was_told(wanted) {
                    return Err(refuse("this thread was told of no such artifact".to_owned()));
                }
                return Ok(Some(Work { kind: Doing::ReadArtifact(params), item: READ_ARTIFACT.to_owned() }));
            }
            Target::Action(action) => (Doing::Dispatch as fn(Permitted) -> Doing, action),
            Target::Spawn(action) => (Doing::Spawn as fn(Permitted) -> Doing, action),
            Target::Orchestrate(action) => (Doing::Orchestrate as fn(Permitted) -> Doing, action),
        };
        let item = action.shown();
        match permit(&self.spec.own.capabilities, &action, Asker::Model) {
            Ok(permitted) => Ok(Some(Work { kind: kind(permitted), item })),
            Err(denied) => {
                let mut payload = denied.to_value();
                if let Value::Object(map) = &mut payload {
                    map.insert("call_id".to_owned(), json!(call.id));
                }
                Err(Box::new((ToolResult::refused(denied.to_value().to_string()), Some(payload))))
            }
        }
    }

    /// Whether a tool's result in this thread named this.
    fn was_told(&self, name: &str) -> bool {
        self.messages.iter().any(|message| match &**message {
            Message::Tool { content, .. } => content.contains(name),
            Message::User { .. } | Message::Assistant { .. } => false,
        })
    }

    /// Why these outputs cannot be taken: a required one is missing, or one was never declared.
    fn missing_outputs(&self, outputs: &Map<String, Value>) -> Option<String> {
        if outputs.get("status").and_then(Value::as_str) == Some("error") {
            return None;
        }
        let declared = &self.spec.shared.outputs;
        let name = |output: &Value| output.get("name").and_then(Value::as_str).map(str::to_owned);
        let names: Vec<String> = declared.iter().filter_map(name).collect();
        let missing: Vec<String> = declared
            .iter()
            .filter(|output| output.get("required").and_then(Value::as_bool) == Some(true))
            .filter_map(name)
            .filter(|name| outputs.get(name).is_none_or(Value::is_null))
            .collect();
        if !missing.is_empty() {
            return Some(format!(
                "required outputs are missing: {}; call directive_return again",
                missing.join(", ")
            ));
        }
        let unknown: Vec<&str> = outputs
            .keys()
            .filter(|key| !names.contains(key) && !["status", "error_detail"].contains(&key.as_str()))
            .map(String::as_str)
            .collect();
        (!unknown.is_empty()).then(|| {
            format!("undeclared outputs: {}; declared are: {}", unknown.join(", "), names.join(", "))
        })
    }

    /// A tool call ended.
    pub(super) fn tool_done(&mut self, index: usize, result: ToolResult) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        let Some(slot) = run.slots.get_mut(index).filter(|slot| slot.progress == Progress::Running) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if let Some(child) = &result.child {
            effects.push(Self::emit(
                "child_thread_finished",
                json!({"child_thread_id": child, "call_id": slot.call_id}),
            ));
        }
        effects.push(told(&slot.call_id, &result));
        slot.progress = Progress::Done(result);
        effects.extend(run.start());
        effects.extend(self.settle_tools());
        effects
    }

    /// After a crash: the calls that are simply made again.
    pub(super) fn again(&mut self, repeatable: &[usize]) -> Vec<Effect> {
        let Phase::Tools(run) = &self.phase else { return Vec::new() };
        let running = run
            .slots
            .iter()
            .enumerate()
            .filter(|(index, slot)| slot.progress == Progress::Running && repeatable.contains(index));
        running.filter_map(|(index, slot)| Some(slot.work.as_ref()?.effect(index))).collect()
    }

    /// Calls that did not end, ended for this reason.
    pub(super) fn stop_tools(&mut self, why: &str) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        let mut effects = Vec::new();
        for slot in &mut run.slots {
            if !matches!(slot.progress, Progress::Done(_)) {
                let result = ToolResult::refused(error_text(why));
                effects.push(told(&slot.call_id, &result));
                slot.progress = Progress::Done(result);
            }
        }
        self.tell_results();
        effects
    }

    /// The results of a whole turn, in the order of its calls.
    fn tell_results(&mut self) {
        let Phase::Tools(run) = &self.phase else { return };
        let results = run.slots.iter().filter_map(|slot| match &slot.progress {
            Progress::Done(result) => Some(std::sync::Arc::new(Message::Tool {
                call_id: slot.call_id.clone(),
                name: slot.name.clone(),
                content: result.content.clone(),
                is_error: result.is_error,
            })),
            Progress::Waiting | Progress::Running => None,
        });
        self.messages.extend(results);
    }

    /// When all calls of the turn have ended: the turn is over, or the thread.
    fn settle_tools(&mut self) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        if run.slots.iter().any(|slot| !matches!(slot.progress, Progress::Done(_))) {
            return Vec::new();
        }
        let returned = run.returned.take();
        self.tell_results();
        let mut effects = vec![Effect::Save(Trigger::PostTools)];
        let context = cost_context(self);
        effects.extend(match returned {
            Some(outputs) => self.returned(outputs, context),
            None => self.run_hooks("after_step", &Value::Object(context), Then::NextTurn),
        });
        effects
    }

    fn returned(&mut self, mut outputs: Map<String, Value>, mut context: Map<String, Value>) -> Vec<Effect> {
        let is_error = outputs.get("status").and_then(Value::as_str) == Some("error");
        let is_declared = |name: &str| {
            self.spec
                .shared
                .outputs
                .iter()
                .any(|output| output.get("name").and_then(Value::as_str) == Some(name))
        };
        let detail = outputs
            .get("error_detail")
            .map(|detail| detail.as_str().map_or(detail.to_string(), str::to_owned));
        for own in ["status", "error_detail"] {
            if !is_declared(own) {
                outputs.remove(own);
            }
        }
        context.insert("outputs".to_owned(), Value::Object(outputs.clone()));
        let mut effects =
            vec![Self::emit("directive_return", json!({"outputs": outputs, "is_error": is_error}))];
        let text = serde_json::to_string(&outputs).unwrap_or_default();
        let outcome = if is_error {
            let message = detail.unwrap_or_else(|| "the directive returned an error".to_owned());
            Outcome { outputs: Some(outputs), ..Outcome::failed(message) }
        } else {
            Outcome::completed(Some(text), Some(outputs))
        };
        effects.extend(self.run_hooks(
            "directive_return",
            &Value::Object(context),
            Then::Returned(Box::new(outcome)),
        ));
        effects
    }
}

fn told(call_id: &str, result: &ToolResult) -> Effect {
    let mut payload = json!({"call_id": call_id, "duration_ms": result.duration_ms});
    if let Value::Object(map) = &mut payload {
        let key = if result.is_error { "error" } else { "output" };
        map.insert(key.to_owned(), json!(result.content));
    }
    Effect::Emit { event_type: "tool_call_result".to_owned(), payload }
}

fn error_text(message: &str) -> String {
    json!({"status": "error", "error": message}).to_string()
}
