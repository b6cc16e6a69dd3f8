//! The tool calls of one turn: which may be made, in which order they start, and what the model is given.
//!
//! Calls run side by side up to a cap; calls of one item one after the other; results are told in the order of the calls.

use std::collections::HashSet;

use crate::model::{ChatMessage, ToolCall};
use rye_item::ItemType;
use serde_json::{Map, Value, json};

use super::SaveTrigger;
use super::approval::{ApprovalAnswer, ApprovalGrant, ApprovalKind, ApprovalRequest, ResumeAt};
use super::call_hooks::GatedCall;
use super::effect::{Effect, ThreadOutcome};
use super::event::ToolResult;
use super::hooks::{HookContinuation, cost_context};
use super::{Phase, ThreadState};
use crate::action::Action;
use crate::call_hooks::CallEvent;
use crate::capability::{PermittedAction, Principal, permit, required_capabilities};
use crate::core_event::{Always, CoreEvent, MergedFields};
use crate::definitions::{CallTarget, HUMAN_APPROVAL, READ_ARTIFACT};
use crate::envelope::outputs_report_failure;
use crate::status::{SuspendReason, ThreadStatus};
use crate::thread_id::ThreadId;

mod approvals;
mod review;

/// Calls of one turn that run at once.
const MAX_CONCURRENT_CALLS: usize = 25;

/// The calls of one turn.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ToolRun {
    pub(super) slots: Vec<CallSlot>,
    /// The outputs the model returned in this turn.
    outputs: Option<Map<String, Value>>,
    /// Whether the hooks after the calls have been asked.
    pub(super) is_reviewed: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallSlot {
    call_id: String,
    name: String,
    /// What runs, and how; nothing for calls that are answered here.
    work: Option<PlannedToolCall>,
    progress: CallProgress,
    /// Threads it started that were told of.
    announced_children: Vec<ThreadId>,
    /// Whether it was set out on.
    was_started: bool,
    /// What hooks add to its result.
    notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct PlannedToolCall {
    work: ToolWork,
    item: String,
    /// What a person is asked first.
    approval: Option<Box<ApprovalRequest>>,
}

#[derive(Clone, Debug, PartialEq)]
enum ToolWork {
    Dispatch(PermittedAction),
    Spawn(PermittedAction, ThreadId),
    Orchestrate(PermittedAction),
    ReadArtifact(Map<String, Value>),
    /// Nothing: a person's word is the result.
    AwaitAnswer,
}

#[derive(Clone, Debug, PartialEq)]
enum CallProgress {
    /// For a person's word.
    AwaitingApproval,
    Waiting,
    Running,
    Done(ToolResult),
}

impl ToolRun {
    pub(super) fn running(&self) -> Vec<(usize, String)> {
        let running =
            self.slots.iter().enumerate().filter(|(_, slot)| slot.progress == CallProgress::Running);
        running.filter_map(|(index, slot)| Some((index, slot.work.as_ref()?.item.clone()))).collect()
    }

    /// After a crash: the calls that had begun, those that can be made again and those that cannot.
    pub(super) fn split_interrupted(&self, repeatable: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let running = self.running().into_iter().map(|(index, _)| index);
        running.partition(|index| {
            let work = self.slots.get(*index).and_then(|slot| slot.work.as_ref());
            repeatable.contains(index) || work.is_some_and(PlannedToolCall::is_repeatable)
        })
    }

    /// The calls that can start now.
    fn start_ready(&mut self) -> Vec<Effect> {
        let mut busy: HashSet<String> = self.running().into_iter().map(|(_, item)| item).collect();
        let mut effects = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(work) = slot.work.as_ref().filter(|_| slot.progress == CallProgress::Waiting) else {
                continue;
            };
            // Children are apart from each other; any other item is used by one call at a time.
            let is_spawn = matches!(work.work, ToolWork::Spawn(..));
            if busy.len() >= MAX_CONCURRENT_CALLS || (!is_spawn && busy.contains(&work.item)) {
                continue;
            }
            busy.insert(if is_spawn { format!("{}#{index}", work.item) } else { work.item.clone() });
            slot.progress = CallProgress::Running;
            slot.was_started = true;
            effects.extend(work.effect(index));
        }
        effects
    }
}

