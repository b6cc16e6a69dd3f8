//! Names in a project that tools do not change, whether they exist or not: what git, agents and editors run or obey.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lillux::CanonicalPathCache;
use lillux::Digest;
use lillux::file::{self, FileMode};
use lillux::sandbox::Replacement;
use lillux::sandbox::placeholders::{PlaceholderContent, ReservedName};
use rye_space::{AI_FOLDER, RESERVED_FILE_TEXT};

use super::READ_ONLY_IN_PROJECT;
use super::git::{self, GitDirs, GitLayout};
use super::repositories::{InnerProject, Repositories};

/// The largest `info/exclude` that is extended.
const MAX_EXCLUDE_BYTES: u64 = 1 << 20;

/// Parts of a worktree's own git folder that say where its repository is.
const WORKTREE_NAMES: [&str; 3] = ["commondir", "gitdir", "config.worktree"];

/// The start of names in the git folder.
const GIT: &str = ".git/";

/// The name that stands for all submodules.
const MODULES: &str = ".git/modules/";

/// Which bundles a project asks for, and what they are locked to.
const BUNDLE_FILES: [&str; 2] = [".ai/bundles.toml", ".ai/bundles.lock"];

/// Names of the settings, as paths, each once.
#[derive(Default)]
struct NameList {
    names: Vec<ReservedName>,
    paths: BTreeSet<PathBuf>,
    /// Folders that are closed with all that is in them.
    closed: Vec<PathBuf>,
}

impl NameList {
    fn push(&mut self, path: PathBuf, content: PlaceholderContent) {
        if !self.closed.iter().any(|folder| path.starts_with(folder)) && self.paths.insert(path.clone()) {
            self.names.push(ReservedName { path, content });
        }
    }

    /// Closes a folder as a whole.
    fn close(&mut self, folder: PathBuf) {
        self.push(folder.clone(), PlaceholderContent::Folder);
        self.closed.push(folder);
    }

    /// The names of the settings in a git folder.
    fn push_git_names(&mut self, names: &[String], layout: &GitLayout) {
        let Some(dirs) = &layout.dirs else { return };
        // A folder that could become a repository is reserved as a whole.
        if !layout.is_plain() && !git::has_config(&dirs.common) && !layout.worktree.starts_with(&dirs.common)
        {
            self.close(dirs.common.clone());
        }
        let modules = layout.modules();
        for (folder, found) in modules {
            if found.is_none() {
                self.close(folder.join("modules"));
            }
        }
        for name in names {
            let Some(rest) = name.strip_prefix(GIT) else { continue };
            self.push(dirs.common.join(rest.trim_end_matches('/')), placeholder_content(name));
        }
        self.push_own_names(dirs);
        // A commit in a submodule writes to its folder: there, only what names programs and folders is reserved.
        for module in modules.iter().filter_map(|(_, found)| found.as_ref()).flatten() {
            for name in names.iter().filter(|name| *name != MODULES || !module.join("modules").is_dir()) {
                if let Some(rest) = name.strip_prefix(GIT) {
                    self.push(module.join(rest.trim_end_matches('/')), placeholder_content(name));
                }
            }
            if let Some(path) = git::module_file(module) {
                self.push(path, PlaceholderContent::Folder);
            }
        }
    }

    /// What of a worktree's own folder says where its repository is.
    fn push_own_names(&mut self, dirs: &GitDirs) {
        if dirs.own == dirs.common {
            return;
        }
        for name in WORKTREE_NAMES {
            self.push(dirs.own.join(name), placeholder_content(name));
        }
        self.push(dirs.own.join("modules"), PlaceholderContent::Folder);
    }

    /// Which bundles a project asks for. An empty file would ask for none, so a placeholder has a text that readers know.
    fn push_bundle_files(&mut self, project: &Path, reserves_names: bool) {
        let reserves_names = reserves_names && project.join(AI_FOLDER).is_dir();
        for name in BUNDLE_FILES {
            let path = project.join(name);
            if reserves_names || path.symlink_metadata().is_ok() {
                self.push(path, PlaceholderContent::File(RESERVED_FILE_TEXT.to_owned()));
            }
        }
    }

