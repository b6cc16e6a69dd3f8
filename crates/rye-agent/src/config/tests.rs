mod overrides;

use std::path::Path;
use std::sync::OnceLock;

use rye_engine::verbs::{init, sign};
use rye_engine::{Engine, EngineOptions};
use rye_item::{ItemRef, ItemType};
use rye_space::schema::ConfigSchema;
use rye_test::TestContext;
use serde_json::json;

use super::*;
use crate::hooks::{HookKind, HookOrigin};
use crate::test_support::{clock, roots};

fn open(world: &TestContext) -> Workspace {
    Workspace::open(roots(world)).expect("a workspace")
}

/// A user with a key in an approved project.
fn approved_world() -> TestContext {
    let world = TestContext::new();
    init::init(&roots(&world), &world.project(), "test", clock).expect("init");
    world
}

fn load(world: &TestContext) -> Result<ThreadConfig> {
    super::load(&open(world))
}

/// Writes a file of the configuration below `project` or `home`, with the lines that signing asks for, and signs it.
fn write_signed(world: &TestContext, space: &str, name: &str, text: &str) {
    let head = format!("version: \"1.0.0\"\ncategory: agent\nname: {name}\n");
    world.write(&format!("{space}/.ai/config/agent/{name}.yaml"), format!("{head}{text}"));
    let tier =
        if space == "home" { rye_item::space::SpaceTier::User } else { rye_item::space::SpaceTier::Project };
    let engine = Engine::open(roots(world), EngineOptions::default(), clock()).expect("an engine");
    let item = ItemRef::new(ItemType::Config, ItemId::new(format!("agent/{name}")).expect("an id"));
    sign::sign_item(&engine, &item, Some(tier)).expect("signed");
}

/// The configuration inside the binary.
pub(crate) fn shipped() -> ThreadConfig {
    static SHIPPED: OnceLock<ThreadConfig> = OnceLock::new();
    SHIPPED.get_or_init(|| load(&TestContext::new()).expect("a configuration")).clone()
}

/// The five files of the plan that threads were built from, as they stand there.
const PLAN: [(&str, &str); 5] = [
    ("events", include_str!("plan/events.yaml")),
    ("error_classification", include_str!("plan/error_classification.yaml")),
    ("hook_conditions", include_str!("plan/hook_conditions.yaml")),
    ("resilience", include_str!("plan/resilience.yaml")),
    ("budget_ledger_schema", include_str!("plan/budget_ledger_schema.yaml")),
];

fn schema(name: &str) -> ConfigSchema {
    let workspace = open(&TestContext::new());
    workspace.schema_for(&ItemId::new(format!("agent/{name}")).expect("an id")).expect("a schema").clone()
}

fn diagnostics(name: &str, text: &str) -> Vec<ConfigDiagnostic> {
    check(name, text, &schema(name), Path::new("f.yaml")).expect("YAML")
}

#[test]
fn shipped_files_load_without_notices() {
    let config = shipped();
    assert_eq!(config.notices, Vec::<String>::new());
    let limits = config.resilience.default_limits;
    assert_eq!((limits.turns, limits.tokens, limits.spawns), (Some(25), Some(200_000), Some(10)));
    assert_eq!((limits.depth, limits.duration_seconds), (Some(10), Some(600)));
    assert_eq!(limits.spend.map(|spend| spend.0), Some(1_000_000_000));
    assert_eq!(config.wait_timeout_ms(), 300_000);
}

#[test]
fn the_shipped_files_fit_their_schemas() {
    for name in CONFIG_NAMES.into_iter().filter(|name| *name != "hooks") {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("../../bundles/standard/.ai/config/agent/{name}.yaml"));
        let text = lillux::file::read_bounded(&path, 1 << 20).expect("a file").0;
        assert_eq!(diagnostics(name, &String::from_utf8(text).expect("a text")), Vec::new(), "{name}");
    }
}

#[test]
fn plan_files_are_valid() {
    for (name, text) in PLAN {
        assert_eq!(diagnostics(name, text), Vec::new(), "{name}");
    }
}

#[test]
fn plan_files_override_shipped_files() {
    let world = approved_world();
    for (name, text) in PLAN {
        world.write(&format!("home/.ai/config/agent/{name}.yaml"), text);
    }
    let config = load(&world).expect("a configuration");
    assert_eq!(config.resilience.default_limits.tokens, Some(4096));
    assert_eq!(config.resilience.default_limits.depth, Some(10));
    let money = config.ledger.columns.iter().find(|column| column.name == "actual_spend").expect("a column");
    assert_eq!((money.column_type, &money.default), (ColumnType::Integer, &Some(json!(0))));
    assert!(config.hooks.iter().any(|hook| hook.id == "infra_completion_signal"));
    // Nothing that the plan left out is lost.
    assert_eq!(config.events.criticality("checkpoint"), Criticality::Critical);
    assert_eq!(config.classification.classify(&json!({"status_code": 529})).code, "http_529");
}

