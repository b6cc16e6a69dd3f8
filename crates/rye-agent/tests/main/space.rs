//! A project with threads in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lillux::process::Launcher;
use rye_agent::driver::{Clock, Listener, Signal};
use rye_agent::prepare::Order;
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Finished, Setup, Threads};
use rye_agent::transcript;
use rye_engine::verbs::{init, sign};
use rye_engine::{Engine, Host, Natives, Options};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::Roots;
use rye_test::World;
use rye_test::fake_model::FakeModel;
use serde_json::{Map, Value};
use tokio::sync::Notify;

/// The key of the test's provider; it looks like one.
pub const SECRET: &str = "sk-fake-0123456789-0123456789-0123456789";

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A moment, and a millisecond more each time it is asked.
#[derive(Default)]
pub struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now_ms(&self) -> u64 {
        1_767_323_045_000 + self.0.fetch_add(1, Ordering::SeqCst)
    }
}

struct Noon;

impl rye_engine::Clock for Noon {
    fn unix_seconds(&self) -> u64 {
        1_767_323_045
    }
}

/// Everything that was told, and a bell that rings with each of it.
#[derive(Default)]
pub struct Heard(pub Mutex<Vec<Value>>, Notify);

impl Listener for Heard {
    fn event(&self, envelope: &Value) {
        self.0.lock().expect("heard").push(envelope.clone());
        self.1.notify_waiters();
    }

    fn delta(&self, _thread: &str, _delta: &rye_model::Delta) {}
}

/// A project that was initialised, and its environment.
pub struct Space {
    pub world: World,
    pub environment: BTreeMap<String, String>,
    pub heard: Arc<Heard>,
}

impl Space {
    pub fn new() -> Self {
        let world = World::new();
        init::init(&roots(&world), &world.project(), "test", || Box::new(Noon)).expect("init");
        Self { world, environment: BTreeMap::new(), heard: Arc::default() }
    }

    /// A project whose only provider with a key is this server, asked in this protocol.
    pub fn with_model(model: &FakeModel, protocol: &str) -> Self {
        let mut space = Self::new();
        space.environment.insert("FAKE_MODEL_KEY".to_owned(), SECRET.to_owned());
        space.environment.insert("HOME".to_owned(), space.world.home().display().to_string());
        space.environment.insert("PATH".to_owned(), "/usr/bin:/bin".to_owned());
        space.provider(model, protocol, "pricing: {fake-1: {input: 1.00, output: 2.00}}\n");
        space
    }

    /// Writes the provider anew, with these lines added.
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
        sign::sign_item(&self.engine(), &item, Some(rye_item::space::Tier::User)).expect("signed");
    }

    /// The failures of the shipped configuration, each tried again at once.
    pub fn retries_at_once(&self) {
        let shipped = include_str!("../../../../bundles/standard/.ai/config/agent/error_classification.yaml");
        let patterns = shipped.split_once("\npatterns:").expect("patterns").1;
        let patterns = patterns.split_once("\ndefault:").expect("the rest").0;
        let patterns = patterns.replace("base: 2.0", "base: 0.001").replace("base: 3.0", "base: 0.001");
        let patterns = patterns.replace("{ policy: rate_limited }", "{ type: fixed, delay: 0.001 }");
        self.config("error_classification", &format!("patterns:{patterns}\n"));
    }

    pub fn engine(&self) -> Arc<Engine> {
        let host = Host {
            folder: self.world.project(),
            home: self.world.home(),
            environment: self.environment.clone(),
            launcher: Launcher::new(env!("CARGO_BIN_EXE_rye-agent-launcher")),
            ..Host::default()
        };
        let natives = Natives(rye_agent::internal::all());
        let options = Options { is_warm: true, host, natives, ..Options::default() };
        Arc::new(Engine::open(roots(&self.world), options, Box::new(Noon)).expect("engine"))
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
    pub fn threads_with(&self, change: impl FnOnce(&mut Setup)) -> Threads {
        let engine = self.engine();
        let mut setup = Setup {
            engine: Arc::new(move || Ok(Arc::clone(&engine))),
            environment: self.environment.clone(),
            listener: Some(Arc::clone(&self.heard) as Arc<dyn Listener>),
            clock: Arc::new(Ticks::default()),
            folder: self.world.project().join(".ai/threads"),
            background: None,
        };
        change(&mut setup);
        Threads::open(setup).expect("threads")
    }

    /// Runs a directive to its end.
    pub async fn run(&self, threads: &Threads, id: &str, inputs: Map<String, Value>) -> Arc<Finished> {
        let order = Order::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), inputs);
        let started = threads.start(order, Signal::default()).await.expect("started");
        started.finished().await.expect("finished")
    }

    /// What happened, without the events that only say that something was kept.
    pub fn story(&self) -> Vec<String> {
        self.told().into_iter().filter(|event| !event.starts_with("checkpoint")).collect()
    }

    /// Waits until an event of this type was told.
    pub async fn heard_of(&self, event_type: &str) {
        let told = async {
            loop {
                let bell = self.heard.1.notified();
                tokio::pin!(bell);
                bell.as_mut().enable();
                if !self.payloads(event_type).is_empty() {
                    return;
                }
                bell.await;
            }
        };
        tokio::time::timeout(PATIENCE, told).await.expect("an event that must come");
    }

    /// Every critical event of one type: its payload.
    pub fn payloads(&self, event_type: &str) -> Vec<Value> {
        let heard = self.heard.0.lock().expect("heard");
        let of_type = heard.iter().filter(|event| event["event_type"] == event_type);
        of_type.map(|event| event["payload"].clone()).collect()
    }

    /// How the transcript of a thread stands, against what the store and the user's key say.
    pub fn verified(&self, threads: &Threads, id: &ThreadId) -> transcript::Report {
        let row = threads.store().thread(id).expect("a store").expect("a thread");
        let path = transcript::path(threads.store().folder(), id);
        let key = self.engine().signing_key().expect("a key").public();
        let keys = |wanted: &lillux::Fingerprint| (key.fingerprint() == *wanted).then(|| key.clone());
        transcript::verify(&path, id, row.transcript_head, &keys).expect("a transcript")
    }

    /// The types of the critical events that were told, in order.
    pub fn told(&self) -> Vec<String> {
        let heard = self.heard.0.lock().expect("heard");
        let critical = heard.iter().filter(|event| event["criticality"] == "critical");
        critical.filter_map(|event| event["event_type"].as_str()).map(str::to_owned).collect()
    }
}

fn roots(world: &World) -> Roots {
    Roots {
        project: Some(world.project()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    }
}
