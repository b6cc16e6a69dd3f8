//! The store of threads: registry, journal and ledger in one SQLite database, so that a step, its spend and its status
//! are durable together or not at all.
//!
//! ```text
//! SqliteStore::create / commit → writer (one thread, many commits per transaction, one sync) → registry.db
//! SqliteStore::journal, thread, ledger, … ← readers (threads of their own, unless the caller waits in `block_on`)
//! ```
//!
//! All SQL about threads is in this crate. What is read for resuming is verified first: see `chain`.

mod approvals;
mod audit;
mod blobs;
mod cancel_requests;
mod chain;
mod claims;
mod commit;
mod condition;
mod connection;
mod create;
mod db_error;
mod folder;
mod freshness;
mod head_log;
mod ledger;
mod owner;
mod prune;
mod queries;
mod readers;
mod reply;
mod rolling;
mod row_seal;
mod schema;
mod schema_check;
mod secret;
mod store;
#[cfg(test)]
mod tests;
mod transfer;
mod waits;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use lillux::file::Lock;
use rusqlite::{Connection, OpenFlags};
use rye_store::{ChangeHub, RollingBudget, RollingUsage, ThreadStoreError};

pub use condition::{StoreCondition, inspect, replace_database, thread_folders};
use connection::{check_version, connect, database_path};
use db_error::DbError;
use head_log::HeadLog;
pub use owner::{SystemProbe, current_owner, is_owner_gone};
use readers::ReaderPool;
use row_seal::RowSealer;
pub use schema::{ColumnSpec, IndexSpec, LedgerSpec};
pub use secret::ThreadSecret;
use writer::{WriteTx, WriterHandle};

/// The database's name in the folder of threads.
pub const DATABASE: &str = "registry.db";
/// The ledger's name of old: a link to the database.
const LEDGER_LINK: &str = "budget_ledger.db";
/// Connections that are kept for reading.
const MAX_IDLE_READERS: usize = 4;

/// An open store of threads. Copies share it; it is closed when the last is dropped.
#[derive(Clone)]
pub struct SqliteStore {
    shared: Arc<StoreInner>,
}

struct StoreInner {
    folder: PathBuf,
    database: PathBuf,
    seal: RowSealer,
    head_log: Arc<HeadLog>,
    /// Where the budgets of days and months are.
    rolling: PathBuf,
    writer: WriterHandle,
    readers: Mutex<Vec<Connection>>,
    reader_pool: ReaderPool,
    watcher: Mutex<Connection>,
    changes: Arc<ChangeHub>,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Store({})", self.shared.database.display())
    }
}

impl SqliteStore {
    /// Opens the store in the folder of threads, making what is missing.
    ///
    /// # Errors
    /// When it is damaged, newer than this code, lost beside the folders of its threads, or cannot be made.
    pub fn open(folder: &Path, secret: &ThreadSecret, spec: &LedgerSpec) -> Result<Self, ThreadStoreError> {
        Ok(Self::open_or_create(folder, secret, spec)?)
    }

    fn open_or_create(folder: &Path, secret: &ThreadSecret, spec: &LedgerSpec) -> Result<Self, DbError> {
        folder::make(folder)?;
        // Two processes that make it at once would both set it up.
        let _lock = Lock::acquire_dir(folder)?;
        let database = database_path(folder)?;
        condition::refuse_lost(folder)?;
        // Others have no business in it; SQLite gives its other files the same mode.
        match lillux::file::write_new(&database, b"", lillux::file::FileMode::Private) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let prepare = || -> Result<Connection, DbError> {
            let connection = connect(&database, OpenFlags::SQLITE_OPEN_CREATE)?;
            check_version(&connection, &database)?;
            condition::refuse_lost_tables(folder, &connection)?;
            schema_check::refuse_foreign_schema(&connection)?;
            if !schema::is_current(&connection, spec)? {
                connection.execute_batch("BEGIN IMMEDIATE")?;
                schema::migrate(&connection, spec, &secret.mac())?;
                connection.execute_batch("COMMIT")?;
            }
            Ok(connection)
        };
        let connection = prepare().map_err(|error| error.with_path(&database))?;
        lillux::file::symlink_if_absent(Path::new(DATABASE), &folder.join(LEDGER_LINK))?;
        Self::from_connection(connection, folder, database, secret, spec.clone())
    }

    /// Opens the store in the folder of threads if there is one; makes nothing.
    ///
    /// # Errors
    /// When it is damaged, or newer than this code.
    pub fn open_existing(
        folder: &Path,
        secret: &ThreadSecret,
        spec: &LedgerSpec,
    ) -> Result<Option<Self>, ThreadStoreError> {
        Ok(Self::open_if_present(folder, secret, spec)?)
    }

