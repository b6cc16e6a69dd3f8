//! One thread in a list of many: the values of its columns, written once and shown to all who look.

use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::money::Nanos;
use crate::status::ThreadStatus;
use crate::store::{LedgerRow, ThreadRow};
use crate::thread_id::ThreadId;

/// What the values of a row are, in order. Columns are only added at the end.
pub const ROW_COLUMNS: [&str; 24] = [
    "thread_id",
    "directive",
    "title",
    "status",
    "reason",
    "parent_thread_id",
    "root_thread_id",
    "depth",
    "turns",
    "max_turns",
    "tokens",
    "spend",
    "subtree_spend",
    "max_spend",
    "current_tool",
    "attention",
    "model",
    "started_at",
    "updated_at",
    "ended_at",
    "elapsed_ms",
    "error",
    "is_detached",
    "worker",
];

/// Characters of an error in a row.
const MAX_ERROR_CHARS: usize = 200;
/// Characters of other texts in a row.
const MAX_TEXT_CHARS: usize = 200;

/// A thread of a list.
#[derive(Clone, Debug)]
pub struct LiveRow {
    /// Its row, without what it gave.
    pub row: ThreadRow,
    /// Where it stands, in a word.
    pub status: &'static str,
    /// What it and those below it have used.
    pub ledger: LedgerRow,
    /// The root of its tree.
    pub root: ThreadId,
    /// The call that has not come back, if one is known.
    pub current_tool: Option<String>,
    /// The worker that it is running on, if it is one's.
    pub worker: Option<String>,
    /// Why it needs attention.
    pub attention: Vec<&'static str>,
    /// The values of [`ROW_COLUMNS`] as JSON.
    pub json: String,
}

/// Which threads of a list.
#[derive(Clone, Debug, Default)]
pub struct LiveFilter {
    /// Standing here, in the words of lists; any, when empty.
    pub statuses: Vec<String>,
    /// Running this directive.
    pub directive: Option<String>,
    /// With this in id, directive, title or error, in lower case.
    pub text: Option<String>,
    /// Only roots of trees.
    pub is_root: bool,
    /// Only those that need attention.
    pub needs_attention: bool,
}

impl LiveFilter {
    /// Whether it leaves a thread in.
    #[must_use]
    pub fn matches(&self, live: &LiveRow) -> bool {
        let row = &live.row;
        let has_text = |text: &String| {
            let parts = [row.id.as_str(), &row.directive, &row.title, row.error.as_deref().unwrap_or("")];
            parts.iter().any(|part| part.to_lowercase().contains(text.as_str()))
        };
        (self.statuses.is_empty() || self.statuses.iter().any(|status| status == live.status))
            && self.directive.as_ref().is_none_or(|directive| *directive == row.directive)
            && (!self.is_root || row.parent.is_none())
            && (!self.needs_attention || !live.attention.is_empty())
            && self.text.as_ref().is_none_or(has_text)
    }
}

fn short(text: &str, max: usize) -> &str {
    text.char_indices().nth(max).map_or(text, |(end, _)| &text[..end])
}

impl LiveRow {
    /// A thread as it stands now. Looking for the tool that runs reads its transcript: only done if `wants_tool`.
    pub(super) fn new(
        index: &ThreadIndex,
        mut row: ThreadRow,
        ledger: LedgerRow,
        root: ThreadId,
        has_approval: bool,
        wants_tool: bool,
    ) -> Self {
        row.result = None;
        let status = index.effective_status(&row);
        let mut attention = index.alerts(&row, &ledger, has_approval);
        if row.status == ThreadStatus::Error && !row.is_forged {
            attention.push("failed");
        }
        let current_tool = (wants_tool && status == "running").then(|| index.current_tool(&row)).flatten();
        let worker = index.worker(&row).map(|name| short(name, MAX_TEXT_CHARS).to_owned());
        let mut live =
            Self { row, status, ledger, root, current_tool, worker, attention, json: String::new() };
        live.json = live.to_value(index).to_string();
        live
    }

    fn to_value(&self, index: &ThreadIndex) -> Value {
        let row = &self.row;
        let reason = index.status_reason(row);
        let reason = reason.trim_start_matches(" (").trim_end_matches(')');
        let error = row.error.as_deref().or(row.note.as_deref());
        json!([
            row.id,
            short(&row.directive, MAX_TEXT_CHARS),
            short(&row.title, MAX_TEXT_CHARS),
            self.status,
            (!reason.is_empty()).then_some(reason),
            row.parent,
            self.root,
            row.depth,
            row.cost.turns,
            row.limits.turns,
            row.cost.tokens(),
            row.cost.spend.dollars(),
            self.ledger.subtree_spend.dollars(),
            self.ledger.caps.spend.map(Nanos::dollars),
            self.current_tool,
            self.attention,
            short(&row.model, MAX_TEXT_CHARS),
            row.created_at,
            row.updated_at,
            row.completed_at,
            row.cost.elapsed_ms,
            error.map(|error| short(error, MAX_ERROR_CHARS)),
            row.is_detached,
            self.worker,
        ])
    }
}
