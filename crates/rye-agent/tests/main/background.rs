//! Threads that continue without the process that started them: left to others, found when those are gone; and trees whose
//! process died.

use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use rye_agent::driver::CancelSignal;
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::ThreadStatus;
use rye_agent::store::{ClaimOutcome, ClaimPolicy, ThreadRow, block_on, current_owner};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{
    BackgroundConnection, BackgroundHost, FinishedThread, ResumeOptions, TakeoverReport, Threads, WaitRequest,
};
use rye_agent::transcript;
use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, FakeRequest, Gate};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::test_space::{TEST_TIMEOUT, TestSpace};

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";

fn request(id: &str) -> ThreadRequest {
    ThreadRequest::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new())
}

/// A background process that records what is left to it, and runs nothing.
#[derive(Clone, Default)]
struct FakeBackground {
    /// Names, and whether each was in the store when it came.
    received: Arc<Mutex<Vec<(ThreadId, bool)>>>,
    store: Arc<Mutex<Option<rye_agent::store::StoreHandle>>>,
    is_unavailable: bool,
    /// Whether it does not resume threads.
    is_older: bool,
}

impl BackgroundHost for FakeBackground {
    fn connect(&self) -> Result<Box<dyn BackgroundConnection>> {
        if self.is_unavailable {
            return Err(Error::new(Code::NoBackground, "no process is there"));
        }
        Ok(Box::new(self.clone()))
    }

    fn has_threads(&self) -> bool {
        !self.received.lock().expect("given").is_empty()
    }
}

impl BackgroundConnection for FakeBackground {
    fn take_over(self: Box<Self>, threads: &[ThreadId]) -> Result<TakeoverReport> {
        let store = self.store.lock().expect("a store").clone().expect("a store");
        let is_there = |id: &ThreadId| {
            let row = store.thread(id).expect("read");
            row.is_some_and(|row| {
                row.status == ThreadStatus::Created && row.is_detached && row.owner.is_none()
            })
        };
        self.received.lock().expect("given").extend(threads.iter().map(|id| (id.clone(), is_there(id))));
        Ok(TakeoverReport { pid: 7, refused: Default::default() })
    }

    fn resume(self: Box<Self>, id: &ThreadId, _options: &ResumeOptions) -> Result<Option<u32>> {
        self.received.lock().expect("given").push((id.clone(), true));
        Ok((!self.is_older).then_some(7))
    }
}

fn threads_with_background(space: &TestSpace, background: &FakeBackground) -> Threads {
    let threads = space.threads_with(|setup| setup.background = Some(Arc::new(background.clone())));
    *background.store.lock().expect("a store") = Some(threads.store().clone());
    threads
}

fn row(threads: &Threads, id: &ThreadId) -> ThreadRow {
    threads.store().thread(id).expect("read").expect("a thread")
}

fn wait_request(id: &ThreadId) -> WaitRequest {
    WaitRequest {
        ids: vec![id.clone()],
        needed: 1,
        timeout: TEST_TIMEOUT,
        fail_fast: false,
        cancel_siblings: false,
        result_ttl: TEST_TIMEOUT,
        waits_for_approval: true,
    }
}

/// What waiting for one thread comes to.
async fn wait_for(threads: &Threads, id: &ThreadId) -> Value {
    let response = threads.wait(&wait_request(id), &CancellationToken::new()).await.expect("an answer");
    response["results"][id.as_str()].clone()
}

#[tokio::test]
async fn thread_is_registered_before_handover() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let background = FakeBackground::default();
    let threads = threads_with_background(&space, &background);
    let thread = threads.start_in_background(request("team/work")).await.expect("left");
    assert_eq!(*background.received.lock().expect("given"), [(thread.thread_id.clone(), true)]);
    assert_eq!((thread.runner, model.count()), (Ok(7), 0));
    // The one that comes next finds it and runs it, as if it had started there.
    let others = space.threads();
    assert_eq!(block_on(others.abandoned_threads()).expect("read"), std::slice::from_ref(&thread.thread_id));
    assert_eq!(others.resume_abandoned(std::slice::from_ref(&thread.thread_id)).await.len(), 0);
    assert_eq!(wait_for(&others, &thread.thread_id).await["status"], "completed");
    assert_eq!((model.count(), space.significant_events()[0].as_str()), (1, "thread_started"));
    assert_eq!(block_on(others.abandoned_threads()).expect("read"), []);
}

