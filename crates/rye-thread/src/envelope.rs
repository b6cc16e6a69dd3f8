//! The envelope of a result: what an action, a tool or a hook returns, as JSON.
//!
//! `{"status": "success", "data": …}`, or `{"status": "error", "error": "…"}` with what else is known of the failure. This
//! is the only place that reads the word `status` of it.

use serde_json::{Map, Value, json};

/// A result, as its envelope says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResultEnvelope<'a> {
    /// It worked.
    Success {
        /// What it returned.
        data: Option<&'a Value>,
    },
    /// It failed.
    Failure {
        /// Why.
        error: &'a str,
        /// What it returned all the same.
        data: Option<&'a Value>,
        /// Whether an item was refused because it was changed or is not trusted.
        is_integrity: bool,
    },
    /// The value has no status of its own: a plain result.
    Plain(&'a Value),
}

impl<'a> ResultEnvelope<'a> {
    /// Reads an envelope.
    #[must_use]
    pub fn parse(value: &'a Value) -> Self {
        let data = value.get("data").filter(|data| !data.is_null());
        match value.get("status").and_then(Value::as_str) {
            Some("success") => Self::Success { data },
            Some("error") => Self::Failure {
                error: value.get("error").and_then(Value::as_str).unwrap_or("it failed"),
                data,
                is_integrity: value.get("kind").and_then(Value::as_str) == Some("integrity"),
            },
            _ => Self::Plain(value),
        }
    }

    /// Whether it failed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        matches!(self, Self::Failure { .. })
    }

    /// Whether it says that it worked.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Self::Success { .. })
    }

    /// Whether it failed, or says so itself with `success: false` beside its status.
    #[must_use]
    pub fn is_failed_response(value: &Value) -> bool {
        is_unsuccessful(value) || ResultEnvelope::parse(value).is_failure()
    }

    /// Whether it failed, or holds data of a tool that says so itself with `success: false`.
    #[must_use]
    pub fn reports_failure(&self) -> bool {
        match self {
            Self::Failure { .. } => true,
            Self::Success { data } => data.is_some_and(is_unsuccessful),
            Self::Plain(value) => is_unsuccessful(value),
        }
    }

    /// The envelope of a failure.
    #[must_use]
    pub fn failure(message: &str) -> Value {
        json!({"status": "error", "error": message})
    }
}

fn is_unsuccessful(value: &Value) -> bool {
    value.get("success").and_then(Value::as_bool) == Some(false)
}

/// Whether the outputs that a model returned say that the work could not be done.
#[must_use]
pub fn outputs_report_failure(outputs: &Map<String, Value>) -> bool {
    outputs.get("status").and_then(Value::as_str) == Some("error")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_are_parsed_by_their_status() {
        let success = json!({"status": "success", "data": {"success": false}});
        assert!(ResultEnvelope::parse(&success).is_success());
        assert!(ResultEnvelope::parse(&success).reports_failure());
        let failure = json!({"status": "error", "error": "no", "kind": "integrity"});
        let expected = ResultEnvelope::Failure { error: "no", data: None, is_integrity: true };
        assert_eq!(ResultEnvelope::parse(&failure), expected);
        let plain = json!({"status": "completed", "success": true});
        assert_eq!(ResultEnvelope::parse(&plain), ResultEnvelope::Plain(&plain));
        assert!(!ResultEnvelope::parse(&plain).reports_failure());
        assert!(ResultEnvelope::parse(&json!({"success": false})).reports_failure());
        assert!(ResultEnvelope::parse(&ResultEnvelope::failure("no")).is_failure());
    }
}
