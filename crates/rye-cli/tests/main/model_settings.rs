//! Settings on `<model>`: checked when a directive is signed, sent in each protocol's own words, refused where a model does
//! not take them, and each thread's own.

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, run, text};
use crate::thread_run::{command_with_model, threads, write_directive};

const SPAWNER: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><directive>team.*</directive></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";

const SCHEMA: &str = r#"{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false}"#;

fn schema() -> Value {
    serde_json::from_str(SCHEMA).expect("JSON")
}

fn settings(attributes: &str) -> String {
    format!("<model {attributes}><stop>END</stop><response_format>{SCHEMA}</response_format></model>")
}

fn anthropic_command(user: &User, model: &FakeModel) -> assert_cmd::Command {
    let mut command = user.command();
    command.env("ANTHROPIC_API_KEY", "sk-ant-of-a-test-0123456789");
    command.env("ANTHROPIC_BASE_URL", model.url());
    command
}

#[test]
fn settings_reach_both_protocols() {
    let user = User::initialized();
    let model = FakeModel::start(|_| FakeReply::text("{\"n\": 1}").with_usage(100, 0, 10));
    write_directive(&user, "warm", &settings("temperature=\"0.2\" max_output_tokens=\"2000\""), "", "Count.");
    let warm = run(command_with_model(&user, &model).args(["run", "team/warm", "--model", "gpt-4.1"]));
    assert_eq!(warm.exit, 0, "{warm}");
    let body = &model.requests()[0].body;
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema(), "strict": true}});
    assert_eq!((&body["temperature"], &body["stop"]), (&json!(0.2), &json!(["END"])), "{body}");
    assert_eq!((&body["response_format"], &body["max_completion_tokens"]), (&format, &json!(2000)), "{body}");

    let asked = settings("reasoning_effort=\"low\" max_output_tokens=\"8000\"");
    write_directive(&user, "deep", &asked, "", "Count.");
    let deep =
        run(anthropic_command(&user, &model).args(["run", "team/deep", "--model", "claude-sonnet-4-5"]));
    assert_eq!(deep.exit, 0, "{deep}");
    let body = &model.requests()[1].body;
    assert_eq!(body["thinking"], json!({"type": "enabled", "budget_tokens": 1600}), "{body}");
    assert_eq!((&body["stop_sequences"], &body["max_tokens"]), (&json!(["END"]), &json!(8000)), "{body}");
    let config = json!({"format": {"type": "json_schema", "schema": schema()}});
    assert_eq!((&body["output_config"], body.get("temperature")), (&config, None), "{body}");
}

#[test]
fn setting_a_model_refuses_is_named() {
    let user = User::initialized();
    let model = FakeModel::start(|_| FakeReply::text("{\"n\": 1}"));
    write_directive(&user, "warm", &settings("temperature=\"1.5\""), "", "Count.");
    let arguments = ["--json", "run", "team/warm", "--model", "gpt-5"];
    let error = run(command_with_model(&user, &model).args(arguments)).error(9, "RYE1161");
    assert!(text(&error["error"]).contains("`temperature`"), "{error}");
    let error =
        run(anthropic_command(&user, &model).args(["--json", "run", "team/warm"])).error(9, "RYE1161");
    assert!(text(&error["error"]).contains("takes 1 at most"), "{error}");
    assert_eq!((model.count(), threads(&user).len()), (0, 0));
}

#[test]
fn fallback_without_the_setting_is_left_out() {
    let user = User::initialized();
    let model = FakeModel::start(|_| FakeReply::text("{\"n\": 1}").with_usage(100, 0, 10));
    let tiers = "version: \"1.0.0\"\ncategory: agent\nname: agent\ntiers:\n  general:\n\
                 \x20   - {provider: openai, model: gpt-4.1}\n    - {provider: openai, model: gpt-5}\n";
    user.write_user("config/agent/agent.yaml", tiers);
    write_directive(&user, "warm", &settings("temperature=\"0.5\""), "", "Count.");
    let result = run(command_with_model(&user, &model).args(["run", "team/warm"]));
    assert_eq!(result.exit, 0, "{result}");
    assert!(result.stderr.contains("left out of `general`: `gpt-5` of `openai`"), "{result}");
    assert_eq!(model.requests()[0].body["model"], "gpt-4.1");
}

