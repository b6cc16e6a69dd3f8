//! Rows of the plan that show only from outside: prompts, inputs, hooks, files.

use rye_agent::driver::CancelSignal;
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::ThreadStatus;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Map, Value, json};

use crate::test_space::TestSpace;

fn request(id: &str, inputs: &Value) -> ThreadRequest {
    let directive = ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id"));
    ThreadRequest::new(directive, inputs.as_object().cloned().unwrap_or_default())
}

/// The first message of the last request.
fn first_message(model: &FakeModel) -> String {
    let body = model.requests().pop().expect("a request").body;
    body["messages"][0]["content"].as_str().expect("a text").to_owned()
}

async fn first_prompt(space: &TestSpace, model: &FakeModel, id: &str, inputs: &Value) -> String {
    let threads = space.threads();
    let started = threads.start(request(id, inputs), CancelSignal::default()).await.expect("started");
    let finished = started.finished().await.expect("finished");
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    first_message(model)
}

#[tokio::test]
async fn prompt_is_interpolated_or_description() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    let inputs = "<inputs><input name=\"topic\" type=\"string\" required=\"true\">What</input><input name=\"tone\" type=\"string\">How</input></inputs>";
    space.directive(
        "team/write",
        "",
        inputs,
        "Write about {input:topic}, {input:tone:plainly}{input:more?}.",
    );
    let prompt = first_prompt(&space, &model, "team/write", &json!({"topic": "rust"})).await;
    assert_eq!(prompt, "Write about rust, plainly.");
    let tag = json!({"topic": "</process> {input:tone} ${HOME}"});
    let prompt = first_prompt(&space, &model, "team/write", &tag).await;
    assert_eq!(
        prompt, "Write about </process> {input:tone} ${HOME}, plainly.",
        "a value is never filled in again"
    );
    let text = "```xml\n<directive name=\"bare\" version=\"1.0.0\">\n<metadata>\n<description>Say hello to everybody</description>\n<category>team</category>\n<author>test</author>\n</metadata>\n</directive>\n```\n";
    space.item(ItemType::Directive, "team/bare", "md", text);
    assert_eq!(first_prompt(&space, &model, "team/bare", &json!({})).await, "Say hello to everybody");
}

#[tokio::test]
async fn invalid_inputs_start_nothing() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    let inputs = "<inputs><input name=\"topic\" type=\"string\" required=\"true\">What</input><input name=\"count\" type=\"integer\">How many</input></inputs>";
    space.directive("team/write", "", inputs, "Write about {input:topic}.");
    let threads = space.threads();
    let invalid = json!({"count": "many", "other": 1});
    let error =
        threads.start(request("team/write", &invalid), CancelSignal::default()).await.expect_err("refused");
    let error_text = error.to_value(None).to_string();
    for part in ["topic", "count", "other", "declared_inputs"] {
        assert!(error_text.contains(part), "{error_text}");
    }
    assert_eq!(model.count(), 0);
    assert!(threads.store().threads(&rye_agent::store::ThreadFilter::default()).expect("a list").is_empty());
}

#[tokio::test]
async fn context_hooks_support_all_item_types() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
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
    let prompt = first_prompt(&space, &model, "team/work", &json!({})).await;
    let positions: Vec<Option<usize>> =
        ["Be brief.", "Be polite.", "Work."].iter().map(|part| prompt.find(part)).collect();
    assert!(positions.iter().all(Option::is_some) && positions.is_sorted(), "{prompt}");
    assert_eq!(space.payloads("context_injected").len(), 1);
    assert!(
        space.payloads("hook_failed").iter().any(|prompt| prompt.to_string().contains("clock")),
        "{:?}",
        space.significant_events()
    );
}

#[tokio::test]
async fn project_hook_is_limited_to_thread_capabilities() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    let hooks = "hooks:\n- {id: sneak, event: thread_started, action: {primary: execute, item_type: tool, item_id: rye/file-system/write, params: {path: made.txt, content: x}}, grants: [rye.execute.tool.rye.file-system.write]}\n";
    space.config("hooks", hooks);
    space.directive("team/work", "", "", "Work.");
    assert_eq!(first_prompt(&space, &model, "team/work", &json!({})).await, "Work.");
    assert!(!space.world.project().join("made.txt").exists());
    assert_eq!(space.payloads("hook_failed").len(), 1, "{:?}", space.significant_events());
}

