//! What an answer costs, in nano-dollars: whole numbers only.

use serde::{Deserialize, Serialize};

use super::Usage;

/// Nano-dollars per token: US dollars per million tokens, times a thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenPrice {
    /// A token of the request.
    pub input: u64,
    /// A token of the request that was read from the provider's cache.
    pub cached_input: u64,
    /// A token of the request that was written to the provider's cache.
    pub cache_write: u64,
    /// A token of the answer.
    pub output: u64,
}

impl TokenPrice {
    /// What `usage` costs. A server that says more was cached than was sent changes nothing: the rest costs nothing.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> u64 {
        let plain = usage
            .input_tokens
            .saturating_sub(usage.cached_input_tokens)
            .saturating_sub(usage.cache_write_tokens);
        let parts = [
            (plain, self.input),
            (usage.cached_input_tokens, self.cached_input),
            (usage.cache_write_tokens, self.cache_write),
            (usage.output_tokens, self.output),
        ];
        parts
            .into_iter()
            .fold(0, |sum: u64, (tokens, price)| sum.saturating_add(tokens.saturating_mul(price)))
    }

    /// The most a request of `input_tokens` with an answer of `max_output` can cost.
    #[must_use]
    pub fn max_cost(&self, input_tokens: u64, max_output: u64) -> u64 {
        let input = self.input.max(self.cached_input).max(self.cache_write);
        input_tokens.saturating_mul(input).saturating_add(max_output.saturating_mul(self.output))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PRICE: TokenPrice =
        TokenPrice { input: 3000, cached_input: 300, cache_write: 3750, output: 15_000 };

    #[test]
    fn each_token_type_has_its_price() {
        let usage = Usage {
            input_tokens: 100,
            cached_input_tokens: 50,
            cache_write_tokens: 20,
            output_tokens: 10,
            reasoning_tokens: 9,
            ..Usage::default()
        };
        assert_eq!(PRICE.cost(&usage), 30 * 3000 + 50 * 300 + 20 * 3750 + 10 * 15_000);
        assert_eq!(PRICE.cost(&Usage::default()), 0);
        assert_eq!(PRICE.max_cost(100, 10), 100 * 3750 + 10 * 15_000);
    }

    #[test]
    fn cost_saturates() {
        let usage = Usage { input_tokens: u64::MAX, output_tokens: u64::MAX, ..Usage::default() };
        assert_eq!(PRICE.cost(&usage), u64::MAX);
        assert_eq!(PRICE.max_cost(u64::MAX, 1), u64::MAX);
    }

    proptest! {
        #[test]
        fn cost_never_exceeds_max_cost(
            prices in any::<[u32; 4]>(), plain in any::<u32>(), cached in any::<u32>(), written in any::<u32>(),
            output in any::<u32>(),
        ) {
            let [input, cached_input, cache_write, per_output] = prices.map(u64::from);
            let price = TokenPrice { input, cached_input, cache_write, output: per_output };
            let [plain, cached, written, output] = [plain, cached, written, output].map(u64::from);
            let usage = Usage {
                input_tokens: plain + cached + written,
                cached_input_tokens: cached,
                cache_write_tokens: written,
                output_tokens: output,
                reasoning_tokens: 0,
                ..Usage::default()
            };
            prop_assert!(price.cost(&usage) <= price.max_cost(usage.input_tokens, output));
        }
    }
}
