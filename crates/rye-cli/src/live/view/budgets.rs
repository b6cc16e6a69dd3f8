//! Waits for money as lines.

use rye_agent::money::Nanos;
use serde_json::Value;

use super::MAX_TEXT_LENGTH;
use crate::live::format::{format_money, truncate};
use crate::output::{WARNING, paint};

/// Why a call of the model waits for money, and whose budget it is.
pub(super) fn wait_line(thread: &str, payload: &Value) -> String {
    let text = |key: &str| payload.get(key).and_then(Value::as_str).unwrap_or_default();
    let is_tokens = text("what") == "tokens";
    let amount = |key: &str| {
        let value = payload.get(key).unwrap_or(&Value::Null);
        match Nanos::from_value(value).filter(|_| !is_tokens) {
            Some(spend) => format_money(spend),
            None => truncate(&value.to_string(), MAX_TEXT_LENGTH),
        }
    };
    let owner = match (text("budget"), text("thread_id")) {
        ("", owner) if owner == thread => "its own budget".to_owned(),
        ("", owner) => format!("the budget of {}", truncate(owner, MAX_TEXT_LENGTH)),
        (budget, _) => format!("the budget {}", truncate(budget, MAX_TEXT_LENGTH)),
    };
    let frees_at = match text("frees_at") {
        "" => String::new(),
        at => format!("; its period ends {}", truncate(at, MAX_TEXT_LENGTH)),
    };
    let unit = if is_tokens { " tokens" } else { "" };
    format!(
        "{} waits for {owner}: {} used and {} reserved of {}{unit}, {} asked{frees_at}",
        paint(WARNING, "◷"),
        amount("used"),
        amount("reserved"),
        amount("most"),
        amount("asked"),
    )
}
