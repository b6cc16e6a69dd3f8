//! The command line: commands and their arguments.
//!
//! Doc comments in here are help texts. Subcommands are built when they are used (`defer`); a deferred type has no doc
//! comment of its own, because clap would show it instead of the one where the command is named.

// `[TYPE]` in a help text is not a link.
#![allow(rustdoc::broken_intra_doc_links)]

mod config;
mod doctor;
mod import;
mod init;
mod install;
mod installation;
mod join;
mod keys;
mod list;
mod lock;
mod mcp;
mod new;
mod project_bundles;
mod schedule;
mod store;
mod test;
mod threads;
mod ui;
mod worker;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use rye_item::space::SpaceTier;

use crate::completion;
use crate::global::GlobalArguments;

pub use config::ConfigCommand;
pub use doctor::DoctorArguments;
pub use import::{ExportArguments, ImportArguments};
pub use init::InitArguments;
pub use install::{ConflictArguments, InstallArguments, RollbackArguments, UninstallArguments};
pub use installation::InstallationCommand;
pub use join::JoinArguments;
pub use keys::KeysCommand;
pub use list::ListItemsArguments;
pub use lock::LockCommand;
pub use mcp::{McpArguments, McpCommand};
pub use new::{NewArguments, NewKind};
pub use project_bundles::{
    AddArguments, OutdatedArguments, RemoveArguments, SyncArguments, SyncInstallArguments, UpgradeArguments,
};
pub use schedule::{AddScheduleArguments, ScheduleCommand};
pub use store::{MigrateArguments, StoreCommand};
pub use test::TestArguments;
pub use threads::{
    AlwaysScope, AnswerArguments, ApproveArguments, CostBy, ForkArguments, ListArguments, PatchArguments,
    PruneArguments, ResumeArguments, RunArguments, ThreadCommand, WaitArguments,
};
pub use ui::{TopArguments, UiArguments};
pub use worker::WorkerArguments;

/// A signed, portable workspace for AI agents.
#[derive(Debug, Parser)]
#[command(
    name = "rye",
    version,
    about = "A signed, portable workspace for AI agents: directives, tools and knowledge you can trust",
    after_help = "New here? Run `rye init` in a project, then `rye search hello`.\nExit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 integrity or trust, 5 denied, 6 limit reached, 7 cancelled, 8 lockfile, 9 not valid. `rye explain CODE` explains any error.",
    arg_required_else_help = true
)]
pub struct Arguments {
    /// Options of every command.
    #[command(flatten)]
    pub global: GlobalArguments,
    /// What to do.
    #[command(subcommand)]
    pub command: CliCommand,
}

/// A space to look in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SpaceName {
    /// `<project>/.ai`
    Project,
    /// `~/.ai`
    User,
    /// Bundles
    System,
    /// Every space
    #[value(alias = "local")]
    All,
}

impl SpaceName {
    /// The tier, unless it is all of them.
    pub fn tier(self) -> Option<SpaceTier> {
        match self {
            Self::Project => Some(SpaceTier::Project),
            Self::User => Some(SpaceTier::User),
            Self::System => Some(SpaceTier::System),
            Self::All => None,
        }
    }
}

/// A space that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WritableSpace {
    /// `<project>/.ai`
    Project,
    /// `~/.ai`
    User,
}

