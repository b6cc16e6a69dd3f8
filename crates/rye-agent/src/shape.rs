//! What a model sees of a result: what it asked for, as JSON, and never more than fits.
//!
//! A result that is too long is kept whole as an artifact of the thread; the model gets its structure and a reference, and
//! reads on in slices with `rye/agent/threads/read_artifact`.

use rye_item::text::without_controls;
use serde_json::{Map, Value, json};

use crate::action::{Action, Primary};
use crate::redact::Redactor;

/// How much one slice of an artifact holds at most.
const LARGEST_SLICE: usize = 12_000;
/// What of a result about the run says nothing about the thing itself.
const NOISE: [&str; 10] = [
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
const LOAD_NOISE: [&str; 7] = ["raw", "path", "signer", "shadows", "verdict", "coverage", "source"];

/// Where results that are too long are kept.
pub trait Artifacts: Send + Sync {
    /// Keeps the bytes; the same bytes have the same name.
    ///
    /// # Errors
    /// When they cannot be kept.
    fn put(&self, bytes: &[u8]) -> Result<Stored, String>;

    /// The bytes of this name, if this thread kept some.
    ///
    /// # Errors
    /// When they cannot be read.
    fn get(&self, id: &str) -> Result<Option<Vec<u8>>, String>;
}

/// An artifact that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub id: String,
    /// Whether the thread did not have it before.
    pub is_new: bool,
}

/// A result as the model gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shaped {
    /// The text.
    pub content: String,
    /// Whether the call failed.
    pub is_error: bool,
    /// The artifact that holds all of it, if it was too long.
    pub artifact: Option<String>,
}

/// Shapes a result; what is longer than `most` characters is kept in `artifacts`.
#[must_use]
pub fn for_model(
    action: &Action,
    mut result: Value,
    most: usize,
    artifacts: Option<&dyn Artifacts>,
    redactor: &Redactor,
) -> Shaped {
    // Twice: in each text as the tool gave it, since as JSON it has other letters before and in it; and in the whole, where
    // a name and its value stand side by side.
    redactor.clean_value(&mut result);
    let is_error = result.get("status").and_then(Value::as_str) == Some("error");
    let kept = if is_error { failure(result) } else { unwrapped(action, result) };
    let content = redactor.cleaned(text_of(&kept));
    if content.chars().count() <= most {
        return Shaped { content, is_error, artifact: None };
    }
    let stored = artifacts.map(|artifacts| artifacts.put(content.as_bytes()));
    match stored {
        Some(Ok(stored)) => {
            let content = redactor.cleaned(summary(&kept, &content, most, &stored));
            Shaped { content, is_error, artifact: Some(stored.id) }
        }
        // Nowhere to keep it: the beginning is better than nothing.
        Some(Err(_)) | None => Shaped { content: cut(&content, most), is_error, artifact: None },
    }
}

/// A result that is text stays text; everything else is JSON.
fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => without_controls(text).into_owned(),
        // JSON is always JSON.
        other => serde_json::to_string(other).unwrap_or_default(),
    }
}

fn unwrapped(action: &Action, result: Value) -> Value {
    let Value::Object(mut envelope) = result else {
        return result;
    };
    let data = envelope.get_mut("data").map(Value::take).unwrap_or_default();
    match (action.primary, action.item_type) {
        (Primary::Load | Primary::Fetch | Primary::Sign, _) => unsigned(without(data, &LOAD_NOISE)),
        (Primary::Search, _) => data,
        (Primary::Execute, Some(rye_item::ItemType::Directive | rye_item::ItemType::Knowledge)) => {
            match envelope.get("your_directions").filter(|_| data.get("body").is_some()) {
                Some(_) => unsigned(json!({"body": data.get("body"), "actions": data.get("actions")})),
                None => unsigned(without(data, &LOAD_NOISE)),
            }
        }
        (Primary::Execute, _) => {
            let logs = envelope.get("logs").filter(|logs| has_text(logs));
            match (data.is_null(), logs) {
                (true, Some(logs)) => json!({"logs": logs}),
                _ => data,
            }
        }
    }
}

fn failure(result: Value) -> Value {
    let mut kept = without(result, &NOISE);
    if let Some(map) = kept.as_object_mut() {
        map.retain(|key, value| !value.is_null() && (key != "logs" || has_text(value)));
    }
    kept
}

