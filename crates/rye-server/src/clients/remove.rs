//! Taking the entry out of a client's configuration again, and telling whether it is there.

use serde_json::{Map, Value};

use super::{ClientApp, ConfigFormat, ENTRY_NAME, edit, unchanged_error};
use rye_engine::Result;

/// What a client's configuration says of rye.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryState {
    /// It has no entry.
    Absent,
    /// Its entry starts this program with `mcp`.
    Registered {
        /// The program.
        program: String,
    },
    /// Its entry of the name says something else.
    Other,
}

/// What a configuration says of rye.
///
/// # Errors
/// When it is not understood.
pub fn entry_state(client: ClientApp, text: &str) -> Result<EntryState> {
    let document = edit::parse(client.format(), text).map_err(|reason| unchanged_error(client, &reason))?;
    let servers = client.server_keys(&document).iter().fold(&document, |value, key| &value[*key]);
    Ok(match &servers[ENTRY_NAME] {
        Value::Null => EntryState::Absent,
        entry => match program_of(entry) {
            Some(program) => EntryState::Registered { program },
            None => EntryState::Other,
        },
    })
}

/// The program an entry starts, if it starts it with `mcp` and nothing else.
fn program_of(entry: &Value) -> Option<String> {
    let texts = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned)).collect()
    };
    let mut words = match &entry["command"] {
        Value::Array(_) => texts(&entry["command"])?,
        _ => {
            let program = entry["command"].as_str().or_else(|| entry["cmd"].as_str())?;
            let mut words = vec![program.to_owned()];
            words.extend(texts(&entry["args"]).unwrap_or_default());
            words
        }
    };
    let is_rye = words.len() == 2
        && words[1] == "mcp"
        && std::path::Path::new(&words[0]).file_name().is_some_and(|name| name == ENTRY_NAME);
    is_rye.then(|| words.swap_remove(0))
}

/// The configuration without the entry; `None` if it has none.
///
/// # Errors
/// When it is not understood, its entry is not rye's, or it cannot be changed safely.
pub fn remove_entry(client: ClientApp, text: &str) -> Result<Option<String>> {
    match entry_state(client, text)? {
        EntryState::Absent => return Ok(None),
        EntryState::Other => {
            return Err(unchanged_error(client, "its entry `rye` does not start `rye mcp`"));
        }
        EntryState::Registered { .. } => {}
    }
    let format = client.format();
    let document = edit::parse(format, text).map_err(|reason| unchanged_error(client, &reason))?;
    let keys = client.server_keys(&document);
    let mut wanted = document.clone();
    let servers = keys.iter().try_fold(&mut wanted, |value, key| value.get_mut(*key));
    if let Some(servers) = servers.and_then(Value::as_object_mut) {
        servers.shift_remove(ENTRY_NAME);
    }
    let after = match format {
        ConfigFormat::Json => edit::json_text(text, &wanted),
        ConfigFormat::Toml => without_toml_table(text, &format!("{}.{ENTRY_NAME}", keys.join("."))),
        ConfigFormat::Yaml => without_yaml_block(text, keys.first().copied().unwrap_or_default()),
    };
    // Whatever was done to the text: it must now say exactly what it said, without the entry.
    match edit::parse(format, &after) {
        Ok(parsed) if without_empty(&parsed, keys) == without_empty(&wanted, keys) => Ok(Some(after)),
        Ok(_) | Err(_) => {
            Err(unchanged_error(client, "it is written in a way that cannot be changed safely"))
        }
    }
}

/// Whether a configuration says nothing: it has no more than an empty list of servers, and no comment.
#[must_use]
pub fn is_empty_config(client: ClientApp, text: &str) -> bool {
    let format = client.format();
    let has_comments = format != ConfigFormat::Json && text.contains('#');
    let is_empty = |document: &Value| {
        without_empty(document, client.server_keys(document)).as_object().is_some_and(Map::is_empty)
    };
    !has_comments && edit::parse(format, text).is_ok_and(|document| is_empty(&document))
}

/// The document without an empty list of servers, which says as much as none.
fn without_empty(document: &Value, keys: &[&str]) -> Value {
    let mut document = document.clone();
    for depth in (0..keys.len()).rev() {
        let parent = keys[..depth].iter().try_fold(&mut document, |value, key| value.get_mut(*key));
        let Some(parent) = parent.and_then(Value::as_object_mut) else { continue };
        let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
        if parent.get(keys[depth]).is_some_and(is_empty) {
            parent.shift_remove(keys[depth]);
        }
    }
    document
}

