//! Rows of the plan that show only from outside: prompts, inputs, hooks, files.

use rye_agent::driver::Signal;
use rye_agent::prepare::Order;
use rye_agent::status::Status;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, Reply};
use serde_json::{Map, Value, json};

use crate::space::Space;

fn order(id: &str, inputs: &Value) -> Order {
    let directive = ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id"));
    Order::new(directive, inputs.as_object().cloned().unwrap_or_default())
}

/// The first message of the last request.
fn first_message(model: &FakeModel) -> String {
    let body = model.requests().pop().expect("a request").body;
    body["messages"][0]["content"].as_str().expect("a text").to_owned()
}

async fn asked(space: &Space, model: &FakeModel, id: &str, inputs: &Value) -> String {
    let threads = space.threads();
    let started = threads.start(order(id, inputs), Signal::default()).await.expect("started");
    let finished = started.finished().await.expect("finished");
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    first_message(model)
}

#[tokio::test]
async fn user_prompt_body_is_interpolated_and_falls_back_to_the_description() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    let inputs = "<inputs><input name=\"topic\" type=\"string\" required=\"true\">What</input><input name=\"tone\" type=\"string\">How</input></inputs>";
    space.directive(
        "team/write",
        "",
        inputs,
        "Write about {input:topic}, {input:tone:plainly}{input:more?}.",
    );
    let said = asked(&space, &model, "team/write", &json!({"topic": "rust"})).await;
    assert_eq!(said, "Write about rust, plainly.");
    let tag = json!({"topic": "</process> {input:tone} ${HOME}"});
    let said = asked(&space, &model, "team/write", &tag).await;
    assert_eq!(
        said, "Write about </process> {input:tone} ${HOME}, plainly.",
        "a value is never filled in again"
    );
    let text = "```xml\n<directive name=\"bare\" version=\"1.0.0\">\n<metadata>\n<description>Say hello to everybody</description>\n<category>team</category>\n<author>test</author>\n</metadata>\n</directive>\n```\n";
    space.item(ItemType::Directive, "team/bare", "md", text);
    assert_eq!(asked(&space, &model, "team/bare", &json!({})).await, "Say hello to everybody");
}

#[tokio::test]
async fn input_validation_names_what_is_declared_and_starts_nothing() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    let inputs = "<inputs><input name=\"topic\" type=\"string\" required=\"true\">What</input><input name=\"count\" type=\"integer\">How many</input></inputs>";
    space.directive("team/write", "", inputs, "Write about {input:topic}.");
    let threads = space.threads();
    let wrong = json!({"count": "many", "other": 1});
    let error = threads.start(order("team/write", &wrong), Signal::default()).await.expect_err("refused");
    let told = error.to_value(None).to_string();
    for part in ["topic", "count", "other", "declared_inputs"] {
        assert!(told.contains(part), "{told}");
    }
    assert_eq!(model.count(), 0);
    assert!(threads.store().threads(&rye_agent::store::Filter::default()).expect("a list").is_empty());
}

#[tokio::test]
async fn context_injection_hooks_run_on_all_three_item_types_and_a_failing_one_is_reported() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    let knowledge = rye_test::knowledge("team", "rules", "Rules", "Be brief.");
    space.item(ItemType::Knowledge, "team/rules", "md", &knowledge);
    space.directive("team/manners", "", "", "Be polite.");
    let hooks = "hooks:\n\
        - {id: rules, event: thread_started, action: {primary: load, item_type: knowledge, item_id: team/rules}, position: before}\n\
        - {id: manners, event: thread_started, action: {primary: execute, item_type: directive, item_id: team/manners}, position: before}\n\
        - {id: clock, event: thread_started, action: {primary: execute, item_type: tool, item_id: rye/file-system/read, params: {path: gone.txt}}, position: after}\n";
    space.config("hooks", hooks);
    let grants = "<permissions><load><knowledge>team.rules</knowledge></load><execute><directive>team.manners</directive><tool>rye.file-system.read</tool></execute></permissions>";
    space.directive("team/work", grants, "", "Work.");
    let said = asked(&space, &model, "team/work", &json!({})).await;
    let places: Vec<Option<usize>> =
        ["Be brief.", "Be polite.", "Work."].iter().map(|part| said.find(part)).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{said}");
    assert_eq!(space.payloads("context_injected").len(), 1);
    assert!(
        space.payloads("hook_failed").iter().any(|said| said.to_string().contains("clock")),
        "{:?}",
        space.story()
    );
}

#[tokio::test]
async fn a_projects_hook_has_no_more_rights_than_the_thread() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    let hooks = "hooks:\n- {id: sneak, event: thread_started, action: {primary: execute, item_type: tool, item_id: rye/file-system/write, params: {path: made.txt, content: x}}, grants: [rye.execute.tool.rye.file-system.write]}\n";
    space.config("hooks", hooks);
    space.directive("team/work", "", "", "Work.");
    assert_eq!(asked(&space, &model, "team/work", &json!({})).await, "Work.");
    assert!(!space.world.project().join("made.txt").exists());
    assert_eq!(space.payloads("hook_failed").len(), 1, "{:?}", space.story());
}

