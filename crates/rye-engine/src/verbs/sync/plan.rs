//! Working out what `sync` and `bundle upgrade` would change: everything is fetched, verified and compared before anything
//! is changed.

use std::collections::BTreeMap;

use rye_bundle::project::{BundleRequirement, LockedBundle, ProjectLock, ProjectManifest, RequirementSource};
use rye_item::BundleId;
use rye_item::text::shell_word;
use serde::Serialize;
use serde_json::json;

use super::apply::UnchangedBundle;
use super::resolve::{
    Locator, check_locked, check_requirement, lock_prepared, locked_locator, prepare_located, resolve,
};
use super::{FetchContext, ProjectBundles, check_locked_signer, install_options};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::install::{self, InstallPreview, PreparedInstall};
use crate::verbs::registry::{self, TransferOptions};

/// How bundles of a manifest are brought up to date.
#[derive(Clone, Copy, Debug, Default)]
pub struct SyncOptions {
    /// Whether the lock must be what the manifest asks for, and stays as it is.
    pub is_locked: bool,
    /// Whether locally changed files are replaced; a backup is kept.
    pub theirs: bool,
    /// Whether files that were not installed may be overwritten; a backup is kept.
    pub force: bool,
    /// Whether a version older than one seen before is welcome.
    pub allows_downgrade: bool,
}

/// A bundle that is about to be installed.
pub struct PreparedBundle {
    /// What would change.
    pub install: PreparedInstall,
    /// Whether the lock that was read names it exactly.
    pub is_locked: bool,
    pub(super) locked: LockedBundle,
}

impl PreparedBundle {
    /// The words of `rye add` that name its source.
    #[must_use]
    pub fn add_words(&self) -> String {
        let requirement = &self.locked.requirement;
        let mut words = shell_word(&requirement.source.to_string());
        for (flag, value) in [
            ("--version", &requirement.range_text()),
            ("--sha256", &requirement.fields.sha256),
            ("--rev", &requirement.fields.rev),
            ("--path", &requirement.fields.path),
        ] {
            if let Some(value) = value {
                words.push_str(&format!(" {flag} {}", shell_word(value)));
            }
        }
        words
    }
}

/// What would change, for showing.
#[derive(Debug, Serialize)]
pub struct SyncPreview<'a> {
    /// What each bundle that is installed, moved to another version or completed would change.
    pub plans: Vec<&'a InstallPreview>,
    /// Bundles that the manifest no longer asks for.
    pub removals: Vec<String>,
    /// Bundles that are as they should be.
    pub unchanged: &'a [UnchangedBundle],
}

/// Everything that is about to change.
pub struct PreparedSync {
    /// Bundles to install, move to another version, or complete.
    pub installs: Vec<PreparedBundle>,
    /// Bundles that the manifest no longer asks for.
    pub removals: Vec<BundleId>,
    /// Bundles that are as they should be.
    pub unchanged: Vec<UnchangedBundle>,
    /// The project as it was read.
    pub(super) before: ProjectBundles,
    /// The manifest as it will be.
    pub(super) manifest: ProjectManifest,
    /// The lock as it will be.
    pub(super) lock: ProjectLock,
    /// Whether locally changed files of removed bundles go too.
    pub(super) force_removal: bool,
}

impl PreparedSync {
    pub(super) fn new(before: ProjectBundles) -> Self {
        Self {
            installs: Vec::new(),
            removals: Vec::new(),
            unchanged: Vec::new(),
            manifest: before.manifest.clone(),
            lock: before.lock.clone(),
            before,
            force_removal: false,
        }
    }

    /// Whether nothing would change.
    #[must_use]
    pub fn is_noop(&self) -> bool {
        self.installs.is_empty()
            && self.removals.is_empty()
            && self.lock == self.before.lock
            && self.manifest == self.before.manifest
    }

    /// What would change, for showing.
    #[must_use]
    pub fn preview(&self) -> SyncPreview<'_> {
        SyncPreview {
            plans: self.installs.iter().map(|bundle| &bundle.install.preview).collect(),
            removals: self.removals.iter().map(ToString::to_string).collect(),
            unchanged: &self.unchanged,
        }
    }

    /// Adds a bundle that is to be installed.
    pub(super) fn install(&mut self, install: PreparedInstall, locked: LockedBundle, is_locked: bool) {
        self.lock.insert(locked.clone());
        self.installs.push(PreparedBundle { install, is_locked, locked });
    }

    /// Refuses two bundles that would bring the same file.
    pub(super) fn check_conflicts(&self) -> Result<()> {
        let mut owners: BTreeMap<String, &BundleId> = BTreeMap::new();
        for bundle in &self.installs {
            let id = bundle.install.bundle_id();
            for path in bundle.install.installed_paths() {
                if let Some(other) = owners.insert(path.case_folded(), id) {
                    let message = format!("`{other}` and `{id}` both bring `{path}`");
                    return Err(Error::new(Code::FileInTheWay, message)
                        .detail("path", path.as_str())
                        .hint("two bundles cannot have the same file: rye remove one of them"));
                }
            }
        }
        Ok(())
    }
}

