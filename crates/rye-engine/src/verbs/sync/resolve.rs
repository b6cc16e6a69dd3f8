//! The resolver: from what a manifest asks for to exactly one bundle, and from there to its files in a private folder.

use std::path::PathBuf;

use lillux::file::LockedTempDir;
use rye_bundle::project::{BundleRequirement, GitSource, LockedBundle, RegistrySource, RequirementSource};
use rye_bundle::registry::{Reference, ReferenceVersion};
use rye_item::BundleId;
use rye_item::checkout::is_commit;
use rye_item::text::one_line;
use semver::{Version, VersionReq};

use super::FetchContext;
use super::git::{self, GitRef};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::install::{self, InstallOptions, InstallSource, PreparedInstall};
use crate::verbs::registry::{self, TransferOptions};

/// How many versions a refusal names.
const MAX_NAMED_VERSIONS: usize = 5;

/// Exactly what is fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Locator {
    /// A folder or an archive in the project.
    Path(PathBuf),
    /// A version that was installed here before and is stored.
    Stored {
        /// Its archive.
        path: PathBuf,
        /// What it is known by where it came from.
        digest: Option<String>,
    },
    /// An artifact of a registry.
    Registry(Reference),
    /// The archive that the source names.
    Url,
    /// A commit of the repository.
    Commit(String),
}

/// What a source came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResolvedSource {
    pub(super) locator: Locator,
    /// Whether the name it was found by is a version, which should not mean something else later.
    pub(super) is_tag: bool,
}

/// The versions of a source, each with what it is fetched by.
pub(super) type Versions = Vec<(Version, ResolvedSource)>;

/// Finds the bundle that a source and a range stand for now.
///
/// # Errors
/// When the source is not reached, or has no version in the range.
pub(super) fn resolve(
    engine: &Engine,
    source: &RequirementSource,
    range: Option<&VersionReq>,
    fetch: &FetchContext<'_>,
) -> Result<ResolvedSource> {
    let named = |locator| Ok(ResolvedSource { locator, is_tag: false });
    match source {
        RequirementSource::Path(path) => named(Locator::Path(project_path(engine, path)?)),
        RequirementSource::Url { .. } => named(Locator::Url),
        RequirementSource::Registry(RegistrySource { reference, has_version: true }) => {
            let is_tag = matches!(reference.version(), ReferenceVersion::Tag(tag) if tag != "latest");
            Ok(ResolvedSource { locator: Locator::Registry(reference.clone()), is_tag })
        }
        RequirementSource::Registry(RegistrySource { reference, has_version: false }) => {
            let versions = registry_versions(engine, reference, fetch)?;
            match versions.is_empty() {
                true => named(Locator::Registry(reference.clone())),
                false => choose_version(source, versions, range).map(|(_, resolved)| resolved),
            }
        }
        RequirementSource::Git(git) => match &git.rev {
            Some(rev) if is_commit(rev) => named(Locator::Commit(rev.clone())),
            Some(rev) => find_revision(git, rev, &git::list_refs(engine, git, fetch.cancel)?),
            None => {
                let refs = git::list_refs(engine, git, fetch.cancel)?;
                let versions = tag_versions(&refs);
                match versions.is_empty() {
                    true => find_head(git, &refs),
                    false => choose_version(source, versions, range).map(|(_, resolved)| resolved),
                }
            }
        },
    }
}

/// The versions that a source offers to choose from; `None` if it names one itself.
pub(super) fn list_versions(
    engine: &Engine,
    source: &RequirementSource,
    fetch: &FetchContext<'_>,
) -> Result<Option<Versions>> {
    let versions = match source {
        RequirementSource::Registry(RegistrySource { reference, has_version: false }) => {
            registry_versions(engine, reference, fetch)?
        }
        RequirementSource::Git(git) if git.rev.is_none() => {
            tag_versions(&git::list_refs(engine, git, fetch.cancel)?)
        }
        RequirementSource::Path(_)
        | RequirementSource::Url { .. }
        | RequirementSource::Registry(_)
        | RequirementSource::Git(_) => Versions::new(),
    };
    Ok(Some(versions).filter(|versions| !versions.is_empty()))
}

