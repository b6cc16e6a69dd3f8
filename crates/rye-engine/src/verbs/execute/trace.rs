//! The trace of a run: one row per step, in order, if it is requested.

use serde_json::{Map, Value, json};

/// The steps so far; nothing is recorded unless the trace is enabled.
#[derive(Debug, Default)]
pub(super) struct RunTrace {
    rows: Option<Vec<Value>>,
}

impl RunTrace {
    pub(super) fn new(is_enabled: bool) -> Self {
        Self { rows: is_enabled.then(Vec::new) }
    }

    /// Adds a step; `details` is called only if the trace is enabled.
    pub(super) fn add_step(&mut self, name: &str, details: impl FnOnce() -> Value) {
        if let Some(rows) = &mut self.rows {
            let mut row = Map::new();
            row.insert("step".to_owned(), json!(name));
            if let Value::Object(details) = details() {
                row.extend(details);
            }
            rows.push(Value::Object(row));
        }
    }

    /// Puts the trace beside an answer.
    pub(super) fn add_to(self, extra: &mut Map<String, Value>) {
        if let Some(rows) = self.rows {
            extra.insert("trace".to_owned(), Value::Array(rows));
        }
    }
}
