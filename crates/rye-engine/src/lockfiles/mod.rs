//! Lockfiles: whether what would run is what was pinned, and pinning it after the first success.
//!
//! Reading looks at project, user and system tier, always, and every lockfile found must hold. Writing goes where
//! `lockfiles.scope` says. `lillux` reads and writes single files; `rye_exec::lock` compares.

pub(crate) mod installed;
pub(crate) mod name;
mod system;
pub(crate) mod tiers;

use std::path::PathBuf;

pub use rye_exec::lock::{
    Comparison, Dependency, Difference, Entry, Part, Provider, Resolved, Root, VerifiedDep, What,
};
use rye_exec::lock::{Lockfile, compare};
use rye_item::space::Tier;
use rye_item::{ItemRef, ItemType};
use rye_space::bundle::Standing;
use serde::Serialize;

pub use system::generate as generate_system;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use tiers::{Found, Slot};

/// How a tool is resolved to its chain.
pub type Resolve<'a> = &'a dyn Fn(&ItemRef) -> Result<Resolved>;

/// What a caller demands of lockfiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demand {
    /// A lockfile that is there must hold; without one, the first success makes one.
    #[default]
    Hold,
    /// `--locked`: there must be one, and it must hold.
    Locked,
    /// `--frozen`: none is ever written.
    Frozen,
}

/// How the lockfiles of a tool stand to what would run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// There is none.
    None,
    /// All of them hold.
    Held {
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
    Mismatch(Box<Mismatch>),
}

/// A lockfile that the tool doesn't match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mismatch {
    /// The tool.
    pub tool_id: String,
    /// The lockfile.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// Its tier: a project's lockfile is the team's.
    pub scope: Tier,
    /// Everything that differs; the first is the one to tell.
    pub differences: Vec<Difference>,
    /// The command that accepts the change.
    pub accept: String,
}

impl From<&Mismatch> for Error {
    fn from(mismatch: &Mismatch) -> Self {
        let id = &mismatch.tool_id;
        let first = mismatch.differences.first();
        let what = first.map(ToString::to_string).unwrap_or_default();
        let whose = match mismatch.scope {
            Tier::Project => "the team's lockfile",
            Tier::User => "its lockfile",
            Tier::System => "the bundle's lockfile",
        };
        let mut error = Self::new(Code::LockMismatch, format!("tool:{id} doesn't match {whose}: {what}"))
            .detail("path", mismatch.path.display().to_string())
            .detail("scope", mismatch.scope.as_str())
            .detail("differences", serde_json::to_value(&mismatch.differences).unwrap_or_default());
        error.item = Some(id.clone());
        if let Some(first) = first {
            error = error.detail("element", first.element.as_str());
            error = match &first.what {
                What::Hash { pinned, found }
                | What::Space { pinned, found }
                | What::Version { pinned, found }
                | What::Downgraded { pinned, found }
                | What::Shadowed { pinned, by: found } => {
                    error.detail("expected", pinned.as_str()).detail("found", found.as_str())
                }
                What::Missing | What::Added => error,
            };
        }
        match mismatch.scope {
            Tier::Project => error
                .hint(
                    "it is committed with the project: ask who changed the tool, or take the pinned one back",
                )
                .hint(format!("if the change is right: {}", mismatch.accept)),
            Tier::User => error.hint(format!("look at what changed; if it is right: {}", mismatch.accept)),
            Tier::System => error.hint("install the bundle again, or remove what hides its parts"),
        }
    }
}

/// The bundles as they are now, for telling an upgrade from a change.
fn providers(engine: &Engine) -> Vec<Provider> {
    let bundles = engine.workspace.spaces.bundles().iter();
    bundles
        .filter(|bundle| bundle.standing != Standing::NotApproved)
        .map(|bundle| Provider {
            space: format!("system:{}", bundle.id),
            version: bundle.version.clone(),
            is_embedded: bundle.standing == Standing::Embedded,
        })
        .collect()
}

