//! Threads that wait for reserved money, or for a place among their parent's children.

use rusqlite::{OptionalExtension, params};

use super::db_error::to_sqlite_integer;
use super::writer::WriteTx;
use super::{DbError, commit, queries};
use rye_store::{
    BudgetRefusal, BudgetResource, Claim, ReserveRequest, SpawnCaps, ThreadChange, ThreadStoreError,
    WAIT_LEASE_MS, WAIT_RENEWAL_MS, WaitKind,
};
use rye_thread::thread_id::ThreadId;

/// Children of the thread `?1` that are at work: they have not ended or stopped, and do not wait for a place.
const COUNT_PLACED_CHILDREN: &str = "SELECT count(*) FROM threads WHERE parent = ?1 AND completed_at IS NULL
    AND status <> 'suspended'
    AND NOT EXISTS (SELECT 1 FROM waits WHERE waits.thread = threads.thread AND waits.kind = 'concurrency')";

/// Threads of the tree `?1` that have not ended and do not wait for a place.
const COUNT_PLACED_TREE: &str = "SELECT count(*) FROM threads WHERE root = ?1 AND completed_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM waits WHERE waits.thread = threads.thread AND waits.kind = 'concurrency')";

/// Children of the thread `?1` that wait for a place, came before ticket `?2` and said so since `?3`.
const COUNT_QUEUED: &str = "SELECT count(*) FROM waits JOIN threads USING (thread)
    WHERE waits.kind = 'concurrency' AND threads.parent = ?1 AND waits.ticket < ?2 AND waits.seen_ms >= ?3";

/// How the threads before this one in the queue are found.
pub(super) struct QueuePosition {
    ticket: i64,
    since_ms: i64,
    /// Whether no thread waits for money.
    pub(super) is_empty: bool,
}

/// The thread's place in the queue for money; the last one, if it has none yet.
pub(super) fn position(tx: &WriteTx<'_, '_>, thread: i64, at_ms: u64) -> Result<QueuePosition, DbError> {
    let is_empty: bool =
        tx.query_row("SELECT NOT EXISTS (SELECT 1 FROM waits WHERE kind = 'budget')", [], |row| row.get(0))?;
    let own = "SELECT ticket FROM waits WHERE thread = ?1 AND kind = 'budget'";
    let ticket = if is_empty { None } else { tx.query_row(own, [thread], |row| row.get(0)).optional()? };
    let since_ms = to_sqlite_integer(at_ms.saturating_sub(WAIT_LEASE_MS), "a time")?;
    Ok(QueuePosition { ticket: ticket.unwrap_or(i64::MAX), since_ms, is_empty })
}

