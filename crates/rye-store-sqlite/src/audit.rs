//! The proof of the ledger: every sum worked out again from single calls.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::DbError;

/// What a thread's calls come to.
#[derive(Clone, Copy, Default)]
struct CallSums {
    spend: i128,
    charged_upwards: i128,
    reserved: i128,
    tokens: i128,
    reserved_tokens: i128,
    unknown: i128,
}

/// What is wrong with the ledger; nothing, when all sums hold.
pub(super) fn audit(connection: &Connection) -> Result<Vec<String>, DbError> {
    let calls = sum_calls(connection)?;
    let mut find = connection.prepare(
        "SELECT thread, parent, thread_id, actual_spend, reserved_spend, actual_tokens, reserved_tokens, unknown_spend,
                subtree_spend, subtree_reserved, subtree_tokens, subtree_reserved_tokens
         FROM budget_ledger ORDER BY thread DESC",
    )?;
    let mut rows = find.query([])?;
    let mut problems = Vec::new();
    // What those below each thread come to. Children are younger than parents, so they come first.
    let mut below: BTreeMap<i64, CallSums> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (thread, parent, id): (i64, Option<i64>, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let own = calls.get(&thread).copied().unwrap_or_default();
        let subtree = below.remove(&thread).unwrap_or_default();
        let expected = [
            ("actual_spend", own.spend),
            ("reserved_spend", own.reserved),
            ("actual_tokens", own.tokens),
            ("reserved_tokens", own.reserved_tokens),
            ("unknown_spend", own.unknown),
            ("subtree_spend", own.spend + subtree.charged_upwards),
            ("subtree_reserved", own.reserved + subtree.reserved),
            ("subtree_tokens", own.tokens + subtree.tokens),
            ("subtree_reserved_tokens", own.reserved_tokens + subtree.reserved_tokens),
        ];
        for (column, (name, expected)) in expected.into_iter().enumerate() {
            let found: i64 = row.get(3 + column)?;
            if i128::from(found) != expected {
                problems.push(format!("{id}: {name} is {found}, its calls come to {expected}"));
            }
        }
        if let Some(parent) = parent {
            let sums = below.entry(parent).or_default();
            sums.charged_upwards += own.charged_upwards + subtree.charged_upwards;
            sums.reserved += own.reserved + subtree.reserved;
            sums.tokens += own.tokens + subtree.tokens;
            sums.reserved_tokens += own.reserved_tokens + subtree.reserved_tokens;
        }
    }
    problems.extend(below.keys().map(|thread| format!("row {thread} has children and is not there")));
    Ok(problems)
}

fn sum_calls(connection: &Connection) -> Result<BTreeMap<i64, CallSums>, DbError> {
    let mut find = connection.prepare(
        "SELECT thread, is_settled, is_unknown, spend, passed_on, input_tokens, output_tokens, reserved_spend,
                reserved_tokens
         FROM calls",
    )?;
    let mut rows = find.query([])?;
    let mut calls: BTreeMap<i64, CallSums> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let number = |column: usize| row.get::<_, i64>(column).map(i128::from);
        let sums = calls.entry(row.get(0)?).or_default();
        if row.get(1)? {
            sums.spend += number(3)?;
            sums.charged_upwards += number(4)?;
            sums.tokens += number(5)? + number(6)?;
            sums.unknown += if row.get(2)? { number(3)? } else { 0 };
        } else {
            sums.reserved += number(7)?;
            sums.reserved_tokens += number(8)?;
        }
    }
    Ok(calls)
}
