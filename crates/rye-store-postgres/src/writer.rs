//! The one writer of a process: what waits is written in one transaction, made durable by one commit.
//!
//! A transaction locks the rows of the trees' roots it works on first, in the order of their numbers: what it reads of
//! these trees afterwards stays as it is until it ends, and no two transactions wait for each other in a circle. A member
//! that fails does not take the others with it: if it had written anything, the transaction is taken back and each member
//! gets its own.
//!
//! A connection that breaks is made again, and the transaction done again. If it broke while the transaction was being
//! committed, the database is asked what became of it first: nothing is done twice.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rye_store::{CommitOutcome, LedgerRules, OwnerProbe, ThreadChange, ThreadCommit, ThreadStoreError};
use rye_thread::thread_id::ThreadId;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::Instant;

use crate::clock::DatabaseClock;
use crate::commit::CommitCache;
use crate::db::{Db, SqlValue};
use crate::db_error::{DbError, DbErrorKind};
use crate::seal::Sealer;
use crate::{Shared, commit, connection};

/// The most members of one transaction: others wait for its trees meanwhile.
const MAX_BATCH: usize = 64;
/// How often a transaction that others stood in the way of is done again.
const MAX_CONTENTION_RETRIES: u32 = 8;
/// How long to wait before the next try to connect; longer each time, up to the longest: a server that recovers has
/// other things to do than to refuse.
pub(crate) const RECONNECT_DELAY: Duration = Duration::from_millis(100);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The delay after this one.
pub(crate) fn next_delay(delay: Duration) -> Duration {
    delay.saturating_mul(2).min(MAX_RECONNECT_DELAY)
}

/// What a member works with.
pub(crate) struct WriteTx<'a> {
    db: &'a Db,
    pub(crate) seal: &'a Sealer,
    pub(crate) rules: &'a LedgerRules,
    pub(crate) clock: &'a DatabaseClock,
    pub(crate) probe: &'a dyn OwnerProbe,
    /// The place that this process works for.
    pub(crate) origin: &'a str,
    changes: &'a mut Vec<ThreadChange>,
    has_written: Cell<bool>,
}

impl<'a> WriteTx<'a> {
    /// The connection, to read.
    pub(crate) fn reading(&self) -> &'a Db {
        self.db
    }

    /// The connection, to write: the work cannot be left out of the transaction any more.
    pub(crate) fn writing(&self) -> &'a Db {
        self.has_written.set(true);
        self.db
    }

    /// Tells those who listen, once it is durable.
    pub(crate) fn notify(&mut self, change: ThreadChange) {
        self.changes.push(change);
    }
}

/// What a transaction locks before its members work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    /// Threads whose trees are worked on.
    pub(crate) threads: Vec<ThreadId>,
    /// Scopes of budgets of a day or a month that are worked on, beside those the threads' open calls count in.
    pub(crate) scopes: Vec<String>,
}

impl Locks {
    pub(crate) fn thread(id: &ThreadId) -> Self {
        Self { threads: vec![id.clone()], scopes: Vec::new() }
    }
}

type LocalFuture<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Something to be written together with others. It may be run more than once.
trait WriteJob: Send {
    fn locks(&self) -> &Locks;
    /// The commit that it is, if it is one: several of them work on one cache.
    fn commit(&self) -> Option<&ThreadCommit>;
    /// Runs it. A commit has a cache.
    fn run<'a>(
        &'a mut self,
        tx: &'a mut WriteTx<'_>,
        cache: Option<&'a mut CommitCache>,
    ) -> LocalFuture<'a, Result<(), DbError>>;
    /// Answers its caller.
    fn finish(self: Box<Self>, error: Option<&DbError>);
}

struct PendingJob<T, W> {
    locks: Locks,
    work: W,
    outcome: Option<Result<T, DbError>>,
    reply: tokio::sync::oneshot::Sender<Result<T, DbError>>,
}

