//! How the Rust type of a field becomes JSON, and what the schema says of it.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cost::Cost;
use crate::definitions::SkippedTool;
use crate::limits::ThreadLimits;
use crate::machine::{ApprovalKind, ApprovalScope, BudgetResource};
use crate::model::FilePart;
use crate::status::{SuspendReason, ThreadStatus};
use crate::thread_id::ThreadId;

/// What a field of a payload holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFieldType {
    /// A text.
    Text,
    /// A whole number that is not negative.
    Integer,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A list.
    List,
    /// An object.
    Object,
    /// Any JSON value.
    Any,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// The fields of an object, beside the others.
    Merged,
}

impl EventFieldType {
    pub(super) fn accepts(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Integer => value.is_u64(),
            Self::Number => value.is_number(),
            Self::Boolean => value.is_boolean(),
            Self::List => value.is_array(),
            Self::Object => value.is_object(),
            Self::Any | Self::Merged => true,
            Self::OneOf(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        }
    }

    pub(super) fn description(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::List => "list",
            Self::Object => "object",
            Self::Any => "any value",
            Self::OneOf(_) => "one of the known words",
            Self::Merged => "further fields",
        }
    }

    pub(super) fn to_json_schema(self) -> Value {
        match self {
            Self::Text => json!({"type": "string"}),
            Self::Integer => json!({"type": "integer"}),
            Self::Number => json!({"type": "number"}),
            Self::Boolean => json!({"type": "boolean"}),
            Self::List => json!({"type": "array"}),
            Self::Object => json!({"type": "object"}),
            Self::Any | Self::Merged => json!({}),
            Self::OneOf(words) => json!({"type": "string", "enum": words}),
        }
    }
}

/// A type that a field of a payload can have.
pub trait PayloadField {
    /// What the schema says of it.
    const FIELD_TYPE: EventFieldType;
    /// Whether a field of this type is always written.
    const IS_REQUIRED: bool = true;
    /// Whether it may be `null`.
    const MAY_BE_NULL: bool = false;

    /// Writes the field.
    fn write_field(self, name: &str, payload: &mut Map<String, Value>);
}

/// A field that is `null` when there is nothing to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Nullable<T>(pub Option<T>);

/// A field that is always there, but for threads of older releases, whose journals do not hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct Always<T>(pub Option<T>);

/// Fields that stand beside the others.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedFields(pub Map<String, Value>);

impl<T: PayloadField> PayloadField for Option<T> {
    const FIELD_TYPE: EventFieldType = T::FIELD_TYPE;
    const IS_REQUIRED: bool = false;

    fn write_field(self, name: &str, payload: &mut Map<String, Value>) {
        if let Some(value) = self {
            value.write_field(name, payload);
        }
    }
}

impl<T: PayloadField> PayloadField for Nullable<T> {
    const FIELD_TYPE: EventFieldType = T::FIELD_TYPE;
    const MAY_BE_NULL: bool = true;

    fn write_field(self, name: &str, payload: &mut Map<String, Value>) {
        match self.0 {
            Some(value) => value.write_field(name, payload),
            None => drop(payload.insert(name.to_owned(), Value::Null)),
        }
    }
}

impl<T: PayloadField> PayloadField for Always<T> {
    const FIELD_TYPE: EventFieldType = T::FIELD_TYPE;

    fn write_field(self, name: &str, payload: &mut Map<String, Value>) {
        self.0.write_field(name, payload);
    }
}

impl PayloadField for MergedFields {
    const FIELD_TYPE: EventFieldType = EventFieldType::Merged;

    fn write_field(self, _: &str, payload: &mut Map<String, Value>) {
        payload.extend(self.0);
    }
}

impl PayloadField for Value {
    const FIELD_TYPE: EventFieldType = EventFieldType::Any;

    fn write_field(self, name: &str, payload: &mut Map<String, Value>) {
        payload.insert(name.to_owned(), self);
    }
}

impl PayloadField for ThreadLimits {
    const FIELD_TYPE: EventFieldType = EventFieldType::Object;

    fn write_field(self, name: &str, payload: &mut Map<String, Value>) {
        payload.insert(name.to_owned(), self.to_value());
    }
}

impl PayloadField for Cost {
    const FIELD_TYPE: EventFieldType = EventFieldType::Object;

    fn write_field(self, name: &str, payload: &mut Map<String, Value>) {
        payload.insert(name.to_owned(), self.to_value());
    }
}

/// Types whose JSON is that of serde.
macro_rules! serialized_fields {
    ($($kind:ty => $field_type:expr),* $(,)?) => {
        $(impl PayloadField for $kind {
            const FIELD_TYPE: EventFieldType = $field_type;

            fn write_field(self, name: &str, payload: &mut Map<String, Value>) {
                payload.insert(name.to_owned(), to_json(&self));
            }
        })*
    };
}

serialized_fields! {
    String => EventFieldType::Text,
    ThreadId => EventFieldType::Text,
    u64 => EventFieldType::Integer,
    u32 => EventFieldType::Integer,
    u16 => EventFieldType::Integer,
    usize => EventFieldType::Integer,
    f64 => EventFieldType::Number,
    bool => EventFieldType::Boolean,
    Vec<String> => EventFieldType::List,
    Vec<SkippedTool> => EventFieldType::List,
    Vec<FilePart> => EventFieldType::List,
    Map<String, Value> => EventFieldType::Object,
    ThreadStatus => EventFieldType::OneOf(&[
        "created", "running", "suspended", "completed", "error", "cancelled", "killed", "continued",
    ]),
    SuspendReason => EventFieldType::OneOf(&["limit", "error", "budget", "approval", "provider"]),
    BudgetResource => EventFieldType::OneOf(&["spend", "tokens"]),
    ApprovalKind => EventFieldType::OneOf(&["limit", "tool", "approval"]),
    ApprovalScope => EventFieldType::OneOf(&["item", "arguments"]),
}

/// Text, numbers, lists and words can always be written as JSON.
fn to_json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}
