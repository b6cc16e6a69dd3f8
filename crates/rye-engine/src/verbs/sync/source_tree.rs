//! Sources that hold no bundle: all plain files of a commit, or of an archive, in a private folder, for an import. The same
//! fetching as for bundles; nothing of what comes is run, and no link is followed or made.

use std::path::{Path, PathBuf};

use lillux::file::{self, LockedTempDir};
use rye_bundle::archive::{self, ArchiveLimits};
use rye_bundle::project::{GitSource, RequirementSource, SourceFields};
use rye_item::checkout::is_commit;
use rye_item::text::one_line;

use super::FetchContext;
use super::git::{self, LeftOutReason};
use super::resolve::{Locator, find_head, find_revision};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// How the names of archives end that can be imported. A `.whl` is a `.zip`.
const ARCHIVE_ENDINGS: [&str; 5] = [".zip", ".whl", ".tar.gz", ".tgz", ".tar.zst"];

/// A source as a folder, which goes when this is dropped.
#[derive(Debug)]
pub struct SourceFolder {
    /// The files.
    pub root: PathBuf,
    /// The source as it was named: `git+https://…`.
    pub name: String,
    /// Exactly what was fetched: a commit, or `sha256:…`; empty for an archive of this machine.
    pub revision: String,
    /// The last part of the address, and the folder in it.
    pub label: String,
    /// What is not there, by its path.
    pub left_out: Vec<(String, LeftOutReason)>,
    _folder: LockedTempDir,
}

/// Fetches a git source or an archive behind a URL.
///
/// # Errors
/// When it is neither, cannot be reached, is not what its digest names, or holds too much. Nothing is kept then.
pub fn fetch_source(
    engine: &Engine,
    address: &str,
    fields: &SourceFields,
    fetch: &mut FetchContext<'_>,
) -> Result<SourceFolder> {
    let source = RequirementSource::parse(address, fields).map_err(|error| {
        let is_named = address.starts_with("git+") || fields.sha256.is_some();
        let message = match is_named {
            true => error.to_string(),
            // What a bundle's source lacks says little about an address that was copied from a browser.
            false => not_fetched(address),
        };
        Error::new(Code::InvalidArgument, message).hint(address_hint(address))
    })?;
    match &source {
        RequirementSource::Git(git) => fetch_repository(engine, &source, git, fetch),
        RequirementSource::Url { url, sha256 } => {
            let archive = super::download::download(engine, url, sha256, fetch.cancel, &mut *fetch.on_bytes)?;
            let root = unpack(&archive.path, url, archive.folder.path())?;
            let (label, name) = (label_of(url, None), source.to_string());
            let revision = format!("sha256:{sha256}");
            Ok(SourceFolder { root, name, revision, label, left_out: Vec::new(), _folder: archive.folder })
        }
        RequirementSource::Path(_) | RequirementSource::Registry(_) => {
            Err(Error::new(Code::InvalidArgument, not_fetched(address)).hint(address_hint(address)))
        }
    }
}

/// Fetches one commit of a repository: the commit by its whole name, and nothing else that is called so.
///
/// # Errors
/// When it is not a repository's address, cannot be reached, has no such commit, or holds too much. Nothing is kept then.
pub fn fetch_commit(
    engine: &Engine,
    address: &str,
    commit: &str,
    cancel: &lillux::CancelToken,
) -> Result<SourceFolder> {
    let fields = SourceFields { rev: Some(commit.to_owned()), ..SourceFields::default() };
    let source = RequirementSource::parse(address, &fields)
        .map_err(|error| Error::new(Code::InvalidArgument, error.to_string()).hint(address_hint(address)))?;
    match &source {
        RequirementSource::Git(git) if is_commit(commit) => {
            let (mut on_bytes, on_files) = (|_, _| {}, |_, _| {});
            let fetch = FetchContext { cancel, on_bytes: &mut on_bytes, on_files: &on_files };
            fetch_repository(engine, &source, git, &fetch)
        }
        _ => Err(Error::new(Code::InvalidArgument, not_fetched(address)).hint(address_hint(address))),
    }
}

/// Whether a file of this name is an archive that can be imported.
#[must_use]
pub fn is_archive_name(name: &str) -> bool {
    archive_stem(name).is_some()
}

/// Unpacks an archive of this machine.
///
/// # Errors
/// When it is none, holds something else than plain files, or too much. Nothing is kept then.
pub fn unpack_source(engine: &Engine, path: &Path) -> Result<SourceFolder> {
    let cache = &engine.workspace.roots.cache;
    file::create_dirs(cache, true)?;
    let folder = LockedTempDir::new(cache, "import-")?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let root = unpack(path, &name, folder.path())?;
    let label = label_of(&name, None);
    Ok(SourceFolder { root, name, revision: String::new(), label, left_out: Vec::new(), _folder: folder })
}