    fn open_if_present(
        folder: &Path,
        secret: &ThreadSecret,
        spec: &LedgerSpec,
    ) -> Result<Option<Self>, DbError> {
        if folder::is_absent(folder)? {
            return Ok(None);
        }
        condition::refuse_lost(folder)?;
        if !folder.join(DATABASE).is_file() {
            return Ok(None);
        }
        let database = database_path(folder)?;
        let prepare = || -> Result<(Connection, i64), DbError> {
            let connection = connect(&database, OpenFlags::empty())?;
            check_version(&connection, &database)?;
            schema_check::refuse_foreign_schema(&connection)?;
            let version = schema::version(&connection)?;
            Ok((connection, version))
        };
        let (connection, version) = prepare().map_err(|error| error.with_path(&database))?;
        if version == 0 {
            condition::refuse_lost_tables(folder, &connection)?;
            // Another process is about to make it.
            return Ok(None);
        }
        if version < schema::VERSION {
            return Self::open_or_create(folder, secret, spec).map(Some);
        }
        Self::from_connection(connection, folder, database, secret, spec.clone()).map(Some)
    }

    fn from_connection(
        connection: Connection,
        folder: &Path,
        database: PathBuf,
        secret: &ThreadSecret,
        spec: LedgerSpec,
    ) -> Result<Self, DbError> {
        let changes = Arc::new(ChangeHub::default());
        let store = schema::store_id(&connection)?.unwrap_or_default();
        let seal = RowSealer { mac: secret.mac(), store };
        let head_log = Arc::new(match (secret.keys_dir(), database.parent()) {
            (Some(keys), Some(folder)) => HeadLog::open(keys, folder, store, schema::is_empty(&connection)?),
            _ => HeadLog::disabled(),
        });
        let sealing = (seal.clone(), Arc::clone(&head_log));
        // A secret that lies nowhere is a test's: its budgets lie with its threads.
        let rolling = secret.keys_dir().unwrap_or(folder).join(rolling::ROLLING_DATABASE);
        let watcher = connect(&database, OpenFlags::empty())?;
        let databases = (database.clone(), rolling.clone());
        let writer = WriterHandle::start(connection, databases, sealing, spec, Arc::clone(&changes))?;
        let shared = StoreInner {
            folder: folder.to_owned(),
            database,
            seal,
            head_log,
            rolling,
            writer,
            readers: Mutex::new(Vec::new()),
            reader_pool: ReaderPool::default(),
            watcher: Mutex::new(watcher),
            changes,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The folder of threads.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.shared.folder
    }

    /// Has `work` written; ready when it is durable.
    async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut WriteTx<'_, '_>) -> Result<T, DbError> + Send + 'static,
    ) -> Result<T, ThreadStoreError> {
        let (sender, receiver) = reply::reply();
        self.shared.writer.submit(work, move |outcome| sender.send(outcome));
        self.answer(receiver.recv().await)
    }

    fn answer<T>(&self, answer: Option<Result<T, DbError>>) -> Result<T, ThreadStoreError> {
        let answer = answer.unwrap_or_else(|| Err(writer_gone_error().into()));
        answer.map_err(|error| error.with_path(&self.shared.database))
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> Result<T, DbError>) -> Result<T, ThreadStoreError> {
        let lock_readers = || self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = lock_readers().pop();
        let run = || {
            let connection = match idle {
                Some(connection) => connection,
                None => connect(&self.shared.database, OpenFlags::empty())?,
            };
            let result = query(&connection);
            let mut readers = lock_readers();
            if readers.len() < MAX_IDLE_READERS {
                readers.push(connection);
            }
            result
        };
        run().map_err(|error: DbError| error.with_path(&self.shared.database))
    }
}

/// What is spent and reserved of budgets of a day or a month, from the user's folder of keys.
///
/// # Errors
/// When the database cannot be read.
pub fn rolling_usage(
    signing_keys: &Path,
    budgets: &[RollingBudget],
) -> Result<Vec<RollingUsage>, ThreadStoreError> {
    Ok(rolling::read_usage(&signing_keys.join(rolling::ROLLING_DATABASE), budgets)?)
}

/// Checks that what was spent of budgets of a day or a month can be read.
///
/// # Errors
/// When it is lost or damaged.
pub fn check_rolling_budgets(signing_keys: &Path) -> Result<(), ThreadStoreError> {
    Ok(rolling::check(&signing_keys.join(rolling::ROLLING_DATABASE))?)
}

fn writer_gone_error() -> ThreadStoreError {
    ThreadStoreError::Failed("its writer has ended".to_owned())
}
