//! What a file may set in the client that reads it. A key that is not listed here could run something or widen what the
//! client allows, today or in its next release: an item with one is not exported.

use serde_json::Value;

use super::ExportFile;
use crate::front_matter;

/// Keys that describe, of any file.
const DESCRIBING_KEYS: [&str; 22] = [
    "name",
    "title",
    "description",
    "version",
    "author",
    "authors",
    "license",
    "compatibility",
    "metadata",
    "tags",
    "keywords",
    "category",
    "categories",
    "topic",
    "homepage",
    "repository",
    "source",
    "created",
    "updated",
    "date",
    "color",
    "language",
];
/// Keys of a skill. `allowed-tools` is one of the format's own fields, and the plan of the import names it.
const SKILL_KEYS: [&str; 13] = [
    "allowed-tools",
    "argument-hint",
    "arguments",
    "disable-model-invocation",
    "user-invocable",
    "when_to_use",
    "model",
    "effort",
    "context",
    "agent",
    "paths",
    "triggers",
    "globs",
];
/// Keys of an agent.
const AGENT_KEYS: [&str; 18] = [
    "tools",
    "disallowedTools",
    "disallowed-tools",
    "model",
    "effort",
    "maxTurns",
    "skills",
    "mode",
    "temperature",
    "readonly",
    "is_background",
    "background",
    "argument-hint",
    "user-invocable",
    "target",
    "sandbox_mode",
    "model_reasoning_effort",
    "developer_instructions",
];
/// Keys of a command.
const COMMAND_KEYS: [&str; 11] = [
    "allowed-tools",
    "argument-hint",
    "arguments",
    "disable-model-invocation",
    "user-invocable",
    "model",
    "effort",
    "mode",
    "agent",
    "context",
    "prompt",
];
/// Keys of a rule.
const RULE_KEYS: [&str; 5] = ["globs", "alwaysApply", "paths", "applyTo", "trigger"];
/// Values of `sandbox_mode` that confine.
const CONFINING_MODES: [&str; 2] = ["read-only", "workspace-write"];
/// Names that begin with a dot and that no client reads.
const PLAIN_DOT_FILES: [&str; 11] = [
    ".dockerignore",
    ".editorconfig",
    ".env.example",
    ".eslintignore",
    ".gitattributes",
    ".gitignore",
    ".gitkeep",
    ".npmignore",
    ".nvmrc",
    ".prettierrc",
    ".python-version",
];

/// Why a file is not written for a client; `None` if it only says what it is.
pub(super) fn refusal(file: &ExportFile) -> Option<String> {
    let mut parts = file.path.split('/').skip(1);
    // The client's own folder may begin with a dot, nothing below it.
    if let Some(part) = parts.find(|part| part.starts_with('.') && !PLAIN_DOT_FILES.contains(part)) {
        return Some(format!("it holds `{part}`, which could take effect in the client"));
    }
    let allowed = allowed_keys(&file.path)?;
    let Ok(text) = std::str::from_utf8(&file.bytes) else {
        return Some(format!("`{}` is not UTF-8", file.path));
    };
    let fields = match file.path.ends_with(".toml") {
        true => match toml::from_str::<toml::Table>(text) {
            Ok(table) => {
                table.into_iter().map(|(key, value)| (key, value.as_str().map(str::to_owned))).collect()
            }
            Err(error) => return Some(format!("`{}` is not TOML: {}", file.path, error.message())),
        },
        false => head_fields(text),
    };
    for (key, value) in fields {
        let is_allowed = DESCRIBING_KEYS.contains(&key.as_str()) || allowed.contains(&key.as_str());
        let is_confined =
            key != "sandbox_mode" || value.is_some_and(|value| CONFINING_MODES.contains(&value.as_str()));
        if !is_allowed || !is_confined {
            return Some(format!(
                "its source sets `{}`, which is not among the keys that are exported: it could take effect in the client",
                rye_item::text::one_line(&key)
            ));
        }
    }
    None
}

/// The keys that a client reads in a file of this place; `None` if it reads none there.
fn allowed_keys(path: &str) -> Option<&'static [&'static str]> {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    if name.eq_ignore_ascii_case("SKILL.md") {
        return Some(&SKILL_KEYS);
    }
    // The first one decides: `.claude/commands/skills/x.md` is a command.
    folders.split('/').find_map(|folder| match folder {
        "skills" => Some(None),
        "agents" => Some(Some(&AGENT_KEYS[..])),
        "commands" => Some(Some(&COMMAND_KEYS[..])),
        "rules" => Some(Some(&RULE_KEYS[..])),
        _ => None,
    })?
}

