//! The threads of one space in this process: started, resumed, cancelled, waited for.
//!
//! The store is the truth about every thread; what is kept here only makes it quick: who runs in this process, how each
//! is asked to end, and who waits for it.

mod answer;
mod background;
mod children;
mod continuation;
mod coordinate;
mod people;
mod replay;
mod resume;
mod start;
mod transcripts;
mod watch;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rye_engine::{Engine, Result};
use rye_model::Pool;
use rye_space::stamp::Stamp;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::sync::watch::{Receiver, Sender};

use crate::config::{Config, LedgerSchema, OrphanDetection};
use crate::cost::Cost;
use crate::dispatch::{Dispatch, EngineDispatch};
use crate::door::Issuer;
use crate::driver::{Clock, Doors, DriveError, Journal, Later, Listener, Signal};
use crate::limits::Limits;
use crate::machine::Outcome;
use crate::prepare;
use crate::redact::Redactor;
use crate::spec::Spec;
use crate::store::{
    Claim, Column, Commit, Committed, Index, LedgerSpec, Owner, Prune, Secret, Store, StoreError,
};
use crate::thread_id::ThreadId;
use crate::transcript::Signer;

pub use answer::{async_answer, sync_answer};
pub use background::{Background, Left, Reached, Taken};
pub use coordinate::Waiting;
pub use people::Ended;
pub use resume::Changes;
pub use watch::Watching;

/// The engine as it is now: opened anew when what it was opened from has changed.
pub type EngineDoor = Arc<dyn Fn() -> Result<Arc<Engine>> + Send + Sync>;

/// How much that blocks is done at once, besides waiting for others: more would only be more that waits for a processor.
const AT_ONCE: usize = 4;

/// What the threads of a space need.
#[derive(Clone)]
pub struct Setup {
    /// The engine.
    pub engine: EngineDoor,
    /// The process environment: providers' keys are in it.
    pub environment: BTreeMap<String, String>,
    /// Who hears of every thread.
    pub listener: Option<Arc<dyn Listener>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// `.ai/threads` of the space.
    pub folder: PathBuf,
    /// Who runs threads that nobody waits for; without anybody they run in this process.
    pub background: Option<Arc<dyn Background>>,
}

/// The threads of one space. Clones are the same threads.
#[derive(Clone)]
pub struct Threads {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    setup: Setup,
    store: Store,
    signer: Arc<Signer>,
    tokens: Arc<Issuer>,
    redactor: Mutex<Known>,
    owner: Owner,
    orphans: OrphanDetection,
    live: Mutex<HashMap<ThreadId, Live>>,
    /// Threads that stopped here to ask a person.
    asking: Mutex<HashSet<ThreadId>>,
    dispatch: Arc<EngineDispatch>,
    /// Work that blocks, preparing and calling tools, is done by so many at once.
    turns: Arc<Semaphore>,
    orders: prepare::Kinds,
    kinds: start::Kinds,
    providers: Pool,
    /// When it was last looked whether old threads are to be forgotten.
    looked: Mutex<Option<Instant>>,
}

/// What must not be written, and the `.env` it was worked out from.
struct Known {
    redactor: Arc<Redactor>,
    path: Option<PathBuf>,
    dotenv: Option<Stamp>,
}

impl Known {
    fn of(engine: &Engine) -> Result<Self> {
        let path = engine.workspace.roots.project.as_ref().map(|project| project.join(".env"));
        // Looked at before it is read: a change in between is noticed the next time.
        let dotenv = stamp(path.as_deref());
        Ok(Self { redactor: Arc::new(Redactor::of(engine)?), path, dotenv })
    }
}

fn stamp(path: Option<&Path>) -> Option<Stamp> {
    path.and_then(|path| path.metadata().ok()).map(|found| Stamp::of(&found))
}

/// A thread at work in this process.
struct Live {
    /// How much it may use: a person may have allowed more since it began.
    limits: Limits,
    signal: Signal,
    /// What says that it is this process's.
    claim: Claim,
    /// How it is ended by force.
    task: Option<tokio::task::AbortHandle>,
}

/// How a thread ended or why it stopped, with what it used.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What it used itself.
    pub cost: Cost,
}

