//! Threads that ask people: from any depth, across processes, and never answered by any other user.

use std::sync::Arc;

use rye_agent::driver::CancelSignal;
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::{SuspendReason, ThreadStatus};
use rye_agent::store::{Approval, ApprovalDecision};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{FinishedThread, ResumeOptions, StartedThread, Threads};
use rye_engine::Code;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, FakeRequest, Gate};
use serde_json::{Map, Value, json};

use crate::resume::tamper;
use crate::test_space::{TEST_TIMEOUT, TestSpace};

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
const REQUEST_APPROVAL: &str = "rye_agent_threads_human_approval";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";

fn request(id: &str) -> ThreadRequest {
    ThreadRequest::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new())
}

async fn start(threads: &Threads, id: &str) -> StartedThread {
    threads.start(request(id), CancelSignal::default()).await.expect("started")
}

fn decision(approved: bool) -> ApprovalDecision {
    ApprovalDecision {
        approved,
        message: Some("as I said".to_owned()),
        changes: Value::Null,
        at_ms: 7,
        by: "Ada".to_owned(),
        always: None,
    }
}

/// A model that asks a person whether it may deploy, and repeats what it was told.
fn approval_reply(seen: &FakeRequest<'_>) -> FakeReply {
    match seen.tool_result_texts().last() {
        None => FakeReply::calls([(
            REQUEST_APPROVAL,
            json!({"prompt": "May I deploy?", "reason": "the tests pass"}),
        )]),
        Some(result) => FakeReply::text(result),
    }
}

fn is_requesting_thread(seen: &FakeRequest<'_>) -> bool {
    seen.body.to_string().contains("I am the asker.")
}

fn team_space(model: &FakeModel) -> TestSpace {
    let space = TestSpace::with_model(model, "openai");
    space.directive("team/asker", PERMISSIONS, "", "I am the asker.");
    space.directive("team/middle", PERMISSIONS, "", "I am in the middle.");
    space.directive("team/top", PERMISSIONS, "", "I am the top.");
    space
}

/// The only open question, once it is asked.
async fn open_approval(space: &TestSpace, threads: &Threads) -> Approval {
    space.wait_for_event("human_approval_requested").await;
    let open = threads.store().open_approvals(None).expect("questions");
    assert_eq!((open.approvals.len(), open.forged.len()), (1, 0), "{open:?}");
    open.approvals[0].clone()
}

async fn wait_finished(started: StartedThread) -> Arc<FinishedThread> {
    tokio::time::timeout(TEST_TIMEOUT, started.finished()).await.expect("in time").expect("an end")
}

#[tokio::test]
async fn nested_approval_surfaces_at_root() {
    let model = FakeModel::start(|seen| {
        let all = seen.body.to_string();
        match (
            is_requesting_thread(seen),
            all.contains("I am in the middle."),
            seen.tool_result_texts().last(),
        ) {
            (true, _, _) => approval_reply(seen),
            (false, true, None) => FakeReply::calls([(SPAWN, json!({"directive_name": "team/asker"}))]),
            (false, false, None) => FakeReply::calls([(SPAWN, json!({"directive_name": "team/middle"}))]),
            (false, _, Some(reply)) => FakeReply::text(reply),
        }
    });
    let space = team_space(&model);
    let threads = space.threads();
    let _watching = threads.watch();
    let top = start(&threads, "team/top").await;
    let top_id = top.thread_id.clone();
    let approval = open_approval(&space, &threads).await;
    assert_eq!((approval.prompt.as_str(), approval.reason.as_str()), ("May I deploy?", "the tests pass"));
    let who: Vec<&str> = approval.detail["chain"]
        .as_array()
        .expect("a chain")
        .iter()
        .filter_map(|one| one["directive"].as_str())
        .collect();
    assert_eq!(who, ["team/asker", "team/middle", "team/top"]);
    let below = threads.store().open_approvals(Some(&top_id)).expect("questions");
    assert_eq!(below.approvals, std::slice::from_ref(&approval), "it is seen from the top");
    // Another process answers; the one that holds the tree hears of it.
    space.threads().store().answer_approval(&approval.id, &decision(true)).expect("answered");
    let finished = wait_finished(top).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let result = finished.outcome.result.clone().unwrap_or_default();
    assert!(result.contains("as I said"), "{result}");
    assert_eq!(model.count(), 2 + 2 + 2, "no one was asked twice");
    assert_eq!(threads.store().open_approvals(None).expect("questions").approvals, []);
}

