//! Money and tokens: what is reserved for calls in flight, what was used, on each thread and on every ancestor.
//!
//! A row holds what its own thread used (`actual_…`, `reserved_…`) and what its whole subtree did (`subtree_…`, its own
//! included), so that a reservation costs one row per level, however many threads there are.

use rusqlite::{Connection, OptionalExtension, params};

use super::db_error::to_sqlite_integer;
use super::rolling::{RecordedCall, RollingCall};
use super::waits::QueuePosition;
use super::writer::WriteTx;
use super::{DbError, row_seal, waits};
use rye_store::ThreadStoreError;
use rye_store::{
    BudgetCaps, BudgetRefusal, BudgetResource, Forgery, Reservation, ReserveRequest, RollingBudget,
    Settlement, ThreadCommit,
};
use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

/// Makes a thread's row.
pub(super) fn insert_row(
    tx: &WriteTx<'_, '_>,
    row: (i64, Option<i64>),
    names: (&ThreadId, Option<&ThreadId>),
    caps: BudgetCaps,
    at: &str,
) -> Result<(), DbError> {
    tx.execute("INSERT INTO budget_ledger (thread, parent, thread_id, parent_thread_id, max_spend, max_tokens, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)", params![
            row.0,
            row.1,
            names.0.as_str(),
            names.1.map(ThreadId::as_str),
            spend_column(caps)?,
            tokens_column(caps)?,
            at
        ])?;
    Ok(())
}

pub(super) fn spend_column(caps: BudgetCaps) -> Result<Option<i64>, DbError> {
    caps.spend.map(|spend| to_sqlite_integer(spend.0, "the most a thread may spend")).transpose()
}

pub(super) fn tokens_column(caps: BudgetCaps) -> Result<Option<i64>, DbError> {
    caps.tokens.map(|tokens| to_sqlite_integer(tokens, "the most tokens a thread may use")).transpose()
}

/// Sets other maxima.
pub(super) fn set_caps(tx: &WriteTx<'_, '_>, thread: i64, caps: BudgetCaps) -> Result<(), DbError> {
    tx.execute(
        "UPDATE budget_ledger SET max_spend = ?2, max_tokens = ?3 WHERE thread = ?1",
        params![thread, spend_column(caps)?, tokens_column(caps)?],
    )?;
    Ok(())
}

/// Says how a thread ended.
pub(super) fn close(tx: &WriteTx<'_, '_>, thread: i64, status: &str, at: &str) -> Result<(), DbError> {
    if tx
        .spec
        .rules
        .release_on_status
        .as_ref()
        .is_some_and(|closed_on| !closed_on.iter().any(|word| word == status))
    {
        return Ok(());
    }
    tx.execute(
        "UPDATE budget_ledger SET status = ?2, updated_at = ?3 WHERE thread = ?1",
        params![thread, status, at],
    )?;
    Ok(())
}

/// A thread that reserves, as its sealed row has it.
#[derive(Clone, Copy)]
pub(super) struct Reserver<'a> {
    pub(super) row: i64,
    pub(super) id: &'a ThreadId,
    /// Its maxima with this commit.
    pub(super) caps: BudgetCaps,
}

/// Reserves what a call may cost, on the thread and every ancestor, or on none of them.
pub(super) fn reserve(
    tx: &WriteTx<'_, '_>,
    own: Reserver<'_>,
    request: ReserveRequest,
    budgets: &[RollingBudget],
    at_ms: u64,
) -> Result<Option<BudgetRefusal>, DbError> {
    let (thread, name) = (own.row, own.id);
    let position = waits::position(tx, thread, at_ms)?;
    let mut refusal = try_reserve(tx, own, request, &position)?;
    if refusal.is_none() {
        let call = RollingCall { store: tx.seal.store, thread: name, call: request.call };
        refusal =
            tx.rolling.reserve(call, request, budgets, |thread, call| recorded_call(tx, thread, call))?;
    }
    if refusal.is_none() {
        write_reservation(tx, thread, name, request)?;
    }
    if refusal.is_some() || !position.is_empty {
        waits::after_reserve(tx, thread, request, refusal.as_ref(), at_ms)?;
    }
    Ok(refusal)
}