/// Works out what makes the installed bundles equal to the lock. What of the manifest changed since it was locked is
/// resolved again, and nothing else.
///
/// # Errors
/// When the project is not approved, a file is not valid, a signer is not trusted, or a source gives something else than
/// the lock names; with `is_locked`, when the lock is not what the manifest asks for. Nothing was changed then.
pub fn prepare_sync(
    engine: &Engine,
    options: SyncOptions,
    fetch: &mut FetchContext<'_>,
) -> Result<PreparedSync> {
    let mut sync = PreparedSync::new(ProjectBundles::read_approved(engine)?);
    if options.is_locked {
        check_fresh(&sync.before)?;
    }
    let requirements = sync.manifest.bundles().to_vec();
    let stale: Vec<BundleId> = sync.lock.bundles().iter().map(|locked| locked.id().clone()).collect();
    for id in stale.iter().filter(|id| sync.manifest.find(id).is_none()) {
        sync.lock.remove(id);
    }
    sync.removals = install::managed_bundles(engine)?;
    sync.removals.retain(|id| sync.manifest.find(id).is_none());
    // Signers first: nothing is fetched as long as one of them is not trusted.
    for locked in requirements.iter().filter_map(|wanted| kept_lock(&sync.lock, wanted)) {
        check_locked_signer(engine, &locked)?;
    }
    for requirement in requirements {
        match kept_lock(&sync.lock, &requirement) {
            Some(locked) => sync_locked(engine, &mut sync, locked, &options, fetch)?,
            None => {
                let install = resolve_bundle(engine, &requirement, &options, fetch)?;
                sync.install(install.0, install.1, false);
            }
        }
    }
    sync.check_conflicts()?;
    Ok(sync)
}

/// What the lock names for a requirement, if that is still what it asks for.
fn kept_lock(lock: &ProjectLock, requirement: &BundleRequirement) -> Option<LockedBundle> {
    let locked = lock.find(&requirement.id).filter(|locked| locked.satisfies(requirement))?;
    Some(LockedBundle { requirement: requirement.clone(), ..locked.clone() })
}

fn sync_locked(
    engine: &Engine,
    sync: &mut PreparedSync,
    locked: LockedBundle,
    options: &SyncOptions,
    fetch: &mut FetchContext<'_>,
) -> Result<()> {
    let installed = install::project_installation(engine, locked.id())?;
    if let Some(installed) = installed
        && installed.lock.managed
        && installed.lock.manifest_hash == locked.manifest
        && installed.has_manifest
        && installed.missing.is_empty()
        && (installed.changed.is_empty() || !options.theirs)
    {
        sync.unchanged.push(UnchangedBundle::new(&locked, installed.changed));
        sync.lock.insert(locked);
        return Ok(());
    }
    let locator = locked_locator(engine, &locked)?;
    let install =
        prepare_located(engine, &locked.requirement.source, &locator, install_options(options, None), fetch)?;
    check_locked(&locked, &install)?;
    sync.install(install, locked, true);
    Ok(())
}

/// Resolves a requirement and fetches what it stands for now.
pub(super) fn resolve_bundle(
    engine: &Engine,
    requirement: &BundleRequirement,
    options: &SyncOptions,
    fetch: &mut FetchContext<'_>,
) -> Result<(PreparedInstall, LockedBundle)> {
    let resolved = resolve(engine, &requirement.source, requirement.range.as_ref(), fetch)?;
    let install = prepare_located(
        engine,
        &requirement.source,
        &resolved.locator,
        install_options(options, None),
        fetch,
    )?;
    check_requirement(requirement, &install)?;
    let locked = lock_prepared(requirement.clone(), &install, &resolved.locator);
    Ok((install, locked))
}

/// Refuses a lock that is not what the manifest asks for.
///
/// # Errors
/// Names each bundle that differs.
pub(super) fn check_fresh(project: &ProjectBundles) -> Result<()> {
    let problems = stale_bundles(project);
    if problems.is_empty() {
        return Ok(());
    }
    let list: Vec<_> = problems.iter().map(|problem| json!({ "message": problem })).collect();
    let message = format!("`bundles.lock` is not what `bundles.toml` asks for: {}", problems.join("; "));
    Err(Error::new(Code::ProjectLockStale, message)
        .detail("problems", list)
        .hint("update the lock, look at what changed, and commit it: rye sync"))
}

