//! Changing a space whole or not at all, whenever the process dies.
//!
//! New files are first written into a folder beside their targets, on the same file system. The journal then says what
//! will happen; each file is put in place by one rename, which leaves what was there in the new file's slot. Until the
//! journal says that all are in place, recovery puts everything back; after that, it only tidies up.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use lillux::Digest;
use lillux::dir::{Dir, DirError};
use lillux::file::{self, FileMode};
use rye_item::BundleId;

use super::generations::{self, Generation};
use super::journal::{Journal, Phase};
use super::target_dir::{PathLookup, read_file, split_path};
use super::{FileState, InstallError, InstallState, TargetDir};
use crate::path::BundlePath;

/// How the name of a staging folder begins.
pub(super) const STAGING_PREFIX: &str = ".staging-";
const BUNDLES_FOLDER: &str = "bundles";
const MAX_FILE_BYTES: u64 = 1 << 30;
const MAX_WORKERS: usize = 4;

/// A change of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The file.
    pub path: BundlePath,
    /// What is there; nothing means it is new.
    pub old: Option<Digest>,
    /// What will be there; nothing means it goes.
    pub new: Option<Digest>,
    /// Whether what was there is kept elsewhere.
    pub keeps_backup: bool,
}

/// Where the bytes of new files come from, by the place of the change in the list.
pub type ContentSource<'a> = &'a (dyn Fn(usize) -> Result<Vec<u8>, InstallError> + Sync);

/// Called with how many of how many files are written, from any thread.
pub type InstallProgress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A change to a space that is about to be made. The caller holds the lock of the state.
#[derive(Debug)]
pub struct Transaction<'a> {
    /// The space.
    pub dir: &'a TargetDir,
    /// What is remembered of it.
    pub state: &'a InstallState,
    /// Whose files they are.
    pub bundle: &'a BundleId,
    /// What changes, in this order.
    pub changes: Vec<FileChange>,
    /// The folder's name for backups.
    pub backups: String,
    /// The bundle's versions once it is done.
    pub history: Vec<Generation>,
}

impl Transaction<'_> {
    /// Makes the change. `store_generation` is called after the journal is written and before any file is changed; what it
    /// stores is removed again if the change is rolled back.
    ///
    /// # Errors
    /// When any step fails; then everything is unchanged, unless the error is [`InstallError::RollbackFailed`], and what is
    /// left is put back by [`recover`].
    pub fn run(
        self,
        content: ContentSource<'_>,
        store_generation: impl FnOnce() -> Result<(), InstallError>,
        progress: InstallProgress<'_>,
    ) -> Result<(), InstallError> {
        let mut journal = Journal {
            phase: Phase::Staging,
            bundle: self.bundle.clone(),
            staging: format!("{STAGING_PREFIX}{}", file::unique_name()?),
            created_folders: self.missing_folders()?,
            changes: self.changes,
            backups: self.backups,
            history: self.history,
        };
        let (dir, state) = (self.dir, self.state);
        journal.write(state)?;
        let done = store_generation()
            .and_then(|()| stage_files(dir, &journal, content, progress))
            .and_then(|staging| {
                journal.phase = Phase::Applying;
                journal.write(state)?;
                apply_changes(dir, &staging, &journal.changes, true)?;
                Ok(staging.sync_file_system()?)
            })
            .and_then(|()| {
                journal.phase = Phase::Committed;
                journal.write(state)
            });
        match done {
            Ok(()) => clean_up(dir, state, &journal),
            Err(failure) => match roll_back(dir, state, journal) {
                Ok(()) => Err(failure),
                Err(undoing) => Err(InstallError::RollbackFailed {
                    failure: Box::new(failure),
                    undoing: Box::new(undoing),
                }),
            },
        }
    }

    /// The folders below `.ai/` that have to be made, outer ones first.
    pub(super) fn missing_folders(&self) -> Result<Vec<String>, InstallError> {
        let mut required = BTreeSet::from([BUNDLES_FOLDER.to_owned()]);
        for change in self.changes.iter().filter(|change| change.new.is_some()) {
            let (folders, _) = split_path(&change.path);
            required.extend(folders.match_indices('/').map(|(end, _)| folders[..end].to_owned()));
            required.insert(folders.to_owned());
        }
        let mut missing = Vec::new();
        for folder in required.into_iter().filter(|folder| !folder.is_empty()) {
            match self.dir.folder(&folder)? {
                PathLookup::Absent => missing.push(folder),
                PathLookup::Found(_) => {}
                PathLookup::Other => {
                    let path = BundlePath::new(format!(".ai/{folder}"));
                    return Err(path.map_or_else(
                        |error| InstallError::InvalidFile { path: folder, reason: error.to_string() },
                        |path| InstallError::NotAFile { path },
                    ));
                }
            }
        }
        Ok(missing)
    }
}