impl WritableSpace {
    /// The tier.
    pub fn tier(self) -> SpaceTier {
        match self {
            Self::Project => SpaceTier::Project,
            Self::User => SpaceTier::User,
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum CliCommand {
    /// Set up this folder: your key, a place for items and three signed examples
    Init(InitArguments),
    /// Join a project that others made: see who signed what, and trust them in this project only
    Join(JoinArguments),
    /// Make a tool, directive, page of knowledge or bundle that runs at once
    New(NewArguments),
    /// List items with their space and signature
    List(ListItemsArguments),
    /// Run the tests of tools
    Test(TestArguments),
    /// Approve a project folder without trusting any key, or revoke the approval
    Trust(TrustArguments),
    /// Manage your key and the keys you trust
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Search items
    Search(SearchArguments),
    /// Read one item, or copy it into another space
    Load(LoadArguments),
    /// Load when given an id, search when given a query
    Fetch(FetchArguments),
    /// Run a tool, or get the prompt of a directive or the body of a knowledge entry
    #[command(alias = "exec")]
    Execute(ExecuteArguments),
    /// Run a directive: a model works through it in a thread, with limits, budget and permissions
    Run(RunArguments),
    /// Manage threads: list, follow, resume, cancel, verify
    #[command(subcommand)]
    Thread(ThreadCommand),
    /// Start directives by themselves, at times of a calendar or at intervals
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Check items and sign them
    Sign(SignArguments),
    /// Verify signatures: who signed each item, and what changed since
    Verify(VerifyArguments),
    /// Show where an item comes from, what it shadows and who signed it
    Why(ItemArguments),
    /// Show and change settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Manage lockfiles: the exact tools, runtimes and primitives that may run
    #[command(subcommand)]
    Lock(LockCommand),
    /// Manage bundles: list, create, verify, inspect, run
    #[command(subcommand)]
    Bundle(BundleCommand),
    /// Install a bundle from a folder, an archive or a registry
    Install(InstallArguments),
    /// Remove the files that a bundle installed
    Uninstall(UninstallArguments),
    /// Add a bundle to the project's manifest, lock it and install it
    Add(AddArguments),
    /// Remove a bundle from the project's manifest, and its files
    Remove(RemoveArguments),
    /// Install the bundles that the project's manifest asks for, exactly as its lock names them
    Sync(SyncArguments),
    /// Show which bundles of the project have newer versions
    Outdated(OutdatedArguments),
    /// Bring in skills, agents, commands, rules, plugins and MCP servers of other clients, signed
    Import(ImportArguments),
    /// Write signed items as the files of a client
    Export(ExportArguments),
    /// Open a page that shows threads, costs, questions and items, on this computer alone
    Ui(UiArguments),
    /// Watch threads in the terminal, and answer what they ask
    Top(TopArguments),
    /// Run the MCP server, over stdio or HTTP
    Mcp(McpArguments),
    /// Run threads that others submit to a store in PostgreSQL
    Worker(WorkerArguments),
    /// Move threads between stores
    #[command(subcommand)]
    Store(StoreCommand),
    /// Run the daemon that runs threads in the background
    #[command(hide = true)]
    Background {
        /// Where the user's key is
        #[arg(long)]
        keys: PathBuf,
    },
    /// Check a project without prompting: identities, signatures, bundles, lockfiles, tests (for CI and hooks)
    #[command(
        after_help = "The exit code is that of the worst check: 4 signatures and identities, 5 not allowed, 8 lockfiles, 9 not valid, 1 tests."
    )]
    Ci,
    /// Check your setup and suggest fixes
    Doctor(DoctorArguments),
    /// This installation of rye
    #[command(subcommand, name = "self")]
    Installation(InstallationCommand),
    /// Explain an error code
    Explain {
        /// The code, such as RYE0402
        #[arg(add = ArgValueCompleter::new(completion::error_codes))]
        code: String,
    },
    /// Print a completion script for a shell
    #[command(
        after_help = "bash: source <(rye completions bash)\nzsh:  source <(rye completions zsh)\nfish: rye completions fish | source"
    )]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        #[arg(add = ArgValueCompleter::new(completion::shells))]
        shell: String,
    },
}

// An item: ID, TYPE ID, or type:id.
#[derive(Clone, Debug, Args)]
pub struct ItemArguments {
    /// directive, tool, knowledge or config; or type:id; or an id alone, if only one type has it
    #[arg(value_name = "[TYPE] ID", add = ArgValueCompleter::new(completion::items))]
    pub first: String,
    /// The id, such as team/deploy, after a type
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::items))]
    pub second: Option<String>,
}

// `rye execute`
#[derive(Debug, Args)]
#[command(
    after_help = "rye execute examples/hello name=Ada\nrye execute tool examples/hello --params '{\"name\": \"Ada\"}' --trace"
)]
pub struct ExecuteArguments {
    /// An item, then its parameters as KEY=VALUE; TYPE is tool (the default), directive or knowledge
    #[arg(value_name = "[TYPE] ID [KEY=VALUE]", required = true, add = ArgValueCompleter::new(completion::executable_words))]
    pub words: Vec<String>,
    /// Parameters as a JSON object; @FILE reads a file, - reads standard input
    #[arg(long, value_name = "JSON")]
    pub params: Option<String>,
    /// Check everything without running it
    #[arg(long)]
    pub dry_run: bool,
    /// Trace every step
    #[arg(long)]
    pub trace: bool,
    /// Refuse to run without a lockfile
    #[arg(long, conflicts_with = "frozen")]
    pub locked: bool,
    /// Never write a lockfile
    #[arg(long)]
    pub frozen: bool,
}

// `rye trust`
#[derive(Debug, Args)]
pub struct TrustArguments {
    /// The project folder [default: the current project]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: Option<PathBuf>,
    /// Revoke the approval
    #[arg(long)]
    pub revoke: bool,
    /// Do not prompt; new or changed programs of the project are still shown
    #[arg(short, long)]
    pub yes: bool,
}

