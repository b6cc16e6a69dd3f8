//! Running hooks: one action after the other, each through the same permission as everything else.
//!
//! A control hook steers by what `internal/control` answers; the first that does wins, the others run all the same. An
//! infra hook never steers. A hook that fails or may not run is reported and changes nothing.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Trigger;
use super::control::{CONTROL, Control};
use super::effect::{Effect, Outcome};
use super::question::{Back, Kind as About, Question};
use super::{Phase, State};
use crate::action::Action;
use crate::capability::{Asker, Capabilities, Permitted, permit};
use crate::cost::Cost;
use crate::hooks::{Kind, Position};
use crate::limits::Reached;
use crate::money::Nanos;
use crate::status::SuspendReason;

const INTERNAL: &str = "rye/agent/threads/internal/";

/// Events that say how the thread stands: the machine's own to tell.
const RESERVED: [&str; 9] = [
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
    queue: Vec<Queued>,
    running: Option<Queued>,
    control: Option<Control>,
    /// Texts for the first message, before and after the prompt; or for the system prompt.
    before: Vec<String>,
    after: Vec<String>,
    /// What a compaction gave.
    summary: Option<String>,
    then: Then,
}

#[derive(Clone, Debug, PartialEq)]
struct Queued {
    hook: usize,
    action: Value,
}

/// What the hooks are run for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Then {
    /// The system prompt is put together.
    SystemPrompt,
    /// The first message is put together.
    FirstMessage,
    /// A limit was reached, or a budget.
    Limit(Box<Reached>, SuspendReason),
    /// A model call failed.
    Failure { message: String, delay_ms: u64 },
    /// A turn is over.
    NextTurn,
    /// The context is nearly full.
    Pressure,
    /// The context is full, and there was nothing to remove.
    Full,
    /// The outputs were returned.
    Returned(Box<Outcome>),
    /// The thread ends.
    End(Box<Outcome>),
}

impl HookRun {
    /// Whether they bring texts for the model.
    pub(super) fn is_gathering(&self) -> bool {
        matches!(self.then, Then::SystemPrompt | Then::FirstMessage)
    }

    /// Another text behind the prompt.
    pub(super) fn add_after(&mut self, text: Option<String>) {
        self.after.extend(text);
    }

    /// Whether they are asked to make room in the context.
    pub(super) fn is_making_room(&self) -> bool {
        self.then == Then::Pressure
    }

    /// Whether the thread ends after these.
    pub(super) fn is_ending(&self) -> bool {
        matches!(self.then, Then::End(_))
    }
}

