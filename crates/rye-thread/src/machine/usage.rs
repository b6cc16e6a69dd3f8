//! What an answer is counted as: what the provider says, unless it says nothing or more than can be.
//!
//! A provider's figures have limits: they are charged to the thread, to every ancestor and to the budgets of
//! the user, which other projects share. No prompt has more tokens than bytes were sent, and no answer more than was asked
//! for and reserved. What a provider said beyond that is recorded beside what is counted.

use super::effect::Effect;
use super::event::InterruptedTokens;
use super::{Phase, ThreadState};
use crate::core_event::CoreEvent;
use crate::model::text_tokens::TokenProfile;
use crate::model::{ModelResponse, Usage, UsageSource, estimate};
use crate::money::Nanos;

/// What a provider may put before a prompt without our sending it.
const MAX_ADDED_PROMPT_TOKENS: u64 = 16_384;

impl ThreadState {
    /// What an answer is counted as.
    #[must_use]
    pub fn counted_usage(&self, response: &ModelResponse) -> Usage {
        if response.usage.is_reported() {
            return self.possible_usage(response);
        }
        if self.active_model().is_free() {
            return response.usage;
        }
        Usage { source: UsageSource::Estimate, ..self.usage_so_far(Some(response)) }
    }

    /// What the provider says was used, or the most that is possible.
    #[must_use]
    pub fn possible_usage(&self, response: &ModelResponse) -> Usage {
        let said = response.usage;
        let said_input =
            said.input_tokens.max(said.cached_input_tokens.saturating_add(said.cache_write_tokens));
        let max_input =
            estimate::max_input_tokens(&self.full_request()).saturating_add(MAX_ADDED_PROMPT_TOKENS);
        // Some providers count reasoning that they do not show beside the limit that was asked for.
        let hidden = said.reasoning_tokens.min(self.planned.max_output);
        let max_output = self.planned.max_output.saturating_add(hidden);
        if !said.source.is_provider() || said_input <= max_input && said.output_tokens <= max_output {
            return said;
        }
        let input_tokens = said_input.min(max_input);
        let output_tokens = said.output_tokens.min(max_output);
        let is_input_possible = said_input <= max_input;
        Usage {
            input_tokens,
            // What was cached is not known any more: all of it is counted as what was sent.
            cached_input_tokens: if is_input_possible { said.cached_input_tokens } else { 0 },
            cache_write_tokens: said.cache_write_tokens.min(input_tokens),
            output_tokens,
            reasoning_tokens: said.reasoning_tokens.min(output_tokens),
            source: UsageSource::Bound { input_tokens: said_input, output_tokens: said.output_tokens },
        }
    }

    /// What the conversation has come to with an answer: not the most that is possible, where the provider reports more.
    pub(super) fn usage_in_context(&self, response: &ModelResponse) -> Usage {
        match response.usage.source {
            UsageSource::Provider | UsageSource::Estimate => response.usage,
            UsageSource::Bound { .. } => {
                self.usage_so_far(Some(&ModelResponse { usage: Usage::default(), ..response.clone() }))
            }
        }
    }

    /// The record of figures that cannot be.
    pub(super) fn impossible_usage(&self, usage: &Usage, spend: Nanos) -> Option<Effect> {
        let UsageSource::Bound { input_tokens, output_tokens } = usage.source else { return None };
        let active = self.active_model();
        let said = Usage { input_tokens, output_tokens, ..Usage::default() };
        Some(Self::record(CoreEvent::ImpossibleUsage {
            provider: active.provider.to_owned(),
            model: active.model.to_owned(),
            reported_input_tokens: input_tokens,
            reported_output_tokens: output_tokens,
            reported_spend: active.price.map(|price| Nanos(price.cost(&said)).dollars()),
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            spend: spend.dollars(),
        }))
    }

    /// What a call that was broken off has used: the provider's count of its prompt or the estimate, and what arrived.
    #[must_use]
    pub fn usage_so_far(&self, arrived: Option<&ModelResponse>) -> Usage {
        let Some(response) = arrived else { return self.usage_with_output("") };
        let calls = response.calls.iter().map(|call| {
            let input = serde_json::to_string(&call.input).unwrap_or_default();
            format!("{} {input}", call.name)
        });
        let texts = [response.text.clone(), response.reasoning.clone()];
        let output: Vec<String> = texts.into_iter().chain(calls).collect();
        let estimated = self.usage_with_output(&output.join("\n"));
        let reported = &response.usage;
        Usage {
            input_tokens: if reported.input_tokens > 0 {
                reported.input_tokens
            } else {
                estimated.input_tokens
            },
            output_tokens: reported.output_tokens.max(estimated.output_tokens),
            ..*reported
        }
    }

    /// Counts the tokens of calls that were broken off, as threads do from revision 5 on.
    pub(super) fn count_interrupted(&mut self, tokens: InterruptedTokens) {
        if self.spec.template.revision >= 5 {
            self.cost.input_tokens = self.cost.input_tokens.saturating_add(tokens.input);
            self.cost.output_tokens = self.cost.output_tokens.saturating_add(tokens.output);
        }
    }

    /// The same for a call that was charged when it was stopped, and had come this far.
    pub(super) fn count_stopped_call(&mut self, spend: Nanos, arrived: Option<&str>) {
        if self.phase == Phase::CallingModel && spend > Nanos(0) {
            let usage = self.charged_usage(arrived.unwrap_or_default());
            self.count_interrupted(InterruptedTokens {
                input: usage.input_tokens,
                output: usage.output_tokens,
            });
        }
    }

    /// What a call that was broken off is charged as: its prompt and what arrived of its answer, at most as many tokens
    /// as were asked for.
    #[must_use]
    pub fn charged_usage(&self, arrived: &str) -> Usage {
        self.bounded_usage(self.usage_with_output(arrived))
    }

    /// The same of an answer in parts.
    #[must_use]
    pub fn charged_usage_so_far(&self, arrived: Option<&ModelResponse>) -> Usage {
        self.bounded_usage(self.usage_so_far(arrived))
    }

    fn bounded_usage(&self, usage: Usage) -> Usage {
        Usage { output_tokens: usage.output_tokens.min(self.planned.max_output), ..usage }
    }

    /// The same where only text arrived.
    #[must_use]
    pub fn usage_with_output(&self, text: &str) -> Usage {
        let profile = TokenProfile::for_model(self.active_model().model);
        Usage {
            input_tokens: self.estimated_input(&self.full_request()),
            output_tokens: profile.milli_tokens(text).div_ceil(1000),
            ..Usage::default()
        }
    }
}
