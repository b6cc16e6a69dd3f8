//! Repositories below the project that a run made or changed and that no index names yet. `git add .` or a checkout would have
//! git look into them at the next `git status`, when no run is there to notice. So all folders are searched after a run, and
//! what is new and could run a program is moved aside. One that the user made stays, whatever it runs.
//!
//! A folder is as old as it is under any name. So a run could make most of a repository, and a later one only rename it: folders
//! with parts of a repository that a run made are remembered.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lillux::{Digest, file};

use super::git::{GitDirs, GitLayout};
use super::repositories::{PlantedRepository, REFUSED_SUFFIX, RepositoryRecord};

/// The folder of what is remembered, in the cache.
const FOLDER: &str = "repository-parts";
/// More folders than this are not searched.
const MAX_FOLDERS: usize = 50_000;
/// More folders than this are not remembered.
const MAX_REMEMBERED: usize = 10_000;
const MAX_RECORD_BYTES: u64 = 1 << 20;
/// The kernel's clock for file times lags behind by up to a tick.
const CLOCK_MARGIN: Duration = Duration::from_millis(20);
/// What a folder has that git takes for a repository without a `.git`.
const BARE_ENTRIES: [&str; 3] = ["HEAD", "objects", "refs"];
/// What in a repository names programs, and other folders.
const DECISIVE_ENTRIES: [&str; 5] = ["config", "config.worktree", "commondir", "gitdir", "hooks"];

/// Folders by device and inode, which they keep when they are renamed.
type FolderIds = BTreeSet<(u64, u64)>;

/// What is remembered, by the path of its record.
fn remembered() -> MutexGuard<'static, HashMap<PathBuf, FolderIds>> {
    static REMEMBERED: OnceLock<Mutex<HashMap<PathBuf, FolderIds>>> = OnceLock::new();
    REMEMBERED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A search after a run for the repositories that it made or changed.
#[derive(Clone, Debug)]
pub(super) struct NewRepositorySearch {
    project: PathBuf,
    record: PathBuf,
    started: SystemTime,
}

/// What a search found.
#[derive(Default)]
struct FoundFolders {
    repositories: Vec<FoundRepository>,
    /// Folders that have parts of a repository.
    parts: Vec<PathBuf>,
}

/// Something that git takes for a repository.
struct FoundRepository {
    /// Its `.git`, or its own folder if it has none.
    entry: PathBuf,
    /// What makes it a repository: moved aside, it is none.
    decisive: PathBuf,
    layout: Option<GitLayout>,
    dirs: Option<GitDirs>,
}

