//! What a thread has used.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::money::Nanos;

/// The most that a hook may add to what a thread has used, and that the sum may come to: far more than any thread uses, and
/// far less than what a ledger holds for all threads together.
pub const MAX_REPORTED: Cost = Cost {
    turns: 1_000_000,
    input_tokens: 1_000_000_000_000,
    output_tokens: 1_000_000_000_000,
    spend: Nanos::from_whole_dollars(1_000_000),
    elapsed_ms: 0,
};

/// What a thread itself has used, its children apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Answers of the model.
    pub turns: u64,
    /// Tokens that went in, cached ones included.
    pub input_tokens: u64,
    /// Tokens that came out, reasoning included.
    pub output_tokens: u64,
    /// Money.
    pub spend: Nanos,
    /// Milliseconds at work: without the time it was suspended.
    pub elapsed_ms: u64,
}

impl Cost {
    /// Tokens in and out.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }

    /// Reads what a hook reports as used: `turns`, `input_tokens`, `output_tokens`, `spend`.
    ///
    /// # Errors
    /// When one of them is not a number of its kind.
    pub fn from_report(report: &Map<String, Value>) -> Result<Self, String> {
        let given = |key: &str| report.get(key).filter(|value| !value.is_null());
        let count = |key: &str| match given(key).map(Value::as_u64) {
            None => Ok(0),
            Some(Some(count)) => Ok(count),
            Some(None) => Err(format!("{key} is a whole number, not negative")),
        };
        let spend = match given("spend").map(Nanos::from_value) {
            None => Nanos(0),
            Some(Some(spend)) => spend,
            Some(None) => return Err("spend is an amount of dollars with at most nine places".to_owned()),
        };
        Ok(Self {
            turns: count("turns")?,
            input_tokens: count("input_tokens")?,
            output_tokens: count("output_tokens")?,
            spend,
            elapsed_ms: 0,
        })
    }

    /// This and what a hook reports besides.
    ///
    /// # Errors
    /// When a number or a sum is more than [`MAX_REPORTED`].
    pub fn with_report(self, report: &Self) -> Result<Self, String> {
        let sum = Self {
            turns: self.turns.saturating_add(report.turns),
            input_tokens: self.input_tokens.saturating_add(report.input_tokens),
            output_tokens: self.output_tokens.saturating_add(report.output_tokens),
            spend: self.spend.plus(report.spend),
            elapsed_ms: self.elapsed_ms,
        };
        let max = MAX_REPORTED;
        for (name, added, sum, max) in [
            ("turns", report.turns, sum.turns, max.turns),
            ("input_tokens", report.input_tokens, sum.input_tokens, max.input_tokens),
            ("output_tokens", report.output_tokens, sum.output_tokens, max.output_tokens),
        ] {
            if added > 0 && sum > max {
                return Err(format!("a thread may have at most {max} {name}, including what hooks add"));
            }
        }
        if report.spend > Nanos(0) && sum.spend > max.spend {
            let max = max.spend;
            return Err(format!("a thread may spend at most {max}, including what hooks add"));
        }
        Ok(sum)
    }

    /// As hooks, transcripts and answers show it: spend in dollars.
    #[must_use]
    pub fn to_value(&self) -> Value {
        json!({
            "turns": self.turns,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "spend": self.spend.dollars(),
            "elapsed_seconds": self.elapsed_ms / 1000,
        })
    }
}

/// What a call was for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribution {
    /// The item: the thread's directive, usually.
    pub item: String,
    /// The model.
    pub model: String,
    /// The tool on whose behalf.
    pub tool: Option<String>,
    /// The hook on whose behalf.
    pub hook: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Cost, MAX_REPORTED};
    use crate::money::Nanos;

    fn report(value: &Value) -> Result<Cost, String> {
        let used = Cost { turns: 3, spend: Nanos(5), ..Cost::default() };
        let report = Cost::from_report(value.as_object().expect("an object"))?;
        used.with_report(&report)
    }

    #[test]
    fn reported_cost_is_bounded() {
        let sum = report(&json!({"turns": 1, "input_tokens": 7, "output_tokens": null, "spend": "0.25"}));
        let expected = Cost { turns: 4, input_tokens: 7, spend: Nanos(250_000_005), ..Cost::default() };
        assert_eq!(sum, Ok(expected));
        assert_eq!(report(&json!({"input_tokens": MAX_REPORTED.input_tokens})).map(|cost| cost.turns), Ok(3));
        for invalid in [
            json!({"input_tokens": u64::MAX}),
            json!({"output_tokens": u64::MAX}),
            json!({"input_tokens": MAX_REPORTED.input_tokens + 1}),
            json!({"turns": MAX_REPORTED.turns}),
            json!({"spend": 9_000_000_000_u64}),
            json!({"spend": 1_000_000}),
            json!({"spend": "1e30"}),
            json!({"spend": -1}),
            json!({"turns": 1.5}),
        ] {
            assert!(report(&invalid).is_err(), "{invalid}");
        }
    }
}
