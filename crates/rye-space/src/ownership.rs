//! Whom a project and the user space belong to. A folder that another user can change is adopted only if the user has approved it with its
//! owner on record.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lillux::owner::{self, ForeignControl, ROOT_UID, effective_uid, foreign_control, overflow_uid};

use crate::roots::{AI_FOLDER, Roots, RootsError, canonicalize_existing};

/// A folder of another user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignFolder {
    /// The folder.
    pub path: PathBuf,
    /// Its owner.
    pub owner: u32,
}

/// Folders that decide about the project `project` and belong neither to the user nor to root: its `.ai`, the project
/// itself, and every folder above. Nearest first.
#[must_use]
pub fn foreign_folders(project: &Path) -> Vec<ForeignFolder> {
    let project = canonicalize_existing(project);
    let own = effective_uid();
    let ai = project.join(AI_FOLDER);
    let real_ai = canonicalize_existing(&ai);
    let mut paths = vec![ai];
    // The `.ai` may be a link to another folder of the project: each folder on that way decides too.
    paths.extend(real_ai.ancestors().take_while(|path| **path != project).map(Path::to_owned));
    paths.extend(project.ancestors().map(Path::to_owned));
    paths.dedup();
    let is_above = |path: &Path| project.starts_with(path) && path != project;
    let owned = paths
        .into_iter()
        .filter_map(|path| Some(ForeignFolder { owner: owner::owner_uid(&path).ok()?, path }));
    let mut foreign: Vec<ForeignFolder> =
        owned.filter(|folder| folder.owner != own && folder.owner != ROOT_UID).collect();
    if !foreign.is_empty() {
        // In a user namespace root itself may be unknown: it owns the folders above everything.
        let unmapped = overflow_uid();
        foreign.retain(|folder| unmapped != Some(folder.owner) || !is_above(&folder.path));
    }
    foreign
}

/// The owners to record when the user approves `project`: all that are neither the user nor root.
#[must_use]
pub fn owners_to_record(project: &Path) -> Vec<u32> {
    let mut owners: Vec<u32> = foreign_folders(project).into_iter().map(|folder| folder.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    owners
}

/// Refuses a project whose `.ai`, or a folder above it, belongs to another user who is not on record.
///
/// # Errors
/// The nearest such folder.
pub fn check_owner(project: &Path, recorded: &[u32]) -> Result<(), RootsError> {
    // Without an `.ai` nothing of the folder is read.
    if project.join(AI_FOLDER).symlink_metadata().is_err() {
        return Ok(());
    }
    let unknown = foreign_folders(project).into_iter().find(|folder| !recorded.contains(&folder.owner));
    match unknown {
        None => Ok(()),
        Some(ForeignFolder { path, owner }) => {
            Err(RootsError::ForeignOwner { project: project.to_owned(), path, owner })
        }
    }
}

/// Every user may write.
const OTHERS_WRITE: u32 = 0o002;
/// The group may write.
const GROUP_WRITES: u32 = 0o020;

/// What in the user's `.ai` decides what is trusted and what runs without being signed itself, with all that is in it.
const DECIDING_TREES: [&str; 2] = ["config", "lockfiles"];

/// The own key has a stricter rule of its own.
const SIGNING_KEYS: &str = "config/keys/signing";

/// How deep these are looked into: links in them may lead in circles.
const MAX_DEPTH: usize = 8;

/// Refuses a user space of which a deciding folder or file belongs to another user than this one or root, or can be
/// written by other users.
///
/// # Errors
/// The first such file or folder.
pub fn check_user_space(roots: &Roots) -> Result<(), RootsError> {
    for path in roots.deciding_folders() {
        check_entry(&path)?;
    }
    let ai = roots.user_ai();
    let excluded = ai.join(SIGNING_KEYS);
    DECIDING_TREES.iter().try_for_each(|name| check_tree(&ai.join(name), &excluded, MAX_DEPTH))
}

/// Whether `path` is a folder that can be looked into.
fn check_entry(path: &Path) -> Result<bool, RootsError> {
    let Ok(found) = fs_err::metadata(path) else { return Ok(false) };
    match foreign_control(&found) {
        None => Ok(found.is_dir()),
        Some(ForeignControl::Owner(owner)) => {
            Err(RootsError::ForeignUserSpace { path: path.to_owned(), owner })
        }
        Some(ForeignControl::Mode(mode)) => Err(RootsError::OpenUserSpace { path: path.to_owned(), mode }),
    }
}

fn check_tree(path: &Path, excluded: &Path, depth: usize) -> Result<(), RootsError> {
    if depth == 0 || path == excluded || !check_entry(path)? {
        return Ok(());
    }
    // A folder that cannot be read is named where its files are looked for.
    let entries = fs_err::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).try_for_each(|path| check_tree(&path, excluded, depth - 1))
}

