//! Running hooks around calls: one call after the other, one hook after the other, each on what the one before it left.
//!
//! The hooks before the calls of a turn run before any of them starts; those after them once all have ended. Permission
//! and approval are checked on the arguments that are left. A hook before a call that fails blocks it.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::approval::ResumeAt;
use super::control::HookControl;
use super::effect::{Effect, ThreadOutcome};
use super::event::ToolResult;
use super::hooks::{QueuedAction, UNKNOWN_OUTCOME};
use super::tools::{ToolRun, emit_tool_result, error_text};
use super::turn::TextEnd;
use super::{Phase, ThreadState};
use crate::action::{Action, PrimaryAction};
use crate::call_hooks::{CallAnswer, CallChange, CallEvent, HookContext, NeededFields, permit_hook_action};
use crate::core_event::CoreEvent;
use crate::definitions::{CallTarget, DIRECTIVE_RETURN, READ_ARTIFACT, ToolBinding};
use crate::hooks::HookKind;
use crate::model::{ChatMessage, ToolCall};

/// Hooks around calls under way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CallHookRun {
    stage: CallStage,
    /// Where in the order of the event's hooks it stands.
    next: usize,
    /// Actions of the current hook that are still to run, the next one last.
    queue: Vec<QueuedAction>,
    running: Option<QueuedAction>,
    /// Why the current call is blocked.
    blocked: Option<String>,
}

/// What the hooks are around.
#[derive(Clone, Debug, PartialEq)]
enum CallStage {
    BeforeTools { calls: Vec<GatedCall>, at: usize },
    AfterTools { run: ToolRun, at: usize },
    BeforeModel,
    AfterModel { text: String, calls: Vec<ToolCall>, stop: TextEnd },
}

/// A call, with what the hooks before it left of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GatedCall {
    pub(super) call: ToolCall,
    /// Whether the transcript has it.
    is_announced: bool,
    /// Why it is not made.
    pub(super) blocked: Option<String>,
    /// What is added to its result.
    pub(super) notes: Vec<String>,
}

impl GatedCall {
    pub(super) fn new(call: ToolCall) -> Self {
        Self { call, is_announced: false, blocked: None, notes: Vec::new() }
    }

    /// The transcript's line of it, once.
    pub(super) fn announce(&mut self) -> Option<Effect> {
        if std::mem::replace(&mut self.is_announced, true) {
            return None;
        }
        let call = &self.call;
        Some(ThreadState::record(CoreEvent::ToolCallStart {
            tool: call.name.clone(),
            call_id: call.id.clone(),
            input: call.input.clone(),
        }))
    }
}

impl CallHookRun {
    fn new(stage: CallStage) -> Box<Self> {
        Box::new(Self { stage, next: 0, queue: Vec::new(), running: None, blocked: None })
    }

    fn event(&self) -> CallEvent {
        match self.stage {
            CallStage::BeforeTools { .. } => CallEvent::BeforeTool,
            CallStage::AfterTools { .. } => CallEvent::AfterTool,
            CallStage::BeforeModel => CallEvent::BeforeModel,
            CallStage::AfterModel { .. } => CallEvent::AfterModel,
        }
    }

    /// The id of the tool call it is at.
    fn call_id(&self) -> Option<&str> {
        match &self.stage {
            CallStage::BeforeTools { calls, at } => Some(&calls.get(*at)?.call.id),
            CallStage::AfterTools { run, at } => run.call_id(*at),
            CallStage::BeforeModel | CallStage::AfterModel { .. } => None,
        }
    }

    /// Goes to the next call of the turn; whether there is one.
    fn advance(&mut self, effects: &mut Vec<Effect>) -> bool {
        self.next = 0;
        self.queue.clear();
        let blocked = self.blocked.take();
        match &mut self.stage {
            CallStage::BeforeTools { calls, at } => {
                if let Some(call) = calls.get_mut(*at) {
                    call.blocked = blocked;
                }
                *at += 1;
                calls.get_mut(*at).map(|call| effects.extend(call.announce())).is_some()
            }
            CallStage::AfterTools { run, at } => match run.next_reviewed(*at + 1) {
                Some(next) => {
                    *at = next;
                    true
                }
                None => false,
            },
            CallStage::BeforeModel | CallStage::AfterModel { .. } => {
                self.blocked = blocked;
                false
            }
        }
    }
}

