//! The command line: commands and their arguments.
//!
//! Doc comments in here are help texts. Subcommands are built when they are used (`defer`); a deferred type has no doc
//! comment of its own, because clap would show it instead of the one where the command is named.

// `[TYPE]` in a help text is not a link.
#![allow(rustdoc::broken_intra_doc_links)]

mod install;
mod lock;
mod threads;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::engine::ArgValueCompleter;
use rye_item::space::SpaceTier;

use crate::completion;
use crate::global::GlobalArguments;

pub use install::{ConflictArguments, InstallArguments, RollbackArguments, UninstallArguments};
pub use lock::LockCommand;
pub use threads::{
    AnswerArguments, CostBy, ListArguments, PruneArguments, ResumeArguments, RunArguments, ThreadCommand,
    WaitArguments,
};

/// A signed, portable workspace for AI agents.
#[derive(Debug, Parser)]
#[command(
    name = "rye",
    version,
    about = "A signed, portable workspace for AI agents: directives, tools and knowledge you can trust",
    after_help = "New here? Run `rye init` in a project, then `rye search hello`.\nExit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 integrity or trust, 5 denied, 6 limit reached, 7 cancelled, 8 lockfile, 9 not valid. `rye explain CODE` explains any error.",
    disable_help_subcommand = true,
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
    /// Make a key, a place for items and three signed examples in this folder
    Init,
    /// Approve a project folder, or take that back
    Trust(TrustArguments),
    /// Your key and the keys you trust
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Find items by words
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
    /// Threads: list, follow, resume, cancel, verify
    #[command(subcommand)]
    Thread(ThreadCommand),
    /// Check items and sign them
    Sign(SignArguments),
    /// Tell which items are signed by whom, and which were changed
    Verify(VerifyArguments),
    /// Show where an item comes from, what it hides, who signed it
    Why(ItemArguments),
    /// Settings and where they come from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// What is pinned: the exact tools, runtimes and primitives that may run
    #[command(subcommand)]
    Lock(LockCommand),
    /// Bundles: list, make, verify, look into, run
    #[command(subcommand)]
    Bundle(BundleCommand),
    /// Install a bundle: a folder or an archive
    Install(InstallArguments),
    /// Remove exactly what a bundle brought
    Uninstall(UninstallArguments),
    /// Serve agents that speak MCP: over standard input and output, or over HTTP
    Mcp(McpArguments),
    /// Be the process that runs threads in the background
    #[command(hide = true)]
    Background {
        /// Where the user's key is
        #[arg(long)]
        keys: PathBuf,
    },
    /// Look for problems and say how to mend them
    Doctor,
    /// Explain an error code
    Explain {
        /// The code, such as RYE0402
        code: String,
    },
    /// Print a completion script for a shell
    #[command(
        after_help = "bash: source <(rye completions bash)\nzsh:  source <(rye completions zsh)\nfish: rye completions fish | source"
    )]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: String,
    },
}

// An item: TYPE ID, or type:id.
#[derive(Clone, Debug, Args)]
pub struct ItemArguments {
    /// directive, tool, knowledge or config; or type:id
    #[arg(value_name = "TYPE", add = ArgValueCompleter::new(completion::types))]
    pub first: String,
    /// The id, such as team/deploy
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::ids))]
    pub second: Option<String>,
}

// `rye execute`
#[derive(Debug, Args)]
#[command(
    after_help = "rye execute examples/hello name=Ada\nrye execute tool examples/hello --params '{\"name\": \"Ada\"}' --trace"
)]
pub struct ExecuteArguments {
    /// [TYPE] ID, then parameters as key=value; TYPE is tool unless you say directive or knowledge
    #[arg(value_name = "[TYPE] ID [KEY=VALUE]", required = true, add = ArgValueCompleter::new(completion::ids))]
    pub words: Vec<String>,
    /// Parameters as one JSON object; @FILE reads a file, - standard input
    #[arg(long, value_name = "JSON")]
    pub params: Option<String>,
    /// Check everything, run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Tell every step
    #[arg(long)]
    pub trace: bool,
    /// Refuse to run what has no lockfile
    #[arg(long, conflicts_with = "frozen")]
    pub locked: bool,
    /// Never write a lockfile
    #[arg(long)]
    pub frozen: bool,
}

// `rye mcp`
#[derive(Debug, Args)]
#[command(
    after_help = "rye mcp                          what a client starts\nrye mcp --http 7433              http://127.0.0.1:7433/mcp, with a token\nrye mcp install claude-code      tell a client of it"
)]
#[command(args_conflicts_with_subcommands = true)]
pub struct McpArguments {
    /// Instead of serving.
    #[command(subcommand)]
    pub command: Option<McpCommand>,
    /// Serve over HTTP on this address, such as 127.0.0.1:7433, or a port alone
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// A proxy with TLS stands in front: an address that others can reach is fine
    #[arg(long, requires = "http")]
    pub behind_tls: bool,
    /// A further name that clients know the server by
    #[arg(long, value_name = "NAME", requires = "http")]
    pub allow_host: Vec<String>,
}

