//! The store of threads: registry, journal and ledger in one SQLite database, so that a step, its spend and its status
//! are durable together or not at all.
//!
//! ```text
//! Store::create / commit → writer (one thread, many commits per transaction, one sync) → registry.db
//! Store::journal, thread, ledger, … ← readers
//! ```
//!
//! All SQL about threads is in this module. What is read for resuming is verified first: see `chain`.

mod approvals;
mod audit;
mod blobs;
mod chain;
mod claims;
mod commit;
mod connection;
mod create;
mod error;
mod folder;
mod freshness;
mod head_log;
mod ledger;
mod owner;
mod prune;
mod queries;
mod records;
mod row_seal;
mod schema;
mod secret;
#[cfg(test)]
mod tests;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use lillux::Digest;
use lillux::file::Lock;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{broadcast, oneshot};

pub use approvals::{ApprovalRecord, OpenApprovals};
pub use claims::ClaimPolicy;
use connection::{check_version, connect, database_path};
pub use error::{Forgery, ThreadStoreError};
pub use freshness::StoreFreshness;
use head_log::HeadLog;
pub use owner::{Liveness, Owner};
pub use prune::{FolderDisposal, PruneOptions, PruneReport};
pub use records::{
    Approval, ApprovalDecision, BudgetCaps, Charge, ChargeScope, Claim, ClaimOutcome, CommitOutcome,
    CreateOutcome, JournalRecord, LedgerRefusal, LedgerResource, LedgerRow, NewThread, Reservation,
    ReserveRequest, Settlement, SpawnCap, SpawnCaps, StatusChange, ThreadChange, ThreadCommit, ThreadFilter,
    ThreadRow, TranscriptHead, TreeTotals,
};
use row_seal::RowSealer;
pub use schema::{ColumnSpec, IndexSpec, LedgerSpec};
pub use secret::ThreadSecret;
use writer::{WriteTx, WriterHandle};

pub use crate::cost::Attribution;

use crate::thread_id::ThreadId;

/// The database's name in the folder of threads.
pub const DATABASE: &str = "registry.db";
/// The ledger's name of old: a link to the database.
const LEDGER_LINK: &str = "budget_ledger.db";
/// Connections that are kept for reading.
const MAX_IDLE_READERS: usize = 4;
/// Changes that a listener may lag behind.
const CHANGE_BUFFER: usize = 4096;

/// An open store of threads. Copies share it; it is closed when the last is dropped.
#[derive(Clone)]
pub struct ThreadStore {
    shared: Arc<StoreInner>,
}

struct StoreInner {
    folder: PathBuf,
    database: PathBuf,
    seal: RowSealer,
    head_log: Arc<HeadLog>,
    writer: WriterHandle,
    readers: Mutex<Vec<Connection>>,
    watcher: Mutex<Connection>,
    changes: broadcast::Sender<ThreadChange>,
}

impl std::fmt::Debug for ThreadStore {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Store({})", self.shared.database.display())
    }
}

