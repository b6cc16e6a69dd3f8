//! The driver: does what the machine wants done, writes down what came of it, and feeds it back.
//!
//! Each event goes the same way: redacted → `step` → journaled (with settlement, reservation and status in one
//! transaction) → written to the transcript → told to listeners → only then are its effects begun. So whatever happens
//! in the world was preceded by a durable record, and a crash loses nothing that something else relied on. Only what
//! touches nothing, internal hooks and pure tools, is called within the step: it may as well be called again.
//!
//! What it needs of the world is behind a few traits ([`Journal`], [`Children`], [`Listener`], [`Clock`], and
//! [`crate::dispatch::Dispatch`]); nothing in here knows SQLite or the engine.

mod begin;
mod next;
mod projection;
mod record;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use rye_model::Provider;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::action::Action;
use crate::dispatch::Dispatch;
use crate::door::Issuer;
use crate::facts::BudgetDoor;
use crate::machine::{Event, Outcome, State, ToolResult, step};
use crate::redact::Redactor;
use crate::shape::Artifacts;
use crate::spec::{Cause, Spec};
use crate::store::{Claim, Commit, Committed, Record, Settle, StoreError};
use crate::thread_id::ThreadId;
use crate::transcript::Signer;
use next::Outstanding;

pub(crate) use begin::PATIENCE;
pub use projection::Projection;

/// Something that will be there later.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where a thread's records go; durable when the answer is there.
pub trait Journal: Send + Sync {
    /// Writes records, settlements, a reservation and a status in one transaction.
    fn commit(&self, commit: Commit) -> Later<'_, Result<Committed, StoreError>>;
}

/// Other threads, as a thread reaches them.
pub trait Children: Send + Sync {
    /// Starts a child and waits for it, or not, as the call says.
    fn spawn(
        self: Arc<Self>,
        parent: Arc<Spec>,
        call: Action,
        ending: CancellationToken,
        began: Began,
    ) -> Later<'static, ToolResult>;

    /// Looks at or steers other threads.
    fn orchestrate(
        self: Arc<Self>,
        asker: Arc<Spec>,
        call: Action,
        ending: CancellationToken,
    ) -> Later<'static, ToolResult>;

    /// Runs a directive for a hook, to its end; the answer is an envelope.
    fn run_for_hook(
        self: Arc<Self>,
        parent: Arc<Spec>,
        hook: String,
        call: Action,
        ending: CancellationToken,
    ) -> Later<'static, Value>;
}

/// How a child is named, and told of once it has begun.
#[derive(Clone, Debug)]
pub struct Began {
    index: usize,
    /// The tool that starts it.
    by: String,
    child: ThreadId,
    sender: tokio::sync::mpsc::UnboundedSender<(usize, ThreadId, String)>,
}

impl Began {
    /// The same, of a child of its own that another tool starts.
    pub(crate) fn by(&self, tool: &str, child: ThreadId) -> Self {
        Self { by: tool.to_owned(), child, ..self.clone() }
    }

    /// What starts the child.
    #[must_use]
    pub fn cause(&self) -> Cause {
        Cause::Tool(self.by.clone())
    }

    /// The name the child has, or shall have.
    #[must_use]
    pub fn child(&self) -> &ThreadId {
        &self.child
    }

    /// The child exists.
    pub fn tell(&self, directive: &str) {
        // Nobody listens any more once the parent has stopped.
        let _ = self.sender.send((self.index, self.child.clone(), directive.to_owned()));
    }
}

/// Hears of a thread as it goes.
pub trait Listener: Send + Sync {
    /// An event that was written down: its envelope.
    fn event(&self, envelope: &Value);

    /// Words of the model on their way; they may be lost.
    fn delta(&self, thread: &str, delta: &rye_model::Delta);
}

/// The time.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}

/// What a thread's driver needs of the world.
#[derive(Clone)]
pub struct Doors {
    /// Where records go.
    pub journal: Arc<dyn Journal>,
    /// What runs actions.
    pub dispatch: Arc<dyn Dispatch>,
    /// Other threads.
    pub children: Arc<dyn Children>,
    /// Who listens.
    pub listener: Option<Arc<dyn Listener>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// What must not be written.
    pub redactor: Arc<Redactor>,
    /// Who signs transcripts.
    pub signer: Arc<Signer>,
    /// Who makes the tokens of tools.
    pub tokens: Arc<Issuer>,
    /// The folder of all threads.
    pub folder: PathBuf,
    /// Who may do work that blocks: so many at once.
    pub turns: Arc<Semaphore>,
    /// The ledger, for hooks' internal tools.
    pub budget: Option<Arc<dyn BudgetDoor>>,
    /// Where results that are too long are kept.
    pub artifacts: Option<Arc<dyn Artifacts>>,
}

