//! Trees of threads from directives alone: a flow of several steps, and three levels with 25 leaves, offline and with a model.

use rye_agent::status::ThreadStatus;
use rye_agent::store::ThreadRow;
use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Map, Value, json};

use crate::test_space::TestSpace;

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool></execute></permissions><limits spawns=\"10\" duration_seconds=\"3600\"/>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";
const NAME_INPUT: &str =
    "<inputs><input name=\"name\" type=\"string\" required=\"true\">Its name</input></inputs>";

/// An action tag that starts a child.
fn spawn_action(directive: &str, name: &str, is_async: bool) -> String {
    format!(
        "<execute item_type=\"tool\" item_id=\"rye/agent/threads/thread_directive\"><param name=\"directive_name\" value=\"{directive}\"/><param name=\"inputs\" value='{{\"name\": \"{name}\"}}'/><param name=\"async_exec\" value=\"{is_async}\"/></execute>\n"
    )
}

/// An action tag that waits for what these actions have started.
fn wait_action(actions: &[usize]) -> String {
    let ids: Vec<String> =
        actions.iter().map(|action| format!("\"${{results.{action}.thread_id}}\"")).collect();
    format!(
        "<execute item_type=\"tool\" item_id=\"rye/agent/threads/orchestrator\"><param name=\"operation\" value=\"wait_threads\"/><param name=\"thread_ids\" value='[{}]'/><param name=\"timeout\" value=\"300\"/></execute>\n",
        ids.join(", ")
    )
}

/// A leaf that writes its name into a file of that name.
fn leaf_directive(space: &TestSpace) {
    let process = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"leaf-{input:name}.txt\"/><param name=\"content\" value=\"{input:name}\"/></execute></process>";
    space.directive(
        "team/leaf",
        PERMISSIONS,
        &format!("{NAME_INPUT}{process}"),
        "I am a leaf called {input:name}.",
    );
}

fn assert_all_completed(rows: &[ThreadRow]) {
    for row in rows {
        assert_eq!(row.status, ThreadStatus::Completed, "{} {:?}", row.directive, row.error);
    }
}

/// What a thread was told of its calls.
fn tool_results(space: &TestSpace, thread: &str) -> Vec<Value> {
    let events = space.events.0.lock().expect("heard");
    let own = events.iter().filter(|event| event["thread_id"] == thread);
    own.filter(|event| event["event_type"] == "tool_call_result")
        .filter_map(|event| serde_json::from_str(event["payload"]["output"].as_str()?).ok())
        .collect()
}

#[tokio::test]
async fn sync_then_parallel_children_offline() {
    let space = TestSpace::new();
    leaf_directive(&space);
    let process = format!(
        "<process>{}{}{}{}</process>",
        spawn_action("team/leaf", "a", false),
        spawn_action("team/leaf", "b", true),
        spawn_action("team/leaf", "c", true),
        wait_action(&[1, 2])
    );
    space.directive("team/top", PERMISSIONS, &process, "I am the top.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/top", Map::new()).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let results = tool_results(&space, finished.thread_id.as_str());
    assert_eq!((&results[0]["success"], &results[0]["status"]), (&json!(true), &json!("completed")));
    assert_eq!((&results[1]["status"], &results[2]["status"]), (&json!("running"), &json!("running")));
    assert_eq!(results[3]["success"], true, "{}", results[3]);
    assert_eq!(results[3]["results"].as_object().map(Map::len), Some(2));
    for name in ["a", "b", "c"] {
        assert_eq!(space.world.text(&format!("project/leaf-{name}.txt")), name);
    }
    assert_all_completed(&threads.store().subtree(&finished.thread_id).expect("a tree"));
}

