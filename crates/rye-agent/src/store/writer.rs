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
use tokio::sync::broadcast;

use super::StoreError;
use super::heads::HeadRecord;
use super::row_seal::{RowHead, RowSeal};
use super::schema::LedgerSpec;
use super::values::Change;
use crate::thread_id::ThreadId;

/// The most members of one transaction.
const MOST: usize = 1024;
/// Where so many were written together, more are on their way: waiting for them a moment makes fewer, larger transactions.
const MANY: usize = 4;
const MOMENT: Duration = Duration::from_micros(500);

/// What a member works with.
pub(super) struct Desk<'a, 'c> {
    pub(super) connection: &'c Connection,
    statements: &'a Statements<'c>,
    pub(super) seal: &'a RowSeal,
    pub(super) record: &'a HeadRecord,
    pub(super) spec: &'a LedgerSpec,
    changes: &'a mut Vec<Change>,
    heads: &'a mut Vec<(ThreadId, RowHead)>,
}

impl Desk<'_, '_> {
    /// Executes a statement; gives how many rows it changed.
    pub(super) fn execute(&self, sql: &'static str, values: impl Params) -> rusqlite::Result<usize> {
        self.statements.with(sql, |statement| statement.execute(values))
    }

    /// The one row that a statement gives.
    pub(super) fn query_row<T>(
        &self,
        sql: &'static str,
        values: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        self.statements.with(sql, |statement| statement.query_row(values, read))
    }

    /// Tells those who listen, once it is durable.
    pub(super) fn tell(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// Has recorded how far a thread has come, once it is durable.
    pub(super) fn note_head(&mut self, thread: &ThreadId, head: RowHead) {
        self.heads.push((thread.clone(), head));
    }
}

/// The statements of the writer, by where their text stands in the program: to look them up by their text would take
/// longer than some of them do.
struct Statements<'c> {
    connection: &'c Connection,
    prepared: RefCell<Vec<(&'static str, Statement<'c>)>>,
}

impl<'c> Statements<'c> {
    fn new(connection: &'c Connection) -> Self {
        Self { connection, prepared: RefCell::default() }
    }

    fn with<T>(
        &self,
        sql: &'static str,
        run: impl FnOnce(&mut Statement<'c>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let is_it = |(known, _): &(&str, Statement<'c>)| std::ptr::eq(*known, sql);
        let place = self.prepared.borrow().iter().position(is_it);
        let mut statement = match place {
            Some(place) => self.prepared.borrow_mut().swap_remove(place).1,
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
trait Member: Send {
    /// Runs it; `false` when it failed.
    fn run(&mut self, desk: &mut Desk<'_, '_>) -> bool;
    /// Answers whoever waits.
    fn finish(self: Box<Self>, trouble: Option<&StoreError>);
}

struct Pending<T, W, R> {
    work: W,
    outcome: Option<Result<T, StoreError>>,
    reply: R,
}

impl<T, W, R> Member for Pending<T, W, R>
where
    T: Send,
    W: FnMut(&mut Desk<'_, '_>) -> Result<T, StoreError> + Send,
    R: FnOnce(Result<T, StoreError>) + Send,
{
    fn run(&mut self, desk: &mut Desk<'_, '_>) -> bool {
        let outcome = (self.work)(desk);
        let is_done = outcome.is_ok();
        self.outcome = Some(outcome);
        is_done
    }

    fn finish(self: Box<Self>, trouble: Option<&StoreError>) {
        let outcome = match (trouble, self.outcome) {
            (Some(trouble), _) => Err(trouble.clone()),
            (None, Some(outcome)) => outcome,
            (None, None) => Err(StoreError::Failed("it was never begun".to_owned())),
        };
        (self.reply)(outcome);
    }
}

enum Job {
    Together(Box<dyn Member>),
    Alone(Box<dyn FnOnce(&Connection) + Send>),
}

/// The way to the writer's thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Writer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        database: PathBuf,
        sealing: (RowSeal, Arc<HeadRecord>),
        spec: LedgerSpec,
        listeners: broadcast::Sender<Change>,
    ) -> Result<Self, StoreError> {
        let (jobs, receiver) = channel();
        let (seal, record) = sealing;
        let room = Room { connection, database, seal, record, spec, listeners };
        let thread = std::thread::Builder::new()
            .name("threads-store".to_owned())
            .spawn(move || room.work(&receiver))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Has `work` done together with what else waits; `reply` is called when it is durable, or failed. When the writer
    /// is gone, `reply` is dropped without being called.
    pub(super) fn submit<T, W, R>(&self, work: W, reply: R)
    where
        T: Send + 'static,
        W: FnMut(&mut Desk<'_, '_>) -> Result<T, StoreError> + Send + 'static,
        R: FnOnce(Result<T, StoreError>) + Send + 'static,
    {
        self.send(Job::Together(Box::new(Pending { work, outcome: None, reply })));
    }

    /// Has `work` done outside of any transaction.
    pub(super) fn submit_alone(&self, work: impl FnOnce(&Connection) + Send + 'static) {
        self.send(Job::Alone(Box::new(work)));
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // A writer that is gone drops the job, and whoever waits hears of that.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // What it had to say it has said to those who waited.
            let _ = thread.join();
        }
    }
}

/// What the writer's thread has.
struct Room {
    connection: Connection,
    database: PathBuf,
    seal: RowSeal,
    record: Arc<HeadRecord>,
    spec: LedgerSpec,
    listeners: broadcast::Sender<Change>,
}

impl Room {
    fn work(&self, jobs: &Receiver<Job>) {
        let statements = Statements::new(&self.connection);
        let mut last = 0;
        while let Ok(first) = jobs.recv() {
            if last >= MANY {
                std::thread::sleep(MOMENT);
            }
            let mut members = Vec::new();
            let mut next = Some(first);
            while let Some(job) = next.take() {
                match job {
                    Job::Together(member) => members.push(member),
                    Job::Alone(work) => {
                        self.write(&statements, std::mem::take(&mut members));
                        work(&self.connection);
                    }
                }
                if members.len() < MOST {
                    next = jobs.try_recv().ok();
                }
            }
            last = members.len();
            self.write(&statements, members);
        }
    }