/// The keys of a head. What is not YAML is read as the most lenient client would: each line that begins with a word.
fn head_fields(text: &str) -> Vec<(String, Option<String>)> {
    let text = text.trim_start_matches(['\u{feff}', ' ', '\t', '\r', '\n']);
    let keys = match front_matter::split(text) {
        Ok(split) => split.keys,
        // A head without an end.
        Err(_) => text,
    };
    if let Ok(document) = rye_item::yaml::parse(keys) {
        match document.value {
            Value::Object(fields) => {
                let plain = |value: &Value| value.as_str().map(str::to_owned);
                return fields.iter().map(|(key, value)| (key.clone(), plain(value))).collect();
            }
            Value::Null => return Vec::new(),
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {}
        }
    }
    let lines = keys.lines().filter(|line| !line.starts_with([' ', '\t', '#', '-']));
    let pairs = lines.filter_map(|line| line.split_once(':'));
    pairs
        .map(|(key, value)| (key.trim().trim_matches(['"', '\'']).to_owned(), Some(value.trim().to_owned())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str, text: &str) -> Option<String> {
        refusal(&ExportFile {
            path: path.to_owned(),
            bytes: text.as_bytes().to_vec(),
            is_executable: false,
            item: "knowledge:x".to_owned(),
            imported: None,
        })
    }

    #[test]
    fn keys_that_describe_are_exported() {
        for (path, text) in [
            (
                ".claude/skills/a/SKILL.md",
                "---\nname: a\ndescription: d\nallowed-tools: Read\nmetadata:\n  x: 1\n---\nB\n",
            ),
            (".claude/skills/a/SKILL.md", "no head\nhooks: a word of the text\n"),
            (".claude/skills/a/references/x.md", "---\nhooks: a page of the skill\n---\n"),
            (".claude/skills/a/.gitignore", "x"),
            (".claude/agents/a.md", "---\nname: a\ndescription: d\ntools: Read\nmodel: haiku\n---\nB\n"),
            (
                ".codex/agents/a.toml",
                "name = \"a\"\nsandbox_mode = \"read-only\"\ndeveloper_instructions = \"x\"\n",
            ),
            (".claude/commands/x/a.md", "---\nargument-hint: \"[n]\"\nallowed-tools: Bash(git:*)\n---\nB\n"),
            (".cursor/rules/a.mdc", "---\ndescription:\nglobs: **/*\nalwaysApply: false\n---\nB\n"),
            ("AGENTS.md", "---\nhooks: text\n---\n"),
        ] {
            assert_eq!(refused(path, text), None, "{path}: {text}");
        }
    }

    #[test]
    fn other_keys_are_not_exported() {
        for (path, text) in [
            (".claude/skills/a/SKILL.md", "---\nname: a\nhooks:\n  Stop: []\n---\n"),
            (".claude/skills/a/SKILL.md", "---\nname: a\nshell: bash\n---\n"),
            (".claude/skills/a/SKILL.md", "---\n{name: a, hooks: {}}\n---\n"),
            (".claude/skills/a/SKILL.md", "---\nname: a\n\"ho\\u006fks\": 1\n---\n"),
            (".claude/skills/a/SKILL.md", "\n\n---\nhooks: 1\n---\n"),
            (".claude/skills/a/SKILL.md", "---\nname: a: b\nhooks: 1\n---\n"),
            (".claude/skills/a/SKILL.md", "---\nhooks: 1\n"),
            (".claude/skills/a/sub/skill.md", "---\nhooks: 1\n---\n"),
            (".claude/skills/a/.mcp.json", "{}"),
            (".claude/skills/a/.claude/settings.json", "{}"),
            (".claude/agents/a.md", "---\nname: a\npermissionMode: bypassPermissions\n---\n"),
            (".claude/agents/a.md", "---\nname: a\nmcpServers: [x]\n---\n"),
            (".claude/agents/skills/a.md", "---\nname: a\nmcpServers: [x]\n---\n"),
            (".claude/commands/skills/a.md", "---\nhooks: x\n---\n"),
            (".claude/agents/a.md", "---\nname: a\na-key-of-tomorrow: 1\n---\n"),
            (".codex/agents/a.toml", "sandbox_mode = \"danger-full-access\"\n"),
            (".codex/agents/a.toml", "sandbox_mode = true\n"),
            (".codex/agents/a.toml", "[mcp_servers.x]\ncommand = \"x\"\n"),
            (".codex/agents/a.toml", "approval_policy = \"never\"\n"),
            (".codex/agents/a.toml", "not toml"),
            (".cursor/rules/a.mdc", "---\nglobs: **/*\nrun: x\n---\n"),
        ] {
            assert!(refused(path, text).is_some(), "{path}: {text}");
        }
    }
}
