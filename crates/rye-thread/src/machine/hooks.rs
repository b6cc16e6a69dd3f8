//! Running hooks: one action after the other, each through the same permission as everything else.
//!
//! A control hook steers by what `internal/control` answers; the first that does wins, the others run all the same. An
//! infra hook never steers. A hook that fails or may not run is reported and changes nothing.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::SaveTrigger;
use super::approval::{ApprovalKind, ApprovalRequest, ResumeAt};
use super::control::HookControl;
use super::effect::{Effect, ThreadOutcome};
use super::{Phase, ThreadState};
use crate::call_hooks::permit_hook_action;
use crate::capability::{CONTROL_TOOL, HOOK_TOOLS_PREFIX, LEDGER_REFUSAL, hook_tool_path};
use crate::config::Criticality;
use crate::core_event::{CoreEvent, is_core_event};
use crate::cost::Cost;
use crate::envelope::ResultEnvelope;
use crate::hooks::{ContextPosition, HOOK_EVENTS, HookKind};
use crate::limits::LimitReached;
use crate::money::Nanos;
use crate::status::SuspendReason;

/// Events that say how the thread stands: the machine's own to tell, also in threads of revision 0.
const RESERVED_EVENTS: [&str; 9] = [
    "thread_started",
    "thread_continued",
    "thread_completed",
    "thread_error",
    "thread_cancelled",
    "thread_killed",
    "thread_suspended",
    "thread_resumed",
    "checkpoint",
];

/// Hooks under way.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HookRun {
    event: String,
    /// What is still to be run, the next one last.
    queue: Vec<QueuedAction>,
    running: Option<QueuedAction>,
    control: Option<HookControl>,
    /// Texts for the first message, before and after the prompt; or for the system prompt.
    before: Vec<String>,
    after: Vec<String>,
    /// What a compaction gave.
    summary: Option<String>,
    continuation: HookContinuation,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct QueuedAction {
    pub(super) hook: usize,
    pub(super) action: Value,
}

/// What is said of a hook that ran when the process died.
pub(super) const UNKNOWN_OUTCOME: &str = "the process ended while it ran; whether it was done is unknown";

impl QueuedAction {
    /// Whether running it twice is the same as running it once, by the rules of `revision`.
    pub(super) fn is_repeatable(&self, revision: u32) -> bool {
        let text = |key: &str| self.action.get(key).and_then(Value::as_str).unwrap_or_default();
        let is_hook_tool = match revision >= 7 {
            true => hook_tool_path(text("item_id")).is_some(),
            false => text("item_id").contains(&format!("{HOOK_TOOLS_PREFIX}/")),
        };
        is_hook_tool || ["load", "search"].contains(&text("primary"))
    }
}

/// What the hooks are run for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HookContinuation {
    /// The system prompt is put together.
    SystemPrompt,
    /// The first message is put together.
    FirstMessage,
    /// A limit was reached, or a budget.
    Limit(Box<LimitReached>, SuspendReason),
    /// A model call failed.
    Failure { message: String, delay_ms: u64 },
    /// A turn is over.
    NextTurn,
    /// The context is nearly full.
    ContextPressure,
    /// The context is full, and there was nothing to remove.
    ContextFull,
    /// The outputs were returned.
    Returned(Box<ThreadOutcome>),
    /// The thread ends.
    End(Box<ThreadOutcome>),
}

impl HookRun {
    /// Whether they bring texts for the model.
    pub(super) fn is_collecting_context(&self) -> bool {
        matches!(self.continuation, HookContinuation::SystemPrompt | HookContinuation::FirstMessage)
    }

    /// Another text behind the prompt.
    pub(super) fn add_after(&mut self, text: Option<String>) {
        self.after.extend(text);
    }

    /// Whether they are asked to make room in the context.
    pub(super) fn is_compacting(&self) -> bool {
        self.continuation == HookContinuation::ContextPressure
    }

    /// Whether they were run because the outputs were returned.
    pub(super) fn is_returning(&self) -> bool {
        matches!(self.continuation, HookContinuation::Returned(_))
    }

    /// Whether the thread ends after these.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.continuation, HookContinuation::End(_))
    }
}

impl ThreadState {
    /// Runs the hooks of an event, then continues as `continuation` says.
    pub(super) fn run_hooks(
        &mut self,
        event: &str,
        context: Value,
        continuation: HookContinuation,
    ) -> Vec<Effect> {
        debug_assert!(HOOK_EVENTS.contains(&event), "{event}");
        let shared = &self.spec.template;
        let mut queue: Vec<QueuedAction> = Vec::new();
        for (hook, actions) in shared.hooks.matching(event, context) {
            queue.extend(actions.into_iter().map(|action| QueuedAction { hook, action }));
        }
        queue.reverse();
        self.phase = Phase::Hooks(Box::new(HookRun {
            event: event.to_owned(),
            queue,
            running: None,
            control: None,
            before: Vec::new(),
            after: Vec::new(),
            summary: None,
            continuation,
        }));
        self.next_hook()
    }

