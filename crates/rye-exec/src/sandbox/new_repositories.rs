//! Repositories below the project that a run made or changed and that no index names yet. `git add .` or a checkout would have
//! git look into them at the next `git status`, when no run is there to notice. So all folders are searched before and after a
//! run, and what is new at its place and could run a program is moved aside. One that the user made stays, whatever it runs.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lillux::dir::tree::{Tree, UnlistedFolder};
use rye_item::repository::{REPOSITORY_FOLDERS, is_git_repository};

use super::git::{GitDirs, GitLayout};
use super::git_leftovers;
use super::repositories::{PlantedRepository, REFUSED_SUFFIX, RepositoryRecord};
use super::repository_snapshot::{RepositorySnapshot, identify, is_entry_since, is_made_since, is_since};

/// More folders than this are not searched before a run.
const MAX_FOLDERS: usize = 50_000;
/// After a run there may be more: a run must not hide a repository behind them.
const MAX_FOLDERS_AFTER: usize = 500_000;
/// The kernel's clock for file times lags behind by up to a tick.
const CLOCK_MARGIN: Duration = Duration::from_millis(20);
/// Folders below more than so many others are not searched: the way to each is followed again, so that the time would grow with
/// the square of the depth. Paths that programs use are far shorter.
const MAX_DEPTH: usize = 512;
/// What in a repository of another program than git names programs, and other folders.
const OTHER_DECISIVE_FILES: [&str; 7] =
    ["hgrc", "requires", "sharedpath", "config", "config.toml", "repo", "repo/config.toml"];
/// What in a repository names programs, and other folders.
pub(super) const DECISIVE_ENTRIES: [&str; 5] = ["config", "config.worktree", "commondir", "gitdir", "hooks"];

/// A search after a run for the repositories that it made or changed.
#[derive(Clone, Debug)]
pub(super) struct NewRepositorySearch {
    /// The project's own `.git` is protected, and not searched for.
    project: PathBuf,
    /// The project, or the folders in it that the run may write to.
    roots: Vec<PathBuf>,
    started: SystemTime,
}

/// What a search found. Folders that were closed are open as long as this lives.
struct FoundFolders {
    repositories: Vec<FoundRepository>,
    /// Own folders that could not be searched.
    unsearched: Vec<PathBuf>,
    /// Whether there were no more folders than are searched.
    is_complete: bool,
    trees: Vec<Tree>,
}

/// What obeys a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Git,
    /// Mercurial, Jujutsu, Sapling.
    Other,
}

/// Something that git or another program takes for a repository.
struct FoundRepository {
    /// Its `.git` or the like, or its own folder if it has none.
    entry: PathBuf,
    /// What makes it a repository: moved aside, it is none.
    decisive: PathBuf,
    program: Program,
    layout: Option<GitLayout>,
    dirs: Option<GitDirs>,
}

