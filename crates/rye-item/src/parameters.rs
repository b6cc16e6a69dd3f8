//! The parameters of a call against the tool's `CONFIG_SCHEMA`: words typed, defaults filled in, every violation listed.

mod schema_fast_path;

use serde::Serialize;
use serde_json::{Map, Value};

/// Something wrong with a parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The JSON path of the value: `$.items[2].name`.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// Why parameters are refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParameterError {
    /// The parameters do not fit.
    #[error("{}", render_violations(.0))]
    Invalid(Vec<Violation>),
    /// The tool's own schema cannot be used.
    #[error("the tool's schema is not valid: {0}")]
    Schema(String),
}

fn render_violations(violations: &[Violation]) -> String {
    let lines: Vec<_> = violations.iter().map(|one| format!("{}: {}", one.path, one.message)).collect();
    lines.join("; ")
}

/// Types the words of a command line (`count=3`) by the schema: text stays text where text is declared, anything else
/// is read as JSON; what is not declared is JSON if it reads as such, and text if not.
#[must_use]
pub fn parse_words(words: &[(String, String)], schema: Option<&Value>) -> Map<String, Value> {
    let declared = |name: &str| schema?.get("properties")?.get(name)?.get("type");
    words
        .iter()
        .map(|(name, word)| {
            let is_text = match declared(name) {
                Some(Value::String(kind)) => kind == "string",
                Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "string"),
                Some(_) | None => false,
            };
            let text = || Value::String(word.clone());
            let value = if is_text { text() } else { serde_json::from_str(word).unwrap_or_else(|_| text()) };
            (name.clone(), value)
        })
        .collect()
}

/// Checks parameters and fills in defaults.
///
/// # Errors
/// Every violation at once, or what is wrong with the schema.
pub fn check(
    parameters: Map<String, Value>,
    schema: Option<&Value>,
) -> Result<Map<String, Value>, ParameterError> {
    let Some(schema) = schema else {
        return Ok(parameters);
    };
    if !schema.is_object() {
        return Err(ParameterError::Schema("it is not an object".to_owned()));
    }
    let mut parameters = Value::Object(parameters);
    fill_defaults(&mut parameters, schema, 0);
    if schema_fast_path::is_simple(schema) && schema_fast_path::accepts(schema, &parameters) {
        return match parameters {
            Value::Object(parameters) => Ok(parameters),
            _ => Err(ParameterError::Invalid(Vec::new())),
        };
    }
    let validator = validator(schema)?;
    let violations: Vec<Violation> =
        validator.iter_errors(&parameters).map(|error| violation(&error)).collect();
    match parameters {
        Value::Object(parameters) if violations.is_empty() => Ok(parameters),
        _ => Err(ParameterError::Invalid(violations)),
    }
}

fn validator(schema: &Value) -> Result<jsonschema::Validator, ParameterError> {
    jsonschema::validator_for(schema)
        .map_err(|error| ParameterError::Schema(crate::text::one_line(&error.to_string())))
}

fn violation(error: &jsonschema::ValidationError<'_>) -> Violation {
    Violation {
        path: json_path(&error.instance_path().to_string()),
        message: crate::text::one_line(&error.to_string()),
    }
}

/// Everything in a document that its schema does not allow. A key too many has a violation of its own, at its own path.
///
/// # Errors
/// What is wrong with the schema.
pub fn violations(document: &Value, schema: &Value) -> Result<Vec<Violation>, ParameterError> {
    use jsonschema::error::ValidationErrorKind;

    let mut found = Vec::new();
    for error in validator(schema)?.iter_errors(document) {
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let parent = json_path(&error.instance_path().to_string());
                found.extend(unexpected.iter().map(|key| Violation {
                    path: format!("{parent}.{}", crate::text::one_line(key)),
                    message: "unknown key".to_owned(),
                }));
            }
            ValidationErrorKind::Enum { options } => {
                let words = options.as_array().into_iter().flatten();
                let words: Vec<String> = words.map(ToString::to_string).collect();
                let message = format!("{} is not one of {}", error.instance(), words.join(", "));
                found.push(Violation {
                    message: crate::text::one_line(&message.replace('"', "`")),
                    ..violation(&error)
                });
            }
            _ => found.push(violation(&error)),
        }
    }
    Ok(found)
}