/// What a lock names, exactly. What was installed here before is not fetched again.
///
/// # Errors
/// When the path of a source is not in the project.
pub(super) fn locked_locator(engine: &Engine, locked: &LockedBundle) -> Result<Locator> {
    if let Some(path) = install::stored_archive(engine, locked.id(), &locked.manifest)? {
        let digest = locked.digest.map(|digest| format!("sha256:{digest}"));
        let commit = locked.commit.as_ref().map(|commit| format!("commit:{commit}"));
        return Ok(Locator::Stored { path, digest: digest.or(commit) });
    }
    let inexact = || {
        Error::new(Code::InvalidProjectManifest, format!("the lock of `{}` is not exact", locked.id()))
            .hint("resolve it again: rye bundle upgrade")
    };
    Ok(match &locked.requirement.source {
        RequirementSource::Path(path) => Locator::Path(project_path(engine, path)?),
        RequirementSource::Url { .. } => Locator::Url,
        RequirementSource::Registry(source) => {
            Locator::Registry(source.reference.with_digest(locked.digest.ok_or_else(inexact)?))
        }
        RequirementSource::Git(_) => Locator::Commit(locked.commit.clone().ok_or_else(inexact)?),
    })
}

/// The highest version in the range. Versions before a release count only if the range names one, or there are no others.
pub(super) fn choose_version(
    source: &RequirementSource,
    versions: Versions,
    range: Option<&VersionReq>,
) -> Result<(Version, ResolvedSource)> {
    let (mut best, mut found): (Option<(Version, ResolvedSource)>, Vec<Version>) = (None, Vec::new());
    let has_release = versions.iter().any(|(version, _)| version.pre.is_empty());
    for (version, resolved) in versions {
        let is_wanted = match range {
            Some(range) => range.matches(&version),
            None => version.pre.is_empty() || !has_release,
        };
        found.push(version.clone());
        if is_wanted && best.as_ref().is_none_or(|(known, _)| *known < version) {
            best = Some((version, resolved));
        }
    }
    best.ok_or_else(|| {
        found.sort_by(|one, other| other.cmp(one));
        let names: Vec<String> = found.iter().take(MAX_NAMED_VERSIONS).map(ToString::to_string).collect();
        let range = range.map(ToString::to_string).unwrap_or_default();
        Error::new(Code::NoMatchingVersion, format!("`{source}` has no version in `{range}`"))
            .hint(format!("the newest there: {}", names.join(", ")))
            .hint("change `version` in .ai/bundles.toml, or rye add with --version")
    })
}

/// A tag that is a version: `1.2.0` or `v1.2.0`.
fn parse_tag(tag: &str) -> Option<Version> {
    Version::parse(tag.strip_prefix('v').unwrap_or(tag)).ok()
}

fn registry_versions(engine: &Engine, reference: &Reference, fetch: &FetchContext<'_>) -> Result<Versions> {
    let tags = registry::list_tags(engine, reference, fetch.cancel)?;
    let versions = tags.iter().filter_map(|tag| {
        let locator = Locator::Registry(reference.with_tag(tag)?);
        Some((parse_tag(tag)?, ResolvedSource { locator, is_tag: true }))
    });
    Ok(versions.collect())
}

fn tag_versions(refs: &[GitRef]) -> Versions {
    let versions = refs.iter().filter_map(|found| {
        let version = parse_tag(found.name.strip_prefix("refs/tags/")?)?;
        let locator = Locator::Commit(found.commit.clone());
        Some((version, ResolvedSource { locator, is_tag: true }))
    });
    versions.collect()
}

pub(super) fn find_revision(git: &GitSource, rev: &str, refs: &[GitRef]) -> Result<ResolvedSource> {
    let find = |folder: &str| {
        let name = format!("{folder}{rev}");
        refs.iter().find(|found| found.name == name).map(|found| Locator::Commit(found.commit.clone()))
    };
    let tag = find("refs/tags/").map(|locator| ResolvedSource { locator, is_tag: true });
    let branch = || find("refs/heads/").map(|locator| ResolvedSource { locator, is_tag: false });
    tag.or_else(branch).ok_or_else(|| {
        let message = format!("the repository `{}` has no tag or branch `{rev}`", git.url);
        Error::new(Code::NoMatchingVersion, message)
            .hint("name a tag, a branch, or a whole commit of 40 characters with --rev")
    })
}

pub(super) fn find_head(git: &GitSource, refs: &[GitRef]) -> Result<ResolvedSource> {
    let head = refs.iter().find(|found| found.name == "HEAD");
    let head = head.ok_or_else(|| {
        Error::new(Code::NoMatchingVersion, format!("the repository `{}` is empty", git.url))
            .hint("name a tag, a branch or a commit with --rev")
    })?;
    Ok(ResolvedSource { locator: Locator::Commit(head.commit.clone()), is_tag: false })
}

