//! Locks across processes.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use fs_err::os::unix::fs::OpenOptionsExt;

/// A lock on a file, held until dropped. Advisory, across processes.
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Waits for the lock on `path`, making the lock file if needed.
    ///
    /// # Errors
    /// When the file cannot be made or locked.
    pub fn acquire(path: &Path) -> io::Result<Self> {
        let file = Self::open(path)?;
        file.lock()?;
        Ok(Self { file })
    }

    /// Waits for a share of the lock on `path`: many processes may hold one while none holds it exclusively.
    ///
    /// # Errors
    /// When the file cannot be made or locked.
    pub fn acquire_shared(path: &Path) -> io::Result<Self> {
        let file = Self::open(path)?;
        file.lock_shared()?;
        Ok(Self { file })
    }

    /// Whether the file that is locked is still the one at `path`.
    #[must_use]
    pub fn is_at(&self, path: &Path) -> bool {
        match (self.file.metadata(), fs_err::metadata(path)) {
            (Ok(own), Ok(there)) => (own.dev(), own.ino()) == (there.dev(), there.ino()),
            _ => false,
        }
    }

    /// Waits for the lock on the folder `path` itself, which leaves no lock file behind.
    ///
    /// # Errors
    /// When the folder is not there or cannot be locked.
    pub fn acquire_dir(path: &Path) -> io::Result<Self> {
        let folder = fs_err::File::open(path)?.into_parts().0;
        folder.lock()?;
        Ok(Self { file: folder })
    }

    /// Takes the lock on `path` if it is free.
    ///
    /// # Errors
    /// When the file cannot be made or locked.
    pub fn try_acquire(path: &Path) -> io::Result<Option<Self>> {
        let file = Self::open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self { file })),
            Err(std::fs::TryLockError::WouldBlock) => Ok(None),
            Err(std::fs::TryLockError::Error(error)) => Err(error),
        }
    }

    fn open(path: &Path) -> io::Result<File> {
        let file = fs_err::OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)?;
        Ok(file.into_parts().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_locks_exclude_exclusive_lock() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let one = Lock::acquire_shared(&path).expect("a share");
        let other = Lock::acquire_shared(&path).expect("a share");
        assert!(Lock::try_acquire(&path).expect("asked").is_none());
        drop((one, other));
        let own = Lock::try_acquire(&path).expect("asked").expect("the lock");
        assert!(own.is_at(&path));
        crate::file::remove(&path).expect("removed");
        assert!(!own.is_at(&path));
        let _new = Lock::acquire(&path).expect("the lock of a new file");
        assert!(!own.is_at(&path));
    }
}
