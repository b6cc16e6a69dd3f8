//! Registering the server with clients: what each one's configuration is to say, and how it is changed without losing
//! anything else in it. Only texts come in and go out; reading and writing files is the caller's.

mod edit;

use std::path::{Path, PathBuf};

use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};

pub use edit::diff;

/// The name of the entry.
const NAME: &str = "rye";

/// A client that can be told of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Claude Code.
    ClaudeCode,
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
enum Format {
    Json,
    Toml,
    Yaml,
}

impl Client {
    /// Every client.
    pub const ALL: [Self; 8] = [
        Self::ClaudeCode,
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
    pub fn path(self, home: &Path, project: &Path) -> PathBuf {
        match self {
            Self::ClaudeCode => project.join(".mcp.json"),
            Self::Codex => home.join(".codex/config.toml"),
            Self::Cursor => home.join(".cursor/mcp.json"),
            Self::VsCode => project.join(".vscode/mcp.json"),
            Self::OpenCode => home.join(".config/opencode/opencode.json"),
            Self::Gemini => home.join(".gemini/settings.json"),
            Self::Goose => home.join(".config/goose/config.yaml"),
            Self::Zed => home.join(".config/zed/settings.json"),
        }
    }

    /// Whether the file is the project's: others read it too, whose binary lies elsewhere.
    fn is_shared(self) -> bool {
        matches!(self, Self::ClaudeCode | Self::VsCode)
    }

    fn format(self) -> Format {
        match self {
            Self::Codex => Format::Toml,
            Self::Goose => Format::Yaml,
            Self::ClaudeCode | Self::Cursor | Self::VsCode | Self::OpenCode | Self::Gemini | Self::Zed => {
                Format::Json
            }
        }
    }

    /// The keys its servers are listed under. A newer opencode lists them one level deeper.
    fn keys(self, present: &Value) -> &'static [&'static str] {
        match self {
            Self::ClaudeCode | Self::Cursor | Self::Gemini => &["mcpServers"],
            Self::Codex => &["mcp_servers"],
            Self::VsCode => &["servers"],
            Self::OpenCode if present["mcp"]["servers"].is_object() => &["mcp", "servers"],
            Self::OpenCode => &["mcp"],
            Self::Goose => &["extensions"],
            Self::Zed => &["context_servers"],
        }
    }

    fn entry(self, program: &str) -> Value {
        match self {
            Self::ClaudeCode | Self::VsCode => json!({"type": "stdio", "command": program, "args": ["mcp"]}),
            Self::Codex | Self::Cursor | Self::Gemini => json!({"command": program, "args": ["mcp"]}),
            Self::Zed => json!({"command": program, "args": ["mcp"], "env": {}}),
            Self::OpenCode => json!({"type": "local", "command": [program, "mcp"], "enabled": true}),
            Self::Goose => json!({
                "name": NAME, "type": "stdio", "cmd": program, "args": ["mcp"], "enabled": true, "timeout": 300,
                "description": "Signed directives, tools and knowledge of this project",
            }),
        }
    }
}

impl std::str::FromStr for Client {
    type Err = Error;

    fn from_str(word: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|client| client.as_str() == word).ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            let word = rye_item::text::one_line(word);
            Error::new(Code::InvalidArgument, format!("there is no client `{word}`"))
                .hint(format!("clients are: {known}"))
        })
    }
}

/// The configuration as it is to be, from the one there is; the same text if it says so already.
///
/// # Errors
/// When it is not understood, or has another entry of this name.
pub fn changed(client: Client, program: &Path, present: Option<&str>) -> Result<String> {
    let program = if client.is_shared() { NAME.to_owned() } else { program.display().to_string() };
    let text = present.unwrap_or_default();
    let document = edit::parse(client.format(), text).map_err(|reason| left(client, &reason))?;
    let keys = client.keys(&document);
    let entry = client.entry(&program);
    let servers = keys.iter().fold(&document, |value, key| &value[*key]);
    match &servers[NAME] {
        Value::Null => {}
        known if says(known, &entry) => return Ok(text.to_owned()),
        _ => return Err(left(client, "it already has an entry `rye` that says something else")),
    }
    let wanted = edit::with(&document, keys, NAME, &entry).ok_or_else(|| {
        left(client, &format!("`{}` in it is not a list of servers by name", keys.join(".")))
    })?;
    let after = edit::render(client.format(), text, &wanted, keys, NAME, &entry);
    // Whatever was done to the text: it must now say exactly what it said, and the entry.
    match edit::parse(client.format(), &after) {
        Ok(found) if found == wanted => Ok(after),
        Ok(_) | Err(_) => Err(left(client, "it is written in a way that cannot be added to safely")),
    }
}

