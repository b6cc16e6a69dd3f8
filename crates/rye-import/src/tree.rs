//! A source tree: the names in it, and the bytes of the files that count.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

/// How many entries of a tree are looked at.
pub const MAX_ENTRIES: usize = 200_000;
/// How many files one source (a skill, a plugin) may have.
pub const MAX_UNIT_FILES: usize = 1_000;
/// The largest text that becomes an item.
pub const MAX_TEXT_BYTES: u64 = 1 << 20;
/// The largest file that is kept beside an item.
pub const MAX_ASSET_BYTES: u64 = 16 << 20;
/// How much one import reads in all.
pub const MAX_TOTAL_BYTES: u64 = 256 << 20;
/// How deep folders are looked into.
pub const MAX_FOLDER_DEPTH: usize = 24;
const MAX_PATH_BYTES: usize = 1_024;

/// Why a text is not a path of a source tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourcePathError {
    /// It leaves the tree, or has empty parts.
    #[error("the path leaves its folder")]
    Escapes,
    /// It has characters that no name should have.
    #[error("the name has control or hidden characters, or a backslash")]
    Unsafe,
    /// It is too long.
    #[error("the path is longer than {MAX_PATH_BYTES} bytes")]
    TooLong,
}

/// A path below the root of a source tree: `/` between its parts, none of them empty, `.` or `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourcePath(String);

impl SourcePath {
    /// Checks a path.
    ///
    /// # Errors
    /// When it could name something outside the tree, or cannot be shown as it is.
    pub fn new(text: &str) -> Result<Self, SourcePathError> {
        if text.len() > MAX_PATH_BYTES {
            return Err(SourcePathError::TooLong);
        }
        if text.contains('\\') || crate::findings::has_hidden(text) || text.chars().any(char::is_control) {
            return Err(SourcePathError::Unsafe);
        }
        match text.split('/').any(|part| matches!(part, "" | "." | "..")) {
            true => Err(SourcePathError::Escapes),
            false => Ok(Self(text.to_owned())),
        }
    }

    /// A path that a manifest names, relative to a folder of the tree: `./skills/` below `plugins/a`.
    ///
    /// # Errors
    /// As [`SourcePath::new`], also when it goes up.
    pub fn resolve(folder: &str, text: &str) -> Result<String, SourcePathError> {
        if text.starts_with('/') || text.contains(':') {
            return Err(SourcePathError::Escapes);
        }
        let parts: Vec<&str> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
        if parts.contains(&"..") {
            return Err(SourcePathError::Escapes);
        }
        let relative = parts.join("/");
        if !relative.is_empty() {
            Self::new(&relative)?;
        }
        Ok(join(folder, &relative))
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its last part.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Everything before the last part; empty at the root.
    #[must_use]
    pub fn folder(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(folder, _)| folder)
    }

    /// The path below a folder, if it lies there.
    #[must_use]
    pub fn below(&self, folder: &str) -> Option<&str> {
        match folder {
            "" => Some(&self.0),
            _ => self.0.strip_prefix(folder)?.strip_prefix('/'),
        }
    }
}

impl fmt::Display for SourcePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Two paths in one; either may be empty.
pub(crate) fn join(folder: &str, rest: &str) -> String {
    match (folder, rest) {
        ("", rest) => rest.to_owned(),
        (folder, "") => folder.to_owned(),
        (folder, rest) => format!("{folder}/{rest}"),
    }
}

/// What a name in a source tree stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceEntry {
    /// A regular file of so many bytes; whether it may be run as a program.
    File {
        /// Its size in bytes.
        size: u64,
        /// Whether its owner may run it.
        is_executable: bool,
    },
    /// A link, which is never followed.
    Link,
    /// A device, a pipe, a socket.
    Other,
}

/// What a source on the web was fetched from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceOrigin {
    /// Its address.
    pub address: String,
    /// Exactly what was fetched: a commit, or `sha256:…`.
    pub revision: String,
}

/// The names in a source tree.
#[derive(Clone, Debug, Default)]
pub struct SourceListing {
    /// Where it was fetched from; none of what lies on this machine.
    pub origin: Option<SourceOrigin>,
    /// The folders above the root, nearest last (`project/.claude`): where a file lies decides what it is.
    pub context: String,
    /// What the source is called in records and messages.
    pub label: String,
    /// The entries.
    pub entries: BTreeMap<SourcePath, SourceEntry>,
    /// Names that cannot be used, with the reason.
    pub refused: Vec<(String, SourcePathError)>,
    /// Folders that were not looked into: `.git`, `node_modules`.
    pub skipped: Vec<String>,
    /// Whether there was more than is looked at.
    pub is_truncated: bool,
}

impl SourceListing {
    /// The path of an entry together with the folders above the root.
    #[must_use]
    pub fn full_path(&self, path: &str) -> String {
        join(&self.context, path)
    }

    /// What an entry is called in records and messages.
    #[must_use]
    pub fn display_path(&self, path: &str) -> String {
        join(&self.label, path)
    }

    /// Whether there is a file at this path.
    #[must_use]
    pub fn has_file(&self, path: &str) -> bool {
        SourcePath::new(path)
            .is_ok_and(|path| matches!(self.entries.get(&path), Some(SourceEntry::File { .. })))
    }

    /// The entries below a folder.
    pub fn below<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a SourcePath, SourceEntry)> {
        let start = match folder {
            "" => None,
            folder => Some(SourcePath(format!("{folder}/"))),
        };
        let range = match start {
            Some(start) => self.entries.range(start..),
            None => self.entries.range::<SourcePath, _>(..),
        };
        range.take_while(move |(path, _)| path.below(folder).is_some()).map(|(path, entry)| (path, *entry))
    }
}

/// The bytes of the files that were read.
#[derive(Clone, Debug, Default)]
pub struct SourceTree {
    files: BTreeMap<SourcePath, Vec<u8>>,
}

impl SourceTree {
    /// Adds a file.
    pub fn insert(&mut self, path: SourcePath, bytes: Vec<u8>) {
        self.files.insert(path, bytes);
    }

    /// The bytes of a file.
    #[must_use]
    pub fn bytes(&self, path: &SourcePath) -> Option<&[u8]> {
        self.files.get(path).map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_their_tree() {
        for good in ["a", "a/b.md", ".claude/agents/x.md", "with space/ü.md"] {
            assert!(SourcePath::new(good).is_ok(), "{good}");
        }
        for bad in ["", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\u{202e}b", "a\nb", "\u{e0041}a"]
        {
            assert!(SourcePath::new(bad).is_err(), "{bad:?}");
        }
        assert!(SourcePath::new(&"a".repeat(2_000)).is_err());
        assert_eq!(SourcePath::resolve("p", "./skills/"), Ok("p/skills".to_owned()));
        assert_eq!(SourcePath::resolve("p", "./"), Ok("p".to_owned()));
        for bad in ["../x", "/etc", "a/../../b", "https://x", "c:x"] {
            assert_eq!(SourcePath::resolve("p", bad), Err(SourcePathError::Escapes), "{bad}");
        }
    }
}
