//! The index on disk: one SQLite database per project and user, in the cache folder. It may be lost, damaged or
//! stale at any time: it is then rebuilt, and never an error.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use lillux::file::Lock;
use rusqlite::{Connection, OpenFlags, params};
use rye_item::{ItemType, Space, metadata};
use rye_trust::Subject;

use super::correct::{NameWords, is_name_word};
use super::query::FACET_PREFIX;
use super::rank::Rankings;
use super::shadow;
use super::word_stems::{self, StemCache};
use crate::file_stamp::FileStamp;
use crate::scan::{InvalidItemFile, ItemEntry};
use crate::spaces::{CandidatePath, Spaces};

/// Another number means another layout: an index with another number is rebuilt.
const SCHEMA_VERSION: i64 = 6;

/// An open index.
#[derive(Debug)]
pub struct SearchIndex {
    connection: Connection,
    rankings: Rankings,
    names: NameWords,
    stems: StemCache,
    /// Counts what other processes wrote, as far as the rankings know.
    data_version: i64,
    /// Folders that could not be read when the files were last looked at.
    unreadable: Vec<InvalidItemFile>,
}

/// How many items were looked at and written in a refresh.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefreshStats {
    /// Items in all spaces.
    pub items: usize,
    /// Items that were read and written into the index.
    pub written: usize,
    /// Items that vanished.
    pub removed: usize,
}

/// Called with how many of how many changed items are indexed.
pub type IndexProgress<'a> = &'a mut dyn FnMut(usize, usize);

struct IndexedFile {
    row: i64,
    stamp: FileStamp,
    is_seen: bool,
}

impl SearchIndex {
    /// Opens the index at `path`, rebuilding it if it is missing, damaged or of another layout. Without a usable
    /// cache folder it lives in memory.
    ///
    /// # Errors
    /// When not even memory serves.
    pub fn open(path: &Path) -> rusqlite::Result<Self> {
        let _lock = lock_folder(path);
        match Self::open_file(path) {
            Ok(index) => Ok(index),
            // It is good, and others are at it: it is not for us to remove.
            Err(error) if is_busy(&error) => Self::in_memory(),
            Err(_) => Self::recreate(path),
        }
    }

    /// An index after `error`: a new one in place of the failed one.
    ///
    /// # Errors
    /// When not even memory serves.
    pub(super) fn recover(error: &rusqlite::Error, path: &Path) -> rusqlite::Result<Self> {
        let _lock = lock_folder(path);
        if is_busy(error) { Self::in_memory() } else { Self::recreate(path) }
    }

    fn recreate(path: &Path) -> rusqlite::Result<Self> {
        Self::discard(path);
        Self::open_file(path).or_else(|_| Self::in_memory())
    }

    fn discard(path: &Path) {
        for suffix in ["", "-wal", "-shm"] {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            // What cannot be removed is opened again, fails again, and memory serves instead.
            let _ = lillux::file::remove(&PathBuf::from(name));
        }
    }

    pub(super) fn in_memory() -> rusqlite::Result<Self> {
        let index = Self::from_connection(Connection::open_in_memory()?);
        index.connection.execute_batch(CREATE)?;
        Ok(index)
    }

    #[expect(clippy::disallowed_methods, reason = "this module is the one that opens the index")]
    fn open_file(path: &Path) -> rusqlite::Result<Self> {
        if let Some(folder) = path.parent() {
            lillux::file::create_dirs(folder, true)
                .map_err(|_| rusqlite::Error::InvalidPath(folder.to_owned()))?;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let connection = Connection::open_with_flags(canonicalize_parent(path), flags)?;
        connection.busy_timeout(std::time::Duration::from_secs(30))?;
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16000;
             PRAGMA trusted_schema = OFF;",
        )?;
        let layout: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        match layout {
            SCHEMA_VERSION => {}
            0 => connection.execute_batch(CREATE)?,
            _ => return Err(rusqlite::Error::InvalidQuery),
        }
        Ok(Self::from_connection(connection))
    }

