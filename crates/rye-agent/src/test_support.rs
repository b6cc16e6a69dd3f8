//! An engine over a temporary project, for the tests of this crate.

use std::sync::Arc;

use rye_engine::verbs::{init, sign};
use rye_engine::{Engine, EngineOptions, HostEnvironment, NativeTools, WallClock};
use rye_exec::{NativeCall, NativeError, NativeTool};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_space::Roots;
use rye_test::TestContext;
use serde_json::{Map, Value, json};

use crate::config::Criticality;
use crate::cost::Cost;
use crate::thread_id::ThreadId;
use crate::tool_context::{FrozenConfig, ThreadContext};

struct FixedClock;

impl WallClock for FixedClock {
    fn unix_seconds(&self) -> u64 {
        1_767_323_045
    }
}

pub(crate) fn clock() -> Box<dyn WallClock> {
    Box::new(FixedClock)
}

pub(crate) fn roots(world: &TestContext) -> Roots {
    Roots {
        project: Some(world.project()),
        user: world.home(),
        home: world.home(),
        cache: world.cache(),
        signing_keys: world.home().join(".ai/config/keys/signing"),
        bundle_paths: Vec::new(),
    }
}

/// Says whether its call was cancelled.
struct IsCancelled;

impl NativeTool for IsCancelled {
    fn name(&self) -> &'static str {
        "test.is_cancelled"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        Ok(json!(call.cancel.is_cancelled()))
    }
}

/// Touches nothing, and says what it could touch.
struct ReportAccess;

impl NativeTool for ReportAccess {
    fn name(&self) -> &'static str {
        "test.access"
    }

    fn needs_no_access(&self, _config: &Map<String, Value>) -> bool {
        true
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        Ok(json!({"write": call.access.write.len(), "network": call.access.network}))
    }
}

/// A project that was initialised.
pub(crate) fn init_world() -> TestContext {
    let world = TestContext::new();
    init::init(&roots(&world), &world.project(), "test", clock).expect("init");
    world
}

/// Its engine, with the thread's own tools.
pub(crate) fn engine(world: &TestContext) -> Arc<Engine> {
    let host =
        HostEnvironment { current_dir: world.project(), home: world.home(), ..HostEnvironment::default() };
    let mut natives = NativeTools(crate::thread_tools::native_tools());
    natives.0.push(Arc::new(IsCancelled));
    natives.0.push(Arc::new(ReportAccess));
    let options = EngineOptions { is_warm: true, host, natives, ..EngineOptions::default() };
    Arc::new(Engine::open(roots(world), options, clock()).expect("engine"))
}

pub(crate) fn item(item_type: ItemType, id: &str) -> ItemRef {
    ItemRef::new(item_type, ItemId::new(id).expect("an id"))
}

/// A native tool of the project, not signed yet.
pub(crate) fn write_native(world: &TestContext, id: &str, function: &str, schema: &str) {
    let (category, name) = id.rsplit_once('/').expect("a category");
    let text = format!(
        "version: \"1.0.0\"\ntool_type: native\nexecutor_id: rye/core/primitives/native\ncategory: {category}\n\
         name: {name}\ndescription: The tool {name}\nconfig_schema: {schema}\nconfig:\n  function: {function}\n"
    );
    world.write(&format!("project/.ai/tools/{id}.yaml"), text);
}

/// The same, signed.
pub(crate) fn signed_native(world: &TestContext, id: &str, function: &str, schema: &str) {
    write_native(world, id, function, schema);
    sign::sign_item(&engine(world), &item(ItemType::Tool, id), None).expect("signed");
}

/// A knowledge entry of the project, signed.
pub(crate) fn signed_knowledge(world: &TestContext, id: &str, body: &str) {
    let (category, name) = id.rsplit_once('/').expect("a category");
    world.write(
        &format!("project/.ai/knowledge/{id}.md"),
        rye_test::knowledge(category, name, "A title", body),
    );
    sign::sign_item(&engine(world), &item(ItemType::Knowledge, id), None).expect("signed");
}

/// Rules that say little.
pub(crate) struct FixedConfig;

impl FrozenConfig for FixedConfig {
    fn classify(&self, failure: &Value) -> Value {
        json!({"category": "transient", "asked": failure})
    }

    fn criticality(&self, event_type: &str) -> Criticality {
        if event_type == "delta" { Criticality::Droppable } else { Criticality::Critical }
    }

    fn check_payload(&self, event_type: &str, payload: &Map<String, Value>) -> Result<(), String> {
        let is_complete = event_type != "checkpoint_saved" || payload.contains_key("turn");
        if is_complete { Ok(()) } else { Err("`turn` is missing".to_owned()) }
    }

    fn on_exceed(&self) -> &str {
        "escalate"
    }

    fn approval_reason(&self, required: &[String]) -> Option<String> {
        required.iter().any(|grant| grant.ends_with(".risky")).then(|| "risky needs approval".to_owned())
    }

    fn watching_hook(&self, action: &crate::action::Action, _cost: &Cost) -> Option<String> {
        let is_watched = action.item_id.as_deref().is_some_and(|id| id.ends_with("/watched"));
        is_watched.then(|| "watch".to_owned())
    }
}

/// What a thread would tell.
pub(crate) fn test_context() -> Arc<ThreadContext> {
    Arc::new(ThreadContext {
        thread_id: ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id"),
        cost: Cost { turns: 2, ..Cost::default() },
        is_cancelled: false,
        config: Arc::new(FixedConfig),
        budget: None,
        callback: None,
        blocking_hook: None,
    })
}
