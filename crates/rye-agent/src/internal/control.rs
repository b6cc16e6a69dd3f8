//! `control`: what a hook tells the thread to do.

use serde_json::{Map, Value, json};

use super::{failed, text};
use crate::facts::ThreadFacts;

pub(super) fn control(parameters: &Map<String, Value>, _facts: &ThreadFacts) -> Value {
    match text(parameters, "action").unwrap_or("continue") {
        "continue" | "skip" => Value::Null,
        "retry" => json!({"action": "retry"}),
        "fail" => failed(text(parameters, "error").unwrap_or("Hook triggered failure")),
        "abort" => json!({"success": false, "aborted": true, "error": "Aborted by hook"}),
        "suspend" => {
            let reason = text(parameters, "suspend_reason").unwrap_or("Suspended by hook");
            let mut answer = json!({"success": false, "suspended": true, "error": reason});
            for key in ["prompt", "on_deny"] {
                if let Some(value) = text(parameters, key) {
                    answer[key] = json!(value);
                }
            }
            answer
        }
        "escalate" => json!({
            "success": false,
            "suspended": true,
            "escalated": true,
            "error": "Escalation requested",
            "escalation": {
                "limit_type": parameters.get("limit_type"),
                "current_value": parameters.get("current_value"),
            },
        }),
        // 003 lets an unknown word pass as `continue`; the descriptor's schema refuses it before, and so does this.
        other => failed(format!("Unknown action: {}", rye_item::text::one_line(other))),
    }
}
