//! Questions to the store that change nothing.

use lillux::Digest;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::DbError;
use super::chain::{self, JournalHead};
use super::claims;
use super::row_seal::{self, RowHead, RowSealer};
use super::secret::Mac;
use rye_store::Forgery;
use rye_store::ThreadStoreError;
use rye_store::{
    Attribution, BudgetCaps, ChangedThreads, Charge, ChargeScope, ClaimPolicy, JournalRecord, LedgerRow,
    Owner, ThreadFilter, ThreadRow, TranscriptHead, TreeTotals, WaitKind,
};
use rye_thread::cost::Cost;
use rye_thread::money::Nanos;
use rye_thread::status::{SuspendReason, ThreadStatus};
use rye_thread::thread_id::ThreadId;

/// A row's number.
pub(super) fn row_id(connection: &Connection, id: &ThreadId) -> Result<i64, DbError> {
    connection
        .prepare_cached("SELECT thread FROM threads WHERE thread_id = ?1")?
        .query_row([id.as_str()], |row| row.get(0))
        .optional()?
        .ok_or_else(|| DbError::from(ThreadStoreError::NoThread(id.clone())))
}

/// Whether the ledger has a thread with the parent and the maxima that are under the seal of its journal's head.
const IS_IN_LEDGER: &str =
    "SELECT 1 FROM threads JOIN budget_ledger AS ledger ON ledger.thread = threads.thread
    WHERE threads.thread = ?1 AND ledger.thread_id IS threads.thread_id AND ledger.parent IS threads.parent
        AND ledger.parent_thread_id IS threads.parent_id AND ledger.max_spend IS threads.max_spend
        AND ledger.max_tokens IS threads.max_tokens";

/// The whole journal of a thread, exactly as it was written, or a refusal.
pub(super) fn journal(
    connection: &Connection,
    mac: &Mac,
    id: &ThreadId,
) -> Result<Vec<JournalRecord>, DbError> {
    let forged = |what| DbError::from(ThreadStoreError::Forged { thread: id.clone(), what });
    type HeadColumns = (i64, String, Option<String>, u64, Vec<u8>, Vec<u8>, Option<u64>, Option<u64>);
    let found: Option<HeadColumns> = connection
        .prepare_cached(
            "SELECT thread, thread_id, parent_id, head_seq, head_hash, head_mac, max_spend, max_tokens
             FROM threads WHERE thread_id = ?1",
        )?
        .query_row([id.as_str()], |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                row.get(2)?,
                row.get(3)?,
                row.get(4)?,
                row.get(5)?,
                row.get(6)?,
                row.get(7)?,
            ))
        })
        .optional()?;
    let (row, thread, parent, seq, hash, seal, spend, tokens) =
        found.ok_or_else(|| DbError::from(ThreadStoreError::NoThread(id.clone())))?;
    let caps = BudgetCaps { spend: spend.map(Nanos), tokens };
    let sealed = JournalHead { thread: &thread, parent: parent.as_deref(), seq, hash: &hash, caps };
    if !sealed.is_valid_mac(mac, &seal) {
        return Err(forged(Forgery::Head));
    }
    let is_in_ledger = connection.prepare_cached(IS_IN_LEDGER)?.exists([row])?;
    if !is_in_ledger {
        return Err(forged(Forgery::Ledger));
    }
    let mut find = connection
        .prepare_cached("SELECT seq, at_ms, sequence, body FROM journal WHERE thread = ?1 ORDER BY seq")?;
    let mut rows = find.query([row])?;
    let (mut records, mut head) = (Vec::new(), chain::genesis(id));
    while let Some(row) = rows.next()? {
        let (number, record) = (
            row.get::<_, u64>(0)?,
            JournalRecord { at_ms: row.get(1)?, sequence: row.get(2)?, body: row.get(3)? },
        );
        records.push(record);
        if number != records.len() as u64 || number > seq {
            return Err(forged(Forgery::Truncated));
        }
        if let Some(record) = records.last() {
            head = chain::next_hash(&head, number, record);
        }
    }
    if records.len() as u64 != seq {
        return Err(forged(Forgery::Truncated));
    }
    if head.as_bytes().as_slice() != hash {
        return Err(forged(Forgery::Changed));
    }
    Ok(records)
}

/// Reads a status that the store wrote.
pub(super) fn parse_status(word: &str) -> Result<ThreadStatus, DbError> {
    ThreadStatus::parse(word).ok_or_else(|| damaged_error(&format!("`{word}` is not a status")))
}

fn damaged_error(reason: &str) -> DbError {
    DbError::from(ThreadStoreError::Damaged {
        path: std::path::PathBuf::new(),
        reason: rye_item::text::one_line(reason),
    })
}

