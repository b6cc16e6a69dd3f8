//! Questions to the store that change nothing.

use std::collections::{BTreeMap, BTreeSet};

use rye_thread::money::Nanos;
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;

use super::{MemoryTables, MemoryThread};
use crate::{
    ApprovalRecord, Attribution, Charge, ChargeScope, ClaimPolicy, OpenApprovals, Owner, OwnerProbe,
    RESUME_KIND, ThreadFilter, ThreadRow, ThreadStoreError, TreeTotals,
};

pub(super) fn threads(tables: &MemoryTables, filter: &ThreadFilter) -> Vec<ThreadRow> {
    let is_wanted = |row: &&ThreadRow| {
        (filter.statuses.is_empty() || filter.statuses.contains(&row.status))
            && (!filter.is_root || row.parent.is_none())
            && filter.directive.as_ref().is_none_or(|directive| row.directive == *directive)
    };
    let limit = filter.limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
    let threads = tables.threads.values().rev().filter(|thread| is_wanted(&&thread.row));
    threads.take(limit).map(|thread| tables.shown_row(thread)).collect()
}

pub(super) fn children(tables: &MemoryTables, id: &ThreadId) -> Result<Vec<ThreadRow>, ThreadStoreError> {
    let number = tables.number(id)?;
    let children = tables.threads.values().filter(|thread| thread.parent == Some(number));
    Ok(children.map(|thread| tables.shown_row(thread)).collect())
}

/// A thread and all below it, the oldest first.
pub(super) fn subtree<'a>(
    tables: &'a MemoryTables,
    id: &ThreadId,
) -> Result<Vec<&'a MemoryThread>, ThreadStoreError> {
    let mut members = BTreeSet::from([tables.number(id)?]);
    // Children are younger than parents, so they come later.
    for (number, thread) in &tables.threads {
        if thread.parent.is_some_and(|parent| members.contains(&parent)) {
            members.insert(*number);
        }
    }
    Ok(members.iter().filter_map(|number| tables.threads.get(number)).collect())
}

pub(super) fn ancestors(tables: &MemoryTables, id: &ThreadId) -> Result<Vec<ThreadRow>, ThreadStoreError> {
    let mut found = Vec::new();
    let mut next = tables.get(id)?.parent;
    while let Some(thread) = next.and_then(|number| tables.threads.get(&number)) {
        found.push(thread.row.clone());
        next = thread.parent;
    }
    Ok(found)
}

pub(super) fn tree_totals(tables: &MemoryTables, id: &ThreadId) -> Result<TreeTotals, ThreadStoreError> {
    let mut totals =
        TreeTotals { reserved: tables.get(id)?.ledger.subtree_reserved, ..TreeTotals::default() };
    let members = subtree(tables, id)?;
    for status in ThreadStatus::ALL {
        let count = members.iter().filter(|thread| thread.row.status == status).count() as u64;
        if count > 0 {
            totals.counts.push((status, count));
        }
    }
    for cost in members.iter().map(|thread| &thread.row.cost) {
        let sum = &mut totals.cost;
        sum.turns = sum.turns.saturating_add(cost.turns);
        sum.input_tokens = sum.input_tokens.saturating_add(cost.input_tokens);
        sum.output_tokens = sum.output_tokens.saturating_add(cost.output_tokens);
        sum.spend = sum.spend.plus(cost.spend);
        sum.elapsed_ms = sum.elapsed_ms.saturating_add(cost.elapsed_ms);
    }
    Ok(totals)
}

pub(super) fn charges(
    tables: &MemoryTables,
    id: &ThreadId,
    scope: ChargeScope,
) -> Result<Vec<Charge>, ThreadStoreError> {
    let members = match scope {
        ChargeScope::Thread => vec![tables.get(id)?],
        ChargeScope::Subtree => subtree(tables, id)?,
    };
    type Purpose = (ThreadId, String, String, Option<String>, Option<String>);
    let mut charges: BTreeMap<Purpose, Charge> = BTreeMap::new();
    for thread in members {
        for settled in thread.calls.values().filter_map(|call| call.settled.as_ref()) {
            let Attribution { item, model, tool, hook } = settled.attribution.clone();
            let charge =
                charges.entry((thread.row.id.clone(), item, model, tool, hook)).or_insert_with(|| Charge {
                    thread: thread.row.id.clone(),
                    attribution: settled.attribution.clone(),
                    calls: 0,
                    spend: Nanos(0),
                    input_tokens: 0,
                    output_tokens: 0,
                    unknown: 0,
                });
            charge.calls += 1;
            charge.spend = charge.spend.plus(Nanos(settled.spend));
            charge.input_tokens = charge.input_tokens.saturating_add(settled.input_tokens);
            charge.output_tokens = charge.output_tokens.saturating_add(settled.output_tokens);
            charge.unknown += u64::from(settled.is_unknown);
        }
    }
    let mut charges: Vec<Charge> = charges.into_values().collect();
    charges.sort_by_key(|charge| std::cmp::Reverse(charge.spend));
    Ok(charges)
}

pub(super) fn orphans(
    tables: &MemoryTables,
    observer: &Owner,
    policy: ClaimPolicy,
    probe: &dyn OwnerProbe,
) -> Vec<ThreadRow> {
    let is_orphan = |row: &&ThreadRow| {
        matches!(row.status, ThreadStatus::Running | ThreadStatus::Created)
            && match &row.owner {
                Some(owner) => policy.can_take(owner, observer, row.heartbeat_ms, probe),
                // One that was registered is about to be started by the process that registered it, unless it was left
                // to others.
                None => row.status == ThreadStatus::Running || row.is_detached,
            }
    };
    tables.threads.values().map(|thread| &thread.row).filter(is_orphan).cloned().collect()
}

pub(super) fn open_approvals(
    tables: &MemoryTables,
    below: Option<&ThreadId>,
) -> Result<OpenApprovals, ThreadStoreError> {
    let of: Option<Vec<&ThreadId>> = below
        .map(|id| subtree(tables, id).map(|members| members.iter().map(|thread| &thread.row.id).collect()))
        .transpose()?;
    let is_open = |id: &ThreadId| {
        // What a thread asked that has ended since is not open.
        tables.get(id).is_ok_and(|thread| !thread.row.status.is_terminal())
            && of.as_ref().is_none_or(|of| of.contains(&id))
    };
    let unanswered = tables.approvals.values().filter(|record| record.answer.is_none());
    let mut approvals: Vec<_> = unanswered
        .filter(|record| is_open(&record.approval.thread))
        .map(|record| record.approval.clone())
        .collect();
    approvals.sort_by(|one, other| (one.at_ms, &one.id).cmp(&(other.at_ms, &other.id)));
    Ok(OpenApprovals { approvals, forged: Vec::new() })
}

/// Whether this is a question of the thread, and not a request to resume it.
fn is_asked_by(record: &ApprovalRecord, id: &ThreadId) -> bool {
    record.approval.thread == *id && record.approval.kind != RESUME_KIND
}

pub(super) fn answered_threads(tables: &MemoryTables) -> Vec<ThreadId> {
    let stopped = tables.threads.values().map(|thread| &thread.row);
    let stopped = stopped.filter(|row| row.status == ThreadStatus::Suspended && row.owner.is_none());
    let is_answered = |row: &&ThreadRow| {
        let mut asked = tables.approvals.values().filter(|record| is_asked_by(record, &row.id)).peekable();
        asked.peek().is_some() && asked.all(|record| record.answer.is_some())
    };
    stopped.filter(is_answered).map(|row| row.id.clone()).collect()
}
