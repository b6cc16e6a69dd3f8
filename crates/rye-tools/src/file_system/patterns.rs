//! What finding files and searching in them share: patterns for paths, and the options of a walk.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};
use rye_exec::{NativeCall, NativeError};
use rye_item::text::one_line;

use crate::parameters;
use crate::walk::{WalkOptions, WalkReport};

/// A pattern for paths; `*` stays within one name, `**` does not.
pub(super) fn build_matcher(pattern: &str) -> Result<GlobMatcher, NativeError> {
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
pub(super) fn walk_options(call: &NativeCall<'_>, path: &str) -> Result<WalkOptions, NativeError> {
    let names = |name: fn(&str) -> bool| path.split('/').any(name);
    Ok(WalkOptions {
        include_hidden: parameters::boolean(call.parameters, "include_hidden", false)?
            || names(|name| name.starts_with('.') && name.len() > 1 && name != ".."),
        include_git: names(|name| name == ".git"),
        respect_ignore: parameters::boolean(call.parameters, "respect_gitignore", true)?,
        depth: usize::MAX,
    })
}

/// Splits a pattern into the folders it names plainly and the rest.
pub(super) fn split_literal_prefix(pattern: &str) -> (PathBuf, &str) {
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
pub(super) fn has_parent_component(pattern: &str) -> bool {
    pattern.split('/').any(|name| name == "..")
}

/// What a reader should know about a walk that did not see everything.
pub(super) fn walk_note(report: WalkReport) -> Option<String> {
    (report.unreadable > 0)
        .then(|| format!("{} could not be opened", rye_item::text::counted(report.unreadable, "folder")))
}

/// `path` relative to `start`.
pub(super) fn relative_to<'a>(path: &'a Path, start: &Path) -> &'a Path {
    path.strip_prefix(start).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_prefix_is_split_off() {
        assert_eq!(split_literal_prefix("src/a/*.rs"), (PathBuf::from("src/a"), "*.rs"));
        assert_eq!(split_literal_prefix("**/x"), (PathBuf::new(), "**/x"));
        assert_eq!(split_literal_prefix("a/b"), (PathBuf::from("a"), "b"));
        assert_eq!(split_literal_prefix("a/"), (PathBuf::new(), "a/"));
    }
}
