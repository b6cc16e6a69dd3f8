//! Forgetting threads that have ended, whole trees at a time, and giving the room back.
//!
//! A tree goes with the trees that its threads went on in or came from, and only when all of them have ended and none asks a
//! person anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, params};

use super::error::to_sqlite_integer;
use super::writer::WriteTx;
use super::{ThreadStore, ThreadStoreError, writer_gone_error};
use crate::config::LedgerSchema;
use crate::thread_id::ThreadId;
use crate::transcript::iso_timestamp;

/// Below the folder of threads: folders of threads that were forgotten.
const ARCHIVE_DIR: &str = "archive";
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// How deep folders of threads are looked into.
const MAX_FOLDER_DEPTH: usize = 16;

/// What to forget: each of the first three alone is reason enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PruneOptions {
    /// Now.
    pub at_ms: u64,
    /// Trees whose last thread ended so many days ago, or earlier.
    pub after_days: Option<u64>,
    /// Trees beyond this many that have ended, the newest first.
    pub keep_trees: Option<u64>,
    /// The oldest trees, until all that is stored has no more bytes than this. Their folders are removed.
    pub max_bytes: Option<u64>,
    /// What becomes of the others' folders.
    pub disposal: FolderDisposal,
    /// Folders in the archive go that nobody has written to for so many days.
    pub remove_archived_after_days: Option<u64>,
    /// How often the database is written anew without its gaps; never, when `None`.
    pub vacuum_interval_days: Option<u64>,
}

impl PruneOptions {
    /// What these settings let be forgotten now.
    #[must_use]
    pub fn of_settings(settings: &LedgerSchema, at_ms: u64) -> Self {
        Self {
            at_ms,
            after_days: Some(settings.archive_after_days),
            keep_trees: settings.keep_trees,
            max_bytes: settings.max_megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20)),
            disposal: FolderDisposal::Archive,
            remove_archived_after_days: settings.remove_archived_after_days,
            vacuum_interval_days: Some(settings.vacuum_interval_days),
        }
    }
}

/// What becomes of a forgotten thread's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FolderDisposal {
    /// It moves to `archive/`, transcript and all.
    Archive,
    /// It is removed.
    Remove,
}

/// What went, or would go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Threads.
    pub threads: Vec<ThreadId>,
    /// Shared parts that nobody uses any more.
    pub blobs: u64,
    /// Folders of the archive.
    pub archived: u64,
    /// Whether the database was written anew.
    pub is_vacuumed: bool,
}

impl ThreadStore {
    /// Removes trees that ended long ago; those with a thread that has not ended stay whole.
    ///
    /// # Errors
    /// When the database or the system fails.
    pub fn prune(&self, prune: &PruneOptions) -> Result<PruneReport, ThreadStoreError> {
        let folder = &self.shared.folder;
        let archived = clear_archive(folder, prune)?;
        let stored = self.disk_usage(prune);
        let settings = *prune;
        let (groups, blobs) = self.write_blocking(move |tx| delete_groups(tx, &settings, &stored))?;
        clear_folders(folder, &groups)?;
        clear_orphan_folders(folder, prune, |id| Ok(self.thread(id)?.is_some()))?;
        let is_vacuumed = self.vacuum(prune)?;
        let threads = groups.iter().flat_map(TreeGroup::ids).cloned().collect();
        Ok(PruneReport { threads, blobs, archived, is_vacuumed })
    }

    /// The threads that [`ThreadStore::prune`] would forget now.
    ///
    /// # Errors
    /// When the database fails.
    pub fn prune_candidates(&self, prune: &PruneOptions) -> Result<Vec<ThreadId>, ThreadStoreError> {
        let stored = self.disk_usage(prune);
        let groups = self.read(|connection| select_groups(connection, prune, &stored))?;
        Ok(groups.iter().flat_map(TreeGroup::ids).cloned().collect())
    }

    /// Whether [`ThreadStore::prune_if_due`] would do anything now.
    ///
    /// # Errors
    /// When the database fails.
    pub fn is_prune_due(&self, at_ms: u64) -> Result<bool, ThreadStoreError> {
        self.read(|connection| is_due(connection, at_ms))
    }

