//! The store of threads: registry, journal and ledger in one SQLite database, so that a step, its spend and its status
//! are durable together or not at all.
//!
//! ```text
//! Store::create / commit → writer (one thread, many commits per transaction, one sync) → registry.db
//! Store::journal, thread, ledger, … ← readers
//! ```
//!
//! All SQL about threads is in this module. What is read for resuming is verified first: see `chain`.

mod age;
mod approvals;
mod audit;
mod blobs;
mod chain;
mod claims;
mod commit;
mod create;
mod error;
mod folder;
mod heads;
mod ledger;
mod owner;
mod prune;
mod read;
mod row_seal;
mod schema;
mod secret;
#[cfg(test)]
mod tests;
mod values;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use lillux::Digest;
use lillux::file::Lock;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::{broadcast, oneshot};

pub use age::StoreAge;
pub use approvals::{Asked, Open};
pub use claims::Taking;
pub use error::{Forgery, StoreError};
use heads::HeadRecord;
pub use owner::{Life, Owner};
pub use prune::{Kept, Prune, Pruned};
use row_seal::RowSeal;
pub use schema::{Column, Index, LedgerSpec};
pub use secret::Secret;
pub use values::{
    Answer, Approval, Cap, Caps, Change, Charge, Claim, Claimed, Commit, Committed, Created, Filter, Head,
    LedgerRow, Maxima, NewThread, Record, Reservation, Reserve, Resource, Scope, Settle, Shortage,
    StatusChange, ThreadRow, TreeTotals,
};
use writer::{Desk, Writer};

pub use crate::cost::Attribution;

use crate::thread_id::ThreadId;

/// The database's name in the folder of threads.
pub const DATABASE: &str = "registry.db";
/// The ledger's name of old: a link to the database.
const LEDGER: &str = "budget_ledger.db";
/// How long to wait for another process that writes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Connections that are kept for reading.
const MOST_READERS: usize = 4;
/// Changes that a listener may lag behind.
const MOST_UNHEARD: usize = 4096;

/// An open store of threads. Copies share it; it is closed when the last is dropped.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

struct Shared {
    folder: PathBuf,
    database: PathBuf,
    seal: RowSeal,
    record: Arc<HeadRecord>,
    writer: Writer,
    readers: Mutex<Vec<Connection>>,
    watcher: Mutex<Connection>,
    changes: broadcast::Sender<Change>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Store({})", self.shared.database.display())
    }
}

impl Store {
    /// Opens the store in the folder of threads, making what is missing.
    ///
    /// # Errors
    /// When it is damaged, newer than this code, or cannot be made.
    pub fn open(folder: &Path, secret: &Secret, spec: &LedgerSpec) -> Result<Self, StoreError> {
        folder::make(folder)?;
        // Two processes that make it at once would both set it up.
        let _lock = Lock::acquire_folder(folder)?;
        let database = database_in(folder)?;
        // Others have no business in it; SQLite gives its other files the same mode.
        match lillux::file::write_new(&database, b"", lillux::file::Mode::Private) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        let prepare = || -> Result<Connection, StoreError> {
            let connection = connect(&database, OpenFlags::SQLITE_OPEN_CREATE)?;
            refuse_newer(&connection, &database)?;
            if !schema::is_current(&connection, spec)? {
                connection.execute_batch("BEGIN IMMEDIATE")?;
                schema::migrate(&connection, spec, &secret.mac())?;
                connection.execute_batch("COMMIT")?;
            }
            Ok(connection)
        };
        let connection = prepare().map_err(|error| error.at(&database))?;
        lillux::file::link(Path::new(DATABASE), &folder.join(LEDGER))?;
        Self::around(connection, folder, database, secret, spec.clone())
    }

    /// Opens the store in the folder of threads if there is one; makes nothing.
    ///
    /// # Errors
    /// When it is damaged, or newer than this code.
    pub fn open_existing(
        folder: &Path,
        secret: &Secret,
        spec: &LedgerSpec,
    ) -> Result<Option<Self>, StoreError> {
        if folder::is_absent(folder)? || !folder.join(DATABASE).is_file() {
            return Ok(None);
        }
        let database = database_in(folder)?;
        let prepare = || -> Result<(Connection, i64), StoreError> {
            let connection = connect(&database, OpenFlags::empty())?;
            refuse_newer(&connection, &database)?;
            let version = schema::version(&connection)?;
            Ok((connection, version))
        };
        let (connection, version) = prepare().map_err(|error| error.at(&database))?;
        if version == 0 {
            // Another process is about to make it.
            return Ok(None);
        }
        if version < schema::VERSION {
            return Self::open(folder, secret, spec).map(Some);
        }
        Self::around(connection, folder, database, secret, spec.clone()).map(Some)
    }

