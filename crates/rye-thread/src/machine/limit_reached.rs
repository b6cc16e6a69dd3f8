//! What a thread does at a limit, without budget, or when its time is over.

use serde_json::{Value, json};

use super::approval::ResumeAt;
use super::control::HookControl;
use super::effect::{Effect, ThreadOutcome};
use super::event::{BudgetRefusal, BudgetResource};
use super::hooks::{HookContinuation, cost_context};
use super::tools::error_text;
use super::{Phase, ThreadState};
use crate::core_event::CoreEvent;
use crate::limits::LimitReached;
use crate::money::Nanos;
use crate::status::SuspendReason;

/// What is recorded as the result of a call that the end of the thread's time stopped.
const STOPPED_BY_DURATION: &str = "stopped: the thread's time is over";

/// Whether a call's result says that the end of the thread's time stopped it.
#[must_use]
pub fn is_stopped_by_duration(content: &str) -> bool {
    // Notes of hooks may follow.
    content.starts_with(&error_text(STOPPED_BY_DURATION))
}

impl ThreadState {
    /// A budget could not cover the next call.
    pub(super) fn on_budget_refused(&mut self, refusal: &BudgetRefusal) -> Vec<Effect> {
        let is_due = matches!(self.phase, Phase::CallingModel | Phase::BudgetWait { .. });
        if !is_due {
            return Vec::new();
        }
        if let Some(effects) = self.plan_within(refusal) {
            return effects;
        }
        self.budget_exhausted(refusal)
    }

    /// No smaller call fits either, or waiting took too long.
    pub(super) fn budget_exhausted(&mut self, refusal: &BudgetRefusal) -> Vec<Effect> {
        let is_own = refusal.refused_by == self.spec.instance.thread_id;
        let amount_value = |amount| refusal.amount_value(amount);
        let name = match (&refusal.rolling, is_own, refusal.resource) {
            (Some(_), _, _) => "rolling_budget",
            (None, true, BudgetResource::Spend) => "spend",
            (None, true, BudgetResource::Tokens) => "tokens",
            (None, false, _) => "hierarchical_budget",
        };
        let used = refusal.used.saturating_add(refusal.reserved);
        // What others below it used counts as well, and with more room the call may ask for more.
        let full = self.full_cost_bound();
        let requested = refusal.requested.max(match refusal.resource {
            BudgetResource::Spend => full.spend.0,
            BudgetResource::Tokens => full.tokens,
        });
        let reached = LimitReached::new(name, amount_value(used), amount_value(refusal.limit))
            .with_needed(amount_value(requested));
        let reached = refusal.rolling.iter().fold(reached, LimitReached::of_rolling);
        let mut effects = vec![Self::record(CoreEvent::BudgetExhausted {
            thread_id: refusal.refused_by.clone(),
            what: refusal.resource,
            most: amount_value(refusal.limit),
            used: amount_value(refusal.used),
            reserved: amount_value(refusal.reserved),
            asked: amount_value(refusal.requested),
            budget: reached.budget.clone(),
            frees_at: reached.frees_at.clone(),
        })];
        // What a day or a month allows is not the thread's own limit: raising that would not help.
        let is_limit = is_own && refusal.rolling.is_none();
        let reason = if is_limit { SuspendReason::Limit } else { SuspendReason::Budget };
        effects.extend(self.on_limit(reached, reason));
        effects
    }

    /// A limit is reached: hooks may end the thread; nothing lets it continue but a person.
    pub(super) fn on_limit(&mut self, reached: LimitReached, reason: SuspendReason) -> Vec<Effect> {
        let mut context = cost_context(self);
        context.insert("limit_code".to_owned(), json!(reached.limit_code));
        context.insert("current_value".to_owned(), reached.current_value.clone());
        context.insert("current_max".to_owned(), reached.current_max.clone());
        let on_exceed = self.spec.template.config.resilience.on_exceed;
        context.insert("on_exceed".to_owned(), json!(on_exceed.as_str()));
        self.run_hooks("limit", Value::Object(context), HookContinuation::Limit(Box::new(reached), reason))
    }

    pub(super) fn after_limit_hooks(
        &mut self,
        reached: &LimitReached,
        reason: SuspendReason,
        control: Option<HookControl>,
    ) -> Vec<Effect> {
        use crate::config::OnExceed;
        let message = reached.message();
        let on_exceed = self.spec.template.config.resilience.on_exceed;
        let mut prompt = None;
        let on_exceed = match control {
            Some(HookControl::Fail(error) | HookControl::Block(error)) => {
                return self.finish(ThreadOutcome::failed(if error.is_empty() { message } else { error }));
            }
            Some(HookControl::Abort(error)) => return self.finish(ThreadOutcome::cancelled(error)),
            Some(HookControl::Suspend { reason, prompt: asked, .. })
                if self.asks_person(&reason, asked.as_deref()) =>
            {
                prompt = asked;
                OnExceed::Escalate
            }
            Some(HookControl::Suspend { .. }) => OnExceed::Suspend,
            Some(HookControl::Escalate(_)) => OnExceed::Escalate,
            // Nothing may go past a limit: asking to continue means what the configuration says.
            Some(HookControl::Retry) | None => on_exceed,
        };
        if on_exceed == OnExceed::Fail {
            return self.finish(ThreadOutcome::failed(message));
        }
        let detail = serde_json::to_value(reached).unwrap_or_default();
        let mut effects = vec![Self::record(CoreEvent::LimitEscalationRequested {
            limit_code: reached.limit_code.clone(),
            current_value: reached.current_value.clone(),
            current_max: reached.current_max.clone(),
            needed: reached.needed.clone(),
        })];
        // An ancestor's money is not this thread's to ask for: there is no answer that would let it continue.
        let needs_approval = on_exceed == OnExceed::Escalate && reason == SuspendReason::Limit;
        let mut question = needs_approval.then(|| self.limit_approval(reached, &message));
        if let (Some(question), Some(prompt)) = (&mut question, prompt) {
            question.prompt = format!("{prompt} ({})", question.prompt);
        }
        let outcome = ThreadOutcome::suspended(reason, message, detail);
        effects.extend(self.suspend_with(outcome, ResumeAt::Turn, question.into_iter().collect()));
        effects
    }

    /// The thread's time is over while something was outstanding.
    pub(super) fn on_expired(&mut self, spend: Nanos, partial: Option<&str>) -> Vec<Effect> {
        self.cost.spend = self.cost.spend.plus(spend);
        let max_seconds = self.limits.duration_seconds.unwrap_or(0);
        let stopped = self.expired_calls();
        let mut effects = match &mut self.phase {
            Phase::Tools(_) | Phase::CallHooks(_) => self.stop_tools(STOPPED_BY_DURATION),
            Phase::CallingModel => self.emit_interrupted_output(partial, spend, STOPPED_BY_DURATION),
            Phase::Sleeping | Phase::BudgetWait { .. } | Phase::Hooks(_) => Vec::new(),
            Phase::New | Phase::Suspended(_) | Phase::Ended(_) => return Vec::new(),
        };
        let reached =
            LimitReached::new("duration_seconds", json!(self.cost.elapsed_ms / 1000), json!(max_seconds))
                .with_stopped(stopped);
        effects.extend(self.on_limit(reached, SuspendReason::Limit));
        effects
    }

    /// The tools of the calls that the end of the thread's time stops, as threads record them from revision 6 on.
    fn expired_calls(&self) -> Vec<String> {
        if self.spec.template.revision < 6 {
            return Vec::new();
        }
        self.running_tools().into_iter().map(|(_, tool)| tool.to_owned()).collect()
    }
}