    /// The next action that may run, or what comes after them all.
    fn next_hook(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        loop {
            let Phase::Hooks(run) = &mut self.phase else { return effects };
            let Some(next) = run.queue.pop() else {
                let Phase::Hooks(run) = std::mem::replace(&mut self.phase, Phase::CallingModel) else {
                    return effects;
                };
                effects.extend(self.resume_after_hooks(*run));
                return effects;
            };
            match permit_hook_action(&self.spec, next.hook, &next.action) {
                Ok((hook, action)) => {
                    if let Phase::Hooks(run) = &mut self.phase {
                        run.running = Some(next);
                    }
                    effects.push(Effect::RunHook { hook, action, timeout_ms: None });
                    return effects;
                }
                Err(error) => effects.push(self.hook_failed_event(next.hook, &error)),
            }
        }
    }

    pub(super) fn hook_failed_event(&self, hook: usize, error: &str) -> Effect {
        let hook = self.spec.template.hooks.get(hook);
        let id = hook.map(|hook| hook.id.as_str()).unwrap_or_default();
        let event = hook.map(|hook| hook.event.as_str()).unwrap_or_default();
        Self::record(CoreEvent::HookFailed {
            hook: id.to_owned(),
            event: event.to_owned(),
            error: error.to_owned(),
        })
    }

    /// A hook's action answered.
    pub(super) fn on_hook_done(&mut self, result: &Value) -> Vec<Effect> {
        if matches!(self.phase, Phase::CallHooks(_)) {
            return self.on_call_hook_done(result);
        }
        let Phase::Hooks(run) = &mut self.phase else { return Vec::new() };
        let Some(finished) = run.running.take() else { return Vec::new() };
        let spec = Arc::clone(&self.spec);
        let Some(hook) = spec.template.hooks.get(finished.hook) else { return self.next_hook() };
        let item = finished.action.get("item_id").and_then(Value::as_str).unwrap_or_default();
        let item = item.strip_prefix("tool:").unwrap_or(item);
        let mut effects = Vec::new();
        let is_collecting = run.is_collecting_context();
        let envelope = ResultEnvelope::parse(result);
        if item == CONTROL_TOOL {
            // A control that ends the thread is an answer with `success: false`: no failure of the hook.
            let control = HookControl::parse(result);
            if let ResultEnvelope::Failure { error, data: None, .. } = envelope
                && control.is_none()
            {
                effects.push(self.hook_failed_event(finished.hook, error));
            } else if hook.kind == HookKind::Control && run.control.is_none() {
                run.control = control;
            }
        } else if let ResultEnvelope::Failure { error, is_integrity, .. } = envelope {
            if is_integrity && is_collecting {
                let message = format!("the hook `{}` was refused: {error}", hook.id);
                effects.push(self.hook_failed_event(finished.hook, error));
                effects.extend(self.finish(ThreadOutcome::failed(message)));
                return effects;
            }
            effects.push(self.hook_failed_event(finished.hook, error));
        } else if let Some(tool) = hook_tool_path(item) {
            match self.apply_hook_tool_result(tool, result, finished.hook) {
                Ok(applied) => effects.extend(applied),
                Err(problem) => effects.push(self.hook_failed_event(finished.hook, &problem)),
            }
        } else if is_collecting {
            if let Some(text) = content_of(&finished.action, result) {
                let text = match hook.wrap {
                    true => wrap_in_tag(item, &finished.action, text),
                    false => text.trim().to_owned(),
                };
                match hook.position {
                    ContextPosition::Before => run.before.push(text),
                    ContextPosition::After => run.after.push(text),
                }
            }
        } else if run.continuation == HookContinuation::ContextPressure {
            run.summary = run.summary.take().or_else(|| summary_of(result));
        }
        effects.extend(self.next_hook());
        effects
    }

    /// What an internal tool wants of the thread; an error is why this hook may not have it.
    pub(super) fn apply_hook_tool_result(
        &mut self,
        tool: &str,
        result: &Value,
        hook: usize,
    ) -> Result<Vec<Effect>, String> {
        let Some(data) = result.get("data") else { return Ok(Vec::new()) };
        let number = |key: &str| data.get(key).and_then(Value::as_u64).unwrap_or(0);
        Ok(match tool {
            "emitter" => self.emit_for_hook(data).into_iter().collect(),
            // Only `add` and `report_actual` say what to add; other operations merely answer.
            "cost_tracker" | "budget_ops" => self.add_reported_cost(data, hook)?.into_iter().collect(),
            "state_persister" if number("persisted") == 0 => vec![Effect::SaveState(SaveTrigger::Always)],
            _ => Vec::new(),
        })
    }