#[test]
fn flat_config_is_lowest_project_layer() {
    let world = approved_world();
    let text = |turns: u32| format!("limits:\n  defaults:\n    turns: {turns}\n    spawns: 3\n");
    world.write("project/.ai/config/resilience.yaml", text(7));
    let config = load(&world).expect("a configuration");
    assert_eq!(config.resilience.default_limits.turns, Some(7));
    assert!(config.notices.iter().any(|notice| notice.contains("this place is old")), "{:?}", config.notices);
    world.write("project/.ai/config/agent/resilience.yaml", "limits:\n  defaults:\n    turns: 5\n");
    let limits = load(&world).expect("a configuration").resilience.default_limits;
    assert_eq!((limits.turns, limits.spawns), (Some(5), Some(3)));
}

#[test]
fn config_layers_merge_by_id() {
    let world = approved_world();
    write_signed(
        &world,
        "home",
        "resilience",
        "limits:\n  defaults:\n    turns: 40\n    tokens: 5\nretry:\n  max_retries: 5\n",
    );
    write_signed(
        &world,
        "project",
        "resilience",
        "extends: rye/x.yaml\nlimits:\n  defaults:\n    turns: 50\n",
    );
    write_signed(
        &world,
        "project",
        "error_classification",
        "patterns:\n  - id: http_5xx\n    category: permanent\n    match: {path: status_code, op: eq, value: 500}\n  \
         - id: custom_api_down\n    category: transient\n    retryable: true\n    \
         match: {path: error.code, op: eq, value: MAINTENANCE_MODE}\n    retry_policy: {type: fixed, delay: 300.0}\n",
    );
    let config = load(&world).expect("a configuration");
    assert_eq!(config.notices, Vec::<String>::new());
    let limits = config.resilience.default_limits;
    assert_eq!((limits.turns, limits.tokens, limits.spawns), (Some(50), Some(5), Some(10)));
    assert_eq!(config.resilience.retry.max_retries, 5);
    let classify = |failure: Value| config.classification.classify(&failure);
    assert_eq!(classify(json!({"status_code": 500})).category, "permanent");
    // The element was replaced whole, the others are where they were, the new one stands last.
    assert_eq!(classify(json!({"status_code": 502})).code, "default");
    assert_eq!(classify(json!({"status_code": 429})).code, "http_429");
    let down = classify(json!({"error": {"code": "MAINTENANCE_MODE"}}));
    assert_eq!(
        (down.code.as_str(), down.policy.delay_ms(0, &Default::default(), 0, 0)),
        ("custom_api_down", 300_000)
    );
    assert_eq!(config.values()["resilience"].get("extends"), None);
}

#[test]
fn events_have_configured_criticality() {
    let events = shipped().events;
    let delta = events.event("cognition_out_delta").expect("an event");
    assert_eq!(
        (delta.criticality, delta.throttle_ms, delta.category.as_str()),
        (Criticality::Droppable, 100, "cognition")
    );
    assert!(events.event("cognition_reasoning").expect("an event").accumulate_on_error);
    assert_eq!(events.event("unheard_of"), None);
    assert_eq!(events.criticality("tool_call_start"), Criticality::Critical);
    assert_eq!(events.criticality("unheard_of"), Criticality::Critical);
    assert!(events.emits_on_error("cognition_out") && !events.emits_on_error("cognition_in"));
    let payload = |value: Value| value.as_object().expect("an object").clone();
    let check = |name: &str, value: Value| events.check_payload(name, &payload(value));
    let suspended =
        |reason: &str| json!({"suspend_reason": reason, "error": null, "detail": null, "cost": {}});
    assert_eq!(check("thread_suspended", suspended("provider")), Ok(()));
    assert!(check("thread_suspended", suspended("mood")).is_err());
    assert!(check("thread_completed", json!({})).is_err());
    assert_eq!(check("unheard_of", json!({"x": 1})), Ok(()));
}

#[test]
fn every_emitted_event_is_declared() {
    let events = shipped().events;
    for name in [
        "checkpoint",
        "checkpoint_saved",
        "thread_error",
        "thread_resumed",
        "thread_handoff",
        "directive_return",
        "context_limit_reached",
        "system_prompt",
        "context_injected",
        "hook_failed",
        "permission_denied",
        "child_thread_finished",
        "human_approval_requested",
        "human_approval_response",
        "retry_scheduled",
        "budget_exhausted",
        "content_redacted",
        "thread_continued",
        "thread_started",
        "thread_suspended",
    ] {
        assert!(events.event(name).is_some(), "{name}");
    }
}

