//! Lockfiles: whether what would run is what was pinned, and pinning it after the first success.
//!
//! Reading looks at project, user and system tier, always, and every lockfile found must hold. Writing goes where
//! `lockfiles.scope` says. `lillux` reads and writes single files; `rye_exec::lock` compares.

pub(crate) mod file_name;
mod frozen;
pub(crate) mod installed_pins;
pub(crate) mod locations;
pub(crate) mod resigned;
mod system;

use std::path::PathBuf;

use rye_exec::lock::Lockfile;
pub use rye_exec::lock::{
    BundleProvider, DifferenceKind, LockComparison, LockDifference, LockedElement, LockedFile, LockedPackage,
    LockedTool, LockfilePart, ResolvedTool,
};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::bundle::BundleTrust;
use serde::Serialize;

pub use frozen::{FrozenLockfile, enforce_frozen, freeze_project};
pub use system::generate as generate_system;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::verbs::sign::consent;
use locations::{EffectiveLockfile, LockfileSlot};
use resigned::compare_resigned;

/// How a tool is resolved to its chain.
pub type ResolveTool<'a> = &'a dyn Fn(&ItemRef) -> Result<ResolvedTool>;

/// What a caller demands of lockfiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LockMode {
    /// A lockfile that is there must hold; without one, the first success makes one.
    #[default]
    Enforce,
    /// `--locked`: there must be one, and it must hold.
    Locked,
    /// `--frozen`: none is ever written.
    Frozen,
}

/// How the lockfiles of a tool stand to what would run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// There is none.
    None,
    /// All of them hold.
    Matched {
        /// The lockfiles, project first.
        lockfiles: Vec<PathBuf>,
    },
    /// A bundle was upgraded since; nothing else differs.
    Stale {
        /// The lockfile.
        path: PathBuf,
        /// What was upgraded.
        why: String,
    },
    /// Something else than what was pinned would run.
    Mismatch(Box<LockMismatch>),
}

/// A lockfile that the tool doesn't match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LockMismatch {
    /// The tool.
    pub tool_id: String,
    /// The lockfile.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Its tier: a project's lockfile is the team's.
    pub scope: SpaceTier,
    /// Everything that differs; the first is the one to tell.
    pub differences: Vec<LockDifference>,
    /// The command that accepts the change.
    pub accept: String,
    /// Whether it is the tool alone that differs, and the user signed it as it is now.
    #[serde(skip)]
    pub is_own_change: bool,
}

impl From<&LockMismatch> for Error {
    fn from(mismatch: &LockMismatch) -> Self {
        let id = &mismatch.tool_id;
        let first = mismatch.differences.first();
        let what = first.map(ToString::to_string).unwrap_or_default();
        let whose = match mismatch.scope {
            SpaceTier::Project => "the team's lockfile",
            SpaceTier::User => "its lockfile",
            SpaceTier::System => "the bundle's lockfile",
        };
        let mut error = Self::new(Code::LockMismatch, format!("tool:{id} doesn't match {whose}: {what}"))
            .detail("path", mismatch.path.display().to_string())
            .detail("scope", mismatch.scope.as_str())
            .detail("differences", serde_json::to_value(&mismatch.differences).unwrap_or_default());
        error.item = Some(id.clone());
        if let Some(first) = first {
            error = error.detail("element", first.element.as_str());
            error = match &first.kind {
                DifferenceKind::Hash { pinned, found }
                | DifferenceKind::Space { pinned, found }
                | DifferenceKind::Version { pinned, found }
                | DifferenceKind::Downgraded { pinned, found }
                | DifferenceKind::Shadowed { pinned, by: found } => {
                    error.detail("expected", pinned.as_str()).detail("found", found.as_str())
                }
                DifferenceKind::Missing | DifferenceKind::Added => error,
            };
        }
        match mismatch.scope {
            SpaceTier::Project if mismatch.is_own_change => error
                .hint(format!("you signed this version; if the change is intended: {}", mismatch.accept))
                .hint("then commit lockfiles/; if you did not mean it, restore the pinned version"),
            SpaceTier::Project => error
                .hint(
                    "it is committed with the project: ask who changed the tool, or restore the pinned version",
                )
                .hint(format!("if the change is intended: {}", mismatch.accept)),
            SpaceTier::User => {
                error.hint(format!("review what changed; if it is intended: {}", mismatch.accept))
            }
            SpaceTier::System => error.hint("install the bundle again, or remove what hides its parts"),
        }
    }
}

