//! Folders a run needs: one of its own for temporary files, and those of the project that it must not make itself.

use std::path::{Path, PathBuf};

use lillux::file::{self, TemporaryFolder};
use rye_space::AI_FOLDER;

use crate::engine::Engine;
use crate::error::Result;

/// Folders of the project's `.ai` that tools may read and not change. Only what is there can be protected.
const PROTECTED: [&str; 4] = ["config", "threads", "lockfiles", "bundles"];

/// An empty folder for one run's temporary files, removed when dropped.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn temporary(engine: &Engine) -> Result<TemporaryFolder> {
    let named = engine.host.environment.get("TMPDIR").map(PathBuf::from);
    let system =
        named.filter(|path| path.is_absolute() && path.is_dir()).unwrap_or_else(|| PathBuf::from("/tmp"));
    Ok(engine.host.temporaries.take(&system, "rye-run-")?)
}

/// Makes the protected folders of a project that has an `.ai`, so that no tool can make them first.
pub(super) fn protect(project: Option<&Path>) {
    let Some(ai) = project.map(|project| project.join(AI_FOLDER)).filter(|ai| ai.is_dir()) else { return };
    for name in PROTECTED {
        let folder = ai.join(name);
        if fs_err::symlink_metadata(&folder).is_err() {
            // A project that cannot be written to is protected already.
            let _ = file::create_folders(&folder, false);
        }
    }
}
