//! What people type to install, uninstall and roll back bundles.

use clap::{Args, ValueHint};

use super::WritableSpace;

// Whose version of a file that was changed here stays.
#[derive(Clone, Copy, Debug, Args)]
pub struct ConflictArguments {
    /// Replace files that were changed here; a backup is kept
    #[arg(long)]
    pub theirs: bool,
    /// Keep files that were changed here (the default)
    #[arg(long, conflicts_with = "theirs")]
    pub ours: bool,
}

// `rye install`
#[derive(Debug, Args)]
#[command(
    after_help = "rye install ./team-tools.tar.zst\nrye install oci://ghcr.io/team/tools:1.0.0\nrye install ./team-tools --space user --trust 5423d3b7c06f7594 --yes"
)]
pub struct InstallArguments {
    /// A folder that holds .ai, an archive (.tar.zst, .zip), or oci://host/repository[:tag|@sha256:DIGEST]
    #[arg(value_name = "SRC", value_hint = ValueHint::AnyPath)]
    pub source: String,
    /// Into which space [default: project]
    #[arg(long)]
    pub space: Option<WritableSpace>,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
    /// Let this key vouch for the bundle; it must be the one that signed it
    #[arg(long, value_name = "FINGERPRINT")]
    pub trust: Option<String>,
    /// Overwrite files this bundle did not bring; a backup is kept
    #[arg(long)]
    pub force: bool,
    /// Whose files stay.
    #[command(flatten)]
    pub conflict: ConflictArguments,
    /// Accept a version older than one you had
    #[arg(long)]
    pub allow_downgrade: bool,
    /// Show what would change, change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Ask a registry that is not on this machine without TLS
    #[arg(long)]
    pub plain_http: bool,
}

// `rye uninstall`
#[derive(Debug, Args)]
pub struct UninstallArguments {
    /// The bundle's id
    pub id: String,
    /// From which space [default: where it is installed]
    #[arg(long)]
    pub space: Option<WritableSpace>,
    /// Naming the bundle is consent enough; accepted for scripts
    #[arg(short, long)]
    pub yes: bool,
    /// Remove files that were changed here too; a backup is kept
    #[arg(long, alias = "theirs")]
    pub force: bool,
}

// `rye bundle rollback`
#[derive(Debug, Args)]
pub struct RollbackArguments {
    /// The bundle's id
    pub id: String,
    /// In which space [default: where it is installed]
    #[arg(long)]
    pub space: Option<WritableSpace>,
    /// Whose files stay.
    #[command(flatten)]
    pub conflict: ConflictArguments,
}