/// Now, as lockfiles say it.
pub(crate) fn moment(engine: &Engine) -> Result<String> {
    let now = engine.now()?;
    Ok(format!("{}.000000+00:00", now.as_str().trim_end_matches('Z')))
}

/// Compares one lockfile with what its tool resolves to.
pub(crate) fn compared(engine: &Engine, lockfile: &Lockfile, resolved: &Resolved) -> Comparison {
    compare(lockfile, resolved, &providers(engine))
}

/// Compares every lockfile found for the tool with what it resolves to. Changes none.
///
/// # Errors
/// When a lockfile is damaged, or the tool's version cannot name one.
pub fn check(engine: &Engine, resolved: &Resolved) -> Result<State> {
    let providers = providers(engine);
    let (mut lockfiles, mut stale) = (Vec::new(), None);
    let all = tiers::found(engine, resolved)?;
    for found in all.iter() {
        match (compare(&found.lockfile, resolved, &providers), found.tier) {
            (Comparison::Holds, _) => lockfiles.push(found.path.clone()),
            // What a bundle ships speaks of the other bundles of its day; nobody here could replace it.
            (Comparison::Stale { .. }, Tier::System) => {}
            (Comparison::Stale { why }, Tier::Project | Tier::User) => {
                stale.get_or_insert(State::Stale { path: found.path.clone(), why });
            }
            (Comparison::Differs(differences), _) => {
                return Ok(State::Mismatch(Box::new(mismatch(
                    found.path.clone(),
                    found.tier,
                    resolved,
                    differences,
                ))));
            }
        }
    }
    // However well an older version is signed, and even if it was pinned once: it is not the one that was agreed to last.
    if let Some(newer) = all.newer.first() {
        let pinned = newer.lockfile.as_ref().map_err(Clone::clone)?;
        let differences = vec![tiers::newer::difference(pinned, resolved)];
        return Ok(State::Mismatch(Box::new(mismatch(
            newer.path.clone(),
            newer.tier,
            resolved,
            differences,
        ))));
    }
    Ok(match stale {
        Some(stale) => stale,
        None if lockfiles.is_empty() => State::None,
        None => State::Held { lockfiles },
    })
}

fn mismatch(path: PathBuf, scope: Tier, resolved: &Resolved, differences: Vec<Difference>) -> Mismatch {
    let tool_id = resolved.root.tool_id.clone();
    let accept = format!("rye lock update {tool_id}");
    Mismatch { tool_id, path, scope, differences, accept }
}

/// As [`check`], and refuses what may not run.
///
/// # Errors
/// As [`check`]; when the tool doesn't match a lockfile; under `--locked` also when there is none, or only a stale one.
pub fn enforce(engine: &Engine, resolved: &Resolved, demand: Demand) -> Result<State> {
    let state = check(engine, resolved)?;
    let id = &resolved.root.tool_id;
    let missing = |message: String| {
        let mut error = Error::new(Code::LockMissing, message);
        error.item = Some(id.clone());
        let error = error
            .hint(format!("look at it (rye why tool {id}), then pin it as it is now: rye lock update {id}"));
        match moved_pin(engine, resolved) {
            Some(moved) => error.hint(moved),
            None => error,
        }
    };
    match (&state, demand) {
        (State::Mismatch(mismatch), _) => Err(Error::from(mismatch.as_ref())),
        (State::None, Demand::Locked) => {
            Err(missing(format!("tool:{id} has no lockfile, and --locked asks for one")))
        }
        (State::Stale { path, why }, Demand::Locked) => {
            let message =
                format!("the lockfile of tool:{id} is stale, and --locked asks for one that matches");
            Err(missing(format!("{message}: {why}")).detail("path", path.display().to_string()))
        }
        (State::None | State::Stale { .. }, Demand::Hold | Demand::Frozen) | (State::Held { .. }, _) => {
            Ok(state)
        }
    }
}

