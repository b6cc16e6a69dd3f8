//! Temporary folders that go with their owner: at its end, or, if it was killed, when the next one is made.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, Mode, OFlags};

use super::open_folders;

/// How many entries are looked at for folders that were left: a full folder must not make every run slow.
const MOST_ENTRIES: usize = 4096;

/// How often a folder is made anew when another process took it for a left one.
const MOST_ATTEMPTS: usize = 8;

/// A new, private folder below `parent`, removed with all that is in it when dropped.
#[derive(Debug)]
pub struct TemporaryFolder {
    folder: tempfile::TempDir,
    /// Locked for as long as the owner lives.
    held: File,
}

impl TemporaryFolder {
    /// Makes one, its name beginning with `prefix`; first removes those of this prefix whose owner was killed.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(parent: &Path, prefix: &str) -> io::Result<Self> {
        remove_left(parent, prefix);
        for _ in 0..MOST_ATTEMPTS {
            let permissions = Permissions::from_mode(0o700);
            let folder =
                tempfile::Builder::new().prefix(prefix).permissions(permissions).tempdir_in(parent)?;
            let Ok(held) = open(folder.path()) else { continue };
            held.lock()?;
            // Before the lock was held, another process may have removed it.
            if is_same(&held, folder.path()) {
                return Ok(Self { folder, held });
            }
        }
        Err(io::Error::other("other processes remove temporary folders as they are made"))
    }

    /// A new file in it, for this user alone, to be written piece by piece.
    ///
    /// # Errors
    /// When there is one already, or the system refuses.
    pub fn new_file(&self, name: &str) -> io::Result<File> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).open(self.path().join(name))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A tool may have closed folders of its own; what cannot be removed is left to the next one.
        let _ = open_folders(self.folder.path());
    }
}

/// Temporary folders of a process that needs one after the other: one that was left empty serves again.
#[derive(Clone, Debug, Default)]
pub struct TemporaryFolders {
    most: usize,
    kept: Arc<Mutex<Vec<TemporaryFolder>>>,
}

impl TemporaryFolders {
    /// Keeps this many; the default keeps none. What is kept is removed with the last clone of this.
    #[must_use]
    pub fn keeping(most: usize) -> Self {
        Self { most, kept: Arc::default() }
    }

    /// An empty one below `parent`, its name beginning with `prefix`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn take(&self, parent: &Path, prefix: &str) -> io::Result<TemporaryFolder> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match kept {
            Some(folder) if folder.path().parent() == Some(parent) && folder.is_as_new() => Ok(folder),
            _ => TemporaryFolder::new(parent, prefix),
        }
    }

    /// Takes back one that nobody uses any more.
    pub fn give_back(&self, folder: TemporaryFolder) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < self.most && folder.is_as_new() {
            kept.push(folder);
        }
    }
}

impl TemporaryFolder {
    /// Whether it is where it was, private and empty.
    fn is_as_new(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let is_private =
            self.held.metadata().is_ok_and(|facts| facts.mode() & 0o7777 == 0o700 && facts.uid() == own);
        let is_empty = || fs_err::read_dir(self.path()).is_ok_and(|mut entries| entries.next().is_none());
        is_private && is_same(&self.held, self.path()) && is_empty()
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
}

fn is_same(held: &File, path: &Path) -> bool {
    let place = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (held, there) = (held.metadata().map(place), path.symlink_metadata().map(place));
    matches!((held, there), (Ok(held), Ok(there)) if held == there)
}

/// Removes this user's folders of the prefix that nobody holds. What cannot be removed stays: it harms nobody.
fn remove_left(parent: &Path, prefix: &str) {
    let Ok(entries) = fs_err::read_dir(parent) else { return };
    let own = rustix::process::geteuid().as_raw();
    for entry in entries.take(MOST_ENTRIES).flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let path = entry.path();
        let Ok(folder) = open(&path) else { continue };
        let is_own = folder.metadata().is_ok_and(|metadata| metadata.uid() == own);
        if is_own && folder.try_lock().is_ok() && is_same(&folder, &path) {
            let _ = super::remove_tree(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_stays_and_what_was_left_goes() {
        let parent = tempfile::tempdir().expect("a folder");
        let held = TemporaryFolder::new(parent.path(), "run-").expect("made");
        for left in ["run-left/inner", "other"] {
            std::fs::create_dir_all(parent.path().join(left)).expect("folders");
        }
        crate::file::write_atomic(&parent.path().join("run-file"), b"x", crate::file::Mode::Kept)
            .expect("a file");
        std::os::unix::fs::symlink("other", parent.path().join("run-link")).expect("a link");
        drop(TemporaryFolder::new(parent.path(), "run-").expect("made"));
        let mut there: Vec<_> = std::fs::read_dir(parent.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        there.sort();
        let mut expected: Vec<_> =
            ["other", "run-file", "run-link"].map(|name| parent.path().join(name)).into();
        expected.push(held.path().to_owned());
        expected.sort();
        assert_eq!(there, expected);
        let path = held.path().to_owned();
        drop(held);
        assert!(!path.exists());
    }

    #[test]
    fn an_empty_folder_serves_again_and_a_used_or_opened_one_does_not() {
        let parent = tempfile::tempdir().expect("a folder");
        let folders = TemporaryFolders::keeping(1);
        let take = || folders.take(parent.path(), "run-").expect("made");
        let (first, second) = (take(), take());
        let path = first.path().to_owned();
        folders.give_back(first);
        folders.give_back(second);
        let again = take();
        assert_eq!(again.path(), path);
        std::fs::create_dir(path.join("left")).expect("a folder");
        folders.give_back(again);
        assert!(!path.exists());
        let open = take();
        let path = open.path().to_owned();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("changed");
        folders.give_back(open);
        assert!(!path.exists());
        folders.give_back(take());
        drop(folders);
        assert_eq!(std::fs::read_dir(parent.path()).expect("the folder").count(), 0);
    }
}
