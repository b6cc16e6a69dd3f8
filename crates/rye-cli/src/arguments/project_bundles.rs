//! Arguments of `rye add`, `rye remove`, `rye sync`, `rye outdated` and `rye bundle upgrade`.

use clap::{Args, ValueHint};
use clap_complete::engine::ArgValueCompleter;

use super::ConflictArguments;
use crate::completion;

// `rye add`
#[derive(Debug, Args)]
#[command(
    after_help = "rye add vendor/team-tools-1.0.0.tar.zst\nrye add oci://ghcr.io/team/tools --version ^1.2\nrye add https://example.org/tools-1.0.0.tar.zst --sha256 DIGEST\nrye add git+https://example.org/team/tools --rev v1.0.0\n\nWithout a terminal: --signer FINGERPRINT --yes. Commit .ai/bundles.toml and .ai/bundles.lock."
)]
pub struct AddArguments {
    /// A folder or archive in the project, oci://…, https://…, or git+https://…, git+ssh://…, git+file://…
    #[arg(value_name = "SOURCE", value_hint = ValueHint::AnyPath, allow_hyphen_values = true)]
    pub source: String,
    /// Versions to accept, such as ^1.2 [default: compatible with the newest]
    #[arg(long, value_name = "RANGE")]
    pub version: Option<String>,
    /// Trust this key for the bundle; it must be the key that signed it
    #[arg(long, value_name = "FINGERPRINT", alias = "trust")]
    pub signer: Option<String>,
    /// The digest of an archive behind https://
    #[arg(long, value_name = "DIGEST")]
    pub sha256: Option<String>,
    /// The tag, branch or commit of a git repository [default: the newest version tag]
    #[arg(long, value_name = "REV", allow_hyphen_values = true)]
    pub rev: Option<String>,
    /// The folder of a git repository that holds .ai
    #[arg(long, value_name = "DIR")]
    pub path: Option<String>,
    /// How it is installed.
    #[command(flatten)]
    pub install: SyncInstallArguments,
}

// How bundles of the manifest are installed.
#[derive(Clone, Copy, Debug, Args)]
pub struct SyncInstallArguments {
    /// Do not prompt
    #[arg(short, long)]
    pub yes: bool,
    /// Show what would change without changing it
    #[arg(long)]
    pub dry_run: bool,
    /// Overwrite files that another source installed; a backup is kept
    #[arg(long)]
    pub force: bool,
    /// What happens to changed files.
    #[command(flatten)]
    pub conflict: ConflictArguments,
    /// Allow an older version than the installed one
    #[arg(long)]
    pub allow_downgrade: bool,
}

// `rye remove`
#[derive(Debug, Args)]
pub struct RemoveArguments {
    /// The bundle's id
    #[arg(add = ArgValueCompleter::new(completion::project_bundles))]
    pub id: String,
    /// Accepted for scripts; removing never prompts
    #[arg(short, long)]
    pub yes: bool,
    /// Also remove locally changed files; a backup is kept
    #[arg(long)]
    pub force: bool,
}

// `rye sync`
#[derive(Debug, Args)]
#[command(
    after_help = "git clone … && cd … && rye join && rye sync\n\nWhat the lock names is installed without a prompt if you trust its signer; rye join shows the signers. What changed in .ai/bundles.toml is resolved again, and needs a yes."
)]
pub struct SyncArguments {
    /// Refuse if the lock is not what the manifest asks for; never write it (for CI)
    #[arg(long)]
    pub locked: bool,
    /// How it is installed.
    #[command(flatten)]
    pub install: SyncInstallArguments,
}

// `rye outdated` and `rye bundle outdated`
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 0, whether something is outdated or not; not 0 if a source is not reached."
)]
pub struct OutdatedArguments {
    /// Only this bundle
    #[arg(add = ArgValueCompleter::new(completion::project_bundles))]
    pub id: Option<String>,
}

// `rye bundle upgrade`
#[derive(Debug, Args)]
#[command(
    after_help = "rye bundle upgrade --dry-run     what would change\nrye bundle upgrade team-tools    one bundle, to the newest version in its range"
)]
pub struct UpgradeArguments {
    /// Only this bundle
    #[arg(add = ArgValueCompleter::new(completion::project_bundles))]
    pub id: Option<String>,
    /// How it is installed.
    #[command(flatten)]
    pub install: SyncInstallArguments,
}
