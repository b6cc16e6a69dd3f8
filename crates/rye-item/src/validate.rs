//! Validation of an item's fields against its extractor's schema: all problems at once, in the original's words.

use serde_json::{Map, Value};

use crate::diagnostic::{Diagnostic, ParsedItem};

/// What a field may hold.
#[derive(Clone, Debug)]
enum FieldKind {
    Text { is_snake_case: bool },
    Integer,
    Number,
    Boolean,
    Semver,
    Enum(Vec<String>),
    Object(Vec<(String, FieldRule)>),
    Array { of_objects: bool, required_keys: Vec<String> },
}

/// What is valid for one field.
#[derive(Clone, Debug)]
pub struct FieldRule {
    is_required: bool,
    is_nullable: bool,
    kind: FieldKind,
    minimum: Option<f64>,
    maximum: Option<f64>,
    matches_filename: bool,
    matches_path: bool,
}

/// Where the item is supposed to live: its file's stem and the folder below its type's folder.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedPath<'a> {
    /// The file's name without extension.
    pub name: &'a str,
    /// The category its path gives it.
    pub category: &'a str,
}

impl FieldRule {
    /// Reads a map of field rules; unknown types are problems.
    pub(crate) fn parse_fields(
        fields: Option<&Value>,
        path: &str,
        problems: &mut Vec<Diagnostic>,
    ) -> Vec<(String, Self)> {
        let Some(fields) = fields.and_then(Value::as_object) else {
            return Vec::new();
        };
        fields
            .iter()
            .filter_map(|(field, rule)| {
                Some((field.clone(), Self::parse(rule, &format!("{path}.{field}"), problems)?))
            })
            .collect()
    }

    fn parse(rule: &Value, path: &str, problems: &mut Vec<Diagnostic>) -> Option<Self> {
        let flag = |key: &str| rule.get(key).and_then(Value::as_bool).unwrap_or(false);
        let text = |key: &str| rule.get(key).and_then(Value::as_str);
        let texts = |key: &str| -> Vec<String> {
            let list = rule.get(key).and_then(Value::as_array).into_iter().flatten();
            list.filter_map(|entry| entry.as_str().map(str::to_owned)).collect()
        };
        let kind = match text("type").unwrap_or("string") {
            "string" => FieldKind::Text { is_snake_case: text("format") == Some("snake_case") },
            "integer" => FieldKind::Integer,
            "number" => FieldKind::Number,
            "boolean" => FieldKind::Boolean,
            "semver" => FieldKind::Semver,
            "enum" => FieldKind::Enum(texts("values")),
            "object" => FieldKind::Object(Self::parse_fields(rule.get("nested"), path, problems)),
            "array" => FieldKind::Array {
                of_objects: text("item_type") == Some("object"),
                required_keys: texts("item_required"),
            },
            other => {
                problems.push(Diagnostic::new(format!("unknown field type `{other}`")).with_field(path));
                return None;
            }
        };
        Some(Self {
            is_required: flag("required"),
            is_nullable: flag("nullable"),
            kind,
            minimum: rule.get("min").and_then(Value::as_f64),
            maximum: rule.get("max").and_then(Value::as_f64),
            matches_filename: flag("match_filename"),
            matches_path: flag("match_path"),
        })
    }

    fn check(
        &self,
        field: &str,
        value: Option<&Value>,
        expected: Option<ExpectedPath<'_>>,
        messages: &mut ProblemCollector<'_>,
    ) {
        let is_absent = matches!(value, None | Some(Value::Null));
        let is_empty_text = value.and_then(Value::as_str) == Some("");
        let is_empty_list = value.and_then(Value::as_array).is_some_and(Vec::is_empty);
        let is_missing =
            (is_absent && !self.is_nullable) || is_empty_list || (is_empty_text && !self.matches_path);
        if self.is_required && is_missing {
            messages.add(field, format!("Missing required field: {field}"));
            return;
        }
        let Some(value) = value.filter(|_| !is_absent && (!is_empty_text || self.matches_path)) else {
            return;
        };
        if !self.check_kind(field, value, messages) {
            return;
        }
        if let Some(expected) = expected {
            self.check_path(field, value, expected, messages);
        }
    }

