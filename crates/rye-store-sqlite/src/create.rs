//! A new thread: its row, its row of the ledger, its first records and what its parent counts, in one transaction.

use rusqlite::{OptionalExtension, params};

use super::commit::append;
use super::db_error::to_sqlite_integer;
use super::writer::WriteTx;
use super::{DbError, chain, ledger, row_seal, waits};
use rye_item::timestamp::iso_timestamp;
use rye_store::ThreadStoreError;
use rye_store::{BudgetCaps, Claim, CreateOutcome, NewThread, ThreadChange};
use rye_thread::status::ThreadStatus;
use rye_thread::thread_id::ThreadId;

/// What is known of a parent.
struct ParentRow {
    row: i64,
    root: i64,
    depth: u64,
    spawn_count: u64,
    is_ended: bool,
    is_detached: bool,
}

/// Makes a thread, or says which cap is reached.
pub(super) fn create(tx: &mut WriteTx<'_, '_>, new: &NewThread) -> Result<CreateOutcome, DbError> {
    if new.submission.is_some() {
        let message = "a store of one machine has no workers: a thread cannot be submitted to it".to_owned();
        return Err(ThreadStoreError::Failed(message).into());
    }
    let parent = new.parent.as_ref().map(|id| find_parent(tx, id)).transpose()?;
    if let (Some(parent), Some(id)) = (&parent, &new.parent) {
        row_seal::check(tx, parent.row, id)?;
        if parent.is_ended {
            return Err(DbError::from(ThreadStoreError::ParentEnded { parent: id.clone() }));
        }
        if let Some(outcome) = check_caps(tx, new, parent)? {
            return Ok(outcome);
        }
    }
    let is_queued = match &parent {
        Some(parent) => new.caps.queues_children && is_full(tx, new, parent)?,
        None => false,
    };
    let is_known: Option<i64> = tx
        .query_row("SELECT 1 FROM threads WHERE thread_id = ?1", [new.id.as_str()], |row| row.get(0))
        .optional()?;
    if is_known.is_some() {
        return Err(DbError::from(ThreadStoreError::Exists(new.id.clone())));
    }
    let blobs = new.blobs.iter().map(|digest| find_blob(tx, digest)).collect::<Result<Vec<_>, _>>()?;
    let depth = parent.as_ref().map_or(0, |parent| parent.depth.saturating_add(1));
    let row = insert(tx, new, parent.as_ref(), depth)?;
    if is_queued {
        waits::queue_child(tx, row, new.at_ms)?;
    }
    for blob in blobs {
        tx.execute("INSERT OR IGNORE INTO uses (thread, blob) VALUES (?1, ?2)", [row, blob])?;
    }
    row_seal::reseal(tx, row, &new.id)?;
    if let (Some(parent), Some(id)) = (&parent, &new.parent) {
        tx.execute("UPDATE threads SET spawn_count = spawn_count + 1 WHERE thread = ?1", [parent.row])?;
        row_seal::reseal(tx, parent.row, id)?;
    }
    if let Some(before) = &new.continuation_of {
        let row = super::queries::row_id(tx.connection, before)?;
        row_seal::check(tx, row, before)?;
        tx.execute(
            "UPDATE threads SET continuation_thread_id = ?2 WHERE thread_id = ?1",
            [before.as_str(), new.id.as_str()],
        )?;
        row_seal::reseal(tx, row, before)?;
    }
    tx.notify(ThreadChange { thread: new.id.clone(), status: Some(ThreadStatus::Created) });
    Ok(CreateOutcome::Created { claim: Claim { epoch: 1 }, depth, is_queued })
}

fn find_parent(tx: &WriteTx<'_, '_>, id: &ThreadId) -> Result<ParentRow, DbError> {
    tx.query_row("SELECT thread, root, depth, spawn_count, completed_at IS NOT NULL, detached FROM threads WHERE thread_id = ?1", [id.as_str()], |row| {
            Ok(ParentRow {
                row: row.get(0)?,
                root: row.get(1)?,
                depth: row.get(2)?,
                spawn_count: row.get(3)?,
                is_ended: row.get(4)?,
                is_detached: row.get(5)?,
            })
        })
        .optional()?
        .ok_or_else(|| DbError::from(ThreadStoreError::NoThread(id.clone())))
}