fn slot_name(index: usize) -> OsString {
    index.to_string().into()
}

/// Where the old file goes when two files cannot change places in one step.
fn old_slot_name(index: usize) -> OsString {
    format!("{index}.old").into()
}

/// Writes the new files aside, and waits until they are on the disk.
pub(super) fn stage_files(
    dir: &TargetDir,
    journal: &Journal,
    content: ContentSource<'_>,
    progress: InstallProgress<'_>,
) -> Result<Dir, InstallError> {
    let staging = dir.create_folder(&format!("{BUNDLES_FOLDER}/{}", journal.staging))?;
    let new_files: Vec<(usize, Digest)> =
        journal.changes.iter().enumerate().filter_map(|(index, change)| Some((index, change.new?))).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || -> Result<(), InstallError> {
        loop {
            let Some((index, digest)) = new_files.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return Ok(());
            };
            let bytes = content(*index)?;
            if Digest::of(&bytes) != *digest {
                let path = journal.changes[*index].path.clone();
                return Err(InstallError::ChangedConcurrently { path });
            }
            staging.write_new(&slot_name(*index), &bytes)?;
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, new_files.len());
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_WORKERS);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let mut result = work();
        for other in others {
            match other.join() {
                Ok(part) => result = result.and(part),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        result
    })?;
    staging.sync_file_system()?;
    Ok(staging)
}

/// Puts every file in place. Two files change places in one step where the file system can do that.
pub(super) fn apply_changes(
    dir: &TargetDir,
    staging: &Dir,
    changes: &[FileChange],
    in_one_step: bool,
) -> Result<(), InstallError> {
    for (index, change) in changes.iter().enumerate() {
        let expected = change.old.map_or(FileState::Absent, FileState::File);
        let path = || change.path.clone();
        if dir.file_state(&change.path, MAX_FILE_BYTES)? != expected {
            return Err(InstallError::ChangedConcurrently { path: path() });
        }
        let (folder, name) = match (change.new, dir.parent(&change.path)?) {
            (Some(_), PathLookup::Absent) => dir.create_parent(&change.path)?,
            (_, PathLookup::Found(parent)) => parent,
            (None, PathLookup::Absent) | (_, PathLookup::Other) => {
                return Err(InstallError::NotAFile { path: path() });
            }
        };
        match (change.old, change.new) {
            (None, Some(_)) => staging.move_to(&slot_name(index), &folder, name)?,
            (Some(_), None) => folder.move_to(name, staging, &slot_name(index))?,
            (Some(_), Some(_)) => replace_file(&folder, name, staging, index, in_one_step)?,
            (None, None) => {}
        }
    }
    Ok(())
}

