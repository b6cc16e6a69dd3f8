//! How much of an answer a client gets. A model pays for every word, so what only explains a result (chain, sandbox
//! receipt, lockfile, metadata) is sent to clients that ask for it with `detail: full`.

use lillux::sandbox::{EnforcementLevel, Receipt};
use rye_agent::envelope::ResultEnvelope;
use rye_engine::agent_actions::schemas::agent_tool_action;
use rye_engine::{Code, Error, Result};
use rye_item::PrimaryAction;
use serde::Deserialize as _;
use serde_json::{Map, Value, json};

use crate::answer_size;

/// How much a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Detail {
    /// The result, and what the caller should know about it.
    #[default]
    Brief,
    /// The whole answer, as on the command line with `--json`.
    Full,
}

/// Takes `detail` from the arguments of a call; every tool has it.
///
/// # Errors
/// When it is neither `brief` nor `full`.
pub(crate) fn take_detail(arguments: &mut Map<String, Value>) -> Result<Detail> {
    match arguments.shift_remove("detail") {
        None | Some(Value::Null) => Ok(Detail::Brief),
        Some(word) => match word.as_str() {
            Some("brief") => Ok(Detail::Brief),
            Some("full") => Ok(Detail::Full),
            _ => Err(Error::new(Code::InvalidArgument, "detail is `brief` or `full`")),
        },
    }
}

/// The answer of `tool` at this level of detail.
pub(crate) fn shorten(tool: &str, detail: Detail, mut answer: Value) -> Value {
    let is_success = ResultEnvelope::parse(&answer).is_success();
    let Value::Object(fields) = &mut answer else { return answer };
    if detail == Detail::Full {
        return answer;
    }
    match agent_tool_action(tool) {
        Some(PrimaryAction::Execute) => shorten_run(fields, is_success),
        Some(PrimaryAction::Search) => shorten_search(fields),
        Some(PrimaryAction::Load) => shorten_item(fields),
        // One of the two, by what was asked.
        Some(PrimaryAction::Fetch)
            if fields.get("data").is_some_and(|data| data.get("results").is_some()) =>
        {
            shorten_search(fields);
        }
        Some(PrimaryAction::Fetch) => shorten_item(fields),
        Some(PrimaryAction::Sign) | None => {}
    }
    answer
}

/// Keeps the result of a run, its logs, and what its caller should know.
fn shorten_run(fields: &mut Map<String, Value>, is_success: bool) {
    match fields.get("type").and_then(Value::as_str) {
        Some("directive") if is_success && fields.contains_key("your_directions") => {
            let outputs = take(fields, "data").and_then(|mut data| data.get_mut("outputs").map(Value::take));
            if let Some(outputs) = outputs.filter(|outputs| !is_empty(outputs)) {
                fields.insert("outputs".to_owned(), outputs);
            }
        }
        Some("knowledge") if is_success => {
            fields.shift_remove("your_directions");
            let content = take(fields, "data").and_then(|mut data| data.get_mut("content").map(Value::take));
            fields.insert("data".to_owned(), json!({"content": content}));
        }
        _ => {}
    }
    if let Some(receipt) = fields.get_mut("sandbox") {
        shorten_receipt(receipt);
    }
    if let Some(Value::Array(notes)) = fields.get_mut("notes") {
        // A first run is pinned: the caller has nothing to do.
        notes.retain(|note| !note.as_str().is_some_and(|note| note.starts_with("pinned in ")));
    }
    for name in ["type", "chain", "duration_ms", "first_use", "lock"] {
        fields.shift_remove(name);
    }
    if is_success {
        fields.shift_remove("item_id");
    }
    remove_empty(fields, &["sandbox", "logs", "notes", "truncated"]);
}

/// Keeps of a receipt what is not as it should be; of one that cannot be read, everything.
fn shorten_receipt(receipt: &mut Value) {
    let Ok(parsed) = Receipt::deserialize(&*receipt) else { return };
    let Some(fields) = receipt.as_object_mut() else { return };
    fields.shift_remove("rows");
    let unenforced = parsed.unenforced();
    if !unenforced.is_empty() {
        fields.insert("not_enforced".to_owned(), json!(unenforced));
    } else if parsed.level == EnforcementLevel::Full {
        fields.shift_remove("level");
    }
    fields.retain(|_, value| !is_empty(value));
}

/// Keeps what is needed to choose a result.
fn shorten_search(fields: &mut Map<String, Value>) {
    let Some(data) = fields.get_mut("data").and_then(Value::as_object_mut) else { return };
    if let Some(Value::Array(rows)) = data.get_mut("results") {
        for row in rows.iter_mut().filter_map(Value::as_object_mut) {
            for name in ["score", "coverage", "verdict", "version"] {
                row.shift_remove(name);
            }
            let id = row.get("item_id").and_then(Value::as_str).unwrap_or_default();
            let is_in_id = row.get("title").is_some_and(|title| id.rsplit('/').next() == title.as_str());
            if is_in_id {
                row.shift_remove("title");
            }
            if let Some(Value::String(description)) = row.get_mut("description") {
                answer_size::first_sentence(description);
            }
            remove_empty(row, &["title", "description", "shadows"]);
        }
    }
    for name in ["query", "took_ms"] {
        data.shift_remove(name);
    }
    remove_empty(data, &["suggestions"]);
}

