//! `lock update`, `remove` and `prune`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rye_exec::lock::{LockComparison, LockDifference, LockedElement, ResolvedTool, compare};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use serde::Serialize;

use super::{LockfileRow, LockfileStatus, check, lockfile_row};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::locations::{self, LockfileSlot};
use crate::lockfiles::{self, LockState, ResolveTool};

/// What became of one lockfile in an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LockfileChange {
    /// There was none.
    #[serde(rename = "made")]
    Created,
    /// It pins something else now.
    Replaced,
    /// It matched already.
    Unchanged,
    /// It pinned another tool in this one's place, or was damaged: it is gone.
    Removed,
}

/// One lockfile of an update.
#[derive(Clone, Debug, Serialize)]
pub struct UpdatedLockfile {
    /// The file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// Its tier.
    pub scope: SpaceTier,
    /// What became of it.
    pub change: LockfileChange,
    /// What is pinned otherwise than before.
    pub changes: Vec<LockDifference>,
    /// Why it was replaced, if nothing can be compared.
    pub why: Option<String>,
}

/// The answer of an update.
#[derive(Clone, Debug, Serialize)]
pub struct LockUpdate {
    /// The tool.
    pub tool_id: String,
    /// Its version.
    pub version: String,
    /// The lockfiles, project first.
    pub lockfiles: Vec<UpdatedLockfile>,
    /// What is pinned now.
    pub chain: Vec<LockedElement>,
    /// Why the tool would be refused all the same, if it would.
    pub remaining: Option<String>,
}

/// A tool that could not be pinned.
#[derive(Clone, Debug, Serialize)]
pub struct FailedLockUpdate {
    /// The tool.
    pub tool_id: String,
    /// The error's code.
    pub code: &'static str,
    /// What went wrong.
    pub error: String,
    /// What to do about it.
    pub hints: Vec<String>,
    #[serde(skip)]
    pub(crate) kind: Code,
}

/// The answer of an update of everything.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LockUpdateReport {
    /// The tools that are pinned as they are now.
    pub tools: Vec<LockUpdate>,
    /// Those that could not be pinned.
    pub failed: Vec<FailedLockUpdate>,
}

impl LockUpdateReport {
    /// The failure, if a tool could not be pinned.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let first = self.failed.first()?;
        let (count, all) = (self.failed.len(), self.failed.len() + self.tools.len());
        let message = format!("{count} of {} cannot be pinned", rye_item::text::counted(all, "tool"));
        let hint = "correct each of them, then: rye lock update --all";
        Some(Error::new(first.kind, message).hint(hint))
    }
}

/// The answer of a removal.
#[derive(Clone, Debug, Serialize)]
pub struct RemovedLockfiles {
    /// The lockfiles that were removed.
    pub removed: Vec<LockfileRow>,
    /// Those that stay: they pin another project's tool, or one that is hidden here.
    pub kept: Vec<LockfileRow>,
}

/// Pins a tool as it is now. Without a scope, every lockfile it has in project and user scope is brought up to date;
/// if it has none, one is made where the settings say. Afterwards the tool runs, or the error says why it does not.
///
/// # Errors
/// When the tool does not resolve, an element is only forgiven, nothing can be written, or a lockfile that is not the
/// user's to change still refuses the tool. With a scope, what the other scopes refuse is in the answer.
pub fn update(
    engine: &Engine,
    item: &ItemRef,
    scope: Option<SpaceTier>,
    resolve: ResolveTool<'_>,
) -> Result<LockUpdate> {
    let resolved = resolve(item)?;
    if resolved.uses_dev_mode {
        return Err(Error::new(
            Code::Unsigned,
            format!("{item} runs in development mode only: what is not signed is not pinned"),
        )
        .for_item(item)
        .hint(format!("read it, then sign it: rye sign {} {}", item.item_type, item.id)));
    }
    let scopes = match scope {
        Some(scope) => vec![scope],
        None => scopes_in_use(engine, &resolved)?,
    };
    let mut files = Vec::new();
    for scope in scopes {
        files.push(update_in(engine, &resolved, scope)?);
        if scope == SpaceTier::User {
            files.extend(remove_obsolete_pins(engine, &resolved)?);
        }
        files.extend(remove_other_versions(engine, &resolved, scope)?);
    }
    let remaining = match lockfiles::check(engine, &resolved) {
        Ok(LockState::Mismatch(mismatch)) => Some(Error::from(mismatch.as_ref())),
        Ok(LockState::None | LockState::Matched { .. } | LockState::Stale { .. }) => None,
        Err(error) => Some(error),
    };
    let remaining = match (remaining, scope) {
        (Some(error), None) => return Err(error),
        (Some(error), Some(_)) => Some(error.message),
        (None, _) => None,
    };
    Ok(LockUpdate {
        tool_id: resolved.root.tool_id.clone(),
        version: resolved.root.version.clone(),
        lockfiles: files,
        chain: resolved.chain,
        remaining,
    })
}

