//! The repositories that git looks into when it works on a project: the project's own, and those that an index names below it.
//! What of them runs programs is protected during a run. One that comes into being during a run is moved aside unless it
//! is plain that git runs nothing there: as soon as an index names it, and again afterwards.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lillux::dir::Dir;
use lillux::{CancelToken, canonicalize_existing};
use serde::{Deserialize, Serialize};

use super::git::{self, GitDirs, GitLayout};
use super::git_runs::{self, RunMarker};
use super::index_watch::IndexWatch;
use super::new_repositories::NewRepositorySearch;
use super::repository_snapshot::RepositorySnapshot;
use super::{git_config, git_index};

/// Of more repositories than this, the whole `.git` is closed.
const MAX_REPOSITORIES: usize = 256;
/// More inner projects than this, which the user did not approve, are not looked at.
const MAX_TRACKED_PROJECTS: usize = 32;
/// Folders that are searched for a `.git` if an index stands for all that is in them.
const MAX_SEARCHED_FOLDERS: usize = 10_000;
/// A new git folder with more files than this is not looked at any further, and refused.
const MAX_GIT_FILES: usize = 1_000_000;
/// The name that a refused `.git` gets.
pub(super) const REFUSED_SUFFIX: &str = ".refused-by-rye";

/// A project below the project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InnerProject {
    /// Its folder.
    pub(super) folder: PathBuf,
    /// Whether names that do not exist are reserved in it too: the user approved it, or it is a linked worktree of the project's
    /// own repository.
    pub(super) reserves_names: bool,
}

/// The repositories of a project, as they are before a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Repositories {
    /// The project's own, if it has one.
    pub(super) own: Option<GitLayout>,
    /// Those below it.
    pub(super) nested: Vec<GitLayout>,
    /// A `.git` of each that is one too many.
    pub(super) unread: Vec<PathBuf>,
    /// Projects below it.
    pub(super) inner_projects: Vec<InnerProject>,
    /// Folders in which git begins, and those an index names.
    starts: Vec<PathBuf>,
    named: Vec<PathBuf>,
    /// Folders that an index names as repositories, where there is none.
    empty_links: Vec<PathBuf>,
    unread_indexes: Vec<PathBuf>,
    /// What a killed run left, and was moved aside.
    recovered: Vec<PlantedRepository>,
}

impl Repositories {
    /// Finds them, after a check of what killed runs left.
    pub(super) fn check_and_find(project: &Path, approved: &[PathBuf], cache: &Path) -> Self {
        let recovered = git_runs::check_abandoned(cache, project);
        Self { recovered, ..Self::find(project, approved) }
    }

    /// Finds them. `approved` are projects that the user approved, wherever they are.
    pub(super) fn find(project: &Path, approved: &[PathBuf]) -> Self {
        let project = canonicalize_existing(project);
        let is_below = |folder: &&PathBuf| **folder != project && folder.starts_with(&project);
        let mut found = Self { starts: vec![project.clone()], ..Self::default() };
        for folder in approved.iter().filter(is_below).filter(|folder| folder.is_dir()) {
            found.starts.push(folder.clone());
            found.inner_projects.push(InnerProject { folder: folder.clone(), reserves_names: true });
        }
        let own = GitLayout::read(&project);
        // In a folder of a larger repository, that one's index may name folders of the project.
        if own.is_none() {
            let around =
                project.ancestors().skip(1).find(|above| above.join(".git").symlink_metadata().is_ok());
            found.starts.extend(around.map(Path::to_owned));
        }
        let mut pending: Vec<(PathBuf, Vec<PathBuf>)> =
            found.starts.iter().skip(1).map(|start| (start.clone(), Vec::new())).collect();
        let mut seen: BTreeSet<PathBuf> = found.starts.iter().cloned().collect();
        let (mut next, mut count) = (own.map(|own| (own, Vec::new())), 0);
        while next.is_some() || !pending.is_empty() {
            let read =
                |(worktree, links): (PathBuf, Vec<PathBuf>)| Some((GitLayout::read(&worktree)?, links));
            let Some((mut layout, links)) = next.take().or_else(|| pending.pop().and_then(read)) else {
                continue;
            };
            let worktree = layout.worktree.clone();
            layout.pointers.extend(links);
            count += 1;
            if count > MAX_REPOSITORIES {
                found.unread.push(worktree.join(".git"));
                continue;
            }
            for path in found.read_index(&layout) {
                if path.join(".git").symlink_metadata().is_err() {
                    found.empty_links.push(path);
                    continue;
                }
                let mut links = Vec::new();
                let Some(real) = git::follow(&path, &mut links) else { continue };
                found.named.push(path);
                if seen.insert(real.clone()) {
                    if real.join(".ai").is_dir() {
                        found.add_tracked(real.clone());
                    }
                    pending.push((real, links));
                }
            }
            // A linked worktree in the project is one more checkout of it, with start files of its own.
            if worktree == project {
                for folder in layout.worktree_files().iter().filter_map(|entry| entry.parent()) {
                    found.add_inner(canonicalize_existing(folder), true);
                }
            }
            match worktree == project {
                true => found.own = Some(layout),
                false => found.nested.push(layout),
            }
        }
        found
    }

