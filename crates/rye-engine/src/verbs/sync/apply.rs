//! Making the changes that were prepared: one transaction for each bundle, which writes the lock with it. A process that is
//! stopped between two bundles leaves a lock that names what is installed; the next `sync` continues from there.

use lillux::{Digest, Fingerprint};
use rye_bundle::BundlePath;
use rye_bundle::install::transaction::InstallProgress;
use rye_bundle::project::{LockedBundle, ProjectLock, ProjectManifest};
use rye_item::space::SpaceTier;
use serde::Serialize;

use super::ProjectBundles;
use super::plan::PreparedSync;
use crate::engine::Engine;
use crate::error::Result;
use crate::verbs::install::{self, InstallResponse, ProjectFile, UninstallResponse};

/// A bundle that is as it should be.
#[derive(Clone, Debug, Serialize)]
pub struct UnchangedBundle {
    /// The bundle.
    pub bundle_id: String,
    /// Its version.
    pub version: String,
    /// Where it comes from.
    pub source: String,
    /// Who signed it.
    pub signer: Fingerprint,
    /// Files that were changed here and stay as they are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<BundlePath>,
}

impl UnchangedBundle {
    pub(super) fn new(locked: &LockedBundle, kept: Vec<BundlePath>) -> Self {
        Self {
            bundle_id: locked.id().to_string(),
            version: locked.version.to_string(),
            source: locked.requirement.source.to_string(),
            signer: locked.requirement.signer,
            kept,
        }
    }
}

/// What was changed.
#[derive(Clone, Debug, Serialize)]
pub struct SyncResponse {
    /// `changed` or `unchanged`.
    pub status: &'static str,
    /// Bundles that were installed or moved to another version.
    pub installed: Vec<InstallResponse>,
    /// Bundles that were removed.
    pub removed: Vec<UninstallResponse>,
    /// Bundles that are as they should be.
    pub unchanged: Vec<UnchangedBundle>,
    /// Whether the manifest was written.
    pub manifest_changed: bool,
    /// Whether the lock was written.
    pub lock_changed: bool,
}

impl SyncResponse {
    /// As [`InstallResponse::refresh_lockfiles`], of each bundle.
    pub fn refresh_lockfiles(&mut self, engine: &Engine) {
        self.installed.iter_mut().for_each(|done| done.refresh_lockfiles(engine));
    }
}

/// Makes the changes. That the user agreed, to new signers too, is the caller's word.
///
/// # Errors
/// When something changed since it was prepared, or the system refuses. The bundle at hand is unchanged then; those before
/// it are as they should be.
pub fn apply(engine: &Engine, prepared: PreparedSync, progress: InstallProgress<'_>) -> Result<SyncResponse> {
    let is_noop = prepared.is_noop();
    let PreparedSync { installs, removals, unchanged, mut before, manifest, lock, force_removal } = prepared;
    let (old_manifest, old_lock) = (before.manifest.clone(), before.lock.clone());
    let mut response = SyncResponse {
        status: if is_noop { "unchanged" } else { "changed" },
        installed: Vec::new(),
        removed: Vec::new(),
        unchanged,
        manifest_changed: manifest != old_manifest,
        lock_changed: lock != old_lock,
    };
    if is_noop {
        return Ok(response);
    }
    let ids = manifest.bundles().iter().chain(old_manifest.bundles()).map(|bundle| &bundle.id);
    let about = ids.chain(old_lock.bundles().iter().map(LockedBundle::id)).next().cloned();
    // The lock as it is on the disk: each step adds the bundle that it changes.
    let mut current = old_lock;
    for id in &removals {
        current.remove(id);
        let files = changed_files(&mut before, &manifest, &current)?;
        let options = (Some(SpaceTier::Project), force_removal);
        response.removed.push(install::uninstall_with(engine, id, options, &files, progress)?);
    }
    for mut bundle in installs {
        current.insert(bundle.locked);
        bundle.install.manage(changed_files(&mut before, &manifest, &current)?);
        response.installed.push(install::install(engine, &bundle.install, progress)?);
    }
    let files = changed_files(&mut before, &manifest, &lock)?;
    if let Some(id) = about.filter(|_| !files.is_empty()) {
        install::write_project_files(engine, &id, &files)?;
    }
    Ok(response)
}

/// The files that differ from what is on the disk, which they are from then on.
fn changed_files(
    disk: &mut ProjectBundles,
    manifest: &ProjectManifest,
    lock: &ProjectLock,
) -> Result<Vec<ProjectFile>> {
    let mut files = Vec::new();
    if *manifest != disk.manifest {
        let file = disk.manifest_file(manifest)?;
        disk.manifest_digest = Some(Digest::of(&file.new));
        disk.manifest = manifest.clone();
        files.push(file);
    }
    if *lock != disk.lock {
        let file = disk.lock_file(lock)?;
        disk.lock_digest = Some(Digest::of(&file.new));
        disk.lock = lock.clone();
        files.push(file);
    }
    Ok(files)
}