/// What the model is given of a call that is not made, and the event of it if it was denied.
type RefusedCall = (ToolResult, Option<Box<CoreEvent>>);

/// What can be asked of other threads any number of times.
const REPEATABLE_OPERATIONS: [&str; 8] = [
    "wait_threads",
    "aggregate_results",
    "cancel_thread",
    "get_status",
    "list_active",
    "get_chain",
    "chain_search",
    "read_transcript",
];

impl PlannedToolCall {
    /// Whether making the call twice is the same as making it once. A child's id follows from its call: starting
    /// it again finds it.
    fn is_repeatable(&self) -> bool {
        match &self.work {
            ToolWork::Spawn(..) | ToolWork::ReadArtifact(_) | ToolWork::AwaitAnswer => true,
            ToolWork::Orchestrate(action) => {
                let params = &action.action().params;
                let operation = params.get("operation").or_else(|| params.get("action"));
                operation
                    .and_then(Value::as_str)
                    .is_some_and(|operation| REPEATABLE_OPERATIONS.contains(&operation))
            }
            ToolWork::Dispatch(_) => false,
        }
    }

    fn effect(&self, index: usize) -> Option<Effect> {
        Some(match self.work.clone() {
            ToolWork::Dispatch(action) => Effect::Dispatch { index, action },
            ToolWork::Spawn(action, child) => Effect::Spawn { index, action, child },
            ToolWork::Orchestrate(action) => Effect::Orchestrate { index, action },
            ToolWork::ReadArtifact(params) => Effect::ReadArtifact { index, params },
            ToolWork::AwaitAnswer => return None,
        })
    }
}

/// What the model is given of a call that had begun when the process died.
fn unknown_outcome() -> ToolResult {
    ToolResult::failure(
        r#"{"status":"unknown","error":"the process ended while this call ran; whether it took effect is unknown. Check before you do it again."}"#,
    )
}

impl ThreadState {
    /// The model called tools.
    pub(super) fn call_tools(&mut self, calls: Vec<ToolCall>) -> Vec<Effect> {
        self.reminders = 0;
        self.truncations = 0;
        self.partial_text.clear();
        let calls: Vec<GatedCall> = calls.into_iter().map(GatedCall::new).collect();
        if self.has_call_hooks(CallEvent::BeforeTool) {
            return self.run_before_tools(calls);
        }
        self.start_calls(calls)
    }

