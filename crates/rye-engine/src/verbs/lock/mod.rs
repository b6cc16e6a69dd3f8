//! `lock list`, `show`, `verify`, `check`, `update`, `remove`, `prune`: what is pinned, whether it matches, and changing it.

mod check;
mod update;

use std::path::{Path, PathBuf};

use rye_exec::lock::{Comparison, Difference, Entry, Lockfile};
use rye_item::space::Tier;
use rye_item::{ItemId, ItemRef, ItemType};
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::tiers::{self, Scanned};
use crate::lockfiles::{self, Resolve, name};

pub(crate) use check::is_runnable;
pub use check::{CheckReport, CheckState, CheckedTool, check};
pub use update::{
    Change, FailedUpdate, RemovedLockfiles, Updated, UpdatedAll, UpdatedFile, pinnable_tools, prune, remove,
    update, update_all,
};

/// How a lockfile stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It holds.
    Ok,
    /// A bundle was upgraded since.
    Stale,
    /// Something else than what was pinned would run.
    Mismatch,
    /// An older version than the pinned one would run.
    Downgrade,
    /// It is damaged or cannot be read.
    Corrupt,
    /// What it pins does not resolve: an element is missing, or nobody vouches for it.
    Refused,
    /// Its tool, its version or its project is gone.
    Gone,
    /// It is for a tool of another project, or for one that is hidden here.
    Elsewhere,
}

impl Standing {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Stale => "stale",
            Self::Mismatch => "mismatch",
            Self::Downgrade => "downgrade",
            Self::Corrupt => "corrupt",
            Self::Refused => "refused",
            Self::Gone => "gone",
            Self::Elsewhere => "elsewhere",
        }
    }

    /// Whether the tool would be refused because of it.
    #[must_use]
    pub fn is_bad(self) -> bool {
        match self {
            Self::Mismatch | Self::Downgrade | Self::Corrupt | Self::Refused => true,
            Self::Ok | Self::Stale | Self::Gone | Self::Elsewhere => false,
        }
    }
}

/// A lockfile as it is listed.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The tool; from the file's name if the file is damaged.
    pub tool_id: String,
    /// Its version.
    pub version: String,
    /// The tier it lies in.
    pub scope: Tier,
    /// The file.
    #[serde(serialize_with = "rye_space::shown::path")]
    pub path: PathBuf,
    /// When it was made.
    pub generated_at: Option<String>,
    /// The project whose tool it pins, if it lies in user scope.
    pub project: Option<String>,
    /// How it stands.
    pub state: Standing,
    /// Why it does not simply hold.
    pub why: Option<String>,
    /// Everything that differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
}

/// A lockfile with what it pins.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The lockfile.
    #[serde(flatten)]
    pub row: Row,
    /// The pinned chain, the tool first.
    pub chain: Vec<Entry>,
    /// How many files beside the tool are pinned with it.
    pub files: usize,
    /// How many packages are pinned with it.
    pub packages: usize,
}

/// The answer of a verify.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Verified {
    /// How many were looked at.
    pub checked: usize,
    /// How many hold.
    pub ok: usize,
    /// How many are stale.
    pub stale: usize,
    /// How many the tool doesn't match.
    pub mismatch: usize,
    /// How many pin a newer version than the one that is there.
    pub downgrade: usize,
    /// How many are damaged.
    pub corrupt: usize,
    /// How many pin something that does not resolve.
    pub refused: usize,
    /// How many pin something that is gone.
    pub gone: usize,
    /// How many are for elsewhere.
    pub elsewhere: usize,
    /// All of them.
    pub lockfiles: Vec<Row>,
}

impl Verified {
    /// Whether no tool would be refused because of a lockfile.
    #[must_use]
    pub fn is_good(&self) -> bool {
        !self.lockfiles.iter().any(|row| row.state.is_bad())
    }
}

/// Which lockfiles to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Those of project and user scope.
    Own,
    /// Those of bundles too.
    All,
}

/// Lists lockfiles, project first, and how each stands.
#[must_use]
pub fn list(engine: &Engine, reach: Reach, resolve: Resolve<'_>) -> Vec<Row> {
    scan(engine, reach).iter().map(|scanned| row(engine, scanned, resolve)).collect()
}