    fn from_connection(connection: Connection) -> Self {
        Self {
            connection,
            rankings: Rankings::default(),
            names: NameWords::default(),
            stems: StemCache::new(),
            data_version: 0,
            unreadable: Vec::new(),
        }
    }

    /// The connection, for queries, and what is remembered of earlier ones.
    pub(super) fn parts(&mut self) -> (&Connection, &mut Rankings, &mut NameWords, &mut StemCache) {
        (&self.connection, &mut self.rankings, &mut self.names, &mut self.stems)
    }

    /// Forgets what was ranked before another process changed the index.
    pub(super) fn drop_stale_rankings(&mut self) -> rusqlite::Result<()> {
        let version = self.connection.query_row("PRAGMA data_version", [], |row| row.get(0))?;
        if version != self.data_version {
            self.data_version = version;
            self.rankings.clear();
            self.names.clear();
        }
        Ok(())
    }

    /// Brings the index up to date: every changed file is read and written, every vanished one removed.
    ///
    /// # Errors
    /// When the database fails.
    pub fn refresh(
        &mut self,
        spaces: &Spaces,
        progress: IndexProgress<'_>,
    ) -> rusqlite::Result<RefreshStats> {
        let mut unreadable = Vec::new();
        let scanned: Vec<(Space, Vec<ItemEntry>)> = spaces
            .order()
            .map(|space| {
                let walk = spaces.scan(&space, &ItemType::SEARCHABLE);
                unreadable.extend(walk.unreadable);
                (space, walk.entries)
            })
            .collect();
        self.unreadable = unreadable;
        let mut stats = RefreshStats {
            items: scanned.iter().map(|(_, entries)| entries.len()).sum(),
            ..RefreshStats::default()
        };
        let fingerprint = spaces_fingerprint(&scanned);
        if self.read_fact("outlook")? == fingerprint {
            return Ok(stats);
        }
        let mut indexed = self.indexed_files()?;
        let mut changed: Vec<(Space, ItemEntry)> = Vec::new();
        for (space, entries) in scanned {
            let mut in_space = indexed.get_mut(&space.to_string());
            for entry in entries {
                match in_space.as_mut().and_then(|files| files.get_mut(&entry.relative)) {
                    Some(file) if file.stamp == entry.stamp => file.is_seen = true,
                    _ => changed.push((space.clone(), entry)),
                }
            }
        }
        let removed: Vec<i64> = indexed
            .values()
            .flat_map(HashMap::values)
            .filter(|file| !file.is_seen)
            .map(|file| file.row)
            .collect();
        stats.removed = removed.len();
        stats.written = changed.len();
        self.write(spaces, &removed, &changed, &fingerprint, progress)?;
        Ok(stats)
    }

    /// Folders that could not be read when the files were last looked at: a search misses what they hold.
    #[must_use]
    pub fn unreadable(&self) -> &[InvalidItemFile] {
        &self.unreadable
    }

    fn read_fact(&self, name: &str) -> rusqlite::Result<String> {
        let select = "SELECT coalesce(max(value), '') FROM facts WHERE name = ?1";
        self.connection.query_row(select, [name], |row| row.get(0))
    }

    /// How many files are not as the index knows them.
    ///
    /// # Errors
    /// When the database fails.
    pub fn count_stale(&self, spaces: &Spaces) -> rusqlite::Result<usize> {
        let mut indexed = self.indexed_files()?;
        let mut stale = 0;
        for space in spaces.order() {
            let mut files = indexed.remove(&space.to_string()).unwrap_or_default();
            for entry in spaces.scan(&space, &ItemType::SEARCHABLE).entries {
                let is_known = files.remove(&entry.relative).is_some_and(|file| file.stamp == entry.stamp);
                stale += usize::from(!is_known);
            }
            stale += files.len();
        }
        Ok(stale + indexed.values().map(HashMap::len).sum::<usize>())
    }

