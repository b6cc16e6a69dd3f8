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
use lillux::beneath::{BeneathError, Folder};
use lillux::file::{self, Mode};
use rye_item::BundleId;

use super::generations::{self, Generation};
use super::journal::{Journal, Phase};
use super::site::{Found, read_file, split};
use super::{InstallError, Present, Site, State};
use crate::path::FilePath;

/// How the name of a staging folder begins.
pub(super) const STAGING: &str = ".staging-";
const BUNDLES: &str = "bundles";
const LARGEST_FILE: u64 = 1 << 30;
const MOST_WORKERS: usize = 4;

/// A change of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file.
    pub path: FilePath,
    /// What is there; nothing means it is new.
    pub old: Option<Digest>,
    /// What will be there; nothing means it goes.
    pub new: Option<Digest>,
    /// Whether what was there is kept elsewhere.
    pub keeps_backup: bool,
}

/// Where the bytes of new files come from, by the place of the change in the list.
pub type Content<'a> = &'a (dyn Fn(usize) -> Result<Vec<u8>, InstallError> + Sync);

/// Called with how many of how many files are written, from any thread.
pub type Progress<'a> = &'a (dyn Fn(usize, usize) + Sync);

/// A change to a space that is about to be made. The caller holds the lock of the state.
#[derive(Debug)]
pub struct Transaction<'a> {
    /// The space.
    pub site: &'a Site,
    /// What is remembered of it.
    pub state: &'a State,
    /// Whose files they are.
    pub bundle: &'a BundleId,
    /// What changes, in this order.
    pub changes: Vec<Change>,
    /// The folder's name for backups.
    pub backups: String,
    /// The bundle's versions once it is done.
    pub history: Vec<Generation>,
}

impl Transaction<'_> {
    /// Makes the change. `keep` is called once the change is written down and before anything is changed: what it
    /// leaves aside is removed again with the rest.
    ///
    /// # Errors
    /// When any step fails; then everything is as it was, unless the error is [`InstallError::NotUndone`], and what is
    /// left is put back by [`recover`].
    pub fn run(
        self,
        content: Content<'_>,
        keep: impl FnOnce() -> Result<(), InstallError>,
        progress: Progress<'_>,
    ) -> Result<(), InstallError> {
        let mut journal = Journal {
            phase: Phase::Staging,
            bundle: self.bundle.clone(),
            staging: format!("{STAGING}{}", file::unique_name()?),
            made: self.missing_folders()?,
            changes: self.changes,
            backups: self.backups,
            history: self.history,
        };
        let (site, state) = (self.site, self.state);
        journal.write(state)?;
        let done = keep()
            .and_then(|()| prepare(site, &journal, content, progress))
            .and_then(|staging| {
                journal.phase = Phase::Applying;
                journal.write(state)?;
                apply(site, &staging, &journal.changes, true)?;
                Ok(staging.sync_file_system()?)
            })
            .and_then(|()| {
                journal.phase = Phase::Committed;
                journal.write(state)
            });
        match done {
            Ok(()) => finish(site, state, &journal),
            Err(failure) => match take_back(site, state, journal) {
                Ok(()) => Err(failure),
                Err(undoing) => {
                    Err(InstallError::NotUndone { failure: Box::new(failure), undoing: Box::new(undoing) })
                }
            },
        }
    }

    /// The folders below `.ai/` that have to be made, outer ones first.
    pub(super) fn missing_folders(&self) -> Result<Vec<String>, InstallError> {
        let mut wanted = BTreeSet::from([BUNDLES.to_owned()]);
        for change in self.changes.iter().filter(|change| change.new.is_some()) {
            let (folders, _) = split(&change.path);
            wanted.extend(folders.match_indices('/').map(|(end, _)| folders[..end].to_owned()));
            wanted.insert(folders.to_owned());
        }
        let mut missing = Vec::new();
        for folder in wanted.into_iter().filter(|folder| !folder.is_empty()) {
            match self.site.folder(&folder)? {
                Found::Nothing => missing.push(folder),
                Found::Here(_) => {}
                Found::Other => {
                    let path = FilePath::new(format!(".ai/{folder}"));
                    return Err(path.map_or_else(
                        |error| InstallError::Refused { path: folder, reason: error.to_string() },
                        |path| InstallError::InTheWay { path },
                    ));
                }
            }
        }
        Ok(missing)
    }
}

