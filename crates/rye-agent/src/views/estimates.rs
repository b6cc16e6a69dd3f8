//! How far the estimates of prompts were from what providers counted, as transcripts have it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::thread_id::ThreadId;
use crate::transcript::{self, TranscriptPosition};

/// Estimates and counts of the calls of some threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EstimateSum {
    /// Calls that have both.
    pub calls: u64,
    /// Tokens that were estimated.
    pub estimated: u64,
    /// Tokens that were counted.
    pub actual: u64,
}

impl EstimateSum {
    /// Of all calls of these threads. A transcript that cannot be read adds nothing.
    #[must_use]
    pub fn of_threads(index: &ThreadIndex, ids: &BTreeSet<ThreadId>) -> Self {
        let mut sum = Self::default();
        for id in ids {
            let path = index.transcript_path(id);
            let Ok(batch) = transcript::read(&path, TranscriptPosition::default(), usize::MAX) else {
                continue;
            };
            for event in batch.events.iter().filter(|event| event.event_type == "cognition_out") {
                let number = |key: &str| event.payload.get(key).and_then(Value::as_u64);
                if let (Some(estimated), Some(actual)) = (number("estimated"), number("actual")) {
                    sum.calls += 1;
                    sum.estimated = sum.estimated.saturating_add(estimated);
                    sum.actual = sum.actual.saturating_add(actual);
                }
            }
        }
        sum
    }

    /// How far the estimates were off, in hundredths of the counts: over is positive.
    #[allow(clippy::cast_possible_truncation, reason = "a few thousand at most")]
    #[must_use]
    pub fn error_percent(self) -> Option<i64> {
        let difference = i128::from(self.estimated) - i128::from(self.actual);
        let percent = (difference * 100).checked_div(i128::from(self.actual))?;
        Some(percent.clamp(-100, 100_000) as i64)
    }

    /// As JSON; nothing where no call was compared.
    #[must_use]
    pub fn to_value(self) -> Value {
        if self.calls == 0 {
            return Value::Null;
        }
        json!({
            "calls": self.calls,
            "estimated": self.estimated,
            "actual": self.actual,
            "error_percent": self.error_percent(),
        })
    }
}
