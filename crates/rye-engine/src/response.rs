//! The object every verb that worked answers with; a failure's is [`crate::Error::to_value`].

use serde_json::{Map, Value};

/// The answer of a verb that worked: the same for the command line, for MCP and for hooks.
#[must_use]
pub fn success_response(item_type: Option<&str>, item_id: Option<&str>, data: Value) -> Value {
    let mut object = Map::new();
    object.insert("status".to_owned(), "success".into());
    if let Some(item_type) = item_type {
        object.insert("type".to_owned(), item_type.into());
    }
    if let Some(item_id) = item_id {
        object.insert("item_id".to_owned(), item_id.into());
    }
    object.insert("data".to_owned(), data);
    Value::Object(object)
}
