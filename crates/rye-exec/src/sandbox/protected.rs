//! Names in a project that tools do not change, whether they exist or not: what git, agents and editors run or obey.

use std::path::{Path, PathBuf};

use lillux::CanonicalPathCache;
use lillux::Digest;
use lillux::file::{self, FileMode};
use lillux::sandbox::Replacement;
use lillux::sandbox::placeholders::{PlaceholderContent, ReservedName};

use super::git::{self, Repository};

/// The largest `info/exclude` that is extended.
const MAX_EXCLUDE_BYTES: u64 = 1 << 20;

/// Parts of a worktree's own git folder that say where its repository is.
const WORKTREE_NAMES: [&str; 3] = ["commondir", "gitdir", "config.worktree"];

/// The name that stands for all submodules.
const MODULES: &str = ".git/modules/";

/// The names of the settings, as paths of this project. A name that ends with `/` is a folder.
pub(super) fn reserved_names(names: &[String], project: &Path, repository: &Repository) -> Vec<ReservedName> {
    let mut all: Vec<ReservedName> = Vec::new();
    // A folder that could become a repository is reserved as a whole.
    let unmade = match repository {
        Repository::Elsewhere { folder } if !git::has_config(folder) => Some(folder),
        _ => None,
    };
    all.extend(
        unmade.map(|folder| ReservedName { path: folder.clone(), content: PlaceholderContent::Folder }),
    );
    for name in names.iter().filter(|name| unmade.is_none() || !name.starts_with(".git/")) {
        let (content, text) = (placeholder_content(name), name.as_str());
        let name = name.trim_end_matches('/');
        let path = match (repository, name.strip_prefix(".git/")) {
            // There, `.git` is a file or a link, and the folder is the repository's.
            (Repository::Worktree { common: folder, .. }, Some(rest))
            | (Repository::Elsewhere { folder }, Some(rest)) => folder.join(rest),
            (_, _) => project.join(name),
        };
        let modules = if text == MODULES { path.parent().and_then(git::modules) } else { None };
        match modules.filter(|modules| !modules.is_empty()) {
            // A commit in a submodule writes to its folder: there, only what names programs and folders is reserved.
            Some(modules) => {
                all.push(ReservedName { path, content });
                modules.iter().for_each(|module| all.extend(in_module(names, module)));
            }
            None => all.push(ReservedName { path, content }),
        }
    }
    if let Repository::Worktree { own, .. } = repository {
        let empty = || PlaceholderContent::File(String::new());
        all.extend(WORKTREE_NAMES.iter().map(|name| ReservedName { path: own.join(name), content: empty() }));
    }
    // A `.git` that is a file or a link says where the repository is.
    let file = project.join(".git");
    if file.symlink_metadata().is_ok_and(|found| !found.is_dir()) {
        all.push(ReservedName { path: file, content: PlaceholderContent::Folder });
    }
    // A folder on the way may be a link: nothing is made or protected anywhere but where it leads.
    let mut known = CanonicalPathCache::default();
    for name in &mut all {
        if let (Some(parent), Some(last)) = (name.path.parent(), name.path.file_name()) {
            name.path = known.canonicalize(parent).join(last);
        }
    }
    // A link to nothing: what it leads to is reserved as well.
    let missing = |name: &ReservedName| {
        Some(ReservedName { path: git::missing_target(&name.path)?, content: name.content.clone() })
    };
    let targets: Vec<ReservedName> = all.iter().filter_map(missing).collect();
    all.extend(targets);
    all
}

/// The names of the settings in a submodule's git folder, and the file that leads to it.
fn in_module(names: &[String], module: &Path) -> Vec<ReservedName> {
    let mut all: Vec<ReservedName> = Vec::new();
    for name in names.iter().filter(|name| *name != MODULES || !module.join("modules").is_dir()) {
        if let Some(rest) = name.strip_prefix(".git/") {
            let path = module.join(rest.trim_end_matches('/'));
            all.push(ReservedName { path, content: placeholder_content(name) });
        }
    }
    all.extend(
        git::module_file(module).map(|path| ReservedName { path, content: PlaceholderContent::Folder }),
    );
    all
}

