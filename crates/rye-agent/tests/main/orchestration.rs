//! Threads that start, wait for, look at and end others, as a model does it.

use rye_agent::driver::Signal;
use rye_agent::prepare::Order;
use rye_agent::status::Status;
use rye_agent::threads::Changes;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, Gate, Reply, Seen};
use serde_json::{Map, Value, json};

use crate::space::Space;

const PARENT: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const LEAD: &str = "rye_agent_threads_orchestrator";

/// The ids of threads that results of tools name, in their order.
fn children(seen: &Seen<'_>) -> Vec<String> {
    let ids = seen.results().into_iter().filter_map(|result| {
        let answer: Value = serde_json::from_str(&result).ok()?;
        answer.get("thread_id").and_then(Value::as_str).map(str::to_owned)
    });
    ids.fold(Vec::new(), |mut all, id| {
        if !all.contains(&id) {
            all.push(id);
        }
        all
    })
}

fn is_child(seen: &Seen<'_>) -> bool {
    seen.body.to_string().contains("I am a child.")
}

fn two(space: &Space) {
    space.directive("team/parent", PARENT, "", "I am the parent.");
    let inputs = "<inputs><input name=\"topic\" type=\"string\">What about</input></inputs>";
    space.directive("team/child", "", inputs, "I am a child. About {input:topic:nothing}.");
}

/// What came of each call, in the order of the calls.
fn results(space: &Space) -> Vec<Value> {
    let told = space.payloads("tool_call_result");
    let result_of = |start: &Value| {
        let result = told.iter().find(|result| result["call_id"] == start["call_id"])?;
        let text = result.get("output").or(result.get("error"))?.as_str()?;
        Some(serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
    };
    space.payloads("tool_call_start").iter().filter_map(result_of).collect()
}

#[tokio::test]
async fn orchestrator_wait_threads_with_timeout_cancel_thread_get_status_and_list_active() {
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |seen| {
        if is_child(seen) {
            return Reply::text("never heard").held(&held);
        }
        let child = || children(seen).first().cloned().unwrap_or_default();
        match seen.tool_results {
            0 => Reply::calls([(SPAWN, json!({"directive_name": "team/child", "async_exec": true}))]),
            1 => Reply::calls([(LEAD, json!({"operation": "list_active"}))]),
            2 => Reply::calls([(LEAD, json!({"action": "get_status", "thread_id": child()}))]),
            3 => {
                let wait = json!({"operation": "wait_threads", "thread_ids": [child()], "timeout": 0.05});
                Reply::calls([(LEAD, wait)])
            }
            4 => Reply::calls([(LEAD, json!({"operation": "cancel_thread", "thread_id": child()}))]),
            5 => {
                let wait = json!({"operation": "wait_threads", "thread_ids": [child()], "timeout": 60});
                Reply::calls([(LEAD, wait)])
            }
            6 => {
                Reply::calls([(LEAD, json!({"operation": "get_status", "thread_id": "thread-000000000000"}))])
            }
            _ => Reply::text("done"),
        }
    });
    let space = Space::with_model(&model, "anthropic");
    two(&space);
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    let told = results(&space);
    let child = told[0]["thread_id"].as_str().expect("a child").to_owned();
    assert_eq!(told[0]["status"], "running", "it is not waited for: its answer is held back");
    assert_eq!((&told[1]["count"], &told[1]["active_threads"]), (&json!(1), &json!([child])));
    assert_eq!((&told[2]["success"], &told[2]["directive"]), (&json!(true), &json!("team/child")));
    assert_eq!(
        (&told[3]["success"], &told[3]["results"][&child]["status"]),
        (&json!(false), &json!("timeout"))
    );
    assert_eq!(told[4], json!({"success": true, "cancelled": child}));
    assert_eq!(told[5]["results"][&child]["status"], "cancelled");
    assert_eq!(told[6]["status"], "error", "{}", told[6]);
    gate.open();
}

#[tokio::test]
async fn thread_directive_sync_mode_end_to_end_then_two_async_collected() {
    for protocol in ["anthropic", "openai"] {
        let model = FakeModel::start(|seen| {
            if is_child(seen) {
                let about = seen.body.to_string();
                let topic = ["one", "two", "three"]
                    .into_iter()
                    .find(|topic| about.contains(&format!("About {topic}.")));
                return Reply::text(&format!("wrote about {}", topic.unwrap_or("nothing")));
            }
            let child = |topic: &str, is_async: bool| {
                (SPAWN, json!({"directive_id": "team/child", "inputs": {"topic": topic}, "async": is_async}))
            };
            match seen.tool_results {
                0 => Reply::calls([child("one", false)]),
                1 => Reply::calls([child("two", true), child("three", true)]),
                3 => {
                    let wait = json!({"operation": "wait_threads", "thread_ids": &children(seen)[1..], "timeout": 60});
                    Reply::calls([(LEAD, wait)])
                }
                _ => Reply::text("done"),
            }
        });
        let space = Space::with_model(&model, protocol);
        two(&space);
        let threads = space.threads();
        let finished = space.run(&threads, "team/parent", Map::new()).await;
        assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
        let told = results(&space);
        assert_eq!((&told[0]["success"], &told[0]["result"]), (&json!(true), &json!("wrote about one")));
        let (two, three) = (told[1]["thread_id"].as_str(), told[2]["thread_id"].as_str());
        let collected = &told[3]["results"];
        assert_eq!(told[3]["success"], true, "{}", told[3]);
        assert_eq!(collected[two.unwrap_or_default()]["result"], "wrote about two");
        assert_eq!(collected[three.unwrap_or_default()]["result"], "wrote about three");
        assert_eq!(model.count(), 4 + 3);
        assert_eq!(space.payloads("child_thread_started").len(), 3);
    }
}

