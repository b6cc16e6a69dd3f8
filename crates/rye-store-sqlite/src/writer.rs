//! The one writer of an open database: what waits is written in one transaction, made durable by one sync.
//!
//! A member that fails does not take the others with it: if it had written anything, the transaction is taken back and
//! each member gets its own.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, Params, Row, Statement};

use super::DbError;
use super::head_log::HeadLog;
use super::rolling::RollingDb;
use rye_store::{ChangeHub, ThreadChange, ThreadStoreError};

use super::row_seal::{RowHead, RowSealer};
use super::schema::LedgerSpec;
use rye_thread::thread_id::ThreadId;

/// The most members of one transaction.
const MAX_BATCH: usize = 1024;
/// Where so many were written together, more are on their way: waiting for them a moment makes fewer, larger transactions.
const BUSY_BATCH: usize = 4;
const BATCH_DELAY: Duration = Duration::from_micros(500);

/// What a member works with.
pub(super) struct WriteTx<'a, 'c> {
    pub(super) connection: &'c Connection,
    statements: &'a StatementCache<'c>,
    pub(super) seal: &'a RowSealer,
    pub(super) head_log: &'a HeadLog,
    pub(super) spec: &'a LedgerSpec,
    pub(super) rolling: &'a RollingDb,
    changes: &'a mut Vec<ThreadChange>,
    heads: &'a mut Vec<(ThreadId, RowHead)>,
}

impl WriteTx<'_, '_> {
    /// Executes a statement; gives how many rows it changed.
    pub(super) fn execute(&self, sql: &'static str, values: impl Params) -> rusqlite::Result<usize> {
        self.statements.with_statement(sql, |statement| statement.execute(values))
    }

    /// The one row that a statement gives.
    pub(super) fn query_row<T>(
        &self,
        sql: &'static str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.statements.with_statement(sql, |statement| statement.query_row(values, read))
    }

    /// Tells those who listen, once it is durable.
    pub(super) fn notify(&mut self, change: ThreadChange) {
        self.changes.push(change);
    }

    /// Has recorded how far a thread has come, once it is durable.
    pub(super) fn record_head(&mut self, thread: &ThreadId, head: RowHead) {
        self.heads.push((thread.clone(), head));
    }
}

/// The statements of the writer, by where their text stands in the program: to look them up by their text would take
/// longer than some of them do.
struct StatementCache<'c> {
    connection: &'c Connection,
    prepared: RefCell<Vec<(&'static str, Statement<'c>)>>,
}

impl<'c> StatementCache<'c> {
    fn new(connection: &'c Connection) -> Self {
        Self { connection, prepared: RefCell::default() }
    }

    fn with_statement<T>(
        &self,
        sql: &'static str,
        run: impl FnOnce(&mut Statement<'c>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let is_same = |(known, _): &(&str, Statement<'c>)| std::ptr::eq(*known, sql);
        let index = self.prepared.borrow().iter().position(is_same);
        let mut statement = match index {
            Some(index) => self.prepared.borrow_mut().swap_remove(index).1,
            None => self.connection.prepare(sql)?,
        };
        let result = run(&mut statement);
        // A value may be large, and the statement not used again for long.
        statement.clear_bindings();
        self.prepared.borrow_mut().push((sql, statement));
        result
    }
}

/// Something to be written together with others. It may be run more than once.
trait WriteJob: Send {
    /// Runs it; `false` when it failed.
    fn run(&mut self, tx: &mut WriteTx<'_, '_>) -> bool;
    /// Answers the one that waits.
    fn finish(self: Box<Self>, error: Option<&DbError>);
}

struct PendingJob<T, W, R> {
    work: W,
    outcome: Option<Result<T, DbError>>,
    reply: R,
}

impl<T, W, R> WriteJob for PendingJob<T, W, R>
where
    T: Send,
    W: FnMut(&mut WriteTx<'_, '_>) -> Result<T, DbError> + Send,
    R: FnOnce(Result<T, DbError>) + Send,
{
    fn run(&mut self, tx: &mut WriteTx<'_, '_>) -> bool {
        let outcome = (self.work)(tx);
        let is_done = outcome.is_ok();
        self.outcome = Some(outcome);
        is_done
    }

    fn finish(self: Box<Self>, error: Option<&DbError>) {
        let outcome = match (error, self.outcome) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(outcome)) => outcome,
            (None, None) => Err(DbError::from(ThreadStoreError::Failed("it was never begun".to_owned()))),
        };
        (self.reply)(outcome);
    }
}

enum WriterMessage {
    Batched(Box<dyn WriteJob>),
    Exclusive(Box<dyn FnOnce(&Connection) + Send>),
}

/// The way to the writer's thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct WriterHandle {
    jobs: Option<Sender<WriterMessage>>,
    thread: Option<JoinHandle<()>>,
}

