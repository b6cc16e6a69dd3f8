//! Bundles in git repositories, read with the system's `git`. The address and everything in the repository may be hostile:
//! nothing is checked out, so no hook, filter or submodule runs, and only the protocols of the source are spoken.

use std::path::Path;

use lillux::CancelToken;
use lillux::file::{self, FileMode, LockedTempDir};
use rye_bundle::BundlePath;
use rye_bundle::archive::ArchiveLimits;
use rye_bundle::project::GitSource;
use rye_item::checkout::is_commit;
use rye_item::text::one_line;

use super::git_command::{GitAccess, GitCommand, has_answered};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// How much of a list (references, files) is read.
const MAX_LIST_BYTES: usize = 16 << 20;
/// How many bytes of files one call of git gives.
const BATCH_BYTES: u64 = 16 << 20;

/// The largest file of a commit that is fetched as a folder, and of a project whose files travel to a worker.
pub const MAX_TREE_FILE_BYTES: u64 = 64 << 20;
/// How many files of a tree are fetched for an import.
const MAX_TREE_FILES: usize = 50_000;
/// The repository that a commit is fetched into, in git's own folder.
const GIT_DIRECTORY: &str = "--git-dir=repository";

/// A name in a repository, and the commit it stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GitRef {
    /// `refs/tags/…`, `refs/heads/…` or `HEAD`.
    pub(super) name: String,
    pub(super) commit: String,
}

fn private_folder(engine: &Engine) -> Result<LockedTempDir> {
    let cache = &engine.workspace.roots.cache;
    file::create_dirs(cache, true)?;
    Ok(LockedTempDir::new(cache, "git-")?)
}

/// The names of a repository with the commits they stand for.
pub(super) fn list_refs(engine: &Engine, source: &GitSource, cancel: &CancelToken) -> Result<Vec<GitRef>> {
    let folder = private_folder(engine)?;
    let git = GitCommand::new(engine, source, folder.path(), cancel)?;
    let arguments =
        ["ls-remote", "--quiet", "--", source.url.as_str(), "HEAD", "refs/heads/*", "refs/tags/*"];
    let output = git.run_checked(GitAccess::Remote, &arguments, Vec::new(), MAX_LIST_BYTES)?;
    Ok(parse_refs(&String::from_utf8_lossy(&output)))
}

/// Reads what `ls-remote` writes. A tag that is an object of its own stands for the commit it points to.
fn parse_refs(output: &str) -> Vec<GitRef> {
    let mut refs: Vec<GitRef> = Vec::new();
    for (commit, name) in output.lines().filter_map(|line| line.split_once('\t')) {
        if !is_commit(commit) {
            continue;
        }
        let (name, commit) = (name.strip_suffix("^{}").unwrap_or(name), commit.to_owned());
        match refs.iter_mut().find(|known| known.name == name) {
            Some(known) => known.commit = commit,
            None => refs.push(GitRef { name: name.to_owned(), commit }),
        }
    }
    refs
}

/// Fetches one commit and writes the `.ai` of the source's folder to `bundle` in the folder that is given back.
pub(super) fn fetch_bundle(
    engine: &Engine,
    source: &GitSource,
    commit: &str,
    cancel: &CancelToken,
) -> Result<LockedTempDir> {
    let folder = private_folder(engine)?;
    let git = GitCommand::new(engine, source, folder.path(), cancel)?;
    fetch_commit(&git, commit)?;
    let files = list_files(&git, commit)?;
    write_files(&git, &files, &folder.path().join("bundle"))?;
    Ok(folder)
}

/// Why a file of a commit was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeftOutReason {
    /// It is a symbolic link.
    Link,
    /// It is another repository.
    Submodule,
    /// Its name is not plain.
    Name,
    /// It has more bytes than are fetched.
    Size(u64),
}