const THREAD_COLUMNS: &str = "thread_id, directive, title, parent_id, depth, status, reason, result, error, created_at, updated_at,
    completed_at, turns, input_tokens, output_tokens, spend, elapsed_ms, limits, spawn_count, model, provider, capabilities,
    continuation_of, continuation_thread_id, chain_root_id, heartbeat_ms, head_seq, transcript_sequence, transcript_hash,
    pid, pid_start, boot_id, host, detached, note,
    (SELECT kind FROM waits WHERE waits.thread = threads.thread)";

fn thread_row(row: &Row<'_>, seal: &RowSealer) -> Result<ThreadRow, DbError> {
    let is_forged = !seal.is_valid(row, SEALED_OFFSET)?;
    let parse_id = |text: &str| ThreadId::parse(text).map_err(|error| damaged_error(&error.to_string()));
    let parse_optional_id = |column: usize| -> Result<Option<ThreadId>, DbError> {
        row.get::<_, Option<String>>(column)?.as_deref().map(parse_id).transpose()
    };
    let result: Option<String> = row.get(7)?;
    let limits: String = row.get(17)?;
    let sequence: Option<u64> = row.get(27)?;
    let hash: Option<[u8; 32]> = row.get(28)?;
    Ok(ThreadRow {
        id: parse_id(&row.get::<_, String>(0)?)?,
        directive: row.get(1)?,
        title: row.get(2)?,
        parent: parse_optional_id(3)?,
        depth: row.get(4)?,
        status: parse_status(&row.get::<_, String>(5)?)?,
        reason: row.get::<_, Option<String>>(6)?.as_deref().and_then(SuspendReason::parse),
        result: result
            .filter(|_| !is_forged)
            .map(|text| serde_json::from_str(&text).map_err(|error| damaged_error(&error.to_string())))
            .transpose()?,
        error: if is_forged { Some(Forgery::Row.to_string()) } else { row.get(8)? },
        created_at: row.get(9)?,
        updated_at: row.get(10)?,
        completed_at: row.get(11)?,
        cost: Cost {
            turns: row.get(12)?,
            input_tokens: row.get(13)?,
            output_tokens: row.get(14)?,
            spend: Nanos(row.get(15)?),
            elapsed_ms: row.get(16)?,
        },
        limits: serde_json::from_str(&limits).map_err(|error| damaged_error(&error.to_string()))?,
        spawn_count: row.get(18)?,
        model: row.get(19)?,
        provider: row.get(20)?,
        capabilities: row.get(21)?,
        continuation_of: parse_optional_id(22)?,
        continuation_thread_id: parse_optional_id(23)?,
        chain_root_id: parse_optional_id(24)?,
        heartbeat_ms: row.get(25)?,
        records: row.get(26)?,
        transcript_head: sequence
            .zip(hash)
            .map(|(sequence, hash)| TranscriptHead { sequence, hash: Digest::from_bytes(hash) }),
        owner: claims::read_owner(row, 29)?,
        is_detached: row.get(33)?,
        is_submitted: false,
        note: row.get(34)?,
        waiting: row.get::<_, Option<String>>(35)?.as_deref().and_then(WaitKind::parse),
        is_forged,
    })
}

/// Where the columns under the seal begin in what `thread_row` reads.
const SEALED_OFFSET: usize = 36;

fn select(rest: &str) -> String {
    format!("SELECT {THREAD_COLUMNS}, {}, row_mac FROM threads {rest}", row_seal::sealed_columns!())
}

fn query_rows(
    connection: &Connection,
    seal: &RowSealer,
    rest: &str,
    values: impl rusqlite::Params,
) -> Result<Vec<ThreadRow>, DbError> {
    let mut find = connection.prepare_cached(&select(rest))?;
    let mut found = find.query(values)?;
    let mut threads = Vec::new();
    while let Some(row) = found.next()? {
        threads.push(thread_row(row, seal)?);
    }
    Ok(threads)
}

pub(super) fn thread(
    connection: &Connection,
    seal: &RowSealer,
    id: &ThreadId,
) -> Result<Option<ThreadRow>, DbError> {
    Ok(query_rows(connection, seal, "WHERE thread_id = ?1", [id.as_str()])?.pop())
}

pub(super) fn threads(
    connection: &Connection,
    seal: &RowSealer,
    filter: &ThreadFilter,
) -> Result<Vec<ThreadRow>, DbError> {
    let statuses: Vec<String> = filter.statuses.iter().map(|status| format!("'{status}'")).collect();
    let which =
        if statuses.is_empty() { "1".to_owned() } else { format!("status IN ({})", statuses.join(", ")) };
    let limit = filter.limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(-1);
    let rest = format!(
        "WHERE {which} AND (?1 = 0 OR parent IS NULL) AND (?2 IS NULL OR directive = ?2) ORDER BY thread DESC LIMIT ?3"
    );
    query_rows(connection, seal, &rest, params![filter.is_root, filter.directive, limit])
}