    fn indexed_files(&self) -> rusqlite::Result<HashMap<String, HashMap<String, IndexedFile>>> {
        let mut statement = self
            .connection
            .prepare("SELECT id, space, path, size, modified, changed FROM items ORDER BY space")?;
        let mut rows = statement.query([])?;
        let mut indexed: HashMap<String, HashMap<String, IndexedFile>> = HashMap::new();
        while let Some(row) = rows.next()? {
            let stamp = FileStamp { size: row.get(3)?, modified: row.get(4)?, changed: row.get(5)? };
            let space = row.get_ref(1)?.as_str()?;
            if !indexed.contains_key(space) {
                indexed.insert(space.to_owned(), HashMap::new());
            }
            if let Some(files) = indexed.get_mut(space) {
                files.insert(row.get(2)?, IndexedFile { row: row.get(0)?, stamp, is_seen: false });
            }
        }
        Ok(indexed)
    }

    fn write(
        &mut self,
        spaces: &Spaces,
        removed: &[i64],
        changed: &[(Space, ItemEntry)],
        fingerprint: &str,
        progress: IndexProgress<'_>,
    ) -> rusqlite::Result<()> {
        self.rankings.clear();
        self.names.clear();
        let stems = &mut self.stems;
        let transaction =
            self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        {
            let mut remove_item = transaction.prepare("DELETE FROM items WHERE id = ?1")?;
            let mut remove_words = transaction.prepare("DELETE FROM words WHERE rowid = ?1")?;
            let mut remove_near = transaction.prepare("DELETE FROM near WHERE rowid = ?1")?;
            let mut remove = |row: i64| -> rusqlite::Result<()> {
                remove_words.execute([row])?;
                remove_near.execute([row])?;
                remove_item.execute([row])?;
                Ok(())
            };
            for row in removed {
                remove(*row)?;
            }
            let mut find = transaction.prepare("SELECT id FROM items WHERE space = ?1 AND path = ?2")?;
            let mut add_item = transaction.prepare(
                "INSERT INTO items (space, path, type, item_id, extension, size, modified, changed, title, description, version)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?;
            let mut add_words = transaction.prepare(
                "INSERT INTO words (rowid, title, name, description, category, content, facets)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?;
            let mut add_name = transaction.prepare("INSERT OR IGNORE INTO names (word) VALUES (?1)")?;
            let mut add_near = transaction.prepare("INSERT INTO near (rowid, text) VALUES (?1, ?2)")?;
            for (done, (space, entry)) in changed.iter().enumerate() {
                if done % 64 == 0 {
                    progress(done, changed.len());
                }
                let label = space.to_string();
                // Another process may have indexed the file since it was looked at.
                let old: Vec<i64> = find
                    .query_map(params![label, entry.relative], |row| row.get(0))?
                    .collect::<Result<_, _>>()?;
                for row in old {
                    remove(row)?;
                }
                let text = read_text(spaces, space, entry);
                add_item.execute(params![
                    label,
                    entry.relative,
                    entry.item.item_type.as_str(),
                    entry.item.id.as_str(),
                    entry.extension,
                    entry.stamp.size,
                    entry.stamp.modified,
                    entry.stamp.changed,
                    text.title,
                    text.description,
                    text.version,
                ])?;
                let row = transaction.last_insert_rowid();
                add_words.execute(params![
                    row,
                    stems.with_stems(&text.title),
                    stems.with_stems(&text.name),
                    stems.with_stems(&text.description),
                    // The whole id, so that its parts are next to each other.
                    stems.with_stems(&format!("{} {}", text.category, text.name)),
                    stems.with_stems(&text.content),
                    facets(space, entry.item.item_type)
                ])?;
                let names = format!("{} {}", entry.item.id, text.title);
                for word in word_stems::parts(&names).iter().filter(|word| is_name_word(word)) {
                    add_name.execute([word])?;
                }
                add_near.execute(params![row, format!("{} {}", entry.item.id, text.title)])?;
            }
            progress(changed.len(), changed.len());
        }
        shadow::update(&transaction, spaces)?;
        transaction
            .execute("INSERT OR REPLACE INTO facts (name, value) VALUES ('outlook', ?1)", [fingerprint])?;
        transaction.commit()
    }
}

/// Processes that open an index at once take turns: otherwise one would remove what another is just making. Without a
/// folder that can be locked there is no index on disk to protect.
fn lock_folder(path: &Path) -> Option<Lock> {
    let folder = path.parent()?;
    lillux::file::create_dirs(folder, true).ok()?;
    Lock::acquire_dir(folder).ok()
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
    )
}

/// The same file with its folder's links resolved: the file itself must not be one.
fn canonicalize_parent(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => crate::roots::canonicalize_existing(folder).join(name),
        _ => path.to_owned(),
    }
}