/// What differs between the manifest and its lock.
pub(super) fn stale_bundles(project: &ProjectBundles) -> Vec<String> {
    let mut problems = Vec::new();
    for wanted in project.manifest.bundles() {
        let id = &wanted.id;
        match project.lock.find(id) {
            None => problems.push(format!("`{id}` is not locked")),
            Some(locked) if locked.requirement == *wanted => {}
            Some(locked) if !locked.has_same_source(wanted) => {
                problems.push(format!("the source of `{id}` changed"));
            }
            Some(locked) if locked.requirement.signer != wanted.signer => {
                problems.push(format!("the signer of `{id}` changed"));
            }
            Some(_) => problems.push(format!("the range of `{id}` changed")),
        }
    }
    let extra = project.lock.bundles().iter().filter(|locked| project.manifest.find(locked.id()).is_none());
    problems.extend(extra.map(|locked| format!("`{}` is locked, but not asked for", locked.id())));
    problems
}

/// Works out what moves the bundles of the manifest, or one of them, to the newest version in range.
///
/// # Errors
/// As [`prepare_sync`]; when `id` is not in the manifest; when a tag means something else than it did.
pub fn prepare_upgrade(
    engine: &Engine,
    id: Option<&BundleId>,
    options: SyncOptions,
    fetch: &mut FetchContext<'_>,
) -> Result<PreparedSync> {
    let mut sync = PreparedSync::new(ProjectBundles::read_approved(engine)?);
    let requirements = match id {
        Some(id) => vec![sync.before.find(id)?.clone()],
        None => sync.manifest.bundles().to_vec(),
    };
    for requirement in requirements {
        let locked = sync.lock.find(&requirement.id).cloned();
        let resolved = resolve(engine, &requirement.source, requirement.range.as_ref(), fetch)?;
        let same = locked.as_ref().filter(|locked| locked.requirement == requirement);
        if let Some(locked) = same
            && is_same_place(engine, locked, &resolved.locator, fetch)?
        {
            sync.unchanged.push(UnchangedBundle::new(locked, Vec::new()));
            continue;
        }
        let install = prepare_located(
            engine,
            &requirement.source,
            &resolved.locator,
            install_options(&options, None),
            fetch,
        )?;
        check_requirement(&requirement, &install)?;
        let next = lock_prepared(requirement, &install, &resolved.locator);
        if let Some(locked) = &locked {
            if next == *locked {
                sync.unchanged.push(UnchangedBundle::new(locked, Vec::new()));
                continue;
            }
            check_not_moved(locked, &next, resolved.is_tag)?;
        }
        sync.install(install, next, false);
    }
    sync.check_conflicts()?;
    Ok(sync)
}

/// Whether a locator is where the lock has the bundle from, as far as that can be told without fetching it.
fn is_same_place(
    engine: &Engine,
    locked: &LockedBundle,
    locator: &Locator,
    fetch: &mut FetchContext<'_>,
) -> Result<bool> {
    match locator {
        Locator::Commit(commit) => Ok(locked.commit.as_ref() == Some(commit)),
        Locator::Url => Ok(matches!(locked.requirement.source, RequirementSource::Url { .. })),
        Locator::Registry(reference) => {
            let mut transfer =
                TransferOptions { allows_plain_http: false, cancel: fetch.cancel, on_bytes: &mut |_, _| {} };
            let found = registry::inspect_remote(engine, reference, &mut transfer)?;
            Ok(locked.digest.is_some_and(|digest| found.digest == format!("sha256:{digest}")))
        }
        Locator::Path(_) | Locator::Stored { .. } => Ok(false),
    }
}

/// Refuses a version that was published again with other content.
fn check_not_moved(locked: &LockedBundle, next: &LockedBundle, is_tag: bool) -> Result<()> {
    let is_moved = is_tag
        && locked.has_same_source(&next.requirement)
        && locked.version == next.version
        && locked.manifest != next.manifest;
    if !is_moved {
        return Ok(());
    }
    let (id, version) = (locked.id(), &locked.version);
    let message = format!(
        "version {version} of `{id}` at `{}` has other content than the lock names",
        locked.requirement.source
    );
    Err(Error::new(Code::SourceMismatch, message)
        .detail("expected", format!("sha256:{}", locked.manifest))
        .detail("found", format!("sha256:{}", next.manifest))
        .hint("its tag was moved: ask its maker why, by another channel than the bundle itself")
        .hint(format!("if it is intended: rye remove {id}, then rye add it again")))
}
