//! One step of a thread, made durable: records, settlements, reservation, cost, status.

use lillux::Digest;
use rye_item::timestamp::iso_timestamp;
use rye_store::{
    BudgetCaps, BudgetRefusal, Claim, CommitOutcome, JournalRecord, MAX_RECORD_BYTES, ReserveRequest,
    StatusChange, ThreadChange, ThreadCommit, ThreadStoreError, next_journal_hash,
};
use rye_thread::status::ThreadStatus;

use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number, to_text};
use crate::ledger::{self, LedgerDraft};
use crate::record::{RECORD_COLUMN_COUNT, ThreadRecord, record_columns};
use crate::writer::{Locks, WriteTx};
use crate::{approvals, claims, rolling, waits};

/// What a commit needs to be locked.
pub(crate) fn locks(commit: &ThreadCommit) -> Locks {
    Locks { threads: vec![commit.thread.clone()], scopes: rolling::scopes(&commit.rolling) }
}

const FIND_TARGET: &str =
    concat!("SELECT ", record_columns!(), ", epoch FROM threads WHERE thread_id = $1");

/// What a commit works on.
struct CommitTarget {
    record: ThreadRecord,
    status: ThreadStatus,
    caps: BudgetCaps,
    draft: Option<LedgerDraft>,
    /// Whether calls of the thread count in budgets of a day or a month.
    has_rolling: bool,
    is_waiting: bool,
    now_ms: i64,
}

async fn load_target(tx: &WriteTx<'_>, commit: &ThreadCommit) -> Result<CommitTarget, DbError> {
    let (db, id) = (tx.reading(), &commit.thread);
    let now_ms = tx.clock.to_database(commit.at_ms);
    let name = id.as_str();
    let settled = commit.settlements.iter().map(|one| one.call);
    let calls: Vec<i64> = settled
        .chain(commit.reservation.map(|one| one.call))
        .map(|call| to_integer(call, "a call's number"))
        .collect::<Result<_, _>>()?;
    let find = async { db.query_opt(FIND_TARGET, &[&name]).await };
    let (row, (draft, has_rolling, is_waiting)) = if calls.is_empty() {
        (find.await?, (None, false, false))
    } else {
        let (row, draft, has_rolling, is_waiting) = futures_util::future::try_join4(
            find,
            LedgerDraft::load(db, id, &calls, now_ms),
            db.query_value::<bool>(rolling::HAS_CALLS, &[&name]),
            db.query_value::<bool>(waits::IS_WAITING, &[&name]),
        )
        .await?;
        (row, (Some(draft), has_rolling, is_waiting))
    };
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    let record = ThreadRecord::from_row(&row, 0)?.check(tx.seal, id)?;
    fence(row.try_get(RECORD_COLUMN_COUNT)?, commit.claim, id)?;
    let (status, caps) = (record.status()?, record.caps()?);
    Ok(CommitTarget { record, status, caps, draft, has_rolling, is_waiting, now_ms })
}

/// Refuses a claim that is not the thread's latest.
pub(crate) fn fence(
    epoch: i64,
    claim: Claim,
    thread: &rye_thread::thread_id::ThreadId,
) -> Result<(), DbError> {
    if to_number(epoch)? == claim.epoch {
        Ok(())
    } else {
        Err(ThreadStoreError::Fenced(thread.clone()).into())
    }
}

impl CommitTarget {
    /// Puts aside what a call may cost, or says who refuses.
    async fn reserve(
        &mut self,
        tx: &WriteTx<'_>,
        commit: &ThreadCommit,
        request: ReserveRequest,
    ) -> Result<Option<BudgetRefusal>, DbError> {
        let Some(draft) = &mut self.draft else { return Ok(None) };
        let mut refusal = draft.refusal(request)?;
        if refusal.is_none() {
            draft.check_new_call(&commit.thread, request)?;
            if !commit.rolling.is_empty() && request.spend.0 > 0 {
                refusal = rolling::reserve(tx.writing(), &commit.thread, request, &commit.rolling).await?;
            }
        }
        if refusal.is_none() {
            draft.reserve(&commit.thread, request)?;
        }
        if refusal.is_some() || self.is_waiting {
            let thread = self.record.thread;
            waits::after_reserve(tx.writing(), thread, request, refusal.as_ref(), self.now_ms).await?;
        }
        Ok(refusal)
    }

