//! What a run left in git folders that git would follow at its next command: links, which it writes through, and indexes with
//! paths that lead out of the files, which a checkout writes to. No command of git makes either.

use std::ffi::OsStr;
use std::fs::DirEntry;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::git::{INNER_FOLDERS, has_config};
use super::git_index;
use super::repository_snapshot::is_since;

/// A git folder with more entries than this is not searched any further, and refused.
const MAX_ENTRIES: usize = 1_000_000;

/// What was found in a git folder.
#[derive(Debug, Default)]
pub(super) struct GitLeftovers {
    /// Links and the like, and indexes, that the run made or changed.
    pub(super) refused: Vec<PathBuf>,
    /// Folders that could not be searched.
    pub(super) unsearched: Vec<PathBuf>,
}

/// A folder to search.
struct PendingFolder {
    path: PathBuf,
    /// The config of the repository whose index may lie here.
    index_config: Option<PathBuf>,
    /// Whether it holds objects: one that is as it was has no new entry, and no folders.
    holds_objects: bool,
}

/// Searches a git folder for what a run since `started` left in it.
pub(super) fn find(git_folder: &Path, started: SystemTime) -> GitLeftovers {
    let mut found = GitLeftovers::default();
    let mut pending = vec![PendingFolder {
        path: git_folder.to_owned(),
        index_config: Some(git_folder.join("config")),
        holds_objects: false,
    }];
    let mut count = 0_usize;
    while let Some(folder) = pending.pop() {
        let is_changed = is_since(&folder.path, started);
        if folder.holds_objects && !is_changed {
            continue;
        }
        let entries: Result<Vec<DirEntry>, _> = match folder.path.read_dir() {
            Ok(entries) => entries.collect(),
            Err(error) => Err(error),
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound || !is_changed => continue,
            Err(_) => {
                found.unsearched.push(folder.path);
                continue;
            }
        };
        count += entries.len();
        if count > MAX_ENTRIES {
            found.unsearched.push(git_folder.to_owned());
            return found;
        }
        if let Some(config) = &folder.index_config
            && is_index_refused(&folder.path, &entries, config, started)
        {
            found.refused.push(folder.path.join("index"));
        }
        for entry in entries {
            let path = entry.path();
            match entry.file_type() {
                Ok(kind) if kind.is_file() => {}
                Ok(kind) if kind.is_dir() => pending.push(folder.child(git_folder, &entry.file_name(), path)),
                Ok(_) | Err(_) if is_since(&path, started) => found.refused.push(path),
                Ok(_) | Err(_) => {}
            }
        }
    }
    found
}

impl PendingFolder {
    /// A folder in this one.
    fn child(&self, git_folder: &Path, name: &OsStr, path: PathBuf) -> Self {
        let is_named = |folder: &Path, name: &str| folder.file_name() == Some(OsStr::new(name));
        let is_inner = name.to_str().is_some_and(|name| INNER_FOLDERS.contains(&name));
        let index_config = if is_named(&self.path, "worktrees") && self.path.parent() == Some(git_folder) {
            Some(git_folder.join("config"))
        } else if has_config(&path) && !is_inner {
            // A submodule's.
            Some(path.join("config"))
        } else {
            None
        };
        Self { holds_objects: is_named(&self.path, "objects"), path, index_config }
    }
}

/// Whether there is an index that the run changed, in one file or in both of a split one, and that git would write by to other
/// places than the files it is for.
fn is_index_refused(folder: &Path, entries: &[DirEntry], config: &Path, started: SystemTime) -> bool {
    let is_part = |entry: &&DirEntry| {
        let name = entry.file_name();
        name == "index" || name.to_str().is_some_and(|name| name.starts_with("sharedindex."))
    };
    let is_changed = entries.iter().filter(is_part).any(|entry| is_since(&entry.path(), started));
    is_changed && git_index::read(&folder.join("index"), config).is_none()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use lillux::file::{FileMode, create_dirs, write_atomic};

    use super::*;

    const BEFORE: SystemTime = SystemTime::UNIX_EPOCH;

    fn write(path: &Path, text: &str) {
        create_dirs(path.parent().expect("a folder"), false).expect("folders");
        write_atomic(path, text.as_bytes(), FileMode::Preserve).expect("written");
    }

    #[test]
    fn links_and_indexes_are_found_everywhere() {
        let folder = tempfile::tempdir().expect("a folder");
        let git = folder.path().canonicalize().expect("a real path").join(".git");
        for name in ["config", "modules/lib/config", "objects/ab/cdef", "refs/heads/index", "refs/heads/main"]
        {
            write(&git.join(name), "");
        }
        assert_eq!(find(&git, BEFORE).refused, Vec::<PathBuf>::new());
        let links = ["COMMIT_EDITMSG", "logs/HEAD", "objects/ab/link", "objects/cd", "modules/lib/MERGE_MSG"];
        for name in links {
            create_dirs(git.join(name).parent().expect("a folder"), false).expect("folders");
            symlink("config", git.join(name)).expect("a link");
        }
        let indexes = ["index", "worktrees/w/index", "modules/lib/index"];
        for name in indexes {
            write(&git.join(name), "no index");
        }
        let mut found = find(&git, BEFORE).refused;
        found.sort();
        let mut expected: Vec<PathBuf> = links.iter().chain(&indexes).map(|name| git.join(name)).collect();
        expected.sort();
        assert_eq!(found, expected);
        // What was there before is the user's.
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 40);
        assert_eq!(find(&git, later).refused, Vec::<PathBuf>::new());
    }
}
