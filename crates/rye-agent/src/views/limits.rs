//! How far a thread is with its limits.

use serde_json::{Value, json};

use crate::store::{LedgerRow, ThreadRow};

/// Each limit of a thread with what is used of it.
#[must_use]
pub fn usage_value(row: &ThreadRow, ledger: &LedgerRow) -> Vec<Value> {
    let (limits, cost) = (&row.limits, &row.cost);
    let plain = |name: &str, used: u64, max: Option<u64>| {
        max.map(|max| json!({"limit": name, "used": used, "reserved": 0, "max": max}))
    };
    let spend = limits.spend.map(|max| {
        json!({
            "limit": "spend",
            "used": ledger.subtree_spend.dollars(),
            "reserved": ledger.subtree_reserved.dollars(),
            "max": ledger.caps.spend.unwrap_or(max).dollars(),
        })
    });
    let tokens = limits.tokens.map(|max| {
        json!({
            "limit": "tokens",
            "used": ledger.subtree_tokens,
            "reserved": ledger.subtree_reserved_tokens,
            "max": ledger.caps.tokens.unwrap_or(max),
        })
    });
    let rows = [
        plain("turns", cost.turns, limits.turns),
        spend,
        tokens,
        plain("spawns", row.spawn_count, limits.spawns),
        plain("duration_seconds", cost.elapsed_ms / 1000, limits.duration_seconds),
    ];
    rows.into_iter().flatten().collect()
}