/// A path in the project; a link that leads out of it is refused.
fn project_path(engine: &Engine, path: &str) -> Result<PathBuf> {
    let project = engine.workspace.roots.project.clone().unwrap_or_default();
    let full = project.join(path);
    let missing = |_| {
        Error::new(Code::PathNotFound, format!("`{path}` is not in the project"))
            .detail("path", path)
            .hint("a path in .ai/bundles.toml begins at the project's folder; is the file committed?")
    };
    let (real, root) = (fs_err::canonicalize(&full).map_err(missing)?, fs_err::canonicalize(&project)?);
    if !real.starts_with(&root) {
        return Err(Error::new(Code::LinkEscapes, format!("`{path}` leads out of the project"))
            .detail("path", path)
            .hint("put the bundle itself into the project, or use oci://, https:// or git+…"));
    }
    Ok(real)
}

/// Brings a bundle to a private folder, verifies it there, and works out what installing it would change.
///
/// # Errors
/// When it is not reached or not what its maker signed; otherwise as [`install::prepare`]. Nothing was changed then.
pub(super) fn prepare_located(
    engine: &Engine,
    source: &RequirementSource,
    locator: &Locator,
    options: InstallOptions,
    fetch: &mut FetchContext<'_>,
) -> Result<PreparedInstall> {
    let name = source.to_string();
    let prepare = |path: PathBuf, digest: Option<String>, on_files, _folder: Option<LockedTempDir>| {
        install::prepare(engine, InstallSource { path, name: name.clone(), digest }, options, on_files)
    };
    match (locator, source) {
        (Locator::Path(path), _) => prepare(path.clone(), None, fetch.on_files, None),
        (Locator::Stored { path, digest }, _) => prepare(path.clone(), digest.clone(), fetch.on_files, None),
        (Locator::Registry(reference), _) => {
            let mut transfer = TransferOptions {
                allows_plain_http: false,
                cancel: fetch.cancel,
                on_bytes: &mut *fetch.on_bytes,
            };
            registry::prepare(engine, reference, options, &mut transfer, fetch.on_files)
        }
        (Locator::Url, RequirementSource::Url { url, sha256 }) => {
            let archive = super::download::download(engine, url, sha256, fetch.cancel, &mut *fetch.on_bytes)?;
            let digest = Some(format!("sha256:{sha256}"));
            prepare(archive.path.clone(), digest, fetch.on_files, Some(archive.folder))
        }
        (Locator::Commit(commit), RequirementSource::Git(git)) => {
            let folder = git::fetch_bundle(engine, git, commit, fetch.cancel)?;
            let digest = Some(format!("commit:{commit}"));
            prepare(folder.path().join("bundle"), digest, fetch.on_files, Some(folder))
        }
        (Locator::Url | Locator::Commit(_), _) => {
            Err(Error::new(Code::InvalidArgument, format!("`{source}` cannot be fetched like that")))
        }
    }
}

/// What a prepared bundle is locked to.
pub(super) fn lock_prepared(
    requirement: BundleRequirement,
    prepared: &PreparedInstall,
    locator: &Locator,
) -> LockedBundle {
    let (version, manifest, digest) = prepared.identity();
    let is_registry = matches!(requirement.source, RequirementSource::Registry(_));
    let digest = digest.and_then(|text| text.strip_prefix("sha256:")?.parse().ok()).filter(|_| is_registry);
    let commit = match locator {
        Locator::Commit(commit) => Some(commit.clone()),
        Locator::Path(_) | Locator::Stored { .. } | Locator::Registry(_) | Locator::Url => None,
    };
    LockedBundle {
        version: version.clone(),
        manifest,
        digest,
        commit,
        key: prepared.preview.signer.key.clone(),
        requirement,
    }
}