/// A folder in which users cannot rename or remove what belongs to others.
const STICKY: u32 = 0o1000;
/// Other users may enter a folder.
const OTHERS_ENTER: u32 = 0o011;

/// Refuses a cache folder that another user than this one or root owns or may write to, or in which such a user's files lie:
/// what is staged, mounted and moved aside there is used as it is. Of the folder above, other users may have a share if it is
/// sticky, as `/tmp` is; then the cache folder is made here, before they can make it.
///
/// # Errors
/// The first such file or folder.
pub fn check_cache(cache: &Path) -> Result<(), RootsError> {
    if let Some(parent) = cache.parent().filter(|parent| !parent.as_os_str().is_empty())
        && let Ok(found) = fs_err::metadata(parent)
    {
        if !found.is_dir() {
            // Nothing can lie there: rye works without a cache, or says what it needs one for.
            return Ok(());
        }
        // In a user namespace root itself may be unknown.
        let is_root = |owner: u32| overflow_uid() == Some(owner);
        match foreign_control(&found) {
            None => {}
            Some(ForeignControl::Owner(owner)) if !is_root(owner) => {
                return Err(RootsError::ForeignCache { path: parent.to_owned(), owner });
            }
            Some(ForeignControl::Owner(_)) if found.mode() & (OTHERS_WRITE | STICKY) != OTHERS_WRITE => {}
            Some(ForeignControl::Mode(mode)) if mode & STICKY != 0 => {
                // What cannot be made is reported where it is used.
                let _ = lillux::file::create_dirs(cache, true);
            }
            Some(ForeignControl::Owner(_) | ForeignControl::Mode(_)) => {
                return Err(RootsError::OpenCache { path: parent.to_owned(), mode: found.mode() & 0o7777 });
            }
        }
    }
    let Ok(found) = fs_err::metadata(cache) else { return Ok(()) };
    check_cache_entry(cache, true)?;
    // In a folder that no other user can enter, modes do not matter.
    let is_entered = found.mode() & OTHERS_ENTER != 0;
    let entries = fs_err::read_dir(cache).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).try_for_each(|path| check_cache_entry(&path, is_entered))
}

fn check_cache_entry(path: &Path, checks_mode: bool) -> Result<(), RootsError> {
    // A link and what it leads to.
    for found in [fs_err::symlink_metadata(path), fs_err::metadata(path)].into_iter().flatten() {
        match foreign_control(&found) {
            Some(ForeignControl::Owner(owner)) => {
                return Err(RootsError::ForeignCache { path: path.to_owned(), owner });
            }
            Some(ForeignControl::Mode(mode)) if checks_mode && !found.is_symlink() => {
                return Err(RootsError::OpenCache { path: path.to_owned(), mode });
            }
            Some(ForeignControl::Mode(_)) | None => {}
        }
    }
    Ok(())
}

