//! Opening the database.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
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
    // Else SQLite prepares some statements at each use: those whose parameters may allow a partial index.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
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

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn statements_stay_prepared_beside_partial_indexes() {
        let folder = tempfile::tempdir().expect("a folder");
        let database = folder.path().join("registry.db");
        let connection = connect(&database, OpenFlags::SQLITE_OPEN_CREATE).expect("a database");
        let schema = "CREATE TABLE one (id INTEGER PRIMARY KEY, pid INTEGER);
            CREATE TABLE other (id INTEGER PRIMARY KEY);
            CREATE INDEX of_pid ON one (id) WHERE pid = 1;
            INSERT INTO one VALUES (1, 1); INSERT INTO other VALUES (1);";
        connection.execute_batch(schema).expect("tables");
        let select =
            "SELECT one.id FROM one JOIN other ON other.id = one.id WHERE one.id = ?1 AND one.pid = ?2";
        let mut statement = connection.prepare(select).expect("a statement");
        for _ in 0..3 {
            statement.query_row([1, 1], |row| row.get::<_, i64>(0)).expect("a row");
        }
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }
}