impl ThreadState {
    /// Whether hooks are around such calls of this thread.
    pub(super) fn has_call_hooks(&self, event: CallEvent) -> bool {
        self.spec.template.hooks.has_around(event) && self.spec.template.revision >= 2
    }

    /// The hooks before the calls of a turn.
    pub(super) fn run_before_tools(&mut self, mut calls: Vec<GatedCall>) -> Vec<Effect> {
        let mut effects: Vec<Effect> = calls.first_mut().and_then(GatedCall::announce).into_iter().collect();
        effects.extend(self.drive_call_hooks(CallHookRun::new(CallStage::BeforeTools { calls, at: 0 })));
        effects
    }

    /// The hooks after the calls of a turn, which have all ended.
    pub(super) fn run_after_tools(&mut self) -> Vec<Effect> {
        let Phase::Tools(run) = std::mem::replace(&mut self.phase, Phase::CallingModel) else {
            return Vec::new();
        };
        match run.next_reviewed(0) {
            Some(at) => self.drive_call_hooks(CallHookRun::new(CallStage::AfterTools { run, at })),
            None => {
                self.phase = Phase::Tools(run);
                self.end_calls()
            }
        }
    }

    /// The hooks before the model is asked.
    pub(super) fn run_before_model(&mut self) -> Vec<Effect> {
        self.drive_call_hooks(CallHookRun::new(CallStage::BeforeModel))
    }

    /// The hooks after the model has answered.
    pub(super) fn run_after_model(
        &mut self,
        text: String,
        calls: Vec<ToolCall>,
        stop: TextEnd,
    ) -> Vec<Effect> {
        self.drive_call_hooks(CallHookRun::new(CallStage::AfterModel { text, calls, stop }))
    }

    /// What hooks want the model to read is said before it is asked.
    pub(super) fn push_hook_notes(&mut self) {
        if !self.hook_notes.is_empty() {
            let text = std::mem::take(&mut self.hook_notes).join("\n\n");
            self.push_user_message(text);
        }
    }

    /// The next action that may run, or what comes after them all.
    fn drive_call_hooks(&mut self, mut run: Box<CallHookRun>) -> Vec<Effect> {
        let spec = Arc::clone(&self.spec);
        let mut effects = Vec::new();
        loop {
            while let Some(queued) = run.queue.pop() {
                match permit_hook_action(&spec, queued.hook, &queued.action) {
                    Ok((hook, action)) => {
                        run.running = Some(queued);
                        self.phase = Phase::CallHooks(run);
                        let timeout_ms = Some(spec.template.config.resilience.call_hook_timeout_ms);
                        effects.push(Effect::RunHook { hook, action, timeout_ms });
                        return effects;
                    }
                    Err(error) => effects.extend(self.fail_call_hook(&mut run, queued.hook, &error)),
                }
            }
            let context = |needed: &NeededFields| self.call_context(&run, needed);
            let matching = match run.blocked {
                Some(_) => None,
                None => {
                    let revision = spec.template.revision;
                    spec.template.hooks.next_around(run.event(), run.next, revision, context)
                }
            };
            if let Some((next, hook, actions)) = matching {
                run.next = next;
                run.queue = actions.into_iter().rev().map(|action| QueuedAction { hook, action }).collect();
            } else if !run.advance(&mut effects) {
                effects.extend(self.after_call_hooks(*run));
                return effects;
            }
        }
    }

    /// What the hooks were run for.
    fn after_call_hooks(&mut self, run: CallHookRun) -> Vec<Effect> {
        match run.stage {
            CallStage::BeforeTools { calls, .. } => self.start_calls(calls),
            CallStage::AfterTools { run, .. } => {
                self.phase = Phase::Tools(run);
                self.end_calls()
            }
            CallStage::BeforeModel => match run.blocked {
                Some(reason) => self.finish(ThreadOutcome::failed(reason)),
                None => {
                    self.is_call_cleared = true;
                    self.push_hook_notes();
                    self.call_model()
                }
            },
            CallStage::AfterModel { text, calls, stop } => match run.blocked {
                None => self.use_answer(&text, calls, stop),
                Some(reason) if calls.is_empty() => {
                    self.partial_text.clear();
                    self.push_user_message(reason);
                    self.end_turn()
                }
                Some(reason) => {
                    let block = |call| GatedCall { blocked: Some(reason.clone()), ..GatedCall::new(call) };
                    self.start_calls(calls.into_iter().map(block).collect())
                }
            },
        }
    }

