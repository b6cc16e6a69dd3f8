//! Transcripts, submissions and workers, as a store that several machines share has them.

use rye_thread::status::{SuspendReason, ThreadStatus};
use rye_thread::thread_id::ThreadId;

use super::{MemoryTables, MemoryThread, queries};
use crate::{
    ApprovalDecision, ApprovalRecord, ClaimPolicy, MAX_TRANSCRIPT_READ_BYTES, Owner, OwnerProbe, Submission,
    SubmittedThread, ThreadRow, ThreadStoreError, TranscriptPart, WorkerRecord, resume_question,
    resume_request_id,
};

pub(super) fn transcript(thread: &MemoryThread, from: u64) -> Vec<u8> {
    let from = usize::try_from(from).unwrap_or(usize::MAX);
    let rest = thread.transcript.get(from..).unwrap_or_default();
    rest[..rest.len().min(MAX_TRANSCRIPT_READ_BYTES)].to_vec()
}

pub(super) fn append_transcript(thread: &mut MemoryThread, part: &TranscriptPart) {
    thread.transcript.truncate(usize::try_from(part.from).unwrap_or(usize::MAX));
    thread.transcript.extend_from_slice(&part.bytes);
}

pub(super) fn submission(tables: &MemoryTables, thread: &MemoryThread) -> Option<Submission> {
    let root = tables.threads.get(&thread.root)?;
    root.submission.clone().map(|(root, digest)| Submission { root, digest })
}

pub(super) fn submitted(
    tables: &MemoryTables,
    observer: &Owner,
    policy: ClaimPolicy,
    probe: &dyn OwnerProbe,
) -> Vec<SubmittedThread> {
    let answered = queries::answered_threads(tables);
    let is_requested = |row: &ThreadRow| {
        let asked = tables.approvals.values().filter(|record| record.approval.thread == row.id);
        tables.approvals.contains_key(&resume_request_id(&row.id, row.records))
            && row.status == ThreadStatus::Suspended
            && asked.into_iter().all(|record| record.answer.is_some())
    };
    let mut found = Vec::new();
    for thread in tables.threads.values().filter(|thread| thread.row.completed_at.is_none()) {
        let row = tables.shown_row(thread);
        let is_free =
            row.owner.as_ref().is_none_or(|owner| policy.can_take(owner, observer, row.heartbeat_ms, probe));
        let is_due = row.status.is_at_work()
            || (row.reason.is_some_and(SuspendReason::is_answerable) && answered.contains(&row.id))
            || is_requested(&row);
        if let Some(submission) = submission(tables, thread).filter(|_| is_free && is_due) {
            found.push(SubmittedThread { row, submission, signer: None, epoch: thread.epoch, forgery: None });
        }
    }
    found
}

pub(super) fn request_resume(
    tables: &mut MemoryTables,
    id: &ThreadId,
    decision: &ApprovalDecision,
) -> Result<(), ThreadStoreError> {
    let thread = tables.get(id)?;
    if thread.row.status != ThreadStatus::Suspended || thread.row.owner.is_some() {
        let what = "it is not suspended".to_owned();
        return Err(ThreadStoreError::Conflict { thread: id.clone(), what });
    }
    let approval = resume_question(id, thread.row.records, decision);
    let record = ApprovalRecord { approval, answer: Some(decision.clone()) };
    tables.approvals.insert(record.approval.id.clone(), record);
    Ok(())
}

pub(super) fn put_worker(tables: &mut MemoryTables, name: &str, body: &str, at_ms: u64) {
    tables.workers.remove(name);
    if !body.is_empty() {
        let (name, body) = (name.to_owned(), body.to_owned());
        let record = WorkerRecord { name: name.clone(), body, seen_ms: at_ms, signer: Some(String::new()) };
        tables.workers.insert(name, record);
    }
}
