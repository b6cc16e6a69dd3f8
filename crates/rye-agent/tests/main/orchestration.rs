//! Threads that start, wait for, look at and end others, as a model does it.

use rye_agent::driver::CancelSignal;
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::ThreadStatus;
use rye_agent::threads::ResumeOptions;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, FakeRequest, Gate};
use serde_json::{Map, Value, json};

use crate::test_space::TestSpace;

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";

/// A call that waits until these threads have ended.
fn wait_call(ids: &[String]) -> (&'static str, Value) {
    (ORCHESTRATE, json!({"operation": "wait_threads", "thread_ids": ids, "timeout": 240}))
}

/// The ids of threads that results of tools name, in their order.
fn child_ids(seen: &FakeRequest<'_>) -> Vec<String> {
    let ids = seen.tool_result_texts().into_iter().filter_map(|result| {
        let response: Value = serde_json::from_str(&result).ok()?;
        response.get("thread_id").and_then(Value::as_str).map(str::to_owned)
    });
    ids.fold(Vec::new(), |mut all, id| {
        if !all.contains(&id) {
            all.push(id);
        }
        all
    })
}

fn is_child(seen: &FakeRequest<'_>) -> bool {
    seen.body.to_string().contains("I am a child.")
}

fn parent_and_child(space: &TestSpace) {
    space.directive("team/parent", PERMISSIONS, "", "I am the parent.");
    let inputs = "<inputs><input name=\"topic\" type=\"string\">What about</input></inputs>";
    space.directive("team/child", "", inputs, "I am a child. About {input:topic:nothing}.");
}

