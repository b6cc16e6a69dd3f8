//! Installing what was prepared and agreed to.

use std::collections::BTreeMap;
use std::path::Path;

use lillux::{Digest, file};
use rye_bundle::install::transaction::Progress;
use rye_bundle::install::{Action, Change, InstallError, Transaction, generations, recover};
use rye_bundle::{BundleLock, FilePath, object};
use rye_item::space::Tier;
use rye_item::{ItemId, ItemType};
use rye_space::AI_FOLDER;
use rye_space::keys::TRUSTED_FOLDER;
use serde::Serialize;

use super::prepare::{Prepared, plan};
use super::target::{lock_path, manifest_path, signer_path};
use super::{Counts, Signer, trust};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::{self, installed::Brought};

const LARGEST_DOCUMENT: u64 = 64 << 10;

/// The answer of an installation.
#[derive(Clone, Debug, Serialize)]
pub struct Installed {
    /// `installed`, `upgraded`, `downgraded`, `reinstalled`, `rolled back` or `unchanged`.
    pub status: &'static str,
    /// The bundle.
    pub bundle_id: String,
    /// The version that is installed now.
    pub version: String,
    /// The version that was.
    pub previous_version: Option<String>,
    /// Into which space.
    pub space: Tier,
    /// Who signed it.
    pub signer: Signer,
    /// How many files have which fate.
    pub counts: Counts,
    /// Files that were changed here and stay as they are.
    pub kept: Vec<FilePath>,
    /// The user's own lockfiles of tools that were replaced: they pin what is installed now.
    pub lockfiles: Vec<String>,
    /// Where backups of overwritten files are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backups: Option<String>,
    /// The lockfile.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub lockfile: std::path::PathBuf,
    #[serde(skip)]
    brought: Brought,
}

impl Installed {
    /// Brings the user's own lockfiles of the bundle's tools up to date: agreeing to the plan was the consent, as signing
    /// is an author's. `engine` is opened after the installation. A lockfile that cannot be brought up to date stays as it
    /// is, and the next run says so.
    pub fn refresh_lockfiles(&mut self, engine: &Engine) {
        let refreshed = lockfiles::installed::refresh_after_install(engine, self.space, &self.brought);
        self.lockfiles.extend(refreshed.iter().map(|path| path.display().to_string()));
    }
}