    /// What conditions see of the call; nothing of one that means nothing and will be refused.
    fn call_context(&self, run: &CallHookRun, needed: &NeededFields) -> Option<Map<String, Value>> {
        let mut context = match &run.stage {
            CallStage::BeforeTools { calls, at } => {
                let call = &calls.get(*at)?.call;
                let action = self.call_action(call)?;
                let of = (&action, self.call_arguments(call, &action)?);
                let mut context = HookContext::of_tool(&self.spec, &self.cost, "model", of, needed);
                context.add("tool", || json!(call.name));
                context
            }
            CallStage::AfterTools { run, at } => {
                let (name, action, result) = run.reviewed(*at)?;
                let of = (&*action, &action.params);
                let mut context = HookContext::of_tool(&self.spec, &self.cost, "model", of, needed);
                context.add("tool", || json!(name));
                context.add("result", || json!(result.content));
                context.add("is_error", || json!(result.is_error));
                context.add("duration_ms", || json!(result.duration_ms));
                context.add("child_thread_id", || json!(result.child));
                context
            }
            CallStage::BeforeModel => {
                let mut context = HookContext::new(&self.spec, &self.cost, needed);
                context.add("prompt", || {
                    json!(self.messages.last().and_then(|message| match &**message {
                        ChatMessage::User { text, .. } => Some(text.as_str()),
                        ChatMessage::Assistant { .. } | ChatMessage::Tool { .. } => None,
                    }))
                });
                context.add("message_count", || json!(self.messages.len()));
                context
            }
            CallStage::AfterModel { text, calls, .. } => {
                let mut context = HookContext::new(&self.spec, &self.cost, needed);
                context.add("text", || json!(text));
                context.add("is_final", || json!(calls.is_empty()));
                context.add("calls", || {
                    let call = |call: &ToolCall| json!({"tool": call.name, "call_id": call.id, "arguments": call.input});
                    calls.iter().map(call).collect()
                });
                context
            }
        };
        context.add("model", || json!(self.spec.template.model));
        context.add("provider", || json!(self.spec.template.provider));
        if let Some(call_id) = run.call_id() {
            context.add("call_id", || json!(call_id));
        }
        Some(context.into_fields())
    }

    /// What a call asks for, whichever name the model called it by.
    fn call_action(&self, call: &ToolCall) -> Option<Action> {
        let definitions = &self.spec.template.definitions;
        let own = |id: &str, params: Map<String, Value>| {
            let fields = json!({"primary": "execute", "item_type": "tool", "item_id": id});
            Action::from_value(&fields).ok().map(|action| Action { params, ..action })
        };
        match definitions.target(call).ok()? {
            CallTarget::Action(action)
            | CallTarget::Spawn(action)
            | CallTarget::Orchestrate(action)
            | CallTarget::RequestApproval(action) => Some(action),
            CallTarget::DirectiveReturn(outputs) => own(DIRECTIVE_RETURN, outputs),
            CallTarget::ReadArtifact(params) => own(READ_ARTIFACT, params),
        }
    }

    /// The arguments of the item that a call is for; `action` is what it asks for.
    fn call_arguments<'c>(&self, call: &'c ToolCall, action: &'c Action) -> Option<&'c Map<String, Value>> {
        Some(match self.spec.template.definitions.names.get(&call.name)? {
            ToolBinding::Primary(PrimaryAction::Execute) => &action.params,
            _ => &call.input,
        })
    }

    /// Makes the call with these arguments.
    fn set_arguments(&self, call: &mut ToolCall, arguments: Map<String, Value>) {
        match self.spec.template.definitions.names.get(&call.name) {
            Some(ToolBinding::Primary(PrimaryAction::Execute)) => {
                call.input.insert("parameters".to_owned(), Value::Object(arguments));
            }
            _ => call.input = arguments,
        }
    }