impl State {
    /// Runs the hooks of an event, then goes on as `then` says.
    pub(super) fn run_hooks(&mut self, event: &str, context: Value, then: Then) -> Vec<Effect> {
        let shared = &self.spec.shared;
        let mut queue: Vec<Queued> = Vec::new();
        for (hook, actions) in shared.hooks.matching(event, context) {
            queue.extend(actions.into_iter().map(|action| Queued { hook, action }));
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
            then,
        }));
        self.next_hook()
    }

    /// The next action that may run, or what comes after them all.
    fn next_hook(&mut self) -> Vec<Effect> {
        let mut effects = Vec::new();
        loop {
            let Phase::Hooks(run) = &mut self.phase else { return effects };
            let Some(next) = run.queue.pop() else {
                let Phase::Hooks(run) = std::mem::replace(&mut self.phase, Phase::Calling) else {
                    return effects;
                };
                effects.extend(self.after_hooks(*run));
                return effects;
            };
            match self.permitted(&next) {
                Ok((hook, action)) => {
                    if let Phase::Hooks(run) = &mut self.phase {
                        run.running = Some(next);
                    }
                    effects.push(Effect::RunHook { hook, action });
                    return effects;
                }
                Err(why) => effects.push(self.hook_failed(next.hook, &why)),
            }
        }
    }

    fn permitted(&self, queued: &Queued) -> Result<(String, Permitted), String> {
        let hook = self.spec.shared.hooks.get(queued.hook).ok_or("no such hook")?;
        let action = Action::from_value(&queued.action).map_err(|error| error.to_string())?;
        let given = Capabilities::parse(&hook.grants).map_err(|error| error.to_string())?;
        let rights = hook.origin.rights(&self.spec.own.capabilities, &given);
        let permitted = permit(rights, &action, Asker::Hook { origin: hook.origin })
            .map_err(|denied| denied.to_string())?;
        Ok((hook.id.clone(), permitted))
    }

    fn hook_failed(&self, hook: usize, error: &str) -> Effect {
        let hook = self.spec.shared.hooks.get(hook);
        let id = hook.map(|hook| hook.id.as_str()).unwrap_or_default();
        let event = hook.map(|hook| hook.event.as_str()).unwrap_or_default();
        Self::emit("hook_failed", json!({"hook": id, "event": event, "error": error}))
    }

    /// A hook's action answered.
    pub(super) fn hook_done(&mut self, result: &Value) -> Vec<Effect> {
        let Phase::Hooks(run) = &mut self.phase else { return Vec::new() };
        let Some(done) = run.running.take() else { return Vec::new() };
        let spec = Arc::clone(&self.spec);
        let Some(hook) = spec.shared.hooks.get(done.hook) else { return self.next_hook() };
        let item = done.action.get("item_id").and_then(Value::as_str).unwrap_or_default();
        let item = item.strip_prefix("tool:").unwrap_or(item);
        let mut effects = Vec::new();
        let is_first = run.is_gathering();
        let has_failed = result.get("status").and_then(Value::as_str) == Some("error");
        if item == CONTROL {
            // A control that ends the thread is an answer with `success: false`: no failure of the hook.
            let control = Control::read(result);
            if control.is_none() && has_failed && result.get("data").is_none_or(Value::is_null) {
                effects.push(self.hook_failed(done.hook, error_of(result)));
            } else if hook.kind == Kind::Control && run.control.is_none() {
                run.control = control;
            }
        } else if has_failed {
            let error = error_of(result).to_owned();
            let is_integrity = result.get("kind").and_then(Value::as_str) == Some("integrity");
            if is_integrity && is_first {
                let message = format!("the hook `{}` was refused: {error}", hook.id);
                effects.push(self.hook_failed(done.hook, &error));
                effects.extend(self.finish(Outcome::failed(message)));
                return effects;
            }
            effects.push(self.hook_failed(done.hook, &error));
        } else if let Some(tool) = item.strip_prefix(INTERNAL) {
            effects.extend(self.internal_answered(tool, result));
        } else if is_first {
            if let Some(text) = content_of(&done.action, result) {
                let text = match hook.wrap {
                    true => wrapped(item, &done.action, text),
                    false => text.trim().to_owned(),
                };
                match hook.position {
                    Position::Before => run.before.push(text),
                    Position::After => run.after.push(text),
                }
            }
        } else if run.then == Then::Pressure {
            run.summary = run.summary.take().or_else(|| summary_of(result));
        }
        effects.extend(self.next_hook());
        effects
    }

    /// What an internal tool wants of the thread.
    fn internal_answered(&mut self, tool: &str, result: &Value) -> Vec<Effect> {
        let Some(data) = result.get("data") else { return Vec::new() };
        let number = |key: &str| data.get(key).and_then(Value::as_u64).unwrap_or(0);
        match tool {
            "emitter" => {
                let event_type = data.get("event_type").and_then(Value::as_str).unwrap_or_default();
                if event_type.is_empty() || RESERVED.contains(&event_type) {
                    return Vec::new();
                }
                vec![Self::emit(event_type, data.get("payload").cloned().unwrap_or_else(|| json!({})))]
            }
            "cost_tracker" => {
                // Only `add` says what to add; `report` merely answers.
                let added = data.get("added").and_then(Value::as_object);
                let of = |key: &str| added.and_then(|added| added.get(key));
                let count = |key: &str| of(key).and_then(Value::as_u64).unwrap_or(0);
                let spend = of("spend").and_then(Nanos::from_value).unwrap_or_default();
                let more = Cost {
                    turns: 0,
                    input_tokens: count("input_tokens"),
                    output_tokens: count("output_tokens"),
                    spend,
                    elapsed_ms: 0,
                };
                self.cost.input_tokens = self.cost.input_tokens.saturating_add(more.input_tokens);
                self.cost.output_tokens = self.cost.output_tokens.saturating_add(more.output_tokens);
                self.cost.spend = self.cost.spend.plus(more.spend);
                Vec::new()
            }
            "state_persister" if number("persisted") == 0 => vec![Effect::Save(Trigger::Always)],
            _ => Vec::new(),
        }
    }

    /// The process died while a hook ran: an internal one is run again, any other is reported.
    pub(super) fn repeat_hook(&mut self) -> Vec<Effect> {
        let Phase::Hooks(run) = &mut self.phase else { return Vec::new() };
        let Some(running) = run.running.take() else { return self.next_hook() };
        let text = |key: &str| running.action.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let is_repeatable =
            text("item_id").contains(INTERNAL) || ["load", "search"].contains(&&*text("primary"));
        let mut effects = Vec::new();
        if is_repeatable {
            run.queue.push(running);
        } else {
            let hook = running.hook;
            effects.push(
                self.hook_failed(hook, "the process ended while it ran; whether it was done is unknown"),
            );
        }
        effects.extend(self.next_hook());
        effects
    }

    pub(super) fn after_hooks(&mut self, mut run: HookRun) -> Vec<Effect> {
        let control = run.control.take();
        if let Some(control) = &control
            && matches!(run.then, Then::SystemPrompt | Then::FirstMessage | Then::NextTurn | Then::Full)
            && let Some(effects) = self.steered(control.clone(), Back::Hooks(Box::new(run.clone())))
        {
            return effects;
        }
        match run.then {
            Then::SystemPrompt => self.system_prompt(run.before.into_iter().chain(run.after).collect()),
            Then::FirstMessage => self.first_message(run.before, run.after),
            Then::Limit(reached, reason) => self.limit_answered(&reached, reason, control),
            Then::Failure { message, delay_ms } => self.failure_answered(message, delay_ms, control),
            Then::NextTurn => self.turn_over(),
            Then::Full => self.before_turn(),
            Then::Pressure => self.relieve(run.summary.as_deref()),
            Then::Returned(outcome) => self.finish(*outcome),
            Then::End(outcome) => self.end(*outcome),
        }
    }

    /// What a control means wherever it is not about a failure or a limit.
    pub(super) fn steered(&mut self, control: Control, back: Back) -> Option<Vec<Effect>> {
        Some(match control {
            Control::Retry => return None,
            Control::Fail(error) => self.finish(Outcome::failed(error)),
            Control::Abort(error) => self.finish(Outcome::cancelled(error)),
            Control::Suspend { why, prompt, ends_on_no } => {
                let reason = SuspendReason::parse(&why).unwrap_or(SuspendReason::Approval);
                if reason != SuspendReason::Approval && prompt.is_none() {
                    return Some(self.pause(Outcome::suspended(reason, why, Value::Null), back, Vec::new()));
                }
                // The bare word says nothing that a person could judge.
                let what = prompt.unwrap_or_else(|| match why.as_str() {
                    "approval" => format!("may {} go on?", self.spec.shared.directive),
                    _ => why.clone(),
                });
                let question = Question {
                    id: self.question_id(),
                    kind: About::Approval,
                    what: what.clone(),
                    why: if what == why { String::new() } else { why },
                    ends_on_no,
                    detail: json!({"cost": self.cost.to_value()}),
                };
                let outcome = Outcome::suspended(SuspendReason::Approval, what, Value::Null);
                self.pause(outcome, back, vec![question])
            }
            Control::Escalate(detail) => {
                let what = "Escalation requested".to_owned();
                let question = Question {
                    id: self.question_id(),
                    kind: About::Limit,
                    what: what.clone(),
                    why: String::new(),
                    ends_on_no: true,
                    detail: json!({"escalation": detail, "cost": self.cost.to_value()}),
                };
                self.pause(Outcome::suspended(SuspendReason::Limit, what, detail), back, vec![question])
            }
        })
    }
}

