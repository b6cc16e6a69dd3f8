//! Forgetting threads that have ended, whole trees at a time, and giving the room back.
//!
//! A tree goes with the trees that its threads went on in or came from, and only when all of them have ended and none asks a
//! person anything.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, params};

use super::error::integer;
use super::writer::Desk;
use super::{Store, StoreError, gone};
use crate::config::LedgerSchema;
use crate::thread_id::ThreadId;
use crate::transcript::iso;

/// Below the folder of threads: folders of threads that were forgotten.
const ARCHIVE: &str = "archive";
const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// How deep folders of threads are looked into.
const DEEPEST: usize = 16;

/// What to forget: each of the first three alone is reason enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prune {
    /// Now.
    pub at_ms: u64,
    /// Trees whose last thread ended so many days ago, or earlier.
    pub after_days: Option<u64>,
    /// Trees beyond this many that have ended, the newest first.
    pub keep: Option<u64>,
    /// The oldest trees, until all that is stored has no more bytes than this. Their folders are removed.
    pub most_bytes: Option<u64>,
    /// What becomes of the others' folders.
    pub kept: Kept,
    /// Folders in the archive go that nobody has written to for so many days.
    pub remove_archived_after_days: Option<u64>,
    /// How often the database is written anew without its gaps; never, when `None`.
    pub vacuum_interval_days: Option<u64>,
}

impl Prune {
    /// What these settings let be forgotten now.
    #[must_use]
    pub fn of_settings(settings: &LedgerSchema, at_ms: u64) -> Self {
        Self {
            at_ms,
            after_days: Some(settings.archive_after_days),
            keep: settings.keep_trees,
            most_bytes: settings.max_megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20)),
            kept: Kept::Archived,
            remove_archived_after_days: settings.remove_archived_after_days,
            vacuum_interval_days: Some(settings.vacuum_interval_days),
        }
    }
}

/// What becomes of a forgotten thread's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It moves to `archive/`, transcript and all.
    Archived,
    /// It is removed.
    Nothing,
}

/// What went, or would go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Threads.
    pub threads: Vec<ThreadId>,
    /// Shared parts that nobody uses any more.
    pub blobs: u64,
    /// Folders of the archive.
    pub archived: u64,
    /// Whether the database was written anew.
    pub is_vacuumed: bool,
}

impl Store {
    /// Removes trees that ended long ago; those with a thread that has not ended stay whole.
    ///
    /// # Errors
    /// When the database or the system fails.
    pub fn prune(&self, prune: &Prune) -> Result<Pruned, StoreError> {
        let folder = &self.shared.folder;
        let archived = clear_archive(folder, prune)?;
        let stored = self.stored(prune);
        let settings = *prune;
        let (groups, blobs) = self.write_blocking(move |desk| forget(desk, &settings, &stored))?;
        clear_folders(folder, &groups)?;
        clear_strays(folder, prune, |id| Ok(self.thread(id)?.is_some()))?;
        let is_vacuumed = self.vacuum(prune)?;
        let threads = groups.iter().flat_map(Group::ids).cloned().collect();
        Ok(Pruned { threads, blobs, archived, is_vacuumed })
    }

    /// The threads that [`Store::prune`] would forget now.
    ///
    /// # Errors
    /// When the database fails.
    pub fn prunable(&self, prune: &Prune) -> Result<Vec<ThreadId>, StoreError> {
        let stored = self.stored(prune);
        let groups = self.read(|connection| chosen(connection, prune, &stored))?;
        Ok(groups.iter().flat_map(Group::ids).cloned().collect())
    }

    /// Whether [`Store::prune_if_due`] would do anything now.
    ///
    /// # Errors
    /// When the database fails.
    pub fn is_prune_due(&self, at_ms: u64) -> Result<bool, StoreError> {
        self.read(|connection| is_due(connection, at_ms))
    }

    /// As [`Store::prune`], if that was not done by itself for a day; `None` if it was.
    ///
    /// # Errors
    /// As [`Store::prune`].
    pub fn prune_if_due(&self, prune: &Prune) -> Result<Option<Pruned>, StoreError> {
        let at_ms = prune.at_ms;
        // Noted first: of two processes one does it.
        let is_ours = self.write_blocking(move |desk| {
            let is_due = is_due(desk.connection, at_ms)?;
            if is_due {
                note_time(desk.connection, PRUNED, at_ms)?;
            }
            Ok(is_due)
        })?;
        if is_ours { self.prune(prune).map(Some) } else { Ok(None) }
    }

    /// How much is stored, if that matters.
    fn stored(&self, prune: &Prune) -> Stored {
        match prune.most_bytes {
            Some(_) => Stored::look(&self.shared.folder),
            None => Stored::default(),
        }
    }

    fn vacuum(&self, prune: &Prune) -> Result<bool, StoreError> {
        let (reply, answer) = mpsc::sync_channel(1);
        let settings = *prune;
        self.shared.writer.submit_alone(move |connection| {
            drop(reply.send(vacuum(connection, &settings)));
        });
        answer.recv().map_err(|_| gone())?.map_err(|error| error.at(&self.shared.database))
    }
}

