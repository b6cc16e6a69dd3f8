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
    serde_json::from_value(Value::Object(given)).map_err(|error| describe(&error.to_string()))
}

/// What is wrong with the arguments, in the words of who gave them.
fn describe(message: &str) -> Error {
    let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    let invalid = |message: &str| Error::new(Code::InvalidArgument, rye_item::text::one_line(message));
    match quoted.as_slice() {
        [unknown, known @ ..] if message.starts_with("unknown field") => {
            // It is refused with a reason of its own.
            let known: Vec<&str> = known.iter().copied().filter(|name| *name != "destination").collect();
            let error = invalid(&format!("unknown argument `{unknown}`"));
            let error = match rye_item::text::nearest(unknown, known.iter().copied()) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            };
            let error = error.hint(format!("arguments are: {}, detail", known.join(", ")));
            match known.contains(&"parameters") {
                true => error.hint("what the item itself takes goes into `parameters`"),
                false => error,
            }
        }
        [missing, ..] if message.starts_with("missing field") => {
            invalid(&format!("the argument `{missing}` is missing"))
                .hint("the tool's input schema lists its arguments")
        }
        _ => invalid(message).hint("the tool's input schema lists its arguments"),
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_arguments_name_the_nearest() {
        let parse = |value: Value| {
            let error = parse::<ExecuteParams>(value.as_object().cloned().unwrap_or_default());
            error.map(drop).expect_err("refused")
        };
        let error = parse(json!({"item_id": "a", "modle": "x"}));
        assert_eq!(error.message, "unknown argument `modle`");
        assert_eq!(error.hints[0], "did you mean `model`?");
        let error = parse(json!({"item_id": "a", "command": "ls"}));
        assert!(error.hints[1].contains("goes into `parameters`"), "{error:?}");
        assert_eq!(parse(json!({})).message, "the argument `item_id` is missing");
    }
}
