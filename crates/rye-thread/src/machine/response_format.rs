//! The format of a thread's last answer, where its directive asks for one: an answer that does not have it is asked for
//! again, and fails the thread in the end. Providers differ in how strictly they keep to a schema.

use super::ThreadState;
use super::effect::{Effect, ThreadOutcome};
use super::turn::MAX_REMINDERS;

impl ThreadState {
    /// What happens instead of ending, if the answer does not have its format.
    pub(super) fn reject_format(&mut self) -> Option<Vec<Effect>> {
        // A script asks no model, and has no format of its own.
        if self.active_model().is_free() || !self.spec.template.outputs.is_empty() {
            return None;
        }
        let problem = self.spec.template.settings.format_problem(&self.partial_text)?;
        let text = std::mem::take(&mut self.partial_text);
        if self.reminders < MAX_REMINDERS {
            return Some(self.remind(&format!(
                "Your answer does not have the format that was asked for: {problem}. Answer again, with nothing but JSON that fits the schema."
            )));
        }
        let message = format!("the answer does not have the directive's response_format: {problem}");
        Some(self.finish(ThreadOutcome { result: Some(text), ..ThreadOutcome::failed(message) }))
    }

    /// What allows longer answers.
    pub(super) fn output_limit_hint(&self) -> &'static str {
        if self.spec.template.settings.max_output_tokens.is_some() {
            "`max_output_tokens` of the directive's <model> allows more"
        } else {
            "`max_output_tokens` in agent/agent.yaml allows more"
        }
    }
}
