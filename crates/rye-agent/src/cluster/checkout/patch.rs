//! What a tree changed in its project files: each file as it was and as it is, so that what is shown is what is applied.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use lillux::Digest;
use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use similar::TextDiff;

use super::content::{FileBytes, FileContent};
use super::refused;
use super::rules::{Exclusion, exclusion, holds_private_key};
use super::walk::list_files;
use crate::store::{StoreHandle, ThreadRow};
use crate::thread_id::ThreadId;

/// The format that is written and read.
const FORMAT: u32 = 1;
/// The most that the files of a patch may hold together, before and after.
const MAX_PATCH_BYTES: usize = 32 << 20;
/// After this a diff is coarser, but still true.
const DIFF_TIMEOUT: Duration = Duration::from_secs(1);

/// What a tree changed in its project files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckoutPatch {
    format: u32,
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
    /// Its digest; none when the patch could not be made, for which `error` gives the reason.
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
}

impl PatchSummary {
    /// What a thread's row says, if the thread had a checkout and stopped.
    #[must_use]
    pub fn of_row(row: &ThreadRow) -> Option<Self> {
        let patch = row.result.as_ref()?.get(RESULT_FIELD)?;
        serde_json::from_value(patch.clone()).ok()
    }

    pub(super) fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Where the result of a thread says it.
pub(crate) const RESULT_FIELD: &str = "patch";

/// The patch of a thread that had a checkout.
///
/// # Errors
/// When there is none, or it cannot be read.
pub fn read_patch(store: &StoreHandle, id: &ThreadId) -> Result<CheckoutPatch> {
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
    let digest = summary.digest.ok_or_else(|| {
        refused(format!("{id} has no patch: {}", one_line(&summary.error.unwrap_or_default())))
            .hint(format!("see the thread: rye thread show {id}"))
    })?;
    let digest: Digest = digest.parse().map_err(|_| {
        refused(format!("{id} has an invalid patch digest")).hint("check the store: rye doctor --store")
    })?;
    CheckoutPatch::from_bytes(&store.blob(&digest)?)
}

impl CheckoutPatch {
    /// What differs in `project` from `base`: new files that the project's own `.gitignore` names are not in it.
    ///
    /// # Errors
    /// When there is too much, or a folder cannot be read.
    pub(super) fn collect(thread: &ThreadId, source: String, base: &Path, project: &Path) -> Result<Self> {
        let known = list_files(base, None)?.files;
        let listing = list_files(project, Some(base))?;
        let known_set: BTreeSet<&str> = known.iter().map(String::as_str).collect();
        let new = listing.files.iter().filter(|path| !known_set.contains(path.as_str()));
        let paths: BTreeSet<&str> = known.iter().chain(new).map(String::as_str).collect();
        let (mut changes, mut left_out, mut total) = (Vec::new(), Vec::new(), 0_usize);
        for (path, reason) in listing.left_out {
            let is_same = || {
                FileBytes::read(base, &path).is_ok_and(|before| {
                    before.is_some() && FileBytes::read(project, &path).is_ok_and(|after| after == before)
                })
            };
            if !known_set.contains(path.as_str()) && !is_same() {
                left_out.push((path, reason.to_owned()));
            }
        }
        for path in paths {
            let before = FileBytes::read(base, path)?;
            let after = match FileBytes::read(project, path) {
                Ok(after) => after,
                // A link, or something else, in the place of a file.
                Err(_) => {
                    left_out.push((path.to_owned(), "is not a regular file, or too large".to_owned()));
                    continue;
                }
            };
            if before == after {
                continue;
            }
            if after.as_ref().is_some_and(|after| holds_private_key(&after.bytes)) {
                left_out.push((path.to_owned(), Exclusion::Secret.reason().to_owned()));
                continue;
            }
            let size = |file: &Option<FileBytes>| file.as_ref().map_or(0, |file| file.bytes.len());
            total = total.saturating_add(size(&before)).saturating_add(size(&after));
            if total > MAX_PATCH_BYTES {
                let message =
                    format!("the changed files are larger than {} MiB in total", MAX_PATCH_BYTES >> 20);
                return Err(Error::new(Code::TooLarge, message).hint("add build output to .gitignore"));
            }
            let (before, after) = (before.map(FileContent::from), after.map(FileContent::from));
            changes.push(FileChange { path: path.to_owned(), before, after });
        }
        Ok(Self { format: FORMAT, thread: thread.clone(), source, is_incomplete: false, changes, left_out })
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        Ok(serde_json::to_vec(self).map_err(std::io::Error::other)?)
    }

    /// Reads a patch: paths that are not a project's own are refused.
    ///
    /// # Errors
    /// When it is none, or a path is not one that a patch may change.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let patch: Self = serde_json::from_slice(bytes).map_err(|error| {
            refused(format!("the patch cannot be read: {}", one_line(&error.to_string())))
        })?;
        if patch.format != FORMAT {
            return Err(refused(format!("unsupported patch format {}", patch.format)).hint("upgrade rye"));
        }
        let mut seen = BTreeSet::new();
        for change in &patch.changes {
            let shown = one_line(&change.path);
            if let Some(reason) = exclusion(&change.path) {
                return Err(refused(format!("the patch changes `{shown}`, which {}", reason.reason())));
            }
            if !seen.insert(change.path.to_lowercase()) {
                return Err(refused(format!("the patch changes `{shown}` twice")));
            }
        }
        Ok(patch)
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
            let diff = TextDiff::configure().timeout(DIFF_TIMEOUT).diff_lines(old, new);
            for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
                let _ = write!(out, "{hunk}");
            }
        }
        _ => _ = writeln!(out, "Binary files {from} and {to} differ"),
    }
}

/// The text of a file, if it is text as diffs have it.
fn as_text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}
