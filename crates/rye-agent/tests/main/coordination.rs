//! Every key of coordination, each way: what a parent is given, and what becomes of its children.

use std::sync::Arc;

use rye_agent::driver::CancelSignal;
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::ThreadStatus;
use rye_agent::store::WaitKind;
use rye_agent::threads::{FinishedThread, Threads};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Map, Value, json};

use crate::test_space::{TEST_TIMEOUT, TestSpace};

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><directive>team.*</directive></execute><acknowledge risk=\"elevated\">test</acknowledge></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";

/// How long a parent waits for what must happen.
const WAIT_SECONDS: u32 = 240;

type Calls = Vec<(&'static str, Value)>;

/// A server behind which children are good, bad or slow, and the parent makes the calls that `next` gives for what it was
/// told so far, or is done.
fn model(next: impl Fn(&[Value]) -> Option<Calls> + Send + Sync + 'static) -> FakeModel {
    model_with(&Gate::closed(), next)
}

/// The same, where slow children are done once the gate is open.
fn model_with(gate: &Gate, next: impl Fn(&[Value]) -> Option<Calls> + Send + Sync + 'static) -> FakeModel {
    let gate = gate.clone();
    FakeModel::start(move |seen| {
        let body = seen.body.to_string();
        if body.contains("I am good.") {
            return FakeReply::text("good");
        }
        if body.contains("I am bad.") {
            return FakeReply::status(401, &json!({"error": {"message": "no"}}), &[]);
        }
        if body.contains("I am slow.") {
            return FakeReply::text("slow").with_gate(&gate);
        }
        let results: Vec<Value> = seen
            .tool_result_texts()
            .iter()
            .map(|results| serde_json::from_str(results).unwrap_or_else(|_| json!(results)))
            .collect();
        match next(&results) {
            Some(calls) if calls.is_empty() => FakeReply::hang(),
            Some(calls) => FakeReply::calls(calls),
            None => FakeReply::text("done"),
        }
    })
}

fn team_space(model: &FakeModel) -> TestSpace {
    let space = TestSpace::with_model(model, "openai");
    space.directive("team/parent", PERMISSIONS, "", "I am the parent.");
    for name in ["good", "bad", "slow"] {
        space.directive(&format!("team/{name}"), "", "", &format!("I am {name}."));
    }
    space
}

fn spawn_call(name: &str) -> (&'static str, Value) {
    (SPAWN, json!({"directive_name": format!("team/{name}"), "async_exec": true}))
}

fn ids(results: &[Value]) -> Vec<&str> {
    results.iter().filter_map(|results| results["thread_id"].as_str()).collect()
}

/// What the parent was told of each call, in the order of the calls, and how it ended.
async fn run_parent(space: &TestSpace, threads: &Threads) -> (Vec<Value>, Arc<FinishedThread>) {
    let running = space.run(threads, "team/parent", Map::new());
    let finished = tokio::time::timeout(TEST_TIMEOUT, running).await.expect("in time");
    let parent = finished.thread_id.as_str();
    let events = space.events.0.lock().expect("heard");
    let payloads = |kind: &str| -> Vec<Value> {
        let own = events.iter().filter(|event| event["thread_id"] == parent && event["event_type"] == kind);
        own.map(|event| event["payload"].clone()).collect()
    };
    let results = payloads("tool_call_result");
    let result = |start: Value| {
        let payloads = |result: &&Value| result["call_id"] == start["call_id"];
        let result = results.iter().find(payloads)?;
        let text = result.get("output").or(result.get("error"))?.as_str()?;
        Some(serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
    };
    (payloads("tool_call_start").into_iter().filter_map(result).collect(), finished.clone())
}

/// Waits until a thread has this status.
async fn wait_for_status(threads: &Threads, id: &str, status: ThreadStatus) {
    wait_for_any_status(threads, id, &[status]).await;
}

/// Waits until a thread has one of these statuses.
async fn wait_for_any_status(threads: &Threads, id: &str, statuses: &[ThreadStatus]) {
    let id = rye_agent::thread_id::ThreadId::parse(id).expect("an id");
    let mut changes = threads.store().subscribe();
    let reached = async {
        while !statuses.contains(&threads.store().thread(&id).expect("a store").expect("a thread").status) {
            // The one that lags behind looks again.
            let _ = changes.recv().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reached).await.unwrap_or_else(|_| panic!("{id} is not {statuses:?}"));
}

/// Waits for a child that fails, then for it and a slow one. With `runs_out`, the second wait ends by its timeout.
fn wait_calls(more: Value, runs_out: bool) -> impl Fn(&[Value]) -> Option<Calls> + Send + Sync + 'static {
    let wait = move |ids: &[&str], timeout: u32| {
        let mut wait = json!({"operation": "wait_threads", "thread_ids": ids, "timeout": timeout});
        wait.as_object_mut().expect("a call").extend(more.as_object().expect("more").clone());
        Some(vec![(ORCHESTRATE, wait)])
    };
    move |results| match results.len() {
        0 => Some(vec![spawn_call("bad"), spawn_call("slow")]),
        2 if runs_out => wait(&ids(results)[..1], WAIT_SECONDS),
        2 => wait(&ids(results), WAIT_SECONDS),
        3 if runs_out => wait(&ids(results), 1),
        _ => None,
    }
}

#[tokio::test]
async fn fail_fast_ends_wait_at_first_failure() {
    for (config, call, slow) in [
        ("fail_fast: true", json!({}), "running"),
        ("fail_fast: false", json!({}), "timeout"),
        ("fail_fast: false", json!({"fail_fast": true}), "running"),
    ] {
        let model = model(wait_calls(call, slow == "timeout"));
        let space = team_space(&model);
        space.config("resilience", &format!("coordination:\n  {config}\n"));
        let threads = space.threads();
        let (outputs, _) = run_parent(&space, &threads).await;
        let ids = ids(&outputs);
        let last = outputs.last().expect("a wait");
        let results = &last["results"];
        assert_eq!((&results[ids[0]]["status"], &results[ids[1]]["status"]), (&json!("error"), &json!(slow)));
        assert_eq!(last["success"], false);
        threads.cancel_all("the test is over");
    }
}

#[tokio::test]
async fn cancel_siblings_on_failure_cancels_running_siblings() {
    for (config, status) in [("true", "cancelled"), ("false", "timeout")] {
        let model = model(wait_calls(json!({}), status == "timeout"));
        let space = team_space(&model);
        space.config("resilience", &format!("coordination:\n  cancel_siblings_on_failure: {config}\n"));
        let threads = space.threads();
        let (outputs, _) = run_parent(&space, &threads).await;
        let ids = ids(&outputs);
        let last = outputs.last().expect("a wait");
        assert_eq!(last["results"][ids[1]]["status"], status, "{last}");
        threads.cancel_all("the test is over");
    }
}

#[tokio::test]
async fn max_wait_thread_ids_bounds_one_call() {
    for (max, is_refused) in [(1, true), (2, false)] {
        let model = model(|outputs| match outputs.len() {
            0 => Some(vec![spawn_call("good"), spawn_call("good")]),
            2 => Some(vec![(ORCHESTRATE, json!({"action": "wait_threads", "thread_ids": ids(outputs)}))]),
            _ => None,
        });
        let space = team_space(&model);
        space.config("resilience", &format!("coordination:\n  max_wait_thread_ids: {max}\n"));
        let (outputs, _) = run_parent(&space, &space.threads()).await;
        let error = outputs[2]["error"].to_string();
        assert_eq!(error.contains("max_wait_thread_ids is 1"), is_refused, "{}", outputs[2]);
        assert_eq!(outputs[2]["success"] == json!(true), !is_refused, "{}", outputs[2]);
    }
}

#[tokio::test]
async fn max_timeout_caps_waiting() {
    let model = model(|outputs| match outputs.len() {
        0 => Some(vec![spawn_call("slow")]),
        1 => Some(vec![(
            ORCHESTRATE,
            json!({"operation": "wait_threads", "thread_ids": ids(outputs), "timeout": 3000}),
        )]),
        _ => None,
    });
    let space = team_space(&model);
    space.config("coordination", "coordination:\n  wait_threads:\n    max_timeout: 0.05\n");
    let threads = space.threads();
    let (outputs, _) = run_parent(&space, &threads).await;
    assert_eq!(outputs[1]["results"][ids(&outputs)[0]]["status"], "timeout", "fifty minutes are not waited");
    threads.cancel_all("the test is over");
}

#[tokio::test]
async fn completion_event_ttl_expires_results() {
    for (ttl, is_there) in [("600", true), ("0", false)] {
        let model = model(|outputs| match outputs.len() {
            0 => Some(vec![spawn_call("good")]),
            1 => Some(vec![(ORCHESTRATE, json!({"operation": "wait_threads", "thread_ids": ids(outputs)}))]),
            2 => Some(vec![(
                ORCHESTRATE,
                json!({"operation": "wait_threads", "thread_ids": ids(&outputs[..1])}),
            )]),
            _ => None,
        });
        let space = team_space(&model);
        space.config("resilience", &format!("coordination:\n  completion_event_ttl_seconds: {ttl}\n"));
        let (outputs, _) = run_parent(&space, &space.threads()).await;
        let again = &outputs[2]["results"][ids(&outputs)[0]];
        assert_eq!(again["status"], "completed", "{again}");
        assert_eq!(
            (again["result"] == json!("good"), again["expired"] == json!(true)),
            (is_there, !is_there)
        );
    }
}

/// The fate of a slow child whose parent ends like this, under this policy.
async fn child_outcome(outcome: &str, policy: &str) -> ThreadStatus {
    let (hangs, fails) = (outcome == "cancel", outcome == "error");
    let gate = Gate::closed();
    let model = model_with(&gate, move |results| match results.len() {
        0 => Some(vec![spawn_call("slow")]),
        _ if hangs => Some(Vec::new()),
        1 if fails => Some(vec![("directive_return", json!({"status": "error", "error_detail": "no"}))]),
        _ => None,
    });
    let space = team_space(&model);
    let outputs = "<outputs><output name=\"x\" type=\"string\">Something</output></outputs>";
    space.directive("team/parent", PERMISSIONS, if fails { outputs } else { "" }, "I am the parent.");
    space.config("resilience", &format!("child_policy:\n  on_parent_{outcome}: {policy}\n"));
    let threads = space.threads();
    let request = ThreadRequest::new(
        ItemRef::new(ItemType::Directive, ItemId::new("team/parent").expect("an id")),
        Map::new(),
    );
    let parent = threads.start(request, CancelSignal::default()).await.expect("started");
    let id = parent.thread_id.clone();
    space.wait_for_event("child_thread_started").await;
    let slow = threads.store().children(&id).expect("children")[0].id.to_string();
    // A parent that ends soon may cancel it before it began.
    wait_for_any_status(&threads, &slow, &[ThreadStatus::Running, ThreadStatus::Cancelled]).await;
    if hangs {
        threads.cancel(&id, "enough").await.expect("asked");
    }
    let finished = parent.finished().await.expect("an end");
    let expected = match outcome {
        "cancel" => ThreadStatus::Cancelled,
        "error" => ThreadStatus::Error,
        _ => ThreadStatus::Completed,
    };
    assert_eq!(finished.outcome.status, expected, "{:?}", finished.outcome);
    if policy == "cascade_cancel" {
        wait_for_status(&threads, &slow, ThreadStatus::Cancelled).await;
        return ThreadStatus::Cancelled;
    }
    // One that was left alone comes to its end.
    gate.open();
    wait_for_status(&threads, &slow, ThreadStatus::Completed).await;
    ThreadStatus::Completed
}

#[tokio::test]
async fn children_of_a_cancelled_parent_follow_its_policy() {
    assert_eq!(child_outcome("cancel", "cascade_cancel").await, ThreadStatus::Cancelled);
    assert_eq!(child_outcome("cancel", "allow").await, ThreadStatus::Completed);
}

#[tokio::test]
async fn children_of_a_completed_parent_follow_its_policy() {
    assert_eq!(child_outcome("complete", "cascade_cancel").await, ThreadStatus::Cancelled);
    assert_eq!(child_outcome("complete", "allow").await, ThreadStatus::Completed);
}

#[tokio::test]
async fn children_of_a_failed_parent_follow_its_policy() {
    assert_eq!(child_outcome("error", "cascade_cancel").await, ThreadStatus::Cancelled);
    assert_eq!(child_outcome("error", "allow").await, ThreadStatus::Completed);
}

/// How many of three children are started under this configuration, and what the others are told.
async fn start_children(config: &str) -> (usize, Vec<String>) {
    let model = model(|outputs| match outputs.len() {
        0 => Some(vec![spawn_call("slow"), spawn_call("slow"), spawn_call("slow")]),
        _ => None,
    });
    let space = team_space(&model);
    space.config("resilience", config);
    let threads = space.threads();
    let (outputs, _) = run_parent(&space, &threads).await;
    let refused = outputs.iter().filter_map(|outputs| outputs["error"].as_str().map(str::to_owned)).collect();
    threads.cancel_all("the test is over");
    (ids(&outputs).len(), refused)
}

#[tokio::test]
async fn max_concurrent_children_is_enforced() {
    let config = "concurrency:\n  max_concurrent_children: 2\n  queue_timeout_seconds: 0\n";
    let (count, refused) = start_children(config).await;
    assert_eq!((count, refused.len()), (2, 1));
    assert!(refused[0].contains("max_concurrent_children limit reached (2 of 2)"), "{refused:?}");
    assert_eq!(start_children("concurrency:\n  max_concurrent_children: 3\n").await.0, 3);
}

/// A parent that starts three slow children, of which one waits for its place until another has ended.
#[tokio::test]
async fn children_beyond_the_cap_wait_their_turn() {
    let gate = Gate::closed();
    let model = model_with(&gate, |results| match results.len() {
        0 => Some(vec![spawn_call("slow"), spawn_call("slow"), spawn_call("slow")]),
        _ => None,
    });
    let space = team_space(&model);
    space.config("resilience", "concurrency:\n  max_concurrent_children: 2\n  max_total_threads: 3\n");
    let threads = space.threads();
    let (outputs, parent) = run_parent(&space, &threads).await;
    let children = threads.store().children(&parent.thread_id).expect("children");
    assert_eq!((ids(&outputs).len(), children.len()), (3, 3), "{outputs:?}");
    let waiting: Vec<_> = children.iter().map(|row| (row.status, row.waiting)).collect();
    assert_eq!(waiting[2], (ThreadStatus::Created, Some(WaitKind::Concurrency)), "{waiting:?}");
    assert!(waiting[..2].iter().all(|(_, waiting)| waiting.is_none()), "{waiting:?}");
    gate.open();
    for child in &children {
        wait_for_status(&threads, child.id.as_str(), ThreadStatus::Completed).await;
    }
}

/// A child that has no place in time is cancelled, and says why; one that is cancelled before never begins.
#[tokio::test]
async fn queue_timeout_ends_waiting_children() {
    let model = model(|results| match results.len() {
        0 => Some(vec![spawn_call("slow"), spawn_call("slow")]),
        _ => None,
    });
    let space = team_space(&model);
    let start = |config: &'static str| {
        space.config("resilience", config);
        space.threads()
    };
    let threads = start("concurrency:\n  max_concurrent_children: 1\n  queue_timeout_seconds: 1\n");
    let (_, parent) = run_parent(&space, &threads).await;
    let late = threads.store().children(&parent.thread_id).expect("children")[1].id.clone();
    wait_for_status(&threads, late.as_str(), ThreadStatus::Cancelled).await;
    let row = threads.store().thread(&late).expect("a store").expect("a thread");
    assert!(row.error.as_deref().is_some_and(|error| error.contains("max_concurrent_children")), "{row:?}");
    assert_eq!((row.waiting, row.cost.turns), (None, 0));
    threads.cancel_all("the test is over");
}

#[tokio::test]
async fn max_total_threads_is_enforced() {
    let (count, refused) = start_children("concurrency:\n  max_total_threads: 2\n").await;
    assert_eq!((count, refused.len()), (1, 2), "the parent counts");
    assert!(refused[0].contains("max_total_threads limit reached (2 of 2)"), "{refused:?}");
    assert_eq!(start_children("concurrency:\n  max_total_threads: 4\n").await.0, 3);
}

#[tokio::test]
async fn thread_calls_are_validated_in_both_spellings() {
    let model = model(|outputs| match outputs.len() {
        0 => Some(vec![
            (SPAWN, json!({"directive_name": "team/good", "colour": "red"})),
            (SPAWN, json!({"directive_name": "team/good", "async_exec": "perhaps"})),
            (SPAWN, json!({"inputs": {}})),
            (SPAWN, json!({"directive_name": "team/good", "parent_thread_id": "thread-000000000000"})),
            (ORCHESTRATE, json!({"operation": "list_active", "colour": "red"})),
            (ORCHESTRATE, json!({"operation": "explode"})),
            (ORCHESTRATE, json!({"operation": "wait_threads", "thread_ids": [], "timeout": -1})),
            (SPAWN, json!({"directive_id": "team/good", "inputs": "{}", "async": false, "model": null})),
            (SPAWN, json!({"directive_name": "team/good", "inputs": {}, "async_exec": false})),
            (ORCHESTRATE, json!({"action": "list_active"})),
            (ORCHESTRATE, json!({"operation": "list_active"})),
            ("rye_execute", json!({"item_id": "directive:team/good", "thread": "fork"})),
        ]),
        _ => None,
    });
    let space = team_space(&model);
    let (outputs, _) = run_parent(&space, &space.threads()).await;
    assert_eq!(outputs.len(), 12);
    for (index, words) in
        ["colour", "async_exec", "directive_name", "is not the caller", "colour", "operation", "timeout"]
            .into_iter()
            .enumerate()
    {
        assert!(outputs[index]["error"].to_string().contains(words), "{index}: {}", outputs[index]);
    }
    for fine in &outputs[7..] {
        assert_eq!(fine["success"], true, "{fine}");
    }
    assert_eq!((&outputs[7]["result"], &outputs[11]["result"]), (&json!("good"), &json!("good")));
}
