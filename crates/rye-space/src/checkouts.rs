//! Which folders belong to the same git repository as a folder: its main checkout and all its linked worktrees.

use std::path::{Path, PathBuf};

use crate::roots::canonicalize_existing;

/// The largest file of git that is read here.
const MAX_BYTES: u64 = 64 << 10;

/// How many linked worktrees are looked at.
const MAX_WORKTREES: usize = 1024;

/// The other folders that the repository of the checkout `folder` brought: its main checkout, every linked worktree, its git
/// folder, and the checkouts that contain this one as a submodule.
#[must_use]
pub fn related_checkouts(folder: &Path) -> Vec<PathBuf> {
    let Some(own) = git_dir(folder) else { return Vec::new() };
    let common = common_dir(&own);
    let mut found = Vec::new();
    for git in [&own, &common] {
        // A submodule's folder lies below `.git/modules` of the repository that contains it.
        let above = git.ancestors().filter(|path| path.file_name().is_some_and(|name| name == ".git"));
        found.extend(above.filter_map(|path| path.parent().map(Path::to_owned)));
    }
    let entries = fs_err::read_dir(common.join("worktrees")).into_iter().flatten().take(MAX_WORKTREES);
    for entry in entries.flatten() {
        if let Some(line) = first_line(&entry.path().join("gitdir")) {
            let file = entry.path().join(line);
            found.extend(file.parent().map(canonicalize_existing));
        }
    }
    found.push(common);
    found.sort();
    found.dedup();
    found.retain(|path| path != folder && path.is_dir());
    found
}

/// The git folder that all checkouts of the repository of `folder` share.
#[must_use]
pub fn common_git_dir(folder: &Path) -> Option<PathBuf> {
    git_dir(folder).map(|own| common_dir(&own))
}

fn common_dir(own: &Path) -> PathBuf {
    match first_line(&own.join("commondir")) {
        Some(line) => canonicalize_existing(&own.join(line)),
        None => own.to_owned(),
    }
}

/// The git folder of a checkout: `.git` itself, or what the file of that name leads to.
fn git_dir(folder: &Path) -> Option<PathBuf> {
    let path = folder.join(".git");
    let found = fs_err::metadata(&path).ok()?;
    let git = match found.is_dir() {
        true => path,
        false => folder.join(first_line(&path)?.strip_prefix("gitdir:")?.trim_start()),
    };
    Some(canonicalize_existing(&git)).filter(|git| git.is_dir())
}

fn first_line(path: &Path) -> Option<String> {
    let (bytes, _) = lillux::file::read_bounded(path, MAX_BYTES).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.lines().next().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use lillux::file::{FileMode, create_dirs, write_atomic};

    use super::*;

    fn write(path: &Path, text: &str) {
        create_dirs(path.parent().expect("a folder"), false).expect("folders");
        write_atomic(path, text.as_bytes(), FileMode::Preserve).expect("a file");
    }

    #[test]
    fn worktrees_and_main_checkout_are_related() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a folder");
        let (main, first, second) = (root.join("main"), root.join("first"), root.join("second"));
        for (name, worktree) in [("1", &first), ("2", &second)] {
            let own = main.join(".git/worktrees").join(name);
            write(&worktree.join(".git"), &format!("gitdir: {}\n", own.display()));
            write(&own.join("commondir"), "../..\n");
            write(&own.join("gitdir"), &format!("{}/.git\n", worktree.display()));
        }
        let git = main.join(".git");
        assert_eq!(related_checkouts(&first), [main.clone(), git.clone(), second.clone()]);
        for checkout in [&main, &first, &second] {
            assert_eq!(common_git_dir(checkout), Some(git.clone()));
        }
        assert_eq!(related_checkouts(&main), [first, git, second]);
        assert_eq!(related_checkouts(&root), Vec::<PathBuf>::new());
    }

    #[test]
    fn submodules_are_related_to_what_contains_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a folder");
        let module = root.join("main/.git/modules/part");
        create_dirs(&module, false).expect("folders");
        write(&root.join("elsewhere/.git"), &format!("gitdir: {}\n", module.display()));
        assert_eq!(related_checkouts(&root.join("elsewhere")), [root.join("main"), module]);
    }
}
