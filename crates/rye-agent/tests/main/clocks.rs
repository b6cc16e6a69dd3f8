//! A clock that is set while threads are at work: durations follow the monotonic one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rye_agent::driver::{CancelSignal, MillisClock};
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::{SuspendReason, ThreadStatus};
use rye_agent::store::{ClaimOutcome, ClaimPolicy, current_owner};
use rye_agent::threads::{ResumeOptions, Threads};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Map, json};
use tokio::runtime::Runtime;

use crate::test_space::TestSpace;

const START_MS: u64 = 1_767_323_045_000;
const HOUR_MS: u64 = 60 * 60 * 1000;
const READ_PERMISSIONS: &str = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>";

/// Both clocks, as the test sets them.
struct SetClock {
    wall_ms: AtomicU64,
    monotonic_ms: AtomicU64,
}

impl SetClock {
    fn at(wall_ms: u64) -> Arc<Self> {
        Arc::new(Self { wall_ms: AtomicU64::new(wall_ms), monotonic_ms: AtomicU64::new(0) })
    }

    /// Sets the wall clock while `passed_ms` pass.
    fn set(&self, wall_ms: u64, passed_ms: u64) {
        self.wall_ms.store(wall_ms, Ordering::SeqCst);
        self.monotonic_ms.fetch_add(passed_ms, Ordering::SeqCst);
    }
}

impl MillisClock for SetClock {
    fn now_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn monotonic_ms(&self) -> u64 {
        self.monotonic_ms.load(Ordering::SeqCst)
    }
}

fn threads_at(space: &TestSpace, clock: &Arc<SetClock>) -> Threads {
    let clock = Arc::clone(clock);
    space.threads_with(move |setup| setup.clock = clock)
}

fn request() -> ThreadRequest {
    ThreadRequest::new(
        ItemRef::new(ItemType::Directive, ItemId::new("team/work").expect("an id")),
        Map::new(),
    )
}

/// A model that sets the clock while it is asked for the first time, calls a tool, and is done.
fn clock_setting_model(clock: &Arc<SetClock>, wall_ms: u64, passed_ms: u64) -> FakeModel {
    let clock = Arc::clone(clock);
    FakeModel::start(move |seen| match seen.tool_results {
        0 => {
            clock.set(wall_ms, passed_ms);
            let input = json!({"item_type": "tool", "item_id": "rye/file-system/read", "parameters": {"path": "a.txt"}});
            FakeReply::calls([("rye_execute", input)])
        }
        _ => FakeReply::text("done"),
    })
}

#[tokio::test]
async fn clock_set_ahead_does_not_expire_threads() {
    let clock = SetClock::at(START_MS);
    let model = clock_setting_model(&clock, START_MS + 48 * HOUR_MS, 5000);
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", READ_PERMISSIONS, "", "Work.");
    let threads = threads_at(&space, &clock);
    let finished = space.run(&threads, "team/work", Map::new()).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let row = threads.store().thread(&finished.thread_id).expect("a store").expect("a thread");
    assert_eq!(row.cost.elapsed_ms, 5000);
}

#[tokio::test]
async fn clock_set_back_still_expires_threads() {
    let clock = SetClock::at(START_MS);
    let model = clock_setting_model(&clock, START_MS - HOUR_MS, 601_000);
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", READ_PERMISSIONS, "", "Work.");
    let threads = threads_at(&space, &clock);
    let outcome = &space.run(&threads, "team/work", Map::new()).await.outcome;
    assert_eq!((outcome.status, outcome.reason), (ThreadStatus::Suspended, Some(SuspendReason::Limit)));
    assert_eq!(outcome.detail["limit_code"], "duration_seconds_exceeded", "{outcome:?}");
}

#[test]
fn days_between_processes_count_a_minute() {
    for wall_ms in [START_MS + 48 * HOUR_MS, START_MS - HOUR_MS] {
        let gate = Gate::closed();
        let hold = gate.clone();
        let model = FakeModel::start(move |_| FakeReply::text("done").with_gate(&hold));
        let space = TestSpace::with_model(&model, "openai");
        space.directive("team/work", "", "", "Work.");
        let runtime = Runtime::new().expect("a runtime");
        let threads = threads_at(&space, &SetClock::at(START_MS));
        let started = runtime.block_on(threads.start(request(), CancelSignal::default())).expect("started");
        let id = started.thread_id.clone();
        model.wait_for_requests(1);
        drop((started, threads));
        runtime.shutdown_background();
        gate.open();
        let clock = SetClock::at(wall_ms);
        let threads = threads_at(&space, &clock);
        let ClaimOutcome::Claimed { claim, .. } =
            threads.store().claim(&id, &current_owner(), ClaimPolicy::Forced, 1).expect("a claim")
        else {
            panic!("the claim is forced")
        };
        threads.store().release_claim(&id, claim).expect("released");
        let runtime = Runtime::new().expect("a runtime");
        let finished = runtime.block_on(async {
            let options = ResumeOptions::default();
            let resumed = threads.resume(&id, &options, CancelSignal::default()).await.expect("resumed");
            resumed.finished().await.expect("finished")
        });
        assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
        assert_eq!(finished.cost.elapsed_ms, if wall_ms > START_MS { 60_000 } else { 0 });
    }
}