    async fn settle(&mut self, tx: &WriteTx<'_>, commit: &ThreadCommit) -> Result<(), DbError> {
        let Some(draft) = &mut self.draft else { return Ok(()) };
        for settlement in &commit.settlements {
            let spend = draft.settle(&commit.thread, settlement, tx.rules)?;
            if self.has_rolling || !commit.rolling.is_empty() {
                let (id, call) = (&commit.thread, settlement.call);
                rolling::settle(tx.writing(), id, call, spend, &commit.rolling).await?;
            }
        }
        Ok(())
    }
}

/// Makes one step durable.
pub(crate) async fn commit(tx: &mut WriteTx<'_>, commit: &ThreadCommit) -> Result<CommitOutcome, DbError> {
    let mut target = load_target(tx, commit).await?;
    let at = iso_timestamp(commit.at_ms);
    let is_ended = target.status.is_terminal();
    if let Some(first) = commit.reservation.filter(|_| commit.needs_reservation && !is_ended)
        && let Some(refusal) = target.reserve(tx, commit, first).await?
    {
        return Ok(CommitOutcome::Refused(refusal));
    }
    let journal = JournalRows::new(&mut target.record, &commit.records)?;
    target.settle(tx, commit).await?;
    let caps = commit.caps.unwrap_or(target.caps);
    if caps != target.caps {
        target.record.max_spend = ledger::spend_column(caps)?;
        target.record.max_tokens = ledger::tokens_column(caps)?;
        if let Some(draft) = &mut target.draft {
            draft.set_caps(caps)?;
        }
        let sql = "UPDATE budget_ledger SET max_spend = $2, max_tokens = $3 WHERE thread = $1";
        let record = &target.record;
        tx.writing().execute(sql, &[&record.thread, &record.max_spend, &record.max_tokens]).await?;
    }
    if let Some(limits) = &commit.limits {
        // For those who look: the journal has them too.
        target.record.limits = serde_json::to_string(limits)
            .map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
    }
    for approval in &commit.approvals {
        approvals::insert(tx, approval).await?;
    }
    let mut outcome = CommitOutcome::Done;
    if is_ended && (commit.status.is_some() || commit.reservation.is_some()) {
        let at = target.record.completed_at.clone().unwrap_or_default();
        outcome = CommitOutcome::Ended { status: target.status, at };
    } else {
        if let Some(change) = &commit.status {
            set_status(tx, &mut target.record, change, &at).await?;
        }
        if let Some(reservation) = commit.reservation.filter(|_| !commit.needs_reservation)
            && let Some(refusal) = target.reserve(tx, commit, reservation).await?
        {
            outcome = CommitOutcome::Refused(refusal);
        }
    }
    update_record(&mut target.record, commit, at.clone())?;
    target.record.seal_next(tx.seal)?;
    let db = tx.writing();
    let save_ledger = async {
        match &target.draft {
            Some(draft) => draft.save(db, &at).await,
            None => Ok(()),
        }
    };
    let (journal, ledger, record) =
        futures_util::future::join3(journal.save(db), save_ledger, target.record.update(db)).await;
    journal?;
    ledger?;
    record?;
    if commit.is_last {
        claims::release(tx, &commit.thread, commit.claim).await?;
    }
    let status = commit.status.as_ref().map(|change| change.to).filter(|_| !is_ended);
    tx.notify(ThreadChange { thread: commit.thread.clone(), status });
    Ok(outcome)
}

