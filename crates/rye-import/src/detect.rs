//! Which files of a tree are skills, agents, commands, rules, servers, plugins: by name and place alone.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::tree::{SourceEntry, SourceListing, SourcePath, join};

/// What a source is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SourceFormat {
    /// A skill folder with `SKILL.md`.
    Skill,
    /// A text of a skill's folder.
    SkillFile,
    /// A script of a skill's folder.
    SkillScript,
    /// A Claude Code agent, or one of a client that reads the same format.
    Agent,
    /// A command: a prompt with arguments.
    Command,
    /// A Cursor rule.
    CursorRule,
    /// A Claude Code rule, or Copilot instructions for some paths.
    PathRule,
    /// AGENTS.md, CLAUDE.md, GEMINI.md, Copilot instructions, `.cursorrules`.
    Instructions,
    /// A file that lists MCP servers.
    McpServers,
    /// A Codex agent.
    CodexAgent,
    /// A Claude Code plugin's manifest.
    ClaudePlugin,
    /// An Agent Plugin's manifest.
    AgentPlugin,
    /// A marketplace of plugins.
    Marketplace,
    /// Hooks.
    Hooks,
    /// A manifest of apm.
    ApmManifest,
}

impl SourceFormat {
    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Skill => "skill",
            Self::SkillFile => "skill-file",
            Self::SkillScript => "skill-script",
            Self::Agent => "agent",
            Self::Command => "command",
            Self::CursorRule => "cursor-rule",
            Self::PathRule => "path-rule",
            Self::Instructions => "instructions",
            Self::McpServers => "mcp-servers",
            Self::CodexAgent => "codex-agent",
            Self::ClaudePlugin => "claude-plugin",
            Self::AgentPlugin => "agent-plugin",
            Self::Marketplace => "marketplace",
            Self::Hooks => "hooks",
            Self::ApmManifest => "apm-manifest",
        }
    }
}

/// One source: a file, or a skill's folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceUnit {
    /// What it is.
    pub format: SourceFormat,
    /// Its own file.
    pub path: SourcePath,
    /// The other files of a skill's folder.
    pub files: Vec<SourcePath>,
    /// The folder its name and category come from.
    pub root: String,
    /// The folder of the plugin it is a part of.
    pub plugin_root: Option<String>,
    /// That plugin's name: its folder's until the manifest was read.
    pub plugin: Option<String>,
}

/// Folders of a client whose `agents`, `commands` and `rules` count.
const CLIENT_FOLDERS: [&str; 5] = [".claude", ".cursor", ".gemini", ".opencode", ".github"];
/// Files that list MCP servers, with the folder they lie in.
const SERVER_FILES: [(&str, &str); 8] = [
    ("", ".mcp.json"),
    (".cursor", "mcp.json"),
    (".vscode", "mcp.json"),
    (".codex", "config.toml"),
    (".gemini", "settings.json"),
    (".claude", "mcp.json"),
    ("", "claude_desktop_config.json"),
    (".kiro/settings", "mcp.json"),
];
const INSTRUCTION_FILES: [&str; 6] =
    ["AGENTS.md", "CLAUDE.md", "GEMINI.md", ".cursorrules", ".windsurfrules", "copilot-instructions.md"];
/// Pages about a folder of agents or commands, which are none.
const FOLDER_PAGES: [&str; 3] = ["README.md", "CLAUDE.md", "AGENTS.md"];

/// Finds the units of a tree, in the order of their paths; manifests of plugins come before what they hold.
#[must_use]
pub fn detect(listing: &SourceListing) -> Vec<SourceUnit> {
    let plugins = plugin_roots(listing);
    let skill_roots: BTreeSet<&str> = listing
        .entries
        .iter()
        .filter(|(path, entry)| path.name() == "SKILL.md" && matches!(entry, SourceEntry::File { .. }))
        .map(|(path, _)| path.folder())
        .collect();
    let mut units = Vec::new();
    for (path, entry) in &listing.entries {
        if !matches!(entry, SourceEntry::File { .. }) {
            continue;
        }
        let plugin = plugins.iter().filter(|root| path.below(root).is_some()).max_by_key(|root| root.len());
        let is_in_skill = skill_roots.iter().any(|root| path.below(root).is_some() && path.folder() != *root)
            || (skill_roots.contains(path.folder()) && path.name() != "SKILL.md");
        // The folder of a skill at the root of a plugin or a project is not all the skill's.
        let is_in_skill = is_in_skill
            && !plugin.is_some_and(|plugin| skill_roots.contains(plugin.as_str()))
            && !(skill_roots.contains("") && path.as_str().starts_with('.'));
        let Some(format) = format_of(listing, path, plugin.map(String::as_str), is_in_skill) else {
            continue;
        };
        let root = match format {
            SourceFormat::Skill => path.folder().to_owned(),
            _ => plugin.cloned().unwrap_or_default(),
        };
        units.push(SourceUnit {
            format,
            path: path.clone(),
            files: Vec::new(),
            root,
            plugin_root: plugin.cloned(),
            plugin: plugin.map(|root| last_part(&listing.full_path(root))),
        });
    }
    let own: BTreeSet<SourcePath> = units.iter().map(|unit| unit.path.clone()).collect();
    for unit in &mut units {
        match unit.format {
            SourceFormat::Skill => unit.files = skill_files(listing, &unit.root, &skill_roots, &own),
            SourceFormat::ApmManifest => {
                let lock = SourcePath::new(&join(unit.path.folder(), "apm.lock.yaml")).ok();
                unit.files.extend(lock.filter(|lock| listing.entries.contains_key(lock)));
            }
            _ => {}
        }
    }
    let is_manifest = |unit: &SourceUnit| {
        matches!(
            unit.format,
            SourceFormat::ClaudePlugin | SourceFormat::AgentPlugin | SourceFormat::Marketplace
        )
    };
    units.sort_by(|left, right| (!is_manifest(left), &left.path).cmp(&(!is_manifest(right), &right.path)));
    units
}

