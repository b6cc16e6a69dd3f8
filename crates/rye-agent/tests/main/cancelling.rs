//! The end reaches everything: streams, tools, sleeps, children, other processes. Nothing here waits for time to pass.

use std::sync::Arc;

use rye_agent::driver::Signal;
use rye_agent::prepare::Order;
use rye_agent::status::Status;
use rye_agent::store::{Answer, Filter};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Changes, Finished, Started, Threads};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, Reply};
use serde_json::{Map, Value, json};

use crate::space::{PATIENCE, Space};

const MAY: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";

async fn started(threads: &Threads, id: &str) -> Started {
    let order = Order::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new());
    threads.start(order, Signal::default()).await.expect("started")
}

async fn finished(started: Started) -> Arc<Finished> {
    tokio::time::timeout(PATIENCE, started.finished()).await.expect("in time").expect("an end")
}

/// Waits until so many threads stand so.
async fn standing(threads: &Threads, status: Status, count: usize) {
    let mut changes = threads.store().subscribe();
    let filter = Filter { statuses: vec![status], ..Filter::default() };
    let standing = async {
        while threads.store().threads(&filter).expect("threads").len() < count {
            // Whoever lags behind looks again.
            let _ = changes.recv().await;
        }
    };
    tokio::time::timeout(PATIENCE, standing).await.unwrap_or_else(|_| panic!("not {count} are {status}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_never_ends_is_dropped() {
    for protocol in ["anthropic", "openai"] {
        let model = FakeModel::start(|_| Reply::hang());
        let space = Space::with_model(&model, protocol);
        space.directive("team/work", "", "", "Work.");
        let threads = space.threads();
        let work = started(&threads, "team/work").await;
        model.wait_for_requests(1);
        threads.end(&work.thread_id, "enough").await.expect("asked");
        let finished = finished(work).await;
        assert_eq!(finished.outcome.status, Status::Cancelled, "{:?}", finished.outcome);
        assert_eq!(finished.outcome.error.as_deref(), Some("enough"));
        model.wait_for_abandoned(1);
    }
}

#[tokio::test]
async fn a_thread_that_sleeps_until_it_may_ask_again_wakes_to_end() {
    let model =
        FakeModel::start(|_| Reply::status(429, &json!({"error": "later"}), &[("retry-after", "600")]));
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "<limits duration_seconds=\"3600\"/>", "", "Work.");
    let threads = space.threads();
    let work = started(&threads, "team/work").await;
    space.heard_of("retry_scheduled").await;
    let delay = space.payloads("retry_scheduled")[0]["delay_ms"].as_u64().expect("a delay");
    assert!(delay >= 600_000, "it was going to sleep for ten minutes: {delay}");
    threads.end(&work.thread_id, "enough").await.expect("asked");
    assert_eq!(finished(work).await.outcome.status, Status::Cancelled);
    assert_eq!(model.count(), 1);
}

/// A tree of a root, so many branches and as many leaves on each, all waiting for the model.
fn wide(branches: usize) -> FakeModel {
    FakeModel::start(move |seen| {
        let body = seen.body.to_string();
        let below = if body.contains("I am the root.") {
            "team/branch"
        } else if body.contains("I am a branch.") {
            "team/leaf"
        } else {
            return Reply::hang();
        };
        if seen.tool_results > 0 {
            return Reply::hang();
        }
        Reply::calls(vec![(SPAWN, json!({"directive_name": below, "async_exec": true})); branches])
    })
}

fn wide_space(model: &FakeModel) -> Space {
    let space = Space::with_model(model, "openai");
    for (name, prompt) in [("root", "I am the root."), ("branch", "I am a branch."), ("leaf", "I am a leaf.")]
    {
        let limits = "<limits spawns=\"100\" spend=\"100\" />";
        space.directive(&format!("team/{name}"), &format!("{MAY}{limits}"), "", prompt);
    }
    space.config("resilience", "concurrency:\n  max_concurrent_children: 100\n  max_total_threads: 1000\n");
    space
}

/// `1 + BRANCHES + BRANCHES²` threads.
const BRANCHES: usize = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_root_ends_its_whole_tree() {
    let model = wide(BRANCHES);
    let space = wide_space(&model);
    let threads = space.threads();
    let root = started(&threads, "team/root").await;
    let all = 1 + BRANCHES + BRANCHES * BRANCHES;
    // Each asks once, and those that have children once more.
    model.wait_for_requests(all + 1 + BRANCHES);
    threads.end(&root.thread_id, "enough").await.expect("asked");
    assert_eq!(finished(root).await.outcome.status, Status::Cancelled);
    standing(&threads, Status::Cancelled, all).await;
    model.wait_for_abandoned(all);
    assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
}

#[tokio::test]
async fn a_child_that_another_process_took_over_ends_with_its_parent() {
    let model = FakeModel::start(|seen| {
        if seen.body.to_string().contains("I am the asker.") && seen.tool_results == 0 {
            return Reply::calls([("rye_agent_threads_human_approval", json!({"prompt": "May I?"}))]);
        }
        match seen.tool_results {
            0 => Reply::calls([(SPAWN, json!({"directive_name": "team/asker", "async_exec": true}))]),
            _ => Reply::hang(),
        }
    });
    let space = Space::with_model(&model, "openai");
    space.directive("team/parent", MAY, "", "I am the parent.");
    space.directive("team/asker", MAY, "", "I am the asker.");
    // The first does not watch for answers: the second is quicker.
    let (first, second) = (space.threads(), space.threads());
    let _watching = second.watch();
    let parent = started(&first, "team/parent").await;
    space.heard_of("human_approval_requested").await;
    let asked = first.store().open_approvals(None).expect("questions").questions.remove(0);
    let yes = Answer { approved: true, message: None, changes: Value::Null, at_ms: 1, by: "Ada".to_owned() };
    second.store().answer(&asked.id, &yes).expect("answered");
    let child = second.resume(&asked.thread, &Changes::default(), Signal::default()).await.expect("resumed");
    first.end(&parent.thread_id, "enough").await.expect("asked");
    assert_eq!(finished(parent).await.outcome.status, Status::Cancelled);
    let child = finished(child).await;
    assert_eq!(child.outcome.status, Status::Cancelled, "{:?}", child.outcome);
    assert_eq!(child.outcome.error.as_deref(), Some("its parent was cancelled"));
    let wishes = space.world.project().join(".ai/threads/.wishes");
    assert_eq!(std::fs::read_dir(wishes).expect("a folder").count(), 0, "no wish is left to lie");
}

#[tokio::test]
async fn a_child_that_waits_for_a_person_ends_with_its_parent() {
    let model = FakeModel::start(|seen| match seen.body.to_string().contains("I am the asker.") {
        true => Reply::calls([("rye_agent_threads_human_approval", json!({"prompt": "May I?"}))]),
        false => Reply::calls([(SPAWN, json!({"directive_name": "team/asker"}))]),
    });
    let space = Space::with_model(&model, "openai");
    space.directive("team/parent", MAY, "", "I am the parent.");
    space.directive("team/asker", MAY, "", "I am the asker.");
    let threads = space.threads();
    let parent = started(&threads, "team/parent").await;
    space.heard_of("human_approval_requested").await;
    threads.end(&parent.thread_id, "enough").await.expect("asked");
    assert_eq!(finished(parent).await.outcome.status, Status::Cancelled);
    standing(&threads, Status::Cancelled, 2).await;
    assert_eq!(threads.store().open_approvals(None).expect("questions").questions, []);
}

#[tokio::test]
async fn a_cancel_file_is_found_among_more_threads_than_are_looked_at_at_once() {
    let model = FakeModel::start(|_| Reply::hang());
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let threads = space.threads();
    let _watching = threads.watch();
    let mut all = Vec::new();
    for _ in 0..300 {
        all.push(started(&threads, "team/work").await);
    }
    all.sort_by(|one, other| one.thread_id.as_str().cmp(other.thread_id.as_str()));
    // The first and the last of any order.
    for work in [all.remove(0), all.remove(298)] {
        let id: &ThreadId = &work.thread_id;
        space.world.write(&format!("project/.ai/threads/{id}/.cancel"), "no longer needed");
        let finished = finished(work).await;
        assert_eq!(finished.outcome.error.as_deref(), Some("no longer needed"));
    }
    assert_eq!(threads.live_count(), 298, "nobody else was meant");
    threads.cancel_all("the test is over");
}
