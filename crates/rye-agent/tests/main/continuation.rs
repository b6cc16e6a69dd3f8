//! Continuing: in a shorter conversation, or in another thread, with what is left.

use rye_agent::driver::CancelSignal;
use rye_agent::status::ThreadStatus;
use rye_agent::store::ThreadRow;
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Threads, WaitRequest};
use rye_test::fake_model::{FakeModel, FakeReply, FakeRequest};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use crate::test_space::TestSpace;

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";

fn row(threads: &Threads, id: &str) -> ThreadRow {
    let id = ThreadId::parse(id).expect("an id");
    threads.store().thread(&id).expect("a store").expect("a thread")
}

fn tool_results(seen: &FakeRequest<'_>) -> Vec<Value> {
    seen.tool_result_texts()
        .iter()
        .map(|text| serde_json::from_str(text).unwrap_or_else(|_| json!(text)))
        .collect()
}

fn contains(seen: &FakeRequest<'_>, words: &str) -> bool {
    seen.body.to_string().contains(words)
}

/// A worker that stops after three turns at its limit, each with a long result; and a parent.
fn team_space(model: &FakeModel, worker: &str) -> TestSpace {
    let space = TestSpace::with_model(model, "openai");
    space.directive("team/parent", PERMISSIONS, "", "I am the parent.");
    let inputs = "<inputs><input name=\"topic\" type=\"string\" required=\"true\">About</input></inputs>";
    space.directive(
        "team/worker",
        &format!("{PERMISSIONS}{worker}"),
        inputs,
        "I am the worker. About {input:topic}.",
    );
    space.world.write("project/long.txt", "long ".repeat(300));
    space
}

const READ: (&str, &str) = ("rye_file_system_read", "long.txt");

fn read_call() -> FakeReply {
    FakeReply::calls([(READ.0, json!({"path": READ.1}))]).with_usage(1000, 0, 100)
}

#[tokio::test]
async fn handoff_carries_inputs_and_remaining_limits() {
    let model = FakeModel::start(|seen| {
        if contains(seen, "I am the parent.") {
            let results = tool_results(seen);
            let old = || results[0]["thread_id"].clone();
            return match results.len() {
                0 => FakeReply::calls([(
                    SPAWN,
                    json!({"directive_name": "team/worker", "inputs": {"topic": "bees"}, "limit_overrides": {"turns": 4, "spawns": 1}}),
                )]),
                1 => FakeReply::calls([(
                    ORCHESTRATE,
                    json!({"operation": "handoff_thread", "thread_id": old(), "message": "Finish it."}),
                )]),
                _ => FakeReply::text("done"),
            };
        }
        match (contains(seen, "Finish it."), seen.tool_results) {
            (false, 0..2) => read_call(),
            // It fails in the middle of its work.
            (false, _) => FakeReply::status(401, &json!({"error": {"message": "no"}}), &[]),
            (true, _) => FakeReply::text("finished"),
        }
    });
    let space = team_space(&model, "");
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    let children = threads.store().children(&finished.thread_id).expect("children");
    assert_eq!(children.len(), 2, "{children:?}");
    let (old, new) = (&children[0], &children[1]);
    assert_eq!((old.status, new.status), (ThreadStatus::Error, ThreadStatus::Completed));
    assert_eq!(new.continuation_of.as_ref(), Some(&old.id));
    assert_eq!((old.limits.turns, old.cost.turns), (Some(4), 2));
    assert_eq!(new.limits.turns, Some(2), "what is left of its turns");
    let remaining = |row: &ThreadRow| row.limits.spend.expect("a limit");
    assert_eq!(remaining(new), remaining(old).minus(old.cost.spend), "and of its money");
    assert_eq!(new.limits.tokens.zip(old.limits.tokens).map(|(new, old)| old - new), Some(old.cost.tokens()));
    assert_eq!(new.limits.spawns, old.limits.spawns, "what it may have at all stays as it is");
    assert_eq!(new.capabilities, old.capabilities);
    let is_new = |body: &String| body.contains("Finish it.") && !body.contains("I am the parent.");
    let body = model.requests().iter().map(|seen| seen.body.to_string()).find(is_new).expect("a request");
    assert!(body.contains("About bees."), "the inputs went along");
    let chain = threads.store().chain(new).expect("a chain");
    assert_eq!(chain.iter().map(|row| &row.id).collect::<Vec<_>>(), [&old.id, &new.id]);
    let ledger = threads.store().ledger(&finished.thread_id).expect("a ledger");
    let spent = children.iter().fold(finished.cost.spend, |sum, child| sum.plus(child.cost.spend));
    assert_eq!(ledger.subtree_spend, spent, "and the parent paid for both");
}