// `rye mcp install`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum McpCommand {
    /// Tell a client of the server: changes its configuration, shows what changed, keeps a backup
    Install {
        /// claude-code, codex, cursor, vscode, opencode, gemini, goose or zed
        client: String,
        /// Only print what its configuration should hold
        #[arg(long)]
        print: bool,
    },
}

// `rye trust`
#[derive(Debug, Args)]
pub struct TrustArguments {
    /// The folder [default: this project]
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub folder: Option<PathBuf>,
    /// Take the approval back
    #[arg(long)]
    pub revoke: bool,
    /// Do not ask; new or changed programs of the project are shown all the same
    #[arg(short, long)]
    pub yes: bool,
}

/// `rye keys`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum KeysCommand {
    /// Make a signing key
    Generate {
        /// Whose key it is [default: $USER]
        #[arg(long)]
        owner: Option<String>,
    },
    /// List the keys you trust
    List,
    /// Show one key [default: your own]
    Show {
        /// Its fingerprint
        fingerprint: Option<String>,
    },
    /// Trust the key in a file: a public key in PEM, or an identity document
    Trust {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// user: everywhere; project: in this project alone [default: user, or project for a file in its .ai]
        #[arg(long)]
        space: Option<WritableSpace>,
        /// Whose key it is
        #[arg(long)]
        owner: Option<String>,
        /// Keys whose documents it has signed count in projects that hold those documents
        #[arg(long)]
        may_introduce: bool,
    },
    /// Revoke a key: nothing it signed verifies from now on
    Revoke {
        /// Its fingerprint
        #[arg(value_name = "FP")]
        fingerprint: String,
        /// Why
        #[arg(long, default_value = "revoked by its user")]
        reason: String,
    },
    /// Print an identity document to give to others [default: your own]
    Export {
        /// Its fingerprint
        fingerprint: Option<String>,
        /// Write it here instead
        #[arg(short, long, value_hint = ValueHint::FilePath)]
        output: Option<PathBuf>,
    },
    /// Take over a private key in PEM as your own
    Import {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Whose key it is [default: $USER]
        #[arg(long)]
        owner: Option<String>,
    },
}

// `rye search`
#[derive(Debug, Args)]
#[command(
    after_help = "Words side by side must all occur. \"phrases\", prefix*, AND, OR, NOT and ( ) are understood."
)]
pub struct SearchArguments {
    /// Words to look for; `*` finds everything
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
    /// How many results at most [default: the setting search.limit]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Every match, shadowed files too
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
    /// Copy it there; the copy is signed with your key
    #[arg(long)]
    pub to: Option<WritableSpace>,
    /// Show it even if nobody vouches for it (at a terminal only)
    #[arg(long, conflicts_with = "to")]
    pub unverified: bool,
}

// `rye fetch`
#[derive(Debug, Args)]
pub struct FetchArguments {
    /// directive, tool or knowledge; or type:id; or an id alone
    #[arg(value_name = "TYPE", add = ArgValueCompleter::new(completion::types))]
    pub first: Option<String>,
    /// The id
    #[arg(value_name = "ID", add = ArgValueCompleter::new(completion::ids))]
    pub second: Option<String>,
    /// Words to look for
    #[arg(long, conflicts_with = "second")]
    pub query: Option<String>,
    /// Only this type and namespace, such as tool.team.*
    #[arg(long)]
    pub scope: Option<String>,
    /// Only this space
    #[arg(long, alias = "source")]
    pub from: Option<SpaceName>,
    /// Copy it there; the copy is signed with your key
    #[arg(long, alias = "destination")]
    pub to: Option<WritableSpace>,
    /// How many results at most
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

// `rye sign`
#[derive(Debug, Args)]
#[command(
    after_help = "rye sign tool team/deploy      one item\nrye sign tool 'team/*'         all of a category\nrye sign .ai/tools/team/*.py   by path"
)]
pub struct SignArguments {
    /// TYPE and ID or glob; or type:id; or paths
    #[arg(required = true, value_name = "TYPE ID|GLOB or PATH", add = ArgValueCompleter::new(completion::types_or_paths))]
    pub what: Vec<String>,
    /// Sign in this space [default: project, else user]
    #[arg(long, alias = "source")]
    pub space: Option<WritableSpace>,
}

// `rye verify`
#[derive(Debug, Args)]
pub struct VerifyArguments {
    /// TYPE and ID; or type:id; or paths [default: everything in project and user space]
    #[arg(value_name = "TYPE ID or PATH", add = ArgValueCompleter::new(completion::types_or_paths))]
    pub what: Vec<String>,
    /// Verify everything below DIR's .ai as a bundle: its own keys vouch for its items
    #[arg(long, value_name = "DIR", conflicts_with = "what", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
    /// Add each item's metadata to the JSON
    #[arg(long)]
    pub metadata: bool,
}