/// A commit on its way.
struct CommitJob {
    locks: Locks,
    commit: ThreadCommit,
    outcome: Option<Result<CommitOutcome, DbError>>,
    reply: tokio::sync::oneshot::Sender<Result<CommitOutcome, DbError>>,
}

impl WriteJob for CommitJob {
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn commit(&self) -> Option<&ThreadCommit> {
        Some(&self.commit)
    }

    fn run<'a>(
        &'a mut self,
        tx: &'a mut WriteTx<'_>,
        cache: Option<&'a mut CommitCache>,
    ) -> LocalFuture<'a, Result<(), DbError>> {
        Box::pin(async move {
            let no_cache = || Err(ThreadStoreError::Failed("a commit without its cache".to_owned()).into());
            let outcome = match cache {
                Some(cache) => commit::commit(tx, cache, &self.commit).await,
                None => no_cache(),
            };
            let failure = outcome.as_ref().err().cloned();
            self.outcome = Some(outcome);
            failure.map_or(Ok(()), Err)
        })
    }

    fn finish(self: Box<Self>, error: Option<&DbError>) {
        answer(self.outcome, error, self.reply);
    }
}

fn answer<T>(
    outcome: Option<Result<T, DbError>>,
    error: Option<&DbError>,
    reply: tokio::sync::oneshot::Sender<Result<T, DbError>>,
) {
    let outcome = match (error, outcome) {
        (Some(error), _) => Err(error.clone()),
        (None, Some(outcome)) => outcome,
        (None, None) => Err(ThreadStoreError::Failed("it was never begun".to_owned()).into()),
    };
    // A caller that has gone does not get it.
    let _ = reply.send(outcome);
}

impl<T, W> WriteJob for PendingJob<T, W>
where
    T: Send,
    W: AsyncFnMut(&mut WriteTx<'_>) -> Result<T, DbError> + Send,
{
    fn locks(&self) -> &Locks {
        &self.locks
    }

    fn commit(&self) -> Option<&ThreadCommit> {
        None
    }

    fn run<'a>(
        &'a mut self,
        tx: &'a mut WriteTx<'_>,
        _: Option<&'a mut CommitCache>,
    ) -> LocalFuture<'a, Result<(), DbError>> {
        Box::pin(async move {
            let outcome = (self.work)(tx).await;
            let failure = outcome.as_ref().err().cloned();
            self.outcome = Some(outcome);
            failure.map_or(Ok(()), Err)
        })
    }

    fn finish(self: Box<Self>, error: Option<&DbError>) {
        answer(self.outcome, error, self.reply);
    }
}

/// The way to the writer's thread, which ends when this is dropped.
pub(crate) struct WriterHandle {
    jobs: Option<UnboundedSender<Box<dyn WriteJob>>>,
    thread: Option<JoinHandle<()>>,
}