#[tokio::test]
async fn thread_is_named_before_handover() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let background = FakeBackground::default();
    let threads = threads_with_background(&space, &background);
    let mut named = None;
    let on_registered = |id: &ThreadId| {
        assert_eq!(
            *background.received.lock().expect("given"),
            [],
            "it was asked before the thread was named"
        );
        named = Some(id.clone());
    };
    let thread = threads.start_in_background_with(request("team/work"), on_registered).await.expect("left");
    assert_eq!(named, Some(thread.thread_id));
}

#[tokio::test]
async fn unavailable_background_leaves_no_thread() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let threads = threads_with_background(
        &space,
        &FakeBackground { is_unavailable: true, ..FakeBackground::default() },
    );
    let error = threads.start_in_background(request("team/work")).await.expect_err("no process");
    assert_eq!(error.code, Code::NoBackground);
    assert_eq!(threads.store().threads(&Default::default()).expect("read"), []);
}

#[tokio::test]
async fn stopped_thread_is_resumed_in_background() {
    for is_older in [false, true] {
        let model = FakeModel::start(|seen| match seen.tool_results {
            0 => FakeReply::calls([("rye_file_system_read", json!({"path": "a.txt"}))]),
            _ => FakeReply::text("done"),
        });
        let space = TestSpace::with_model(&model, "openai");
        let metadata = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions><limits turns=\"1\"/>";
        space.directive("team/work", metadata, "", "Work.");
        let background = FakeBackground { is_older, ..FakeBackground::default() };
        let threads = threads_with_background(&space, &background);
        let id = space.run(&threads, "team/work", Map::new()).await.thread_id.clone();
        assert_eq!(row(&threads, &id).status, ThreadStatus::Suspended);
        let Value::Object(limits) = json!({"turns": "+5"}) else { unreachable!("an object") };
        let options = ResumeOptions { limits, by: "a user".to_owned(), ..ResumeOptions::default() };
        let pid = threads.resume_detached(&id, &options).await.expect("resumed");
        assert_eq!(*background.received.lock().expect("given"), [(id.clone(), true)]);
        // One that does not know such requests leaves it to this process.
        let expected =
            if is_older { (Some(std::process::id()), "completed") } else { (Some(7), "suspended") };
        assert_eq!((pid, wait_for(&threads, &id).await["status"].as_str()), (expected.0, Some(expected.1)));
    }
}

fn is_child(seen: &FakeRequest<'_>) -> bool {
    seen.body.to_string().contains("I am a child.")
}

fn parent_and_child(space: &TestSpace) {
    space.directive("team/work", PERMISSIONS, "", "I am the parent.");
    space.directive("team/child", "", "", "I am a child.");
}

#[tokio::test]
async fn async_child_runs_in_background_if_available() {
    for is_away in [false, true] {
        let model = FakeModel::start(|seen| match seen.tool_results {
            0 if !is_child(seen) => {
                FakeReply::calls([(SPAWN, json!({"directive_name": "team/child", "async_exec": true}))])
            }
            _ => FakeReply::text("done"),
        });
        let space = TestSpace::with_model(&model, "openai");
        parent_and_child(&space);
        let background = FakeBackground { is_unavailable: is_away, ..FakeBackground::default() };
        let threads = threads_with_background(&space, &background);
        let finished = space.run(&threads, "team/work", Map::new()).await;
        assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
        let children = threads.store().children(&finished.thread_id).expect("read");
        assert_eq!((children.len(), children[0].is_detached), (1, !is_away));
        assert_eq!(background.received.lock().expect("given").len(), usize::from(!is_away));
        if is_away {
            assert_eq!(wait_for(&threads, &children[0].id).await["status"], "completed");
        }
    }
}

/// A process that dies: its runtime goes, its threads stay claimed until another process notices that it is gone.
fn start_and_crash(space: &TestSpace, until: impl FnOnce()) -> ThreadId {
    let runtime = Runtime::new().expect("a runtime");
    let threads = space.threads();
    let started =
        runtime.block_on(threads.start(request("team/work"), CancelSignal::default())).expect("started");
    until();
    runtime.shutdown_background();
    started.thread_id
}

/// The claims of a process that is gone are free; this one lives, so they are taken from it.
fn release_claims(threads: &Threads, id: &ThreadId) {
    for row in threads.store().subtree(id).expect("read") {
        match threads.store().claim(&row.id, &current_owner(), ClaimPolicy::Forced, 1).expect("a claim") {
            ClaimOutcome::Claimed { claim, .. } => {
                threads.store().release_claim(&row.id, claim).expect("released")
            }
            held @ ClaimOutcome::Held { .. } => panic!("{held:?}"),
        }
    }
}

