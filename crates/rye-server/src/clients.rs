//! Registering the server with clients: what each one's configuration is to say, and how it is changed without losing
//! anything else in it. Only texts come in and go out; reading and writing files is the caller's.

mod edit;
mod remove;

use std::path::{Path, PathBuf};

use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};

pub use edit::diff;
pub use remove::{EntryState, entry_state, is_empty_config, remove_entry};

/// The name of the entry.
const ENTRY_NAME: &str = "rye";

/// A client that can be told of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientApp {
    /// Claude Code.
    ClaudeCode,
    /// Claude Desktop.
    ClaudeDesktop,
    /// Codex.
    Codex,
    /// Cursor.
    Cursor,
    /// Visual Studio Code.
    VsCode,
    /// opencode.
    OpenCode,
    /// Gemini CLI.
    Gemini,
    /// goose.
    Goose,
    /// Zed.
    Zed,
}

/// How a configuration is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConfigFormat {
    Json,
    Toml,
    Yaml,
}

/// Where clients keep their configuration, as the user's environment says.
#[derive(Clone, Debug)]
pub struct ClientDirs {
    /// The user's home.
    pub home: PathBuf,
    /// `XDG_CONFIG_HOME`, else `~/.config`.
    pub config: PathBuf,
    /// `CODEX_HOME`, else `~/.codex`.
    pub codex: PathBuf,
    /// The project.
    pub project: PathBuf,
}

impl ClientDirs {
    /// The folder of Claude Desktop; on macOS it is elsewhere.
    fn claude_desktop(&self) -> PathBuf {
        let application_support = self.home.join("Library/Application Support");
        let base = if application_support.is_dir() { &application_support } else { &self.config };
        base.join("Claude")
    }
}

impl ClientApp {
    /// Every client.
    pub const ALL: [Self; 9] = [
        Self::ClaudeCode,
        Self::ClaudeDesktop,
        Self::Codex,
        Self::Cursor,
        Self::VsCode,
        Self::OpenCode,
        Self::Gemini,
        Self::Goose,
        Self::Zed,
    ];

    /// What it is called on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::ClaudeDesktop => "claude-desktop",
            Self::Codex => "codex",
            Self::Cursor => "cursor",
            Self::VsCode => "vscode",
            Self::OpenCode => "opencode",
            Self::Gemini => "gemini",
            Self::Goose => "goose",
            Self::Zed => "zed",
        }
    }

    /// Its configuration: the project's where that is the custom and the file is shared, else the user's.
    #[must_use]
    pub fn config_path(self, dirs: &ClientDirs) -> PathBuf {
        match self {
            Self::ClaudeCode => dirs.project.join(".mcp.json"),
            Self::ClaudeDesktop => dirs.claude_desktop().join("claude_desktop_config.json"),
            Self::Codex => dirs.codex.join("config.toml"),
            Self::Cursor => dirs.home.join(".cursor/mcp.json"),
            Self::VsCode => dirs.project.join(".vscode/mcp.json"),
            Self::OpenCode => dirs.config.join("opencode/opencode.json"),
            Self::Gemini => dirs.home.join(".gemini/settings.json"),
            Self::Goose => dirs.config.join("goose/config.yaml"),
            Self::Zed => dirs.config.join("zed/settings.json"),
        }
    }

    /// What the client leaves in the user's folders once it was started, and the program that starts it.
    #[must_use]
    pub fn traces(self, dirs: &ClientDirs) -> (Vec<PathBuf>, &'static [&'static str]) {
        match self {
            Self::ClaudeCode => {
                (vec![dirs.home.join(".claude.json"), dirs.home.join(".claude")], &["claude"])
            }
            Self::ClaudeDesktop => (vec![dirs.claude_desktop()], &["claude-desktop"]),
            Self::Codex => (vec![dirs.codex.clone()], &["codex"]),
            Self::Cursor => (vec![dirs.home.join(".cursor")], &["cursor", "cursor-agent"]),
            Self::VsCode => (vec![dirs.config.join("Code")], &["code"]),
            Self::OpenCode => (vec![dirs.config.join("opencode")], &["opencode"]),
            Self::Gemini => (vec![dirs.home.join(".gemini")], &["gemini"]),
            Self::Goose => (vec![dirs.config.join("goose")], &["goose"]),
            Self::Zed => (vec![dirs.config.join("zed")], &["zed", "zeditor"]),
        }
    }

    /// Whether the file is the project's: others read it too, whose binary lies elsewhere.
    #[must_use]
    pub fn is_shared(self) -> bool {
        matches!(self, Self::ClaudeCode | Self::VsCode)
    }

    fn format(self) -> ConfigFormat {
        match self {
            Self::Codex => ConfigFormat::Toml,
            Self::Goose => ConfigFormat::Yaml,
            Self::ClaudeCode
            | Self::ClaudeDesktop
            | Self::Cursor
            | Self::VsCode
            | Self::OpenCode
            | Self::Gemini
            | Self::Zed => ConfigFormat::Json,
        }
    }

    /// The keys its servers are listed under. A newer opencode lists them one level deeper.
    fn server_keys(self, existing: &Value) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode | Self::ClaudeDesktop | Self::Cursor | Self::Gemini => &["mcpServers"],
            Self::Codex => &["mcp_servers"],
            Self::VsCode => &["servers"],
            Self::OpenCode if existing["mcp"]["servers"].is_object() => &["mcp", "servers"],
            Self::OpenCode => &["mcp"],
            Self::Goose => &["extensions"],
            Self::Zed => &["context_servers"],
        }
    }

    fn entry(self, program: &str) -> Value {
        match self {
            Self::ClaudeCode | Self::VsCode => json!({"type": "stdio", "command": program, "args": ["mcp"]}),
            Self::ClaudeDesktop | Self::Codex | Self::Cursor | Self::Gemini => {
                json!({"command": program, "args": ["mcp"]})
            }
            Self::Zed => json!({"command": program, "args": ["mcp"], "env": {}}),
            Self::OpenCode => json!({"type": "local", "command": [program, "mcp"], "enabled": true}),
            Self::Goose => json!({
                "name": ENTRY_NAME, "type": "stdio", "cmd": program, "args": ["mcp"], "enabled": true, "timeout": 300,
                "description": "Signed directives, tools and knowledge of this project",
            }),
        }
    }
}