    fn write<'c>(&'c self, statements: &Statements<'c>, mut members: Vec<Box<dyn Member>>) {
        match self.transact(statements, &mut members) {
            Ok(()) => members.into_iter().for_each(|member| member.finish(None)),
            Err(Trouble::Member) if members.len() > 1 => {
                members.into_iter().for_each(|member| self.write(statements, vec![member]));
            }
            // Its own error says what.
            Err(Trouble::Member) => members.into_iter().for_each(|member| member.finish(None)),
            Err(Trouble::All(error)) => {
                members.into_iter().for_each(|member| member.finish(Some(&error)));
            }
        }
    }

    fn transact<'c>(
        &'c self,
        statements: &Statements<'c>,
        members: &mut [Box<dyn Member>],
    ) -> Result<(), Trouble> {
        if members.is_empty() {
            return Ok(());
        }
        let failed = |error: rusqlite::Error| Trouble::All(StoreError::from(error).at(&self.database));
        let say = |sql| statements.with(sql, |statement| statement.execute([])).map(drop);
        say("BEGIN IMMEDIATE").map_err(failed)?;
        let (mut changes, mut heads) = (Vec::new(), Vec::new());
        for member in members {
            let (written, told) = (self.connection.total_changes(), changes.len());
            let noted = heads.len();
            let mut desk = Desk {
                connection: &self.connection,
                statements,
                seal: &self.seal,
                record: &self.record,
                spec: &self.spec,
                changes: &mut changes,
                heads: &mut heads,
            };
            if member.run(&mut desk) {
                continue;
            }
            changes.truncate(told);
            heads.truncate(noted);
            // Some failures end the transaction by themselves.
            if self.connection.is_autocommit() || self.connection.total_changes() != written {
                self.take_back();
                return Err(Trouble::Member);
            }
        }
        if let Err(error) = say("COMMIT") {
            self.take_back();
            return Err(failed(error));
        }
        self.record.add(&heads);
        if self.listeners.receiver_count() > 0 {
            // Nobody listening any more is no failure.
            changes.into_iter().for_each(|change| drop(self.listeners.send(change)));
        }
        Ok(())
    }

    fn take_back(&self) {
        if !self.connection.is_autocommit() {
            // When even this fails, the next transaction does, and says why.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}

enum Trouble {
    /// A member failed after it had written.
    Member,
    /// The transaction failed.
    All(StoreError),
}