    /// As [`ThreadStore::prune`], if that was not done by itself for a day; `None` if it was.
    ///
    /// # Errors
    /// As [`ThreadStore::prune`].
    pub fn prune_if_due(&self, prune: &PruneOptions) -> Result<Option<PruneReport>, ThreadStoreError> {
        let at_ms = prune.at_ms;
        // Noted first: of two processes one does it.
        let is_ours = self.write_blocking(move |tx| {
            let is_due = is_due(tx.connection, at_ms)?;
            if is_due {
                record_time(tx.connection, PRUNED_KEY, at_ms)?;
            }
            Ok(is_due)
        })?;
        if is_ours { self.prune(prune).map(Some) } else { Ok(None) }
    }

    /// How much is stored, if that matters.
    fn disk_usage(&self, prune: &PruneOptions) -> DiskUsage {
        match prune.max_bytes {
            Some(_) => DiskUsage::measure(&self.shared.folder),
            None => DiskUsage::default(),
        }
    }

    fn vacuum(&self, prune: &PruneOptions) -> Result<bool, ThreadStoreError> {
        let (reply, outcome) = mpsc::sync_channel(1);
        let settings = *prune;
        self.shared.writer.submit_exclusive(move |connection| {
            drop(reply.send(vacuum(connection, &settings)));
        });
        outcome
            .recv()
            .map_err(|_| writer_gone_error())?
            .map_err(|error| error.with_path(&self.shared.database))
    }
}

/// Trees that go together.
#[derive(Clone, Debug)]
pub(super) struct TreeGroup {
    threads: Vec<(i64, ThreadId)>,
    ended_at: String,
    disposal: FolderDisposal,
}

impl TreeGroup {
    pub(super) fn ids(&self) -> impl Iterator<Item = &ThreadId> {
        self.threads.iter().map(|(_, id)| id)
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
) -> Result<Vec<TreeGroup>, ThreadStoreError> {
    let mut ended = ended_groups(connection, prune.disposal)?;
    ended.sort_by(|one, other| other.ended_at.cmp(&one.ended_at));
    let before =
        prune.after_days.map(|days| iso_timestamp(prune.at_ms.saturating_sub(days.saturating_mul(DAY_MS))));
    let is_beyond = |index: usize| prune.keep_trees.is_some_and(|keep| index as u64 >= keep);
    let is_old = |group: &TreeGroup| before.as_ref().is_some_and(|before| group.ended_at <= *before);
    let mut is_selected: Vec<bool> =
        ended.iter().enumerate().map(|(index, group)| is_beyond(index) || is_old(group)).collect();
    if let Some(max_bytes) = prune.max_bytes {
        let mut remaining = stored.total;
        for (group, is_selected) in ended.iter_mut().zip(&mut is_selected).rev() {
            if remaining <= max_bytes {
                break;
            }
            group.disposal = FolderDisposal::Remove;
            *is_selected = true;
            remaining = remaining.saturating_sub(group_bytes(connection, group, stored)?);
        }
    }
    let mut is_selected = is_selected.into_iter();
    ended.retain(|_| is_selected.next() == Some(true));
    Ok(ended)
}

/// How many bytes a group takes, more or less: its folders and its journals.
fn group_bytes(
    connection: &Connection,
    group: &TreeGroup,
    stored: &DiskUsage,
) -> Result<u64, ThreadStoreError> {
    let mut journal =
        connection.prepare_cached("SELECT coalesce(sum(length(body)), 0) FROM journal WHERE thread = ?1")?;
    let mut bytes = 0_u64;
    for (row, id) in &group.threads {
        let own: u64 = journal.query_row([row], |row| row.get(0))?;
        bytes = bytes.saturating_add(own).saturating_add(stored.folders.get(id).copied().unwrap_or(0));
    }
    Ok(bytes)
}

/// Groups of trees of which nothing is in use.
fn ended_groups(
    connection: &Connection,
    disposal: FolderDisposal,
) -> Result<Vec<TreeGroup>, ThreadStoreError> {
    struct Row {
        row: i64,
        id: String,
        root: i64,
        completed_at: Option<String>,
        links: [Option<String>; 3],
    }
    let mut find = connection.prepare_cached(
        "SELECT thread, thread_id, root, completed_at, continuation_of, continuation_thread_id, chain_root_id
         FROM threads ORDER BY thread DESC",
    )?;
    let rows = find.query_map([], |row| {
        Ok(Row {
            row: row.get(0)?,
            id: row.get(1)?,
            root: row.get(2)?,
            completed_at: row.get(3)?,
            links: [row.get(4)?, row.get(5)?, row.get(6)?],
        })
    })?;
    let rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
    let mut asking =
        connection.prepare_cached("SELECT DISTINCT thread FROM approvals WHERE answer IS NULL")?;
    let asking: BTreeSet<i64> = asking.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let root_of: HashMap<&str, i64> = rows.iter().map(|row| (row.id.as_str(), row.root)).collect();
    let mut groups = UnionFind::default();
    for row in &rows {
        for link in row.links.iter().flatten() {
            if let Some(other) = root_of.get(link.as_str()) {
                groups.union(row.root, *other);
            }
        }
    }
    let mut found: BTreeMap<i64, Option<TreeGroup>> = BTreeMap::new();
    for row in &rows {
        let group = found
            .entry(groups.find(row.root))
            .or_insert_with(|| Some(TreeGroup { threads: Vec::new(), ended_at: String::new(), disposal }));
        match (&row.completed_at, group.as_mut()) {
            (Some(at), Some(group)) if !asking.contains(&row.row) => {
                let id =
                    ThreadId::parse(&row.id).map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
                group.threads.push((row.row, id));
                if *at > group.ended_at {
                    group.ended_at.clone_from(at);
                }
            }
            // Something of it is in use.
            _ => *group = None,
        }
    }
    Ok(found.into_values().flatten().collect())
}

/// Which roots belong together.
#[derive(Default)]
struct UnionFind(HashMap<i64, i64>);

impl UnionFind {
    fn find(&mut self, root: i64) -> i64 {
        let mut at = root;
        while let Some(next) = self.0.get(&at).copied().filter(|next| *next != at) {
            at = next;
        }
        self.0.insert(root, at);
        at
    }