    /// The event a hook wants written, unless only the thread itself writes such events.
    fn emit_for_hook(&self, data: &Value) -> Option<Effect> {
        let event_type = data.get("event_type").and_then(Value::as_str).filter(|event| !event.is_empty())?;
        let is_new = self.spec.template.revision >= 1;
        if RESERVED_EVENTS.contains(&event_type) || (is_new && is_core_event(event_type)) {
            return None;
        }
        let payload = data.get("payload").cloned().unwrap_or_else(|| json!({}));
        let criticality = data.get("criticality").and_then(|word| Criticality::deserialize(word).ok());
        let configured = self.spec.template.config.events.criticality(event_type);
        Some(match criticality.filter(|criticality| is_new && *criticality != configured) {
            Some(criticality) => Effect::EmitAs { event_type: event_type.to_owned(), payload, criticality },
            None => Self::emit(event_type, payload),
        })
    }

    /// Adds what a hook reported as used, and has it booked. Nothing else adds to the ledger for a hook, whatever tool answered.
    fn add_reported_cost(&mut self, data: &Value, hook: usize) -> Result<Option<Effect>, String> {
        let Some(added) = data.get("added").and_then(Value::as_object) else { return Ok(None) };
        let spec = Arc::clone(&self.spec);
        let Some(hook) = spec.template.hooks.get(hook) else { return Ok(None) };
        let used = match spec.template.revision >= 6 {
            true if !hook.origin.changes_ledger() => return Err(LEDGER_REFUSAL.to_owned()),
            true => {
                let used = Cost::from_report(added)?;
                self.cost.with_report(&used)?;
                used
            }
            false => unchecked_report(added),
        };
        self.cost.turns = self.cost.turns.saturating_add(used.turns);
        self.cost.input_tokens = self.cost.input_tokens.saturating_add(used.input_tokens);
        self.cost.output_tokens = self.cost.output_tokens.saturating_add(used.output_tokens);
        self.cost.spend = self.cost.spend.plus(used.spend);
        if used.tokens() == 0 && used.spend == Nanos(0) {
            return Ok(None);
        }
        self.calls += 1;
        Ok(Some(Effect::RecordSpend { call: self.calls, used, hook: hook.id.clone() }))
    }

    /// The process died while a hook ran: an internal one is run again, any other is reported.
    pub(super) fn repeat_hook(&mut self) -> Vec<Effect> {
        let Phase::Hooks(run) = &mut self.phase else { return Vec::new() };
        let Some(running) = run.running.take() else { return self.next_hook() };
        let mut effects = Vec::new();
        if running.is_repeatable(self.spec.template.revision) {
            run.queue.push(running);
        } else {
            let hook = running.hook;
            effects.push(self.hook_failed_event(hook, UNKNOWN_OUTCOME));
        }
        effects.extend(self.next_hook());
        effects
    }

    pub(super) fn resume_after_hooks(&mut self, mut run: HookRun) -> Vec<Effect> {
        let control = run.control.take();
        let is_steerable = match run.continuation {
            HookContinuation::SystemPrompt
            | HookContinuation::FirstMessage
            | HookContinuation::NextTurn
            | HookContinuation::ContextFull => true,
            HookContinuation::ContextPressure | HookContinuation::Returned(_) => {
                self.spec.template.revision >= 1
            }
            // A limit and a failure have rules of their own, and what ends is not held up.
            HookContinuation::Limit(..) | HookContinuation::Failure { .. } | HookContinuation::End(_) => {
                false
            }
        };
        if let Some(control) = &control
            && is_steerable
            && let Some(effects) = self.apply_control(control.clone(), ResumeAt::Hooks(Box::new(run.clone())))
        {
            return effects;
        }
        match run.continuation {
            HookContinuation::SystemPrompt => {
                self.system_prompt(run.before.into_iter().chain(run.after).collect())
            }
            HookContinuation::FirstMessage => self.first_message(run.before, run.after),
            HookContinuation::Limit(reached, reason) => self.after_limit_hooks(&reached, reason, control),
            HookContinuation::Failure { message, delay_ms } => {
                self.after_error_hooks(message, delay_ms, control)
            }
            HookContinuation::NextTurn => self.end_turn(),
            HookContinuation::ContextFull => self.before_turn(),
            HookContinuation::ContextPressure => self.compact_context(run.summary.as_deref()),
            HookContinuation::Returned(outcome) => self.finish(*outcome),
            HookContinuation::End(outcome) => self.end(*outcome),
        }
    }

