//! What version 1.0.0 of Agent Plugins demands of a manifest. Another field is named and passed over; any other fault refuses
//! the plugin.

use serde_json::Value;

/// What the schemas of Agent Plugins begin with.
const SCHEMAS: &str = "https://agent-plugins.org/schemas/";
const SCHEMA: &str = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json";
/// The fields of a manifest; there are no others.
const FIELDS: [&str; 10] = [
    "$schema",
    "name",
    "version",
    "description",
    "author",
    "homepage",
    "repository",
    "license",
    "keywords",
    "extensions",
];
const AUTHOR_FIELDS: [&str; 3] = ["name", "email", "url"];
const MAX_NAME_CHARS: usize = 64;

/// Whether a manifest says that it is one of an Agent Plugin.
pub(super) fn is_agent_plugin(manifest: &Value) -> bool {
    manifest["$schema"].as_str().is_some_and(|schema| schema.starts_with(SCHEMAS))
}

/// The fields that a manifest should not have.
pub(super) fn unknown_fields(manifest: &Value) -> impl Iterator<Item = &str> {
    let fields = manifest.as_object().into_iter().flatten().map(|(key, _)| key.as_str());
    fields.filter(|field| !FIELDS.contains(field))
}

/// Why a plugin with this manifest is not used.
pub(super) fn manifest_fault(manifest: &Value) -> Option<String> {
    if manifest["$schema"].as_str() != Some(SCHEMA) {
        return Some(format!("its schema is {}, and only {SCHEMA} is read", manifest["$schema"]));
    }
    if !manifest["name"].as_str().is_some_and(is_name) {
        return Some(format!(
            "its name is {}: 1 to 64 of a-z, 0-9, `-` and `.`, without `--` and `..`, and a letter or digit at both ends",
            manifest["name"]
        ));
    }
    let texts = ["version", "description", "homepage", "repository", "license"];
    if let Some(field) = texts.into_iter().find(|field| !is_absent_or(&manifest[*field], Value::is_string)) {
        return Some(format!("`{field}` of its manifest is not a text"));
    }
    let is_author = |author: &Value| {
        author.as_object().is_some_and(|author| {
            author.iter().all(|(key, value)| AUTHOR_FIELDS.contains(&key.as_str()) && value.is_string())
        })
    };
    if !is_absent_or(&manifest["author"], is_author) {
        return Some("`author` in its manifest may only have the strings name, email and url".to_owned());
    }
    let is_list = |list: &Value| list.as_array().is_some_and(|words| words.iter().all(Value::is_string));
    if !is_absent_or(&manifest["keywords"], is_list) {
        return Some("`keywords` of its manifest is not a list of texts".to_owned());
    }
    // Anything but a map is reported only, as another field is.
    let is_extensions = |found: &Value| {
        !found.is_object() || found.as_object().is_some_and(|map| map.values().all(Value::is_object))
    };
    (!is_extensions(&manifest["extensions"]))
        .then(|| "`extensions` of its manifest holds something else than maps".to_owned())
}

/// A field that is written is never `null`, but reading one that is not there gives it.
fn is_absent_or(value: &Value, is_right: impl Fn(&Value) -> bool) -> bool {
    value.is_null() || is_right(value)
}

fn is_name(name: &str) -> bool {
    let is_end =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = name.as_bytes();
    bytes.len() <= MAX_NAME_CHARS
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| is_end(Some(byte)) || b".-".contains(byte))
        && !name.contains("--")
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn with(field: &str, value: Value) -> Value {
        let mut manifest = json!({"$schema": SCHEMA, "name": "acme.tools", "version": "1"});
        manifest[field] = value;
        manifest
    }

    #[test]
    fn valid_manifests_have_no_fault() {
        for (field, value) in [
            ("name", json!("lint3r")),
            ("name", json!("a")),
            ("version", json!("not semantic")),
            ("author", json!({"name": "A", "email": "no address", "url": "x"})),
            ("author", json!({})),
            ("keywords", json!(["a", "b"])),
            ("extensions", json!({"com.example.client": {"setting": true}})),
            ("extensions", json!("reported only")),
            ("other", json!(1)),
        ] {
            assert_eq!(manifest_fault(&with(field, value.clone())), None, "{field}: {value}");
        }
        let other = with("other", json!(1));
        assert_eq!(unknown_fields(&other).collect::<Vec<_>>(), ["other"]);
    }

    #[test]
    fn faulty_manifests_are_refused() {
        for (field, value) in [
            ("$schema", json!("https://agent-plugins.org/schemas/2.0.0/plugin.schema.json")),
            ("name", json!("My-Plugin")),
            ("name", json!("-start")),
            ("name", json!("end.")),
            ("name", json!("has--double")),
            ("name", json!("too..many")),
            ("name", json!("a".repeat(65))),
            ("name", json!("")),
            ("name", json!(1)),
            ("version", json!(1)),
            ("author", json!("A")),
            ("author", json!({"name": "A", "phone": "1"})),
            ("author", json!({"name": 1})),
            ("keywords", json!("a")),
            ("keywords", json!([1])),
            ("extensions", json!({"com.example": 1})),
        ] {
            assert!(manifest_fault(&with(field, value.clone())).is_some(), "{field}: {value}");
        }
    }
}
