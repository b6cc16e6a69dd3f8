//! Folders that git takes for repositories without a `.git`: a shell that asks git in one runs the programs that it names.

use std::collections::BTreeSet;
use std::path::Path;

use rye_item::file_name::fold_name;
use rye_item::repository::{GIT_NAMES, is_git_repository};

use super::rules::fold_path;

/// The names that a patch makes, of those that make repositories.
pub(super) struct RepositoryShape {
    names: BTreeSet<String>,
}

impl RepositoryShape {
    /// Of the files that a patch writes.
    pub(super) fn new<'a>(written: impl Iterator<Item = &'a str>) -> Self {
        let mut names = BTreeSet::new();
        for path in written {
            let folded = fold_path(path);
            let ends = folded.match_indices('/').map(|(at, _)| at).chain([folded.len()]);
            for end in ends {
                let part = folded[..end].rsplit('/').next().unwrap_or_default();
                if GIT_NAMES.iter().any(|name| fold_name(name) == part) {
                    names.insert(folded[..end].to_owned());
                }
            }
        }
        Self { names }
    }

    /// Whether a folder on the way to a path would be a repository: with what is in `project` already, if that is there.
    pub(super) fn contains(&self, path: &str, project: Option<&Path>) -> bool {
        let folders = std::iter::once("").chain(path.match_indices('/').map(|(at, _)| &path[..at]));
        folders.into_iter().any(|folder| {
            let has = |name: &str| self.is_made(folder, name) || is_there(project, folder, name);
            is_git_repository(has)
        })
    }

    fn is_made(&self, folder: &str, name: &str) -> bool {
        let name = fold_name(name);
        let path = if folder.is_empty() { name } else { format!("{}/{name}", fold_path(folder)) };
        self.names.contains(&path)
    }
}

/// Whether the folder has something that git finds under the name.
fn is_there(project: Option<&Path>, folder: &str, name: &str) -> bool {
    project.is_some_and(|project| project.join(folder).join(name).symlink_metadata().is_ok())
}

#[cfg(test)]
mod tests {
    use lillux::file::{FileMode, create_dirs, write_atomic};

    use super::*;

    #[test]
    fn folders_like_repositories_are_found() {
        let is_found =
            |made: &[&str], path: &str| RepositoryShape::new(made.iter().copied()).contains(path, None);
        let bare = ["a/HEAD", "a/objects/x", "a/refs/y", "a/hooks/z"];
        assert!(is_found(&bare, "a/hooks/z") && is_found(&bare, "a/config"));
        assert!(!is_found(&bare, "b/config") && !is_found(&bare[1..], "a/config"));
        assert!(is_found(&["HEAD", "objects/x", "refs/y"], "config"));
        assert!(is_found(&["a/head", "a/OBJECTS/x", "a/re\u{200b}fs"], "a/config"));
        assert!(is_found(&["a/HEAD", "a/commondir"], "a/config"));
        assert!(!is_found(&["a/HEAD", "b/objects/x", "b/refs/y"], "a/config"));
    }

    #[test]
    fn present_parts_of_repositories_count() {
        let project = tempfile::tempdir().expect("a folder");
        create_dirs(&project.path().join("a/objects"), false).expect("folders");
        write_atomic(&project.path().join("a/refs"), b"", FileMode::Preserve).expect("a file");
        let shape = RepositoryShape::new(["a/HEAD"].into_iter());
        assert!(shape.contains("a/HEAD", Some(project.path())));
        assert!(!shape.contains("a/HEAD", None));
        assert!(!shape.contains("b", Some(project.path())));
    }
}
