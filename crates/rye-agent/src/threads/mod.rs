//! The threads of one space in this process: started, resumed, cancelled, waited for.
//!
//! The store is the truth about every thread; what is kept here only makes it quick: who runs in this process, how each
//! is asked to end, and who waits for it.

mod approval_text;
mod availability;
mod background;
mod changed_transcript;
mod children;
mod continuation;
mod control;
mod driver_setup;
mod fork;
mod hand_over;
mod heartbeat;
mod needed_person;
mod notify;
mod orchestrator;
mod preparer;
mod rebuild;
mod rebuild_store;
mod records;
mod replay;
mod responses;
mod resume;
mod resume_request;
mod running;
mod start;
mod transcripts;
mod user;
mod wait;
mod worker;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lillux::SecretKey;
use rye_engine::verbs::notify::NotificationTargets;
use rye_engine::{Code, Engine, Error, Result};
use tokio::sync::watch::Receiver;

use self::children::ChildSpawner;
use self::control::{KILL_REASON, ThreadControl};
use self::driver_setup::{CommitJournal, DriverSetup};
use self::orchestrator::Orchestrator;
use self::preparer::ThreadPreparer;
use self::records::ThreadRecords;
use self::running::RunningThreads;

use crate::callback::TokenIssuer;
use crate::cluster::ThreadDispatch;
use crate::config::{LedgerSchema, OrphanDetection, ThreadConfig, WatchedConfig};
use crate::cost::Cost;
use crate::dispatch::EngineDispatcher;
use crate::driver::{CancelSignal, DriverDeps, DriverError, Listener, MillisClock, StopRecorder};
use crate::limits::ThreadLimits;
use crate::machine::ThreadOutcome;
use crate::rolling::RollingBudgets;
use crate::spec::ThreadSpec;
use crate::status::ThreadStatus;
use crate::store::{
    ColumnSpec, IndexSpec, LedgerRules, LedgerSpec, OpenedStore, Owner, PruneOptions, SharedStoreConfig,
    StoreHandle, ThreadSecret, ThreadStore, current_owner, open_configured,
};
use crate::thread_id::ThreadId;
use crate::transcript::TranscriptSigner;

pub use approval_text::ApprovalText;
pub use availability::ProviderBackoff;
pub use background::{BackgroundConnection, BackgroundHost, BackgroundThread, TakeoverReport};
pub(crate) use changed_transcript::refuse_unresumable;
pub use control::CancelOutcome;
pub use fork::{ForkOptions, fork_source};
pub use heartbeat::WatchGuard;
pub use notify::{SentNotification, sent_notifications};
pub use rebuild::rebuild_files;
pub use rebuild_store::{RebuildReport, RebuildSetup, RebuiltThread, rebuild_store};
pub use replay::{ReplayDifference, ReplayReport, ReplayedThread};
pub use responses::{NO_MODEL_NOTE, finished_response, started_response};
pub use resume::{END_THREAD, ResumeOptions, denial_reason};
pub use user::{UserPolicy, UserThreadHost, UserThreads, thread_directive_request};
pub use wait::WaitRequest;

/// The engine as it is now: opened again when what it was opened from has changed.
pub type SharedEngineProvider = Arc<dyn Fn() -> Result<Arc<Engine>> + Send + Sync>;

/// What the threads of a space need.
#[derive(Clone)]
pub struct ThreadsSetup {
    /// The engine.
    pub engine: SharedEngineProvider,
    /// The process environment: providers' keys are in it.
    pub environment: BTreeMap<String, String>,
    /// Who hears of every thread.
    pub listener: Option<Arc<dyn Listener>>,
    /// The time.
    pub clock: Arc<dyn MillisClock>,
    /// `.ai/threads` of the space.
    pub folder: PathBuf,
    /// What runs threads that are not waited for; without it they run in this process.
    pub background: Option<Arc<dyn BackgroundHost>>,
    /// The worker whose threads these are, if they are a worker's.
    pub worker: Option<WorkerPlace>,
}