#[tokio::test]
async fn waiters_follow_the_successor() {
    let model = FakeModel::start(|seen| {
        if contains(seen, "I am the parent.") {
            let results = tool_results(seen);
            let old = || results[0]["thread_id"].clone();
            let wait = || json!({"operation": "wait_threads", "thread_ids": [old()], "timeout": 240});
            return match results.len() {
                0 => FakeReply::calls([(
                    SPAWN,
                    json!({"directive_name": "team/worker", "inputs": {"topic": "bees"}}),
                )]),
                1 => FakeReply::calls([(
                    SPAWN,
                    json!({"directive_name": "team/worker", "previous_thread_id": old()}),
                )]),
                2 => FakeReply::calls([(ORCHESTRATE, wait())]),
                3 => FakeReply::calls([(ORCHESTRATE, json!({"operation": "get_chain", "thread_id": old()}))]),
                _ => FakeReply::text(&serde_json::to_string(&results).expect("JSON")),
            };
        }
        match (contains(seen, "Pick up where the previous"), seen.tool_results) {
            (false, 0) => read_call(),
            (false, _) => FakeReply::status(500, &json!({"error": {"message": "later"}}), &[]),
            (true, _) => FakeReply::text("finished"),
        }
    });
    let space = team_space(&model, "");
    // A failure stops the worker: the user decides later.
    space.config("hook_conditions", "builtin_hooks:\n  - id: default_retry_transient\n    event: error\n    layer: 2\n    action:\n      primary: execute\n      item_type: tool\n      item_id: rye/agent/threads/internal/control\n      params: {action: suspend, suspend_reason: error}\n");
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    let result = finished.outcome.result.clone().unwrap_or_default();
    let results: Vec<Value> =
        serde_json::from_str(&result).unwrap_or_else(|_| panic!("{:?}", finished.outcome));
    let old = results[0]["thread_id"].as_str().expect("a thread");
    assert_eq!((&results[0]["status"], &results[1]["result"]), (&json!("suspended"), &json!("finished")));
    let waited = &results[2]["results"][old];
    assert_eq!((&waited["status"], &waited["result"]), (&json!("completed"), &json!("finished")), "{waited}");
    assert_eq!(
        waited["thread_id"], results[1]["thread_id"],
        "who waits for the old one hears of the new one"
    );
    assert_eq!(results[3]["chain_length"], 2, "{}", results[3]);
    assert_eq!(row(&threads, old).status, ThreadStatus::Continued);
    let waiting = WaitRequest::for_all(vec![ThreadId::parse(old).expect("an id")]);
    let waited = threads.wait(&waiting, &CancellationToken::new()).await.expect("waited");
    assert_eq!(waited["success"], true, "{waited}");
}

#[tokio::test]
async fn exhausted_thread_cannot_hand_off() {
    let model = FakeModel::start(|seen| {
        if contains(seen, "I am the parent.") {
            let results = tool_results(seen);
            return match results.len() {
                0 => FakeReply::calls([(
                    SPAWN,
                    json!({"directive_name": "team/worker", "inputs": {"topic": "bees"}, "limit_overrides": {"turns": 1}}),
                )]),
                1 => FakeReply::calls([(
                    ORCHESTRATE,
                    json!({"operation": "handoff_thread", "thread_id": results[0]["thread_id"]}),
                )]),
                _ => FakeReply::text(&results[1].to_string()),
            };
        }
        read_call()
    });
    let space = team_space(&model, "");
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    let result = finished.outcome.result.clone().unwrap_or_default();
    assert!(result.contains("waits for a person: turns"), "{result}");
    assert_eq!(threads.store().children(&finished.thread_id).expect("children").len(), 1);
}

