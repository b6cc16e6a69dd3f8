//! The store of threads in PostgreSQL: registry, journals and ledger that the machines of a team share.
//!
//! ```text
//! PostgresStore::create / commit → writer (one thread, many commits per transaction, locks in one order) → database
//! PostgresStore::journal, thread, ledger, … ← readers            listener ← notifications of other processes
//! ```
//!
//! All SQL for PostgreSQL is in this crate. What is written is signed by the key of the process that writes it, and only
//! signatures of keys that the reader lists count: see `seal`.

mod address;
mod approvals;
mod audit;
mod blobs;
mod cancel_requests;
mod claims;
mod clock;
mod cluster;
mod commit;
mod connection;
mod create;
mod db;
mod db_error;
mod ledger;
mod listener;
mod prune;
mod queries;
mod record;
mod rolling;
mod schema;
mod seal;
mod store;
mod tls;
mod transfer;
mod waits;
mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rye_store::{ChangeHub, LedgerRules, OwnerProbe, ThreadStoreError};

pub use address::{PasswordSource, PostgresAddress, ServerName};
use clock::DatabaseClock;
pub use clock::LocalClock;
use connection::ReaderHandle;
use db::Db;
use db_error::DbError;
use listener::StoreVersion;
pub use seal::{KeySource, StoreKeys, TrustedKeys};
use writer::WriterHandle;

/// How long a database that cannot be reached is tried before what was asked fails.
pub const DEFAULT_RETRY_FOR: Duration = Duration::from_secs(60);

/// How a store in PostgreSQL is opened.
#[derive(Clone)]
pub struct PostgresOptions {
    /// Where it is.
    pub address: PostgresAddress,
    /// Who signs, and whose signatures count.
    pub keys: StoreKeys,
    /// The rules of booking.
    pub rules: LedgerRules,
    /// Tells which processes of this machine run.
    pub probe: Arc<dyn OwnerProbe>,
    /// This process's clock.
    pub clock: LocalClock,
    /// How long a database that cannot be reached is tried.
    pub retry_for: Duration,
    /// The place whose threads only processes of this place take over, such as a project on a machine.
    pub origin: String,
}

/// An open store of threads. Copies share it; it is closed when the last is dropped.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<StoreInner>,
}

struct StoreInner {
    shared: Arc<Shared>,
    writer: WriterHandle,
    readers: ReaderHandle,
}

/// What the writer, the readers and the listener share.
struct Shared {
    address: PostgresAddress,
    keys: StoreKeys,
    rules: LedgerRules,
    probe: Arc<dyn OwnerProbe>,
    clock: DatabaseClock,
    retry_for: Duration,
    origin: String,
    /// The store's own number.
    store: i64,
    /// The number of this process's writer.
    writer: i64,
    changes: Arc<ChangeHub>,
    version: StoreVersion,
}

impl Shared {
    /// Refuses another store at the same address: it was replaced meanwhile.
    async fn ensure_same_store(&self, db: &Db) -> Result<(), DbError> {
        if schema::store_id(db).await? == self.store {
            return Ok(());
        }
        let folder = PathBuf::from(self.address.to_string());
        Err(ThreadStoreError::Older { folder, what: "another store was last used here".to_owned() }.into())
    }
}

impl std::fmt::Debug for PostgresStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "PostgresStore({})", self.inner.shared.address)
    }
}

/// The condition of a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostgresCondition {
    /// The version of its schema; 0 when it has none.
    pub version: i64,
    /// The version that this code reads and writes.
    pub known: i64,
    /// The server's version.
    pub server: String,
    /// How far the database's clock is ahead of this machine's.
    pub skew_ms: i64,
    /// How many threads it holds.
    pub threads: u64,
    /// How many processes have it open: those that have written in the last day.
    pub writers: u64,
    /// Whether the role may do all that is needed: make the schema where there is none, else read and change its tables.
    pub has_rights: bool,
    /// The fingerprints of the keys that signed the rows of threads, as the rows name them.
    pub signers: Vec<String>,
}