/// The most that a call can cost is reserved: a short answer leaves room where a long one does not.
#[test]
fn max_output_bounds_the_reservation() {
    let user = User::initialized();
    let model = FakeModel::start(|_| FakeReply::text("short").with_usage(100, 0, 10));
    write_directive(&user, "short", "<model max_output_tokens=\"200\"/>", "", "Count.");
    let arguments = ["run", "team/short", "--model", "gpt-4.1", "--limit", "spend=0.02"];
    let result = run(command_with_model(&user, &model).args(arguments));
    assert_eq!(result.exit, 0, "{result}");
    assert_eq!(model.requests()[0].body["max_completion_tokens"], 200);
    let id = text(&threads(&user)[0]["thread_id"]);
    let started = user.context.text(&format!("project/.ai/threads/{id}/transcript.jsonl"));
    let first: Value = serde_json::from_str(started.lines().next().expect("a line")).expect("JSON");
    assert_eq!(first["payload"]["settings"], json!({"max_output_tokens": 200}), "{first}");
}

#[test]
fn children_do_not_inherit_settings() {
    let user = User::initialized();
    write_directive(&user, "child", "", "", "Be the child.");
    let parent = format!("<model temperature=\"0.1\"/>{SPAWNER}");
    write_directive(&user, "parent", &parent, "", "Be the parent.");
    let model = FakeModel::start(|request| {
        let is_child = request.body.to_string().contains("Be the child");
        match (is_child, request.tool_results) {
            (false, 0) => {
                FakeReply::calls([(SPAWN, json!({"directive_name": "team/child", "model": "gpt-4.1"}))])
            }
            _ => FakeReply::text("done"),
        }
        .with_usage(100, 0, 10)
    });
    let result = run(command_with_model(&user, &model).args(["run", "team/parent", "--model", "gpt-4.1"]));
    assert_eq!(result.exit, 0, "{result}");
    let temperatures: Vec<Option<Value>> =
        model.requests().iter().map(|request| request.body.get("temperature").cloned()).collect();
    assert_eq!(temperatures, [Some(json!(0.1)), None, Some(json!(0.1))]);
}

#[test]
fn answer_of_another_format_is_asked_again() {
    let user = User::initialized();
    let model = FakeModel::start(|request| {
        let words = if request.number == 1 { "one" } else { "{\"n\": 1}" };
        FakeReply::text(words).with_usage(100, 0, 10)
    });
    write_directive(&user, "count", &settings("tier=\"general\""), "", "Count.");
    let environment =
        [("OPENAI_API_KEY", "sk-of-a-test-0123456789"), ("OPENAI_BASE_URL", &*format!("{}/v1", model.url()))];
    let mut client = Client::connect_with(&user, &environment, json!({}));
    let call =
        json!({"item_type": "directive", "item_id": "team/count", "thread": "fork", "model": "gpt-4.1"});
    let done = client.call("rye_execute", call);
    assert_eq!((&done["data"]["status"], model.count()), (&json!("completed"), 2), "{done}");
    assert_eq!(done["data"]["result"], "{\"n\": 1}", "{done}");
    let asked = model.requests()[1].body.to_string();
    assert!(asked.contains("does not have the format that was asked for"), "{asked}");

    let stubborn = FakeModel::start(|_| FakeReply::text("one").with_usage(100, 0, 10));
    let result = run(command_with_model(&user, &stubborn).args(["run", "team/count", "--model", "gpt-4.1"]));
    assert_eq!((result.exit, stubborn.count()), (1, 3), "{result}");
    assert!(result.stderr.contains("response_format"), "{result}");
}

/// A thread that was killed is resumed with the settings it was started with.
#[test]
fn settings_survive_kill_and_resume() {
    let user = User::initialized();
    write_directive(&user, "warm", "<model temperature=\"0.3\"/>", "", "Count.");
    let gate = rye_test::fake_model::Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |request| match request.number {
        1 => FakeReply::text("late").with_gate(&held),
        _ => FakeReply::text("done").with_usage(100, 0, 10),
    });
    let arguments = ["run", "team/warm", "--model", "gpt-4.1"];
    let mut running = crate::thread_run::spawn_with_model(&user, &model, &arguments);
    model.wait_for_requests(1);
    running.kill().expect("kill -9");
    running.wait().expect("an end");
    gate.open();
    write_directive(&user, "warm", "<model temperature=\"0.9\"/>", "", "Count.");
    let id = text(&threads(&user)[0]["thread_id"]);
    let resumed = run(command_with_model(&user, &model).args(["thread", "resume", &id]));
    assert_eq!(resumed.exit, 0, "{resumed}");
    assert_eq!(model.requests()[1].body["temperature"], json!(0.3));
}
