//! Where a project's git folder is. A linked worktree has it elsewhere, and a commit there must be able to write to it.

use std::path::{Path, PathBuf};

use lillux::canonicalize_existing;
use lillux::file;

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
    /// Its `.git` is a link, or a file that names a folder (`git init --separate-git-dir`). Only what lies in the project
    /// can be changed: a stranger's link could lead anywhere.
    Elsewhere {
        /// Where it leads, whether something is there or not.
        folder: PathBuf,
    },
}

/// More submodules than this are not looked at one by one.
const MAX_MODULES: usize = 64;
/// As many links in a row as the system follows.
const MAX_LINKS: usize = 40;
/// How deep the names of submodules and submodules in submodules go.
const MAX_MODULE_DEPTH: usize = 16;

impl Repository {
    /// Looks at a project. A `.git` file counts only if the repository it names says that this is its worktree: otherwise
    /// the file of a stranger could open any folder.
    pub(super) fn detect(project: &Path) -> Self {
        let path = project.join(".git");
        match path.symlink_metadata() {
            Ok(found) if found.is_dir() => Self::Folder,
            Ok(found) if found.is_file() => {
                detect_worktree(&path).or_else(|| separate(&path)).unwrap_or(Self::None)
            }
            Ok(found) if found.is_symlink() => Self::Elsewhere {
                folder: missing_target(&path).unwrap_or_else(|| canonicalize_existing(&path)),
            },
            Ok(_) | Err(_) => Self::None,
        }
    }

    /// The folder that holds what all worktrees share.
    pub(super) fn folder(&self, project: &Path) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::Folder => Some(project.join(".git")),
            Self::Worktree { common, .. } => Some(common.clone()),
            Self::Elsewhere { folder } => Some(folder.clone())
                .filter(|folder| folder.starts_with(canonicalize_existing(project)) && has_config(folder)),
        }
    }
}

fn detect_worktree(file: &Path) -> Option<Repository> {
    let project = file.parent()?;
    let own = read_first_line(file)?;
    let own = canonicalize_existing(&project.join(own.strip_prefix("gitdir:")?.trim()));
    let common = canonicalize_existing(&own.join(read_first_line(&own.join("commondir"))?));
    let named = canonicalize_existing(&own.join(read_first_line(&own.join("gitdir"))?));
    let is_its =
        named == canonicalize_existing(file) && own.parent() == Some(common.join("worktrees").as_path());
    (is_its && is_repository(&common)).then_some(Repository::Worktree { own, common })
}

/// A `.git` file that names a folder.
fn separate(file: &Path) -> Option<Repository> {
    let named = read_first_line(file)?;
    let folder = canonicalize_existing(&file.parent()?.join(named.strip_prefix("gitdir:")?.trim()));
    Some(Repository::Elsewhere { folder })
}

/// Whether a folder is one that git obeys. What else a repository holds, a tool may remove: its config it may not.
pub(super) fn has_config(folder: &Path) -> bool {
    folder.join("config").symlink_metadata().is_ok_and(|found| found.is_file())
}

/// Folders of a repository in which there are no submodules.
const INNER_FOLDERS: [&str; 10] =
    ["objects", "refs", "logs", "hooks", "info", "branches", "remotes", "worktrees", "lfs", "rr-cache"];

/// Where a link that leads to nothing ends: whoever makes that makes what the link names.
pub(super) fn missing_target(link: &Path) -> Option<PathBuf> {
    let mut at = link.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = at.read_link() else {
            return (at != link && at.symlink_metadata().is_err()).then_some(at);
        };
        let next = at.parent()?.join(target);
        at = canonicalize_existing(next.parent()?).join(next.file_name()?);
    }
    None
}

fn is_repository(folder: &Path) -> bool {
    folder.join("HEAD").is_file() && folder.join("objects").is_dir()
}

/// The folders of submodules in a git folder, those of submodules in them included. `None` where they cannot be told one by
/// one: too many, or a link among them.
pub(super) fn modules(git: &Path) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut pending = vec![(git.join("modules"), 0)];
    while let Some((folder, depth)) = pending.pop() {
        let entries = match folder.symlink_metadata() {
            Ok(metadata) if metadata.is_dir() && depth <= MAX_MODULE_DEPTH => folder.read_dir().ok()?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Ok(_) | Err(_) => return None,
        };
        for entry in entries {
            let entry = entry.ok()?;
            let (path, kind) = (entry.path(), entry.file_type().ok()?);
            if kind.is_symlink() {
                return None;
            }
            let is_inner = has_config(&folder)
                && entry.file_name().to_str().is_some_and(|name| INNER_FOLDERS.contains(&name));
            if !kind.is_dir() || is_inner {
                continue;
            }
            if has_config(&path) {
                found.push(path.clone());
            }
            // A name with a slash is a folder in a folder, and a submodule may have some of its own.
            pending.push((path, depth + 1));
            if found.len() > MAX_MODULES || pending.len() > MAX_MODULES {
                return None;
            }
        }
    }
    found.sort();
    Some(found)
}