#[test]
fn hooks_are_overridden_by_id() {
    let config = shipped();
    let ids: Vec<&str> = config.hooks.iter().map(|hook| hook.id.as_str()).collect();
    assert_eq!(
        ids,
        [
            "default_retry_transient",
            "default_fail_permanent",
            "default_abort_cancelled",
            "default_escalate_limit",
            "default_context_compaction",
            "ctx_directive_instruction",
            "infra_save_state",
        ]
    );
    assert!(config.hooks.iter().all(|hook| hook.origin == HookOrigin::System));
    let infra: Vec<_> =
        config.hooks.iter().filter(|hook| hook.kind == HookKind::Infra).map(|hook| hook.layer).collect();
    assert_eq!(infra, [3]);

    let world = approved_world();
    write_signed(
        &world,
        "project",
        "hook_conditions",
        "builtin_hooks:\n  - id: default_escalate_limit\n    event: limit\n    layer: 2\n    grants: [rye.execute.*]\n    \
         condition: {path: limit_code, op: eq, value: turns_exceeded}\n    action:\n      primary: execute\n      \
         item_type: tool\n      item_id: rye/agent/threads/internal/control\n      params: {action: fail}\n",
    );
    let config = load(&world).expect("a configuration");
    let changed = config.hooks.iter().find(|hook| hook.id == "default_escalate_limit").expect("the hook");
    assert_eq!((changed.origin, &changed.grants), (HookOrigin::Project, &Vec::new()));
    assert_eq!(changed.condition["op"], "eq");
    assert_eq!(config.hooks.len(), 7);
    assert!(config.notices.iter().any(|notice| notice.contains("grants of hook `default_escalate_limit`")));
}

#[test]
fn resilience_defaults_are_loaded() {
    let resilience = shipped().resilience;
    assert_eq!(resilience.retry.max_retries, 3);
    assert_eq!(
        resilience.child_policy,
        ChildPolicy {
            on_parent_cancel: ChildAction::CascadeCancel,
            on_parent_complete: ChildAction::Allow,
            on_parent_error: ChildAction::CascadeCancel,
        }
    );
    assert_eq!(resilience.on_exceed, OnExceed::Escalate);
    assert!(resilience.check_before_turn && resilience.check_after_turn);
    assert_eq!(resilience.coordination.max_wait_thread_ids, 50);
    assert_eq!(resilience.concurrency.max_total_threads, 20);
}

const RISKS: &str = "classifications:\n  - {id: all, risk: safe, patterns: [rye.*]}\n";

const HOOK: &str = "hooks:\n  - id: mine\n    event: after_step\n    grants: [rye.execute.tool.team.notify]\n    \
                    action: {primary: execute, item_type: tool, item_id: team/notify}\n";

#[test]
fn untrusted_project_config_is_ignored() {
    let author = approved_world();
    for (name, text) in [
        (
            "resilience",
            "limits:\n  defaults:\n    turns: 1000\n    spend: null\nconcurrency:\n  max_total_threads: 9000\n",
        ),
        ("hook_conditions", "builtin_hooks: []\naction_primaries: [execute]\n"),
        ("capability_risk", "classifications:\n  - {risk: safe, patterns: [rye.*]}\n"),
        ("events", "event_types:\n  thread_started: {category: lifecycle, criticality: droppable}\n"),
        ("agent", "provider:\n  default: ollama\n"),
        ("hooks", HOOK),
    ] {
        write_signed(&author, "project", name, text);
    }
    // Another user has it: another key, nothing approved; and again in a project of their own, approved.
    for user in [TestContext::new(), approved_world()] {
        for name in ["resilience", "hook_conditions", "capability_risk", "events", "agent", "hooks"] {
            let file = format!("project/.ai/config/agent/{name}.yaml");
            user.write(&file, author.read(&file));
        }
        let config = load(&user).expect("a configuration");
        assert_eq!(config.digest(), shipped().digest());
        assert!(config.notices.len() >= 6, "{:?}", config.notices);
        // Broken ones do not even stop a thread.
        user.write(
            "project/.ai/config/agent/resilience.yaml",
            "limits: {defaults: {turns: lots, tokens: 2.5}}\nx: 1\n",
        );
        user.write("project/.ai/config/agent/hooks.yaml", "hooks: [{id: 1}]\n");
        assert_eq!(load(&user).expect("a configuration").digest(), shipped().digest());
    }
}