impl NewRepositorySearch {
    /// Begins a run now.
    #[allow(
        clippy::disallowed_methods,
        reason = "it is compared with the times of files, which the kernel's clock gives"
    )]
    pub(super) fn begin(cache: &Path, project: &Path) -> Self {
        Self::new(cache, project, SystemTime::now() - CLOCK_MARGIN)
    }

    /// For a run that began at a time and was not checked.
    pub(super) fn new(cache: &Path, project: &Path, started: SystemTime) -> Self {
        let project = lillux::canonicalize_existing(project);
        let name = Digest::of(project.as_os_str().as_encoded_bytes()).short().to_owned();
        Self { record: cache.join(FOLDER).join(name), project, started }
    }

    /// Moves aside what the run made or changed and could run a program. `record` says what else was there.
    pub(super) fn refuse_new(&self, record: &RepositoryRecord) -> Vec<PlantedRepository> {
        let known = self.load();
        let found = search(&self.project);
        let is_refused = |repository: &&FoundRepository| {
            (self.is_new(&repository.entry, &known) || self.is_changed(repository))
                && !record.is_known(&repository.entry)
                && !is_harmless(repository, record)
        };
        let refused = found.repositories.iter().filter(is_refused);
        let planted = refused.filter_map(|repository| record.move_aside(&repository.decisive)).collect();
        let parts = found.parts.iter().filter_map(|folder| {
            let id = folder_id(folder)?;
            let is_since = || DECISIVE_ENTRIES.iter().any(|name| self.is_entry_since(&folder.join(name)));
            (known.contains(&id) || is_since()).then_some(id)
        });
        let parts: FolderIds = parts.take(MAX_REMEMBERED).collect();
        if parts != known {
            self.remember(parts);
        }
        planted
    }

    fn load(&self) -> FolderIds {
        if let Some(known) = remembered().get(&self.record) {
            return known.clone();
        }
        let bytes = file::read_bounded(&self.record, MAX_RECORD_BYTES).map(|(bytes, _)| bytes);
        let known: FolderIds =
            bytes.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        remembered().insert(self.record.clone(), known.clone());
        known
    }

    fn remember(&self, known: FolderIds) {
        if let Ok(text) = serde_json::to_vec(&known)
            && let Some(folder) = self.record.parent()
            && file::create_dirs(folder, true).is_ok()
        {
            // Without it, this process still knows.
            let _ = file::replace_unsynced(&self.record, &text);
        }
        remembered().insert(self.record.clone(), known);
    }

    fn is_since(&self, path: &Path) -> bool {
        let Ok(metadata) = path.symlink_metadata() else { return false };
        let seconds = Duration::new(
            u64::try_from(metadata.ctime()).unwrap_or(0),
            u32::try_from(metadata.ctime_nsec()).unwrap_or(0),
        );
        UNIX_EPOCH + seconds >= self.started
    }

    /// [`Self::is_since`] of a file, or of a folder and what is in it.
    fn is_entry_since(&self, path: &Path) -> bool {
        self.is_since(path)
            || path.read_dir().into_iter().flatten().flatten().any(|inner| self.is_since(&inner.path()))
    }

    /// Whether a `.git`, or a folder that is a repository, was made by the run, or put together from what a run made.
    fn is_new(&self, entry: &Path, known: &FolderIds) -> bool {
        let Ok(metadata) = entry.symlink_metadata() else { return false };
        let is_made = match metadata.created() {
            Ok(made) => made >= self.started,
            // Where the file system does not say, a change counts.
            Err(_) => self.is_since(entry),
        };
        // Renaming a folder is a change of it; what the user moved back before the run stays.
        is_made || known.contains(&(metadata.dev(), metadata.ino())) && self.is_since(entry)
    }

    /// Whether the run changed what names programs and other folders. A commit changes nothing of it.
    fn is_changed(&self, found: &FoundRepository) -> bool {
        let pointers = found.layout.iter().flat_map(|layout| &layout.pointers);
        if pointers.into_iter().any(|pointer| self.is_since(pointer)) {
            return true;
        }
        let Some(dirs) = &found.dirs else { return self.is_since(&found.entry) };
        let in_folder =
            |folder: &Path| DECISIVE_ENTRIES.iter().any(|name| self.is_entry_since(&folder.join(name)));
        in_folder(&dirs.own) || in_folder(&dirs.common)
    }
}

fn is_harmless(found: &FoundRepository, record: &RepositoryRecord) -> bool {
    match (&found.layout, &found.dirs) {
        (_, Some(dirs)) if record.is_protected(dirs) => true,
        (Some(layout), _) => record.is_harmless(layout),
        (None, Some(dirs)) => super::repositories::runs_nothing(dirs),
        (None, None) => false,
    }
}

fn folder_id(folder: &Path) -> Option<(u64, u64)> {
    folder.symlink_metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn is_one_of(name: &OsStr, names: &[&str]) -> bool {
    names.iter().any(|known| name == *known)
}

/// Searches all folders below `project`, nearer ones first. Its own `.git` is protected and left out.
fn search(project: &Path) -> FoundFolders {
    let (mut found, mut pending, mut next) = (FoundFolders::default(), vec![project.to_owned()], 0);
    while let Some(folder) = pending.get(next).cloned() {
        next += 1;
        let (mut folders, mut bare, mut has_parts) = (Vec::new(), 0, false);
        for entry in folder.read_dir().into_iter().flatten().flatten() {
            let name = entry.file_name();
            if name == ".git" {
                found.repositories.extend((folder != project).then(|| with_git_entry(&folder)));
                continue;
            }
            bare += usize::from(is_one_of(&name, &BARE_ENTRIES));
            has_parts |= is_one_of(&name, &DECISIVE_ENTRIES);
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
        if pending.len() + folders.len() <= MAX_FOLDERS {
            pending.extend(folders);
        }
        if folder == project {
            continue;
        }
        if bare == BARE_ENTRIES.len() && !is_moved_aside(&folder) {
            found.repositories.push(bare_repository(folder));
        } else if has_parts {
            found.parts.push(folder);
        }
    }
    found
}

fn is_moved_aside(folder: &Path) -> bool {
    let name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
    name.strip_prefix(".git").is_some_and(|rest| rest.starts_with(REFUSED_SUFFIX))
}

fn bare_repository(folder: PathBuf) -> FoundRepository {
    FoundRepository {
        decisive: folder.join("HEAD"),
        layout: None,
        dirs: Some(GitDirs { own: folder.clone(), common: folder.clone() }),
        entry: folder,
    }
}

fn with_git_entry(folder: &Path) -> FoundRepository {
    let layout = GitLayout::read(folder);
    let dirs = layout.as_ref().and_then(|layout| layout.dirs.clone());
    let entry = folder.join(".git");
    FoundRepository { decisive: entry.clone(), entry, layout, dirs }
}