impl ThreadStore {
    /// Opens the store in the folder of threads, making what is missing.
    ///
    /// # Errors
    /// When it is damaged, newer than this code, or cannot be made.
    pub fn open(folder: &Path, secret: &ThreadSecret, spec: &LedgerSpec) -> Result<Self, ThreadStoreError> {
        folder::make(folder)?;
        // Two processes that make it at once would both set it up.
        let _lock = Lock::acquire_dir(folder)?;
        let database = database_path(folder)?;
        // Others have no business in it; SQLite gives its other files the same mode.
        match lillux::file::write_new(&database, b"", lillux::file::FileMode::Private) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let prepare = || -> Result<Connection, ThreadStoreError> {
            let connection = connect(&database, OpenFlags::SQLITE_OPEN_CREATE)?;
            check_version(&connection, &database)?;
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
        if folder::is_absent(folder)? || !folder.join(DATABASE).is_file() {
            return Ok(None);
        }
        let database = database_path(folder)?;
        let prepare = || -> Result<(Connection, i64), ThreadStoreError> {
            let connection = connect(&database, OpenFlags::empty())?;
            check_version(&connection, &database)?;
            let version = schema::version(&connection)?;
            Ok((connection, version))
        };
        let (connection, version) = prepare().map_err(|error| error.with_path(&database))?;
        if version == 0 {
            // Another process is about to make it.
            return Ok(None);
        }
        if version < schema::VERSION {
            return Self::open(folder, secret, spec).map(Some);
        }
        Self::from_connection(connection, folder, database, secret, spec.clone()).map(Some)
    }

    fn from_connection(
        connection: Connection,
        folder: &Path,
        database: PathBuf,
        secret: &ThreadSecret,
        spec: LedgerSpec,
    ) -> Result<Self, ThreadStoreError> {
        let (changes, _) = broadcast::channel(CHANGE_BUFFER);
        let store = schema::store_id(&connection)?.unwrap_or_default();
        let seal = RowSealer { mac: secret.mac(), store };
        let head_log = Arc::new(match (secret.keys_dir(), database.parent()) {
            (Some(keys), Some(folder)) => HeadLog::open(keys, folder, store, schema::is_empty(&connection)?),
            _ => HeadLog::disabled(),
        });
        let sealing = (seal.clone(), Arc::clone(&head_log));
        let watcher = connect(&database, OpenFlags::empty())?;
        let writer = WriterHandle::start(connection, database.clone(), sealing, spec, changes.clone())?;
        let shared = StoreInner {
            folder: folder.to_owned(),
            database,
            seal,
            head_log,
            writer,
            readers: Mutex::new(Vec::new()),
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
        work: impl FnMut(&mut WriteTx<'_, '_>) -> Result<T, ThreadStoreError> + Send + 'static,
    ) -> Result<T, ThreadStoreError> {
        let (reply, answer) = oneshot::channel();
        // Whoever has stopped waiting need not be told.
        self.shared.writer.submit(work, move |outcome| drop(reply.send(outcome)));
        answer.await.map_err(|_| writer_gone_error())?.map_err(|error| error.with_path(&self.shared.database))
    }

    /// Has `work` written, and waits until it is durable.
    fn write_blocking<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut WriteTx<'_, '_>) -> Result<T, ThreadStoreError> + Send + 'static,
    ) -> Result<T, ThreadStoreError> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.shared.writer.submit(work, move |outcome| drop(reply.send(outcome)));
        answer
            .recv()
            .map_err(|_| writer_gone_error())?
            .map_err(|error| error.with_path(&self.shared.database))
    }

    fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, ThreadStoreError>,
    ) -> Result<T, ThreadStoreError> {
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
        run().map_err(|error: ThreadStoreError| error.with_path(&self.shared.database))
    }

    /// Makes a thread: its row, its row of the ledger, its first records and what its parent counts, at once.
    ///
    /// # Errors
    /// When it is there already, its parent is not or has ended, or the database fails.
    pub async fn create(&self, new: NewThread) -> Result<CreateOutcome, ThreadStoreError> {
        self.write(move |tx| create::create(tx, &new)).await
    }

    /// As [`ThreadStore::create`], blocking.
    ///
    /// # Errors
    /// The same.
    pub fn create_blocking(&self, new: NewThread) -> Result<CreateOutcome, ThreadStoreError> {
        self.write_blocking(move |tx| create::create(tx, &new))
    }

    /// Makes one step of a thread durable.
    ///
    /// # Errors
    /// When somebody else runs the thread by now, the step contradicts what is recorded, or the database fails. Nothing
    /// of it is then written.
    pub async fn commit(&self, commit: ThreadCommit) -> Result<CommitOutcome, ThreadStoreError> {
        self.write(move |tx| commit::commit(tx, &commit)).await
    }

    /// As [`ThreadStore::commit`], blocking.
    ///
    /// # Errors
    /// The same.
    pub fn commit_blocking(&self, commit: ThreadCommit) -> Result<CommitOutcome, ThreadStoreError> {
        self.write_blocking(move |tx| commit::commit(tx, &commit))
    }

    /// Claims a thread for a process that runs here, so that it alone can commit.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn claim(
        &self,
        id: &ThreadId,
        owner: &Owner,
        policy: ClaimPolicy,
        at_ms: u64,
    ) -> Result<ClaimOutcome, ThreadStoreError> {
        let (id, owner) = (id.clone(), owner.clone());
        self.write_blocking(move |tx| claims::claim(tx, &id, &owner, policy, at_ms))
    }

    /// Gives a thread up.
    ///
    /// # Errors
    /// When somebody else has it by now, or the database fails.
    pub fn release_claim(&self, id: &ThreadId, claim: Claim) -> Result<(), ThreadStoreError> {
        let id = id.clone();
        self.write_blocking(move |tx| claims::release(tx, &id, claim))
    }

    /// Says that the process lives, for all its threads at once; gives those that somebody else took.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn heartbeat(
        &self,
        claims: Vec<(ThreadId, Claim)>,
        at_ms: u64,
    ) -> Result<Vec<(ThreadId, Claim)>, ThreadStoreError> {
        self.write(move |tx| claims::heartbeat(tx, &claims, at_ms)).await
    }

    /// Threads that are said to be at work, and that may be taken from whoever worked on them, seen from `observer`.
    ///
    /// # Errors
    /// When the database fails.
    pub fn orphans(&self, observer: &Owner, policy: ClaimPolicy) -> Result<Vec<ThreadRow>, ThreadStoreError> {
        self.read(|connection| queries::orphans(connection, &self.shared.seal, observer, policy))
    }

    /// Whether a thread that goes on without the command that started it has not ended.
    ///
    /// # Errors
    /// When the database fails.
    pub fn has_detached(&self) -> Result<bool, ThreadStoreError> {
        self.read(queries::has_detached)
    }

    /// Writes down why nobody goes on with a thread; it is forgotten when somebody does.
    ///
    /// # Errors
    /// When the database fails.
    pub fn set_note(&self, id: &ThreadId, reason: &str) -> Result<(), ThreadStoreError> {
        let (id, reason) = (id.clone(), reason.to_owned());
        self.write_blocking(move |tx| claims::set_note(tx, &id, &reason))
    }

    /// Calls of a thread that are in flight, or were when its process died.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn open_reservations(&self, id: &ThreadId) -> Result<Vec<Reservation>, ThreadStoreError> {
        self.read(|connection| ledger::open_reservations(connection, queries::row_id(connection, id)?))
    }

    /// The whole journal of a thread, verified.
    ///
    /// # Errors
    /// When it is not exactly what was written with this user's secret, or there is no such thread.
    pub fn journal(&self, id: &ThreadId) -> Result<Vec<JournalRecord>, ThreadStoreError> {
        self.ensure_thread_current(id)?;
        self.read(|connection| {
            // One moment for both, the head and the entries.
            let moment = connection.unchecked_transaction()?;
            queries::journal(&moment, &self.shared.seal.mac, id)
        })
    }

    /// A thread's row, to look at: it says itself whether it was forged.
    ///
    /// # Errors
    /// When the database fails.
    pub fn thread(&self, id: &ThreadId) -> Result<Option<ThreadRow>, ThreadStoreError> {
        self.read(|connection| queries::thread(connection, &self.shared.seal, id))
    }

    /// Threads, the newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub fn threads(&self, filter: &ThreadFilter) -> Result<Vec<ThreadRow>, ThreadStoreError> {
        self.read(|connection| queries::threads(connection, &self.shared.seal, filter))
    }

    /// The threads a thread has started, the oldest first.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn children(&self, id: &ThreadId) -> Result<Vec<ThreadRow>, ThreadStoreError> {
        self.read(|connection| queries::children(connection, &self.shared.seal, id))
    }

    /// A thread and all below it, the oldest first.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn subtree(&self, id: &ThreadId) -> Result<Vec<ThreadRow>, ThreadStoreError> {
        self.read(|connection| queries::subtree(connection, &self.shared.seal, id))
    }

    /// A thread's parent, that one's parent, and so on.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn ancestors(&self, id: &ThreadId) -> Result<Vec<ThreadRow>, ThreadStoreError> {
        self.read(|connection| queries::ancestors(connection, &self.shared.seal, id))
    }

    /// A thread with those it goes on from and those that go on from it, the oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub fn chain(&self, row: &ThreadRow) -> Result<Vec<ThreadRow>, ThreadStoreError> {
        let root = row.chain_root_id.as_ref().unwrap_or(&row.id);
        let mut chain: Vec<ThreadRow> = self.thread(root)?.into_iter().collect();
        while let Some(next) = chain.last().and_then(|row| row.continuation_thread_id.clone()) {
            match self.thread(&next)? {
                Some(next) if !chain.iter().any(|row| row.id == next.id) => chain.push(next),
                Some(_) | None => break,
            }
        }
        // Two may go on from one: the newest is in the line, and this one stands at its end.
        if !chain.iter().any(|one| one.id == row.id) {
            chain.push(row.clone());
        }
        Ok(chain)
    }

    /// A tree in numbers.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn tree_totals(&self, id: &ThreadId) -> Result<TreeTotals, ThreadStoreError> {
        self.read(|connection| queries::tree_totals(connection, id))
    }

    /// A thread's row of the ledger.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn ledger(&self, id: &ThreadId) -> Result<LedgerRow, ThreadStoreError> {
        self.read(|connection| queries::ledger(connection, id))
    }

    /// What settled calls have cost, by thread and purpose, the dearest first.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn charges(&self, id: &ThreadId, scope: ChargeScope) -> Result<Vec<Charge>, ThreadStoreError> {
        self.read(|connection| queries::charges(connection, id, scope))
    }

    /// Keeps a part that many threads share; gives its name.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn put_blob(&self, bytes: Vec<u8>, at_ms: u64) -> Result<Digest, ThreadStoreError> {
        let digest = Digest::of(&bytes);
        self.write(move |tx| blobs::put(tx, &digest, &bytes, at_ms)).await?;
        Ok(digest)
    }

    /// As [`ThreadStore::put_blob`], and waits.
    ///
    /// # Errors
    /// The same.
    pub fn put_blob_blocking(&self, bytes: Vec<u8>, at_ms: u64) -> Result<Digest, ThreadStoreError> {
        let digest = Digest::of(&bytes);
        self.write_blocking(move |tx| blobs::put(tx, &digest, &bytes, at_ms))?;
        Ok(digest)
    }

    /// Keeps a part for a thread: it goes when the thread is forgotten.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn put_blob_for(
        &self,
        thread: &ThreadId,
        bytes: Vec<u8>,
        at_ms: u64,
    ) -> Result<Digest, ThreadStoreError> {
        let digest = Digest::of(&bytes);
        let thread = thread.clone();
        self.write_blocking(move |tx| {
            blobs::put(tx, &digest, &bytes, at_ms)?;
            blobs::add_use(tx, &digest, &thread)
        })?;
        Ok(digest)
    }

    /// A part that was kept.
    ///
    /// # Errors
    /// When it is not there, or not what was kept.
    pub fn blob(&self, digest: &Digest) -> Result<Vec<u8>, ThreadStoreError> {
        self.read(|connection| blobs::get(connection, digest))
    }

    /// Asks a person.
    ///
    /// # Errors
    /// When there is no such thread, the question was asked before, or the database fails.
    pub async fn add_approval(&self, approval: Approval) -> Result<(), ThreadStoreError> {
        self.write(move |tx| {
            approvals::insert(tx, &approval)?;
            tx.notify(ThreadChange { thread: approval.thread.clone(), status: None });
            Ok(())
        })
        .await
    }

    /// Answers a question, once; gives the question.
    ///
    /// # Errors
    /// When it is not there, forged or answered, or the database fails.
    pub fn answer_approval(&self, id: &str, answer: &ApprovalDecision) -> Result<Approval, ThreadStoreError> {
        let (id, answer) = (id.to_owned(), answer.clone());
        self.write_blocking(move |tx| {
            let question = approvals::answer(tx, &id, &answer)?;
            tx.notify(ThreadChange { thread: question.thread.clone(), status: None });
            Ok(question)
        })
    }

    /// A question with its answer; `None` when there is none that this user's secret vouches for.
    ///
    /// # Errors
    /// When the database fails.
    pub fn approval(&self, id: &str) -> Result<Option<ApprovalRecord>, ThreadStoreError> {
        self.read(|connection| approvals::find(connection, &self.shared.seal.mac, id))
    }

    /// The open questions of a thread and all below it, or of all threads.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn open_approvals(&self, below: Option<&ThreadId>) -> Result<OpenApprovals, ThreadStoreError> {
        self.read(|connection| {
            let of = match below {
                None => None,
                Some(id) => {
                    let rows = queries::subtree(connection, &self.shared.seal, id)?;
                    Some(rows.into_iter().map(|row| row.id).collect::<Vec<_>>())
                }
            };
            approvals::open(connection, &self.shared.seal.mac, of.as_deref())
        })
    }

    /// Threads that stopped to ask people, nobody runs, and were answered.
    ///
    /// # Errors
    /// When the database fails.
    pub fn answered_threads(&self) -> Result<Vec<ThreadId>, ThreadStoreError> {
        self.read(approvals::answered_threads)
    }

    /// Checks that all sums of the ledger are those of its calls;
    /// gives what is wrong.
    ///
    /// # Errors
    /// When the database fails.
    pub fn audit(&self) -> Result<Vec<String>, ThreadStoreError> {
        self.read(|connection| {
            let moment = connection.unchecked_transaction()?;
            audit::audit(&moment)
        })
    }

    /// Hears of every change that this process makes, once it is durable. Who lags far behind misses some, and reads anew.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<ThreadChange> {
        self.shared.changes.subscribe()
    }

    /// A number that is another one whenever any process has changed the database.
    ///
    /// # Errors
    /// When the database fails.
    pub fn data_version(&self) -> Result<i64, ThreadStoreError> {
        let watcher = self.shared.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        let version = watcher.query_row("PRAGMA data_version", [], |row| row.get(0));
        version.map_err(|error| ThreadStoreError::from(error).with_path(&self.shared.database))
    }
}

fn writer_gone_error() -> ThreadStoreError {
    ThreadStoreError::Failed("its writer has ended".to_owned())
}
