//! Where the same paths lead, asked again and again: followed once, and again only when a folder on their way has changed.
//!
//! A folder whose times are as they were holds the same names, links and others. So one look at each folder
//! says as much as one at each path. Of a folder that changed a moment ago, whose times may stay the same at the next change,
//! each name is looked at. Where a link is on the way, nothing is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::canonicalize::{CanonicalPathCache, EntryKind, entry_kind};

/// The most lists that are kept: a process rarely works in more projects at a time.
const MAX_LISTS: usize = 8;

/// How long a folder must have been unchanged for its times to tell the next change: they are as coarse as the system's ticks,
/// and on some file systems as seconds.
const SETTLE_TIME: Duration = Duration::from_millis(100);
const SETTLE_TIME_OF_SECONDS: Duration = Duration::from_secs(3);

/// Lists of paths with where they lead.
#[derive(Debug, Default)]
pub struct RealPaths(Mutex<Vec<FollowedList>>);

/// A list, as it was when its paths were followed.
#[derive(Debug)]
struct FollowedList {
    root: PathBuf,
    paths: Vec<PathBuf>,
    found: Arc<[PathBuf]>,
    looked_up: LookedUp,
}

/// What was looked at on the way, no link among it.
#[derive(Debug, Default, PartialEq, Eq)]
struct LookedUp {
    folders: Vec<(PathBuf, FolderStamp)>,
    entries: Vec<(PathBuf, EntryKind)>,
}

/// Which folder a path names, and when names in it last came, went or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FolderStamp {
    device: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl RealPaths {
    /// An empty store.
    #[must_use]
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Those of `paths`, and of the places they lead to now, that lie in `root` or hold it. `root` is a real path, and relative
    /// ones are below it.
    pub fn around(&self, root: &Path, paths: &[PathBuf]) -> Arc<[PathBuf]> {
        let is_same = |list: &FollowedList| {
            list.root.as_os_str() == root.as_os_str()
                && list.paths.len() == paths.len()
                && list.paths.iter().zip(paths).all(|(known, path)| known.as_os_str() == path.as_os_str())
        };
        let mut lists = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = lists.iter().position(is_same) {
            if lists[at].looked_up.is_unchanged() {
                return Arc::clone(&lists[at].found);
            }
            lists.remove(at);
        }
        let (found, looked_up) = follow(root, paths);
        if let Some(looked_up) = looked_up {
            if lists.len() == MAX_LISTS {
                lists.remove(0);
            }
            lists.push(FollowedList {
                root: root.to_owned(),
                paths: paths.to_vec(),
                found: Arc::clone(&found),
                looked_up,
            });
        }
        found
    }
}

impl LookedUp {
    fn is_unchanged(&self) -> bool {
        self.folders.iter().all(|(folder, stamp)| FolderStamp::read(folder) == Some(*stamp))
            && self.entries.iter().all(|(path, kind)| entry_kind(path) == *kind)
    }

    /// What to look at to know that every one of these entries is as it was. `stamps` are of before they were looked at.
    fn new(
        entries: Vec<(PathBuf, EntryKind)>,
        stamps: &BTreeMap<PathBuf, FolderStamp>,
        now: Duration,
    ) -> Self {
        let mut all = Self::default();
        let mut by_folder: BTreeMap<PathBuf, Vec<(PathBuf, EntryKind)>> = BTreeMap::new();
        for (path, kind) in entries {
            let folder = path.parent().unwrap_or(&path).to_owned();
            by_folder.entry(folder).or_default().push((path, kind));
        }
        for (folder, entries) in by_folder {
            match stamps.get(&folder).filter(|stamp| stamp.is_settled(now)) {
                Some(stamp) => all.folders.push((folder, *stamp)),
                None => all.entries.extend(entries),
            }
        }
        all
    }
}