/// What the ledger has of a call.
fn recorded_call(tx: &WriteTx<'_, '_>, thread: &str, call: i64) -> Result<RecordedCall, DbError> {
    let found: Option<(bool, i64)> = tx
        .query_row(
            "SELECT calls.is_settled, calls.spend FROM calls JOIN budget_ledger ON budget_ledger.thread = calls.thread
             WHERE budget_ledger.thread_id = ?1 AND calls.call = ?2",
            params![thread, call],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    Ok(match found {
        None => RecordedCall::Missing,
        Some((false, _)) => RecordedCall::Open,
        Some((true, spend)) => RecordedCall::Settled(spend),
    })
}

/// A row of the ledger, with the parent and the maxima that the registry has under its seal.
struct LedgerLevel {
    parent: Option<i64>,
    id: String,
    caps: BudgetCaps,
    /// What the registry has.
    sealed: BudgetCaps,
    /// Whether names and parent are those of the registry.
    is_placed: bool,
    spent: u64,
    spend_aside: u64,
    used: u64,
    tokens_aside: u64,
}

const FIND_LEVEL: &str =
    "SELECT threads.parent, threads.thread_id, ledger.max_spend, ledger.max_tokens, threads.max_spend,
        threads.max_tokens, ledger.thread_id IS threads.thread_id AND ledger.parent IS threads.parent
        AND ledger.parent_thread_id IS threads.parent_id, subtree_spend, subtree_reserved, subtree_tokens,
        subtree_reserved_tokens
    FROM threads JOIN budget_ledger AS ledger ON ledger.thread = threads.thread WHERE threads.thread = ?1";

fn find_level(tx: &WriteTx<'_, '_>, row: i64) -> Result<Option<LedgerLevel>, DbError> {
    let found = tx.query_row(FIND_LEVEL, [row], |row| {
        let caps = |first: usize| -> rusqlite::Result<BudgetCaps> {
            Ok(BudgetCaps {
                spend: row.get::<_, Option<u64>>(first)?.map(Nanos),
                tokens: row.get(first + 1)?,
            })
        };
        Ok(LedgerLevel {
            parent: row.get(0)?,
            id: row.get(1)?,
            caps: caps(2)?,
            sealed: caps(4)?,
            is_placed: row.get(6)?,
            spent: row.get(7)?,
            spend_aside: row.get(8)?,
            used: row.get(9)?,
            tokens_aside: row.get(10)?,
        })
    });
    Ok(found.optional()?)
}

/// What is wrong with a row whose parent or maxima are not those of the registry.
pub(super) fn forged_error(id: &ThreadId) -> DbError {
    DbError::from(ThreadStoreError::Forged { thread: id.clone(), what: Forgery::Ledger })
}

/// Whether the call fits into what the thread and every ancestor may use. Who the ancestors are and what they may use is
/// what the registry has under its seals; a ledger that says otherwise is refused.
fn try_reserve(
    tx: &WriteTx<'_, '_>,
    own: Reserver<'_>,
    request: ReserveRequest,
    position: &QueuePosition,
) -> Result<Option<BudgetRefusal>, DbError> {
    let mut next = Some(own.row);
    for level in 0.. {
        let Some(row) = next else {
            break;
        };
        check_depth(level)?;
        let found = find_level(tx, row)?.ok_or_else(|| forged_error(own.id))?;
        let LedgerLevel { parent, id, caps, is_placed, spent, spend_aside, used, tokens_aside, .. } = found;
        let id = ThreadId::parse(&id)
            .map_err(|error| DbError::from(ThreadStoreError::Failed(error.to_string())))?;
        // Its own row's seal was checked when the commit began.
        let sealed = if row == own.row {
            own.caps
        } else {
            row_seal::check(tx, row, &id)?;
            found.sealed
        };
        if !is_placed || caps != sealed {
            return Err(forged_error(&id));
        }
        let (max_spend, max_tokens) = (sealed.spend.map(|spend| spend.0), sealed.tokens);
        // What those who came first wait for counts as theirs.
        let ahead = waits::ahead(tx, own.row, row, position)?;
        let (spend_aside, tokens_aside) =
            (spend_aside.saturating_add(ahead.0), tokens_aside.saturating_add(ahead.1));
        let checks = [
            (BudgetResource::Spend, max_spend, spent, spend_aside, request.spend.0),
            (BudgetResource::Tokens, max_tokens, used, tokens_aside, request.tokens),
        ];
        for (resource, max, used, reserved, request) in checks {
            let Some(max) = max else {
                continue;
            };
            if u128::from(used) + u128::from(reserved) + u128::from(request) > u128::from(max) {
                return Ok(Some(BudgetRefusal {
                    refused_by: id,
                    resource,
                    limit: max,
                    used,
                    reserved,
                    requested: request,
                    rolling: None,
                }));
            }
        }
        next = parent;
    }
    Ok(None)
}

/// Writes what a call may cost on the thread and every ancestor.
fn write_reservation(
    tx: &WriteTx<'_, '_>,
    thread: i64,
    name: &ThreadId,
    request: ReserveRequest,
) -> Result<(), DbError> {
    let spend = to_sqlite_integer(request.spend.0, "a reservation")?;
    let tokens = to_sqlite_integer(request.tokens, "a reservation")?;
    let call = to_sqlite_integer(request.call, "a call's number")?;
    let added = tx.execute(
        "INSERT INTO calls (thread, call, reserved_spend, reserved_tokens) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO NOTHING",
        params![thread, call, spend, tokens],
    )?;
    if added == 0 {
        let resource = format!("call {call} was made before");
        return Err(DbError::from(ThreadStoreError::Conflict { thread: name.clone(), what: resource }));
    }
    let parent: Option<i64> = tx
        .query_row("UPDATE budget_ledger SET reserved_spend = reserved_spend + ?2, reserved_tokens = reserved_tokens + ?3,
                    subtree_reserved = subtree_reserved + ?2, subtree_reserved_tokens = subtree_reserved_tokens + ?3
             WHERE thread = ?1 RETURNING (SELECT threads.parent FROM threads WHERE threads.thread = ?1)", params![thread, spend, tokens], |row| row.get(0))
        .map_err(overflow_error)?;
    let added = LedgerDelta { reserved: spend, reserved_tokens: tokens, ..LedgerDelta::default() };
    add_to_ancestors(tx, parent, &added)
}

/// What is added to a row and to those above it.
#[derive(Clone, Copy, Default)]
struct LedgerDelta {
    spend: i64,
    reserved: i64,
    tokens: i64,
    reserved_tokens: i64,
}

fn add_to_ancestors(tx: &WriteTx<'_, '_>, from: Option<i64>, added: &LedgerDelta) -> Result<(), DbError> {
    let mut next = from;
    for level in 0.. {
        let Some(row) = next else {
            break;
        };
        check_depth(level)?;
        next = tx
            .query_row(
                "UPDATE budget_ledger SET subtree_spend = subtree_spend + ?2, subtree_reserved = subtree_reserved + ?3,
                        subtree_tokens = subtree_tokens + ?4, subtree_reserved_tokens = subtree_reserved_tokens + ?5
                 WHERE thread = ?1 RETURNING (SELECT threads.parent FROM threads WHERE threads.thread = ?1)",
                params![row, added.spend, added.reserved, added.tokens, added.reserved_tokens],
                |row| row.get(0),
            )
            .map_err(overflow_error)?;
    }
    Ok(())
}

/// No tree is so deep; a forged one may go in a circle.
fn check_depth(level: u32) -> Result<(), DbError> {
    const MAX_DEPTH: u32 = 10_000;
    if level > MAX_DEPTH {
        return Err(DbError::from(ThreadStoreError::Failed(
            "the ledger's threads have no end of ancestors".to_owned(),
        )));
    }
    Ok(())
}

/// A sum that is not a whole number any more.
fn overflow_error(error: rusqlite::Error) -> DbError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::ConstraintViolation) => {
            DbError::from(ThreadStoreError::TooLarge("a sum in the ledger"))
        }
        _ => error.into(),
    }
}

