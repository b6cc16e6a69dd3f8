//! `lock check`: whether every tool of the project is pinned and matches, for CI.

use std::path::PathBuf;

use rye_exec::lock::LockDifference;
use rye_item::space::SpaceTier;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::ItemFile;
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::locations;
use crate::lockfiles::{self, LockState, ResolveTool};
use crate::missing_executor;

/// Kinds of tools that others run on: they are pinned with those.
const NOT_RUNNABLE_TYPES: [&str; 2] = ["runtime", "primitive"];

/// How a tool is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolLockState {
    /// A lockfile pins it, and all of them match.
    Ok,
    /// No lockfile pins it.
    Unpinned,
    /// A bundle was upgraded since: `--locked` refuses it.
    Stale,
    /// Something else than what was pinned would run.
    Mismatch,
    /// A lockfile is damaged.
    Corrupt,
    /// The tool cannot run: an element is missing, unsigned or not valid.
    Refused,
}

impl ToolLockState {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unpinned => "unpinned",
            Self::Stale => "stale",
            Self::Mismatch => "mismatch",
            Self::Corrupt => "corrupt",
            Self::Refused => "refused",
        }
    }
}

/// One tool of the project.
#[derive(Clone, Debug, Serialize)]
pub struct ToolLockCheck {
    /// The tool.
    pub tool_id: String,
    /// Its version, if it resolves.
    pub version: Option<String>,
    /// How it is pinned.
    pub state: ToolLockState,
    /// The lockfiles that were compared.
    pub lockfiles: Vec<String>,
    /// Why it is not ok.
    pub why: Option<String>,
    /// Everything that differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<LockDifference>,
    /// Where the lockfile that differs lies.
    #[serde(skip)]
    differing: Option<SpaceTier>,
}

/// The answer of a check.
#[derive(Clone, Debug, Serialize)]
pub struct LockCheckReport {
    /// How many tools were checked.
    pub checked: usize,
    /// How many are pinned and match.
    pub ok: usize,
    /// How many have no lockfile.
    pub unpinned: usize,
    /// How many have only a stale one.
    pub stale: usize,
    /// How many differ from what is pinned.
    pub mismatch: usize,
    /// How many have a damaged lockfile.
    pub corrupt: usize,
    /// How many cannot run.
    pub refused: usize,
    /// All of them, by id.
    pub tools: Vec<ToolLockCheck>,
}

impl LockCheckReport {
    fn new(tools: Vec<ToolLockCheck>) -> Self {
        let count = |state: ToolLockState| tools.iter().filter(|tool| tool.state == state).count();
        Self {
            checked: tools.len(),
            ok: count(ToolLockState::Ok),
            unpinned: count(ToolLockState::Unpinned),
            stale: count(ToolLockState::Stale),
            mismatch: count(ToolLockState::Mismatch),
            corrupt: count(ToolLockState::Corrupt),
            refused: count(ToolLockState::Refused),
            tools,
        }
    }

    /// The failure, unless every tool is pinned and matches.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let bad = self.checked - self.ok;
        if bad == 0 {
            return None;
        }
        let state = if bad == 1 { "is not pinned as it is now" } else { "are not pinned as they are now" };
        let message = format!("{bad} of {} {state}", rye_item::text::counted(self.checked, "tool"));
        let error = Error::new(Code::NotPinned, message);
        let error =
            if self.refused > 0 { error.hint("see why a tool is refused: rye why tool ID") } else { error };
        let is_own_pin = |tool: &&ToolLockCheck| tool.differing == Some(SpaceTier::User);
        let own_pins = self.tools.iter().filter(is_own_pin).count();
        let error = match own_pins {
            0 => error,
            _ => error.hint("if you agree with what changed, pin it for yourself: rye lock update ID"),
        };
        Some(match bad - own_pins {
            0 => error,
            _ => error.hint(
                "if the tools are correct: rye lock update --all --scope project, then commit lockfiles/",
            ),
        })
    }
}

/// Checks every tool of the project as `--locked` would. With `scope`, only lockfiles there are compared.
///
/// # Errors
/// When not inside a project. What is not pinned is in the answer.
pub fn check(engine: &Engine, scope: Option<SpaceTier>, resolve: ResolveTool<'_>) -> Result<LockCheckReport> {
    if locations::project_dir(engine).is_none() {
        return Err(no_project_error());
    }
    let tools = runnable_tools(engine)?;
    Ok(LockCheckReport::new(tools.into_iter().map(|id| check_tool(engine, id, scope, resolve)).collect()))
}