impl FolderStamp {
    fn read(folder: &Path) -> Option<Self> {
        let metadata = folder.symlink_metadata().ok().filter(std::fs::Metadata::is_dir)?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// Whether the next change will have another time for certain.
    fn is_settled(&self, now: Duration) -> bool {
        [self.modified, self.changed].into_iter().all(|(seconds, nanoseconds)| {
            let (Ok(seconds), Ok(nanoseconds)) = (u64::try_from(seconds), u32::try_from(nanoseconds)) else {
                return false;
            };
            let margin = if nanoseconds == 0 { SETTLE_TIME_OF_SECONDS } else { SETTLE_TIME };
            Duration::new(seconds, nanoseconds).checked_add(margin).is_some_and(|settled| settled < now)
        })
    }
}

/// Follows every path. What was looked at is given if it tells when to follow them again.
#[allow(
    clippy::disallowed_methods,
    reason = "it is compared with the times of files, which the kernel's clock gives"
)]
fn follow(root: &Path, paths: &[PathBuf]) -> (Arc<[PathBuf]>, Option<LookedUp>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // Before anything in them is looked at: a change in between shows in the next stamp.
    let paths: Vec<PathBuf> = paths.iter().map(|path| root.join(path)).collect();
    let folders: BTreeSet<&Path> = paths.iter().flat_map(|path| path.ancestors().skip(1)).collect();
    let stamps: BTreeMap<PathBuf, FolderStamp> =
        folders.into_iter().filter_map(|path| Some((path.to_owned(), FolderStamp::read(path)?))).collect();
    let mut cache = CanonicalPathCache::recording();
    let mut found = Vec::new();
    for path in &paths {
        let real = cache.canonicalize(path);
        let is_around = |path: &Path| path.starts_with(root) || root.starts_with(path);
        if real != *path && is_around(&real) {
            found.push(real);
        }
        if is_around(path) {
            found.push(path.clone());
        }
    }
    let looked_up = cache.into_entries().map(|entries| LookedUp::new(entries, &stamps, now));
    (found.into(), looked_up)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "it is compared with the times of files")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::file::{create_dirs, remove};

    struct Folders {
        _guard: tempfile::TempDir,
        project: PathBuf,
        home: PathBuf,
    }

    fn setup() -> Folders {
        let guard = tempfile::tempdir().expect("a folder");
        let base = guard.path().canonicalize().expect("a real path");
        let (project, home) = (base.join("project"), base.join("home"));
        for folder in [project.join("secret"), home.join("config/real")] {
            create_dirs(&folder, false).expect("a folder");
        }
        Folders { _guard: guard, project, home }
    }

    fn paths(folders: &Folders) -> Vec<PathBuf> {
        let home = |name: &str| folders.home.join(name);
        vec![home("keys"), home("config/token"), home("config/real"), folders.project.join("secret")]
    }

    fn found(real: &RealPaths, folders: &Folders) -> Vec<PathBuf> {
        let found = real.around(&folders.project, &paths(folders)).to_vec();
        let (fresh, _) = follow(&folders.project, &paths(folders));
        assert_eq!(found, fresh.to_vec(), "what is kept is what is there");
        found
    }

    /// Waits until the times of the folders tell the next change.
    fn settle(folders: &Folders) {
        let all = [&folders.project, &folders.home, &folders.home.join("config")];
        let is_settled = |folder: &Path| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time");
            FolderStamp::read(folder).is_some_and(|stamp| stamp.is_settled(now))
        };
        for _ in 0..6000 {
            if all.iter().all(|folder| is_settled(folder)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the folders are never at rest");
    }

    /// What is changed at once, and what is changed in folders that were at rest.
    fn check_changes(prepare: impl Fn(&Folders)) {
        let folders = setup();
        let real = RealPaths::new();
        let own = folders.project.join("secret");
        prepare(&folders);
        assert_eq!(found(&real, &folders), std::slice::from_ref(&own));
        assert_eq!(found(&real, &folders), std::slice::from_ref(&own));
        // A link from a hidden name into the project.
        prepare(&folders);
        symlink(folders.project.join("open"), folders.home.join("keys")).expect("a link");
        assert_eq!(found(&real, &folders).len(), 1, "it leads to nothing");
        create_dirs(&folders.project.join("open"), false).expect("a folder");
        assert_eq!(found(&real, &folders), [folders.project.join("open"), own.clone()]);
        remove(&folders.home.join("keys")).expect("removed");
        prepare(&folders);
        assert_eq!(found(&real, &folders), std::slice::from_ref(&own));
        // A folder on the way becomes a link.
        prepare(&folders);
        std::fs::rename(folders.home.join("config"), folders.project.join("moved")).expect("renamed");
        symlink(folders.project.join("moved"), folders.home.join("config")).expect("a link");
        let moved = folders.project.join("moved");
        assert_eq!(found(&real, &folders), [moved.join("token"), moved.join("real"), own]);
    }

    #[test]
    fn changes_in_new_folders_are_seen() {
        check_changes(|_| {});
    }

    #[test]
    fn changes_in_settled_folders_are_seen() {
        check_changes(settle);
    }

    #[test]
    fn settled_folders_are_looked_at_once() {
        let folders = setup();
        settle(&folders);
        let (_, looked_up) = follow(&folders.project, &paths(&folders));
        let looked_up = looked_up.expect("no link is on the way");
        let settled: Vec<&Path> = looked_up.folders.iter().map(|(folder, _)| folder.as_path()).collect();
        for folder in [&folders.project, &folders.home, &folders.home.join("config")] {
            assert!(settled.contains(&folder.as_path()), "{folder:?}: {looked_up:?}");
        }
        assert!(looked_up.entries.iter().all(|(path, _)| !path.starts_with(&folders.home)), "{looked_up:?}");
        assert!(looked_up.is_unchanged());
    }

    #[test]
    fn each_project_has_its_list() {
        let (first, second) = (setup(), setup());
        let real = RealPaths::new();
        assert_ne!(found(&real, &first), found(&real, &second));
        assert_eq!(real.0.lock().expect("no panic").len(), 2);
    }
}
