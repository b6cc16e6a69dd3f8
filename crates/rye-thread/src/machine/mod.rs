//! The thread as a pure machine: `step(state, event) → effects`.
//!
//! ```text
//! Started ─► thread_started hooks ─► first message ─┐
//!            ┌──────────────────────────────────────┘
//!            ▼
//!  ┌─► before a turn: cancelled? limits? ─► CallModel ─► Answered ─► calls? ── no ─► End(completed)
//!  │         │                                 │                      │ yes
//!  │         └ limit hooks ─► Suspend          └ Failed ─► error      ▼
//!  │                                             hooks ─► Sleep   Dispatch … ToolDone
//!  └── after_step hooks ◄─────────────────────────────────────────────┘
//! ```
//!
//! There is no clock, no I/O and no randomness in here: each event brings its time and its luck. Whoever feeds the same
//! events to the same spec gets the same state and the same effects; resuming a thread is nothing else.

mod context;
mod control;
mod effect;
mod ending;
mod event;
mod hooks;
mod question;
#[cfg(test)]
mod tests;
mod tools;
mod turn;

use std::sync::Arc;

use crate::model::Message;
use serde_json::{Value, json};

pub use crate::config::Trigger;
pub use context::{MAX_RESULT_CHARACTERS, MAX_RESULT_UNDER_PRESSURE, newest_turns};
pub use effect::{Effect, Outcome, Worst};
pub use event::{Event, Refusal, Scarce, ToolResult};
pub use question::{Kind, Question, Verdict};

use crate::cost::Cost;
use crate::limits::Limits;
use crate::money::Nanos;
use crate::spec::Spec;
use crate::status::Status;
use hooks::HookRun;
use tools::ToolRun;

/// Where a thread stands, with everything it needs to go on.
#[derive(Clone, Debug)]
pub struct State {
    /// What it is.
    pub spec: Arc<Spec>,
    /// How much it may use.
    pub limits: Limits,
    /// What it has used itself.
    pub cost: Cost,
    /// What was said.
    pub messages: Vec<Arc<Message>>,
    /// The model calls that were set out on so far.
    pub calls: u64,
    /// The system prompt: what hooks say, then what the directive asks for.
    system: Option<String>,
    phase: Phase,
    /// Model calls that failed since the last answer.
    failures: u32,
    /// Reminders since the last tool call.
    reminders: u32,
    /// Answers in a row that were cut off.
    cuts: u32,
    /// Pieces of an answer that was cut off.
    pieces: String,
    context: context::Context,
    /// Questions to people so far.
    asked: u64,
    /// When the last event came.
    last_ms: u64,
}

/// What it waits for.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// To begin.
    New,
    /// A hook.
    Hooks(Box<HookRun>),
    /// The model.
    Calling,
    /// The time between two attempts.
    Sleeping,
    /// Tools.
    Tools(ToolRun),
    /// Somebody who lets it go on.
    Suspended(Box<question::Pause>),
    /// Nothing: it has ended.
    Ended(Box<Outcome>),
}

