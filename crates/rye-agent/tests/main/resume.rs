//! Going on: after a limit, after a crash, by somebody else, over a record that was changed.

use std::path::Path;

use rusqlite::Connection;
use rye_agent::driver::Signal;
use rye_agent::money::Nanos;
use rye_agent::prepare::Order;
use rye_agent::status::{Status, SuspendReason};
use rye_agent::store::{Answer, Approval, Claimed, Owner, Taking};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{Changes, Finished, Threads};
use rye_agent::transcript::Verified;
use rye_engine::Code;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, Gate, Reply};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::space::Space;

const WORK: &str = "<permissions><execute><tool>rye.file-system.write</tool><tool>rye.bash</tool></execute><acknowledge risk=\"elevated\">a shell</acknowledge></permissions>";

fn bash(command: &str) -> Reply {
    let input = json!({"item_type": "tool", "item_id": "rye/bash", "parameters": {"command": command}});
    Reply::calls([("rye_execute", input)]).usage(100, 0, 10)
}

fn more(limits: &Value) -> Changes {
    let limits = limits.as_object().cloned().unwrap_or_default();
    Changes { limits, message: None, by: "somebody".to_owned(), within: None }
}

fn order(id: &str) -> Order {
    Order::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new())
}

/// A thread that stopped at its spend limit after one call, in a project that is closed again.
async fn suspended(model: &FakeModel, protocol: &str) -> (Space, ThreadId) {
    let space = Space::with_model(model, protocol);
    space.directive("team/work", &format!("{WORK}<limits spend=\"0.05\"/>"), "", "Work.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/work", Map::new()).await;
    let outcome = &finished.outcome;
    assert_eq!(
        (outcome.status, outcome.reason),
        (Status::Suspended, Some(SuspendReason::Limit)),
        "{outcome:?}"
    );
    assert_eq!(outcome.detail["limit_code"], "spend_exceeded");
    (space, finished.thread_id.clone())
}

/// A server whose first answer is dear, and calls a tool.
fn dear() -> FakeModel {
    FakeModel::start(|seen| match seen.tool_results {
        0 => bash("echo once >> log.txt").usage(49_000, 0, 10),
        _ => Reply::text("done").usage(100, 0, 10),
    })
}

async fn resumed(threads: &Threads, id: &ThreadId, changes: &Changes) -> std::sync::Arc<Finished> {
    let started = threads.resume(id, changes, Signal::default()).await.expect("resumed");
    started.finished().await.expect("finished")
}

fn is_valid(space: &Space, threads: &Threads, id: &ThreadId) {
    let report = space.verified(threads, id);
    assert_eq!(report.status, Verified::Valid, "{report:?}");
    assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
}

#[tokio::test]
async fn a_thread_at_its_limit_goes_on_in_another_process_when_it_may_use_more() {
    for protocol in ["anthropic", "openai"] {
        let model = dear();
        let (space, id) = suspended(&model, protocol).await;
        assert_eq!(model.count(), 1);
        let threads = space.threads();
        let finished = resumed(&threads, &id, &more(&json!({"spend": "+1"}))).await;
        assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
        assert_eq!((model.count(), space.world.text("project/log.txt").as_str()), (2, "once\n"));
        assert_eq!(finished.cost.spend, Nanos(49_100 * 1000 + 20 * 2000));
        assert_eq!(threads.store().ledger(&id).expect("a row").actual_spend, finished.cost.spend);
        let story = space.story();
        let end: Vec<&str> = story.iter().rev().take(5).rev().map(String::as_str).collect();
        let goes_on = ["human_approval_response", "thread_resumed", "cognition_out", "thread_completed"];
        assert_eq!((end[0], &end[1..]), ("thread_suspended", &goes_on[..]));
        is_valid(&space, &threads, &id);
        let again =
            threads.resume(&id, &more(&json!({})), Signal::default()).await.expect_err("it has ended");
        assert_eq!(again.code, Code::ThreadEnded);
    }
}