    /// Whether the value has the kind at all; details are reported without stopping.
    fn check_kind(&self, field: &str, value: &Value, messages: &mut ProblemCollector<'_>) -> bool {
        let found = type_name(value);
        let must_be = |what: &str| format!("Field '{field}' must be {what}, got {found}");
        match &self.kind {
            FieldKind::Text { is_snake_case } => match value.as_str() {
                None => messages.reject(field, must_be("a string")),
                Some(text) if *is_snake_case && !is_snake_case_word(text) => {
                    messages.add(
                        field,
                        format!(
                            "Field '{field}' must be snake_case (lowercase letters, numbers, underscores, starting with letter), got '{text}'"
                        ),
                    );
                    true
                }
                Some(_) => true,
            },
            FieldKind::Integer if !(value.is_i64() || value.is_u64()) => {
                messages.reject(field, must_be("an integer"))
            }
            FieldKind::Number if !value.is_number() => messages.reject(field, must_be("a number")),
            FieldKind::Integer | FieldKind::Number => {
                let number = value.as_f64().unwrap_or(0.0);
                if let Some(minimum) = self.minimum.filter(|minimum| number < *minimum) {
                    messages.add(field, format!("Field '{field}' must be >= {minimum}, got {value}"));
                }
                if let Some(maximum) = self.maximum.filter(|maximum| number > *maximum) {
                    messages.add(field, format!("Field '{field}' must be <= {maximum}, got {value}"));
                }
                true
            }
            FieldKind::Boolean => value.is_boolean() || messages.reject(field, must_be("a boolean")),
            FieldKind::Semver => match value.as_str() {
                None => messages.reject(field, must_be("a string (semver)")),
                Some(text) if !is_semver(text) => messages
                    .reject(field, format!("Field '{field}' must be semver format (X.Y.Z), got '{text}'")),
                Some(_) => true,
            },
            FieldKind::Enum(allowed) => {
                let actual = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                allowed.contains(&actual) || {
                    let list = allowed.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(", ");
                    messages.reject(field, format!("Field '{field}' must be one of [{list}], got '{actual}'"))
                }
            }
            FieldKind::Object(nested) => match value.as_object() {
                None => messages.reject(field, must_be("an object")),
                Some(map) => {
                    for (name, rule) in nested {
                        rule.check(&format!("{field}.{name}"), map.get(name), None, messages);
                    }
                    true
                }
            },
            FieldKind::Array { of_objects, required_keys } => match value.as_array() {
                None => messages.reject(field, must_be("an array")),
                Some(list) => {
                    check_elements(field, list, *of_objects, required_keys, messages);
                    true
                }
            },
        }
    }

    fn check_path(
        &self,
        field: &str,
        value: &Value,
        expected: ExpectedPath<'_>,
        messages: &mut ProblemCollector<'_>,
    ) {
        let text = value.as_str().unwrap_or_default();
        if self.matches_filename && text != expected.name {
            messages.add(
                field,
                format!("Field '{field}' value '{text}' must match filename '{}'", expected.name),
            );
        }
        if self.matches_path && text.trim_matches('/') != expected.category {
            messages.add(
                field,
                format!("Field '{field}' value '{text}' must match path category '{}'", expected.category),
            );
        }
    }
}

fn check_elements(
    field: &str,
    list: &[Value],
    of_objects: bool,
    required: &[String],
    messages: &mut ProblemCollector<'_>,
) {
    for (index, element) in list.iter().enumerate() {
        let Some(map) = element.as_object() else {
            if of_objects || !required.is_empty() {
                messages.add(field, format!("Field '{field}[{index}]' must be an object"));
            }
            continue;
        };
        for key in required {
            if !map.get(key).is_some_and(is_truthy) {
                messages.add(field, format!("Field '{field}[{index}]' missing required key '{key}'"));
            }
        }
    }
}