    /// The names of the settings in a project below the project. Of one that the user did not approve, those that exist.
    fn push_inner_project(&mut self, names: &[String], inner: &InnerProject) {
        let folders = READ_ONLY_IN_PROJECT.iter().map(|name| format!(".ai/{name}/"));
        let all = names.iter().filter(|name| !name.starts_with(GIT)).cloned().chain(folders);
        for name in all.chain(["lockfiles/".to_owned()]) {
            let path = inner.folder.join(name.trim_end_matches('/'));
            if inner.reserves_names || path.symlink_metadata().is_ok() {
                self.push(path, placeholder_content(&name));
            }
        }
        self.push_bundle_files(&inner.folder, inner.reserves_names);
        let entry = inner.folder.join(".git");
        if inner.reserves_names && entry.symlink_metadata().is_err() {
            self.push(entry, PlaceholderContent::Folder);
        }
    }
}

/// The names of the settings, as paths of this project and of repositories and projects in it. A name that ends with `/` is a
/// folder.
pub(super) fn reserved_names(
    names: &[String],
    project: &Path,
    repositories: &Repositories,
) -> Vec<ReservedName> {
    let mut list = NameList::default();
    match &repositories.own {
        Some(layout) => list.push_git_names(names, layout),
        None => {
            for name in names.iter().filter(|name| name.starts_with(GIT)) {
                list.push(project.join(name.trim_end_matches('/')), placeholder_content(name));
            }
        }
    }
    for name in names.iter().filter(|name| !name.starts_with(GIT)) {
        list.push(project.join(name.trim_end_matches('/')), placeholder_content(name));
    }
    list.push_bundle_files(project, true);
    for layout in &repositories.nested {
        list.push_git_names(names, layout);
    }
    for inner in &repositories.inner_projects {
        list.push_inner_project(names, inner);
    }
    // Each file and link that says where a repository is.
    let pointers = repositories.layouts().flat_map(|layout| {
        let worktrees = layout.worktree_files().into_iter().filter(|path| path.starts_with(project));
        layout.pointers.iter().cloned().chain(worktrees)
    });
    for path in pointers.chain(repositories.unread.iter().cloned()) {
        list.push(path, PlaceholderContent::Folder);
    }
    // A folder on the way may be a link: nothing is made or protected anywhere but where it leads.
    let mut known = CanonicalPathCache::default();
    let mut all = list.names;
    for name in &mut all {
        if let (Some(parent), Some(last)) = (name.path.parent(), name.path.file_name()) {
            name.path = known.folder(parent).join(last);
        }
    }
    // A link: each one after it, and what it leads to if that is not there, is reserved as well.
    let mut targets: Vec<ReservedName> = Vec::new();
    for name in all.iter().filter(|name| name.path.is_symlink()) {
        let mut links = Vec::new();
        let end = git::follow(&name.path, &mut links);
        let end = end.filter(|end| end.symlink_metadata().is_err());
        let reserve = |path| ReservedName { path, content: name.content.clone() };
        targets.extend(links.into_iter().chain(end).map(reserve));
    }
    targets.retain(|target| all.iter().all(|name| name.path != target.path));
    all.extend(targets);
    all
}

/// A file in the cache that the tool sees in the place of a `.git` that leads through a link: it names the same folder, and
/// cannot be replaced as a link could.
pub(super) fn link_file(layout: &GitLayout, cache: &Path) -> Option<Replacement> {
    let path = layout.worktree.join(".git");
    let dirs = layout.dirs.as_ref()?;
    if !layout.pointers.iter().any(|pointer| pointer.is_symlink()) || !git::has_config(&dirs.common) {
        return None;
    }
    let text = [b"gitdir: ", dirs.own.as_os_str().as_encoded_bytes(), b"\n"].concat();
    let with = cached(&cache.join("git-link"), &text)?;
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
        Some(last) if last.ends_with(".json") || last.ends_with(".jsonc") => "{}\n",
        Some(_) | None => "",
    };
    PlaceholderContent::File(text.to_owned())
}