#[tokio::test]
async fn without_more_room_it_stops_again_and_asks_nobody() {
    let model = dear();
    let (space, id) = suspended(&model, "openai").await;
    let threads = space.threads();
    let finished = resumed(&threads, &id, &more(&json!({"turns": "+5"}))).await;
    assert_eq!((finished.outcome.status, model.count()), (Status::Suspended, 1));
    is_valid(&space, &threads, &id);
}

#[tokio::test]
async fn rights_are_those_of_the_start_whatever_files_say_by_then() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => bash("echo once >> log.txt").usage(49_000, 0, 10),
        1 => Reply::calls([(
            "rye_execute",
            json!({"item_type": "tool", "item_id": "rye/file-system/read", "parameters": {"path": "log.txt"}}),
        )]),
        _ => Reply::text("done"),
    });
    let (space, id) = suspended(&model, "openai").await;
    let everything = "<permissions>*<acknowledge risk=\"unrestricted\">all</acknowledge></permissions>";
    space.directive("team/work", everything, "", "Work.");
    let threads = space.threads();
    let finished = resumed(&threads, &id, &more(&json!({"spend": "+1"}))).await;
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    assert_eq!(space.payloads("permission_denied")[0]["denied_item_id"], "rye/file-system/read");
}

/// Changes the database as somebody without the user's secret would.
#[expect(clippy::disallowed_methods, reason = "a stranger asks nobody for the door")]
pub fn forge(space: &Space, sql: &str) {
    let path = space.world.project().join(".ai/threads/registry.db");
    Connection::open(path).expect("a database").execute_batch(sql).expect("a change");
}

#[tokio::test]
async fn a_record_that_was_changed_or_cut_is_not_gone_on_from() {
    let last = "(SELECT max(seq) FROM journal)";
    let changes = [
        "UPDATE journal SET body = x'7b7d' WHERE seq = 3".to_owned(),
        format!("DELETE FROM journal WHERE seq = {last}"),
        "DELETE FROM journal WHERE seq = 2".to_owned(),
        "UPDATE threads SET max_spend = 999000000000".to_owned(),
        "UPDATE blobs SET bytes = zeroblob(10)".to_owned(),
    ];
    for change in changes {
        let model = dear();
        let (space, id) = suspended(&model, "openai").await;
        forge(&space, &change);
        let threads = space.threads();
        let refused = threads.resume(&id, &more(&json!({"spend": "+1"})), Signal::default()).await;
        let refused = refused.expect_err(&change);
        assert_eq!(refused.code.kind(), rye_engine::Kind::Integrity, "{change}: {refused:?}");
        assert_eq!(model.count(), 1, "{change}");
        let row = threads.store().thread(&id);
        assert!(row.is_err() || row.is_ok_and(|row| row.is_some_and(|row| row.owner.is_none())), "{change}");
    }
}

#[tokio::test]
async fn somebody_elses_threads_are_not_gone_on_from() {
    let model = dear();
    let (space, id) = suspended(&model, "openai").await;
    // A clone has the project and not its owner's secret.
    let secret = space.world.home().join(".ai/config/keys/signing/thread_secret");
    lillux::file::remove(&secret).expect("a secret");
    let threads = space.threads();
    let refused = threads.resume(&id, &more(&json!({"spend": "+1"})), Signal::default()).await;
    let refused = refused.expect_err("another user's");
    assert_eq!((refused.code.kind(), model.count()), (rye_engine::Kind::Integrity, 1), "{refused:?}");
}

