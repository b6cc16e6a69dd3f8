//! Money: whole nano-dollars. Decimals exist only at the edge, where people and files write them.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An amount in nano-dollars (a billionth of a dollar).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// Decimal places of an amount.
const DECIMAL_PLACES: usize = 9;
const NANOS_PER_DOLLAR: u64 = 1_000_000_000;

impl Nanos {
    /// Whether it is nothing.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// The most the ledger can hold: SQLite's integers are signed.
    pub const MAX: Self = Self(i64::MAX.unsigned_abs());

    /// Whole dollars, at most [`Nanos::MAX`].
    #[must_use]
    pub const fn from_whole_dollars(dollars: u64) -> Self {
        let nanos = dollars.saturating_mul(NANOS_PER_DOLLAR);
        if nanos > Self::MAX.0 { Self::MAX } else { Self(nanos) }
    }

    /// Reads dollars as a person or a file writes them: `1`, `0.25`, `1.5e-3`. Nothing is rounded: what has more than nine
    /// places, is negative or too large is not an amount.
    #[must_use]
    pub fn from_dollars(text: &str) -> Option<Self> {
        let (digits, exponent) = match text.split_once(['e', 'E']) {
            Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all: String = format!("{whole}{fraction}");
        if all.is_empty() || all.len() > 40 || !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let shift = i32::try_from(DECIMAL_PLACES).ok()? + exponent - i32::try_from(fraction.len()).ok()?;
        let digits = all.trim_start_matches('0');
        if digits.is_empty() {
            return Some(Self(0));
        }
        let digits = if shift < 0 {
            let cut = digits.len().checked_sub(usize::try_from(-shift).ok()?)?;
            let (whole_digits, lost) = digits.split_at(cut);
            if lost.bytes().any(|byte| byte != b'0') {
                return None;
            }
            whole_digits.to_owned()
        } else if shift > 30 {
            return None;
        } else {
            format!("{digits}{}", "0".repeat(usize::try_from(shift).ok()?))
        };
        let amount: u64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        Some(Self(amount)).filter(|amount| *amount <= Self::MAX)
    }

    /// Reads dollars from a JSON number or text.
    #[must_use]
    pub fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Self::from_dollars(&number.to_string()),
            Value::String(text) => Self::from_dollars(text.trim()),
            _ => None,
        }
    }

    /// Dollars, for JSON that others read.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "the edge: nothing is computed from it")]
    pub fn dollars(self) -> f64 {
        self.0 as f64 / NANOS_PER_DOLLAR as f64
    }

    /// Dollars as a decimal, every place of them: `1.250000000`.
    #[must_use]
    pub fn to_decimal(self) -> String {
        format!("{}.{:09}", self.0 / NANOS_PER_DOLLAR, self.0 % NANOS_PER_DOLLAR)
    }

    /// The sum, at most [`Nanos::MAX`].
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0)).min(Self::MAX)
    }

    /// The difference, at least nothing.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Nanos {
    /// `$1.25`, `$0.000012`: all places that are not nought, at least two.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:09}", self.0 % NANOS_PER_DOLLAR);
        let digits = fraction.trim_end_matches('0');
        write!(formatter, "${}.{digits:0<2}", self.0 / NANOS_PER_DOLLAR)
    }
}

#[cfg(test)]
mod tests {
    use super::Nanos;

    #[test]
    fn dollars_parse_exactly() {
        let cases = [
            ("1", Some(1_000_000_000)),
            ("0.1", Some(100_000_000)),
            ("1e-9", Some(1)),
            ("1.5E-3", Some(1_500_000)),
            ("25e0", Some(25_000_000_000)),
            (".5", Some(500_000_000)),
            ("0", Some(0)),
            ("0.0000000010", Some(1)),
            ("0.0000000001", None),
            ("-1", None),
            ("", None),
            (".", None),
            ("1e40", None),
            ("99999999999999", None),
            ("NaN", None),
            ("1_0", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Nanos::from_dollars(text).map(|amount| amount.0), expected, "{text}");
        }
    }

    #[test]
    fn amounts_display_all_significant_digits() {
        let texts = [0, 1, 12_000, 1_250_000_000, 3_000_000_000].map(|nanos| Nanos(nanos).to_string());
        assert_eq!(texts, ["$0.00", "$0.000000001", "$0.000012", "$1.25", "$3.00"]);
    }
}
