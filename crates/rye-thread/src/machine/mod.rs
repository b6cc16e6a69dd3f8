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
//! There is no clock, no I/O and no randomness in here: each event carries its timestamp and jitter. Feeding the same
//! events to the same spec gets the same state and the same effects; resuming a thread is nothing else.

mod approval;
mod budget;
mod call_hooks;
mod context;
mod control;
mod effect;
mod event;
mod fallback;
mod finish;
mod fork;
mod hooks;
mod limit_reached;
mod response_format;
#[cfg(test)]
mod tests;
mod tools;
mod turn;
mod usage;

use std::sync::Arc;

use crate::model::ChatMessage;
use serde_json::{Value, json};

pub use crate::config::SaveTrigger;
pub use approval::{ApprovalAnswer, ApprovalKind, ApprovalRequest, ApprovalScope, NeededPerson};
pub use context::{MAX_RESULT_CHARACTERS, MAX_RESULT_UNDER_PRESSURE, newest_turns};
pub use control::HookControl;
pub use effect::{CostBound, Effect, ThreadOutcome};
pub use event::{BudgetRefusal, BudgetResource, InterruptedTokens, ThreadEvent, ToolResult};
pub use fork::{ForkError, ForkPoint, fork_point};
pub use limit_reached::is_stopped_by_duration;

use crate::core_event::{CoreEvent, Nullable};
use crate::cost::Cost;
use crate::limits::ThreadLimits;
use crate::money::Nanos;
use crate::spec::ThreadSpec;
use crate::status::ThreadStatus;
use call_hooks::CallHookRun;
use hooks::HookRun;
use tools::ToolRun;

/// Where a thread stands, with everything it needs to continue.
#[derive(Clone, Debug)]
pub struct ThreadState {
    /// What it is.
    pub spec: Arc<ThreadSpec>,
    /// How much it may use.
    pub limits: ThreadLimits,
    /// What it has used itself.
    pub cost: Cost,
    /// What was said.
    pub messages: Vec<Arc<ChatMessage>>,
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
    truncations: u32,
    /// Pieces of an answer that was cut off.
    partial_text: String,
    context: context::ContextUsage,
    /// What is known of the model's tokenizer.
    calibration: budget::TokenCalibration,
    /// The call that is on its way, or waits for budget.
    planned: budget::PlannedModelCall,
    /// Questions to people so far.
    approval_count: u64,
    /// What people allowed for later calls.
    approval_grants: Vec<approval::ApprovalGrant>,
    /// Because of whom it ended.
    ended_by: Option<NeededPerson>,
    /// What hooks want the model to read before it is asked again.
    hook_notes: Vec<String>,
    /// Whether the hooks before the next model call have run.
    is_call_cleared: bool,
    /// When the last event came.
    last_ms: u64,
    /// Which of the tier's models is asked: 0 is the first.
    model_index: usize,
}

/// What it waits for.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// To begin.
    New,
    /// A hook.
    Hooks(Box<HookRun>),
    /// A hook around a call.
    CallHooks(Box<CallHookRun>),
    /// The model.
    CallingModel,
    /// Money that is reserved for other calls of the tree, since this time.
    BudgetWait { since_ms: u64 },
    /// The time between two attempts.
    Sleeping,
    /// Tools.
    Tools(ToolRun),
    /// A resume request.
    Suspended(Box<approval::Suspension>),
    /// Nothing: it has ended.
    Ended(Box<ThreadOutcome>),
}

impl ThreadState {
    /// A thread that has not begun.
    #[must_use]
    pub fn new(spec: Arc<ThreadSpec>) -> Self {
        Self {
            limits: spec.instance.limits,
            system: spec.template.system.clone(),
            spec,
            cost: Cost::default(),
            messages: Vec::new(),
            calls: 0,
            phase: Phase::New,
            failures: 0,
            reminders: 0,
            truncations: 0,
            partial_text: String::new(),
            context: context::ContextUsage::default(),
            calibration: budget::TokenCalibration::default(),
            planned: budget::PlannedModelCall::default(),
            approval_count: 0,
            approval_grants: Vec::new(),
            ended_by: None,
            hook_notes: Vec::new(),
            is_call_cleared: false,
            last_ms: 0,
            model_index: 0,
        }
    }

    /// Where it stands.
    #[must_use]
    pub fn status(&self) -> ThreadStatus {
        match &self.phase {
            Phase::New => ThreadStatus::Created,
            Phase::Hooks(_)
            | Phase::CallHooks(_)
            | Phase::CallingModel
            | Phase::BudgetWait { .. }
            | Phase::Sleeping
            | Phase::Tools(_) => ThreadStatus::Running,
            Phase::Suspended(_) => ThreadStatus::Suspended,
            Phase::Ended(outcome) => outcome.status,
        }
    }

