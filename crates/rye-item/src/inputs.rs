//! A directive's inputs: what was given against what is declared, everything wrong at once.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Number, Value};

/// Everything wrong with the inputs given to a directive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InputErrors {
    /// Given but not declared, in the order given.
    pub unknown: Vec<String>,
    /// Required, without a default, and not given.
    pub missing: Vec<String>,
    /// Given with a value of another type.
    pub mistyped: Vec<TypeMismatch>,
    /// The names that are declared.
    pub declared: Vec<String>,
}

/// An input whose value is not of its declared type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TypeMismatch {
    /// The input's name.
    pub name: String,
    /// The type it declares.
    pub expected: String,
    /// The type that was given.
    pub found: String,
}

impl std::error::Error for InputErrors {}

impl fmt::Display for InputErrors {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        if !self.unknown.is_empty() {
            parts.push(format!(
                "Unknown parameters: {}. Valid inputs: {}",
                self.unknown.join(", "),
                self.declared.join(", ")
            ));
        }
        if !self.missing.is_empty() {
            parts.push(format!("Missing required inputs: {}", self.missing.join(", ")));
        }
        if !self.mistyped.is_empty() {
            let list: Vec<_> = self
                .mistyped
                .iter()
                .map(|wrong| format!("{} (expected {}, found {})", wrong.name, wrong.expected, wrong.found))
                .collect();
            parts.push(format!("Wrongly typed inputs: {}", list.join(", ")));
        }
        formatter.write_str(&parts.join("; "))
    }
}

/// Checks the inputs given to a directive against those it declares (its `inputs` field), and completes them with
/// its defaults.
///
/// A text given for another type is read as that type, as the command line can give nothing but texts. `null` counts
/// as not given. A directive that declares no inputs takes any.
///
/// # Errors
/// When inputs are unknown, missing or wrongly typed: all of them together.
pub fn check_inputs(
    declared: &[Value],
    values: &Map<String, Value>,
) -> Result<Map<String, Value>, InputErrors> {
    if declared.is_empty() {
        return Ok(values.clone());
    }
    let name_of = |input: &Value| input.get("name").and_then(Value::as_str).unwrap_or("").to_owned();
    let names: Vec<_> = declared.iter().map(name_of).collect();
    let mut problems = InputErrors {
        unknown: values.keys().filter(|name| !names.contains(name)).cloned().collect(),
        declared: names.clone(),
        ..InputErrors::default()
    };
    let mut checked = Map::new();
    for (input, name) in declared.iter().zip(names) {
        let kind = input.get("type").and_then(Value::as_str).unwrap_or("string");
        let is_required = input.get("required").and_then(Value::as_bool).unwrap_or(false);
        match values.get(&name).filter(|value| !value.is_null()) {
            Some(value) => match coerce(kind, value) {
                Some(value) => {
                    checked.insert(name, value);
                }
                None => problems.mistyped.push(TypeMismatch {
                    name,
                    expected: kind.to_owned(),
                    found: type_name(value).to_owned(),
                }),
            },
            None => match input.get("default") {
                Some(default) => {
                    checked.insert(name, default.clone());
                }
                None if is_required => problems.missing.push(name),
                None => {}
            },
        }
    }
    let is_valid = problems.unknown.is_empty() && problems.missing.is_empty() && problems.mistyped.is_empty();
    if is_valid { Ok(checked) } else { Err(problems) }
}

/// Whether `kind` is a type whose values are checked; of any other, every value is right.
#[must_use]
pub fn is_known_type(kind: &str) -> bool {
    matches!(kind, "string" | "file" | "integer" | "number" | "boolean" | "object" | "array")
}

/// A text read as the declared type, or nothing where it does not fit; a string is taken as it is.
#[must_use]
pub fn parse_typed(kind: &str, text: &str) -> Option<Value> {
    match kind {
        "integer" => match serde_json::from_str(text).ok()? {
            Value::Number(number) => to_integer(&number),
            _ => None,
        },
        "number" => serde_json::from_str(text).ok().filter(Value::is_number),
        "boolean" if text.eq_ignore_ascii_case("true") => Some(Value::Bool(true)),
        "boolean" if text.eq_ignore_ascii_case("false") => Some(Value::Bool(false)),
        "boolean" => None,
        "object" => serde_json::from_str(text).ok().filter(Value::is_object),
        "array" => serde_json::from_str(text).ok().filter(Value::is_array),
        _ => Some(Value::String(text.to_owned())),
    }
}

