//! Questions to the store that change nothing.

use lillux::Digest;
use rye_store::{
    Attribution, BudgetCaps, Charge, ChargeScope, ClaimPolicy, Forgery, JournalRecord, LedgerRow, Owner,
    Reservation, ThreadFilter, ThreadRow, ThreadStoreError, TranscriptHead, TreeTotals, WaitKind,
    journal_genesis, next_journal_hash,
};
use rye_thread::cost::Cost;
use rye_thread::money::Nanos;
use rye_thread::status::{SuspendReason, ThreadStatus};
use rye_thread::thread_id::ThreadId;
use tokio_postgres::Row;

use crate::claims::{read_note, read_owner};
use crate::connection::ReadContext;
use crate::db::{Db, SqlValue};
use crate::db_error::{DbError, to_number};
use crate::record::{
    RECORD_COLUMN_COUNT, ThreadRecord, forged_error, parse_id, parse_status, record_columns,
};

/// The whole journal of a thread, exactly as it was written, or a refusal.
pub(crate) async fn journal(context: &ReadContext, id: &ThreadId) -> Result<Vec<JournalRecord>, DbError> {
    let db = &context.db;
    // One moment for both, the head and the entries.
    db.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    let name = id.as_str();
    let head = concat!(
        "SELECT ",
        record_columns!(),
        ", EXISTS (SELECT 1 FROM budget_ledger AS ledger WHERE ledger.thread = threads.thread
                AND ledger.thread_id = threads.thread_id AND ledger.parent IS NOT DISTINCT FROM threads.parent
                AND ledger.parent_thread_id IS NOT DISTINCT FROM threads.parent_id
                AND ledger.max_spend IS NOT DISTINCT FROM threads.max_spend
                AND ledger.max_tokens IS NOT DISTINCT FROM threads.max_tokens)
         FROM threads WHERE thread_id = $1"
    );
    let entries =
        "SELECT seq, at_ms, sequence, body FROM journal JOIN threads USING (thread) WHERE thread_id = $1
         ORDER BY seq";
    let found =
        futures_util::future::try_join(db.query_opt(head, &[&name]), db.query(entries, &[&name])).await;
    db.batch("COMMIT").await?;
    let (row, entries) = found?;
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    let record = ThreadRecord::from_row(&row, 0)?;
    let forged = |what| DbError::from(ThreadStoreError::Forged { thread: id.clone(), what });
    match record.forgery(&context.seal) {
        None => {}
        Some(Forgery::Row) => return Err(forged(Forgery::Head)),
        Some(other) => return Err(forged(other)),
    }
    let is_in_ledger: bool = row.try_get(RECORD_COLUMN_COUNT)?;
    if !is_in_ledger {
        return Err(forged(Forgery::Ledger));
    }
    let (mut records, mut hash) = (Vec::with_capacity(entries.len()), journal_genesis(id));
    for (row, expected) in entries.iter().zip(1_i64..) {
        let number: i64 = row.try_get(0)?;
        if number != expected || number > record.head_seq {
            return Err(forged(Forgery::Truncated));
        }
        let entry = JournalRecord {
            at_ms: to_number(row.try_get(1)?)?,
            sequence: to_number(row.try_get(2)?)?,
            body: row.try_get(3)?,
        };
        hash = next_journal_hash(&hash, to_number(number)?, &entry);
        records.push(entry);
    }
    if i64::try_from(records.len()).ok() != Some(record.head_seq) {
        return Err(forged(Forgery::Truncated));
    }
    if hash.as_bytes().as_slice() != record.head_hash {
        return Err(forged(Forgery::Changed));
    }
    Ok(records)
}

/// What a thread's row is read from: the sealed columns, then these.
macro_rules! select_threads {
    ($before:expr, $rest:literal) => {
        concat!(
            $before,
            "SELECT ",
            record_columns!(),
            ", lease_ms, note, pid, pid_start, boot_id, host,
              (SELECT kind FROM waits WHERE waits.thread = threads.thread),
              EXISTS (SELECT 1 FROM placements WHERE placements.thread = threads.root AND submission IS NOT NULL)
              FROM threads ",
            $rest
        )
    };
}

fn thread_row(context: &ReadContext, row: &Row) -> Result<ThreadRow, DbError> {
    Ok(judge_row(context, row)?.0)
}