    fn around(
        connection: Connection,
        folder: &Path,
        database: PathBuf,
        secret: &Secret,
        spec: LedgerSpec,
    ) -> Result<Self, StoreError> {
        let (changes, _) = broadcast::channel(MOST_UNHEARD);
        let store = schema::store_number(&connection)?.unwrap_or_default();
        let seal = RowSeal { mac: secret.mac(), store };
        let record = Arc::new(match (secret.folder(), database.parent()) {
            (Some(keys), Some(folder)) => HeadRecord::of(keys, folder, store, schema::is_empty(&connection)?),
            _ => HeadRecord::none(),
        });
        let sealing = (seal.clone(), Arc::clone(&record));
        let watcher = connect(&database, OpenFlags::empty())?;
        let writer = Writer::start(connection, database.clone(), sealing, spec, changes.clone())?;
        let shared = Shared {
            folder: folder.to_owned(),
            database,
            seal,
            record,
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
        work: impl FnMut(&mut Desk<'_, '_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        // Whoever has stopped waiting need not be told.
        self.shared.writer.submit(work, move |outcome| drop(reply.send(outcome)));
        answer.await.map_err(|_| gone())?.map_err(|error| error.at(&self.shared.database))
    }

    /// Has `work` written, and waits until it is durable.
    fn write_blocking<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Desk<'_, '_>) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.shared.writer.submit(work, move |outcome| drop(reply.send(outcome)));
        answer.recv().map_err(|_| gone())?.map_err(|error| error.at(&self.shared.database))
    }

    fn read<T>(&self, question: impl FnOnce(&Connection) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let free = || self.shared.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = free().pop();
        let asked = || {
            let connection = match kept {
                Some(connection) => connection,
                None => connect(&self.shared.database, OpenFlags::empty())?,
            };
            let answer = question(&connection);
            let mut readers = free();
            if readers.len() < MOST_READERS {
                readers.push(connection);
            }
            answer
        };
        asked().map_err(|error: StoreError| error.at(&self.shared.database))
    }

    /// Makes a thread: its row, its row of the ledger, its first records and what its parent counts, at once.
    ///
    /// # Errors
    /// When it is there already, its parent is not or has ended, or the database fails.
    pub async fn create(&self, new: NewThread) -> Result<Created, StoreError> {
        self.write(move |desk| create::create(desk, &new)).await
    }

    /// As [`Store::create`], blocking.
    ///
    /// # Errors
    /// The same.
    pub fn create_blocking(&self, new: NewThread) -> Result<Created, StoreError> {
        self.write_blocking(move |desk| create::create(desk, &new))
    }