#[tokio::test]
async fn thread_directive_limit_overrides_applied() {
    let model = FakeModel::start(|seen| match (is_child(seen), seen.tool_results) {
        (true, _) => Reply::length("on and on "),
        (false, 0) => {
            let wish = json!({"directive_name": "team/child", "limit_overrides": {"turns": 1}});
            Reply::calls([(SPAWN, wish)])
        }
        (false, 1) => {
            let wish = json!({"directive_name": "team/child", "limit_overrides": {"turn": 1}});
            Reply::calls([(SPAWN, wish)])
        }
        _ => Reply::text("done"),
    });
    let space = Space::with_model(&model, "openai");
    two(&space);
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    let told = results(&space);
    assert_eq!(
        (&told[0]["status"], &told[0]["detail"]["limit_code"]),
        (&json!("suspended"), &json!("turns_exceeded"))
    );
    assert!(told[1]["error"].to_string().contains("unknown limit `turn`"), "{}", told[1]);
    assert_eq!(model.count(), 3 + 1, "a refused child asks nobody");
}

#[tokio::test]
async fn a_person_who_allows_more_children_allows_them() {
    let model = FakeModel::start(|seen| match (is_child(seen), seen.tool_results) {
        (false, 0..3) => Reply::calls([(SPAWN, json!({"directive_name": "team/child"}))]),
        _ => Reply::text("done"),
    });
    let space = Space::with_model(&model, "openai");
    two(&space);
    let limited = format!("{PARENT}<limits spawns=\"1\" turns=\"2\"/>");
    space.directive("team/parent", &limited, "", "I am the parent.");
    let threads = space.threads();
    let stopped = space.run(&threads, "team/parent", Map::new()).await;
    assert_eq!(stopped.outcome.status, Status::Suspended, "{:?}", stopped.outcome);
    let limits = json!({"spawns": "+1", "turns": "+5"}).as_object().cloned().unwrap_or_default();
    let changes = Changes { limits, message: None, by: "somebody".to_owned(), within: None };
    let started = threads.resume(&stopped.thread_id, &changes, Signal::default()).await.expect("resumed");
    let finished = started.finished().await.expect("finished");
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    let told = results(&space);
    assert_eq!((&told[0]["success"], &told[2]["success"]), (&json!(true), &json!(true)), "{told:?}");
    assert!(told[1]["error"].to_string().contains("spawns is 1"), "{}", told[1]);
    assert_eq!(threads.store().children(&finished.thread_id).expect("children").len(), 2);
}

#[tokio::test]
async fn a_thread_sees_its_own_tree_and_steers_only_what_is_below_it() {
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |seen| {
        if seen.body.to_string().contains("I am a stranger.") {
            return Reply::text("never heard").held(&held);
        }
        let stranger = seen.body.to_string();
        let stranger =
            stranger.find("thread-").map(|at| stranger[at..at + 19].to_owned()).unwrap_or_default();
        let ask =
            |operation: &str| (LEAD, json!({"operation": operation, "thread_id": stranger, "query": "x"}));
        match seen.tool_results {
            0 => Reply::calls(
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
            _ => Reply::text("done"),
        }
    });
    let space = Space::with_model(&model, "openai");
    space.directive("team/stranger", "", "", "I am a stranger.");
    let inputs = "<inputs><input name=\"id\" type=\"string\" required=\"true\">Whom</input></inputs>";
    space.directive("team/parent", PARENT, inputs, "Spy on {input:id}.");
    let threads = space.threads();
    let order =
        |id: &str| Order::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new());
    let stranger = threads.start(order("team/stranger"), Signal::default()).await.expect("started");
    let mut spy = order("team/parent");
    spy.inputs.insert("id".to_owned(), json!(stranger.thread_id));
    let spy = threads.start(spy, Signal::default()).await.expect("started");
    let finished = spy.finished().await.expect("finished");
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    let told = results(&space);
    assert_eq!(told.len(), 6);
    for refused in &told {
        assert!(refused["error"].to_string().contains("is not of this thread's tree"), "{refused}");
    }
    gate.open();
    assert_eq!(stranger.finished().await.expect("finished").outcome.status, Status::Completed);
}

#[tokio::test]
async fn state_store_cancel_sentinel_file_ends_a_thread_and_state_is_kept() {
    let model = FakeModel::start(|_| Reply::hang());
    let space = Space::with_model(&model, "anthropic");
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let watching = threads.watch();
    let order =
        Order::new(ItemRef::new(ItemType::Directive, ItemId::new("team/work").expect("an id")), Map::new());
    let started = threads.start(order, Signal::default()).await.expect("started");
    let id = started.thread_id.clone();
    space.heard_of("cognition_in").await;
    space.world.write(&format!("project/.ai/threads/{id}/.cancel"), "no longer needed");
    let finished = started.finished().await.expect("finished");
    assert_eq!(finished.outcome.status, Status::Cancelled);
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
