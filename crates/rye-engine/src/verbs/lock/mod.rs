//! `lock list`, `show`, `verify`, `check`, `update`, `remove`, `prune`: what is pinned, whether it matches, and changing it.

mod check;
mod update;

use std::path::{Path, PathBuf};

use rye_exec::lock::{DifferenceKind, LockComparison, LockDifference, LockedElement, Lockfile};
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType};
use serde::Serialize;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::locations::{self, ScannedLockfile};
use crate::lockfiles::{self, ResolveTool, file_name};

pub use check::{LockCheckReport, ToolLockCheck, ToolLockState, check};
pub(crate) use check::{is_runnable, tools_without_executor};
pub use update::{
    FailedLockUpdate, LockUpdate, LockUpdateReport, LockfileChange, RemovedLockfiles, UpdatedLockfile,
    pinnable_tools, prune, remove, update, update_all,
};

/// How a lockfile stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LockfileStatus {
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
    /// What it pins does not resolve: an element is missing or not trusted.
    Refused,
    /// Its tool, its version or its project is gone.
    Gone,
    /// It is for a tool of another project, or for one that is hidden here.
    Elsewhere,
}

impl LockfileStatus {
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
    pub fn is_failure(self) -> bool {
        match self {
            Self::Mismatch | Self::Downgrade | Self::Corrupt | Self::Refused => true,
            Self::Ok | Self::Stale | Self::Gone | Self::Elsewhere => false,
        }
    }
}

/// A lockfile as it is listed.
#[derive(Clone, Debug, Serialize)]
pub struct LockfileRow {
    /// The tool; from the file's name if the file is damaged.
    pub tool_id: String,
    /// Its version.
    pub version: String,
    /// The tier it lies in.
    pub scope: SpaceTier,
    /// The file.
    #[serde(serialize_with = "rye_space::serde_path::path")]
    pub path: PathBuf,
    /// When it was made.
    pub generated_at: Option<String>,
    /// The project whose tool it pins, if it lies in user scope.
    pub project: Option<String>,
    /// How it stands.
    pub state: LockfileStatus,
    /// Why it does not simply hold.
    pub why: Option<String>,
    /// Everything that differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<LockDifference>,
}

/// A lockfile with what it pins.
#[derive(Clone, Debug, Serialize)]
pub struct LockfileDetails {
    /// The lockfile.
    #[serde(flatten)]
    pub row: LockfileRow,
    /// The pinned chain, the tool first.
    pub chain: Vec<LockedElement>,
    /// How many files beside the tool are pinned with it.
    pub files: usize,
    /// How many packages are pinned with it.
    pub packages: usize,
}

/// The answer of a verify.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LockVerifyReport {
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
    pub lockfiles: Vec<LockfileRow>,
}

impl LockVerifyReport {
    /// Whether no tool would be refused because of a lockfile.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        !self.lockfiles.iter().any(|row| row.state.is_failure())
    }
}

/// Which lockfiles to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockListScope {
    /// Those of project and user scope.
    ProjectAndUser,
    /// Those of bundles too.
    All,
}

/// Lists lockfiles, project first, and how each stands.
#[must_use]
pub fn list(engine: &Engine, scope: LockListScope, resolve: ResolveTool<'_>) -> Vec<LockfileRow> {
    scan(engine, scope).iter().map(|scanned| lockfile_row(engine, scanned, resolve)).collect()
}

fn scan(engine: &Engine, scope: LockListScope) -> Vec<ScannedLockfile> {
    let mut dirs: Vec<_> = locations::project_dir(engine).into_iter().collect();
    dirs.push(locations::user_dir(engine));
    if scope == LockListScope::All {
        dirs.extend(locations::system_dirs(engine));
    }
    dirs.iter().flat_map(locations::scan).collect()
}

/// Shows every lockfile of a tool, of whatever version.
///
/// # Errors
/// When it has none.
pub fn show(engine: &Engine, item: &ItemRef, resolve: ResolveTool<'_>) -> Result<Vec<LockfileDetails>> {
    let of_tool = scan_tool(engine, item)?;
    let details = |scanned: &ScannedLockfile| {
        let pinned = scanned.lockfile.as_ref().ok();
        LockfileDetails {
            row: lockfile_row(engine, scanned, resolve),
            chain: pinned.map(|lockfile| lockfile.resolved_chain.clone()).unwrap_or_default(),
            files: pinned.and_then(|lockfile| lockfile.verified_deps.as_ref()).map_or(0, Vec::len),
            packages: pinned.and_then(|lockfile| lockfile.dependencies.as_ref()).map_or(0, Vec::len),
        }
    };
    Ok(of_tool.iter().map(details).collect())
}

