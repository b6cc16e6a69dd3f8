//! Folders that their owner may not enter, made accessible again.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{Mode as Bits, OFlags};
use rustix::io::Errno;

use super::{DIR_FLAGS, Dir, DirError};

/// The owner may read, write and enter a folder.
pub(super) const OWNER_BITS: u32 = 0o700;

/// Changes the mode of an open folder: by its descriptor, so that what was looked at is what is changed.
pub(super) fn change_mode(folder: &OwnedFd, mode: u32) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
    rustix::fs::chmod(path.as_str(), Bits::from_raw_mode(mode))
}

impl Dir {
    /// Opens the folder `relative` name by name: its path may be longer than the system takes. No link is followed.
    ///
    /// # Errors
    /// When a part is missing or not a folder.
    pub fn open_deep_dir(&self, relative: &Path) -> Result<Self, DirError> {
        let path = self.path.join(relative);
        let failed = |error: io::Error| DirError::io("open the folder", &path, error);
        let mut descriptor = self.descriptor.try_clone().map_err(failed)?;
        for component in relative.components() {
            let Component::Normal(name) = component else {
                return Err(failed(io::ErrorKind::InvalidInput.into()));
            };
            descriptor =
                rustix::fs::openat(&descriptor, name, DIR_FLAGS.union(OFlags::NOFOLLOW), Bits::empty())
                    .map_err(|error| failed(error.into()))?;
        }
        Ok(Self { descriptor, path })
    }

    /// Lets the user read, write and enter every folder from here down to `relative`. Links are not followed.
    ///
    /// # Errors
    /// When a part is not a folder, or belongs to another user.
    pub fn make_accessible(&self, relative: &Path) -> Result<(), DirError> {
        let mut folder =
            self.descriptor.try_clone().map_err(|error| DirError::io("open", &self.path, error))?;
        for component in relative.components() {
            let failed = |error: io::Error| DirError::io("open", &self.path.join(relative), error);
            let Component::Normal(name) = component else {
                return Err(failed(io::ErrorKind::InvalidInput.into()));
            };
            let flags = DIR_FLAGS.union(OFlags::NOFOLLOW);
            folder = rustix::fs::openat(&folder, name, flags, Bits::empty())
                .map_err(|error| failed(error.into()))?;
            let mode = rustix::fs::fstat(&folder).map_err(|error| failed(error.into()))?.st_mode;
            if mode & OWNER_BITS != OWNER_BITS {
                change_mode(&folder, mode & 0o7777 | OWNER_BITS).map_err(|error| failed(error.into()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn folders_are_accessible_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let (outer, inner) = (folder.path().join("a"), folder.path().join("a/b"));
        std::fs::create_dir_all(&inner).expect("folders");
        let mode = |path: &Path| path.symlink_metadata().expect("a folder").permissions().mode() & 0o777;
        for path in [&inner, &outer] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o500)).expect("set");
        }
        let root = Dir::open(folder.path()).expect("a folder");
        root.make_accessible(Path::new("a/b")).expect("made");
        assert_eq!((mode(&outer), mode(&inner)), (0o700, 0o700));
        symlink("b", outer.join("link")).expect("a link");
        assert!(root.make_accessible(Path::new("a/link")).is_err());
        assert!(root.make_accessible(Path::new("../x")).is_err());
    }
}
