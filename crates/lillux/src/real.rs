//! Where paths really are: links followed as far as a path exists. Many paths share their folders, so each folder is
//! looked at once.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

/// Follows links as far as `path` exists.
#[must_use]
pub fn real(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(found), _, _) => found,
        (Err(_), Some(parent), Some(name)) => real(parent).join(name),
        (Err(_), _, _) => path.to_owned(),
    }
}

/// [`real`] for many paths at one moment: what was seen of a folder once is not looked at again.
#[derive(Debug, Default)]
pub struct RealPaths {
    /// Few enough that looking through them is faster than hashing.
    folders: Vec<(PathBuf, Place)>,
}

/// Where a path leads, and whether something is there.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    exists: bool,
}

impl RealPaths {
    /// Follows links as far as `path` exists.
    pub fn real(&mut self, path: &Path) -> PathBuf {
        let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if is_plain => self.below(parent, name).path,
            (_, _) => real(path),
        }
    }

    /// Follows links, if something is there.
    pub fn existing(&mut self, path: &Path) -> Option<PathBuf> {
        let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if is_plain => {
                let place = self.below(parent, name);
                place.exists.then_some(place.path)
            }
            (_, _) => path.canonicalize().ok(),
        }
    }

    fn below(&mut self, parent: &Path, name: &OsStr) -> Place {
        let above = self.folder(parent);
        let own = above.path.join(name);
        if above.exists { look(own) } else { Place { path: own, exists: false } }
    }

    fn folder(&mut self, path: &Path) -> &Place {
        let known = self.folders.iter().position(|(known, _)| known.as_os_str() == path.as_os_str());
        let index = known.unwrap_or_else(|| {
            let place = match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => self.below(parent, name),
                (_, _) => Place { path: path.to_owned(), exists: true },
            };
            self.folders.push((path.to_owned(), place));
            self.folders.len() - 1
        });
        &self.folders[index].1
    }
}

/// Looks at a path whose folder is real and exists.
fn look(path: PathBuf) -> Place {
    match rustix::fs::readlink(&path, Vec::new()) {
        // It is no link.
        Err(Errno::INVAL) => Place { path, exists: true },
        Err(_) => Place { path, exists: false },
        Ok(_) => match path.canonicalize() {
            Ok(found) => Place { path: found, exists: true },
            // A link that leads nowhere.
            Err(_) => Place { path, exists: false },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    fn world() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        std::fs::create_dir_all(root.join("a/b/c")).expect("folders");
        let file = root.join("a/file");
        crate::file::write_atomic(&file, b"", crate::file::Mode::Kept).expect("a file");
        symlink("b", root.join("a/link")).expect("a link");
        symlink(root.join("a/b"), root.join("l")).expect("a link");
        symlink("nowhere", root.join("a/b/dangling")).expect("a link");
        symlink("loop", root.join("loop")).expect("a link");
        symlink("../..", root.join("a/b/up")).expect("a link");
        (folder, root)
    }

    proptest! {
        #[test]
        fn many_paths_are_where_each_alone_is(
            paths in prop::collection::vec(
                prop::collection::vec(
                    prop::sample::select(vec!["a", "b", "c", "file", "link", "l", "dangling", "loop", "up", "x", ".", ".."]),
                    0..6,
                ),
                1..12,
            )
        ) {
            let (_folder, root) = world();
            let mut all = RealPaths::default();
            for parts in paths {
                let path = parts.iter().fold(root.clone(), |path, part| path.join(part));
                prop_assert_eq!(all.real(&path), real(&path), "{}", path.display());
            }
        }
    }

    #[test]
    fn what_is_not_there_is_below_what_is() {
        let (_folder, root) = world();
        let real_root = root.canonicalize().expect("real");
        let mut all = RealPaths::default();
        assert_eq!(all.real(&root.join("l/x/y")), real_root.join("a/b/x/y"));
        assert_eq!(all.real(&root.join("a/b/dangling/x")), real_root.join("a/b/dangling/x"));
        assert_eq!(all.real(Path::new("/")), Path::new("/"));
    }
}