impl WriterHandle {
    pub(super) fn start(
        connection: Connection,
        databases: (PathBuf, PathBuf),
        seal_state: (RowSealer, Arc<HeadLog>),
        spec: LedgerSpec,
        listeners: Arc<ChangeHub>,
    ) -> Result<Self, DbError> {
        let (jobs, receiver) = channel();
        let (seal, record) = seal_state;
        let (database, rolling) = (databases.0, RollingDb::new(databases.1));
        let writer = WriterThread { connection, database, seal, head_log: record, spec, rolling, listeners };
        let thread = std::thread::Builder::new()
            .name("threads-store".to_owned())
            .spawn(move || writer.run(&receiver))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Has `work` done together with what else waits; `reply` is called when it is durable, or failed. When the writer
    /// is gone, `reply` is dropped without being called.
    pub(super) fn submit<T, W, R>(&self, work: W, reply: R)
    where
        T: Send + 'static,
        W: FnMut(&mut WriteTx<'_, '_>) -> Result<T, DbError> + Send + 'static,
        R: FnOnce(Result<T, DbError>) + Send + 'static,
    {
        self.send(WriterMessage::Batched(Box::new(PendingJob { work, outcome: None, reply })));
    }

    /// Has `work` done outside of any transaction.
    pub(super) fn submit_exclusive(&self, work: impl FnOnce(&Connection) + Send + 'static) {
        self.send(WriterMessage::Exclusive(Box::new(work)));
    }

    fn send(&self, job: WriterMessage) {
        if let Some(jobs) = &self.jobs {
            // A writer that is gone drops the job, and the one that waits hears of that.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // What it had to say it has said to those who waited.
            let _ = thread.join();
        }
    }
}

/// What the writer's thread has.
struct WriterThread {
    connection: Connection,
    database: PathBuf,
    seal: RowSealer,
    head_log: Arc<HeadLog>,
    spec: LedgerSpec,
    rolling: RollingDb,
    listeners: Arc<ChangeHub>,
}

impl WriterThread {
    fn run(&self, jobs: &Receiver<WriterMessage>) {
        let statements = StatementCache::new(&self.connection);
        let mut last = 0;
        while let Ok(first) = jobs.recv() {
            if last >= BUSY_BATCH {
                std::thread::sleep(BATCH_DELAY);
            }
            let mut batch = Vec::new();
            let mut next = Some(first);
            while let Some(job) = next.take() {
                match job {
                    WriterMessage::Batched(member) => batch.push(member),
                    WriterMessage::Exclusive(work) => {
                        self.run_batch(&statements, std::mem::take(&mut batch));
                        work(&self.connection);
                    }
                }
                if batch.len() < MAX_BATCH {
                    next = jobs.try_recv().ok();
                }
            }
            last = batch.len();
            self.run_batch(&statements, batch);
        }
    }

    fn run_batch<'c>(&'c self, statements: &StatementCache<'c>, mut jobs: Vec<Box<dyn WriteJob>>) {
        match self.transact(statements, &mut jobs) {
            Ok(()) => jobs.into_iter().for_each(|job| job.finish(None)),
            Err(BatchError::Job) if jobs.len() > 1 => {
                jobs.into_iter().for_each(|job| self.run_batch(statements, vec![job]));
            }
            // Its own error says what.
            Err(BatchError::Job) => jobs.into_iter().for_each(|job| job.finish(None)),
            Err(BatchError::Transaction(error)) => {
                jobs.into_iter().for_each(|job| job.finish(Some(&error)));
            }
        }
    }

    fn transact<'c>(
        &'c self,
        statements: &StatementCache<'c>,
        jobs: &mut [Box<dyn WriteJob>],
    ) -> Result<(), BatchError> {
        if jobs.is_empty() {
            return Ok(());
        }
        let failed = |error: rusqlite::Error| {
            BatchError::Transaction(DbError::from(error).with_path(&self.database).into())
        };
        let execute = |sql| statements.with_statement(sql, |statement| statement.execute([])).map(drop);
        execute("BEGIN IMMEDIATE").map_err(failed)?;
        let (mut changes, mut heads) = (Vec::new(), Vec::new());
        for job in jobs {
            let (written, change_count) = (self.total_changes(), changes.len());
            let head_count = heads.len();
            let mut tx = WriteTx {
                connection: &self.connection,
                statements,
                seal: &self.seal,
                head_log: &self.head_log,
                spec: &self.spec,
                rolling: &self.rolling,
                changes: &mut changes,
                heads: &mut heads,
            };
            if job.run(&mut tx) {
                continue;
            }
            changes.truncate(change_count);
            heads.truncate(head_count);
            // Some failures end the transaction by themselves.
            if self.connection.is_autocommit() || self.total_changes() != written {
                self.rollback();
                return Err(BatchError::Job);
            }
        }
        if let Err(error) = self.rolling.commit() {
            self.rollback();
            return Err(BatchError::Transaction(error));
        }
        if let Err(error) = execute("COMMIT") {
            self.rollback();
            return Err(failed(error));
        }
        self.head_log.add(&heads);
        changes.iter().for_each(|change| self.listeners.send(change));
        Ok(())
    }

    /// Rows written so far.
    fn total_changes(&self) -> u64 {
        self.connection.total_changes() + self.rolling.total_changes()
    }

    fn rollback(&self) {
        self.rolling.rollback();
        if !self.connection.is_autocommit() {
            // When even this fails, the next transaction does, and says why.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}

enum BatchError {
    /// A member failed after it had written.
    Job,
    /// The transaction failed.
    Transaction(DbError),
}