/// What all trees of one worker share.
#[derive(Clone)]
pub struct WorkerPlace {
    /// The store.
    pub store: Arc<OpenedStore>,
    /// The worker's key.
    pub signing_key: Arc<SecretKey>,
    /// The worker, by which others judge whether it lives.
    pub owner: Owner,
    /// What else is recorded of threads of one tree that stop.
    pub stop_recorder: Option<Arc<dyn StopRecorder>>,
}

/// The threads of one space. Clones are the same threads.
#[derive(Clone)]
pub struct Threads {
    runtime: Arc<ThreadRuntime>,
}

/// Starts, drives and ends threads.
pub(crate) struct ThreadRuntime {
    setup: ThreadsSetup,
    /// Code of this runtime is asynchronous: what may block has the store from [`ThreadRecords::reader`].
    store: Arc<dyn ThreadStore>,
    records: Arc<ThreadRecords>,
    preparer: Arc<ThreadPreparer>,
    running: Arc<RunningThreads>,
    drivers: Arc<DriverSetup>,
    control: Arc<ThreadControl>,
    owner: Owner,
    /// Whether other machines share the store.
    is_shared: bool,
    /// What calls workers for threads that wait, if the store has that.
    dispatch: Option<Arc<dyn ThreadDispatch>>,
    orphans: OrphanDetection,
    notifications: WatchedConfig<NotificationTargets>,
    /// The version of the store when requests were last looked for.
    seen_version: AtomicI64,
    /// When it was last looked whether old threads are to be forgotten.
    prune_checked_at: Mutex<Option<Instant>>,
}

/// How a thread ended or why it stopped, with what it used.
#[derive(Clone, Debug)]
pub struct FinishedThread {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// How it ended.
    pub outcome: ThreadOutcome,
    /// What it used itself.
    pub cost: Cost,
    /// The provider it asked.
    pub provider: String,
}

/// A thread that was started or resumed.
#[derive(Debug)]
pub struct StartedThread {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// What its user should know.
    pub notices: Vec<String>,
    finished: Receiver<Option<Arc<FinishedThread>>>,
}

impl StartedThread {
    /// Ready when it has ended or stopped.
    pub(crate) fn wait_stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut finished = self.finished.clone();
        async move { drop(finished.wait_for(Option::is_some).await) }
    }

    /// Waits until it ends or stops.
    pub async fn finished(mut self) -> Option<Arc<FinishedThread>> {
        match self.finished.wait_for(Option::is_some).await {
            Ok(finished) => finished.clone(),
            Err(_) => None,
        }
    }
}