    /// Stops and asks a person what a hook wants to know.
    pub(super) fn ask_for_hook(
        &mut self,
        why: &str,
        prompt: Option<String>,
        ends_on_deny: bool,
        resume_at: ResumeAt,
    ) -> Vec<Effect> {
        // The bare word says nothing that a person could judge.
        let what = prompt.unwrap_or_else(|| match why {
            "approval" => format!("may {} go on?", self.spec.template.directive),
            _ => why.to_owned(),
        });
        let request = ApprovalRequest {
            id: self.next_approval_id(),
            kind: ApprovalKind::Approval,
            prompt: what.clone(),
            reason: if what == why { String::new() } else { why.to_owned() },
            ends_on_deny,
            detail: json!({"cost": self.cost.to_value()}),
        };
        let outcome = ThreadOutcome::suspended(SuspendReason::Approval, what, Value::Null);
        self.suspend_with(outcome, resume_at, vec![request])
    }

    /// What a control means wherever it is not about a failure or a limit.
    pub(super) fn apply_control(&mut self, control: HookControl, resume_at: ResumeAt) -> Option<Vec<Effect>> {
        Some(match control {
            HookControl::Retry => return None,
            HookControl::Fail(error) | HookControl::Block(error) => self.finish(ThreadOutcome::failed(error)),
            HookControl::Abort(error) => self.finish(ThreadOutcome::cancelled(error)),
            HookControl::Suspend { reason: why, prompt, ends_on_deny } => {
                let reason = SuspendReason::parse(&why).unwrap_or(SuspendReason::Approval);
                if reason != SuspendReason::Approval && prompt.is_none() {
                    return Some(self.suspend_with(
                        ThreadOutcome::suspended(reason, why, Value::Null),
                        resume_at,
                        Vec::new(),
                    ));
                }
                self.ask_for_hook(&why, prompt, ends_on_deny, resume_at)
            }
            HookControl::Escalate(detail) => {
                let what = "Escalation requested".to_owned();
                let request = ApprovalRequest {
                    id: self.next_approval_id(),
                    kind: ApprovalKind::Limit,
                    prompt: what.clone(),
                    reason: String::new(),
                    ends_on_deny: true,
                    detail: json!({"escalation": detail, "cost": self.cost.to_value()}),
                };
                self.suspend_with(
                    ThreadOutcome::suspended(SuspendReason::Limit, what, detail),
                    resume_at,
                    vec![request],
                )
            }
        })
    }
}

/// What a hook reported as used, as threads before revision 6 read it.
fn unchecked_report(added: &Map<String, Value>) -> Cost {
    let count = |key: &str| added.get(key).and_then(Value::as_u64).unwrap_or(0);
    Cost {
        turns: count("turns"),
        input_tokens: count("input_tokens"),
        output_tokens: count("output_tokens"),
        spend: added.get("spend").and_then(Nanos::from_value).unwrap_or_default(),
        elapsed_ms: 0,
    }
}

/// The text a context hook brought: `data.content`, `data.body` or `data.raw`; of a directive that was executed its prompt.
fn content_of<'a>(action: &Value, envelope: &'a Value) -> Option<&'a str> {
    let data = envelope.get("data")?;
    let has = |key: &str, word: &str| action.get(key).and_then(Value::as_str) == Some(word);
    let keys = match has("primary", "execute") && has("item_type", "directive") {
        true => ["body", "content", "raw"],
        false => ["content", "body", "raw"],
    };
    keys.into_iter()
        .filter_map(|key| data.get(key).and_then(Value::as_str))
        .find(|text| !text.trim().is_empty())
}

/// What a compaction gave: its output `summary`, else its last words, else its text.
fn summary_of(envelope: &Value) -> Option<String> {
    let data = envelope.get("data")?;
    let outputs = data.get("outputs").and_then(|outputs| outputs.get("summary"));
    [outputs, data.get("summary"), data.get("result")]
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find(|text| !text.trim().is_empty())
        .map(str::to_owned)
}

/// A block that says where it comes from.
fn wrap_in_tag(item: &str, action: &Value, text: &str) -> String {
    let name = item.rsplit('/').next().unwrap_or(item);
    let name: String = name.chars().filter(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    let item_type = action.get("item_type").and_then(Value::as_str).unwrap_or("knowledge");
    format!("<{name} id=\"{item}\" type=\"{item_type}\">\n{}\n</{name}>", text.trim())
}

/// The context of hooks about the cost so far.
pub(super) fn cost_context(state: &ThreadState) -> Map<String, Value> {
    let mut context = Map::new();
    context.insert("cost".to_owned(), state.cost.to_value());
    context.insert("thread_id".to_owned(), json!(state.spec.instance.thread_id));
    context.insert("directive".to_owned(), json!(state.spec.template.directive));
    context
}
