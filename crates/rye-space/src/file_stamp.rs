//! Noticing change: what a file or folder looked like when it was read, and whether it still does.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Size and times of a file; another stamp means another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    /// Bytes.
    pub size: i64,
    /// Modification time in nanoseconds.
    pub modified: i64,
    /// Change time in nanoseconds: catches an edit that puts the modification time back.
    pub changed: i64,
}

impl FileStamp {
    /// The stamp of a file with this metadata.
    #[must_use]
    pub fn from_metadata(metadata: &Metadata) -> Self {
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
pub struct WatchSet(BTreeMap<PathBuf, Option<StampEntry>>);

/// How a file or folder looks, and which one it is: another one may have been made at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StampEntry {
    stamp: FileStamp,
    device: u64,
    inode: u64,
}

impl WatchSet {
    /// Remembers how `path` looks now. Of what is not there, the first folder on the way that is not there says enough,
    /// for any number of paths below it.
    pub fn add(&mut self, mut path: PathBuf) {
        let entry = read_entry(&path);
        if entry.is_none() {
            // The folder above a relative name has no name, and is there.
            let is_absent = |above: &Path| !above.as_os_str().is_empty() && read_entry(above).is_none();
            while path.parent().is_some_and(is_absent) {
                path.pop();
            }
        }
        // What was seen first counts: whatever came after it is a change.
        self.0.entry(path).or_insert(entry);
    }

    /// Whether there was something at `path`; of a path that was not added, there was not.
    #[must_use]
    pub fn existed(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(Option::is_some)
    }

    /// Whether every path still looks as it did.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.0.iter().all(|(path, entry)| read_entry(path) == *entry)
    }

    /// Whether every file was last changed well before `now`, in nanoseconds since 1970. Only then will a change to come
    /// have another stamp for certain: the times of files are as coarse as the system's ticks, or as their file system.
    #[must_use]
    pub fn is_settled(&self, now: i64) -> bool {
        let margin = |changed: i64| match changed % NANOS_PER_SECOND {
            0 => 3 * NANOS_PER_SECOND,
            _ => NANOS_PER_SECOND / 10,
        };
        let mut changes = self.0.values().flatten().map(|entry| entry.stamp.changed);
        changes.all(|changed| changed < now.saturating_sub(margin(changed)))
    }
}

/// In nanoseconds. Some file systems know the time to one or two of them, the others to a tick of a hundredth at most.
const NANOS_PER_SECOND: i64 = 1_000_000_000;

fn read_entry(path: &Path) -> Option<StampEntry> {
    let metadata = fs_err::metadata(path).ok()?;
    Some(StampEntry {
        stamp: FileStamp::from_metadata(&metadata),
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

#[cfg(test)]
mod tests {
    use lillux::file::{self, FileMode};

    use super::*;

    fn put(path: &Path, text: &str) {
        file::write_atomic(path, text.as_bytes(), FileMode::Preserve).expect("a file");
    }

    fn watch(paths: &[PathBuf]) -> WatchSet {
        let mut watch_set = WatchSet::default();
        paths.iter().for_each(|path| watch_set.add(path.clone()));
        watch_set
    }

    #[test]
    fn created_changed_and_removed_files_are_detected() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a/b/c");
        let before = watch(&[path.clone(), folder.path().join("a/x"), folder.path().join("a")]);
        assert!(before.is_unchanged());
        file::create_dirs(&folder.path().join("a/b"), false).expect("folders");
        assert!(!before.is_unchanged());
        let before = watch(std::slice::from_ref(&path));
        put(&path, "one");
        assert!(!before.is_unchanged());
        let before = watch(std::slice::from_ref(&path));
        assert!(before.is_unchanged());
        put(&path, "longer");
        assert!(!before.is_unchanged());
        let before = watch(std::slice::from_ref(&path));
        file::remove_tree(&folder.path().join("a")).expect("removed");
        assert!(!before.is_unchanged());
    }

    #[test]
    fn absent_files_share_one_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["a/b.yaml", "a/b.yml", "a/c/d"].map(|name| folder.path().join(name));
        assert_eq!(watch(&paths).0.into_keys().collect::<Vec<_>>(), [folder.path().join("a")]);
    }

    #[test]
    fn only_old_changes_are_settled() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        assert!(watch(std::slice::from_ref(&path)).is_settled(0), "nothing is there");
        put(&path, "one");
        let mut entry = read_entry(&path).expect("a file");
        for (changed, settles) in
            [(7 * NANOS_PER_SECOND + 1, NANOS_PER_SECOND / 10), (7 * NANOS_PER_SECOND, 3 * NANOS_PER_SECOND)]
        {
            entry.stamp.changed = changed;
            let watch_set = WatchSet(BTreeMap::from([(path.clone(), Some(entry))]));
            assert!(!watch_set.is_settled(changed) && !watch_set.is_settled(changed + settles));
            assert!(watch_set.is_settled(changed + settles + 1));
        }
    }
}
