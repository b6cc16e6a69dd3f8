//! Folders a run needs: one of its own for temporary files, and those of the project that it must not make itself.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use lillux::file::{self, LockedTempDir};
use lillux::{Digest, canonicalize_existing};
use rye_exec::environment::Environment;
use rye_exec::sandbox::{HomeDirs, SandboxPlan};
use rye_space::AI_FOLDER;
use rye_space::accounts::Accounts;
use rye_space::file_stamp::FileStamp;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// Folders of the project's `.ai` that tools may read and not change. Only what is there can be protected.
const PROTECTED_FOLDERS: [&str; 4] = ["config", "threads", "lockfiles", "bundles"];

/// An empty folder for one run's temporary files, removed when dropped. It lies in a folder of the user's own with those of
/// all other runs, so that a sandbox can close that folder and show this run its own. A folder in the project would be open to
/// its tools.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn temporary_folder(engine: &Engine) -> Result<LockedTempDir> {
    let named = engine.host.variables.get("TMPDIR").map(PathBuf::from);
    let project = engine.workspace.roots.project.as_ref().map(|project| canonicalize_existing(project));
    let is_closed = |folder: &PathBuf| !project.as_ref().is_some_and(|project| folder.starts_with(project));
    let named = named.filter(|path| path.is_absolute() && path.is_dir());
    let named = named.map(|path| canonicalize_existing(&path)).filter(is_closed);
    let system = named.unwrap_or_else(|| canonicalize_existing(Path::new("/tmp")));
    let user = lillux::owner::effective_uid();
    let folders = system.join(format!("rye-runs-{user}"));
    engine.host.temporary_folders.acquire(&folders, "rye-run-").map_err(|error| {
        Error::new(Code::Io, format!("no temporary folder for the run: {error}"))
            .hint("name a folder of your own: TMPDIR=DIR rye …")
    })
}

/// Caches that programs cannot do without, with where they lie in the home.
const HOME_CACHES: [(&str, &str); 2] = [("npm_config_cache", ".npm"), ("UV_CACHE_DIR", ".cache/uv")];

/// The variables that name the run's own temporary folder. A cache in the home, which is closed, is in it as well, unless
/// the variable is set or the run may write to the home's.
pub(crate) fn set_temporary_variables(
    engine: &Engine,
    plan: &SandboxPlan,
    temporary: &Path,
    environment: &mut BTreeMap<String, String>,
) {
    for name in ["TMPDIR", "TMP", "TEMP"] {
        environment.insert(name.to_owned(), temporary.display().to_string());
    }
    for (name, usual) in HOME_CACHES {
        let usual = engine.host.home.join(usual);
        let is_set = environment.keys().any(|key| key.eq_ignore_ascii_case(name));
        if !is_set && !plan.access.write.iter().any(|path| usual.starts_with(path)) {
            environment.insert(name.to_owned(), temporary.join(name).display().to_string());
        }
    }
}

/// The homes on this machine. They are worked out again when the list of accounts has changed.
pub(crate) fn home_dirs(engine: &Engine) -> HomeDirs {
    static LAST: Mutex<Option<(PathBuf, Option<FileStamp>, HomeDirs)>> = Mutex::new(None);
    // Looked at before it is read: a change in between is noticed the next time.
    let stamp = Accounts::file_stamp();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((home, known, homes)) = last.as_ref()
        && *home == engine.host.home
        && *known == stamp
    {
        return homes.clone();
    }
    let user = fs_err::metadata("/proc/self").map_or(0, |found| found.uid());
    let homes = HomeDirs::new(&engine.host.home, &Accounts::read(), user);
    *last = Some((engine.host.home.clone(), stamp, homes.clone()));
    homes
}

/// The folders that a tool looks for programs in.
pub(crate) fn program_folders(environment: &Environment) -> Vec<PathBuf> {
    let path = environment.variables.get("PATH").map_or("", String::as_str);
    path.split(':').filter(|entry| !entry.is_empty()).map(PathBuf::from).collect()
}

/// This binary, if it is `rye`: what a tool may call.
pub(super) fn rye_program(engine: &Engine) -> Option<&'static Path> {
    static FOUND: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    let launcher = engine.host.launcher.program();
    let (launcher_path, found) = FOUND.get_or_init(|| (launcher.to_owned(), canonicalize_existing(launcher)));
    (launcher_path == launcher && found.file_name().is_some_and(|name| name == "rye")).then_some(found)
}

/// A folder of the cache that holds a link to this binary and nothing else: to be searched last, where nothing else of that
/// name is found.
pub(super) fn rye_program_folder(engine: &Engine) -> Option<PathBuf> {
    let program = rye_program(engine)?;
    let name = Digest::of(program.as_os_str().as_encoded_bytes()).short();
    let folder = engine.workspace.roots.cache.join("program").join(name);
    let link = folder.join("rye");
    if fs_err::read_link(&link).is_ok_and(|target| target == program) {
        return Some(folder);
    }
    file::create_dirs(&folder, true).ok()?;
    file::symlink_if_absent(program, &link).ok()?;
    Some(folder)
}

/// Makes the protected folders of a project that has an `.ai`, so that no tool can make them first.
pub(super) fn create_protected_folders(project: Option<&Path>) {
    let Some(ai) = project.map(|project| project.join(AI_FOLDER)).filter(|ai| ai.is_dir()) else { return };
    for name in PROTECTED_FOLDERS {
        let folder = ai.join(name);
        if fs_err::symlink_metadata(&folder).is_err() {
            // A project that cannot be written to is protected already.
            let _ = file::create_dirs(&folder, false);
        }
    }
}
