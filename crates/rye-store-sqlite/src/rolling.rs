//! Budgets of a day or a month, in a database of the user's: they span the stores of all projects.
//!
//! It lies beside the user's secret, where no tool reaches. A reservation is checked and written in a transaction of its
//! own that is begun within the store's and committed just before it. A crash between the two leaves here what the store
//! does not know. The store is right: a reservation it does not have is released when the store next reserves, and a call
//! that it settles again, with another cost, is charged that cost.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode};
use rusqlite::{Connection, OpenFlags, params};

use super::DbError;
use super::connection::connect;
use super::db_error::to_sqlite_integer;
use rye_store::{BudgetRefusal, ReserveRequest, RollingBudget, RollingUsage, ThreadStoreError};
use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

/// The database's name in the folder of the signing key.
pub(super) const ROLLING_DATABASE: &str = "rolling_budgets.db";

/// The name of the file beside it that says that there is a database: a lost one is not made again, since what was spent
/// would be forgotten.
const MARKER: &str = "rolling_budgets.kept";

const MARKER_TEXT: &[u8] =
    b"What has been spent of the budgets of days and months is in rolling_budgets.db.\n\
If that file is lost, no call that such a budget limits is made. To count from zero, remove this file.\n";

/// The layout that this code reads and writes.
const VERSION: i64 = 1;

/// For how long settled calls are remembered after their period, so that none is charged twice.
const CALL_RETENTION_MS: u64 = 40 * 24 * 3_600_000;

/// For how long sums are kept after their period.
const PERIOD_RETENTION_MS: u64 = 800 * 24 * 3_600_000;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS periods (
    scope TEXT NOT NULL,
    period TEXT NOT NULL,
    starts_ms INTEGER NOT NULL,
    ends_ms INTEGER NOT NULL,
    spent INTEGER NOT NULL DEFAULT 0,
    reserved INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (scope, period, ends_ms, starts_ms),
    CHECK (spent >= 0 AND reserved >= 0)
) WITHOUT ROWID, STRICT;
CREATE TABLE IF NOT EXISTS calls (
    store INTEGER NOT NULL,
    thread_id TEXT NOT NULL,
    call INTEGER NOT NULL,
    scope TEXT NOT NULL,
    period TEXT NOT NULL,
    starts_ms INTEGER NOT NULL,
    ends_ms INTEGER NOT NULL,
    reserved INTEGER NOT NULL,
    is_settled INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (store, thread_id, call, scope, period)
) WITHOUT ROWID, STRICT;
";

/// What a settled call is charged; null where an older release settled it.
const SPENT_COLUMN: &str = "ALTER TABLE calls ADD COLUMN spent INTEGER";

/// A call as its store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordedCall {
    /// It has none of this number.
    Missing,
    /// It is in flight, or was when its process died.
    Open,
    /// It did cost this much.
    Settled(i64),
}

/// The call that something is reserved or settled for.
#[derive(Clone, Copy)]
pub(super) struct RollingCall<'a> {
    /// The number of the store its thread is in.
    pub(super) store: i64,
    pub(super) thread: &'a ThreadId,
    pub(super) call: u64,
}

/// The database, opened with the first budget.
pub(super) struct RollingDb {
    path: PathBuf,
    connection: RefCell<Option<Connection>>,
    /// Whether the file is known to be there.
    is_present: Cell<bool>,
    /// Whether what is reserved here was compared with the store.
    is_reconciled: Cell<bool>,
}