impl std::str::FromStr for ClientApp {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        // What the programs themselves are called, or call themselves.
        let other = match word {
            "claude" => Some(Self::ClaudeCode),
            "gemini-cli" => Some(Self::Gemini),
            "code" => Some(Self::VsCode),
            _ => None,
        };
        let named = || Self::ALL.into_iter().find(|client| client.as_str() == word);
        other.or_else(named).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str);
            let error = Error::new(
                Code::InvalidArgument,
                format!("unknown client `{}`", rye_item::text::one_line(word)),
            );
            match rye_item::text::nearest(word, known) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            }
            .hint(format!("clients are: {}", known.join(", ")))
        })
    }
}

/// The configuration as it is to be, from the one there is; the same text if it says so already.
///
/// # Errors
/// When it is not understood, or has another entry of this name.
pub fn update_config(client: ClientApp, program: &Path, existing: Option<&str>) -> Result<String> {
    let program = if client.is_shared() { ENTRY_NAME.to_owned() } else { program.display().to_string() };
    let text = existing.unwrap_or_default();
    let document = edit::parse(client.format(), text).map_err(|reason| unchanged_error(client, &reason))?;
    let keys = client.server_keys(&document);
    let entry = client.entry(&program);
    let servers = keys.iter().fold(&document, |value, key| &value[*key]);
    match &servers[ENTRY_NAME] {
        Value::Null => {}
        present_entry if is_superset(present_entry, &entry) => return Ok(text.to_owned()),
        _ => return Err(unchanged_error(client, "it already has an entry `rye` that says something else")),
    }
    let updated = edit::insert_entry(&document, keys, ENTRY_NAME, &entry).ok_or_else(|| {
        unchanged_error(client, &format!("`{}` in it is not a list of servers by name", keys.join(".")))
    })?;
    let after = edit::render(client.format(), text, &updated, keys, ENTRY_NAME, &entry);
    // Whatever was done to the text: it must now say exactly what it said, and the entry.
    match edit::parse(client.format(), &after) {
        Ok(parsed) if parsed == updated => Ok(after),
        Ok(_) | Err(_) => {
            Err(unchanged_error(client, "it is written in a way that cannot be added to safely"))
        }
    }
}

/// What a file that does not exist yet would hold: the entry alone.
///
/// # Errors
/// Never for the clients there are; their own entries are understood.
pub fn new_config(client: ClientApp, program: &Path) -> Result<String> {
    update_config(client, program, None)
}

/// Whether an entry says all that ours does; it may say more.
fn is_superset(present_entry: &Value, entry: &Value) -> bool {
    entry
        .as_object()
        .is_some_and(|entry| entry.iter().all(|(key, value)| present_entry.get(key) == Some(value)))
}

