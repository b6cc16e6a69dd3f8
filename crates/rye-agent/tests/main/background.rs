//! Threads that go on without the process that started them: left to others, found when those are gone; and trees whose
//! process died.

use std::sync::{Arc, Mutex};

use rusqlite::Connection;
use rye_agent::driver::Signal;
use rye_agent::prepare::Order;
use rye_agent::status::Status;
use rye_agent::store::{Claimed, Owner, Taking, ThreadRow};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Background, Changes, Finished, Reached, Taken, Threads, Waiting};
use rye_agent::transcript;
use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, Gate, Reply, Seen};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use crate::space::{PATIENCE, Space};

const PARENT: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const LEAD: &str = "rye_agent_threads_orchestrator";

fn order(id: &str) -> Order {
    Order::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new())
}

/// Somebody who writes down what is left to them, and runs nothing.
#[derive(Clone, Default)]
struct Shelf {
    /// Names, and whether each was in the store when it came.
    given: Arc<Mutex<Vec<(ThreadId, bool)>>>,
    store: Arc<Mutex<Option<rye_agent::store::Store>>>,
    is_away: bool,
}

impl Background for Shelf {
    fn reach(&self) -> Result<Box<dyn Reached>> {
        if self.is_away {
            return Err(Error::new(Code::NoBackground, "nobody is there"));
        }
        Ok(Box::new(self.clone()))
    }

    fn has_some(&self) -> bool {
        !self.given.lock().expect("given").is_empty()
    }
}

impl Reached for Shelf {
    fn take(self: Box<Self>, threads: &[ThreadId]) -> Result<Taken> {
        let store = self.store.lock().expect("a store").clone().expect("a store");
        let is_there = |id: &ThreadId| {
            let row = store.thread(id).expect("read");
            row.is_some_and(|row| row.status == Status::Created && row.is_detached && row.owner.is_none())
        };
        self.given.lock().expect("given").extend(threads.iter().map(|id| (id.clone(), is_there(id))));
        Ok(Taken { pid: 7, left: Default::default() })
    }
}

fn left_to(space: &Space, shelf: &Shelf) -> Threads {
    let threads = space.threads_with(|setup| setup.background = Some(Arc::new(shelf.clone())));
    *shelf.store.lock().expect("a store") = Some(threads.store().clone());
    threads
}

fn row(threads: &Threads, id: &ThreadId) -> ThreadRow {
    threads.store().thread(id).expect("read").expect("a thread")
}

fn waiting(id: &ThreadId) -> Waiting {
    Waiting {
        ids: vec![id.clone()],
        needed: 1,
        timeout: PATIENCE,
        fail_fast: false,
        cancels_siblings: false,
        result_ttl: PATIENCE,
        waits_for_people: true,
    }
}

/// What waiting for one thread comes to.
async fn waited(threads: &Threads, id: &ThreadId) -> Value {
    let answer = threads.wait(&waiting(id), &CancellationToken::new()).await.expect("an answer");
    answer["results"][id.as_str()].clone()
}

#[tokio::test]
async fn a_thread_that_is_left_to_others_is_there_before_they_are_asked() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let shelf = Shelf::default();
    let threads = left_to(&space, &shelf);
    let left = threads.start_in_background(order("team/work")).await.expect("left");
    assert_eq!(*shelf.given.lock().expect("given"), [(left.thread_id.clone(), true)]);
    assert_eq!((left.with, model.count()), (Ok(7), 0));
    // Whoever comes next finds it and runs it, as if it had started there.
    let others = space.threads();
    assert_eq!(others.abandoned().expect("read"), std::slice::from_ref(&left.thread_id));
    assert_eq!(others.take_up(std::slice::from_ref(&left.thread_id)).await.len(), 0);
    assert_eq!(waited(&others, &left.thread_id).await["status"], "completed");
    assert_eq!((model.count(), space.story()[0].as_str()), (1, "thread_started"));
    assert_eq!(others.abandoned().expect("read"), []);
}

#[tokio::test]
async fn where_nobody_is_there_no_thread_is_left_behind() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let threads = left_to(&space, &Shelf { is_away: true, ..Shelf::default() });
    let error = threads.start_in_background(order("team/work")).await.expect_err("nobody");
    assert_eq!(error.code, Code::NoBackground);
    assert_eq!(threads.store().threads(&Default::default()).expect("read"), []);
}

fn is_child(seen: &Seen<'_>) -> bool {
    seen.body.to_string().contains("I am a child.")
}

fn two(space: &Space) {
    space.directive("team/work", PARENT, "", "I am the parent.");
    space.directive("team/child", "", "", "I am a child.");
}