#[tokio::test]
async fn event_emitter_criticality_routing_from_config() {
    let model = FakeModel::start(|_| FakeReply::text("one two three"));
    let space = TestSpace::with_model(&model, "anthropic");
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/work", Map::new()).await;
    let text = space.world.text(&format!("project/.ai/threads/{}/transcript.jsonl", finished.thread_id));
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let events_of =
        |kind: &str| events.iter().filter(|event| event["event_type"] == kind).collect::<Vec<_>>();
    for delta in events_of("cognition_out_delta") {
        assert_eq!(
            (&delta["criticality"], delta.get("prev")),
            (&json!("droppable"), None),
            "outside the chain"
        );
    }
    assert!(!events_of("cognition_out_delta").is_empty());
    let out = events_of("cognition_out")[0];
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
async fn user_hook_params_are_interpolated() {
    let model = FakeModel::start(|_| FakeReply::calls([("rm_rf", json!({}))]));
    let space = TestSpace::with_model(&model, "openai");
    let config = "hooks:\n- id: enough\n  event: after_step\n  layer: 1\n  condition: {path: cost.turns, op: gte, value: 2}\n  action: {primary: execute, item_type: tool, item_id: rye/agent/threads/internal/control, params: {action: fail, error: \"after ${cost.turns} turns\"}}\n";
    space.world.write(
        "home/.ai/config/agent/hooks.yaml",
        format!("version: \"1.0.0\"\ncategory: agent\nname: hooks\n{config}"),
    );
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/work", Map::new()).await;
    assert_eq!((finished.outcome.status, model.count()), (ThreadStatus::Error, 2), "{:?}", finished.outcome);
    assert_eq!(finished.outcome.error.as_deref(), Some("after 2 turns"));
}

/// A project in which knowledge is loaded at this event.
fn space_with_rules(model: &FakeModel, event: &str) -> TestSpace {
    let space = TestSpace::with_model(model, "openai");
    let knowledge = rye_test::knowledge("team", "rules", "Rules", "Be brief.");
    space.item(ItemType::Knowledge, "team/rules", "md", &knowledge);
    let action = "{primary: load, item_type: knowledge, item_id: team/rules}";
    space.config("hooks", &format!("hooks:\n- {{id: rules, event: {event}, action: {action}}}\n"));
    let grants = "<permissions><load><knowledge>team.rules</knowledge></load></permissions>";
    space.directive("team/work", grants, "", "Work.");
    space
}

#[tokio::test]
async fn build_system_prompt_hooks_set_system_prompt() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = space_with_rules(&model, "build_system_prompt");
    assert_eq!(first_prompt(&space, &model, "team/work", &json!({})).await, "Be brief.");
    let messages = model.requests()[0].body["messages"].clone();
    assert_eq!(
        (&messages[0]["role"], &messages[1]["content"]),
        (&json!("system"), &json!("Work.")),
        "{messages}"
    );
    assert_eq!(space.payloads("system_prompt"), [json!({"text": "Be brief."})]);
}

#[tokio::test]
async fn thread_continued_hooks_run_on_continuation() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = space_with_rules(&model, "thread_continued");
    assert_eq!(
        first_prompt(&space, &model, "team/work", &json!({})).await,
        "Work.",
        "it continues from nothing"
    );
    let threads = space.threads();
    let all = threads.store().threads(&rye_agent::store::ThreadFilter::default()).expect("a list");
    let message = Some("And now?".to_owned());
    let next = threads.continue_from(&all[0], message, CancelSignal::default()).await.expect("started");
    assert_eq!(next.finished().await.expect("finished").outcome.status, ThreadStatus::Completed);
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
async fn context_limit_hooks_decide_when_full() {
    let model = FakeModel::start(|seen| match seen.number {
        1 => FakeReply::calls([("rm_rf", json!({}))]).with_usage(990, 0, 9),
        _ => FakeReply::text("a summary"),
    });
    let space = TestSpace::with_model(&model, "openai");
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
    assert_eq!(finished.outcome.error.as_deref(), Some("full: 1000"), "{:?}", space.significant_events());
    assert_eq!(space.payloads("context_limit_reached")[0]["tokens_limit"], 1000);
}
