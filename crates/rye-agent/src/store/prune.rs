//! Forgetting threads that ended long ago, whole trees at a time, and giving the room back.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};

use super::StoreError;
use super::error::integer;
use super::writer::Desk;
use crate::thread_id::ThreadId;
use crate::transcript::iso;

/// Below the folder of threads: folders of threads that were forgotten.
const ARCHIVE: &str = "archive";
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// What to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prune {
    /// Now.
    pub at_ms: u64,
    /// Trees whose last thread ended so many days ago, or earlier.
    pub after_days: u64,
    /// What becomes of their folders.
    pub kept: Kept,
    /// How often the database is written anew without its gaps; never, when `None`.
    pub vacuum_interval_days: Option<u64>,
}

/// What becomes of a forgotten thread's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It moves to `archive/`, transcript and all.
    Archived,
    /// It is removed.
    Nothing,
}

/// What went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Threads.
    pub threads: Vec<ThreadId>,
    /// Shared parts that nobody uses any more.
    pub blobs: u64,
    /// Whether the database was written anew.
    pub is_vacuumed: bool,
}

/// Takes old trees out of the database.
pub(super) fn forget(desk: &Desk<'_>, prune: &Prune) -> Result<(Vec<ThreadId>, u64), StoreError> {
    let before_ms = prune.at_ms.saturating_sub(prune.after_days.saturating_mul(DAY_MS));
    let mut find = desk.connection.prepare_cached(
        "SELECT thread, thread_id FROM threads WHERE root IN
            (SELECT root FROM threads GROUP BY root HAVING count(*) = count(completed_at) AND max(completed_at) <= ?1)
         ORDER BY thread DESC",
    )?;
    let found: Vec<(i64, String)> =
        find.query_map([iso(before_ms)], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
    let mut threads = Vec::new();
    for (row, id) in found {
        for table in ["journal", "calls", "uses", "approvals", "budget_ledger", "threads"] {
            let sql = format!("DELETE FROM {table} WHERE thread = ?1");
            desk.connection.prepare_cached(&sql)?.execute([row])?;
        }
        threads.push(ThreadId::parse(&id).map_err(|error| StoreError::Failed(error.to_string()))?);
    }
    // A part that was kept a moment ago is about to be used.
    let unused = "DELETE FROM blobs WHERE at_ms <= ?1 AND NOT EXISTS (SELECT 1 FROM uses WHERE uses.blob = blobs.blob)";
    let blobs = desk.connection.prepare_cached(unused)?.execute([integer(before_ms, "a time")?])?;
    Ok((threads, blobs as u64))
}

/// Moves or removes the folders of threads that are forgotten.
pub(super) fn clear_folders(folder: &Path, threads: &[ThreadId], kept: Kept) -> Result<(), StoreError> {
    let archive = folder.join(ARCHIVE);
    for id in threads {
        let own = folder.join(id.as_str());
        if own.symlink_metadata().is_err() {
            continue;
        }
        match kept {
            Kept::Nothing => lillux::file::remove_tree(&own)?,
            Kept::Archived => {
                lillux::file::create_folders(&archive, true)?;
                lillux::file::rename_folder(&own, &archive.join(id.as_str()))?;
            }
        }
    }
    Ok(())
}

/// Writes the database anew, if that was long ago.
pub(super) fn vacuum(connection: &Connection, prune: &Prune) -> Result<bool, StoreError> {
    let Some(days) = prune.vacuum_interval_days else {
        return Ok(false);
    };
    let last: Option<u64> = connection
        .query_row("SELECT value FROM facts WHERE name = 'vacuumed_ms'", [], |row| row.get(0))
        .optional()?;
    let is_due = last.is_none_or(|last| last.saturating_add(days.saturating_mul(DAY_MS)) <= prune.at_ms);
    if is_due {
        connection.execute_batch("VACUUM")?;
        connection.execute(
            "INSERT INTO facts (name, value) VALUES ('vacuumed_ms', ?1) ON CONFLICT DO UPDATE SET value = excluded.value",
            params![integer(prune.at_ms, "a time")?],
        )?;
    }
    Ok(is_due)
}
