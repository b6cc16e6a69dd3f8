//! Parameters that are plainly valid: schemas of the common keywords, and values that fit them without a doubt. It only
//! ever accepts; whatever is not plain, or does not fit, is judged by the validator, which takes milliseconds to set up.

use serde_json::{Map, Value};

/// Deeper schemas are not plain.
const MAX_DEPTH: usize = 16;

const TYPES: [&str; 7] = ["string", "integer", "number", "boolean", "array", "object", "null"];

/// Whether every part of the schema is one of the common keywords, used as it should be.
pub(super) fn is_simple(schema: &Value) -> bool {
    is_simple_at_depth(schema, 0)
}

fn is_simple_at_depth(schema: &Value, depth: usize) -> bool {
    let Value::Object(schema) = schema else {
        return false;
    };
    depth < MAX_DEPTH
        && schema.iter().all(|(keyword, rule)| match keyword.as_str() {
            "type" => type_names(rule).is_some_and(|names| names.iter().all(|name| TYPES.contains(name))),
            "title" | "description" => rule.is_string(),
            "default" => true,
            "properties" => match rule {
                Value::Object(inner) => inner.values().all(|inner| is_simple_at_depth(inner, depth + 1)),
                _ => false,
            },
            "required" => match rule {
                Value::Array(names) => names.iter().all(Value::is_string),
                _ => false,
            },
            "additionalProperties" => rule.is_boolean(),
            "items" => is_simple_at_depth(rule, depth + 1),
            "enum" => matches!(rule, Value::Array(values) if !values.is_empty()),
            "minimum" | "maximum" => rule.as_i64().is_some(),
            "minLength" | "maxLength" | "minItems" | "maxItems" => rule.as_u64().is_some(),
            _ => false,
        })
}

/// Whether a value fits a plain schema. What could be argued about does not.
pub(super) fn accepts(schema: &Value, value: &Value) -> bool {
    let Value::Object(schema) = schema else {
        return false;
    };
    schema.iter().all(|(keyword, rule)| match keyword.as_str() {
        "type" => type_names(rule).is_some_and(|names| names.iter().any(|name| has_type(value, name))),
        "properties" | "required" | "additionalProperties" => match value {
            Value::Object(map) => accepts_members(schema, keyword, rule, map),
            _ => true,
        },
        "items" => match value {
            Value::Array(list) => list.iter().all(|inner| accepts(rule, inner)),
            _ => true,
        },
        // Numbers are equal by value: 1 and 1.0 are, and are left to the validator.
        "enum" => rule.as_array().is_some_and(|values| values.contains(value)),
        "minimum" | "maximum" => match (value, value.as_i64(), rule.as_i64()) {
            (Value::Number(_), Some(value), Some(bound)) if keyword == "minimum" => value >= bound,
            (Value::Number(_), Some(value), Some(bound)) => value <= bound,
            (Value::Number(_), _, _) => false,
            _ => true,
        },
        "minLength" | "maxLength" | "minItems" | "maxItems" => {
            let size = match value {
                Value::String(text) if keyword.ends_with("Length") => text.chars().count(),
                Value::Array(list) if keyword.ends_with("Items") => list.len(),
                _ => return true,
            };
            let bound = rule.as_u64().unwrap_or_default();
            if keyword.starts_with("min") { size as u64 >= bound } else { size as u64 <= bound }
        }
        _ => true,
    })
}

fn accepts_members(
    schema: &Map<String, Value>,
    keyword: &str,
    rule: &Value,
    map: &Map<String, Value>,
) -> bool {
    match (keyword, rule) {
        ("properties", Value::Object(properties)) => {
            properties.iter().all(|(name, inner)| map.get(name).is_none_or(|member| accepts(inner, member)))
        }
        ("required", Value::Array(names)) => {
            names.iter().all(|name| name.as_str().is_some_and(|name| map.contains_key(name)))
        }
        ("additionalProperties", Value::Bool(true)) => true,
        ("additionalProperties", Value::Bool(false)) => {
            let properties = schema.get("properties").and_then(Value::as_object);
            map.keys().all(|name| properties.is_some_and(|properties| properties.contains_key(name)))
        }
        _ => false,
    }
}

fn type_names(rule: &Value) -> Option<Vec<&str>> {
    match rule {
        Value::String(name) => Some(vec![name]),
        Value::Array(names) if !names.is_empty() => names.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match value {
        Value::Null => name == "null",
        Value::Bool(_) => name == "boolean",
        Value::Number(number) => {
            name == "number" || name == "integer" && (number.is_i64() || number.is_u64())
        }
        Value::String(_) => name == "string",
        Value::Array(_) => name == "array",
        Value::Object(_) => name == "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn schemas() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!({"type": "string", "minLength": 1, "maxLength": 2})),
            Just(json!({"type": ["integer", "null"], "minimum": -1, "maximum": 3})),
            Just(json!({"type": "number", "default": 1.5})),
            Just(json!({"enum": ["a", 1, null, true]})),
            Just(json!({"type": "boolean", "description": "yes or no"})),
            Just(json!({"minItems": 1})),
            Just(json!({})),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|items| json!({"type": "array", "items": items, "maxItems": 2})),
                (inner.clone(), inner, any::<bool>(), any::<bool>()).prop_map(|(a, b, more, needs)| {
                    let required = if needs { json!(["a"]) } else { json!([]) };
                    json!({
                        "type": "object", "properties": {"a": a, "b": b},
                        "additionalProperties": more, "required": required,
                    })
                }),
            ]
        })
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            (-3_i64..5).prop_map(Value::from),
            Just(json!(1.0)),
            Just(json!(2.5)),
            "[ab]{0,3}".prop_map(Value::String),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
                prop::collection::btree_map("[abc]", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn accepted_values_are_valid((schema, value) in (schemas(), values())) {
            prop_assert!(is_simple(&schema), "{schema}");
            let validator = jsonschema::validator_for(&schema).expect("a schema");
            prop_assert!(!accepts(&schema, &value) || validator.is_valid(&value), "{schema} {value}");
        }
    }

    #[test]
    fn ordinary_parameters_are_accepted() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["path"],
            "properties": {
                "path": {"type": "string", "description": "a file"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 10, "default": 5},
            },
        });
        assert!(is_simple(&schema));
        assert!(accepts(&schema, &json!({"path": "a", "limit": 5})));
        for bad in
            [json!({}), json!({"path": 1}), json!({"path": "a", "x": 1}), json!({"path": "a", "limit": 11})]
        {
            assert!(!accepts(&schema, &bad), "{bad}");
        }
    }

    #[test]
    fn unknown_or_misused_keywords_are_not_simple() {
        for schema in [
            json!({"pattern": "a"}),
            json!({"anyOf": []}),
            json!({"$ref": "#"}),
            json!({"type": "text"}),
            json!({"required": "a"}),
            json!({"properties": []}),
            json!({"items": true}),
            json!({"minimum": 1.5}),
            json!({"properties": {"a": {"format": "uri"}}}),
            json!(true),
        ] {
            assert!(!is_simple(&schema), "{schema}");
        }
    }
}