/// Pins every tool of the project that can be run, and every tool whose lockfile is looked at here. One that cannot be
/// pinned does not stop the others.
///
/// # Errors
/// When not inside a project and nothing is pinned.
pub fn update_all(
    engine: &Engine,
    scope: Option<SpaceTier>,
    resolve: ResolveTool<'_>,
) -> Result<LockUpdateReport> {
    let tools = pinnable_tools(engine, resolve)?;
    if tools.is_empty() && locations::project_dir(engine).is_none() {
        return Err(check::no_project_error());
    }
    let mut all = LockUpdateReport::default();
    for item in tools {
        match update(engine, &item, scope, resolve) {
            Ok(updated) => all.tools.push(updated),
            Err(error) => all.failed.push(FailedLockUpdate {
                tool_id: item.id.to_string(),
                code: error.code.as_str(),
                error: error.message,
                hints: error.hints,
                kind: error.code,
            }),
        }
    }
    Ok(all)
}

/// Every tool of the project that can be run, and every tool whose lockfile is looked at here.
pub fn pinnable_tools(engine: &Engine, resolve: ResolveTool<'_>) -> Result<Vec<ItemRef>> {
    let mut tools: BTreeSet<ItemId> = check::runnable_tools(engine)?.into_iter().collect();
    for row in super::list(engine, super::LockListScope::ProjectAndUser, resolve) {
        let is_here = match row.state {
            LockfileStatus::Ok
            | LockfileStatus::Stale
            | LockfileStatus::Mismatch
            | LockfileStatus::Downgrade
            | LockfileStatus::Corrupt
            | LockfileStatus::Refused => true,
            LockfileStatus::Gone | LockfileStatus::Elsewhere => false,
        };
        tools.extend(ItemId::new(row.tool_id.as_str()).ok().filter(|_| is_here));
    }
    Ok(tools.into_iter().map(|id| ItemRef::new(ItemType::Tool, id)).collect())
}

/// The scopes in which something is there under the tool's name.
fn scopes_in_use(engine: &Engine, resolved: &ResolvedTool) -> Result<Vec<SpaceTier>> {
    let mut scopes = Vec::new();
    let found = locations::effective_lockfiles(engine, resolved);
    let is_other_pinned = |scope: SpaceTier| {
        found.as_ref().is_ok_and(|found| found.other_versions.iter().any(|other| other.tier == scope))
    };
    if locations::project_dir(engine).is_some()
        && (is_other_pinned(SpaceTier::Project)
            || !matches!(locations::slot(engine, resolved, SpaceTier::Project)?.current, Ok(None)))
    {
        scopes.push(SpaceTier::Project);
    }
    // A damaged file under one of its names, or the user's pin of a tool that is hidden here, is in the way too.
    let is_damaged = locations::user_slots(engine, resolved)?.iter().any(|slot| slot.current.is_err());
    let is_pinned = !matches!(locations::slot(engine, resolved, SpaceTier::User)?.current, Ok(None));
    let is_found = found.as_ref().is_ok_and(|all| all.iter().any(|found| found.tier == SpaceTier::User));
    if is_damaged || is_pinned || is_found || is_other_pinned(SpaceTier::User) {
        scopes.push(SpaceTier::User);
    }
    Ok(if scopes.is_empty() { vec![locations::write_scope(engine)] } else { scopes })
}

fn update_in(engine: &Engine, resolved: &ResolvedTool, scope: SpaceTier) -> Result<UpdatedLockfile> {
    let slot = locations::slot(engine, resolved, scope)?;
    let (change, changes, why) = match &slot.current {
        Ok(None) => (LockfileChange::Created, Vec::new(), None),
        Err(error) => (LockfileChange::Replaced, Vec::new(), Some(error.message.clone())),
        // Without providers nothing is excused: every change is reported.
        Ok(Some(lockfile)) => match compare(lockfile, resolved, &[]) {
            LockComparison::Matches => (LockfileChange::Unchanged, Vec::new(), None),
            LockComparison::Stale { why } => (LockfileChange::Replaced, Vec::new(), Some(why)),
            LockComparison::Differs(changes) => (LockfileChange::Replaced, changes, None),
        },
    };
    let path = match change {
        LockfileChange::Unchanged | LockfileChange::Removed => slot.path(),
        LockfileChange::Created | LockfileChange::Replaced => {
            lockfiles::write_lockfile(engine, &slot, resolved, None)?
        }
    };
    Ok(UpdatedLockfile { path, scope, change, changes, why })
}

