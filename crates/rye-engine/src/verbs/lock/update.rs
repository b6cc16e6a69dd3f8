//! `lock update`, `remove` and `prune`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rye_exec::lock::{Comparison, Difference, Entry, Resolved, compare};
use rye_item::space::Tier;
use rye_item::{ItemId, ItemRef, ItemType};
use serde::Serialize;

use super::{Row, Standing, check, row};
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::tiers::{self, Slot};
use crate::lockfiles::{self, Resolve, State};

/// What became of one lockfile in an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// There was none.
    Made,
    /// It pins something else now.
    Replaced,
    /// It matched already.
    Unchanged,
    /// It pinned another tool in this one's place, or was damaged: it is gone.
    Removed,
}

/// One lockfile of an update.
#[derive(Clone, Debug, Serialize)]
pub struct UpdatedFile {
    /// The file.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// Its tier.
    pub scope: Tier,
    /// What became of it.
    pub change: Change,
    /// What is pinned otherwise than before.
    pub changes: Vec<Difference>,
    /// Why it was replaced, if nothing can be compared.
    pub why: Option<String>,
}

/// The answer of an update.
#[derive(Clone, Debug, Serialize)]
pub struct Updated {
    /// The tool.
    pub tool_id: String,
    /// Its version.
    pub version: String,
    /// The lockfiles, project first.
    pub lockfiles: Vec<UpdatedFile>,
    /// What is pinned now.
    pub chain: Vec<Entry>,
    /// Why the tool would be refused all the same, if it would.
    pub remaining: Option<String>,
}