/// The number of the last entry of the journal.
pub(super) fn last_position(connection: &Connection) -> Result<u64, DbError> {
    let last: Option<u64> =
        connection.prepare_cached("SELECT max(entry) FROM journal")?.query_row([], |row| row.get(0))?;
    Ok(last.unwrap_or(0))
}

/// Threads with entries of the journal behind `position`. Entries are numbered in the order of their transactions.
pub(super) fn changed_since(
    connection: &Connection,
    seal: &RowSealer,
    position: u64,
    max_records: u64,
) -> Result<Option<ChangedThreads>, DbError> {
    let last = last_position(connection)?;
    if position > last {
        return Ok(None);
    }
    let end = last.min(position.saturating_add(max_records));
    let rest =
        "WHERE thread IN (SELECT thread FROM journal WHERE entry > ?1 AND entry <= ?2) ORDER BY thread";
    let threads = query_rows(connection, seal, rest, params![position, end])?;
    Ok(Some(ChangedThreads { position: end, threads, is_complete: end == last }))
}

pub(super) fn children(
    connection: &Connection,
    seal: &RowSealer,
    id: &ThreadId,
) -> Result<Vec<ThreadRow>, DbError> {
    query_rows(connection, seal, "WHERE parent = ?1 ORDER BY thread", [row_id(connection, id)?])
}

/// The numbers of a thread and all below it. `UNION`, not `UNION ALL`: a forged circle ends.
const SUBTREE_CTE: &str = "WITH RECURSIVE tree (member) AS (
        SELECT ?1 UNION SELECT threads.thread FROM threads JOIN tree ON threads.parent = tree.member)";

pub(super) fn subtree(
    connection: &Connection,
    seal: &RowSealer,
    id: &ThreadId,
) -> Result<Vec<ThreadRow>, DbError> {
    let key = row_id(connection, id)?;
    let sql =
        format!("{SUBTREE_CTE} {}", select("WHERE thread IN (SELECT member FROM tree) ORDER BY thread"));
    let mut find = connection.prepare_cached(&sql)?;
    let mut found = find.query([key])?;
    let mut threads = Vec::new();
    while let Some(row) = found.next()? {
        threads.push(thread_row(row, seal)?);
    }
    Ok(threads)
}

/// The parent, its parent, and so on up to the root.
pub(super) fn ancestors(
    connection: &Connection,
    seal: &RowSealer,
    id: &ThreadId,
) -> Result<Vec<ThreadRow>, DbError> {
    let mut found = Vec::new();
    let mut next = thread(connection, seal, id)?
        .ok_or_else(|| DbError::from(ThreadStoreError::NoThread(id.clone())))?
        .parent;
    while let Some(id) = next.take() {
        if found.iter().any(|known: &ThreadRow| known.id == id) {
            return Err(damaged_error(&format!("{id} is its own ancestor")));
        }
        let row = thread(connection, seal, &id)?.ok_or(DbError::from(ThreadStoreError::NoThread(id)))?;
        next = row.parent.clone();
        found.push(row);
    }
    Ok(found)
}

pub(super) fn tree_totals(connection: &Connection, id: &ThreadId) -> Result<TreeTotals, DbError> {
    let key = row_id(connection, id)?;
    let sql = format!(
        "{SUBTREE_CTE} SELECT status, count(*), sum(turns), sum(input_tokens), sum(output_tokens), sum(spend), sum(elapsed_ms)
         FROM threads WHERE thread IN (SELECT member FROM tree) GROUP BY status"
    );
    let mut find = connection.prepare_cached(&sql)?;
    let mut found = find.query([key])?;
    let mut totals = TreeTotals::default();
    while let Some(row) = found.next()? {
        totals.counts.push((parse_status(&row.get::<_, String>(0)?)?, row.get(1)?));
        let cost = &mut totals.cost;
        cost.turns = cost.turns.saturating_add(row.get(2)?);
        cost.input_tokens = cost.input_tokens.saturating_add(row.get(3)?);
        cost.output_tokens = cost.output_tokens.saturating_add(row.get(4)?);
        cost.spend = cost.spend.plus(Nanos(row.get(5)?));
        cost.elapsed_ms = cost.elapsed_ms.saturating_add(row.get(6)?);
    }
    totals.counts.sort_by_key(|(status, _)| ThreadStatus::ALL.iter().position(|known| known == status));
    totals.reserved = ledger(connection, id)?.subtree_reserved;
    Ok(totals)
}

