//! A thread in brief, as JSON: how it stands and what it came to.

use serde_json::{Map, Value, json};

use super::next_command::approve_command;
use crate::status::ThreadStatus;
use crate::store::ThreadRow;

/// A thread as threads and clients that wait for it see it: status, result, outputs, cost.
#[must_use]
pub fn thread_value(row: &ThreadRow) -> Value {
    let mut map = match &row.result {
        Some(Value::Object(result)) => result.clone(),
        _ => Map::new(),
    };
    map.insert("success".to_owned(), json!(row.status == ThreadStatus::Completed));
    map.insert("thread_id".to_owned(), json!(row.id));
    map.insert("directive".to_owned(), json!(row.directive));
    map.insert("status".to_owned(), json!(row.status));
    map.insert("cost".to_owned(), row.cost.to_value());
    if let Some(reason) = row.reason {
        map.insert("suspend_reason".to_owned(), json!(reason));
    }
    if row.status == ThreadStatus::Suspended
        && map.get("detail").is_some_and(|detail| !detail["questions"].is_null())
    {
        map.insert("approve".to_owned(), json!(approve_command(&row.id)));
    }
    if let Some(error) = &row.error {
        map.insert("error".to_owned(), json!(error));
    }
    Value::Object(map)
}
