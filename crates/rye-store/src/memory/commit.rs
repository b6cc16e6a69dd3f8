//! A new thread, and one step of a thread. Each is checked as a whole before anything of it is kept.

use std::collections::BTreeSet;
use std::convert::Infallible;

use rye_item::timestamp::iso_timestamp;
use rye_thread::cost::Cost;
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;

use super::ledger::{self, LedgerDraft};
use super::{MemoryTables, MemoryThread, cluster};
use crate::{
    Approval, ApprovalRecord, BudgetCaps, Claim, CommitOutcome, CreateOutcome, JournalRecord, LedgerRules,
    MAX_RECORD_BYTES, NewThread, StatusChange, ThreadChange, ThreadCommit, ThreadRow, ThreadStoreError,
};

/// Makes a thread, or says which cap is reached.
pub(super) fn create(
    tables: &mut MemoryTables,
    new: &NewThread,
) -> Result<(CreateOutcome, Option<ThreadChange>), ThreadStoreError> {
    let parent = new.parent.as_ref().map(|id| tables.number(id)).transpose()?;
    if let (Some(parent), Some(id)) = (parent.and_then(|number| tables.threads.get(&number)), &new.parent) {
        if parent.row.completed_at.is_some() {
            return Err(ThreadStoreError::ParentEnded { parent: id.clone() });
        }
        if let Some(refused) = check_caps(tables, new, parent) {
            return Ok((refused, None));
        }
    }
    let is_queued = new.caps.queues_children && parent.is_some_and(|parent| is_full(tables, new, parent));
    if tables.rows.contains_key(&new.id) {
        return Err(ThreadStoreError::Exists(new.id.clone()));
    }
    for digest in &new.blobs {
        if !tables.blobs.contains_key(digest.as_bytes()) {
            return Err(ThreadStoreError::NoBlob(digest.to_hex()));
        }
    }
    check_records(&new.records)?;
    let ledger = ledger::new_row(&new.id, BudgetCaps { spend: new.max_spend, tokens: new.max_tokens })?;
    let before = new.continuation_of.as_ref().map(|id| tables.get(id)).transpose()?;
    let chain_root_id =
        before.map(|before| before.row.chain_root_id.clone().unwrap_or_else(|| before.row.id.clone()));
    let submission = match (&new.parent, &new.submission, before) {
        (Some(_), _, _) => None,
        (None, Some(digest), _) => Some((new.id.clone(), *digest)),
        // One that continues another belongs where that one does.
        (None, None, before) => {
            before.and_then(|before| tables.threads.get(&before.root)?.submission.clone())
        }
    };
    let number = tables.threads.keys().next_back().copied().unwrap_or(0) + 1;
    let (mut depth, mut root, mut is_detached) = (0, number, new.is_detached);
    if let Some(parent) = parent.and_then(|number| tables.threads.get_mut(&number)) {
        parent.row.spawn_count += 1;
        (depth, root) = (parent.row.depth + 1, parent.root);
        is_detached |= parent.row.is_detached;
    }
    if let Some(before) = &new.continuation_of {
        tables.get_mut(before)?.row.continuation_thread_id = Some(new.id.clone());
    }
    let thread = MemoryThread {
        row: new_row(new, depth, is_detached, chain_root_id),
        parent,
        root,
        epoch: 1,
        journal: new.records.clone(),
        ledger,
        calls: Default::default(),
        blobs: new.blobs.iter().map(|digest| *digest.as_bytes()).collect(),
        transcript: Vec::new(),
        submission,
    };
    tables.threads.insert(number, thread);
    tables.rows.insert(new.id.clone(), number);
    if is_queued {
        tables.queue_child(number, new.at_ms);
    }
    let change = ThreadChange { thread: new.id.clone(), status: Some(ThreadStatus::Created) };
    Ok((CreateOutcome::Created { claim: Claim { epoch: 1 }, depth, is_queued }, Some(change)))
}

fn new_row(new: &NewThread, depth: u64, is_detached: bool, chain_root_id: Option<ThreadId>) -> ThreadRow {
    let at = iso_timestamp(new.at_ms);
    ThreadRow {
        id: new.id.clone(),
        directive: new.directive.clone(),
        title: new.title.clone(),
        parent: new.parent.clone(),
        depth,
        status: ThreadStatus::Created,
        reason: None,
        result: None,
        error: None,
        created_at: at.clone(),
        updated_at: at,
        completed_at: None,
        cost: Cost::default(),
        limits: new.limits,
        spawn_count: 0,
        model: new.model.clone(),
        provider: new.provider.clone(),
        capabilities: new.capabilities.to_hex(),
        continuation_of: new.continuation_of.clone(),
        continuation_thread_id: None,
        chain_root_id,
        owner: new.owner.clone(),
        heartbeat_ms: new.at_ms,
        is_detached,
        is_submitted: false,
        note: None,
        waiting: None,
        records: new.records.len() as u64,
        transcript_head: None,
        is_forged: false,
    }
}

fn check_caps(tables: &MemoryTables, new: &NewThread, parent: &MemoryThread) -> Option<CreateOutcome> {
    let number = tables.number(&parent.row.id).ok();
    let children = || {
        let queued = number.map_or(0, |number| tables.count_queued(number, None));
        Ok::<_, Infallible>((tables.count_children_at_work(number), queued))
    };
    let tree = || Ok(tables.count_placed(&|thread| thread.root == parent.root));
    let Ok(refused) = new.caps.first_refused(parent.row.spawn_count, parent.row.depth, children, tree);
    refused
}