/// The bundles as they are now, for telling an upgrade from a change.
fn bundle_providers(engine: &Engine) -> Vec<BundleProvider> {
    let bundles = engine.workspace.spaces.bundles().iter();
    bundles
        .filter(|bundle| bundle.trust != BundleTrust::NotApproved)
        .map(|bundle| BundleProvider {
            space: format!("system:{}", bundle.id),
            version: bundle.version.clone(),
            is_embedded: bundle.trust == BundleTrust::Embedded,
        })
        .collect()
}

/// Now, as lockfiles say it.
pub(crate) fn lockfile_timestamp(engine: &Engine) -> Result<String> {
    let now = engine.now()?;
    Ok(format!("{}.000000+00:00", now.as_str().trim_end_matches('Z')))
}

/// Compares one lockfile with what its tool resolves to.
pub(crate) fn compare_lockfile(
    engine: &Engine,
    lockfile: &Lockfile,
    resolved: &ResolvedTool,
) -> LockComparison {
    compare_resigned(engine, lockfile, resolved, &bundle_providers(engine))
}

/// Compares every lockfile found for the tool with what it resolves to. Changes none.
///
/// # Errors
/// When a lockfile is damaged, or the tool's version cannot name one.
pub fn check(engine: &Engine, resolved: &ResolvedTool) -> Result<LockState> {
    check_in(engine, resolved, None)
}

/// As [`check`]; with a tier, only its lockfiles are compared.
pub(crate) fn check_in(
    engine: &Engine,
    resolved: &ResolvedTool,
    tier: Option<SpaceTier>,
) -> Result<LockState> {
    let providers = bundle_providers(engine);
    let is_compared = |found: SpaceTier| tier.is_none_or(|tier| tier == found);
    let (mut lockfiles, mut stale) = (Vec::new(), None);
    let all = locations::effective_lockfiles(engine, resolved)?;
    for found in all.iter().filter(|found| is_compared(found.tier)) {
        match (compare_resigned(engine, &found.lockfile, resolved, &providers), found.tier) {
            (LockComparison::Matches, _) => lockfiles.push(found.path.clone()),
            // A bundle's lockfile pins other bundles of its time, and cannot be replaced here.
            (LockComparison::Stale { .. }, SpaceTier::System) => {}
            (LockComparison::Stale { why }, SpaceTier::Project | SpaceTier::User) => {
                stale.get_or_insert(LockState::Stale { path: found.path.clone(), why });
            }
            (LockComparison::Differs(differences), _) => {
                return Ok(LockState::Mismatch(Box::new(build_mismatch(
                    engine,
                    found.path.clone(),
                    found.tier,
                    resolved,
                    differences,
                ))));
            }
        }
    }
    // However well an older version is signed, and even if it was pinned once: it is not the one that was agreed to last.
    if let Some(other) = all.other_versions.iter().find(|other| is_compared(other.tier)) {
        let pinned = other.lockfile.as_ref().map_err(Clone::clone)?;
        let differences = vec![locations::other_versions::difference(pinned, resolved)];
        return Ok(LockState::Mismatch(Box::new(build_mismatch(
            engine,
            other.path.clone(),
            other.tier,
            resolved,
            differences,
        ))));
    }
    Ok(match stale {
        Some(stale) => stale,
        None if lockfiles.is_empty() => LockState::None,
        None => LockState::Matched { lockfiles },
    })
}

fn build_mismatch(
    engine: &Engine,
    path: PathBuf,
    scope: SpaceTier,
    resolved: &ResolvedTool,
    differences: Vec<LockDifference>,
) -> LockMismatch {
    let tool_id = resolved.root.tool_id.clone();
    let accept = format!("rye lock update {tool_id}");
    let is_tool = |difference: &LockDifference| difference.element == tool_id;
    let is_own_change = differences.iter().all(is_tool) && is_signed_by_user(engine, &tool_id);
    LockMismatch { tool_id, path, scope, differences, accept, is_own_change }
}

