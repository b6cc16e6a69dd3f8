//! One step of a thread, made durable: records, settlements, reservation, cost, status.

use lillux::Digest;
use rusqlite::{OptionalExtension, params};

use super::error::integer;
use super::row_seal::NextSeal;
use super::values::{Change, Claim, Commit, Committed, Maxima, Record, StatusChange};
use super::writer::Desk;
use super::{StoreError, approvals, chain, claims, ledger, row_seal};
use crate::limits::Limits;
use crate::money::Nanos;
use crate::status::Status;
use crate::thread_id::ThreadId;
use crate::transcript::iso;

/// The largest entry of a journal.
const MOST_BODY: usize = 64 << 20;

/// What a commit needs to know of its thread.
struct Known {
    row: i64,
    parent: Option<String>,
    epoch: u64,
    seq: u64,
    hash: Digest,
    maxima: Maxima,
    status: Status,
    completed_at: Option<String>,
}

/// Makes one step durable.
pub(super) fn commit(desk: &mut Desk<'_, '_>, commit: &Commit) -> Result<Committed, StoreError> {
    let known = find(desk, &commit.thread)?;
    fence(known.epoch, commit.claim, &commit.thread)?;
    let at = iso(commit.at_ms);
    let (seq, hash) = append(desk, known.row, known.seq, known.hash, &commit.records)?;
    for settled in &commit.settle {
        ledger::settle(desk, known.row, &commit.thread, settled, &at)?;
    }
    let maxima = commit.maxima.unwrap_or(known.maxima);
    if maxima != known.maxima {
        ledger::set_maxima(desk, known.row, maxima)?;
    }
    if let Some(limits) = &commit.limits {
        set_limits(desk, known.row, limits)?;
    }
    let sealed = chain::Sealed {
        thread: commit.thread.as_str(),
        parent: known.parent.as_deref(),
        seq,
        hash: hash.as_bytes(),
        maxima,
    };
    let mut next = advance(desk, commit, &known, &sealed, &at)?;
    for approval in &commit.asks {
        approvals::ask(desk, approval)?;
    }
    let is_ended = known.status.is_terminal();
    let mut outcome = Committed::Done;
    if is_ended && (commit.status.is_some() || commit.reserve.is_some()) {
        outcome = Committed::Ended { status: known.status, at: known.completed_at.unwrap_or_default() };
    } else {
        if let Some(asked) = commit.reserve
            && let Some(shortage) = ledger::reserve(desk, known.row, &commit.thread, asked)?
        {
            outcome = Committed::Refused(shortage);
        }
        if let Some(change) = &commit.status {
            next = set_status(desk, known.row, change, &at)?;
        }
    }
    next.write(desk, known.row, &commit.thread)?;
    if commit.is_last {
        claims::release(desk, &commit.thread, commit.claim)?;
    }
    let status = commit.status.as_ref().map(|change| change.to).filter(|_| !is_ended);
    desk.tell(Change { thread: commit.thread.clone(), status });
    Ok(outcome)
}

/// Refuses whoever does not hold the thread any more.
pub(super) fn fence(epoch: u64, claim: Claim, thread: &ThreadId) -> Result<(), StoreError> {
    if epoch == claim.epoch { Ok(()) } else { Err(StoreError::Fenced(thread.clone())) }
}

fn find(desk: &Desk<'_, '_>, id: &ThreadId) -> Result<Known, StoreError> {
    const FIND: &str = concat!(
        "SELECT thread, parent_id, epoch, head_seq, head_hash, max_spend, max_tokens, status, completed_at, ",
        row_seal::sealed_columns!(),
        ", row_mac FROM threads WHERE thread_id = ?1"
    );
    let found = desk
        .query_row(FIND, [id.as_str()], |row| {
            let status: String = row.get(7)?;
            let known = Known {
                row: row.get(0)?,
                parent: row.get(1)?,
                epoch: row.get(2)?,
                seq: row.get(3)?,
                hash: Digest::from_bytes(row.get(4)?),
                maxima: Maxima { spend: row.get::<_, Option<u64>>(5)?.map(Nanos), tokens: row.get(6)? },
                status: Status::Created,
                completed_at: row.get(8)?,
            };
            Ok((known, status, desk.seal.is_sealed(row, 9)))
        })
        .optional()?;
    let (known, status, is_sealed) = found.ok_or_else(|| StoreError::NoThread(id.clone()))?;
    if !is_sealed? {
        return Err(row_seal::forged(id));
    }
    Ok(Known { status: super::read::status(&status)?, ..known })
}

