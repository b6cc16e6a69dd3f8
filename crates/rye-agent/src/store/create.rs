//! A new thread: its row, its row of the ledger, its first records and what its parent counts, in one transaction.

use rusqlite::{OptionalExtension, params};

use super::commit::append;
use super::error::integer;
use super::values::{Cap, Change, Claim, Created, Maxima, NewThread};
use super::writer::Desk;
use super::{StoreError, chain, ledger, row_seal};
use crate::status::Status;
use crate::thread_id::ThreadId;
use crate::transcript::iso;

/// What is known of a parent.
struct Parent {
    row: i64,
    root: i64,
    depth: u64,
    spawn_count: u64,
    is_ended: bool,
    is_detached: bool,
}

/// Makes a thread, or says which cap is reached.
pub(super) fn create(desk: &mut Desk<'_, '_>, new: &NewThread) -> Result<Created, StoreError> {
    let parent = new.parent.as_ref().map(|id| find_parent(desk, id)).transpose()?;
    if let (Some(parent), Some(id)) = (&parent, &new.parent) {
        row_seal::check(desk, parent.row, id)?;
        if parent.is_ended {
            return Err(StoreError::ParentEnded { parent: id.clone() });
        }
        if let Some(refused) = refusal(desk, new, parent)? {
            return Ok(refused);
        }
    }
    let is_known: Option<i64> = desk
        .query_row("SELECT 1 FROM threads WHERE thread_id = ?1", [new.id.as_str()], |row| row.get(0))
        .optional()?;
    if is_known.is_some() {
        return Err(StoreError::Exists(new.id.clone()));
    }
    let blobs = new.blobs.iter().map(|digest| find_blob(desk, digest)).collect::<Result<Vec<_>, _>>()?;
    let depth = parent.as_ref().map_or(0, |parent| parent.depth.saturating_add(1));
    let row = insert(desk, new, parent.as_ref(), depth)?;
    for blob in blobs {
        desk.execute("INSERT OR IGNORE INTO uses (thread, blob) VALUES (?1, ?2)", [row, blob])?;
    }
    row_seal::renew(desk, row, &new.id)?;
    if let (Some(parent), Some(id)) = (&parent, &new.parent) {
        desk.execute("UPDATE threads SET spawn_count = spawn_count + 1 WHERE thread = ?1", [parent.row])?;
        row_seal::renew(desk, parent.row, id)?;
    }
    if let Some(before) = &new.continuation_of {
        let row = super::read::key(desk.connection, before)?;
        row_seal::check(desk, row, before)?;
        desk.execute(
            "UPDATE threads SET continuation_thread_id = ?2 WHERE thread_id = ?1",
            [before.as_str(), new.id.as_str()],
        )?;
        row_seal::renew(desk, row, before)?;
    }
    desk.tell(Change { thread: new.id.clone(), status: Some(Status::Created) });
    Ok(Created::Done { claim: Claim { epoch: 1 }, depth })
}

fn find_parent(desk: &Desk<'_, '_>, id: &ThreadId) -> Result<Parent, StoreError> {
    desk.query_row("SELECT thread, root, depth, spawn_count, completed_at IS NOT NULL, detached FROM threads WHERE thread_id = ?1", [id.as_str()], |row| {
            Ok(Parent {
                row: row.get(0)?,
                root: row.get(1)?,
                depth: row.get(2)?,
                spawn_count: row.get(3)?,
                is_ended: row.get(4)?,
                is_detached: row.get(5)?,
            })
        })
        .optional()?
        .ok_or_else(|| StoreError::NoThread(id.clone()))
}