/// A thread that was started or resumed.
#[derive(Debug)]
pub struct Started {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// What its user should know.
    pub notices: Vec<String>,
    finished: Receiver<Option<Arc<Finished>>>,
}

impl Started {
    /// Ready when it has ended or stopped.
    pub(crate) fn watch(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut finished = self.finished.clone();
        async move { drop(finished.wait_for(Option::is_some).await) }
    }

    /// Waits until it ends or stops.
    pub async fn finished(mut self) -> Option<Arc<Finished>> {
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
    pub fn open(setup: Setup) -> Result<Self> {
        let engine = (setup.engine)()?;
        // Ending a thread must not wait until a file is mended; starting one reads them again, and minds.
        let (config, orders) = match crate::config::load(&engine.workspace) {
            Ok(config) => (config.clone(), prepare::Kinds::with(config)),
            Err(_) => (crate::config::load_readable(&engine.workspace)?, prepare::Kinds::default()),
        };
        let keys = engine.workspace.roots.signing_keys.clone();
        let secret = Secret::load_or_create(&keys)?;
        let signer = Arc::new(Signer::new(engine.signing_key().unwrap_or_else(|_| secret.transcript_key())));
        let tokens = Arc::new(Issuer::new(secret.token_key()));
        let store = Store::open(&setup.folder, &secret, &ledger_spec(&config))?;
        let redactor = Mutex::new(Known::of(&engine)?);
        let setup = Setup { engine: remembering(setup.engine), ..setup };
        let door = Arc::clone(&setup.engine);
        let dispatch = Arc::new(EngineDispatch::with(move || door()));
        let inner = Inner {
            setup,
            store,
            signer,
            tokens,
            redactor,
            owner: Owner::current(),
            orphans: config.coordination.orphan_detection,
            live: Mutex::default(),
            asking: Mutex::default(),
            dispatch,
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            orders,
            kinds: start::Kinds::default(),
            providers: Pool::default(),
            looked: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The store, for those who look.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Asks a thread of this process to end; whether it runs here.
    #[must_use]
    pub fn cancel_here(&self, id: &ThreadId, reason: &str) -> bool {
        self.inner.cancel_here(id, reason)
    }

    /// How many threads run in this process.
    #[must_use]
    pub fn live_count(&self) -> usize {
        self.inner.live().len()
    }

    /// Asks every thread of this process to end.
    pub fn cancel_all(&self, reason: &str) {
        for live in self.inner.live().values() {
            live.signal.cancel(reason);
        }
    }
}

impl Inner {
    fn live(&self) -> MutexGuard<'_, HashMap<ThreadId, Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asking(&self) -> MutexGuard<'_, HashSet<ThreadId>> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel_here(&self, id: &ThreadId, reason: &str) -> bool {
        match self.live().get(id) {
            Some(live) => {
                live.signal.cancel(reason);
                true
            }
            None => false,
        }
    }

    fn doors(self: &Arc<Self>, id: &ThreadId) -> Doors {
        Doors {
            journal: Arc::clone(self) as Arc<dyn Journal>,
            dispatch: Arc::clone(&self.dispatch) as Arc<dyn Dispatch>,
            children: Arc::clone(self) as Arc<dyn crate::driver::Children>,
            listener: self.setup.listener.clone(),
            clock: Arc::clone(&self.setup.clock),
            redactor: self.redactor(),
            signer: Arc::clone(&self.signer),
            tokens: Arc::clone(&self.tokens),
            folder: self.setup.folder.clone(),
            turns: Arc::clone(&self.turns),
            budget: Some(Arc::new(answer::Ledger(self.store.clone()))),
            artifacts: Some(Arc::new(answer::Shelf(
                self.store.clone(),
                id.clone(),
                self.setup.clock.now_ms(),
            ))),
        }
    }

    /// A thread and those above it to the top: who asks, for a person.
    fn line_of(&self, id: &ThreadId) -> Value {
        let own = self.store.thread(id).ok().flatten();
        let above = self.store.ancestors(id).unwrap_or_default();
        let line = own.into_iter().chain(above);
        line.map(|row| json!({"thread_id": row.id, "directive": row.directive})).collect()
    }

    /// What must not be written: worked out again when the project's `.env` is another than it was. What was in it before is
    /// a secret still; there may be copies.
    fn redactor(&self) -> Arc<Redactor> {
        let mut known = self.redactor.lock().unwrap_or_else(PoisonError::into_inner);
        if known.dotenv != stamp(known.path.as_deref())
            && let Ok(engine) = (self.setup.engine)()
            && let Ok(now) = Known::of(&engine)
        {
            let redactor = Arc::new(now.redactor.and(&known.redactor));
            *known = Known { redactor, ..now };
        }
        Arc::clone(&known.redactor)
    }

    /// A thread starts: those that ended long ago are forgotten once a day, beside it, if the settings say so.
    fn forget_old(&self, settings: &LedgerSchema) {
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if !settings.automatic || looked.is_some_and(|at| at.elapsed() < LOOK_AGAIN) {
            return;
        }
        *looked = Some(Instant::now());
        drop(looked);
        let prune = Prune::of_settings(settings, self.setup.clock.now_ms());
        // What fails or is cut short today is done tomorrow.
        if !self.store.is_prune_due(prune.at_ms).unwrap_or(false) {
            return;
        }
        let store = self.store.clone();
        let work = move || drop(store.prune_if_due(&prune));
        let _ = std::thread::Builder::new().name("prune".to_owned()).spawn(work);
    }

    /// How much a thread may use by now, wherever it runs.
    fn limits_of(&self, id: &ThreadId) -> Result<Limits> {
        let here = self.live().get(id).map(|live| live.limits);
        here.map_or_else(|| Ok(self.row(id)?.limits), Ok)
    }

    /// A thread begins to run here.
    fn enter(
        &self,
        id: &ThreadId,
        limits: Limits,
        signal: &Signal,
        claim: Claim,
    ) -> Sender<Option<Arc<Finished>>> {
        let (sender, _) = tokio::sync::watch::channel(None);
        let live = Live { limits, signal: signal.clone(), claim, task: None };
        self.live().insert(id.clone(), live);
        sender
    }
}

impl Journal for Inner {
    fn commit(&self, mut commit: Commit) -> Later<'_, std::result::Result<Committed, StoreError>> {
        for question in &mut commit.asks {
            question.detail["chain"] = self.line_of(&question.thread);
        }
        Box::pin(self.store.commit(commit))
    }
}

/// What a thread that could not be driven on leaves behind: an error that says so. Its record stands.
fn broken(spec: &Spec, error: &DriveError) -> Finished {
    let id = &spec.own.thread_id;
    Finished {
        thread_id: id.clone(),
        directive: spec.shared.directive.clone(),
        outcome: Outcome::failed(match error {
            DriveError::EndedElsewhere(_) => format!("the thread could not go on: {error}"),
            _ => format!(
                "the thread could not go on: {error}; `rye thread resume {id}` takes it up where it stopped"
            ),
        }),
        cost: Cost::default(),
    }
}

/// What the store must know of the ledger's schema.
fn ledger_spec(config: &Config) -> LedgerSpec {
    let columns = config.ledger.further_columns().map(|column| Column {
        name: column.name.clone(),
        kind: column.kind.as_str().to_owned(),
        is_nullable: column.nullable,
        default: column.default.clone(),
    });
    let indexes = config.ledger.indexes.iter();
    let indexes = indexes.map(|index| Index { name: index.name.clone(), columns: index.columns.clone() });
    LedgerSpec {
        columns: columns.collect(),
        indexes: indexes.collect(),
        is_clamped: config.ledger.clamp_to_reserved,
        closed_on: Some(config.ledger.release_on_status.clone()),
    }
}

/// How often a process that goes on looks whether old threads are to be forgotten.
const LOOK_AGAIN: Duration = Duration::from_secs(3600);

/// How long an engine is taken to be as it was found. A change is noticed that much later at most, as if it had been made
/// that much later.
const FRESH_FOR: Duration = Duration::from_millis(100);

/// A door that looks at the files behind the engine now and then, not at each of many calls a second.
fn remembering(door: EngineDoor) -> EngineDoor {
    let last: Mutex<Option<(Instant, Arc<Engine>)>> = Mutex::default();
    Arc::new(move || {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((found, engine)) = last.as_ref()
            && found.elapsed() < FRESH_FOR
        {
            return Ok(Arc::clone(engine));
        }
        let engine = door()?;
        *last = Some((Instant::now(), Arc::clone(&engine)));
        Ok(engine)
    })
}
