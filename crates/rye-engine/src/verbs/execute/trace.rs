//! The trace of a run: one row per step, in order, for whoever asked.

use serde_json::{Map, Value, json};

/// The steps so far; nothing is kept when nobody asked.
#[derive(Debug, Default)]
pub(super) struct Trace {
    rows: Option<Vec<Value>>,
}

impl Trace {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { rows: is_wanted.then(Vec::new) }
    }

    /// Tells a step; `facts` is worked out only when somebody asked.
    pub(super) fn step(&mut self, name: &str, facts: impl FnOnce() -> Value) {
        if let Some(rows) = &mut self.rows {
            let mut row = Map::new();
            row.insert("step".to_owned(), json!(name));
            if let Value::Object(facts) = facts() {
                row.extend(facts);
            }
            rows.push(Value::Object(row));
        }
    }

    /// Puts the trace beside an answer.
    pub(super) fn into_facts(self, facts: &mut Map<String, Value>) {
        if let Some(rows) = self.rows {
            facts.insert("trace".to_owned(), Value::Array(rows));
        }
    }
}
