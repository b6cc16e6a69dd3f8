//! Arguments of `rye import` and `rye export`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use rye_import::ExportClient;

use super::{ConflictArguments, WritableSpace};
use crate::completion;

// `rye import`
#[derive(Debug, Args)]
#[command(
    after_help = "rye import --all\nrye import .claude/skills/pdf --scripts\nrye import ./some-plugin --as bundle some-plugin --dry-run\n\nrye import git+https://example.com/team/kit --rev v1.2.0 --path skills\n\nHooks are listed and never imported. Of a repository one commit is fetched, and nothing of it runs."
)]
pub struct ImportArguments {
    /// Folders, files, archives, git+https://…, git+ssh://…, git+file://… or https://…: skills, agents, commands, rules,
    /// plugins, MCP configurations
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath, required_unless_present = "all")]
    pub paths: Vec<PathBuf>,
    /// Everything that clients keep in this project: .claude, .agents, .codex, .cursor, .github, AGENTS.md, .mcp.json, …
    #[arg(long, conflicts_with = "paths")]
    pub all: bool,
    /// The tag, branch or commit of a git repository [default: its default branch, at the commit it is at]
    #[arg(long, value_name = "REV", allow_hyphen_values = true, conflicts_with = "all")]
    pub rev: Option<String>,
    /// The folder or file of a git repository
    #[arg(long, value_name = "DIR", conflicts_with = "all")]
    pub path: Option<String>,
    /// The digest of an archive behind https://
    #[arg(long, value_name = "DIGEST", conflicts_with = "all")]
    pub sha256: Option<String>,
    /// Fetch a plugin or package that a marketplace or apm.yml names in another repository; `all` for each of them
    #[arg(long, value_name = "NAME")]
    pub fetch: Vec<String>,
    /// Where the items go
    #[arg(long, value_name = "SPACE", default_value = "project")]
    pub to: WritableSpace,
    /// Put the items below ID, and make a bundle of them
    #[arg(long = "as", num_args = 2, value_names = ["bundle", "ID"])]
    pub bundle: Vec<String>,
    /// Make tools of the .py and .sh scripts of skills
    #[arg(long)]
    pub scripts: bool,
    /// Import texts with hidden characters too
    #[arg(long)]
    pub allow_hidden: bool,
    /// What happens to items that were changed here and in the source.
    #[command(flatten)]
    pub conflict: ConflictArguments,
    /// Show the plan without changing anything
    #[arg(long)]
    pub dry_run: bool,
    /// Do not prompt
    #[arg(short, long)]
    pub yes: bool,
}

/// A client to export for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportTarget {
    /// .claude/: skills, agents, commands, rules; CLAUDE.md; .mcp.json
    #[value(alias = "claude")]
    ClaudeCode,
    /// .agents/skills, .codex/agents, AGENTS.md
    Codex,
    /// .cursor/: skills, agents, commands, rules; AGENTS.md
    Cursor,
    /// .gemini/: skills, agents, commands; GEMINI.md
    #[value(alias = "gemini-cli")]
    Gemini,
    /// .agents/skills, AGENTS.md
    Agents,
    /// An Agent Plugin in agent-plugin/
    AgentPlugin,
}

impl ExportTarget {
    /// The client.
    pub fn client(self) -> ExportClient {
        match self {
            Self::ClaudeCode => ExportClient::ClaudeCode,
            Self::Codex => ExportClient::Codex,
            Self::Cursor => ExportClient::Cursor,
            Self::Gemini => ExportClient::Gemini,
            Self::Agents => ExportClient::Agents,
            Self::AgentPlugin => ExportClient::AgentPlugin,
        }
    }
}

// `rye export`
#[derive(Debug, Args)]
#[command(
    after_help = "rye export claude-code\nrye export cursor skills/pdf --yes\nrye export --check\n\nWithout ITEM: what was imported, and what says `export: true`. A file is overwritten only if an export wrote it or its item was imported from it, and if it has not changed since."
)]
pub struct ExportArguments {
    /// The client; without one, --check compares every client exported for, and the files of the other
    /// clients that items were imported from
    #[arg(value_name = "CLIENT", required_unless_present = "check")]
    pub client: Option<ExportTarget>,
    /// Items to export, such as skills/pdf or directive:agents/reviewer
    #[arg(value_name = "ITEM", add = ArgValueCompleter::new(completion::ids))]
    pub items: Vec<String>,
    /// Say what is stale, and change nothing; the exit code is 1 if something is
    #[arg(long, conflicts_with_all = ["watch", "yes", "take_over", "dry_run"])]
    pub check: bool,
    /// Export again after each change, until interrupted
    #[arg(long)]
    pub watch: bool,
    /// Replace and remove files too that an export or import on another machine wrote or read, as the project says
    #[arg(long)]
    pub take_over: bool,
    /// Show the plan without changing anything
    #[arg(long, conflicts_with = "watch")]
    pub dry_run: bool,
    /// Do not prompt
    #[arg(short, long)]
    pub yes: bool,
}
