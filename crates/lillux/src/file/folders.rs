//! Folders inside one that others may have filled, such as a cloned project: reached name by name, and a link is refused
//! wherever it leads. What is written or removed there stays there.

use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

use crate::dir::{Dir, DirEntryKind, DirError};

/// A link where only a folder of the same place may be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is a link, and nothing is written or removed through links there", path.display())]
pub struct LinkedFolder {
    /// The link.
    pub path: PathBuf,
}

impl LinkedFolder {
    /// The link that an error is about, if it is about one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

/// Whether a missing folder is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    Fail,
    Make { is_private: bool },
}

/// Makes the folder `relative` below `root` where it is missing, and opens it. `root` may be reached through links,
/// nothing below it.
///
/// # Errors
/// [`LinkedFolder`] for a link on the way; otherwise when the system refuses.
pub fn make_folders_beneath(root: &Path, relative: &Path, is_private: bool) -> io::Result<Dir> {
    walk(root, relative, Missing::Make { is_private })
}

/// As [`make_folders_beneath`], for what needs only the path.
///
/// # Errors
/// As [`make_folders_beneath`].
pub fn create_folders_beneath(root: &Path, relative: &Path, is_private: bool) -> io::Result<PathBuf> {
    make_folders_beneath(root, relative, is_private).map(|_| root.join(relative))
}

/// Opens the folder `relative` below `root` if it is there, following no link below `root`.
///
/// # Errors
/// As [`make_folders_beneath`].
pub fn folder_beneath(root: &Path, relative: &Path) -> io::Result<Option<Dir>> {
    match walk(root, relative, Missing::Fail) {
        Ok(folder) => Ok(Some(folder)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes the file or link `relative` below `root`, following no link on the way. One that is not there is no error.
///
/// # Errors
/// As [`make_folders_beneath`].
pub fn remove_beneath(root: &Path, relative: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    match folder_beneath(root, parent)? {
        Some(folder) => folder.remove(name).map_err(plain),
        None => Ok(()),
    }
}

fn walk(root: &Path, relative: &Path, missing: Missing) -> io::Result<Dir> {
    let mut folder = Dir::open(root).map_err(plain)?;
    let mut path = root.to_owned();
    for part in relative.components() {
        let name = match part {
            Component::Normal(name) => name,
            Component::CurDir => continue,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(io::Error::from(io::ErrorKind::InvalidInput));
            }
        };
        path.push(name);
        folder = step(&folder, name, &path, missing)?;
    }
    Ok(folder)
}

fn step(folder: &Dir, name: &OsStr, path: &Path, missing: Missing) -> io::Result<Dir> {
    let opened = match missing {
        Missing::Fail => folder.open_child_dir(name),
        Missing::Make { is_private: false } => folder.create_own_dir(name),
        Missing::Make { is_private: true } => folder.create_private_dir(name),
    };
    opened.map_err(|error| {
        let is_link = folder
            .status(name)
            .is_ok_and(|found| found.is_some_and(|found| found.kind == DirEntryKind::Symlink));
        if is_link { io::Error::other(LinkedFolder { path: path.to_owned() }) } else { plain(error) }
    })
}

fn plain(error: DirError) -> io::Error {
    match &error {
        DirError::Io { source, .. } => io::Error::new(source.kind(), error.to_string()),
        DirError::Escapes { .. } | DirError::NotAFile { .. } | DirError::Moved { .. } => {
            io::Error::other(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{FileMode, write_atomic};

    #[test]
    fn links_below_a_folder_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        for made in [root.join("inner"), outside.clone()] {
            std::fs::create_dir_all(made).expect("folders");
        }
        write_atomic(&outside.join("kept"), b"1", FileMode::Preserve).expect("a file");
        for (name, target) in
            [("out", outside.as_path()), ("in", Path::new("inner")), ("gone", Path::new("none"))]
        {
            std::os::unix::fs::symlink(target, root.join(name)).expect("a link");
            for relative in [name.to_owned(), format!("{name}/deeper")] {
                let made = create_folders_beneath(&root, Path::new(&relative), true);
                let refused = made.expect_err("a link is refused");
                assert_eq!(LinkedFolder::of(&refused).map(|link| link.path.clone()), Some(root.join(name)));
                assert!(folder_beneath(&root, Path::new(&relative)).is_err(), "{relative}");
            }
        }
        assert!(remove_beneath(&root, Path::new("out/kept")).is_err());
        assert!(outside.join("kept").exists() && !outside.join("deeper").exists());
        assert!(!root.join("inner/deeper").exists());
        for wrong in ["../outside", "/tmp", "a/../../b"] {
            assert!(create_folders_beneath(&root, Path::new(wrong), false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn folders_below_a_linked_root_are_made() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("real")).expect("a folder");
        let root = folder.path().join("link");
        std::os::unix::fs::symlink("real", &root).expect("a link");
        let made = create_folders_beneath(&root, Path::new("a/b"), true).expect("made");
        assert_eq!(made, root.join("a/b"));
        let mode = std::fs::metadata(&made).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert!(folder_beneath(&root, Path::new("a/c")).expect("asked").is_none());
        remove_beneath(&root, Path::new("a/none")).expect("nothing to remove");
    }
}