/// Whether the user's own key signed the tool as it lies there.
fn is_signed_by_user(engine: &Engine, tool_id: &str) -> bool {
    let item = ItemId::new(tool_id).ok().map(|id| ItemRef::new(ItemType::Tool, id));
    let located = item.and_then(|item| engine.locate(&item, None).ok());
    located.is_some_and(|located| consent::is_signed_by_user(engine, &located))
}

/// The team's lockfile, if it still pins another version of a tool that was just signed.
pub(crate) fn outdated_team_lockfile(
    engine: &Engine,
    item: &ItemRef,
    resolve: ResolveTool<'_>,
) -> Option<PathBuf> {
    let is_pinned = item.item_type == ItemType::Tool
        && locations::project_dir(engine).is_some_and(|dir| dir.has_lockfile_of(&item.id));
    // Resolving looks at every file beside the tool: not for a tool that is not pinned.
    if !is_pinned {
        return None;
    }
    let resolved = resolve(item).ok()?;
    match check_in(engine, &resolved, Some(SpaceTier::Project)).ok()? {
        LockState::Mismatch(mismatch) => Some(mismatch.path),
        LockState::None | LockState::Matched { .. } | LockState::Stale { .. } => None,
    }
}

/// As [`check`], and refuses what may not run.
///
/// # Errors
/// As [`check`]; when the tool doesn't match a lockfile; under `--locked` also when there is none, or only a stale one.
pub fn enforce(engine: &Engine, resolved: &ResolvedTool, mode: LockMode) -> Result<LockState> {
    let state = check(engine, resolved)?;
    let id = &resolved.root.tool_id;
    let missing = |message: String| {
        let mut error = Error::new(Code::LockMissing, message);
        error.item = Some(id.clone());
        let error = error
            .hint(format!("look at it (rye why tool {id}), then pin it as it is now: rye lock update {id}"));
        match moved_project_hint(engine, resolved) {
            Some(moved) => error.hint(moved),
            None => error,
        }
    };
    match (&state, mode) {
        (LockState::Mismatch(mismatch), LockMode::Enforce | LockMode::Frozen)
            if is_own_edit(resolved, mismatch) =>
        {
            Ok(state)
        }
        (LockState::Mismatch(mismatch), _) => Err(Error::from(mismatch.as_ref())),
        (LockState::None, LockMode::Locked) => {
            Err(missing(format!("tool:{id} has no lockfile, and --locked asks for one")))
        }
        (LockState::Stale { path, why }, LockMode::Locked) => {
            let message =
                format!("the lockfile of tool:{id} is stale, and --locked asks for one that matches");
            Err(missing(format!("{message}: {why}")).detail("path", path.display().to_string()))
        }
        (LockState::None | LockState::Stale { .. }, LockMode::Enforce | LockMode::Frozen)
        | (LockState::Matched { .. }, _) => Ok(state),
    }
}

/// Whether nothing but the tool itself and files beside it differ from their pins, and development mode accepts
/// the edit. A bundle's pin, and pins of what the tool runs on, are enforced all the same.
fn is_own_edit(resolved: &ResolvedTool, mismatch: &LockMismatch) -> bool {
    let is_own = |difference: &LockDifference| {
        let is_hash = matches!(difference.kind, DifferenceKind::Hash { .. });
        let is_version =
            matches!(difference.kind, DifferenceKind::Version { .. } | DifferenceKind::Downgraded { .. });
        match difference.part {
            LockfilePart::Root | LockfilePart::Chain => {
                (is_hash || is_version) && difference.element == resolved.root.tool_id
            }
            // A file beside the tool, which is admitted like the tool itself.
            LockfilePart::File => is_hash,
            LockfilePart::Dependency => false,
        }
    };
    resolved.uses_dev_mode && mismatch.scope != SpaceTier::System && mismatch.differences.iter().all(is_own)
}

/// A lockfile that was written after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenLockfile {
    /// The file.
    pub path: PathBuf,
    /// Why it replaced an older one, if it did.
    pub replaced: Option<String>,
}

