//! Which repositories are below a project, each by its place: what tells one that was there when a run began from one that was
//! renamed to its place, however old its files are.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lillux::Digest;
use serde::{Deserialize, Serialize};

use super::git::{GitDirs, GitLayout};
use super::new_repositories::DECISIVE_ENTRIES;

/// The repositories of a project at one moment. Paths are digests: they may be long, and no text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RepositorySnapshot {
    /// What is at each place.
    repositories: BTreeMap<String, String>,
    /// Folders that could not be searched.
    unsearched: BTreeSet<String>,
    /// Whether all folders were searched.
    pub(super) is_complete: bool,
}

impl RepositorySnapshot {
    pub(super) fn new<'a>(
        repositories: impl Iterator<Item = (&'a Path, String)>,
        unsearched: &[impl AsRef<Path>],
        is_complete: bool,
    ) -> Self {
        Self {
            repositories: repositories.map(|(entry, identity)| (name(entry), identity)).collect(),
            unsearched: unsearched.iter().map(|folder| name(folder.as_ref())).collect(),
            is_complete,
        }
    }

    /// What was at this place.
    pub(super) fn find(&self, entry: &Path) -> Option<&str> {
        self.repositories.get(&name(entry)).map(String::as_str)
    }

    /// Whether a repository at this place would have been found.
    pub(super) fn is_searched(&self, entry: &Path) -> bool {
        self.is_complete
            && (self.unsearched.is_empty() || !entry.ancestors().any(|above| self.is_unsearched(above)))
    }

    /// Whether this folder could not be searched.
    pub(super) fn is_unsearched(&self, folder: &Path) -> bool {
        self.unsearched.contains(&name(folder))
    }
}

fn name(path: &Path) -> String {
    Digest::of(path.as_os_str().as_encoded_bytes()).to_hex()
}

/// What tells a repository from another one at the same place: which files and folders lead to it and name programs in it, and
/// what links among them lead to.
pub(super) fn identify(entry: &Path, layout: Option<&GitLayout>, dirs: Option<&GitDirs>) -> String {
    let mut ids = Vec::new();
    let mut add = |path: &Path| {
        ids.extend(
            [path.symlink_metadata(), path.metadata()]
                .map(|found| found.ok().map(|metadata| (metadata.dev(), metadata.ino()))),
        );
    };
    add(entry);
    layout.into_iter().flat_map(|layout| &layout.pointers).for_each(|pointer| add(pointer));
    for folder in dirs.into_iter().flat_map(|dirs| [&dirs.own, &dirs.common]) {
        add(folder);
        DECISIVE_ENTRIES.iter().for_each(|name| add(&folder.join(name)));
    }
    Digest::of(format!("{ids:?}").as_bytes()).to_hex()
}

/// Whether something was changed or renamed since a time.
pub(super) fn is_since(path: &Path, time: SystemTime) -> bool {
    let Ok(metadata) = path.symlink_metadata() else { return false };
    let changed = Duration::new(
        u64::try_from(metadata.ctime()).unwrap_or(0),
        u32::try_from(metadata.ctime_nsec()).unwrap_or(0),
    );
    UNIX_EPOCH + changed >= time
}

/// [`is_since`] of a file, or of a folder and what is in it.
pub(super) fn is_entry_since(path: &Path, time: SystemTime) -> bool {
    is_since(path, time)
        || path.read_dir().into_iter().flatten().flatten().any(|inner| is_since(&inner.path(), time))
}

/// Whether something was made since a time; where the file system does not say, whether it was changed.
pub(super) fn is_made_since(path: &Path, time: SystemTime) -> bool {
    let made = path.symlink_metadata().and_then(|metadata| metadata.created());
    made.map_or_else(|_| is_since(path, time), |made| made >= time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsearched_folders_say_nothing_of_repositories() {
        let entry = Path::new("/p/known/.git");
        let found = [(entry, "identity".to_owned())];
        let snapshot = RepositorySnapshot::new(found.into_iter(), &[Path::new("/p/closed")], true);
        assert_eq!(snapshot.find(entry), Some("identity"));
        assert!(snapshot.is_searched(Path::new("/p/other/.git")));
        assert!(!snapshot.is_searched(Path::new("/p/closed/inner/.git")));
        assert!(!RepositorySnapshot::default().is_searched(entry));
    }
}
