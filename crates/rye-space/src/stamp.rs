//! Noticing change: what a file or folder looked like when it was read, and whether it still does.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Size and times of a file; another stamp means another content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: i64,
    /// Modification time in nanoseconds.
    pub modified: i64,
    /// Change time in nanoseconds: catches an edit that puts the modification time back.
    pub changed: i64,
}

impl Stamp {
    /// The stamp of a file with this metadata.
    #[must_use]
    pub fn of(metadata: &Metadata) -> Self {
        let nanoseconds =
            |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Self {
            size: i64::try_from(metadata.size()).unwrap_or(i64::MAX),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// The paths something was made from, absent ones included: a new file that would shadow another is noticed too.
#[derive(Clone, Debug, Default)]
pub struct Watched(Vec<(PathBuf, Option<Stamp>)>);

impl Watched {
    /// Remembers how `path` looks now.
    pub fn add(&mut self, path: PathBuf) {
        let stamp = look(&path);
        self.0.push((path, stamp));
    }

    /// Whether every path still looks as it did.
    #[must_use]
    pub fn is_unchanged(&self) -> bool {
        self.0.iter().all(|(path, stamp)| look(path) == *stamp)
    }
}

fn look(path: &std::path::Path) -> Option<Stamp> {
    fs_err::metadata(path).ok().map(|metadata| Stamp::of(&metadata))
}
