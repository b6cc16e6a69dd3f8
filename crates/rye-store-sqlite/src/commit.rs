//! One step of a thread, made durable: records, settlements, reservation, cost, status.

use lillux::Digest;
use rusqlite::{OptionalExtension, params};

use super::db_error::to_sqlite_integer;
use super::row_seal::{SealedRow, column};
use super::writer::WriteTx;
use super::{DbError, approvals, chain, claims, ledger, row_seal, waits};
use rye_item::timestamp::iso_timestamp;
use rye_store::ThreadStoreError;
use rye_store::{
    BudgetCaps, BudgetRefusal, Claim, CommitOutcome, JournalRecord, MAX_RECORD_BYTES, ReserveRequest,
    StatusChange, ThreadChange, ThreadCommit,
};
use rye_thread::money::Nanos;
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;

/// What a commit needs to know of its thread.
struct CommitTarget {
    row: i64,
    parent: Option<String>,
    epoch: u64,
    seq: u64,
    hash: Digest,
    caps: BudgetCaps,
    status: ThreadStatus,
    completed_at: Option<String>,
    sealed: SealedRow,
}

/// Makes one step durable.
pub(super) fn commit(tx: &mut WriteTx<'_, '_>, commit: &ThreadCommit) -> Result<CommitOutcome, DbError> {
    let mut target = load_target(tx, &commit.thread)?;
    fence(target.epoch, commit.claim, &commit.thread)?;
    let at = iso_timestamp(commit.at_ms);
    let is_ended = target.status.is_terminal();
    let first = commit.reservation.filter(|_| commit.needs_reservation && !is_ended);
    if let Some(reservation) = first
        && let Some(refusal) = reserve(tx, &target, commit, reservation, target.caps)?
    {
        return Ok(CommitOutcome::Refused(refusal));
    }
    let (seq, hash) = append(tx, target.row, target.seq, target.hash, &commit.records)?;
    for settlement in &commit.settlements {
        ledger::settle(tx, target.row, commit, settlement, &at)?;
    }
    let caps = commit.caps.unwrap_or(target.caps);
    if caps != target.caps {
        ledger::set_caps(tx, target.row, caps)?;
    }
    if let Some(limits) = &commit.limits {
        let limits = serde_json::to_string(limits)
            .map_err(|error| DbError::from(ThreadStoreError::Failed(error.to_string())))?;
        // For those who look: the journal has them too.
        target.sealed.set(column::LIMITS, limits);
    }
    for approval in &commit.approvals {
        approvals::insert(tx, approval)?;
    }
    let mut outcome = CommitOutcome::Done;
    if is_ended && (commit.status.is_some() || commit.reservation.is_some()) {
        let at = target.completed_at.clone().unwrap_or_default();
        outcome = CommitOutcome::Ended { status: target.status, at };
    } else {
        if let Some(change) = &commit.status {
            set_status(tx, &mut target, change, &at)?;
        }
        if let Some(reservation) = commit.reservation.filter(|_| !commit.needs_reservation)
            && let Some(refusal) = reserve(tx, &target, commit, reservation, caps)?
        {
            outcome = CommitOutcome::Refused(refusal);
        }
    }
    let head = chain::JournalHead {
        thread: commit.thread.as_str(),
        parent: target.parent.as_deref(),
        seq,
        hash: hash.as_bytes(),
        caps,
    };
    update_row(tx, commit, target.row, target.sealed, &head, &at)?;
    if commit.is_last {
        claims::release(tx, &commit.thread, commit.claim)?;
    }
    let status = commit.status.as_ref().map(|change| change.to).filter(|_| !is_ended);
    tx.notify(ThreadChange { thread: commit.thread.clone(), status });
    Ok(outcome)
}

fn reserve(
    tx: &WriteTx<'_, '_>,
    target: &CommitTarget,
    commit: &ThreadCommit,
    request: ReserveRequest,
    caps: BudgetCaps,
) -> Result<Option<BudgetRefusal>, DbError> {
    let own = ledger::Reserver { row: target.row, id: &commit.thread, caps };
    ledger::reserve(tx, own, request, &commit.rolling, commit.at_ms)
}