/// A commit as a folder.
pub(super) struct GitTree {
    /// The private folder; the files are below `tree/.ai`.
    pub(super) folder: LockedTempDir,
    /// What is not there, by its path.
    pub(super) left_out: Vec<(String, LeftOutReason)>,
}

/// Fetches one commit and writes the plain files of the source's folder; what is not a plain file is named and not written.
pub(super) fn fetch_tree(
    engine: &Engine,
    source: &GitSource,
    commit: &str,
    cancel: &CancelToken,
) -> Result<GitTree> {
    let folder = private_folder(engine)?;
    let git = GitCommand::new(engine, source, folder.path(), cancel)?;
    fetch_commit(&git, commit)?;
    let (files, left_out) = list_tree(&git, commit)?;
    let into = folder.path().join("tree");
    write_files(&git, &files, &into)?;
    for found in files.iter().filter(|found| found.is_executable) {
        file::set_mode(&into.join(found.path.as_path()), 0o700)?;
    }
    Ok(GitTree { folder, left_out })
}

/// Fetches one commit into a new repository in the folder that git works in.
fn fetch_commit(git: &GitCommand<'_>, commit: &str) -> Result<()> {
    let source = git.source;
    let format = if commit.len() == 64 { "--object-format=sha256" } else { "--object-format=sha1" };
    let make = ["init", "--quiet", "--bare", "--template=", format, "--", "repository"];
    git.run_checked(GitAccess::Local, &make, Vec::new(), MAX_LIST_BYTES)?;
    let directory = GIT_DIRECTORY;
    let fetch = |specs: &[&str], depth: &[&str]| {
        let mut arguments = vec![directory, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules"];
        arguments.extend(["--no-write-fetch-head", "--no-auto-maintenance"]);
        arguments.extend(depth);
        arguments.extend(["--", source.url.as_str()]);
        arguments.extend(specs);
        git.run(GitAccess::Remote, &arguments, Vec::new(), MAX_LIST_BYTES)
    };
    if let Err(reason) = fetch(&[commit], &["--depth=1"])? {
        // Some servers give only what a name stands for: then everything with a name is fetched.
        if !has_answered(&reason) {
            return Err(git.unreachable(&reason));
        }
        fetch(&["+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*"], &[])?
            .map_err(|reason| git.unreachable(&reason))?;
    }
    let object = format!("{commit}^{{commit}}");
    let found = git.run(
        GitAccess::Local,
        &[directory, "rev-parse", "--quiet", "--verify", "--end-of-options", &object],
        Vec::new(),
        MAX_LIST_BYTES,
    )?;
    if found.as_deref().ok().map(|id| id.trim_ascii()) != Some(commit.as_bytes()) {
        let message = format!("the repository `{}` has no commit {commit}", source.url);
        return Err(Error::new(Code::SourceMismatch, message)
            .hint("its history was rewritten: ask its maker, then name another commit (of a bundle: rye bundle upgrade)"));
    }
    Ok(())
}

/// A file of a commit.
struct GitFile {
    object: String,
    size: u64,
    path: BundlePath,
    is_executable: bool,
}

/// The files of a tree, and what was left out of it with the reason.
type TreeListing = (Vec<GitFile>, Vec<(String, LeftOutReason)>);

/// The plain files of the source's folder, as if they lay below `.ai`, and what is left out.
fn list_tree(git: &GitCommand<'_>, commit: &str) -> Result<TreeListing> {
    let mut arguments = vec![GIT_DIRECTORY, "ls-tree", "-r", "-z", "-l", "--full-tree", commit, "--"];
    arguments.extend(git.source.path.as_deref());
    let output = git.run_checked(GitAccess::Local, &arguments, Vec::new(), MAX_LIST_BYTES)?;
    let limits = ArchiveLimits::default();
    let (mut files, mut left_out, mut total) = (Vec::new(), Vec::new(), 0);
    for entry in output.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
        let entry = String::from_utf8_lossy(entry).into_owned();
        let (facts, path) = entry.split_once('\t').unwrap_or((&entry, ""));
        let facts: Vec<&str> = facts.split_ascii_whitespace().collect();
        let relative = match git.source.path.as_deref() {
            Some(folder) if folder == path => path.rsplit('/').next().unwrap_or(path),
            Some(folder) => path.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')).unwrap_or(path),
            None => path,
        };
        let reason = match facts.as_slice() {
            [mode, "blob", object, size] if mode.starts_with("100") => {
                let size: u64 = size.parse().unwrap_or(u64::MAX);
                match BundlePath::new(format!(".ai/{relative}")) {
                    Err(_) => LeftOutReason::Name,
                    Ok(_) if size > MAX_TREE_FILE_BYTES => LeftOutReason::Size(size),
                    Ok(path) => {
                        total += size;
                        let is_executable = *mode == "100755";
                        files.push(GitFile { object: (*object).to_owned(), size, path, is_executable });
                        continue;
                    }
                }
            }
            [_, "blob", ..] => LeftOutReason::Link,
            _ => LeftOutReason::Submodule,
        };
        left_out.push((relative.to_owned(), reason));
    }
    let url = &git.source.url;
    if total > limits.total_bytes || files.len() > MAX_TREE_FILES {
        let message =
            format!("`{url}` holds more than {MAX_TREE_FILES} files or {} bytes", limits.total_bytes);
        return Err(Error::new(Code::TooLarge, message).hint("name the folder that is wanted: --path DIR"));
    }
    if files.is_empty() {
        let folder = git.source.path.as_deref().unwrap_or(".");
        return Err(Error::new(
            Code::PathNotFound,
            format!("`{url}` has no files in `{folder}` at {commit}"),
        )
        .hint("name a folder or a file of the repository with --path"));
    }
    Ok((files, left_out))
}