fn scan(engine: &Engine, reach: Reach) -> Vec<Scanned> {
    let mut shelves: Vec<_> = tiers::project_shelf(engine).into_iter().collect();
    shelves.push(tiers::user_shelf(engine));
    if reach == Reach::All {
        shelves.extend(tiers::system_shelves(engine));
    }
    shelves.iter().flat_map(tiers::scan).collect()
}

/// Shows every lockfile of a tool, of whatever version.
///
/// # Errors
/// When it has none.
pub fn show(engine: &Engine, item: &ItemRef, resolve: Resolve<'_>) -> Result<Vec<Shown>> {
    let of_tool = scan_of(engine, item)?;
    let shown = |scanned: &Scanned| {
        let pinned = scanned.lockfile.as_ref().ok();
        Shown {
            row: row(engine, scanned, resolve),
            chain: pinned.map(|lockfile| lockfile.resolved_chain.clone()).unwrap_or_default(),
            files: pinned.and_then(|lockfile| lockfile.verified_deps.as_ref()).map_or(0, Vec::len),
            packages: pinned.and_then(|lockfile| lockfile.dependencies.as_ref()).map_or(0, Vec::len),
        }
    };
    Ok(of_tool.iter().map(shown).collect())
}

/// The lockfiles named after a tool.
fn scan_of(engine: &Engine, item: &ItemRef) -> Result<Vec<Scanned>> {
    let prefix = format!("{}@", item.id);
    let mut all = scan(engine, Reach::All);
    all.retain(|scanned| scanned.name.starts_with(&prefix));
    if all.is_empty() {
        return Err(Error::new(Code::NoLockfile, format!("{item} has no lockfile")).of(item).hint(format!(
            "the first run that works makes one; or pin it now: rye lock update {}",
            item.id
        )));
    }
    Ok(all)
}

/// Compares lockfiles with what their tools resolve to: those of one tool, or all of project and user scope.
///
/// # Errors
/// When the named tool has none. What doesn't match is in the answer.
pub fn verify(engine: &Engine, item: Option<&ItemRef>, resolve: Resolve<'_>) -> Result<Verified> {
    let scanned = match item {
        Some(item) => scan_of(engine, item)?,
        None => scan(engine, Reach::Own),
    };
    let lockfiles: Vec<Row> = scanned.iter().map(|scanned| row(engine, scanned, resolve)).collect();
    let count = |state: Standing| lockfiles.iter().filter(|row| row.state == state).count();
    Ok(Verified {
        checked: lockfiles.len(),
        ok: count(Standing::Ok),
        stale: count(Standing::Stale),
        mismatch: count(Standing::Mismatch),
        downgrade: count(Standing::Downgrade),
        corrupt: count(Standing::Corrupt),
        refused: count(Standing::Refused),
        gone: count(Standing::Gone),
        elsewhere: count(Standing::Elsewhere),
        lockfiles,
    })
}

/// What a look at one lockfile comes to.
struct Judged {
    state: Standing,
    why: Option<String>,
    differences: Vec<Difference>,
}

impl Judged {
    fn of(state: Standing, why: impl Into<String>) -> Self {
        Self { state, why: Some(why.into()), differences: Vec::new() }
    }
}

fn row(engine: &Engine, scanned: &Scanned, resolve: Resolve<'_>) -> Row {
    let (named_id, named_version) = split_name(&scanned.name);
    let shown = |text: &str| rye_item::text::one_line(text);
    match &scanned.lockfile {
        Err(error) => Row {
            tool_id: shown(named_id),
            version: shown(named_version),
            scope: scanned.tier,
            path: scanned.path.clone(),
            generated_at: None,
            project: None,
            state: Standing::Corrupt,
            why: Some(error.message.clone()),
            differences: Vec::new(),
        },
        Ok(lockfile) => {
            let judged = judge(engine, scanned, lockfile, resolve);
            Row {
                tool_id: shown(&lockfile.root.tool_id),
                version: shown(&lockfile.root.version),
                scope: scanned.tier,
                path: scanned.path.clone(),
                generated_at: Some(shown(&lockfile.generated_at)),
                project: lockfile.project.as_deref().map(shown),
                state: judged.state,
                why: judged.why,
                differences: judged.differences,
            }
        }
    }
}