fn slot(index: usize) -> OsString {
    index.to_string().into()
}

/// Where the old file goes when two files cannot change places in one step.
fn old_slot(index: usize) -> OsString {
    format!("{index}.old").into()
}

/// Writes the new files aside, and waits until they are on the disk.
pub(super) fn prepare(
    site: &Site,
    journal: &Journal,
    content: Content<'_>,
    progress: Progress<'_>,
) -> Result<Folder, InstallError> {
    let staging = site.make_folder(&format!("{BUNDLES}/{}", journal.staging))?;
    let fresh: Vec<(usize, Digest)> =
        journal.changes.iter().enumerate().filter_map(|(index, change)| Some((index, change.new?))).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || -> Result<(), InstallError> {
        loop {
            let Some((index, digest)) = fresh.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return Ok(());
            };
            let bytes = content(*index)?;
            if Digest::of(&bytes) != *digest {
                let path = journal.changes[*index].path.clone();
                return Err(InstallError::ChangedMeanwhile { path });
            }
            staging.write_new(&slot(*index), &bytes)?;
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, fresh.len());
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_WORKERS);
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
pub(super) fn apply(
    site: &Site,
    staging: &Folder,
    changes: &[Change],
    in_one_step: bool,
) -> Result<(), InstallError> {
    for (index, change) in changes.iter().enumerate() {
        let expected = change.old.map_or(Present::Absent, Present::File);
        let path = || change.path.clone();
        if site.look(&change.path, LARGEST_FILE)? != expected {
            return Err(InstallError::ChangedMeanwhile { path: path() });
        }
        let (folder, name) = match (change.new, site.parent(&change.path)?) {
            (Some(_), Found::Nothing) => site.make_parent(&change.path)?,
            (_, Found::Here(parent)) => parent,
            (None, Found::Nothing) | (_, Found::Other) => {
                return Err(InstallError::InTheWay { path: path() });
            }
        };
        match (change.old, change.new) {
            (None, Some(_)) => staging.move_to(&slot(index), &folder, name)?,
            (Some(_), None) => folder.move_to(name, staging, &slot(index))?,
            (Some(_), Some(_)) => replace(&folder, name, staging, index, in_one_step)?,
            (None, None) => {}
        }
    }
    Ok(())
}

