//! Every key of coordination, each way: what a parent is told, and what becomes of its children.

use std::sync::Arc;

use rye_agent::driver::Signal;
use rye_agent::prepare::Order;
use rye_agent::status::Status;
use rye_agent::threads::{Finished, Threads};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, Gate, Reply};
use serde_json::{Map, Value, json};

use crate::space::{PATIENCE, Space};

const MAY: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><directive>team.*</directive></execute><acknowledge risk=\"elevated\">test</acknowledge></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const LEAD: &str = "rye_agent_threads_orchestrator";

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
            return Reply::text("good");
        }
        if body.contains("I am bad.") {
            return Reply::status(401, &json!({"error": {"message": "no"}}), &[]);
        }
        if body.contains("I am slow.") {
            return Reply::text("slow").held(&gate);
        }
        let told: Vec<Value> = seen
            .results()
            .iter()
            .map(|told| serde_json::from_str(told).unwrap_or_else(|_| json!(told)))
            .collect();
        match next(&told) {
            Some(calls) if calls.is_empty() => Reply::hang(),
            Some(calls) => Reply::calls(calls),
            None => Reply::text("done"),
        }
    })
}

fn space(model: &FakeModel) -> Space {
    let space = Space::with_model(model, "openai");
    space.directive("team/parent", MAY, "", "I am the parent.");
    for name in ["good", "bad", "slow"] {
        space.directive(&format!("team/{name}"), "", "", &format!("I am {name}."));
    }
    space
}

fn child(name: &str) -> (&'static str, Value) {
    (SPAWN, json!({"directive_name": format!("team/{name}"), "async_exec": true}))
}

fn ids(told: &[Value]) -> Vec<&str> {
    told.iter().filter_map(|told| told["thread_id"].as_str()).collect()
}

/// What the parent was told of each call, in the order of the calls, and how it ended.
async fn told(space: &Space, threads: &Threads) -> (Vec<Value>, Arc<Finished>) {
    let running = space.run(threads, "team/parent", Map::new());
    let finished = tokio::time::timeout(PATIENCE, running).await.expect("in time");
    let parent = finished.thread_id.as_str();
    let heard = space.heard.0.lock().expect("heard");
    let of = |kind: &str| -> Vec<Value> {
        let own = heard.iter().filter(|event| event["thread_id"] == parent && event["event_type"] == kind);
        own.map(|event| event["payload"].clone()).collect()
    };
    let results = of("tool_call_result");
    let result = |start: Value| {
        let of = |result: &&Value| result["call_id"] == start["call_id"];
        let result = results.iter().find(of)?;
        let text = result.get("output").or(result.get("error"))?.as_str()?;
        Some(serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
    };
    (of("tool_call_start").into_iter().filter_map(result).collect(), finished.clone())
}

/// Waits until a thread stands so.
async fn stands(threads: &Threads, id: &str, status: Status) {
    let id = rye_agent::thread_id::ThreadId::parse(id).expect("an id");
    let mut changes = threads.store().subscribe();
    let standing = async {
        while threads.store().thread(&id).expect("a store").expect("a thread").status != status {
            // Whoever lags behind looks again.
            let _ = changes.recv().await;
        }
    };
    tokio::time::timeout(PATIENCE, standing).await.unwrap_or_else(|_| panic!("{id} is not {status}"));
}

fn waits(more: Value) -> impl Fn(&[Value]) -> Option<Calls> + Send + Sync + 'static {
    move |told| match told.len() {
        0 => Some(vec![child("bad"), child("slow")]),
        2 => {
            let mut wait = json!({"operation": "wait_threads", "thread_ids": ids(told), "timeout": 1});
            wait.as_object_mut().expect("a call").extend(more.as_object().expect("more").clone());
            Some(vec![(LEAD, wait)])
        }
        _ => None,
    }
}

#[tokio::test]
async fn fail_fast_ends_the_waiting_at_the_first_failure() {
    for (config, call, slow) in [
        ("fail_fast: true", json!({}), "running"),
        ("fail_fast: false", json!({}), "timeout"),
        ("fail_fast: false", json!({"fail_fast": true}), "running"),
    ] {
        let model = model(waits(call));
        let space = space(&model);
        space.config("resilience", &format!("coordination:\n  {config}\n"));
        let threads = space.threads();
        let (told, _) = told(&space, &threads).await;
        let ids = ids(&told);
        let results = &told[2]["results"];
        assert_eq!((&results[ids[0]]["status"], &results[ids[1]]["status"]), (&json!("error"), &json!(slow)));
        assert_eq!(told[2]["success"], false);
        threads.cancel_all("the test is over");
    }
}