/// Removes what still refuses the tool in user scope after its own lockfile was written: pins of a tool that was in its
/// place here before, and damaged files under one of its names.
fn remove_obsolete_pins(engine: &Engine, resolved: &ResolvedTool) -> Result<Vec<UpdatedLockfile>> {
    let own = locations::slot(engine, resolved, SpaceTier::User)?.path();
    let mut removed = Vec::new();
    let mut remove = |slot: &LockfileSlot, changes: Vec<LockDifference>, why: Option<String>| -> Result<()> {
        slot.dir.remove(&slot.name)?;
        let path = slot.path();
        removed.push(UpdatedLockfile {
            path,
            scope: SpaceTier::User,
            change: LockfileChange::Removed,
            changes,
            why,
        });
        Ok(())
    };
    let slots = locations::user_slots(engine, resolved)?;
    let others: Vec<&LockfileSlot> = slots.iter().filter(|slot| slot.path() != own).collect();
    for slot in &others {
        if let Err(error) = &slot.current {
            remove(slot, Vec::new(), Some(error.message.clone()))?;
        }
    }
    // A damaged lockfile of another scope is not in the way of seeing these.
    let Ok(found) = locations::effective_lockfiles(engine, resolved) else { return Ok(removed) };
    for found in found.iter().filter(|found| found.tier == SpaceTier::User) {
        let Some(slot) = others.iter().find(|slot| slot.path() == found.path) else { continue };
        match compare(&found.lockfile, resolved, &[]) {
            LockComparison::Matches => {}
            LockComparison::Stale { why } => remove(slot, Vec::new(), Some(why))?,
            LockComparison::Differs(changes) => remove(slot, changes, None)?,
        }
    }
    Ok(removed)
}

/// Removes the pins of newer versions: the older one was accepted in their place. The user's own pin of a tool that is
/// hidden here stays, and has no effect any more.
fn remove_other_versions(
    engine: &Engine,
    resolved: &ResolvedTool,
    scope: SpaceTier,
) -> Result<Vec<UpdatedLockfile>> {
    let mut removed = Vec::new();
    // A damaged lockfile of another scope is not in the way of what was accepted here: it is reported afterwards.
    let Ok(found) = locations::effective_lockfiles(engine, resolved) else { return Ok(removed) };
    for other in found.other_versions.iter().filter(|other| other.tier == scope) {
        let (changes, why) = match &other.lockfile {
            Ok(lockfile) if locations::is_shadowed_pin(lockfile, resolved) => continue,
            Ok(lockfile) => (vec![locations::other_versions::difference(lockfile, resolved)], None),
            Err(error) => (Vec::new(), Some(error.message.clone())),
        };
        lillux::file::remove(&other.path)?;
        removed.push(UpdatedLockfile {
            path: other.path.clone(),
            scope,
            change: LockfileChange::Removed,
            changes,
            why,
        });
    }
    Ok(removed)
}

/// Removes the lockfiles of a tool in project and user scope, or in one of them; those of other projects, and of a tool
/// that is hidden here, stay. Naming the tool is the consent.
///
/// # Errors
/// When it has none there, or one cannot be removed.
pub fn remove(
    engine: &Engine,
    item: &ItemRef,
    scope: Option<SpaceTier>,
    resolve: ResolveTool<'_>,
) -> Result<RemovedLockfiles> {
    let dirs = locations::project_dir(engine).into_iter().chain([locations::user_dir(engine)]);
    let dirs: Vec<_> = dirs.filter(|dir| scope.is_none_or(|scope| scope == dir.tier)).collect();
    let prefix = format!("{}@", item.id);
    let is_named = |name: &str| name.starts_with(&prefix);
    let scanned: Vec<_> = dirs.iter().flat_map(|dir| locations::scan_matching(dir, &is_named)).collect();
    if scanned.is_empty() {
        let location = scope.map(|scope| format!(" in {scope} scope")).unwrap_or_default();
        return Err(Error::new(Code::NoLockfile, format!("{item} has no lockfile{location} to remove"))
            .for_item(item)
            .hint("see what is pinned: rye lock list; lockfiles of bundles are read-only"));
    }
    let resolved = resolve(item).ok();
    let mut response = RemovedLockfiles { removed: Vec::new(), kept: Vec::new() };
    for scanned in scanned {
        let row = lockfile_row(engine, &scanned, resolve);
        // A project's tool that hides the user's own is not a reason to give up what the user pinned.
        let is_hidden = scanned.tier == SpaceTier::User
            && scanned
                .lockfile
                .as_ref()
                .ok()
                .zip(resolved.as_ref())
                .is_some_and(|(lockfile, resolved)| locations::is_shadowed_pin(lockfile, resolved));
        if row.state == LockfileStatus::Elsewhere || is_hidden {
            response.kept.push(row);
        } else {
            lillux::file::remove(&row.path)?;
            response.removed.push(row);
        }
    }
    Ok(response)
}

/// Removes lockfiles of user scope whose tool, version or project is gone, and stale ones; gives what was removed.
///
/// # Errors
/// When one cannot be removed.
pub fn prune(engine: &Engine, resolve: ResolveTool<'_>) -> Result<Vec<LockfileRow>> {
    let mut removed = Vec::new();
    for scanned in locations::scan(&locations::user_dir(engine)) {
        let row = lockfile_row(engine, &scanned, resolve);
        match row.state {
            LockfileStatus::Gone | LockfileStatus::Stale => {
                lillux::file::remove(&row.path)?;
                removed.push(row);
            }
            LockfileStatus::Ok
            | LockfileStatus::Mismatch
            | LockfileStatus::Downgrade
            | LockfileStatus::Corrupt
            | LockfileStatus::Refused
            | LockfileStatus::Elsewhere => {}
        }
    }
    Ok(removed)
}