/// Records what a call did cost, exactly once, and gives back what was reserved.
pub(super) fn settle(
    tx: &WriteTx<'_, '_>,
    thread: i64,
    commit: &ThreadCommit,
    settlement: &Settlement,
    at: &str,
) -> Result<(), DbError> {
    let name = &commit.thread;
    let contradiction =
        |what: String| DbError::from(ThreadStoreError::Conflict { thread: name.clone(), what });
    let call = to_sqlite_integer(settlement.call, "a call's number")?;
    let found: Option<(i64, i64, bool)> = tx
        .query_row(
            "SELECT reserved_spend, reserved_tokens, is_settled FROM calls WHERE thread = ?1 AND call = ?2",
            params![thread, call],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let (reserved, tokens_aside) = match found {
        Some((_, _, true)) => return Err(contradiction(format!("call {call} is settled already"))),
        Some((reserved, tokens_aside, false)) => (reserved, tokens_aside),
        None if settlement.is_unknown => {
            return Err(contradiction(format!("nothing was reserved for call {call}")));
        }
        None => (0, 0),
    };
    let spend = to_sqlite_integer(settlement.spend.0, "what a call cost")?;
    // What was reserved is the most that an estimate can come to.
    let spend = if settlement.is_unknown { spend.min(reserved) } else { spend };
    let input = to_sqlite_integer(settlement.input_tokens, "the tokens of a call")?;
    let output = to_sqlite_integer(settlement.output_tokens, "the tokens of a call")?;
    let tokens =
        input.checked_add(output).ok_or(DbError::from(ThreadStoreError::TooLarge("the tokens of a call")))?;
    let rolling_call = RollingCall { store: tx.seal.store, thread: name, call: settlement.call };
    tx.rolling.settle(rolling_call, spend, &commit.rolling)?;
    let is_clamped = tx.spec.rules.clamp_to_reserved && found.is_some();
    let charged_upwards = if is_clamped { spend.min(reserved) } else { spend };
    let attribution = &settlement.attribution;
    tx.execute("INSERT INTO calls (thread, call, reserved_spend, reserved_tokens, is_settled, is_unknown, spend, passed_on,
                    input_tokens, output_tokens, item, model, tool, hook)
             VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
             ON CONFLICT DO UPDATE SET is_settled = 1, is_unknown = excluded.is_unknown, spend = excluded.spend,
                    passed_on = excluded.passed_on, input_tokens = excluded.input_tokens,
                    output_tokens = excluded.output_tokens, item = excluded.item, model = excluded.model,
                    tool = excluded.tool, hook = excluded.hook", params![
            thread,
            call,
            reserved,
            tokens_aside,
            settlement.is_unknown,
            spend,
            charged_upwards,
            input,
            output,
            attribution.item,
            attribution.model,
            attribution.tool,
            attribution.hook
        ])?;
    let unknown = if settlement.is_unknown { spend } else { 0 };
    let parent: Option<i64> = tx.query_row("UPDATE budget_ledger SET actual_spend = actual_spend + ?2, reserved_spend = reserved_spend - ?3,
                    actual_tokens = actual_tokens + ?4, reserved_tokens = reserved_tokens - ?5,
                    subtree_spend = subtree_spend + ?2, subtree_reserved = subtree_reserved - ?3,
                    subtree_tokens = subtree_tokens + ?4, subtree_reserved_tokens = subtree_reserved_tokens - ?5,
                    unknown_spend = unknown_spend + ?6, updated_at = ?7
             WHERE thread = ?1 RETURNING (SELECT threads.parent FROM threads WHERE threads.thread = ?1)", params![thread, spend, reserved, tokens, tokens_aside, unknown, at], |row| row.get(0))
        .map_err(overflow_error)?;
    let added =
        LedgerDelta { spend: charged_upwards, reserved: -reserved, tokens, reserved_tokens: -tokens_aside };
    add_to_ancestors(tx, parent, &added)
}

/// The calls of a thread that are not settled.
pub(super) fn open_reservations(connection: &Connection, thread: i64) -> Result<Vec<Reservation>, DbError> {
    let mut find = connection.prepare_cached(
        "SELECT call, reserved_spend, reserved_tokens FROM calls WHERE thread = ?1 AND is_settled = 0 ORDER BY call",
    )?;
    let rows = find.query_map([thread], |row| {
        Ok(Reservation { call: row.get(0)?, spend: Nanos(row.get(1)?), tokens: row.get(2)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
