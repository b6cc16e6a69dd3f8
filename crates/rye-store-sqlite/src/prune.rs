//! Forgetting threads that have ended, whole trees at a time, and giving the room back.
//!
//! A tree goes with the trees that its threads continued in or came from, and only when all of them have ended and none asks a
//! person anything.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use lillux::dir::{DirEntryKind, DirError, Durability};
use lillux::file::FileMode;
use rusqlite::{Connection, OptionalExtension, params};

use super::db_error::to_sqlite_integer;
use super::writer::WriteTx;
use super::{DbError, SqliteStore, reply};
use rye_store::{FolderDisposal, PruneOptions, PruneReport, PruneRow, ThreadStoreError, TreeGroup};
use rye_thread::thread_id::ThreadId;

/// Below the folder of threads: folders of threads that were forgotten.
const ARCHIVE_DIR: &str = "archive";
/// In a folder of the archive: when it was moved there, in milliseconds since 1970.
const ARCHIVED_AT: &str = "archived_at";
const MAX_ARCHIVED_AT_BYTES: u64 = 64;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// How deep folders of threads are looked into.
const MAX_FOLDER_DEPTH: usize = 16;

impl SqliteStore {
    /// Removes trees that ended long ago, and what is left of them in the folder of threads.
    pub(super) async fn prune_trees(&self, prune: &PruneOptions) -> Result<PruneReport, ThreadStoreError> {
        let folder = &self.shared.folder;
        // Gaps of the database and its log are not a reason to remove a thread.
        let was_vacuumed = self.is_over(prune) && self.vacuum(prune).await?;
        let archived = clear_archive(folder, prune)?;
        let stored = self.disk_usage(prune);
        let settings = *prune;
        let (groups, blobs) = self.write(move |tx| delete_groups(tx, &settings, &stored)).await?;
        clear_folders(folder, &groups, prune.at_ms)?;
        clear_orphan_folders(folder, prune, |id| {
            Ok(self.read(|connection| super::queries::thread(connection, &self.shared.seal, id))?.is_some())
        })?;
        let is_vacuumed = self.vacuum(prune).await? || was_vacuumed;
        let threads = groups.iter().flat_map(TreeGroup::ids).cloned().collect();
        let stored_bytes = prune.max_bytes.map(|_| size_of_path(folder, MAX_FOLDER_DEPTH));
        Ok(PruneReport { threads, blobs, archived, is_vacuumed, stored_bytes })
    }

    /// Whether more is stored than may be.
    fn is_over(&self, prune: &PruneOptions) -> bool {
        prune.max_bytes.is_some_and(|max| size_of_path(&self.shared.folder, MAX_FOLDER_DEPTH) > max)
    }

    /// How much is stored, if that matters.
    pub(super) fn disk_usage(&self, prune: &PruneOptions) -> DiskUsage {
        match prune.max_bytes {
            Some(_) => DiskUsage::measure(&self.shared.folder),
            None => DiskUsage::default(),
        }
    }

    async fn vacuum(&self, prune: &PruneOptions) -> Result<bool, ThreadStoreError> {
        let (sender, receiver) = reply::reply();
        // What was deleted is still on disk: the database keeps its size until it is rewritten.
        let is_forced = self.is_over(prune);
        let settings = *prune;
        let work = move |connection: &Connection| sender.send(vacuum(connection, &settings, is_forced));
        self.shared.writer.submit_exclusive(work);
        self.answer(receiver.recv().await)
    }
}

/// How many bytes are stored: all of it, and each thread's folder.
#[derive(Clone, Debug, Default)]
pub(super) struct DiskUsage {
    total: u64,
    folders: HashMap<ThreadId, u64>,
}

impl DiskUsage {
    /// Looks at the folder of threads.
    pub(super) fn measure(folder: &Path) -> Self {
        let mut stored = Self::default();
        for entry in fs_err::read_dir(folder).into_iter().flatten().flatten() {
            let bytes = size_of_path(&entry.path(), MAX_FOLDER_DEPTH);
            stored.total += bytes;
            if let Some(id) = entry.file_name().to_str().and_then(|name| ThreadId::parse(name).ok()) {
                stored.folders.insert(id, bytes);
            }
        }
        stored
    }
}