fn replace_file(
    folder: &Dir,
    name: &OsStr,
    staging: &Dir,
    index: usize,
    in_one_step: bool,
) -> Result<(), InstallError> {
    if in_one_step {
        match staging.exchange(&slot_name(index), folder, name) {
            Err(DirError::Io { source, .. })
                if matches!(source.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {}
            other => return Ok(other?),
        }
    }
    folder.move_to(name, staging, &old_slot_name(index))?;
    Ok(staging.move_to(&slot_name(index), folder, name)?)
}

/// Puts everything back in the process that failed.
fn roll_back(dir: &TargetDir, state: &InstallState, mut journal: Journal) -> Result<(), InstallError> {
    // The journal may say on the disk that all is in place, though writing that failed.
    if journal.phase == Phase::Committed {
        journal.phase = Phase::Applying;
        journal.write(state)?;
    }
    undo_changes(dir, state, &journal).map(drop)
}

/// Puts everything back. May itself be interrupted, and begun again. Gives the files that are not as they were before the
/// change, because something else changed them or what was kept of them.
pub(super) fn undo_changes(
    dir: &TargetDir,
    state: &InstallState,
    journal: &Journal,
) -> Result<Vec<BundlePath>, InstallError> {
    let mut different = Vec::new();
    // Without the folder there is nothing to put back: it went last, or the space is another one now.
    if let PathLookup::Found(staging) = dir.folder(&format!("{BUNDLES_FOLDER}/{}", journal.staging))? {
        if journal.phase == Phase::Applying {
            for (index, change) in journal.changes.iter().enumerate().rev() {
                undo_change(dir, &staging, index, change)?;
            }
        }
        staging.sync_file_system()?;
        // Before that no file was touched.
        let touched = journal.changes.iter().filter(|_| journal.phase == Phase::Applying);
        for change in touched {
            let before = change.old.map_or(FileState::Absent, FileState::File);
            if dir.file_state(&change.path, MAX_FILE_BYTES)? != before {
                different.push(change.path.clone());
            }
        }
        remove_staging(dir, &staging, journal)?;
    }
    for folder in journal.created_folders.iter().rev() {
        dir.remove_empty(folder)?;
    }
    generations::prune_archives(state, &journal.bundle)?;
    Journal::remove(&state.journal_path())?;
    Ok(different)
}

/// Restores one file. A file that was changed since is left as it is.
pub(super) fn undo_change(
    dir: &TargetDir,
    staging: &Dir,
    index: usize,
    change: &FileChange,
) -> Result<(), InstallError> {
    let digest_in = |folder: &Dir, name: &OsStr| -> Result<Option<Digest>, InstallError> {
        Ok(match read_file(folder, name, MAX_FILE_BYTES)? {
            PathLookup::Found(bytes) => Some(Digest::of(&bytes)),
            PathLookup::Absent | PathLookup::Other => None,
        })
    };
    let in_slot = digest_in(staging, &slot_name(index))?;
    let (folder, name) = match (change.old, dir.parent(&change.path)?) {
        (_, PathLookup::Found(parent)) => parent,
        // Its folder was removed since.
        (Some(_), PathLookup::Absent) => dir.create_parent(&change.path)?,
        (None, PathLookup::Absent) | (_, PathLookup::Other) => return Ok(()),
    };
    let present = dir.file_state(&change.path, MAX_FILE_BYTES)?;
    let is_new_content = change.new.is_some_and(|new| present == FileState::File(new));
    match (change.old, change.new) {
        (None, _) if in_slot.is_none() && is_new_content => folder.remove(name)?,
        (Some(_), None) if in_slot == change.old && present == FileState::Absent => {
            staging.move_to(&slot_name(index), &folder, name)?;
        }
        (Some(_), Some(_)) if digest_in(staging, &old_slot_name(index))? == change.old => {
            if is_new_content {
                folder.remove(name)?;
            }
            if is_new_content || present == FileState::Absent {
                staging.move_to(&old_slot_name(index), &folder, name)?;
            }
        }
        (Some(_), Some(_)) if in_slot == change.old && is_new_content => {
            staging.exchange(&slot_name(index), &folder, name)?;
        }
        _ => {}
    }
    Ok(())
}

/// Tidies up after everything is in place. May itself be interrupted, and begun again.
fn clean_up(dir: &TargetDir, state: &InstallState, journal: &Journal) -> Result<(), InstallError> {
    if let PathLookup::Found(staging) = dir.folder(&format!("{BUNDLES_FOLDER}/{}", journal.staging))? {
        for (index, change) in journal.changes.iter().enumerate().filter(|(_, change)| change.keeps_backup) {
            let old = match read_file(&staging, &old_slot_name(index), MAX_FILE_BYTES)? {
                PathLookup::Absent => read_file(&staging, &slot_name(index), MAX_FILE_BYTES)?,
                old => old,
            };
            if let PathLookup::Found(bytes) = old {
                let path = state.backups_folder(&journal.backups).join(change.path.as_path());
                if let Some(folder) = path.parent() {
                    file::create_dirs(folder, true)?;
                }
                file::write_atomic(&path, &bytes, FileMode::Private)?;
            }
        }
        remove_staging(dir, &staging, journal)?;
    }
    for change in journal.changes.iter().filter(|change| change.new.is_none()) {
        dir.remove_empty_parents(&change.path)?;
    }
    // Made for the staging folder alone, if nothing of the bundle is there.
    dir.remove_empty(BUNDLES_FOLDER)?;
    generations::write_generations(state, &journal.bundle, &journal.history)?;
    Journal::remove(&state.journal_path())
}

fn remove_staging(dir: &TargetDir, staging: &Dir, journal: &Journal) -> Result<(), InstallError> {
    const ALL: usize = usize::MAX;
    for entry in staging.entries(ALL)?.0 {
        staging.remove(&entry.name)?;
    }
    dir.remove_empty(&format!("{BUNDLES_FOLDER}/{}", journal.staging))
}

/// What recovery did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecoveryOutcome {
    /// There was nothing to do.
    Nothing,
    /// A change that had not come to its end was taken back.
    Undone {
        /// The files that could not be put back: something else has changed them, or what was kept of them.
        different: Vec<BundlePath>,
    },
    /// A change that was made, but not tidied up after, is finished.
    Finished,
}

/// Brings the space to the state before or after a change whose process died. The caller holds the lock of the state.
///
/// # Errors
/// When the record cannot be read, or the system refuses.
pub fn recover(dir: &TargetDir, state: &InstallState) -> Result<RecoveryOutcome, InstallError> {
    state.remove_temporary_files()?;
    let Some(journal) = Journal::read(state)? else {
        return Ok(RecoveryOutcome::Nothing);
    };
    match journal.phase {
        Phase::Staging | Phase::Applying => {
            let different = undo_changes(dir, state, &journal)?;
            Ok(RecoveryOutcome::Undone { different })
        }
        Phase::Committed => {
            clean_up(dir, state, &journal)?;
            Ok(RecoveryOutcome::Finished)
        }
    }
}
