//! How a thread stops: it ends, or is suspended until it is resumed.

use serde_json::{Value, json};

use super::SaveTrigger;
use super::approval::ResumeAt;
use super::effect::{Effect, ThreadOutcome};
use super::hooks::{HookContinuation, cost_context};
use super::{Phase, ThreadState};
use crate::core_event::{Always, CoreEvent};
use crate::money::Nanos;
use crate::status::ThreadStatus;

impl ThreadState {
    /// The thread is about to end: the last hooks, then the end.
    pub(super) fn finish(&mut self, outcome: ThreadOutcome) -> Vec<Effect> {
        let mut context = cost_context(self);
        context.insert("status".to_owned(), json!(outcome.status));
        self.run_hooks("after_complete", Value::Object(context), HookContinuation::End(Box::new(outcome)))
    }

    /// The end. Nothing comes after it.
    pub(super) fn end(&mut self, outcome: ThreadOutcome) -> Vec<Effect> {
        let (cost, error, outputs) = (self.cost, outcome.error.clone(), outcome.outputs.clone());
        let elapsed_ms = self.recorded_elapsed();
        let event = match outcome.status {
            ThreadStatus::Completed => CoreEvent::ThreadCompleted { cost, elapsed_ms, error, outputs },
            ThreadStatus::Cancelled => {
                CoreEvent::ThreadCancelled { cost, elapsed_ms, reason: error, outputs }
            }
            ThreadStatus::Killed => CoreEvent::ThreadKilled { cost, elapsed_ms, reason: error, outputs },
            // `thread_continued` is what the other thread says.
            ThreadStatus::Continued => {
                let new_thread_id = Always(outcome.detail.get("new_thread_id").cloned());
                CoreEvent::ThreadHandoff { cost, elapsed_ms, error, new_thread_id, outputs }
            }
            ThreadStatus::Error | ThreadStatus::Created | ThreadStatus::Running | ThreadStatus::Suspended => {
                CoreEvent::ThreadError { cost, elapsed_ms, error: Always(error), outputs }
            }
        };
        self.phase = Phase::Ended(Box::new(outcome.clone()));
        vec![Self::record(event), Effect::SaveState(SaveTrigger::Always), Effect::End(outcome)]
    }

    /// How long it worked, where that is recorded.
    pub(super) fn recorded_elapsed(&self) -> Option<u64> {
        (self.spec.template.revision >= 2).then_some(self.cost.elapsed_ms)
    }

    /// The thread stops, with everything kept; it continues with the next turn.
    pub(super) fn suspend(&mut self, outcome: ThreadOutcome) -> Vec<Effect> {
        self.suspend_with(outcome, ResumeAt::Turn, Vec::new())
    }

    /// It is cancelled; everything in flight has been stopped.
    pub(super) fn on_cancel_requested(
        &mut self,
        reason: &str,
        spend: Nanos,
        partial: Option<&str>,
    ) -> Vec<Effect> {
        self.cost.spend = self.cost.spend.plus(spend);
        // While it ends already, it ends as it was going to.
        if let Phase::Hooks(run) = &self.phase
            && run.is_ending()
        {
            return self.repeat_hook();
        }
        self.give_up_questions(reason);
        let mut effects = self.emit_interrupted_output(partial, spend, reason);
        effects.extend(self.stop_tools("cancelled"));
        effects.extend(self.finish(ThreadOutcome::cancelled(reason)));
        effects
    }

    /// It is ended from outside, without another step of its own.
    pub(super) fn on_terminated(&mut self, status: ThreadStatus, reason: &str, spend: Nanos) -> Vec<Effect> {
        if !matches!(status, ThreadStatus::Cancelled | ThreadStatus::Killed | ThreadStatus::Continued) {
            return Vec::new();
        }
        self.cost.spend = self.cost.spend.plus(spend);
        // Who continues from it has asked.
        if status != ThreadStatus::Continued {
            self.give_up_questions(reason);
        }
        let mut effects = self.stop_tools(status.as_str());
        let outcome = match status {
            ThreadStatus::Continued => {
                let detail = json!({"new_thread_id": reason});
                ThreadOutcome { status, detail, ..ThreadOutcome::completed(None, None) }
            }
            _ => ThreadOutcome { status, ..ThreadOutcome::cancelled(reason) },
        };
        effects.extend(self.end(outcome));
        effects
    }

    /// What had arrived of an answer that was stopped, if that is to be written.
    pub(super) fn emit_interrupted_output(
        &self,
        partial: Option<&str>,
        spend: Nanos,
        reason: &str,
    ) -> Vec<Effect> {
        let is_written = self.spec.template.config.events.emits_on_error("cognition_out");
        let event = |text: &str| self.partial_output(text, reason, spend, true);
        partial.filter(|text| is_written && !text.is_empty()).map(event).into_iter().collect()
    }

    /// What arrived of an answer that broke off.
    pub(super) fn partial_output(&self, text: &str, error: &str, spend: Nanos, is_unknown: bool) -> Effect {
        Self::record(CoreEvent::CognitionOut {
            text: text.to_owned(),
            model: self.active_model().model.to_owned(),
            is_partial: true,
            truncated: true,
            error: Some(error.to_owned()),
            finish: None,
            input_tokens: None,
            output_tokens: None,
            spend: spend.dollars(),
            spend_is_unknown: Some(is_unknown),
            tokens_are_estimated: None,
            estimated: None,
            actual: None,
            spend_at_most: self.spend_at_most(is_unknown),
        })
    }
}
