//! Noticing change: what a file or folder looked like when it was read, and whether it still does.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lillux::{ChangeMonitor, Digest, WatchedPaths};

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
pub struct WatchSet {
    /// What was read: its content counts.
    contents: BTreeMap<PathBuf, Option<StampEntry>>,
    /// Parent folders: compared by identity, owner and mode, not by their entries.
    folders: BTreeMap<PathBuf, Option<FolderEntry>>,
}

/// How a file or folder looks, and which one it is: another one may have been made at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StampEntry {
    stamp: FileStamp,
    device: u64,
    inode: u64,
}

/// Which folder a path names, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FolderEntry {
    device: u64,
    inode: u64,
    mode: u32,
    owner: u32,
    group: u32,
    /// Of a link, the device and inode of what it leads to.
    target: Option<(u64, u64)>,
}

impl WatchSet {
    /// Remembers how `path` looks now. Of what is not there, the first folder on the way that is not there says enough,
    /// for any number of paths below it.
    pub fn add(&mut self, mut path: PathBuf) {
        let entry = read_entry(&path);
        if entry.is_none() {
            path = first_missing_ancestor(path);
        }
        // What was seen first counts: whatever came after it is a change.
        self.contents.entry(path).or_insert(entry);
    }

    /// Remembers which folder `path` is now. Entries that come and go in it are ignored: a confined run creates
    /// placeholders in `.ai`.
    pub fn add_folder(&mut self, mut path: PathBuf) {
        let entry = read_folder_entry(&path);
        if entry.is_none() {
            path = first_missing_ancestor(path);
        }
        self.folders.entry(path).or_insert(entry);
    }

    /// Remembers how each of these looks now.
    pub fn extend(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        paths.into_iter().for_each(|path| self.add(path));
    }

    /// Whether there was something at `path`; of a path that was not added, there was not.
    #[must_use]
    pub fn existed(&self, path: &Path) -> bool {
        self.contents.get(path).is_some_and(Option::is_some)
    }

    /// Adds what another set holds. What was seen first counts.
    pub fn merge(&mut self, other: &Self) {
        for (path, entry) in &other.contents {
            self.contents.entry(path.clone()).or_insert(*entry);
        }
        for (path, entry) in &other.folders {
            self.folders.entry(path.clone()).or_insert(*entry);
        }
    }

    /// Whether every path still looks as it did.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        record(|reads| reads.merge(self));
        self.contents.iter().all(|(path, entry)| read_entry(path) == *entry)
            && self.folders.iter().all(|(path, entry)| read_folder_entry(path) == *entry)
    }

    /// A value that two sets share if they hold the same paths, which looked the same.
    #[must_use]
    pub fn generation(&self) -> FileGeneration {
        let mut text = Vec::new();
        let mut add = |path: &Path, stamp: String| {
            for part in [path.as_os_str().as_bytes(), stamp.as_bytes()] {
                text.extend_from_slice(part);
                text.push(0);
            }
        };
        for (path, entry) in &self.contents {
            let mut stamp = String::new();
            if let Some(StampEntry { stamp: FileStamp { size, modified, changed }, device, inode }) = entry {
                // Writing to a text cannot fail.
                let _ = write!(stamp, "{size} {modified} {changed} {device} {inode}");
            }
            add(path, stamp);
        }
        for (path, entry) in &self.folders {
            add(path, entry.map_or_else(String::new, |entry| format!("{entry:?}")));
        }
        FileGeneration(Digest::of(&text))
    }

    /// Watches every path, and of what is not there the folder it would be in; `None` when one cannot be watched.
    fn monitor(&self) -> Option<WatchedPaths> {
        let paths = self.contents.iter().map(|(path, entry)| match entry {
            Some(_) => path.as_path(),
            None => path.parent().unwrap_or(path),
        });
        // What happens to a folder itself is reported for the one above it.
        let above = self.folders.keys().filter_map(|path| path.parent());
        let mut watched = ChangeMonitor::shared()?.watch(paths.chain(above))?;
        // A link that leads elsewhere now is a change of the folder it is in, which need not be readable.
        let folders: BTreeSet<&Path> = self.contents.keys().filter_map(|path| path.parent()).collect();
        for folder in folders {
            watched.add(folder);
        }
        Some(watched)
    }

    /// Whether every file was last changed well before `now`, in nanoseconds since 1970. Only then will a change to come
    /// have another stamp for certain: the times of files are as coarse as the system's ticks, or as their file system.
    #[must_use]
    pub fn is_settled(&self, now: i64) -> bool {
        let margin = |changed: i64| match changed % NANOS_PER_SECOND {
            0 => 3 * NANOS_PER_SECOND,
            _ => NANOS_PER_SECOND / 10,
        };
        let mut changes = self.contents.values().flatten().map(|entry| entry.stamp.changed);
        changes.all(|changed| changed < now.saturating_sub(margin(changed)))
    }
}

