//! Installing what was prepared and agreed to.

use std::collections::BTreeMap;
use std::path::Path;

use lillux::{Digest, file};
use rye_bundle::install::transaction::InstallProgress;
use rye_bundle::install::{
    FileAction, FileChange, InstallError, InstallPlan, Transaction, generations, recover,
};
use rye_bundle::{BundleLockfile, BundlePath, object};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemType};
use rye_space::AI_FOLDER;
use rye_space::keys::TRUSTED_FOLDER;
use serde::Serialize;

use super::prepare::{PreparedInstall, plan};
use super::project_files::project_changes;
use super::target::{InstalledBundle, lock_path, manifest_path, signer_path};
use super::{ActionCounts, InstallSigner, trust};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::{self, installed_pins::InstalledFiles};

const MAX_DOCUMENT_BYTES: u64 = 64 << 10;

/// The answer of an installation.
#[derive(Clone, Debug, Serialize)]
pub struct InstallResponse {
    /// `installed`, `upgraded`, `downgraded`, `reinstalled`, `rolled back` or `unchanged`.
    pub status: &'static str,
    /// The bundle.
    pub bundle_id: String,
    /// The version that is installed now.
    pub version: String,
    /// The version that was.
    pub previous_version: Option<String>,
    /// Into which space.
    pub space: SpaceTier,
    /// Who signed it.
    pub signer: InstallSigner,
    /// How many files have which fate.
    pub counts: ActionCounts,
    /// Files that were changed here and stay as they are.
    pub kept: Vec<BundlePath>,
    /// The user's own lockfiles of tools that were replaced: they pin what is installed now.
    pub lockfiles: Vec<String>,
    /// Where backups of overwritten files are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backups: Option<String>,
    /// The lockfile.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub lockfile: std::path::PathBuf,
    #[serde(skip)]
    installed_files: InstalledFiles,
}

impl InstallResponse {
    /// Brings the user's own lockfiles of the bundle's tools up to date: agreeing to the plan was the consent, as signing
    /// is an author's. `engine` is opened after the installation. A lockfile that cannot be brought up to date stays as it
    /// is, and the next run says so.
    pub fn refresh_lockfiles(&mut self, engine: &Engine) {
        let refreshed =
            lockfiles::installed_pins::refresh_after_install(engine, self.space, &self.installed_files);
        self.lockfiles.extend(refreshed.iter().map(|path| path.display().to_string()));
    }
}

