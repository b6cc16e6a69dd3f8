//! A project with threads in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lillux::process::Launcher;
use rye_agent::driver::{CancelSignal, Listener, MillisClock};
use rye_agent::prepare::ThreadRequest;
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{FinishedThread, Threads, ThreadsSetup};
use rye_agent::transcript;
use rye_engine::verbs::{init, sign};
use rye_engine::{Engine, EngineOptions, HostEnvironment, NativeTools};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::Roots;
use rye_test::TestContext;
use rye_test::fake_model::FakeModel;
use serde_json::{Map, Value};
use tokio::sync::Notify;

/// The key of the test's provider; it looks like one.
pub const API_KEY: &str = "sk-fake-0123456789-0123456789-0123456789";

/// How long a test waits for what must happen.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(300);

/// A moment, and a millisecond more each time it is asked.
#[derive(Default)]
pub struct TickClock(AtomicU64);

impl MillisClock for TickClock {
    fn now_ms(&self) -> u64 {
        1_767_323_045_000 + self.0.fetch_add(1, Ordering::SeqCst)
    }
}

struct FixedClock;

impl rye_engine::WallClock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        1_767_323_045
    }
}

/// Everything that was told, and a bell that rings with each of it.
#[derive(Default)]
pub struct EventLog(pub Mutex<Vec<Value>>, Notify);

impl Listener for EventLog {
    fn event(&self, envelope: &Value) {
        self.0.lock().expect("heard").push(envelope.clone());
        self.1.notify_waiters();
    }

    fn delta(&self, _thread: &str, _delta: &rye_model::ResponseDelta) {}
}

/// A project that was initialised, and its environment.
pub struct TestSpace {
    pub world: TestContext,
    pub environment: BTreeMap<String, String>,
    pub events: Arc<EventLog>,
}

impl TestSpace {
    pub fn new() -> Self {
        let world = TestContext::new();
        init::init(&roots(&world), &world.project(), "test", || Box::new(FixedClock)).expect("init");
        Self { world, environment: BTreeMap::new(), events: Arc::default() }
    }

    /// A project whose only provider with a key is this server, asked in this protocol.
    pub fn with_model(model: &FakeModel, protocol: &str) -> Self {
        let mut space = Self::new();
        space.environment.insert("FAKE_MODEL_KEY".to_owned(), API_KEY.to_owned());
        space.environment.insert("HOME".to_owned(), space.world.home().display().to_string());
        space.environment.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        space.provider(model, protocol, "pricing: {fake-1: {input: 1.00, output: 2.00}}\n");
        space
    }

    /// Writes the provider again, with these lines added.
    pub fn provider(&self, model: &FakeModel, protocol: &str, lines: &str) {
        let path = match protocol {
            "anthropic" => "v1/messages",
            _ => "v1/chat/completions",
        };
        let url = model.url();
        let text = format!(
            "version: \"1.0.0\"\ntool_type: provider\nexecutor_id: null\ncategory: rye/agent/providers/fake\nname: fake\ndescription: A server of the test\nprotocol: {protocol}\nurl: {url}/{path}\nauth: {{type: bearer, variable: FAKE_MODEL_KEY}}\ntier_mapping: {{general: fake-1}}\nmax_output_tokens: 1000\n{lines}"
        );
        self.item(ItemType::Tool, "rye/agent/providers/fake/fake", "yaml", &text);
    }

    /// Writes a file of the project's configuration and signs it.
    pub fn config(&self, name: &str, text: &str) {
        let head = format!("version: \"1.0.0\"\ncategory: agent\nname: {name}\n");
        self.item(ItemType::Config, &format!("agent/{name}"), "yaml", &format!("{head}{text}"));
    }

    /// Writes a file of the user's own configuration and signs it.
    pub fn user_config(&self, name: &str, text: &str) {
        let head = format!("version: \"1.0.0\"\ncategory: agent\nname: {name}\n");
        self.world.write(&format!("home/.ai/config/agent/{name}.yaml"), format!("{head}{text}"));
        let item = ItemRef::new(ItemType::Config, ItemId::new(format!("agent/{name}")).expect("an id"));
        sign::sign_item(&self.engine(), &item, Some(rye_item::space::SpaceTier::User)).expect("signed");
    }

    /// The failures of the shipped configuration, each tried again at once.
    pub fn set_fast_retries(&self) {
        let shipped = include_str!("../../../../bundles/standard/.ai/config/agent/error_classification.yaml");
        let patterns = shipped.split_once("\npatterns:").expect("patterns").1;
        let patterns = patterns.split_once("\ndefault:").expect("the rest").0;
        let patterns = patterns.replace("base: 2.0", "base: 0.001").replace("base: 3.0", "base: 0.001");
        let patterns = patterns.replace("{ policy: rate_limited }", "{ type: fixed, delay: 0.001 }");
        self.config("error_classification", &format!("patterns:{patterns}\n"));
    }