/// Refuses a claim that is not the latest of the thread.
pub(super) fn fence(epoch: u64, claim: Claim, thread: &ThreadId) -> Result<(), DbError> {
    if epoch == claim.epoch { Ok(()) } else { Err(DbError::from(ThreadStoreError::Fenced(thread.clone()))) }
}

fn load_target(tx: &WriteTx<'_, '_>, id: &ThreadId) -> Result<CommitTarget, DbError> {
    const FIND: &str = concat!(
        "SELECT thread, parent_id, epoch, head_seq, head_hash, max_spend, max_tokens, status, completed_at, ",
        row_seal::sealed_columns!(),
        ", row_mac FROM threads WHERE thread_id = ?1"
    );
    let found = tx
        .query_row(FIND, [id.as_str()], |row| {
            let status: String = row.get(7)?;
            let target = CommitTarget {
                row: row.get(0)?,
                parent: row.get(1)?,
                epoch: row.get(2)?,
                seq: row.get(3)?,
                hash: Digest::from_bytes(row.get(4)?),
                caps: BudgetCaps { spend: row.get::<_, Option<u64>>(5)?.map(Nanos), tokens: row.get(6)? },
                status: ThreadStatus::Created,
                completed_at: row.get(8)?,
                sealed: SealedRow::from_row(row, 9)?,
            };
            Ok((target, status, tx.seal.is_valid(row, 9)))
        })
        .optional()?;
    let (target, status, is_sealed) =
        found.ok_or_else(|| DbError::from(ThreadStoreError::NoThread(id.clone())))?;
    if !is_sealed? {
        return Err(row_seal::forged_error(id));
    }
    Ok(CommitTarget { status: super::queries::parse_status(&status)?, ..target })
}

/// Writes records behind entry `seq`, whose hash is `hash`; gives the new last entry.
pub(super) fn append(
    tx: &WriteTx<'_, '_>,
    thread: i64,
    mut seq: u64,
    mut hash: Digest,
    records: &[JournalRecord],
) -> Result<(u64, Digest), DbError> {
    for record in records {
        if record.body.len() > MAX_RECORD_BYTES {
            return Err(DbError::from(ThreadStoreError::TooLarge("an entry of the journal")));
        }
        seq = seq.checked_add(1).ok_or(DbError::from(ThreadStoreError::TooLarge("a journal")))?;
        hash = chain::next_hash(&hash, seq, record);
        tx.execute(
            "INSERT INTO journal (thread, seq, at_ms, sequence, body) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                thread,
                to_sqlite_integer(seq, "a journal")?,
                to_sqlite_integer(record.at_ms, "a time")?,
                to_sqlite_integer(record.sequence, "a transcript")?,
                record.body
            ],
        )?;
    }
    Ok((seq, hash))
}

