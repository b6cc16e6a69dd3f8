//! What a model sees of a result: what it asked for, as JSON, and never more than fits.
//!
//! A result that is too long is kept whole as an artifact of the thread; the model gets its structure and a reference, and
//! reads on in slices with `rye/agent/threads/read_artifact`.

use rye_item::text::strip_controls;
use serde_json::{Map, Value, json};

use crate::action::{Action, PrimaryAction};
use crate::envelope::ResultEnvelope;
use crate::redact::{RedactionTally, Redactor};

/// How much one slice of an artifact holds at most.
const MAX_SLICE_CHARS: usize = 12_000;
/// What of a result about the run says nothing about the thing itself.
const RUN_METADATA_KEYS: [&str; 10] = [
    "chain",
    "lock",
    "trace",
    "first_use",
    "duration_ms",
    "sandbox",
    "truncated",
    "resolved_env_keys",
    "validated_pairs",
    "notes",
];
/// What of a loaded item is not for a model.
const LOAD_METADATA_KEYS: [&str; 7] = ["raw", "path", "signer", "shadows", "verdict", "coverage", "source"];

/// Where results that are too long are kept.
pub trait ArtifactStore: Send + Sync {
    /// Keeps the bytes; the same bytes have the same name.
    ///
    /// # Errors
    /// When they cannot be kept.
    fn put(&self, bytes: &[u8]) -> Result<StoredArtifact, String>;

    /// The bytes of this name, if this thread kept some.
    ///
    /// # Errors
    /// When they cannot be read.
    fn get(&self, id: &str) -> Result<Option<Vec<u8>>, String>;
}

/// An artifact that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredArtifact {
    /// Its name.
    pub id: String,
    /// Whether the thread did not have it before.
    pub is_new: bool,
}

/// A result as the model gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormattedResult {
    /// The text.
    pub content: String,
    /// Whether the call failed.
    pub is_error: bool,
    /// The artifact that holds all of it, if it was too long.
    pub artifact: Option<String>,
    /// The secrets that were taken out of it.
    pub redacted: RedactionTally,
}

/// Shapes a result; what is longer than `most` characters is kept in `artifacts`.
#[must_use]
pub fn format_for_model(
    action: &Action,
    mut result: Value,
    max_chars: usize,
    artifacts: Option<&dyn ArtifactStore>,
    redactor: &Redactor,
) -> FormattedResult {
    // Twice: in each text as the tool gave it, since as JSON it has other letters before and in it; and in the whole, where
    // a name and its value stand side by side.
    let mut redacted = RedactionTally::default();
    redactor.redact_value_with(&mut result, &mut redacted);
    let is_error = ResultEnvelope::parse(&result).is_failure();
    let content_value = if is_error { format_failure(result) } else { unwrap_envelope(action, result) };
    let content = redactor.redact_with(to_text(&content_value), &mut redacted);
    if content.chars().count() <= max_chars {
        return FormattedResult { content, is_error, artifact: None, redacted };
    }
    let stored = artifacts.map(|artifacts| artifacts.put(content.as_bytes()));
    match stored {
        Some(Ok(stored)) => {
            let content = redactor.redact(summary(&content_value, &content, max_chars, &stored));
            FormattedResult { content, is_error, artifact: Some(stored.id), redacted }
        }
        // Nowhere to keep it: the beginning is better than nothing.
        Some(Err(_)) | None => {
            FormattedResult { content: truncate(&content, max_chars), is_error, artifact: None, redacted }
        }
    }
}

/// A result that is text stays text; everything else is JSON.
fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => strip_controls(text).into_owned(),
        // JSON is always JSON.
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

fn unwrap_envelope(action: &Action, result: Value) -> Value {
    let Value::Object(mut envelope) = result else {
        return result;
    };
    let data = envelope.get_mut("data").map(Value::take).unwrap_or_default();
    match (action.primary, action.item_type) {
        (PrimaryAction::Load | PrimaryAction::Fetch | PrimaryAction::Sign, _) => {
            strip_signatures(remove_keys(data, &LOAD_METADATA_KEYS))
        }
        (PrimaryAction::Search, _) => data,
        (PrimaryAction::Execute, Some(rye_item::ItemType::Directive | rye_item::ItemType::Knowledge)) => {
            match envelope.get("your_directions").filter(|_| data.get("body").is_some()) {
                Some(_) => {
                    strip_signatures(json!({"body": data.get("body"), "actions": data.get("actions")}))
                }
                None => strip_signatures(remove_keys(data, &LOAD_METADATA_KEYS)),
            }
        }
        (PrimaryAction::Execute, _) => {
            let logs = envelope.get("logs").filter(|logs| has_text(logs));
            match (data.is_null(), logs) {
                (true, Some(logs)) => json!({"logs": logs}),
                _ => data,
            }
        }
    }
}

fn format_failure(result: Value) -> Value {
    let mut fields = remove_keys(result, &RUN_METADATA_KEYS);
    if let Some(map) = fields.as_object_mut() {
        map.retain(|key, value| !value.is_null() && (key != "logs" || has_text(value)));
    }
    fields
}

