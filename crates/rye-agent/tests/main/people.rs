//! Threads that ask people: from any depth, across processes, and never answered by anybody else.

use std::sync::Arc;

use rye_agent::driver::Signal;
use rye_agent::prepare::Order;
use rye_agent::status::{Status, SuspendReason};
use rye_agent::store::{Answer, Approval};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Changes, Finished, Started, Threads};
use rye_engine::Code;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, Reply, Seen};
use serde_json::{Map, Value, json};

use crate::resume::forge;
use crate::space::{PATIENCE, Space};

const MAY: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
const ASK: &str = "rye_agent_threads_human_approval";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const LEAD: &str = "rye_agent_threads_orchestrator";

fn order(id: &str) -> Order {
    Order::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new())
}

async fn started(threads: &Threads, id: &str) -> Started {
    threads.start(order(id), Signal::default()).await.expect("started")
}

fn says(is: bool) -> Answer {
    Answer {
        approved: is,
        message: Some("as I said".to_owned()),
        changes: Value::Null,
        at_ms: 7,
        by: "Ada".to_owned(),
    }
}

/// A model that asks a person whether it may deploy, and repeats what it was told.
fn asks(seen: &Seen<'_>) -> Reply {
    match seen.results().last() {
        None => Reply::calls([(ASK, json!({"prompt": "May I deploy?", "reason": "the tests pass"}))]),
        Some(told) => Reply::text(told),
    }
}

fn is_asker(seen: &Seen<'_>) -> bool {
    seen.body.to_string().contains("I am the asker.")
}

fn team(model: &FakeModel) -> Space {
    let space = Space::with_model(model, "openai");
    space.directive("team/asker", MAY, "", "I am the asker.");
    space.directive("team/middle", MAY, "", "I am in the middle.");
    space.directive("team/top", MAY, "", "I am the top.");
    space
}

/// The only open question, once it is asked.
async fn question(space: &Space, threads: &Threads) -> Approval {
    space.heard_of("human_approval_requested").await;
    let open = threads.store().open_approvals(None).expect("questions");
    assert_eq!((open.questions.len(), open.forged.len()), (1, 0), "{open:?}");
    open.questions[0].clone()
}

async fn finished(started: Started) -> Arc<Finished> {
    tokio::time::timeout(PATIENCE, started.finished()).await.expect("in time").expect("an end")
}

#[tokio::test]
async fn a_question_from_two_levels_down_surfaces_at_the_top_and_the_tree_goes_on_where_it_is() {
    let model = FakeModel::start(|seen| {
        let all = seen.body.to_string();
        match (is_asker(seen), all.contains("I am in the middle."), seen.results().last()) {
            (true, _, _) => asks(seen),
            (false, true, None) => Reply::calls([(SPAWN, json!({"directive_name": "team/asker"}))]),
            (false, false, None) => Reply::calls([(SPAWN, json!({"directive_name": "team/middle"}))]),
            (false, _, Some(told)) => Reply::text(told),
        }
    });
    let space = team(&model);
    let threads = space.threads();
    let _watching = threads.watch();
    let top = started(&threads, "team/top").await;
    let top_id = top.thread_id.clone();
    let asked = question(&space, &threads).await;
    assert_eq!((asked.what.as_str(), asked.why.as_str()), ("May I deploy?", "the tests pass"));
    let who: Vec<&str> = asked.detail["chain"]
        .as_array()
        .expect("a chain")
        .iter()
        .filter_map(|one| one["directive"].as_str())
        .collect();
    assert_eq!(who, ["team/asker", "team/middle", "team/top"]);
    let below = threads.store().open_approvals(Some(&top_id)).expect("questions");
    assert_eq!(below.questions, std::slice::from_ref(&asked), "it is seen from the top");
    // Another process answers; the one that holds the tree hears of it.
    space.threads().store().answer(&asked.id, &says(true)).expect("answered");
    let finished = finished(top).await;
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    let result = finished.outcome.result.clone().unwrap_or_default();
    assert!(result.contains("as I said"), "{result}");
    assert_eq!(model.count(), 2 + 2 + 2, "nobody was asked twice");
    assert_eq!(threads.store().open_approvals(None).expect("questions").questions, []);
}

