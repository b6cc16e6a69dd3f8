//! Links that a tool's declared paths lead through. A path by its own name is the signed tool's to ask for; where a link in the
//! project leads is not what was signed.

use std::path::{Path, PathBuf};

use lillux::canonicalize_existing;
use rye_item::text::one_line;

use super::{SandboxError, SandboxPaths};

/// Names of folders that hold what git and `rye` obey.
const SETTINGS_FOLDERS: [&str; 2] = [".git", rye_space::AI_FOLDER];

/// Refuses a declared path that a link leads into a folder of settings, or to one that holds such a folder. `path` is where it
/// really is, `settings_folders` are those that are known.
pub(super) fn check_write(
    text: &str,
    path: &Path,
    paths: &SandboxPaths,
    settings_folders: &[PathBuf],
) -> Result<(), SandboxError> {
    // A link to nothing may lead anywhere by the time the tool runs.
    if path.ancestors().any(Path::is_symlink) {
        return Err(SandboxError::Denied { path: one_line(text), reason: "which is a link to nothing" });
    }
    let named = named_place(text, paths);
    if named == path {
        return Ok(());
    }
    let meets = |folder: &PathBuf| {
        let folder = canonicalize_existing(folder);
        path.starts_with(&folder) || folder.starts_with(path)
    };
    let is_below_settings = path.iter().any(|name| {
        SETTINGS_FOLDERS.iter().any(|folder| name == *folder) && !named.iter().any(|part| part == name)
    });
    if is_below_settings || settings_folders.iter().any(meets) {
        let reason = "which a link leads to what git or `rye` obeys";
        return Err(SandboxError::Denied { path: one_line(text), reason });
    }
    Ok(())
}

/// Where a path would be if there were no links below the project or the home.
fn named_place(text: &str, paths: &SandboxPaths) -> PathBuf {
    let below = |base: &Path, rest: &Path| {
        let names = rest.components().filter(|part| matches!(part, std::path::Component::Normal(_)));
        names.fold(canonicalize_existing(base), |path, name| path.join(name))
    };
    if let Some(rest) = text.strip_prefix("{project_path}") {
        return below(&paths.project, Path::new(rest));
    }
    if let Some(rest) = text.strip_prefix('~') {
        return below(&paths.home, Path::new(rest));
    }
    let path = Path::new(text);
    for base in [&paths.project, &paths.home] {
        for base in [base.clone(), canonicalize_existing(base)] {
            if let Ok(rest) = path.strip_prefix(&base) {
                return below(&base, rest);
            }
        }
    }
    canonicalize_existing(path)
}
