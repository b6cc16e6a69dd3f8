//! Placeholders: harmless files and folders that take a name for the time of a run, so that the run cannot. A name that
//! does not exist cannot be mounted over, so it is made to exist, protected, and removed afterwards.
//!
//! Runs of several processes share them. Two lock files say who works with them: `changing` is held for a moment by the run that
//! adds or removes placeholders, `in_use` is shared by every run. The last run that leaves removes what the record lists;
//! after a crash the locks are free, and the next run does.
//!
//! Runs that share no record can meet at one name: those of another worktree, of a project inside this one, with another cache
//! folder. So each run also holds a lock at every placeholder it relies on, its own or one it found, and a placeholder is only
//! removed when no other run holds one: to remove a file takes away what other runs have mounted over it.
//!
//! A warm server makes and removes the same names many times a second, and new files are slow to make. So what is removed is
//! moved aside, into a folder beside the record, and moved back by the next run; and the record stays, with one byte in
//! `changing` that says whether it counts. What was once read in full is known again by its inode and its times.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags};
use serde::{Deserialize, Serialize};

use crate::Digest;
use crate::dir::owner_rights::OwnerRights;
use crate::file;
use crate::owner::process_start;

mod hold;
#[cfg(test)]
mod tests;
mod unchanged;

use hold::HeldFiles;
use unchanged::is_unchanged;

/// Records are small: a few names.
const MAX_RECORD_BYTES: u64 = 1 << 20;

/// How often placeholders are made again that another run removes meanwhile.
const MAX_ATTEMPTS: usize = 32;

/// A name that a run must not take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedName {
    /// Where it is.
    pub path: PathBuf,
    /// What takes it if nothing is there.
    pub content: PlaceholderContent,
}

/// What takes a name for the time of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlaceholderContent {
    /// An empty folder.
    Folder,
    /// A file with this text.
    File(String),
}

/// Which names exist by themselves and which are placeholders, for as long as this lives.
#[derive(Debug)]
pub struct PlaceholderGuard {
    /// Names that exist by themselves.
    pub existing: Vec<PathBuf>,
    /// Names that are placeholders.
    pub placeholders: Vec<PathBuf>,
    locks: Option<PlaceholderLocks>,
    /// Holds every placeholder in its place.
    held: HeldFiles,
    /// A run may close the folders that its placeholders lie in.
    rights: OwnerRights,
}

#[derive(Debug)]
struct PlaceholderLocks {
    changing: File,
    in_use: File,
    record: PathBuf,
    /// Where placeholders are kept between runs.
    aside: PathBuf,
}

/// What was made and by whom it is still needed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct PlaceholderRecord {
    names: Vec<ReservedName>,
    /// Processes that outlive the one that made the placeholders, with the time they were started.
    #[serde(default)]
    #[serde(rename = "keepers")]
    owners: Vec<(u32, u64)>,
}

impl PlaceholderGuard {
    /// Makes placeholders for all names that do not exist. `records` is a folder of the caller's own, where it is noted
    /// for `root` what was made. A name in a folder that cannot be written to needs none.
    ///
    /// # Errors
    /// When the record cannot be kept, or a placeholder cannot be made.
    pub fn acquire(records: &Path, root: &Path, names: &[ReservedName]) -> io::Result<Self> {
        for _ in 0..MAX_ATTEMPTS {
            let mut guard = Self::acquire_unheld(records, root, names)?;
            if let Some(held) = hold::all(names, &guard.existing, &guard.placeholders)? {
                guard.held = held;
                guard.rights = OwnerRights::above(guard.placeholders.iter().map(PathBuf::as_path));
                return Ok(guard);
            }
        }
        Err(io::Error::other("names that must be protected are made and removed again and again"))
    }