#[tokio::test]
async fn an_approval_that_nobody_with_the_secret_gave_does_not_exist() {
    let model = dear();
    let (space, id) = suspended(&model, "openai").await;
    let threads = space.threads();
    let question = |name: &str| Approval {
        id: name.to_owned(),
        thread: id.clone(),
        kind: "tool".to_owned(),
        what: "deploy".to_owned(),
        why: "asked".to_owned(),
        at_ms: 1,
        detail: Value::Null,
    };
    threads.store().ask(question("real")).await.expect("asked");
    forge(
        &space,
        "INSERT INTO approvals SELECT 'forged', thread, kind, what, why, at_ms, detail, mac, answer, answer_mac FROM approvals WHERE id = 'real';
         UPDATE approvals SET answer = '{\"approved\":true,\"message\":null,\"changes\":null,\"at_ms\":1,\"by\":\"me\"}', answer_mac = zeroblob(32) WHERE id = 'real'",
    );
    let store = space.threads();
    let store = store.store();
    assert_eq!(store.open_approvals(None).expect("a list").forged, ["forged", "real"]);
    let yes = Answer { approved: true, message: None, changes: Value::Null, at_ms: 2, by: "me".to_owned() };
    assert!(store.answer("forged", &yes).is_err(), "what was never asked cannot be answered");
    let answered = store.approval("real").ok().flatten().and_then(|asked| asked.answer);
    assert_eq!(answered, None, "nor is an answer one that nobody gave");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_that_resume_one_thread_one_wins_and_the_other_names_the_holder() {
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |seen| match seen.tool_results {
        0 => bash("echo once >> log.txt").usage(49_000, 0, 10),
        _ => Reply::text("done").held(&held),
    });
    let (space, id) = suspended(&model, "anthropic").await;
    let (one, other) = (space.threads(), space.threads());
    let changes = more(&json!({"spend": "+1"}));
    let (first, second) = tokio::join!(
        one.resume(&id, &changes, Signal::default()),
        other.resume(&id, &changes, Signal::default())
    );
    let (won, lost) = match (first, second) {
        (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
        both => panic!("{both:?}"),
    };
    assert_eq!(lost.code, Code::ThreadHeld);
    assert!(lost.message.contains(&format!("process {}", std::process::id())), "{}", lost.message);
    gate.open();
    assert_eq!(won.finished().await.expect("finished").outcome.status, Status::Completed);
    assert_eq!(model.count(), 2);
    is_valid(&space, &one, &id);
}

/// A process that dies: its runtime goes, its thread stays claimed until somebody notices that the process is gone.
fn crashed(space: &Space, until: impl FnOnce(&Space, &Threads)) -> ThreadId {
    let runtime = Runtime::new().expect("a runtime");
    let threads = space.threads();
    let started = runtime.block_on(threads.start(order("team/work"), Signal::default())).expect("started");
    until(space, &threads);
    runtime.shutdown_background();
    started.thread_id
}

/// The claim of a process that is gone is free; this one lives, so it is taken from it.
fn noticed(threads: &Threads, id: &ThreadId) {
    match threads.store().claim(id, &Owner::current(), Taking::Forced, 1).expect("a claim") {
        Claimed::Done { claim, .. } => threads.store().release_claim(id, claim).expect("released"),
        held @ Claimed::Held { .. } => panic!("{held:?}"),
    }
}

fn go_on(threads: &Threads, id: &ThreadId) -> std::sync::Arc<Finished> {
    noticed(threads, id);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(resumed(threads, id, &more(&json!({}))))
}

#[test]
fn after_a_crash_no_recorded_call_is_repeated_and_the_one_in_flight_is_charged() {
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |seen| match (seen.tool_results, seen.n) {
        (0, _) => bash("echo once >> log.txt"),
        (1, 2) => Reply::text("never heard").held(&held),
        _ => Reply::text("done").usage(100, 0, 10),
    });
    let space = Space::with_model(&model, "anthropic");
    space.directive("team/work", WORK, "", "Work.");
    let id = crashed(&space, |_, _| model.wait_for_requests(2));
    let threads = space.threads();
    let before = threads.store().ledger(&id).expect("a row");
    assert!(before.reserved_spend > Nanos(0), "the call in flight is set aside: {before:?}");
    let finished = go_on(&threads, &id);
    gate.open();
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    assert_eq!(finished.outcome.result.as_deref(), Some("done"));
    assert_eq!(space.world.text("project/log.txt"), "once\n");
    assert_eq!(model.count(), 3, "one was recorded, one was in flight, one came after");
    let row = threads.store().ledger(&id).expect("a row");
    assert_eq!((row.unknown_spend, row.reserved_spend), (before.reserved_spend, Nanos(0)));
    assert_eq!(row.actual_spend, row.unknown_spend.plus(Nanos(2 * (100 * 1000 + 10 * 2000))));
    assert_eq!(finished.cost.spend, row.actual_spend);
    is_valid(&space, &threads, &id);
}

