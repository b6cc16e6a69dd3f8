//! Folders that their owner may not enter, made accessible again.

use std::io;
use std::os::fd::AsRawFd;
use std::path::{Component, Path};

use rustix::fs::{Mode as Bits, OFlags};

use super::{DIR_FLAGS, Dir, DirError};

/// The owner may read, write and enter a folder.
const OWNER_BITS: u32 = 0o700;

impl Dir {
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
                // By its descriptor: what was looked at is what is changed.
                let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
                let bits = Bits::from_raw_mode(mode | OWNER_BITS);
                rustix::fs::chmod(path.as_str(), bits).map_err(|error| failed(error.into()))?;
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