fn check_caps(
    tx: &WriteTx<'_, '_>,
    new: &NewThread,
    parent: &ParentRow,
) -> Result<Option<CreateOutcome>, DbError> {
    let children = || waits::count_children(tx, parent.row);
    let tree = || waits::count_tree(tx, parent.root);
    new.caps.first_refused(parent.spawn_count, parent.depth, children, tree)
}

/// Whether the parent has as many children at work, or waiting for a place, as may be at work.
fn is_full(tx: &WriteTx<'_, '_>, new: &NewThread, parent: &ParentRow) -> Result<bool, DbError> {
    let Some(max) = new.caps.concurrent_children else { return Ok(false) };
    let (placed, queued) = waits::count_children(tx, parent.row)?;
    Ok(placed.saturating_add(queued) >= max)
}

pub(super) fn find_blob(tx: &WriteTx<'_, '_>, digest: &lillux::Digest) -> Result<i64, DbError> {
    tx.query_row("SELECT blob FROM blobs WHERE digest = ?1", [digest.as_bytes().as_slice()], |row| row.get(0))
        .optional()?
        .ok_or_else(|| DbError::from(ThreadStoreError::NoBlob(digest.to_hex())))
}

fn insert(
    tx: &WriteTx<'_, '_>,
    new: &NewThread,
    parent: Option<&ParentRow>,
    depth: u64,
) -> Result<i64, DbError> {
    let at = iso_timestamp(new.at_ms);
    let caps = BudgetCaps { spend: new.max_spend, tokens: new.max_tokens };
    // The row's own number is not known before it is there, and the root of a tree is itself.
    let row: i64 = tx.query_row("SELECT coalesce(max(thread), 0) + 1 FROM threads", [], |row| row.get(0))?;
    let journal = append(tx, row, 0, chain::genesis(&new.id), &new.records)?;
    let sealed = chain::JournalHead {
        thread: new.id.as_str(),
        parent: new.parent.as_ref().map(ThreadId::as_str),
        seq: journal.0,
        hash: journal.1.as_bytes(),
        caps,
    };
    let limits = serde_json::to_string(&new.limits)
        .map_err(|error| DbError::from(ThreadStoreError::Failed(error.to_string())))?;
    let chain_root: Option<String> = match &new.continuation_of {
        None => None,
        Some(before) => {
            let sql = "SELECT coalesce(chain_root_id, thread_id) FROM threads WHERE thread_id = ?1";
            let found = tx.query_row(sql, [before.as_str()], |row| row.get(0));
            Some(found.optional()?.ok_or_else(|| DbError::from(ThreadStoreError::NoThread(before.clone())))?)
        }
    };
    let owner = new.owner.as_ref();
    tx.execute("INSERT INTO threads (thread, thread_id, directive, title, parent, parent_id, root, depth, status, created_at,
                    updated_at, limits, model, provider, capabilities, continuation_of, chain_root_id, pid, pid_start,
                    boot_id, host, epoch, heartbeat_ms, head_seq, head_hash, head_mac, max_spend, max_tokens, detached)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 'created', ?9, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, 1,
                    ?20, ?21, ?22, ?23, ?24, ?25, ?26)", params![
            row,
            new.id.as_str(),
            new.directive,
            new.title,
            parent.map(|parent| parent.row),
            new.parent.as_ref().map(ThreadId::as_str),
            parent.map_or(row, |parent| parent.root),
            to_sqlite_integer(depth, "a thread's depth")?,
            at,
            limits,
            new.model,
            new.provider,
            new.capabilities.to_hex(),
            new.continuation_of.as_ref().map(ThreadId::as_str),
            chain_root,
            owner.map(|owner| owner.pid),
            owner.map(|owner| to_sqlite_integer(owner.pid_start, "a time")).transpose()?,
            owner.map(|owner| &owner.boot_id),
            owner.map(|owner| &owner.host),
            to_sqlite_integer(new.at_ms, "a time")?,
            to_sqlite_integer(journal.0, "a journal")?,
            journal.1.as_bytes().as_slice(),
            sealed.mac(&tx.seal.mac).as_bytes().as_slice(),
            ledger::spend_column(caps)?,
            ledger::tokens_column(caps)?,
            new.is_detached || parent.is_some_and(|parent| parent.is_detached)
        ])?;
    let names = (&new.id, new.parent.as_ref());
    ledger::insert_row(tx, (row, parent.map(|parent| parent.row)), names, caps, &at)?;
    Ok(row)
}