    /// Starts the calls of a turn that may be made, as the hooks before them left them.
    pub(super) fn start_calls(&mut self, calls: Vec<GatedCall>) -> Vec<Effect> {
        let mut effects = Vec::new();
        let mut run = ToolRun { slots: Vec::with_capacity(calls.len()), outputs: None, is_reviewed: false };
        for mut gated in calls {
            effects.extend(gated.announce());
            let GatedCall { call, blocked, notes, .. } = gated;
            let authorized = match &blocked {
                Some(reason) => Err(Box::new((ToolResult::failure(error_text(reason)), None))),
                None => self.authorize_call(&call, run.slots.len(), &mut run.outputs),
            };
            let (work, refusal) = match authorized {
                Ok(mut work) => {
                    if let Some(question) = work.as_mut().and_then(|work| work.approval.as_mut()) {
                        question.id = self.next_approval_id();
                    }
                    (work, None)
                }
                Err(refused) => {
                    let (result, denied) = *refused;
                    effects.extend(denied.map(|denied| Self::record(*denied)));
                    (None, Some(result))
                }
            };
            let progress = match (&work, refusal) {
                (Some(work), _) if work.approval.is_some() => CallProgress::AwaitingApproval,
                (Some(_), _) => CallProgress::Waiting,
                (None, Some(refused)) => CallProgress::Done(refused),
                (None, None) => CallProgress::Done(ToolResult {
                    is_error: false,
                    ..ToolResult::failure(r#"{"status":"success"}"#)
                }),
            };
            if let CallProgress::Done(result) = &progress {
                effects.push(emit_tool_result(&call.id, result));
            }
            run.slots.push(CallSlot {
                call_id: call.id,
                name: call.name,
                work,
                progress,
                announced_children: Vec::new(),
                was_started: false,
                notes,
            });
        }
        effects.extend(run.start_ready());
        self.phase = Phase::Tools(run);
        effects.extend(self.finish_if_done());
        effects
    }

    /// What a call asks for, if the thread may do it; nothing if the outputs were returned with it.
    fn authorize_call(
        &self,
        call: &ToolCall,
        index: usize,
        returned: &mut Option<Map<String, Value>>,
    ) -> Result<Option<PlannedToolCall>, Box<RefusedCall>> {
        let reject = |message: String| Box::new((ToolResult::failure(error_text(&message)), None));
        if let Some(raw) = &call.malformed {
            let excerpt = rye_item::text::one_line(&raw.chars().take(200).collect::<String>());
            return Err(reject(format!("the arguments are no JSON object (cut off?): {excerpt}")));
        }
        let target =
            self.spec.template.definitions.target(call).map_err(|refusal| reject(refusal.to_string()))?;
        let child = || ThreadId::for_call(&self.spec.instance.thread_id, self.calls, index);
        let (kind, action): (Box<dyn FnOnce(PermittedAction) -> ToolWork>, _) = match target {
            CallTarget::DirectiveReturn(outputs) => {
                let problem = self.outputs_problem(&outputs);
                if returned.is_some() {
                    return Err(reject("the outputs were already returned in this turn".to_owned()));
                }
                return match problem {
                    None => {
                        *returned = Some(outputs);
                        Ok(None)
                    }
                    Some(problem) => Err(reject(problem)),
                };
            }
            CallTarget::ReadArtifact(params) => {
                let wanted = params.get("artifact_ref").and_then(Value::as_str).unwrap_or_default();
                if wanted.is_empty() || !self.has_seen(wanted) {
                    return Err(reject("this thread was told of no such artifact".to_owned()));
                }
                let item = READ_ARTIFACT.to_owned();
                return Ok(Some(PlannedToolCall {
                    work: ToolWork::ReadArtifact(params),
                    item,
                    approval: None,
                }));
            }
            CallTarget::Action(action) => (Box::new(ToolWork::Dispatch), action),
            CallTarget::Spawn(action) => (Box::new(|permitted| ToolWork::Spawn(permitted, child())), action),
            CallTarget::Orchestrate(action) => (Box::new(ToolWork::Orchestrate), action),
            CallTarget::RequestApproval(action) => (Box::new(|_| ToolWork::AwaitAnswer), action),
        };
        let item = action.summary();
        match permit(&self.spec.instance.capabilities, &action, Principal::Model) {
            Ok(permitted) => {
                let approval = self.required_approval(&action).map_err(reject)?;
                Ok(Some(PlannedToolCall { work: kind(permitted), item, approval }))
            }
            Err(denied) => {
                let is_recorded = self.spec.template.revision >= 1;
                let required = is_recorded.then(|| required_capabilities(&action).join(", "));
                let event = CoreEvent::PermissionDenied {
                    denial: MergedFields(denied.to_value().as_object().cloned().unwrap_or_default()),
                    call_id: call.id.clone(),
                    request: None,
                    asker: None,
                    required: Always(required),
                };
                Err(Box::new((ToolResult::failure(denied.to_value().to_string()), Some(Box::new(event)))))
            }
        }
    }

    /// Whether a tool's result in this thread named this.
    fn has_seen(&self, name: &str) -> bool {
        self.messages.iter().any(|message| match &**message {
            ChatMessage::Tool { content, .. } => content.contains(name),
            ChatMessage::User { .. } | ChatMessage::Assistant { .. } => false,
        })
    }

    /// Why these outputs cannot be taken: a required one is missing, or one was never declared.
    fn outputs_problem(&self, outputs: &Map<String, Value>) -> Option<String> {
        if outputs_report_failure(outputs) {
            return None;
        }
        let declared = &self.spec.template.outputs;
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
    pub(super) fn on_tool_done(&mut self, index: usize, result: ToolResult) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        let Some(slot) = run.slots.get_mut(index).filter(|slot| slot.progress == CallProgress::Running)
        else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        if let Some(child) = &result.child {
            effects.push(emit_child_finished(child, result.child_status, &slot.call_id));
        }
        effects.push(emit_tool_result(&slot.call_id, &result));
        slot.progress = CallProgress::Done(result);
        effects.extend(run.start_ready());
        effects.extend(self.finish_if_done());
        effects
    }

    /// The call that runs at this place.
    fn running_call(&self, index: usize) -> Option<&str> {
        let Phase::Tools(run) = &self.phase else { return None };
        let slot = run.slots.get(index).filter(|slot| slot.progress == CallProgress::Running)?;
        Some(&slot.call_id)
    }

    /// A tool that runs asked for something itself: it is reported, and changes nothing.
    pub(super) fn on_callback_requested(
        &self,
        index: usize,
        request: u64,
        action: &Value,
        original: Option<Value>,
        denied: Option<Value>,
    ) -> Vec<Effect> {
        let Some(call_id) = self.running_call(index) else { return Vec::new() };
        let call_id = call_id.to_owned();
        let event =
            CoreEvent::ToolRequest { call_id: call_id.clone(), request, action: action.clone(), original };
        let mut effects = vec![Self::record(event)];
        if let Some(Value::Object(denied)) = denied {
            let required = (self.spec.template.revision >= 1).then(|| {
                let required = Action::from_value(action).map(|action| required_capabilities(&action));
                required.unwrap_or_default().join(", ")
            });
            effects.push(Self::record(CoreEvent::PermissionDenied {
                denial: MergedFields(denied),
                call_id,
                request: Some(request),
                asker: Some("tool".to_owned()),
                required: Always(required),
            }));
        }
        effects
    }

    /// What a tool asked for was done.
    pub(super) fn on_callback_completed(
        &self,
        index: usize,
        request: u64,
        is_error: bool,
        duration_ms: u64,
        child: Option<(ThreadId, Option<ThreadStatus>)>,
    ) -> Vec<Effect> {
        let Some(call_id) = self.running_call(index) else { return Vec::new() };
        let mut effects = Vec::new();
        if let Some((child, status)) = child {
            effects.push(emit_child_finished(&child, status, call_id));
        }
        let call_id = call_id.to_owned();
        effects.push(Self::record(CoreEvent::ToolRequestResult { call_id, request, is_error, duration_ms }));
        effects
    }

    /// A call has started a thread, which is reported once.
    pub(super) fn on_child_started(
        &mut self,
        index: usize,
        child: &ThreadId,
        directive: &str,
    ) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        let Some(slot) = run.slots.get_mut(index).filter(|slot| !slot.announced_children.contains(child))
        else {
            return Vec::new();
        };
        slot.announced_children.push(child.clone());
        vec![Self::record(CoreEvent::ChildThreadStarted {
            child_thread_id: child.clone(),
            child_directive: directive.to_owned(),
            parent_thread_id: self.spec.instance.thread_id.clone(),
        })]
    }