    fn union(&mut self, one: i64, other: i64) {
        let (one, other) = (self.find(one), self.find(other));
        self.0.insert(one.max(other), one.min(other));
    }
}

/// Takes groups out of the database.
pub(super) fn delete_groups(
    tx: &WriteTx<'_, '_>,
    prune: &PruneOptions,
    stored: &DiskUsage,
) -> Result<(Vec<TreeGroup>, u64), ThreadStoreError> {
    // Looked for here, in the transaction: what is in use by now stays.
    let groups = select_groups(tx.connection, prune, stored)?;
    tx.head_log.mark_pruned(groups.iter().flat_map(TreeGroup::ids));
    for (row, _) in groups.iter().flat_map(|group| &group.threads) {
        for table in ["journal", "calls", "uses", "approvals", "budget_ledger", "threads"] {
            let sql = format!("DELETE FROM {table} WHERE thread = ?1");
            tx.connection.prepare_cached(&sql)?.execute([row])?;
        }
    }
    // A part that was kept a moment ago is about to be used.
    let unused = "DELETE FROM blobs WHERE at_ms <= ?1 AND NOT EXISTS (SELECT 1 FROM uses WHERE uses.blob = blobs.blob)";
    let before_ms = prune.at_ms.saturating_sub(prune.after_days.unwrap_or(1).min(1).saturating_mul(DAY_MS));
    let blobs = tx.connection.prepare_cached(unused)?.execute([to_sqlite_integer(before_ms, "a time")?])?;
    Ok((groups, blobs as u64))
}

/// Moves or removes the folders of threads that are forgotten.
pub(super) fn clear_folders(folder: &Path, groups: &[TreeGroup]) -> Result<(), ThreadStoreError> {
    for group in groups {
        for id in group.ids() {
            dispose_folder(folder, id, group.disposal)?;
        }
    }
    Ok(())
}

fn dispose_folder(folder: &Path, id: &ThreadId, disposal: FolderDisposal) -> Result<(), ThreadStoreError> {
    let own = folder.join(id.as_str());
    if own.symlink_metadata().is_err() {
        return Ok(());
    }
    match disposal {
        FolderDisposal::Remove => lillux::file::remove_tree(&own)?,
        FolderDisposal::Archive => {
            let archive = lillux::file::create_folders_beneath(folder, Path::new(ARCHIVE_DIR), true)?;
            lillux::file::rename_dir(&own, &archive.join(id.as_str()))?;
        }
    }
    Ok(())
}

/// Puts folders away whose thread is not known: their process ended between forgetting and clearing.
pub(super) fn clear_orphan_folders(
    folder: &Path,
    prune: &PruneOptions,
    is_known: impl Fn(&ThreadId) -> Result<bool, ThreadStoreError>,
) -> Result<(), ThreadStoreError> {
    let Some(days) = prune.after_days else { return Ok(()) };
    for (path, id) in folders_in(folder) {
        if is_older(&path, prune.at_ms, days) && !is_known(&id)? {
            dispose_folder(folder, &id, prune.disposal)?;
        }
    }
    Ok(())
}

/// Removes folders of the archive that are old enough, or the oldest of them until there is room. Gives how many.
pub(super) fn clear_archive(folder: &Path, prune: &PruneOptions) -> Result<u64, ThreadStoreError> {
    let mut count = 0;
    // A link would have folders removed wherever it leads.
    if lillux::file::folder_beneath(folder, Path::new(ARCHIVE_DIR))?.is_none() {
        return Ok(count);
    }
    let mut all = folders_in(&folder.join(ARCHIVE_DIR));
    if let Some(days) = prune.remove_archived_after_days {
        for (path, _) in all.extract_if(.., |(path, _)| is_older(path, prune.at_ms, days)) {
            lillux::file::remove_tree(&path)?;
            count += 1;
        }
    }
    if let Some(max_bytes) = prune.max_bytes {
        let mut remaining = size_of_path(folder, MAX_FOLDER_DEPTH);
        all.sort_by_key(|(path, _)| path.metadata().and_then(|found| found.modified()).ok());
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

/// Whether nothing was put into a folder for so many days.
fn is_older(path: &Path, at_ms: u64, days: u64) -> bool {
    let before = at_ms.saturating_sub(days.saturating_mul(DAY_MS));
    let modified = path.metadata().and_then(|found| found.modified());
    modified.is_ok_and(|modified| modified <= UNIX_EPOCH + Duration::from_millis(before))
}

/// When something was last done, by the name of the thing.
fn last_time(connection: &Connection, name: &str) -> Result<Option<u64>, ThreadStoreError> {
    let last = connection
        .prepare_cached("SELECT value FROM facts WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    Ok(last)
}

/// Notes that something is done now.
pub(super) fn record_time(connection: &Connection, name: &str, at_ms: u64) -> Result<(), ThreadStoreError> {
    connection.execute(
        "INSERT INTO facts (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
        params![name, to_sqlite_integer(at_ms, "a time")?],
    )?;
    Ok(())
}

/// What `note_time` calls forgetting.
pub(super) const PRUNED_KEY: &str = "pruned_ms";

/// Whether nothing was forgotten by itself for a day, and there is something older than that.
pub(super) fn is_due(connection: &Connection, at_ms: u64) -> Result<bool, ThreadStoreError> {
    if let Some(last) = last_time(connection, PRUNED_KEY)? {
        return Ok(last.saturating_add(DAY_MS) <= at_ms);
    }
    let first: Option<String> = connection
        .prepare_cached("SELECT created_at FROM threads ORDER BY thread LIMIT 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(first.is_some_and(|first| first <= iso_timestamp(at_ms.saturating_sub(DAY_MS))))
}

/// Writes the database anew, if that was long ago or room is short.
pub(super) fn vacuum(connection: &Connection, prune: &PruneOptions) -> Result<bool, ThreadStoreError> {
    let Some(days) = prune.vacuum_interval_days else {
        return Ok(false);
    };
    let last = last_time(connection, "vacuumed_ms")?;
    let is_due = last.is_none_or(|last| last.saturating_add(days.saturating_mul(DAY_MS)) <= prune.at_ms);
    if is_due {
        connection.execute_batch("VACUUM")?;
        record_time(connection, "vacuumed_ms", prune.at_ms)?;
    }
    Ok(is_due)
}
