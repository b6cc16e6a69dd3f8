//! Money and tokens: what is put aside for calls in flight, what was used, on each thread and on every ancestor.
//!
//! A row holds what its own thread used (`actual_…`, `reserved_…`) and what its whole subtree did (`subtree_…`, its own
//! included), so that a reservation costs one row per level, however many threads there are.

use rusqlite::{Connection, OptionalExtension, params};

use super::StoreError;
use super::error::integer;
use super::values::{Maxima, Reservation, Reserve, Resource, Settle, Shortage};
use super::writer::Desk;
use crate::money::Nanos;
use crate::thread_id::ThreadId;

/// Makes a thread's row.
pub(super) fn open(
    desk: &Desk<'_, '_>,
    row: (i64, Option<i64>),
    names: (&ThreadId, Option<&ThreadId>),
    maxima: Maxima,
    at: &str,
) -> Result<(), StoreError> {
    desk.execute("INSERT INTO budget_ledger (thread, parent, thread_id, parent_thread_id, max_spend, max_tokens, created_at, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7)", params![
            row.0,
            row.1,
            names.0.as_str(),
            names.1.map(ThreadId::as_str),
            spend_column(maxima)?,
            tokens_column(maxima)?,
            at
        ])?;
    Ok(())
}

pub(super) fn spend_column(maxima: Maxima) -> Result<Option<i64>, StoreError> {
    maxima.spend.map(|spend| integer(spend.0, "the most a thread may spend")).transpose()
}

pub(super) fn tokens_column(maxima: Maxima) -> Result<Option<i64>, StoreError> {
    maxima.tokens.map(|tokens| integer(tokens, "the most tokens a thread may use")).transpose()
}

/// Sets other maxima.
pub(super) fn set_maxima(desk: &Desk<'_, '_>, thread: i64, maxima: Maxima) -> Result<(), StoreError> {
    desk.execute(
        "UPDATE budget_ledger SET max_spend = ?2, max_tokens = ?3 WHERE thread = ?1",
        params![thread, spend_column(maxima)?, tokens_column(maxima)?],
    )?;
    Ok(())
}

/// Says how a thread ended.
pub(super) fn close(desk: &Desk<'_, '_>, thread: i64, status: &str, at: &str) -> Result<(), StoreError> {
    if desk.spec.closed_on.as_ref().is_some_and(|closed_on| !closed_on.iter().any(|word| word == status)) {
        return Ok(());
    }
    desk.execute(
        "UPDATE budget_ledger SET status = ?2, updated_at = ?3 WHERE thread = ?1",
        params![thread, status, at],
    )?;
    Ok(())
}

/// Puts aside what a call may cost, on the thread and every ancestor, or on none of them.
pub(super) fn reserve(
    desk: &Desk<'_, '_>,
    thread: i64,
    name: &ThreadId,
    asked: Reserve,
) -> Result<Option<Shortage>, StoreError> {
    let spend = integer(asked.spend.0, "a reservation")?;
    let tokens = integer(asked.tokens, "a reservation")?;
    let (mut next, mut parent_of_thread) = (Some(thread), None);
    for level in 0.. {
        let Some(row) = next else {
            break;
        };
        bound(level)?;
        type Found = (Option<i64>, String, Option<u64>, u64, u64, Option<u64>, u64, u64);
        let (parent, id, max_spend, spent, spend_aside, max_tokens, used, tokens_aside): Found = desk.query_row(
            "SELECT parent, thread_id, max_spend, subtree_spend, subtree_reserved, max_tokens, subtree_tokens,
                    subtree_reserved_tokens
             FROM budget_ledger WHERE thread = ?1",
            [row],
            |row| {
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
            })?;
        let lacks = [
            (Resource::Spend, max_spend, spent, spend_aside, asked.spend.0),
            (Resource::Tokens, max_tokens, used, tokens_aside, asked.tokens),
        ];
        for (what, most, used, reserved, asked) in lacks {
            let Some(most) = most else {
                continue;
            };
            if u128::from(used) + u128::from(reserved) + u128::from(asked) > u128::from(most) {
                let by = ThreadId::parse(&id).map_err(|error| StoreError::Failed(error.to_string()))?;
                return Ok(Some(Shortage { by, what, most, used, reserved, asked }));
            }
        }
        if level == 0 {
            parent_of_thread = parent;
        }
        next = parent;
    }
    let call = integer(asked.call, "a call's number")?;
    let added = desk.execute(
        "INSERT INTO calls (thread, call, reserved_spend, reserved_tokens) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO NOTHING",
        params![thread, call, spend, tokens],
    )?;
    if added == 0 {
        let what = format!("call {call} was made before");
        return Err(StoreError::Contradiction { thread: name.clone(), what });
    }
    desk.execute("UPDATE budget_ledger SET reserved_spend = reserved_spend + ?2, reserved_tokens = reserved_tokens + ?3,
                    subtree_reserved = subtree_reserved + ?2, subtree_reserved_tokens = subtree_reserved_tokens + ?3
             WHERE thread = ?1", params![thread, spend, tokens])
        .map_err(outgrown)?;
    let added = Added { aside: spend, tokens_aside: tokens, ..Added::default() };
    add_upwards(desk, parent_of_thread, &added)?;
    Ok(None)
}

/// What is added to a row and to those above it.
#[derive(Clone, Copy, Default)]
struct Added {
    spend: i64,
    aside: i64,
    tokens: i64,
    tokens_aside: i64,
}

fn add_upwards(desk: &Desk<'_, '_>, from: Option<i64>, added: &Added) -> Result<(), StoreError> {
    let mut next = from;
    for level in 0.. {
        let Some(row) = next else {
            break;
        };
        bound(level)?;
        next = desk
            .query_row(
                "UPDATE budget_ledger SET subtree_spend = subtree_spend + ?2, subtree_reserved = subtree_reserved + ?3,
                        subtree_tokens = subtree_tokens + ?4, subtree_reserved_tokens = subtree_reserved_tokens + ?5
                 WHERE thread = ?1 RETURNING parent",
                params![row, added.spend, added.aside, added.tokens, added.tokens_aside],
                |row| row.get(0),
            )
            .map_err(outgrown)?;
    }
    Ok(())
}

/// No tree is so deep; a forged one may go in a circle.
fn bound(level: u32) -> Result<(), StoreError> {
    const DEEPEST: u32 = 10_000;
    if level > DEEPEST {
        return Err(StoreError::Failed("the ledger's threads have no end of ancestors".to_owned()));
    }
    Ok(())
}

/// A sum that is no whole number any more.
fn outgrown(error: rusqlite::Error) -> StoreError {
    match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::ConstraintViolation) => StoreError::TooLarge("a sum in the ledger"),
        _ => error.into(),
    }
}

