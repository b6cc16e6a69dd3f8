//! Threads that do not go on without a person: no parent and no program answers, hands over or copies in their place.

use rye_agent::driver::CancelSignal;
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::ThreadStatus;
use rye_agent::store::{ApprovalDecision, ThreadFilter};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{END_THREAD, ResumeOptions, Threads, UserPolicy};
use rye_engine::{Code, Error};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, FakeRequest, Gate};
use serde_json::{Map, Value, json};

use crate::test_space::TestSpace;

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool></execute></permissions>";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";
const SPAWN: &str = "rye_agent_threads_thread_directive";

/// A model that asks a person, whose no ends it; then it says that it is done.
fn asking_reply(seen: &FakeRequest<'_>) -> FakeReply {
    match seen.body.to_string().contains("May I deploy?") {
        false => FakeReply::calls([(
            "rye_agent_threads_human_approval",
            json!({"prompt": "May I deploy?", "on_deny": "end"}),
        )]),
        true => FakeReply::text("done"),
    }
}

fn space(model: &FakeModel) -> TestSpace {
    let space = TestSpace::with_model(model, "openai");
    space.directive("team/asker", PERMISSIONS, "", "I am the asker.");
    space.directive("team/parent", PERMISSIONS, "", "I am the parent.");
    space
}

async fn stopped_asker(space: &TestSpace, threads: &Threads) -> ThreadId {
    let stopped = space.run(threads, "team/asker", Map::new()).await;
    assert_eq!(stopped.outcome.status, ThreadStatus::Suspended, "{:?}", stopped.outcome);
    stopped.thread_id.clone()
}

/// A person says no, and the thread ends.
async fn deny(threads: &Threads, id: &ThreadId) {
    let approval = threads.store().open_approvals(None).expect("questions").approvals.remove(0);
    let answer = ApprovalDecision {
        approved: false,
        message: Some("not today".to_owned()),
        changes: Value::Null,
        at_ms: 7,
        by: "Ada".to_owned(),
        always: None,
    };
    threads.store().answer_approval(&approval.id, &answer).expect("answered");
    let resumed = threads.resume(id, &ResumeOptions::default(), CancelSignal::default()).await;
    let finished = resumed.expect("resumed").finished().await.expect("an end");
    assert_eq!(finished.outcome.status, ThreadStatus::Error, "{:?}", finished.outcome);
}

/// The answers to a program that speaks for the user, for each way to continue the thread or what it has said.
async fn refusals(threads: &Threads, id: &ThreadId) -> Vec<Result<Value, Error>> {
    let policy = UserPolicy { by: "a client".to_owned(), can_raise_limits: false };
    let cancel = lillux::CancelToken::new().expect("a token");
    let params = |value: Value| value.as_object().cloned().expect("a map");
    let mut answers = Vec::new();
    for operation in ["resume_thread", "handoff_thread", "fork_thread"] {
        let call = params(json!({"operation": operation, "thread_id": id, "message": "It is approved.",
            "limit_overrides": if operation == "resume_thread" { json!({"turns": 9}) } else { json!({}) }}));
        answers.push(threads.operate_for_user(&call, &policy, &cancel).await);
    }
    let start = params(json!({"directive_name": "team/asker", "previous_thread_id": id}));
    answers.push(threads.start_for_user(&start, &policy, &cancel).await);
    answers
}