/// `rye config`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum ConfigCommand {
    /// Show the settings after all layers
    Show {
        /// Only this config, such as agent/agent
        id: Option<String>,
        /// Say which space each setting comes from
        #[arg(long)]
        origin: bool,
    },
}

/// `rye bundle`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum BundleCommand {
    /// List bundles in the order they are looked at
    List,
    /// Make a bundle of the project's items
    #[command(
        after_help = "rye bundle create team-tools --version 1.0.0 --category team --entrypoint team/deploy"
    )]
    Create(CreateArguments),
    /// Tell whether a bundle is what its maker signed
    Verify {
        /// A folder that holds .ai, an archive, a bundle's id, or oci://… for one in a registry
        #[arg(value_name = "PATH|ID", value_hint = ValueHint::AnyPath)]
        bundle: String,
        /// Ask a registry that is not on this machine without TLS
        #[arg(long)]
        plain_http: bool,
    },
    /// Show what a bundle holds, who signed it, and what it asks for
    Inspect {
        /// A folder that holds .ai, a bundle's id, or oci://… for what its signed manifest says
        #[arg(value_name = "PATH|ID", value_hint = ValueHint::DirPath)]
        bundle: String,
        /// Ask a registry that is not on this machine without TLS
        #[arg(long)]
        plain_http: bool,
    },
    /// Execute a bundle's entrypoint
    Run(RunBundleArguments),
    /// Write a bundle's bill of materials (CycloneDX 1.6, JSON)
    Sbom {
        /// A folder that holds .ai, an archive, a bundle's id, or oci://… for one in a registry
        #[arg(value_name = "PATH|ID", value_hint = ValueHint::AnyPath)]
        bundle: String,
        /// Ask a registry that is not on this machine without TLS
        #[arg(long)]
        plain_http: bool,
        /// Write it here instead
        #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        out: Option<PathBuf>,
    },
    /// Put a bundle into an OCI registry
    #[command(after_help = "rye bundle push ./team-tools-1.0.0 oci://ghcr.io/team/tools:1.0.0")]
    Push {
        /// A folder that holds .ai, an archive, or the id of a configured bundle
        #[arg(value_name = "PATH|ID", value_hint = ValueHint::AnyPath)]
        bundle: String,
        /// Where to: oci://host[:port]/repository[:tag]
        #[arg(value_name = "REF")]
        reference: String,
        /// Ask a registry that is not on this machine without TLS
        #[arg(long)]
        plain_http: bool,
    },
    /// Get a bundle from an OCI registry and verify it; nothing is installed
    #[command(after_help = "rye bundle pull oci://ghcr.io/team/tools:1.0.0 --out team-tools")]
    Pull {
        /// Where from: oci://host[:port]/repository[:tag|@sha256:DIGEST]
        #[arg(value_name = "REF")]
        reference: String,
        /// Keep it here: an archive if it ends in .tar.zst or .zip, else a folder [default: ID-VERSION.tar.zst]
        #[arg(short, long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
        out: Option<PathBuf>,
        /// Ask a registry that is not on this machine without TLS
        #[arg(long)]
        plain_http: bool,
    },
    /// Approve the signer of a bundle, for that bundle alone
    Trust {
        /// The bundle's id
        id: String,
        /// Which of its keys, if it ships several
        #[arg(long, value_name = "FP")]
        signer: Option<String>,
        /// Withdraw the approval: the bundle's items no longer run
        #[arg(long)]
        revoke: bool,
    },
    /// Make a bundle that comes with rye, but is off at first, part of the system space
    Enable {
        /// The bundle's id
        id: String,
    },
    /// Return to the version that was installed before
    Rollback(RollbackArguments),
    /// Take that back
    Disable {
        /// The bundle's id
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
    /// Pack what lies below this beginning of an id; may be given several times
    #[arg(long = "category", value_name = "PREFIX", required = true)]
    pub categories: Vec<String>,
    /// Where to put it [default: ID-V in this folder]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub out: Option<PathBuf>,
    /// The item `rye bundle run` executes: ID, or type:ID
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(completion::ids))]
    pub entrypoint: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub description: String,
    /// Sign unsigned items with your key first
    #[arg(long)]
    pub sign: bool,
    /// Ship a lockfile of each tool: it counts where the bundle is part of the system space
    #[arg(long)]
    pub with_lockfiles: bool,
}

// `rye bundle run`
#[derive(Debug, Args)]
pub struct RunBundleArguments {
    /// The bundle's id
    pub id: String,
    /// Parameters as key=value
    #[arg(value_name = "KEY=VALUE")]
    pub words: Vec<String>,
    /// Parameters as one JSON object; @FILE reads a file, - standard input
    #[arg(long, value_name = "JSON")]
    pub params: Option<String>,
    /// Check everything, run nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Tell every step
    #[arg(long)]
    pub trace: bool,
    /// Refuse to run what has no lockfile
    #[arg(long, conflicts_with = "frozen")]
    pub locked: bool,
    /// Never write a lockfile
    #[arg(long)]
    pub frozen: bool,
}