    /// A hook around a call answered.
    pub(super) fn on_call_hook_done(&mut self, result: &Value) -> Vec<Effect> {
        let Phase::CallHooks(mut run) = std::mem::replace(&mut self.phase, Phase::CallingModel) else {
            return Vec::new();
        };
        let spec = Arc::clone(&self.spec);
        let finished = run.running.take();
        let hook = finished.as_ref().and_then(|finished| spec.template.hooks.get(finished.hook));
        let (Some(finished), Some(hook)) = (&finished, hook) else { return self.drive_call_hooks(run) };
        let mut effects =
            match CallAnswer::read(hook, &finished.action, result, run.event(), spec.template.revision) {
                CallAnswer::Failed(error) => self.fail_call_hook(&mut run, finished.hook, &error),
                CallAnswer::HookTool(tool) => self
                    .apply_hook_tool_result(&tool, result, finished.hook)
                    .unwrap_or_else(|problem| self.fail_call_hook(&mut run, finished.hook, &problem)),
                CallAnswer::Change(change) => self.apply_call_change(&mut run, &hook.id, change),
                CallAnswer::Control(HookControl::Block(reason)) => block_call(&mut run, &hook.id, &reason),
                CallAnswer::Control(HookControl::Retry) => Vec::new(),
                CallAnswer::Control(control @ (HookControl::Fail(_) | HookControl::Abort(_))) => {
                    self.phase = Phase::CallHooks(run);
                    let mut effects = self.stop_tools(&format!("the hook `{}` ended the thread", hook.id));
                    effects.extend(self.apply_control(control, ResumeAt::Turn).unwrap_or_default());
                    return effects;
                }
                CallAnswer::Control(control) => {
                    return self.apply_control(control, ResumeAt::CallHooks(run)).unwrap_or_default();
                }
            };
        effects.extend(self.drive_call_hooks(run));
        effects
    }

    /// A hook failed: that is reported, and a call that was not made yet is blocked.
    fn fail_call_hook(&self, run: &mut CallHookRun, hook: usize, error: &str) -> Vec<Effect> {
        let mut effects = vec![self.hook_failed_event(hook, error)];
        let failed = self.spec.template.hooks.get(hook).filter(|hook| hook.kind == HookKind::Control);
        if let Some(hook) = failed.filter(|_| run.event().is_before()) {
            effects.extend(block_call(run, &hook.id, &format!("it failed: {error}")));
        }
        effects
    }

    /// Changes the call as a hook wants it, and writes that down beside what it was.
    fn apply_call_change(&mut self, run: &mut CallHookRun, hook: &str, change: CallChange) -> Vec<Effect> {
        let mut effects = Vec::new();
        let call_id = run.call_id().map(str::to_owned);
        if let Some(text) = change.note {
            effects.push(Self::record(CoreEvent::HookNote {
                hook: hook.to_owned(),
                event: run.event().as_str().to_owned(),
                text: text.clone(),
                call_id: call_id.clone(),
            }));
            match &mut run.stage {
                CallStage::BeforeTools { calls, at } => calls[*at].notes.push(text),
                CallStage::AfterTools { run, at } => run.add_note(*at, text),
                CallStage::BeforeModel | CallStage::AfterModel { .. } => self.hook_notes.push(text),
            }
        }
        if let (Some(arguments), CallStage::BeforeTools { calls, at }) = (change.arguments, &mut run.stage) {
            let call = &mut calls[*at].call;
            let action = self.call_action(call);
            let original = action.as_ref().and_then(|action| self.call_arguments(call, action)).cloned();
            if original.as_ref() != Some(&arguments) {
                effects.push(Self::record(CoreEvent::ToolCallChanged {
                    call_id: call.id.clone(),
                    hook: hook.to_owned(),
                    original: original.unwrap_or_default(),
                    arguments: arguments.clone(),
                }));
                self.set_arguments(call, arguments);
            }
        }
        if let (Some(output), CallStage::AfterTools { run, at }) = (change.result, &mut run.stage) {
            effects.push(Self::record(CoreEvent::ToolResultChanged {
                call_id: call_id.unwrap_or_default(),
                hook: hook.to_owned(),
                output: Some(output.clone()),
                error: None,
            }));
            run.replace_result(*at, output, None);
        }
        if let Some(reason) = change.block {
            effects.extend(block_call(run, hook, &reason));
        }
        effects
    }