/// The value as the declared type has it, or nothing where it does not fit.
fn coerce(kind: &str, value: &Value) -> Option<Value> {
    match (kind, value) {
        ("string" | "file", Value::String(_)) => Some(value.clone()),
        ("string" | "file", _) => None,
        (_, Value::String(text)) => parse_typed(kind, text),
        ("integer", Value::Number(number)) => to_integer(number),
        ("integer", _) => None,
        ("number", _) => value.is_number().then(|| value.clone()),
        ("boolean", _) => value.is_boolean().then(|| value.clone()),
        ("object", _) => value.is_object().then(|| value.clone()),
        ("array", _) => value.is_array().then(|| value.clone()),
        _ => Some(value.clone()),
    }
}

/// A number without a fraction, as an integer.
fn to_integer(number: &Number) -> Option<Value> {
    if !number.is_f64() {
        return Some(Value::Number(number.clone()));
    }
    let value = number.as_f64().filter(|value| value.fract() == 0.0 && value.abs() < 9e15)?;
    format!("{value:.0}").parse::<i64>().ok().map(Value::from)
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn check_json(declared: &Value, values: &Value) -> Result<Value, String> {
        check_inputs(declared.as_array().unwrap(), values.as_object().unwrap())
            .map(Value::Object)
            .map_err(|problems| problems.to_string())
    }

    #[test]
    fn everything_wrong_is_reported_together() {
        let declared = json!([
            { "name": "a", "type": "string", "required": true },
            { "name": "b", "type": "string", "required": true },
            { "name": "n", "type": "integer", "required": false },
        ]);
        assert_eq!(
            check_json(&declared, &json!({ "x": 1, "n": "many", "a": 3, "y": 2 })),
            Err("Unknown parameters: x, y. Valid inputs: a, b, n; Missing required inputs: b; Wrongly typed inputs: \
                 a (expected string, found number), n (expected integer, found string)"
                .to_owned())
        );
    }

    #[test]
    fn defaults_fill_missing_inputs() {
        let declared = json!([
            { "name": "a", "type": "integer", "required": true, "default": 3 },
            { "name": "b", "type": "string", "required": false },
            { "name": "c" },
        ]);
        assert_eq!(check_json(&declared, &json!({})), Ok(json!({ "a": 3 })));
        assert_eq!(check_json(&declared, &json!({ "a": null, "c": "x" })), Ok(json!({ "a": 3, "c": "x" })));
    }

    #[test]
    fn undeclared_inputs_accept_anything() {
        assert_eq!(check_json(&json!([]), &json!({ "x": [1] })), Ok(json!({ "x": [1] })));
    }

    #[test]
    fn values_fit_their_types() {
        let table = [
            ("integer", json!("12"), Some(json!(12))),
            ("integer", json!("-1"), Some(json!(-1))),
            ("integer", json!(2.0), Some(json!(2))),
            ("integer", json!("18446744073709551615"), Some(json!(u64::MAX))),
            ("integer", json!("1.5"), None),
            ("integer", json!(1e300), None),
            ("integer", json!(""), None),
            ("integer", json!(true), None),
            ("number", json!("1.5"), Some(json!(1.5))),
            ("number", json!("1e3"), Some(json!(1000.0))),
            ("number", json!("NaN"), None),
            ("number", json!("[1]"), None),
            ("boolean", json!("True"), Some(json!(true))),
            ("boolean", json!(false), Some(json!(false))),
            ("boolean", json!("yes"), None),
            ("boolean", json!(1), None),
            ("array", json!("[1]"), Some(json!([1]))),
            ("array", json!("1"), None),
            ("array", json!({}), None),
            ("object", json!("{\"a\":1}"), Some(json!({ "a": 1 }))),
            ("object", json!([]), None),
            ("string", json!("12"), Some(json!("12"))),
            ("string", json!(12), None),
            ("path", json!("x"), Some(json!("x"))),
            ("path", json!([1]), Some(json!([1]))),
        ];
        for (kind, value, expected) in table {
            assert_eq!(coerce(kind, &value), expected, "{kind} {value}");
        }
    }

    #[test]
    fn deeply_nested_text_is_rejected() {
        assert_eq!(parse_typed("array", &"[".repeat(100_000)), None);
    }

    proptest! {
        #[test]
        fn checking_again_changes_nothing(number in any::<i64>(), flag in any::<bool>()) {
            let declared = json!([{ "name": "n", "type": "integer" }, { "name": "f", "type": "boolean" }]);
            let given = json!({ "n": number.to_string(), "f": flag.to_string() });
            let once = check_json(&declared, &given).unwrap();
            prop_assert_eq!(&once, &json!({ "n": number, "f": flag }));
            prop_assert_eq!(check_json(&declared, &once), Ok(once));
        }
    }
}
