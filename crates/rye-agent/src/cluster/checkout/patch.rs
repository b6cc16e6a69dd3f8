//! What a tree changed in its project files: each file as it was and as it is, so that what is shown is what is applied.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use lillux::Digest;
use rye_engine::{Error, Result};
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use similar::TextDiff;

use super::content::{FileBytes, FileContent};
use super::left_out::MAX_LEFT_OUT;
use super::refused;
use super::rules::{CheckoutRules, Exclusion, exclusion, fold_path};
use crate::driver::{BoxFuture, StopRecorder};
use crate::redact::Redactor;
use crate::status::ThreadStatus;
use crate::store::{StoreHandle, ThreadRow};
use crate::thread_id::ThreadId;

/// The format that is written and read.
pub(super) const FORMAT: u32 = 1;
/// After this a diff is coarser, but still true.
const DIFF_TIMEOUT: Duration = Duration::from_secs(1);

/// What a tree changed in its project files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckoutPatch {
    pub(super) format: u32,
    /// The thread.
    pub thread: ThreadId,
    /// What it is against: a snapshot, or a commit.
    pub source: String,
    /// Whether a worker died on the way: what was changed before is missing.
    #[serde(rename = "incomplete")]
    pub is_incomplete: bool,
    pub(super) changes: Vec<FileChange>,
    /// What was changed and is not in it, and why.
    pub left_out: Vec<(String, String)>,
    /// How many more files are not in it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub left_out_more: u64,
    /// Whether the thread has run since: what it changed then is missing.
    #[serde(skip)]
    pub is_outdated: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// A file that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileChange {
    pub(super) path: String,
    pub(super) before: Option<FileContent>,
    pub(super) after: Option<FileContent>,
}

/// What the row of a thread says of its patch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchSummary {
    /// The SHA-256 of its bytes; none when the patch could not be made, for which `error` gives the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Files that were changed.
    pub files: usize,
    /// Whether what was changed before a worker died is missing.
    #[serde(rename = "incomplete")]
    pub is_incomplete: bool,
    /// Why no patch could be made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether the thread has run since.
    #[serde(skip)]
    pub is_outdated: bool,
}

impl PatchSummary {
    /// What a thread's row says, if the thread had a checkout and stopped.
    #[must_use]
    pub fn of_row(row: &ThreadRow) -> Option<Self> {
        let patch = row.result.as_ref()?.get(RESULT_FIELD)?;
        let summary: Self = serde_json::from_value(patch.clone()).ok()?;
        Some(Self { is_outdated: is_at_work(row), ..summary })
    }

    /// No patch, and why.
    pub(super) fn failed(reason: &str) -> Self {
        Self {
            digest: None,
            files: 0,
            is_incomplete: true,
            error: Some(one_line(reason)),
            is_outdated: false,
        }
    }

    /// Whether these are the bytes and the patch that it tells of.
    fn is_of(&self, bytes: &[u8], patch: &CheckoutPatch) -> bool {
        self.digest.as_deref() == Some(Digest::of(bytes).to_hex().as_str())
            && (self.files, self.is_incomplete) == (patch.changes.len(), patch.is_incomplete)
    }

    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Where the result of a thread says it.
pub(crate) const RESULT_FIELD: &str = "patch";

/// Whether a process works on a thread, or died at it: what its row says is of the last stop.
fn is_at_work(row: &ThreadRow) -> bool {
    row.status == ThreadStatus::Running || (row.owner.is_some() && !row.status.is_terminal())
}

/// Keeps what a row says of a patch when something ends the thread that does not have its files.
pub(crate) struct KeptPatch(Value);

impl KeptPatch {
    /// What is to be kept of a row, if it says anything.
    pub(crate) fn of_row(row: &ThreadRow) -> Option<Self> {
        let summary = PatchSummary::of_row(row)?;
        let is_incomplete = summary.is_incomplete || row.status == ThreadStatus::Running;
        let mut kept = row.result.as_ref()?.get(RESULT_FIELD)?.clone();
        if is_incomplete && let Some(fields) = kept.as_object_mut() {
            fields.insert("incomplete".to_owned(), Value::Bool(true));
        }
        Some(Self(kept))
    }

