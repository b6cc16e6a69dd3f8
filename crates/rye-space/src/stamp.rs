//! Noticing change: what a file or folder looked like when it was read, and whether it still does.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Size and times of a file; another stamp means another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: i64,
    /// Modification time in nanoseconds.
    pub modified: i64,
    /// Change time in nanoseconds: catches an edit that puts the modification time back.
    pub changed: i64,
}

impl Stamp {
    /// The stamp of a file with this metadata.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Self {
            size: i64::try_from(metadata.size()).unwrap_or(i64::MAX),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The paths something was made from, absent ones included: a new file that would shadow another is noticed too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched(BTreeMap<PathBuf, Option<Look>>);

/// How a file or folder looks, and which one it is: another one may have been made at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    stamp: Stamp,
    device: u64,
    number: u64,
}

impl Watched {
    /// Remembers how `path` looks now. Of what is not there, the first folder on the way that is not there says enough,
    /// for any number of paths below it.
    pub fn add(&mut self, mut path: PathBuf) {
        let seen = look(&path);
        if seen.is_none() {
            // The folder above a relative name has no name, and is there.
            let is_absent = |above: &Path| !above.as_os_str().is_empty() && look(above).is_none();
            while path.parent().is_some_and(is_absent) {
                path.pop();
            }
        }
        // What was seen first counts: whatever came after it is a change.
        self.0.entry(path).or_insert(seen);
    }

    /// Whether there was something at `path`; of a path that was not added, there was not.
    #[must_use]
    pub fn was_there(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(Option::is_some)
    }

    /// Whether every path still looks as it did.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.0.iter().all(|(path, seen)| look(path) == *seen)
    }

    /// Whether every file was last changed well before `now`, in nanoseconds since 1970. Only then will a change to come
    /// have another stamp for certain: the times of files are as coarse as the system's ticks, or as their file system.
    #[must_use]
    pub fn is_settled(&self, now: i64) -> bool {
        let settles = |changed: i64| match changed % SECOND {
            0 => 3 * SECOND,
            _ => SECOND / 10,
        };
        let mut changes = self.0.values().flatten().map(|seen| seen.stamp.changed);
        changes.all(|changed| changed < now.saturating_sub(settles(changed)))
    }
}

/// In nanoseconds. Some file systems know the time to one or two of them, the others to a tick of a hundredth at most.
const SECOND: i64 = 1_000_000_000;

fn look(path: &Path) -> Option<Look> {
    let metadata = fs_err::metadata(path).ok()?;
    Some(Look { stamp: Stamp::of(&metadata), device: metadata.dev(), number: metadata.ino() })
}

#[cfg(test)]
mod tests {
    use lillux::file::{self, Mode};

    use super::*;

    fn put(path: &Path, text: &str) {
        file::write_atomic(path, text.as_bytes(), Mode::Kept).expect("a file");
    }

    fn watched(paths: &[PathBuf]) -> Watched {
        let mut watched = Watched::default();
        paths.iter().for_each(|path| watched.add(path.clone()));
        watched
    }

    #[test]
    fn a_file_that_comes_changes_or_goes_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b/c");
        let before = watched(&[path.clone(), folder.path().join("a/x"), folder.path().join("a")]);
        assert!(before.is_unchanged());
        file::create_folders(&folder.path().join("a/b"), false).expect("folders");
        assert!(!before.is_unchanged());
        let before = watched(std::slice::from_ref(&path));
        put(&path, "one");
        assert!(!before.is_unchanged());
        let before = watched(std::slice::from_ref(&path));
        assert!(before.is_unchanged());
        put(&path, "longer");
        assert!(!before.is_unchanged());
        let before = watched(std::slice::from_ref(&path));
        file::remove_tree(&folder.path().join("a")).expect("removed");
        assert!(!before.is_unchanged());
    }

    #[test]
    fn many_absent_files_are_one_look() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["a/b.yaml", "a/b.yml", "a/c/d"].map(|name| folder.path().join(name));
        assert_eq!(watched(&paths).0.into_keys().collect::<Vec<_>>(), [folder.path().join("a")]);
    }

    #[test]
    fn only_what_changed_a_while_ago_is_settled() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert!(watched(std::slice::from_ref(&path)).is_settled(0), "nothing is there");
        put(&path, "one");
        let mut seen = look(&path).expect("a file");
        for (changed, settles) in [(7 * SECOND + 1, SECOND / 10), (7 * SECOND, 3 * SECOND)] {
            seen.stamp.changed = changed;
            let watched = Watched(BTreeMap::from([(path.clone(), Some(seen))]));
            assert!(!watched.is_settled(changed) && !watched.is_settled(changed + settles));
            assert!(watched.is_settled(changed + settles + 1));
        }
    }
}
