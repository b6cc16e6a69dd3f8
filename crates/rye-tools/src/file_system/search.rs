//! What finding files and searching in them share: patterns for paths, and the options of a walk.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use rye_exec::{NativeCall, NativeError};
use rye_item::text::one_line;

use crate::parameters;
use crate::walk::{Options, Walked};

/// A pattern for paths; `*` stays within one name, `**` does not.
pub(super) fn matcher(pattern: &str) -> Result<GlobMatcher, NativeError> {
    GlobBuilder::new(pattern).literal_separator(true).build().map(|glob| glob.compile_matcher()).map_err(
        |error| {
            NativeError::failed(format!(
                "`{}` is not a pattern: {}. Patterns are like `src/**/*.rs` or `*.{{ts,tsx}}`",
                one_line(pattern),
                error.kind()
            ))
        },
    )
}

/// The options of a walk for names that were written out: a dot that is asked for is not hidden.
pub(super) fn options(call: &NativeCall<'_>, named: &str) -> Result<Options, NativeError> {
    let names = |name: fn(&str) -> bool| named.split('/').any(name);
    Ok(Options {
        includes_hidden: parameters::boolean(call.parameters, "include_hidden", false)?
            || names(|name| name.starts_with('.') && name.len() > 1 && name != ".."),
        includes_git: names(|name| name == ".git"),
        respects_ignore: parameters::boolean(call.parameters, "respect_gitignore", true)?,
        depth: usize::MAX,
    })
}

/// Splits a pattern into the folders it names plainly and the rest.
pub(super) fn plain_folders(pattern: &str) -> (PathBuf, &str) {
    let mut folders = PathBuf::new();
    let mut rest = pattern;
    while let Some((name, after)) = rest.split_once('/') {
        let is_plain = !name.contains(['*', '?', '[', ']', '{', '}', '\\', '!']) && !after.is_empty();
        if !is_plain || name == ".." {
            break;
        }
        folders.push(name);
        rest = after;
    }
    (folders, rest)
}

/// Whether a path could climb.
pub(super) fn climbs(pattern: &str) -> bool {
    pattern.split('/').any(|name| name == "..")
}

/// What a reader should know about a walk that did not see everything.
pub(super) fn note(walked: Walked) -> Option<String> {
    (walked.unreadable > 0)
        .then(|| format!("{} could not be opened", rye_item::text::counted(walked.unreadable, "folder")))
}

/// `path` relative to `start`.
pub(super) fn below<'a>(path: &'a Path, start: &Path) -> &'a Path {
    path.strip_prefix(start).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_folders_are_split_off() {
        assert_eq!(plain_folders("src/a/*.rs"), (PathBuf::from("src/a"), "*.rs"));
        assert_eq!(plain_folders("**/x"), (PathBuf::new(), "**/x"));
        assert_eq!(plain_folders("a/b"), (PathBuf::from("a"), "b"));
        assert_eq!(plain_folders("a/"), (PathBuf::new(), "a/"));
    }
}