fn has_text(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.trim().is_empty(),
        Value::Object(map) => map.values().any(has_text),
        Value::Array(list) => list.iter().any(has_text),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn remove_keys(mut value: Value, keys: &[&str]) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| !keys.contains(&key.as_str()));
    }
    value
}

/// Without signature lines: they say nothing to a model, and it would only copy them.
fn strip_signatures(mut value: Value) -> Value {
    if let Some(map) = value.as_object_mut() {
        for (_, value) in map.iter_mut() {
            if let Value::String(text) = value
                && text.contains("rye:signed:")
            {
                let lines: Vec<&str> = text.lines().filter(|line| !line.contains("rye:signed:")).collect();
                *text = lines.join("\n");
            }
        }
    }
    value
}

/// The structure of a result: what is short stays, what is long is begun.
fn summary(value: &Value, whole: &str, max_chars: usize, stored: &StoredArtifact) -> String {
    let total = whole.chars().count();
    let note = if stored.is_new {
        format!(
            "The result has {total} characters. Read the rest with rye/agent/threads/read_artifact, artifact_ref {}.",
            stored.id
        )
    } else {
        format!("Identical to a previous result of this thread (artifact {}).", stored.id)
    };
    let reference = |mut map: Map<String, Value>| {
        map.insert("_artifact_ref".to_owned(), json!(stored.id));
        map.insert("_artifact_note".to_owned(), json!(note));
        Value::Object(map).to_string()
    };
    if let (true, Some(map)) = (stored.is_new, value.as_object()) {
        let text = reference(summarize_map(map, max_chars));
        if text.chars().count() <= max_chars {
            return text;
        }
    }
    let mut map = Map::new();
    if stored.is_new {
        // What is quoted again can get twice as long.
        map.insert("preview".to_owned(), json!(truncate(whole, max_chars / 3)));
    }
    reference(map)
}

fn summarize_map(map: &Map<String, Value>, max_chars: usize) -> Map<String, Value> {
    let mut summary = Map::new();
    for (key, value) in map {
        match value {
            Value::Array(list) => {
                let preview: Vec<Value> = list.iter().take(3).map(summarize_row).collect();
                summary.insert(format!("{key}_count"), json!(list.len()));
                summary.insert(format!("{key}_preview"), json!(preview));
            }
            Value::String(text) => {
                let length = if key == "content" || key == "body" { max_chars / 3 } else { 200 };
                summary.insert(key.clone(), json!(truncate(text, length)));
            }
            Value::Object(inner) => {
                summary.insert(key.clone(), summarize_row(&Value::Object(inner.clone())));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                summary.insert(key.clone(), value.clone());
            }
        }
    }
    summary
}

/// A row of a list: what is not a list or a map itself.
fn summarize_row(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_array() && !value.is_object())
            .take(20)
            .map(|(key, value)| (key.clone(), summarize_row(value)))
            .collect(),
        Value::String(text) => json!(truncate(text, 200)),
        Value::Array(list) => json!(format!("[{}]", rye_item::text::counted(list.len(), "value"))),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// At most so many characters, and a mark if there were more.
fn truncate(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… [{} characters in all]", &text[..end], text.chars().count()),
    }
}