/// Pins what ran, after it ran well: makes the lockfile where there is none, replaces a stale one, completes one that
/// was made before packages were installed. Gives the file that was written.
///
/// # Errors
/// When it cannot be written, or another run was first and pinned something else.
pub fn record(engine: &Engine, resolved: &ResolvedTool, mode: LockMode) -> Result<Option<WrittenLockfile>> {
    if mode == LockMode::Frozen || resolved.uses_dev_mode {
        return Ok(None);
    }
    let state = check(engine, resolved)?;
    if matches!(state, LockState::Matched { .. }) && resolved.dependencies.is_none() {
        return Ok(None);
    }
    let slot = locations::slot(engine, resolved, locations::write_scope(engine))?;
    let current = slot.current.clone()?;
    let created = |path: PathBuf| Some(WrittenLockfile { path, replaced: None });
    match (state, current) {
        (LockState::Mismatch(mismatch), _) => Err(Error::from(mismatch.as_ref())),
        (LockState::Matched { .. }, Some(mut lockfile)) => {
            let is_complete = lockfile.dependencies.is_some() || resolved.dependencies.is_none();
            if is_complete || compare_lockfile(engine, &lockfile, resolved) != LockComparison::Matches {
                return Ok(None);
            }
            lockfile.dependencies.clone_from(&resolved.dependencies);
            slot.dir.write(&slot.name, &lockfile).map(created)
        }
        (LockState::Matched { .. }, None) => Ok(None),
        (LockState::Stale { .. }, Some(lockfile)) => match compare_lockfile(engine, &lockfile, resolved) {
            LockComparison::Matches => Ok(None),
            LockComparison::Stale { why } => {
                let path = write_lockfile(engine, &slot, resolved, Some(&lockfile))?;
                Ok(Some(WrittenLockfile { path, replaced: Some(why) }))
            }
            LockComparison::Differs(_) => recheck_after_race(engine, resolved, &slot),
        },
        (LockState::Stale { .. } | LockState::None, None) => {
            let lockfile =
                resolved.to_lockfile(lockfile_timestamp(engine)?, owner_project(engine, &slot, resolved));
            match slot.dir.write_new(&slot.name, &lockfile)? {
                Some(path) => Ok(created(path)),
                None => recheck_after_race(engine, resolved, &slot),
            }
        }
        (LockState::None, Some(_)) => recheck_after_race(engine, resolved, &slot),
    }
}

/// What is worth saying of a project's tool that has no lockfile here: a pin of the same tool was made for a project
/// whose folder is gone, perhaps because it is this one and was moved. Pins do not follow it.
#[must_use]
pub(crate) fn moved_project_hint(engine: &Engine, resolved: &ResolvedTool) -> Option<String> {
    if resolved.space() != "project" {
        return None;
    }
    let orphaned = locations::orphaned_lockfiles(engine, resolved);
    // If one of them pins what is here, that is the one.
    let comparisons =
        orphaned.iter().map(|found| (found, compare_lockfile(engine, &found.lockfile, resolved)));
    let (found, comparison) = comparisons.min_by_key(|(_, comparison)| match comparison {
        LockComparison::Matches => 0,
        LockComparison::Stale { .. } => 1,
        LockComparison::Differs(_) => 2,
    })?;
    let project = rye_item::text::one_line(found.lockfile.project.as_deref().unwrap_or_default());
    let difference = match comparison {
        LockComparison::Matches => "nothing changed since".to_owned(),
        LockComparison::Stale { why } => why,
        LockComparison::Differs(all) => all.first().map(ToString::to_string).unwrap_or_default(),
    };
    let id = &resolved.root.tool_id;
    Some(format!(
        "`{id}` is pinned for `{project}`, which is gone: pins do not follow a moved project ({difference})"
    ))
}

/// Another process pinned the tool meanwhile: its pin must match what ran here.
fn recheck_after_race(
    engine: &Engine,
    resolved: &ResolvedTool,
    slot: &LockfileSlot,
) -> Result<Option<WrittenLockfile>> {
    match check(engine, resolved)? {
        LockState::Matched { .. } | LockState::Stale { .. } => Ok(None),
        LockState::Mismatch(mismatch) => Err(Error::from(mismatch.as_ref())),
        LockState::None => {
            let path = slot.path();
            let message = format!("`{}` is the lockfile of another tool or project", path.display());
            Err(Error::new(Code::LockCorrupt, message)
                .detail("path", path.display().to_string())
                .hint("remove it if it is no longer needed: rye lock list"))
        }
    }
}

fn owner_project(engine: &Engine, slot: &LockfileSlot, resolved: &ResolvedTool) -> Option<String> {
    match slot.dir.tier {
        SpaceTier::User => locations::owner_project(engine, resolved),
        SpaceTier::Project | SpaceTier::System => None,
    }
}

