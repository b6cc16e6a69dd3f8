//! What a hook's action means for the thread: only what `internal/control` answers, or says it answered, steers.

use serde_json::Value;

/// What a hook wants of the thread.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HookControl {
    /// Ask the model again.
    Retry,
    /// End badly.
    Fail(String),
    /// End as cancelled.
    Abort(String),
    /// Stop, to continue later.
    Suspend {
        /// Why.
        #[serde(rename = "why")]
        reason: String,
        /// What a person is asked.
        prompt: Option<String>,
        /// Whether a no ends the thread.
        #[serde(rename = "ends_on_no")]
        ends_on_deny: bool,
    },
    /// Stop until a person allows more.
    Escalate(Value),
    /// Do not make the call, or do not use its result.
    Block(String),
}

impl HookControl {
    /// Reads the envelope of a call of `internal/control`; `continue` and `skip` give nothing.
    pub(crate) fn parse(envelope: &Value) -> Option<Self> {
        let data = envelope.get("data").filter(|data| data.is_object())?;
        let is_set = |key: &str| data.get(key).and_then(Value::as_bool) == Some(true);
        let error = data.get("error").and_then(Value::as_str).unwrap_or_default().to_owned();
        if data.get("action").and_then(Value::as_str) == Some("retry") {
            return Some(Self::Retry);
        }
        if data.get("success").and_then(Value::as_bool) != Some(false) {
            return None;
        }
        Some(if is_set("blocked") {
            Self::Block(error)
        } else if is_set("aborted") {
            Self::Abort(error)
        } else if is_set("escalated") {
            Self::Escalate(data.get("escalation").cloned().unwrap_or_default())
        } else if is_set("suspended") {
            Self::Suspend {
                reason: error,
                prompt: data.get("prompt").and_then(Value::as_str).map(str::to_owned),
                ends_on_deny: data.get("on_deny").and_then(Value::as_str) == Some("end"),
            }
        } else {
            Self::Fail(error)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::HookControl;

    fn read(data: &Value) -> Option<HookControl> {
        HookControl::parse(&json!({"status": "error", "data": data}))
    }

    #[test]
    fn only_control_results_are_parsed() {
        assert_eq!(read(&json!({"action": "retry"})), Some(HookControl::Retry));
        assert_eq!(read(&json!({"success": false, "error": "no"})), Some(HookControl::Fail("no".into())));
        let abort = json!({"success": false, "aborted": true, "error": "Aborted by hook"});
        assert_eq!(read(&abort), Some(HookControl::Abort("Aborted by hook".into())));
        let suspend = json!({"success": false, "suspended": true, "error": "wait"});
        let suspended = |prompt: Option<&str>, ends_on_no| HookControl::Suspend {
            reason: "wait".into(),
            prompt: prompt.map(str::to_owned),
            ends_on_deny: ends_on_no,
        };
        assert_eq!(read(&suspend), Some(suspended(None, false)));
        let asking = json!({"success": false, "suspended": true, "error": "wait", "prompt": "May I?", "on_deny": "end"});
        assert_eq!(read(&asking), Some(suspended(Some("May I?"), true)));
        let escalation = json!({"limit_type": "turns_exceeded", "current_value": 5});
        let escalate =
            json!({"success": false, "suspended": true, "escalated": true, "escalation": escalation});
        assert_eq!(read(&escalate), Some(HookControl::Escalate(escalation)));
        assert_eq!(read(&Value::Null), None);
        assert_eq!(read(&json!({"success": true, "event_type": "x", "emitted": true})), None);
        assert_eq!(HookControl::parse(&json!({"status": "error", "error": "it broke"})), None);
    }
}
