//! The files beside a project's bundles that change together with them, in the same transaction: `.ai/bundles.toml` and
//! `.ai/bundles.lock`; and what is installed in the project, for comparing with them.

use std::collections::BTreeMap;

use lillux::Digest;
use rye_bundle::install::transaction::FileChange;
use rye_bundle::install::{InstallError, PathLookup, Transaction, generations, recover};
use rye_bundle::{BundleLockfile, BundlePath, object};
use rye_item::BundleId;
use rye_item::space::SpaceTier;
use rye_space::RESERVED_FILE_TEXT;

use super::target::InstallTarget;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// The largest installed file that is compared.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A file of the project that changes together with its bundles.
#[derive(Clone, Debug)]
pub struct ProjectFile {
    /// Where it is.
    pub path: BundlePath,
    /// What it was when it was read.
    pub old: Option<Digest>,
    /// What it becomes.
    pub new: Vec<u8>,
}

impl ProjectFile {
    fn is_changed(&self) -> bool {
        self.old != Some(Digest::of(&self.new))
    }
}

/// The bytes of new files, by path.
pub(super) type FileContents = BTreeMap<BundlePath, Vec<u8>>;

/// The changes of project files, and their content.
///
/// # Errors
/// When one of them is not what it was when it was read.
pub(super) fn project_changes(
    target: &InstallTarget,
    files: &[ProjectFile],
) -> Result<(Vec<FileChange>, FileContents)> {
    let (mut changes, mut contents) = (Vec::new(), BTreeMap::new());
    // Made and removed by tools that run meanwhile.
    let is_reserved = |digest: Option<Digest>| {
        digest.is_none_or(|digest| digest == Digest::of(RESERVED_FILE_TEXT.as_bytes()))
    };
    for file in files.iter().filter(|file| file.is_changed()) {
        let old = target.file_digest(&file.path)?;
        if old != file.old && !(is_reserved(old) && is_reserved(file.old)) {
            return Err(Error::new(Code::FileInTheWay, format!("`{}` was changed meanwhile", file.path))
                .detail("path", file.path.as_str())
                .hint("nothing was changed; run the command again"));
        }
        changes.push(FileChange {
            path: file.path.clone(),
            old,
            new: Some(Digest::of(&file.new)),
            keeps_backup: false,
        });
        contents.insert(file.path.clone(), file.new.clone());
    }
    Ok((changes, contents))
}

/// Reads a file of the project; no link is followed.
///
/// # Errors
/// When it is larger than `limit`, or not a file.
pub(crate) fn read_project_file(engine: &Engine, path: &BundlePath, limit: u64) -> Result<Option<Vec<u8>>> {
    let target = InstallTarget::open(engine, SpaceTier::Project)?;
    match target.dir.read(path, limit)? {
        PathLookup::Absent => Ok(None),
        PathLookup::Found(bytes) => Ok(Some(bytes)),
        PathLookup::Other => {
            let message = format!("`{path}` is not a plain file of at most {limit} bytes");
            Err(Error::new(Code::InvalidProjectManifest, message)
                .detail("path", path.as_str())
                .hint("links are not followed; put the file itself there"))
        }
    }
}

/// Changes files of the project without changing a bundle. `id` is a bundle that they are about.
///
/// # Errors
/// When one of them changed meanwhile, or the system refuses. Then everything is unchanged.
pub(crate) fn write_project_files(engine: &Engine, id: &BundleId, files: &[ProjectFile]) -> Result<()> {
    let target = InstallTarget::open(engine, SpaceTier::Project)?;
    let _lock = target.state.lock()?;
    recover(&target.dir, &target.state)?;
    let (changes, contents) = project_changes(&target, files)?;
    if changes.is_empty() {
        return Ok(());
    }
    let paths: Vec<BundlePath> = changes.iter().map(|change| change.path.clone()).collect();
    let content = |index: usize| -> std::result::Result<Vec<u8>, InstallError> {
        Ok(contents.get(&paths[index]).cloned().unwrap_or_default())
    };
    let history = generations::read_generations(&target.state, id)?;
    let transaction = Transaction {
        dir: &target.dir,
        state: &target.state,
        bundle: id,
        changes,
        backups: id.to_string(),
        history,
    };
    Ok(transaction.run(&content, || Ok(()), &|_, _| {})?)
}

/// What is installed of a bundle in the project.
#[derive(Clone, Debug)]
pub(crate) struct ProjectInstallation {
    /// Its lockfile.
    pub(crate) lock: BundleLockfile,
    /// Files it brought that are not there.
    pub(crate) missing: Vec<BundlePath>,
    /// Files that are not as it brought them.
    pub(crate) changed: Vec<BundlePath>,
    /// Whether its manifest is there, as it was installed.
    pub(crate) has_manifest: bool,
}

/// Looks at what is installed of the bundle `id` in the project.
///
/// # Errors
/// When its lockfile is there, but cannot be used.
pub(crate) fn project_installation(engine: &Engine, id: &BundleId) -> Result<Option<ProjectInstallation>> {
    let target = InstallTarget::open(engine, SpaceTier::Project)?;
    let Some(installed) = target.installed_bundle(id)? else { return Ok(None) };
    let extractors = engine.workspace.spaces.extractors();
    let (mut missing, mut changed) = (Vec::new(), Vec::new());
    for path in &installed.lock.files {
        let entry = installed.manifest.as_ref().and_then(|manifest| manifest.files.get(path));
        match target.dir.read(path, MAX_FILE_BYTES)? {
            PathLookup::Absent => missing.push(path.clone()),
            PathLookup::Other => changed.push(path.clone()),
            PathLookup::Found(bytes) => {
                let is_same =
                    entry.is_some_and(|entry| object::compare_entry(path, entry, &bytes, extractors).is_ok());
                if !is_same {
                    changed.push(path.clone());
                }
            }
        }
    }
    let has_manifest = installed.manifest.is_some();
    Ok(Some(ProjectInstallation { lock: installed.lock, missing, changed, has_manifest }))
}

/// The bundles that a manifest brought into the project.
///
/// # Errors
/// When the project cannot be read.
pub(crate) fn managed_bundles(engine: &Engine) -> Result<Vec<BundleId>> {
    let target = InstallTarget::open(engine, SpaceTier::Project)?;
    let ids = target.installed_ids()?.into_iter();
    // A lockfile that cannot be read says nothing; what else it breaks is said elsewhere.
    Ok(ids
        .filter(|id| matches!(target.installed_bundle(id), Ok(Some(installed)) if installed.lock.managed))
        .collect())
}

/// The archive of a version that was installed in this project before, if it is stored.
pub(crate) fn stored_archive(
    engine: &Engine,
    id: &BundleId,
    manifest: &Digest,
) -> Result<Option<std::path::PathBuf>> {
    let target = InstallTarget::open(engine, SpaceTier::Project)?;
    let path = generations::archive_path(&target.state, id, manifest);
    Ok(path.is_file().then_some(path))
}