    /// How it ended or why it stopped, once it has.
    #[must_use]
    pub fn outcome(&self) -> Option<&ThreadOutcome> {
        match &self.phase {
            Phase::Suspended(suspension) => Some(&suspension.outcome),
            Phase::Ended(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// What it waits for, in a word: for `state.json` and for people.
    #[must_use]
    pub fn waits_for(&self) -> &'static str {
        match &self.phase {
            Phase::New => "start",
            Phase::Hooks(_) | Phase::CallHooks(_) => "hook",
            Phase::CallingModel => "model",
            Phase::BudgetWait { .. } => "budget",
            Phase::Sleeping => "retry",
            Phase::Tools(_) => "tools",
            Phase::Suspended(_) => "person",
            Phase::Ended(_) => "nothing",
        }
    }

    /// Whether a model call was set out on and has not come back.
    #[must_use]
    pub fn is_calling_model(&self) -> bool {
        self.phase == Phase::CallingModel
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

    /// When the last event came, in milliseconds since 1970.
    #[must_use]
    pub fn last_event_ms(&self) -> u64 {
        self.last_ms
    }

    /// An event that a hook wants written.
    fn emit(event_type: &str, payload: Value) -> Effect {
        Effect::Emit { event_type: event_type.to_owned(), payload }
    }

    /// An event of the thread itself.
    fn record(event: CoreEvent) -> Effect {
        let (event_type, payload) = event.into_payload();
        Self::emit(event_type, payload)
    }
}

/// Takes an event in: changes the state, and says what is to be done now. An event that does not fit the state changes
/// nothing; after the end nothing does.
pub fn step(state: &mut ThreadState, at_ms: u64, event: ThreadEvent) -> Vec<Effect> {
    if matches!(state.phase, Phase::Ended(_)) {
        return Vec::new();
    }
    let (passed, last_ms) = match &event {
        ThreadEvent::ClockChanged { elapsed_ms } => (*elapsed_ms, at_ms),
        _ => (at_ms.saturating_sub(state.last_ms), state.last_ms.max(at_ms)),
    };
    if state.status() == ThreadStatus::Running && !state.is_waiting_for_budget() {
        state.cost.elapsed_ms = state.cost.elapsed_ms.saturating_add(passed);
    }
    state.last_ms = last_ms;
    match event {
        ThreadEvent::ClockChanged { .. } => Vec::new(),
        ThreadEvent::Started => state.start(),
        ThreadEvent::Redacted { count, names } => {
            vec![ThreadState::record(CoreEvent::ContentRedacted { count, names })]
        }
        ThreadEvent::HookDone { result } => state.on_hook_done(&result),
        ThreadEvent::ModelResponded { response, spend } => state.on_response(response, spend),
        ThreadEvent::ModelFailed { error: failure, spend, is_unknown, jitter } => {
            state.on_failure(&failure, spend, is_unknown, jitter)
        }
        ThreadEvent::BudgetRefused(refusal) => state.on_budget_refused(&refusal),
        ThreadEvent::BudgetGranted => state.on_budget_granted(),
        ThreadEvent::BudgetWaitExpired(refusal) => state.on_budget_wait_expired(&refusal),
        ThreadEvent::BackoffElapsed => state.on_backoff_elapsed(),
        ThreadEvent::ToolDone { index, result } => state.on_tool_done(index, result),
        ThreadEvent::CallbackRequested { index, request, action, original, denied } => {
            state.on_callback_requested(index, request, &action, original, denied)
        }
        ThreadEvent::CallbackCompleted { index, request, is_error, duration_ms, child, child_status } => {
            let child = child.map(|child| (child, child_status));
            state.on_callback_completed(index, request, is_error, duration_ms, child)
        }
        ThreadEvent::ChildStarted { index, child, directive } => {
            state.on_child_started(index, &child, &directive)
        }
        ThreadEvent::Interrupted { spend, spend_at_most, tokens, repeatable } => {
            state.count_interrupted(tokens);
            state.on_interrupted(spend, spend_at_most, &repeatable)
        }
        ThreadEvent::CancelRequested { reason, spend, partial } => {
            state.count_stopped_call(spend, partial.as_deref());
            state.on_cancel_requested(&reason, spend, partial.as_deref())
        }
        ThreadEvent::Terminated { status, reason, spend, tokens } => {
            state.count_interrupted(tokens);
            state.on_terminated(status, &reason, spend)
        }
        ThreadEvent::Expired { spend, partial } => {
            state.count_stopped_call(spend, partial.as_deref());
            state.on_expired(spend, partial.as_deref())
        }
        ThreadEvent::Resumed { limits, message, by, answers } => {
            state.on_resumed(limits, message, &by, &answers)
        }
    }
}

impl ThreadState {
    fn start(&mut self) -> Vec<Effect> {
        if self.phase != Phase::New {
            return Vec::new();
        }
        let shared = &self.spec.template;
        let mut effects = vec![Self::record(CoreEvent::ThreadStarted {
            directive: shared.directive.clone(),
            model: shared.model.clone(),
            provider: shared.provider.clone(),
            limits: self.limits,
            parent_thread_id: Nullable(self.spec.instance.parent.clone()),
            directive_hash: shared.directive_hash.clone(),
            candidates: Some(shared.candidates.clone()).filter(|candidates| !candidates.is_empty()),
            settings: Some(shared.settings.to_map()).filter(|settings| !settings.is_empty()),
        })];
        if let Some(previous) = &self.spec.instance.continuation_of {
            effects.push(Self::record(CoreEvent::ThreadContinued {
                directive: shared.directive.clone(),
                model: shared.model.clone(),
                previous_thread_id: previous.clone(),
            }));
        }
        if let Some(source) = &self.spec.instance.forked_from {
            effects.push(Self::record(CoreEvent::ThreadForked {
                directive: shared.directive.clone(),
                model: shared.model.clone(),
                source_thread_id: source.thread_id.clone(),
                source_turn: source.turn,
                source_journal: source.journal.clone(),
            }));
        }
        if let Some(removed) = &self.spec.instance.removed_secrets {
            effects.push(Self::record(CoreEvent::ContentRedacted {
                count: removed.count,
                names: removed.names.clone(),
            }));
        }
        let skipped = &shared.definitions.skipped;
        if shared.revision >= 1 && !skipped.is_empty() {
            effects.push(Self::record(CoreEvent::ToolsLeftOut { tools: skipped.clone() }));
        }
        let context = self.start_context();
        effects.extend(self.run_hooks("build_system_prompt", context, hooks::HookContinuation::SystemPrompt));
        effects
    }

    /// The system prompt is there: what hooks said, then what the directive asks for. The first message is next.
    fn system_prompt(&mut self, texts: Vec<String>) -> Vec<Effect> {
        let all: Vec<String> = texts.into_iter().chain(self.system.take()).collect();
        self.system = (!all.is_empty()).then(|| all.join("\n\n"));
        let mut effects = Vec::new();
        if let Some(system) = &self.system {
            effects.push(Self::record(CoreEvent::SystemPrompt { text: system.clone() }));
        }
        let event = if self.spec.instance.previous_thread().is_some() {
            "thread_continued"
        } else {
            "thread_started"
        };
        let context = self.start_context();
        effects.extend(self.run_hooks(event, context, hooks::HookContinuation::FirstMessage));
        effects
    }

    /// What hooks see of a thread that begins.
    fn start_context(&self) -> Value {
        let (own, shared) = (&self.spec.instance, &self.spec.template);
        json!({
            "directive": shared.directive,
            "directive_body": own.prompt,
            "model": shared.model,
            "limits": self.limits.to_value(),
            "inputs": own.inputs,
            "has_outputs": !shared.outputs.is_empty(),
            "thread_id": own.thread_id,
            "parent_thread_id": own.parent,
            "previous_thread_id": own.previous_thread(),
            "capabilities_summary": own.capabilities.iter().collect::<Vec<_>>().join(", "),
        })
    }

    /// The process died: what was outstanding is unknown, unless it can simply be done again.
    fn on_interrupted(&mut self, spend: Nanos, spend_at_most: Nanos, repeatable: &[usize]) -> Vec<Effect> {
        self.cost.spend = self.cost.spend.plus(spend);
        let is_charged = self.spec.template.revision >= 5 && spend_at_most > Nanos(0);
        let mut effects = Vec::new();
        if self.spec.template.revision >= 1 && self.status() == ThreadStatus::Running {
            effects.push(Self::record(CoreEvent::ThreadResumed {
                directive: self.spec.template.directive.clone(),
                limits: self.limits,
                by: None,
                was: Nullable(Some("interrupted".to_owned())),
                turn: Some(self.cost.turns),
                spend: is_charged.then(|| spend.dollars()),
                spend_at_most: is_charged.then(|| spend_at_most.dollars()),
            }));
        }
        effects.extend(match &self.phase {
            Phase::New => self.start(),
            Phase::Hooks(_) => self.repeat_hook(),
            Phase::CallHooks(_) => self.repeat_call_hook(),
            Phase::CallingModel | Phase::BudgetWait { .. } | Phase::Sleeping => self.before_turn(),
            Phase::Tools(_) => self.interrupted_tools(repeatable),
            Phase::Suspended(_) | Phase::Ended(_) => Vec::new(),
        });
        effects
    }

    /// A message to the model.
    fn push_user_message(&mut self, text: String) {
        self.messages.push(Arc::new(ChatMessage::user(text)));
    }
}