impl WriterHandle {
    pub(crate) fn start(shared: Arc<Shared>) -> Result<Self, DbError> {
        let (jobs, receiver) = unbounded_channel();
        let thread = connection::spawn_io_thread("threads-writer", move || async move {
            Writer::new(shared).run(receiver).await;
        })?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Has `work` done together with what else waits; ready when it is durable, or failed.
    pub(crate) async fn submit<T, W>(&self, locks: Locks, work: W) -> Result<T, DbError>
    where
        T: Send + 'static,
        W: AsyncFnMut(&mut WriteTx<'_>) -> Result<T, DbError> + Send + 'static,
    {
        let (reply, receiver) = tokio::sync::oneshot::channel();
        self.send(Box::new(PendingJob { locks, work, outcome: None, reply }));
        receiver.await.unwrap_or_else(|_| Err(writer_gone_error()))
    }

    /// Has a commit made together with what else waits.
    pub(crate) async fn commit(&self, commit: ThreadCommit) -> Result<CommitOutcome, DbError> {
        let (reply, receiver) = tokio::sync::oneshot::channel();
        self.send(Box::new(CommitJob { locks: commit::locks(&commit), commit, outcome: None, reply }));
        receiver.await.unwrap_or_else(|_| Err(writer_gone_error()))
    }

    fn send(&self, job: Box<dyn WriteJob>) {
        if let Some(jobs) = &self.jobs {
            // A writer that is gone drops the job, and with it the way to answer.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // What it had to say it has said to its callers.
            let _ = thread.join();
        }
    }
}

fn writer_gone_error() -> DbError {
    ThreadStoreError::Failed("its writer has ended".to_owned()).into()
}

/// What the writer's thread has.
struct Writer {
    shared: Arc<Shared>,
    seal: Sealer,
    db: Option<Db>,
    channel: String,
    /// This writer's own number.
    writer: i64,
    /// How many transactions it began.
    batch: i64,
}

enum BatchError {
    /// A member failed after it had written, or a statement of it failed.
    Job,
    /// The transaction failed.
    Transaction(DbError),
    /// The connection broke while the transaction was being committed.
    Unknown { batch: i64, changes: Vec<ThreadChange> },
}

impl From<DbError> for BatchError {
    fn from(error: DbError) -> Self {
        Self::Transaction(error)
    }
}

const NOTIFY: &str = "SELECT pg_notify($1, '')::text";

/// Notes in the writer's own row which transaction this is: whether it was committed can be read there afterwards.
const NOTE_BATCH: &str = "INSERT INTO writers (writer, batch) VALUES ($1, $2)
    ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, at = now()";
const LAST_BATCH: &str = "SELECT batch FROM writers WHERE writer = $1 FOR UPDATE";
/// Rows of writers that ended long ago.
const FORGET_WRITERS: &str = "DELETE FROM writers WHERE at < now() - interval '7 days'";

/// Locks the roots of the trees of these threads, in the order of their numbers.
const LOCK_ROOTS: &str =
    "SELECT thread FROM threads WHERE thread IN (SELECT root FROM threads WHERE thread_id = ANY($1))
    ORDER BY thread FOR UPDATE";

/// Locks the budgets of a day or a month that may be worked on, in one order.
const LOCK_SCOPES: &str = "SELECT pg_advisory_xact_lock(key)::text FROM (
        SELECT DISTINCT hashtextextended('rye budget ' || current_schema() || ' ' || scope, 0) AS key FROM (
            SELECT scope FROM rolling_calls WHERE thread_id = ANY($1) AND NOT is_settled UNION SELECT unnest($2::text[])
        ) AS scopes ORDER BY key OFFSET 0) AS keys";

impl Writer {
    fn new(shared: Arc<Shared>) -> Self {
        let seal = Sealer::new(shared.keys.clone(), shared.store);
        let channel = shared.address.channel();
        let writer = shared.writer;
        Self { shared, seal, db: None, channel, writer, batch: 0 }
    }

    async fn run(mut self, mut jobs: UnboundedReceiver<Box<dyn WriteJob>>) {
        let mut batch = Vec::new();
        while jobs.recv_many(&mut batch, MAX_BATCH).await > 0 {
            self.run_batch(std::mem::take(&mut batch)).await;
        }
    }

    /// Writes these together, or each by itself.
    async fn run_batch(&mut self, mut jobs: Vec<Box<dyn WriteJob>>) {
        match self.transact_until(&mut jobs).await {
            Ok(()) => jobs.into_iter().for_each(|job| job.finish(None)),
            Err(None) if jobs.len() > 1 => {
                for job in jobs {
                    let mut alone = vec![job];
                    let result = self.transact_until(&mut alone).await;
                    let error = result.err().flatten();
                    alone.into_iter().for_each(|job| job.finish(error.as_ref()));
                }
            }
            // Its own error says what.
            Err(None) => jobs.into_iter().for_each(|job| job.finish(None)),
            Err(Some(error)) => jobs.into_iter().for_each(|job| job.finish(Some(&error))),
        }
    }