    /// After a crash: calls that can be made again are; what became of the others is unknown.
    pub(super) fn interrupted_tools(&mut self, repeatable: &[usize]) -> Vec<Effect> {
        let Phase::Tools(run) = &self.phase else { return Vec::new() };
        let (repeated, lost) = run.split_interrupted(repeatable);
        let repeated =
            repeated.into_iter().filter_map(|index| Some((index, run.slots.get(index)?.work.as_ref()?)));
        let mut effects: Vec<Effect> = repeated.filter_map(|(index, work)| work.effect(index)).collect();
        for index in lost {
            effects.extend(self.on_tool_done(index, unknown_outcome()));
        }
        effects
    }

    /// Calls that did not end, ended for this reason.
    pub(super) fn stop_tools(&mut self, reason: &str) -> Vec<Effect> {
        if matches!(self.phase, Phase::CallHooks(_)) {
            return self.stop_call_hooks(reason);
        }
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        let mut effects = Vec::new();
        for slot in &mut run.slots {
            if !matches!(slot.progress, CallProgress::Done(_)) {
                let result = ToolResult::failure(error_text(reason));
                effects.push(emit_tool_result(&slot.call_id, &result));
                slot.progress = CallProgress::Done(result);
            }
        }
        self.push_results();
        effects
    }