/// A guard does not vanish with an edit: no thread starts until the user's file is signed again.
#[test]
fn edited_user_config_starts_no_thread() {
    for (name, text) in
        [("hooks", HOOK), ("capability_risk", RISKS), ("resilience", "limits: {defaults: {turns: 3}}\n")]
    {
        let world = approved_world();
        write_signed(&world, "home", name, text);
        assert!(load(&world).is_ok(), "{name}");
        let file = format!("home/.ai/config/agent/{name}.yaml");
        let text = String::from_utf8(world.read(&file)).expect("text");
        world.write(&file, format!("{text}# changed\n"));
        let message = load(&world).expect_err(name).to_string();
        let hint =
            format!("changed since it was signed; sign it again: rye sign config agent/{name} --space user");
        assert!(message.contains(&hint), "{message}");
        assert!(load_lenient(&open(&world)).is_ok(), "{name}: threads are still looked at");
    }
}

#[test]
fn unsigned_project_config_only_tightens_limits() {
    let world = approved_world();
    world.write(
        "project/.ai/config/agent/resilience.yaml",
        "limits:\n  defaults:\n    turns: 3\n    tokens: 900000\n    spend: 0.1\nconcurrency:\n  max_total_threads: 2\n\
         child_policy:\n  on_parent_cancel: allow\n",
    );
    let config = load(&world).expect("a configuration");
    let limits = config.resilience.default_limits;
    assert_eq!(
        (limits.turns, limits.tokens, limits.spend.map(|spend| spend.0)),
        (Some(3), Some(200_000), Some(100_000_000))
    );
    assert_eq!(config.resilience.concurrency.max_total_threads, 2);
    assert_eq!(config.resilience.child_policy.on_parent_cancel, ChildAction::CascadeCancel);
    let notices = config.notices.join("\n");
    assert!(
        notices.contains("limits.defaults.tokens") && notices.contains("child_policy.on_parent_cancel"),
        "{notices}"
    );
}

#[test]
fn project_cannot_set_capability_risk() {
    let world = approved_world();
    let lax = "classifications:\n  - {id: everything, risk: safe, patterns: [rye.*]}\n";
    write_signed(&world, "project", "capability_risk", lax);
    let config = load(&world).expect("a configuration");
    assert_eq!(config.risk, shipped().risk);
    assert!(config.notices.iter().any(|notice| notice.contains("only user space may set this")));
    write_signed(&world, "home", "capability_risk", lax);
    assert_eq!(load(&world).expect("a configuration").risk.classifications[0].risk, crate::risk::Risk::Safe);
}

#[test]
fn hook_grants_need_signed_user_config() {
    let grants = |world: &TestContext| {
        let config = load(world).expect("a configuration");
        let own = config.hooks.iter().filter(|hook| hook.id == "mine");
        own.map(|hook| (hook.origin, hook.layer, hook.grants.len())).collect::<Vec<_>>()
    };
    let world = approved_world();
    world.write("home/.ai/config/agent/hooks.yaml", HOOK);
    assert_eq!(grants(&world), [(HookOrigin::User, 0, 0)]);
    write_signed(&world, "home", "hooks", HOOK);
    assert_eq!(grants(&world), [(HookOrigin::User, 0, 1)]);
    // A project's hook of the same id stands beside the user's, and never in its place.
    write_signed(&world, "project", "hooks", HOOK);
    assert_eq!(grants(&world), [(HookOrigin::User, 0, 1), (HookOrigin::Project, 3, 0)]);
}

#[test]
fn frozen_values_give_the_same_configuration() {
    let config = shipped();
    let thawed =
        ThreadConfig::from_values(config.to_value().as_object().expect("a map")).expect("a configuration");
    assert_eq!(thawed.digest(), config.digest());
    assert_eq!(thawed.hooks, config.hooks);
    assert_eq!(thawed.resilience, config.resilience);
}

#[test]
fn config_cache_notices_file_changes() {
    let world = approved_world();
    let cache = ConfigCache::default();
    let workspace = open(&world);
    let turns = || cache.load(&workspace).expect("a configuration").resilience.default_limits.turns;
    let first = cache.load(&workspace).expect("a configuration");
    assert!(Arc::ptr_eq(&first, &cache.load(&workspace).expect("a configuration")));
    let path = world.write("project/.ai/config/agent/resilience.yaml", "limits: {defaults: {turns: 4}}\n");
    assert_eq!(turns(), Some(4));
    world.write("project/.ai/config/agent/resilience.yaml", "limits: {defaults: {turns: 3}}\n\n");
    assert_eq!(turns(), Some(3));
    lillux::file::remove(&path).expect("removed");
    assert_eq!(turns(), Some(25));
}
