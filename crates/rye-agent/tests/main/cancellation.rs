//! The end reaches everything: streams, tools, sleeps, children, other processes. Nothing here waits for time to pass.

use std::sync::{Arc, Mutex, OnceLock};

use rye_agent::driver::{CancelSignal, Listener};
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::ThreadStatus;
use rye_agent::store::{
    ApprovalDecision, ClaimOutcome, ClaimPolicy, Owner, StatusChange, StoreHandle, ThreadCommit,
    ThreadFilter, current_owner,
};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{FinishedThread, ResumeOptions, StartedThread, Threads};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Map, Value, json};

use crate::test_space::{TEST_TIMEOUT, TestSpace};

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";

async fn start(threads: &Threads, id: &str) -> StartedThread {
    let request =
        ThreadRequest::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new());
    threads.start(request, CancelSignal::default()).await.expect("started")
}

async fn wait_finished(started: StartedThread) -> Arc<FinishedThread> {
    tokio::time::timeout(TEST_TIMEOUT, started.finished()).await.expect("in time").expect("an end")
}

/// Waits until so many threads stand so.
async fn wait_for_status(threads: &Threads, status: ThreadStatus, count: usize) {
    let mut changes = threads.store().subscribe();
    let filter = ThreadFilter { statuses: vec![status], ..ThreadFilter::default() };
    let reached = async {
        while threads.store().threads(&filter).expect("threads").len() < count {
            // The one that lags behind looks again.
            let _ = changes.recv().await;
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reached).await.unwrap_or_else(|_| panic!("not {count} are {status}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancel_drops_endless_stream() {
    for protocol in ["anthropic", "openai"] {
        let model = FakeModel::start(|_| FakeReply::hang());
        let space = TestSpace::with_model(&model, protocol);
        space.directive("team/work", "", "", "Work.");
        let threads = space.threads();
        let work = start(&threads, "team/work").await;
        model.wait_for_requests(1);
        threads.cancel(&work.thread_id, "enough").await.expect("asked");
        let finished = wait_finished(work).await;
        assert_eq!(finished.outcome.status, ThreadStatus::Cancelled, "{:?}", finished.outcome);
        assert_eq!(finished.outcome.error.as_deref(), Some("enough"));
        model.wait_for_abandoned(1);
    }
}

#[tokio::test]
async fn cancel_interrupts_backoff() {
    let model =
        FakeModel::start(|_| FakeReply::status(429, &json!({"error": "later"}), &[("retry-after", "600")]));
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "<limits duration_seconds=\"3600\"/>", "", "Work.");
    let threads = space.threads();
    let work = start(&threads, "team/work").await;
    space.wait_for_event("retry_scheduled").await;
    let delay = space.payloads("retry_scheduled")[0]["delay_ms"].as_u64().expect("a delay");
    assert!(delay >= 600_000, "it was going to sleep for ten minutes: {delay}");
    threads.cancel(&work.thread_id, "enough").await.expect("asked");
    assert_eq!(wait_finished(work).await.outcome.status, ThreadStatus::Cancelled);
    assert_eq!(model.count(), 1);
}

/// A tree of a root, so many branches and as many leaves on each, all waiting for the model.
fn tree_model(branches: usize) -> FakeModel {
    FakeModel::start(move |seen| {
        let body = seen.body.to_string();
        let below = if body.contains("I am the root.") {
            "team/branch"
        } else if body.contains("I am a branch.") {
            "team/leaf"
        } else {
            return FakeReply::hang();
        };
        if seen.tool_results > 0 {
            return FakeReply::hang();
        }
        FakeReply::calls(vec![(SPAWN, json!({"directive_name": below, "async_exec": true})); branches])
    })
}

fn tree_space(model: &FakeModel) -> TestSpace {
    let space = TestSpace::with_model(model, "openai");
    for (name, prompt) in [("root", "I am the root."), ("branch", "I am a branch."), ("leaf", "I am a leaf.")]
    {
        let limits = "<limits spawns=\"100\" spend=\"100\" />";
        space.directive(&format!("team/{name}"), &format!("{PERMISSIONS}{limits}"), "", prompt);
    }
    space.config("resilience", "concurrency:\n  max_concurrent_children: 100\n  max_total_threads: 1000\n");
    space
}

/// `1 + BRANCHES + BRANCHES²` threads.
const BRANCHES: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_root_cancels_the_tree() {
    let model = tree_model(BRANCHES);
    let space = tree_space(&model);
    let threads = space.threads();
    let root = start(&threads, "team/root").await;
    let all = 1 + BRANCHES + BRANCHES * BRANCHES;
    // Each asks once, and those that have children a second time.
    model.wait_for_requests(all + 1 + BRANCHES);
    threads.cancel(&root.thread_id, "enough").await.expect("asked");
    assert_eq!(wait_finished(root).await.outcome.status, ThreadStatus::Cancelled);
    wait_for_status(&threads, ThreadStatus::Cancelled, all).await;
    model.wait_for_abandoned(all);
    assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
}

#[tokio::test]
async fn taken_over_child_ends_with_parent() {
    let model = FakeModel::start(|seen| {
        if seen.body.to_string().contains("I am the asker.") && seen.tool_results == 0 {
            return FakeReply::calls([("rye_agent_threads_human_approval", json!({"prompt": "May I?"}))]);
        }
        match seen.tool_results {
            0 => FakeReply::calls([(SPAWN, json!({"directive_name": "team/asker", "async_exec": true}))]),
            _ => FakeReply::hang(),
        }
    });
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/parent", PERMISSIONS, "", "I am the parent.");
    space.directive("team/asker", PERMISSIONS, "", "I am the asker.");
    // The first does not watch for answers: the second is quicker.
    let (first, second) = (space.threads(), space.threads());
    let _watching = second.watch();
    let parent = start(&first, "team/parent").await;
    space.wait_for_event("human_approval_requested").await;
    let approval = first.store().open_approvals(None).expect("questions").approvals.remove(0);
    let decision = ApprovalDecision {
        approved: true,
        message: None,
        changes: Value::Null,
        at_ms: 1,
        by: "Ada".to_owned(),
        always: None,
    };
    second.store().answer_approval(&approval.id, &decision).expect("answered");
    let child = second
        .resume(&approval.thread, &ResumeOptions::default(), CancelSignal::default())
        .await
        .expect("resumed");
    first.cancel(&parent.thread_id, "enough").await.expect("asked");
    assert_eq!(wait_finished(parent).await.outcome.status, ThreadStatus::Cancelled);
    let child = wait_finished(child).await;
    assert_eq!(child.outcome.status, ThreadStatus::Cancelled, "{:?}", child.outcome);
    assert_eq!(child.outcome.error.as_deref(), Some("its parent was cancelled"));
    assert_eq!(first.store().cancel_requests().expect("read"), []);
}

/// Reads the requests in the store when the thread's end is reported: it is durable then.
#[derive(Default)]
struct RequestsAtEnd {
    store: OnceLock<StoreHandle>,
    seen: Mutex<Vec<(ThreadId, String)>>,
}

impl Listener for RequestsAtEnd {
    fn event(&self, envelope: &Value) {
        if envelope["event_type"] == "thread_cancelled" {
            let store = self.store.get().expect("a store");
            let requests = store.cancel_requests().expect("read").into_iter();
            *self.seen.lock().expect("seen") =
                requests.map(|request| (request.thread, request.reason)).collect();
        }
    }

    fn delta(&self, _thread: &str, _delta: &rye_model::ResponseDelta) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_stays_until_the_end_is_durable() {
    let model = FakeModel::start(|_| FakeReply::hang());
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let listener = Arc::new(RequestsAtEnd::default());
    let threads = space.threads_with(|setup| setup.listener = Some(Arc::clone(&listener) as Arc<_>));
    listener.store.set(threads.store().clone()).expect("set once");
    let work = start(&threads, "team/work").await;
    model.wait_for_requests(1);
    let id = work.thread_id.clone();
    threads.store().request_cancel(&id, "enough", 1_767_323_045_000).expect("asked");
    let _watching = threads.watch();
    let finished = wait_finished(work).await;
    assert_eq!(finished.outcome.error.as_deref(), Some("enough"));
    assert_eq!(*listener.seen.lock().expect("seen"), [(id, "enough".to_owned())]);
    assert_eq!(threads.store().cancel_requests().expect("read"), [], "it is gone once the thread has ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_claim_leaves_children_running() {
    let gate = Gate::closed();
    let opened = gate.clone();
    let model = FakeModel::start(move |seen| match seen.body.to_string().contains("I am the parent.") {
        true if seen.tool_results == 0 => {
            FakeReply::calls([(SPAWN, json!({"directive_name": "team/child", "async_exec": true}))])
        }
        true => FakeReply::text("done").with_gate(&gate),
        false => FakeReply::hang(),
    });
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/parent", PERMISSIONS, "", "I am the parent.");
    space.directive("team/child", PERMISSIONS, "", "I am the child.");
    let threads = space.threads();
    let parent = start(&threads, "team/parent").await;
    model.wait_for_requests(3);
    wait_for_status(&threads, ThreadStatus::Running, 2).await;
    let thief = Owner { pid: 1, pid_start: 1, boot_id: "b".to_owned(), host: "elsewhere".to_owned() };
    let claimed = threads.store().claim(&parent.thread_id, &thief, ClaimPolicy::Forced, 1).expect("claimed");
    assert!(matches!(claimed, ClaimOutcome::Claimed { .. }), "{claimed:?}");
    opened.open();
    let finished = wait_finished(parent).await;
    assert!(finished.outcome.error.as_deref().is_some_and(|error| error.contains("could not continue")));
    let children = threads.store().children(&finished.thread_id).expect("children");
    let statuses: Vec<ThreadStatus> = children.iter().map(|child| child.status).collect();
    assert_eq!(statuses, [ThreadStatus::Running]);
    assert!(threads.cancel_local(&children[0].id, "the test is over"));
    wait_for_status(&threads, ThreadStatus::Cancelled, 1).await;
}

#[tokio::test]
async fn suspended_child_ends_with_parent() {
    let model = FakeModel::start(|seen| match seen.body.to_string().contains("I am the asker.") {
        true => FakeReply::calls([("rye_agent_threads_human_approval", json!({"prompt": "May I?"}))]),
        false => FakeReply::calls([(SPAWN, json!({"directive_name": "team/asker"}))]),
    });
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/parent", PERMISSIONS, "", "I am the parent.");
    space.directive("team/asker", PERMISSIONS, "", "I am the asker.");
    let threads = space.threads();
    let parent = start(&threads, "team/parent").await;
    space.wait_for_event("human_approval_requested").await;
    threads.cancel(&parent.thread_id, "enough").await.expect("asked");
    assert_eq!(wait_finished(parent).await.outcome.status, ThreadStatus::Cancelled);
    wait_for_status(&threads, ThreadStatus::Cancelled, 2).await;
    assert_eq!(threads.store().open_approvals(None).expect("questions").approvals, []);
}

#[tokio::test]
async fn cancel_from_elsewhere_keeps_the_patch() {
    let model = FakeModel::start(|_| {
        FakeReply::calls([("rye_agent_threads_human_approval", json!({"prompt": "May I?"}))])
    });
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/asker", PERMISSIONS, "", "I am the asker.");
    let threads = space.threads();
    let finished = wait_finished(start(&threads, "team/asker").await).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Suspended);
    // As the worker that ran it records it.
    let (store, id) = (threads.store(), &finished.thread_id);
    let patch = json!({"digest": "ab".repeat(32), "files": 1, "incomplete": false});
    let claimed = store.shared().claim(id, &current_owner(), ClaimPolicy::Free, 1).await.expect("judged");
    let ClaimOutcome::Claimed { claim, .. } = claimed else { panic!("{claimed:?}") };
    let row = store.shared().thread(id).await.expect("read").expect("a thread");
    let mut result = row.result.expect("a result");
    result["patch"] = patch.clone();
    let stop = StatusChange {
        reason: row.reason,
        result: Some(result),
        ..StatusChange::to(ThreadStatus::Suspended)
    };
    for (status, is_last) in [(StatusChange::to(ThreadStatus::Running), false), (stop, true)] {
        let commit =
            ThreadCommit { status: Some(status), is_last, ..ThreadCommit::new(id.clone(), claim, 1) };
        store.shared().commit(commit).await.expect("committed");
    }
    threads.cancel(id, "enough").await.expect("cancelled");
    let row = store.shared().thread(id).await.expect("read").expect("a thread");
    assert_eq!(row.status, ThreadStatus::Cancelled);
    assert_eq!(row.result.map(|result| result["patch"].clone()), Some(patch));
}

#[tokio::test]
async fn cancel_file_is_found_among_many_threads() {
    let model = FakeModel::start(|_| FakeReply::hang());
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let _watching = threads.watch();
    let mut all = Vec::new();
    for _ in 0..300 {
        all.push(start(&threads, "team/work").await);
    }
    all.sort_by(|one, other| one.thread_id.as_str().cmp(other.thread_id.as_str()));
    // The first and the last of any order.
    for work in [all.remove(0), all.remove(298)] {
        let id: &ThreadId = &work.thread_id;
        space.world.write(&format!("project/.ai/threads/{id}/.cancel"), "no longer needed");
        let finished = wait_finished(work).await;
        assert_eq!(finished.outcome.error.as_deref(), Some("no longer needed"));
    }
    assert_eq!(threads.running_count(), 298, "no other thread was meant");
    threads.cancel_all("the test is over");
}
