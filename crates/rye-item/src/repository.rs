//! What makes a folder a repository of a version control program. Such a program runs commands that the repository's settings
//! name, in the folder and in those below it, so only the user makes one.

use crate::file_name::fold_name;

/// The folders in which version control programs keep a repository and its settings.
pub const REPOSITORY_FOLDERS: [&str; 4] = [".git", ".hg", ".jj", ".sl"];

/// What makes a folder without a `.git` a git repository: the first, with the second or with both of the others.
pub const GIT_NAMES: [&str; 4] = ["HEAD", "commondir", "objects", "refs"];

/// Whether git takes a folder for a repository, of which `has` says whether one of [`GIT_NAMES`] is in it.
pub fn is_git_repository(has: impl Fn(&str) -> bool) -> bool {
    let [head, shared, objects, refs] = GIT_NAMES;
    has(head) && (has(shared) || has(objects) && has(refs))
}

/// Whether a file system could take the name for one of [`REPOSITORY_FOLDERS`]; some give `.git` a short name.
#[must_use]
pub fn is_repository_folder(name: &str) -> bool {
    let folded = fold_name(name);
    REPOSITORY_FOLDERS.contains(&folded.as_str()) || folded.starts_with("git~")
}

/// Whether a file at this path could belong to a repository, or make one with files that are there already.
#[must_use]
pub fn is_repository_path(path: &str) -> bool {
    let (_, name) = path.rsplit_once('/').unwrap_or(("", path));
    path.split('/').any(is_repository_folder) || matches!(fold_name(name).as_str(), "head" | "commondir")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_that_git_obeys_are_known() {
        let is_one = |names: &[&str]| is_git_repository(|name| names.contains(&name));
        assert!(is_one(&["HEAD", "objects", "refs"]) && is_one(&["HEAD", "commondir"]));
        for names in
            [&["objects", "refs", "commondir"][..], &["HEAD", "objects"], &["HEAD", "refs"], &["HEAD"]]
        {
            assert!(!is_one(names), "{names:?}");
        }
    }

    #[test]
    fn paths_of_repositories_are_known() {
        for path in [
            ".git/config",
            "a/.Git",
            "a/.hg/hgrc",
            ".jj/repo/x",
            "a/.sl/config",
            "a/HEAD",
            "commondir",
            "a/h\u{200b}ead",
            "GIT~1/config",
        ] {
            assert!(is_repository_path(path), "{path:?}");
        }
        for path in ["a/b.py", ".gitignore", "HEAD/x", "a/head.md", "objects/x", "a/.github/x"] {
            assert!(!is_repository_path(path), "{path:?}");
        }
    }
}