/// `read_artifact`: a slice of a result that was too long. `{"artifact_ref", "offset", "limit"}`, in characters.
#[must_use]
pub fn read_artifact(artifacts: &dyn ArtifactStore, parameters: &Map<String, Value>) -> Value {
    let failure = |message: String| json!({"status": "error", "error": message});
    let Some(id) = parameters.get("artifact_ref").and_then(Value::as_str) else {
        return failure("artifact_ref is missing".to_owned());
    };
    let number = |key: &str, default: usize| match parameters.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok())
            .ok_or_else(|| format!("{key} is a whole number")),
    };
    let (offset, limit) = match (number("offset", 0), number("limit", MAX_SLICE_CHARS)) {
        (Ok(offset), Ok(limit)) => (offset, limit.clamp(1, MAX_SLICE_CHARS)),
        (Err(message), _) | (_, Err(message)) => return failure(message),
    };
    let bytes = match artifacts.get(id) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => {
            return failure(format!("this thread has no artifact `{}`", rye_item::text::one_line(id)));
        }
        Err(message) => return failure(message),
    };
    let text = String::from_utf8_lossy(&bytes);
    let total = text.chars().count();
    let slice: String = text.chars().skip(offset).take(limit).collect();
    let next = offset.saturating_add(limit);
    json!({
        "status": "success",
        "data": {
            "content": slice,
            "offset": offset,
            "next_offset": (next < total).then_some(next),
            "total": total,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use lillux::Digest;
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct MemoryArtifacts(Mutex<BTreeMap<String, Vec<u8>>>);

    impl ArtifactStore for MemoryArtifacts {
        fn put(&self, bytes: &[u8]) -> Result<StoredArtifact, String> {
            let id = Digest::of(bytes).to_hex();
            let is_new = self.0.lock().expect("map").insert(id.clone(), bytes.to_vec()).is_none();
            Ok(StoredArtifact { id, is_new })
        }

        fn get(&self, id: &str) -> Result<Option<Vec<u8>>, String> {
            Ok(self.0.lock().expect("map").get(id).cloned())
        }
    }

    fn action(primary: &str) -> Action {
        Action::from_value(&json!({"primary": primary, "item_id": "a/b"})).expect("an action")
    }

    fn format(primary: &str, result: &Value) -> String {
        format_for_model(
            &action(primary),
            result.clone(),
            crate::machine::MAX_RESULT_CHARACTERS,
            None,
            &empty_redactor(),
        )
        .content
    }

    fn empty_redactor() -> Redactor {
        Redactor::new(&BTreeMap::new(), |_| false)
    }

    #[test]
    fn model_sees_only_tool_data() {
        let result = json!({
            "status": "success", "type": "tool", "item_id": "a/b", "data": {"n": 1, "path": "x"}, "chain": [1, 2],
            "lock": {}, "logs": {"stdout": "noise"},
        });
        assert_eq!(format("execute", &result), r#"{"n":1,"path":"x"}"#);
        assert_eq!(format("execute", &json!({"status": "success", "data": "words"})), "words");
        let silent = json!({"status": "success", "data": null, "logs": {"stdout": "printed", "stderr": ""}});
        assert!(format("execute", &silent).contains("printed"));
    }

    #[test]
    fn loaded_items_omit_signatures_and_paths() {
        let result = json!({"status": "success", "data": {
            "content": "# rye:signed:2026:x:y:z\nprint(1)", "raw": "…", "path": "/home/x/a.py", "metadata": {"version": "1"},
        }});
        assert_eq!(format("load", &result), r#"{"content":"print(1)","metadata":{"version":"1"}}"#);
    }

    #[test]
    fn failure_keeps_error_and_hints() {
        let result = json!({
            "status": "error", "error": "no", "code": "RYE0106", "hints": ["try"], "item_id": null, "chain": [],
            "logs": {"stdout": "", "stderr": ""}, "data": null,
        });
        let shaped = format_for_model(
            &action("execute"),
            result.clone(),
            crate::machine::MAX_RESULT_CHARACTERS,
            None,
            &empty_redactor(),
        );
        assert!(shaped.is_error);
        assert_eq!(shaped.content, r#"{"status":"error","error":"no","code":"RYE0106","hints":["try"]}"#);
    }

    #[test]
    fn long_result_becomes_readable_artifact() {
        let artifacts = MemoryArtifacts::default();
        let rows: Vec<Value> =
            (0..500).map(|n| json!({"n": n, "text": "é".repeat(300), "more": [1]})).collect();
        let result = json!({"status": "success", "data": {"success": true, "rows": rows, "content": "c".repeat(9000)}});
        let first =
            format_for_model(&action("execute"), result.clone(), 2400, Some(&artifacts), &empty_redactor());
        let summary: Value = serde_json::from_str(&first.content).expect("JSON");
        assert!(first.content.chars().count() <= 2400);
        assert_eq!((&summary["success"], &summary["rows_count"]), (&json!(true), &json!(500)));
        assert_eq!(summary["rows_preview"].as_array().map(Vec::len), Some(3));
        let id = first.artifact.expect("an artifact");
        assert_eq!(summary["_artifact_ref"], json!(id));

        let mut whole = String::new();
        let mut offset = json!(0);
        for _ in 0..100 {
            let params = json!({"artifact_ref": id, "offset": offset, "limit": 5000});
            let slice = read_artifact(&artifacts, params.as_object().expect("a map"));
            whole.push_str(slice["data"]["content"].as_str().expect("text"));
            offset = slice["data"]["next_offset"].clone();
            if offset.is_null() {
                break;
            }
        }
        assert_eq!(whole, result["data"].to_string());

        let again =
            format_for_model(&action("execute"), result.clone(), 2400, Some(&artifacts), &empty_redactor());
        assert!(again.content.contains("Identical to a previous result"), "{}", again.content);
    }

    #[test]
    fn unknown_artifact_is_an_error() {
        for params in [json!({}), json!({"artifact_ref": "x"}), json!({"artifact_ref": "x", "offset": -1})] {
            let response = read_artifact(&MemoryArtifacts::default(), params.as_object().expect("a map"));
            assert_eq!(response["status"], "error");
        }
    }

    fn arb_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            ".{0,400}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 40, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map(".{0,10}", inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn formatted_result_is_bounded(data in arb_json(), most in 600_usize..2000, keeps in any::<bool>()) {
            let kept = MemoryArtifacts::default();
            let artifacts = keeps.then_some(&kept as &dyn ArtifactStore);
            let shaped = format_for_model(&action("execute"), json!({"status": "success", "data": data}), most, artifacts, &empty_redactor());
            // The mark of a cut, or the reference, comes on top.
            prop_assert!(shaped.content.chars().count() <= most + 600);
        }
    }
}