/// How a thread is asked to end.
#[derive(Clone, Debug, Default)]
pub struct Signal {
    /// Cancelled when it is asked.
    pub ending: CancellationToken,
    reason: Arc<Mutex<String>>,
}

impl Signal {
    /// Asks for the end; the first reason counts.
    pub fn cancel(&self, reason: &str) {
        let mut kept = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() {
            reason.clone_into(&mut kept);
        }
        drop(kept);
        self.ending.cancel();
    }

    fn reason(&self) -> String {
        let kept = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_empty() { "cancelled".to_owned() } else { kept.clone() }
    }
}

/// Why a thread could not be driven on. What was written stays; it can be resumed.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The journal failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody ended it.
    #[error("it was ended by somebody else: {0}")]
    EndedElsewhere(crate::status::Status),
    /// The transcript or the state file could not be written.
    #[error("the thread's files could not be written: {0}")]
    Files(#[from] std::io::Error),
}

/// A thread at work in this process.
pub struct Thread {
    doors: Doors,
    state: State,
    claim: Claim,
    provider: Arc<dyn Provider>,
    signal: Signal,
    projection: Projection,
    outstanding: Outstanding,
    unsettled: Vec<Settle>,
    /// Whether the store knows that it is at work.
    is_marked_running: bool,
    /// Whether `state.json` is behind, and when it was last written or the thread was begun.
    is_unsaved: bool,
    saved_ms: u64,
    /// When the transcript was last written.
    written_ms: u64,
}

/// What is known of a thread that is taken over: where its transcript stands.
pub struct Standing {
    /// The machine, replayed to where the journal ends.
    pub state: State,
    /// The transcript's next sequence number and the head of its chain.
    pub projection: Projection,
    /// Calls that were in flight when its process died, as they are charged: with the first event, or not at all.
    pub unsettled: Vec<Settle>,
}

impl Thread {
    /// A thread to be driven in this process, which holds `claim` on it.
    #[must_use]
    pub fn new(
        doors: Doors,
        standing: Standing,
        claim: Claim,
        provider: Arc<dyn Provider>,
        signal: Signal,
    ) -> Self {
        let saved_ms = doors.clock.now_ms();
        Self {
            doors,
            state: standing.state,
            claim,
            provider,
            signal,
            projection: standing.projection,
            outstanding: Outstanding::default(),
            unsettled: standing.unsettled,
            is_marked_running: false,
            is_unsaved: false,
            saved_ms,
            written_ms: saved_ms,
        }
    }

    /// Drives it from `first` until it ends or stops.
    ///
    /// # Errors
    /// When its records cannot be written; it then stands where the journal ends.
    pub async fn run(mut self, first: Event) -> Result<(Outcome, State), DriveError> {
        let mut event = first;
        loop {
            self.take(event).await?;
            self.outstanding.tell_written();
            if let Some(outcome) = self.state.outcome() {
                let outcome = outcome.clone();
                return Ok((outcome, self.state));
            }
            event = self.next().await?;
        }
    }
}

/// As [`replay`], with the transcript brought up to where the journal ends.
///
/// # Errors
/// When a record cannot be read or the transcript cannot be written.
pub fn replay_with_transcript(
    spec: Arc<Spec>,
    records: &[Record],
    folder: &std::path::Path,
) -> std::io::Result<(State, Projection)> {
    let mut projection = Projection::reopen(folder, &spec.own.thread_id)?;
    let mut state = State::new(spec);
    for record in records {
        let event: Event = serde_json::from_slice(&record.body).map_err(std::io::Error::other)?;
        let effects = step(&mut state, record.at_ms, event);
        projection.catch_up(&state, record, effects);
    }
    projection.release();
    projection.write()?;
    Ok((state, projection))
}

/// Feeds records back to a fresh machine.
///
/// # Errors
/// When a record cannot be read.
pub fn replay(spec: Arc<Spec>, records: &[Record]) -> Result<State, serde_json::Error> {
    let mut state = State::new(spec);
    for record in records {
        let event: Event = serde_json::from_slice(&record.body)?;
        let _ = step(&mut state, record.at_ms, event);
    }
    Ok(state)
}