impl NewRepositorySearch {
    /// Begins a run now.
    #[allow(
        clippy::disallowed_methods,
        reason = "it is compared with the times of files, which the kernel's clock gives"
    )]
    pub(super) fn begin(project: &Path, write: &[PathBuf]) -> Self {
        Self::new(project, write, SystemTime::now() - CLOCK_MARGIN)
    }

    /// For a run that began at a time and was not checked.
    pub(super) fn new(project: &Path, write: &[PathBuf], started: SystemTime) -> Self {
        let project = lillux::canonicalize_existing(project);
        // What a run cannot write to has nothing new.
        let roots = match write.iter().any(|root| project.starts_with(root)) {
            true => vec![project.clone()],
            false => write.iter().filter(|root| root.starts_with(&project)).cloned().collect(),
        };
        Self { project, roots, started }
    }

    /// The repositories as they are now.
    pub(super) fn snapshot(&self) -> RepositorySnapshot {
        let found = self.search(MAX_FOLDERS);
        let entries = found.repositories.iter().map(|repository| {
            (
                repository.entry.as_path(),
                identify(&repository.entry, repository.layout.as_ref(), repository.dirs.as_ref()),
            )
        });
        RepositorySnapshot::new(entries, &found.unsearched, found.is_complete)
    }

    /// Moves aside what the run made or changed and could run a program. `record` says what was there, `refused` what was moved
    /// aside already.
    pub(super) fn refuse_new(
        &self,
        record: &RepositoryRecord,
        refused: &[PlantedRepository],
    ) -> Vec<PlantedRepository> {
        let snapshot = &record.snapshot;
        let found = self.search(if snapshot.is_complete { MAX_FOLDERS_AFTER } else { MAX_FOLDERS });
        let is_refused = |repository: &&FoundRepository| {
            (self.is_new(repository, snapshot) || self.is_changed(repository))
                && !record.is_known(&repository.entry)
                && !self.is_own_worktree(&repository.entry, record)
                && !is_moved_aside(&repository.entry, refused)
                && !is_harmless(repository, record)
        };
        let repositories = found.repositories.iter().filter(is_refused);
        let mut planted: Vec<PlantedRepository> =
            repositories.filter_map(|repository| record.move_aside(&repository.decisive)).collect();
        // What cannot be searched may hold anything.
        let unsearched = found.unsearched.iter().filter(|folder| !snapshot.is_unsearched(folder));
        planted.extend(unsearched.map(|path| PlantedRepository { path: path.clone(), is_moved: false }));
        planted.extend(self.refuse_leftovers(&found, record));
        planted
    }

    /// Moves aside what the run left in git folders and git would follow.
    fn refuse_leftovers(&self, found: &FoundFolders, record: &RepositoryRecord) -> Vec<PlantedRepository> {
        let mut folders = record.writable_git_folders();
        let dirs = found.repositories.iter().filter_map(|repository| repository.dirs.as_ref());
        let inner =
            dirs.flat_map(|dirs| [&dirs.own, &dirs.common]).filter(|folder| record.is_writable(folder));
        folders.extend(inner.cloned());
        let mut refused = Vec::new();
        for folder in &folders {
            // What lies in another one is searched with it.
            if folder.ancestors().skip(1).any(|above| folders.contains(above)) {
                continue;
            }
            let left = git_leftovers::find(folder, self.started);
            refused.extend(left.refused.iter().filter_map(|path| record.move_aside(path)));
            refused
                .extend(left.unsearched.into_iter().map(|path| PlantedRepository { path, is_moved: false }));
        }
        refused
    }

    /// Whether this is the project, with a `.git` of its own: git looks for that first, and it may be a placeholder.
    fn is_own_worktree(&self, folder: &Path, record: &RepositoryRecord) -> bool {
        folder == self.project && record.is_known(&folder.join(".git"))
    }

    /// Whether a repository was not at this place when the run began, or another one was.
    fn is_new(&self, found: &FoundRepository, snapshot: &RepositorySnapshot) -> bool {
        let now = identify(&found.entry, found.layout.as_ref(), found.dirs.as_ref());
        match snapshot.find(&found.entry) {
            Some(before) => before != now,
            None => snapshot.is_searched(&found.entry) || is_made_since(&found.entry, self.started),
        }
    }

    /// Whether the run changed what names programs and other folders. A commit changes nothing of it.
    fn is_changed(&self, found: &FoundRepository) -> bool {
        let pointers = found.layout.iter().flat_map(|layout| &layout.pointers);
        if pointers.into_iter().any(|pointer| is_since(pointer, self.started)) {
            return true;
        }
        let Some(dirs) = &found.dirs else {
            return match found.program {
                Program::Git => is_since(&found.entry, self.started),
                Program::Other => OTHER_DECISIVE_FILES.iter().any(|name| {
                    let path = found.entry.join(name);
                    !path.is_dir() && is_since(&path, self.started)
                }),
            };
        };
        let in_folder = |folder: &Path| {
            DECISIVE_ENTRIES.iter().any(|name| is_entry_since(&folder.join(name), self.started))
        };
        in_folder(&dirs.own) || in_folder(&dirs.common)
    }

    /// Searches all folders, nearer ones first.
    fn search(&self, max_folders: usize) -> FoundFolders {
        let mut found = FoundFolders {
            repositories: Vec::new(),
            unsearched: Vec::new(),
            is_complete: true,
            trees: Vec::new(),
        };
        for root in &self.roots {
            match Tree::open(root) {
                Ok(mut tree) => {
                    self.search_tree(root, &mut tree, max_folders, &mut found);
                    found.trees.push(tree);
                }
                // A file, or nothing.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(_) => found.unsearched.push(root.clone()),
            }
        }
        found
    }

    fn search_tree(&self, root: &Path, tree: &mut Tree, max_folders: usize, found: &mut FoundFolders) {
        let (mut pending, mut next) = (vec![PathBuf::new()], 0);
        while let Some(relative) = pending.get(next).cloned() {
            next += 1;
            let folder = if relative.as_os_str().is_empty() { root.to_owned() } else { root.join(&relative) };
            let entries = match tree.entries(&relative) {
                Ok(entries) => entries,
                // Git obeys no repository of another user, and no run makes one.
                Err(UnlistedFolder::Absent | UnlistedFolder::Foreign) => continue,
                Err(UnlistedFolder::Refused) => {
                    found.unsearched.push(folder);
                    continue;
                }
            };
            let is_project = folder == self.project;
            if is_git_repository(|name| entries.iter().any(|entry| entry.name == name)) {
                found.repositories.push(bare_repository(folder.clone()));
            }
            let is_deep = relative.components().count() >= MAX_DEPTH;
            for entry in entries {
                if REPOSITORY_FOLDERS.iter().any(|name| entry.name == *name) {
                    if is_project {
                        continue;
                    }
                    // The owner may have closed it. What cannot be read in it counts as running something.
                    let inner = entry.is_dir.then(|| tree.entries(&relative.join(&entry.name)));
                    if entry.name == ".git" {
                        found.repositories.push(with_git_entry(&folder));
                    } else if !inner.is_some_and(|inner| inner.is_ok_and(|inner| inner.is_empty())) {
                        found.repositories.push(other_repository(folder.join(&entry.name)));
                    }
                    continue;
                }
                if entry.is_dir && is_deep {
                    if found.unsearched.last() != Some(&folder) {
                        found.unsearched.push(folder.clone());
                    }
                } else if entry.is_dir && pending.len() < max_folders {
                    pending.push(relative.join(&entry.name));
                } else if entry.is_dir {
                    if found.is_complete && max_folders == MAX_FOLDERS_AFTER {
                        found.unsearched.push(folder.join(&entry.name));
                    }
                    found.is_complete = false;
                }
            }
        }
    }
}

