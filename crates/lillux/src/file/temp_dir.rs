//! Temporary folders that go with their owner: at its end, or, if it was killed, when the next one is made.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{CWD, Mode, OFlags};

use super::make_removable;

/// How many entries are looked at for folders that were left: a full folder must not make every run slow.
const MAX_SCANNED_ENTRIES: usize = 4096;

/// How often a folder is made again when another process took it for a leftover.
const MAX_ATTEMPTS: usize = 8;

/// A new, private folder below `parent`, removed with all that is in it when dropped.
#[derive(Debug)]
pub struct LockedTempDir {
    // In this order: the parent is only removed when it is empty.
    dir: tempfile::TempDir,
    /// Locked for as long as the owner lives.
    lock: File,
    /// The folder that was made for folders like this one, if it was.
    _parent: Option<PrivateParent>,
}

/// A folder of the user's own that holds temporary folders, removed by the last one.
#[derive(Debug)]
struct PrivateParent(PathBuf);

impl PrivateParent {
    /// Makes it, or takes the one that is there.
    fn create(path: &Path) -> io::Result<Self> {
        let mode = Mode::from_bits_retain(0o700);
        match rustix::fs::mkdir(path, mode) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        // Others may have made it first, where all may write: what is in it must not be theirs to change.
        let found = open_dir(path).and_then(|folder| Ok((folder.metadata()?, folder)));
        match found {
            Ok((facts, folder)) if facts.uid() == rustix::process::geteuid().as_raw() => {
                if facts.mode() & 0o7777 != 0o700 {
                    rustix::fs::fchmod(&folder, mode)?;
                }
                Ok(Self(path.to_owned()))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            Ok(_) | Err(_) => {
                let reason = format!("`{}` is not a folder of this user", path.display());
                Err(io::Error::new(io::ErrorKind::PermissionDenied, reason))
            }
        }
    }
}

impl Drop for PrivateParent {
    fn drop(&mut self) {
        // Another one's folder keeps it.
        let _ = rustix::fs::rmdir(&self.0);
    }
}

impl LockedTempDir {
    /// Makes one, its name beginning with `prefix`; first removes those of this prefix whose owner was killed.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new(parent: &Path, prefix: &str) -> io::Result<Self> {
        Self::create(parent, prefix, None)
    }

    /// As [`LockedTempDir::new`], in a folder that is made for such folders, for this user alone, and goes with the last one.
    ///
    /// # Errors
    /// When the system refuses, or the folder is another user's.
    pub fn in_private(parent: &Path, prefix: &str) -> io::Result<Self> {
        for _ in 0..MAX_ATTEMPTS {
            let made = PrivateParent::create(parent).and_then(|own| Self::create(parent, prefix, Some(own)));
            match made {
                // The last one has just gone, and the folder with it.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && parent.parent().is_some_and(Path::is_dir) => {}
                result => return result,
            }
        }
        Err(io::Error::other("other processes remove temporary folders as they are made"))
    }

    fn create(parent: &Path, prefix: &str, own_parent: Option<PrivateParent>) -> io::Result<Self> {
        remove_stale(parent, prefix);
        for _ in 0..MAX_ATTEMPTS {
            let permissions = Permissions::from_mode(0o700);
            let folder =
                tempfile::Builder::new().prefix(prefix).permissions(permissions).tempdir_in(parent)?;
            let Ok(lock) = open_dir(folder.path()) else { continue };
            lock.lock()?;
            // Before the lock was held, another process may have removed it.
            if is_same_dir(&lock, folder.path()) {
                return Ok(Self { dir: folder, lock, _parent: own_parent });
            }
        }
        Err(io::Error::other("other processes remove temporary folders as they are made"))
    }

    /// A new file in it, for this user alone, to be written piece by piece.
    ///
    /// # Errors
    /// When there is one already, or the system refuses.
    pub fn create_file(&self, name: &str) -> io::Result<File> {
        let mut options = std::fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).open(self.path().join(name))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for LockedTempDir {
    fn drop(&mut self) {
        // A tool may have closed folders of its own; what cannot be removed is left to the next one.
        let _ = make_removable(self.dir.path());
    }
}

/// Temporary folders of a process that needs one after the other: one that was left empty serves again.
#[derive(Clone, Debug, Default)]
pub struct TempDirPool {
    capacity: usize,
    idle: Arc<Mutex<Vec<LockedTempDir>>>,
}

impl TempDirPool {
    /// Keeps this many; the default keeps none. What is kept is removed with the last clone of this.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { capacity, idle: Arc::default() }
    }

