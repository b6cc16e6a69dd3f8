//! Calls of tools as lines: what was called, what hooks changed of it, and how it ended.

use std::collections::BTreeMap;

use serde_json::Value;

use super::MAX_TEXT_LENGTH;
use crate::live::format::{error_message, format_arguments, format_duration, truncate};
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
    /// The tool's name, as the model knows it.
    name: String,
    /// The same, with the item that a primary action names.
    tool: String,
    arguments: String,
}

impl Call {
    fn new(payload: &Value) -> Self {
        let name = truncate(text(payload, "tool"), MAX_TEXT_LENGTH);
        let id = text(payload, "call_id").to_owned();
        let mut call = Self { id, name, tool: String::new(), arguments: String::new() };
        call.set_input(payload.get("input").unwrap_or(&Value::Null));
        call
    }

    fn set_input(&mut self, input: &Value) {
        let item = input.get("item_id").and_then(Value::as_str).filter(|_| self.name.starts_with("rye_"));
        let shown = match item {
            Some(_) => input.get("parameters").filter(|inner| inner.is_object()).unwrap_or(&Value::Null),
            None => input,
        };
        self.arguments = format_arguments(shown, MAX_TEXT_LENGTH);
        self.tool = match item {
            Some(item) => format!("{} {}", self.name, truncate(item, MAX_TEXT_LENGTH)),
            None => self.name.clone(),
        };
    }
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
            None => Call {
                id: id.to_owned(),
                name: String::new(),
                tool: "earlier call".to_owned(),
                arguments: String::new(),
            },
        };
        let elapsed = format_duration(payload.get("duration_ms").and_then(Value::as_u64).unwrap_or(0));
        let failed = payload.get("error").map(|error| match error {
            Value::String(text) => error_message(text, 2 * MAX_TEXT_LENGTH),
            other => truncate(&other.to_string(), 2 * MAX_TEXT_LENGTH),
        });
        let is_denied = is_denial(payload);
        let mark = match (&failed, is_denied) {
            (Some(_), _) => paint(ERROR, "✗"),
            (None, true) => paint(WARNING, "✗"),
            (None, false) => paint(SUCCESS, "✓"),
        };
        let mut parts = vec![paint(NAME, &call.tool)];
        parts.extend(Some(call.arguments).filter(|arguments| !arguments.is_empty()));
        parts.push(paint(DIM, elapsed));
        parts.extend(failed.map(|failed| paint(WARNING, failed)));
        parts.extend(is_denied.then(|| paint(WARNING, "denied")));
        self.finished.insert(call.id, call.tool);
        format!("{mark} {}", parts.join(" · "))
    }

    /// A hook changed the arguments of a call.
    pub(super) fn change_arguments(&mut self, payload: &Value) -> String {
        let arguments = payload.get("arguments").unwrap_or(&Value::Null);
        let id = text(payload, "call_id");
        let Some(call) = self.running.iter_mut().find(|call| call.id == id) else {
            let arguments = format_arguments(arguments, MAX_TEXT_LENGTH);
            return hook_line(payload, &format!("changed the arguments of a call to {arguments}"));
        };
        call.set_input(arguments);
        let change = match call.arguments.as_str() {
            "" => format!("removed the arguments of {}", call.tool),
            arguments => format!("changed the arguments of {} to {arguments}", call.tool),
        };
        hook_line(payload, &change)
    }

    /// A hook replaced or withheld the result of a call.
    pub(super) fn change_result(&self, payload: &Value) -> String {
        let id = text(payload, "call_id");
        let running = self.running.iter().find(|call| call.id == id).map(|call| &call.tool);
        let tool = running.or_else(|| self.finished.get(id)).map_or("a call", String::as_str);
        let change = match payload.get("error").and_then(Value::as_str) {
            Some(error) => {
                format!("withheld the result of {tool}: {}", error_message(error, 2 * MAX_TEXT_LENGTH))
            }
            None => format!("replaced the result of {tool}"),
        };
        hook_line(payload, &change)
    }
}

/// Whether a call asked a person, who said no: that is an answer, and no success to show.
fn is_denial(payload: &Value) -> bool {
    /// The whole answer of a question is short.
    const MAX_ANSWER_BYTES: usize = 64 << 10;
    let output = text(payload, "output");
    if output.len() > MAX_ANSWER_BYTES || !output.contains("\"approved\"") {
        return false;
    }
    let answer: Value = serde_json::from_str(output).unwrap_or_default();
    answer.get("status").is_some() && answer.get("approved") == Some(&Value::Bool(false))
}

fn hook_line(payload: &Value, change: &str) -> String {
    format!("{} hook {} {change}", paint(WARNING, "!"), truncate(text(payload, "hook"), MAX_TEXT_LENGTH))
}
