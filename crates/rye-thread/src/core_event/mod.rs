//! Core events: what a thread itself writes to its transcript, each with the type of every field.
//!
//! The list in [`list`] is the only one: the machine builds its events from it, the transcript writer checks payloads
//! against it, hooks cannot emit what is in it, and `docs/threads/events.md` is made from it.

#[macro_use]
mod declare;
mod fields;
mod list;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

pub use fields::{Always, EventFieldType, MergedFields, Nullable, PayloadField};
pub use list::{CORE_EVENTS, CoreEvent};

use crate::config::Criticality;

/// A declared event: its name, and what its payload holds.
#[derive(Clone, Copy, Debug)]
pub struct CoreEventSchema {
    /// `thread_started`, ….
    pub name: &'static str,
    /// `lifecycle`, `cognition`, `tool`, `error` or `orchestration`.
    pub category: &'static str,
    /// How safely it is written unless `events.yaml` says otherwise.
    pub criticality: Criticality,
    /// What it says.
    pub description: &'static str,
    /// The fields of its payload, in the order in which they are written.
    pub fields: &'static [EventField],
}

/// A field of a payload.
#[derive(Clone, Copy, Debug)]
pub struct EventField {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub field_type: EventFieldType,
    /// Whether it is always there.
    pub is_required: bool,
    /// Whether it may be `null`.
    pub may_be_null: bool,
    /// What it says.
    pub description: &'static str,
}

/// The schema of an event that only the thread itself writes.
#[must_use]
pub fn core_event(name: &str) -> Option<&'static CoreEventSchema> {
    CORE_EVENTS.iter().find(|schema| schema.name == name)
}

/// Whether only the thread itself writes events of this type.
#[must_use]
pub fn is_core_event(event_type: &str) -> bool {
    core_event(event_type).is_some()
}

impl CoreEventSchema {
    /// Checks a payload: required fields are there, and every known field has its type.
    ///
    /// # Errors
    /// All that does not fit, in words.
    pub fn check(&self, payload: &Value) -> Result<(), String> {
        let Value::Object(payload) = payload else {
            return Err(format!("the payload of `{}` is not an object", self.name));
        };
        let problems: Vec<String> = self.fields.iter().filter_map(|field| field.problem(payload)).collect();
        if problems.is_empty() {
            return Ok(());
        }
        Err(format!("the payload of `{}`: {}", self.name, problems.join("; ")))
    }

    /// The same as a JSON schema.
    #[must_use]
    pub fn to_json_schema(&self) -> Value {
        let listed = || self.fields.iter().filter(|field| field.field_type != EventFieldType::Merged);
        let required: Vec<&str> =
            listed().filter(|field| field.is_required).map(|field| field.name).collect();
        let properties: Map<String, Value> =
            listed().map(|field| (field.name.to_owned(), field.to_json_schema())).collect();
        json!({"type": "object", "required": required, "properties": properties})
    }
}

impl EventField {
    fn problem(&self, payload: &Map<String, Value>) -> Option<String> {
        match payload.get(self.name) {
            _ if self.field_type == EventFieldType::Merged => None,
            None => self.is_required.then(|| format!("`{}` is missing", self.name)),
            Some(Value::Null) if self.may_be_null => None,
            Some(value) => (!self.field_type.accepts(value))
                .then(|| format!("`{}` is not {}", self.name, self.field_type.description())),
        }
    }

    fn to_json_schema(self) -> Value {
        let mut schema = self.field_type.to_json_schema();
        if self.may_be_null {
            if let Some(word) = schema.get("type").cloned() {
                schema["type"] = json!([word, "null"]);
            }
            if let Some(Value::Array(words)) = schema.get_mut("enum") {
                words.push(Value::Null);
            }
        }
        schema["description"] = json!(self.description.trim());
        schema
    }
}

/// The list of events as the page `docs/threads/events.md` shows it.
#[must_use]
pub fn render_event_list() -> String {
    let mut page = String::new();
    for schema in CORE_EVENTS {
        let _ = write!(
            page,
            "### `{}`\n\n{} ({}, {})\n\n| field | type | |\n|---|---|---|\n",
            schema.name,
            schema.description.trim(),
            schema.category,
            schema.criticality.as_str()
        );
        for field in schema.fields {
            let mut kind = field.field_type.description().to_owned();
            if field.may_be_null {
                kind.push_str(" or null");
            }
            if !field.is_required {
                kind.push_str(", optional");
            }
            let name = match field.field_type {
                EventFieldType::Merged => "…".to_owned(),
                _ => format!("`{}`", field.name),
            };
            let _ = writeln!(page, "| {name} | {kind} | {} |", field.description.trim());
        }
        page.push('\n');
    }
    page
}