fn has_text(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.trim().is_empty(),
        Value::Object(map) => map.values().any(has_text),
        Value::Array(list) => list.iter().any(has_text),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

fn without(mut value: Value, keys: &[&str]) -> Value {
    if let Some(map) = value.as_object_mut() {
        map.retain(|key, _| !keys.contains(&key.as_str()));
    }
    value
}

/// Without signature lines: they say nothing to a model, and it would only copy them.
fn unsigned(mut value: Value) -> Value {
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
fn summary(value: &Value, whole: &str, most: usize, stored: &Stored) -> String {
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
        let shown = reference(structure(map, most));
        if shown.chars().count() <= most {
            return shown;
        }
    }
    let mut map = Map::new();
    if stored.is_new {
        // What is quoted again can get twice as long.
        map.insert("preview".to_owned(), json!(cut(whole, most / 3)));
    }
    reference(map)
}

fn structure(map: &Map<String, Value>, most: usize) -> Map<String, Value> {
    let mut shown = Map::new();
    for (key, value) in map {
        match value {
            Value::Array(list) => {
                let preview: Vec<Value> = list.iter().take(3).map(row).collect();
                shown.insert(format!("{key}_count"), json!(list.len()));
                shown.insert(format!("{key}_preview"), json!(preview));
            }
            Value::String(text) => {
                let length = if key == "content" || key == "body" { most / 3 } else { 200 };
                shown.insert(key.clone(), json!(cut(text, length)));
            }
            Value::Object(inner) => {
                shown.insert(key.clone(), row(&Value::Object(inner.clone())));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {
                shown.insert(key.clone(), value.clone());
            }
        }
    }
    shown
}

/// A row of a list: what is not a list or a map itself.
fn row(value: &Value) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_array() && !value.is_object())
            .take(20)
            .map(|(key, value)| (key.clone(), row(value)))
            .collect(),
        Value::String(text) => json!(cut(text, 200)),
        Value::Array(list) => json!(format!("[{}]", rye_item::text::counted(list.len(), "value"))),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// At most so many characters, and a mark if there were more.
fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… [{} characters in all]", &text[..end], text.chars().count()),
    }
}

