//! One step of a thread, made durable: records, settlements, reservation, cost, status.

use std::collections::{BTreeMap, BTreeSet};

use lillux::Digest;
use rye_item::timestamp::iso_timestamp;
use rye_store::{
    BudgetCaps, BudgetRefusal, Claim, CommitOutcome, JournalRecord, MAX_RECORD_BYTES, ReserveRequest,
    StatusChange, ThreadChange, ThreadCommit, ThreadStoreError, next_journal_hash,
};
use rye_thread::status::ThreadStatus;

use crate::clock::DatabaseClock;
use crate::cluster::TranscriptRows;
use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number, to_text};
use crate::ledger::{self, LedgerCache, LedgerDraft};
use crate::record::{RECORD_COLUMN_COUNT, ThreadRecord, forged_error, record_columns};
use crate::seal::Sealer;
use crate::writer::{Locks, WriteTx};
use crate::{approvals, claims, cluster, rolling, waits};

/// What a commit needs to be locked.
pub(crate) fn locks(commit: &ThreadCommit) -> Locks {
    Locks { threads: vec![commit.thread.clone()], scopes: rolling::scopes(&commit.rolling) }
}

const FIND_TARGETS: &str =
    concat!("SELECT ", record_columns!(), ", epoch FROM threads WHERE thread_id = ANY($1)");

/// Threads of these of which calls count in budgets of a day or a month.
const FIND_ROLLING: &str = "SELECT DISTINCT thread_id FROM rolling_calls WHERE thread_id = ANY($1)";

/// Whether a thread of these trees waits for money.
const HAS_WAITS: &str = "SELECT EXISTS (SELECT 1 FROM waits JOIN threads USING (thread) WHERE kind = 'budget'
    AND root IN (SELECT root FROM threads WHERE thread_id = ANY($1)))";

/// A thread as the commits of a transaction have it.
struct CachedThread {
    record: ThreadRecord,
    epoch: i64,
    /// Whether its seal was checked.
    is_checked: bool,
    is_changed: bool,
}

/// What a run of commits works on: read together, and written together.
pub(crate) struct CommitCache {
    threads: BTreeMap<String, CachedThread>,
    ledger: LedgerCache,
    journal: JournalRows,
    transcripts: TranscriptRows,
    /// Threads of which calls count in budgets of a day or a month.
    rolling: BTreeSet<String>,
    /// Whether a thread of these trees waits for money: then each commit is a run of its own, as its turn counts.
    pub(crate) has_waits: bool,
}

/// The calls that a commit settles or makes.
fn calls(commit: &ThreadCommit) -> Result<Vec<i64>, DbError> {
    let settled = commit.settlements.iter().map(|one| one.call);
    let all = settled.chain(commit.reservation.map(|one| one.call));
    all.map(|call| to_integer(call, "a call's number")).collect()
}

