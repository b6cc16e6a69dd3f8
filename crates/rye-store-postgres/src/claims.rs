//! Who runs a thread: exactly one process, as long as it renews its lease.
//!
//! Each claim has a number of its own; a commit with an older one is refused, so that a process that was frozen while
//! another took its thread over can do no harm.

use lillux::Digest;
use rye_store::{Claim, ClaimOutcome, ClaimPolicy, Owner, ThreadChange, ThreadStoreError};
use rye_thread::thread_id::ThreadId;
use tokio_postgres::Row;

use crate::db_error::{DbError, to_integer, to_number, to_text};
use crate::seal::{Seal, Sealer};
use crate::writer::{Locks, WriteTx};

/// The owner in a row, from the column `first` on: `pid, pid_start, boot_id, host`.
pub(crate) fn read_owner(row: &Row, first: usize) -> Result<Option<Owner>, DbError> {
    let Some(pid) = row.try_get::<_, Option<i64>>(first)? else {
        return Ok(None);
    };
    Ok(Some(Owner {
        pid: u32::try_from(pid).map_err(|_| DbError::damaged("a process has no such number"))?,
        pid_start: row.try_get::<_, Option<i64>>(first + 1)?.map_or(Ok(0), to_number)?,
        boot_id: row.try_get::<_, Option<String>>(first + 2)?.unwrap_or_default(),
        host: row.try_get::<_, Option<String>>(first + 3)?.unwrap_or_default(),
    }))
}

pub(crate) async fn claim(
    tx: &WriteTx<'_>,
    id: &ThreadId,
    claimant: &Owner,
    policy: ClaimPolicy,
    at_ms: u64,
) -> Result<ClaimOutcome, DbError> {
    tx.clock.measure(tx.reading()).await?;
    let name = id.as_str();
    let sql =
        "SELECT thread, epoch, lease_ms, pid, pid_start, boot_id, host FROM threads WHERE thread_id = $1";
    let row = tx.reading().query_opt(sql, &[&name]).await?;
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    let (thread, epoch): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let heartbeat_ms = tx.clock.to_local(row.try_get(2)?)?;
    let holder = read_owner(&row, 3)?;
    if let Some(current_owner) = &holder
        && !policy.can_take(current_owner, claimant, heartbeat_ms, tx.probe)
    {
        return Ok(ClaimOutcome::Held { by: current_owner.clone() });
    }
    let epoch = epoch.checked_add(1).ok_or(ThreadStoreError::TooLarge("the number of claims"))?;
    let sql = "UPDATE threads SET epoch = $2, pid = $3, pid_start = $4, boot_id = $5, host = $6, lease_ms = $7, note = NULL
         WHERE thread = $1";
    let (pid, pid_start) = (i64::from(claimant.pid), to_integer(claimant.pid_start, "a time")?);
    let (boot_id, host) = (to_text(&claimant.boot_id), to_text(&claimant.host));
    let lease_ms = tx.clock.to_database(at_ms);
    tx.writing().execute(sql, &[&thread, &epoch, &pid, &pid_start, &boot_id, &host, &lease_ms]).await?;
    Ok(ClaimOutcome::Claimed { claim: Claim { epoch: to_number(epoch)? }, from: holder })
}

/// Gives a thread up; the claim is worth nothing afterwards.
pub(crate) async fn release(tx: &WriteTx<'_>, id: &ThreadId, claim: Claim) -> Result<(), DbError> {
    let (name, epoch) = (id.as_str(), to_integer(claim.epoch, "the number of claims")?);
    let sql =
        "UPDATE threads SET epoch = epoch + 1, pid = NULL, pid_start = NULL, boot_id = NULL, host = NULL
         WHERE thread_id = $1 AND epoch = $2";
    let released = tx.writing().execute(sql, &[&name, &epoch]).await?;
    if released == 0 { Err(ThreadStoreError::Fenced(id.clone()).into()) } else { Ok(()) }
}

fn note_digest(sealer: &Sealer, thread: &str, text: &str) -> Digest {
    let mut fields = sealer.fields("note 1");
    fields.text(thread);
    fields.text(text);
    fields.finish()
}

/// A note with the seal of who leaves it: the column holds both.
fn sealed_note(sealer: &Sealer, thread: &str, text: &str) -> String {
    let seal = sealer.seal(&note_digest(sealer, thread, text));
    format!("{} {} {text}", seal.signer, seal.signature)
}

/// What a note says, if a key that counts left it. Older releases left unsigned notes: they are not shown.
pub(crate) fn read_note(sealer: &Sealer, thread: &str, note: &str) -> Option<String> {
    let mut parts = note.splitn(3, ' ');
    let (signer, signature, text) = (parts.next()?, parts.next()?, parts.next()?);
    let seal = Seal { signer: signer.to_owned(), signature: signature.to_owned() };
    sealer.is_valid(&note_digest(sealer, thread, text), &seal).then(|| text.to_owned())
}

/// Records why no process runs a thread, unless one does.
pub(crate) async fn set_note(tx: &mut WriteTx<'_>, id: &ThreadId, reason: &str) -> Result<(), DbError> {
    let name = id.as_str();
    let reason = sealed_note(tx.seal, name, &to_text(reason));
    let sql = "UPDATE threads SET note = $2 WHERE thread_id = $1 AND pid IS NULL AND completed_at IS NULL";
    tx.writing().execute(sql, &[&name, &reason]).await?;
    tx.notify(ThreadChange { thread: id.clone(), status: None });
    Ok(())
}

/// What a heartbeat locks.
pub(crate) fn heartbeat_locks(held: &[(ThreadId, Claim)]) -> Locks {
    Locks { threads: held.iter().map(|(id, _)| id.clone()).collect(), scopes: Vec::new() }
}

/// Renews the leases of many threads at once; gives those that another process took. One that this process gave up itself
/// meanwhile, because it ended, was not taken.
pub(crate) async fn heartbeat(
    tx: &WriteTx<'_>,
    held: &[(ThreadId, Claim)],
    at_ms: u64,
) -> Result<Vec<(ThreadId, Claim)>, DbError> {
    tx.clock.measure(tx.reading()).await?;
    let names: Vec<&str> = held.iter().map(|(id, _)| id.as_str()).collect();
    let epochs: Vec<i64> = held
        .iter()
        .map(|(_, claim)| to_integer(claim.epoch, "the number of claims"))
        .collect::<Result<_, _>>()?;
    let lease_ms = tx.clock.to_database(at_ms);
    let renew = "UPDATE threads SET lease_ms = $3 FROM unnest($1::text[], $2::bigint[]) AS held (id, number)
         WHERE threads.thread_id = held.id AND threads.epoch = held.number";
    tx.writing().execute(renew, &[&names, &epochs, &lease_ms]).await?;
    let find = "SELECT held.position FROM unnest($1::text[], $2::bigint[]) WITH ORDINALITY AS held (id, number, position)
         LEFT JOIN threads ON threads.thread_id = held.id
         WHERE NOT coalesce(threads.epoch = held.number OR (threads.epoch = held.number + 1 AND threads.pid IS NULL), FALSE)
         ORDER BY held.position";
    let mut lost = Vec::new();
    for row in tx.reading().query(find, &[&names, &epochs]).await? {
        let position = to_number(row.try_get(0)?)?;
        let index = usize::try_from(position.saturating_sub(1)).unwrap_or(usize::MAX);
        lost.extend(held.get(index).cloned());
    }
    Ok(lost)
}