    /// Makes one step of a thread durable.
    ///
    /// # Errors
    /// When somebody else runs the thread by now, the step contradicts what is recorded, or the database fails. Nothing
    /// of it is then written.
    pub async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.write(move |desk| commit::commit(desk, &commit)).await
    }

    /// As [`Store::commit`], blocking.
    ///
    /// # Errors
    /// The same.
    pub fn commit_blocking(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.write_blocking(move |desk| commit::commit(desk, &commit))
    }

    /// Claims a thread for a process that runs here, so that it alone can commit.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn claim(
        &self,
        id: &ThreadId,
        owner: &Owner,
        taking: Taking,
        at_ms: u64,
    ) -> Result<Claimed, StoreError> {
        let (id, owner) = (id.clone(), owner.clone());
        self.write_blocking(move |desk| claims::claim(desk, &id, &owner, taking, at_ms))
    }

    /// Gives a thread up.
    ///
    /// # Errors
    /// When somebody else has it by now, or the database fails.
    pub fn release_claim(&self, id: &ThreadId, claim: Claim) -> Result<(), StoreError> {
        let id = id.clone();
        self.write_blocking(move |desk| claims::release(desk, &id, claim))
    }

    /// Says that the process lives, for all its threads at once; gives those that somebody else took.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn heartbeat(
        &self,
        held: Vec<(ThreadId, Claim)>,
        at_ms: u64,
    ) -> Result<Vec<(ThreadId, Claim)>, StoreError> {
        self.write(move |desk| claims::heartbeat(desk, &held, at_ms)).await
    }

    /// Threads that are said to be at work, and that may be taken from whoever worked on them, seen from `observer`.
    ///
    /// # Errors
    /// When the database fails.
    pub fn orphans(&self, observer: &Owner, taking: Taking) -> Result<Vec<ThreadRow>, StoreError> {
        self.read(|connection| read::orphans(connection, &self.shared.seal, observer, taking))
    }

    /// Whether a thread that goes on without the command that started it has not ended.
    ///
    /// # Errors
    /// When the database fails.
    pub fn has_detached(&self) -> Result<bool, StoreError> {
        self.read(read::has_detached)
    }

    /// Writes down why nobody goes on with a thread; it is forgotten when somebody does.
    ///
    /// # Errors
    /// When the database fails.
    pub fn note(&self, id: &ThreadId, why: &str) -> Result<(), StoreError> {
        let (id, why) = (id.clone(), why.to_owned());
        self.write_blocking(move |desk| claims::note(desk, &id, &why))
    }

    /// Calls of a thread that are in flight, or were when its process died.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn unsettled(&self, id: &ThreadId) -> Result<Vec<Reservation>, StoreError> {
        self.read(|connection| ledger::unsettled(connection, read::key(connection, id)?))
    }

    /// The whole journal of a thread, verified.
    ///
    /// # Errors
    /// When it is not exactly what was written with this user's secret, or there is no such thread.
    pub fn journal(&self, id: &ThreadId) -> Result<Vec<Record>, StoreError> {
        self.refuse_older_thread(id)?;
        self.read(|connection| {
            // One moment for both, the head and the entries.
            let moment = connection.unchecked_transaction()?;
            read::journal(&moment, &self.shared.seal.mac, id)
        })
    }

    /// A thread's row, to look at: it says itself whether it was forged.
    ///
    /// # Errors
    /// When the database fails.
    pub fn thread(&self, id: &ThreadId) -> Result<Option<ThreadRow>, StoreError> {
        self.read(|connection| read::thread(connection, &self.shared.seal, id))
    }

    /// Threads, the newest first.
    ///
    /// # Errors
    /// When the database fails.
    pub fn threads(&self, filter: &Filter) -> Result<Vec<ThreadRow>, StoreError> {
        self.read(|connection| read::threads(connection, &self.shared.seal, filter))
    }

    /// The threads a thread has started, the oldest first.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn children(&self, id: &ThreadId) -> Result<Vec<ThreadRow>, StoreError> {
        self.read(|connection| read::children(connection, &self.shared.seal, id))
    }

    /// A thread and all below it, the oldest first.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn subtree(&self, id: &ThreadId) -> Result<Vec<ThreadRow>, StoreError> {
        self.read(|connection| read::subtree(connection, &self.shared.seal, id))
    }

    /// A thread's parent, that one's parent, and so on.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn ancestors(&self, id: &ThreadId) -> Result<Vec<ThreadRow>, StoreError> {
        self.read(|connection| read::ancestors(connection, &self.shared.seal, id))
    }

    /// A thread with those it goes on from and those that go on from it, the oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub fn chain(&self, row: &ThreadRow) -> Result<Vec<ThreadRow>, StoreError> {
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
    pub fn tree_totals(&self, id: &ThreadId) -> Result<TreeTotals, StoreError> {
        self.read(|connection| read::tree_totals(connection, id))
    }

    /// A thread's row of the ledger.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn ledger(&self, id: &ThreadId) -> Result<LedgerRow, StoreError> {
        self.read(|connection| read::ledger(connection, id))
    }

    /// What settled calls have cost, by thread and purpose, the dearest first.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn charges(&self, id: &ThreadId, scope: Scope) -> Result<Vec<Charge>, StoreError> {
        self.read(|connection| read::charges(connection, id, scope))
    }

    /// Keeps a part that many threads share; gives its name.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn put_blob(&self, bytes: Vec<u8>, at_ms: u64) -> Result<Digest, StoreError> {
        let digest = Digest::of(&bytes);
        self.write(move |desk| blobs::put(desk, &digest, &bytes, at_ms)).await?;
        Ok(digest)
    }

    /// As [`Store::put_blob`], and waits.
    ///
    /// # Errors
    /// The same.
    pub fn put_blob_blocking(&self, bytes: Vec<u8>, at_ms: u64) -> Result<Digest, StoreError> {
        let digest = Digest::of(&bytes);
        self.write_blocking(move |desk| blobs::put(desk, &digest, &bytes, at_ms))?;
        Ok(digest)
    }

    /// Keeps a part for a thread: it goes when the thread is forgotten.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn keep_for(&self, thread: &ThreadId, bytes: Vec<u8>, at_ms: u64) -> Result<Digest, StoreError> {
        let digest = Digest::of(&bytes);
        let thread = thread.clone();
        self.write_blocking(move |desk| {
            blobs::put(desk, &digest, &bytes, at_ms)?;
            blobs::used_by(desk, &digest, &thread)
        })?;
        Ok(digest)
    }

    /// A part that was kept.
    ///
    /// # Errors
    /// When it is not there, or not what was kept.
    pub fn blob(&self, digest: &Digest) -> Result<Vec<u8>, StoreError> {
        self.read(|connection| blobs::get(connection, digest))
    }

    /// Asks a person.
    ///
    /// # Errors
    /// When there is no such thread, the question was asked before, or the database fails.
    pub async fn ask(&self, approval: Approval) -> Result<(), StoreError> {
        self.write(move |desk| {
            approvals::ask(desk, &approval)?;
            desk.tell(Change { thread: approval.thread.clone(), status: None });
            Ok(())
        })
        .await
    }

    /// Answers a question, once; gives the question.
    ///
    /// # Errors
    /// When it is not there, forged or answered, or the database fails.
    pub fn answer(&self, id: &str, answer: &Answer) -> Result<Approval, StoreError> {
        let (id, answer) = (id.to_owned(), answer.clone());
        self.write_blocking(move |desk| {
            let question = approvals::answer(desk, &id, &answer)?;
            desk.tell(Change { thread: question.thread.clone(), status: None });
            Ok(question)
        })
    }

    /// A question with its answer; `None` when there is none that this user's secret vouches for.
    ///
    /// # Errors
    /// When the database fails.
    pub fn approval(&self, id: &str) -> Result<Option<Asked>, StoreError> {
        self.read(|connection| approvals::find(connection, &self.shared.seal.mac, id))
    }

    /// The open questions of a thread and all below it, or of all threads.
    ///
    /// # Errors
    /// When there is no such thread, or the database fails.
    pub fn open_approvals(&self, below: Option<&ThreadId>) -> Result<Open, StoreError> {
        self.read(|connection| {
            let of = match below {
                None => None,
                Some(id) => {
                    let rows = read::subtree(connection, &self.shared.seal, id)?;
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
    pub fn answered(&self) -> Result<Vec<ThreadId>, StoreError> {
        self.read(approvals::answered)
    }

    /// Checks that all sums of the ledger are those of its calls;
    /// gives what is wrong.
    ///
    /// # Errors
    /// When the database fails.
    pub fn audit(&self) -> Result<Vec<String>, StoreError> {
        self.read(|connection| {
            let moment = connection.unchecked_transaction()?;
            audit::audit(&moment)
        })
    }

    /// Hears of every change that this process makes, once it is durable. Who lags far behind misses some, and reads anew.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.shared.changes.subscribe()
    }

    /// A number that is another one whenever any process has changed the database.
    ///
    /// # Errors
    /// When the database fails.
    pub fn data_version(&self) -> Result<i64, StoreError> {
        let watcher = self.shared.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        let version = watcher.query_row("PRAGMA data_version", [], |row| row.get(0));
        version.map_err(|error| StoreError::from(error).at(&self.shared.database))
    }
}

fn gone() -> StoreError {
    StoreError::Failed("its writer has ended".to_owned())
}

/// The database in a folder, by a path without links: a linked database is not followed.
fn database_in(folder: &Path) -> Result<PathBuf, StoreError> {
    Ok(fs_err::canonicalize(folder)?.join(DATABASE))
}

#[expect(clippy::disallowed_methods, reason = "this module is the one that opens the store of threads")]
fn connect(database: &Path, also: OpenFlags) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | also;
    let connection = Connection::open_with_flags(database, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.set_prepared_statement_cache_capacity(64);
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA trusted_schema = OFF; PRAGMA temp_store = MEMORY;
         PRAGMA wal_autocheckpoint = 4000; PRAGMA cache_size = -16000;",
    )?;
    Ok(connection)
}

fn refuse_newer(connection: &Connection, database: &Path) -> Result<(), StoreError> {
    let found = schema::version(connection)?;
    if found > schema::VERSION {
        return Err(StoreError::Newer { path: database.to_owned(), found, known: schema::VERSION });
    }
    Ok(())
}
