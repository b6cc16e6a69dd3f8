//! Calls of tools as lines: what was called, what hooks changed of it, and how it ended.

use std::collections::BTreeMap;

use rye_agent::money::Nanos;
use serde_json::Value;

use super::MAX_TEXT_LENGTH;
use crate::live::format::{error_message, format_arguments, format_duration, format_money, truncate};
use crate::output::{DIM, ERROR, NAME, SUCCESS, WARNING, paint};

/// The calls of one thread.
#[derive(Debug, Default)]
pub(super) struct Calls {
    running: Vec<Call>,
    /// The tools of calls that came back since the model answered: a hook may still change their results.
    finished: BTreeMap<String, String>,
}

/// A call that has not come back.
#[derive(Debug)]
struct Call {
    id: String,
    tool: String,
    arguments: String,
}

impl Call {
    /// As the model made it. A call of a primary action is shown with the item it names.
    fn new(payload: &Value) -> Self {
        let tool = truncate(text(payload, "tool"), MAX_TEXT_LENGTH);
        let input = payload.get("input").unwrap_or(&Value::Null);
        let (tool, arguments) = match input.get("item_id").and_then(Value::as_str) {
            Some(item) if tool.starts_with("rye_") => {
                (format!("{tool} {}", truncate(item, MAX_TEXT_LENGTH)), shown_arguments(&tool, input))
            }
            _ => (tool.clone(), shown_arguments(&tool, input)),
        };
        Self { id: text(payload, "call_id").to_owned(), tool, arguments }
    }
}

/// The arguments that matter: those of the item where a primary action runs one.
fn shown_arguments(tool: &str, input: &Value) -> String {
    let input = match input.get("item_id").is_some_and(Value::is_string) && tool.starts_with("rye_") {
        true => input.get("parameters").filter(|inner| inner.is_object()).unwrap_or(&Value::Null),
        false => input,
    };
    format_arguments(input, MAX_TEXT_LENGTH)
}

fn text<'a>(payload: &'a Value, key: &str) -> &'a str {
    payload.get(key).and_then(Value::as_str).unwrap_or_default()
}

impl Calls {
    /// A call begins.
    pub(super) fn start(&mut self, payload: &Value) {
        self.running.push(Call::new(payload));
    }

    /// The model answered: results of its earlier calls change no more.
    pub(super) fn forget_finished(&mut self) {
        self.finished.clear();
    }

    /// The thread has stopped.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The tools of the calls that have not come back.
    pub(super) fn running_tools(&self) -> impl Iterator<Item = &str> {
        self.running.iter().map(|call| call.tool.as_str())
    }

    /// A call has come back.
    pub(super) fn finish(&mut self, payload: &Value) -> String {
        let id = text(payload, "call_id");
        let call = match self.running.iter().position(|call| call.id == id) {
            Some(index) => self.running.remove(index),
            // Its beginning is too far back to be read.
            None => Call { id: id.to_owned(), tool: "earlier call".to_owned(), arguments: String::new() },
        };
        let elapsed = format_duration(payload.get("duration_ms").and_then(Value::as_u64).unwrap_or(0));
        let failed = payload.get("error").map(|error| match error {
            Value::String(text) => error_message(text, 2 * MAX_TEXT_LENGTH),
            other => truncate(&other.to_string(), 2 * MAX_TEXT_LENGTH),
        });
        let mark = if failed.is_some() { paint(ERROR, "✗") } else { paint(SUCCESS, "✓") };
        let mut parts = vec![paint(NAME, &call.tool)];
        parts.extend(Some(call.arguments).filter(|arguments| !arguments.is_empty()));
        parts.push(paint(DIM, elapsed));
        parts.extend(failed.map(|failed| paint(WARNING, failed)));
        self.finished.insert(call.id, call.tool);
        format!("{mark} {}", parts.join(" · "))
    }

    /// What a hook changed of a call, or of its result.
    pub(super) fn hook_change(&mut self, kind: &str, payload: &Value) -> String {
        let id = text(payload, "call_id");
        let hook = truncate(text(payload, "hook"), MAX_TEXT_LENGTH);
        let running = self.running.iter_mut().find(|call| call.id == id);
        let finished = self.finished.get(id).map_or("a call", String::as_str);
        let change = match (kind, running) {
            ("tool_call_changed", running) => {
                let tool = running.as_ref().map_or(finished, |call| call.tool.as_str());
                let name = tool.split(' ').next().unwrap_or_default();
                let arguments = shown_arguments(name, payload.get("arguments").unwrap_or(&Value::Null));
                let line = match arguments.is_empty() {
                    true => format!("took away the arguments of {tool}"),
                    false => format!("changed the arguments of {tool} to {arguments}"),
                };
                if let Some(call) = running {
                    call.arguments = arguments;
                }
                line
            }
            (_, running) => {
                let tool = running.as_ref().map_or(finished, |call| call.tool.as_str());
                match payload.get("error").and_then(Value::as_str) {
                    Some(error) => {
                        let error = error_message(error, 2 * MAX_TEXT_LENGTH);
                        format!("withheld the result of {tool}: {error}")
                    }
                    None => format!("replaced the result of {tool}"),
                }
            }
        };
        format!("{} hook {hook} {change}", paint(WARNING, "!"))
    }
}

/// Why a call of the model waits for money, and whose budget it is.
pub(super) fn budget_wait(thread: &str, payload: &Value) -> String {
    let amount = |key: &str| {
        let value = payload.get(key).unwrap_or(&Value::Null);
        match (text(payload, "what"), Nanos::from_value(value)) {
            ("spend", Some(spend)) => format_money(spend),
            _ => value.to_string(),
        }
    };
    let owner = match (text(payload, "budget"), text(payload, "thread_id")) {
        ("", owner) if owner == thread => "its own budget".to_owned(),
        ("", owner) => format!("the budget of {}", truncate(owner, MAX_TEXT_LENGTH)),
        (budget, _) => format!("the budget {}", truncate(budget, MAX_TEXT_LENGTH)),
    };
    let frees_at = match text(payload, "frees_at") {
        "" => String::new(),
        at => format!("; its period ends {}", truncate(at, MAX_TEXT_LENGTH)),
    };
    let unit = if text(payload, "what") == "tokens" { " tokens" } else { "" };
    format!(
        "{} waits for {owner}: {} used and {} reserved of {}{unit}, {} asked{frees_at}",
        paint(WARNING, "◷"),
        amount("used"),
        amount("reserved"),
        amount("most"),
        amount("asked"),
    )
}
