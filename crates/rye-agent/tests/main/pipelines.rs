//! Trees of threads from directives alone: 003 §3's flow, and three levels with 25 leaves, offline and with a model.

use rye_agent::status::Status;
use rye_agent::store::ThreadRow;
use rye_test::fake_model::{FakeModel, Reply};
use serde_json::{Map, Value, json};

use crate::space::Space;

const MAY: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool></execute></permissions><limits spawns=\"10\" duration_seconds=\"3600\"/>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const LEAD: &str = "rye_agent_threads_orchestrator";
const INPUT: &str =
    "<inputs><input name=\"name\" type=\"string\" required=\"true\">Its name</input></inputs>";

/// An action tag that starts a child.
fn starts(directive: &str, name: &str, is_async: bool) -> String {
    format!(
        "<execute item_type=\"tool\" item_id=\"rye/agent/threads/thread_directive\"><param name=\"directive_name\" value=\"{directive}\"/><param name=\"inputs\" value='{{\"name\": \"{name}\"}}'/><param name=\"async_exec\" value=\"{is_async}\"/></execute>\n"
    )
}

/// An action tag that waits for what these actions have started.
fn collects(actions: &[usize]) -> String {
    let ids: Vec<String> =
        actions.iter().map(|action| format!("\"${{results.{action}.thread_id}}\"")).collect();
    format!(
        "<execute item_type=\"tool\" item_id=\"rye/agent/threads/orchestrator\"><param name=\"operation\" value=\"wait_threads\"/><param name=\"thread_ids\" value='[{}]'/><param name=\"timeout\" value=\"300\"/></execute>\n",
        ids.join(", ")
    )
}

/// A leaf that writes its name into a file of that name.
fn leaf(space: &Space) {
    let process = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"leaf-{input:name}.txt\"/><param name=\"content\" value=\"{input:name}\"/></execute></process>";
    space.directive("team/leaf", MAY, &format!("{INPUT}{process}"), "I am a leaf called {input:name}.");
}

fn all_ended(rows: &[ThreadRow]) {
    for row in rows {
        assert_eq!(row.status, Status::Completed, "{} {:?}", row.directive, row.error);
    }
}

/// What a thread was told of its calls.
fn told(space: &Space, thread: &str) -> Vec<Value> {
    let heard = space.heard.0.lock().expect("heard");
    let own = heard.iter().filter(|event| event["thread_id"] == thread);
    own.filter(|event| event["event_type"] == "tool_call_result")
        .filter_map(|event| serde_json::from_str(event["payload"]["output"].as_str()?).ok())
        .collect()
}

#[tokio::test]
async fn one_that_is_waited_for_then_two_beside_each_other_then_both_collected_offline() {
    let space = Space::new();
    leaf(&space);
    let process = format!(
        "<process>{}{}{}{}</process>",
        starts("team/leaf", "a", false),
        starts("team/leaf", "b", true),
        starts("team/leaf", "c", true),
        collects(&[1, 2])
    );
    space.directive("team/top", MAY, &process, "I am the top.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/top", Map::new()).await;
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    let told = told(&space, finished.thread_id.as_str());
    assert_eq!((&told[0]["success"], &told[0]["status"]), (&json!(true), &json!("completed")));
    assert_eq!((&told[1]["status"], &told[2]["status"]), (&json!("running"), &json!("running")));
    assert_eq!(told[3]["success"], true, "{}", told[3]);
    assert_eq!(told[3]["results"].as_object().map(Map::len), Some(2));
    for name in ["a", "b", "c"] {
        assert_eq!(space.world.text(&format!("project/leaf-{name}.txt")), name);
    }
    all_ended(&threads.store().subtree(&finished.thread_id).expect("a tree"));
}

#[tokio::test]
async fn three_levels_with_twenty_five_leaves_offline() {
    let space = Space::new();
    leaf(&space);
    let leaves: String =
        (0..5).map(|leaf| starts("team/leaf", &format!("{{input:name}}{leaf}"), true)).collect();
    let process = format!("{INPUT}<process>{leaves}{}</process>", collects(&[0, 1, 2, 3, 4]));
    space.directive("team/middle", MAY, &process, "I am in the middle, called {input:name}.");
    let middles: String = (0..5).map(|middle| starts("team/middle", &middle.to_string(), true)).collect();
    let process = format!("<process>{middles}{}</process>", collects(&[0, 1, 2, 3, 4]));
    space.directive("team/top", MAY, &process, "I am the top.");
    space.config("resilience", "concurrency:\n  max_total_threads: 31\n");
    let threads = space.threads();
    let finished = space.run(&threads, "team/top", Map::new()).await;
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    let tree = threads.store().subtree(&finished.thread_id).expect("a tree");
    assert_eq!(tree.len(), 1 + 5 + 25);
    all_ended(&tree);
    for middle in 0..5 {
        for leaf in 0..5 {
            let name = format!("{middle}{leaf}");
            assert_eq!(space.world.text(&format!("project/leaf-{name}.txt")), name);
        }
    }
    let collected = told(&space, finished.thread_id.as_str()).pop().expect("a result");
    assert_eq!(
        (&collected["success"], collected["results"].as_object().map(Map::len)),
        (&json!(true), Some(5))
    );
    for middle in tree.iter().filter(|row| row.directive == "team/middle") {
        let collected = told(&space, middle.id.as_str()).pop().expect("a result");
        assert_eq!(collected["results"].as_object().map(Map::len), Some(5), "{collected}");
        assert_eq!(collected["success"], true, "{collected}");
    }
}

#[tokio::test]
async fn three_levels_with_twenty_five_leaves_and_every_result_and_cent_arrives() {
    for protocol in ["anthropic", "openai"] {
        let model = FakeModel::start(|seen| {
            let body = seen.body.to_string();
            let called = |words: &str| {
                let at = body.find(words)? + words.len();
                Some(body[at..].chars().take_while(char::is_ascii_digit).collect::<String>())
            };
            let results: Vec<Value> =
                seen.results().iter().filter_map(|told| serde_json::from_str(told).ok()).collect();
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
                let ids: Vec<&Value> = results.iter().map(|told| &told["thread_id"]).collect();
                json!({"operation": "wait_threads", "thread_ids": ids, "timeout": 300})
            };
            if let Some(name) = called("I am a leaf called ") {
                return Reply::text(&format!("leaf-{name}")).usage(100, 0, 10);
            }
            let (directive, name) = match called("I am in the middle, called ") {
                Some(name) => ("team/leaf", name),
                None => ("team/middle", String::new()),
            };
            match results.len() {
                0 => Reply::calls(below(directive, &name)).usage(100, 0, 10),
                5 => Reply::calls([(LEAD, collects())]).usage(100, 0, 10),
                _ => Reply::text(&words()).usage(100, 0, 10),
            }
        });
        let space = Space::with_model(&model, protocol);
        space.directive("team/leaf", MAY, INPUT, "I am a leaf called {input:name}.");
        space.directive("team/middle", MAY, INPUT, "I am in the middle, called {input:name}.");
        space.directive("team/top", MAY, "", "I am the top.");
        space.config("resilience", "concurrency:\n  max_total_threads: 31\n");
        let threads = space.threads();
        let finished = space.run(&threads, "team/top", Map::new()).await;
        assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
        let mut leaves = Vec::new();
        for middle in 0..5 {
            leaves.extend((0..5).map(|leaf| format!("leaf-{middle}{leaf}")));
        }
        assert_eq!(finished.outcome.result.as_deref(), Some(leaves.join(" ").as_str()));
        let tree = threads.store().subtree(&finished.thread_id).expect("a tree");
        all_ended(&tree);
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