/// One text for the order of spaces and the look of every file in them: the same text, the same index.
fn spaces_fingerprint(scanned: &[(Space, Vec<ItemEntry>)]) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut text = String::new();
    for (space, entries) in scanned {
        // A sum does not depend on the order in which a folder lists its files.
        let (mut low, mut high) = (0_u64, 0_u64);
        for entry in entries {
            let mut hasher = DefaultHasher::new();
            (&entry.relative, entry.stamp.size, entry.stamp.modified, entry.stamp.changed).hash(&mut hasher);
            low = low.wrapping_add(hasher.finish());
            hasher.write_u8(1);
            high = high.wrapping_add(hasher.finish());
        }
        text.push_str(&format!("{space} {} {low:016x}{high:016x}\n", entries.len()));
    }
    text
}

/// Tokens by which the index itself filters: every item, its type, its tier.
fn facets(space: &Space, item_type: ItemType) -> String {
    format!("{FACET_PREFIX}any {FACET_PREFIX}type{item_type} {FACET_PREFIX}tier{}", space.tier())
}

fn read_text(spaces: &Spaces, space: &Space, entry: &ItemEntry) -> metadata::SearchText {
    let candidate = CandidatePath {
        space: space.clone(),
        path: PathBuf::from(&entry.relative),
        extension: entry.extension.clone(),
        is_found: true,
    };
    match spaces.read(&entry.item, &candidate) {
        Ok(located) => metadata::search_text(
            entry.item.item_type,
            &located.item().id,
            located.fields(),
            located.parsed(),
        ),
        // Found by its name all the same, and flagged when it is shown.
        Err(_) => metadata::SearchText {
            title: entry.item.id.name().to_owned(),
            name: entry.item.id.name().to_owned(),
            category: entry.item.id.category().to_owned(),
            ..metadata::SearchText::default()
        },
    }
}

const CREATE: &str = "
BEGIN;
CREATE TABLE items (
    id INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    path TEXT NOT NULL,
    type TEXT NOT NULL,
    item_id TEXT NOT NULL,
    extension TEXT NOT NULL,
    size INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    title TEXT NOT NULL,
    description TEXT NOT NULL,
    version TEXT NOT NULL,
    hidden_by TEXT
);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE UNIQUE INDEX items_by_path ON items (space, path);
CREATE INDEX items_by_id ON items (type, item_id);
CREATE INDEX items_hidden ON items (hidden_by) WHERE hidden_by IS NOT NULL;
CREATE TABLE names (word TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5 (
    title, name, description, category, content, facets,
    content = '', contentless_delete = 1, tokenize = 'unicode61 remove_diacritics 2'
);
CREATE VIRTUAL TABLE near USING fts5 (text, content = '', contentless_delete = 1, detail = none, tokenize = 'trigram');
PRAGMA user_version = 6;
COMMIT;
";