impl PostgresStore {
    /// Opens the store, making its schema or bringing it to this version.
    ///
    /// # Errors
    /// When it cannot be reached, is newer than this code, or its role may not do that.
    pub fn open(options: PostgresOptions) -> Result<Self, ThreadStoreError> {
        let address = options.address.clone();
        let named = |error: DbError| error.with_address(&address.to_string());
        let store = run_alone({
            let address = options.address.clone();
            move || prepare(address)
        })
        .map_err(named)?;
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| ThreadStoreError::Failed(error.to_string()))?;
        let shared = Arc::new(Shared {
            address: options.address,
            keys: options.keys,
            rules: options.rules,
            probe: options.probe,
            clock: DatabaseClock::new(options.clock),
            retry_for: options.retry_for,
            origin: options.origin,
            store,
            writer: i64::from_be_bytes(bytes),
            changes: Arc::default(),
            version: StoreVersion::default(),
        });
        let writer = WriterHandle::start(Arc::clone(&shared)).map_err(named)?;
        let readers = ReaderHandle::start(Arc::clone(&shared)).map_err(named)?;
        Ok(Self { inner: Arc::new(StoreInner { shared, writer, readers }) })
    }

    /// Where the store is, without a password.
    #[must_use]
    pub fn address(&self) -> String {
        self.inner.shared.address.to_string()
    }
}

/// Looks at a database. Nothing is changed or made.
///
/// # Errors
/// When it cannot be reached.
pub fn inspect(address: &PostgresAddress, now_ms: u64) -> Result<PostgresCondition, ThreadStoreError> {
    let shown = address.to_string();
    let address = address.clone();
    let look = move || async move {
        let (db, _) = Db::connect(&address).await?;
        let version = schema::version(&db, &address).await?;
        let server = db.query_value("SELECT current_setting('server_version')", &[]).await?;
        let there: i64 =
            db.query_value("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint", &[]).await?;
        let (mut threads, mut writers, mut signers) = (0, 0, Vec::new());
        let may_create = "SELECT has_database_privilege(current_database(), 'CREATE')";
        let mut has_rights = true;
        if version == 0 {
            has_rights = db.query_value(may_create, &[]).await?;
        } else {
            let rights = "SELECT coalesce(bool_and(has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
                    AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')), FALSE)
                 FROM pg_class WHERE relkind = 'r' AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)";
            has_rights &= db.query_value::<bool>(rights, &[&address.schema()]).await?;
        }
        if version > 0 && has_rights {
            for row in db.query("SELECT DISTINCT signer FROM threads ORDER BY signer LIMIT 100", &[]).await? {
                signers.push(row.try_get(0)?);
            }
            threads = db_error::to_number(db.query_value("SELECT count(*) FROM threads", &[]).await?)?;
            let recent = "SELECT count(*) FROM writers WHERE at > now() - interval '1 day'";
            writers = db_error::to_number(db.query_value(recent, &[]).await?)?;
        }
        let skew_ms = there.saturating_sub(db_error::to_integer(now_ms, "a time")?);
        let known = schema::VERSION;
        Ok(PostgresCondition { version, known, server, skew_ms, threads, writers, has_rights, signers })
    };
    run_alone(look).map_err(|error: DbError| error.with_address(&shown))
}

/// Makes or checks the schema; gives the store's number.
async fn prepare(address: PostgresAddress) -> Result<i64, DbError> {
    let (db, _) = Db::connect(&address).await?;
    let found = schema::version(&db, &address).await?;
    schema::check_version(found, &address)?;
    if found < schema::VERSION {
        schema::migrate(&db, &address).await?;
    }
    schema::store_id(&db).await
}

/// Runs something on a thread of its own, and waits for it: the caller may have a runtime.
fn run_alone<T, F>(work: impl FnOnce() -> F + Send + 'static) -> Result<T, DbError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, DbError>>,
{
    let (sender, receiver) = std::sync::mpsc::channel();
    let thread = connection::spawn_io_thread("threads-open", move || async move {
        // The receiver waits below.
        let _ = sender.send(work().await);
    })?;
    let gone = || Err(ThreadStoreError::Failed("the store could not be opened".to_owned()).into());
    let result = receiver.recv().unwrap_or_else(|_| gone());
    let _ = thread.join();
    result
}