/// Installs a prepared bundle. That the user agreed, to the signer too where that is needed, is the caller's word.
///
/// # Errors
/// When something changed since it was prepared, or the system refuses. Then everything is as it was.
pub fn install(engine: &Engine, prepared: &Prepared, progress: Progress<'_>) -> Result<Installed> {
    let now = engine.now()?;
    engine.signing_key()?;
    let (target, id) = (&prepared.target, &prepared.manifest.id);
    let _lock = target.state.lock()?;
    recover(&target.site, &target.state)?;
    let previous = target.previous(id)?;
    let current = plan(engine, target, id, &prepared.files, previous.as_ref(), &prepared.options)?;
    if current != prepared.plan {
        return Err(Error::new(Code::FileInTheWay, "files were changed since the plan was made")
            .hint("nothing was changed; run the command again"));
    }
    let (lock_file, manifest_file) = (lock_path(id)?, manifest_path(id)?);
    let answer = |status: &'static str, backups: Option<String>| Installed {
        status,
        bundle_id: prepared.shown.bundle_id.clone(),
        version: prepared.shown.version.clone(),
        previous_version: prepared.shown.previous_version.clone(),
        space: target.tier,
        signer: prepared.shown.signer.clone(),
        counts: prepared.shown.counts,
        kept: prepared.with_fate(&[Action::Keep]),
        lockfiles: Vec::new(),
        brought: prepared.brought(engine),
        backups,
        lockfile: target.ai.join(lock_file.as_str().trim_start_matches(".ai/")),
    };
    let unpin = trust::pin(engine, id, &prepared.candidate)?;
    let same = previous.as_ref().is_some_and(|previous| {
        previous.manifest.is_some() && previous.lock.manifest_hash == prepared.candidate.manifest_hash
    });
    if same && current.changes().is_empty() {
        return Ok(Installed { brought: Brought::default(), ..answer("unchanged", None) });
    }

    let lock = BundleLock {
        bundle_id: id.clone(),
        version: prepared.manifest.version.clone(),
        manifest_hash: prepared.candidate.manifest_hash,
        installed_at: now.clone(),
        files: prepared.files.keys().cloned().collect(),
        source: Some(prepared.source.name.clone()),
        source_digest: prepared.source.digest.clone(),
        signer: Some(prepared.shown.signer.fingerprint),
    };
    let mut changes = current.changes();
    let mut records: BTreeMap<FilePath, Vec<u8>> = BTreeMap::new();
    // The lockfile comes last: what it lists is there.
    let mut about =
        vec![(manifest_file, prepared.manifest_bytes.clone()), (lock_file.clone(), lock.to_bytes())];
    if let Some(document) = prepared.signer_document()? {
        about.insert(0, (signer_path(id)?, document));
    }
    for (path, bytes) in about {
        let (old, new) = (target.digest(&path)?, Digest::of(&bytes));
        if old != Some(new) {
            changes.push(Change { path: path.clone(), old, new: Some(new), keeps_backup: false });
        }
        records.insert(path, bytes);
    }
    let folder = prepared.folder();
    let paths: Vec<FilePath> = changes.iter().map(|change| change.path.clone()).collect();
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
        site: &target.site,
        state: &target.state,
        bundle: id,
        changes,
        backups: backups.clone(),
        history: prepared.history.clone(),
    };
    let keep = || {
        let hash = &prepared.candidate.manifest_hash;
        generations::store(&target.state, id, hash, &folder, &prepared.all_files)
    };
    let done = transaction.run(&content, keep, progress);
    if let Err(failure) = done {
        if let Some(before) = unpin {
            // The failure is what is worth telling. A pin that stays says no more than what the user agreed to.
            let _ = trust::unpin(engine, id, before);
        }
        return Err(failure.into());
    }
    let status = match &previous {
        None => "installed",
        Some(_) if prepared.is_rollback => "rolled back",
        Some(previous) if prepared.manifest.version < previous.lock.version => "downgraded",
        Some(previous) if prepared.manifest.version == previous.lock.version => "reinstalled",
        Some(_) => "upgraded",
    };
    let backups = has_backups.then(|| target.state.backups(&backups).display().to_string());
    Ok(answer(status, backups))
}

impl Prepared {
    /// The document of the key that signed the bundle, if the bundle ships it: with it, somebody who gets the project as
    /// it is now can approve the signer too.
    fn signer_document(&self) -> Result<Option<Vec<u8>>> {
        let name = format!("{AI_FOLDER}/{TRUSTED_FOLDER}/{}.toml", self.shown.signer.fingerprint);
        match file::read_beneath(&self.folder(), Path::new(&name), LARGEST_DOCUMENT) {
            Ok((bytes, _)) => Ok(Some(bytes)),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(Error::read(&error)),
        }
    }

    /// What the installation changes that lockfiles may pin. A file that was changed here and stays is not the bundle's.
    fn brought(&self, engine: &Engine) -> Brought {
        let extractors = engine.workspace.spaces.extractors();
        let kept = self.with_fate(&[Action::Keep]);
        let own = || self.files.iter().filter(|(path, _)| !kept.contains(path));
        let tool = |path: &FilePath| {
            let is_tool = object::item_type(path, extractors) == Some(ItemType::Tool);
            ItemId::new(object::name(path).1).ok().filter(|_| is_tool)
        };
        let removed = self.with_fate(&[Action::Remove, Action::Discard]);
        Brought {
            tools: own().filter_map(|(path, _)| tool(path)).collect(),
            digests: own().map(|(_, digest)| *digest).collect(),
            removed: removed.iter().map(ToString::to_string).collect(),
        }
    }

    /// The files with one of these fates.
    fn with_fate(&self, fates: &[Action]) -> Vec<FilePath> {
        let rows = self.plan.rows.iter().filter(|row| fates.contains(&row.action));
        rows.map(|row| row.path.clone()).collect()
    }
}
