//! `control`: what a hook tells the thread to do.

use serde_json::{Map, Value, json};

use super::{failure, text_param};
use crate::tool_context::ThreadContext;

/// What a hook around a call wants of it; nothing where it says nothing.
fn call_change(parameters: &Map<String, Value>) -> Value {
    let known = ["arguments", "result", "note"];
    let call: Map<String, Value> = parameters
        .iter()
        .filter(|(key, _)| known.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    if call.is_empty() { Value::Null } else { json!({ "call": call }) }
}

pub(super) fn control(parameters: &Map<String, Value>, _facts: &ThreadContext) -> Value {
    match text_param(parameters, "action").unwrap_or("continue") {
        "continue" | "skip" => call_change(parameters),
        "block" => {
            let reason = text_param(parameters, "error").unwrap_or("no reason was given");
            json!({"success": false, "blocked": true, "error": reason})
        }
        "retry" => json!({"action": "retry"}),
        "fail" => failure(text_param(parameters, "error").unwrap_or("Hook triggered failure")),
        "abort" => json!({"success": false, "aborted": true, "error": "Aborted by hook"}),
        "suspend" => {
            let reason = text_param(parameters, "suspend_reason").unwrap_or("Suspended by hook");
            let mut response = json!({"success": false, "suspended": true, "error": reason});
            for key in ["prompt", "on_deny"] {
                if let Some(value) = text_param(parameters, key) {
                    response[key] = json!(value);
                }
            }
            response
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
        other => failure(format!("Unknown action: {}", rye_item::text::one_line(other))),
    }
}
