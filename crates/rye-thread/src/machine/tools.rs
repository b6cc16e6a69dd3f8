//! The tool calls of one turn: which may be made, in which order they start, and what the model is told.
//!
//! Calls run side by side up to a cap; calls of one item one after the other; results are told in the order of the calls.

use std::collections::HashSet;

use crate::model::{Message, ToolCall};
use rye_item::ItemType;
use serde_json::{Map, Value, json};

use super::Trigger;
use super::effect::{Effect, Outcome};
use super::event::ToolResult;
use super::hooks::{Then, cost_context};
use super::question::{Back, Kind, Question, Verdict};
use super::{Phase, State};
use crate::action::Action;
use crate::capability::{Asker, Permitted, permit, required};
use crate::definitions::{HUMAN_APPROVAL, READ_ARTIFACT, Target};
use crate::status::SuspendReason;
use crate::thread_id::ThreadId;

/// Calls of one turn that run at once.
const MOST_AT_ONCE: usize = 25;

/// The calls of one turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolRun {
    pub(super) slots: Vec<Slot>,
    /// The outputs the model returned in this turn.
    returned: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slot {
    call_id: String,
    name: String,
    /// What runs, and how; nothing for calls that are answered here.
    work: Option<Work>,
    progress: Progress,
    /// Threads it started that were told of.
    told: Vec<ThreadId>,
}

#[derive(Clone, Debug, PartialEq)]
struct Work {
    kind: Doing,
    item: String,
    /// What a person is asked first.
    asks: Option<Box<Question>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Doing {
    Dispatch(Permitted),
    Spawn(Permitted, ThreadId),
    Orchestrate(Permitted),
    ReadArtifact(Map<String, Value>),
    /// Nothing: a person's word is the result.
    Hear,
}

#[derive(Clone, Debug, PartialEq)]
enum Progress {
    /// For a person's word.
    Asking,
    Waiting,
    Running,
    Done(ToolResult),
}

impl ToolRun {
    pub(super) fn running(&self) -> Vec<(usize, String)> {
        let running = self.slots.iter().enumerate().filter(|(_, slot)| slot.progress == Progress::Running);
        running.filter_map(|(index, slot)| Some((index, slot.work.as_ref()?.item.clone()))).collect()
    }

    /// After a crash: the calls that had begun, those that can be made again and those that cannot.
    pub(super) fn interrupted(&self, repeatable: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let running = self.running().into_iter().map(|(index, _)| index);
        running.partition(|index| {
            let work = self.slots.get(*index).and_then(|slot| slot.work.as_ref());
            repeatable.contains(index) || work.is_some_and(Work::is_repeatable)
        })
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
            let is_apart = matches!(work.kind, Doing::Spawn(..));
            if busy.len() >= MOST_AT_ONCE || (!is_apart && busy.contains(&work.item)) {
                continue;
            }
            busy.insert(if is_apart { format!("{}#{index}", work.item) } else { work.item.clone() });
            slot.progress = Progress::Running;
            effects.extend(work.effect(index));
        }
        effects
    }
}

/// What can be asked of other threads any number of times.
const REPEATABLE: [&str; 8] = [
    "wait_threads",
    "aggregate_results",
    "cancel_thread",
    "get_status",
    "list_active",
    "get_chain",
    "chain_search",
    "read_transcript",
];

impl Work {
    /// Whether making the call twice is the same as making it once. A child has its name from its call: whoever starts
    /// it again finds it.
    fn is_repeatable(&self) -> bool {
        match &self.kind {
            Doing::Spawn(..) | Doing::ReadArtifact(_) | Doing::Hear => true,
            Doing::Orchestrate(action) => {
                let params = &action.action().params;
                let operation = params.get("operation").or_else(|| params.get("action"));
                operation.and_then(Value::as_str).is_some_and(|operation| REPEATABLE.contains(&operation))
            }
            Doing::Dispatch(_) => false,
        }
    }

    fn effect(&self, index: usize) -> Option<Effect> {
        Some(match self.kind.clone() {
            Doing::Dispatch(action) => Effect::Dispatch { index, action },
            Doing::Spawn(action, child) => Effect::Spawn { index, action, child },
            Doing::Orchestrate(action) => Effect::Orchestrate { index, action },
            Doing::ReadArtifact(params) => Effect::ReadArtifact { index, params },
            Doing::Hear => return None,
        })
    }
}

/// What the model is told of a call that had begun when the process died.
fn unknown_outcome() -> ToolResult {
    ToolResult::refused(
        r#"{"status":"unknown","error":"the process ended while this call ran; whether it took effect is unknown. Check before you do it again."}"#,
    )
}