/// Writes records behind entry `seq`, whose hash is `hash`; gives the new last entry.
pub(super) fn append(
    desk: &Desk<'_, '_>,
    thread: i64,
    mut seq: u64,
    mut hash: Digest,
    records: &[Record],
) -> Result<(u64, Digest), StoreError> {
    for record in records {
        if record.body.len() > MOST_BODY {
            return Err(StoreError::TooLarge("an entry of the journal"));
        }
        seq = seq.checked_add(1).ok_or(StoreError::TooLarge("a journal"))?;
        hash = chain::next(&hash, seq, record);
        desk.execute(
            "INSERT INTO journal (thread, seq, at_ms, sequence, body) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![
                thread,
                integer(seq, "a journal")?,
                integer(record.at_ms, "a time")?,
                integer(record.sequence, "a transcript")?,
                record.body
            ],
        )?;
    }
    Ok((seq, hash))
}

fn advance(
    desk: &Desk<'_, '_>,
    commit: &Commit,
    known: &Known,
    sealed: &chain::Sealed<'_>,
    at: &str,
) -> Result<NextSeal, StoreError> {
    const ADVANCE: &str = concat!(
        "UPDATE threads SET head_seq = ?2, head_hash = ?3, head_mac = ?4, updated_at = ?5, turns = coalesce(?6, turns),
                input_tokens = coalesce(?7, input_tokens), output_tokens = coalesce(?8, output_tokens),
                spend = coalesce(?9, spend), elapsed_ms = coalesce(?10, elapsed_ms),
                transcript_sequence = coalesce(?11, transcript_sequence), transcript_hash = coalesce(?12, transcript_hash),
                max_spend = ?13, max_tokens = ?14, revision = revision + 1
         WHERE thread = ?1 RETURNING ",
        row_seal::sealed_columns!()
    );
    let cost = commit.cost.as_ref();
    let number = |of: fn(&crate::cost::Cost) -> u64| {
        cost.map(|cost| integer(of(cost), "what a thread has used")).transpose()
    };
    let head = commit.transcript_head.as_ref();
    let next = desk.query_row(
        ADVANCE,
        params![
            known.row,
            integer(sealed.seq, "a journal")?,
            sealed.hash,
            sealed.seal(&desk.seal.mac).as_bytes().as_slice(),
            at,
            number(|cost| cost.turns)?,
            number(|cost| cost.input_tokens)?,
            number(|cost| cost.output_tokens)?,
            number(|cost| cost.spend.0)?,
            number(|cost| cost.elapsed_ms)?,
            head.map(|head| integer(head.sequence, "a transcript")).transpose()?,
            head.map(|head| head.hash.as_bytes().as_slice()),
            ledger::spend_column(sealed.maxima)?,
            ledger::tokens_column(sealed.maxima)?
        ],
        |row| NextSeal::of(desk, row),
    )?;
    Ok(next)
}

/// What a thread may use from now on, for those who look: the journal has it sealed.
fn set_limits(desk: &Desk<'_, '_>, row: i64, limits: &Limits) -> Result<(), StoreError> {
    let limits = serde_json::to_string(limits).map_err(|error| StoreError::Failed(error.to_string()))?;
    desk.execute("UPDATE threads SET limits = ?2 WHERE thread = ?1", params![row, limits])?;
    Ok(())
}

fn set_status(
    desk: &Desk<'_, '_>,
    row: i64,
    change: &StatusChange,
    at: &str,
) -> Result<NextSeal, StoreError> {
    const SET: &str = concat!(
        "UPDATE threads SET status = ?2, reason = ?3, result = coalesce(?4, result), error = ?5, completed_at = ?6
         WHERE thread = ?1 RETURNING ",
        row_seal::sealed_columns!()
    );
    let is_end = change.to.is_terminal();
    let next = desk.query_row(
        SET,
        params![
            row,
            change.to.as_str(),
            change.reason.map(crate::status::SuspendReason::as_str),
            change.result.as_ref().map(ToString::to_string),
            change.error,
            is_end.then_some(at)
        ],
        |row| NextSeal::of(desk, row),
    )?;
    if is_end {
        ledger::close(desk, row, change.to.as_str(), at)?;
    }
    Ok(next)
}
