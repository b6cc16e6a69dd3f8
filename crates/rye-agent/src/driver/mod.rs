//! The driver: does what the machine wants done, writes down what came of it, and feeds it back.
//!
//! Each event goes the same way: redacted → `step` → journaled (with settlement, reservation and status in one
//! transaction) → written to the transcript → told to listeners → only then are its effects begun. So whatever happens
//! in the world was preceded by a durable record, and a crash loses nothing that something else relied on. Only
//! tools that need no access are called within the step: calling one again changes nothing.
//!
//! Its dependencies are traits ([`ThreadJournal`], [`Children`], [`Listener`], [`MillisClock`] and [`Dispatcher`]): nothing in here knows
//! SQLite or the engine.

mod blocking;
mod budget_wait;
mod commit;
mod effects;
mod transcript_writer;
mod wait;
mod work_time;

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::action::Action;
use crate::callback::TokenIssuer;
use crate::dispatch::Dispatcher;
use crate::machine::{InterruptedTokens, ThreadEvent, ThreadOutcome, ThreadState, ToolResult, step};
use crate::money::Nanos;
use crate::provider_chain::ProviderChain;
use crate::redact::{RedactionTally, Redactor};
use crate::result_format::ArtifactStore;
use crate::rolling::TimeZone;
use crate::spec::{SpawnReason, ThreadSpec};
use crate::store::{
    Claim, CommitOutcome, JournalRecord, Reservation, Settlement, ThreadCommit, ThreadStoreError,
    TranscriptHead,
};
use crate::thread_id::ThreadId;
use crate::tool_context::BudgetAccess;
use crate::transcript::TranscriptSigner;
use wait::InFlight;
use work_time::WorkTimer;

pub(crate) use blocking::SLOT_TIMEOUT;
pub use blocking::{BlockingExecutor, BlockingWork, SlottedPool, system_jitter};
pub use budget_wait::{PlaceRequest, wait_for_place};
pub use transcript_writer::TranscriptWriter;

/// A boxed future.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where a thread's records go; durable when the answer is there.
pub trait ThreadJournal: Send + Sync {
    /// Writes records, settlements, a reservation and a status in one transaction.
    fn commit(&self, commit: ThreadCommit) -> BoxFuture<'_, Result<CommitOutcome, ThreadStoreError>>;

    /// Whether commits carry the lines of transcripts.
    fn keeps_transcripts(&self) -> bool {
        false
    }
}

/// Other threads, as a thread reaches them.
pub trait Children: Send + Sync {
    /// Starts a child and waits for it, or not, as the call says.
    fn spawn(
        self: Arc<Self>,
        parent: Arc<ThreadSpec>,
        call: Action,
        cancel_token: CancellationToken,
        handle: ChildHandle,
    ) -> BoxFuture<'static, ToolResult>;

    /// Looks at or steers other threads.
    fn orchestrate(
        self: Arc<Self>,
        caller: Arc<ThreadSpec>,
        call: Action,
        cancel_token: CancellationToken,
    ) -> BoxFuture<'static, ToolResult>;

    /// Runs a directive for a hook, to its end; the answer is an envelope.
    fn run_for_hook(
        self: Arc<Self>,
        parent: Arc<ThreadSpec>,
        hook: String,
        call: Action,
        cancel_token: CancellationToken,
    ) -> BoxFuture<'static, Value>;
}

/// How a child is named, and told of once it has begun.
#[derive(Clone, Debug)]
pub struct ChildHandle {
    index: usize,
    /// The tool that starts it.
    spawned_by: String,
    child: ThreadId,
    sender: tokio::sync::mpsc::UnboundedSender<(usize, ThreadId, String)>,
}

impl ChildHandle {
    /// The same, of a child of its own that another tool starts.
    pub(crate) fn spawned_by(&self, tool: &str, child: ThreadId) -> Self {
        Self { spawned_by: tool.to_owned(), child, ..self.clone() }
    }

    /// What starts the child.
    #[must_use]
    pub fn spawn_reason(&self) -> SpawnReason {
        SpawnReason::Tool(self.spawned_by.clone())
    }