async fn suspend_for_approval(space: &TestSpace, threads: &Threads) -> (ThreadId, Approval) {
    let stopped = space.run(threads, "team/asker", Map::new()).await;
    assert_eq!(stopped.outcome.reason, Some(SuspendReason::Approval), "{:?}", stopped.outcome);
    (stopped.thread_id.clone(), open_approval(space, threads).await)
}

#[tokio::test]
async fn approval_survives_its_process() {
    for approved in [true, false] {
        let model = FakeModel::start(approval_reply);
        let space = team_space(&model);
        let (id, approval) = suspend_for_approval(&space, &space.threads()).await;
        let threads = space.threads();
        let open = threads.store().open_approvals(None).expect("questions");
        assert_eq!(open.approvals, std::slice::from_ref(&approval));
        threads.store().answer_approval(&approval.id, &decision(approved)).expect("answered");
        let resumed =
            threads.resume(&id, &ResumeOptions::default(), CancelSignal::default()).await.expect("resumed");
        let finished = wait_finished(resumed).await;
        assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
        let result: Value =
            serde_json::from_str(finished.outcome.result.as_deref().unwrap_or_default()).expect("JSON");
        assert_eq!((&result["approved"], &result["by"]), (&json!(approved), &json!("Ada")));
        assert_eq!(model.count(), 2);
        assert_eq!(
            space.verify_transcript(&threads, &id).status,
            rye_agent::transcript::TranscriptStatus::Valid
        );
    }
}

#[tokio::test]
async fn forged_answers_do_not_resume() {
    let model = FakeModel::start(approval_reply);
    let space = team_space(&model);
    let (id, approval) = suspend_for_approval(&space, &space.threads()).await;
    let forgeries = [
        // An answer without the code, a question without one, and no question at all.
        "UPDATE approvals SET answer = '{\"approved\":true,\"message\":null,\"changes\":null,\"at_ms\":1,\"by\":\"me\"}', answer_mac = zeroblob(32)",
        "UPDATE approvals SET answer = NULL, answer_mac = NULL, mac = zeroblob(32)",
        "DELETE FROM approvals",
    ];
    for forgery in [""].iter().chain(&forgeries) {
        tamper(&space, forgery);
        let threads = space.threads();
        let refused = threads.resume(&id, &ResumeOptions::default(), CancelSignal::default()).await;
        let refused = refused.expect_err("no one answered");
        // Answering what was changed leads nowhere.
        let (code, command) = match forgery.is_empty() {
            true => (Code::PermissionDenied, "rye thread approve"),
            false => (Code::ThreadForged, "rye thread cancel"),
        };
        assert_eq!(refused.code, code, "{forgery}: {refused:?}");
        assert!(refused.hints.iter().any(|hint| hint.contains(command)), "{refused:?}");
    }
    assert_eq!(model.count(), 1, "the model was not asked again");
    assert!(
        space.threads().store().answer_approval(&approval.id, &decision(true)).is_err(),
        "the question is gone"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parent_sees_pending_approval_at_timeout() {
    let gate = Gate::closed();
    let until_asked = gate.clone();
    let model = FakeModel::start(move |seen| {
        if is_requesting_thread(seen) {
            return approval_reply(seen);
        }
        let results = seen.tool_result_texts();
        let child = results.iter().find_map(|reply| {
            let reply: Value = serde_json::from_str(reply).ok()?;
            reply["thread_id"].as_str().map(str::to_owned)
        });
        let wait =
            |timeout: f64| json!({"operation": "wait_threads", "thread_ids": [child], "timeout": timeout});
        match results.len() {
            0 => FakeReply::calls([(SPAWN, json!({"directive_name": "team/asker", "async_exec": true}))]),
            1 => FakeReply::calls([(ORCHESTRATE, wait(0.5))]).with_gate(&until_asked),
            2 => FakeReply::calls([(ORCHESTRATE, json!({"operation": "resume_thread", "thread_id": child}))]),
            3 => FakeReply::calls([(ORCHESTRATE, wait(240.0))]),
            _ => FakeReply::text(&results[1..].join("\n")),
        }
    });
    let space = team_space(&model);
    let threads = space.threads();
    let _watching = threads.watch();
    let top = start(&threads, "team/top").await;
    let asked = open_approval(&space, &threads).await;
    gate.open();
    // The parent was refused, and waits again.
    model.wait_for_requests(1 + 1 + 1 + 1 + 1);
    space.threads().store().answer_approval(&asked.id, &decision(true)).expect("answered");
    let finished = wait_finished(top).await;
    let result = finished.outcome.result.clone().unwrap_or_default();
    let reply: Vec<Value> = result.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let child = asked.thread.as_str();
    let late = &reply[0]["results"][child];
    assert_eq!((&late["status"], &late["suspend_reason"]), (&json!("suspended"), &json!("approval")));
    assert_eq!(late["detail"]["questions"][0]["what"], "May I deploy?", "{late}");
    assert_eq!(late["approve"], format!("rye thread approve {child}"));
    assert!(reply[1]["error"].to_string().contains("waits for a person"), "{}", reply[1]);
    assert_eq!(reply[2]["results"][child]["status"], "completed", "{}", reply[2]);
}

#[tokio::test]
async fn approved_limit_grows_as_proposed() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => FakeReply::calls([(ORCHESTRATE, json!({"operation": "list_active"}))]),
        _ => FakeReply::text("done"),
    });
    let space = team_space(&model);
    space.directive("team/short", &format!("{PERMISSIONS}<limits turns=\"1\"/>"), "", "I am short.");
    let threads = space.threads();
    let stopped = space.run(&threads, "team/short", Map::new()).await;
    assert_eq!(stopped.outcome.reason, Some(SuspendReason::Limit), "{:?}", stopped.outcome);
    let approval = open_approval(&space, &threads).await;
    assert_eq!((approval.kind.as_str(), approval.prompt.as_str()), ("limit", "turns +1"));
    let changes = approval.detail["proposed"].clone();
    threads
        .store()
        .answer_approval(&approval.id, &ApprovalDecision { changes, ..decision(true) })
        .expect("answered");
    let resumed =
        threads.resume(&stopped.thread_id, &ResumeOptions::default(), CancelSignal::default()).await;
    let finished = wait_finished(resumed.expect("resumed")).await;
    assert_eq!((finished.outcome.status, finished.cost.turns), (ThreadStatus::Completed, 2));
}