fn resume_after_crash(threads: &Threads, id: &ThreadId) -> Arc<FinishedThread> {
    release_claims(threads, id);
    let options = ResumeOptions { by: "a user".to_owned(), ..ResumeOptions::default() };
    Runtime::new().expect("a runtime").block_on(async {
        let started = threads.resume(id, &options, CancelSignal::default()).await.expect("resumed");
        started.finished().await.expect("finished")
    })
}

/// What each call came to, as texts.
fn tool_results(space: &TestSpace) -> Vec<Value> {
    let result_text = |results: &Value| {
        results.get("output").or(results.get("error")).and_then(Value::as_str).map(str::to_owned)
    };
    let results = space.payloads("tool_call_result");
    results.iter().filter_map(|results| serde_json::from_str(&result_text(results)?).ok()).collect()
}

#[test]
fn resumed_parent_rejoins_its_child() {
    for call in [1, 2] {
        let gate = Gate::closed();
        let gate_clone = gate.clone();
        let model = FakeModel::start(move |seen| match (is_child(seen), seen.tool_results) {
            (true, _) if seen.number == 2 => FakeReply::text("never heard").with_gate(&gate_clone),
            (true, _) => FakeReply::text("from the child"),
            (false, 0) => FakeReply::calls([(SPAWN, json!({"directive_name": "team/child"}))]),
            (false, _) => FakeReply::text("done"),
        });
        let space = TestSpace::with_model(&model, "openai");
        parent_and_child(&space);
        let id = start_and_crash(&space, || model.wait_for_requests(2));
        let threads = space.threads();
        if call == 2 {
            // The child was taken up and has ended before its parent is.
            let child = threads.store().children(&id).expect("read").remove(0).id;
            release_claims(&threads, &id);
            let runtime = Runtime::new().expect("a runtime");
            assert_eq!(runtime.block_on(threads.resume_abandoned(std::slice::from_ref(&child))).len(), 0);
            assert_eq!(runtime.block_on(wait_for(&threads, &child))["status"], "completed");
        }
        let finished = resume_after_crash(&threads, &id);
        gate.open();
        assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
        assert_eq!(threads.store().children(&id).expect("read").len(), 1, "there is one child");
        let results = tool_results(&space);
        assert_eq!(
            (&results[0]["status"], &results[0]["result"]),
            (&json!("completed"), &json!("from the child"))
        );
        let path = transcript::path(threads.folder(), &id);
        let events =
            transcript::read(&path, transcript::TranscriptPosition::default(), 1000).expect("read").events;
        let started = events.iter().filter(|event| event.event_type == "child_thread_started");
        assert_eq!(started.count(), 1, "it is told of once");
        assert_eq!(model.count(), 4, "one in flight, and three that were recorded");
        assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
    }
}

#[test]
fn resumed_parent_waits_for_resumed_children() {
    let gate = Gate::closed();
    let gate_clone = gate.clone();
    let model = FakeModel::start(move |seen| match (is_child(seen), seen.tool_results) {
        (true, _) if seen.number < 5 => FakeReply::text("never heard").with_gate(&gate_clone),
        (true, _) => FakeReply::text("from a child"),
        (false, 0) => {
            let child = json!({"directive_name": "team/child", "async_exec": true});
            FakeReply::calls([(SPAWN, child.clone()), (SPAWN, child)])
        }
        (false, 2) => {
            let ids: Vec<Value> = seen
                .tool_result_texts()
                .iter()
                .map(|result| serde_json::from_str::<Value>(result).expect("JSON")["thread_id"].clone())
                .collect();
            FakeReply::calls([(ORCHESTRATE, json!({"operation": "wait_threads", "thread_ids": ids}))])
        }
        (false, _) => FakeReply::text("done"),
    });
    let space = TestSpace::with_model(&model, "anthropic");
    parent_and_child(&space);
    let id = start_and_crash(&space, || {
        // Both children have asked, and the parent twice.
        model.wait_for_requests(4);
        while space.payloads("tool_call_start").len() < 3 {
            std::thread::yield_now();
        }
    });
    let threads = space.threads();
    let finished = resume_after_crash(&threads, &id);
    gate.open();
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let results = tool_results(&space);
    let collected = results.last().expect("results");
    assert_eq!(collected["success"], true, "{collected}");
    assert_eq!(threads.store().children(&id).expect("read").len(), 2);
    assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
}

