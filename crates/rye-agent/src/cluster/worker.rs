//! A worker: takes submitted threads that fit what it offers, runs a bounded number of them, and gives them back when it
//! ends. One look at the store serves all of its trees.

mod drive;
mod pool;
mod take;

pub use drive::DriveOutcome;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lillux::file::{LockedTempDir, TempDirPool};
use lillux::process::Launcher;
use rye_engine::{Code, Engine, Error, Result, WallClock};
use rye_item::text::one_line;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::checkout::{GIT_LABEL, SNAPSHOT_LABEL, check_fetch_prefix};
use super::labels::{WORKER_HOST, WorkerOffer, WorkerProcess, offered_labels, parse_label, secret_label};
use super::submission::KnownSubmissions;
use super::tree::WorkerTree;
use crate::driver::MillisClock;
use crate::store::{
    ClaimPolicy, CurrentKeys, Owner, SHARED_LEASE_MS, SharedStoreConfig, StoreHandle, current_owner,
    open_shared,
};
use crate::thread_id::ThreadId;
use crate::threads::{WorkerPlace, ledger_spec};
use pool::WorkerPool;

/// How often it is looked whether the store has changed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// How often the store is asked though it has not said that it changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How often the worker says that it is there, and renews its leases.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// How long a tree without a thread at work stays open.
const TREE_TTL: Duration = Duration::from_secs(5);

/// What a worker is started with.
pub struct WorkerSetup {
    /// Its name, which no other worker of the store has.
    pub name: String,
    /// The store.
    pub config: SharedStoreConfig,
    /// Labels of its own.
    pub labels: Vec<String>,
    /// Secrets that it offers, by name: variables of its environment.
    pub secrets: Vec<String>,
    /// Places from which it fetches the repositories that submissions name.
    pub allowed_checkout_prefixes: Vec<String>,
    /// How many trees, and of each level below how many threads, run at once.
    pub max_threads: usize,
    /// How long threads may take to end when the worker ends.
    pub drain_timeout: Duration,
    /// The engine of the worker's own user space, outside any project.
    pub engine: Arc<Engine>,
    /// The process environment.
    pub environment: BTreeMap<String, String>,
    /// The user's home.
    pub home: PathBuf,
    /// Starts the processes of tools.
    pub launcher: Launcher,
    /// Folders for temporary files.
    pub temporary_folders: TempDirPool,
    /// The clock of threads.
    pub clock: Arc<dyn MillisClock>,
    /// The clock of engines.
    pub engine_clock: fn() -> Box<dyn WallClock>,
    /// Hears what the worker does, a line each.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

/// How a worker stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkerStatus {
    /// Its name.
    pub name: String,
    /// Whether the store can be reached.
    pub is_healthy: bool,
    /// Whether it takes no more.
    pub is_draining: bool,
    /// Threads at work.
    pub running: usize,
    /// Trees that are open.
    pub trees: usize,
    /// Threads that it took.
    pub taken: u64,
    /// Threads that it refused.
    pub refused: u64,
    /// Threads that another process took from it.
    pub lost: u64,
}

/// When a worker looks for threads that wait.
#[derive(Clone, Copy)]
enum TakePolicy {
    /// Whenever the store has changed, and now and then in any case.
    WhenChanged,
    /// So often: it is called for what waits, and this is for what could not be handed over.
    Every(Duration),
    /// Not at all: it is called.
    Never,
}

/// A place of a thread among those of its level.
struct ReservedPlace {
    level: u64,
    /// Whether the thread runs: until then the place is kept.
    is_taken: bool,
}

