//! The rows of trees of threads: how each stands, what it costs, what it does, and why to look at it.

use rye_engine::Result;
use serde_json::{Value, json};

use super::text::truncate;
use super::thread_index::ThreadIndex;
use crate::status::ThreadStatus;
use crate::store::{Approval, LedgerRow, ThreadFilter, ThreadRow};
use crate::transcript::{self, TranscriptPosition};

/// How much of a transcript's end is read to see what runs.
const TAIL_BYTES: u64 = 64 << 10;
/// Characters of a tool's name that are shown.
const MAX_TOOL_CHARS: usize = 40;

/// One thread of a tree.
#[derive(Clone, Debug)]
pub struct TreeRow {
    /// Its row.
    pub row: ThreadRow,
    /// Where it stands, in a word.
    pub status: &'static str,
    /// Why, in brackets; empty where nothing is to be said.
    pub reason: String,
    /// What it and those below it have used.
    pub ledger: LedgerRow,
    /// The call that has not come back, if there is one.
    pub current_tool: Option<String>,
    /// Why it needs attention.
    pub attention: Vec<&'static str>,
    /// Where it was forked, in words.
    pub fork_label: Option<String>,
    /// What it asks.
    pub questions: Vec<Approval>,
    /// The same as JSON, one of several.
    common: Value,
}

impl ThreadIndex {
    /// The threads of a tree, or of the newest `max_trees`, parents before children.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn load_trees(&self, root: Option<&ThreadRow>, max_trees: u64) -> Result<Vec<ThreadRow>> {
        let roots = match root {
            Some(root) => vec![root.clone()],
            None => self.store.threads(&ThreadFilter {
                is_root: true,
                limit: Some(max_trees),
                ..ThreadFilter::default()
            })?,
        };
        let mut rows = Vec::new();
        for root in roots {
            rows.extend(self.store.subtree(&root.id)?);
        }
        Ok(rows)
    }

    /// Whether a thread continues only when a person says so.
    #[must_use]
    pub fn is_idle(&self, row: &ThreadRow) -> bool {
        row.status == ThreadStatus::Suspended || self.is_interrupted(row)
    }

    /// The call of a thread that has not come back, if there is one.
    pub(super) fn current_tool(&self, row: &ThreadRow) -> Option<String> {
        let path = self.transcript_path(&row.id);
        let length = std::fs::metadata(&path).ok()?.len();
        let from =
            TranscriptPosition { bytes: length.saturating_sub(TAIL_BYTES), ..TranscriptPosition::default() };
        let events = transcript::read(&path, from, usize::MAX).ok()?.events;
        let text = |event: &transcript::TranscriptEvent, key: &str| {
            event.payload.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let of = |event_type: &'static str| events.iter().filter(move |event| event.event_type == event_type);
        let done: Vec<String> = of("tool_call_result").map(|event| text(event, "call_id")).collect();
        let running = of("tool_call_start").rfind(|event| !done.contains(&text(event, "call_id")))?;
        Some(truncate(&text(running, "tool"), MAX_TOOL_CHARS))
    }
}

/// What is shown of these threads.
///
/// # Errors
/// When the store cannot be read.
pub fn tree_rows(index: &ThreadIndex, rows: &[ThreadRow]) -> Result<Vec<TreeRow>> {
    let approvals = index.store.open_approvals(None)?.approvals;
    let view = |row: &ThreadRow| {
        let questions: Vec<Approval> =
            approvals.iter().filter(|question| question.thread == row.id).cloned().collect();
        let ledger = index.store.ledger(&row.id)?;
        Ok(TreeRow {
            status: index.effective_status(row),
            reason: index.status_reason(row),
            current_tool: index.current_tool(row),
            attention: index.alerts(row, &ledger, !questions.is_empty()),
            fork_label: index.fork_label(row)?,
            common: index.to_value(row)?,
            row: row.clone(),
            questions,
            ledger,
        })
    };
    rows.iter().map(view).collect()
}

impl TreeRow {
    /// Whether a process is at work on it.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.status == "running"
    }

    /// As JSON.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut value = self.common.clone();
        value["title"] = json!(self.row.title);
        value["depth"] = json!(self.row.depth);
        value["limits"] = self.row.limits.to_value();
        value["current_tool"] = json!(self.current_tool.as_ref().filter(|_| self.is_running()));
        value["attention"] = json!(self.attention);
        value
    }

    /// What makes it worth telling of again. That time has passed does not.
    #[must_use]
    pub fn change_key(&self) -> Value {
        json!([
            self.status,
            self.reason,
            self.row.cost.turns,
            self.row.cost.spend,
            self.current_tool,
            !self.questions.is_empty()
        ])
    }
}