impl Threads {
    /// Opens the threads of a space; their folder is made if there is none.
    ///
    /// # Errors
    /// When the configuration is wrong, or the store or the secret cannot be used.
    pub fn open(setup: ThreadsSetup) -> Result<Self> {
        let engine = (setup.engine)()?;
        let (preparer, config) =
            ThreadPreparer::open(Arc::clone(&setup.engine), setup.environment.clone(), &engine)?;
        if setup.worker.is_none() {
            // Settings that are refused leave nothing behind.
            SharedStoreConfig::current(&engine)?;
        }
        let keys = engine.workspace.roots.signing_keys.clone();
        let secret = ThreadSecret::load_or_create(&keys)?;
        let clock = Arc::clone(&setup.clock);
        let opened = match &setup.worker {
            Some(worker) => Arc::clone(&worker.store),
            None => {
                let clock = Arc::clone(&clock);
                let now_ms = Arc::new(move || clock.now_ms());
                Arc::new(open_configured(&engine, &setup.folder, &secret, &ledger_spec(&config), now_ms)?)
            }
        };
        let signing_key = match (&setup.worker, opened.is_shared) {
            (Some(worker), _) => worker.signing_key.duplicate(),
            (None, true) => engine.signing_key()?,
            (None, false) => engine.unlocked_signing_key().unwrap_or_else(|_| secret.transcript_key()),
        };
        let signer = Arc::new(TranscriptSigner::new(signing_key));
        let tokens = Arc::new(TokenIssuer::new(secret.token_key()));
        let (store, folder) = (opened.store.clone(), opened.folder.clone());
        let setup = ThreadsSetup { folder: folder.clone(), ..setup };
        let records = Arc::new(ThreadRecords::new(Arc::clone(&opened), Arc::clone(&clock), signer));
        let (preparer, shared) = (Arc::new(preparer), Arc::clone(store.shared()));
        let journal = CommitJournal {
            store: Arc::clone(&shared),
            records: Arc::clone(&records),
            engine: Arc::clone(&setup.engine),
            clock: Arc::clone(&clock),
            rolling: RollingBudgets::default(),
        };
        let engine_provider = Arc::clone(&setup.engine);
        let drivers = Arc::new(DriverSetup {
            journal: Arc::new(journal),
            preparer: Arc::clone(&preparer),
            records: Arc::clone(&records),
            dispatcher: Arc::new(EngineDispatcher::with_provider(move || engine_provider())),
            token_issuer: tokens,
            listener: setup.listener.clone(),
            clock: Arc::clone(&clock),
            folder: folder.clone(),
            store,
            stop_recorder: setup.worker.as_ref().and_then(|worker| worker.stop_recorder.clone()),
        });
        let running = Arc::new(RunningThreads::default());
        let owner = setup.worker.as_ref().map_or_else(current_owner, |worker| worker.owner.clone());
        let control = ThreadControl {
            store: Arc::clone(&shared),
            records: Arc::clone(&records),
            running: Arc::clone(&running),
            drivers: Arc::clone(&drivers),
            owner: owner.clone(),
            clock,
            folder,
        };
        let inner = ThreadRuntime {
            setup,
            store: shared,
            records,
            preparer,
            running,
            drivers,
            control: Arc::new(control),
            owner,
            is_shared: opened.is_shared,
            dispatch: opened.dispatch.clone(),
            orphans: config.coordination.orphan_detection,
            notifications: WatchedConfig::default(),
            seen_version: AtomicI64::new(i64::MIN),
            prune_checked_at: Mutex::default(),
        };
        let runtime = Arc::new(inner);
        runtime.deliver_owed();
        Ok(Self { runtime })
    }

    /// The store, for code that may block.
    #[must_use]
    pub fn store(&self) -> &StoreHandle {
        &self.runtime.records.reader().store
    }

    /// The folder of the threads that run here.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.runtime.setup.folder
    }

    /// Asks a thread of this process to end; whether it runs here.
    #[must_use]
    pub fn cancel_local(&self, id: &ThreadId, reason: &str) -> bool {
        self.runtime.running.cancel(id, reason)
    }

    /// How many threads run in this process.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.runtime.running.count()
    }

    /// Asks every thread of this process to end.
    pub fn cancel_all(&self, reason: &str) {
        self.runtime.running.cancel_all(reason);
    }
}

impl ThreadRuntime {
    /// What the driver of this thread gets.
    fn driver_deps(self: &Arc<Self>, id: &ThreadId) -> DriverDeps {
        self.drivers.deps(id, Arc::new(ChildSpawner { runtime: Arc::clone(self) }))
    }

    /// The operations of the orchestrator on these threads.
    fn orchestrator(self: &Arc<Self>) -> Orchestrator {
        Orchestrator { runtime: Arc::clone(self) }
    }