/// What a file that does not exist yet would hold: the entry alone.
///
/// # Errors
/// Never for the clients there are; their own entries are understood.
pub fn alone(client: Client, program: &Path) -> Result<String> {
    changed(client, program, None)
}

/// Whether an entry says all that ours does; it may say more.
fn says(known: &Value, entry: &Value) -> bool {
    entry.as_object().is_some_and(|entry| entry.iter().all(|(key, value)| known.get(key) == Some(value)))
}

fn left(client: Client, reason: &str) -> Error {
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

    fn add(client: Client, present: &str) -> Result<String> {
        changed(client, Path::new(PROGRAM), Some(present))
    }

    #[test]
    fn each_client_gets_an_entry_of_its_own_kind_and_only_once() {
        for client in Client::ALL {
            let first = alone(client, Path::new(PROGRAM)).expect("an entry");
            assert!(first.contains("rye") && first.contains("mcp") && first.ends_with('\n'), "{first}");
            assert_eq!(add(client, &first).expect("again"), first, "{}", client.as_str());
            assert_eq!(client.as_str().parse::<Client>().expect("a client"), client);
            assert_eq!(first.contains(PROGRAM), !client.is_shared(), "{first}");
        }
        assert!("emacs".parse::<Client>().is_err());
    }

    #[test]
    fn everything_else_in_a_json_file_stays() {
        let present = "{\n    \"theme\": \"dark\",\n    \"mcpServers\": {\n        \"other\": {\n            \"command\": \"x\"\n        }\n    },\n    \"z\": [1, 2.50]\n}";
        let after = add(Client::Cursor, present).expect("changed");
        let value: Value = serde_json::from_str(&after).expect("JSON");
        assert_eq!(value["mcpServers"]["other"]["command"], "x");
        assert_eq!(value["mcpServers"]["rye"]["command"], PROGRAM);
        assert!(after.starts_with("{\n    \"theme\""), "{after}");
        assert!(
            after.find("theme") < after.find("mcpServers") && after.find("mcpServers") < after.find("\"z\"")
        );
    }

    #[test]
    fn comments_are_kept_or_the_file_is_left_alone() {
        let commented = "{\n  // mine\n  \"context_servers\": {},\n}\n";
        assert_eq!(add(Client::Zed, commented).expect_err("comments").code, Code::ClientConfig);
        let toml = "# my models\nmodel = \"o9\" # the best\n\n[mcp_servers.other]\ncommand = \"x\"\n";
        let after = add(Client::Codex, toml).expect("changed");
        assert!(after.starts_with(toml) && after.contains("[mcp_servers.rye]"), "{after}");
        let yaml = "# goose\nextensions:\n    # builtin\n    developer:\n        enabled: true\nGOOSE_MODEL: x # y\n";
        let after = add(Client::Goose, yaml).expect("changed");
        for line in yaml.lines() {
            assert!(after.lines().any(|other| other == line), "{line} is gone: {after}");
        }
        assert!(after.contains("    rye:\n"), "{after}");
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        for (client, present) in [
            (Client::Cursor, "{\"mcpServers\": []}"),
            (Client::Cursor, "{\"mcpServers\": {\"rye\": {\"command\": \"other\"}}}"),
            (Client::Cursor, "[]"),
            (Client::Cursor, "not json"),
            (Client::Codex, "mcp_servers = {other = {command = \"x\"}}\n"),
            (Client::Codex, "mcp_servers = 3\n"),
            (Client::Codex, "= broken"),
            (Client::Goose, "extensions: [a, b]\n"),
            (Client::Goose, "extensions: {developer: {enabled: true}}\n"),
            (Client::Goose, "- a\n"),
            (Client::Goose, "a: [\n"),
        ] {
            let refused = add(client, present).expect_err(present);
            assert_eq!(refused.code, Code::ClientConfig, "{present}");
            assert!(!refused.hints.is_empty());
        }
    }

    #[test]
    fn an_entry_that_says_more_is_kept() {
        let present = format!(
            "{{\"mcpServers\": {{\"rye\": {{\"command\": \"{PROGRAM}\", \"args\": [\"mcp\"], \"env\": {{\"A\": \"b\"}}}}}}}}"
        );
        assert_eq!(add(Client::Gemini, &present).expect("the same"), present);
    }

    #[test]
    fn a_newer_opencode_is_added_to_where_it_lists_servers() {
        let after = add(Client::OpenCode, "{\"mcp\": {\"servers\": {}}}").expect("changed");
        let value: Value = serde_json::from_str(&after).expect("JSON");
        assert_eq!(value["mcp"]["servers"]["rye"]["command"][1], "mcp");
    }

    #[test]
    fn a_difference_is_shown_line_by_line() {
        let shown = diff("a\nb\n", "a\nb\nc\n");
        assert!(shown.contains("+c") && !shown.contains("-b"), "{shown}");
    }
}