/// Unpacks an archive into a folder of its own in `folder`; gives where its files begin.
fn unpack(path: &Path, name: &str, folder: &Path) -> Result<PathBuf> {
    let into = folder.join("tree");
    archive::unpack_foreign(path, &ArchiveLimits::default(), &into).map_err(|error| {
        Error::new(Code::FileRefused, format!("`{}`: {error}", one_line(name))).hint(
            "a .zip, .tar.gz or .tar.zst of plain files is imported; else unpack it and import the folder",
        )
    })?;
    Ok(only_folder(into.join(".ai")))
}

fn fetch_repository(
    engine: &Engine,
    source: &RequirementSource,
    git: &GitSource,
    fetch: &FetchContext<'_>,
) -> Result<SourceFolder> {
    let commit = match git.rev.as_deref() {
        Some(rev) if is_commit(rev) => rev.to_owned(),
        rev => {
            let refs = git::list_refs(engine, git, fetch.cancel)?;
            let found = match rev {
                Some(rev) => find_revision(git, rev, &refs)?,
                None => find_head(git, &refs)?,
            };
            match found.locator {
                Locator::Commit(commit) => commit,
                Locator::Path(_) | Locator::Stored { .. } | Locator::Registry(_) | Locator::Url => {
                    return Err(Error::new(Code::SourceUnreachable, format!("`{source}` has no commit")));
                }
            }
        }
    };
    let tree = git::fetch_tree(engine, git, &commit, fetch.cancel)?;
    Ok(SourceFolder {
        root: tree.folder.path().join("tree").join(".ai"),
        name: source.to_string(),
        revision: commit,
        label: label_of(&git.url, git.path.as_deref()),
        left_out: tree.left_out,
        _folder: tree.folder,
    })
}

fn not_fetched(address: &str) -> String {
    format!(
        "`{}` is neither `git+` and a repository's address nor an archive with a digest",
        one_line(address)
    )
}

/// How an address that is none of ours would be written.
fn address_hint(address: &str) -> String {
    let plain = |text: &str| rye_item::text::shell_word(&one_line(text));
    if let Some(repository) = address.strip_prefix("github:") {
        return format!("rye import {}", plain(&format!("git+https://github.com/{repository}")));
    }
    if let Some((login, path)) = address.split_once(':').filter(|(login, _)| login.starts_with("git@")) {
        return format!("rye import {}", plain(&format!("git+ssh://{login}/{path}")));
    }
    match address.strip_prefix("https://") {
        Some(_) if is_archive_name(address) => {
            "take the digest from its maker, not from the download: --sha256 DIGEST".to_owned()
        }
        Some(rest) => format!("a repository: rye import {}", plain(&format!("git+https://{rest}"))),
        None => {
            "git+https://…, git+ssh://… or git+file://… with --rev, or https://… with --sha256".to_owned()
        }
    }
}

/// What a source is called in records: the last part of its address, and the folder in it.
fn label_of(url: &str, path: Option<&str>) -> String {
    let name = url.trim_end_matches('/').rsplit('/').next().unwrap_or(url);
    let name = name.strip_suffix(".git").or_else(|| archive_stem(name)).unwrap_or(name);
    match path {
        Some(path) => format!("{name}/{}", path.trim_matches('/')),
        None => name.to_owned(),
    }
}

/// The name of an archive without its ending.
fn archive_stem(name: &str) -> Option<&str> {
    ARCHIVE_ENDINGS.iter().find_map(|end| name.strip_suffix(end))
}

/// The folder that everything in an archive lies in, if there is just one.
fn only_folder(root: PathBuf) -> PathBuf {
    let entries = |path: &Path| -> Vec<PathBuf> {
        let found = fs_err::read_dir(path).map(|entries| entries.flatten().take(2).map(|entry| entry.path()));
        found.map(Iterator::collect).unwrap_or_default()
    };
    match entries(&root).as_slice() {
        [only] if only.is_dir() && !is_client_folder(only) => only.clone(),
        _ => root,
    }
}

/// A folder whose name says what is in it stays a part of the path.
fn is_client_folder(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_addresses_get_a_command() {
        for (address, hint) in [
            ("https://github.com/a/b", "a repository: rye import git+https://github.com/a/b"),
            ("git@github.com:a/b.git", "rye import git+ssh://git@github.com/a/b.git"),
            ("github:a/b", "rye import git+https://github.com/a/b"),
        ] {
            assert_eq!(address_hint(address), hint);
        }
        for archive in ["x.zip", "x.tar.gz", "x.tgz", "x.tar.zst"] {
            assert!(address_hint(&format!("https://a.example/{archive}")).contains("--sha256"), "{archive}");
        }
    }

    #[test]
    fn labels_are_short_names() {
        assert_eq!(label_of("https://a.example/team/kit.git", None), "kit");
        assert_eq!(label_of("https://a.example/kit-1.0.0.tgz", None), "kit-1.0.0");
        assert_eq!(label_of("ssh://git@a.example/team/kit/", Some("skills/pdf")), "kit/skills/pdf");
    }
}