/// Makes or replaces a lockfile by what the tool resolves to now. Packages that were not looked at stay pinned as long as
/// no element changed: one that did may ask for others.
pub(crate) fn write_lockfile(
    engine: &Engine,
    slot: &LockfileSlot,
    resolved: &ResolvedTool,
    old: Option<&Lockfile>,
) -> Result<PathBuf> {
    let mut lockfile =
        resolved.to_lockfile(lockfile_timestamp(engine)?, owner_project(engine, slot, resolved));
    let hashes = |lockfile: &Lockfile| -> Vec<String> {
        lockfile.resolved_chain.iter().map(|entry| entry.integrity.clone()).collect()
    };
    if let Some(old) = old.filter(|old| hashes(old) == hashes(&lockfile))
        && lockfile.dependencies.is_none()
    {
        lockfile.dependencies.clone_from(&old.dependencies);
    }
    slot.dir.write(&slot.name, &lockfile)
}

/// The packages that lockfiles pin for a tool, if one does: the project's before the user's before the bundle's. They
/// are used only as long as the elements that request packages (`requested_by`) are the pinned ones. Pinned packages
/// decide which code runs, so lockfiles of a project that is not approved are not used.
///
/// # Errors
/// When a lockfile is damaged.
pub(crate) fn pinned_packages(
    engine: &Engine,
    resolved: &ResolvedTool,
    requested_by: &[String],
) -> Result<Option<Vec<LockedPackage>>> {
    let integrity = |chain: &[LockedElement], id: &String| {
        chain.iter().find(|entry| entry.item_id == *id).map(|entry| entry.integrity.clone())
    };
    let is_effective = |found: &EffectiveLockfile| match found.tier {
        SpaceTier::Project => engine.workspace.is_project_approved,
        SpaceTier::User | SpaceTier::System => true,
    };
    let same = |lockfile: &Lockfile| {
        requested_by
            .iter()
            .all(|id| integrity(&lockfile.resolved_chain, id) == integrity(&resolved.chain, id))
    };
    let found = locations::effective_lockfiles(engine, resolved)?;
    let mut pins = found.iter().filter(|found| is_effective(found) && same(&found.lockfile));
    Ok(pins.find_map(|found| found.lockfile.dependencies.clone()))
}

/// Brings the user's lockfile of a tool up to date after its author signed it at the command line, and gives its path.
/// Signing consents to the tool and to what its text names; a runtime or an imported file that changed as well stays a
/// mismatch.
///
/// # Errors
/// When the lockfile is damaged or cannot be written; the tool stays signed.
pub fn refresh_after_sign(
    engine: &Engine,
    item: &ItemRef,
    resolve: ResolveTool<'_>,
) -> Result<Option<PathBuf>> {
    if item.item_type != ItemType::Tool {
        return Ok(None);
    }
    // Resolving looks at every file beside the tool: not for a tool that is not pinned.
    if !locations::user_dir(engine).has_lockfile_of(&item.id) {
        return Ok(None);
    }
    // A tool whose chain is not complete cannot run: there is nothing to pin, and running it says why.
    let Ok(resolved) = resolve(item) else { return Ok(None) };
    if resolved.uses_dev_mode {
        return Ok(None);
    }
    let slot = locations::slot(engine, &resolved, SpaceTier::User)?;
    let Some(pinned) = slot.current.clone()? else { return Ok(None) };
    if !installed_pins::is_same_tool(engine, &pinned, &resolved)
        || compare_lockfile(engine, &pinned, &resolved) == LockComparison::Matches
    {
        return Ok(None);
    }
    let mut signed = pinned.clone();
    signed.root.clone_from(&resolved.root);
    let changes_executor = match (signed.resolved_chain.first_mut(), resolved.chain.first()) {
        (Some(old), Some(new)) => {
            let changes_executor = old.executor_id != new.executor_id;
            old.clone_from(new);
            changes_executor
        }
        (_, _) => true,
    };
    match compare_lockfile(engine, &signed, &resolved) {
        LockComparison::Differs(_) if !changes_executor => Ok(None),
        LockComparison::Matches | LockComparison::Stale { .. } | LockComparison::Differs(_) => {
            write_lockfile(engine, &slot, &resolved, Some(&pinned)).map(Some)
        }
    }
}
