//! Tools that look at the thread, or say what should be written of it.

use serde_json::{Map, Value, json};

use super::{failure, text_param};
use crate::core_event::is_core_event;
use crate::cost::Cost;
use crate::tool_context::ThreadContext;

/// `emitter`: an event to write. The machine writes it.
pub(super) fn emit(parameters: &Map<String, Value>, context: &ThreadContext) -> Value {
    let Some(event_type) = text_param(parameters, "event_type").filter(|event| is_event_name(event)) else {
        return failure("event_type is a name of lower case letters, digits and `_`");
    };
    if text_param(parameters, "thread_id").is_some_and(|thread| thread != context.thread_id.as_str()) {
        return failure("a hook writes into its own thread only");
    }
    if is_core_event(event_type) {
        return failure(format!("`{event_type}` is written by the thread itself; a hook cannot emit it"));
    }
    let payload = match parameters.get("payload") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(payload)) => payload.clone(),
        Some(_) => return failure("payload is an object"),
    };
    if let Err(problem) = context.config.check_payload(event_type, &payload) {
        return failure(problem);
    }
    let criticality = match parameters.get("criticality") {
        None | Some(Value::Null) => json!(context.config.criticality(event_type)),
        Some(word) => word.clone(),
    };
    if criticality != "critical" && criticality != "droppable" {
        return failure("criticality is critical or droppable");
    }
    json!({
        "success": true,
        "event_type": event_type,
        "emitted": true,
        "payload": payload,
        "criticality": criticality,
    })
}

fn is_event_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    !name.is_empty() && name.len() <= 64 && name.bytes().all(is_plain)
}

/// `classifier`: what kind of error it is, by `error_classification.yaml`.
pub(super) fn classify(parameters: &Map<String, Value>, context: &ThreadContext) -> Value {
    context.config.classify(&json!({
        "error": parameters.get("error").cloned().unwrap_or_else(|| json!({})),
        "status_code": parameters.get("status_code"),
        "headers": parameters.get("headers").cloned().unwrap_or_else(|| json!({})),
    }))
}

/// `limit_checker`: whether a limit is exceeded, and what then.
pub(super) fn check_limit(parameters: &Map<String, Value>, context: &ThreadContext) -> Value {
    let number = |key: &str| parameters.get(key).and_then(Value::as_f64);
    let (Some(current), Some(max)) = (number("current_value"), number("max_value")) else {
        return failure("current_value and max_value are numbers");
    };
    if current < max {
        return json!({"success": true, "exceeded": false});
    }
    json!({
        "success": true,
        "exceeded": true,
        "limit_type": parameters.get("limit_type"),
        "current": parameters.get("current_value"),
        "max": parameters.get("max_value"),
        "action": context.config.on_exceed(),
    })
}

/// `cost_tracker`: what the thread has used; `add` says what the machine adds to it, and to the ledger.
pub(super) fn track_cost(parameters: &Map<String, Value>, context: &ThreadContext) -> Value {
    match text_param(parameters, "operation").unwrap_or("report") {
        "report" => json!({"success": true, "cost": context.cost.to_value()}),
        "add" => {
            let is_number = |key: &str| ["turns", "input_tokens", "output_tokens", "spend"].contains(&key);
            let added: Map<String, Value> = parameters
                .iter()
                .filter(|(key, value)| is_number(key) && !value.is_null())
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect();
            let report = Cost::from_report(&added);
            if let Err(problem) = report.and_then(|report| context.cost.with_report(&report)) {
                return failure(format!("invalid parameters: {problem}"));
            }
            json!({"success": true, "cost": context.cost.to_value(), "added": added})
        }
        other => failure(format!("Unknown operation: {}", rye_item::text::one_line(other))),
    }
}

/// `state_persister`: every step is in the journal before anything relies on it, so there is nothing left to save.
pub(super) fn persist_state(_parameters: &Map<String, Value>, context: &ThreadContext) -> Value {
    json!({"success": true, "persisted": true, "thread_id": context.thread_id})
}

/// `cancel_checker`: whether the thread was asked to end.
pub(super) fn check_cancel(_parameters: &Map<String, Value>, context: &ThreadContext) -> Value {
    json!({"success": true, "cancelled": context.is_cancelled})
}
