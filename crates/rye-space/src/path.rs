//! Paths inside a bundle. A path that could leave its folder, or be two files on one machine and one on another, does
//! not exist past this module.

use std::fmt;
use std::path::Path;

use serde::Serialize;

const MAX_PATH_BYTES: usize = 1024;
const MAX_SEGMENT_BYTES: usize = 255;

/// Why a text is not a path inside a bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid bundle path `{}`: {reason}", rye_item::text::one_line(.path))]
pub struct InvalidBundlePath {
    /// The text as given.
    pub path: String,
    /// The rule it breaks.
    pub reason: &'static str,
}

/// A relative path that begins with `.ai/`, in plain segments separated by `/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct BundlePath(String);

impl BundlePath {
    /// Checks `text` and makes it a path.
    ///
    /// # Errors
    /// When it is absolute, leaves its folder, lies outside `.ai/`, or has a segment some file system reads differently.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidBundlePath> {
        let text = text.into();
        match violated_rule(&text) {
            None => Ok(Self(text)),
            Some(reason) => Err(InvalidBundlePath { path: text, reason }),
        }
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path as one of the file system, relative to the folder that holds `.ai/`.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }

    /// What two paths have in common that are one file where case is ignored.
    #[must_use]
    pub fn case_folded(&self) -> String {
        self.0.to_lowercase()
    }
}

impl fmt::Display for BundlePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn violated_rule(text: &str) -> Option<&'static str> {
    if text.len() > MAX_PATH_BYTES {
        return Some("it is longer than 1024 bytes");
    }
    if text.starts_with('/') {
        return Some("it is absolute");
    }
    let Some(rest) = text.strip_prefix(".ai/") else {
        return Some("it does not begin with `.ai/`");
    };
    rest.split('/').find_map(|segment| match segment {
        "" => Some("it has an empty segment"),
        "." | ".." => Some("it has a segment `.` or `..`"),
        long if long.len() > MAX_SEGMENT_BYTES => Some("a segment is longer than 255 bytes"),
        // Names that Windows and macOS change, drop or give a meaning to.
        odd if odd.ends_with(['.', ' ']) => Some("a segment ends in a dot or a space"),
        odd if odd.chars().any(|character| !is_plain(character)) => {
            Some("only the letters a-z and A-Z, digits, spaces and `. _ - + @ = , ~ ( ) [ ]` are allowed: rename it")
        }
        _ => None,
    })
}

fn is_plain(character: char) -> bool {
    character.is_ascii_alphanumeric() || " ._-+@=,~()[]".contains(character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_paths_below_ai_exist() {
        for good in
            [".ai/tools/a/b.py", ".ai/config/keys/trusted/0123456789abcdef.toml", ".ai/tools/.hidden/[id].js"]
        {
            assert!(BundlePath::new(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "/etc/passwd",
            "tools/a.py",
            ".ai",
            ".ai/",
            ".ai//a",
            ".ai/../a",
            ".ai/a/..",
            ".ai/./a",
            ".ai/a\\b",
            ".ai/a\0b",
            ".ai/a:b",
            ".ai/a.",
            ".ai/a ",
            ".ai/é",
            ".ai/a\nb",
        ] {
            assert!(BundlePath::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn paths_differing_in_case_fold_together() {
        let paths = [".ai/tools/A.py", ".ai/tools/a.py"]
            .map(|path| BundlePath::new(path).expect("plain").case_folded());
        assert_eq!(paths[0], paths[1]);
    }
}