    /// The folders that the index of a repository names as repositories.
    fn read_index(&mut self, layout: &GitLayout) -> Vec<PathBuf> {
        let (Some(path), Some(config)) = (layout.index(), layout.config()) else { return Vec::new() };
        let Some(index) = git_index::read(&path, &config) else {
            self.unread_indexes.push(path);
            return Vec::new();
        };
        for folder in &index.projects {
            self.add_tracked(layout.worktree.join(folder));
        }
        index.gitlinks.iter().map(|gitlink| layout.worktree.join(gitlink)).collect()
    }

    fn add_tracked(&mut self, folder: PathBuf) {
        let tracked = self.inner_projects.iter().filter(|inner| !inner.reserves_names).count();
        if tracked < MAX_TRACKED_PROJECTS {
            self.add_inner(folder, false);
        }
    }

    fn add_inner(&mut self, folder: PathBuf, reserves_names: bool) {
        let is_inside =
            self.starts.first().is_some_and(|project| folder != *project && folder.starts_with(project));
        if is_inside && self.inner_projects.iter().all(|inner| inner.folder != folder) {
            self.inner_projects.push(InnerProject { folder, reserves_names });
        }
    }

    /// All layouts, the project's own first.
    pub(super) fn layouts(&self) -> impl Iterator<Item = &GitLayout> {
        self.own.iter().chain(&self.nested)
    }

    /// The folders of all repositories.
    pub(super) fn git_dirs(&self) -> impl Iterator<Item = &Path> {
        let dirs = self.layouts().filter_map(|layout| layout.dirs.as_ref());
        dirs.flat_map(|dirs| [dirs.own.as_path(), dirs.common.as_path()])
    }

    /// Git folders that a commit writes to, beside those in the project: those of a linked worktree. The folder of all
    /// submodules' git folders stays as it is; each of those there are can be committed to.
    pub(super) fn writable_folders(&self) -> Vec<PathBuf> {
        let mut folders = Vec::new();
        if let Some(GitLayout { dirs: Some(dirs), is_linked_worktree: true, .. }) = &self.own {
            folders.extend([dirs.common.clone(), dirs.own.clone()]);
        }
        // Of the others, those that lie in the project with all they have.
        let is_inside = |layout: &&GitLayout| {
            let project = self.starts.first();
            layout
                .writable_common()
                .is_some_and(|common| project.is_some_and(|root| common.starts_with(root)))
        };
        for layout in self.own.iter().chain(self.nested.iter().filter(is_inside)) {
            if layout.writable_common().is_some() {
                let modules = layout.modules().iter().filter_map(|(_, modules)| modules.as_ref()).flatten();
                folders.extend(modules.map(|module| canonicalize_existing(module)));
            }
        }
        folders.sort();
        folders.dedup();
        folders
    }