/// The bytes of a file, or of all files in a folder. Links are not followed.
fn size_of_path(path: &Path, max_depth: usize) -> u64 {
    let Ok(found) = path.symlink_metadata() else { return 0 };
    if !found.is_dir() || max_depth == 0 {
        return if found.is_file() { found.len() } else { 0 };
    }
    let entries = fs_err::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| size_of_path(&entry.path(), max_depth - 1)).sum()
}

/// The groups that are to go, the newest first.
pub(super) fn select_groups(
    connection: &Connection,
    prune: &PruneOptions,
    stored: &DiskUsage,
) -> Result<Vec<TreeGroup>, DbError> {
    let rows = prune_rows(connection)?;
    rye_store::select_groups(&rows, prune, stored.total, |group| group_bytes(connection, group, stored))
}

/// All threads as pruning looks at them, the newest first.
fn prune_rows(connection: &Connection) -> Result<Vec<PruneRow>, DbError> {
    let mut asking =
        connection.prepare_cached("SELECT DISTINCT thread FROM approvals WHERE answer IS NULL")?;
    let asking: BTreeSet<i64> = asking.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let mut find = connection.prepare_cached(
        "SELECT thread, thread_id, root, completed_at, continuation_of, continuation_thread_id, chain_root_id
         FROM threads ORDER BY thread DESC",
    )?;
    let mut found = find.query([])?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        let number: i64 = row.get(0)?;
        let id = ThreadId::parse(&row.get::<_, String>(1)?)
            .map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
        rows.push(PruneRow {
            row: number,
            id,
            root: row.get(2)?,
            completed_at: row.get(3)?,
            links: [row.get(4)?, row.get(5)?, row.get(6)?],
            is_asking: asking.contains(&number),
        });
    }
    Ok(rows)
}

/// How many bytes a group takes, more or less: its folders, its journals, and the parts that one of its threads alone uses.
fn group_bytes(connection: &Connection, group: &TreeGroup, stored: &DiskUsage) -> Result<u64, DbError> {
    let mut journal =
        connection.prepare_cached("SELECT coalesce(sum(length(body)), 0) FROM journal WHERE thread = ?1")?;
    let mut parts = connection.prepare_cached(
        "SELECT coalesce(sum(length(blobs.bytes)), 0) FROM uses JOIN blobs USING (blob)
         WHERE uses.thread = ?1 AND NOT EXISTS (SELECT 1 FROM uses AS other WHERE other.blob = uses.blob AND other.thread <> ?1)",
    )?;
    let mut bytes = 0_u64;
    for (row, id) in &group.threads {
        let own: u64 = journal.query_row([row], |row| row.get(0))?;
        let kept: u64 = parts.query_row([row], |row| row.get(0))?;
        bytes = bytes
            .saturating_add(own)
            .saturating_add(kept)
            .saturating_add(stored.folders.get(id).copied().unwrap_or(0));
    }
    Ok(bytes)
}

/// Takes groups out of the database.
pub(super) fn delete_groups(
    tx: &WriteTx<'_, '_>,
    prune: &PruneOptions,
    stored: &DiskUsage,
) -> Result<(Vec<TreeGroup>, u64), DbError> {
    // Looked for here, in the transaction: what is in use now stays.
    let groups = select_groups(tx.connection, prune, stored)?;
    tx.head_log.mark_pruned(groups.iter().flat_map(TreeGroup::ids));
    let mut released: BTreeSet<i64> = BTreeSet::new();
    for (row, _) in groups.iter().flat_map(|group| &group.threads) {
        let mut used = tx.connection.prepare_cached("SELECT blob FROM uses WHERE thread = ?1")?;
        for blob in used.query_map([row], |row| row.get(0))? {
            released.insert(blob?);
        }
        delete_row(tx, *row)?;
    }
    // A part that was kept a moment ago is about to be used.
    let unused = "DELETE FROM blobs WHERE at_ms <= ?1 AND NOT EXISTS (SELECT 1 FROM uses WHERE uses.blob = blobs.blob)";
    let before_ms = prune.blobs_before_ms();
    let mut blobs =
        tx.connection.prepare_cached(unused)?.execute([to_sqlite_integer(before_ms, "a time")?])?;
    let released_before = to_sqlite_integer(prune.released_blobs_before_ms(), "a time")?;
    let mut remove = tx.connection.prepare_cached(&format!("{unused} AND blob = ?2"))?;
    for blob in released {
        blobs += remove.execute([released_before, blob])?;
    }
    Ok((groups, blobs as u64))
}