async fn suspended(space: &Space, threads: &Threads) -> (ThreadId, Approval) {
    let stopped = space.run(threads, "team/asker", Map::new()).await;
    assert_eq!(stopped.outcome.reason, Some(SuspendReason::Approval), "{:?}", stopped.outcome);
    (stopped.thread_id.clone(), question(space, threads).await)
}

#[tokio::test]
async fn a_question_survives_its_process_and_the_answer_reaches_the_model() {
    for approved in [true, false] {
        let model = FakeModel::start(asks);
        let space = team(&model);
        let (id, asked) = suspended(&space, &space.threads()).await;
        let threads = space.threads();
        let open = threads.store().open_approvals(None).expect("questions");
        assert_eq!(open.questions, std::slice::from_ref(&asked));
        threads.store().answer(&asked.id, &says(approved)).expect("answered");
        let resumed = threads.resume(&id, &Changes::default(), Signal::default()).await.expect("resumed");
        let finished = finished(resumed).await;
        assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
        let told: Value =
            serde_json::from_str(finished.outcome.result.as_deref().unwrap_or_default()).expect("JSON");
        assert_eq!((&told["approved"], &told["by"]), (&json!(approved), &json!("Ada")));
        assert_eq!(model.count(), 2);
        assert_eq!(space.verified(&threads, &id).status, rye_agent::transcript::Verified::Valid);
    }
}

#[tokio::test]
async fn nothing_but_a_persons_answer_lets_it_go_on() {
    let model = FakeModel::start(asks);
    let space = team(&model);
    let (id, asked) = suspended(&space, &space.threads()).await;
    let forgeries = [
        // An answer without the code, a question without one, and no question at all.
        "UPDATE approvals SET answer = '{\"approved\":true,\"message\":null,\"changes\":null,\"at_ms\":1,\"by\":\"me\"}', answer_mac = zeroblob(32)",
        "UPDATE approvals SET answer = NULL, answer_mac = NULL, mac = zeroblob(32)",
        "DELETE FROM approvals",
    ];
    for forgery in [""].iter().chain(&forgeries) {
        forge(&space, forgery);
        let threads = space.threads();
        let refused = threads.resume(&id, &Changes::default(), Signal::default()).await;
        let refused = refused.expect_err("nobody answered");
        assert_eq!(refused.code, Code::PermissionDenied, "{forgery}: {refused:?}");
        assert!(refused.hints.iter().any(|hint| hint.contains("rye thread approve")), "{refused:?}");
    }
    assert_eq!(model.count(), 1, "the model was not asked again");
    assert!(space.threads().store().answer(&asked.id, &says(true)).is_err(), "the question is gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_learns_of_the_question_at_its_deadline_and_may_wait_on() {
    let model = FakeModel::start(|seen| {
        if is_asker(seen) {
            return asks(seen);
        }
        let results = seen.results();
        let child = results.iter().find_map(|told| {
            let told: Value = serde_json::from_str(told).ok()?;
            told["thread_id"].as_str().map(str::to_owned)
        });
        let wait =
            |timeout: f64| json!({"operation": "wait_threads", "thread_ids": [child], "timeout": timeout});
        match results.len() {
            0 => Reply::calls([(SPAWN, json!({"directive_name": "team/asker", "async_exec": true}))]),
            1 => Reply::calls([(LEAD, wait(3.0))]),
            2 => Reply::calls([(LEAD, json!({"operation": "resume_thread", "thread_id": child}))]),
            3 => Reply::calls([(LEAD, wait(60.0))]),
            _ => Reply::text(&results[1..].join("\n")),
        }
    });
    let space = team(&model);
    let threads = space.threads();
    let _watching = threads.watch();
    let top = started(&threads, "team/top").await;
    let asked = question(&space, &threads).await;
    // The parent was refused, and waits again.
    model.wait_for_requests(1 + 1 + 1 + 1 + 1);
    space.threads().store().answer(&asked.id, &says(true)).expect("answered");
    let finished = finished(top).await;
    let result = finished.outcome.result.clone().unwrap_or_default();
    let told: Vec<Value> = result.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let child = asked.thread.as_str();
    let late = &told[0]["results"][child];
    assert_eq!((&late["status"], &late["suspend_reason"]), (&json!("suspended"), &json!("approval")));
    assert_eq!(late["detail"]["questions"][0]["what"], "May I deploy?", "{late}");
    assert_eq!(late["approve"], format!("rye thread approve {child}"));
    assert!(told[1]["error"].to_string().contains("waits for a person"), "{}", told[1]);
    assert_eq!(told[2]["results"][child]["status"], "completed", "{}", told[2]);
}

#[tokio::test]
async fn a_limit_that_is_approved_grows_by_what_was_asked_for() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => Reply::calls([(LEAD, json!({"operation": "list_active"}))]),
        _ => Reply::text("done"),
    });
    let space = team(&model);
    space.directive("team/short", &format!("{MAY}<limits turns=\"1\"/>"), "", "I am short.");
    let threads = space.threads();
    let stopped = space.run(&threads, "team/short", Map::new()).await;
    assert_eq!(stopped.outcome.reason, Some(SuspendReason::Limit), "{:?}", stopped.outcome);
    let asked = question(&space, &threads).await;
    assert_eq!((asked.kind.as_str(), asked.what.as_str()), ("limit", "turns +1"));
    let changes = asked.detail["proposed"].clone();
    threads.store().answer(&asked.id, &Answer { changes, ..says(true) }).expect("answered");
    let resumed = threads.resume(&stopped.thread_id, &Changes::default(), Signal::default()).await;
    let finished = finished(resumed.expect("resumed")).await;
    assert_eq!((finished.outcome.status, finished.cost.turns), (Status::Completed, 2));
}

