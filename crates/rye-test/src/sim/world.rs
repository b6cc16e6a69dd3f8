//! What all hosts of a simulation share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lillux::SecretKey;
use rye_agent::callback::TokenIssuer;
use rye_agent::driver::MillisClock;
use rye_agent::redact::Redactor;
use rye_agent::threads::ProviderBackoff;
use rye_agent::transcript::TranscriptSigner;
use rye_store::{Claim, StoreHandle};
use rye_thread::capability::Capabilities;
use rye_thread::limits::ThreadLimits;
use rye_thread::money::Nanos;
use rye_thread::spec::{ThreadInstance, ThreadSpec};
use rye_thread::thread_id::ThreadId;
use serde_json::Map;
use tokio::time::Instant;

use super::checker::Checker;
use super::host::Process;
use super::rng::SimRng;
use super::scenario::Scenario;
use super::templates::template;
use super::{SimOptions, SimReport};

/// How long a lease lasts after a heartbeat.
pub(super) const LEASE_MS: u64 = 30_000;

pub(super) struct World {
    pub(super) rng: SimRng,
    pub(super) options: SimOptions,
    pub(super) store: StoreHandle,
    pub(super) threads_dir: PathBuf,
    pub(super) scenario: Scenario,
    pub(super) signer: Arc<TranscriptSigner>,
    pub(super) token_issuer: Arc<TokenIssuer>,
    pub(super) redactor: Arc<Redactor>,
    started: Instant,
    pub(super) checker: Mutex<Checker>,
    /// The latest claim of each thread.
    pub(super) claims: Mutex<BTreeMap<ThreadId, Claim>>,
    pub(super) processes: Mutex<Vec<Arc<Process>>>,
    /// How long a person waits before a thread is resumed that no provider answered.
    pub(super) backoffs: Mutex<BTreeMap<ThreadId, ProviderBackoff>>,
    report: Mutex<SimReport>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(seed: u64, options: SimOptions, store: StoreHandle, threads_dir: &Path) -> Self {
        let rng = SimRng::new(seed);
        Self {
            scenario: Scenario::new(&rng),
            rng,
            options,
            store,
            threads_dir: threads_dir.to_owned(),
            signer: Arc::new(TranscriptSigner::new(signing_key())),
            token_issuer: Arc::new(TokenIssuer::new(signing_key())),
            redactor: redactor(),
            started: Instant::now(),
            checker: Mutex::default(),
            claims: Mutex::default(),
            processes: Mutex::default(),
            backoffs: Mutex::default(),
            report: Mutex::default(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.scenario.epoch_ms + u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Writes down what happened.
    pub(super) fn trace(&self, line: std::fmt::Arguments<'_>) {
        let at = self.now_ms() - self.scenario.epoch_ms;
        lock(&self.report).trace.push(format!("{at} {line}"));
    }

    /// Writes down what must not happen.
    pub(super) fn violation(&self, what: String) {
        self.trace(format_args!("VIOLATION {what}"));
        lock(&self.report).violations.push(what);
    }

    /// Changes the numbers of the report.
    pub(super) fn count(&self, change: impl FnOnce(&mut SimReport)) {
        change(&mut lock(&self.report));
    }

    pub(super) fn report(&self) -> SimReport {
        std::mem::take(&mut lock(&self.report))
    }

    /// The number of the next write to the store.
    pub(super) fn next_write(&self) -> u64 {
        let mut report = lock(&self.report);
        report.writes += 1;
        report.writes - 1
    }

    pub(super) fn crashes(&self) -> u64 {
        lock(&self.report).crashes
    }

    /// Waits between `low` and `high` milliseconds.
    pub(super) async fn pause(&self, low: u64, high: u64) {
        let ms = self.rng.range(low, high);
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    /// A thread to start: a root with a cap that may be too low, or a child below it.
    pub(super) fn new_spec(&self, id: ThreadId, parent: Option<&ThreadSpec>) -> Arc<ThreadSpec> {
        let limits = ThreadLimits {
            turns: Some(self.rng.range(2, 8)),
            tokens: None,
            spend: match parent {
                None => Some(Nanos(self.rng.range(40_000, 900_000))),
                Some(_) => self.rng.chance(500).then(|| Nanos(self.rng.range(20_000, 200_000))),
            },
            spawns: Some(4),
            depth: Some(if parent.is_none() { 2 } else { 1 }),
            duration_seconds: Some(self.rng.range(600, 3600)),
        };
        let instance = ThreadInstance {
            thread_id: id,
            parent: parent.map(|parent| parent.instance.thread_id.clone()),
            prompt: "Do it.".to_owned(),
            inputs: Map::new(),
            actions: Vec::new(),
            limits,
            capabilities: capabilities(),
            continuation_of: None,
            forked_from: None,
            files: Vec::new(),
            history: Vec::new(),
            message: None,
            spawn_reason: None,
            depth: 0,
            cannot_suspend: false,
            removed_secrets: None,
        };
        let (kind, has_fallback) = (self.scenario.hooks, self.scenario.has_fallback);
        Arc::new(ThreadSpec { instance, template: template(kind, has_fallback, parent.is_some()) })
    }

    /// A name for a root thread.
    pub(super) fn new_id(&self) -> ThreadId {
        let [_, _, bytes @ ..] = self.rng.next().to_be_bytes();
        ThreadId::from_random(bytes)
    }
}

impl MillisClock for World {
    fn now_ms(&self) -> u64 {
        self.now_ms()
    }
}

fn signing_key() -> SecretKey {
    SecretKey::from_seed(&[9; 32])
}

fn redactor() -> Arc<Redactor> {
    static REDACTOR: OnceLock<Arc<Redactor>> = OnceLock::new();
    Arc::clone(REDACTOR.get_or_init(|| Arc::new(Redactor::new(&BTreeMap::new(), |_| false))))
}

/// The one key that signs transcripts here.
pub(super) fn public_key() -> lillux::PublicKey {
    signing_key().public_key()
}

fn capabilities() -> Capabilities {
    static CAPABILITIES: OnceLock<Capabilities> = OnceLock::new();
    let parse = || {
        Capabilities::parse(["rye.execute.tool.sim.*", "rye.execute.tool.rye.agent.threads.*"])
            .expect("capabilities")
    };
    CAPABILITIES.get_or_init(parse).clone()
}