/// Trees that go together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    threads: Vec<(i64, ThreadId)>,
    ended_at: String,
    kept: Kept,
}

impl Group {
    pub(super) fn ids(&self) -> impl Iterator<Item = &ThreadId> {
        self.threads.iter().map(|(_, id)| id)
    }
}

/// How many bytes are stored: all of it, and each thread's folder.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    all: u64,
    folders: HashMap<ThreadId, u64>,
}

impl Stored {
    /// Looks at the folder of threads.
    pub(super) fn look(folder: &Path) -> Self {
        let mut stored = Self::default();
        for entry in fs_err::read_dir(folder).into_iter().flatten().flatten() {
            let bytes = bytes_in(&entry.path(), DEEPEST);
            stored.all += bytes;
            if let Some(id) = entry.file_name().to_str().and_then(|name| ThreadId::parse(name).ok()) {
                stored.folders.insert(id, bytes);
            }
        }
        stored
    }
}

/// The bytes of a file, or of all files in a folder. Links are not followed.
fn bytes_in(path: &Path, deep: usize) -> u64 {
    let Ok(found) = path.symlink_metadata() else { return 0 };
    if !found.is_dir() || deep == 0 {
        return if found.is_file() { found.len() } else { 0 };
    }
    let entries = fs_err::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| bytes_in(&entry.path(), deep - 1)).sum()
}

/// The groups that are to go, the newest first.
pub(super) fn chosen(
    connection: &Connection,
    prune: &Prune,
    stored: &Stored,
) -> Result<Vec<Group>, StoreError> {
    let mut ended = ended(connection, prune.kept)?;
    ended.sort_by(|one, other| other.ended_at.cmp(&one.ended_at));
    let before = prune.after_days.map(|days| iso(prune.at_ms.saturating_sub(days.saturating_mul(DAY_MS))));
    let is_beyond = |place: usize| prune.keep.is_some_and(|keep| place as u64 >= keep);
    let is_old = |group: &Group| before.as_ref().is_some_and(|before| group.ended_at <= *before);
    let mut goes: Vec<bool> =
        ended.iter().enumerate().map(|(place, group)| is_beyond(place) || is_old(group)).collect();
    if let Some(most) = prune.most_bytes {
        let mut left = stored.all;
        for (group, goes) in ended.iter_mut().zip(&mut goes).rev() {
            if left <= most {
                break;
            }
            group.kept = Kept::Nothing;
            *goes = true;
            left = left.saturating_sub(freed(connection, group, stored)?);
        }
    }
    let mut goes = goes.into_iter();
    ended.retain(|_| goes.next() == Some(true));
    Ok(ended)
}