fn unchanged_error(client: ClientApp, reason: &str) -> Error {
    Error::new(
        Code::ClientConfig,
        format!("the configuration of {} was left as it is: {reason}", client.as_str()),
    )
    .hint(format!("print the entry and add it yourself: rye mcp install {} --print", client.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "/opt/rye/bin/rye";

    fn add(client: ClientApp, present: &str) -> Result<String> {
        update_config(client, Path::new(PROGRAM), Some(present))
    }

    #[test]
    fn each_client_gets_one_entry() {
        for client in ClientApp::ALL {
            let first = new_config(client, Path::new(PROGRAM)).expect("an entry");
            assert!(first.contains("rye") && first.contains("mcp") && first.ends_with('\n'), "{first}");
            assert_eq!(add(client, &first).expect("again"), first, "{}", client.as_str());
            assert_eq!(client.as_str().parse::<ClientApp>().expect("a client"), client);
            assert_eq!(first.contains(PROGRAM), !client.is_shared(), "{first}");
        }
        assert!("emacs".parse::<ClientApp>().is_err());
        assert_eq!("claude".parse::<ClientApp>().expect("a client"), ClientApp::ClaudeCode);
        assert_eq!("gemini-cli".parse::<ClientApp>().expect("a client"), ClientApp::Gemini);
    }

    #[test]
    fn other_json_settings_are_kept() {
        let present = "{\n    \"theme\": \"dark\",\n    \"mcpServers\": {\n        \"other\": {\n            \"command\": \"x\"\n        }\n    },\n    \"z\": [1, 2.50]\n}";
        let after = add(ClientApp::Cursor, present).expect("changed");
        let value: Value = serde_json::from_str(&after).expect("JSON");
        assert_eq!(value["mcpServers"]["other"]["command"], "x");
        assert_eq!(value["mcpServers"]["rye"]["command"], PROGRAM);
        assert!(after.starts_with("{\n    \"theme\""), "{after}");
        assert!(
            after.find("theme") < after.find("mcpServers") && after.find("mcpServers") < after.find("\"z\"")
        );
    }

    #[test]
    fn comments_are_never_lost() {
        let commented = "{\n  // mine\n  \"context_servers\": {},\n}\n";
        assert_eq!(add(ClientApp::Zed, commented).expect_err("comments").code, Code::ClientConfig);
        let toml = "# my models\nmodel = \"o9\" # the best\n\n[mcp_servers.other]\ncommand = \"x\"\n";
        let after = add(ClientApp::Codex, toml).expect("changed");
        assert!(after.starts_with(toml) && after.contains("[mcp_servers.rye]"), "{after}");
        let yaml = "# goose\nextensions:\n    # builtin\n    developer:\n        enabled: true\nGOOSE_MODEL: x # y\n";
        let after = add(ClientApp::Goose, yaml).expect("changed");
        for line in yaml.lines() {
            assert!(after.lines().any(|other| other == line), "{line} is gone: {after}");
        }
        assert!(after.contains("    rye:\n"), "{after}");
    }

    #[test]
    fn unparsable_config_is_left_alone() {
        for (client, present) in [
            (ClientApp::Cursor, "{\"mcpServers\": []}"),
            (ClientApp::Cursor, "{\"mcpServers\": {\"rye\": {\"command\": \"other\"}}}"),
            (ClientApp::Cursor, "[]"),
            (ClientApp::Cursor, "not json"),
            (ClientApp::Codex, "mcp_servers = {other = {command = \"x\"}}\n"),
            (ClientApp::Codex, "mcp_servers = 3\n"),
            (ClientApp::Codex, "= broken"),
            (ClientApp::Goose, "extensions: [a, b]\n"),
            (ClientApp::Goose, "extensions: {developer: {enabled: true}}\n"),
            (ClientApp::Goose, "- a\n"),
            (ClientApp::Goose, "a: [\n"),
        ] {
            let refused = add(client, present).expect_err(present);
            assert_eq!(refused.code, Code::ClientConfig, "{present}");
            assert!(!refused.hints.is_empty());
        }
    }

    #[test]
    fn extended_entry_is_kept() {
        let present = format!(
            "{{\"mcpServers\": {{\"rye\": {{\"command\": \"{PROGRAM}\", \"args\": [\"mcp\"], \"env\": {{\"A\": \"b\"}}}}}}}}"
        );
        assert_eq!(add(ClientApp::Gemini, &present).expect("the same"), present);
    }

    #[test]
    fn newer_opencode_layout_is_supported() {
        let after = add(ClientApp::OpenCode, "{\"mcp\": {\"servers\": {}}}").expect("changed");
        let value: Value = serde_json::from_str(&after).expect("JSON");
        assert_eq!(value["mcp"]["servers"]["rye"]["command"][1], "mcp");
    }

    #[test]
    fn diff_is_line_by_line() {
        let text = diff("a\nb\n", "a\nb\nc\n");
        assert!(text.contains("+c") && !text.contains("-b"), "{text}");
    }
}
