//! Names in a project that tools do not change, whether they exist or not: what git, agents and editors run or obey.

use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::confine::Replacement;
use lillux::confine::placeholders::{Content, ReservedName};
use lillux::file::{self, Mode};

use super::git::Repository;

/// The largest `info/exclude` that is extended.
const MAX_EXCLUDE: u64 = 1 << 20;

/// Parts of a worktree's own git folder that say where its repository is.
const WORKTREE_NAMES: [&str; 3] = ["commondir", "gitdir", "config.worktree"];

/// The names of the settings, as paths of this project. A name that ends with `/` is a folder.
pub(super) fn reserved(names: &[String], project: &Path, repository: &Repository) -> Vec<ReservedName> {
    let mut all: Vec<ReservedName> = Vec::new();
    for name in names {
        let content = content(name);
        let name = name.trim_end_matches('/');
        let path = match (repository, name.strip_prefix(".git/")) {
            // There, `.git` is a file, and the folder is the repository's.
            (Repository::Worktree { common, .. }, Some(rest)) => common.join(rest),
            (Repository::Worktree { .. } | Repository::Folder | Repository::None, _) => project.join(name),
        };
        all.push(ReservedName { path, content });
    }
    if let Repository::Worktree { own, .. } = repository {
        let empty = || Content::File(String::new());
        all.extend(WORKTREE_NAMES.iter().map(|name| ReservedName { path: own.join(name), content: empty() }));
    }
    // A `.git` that is a file says where the repository is.
    let file = project.join(".git");
    if file.symlink_metadata().is_ok_and(|found| found.is_file()) {
        all.push(ReservedName { path: file, content: Content::Folder });
    }
    all
}

/// What takes a name that does not exist: content without any effect on the programs that read it.
fn content(name: &str) -> Content {
    if name.ends_with('/') {
        return Content::Folder;
    }
    let text = match name.rsplit('/').next() {
        // The folder itself.
        Some("commondir") => ".\n",
        Some(last) if last.ends_with(".json") => "{}\n",
        Some(_) | None => "",
    };
    Content::File(text.to_owned())
}

/// Placeholders that git would list as new files.
fn new_files<'a>(placeholders: &'a [PathBuf], project: &'a Path) -> impl Iterator<Item = String> + 'a {
    let top = placeholders.iter().filter(move |path| path.parent() == Some(project) && path.is_file());
    top.filter_map(|path| Some(format!("/{}", path.file_name()?.to_str()?)))
}

/// The lines of `info/exclude` that keep placeholders out of `git status` and `git add`, as a file in the cache that the
/// tool sees in the place of the project's.
pub(super) fn exclude(
    placeholders: &[PathBuf],
    project: &Path,
    repository: &Repository,
    cache: &Path,
) -> Option<Replacement> {
    let lines: Vec<String> = new_files(placeholders, project).collect();
    let path = repository.folder(project)?.join("info/exclude");
    if lines.is_empty() {
        return None;
    }
    let (own, _) = file::read_bounded(&path, MAX_EXCLUDE).ok()?;
    let mut text = own;
    if !text.ends_with(b"\n") && !text.is_empty() {
        text.push(b'\n');
    }
    text.extend(lines.join("\n").into_bytes());
    text.push(b'\n');
    let folder = cache.join("git-exclude");
    let with = folder.join(Digest::of(&text).to_hex());
    if !with.is_file() {
        file::create_folders(&folder, true).ok()?;
        file::write_atomic(&with, &text, Mode::Private).ok()?;
    }
    Some(Replacement { path, with })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_mean_nothing_to_their_readers() {
        assert_eq!(content(".vscode/"), Content::Folder);
        assert_eq!(content(".git/commondir"), Content::File(".\n".to_owned()));
        assert_eq!(content(".mcp.json"), Content::File("{}\n".to_owned()));
        assert_eq!(content(".envrc"), Content::File(String::new()));
    }

    #[test]
    fn a_worktree_protects_the_repository_it_belongs_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let (common, own) = (folder.path().join("main/.git"), folder.path().join("main/.git/worktrees/w"));
        file::create_folders(&own, false).expect("folders");
        let project = folder.path().join("w");
        file::create_folders(&project, false).expect("a folder");
        file::write_atomic(&project.join(".git"), b"gitdir: x\n", Mode::Private).expect("a file");
        let repository = Repository::Worktree { own: own.clone(), common: common.clone() };
        let names = [".git/hooks/".to_owned(), ".envrc".to_owned()];
        let paths: Vec<PathBuf> =
            reserved(&names, &project, &repository).into_iter().map(|name| name.path).collect();
        let mut wanted = vec![common.join("hooks"), project.join(".envrc")];
        wanted.extend(WORKTREE_NAMES.map(|name| own.join(name)));
        wanted.push(project.join(".git"));
        assert_eq!(paths, wanted);
    }
}