fn is_truthy(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(boolean) => *boolean,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// The type's name in the original's messages.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => "str",
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

fn is_snake_case_word(text: &str) -> bool {
    text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
}

fn is_semver(text: &str) -> bool {
    let parts: Vec<_> = text.split('.').collect();
    parts.len() == 3
        && parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

struct ProblemCollector<'a> {
    parsed: &'a ParsedItem,
    problems: Vec<Diagnostic>,
}

impl ProblemCollector<'_> {
    fn add(&mut self, field: &str, message: String) {
        let parent = field.split(['.', '[']).next().unwrap_or(field);
        let position = [field, parent].iter().find_map(|name| self.parsed.positions.get(*name)).copied();
        self.problems.push(Diagnostic { position, ..Diagnostic::new(message).with_field(field) });
    }

    /// Adds a message and says that the value is not of its kind.
    fn reject(&mut self, field: &str, message: String) -> bool {
        self.add(field, message);
        false
    }
}

/// Checks extracted `fields` against `schema`; positions come from `parsed`.
#[must_use]
pub fn validate(
    schema: &[(String, FieldRule)],
    fields: &Map<String, Value>,
    parsed: &ParsedItem,
    expected: ExpectedPath<'_>,
) -> Vec<Diagnostic> {
    let mut messages = ProblemCollector { parsed, problems: Vec::new() };
    for (field, rule) in schema {
        rule.check(field, fields.get(field), Some(expected), &mut messages);
    }
    messages.problems
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn messages(schema: &Value, fields: &Value) -> Vec<String> {
        let mut problems = Vec::new();
        let schema = FieldRule::parse_fields(Some(schema), "fields", &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        let expected = ExpectedPath { name: "hello", category: "demo" };
        validate(&schema, fields.as_object().expect("map"), &ParsedItem::default(), expected)
            .into_iter()
            .map(|problem| problem.message)
            .collect()
    }

    #[test]
    fn every_problem_uses_the_original_message() {
        let schema = json!({
            "name": {"required": true, "type": "string", "format": "snake_case", "match_filename": true},
            "version": {"required": true, "type": "semver"},
            "category": {"required": true, "type": "string", "match_path": true},
            "author": {"required": true, "type": "string"},
            "limits": {"type": "object", "nested": {"turns": {"type": "integer"}, "spend": {"type": "number"}}},
            "mode": {"type": "enum", "values": ["true", "false"]},
            "inputs": {"type": "array", "item_type": "object", "item_required": ["name", "type"]},
        });
        let fields = json!({"name": "Hello-World", "version": "1.0", "category": "other", "author": "",
            "limits": {"turns": "x", "spend": true}, "mode": "maybe", "inputs": [{"name": "a"}, 3]});
        assert_eq!(
            messages(&schema, &fields),
            [
                "Field 'name' must be snake_case (lowercase letters, numbers, underscores, starting with letter), got 'Hello-World'",
                "Field 'name' value 'Hello-World' must match filename 'hello'",
                "Field 'version' must be semver format (X.Y.Z), got '1.0'",
                "Field 'category' value 'other' must match path category 'demo'",
                "Missing required field: author",
                "Field 'limits.turns' must be an integer, got str",
                "Field 'limits.spend' must be a number, got bool",
                "Field 'mode' must be one of ['true', 'false'], got 'maybe'",
                "Field 'inputs[0]' missing required key 'type'",
                "Field 'inputs[1]' must be an object",
            ]
        );
    }

    #[test]
    fn a_nullable_required_field_may_be_absent() {
        let schema = json!({"executor_id": {"required": true, "type": "string", "nullable": true}});
        assert!(messages(&schema, &json!({})).is_empty());
        assert!(messages(&schema, &json!({"executor_id": null})).is_empty());
        assert_eq!(
            messages(&schema, &json!({"executor_id": 3})),
            ["Field 'executor_id' must be a string, got int"]
        );
    }

    #[test]
    fn an_empty_category_belongs_to_the_root() {
        let schema = json!({"category": {"required": true, "type": "string", "match_path": true}});
        assert_eq!(
            messages(&schema, &json!({"category": ""})),
            ["Field 'category' value '' must match path category 'demo'"]
        );
    }
}