/// What something was read from, at one time: it is another one as soon as any of it has changed, come or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileGeneration(Digest);

impl std::fmt::Display for FileGeneration {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A watch set that is checked often. While the kernel reports no change of its paths they are not looked at again.
#[derive(Debug)]
pub struct MonitoredSet {
    watch_set: WatchSet,
    generation: OnceLock<FileGeneration>,
    last: Mutex<LastCheck>,
}

/// How a set was found when its paths were last looked at.
#[derive(Debug, Default)]
struct LastCheck {
    count: u32,
    watched: Option<WatchedPaths>,
    /// The monitor's count before they were looked at, and when that was.
    unchanged_at: Option<(u64, Instant)>,
}

/// How often the paths are looked at though nothing was reported: some changes are not, such as those of another
/// machine on a shared file system.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The number of checks from which on a set is watched: most processes check a set once or twice.
const MIN_CHECKS: u32 = 3;

impl MonitoredSet {
    /// The set, not watched yet.
    #[must_use]
    pub fn new(watch_set: WatchSet) -> Self {
        Self { watch_set, generation: OnceLock::new(), last: Mutex::default() }
    }

    /// The same set, checked and watched by itself.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        Self::new(self.watch_set.clone())
    }

    /// Whether every path still looks as it did.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.count = last.count.saturating_add(1);
        if last.watched.is_none() && last.count == MIN_CHECKS {
            last.watched = self.watch_set.monitor();
        }
        let monitor = last.watched.as_ref().and_then(|_| ChangeMonitor::shared());
        // Asked before the paths are looked at: a change in between is noticed next time.
        let change_count = monitor.map(ChangeMonitor::change_count);
        if let (Some(count), Some((known, at))) = (change_count, last.unchanged_at)
            && count == known
            && at.elapsed() < RECHECK_INTERVAL
        {
            record(|reads| reads.merge(&self.watch_set));
            return true;
        }
        let checked_at = Instant::now();
        let is_unchanged = self.watch_set.is_unchanged();
        last.unchanged_at = change_count.filter(|_| is_unchanged).map(|count| (count, checked_at));
        is_unchanged
    }

    /// As [`WatchSet::generation`], worked out once.
    #[must_use]
    pub fn generation(&self) -> FileGeneration {
        *self.generation.get_or_init(|| self.watch_set.generation())
    }
}

thread_local! {
    /// What the calls of [`record_reads`] under way on this thread have looked at, the innermost last.
    static RECORDINGS: RefCell<Vec<WatchSet>> = const { RefCell::new(Vec::new()) };
}

/// Removes the recordings that a panic would leave behind.
struct RecordingGuard {
    depth: usize,
}

impl Drop for RecordingGuard {
    fn drop(&mut self) {
        RECORDINGS.with_borrow_mut(|all| all.truncate(self.depth));
    }
}

/// Does something, and says which files and folders of the spaces it looked at on this thread, each as it was before:
/// what it came to holds as long as they are unchanged.
pub fn record_reads<T>(work: impl FnOnce() -> T) -> (T, WatchSet) {
    let _guard = RecordingGuard { depth: RECORDINGS.with_borrow(Vec::len) };
    RECORDINGS.with_borrow_mut(|all| all.push(WatchSet::default()));
    let result = work();
    let reads = RECORDINGS.with_borrow_mut(Vec::pop).unwrap_or_default();
    record(|outer| outer.merge(&reads));
    (result, reads)
}

/// Adds to what is being recorded, if anything is. To be called before the paths are looked at.
pub(crate) fn record(add: impl FnOnce(&mut WatchSet)) {
    RECORDINGS.with_borrow_mut(|all| {
        if let Some(reads) = all.last_mut() {
            add(reads);
        }
    });
}

/// In nanoseconds. Some file systems know the time to one or two of them, the others to a tick of a hundredth at most.
const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// The first folder on the way to an absent `path` that is not there.
fn first_missing_ancestor(mut path: PathBuf) -> PathBuf {
    // The folder above a relative name has no name, and is there.
    let is_absent = |above: &Path| !above.as_os_str().is_empty() && read_entry(above).is_none();
    while path.parent().is_some_and(is_absent) {
        path.pop();
    }
    path
}