    /// What a check after the run compares with.
    pub(super) fn record(&self, write: &[PathBuf]) -> RepositoryRecord {
        let modules = self.layouts().flat_map(GitLayout::modules);
        let modules = modules.filter_map(|(_, modules)| modules.as_ref()).flatten().cloned();
        let own = self.layouts().filter_map(|layout| Some(layout.dirs.as_ref()?.own.clone()));
        RepositoryRecord {
            known: self.layouts().filter_map(KnownRepository::new).collect(),
            named: self.named.clone(),
            git_dirs: own.chain(modules).collect(),
            empty_links: self.empty_links.clone(),
            unread_indexes: self.unread_indexes.clone(),
            write: write.to_vec(),
            snapshot: RepositorySnapshot::default(),
        }
    }
}

/// A repository that was there before a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownRepository {
    worktree: PathBuf,
    index: PathBuf,
    config: PathBuf,
}

impl KnownRepository {
    fn new(layout: &GitLayout) -> Option<Self> {
        Some(Self { worktree: layout.worktree.clone(), index: layout.index()?, config: layout.config()? })
    }
}

/// The repositories before a run, for a check after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RepositoryRecord {
    /// The repositories there were. What leads to them was protected.
    known: Vec<KnownRepository>,
    /// Their folders, as an index named them.
    named: Vec<PathBuf>,
    /// Git folders that were protected.
    git_dirs: Vec<PathBuf>,
    /// Folders that an index named as repositories, where there was none.
    #[serde(default)]
    pub(super) empty_links: Vec<PathBuf>,
    /// Indexes that could not be read.
    unread_indexes: Vec<PathBuf>,
    /// Where the run could write.
    pub(super) write: Vec<PathBuf>,
    /// What was at each place that is searched when the run is over.
    #[serde(default)]
    pub(super) snapshot: RepositorySnapshot,
}

/// A repository, or an index, that a run made and that could have git run a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlantedRepository {
    /// Where it was.
    pub path: PathBuf,
    /// Whether it has another name now. If not, it is still there.
    pub is_moved: bool,
}

/// What a look at the indexes found.
#[derive(Debug, Default)]
pub(super) struct IndexCheck {
    /// What was moved aside, or should have been.
    pub(super) planted: Vec<PlantedRepository>,
    /// Folders that an index names as repositories and that had none before the run.
    pub(super) new_links: Vec<PathBuf>,
}

impl RepositoryRecord {
    /// Whether there is an index to watch.
    fn has_indexes(&self) -> bool {
        !self.known.is_empty()
    }

    /// The folders of the indexes.
    pub(super) fn index_folders(&self) -> impl Iterator<Item = &Path> {
        self.known.iter().filter_map(|known| known.index.parent())
    }

    /// What tells a changed index from an unchanged one.
    pub(super) fn index_stamps(&self) -> Vec<Option<(u64, u64, i64, i64)>> {
        let stamp = |known: &KnownRepository| {
            let metadata = known.index.symlink_metadata().ok()?;
            Some((metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec()))
        };
        self.known.iter().map(stamp).collect()
    }

    /// Moves aside each repository that an index names now, was not there before, and could run a program.
    pub(super) fn check(&self) -> IndexCheck {
        let mut check = IndexCheck::default();
        let mut pending = self.known.clone();
        let mut seen: BTreeSet<PathBuf> = pending.iter().map(|known| known.worktree.clone()).collect();
        while let Some(KnownRepository { worktree, index, config }) = pending.pop() {
            let path = index;
            let Some(index) = git_index::read(&path, &config) else {
                if !self.unread_indexes.contains(&path) {
                    check.planted.extend(self.move_aside(&path));
                }
                continue;
            };
            let named = index.gitlinks.iter().map(|gitlink| worktree.join(gitlink));
            let sparse =
                index.sparse_folders.iter().flat_map(|folder| nested_worktrees(&worktree.join(folder)));
            for path in named.chain(sparse) {
                if self.named.contains(&path) {
                    continue;
                }
                check.new_links.push(path.clone());
                if path.join(".git").symlink_metadata().is_err() {
                    continue;
                }
                let real = canonicalize_existing(&path);
                if !seen.insert(real.clone()) {
                    continue;
                }
                match GitLayout::read(&real).filter(|layout| self.is_harmless(layout)) {
                    Some(layout) => pending.extend(KnownRepository::new(&layout)),
                    None => check.planted.extend(self.move_aside(&real.join(".git"))),
                }
            }
        }
        check
    }