#[tokio::test]
async fn cancel_siblings_on_failure_ends_those_still_at_work() {
    for (config, status) in [("true", "cancelled"), ("false", "timeout")] {
        let model = model(waits(json!({})));
        let space = space(&model);
        space.config("resilience", &format!("coordination:\n  cancel_siblings_on_failure: {config}\n"));
        let threads = space.threads();
        let (told, _) = told(&space, &threads).await;
        let ids = ids(&told);
        assert_eq!(told[2]["results"][ids[1]]["status"], status, "{}", told[2]);
        threads.cancel_all("the test is over");
    }
}

#[tokio::test]
async fn max_wait_thread_ids_is_how_many_one_call_waits_for() {
    for (most, is_refused) in [(1, true), (2, false)] {
        let model = model(|told| match told.len() {
            0 => Some(vec![child("good"), child("good")]),
            2 => Some(vec![(LEAD, json!({"action": "wait_threads", "thread_ids": ids(told)}))]),
            _ => None,
        });
        let space = space(&model);
        space.config("resilience", &format!("coordination:\n  max_wait_thread_ids: {most}\n"));
        let (told, _) = told(&space, &space.threads()).await;
        let error = told[2]["error"].to_string();
        assert_eq!(error.contains("max_wait_thread_ids is 1"), is_refused, "{}", told[2]);
        assert_eq!(told[2]["success"] == json!(true), !is_refused, "{}", told[2]);
    }
}

#[tokio::test]
async fn the_longest_wait_is_what_max_timeout_says() {
    let model = model(|told| match told.len() {
        0 => Some(vec![child("slow")]),
        1 => {
            Some(vec![(LEAD, json!({"operation": "wait_threads", "thread_ids": ids(told), "timeout": 3000}))])
        }
        _ => None,
    });
    let space = space(&model);
    space.config("coordination", "coordination:\n  wait_threads:\n    max_timeout: 0.05\n");
    let threads = space.threads();
    let (told, _) = told(&space, &threads).await;
    assert_eq!(told[1]["results"][ids(&told)[0]]["status"], "timeout", "fifty minutes are not waited");
    threads.cancel_all("the test is over");
}

#[tokio::test]
async fn completion_event_ttl_is_how_long_a_result_is_repeated() {
    for (ttl, is_there) in [("600", true), ("0", false)] {
        let model = model(|told| match told.len() {
            0 => Some(vec![child("good")]),
            1 => Some(vec![(LEAD, json!({"operation": "wait_threads", "thread_ids": ids(told)}))]),
            2 => Some(vec![(LEAD, json!({"operation": "wait_threads", "thread_ids": ids(&told[..1])}))]),
            _ => None,
        });
        let space = space(&model);
        space.config("resilience", &format!("coordination:\n  completion_event_ttl_seconds: {ttl}\n"));
        let (told, _) = told(&space, &space.threads()).await;
        let again = &told[2]["results"][ids(&told)[0]];
        assert_eq!(again["status"], "completed", "{again}");
        assert_eq!(
            (again["result"] == json!("good"), again["expired"] == json!(true)),
            (is_there, !is_there)
        );
    }
}

/// The fate of a slow child whose parent ends like this, under this policy.
async fn fate(ending: &str, policy: &str) -> Status {
    let (hangs, fails) = (ending == "cancel", ending == "error");
    let gate = Gate::closed();
    let model = model_with(&gate, move |told| match told.len() {
        0 => Some(vec![child("slow")]),
        _ if hangs => Some(Vec::new()),
        1 if fails => Some(vec![("directive_return", json!({"status": "error", "error_detail": "no"}))]),
        _ => None,
    });
    let space = space(&model);
    let outputs = "<outputs><output name=\"x\" type=\"string\">Something</output></outputs>";
    space.directive("team/parent", MAY, if fails { outputs } else { "" }, "I am the parent.");
    space.config("resilience", &format!("child_policy:\n  on_parent_{ending}: {policy}\n"));
    let threads = space.threads();
    let order =
        Order::new(ItemRef::new(ItemType::Directive, ItemId::new("team/parent").expect("an id")), Map::new());
    let parent = threads.start(order, Signal::default()).await.expect("started");
    let id = parent.thread_id.clone();
    space.heard_of("child_thread_started").await;
    let slow = threads.store().children(&id).expect("children")[0].id.to_string();
    stands(&threads, &slow, Status::Running).await;
    if hangs {
        threads.end(&id, "enough").await.expect("asked");
    }
    let finished = parent.finished().await.expect("an end");
    let expected = match ending {
        "cancel" => Status::Cancelled,
        "error" => Status::Error,
        _ => Status::Completed,
    };
    assert_eq!(finished.outcome.status, expected, "{:?}", finished.outcome);
    if policy == "cascade_cancel" {
        stands(&threads, &slow, Status::Cancelled).await;
        return Status::Cancelled;
    }
    // One that was left alone comes to its end.
    gate.open();
    stands(&threads, &slow, Status::Completed).await;
    Status::Completed
}