/// Entries of a journal, as they are to be written.
pub(crate) struct JournalRows<'a> {
    thread: i64,
    seq: Vec<i64>,
    at_ms: Vec<i64>,
    sequence: Vec<i64>,
    body: Vec<&'a [u8]>,
}

impl<'a> JournalRows<'a> {
    /// The entries behind the head of `record`, which moves to the last of them.
    pub(crate) fn new(record: &mut ThreadRecord, records: &'a [JournalRecord]) -> Result<Self, DbError> {
        let mut rows = Self {
            thread: record.thread,
            seq: Vec::new(),
            at_ms: Vec::new(),
            sequence: Vec::new(),
            body: Vec::new(),
        };
        let hash: [u8; 32] = record
            .head_hash
            .as_slice()
            .try_into()
            .map_err(|_| DbError::damaged("the hash of a journal has another length"))?;
        let mut hash = Digest::from_bytes(hash);
        for entry in records {
            if entry.body.len() > MAX_RECORD_BYTES {
                return Err(ThreadStoreError::TooLarge("an entry of the journal").into());
            }
            record.head_seq =
                record.head_seq.checked_add(1).ok_or(ThreadStoreError::TooLarge("a journal"))?;
            hash = next_journal_hash(&hash, to_number(record.head_seq)?, entry);
            rows.seq.push(record.head_seq);
            rows.at_ms.push(to_integer(entry.at_ms, "a time")?);
            rows.sequence.push(to_integer(entry.sequence, "a transcript")?);
            rows.body.push(&entry.body);
        }
        record.head_hash = hash.as_bytes().to_vec();
        Ok(rows)
    }

    pub(crate) async fn save(&self, db: &Db) -> Result<(), DbError> {
        if self.seq.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO journal (thread, seq, at_ms, sequence, body)
             SELECT $1, * FROM unnest($2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[])";
        let values: [crate::db::SqlValue<'_>; 5] =
            [&self.thread, &self.seq, &self.at_ms, &self.sequence, &self.body];
        db.execute(sql, &values).await?;
        Ok(())
    }
}

/// Sets what a step says of its thread.
fn update_record(record: &mut ThreadRecord, commit: &ThreadCommit, at: String) -> Result<(), DbError> {
    if let Some(cost) = &commit.cost {
        let used = |number: u64| to_integer(number, "what a thread has used");
        record.turns = used(cost.turns)?;
        record.input_tokens = used(cost.input_tokens)?;
        record.output_tokens = used(cost.output_tokens)?;
        record.spend = used(cost.spend.0)?;
        record.elapsed_ms = used(cost.elapsed_ms)?;
    }
    if let Some(transcript) = &commit.transcript_head {
        record.transcript_sequence = Some(to_integer(transcript.sequence, "a transcript")?);
        record.transcript_hash = Some(transcript.hash.as_bytes().to_vec());
    }
    record.updated_at = at;
    Ok(())
}

async fn set_status(
    tx: &WriteTx<'_>,
    record: &mut ThreadRecord,
    change: &StatusChange,
    at: &str,
) -> Result<(), DbError> {
    let is_end = change.to.is_terminal();
    change.to.as_str().clone_into(&mut record.status);
    record.reason = change.reason.map(|reason| reason.as_str().to_owned());
    if let Some(result) = &change.result {
        record.result = Some(result.to_string());
    }
    record.error = change.error.as_deref().map(to_text);
    record.completed_at = is_end.then(|| at.to_owned());
    if is_end || change.to == ThreadStatus::Suspended {
        waits::leave(tx.writing(), record.thread).await?;
    }
    let closed_on = tx.rules.release_on_status.as_ref();
    let is_closed = is_end && closed_on.is_none_or(|words| words.contains(&record.status));
    if is_closed {
        let sql = "UPDATE budget_ledger SET status = $2, updated_at = $3 WHERE thread = $1";
        tx.writing().execute(sql, &[&record.thread, &record.status, &at]).await?;
    }
    Ok(())
}