// `rye search`
#[derive(Debug, Args)]
#[command(
    after_help = "Ask in plain words: items with all of them come first. Or use \"phrases\", prefix*, AND, OR, NOT and parentheses."
)]
pub struct SearchArguments {
    /// Words to search for; `*` matches everything
    #[arg(required_unless_present = "all", num_args = 0..)]
    pub query: Vec<String>,
    /// Only this type
    #[arg(long = "type", value_name = "TYPE", add = ArgValueCompleter::new(completion::types))]
    pub item_type: Option<String>,
    /// Only this space
    #[arg(long)]
    pub space: Option<SpaceName>,
    /// Only this type and namespace, such as tool.team.*
    #[arg(long, conflicts_with = "item_type")]
    pub scope: Option<String>,
    /// Maximum number of results [default: the setting search.limit]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Show every match, including shadowed files
    #[arg(long)]
    pub all: bool,
}

// `rye load`
#[derive(Debug, Args)]
pub struct LoadArguments {
    /// The item.
    #[command(flatten)]
    pub item: ItemArguments,
    /// Only from this space
    #[arg(long)]
    pub from: Option<SpaceName>,
    /// Copy it to this space and sign the copy with your key
    #[arg(long)]
    pub to: Option<WritableSpace>,
    /// Show it even if it is unsigned or not trusted (terminal only)
    #[arg(long, conflicts_with = "to")]
    pub unverified: bool,
}

// `rye fetch`
#[derive(Debug, Args)]
pub struct FetchArguments {
    /// directive, tool or knowledge; or type:id; or an id alone
    #[arg(value_name = "TYPE", add = ArgValueCompleter::new(completion::items))]
    pub first: Option<String>,
    /// The id
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::items))]
    pub second: Option<String>,
    /// Words to search for
    #[arg(long, conflicts_with = "second")]
    pub query: Option<String>,
    /// Only this type and namespace, such as tool.team.*
    #[arg(long)]
    pub scope: Option<String>,
    /// Only this space
    #[arg(long, alias = "source")]
    pub from: Option<SpaceName>,
    /// Copy it to this space and sign the copy with your key
    #[arg(long, alias = "destination")]
    pub to: Option<WritableSpace>,
    /// Maximum number of results
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

// `rye sign`
#[derive(Debug, Args)]
#[command(
    after_help = "rye sign team/deploy           one item\nrye sign tool 'team/*'         all of a category\nrye sign .ai/tools/team/*.py   by path\nrye sign 'team/*' --watch      sign again after each change, until Ctrl-C"
)]
pub struct SignArguments {
    /// ID or glob, with or without its TYPE before it; or type:id; or paths
    #[arg(required = true, value_name = "[TYPE] ID|GLOB or PATH", add = ArgValueCompleter::new(completion::items))]
    pub what: Vec<String>,
    /// Sign in this space [default: project, else user]
    #[arg(long, alias = "source")]
    pub space: Option<WritableSpace>,
    /// Keep running, and sign again whatever of it changes
    #[arg(long)]
    pub watch: bool,
    /// Let a glob also sign what other keys have signed
    #[arg(long)]
    pub take_over: bool,
    /// Sign without a prompt what a glob or several paths name and you never signed, or what asks for more than before
    #[arg(short, long)]
    pub yes: bool,
}

// `rye verify`
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// ID, with or without its TYPE before it; or type:id; or paths [default: everything in project and user space]
    #[arg(value_name = "[TYPE] ID or PATH", add = ArgValueCompleter::new(completion::items))]
    pub what: Vec<String>,
    /// Verify DIR's .ai as a bundle, against the keys it ships
    #[arg(long, value_name = "DIR", conflicts_with = "what", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
    /// Add each item's metadata to the JSON
    #[arg(long)]
    pub metadata: bool,
}