/// Whether the parent has as many children at work, or waiting for a place, as may be at work.
fn is_full(tables: &MemoryTables, new: &NewThread, parent: i64) -> bool {
    let placed = tables.count_children_at_work(Some(parent));
    let queued = tables.count_queued(parent, None);
    new.caps.concurrent_children.is_some_and(|max| placed + queued >= max)
}

fn check_records(records: &[JournalRecord]) -> Result<(), ThreadStoreError> {
    match records.iter().any(|record| record.body.len() > MAX_RECORD_BYTES) {
        true => Err(ThreadStoreError::TooLarge("an entry of the journal")),
        false => Ok(()),
    }
}

/// Refuses a claim that is not the thread's latest.
pub(super) fn fence(thread: &MemoryThread, claim: Claim, id: &ThreadId) -> Result<(), ThreadStoreError> {
    if thread.epoch == claim.epoch { Ok(()) } else { Err(ThreadStoreError::Fenced(id.clone())) }
}

/// Gives a thread up.
pub(super) fn release(thread: &mut MemoryThread) {
    thread.epoch += 1;
    thread.row.owner = None;
}

/// Refuses questions that were asked before, or of threads that are not there.
pub(super) fn check_approvals(tables: &MemoryTables, approvals: &[Approval]) -> Result<(), ThreadStoreError> {
    let mut names = BTreeSet::new();
    for approval in approvals {
        tables.number(&approval.thread)?;
        if tables.approvals.contains_key(&approval.id) || !names.insert(&approval.id) {
            let what = format!("question `{}` was asked before", rye_item::text::one_line(&approval.id));
            return Err(ThreadStoreError::Conflict { thread: approval.thread.clone(), what });
        }
    }
    Ok(())
}

/// Keeps a question.
pub(super) fn insert_approval(tables: &mut MemoryTables, approval: Approval) {
    tables.approvals.insert(approval.id.clone(), ApprovalRecord { approval, answer: None });
}

/// Makes one step durable.
pub(super) fn commit(
    tables: &mut MemoryTables,
    rules: &LedgerRules,
    commit: ThreadCommit,
) -> Result<(CommitOutcome, Option<ThreadChange>), ThreadStoreError> {
    let number = tables.number(&commit.thread)?;
    let thread = tables.get(&commit.thread)?;
    fence(thread, commit.claim, &commit.thread)?;
    check_records(&commit.records)?;
    let mut draft = LedgerDraft::load(tables, number, &commit.rolling);
    let is_ended = thread.row.status.is_terminal();
    let mut refusal = None;
    if let Some(reservation) = commit.reservation.filter(|_| commit.needs_reservation && !is_ended) {
        refusal = draft.reserve(tables, number, reservation, commit.at_ms)?;
        if let Some(refusal) = refusal {
            tables.after_reserve(number, reservation, Some(&refusal), commit.at_ms);
            return Ok((CommitOutcome::Refused(refusal), None));
        }
    }
    for settlement in &commit.settlements {
        draft.settle(thread, settlement, rules)?;
    }
    if let Some(caps) = commit.caps {
        draft.set_caps(caps);
    }
    check_approvals(tables, &commit.approvals)?;
    let mut outcome = CommitOutcome::Done;
    if is_ended && (commit.status.is_some() || commit.reservation.is_some()) {
        let at = thread.row.completed_at.clone().unwrap_or_default();
        outcome = CommitOutcome::Ended { status: thread.row.status, at };
    } else {
        if let Some(reservation) = commit.reservation.filter(|_| !commit.needs_reservation) {
            refusal = draft.reserve(tables, number, reservation, commit.at_ms)?;
            outcome = refusal.clone().map_or(CommitOutcome::Done, CommitOutcome::Refused);
        }
        if let Some(change) = commit.status.as_ref().filter(|change| change.to.is_terminal()) {
            draft.close(change.to.as_str(), rules);
        }
    }
    // From here on nothing fails.
    draft.save(tables);
    let stops = |change: &StatusChange| change.to.is_terminal() || change.to == ThreadStatus::Suspended;
    if commit.status.as_ref().is_some_and(stops) {
        tables.waits.remove(&number);
    }
    if let Some(reservation) = commit.reservation.filter(|_| !is_ended) {
        tables.after_reserve(number, reservation, refusal.as_ref(), commit.at_ms);
    }
    let status = commit.status.as_ref().map(|change| change.to).filter(|_| !is_ended);
    let change = ThreadChange { thread: commit.thread.clone(), status };
    for approval in &commit.approvals {
        insert_approval(tables, approval.clone());
    }
    if let Some(thread) = tables.threads.get_mut(&number) {
        apply(thread, commit, is_ended);
    }
    Ok((outcome, Some(change)))
}

/// Brings a thread's row and journal to where a commit leaves them.
fn apply(thread: &mut MemoryThread, commit: ThreadCommit, is_ended: bool) {
    let at = iso_timestamp(commit.at_ms);
    thread.journal.extend(commit.records);
    if let Some(part) = commit.transcript.as_ref().filter(|_| !is_ended) {
        cluster::append_transcript(thread, part);
    }
    let row = &mut thread.row;
    row.records = thread.journal.len() as u64;
    if let Some(cost) = commit.cost {
        row.cost = cost;
    }
    if let Some(limits) = commit.limits {
        row.limits = limits;
    }
    if let Some(head) = commit.transcript_head {
        row.transcript_head = Some(head);
    }
    if let Some(change) = commit.status.filter(|_| !is_ended) {
        row.status = change.to;
        row.reason = change.reason;
        row.result = change.result.or_else(|| row.result.take());
        row.error = change.error;
        row.completed_at = change.to.is_terminal().then(|| at.clone());
    }
    row.updated_at = at;
    if commit.is_last {
        release(thread);
    }
}