/// A thread's row, and why it is refused, if it is.
fn judge_row(context: &ReadContext, row: &Row) -> Result<(ThreadRow, Option<Forgery>), DbError> {
    let record = ThreadRecord::from_row(row, 0)?;
    let forgery = record.forgery(&context.seal);
    let is_forged = forgery.is_some();
    let optional_id = |text: &Option<String>| text.as_deref().map(parse_id).transpose();
    let parse_json = |text: &str| {
        serde_json::from_str(text).map_err(|error| DbError::damaged(&format!("a row is not JSON: {error}")))
    };
    let hash = record.transcript_hash.as_deref().map(<[u8; 32]>::try_from).transpose();
    let hash = hash.map_err(|_| DbError::damaged("the hash of a transcript has another length"))?;
    let sequence = record.transcript_sequence.map(to_number).transpose()?;
    let next = RECORD_COLUMN_COUNT;
    let note: Option<String> = row.try_get(next + 1)?;
    let note = note.and_then(|note| read_note(&context.seal, &record.thread_id, &note));
    let row = ThreadRow {
        id: parse_id(&record.thread_id)?,
        parent: optional_id(&record.parent_id)?,
        depth: to_number(record.depth)?,
        status: record.status()?,
        reason: record.reason.as_deref().and_then(SuspendReason::parse),
        result: record.result.as_deref().filter(|_| !is_forged).map(parse_json).transpose()?,
        error: forgery.as_ref().map_or(record.error, |forgery| Some(forgery.to_string())),
        cost: Cost {
            turns: to_number(record.turns)?,
            input_tokens: to_number(record.input_tokens)?,
            output_tokens: to_number(record.output_tokens)?,
            spend: Nanos(to_number(record.spend)?),
            elapsed_ms: to_number(record.elapsed_ms)?,
        },
        limits: serde_json::from_str(&record.limits)
            .map_err(|error| DbError::damaged(&format!("limits are not JSON: {error}")))?,
        spawn_count: to_number(record.spawn_count)?,
        continuation_of: optional_id(&record.continuation_of)?,
        continuation_thread_id: optional_id(&record.continuation_thread_id)?,
        chain_root_id: optional_id(&record.chain_root_id)?,
        records: to_number(record.head_seq)?,
        transcript_head: sequence
            .zip(hash)
            .map(|(sequence, hash)| TranscriptHead { sequence, hash: Digest::from_bytes(hash) }),
        directive: record.directive,
        title: record.title,
        created_at: record.created_at,
        updated_at: record.updated_at,
        completed_at: record.completed_at,
        model: record.model,
        provider: record.provider,
        capabilities: record.capabilities,
        is_detached: record.is_detached,
        heartbeat_ms: context.shared.clock.to_local(row.try_get(next)?)?,
        note,
        owner: read_owner(row, next + 2)?,
        waiting: row.try_get::<_, Option<String>>(next + 6)?.as_deref().and_then(WaitKind::parse),
        is_submitted: row.try_get(next + 7)?,
        is_forged,
    };
    Ok((row, forgery))
}

async fn query_rows(
    context: &ReadContext,
    sql: &'static str,
    values: &[SqlValue<'_>],
) -> Result<Vec<ThreadRow>, DbError> {
    let rows = context.db.query(sql, values).await?;
    rows.iter().map(|row| thread_row(context, row)).collect()
}

const FIND_THREAD: &str = select_threads!("", "WHERE thread_id = $1");

pub(crate) async fn thread(context: &ReadContext, id: &ThreadId) -> Result<Option<ThreadRow>, DbError> {
    let name = id.as_str();
    Ok(query_rows(context, FIND_THREAD, &[&name]).await?.pop())
}

/// A thread's row, to rely on.
pub(crate) async fn verified_thread(
    context: &ReadContext,
    id: &ThreadId,
) -> Result<Option<ThreadRow>, DbError> {
    let name = id.as_str();
    let Some(row) = context.db.query_opt(FIND_THREAD, &[&name]).await? else { return Ok(None) };
    match judge_row(context, &row)? {
        (row, None) => Ok(Some(row)),
        (_, Some(what)) => Err(forged_error(id, what)),
    }
}

pub(crate) async fn threads(context: &ReadContext, filter: &ThreadFilter) -> Result<Vec<ThreadRow>, DbError> {
    let statuses: Vec<&str> = filter.statuses.iter().map(|status| status.as_str()).collect();
    let limit = filter.limit.and_then(|limit| i64::try_from(limit).ok());
    let sql = select_threads!(
        "",
        "WHERE (cardinality($1::text[]) = 0 OR status = ANY($1)) AND (NOT $2 OR parent IS NULL)
            AND ($3::text IS NULL OR directive = $3) ORDER BY thread DESC LIMIT $4"
    );
    query_rows(context, sql, &[&statuses, &filter.is_root, &filter.directive, &limit]).await
}

/// A row's number.
async fn row_number(db: &Db, id: &ThreadId) -> Result<i64, DbError> {
    let name = id.as_str();
    let row = db.query_opt("SELECT thread FROM threads WHERE thread_id = $1", &[&name]).await?;
    Ok(row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?.try_get(0)?)
}

pub(crate) async fn children(context: &ReadContext, id: &ThreadId) -> Result<Vec<ThreadRow>, DbError> {
    let number = row_number(&context.db, id).await?;
    query_rows(context, select_threads!("", "WHERE parent = $1 ORDER BY thread"), &[&number]).await
}

/// The numbers of a thread and all below it. `UNION`, not `UNION ALL`: a forged circle ends.
macro_rules! subtree {
    () => {
        "WITH RECURSIVE tree (member) AS (
            SELECT $1::bigint UNION SELECT threads.thread FROM threads JOIN tree ON threads.parent = tree.member) "
    };
}

