//! What in a project no tool may change or see, as names below it: for changes that were made on another machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::canonicalize_existing;
use rye_item::file_name::fold_name;

use super::{SandboxError, SandboxPaths, SandboxPolicy, always_read_only, resolve_setting_paths};

/// Why no tool may change a path of a project, or see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectLimit {
    /// `hidden` names it.
    Hidden,
    /// `protected` names it.
    Protected,
    /// `read_only` names it, or it belongs to rye.
    ReadOnly,
}

/// The names in a path, as file systems could read them.
type FoldedPath = Vec<String>;

/// What the settings say of the paths of one project, whether something is there or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProjectLimits {
    /// In the project and in any folder of it: a folder may be a project itself.
    protected: Vec<FoldedPath>,
    read_only: Vec<FoldedPath>,
    hidden: Vec<FoldedPath>,
}

impl ProjectLimits {
    /// The limits of the project that `paths` names. They hold at every level: a patch is never the work of one signed tool.
    ///
    /// # Errors
    /// When the settings' paths are not understood.
    pub fn new(
        policy: &SandboxPolicy,
        paths: &SandboxPaths,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, SandboxError> {
        let hidden = resolve_setting_paths(&policy.hidden, paths, variables)?;
        let read_only = always_read_only(policy, paths, variables)?;
        let below = |path: &PathBuf| paths_below(&paths.project, path);
        Ok(Self {
            protected: policy.protected.iter().map(|name| fold_path(name)).collect(),
            // The folder of a worker's trees lies in its cache, which says nothing of what is in them.
            read_only: read_only.iter().flat_map(below).filter(|path| !path.is_empty()).collect(),
            hidden: hidden.iter().flat_map(below).collect(),
        })
    }

    /// Whether no tool sees a path below the project.
    #[must_use]
    pub fn is_hidden(&self, path: &str) -> bool {
        let path = fold_path(path);
        self.hidden.iter().any(|hidden| path.starts_with(hidden))
    }

    /// Why no tool may change a path below the project, if none may. What leads to such a path is one: a file in its place would
    /// take it away.
    #[must_use]
    pub fn change_limit(&self, path: &str) -> Option<ProjectLimit> {
        let path = fold_path(path);
        let meets = |limit: &FoldedPath| path.starts_with(limit) || limit.starts_with(&path);
        let is_protected = |name: &FoldedPath| {
            name.starts_with(&path) || path.windows(name.len().max(1)).any(|part| part == name.as_slice())
        };
        if self.hidden.iter().any(meets) {
            Some(ProjectLimit::Hidden)
        } else if self.protected.iter().any(is_protected) {
            Some(ProjectLimit::Protected)
        } else {
            self.read_only.iter().any(meets).then_some(ProjectLimit::ReadOnly)
        }
    }
}

fn fold_path(path: &str) -> FoldedPath {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").map(fold_name).collect()
}

/// A path, and where it leads, as paths below the project: empty if it is the project, or contains it.
fn paths_below(project: &Path, path: &Path) -> Vec<FoldedPath> {
    let mut found = Vec::new();
    for root in [project.to_owned(), canonicalize_existing(project)] {
        for path in [path.to_owned(), canonicalize_existing(path)] {
            let below = match path.strip_prefix(&root) {
                Ok(below) => fold_path(&below.to_string_lossy()),
                Err(_) if root.starts_with(&path) => FoldedPath::new(),
                Err(_) => continue,
            };
            if !found.contains(&below) {
                found.push(below);
            }
        }
    }
    found
}