    /// A thread starts: those that ended long ago are forgotten once a day, beside it, if the settings say so.
    fn prune_old_threads(&self, settings: &LedgerSchema) {
        let mut checked_at = self.prune_checked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if !settings.automatic || checked_at.is_some_and(|at| at.elapsed() < PRUNE_CHECK_INTERVAL) {
            return;
        }
        *checked_at = Some(Instant::now());
        drop(checked_at);
        let prune = PruneOptions::of_settings(settings, self.setup.clock.now_ms());
        let store = self.records.reader().store.clone();
        // What fails or is cut short today is done tomorrow.
        let work = move || {
            if store.is_prune_due(prune.at_ms).unwrap_or(false) {
                drop(store.prune_if_due(&prune));
            }
        };
        let _ = std::thread::Builder::new().name("prune".to_owned()).spawn(work);
    }

    /// What is said of a thread that could not be driven on here: how it ended elsewhere, if it did, else the error.
    async fn stopped_thread(
        &self,
        spec: &ThreadSpec,
        signal: &CancelSignal,
        error: &DriverError,
    ) -> FinishedThread {
        let id = &spec.instance.thread_id;
        let row = self.store.thread(id).await.ok().flatten();
        let recorded = row.as_ref().map(|row| row.status).filter(|status| status.is_terminal());
        // A process that kills it records the end as soon as this one has let go of it.
        let is_killed = signal.cancel_token.is_cancelled() && signal.reason() == KILL_REASON;
        let status = match error {
            DriverError::EndedElsewhere(status) => Some(*status),
            _ => recorded.or(is_killed.then_some(ThreadStatus::Killed)),
        };
        let mut finished = failed_thread(spec, error);
        if let Some(row) = row {
            finished.cost = row.cost;
        }
        let is_stopped =
            |status: &ThreadStatus| matches!(status, ThreadStatus::Cancelled | ThreadStatus::Killed);
        if let Some(status) = status.filter(is_stopped) {
            finished.outcome = ThreadOutcome { status, ..ThreadOutcome::failed(ENDED_ELSEWHERE) };
        }
        finished
    }

    /// How much a thread may use now, wherever it runs.
    async fn current_limits(&self, id: &ThreadId) -> Result<ThreadLimits> {
        match self.running.limits(id) {
            Some(limits) => Ok(limits),
            None => Ok(self.records.row(id).await?.limits),
        }
    }
}

/// Does what blocks where that does no harm.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::new(Code::Io, format!("it broke off: {error}"))),
    }
}

/// What a thread that could not be driven on leaves behind: an error that says so. Its record stands.
fn failed_thread(spec: &ThreadSpec, error: &DriverError) -> FinishedThread {
    let id = &spec.instance.thread_id;
    FinishedThread {
        thread_id: id.clone(),
        directive: spec.template.directive.clone(),
        outcome: ThreadOutcome::failed(match error {
            DriverError::EndedElsewhere(_) => format!("the thread could not continue: {error}"),
            _ => format!(
                "the thread could not continue: {error}; `rye thread resume {id}` takes it up where it stopped"
            ),
        }),
        cost: Cost::default(),
        provider: spec.template.provider.clone(),
    }
}

/// What the store must know of the ledger's schema.
pub(crate) fn ledger_spec(config: &ThreadConfig) -> LedgerSpec {
    let columns = config.ledger.extra_columns().map(|column| ColumnSpec {
        name: column.name.clone(),
        sql_type: column.column_type.as_str().to_owned(),
        is_nullable: column.nullable,
        default: column.default.clone(),
    });
    let indexes = config.ledger.indexes.iter();
    let indexes = indexes.map(|index| IndexSpec { name: index.name.clone(), columns: index.columns.clone() });
    LedgerSpec {
        columns: columns.collect(),
        indexes: indexes.collect(),
        rules: LedgerRules {
            clamp_to_reserved: config.ledger.clamp_to_reserved,
            release_on_status: Some(config.ledger.release_on_status.clone()),
        },
    }
}

/// What is said of a thread that another process ended while this one ran it.
const ENDED_ELSEWHERE: &str = "by another process";

/// How often a process that continues looks whether old threads are to be forgotten.
const PRUNE_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
