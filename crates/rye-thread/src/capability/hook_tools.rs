//! Which calls of the tools of hooks change the ledger, and so are for hooks of the user's and the system's configuration.

use rye_item::ItemId;
use serde_json::Value;

use super::{HOOK_TOOLS_PREFIX, HookOrigin};
use crate::action::Action;

/// Why a hook of a directive or a project adds nothing to the ledger.
pub const LEDGER_REFUSAL: &str =
    "Permission denied: only hooks of the user's or the system's configuration change the ledger";

/// Which operations of a tool change nothing.
enum HarmlessOperations {
    /// All.
    All,
    /// These; `None` is a call that names no operation.
    Only(&'static [Option<&'static str>]),
}

/// The tools of hooks, and which of their operations leave the ledger as it is. Whatever is not listed may change it.
const HARMLESS: [(&str, HarmlessOperations); 8] = [
    ("budget_ops", HarmlessOperations::Only(&[Some("check_remaining")])),
    ("cancel_checker", HarmlessOperations::All),
    ("classifier", HarmlessOperations::All),
    ("control", HarmlessOperations::All),
    ("cost_tracker", HarmlessOperations::Only(&[None, Some("report")])),
    ("emitter", HarmlessOperations::All),
    ("limit_checker", HarmlessOperations::All),
    ("state_persister", HarmlessOperations::All),
];

/// The path of an item below the tools of hooks, in whatever case it is written: file systems that fold case exist. Empty
/// for their folder.
/// To refuse a call, this is the predicate; [`hook_tool_path`] is what the machine itself acts on.
pub(super) fn hook_tool_name(action: &Action) -> Option<String> {
    let id = action.item_id.as_deref().and_then(|id| ItemId::new(id.to_ascii_lowercase()).ok());
    let id = id.filter(|id| id.is_within(HOOK_TOOLS_PREFIX))?;
    let name = id.as_str().strip_prefix(HOOK_TOOLS_PREFIX).unwrap_or_default();
    Some(name.strip_prefix('/').unwrap_or(name).to_owned())
}

/// The path of an item below the tools of hooks, with or without `tool:` before it. Only the spelling of the shipped items
/// counts: the machine trusts what these answer.
pub(crate) fn hook_tool_path(item_id: &str) -> Option<&str> {
    let id = item_id.strip_prefix("tool:").unwrap_or(item_id);
    id.strip_prefix(HOOK_TOOLS_PREFIX)?.strip_prefix('/')
}

/// Whether a call of a tool of hooks could add to the ledger or free what it holds.
pub(super) fn may_change_ledger(action: &Action, revision: u32) -> bool {
    let Some(name) = hook_tool_name(action) else { return false };
    let operation = action.params.get("operation").filter(|operation| !operation.is_null());
    // Threads of older releases are replayed as they ran.
    if revision < 6 {
        return name.rsplit('/').next() == Some("budget_ops")
            && operation.and_then(Value::as_str) != Some("check_remaining");
    }
    let listed = HARMLESS.iter().find(|(listed, _)| *listed == name);
    match listed.map(|(_, operations)| operations) {
        None => true,
        Some(HarmlessOperations::All) => false,
        Some(HarmlessOperations::Only(known)) => match operation.map(Value::as_str) {
            None => !known.contains(&None),
            Some(None) => true,
            Some(word) => !known.contains(&word),
        },
    }
}

impl HookOrigin {
    /// Whether its hooks may add to the ledger.
    #[must_use]
    pub fn changes_ledger(self) -> bool {
        match self {
            Self::Directive | Self::Project => false,
            Self::User | Self::System => true,
        }
    }
}
