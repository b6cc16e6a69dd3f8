//! Where git finds a repository: from a folder to its git folder, the folder that worktrees share, and every file and link on
//! the way. Whether git obeys what is there is decided by others.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use lillux::canonicalize_existing;
use lillux::file;

use super::git_config;

/// The files read here hold one path each, and git reads as much of them.
const MAX_BYTES: u64 = 1 << 20;
/// More submodules than this are not looked at one by one.
const MAX_MODULES: usize = 64;
/// As many links in a row as the system follows.
const MAX_LINKS: usize = 40;
/// How deep the names of submodules and submodules in submodules go.
const MAX_MODULE_DEPTH: usize = 16;

/// The repository of one folder, as git reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GitLayout {
    /// The folder with the files.
    pub(super) worktree: PathBuf,
    /// Files and links that say where the repository is, each by its own place.
    pub(super) pointers: Vec<PathBuf>,
    /// The folders of the repository, whether something is there or not; `None` if `.git` names none.
    pub(super) dirs: Option<GitDirs>,
    /// Whether the repository says that this is one of its linked worktrees.
    pub(super) is_linked_worktree: bool,
    /// Read when they are asked for.
    modules: OnceLock<Vec<ModuleFolder>>,
}

/// A git folder, and the folders of submodules' repositories in it. `None` if they cannot be told one by one.
pub(super) type ModuleFolder = (PathBuf, Option<Vec<PathBuf>>);

/// The folders of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GitDirs {
    /// What belongs to one worktree: index, `HEAD`.
    pub(super) own: PathBuf,
    /// What all worktrees share: config, hooks, objects. Mostly the same folder.
    pub(super) common: PathBuf,
}

impl GitLayout {
    /// Reads the layout of a folder, given by its real path. `None` if it has no `.git`.
    pub(super) fn read(worktree: &Path) -> Option<Self> {
        let entry = worktree.join(".git");
        let kind = entry.symlink_metadata().ok()?.file_type();
        let mut pointers = Vec::new();
        let own = match kind.is_dir() {
            true => Some(entry.clone()),
            false => follow_entry(&entry, worktree, &mut pointers),
        };
        let dirs = own.map(|own| GitDirs { common: common_dir(&own, &mut pointers), own });
        let is_linked_worktree = dirs.as_ref().is_some_and(|dirs| kind.is_file() && dirs.names(&entry));
        if !kind.is_dir() && !pointers.contains(&entry) {
            pointers.push(entry);
        }
        let worktree = worktree.to_owned();
        Some(Self { worktree, pointers, dirs, is_linked_worktree, modules: OnceLock::new() })
    }

    /// Whether `.git` is a folder that holds everything.
    pub(super) fn is_plain(&self) -> bool {
        self.pointers.is_empty()
    }

    /// The index that git reads here.
    pub(super) fn index(&self) -> Option<PathBuf> {
        self.dirs.as_ref().map(|dirs| dirs.own.join("index"))
    }

    /// The config that git reads here.
    pub(super) fn config(&self) -> Option<PathBuf> {
        self.dirs.as_ref().map(|dirs| dirs.common.join("config"))
    }

    /// The folder that worktrees share, if a commit of a tool may write to it: a plain one, one that a linked worktree belongs
    /// to, or one in this folder. A link or file of a stranger could lead anywhere.
    pub(super) fn writable_common(&self) -> Option<&Path> {
        let dirs = self.dirs.as_ref()?;
        let is_inside = dirs.common.starts_with(&self.worktree) && has_config(&dirs.common);
        (self.is_plain() || self.is_linked_worktree || is_inside).then_some(dirs.common.as_path())
    }

    /// The folders of submodules' repositories, in both folders.
    pub(super) fn modules(&self) -> &[ModuleFolder] {
        self.modules.get_or_init(|| {
            let Some(dirs) = &self.dirs else { return Vec::new() };
            let mut folders = vec![&dirs.common];
            if dirs.own != dirs.common {
                folders.push(&dirs.own);
            }
            folders.into_iter().map(|folder| (folder.clone(), modules(folder))).collect()
        })
    }

    /// The `.git` files of linked worktrees of this repository.
    pub(super) fn worktree_files(&self) -> Vec<PathBuf> {
        let Some(dirs) = &self.dirs else { return Vec::new() };
        let entries = dirs.common.join("worktrees").read_dir().into_iter().flatten().take(MAX_MODULES);
        let named = |entry: std::io::Result<std::fs::DirEntry>| {
            let folder = entry.ok()?.path();
            let path = folder.join(read_path(&folder.join("gitdir"))?);
            path.symlink_metadata().is_ok().then_some(path)
        };
        entries.filter_map(named).collect()
    }
}