    /// The folders of the repositories there were, as far as the run could write to them.
    pub(super) fn writable_git_folders(&self) -> BTreeSet<PathBuf> {
        let of_known = self.known.iter().flat_map(|known| [known.index.parent(), known.config.parent()]);
        let all = of_known.flatten().chain(self.git_dirs.iter().map(PathBuf::as_path));
        all.filter(|folder| self.is_writable(folder)).map(Path::to_owned).collect()
    }

    /// Whether a `.git`, or a folder that is a repository itself, was there and protected.
    pub(super) fn is_known(&self, entry: &Path) -> bool {
        self.git_dirs.iter().any(|known| known == entry)
            || self.known.iter().any(|known| entry == known.worktree.join(".git"))
    }

    /// Whether git reads a config here that was protected: of a repository itself, or for one of its linked worktrees.
    pub(super) fn is_protected(&self, dirs: &GitDirs) -> bool {
        let is_of =
            |common: &Path| dirs.own == common || dirs.own.parent() == Some(&common.join("worktrees"));
        self.known.iter().any(|known| known.config == dirs.common.join("config")) && is_of(&dirs.common)
    }

    /// Whether the run could write there.
    pub(super) fn is_writable(&self, path: &Path) -> bool {
        self.write.iter().any(|root| path.starts_with(root))
    }

    /// Whether git runs nothing that a tool could have chosen in this folder.
    pub(super) fn is_harmless(&self, layout: &GitLayout) -> bool {
        let GitLayout { worktree, dirs: Some(dirs), .. } = layout else { return false };
        // A submodule whose repository was protected, and says that these are its files.
        let config = dirs.common.join("config");
        let is_own = || git_config::worktree(&config, &dirs.own).as_ref() == Some(worktree);
        if self.git_dirs.contains(&dirs.own) && dirs.own == dirs.common && is_own() {
            return true;
        }
        self.is_writable(&dirs.own)
            && self.is_writable(&dirs.common)
            && layout
                .pointers
                .iter()
                .all(|pointer| pointer.symlink_metadata().is_ok_and(|found| found.is_file()))
            && runs_nothing(dirs)
    }

    /// Gives a `.git`, or an index that cannot be read, another name. What a run could not write to stays.
    pub(super) fn move_aside(&self, path: &Path) -> Option<PlantedRepository> {
        let root = self.write.iter().find(|root| path.starts_with(root))?;
        let (parent, name) = (path.parent()?.strip_prefix(root).ok()?, path.file_name()?);
        let is_moved = rename_refused(root, parent, name)
            // The run may have taken away the right to rename there.
            || (Dir::open(root).and_then(|root| root.make_accessible(parent)).is_ok()
                && rename_refused(root, parent, name));
        // Named even if it could not be moved: the user must know.
        Some(PlantedRepository { path: path.to_owned(), is_moved })
    }
}

/// Gives a name below `root` another one. Whether it is free now.
fn rename_refused(root: &Path, parent: &Path, name: &OsStr) -> bool {
    let Ok(folder) = Dir::open(root).and_then(|root| {
        root.open_dir(Path::new(".").join(parent).as_path()).or_else(|_| root.open_deep_dir(parent))
    }) else {
        return false;
    };
    // A run can take the names that come to mind, and not one that it cannot guess.
    let suffixes = [Some(String::new()), lillux::file::unique_name().ok().map(|unique| format!("-{unique}"))];
    let is_free = suffixes.into_iter().flatten().any(|suffix| {
        let mut new_name = name.to_owned();
        new_name.push(format!("{REFUSED_SUFFIX}{suffix}"));
        folder.move_to(name, &folder, &new_name).is_ok()
    });
    is_free && matches!(folder.status(name), Ok(None))
}

