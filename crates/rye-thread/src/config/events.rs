//! `events.yaml`: what transcripts record, how safely, with what payload.

use std::collections::BTreeMap;

use rye_item::parameters;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::duration::milliseconds;

/// How safely an event is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Criticality {
    /// Durable before its effect is used.
    Critical,
    /// Written when there is time, never waited for.
    Droppable,
}

impl Criticality {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Droppable => "droppable",
        }
    }
}

/// A declared event.
#[derive(Clone, Debug, PartialEq)]
pub struct EventType {
    /// `lifecycle`, `cognition`, `tool`, `error`, `orchestration` or `custom`.
    pub category: String,
    /// How safely it is written.
    pub criticality: Criticality,
    /// Whether what there is of it is written when it is interrupted.
    pub emit_on_error: bool,
    /// The least time between two of them.
    pub throttle_ms: u64,
    /// Whether its pieces are gathered, so that they can be written when it is interrupted.
    pub accumulate_on_error: bool,
    /// What its payload must be.
    pub payload_schema: Option<Value>,
}

/// All declared events.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    types: BTreeMap<String, EventType>,
}

#[derive(Deserialize)]
struct EventsFile {
    event_types: BTreeMap<String, EventDeclaration>,
}

#[derive(Deserialize)]
struct EventDeclaration {
    category: String,
    criticality: Criticality,
    #[serde(default)]
    emit_on_error: bool,
    #[serde(default)]
    emit_config: EmitConfig,
    payload_schema: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EmitConfig {
    #[serde(rename = "async")]
    is_async: Option<bool>,
    throttle_seconds: f64,
    accumulate_on_error: bool,
}

impl Events {
    pub(super) fn from_value(value: &Value) -> Result<Self, String> {
        let file: EventsFile = super::typed(value)?;
        for (name, declared) in &file.event_types {
            let is_droppable = declared.criticality == Criticality::Droppable;
            if declared.emit_config.is_async.is_some_and(|is_async| is_async != is_droppable) {
                let (name, word) = (rye_item::text::one_line(name), declared.criticality.as_str());
                return Err(format!("event_types.{name}.emit_config.async: {word} says otherwise"));
            }
        }
        let types = file.event_types.into_iter().map(|(name, declared)| {
            let event = EventType {
                category: declared.category,
                criticality: declared.criticality,
                emit_on_error: declared.emit_on_error,
                throttle_ms: milliseconds(declared.emit_config.throttle_seconds),
                accumulate_on_error: declared.emit_config.accumulate_on_error,
                payload_schema: declared.payload_schema,
            };
            (name, event)
        });
        Ok(Self { types: types.collect() })
    }

    /// What is declared of an event.
    #[must_use]
    pub fn event(&self, name: &str) -> Option<&EventType> {
        self.types.get(name)
    }

    /// The names of all declared events.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.types.keys().map(String::as_str)
    }

    /// How safely an event is written; one that is not declared is critical.
    #[must_use]
    pub fn criticality(&self, name: &str) -> Criticality {
        self.event(name).map_or(Criticality::Critical, |event| event.criticality)
    }

    /// Whether what there is of an event is written when it is interrupted.
    #[must_use]
    pub fn emits_on_error(&self, name: &str) -> bool {
        self.event(name).is_some_and(|event| event.emit_on_error)
    }

    /// Holds a payload against what is declared; the payload of an event that is not declared may be anything.
    ///
    /// # Errors
    /// What does not fit, all of it, in words.
    pub fn check_payload(&self, name: &str, payload: &Map<String, Value>) -> Result<(), String> {
        let schema = self.event(name).and_then(|event| event.payload_schema.as_ref());
        match parameters::check(payload.clone(), schema) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the payload of `{}`: {error}", rye_item::text::one_line(name))),
        }
    }
}