impl RollingDb {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            connection: RefCell::default(),
            is_present: Cell::new(false),
            is_reconciled: Cell::new(false),
        }
    }

    /// Rows written so far.
    pub(super) fn total_changes(&self) -> u64 {
        self.connection.borrow().as_ref().map_or(0, Connection::total_changes)
    }

    /// Makes durable what was begun.
    pub(super) fn commit(&self) -> Result<(), DbError> {
        match self.connection.borrow().as_ref() {
            Some(connection) if !connection.is_autocommit() => {
                connection.execute_batch("COMMIT").map_err(|error| self.error(&error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Takes back what was begun.
    pub(super) fn rollback(&self) {
        self.is_reconciled.set(false);
        if let Some(connection) = self.connection.borrow().as_ref()
            && !connection.is_autocommit()
        {
            // When even this fails, the next transaction does, and says why.
            let _ = connection.execute_batch("ROLLBACK");
        }
    }

    /// Reserves for a call in every budget, or in none. It is called within the store's transaction, and `find` says what
    /// the store has of a call: with the first reservation, what a crash left here is brought in line with it.
    pub(super) fn reserve(
        &self,
        call: RollingCall<'_>,
        request: ReserveRequest,
        budgets: &[RollingBudget],
        find: impl Fn(&str, i64) -> Result<RecordedCall, DbError>,
    ) -> Result<Option<BudgetRefusal>, DbError> {
        if budgets.is_empty() || request.spend == Nanos(0) {
            return Ok(None);
        }
        if !self.is_reconciled.get() {
            self.within(|connection| reconcile(connection, call.store, find))?;
            self.is_reconciled.set(true);
        }
        self.within(|connection| {
            // Of an attempt that was not committed in the store.
            release(connection, call)?;
            for budget in budgets {
                let usage = usage(connection, budget)?;
                if usage.used.plus(usage.reserved).plus(request.spend) > budget.limit {
                    return Ok(Some(BudgetRefusal::by_rolling(call.thread, request.spend, budget, usage)));
                }
            }
            for budget in budgets {
                count(connection, call, budget, request.spend.0)?;
            }
            Ok(None)
        })
    }

    /// Records what a call did cost where it was reserved; one that was reserved nowhere counts in `budgets`.
    pub(super) fn settle(
        &self,
        call: RollingCall<'_>,
        spend: i64,
        budgets: &[RollingBudget],
    ) -> Result<(), DbError> {
        if budgets.is_empty() && !self.is_present() {
            return Ok(());
        }
        self.within(|connection| {
            let number = to_sqlite_integer(call.call, "a call's number")?;
            let id = params![call.store, call.thread.as_str(), number];
            let known: bool = connection
                .prepare_cached(
                    "SELECT EXISTS (SELECT 1 FROM calls WHERE store = ?1 AND thread_id = ?2 AND call = ?3)",
                )?
                .query_row(id, |row| row.get(0))?;
            if !known {
                for budget in budgets {
                    count(connection, call, budget, 0)?;
                }
            }
            charge(connection, (call.store, call.thread.as_str(), number), spend)
        })
    }

    fn is_present(&self) -> bool {
        let is_present = self.is_present.get() || self.path.exists();
        self.is_present.set(is_present);
        is_present
    }

    /// Works within the transaction, which is begun if it was not.
    fn within<T>(&self, work: impl FnOnce(&Connection) -> Result<T, DbError>) -> Result<T, DbError> {
        let mut slot = self.connection.borrow_mut();
        let opened = match slot.take() {
            Some(connection) => Ok(connection),
            None => open(&self.path),
        };
        let connection = slot.insert(opened.map_err(|error| self.error(&error))?);
        let run = || {
            if connection.is_autocommit() {
                connection.execute_batch("BEGIN IMMEDIATE")?;
            }
            work(connection)
        };
        run().map_err(|error| self.error(&error))
    }

    fn error(&self, error: &DbError) -> DbError {
        database_error(&self.path, error)
    }
}

/// What is spent and reserved of each budget, for those who look.
pub(super) fn read_usage(path: &Path, budgets: &[RollingBudget]) -> Result<Vec<RollingUsage>, DbError> {
    let is_new = !path.exists() && !path.with_file_name(MARKER).exists();
    if budgets.is_empty() || is_new {
        return Ok(vec![RollingUsage::default(); budgets.len()]);
    }
    let read = || -> Result<Vec<RollingUsage>, DbError> {
        let connection = open(path)?;
        budgets.iter().map(|budget| usage(&connection, budget)).collect()
    };
    read().map_err(|error| database_error(path, &error))
}

/// Whether the sums are there, if there ever were any.
pub(super) fn check(path: &Path) -> Result<(), DbError> {
    match path.exists() || path.with_file_name(MARKER).exists() {
        true => open(path).map(drop).map_err(|error| database_error(path, &error)),
        false => Ok(()),
    }
}

/// The error with the database it is about: it is not the store's own.
fn database_error(path: &Path, error: &DbError) -> DbError {
    let error = ThreadStoreError::from(error.clone());
    let reason = match error {
        ThreadStoreError::Damaged { reason, .. } | ThreadStoreError::Failed(reason) => reason,
        other => other.to_string(),
    };
    let path = path.display();
    ThreadStoreError::Failed(format!("the budgets of days and months cannot be used: {path}: {reason}"))
        .into()
}

fn open(path: &Path) -> Result<Connection, DbError> {
    if let Some(folder) = path.parent() {
        file::create_dirs(folder, true)?;
    }
    let marker = path.with_file_name(MARKER);
    // Looked at first: another process writes it once the database is whole.
    let is_known = marker.exists();
    if is_known && fs_err::metadata(path).map_or(0, |found| found.len()) == 0 {
        return Err(lost_error(&marker));
    }
    write_missing(path, b"")?;
    // Without links: a linked database is not followed.
    let folder = path.parent().map(fs_err::canonicalize).transpose()?.unwrap_or_default();
    let connection = connect(&folder.join(ROLLING_DATABASE), OpenFlags::empty())?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > VERSION {
        let reason = format!("it has version {version}, this rye reads {VERSION}");
        return Err(ThreadStoreError::Failed(reason).into());
    }
    if version == 0 && is_known {
        return Err(lost_error(&marker));
    }
    if version < VERSION {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        connection.execute_batch(TABLES)?;
        connection.pragma_update(None, "user_version", VERSION)?;
        connection.execute_batch("COMMIT")?;
    }
    add_spent_column(&connection)?;
    if !is_known {
        write_missing(&marker, MARKER_TEXT)?;
    }
    Ok(connection)
}

/// Writes a file where there is none.
fn write_missing(path: &Path, bytes: &[u8]) -> Result<(), DbError> {
    match file::write_new(path, bytes, FileMode::Private) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn lost_error(marker: &Path) -> DbError {
    let marker = marker.display();
    ThreadStoreError::Failed(format!(
        "it is missing or empty, and with it what was spent; restore it from a backup, or count from zero: rm {marker}"
    ))
    .into()
}

/// Adds the column that databases of older releases lack. Those releases can still use the database.
fn add_spent_column(connection: &Connection) -> Result<(), DbError> {
    let is_missing = || -> Result<bool, rusqlite::Error> {
        let find = "SELECT NOT EXISTS (SELECT 1 FROM pragma_table_info('calls') WHERE name = 'spent')";
        connection.query_row(find, [], |row| row.get(0))
    };
    if is_missing()? {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        // Another process may have added it meanwhile.
        let added = match is_missing() {
            Ok(true) => connection.execute_batch(SPENT_COLUMN),
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        connection.execute_batch(if added.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
        added?;
    }
    Ok(())
}

/// What is spent and reserved of a budget. A period that ends after the budget's start counts with it: the clock was set
/// back, or the time zone is another.
fn usage(connection: &Connection, budget: &RollingBudget) -> Result<RollingUsage, DbError> {
    let mut find = connection.prepare_cached(
        "SELECT coalesce(sum(spent), 0), coalesce(sum(reserved), 0),
                coalesce(sum(CASE WHEN starts_ms >= ?4 THEN spent + reserved ELSE 0 END), 0)
         FROM periods WHERE scope = ?1 AND period = ?2 AND ends_ms > ?3",
    )?;
    let (starts_ms, ends_ms) = bounds(budget)?;
    let key = params![budget.scope.key(), budget.period.as_str(), starts_ms, ends_ms];
    Ok(find.query_row(key, |row| {
        Ok(RollingUsage { used: Nanos(row.get(0)?), reserved: Nanos(row.get(1)?), ahead: Nanos(row.get(2)?) })
    })?)
}

fn bounds(budget: &RollingBudget) -> Result<(i64, i64), DbError> {
    let number = |ms| to_sqlite_integer(ms, "a time");
    Ok((number(budget.starts_ms)?, number(budget.ends_ms)?))
}

/// Counts a call in a budget, with what is reserved for it.
fn count(
    connection: &Connection,
    call: RollingCall<'_>,
    budget: &RollingBudget,
    reserved: u64,
) -> Result<(), DbError> {
    let (starts_ms, ends_ms) = bounds(budget)?;
    let reserved = to_sqlite_integer(reserved, "a reservation")?;
    let (scope, period) = (budget.scope.key(), budget.period.as_str());
    let added = connection
        .prepare_cached(
            "INSERT INTO periods (scope, period, starts_ms, ends_ms) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
        )?
        .execute(params![scope, period, starts_ms, ends_ms])?;
    if added > 0 {
        forget_old(connection, budget.starts_ms)?;
    }
    connection
        .prepare_cached(
            "UPDATE periods SET reserved = reserved + ?5
             WHERE scope = ?1 AND period = ?2 AND starts_ms = ?3 AND ends_ms = ?4",
        )?
        .execute(params![scope, period, starts_ms, ends_ms, reserved])?;
    let number = to_sqlite_integer(call.call, "a call's number")?;
    connection
        .prepare_cached(
            "INSERT INTO calls (store, thread_id, call, scope, period, starts_ms, ends_ms, reserved)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            call.store,
            call.thread.as_str(),
            number,
            scope,
            period,
            starts_ms,
            ends_ms,
            reserved
        ])?;
    Ok(())
}

/// Charges a call where it is counted, instead of what is reserved for it or was charged before.
fn charge(connection: &Connection, call: (i64, &str, i64), spend: i64) -> Result<(), DbError> {
    let (store, thread, number) = call;
    connection
        .prepare_cached(
            "UPDATE periods SET spent = periods.spent + ?4 - counted.charged,
                    reserved = periods.reserved - counted.in_flight
             FROM (SELECT *, CASE is_settled WHEN 0 THEN 0 ELSE spent END AS charged,
                          CASE is_settled WHEN 0 THEN reserved ELSE 0 END AS in_flight
                   FROM calls WHERE store = ?1 AND thread_id = ?2 AND call = ?3
                       AND (is_settled = 0 OR spent IS NOT NULL)) AS counted
             WHERE periods.scope = counted.scope AND periods.period = counted.period
                 AND periods.starts_ms = counted.starts_ms AND periods.ends_ms = counted.ends_ms",
        )?
        .execute(params![store, thread, number, spend])?;
    connection
        .prepare_cached(
            "UPDATE calls SET is_settled = 1, spent = ?4
             WHERE store = ?1 AND thread_id = ?2 AND call = ?3 AND (is_settled = 0 OR spent IS NOT NULL)",
        )?
        .execute(params![store, thread, number, spend])?;
    Ok(())
}

/// Brings calls in flight in line with the store whose transaction this is part of: a process was killed after it had
/// committed here and before it had there.
fn reconcile(
    connection: &Connection,
    store: i64,
    find: impl Fn(&str, i64) -> Result<RecordedCall, DbError>,
) -> Result<(), DbError> {
    let open: Vec<(String, i64)> = connection
        .prepare_cached("SELECT DISTINCT thread_id, call FROM calls WHERE store = ?1 AND is_settled = 0")?
        .query_map([store], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (thread, number) in open {
        match find(&thread, number)? {
            RecordedCall::Open => {}
            RecordedCall::Settled(spend) => charge(connection, (store, &thread, number), spend)?,
            RecordedCall::Missing => release_call(connection, (store, &thread, number))?,
        }
    }
    Ok(())
}

/// Gives back what is reserved for a call.
fn release(connection: &Connection, call: RollingCall<'_>) -> Result<(), DbError> {
    let number = to_sqlite_integer(call.call, "a call's number")?;
    release_call(connection, (call.store, call.thread.as_str(), number))
}

fn release_call(connection: &Connection, call: (i64, &str, i64)) -> Result<(), DbError> {
    let id = params![call.0, call.1, call.2];
    connection
        .prepare_cached(
            "UPDATE periods SET reserved = periods.reserved - counted.reserved
             FROM (SELECT * FROM calls WHERE store = ?1 AND thread_id = ?2 AND call = ?3 AND is_settled = 0) AS counted
             WHERE periods.scope = counted.scope AND periods.period = counted.period
                 AND periods.starts_ms = counted.starts_ms AND periods.ends_ms = counted.ends_ms",
        )?
        .execute(id)?;
    connection
        .prepare_cached(
            "DELETE FROM calls WHERE store = ?1 AND thread_id = ?2 AND call = ?3 AND is_settled = 0",
        )?
        .execute(id)?;
    Ok(())
}

/// Forgets what no budget counts any more.
fn forget_old(connection: &Connection, now_ms: u64) -> Result<(), DbError> {
    let before = |retention: u64| to_sqlite_integer(now_ms.saturating_sub(retention), "a time");
    connection.execute("DELETE FROM calls WHERE ends_ms < ?1", [before(CALL_RETENTION_MS)?])?;
    connection.execute("DELETE FROM periods WHERE ends_ms < ?1", [before(PERIOD_RETENTION_MS)?])?;
    Ok(())
}
