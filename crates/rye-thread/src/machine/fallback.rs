//! Another model when one fails for good: the next of the tier's list, with its own price and context window.

use std::sync::Arc;

use super::ThreadState;
use super::effect::Effect;
use crate::core_event::CoreEvent;
use crate::cost::Attribution;
use crate::model::ChatMessage;
use crate::spec::ActiveModel;

impl ThreadState {
    /// The model that is asked.
    #[must_use]
    pub fn active_model(&self) -> ActiveModel<'_> {
        self.spec.template.model_at(self.model_index)
    }

    /// Which of the tier's models is asked: 0 is the first.
    #[must_use]
    pub fn model_index(&self) -> usize {
        self.model_index
    }

    /// What the next call is booked under.
    #[must_use]
    pub fn attribution(&self) -> Attribution {
        Attribution { model: self.active_model().model.to_owned(), ..self.spec.attribution() }
    }

    /// Goes over to the next model of the list and asks it, if there is one.
    pub(super) fn fall_back(&mut self, error: &str) -> Option<Vec<Effect>> {
        if self.spec.template.revision < 2 || self.model_index >= self.spec.template.fallbacks.len() {
            return None;
        }
        let spec = Arc::clone(&self.spec);
        let (failed, next) =
            (spec.template.model_at(self.model_index), spec.template.model_at(self.model_index + 1));
        self.model_index += 1;
        self.failures = 0;
        self.drop_provider_blocks();
        let mut effects = vec![Self::record(CoreEvent::ProviderFallback {
            failed_provider: failed.provider.to_owned(),
            failed_model: failed.model.to_owned(),
            provider: next.provider.to_owned(),
            model: next.model.to_owned(),
            error: error.to_owned(),
        })];
        effects.extend(self.before_turn());
        Some(effects)
    }

    /// What a provider wants back as it was means nothing to another one.
    fn drop_provider_blocks(&mut self) {
        for message in &mut self.messages {
            let has_blocks =
                matches!(&**message, ChatMessage::Assistant { replay, .. } if !replay.is_empty());
            if has_blocks && let ChatMessage::Assistant { replay, .. } = Arc::make_mut(message) {
                replay.clear();
            }
        }
    }
}