fn list_files(git: &GitCommand<'_>, commit: &str) -> Result<Vec<GitFile>> {
    let prefix = git.source.path.as_deref().map(|path| format!("{path}/")).unwrap_or_default();
    let inside = format!("{prefix}.ai/");
    let arguments =
        [GIT_DIRECTORY, "ls-tree", "-r", "-z", "-l", "--full-tree", commit, "--", inside.as_str()];
    let output = git.run_checked(GitAccess::Local, &arguments, Vec::new(), MAX_LIST_BYTES)?;
    let refused = |path: &str, reason: &str| {
        let path = one_line(path);
        Error::new(Code::FileRefused, format!("`{path}` of `{}`: {reason}", git.source.url))
            .detail("path", path)
            .hint("a bundle holds plain files and folders below `.ai/` only")
    };
    let limits = ArchiveLimits::default();
    let (mut files, mut total) = (Vec::new(), 0);
    for entry in output.split(|byte| *byte == 0).filter(|entry| !entry.is_empty()) {
        let entry = String::from_utf8_lossy(entry).into_owned();
        let (facts, path) = entry.split_once('\t').unwrap_or((&entry, ""));
        let facts: Vec<&str> = facts.split_ascii_whitespace().collect();
        let [mode, "blob", object, size] = facts.as_slice() else {
            return Err(refused(path, "it is a submodule, not a file"));
        };
        if !mode.starts_with("100") {
            return Err(refused(path, "it is a symbolic link"));
        }
        let size: u64 = size.parse().map_err(|_| refused(path, "its size cannot be read"))?;
        total += size;
        if size > limits.file_bytes || total > limits.total_bytes || files.len() >= limits.entries {
            return Err(refused(path, "the bundle is larger than a bundle may be"));
        }
        let relative = path.strip_prefix(&prefix).unwrap_or(path);
        let path = BundlePath::new(relative).map_err(|error| refused(path, error.reason))?;
        files.push(GitFile { object: (*object).to_owned(), size, path, is_executable: false });
    }
    if files.is_empty() {
        let folder = git.source.path.as_deref().unwrap_or(".");
        let message = format!("`{}` has no `.ai` in `{folder}` at {commit}", git.source.url);
        return Err(Error::new(Code::NoManifest, message)
            .hint("name the folder that holds the bundle's `.ai` with --path (`path` in bundles.toml)"));
    }
    Ok(files)
}