/// The lockfiles named after a tool.
fn scan_tool(engine: &Engine, item: &ItemRef) -> Result<Vec<ScannedLockfile>> {
    let prefix = format!("{}@", item.id);
    let mut all = scan(engine, LockListScope::All);
    all.retain(|scanned| scanned.name.starts_with(&prefix));
    if all.is_empty() {
        return Err(Error::new(Code::NoLockfile, format!("{item} has no lockfile")).for_item(item).hint(
            format!("the first successful run creates one; or pin it now: rye lock update {}", item.id),
        ));
    }
    Ok(all)
}

/// Compares lockfiles with what their tools resolve to: those of one tool, or all of project and user scope.
///
/// # Errors
/// When the named tool has none. What doesn't match is in the answer.
pub fn verify(engine: &Engine, item: Option<&ItemRef>, resolve: ResolveTool<'_>) -> Result<LockVerifyReport> {
    let scanned = match item {
        Some(item) => scan_tool(engine, item)?,
        None => scan(engine, LockListScope::ProjectAndUser),
    };
    let lockfiles: Vec<LockfileRow> =
        scanned.iter().map(|scanned| lockfile_row(engine, scanned, resolve)).collect();
    let count = |state: LockfileStatus| lockfiles.iter().filter(|row| row.state == state).count();
    Ok(LockVerifyReport {
        checked: lockfiles.len(),
        ok: count(LockfileStatus::Ok),
        stale: count(LockfileStatus::Stale),
        mismatch: count(LockfileStatus::Mismatch),
        downgrade: count(LockfileStatus::Downgrade),
        corrupt: count(LockfileStatus::Corrupt),
        refused: count(LockfileStatus::Refused),
        gone: count(LockfileStatus::Gone),
        elsewhere: count(LockfileStatus::Elsewhere),
        lockfiles,
    })
}

/// What a look at one lockfile comes to.
struct LockfileCheck {
    state: LockfileStatus,
    why: Option<String>,
    differences: Vec<LockDifference>,
}

impl LockfileCheck {
    fn with_reason(state: LockfileStatus, why: impl Into<String>) -> Self {
        Self { state, why: Some(why.into()), differences: Vec::new() }
    }
}

fn lockfile_row(engine: &Engine, scanned: &ScannedLockfile, resolve: ResolveTool<'_>) -> LockfileRow {
    let (named_id, named_version) = split_name(&scanned.name);
    let clean = |text: &str| rye_item::text::one_line(text);
    match &scanned.lockfile {
        Err(error) => LockfileRow {
            tool_id: clean(named_id),
            version: clean(named_version),
            scope: scanned.tier,
            path: scanned.path.clone(),
            generated_at: None,
            project: None,
            state: LockfileStatus::Corrupt,
            why: Some(error.message.clone()),
            differences: Vec::new(),
        },
        Ok(lockfile) => {
            let check = check_lockfile(engine, scanned, lockfile, resolve);
            LockfileRow {
                tool_id: clean(&lockfile.root.tool_id),
                version: clean(&lockfile.root.version),
                scope: scanned.tier,
                path: scanned.path.clone(),
                generated_at: Some(clean(&lockfile.generated_at)),
                project: lockfile.project.as_deref().map(clean),
                state: check.state,
                why: check.why,
                differences: check.differences,
            }
        }
    }
}

/// `a/b@1.0.0.lock.json` → `a/b`, `1.0.0`.
fn split_name(name: &str) -> (&str, &str) {
    let stem = name.strip_suffix(file_name::LOCKFILE_EXTENSION).unwrap_or(name);
    stem.rsplit_once('@').unwrap_or((stem, ""))
}