/// What came of each call, in the order of the calls.
fn tool_results(space: &TestSpace) -> Vec<Value> {
    let recorded = space.payloads("tool_call_result");
    let result_of = |start: &Value| {
        let result = recorded.iter().find(|result| result["call_id"] == start["call_id"])?;
        let text = result.get("output").or(result.get("error"))?.as_str()?;
        Some(serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
    };
    space.payloads("tool_call_start").iter().filter_map(result_of).collect()
}

#[tokio::test]
async fn orchestrator_operations_work() {
    let gate = Gate::closed();
    let gate_clone = gate.clone();
    let model = FakeModel::start(move |seen| {
        if is_child(seen) {
            return FakeReply::text("never heard").with_gate(&gate_clone);
        }
        let child = || child_ids(seen).first().cloned().unwrap_or_default();
        match seen.tool_results {
            0 => FakeReply::calls([(SPAWN, json!({"directive_name": "team/child", "async_exec": true}))]),
            1 => FakeReply::calls([(ORCHESTRATE, json!({"operation": "list_active"}))]),
            2 => FakeReply::calls([(ORCHESTRATE, json!({"action": "get_status", "thread_id": child()}))]),
            3 => {
                let wait = json!({"operation": "wait_threads", "thread_ids": [child()], "timeout": 0.05});
                FakeReply::calls([(ORCHESTRATE, wait)])
            }
            4 => {
                FakeReply::calls([(ORCHESTRATE, json!({"operation": "cancel_thread", "thread_id": child()}))])
            }
            5 => FakeReply::calls([wait_call(&[child()])]),
            6 => FakeReply::calls([(
                ORCHESTRATE,
                json!({"operation": "get_status", "thread_id": "thread-000000000000"}),
            )]),
            _ => FakeReply::text("done"),
        }
    });
    let space = TestSpace::with_model(&model, "anthropic");
    parent_and_child(&space);
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let outputs = tool_results(&space);
    let child = outputs[0]["thread_id"].as_str().expect("a child").to_owned();
    assert_eq!(outputs[0]["status"], "running", "it is not waited for: its answer is held back");
    assert_eq!((&outputs[1]["count"], &outputs[1]["active_threads"]), (&json!(1), &json!([child])));
    assert_eq!((&outputs[2]["success"], &outputs[2]["directive"]), (&json!(true), &json!("team/child")));
    assert_eq!(
        (&outputs[3]["success"], &outputs[3]["results"][&child]["status"]),
        (&json!(false), &json!("timeout"))
    );
    assert_eq!(outputs[4], json!({"success": true, "cancelled": child}));
    assert_eq!(outputs[5]["results"][&child]["status"], "cancelled");
    assert_eq!(outputs[6]["status"], "error", "{}", outputs[6]);
    gate.open();
}

#[tokio::test]
async fn sync_and_async_children_return_results() {
    for protocol in ["anthropic", "openai"] {
        let model = FakeModel::start(|seen| {
            if is_child(seen) {
                let about = seen.body.to_string();
                let topic = ["one", "two", "three"]
                    .into_iter()
                    .find(|topic| about.contains(&format!("About {topic}.")));
                return FakeReply::text(&format!("wrote about {}", topic.unwrap_or("nothing")));
            }
            let child = |topic: &str, is_async: bool| {
                (SPAWN, json!({"directive_id": "team/child", "inputs": {"topic": topic}, "async": is_async}))
            };
            match seen.tool_results {
                0 => FakeReply::calls([child("one", false)]),
                1 => FakeReply::calls([child("two", true), child("three", true)]),
                3 => FakeReply::calls([wait_call(&child_ids(seen)[1..])]),
                _ => FakeReply::text("done"),
            }
        });
        let space = TestSpace::with_model(&model, protocol);
        parent_and_child(&space);
        let threads = space.threads();
        let finished = space.run(&threads, "team/parent", Map::new()).await;
        assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
        let outputs = tool_results(&space);
        assert_eq!(
            (&outputs[0]["success"], &outputs[0]["result"]),
            (&json!(true), &json!("wrote about one"))
        );
        let (two, three) = (outputs[1]["thread_id"].as_str(), outputs[2]["thread_id"].as_str());
        let collected = &outputs[3]["results"];
        assert_eq!(outputs[3]["success"], true, "{}", outputs[3]);
        assert_eq!(collected[two.unwrap_or_default()]["result"], "wrote about two");
        assert_eq!(collected[three.unwrap_or_default()]["result"], "wrote about three");
        assert_eq!(model.count(), 4 + 3);
        assert_eq!(space.payloads("child_thread_started").len(), 3);
    }
}

#[tokio::test]
async fn thread_directive_limit_overrides_applied() {
    let model = FakeModel::start(|seen| match (is_child(seen), seen.tool_results) {
        (true, _) => FakeReply::length("on and on "),
        (false, 0) => {
            let call = json!({"directive_name": "team/child", "limit_overrides": {"turns": 1}});
            FakeReply::calls([(SPAWN, call)])
        }
        (false, 1) => {
            let call = json!({"directive_name": "team/child", "limit_overrides": {"turn": 1}});
            FakeReply::calls([(SPAWN, call)])
        }
        _ => FakeReply::text("done"),
    });
    let space = TestSpace::with_model(&model, "openai");
    parent_and_child(&space);
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let outputs = tool_results(&space);
    assert_eq!(
        (&outputs[0]["status"], &outputs[0]["detail"]["limit_code"]),
        (&json!("suspended"), &json!("turns_exceeded"))
    );
    assert!(outputs[1]["error"].to_string().contains("unknown limit `turn`"), "{}", outputs[1]);
    assert_eq!(model.count(), 3 + 1, "a refused child asks no model");
}

#[tokio::test]
async fn raised_spawn_limit_allows_more_children() {
    let model = FakeModel::start(|seen| match (is_child(seen), seen.tool_results) {
        (false, 0..3) => FakeReply::calls([(SPAWN, json!({"directive_name": "team/child"}))]),
        _ => FakeReply::text("done"),
    });
    let space = TestSpace::with_model(&model, "openai");
    parent_and_child(&space);
    let limited = format!("{PERMISSIONS}<limits spawns=\"1\" turns=\"2\"/>");
    space.directive("team/parent", &limited, "", "I am the parent.");
    let threads = space.threads();
    let stopped = space.run(&threads, "team/parent", Map::new()).await;
    assert_eq!(stopped.outcome.status, ThreadStatus::Suspended, "{:?}", stopped.outcome);
    let limits = json!({"spawns": "+1", "turns": "+5"}).as_object().cloned().unwrap_or_default();
    let options =
        ResumeOptions { limits, message: None, by: "a user".to_owned(), ..ResumeOptions::default() };
    let started =
        threads.resume(&stopped.thread_id, &options, CancelSignal::default()).await.expect("resumed");
    let finished = started.finished().await.expect("finished");
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let outputs = tool_results(&space);
    assert_eq!((&outputs[0]["success"], &outputs[2]["success"]), (&json!(true), &json!(true)), "{outputs:?}");
    assert!(outputs[1]["error"].to_string().contains("spawns limit reached (1 of 1)"), "{}", outputs[1]);
    assert_eq!(threads.store().children(&finished.thread_id).expect("children").len(), 2);
}

#[tokio::test]
async fn thread_cannot_control_foreign_threads() {
    let gate = Gate::closed();
    let gate_clone = gate.clone();
    let model = FakeModel::start(move |seen| {
        if seen.body.to_string().contains("I am a stranger.") {
            return FakeReply::text("never heard").with_gate(&gate_clone);
        }
        let stranger = seen.body.to_string();
        let stranger =
            stranger.find("thread-").map(|at| stranger[at..at + 19].to_owned()).unwrap_or_default();
        let ask = |operation: &str| {
            (ORCHESTRATE, json!({"operation": operation, "thread_id": stranger, "query": "x"}))
        };
        match seen.tool_results {
            0 => FakeReply::calls(
                [
                    "get_status",
                    "cancel_thread",
                    "kill_thread",
                    "read_transcript",
                    "chain_search",
                    "resume_thread",
                ]
                .map(ask),
            ),
            _ => FakeReply::text("done"),
        }
    });
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/stranger", "", "", "I am a stranger.");
    let inputs = "<inputs><input name=\"id\" type=\"string\" required=\"true\">Whom</input></inputs>";
    space.directive("team/parent", PERMISSIONS, inputs, "Spy on {input:id}.");
    let threads = space.threads();
    let request = |id: &str| {
        ThreadRequest::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new())
    };
    let stranger = threads.start(request("team/stranger"), CancelSignal::default()).await.expect("started");
    let mut spy = request("team/parent");
    spy.inputs.insert("id".to_owned(), json!(stranger.thread_id));
    let spy = threads.start(spy, CancelSignal::default()).await.expect("started");
    let finished = spy.finished().await.expect("finished");
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let outputs = tool_results(&space);
    assert_eq!(outputs.len(), 6);
    for refused in &outputs {
        assert!(refused["error"].to_string().contains("is not of this thread's tree"), "{refused}");
    }
    gate.open();
    assert_eq!(stranger.finished().await.expect("finished").outcome.status, ThreadStatus::Completed);
}

#[tokio::test]
async fn cancel_file_cancels_running_thread() {
    let model = FakeModel::start(|_| FakeReply::hang());
    let space = TestSpace::with_model(&model, "anthropic");
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let watching = threads.watch();
    let request = ThreadRequest::new(
        ItemRef::new(ItemType::Directive, ItemId::new("team/work").expect("an id")),
        Map::new(),
    );
    let started = threads.start(request, CancelSignal::default()).await.expect("started");
    let id = started.thread_id.clone();
    space.wait_for_event("cognition_in").await;
    space.world.write(&format!("project/.ai/threads/{id}/.cancel"), "no longer needed");
    let finished = started.finished().await.expect("finished");
    assert_eq!(finished.outcome.status, ThreadStatus::Cancelled);
    assert_eq!(finished.outcome.error.as_deref(), Some("no longer needed"));
    let state: Value =
        serde_json::from_str(&space.world.text(&format!("project/.ai/threads/{id}/state.json")))
            .expect("JSON");
    assert_eq!((&state["status"], &state["thread_id"]), (&json!("cancelled"), &json!(id)));
    for name in ["registry.db", "budget_ledger.db"] {
        assert!(space.world.project().join(".ai/threads").join(name).exists(), "{name}");
    }
    drop(watching);
}
