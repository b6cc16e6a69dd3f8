//! What a store holds that several machines share, beside threads: transcripts, submissions, the workers that take them.

use lillux_hash::Digest;
use rye_thread::thread_id::ThreadId;

use crate::{Approval, ApprovalDecision, Forgery, ThreadRow};

/// How much of a transcript is read at once.
pub const MAX_TRANSCRIPT_READ_BYTES: usize = 4 << 20;

/// Lines of a transcript, kept with the commit that they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranscriptPart {
    /// Where they begin: how many bytes stand before them. What the store has behind that is replaced.
    pub from: u64,
    /// The lines.
    pub bytes: Vec<u8>,
}

/// What lets workers run a thread: a signed description of it, kept as a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The thread that was submitted: the root of its tree.
    pub root: ThreadId,
    /// The description.
    pub digest: Digest,
}

/// The kind of question as which a person's request to resume a thread is kept: it is answered from the beginning.
pub const RESUME_KIND: &str = "resume";

/// The name of the request to resume a thread that stopped with so many records in its journal: once it has continued, the
/// request says nothing any more.
#[must_use]
pub fn resume_request_id(thread: &ThreadId, records: u64) -> String {
    format!("{RESUME_KIND}-{thread}-{records}")
}

/// The question that a request to resume a thread answers.
#[must_use]
pub fn resume_question(thread: &ThreadId, records: u64, decision: &ApprovalDecision) -> Approval {
    Approval {
        id: resume_request_id(thread, records),
        thread: thread.clone(),
        kind: RESUME_KIND.to_owned(),
        prompt: "resume the thread".to_owned(),
        reason: "a person asks workers to resume it".to_owned(),
        at_ms: decision.at_ms,
        detail: serde_json::Value::Null,
    }
}

/// A thread that a worker may take.
#[derive(Clone, Debug, PartialEq)]
pub struct SubmittedThread {
    /// Its row.
    pub row: ThreadRow,
    /// The submission of its tree.
    pub submission: Submission,
    /// The fingerprint of the key that last signed its row, in a store that signs rows.
    pub signer: Option<String>,
    /// How often it was claimed or given up, which only grows: each time that it waits has a number of its own.
    pub epoch: u64,
    /// Why its row is refused, if a revoked key signed it: such a thread is not run.
    pub forgery: Option<Forgery>,
}

/// A worker, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerRecord {
    /// Its name, which no other worker at work has.
    pub name: String,
    /// What it offers, as JSON.
    pub body: String,
    /// When it last said so, by this process's clock.
    pub seen_ms: u64,
    /// The fingerprint of the key that signed it; none when that key is not trusted.
    pub signer: Option<String>,
}