    /// The process died while a hook ran: what can be run again is, any other has failed.
    pub(super) fn repeat_call_hook(&mut self) -> Vec<Effect> {
        let Phase::CallHooks(mut run) = std::mem::replace(&mut self.phase, Phase::CallingModel) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        match run.running.take() {
            Some(running) if running.is_repeatable(self.spec.template.revision) => run.queue.push(running),
            Some(running) => effects.extend(self.fail_call_hook(&mut run, running.hook, UNKNOWN_OUTCOME)),
            None => {}
        }
        effects.extend(self.drive_call_hooks(run));
        effects
    }

    /// People have answered what a hook around a call asked them: a no blocks the call.
    pub(super) fn resume_call_hooks(
        &mut self,
        mut run: Box<CallHookRun>,
        denial: Option<String>,
        message: Option<String>,
    ) -> Vec<Effect> {
        self.hook_notes.extend(message);
        let mut effects = Vec::new();
        if let Some(denial) = denial {
            let hook = run.next.checked_sub(1).and_then(|place| {
                let at = self.spec.template.hooks.around(run.event()).get(place)?;
                Some(self.spec.template.hooks.get(*at)?.id.clone())
            });
            effects.extend(block_call(&mut run, &hook.unwrap_or_default(), &denial));
        }
        effects.extend(self.drive_call_hooks(run));
        effects
    }

    /// The thread stops while hooks around calls run: calls that were not made are not, and a result that a hook had still
    /// to see is withheld.
    pub(super) fn stop_call_hooks(&mut self, reason: &str) -> Vec<Effect> {
        let Phase::CallHooks(run) = std::mem::replace(&mut self.phase, Phase::CallingModel) else {
            return Vec::new();
        };
        match run.stage {
            CallStage::BeforeTools { calls, .. } => self.stop_gated_calls(calls, reason),
            CallStage::AfterModel { calls, .. } => {
                self.stop_gated_calls(calls.into_iter().map(GatedCall::new).collect(), reason)
            }
            CallStage::AfterTools { mut run, at } => {
                let content = error_text(&format!("withheld: {reason} before a hook had seen it"));
                let mut next = run.next_reviewed(at);
                while let Some(index) = next {
                    run.replace_result(index, content.clone(), Some(true));
                    next = run.next_reviewed(index + 1);
                }
                self.phase = Phase::Tools(run);
                self.stop_tools(reason)
            }
            CallStage::BeforeModel => Vec::new(),
        }
    }

    fn stop_gated_calls(&mut self, calls: Vec<GatedCall>, reason: &str) -> Vec<Effect> {
        let mut effects = Vec::new();
        for mut gated in calls {
            effects.extend(gated.announce());
            let result = ToolResult::failure(error_text(reason));
            effects.push(emit_tool_result(&gated.call.id, &result));
            self.messages.push(Arc::new(ChatMessage::Tool {
                call_id: gated.call.id,
                name: gated.call.name,
                content: result.content,
                is_error: true,
            }));
        }
        effects
    }
}

/// Blocks the call that the hooks are at. What a tool answered is withheld from the model.
fn block_call(run: &mut CallHookRun, hook: &str, reason: &str) -> Vec<Effect> {
    let text = format!("blocked by the hook `{hook}`: {reason}");
    let event = run.event();
    run.queue.clear();
    let event = match (&mut run.stage, event) {
        (CallStage::BeforeTools { calls, at }, _) => {
            let call = &calls[*at].call;
            CoreEvent::ToolCallBlocked {
                call_id: call.id.clone(),
                tool: Some(call.name.clone()),
                hook: hook.to_owned(),
                reason: reason.to_owned(),
            }
        }
        (CallStage::AfterTools { run, at }, _) => {
            let call_id = run.call_id(*at).unwrap_or_default().to_owned();
            run.replace_result(*at, error_text(&text), Some(true));
            CoreEvent::ToolResultChanged {
                call_id,
                hook: hook.to_owned(),
                output: None,
                error: Some(text.clone()),
            }
        }
        (CallStage::BeforeModel | CallStage::AfterModel { .. }, event) => CoreEvent::ModelCallBlocked {
            event: event.as_str().to_owned(),
            hook: hook.to_owned(),
            reason: reason.to_owned(),
        },
    };
    run.blocked = Some(text);
    vec![ThreadState::record(event)]
}
