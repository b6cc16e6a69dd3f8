//! Money that waits: prompts that are estimated, calls and children that wait for others, and calls that break off.

use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Value, json};

use crate::support::{User, run, text};
use crate::thread_run::{command_with_model, spawn_with_model, threads, write_directive};
use crate::tool_support::eventually;

const SPAWNER: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><directive>team.*</directive></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";

/// Children of the large test.
const CHILDREN: usize = 20;

/// The same command against Anthropic's protocol, at Sonnet's prices.
fn sonnet_command(user: &User, model: &FakeModel) -> assert_cmd::Command {
    let mut command = user.command();
    command.env("ANTHROPIC_API_KEY", "sk-ant-of-a-test-0123456789");
    command.env("ANTHROPIC_BASE_URL", model.url());
    command
}

fn transcript_events(user: &User, id: &str, kind: &str) -> Vec<Value> {
    let path = format!("project/.ai/threads/{id}/transcript.jsonl");
    let lines = user.context.text(&path);
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event_type"] == kind).collect()
}

/// Twenty children at default limits spend little, and none of them stops for what the others only reserve.
#[test]
fn twenty_children_complete_without_suspension() {
    let user = User::initialized();
    write_directive(&user, "child", "", "", "Be the child.");
    write_directive(&user, "parent", SPAWNER, "", "Be the parent.");
    let model = FakeModel::start(|request| {
        if request.body.to_string().contains("Be the child") {
            return FakeReply::text("small").with_usage(300, 0, 40);
        }
        match request.tool_results {
            0 => {
                let call = json!({"directive_name": "team/child", "async_exec": true});
                FakeReply::calls((0..CHILDREN).map(|_| (SPAWN, call.clone()))).with_usage(500, 0, 200)
            }
            CHILDREN => {
                let results = request.tool_result_texts();
                let ids: Vec<Value> = results
                    .iter()
                    .filter_map(|text| serde_json::from_str::<Value>(text).ok())
                    .map(|result| result["thread_id"].clone())
                    .collect();
                let wait = json!({"operation": "wait_threads", "thread_ids": ids, "timeout": 120});
                FakeReply::calls([(ORCHESTRATE, wait)]).with_usage(1000, 0, 50)
            }
            _ => FakeReply::text("done").with_usage(1000, 0, 20),
        }
    });
    let arguments = ["run", "team/parent", "--model", "claude-sonnet-4-5", "--limit", "spawns=20"];
    let result = run(sonnet_command(&user, &model).args(arguments));
    assert_eq!(result.exit, 0, "{result}");
    let rows = threads(&user);
    assert_eq!(rows.len(), CHILDREN + 1, "{rows:?}");
    assert!(rows.iter().all(|row| row["status"] == "completed"), "{rows:?}");
    let parent = rows.iter().find(|row| row["directive"] == "team/parent").expect("a parent");
    let spent = parent["subtree_spend"].as_f64().expect("dollars");
    assert!(spent > 0.0 && spent <= 0.05, "{spent}");
    for row in &rows {
        let suspended = transcript_events(&user, &text(&row["thread_id"]), "thread_suspended");
        assert!(suspended.is_empty(), "{suspended:?}");
    }
}

/// Two children whose reservations do not fit beside each other run one after the other, and the second is seen to wait.
#[test]
fn call_waits_for_reserved_money() {
    let user = User::initialized();
    write_directive(&user, "child", "", "", "Be the child.");
    write_directive(&user, "parent", SPAWNER, "", "Be the parent.");
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |request| {
        if request.body.to_string().contains("Be the child") {
            return FakeReply::text("small").with_usage(300, 0, 40).with_gate(&held);
        }
        match request.tool_results {
            0 => {
                let call = json!({"directive_name": "team/child", "model": "gpt-4.1"});
                FakeReply::calls([(SPAWN, call.clone()), (SPAWN, call)]).with_usage(1000, 0, 100)
            }
            _ => FakeReply::text("done").with_usage(1000, 0, 20),
        }
    });
    // The price of 16384 tokens of gpt-4.1 is 0.13 dollars: one call fits, two do not.
    let arguments = ["run", "team/parent", "--model", "gpt-4.1", "--limit", "spend=0.2"];
    let running = spawn_with_model(&user, &model, &arguments);
    let waiting = || threads(&user).into_iter().find(|row| row["waiting"] == "budget");
    assert!(eventually(|| waiting().is_some()), "{:?}", threads(&user));
    let id = text(&waiting().expect("a thread")["thread_id"]);
    let list = user.ok(["thread", "list", "--all"]);
    assert!(list.stdout.contains("waiting (budget)"), "{list}");
    let tree = user.ok(["thread", "tree", &id]);
    assert!(tree.stdout.contains("waiting (budget)"), "{tree}");
    gate.open();
    let output = running.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(threads(&user).iter().all(|row| row["status"] == "completed"), "{:?}", threads(&user));
    let events = transcript_events(&user, &id, "budget_waiting");
    assert_eq!(events.len(), 1, "{events:?}");
}

/// A long document is counted, not measured in bytes, and a small limit leaves room for a short answer.
#[test]
fn estimates_let_prompts_within_limits_pass() {
    let user = User::initialized();
    let sentence = "The quick brown fox jumps over the lazy dog while the sun sets behind the hills. ";
    write_directive(&user, "long", "", "", &sentence.repeat(2_820));
    write_directive(&user, "short", "", "", "Say hello.");
    let model = FakeModel::start(|_| FakeReply::text("hello").with_usage(50_000, 0, 10));
    let long = run(command_with_model(&user, &model).args(["run", "team/long", "--limit", "tokens=200000"]));
    assert_eq!(long.exit, 0, "{long}");
    let small = FakeModel::start(|_| FakeReply::text("hello").with_usage(500, 0, 10));
    let short = run(command_with_model(&user, &small).args(["run", "team/short", "--limit", "tokens=4096"]));
    assert_eq!(short.exit, 0, "{short}");
    let request = small.requests().remove(0);
    let asked = ["max_output_tokens", "max_completion_tokens", "max_tokens"];
    let asked = asked.iter().find_map(|key| request.body[*key].as_u64()).expect("a bound");
    assert!((128..4096).contains(&asked), "{asked}");
    let id = text(&threads(&user)[0]["thread_id"]);
    let report = user.data(["thread", "cost", &id]);
    let estimates = &report["estimates"];
    assert_eq!((&estimates["calls"], &estimates["actual"]), (&json!(1), &json!(500)), "{report}");
    assert!(estimates["estimated"].as_u64().is_some_and(|estimated| estimated > 0), "{report}");
}

/// A stream that breaks is charged its prompt and what arrived, not all that was reserved.
#[test]
fn broken_stream_is_charged_what_arrived() {
    let user = User::initialized();
    write_directive(&user, "short", "", "", "Say hello.");
    let model = FakeModel::start(|request| match request.number {
        1 => FakeReply::reset_mid_stream(2),
        _ => FakeReply::text("hello").with_usage(500, 0, 10),
    });
    let result = run(command_with_model(&user, &model).args(["run", "team/short", "--model", "gpt-4.1"]));
    assert_eq!(result.exit, 0, "{result}");
    let id = text(&threads(&user)[0]["thread_id"]);
    let total = &user.data(["thread", "cost", &id])["total"];
    assert_eq!((&total["calls"], &total["unknown"]), (&json!(2), &json!(1)), "{total}");
    let spend = total["spend"].as_f64().expect("dollars");
    // The reservation of an answer of 16384 tokens alone is 0.13 dollars.
    assert!(spend > 0.0011 && spend < 0.02, "{spend}");
}