impl GitDirs {
    /// Of a folder that is a repository itself. `None` if links lead to what it shares: they can be changed later.
    pub(super) fn of_bare(folder: &Path) -> Option<Self> {
        let mut pointers = Vec::new();
        let common = common_dir(folder, &mut pointers);
        pointers.is_empty().then(|| Self { own: folder.to_owned(), common })
    }

    /// Whether this is the repository's own record of the worktree with this `.git` file. A file alone grants nothing: that of a
    /// stranger could name any folder.
    fn names(&self, entry: &Path) -> bool {
        let named = || {
            let path = read_path(&self.own.join("gitdir"))?;
            Some(canonicalize_existing(&self.own.join(path)))
        };
        self.own.parent() == Some(self.common.join("worktrees").as_path())
            && self.common.join("HEAD").is_file()
            && self.common.join("objects").is_dir()
            && named().as_deref() == Some(entry)
    }
}

/// Where a `.git` that is a file or a link leads.
fn follow_entry(entry: &Path, worktree: &Path, pointers: &mut Vec<PathBuf>) -> Option<PathBuf> {
    let end = follow(entry, pointers)?;
    if !end.symlink_metadata().is_ok_and(|found| found.is_file()) {
        return Some(end);
    }
    if !pointers.contains(&end) {
        pointers.push(end.clone());
    }
    let (bytes, _) = file::read_bounded(&end, MAX_BYTES).ok()?;
    let named = trim_line_end(bytes.strip_prefix(b"gitdir: ")?);
    follow(&worktree.join(OsStr::from_bytes(named)), pointers)
}

/// What `commondir` names, or the folder itself.
fn common_dir(own: &Path, pointers: &mut Vec<PathBuf>) -> PathBuf {
    let path = own.join("commondir");
    // A placeholder names the folder itself.
    let Some(named) = read_path(&path).filter(|named| named.as_os_str() != ".") else {
        return own.to_owned();
    };
    let mut links = Vec::new();
    let file = follow(&path, &mut links);
    let common = follow(&own.join(named), &mut links).unwrap_or_else(|| own.to_owned());
    if !links.is_empty() {
        pointers.extend(file);
    }
    pointers.extend(links);
    common
}

/// Follows a path part by part, as the system does. Notes every link by its own place. `None` if there are too many.
pub(super) fn follow(path: &Path, links: &mut Vec<PathBuf>) -> Option<PathBuf> {
    let mut pending: VecDeque<OsString> = parts(path).collect();
    let (mut at, mut count) = (PathBuf::from("/"), 0);
    while let Some(part) = pending.pop_front() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        let Ok(target) = next.read_link() else {
            at = next;
            continue;
        };
        count += 1;
        if count > MAX_LINKS {
            return None;
        }
        if !links.contains(&next) {
            links.push(next);
        }
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        parts(&target).rev().for_each(|part| pending.push_front(part));
    }
    Some(at)
}

/// The names in a path, `..` included.
fn parts(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    let named = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
    });
    named.collect::<Vec<OsString>>().into_iter()
}

/// Whether a folder is one that git obeys. What else a repository holds, a tool may remove: its config it may not.
pub(super) fn has_config(folder: &Path) -> bool {
    folder.join("config").symlink_metadata().is_ok_and(|found| found.is_file())
}

/// Folders of a repository in which there are no submodules.
pub(super) const INNER_FOLDERS: [&str; 10] =
    ["objects", "refs", "logs", "hooks", "info", "branches", "remotes", "worktrees", "lfs", "rr-cache"];

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
    let path = git_config::worktree(&module.join("config"), module)?.join(".git");
    path.symlink_metadata().is_ok_and(|found| found.is_file()).then_some(path)
}

/// The path that a file holds.
fn read_path(path: &Path) -> Option<PathBuf> {
    let (bytes, _) = file::read_bounded(path, MAX_BYTES).ok()?;
    Some(PathBuf::from(OsString::from_vec(trim_line_end(&bytes).to_owned())))
}

