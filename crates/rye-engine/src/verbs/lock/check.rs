//! `lock check`: whether every tool of the project is pinned and matches, for CI.

use std::path::PathBuf;

use rye_exec::lock::Difference;
use rye_item::space::Tier;
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_space::Located;
use serde::Serialize;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::lockfiles::tiers;
use crate::lockfiles::{self, Resolve, State};

/// Kinds of tools that others run on: they are pinned with those.
const NOT_RUN: [&str; 2] = ["runtime", "primitive"];

/// How a tool is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckState {
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

impl CheckState {
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
pub struct CheckedTool {
    /// The tool.
    pub tool_id: String,
    /// Its version, if it resolves.
    pub version: Option<String>,
    /// How it is pinned.
    pub state: CheckState,
    /// The lockfiles that were compared.
    pub lockfiles: Vec<String>,
    /// Why it is not ok.
    pub why: Option<String>,
    /// Everything that differs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
}

/// The answer of a check.
#[derive(Clone, Debug, Serialize)]
pub struct CheckReport {
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
    pub tools: Vec<CheckedTool>,
}

impl CheckReport {
    fn new(tools: Vec<CheckedTool>) -> Self {
        let count = |state: CheckState| tools.iter().filter(|tool| tool.state == state).count();
        Self {
            checked: tools.len(),
            ok: count(CheckState::Ok),
            unpinned: count(CheckState::Unpinned),
            stale: count(CheckState::Stale),
            mismatch: count(CheckState::Mismatch),
            corrupt: count(CheckState::Corrupt),
            refused: count(CheckState::Refused),
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
        Some(
            error.hint(
                "if the tools are right: rye lock update --all --scope project, then commit lockfiles/",
            ),
        )
    }
}

/// Checks every tool of the project as `--locked` would. With `scope`, only lockfiles there make a tool pinned.
///
/// # Errors
/// When there is no project here. What is not pinned is in the answer.
pub fn check(engine: &Engine, scope: Option<Tier>, resolve: Resolve<'_>) -> Result<CheckReport> {
    if tiers::project_shelf(engine).is_none() {
        return Err(no_project());
    }
    let tools = runnable_tools(engine)?;
    Ok(CheckReport::new(tools.into_iter().map(|id| check_tool(engine, id, scope, resolve)).collect()))
}

pub(super) fn no_project() -> Error {
    Error::new(Code::PathNotFound, "there is no project here")
        .hint("run it where `.ai` is, or name the project with --project")
}

/// The tools of project space that can be run, by id: what names an executor and is nothing that others run on. Files
/// without an executor are modules, which are pinned with the tools that import them.
pub(super) fn runnable_tools(engine: &Engine) -> Result<Vec<ItemId>> {
    let spaces = &engine.workspace.spaces;
    // A file that cannot be read may be a tool: checking it says why it is refused.
    let can_run = |item: &ItemRef| {
        spaces.locate(item, Some(Tier::Project)).map_or(true, |located| is_runnable(&located))
    };
    let walk = spaces.walk_whole(&Space::Project, &[ItemType::Tool]);
    let entries = walk.map_err(|folder| Error::unreadable_folder(&folder))?.entries;
    let mut ids: Vec<ItemId> =
        entries.into_iter().map(|entry| entry.item).filter(can_run).map(|item| item.id).collect();
    ids.sort();
    ids.dedup();
    Ok(ids)
}

/// Whether a tool can be run: it names an executor, and is nothing that others run on.
pub(crate) fn is_runnable(located: &Located) -> bool {
    let fields = located.fields();
    let text = |name: &str| fields.get(name).and_then(Value::as_str);
    text("executor_id").is_some() && !text("tool_type").is_some_and(|kind| NOT_RUN.contains(&kind))
}

fn check_tool(engine: &Engine, id: ItemId, scope: Option<Tier>, resolve: Resolve<'_>) -> CheckedTool {
    let tool_id = id.to_string();
    let item = ItemRef::new(ItemType::Tool, id);
    let of = |state: CheckState, why: Option<String>| CheckedTool {
        tool_id: tool_id.clone(),
        version: None,
        state,
        lockfiles: Vec::new(),
        why,
        differences: Vec::new(),
    };
    let resolved = match resolve(&item) {
        Ok(resolved) => resolved,
        Err(error) => return of(CheckState::Refused, Some(error.message)),
    };
    let version = Some(rye_item::text::one_line(&resolved.root.version));
    if resolved.is_forgiven {
        let why = "it runs in development mode only: an element is not signed".to_owned();
        return CheckedTool { version, ..of(CheckState::Refused, Some(why)) };
    }
    let shown = |path: &PathBuf| path.display().to_string();
    let checked = match lockfiles::check(engine, &resolved) {
        Err(error) => of(CheckState::Corrupt, Some(error.message)),
        Ok(State::None) => of(CheckState::Unpinned, Some("no lockfile pins it".to_owned())),
        Ok(State::Stale { path, why }) => {
            CheckedTool { lockfiles: vec![shown(&path)], ..of(CheckState::Stale, Some(why)) }
        }
        Ok(State::Mismatch(mismatch)) => CheckedTool {
            lockfiles: vec![shown(&mismatch.path)],
            differences: mismatch.differences.clone(),
            ..of(CheckState::Mismatch, mismatch.differences.first().map(ToString::to_string))
        },
        Ok(State::Held { lockfiles }) => {
            let is_in_scope = scope.is_none_or(|scope| is_pinned_in(engine, &resolved, scope));
            let (state, why) = match scope {
                Some(scope) if !is_in_scope => {
                    (CheckState::Unpinned, Some(format!("no lockfile of {scope} scope pins it")))
                }
                Some(_) | None => (CheckState::Ok, None),
            };
            CheckedTool { lockfiles: lockfiles.iter().map(shown).collect(), ..of(state, why) }
        }
    };
    CheckedTool { version, ..checked }
}

fn is_pinned_in(engine: &Engine, resolved: &lockfiles::Resolved, scope: Tier) -> bool {
    tiers::found(engine, resolved).is_ok_and(|found| found.iter().any(|found| found.tier == scope))
}