/// Everything that keeps a document from being a JSON Schema; paths are those of the schema.
#[must_use]
pub fn schema_problems(schema: &Value) -> Vec<Violation> {
    if !schema.is_object() {
        return vec![Violation { path: "$".to_owned(), message: "a schema is an object".to_owned() }];
    }
    let found: Vec<Violation> = match jsonschema::meta::validator_for(schema) {
        Ok(meta) => meta.iter_errors(schema).map(|error| violation(&error)).collect(),
        Err(error) => vec![violation(&error)],
    };
    if !found.is_empty() {
        return found;
    }
    // A pattern or a reference may be well formed and still lead nowhere.
    jsonschema::validator_for(schema).err().map(|error| violation(&error)).into_iter().collect()
}

/// Deeper than any tool's parameters; a schema is data and may be as deep as it likes.
const MAX_DEPTH: usize = 32;

fn fill_defaults(value: &mut Value, schema: &Value, depth: usize) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Object(map) => {
            let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
            for (name, property) in properties {
                if let (None, Some(default)) = (map.get(name), property.get("default")) {
                    map.insert(name.clone(), default.clone());
                }
                if let Some(inner) = map.get_mut(name) {
                    fill_defaults(inner, property, depth + 1);
                }
            }
        }
        Value::Array(list) => {
            if let Some(items) = schema.get("items") {
                list.iter_mut().for_each(|inner| fill_defaults(inner, items, depth + 1));
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// `/items/2/name` as `$.items[2].name`.
fn json_path(pointer: &str) -> String {
    let mut path = "$".to_owned();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if part.parse::<usize>().is_ok() {
            path.push_str(&format!("[{part}]"));
        } else {
            path.push('.');
            path.push_str(&crate::text::one_line(&part));
        }
    }
    path
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "values are written in place")]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().expect("an object").clone()
    }

    #[test]
    fn document_violations_are_listed_per_key() {
        let schema = json!({"type": "object", "additionalProperties": false, "properties": {
            "a": {"type": "array", "items": {"type": "object", "additionalProperties": false,
                "properties": {"b": {"enum": ["x", "y", "z", "u", "v"]}}}},
        }});
        let document = json!({"a": [{"b": "q"}, {"c": 1, "d": 2}], "e": 3});
        let found = violations(&document, &schema).expect("a schema");
        let mut lines: Vec<String> =
            found.iter().map(|one| format!("{}: {}", one.path, one.message)).collect();
        lines.sort();
        assert_eq!(
            lines,
            [
                "$.a[0].b: `q` is not one of `x`, `y`, `z`, `u`, `v`",
                "$.a[1].c: unknown key",
                "$.a[1].d: unknown key",
                "$.e: unknown key",
            ]
        );
        assert!(matches!(violations(&document, &json!({"type": 7})), Err(ParameterError::Schema(_))));
    }

    #[test]
    fn words_are_parsed_by_schema_type() {
        let schema = json!({"properties": {
            "text": {"type": "string"}, "count": {"type": "integer"}, "either": {"type": ["string", "null"]}
        }});
        let words = [("text", "12"), ("count", "12"), ("either", "null"), ("free", "[1]"), ("odd", "a b")];
        let words = words.map(|(name, word)| (name.to_owned(), word.to_owned()));
        assert_eq!(
            parse_words(&words, Some(&schema)),
            map(json!({"text": "12", "count": 12, "either": "null", "free": [1], "odd": "a b"}))
        );
    }

    #[test]
    fn defaults_are_filled_and_violations_listed() {
        let schema = json!({
            "type": "object",
            "properties": {
                "name": {"type": "string", "default": "world"},
                "list": {"type": "array", "items": {"properties": {"n": {"type": "integer", "default": 1}}}},
                "count": {"type": "integer"}
            },
            "required": ["count"],
            "additionalProperties": false
        });
        assert_eq!(
            check(map(json!({"count": 1, "list": [{}]})), Some(&schema)),
            Ok(map(json!({"count": 1, "list": [{"n": 1}], "name": "world"})))
        );
        let Err(ParameterError::Invalid(violations)) =
            check(map(json!({"list": [{"n": "x"}], "more": 1})), Some(&schema))
        else {
            panic!("refused");
        };
        let mut paths: Vec<_> = violations.iter().map(|one| one.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["$", "$", "$.list[0].n"], "{violations:?}");
    }

    #[test]
    fn invalid_schema_is_reported() {
        let refused = check(Map::new(), Some(&json!({"type": 7})));
        assert!(matches!(refused, Err(ParameterError::Schema(_))), "{refused:?}");
        assert!(matches!(check(Map::new(), Some(&json!([]))), Err(ParameterError::Schema(_))));
        let remote = json!({"$ref": "http://127.0.0.1/schema.json"});
        assert!(
            matches!(check(Map::new(), Some(&remote)), Err(ParameterError::Schema(_))),
            "nothing is fetched"
        );
    }
}