impl CommitCache {
    /// Reads what these commits work on. With [`CommitCache::has_waits`], it is for the first of them only.
    pub(crate) async fn load(
        db: &Db,
        clock: &DatabaseClock,
        sealer: &Sealer,
        commits: &[&ThreadCommit],
    ) -> Result<Self, DbError> {
        let names: BTreeSet<&str> = commits.iter().map(|commit| commit.thread.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let mut wanted = Vec::new();
        for commit in commits {
            // A number that does not fit is refused where the commit is made.
            wanted.extend(calls(commit).unwrap_or_default().into_iter().map(|call| (&commit.thread, call)));
        }
        let (rows, rolling, has_waits, ledger) = futures_util::future::try_join4(
            db.query(FIND_TARGETS, &[&names]),
            db.query(FIND_ROLLING, &[&names]),
            db.query_value::<bool>(HAS_WAITS, &[&names]),
            LedgerCache::load(db, sealer, &wanted),
        )
        .await?;
        let mut threads = BTreeMap::new();
        for row in rows {
            let record = ThreadRecord::from_row(&row, 0)?;
            let epoch = row.try_get(RECORD_COLUMN_COUNT)?;
            let name = record.thread_id.clone();
            threads.insert(name, CachedThread { record, epoch, is_checked: false, is_changed: false });
        }
        let rolling = rolling.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
        let (journal, transcripts) = Default::default();
        let mut cache = Self { threads, ledger, journal, transcripts, rolling, has_waits };
        if has_waits && let Some(first) = commits.first() {
            cache.ledger.load_ahead(db, &first.thread, clock.to_database(first.at_ms)).await?;
        }
        Ok(cache)
    }

    /// Writes what the commits did.
    pub(crate) async fn save(&mut self, db: &Db, seal: &Sealer) -> Result<(), DbError> {
        let changed = self.threads.values_mut().filter(|thread| thread.is_changed);
        let mut records = Vec::new();
        for thread in changed {
            thread.record.seal_next(seal)?;
            records.push(&thread.record);
        }
        futures_util::future::try_join4(
            self.journal.save(db),
            self.transcripts.save(db),
            self.ledger.save(db),
            ThreadRecord::update_all(&records, db),
        )
        .await?;
        Ok(())
    }
}

/// What a commit works on, apart from the others until it is known to hold.
struct CommitTarget {
    record: ThreadRecord,
    status: ThreadStatus,
    caps: BudgetCaps,
    draft: Option<LedgerDraft>,
    /// Whether calls of the thread count in budgets of a day or a month.
    has_rolling: bool,
    has_waits: bool,
    now_ms: i64,
}

fn load_target(
    tx: &WriteTx<'_>,
    cache: &mut CommitCache,
    commit: &ThreadCommit,
) -> Result<CommitTarget, DbError> {
    let id = &commit.thread;
    let calls = calls(commit)?;
    let thread = cache.threads.get_mut(id.as_str()).ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    if !thread.is_checked {
        if let Some(forgery) = thread.record.forgery(tx.seal) {
            return Err(forged_error(id, forgery));
        }
        thread.is_checked = true;
    }
    fence(thread.epoch, commit.claim, id)?;
    let record = thread.record.clone();
    let draft = (!calls.is_empty()).then(|| cache.ledger.draft(record.thread, &calls)).transpose()?;
    let (status, caps) = (record.status()?, record.caps()?);
    Ok(CommitTarget {
        record,
        status,
        caps,
        draft,
        has_rolling: cache.rolling.contains(id.as_str()),
        has_waits: cache.has_waits,
        now_ms: tx.clock.to_database(commit.at_ms),
    })
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
    /// Reserves what a call may cost, or says who refuses.
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
        let waits = refusal.as_ref().is_some_and(|refusal| request.can_wait && refusal.is_only_reserved());
        if waits || self.has_waits {
            self.has_waits = true;
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

/// Makes one step durable, with the others of its run.
pub(crate) async fn commit(
    tx: &mut WriteTx<'_>,
    cache: &mut CommitCache,
    commit: &ThreadCommit,
) -> Result<CommitOutcome, DbError> {
    let mut target = load_target(tx, cache, commit)?;
    let at = iso_timestamp(commit.at_ms);
    let is_ended = target.status.is_terminal();
    if let Some(first) = commit.reservation.filter(|_| commit.needs_reservation && !is_ended)
        && let Some(refusal) = target.reserve(tx, commit, first).await?
    {
        cache.has_waits |= target.has_waits;
        return Ok(CommitOutcome::Refused(refusal));
    }
    cluster::check_part(commit)?;
    let journal = JournalRows::new(&mut target.record, &commit.records)?;
    target.settle(tx, commit).await?;
    let caps = commit.caps.unwrap_or(target.caps);
    if caps != target.caps {
        target.record.max_spend = ledger::spend_column(caps)?;
        target.record.max_tokens = ledger::tokens_column(caps)?;
        match &mut target.draft {
            Some(draft) => draft.set_caps(caps)?,
            None => cache.ledger.set_caps(target.record.thread, caps)?,
        }
        let sql = "UPDATE budget_ledger SET max_spend = $2, max_tokens = $3 WHERE thread = $1";
        let record = &target.record;
        tx.writing().execute(sql, &[&record.thread, &record.max_spend, &record.max_tokens]).await?;
    }
    if let Some(limits) = &commit.limits {
        // For those who look: the journal has them too.
        target.record.limits =
            serde_json::to_string(limits).map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
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
    cache.has_waits |= target.has_waits;
    tx.writing();
    if let Some(draft) = target.draft.take() {
        cache.ledger.merge(draft, &at)?;
    }
    cache.journal.append(journal);
    if let Some(part) = commit.transcript.as_ref().filter(|_| !is_ended) {
        cache.transcripts.add(target.record.thread, part)?;
    }
    if !commit.rolling.is_empty() {
        cache.rolling.insert(commit.thread.to_string());
    }
    if let Some(thread) = cache.threads.get_mut(commit.thread.as_str()) {
        thread.record = target.record;
        thread.is_changed = true;
        if commit.is_last {
            claims::release(tx, &commit.thread, commit.claim).await?;
            thread.epoch = thread.epoch.saturating_add(1);
        }
    }
    let status = commit.status.as_ref().map(|change| change.to).filter(|_| !is_ended);
    tx.notify(ThreadChange { thread: commit.thread.clone(), status });
    Ok(outcome)
}

/// Entries of journals, as they are to be written.
#[derive(Default)]
pub(crate) struct JournalRows {
    thread: Vec<i64>,
    seq: Vec<i64>,
    at_ms: Vec<i64>,
    sequence: Vec<i64>,
    body: Vec<Vec<u8>>,
}

impl JournalRows {
    /// The entries behind the head of `record`, which moves to the last of them.
    pub(crate) fn new(record: &mut ThreadRecord, records: &[JournalRecord]) -> Result<Self, DbError> {
        let mut rows = Self::default();
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
            rows.thread.push(record.thread);
            rows.seq.push(record.head_seq);
            rows.at_ms.push(to_integer(entry.at_ms, "a time")?);
            rows.sequence.push(to_integer(entry.sequence, "a transcript")?);
            rows.body.push(entry.body.clone());
        }
        record.head_hash = hash.as_bytes().to_vec();
        Ok(rows)
    }

    fn append(&mut self, mut more: Self) {
        self.thread.append(&mut more.thread);
        self.seq.append(&mut more.seq);
        self.at_ms.append(&mut more.at_ms);
        self.sequence.append(&mut more.sequence);
        self.body.append(&mut more.body);
    }

    pub(crate) async fn save(&self, db: &Db) -> Result<(), DbError> {
        if self.seq.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO journal (thread, seq, at_ms, sequence, body)
             SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[])";
        db.execute(sql, &[&self.thread, &self.seq, &self.at_ms, &self.sequence, &self.body]).await?;
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