/// A lockfile that was written after a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
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
pub fn record(engine: &Engine, resolved: &Resolved, demand: Demand) -> Result<Option<Recorded>> {
    if demand == Demand::Frozen || resolved.is_forgiven {
        return Ok(None);
    }
    let state = check(engine, resolved)?;
    if matches!(state, State::Held { .. }) && resolved.dependencies.is_none() {
        return Ok(None);
    }
    let slot = tiers::slot(engine, resolved, tiers::scope(engine))?;
    let current = slot.current.clone()?;
    let made = |path: PathBuf| Some(Recorded { path, replaced: None });
    match (state, current) {
        (State::Mismatch(mismatch), _) => Err(Error::from(mismatch.as_ref())),
        (State::Held { .. }, Some(mut lockfile)) => {
            let is_complete = lockfile.dependencies.is_some() || resolved.dependencies.is_none();
            if is_complete || compared(engine, &lockfile, resolved) != Comparison::Holds {
                return Ok(None);
            }
            lockfile.dependencies.clone_from(&resolved.dependencies);
            slot.shelf.write(&slot.name, &lockfile).map(made)
        }
        (State::Held { .. }, None) => Ok(None),
        (State::Stale { .. }, Some(lockfile)) => match compared(engine, &lockfile, resolved) {
            Comparison::Holds => Ok(None),
            Comparison::Stale { why } => {
                let path = put(engine, &slot, resolved, Some(&lockfile))?;
                Ok(Some(Recorded { path, replaced: Some(why) }))
            }
            Comparison::Differs(_) => after_another(engine, resolved, &slot),
        },
        (State::Stale { .. } | State::None, None) => {
            let lockfile = resolved.to_lockfile(moment(engine)?, recorded_owner(engine, &slot, resolved));
            match slot.shelf.write_new(&slot.name, &lockfile)? {
                Some(path) => Ok(made(path)),
                None => after_another(engine, resolved, &slot),
            }
        }
        (State::None, Some(_)) => after_another(engine, resolved, &slot),
    }
}

/// What is worth saying of a project's tool that has no lockfile here: a pin of the same tool was made for a project
/// whose folder is gone, perhaps because it is this one and was moved. Pins do not follow it.
#[must_use]
pub(crate) fn moved_pin(engine: &Engine, resolved: &Resolved) -> Option<String> {
    if resolved.space() != "project" {
        return None;
    }
    let gone = tiers::of_gone_projects(engine, resolved);
    // If one of them pins what is here, that is the one.
    let judged = gone.iter().map(|found| (found, compared(engine, &found.lockfile, resolved)));
    let (found, comparison) = judged.min_by_key(|(_, comparison)| match comparison {
        Comparison::Holds => 0,
        Comparison::Stale { .. } => 1,
        Comparison::Differs(_) => 2,
    })?;
    let project = rye_item::text::one_line(found.lockfile.project.as_deref().unwrap_or_default());
    let difference = match comparison {
        Comparison::Holds => "nothing changed since".to_owned(),
        Comparison::Stale { why } => why,
        Comparison::Differs(all) => all.first().map(ToString::to_string).unwrap_or_default(),
    };
    let id = &resolved.root.tool_id;
    Some(format!(
        "`{id}` is pinned for `{project}`, which is gone: pins do not follow a moved project ({difference})"
    ))
}

/// Somebody pinned the tool meanwhile: what they pinned must be what ran here.
fn after_another(engine: &Engine, resolved: &Resolved, slot: &Slot) -> Result<Option<Recorded>> {
    match check(engine, resolved)? {
        State::Held { .. } | State::Stale { .. } => Ok(None),
        State::Mismatch(mismatch) => Err(Error::from(mismatch.as_ref())),
        State::None => {
            let path = slot.path();
            let message = format!("`{}` is the lockfile of another tool or project", path.display());
            Err(Error::new(Code::LockCorrupt, message)
                .detail("path", path.display().to_string())
                .hint("remove it if nobody needs it: rye lock list"))
        }
    }
}