    /// As [`PlaceholderGuard::acquire`], without the locks at the placeholders themselves.
    fn acquire_unheld(records: &Path, root: &Path, names: &[ReservedName]) -> io::Result<Self> {
        let mut guard = Self {
            existing: Vec::new(),
            placeholders: Vec::new(),
            locks: None,
            held: HeldFiles::default(),
            rights: OwnerRights::default(),
        };
        let record = record_path(records, root);
        let mut known = ExistingPaths::default();
        let has_all = names.iter().all(|name| known.has(&name.path));
        if has_all && !is_in_force(&record.with_extension("changing")) {
            guard.existing = names.iter().map(|name| name.path.clone()).collect();
            return Ok(guard);
        }
        file::create_dirs(records, true)?;
        let locks = PlaceholderLocks::open(record)?;
        locks.with_record(|locks, record| {
            if locks.is_last()? {
                record.remove_unless_owned(&locks.aside, &mut HeldFiles::default());
            }
            rustix::fs::flock(&locks.in_use, FlockOperation::LockShared)?;
            // Another run may have added or removed names until now.
            known = ExistingPaths::default();
            names.iter().try_for_each(|name| known.check_accessible(&name.path))?;
            let names = outermost_missing(names, record, &mut known);
            let missing: Vec<ReservedName> =
                names.iter().filter(|name| !known.has(&name.path)).cloned().collect();
            let made: HashSet<&Path> = missing.iter().map(|name| name.path.as_path()).collect();
            record.names.retain(|name| !made.contains(name.path.as_path()));
            record.names.extend(missing.iter().cloned());
            locks.write(record)?;
            for name in missing {
                if create_placeholder(&name, &locks.aside)? {
                    known.add(name.path);
                }
            }
            let recorded: HashSet<&Path> = record.names.iter().map(|name| name.path.as_path()).collect();
            for name in &names {
                let is_placeholder = recorded.contains(name.path.as_path());
                let list = if is_placeholder { &mut guard.placeholders } else { &mut guard.existing };
                if known.has(&name.path) {
                    list.push(name.path.clone());
                }
            }
            Ok(())
        })?;
        guard.locks = Some(locks);
        Ok(guard)
    }

    /// Leaves the placeholders to a process that outlives this one.
    ///
    /// # Errors
    /// When that cannot be noted.
    pub fn transfer_to(mut self, pid: u32) -> io::Result<()> {
        hold::transfer_to(std::mem::take(&mut self.held).into_files(), pid);
        let Some(locks) = self.locks.take() else { return Ok(()) };
        locks.with_record(|locks, record| {
            record.owners.extend(process_start(pid).map(|started| (pid, started)));
            locks.write(record)
        })
    }
}

impl Drop for PlaceholderGuard {
    fn drop(&mut self) {
        let mut held = std::mem::take(&mut self.held);
        if let Some(locks) = self.locks.take() {
            self.rights.restore();
            // What cannot be removed now is removed by the next run.
            let _ = locks.with_record(|locks, record| {
                if locks.is_last()? {
                    record.remove_unless_owned(&locks.aside, &mut held);
                }
                locks.write(record)
            });
        }
    }
}

impl PlaceholderLocks {
    fn open(record: PathBuf) -> io::Result<Self> {
        let lock = |name: &str| {
            let path = record.with_extension(name);
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
        };
        let aside = record.with_extension("aside");
        Ok(Self { changing: lock("changing")?, in_use: lock("in_use")?, record, aside })
    }

    /// Calls `work` with the record while no other run changes it.
    fn with_record(
        &self,
        work: impl FnOnce(&Self, &mut PlaceholderRecord) -> io::Result<()>,
    ) -> io::Result<()> {
        rustix::fs::flock(&self.changing, FlockOperation::LockExclusive)?;
        let mut record = if self.is_in_force() { self.read() } else { PlaceholderRecord::default() };
        let result = work(self, &mut record);
        rustix::fs::flock(self.changing.as_fd(), FlockOperation::Unlock)?;
        result
    }

