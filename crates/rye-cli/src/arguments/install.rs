//! Arguments of `rye install`, `rye uninstall` and `rye bundle rollback`.

use clap::{Args, ValueHint};
use clap_complete::engine::ArgValueCompleter;

use super::WritableSpace;
use crate::completion;

// What happens to files that were changed locally.
#[derive(Clone, Copy, Debug, Args)]
pub struct ConflictArguments {
    /// Replace locally changed files; a backup is kept
    #[arg(long)]
    pub theirs: bool,
    /// Keep locally changed files (the default)
    #[arg(long, conflicts_with = "theirs")]
    pub ours: bool,
}

// `rye install`
#[derive(Debug, Args)]
#[command(
    after_help = "rye install ./team-tools.tar.zst\nrye install oci://ghcr.io/team/tools:1.0.0\nrye install ./team-tools --space user --trust 5423d3b7c06f7594 --yes"
)]
pub struct InstallArguments {
    /// A folder with .ai, an archive (.tar.zst, .zip), or oci://host/repository[:tag|@sha256:DIGEST]
    #[arg(value_name = "SRC", value_hint = ValueHint::AnyPath)]
    pub source: String,
    /// Install into this space [default: project]
    #[arg(long)]
    pub space: Option<WritableSpace>,
    /// Do not prompt
    #[arg(short, long)]
    pub yes: bool,
    /// Trust this key for the bundle; it must be the key that signed it
    #[arg(long, value_name = "FINGERPRINT")]
    pub trust: Option<String>,
    /// Overwrite files that another source installed; a backup is kept
    #[arg(long)]
    pub force: bool,
    /// What happens to changed files.
    #[command(flatten)]
    pub conflict: ConflictArguments,
    /// Allow an older version than the installed one
    #[arg(long)]
    pub allow_downgrade: bool,
    /// Show what would change without changing it
    #[arg(long)]
    pub dry_run: bool,
    /// Use HTTP without TLS for a registry on another machine
    #[arg(long)]
    pub plain_http: bool,
}

// `rye uninstall`
#[derive(Debug, Args)]
pub struct UninstallArguments {
    /// The bundle's id
    #[arg(add = ArgValueCompleter::new(completion::bundles))]
    pub id: String,
    /// Remove it from this space [default: where it is installed]
    #[arg(long)]
    pub space: Option<WritableSpace>,
    /// Accepted for scripts; uninstalling never prompts
    #[arg(short, long)]
    pub yes: bool,
    /// Also remove locally changed files; a backup is kept
    #[arg(long, alias = "theirs")]
    pub force: bool,
}

// `rye bundle rollback`
#[derive(Debug, Args)]
pub struct RollbackArguments {
    /// The bundle's id
    #[arg(add = ArgValueCompleter::new(completion::bundles))]
    pub id: String,
    /// Roll back in this space [default: where it is installed]
    #[arg(long)]
    pub space: Option<WritableSpace>,
    /// What happens to changed files.
    #[command(flatten)]
    pub conflict: ConflictArguments,
}