/// Refuses a bundle that is not the one that was asked for.
///
/// # Errors
/// When it has another id, another signer, or a version outside the range.
pub(super) fn check_requirement(requirement: &BundleRequirement, prepared: &PreparedInstall) -> Result<()> {
    let (id, source) = (&requirement.id, &requirement.source);
    check_id(id, source, prepared)?;
    let signer = prepared.preview.signer.fingerprint;
    if signer != requirement.signer {
        let message =
            format!("`{id}` at `{source}` is signed by {signer}, the manifest names {}", requirement.signer);
        return Err(Error::new(Code::SourceMismatch, message)
            .detail("expected", requirement.signer.as_str())
            .detail("found", signer.as_str())
            .hint("ask its maker, by another channel than the bundle itself, whether the key is theirs")
            .hint(format!("if it is: rye add {} --signer {signer}", one_line(&source.to_string()))));
    }
    let (version, _, _) = prepared.identity();
    if !requirement.allows(version) {
        let range = requirement.range_text().unwrap_or_default();
        let message = format!("`{id}` at `{source}` is version {version}, which is not in `{range}`");
        return Err(Error::new(Code::NoMatchingVersion, message)
            .hint("change `version` in .ai/bundles.toml, or the source"));
    }
    Ok(())
}

fn check_id(id: &BundleId, source: &RequirementSource, prepared: &PreparedInstall) -> Result<()> {
    let found = prepared.bundle_id();
    if found == id {
        return Ok(());
    }
    Err(Error::new(Code::SourceMismatch, format!("`{source}` holds the bundle `{found}`, not `{id}`"))
        .detail("expected", id.as_str())
        .detail("found", found.as_str())
        .hint("correct the name or the source in .ai/bundles.toml"))
}

/// Refuses a bundle that is not the one in the lock, to the byte.
///
/// # Errors
/// When its manifest, which names each file by its hash, or its key is another one.
pub(super) fn check_locked(locked: &LockedBundle, prepared: &PreparedInstall) -> Result<()> {
    check_requirement(&locked.requirement, prepared)?;
    let (version, manifest, _) = prepared.identity();
    let (id, source) = (locked.id(), &locked.requirement.source);
    if manifest == locked.manifest && prepared.preview.signer.key == locked.key && *version == locked.version
    {
        return Ok(());
    }
    let message = format!("`{id}` at `{source}` is not what the lock names: its content is another");
    Err(Error::new(Code::SourceMismatch, message)
        .detail("expected", format!("{} sha256:{}", locked.version, locked.manifest))
        .detail("found", format!("{version} sha256:{manifest}"))
        .hint(format!("if its maker published a new one: rye bundle upgrade {id}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(tags: &[&str]) -> Versions {
        let refs: Vec<GitRef> = tags
            .iter()
            .map(|tag| GitRef { name: format!("refs/tags/{tag}"), commit: "a".repeat(40) })
            .collect();
        tag_versions(&refs)
    }

    fn choose(tags: &[&str], range: Option<&str>) -> Option<String> {
        let source = RequirementSource::Path("x".to_owned());
        let range = range.map(|range| VersionReq::parse(range).expect("a range"));
        choose_version(&source, versions(tags), range.as_ref()).ok().map(|(version, _)| version.to_string())
    }

    #[test]
    fn highest_version_in_range_is_chosen() {
        let tags = ["v1.0.0", "1.2.0", "v1.10.0", "2.0.0", "3.0.0-rc.1", "latest", "main"];
        for (range, expected) in [
            (Some("^1.0"), Some("1.10.0")),
            (Some("~1.2"), Some("1.2.0")),
            (Some("*"), Some("2.0.0")),
            (Some("^3.0.0-rc.1"), Some("3.0.0-rc.1")),
            (Some("^4"), None),
            (None, Some("2.0.0")),
        ] {
            assert_eq!(choose(&tags, range).as_deref(), expected, "{range:?}");
        }
        assert_eq!(choose(&["1.0.0-rc.1"], None).as_deref(), Some("1.0.0-rc.1"));
        assert!(versions(&["latest", "x1.0.0"]).is_empty());
    }

    #[test]
    fn tags_go_before_branches() {
        let git =
            GitSource { url: "https://example.org/a".to_owned(), rev: Some("x".to_owned()), path: None };
        let refs = [("refs/heads/x", "1"), ("refs/tags/x", "2"), ("HEAD", "3")]
            .map(|(name, digit)| GitRef { name: name.to_owned(), commit: digit.repeat(40) });
        let found = find_revision(&git, "x", &refs).expect("found");
        assert_eq!(found, ResolvedSource { locator: Locator::Commit("2".repeat(40)), is_tag: true });
        let found = find_revision(&git, "x", &refs[..1]).expect("found");
        assert_eq!(found, ResolvedSource { locator: Locator::Commit("1".repeat(40)), is_tag: false });
        assert!(find_revision(&git, "y", &refs).is_err());
        assert!(find_head(&git, &refs).is_ok() && find_head(&git, &refs[..2]).is_err());
    }
}
