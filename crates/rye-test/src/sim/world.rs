//! What all hosts of a simulation share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use lillux::SecretKey;
use rye_agent::callback::TokenIssuer;
use rye_agent::driver::MillisClock;
use rye_agent::redact::Redactor;
use rye_agent::transcript::TranscriptSigner;
use rye_store::{Claim, StoreHandle};
use rye_thread::capability::Capabilities;
use rye_thread::definitions::{THREAD_DIRECTIVE, ToolBinding, ToolDefinitions};
use rye_thread::hooks::Hooks;
use rye_thread::limits::ThreadLimits;
use rye_thread::model::{TokenPrice, ToolDefinition};
use rye_thread::money::Nanos;
use rye_thread::spec::{ThreadInstance, ThreadSpec, ThreadTemplate};
use rye_thread::thread_id::ThreadId;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::checker::Checker;
use super::host::Process;
use super::rng::SimRng;
use super::{SimOptions, SimReport};

/// The simulation begins at this moment, in milliseconds since 1970.
const EPOCH_MS: u64 = 1_767_323_045_000;

/// How long a lease lasts after a heartbeat.
pub(super) const LEASE_MS: u64 = 30_000;

pub(super) struct World {
    pub(super) rng: SimRng,
    pub(super) options: SimOptions,
    pub(super) store: StoreHandle,
    pub(super) threads_dir: PathBuf,
    pub(super) template: Arc<ThreadTemplate>,
    pub(super) signer: Arc<TranscriptSigner>,
    pub(super) token_issuer: Arc<TokenIssuer>,
    pub(super) redactor: Arc<Redactor>,
    started: Instant,
    pub(super) checker: Mutex<Checker>,
    /// The latest claim of each thread.
    pub(super) claims: Mutex<BTreeMap<ThreadId, Claim>>,
    pub(super) processes: Mutex<Vec<Arc<Process>>>,
    report: Mutex<SimReport>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(seed: u64, options: SimOptions, store: StoreHandle, threads_dir: &Path) -> Self {
        Self {
            rng: SimRng::new(seed),
            options,
            store,
            threads_dir: threads_dir.to_owned(),
            template: template(),
            signer: Arc::new(TranscriptSigner::new(signing_key())),
            token_issuer: Arc::new(TokenIssuer::new(signing_key())),
            redactor: redactor(),
            started: Instant::now(),
            checker: Mutex::default(),
            claims: Mutex::default(),
            processes: Mutex::default(),
            report: Mutex::default(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        EPOCH_MS + u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Writes down what happened.
    pub(super) fn trace(&self, line: std::fmt::Arguments<'_>) {
        let at = self.now_ms() - EPOCH_MS;
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
        };
        Arc::new(ThreadSpec { instance, template: Arc::clone(&self.template) })
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

/// What all threads here share: the shipped configuration, two tools and children.
fn template() -> Arc<ThreadTemplate> {
    static TEMPLATE: OnceLock<Arc<ThreadTemplate>> = OnceLock::new();
    Arc::clone(TEMPLATE.get_or_init(|| {
        let config = crate::shipped_config();
        let names = [("once", "sim/once"), ("again", "sim/again"), ("child", THREAD_DIRECTIVE)];
        let names: BTreeMap<String, ToolBinding> =
            names.into_iter().map(|(name, id)| (name.to_owned(), ToolBinding::Tool(id.to_owned()))).collect();
        let definition = |name: &String| ToolDefinition {
            name: name.clone(),
            description: String::new(),
            schema: json!({"type": "object"}),
            target: Value::Null,
        };
        let definitions =
            ToolDefinitions { tools: names.keys().map(definition).collect(), names, skipped: Vec::new() };
        let hooks = Hooks::merge(&config.hooks, Some(&json!([]))).expect("hooks");
        Arc::new(ThreadTemplate {
            revision: rye_thread::spec::MACHINE_REVISION,
            directive: "sim/work".to_owned(),
            directive_hash: String::new(),
            outputs: Vec::new(),
            system: None,
            before: Vec::new(),
            after: Vec::new(),
            hooks,
            definitions,
            provider: "sim".to_owned(),
            model: "sim-model".to_owned(),
            candidates: Vec::new(),
            fallbacks: Vec::new(),
            price: Some(TokenPrice { input: 10, cached_input: 1, cache_write: 12, output: 50 }),
            context_window: 200_000,
            max_output_tokens: 100,
            settings: Arc::default(),
            wants_stream: false,
            config,
        })
    }))
}
