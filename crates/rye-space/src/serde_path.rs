//! Paths in answers: shown as text whatever bytes they have, so that one odd file name spoils no answer.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

/// A path as text.
///
/// # Errors
/// Those of the serialiser.
pub fn path<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

/// A path as text, or null.
///
/// # Errors
/// Those of the serialiser.
pub fn option<S: Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.display().to_string()).serialize(serializer)
}

/// Paths as texts.
///
/// # Errors
/// Those of the serialiser.
pub fn list<S: Serializer>(paths: &[PathBuf], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(paths.iter().map(|path| path.display().to_string()))
}
