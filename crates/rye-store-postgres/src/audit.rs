//! The proof of the ledger: every sum worked out again from single calls.

use std::collections::BTreeMap;

use crate::db::Db;
use crate::db_error::DbError;

/// What a thread's calls come to, and what its row says, by these names.
const SUMS: [&str; 9] = [
    "actual_spend",
    "reserved_spend",
    "actual_tokens",
    "reserved_tokens",
    "unknown_spend",
    "subtree_spend",
    "subtree_reserved",
    "subtree_tokens",
    "subtree_reserved_tokens",
];

// Children are younger than parents, so they come first.
const FIND: &str = "SELECT ledger.thread, ledger.parent, ledger.thread_id, actual_spend, reserved_spend, actual_tokens,
        ledger.reserved_tokens, unknown_spend, subtree_spend, subtree_reserved, subtree_tokens, subtree_reserved_tokens,
        coalesce(spent, 0)::text, coalesce(aside, 0)::text, coalesce(used, 0)::text, coalesce(tokens_aside, 0)::text,
        coalesce(unknown, 0)::text, coalesce(passed_on, 0)::text
     FROM budget_ledger AS ledger LEFT JOIN (
        SELECT thread, sum(spend) FILTER (WHERE is_settled) AS spent, sum(reserved_spend) FILTER (WHERE NOT is_settled) AS aside,
            sum(input_tokens::numeric + output_tokens) FILTER (WHERE is_settled) AS used,
            sum(reserved_tokens) FILTER (WHERE NOT is_settled) AS tokens_aside,
            sum(spend) FILTER (WHERE is_settled AND is_unknown) AS unknown,
            sum(calls.passed_on) FILTER (WHERE is_settled) AS passed_on
        FROM calls GROUP BY thread) AS sums ON sums.thread = ledger.thread
     ORDER BY ledger.thread DESC";

/// What those below a thread come to: spend, reserved, tokens, reserved tokens.
type SumsBelow = [i128; 4];

/// What is wrong with the ledger; nothing, when all sums hold.
pub(crate) async fn audit(db: &Db) -> Result<Vec<String>, DbError> {
    let mut problems = Vec::new();
    let mut below: BTreeMap<i64, SumsBelow> = BTreeMap::new();
    for row in db.query(FIND, &[]).await? {
        let (thread, parent, id): (i64, Option<i64>, String) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let sum = |column: usize| -> Result<i128, DbError> {
            let text: &str = row.try_get(column)?;
            text.parse().map_err(|_| DbError::damaged("a sum is not a number"))
        };
        let (spent, aside, used, tokens_aside) = (sum(12)?, sum(13)?, sum(14)?, sum(15)?);
        let passed_on = sum(17)?;
        let subtree = below.remove(&thread).unwrap_or_default();
        let expected = [
            spent,
            aside,
            used,
            tokens_aside,
            sum(16)?,
            spent + subtree[0],
            aside + subtree[1],
            used + subtree[2],
            tokens_aside + subtree[3],
        ];
        for ((name, expected), column) in SUMS.iter().zip(expected).zip(3..) {
            let found: i64 = row.try_get(column)?;
            if i128::from(found) != expected {
                problems.push(format!("{id}: {name} is {found}, its calls come to {expected}"));
            }
        }
        if let Some(parent) = parent {
            let sums = below.entry(parent).or_default();
            let own = [passed_on, aside, used, tokens_aside];
            sums.iter_mut().zip(own).zip(subtree).for_each(|((sum, own), subtree)| *sum += own + subtree);
        }
    }
    problems.extend(below.keys().map(|thread| format!("row {thread} has children and is not there")));
    Ok(problems)
}