#[tokio::test]
async fn a_child_that_nobody_waits_for_is_left_to_others_and_runs_here_where_there_are_none() {
    for is_away in [false, true] {
        let model = FakeModel::start(|seen| match seen.tool_results {
            0 if !is_child(seen) => {
                Reply::calls([(SPAWN, json!({"directive_name": "team/child", "async_exec": true}))])
            }
            _ => Reply::text("done"),
        });
        let space = Space::with_model(&model, "openai");
        two(&space);
        let shelf = Shelf { is_away, ..Shelf::default() };
        let threads = left_to(&space, &shelf);
        let finished = space.run(&threads, "team/work", Map::new()).await;
        assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
        let children = threads.store().children(&finished.thread_id).expect("read");
        assert_eq!((children.len(), children[0].is_detached), (1, !is_away));
        assert_eq!(shelf.given.lock().expect("given").len(), usize::from(!is_away));
        if is_away {
            assert_eq!(waited(&threads, &children[0].id).await["status"], "completed");
        }
    }
}

/// A process that dies: its runtime goes, its threads stay claimed until somebody notices that the process is gone.
fn crashed(space: &Space, until: impl FnOnce()) -> ThreadId {
    let runtime = Runtime::new().expect("a runtime");
    let threads = space.threads();
    let started = runtime.block_on(threads.start(order("team/work"), Signal::default())).expect("started");
    until();
    runtime.shutdown_background();
    started.thread_id
}

/// The claims of a process that is gone are free; this one lives, so they are taken from it.
fn noticed(threads: &Threads, id: &ThreadId) {
    for row in threads.store().subtree(id).expect("read") {
        match threads.store().claim(&row.id, &Owner::current(), Taking::Forced, 1).expect("a claim") {
            Claimed::Done { claim, .. } => threads.store().release_claim(&row.id, claim).expect("released"),
            held @ Claimed::Held { .. } => panic!("{held:?}"),
        }
    }
}

fn resumed(threads: &Threads, id: &ThreadId) -> Arc<Finished> {
    noticed(threads, id);
    let changes = Changes { by: "somebody".to_owned(), ..Changes::default() };
    Runtime::new().expect("a runtime").block_on(async {
        let started = threads.resume(id, &changes, Signal::default()).await.expect("resumed");
        started.finished().await.expect("finished")
    })
}

/// What each call came to, as texts.
fn told(space: &Space) -> Vec<Value> {
    let text =
        |told: &Value| told.get("output").or(told.get("error")).and_then(Value::as_str).map(str::to_owned);
    let told = space.payloads("tool_call_result");
    told.iter().filter_map(|told| serde_json::from_str(&text(told)?).ok()).collect()
}

#[test]
fn resuming_a_parent_resumes_the_child_it_waits_for_and_gets_its_answer() {
    for call in [1, 2] {
        let gate = Gate::closed();
        let held = gate.clone();
        let model = FakeModel::start(move |seen| match (is_child(seen), seen.tool_results) {
            (true, _) if seen.n == 2 => Reply::text("never heard").held(&held),
            (true, _) => Reply::text("from the child"),
            (false, 0) => Reply::calls([(SPAWN, json!({"directive_name": "team/child"}))]),
            (false, _) => Reply::text("done"),
        });
        let space = Space::with_model(&model, "openai");
        two(&space);
        let id = crashed(&space, || model.wait_for_requests(2));
        let threads = space.threads();
        if call == 2 {
            // The child was taken up and has ended before its parent is.
            let child = threads.store().children(&id).expect("read").remove(0).id;
            noticed(&threads, &id);
            let runtime = Runtime::new().expect("a runtime");
            assert_eq!(runtime.block_on(threads.take_up(std::slice::from_ref(&child))).len(), 0);
            assert_eq!(runtime.block_on(waited(&threads, &child))["status"], "completed");
        }
        let finished = resumed(&threads, &id);
        gate.open();
        assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
        assert_eq!(threads.store().children(&id).expect("read").len(), 1, "there is one child");
        let told = told(&space);
        assert_eq!((&told[0]["status"], &told[0]["result"]), (&json!("completed"), &json!("from the child")));
        let path = transcript::path(threads.store().folder(), &id);
        let events = transcript::read(&path, transcript::Position::default(), 1000).expect("read").events;
        let started = events.iter().filter(|event| event.event_type == "child_thread_started");
        assert_eq!(started.count(), 1, "it is told of once");
        assert_eq!(model.count(), 4, "one in flight, and three that were recorded");
        assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
    }
}

#[test]
fn a_parent_that_waited_for_its_children_waits_again_and_they_go_on() {
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |seen| match (is_child(seen), seen.tool_results) {
        (true, _) if seen.n < 5 => Reply::text("never heard").held(&held),
        (true, _) => Reply::text("from a child"),
        (false, 0) => {
            let child = json!({"directive_name": "team/child", "async_exec": true});
            Reply::calls([(SPAWN, child.clone()), (SPAWN, child)])
        }
        (false, 2) => {
            let ids: Vec<Value> = seen
                .results()
                .iter()
                .map(|result| serde_json::from_str::<Value>(result).expect("JSON")["thread_id"].clone())
                .collect();
            Reply::calls([(LEAD, json!({"operation": "wait_threads", "thread_ids": ids}))])
        }
        (false, _) => Reply::text("done"),
    });
    let space = Space::with_model(&model, "anthropic");
    two(&space);
    let id = crashed(&space, || {
        // Both children have asked, and the parent twice.
        model.wait_for_requests(4);
        while space.payloads("tool_call_start").len() < 3 {
            std::thread::yield_now();
        }
    });
    let threads = space.threads();
    let finished = resumed(&threads, &id);
    gate.open();
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    let told = told(&space);
    let collected = told.last().expect("results");
    assert_eq!(collected["success"], true, "{collected}");
    assert_eq!(threads.store().children(&id).expect("read").len(), 2);
    assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
}

