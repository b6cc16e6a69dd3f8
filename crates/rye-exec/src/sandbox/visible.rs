//! What a tool sees of the homes.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use lillux::sandbox::Replacement;
use lillux::{CanonicalPathCache, canonicalize_existing};

use super::{SandboxError, SandboxPaths, SandboxPolicy, VISIBLE_IN_USER_SPACE, resolve_setting_paths};

/// Lists a path that may be a link, or lead through one: it is the user's own, so no tool could have changed it. What does
/// not exist is left out: of the many paths of the settings, few do on one machine.
pub(super) fn see(
    path: &Path,
    known: &mut CanonicalPathCache,
    visible: &mut Vec<PathBuf>,
    links: &mut Vec<Replacement>,
) {
    let Some(found) = known.existing(path) else { return };
    if found != path {
        let place =
            path.parent().zip(path.file_name()).map(|(parent, name)| known.canonicalize(parent).join(name));
        links.extend(
            place
                .filter(|place| *place != found)
                .map(|place| Replacement { path: place, with: found.clone() }),
        );
    }
    if !visible.contains(&found) {
        visible.push(found);
    }
}

/// What every tool may see in the homes: the project, its own files, programs and their toolchains, and what the settings
/// list.
pub(super) fn in_homes(
    policy: &SandboxPolicy,
    places: &SandboxPaths,
    variables: &BTreeMap<String, String>,
    is_project_open: bool,
) -> Result<Vec<PathBuf>, SandboxError> {
    let mut visible = resolve_setting_paths(&policy.home_read, places, variables)?;
    visible.extend(places.required.iter().cloned());
    visible.extend(VISIBLE_IN_USER_SPACE.iter().map(|name| places.user_ai.join(name)));
    let project = canonicalize_existing(&places.project);
    if is_project_open || !places.homes.is_or_contains_home(&project) {
        visible.push(project.clone());
    }
    // A folder in the project could be replaced by a link to anywhere.
    let is_foreign = |folder: &&PathBuf| folder.is_absolute() && !folder.starts_with(&places.project);
    for folder in places.program_folders.iter().filter(is_foreign) {
        let real = canonicalize_existing(folder);
        // A home is not opened, however its path is written.
        if places.homes.is_or_contains_home(&real) {
            continue;
        }
        if !folder.components().any(|part| part == Component::ParentDir) {
            visible.extend(places.homes.program_folder(folder));
        }
        visible.extend(places.homes.program_folder(&real));
    }
    Ok(visible)
}