fn check_lockfile(
    engine: &Engine,
    scanned: &ScannedLockfile,
    lockfile: &Lockfile,
    resolve: ResolveTool<'_>,
) -> LockfileCheck {
    let root = &lockfile.root;
    let Ok(id) = ItemId::new(root.tool_id.as_str()) else {
        return LockfileCheck::with_reason(LockfileStatus::Corrupt, "it pins an invalid tool id");
    };
    let (named_id, named_version) = split_name(&scanned.name);
    let is_marked =
        named_version.strip_prefix(root.version.as_str()).is_some_and(|rest| rest.starts_with('+'));
    if named_id != id.as_str() || !(named_version == root.version || is_marked) {
        return LockfileCheck::with_reason(
            LockfileStatus::Corrupt,
            "it pins a different tool or version than its name",
        );
    }
    let item = ItemRef::new(ItemType::Tool, id);
    if let Some(project) = lockfile
        .project
        .as_ref()
        .filter(|project| Some(*project) != locations::current_project(engine).as_ref())
    {
        return check_other_project(engine, &item, Path::new(project));
    }
    let resolved = match resolve(&item) {
        Ok(resolved) => resolved,
        Err(error) if error.code == Code::NotFound && error.item.as_deref() == Some(item.id.as_str()) => {
            // Another program's lockfile of a project's tool does not say which project.
            let is_of_some_project = scanned.tier == SpaceTier::User
                && lockfile.project.is_none()
                && locations::pinned_space(lockfile) == "project";
            let state = if is_of_some_project { LockfileStatus::Elsewhere } else { LockfileStatus::Gone };
            return LockfileCheck::with_reason(state, "the tool is not here");
        }
        Err(error) => return LockfileCheck::with_reason(LockfileStatus::Refused, error.message),
    };
    let is_in_the_way = locations::effective_lockfiles(engine, &resolved)
        .is_ok_and(|found| found.other_versions.iter().any(|other| other.path == scanned.path));
    if is_in_the_way {
        let difference = locations::other_versions::difference(lockfile, &resolved);
        let why = Some(difference.to_string());
        let state = match difference.kind {
            DifferenceKind::Downgraded { .. } => LockfileStatus::Downgrade,
            _ => LockfileStatus::Mismatch,
        };
        return LockfileCheck { state, why, differences: vec![difference] };
    }
    if resolved.root.version != root.version {
        let now = rye_item::text::one_line(&resolved.root.version);
        let is_hidden = locations::is_shadowed_pin(lockfile, &resolved);
        let state = if is_hidden { LockfileStatus::Elsewhere } else { LockfileStatus::Gone };
        return LockfileCheck::with_reason(
            state,
            format!("the tool in {} space has version {now}", resolved.space()),
        );
    }
    // Where another lockfile is damaged, it is unknown which of them is used: this one is assumed to be.
    let is_effective = locations::effective_lockfiles(engine, &resolved)
        .map_or(true, |found| found.iter().any(|found| found.path == scanned.path));
    if !is_effective
        && scanned.tier == SpaceTier::System
        && locations::pinned_space(lockfile) == resolved.space()
    {
        return LockfileCheck::with_reason(
            LockfileStatus::Elsewhere,
            "its bundle's signed manifest does not list it",
        );
    }
    if !is_effective {
        return LockfileCheck::with_reason(
            LockfileStatus::Elsewhere,
            format!("here the tool comes from {} space", resolved.space()),
        );
    }
    match lockfiles::compare_lockfile(engine, lockfile, &resolved) {
        LockComparison::Matches => {
            LockfileCheck { state: LockfileStatus::Ok, why: None, differences: Vec::new() }
        }
        LockComparison::Stale { why } => LockfileCheck::with_reason(LockfileStatus::Stale, why),
        LockComparison::Differs(differences) => LockfileCheck {
            state: LockfileStatus::Mismatch,
            why: differences.first().map(ToString::to_string),
            differences,
        },
    }
}

/// A lockfile of a tool of another project: only whether both are still there.
fn check_other_project(engine: &Engine, item: &ItemRef, project: &Path) -> LockfileCheck {
    let project_text = rye_item::text::one_line(&project.display().to_string());
    if !project.is_dir() {
        return LockfileCheck::with_reason(
            LockfileStatus::Gone,
            format!("its project {project_text} is gone; pins do not follow a moved project"),
        );
    }
    let folder = project.join(rye_space::AI_FOLDER).join(ItemType::Tool.folder());
    let extensions = &engine.workspace.spaces.extractors().for_type(ItemType::Tool).extensions;
    let is_there = |extension: &String| folder.join(format!("{}{extension}", item.id)).exists();
    if extensions.iter().any(is_there) {
        LockfileCheck::with_reason(LockfileStatus::Elsewhere, format!("it is for the project {project_text}"))
    } else {
        LockfileCheck::with_reason(LockfileStatus::Gone, format!("the tool is gone from {project_text}"))
    }
}