/// Takes a thread out of all tables.
pub(super) fn delete_row(tx: &WriteTx<'_, '_>, row: i64) -> Result<(), DbError> {
    for table in
        ["journal", "calls", "uses", "approvals", "waits", "cancel_requests", "budget_ledger", "threads"]
    {
        let sql = format!("DELETE FROM {table} WHERE thread = ?1");
        tx.connection.prepare_cached(&sql)?.execute([row])?;
    }
    Ok(())
}

/// Moves or removes the folders of threads that are forgotten.
pub(super) fn clear_folders(folder: &Path, groups: &[TreeGroup], at_ms: u64) -> Result<(), DbError> {
    for group in groups {
        for id in group.ids() {
            dispose_folder(folder, id, group.disposal, at_ms)?;
        }
    }
    Ok(())
}

fn dispose_folder(folder: &Path, id: &ThreadId, disposal: FolderDisposal, at_ms: u64) -> Result<(), DbError> {
    let name = OsStr::new(id.as_str());
    let Some(threads) = super::folder::open(folder)? else { return Ok(()) };
    let is_dir = match threads.status(name).map_err(dir_error)?.map(|status| status.kind) {
        None => return Ok(()),
        // What stands in a folder's place leads elsewhere: nothing behind it is a thread's.
        Some(DirEntryKind::Symlink) => return threads.remove(name).map_err(dir_error),
        Some(kind) => kind == DirEntryKind::Dir,
    };
    match disposal {
        FolderDisposal::Remove => lillux::file::remove_tree(&threads.path().join(name))?,
        FolderDisposal::Archive => {
            let archive = lillux::file::make_folders_beneath(folder, Path::new(ARCHIVE_DIR), true)?;
            // Its own times are those of its last event.
            if is_dir {
                let own = threads.open_child_dir(name).map_err(dir_error)?;
                let at = format!("{at_ms}\n");
                let (file, mode) = (OsStr::new(ARCHIVED_AT), FileMode::Preserve);
                own.write_atomic(file, at.as_bytes(), mode, Durability::Renamed).map_err(dir_error)?;
            }
            threads.move_to(name, &archive, name).map_err(dir_error)?;
        }
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
fn dir_error(error: DirError) -> DbError {
    DbError::from(ThreadStoreError::Failed(rye_item::text::one_line(&error.to_string())))
}

/// Puts folders away whose thread is not known: their process ended between forgetting and clearing.
pub(super) fn clear_orphan_folders(
    folder: &Path,
    prune: &PruneOptions,
    is_known: impl Fn(&ThreadId) -> Result<bool, DbError>,
) -> Result<(), DbError> {
    let Some(days) = prune.after_days else { return Ok(()) };
    for (path, id) in folders_in(folder) {
        if is_older(&path, prune.at_ms, days) && !is_known(&id)? {
            dispose_folder(folder, &id, prune.disposal, prune.at_ms)?;
        }
    }
    Ok(())
}

/// Removes folders of the archive that are old enough, or the oldest of them until there is room. Gives how many.
pub(super) fn clear_archive(folder: &Path, prune: &PruneOptions) -> Result<u64, DbError> {
    let mut count = 0;
    // A link would have folders removed wherever it leads.
    if lillux::file::folder_beneath(folder, Path::new(ARCHIVE_DIR))?.is_none() {
        return Ok(count);
    }
    let mut all = folders_in(&folder.join(ARCHIVE_DIR));
    if let Some(days) = prune.remove_archived_after_days {
        let before = prune.at_ms.saturating_sub(days.saturating_mul(DAY_MS));
        for (path, _) in all.extract_if(.., |(path, _)| archived_ms(path) <= before) {
            lillux::file::remove_tree(&path)?;
            count += 1;
        }
    }
    if let Some(max_bytes) = prune.max_bytes {
        let mut remaining = size_of_path(folder, MAX_FOLDER_DEPTH);
        all.sort_by_key(|(path, _)| archived_ms(path));
        for (path, _) in &all {
            if remaining <= max_bytes {
                break;
            }
            remaining = remaining.saturating_sub(size_of_path(path, MAX_FOLDER_DEPTH));
            lillux::file::remove_tree(path)?;
            count += 1;
        }
    }
    Ok(count)
}

/// The folders in here that are named after threads.
fn folders_in(folder: &Path) -> Vec<(std::path::PathBuf, ThreadId)> {
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let id = ThreadId::parse(entry.file_name().to_str()?).ok()?;
        entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| (entry.path(), id))
    });
    named.collect()
}

