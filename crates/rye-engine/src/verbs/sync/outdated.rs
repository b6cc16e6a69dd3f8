//! `outdated`: which bundles of the manifest have newer versions, in their range and beyond it.

use rye_bundle::project::{BundleRequirement, LockedBundle, RequirementSource};
use rye_item::BundleId;
use semver::Version;
use serde::Serialize;

use super::resolve::{Locator, choose_version, list_versions, resolve};
use super::{FetchContext, ProjectBundles, git};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::registry::{self, TransferOptions};
use crate::verbs::{bundles, install};

/// A bundle of the manifest and its versions.
#[derive(Clone, Debug, Serialize)]
pub struct OutdatedBundle {
    /// The bundle.
    pub bundle_id: String,
    /// The version that is installed in the project.
    pub installed: Option<String>,
    /// The version in the lock.
    pub locked: Option<String>,
    /// The newest version in the range.
    pub wanted: Option<String>,
    /// The newest version of the source.
    pub latest: Option<String>,
    /// The range.
    pub range: Option<String>,
    /// Where it comes from.
    pub source: String,
    /// Why its versions are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

impl OutdatedBundle {
    /// Whether a newer version than the installed one is known.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        let newest = self.latest.as_ref().or(self.wanted.as_ref());
        newest.is_some_and(|newest| Some(newest) != self.installed.as_ref()) || self.wanted != self.installed
    }
}

/// The bundles of a manifest and their versions.
#[derive(Debug, Serialize)]
pub struct OutdatedReport {
    /// In the order of the manifest.
    pub bundles: Vec<OutdatedBundle>,
    #[serde(skip)]
    failure: Option<Error>,
}

impl OutdatedReport {
    /// The first reason that versions of a bundle are not known.
    #[must_use]
    pub fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }
}

/// Asks each source for its versions. Nothing is changed.
///
/// # Errors
/// When the project is not approved, a file is not valid, or `id` is not in the manifest. A source that is not reached is
/// in the answer.
pub fn outdated(
    engine: &Engine,
    id: Option<&BundleId>,
    fetch: &mut FetchContext<'_>,
) -> Result<OutdatedReport> {
    let project = ProjectBundles::read_approved(engine)?;
    let requirements = match id {
        Some(id) => vec![project.find(id)?.clone()],
        None => project.manifest.bundles().to_vec(),
    };
    let mut report = OutdatedReport { bundles: Vec::new(), failure: None };
    for requirement in requirements {
        let locked = project.lock.find(&requirement.id);
        let installed = install::project_installation(engine, &requirement.id)?;
        let mut row = OutdatedBundle {
            bundle_id: requirement.id.to_string(),
            installed: installed.map(|installed| installed.lock.version.to_string()),
            locked: locked.map(|locked| locked.version.to_string()),
            wanted: None,
            latest: None,
            range: requirement.range_text(),
            source: requirement.source.to_string(),
            problem: None,
        };
        match newest_versions(engine, &requirement, locked, fetch) {
            Ok((wanted, latest)) => {
                row.wanted = wanted.map(|version| version.to_string());
                row.latest = Some(latest.to_string());
            }
            Err(error) if error.code == Code::ToolCancelled => return Err(error),
            Err(error) => {
                row.problem = Some(error.message.clone());
                report.failure.get_or_insert(error);
            }
        }
        report.bundles.push(row);
    }
    Ok(report)
}

/// The newest version in the range, if there is one, and the newest of all.
fn newest_versions(
    engine: &Engine,
    requirement: &BundleRequirement,
    locked: Option<&LockedBundle>,
    fetch: &mut FetchContext<'_>,
) -> Result<(Option<Version>, Version)> {
    let source = &requirement.source;
    if let Some(versions) = list_versions(engine, source, fetch)? {
        let (latest, _) = choose_version(source, versions.clone(), None)?;
        let wanted = match choose_version(source, versions, requirement.range.as_ref()) {
            Ok((version, _)) => Some(version),
            Err(error) if error.code == Code::NoMatchingVersion => None,
            Err(error) => return Err(error),
        };
        return Ok((wanted, latest));
    }
    let resolved = resolve(engine, source, None, fetch)?;
    let version = located_version(engine, requirement, locked, &resolved.locator, fetch)?;
    Ok((Some(version.clone()).filter(|version| requirement.allows(version)), version))
}

/// The version of the bundle that a source names.
fn located_version(
    engine: &Engine,
    requirement: &BundleRequirement,
    locked: Option<&LockedBundle>,
    locator: &Locator,
    fetch: &mut FetchContext<'_>,
) -> Result<Version> {
    let locked = locked.filter(|locked| locked.has_same_source(requirement));
    match (locator, &requirement.source) {
        (Locator::Commit(commit), RequirementSource::Git(source)) => {
            if let Some(locked) = locked.filter(|locked| locked.commit.as_ref() == Some(commit)) {
                return Ok(locked.version.clone());
            }
            let folder = git::fetch_bundle(engine, source, commit, fetch.cancel)?;
            folder_version(engine, &folder.path().join("bundle"))
        }
        (Locator::Registry(reference), _) => {
            let mut transfer =
                TransferOptions { allows_plain_http: false, cancel: fetch.cancel, on_bytes: &mut |_, _| {} };
            let found = registry::inspect_remote(engine, reference, &mut transfer)?;
            Version::parse(&found.version).map_err(|_| unknown_version(requirement))
        }
        (Locator::Path(path), _) => folder_version(engine, path),
        (_, _) => locked.map(|locked| locked.version.clone()).ok_or_else(|| unknown_version(requirement)),
    }
}

fn unknown_version(requirement: &BundleRequirement) -> Error {
    Error::new(Code::ProjectLockStale, format!("the version of `{}` is not known yet", requirement.id))
        .hint("rye sync resolves and locks it")
}

/// The version of the bundle in a folder or an archive.
fn folder_version(engine: &Engine, path: &std::path::Path) -> Result<Version> {
    let found = bundles::find(engine, &path.to_string_lossy(), path)?;
    let manifest = found.manifest.manifest().map_err(|_| {
        Error::new(Code::Invalid, format!("the manifest of `{}` cannot be read", found.manifest.id()))
            .hint("ask its maker to create it again: rye bundle create")
    })?;
    Ok(manifest.version.clone())
}