/// The `.git` file of a submodule's files, which says where its repository is.
pub(super) fn module_file(module: &Path) -> Option<PathBuf> {
    let (bytes, _) = file::read_bounded(&module.join("config"), 1 << 20).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let value =
        text.lines().find_map(|line| line.trim().strip_prefix("worktree")?.trim().strip_prefix('='))?;
    let path = canonicalize_existing(&module.join(value.trim())).join(".git");
    path.symlink_metadata().is_ok_and(|found| found.is_file()).then_some(path)
}

fn read_first_line(path: &Path) -> Option<String> {
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
            file::create_dirs(&root.join(path), false).expect("folders");
        }
        for (path, text) in [
            ("main/.git/HEAD", "ref: refs/heads/main\n".to_owned()),
            ("main/.git/worktrees/w/commondir", "../..\n".to_owned()),
            ("main/.git/worktrees/w/gitdir", format!("{}/w/.git\n", root.display())),
            ("w/.git", format!("gitdir: {}/main/.git/worktrees/w\n", root.display())),
        ] {
            file::write_atomic(&root.join(path), text.as_bytes(), file::FileMode::Preserve).expect("a file");
        }
        (folder, root)
    }

    #[test]
    fn worktree_needs_links_in_both_directions() {
        let (_folder, root) = world();
        let own = root.join("main/.git/worktrees/w");
        assert_eq!(
            Repository::detect(&root.join("w")),
            Repository::Worktree { own, common: root.join("main/.git") }
        );
        assert_eq!(Repository::detect(&root.join("main")), Repository::Folder);
        assert_eq!(Repository::detect(&root), Repository::None);
    }

    #[test]
    fn git_file_alone_grants_nothing() {
        let (_folder, root) = world();
        file::create_dirs(&root.join("clone"), false).expect("a folder");
        let text = format!("gitdir: {}/main/.git/worktrees/w\n", root.display());
        file::write_atomic(&root.join("clone/.git"), text.as_bytes(), file::FileMode::Preserve)
            .expect("a file");
        let repository = Repository::detect(&root.join("clone"));
        assert!(matches!(repository, Repository::Elsewhere { .. }));
        assert_eq!(repository.folder(&root.join("clone")), None);
    }

    #[test]
    fn separate_and_linked_folders_are_known() {
        let (_folder, root) = world();
        file::create_dirs(&root.join("clone/inner/objects"), false).expect("folders");
        let write = |path: &str, text: &str| {
            file::write_atomic(&root.join(path), text.as_bytes(), file::FileMode::Preserve).expect("a file");
        };
        write("clone/inner/HEAD", "ref: refs/heads/main\n");
        write("clone/.git", "gitdir: inner\n");
        let clone = root.join("clone");
        write("clone/inner/config", "");
        let inner = Repository::Elsewhere { folder: clone.join("inner") };
        assert_eq!(Repository::detect(&clone), inner);
        assert_eq!(inner.folder(&clone), Some(clone.join("inner")));
        file::remove(&clone.join(".git")).expect("removed");
        for target in ["inner", "../main/.git", "none", "../w"] {
            std::os::unix::fs::symlink(target, clone.join(".git")).expect("a link");
            let folder = canonicalize_existing(&clone.join(target));
            assert_eq!(Repository::detect(&clone), Repository::Elsewhere { folder }, "{target}");
            let missing = (target == "none").then(|| clone.join("none"));
            assert_eq!(missing_target(&clone.join(".git")), missing, "{target}");
            file::remove(&clone.join(".git")).expect("removed");
        }
        // What lies outside of the project is never opened.
        write("main/.git/config", "");
        let outside = Repository::Elsewhere { folder: root.join("main/.git") };
        assert_eq!(outside.folder(&clone), None);
    }

    #[test]
    fn modules_are_found_unless_linked() {
        let (_folder, root) = world();
        let git = root.join("main/.git");
        assert_eq!(modules(&git), Some(Vec::new()));
        for module in ["modules/libs/one", "modules/libs/one/modules/two"] {
            file::create_dirs(&git.join(module).join("objects"), false).expect("folders");
            file::write_atomic(&git.join(module).join("config"), b"", file::FileMode::Preserve)
                .expect("a file");
        }
        // A tool's file does not keep a submodule from being found.
        file::write_atomic(&git.join("modules/libs/config"), b"", file::FileMode::Preserve).expect("a file");
        let found =
            ["modules/libs", "modules/libs/one", "modules/libs/one/modules/two"].map(|name| git.join(name));
        let found = found.to_vec();
        assert_eq!(modules(&git), Some(found));
        std::os::unix::fs::symlink("one", git.join("modules/libs/link")).expect("a link");
        assert_eq!(modules(&git), None);
    }
}
