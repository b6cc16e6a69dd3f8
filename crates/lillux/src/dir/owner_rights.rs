//! What the owner of folders may do in them, remembered so that a run cannot leave them closed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode as Bits, OFlags};
use rustix::io::Errno;

use super::DIR_FLAGS;
use super::access::{OWNER_BITS, change_mode};

/// The owner's rights in folders.
#[derive(Debug, Default)]
pub struct OwnerRights {
    /// Outer ones first: they lead to the others.
    folders: BTreeMap<PathBuf, FolderRights>,
}

#[derive(Clone, Copy, Debug)]
struct FolderRights {
    id: (u64, u64),
    bits: u32,
}

impl OwnerRights {
    /// The rights in all folders above these paths, which are real ones, as they are now.
    pub fn above<'a>(paths: impl IntoIterator<Item = &'a Path>) -> Self {
        let mut folders = BTreeMap::new();
        for path in paths {
            for folder in path.ancestors().skip(1) {
                if folders.contains_key(folder) {
                    break;
                }
                if let Ok(stat) = rustix::fs::lstat(folder) {
                    let rights =
                        FolderRights { id: (stat.st_dev, stat.st_ino), bits: stat.st_mode & OWNER_BITS };
                    folders.insert(folder.to_owned(), rights);
                }
            }
        }
        Self { folders }
    }

    /// Gives the owner the rights back that are gone. What became another folder stays as it is.
    pub fn restore(&self) {
        for (path, rights) in &self.folders {
            // A folder of another user cannot be changed by a run either.
            let _ = rights.restore(path);
        }
    }
}

impl FolderRights {
    fn restore(self, path: &Path) -> Result<(), Errno> {
        let stat = rustix::fs::lstat(path)?;
        if (stat.st_dev, stat.st_ino) != self.id || stat.st_mode & self.bits == self.bits {
            return Ok(());
        }
        let folder = rustix::fs::openat(CWD, path, DIR_FLAGS | OFlags::NOFOLLOW, Bits::empty())?;
        let stat = rustix::fs::fstat(&folder)?;
        if (stat.st_dev, stat.st_ino) == self.id {
            change_mode(&folder, stat.st_mode & 0o7777 | self.bits)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn rights_taken_away_are_given_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a real path");
        let paths = ["outer", "outer/inner", "outer/closed", "outer/other"].map(|name| root.join(name));
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        let mode = |path: &Path| path.symlink_metadata().expect("there").permissions().mode() & 0o777;
        for (path, bits) in paths.iter().zip([0o750, 0o755, 0o500, 0o755]) {
            std::fs::create_dir(path).expect("a folder");
            set(path, bits);
        }
        let names: Vec<PathBuf> = paths.iter().map(|path| path.join("name")).collect();
        let rights = OwnerRights::above(names.iter().map(PathBuf::as_path));
        std::fs::remove_dir(&paths[3]).expect("removed");
        std::fs::create_dir(root.join("new")).expect("a folder");
        std::os::unix::fs::symlink(root.join("new"), &paths[3]).expect("a link");
        for path in [&paths[1], &paths[2], &root.join("new"), &paths[0]] {
            set(path, 0o000);
        }
        rights.restore();
        assert_eq!([0, 1, 2].map(|at| mode(&paths[at])), [0o700, 0o700, 0o500]);
        assert_eq!(mode(&root.join("new")), 0o000);
    }
}