fn read_entry(path: &Path) -> Option<StampEntry> {
    let metadata = fs_err::metadata(path).ok()?;
    Some(StampEntry {
        stamp: FileStamp::from_metadata(&metadata),
        device: metadata.dev(),
        inode: metadata.ino(),
    })
}

fn read_folder_entry(path: &Path) -> Option<FolderEntry> {
    let metadata = fs_err::symlink_metadata(path).ok()?;
    let target = metadata.is_symlink().then(|| read_entry(path)).flatten();
    Some(FolderEntry {
        device: metadata.dev(),
        inode: metadata.ino(),
        mode: metadata.mode(),
        owner: metadata.uid(),
        group: metadata.gid(),
        target: target.map(|entry| (entry.device, entry.inode)),
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
        assert_eq!(watch(&paths).contents.into_keys().collect::<Vec<_>>(), [folder.path().join("a")]);
    }

    #[test]
    fn monitored_changes_are_seen_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, absent) = (folder.path().join("file"), folder.path().join("a/b"));
        put(&path, "one");
        let generation = || watch(std::slice::from_ref(&path)).generation();
        let before = generation();
        assert_eq!(generation(), before);
        let steps: [&dyn Fn(); 3] = [
            &|| put(&path, "longer"),
            &|| file::create_dirs(&folder.path().join("a"), false).expect("a folder"),
            &|| file::remove(&path).expect("removed"),
        ];
        for change in steps {
            let monitored = MonitoredSet::new(watch(&[path.clone(), absent.clone()]));
            for _ in 0..2 * MIN_CHECKS {
                assert!(monitored.is_unchanged());
            }
            assert!(monitored.last.lock().expect("a lock").watched.is_some());
            change();
            assert!(!monitored.is_unchanged() && !monitored.is_unchanged());
        }
        assert_ne!(generation(), before);
    }

    #[test]
    fn watched_folder_may_fill_but_not_change() {
        let folder = tempfile::tempdir().expect("a folder");
        let (ai, other) = (folder.path().join("ai"), folder.path().join("other"));
        file::create_dirs(&ai, false).expect("a folder");
        let watch_folder = || {
            let mut watch_set = WatchSet::default();
            watch_set.add_folder(ai.clone());
            MonitoredSet::new(watch_set)
        };
        let before = watch_folder();
        let generation = before.generation();
        for round in 0..2 * MIN_CHECKS {
            put(&ai.join(format!("file{round}")), "text");
            assert!(before.is_unchanged(), "round {round}");
        }
        assert_eq!(watch_folder().generation(), generation);

        file::set_mode(&ai, 0o700).expect("another mode");
        assert!(!before.is_unchanged());
        let before = watch_folder();
        fs_err::rename(&ai, &other).expect("moved");
        assert!(!before.is_unchanged());
        std::os::unix::fs::symlink(&other, &ai).expect("a link to the same folder");
        assert!(!before.is_unchanged());
        let before = watch_folder();
        fs_err::rename(&other, folder.path().join("third")).expect("moved");
        assert!(!before.is_unchanged(), "the link leads nowhere");
        assert_ne!(watch_folder().generation(), generation);
    }

    #[test]
    fn nested_recordings_hold_all_reads() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["one", "two", "three"].map(|name| folder.path().join(name));
        paths.iter().for_each(|path| put(path, "text"));
        let look = |path: &Path| record(|reads| reads.add(path.to_owned()));
        let known = MonitoredSet::new(watch(&paths[2..]));
        let (inner, outer) = record_reads(|| {
            look(&paths[0]);
            let ((), inner) = record_reads(|| look(&paths[1]));
            assert!(known.is_unchanged());
            inner
        });
        assert_eq!(inner.contents.into_keys().collect::<Vec<_>>(), &paths[1..2]);
        assert_eq!(outer, watch(&paths));
        look(&paths[0]);
        let failed = std::panic::catch_unwind(|| record_reads(|| panic!("broken off")));
        assert!(failed.is_err() && RECORDINGS.with_borrow(Vec::is_empty));
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
            let contents = BTreeMap::from([(path.clone(), Some(entry))]);
            let watch_set = WatchSet { contents, ..WatchSet::default() };
            assert!(!watch_set.is_settled(changed) && !watch_set.is_settled(changed + settles));
            assert!(watch_set.is_settled(changed + settles + 1));
        }
    }
}