/// A thread that continues by itself and that another process works on.
fn remote_thread(space: &TestSpace) -> ThreadId {
    let background = FakeBackground::default();
    let threads = threads_with_background(space, &background);
    let runtime = Runtime::new().expect("a runtime");
    let thread = runtime.block_on(threads.start_in_background(request("team/work"))).expect("left");
    tamper(
        space,
        "UPDATE threads SET pid = 1, pid_start = 1, boot_id = '', host = 'elsewhere',
         heartbeat_ms = heartbeat_ms - 1000",
    );
    thread.thread_id
}

#[expect(clippy::disallowed_methods, reason = "a test that is another machine")]
fn tamper(space: &TestSpace, sql: &str) {
    let path = space.world.project().join(".ai/threads/registry.db");
    Connection::open(path).expect("a database").execute_batch(sql).expect("a change");
}

#[test]
fn stale_remote_thread_is_abandoned() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let id = remote_thread(&space);
    assert_eq!(block_on(space.threads().abandoned_threads()).expect("read"), [], "an hour has not passed");
    space.config("coordination", "coordination: {orphan_detection: {stale_threshold_minutes: 0}}\n");
    let threads = space.threads();
    assert_eq!(block_on(threads.abandoned_threads()).expect("read"), std::slice::from_ref(&id));
    let runtime = Runtime::new().expect("a runtime");
    assert_eq!(runtime.block_on(threads.resume_abandoned(std::slice::from_ref(&id))).len(), 0);
    assert_eq!(runtime.block_on(wait_for(&threads, &id))["status"], "completed");
}

#[test]
fn disabled_orphan_detection_resumes_nothing() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let id = remote_thread(&space);
    tamper(&space, "UPDATE threads SET pid = NULL");
    assert_eq!(block_on(space.threads().abandoned_threads()).expect("read"), std::slice::from_ref(&id));
    space.config("coordination", "coordination: {orphan_detection: {enabled: false}}\n");
    let background = FakeBackground::default();
    let threads = threads_with_background(&space, &background);
    assert_eq!(block_on(threads.abandoned_threads()).expect("read"), []);
    assert!(!threads.is_startup_scan_enabled());
    let runtime = Runtime::new().expect("a runtime");
    assert_eq!(runtime.block_on(wait_for(&threads, &id))["status"], "interrupted");
    assert_eq!((background.received.lock().expect("given").len(), model.count()), (0, 0));
}

#[tokio::test]
async fn missing_key_is_noted_until_resume() {
    let model = FakeModel::start(|_| FakeReply::text("done"));
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let thread = threads_with_background(&space, &FakeBackground::default())
        .start_in_background(request("team/work"))
        .await
        .expect("left");
    let id = thread.thread_id;
    let poor = space.threads_with(|setup| drop(setup.environment.remove("FAKE_MODEL_KEY")));
    let reasons = poor.resume_abandoned(std::slice::from_ref(&id)).await;
    assert!(reasons[&id].contains("FAKE_MODEL_KEY"), "{reasons:?}");
    let found = row(&poor, &id);
    assert_eq!((found.status, &found.owner), (ThreadStatus::Created, &None));
    assert!(found.note.is_some_and(|note| note.contains("FAKE_MODEL_KEY")));
    let threads = space.threads();
    assert_eq!(threads.resume_abandoned(std::slice::from_ref(&id)).await.len(), 0);
    assert_eq!(wait_for(&threads, &id).await["status"], "completed");
    assert_eq!(row(&threads, &id).note, None);
}

#[tokio::test]
async fn cancel_request_survives_its_process() {
    let model = FakeModel::start(|_| FakeReply::hang());
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let thread = threads_with_background(&space, &FakeBackground::default())
        .start_in_background(request("team/work"))
        .await
        .expect("left");
    let id = thread.thread_id;
    let threads = space.threads();
    threads.cancel(&id, "no longer needed").await.expect("asked");
    let watching = threads.watch();
    assert_eq!(threads.resume_abandoned(std::slice::from_ref(&id)).await.len(), 0);
    let result = wait_for(&threads, &id).await;
    assert_eq!((&result["status"], &result["error"]), (&json!("cancelled"), &json!("no longer needed")));
    drop(watching);
}

#[test]
fn waiting_for_dead_thread_reports_interrupted() {
    let model = FakeModel::start(|_| FakeReply::hang());
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let id = start_and_crash(&space, || model.wait_for_requests(1));
    let threads = space.threads();
    release_claims(&threads, &id);
    let result = Runtime::new().expect("a runtime").block_on(wait_for(&threads, &id));
    assert_eq!(result["status"], "interrupted", "{result}");
    assert_eq!(result["hint"], format!("rye thread resume {id}"));
}