fn refusal(desk: &Desk<'_, '_>, new: &NewThread, parent: &Parent) -> Result<Option<Created>, StoreError> {
    let caps = &new.caps;
    let count = |sql: &'static str, row: i64| -> Result<u64, StoreError> {
        Ok(desk.query_row(sql, [row], |row| row.get(0))?)
    };
    if let Some(most) = caps.spawns
        && parent.spawn_count >= most
    {
        return Ok(Some(Created::Refused { cap: Cap::Spawns, most, count: parent.spawn_count }));
    }
    if caps.depth == Some(0) {
        return Ok(Some(Created::Refused { cap: Cap::Depth, most: parent.depth, count: parent.depth }));
    }
    if let Some(most) = caps.concurrent_children {
        let live = "SELECT count(*) FROM threads WHERE parent = ?1 AND completed_at IS NULL";
        let count = count(live, parent.row)?;
        if count >= most {
            return Ok(Some(Created::Refused { cap: Cap::ConcurrentChildren, most, count }));
        }
    }
    if let Some(most) = caps.total_threads {
        let count =
            count("SELECT count(*) FROM threads WHERE root = ?1 AND completed_at IS NULL", parent.root)?;
        if count >= most {
            return Ok(Some(Created::Refused { cap: Cap::TotalThreads, most, count }));
        }
    }
    Ok(None)
}

fn find_blob(desk: &Desk<'_, '_>, digest: &lillux::Digest) -> Result<i64, StoreError> {
    desk.query_row("SELECT blob FROM blobs WHERE digest = ?1", [digest.as_bytes().as_slice()], |row| {
        row.get(0)
    })
    .optional()?
    .ok_or_else(|| StoreError::NoBlob(digest.to_hex()))
}

fn insert(
    desk: &Desk<'_, '_>,
    new: &NewThread,
    parent: Option<&Parent>,
    depth: u64,
) -> Result<i64, StoreError> {
    let at = iso(new.at_ms);
    let maxima = Maxima { spend: new.max_spend, tokens: new.max_tokens };
    // The row's own number is not known before it is there, and the root of a tree is itself.
    let row: i64 =
        desk.query_row("SELECT coalesce(max(thread), 0) + 1 FROM threads", [], |row| row.get(0))?;
    let journal = append(desk, row, 0, chain::genesis(&new.id), &new.records)?;
    let sealed = chain::Sealed {
        thread: new.id.as_str(),
        parent: new.parent.as_ref().map(ThreadId::as_str),
        seq: journal.0,
        hash: journal.1.as_bytes(),
        maxima,
    };
    let limits = serde_json::to_string(&new.limits).map_err(|error| StoreError::Failed(error.to_string()))?;
    let chain_root: Option<String> = match &new.continuation_of {
        None => None,
        Some(before) => {
            let sql = "SELECT coalesce(chain_root_id, thread_id) FROM threads WHERE thread_id = ?1";
            let found = desk.query_row(sql, [before.as_str()], |row| row.get(0));
            Some(found.optional()?.ok_or_else(|| StoreError::NoThread(before.clone()))?)
        }
    };
    let owner = new.owner.as_ref();
    desk.execute("INSERT INTO threads (thread, thread_id, directive, title, parent, parent_id, root, depth, status, created_at,
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
            integer(depth, "a thread's depth")?,
            at,
            limits,
            new.model,
            new.provider,
            new.capabilities.to_hex(),
            new.continuation_of.as_ref().map(ThreadId::as_str),
            chain_root,
            owner.map(|owner| owner.pid),
            owner.map(|owner| integer(owner.pid_start, "a time")).transpose()?,
            owner.map(|owner| &owner.boot_id),
            owner.map(|owner| &owner.host),
            integer(new.at_ms, "a time")?,
            integer(journal.0, "a journal")?,
            journal.1.as_bytes().as_slice(),
            sealed.seal(&desk.seal.mac).as_bytes().as_slice(),
            ledger::spend_column(maxima)?,
            ledger::tokens_column(maxima)?,
            new.is_detached || parent.is_some_and(|parent| parent.is_detached)
        ])?;
    let names = (&new.id, new.parent.as_ref());
    ledger::open(desk, (row, parent.map(|parent| parent.row)), names, maxima, &at)?;
    Ok(row)
}
