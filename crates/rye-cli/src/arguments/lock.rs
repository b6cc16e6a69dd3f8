//! What people type to look at and change lockfiles.

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;

use super::WritableSpace;
use crate::completion;

/// `rye lock`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum LockCommand {
    /// List lockfiles and how they stand
    List {
        /// Those of bundles too
        #[arg(long)]
        all: bool,
    },
    /// Show what the lockfiles of a tool pin
    Show {
        /// The tool's id
        #[arg(add = ArgValueCompleter::new(completion::tools))]
        id: String,
    },
    /// Compare lockfiles with what would run now
    Verify {
        /// The tool's id [default: every lockfile of project and user scope]
        #[arg(add = ArgValueCompleter::new(completion::tools))]
        id: Option<String>,
    },
    /// Tell whether every tool of the project is pinned and matches; exit code 8 if not, for CI
    #[command(after_help = "rye lock check --scope project    what a fresh clone would find")]
    Check {
        /// Only lockfiles there make a tool pinned [default: project, user and bundles]
        #[arg(long)]
        scope: Option<WritableSpace>,
    },
    /// Pin a tool as it is now: accept a change, or make a lockfile without running the tool
    #[command(
        after_help = "rye lock update team/deploy\nrye lock update --all --scope project    pin every tool of the project for the team"
    )]
    Update {
        /// The tool's id
        #[arg(required_unless_present = "all", add = ArgValueCompleter::new(completion::tools))]
        id: Option<String>,
        /// Every tool of the project, and every tool that is pinned here
        #[arg(long, conflicts_with = "id")]
        all: bool,
        /// Only there [default: every lockfile it has, else the setting lockfiles.scope]
        #[arg(long)]
        scope: Option<WritableSpace>,
        /// Do not ask about new or changed programs of the project; they are shown all the same
        #[arg(short, long)]
        yes: bool,
    },
    /// Remove the lockfiles of a tool: its next run pins it as it is then
    Remove {
        /// The tool's id
        #[arg(add = ArgValueCompleter::new(completion::tools))]
        id: String,
        /// Only there [default: project and user scope]
        #[arg(long)]
        scope: Option<WritableSpace>,
    },
    /// Remove your lockfiles whose tool, version or project is gone, and stale ones
    Prune,
}
