//! Where a project's git folder is. A linked worktree has it elsewhere, and a commit there must be able to write to it.

use std::path::{Path, PathBuf};

use lillux::file;
use lillux::real;

/// The files read here hold one path each.
const MAX_BYTES: u64 = 8 << 10;

/// A project as git sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Repository {
    /// It has no `.git`, or one that is not a worktree's.
    None,
    /// It has a folder `.git`.
    Folder,
    /// It is a linked worktree.
    Worktree {
        /// The worktree's part of the repository: `<common>/worktrees/<name>`.
        own: PathBuf,
        /// The repository's `.git`.
        common: PathBuf,
    },
}

impl Repository {
    /// Looks at a project. A `.git` file counts only if the repository it names says that this is its worktree: otherwise
    /// the file of a stranger could open any folder.
    pub(super) fn of(project: &Path) -> Self {
        let path = project.join(".git");
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => Self::Folder,
            Ok(found) if found.is_file() => worktree(&path).unwrap_or(Self::None),
            Ok(_) | Err(_) => Self::None,
        }
    }

    /// The folder that holds what all worktrees share.
    pub(super) fn folder(&self, project: &Path) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::Folder => Some(project.join(".git")),
            Self::Worktree { common, .. } => Some(common.clone()),
        }
    }
}

fn worktree(file: &Path) -> Option<Repository> {
    let project = file.parent()?;
    let own = line(file)?;
    let own = real(&project.join(own.strip_prefix("gitdir:")?.trim()));
    let common = real(&own.join(line(&own.join("commondir"))?));
    let named = real(&own.join(line(&own.join("gitdir"))?));
    let is_its = named == real(file) && own.parent() == Some(common.join("worktrees").as_path());
    let is_repository = common.join("HEAD").is_file() && common.join("objects").is_dir();
    (is_its && is_repository).then_some(Repository::Worktree { own, common })
}

fn line(path: &Path) -> Option<String> {
    let (bytes, _) = file::read_bounded(path, MAX_BYTES).ok()?;
    String::from_utf8(bytes).ok()?.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a real path");
        for path in [
            "main/.git/worktrees/w",
            "main/.git/objects",
            "w",
            "secret/.git/worktrees/w",
            "secret/.git/objects",
        ] {
            file::create_folders(&root.join(path), false).expect("folders");
        }
        for (path, text) in [
            ("main/.git/HEAD", "ref: refs/heads/main\n".to_owned()),
            ("main/.git/worktrees/w/commondir", "../..\n".to_owned()),
            ("main/.git/worktrees/w/gitdir", format!("{}/w/.git\n", root.display())),
            ("w/.git", format!("gitdir: {}/main/.git/worktrees/w\n", root.display())),
        ] {
            file::write_atomic(&root.join(path), text.as_bytes(), file::Mode::Kept).expect("a file");
        }
        (folder, root)
    }

    #[test]
    fn a_worktree_is_known_by_both_sides() {
        let (_folder, root) = world();
        let own = root.join("main/.git/worktrees/w");
        assert_eq!(
            Repository::of(&root.join("w")),
            Repository::Worktree { own, common: root.join("main/.git") }
        );
        assert_eq!(Repository::of(&root.join("main")), Repository::Folder);
        assert_eq!(Repository::of(&root), Repository::None);
    }

    #[test]
    fn a_git_file_alone_opens_nothing() {
        let (_folder, root) = world();
        file::create_folders(&root.join("clone"), false).expect("a folder");
        let text = format!("gitdir: {}/main/.git/worktrees/w\n", root.display());
        file::write_atomic(&root.join("clone/.git"), text.as_bytes(), file::Mode::Kept).expect("a file");
        assert_eq!(Repository::of(&root.join("clone")), Repository::None);
    }
}