#[tokio::test]
async fn children_of_a_cancelled_parent_follow_its_policy() {
    assert_eq!(fate("cancel", "cascade_cancel").await, Status::Cancelled);
    assert_eq!(fate("cancel", "allow").await, Status::Completed);
}

#[tokio::test]
async fn children_of_a_completed_parent_follow_its_policy() {
    assert_eq!(fate("complete", "cascade_cancel").await, Status::Cancelled);
    assert_eq!(fate("complete", "allow").await, Status::Completed);
}

#[tokio::test]
async fn children_of_a_failed_parent_follow_its_policy() {
    assert_eq!(fate("error", "cascade_cancel").await, Status::Cancelled);
    assert_eq!(fate("error", "allow").await, Status::Completed);
}

/// How many of three children are started under this configuration, and what the others are told.
async fn started(config: &str) -> (usize, Vec<String>) {
    let model = model(|told| match told.len() {
        0 => Some(vec![child("slow"), child("slow"), child("slow")]),
        _ => None,
    });
    let space = space(&model);
    space.config("resilience", config);
    let threads = space.threads();
    let (told, _) = told(&space, &threads).await;
    let refused = told.iter().filter_map(|told| told["error"].as_str().map(str::to_owned)).collect();
    threads.cancel_all("the test is over");
    (ids(&told).len(), refused)
}

#[tokio::test]
async fn max_concurrent_children_is_how_many_run_beside_each_other() {
    let (count, refused) = started("concurrency:\n  max_concurrent_children: 2\n").await;
    assert_eq!((count, refused.len()), (2, 1));
    assert!(refused[0].contains("max_concurrent_children is 2"), "{refused:?}");
    assert_eq!(started("concurrency:\n  max_concurrent_children: 3\n").await.0, 3);
}

#[tokio::test]
async fn max_total_threads_is_how_many_a_tree_has_at_work() {
    let (count, refused) = started("concurrency:\n  max_total_threads: 2\n").await;
    assert_eq!((count, refused.len()), (1, 2), "the parent counts");
    assert!(refused[0].contains("max_total_threads is 2"), "{refused:?}");
    assert_eq!(started("concurrency:\n  max_total_threads: 4\n").await.0, 3);
}

#[tokio::test]
async fn calls_are_held_against_their_schemas_and_have_two_spellings() {
    let model = model(|told| match told.len() {
        0 => Some(vec![
            (SPAWN, json!({"directive_name": "team/good", "colour": "red"})),
            (SPAWN, json!({"directive_name": "team/good", "async_exec": "perhaps"})),
            (SPAWN, json!({"inputs": {}})),
            (SPAWN, json!({"directive_name": "team/good", "parent_thread_id": "thread-000000000000"})),
            (LEAD, json!({"operation": "list_active", "colour": "red"})),
            (LEAD, json!({"operation": "explode"})),
            (LEAD, json!({"operation": "wait_threads", "thread_ids": [], "timeout": -1})),
            (SPAWN, json!({"directive_id": "team/good", "inputs": "{}", "async": false, "model": null})),
            (SPAWN, json!({"directive_name": "team/good", "inputs": {}, "async_exec": false})),
            (LEAD, json!({"action": "list_active"})),
            (LEAD, json!({"operation": "list_active"})),
            ("rye_execute", json!({"item_id": "directive:team/good", "thread": "fork"})),
        ]),
        _ => None,
    });
    let space = space(&model);
    let (told, _) = told(&space, &space.threads()).await;
    assert_eq!(told.len(), 12);
    for (index, words) in
        ["colour", "async_exec", "directive_name", "is not the caller", "colour", "operation", "timeout"]
            .into_iter()
            .enumerate()
    {
        assert!(told[index]["error"].to_string().contains(words), "{index}: {}", told[index]);
    }
    for fine in &told[7..] {
        assert_eq!(fine["success"], true, "{fine}");
    }
    assert_eq!((&told[7]["result"], &told[11]["result"]), (&json!("good"), &json!("good")));
}