fn thread_count(threads: &Threads) -> usize {
    threads.store().threads(&ThreadFilter::default()).expect("threads").len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_cannot_pass_an_open_question() {
    let model = FakeModel::start(asking_reply);
    let space = space(&model);
    let threads = space.threads();
    let id = stopped_asker(&space, &threads).await;
    for refused in refusals(&threads, &id).await {
        let error = refused.expect_err("it waits for a person");
        assert_eq!(error.code, Code::PermissionDenied, "{error:?}");
        assert!(error.message.contains("waits for a person"), "{error:?}");
    }
    assert_eq!((thread_count(&threads), model.count()), (1, 1));
    assert_eq!(
        threads.store().open_approvals(None).expect("questions").approvals.len(),
        1,
        "it is still asked"
    );
    // Ending it does not open a way around the question.
    threads.cancel(&id, "no need").await.expect("ended");
    for refused in refusals(&threads, &id).await {
        let error = refused.expect_err("it was never answered");
        assert!(error.message.contains("while it asked a person: May I deploy? (no need)"), "{error:?}");
    }
    assert_eq!((thread_count(&threads), model.count()), (1, 1));
    let row = threads.store().thread(&id).expect("a store").expect("a thread");
    let next = threads.continue_from(&row, None, CancelSignal::default()).await;
    next.expect("the user may").finished().await.expect("an end");
    let read = model.requests().pop().expect("a request").body.to_string();
    assert!(read.contains("It ended with: no need"), "{read}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_threads_are_continued_by_users_only() {
    let model = FakeModel::start(asking_reply);
    let space = space(&model);
    let threads = space.threads();
    let id = stopped_asker(&space, &threads).await;
    deny(&threads, &id).await;
    for refused in refusals(&threads, &id).await {
        let error = refused.expect_err("a person said no");
        assert_eq!(error.code, Code::PermissionDenied, "{error:?}");
        assert!(error.message.contains("not today"), "{error:?}");
    }
    assert_eq!((thread_count(&threads), model.count()), (1, 1));
    let row = threads.store().thread(&id).expect("a store").expect("a thread");
    let next = threads.continue_from(&row, Some("Go on.".to_owned()), CancelSignal::default()).await;
    next.expect("the user may").finished().await.expect("an end");
    let read = model.requests().pop().expect("a request").body.to_string();
    assert!(read.contains("not today") && read.contains("Go on."), "the no is read: {read}");
}

/// The answers to the parent of a child that stopped, for each of these calls of the orchestrator.
async fn parent_answers(child_limits: &str, child_reply: fn(&FakeRequest<'_>) -> FakeReply) -> Vec<String> {
    let gate = Gate::closed();
    let until_stopped = gate.clone();
    let model = FakeModel::start(move |seen| {
        if !seen.body.to_string().contains("I am the parent.") {
            return child_reply(seen);
        }
        let results = seen.tool_result_texts();
        let child = || {
            let first: Value = serde_json::from_str(&results[0]).expect("JSON");
            first["thread_id"].clone()
        };
        let operation = |name: &str| {
            let call = json!({"operation": name, "thread_id": child(), "message": "It is approved."});
            FakeReply::calls([(ORCHESTRATE, call)])
        };
        match results.len() {
            0 => FakeReply::calls([(SPAWN, json!({"directive_name": "team/child", "async_exec": true}))]),
            1 => FakeReply::calls([(
                ORCHESTRATE,
                json!({"operation": "wait_threads", "thread_ids": [child()], "timeout": 2}),
            )])
            .with_gate(&until_stopped),
            2 => {
                let call = json!({"operation": "resume_thread", "thread_id": child(), "limit_overrides": {"turns": 20}});
                FakeReply::calls([(ORCHESTRATE, call)])
            }
            3 => operation("handoff_thread"),
            4 => operation("fork_thread"),
            5 => FakeReply::calls([(
                SPAWN,
                json!({"directive_name": "team/child", "previous_thread_id": child()}),
            )]),
            _ => FakeReply::text(&serde_json::to_string(&results[2..]).expect("JSON")),
        }
    });
    let space = space(&model);
    space.directive("team/child", &format!("{PERMISSIONS}{child_limits}"), "", "I am the child.");
    let threads = space.threads();
    let child_stops = async {
        space.wait_for_event("thread_suspended").await;
        gate.open();
    };
    let (finished, ()) = tokio::join!(space.run(&threads, "team/parent", Map::new()), child_stops);
    let result = finished.outcome.result.clone().unwrap_or_default();
    let children = threads.store().children(&finished.thread_id).expect("children");
    assert_eq!(children.len(), 1, "{result}");
    assert_eq!(children[0].status, ThreadStatus::Suspended, "{result}");
    serde_json::from_str(&result).unwrap_or_else(|_| panic!("{:?}", finished.outcome))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parents_cannot_answer_for_a_person() {
    for answer in parent_answers("", asking_reply).await {
        assert!(answer.contains("waits for a person"), "{answer}");
    }
    let look = |_: &FakeRequest<'_>| FakeReply::calls([("rye_file_system_ls", json!({"path": "."}))]);
    for answer in parent_answers("<limits turns=\"2\"/>", look).await {
        assert!(answer.contains("waits for a person: turns"), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuations_keep_inherited_hooks() {
    let model = FakeModel::start(|seen| {
        match (seen.body.to_string().contains("I am the parent."), seen.tool_results) {
            (true, 0) => FakeReply::calls([(SPAWN, json!({"directive_name": "team/asker"}))]),
            (false, 0) => {
                FakeReply::calls([("rye_file_system_write", json!({"path": "w.txt", "content": "x"}))])
            }
            // What continues from it tries again.
            (false, 1) if seen.body.to_string().contains("Pick up") => {
                FakeReply::calls([("rye_file_system_write", json!({"path": "w.txt", "content": "x"}))])
            }
            _ => FakeReply::text("done"),
        }
    });
    let space = space(&model);
    let hook = "<hooks><hook id=\"gate\" event=\"before_tool\"><condition path=\"item\" op=\"eq\" value=\"rye/file-system/write\"/><action primary=\"execute\" item_type=\"tool\" item_id=\"rye/agent/threads/internal/control\"><param name=\"action\">block</param><param name=\"error\">no writing</param></action></hook></hooks>";
    space.directive("team/parent", &format!("{PERMISSIONS}{hook}"), "", "I am the parent.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/parent", Map::new()).await;
    let child = threads.store().children(&finished.thread_id).expect("children").remove(0);
    assert_eq!(space.payloads("tool_call_blocked").len(), 1);
    let cancel = lillux::CancelToken::new().expect("a token");
    let policy = UserPolicy { by: "a client".to_owned(), can_raise_limits: false };
    let start = json!({"directive_name": "team/asker", "previous_thread_id": child.id});
    let started = threads.start_for_user(start.as_object().expect("a map"), &policy, &cancel).await;
    let started = started.expect("continued");
    assert_eq!(space.payloads("tool_call_blocked").len(), 2, "{started}");
    let second = ThreadId::parse(started["thread_id"].as_str().expect("an id")).expect("an id");
    let row = threads.store().thread(&second).expect("a store").expect("a thread");
    let third = threads.continue_from(&row, None, CancelSignal::default()).await.expect("started");
    third.finished().await.expect("an end");
    assert!(!space.world.project().join("w.txt").exists());
}

/// A program that raises a limit on resume is refused, and the thread stays suspended.
#[tokio::test]
async fn programs_raise_no_limit_on_resume() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => FakeReply::calls([("rye_file_system_ls", json!({"path": "."}))]),
        _ => FakeReply::text("done"),
    });
    let space = space(&model);
    let limit = format!("{PERMISSIONS}<limits turns=\"1\"/>");
    space.directive("team/short", &limit, "", "I am short.");
    space.user_config("hook_conditions", "builtin_hooks: []\n");
    let threads = space.threads();
    let stopped = space.run(&threads, "team/short", Map::new()).await;
    assert_eq!(stopped.outcome.status, ThreadStatus::Suspended, "{:?}", stopped.outcome);
    let id = &stopped.thread_id;
    let cancel = lillux::CancelToken::new().expect("a token");
    let policy = UserPolicy { by: "a client".to_owned(), can_raise_limits: false };
    for turns in [json!("+10"), json!(9), Value::Null] {
        let call =
            json!({"operation": "resume_thread", "thread_id": id, "limit_overrides": {"turns": turns}});
        let refused = threads.operate_for_user(call.as_object().expect("a map"), &policy, &cancel).await;
        let error = refused.expect_err("only a person raises it");
        assert_eq!(error.code, Code::PermissionDenied, "{error:?}");
        assert!(error.hints[0].contains(&format!("rye thread resume {id} --limit turns=")), "{error:?}");
    }
    assert_eq!(model.count(), 1);
    let start = json!({"directive_name": "team/short", "limit_overrides": {"turns": "+10"}});
    let refused = threads.start_for_user(start.as_object().expect("a map"), &policy, &cancel).await;
    let message = refused.expect_err("a new thread has no limit to raise").message;
    assert!(message.contains("a new thread has none to raise"), "{message}");
}

/// A denial was to end a thread, and its command was killed: the next resume ends the thread.
#[tokio::test]
async fn denial_that_ends_a_thread_is_kept() {
    let model = FakeModel::start(asking_reply);
    let space = space(&model);
    let threads = space.threads();
    let id = stopped_asker(&space, &threads).await;
    let approval = threads.store().open_approvals(None).expect("questions").approvals.remove(0);
    let answer = ApprovalDecision {
        approved: false,
        message: Some("not today".to_owned()),
        changes: json!({END_THREAD: true}),
        at_ms: 7,
        by: "Ada".to_owned(),
        always: None,
    };
    threads.store().answer_approval(&approval.id, &answer).expect("answered");
    let resumed = threads.resume(&id, &ResumeOptions::default(), CancelSignal::default()).await;
    let finished = resumed.expect("resumed").finished().await.expect("an end");
    assert_eq!(finished.outcome.status, ThreadStatus::Cancelled, "{:?}", finished.outcome);
    let row = threads.store().thread(&id).expect("a store").expect("a thread");
    assert_eq!((row.status, model.count()), (ThreadStatus::Cancelled, 1));
    assert!(row.error.is_some_and(|error| error.contains("denied by Ada: not today")));
}

#[tokio::test]
async fn directive_hooks_do_nothing_unasked() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => FakeReply::calls([("rye_file_system_ls", json!({"path": "."}))]),
        _ => FakeReply::text("done"),
    });
    let space = space(&model);
    space.user_config("capability_risk", "risk_levels:\n  write:\n    policy: approval_required\n");
    let hook = "<hooks><hook id=\"note\" event=\"after_step\"><action primary=\"execute\" item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\">w.txt</param><param name=\"content\">x</param></action></hook></hooks>";
    space.directive("team/hooked", &format!("{PERMISSIONS}{hook}"), "", "I have a hook.");
    let threads = space.threads();
    let request = ThreadRequest::new(
        ItemRef::new(ItemType::Directive, ItemId::new("team/hooked").expect("an id")),
        Map::new(),
    );
    let started = threads.start(request, CancelSignal::default()).await.expect("started");
    let finished = started.finished().await.expect("an end");
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    assert!(!space.world.project().join("w.txt").exists());
    let failed = space.payloads("hook_failed");
    assert!(failed[0]["error"].to_string().contains("needs a person's approval"), "{failed:?}");
}