/// `rye bundle`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum BundleCommand {
    /// List bundles in lookup order
    List,
    /// Create a bundle from the project's items
    #[command(
        after_help = "rye bundle create team-tools --version 1.0.0 --category team --entrypoint team/deploy"
    )]
    Create(CreateArguments),
    /// Verify that a bundle is what its maker signed
    Verify {
        /// A folder with .ai, an archive, a bundle id, or oci://… for a registry
        #[arg(value_name = "PATH|ID", value_hint = ValueHint::AnyPath, add = ArgValueCompleter::new(completion::bundles))]
        bundle: String,
        /// Use HTTP without TLS for a registry on another machine
        #[arg(long)]
        plain_http: bool,
    },
    /// Show a bundle's content, signer and requested permissions
    Inspect {
        /// A folder with .ai, a bundle id, or oci://… to read its signed manifest
        #[arg(value_name = "PATH|ID", value_hint = ValueHint::DirPath, add = ArgValueCompleter::new(completion::bundles))]
        bundle: String,
        /// Use HTTP without TLS for a registry on another machine
        #[arg(long)]
        plain_http: bool,
    },
    /// Run a bundle's entrypoint
    Run(RunBundleArguments),
    /// Write a bundle's SBOM (CycloneDX 1.6, JSON)
    Sbom {
        /// A folder with .ai, an archive, a bundle id, or oci://… for a registry
        #[arg(value_name = "PATH|ID", value_hint = ValueHint::AnyPath, add = ArgValueCompleter::new(completion::bundles))]
        bundle: String,
        /// Use HTTP without TLS for a registry on another machine
        #[arg(long)]
        plain_http: bool,
        /// Write to this file instead of standard output
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        out: Option<PathBuf>,
    },
    /// Push a bundle to an OCI registry
    #[command(after_help = "rye bundle push ./team-tools-1.0.0 oci://ghcr.io/team/tools:1.0.0")]
    Push {
        /// A folder with .ai, an archive, or the id of a configured bundle
        #[arg(value_name = "PATH|ID", value_hint = ValueHint::AnyPath, add = ArgValueCompleter::new(completion::bundles))]
        bundle: String,
        /// Destination: oci://host[:port]/repository[:tag]
        #[arg(value_name = "REF")]
        reference: String,
        /// Use HTTP without TLS for a registry on another machine
        #[arg(long)]
        plain_http: bool,
    },
    /// Pull a bundle from an OCI registry and verify it, without installing it
    #[command(after_help = "rye bundle pull oci://ghcr.io/team/tools:1.0.0 --out team-tools")]
    Pull {
        /// Source: oci://host[:port]/repository[:tag|@sha256:DIGEST]
        #[arg(value_name = "REF")]
        reference: String,
        /// Where to save it: an archive if it ends in .tar.zst or .zip, else a folder [default: ID-VERSION.tar.zst]
        #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
        out: Option<PathBuf>,
        /// Use HTTP without TLS for a registry on another machine
        #[arg(long)]
        plain_http: bool,
    },
    /// Trust the signer of a bundle, for that bundle only
    Trust {
        /// The bundle's id
        #[arg(add = ArgValueCompleter::new(completion::bundles))]
        id: String,
        /// The key to trust, if the bundle ships several
        #[arg(long, value_name = "FP")]
        signer: Option<String>,
        /// Revoke that trust: the bundle's items no longer run
        #[arg(long)]
        revoke: bool,
    },
    /// Turn on a built-in bundle
    Enable {
        /// The bundle's id
        #[arg(add = ArgValueCompleter::new(completion::bundles))]
        id: String,
    },
    /// Show which bundles of the project have newer versions
    Outdated(OutdatedArguments),
    /// Move the project's bundles to the newest versions in their ranges
    Upgrade(UpgradeArguments),
    /// Return to the previously installed version
    Rollback(RollbackArguments),
    /// Turn off a built-in bundle
    Disable {
        /// The bundle's id
        #[arg(add = ArgValueCompleter::new(completion::bundles))]
        id: String,
    },
}

// `rye bundle create`
#[derive(Debug, Args)]
pub struct CreateArguments {
    /// The bundle's id
    pub id: String,
    /// Its version, such as 1.0.0
    #[arg(long, value_name = "V")]
    pub version: String,
    /// Pack items whose ids start with this; can be repeated
    #[arg(long = "category", value_name = "PREFIX", required = true)]
    pub categories: Vec<String>,
    /// Where to write it [default: ID-V in the current folder]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub out: Option<PathBuf>,
    /// The item that `rye bundle run` runs: ID, or type:ID
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(completion::ids))]
    pub entrypoint: Option<String>,
    /// A description
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub description: String,
    /// Sign unsigned items with your key first
    #[arg(long)]
    pub sign: bool,
    /// Include a lockfile for each tool, used where the bundle is in system space
    #[arg(long)]
    pub with_lockfiles: bool,
}

// `rye bundle run`
#[derive(Debug, Args)]
pub struct RunBundleArguments {
    /// The bundle's id
    #[arg(add = ArgValueCompleter::new(completion::bundles))]
    pub id: String,
    /// Parameters as KEY=VALUE
    #[arg(value_name = "KEY=VALUE")]
    pub words: Vec<String>,
    /// Parameters as a JSON object; @FILE reads a file, - reads standard input
    #[arg(long, value_name = "JSON")]
    pub params: Option<String>,
    /// Check everything without running it
    #[arg(long)]
    pub dry_run: bool,
    /// Trace every step
    #[arg(long)]
    pub trace: bool,
    /// Refuse to run without a lockfile
    #[arg(long, conflicts_with = "frozen")]
    pub locked: bool,
    /// Never write a lockfile
    #[arg(long)]
    pub frozen: bool,
}
