//! `install`, `uninstall` and `bundle rollback`: what would change is worked out and shown first; only then, with the
//! user's word, is it done.

mod commit;
mod errors;
mod prepare;
mod project_files;
mod recovery;
mod target;
mod trust;
mod uninstall;

use std::path::PathBuf;

use lillux::Fingerprint;
use rye_bundle::capabilities::BundleCapabilities;
use rye_bundle::install::InstallPlan;
use rye_item::space::SpaceTier;
use serde::Serialize;

pub use commit::{InstallResponse, install};
pub use prepare::{PreparedInstall, prepare, prepare_rollback};
pub(crate) use prepare::{bundle_folder, stage_source};
pub use project_files::ProjectFile;
pub(crate) use project_files::{
    managed_bundles, project_installation, read_project_file, stored_archive, write_project_files,
};
pub(crate) use recovery::recover;
pub use rye_bundle::install::{ConflictPreference, FileAction, PlanRow};
pub use trust::InstallSigner;
pub(crate) use uninstall::uninstall_with;
pub use uninstall::{RemainingApproval, UninstallResponse, uninstall};

/// Where a bundle comes from.
#[derive(Clone, Debug)]
pub struct InstallSource {
    /// A folder that holds `.ai/`, or an archive.
    pub path: PathBuf,
    /// What the user called it.
    pub name: String,
    /// What it is known by where it was fetched from: `sha256:…`.
    pub digest: Option<String>,
}

/// How to install.
#[derive(Clone, Copy, Debug)]
pub struct InstallOptions {
    /// Into which space.
    pub space: SpaceTier,
    /// Whether files that were not installed may be overwritten; a backup is kept.
    pub force: bool,
    /// Whose version of a file that was changed here stays.
    pub preference: ConflictPreference,
    /// The signer the user named.
    pub trust: Option<Fingerprint>,
    /// Whether a version older than one seen before is welcome.
    pub allows_downgrade: bool,
}

/// How many files have which fate.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ActionCounts {
    /// New.
    pub added: usize,
    /// In place of what the last version brought.
    pub replaced: usize,
    /// There already.
    pub unchanged: usize,
    /// No longer part of the bundle.
    pub removed: usize,
    /// Changed here, and left as they are.
    pub kept: usize,
    /// Written or removed over something that was made or changed here; a backup is kept.
    pub overwritten: usize,
}

impl ActionCounts {
    fn from_plan(plan: &InstallPlan) -> Self {
        Self {
            added: plan.count(FileAction::Add),
            replaced: plan.count(FileAction::Replace),
            unchanged: plan.count(FileAction::Unchanged),
            removed: plan.count(FileAction::Remove),
            kept: plan.count(FileAction::Keep),
            overwritten: plan.count(FileAction::Overwrite) + plan.count(FileAction::Discard),
        }
    }
}

/// What an installation would change, for showing.
#[derive(Clone, Debug, Serialize)]
pub struct InstallPreview {
    /// The bundle.
    pub bundle_id: String,
    /// The version that would be installed.
    pub version: String,
    /// The version that is installed.
    pub previous_version: Option<String>,
    /// What it is for.
    pub description: String,
    /// Into which space.
    pub space: SpaceTier,
    /// Who signed it.
    pub signer: InstallSigner,
    /// How many items of which type it has.
    pub items: std::collections::BTreeMap<&'static str, usize>,
    /// How many files have which fate.
    pub counts: ActionCounts,
    /// Every file and its fate.
    pub files: Vec<PlanRow>,
    /// What it asks for.
    pub capabilities: BundleCapabilities,
    /// What it asks for that the installed version does not.
    pub capabilities_added: Vec<String>,
    /// What the installed version asks for that it does not.
    pub capabilities_removed: Vec<String>,
    /// Items of other spaces that its items would hide.
    pub hides: Vec<String>,
    /// Items of other spaces that hide its items.
    pub hidden_by: Vec<String>,
    /// What the user should know before agreeing.
    pub warnings: Vec<String>,
}
