//! Whether the transcript of a thread that is about to be resumed is what its thread wrote, as far as a crash does not explain
//! the difference.
//!
//! Everything in a transcript but lines outside the chain and checkpoints is in the journal before it is in the file, so a
//! crash leaves missing lines, a last line that is not whole, and behind the last signature of a thread that had not stopped
//! lines outside the chain. A line of the chain that the journal does not know was added.

use std::path::Path;

use lillux::{Fingerprint, PublicKey};
use rye_engine::{Code, Error, Result};
use rye_item::text::shell_word;

use crate::status::ThreadStatus;
use crate::store::{StoreHandle, TranscriptHead, fetch_transcript};
use crate::thread_id::ThreadId;
use crate::transcript::{self, TranscriptProblem};

/// Refuses a suspended thread whose journal cannot be read, or whose transcript its thread did not write so: what it asks need not
/// be answered.
///
/// # Errors
/// As [`refuse_changed_transcript`], or when the journal cannot be read.
pub(crate) fn refuse_unresumable(
    store: &StoreHandle,
    folder: &Path,
    id: &ThreadId,
    keys: &dyn Fn(&Fingerprint) -> Option<PublicKey>,
) -> Result<()> {
    let row = store.verified_thread(id)?;
    if row.is_none_or(|row| row.status != ThreadStatus::Suspended) {
        return Ok(());
    }
    store.journal(id)?;
    // Brings the copy of what a shared store keeps up to date.
    fetch_transcript(store, folder, id)?;
    refuse_changed_transcript(store, folder, id, keys).map(drop)
}

/// Refuses a transcript in `folder` that its thread did not write so. Gives the last event that the store knows of.
///
/// # Errors
/// When it was changed; when it cannot be read.
pub(super) fn refuse_changed_transcript(
    store: &StoreHandle,
    folder: &Path,
    id: &ThreadId,
    keys: &dyn Fn(&Fingerprint) -> Option<PublicKey>,
) -> Result<Option<TranscriptHead>> {
    let Some(row) = store.verified_thread(id)? else { return Ok(None) };
    let changed = |line: u64, what: &str| {
        Err(changed_transcript_error(store, folder, id, &format!("line {line}: {what}")))
    };
    let report = transcript::verify(&transcript::path(folder, id), id, row.transcript_head, keys)?;
    if let Some(TranscriptProblem { line, what, .. }) = &report.tampering {
        return changed(*line, what);
    }
    // A thread that stops signs its last line.
    let is_whole = report.is_head_sealed && report.head == row.transcript_head;
    match (row.status, is_whole, report.unsealed_line) {
        (ThreadStatus::Suspended, true, Some(line)) => {
            changed(line, "it was added behind the last signature")
        }
        _ => Ok(row.transcript_head),
    }
}

/// The refusal, with a way to resume by the journal alone.
pub(super) fn changed_transcript_error(
    store: &StoreHandle,
    folder: &Path,
    id: &ThreadId,
    what: &str,
) -> Error {
    let path = transcript::path(folder, id);
    let path = path.to_string_lossy();
    let error = Error::new(Code::TranscriptTampered, format!("the transcript of {id} was changed: {what}"))
        .detail("thread_id", id.as_str())
        .detail("path", path.as_ref())
        .hint(format!("see what does not fit: rye thread verify {id}"));
    // What a store keeps would be fetched from it again.
    if store.keeps_transcripts() {
        return error.hint(format!("end the thread: rye thread cancel {id}"));
    }
    let (from, to) = (shell_word(&path), shell_word(&format!("{path}.changed")));
    error.hint(format!(
        "to resume by the journal, which is intact, move the file away first: mv -n {from} {to}"
    ))
}
