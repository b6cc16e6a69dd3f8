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
use rye_item::{SourcePosition, yaml};
use rye_space::schema::{ConfigSchema, is_description_key};
use rye_thread::config::ConfigDiagnostic;
use rye_thread::config::hooks::HOOK_LISTS;
use serde_json::{Map, Value, json};

use super::config_error;

/// The refusal of a configuration, with all that is wrong.
pub(super) fn diagnostics_error(diagnostics: &[ConfigDiagnostic]) -> Error {
    let lines: Vec<String> = diagnostics.iter().map(ToString::to_string).collect();
    let count = lines.len();
    let plural = if count == 1 { "mistake" } else { "mistakes" };
    let problems: Vec<Value> = diagnostics
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
    let name = diagnostics.first().and_then(|mistake| Path::new(&mistake.file).file_stem());
    let id = name.map_or_else(|| "ID".to_owned(), |name| format!("agent/{}", name.to_string_lossy()));
    Error {
        hints: vec![format!("correct the file, and sign it again: rye sign config {id}")],
        ..config_error(message)
    }
    .detail("problems", problems)
}

/// Everything that is wrong with the text of one file, `name` being `events`, `resilience`, ….
///
/// # Errors
/// When the text is not YAML.
pub fn check(
    name: &str,
    text: &str,
    schema: &ConfigSchema,
    path: &Path,
) -> Result<Vec<ConfigDiagnostic>, Error> {
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
    schema: &ConfigSchema,
    path: &Path,
    text: &str,
) -> Vec<ConfigDiagnostic> {
    let mut settings = fields.clone();
    settings.retain(|key, _| !is_description_key(key));
    let settings = Value::Object(settings);
    let mut findings: Vec<(String, String)> = match schema_violations(fields, schema) {
        Ok(violations) => violations.into_iter().map(|one| (one.path, one.message)).collect(),
        Err(error) => vec![(String::new(), error.to_string())],
    };
    match name {
        "error_classification" => check_conditions(&settings, "patterns", "match", &mut findings),
        "hook_conditions" => {
            for (list, _, _) in HOOK_LISTS {
                check_conditions(&settings, list, "condition", &mut findings);
            }
        }
        "hooks" => check_conditions(&settings, "hooks", "condition", &mut findings),
        "events" => check_payload_schemas(&settings, &mut findings),
        _ => {}
    }
    if findings.is_empty() {
        return Vec::new();
    }
    // Another pass with the place of every key; what is not YAML has no places.
    let positions =
        yaml::parse_with_key_positions(text).map(|document| document.positions).unwrap_or_default();
    let mut diagnostics: Vec<ConfigDiagnostic> = findings
        .into_iter()
        .map(|(key, message)| ConfigDiagnostic {
            file: path.display().to_string(),
            position: position_of(&key, &positions),
            key,
            message,
        })
        .collect();
    diagnostics.sort_by_key(|mistake| mistake.position);
    diagnostics
}

/// Where a key stands, or the nearest one above it that is written.
fn position_of(key: &str, positions: &BTreeMap<String, SourcePosition>) -> Option<SourcePosition> {
    let mut key = key;
    loop {
        if let Some(position) = positions.get(key) {
            return Some(*position);
        }
        key = &key[..key.rfind(['.', '['])?];
    }
}

fn check_conditions(settings: &Value, list: &str, field: &str, findings: &mut Vec<(String, String)>) {
    let elements = settings.get(list).and_then(Value::as_array).into_iter().flatten();
    for (at, element) in elements.enumerate() {
        let Some(condition) = element.get(field) else { continue };
        if let Err(error) = Condition::compile(condition) {
            let inner = if error.path.is_empty() { String::new() } else { format!(".{}", error.path) };
            let key = format!("{list}[{at}].{field}{inner}");
            let key = if error.message.contains("operator") { format!("{key}.op") } else { key };
            findings.push((key, error.message));
        }
    }
}

fn check_payload_schemas(settings: &Value, findings: &mut Vec<(String, String)>) {
    let events = settings.get("event_types").and_then(Value::as_object).into_iter().flatten();
    for (name, event) in events {
        if let Some(schema) = event.get("payload_schema")
            && let Err(error) = parameters::violations(&json!({}), schema)
        {
            findings.push((format!("event_types.{name}.payload_schema"), error.to_string()));
        }
    }
}