impl State {
    /// The model called tools.
    pub(super) fn call_tools(&mut self, calls: Vec<ToolCall>) -> Vec<Effect> {
        self.reminders = 0;
        self.cuts = 0;
        self.pieces.clear();
        let mut effects = Vec::new();
        let mut run = ToolRun { slots: Vec::with_capacity(calls.len()), returned: None };
        for call in calls {
            effects.push(Self::emit(
                "tool_call_start",
                json!({"tool": call.name, "call_id": call.id, "input": call.input}),
            ));
            let (work, refusal) = match self.judge(&call, run.slots.len(), &mut run.returned) {
                Ok(mut work) => {
                    if let Some(question) = work.as_mut().and_then(|work| work.asks.as_mut()) {
                        question.id = self.question_id();
                    }
                    (work, None)
                }
                Err(refused) => {
                    let (result, denied) = *refused;
                    if let Some(denied) = denied {
                        effects.push(Self::emit("permission_denied", denied));
                    }
                    (None, Some(result))
                }
            };
            let progress = match (&work, refusal) {
                (Some(work), _) if work.asks.is_some() => Progress::Asking,
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
            run.slots.push(Slot { call_id: call.id, name: call.name, work, progress, told: Vec::new() });
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
        index: usize,
        returned: &mut Option<Map<String, Value>>,
    ) -> Result<Option<Work>, Box<(ToolResult, Option<Value>)>> {
        let refuse = |message: String| Box::new((ToolResult::refused(error_text(&message)), None));
        if let Some(raw) = &call.malformed {
            let shown = rye_item::text::one_line(&raw.chars().take(200).collect::<String>());
            return Err(refuse(format!("the arguments are no JSON object (cut off?): {shown}")));
        }
        let target =
            self.spec.shared.definitions.target(call).map_err(|refusal| refuse(refusal.to_string()))?;
        let child = || ThreadId::of_call(&self.spec.own.thread_id, self.calls, index);
        let (kind, action): (Box<dyn FnOnce(Permitted) -> Doing>, _) = match target {
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
                let item = READ_ARTIFACT.to_owned();
                return Ok(Some(Work { kind: Doing::ReadArtifact(params), item, asks: None }));
            }
            Target::Action(action) => (Box::new(Doing::Dispatch), action),
            Target::Spawn(action) => (Box::new(|permitted| Doing::Spawn(permitted, child())), action),
            Target::Orchestrate(action) => (Box::new(Doing::Orchestrate), action),
            Target::Ask(action) => (Box::new(|_| Doing::Hear), action),
        };
        let item = action.shown();
        match permit(&self.spec.own.capabilities, &action, Asker::Model) {
            Ok(permitted) => {
                let asks = self.asks_first(&action).map_err(refuse)?;
                Ok(Some(Work { kind: kind(permitted), item, asks }))
            }
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

    /// What a person is asked before this is done: the model's own question, or that the rules of risk ask for it.
    fn asks_first(&self, action: &Action) -> Result<Option<Box<Question>>, String> {
        let text = |key: &str| action.params.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let question = |kind, what, why, ends_on_no| Question {
            // It gets its name when it is asked.
            id: String::new(),
            kind,
            what,
            why,
            ends_on_no,
            detail: json!({"action": action.to_value(), "cost": self.cost.to_value()}),
        };
        if action.is_about(ItemType::Tool, HUMAN_APPROVAL) {
            let prompt = text("prompt");
            if prompt.trim().is_empty() {
                return Err("`prompt` is missing: what is the person asked?".to_owned());
            }
            let ends_on_no = match text("on_deny").as_str() {
                "" | "tell" => false,
                "end" => true,
                _ => return Err("`on_deny` is `tell` or `end`".to_owned()),
            };
            let asked = question(Kind::Approval, prompt, text("reason"), ends_on_no);
            return Ok(Some(Box::new(asked)));
        }
        let Some(why) = self.spec.shared.config.risk.asks_for(&required(action)) else { return Ok(None) };
        Ok(Some(Box::new(question(Kind::Tool, action.shown(), why, false))))
    }

    /// Nothing is left to do but what people are asked about.
    fn ask_for_calls(&mut self) -> Vec<Effect> {
        let Phase::Tools(run) = std::mem::replace(&mut self.phase, Phase::Calling) else { return Vec::new() };
        let asking = run.slots.iter().filter(|slot| slot.progress == Progress::Asking);
        let questions: Vec<Question> =
            asking.filter_map(|slot| slot.work.as_ref()?.asks.as_deref().cloned()).collect();
        let what: Vec<&str> = questions.iter().map(|question| question.what.as_str()).collect();
        let outcome = Outcome::suspended(SuspendReason::Approval, what.join("; "), Value::Null);
        self.pause(outcome, Back::Tools(run), questions)
    }

    /// People have said what may be done.
    pub(super) fn decided(&mut self, mut run: ToolRun, answers: &[Verdict]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for slot in run.slots.iter_mut().filter(|slot| slot.progress == Progress::Asking) {
            let Some(work) = &slot.work else { continue };
            let Some(question) = &work.asks else { continue };
            let Some(verdict) = answers.iter().find(|verdict| verdict.question == question.id) else {
                continue;
            };
            let result = match (&work.kind, verdict.approved) {
                (Doing::Hear, _) => {
                    let said = json!({"status": "success", "approved": verdict.approved, "message": verdict.message, "by": verdict.by});
                    ToolResult { is_error: false, ..ToolResult::refused(said.to_string()) }
                }
                (_, true) => {
                    slot.progress = Progress::Waiting;
                    continue;
                }
                (_, false) => ToolResult::refused(error_text(&verdict.denial(&question.what))),
            };
            effects.push(told(&slot.call_id, &result));
            slot.progress = Progress::Done(result);
        }
        effects.extend(run.start());
        self.phase = Phase::Tools(run);
        effects.extend(self.settle_tools());
        effects
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

    /// The call that runs at this place.
    fn running_call(&self, index: usize) -> Option<&str> {
        let Phase::Tools(run) = &self.phase else { return None };
        let slot = run.slots.get(index).filter(|slot| slot.progress == Progress::Running)?;
        Some(&slot.call_id)
    }

    /// A tool that runs asked for something itself: it is told, and changes nothing.
    pub(super) fn tool_asked(
        &self,
        index: usize,
        request: u64,
        action: &Value,
        denied: Option<Value>,
    ) -> Vec<Effect> {
        let Some(call_id) = self.running_call(index) else { return Vec::new() };
        let asked = json!({"call_id": call_id, "request": request, "action": action});
        let mut effects = vec![Self::emit("tool_request", asked)];
        if let Some(Value::Object(mut denied)) = denied {
            denied.insert("call_id".to_owned(), json!(call_id));
            denied.insert("request".to_owned(), json!(request));
            denied.insert("asker".to_owned(), json!("tool"));
            effects.push(Self::emit("permission_denied", Value::Object(denied)));
        }
        effects
    }

    /// What a tool asked for was done.
    pub(super) fn tool_answered(
        &self,
        index: usize,
        request: u64,
        is_error: bool,
        duration_ms: u64,
        child: Option<&ThreadId>,
    ) -> Vec<Effect> {
        let Some(call_id) = self.running_call(index) else { return Vec::new() };
        let mut effects = Vec::new();
        if let Some(child) = child {
            effects.push(Self::emit(
                "child_thread_finished",
                json!({"child_thread_id": child, "call_id": call_id}),
            ));
        }
        let answered =
            json!({"call_id": call_id, "request": request, "is_error": is_error, "duration_ms": duration_ms});
        effects.push(Self::emit("tool_request_result", answered));
        effects
    }

    /// A call has started a thread, which is told once.
    pub(super) fn child_started(&mut self, index: usize, child: &ThreadId, directive: &str) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        let Some(slot) = run.slots.get_mut(index).filter(|slot| !slot.told.contains(child)) else {
            return Vec::new();
        };
        slot.told.push(child.clone());
        let parent = &self.spec.own.thread_id;
        vec![Self::emit(
            "child_thread_started",
            json!({"child_thread_id": child, "child_directive": directive, "parent_thread_id": parent}),
        )]
    }

    /// After a crash: calls that can be made again are; what became of the others is unknown.
    pub(super) fn interrupted_tools(&mut self, repeatable: &[usize]) -> Vec<Effect> {
        let Phase::Tools(run) = &self.phase else { return Vec::new() };
        let (again, lost) = run.interrupted(repeatable);
        let again = again.into_iter().filter_map(|index| Some((index, run.slots.get(index)?.work.as_ref()?)));
        let mut effects: Vec<Effect> = again.filter_map(|(index, work)| work.effect(index)).collect();
        for index in lost {
            effects.extend(self.tool_done(index, unknown_outcome()));
        }
        effects
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
            Progress::Asking | Progress::Waiting | Progress::Running => None,
        });
        self.messages.extend(results);
    }

    /// When all calls of the turn have ended: the turn is over, or the thread.
    fn settle_tools(&mut self) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        if run.slots.iter().any(|slot| matches!(slot.progress, Progress::Waiting | Progress::Running)) {
            return Vec::new();
        }
        if run.slots.iter().any(|slot| slot.progress == Progress::Asking) {
            return self.ask_for_calls();
        }
        let returned = run.returned.take();
        self.tell_results();
        let mut effects = vec![Effect::Save(Trigger::PostTools)];
        let context = cost_context(self);
        effects.extend(match returned {
            Some(outputs) => self.returned(outputs, context),
            None => self.run_hooks("after_step", Value::Object(context), Then::NextTurn),
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
            Value::Object(context),
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