    /// The results of a whole turn, in the order of its calls.
    fn push_results(&mut self) {
        let Phase::Tools(run) = &self.phase else { return };
        let results = run.slots.iter().filter_map(|slot| match &slot.progress {
            CallProgress::Done(result) => Some(std::sync::Arc::new(ChatMessage::Tool {
                call_id: slot.call_id.clone(),
                name: slot.name.clone(),
                content: slot
                    .notes
                    .iter()
                    .fold(result.content.clone(), |all, note| format!("{all}\n\n{note}")),
                is_error: result.is_error,
            })),
            CallProgress::AwaitingApproval | CallProgress::Waiting | CallProgress::Running => None,
        });
        self.messages.extend(results);
    }

    /// When all calls of the turn have ended: the turn is over, or the thread.
    fn finish_if_done(&mut self) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        if run.slots.iter().any(|slot| matches!(slot.progress, CallProgress::Waiting | CallProgress::Running))
        {
            return Vec::new();
        }
        if run.slots.iter().any(|slot| slot.progress == CallProgress::AwaitingApproval) {
            return self.suspend_for_approvals();
        }
        if !run.is_reviewed && run.slots.iter().any(|slot| slot.was_started) {
            run.is_reviewed = true;
            if self.has_call_hooks(CallEvent::AfterTool) {
                return self.run_after_tools();
            }
        }
        self.end_calls()
    }

    /// The results of a turn are told: the turn is over, or the thread.
    pub(super) fn end_calls(&mut self) -> Vec<Effect> {
        let Phase::Tools(run) = &mut self.phase else { return Vec::new() };
        let returned = run.outputs.take();
        self.push_results();
        let mut effects = vec![Effect::SaveState(SaveTrigger::PostTools)];
        let context = cost_context(self);
        effects.extend(match returned {
            Some(outputs) => self.on_outputs_returned(outputs, context),
            None => self.run_hooks("after_step", Value::Object(context), HookContinuation::NextTurn),
        });
        effects
    }

    fn on_outputs_returned(
        &mut self,
        mut outputs: Map<String, Value>,
        mut context: Map<String, Value>,
    ) -> Vec<Effect> {
        let is_error = outputs_report_failure(&outputs);
        let is_declared = |name: &str| {
            self.spec
                .template
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
            vec![Self::record(CoreEvent::DirectiveReturn { outputs: outputs.clone(), is_error })];
        let text = serde_json::to_string(&outputs).unwrap_or_default();
        let outcome = if is_error {
            let message = detail.unwrap_or_else(|| "the directive returned an error".to_owned());
            ThreadOutcome { outputs: Some(outputs), ..ThreadOutcome::failed(message) }
        } else {
            ThreadOutcome::completed(Some(text), Some(outputs))
        };
        effects.extend(self.run_hooks(
            "directive_return",
            Value::Object(context),
            HookContinuation::Returned(Box::new(outcome)),
        ));
        effects
    }
}

fn emit_child_finished(child: &ThreadId, status: Option<ThreadStatus>, call_id: &str) -> Effect {
    ThreadState::record(CoreEvent::ChildThreadFinished {
        child_thread_id: child.clone(),
        call_id: call_id.to_owned(),
        // Journals of older releases do not say.
        status: Always(status),
    })
}

pub(super) fn emit_tool_result(call_id: &str, result: &ToolResult) -> Effect {
    let content = Some(result.content.clone());
    let (output, error) = if result.is_error { (None, content) } else { (content, None) };
    let (call_id, duration_ms, sandbox) = (call_id.to_owned(), result.duration_ms, result.sandbox.clone());
    ThreadState::record(CoreEvent::ToolCallResult { call_id, duration_ms, output, error, sandbox })
}

pub(super) fn error_text(message: &str) -> String {
    json!({"status": "error", "error": message}).to_string()
}
