//! Hooks: commands that a client runs by itself. They are listed and never imported.

use serde_json::Value;

use super::parse_json;
use crate::findings::pipes_download;
use crate::plan::{ImportNote, NoteKind, UnitContext, UnitPlan};

/// How many commands are listed.
const MAX_COMMANDS: usize = 50;

/// Reads a file of hooks, or settings that have some.
pub(super) fn read(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let document = parse_json(context.text()?)?;
    let hooks = document.get("hooks").unwrap_or(&Value::Null);
    let mut notes = commands(hooks);
    for key in ["allow", "deny", "ask"] {
        let rules = document["permissions"][key].as_array().into_iter().flatten().filter_map(Value::as_str);
        let rules = rules.collect::<Vec<_>>().join(", ");
        if !rules.is_empty() {
            notes.push(ImportNote::new(
                NoteKind::Lost,
                format!(
                    "the permissions `{key}: {rules}` are not imported: directives carry their own grants"
                ),
            ));
        }
    }
    Ok(UnitPlan { notes, ..UnitPlan::default() })
}

/// One note for each command among hooks.
pub(super) fn commands(hooks: &Value) -> Vec<ImportNote> {
    let mut found = Vec::new();
    collect(hooks, "", &mut found);
    let more = found.len().saturating_sub(MAX_COMMANDS);
    let mut notes: Vec<ImportNote> = found
        .into_iter()
        .take(MAX_COMMANDS)
        .map(|(event, command)| {
            let danger = if pipes_download(&command) { " (it runs a download)" } else { "" };
            ImportNote::new(NoteKind::Hook, format!("{event} runs `{command}`{danger}: listed, not imported"))
        })
        .collect();
    if more > 0 {
        notes.push(ImportNote::new(NoteKind::Hook, format!("and {more} more commands")));
    }
    notes
}

/// The first command among a plugin's hooks that runs what it downloads.
pub(crate) fn hook_download(context: &UnitContext<'_>) -> Option<String> {
    let text = std::str::from_utf8(context.tree.bytes(&context.unit.path)?).ok()?;
    let mut found = Vec::new();
    collect(&parse_json(text).ok()?, "", &mut found);
    found.into_iter().map(|(_, command)| command).find(|command| pipes_download(command))
}

/// Every `command`, `bash` or `prompt` with the event it belongs to.
fn collect(value: &Value, event: &str, found: &mut Vec<(String, String)>) {
    match value {
        Value::Array(list) => list.iter().for_each(|entry| collect(entry, event, found)),
        Value::Object(map) => {
            for (key, entry) in map {
                match entry {
                    Value::String(command)
                        if ["command", "bash", "powershell", "prompt"].contains(&key.as_str()) =>
                    {
                        found.push((
                            if event.is_empty() { "a hook".to_owned() } else { event.to_owned() },
                            command.clone(),
                        ));
                    }
                    Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
                    Value::Array(_) | Value::Object(_)
                        if event.is_empty() && !["hooks", "matcher"].contains(&key.as_str()) =>
                    {
                        collect(entry, key, found);
                    }
                    Value::Array(_) | Value::Object(_) => collect(entry, event, found),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