/// Installs a prepared bundle. That the user agreed, to the signer too where that is needed, is the caller's word.
///
/// # Errors
/// When something changed since it was prepared, or the system refuses. Then everything is unchanged.
pub fn install(
    engine: &Engine,
    prepared: &PreparedInstall,
    progress: InstallProgress<'_>,
) -> Result<InstallResponse> {
    let now = engine.now()?;
    engine.signing_key()?;
    let (target, id) = (&prepared.target, &prepared.manifest.id);
    let _lock = target.state.lock()?;
    recover(&target.dir, &target.state)?;
    let previous = target.installed_bundle(id)?;
    let current = plan(engine, target, id, &prepared.files, previous.as_ref(), &prepared.options)?;
    if current != prepared.plan {
        return Err(Error::new(Code::FileInTheWay, "files were changed since the plan was made")
            .hint("nothing was changed; run the command again"));
    }
    let (lock_file, manifest_file) = (lock_path(id)?, manifest_path(id)?);
    let response = |status: &'static str, backups: Option<String>| InstallResponse {
        status,
        bundle_id: prepared.preview.bundle_id.clone(),
        version: prepared.preview.version.clone(),
        previous_version: prepared.preview.previous_version.clone(),
        space: target.tier,
        signer: prepared.preview.signer.clone(),
        counts: prepared.preview.counts,
        kept: prepared.paths_with_action(&[FileAction::Keep]),
        lockfiles: Vec::new(),
        installed_files: prepared.installed_files(engine),
        backups,
        lockfile: target.ai.join(lock_file.as_str().trim_start_matches(".ai/")),
    };
    let (project_changes, project_contents) = project_changes(target, &prepared.project_files)?;
    let previous_pins = trust::pin_signer(engine, id, &prepared.candidate, prepared.is_managed)?;
    let is_same_bundle = previous.as_ref().is_some_and(|previous| {
        previous.manifest.is_some() && previous.lock.manifest_hash == prepared.candidate.manifest_hash
    });
    let is_same_record =
        previous.as_ref().is_some_and(|previous| previous.lock.managed == prepared.is_managed);
    if is_same_bundle && current.changes().is_empty() && project_changes.is_empty() && is_same_record {
        return Ok(InstallResponse {
            installed_files: InstalledFiles::default(),
            ..response("unchanged", None)
        });
    }

    let lock = BundleLockfile {
        bundle_id: id.clone(),
        version: prepared.manifest.version.clone(),
        manifest_hash: prepared.candidate.manifest_hash,
        installed_at: now.clone(),
        files: prepared.files.keys().cloned().collect(),
        found: found_files(&current, previous.as_ref()),
        source: Some(prepared.source.name.clone()),
        source_digest: prepared.source.digest.clone(),
        signer: Some(prepared.preview.signer.fingerprint),
        managed: prepared.is_managed,
    };
    let mut changes = current.changes();
    let mut records: BTreeMap<BundlePath, Vec<u8>> = project_contents;
    changes.extend(project_changes);
    // The lockfile comes last: what it lists is there.
    let mut metadata_files =
        vec![(manifest_file, prepared.manifest_bytes.clone()), (lock_file.clone(), lock.to_bytes())];
    if let Some(document) = prepared.signer_document()? {
        metadata_files.insert(0, (signer_path(id)?, document));
    }
    for (path, bytes) in metadata_files {
        let (old, new) = (target.file_digest(&path)?, Digest::of(&bytes));
        if old != Some(new) {
            changes.push(FileChange { path: path.clone(), old, new: Some(new), keeps_backup: false });
        }
        records.insert(path, bytes);
    }
    let folder = prepared.folder();
    let paths: Vec<BundlePath> = changes.iter().map(|change| change.path.clone()).collect();
    let content = |index: usize| -> std::result::Result<Vec<u8>, InstallError> {
        let path = &paths[index];
        match records.get(path) {
            Some(bytes) => Ok(bytes.clone()),
            None => file::read_beneath(&folder, path.as_path(), u64::MAX)
                .map(|(bytes, _)| bytes)
                .map_err(|error| std::io::Error::other(error.to_string()).into()),
        }
    };
    let has_backups = changes.iter().any(|change| change.keeps_backup);
    let backups = format!("{id}-{}", now.as_str().replace(':', ""));
    let transaction = Transaction {
        dir: &target.dir,
        state: &target.state,
        bundle: id,
        changes,
        backups: backups.clone(),
        history: prepared.history.clone(),
    };
    let store_generation = || {
        let hash = &prepared.candidate.manifest_hash;
        generations::store_generation(&target.state, id, hash, &folder, &prepared.all_files)
    };
    let done = transaction.run(&content, store_generation, progress);
    if let Err(failure) = done {
        if let Some(before) = previous_pins {
            // The failure is what is worth telling. A pin that stays says no more than what the user agreed to.
            let _ = trust::restore_pins(engine, id, before);
        }
        return Err(failure.into());
    }
    let status = match &previous {
        None => "installed",
        Some(_) if prepared.is_rollback => "rolled back",
        Some(_) if is_same_bundle && current.changes().is_empty() => "unchanged",
        Some(previous) if prepared.manifest.version < previous.lock.version => "downgraded",
        Some(previous) if prepared.manifest.version == previous.lock.version => "reinstalled",
        Some(_) => "upgraded",
    };
    let backups = has_backups.then(|| target.state.backups_folder(&backups).display().to_string());
    Ok(response(status, backups))
}

impl PreparedInstall {
    /// The document of the key that signed the bundle, if the bundle ships it: with it, a user who gets the project as
    /// it is now can approve the signer too.
    fn signer_document(&self) -> Result<Option<Vec<u8>>> {
        let name = format!("{AI_FOLDER}/{TRUSTED_FOLDER}/{}.toml", self.preview.signer.fingerprint);
        match file::read_beneath(&self.folder(), Path::new(&name), MAX_DOCUMENT_BYTES) {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(Error::read(&error)),
        }
    }

    /// What the installation changes that lockfiles may pin. A file that was changed here and stays is not the bundle's.
    fn installed_files(&self, engine: &Engine) -> InstalledFiles {
        let extractors = engine.workspace.spaces.extractors();
        let unchanged_paths = self.paths_with_action(&[FileAction::Keep]);
        let own = || self.files.iter().filter(|(path, _)| !unchanged_paths.contains(path));
        let tool = |path: &BundlePath| {
            let is_tool = object::item_type(path, extractors) == Some(ItemType::Tool);
            ItemId::new(object::object_name(path).1).ok().filter(|_| is_tool)
        };
        let removed = self.paths_with_action(&[FileAction::Remove, FileAction::Discard]);
        InstalledFiles {
            tools: own().filter_map(|(path, _)| tool(path)).collect(),
            digests: own().map(|(_, digest)| *digest).collect(),
            removed: removed.iter().map(ToString::to_string).collect(),
        }
    }

    /// The files with one of these fates.
    fn paths_with_action(&self, actions: &[FileAction]) -> Vec<BundlePath> {
        let rows = self.plan.rows.iter().filter(|row| actions.contains(&row.action));
        rows.map(|row| row.path.clone()).collect()
    }
}

/// The bundle's files that were there before its first installation, and so are not its own.
fn found_files(plan: &InstallPlan, previous: Option<&InstalledBundle>) -> Vec<BundlePath> {
    let is_brought = |path: &BundlePath| previous.is_some_and(|previous| previous.lock.files.contains(path));
    let was_found = |path: &BundlePath| previous.is_some_and(|previous| previous.lock.found.contains(path));
    let rows = plan.rows.iter().filter(|row| row.new.is_some());
    rows.filter(|row| was_found(&row.path) || (row.action == FileAction::Unchanged && !is_brought(&row.path)))
        .map(|row| row.path.clone())
        .collect()
}