impl State {
    /// A thread that has not begun.
    #[must_use]
    pub fn new(spec: Arc<Spec>) -> Self {
        Self {
            limits: spec.own.limits,
            system: spec.shared.system.clone(),
            spec,
            cost: Cost::default(),
            messages: Vec::new(),
            calls: 0,
            phase: Phase::New,
            failures: 0,
            reminders: 0,
            cuts: 0,
            pieces: String::new(),
            context: context::Context::default(),
            asked: 0,
            last_ms: 0,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn status(&self) -> Status {
        match &self.phase {
            Phase::New => Status::Created,
            Phase::Hooks(_) | Phase::Calling | Phase::Sleeping | Phase::Tools(_) => Status::Running,
            Phase::Suspended(_) => Status::Suspended,
            Phase::Ended(outcome) => outcome.status,
        }
    }

    /// How it ended or why it stopped, once it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&Outcome> {
        match &self.phase {
            Phase::Suspended(pause) => Some(&pause.outcome),
            Phase::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// What it waits for, in a word: for `state.json` and for people.
    #[must_use]
    pub fn waits_for(&self) -> &'static str {
        match &self.phase {
            Phase::New => "start",
            Phase::Hooks(_) => "hook",
            Phase::Calling => "model",
            Phase::Sleeping => "retry",
            Phase::Tools(_) => "tools",
            Phase::Suspended(_) => "person",
            Phase::Ended(_) => "nothing",
        }
    }

    /// Whether a model call was set out on and has not come back.
    #[must_use]
    pub fn is_calling(&self) -> bool {
        self.phase == Phase::Calling
    }

    /// The tool calls that have begun and not ended: their place in the turn and the item each runs.
    #[must_use]
    pub fn running_tools(&self) -> Vec<(usize, String)> {
        match &self.phase {
            Phase::Tools(run) => run.running(),
            _ => Vec::new(),
        }
    }

    /// Whether the first message is still being put together.
    #[must_use]
    pub fn is_starting(&self) -> bool {
        self.messages.is_empty()
    }

    /// Milliseconds at work, if it is `now_ms`.
    #[must_use]
    pub fn elapsed_at(&self, now_ms: u64) -> u64 {
        match self.status() {
            Status::Running => self.cost.elapsed_ms.saturating_add(now_ms.saturating_sub(self.last_ms)),
            _ => self.cost.elapsed_ms,
        }
    }

    fn emit(event_type: &str, payload: Value) -> Effect {
        Effect::Emit { event_type: event_type.to_owned(), payload }
    }
}

/// Takes an event in: changes the state, and says what is to be done now. An event that does not fit the state changes
/// nothing; after the end nothing does.
pub fn step(state: &mut State, at_ms: u64, event: Event) -> Vec<Effect> {
    if matches!(state.phase, Phase::Ended(_)) {
        return Vec::new();
    }
    if state.status() == Status::Running {
        let passed = at_ms.saturating_sub(state.last_ms);
        state.cost.elapsed_ms = state.cost.elapsed_ms.saturating_add(passed);
    }
    state.last_ms = state.last_ms.max(at_ms);
    match event {
        Event::Started => state.start(),
        Event::HookDone { result } => state.hook_done(&result),
        Event::Answered { answer, spend } => state.answered(answer, spend),
        Event::Failed { failure, spend, is_unknown, jitter } => {
            state.failed(&failure, spend, is_unknown, jitter)
        }
        Event::Refused(refusal) => state.refused(&refusal),
        Event::Slept => state.slept(),
        Event::ToolDone { index, result } => state.tool_done(index, result),
        Event::ToolAsked { index, request, action, denied } => {
            state.tool_asked(index, request, &action, denied)
        }
        Event::ToolAnswered { index, request, is_error, duration_ms, child } => {
            state.tool_answered(index, request, is_error, duration_ms, child.as_ref())
        }
        Event::ChildStarted { index, child, directive } => state.child_started(index, &child, &directive),
        Event::Interrupted { spend, repeatable } => state.interrupted(spend, &repeatable),
        Event::CancelRequested { reason, spend } => state.cancelled(&reason, spend),
        Event::Expired { spend } => state.expired(spend),
        Event::Resumed { limits, message, by, answers } => state.resumed(limits, message, &by, &answers),
    }
}

impl State {
    fn start(&mut self) -> Vec<Effect> {
        if self.phase != Phase::New {
            return Vec::new();
        }
        let shared = &self.spec.shared;
        let mut effects = vec![Self::emit(
            "thread_started",
            json!({
                "directive": shared.directive,
                "model": shared.model,
                "provider": shared.provider,
                "limits": self.limits.to_value(),
                "parent_thread_id": self.spec.own.parent,
                "directive_hash": shared.directive_hash,
            }),
        )];
        if let Some(previous) = &self.spec.own.continues {
            effects.push(Self::emit(
                "thread_continued",
                json!({"directive": shared.directive, "model": shared.model, "previous_thread_id": previous}),
            ));
        }
        let context = self.beginning();
        effects.extend(self.run_hooks("build_system_prompt", context, hooks::Then::SystemPrompt));
        effects
    }

    /// The system prompt is there: what hooks said, then what the directive asks for. The first message is next.
    fn system_prompt(&mut self, texts: Vec<String>) -> Vec<Effect> {
        let all: Vec<String> = texts.into_iter().chain(self.system.take()).collect();
        self.system = (!all.is_empty()).then(|| all.join("\n\n"));
        let mut effects = Vec::new();
        if let Some(system) = &self.system {
            effects.push(Self::emit("system_prompt", json!({"text": system})));
        }
        let event = if self.spec.own.continues.is_some() { "thread_continued" } else { "thread_started" };
        let context = self.beginning();
        effects.extend(self.run_hooks(event, context, hooks::Then::FirstMessage));
        effects
    }

    /// What hooks see of a thread that begins.
    fn beginning(&self) -> Value {
        let (own, shared) = (&self.spec.own, &self.spec.shared);
        json!({
            "directive": shared.directive,
            "directive_body": own.prompt,
            "model": shared.model,
            "limits": self.limits.to_value(),
            "inputs": own.inputs,
            "has_outputs": !shared.outputs.is_empty(),
            "thread_id": own.thread_id,
            "parent_thread_id": own.parent,
            "previous_thread_id": own.continues,
            "capabilities_summary": own.capabilities.iter().collect::<Vec<_>>().join(", "),
        })
    }

    /// The process died: what was outstanding is unknown, unless it can simply be done again.
    fn interrupted(&mut self, spend: Nanos, repeatable: &[usize]) -> Vec<Effect> {
        self.cost.spend = self.cost.spend.plus(spend);
        match &self.phase {
            Phase::New => self.start(),
            Phase::Hooks(_) => self.repeat_hook(),
            Phase::Calling | Phase::Sleeping => self.before_turn(),
            Phase::Tools(_) => self.interrupted_tools(repeatable),
            Phase::Suspended(_) | Phase::Ended(_) => Vec::new(),
        }
    }

    /// A message to the model.
    fn say(&mut self, text: String) {
        self.messages.push(Arc::new(Message::User { text }));
    }
}