pub(crate) async fn subtree(context: &ReadContext, id: &ThreadId) -> Result<Vec<ThreadRow>, DbError> {
    let number = row_number(&context.db, id).await?;
    const FIND: &str =
        select_threads!(subtree!(), "WHERE thread IN (SELECT member FROM tree) ORDER BY thread");
    query_rows(context, FIND, &[&number]).await
}

/// The parent, its parent, and so on up to the root.
pub(crate) async fn ancestors(context: &ReadContext, id: &ThreadId) -> Result<Vec<ThreadRow>, DbError> {
    let mut found: Vec<ThreadRow> = Vec::new();
    let row = thread(context, id).await?;
    let mut next = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?.parent;
    while let Some(id) = next.take() {
        if found.iter().any(|known| known.id == id) {
            return Err(DbError::damaged(&format!("{id} is its own ancestor")));
        }
        let row = thread(context, &id).await?.ok_or(ThreadStoreError::NoThread(id))?;
        next = row.parent.clone();
        found.push(row);
    }
    Ok(found)
}

pub(crate) async fn tree_totals(context: &ReadContext, id: &ThreadId) -> Result<TreeTotals, DbError> {
    const SUM: &str = concat!(
        subtree!(),
        "SELECT status, count(*), least(sum(turns), 9223372036854775807)::bigint,
            least(sum(input_tokens), 9223372036854775807)::bigint, least(sum(output_tokens), 9223372036854775807)::bigint,
            least(sum(spend), 9223372036854775807)::bigint, least(sum(elapsed_ms), 9223372036854775807)::bigint
         FROM threads WHERE thread IN (SELECT member FROM tree) GROUP BY status"
    );
    let number = row_number(&context.db, id).await?;
    let mut totals = TreeTotals::default();
    for row in context.db.query(SUM, &[&number]).await? {
        let number = |column: usize| -> Result<u64, DbError> { to_number(row.try_get(column)?) };
        totals.counts.push((parse_status(row.try_get(0)?)?, number(1)?));
        let cost = &mut totals.cost;
        cost.turns = cost.turns.saturating_add(number(2)?);
        cost.input_tokens = cost.input_tokens.saturating_add(number(3)?);
        cost.output_tokens = cost.output_tokens.saturating_add(number(4)?);
        cost.spend = cost.spend.plus(Nanos(number(5)?));
        cost.elapsed_ms = cost.elapsed_ms.saturating_add(number(6)?);
    }
    totals.counts.sort_by_key(|(status, _)| ThreadStatus::ALL.iter().position(|known| known == status));
    totals.reserved = ledger(context, id).await?.subtree_reserved;
    Ok(totals)
}

pub(crate) async fn ledger(context: &ReadContext, id: &ThreadId) -> Result<LedgerRow, DbError> {
    let name = id.as_str();
    let sql = "SELECT max_spend, max_tokens, actual_spend, reserved_spend, subtree_spend, subtree_reserved, actual_tokens,
            reserved_tokens, subtree_tokens, subtree_reserved_tokens, unknown_spend, status
         FROM budget_ledger WHERE thread_id = $1";
    let row = context.db.query_opt(sql, &[&name]).await?;
    let row = row.ok_or_else(|| ThreadStoreError::NoThread(id.clone()))?;
    let number = |column: usize| -> Result<u64, DbError> { to_number(row.try_get(column)?) };
    let optional = |column: usize| -> Result<Option<u64>, DbError> {
        row.try_get::<_, Option<i64>>(column)?.map(to_number).transpose()
    };
    Ok(LedgerRow {
        thread: id.clone(),
        caps: BudgetCaps { spend: optional(0)?.map(Nanos), tokens: optional(1)? },
        actual_spend: Nanos(number(2)?),
        reserved_spend: Nanos(number(3)?),
        subtree_spend: Nanos(number(4)?),
        subtree_reserved: Nanos(number(5)?),
        actual_tokens: number(6)?,
        reserved_tokens: number(7)?,
        subtree_tokens: number(8)?,
        subtree_reserved_tokens: number(9)?,
        unknown_spend: Nanos(number(10)?),
        status: row.try_get(11)?,
    })
}