/// Writes the row with its new head, under its next seal.
fn update_row(
    tx: &mut WriteTx<'_, '_>,
    commit: &ThreadCommit,
    row: i64,
    mut sealed: SealedRow,
    head: &chain::JournalHead<'_>,
    at: &str,
) -> Result<(), DbError> {
    const ADVANCE: &str = "UPDATE threads SET head_seq = ?2, head_hash = ?3, head_mac = ?4, updated_at = ?5, turns = ?6, input_tokens = ?7,
                output_tokens = ?8, spend = ?9, elapsed_ms = ?10, transcript_sequence = ?11, transcript_hash = ?12,
                max_spend = ?13, max_tokens = ?14, revision = ?15, row_mac = ?16, limits = ?17 WHERE thread = ?1";
    const ADVANCE_STATUS: &str = "UPDATE threads SET head_seq = ?2, head_hash = ?3, head_mac = ?4, updated_at = ?5, turns = ?6, input_tokens = ?7,
                output_tokens = ?8, spend = ?9, elapsed_ms = ?10, transcript_sequence = ?11, transcript_hash = ?12,
                max_spend = ?13, max_tokens = ?14, revision = ?15, row_mac = ?16, limits = ?17, status = ?18, reason = ?19,
                result = ?20, error = ?21, completed_at = ?22 WHERE thread = ?1";
    let used = |column: fn(&rye_thread::cost::Cost) -> u64| {
        commit.cost.as_ref().map(|cost| to_sqlite_integer(column(cost), "what a thread has used")).transpose()
    };
    sealed.set_some(column::TURNS, used(|cost| cost.turns)?);
    sealed.set_some(column::INPUT_TOKENS, used(|cost| cost.input_tokens)?);
    sealed.set_some(column::OUTPUT_TOKENS, used(|cost| cost.output_tokens)?);
    sealed.set_some(column::SPEND, used(|cost| cost.spend.0)?);
    sealed.set_some(column::ELAPSED_MS, used(|cost| cost.elapsed_ms)?);
    if let Some(transcript) = &commit.transcript_head {
        sealed.set(column::TRANSCRIPT_SEQUENCE, to_sqlite_integer(transcript.sequence, "a transcript")?);
        sealed.set(column::TRANSCRIPT_HASH, transcript.hash.as_bytes().to_vec());
    }
    sealed.set(column::HEAD_SEQ, to_sqlite_integer(head.seq, "a journal")?);
    sealed.set(column::HEAD_HASH, head.hash.to_vec());
    sealed.set(column::UPDATED_AT, at.to_owned());
    sealed.set(column::MAX_SPEND, ledger::spend_column(head.caps)?);
    sealed.set(column::MAX_TOKENS, ledger::tokens_column(head.caps)?);
    let (seal, revision) = sealed.seal_next(tx.seal)?;
    let head_mac = head.mac(&tx.seal.mac);
    let column = |column_index: usize| sealed.get(column_index);
    let common = params![
        row,
        column(column::HEAD_SEQ),
        column(column::HEAD_HASH),
        head_mac.as_bytes().as_slice(),
        at,
        column(column::TURNS),
        column(column::INPUT_TOKENS),
        column(column::OUTPUT_TOKENS),
        column(column::SPEND),
        column(column::ELAPSED_MS),
        column(column::TRANSCRIPT_SEQUENCE),
        column(column::TRANSCRIPT_HASH),
        column(column::MAX_SPEND),
        column(column::MAX_TOKENS),
        column(column::REVISION),
        seal.as_slice(),
        column(column::LIMITS),
        column(column::STATUS),
        column(column::REASON),
        column(column::RESULT),
        column(column::ERROR),
        column(column::COMPLETED_AT),
    ];
    let without_status = common.get(..17).unwrap_or_default();
    match &commit.status {
        None => tx.execute(ADVANCE, without_status)?,
        Some(_) => tx.execute(ADVANCE_STATUS, common)?,
    };
    tx.record_head(&commit.thread, row_seal::row_head(revision, &seal));
    Ok(())
}

fn set_status(
    tx: &WriteTx<'_, '_>,
    target: &mut CommitTarget,
    change: &StatusChange,
    at: &str,
) -> Result<(), DbError> {
    let is_end = change.to.is_terminal();
    let sealed = &mut target.sealed;
    sealed.set(column::STATUS, change.to.as_str().to_owned());
    sealed.set(column::REASON, change.reason.map(|reason| reason.as_str().to_owned()));
    sealed.set_some(column::RESULT, change.result.as_ref().map(ToString::to_string));
    sealed.set(column::ERROR, change.error.clone());
    sealed.set(column::COMPLETED_AT, is_end.then(|| at.to_owned()));
    if is_end || change.to == ThreadStatus::Suspended {
        waits::leave(tx, target.row)?;
    }
    if is_end { ledger::close(tx, target.row, change.to.as_str(), at) } else { Ok(()) }
}