/// Placeholders that git would list as new files, as lines of `info/exclude`.
fn untracked_placeholders<'a>(
    placeholders: &'a [PathBuf],
    layout: &'a GitLayout,
) -> impl Iterator<Item = String> + 'a {
    placeholders.iter().filter_map(|path| {
        let relative = path.strip_prefix(&layout.worktree).ok()?.to_str()?;
        let is_listed = !relative.starts_with(GIT) && !relative.contains('\n') && path.is_file();
        let escape = |character: char| match character {
            '*' | '?' | '[' | '\\' | ' ' => format!("\\{character}"),
            other => other.to_string(),
        };
        is_listed.then(|| format!("/{}", relative.chars().map(escape).collect::<String>()))
    })
}

/// The lines of `info/exclude` that keep placeholders out of `git status` and `git add`, as a file in the cache that the
/// tool sees in the place of the project's.
pub(super) fn git_exclude(placeholders: &[PathBuf], layout: &GitLayout, cache: &Path) -> Option<Replacement> {
    let path = layout.writable_common()?.join("info/exclude");
    let lines: Vec<String> = untracked_placeholders(placeholders, layout).collect();
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
        assert_eq!(placeholder_content("opencode.jsonc"), PlaceholderContent::File("{}\n".to_owned()));
        assert_eq!(placeholder_content(".envrc"), PlaceholderContent::File(String::new()));
    }

    fn write(path: &Path, text: &str) {
        file::create_dirs(path.parent().expect("a folder"), false).expect("folders");
        file::write_atomic(path, text.as_bytes(), FileMode::Private).expect("a file");
    }

    #[test]
    fn worktree_protects_its_repository() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a real path");
        let (common, own, project) =
            (root.join("main/.git"), root.join("main/.git/worktrees/w"), root.join("w"));
        write(&common.join("HEAD"), "ref: refs/heads/main\n");
        write(&common.join("config"), "");
        file::create_dirs(&common.join("objects"), false).expect("a folder");
        write(&own.join("commondir"), "../..\n");
        write(&own.join("gitdir"), &format!("{}/.git\n", project.display()));
        write(&own.join("modules/sub/config"), "");
        write(&project.join(".git"), &format!("gitdir: {}\n", own.display()));
        let names = [".git/hooks/".to_owned(), ".envrc".to_owned()];
        let repositories = Repositories::find(&project, &[]);
        let paths: Vec<PathBuf> =
            reserved_names(&names, &project, &repositories).into_iter().map(|name| name.path).collect();
        let mut expected = vec![common.join("hooks")];
        expected.extend(WORKTREE_NAMES.map(|name| own.join(name)));
        expected.extend([own.join("modules"), own.join("modules/sub/hooks")]);
        expected.extend([project.join(".envrc"), project.join(".git")]);
        assert_eq!(paths, expected);
    }

    #[test]
    fn inner_projects_are_protected() {
        let folder = tempfile::tempdir().expect("a folder");
        let project = folder.path().canonicalize().expect("a real path");
        let inner = project.join("inner");
        write(&inner.join(".mcp.json"), "{}");
        let names = [".git/hooks/".to_owned(), ".mcp.json".to_owned(), ".envrc".to_owned()];
        let inner_names = |approved: &[PathBuf]| -> Vec<PathBuf> {
            let repositories = Repositories::find(&project, approved);
            let all = reserved_names(&names, &project, &repositories).into_iter().map(|name| name.path);
            all.filter_map(|path| Some(path.strip_prefix(&inner).ok()?.to_owned())).collect()
        };
        assert_eq!(inner_names(&[]), Vec::<PathBuf>::new());
        let expected = [
            ".mcp.json",
            ".envrc",
            ".ai/threads",
            ".ai/config",
            ".ai/lockfiles",
            ".ai/bundles",
            "lockfiles",
            ".git",
        ];
        assert_eq!(inner_names(&[inner.clone(), project.clone()]), expected.map(PathBuf::from));
        for name in BUNDLE_FILES {
            write(&inner.join(name), "");
            write(&project.join(name), "");
        }
        let repositories = Repositories::find(&project, &[inner.clone(), project.clone()]);
        let all: BTreeSet<PathBuf> =
            reserved_names(&names, &project, &repositories).into_iter().map(|name| name.path).collect();
        for name in BUNDLE_FILES {
            assert!(all.contains(&project.join(name)) && all.contains(&inner.join(name)), "{name}: {all:?}");
        }
    }
}