    /// The name the child has, or shall have.
    #[must_use]
    pub fn child(&self) -> &ThreadId {
        &self.child
    }

    /// The child exists.
    pub fn notify_started(&self, directive: &str) {
        // The receiver is gone once the parent has stopped.
        let _ = self.sender.send((self.index, self.child.clone(), directive.to_owned()));
    }
}

/// Hears of a thread as it goes.
pub trait Listener: Send + Sync {
    /// An event that was written down: its envelope.
    fn event(&self, envelope: &Value);

    /// Words of the model on their way; they may be lost.
    fn delta(&self, thread: &str, delta: &rye_model::ResponseDelta);
}

/// The time.
pub trait MillisClock: Send + Sync {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;

    /// Milliseconds since some moment, never set back or ahead: for durations.
    fn monotonic_ms(&self) -> u64 {
        self.now_ms()
    }

    /// The time zone whose midnight ends a day.
    fn time_zone(&self) -> TimeZone {
        TimeZone::UTC
    }
}

/// Dependencies injected into the driver.
#[derive(Clone)]
pub struct DriverDeps {
    /// Where records go.
    pub journal: Arc<dyn ThreadJournal>,
    /// What runs actions.
    pub dispatcher: Arc<dyn Dispatcher>,
    /// Other threads.
    pub children: Arc<dyn Children>,
    /// Who listens.
    pub listener: Option<Arc<dyn Listener>>,
    /// The time.
    pub clock: Arc<dyn MillisClock>,
    /// What must not be written.
    pub redactor: Arc<Redactor>,
    /// Who signs transcripts.
    pub signer: Arc<TranscriptSigner>,
    /// Who makes the tokens of tools.
    pub token_issuer: Arc<TokenIssuer>,
    /// The folder of all threads.
    pub threads_dir: PathBuf,
    /// Where work that blocks is done.
    pub blocking: Arc<dyn BlockingExecutor>,
    /// Where in a spread of delays a retry falls, in thousandths.
    pub jitter: Arc<dyn Fn() -> u32 + Send + Sync>,
    /// The ledger, for hooks' internal tools.
    pub budget: Option<Arc<dyn BudgetAccess>>,
    /// Where results that are too long are kept.
    pub artifacts: Option<Arc<dyn ArtifactStore>>,
    /// What else is recorded of a thread without a parent when it stops.
    pub stop_recorder: Option<Arc<dyn StopRecorder>>,
}

/// Adds to what is recorded of a thread that ended or stopped: under a name, beside its outcome.
pub trait StopRecorder: Send + Sync {
    /// What is to be recorded, without what the redactor knows. It fails in its own words: the thread has stopped in any case.
    fn record<'a>(
        &'a self,
        thread: &ThreadId,
        at_ms: u64,
        redactor: &Arc<Redactor>,
    ) -> BoxFuture<'a, (&'static str, Value)>;
}

/// How a thread is asked to end.
#[derive(Clone, Debug, Default)]
pub struct CancelSignal {
    /// Cancelled when it is asked.
    pub cancel_token: CancellationToken,
    reason: Arc<Mutex<String>>,
}

impl CancelSignal {
    /// Asks for the end; the first reason counts.
    pub fn cancel(&self, reason: &str) {
        let mut current = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if current.is_empty() {
            reason.clone_into(&mut current);
        }
        drop(current);
        self.cancel_token.cancel();
    }

    /// Why the end was asked for.
    pub(crate) fn reason(&self) -> String {
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if reason.is_empty() { "cancelled".to_owned() } else { reason.clone() }
    }
}