    /// An empty one in the private folder `parent` ([`LockedTempDir::in_private`]), its name beginning with `prefix`.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn acquire(&self, parent: &Path, prefix: &str) -> io::Result<LockedTempDir> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(folder) if folder.path().parent() == Some(parent) && folder.is_pristine() => Ok(folder),
            _ => LockedTempDir::in_private(parent, prefix),
        }
    }

    /// Reuses one that is no longer in use.
    pub fn release(&self, folder: LockedTempDir) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < self.capacity && folder.is_pristine() {
            idle.push(folder);
        }
    }
}

impl LockedTempDir {
    /// Whether it is where it was, private and empty.
    fn is_pristine(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        let is_private =
            self.lock.metadata().is_ok_and(|facts| facts.mode() & 0o7777 == 0o700 && facts.uid() == own);
        let is_empty = || fs_err::read_dir(self.path()).is_ok_and(|mut entries| entries.next().is_none());
        is_private && is_same_dir(&self.lock, self.path()) && is_empty()
    }
}

fn open_dir(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(CWD, path, flags, Mode::empty())?))
}

fn is_same_dir(lock: &File, path: &Path) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let (lock, there) = (lock.metadata().map(identity), path.symlink_metadata().map(identity));
    matches!((lock, there), (Ok(lock), Ok(there)) if lock == there)
}

/// Removes this user's folders of the prefix that are not in use. Folders that cannot be removed are left: they do no harm.
fn remove_stale(parent: &Path, prefix: &str) {
    let Ok(entries) = fs_err::read_dir(parent) else { return };
    let own = rustix::process::geteuid().as_raw();
    for entry in entries.take(MAX_SCANNED_ENTRIES).flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let path = entry.path();
        let Ok(folder) = open_dir(&path) else { continue };
        let is_own = folder.metadata().is_ok_and(|metadata| metadata.uid() == own);
        if is_own && folder.try_lock().is_ok() && is_same_dir(&folder, &path) {
            let _ = super::remove_tree(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_dirs_stay_and_stale_ones_go() {
        let parent = tempfile::tempdir().expect("a folder");
        let locked = LockedTempDir::new(parent.path(), "run-").expect("made");
        for left in ["run-left/inner", "other"] {
            std::fs::create_dir_all(parent.path().join(left)).expect("folders");
        }
        crate::file::write_atomic(&parent.path().join("run-file"), b"x", crate::file::FileMode::Preserve)
            .expect("a file");
        std::os::unix::fs::symlink("other", parent.path().join("run-link")).expect("a link");
        drop(LockedTempDir::new(parent.path(), "run-").expect("made"));
        let mut there: Vec<_> = std::fs::read_dir(parent.path())
            .expect("the folder")
            .map(|entry| entry.expect("an entry").path())
            .collect();
        there.sort();
        let mut expected: Vec<_> =
            ["other", "run-file", "run-link"].map(|name| parent.path().join(name)).into();
        expected.push(locked.path().to_owned());
        expected.sort();
        assert_eq!(there, expected);
        let path = locked.path().to_owned();
        drop(locked);
        assert!(!path.exists());
    }

    #[test]
    fn only_pristine_dirs_are_reused() {
        let parent = tempfile::tempdir().expect("a folder");
        let own = parent.path().join("own");
        let folders = TempDirPool::with_capacity(1);
        let acquire = || folders.acquire(&own, "run-").expect("made");
        let (first, second) = (acquire(), acquire());
        let path = first.path().to_owned();
        folders.release(first);
        folders.release(second);
        let again = acquire();
        assert_eq!(again.path(), path);
        std::fs::create_dir(path.join("left")).expect("a folder");
        folders.release(again);
        assert!(!path.exists());
        let open = acquire();
        let path = open.path().to_owned();
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("changed");
        folders.release(open);
        assert!(!path.exists());
        folders.release(acquire());
        drop(folders);
        assert_eq!(std::fs::read_dir(parent.path()).expect("the folder").count(), 0);
    }

    #[test]
    fn private_parents_belong_to_the_user_alone() {
        let outer = tempfile::tempdir().expect("a folder");
        let parent = outer.path().join("own");
        std::fs::create_dir(&parent).expect("a folder");
        std::fs::set_permissions(&parent, Permissions::from_mode(0o777)).expect("changed");
        let (first, second) = (
            LockedTempDir::in_private(&parent, "run-").expect("made"),
            LockedTempDir::in_private(&parent, "run-").expect("made"),
        );
        assert_eq!(parent.metadata().expect("there").mode() & 0o7777, 0o700);
        drop(first);
        assert!(second.path().exists());
        drop(second);
        assert!(!parent.exists());
        std::os::unix::fs::symlink(outer.path(), &parent).expect("a link");
        let error = LockedTempDir::in_private(&parent, "run-").expect_err("a link is refused");
        assert!(error.to_string().contains("is not a folder of this user"), "{error}");
        let absent = outer.path().join("absent/own");
        let error = LockedTempDir::in_private(&absent, "run-").expect_err("nothing to make it in");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