fn recorded_owner(engine: &Engine, slot: &Slot, resolved: &Resolved) -> Option<String> {
    match slot.shelf.tier {
        Tier::User => tiers::owner(engine, resolved),
        Tier::Project | Tier::System => None,
    }
}

/// Makes or replaces a lockfile by what the tool resolves to now. Packages that were not looked at stay pinned as long as
/// no element changed: one that did may ask for others.
pub(crate) fn put(
    engine: &Engine,
    slot: &Slot,
    resolved: &Resolved,
    old: Option<&Lockfile>,
) -> Result<PathBuf> {
    let mut lockfile = resolved.to_lockfile(moment(engine)?, recorded_owner(engine, slot, resolved));
    let hashes = |lockfile: &Lockfile| -> Vec<String> {
        lockfile.resolved_chain.iter().map(|entry| entry.integrity.clone()).collect()
    };
    if let Some(old) = old.filter(|old| hashes(old) == hashes(&lockfile))
        && lockfile.dependencies.is_none()
    {
        lockfile.dependencies.clone_from(&old.dependencies);
    }
    slot.shelf.write(&slot.name, &lockfile)
}

/// The packages that lockfiles pin for a tool, if one does: the project's before the user's before the bundle's. They
/// count only as long as the elements that ask for packages (`asking`) are those that were pinned with them. Whoever
/// pins packages chooses what code runs, so a project that is not approved has no say.
///
/// # Errors
/// When a lockfile is damaged.
pub(crate) fn pinned_packages(
    engine: &Engine,
    resolved: &Resolved,
    asking: &[String],
) -> Result<Option<Vec<Dependency>>> {
    let integrity = |chain: &[Entry], id: &String| {
        chain.iter().find(|entry| entry.item_id == *id).map(|entry| entry.integrity.clone())
    };
    let counts = |found: &Found| match found.tier {
        Tier::Project => engine.workspace.is_project_approved,
        Tier::User | Tier::System => true,
    };
    let same = |lockfile: &Lockfile| {
        asking.iter().all(|id| integrity(&lockfile.resolved_chain, id) == integrity(&resolved.chain, id))
    };
    let found = tiers::found(engine, resolved)?;
    let mut pins = found.iter().filter(|found| counts(found) && same(&found.lockfile));
    Ok(pins.find_map(|found| found.lockfile.dependencies.clone()))
}

/// Brings the user's lockfile of a tool up to date after its author signed it at the command line, and gives its path.
/// Signing consents to the tool and to what its text names; a runtime or an imported file that changed as well stays a
/// mismatch.
///
/// # Errors
/// When the lockfile is damaged or cannot be written; the tool stays signed.
pub fn refresh_after_sign(engine: &Engine, item: &ItemRef, resolve: Resolve<'_>) -> Result<Option<PathBuf>> {
    if item.item_type != ItemType::Tool {
        return Ok(None);
    }
    // A tool whose chain is not complete cannot run: there is nothing to pin, and running it says why.
    let Ok(resolved) = resolve(item) else { return Ok(None) };
    if resolved.is_forgiven {
        return Ok(None);
    }
    let slot = tiers::slot(engine, &resolved, Tier::User)?;
    let Some(pinned) = slot.current.clone()? else { return Ok(None) };
    if !installed::is_of_same_tool(engine, &pinned, &resolved)
        || compared(engine, &pinned, &resolved) == Comparison::Holds
    {
        return Ok(None);
    }
    let mut signed = pinned.clone();
    signed.root.clone_from(&resolved.root);
    let names_another = match (signed.resolved_chain.first_mut(), resolved.chain.first()) {
        (Some(old), Some(new)) => {
            let names_another = old.executor_id != new.executor_id;
            old.clone_from(new);
            names_another
        }
        (_, _) => true,
    };
    match compared(engine, &signed, &resolved) {
        Comparison::Differs(_) if !names_another => Ok(None),
        Comparison::Holds | Comparison::Stale { .. } | Comparison::Differs(_) => {
            put(engine, &slot, &resolved, Some(&pinned)).map(Some)
        }
    }
}