    /// Tries until it is written, refused, or has failed for too long. `None` is a failure of a member.
    async fn transact_until(&mut self, jobs: &mut [Box<dyn WriteJob>]) -> Result<(), Option<DbError>> {
        let deadline = Instant::now() + self.shared.retry_for;
        let (mut contentions, mut delay) = (0, RECONNECT_DELAY);
        loop {
            let error = match self.transact(jobs).await {
                Ok(()) => return Ok(()),
                Err(BatchError::Job) => {
                    self.roll_back().await;
                    return Err(None);
                }
                Err(BatchError::Unknown { batch, changes }) => {
                    self.db = None;
                    match self.is_committed(batch, deadline).await {
                        Ok(true) => {
                            self.announce(&changes);
                            return Ok(());
                        }
                        Ok(false) => continue,
                        Err(error) => return Err(Some(error)),
                    }
                }
                Err(BatchError::Transaction(error)) => error,
            };
            match error.kind {
                DbErrorKind::Contention if contentions < MAX_CONTENTION_RETRIES => {
                    contentions += 1;
                    self.roll_back().await;
                }
                DbErrorKind::Connection if Instant::now() < deadline => {
                    self.db = None;
                    tokio::time::sleep(delay).await;
                    delay = next_delay(delay);
                }
                DbErrorKind::Connection => {
                    self.db = None;
                    return Err(Some(error));
                }
                DbErrorKind::Refused | DbErrorKind::Statement | DbErrorKind::Contention => {
                    self.roll_back().await;
                    return Err(Some(error));
                }
            }
        }
    }

    async fn roll_back(&mut self) {
        if let Some(db) = &self.db
            && db.batch("ROLLBACK").await.is_err()
        {
            self.db = None;
        }
    }

    /// Whether a transaction was committed whose connection broke meanwhile. The question waits for its end, as the
    /// transaction holds the writer's row.
    async fn is_committed(&mut self, batch: i64, deadline: Instant) -> Result<bool, DbError> {
        let mut delay = RECONNECT_DELAY;
        loop {
            let asked = match self.connect().await {
                Ok(()) => match &self.db {
                    Some(db) => db.query_opt(LAST_BATCH, &[&self.writer]).await,
                    None => Err(DbError::connection("no connection")),
                },
                Err(error) => Err(error),
            };
            match asked {
                Ok(row) => {
                    let last: Option<i64> = row.map(|row| row.try_get(0)).transpose()?;
                    return Ok(last == Some(batch));
                }
                Err(error) if error.is_temporary() && Instant::now() < deadline => {
                    self.db = None;
                    tokio::time::sleep(delay).await;
                    delay = next_delay(delay);
                }
                Err(error) => {
                    self.db = None;
                    let what = "the connection broke during a commit, and what became of it is not known";
                    let reason = format!("{what}: {}", error.error);
                    return Err(ThreadStoreError::Failed(reason).into());
                }
            }
        }
    }

    async fn connect(&mut self) -> Result<(), DbError> {
        if self.db.as_ref().is_none_or(Db::is_closed) {
            self.db = None;
            let (db, _) = Db::connect(&self.shared.address).await?;
            self.shared.ensure_same_store(&db).await?;
            self.shared.clock.measure(&db).await?;
            db.execute(FORGET_WRITERS, &[]).await?;
            self.db = Some(db);
        }
        Ok(())
    }