#[tokio::test]
async fn what_a_cancelled_thread_asked_is_not_open_any_more() {
    let model = FakeModel::start(asks);
    let space = team(&model);
    let threads = space.threads();
    let (id, _) = suspended(&space, &threads).await;
    threads.end(&id, "no need").await.expect("ended");
    let row = threads.store().thread(&id).expect("a store").expect("a thread");
    assert_eq!(row.status, Status::Cancelled);
    assert_eq!(threads.store().open_approvals(None).expect("questions").questions, []);
}

/// Runs a directive that writes a file, which somebody has to allow; answers, and says whether it was written.
async fn written_after(space: &Space, approved: bool) -> bool {
    let threads = space.threads();
    let stopped = space.run(&threads, "team/write", Map::new()).await;
    assert_eq!(stopped.outcome.reason, Some(SuspendReason::Approval), "{:?}", stopped.outcome);
    let asked = threads.store().open_approvals(None).expect("questions").questions.remove(0);
    threads.store().answer(&asked.id, &says(approved)).expect("answered");
    let resumed = threads.resume(&stopped.thread_id, &Changes::default(), Signal::default()).await;
    finished(resumed.expect("resumed")).await;
    space.world.project().join("note.txt").exists()
}

const WRITE: &str = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"note.txt\"/><param name=\"content\" value=\"hello\"/></execute></process>";
const FILES: &str = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>";

#[tokio::test]
async fn rules_of_risk_hold_a_call_back_until_somebody_allows_it() {
    for approved in [false, true] {
        let space = Space::new();
        space.directive("team/write", FILES, WRITE, "Write a note.");
        space.user_config("capability_risk", "risk_levels:\n  write:\n    policy: approval_required\n");
        assert_eq!(written_after(&space, approved).await, approved);
    }
}

#[tokio::test]
async fn a_directives_hook_asks_before_anything_begins() {
    for approved in [false, true] {
        let space = Space::new();
        let param = |name: &str, value: &str| format!("<param name=\"{name}\">{value}</param>");
        let hook = format!(
            "<hooks><hook id=\"gate\" event=\"thread_started\"><action primary=\"execute\" item_type=\"tool\" item_id=\"rye/agent/threads/internal/control\">{}{}{}</action></hook></hooks>",
            param("action", "suspend"),
            param("suspend_reason", "approval"),
            param("prompt", "May it begin?")
        );
        space.directive("team/write", &format!("{FILES}{hook}"), WRITE, "Write a note.");
        assert_eq!(written_after(&space, approved).await, approved, "{:?}", space.told());
    }
}
