//! Where paths really are: links followed as far as a path exists. Many paths share their folders, so each folder is
//! looked at once.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use rustix::io::Errno;

/// Follows links as far as `path` exists.
#[must_use]
pub fn canonicalize_existing(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(found), _, _) => found,
        (Err(_), Some(parent), Some(name)) => canonicalize_existing(parent).join(name),
        (Err(_), _, _) => path.to_owned(),
    }
}

/// [`canonicalize_existing`] for many paths at one moment: each folder is resolved once.
#[derive(Debug, Default)]
pub struct CanonicalPathCache {
    /// Few enough that looking through them is faster than hashing.
    dirs: Vec<(PathBuf, ResolvedPath)>,
    /// What was looked at, for a caller that wants to know.
    recorded: Option<RecordedEntries>,
}

/// What is at a path whose folder is real.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryKind {
    Missing,
    Link,
    /// A file, a folder, or the like.
    Real,
}

/// The entries of real folders that were looked at.
#[derive(Debug, Default)]
struct RecordedEntries {
    entries: Vec<(PathBuf, EntryKind)>,
    /// Whether what was found rests on more than these entries.
    is_incomplete: bool,
}

/// Where a path leads, and whether something is there.
#[derive(Clone, Debug)]
struct ResolvedPath {
    path: PathBuf,
    exists: bool,
}

impl CanonicalPathCache {
    /// One that remembers what it looked at.
    pub(crate) fn recording() -> Self {
        Self { recorded: Some(RecordedEntries::default()), ..Self::default() }
    }

    /// What was looked at, if it tells everything about the paths that [`CanonicalPathCache::canonicalize`] followed: none led
    /// through a link.
    pub(crate) fn into_entries(self) -> Option<Vec<(PathBuf, EntryKind)>> {
        self.recorded.filter(|recorded| !recorded.is_incomplete).map(|recorded| recorded.entries)
    }

    /// Follows links as far as `path` exists.
    pub fn canonicalize(&mut self, path: &Path) -> PathBuf {
        let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if is_plain => self.resolve_child(parent, name).path,
            (_, _) => {
                if let Some(recorded) = &mut self.recorded {
                    recorded.is_incomplete = true;
                }
                canonicalize_existing(path)
            }
        }
    }

    /// As [`CanonicalPathCache::canonicalize`], for a folder that many paths share: it is looked at once.
    pub fn folder(&mut self, path: &Path) -> PathBuf {
        let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
        if is_plain { self.resolve_dir(path).path.clone() } else { canonicalize_existing(path) }
    }

    /// Follows links, if something is there.
    pub fn existing(&mut self, path: &Path) -> Option<PathBuf> {
        let is_plain = path.is_absolute() && !path.components().any(|part| part == Component::ParentDir);
        match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if is_plain => {
                let place = self.resolve_child(parent, name);
                place.exists.then_some(place.path)
            }
            (_, _) => path.canonicalize().ok(),
        }
    }

    fn resolve_child(&mut self, parent: &Path, name: &OsStr) -> ResolvedPath {
        let above = self.resolve_dir(parent);
        let own = above.path.join(name);
        if !above.exists {
            return ResolvedPath { path: own, exists: false };
        }
        let kind = entry_kind(&own);
        if let Some(recorded) = &mut self.recorded {
            recorded.is_incomplete |= kind == EntryKind::Link;
            recorded.entries.push((own.clone(), kind));
        }
        match kind {
            EntryKind::Real => ResolvedPath { path: own, exists: true },
            EntryKind::Missing => ResolvedPath { path: own, exists: false },
            EntryKind::Link => match own.canonicalize() {
                Ok(found) => ResolvedPath { path: found, exists: true },
                // A link that leads nowhere.
                Err(_) => ResolvedPath { path: own, exists: false },
            },
        }
    }

    fn resolve_dir(&mut self, path: &Path) -> &ResolvedPath {
        let cached = self.dirs.iter().position(|(cached, _)| cached.as_os_str() == path.as_os_str());
        let index = cached.unwrap_or_else(|| {
            let resolved = match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => self.resolve_child(parent, name),
                (_, _) => ResolvedPath { path: path.to_owned(), exists: true },
            };
            self.dirs.push((path.to_owned(), resolved));
            self.dirs.len() - 1
        });
        &self.dirs[index].1
    }
}

/// Looks at a path whose folder is real.
pub(crate) fn entry_kind(path: &Path) -> EntryKind {
    match rustix::fs::readlink(path, Vec::new()) {
        // It is not a link.
        Err(Errno::INVAL) => EntryKind::Real,
        Err(_) => EntryKind::Missing,
        Ok(_) => EntryKind::Link,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    fn setup() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        std::fs::create_dir_all(root.join("a/b/c")).expect("folders");
        let file = root.join("a/file");
        crate::file::write_atomic(&file, b"", crate::file::FileMode::Preserve).expect("a file");
        symlink("b", root.join("a/link")).expect("a link");
        symlink(root.join("a/b"), root.join("l")).expect("a link");
        symlink("nowhere", root.join("a/b/dangling")).expect("a link");
        symlink("loop", root.join("loop")).expect("a link");
        symlink("../..", root.join("a/b/up")).expect("a link");
        (folder, root)
    }

    proptest! {
        #[test]
        fn cached_lookups_match_single_lookups(
            paths in prop::collection::vec(
                prop::collection::vec(
                    prop::sample::select(vec!["a", "b", "c", "file", "link", "l", "dangling", "loop", "up", "x", ".", ".."]),
                    0..6,
                ),
                1..12,
            )
        ) {
            let (_folder, root) = setup();
            let mut all = CanonicalPathCache::default();
            for parts in paths {
                let path = parts.iter().fold(root.clone(), |path, part| path.join(part));
                prop_assert_eq!(all.canonicalize(&path), canonicalize_existing(&path), "{}", path.display());
                prop_assert_eq!(all.folder(&path), canonicalize_existing(&path), "{}", path.display());
            }
        }
    }

    #[test]
    fn missing_parts_are_kept_verbatim() {
        let (_folder, root) = setup();
        let real_root = root.canonicalize().expect("real");
        let mut all = CanonicalPathCache::default();
        assert_eq!(all.canonicalize(&root.join("l/x/y")), real_root.join("a/b/x/y"));
        assert_eq!(all.canonicalize(&root.join("a/b/dangling/x")), real_root.join("a/b/dangling/x"));
        assert_eq!(all.canonicalize(Path::new("/")), Path::new("/"));
    }
}