    /// Whether no other run uses the placeholders.
    fn is_last(&self) -> io::Result<bool> {
        match rustix::fs::flock(&self.in_use, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn read(&self) -> PlaceholderRecord {
        match file::read_bounded(&self.record, MAX_RECORD_BYTES) {
            Ok((bytes, _)) => serde_json::from_slice(&bytes).unwrap_or_default(),
            Err(_) => PlaceholderRecord::default(),
        }
    }

    /// Notes what is in place. The record is written before it is said to be in force.
    fn write(&self, record: &PlaceholderRecord) -> io::Result<()> {
        let is_empty = record.names.is_empty() && record.owners.is_empty();
        if !is_empty && self.read() != *record {
            let text = serde_json::to_vec(record).map_err(io::Error::other)?;
            file::replace_unsynced(&self.record, &text)?;
        }
        if self.is_in_force() == is_empty {
            rustix::io::pwrite(&self.changing, if is_empty { IDLE } else { IN_FORCE }, 0)?;
        }
        Ok(())
    }

    fn is_in_force(&self) -> bool {
        let mut byte = [0];
        rustix::io::pread(&self.changing, &mut byte, 0) == Ok(1) && byte == *IN_FORCE
    }
}

/// Placeholders that a killed run left and that no run uses. The next run removes them, if it can reach them.
#[must_use]
pub fn leftovers(records: &Path, root: &Path) -> Vec<PathBuf> {
    let record = record_path(records, root);
    if !is_in_force(&record.with_extension("changing")) {
        return Vec::new();
    }
    let Ok(locks) = PlaceholderLocks::open(record) else { return Vec::new() };
    let record = locks.read();
    let is_used = record.owners.iter().any(|(pid, started)| process_start(*pid) == Some(*started));
    if is_used || !locks.is_last().is_ok_and(|is_last| is_last) {
        return Vec::new();
    }
    let is_left = |path: &PathBuf| !path.symlink_metadata().is_err_and(|error| is_absence(&error));
    record.names.into_iter().map(|name| name.path).filter(is_left).collect()
}

/// Where it is noted what was made for `root`.
fn record_path(records: &Path, root: &Path) -> PathBuf {
    records.join(Digest::of(root.as_os_str().as_encoded_bytes()).short())
}

/// What the file `changing` says: whether the record counts.
const IN_FORCE: &[u8; 1] = b"1";
const IDLE: &[u8; 1] = b"0";

/// Whether a record counts, for a run that has not opened it.
fn is_in_force(changing: &Path) -> bool {
    file::read_bounded(changing, 16).is_ok_and(|(bytes, _)| bytes.first() == IN_FORCE.first())
}

impl PlaceholderRecord {
    /// Removes what was made, unless a process that was left with it still runs.
    fn remove_unless_owned(&mut self, aside: &Path, held: &mut HeldFiles) {
        self.owners.retain(|(pid, started)| process_start(*pid) == Some(*started));
        if !self.owners.is_empty() {
            return;
        }
        // Folders last, and the deepest first.
        self.names.sort_by(|left, right| right.path.cmp(&left.path));
        // What could not be removed now is tried again by the next run.
        self.names.retain(|name| !remove_placeholder(name, aside, held));
    }
}

/// Which paths exist, each looked at once.
#[derive(Debug, Default)]
struct ExistingPaths {
    known: HashMap<PathBuf, bool>,
}

impl ExistingPaths {
    fn has(&mut self, path: &Path) -> bool {
        if let Some(exists) = self.known.get(path) {
            return *exists;
        }
        let exists = path.symlink_metadata().is_ok();
        self.known.insert(path.to_owned(), exists);
        exists
    }

    /// A name that cannot be looked at is not taken for absent: a run may have closed the folder it lies in.
    fn check_accessible(&mut self, path: &Path) -> io::Result<()> {
        let found = path.symlink_metadata();
        self.known.insert(path.to_owned(), found.is_ok());
        match found {
            Err(error) if !is_absence(&error) => {
                let reason = format!("`{}` cannot be looked at: {error}", path.display());
                Err(io::Error::new(error.kind(), reason))
            }
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Notes a path that was made.
    fn add(&mut self, path: PathBuf) {
        self.known.insert(path, true);
    }
}

/// Whether nothing is at a path, and not only out of reach.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// One name for each that could be made: below a folder that does not exist, or is a placeholder, the folder is reserved.
fn outermost_missing(
    names: &[ReservedName],
    record: &PlaceholderRecord,
    existing: &mut ExistingPaths,
) -> Vec<ReservedName> {
    let mut all: Vec<ReservedName> = Vec::new();
    // Most names lie in a few folders, and whether a folder is a placeholder is slow to tell.
    let mut absent: HashMap<PathBuf, bool> = HashMap::new();
    for name in names {
        let parents = name.path.ancestors().skip(1);
        let mut is_absent = |path: &Path| {
            if let Some(is_absent) = absent.get(path) {
                return *is_absent;
            }
            let is_absent = !existing.has(path)
                || record.names.iter().any(|known| known.path == path)
                || hold::is_held(path);
            absent.insert(path.to_owned(), is_absent);
            is_absent
        };
        let missing = parents.take_while(|above| is_absent(above)).last();
        let name = match missing {
            Some(folder) => ReservedName { path: folder.to_owned(), content: PlaceholderContent::Folder },
            None => name.clone(),
        };
        let mut is_reserved = |known: &ReservedName| {
            name.path == known.path || (name.path.starts_with(&known.path) && !existing.has(&known.path))
        };
        if !all.iter().any(&mut is_reserved) {
            all.push(name);
        }
    }
    all
}

/// Where a placeholder is kept between runs: each name has its own, so that what was mounted over it still fits.
fn kept_aside(name: &ReservedName, aside: &Path) -> PathBuf {
    let content = match &name.content {
        PlaceholderContent::Folder => "folder",
        PlaceholderContent::File(_) => "file",
    };
    aside.join(format!("{}.{content}", Digest::of(name.path.as_os_str().as_encoded_bytes()).short()))
}

/// Moves something to a name that must be free.
fn rename_new(from: &Path, to: &Path) -> rustix::io::Result<()> {
    rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)
}

/// Makes a placeholder. Says whether its name is taken now: where this user may not make it, neither may the run.
fn create_placeholder(name: &ReservedName, aside: &Path) -> io::Result<bool> {
    if rename_new(&kept_aside(name, aside), &name.path).is_ok() {
        if is_unchanged(&name.path, &name.content) {
            return Ok(true);
        }
        // Not what was kept: whatever it is, it stays aside, and a new one is made.
        rename_new(&name.path, &kept_aside(name, aside))?;
    }
    let result = match &name.content {
        PlaceholderContent::Folder => std::fs::create_dir(&name.path),
        PlaceholderContent::File(text) => std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&name.path)
            .and_then(|mut file| io::Write::write_all(&mut file, text.as_bytes())),
    };
    match result {
        Ok(()) => Ok(true),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::AlreadyExists
                    | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(name.path.symlink_metadata().is_ok())
        }
        Err(error) => Err(error),
    }
}

/// Takes a placeholder away if it is still what was made: aside where that can be done, else for good. Says whether it is
/// gone, or was changed and so is not a placeholder any more. `held`: what this run holds.
fn remove_placeholder(name: &ReservedName, aside: &Path, held: &mut HeldFiles) -> bool {
    let ReservedName { path, content } = name;
    // In a folder that was closed it is still there.
    if path.symlink_metadata().is_err_and(|error| !is_absence(&error)) {
        return false;
    }
    if !is_unchanged(path, content) {
        return true;
    }
    // Another run, which need not share the record, has mounted over it.
    let Some(_alone) = held.take_alone(path) else { return false };
    let kept = kept_aside(name, aside);
    let is_aside = rename_new(path, &kept).is_ok()
        || (file::create_dirs(aside, true).is_ok() && rename_new(path, &kept).is_ok());
    if is_aside {
        // Something was put into it in between: it is not ours to take away.
        if !is_unchanged(&kept, content) {
            let _ = rename_new(&kept, path);
        }
        return true;
    }
    match content {
        // Only an empty folder can be removed this way.
        PlaceholderContent::Folder => std::fs::remove_dir(path).is_ok(),
        PlaceholderContent::File(_) => file::remove_unsynced(path).is_ok(),
    }
}