/// A file in the cache that the tool sees in the place of a `.git` that is a link: it leads where the link does, and cannot
/// be replaced as a link could.
pub(super) fn link_file(project: &Path, repository: &Repository, cache: &Path) -> Option<Replacement> {
    let path = project.join(".git");
    let Repository::Elsewhere { folder } = repository else { return None };
    if !path.is_symlink() || !git::has_config(folder) {
        return None;
    }
    let text = format!("gitdir: {}\n", folder.display());
    let with = cached(&cache.join("git-link"), text.as_bytes())?;
    Some(Replacement { path, with })
}

/// A file of the cache with these bytes.
fn cached(folder: &Path, bytes: &[u8]) -> Option<PathBuf> {
    let path = folder.join(Digest::of(bytes).to_hex());
    if !path.is_file() {
        file::create_dirs(folder, true).ok()?;
        file::write_atomic(&path, bytes, FileMode::Private).ok()?;
    }
    Some(path)
}

/// What takes a name that does not exist: content without any effect on the programs that read it.
fn placeholder_content(name: &str) -> PlaceholderContent {
    if name.ends_with('/') {
        return PlaceholderContent::Folder;
    }
    let text = match name.rsplit('/').next() {
        // The folder itself.
        Some("commondir") => ".\n",
        Some(last) if last.ends_with(".json") => "{}\n",
        Some(_) | None => "",
    };
    PlaceholderContent::File(text.to_owned())
}

/// Placeholders that git would list as new files.
fn untracked_placeholders<'a>(
    placeholders: &'a [PathBuf],
    project: &'a Path,
) -> impl Iterator<Item = String> + 'a {
    let top = placeholders.iter().filter(move |path| path.parent() == Some(project) && path.is_file());
    top.filter_map(|path| Some(format!("/{}", path.file_name()?.to_str()?)))
}

/// The lines of `info/exclude` that keep placeholders out of `git status` and `git add`, as a file in the cache that the
/// tool sees in the place of the project's.
pub(super) fn git_exclude(
    placeholders: &[PathBuf],
    project: &Path,
    repository: &Repository,
    cache: &Path,
) -> Option<Replacement> {
    let lines: Vec<String> = untracked_placeholders(placeholders, project).collect();
    let path = repository.folder(project)?.join("info/exclude");
    if lines.is_empty() {
        return None;
    }
    let (own, _) = file::read_bounded(&path, MAX_EXCLUDE_BYTES).ok()?;
    let mut text = own;
    if !text.ends_with(b"\n") && !text.is_empty() {
        text.push(b'\n');
    }
    text.extend(lines.join("\n").into_bytes());
    text.push(b'\n');
    let with = cached(&cache.join("git-exclude"), &text)?;
    Some(Replacement { path, with })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_contents_have_no_effect() {
        assert_eq!(placeholder_content(".vscode/"), PlaceholderContent::Folder);
        assert_eq!(placeholder_content(".git/commondir"), PlaceholderContent::File(".\n".to_owned()));
        assert_eq!(placeholder_content(".mcp.json"), PlaceholderContent::File("{}\n".to_owned()));
        assert_eq!(placeholder_content(".envrc"), PlaceholderContent::File(String::new()));
    }

    #[test]
    fn worktree_protects_its_repository() {
        let folder = tempfile::tempdir().expect("a folder");
        let (common, own) = (folder.path().join("main/.git"), folder.path().join("main/.git/worktrees/w"));
        file::create_dirs(&own, false).expect("folders");
        let project = folder.path().join("w");
        file::create_dirs(&project, false).expect("a folder");
        file::write_atomic(&project.join(".git"), b"gitdir: x\n", FileMode::Private).expect("a file");
        let repository = Repository::Worktree { own: own.clone(), common: common.clone() };
        let names = [".git/hooks/".to_owned(), ".envrc".to_owned()];
        let paths: Vec<PathBuf> =
            reserved_names(&names, &project, &repository).into_iter().map(|name| name.path).collect();
        let mut expected = vec![common.join("hooks"), project.join(".envrc")];
        expected.extend(WORKTREE_NAMES.map(|name| own.join(name)));
        expected.push(project.join(".git"));
        assert_eq!(paths, expected);
    }
}