/// Whether the files of a git folder name no program, and will name none before they are changed: they are files, not links
/// that something could be put behind later.
pub(super) fn runs_nothing(dirs: &GitDirs) -> bool {
    let is_absent =
        |path: PathBuf| path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let has_samples_only = match dirs.common.join("hooks").read_dir() {
        Ok(mut entries) => entries.all(|entry| {
            entry.is_ok_and(|entry| entry.path().extension().is_some_and(|last| last == "sample"))
        }),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    has_samples_only
        && is_absent(dirs.own.join("config.worktree"))
        && is_absent(dirs.common.join("config.worktree"))
        && git_config::is_harmless(&dirs.common.join("config"))
        && has_files_only(&dirs.common)
        && (dirs.own.starts_with(&dirs.common) || has_files_only(&dirs.own))
}

/// Whether there is nothing but files and folders in a folder, if it is there.
fn has_files_only(folder: &Path) -> bool {
    let (mut pending, mut count) = (vec![folder.to_owned()], 0);
    while let Some(folder) = pending.pop() {
        let entries = match folder.symlink_metadata() {
            Ok(found) if found.is_dir() => folder.read_dir(),
            Ok(_) => return false,
            Err(error) => Err(error),
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(_) => return false,
        };
        for entry in entries {
            let Ok((entry, kind)) = entry.and_then(|entry| entry.file_type().map(|kind| (entry, kind)))
            else {
                return false;
            };
            count += 1;
            if count > MAX_GIT_FILES || !(kind.is_dir() || kind.is_file()) {
                return false;
            }
            if kind.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    true
}

/// The folders below `folder` that have a `.git`.
fn nested_worktrees(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut pending, mut count) = (Vec::new(), vec![folder.to_owned()], 0);
    while let Some(folder) = pending.pop() {
        count += 1;
        if count > MAX_SEARCHED_FOLDERS {
            break;
        }
        for entry in folder.read_dir().into_iter().flatten().filter_map(Result::ok) {
            if entry.file_name() == ".git" {
                found.push(folder.clone());
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            }
        }
    }
    found
}

/// Checks the repositories during a run and when it is over, at the latest when this is dropped.
#[derive(Debug)]
pub struct RepositoryGuard {
    record: Option<RepositoryRecord>,
    search: Option<NewRepositorySearch>,
    marker: Option<RunMarker>,
    watch: Option<IndexWatch>,
    /// What a run left which ended without a check.
    pub recovered: Vec<PlantedRepository>,
}

impl RepositoryGuard {
    /// Begins a run.
    pub(super) fn begin(
        repositories: &Repositories,
        write: &[PathBuf],
        cache: &Path,
        project: &Path,
    ) -> Self {
        let search = NewRepositorySearch::begin(project, write);
        let record = RepositoryRecord { snapshot: search.snapshot(), ..repositories.record(write) };
        let marker = RunMarker::begin(cache, project, &record);
        Self {
            record: Some(record),
            search: Some(search),
            marker,
            watch: None,
            recovered: repositories.recovered.clone(),
        }
    }

    /// Watches the indexes until the run is over. Gives what ends the run: `cancel`, or what is found.
    ///
    /// # Errors
    /// When the process has no descriptor or thread left.
    pub fn watch(&mut self, cancel: &CancelToken) -> io::Result<CancelToken> {
        let Some(record) = self.record.as_ref().filter(|record| record.has_indexes()) else {
            return Ok(cancel.clone());
        };
        let watch = IndexWatch::start(record.clone(), cancel)?;
        Ok(self.watch.insert(watch).cancel_token().clone())
    }

    /// Moves aside the repositories that the run made and that could run a program. Says which.
    pub fn refuse_planted(&mut self) -> Vec<PlantedRepository> {
        let mut planted = self.watch.take().map(IndexWatch::finish).unwrap_or_default();
        if let Some(record) = self.record.take() {
            planted.extend(record.check().planted);
            let new = self.search.take().map(|search| search.refuse_new(&record, &planted));
            planted.extend(new.into_iter().flatten());
        }
        self.marker = None;
        planted.sort_by(|one, other| one.path.cmp(&other.path).then(one.is_moved.cmp(&other.is_moved)));
        planted.dedup_by(|later, first| later.path == first.path);
        planted
    }

    /// Leaves the check to the first run after the end of a process that outlives this one.
    pub fn transfer_to(mut self, pid: u32) {
        if let (Some(record), Some(marker)) = (self.record.take(), self.marker.take()) {
            marker.transfer_to(pid, &record);
        }
    }
}

impl Drop for RepositoryGuard {
    fn drop(&mut self) {
        self.refuse_planted();
    }
}