    pub fn engine(&self) -> Arc<Engine> {
        Arc::new(self.open_engine(Box::new(FixedClock)).expect("engine"))
    }

    /// An engine with this clock.
    pub fn open_engine(&self, clock: Box<dyn rye_engine::WallClock>) -> rye_engine::Result<Engine> {
        let host = HostEnvironment {
            current_dir: self.world.project(),
            home: self.world.home(),
            variables: self.environment.clone(),
            launcher: Launcher::new(env!("CARGO_BIN_EXE_rye-agent-launcher")),
            ..HostEnvironment::default()
        };
        let natives = NativeTools(rye_agent::thread_tools::native_tools());
        let options = EngineOptions { is_warm: true, host, natives, ..EngineOptions::default() };
        Engine::open(roots(&self.world), options, clock)
    }

    /// Writes an item and signs it.
    pub fn item(&self, item_type: ItemType, id: &str, extension: &str, text: &str) {
        let folder = item_type.folder();
        self.world.write(&format!("project/.ai/{folder}/{id}.{extension}"), text);
        let item = ItemRef::new(item_type, ItemId::new(id).expect("an id"));
        sign::sign_item(&self.engine(), &item, None).expect("signed");
    }

    /// A directive with this inside `<metadata>` and after it, and this prompt.
    pub fn directive(&self, id: &str, metadata: &str, rest: &str, prompt: &str) {
        let (category, name) = id.rsplit_once('/').unwrap_or(("", id));
        let text = format!(
            "# A directive\n\n```xml\n<directive name=\"{name}\" version=\"1.0.0\">\n<metadata>\n<description>A directive</description>\n<category>{category}</category>\n<author>test</author>\n{metadata}\n</metadata>\n{rest}\n</directive>\n```\n\n{prompt}\n"
        );
        self.item(ItemType::Directive, id, "md", &text);
    }

    pub fn threads(&self) -> Threads {
        self.threads_with(|_| {})
    }

    /// Threads whose surroundings `change` has changed.
    pub fn threads_with(&self, change: impl FnOnce(&mut ThreadsSetup)) -> Threads {
        let engine = self.engine();
        let mut setup = ThreadsSetup {
            engine: Arc::new(move || Ok(Arc::clone(&engine))),
            environment: self.environment.clone(),
            listener: Some(Arc::clone(&self.events) as Arc<dyn Listener>),
            clock: Arc::new(TickClock::default()),
            folder: self.world.project().join(".ai/threads"),
            background: None,
            worker: None,
        };
        change(&mut setup);
        Threads::open(setup).expect("threads")
    }

    /// Runs a directive to its end.
    pub async fn run(&self, threads: &Threads, id: &str, inputs: Map<String, Value>) -> Arc<FinishedThread> {
        let request =
            ThreadRequest::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), inputs);
        let started = threads.start(request, CancelSignal::default()).await.expect("started");
        started.finished().await.expect("finished")
    }

    /// What happened, without the events that only say that something was kept.
    pub fn significant_events(&self) -> Vec<String> {
        self.critical_event_types().into_iter().filter(|event| !event.starts_with("checkpoint")).collect()
    }

    /// Waits until an event of this type was told.
    pub async fn wait_for_event(&self, event_type: &str) {
        let found = async {
            loop {
                let notified = self.events.1.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if !self.payloads(event_type).is_empty() {
                    return;
                }
                notified.await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, found).await.expect("an event that must come");
    }

    /// Every critical event of one type: its payload.
    pub fn payloads(&self, event_type: &str) -> Vec<Value> {
        let events = self.events.0.lock().expect("heard");
        let of_type = events.iter().filter(|event| event["event_type"] == event_type);
        of_type.map(|event| event["payload"].clone()).collect()
    }

    /// How the transcript of a thread stands, against what the store and the user's key say.
    pub fn verify_transcript(&self, threads: &Threads, id: &ThreadId) -> transcript::TranscriptReport {
        let row = threads.store().thread(id).expect("a store").expect("a thread");
        let path = transcript::path(threads.folder(), id);
        let key = self.engine().signing_key().expect("a key").public_key();
        let keys =
            |fingerprint: &lillux::Fingerprint| (key.fingerprint() == *fingerprint).then(|| key.clone());
        transcript::verify(&path, id, row.transcript_head, &keys).expect("a transcript")
    }

    /// The types of the critical events that were told, in order.
    pub fn critical_event_types(&self) -> Vec<String> {
        let events = self.events.0.lock().expect("heard");
        let critical = events.iter().filter(|event| event["criticality"] == "critical");
        critical.filter_map(|event| event["event_type"].as_str()).map(str::to_owned).collect()
    }
}

fn roots(world: &TestContext) -> Roots {
    Roots {
        project: Some(world.project()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    }
}
