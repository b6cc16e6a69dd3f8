//! Checking one file before it counts: every mistake, with its place.
//!
//! Shapes, words and bounds are in the shipped schemas (`rye/agent/schemas/*.config-schema.yaml`); what a schema cannot
//! say (conditions, patterns, schemas of payloads) is checked here.

use std::collections::BTreeMap;
use std::path::Path;

use rye_engine::verbs::sign::schema_violations;
use rye_engine::{Code, Error};
use rye_exec::parameters;
use rye_item::condition::Condition;
use rye_item::{Position, yaml};
use rye_space::schema::{Schema, is_description};
use rye_thread::config::Mistake;
use serde_json::{Map, Value, json};

use super::refused;

/// The refusal of a configuration, with all that is wrong.
pub(super) fn refusal(mistakes: &[Mistake]) -> Error {
    let lines: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
    let count = lines.len();
    let plural = if count == 1 { "mistake" } else { "mistakes" };
    let problems: Vec<Value> = mistakes
        .iter()
        .map(|mistake| {
            let mut problem = json!({"message": mistake.message, "path": mistake.file, "field": mistake.key});
            if let Some(position) = mistake.position {
                problem["line"] = position.line.into();
                problem["column"] = position.column.into();
            }
            problem
        })
        .collect();
    let message = format!("the configuration of threads has {count} {plural}: {}", lines.join("; "));
    Error {
        hints: vec!["correct the file, and sign it again: rye sign config ID".to_owned()],
        ..refused(message)
    }
    .detail("problems", problems)
}

/// Everything that is wrong with the text of one file, `name` being `events`, `resilience`, ….
///
/// # Errors
/// When the text is no YAML.
pub fn check(name: &str, text: &str, schema: &Schema, path: &Path) -> Result<Vec<Mistake>, Error> {
    let document = yaml::parse(text).map_err(|problem| {
        let place = problem.position.map(|position| format!(":{position}")).unwrap_or_default();
        Error::new(Code::ThreadConfig, format!("{}{place}: {}", path.display(), problem.message))
    })?;
    let fields = document.value.as_object().cloned().unwrap_or_default();
    Ok(check_file(name, &fields, schema, path, text))
}

pub(super) fn check_file(
    name: &str,
    fields: &Map<String, Value>,
    schema: &Schema,
    path: &Path,
    text: &str,
) -> Vec<Mistake> {
    let mut settings = fields.clone();
    settings.retain(|key, _| !is_description(key));
    let settings = Value::Object(settings);
    let mut found: Vec<(String, String)> = match schema_violations(fields, schema) {
        Ok(violations) => violations.into_iter().map(|one| (one.path, one.message)).collect(),
        Err(error) => vec![(String::new(), error.to_string())],
    };
    match name {
        "error_classification" => conditions(&settings, "patterns", "match", &mut found),
        "hook_conditions" => {
            for list in ["builtin_hooks", "context_hooks", "infra_hooks"] {
                conditions(&settings, list, "condition", &mut found);
            }
        }
        "hooks" => conditions(&settings, "hooks", "condition", &mut found),
        "events" => payload_schemas(&settings, &mut found),
        _ => {}
    }
    if found.is_empty() {
        return Vec::new();
    }
    // Another pass with the place of every key; what is no YAML has no places.
    let places = yaml::parse_for_mistakes(text).map(|document| document.positions).unwrap_or_default();
    let mut mistakes: Vec<Mistake> = found
        .into_iter()
        .map(|(key, message)| Mistake {
            file: path.display().to_string(),
            position: place_of(&key, &places),
            key,
            message,
        })
        .collect();
    mistakes.sort_by_key(|mistake| mistake.position);
    mistakes
}

/// Where a key stands, or the nearest one above it that is written.
fn place_of(key: &str, places: &BTreeMap<String, Position>) -> Option<Position> {
    let mut key = key;
    loop {
        if let Some(position) = places.get(key) {
            return Some(*position);
        }
        key = &key[..key.rfind(['.', '['])?];
    }
}

fn conditions(settings: &Value, list: &str, field: &str, found: &mut Vec<(String, String)>) {
    let elements = settings.get(list).and_then(Value::as_array).into_iter().flatten();
    for (at, element) in elements.enumerate() {
        let Some(condition) = element.get(field) else { continue };
        if let Err(error) = Condition::compile(condition) {
            let inner = if error.path.is_empty() { String::new() } else { format!(".{}", error.path) };
            let key = format!("{list}[{at}].{field}{inner}");
            let key = if error.message.contains("operator") { format!("{key}.op") } else { key };
            found.push((key, error.message));
        }
    }
}

fn payload_schemas(settings: &Value, found: &mut Vec<(String, String)>) {
    let events = settings.get("event_types").and_then(Value::as_object).into_iter().flatten();
    for (name, event) in events {
        if let Some(schema) = event.get("payload_schema")
            && let Err(error) = parameters::violations(&json!({}), schema)
        {
            found.push((format!("event_types.{name}.payload_schema"), error.to_string()));
        }
    }
}
