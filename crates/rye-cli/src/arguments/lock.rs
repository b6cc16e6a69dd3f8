//! Arguments of `rye lock`.

use clap::Subcommand;
use clap_complete::engine::ArgValueCompleter;

use super::WritableSpace;
use crate::completion;

/// `rye lock`
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum LockCommand {
    /// List lockfiles and their status
    List {
        /// Include lockfiles of bundles
        #[arg(long)]
        all: bool,
    },
    /// Show what the lockfiles of a tool pin
    Show {
        /// The tool's id, with or without `tool` before it
        #[arg(value_name = "[tool] ID", required = true, num_args = 1..=2, add = ArgValueCompleter::new(completion::tools))]
        id: Vec<String>,
    },
    /// Compare lockfiles with what would run now
    Verify {
        /// The tool's id [default: every lockfile of project and user scope]
        #[arg(value_name = "[tool] ID", num_args = 1..=2, add = ArgValueCompleter::new(completion::tools))]
        id: Vec<String>,
    },
    /// Check that every tool of the project that can be run is pinned and matches (exit code 8 if not, for CI)
    #[command(after_help = "rye lock check --scope project    check as in a fresh clone")]
    Check {
        /// Only use lockfiles of this scope [default: project, user and bundles]
        #[arg(long)]
        scope: Option<WritableSpace>,
    },
    /// Pin a tool as it is now, without running it
    #[command(
        after_help = "rye lock update team/deploy\nrye lock update --all --scope project    pin every tool of the project for the team"
    )]
    Update {
        /// The tool's id, with or without `tool` before it
        #[arg(value_name = "[tool] ID", required_unless_present = "all", num_args = 1..=2, add = ArgValueCompleter::new(completion::tools))]
        id: Vec<String>,
        /// Update every tool of the project and every pinned tool
        #[arg(long, conflicts_with = "id")]
        all: bool,
        /// Only update this scope [default: every existing lockfile, else the setting lockfiles.scope]
        #[arg(long)]
        scope: Option<WritableSpace>,
        /// Do not prompt about new or changed programs of the project; they are still shown
        #[arg(short, long)]
        yes: bool,
    },
    /// Remove the lockfiles of a tool; its next run creates a new one
    Remove {
        /// The tool's id, with or without `tool` before it
        #[arg(value_name = "[tool] ID", required = true, num_args = 1..=2, add = ArgValueCompleter::new(completion::tools))]
        id: Vec<String>,
        /// Only remove from this scope [default: project and user]
        #[arg(long)]
        scope: Option<WritableSpace>,
    },
    /// Remove stale lockfiles and those whose tool, version or project is gone
    Prune,
}
