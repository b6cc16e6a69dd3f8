//! What a client passes to a tool, read strictly: a misspelt argument is refused, `null` means not given.

use rye_engine::{Code, Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Reads the arguments of a tool.
///
/// # Errors
/// When one is missing, unknown or of another type.
pub(crate) fn parse<T: DeserializeOwned>(given: Map<String, Value>) -> Result<T> {
    let given = given.into_iter().filter(|(_, value)| !value.is_null()).collect();
    serde_json::from_value(Value::Object(given)).map_err(|error| {
        Error::new(Code::InvalidArgument, rye_item::text::one_line(&error.to_string()))
            .hint("the tool's input schema lists its arguments")
    })
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecuteParams {
    pub(crate) item_type: Option<String>,
    pub(crate) item_id: String,
    #[serde(default)]
    pub(crate) parameters: Map<String, Value>,
    #[serde(default)]
    pub(crate) dry_run: bool,
    #[serde(default)]
    pub(crate) thread: ThreadMode,
    #[serde(default, rename = "async")]
    pub(crate) is_async: bool,
    #[serde(default)]
    pub(crate) model: String,
    #[serde(default)]
    pub(crate) limit_overrides: Map<String, Value>,
    pub(crate) project_path: Option<String>,
}

/// Who follows a directive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ThreadMode {
    /// The agent that asks.
    #[default]
    Inline,
    /// A thread of its own.
    Fork,
}