    /// As a result that says nothing else.
    pub(crate) fn into_result(self) -> Value {
        Value::Object(std::iter::once((RESULT_FIELD.to_owned(), self.0)).collect())
    }
}

impl StopRecorder for KeptPatch {
    fn record<'a>(
        &'a self,
        _thread: &ThreadId,
        _at_ms: u64,
        _redactor: &Arc<Redactor>,
    ) -> BoxFuture<'a, (&'static str, Value)> {
        Box::pin(std::future::ready((RESULT_FIELD, self.0.clone())))
    }
}

/// The patch of a thread that had a checkout, as far as the rules of the reader allow its changes.
///
/// # Errors
/// When there is none, it cannot be read, or is not the one that the thread's row tells of.
pub fn read_patch(store: &StoreHandle, id: &ThreadId, rules: &CheckoutRules) -> Result<CheckoutPatch> {
    let row = store.verified_thread(id)?;
    let row = row.ok_or_else(|| Error::from(crate::store::ThreadStoreError::NoThread(id.clone())))?;
    let summary = PatchSummary::of_row(&row).ok_or_else(|| {
        let message = format!("{id} has no patch");
        let hint = match row.status.is_terminal() {
            true => {
                "submit it with project files: rye run DIRECTIVE --on NAME --checkout snapshot".to_owned()
            }
            false => format!("the patch is made when the thread stops; watch it: rye thread tail {id}"),
        };
        refused(message).hint(hint)
    })?;
    let digest = summary.digest.as_deref().ok_or_else(|| {
        let reason = summary.error.as_deref().unwrap_or_default();
        refused(format!("{id} has no patch: {}", one_line(reason)))
            .hint(format!("see the thread: rye thread show {id}"))
    })?;
    let digest: Digest = digest.parse().map_err(|_| {
        refused(format!("{id} has an invalid patch digest")).hint("check the store: rye doctor --store")
    })?;
    let patch = summary.read(&store.blob(&digest)?, id, rules)?;
    Ok(CheckoutPatch { is_outdated: summary.is_outdated, ..patch })
}

impl PatchSummary {
    /// Reads the patch that it tells of.
    pub(super) fn read(&self, bytes: &[u8], id: &ThreadId, rules: &CheckoutRules) -> Result<CheckoutPatch> {
        let patch = CheckoutPatch::parse(bytes)?;
        // One that was kept when its thread was killed says more than the patch itself.
        let recorded = Self { is_incomplete: patch.is_incomplete, ..self.clone() };
        if !recorded.is_of(bytes, &patch)
            || patch.thread != *id
            || (patch.is_incomplete && !self.is_incomplete)
        {
            return Err(refused(format!("the patch of {id} is not the one that was recorded"))
                .hint("check the store: rye doctor --store"));
        }
        let patch = CheckoutPatch { is_incomplete: self.is_incomplete, ..patch };
        patch.with_rules(rules)
    }
}