/// The text without a table and the blank line before it.
fn without_toml_table(text: &str, name: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        let header = line.trim();
        if header.starts_with('[') {
            let table = header.trim_start_matches('[').split(']').next().unwrap_or_default().trim();
            is_inside = table == name || table.starts_with(&format!("{name}."));
            if is_inside && lines.last().is_some_and(|last| last.trim().is_empty()) {
                lines.pop();
            }
        }
        if !is_inside {
            lines.push(line);
        }
    }
    join(&lines)
}

/// The text without the entry below `key`.
fn without_yaml_block(text: &str, key: &str) -> String {
    let indent_of = |line: &str| line.len() - line.trim_start().len();
    let mut lines: Vec<&str> = Vec::new();
    let mut is_in_servers = false;
    let mut entry_indent = None;
    for line in text.lines() {
        let is_silent = line.trim().is_empty() || line.trim_start().starts_with('#');
        if !is_silent && indent_of(line) == 0 {
            is_in_servers = line.trim_end() == format!("{key}:") || line.starts_with(&format!("{key}: #"));
        }
        if let Some(indent) = entry_indent {
            // A comment that is not indented further belongs to what follows.
            if line.trim().is_empty() {
                lines.push(line);
                continue;
            }
            if indent_of(line) > indent {
                continue;
            }
            entry_indent = None;
        }
        if is_in_servers && indent_of(line) > 0 && line.trim() == format!("{ENTRY_NAME}:") {
            entry_indent = Some(indent_of(line));
            continue;
        }
        lines.push(line);
    }
    join(&lines)
}

fn join(lines: &[&str]) -> String {
    let text = lines.join("\n");
    if text.is_empty() { text } else { text + "\n" }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::clients::update_config;

    const PROGRAM: &str = "/opt/rye/bin/rye";

    #[test]
    fn removing_undoes_installing() {
        for (client, before) in [
            (ClientApp::Cursor, "{\n  \"mcpServers\": {\n    \"other\": {}\n  },\n  \"z\": 1\n}\n"),
            (ClientApp::Codex, "# mine\nmodel = \"x\" # best\n\n[mcp_servers.other]\ncommand = \"y\"\n"),
            (
                ClientApp::Goose,
                "# goose\nextensions:\n  # builtin\n  developer:\n    enabled: true\nMODEL: x\n",
            ),
            (ClientApp::OpenCode, "{\n  \"mcp\": {\n    \"servers\": {\n      \"a\": {}\n    }\n  }\n}\n"),
        ] {
            let added = update_config(client, Path::new(PROGRAM), Some(before)).expect("added");
            let program = PROGRAM.to_owned();
            assert_eq!(entry_state(client, &added).expect("read"), EntryState::Registered { program });
            let removed = remove_entry(client, &added).expect("removed").expect("changed");
            assert_eq!(removed, before, "{}", client.as_str());
            assert_eq!(remove_entry(client, before).expect("read"), None);
            assert_eq!(entry_state(client, before).expect("read"), EntryState::Absent);
            assert!(!is_empty_config(client, before), "{before}");
        }
    }

    #[test]
    fn new_configs_are_empty_after_removal() {
        for client in ClientApp::ALL {
            let made = update_config(client, Path::new(PROGRAM), None).expect("made");
            let left = remove_entry(client, &made).expect("removed").expect("changed");
            assert!(is_empty_config(client, &left), "{}: {left:?}", client.as_str());
        }
        assert!(!is_empty_config(ClientApp::Codex, "# mine\n"));
    }

    #[test]
    fn entries_of_others_are_kept() {
        for entry in
            ["{\"command\": \"other\"}", "{\"command\": \"rye\", \"args\": [\"mcp\", \"--http\"]}", "3"]
        {
            let text = format!("{{\"mcpServers\": {{\"rye\": {entry}}}}}");
            assert_eq!(entry_state(ClientApp::Gemini, &text).expect("read"), EntryState::Other, "{entry}");
            assert!(remove_entry(ClientApp::Gemini, &text).is_err(), "{entry}");
        }
        assert!(entry_state(ClientApp::Gemini, "{ // mine\n}").is_err());
    }
}