fn replace(
    folder: &Folder,
    name: &OsStr,
    staging: &Folder,
    index: usize,
    in_one_step: bool,
) -> Result<(), InstallError> {
    if in_one_step {
        match staging.exchange(&slot(index), folder, name) {
            Err(BeneathError::Io { source, .. })
                if matches!(source.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {}
            other => return Ok(other?),
        }
    }
    folder.move_to(name, staging, &old_slot(index))?;
    Ok(staging.move_to(&slot(index), folder, name)?)
}

/// Puts everything back in the process that failed.
fn take_back(site: &Site, state: &State, mut journal: Journal) -> Result<(), InstallError> {
    // The journal may say on the disk that all is in place, though writing that failed.
    if journal.phase == Phase::Committed {
        journal.phase = Phase::Applying;
        journal.write(state)?;
    }
    undo(site, state, &journal)
}

/// Puts everything back. May itself be interrupted, and begun again.
pub(super) fn undo(site: &Site, state: &State, journal: &Journal) -> Result<(), InstallError> {
    // Without the folder there is nothing to put back: it went last, or the space is another one by now.
    if let Found::Here(staging) = site.folder(&format!("{BUNDLES}/{}", journal.staging))? {
        if journal.phase == Phase::Applying {
            for (index, change) in journal.changes.iter().enumerate().rev() {
                undo_one(site, &staging, index, change)?;
            }
        }
        staging.sync_file_system()?;
        remove_staging(site, &staging, journal)?;
    }
    for folder in journal.made.iter().rev() {
        site.remove_empty(folder)?;
    }
    generations::prune(state, &journal.bundle)?;
    Journal::remove(&state.journal())
}

/// Puts one file back. One that somebody changed since stays as they made it.
pub(super) fn undo_one(
    site: &Site,
    staging: &Folder,
    index: usize,
    change: &Change,
) -> Result<(), InstallError> {
    let digest_in = |folder: &Folder, name: &OsStr| -> Result<Option<Digest>, InstallError> {
        Ok(match read_file(folder, name, LARGEST_FILE)? {
            Found::Here(bytes) => Some(Digest::of(&bytes)),
            Found::Nothing | Found::Other => None,
        })
    };
    let in_slot = digest_in(staging, &slot(index))?;
    let (folder, name) = match (change.old, site.parent(&change.path)?) {
        (_, Found::Here(parent)) => parent,
        // Somebody removed its folder since.
        (Some(_), Found::Nothing) => site.make_parent(&change.path)?,
        (None, Found::Nothing) | (_, Found::Other) => return Ok(()),
    };
    let there = site.look(&change.path, LARGEST_FILE)?;
    let is_ours = change.new.is_some_and(|new| there == Present::File(new));
    match (change.old, change.new) {
        (None, _) if in_slot.is_none() && is_ours => folder.remove(name)?,
        (Some(_), None) if in_slot == change.old && there == Present::Absent => {
            staging.move_to(&slot(index), &folder, name)?;
        }
        (Some(_), Some(_)) if digest_in(staging, &old_slot(index))? == change.old => {
            if is_ours {
                folder.remove(name)?;
            }
            if is_ours || there == Present::Absent {
                staging.move_to(&old_slot(index), &folder, name)?;
            }
        }
        (Some(_), Some(_)) if in_slot == change.old && is_ours => {
            staging.exchange(&slot(index), &folder, name)?;
        }
        _ => {}
    }
    Ok(())
}

/// Tidies up after everything is in place. May itself be interrupted, and begun again.
fn finish(site: &Site, state: &State, journal: &Journal) -> Result<(), InstallError> {
    if let Found::Here(staging) = site.folder(&format!("{BUNDLES}/{}", journal.staging))? {
        for (index, change) in journal.changes.iter().enumerate().filter(|(_, change)| change.keeps_backup) {
            let old = match read_file(&staging, &old_slot(index), LARGEST_FILE)? {
                Found::Nothing => read_file(&staging, &slot(index), LARGEST_FILE)?,
                old => old,
            };
            if let Found::Here(bytes) = old {
                let path = state.backups(&journal.backups).join(change.path.as_path());
                if let Some(folder) = path.parent() {
                    file::create_folders(folder, true)?;
                }
                file::write_atomic(&path, &bytes, Mode::Private)?;
            }
        }
        remove_staging(site, &staging, journal)?;
    }
    for change in journal.changes.iter().filter(|change| change.new.is_none()) {
        site.remove_empty_parents(&change.path)?;
    }
    // Made for the staging folder alone, if nothing of the bundle is there.
    site.remove_empty(BUNDLES)?;
    generations::write(state, &journal.bundle, &journal.history)?;
    Journal::remove(&state.journal())
}

fn remove_staging(site: &Site, staging: &Folder, journal: &Journal) -> Result<(), InstallError> {
    const ALL: usize = usize::MAX;
    for entry in staging.entries(ALL)?.0 {
        staging.remove(&entry.name)?;
    }
    site.remove_empty(&format!("{BUNDLES}/{}", journal.staging))
}

/// What recovery did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// There was nothing to do.
    Nothing,
    /// A change that had not come to its end was taken back.
    Undone,
    /// A change that was made, but not tidied up after, is finished.
    Finished,
}

/// Brings the space to the state before or after a change whose process died. The caller holds the lock of the state.
///
/// # Errors
/// When the record cannot be read, or the system refuses.
pub fn recover(site: &Site, state: &State) -> Result<Recovered, InstallError> {
    state.remove_temporary_files()?;
    let Some(journal) = Journal::read(state)? else {
        return Ok(Recovered::Nothing);
    };
    match journal.phase {
        Phase::Staging | Phase::Applying => {
            undo(site, state, &journal)?;
            Ok(Recovered::Undone)
        }
        Phase::Committed => {
            finish(site, state, &journal)?;
            Ok(Recovered::Finished)
        }
    }
}