/// Git takes line ends away, and no other blanks.
fn trim_line_end(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r'));
    end.map_or(&[], |end| &bytes[..=end])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(path: &Path, text: &str) {
        file::create_dirs(path.parent().expect("a folder"), false).expect("folders");
        file::write_atomic(path, text.as_bytes(), file::FileMode::Preserve).expect("a file");
    }

    fn world() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a real path");
        for path in ["main/.git/objects", "w", "clone"] {
            file::create_dirs(&root.join(path), false).expect("folders");
        }
        write(&root.join("main/.git/HEAD"), "ref: refs/heads/main\n");
        write(&root.join("main/.git/worktrees/w/commondir"), "../..\n");
        write(&root.join("main/.git/worktrees/w/gitdir"), &format!("{}/w/.git\n", root.display()));
        write(&root.join("w/.git"), &format!("gitdir: {}/main/.git/worktrees/w\n", root.display()));
        (folder, root)
    }

    fn dirs(own: &Path, common: &Path) -> GitDirs {
        GitDirs { own: own.to_owned(), common: common.to_owned() }
    }

    #[test]
    fn worktree_needs_links_in_both_directions() {
        let (_folder, root) = world();
        let (common, own) = (root.join("main/.git"), root.join("main/.git/worktrees/w"));
        let layout = GitLayout::read(&root.join("w")).expect("a layout");
        assert_eq!(layout.dirs, Some(dirs(&own, &common)));
        assert_eq!(layout.pointers, [root.join("w/.git")]);
        assert_eq!((layout.is_linked_worktree, layout.writable_common()), (true, Some(common.as_path())));
        let layout = GitLayout::read(&root.join("main")).expect("a layout");
        assert_eq!((layout.dirs.clone(), layout.is_plain()), (Some(dirs(&common, &common)), true));
        assert_eq!(layout.worktree_files(), [root.join("w/.git")]);
        assert_eq!(GitLayout::read(&root), None);
    }

    #[test]
    fn git_file_alone_grants_nothing() {
        let (_folder, root) = world();
        write(&root.join("clone/.git"), &format!("gitdir: {}/main/.git/worktrees/w\n", root.display()));
        let layout = GitLayout::read(&root.join("clone")).expect("a layout");
        assert_eq!((layout.is_linked_worktree, layout.writable_common()), (false, None));
        assert!(layout.dirs.is_some());
    }

    #[test]
    fn every_step_to_a_repository_is_named() {
        let (_folder, root) = world();
        let clone = root.join("clone");
        write(&clone.join("real/gd/config"), "");
        write(&clone.join("gitfile"), "gitdir: lnk/gd\n");
        symlink("real", clone.join("lnk")).expect("a link");
        symlink("two", clone.join(".git")).expect("a link");
        symlink("gitfile", clone.join("two")).expect("a link");
        let layout = GitLayout::read(&clone).expect("a layout");
        let gd = clone.join("real/gd");
        assert_eq!(layout.dirs, Some(dirs(&gd, &gd)));
        let names = [".git", "two", "gitfile", "lnk"].map(|name| clone.join(name));
        assert_eq!(layout.pointers, names);
        // A folder that shares another's config, by a path through a link.
        write(&gd.join("commondir"), "../../lnk/../shared\n");
        let layout = GitLayout::read(&clone).expect("a layout");
        assert_eq!(layout.dirs, Some(dirs(&gd, &clone.join("shared"))));
        assert_eq!(layout.writable_common(), None);
        write(&clone.join("shared/config"), "");
        assert_eq!(
            GitLayout::read(&clone).expect("a layout").writable_common(),
            Some(&*clone.join("shared"))
        );
    }

    #[test]
    fn links_to_nothing_and_elsewhere_are_known() {
        let (_folder, root) = world();
        let clone = root.join("clone");
        write(&root.join("main/.git/config"), "");
        for (target, folder) in
            [("none", clone.join("none")), ("../main/.git", root.join("main/.git")), ("../w", root.join("w"))]
        {
            symlink(target, clone.join(".git")).expect("a link");
            let layout = GitLayout::read(&clone).expect("a layout");
            assert_eq!(layout.dirs, Some(dirs(&folder, &folder)), "{target}");
            // What lies outside of the project is never opened.
            assert_eq!(layout.writable_common(), None, "{target}");
            file::remove(&clone.join(".git")).expect("removed");
        }
    }

    #[test]
    fn modules_are_found_unless_linked() {
        let (_folder, root) = world();
        let git = root.join("main/.git");
        assert_eq!(modules(&git), Some(Vec::new()));
        for module in ["modules/libs/one", "modules/libs/one/modules/two"] {
            write(&git.join(module).join("config"), "");
        }
        // A tool's file does not keep a submodule from being found.
        write(&git.join("modules/libs/config"), "");
        let found = ["modules/libs", "modules/libs/one", "modules/libs/one/modules/two"];
        assert_eq!(modules(&git), Some(found.map(|name| git.join(name)).to_vec()));
        symlink("one", git.join("modules/libs/link")).expect("a link");
        assert_eq!(modules(&git), None);
    }

    #[test]
    fn quoted_paths_of_submodules_are_read() {
        let (_folder, root) = world();
        for (name, text) in
            [("a#b", "\"../a#b\""), ("c\"d\\e ", "\"../c\\\"d\\\\e \""), ("plain", "../plain")]
        {
            let module = root.join("main/module");
            write(&module.join("config"), &format!("[core]\n\tworktree = {text}\n"));
            write(&root.join("main").join(name).join(".git"), "gitdir: ../module\n");
            assert_eq!(module_file(&module), Some(root.join("main").join(name).join(".git")), "{name}");
        }
    }
}