#[tokio::test]
async fn three_level_tree_runs_offline() {
    let space = TestSpace::new();
    leaf_directive(&space);
    let leaves: String =
        (0..5).map(|leaf| spawn_action("team/leaf", &format!("{{input:name}}{leaf}"), true)).collect();
    let process = format!("{NAME_INPUT}<process>{leaves}{}</process>", wait_action(&[0, 1, 2, 3, 4]));
    space.directive("team/middle", PERMISSIONS, &process, "I am in the middle, called {input:name}.");
    let middles: String =
        (0..5).map(|middle| spawn_action("team/middle", &middle.to_string(), true)).collect();
    let process = format!("<process>{middles}{}</process>", wait_action(&[0, 1, 2, 3, 4]));
    space.directive("team/top", PERMISSIONS, &process, "I am the top.");
    space.config("resilience", "concurrency:\n  max_total_threads: 31\n");
    let threads = space.threads();
    let finished = space.run(&threads, "team/top", Map::new()).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let tree = threads.store().subtree(&finished.thread_id).expect("a tree");
    assert_eq!(tree.len(), 1 + 5 + 25);
    assert_all_completed(&tree);
    for middle in 0..5 {
        for leaf in 0..5 {
            let name = format!("{middle}{leaf}");
            assert_eq!(space.world.text(&format!("project/leaf-{name}.txt")), name);
        }
    }
    let collected = tool_results(&space, finished.thread_id.as_str()).pop().expect("a result");
    assert_eq!(
        (&collected["success"], collected["results"].as_object().map(Map::len)),
        (&json!(true), Some(5))
    );
    for middle in tree.iter().filter(|row| row.directive == "team/middle") {
        let collected = tool_results(&space, middle.id.as_str()).pop().expect("a result");
        assert_eq!(collected["results"].as_object().map(Map::len), Some(5), "{collected}");
        assert_eq!(collected["success"], true, "{collected}");
    }
}

#[tokio::test]
async fn three_level_tree_sums_all_results() {
    for protocol in ["anthropic", "openai"] {
        let model = FakeModel::start(|seen| {
            let body = seen.body.to_string();
            let called = |words: &str| {
                let at = body.find(words)? + words.len();
                Some(body[at..].chars().take_while(char::is_ascii_digit).collect::<String>())
            };
            let results: Vec<Value> = seen
                .tool_result_texts()
                .iter()
                .filter_map(|results| serde_json::from_str(results).ok())
                .collect();
            let below = |directive: &str, name: &str| -> Vec<(&str, Value)> {
                let child = |number: usize| {
                    let name = format!("{name}{number}");
                    (SPAWN, json!({"directive_name": directive, "inputs": {"name": name}, "async": true}))
                };
                (0..5).map(child).collect()
            };
            let words = || {
                let collected = results[5]["results"].as_object().expect("results");
                let mut words: Vec<&str> =
                    collected.values().filter_map(|result| result["result"].as_str()).collect();
                words.sort_unstable();
                words.join(" ")
            };
            let collects = || {
                let ids: Vec<&Value> = results.iter().map(|results| &results["thread_id"]).collect();
                json!({"operation": "wait_threads", "thread_ids": ids, "timeout": 300})
            };
            if let Some(name) = called("I am a leaf called ") {
                return FakeReply::text(&format!("leaf-{name}")).with_usage(100, 0, 10);
            }
            let (directive, name) = match called("I am in the middle, called ") {
                Some(name) => ("team/leaf", name),
                None => ("team/middle", String::new()),
            };
            match results.len() {
                0 => FakeReply::calls(below(directive, &name)).with_usage(100, 0, 10),
                5 => FakeReply::calls([(ORCHESTRATE, collects())]).with_usage(100, 0, 10),
                _ => FakeReply::text(&words()).with_usage(100, 0, 10),
            }
        });
        let space = TestSpace::with_model(&model, protocol);
        space.directive("team/leaf", PERMISSIONS, NAME_INPUT, "I am a leaf called {input:name}.");
        space.directive("team/middle", PERMISSIONS, NAME_INPUT, "I am in the middle, called {input:name}.");
        space.directive("team/top", PERMISSIONS, "", "I am the top.");
        space.config("resilience", "concurrency:\n  max_total_threads: 31\n");
        let threads = space.threads();
        let finished = space.run(&threads, "team/top", Map::new()).await;
        assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
        let mut leaves = Vec::new();
        for middle in 0..5 {
            leaves.extend((0..5).map(|leaf| format!("leaf-{middle}{leaf}")));
        }
        assert_eq!(finished.outcome.result.as_deref(), Some(leaves.join(" ").as_str()));
        let tree = threads.store().subtree(&finished.thread_id).expect("a tree");
        assert_all_completed(&tree);
        // Three requests for each that leads, one for each leaf: 100 tokens in at $1, 10 out at $2 a million.
        let requests: u64 = 6 * 3 + 25;
        assert_eq!(model.count() as u64, requests);
        let ledger = threads.store().ledger(&finished.thread_id).expect("a ledger");
        assert_eq!(ledger.subtree_spend.0, requests * (100 * 1000 + 10 * 2000));
        let sum: u64 = tree.iter().map(|row| row.cost.spend.0).sum();
        assert_eq!(ledger.subtree_spend.0, sum);
        assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
    }
}