/// What a successor of a long thread is given first, and how its summary was asked for.
async fn summarize_case(coordination: &str) -> (String, Option<ThreadRow>, Vec<String>) {
    let model = FakeModel::start(|seen| {
        if contains(seen, "Below is the transcript of a thread") || contains(seen, "Sum it up.") {
            return FakeReply::calls([("directive_return", json!({"summary": "It was about bees."}))]);
        }
        match (contains(seen, "And now?"), seen.tool_results) {
            (false, 0..3) => read_call(),
            _ => FakeReply::text("finished"),
        }
    });
    let space = team_space(&model, "");
    let inputs = "<inputs><input name=\"transcript_content\" type=\"string\" required=\"true\">What was said</input><input name=\"directive_name\" type=\"string\">Which</input><input name=\"max_summary_tokens\" type=\"integer\">How long</input></inputs><outputs><output name=\"summary\" type=\"string\" required=\"true\">It</output></outputs>";
    space.directive("team/summary", "", inputs, "Sum it up. {input:transcript_content}");
    space.provider(
        &model,
        "openai",
        "pricing: {fake-1: {input: 1.00, output: 2.00}, fake-2: {input: 1.00, output: 2.00}}\n",
    );
    space.config("coordination", &format!("coordination:\n  continuation:\n{coordination}"));
    let threads = space.threads();
    let inputs = json!({"topic": "bees"}).as_object().cloned().expect("inputs");
    let finished = space.run(&threads, "team/worker", inputs).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let old = row(&threads, finished.thread_id.as_str());
    let next = threads.continue_from(&old, Some("And now?".to_owned()), CancelSignal::default()).await;
    next.expect("started").finished().await.expect("an end");
    let all = threads.store().threads(&rye_agent::store::ThreadFilter::default()).expect("threads");
    let summary = all.into_iter().find(|row| row.directive.contains("summary"));
    let requests = model.requests();
    let first = requests.iter().find(|seen| seen.body.to_string().contains("And now?")).expect("a request");
    let summary_requests = requests
        .iter()
        .map(|seen| seen.body.to_string())
        .filter(|body| body.contains("Below is the transcript of a thread") || body.contains("Sum it up."));
    (first.body.to_string(), summary, summary_requests.collect())
}

#[tokio::test]
async fn overflowing_history_is_summarized() {
    let (request, summary, _) = summarize_case("    resume_ceiling_tokens: 100000\n").await;
    assert!(!request.contains("It was about bees.") && summary.is_none(), "everything fits");
    let small = "    resume_ceiling_tokens: 50\n    summary_model: fake-2\n    summary_max_tokens: 77\n    summary_limit_overrides: {turns: 2, spend: 0.5}\n";
    let (request, summary, summary_requests) = summarize_case(small).await;
    assert!(request.contains("It was about bees."), "{request}");
    assert!(request.contains("About bees."), "the first message stays");
    let summary = summary.expect("a thread that summarised");
    assert_eq!(
        (summary.directive.as_str(), summary.model.as_str()),
        ("rye/agent/threads/thread_summary", "fake-2")
    );
    assert_eq!(summary.limits.turns, Some(2));
    assert!(summary_requests[0].contains("at most 77 tokens"), "{}", summary_requests[0]);
    let own = "    resume_ceiling_tokens: 50\n    summary_directive: team/summary\n";
    let (request, summary, summary_requests) = summarize_case(own).await;
    assert!(request.contains("It was about bees."), "{request}");
    assert_eq!(summary.expect("a thread").directive, "team/summary");
    assert!(summary_requests[0].contains("Result of rye_file_system_read"), "{}", summary_requests[0]);
}

#[tokio::test]
async fn compaction_keeps_task_limits_and_cost() {
    let model = FakeModel::start(|seen| {
        if contains(seen, "Write what a reader") {
            return FakeReply::calls([("directive_return", json!({"summary": "Read it three times."}))]);
        }
        match seen.tool_result_texts().len() {
            _ if contains(seen, "Read it three times.") => FakeReply::text("finished"),
            0..8 => FakeReply::calls([(READ.0, json!({"path": READ.1}))]).with_usage(9_500, 0, 10),
            _ => FakeReply::text("never shortened"),
        }
    });
    let space = team_space(&model, "");
    space.provider(
        &model,
        "openai",
        "pricing: {fake-1: {input: 1.00, output: 2.00}}\ncontext_window: 10000\n",
    );
    space.config("coordination", "coordination:\n  continuation:\n    resume_ceiling_tokens: 500\n");
    let threads = space.threads();
    let inputs = json!({"topic": "bees"}).as_object().cloned().expect("inputs");
    let finished = space.run(&threads, "team/worker", inputs).await;
    assert_eq!(finished.outcome.result.as_deref(), Some("finished"), "{:?}", finished.outcome);
    assert!(!space.payloads("context_compacted").is_empty());
    let last = model.requests().pop().expect("a request").body.to_string();
    assert!(last.contains("About bees."), "the task is still there");
    let own = row(&threads, finished.thread_id.as_str());
    assert_eq!(own.cost.spend, finished.cost.spend, "turns before and after count together");
    assert!(finished.cost.turns >= 3);
    let ledger = threads.store().ledger(&finished.thread_id).expect("a ledger");
    assert!(ledger.subtree_spend > own.cost.spend, "the summary was paid for from the same budget");
}
