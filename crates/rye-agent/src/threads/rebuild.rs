//! Files that a crash or a full disk kept from being written: any command that reads them has them written again, from the
//! journal.

use std::path::Path;
use std::sync::Arc;

use lillux::file::{self, Lock};
use rye_engine::{Code, Error, Result};
use serde_json::{Value, json};

use crate::driver;
use crate::journal::JournalHeader;
use crate::spec::{ThreadSpec, ThreadTemplate};
use crate::status::ThreadStatus;
use crate::store::StoreHandle;
use crate::thread_id::ThreadId;
use crate::transcript::{self, TranscriptSigner, TranscriptStatus};

/// How much of `state.json` is read.
const MAX_STATE_BYTES: u64 = 16 << 20;

/// Brings the transcript and `state.json` of a thread that is not at work up to its journal; whether lines were
/// missing. A transcript that was changed is left as it is, so that it can be looked at.
///
/// # Errors
/// When the journal does not verify, or the files cannot be read or written.
pub fn rebuild_files(
    store: &StoreHandle,
    folder: &Path,
    id: &ThreadId,
    signer: &TranscriptSigner,
    now_ms: u64,
) -> Result<bool> {
    if find_gap(store, folder, id, signer)?.is_none() {
        return Ok(false);
    }
    let dir = file::create_folders_beneath(folder, Path::new(id.as_str()), true)?;
    let _lock = Lock::acquire_dir(&dir)?;
    // Another command may have done it meanwhile.
    let Some(gap) = find_gap(store, folder, id, signer)? else { return Ok(false) };
    let damaged = |message: String| Error::new(Code::StoreDamaged, message).detail("thread_id", id.as_str());
    let mut records = store.journal(id)?;
    if records.is_empty() {
        return Ok(false);
    }
    let header = JournalHeader::parse(&records.remove(0).body).map_err(|error| damaged(error.to_string()))?;
    let digest = header.template.parse().map_err(|_| damaged("its journal names no template".to_owned()))?;
    let template: ThreadTemplate = serde_json::from_slice(&store.blob(&digest)?)
        .map_err(|error| damaged(format!("its frozen configuration cannot be read: {error}")))?;
    let spec = Arc::new(ThreadSpec { instance: header.own, template: Arc::new(template) });
    let expected = store.thread(id)?.and_then(|row| row.transcript_head);
    let signer = (gap == FileGap::Transcript).then_some(signer);
    let is_written = driver::rebuild_files(spec, &records, folder, expected, now_ms, signer)?;
    Ok(is_written && gap == FileGap::Transcript)
}

/// What the files of a thread lack.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileGap {
    /// Lines of the transcript, or its last checkpoint.
    Transcript,
    /// `state.json` is missing or says something else than the registry.
    State,
}

/// What is missing of the files of a thread that is not at work.
fn find_gap(
    store: &StoreHandle,
    folder: &Path,
    id: &ThreadId,
    signer: &TranscriptSigner,
) -> Result<Option<FileGap>> {
    let is_stopped = |status: ThreadStatus| status.is_terminal() || status == ThreadStatus::Suspended;
    let Some(row) = store.thread(id)?.filter(|row| is_stopped(row.status) && !row.is_forged) else {
        return Ok(None);
    };
    let own = signer.public();
    let keys = |fingerprint: &lillux::Fingerprint| (own.fingerprint() == *fingerprint).then(|| own.clone());
    let path = transcript::path(folder, id);
    let report = transcript::verify(&path, id, row.transcript_head, &keys)?;
    let is_whole = match report.status {
        TranscriptStatus::Tampered => return Ok(None),
        TranscriptStatus::Valid => true,
        TranscriptStatus::Truncated => false,
        // A checkpoint of another key is as good: whether that key counts is for `verify` to say. Lines behind the last one
        // were not left by a crash, and stay.
        TranscriptStatus::UnsignedTail | TranscriptStatus::Unsigned => report.is_head_sealed,
    };
    if !is_whole {
        return Ok(Some(FileGap::Transcript));
    }
    let state = file::read_bounded(&folder.join(id.as_str()).join("state.json"), MAX_STATE_BYTES);
    let state = state.ok().and_then(|(bytes, _)| serde_json::from_slice::<Value>(&bytes).ok());
    let is_current = state.is_some_and(|state| state["status"] == json!(row.status));
    Ok((!is_current).then_some(FileGap::State))
}
