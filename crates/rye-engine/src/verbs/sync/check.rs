//! Whether manifest, lock and project agree, without a network: what `rye ci` asks.

use super::ProjectBundles;
use super::plan::stale_bundles;
use crate::engine::Engine;
use crate::error::Result;
use crate::verbs::install;

/// What was found.
pub(crate) struct BundleCheck {
    /// How many bundles the manifest asks for.
    pub(crate) count: usize,
    /// Everything that differs.
    pub(crate) problems: Vec<String>,
}

/// Compares manifest, lock and installed bundles; `None` if the project has no manifest.
///
/// # Errors
/// When one of the files is not valid.
pub(crate) fn check_installed(engine: &Engine) -> Result<Option<BundleCheck>> {
    let project = ProjectBundles::read(engine)?;
    if project.is_absent() {
        return Ok(None);
    }
    let mut problems = stale_bundles(&project);
    for locked in project.lock.bundles() {
        let id = locked.id();
        match install::project_installation(engine, id)? {
            None => problems.push(format!("`{id}` is not installed")),
            Some(installed) if installed.lock.manifest_hash != locked.manifest || !installed.has_manifest => {
                problems.push(format!(
                    "`{id}` {} is installed, not the {} of the lock",
                    installed.lock.version, locked.version
                ));
            }
            Some(installed) => {
                let missing = installed.missing.iter().map(|path| format!("`{path}` of `{id}` is missing"));
                problems.extend(missing);
                let changed =
                    installed.changed.iter().map(|path| format!("`{path}` of `{id}` was changed here"));
                problems.extend(changed);
            }
        }
    }
    for id in install::managed_bundles(engine)?.iter().filter(|id| project.lock.find(id).is_none()) {
        problems.push(format!("`{id}` is installed, but not asked for"));
    }
    Ok(Some(BundleCheck { count: project.manifest.bundles().len(), problems }))
}