pub(super) fn no_project_error() -> Error {
    Error::new(Code::PathNotFound, "not inside a project")
        .hint("run it where `.ai` is, or name the project with --project")
}

/// The tools of project space that can be run, by id: what names an executor and is nothing that others run on. Files
/// without an executor are modules, which are pinned with the tools that import them.
pub(super) fn runnable_tools(engine: &Engine) -> Result<Vec<ItemId>> {
    let spaces = &engine.workspace.spaces;
    // A file that cannot be read may be a tool: checking it says why it is refused.
    let can_run = |item: &ItemRef| {
        spaces.locate(item, Some(SpaceTier::Project)).map_or(true, |located| is_runnable(&located))
    };
    let walk = spaces.scan_strict(&Space::Project, &[ItemType::Tool]);
    let entries = walk.map_err(|folder| Error::unreadable_folder(&folder))?.entries;
    let mut ids: Vec<ItemId> =
        entries.into_iter().map(|entry| entry.item).filter(can_run).map(|item| item.id).collect();
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// Files of the project that are written to be run and name no executor, and the line that each needs.
pub(crate) fn tools_without_executor(engine: &Engine) -> Vec<(ItemId, String)> {
    let spaces = &engine.workspace.spaces;
    let entries = spaces.scan(&Space::Project, &[ItemType::Tool]).entries;
    let mut found: Vec<(ItemId, String)> = entries
        .into_iter()
        .filter_map(|entry| {
            let located = spaces.locate(&entry.item, Some(SpaceTier::Project)).ok()?;
            Some((entry.item.id, missing_executor::missing_line(&located)?))
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Whether a tool can be run: it names an executor, and is nothing that others run on.
pub(crate) fn is_runnable(located: &ItemFile) -> bool {
    let fields = located.fields();
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    text("executor_id").is_some() && !text("tool_type").is_some_and(|kind| NOT_RUNNABLE_TYPES.contains(&kind))
}

fn check_tool(
    engine: &Engine,
    id: ItemId,
    scope: Option<SpaceTier>,
    resolve: ResolveTool<'_>,
) -> ToolLockCheck {
    let tool_id = id.to_string();
    let item = ItemRef::new(ItemType::Tool, id);
    let with_state = |state: ToolLockState, why: Option<String>| ToolLockCheck {
        tool_id: tool_id.clone(),
        version: None,
        state,
        lockfiles: Vec::new(),
        why,
        differences: Vec::new(),
        differing: None,
    };
    let resolved = match resolve(&item) {
        Ok(resolved) => resolved,
        Err(error) => return with_state(ToolLockState::Refused, Some(error.message)),
    };
    let version = Some(rye_item::text::one_line(&resolved.root.version));
    if resolved.uses_dev_mode {
        let why = "it runs in development mode only: an element is not signed".to_owned();
        return ToolLockCheck { version, ..with_state(ToolLockState::Refused, Some(why)) };
    }
    let path_text = |path: &PathBuf| path.display().to_string();
    let checked = match lockfiles::check_in(engine, &resolved, scope) {
        Err(error) => with_state(ToolLockState::Corrupt, Some(error.message)),
        Ok(LockState::None) => {
            let why = match scope {
                Some(scope) => format!("no lockfile of {scope} scope pins it"),
                None => "no lockfile pins it".to_owned(),
            };
            with_state(ToolLockState::Unpinned, Some(why))
        }
        Ok(LockState::Stale { path, why }) => {
            ToolLockCheck { lockfiles: vec![path_text(&path)], ..with_state(ToolLockState::Stale, Some(why)) }
        }
        Ok(LockState::Mismatch(mismatch)) => ToolLockCheck {
            lockfiles: vec![path_text(&mismatch.path)],
            differences: mismatch.differences.clone(),
            differing: Some(mismatch.scope),
            ..with_state(ToolLockState::Mismatch, mismatch.differences.first().map(ToString::to_string))
        },
        Ok(LockState::Matched { lockfiles }) => ToolLockCheck {
            lockfiles: lockfiles.iter().map(path_text).collect(),
            ..with_state(ToolLockState::Ok, None)
        },
    };
    ToolLockCheck { version, ..checked }
}