/// `a/b@1.0.0.lock.json` → `a/b`, `1.0.0`.
fn split_name(name: &str) -> (&str, &str) {
    let stem = name.strip_suffix(name::ENDING).unwrap_or(name);
    stem.rsplit_once('@').unwrap_or((stem, ""))
}

fn judge(engine: &Engine, scanned: &Scanned, lockfile: &Lockfile, resolve: Resolve<'_>) -> Judged {
    let root = &lockfile.root;
    let Ok(id) = ItemId::new(root.tool_id.as_str()) else {
        return Judged::of(Standing::Corrupt, "it pins something that is no tool id");
    };
    let (named_id, named_version) = split_name(&scanned.name);
    let is_marked =
        named_version.strip_prefix(root.version.as_str()).is_some_and(|rest| rest.starts_with('+'));
    if named_id != id.as_str() || !(named_version == root.version || is_marked) {
        return Judged::of(Standing::Corrupt, "it pins another tool or version than its name says");
    }
    let item = ItemRef::new(ItemType::Tool, id);
    if let Some(project) =
        lockfile.project.as_ref().filter(|project| Some(*project) != tiers::here(engine).as_ref())
    {
        return judge_elsewhere(engine, &item, Path::new(project));
    }
    let resolved = match resolve(&item) {
        Ok(resolved) => resolved,
        Err(error) if error.code == Code::NotFound && error.item.as_deref() == Some(item.id.as_str()) => {
            // Another program's lockfile of a project's tool does not say which project.
            let is_of_some_project = scanned.tier == Tier::User
                && lockfile.project.is_none()
                && tiers::pinned_space(lockfile) == "project";
            let state = if is_of_some_project { Standing::Elsewhere } else { Standing::Gone };
            return Judged::of(state, "the tool is not here");
        }
        Err(error) => return Judged::of(Standing::Refused, error.message),
    };
    let is_newer = tiers::found(engine, &resolved)
        .is_ok_and(|found| found.newer.iter().any(|newer| newer.path == scanned.path));
    if is_newer {
        let difference = tiers::newer::difference(lockfile, &resolved);
        let why = Some(difference.to_string());
        return Judged { state: Standing::Downgrade, why, differences: vec![difference] };
    }
    if resolved.root.version != root.version {
        let now = rye_item::text::one_line(&resolved.root.version);
        let is_hidden = tiers::is_others_pin(lockfile, &resolved);
        let state = if is_hidden { Standing::Elsewhere } else { Standing::Gone };
        return Judged::of(state, format!("the tool of {} space has version {now}", resolved.space()));
    }
    // Where another lockfile is damaged, nobody can say which of them count: then this one is taken to.
    let counts = tiers::found(engine, &resolved)
        .map_or(true, |found| found.iter().any(|found| found.path == scanned.path));
    if !counts && scanned.tier == Tier::System && tiers::pinned_space(lockfile) == resolved.space() {
        return Judged::of(Standing::Elsewhere, "its bundle's signed manifest does not list it");
    }
    if !counts {
        return Judged::of(
            Standing::Elsewhere,
            format!("here the tool is the one of {} space", resolved.space()),
        );
    }
    match lockfiles::compared(engine, lockfile, &resolved) {
        Comparison::Holds => Judged { state: Standing::Ok, why: None, differences: Vec::new() },
        Comparison::Stale { why } => Judged::of(Standing::Stale, why),
        Comparison::Differs(differences) => Judged {
            state: Standing::Mismatch,
            why: differences.first().map(ToString::to_string),
            differences,
        },
    }
}

/// A lockfile of a tool of another project: only whether both are still there.
fn judge_elsewhere(engine: &Engine, item: &ItemRef, project: &Path) -> Judged {
    let shown = rye_item::text::one_line(&project.display().to_string());
    if !project.is_dir() {
        return Judged::of(
            Standing::Gone,
            format!("its project {shown} is gone; pins do not follow a moved project"),
        );
    }
    let folder = project.join(rye_space::AI_FOLDER).join(ItemType::Tool.folder());
    let extensions = &engine.workspace.spaces.extractors().of(ItemType::Tool).extensions;
    let is_there = |extension: &String| folder.join(format!("{}{extension}", item.id)).exists();
    if extensions.iter().any(is_there) {
        Judged::of(Standing::Elsewhere, format!("it is for the project {shown}"))
    } else {
        Judged::of(Standing::Gone, format!("the tool is gone from {shown}"))
    }
}