/// Records what a call did cost, exactly once, and gives back what was put aside.
pub(super) fn settle(
    desk: &Desk<'_, '_>,
    thread: i64,
    name: &ThreadId,
    settled: &Settle,
    at: &str,
) -> Result<(), StoreError> {
    let contradiction = |what: String| StoreError::Contradiction { thread: name.clone(), what };
    let call = integer(settled.call, "a call's number")?;
    let found: Option<(i64, i64, bool)> = desk
        .query_row(
            "SELECT reserved_spend, reserved_tokens, is_settled FROM calls WHERE thread = ?1 AND call = ?2",
            params![thread, call],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let (aside, tokens_aside) = match found {
        Some((_, _, true)) => return Err(contradiction(format!("call {call} is settled already"))),
        Some((aside, tokens_aside, false)) => (aside, tokens_aside),
        None if settled.is_unknown => {
            return Err(contradiction(format!("nothing was put aside for call {call}")));
        }
        None => (0, 0),
    };
    let (spend, input, output) = if settled.is_unknown {
        (aside, tokens_aside, 0)
    } else {
        (
            integer(settled.spend.0, "what a call cost")?,
            integer(settled.input_tokens, "the tokens of a call")?,
            integer(settled.output_tokens, "the tokens of a call")?,
        )
    };
    let tokens = input.checked_add(output).ok_or(StoreError::TooLarge("the tokens of a call"))?;
    let is_limited = desk.spec.is_clamped && found.is_some();
    let passed_on = if is_limited { spend.min(aside) } else { spend };
    let attribution = &settled.attribution;
    desk.execute("INSERT INTO calls (thread, call, reserved_spend, reserved_tokens, is_settled, is_unknown, spend, passed_on,
                    input_tokens, output_tokens, item, model, tool, hook)
             VALUES (?1, ?2, ?3, ?4, 1, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
             ON CONFLICT DO UPDATE SET is_settled = 1, is_unknown = excluded.is_unknown, spend = excluded.spend,
                    passed_on = excluded.passed_on, input_tokens = excluded.input_tokens,
                    output_tokens = excluded.output_tokens, item = excluded.item, model = excluded.model,
                    tool = excluded.tool, hook = excluded.hook", params![
            thread,
            call,
            aside,
            tokens_aside,
            settled.is_unknown,
            spend,
            passed_on,
            input,
            output,
            attribution.item,
            attribution.model,
            attribution.tool,
            attribution.hook
        ])?;
    let unknown = if settled.is_unknown { spend } else { 0 };
    let parent: Option<i64> = desk.query_row("UPDATE budget_ledger SET actual_spend = actual_spend + ?2, reserved_spend = reserved_spend - ?3,
                    actual_tokens = actual_tokens + ?4, reserved_tokens = reserved_tokens - ?5,
                    subtree_spend = subtree_spend + ?2, subtree_reserved = subtree_reserved - ?3,
                    subtree_tokens = subtree_tokens + ?4, subtree_reserved_tokens = subtree_reserved_tokens - ?5,
                    unknown_spend = unknown_spend + ?6, updated_at = ?7
             WHERE thread = ?1 RETURNING parent", params![thread, spend, aside, tokens, tokens_aside, unknown, at], |row| row.get(0))
        .map_err(outgrown)?;
    let added = Added { spend: passed_on, aside: -aside, tokens, tokens_aside: -tokens_aside };
    add_upwards(desk, parent, &added)
}

/// The calls of a thread that are not settled.
pub(super) fn unsettled(connection: &Connection, thread: i64) -> Result<Vec<Reservation>, StoreError> {
    let mut find = connection.prepare_cached(
        "SELECT call, reserved_spend, reserved_tokens FROM calls WHERE thread = ?1 AND is_settled = 0 ORDER BY call",
    )?;
    let rows = find.query_map([thread], |row| {
        Ok(Reservation { call: row.get(0)?, spend: Nanos(row.get(1)?), tokens: row.get(2)? })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}