/// Writes the files, some of them at a time.
fn write_files(git: &GitCommand<'_>, files: &[GitFile], into: &Path) -> Result<()> {
    file::create_dirs(into, true)?;
    let mut rest = files;
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest.iter().take_while(|file| {
            let is_first = bytes == 0;
            bytes += file.size + 1;
            is_first || bytes <= BATCH_BYTES
        });
        let (batch, later) = rest.split_at(count.count().max(1));
        rest = later;
        let objects: String = batch.iter().map(|file| format!("{}\n", file.object)).collect();
        let size: u64 = batch.iter().map(|file| file.size + 256).sum();
        let output = git.run_checked(
            GitAccess::Local,
            &[GIT_DIRECTORY, "cat-file", "--batch"],
            objects.into_bytes(),
            usize::try_from(size).unwrap_or(usize::MAX),
        )?;
        let mut output = output.as_slice();
        for file in batch {
            let content = take_object(&mut output, file)
                .ok_or_else(|| git.unreachable("git gave something else than it was asked for"))?;
            let parent = file.path.as_path().parent().unwrap_or(Path::new(""));
            let folder = file::create_folders_beneath(into, parent, true)?;
            let name = file.path.as_path().file_name().unwrap_or_default();
            file::write_new(&folder.join(name), content, FileMode::Private)?;
        }
    }
    Ok(())
}

/// The next object of `cat-file --batch`: a line with id, type and size, the bytes, a line break.
fn take_object<'o>(output: &mut &'o [u8], file: &GitFile) -> Option<&'o [u8]> {
    let end = output.iter().position(|byte| *byte == b'\n')?;
    let header = std::str::from_utf8(&output[..end]).ok()?;
    if header != format!("{} blob {}", file.object, file.size) {
        return None;
    }
    let start = end + 1;
    let size = usize::try_from(file.size).ok()?;
    let content = output.get(start..start.checked_add(size)?)?;
    if output.get(start + size) != Some(&b'\n') {
        return None;
    }
    *output = &output[start + size + 1..];
    Some(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_stand_for_their_commits() {
        let (one, two, three) = ("1".repeat(40), "2".repeat(40), "3".repeat(40));
        let output = format!(
            "{one}\tHEAD\n{two}\trefs/tags/v1\n{three}\trefs/tags/v1^{{}}\nnot a line\nxyz\trefs/heads/x\n"
        );
        let refs = parse_refs(&output);
        assert_eq!(
            refs,
            [
                GitRef { name: "HEAD".to_owned(), commit: one },
                GitRef { name: "refs/tags/v1".to_owned(), commit: three }
            ]
        );
    }

    #[test]
    fn objects_are_taken_exactly() {
        let file = |size| GitFile {
            object: "abc".to_owned(),
            size,
            path: BundlePath::new(".ai/tools/a.py").expect("a path"),
            is_executable: false,
        };
        let output = b"abc blob 3\nx\ny\nabc blob 0\n\n";
        let mut rest = output.as_slice();
        assert_eq!(take_object(&mut rest, &file(3)), Some(b"x\ny".as_slice()));
        assert_eq!(take_object(&mut rest, &file(0)), Some(b"".as_slice()));
        assert!(rest.is_empty());
        assert_eq!(take_object(&mut output.as_slice(), &file(4)), None);
        assert_eq!(take_object(&mut b"abc blob 3\nxy".as_slice(), &file(3)), None);
        assert_eq!(take_object(&mut b"abc missing\n".as_slice(), &file(3)), None);
    }
}
