//! Locks at the placeholders themselves: shared by every run that relies on one, exclusive for the one that removes it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::unchanged::is_unchanged;
use super::{PlaceholderContent, ReservedName};
use crate::owner::process_start;

/// The placeholders that one run holds, with a shared lock at each.
#[derive(Debug, Default)]
pub(super) struct HeldFiles(HashMap<PathBuf, File>);

impl HeldFiles {
    /// Exchanges the run's own lock at this name for an exclusive one, if no other run holds it.
    pub(super) fn take_alone(&mut self, path: &Path) -> Option<File> {
        match self.0.remove(path) {
            Some(file) => lock_alone(file, path),
            None => lock_alone(open(path).ok().flatten()?, path),
        }
    }

    pub(super) fn into_files(self) -> Vec<File> {
        self.0.into_values().collect()
    }
}

/// Holds whatever at these names may be a placeholder. `None` when one was removed meanwhile.
pub(super) fn all(
    names: &[ReservedName],
    existing: &[PathBuf],
    placeholders: &[PathBuf],
) -> io::Result<Option<HeldFiles>> {
    let mut held = HeldFiles::default();
    for path in placeholders {
        match shared(path)? {
            Some(file) => _ = held.0.insert(path.clone(), file),
            None => return Ok(None),
        }
    }
    for path in existing {
        let content = names.iter().find(|name| name.path == *path).map(|name| &name.content);
        // Runs remove placeholders only.
        if !is_unchanged(path, content.unwrap_or(&PlaceholderContent::Folder)) {
            continue;
        }
        match shared(path)? {
            Some(file) => _ = held.0.insert(path.clone(), file),
            None => return Ok(None),
        }
    }
    Ok(Some(held))
}

/// A shared lock at the file or folder of this name; `None` when it is gone, or just being removed.
fn shared(path: &Path) -> io::Result<Option<File>> {
    let Some(file) = open(path)? else { return Ok(None) };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(is_at(&file, path).then_some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// An exclusive lock at an open file or folder, if no other run holds it and it still has this name.
fn lock_alone(file: File, path: &Path) -> Option<File> {
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
    is_at(&file, path).then_some(file)
}

/// Whether another run relies on an empty folder of this name.
pub(super) fn is_held(path: &Path) -> bool {
    is_unchanged(path, &PlaceholderContent::Folder) && HeldFiles::default().take_alone(path).is_none()
}

fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => Ok(Some(File::from(file))),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether this open file still has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Keeps locks for a process that outlives its run, for as long as both live: a lock cannot be given away.
pub(super) fn transfer_to(held: Vec<File>, pid: u32) {
    static TRANSFERRED: Mutex<BTreeMap<(u32, u64), Vec<File>>> = Mutex::new(BTreeMap::new());
    let mut transferred = TRANSFERRED.lock().unwrap_or_else(PoisonError::into_inner);
    transferred.retain(|(pid, started), _| process_start(*pid) == Some(*started));
    if let Some(started) = process_start(pid) {
        transferred.entry((pid, started)).or_default().extend(held);
    }
}