/// When a folder was moved to the archive, in milliseconds since 1970.
fn archived_ms(path: &Path) -> u64 {
    let recorded =
        lillux::file::read_beneath_no_symlinks(path, Path::new(ARCHIVED_AT), MAX_ARCHIVED_AT_BYTES).ok();
    let recorded = recorded.and_then(|(bytes, _)| std::str::from_utf8(&bytes).ok()?.trim().parse().ok());
    // One that was archived before that was recorded: moving a folder changes its status.
    let moved = || {
        let seconds = path.symlink_metadata().map(|found| found.ctime()).unwrap_or(i64::MAX);
        u64::try_from(seconds).unwrap_or(0).saturating_mul(1000)
    };
    recorded.unwrap_or_else(moved)
}

/// Whether nothing was put into a folder for so many days.
fn is_older(path: &Path, at_ms: u64, days: u64) -> bool {
    let before = at_ms.saturating_sub(days.saturating_mul(DAY_MS));
    let modified = path.symlink_metadata().and_then(|found| found.modified());
    modified.is_ok_and(|modified| modified <= UNIX_EPOCH + Duration::from_millis(before))
}

/// When something was last done, by the name of the thing.
fn last_time(connection: &Connection, name: &str) -> Result<Option<u64>, DbError> {
    let last = connection
        .prepare_cached("SELECT value FROM facts WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    Ok(last)
}

/// Notes that something is done now.
pub(super) fn record_time(connection: &Connection, name: &str, at_ms: u64) -> Result<(), DbError> {
    connection.execute(
        "INSERT INTO facts (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
        params![name, to_sqlite_integer(at_ms, "a time")?],
    )?;
    Ok(())
}

/// What `note_time` calls forgetting.
pub(super) const PRUNED_KEY: &str = "pruned_ms";

/// Whether nothing was forgotten by itself for a day, and there is something older than that.
pub(super) fn is_due(connection: &Connection, at_ms: u64) -> Result<bool, DbError> {
    let last = last_time(connection, PRUNED_KEY)?;
    let first: Option<String> = match last {
        Some(_) => None,
        None => connection
            .prepare_cached("SELECT created_at FROM threads ORDER BY thread LIMIT 1")?
            .query_row([], |row| row.get(0))
            .optional()?,
    };
    Ok(PruneOptions::is_due(at_ms, last, first.as_deref()))
}

/// Writes the database again, if that was long ago or room is short.
pub(super) fn vacuum(
    connection: &Connection,
    prune: &PruneOptions,
    is_forced: bool,
) -> Result<bool, DbError> {
    let last = last_time(connection, "vacuumed_ms")?;
    let is_due =
        |days: u64| last.is_none_or(|last| last.saturating_add(days.saturating_mul(DAY_MS)) <= prune.at_ms);
    let is_due = is_forced || prune.vacuum_interval_days.is_some_and(is_due);
    if is_due {
        connection.execute_batch("VACUUM")?;
        record_time(connection, "vacuumed_ms", prune.at_ms)?;
        // The rewritten pages are in the log. A reader may hold it; then it shrinks with the next commits.
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
    }
    Ok(is_due)
}