/// Keeps the content, once, and the metadata.
fn shorten_item(fields: &mut Map<String, Value>) {
    let Some(data) = fields.get_mut("data").and_then(Value::as_object_mut) else { return };
    for name in ["raw", "verdict", "coverage", "signer", "title"] {
        data.shift_remove(name);
    }
    if let Some(Value::String(content)) = data.get_mut("content") {
        remove_signature(content);
    }
    if let Some(metadata) = data.get_mut("metadata").and_then(Value::as_object_mut) {
        // Both are in the content.
        for name in ["content", "body"] {
            metadata.shift_remove(name);
        }
        metadata.retain(|_, value| !is_empty(value));
    }
    remove_empty(data, &["shadows", "warnings"]);
    for name in ["type", "item_id"] {
        fields.shift_remove(name);
    }
}

/// Removes the signature line of a tool's source, which no reader needs.
fn remove_signature(content: &mut String) {
    let mut lines = content.split_inclusive('\n');
    let start: usize = lines.by_ref().take_while(|line| line.starts_with("#!")).map(str::len).sum();
    let Some(line) = content[start..].split_inclusive('\n').next() else { return };
    let marker = line.trim_start_matches(['#', '/', '-', '<', '!', ' ']);
    if marker.starts_with("rye:signed:") {
        content.replace_range(start..start + line.len(), "");
    }
}

fn take(fields: &mut Map<String, Value>, name: &str) -> Option<Value> {
    fields.shift_remove(name)
}

fn remove_empty(fields: &mut Map<String, Value>, names: &[&str]) {
    for name in names {
        if fields.get(*name).is_some_and(is_empty) {
            fields.shift_remove(*name);
        }
    }
}

/// Whether a value says nothing.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mechanism: &str, is_enforced: bool) -> Value {
        json!({"rule": "writes", "mechanism": mechanism, "is_enforced": is_enforced, "detail": ""})
    }

    fn run_answer(level: &str, is_enforced: bool) -> Value {
        json!({
            "status": "success", "type": "tool", "item_id": "team/count", "data": {"words": 42, "list": []},
            "chain": [{"item_id": "team/count"}], "duration_ms": 1.5, "first_use": true,
            "sandbox": {"level": level, "rows": [row("landlock", is_enforced)]},
            "lock": {"state": "held"}, "logs": {}, "truncated": false,
            "notes": ["pinned in /home/ann/lock.json", "the lockfile is stale"],
        })
    }

    #[test]
    fn plain_success_is_its_result() {
        let brief = shorten("rye_execute", Detail::Brief, run_answer("full", true));
        let expected = json!({
            "status": "success", "data": {"words": 42, "list": []}, "notes": ["the lockfile is stale"],
        });
        assert_eq!(brief, expected);
        assert_eq!(shorten("rye_execute", Detail::Full, run_answer("full", true)), run_answer("full", true));
    }

    #[test]
    fn weaker_sandbox_stays_in_the_answer() {
        let brief = shorten("rye_execute", Detail::Brief, run_answer("partial", false));
        assert_eq!(brief["sandbox"], json!({"level": "partial", "not_enforced": ["writes"]}));
        let off = shorten("rye_execute", Detail::Brief, run_answer("off", true));
        assert_eq!(off["sandbox"], json!({"level": "off"}));
    }

    #[test]
    fn one_mechanism_is_enough_for_a_rule() {
        let mut answer = run_answer("full", true);
        answer["sandbox"]["rows"] = json!([row("landlock", false), row("mount_namespace", true)]);
        assert_eq!(shorten("rye_execute", Detail::Brief, answer).get("sandbox"), None);
    }

    #[test]
    fn moved_repositories_stay_in_the_answer() {
        let mut answer = run_answer("full", true);
        answer["sandbox"]["moved_aside"] = json!(["sub/.git"]);
        let brief = shorten("rye_execute", Detail::Brief, answer);
        assert_eq!(brief["sandbox"], json!({"moved_aside": ["sub/.git"]}));
    }

    #[test]
    fn content_is_sent_once_without_signature() {
        let source = "#!/bin/sh\n# rye:signed:2026:a:b:c\necho 1\n";
        let answer =
            json!({"status": "success", "data": {"content": source, "raw": source, "metadata": {"a": null}}});
        let brief = shorten("rye_load", Detail::Brief, answer);
        assert_eq!(brief["data"], json!({"content": "#!/bin/sh\necho 1\n", "metadata": {}}));
    }

    #[test]
    fn directives_answer_with_their_directions() {
        let answer = json!({
            "status": "success", "type": "directive", "item_id": "a/b", "your_directions": "Do it.",
            "data": {"body": "Do it.", "content": "<directive/>", "outputs": ["greeting"]},
        });
        let brief = shorten("rye_execute", Detail::Brief, answer);
        assert_eq!(brief, json!({"status": "success", "your_directions": "Do it.", "outputs": ["greeting"]}));
    }

    #[test]
    fn unknown_detail_is_refused() {
        let take = |word: Value| take_detail(&mut Map::from_iter([("detail".to_owned(), word)]));
        assert_eq!(take(json!("full")).expect("a detail"), Detail::Full);
        assert_eq!(take(Value::Null).expect("a detail"), Detail::Brief);
        assert!(take(json!("all")).is_err() && take(json!(1)).is_err());
    }
}