/// The calls of a thread that are not settled.
pub(crate) async fn open_reservations(
    context: &ReadContext,
    id: &ThreadId,
) -> Result<Vec<Reservation>, DbError> {
    let number = row_number(&context.db, id).await?;
    let sql = "SELECT call, reserved_spend, reserved_tokens FROM calls WHERE thread = $1 AND NOT is_settled ORDER BY call";
    let rows = context.db.query(sql, &[&number]).await?;
    let reservation = |row: &Row| {
        Ok(Reservation {
            call: to_number(row.try_get(0)?)?,
            spend: Nanos(to_number(row.try_get(1)?)?),
            tokens: to_number(row.try_get(2)?)?,
        })
    };
    rows.iter().map(reservation).collect()
}

/// What settled calls have cost, by thread and purpose, the dearest first.
pub(crate) async fn charges(
    context: &ReadContext,
    id: &ThreadId,
    scope: ChargeScope,
) -> Result<Vec<Charge>, DbError> {
    macro_rules! charged {
        ($tree:expr) => {
            concat!(
                $tree,
                "SELECT thread_id, calls.item, calls.model, calls.tool, calls.hook, count(*), sum(calls.spend)::bigint,
                    sum(calls.input_tokens)::bigint, sum(calls.output_tokens)::bigint,
                    count(*) FILTER (WHERE calls.is_unknown)
                 FROM tree JOIN calls ON calls.thread = tree.member JOIN threads ON threads.thread = tree.member
                 WHERE is_settled GROUP BY 1, 2, 3, 4, 5
                 ORDER BY 7 DESC, 1, 2, 3, 4 NULLS FIRST, 5 NULLS FIRST"
            )
        };
    }
    const OF_THREAD: &str = charged!("WITH tree (member) AS (SELECT $1::bigint) ");
    const OF_SUBTREE: &str = charged!(subtree!());
    let number = row_number(&context.db, id).await?;
    let sql = match scope {
        ChargeScope::Thread => OF_THREAD,
        ChargeScope::Subtree => OF_SUBTREE,
    };
    let mut charges = Vec::new();
    for row in context.db.query(sql, &[&number]).await? {
        let number = |column: usize| -> Result<u64, DbError> { to_number(row.try_get(column)?) };
        charges.push(Charge {
            thread: parse_id(row.try_get(0)?)?,
            attribution: Attribution {
                item: row.try_get(1)?,
                model: row.try_get(2)?,
                tool: row.try_get(3)?,
                hook: row.try_get(4)?,
            },
            calls: number(5)?,
            spend: Nanos(number(6)?),
            input_tokens: number(7)?,
            output_tokens: number(8)?,
            unknown: number(9)?,
        });
    }
    Ok(charges)
}

/// Threads that are said to be at work, and that no process works on.
pub(crate) async fn orphans(
    context: &ReadContext,
    observer: &Owner,
    policy: ClaimPolicy,
) -> Result<Vec<ThreadRow>, DbError> {
    context.shared.clock.measure(&context.db).await?;
    // Threads of other places are theirs, and submitted ones are the workers'.
    let sql = select_threads!(
        "",
        "WHERE status IN ('running', 'created') AND root IN (
            SELECT thread FROM placements WHERE origin = $1 AND submission IS NULL) ORDER BY thread"
    );
    let mut found = query_rows(context, sql, &[&context.shared.origin]).await?;
    let probe = context.shared.probe.as_ref();
    found.retain(|row| match &row.owner {
        Some(owner) => policy.can_take(owner, observer, row.heartbeat_ms, probe),
        // One that was registered is about to be started by its creator, unless it was left to others.
        None => row.status == ThreadStatus::Running || row.is_detached,
    });
    Ok(found)
}

/// Whether a thread that runs by itself has not ended.
pub(crate) async fn has_detached(context: &ReadContext) -> Result<bool, DbError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM threads JOIN placements ON placements.thread = threads.root
         WHERE detached AND completed_at IS NULL AND origin = $1 AND submission IS NULL)";
    context.db.query_value(sql, &[&context.shared.origin]).await
}