/// Why a thread could not be driven on. What was written stays; it can be resumed.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// The journal failed.
    #[error(transparent)]
    Store(#[from] ThreadStoreError),
    /// Another process ended it.
    #[error("it was ended by another process: {0}")]
    EndedElsewhere(crate::status::ThreadStatus),
    /// An event of the thread does not fit its schema.
    #[error("invalid event: {0}")]
    InvalidEvent(String),
    /// The transcript or the state file could not be written.
    #[error("the thread's files could not be written: {0}")]
    Files(#[from] std::io::Error),
}

/// A thread at work in this process.
pub struct ThreadDriver {
    deps: DriverDeps,
    state: ThreadState,
    claim: Claim,
    providers: ProviderChain,
    signal: CancelSignal,
    transcript: TranscriptWriter,
    in_flight: InFlight,
    unsettled: Vec<Settlement>,
    /// The secrets that were taken out of the next event already.
    redacted: RedactionTally,
    /// Whether the store knows that it is running.
    is_marked_running: bool,
    /// Whether `state.json` is behind, and when it was last written or the thread was begun.
    is_state_dirty: bool,
    saved_ms: u64,
    /// When the transcript was last written.
    written_ms: u64,
    timer: WorkTimer,
}

/// What is known of a thread that is taken over: where its transcript stands.
pub struct ResumePoint {
    /// The machine, replayed to where the journal ends.
    pub state: ThreadState,
    /// The transcript's next sequence number and the head of its chain.
    pub transcript: TranscriptWriter,
    /// Calls that were in flight when its process died: charged with the first event, or not at all.
    pub interrupted: InterruptedCalls,
}

/// Model calls that were in flight when their process died.
#[derive(Clone, Debug, Default)]
pub struct InterruptedCalls {
    /// What each is charged.
    pub settlements: Vec<Settlement>,
    /// What was reserved for them: the most they can have cost.
    pub reserved: Nanos,
}

impl InterruptedCalls {
    /// What they are charged together.
    #[must_use]
    pub fn spend(&self) -> Nanos {
        self.settlements.iter().fold(Nanos(0), |sum, settlement| sum.plus(settlement.spend))
    }

    /// Their tokens together.
    #[must_use]
    pub fn tokens(&self) -> InterruptedTokens {
        self.settlements.iter().fold(InterruptedTokens::default(), |sum, settlement| InterruptedTokens {
            input: sum.input.saturating_add(settlement.input_tokens),
            output: sum.output.saturating_add(settlement.output_tokens),
        })
    }
}

impl ThreadDriver {
    /// A thread to be driven in this process, which holds `claim` on it.
    #[must_use]
    pub fn new(
        deps: DriverDeps,
        resume: ResumePoint,
        claim: Claim,
        providers: impl Into<ProviderChain>,
        signal: CancelSignal,
    ) -> Self {
        let saved_ms = deps.clock.monotonic_ms();
        let mut transcript = resume.transcript;
        // What older threads write has no complete schema.
        if deps.journal.keeps_transcripts() {
            transcript.keep_new_in_store();
        }
        transcript.checks_payloads = resume.state.spec.template.revision >= 1;
        Self {
            deps,
            state: resume.state,
            claim,
            providers: providers.into(),
            signal,
            transcript,
            in_flight: InFlight::default(),
            unsettled: resume.interrupted.settlements,
            redacted: RedactionTally::default(),
            is_marked_running: false,
            is_state_dirty: false,
            saved_ms,
            written_ms: saved_ms,
            timer: WorkTimer::default(),
        }
    }

    /// Drives it from `first` until it ends or stops.
    ///
    /// # Errors
    /// When its records cannot be written; it then stands where the journal ends.
    pub async fn run(mut self, first: ThreadEvent) -> Result<(ThreadOutcome, ThreadState), DriverError> {
        let mut event = first;
        loop {
            self.handle(event).await?;
            self.in_flight.ack_written();
            if let Some(outcome) = self.state.outcome() {
                let outcome = outcome.clone();
                return Ok((outcome, self.state));
            }
            event = self.next_event().await?;
        }
    }
}

/// As [`replay`], with the transcript brought up to where the journal ends. `expected` is the last event the store knows of:
/// where the lines that are there do not lead to it and the journal does, they are not the thread's own. `None` then, and
/// nothing is written.
///
/// # Errors
/// When a record cannot be read or the transcript cannot be written.
pub fn replay_with_transcript(
    spec: Arc<ThreadSpec>,
    records: &[JournalRecord],
    folder: &std::path::Path,
    expected: Option<TranscriptHead>,
) -> std::io::Result<Option<(ThreadState, TranscriptWriter)>> {
    let id = spec.instance.thread_id.clone();
    let (mut transcript, cut) = TranscriptWriter::open(folder, &id)?;
    let state = replay_into(&mut transcript, Arc::clone(&spec), records)?;
    if expected.is_some() && transcript.head() != expected {
        let mut rebuilt = TranscriptWriter::without_file(&id);
        replay_into(&mut rebuilt, spec, records)?;
        let is_foreign = rebuilt.head() == expected;
        rebuilt.discard();
        if is_foreign {
            transcript.discard();
            return Ok(None);
        }
    }
    transcript.apply_cut(cut.as_ref())?;
    transcript.release();
    transcript.write()?;
    Ok(Some((state, transcript)))
}

/// Feeds records back to a fresh machine, and the lines that follow from them to a transcript.
fn replay_into(
    transcript: &mut TranscriptWriter,
    spec: Arc<ThreadSpec>,
    records: &[JournalRecord],
) -> std::io::Result<ThreadState> {
    let mut state = ThreadState::new(spec);
    for record in records {
        let event: ThreadEvent = serde_json::from_slice(&record.body).map_err(std::io::Error::other)?;
        let effects = step(&mut state, record.at_ms, event);
        transcript.replay_record(&state, record, effects);
    }
    Ok(state)
}

/// Writes the files of a thread that is not at work again, from its journal: the lines that its transcript lacks, a
/// checkpoint behind them if there is a `signer`, and `state.json`. Nothing is written if the journal does not lead to `expected`, the last event
/// the store knows of.
///
/// # Errors
/// When a record cannot be read or a file cannot be written.
pub fn rebuild_files(
    spec: Arc<ThreadSpec>,
    records: &[JournalRecord],
    folder: &std::path::Path,
    expected: Option<TranscriptHead>,
    now_ms: u64,
    signer: Option<&TranscriptSigner>,
) -> std::io::Result<bool> {
    let (mut transcript, cut) = TranscriptWriter::open(folder, &spec.instance.thread_id)?;
    let state = replay_into(&mut transcript, spec, records)?;
    if transcript.head() != expected {
        transcript.discard();
        return Ok(false);
    }
    transcript.apply_cut(cut.as_ref())?;
    if let Some(signer) = signer {
        transcript.seal(state.cost.turns, true, now_ms, signer);
    }
    transcript.release();
    transcript.write()?;
    transcript.write_state(&state, now_ms)?;
    Ok(true)
}

/// Feeds records back to a fresh machine.
///
/// # Errors
/// When a record cannot be read.
pub fn replay(spec: Arc<ThreadSpec>, records: &[JournalRecord]) -> Result<ThreadState, serde_json::Error> {
    let mut state = ThreadState::new(spec);
    for record in records {
        let event: ThreadEvent = serde_json::from_slice(&record.body)?;
        let _ = step(&mut state, record.at_ms, event);
    }
    Ok(state)
}

/// What calls that were in flight when their process died are charged: the prompt of the one the machine was waiting for
/// and what had `arrived` of its answer, and nothing more than was reserved.
#[must_use]
pub fn interrupted_calls(state: &ThreadState, open: &[Reservation], arrived: &str) -> InterruptedCalls {
    let usage = state.charged_usage(arrived);
    let settlement = |reservation: &Reservation| Settlement {
        call: reservation.call,
        spend: state.spend_so_far(&usage, reservation.spend),
        input_tokens: usage.input_tokens,
        output_tokens: usage.output_tokens,
        is_unknown: true,
        attribution: state.spec.attribution(),
    };
    InterruptedCalls {
        settlements: open.iter().map(settlement).collect(),
        reserved: open.iter().fold(Nanos(0), |sum, reservation| sum.plus(reservation.spend)),
    }
}
