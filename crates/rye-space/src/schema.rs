//! Schemas of config files: which settings there are, what they may hold, and who may set them.

use rye_item::Diagnostic;
use serde_json::{Map, Value};

/// Whether an unsigned project file may set a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Safety {
    /// Any value.
    Safe,
    /// Only a value that allows less than the present one.
    Tighter,
    /// No.
    #[default]
    Unsafe,
}

/// Who may set a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingAccess {
    /// Whether an unsigned project file may.
    pub safety: Safety,
    /// Counts from user space only.
    pub is_user_only: bool,
    /// Counts in a signed file only, even in user space.
    pub must_be_signed: bool,
    /// A project may only lower it, even in a signed file.
    pub project_narrows: bool,
}

/// The schema of one config file.
#[derive(Clone, Debug)]
pub struct ConfigSchema {
    /// The file below `.ai/config/`, or a glob.
    pub target: String,
    root: Value,
}

impl ConfigSchema {
    /// Reads a `*.config-schema.yaml` document.
    ///
    /// # Errors
    /// When it names no target or has no schema.
    pub fn from_value(document: &Value) -> Result<Self, Diagnostic> {
        let target = document.get("target_config").and_then(Value::as_str);
        let target = target.ok_or_else(|| {
            Diagnostic::new("a config schema needs `target_config`").with_field("target_config")
        })?;
        let root = document.get("schema").filter(|schema| schema.is_object());
        let root =
            root.ok_or_else(|| Diagnostic::new("a config schema needs `schema`").with_field("schema"))?;
        Ok(Self { target: target.to_owned(), root: root.clone() })
    }

    /// The schema itself, as a JSON Schema.
    #[must_use]
    pub fn document(&self) -> &Value {
        &self.root
    }

    /// Whether this schema is for the config `id`.
    #[must_use]
    pub fn applies_to(&self, id: &str) -> bool {
        let stem = self.target.rsplit_once('.').map_or(self.target.as_str(), |(stem, _)| stem);
        match stem.split_once('*') {
            None => stem == id,
            Some((before, after)) => {
                id.len() >= before.len() + after.len()
                    && id.starts_with(before)
                    && id.ends_with(after)
                    && !id[before.len()..id.len() - after.len()].contains('/')
            }
        }
    }

    fn node(&self, path: &[String]) -> Option<&Value> {
        path.iter().try_fold(&self.root, |node, key| {
            let named = node.get("properties").and_then(|properties| properties.get(key));
            named.or_else(|| node.get("additionalProperties").filter(|node| node.is_object()))
        })
    }

    /// The config it is for; none if it is for several.
    #[must_use]
    pub fn config_id(&self) -> Option<&str> {
        let stem = self.target.rsplit_once('.').map_or(self.target.as_str(), |(stem, _)| stem);
        (!stem.contains('*')).then_some(stem)
    }

    /// The settings it names, by their dotted paths. What users name themselves, such as an alias, is not among them.
    #[must_use]
    pub fn keys(&self) -> Vec<String> {
        fn collect(node: &Value, path: &str, keys: &mut Vec<String>) {
            match node.get("properties").and_then(Value::as_object) {
                Some(properties) => {
                    for (key, node) in properties {
                        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                        collect(node, &path, keys);
                    }
                }
                None => keys.push(path.to_owned()),
            }
        }
        let mut keys = Vec::new();
        collect(&self.root, "", &mut keys);
        keys.retain(|key| !key.is_empty());
        keys
    }