pub(super) fn ledger(connection: &Connection, id: &ThreadId) -> Result<LedgerRow, DbError> {
    connection
        .prepare_cached(
            "SELECT max_spend, max_tokens, actual_spend, reserved_spend, subtree_spend, subtree_reserved, actual_tokens,
                    reserved_tokens, subtree_tokens, subtree_reserved_tokens, unknown_spend, status
             FROM budget_ledger WHERE thread_id = ?1",
        )?
        .query_row([id.as_str()], |row| {
            Ok(LedgerRow {
                thread: id.clone(),
                caps: BudgetCaps { spend: row.get::<_, Option<u64>>(0)?.map(Nanos), tokens: row.get(1)? },
                actual_spend: Nanos(row.get(2)?),
                reserved_spend: Nanos(row.get(3)?),
                subtree_spend: Nanos(row.get(4)?),
                subtree_reserved: Nanos(row.get(5)?),
                actual_tokens: row.get(6)?,
                reserved_tokens: row.get(7)?,
                subtree_tokens: row.get(8)?,
                subtree_reserved_tokens: row.get(9)?,
                unknown_spend: Nanos(row.get(10)?),
                status: row.get(11)?,
            })
        })
        .optional()?
        .ok_or_else(|| DbError::from(ThreadStoreError::NoThread(id.clone())))
}

/// What settled calls have cost, by thread and purpose, the dearest first.
pub(super) fn charges(
    connection: &Connection,
    id: &ThreadId,
    scope: ChargeScope,
) -> Result<Vec<Charge>, DbError> {
    let key = row_id(connection, id)?;
    let tree = match scope {
        ChargeScope::Thread => "WITH tree (member) AS (SELECT ?1)",
        ChargeScope::Subtree => SUBTREE_CTE,
    };
    let sql = format!(
        "{tree} SELECT thread_id, calls.item, calls.model, calls.tool, calls.hook, count(*), sum(calls.spend),
                sum(calls.input_tokens), sum(calls.output_tokens), sum(calls.is_unknown)
         FROM tree JOIN calls ON calls.thread = tree.member JOIN threads ON threads.thread = tree.member
         WHERE is_settled = 1 GROUP BY 1, 2, 3, 4, 5 ORDER BY 7 DESC, 1, 2, 3, 4, 5"
    );
    let mut find = connection.prepare_cached(&sql)?;
    let mut found = find.query([key])?;
    let mut charges = Vec::new();
    while let Some(row) = found.next()? {
        let thread =
            ThreadId::parse(&row.get::<_, String>(0)?).map_err(|error| damaged_error(&error.to_string()))?;
        charges.push(Charge {
            thread,
            attribution: Attribution {
                item: row.get(1)?,
                model: row.get(2)?,
                tool: row.get(3)?,
                hook: row.get(4)?,
            },
            calls: row.get(5)?,
            spend: Nanos(row.get(6)?),
            input_tokens: row.get(7)?,
            output_tokens: row.get(8)?,
            unknown: row.get(9)?,
        });
    }
    Ok(charges)
}

/// Threads that are said to be at work, and that no process works on.
pub(super) fn orphans(
    connection: &Connection,
    seal: &RowSealer,
    observer: &Owner,
    policy: ClaimPolicy,
) -> Result<Vec<ThreadRow>, DbError> {
    let mut found =
        query_rows(connection, seal, "WHERE status IN ('running', 'created') ORDER BY thread", [])?;
    found.retain(|row| match &row.owner {
        Some(owner) => policy.can_take(owner, observer, row.heartbeat_ms, &super::SystemProbe),
        // One that was registered is about to be started by its caller, unless it was left to others.
        None => row.status == ThreadStatus::Running || row.is_detached,
    });
    Ok(found)
}

/// Whether a thread that continues by itself has not ended.
pub(super) fn has_detached(connection: &Connection) -> Result<bool, DbError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM threads WHERE detached = 1 AND completed_at IS NULL)";
    Ok(connection.query_row(sql, [], |row| row.get(0))?)
}

/// How far each thread's row has come, the oldest first.
pub(super) fn heads(connection: &Connection) -> Result<Vec<(ThreadId, RowHead)>, DbError> {
    let mut find =
        connection.prepare_cached("SELECT thread_id, revision, row_mac FROM threads ORDER BY thread")?;
    let mut found = find.query([])?;
    let mut heads = Vec::new();
    while let Some(row) = found.next()? {
        let id =
            ThreadId::parse(&row.get::<_, String>(0)?).map_err(|error| damaged_error(&error.to_string()))?;
        heads.push((id, row_seal::row_head(row.get(1)?, &row.get::<_, Vec<u8>>(2)?)));
    }
    Ok(heads)
}