    async fn transact(&mut self, jobs: &mut [Box<dyn WriteJob>]) -> Result<(), BatchError> {
        if jobs.is_empty() {
            return Ok(());
        }
        self.connect().await?;
        self.batch += 1;
        let Some(db) = &self.db else { return Err(DbError::connection("no connection").into()) };
        let batch = self.batch;
        self.seal.refresh();
        begin(db, jobs, (&self.writer, &batch)).await?;
        let mut changes = Vec::new();
        let mut next = 0;
        while let Some(rest) = jobs.get_mut(next..).filter(|rest| !rest.is_empty()) {
            next += self.run_next(db, rest, &mut changes).await?;
        }
        let channel: [SqlValue<'_>; 1] = [&self.channel];
        let (notified, committed) =
            futures_util::future::join(db.query(NOTIFY, &channel), db.batch("COMMIT")).await;
        match (notified, committed) {
            (Ok(_), Ok(())) => {}
            (_, Err(error)) if error.kind == DbErrorKind::Connection => {
                return Err(BatchError::Unknown { batch, changes });
            }
            (Err(error), _) | (_, Err(error)) => return Err(error.into()),
        }
        self.announce(&changes);
        Ok(())
    }

    /// Runs the first of these, or the commits at their beginning; gives how many.
    async fn run_next(
        &self,
        db: &Db,
        jobs: &mut [Box<dyn WriteJob>],
        changes: &mut Vec<ThreadChange>,
    ) -> Result<usize, BatchError> {
        let mut count = jobs.iter().take_while(|job| job.commit().is_some()).count();
        let commits: Vec<&ThreadCommit> = jobs.iter().take(count).filter_map(|job| job.commit()).collect();
        let mut cache = match commits.is_empty() {
            true => None,
            false => Some(CommitCache::load(db, &self.shared.clock, &self.seal, &commits).await?),
        };
        count = count.max(1);
        for (index, job) in jobs.iter_mut().take(count).enumerate() {
            // Threads that wait have their turns: what this one may use is read after the one before it.
            if index > 0 && cache.as_ref().is_some_and(|cache| cache.has_waits) {
                count = index;
                break;
            }
            self.run_job(db, job, cache.as_mut(), changes).await?;
        }
        if let Some(cache) = &mut cache {
            cache.save(db, &self.seal).await?;
        }
        Ok(count)
    }

    async fn run_job(
        &self,
        db: &Db,
        job: &mut Box<dyn WriteJob>,
        cache: Option<&mut CommitCache>,
        changes: &mut Vec<ThreadChange>,
    ) -> Result<(), BatchError> {
        let change_count = changes.len();
        let mut tx = WriteTx {
            db,
            seal: &self.seal,
            rules: &self.shared.rules,
            clock: &self.shared.clock,
            probe: self.shared.probe.as_ref(),
            origin: &self.shared.origin,
            changes,
            has_written: Cell::new(false),
        };
        let result = job.run(&mut tx, cache).await;
        let has_written = tx.has_written.get();
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.is_temporary() => Err(error.into()),
            Err(error) if error.kind == DbErrorKind::Refused && !has_written => {
                changes.truncate(change_count);
                Ok(())
            }
            Err(_) => Err(BatchError::Job),
        }
    }

    /// Announces what is durable.
    fn announce(&self, changes: &[ThreadChange]) {
        self.shared.version.bump();
        changes.iter().for_each(|change| self.shared.changes.send(change));
    }
}

/// Begins the transaction with its locks, and notes the writer's number of it.
async fn begin(db: &Db, jobs: &[Box<dyn WriteJob>], number: (&i64, &i64)) -> Result<(), DbError> {
    let locks = || jobs.iter().map(|job| job.locks());
    let threads: BTreeSet<&str> =
        locks().flat_map(|locks| locks.threads.iter().map(ThreadId::as_str)).collect();
    let threads: Vec<&str> = threads.into_iter().collect();
    let scopes: BTreeSet<&str> = locks().flat_map(|locks| locks.scopes.iter().map(String::as_str)).collect();
    let scopes: Vec<&str> = scopes.into_iter().collect();
    // Prepared first, so that these arrive in this order without waiting for one another.
    db.prepare(&[NOTE_BATCH, LOCK_ROOTS, LOCK_SCOPES, NOTIFY]).await?;
    let (begun, noted, roots, scopes) = futures_util::future::join4(
        db.batch("BEGIN"),
        db.execute(NOTE_BATCH, &[number.0, number.1]),
        db.query(LOCK_ROOTS, &[&threads]),
        db.query(LOCK_SCOPES, &[&threads, &scopes]),
    )
    .await;
    begun?;
    noted?;
    roots?;
    scopes?;
    Ok(())
}
