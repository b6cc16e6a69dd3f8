//! Who runs a thread: exactly one process, as long as it lives.
//!
//! Each claim has a number of its own; a commit with an older one is refused, so that a process that slept while another
//! took its thread over can do no harm.

use rusqlite::{OptionalExtension, Row, params};

use super::DbError;
use super::db_error::to_sqlite_integer;
use super::owner::SystemProbe;
use super::writer::WriteTx;
use rye_store::ThreadStoreError;
use rye_store::{Claim, ClaimOutcome, ClaimPolicy, Owner, ThreadChange};
use rye_thread::thread_id::ThreadId;

/// The columns that [`read_owner`] reads, in its order.
pub(super) const OWNER_COLUMNS: &str = "pid, pid_start, boot_id, host";

/// The owner in a row, from the column `first` on.
pub(super) fn read_owner(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<Owner>> {
    let Some(pid) = row.get::<_, Option<u32>>(first)? else {
        return Ok(None);
    };
    Ok(Some(Owner {
        pid,
        pid_start: row.get::<_, Option<u64>>(first + 1)?.unwrap_or(0),
        boot_id: row.get::<_, Option<String>>(first + 2)?.unwrap_or_default(),
        host: row.get::<_, Option<String>>(first + 3)?.unwrap_or_default(),
    }))
}

pub(super) fn claim(
    tx: &WriteTx<'_, '_>,
    id: &ThreadId,
    claimant: &Owner,
    policy: ClaimPolicy,
    at_ms: u64,
) -> Result<ClaimOutcome, DbError> {
    let found: Option<(i64, u64, u64, Option<Owner>)> = tx
        .connection
        .prepare_cached(&format!(
            "SELECT thread, epoch, heartbeat_ms, {OWNER_COLUMNS} FROM threads WHERE thread_id = ?1"
        ))?
        .query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, read_owner(row, 3)?)))
        .optional()?;
    let (row, epoch, heartbeat_ms, holder) =
        found.ok_or_else(|| DbError::from(ThreadStoreError::NoThread(id.clone())))?;
    if let Some(current_owner) = &holder
        && !policy.can_take(current_owner, claimant, heartbeat_ms, &SystemProbe)
    {
        return Ok(ClaimOutcome::Held { by: current_owner.clone() });
    }
    let epoch =
        epoch.checked_add(1).ok_or(DbError::from(ThreadStoreError::TooLarge("the number of claims")))?;
    tx.execute("UPDATE threads SET epoch = ?2, pid = ?3, pid_start = ?4, boot_id = ?5, host = ?6, heartbeat_ms = ?7, note = NULL
             WHERE thread = ?1", params![
            row,
            to_sqlite_integer(epoch, "the number of claims")?,
            claimant.pid,
            to_sqlite_integer(claimant.pid_start, "a time")?,
            claimant.boot_id,
            claimant.host,
            to_sqlite_integer(at_ms, "a time")?
        ])?;
    Ok(ClaimOutcome::Claimed { claim: Claim { epoch }, from: holder })
}

/// Gives a thread up; the claim is worth nothing afterwards.
pub(super) fn release(tx: &WriteTx<'_, '_>, id: &ThreadId, claim: Claim) -> Result<(), DbError> {
    let released = tx.execute(
        "UPDATE threads SET epoch = epoch + 1, pid = NULL, pid_start = NULL, boot_id = NULL, host = NULL
             WHERE thread_id = ?1 AND epoch = ?2",
        params![id.as_str(), to_sqlite_integer(claim.epoch, "the number of claims")?],
    )?;
    if released == 0 { Err(DbError::from(ThreadStoreError::Fenced(id.clone()))) } else { Ok(()) }
}

/// Writes down why no process continues with a thread, unless one does now.
pub(super) fn set_note(tx: &mut WriteTx<'_, '_>, id: &ThreadId, reason: &str) -> Result<(), DbError> {
    let sql = "UPDATE threads SET note = ?2 WHERE thread_id = ?1 AND pid IS NULL AND completed_at IS NULL";
    tx.connection.prepare_cached(sql)?.execute(params![id.as_str(), reason])?;
    tx.notify(ThreadChange { thread: id.clone(), status: None });
    Ok(())
}

/// Says that the process lives, for many threads at once; gives those that another process took. One that this process gave
/// up itself meanwhile, because it ended, was not taken.
pub(super) fn heartbeat(
    tx: &WriteTx<'_, '_>,
    held: &[(ThreadId, Claim)],
    at_ms: u64,
) -> Result<Vec<(ThreadId, Claim)>, DbError> {
    let mut heartbeat = tx
        .connection
        .prepare_cached("UPDATE threads SET heartbeat_ms = ?3 WHERE thread_id = ?1 AND epoch = ?2")?;
    let mut released = tx
        .connection
        .prepare_cached("SELECT 1 FROM threads WHERE thread_id = ?1 AND epoch = ?2 + 1 AND pid IS NULL")?;
    let at = to_sqlite_integer(at_ms, "a time")?;
    let mut lost = Vec::new();
    for (id, claim) in held {
        let epoch = to_sqlite_integer(claim.epoch, "the number of claims")?;
        let is_held = heartbeat.execute(params![id.as_str(), epoch, at])? > 0;
        if !is_held && !released.exists(params![id.as_str(), epoch])? {
            lost.push((id.clone(), *claim));
        }
    }
    Ok(lost)
}
