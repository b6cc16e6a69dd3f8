//! Threads that wait for reserved money, or for a place among their parent's children.

use rye_store::{
    BudgetRefusal, BudgetResource, Claim, ReserveRequest, SpawnCaps, ThreadChange, ThreadStoreError,
    WAIT_LEASE_MS, WAIT_RENEWAL_MS, WaitKind,
};
use rye_thread::thread_id::ThreadId;

use crate::commit::fence;
use crate::db::Db;
use crate::db_error::{DbError, to_integer, to_number};
use crate::writer::WriteTx;

/// Children of a parent that have not ended or stopped: those at work, and those that wait for a place.
pub(crate) const COUNT_CHILDREN: &str =
    "SELECT count(*) FILTER (WHERE kind IS NULL), count(*) FILTER (WHERE kind IS NOT NULL)
     FROM threads LEFT JOIN waits ON waits.thread = threads.thread AND waits.kind = 'concurrency'
     WHERE threads.parent = (SELECT thread FROM threads WHERE thread_id = $1) AND completed_at IS NULL
        AND status <> 'suspended'";

/// Threads of a tree that have not ended and do not wait for a place.
pub(crate) const COUNT_TREE: &str = "SELECT count(*) FROM threads WHERE completed_at IS NULL
     AND root = (SELECT root FROM threads WHERE thread_id = $1)
     AND NOT EXISTS (SELECT 1 FROM waits WHERE waits.thread = threads.thread AND waits.kind = 'concurrency')";

/// Keeps the thread's turn after a refusal, or gives it up.
pub(crate) async fn after_reserve(
    db: &Db,
    thread: i64,
    request: ReserveRequest,
    refusal: Option<&BudgetRefusal>,
    now_ms: i64,
) -> Result<(), DbError> {
    let waits_for = refusal.filter(|refusal| request.can_wait && refusal.is_only_reserved());
    let Some(refusal) = waits_for else {
        return leave(db, thread).await;
    };
    let (spend, tokens) = match refusal.resource {
        BudgetResource::Spend => (to_integer(request.spend.0, "a reservation")?, 0),
        BudgetResource::Tokens => (0, to_integer(request.tokens, "a reservation")?),
    };
    let renewed_before = now_ms.saturating_sub(to_integer(WAIT_RENEWAL_MS, "a time")?);
    let refused_by = refusal.refused_by.as_str();
    let sql = "INSERT INTO waits (thread, kind, ticket, blocked_by, spend, tokens, seen_ms)
         SELECT $1, 'budget', nextval('tickets'), thread, $3, $4, $5 FROM threads WHERE thread_id = $2
         ON CONFLICT (thread) DO UPDATE SET kind = 'budget', blocked_by = excluded.blocked_by, spend = $3, tokens = $4,
            seen_ms = $5
         WHERE waits.seen_ms < $6 OR waits.blocked_by IS DISTINCT FROM excluded.blocked_by OR waits.spend <> $3
            OR waits.tokens <> $4";
    db.execute(sql, &[&thread, &refused_by, &spend, &tokens, &now_ms, &renewed_before]).await?;
    Ok(())
}

/// The thread waits for nothing any more.
pub(crate) async fn leave(db: &Db, thread: i64) -> Result<(), DbError> {
    db.execute("DELETE FROM waits WHERE thread = $1", &[&thread]).await?;
    Ok(())
}

/// Lets a new child wait for its place.
pub(crate) async fn queue_child(db: &Db, thread: i64, now_ms: i64) -> Result<(), DbError> {
    let kind = WaitKind::Concurrency.as_str();
    let sql = "INSERT INTO waits (thread, kind, ticket, spend, tokens, seen_ms)
         VALUES ($1, $2, nextval('tickets'), 0, 0, $3)";
    db.execute(sql, &[&thread, &kind, &now_ms]).await?;
    Ok(())
}

/// A child that waits for a place, with those at work and those before it.
const FIND_WAITING: &str = "SELECT own.epoch, waits.thread, waits.seen_ms,
        (SELECT count(*) FROM waits AS other JOIN threads ON threads.thread = other.thread
            WHERE other.kind = 'concurrency' AND threads.parent = own.parent AND other.ticket < waits.ticket
                AND other.seen_ms >= $2),
        (SELECT count(*) FROM threads WHERE parent = own.parent AND completed_at IS NULL AND status <> 'suspended'
            AND NOT EXISTS (SELECT 1 FROM waits AS other WHERE other.thread = threads.thread AND other.kind = 'concurrency')),
        (SELECT count(*) FROM threads WHERE root = own.root AND completed_at IS NULL
            AND NOT EXISTS (SELECT 1 FROM waits AS other WHERE other.thread = threads.thread AND other.kind = 'concurrency'))
     FROM threads AS own LEFT JOIN waits ON waits.thread = own.thread AND waits.kind = 'concurrency' WHERE own.thread_id = $1";

/// Gives a child its place, if it is its turn.
pub(crate) async fn admit(
    tx: &mut WriteTx<'_>,
    id: &ThreadId,
    claim: Claim,
    caps: SpawnCaps,
    at_ms: u64,
) -> Result<bool, DbError> {
    let now_ms = tx.clock.to_database(at_ms);
    let since = now_ms.saturating_sub(to_integer(WAIT_LEASE_MS, "a time")?);
    let name = id.as_str();
    let row = tx.reading().query_opt(FIND_WAITING, &[&name, &since]).await?;
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    fence(row.try_get(0)?, claim, id)?;
    let Some(thread) = row.try_get::<_, Option<i64>>(1)? else { return Ok(true) };
    let seen_ms: i64 = row.try_get(2)?;
    let ahead = to_number(row.try_get(3)?)?;
    let placed = to_number(row.try_get(4)?)?;
    let total = to_number(row.try_get(5)?)?;
    let is_turn = caps.concurrent_children.is_none_or(|max| placed.saturating_add(ahead) < max)
        && caps.total_threads.is_none_or(|max| total < max);
    if is_turn {
        leave(tx.writing(), thread).await?;
        tx.notify(ThreadChange { thread: id.clone(), status: None });
    } else if now_ms.saturating_sub(seen_ms) >= to_integer(WAIT_RENEWAL_MS, "a time")? {
        let sql = "UPDATE waits SET seen_ms = $2 WHERE thread = $1";
        tx.writing().execute(sql, &[&thread, &now_ms]).await?;
    }
    Ok(is_turn)
}