fn last_part(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// The folders that hold a plugin.
fn plugin_roots(listing: &SourceListing) -> BTreeSet<String> {
    let mut roots = BTreeSet::new();
    for path in listing.entries.keys().filter(|path| path.name() == "plugin.json") {
        let folder = path.folder();
        let parent = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
        let manifest_folder = last_part(folder);
        if [".claude-plugin", ".cursor-plugin", ".codex-plugin", ".plugin"]
            .contains(&manifest_folder.as_str())
        {
            roots.insert(parent.to_owned());
        } else if folder.ends_with(".github/plugin") {
            roots.insert(folder.trim_end_matches(".github/plugin").trim_end_matches('/').to_owned());
        } else if is_agent_plugin(listing, folder) {
            roots.insert(folder.to_owned());
        }
    }
    roots
}

fn is_agent_plugin(listing: &SourceListing, folder: &str) -> bool {
    let holds = |name: &str| listing.below(&join(folder, name)).next().is_some();
    ["skills", "agents", "commands"].into_iter().any(holds) || listing.has_file(&join(folder, "mcp.json"))
}

fn format_of(
    listing: &SourceListing,
    path: &SourcePath,
    plugin: Option<&str>,
    is_in_skill: bool,
) -> Option<SourceFormat> {
    let name = path.name();
    if name == "SKILL.md" {
        return Some(SourceFormat::Skill);
    }
    if is_in_skill {
        return None;
    }
    let full = listing.full_path(path.as_str());
    let folder = full.rsplit_once('/').map_or("", |(folder, _)| folder);
    let parts: Vec<&str> = folder.split('/').collect();
    let is_markdown = name.ends_with(".md") && !FOLDER_PAGES.contains(&name);
    // `.claude/agents/…`, at any depth below it; `agents/…` of a plugin.
    let is_below = |kind: &str| {
        let of_client = parts.windows(2).any(|pair| CLIENT_FOLDERS.contains(&pair[0]) && pair[1] == kind);
        let of_plugin = plugin
            .and_then(|root| path.below(root))
            .is_some_and(|rest| rest.starts_with(&format!("{kind}/")));
        of_client || of_plugin
    };
    let ends_in = |place: &str| place.is_empty() || folder == place || folder.ends_with(&format!("/{place}"));
    match name {
        "marketplace.json"
            if ends_in(".claude-plugin") || ends_in(".github/plugin") || ends_in(".agents/plugins") =>
        {
            return Some(SourceFormat::Marketplace);
        }
        "plugin.json" if ends_in(".claude-plugin") => return Some(SourceFormat::ClaudePlugin),
        "plugin.json" if plugin == Some(path.folder()) => return Some(SourceFormat::AgentPlugin),
        "mcp.json" if plugin == Some(path.folder()) => return Some(SourceFormat::McpServers),
        "hooks.json" if plugin.is_some() || ends_in(".cursor") || ends_in(".github/hooks") => {
            return Some(SourceFormat::Hooks);
        }
        "settings.json" | "settings.local.json" if ends_in(".claude") => return Some(SourceFormat::Hooks),
        "apm.yml" | "apm.yaml" => return Some(SourceFormat::ApmManifest),
        _ => {}
    }
    if SERVER_FILES.iter().any(|(place, file)| name == *file && ends_in(place)) {
        return Some(SourceFormat::McpServers);
    }
    if name.ends_with(".mdc") {
        return Some(SourceFormat::CursorRule);
    }
    if name.ends_with(".toml") && parts.windows(2).any(|pair| pair == [".codex", "agents"]) {
        return Some(SourceFormat::CodexAgent);
    }
    if name.ends_with(".agent.md") || (is_markdown && is_below("agents")) {
        return Some(SourceFormat::Agent);
    }
    if name.ends_with(".prompt.md") || (is_markdown && (is_below("commands") || is_below("prompts"))) {
        return Some(SourceFormat::Command);
    }
    if name.ends_with(".instructions.md")
        || (is_markdown && parts.windows(2).any(|pair| pair == [".claude", "rules"]))
    {
        return Some(SourceFormat::PathRule);
    }
    INSTRUCTION_FILES.contains(&name).then_some(SourceFormat::Instructions)
}

/// The files of a skill's folder that belong to no other unit.
fn skill_files(
    listing: &SourceListing,
    root: &str,
    skill_roots: &BTreeSet<&str>,
    own: &BTreeSet<SourcePath>,
) -> Vec<SourcePath> {
    let inner: Vec<&str> = skill_roots
        .iter()
        .filter(|other| {
            **other != root && SourcePath::new(other).is_ok_and(|other| other.below(root).is_some())
        })
        .copied()
        .collect();
    listing
        .below(root)
        .map(|(path, _)| path)
        .filter(|path| !own.contains(path) && !inner.iter().any(|other| path.below(other).is_some()))
        .cloned()
        .collect()
}