/// Folders of user space that a group may write to.
#[must_use]
pub fn group_writable(roots: &Roots) -> Vec<PathBuf> {
    let is_open = |path: &PathBuf| fs_err::metadata(path).is_ok_and(|found| found.mode() & GROUP_WRITES != 0);
    roots.deciding_folders().into_iter().filter(is_open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A project below a folder of its own; only root can give it away.
    fn project() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let project = folder.path().canonicalize().expect("a folder").join("above/project");
        lillux::file::create_dirs(&project.join(AI_FOLDER), false).expect("folders");
        (folder, project)
    }

    #[test]
    fn caches_that_others_can_change_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let shared = folder.path().canonicalize().expect("a folder").join("shared");
        let cache = shared.join("rye");
        lillux::file::create_dirs(&cache.join("run"), false).expect("folders");
        let mode = |path: &Path, mode: u32| lillux::file::set_mode(path, mode).expect("a mode");
        assert_eq!(check_cache(&cache), Ok(()));
        // The folder above may be shared if other users cannot move what is in it.
        mode(&shared, 0o1777);
        assert_eq!(check_cache(&cache), Ok(()));
        mode(&shared, 0o777);
        assert_eq!(check_cache(&cache), Err(RootsError::OpenCache { path: shared.clone(), mode: 0o777 }));
        mode(&shared, 0o755);
        for open in [cache.clone(), cache.join("run")] {
            mode(&open, 0o1777);
            assert_eq!(check_cache(&cache), Err(RootsError::OpenCache { path: open.clone(), mode: 0o1777 }));
            mode(&open, 0o755);
        }
        mode(&cache.join("run"), 0o777);
        mode(&cache, 0o700);
        assert_eq!(check_cache(&cache), Ok(()), "no other user gets there");
        if effective_uid() != ROOT_UID {
            return;
        }
        for given in [shared.clone(), cache.clone(), cache.join("run")] {
            std::os::unix::fs::chown(&given, Some(4321), None).expect("given away");
            assert_eq!(
                check_cache(&cache),
                Err(RootsError::ForeignCache { path: given.clone(), owner: 4321 })
            );
            std::os::unix::fs::chown(&given, Some(0), None).expect("given back");
        }
    }

    #[test]
    fn missing_cache_in_a_shared_folder_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        lillux::file::set_mode(folder.path(), 0o1777).expect("a mode");
        let cache = folder.path().join("rye");
        assert_eq!(check_cache(&cache), Ok(()));
        assert_eq!(fs_err::metadata(&cache).expect("made").mode() & 0o7777, 0o700);
    }

    #[test]
    fn own_projects_are_adopted() {
        let (_folder, project) = project();
        assert_eq!(foreign_folders(&project), []);
        assert!(check_owner(&project, &[]).is_ok());
    }

    #[test]
    fn projects_of_other_users_are_refused() {
        if effective_uid() != ROOT_UID {
            return;
        }
        for foreign_path in ["above/project/.ai", "above/project", "above"] {
            let (folder, project) = project();
            let path = folder.path().canonicalize().expect("a folder").join(foreign_path);
            std::os::unix::fs::chown(&path, Some(4321), None).expect("given away");
            let refused = check_owner(&project, &[]).expect_err(foreign_path);
            let expected = RootsError::ForeignOwner { project: project.clone(), path, owner: 4321 };
            assert_eq!(refused, expected);
            assert!(check_owner(&project, &[1]).is_err());
            assert!(check_owner(&project, &[1, 4321]).is_ok(), "{foreign_path}");
            assert_eq!(owners_to_record(&project), [4321]);
        }
    }

    #[test]
    fn links_to_foreign_folders_are_refused() {
        if effective_uid() != ROOT_UID {
            return;
        }
        let (_folder, project) = project();
        let inner = project.join("inner/ai");
        lillux::file::create_dirs(&inner, false).expect("folders");
        lillux::file::remove_tree(&project.join(AI_FOLDER)).expect("removed");
        std::os::unix::fs::symlink("inner/ai", project.join(AI_FOLDER)).expect("a link");
        assert!(check_owner(&project, &[]).is_ok());
        std::os::unix::fs::chown(project.join("inner"), Some(4321), None).expect("given away");
        assert!(check_owner(&project, &[]).is_err());
    }

    #[test]
    fn without_ai_nothing_is_adopted() {
        let (_folder, project) = project();
        lillux::file::remove_tree(&project.join(AI_FOLDER)).expect("removed");
        if effective_uid() == ROOT_UID {
            std::os::unix::fs::chown(&project, Some(4321), None).expect("given away");
        }
        assert!(check_owner(&project, &[]).is_ok());
    }
}
