//! One step of a thread, made durable: records, settlements, reservation, cost, status.

use lillux::Digest;
use rusqlite::{OptionalExtension, params};

use super::error::integer;
use super::row_seal::{SealedRow, column};
use super::values::{Change, Claim, Commit, Committed, Maxima, Record, StatusChange};
use super::writer::Desk;
use super::{StoreError, approvals, chain, claims, ledger, row_seal};
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
    sealed: SealedRow,
}

/// Makes one step durable.
pub(super) fn commit(desk: &mut Desk<'_, '_>, commit: &Commit) -> Result<Committed, StoreError> {
    let mut known = find(desk, &commit.thread)?;
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
        let limits = serde_json::to_string(limits).map_err(|error| StoreError::Failed(error.to_string()))?;
        // For those who look: the journal has them too.
        known.sealed.set(column::LIMITS, limits);
    }
    for approval in &commit.asks {
        approvals::ask(desk, approval)?;
    }
    let is_ended = known.status.is_terminal();
    let mut outcome = Committed::Done;
    if is_ended && (commit.status.is_some() || commit.reserve.is_some()) {
        let at = known.completed_at.clone().unwrap_or_default();
        outcome = Committed::Ended { status: known.status, at };
    } else {
        if let Some(asked) = commit.reserve
            && let Some(shortage) = ledger::reserve(desk, known.row, &commit.thread, asked)?
        {
            outcome = Committed::Refused(shortage);
        }
        if let Some(change) = &commit.status {
            set_status(desk, &mut known, change, &at)?;
        }
    }
    let head = chain::Sealed {
        thread: commit.thread.as_str(),
        parent: known.parent.as_deref(),
        seq,
        hash: hash.as_bytes(),
        maxima,
    };
    advance(desk, commit, known.row, known.sealed, &head, &at)?;
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
                sealed: SealedRow::read(row, 9)?,
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

/// Writes the row with its new head, under its next seal.
fn advance(
    desk: &mut Desk<'_, '_>,
    commit: &Commit,
    row: i64,
    mut sealed: SealedRow,
    head: &chain::Sealed<'_>,
    at: &str,
) -> Result<(), StoreError> {
    const ADVANCE: &str = "UPDATE threads SET head_seq = ?2, head_hash = ?3, head_mac = ?4, updated_at = ?5, turns = ?6, input_tokens = ?7,
                output_tokens = ?8, spend = ?9, elapsed_ms = ?10, transcript_sequence = ?11, transcript_hash = ?12,
                max_spend = ?13, max_tokens = ?14, revision = ?15, row_mac = ?16, limits = ?17 WHERE thread = ?1";
    const ADVANCE_STATUS: &str = "UPDATE threads SET head_seq = ?2, head_hash = ?3, head_mac = ?4, updated_at = ?5, turns = ?6, input_tokens = ?7,
                output_tokens = ?8, spend = ?9, elapsed_ms = ?10, transcript_sequence = ?11, transcript_hash = ?12,
                max_spend = ?13, max_tokens = ?14, revision = ?15, row_mac = ?16, limits = ?17, status = ?18, reason = ?19,
                result = ?20, error = ?21, completed_at = ?22 WHERE thread = ?1";
    let used = |of: fn(&crate::cost::Cost) -> u64| {
        commit.cost.as_ref().map(|cost| integer(of(cost), "what a thread has used")).transpose()
    };
    sealed.set_some(column::TURNS, used(|cost| cost.turns)?);
    sealed.set_some(column::INPUT_TOKENS, used(|cost| cost.input_tokens)?);
    sealed.set_some(column::OUTPUT_TOKENS, used(|cost| cost.output_tokens)?);
    sealed.set_some(column::SPEND, used(|cost| cost.spend.0)?);
    sealed.set_some(column::ELAPSED_MS, used(|cost| cost.elapsed_ms)?);
    if let Some(transcript) = &commit.transcript_head {
        sealed.set(column::TRANSCRIPT_SEQUENCE, integer(transcript.sequence, "a transcript")?);
        sealed.set(column::TRANSCRIPT_HASH, transcript.hash.as_bytes().to_vec());
    }
    sealed.set(column::HEAD_SEQ, integer(head.seq, "a journal")?);
    sealed.set(column::HEAD_HASH, head.hash.to_vec());
    sealed.set(column::UPDATED_AT, at.to_owned());
    sealed.set(column::MAX_SPEND, ledger::spend_column(head.maxima)?);
    sealed.set(column::MAX_TOKENS, ledger::tokens_column(head.maxima)?);
    let (seal, revision) = sealed.next(desk.seal)?;
    let head_mac = head.seal(&desk.seal.mac);
    let of = |place: usize| sealed.get(place);
    let common = params![
        row,
        of(column::HEAD_SEQ),
        of(column::HEAD_HASH),
        head_mac.as_bytes().as_slice(),
        at,
        of(column::TURNS),
        of(column::INPUT_TOKENS),
        of(column::OUTPUT_TOKENS),
        of(column::SPEND),
        of(column::ELAPSED_MS),
        of(column::TRANSCRIPT_SEQUENCE),
        of(column::TRANSCRIPT_HASH),
        of(column::MAX_SPEND),
        of(column::MAX_TOKENS),
        of(column::REVISION),
        seal.as_slice(),
        of(column::LIMITS),
        of(column::STATUS),
        of(column::REASON),
        of(column::RESULT),
        of(column::ERROR),
        of(column::COMPLETED_AT),
    ];
    let without_status = common.get(..17).unwrap_or_default();
    match &commit.status {
        None => desk.execute(ADVANCE, without_status)?,
        Some(_) => desk.execute(ADVANCE_STATUS, common)?,
    };
    desk.note_head(&commit.thread, row_seal::head_of(revision, &seal));
    Ok(())
}

fn set_status(
    desk: &Desk<'_, '_>,
    known: &mut Known,
    change: &StatusChange,
    at: &str,
) -> Result<(), StoreError> {
    let is_end = change.to.is_terminal();
    let sealed = &mut known.sealed;
    sealed.set(column::STATUS, change.to.as_str().to_owned());
    sealed.set(column::REASON, change.reason.map(|reason| reason.as_str().to_owned()));
    sealed.set_some(column::RESULT, change.result.as_ref().map(ToString::to_string));
    sealed.set(column::ERROR, change.error.clone());
    sealed.set(column::COMPLETED_AT, is_end.then(|| at.to_owned()));
    if is_end { ledger::close(desk, known.row, change.to.as_str(), at) } else { Ok(()) }
}
