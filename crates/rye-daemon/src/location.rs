//! One place with threads: all that an engine on it is opened with, but the environment.

use std::path::PathBuf;

use lillux::Digest;
use rye_space::Roots;
use serde::{Deserialize, Serialize};

/// A place with threads. Where two differ in anything, they are two.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThreadsLocation {
    /// The folder of its threads.
    pub threads: PathBuf,
    /// The project's folder.
    pub project: Option<PathBuf>,
    /// The user space's base.
    pub user: PathBuf,
    /// Where indexes are kept.
    pub cache: PathBuf,
    /// Where the own key pair is.
    pub signing_keys: PathBuf,
    /// Folders of bundles named by the environment.
    pub bundle_paths: Vec<PathBuf>,
    /// The user's home.
    pub home: PathBuf,
    /// The folder that is worked in where there is no project.
    pub folder: PathBuf,
    /// Whether development mode is wanted.
    pub wants_dev_mode: bool,
}

impl ThreadsLocation {
    /// Where the spaces begin.
    #[must_use]
    pub fn roots(&self) -> Roots {
        Roots {
            project: self.project.clone(),
            user: self.user.clone(),
            home: self.home.clone(),
            cache: self.cache.clone(),
            signing_keys: self.signing_keys.clone(),
            bundle_paths: self.bundle_paths.clone(),
        }
    }

    /// The name under which it is remembered: one for each folder of threads.
    pub(crate) fn file_name(&self) -> String {
        let canonical = lillux::canonicalize_existing(&self.threads);
        format!("{}.json", Digest::of(canonical.as_os_str().as_encoded_bytes()).to_hex())
    }
}
