//! Adding one entry to a text in JSON, TOML or YAML.

use serde::Serialize;
use serde_json::{Map, Value, json};
use similar::TextDiff;

use super::ConfigFormat;

/// What a text says; nothing, if it is empty.
pub(super) fn parse(format: ConfigFormat, text: &str) -> Result<Value, String> {
    if text.trim().is_empty() {
        return Ok(json!({}));
    }
    let value = match format {
        ConfigFormat::Json => serde_json::from_str(text)
            .map_err(|error| format!("it is not plain JSON ({error}); comments could not be kept"))?,
        ConfigFormat::Toml => {
            let table: toml::Table = toml::from_str(text).map_err(|_| "it is not valid TOML".to_owned())?;
            serde_json::to_value(table).map_err(|error| error.to_string())?
        }
        ConfigFormat::Yaml => {
            let document = rye_item::yaml::parse(text);
            document.map_err(|problem| format!("it is not valid YAML: {}", problem.message))?.value
        }
    };
    match value {
        Value::Object(_) => Ok(value),
        Value::Null => Ok(json!({})),
        _ => Err("it is not a table of settings".to_owned()),
    }
}

/// The document with the entry below `keys`; `None` where those hold something else.
pub(super) fn insert_entry(document: &Value, keys: &[&str], name: &str, entry: &Value) -> Option<Value> {
    let mut updated = document.clone();
    let mut node = &mut updated;
    for key in keys {
        let map = node.as_object_mut()?;
        node = map.entry(*key).or_insert_with(|| Value::Object(Map::new()));
        if node.is_null() {
            *node = json!({});
        }
    }
    node.as_object_mut()?.insert(name.to_owned(), entry.clone());
    Some(updated)
}

/// The text with the entry added.
pub(super) fn render(
    format: ConfigFormat,
    text: &str,
    updated: &Value,
    keys: &[&str],
    name: &str,
    entry: &Value,
) -> String {
    match format {
        ConfigFormat::Json => json_text(text, updated),
        ConfigFormat::Toml => {
            format!("{}[{}.{name}]\n{}", with_blank_line(text), keys.join("."), toml_lines(entry))
        }
        ConfigFormat::Yaml => yaml_text(text, keys.first().copied().unwrap_or_default(), name, entry),
    }
}

/// Written again, with the same indentation.
pub(super) fn json_text(text: &str, updated: &Value) -> String {
    let indented = text.lines().find(|line| line.starts_with([' ', '\t']) && !line.trim().is_empty());
    let indent = indented.map_or("  ", |line| &line[..line.len() - line.trim_start().len()]);
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    // What cannot be serialized differs from what was expected, and is refused by the comparison.
    let _ = updated.serialize(&mut serializer);
    bytes.push(b'\n');
    String::from_utf8(bytes).unwrap_or_default()
}

/// The text, and an empty line after it.
fn with_blank_line(text: &str) -> String {
    match text.trim_end() {
        "" => String::new(),
        _ if text.ends_with('\n') => format!("{text}\n"),
        _ => format!("{text}\n\n"),
    }
}

fn toml_lines(entry: &Value) -> String {
    key_value_lines(entry, " = ").join("\n") + "\n"
}

/// Values in JSON are values in TOML and in YAML, as long as they are texts, numbers, truths and lists of these.
fn key_value_lines(entry: &Value, separator: &str) -> Vec<String> {
    entry.as_object().into_iter().flatten().map(|(key, value)| format!("{key}{separator}{value}")).collect()
}

fn yaml_text(text: &str, key: &str, name: &str, entry: &Value) -> String {
    let head = format!("{key}:");
    let all: Vec<&str> = text.lines().collect();
    let at = all.iter().position(|line| line.trim_end() == head || line.starts_with(&format!("{head} #")));
    let Some(at) = at else {
        let start =
            if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") };
        return format!("{start}{head}\n{}", yaml_entry("  ", name, entry));
    };
    let inner = all[at + 1..].iter().find(|line| !line.trim().is_empty());
    let indent = inner.map_or("", |line| &line[..line.len() - line.trim_start().len()]);
    let indent = if indent.is_empty() { "  " } else { indent };
    let before = all[..=at].join("\n");
    let after: String = all[at + 1..].iter().map(|line| format!("{line}\n")).collect();
    format!("{before}\n{}{after}", yaml_entry(indent, name, entry))
}

fn yaml_entry(indent: &str, name: &str, entry: &Value) -> String {
    let inner: String =
        key_value_lines(entry, ": ").iter().map(|line| format!("{indent}{indent}{line}\n")).collect();
    format!("{indent}{name}:\n{inner}")
}

/// What changes, line by line.
#[must_use]
pub fn diff(before: &str, after: &str) -> String {
    TextDiff::from_lines(before, after).unified_diff().context_radius(2).to_string()
}