/// How many bytes a group takes, more or less: its folders and its journals.
fn freed(connection: &Connection, group: &Group, stored: &Stored) -> Result<u64, StoreError> {
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
fn ended(connection: &Connection, kept: Kept) -> Result<Vec<Group>, StoreError> {
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
    let mut asks = connection.prepare_cached("SELECT DISTINCT thread FROM approvals WHERE answer IS NULL")?;
    let asks: BTreeSet<i64> = asks.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    let root_of: HashMap<&str, i64> = rows.iter().map(|row| (row.id.as_str(), row.root)).collect();
    let mut groups = Together::default();
    for row in &rows {
        for link in row.links.iter().flatten() {
            if let Some(other) = root_of.get(link.as_str()) {
                groups.join(row.root, *other);
            }
        }
    }
    let mut found: BTreeMap<i64, Option<Group>> = BTreeMap::new();
    for row in &rows {
        let group = found
            .entry(groups.of(row.root))
            .or_insert_with(|| Some(Group { threads: Vec::new(), ended_at: String::new(), kept }));
        match (&row.completed_at, group.as_mut()) {
            (Some(at), Some(group)) if !asks.contains(&row.row) => {
                let id = ThreadId::parse(&row.id).map_err(|error| StoreError::Failed(error.to_string()))?;
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
struct Together(HashMap<i64, i64>);

impl Together {
    fn of(&mut self, root: i64) -> i64 {
        let mut at = root;
        while let Some(next) = self.0.get(&at).copied().filter(|next| *next != at) {
            at = next;
        }
        self.0.insert(root, at);
        at
    }

    fn join(&mut self, one: i64, other: i64) {
        let (one, other) = (self.of(one), self.of(other));
        self.0.insert(one.max(other), one.min(other));
    }
}

/// Takes groups out of the database.
pub(super) fn forget(
    desk: &Desk<'_, '_>,
    prune: &Prune,
    stored: &Stored,
) -> Result<(Vec<Group>, u64), StoreError> {
    // Looked for here, in the transaction: what is in use by now stays.
    let groups = chosen(desk.connection, prune, stored)?;
    desk.record.release(groups.iter().flat_map(Group::ids));
    for (row, _) in groups.iter().flat_map(|group| &group.threads) {
        for table in ["journal", "calls", "uses", "approvals", "budget_ledger", "threads"] {
            let sql = format!("DELETE FROM {table} WHERE thread = ?1");
            desk.connection.prepare_cached(&sql)?.execute([row])?;
        }
    }
    // A part that was kept a moment ago is about to be used.
    let unused = "DELETE FROM blobs WHERE at_ms <= ?1 AND NOT EXISTS (SELECT 1 FROM uses WHERE uses.blob = blobs.blob)";
    let before_ms = prune.at_ms.saturating_sub(prune.after_days.unwrap_or(1).min(1).saturating_mul(DAY_MS));
    let blobs = desk.connection.prepare_cached(unused)?.execute([integer(before_ms, "a time")?])?;
    Ok((groups, blobs as u64))
}

/// Moves or removes the folders of threads that are forgotten.
pub(super) fn clear_folders(folder: &Path, groups: &[Group]) -> Result<(), StoreError> {
    for group in groups {
        for id in group.ids() {
            put_away(folder, id, group.kept)?;
        }
    }
    Ok(())
}

fn put_away(folder: &Path, id: &ThreadId, kept: Kept) -> Result<(), StoreError> {
    let own = folder.join(id.as_str());
    if own.symlink_metadata().is_err() {
        return Ok(());
    }
    match kept {
        Kept::Nothing => lillux::file::remove_tree(&own)?,
        Kept::Archived => {
            let archive = lillux::file::create_folders_beneath(folder, Path::new(ARCHIVE), true)?;
            lillux::file::rename_folder(&own, &archive.join(id.as_str()))?;
        }
    }
    Ok(())
}

/// Puts folders away whose thread is not known: their process ended between forgetting and clearing.
pub(super) fn clear_strays(
    folder: &Path,
    prune: &Prune,
    is_known: impl Fn(&ThreadId) -> Result<bool, StoreError>,
) -> Result<(), StoreError> {
    let Some(days) = prune.after_days else { return Ok(()) };
    for (path, id) in folders_in(folder) {
        if is_older(&path, prune.at_ms, days) && !is_known(&id)? {
            put_away(folder, &id, prune.kept)?;
        }
    }
    Ok(())
}

/// Removes folders of the archive that are old enough, or the oldest of them until there is room. Gives how many.
pub(super) fn clear_archive(folder: &Path, prune: &Prune) -> Result<u64, StoreError> {
    let mut count = 0;
    // A link would have folders removed wherever it leads.
    if lillux::file::folder_beneath(folder, Path::new(ARCHIVE))?.is_none() {
        return Ok(count);
    }
    let mut all = folders_in(&folder.join(ARCHIVE));
    if let Some(days) = prune.remove_archived_after_days {
        for (path, _) in all.extract_if(.., |(path, _)| is_older(path, prune.at_ms, days)) {
            lillux::file::remove_tree(&path)?;
            count += 1;
        }
    }
    if let Some(most) = prune.most_bytes {
        let mut left = bytes_in(folder, DEEPEST);
        all.sort_by_key(|(path, _)| path.metadata().and_then(|found| found.modified()).ok());
        for (path, _) in &all {
            if left <= most {
                break;
            }
            left = left.saturating_sub(bytes_in(path, DEEPEST));
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
fn last_time(connection: &Connection, name: &str) -> Result<Option<u64>, StoreError> {
    let last = connection
        .prepare_cached("SELECT value FROM facts WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()?;
    Ok(last)
}

/// Notes that something is done now.
pub(super) fn note_time(connection: &Connection, name: &str, at_ms: u64) -> Result<(), StoreError> {
    connection.execute(
        "INSERT INTO facts (name, value) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET value = excluded.value",
        params![name, integer(at_ms, "a time")?],
    )?;
    Ok(())
}

/// What `note_time` calls forgetting.
pub(super) const PRUNED: &str = "pruned_ms";

/// Whether nothing was forgotten by itself for a day, and there is something older than that.
pub(super) fn is_due(connection: &Connection, at_ms: u64) -> Result<bool, StoreError> {
    if let Some(last) = last_time(connection, PRUNED)? {
        return Ok(last.saturating_add(DAY_MS) <= at_ms);
    }
    let first: Option<String> = connection
        .prepare_cached("SELECT created_at FROM threads ORDER BY thread LIMIT 1")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(first.is_some_and(|first| first <= iso(at_ms.saturating_sub(DAY_MS))))
}

/// Writes the database anew, if that was long ago or room is short.
pub(super) fn vacuum(connection: &Connection, prune: &Prune) -> Result<bool, StoreError> {
    let Some(days) = prune.vacuum_interval_days else {
        return Ok(false);
    };
    let last = last_time(connection, "vacuumed_ms")?;
    let is_due = last.is_none_or(|last| last.saturating_add(days.saturating_mul(DAY_MS)) <= prune.at_ms);
    if is_due {
        connection.execute_batch("VACUUM")?;
        note_time(connection, "vacuumed_ms", prune.at_ms)?;
    }
    Ok(is_due)
}
