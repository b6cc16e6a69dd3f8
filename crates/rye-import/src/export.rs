//! Items as files of clients: what each client keeps where, and what an export would change.

mod allowed_keys;
mod files;
mod state;

use std::collections::BTreeMap;

use lillux_hash::Digest;
use rye_item::{ItemRef, ItemType};
use serde::Serialize;

pub use files::render_item;
pub use state::{ExportRecord, ExportState, ExportedFile, FileExport, compare_files};

/// A client that files are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExportClient {
    /// Claude Code: `.claude/`.
    ClaudeCode,
    /// Codex: `.codex/`, `.agents/skills`, `AGENTS.md`.
    Codex,
    /// Cursor: `.cursor/`.
    Cursor,
    /// Gemini CLI: `.gemini/`, `GEMINI.md`.
    Gemini,
    /// What many clients read: `.agents/skills`, `AGENTS.md`.
    Agents,
    /// An Agent Plugin in `agent-plugin/`.
    AgentPlugin,
}

impl ExportClient {
    /// Every client.
    pub const ALL: [Self; 6] =
        [Self::ClaudeCode, Self::Codex, Self::Cursor, Self::Gemini, Self::Agents, Self::AgentPlugin];

    /// Its word on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::Cursor => "cursor",
            Self::Gemini => "gemini",
            Self::Agents => "agents",
            Self::AgentPlugin => "agent-plugin",
        }
    }

    /// Whether an export for this client can have written a file of this path: a record that names any other is not ours.
    #[must_use]
    pub fn may_write(self, path: &str) -> bool {
        let folders: &[&str] = match self {
            Self::ClaudeCode => &[".claude/agents/", ".claude/commands/", ".claude/rules/"],
            Self::Codex => &[".codex/agents/"],
            Self::Cursor => &[".cursor/agents/", ".cursor/commands/", ".cursor/rules/"],
            Self::Gemini => &[".gemini/agents/", ".gemini/commands/"],
            Self::Agents => &[],
            Self::AgentPlugin => &["agent-plugin/"],
        };
        let is_below = |folder: &str| path.strip_prefix(folder).is_some_and(|rest| !rest.is_empty());
        crate::SourcePath::new(path).is_ok()
            && (self.instructions() == Some(path)
                || path
                    .strip_prefix(self.skills())
                    .is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
                || folders.iter().any(|folder| is_below(folder)))
    }

    /// The folder that holds its skills.
    fn skills(self) -> &'static str {
        match self {
            Self::ClaudeCode => ".claude/skills",
            Self::Codex | Self::Agents => ".agents/skills",
            Self::Cursor => ".cursor/skills",
            Self::Gemini => ".gemini/skills",
            Self::AgentPlugin => "agent-plugin/skills",
        }
    }

    /// The file it reads instructions from.
    fn instructions(self) -> Option<&'static str> {
        match self {
            Self::ClaudeCode => Some("CLAUDE.md"),
            Self::Codex | Self::Cursor | Self::Agents => Some("AGENTS.md"),
            Self::Gemini => Some("GEMINI.md"),
            Self::AgentPlugin => None,
        }
    }
}

/// An item to export: verified, with the files that belong to it.
#[derive(Clone, Debug)]
pub struct ExportItem {
    /// The item.
    pub item: ItemRef,
    /// Its file, as it was verified.
    pub text: String,
    /// Texts of the knowledge that its folder's pages became, by id.
    pub pages: BTreeMap<String, String>,
    /// Bytes of the files beside it, by their path below `.ai/`.
    pub assets: BTreeMap<String, Vec<u8>>,
}

impl ExportItem {
    /// Whether an item is exported without being named: it was imported, or says that it is to be exported.
    #[must_use]
    pub fn is_marked(item_type: ItemType, text: &str) -> bool {
        let fields = match item_type {
            ItemType::Knowledge => rye_item::parse::knowledge::parse(text).fields,
            ItemType::Directive => rye_item::parse::directive::parse(text).fields,
            ItemType::Tool | ItemType::Config => return false,
        };
        let is_true = |value: &serde_json::Value| value == true || value == "true";
        fields.contains_key(crate::provenance::PROVENANCE_KEY) || fields.get("export").is_some_and(is_true)
    }
}

/// A file to be written for a client, relative to the project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFile {
    /// Its path.
    pub path: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether its owner may run it.
    pub is_executable: bool,
    /// The item it was made from.
    pub item: String,
    /// The file of the project that the item was imported from, if it was.
    pub imported: Option<SourceFile>,
}

impl ExportFile {
    /// Whether its place is the one that it was imported from.
    #[must_use]
    pub fn is_at_source(&self) -> bool {
        self.imported.as_ref().is_some_and(|from| from.path == self.path)
    }

    /// Whether this is what the import of its item read.
    #[must_use]
    pub fn is_as_imported(&self, present: &Digest) -> bool {
        self.imported.as_ref().is_some_and(|from| from.sha256 == present.to_hex())
    }
}

/// A file that an import read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFile {
    /// Its path, as the import named it.
    pub path: String,
    /// The digest of its bytes.
    pub sha256: String,
    /// What to import for the item to follow the exported file; `None` if no import of it reaches the item.
    pub import: Option<String>,
}

/// The files of an item, or why it has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderedItem {
    /// Its files.
    Files(Vec<ExportFile>),
    /// It is part of another item, or reached over MCP: there is nothing to write and nothing to say.
    Nothing,
    /// The client has no place for it.
    NoPlace(String),
}