fn is_harmless(found: &FoundRepository, record: &RepositoryRecord) -> bool {
    match (&found.layout, &found.dirs) {
        (_, Some(dirs)) if record.is_protected(dirs) => true,
        (Some(layout), _) => record.is_harmless(layout),
        (None, Some(dirs)) => record.is_writable(&dirs.common) && super::repositories::runs_nothing(dirs),
        (None, None) => false,
    }
}

/// Whether a folder without a `.git` is one that was just moved aside.
fn is_moved_aside(folder: &Path, refused: &[PlantedRepository]) -> bool {
    let name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_prefix(".git").is_some_and(|rest| rest.starts_with(REFUSED_SUFFIX))
        && refused.iter().any(|planted| planted.is_moved && planted.path.parent() == folder.parent())
}

/// A folder that git takes for a repository without a `.git`. What it shares with another folder is read there.
fn bare_repository(folder: PathBuf) -> FoundRepository {
    FoundRepository {
        decisive: folder.join("HEAD"),
        program: Program::Git,
        layout: None,
        dirs: GitDirs::of_bare(&folder),
        entry: folder,
    }
}

/// A repository of another program. A new one is never harmless: what such programs obey is not read here.
fn other_repository(entry: PathBuf) -> FoundRepository {
    FoundRepository { decisive: entry.clone(), program: Program::Other, layout: None, dirs: None, entry }
}

fn with_git_entry(folder: &Path) -> FoundRepository {
    let layout = GitLayout::read(folder);
    let dirs = layout.as_ref().and_then(|layout| layout.dirs.clone());
    let entry = folder.join(".git");
    FoundRepository { decisive: entry.clone(), program: Program::Git, entry, layout, dirs }
}