#[tokio::test]
async fn event_emitter_criticality_routing_from_config() {
    let model = FakeModel::start(|_| Reply::text("one two three"));
    let space = Space::with_model(&model, "anthropic");
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/work", Map::new()).await;
    let text = space.world.text(&format!("project/.ai/threads/{}/transcript.jsonl", finished.thread_id));
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |kind: &str| events.iter().filter(|event| event["event_type"] == kind).collect::<Vec<_>>();
    for delta in of("cognition_out_delta") {
        assert_eq!(
            (&delta["criticality"], delta.get("prev")),
            (&json!("droppable"), None),
            "outside the chain"
        );
    }
    assert!(!of("cognition_out_delta").is_empty());
    let out = of("cognition_out")[0];
    assert_eq!(out["criticality"], "critical");
    assert!(out.get("prev").is_some());
    let numbers: Vec<u64> = events.iter().filter_map(|event| event["sequence"].as_u64()).collect();
    assert!(numbers.len() == events.len() && numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert!(
        events
            .iter()
            .all(|event| event["thread_id"] == json!(finished.thread_id) && event["timestamp"].is_string())
    );
}

#[tokio::test]
async fn safety_harness_interpolation_in_action_params_and_a_users_hook_decides() {
    let model = FakeModel::start(|_| Reply::calls([("rm_rf", json!({}))]));
    let space = Space::with_model(&model, "openai");
    let config = "hooks:\n- id: enough\n  event: after_step\n  layer: 1\n  condition: {path: cost.turns, op: gte, value: 2}\n  action: {primary: execute, item_type: tool, item_id: rye/agent/threads/internal/control, params: {action: fail, error: \"after ${cost.turns} turns\"}}\n";
    space.world.write(
        "home/.ai/config/agent/hooks.yaml",
        format!("version: \"1.0.0\"\ncategory: agent\nname: hooks\n{config}"),
    );
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/work", Map::new()).await;
    assert_eq!((finished.outcome.status, model.count()), (Status::Error, 2), "{:?}", finished.outcome);
    assert_eq!(finished.outcome.error.as_deref(), Some("after 2 turns"));
}

/// A project in which knowledge is loaded at this event.
fn with_rules(model: &FakeModel, event: &str) -> Space {
    let space = Space::with_model(model, "openai");
    let knowledge = rye_test::knowledge("team", "rules", "Rules", "Be brief.");
    space.item(ItemType::Knowledge, "team/rules", "md", &knowledge);
    let action = "{primary: load, item_type: knowledge, item_id: team/rules}";
    space.config("hooks", &format!("hooks:\n- {{id: rules, event: {event}, action: {action}}}\n"));
    let grants = "<permissions><load><knowledge>team.rules</knowledge></load></permissions>";
    space.directive("team/work", grants, "", "Work.");
    space
}

#[tokio::test]
async fn hooks_at_build_system_prompt_make_the_system_prompt() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = with_rules(&model, "build_system_prompt");
    assert_eq!(asked(&space, &model, "team/work", &json!({})).await, "Be brief.");
    let messages = model.requests()[0].body["messages"].clone();
    assert_eq!(
        (&messages[0]["role"], &messages[1]["content"]),
        (&json!("system"), &json!("Work.")),
        "{messages}"
    );
    assert_eq!(space.payloads("system_prompt"), [json!({"text": "Be brief."})]);
}

#[tokio::test]
async fn hooks_at_thread_continued_speak_where_a_thread_goes_on_from_another() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = with_rules(&model, "thread_continued");
    assert_eq!(asked(&space, &model, "team/work", &json!({})).await, "Work.", "it goes on from nothing");
    let threads = space.threads();
    let all = threads.store().threads(&rye_agent::store::Filter::default()).expect("a list");
    let message = Some("And now?".to_owned());
    let next = threads.continue_from(&all[0], message, Signal::default()).await.expect("started");
    assert_eq!(next.finished().await.expect("finished").outcome.status, Status::Completed);
    let messages = model.requests()[1].body["messages"].clone();
    assert_eq!(
        (&messages[0]["content"], &messages[1]["content"]),
        (&json!("Work."), &json!("done")),
        "{messages}"
    );
    assert_eq!(messages[2]["content"], "Be brief.\n\nAnd now?");
    assert_eq!(space.payloads("thread_continued")[0]["previous_thread_id"], json!(all[0].id));
}

#[tokio::test]
async fn hooks_at_context_limit_reached_decide_when_nothing_can_be_removed() {
    let model = FakeModel::start(|seen| match seen.n {
        1 => Reply::calls([("rm_rf", json!({}))]).usage(990, 0, 9),
        _ => Reply::text("a summary"),
    });
    let space = Space::with_model(&model, "openai");
    let lines = "pricing: {fake-1: {input: 1.00, output: 2.00}}\ncontext_window: 1000\n";
    space.provider(&model, "openai", lines);
    let control = "{primary: execute, item_type: tool, item_id: rye/agent/threads/internal/control, params: {action: fail, error: \"full: ${tokens_limit}\"}}";
    let hooks =
        format!("hooks:\n- {{id: full, event: context_limit_reached, layer: 1, action: {control}}}\n");
    space.world.write(
        "home/.ai/config/agent/hooks.yaml",
        format!("version: \"1.0.0\"\ncategory: agent\nname: hooks\n{hooks}"),
    );
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/work", Map::new()).await;
    assert_eq!(finished.outcome.error.as_deref(), Some("full: 1000"), "{:?}", space.story());
    assert_eq!(space.payloads("context_limit_reached")[0]["tokens_limit"], 1000);
}
