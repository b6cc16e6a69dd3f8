//! `uninstall`: removes exactly what an installation brought.

use std::path::PathBuf;

use lillux::Fingerprint;
use rye_bundle::BundlePath;
use rye_bundle::install::transaction::InstallProgress;
use rye_bundle::install::{
    ConflictPreference, FileAction, FileChange, InstallError, InstallPlan, Transaction, recover,
};
use rye_bundle::object;
use rye_item::space::SpaceTier;
use rye_item::{BundleId, ItemId, ItemType};
use serde::Serialize;

use super::project_files::{ProjectFile, project_changes};
use super::target::{InstallTarget, lock_path, manifest_path, signer_path};
use crate::chain_cache;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles;

/// The answer of an uninstallation.
#[derive(Clone, Debug, Serialize)]
pub struct UninstallResponse {
    /// `uninstalled`.
    pub status: &'static str,
    /// The bundle.
    pub bundle_id: String,
    /// The version that was installed.
    pub version: String,
    /// From which space.
    pub space: SpaceTier,
    /// How many files were removed.
    pub files_removed: usize,
    /// Files that were changed here and stay.
    pub kept: Vec<BundlePath>,
    /// Files that were there before the bundle and stay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub found: Vec<BundlePath>,
    /// The user's own lockfiles of its tools, which were removed with them.
    pub lockfiles: Vec<String>,
    /// The project's lockfiles of its tools, which stay: they are the team's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lockfiles_left: Vec<String>,
    /// Where backups of removed files that were changed here are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backups: Option<String>,
    /// The keys that stay approved for the bundle: another version that one of them signed installs without a question.
    pub approved_signers: Vec<RemainingApproval>,
}

/// A key that is approved for a bundle.
#[derive(Clone, Debug, Serialize)]
pub struct RemainingApproval {
    /// The key.
    pub fingerprint: Fingerprint,
    /// Whether the user trusts it everywhere as well.
    pub trusted: bool,
    /// The command that withdraws the approval.
    pub revoke: String,
}

/// Removes the files of a bundle that are as it brought them; with `force` also those that were changed here, of which
/// a backup is kept. Naming the bundle is the consent.
///
/// # Errors
/// When it is not installed, its lockfile is damaged, or the system refuses. Then everything is unchanged.
pub fn uninstall(
    engine: &Engine,
    id: &BundleId,
    space: Option<SpaceTier>,
    force: bool,
    progress: InstallProgress<'_>,
) -> Result<UninstallResponse> {
    uninstall_with(engine, id, (space, force), &[], progress)
}

