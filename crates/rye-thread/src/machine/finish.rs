//! How a thread stops: for good, or until somebody lets it go on.

use serde_json::{Value, json};

use super::Trigger;
use super::approval::ResumeAt;
use super::effect::{Effect, ThreadOutcome};
use super::hooks::{HookContinuation, cost_context};
use super::{Phase, ThreadState};
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
        let mut payload = json!({"cost": self.cost.to_value()});
        if let Value::Object(map) = &mut payload {
            if let Some(error) = &outcome.error {
                let key = if outcome.status == ThreadStatus::Cancelled { "reason" } else { "error" };
                map.insert(key.to_owned(), json!(error));
            }
            if let Some(outputs) = &outcome.outputs {
                map.insert("outputs".to_owned(), json!(outputs));
            }
        }
        self.phase = Phase::Ended(Box::new(outcome.clone()));
        vec![
            Self::emit(&format!("thread_{}", outcome.status), payload),
            Effect::SaveState(Trigger::Always),
            Effect::End(outcome),
        ]
    }

    /// The thread stops, with everything kept; it goes on with the next turn.
    pub(super) fn suspend(&mut self, outcome: ThreadOutcome) -> Vec<Effect> {
        self.suspend_with(outcome, ResumeAt::Turn, Vec::new())
    }

    /// Somebody wants it to end; whatever was outstanding has been stopped.
    pub(super) fn on_cancel_requested(&mut self, reason: &str, spend: Nanos) -> Vec<Effect> {
        self.cost.spend = self.cost.spend.plus(spend);
        // While it ends already, it ends as it was going to.
        if let Phase::Hooks(run) = &self.phase
            && run.is_ending()
        {
            return self.repeat_hook();
        }
        let mut effects = self.stop_tools("cancelled");
        effects.extend(self.finish(ThreadOutcome::cancelled(reason)));
        effects
    }
}
