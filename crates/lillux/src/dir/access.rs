//! Permissions beneath a held folder: what was opened is what is changed, and links are not followed.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode as Bits, OFlags};
use rustix::io::Errno;

use super::{DIR_FLAGS, Dir, DirError};

/// The owner may read, write and enter a folder.
pub(super) const OWNER_BITS: u32 = 0o700;

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
                change_mode(&folder, mode | OWNER_BITS).map_err(|error| failed(error.into()))?;
            }
        }
        Ok(())
    }

    /// Sets the permission bits of the regular file of that name in this folder. A link is refused.
    ///
    /// # Errors
    /// When it is missing, not a regular file, or belongs to another user.
    pub fn set_file_mode(&self, name: &OsStr, bits: u32) -> Result<(), DirError> {
        let path = self.join(name)?;
        let failed = |error: io::Error| DirError::io("change the mode of", &path, error);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.descriptor, name, flags, Bits::empty())
            .map_err(|error| failed(error.into()))?;
        let mode = rustix::fs::fstat(&file).map_err(|error| failed(error.into()))?.st_mode;
        if FileType::from_raw_mode(mode) != FileType::RegularFile {
            return Err(DirError::NotAFile { path });
        }
        change_mode(&file, bits).map_err(|error| failed(error.into()))
    }
}

/// Changes the mode of what a descriptor stands for: what was looked at is what is changed.
pub(super) fn change_mode(descriptor: &OwnedFd, mode: u32) -> Result<(), Errno> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    rustix::fs::chmod(path.as_str(), Bits::from_raw_mode(mode & 0o7777))
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
    #[test]
    fn file_modes_are_not_set_through_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let (inside, outside) = (folder.path().join("in"), folder.path().join("out"));
        for path in [&inside, &outside] {
            std::fs::create_dir(path).expect("a folder");
            crate::file::write_atomic(&path.join("a"), b"1", crate::file::FileMode::Private).expect("a file");
        }
        symlink("../out/a", inside.join("link")).expect("a link");
        let dir = Dir::open(&inside).expect("the folder");
        let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
        dir.set_file_mode(OsStr::new("a"), 0o755).expect("set");
        for name in ["link", "../out/a", "none", "."] {
            assert!(dir.set_file_mode(OsStr::new(name), 0o777).is_err(), "{name}");
        }
        assert_eq!((mode(&inside.join("a")), mode(&outside.join("a"))), (0o755, 0o600));
    }
}