fn error_of(envelope: &Value) -> &str {
    envelope.get("error").and_then(Value::as_str).unwrap_or("it failed")
}

/// The text a context hook brought: `data.content`, `data.body` or `data.raw`; of a directive that was executed its prompt.
fn content_of<'a>(action: &Value, envelope: &'a Value) -> Option<&'a str> {
    let data = envelope.get("data")?;
    let is = |key: &str, word: &str| action.get(key).and_then(Value::as_str) == Some(word);
    let keys = match is("primary", "execute") && is("item_type", "directive") {
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
fn wrapped(item: &str, action: &Value, text: &str) -> String {
    let name = item.rsplit('/').next().unwrap_or(item);
    let name: String = name.chars().filter(|letter| letter.is_alphanumeric() || *letter == '_').collect();
    let item_type = action.get("item_type").and_then(Value::as_str).unwrap_or("knowledge");
    format!("<{name} id=\"{item}\" type=\"{item_type}\">\n{}\n</{name}>", text.trim())
}

/// The context of hooks about the cost so far.
pub(super) fn cost_context(state: &State) -> Map<String, Value> {
    let mut context = Map::new();
    context.insert("cost".to_owned(), state.cost.to_value());
    context.insert("thread_id".to_owned(), json!(state.spec.own.thread_id));
    context.insert("directive".to_owned(), json!(state.spec.shared.directive));
    context
}