/// What threads before this one wait for at a row of the ledger: money and tokens.
pub(super) fn ahead(
    tx: &WriteTx<'_, '_>,
    thread: i64,
    row: i64,
    position: &QueuePosition,
) -> Result<(u64, u64), DbError> {
    if position.is_empty {
        return Ok((0, 0));
    }
    Ok(tx.query_row(
        "SELECT coalesce(sum(spend), 0), coalesce(sum(tokens), 0) FROM waits
         WHERE kind = 'budget' AND blocked_by = ?2 AND ticket < ?3 AND thread <> ?1 AND seen_ms >= ?4",
        params![thread, row, position.ticket, position.since_ms],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?)
}

/// Keeps the thread's turn after a refusal, or gives it up.
pub(super) fn after_reserve(
    tx: &WriteTx<'_, '_>,
    thread: i64,
    request: ReserveRequest,
    refusal: Option<&BudgetRefusal>,
    at_ms: u64,
) -> Result<(), DbError> {
    let waits_for = refusal.filter(|refusal| request.can_wait && refusal.is_only_reserved());
    let Some(refusal) = waits_for else {
        return leave(tx, thread);
    };
    let (spend, tokens) = match refusal.resource {
        BudgetResource::Spend => (to_sqlite_integer(request.spend.0, "a reservation")?, 0),
        BudgetResource::Tokens => (0, to_sqlite_integer(request.tokens, "a reservation")?),
    };
    let blocked_by = queries::row_id(tx.connection, &refusal.refused_by)?;
    let at_ms = to_sqlite_integer(at_ms, "a time")?;
    let renewed_before = at_ms.saturating_sub(to_sqlite_integer(WAIT_RENEWAL_MS, "a time")?);
    tx.execute(
        "INSERT INTO waits (thread, kind, ticket, blocked_by, spend, tokens, seen_ms)
         VALUES (?1, 'budget', (SELECT coalesce(max(ticket), 0) + 1 FROM waits), ?2, ?3, ?4, ?5)
         ON CONFLICT (thread) DO UPDATE SET kind = 'budget', blocked_by = ?2, spend = ?3, tokens = ?4, seen_ms = ?5
         WHERE seen_ms < ?6 OR blocked_by IS NOT ?2 OR spend <> ?3 OR tokens <> ?4",
        params![thread, blocked_by, spend, tokens, at_ms, renewed_before],
    )?;
    Ok(())
}

/// The thread waits for nothing any more.
pub(super) fn leave(tx: &WriteTx<'_, '_>, thread: i64) -> Result<(), DbError> {
    tx.execute("DELETE FROM waits WHERE thread = ?1", [thread])?;
    Ok(())
}

/// Lets a new child wait for its place.
pub(super) fn queue_child(tx: &WriteTx<'_, '_>, thread: i64, at_ms: u64) -> Result<(), DbError> {
    tx.execute(
        "INSERT INTO waits (thread, kind, ticket, spend, tokens, seen_ms)
         VALUES (?1, ?2, (SELECT coalesce(max(ticket), 0) + 1 FROM waits), 0, 0, ?3)",
        params![thread, WaitKind::Concurrency.as_str(), to_sqlite_integer(at_ms, "a time")?],
    )?;
    Ok(())
}

/// Children of a thread that have not ended: those at work, and those that wait for a place.
pub(super) fn count_children(tx: &WriteTx<'_, '_>, parent: i64) -> Result<(u64, u64), DbError> {
    let placed = tx.query_row(COUNT_PLACED_CHILDREN, [parent], |row| row.get(0))?;
    let queued = tx.query_row(COUNT_QUEUED, params![parent, i64::MAX, 0], |row| row.get(0))?;
    Ok((placed, queued))
}

/// Threads of a tree that have not ended and do not wait for a place.
pub(super) fn count_tree(tx: &WriteTx<'_, '_>, root: i64) -> Result<u64, DbError> {
    Ok(tx.query_row(COUNT_PLACED_TREE, [root], |row| row.get(0))?)
}

/// Gives a child its place, if it is its turn.
pub(super) fn admit(
    tx: &mut WriteTx<'_, '_>,
    id: &ThreadId,
    claim: Claim,
    caps: SpawnCaps,
    at_ms: u64,
) -> Result<bool, DbError> {
    let epoch: Option<u64> = tx
        .query_row("SELECT epoch FROM threads WHERE thread_id = ?1", [id.as_str()], |row| row.get(0))
        .optional()?;
    let epoch = epoch.ok_or_else(|| DbError::from(ThreadStoreError::NoThread(id.clone())))?;
    commit::fence(epoch, claim, id)?;
    let find = "SELECT waits.thread, waits.ticket, waits.seen_ms, threads.parent, threads.root FROM waits
         JOIN threads USING (thread) WHERE threads.thread_id = ?1 AND waits.kind = 'concurrency'";
    type WaitColumns = (i64, i64, i64, Option<i64>, i64);
    let found: Option<WaitColumns> = tx
        .query_row(find, [id.as_str()], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        })
        .optional()?;
    let Some((thread, ticket, seen_ms, parent, root)) = found else { return Ok(true) };
    let at = to_sqlite_integer(at_ms, "a time")?;
    let lease = to_sqlite_integer(WAIT_LEASE_MS, "a time")?;
    let ahead: u64 =
        tx.query_row(COUNT_QUEUED, params![parent, ticket, at.saturating_sub(lease)], |row| row.get(0))?;
    let placed: u64 = tx.query_row(COUNT_PLACED_CHILDREN, [parent], |row| row.get(0))?;
    let total = count_tree(tx, root)?;
    let is_turn = caps.concurrent_children.is_none_or(|max| placed.saturating_add(ahead) < max)
        && caps.total_threads.is_none_or(|max| total < max);
    if is_turn {
        leave(tx, thread)?;
        tx.notify(ThreadChange { thread: id.clone(), status: None });
    } else if at.saturating_sub(seen_ms) >= to_sqlite_integer(WAIT_RENEWAL_MS, "a time")? {
        tx.execute("UPDATE waits SET seen_ms = ?2 WHERE thread = ?1", [thread, at])?;
    }
    Ok(is_turn)
}