impl CheckoutPatch {
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(self).map_err(std::io::Error::other)?)
    }

    fn parse(bytes: &[u8]) -> Result<Self> {
        let patch: Self = serde_json::from_slice(bytes).map_err(|error| {
            refused(format!("the patch cannot be read: {}", one_line(&error.to_string())))
        })?;
        if patch.format != FORMAT {
            return Err(refused(format!("unsupported patch format {}", patch.format)).hint("upgrade rye"));
        }
        Ok(patch)
    }

    /// Checks a patch: one with paths that are not a project's own is refused, and what the reader's settings do not let tools
    /// change is left out.
    fn with_rules(mut self, rules: &CheckoutRules) -> Result<Self> {
        let mut written = BTreeSet::new();
        let mut seen = BTreeSet::new();
        for change in &self.changes {
            let shown = one_line(&change.path);
            if let Some(reason) = exclusion(&change.path) {
                return Err(refused(format!("the patch changes `{shown}`, which {}", reason.reason())));
            }
            let folded = fold_path(&change.path);
            if !seen.insert(folded.clone()) {
                return Err(refused(format!("the patch changes `{shown}` twice")));
            }
            if change.after.is_some() {
                written.insert(folded);
            }
        }
        let is_both = |path: &&String| path.match_indices('/').any(|(at, _)| written.contains(&path[..at]));
        if let Some(path) = written.iter().find(is_both) {
            return Err(refused(format!("the patch makes a folder of `{}` a file", one_line(path))));
        }
        let (kept, left_out): (Vec<_>, Vec<_>) =
            self.changes.into_iter().partition(|change| rules.change_exclusion(&change.path).is_none());
        self.changes = kept;
        let reason = |path: &str| rules.change_exclusion(path).map_or("", Exclusion::reason).to_owned();
        self.left_out.extend(left_out.into_iter().map(|change| (change.path.clone(), reason(&change.path))));
        self.bound_left_out();
        self.check_changes(rules, None)?;
        Ok(self)
    }

    /// Adds what an earlier patch left out, unless this one has it, or leaves it out too.
    pub(super) fn add_left_out(&mut self, earlier: &[(String, String)]) {
        let known: BTreeSet<String> = self.left_out.iter().map(|(path, _)| path.clone()).collect();
        let changed: BTreeSet<&str> = self.changes.iter().map(|change| change.path.as_str()).collect();
        let is_new = |path: &str| !known.contains(path) && !changed.contains(path);
        self.left_out.extend(earlier.iter().filter(|(path, _)| is_new(path)).cloned());
        self.bound_left_out();
    }

    fn bound_left_out(&mut self) {
        let surplus = self.left_out.len().saturating_sub(MAX_LEFT_OUT);
        self.left_out.truncate(MAX_LEFT_OUT);
        self.left_out_more = self.left_out_more.saturating_add(surplus as u64);
    }

    /// Reads a patch without what a row tells of it.
    #[cfg(test)]
    pub(super) fn from_bytes(bytes: &[u8], rules: &CheckoutRules) -> Result<Self> {
        Self::parse(bytes)?.with_rules(rules)
    }

    /// How many files it changes.
    #[must_use]
    pub fn file_count(&self) -> usize {
        self.changes.len()
    }

    /// The changed files: path, and `added`, `changed` or `removed`.
    pub fn files(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.changes.iter().map(|change| {
            let word = match (&change.before, &change.after) {
                (None, _) => "added",
                (Some(_), Some(_)) => "changed",
                (Some(_), None) => "removed",
            };
            (change.path.as_str(), word)
        })
    }

    /// The patch as `git apply` reads it; of files that are not text it only says that they differ.
    ///
    /// # Errors
    /// When a file of it cannot be read.
    pub fn to_diff(&self) -> Result<String> {
        let mut out = String::new();
        for change in &self.changes {
            let file = |content: &Option<FileContent>| content.as_ref().map(FileContent::to_file).transpose();
            push_diff(&mut out, &change.path, file(&change.before)?.as_ref(), file(&change.after)?.as_ref());
        }
        Ok(out)
    }
}

fn push_diff(out: &mut String, path: &str, before: Option<&FileBytes>, after: Option<&FileBytes>) {
    let mode = |file: &FileBytes| if file.is_executable { "100755" } else { "100644" };
    // Writing to a text does not fail.
    let _ = writeln!(out, "diff --git a/{path} b/{path}");
    match (before, after) {
        (None, Some(after)) => _ = writeln!(out, "new file mode {}", mode(after)),
        (Some(before), None) => _ = writeln!(out, "deleted file mode {}", mode(before)),
        (Some(before), Some(after)) if before.is_executable != after.is_executable => {
            let _ = writeln!(out, "old mode {}\nnew mode {}", mode(before), mode(after));
        }
        (Some(_), Some(_)) | (None, None) => {}
    }
    let (old, new) = (before.map_or(&[][..], |file| &file.bytes), after.map_or(&[][..], |file| &file.bytes));
    if old == new {
        return;
    }
    let from = if before.is_some() { format!("a/{path}") } else { "/dev/null".to_owned() };
    let to = if after.is_some() { format!("b/{path}") } else { "/dev/null".to_owned() };
    match (as_text(old), as_text(new)) {
        (Some(old), Some(new)) => {
            let _ = writeln!(out, "--- {from}\n+++ {to}");
            // Lines as git has them: `similar` would also end one at a carriage return.
            let (old, new): (Vec<&str>, Vec<&str>) =
                (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
            let diff =
                TextDiff::configure().timeout(DIFF_TIMEOUT).newline_terminated(true).diff_slices(&old, &new);
            for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
                let _ = write!(out, "{hunk}");
            }
        }
        _ => _ = writeln!(out, "Binary files {from} and {to} differ"),
    }
}

/// The text of a file, if it is text as diffs have it.
fn as_text(bytes: &[u8]) -> Option<&str> {
    // `similar` takes a carriage return at the end for a whole line.
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0') && !text.ends_with('\r'))
}