/// A thread that goes on by itself and that somebody works on, somewhere.
fn elsewhere(space: &Space) -> ThreadId {
    let shelf = Shelf::default();
    let threads = left_to(space, &shelf);
    let runtime = Runtime::new().expect("a runtime");
    let left = runtime.block_on(threads.start_in_background(order("team/work"))).expect("left");
    forge(
        space,
        "UPDATE threads SET pid = 1, pid_start = 1, boot_id = '', host = 'elsewhere',
         heartbeat_ms = heartbeat_ms - 1000",
    );
    left.thread_id
}

#[expect(clippy::disallowed_methods, reason = "a test that is another machine")]
fn forge(space: &Space, sql: &str) {
    let path = space.world.project().join(".ai/threads/registry.db");
    Connection::open(path).expect("a database").execute_batch(sql).expect("a change");
}

#[test]
fn a_thread_whose_process_cannot_be_asked_is_abandoned_once_it_was_silent_for_long() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let id = elsewhere(&space);
    assert_eq!(space.threads().abandoned().expect("read"), [], "an hour has not passed");
    space.config("coordination", "coordination: {orphan_detection: {stale_threshold_minutes: 0}}\n");
    let threads = space.threads();
    assert_eq!(threads.abandoned().expect("read"), std::slice::from_ref(&id));
    let runtime = Runtime::new().expect("a runtime");
    assert_eq!(runtime.block_on(threads.take_up(std::slice::from_ref(&id))).len(), 0);
    assert_eq!(runtime.block_on(waited(&threads, &id))["status"], "completed");
}

#[test]
fn where_nobody_is_to_look_for_them_abandoned_threads_stay_as_they_are() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let id = elsewhere(&space);
    forge(&space, "UPDATE threads SET pid = NULL");
    assert_eq!(space.threads().abandoned().expect("read"), std::slice::from_ref(&id));
    space.config("coordination", "coordination: {orphan_detection: {enabled: false}}\n");
    let shelf = Shelf::default();
    let threads = left_to(&space, &shelf);
    assert_eq!(threads.abandoned().expect("read"), []);
    assert!(!threads.scans_on_startup());
    let runtime = Runtime::new().expect("a runtime");
    assert_eq!(runtime.block_on(waited(&threads, &id))["status"], "interrupted");
    assert_eq!((shelf.given.lock().expect("given").len(), model.count()), (0, 0));
}

#[tokio::test]
async fn without_its_key_a_thread_stays_as_it_is_with_the_reason_and_goes_on_with_it() {
    let model = FakeModel::start(|_| Reply::text("done"));
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let left =
        left_to(&space, &Shelf::default()).start_in_background(order("team/work")).await.expect("left");
    let id = left.thread_id;
    let poor = space.threads_with(|setup| drop(setup.environment.remove("FAKE_MODEL_KEY")));
    let reasons = poor.take_up(std::slice::from_ref(&id)).await;
    assert!(reasons[&id].contains("FAKE_MODEL_KEY"), "{reasons:?}");
    let found = row(&poor, &id);
    assert_eq!((found.status, &found.owner), (Status::Created, &None));
    assert!(found.note.is_some_and(|note| note.contains("FAKE_MODEL_KEY")));
    let threads = space.threads();
    assert_eq!(threads.take_up(std::slice::from_ref(&id)).await.len(), 0);
    assert_eq!(waited(&threads, &id).await["status"], "completed");
    assert_eq!(row(&threads, &id).note, None);
}

#[tokio::test]
async fn a_wish_to_end_outlives_the_process_that_did_not_hear_it() {
    let model = FakeModel::start(|_| Reply::hang());
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let left =
        left_to(&space, &Shelf::default()).start_in_background(order("team/work")).await.expect("left");
    let id = left.thread_id;
    let threads = space.threads();
    threads.end(&id, "no longer needed").await.expect("asked");
    let watching = threads.watch();
    assert_eq!(threads.take_up(std::slice::from_ref(&id)).await.len(), 0);
    let result = waited(&threads, &id).await;
    assert_eq!((&result["status"], &result["error"]), (&json!("cancelled"), &json!("no longer needed")));
    drop(watching);
}

#[test]
fn waiting_for_a_thread_whose_process_is_gone_says_so_instead_of_waiting() {
    let model = FakeModel::start(|_| Reply::hang());
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", "", "", "Work.");
    let id = crashed(&space, || model.wait_for_requests(1));
    let threads = space.threads();
    noticed(&threads, &id);
    let result = Runtime::new().expect("a runtime").block_on(waited(&threads, &id));
    assert_eq!(result["status"], "interrupted", "{result}");
    assert_eq!(result["hint"], format!("rye thread resume {id}"));
}