#[test]
fn after_a_crash_a_tool_call_in_flight_is_not_made_again_and_its_outcome_is_unknown() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => bash("echo once >> log.txt"),
        1 => bash("echo begun >> log.txt; for _ in $(seq 600); do [ -e go ] && exit 0; sleep 0.1; done"),
        _ => Reply::text("done").usage(100, 0, 10),
    });
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", WORK, "", "Work.");
    let log = space.world.project().join("log.txt");
    let id = crashed(&space, |_, _| wait_for(&log, "begun"));
    let threads = space.threads();
    let finished = go_on(&threads, &id);
    assert_eq!(finished.outcome.status, Status::Completed, "{:?}", finished.outcome);
    assert_eq!(space.world.text("project/log.txt"), "once\nbegun\n");
    assert_eq!(model.count(), 3, "no call was repeated: none was in flight");
    let told = space.payloads("tool_call_result");
    assert!(told.last().is_some_and(|told| told["error"].to_string().contains("unknown")), "{told:?}");
    assert_eq!(finished.cost.spend, Nanos(3 * (100 * 1000 + 10 * 2000)));
    is_valid(&space, &threads, &id);
    space.world.write("project/go", "");
}

#[test]
fn crash_after_crash_everything_is_charged_and_nothing_is_lost() {
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |seen| match seen.n {
        1 => bash("echo once >> log.txt"),
        2..=4 => Reply::text("never heard").held(&held),
        _ => Reply::text("done").usage(100, 0, 10),
    });
    let space = Space::with_model(&model, "openai");
    space.directive("team/work", WORK, "", "Work.");
    let id = crashed(&space, |_, _| model.wait_for_requests(2));
    for requests in [3, 4] {
        let threads = space.threads();
        noticed(&threads, &id);
        let runtime = Runtime::new().expect("a runtime");
        let started =
            runtime.block_on(threads.resume(&id, &more(&json!({})), Signal::default())).expect("resumed");
        model.wait_for_requests(requests);
        runtime.shutdown_background();
        assert_eq!(started.thread_id, id);
    }
    let threads = space.threads();
    let finished = go_on(&threads, &id);
    gate.open();
    assert_eq!((finished.outcome.status, model.count()), (Status::Completed, 5));
    assert_eq!(space.world.text("project/log.txt"), "once\n");
    let row = threads.store().ledger(&id).expect("a row");
    assert_eq!(row.actual_spend, row.unknown_spend.plus(Nanos(2 * (100 * 1000 + 10 * 2000))));
    assert_eq!(finished.cost.spend, row.actual_spend, "the thread knows what the ledger knows");
    is_valid(&space, &threads, &id);
}

/// Waits until a file holds a text; bounded, and only as long as the other process takes.
fn wait_for(path: &Path, text: &str) {
    let began = std::time::Instant::now();
    loop {
        let read = lillux::file::read_bounded(path, 1 << 20).map(|(bytes, _)| bytes).unwrap_or_default();
        if String::from_utf8_lossy(&read).contains(text) {
            return;
        }
        assert!(began.elapsed() < crate::space::PATIENCE, "what the test waits for did not happen");
        std::thread::yield_now();
    }
}