/// As [`uninstall`], and changes files of the project in the same transaction.
///
/// # Errors
/// As [`uninstall`], and when one of the files changed meanwhile.
pub(crate) fn uninstall_with(
    engine: &Engine,
    id: &BundleId,
    (space, force): (Option<SpaceTier>, bool),
    project_files: &[ProjectFile],
    progress: InstallProgress<'_>,
) -> Result<UninstallResponse> {
    let target = find_target(engine, id, space)?;
    let now = engine.now()?;
    let _lock = target.state.lock()?;
    recover(&target.dir, &target.state)?;
    let Some(previous) = target.installed_bundle(id)? else {
        return Err(not_installed_error(id, Some(target.tier)));
    };
    let extractors = engine.workspace.spaces.extractors();
    let known = (&**extractors, &chain_cache::executor_aliases(engine));
    let inputs = target.plan_inputs(id, std::collections::BTreeMap::new(), Some(&previous), known)?;
    let preference = if force { ConflictPreference::TakeBundle } else { ConflictPreference::KeepLocal };
    let plan = InstallPlan::new(&inputs, preference, force)?;
    let mut changes = plan.changes();
    let files_removed = changes.len();
    let (project_changes, contents) = project_changes(&target, project_files)?;
    changes.extend(project_changes);
    // The lockfile goes last: until then it says what has to go.
    for path in [signer_path(id)?, manifest_path(id)?, lock_path(id)?] {
        if let Some(old) = target.file_digest(&path)? {
            changes.push(FileChange { path, old: Some(old), new: None, keeps_backup: false });
        }
    }
    let has_backups = changes.iter().any(|change| change.keeps_backup);
    let backups = format!("{id}-{}", now.as_str().replace(':', ""));
    let paths: Vec<BundlePath> = changes.iter().map(|change| change.path.clone()).collect();
    let transaction = Transaction {
        dir: &target.dir,
        state: &target.state,
        bundle: id,
        changes,
        backups: backups.clone(),
        history: Vec::new(),
    };
    let content = |index: usize| -> std::result::Result<Vec<u8>, InstallError> {
        Ok(contents.get(&paths[index]).cloned().unwrap_or_default())
    };
    transaction.run(&content, || Ok(()), progress)?;
    let staying = plan.rows.iter().filter(|row| row.action == FileAction::Keep).map(|row| row.path.clone());
    let (found, kept): (Vec<_>, Vec<_>) = staying.partition(|path| previous.lock.found.contains(path));
    let is_gone = |path: &&BundlePath| !kept.contains(path) && !found.contains(path);
    let tools = previous.lock.files.iter().filter(is_gone).filter_map(|path| {
        let is_tool = object::item_type(path, extractors) == Some(ItemType::Tool);
        ItemId::new(object::object_name(path).1).ok().filter(|_| is_tool)
    });
    // What is pinned of a tool that is gone would only be in the way of the next one of its name.
    let unpinned = lockfiles::installed_pins::remove_after_uninstall(engine, target.tier, &tools.collect())?;
    let display_paths = |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect();
    Ok(UninstallResponse {
        status: "uninstalled",
        bundle_id: id.to_string(),
        version: previous.lock.version.to_string(),
        space: target.tier,
        files_removed,
        lockfiles: display_paths(&unpinned.removed),
        lockfiles_left: display_paths(&unpinned.remaining),
        kept,
        found,
        backups: has_backups.then(|| target.state.backups_folder(&backups).display().to_string()),
        approved_signers: approved_signers(engine, id),
    })
}

/// The keys that are approved for a bundle, whether it is installed or not.
fn approved_signers(engine: &Engine, id: &BundleId) -> Vec<RemainingApproval> {
    let workspace = &engine.workspace;
    let mut signers: Vec<RemainingApproval> = workspace
        .approvals
        .pins_of(id)
        .filter(|pin| workspace.own_key.as_ref() != Some(&pin.key))
        .map(|pin| {
            let fingerprint = pin.key.fingerprint();
            let revoke = format!("rye bundle trust {id} --revoke --signer {fingerprint}");
            RemainingApproval { fingerprint, trusted: workspace.keys.is_trusted_everywhere(&pin.key), revoke }
        })
        .collect();
    if let [only] = signers.as_mut_slice() {
        only.revoke = format!("rye bundle trust {id} --revoke");
    }
    signers
}

/// The space a bundle is installed in: the one that is named, or the only one.
pub(super) fn find_target(engine: &Engine, id: &BundleId, space: Option<SpaceTier>) -> Result<InstallTarget> {
    if let Some(space) = space {
        return InstallTarget::open(engine, space);
    }
    let mut found = Vec::new();
    for tier in [SpaceTier::Project, SpaceTier::User] {
        // Outside any project there is only user space.
        let Ok(target) = InstallTarget::open(engine, tier) else { continue };
        if target.installed_bundle(id).map_or(true, |previous| previous.is_some()) {
            found.push(target);
        }
    }
    match found.len() {
        0 => Err(not_installed_error(id, None)),
        1 => Ok(found.swap_remove(0)),
        _ => Err(Error::new(Code::Ambiguous, format!("`{id}` is installed in project and in user space"))
            .hint("say which: --space project or --space user")),
    }
}

/// The refusal of a bundle that is not there.
pub(super) fn not_installed_error(id: &BundleId, space: Option<SpaceTier>) -> Error {
    let location = space.map(|space| format!(" in {space} space")).unwrap_or_default();
    Error::new(Code::NoBundle, format!("the bundle `{id}` is not installed{location}"))
        .hint("rye bundle list shows what is installed")
}
