//! Shared parts, and forgetting threads that ended.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use lillux_hash::Digest;

use super::{MemoryBlob, MemoryTables};
use crate::{PruneOptions, PruneReport, PruneRow, TreeGroup, select_groups};

/// Keeps a part; gives its name.
pub(super) fn put_blob(tables: &mut MemoryTables, bytes: Vec<u8>, at_ms: u64) -> Digest {
    let digest = Digest::of(&bytes);
    let blob = tables.blobs.entry(*digest.as_bytes()).or_insert(MemoryBlob { bytes, at_ms });
    blob.at_ms = blob.at_ms.max(at_ms);
    digest
}

/// The groups that are to go, the newest first.
pub(super) fn select(tables: &MemoryTables, options: &PruneOptions) -> Vec<TreeGroup> {
    let asking: BTreeSet<_> = tables
        .approvals
        .values()
        .filter(|record| record.answer.is_none())
        .map(|record| &record.approval.thread)
        .collect();
    let rows: Vec<PruneRow> = tables
        .threads
        .iter()
        .rev()
        .map(|(number, thread)| {
            let row = &thread.row;
            let links = [&row.continuation_of, &row.continuation_thread_id, &row.chain_root_id];
            PruneRow {
                row: *number,
                id: row.id.clone(),
                root: thread.root,
                completed_at: row.completed_at.clone(),
                links: links.map(|link| link.as_ref().map(ToString::to_string)),
                is_asking: asking.contains(&row.id),
            }
        })
        .collect();
    let thread_bytes = |number: &i64| {
        let journal = tables.threads.get(number).map(|thread| &thread.journal).into_iter().flatten();
        journal.map(|record| record.body.len() as u64).sum::<u64>()
    };
    let journals: u64 = tables.threads.keys().map(thread_bytes).sum();
    let total = journals + tables.blobs.values().map(|blob| blob.bytes.len() as u64).sum::<u64>();
    let mut uses: BTreeMap<[u8; 32], usize> = BTreeMap::new();
    for digest in tables.threads.values().flat_map(|thread| &thread.blobs) {
        *uses.entry(*digest).or_default() += 1;
    }
    let own_blob_bytes = |number: &i64| {
        let used = tables.threads.get(number).map(|thread| &thread.blobs).into_iter().flatten();
        let own = used.filter(|digest| uses.get(*digest) == Some(&1));
        own.filter_map(|digest| tables.blobs.get(digest)).map(|blob| blob.bytes.len() as u64).sum::<u64>()
    };
    let group_bytes = |group: &TreeGroup| {
        let rows = group.threads.iter().map(|(number, _)| number);
        Ok::<u64, Infallible>(rows.map(|number| thread_bytes(number) + own_blob_bytes(number)).sum())
    };
    match select_groups(&rows, options, total, group_bytes) {
        Ok(groups) => groups,
        Err(never) => match never {},
    }
}

/// Forgets what the options say.
pub(super) fn prune(tables: &mut MemoryTables, options: &PruneOptions) -> PruneReport {
    let mut report = PruneReport::default();
    let mut released: BTreeSet<[u8; 32]> = BTreeSet::new();
    for (number, id) in select(tables, options).into_iter().flat_map(|group| group.threads) {
        released.extend(tables.threads.remove(&number).into_iter().flat_map(|thread| thread.blobs));
        tables.rows.remove(&id);
        tables.approvals.retain(|_, record| record.approval.thread != id);
        report.threads.push(id);
    }
    let used: BTreeSet<[u8; 32]> =
        tables.threads.values().flat_map(|thread| thread.blobs.iter().copied()).collect();
    let before = tables.blobs.len();
    let before_ms = |digest: &[u8; 32]| match released.contains(digest) {
        true => options.released_blobs_before_ms(),
        false => options.blobs_before_ms(),
    };
    tables.blobs.retain(|digest, blob| used.contains(digest) || blob.at_ms > before_ms(digest));
    report.blobs = (before - tables.blobs.len()) as u64;
    report
}

/// Whether automatic pruning is due.
pub(super) fn is_due(tables: &MemoryTables, at_ms: u64) -> bool {
    let first = tables.threads.values().next().map(|thread| thread.row.created_at.as_str());
    PruneOptions::is_due(at_ms, tables.pruned_ms, first)
}