#[tokio::test]
async fn cancelled_thread_has_no_open_approvals() {
    let model = FakeModel::start(approval_reply);
    let space = team_space(&model);
    let threads = space.threads();
    let (id, _) = suspend_for_approval(&space, &threads).await;
    threads.cancel(&id, "no need").await.expect("ended");
    let row = threads.store().thread(&id).expect("a store").expect("a thread");
    assert_eq!(row.status, ThreadStatus::Cancelled);
    assert_eq!(threads.store().open_approvals(None).expect("questions").approvals, []);
}

/// Runs a directive that writes a file, which a user has to allow; answers, and says whether it was written.
async fn is_written_after(space: &TestSpace, approved: bool) -> bool {
    let threads = space.threads();
    let stopped = space.run(&threads, "team/write", Map::new()).await;
    assert_eq!(stopped.outcome.reason, Some(SuspendReason::Approval), "{:?}", stopped.outcome);
    let approval = threads.store().open_approvals(None).expect("questions").approvals.remove(0);
    threads.store().answer_approval(&approval.id, &decision(approved)).expect("answered");
    let resumed =
        threads.resume(&stopped.thread_id, &ResumeOptions::default(), CancelSignal::default()).await;
    wait_finished(resumed.expect("resumed")).await;
    space.world.project().join("note.txt").exists()
}

const WRITE_ACTION: &str = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"note.txt\"/><param name=\"content\" value=\"hello\"/></execute></process>";
const FILE_PERMISSIONS: &str = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>";

#[tokio::test]
async fn risk_rules_require_approval() {
    for approved in [false, true] {
        let space = TestSpace::new();
        space.directive("team/write", FILE_PERMISSIONS, WRITE_ACTION, "Write a note.");
        space.user_config("capability_risk", "risk_levels:\n  write:\n    policy: approval_required\n");
        assert_eq!(is_written_after(&space, approved).await, approved);
    }
}

#[tokio::test]
async fn directive_hook_can_require_approval() {
    for approved in [false, true] {
        let space = TestSpace::new();
        let param = |name: &str, value: &str| format!("<param name=\"{name}\">{value}</param>");
        let hook = format!(
            "<hooks><hook id=\"gate\" event=\"thread_started\"><action primary=\"execute\" item_type=\"tool\" item_id=\"rye/agent/threads/internal/control\">{}{}{}</action></hook></hooks>",
            param("action", "suspend"),
            param("suspend_reason", "approval"),
            param("prompt", "May it begin?")
        );
        space.directive("team/write", &format!("{FILE_PERMISSIONS}{hook}"), WRITE_ACTION, "Write a note.");
        assert_eq!(is_written_after(&space, approved).await, approved, "{:?}", space.critical_event_types());
    }
}