/// A tool that could not be pinned.
#[derive(Clone, Debug, Serialize)]
pub struct FailedUpdate {
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
pub struct UpdatedAll {
    /// The tools that are pinned as they are now.
    pub tools: Vec<Updated>,
    /// Those that could not be pinned.
    pub failed: Vec<FailedUpdate>,
}

impl UpdatedAll {
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
    pub removed: Vec<Row>,
    /// Those that stay: they pin another project's tool, or one that is hidden here.
    pub kept: Vec<Row>,
}

/// Pins a tool as it is now. Without a scope, every lockfile it has in project and user scope is brought up to date;
/// if it has none, one is made where the settings say. Afterwards the tool runs, or the error says why it does not.
///
/// # Errors
/// When the tool does not resolve, an element is only forgiven, nothing can be written, or a lockfile that is not the
/// user's to change still refuses the tool. With a scope, what the other scopes refuse is in the answer.
pub fn update(engine: &Engine, item: &ItemRef, scope: Option<Tier>, resolve: Resolve<'_>) -> Result<Updated> {
    let resolved = resolve(item)?;
    if resolved.is_forgiven {
        return Err(Error::new(
            Code::Unsigned,
            format!("{item} runs in development mode only: what is not signed is not pinned"),
        )
        .of(item)
        .hint(format!("read it, then sign it: rye sign {} {}", item.item_type, item.id)));
    }
    let scopes = match scope {
        Some(scope) => vec![scope],
        None => scopes_in_use(engine, &resolved)?,
    };
    let mut files = Vec::new();
    for scope in scopes {
        files.push(update_in(engine, &resolved, scope)?);
        if scope == Tier::User {
            files.extend(remove_obsolete(engine, &resolved)?);
        }
        files.extend(remove_newer(engine, &resolved, scope)?);
    }
    let remaining = match lockfiles::check(engine, &resolved) {
        Ok(State::Mismatch(mismatch)) => Some(Error::from(mismatch.as_ref())),
        Ok(State::None | State::Held { .. } | State::Stale { .. }) => None,
        Err(error) => Some(error),
    };
    let remaining = match (remaining, scope) {
        (Some(error), None) => return Err(error),
        (Some(error), Some(_)) => Some(error.message),
        (None, _) => None,
    };
    Ok(Updated {
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
/// When there is no project here and nothing is pinned.
pub fn update_all(engine: &Engine, scope: Option<Tier>, resolve: Resolve<'_>) -> Result<UpdatedAll> {
    let tools = pinnable_tools(engine, resolve)?;
    if tools.is_empty() && tiers::project_shelf(engine).is_none() {
        return Err(check::no_project());
    }
    let mut all = UpdatedAll::default();
    for item in tools {
        match update(engine, &item, scope, resolve) {
            Ok(updated) => all.tools.push(updated),
            Err(error) => all.failed.push(FailedUpdate {
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
pub fn pinnable_tools(engine: &Engine, resolve: Resolve<'_>) -> Result<Vec<ItemRef>> {
    let mut tools: BTreeSet<ItemId> = check::runnable_tools(engine)?.into_iter().collect();
    for row in super::list(engine, super::Reach::Own, resolve) {
        let is_here = match row.state {
            Standing::Ok
            | Standing::Stale
            | Standing::Mismatch
            | Standing::Downgrade
            | Standing::Corrupt
            | Standing::Refused => true,
            Standing::Gone | Standing::Elsewhere => false,
        };
        tools.extend(ItemId::new(row.tool_id.as_str()).ok().filter(|_| is_here));
    }
    Ok(tools.into_iter().map(|id| ItemRef::new(ItemType::Tool, id)).collect())
}

/// The scopes in which something is there under the tool's name.
fn scopes_in_use(engine: &Engine, resolved: &Resolved) -> Result<Vec<Tier>> {
    let mut scopes = Vec::new();
    let found = tiers::found(engine, resolved);
    let is_newer_pinned =
        |scope: Tier| found.as_ref().is_ok_and(|found| found.newer.iter().any(|newer| newer.tier == scope));
    if tiers::project_shelf(engine).is_some()
        && (is_newer_pinned(Tier::Project)
            || !matches!(tiers::slot(engine, resolved, Tier::Project)?.current, Ok(None)))
    {
        scopes.push(Tier::Project);
    }
    // A damaged file under one of its names, or the user's pin of a tool that is hidden here, is in the way too.
    let is_damaged = tiers::user_slots(engine, resolved)?.iter().any(|slot| slot.current.is_err());
    let is_pinned = !matches!(tiers::slot(engine, resolved, Tier::User)?.current, Ok(None));
    let is_found = found.as_ref().is_ok_and(|all| all.iter().any(|found| found.tier == Tier::User));
    if is_damaged || is_pinned || is_found || is_newer_pinned(Tier::User) {
        scopes.push(Tier::User);
    }
    Ok(if scopes.is_empty() { vec![tiers::scope(engine)] } else { scopes })
}

fn update_in(engine: &Engine, resolved: &Resolved, scope: Tier) -> Result<UpdatedFile> {
    let slot = tiers::slot(engine, resolved, scope)?;
    let (change, changes, why) = match &slot.current {
        Ok(None) => (Change::Made, Vec::new(), None),
        Err(error) => (Change::Replaced, Vec::new(), Some(error.message.clone())),
        // Without providers nothing is excused: every change is told.
        Ok(Some(lockfile)) => match compare(lockfile, resolved, &[]) {
            Comparison::Holds => (Change::Unchanged, Vec::new(), None),
            Comparison::Stale { why } => (Change::Replaced, Vec::new(), Some(why)),
            Comparison::Differs(changes) => (Change::Replaced, changes, None),
        },
    };
    let path = match change {
        Change::Unchanged | Change::Removed => slot.path(),
        Change::Made | Change::Replaced => lockfiles::put(engine, &slot, resolved, None)?,
    };
    Ok(UpdatedFile { path, scope, change, changes, why })
}

/// Removes what still refuses the tool in user scope after its own lockfile was written: pins of a tool that was in its
/// place here before, and damaged files under one of its names.
fn remove_obsolete(engine: &Engine, resolved: &Resolved) -> Result<Vec<UpdatedFile>> {
    let own = tiers::slot(engine, resolved, Tier::User)?.path();
    let mut removed = Vec::new();
    let mut remove = |slot: &Slot, changes: Vec<Difference>, why: Option<String>| -> Result<()> {
        slot.shelf.remove(&slot.name)?;
        let path = slot.path();
        removed.push(UpdatedFile { path, scope: Tier::User, change: Change::Removed, changes, why });
        Ok(())
    };
    let slots = tiers::user_slots(engine, resolved)?;
    let others: Vec<&Slot> = slots.iter().filter(|slot| slot.path() != own).collect();
    for slot in &others {
        if let Err(error) = &slot.current {
            remove(slot, Vec::new(), Some(error.message.clone()))?;
        }
    }
    // A damaged lockfile of another scope is not in the way of seeing these.
    let Ok(found) = tiers::found(engine, resolved) else { return Ok(removed) };
    for found in found.iter().filter(|found| found.tier == Tier::User) {
        let Some(slot) = others.iter().find(|slot| slot.path() == found.path) else { continue };
        match compare(&found.lockfile, resolved, &[]) {
            Comparison::Holds => {}
            Comparison::Stale { why } => remove(slot, Vec::new(), Some(why))?,
            Comparison::Differs(changes) => remove(slot, changes, None)?,
        }
    }
    Ok(removed)
}

/// Removes the pins of newer versions: the older one was accepted in their place. The user's own pin of a tool that is
/// hidden here stays, and does not count any more.
fn remove_newer(engine: &Engine, resolved: &Resolved, scope: Tier) -> Result<Vec<UpdatedFile>> {
    let mut removed = Vec::new();
    // A damaged lockfile of another scope is not in the way of what was accepted here: it is told afterwards.
    let Ok(found) = tiers::found(engine, resolved) else { return Ok(removed) };
    for newer in found.newer.iter().filter(|newer| newer.tier == scope) {
        let (changes, why) = match &newer.lockfile {
            Ok(lockfile) if tiers::is_others_pin(lockfile, resolved) => continue,
            Ok(lockfile) => (vec![tiers::newer::difference(lockfile, resolved)], None),
            Err(error) => (Vec::new(), Some(error.message.clone())),
        };
        lillux::file::remove(&newer.path)?;
        removed.push(UpdatedFile { path: newer.path.clone(), scope, change: Change::Removed, changes, why });
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
    scope: Option<Tier>,
    resolve: Resolve<'_>,
) -> Result<RemovedLockfiles> {
    let shelves = tiers::project_shelf(engine).into_iter().chain([tiers::user_shelf(engine)]);
    let shelves: Vec<_> = shelves.filter(|shelf| scope.is_none_or(|scope| scope == shelf.tier)).collect();
    let prefix = format!("{}@", item.id);
    let is_named = |name: &str| name.starts_with(&prefix);
    let scanned: Vec<_> = shelves.iter().flat_map(|shelf| tiers::scan_named(shelf, &is_named)).collect();
    if scanned.is_empty() {
        let place = scope.map(|scope| format!(" in {scope} scope")).unwrap_or_default();
        return Err(Error::new(Code::NoLockfile, format!("{item} has no lockfile{place} to remove"))
            .of(item)
            .hint("see what is pinned: rye lock list; lockfiles of bundles are read-only"));
    }
    let here = resolve(item).ok();
    let mut answer = RemovedLockfiles { removed: Vec::new(), kept: Vec::new() };
    for scanned in scanned {
        let row = row(engine, &scanned, resolve);
        // A project's tool that hides the user's own is no reason to give up what the user pinned.
        let is_hidden = scanned.tier == Tier::User
            && scanned
                .lockfile
                .as_ref()
                .ok()
                .zip(here.as_ref())
                .is_some_and(|(lockfile, here)| tiers::is_others_pin(lockfile, here));
        if row.state == Standing::Elsewhere || is_hidden {
            answer.kept.push(row);
        } else {
            lillux::file::remove(&row.path)?;
            answer.removed.push(row);
        }
    }
    Ok(answer)
}

/// Removes lockfiles of user scope whose tool, version or project is gone, and stale ones; gives what was removed.
///
/// # Errors
/// When one cannot be removed.
pub fn prune(engine: &Engine, resolve: Resolve<'_>) -> Result<Vec<Row>> {
    let mut removed = Vec::new();
    for scanned in tiers::scan(&tiers::user_shelf(engine)) {
        let row = row(engine, &scanned, resolve);
        match row.state {
            Standing::Gone | Standing::Stale => {
                lillux::file::remove(&row.path)?;
                removed.push(row);
            }
            Standing::Ok
            | Standing::Mismatch
            | Standing::Downgrade
            | Standing::Corrupt
            | Standing::Refused
            | Standing::Elsewhere => {}
        }
    }
    Ok(removed)
}
