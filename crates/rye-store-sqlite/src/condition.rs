//! What condition a folder of threads is in: whether its database is there, readable, of this version, and sealed with
//! the secret that is there now.
//!
//! A database that is lost beside the folders of its threads is never made new in silence: [`refuse_lost`].

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::connection::{connect, database_path};
use super::row_seal::RowSealer;
use super::{DATABASE, DbError, ThreadSecret, folder, queries, schema, schema_check};
use rye_store::ThreadStoreError;
use rye_thread::thread_id::ThreadId;

/// How many of the newest threads are looked at to tell whether the secret is theirs.
const MAX_SAMPLED_THREADS: usize = 20;

/// What the database's other files are called.
const COMPANIONS: [&str; 3] = ["", "-wal", "-shm"];

/// The condition of a folder of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreCondition {
    /// There has never been a thread.
    Absent,
    /// It can be used.
    Ready {
        /// How many threads it holds.
        threads: u64,
    },
    /// An older rye wrote it; the next command that opens it brings it to this version.
    Older {
        /// Its version.
        found: i64,
    },
    /// A newer rye wrote it.
    Newer {
        /// Its version.
        found: i64,
        /// The last version that is known.
        known: i64,
    },
    /// The database is damaged.
    Damaged {
        /// What the database says.
        reason: String,
    },
    /// The database is missing or empty, beside the folders of threads.
    Lost {
        /// How many folders there are.
        folders: usize,
    },
    /// The secret that sealed the threads is gone.
    SecretLost {
        /// Where it was.
        path: PathBuf,
    },
    /// None of the newest threads was sealed with the secret that is there.
    OtherSecret {
        /// How many threads it holds.
        threads: u64,
    },
}

/// Looks at a folder of threads. Nothing is changed or made.
///
/// # Errors
/// When the folder is a link, the secret cannot be used, or the system refuses.
pub fn inspect(folder: &Path, signing_keys: &Path) -> Result<StoreCondition, ThreadStoreError> {
    if folder::is_absent(folder)? {
        return Ok(StoreCondition::Absent);
    }
    let folders = thread_folders(folder).len();
    if !has_database(folder) {
        return Ok(match folders {
            0 => StoreCondition::Absent,
            folders => StoreCondition::Lost { folders },
        });
    }
    let database = database_path(folder)?;
    match inspect_database(&database, folders, signing_keys).map_err(|error| error.with_path(&database)) {
        Err(ThreadStoreError::Damaged { reason, .. }) => Ok(StoreCondition::Damaged { reason }),
        condition => condition,
    }
}

fn inspect_database(database: &Path, folders: usize, signing_keys: &Path) -> Result<StoreCondition, DbError> {
    let connection = connect(database, OpenFlags::empty())?;
    let found = schema::version(&connection)?;
    if found > schema::VERSION {
        return Ok(StoreCondition::Newer { found, known: schema::VERSION });
    }
    let answer: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if answer != "ok" {
        return Ok(StoreCondition::Damaged { reason: rye_item::text::one_line(&answer) });
    }
    if found == 0 {
        return Ok(match (schema::has_tables(&connection)?, folders) {
            (true, _) => StoreCondition::Damaged { reason: "it has tables of another program".to_owned() },
            (false, 0) => StoreCondition::Absent,
            (false, folders) => StoreCondition::Lost { folders },
        });
    }
    schema_check::refuse_foreign_schema(&connection)?;
    let threads: u64 = connection.query_row("SELECT count(*) FROM threads", [], |row| row.get(0))?;
    let secret = match ThreadSecret::load(signing_keys) {
        Ok(secret) => secret,
        Err(ThreadStoreError::SecretLost { path }) => return Ok(StoreCondition::SecretLost { path }),
        Err(error) => return Err(error.into()),
    };
    if found < schema::VERSION {
        return Ok(StoreCondition::Older { found });
    }
    let is_ours = match &secret {
        Some(secret) => is_sealed_with(&connection, secret)?,
        None => threads == 0,
    };
    Ok(if is_ours { StoreCondition::Ready { threads } } else { StoreCondition::OtherSecret { threads } })
}

/// Whether one of the newest threads was sealed with this secret, or there is none.
fn is_sealed_with(connection: &Connection, secret: &ThreadSecret) -> Result<bool, DbError> {
    let seal = RowSealer { mac: secret.mac(), store: schema::store_id(connection)?.unwrap_or_default() };
    let mut newest = connection.prepare("SELECT thread_id FROM threads ORDER BY thread DESC LIMIT ?1")?;
    let ids: Vec<String> =
        newest.query_map([MAX_SAMPLED_THREADS], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for id in &ids {
        let Ok(id) = ThreadId::parse(id) else { continue };
        if queries::thread(connection, &seal, &id)?.is_some_and(|row| !row.is_forged) {
            return Ok(true);
        }
    }
    Ok(ids.is_empty())
}

/// Whether there is a database that is not empty.
fn has_database(folder: &Path) -> bool {
    folder.join(DATABASE).metadata().is_ok_and(|found| found.is_file() && found.len() > 0)
}

/// The folders here that are named after threads.
#[must_use]
pub fn thread_folders(folder: &Path) -> Vec<ThreadId> {
    let entries = fs_err::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let id = ThreadId::parse(entry.file_name().to_str()?).ok()?;
        entry.file_type().is_ok_and(|kind| kind.is_dir()).then_some(id)
    });
    let mut ids: Vec<ThreadId> = named.collect();
    ids.sort();
    ids
}

/// Refuses a folder of threads whose database is missing or empty.
pub(super) fn refuse_lost(folder: &Path) -> Result<(), DbError> {
    if has_database(folder) {
        return Ok(());
    }
    lost(folder)
}

/// Refuses a folder of threads whose database holds nothing.
pub(super) fn refuse_lost_tables(folder: &Path, connection: &Connection) -> Result<(), DbError> {
    if schema::version(connection)? > 0 { Ok(()) } else { lost(folder) }
}

fn lost(folder: &Path) -> Result<(), DbError> {
    match thread_folders(folder).len() {
        0 => Ok(()),
        folders => Err(ThreadStoreError::Lost { path: folder.join(DATABASE), folders }.into()),
    }
}

/// Puts the database of `rebuilt` in the place of the one in `folder`, which is kept under another name. Gives that name.
///
/// # Errors
/// When a file cannot be moved. The database is then where it was, or under the other name.
pub fn replace_database(
    folder: &Path,
    rebuilt: &Path,
    at_ms: u64,
) -> Result<Option<PathBuf>, ThreadStoreError> {
    let replace = || -> Result<Option<PathBuf>, DbError> {
        let _lock = lillux::file::Lock::acquire_dir(folder)?;
        let mut kept = None;
        for companion in COMPANIONS {
            let old = folder.join(format!("{DATABASE}{companion}"));
            let new = folder.join(format!("{DATABASE}.lost-{at_ms}{companion}"));
            if old.symlink_metadata().is_ok() {
                lillux::file::rename_dir(&old, &new)?;
                kept = kept.or_else(|| companion.is_empty().then_some(new));
            }
        }
        lillux::file::rename_dir(&rebuilt.join(DATABASE), &folder.join(DATABASE))?;
        Ok(kept)
    };
    Ok(replace()?)
}
