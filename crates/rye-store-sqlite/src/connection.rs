//! Opening the database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use super::{DATABASE, DbError, schema};
use rye_store::ThreadStoreError;

/// How long to wait for another process that writes.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// The database in a folder, by a path without links: a linked database is not followed.
pub(super) fn database_path(folder: &Path) -> Result<PathBuf, DbError> {
    Ok(fs_err::canonicalize(folder)?.join(DATABASE))
}

#[expect(clippy::disallowed_methods, reason = "this module is the one that opens the store of threads")]
pub(super) fn connect(database: &Path, also: OpenFlags) -> Result<Connection, DbError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | also;
    let connection = Connection::open_with_flags(database, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = 4000; PRAGMA journal_size_limit = 1048576; PRAGMA cache_size = -16000;",
    )?;
    Ok(connection)
}

pub(super) fn check_version(connection: &Connection, database: &Path) -> Result<(), DbError> {
    let found = schema::version(connection)?;
    if found > schema::VERSION {
        return Err(DbError::from(ThreadStoreError::Newer {
            path: database.to_owned(),
            found,
            known: schema::VERSION,
        }));
    }
    Ok(())
}
