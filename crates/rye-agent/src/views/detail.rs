//! One thread, whole: how it stands, what it came to, what it asks.

use rye_engine::Result;
use serde_json::{Map, Value, json};

use super::thread_index::ThreadIndex;
use crate::machine::ThreadOutcome;
use crate::money::Nanos;
use crate::store::{Approval, Charge, ChargeScope, ThreadRow};
use crate::threads::{FinishedThread, SentNotification, finished_response, sent_notifications};

/// What a thread came to, as its row has it.
#[must_use]
pub fn recorded_outcome(row: &ThreadRow) -> FinishedThread {
    let outcome =
        row.result.as_ref().and_then(|result| serde_json::from_value::<ThreadOutcome>(result.clone()).ok());
    let plain = ThreadOutcome { status: row.status, ..ThreadOutcome::failed("") };
    let mut outcome = outcome.unwrap_or(plain);
    // Where it stands now counts: it may have continued since.
    outcome.status = row.status;
    outcome.reason = row.reason;
    outcome.error = row.error.clone();
    FinishedThread {
        thread_id: row.id.clone(),
        directive: row.directive.clone(),
        outcome,
        cost: row.cost,
        provider: row.provider.clone(),
    }
}

/// One thread, whole, as JSON: how it stands, what it came to, what it and those below it have cost.
///
/// # Errors
/// When the store cannot be read.
pub fn detail_value(
    index: &ThreadIndex,
    row: &ThreadRow,
    charges: &[Charge],
    children: &[ThreadRow],
) -> Result<Map<String, Value>> {
    let mut details = finished_response(&recorded_outcome(row));
    if let Value::Object(common) = index.to_value(row)? {
        details.extend(common);
    }
    let ledger = index.store.ledger(&row.id)?;
    let charges: Vec<Value> = charges
        .iter()
        .map(|charge| {
            json!({
                "thread_id": charge.thread,
                "item": charge.attribution.item,
                "model": charge.attribution.model,
                "tool": charge.attribution.tool,
                "hook": charge.attribution.hook,
                "calls": charge.calls,
                "spend": charge.spend.dollars(),
                "input_tokens": charge.input_tokens,
                "output_tokens": charge.output_tokens,
                "unknown": charge.unknown,
            })
        })
        .collect();
    details.insert("title".to_owned(), json!(row.title));
    details.insert("model".to_owned(), json!(row.model));
    details.insert("provider".to_owned(), json!(row.provider));
    details.insert("limits".to_owned(), row.limits.to_value());
    details.insert("subtree_tokens".to_owned(), json!(ledger.subtree_tokens));
    details.insert("charges".to_owned(), json!(charges));
    let children: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    details.insert("children".to_owned(), json!(children));
    let chain = index.store.chain(row)?;
    let spent = chain.iter().fold(Nanos(0), |sum, row| sum.plus(row.cost.spend));
    let ids: Vec<&str> = chain.iter().map(|row| row.id.as_str()).collect();
    let total = json!({
        "threads": ids,
        "turns": chain.iter().map(|row| row.cost.turns).sum::<u64>(),
        "tokens": chain.iter().map(|row| row.cost.tokens()).sum::<u64>(),
        "spend": spent.dollars(),
    });
    details.insert("chain".to_owned(), total);
    details.insert("continuation_of".to_owned(), json!(row.continuation_of));
    details.insert("forked_from".to_owned(), json!(index.fork_source(row)?));
    details.insert("continuation_thread_id".to_owned(), json!(row.continuation_thread_id));
    let asked: Vec<Value> =
        index.store.open_approvals(Some(&row.id))?.approvals.iter().map(approval_value).collect();
    details.insert("approvals".to_owned(), json!(asked));
    details.insert("go_on".to_owned(), json!(index.next_command(row)));
    if index.waits_for_worker(row) {
        let reason = crate::cluster::placement_reason(&index.store, row);
        details.insert("waits_for_worker".to_owned(), json!(reason));
    }
    let sent: Vec<Value> = sent_notifications(&index.dir, &row.id).iter().map(notification_value).collect();
    details.insert("notifications".to_owned(), json!(sent));
    Ok(details)
}

/// One thread, whole, as a resource of a client: as [`detail_value`], with its result in full, however long.
///
/// # Errors
/// When the store cannot be read.
pub fn resource_value(index: &ThreadIndex, row: &ThreadRow) -> Result<Map<String, Value>> {
    let charges = index.store.charges(&row.id, ChargeScope::Subtree)?;
    let children = index.store.children(&row.id)?;
    let mut details = detail_value(index, row, &charges, &children)?;
    if let Some(result) = row.result.as_ref().and_then(|outcome| outcome.get("result")) {
        details.insert("result".to_owned(), result.clone());
        details.shift_remove("result_truncated");
    }
    Ok(details)
}

/// A notification that was sent, as JSON.
#[must_use]
pub fn notification_value(sent: &SentNotification) -> Value {
    json!({"id": sent.id, "target": sent.target, "event": sent.event, "error": sent.error})
}

/// A question as JSON.
#[must_use]
pub fn approval_value(question: &Approval) -> Value {
    json!({
        "id": question.id,
        "thread_id": question.thread,
        "kind": question.kind,
        "what": question.prompt,
        "why": question.reason,
        "asked_at_ms": question.at_ms,
        "chain": question.detail.get("chain"),
        "detail": question.detail,
    })
}