/// `read_artifact`: a slice of a result that was too long. `{"artifact_ref", "offset", "limit"}`, in characters.
#[must_use]
pub fn read_artifact(artifacts: &dyn Artifacts, parameters: &Map<String, Value>) -> Value {
    let failed = |message: String| json!({"status": "error", "error": message});
    let Some(id) = parameters.get("artifact_ref").and_then(Value::as_str) else {
        return failed("artifact_ref is missing".to_owned());
    };
    let number = |key: &str, default: usize| match parameters.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(value) => value
            .as_u64()
            .and_then(|number| usize::try_from(number).ok())
            .ok_or_else(|| format!("{key} is a whole number")),
    };
    let (offset, limit) = match (number("offset", 0), number("limit", LARGEST_SLICE)) {
        (Ok(offset), Ok(limit)) => (offset, limit.clamp(1, LARGEST_SLICE)),
        (Err(message), _) | (_, Err(message)) => return failed(message),
    };
    let bytes = match artifacts.get(id) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return failed(format!("this thread has no artifact `{}`", rye_item::text::one_line(id))),
        Err(message) => return failed(message),
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
    struct Kept(Mutex<BTreeMap<String, Vec<u8>>>);

    impl Artifacts for Kept {
        fn put(&self, bytes: &[u8]) -> Result<Stored, String> {
            let id = Digest::of(bytes).to_hex();
            let is_new = self.0.lock().expect("map").insert(id.clone(), bytes.to_vec()).is_none();
            Ok(Stored { id, is_new })
        }

        fn get(&self, id: &str) -> Result<Option<Vec<u8>>, String> {
            Ok(self.0.lock().expect("map").get(id).cloned())
        }
    }

    fn action(primary: &str) -> Action {
        Action::from_value(&json!({"primary": primary, "item_id": "a/b"})).expect("an action")
    }

    fn shaped(primary: &str, result: &Value) -> String {
        for_model(&action(primary), result.clone(), crate::machine::MAX_RESULT_CHARACTERS, None, &plain())
            .content
    }

    fn plain() -> Redactor {
        Redactor::new(&BTreeMap::new(), |_| false)
    }

    #[test]
    fn a_tools_result_is_all_the_model_sees_of_its_run() {
        let result = json!({
            "status": "success", "type": "tool", "item_id": "a/b", "data": {"n": 1, "path": "x"}, "chain": [1, 2],
            "lock": {}, "logs": {"stdout": "noise"},
        });
        assert_eq!(shaped("execute", &result), r#"{"n":1,"path":"x"}"#);
        assert_eq!(shaped("execute", &json!({"status": "success", "data": "words"})), "words");
        let silent = json!({"status": "success", "data": null, "logs": {"stdout": "printed", "stderr": ""}});
        assert!(shaped("execute", &silent).contains("printed"));
    }

    #[test]
    fn signature_lines_and_paths_of_loaded_items_are_left_out() {
        let result = json!({"status": "success", "data": {
            "content": "# rye:signed:2026:x:y:z\nprint(1)", "raw": "…", "path": "/home/x/a.py", "metadata": {"version": "1"},
        }});
        assert_eq!(shaped("load", &result), r#"{"content":"print(1)","metadata":{"version":"1"}}"#);
    }

    #[test]
    fn a_failure_says_what_and_how_to_mend_it() {
        let result = json!({
            "status": "error", "error": "no", "code": "RYE0106", "hints": ["try"], "item_id": null, "chain": [],
            "logs": {"stdout": "", "stderr": ""}, "data": null,
        });
        let shaped = for_model(
            &action("execute"),
            result.clone(),
            crate::machine::MAX_RESULT_CHARACTERS,
            None,
            &plain(),
        );
        assert!(shaped.is_error);
        assert_eq!(shaped.content, r#"{"status":"error","error":"no","code":"RYE0106","hints":["try"]}"#);
    }

    #[test]
    fn a_result_that_is_too_long_is_kept_and_read_on_in_slices() {
        let kept = Kept::default();
        let rows: Vec<Value> =
            (0..500).map(|n| json!({"n": n, "text": "é".repeat(300), "more": [1]})).collect();
        let result = json!({"status": "success", "data": {"success": true, "rows": rows, "content": "c".repeat(9000)}});
        let first = for_model(&action("execute"), result.clone(), 2400, Some(&kept), &plain());
        let shown: Value = serde_json::from_str(&first.content).expect("JSON");
        assert!(first.content.chars().count() <= 2400);
        assert_eq!((&shown["success"], &shown["rows_count"]), (&json!(true), &json!(500)));
        assert_eq!(shown["rows_preview"].as_array().map(Vec::len), Some(3));
        let id = first.artifact.expect("an artifact");
        assert_eq!(shown["_artifact_ref"], json!(id));

        let mut whole = String::new();
        let mut offset = json!(0);
        for _ in 0..100 {
            let given = json!({"artifact_ref": id, "offset": offset, "limit": 5000});
            let slice = read_artifact(&kept, given.as_object().expect("a map"));
            whole.push_str(slice["data"]["content"].as_str().expect("text"));
            offset = slice["data"]["next_offset"].clone();
            if offset.is_null() {
                break;
            }
        }
        assert_eq!(whole, result["data"].to_string());

        let again = for_model(&action("execute"), result.clone(), 2400, Some(&kept), &plain());
        assert!(again.content.contains("Identical to a previous result"), "{}", again.content);
    }

    #[test]
    fn an_artifact_of_nobody_is_none() {
        for given in [json!({}), json!({"artifact_ref": "x"}), json!({"artifact_ref": "x", "offset": -1})] {
            let answer = read_artifact(&Kept::default(), given.as_object().expect("a map"));
            assert_eq!(answer["status"], "error");
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
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
        fn a_result_is_bounded_whatever_it_is(data in any_json(), most in 600_usize..2000, keeps in any::<bool>()) {
            let kept = Kept::default();
            let artifacts = keeps.then_some(&kept as &dyn Artifacts);
            let shaped = for_model(&action("execute"), json!({"status": "success", "data": data}), most, artifacts, &plain());
            // The mark of a cut, or the reference, comes on top.
            prop_assert!(shaped.content.chars().count() <= most + 600);
        }
    }
}