/// A worker at work.
pub struct Worker {
    setup: Arc<WorkerSetup>,
    place: WorkerPlace,
    trees_dir: LockedTempDir,
    labels: BTreeSet<String>,
    trees: Mutex<HashMap<ThreadId, Arc<WorkerTree>>>,
    openings: Mutex<HashMap<ThreadId, Arc<tokio::sync::Mutex<()>>>>,
    bodies: Mutex<KnownSubmissions>,
    /// Why nothing is taken, as it was last logged.
    problem: Mutex<Option<String>>,
    refusals: Mutex<HashMap<ThreadId, Instant>>,
    /// A place for each thread that was taken, or may be.
    places: Mutex<HashMap<ThreadId, ReservedPlace>>,
    is_healthy: AtomicBool,
    is_draining: AtomicBool,
    taken: AtomicU64,
    refused: AtomicU64,
    lost: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Worker {
    /// Opens a worker. It blocks.
    ///
    /// # Errors
    /// When the store cannot be opened, a secret is not set, or a label is none.
    pub fn open(setup: WorkerSetup) -> Result<Arc<Self>> {
        let engine = &setup.engine;
        let mut labels = offered_labels(engine, &setup.environment);
        for label in &setup.labels {
            labels.insert(parse_label(label)?);
        }
        for secret in &setup.secrets {
            let is_set = setup.environment.get(secret).is_some_and(|value| !value.is_empty());
            if !is_set {
                let message = format!("the secret `{}` is not set in the environment", one_line(secret));
                return Err(Error::new(Code::InvalidArgument, message)
                    .hint("set the variable for the worker, or do not offer it"));
            }
            labels.insert(parse_label(&secret_label(secret))?);
        }
        labels.insert(parse_label(&format!("worker:{}", setup.name))?);
        labels.insert(SNAPSHOT_LABEL.to_owned());
        for place in &setup.allowed_checkout_prefixes {
            check_fetch_prefix(place)?;
            labels.insert(GIT_LABEL.to_owned());
        }
        let config = crate::config::load(&engine.workspace)?;
        let roots = &engine.workspace.roots;
        let clock = Arc::clone(&setup.clock);
        let now_ms = Arc::new(move || clock.now_ms());
        let store = open_shared(engine, &setup.config, &roots.threads_dir(), &ledger_spec(&config), now_ms)?;
        let signing_key = engine.signing_key()?;
        // Leases of workers are judged by the name, as those of machines are.
        let owner = Owner { host: format!("{WORKER_HOST}{}", setup.name), ..current_owner() };
        let parent = setup.config.cache_dir(roots);
        let trees_dir = LockedTempDir::new(&parent, "trees-")?;
        let place = WorkerPlace {
            store: Arc::new(store),
            signing_key: Arc::new(signing_key),
            owner,
            stop_recorder: None,
        };
        Ok(Arc::new(Self {
            setup: Arc::new(setup),
            place,
            trees_dir,
            labels,
            trees: Mutex::default(),
            openings: Mutex::default(),
            bodies: Mutex::default(),
            problem: Mutex::default(),
            refusals: Mutex::default(),
            places: Mutex::default(),
            is_healthy: AtomicBool::new(true),
            is_draining: AtomicBool::new(false),
            taken: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }))
    }

    /// What it offers.
    #[must_use]
    pub fn labels(&self) -> &BTreeSet<String> {
        &self.labels
    }

    /// How it stands.
    #[must_use]
    pub fn status(&self) -> WorkerStatus {
        let trees = lock(&self.trees);
        WorkerStatus {
            name: self.setup.name.clone(),
            is_healthy: self.is_healthy.load(Ordering::Relaxed),
            is_draining: self.is_draining.load(Ordering::Relaxed),
            running: trees.values().map(|tree| tree.threads.running_count()).sum(),
            trees: trees.len(),
            taken: self.taken.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            lost: self.lost.load(Ordering::Relaxed),
        }
    }

    fn store(&self) -> &StoreHandle {
        &self.place.store.store
    }

    /// The keys that count now.
    fn keys(&self) -> Arc<CurrentKeys> {
        self.setup.config.keys.current()
    }

    /// Why nothing may be taken, if that is so: the settings or the own key cannot be used. It is logged once.
    fn problem(&self) -> Option<String> {
        let problem = self.keys().problem.clone();
        let mut last = lock(&self.problem);
        if let Some(problem) = problem.as_ref().filter(|_| *last != problem) {
            self.log(&format!("nothing is taken: {problem}"));
        }
        *last = problem;
        last.clone()
    }

    pub(super) fn log(&self, line: &str) {
        (self.setup.log)(&one_line(line));
    }

    /// Its name.
    #[cfg(feature = "restate")]
    pub(super) fn name(&self) -> String {
        one_line(&self.setup.name)
    }

    /// The clock of its threads.
    #[cfg(feature = "restate")]
    pub(super) fn clock(&self) -> Arc<dyn MillisClock> {
        Arc::clone(&self.setup.clock)
    }

    /// Hands over what waits: Restate may not have known of workers, or been there, when it began to.
    #[cfg(feature = "restate")]
    pub(super) async fn hand_over_waiting(&self) {
        let pool = self.pool();
        let _ = tokio::task::spawn_blocking(move || pool.hand_over_all()).await;
    }

    /// Where threads are left that no thread waits for.
    fn pool(&self) -> WorkerPool {
        let (clock, log) = (Arc::clone(&self.setup.clock), Arc::clone(&self.setup.log));
        WorkerPool { place: self.place.clone(), clock, log }
    }

    /// Works until `drain` is cancelled; then its threads end, or are given back.
    ///
    /// # Errors
    /// When another worker of its name is at work, or it cannot be called where its settings say that it is.
    pub async fn run(self: &Arc<Self>, drain: &CancellationToken) -> Result<()> {
        self.refuse_namesake().await?;
        let Some(dispatch) = self.place.store.dispatch.clone() else {
            self.work(drain, TakePolicy::WhenChanged).await;
            return Ok(());
        };
        self.heartbeat().await;
        let policy = dispatch.poll_interval().map_or(TakePolicy::Never, TakePolicy::Every);
        let serving = dispatch.serve(Arc::clone(self), drain.clone());
        tokio::pin!(serving);
        let working = self.work(drain, policy);
        tokio::pin!(working);
        tokio::select! {
            () = &mut working => Ok(()),
            served = &mut serving => {
                served?;
                working.await;
                Ok(())
            }
        }
    }

    async fn work(self: &Arc<Self>, drain: &CancellationToken, policy: TakePolicy) {
        let (mut looked_at, mut beaten_at): (Option<Instant>, Option<Instant>) = (None, None);
        let (mut taken_at, mut version): (Option<Instant>, _) = (None, None);
        while !drain.is_cancelled() {
            let is_due =
                |at: Option<Instant>, interval: Duration| at.is_none_or(|at| at.elapsed() >= interval);
            if is_due(beaten_at, HEARTBEAT_INTERVAL) {
                beaten_at = Some(Instant::now());
                self.heartbeat().await;
            }
            let now = self.store().shared().data_version().await.ok();
            if now != version || is_due(looked_at, LOOK_INTERVAL) {
                version = now;
                looked_at = Some(Instant::now());
                self.end_cancelled().await;
                let takes = match policy {
                    TakePolicy::WhenChanged => true,
                    TakePolicy::Every(interval) => is_due(taken_at, interval),
                    TakePolicy::Never => false,
                };
                if takes {
                    taken_at = Some(Instant::now());
                    self.take_waiting().await;
                }
                self.close_idle_trees();
            }
            tokio::select! {
                () = drain.cancelled() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
        self.drain().await;
    }

    /// Two workers of one name would take each other for themselves.
    async fn refuse_namesake(&self) -> Result<()> {
        let now_ms = self.setup.clock.now_ms();
        let known = self.store().shared().workers().await?;
        let namesake = known.iter().find(|worker| {
            worker.name == self.setup.name && worker.seen_ms.saturating_add(SHARED_LEASE_MS) > now_ms
        });
        let Some(namesake) = namesake else { return Ok(()) };
        let offer: WorkerOffer = serde_json::from_str(&namesake.body).unwrap_or_default();
        // One of this machine that is gone is this worker, started again.
        if offer.host == current_owner().host && !self.is_namesake_alive(&offer) {
            return Ok(());
        }
        let name = one_line(&self.setup.name);
        let message = format!("a worker `{name}` is at work on {}", one_line(&offer.host));
        Err(Error::new(Code::StoreUnusable, message)
            .hint("give this one another name: rye worker --name NAME"))
    }

    fn is_namesake_alive(&self, offer: &WorkerOffer) -> bool {
        offer.process.as_ref().is_some_and(|process| !process.is_gone())
    }

    async fn heartbeat(&self) {
        let status = self.status();
        let offer = WorkerOffer {
            rye: env!("CARGO_PKG_VERSION").to_owned(),
            host: current_owner().host,
            process: Some(WorkerProcess::current()),
            labels: self.labels.clone(),
            max_threads: self.setup.max_threads,
            running: status.running,
            is_draining: status.is_draining,
            users: self.keys().users.iter().map(|key| key.fingerprint().to_string()).collect(),
        };
        let body = serde_json::to_string(&offer).unwrap_or_default();
        let now_ms = self.setup.clock.now_ms();
        let store = self.store().shared();
        let noted = store.put_worker(&self.setup.name, &body, now_ms).await;
        self.is_healthy.store(noted.is_ok(), Ordering::Relaxed);
        let mut claims = Vec::new();
        for tree in self.open_trees() {
            claims.extend(tree.threads.claims());
        }
        if claims.is_empty() {
            return;
        }
        for (id, claim) in store.heartbeat(claims, now_ms).await.unwrap_or_default() {
            self.lost.fetch_add(1, Ordering::Relaxed);
            self.log(&format!("{id} was taken by another process"));
            for tree in self.open_trees() {
                tree.threads.drop_lost(&id, claim).await;
            }
        }
    }

    fn open_trees(&self) -> Vec<Arc<WorkerTree>> {
        lock(&self.trees).values().cloned().collect()
    }

    /// Ends what was asked to end.
    async fn end_cancelled(&self) {
        let trees = self.open_trees();
        if trees.iter().any(|tree| tree.threads.running_count() > 0) {
            for request in self.store().shared().cancel_requests().await.unwrap_or_default() {
                for tree in &trees {
                    // It stays until the thread has ended.
                    let _ = tree.threads.cancel_local(&request.thread, &request.reason);
                }
            }
        }
    }

    /// Takes what waits.
    async fn take_waiting(self: &Arc<Self>) {
        if self.problem().is_some() {
            self.is_healthy.store(false, Ordering::Relaxed);
            return;
        }
        let policy = ClaimPolicy::Expired { now_ms: self.setup.clock.now_ms(), lease_ms: SHARED_LEASE_MS };
        match self.store().shared().submitted(&self.place.owner, policy, None).await {
            Ok(mut waiting) => {
                self.is_healthy.store(true, Ordering::Relaxed);
                // Workers that begin at different places stand less in each other's way.
                let start = usize::try_from(std::process::id()).unwrap_or(0) % waiting.len().max(1);
                waiting.rotate_left(start);
                self.consider_all(waiting).await;
            }
            Err(error) => {
                self.is_healthy.store(false, Ordering::Relaxed);
                self.log(&format!("the store cannot be read: {error}"));
            }
        }
    }

    fn close_idle_trees(&self) {
        let mut trees = lock(&self.trees);
        trees.retain(|_, tree| {
            let is_used = tree.threads.running_count() > 0 || Arc::strong_count(tree) > 1;
            if is_used {
                *lock(&tree.last_used) = Instant::now();
            }
            is_used || lock(&tree.last_used).elapsed() < TREE_TTL
        });
        let running: BTreeSet<ThreadId> =
            trees.values().flat_map(|tree| tree.threads.claims()).map(|(id, _)| id).collect();
        lock(&self.places).retain(|id, place| !place.is_taken || running.contains(id));
        lock(&self.openings).retain(|_, opening| Arc::strong_count(opening) > 1);
    }

    /// Takes nothing more, waits for what runs, and gives back what takes too long.
    async fn drain(self: &Arc<Self>) {
        self.is_draining.store(true, Ordering::Relaxed);
        self.log("ending: no more threads are taken");
        let deadline = Instant::now() + self.setup.drain_timeout;
        let mut beaten_at: Option<Instant> = None;
        while self.status().running > 0 && Instant::now() < deadline {
            if beaten_at.is_none_or(|at| at.elapsed() >= HEARTBEAT_INTERVAL) {
                beaten_at = Some(Instant::now());
                self.heartbeat().await;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        let left = self.status().running;
        if left > 0 {
            self.log(&format!("giving {left} threads back to other workers"));
        }
        let mut given = Vec::new();
        for tree in self.open_trees() {
            given.extend(tree.threads.give_back().await);
        }
        let pool = self.pool();
        // What was not called for here is not called for elsewhere by itself.
        let _ = tokio::task::spawn_blocking(move || pool.hand_over(&given)).await;
        let now_ms = self.setup.clock.now_ms();
        if let Err(error) = self.store().shared().put_worker(&self.setup.name, "", now_ms).await {
            self.log(&format!("the store was not told of the end: {error}"));
        }
    }
}