    /// The types that a setting may have, as JSON Schema calls them.
    #[must_use]
    pub fn types(&self, path: &[String]) -> Vec<&str> {
        match self.node(path).and_then(|node| node.get("type")) {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether the key holds further keys.
    #[must_use]
    pub fn is_object(&self, path: &[String]) -> bool {
        self.node(path).is_some_and(|node| {
            node.get("properties").is_some() || node.get("additionalProperties").is_some()
        })
    }

    /// Who may set the key; `None` when there is no such key.
    #[must_use]
    pub fn access(&self, path: &[String]) -> Option<SettingAccess> {
        let mut access = SettingAccess::default();
        let mut node = &self.root;
        for key in std::iter::once(None).chain(path.iter().map(Some)) {
            if let Some(key) = key {
                let named = node.get("properties").and_then(|properties| properties.get(key));
                node = named.or_else(|| node.get("additionalProperties").filter(|node| node.is_object()))?;
            }
            let flag = |name: &str| node.get(name).and_then(Value::as_bool).unwrap_or(false);
            access.is_user_only |= flag("user_only");
            access.must_be_signed |= flag("must_be_signed");
            access.project_narrows |= flag("project_narrows");
            match node.get("safe") {
                Some(Value::Bool(true)) => access.safety = Safety::Safe,
                Some(Value::String(word)) if word == "tighter" => access.safety = Safety::Tighter,
                _ => {}
            }
        }
        Some(access)
    }

    /// Checks a value against the key's type, words and bounds.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, path: &[String], value: &Value) -> Result<(), String> {
        let Some(node) = self.node(path) else {
            return Err("unknown setting".to_owned());
        };
        let types: Vec<&str> = match node.get("type") {
            Some(Value::String(kind)) => vec![kind],
            Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
            _ => vec!["any"],
        };
        if !types.iter().any(|kind| has_json_type(value, kind)) {
            let text = rye_item::text::one_line(&value.to_string());
            return Err(format!("expected {}, found `{text}`", types.join(" or ")));
        }
        if let Some(words) = node.get("enum").and_then(Value::as_array)
            && !words.contains(value)
        {
            let list = words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
            return Err(format!(
                "expected one of {list}, found `{}`",
                rye_item::text::one_line(&value.to_string())
            ));
        }
        let bound = |name: &str| node.get(name).and_then(Value::as_f64);
        match value.as_f64() {
            Some(number) if bound("minimum").is_some_and(|minimum| number < minimum) => {
                Err(format!("expected at least {}, found {value}", node["minimum"]))
            }
            Some(number) if bound("maximum").is_some_and(|maximum| number > maximum) => {
                Err(format!("expected at most {}, found {value}", node["maximum"]))
            }
            _ => Ok(()),
        }
    }
}

fn has_json_type(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

/// Keys that describe a config file and are not settings.
const DESCRIPTION_KEYS: [&str; 6] =
    ["version", "category", "description", "name", "extends", "schema_version"];

/// Whether a top-level key describes the file instead of setting something.
#[must_use]
pub fn is_description_key(key: &str) -> bool {
    DESCRIPTION_KEYS.contains(&key)
}

impl ConfigSchema {
    /// Everything in a document that the schema does not allow: key and reason.
    #[must_use]
    pub fn problems(&self, fields: &Map<String, Value>) -> Vec<(String, String)> {
        let settings: Map<String, Value> = fields
            .iter()
            .filter(|(key, _)| !is_description_key(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        let leaves = flatten(&Value::Object(settings), Some(self));
        leaves
            .into_iter()
            .filter_map(|(path, value)| Some((path.join("."), self.check(&path, &value).err()?)))
            .collect()
    }
}

/// A setting: its keys from the top, and its value.
pub(crate) type SettingEntry = (Vec<String>, Value);

/// The settings of a document, one by one. What the schema calls an object is taken apart, anything else is whole.
pub(crate) fn flatten(value: &Value, schema: Option<&ConfigSchema>) -> Vec<SettingEntry> {
    let mut leaves = Vec::new();
    flatten_into(value, &mut Vec::new(), schema, &mut leaves);
    leaves
}

fn flatten_into(
    value: &Value,
    path: &mut Vec<String>,
    schema: Option<&ConfigSchema>,
    leaves: &mut Vec<SettingEntry>,
) {
    match value {
        Value::Object(map) if !map.is_empty() && schema.is_none_or(|schema| schema.is_object(path)) => {
            for (key, entry) in map {
                path.push(key.clone());
                flatten_into(entry, path, schema, leaves);
                path.pop();
            }
        }
        Value::Object(map) if map.is_empty() && path.is_empty() => {}
        other => leaves.push((path.clone(), other.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> ConfigSchema {
        ConfigSchema::from_value(&json!({"target_config": "a/b.yaml", "schema": {"type": "object", "properties": {
            "x": {"type": "object", "user_only": true, "properties": {"y": {"type": "integer", "maximum": 9}}},
            "z": {"type": "string", "enum": ["p", "q"], "safe": true},
        }}}))
        .expect("a schema")
    }

    fn path(text: &str) -> Vec<String> {
        text.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn a_key_with_a_dot_is_one_key() {
        let document = json!({"prices": {"gpt-4.1": {"input": 2}}});
        assert_eq!(
            flatten(&document, None),
            [(vec!["prices".to_owned(), "gpt-4.1".to_owned(), "input".to_owned()], json!(2))]
        );
    }

    #[test]
    fn access_is_inherited_by_nested_keys() {
        let schema = schema();
        assert_eq!(
            schema.access(&path("x.y")),
            Some(SettingAccess { is_user_only: true, ..SettingAccess::default() })
        );
        assert_eq!(
            schema.access(&path("z")),
            Some(SettingAccess { safety: Safety::Safe, ..SettingAccess::default() })
        );
        assert_eq!(schema.access(&path("x.q")), None);
        assert_eq!(schema.access(&path("q")), None);
    }

    #[test]
    fn values_are_validated() {
        let schema = schema();
        assert_eq!(schema.check(&path("x.y"), &json!(3)), Ok(()));
        assert_eq!(schema.check(&path("x.y"), &json!(10)), Err("expected at most 9, found 10".to_owned()));
        assert_eq!(
            schema.check(&path("x.y"), &json!("3")),
            Err("expected integer, found `\"3\"`".to_owned())
        );
        assert_eq!(
            schema.check(&path("z"), &json!("r")),
            Err("expected one of p, q, found `\"r\"`".to_owned())
        );
    }

    #[test]
    fn a_key_may_have_several_types() {
        let schema = ConfigSchema {
            target: String::new(),
            root: json!({"properties": {"n": {"type": ["integer", "null"]}}}),
        };
        assert_eq!(schema.check(&path("n"), &json!(null)), Ok(()));
        assert_eq!(schema.check(&path("n"), &json!(3)), Ok(()));
        assert_eq!(
            schema.check(&path("n"), &json!(2.5)),
            Err("expected integer or null, found `2.5`".to_owned())
        );
    }

    #[test]
    fn a_glob_target_matches_one_segment() {
        let schema = ConfigSchema { target: "keys/trusted/*.toml".to_owned(), root: Value::Null };
        assert!(schema.applies_to("keys/trusted/abc"));
        assert!(!schema.applies_to("keys/trusted/a/b"));
        assert!(!schema.applies_to("keys/other"));
    }
}
