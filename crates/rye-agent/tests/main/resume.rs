//! Continuing: after a limit, after a crash, by another user, over a record that was changed.

use std::path::Path;

use rusqlite::Connection;
use rye_agent::driver::CancelSignal;
use rye_agent::money::Nanos;
use rye_agent::prepare::ThreadRequest;
use rye_agent::status::{SuspendReason, ThreadStatus};
use rye_agent::store::{
    Approval, ApprovalDecision, ChargeScope, ClaimOutcome, ClaimPolicy, ThreadFilter, current_owner,
};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::{FinishedThread, ResumeOptions, Threads};
use rye_agent::transcript::{self, Criticality, NewEvent, TranscriptLines, TranscriptStatus, TranscriptTail};
use rye_engine::Code;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;

use crate::test_space::TestSpace;

const WORK_PERMISSIONS: &str = "<permissions><execute><tool>rye.file-system.write</tool><tool>rye.bash</tool></execute><acknowledge risk=\"elevated\">a shell</acknowledge></permissions>";

fn bash_call(command: &str) -> FakeReply {
    let input = json!({"item_type": "tool", "item_id": "rye/bash", "parameters": {"command": command}});
    FakeReply::calls([("rye_execute", input)]).with_usage(100, 0, 10)
}

fn resume_options(limits: &Value) -> ResumeOptions {
    let limits = limits.as_object().cloned().unwrap_or_default();
    ResumeOptions { limits, message: None, by: "a user".to_owned(), ..ResumeOptions::default() }
}

fn request(id: &str) -> ThreadRequest {
    ThreadRequest::new(ItemRef::new(ItemType::Directive, ItemId::new(id).expect("an id")), Map::new())
}

/// A thread that stopped at its spend limit after one call, in a project that is closed again.
async fn suspend_at_limit(model: &FakeModel, protocol: &str) -> (TestSpace, ThreadId) {
    let space = TestSpace::with_model(model, protocol);
    space.directive("team/work", &format!("{WORK_PERMISSIONS}<limits spend=\"0.015\"/>"), "", "Work.");
    let threads = space.threads();
    let finished = space.run(&threads, "team/work", Map::new()).await;
    let outcome = &finished.outcome;
    assert_eq!(
        (outcome.status, outcome.reason),
        (ThreadStatus::Suspended, Some(SuspendReason::Limit)),
        "{outcome:?}"
    );
    assert_eq!(outcome.detail["limit_code"], "spend_exceeded");
    (space, finished.thread_id.clone())
}

/// A server whose first answer is dear, and calls a tool.
fn expensive_model() -> FakeModel {
    FakeModel::start(|seen| match seen.tool_results {
        0 => bash_call("echo once >> log.txt").with_usage(14_900, 0, 10),
        _ => FakeReply::text("done").with_usage(100, 0, 10),
    })
}

async fn resume_to_end(
    threads: &Threads,
    id: &ThreadId,
    options: &ResumeOptions,
) -> std::sync::Arc<FinishedThread> {
    let started = threads.resume(id, options, CancelSignal::default()).await.expect("resumed");
    started.finished().await.expect("finished")
}

fn assert_valid(space: &TestSpace, threads: &Threads, id: &ThreadId) {
    let report = space.verify_transcript(threads, id);
    assert_eq!(report.status, TranscriptStatus::Valid, "{report:?}");
    assert_eq!(threads.store().audit().expect("a ledger"), Vec::<String>::new());
}

#[tokio::test]
async fn raised_limit_resumes_in_another_process() {
    for protocol in ["anthropic", "openai"] {
        let model = expensive_model();
        let (space, id) = suspend_at_limit(&model, protocol).await;
        assert_eq!(model.count(), 1);
        let threads = space.threads();
        let finished = resume_to_end(&threads, &id, &resume_options(&json!({"spend": "+1"}))).await;
        assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
        assert_eq!((model.count(), space.world.text("project/log.txt").as_str()), (2, "once\n"));
        assert_eq!(finished.cost.spend, Nanos(15_000 * 1000 + 20 * 2000));
        assert_eq!(threads.store().ledger(&id).expect("a row").actual_spend, finished.cost.spend);
        let story = space.significant_events();
        let end: Vec<&str> = story.iter().rev().take(5).rev().map(String::as_str).collect();
        let resumed = ["human_approval_response", "thread_resumed", "cognition_out", "thread_completed"];
        assert_eq!((end[0], &end[1..]), ("thread_suspended", &resumed[..]));
        assert_valid(&space, &threads, &id);
        let again = threads
            .resume(&id, &resume_options(&json!({})), CancelSignal::default())
            .await
            .expect_err("it has ended");
        assert_eq!(again.code, Code::ThreadEnded);
    }
}

/// Replaces the transcript by `lines` and one more that follows from them, as a process without the key could.
fn write_forged_end(space: &TestSpace, id: &ThreadId, lines: &[&str], criticality: Criticality) -> String {
    let name = format!("project/.ai/threads/{id}/transcript.jsonl");
    let kept: String = lines.iter().map(|line| format!("{line}\n")).collect();
    space.world.write(&name, kept);
    let path = transcript::path(&space.world.project().join(".ai/threads"), id);
    let tail = TranscriptTail::recover(&path, id).expect("a tail");
    let event = NewEvent {
        event_type: "note",
        at_ms: 1,
        payload: json!({"result": "approved by the owner"}),
        criticality,
        sequence: tail.sequence + 1,
    };
    let mut forged = TranscriptLines::new(id.clone(), tail);
    forged.event(&event).expect("an event");
    transcript::append(&path, &forged.drain()).expect("written");
    space.world.text(&name)
}

#[tokio::test]
async fn changed_transcript_stops_the_resume() {
    let model = expensive_model();
    let (space, id) = suspend_at_limit(&model, "openai").await;
    let threads = space.threads();
    let name = format!("project/.ai/threads/{id}/transcript.jsonl");
    let whole = space.world.text(&name);
    let lines: Vec<&str> = whole.lines().collect();
    // Behind the end, in place of the end, and outside the chain.
    for (kept, criticality) in [
        (lines.as_slice(), Criticality::Critical),
        (&lines[..3], Criticality::Critical),
        (lines.as_slice(), Criticality::Droppable),
    ] {
        let forged = write_forged_end(&space, &id, kept, criticality);
        let refused =
            threads.resume(&id, &resume_options(&json!({"spend": "+1"})), CancelSignal::default()).await;
        let refused = refused.expect_err("refused");
        assert_eq!(refused.code, Code::TranscriptTampered, "{} lines: {refused:?}", kept.len());
        assert_eq!(space.world.text(&name), forged, "it is left as it is");
    }
}

#[tokio::test]
async fn resume_passes_what_a_crash_leaves() {
    for kept_lines in [0, 1, 3, usize::MAX] {
        let model = expensive_model();
        let (space, id) = suspend_at_limit(&model, "openai").await;
        let name = format!("project/.ai/threads/{id}/transcript.jsonl");
        let whole = space.world.text(&name);
        let length: usize = whole.split_inclusive('\n').take(kept_lines).map(str::len).sum();
        // The next line was not written to its end, or the last one.
        let torn = if length == whole.len() { length - 20 } else { length + 20 };
        space.world.write(&name, &whole[..torn]);
        let threads = space.threads();
        let finished = resume_to_end(&threads, &id, &resume_options(&json!({"spend": "+1"}))).await;
        assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
        assert_valid(&space, &threads, &id);
    }
}

#[tokio::test]
async fn resume_needs_no_transcript() {
    let model = expensive_model();
    let (space, id) = suspend_at_limit(&model, "openai").await;
    let threads = space.threads();
    lillux::file::remove(&transcript::path(threads.folder(), &id)).expect("removed");
    let finished = resume_to_end(&threads, &id, &resume_options(&json!({"spend": "+1"}))).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    assert_valid(&space, &threads, &id);
}

#[tokio::test]
async fn unusable_limits_leave_the_thread_resumable() {
    let model = expensive_model();
    let (space, id) = suspend_at_limit(&model, "openai").await;
    let threads = space.threads();
    for limits in [json!({"turns": "none"}), json!({"spend": "+much"}), json!({"walks": 3})] {
        let refused = threads.resume(&id, &resume_options(&limits), CancelSignal::default()).await;
        assert_eq!(refused.expect_err("refused").code, Code::InvalidArgument, "{limits}");
    }
    let finished = resume_to_end(&threads, &id, &resume_options(&json!({"spend": "+1"}))).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
}

#[tokio::test]
async fn unattended_resume_answers_no_question() {
    let model = expensive_model();
    let (space, id) = suspend_at_limit(&model, "openai").await;
    let threads = space.threads();
    let options = ResumeOptions { is_unattended: true, ..resume_options(&json!({})) };
    let refused =
        threads.resume(&id, &options, CancelSignal::default()).await.expect_err("a person is asked");
    assert_eq!(refused.code, Code::PermissionDenied);
    assert!(!space.significant_events().contains(&"human_approval_response".to_owned()));
    let finished = resume_to_end(&threads, &id, &resume_options(&json!({"spend": "+1"}))).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
}

#[tokio::test]
async fn resume_without_raise_suspends_again() {
    let model = expensive_model();
    let (space, id) = suspend_at_limit(&model, "openai").await;
    let threads = space.threads();
    let finished = resume_to_end(&threads, &id, &resume_options(&json!({"turns": "+5"}))).await;
    assert_eq!((finished.outcome.status, model.count()), (ThreadStatus::Suspended, 1));
    assert_valid(&space, &threads, &id);
}

#[tokio::test]
async fn resume_keeps_original_capabilities() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => bash_call("echo once >> log.txt").with_usage(14_900, 0, 10),
        1 => FakeReply::calls([(
            "rye_execute",
            json!({"item_type": "tool", "item_id": "rye/file-system/read", "parameters": {"path": "log.txt"}}),
        )]),
        _ => FakeReply::text("done"),
    });
    let (space, id) = suspend_at_limit(&model, "openai").await;
    let everything = "<permissions>*<acknowledge risk=\"unrestricted\">all</acknowledge></permissions>";
    space.directive("team/work", everything, "", "Work.");
    let threads = space.threads();
    let finished = resume_to_end(&threads, &id, &resume_options(&json!({"spend": "+1"}))).await;
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    assert_eq!(space.payloads("permission_denied")[0]["denied_item_id"], "rye/file-system/read");
}

/// Changes the database as a process without the user's secret would.
#[expect(clippy::disallowed_methods, reason = "a stranger does not use our functions")]
pub fn tamper(space: &TestSpace, sql: &str) {
    let path = space.world.project().join(".ai/threads/registry.db");
    Connection::open(path).expect("a database").execute_batch(sql).expect("a change");
}

#[tokio::test]
async fn tampered_record_is_not_resumed() {
    let last = "(SELECT max(seq) FROM journal)";
    let changes = [
        "UPDATE journal SET body = x'7b7d' WHERE seq = 3".to_owned(),
        format!("DELETE FROM journal WHERE seq = {last}"),
        "DELETE FROM journal WHERE seq = 2".to_owned(),
        "UPDATE threads SET max_spend = 999000000000".to_owned(),
        "UPDATE blobs SET bytes = zeroblob(10)".to_owned(),
    ];
    for change in changes {
        let model = expensive_model();
        let (space, id) = suspend_at_limit(&model, "openai").await;
        tamper(&space, &change);
        let threads = space.threads();
        let refused =
            threads.resume(&id, &resume_options(&json!({"spend": "+1"})), CancelSignal::default()).await;
        let refused = refused.expect_err(&change);
        assert_eq!(refused.code.kind(), rye_engine::ErrorKind::Integrity, "{change}: {refused:?}");
        assert_eq!(model.count(), 1, "{change}");
        let row = threads.store().thread(&id);
        assert!(row.is_err() || row.is_ok_and(|row| row.is_some_and(|row| row.owner.is_none())), "{change}");
    }
}

#[tokio::test]
async fn foreign_threads_are_not_resumed() {
    let model = expensive_model();
    let (space, id) = suspend_at_limit(&model, "openai").await;
    // Another user has the project and a secret of their own.
    let secret = space.world.home().join(".ai/config/keys/signing/thread_secret");
    let mut other = lillux::file::read_bounded(&secret, 1 << 12).expect("a secret").0;
    let last = other.iter().rposition(|byte| byte.is_ascii_hexdigit()).expect("a digit");
    other[last] = if other[last] == b'0' { b'1' } else { b'0' };
    lillux::file::write_atomic(&secret, &other, lillux::file::FileMode::Private).expect("another secret");
    let threads = space.threads();
    let refused =
        threads.resume(&id, &resume_options(&json!({"spend": "+1"})), CancelSignal::default()).await;
    let refused = refused.expect_err("another user's");
    assert_eq!((refused.code.kind(), model.count()), (rye_engine::ErrorKind::Integrity, 1), "{refused:?}");
}

#[tokio::test]
async fn forged_approval_is_ignored() {
    let model = expensive_model();
    let (space, id) = suspend_at_limit(&model, "openai").await;
    let threads = space.threads();
    let approval = |name: &str| Approval {
        id: name.to_owned(),
        thread: id.clone(),
        kind: "tool".to_owned(),
        prompt: "deploy".to_owned(),
        reason: "asked".to_owned(),
        at_ms: 1,
        detail: Value::Null,
    };
    threads.store().add_approval(approval("real")).await.expect("asked");
    tamper(
        &space,
        "INSERT INTO approvals SELECT 'forged', thread, kind, what, why, at_ms, detail, mac, answer, answer_mac FROM approvals WHERE id = 'real';
         UPDATE approvals SET answer = '{\"approved\":true,\"message\":null,\"changes\":null,\"at_ms\":1,\"by\":\"me\"}', answer_mac = zeroblob(32) WHERE id = 'real'",
    );
    let store = space.threads();
    let store = store.store();
    assert_eq!(store.open_approvals(None).expect("a list").forged, ["forged", "real"]);
    let decision = ApprovalDecision {
        approved: true,
        message: None,
        changes: Value::Null,
        at_ms: 2,
        by: "me".to_owned(),
        always: None,
    };
    assert!(store.answer_approval("forged", &decision).is_err(), "what was never asked cannot be answered");
    let answered = store.approval("real").ok().flatten().and_then(|record| record.answer);
    assert_eq!(answered, None, "nor is an answer that no one gave");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_resume_names_the_owner() {
    let gate = Gate::closed();
    let gate_clone = gate.clone();
    let model = FakeModel::start(move |seen| match seen.tool_results {
        0 => bash_call("echo once >> log.txt").with_usage(14_900, 0, 10),
        _ => FakeReply::text("done").with_gate(&gate_clone),
    });
    let (space, id) = suspend_at_limit(&model, "anthropic").await;
    let (one, other) = (space.threads(), space.threads());
    let options = resume_options(&json!({"spend": "+1"}));
    let (first, second) = tokio::join!(
        one.resume(&id, &options, CancelSignal::default()),
        other.resume(&id, &options, CancelSignal::default())
    );
    let (won, lost) = match (first, second) {
        (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
        both => panic!("{both:?}"),
    };
    assert_eq!(lost.code, Code::ThreadHeld);
    assert!(lost.message.contains(&format!("process {}", std::process::id())), "{}", lost.message);
    gate.open();
    assert_eq!(won.finished().await.expect("finished").outcome.status, ThreadStatus::Completed);
    assert_eq!(model.count(), 2);
    assert_valid(&space, &one, &id);
}

/// A process that dies: its runtime goes, its thread stays claimed until another process notices that it is gone.
fn start_and_crash(space: &TestSpace, until: impl FnOnce(&TestSpace, &Threads)) -> ThreadId {
    let runtime = Runtime::new().expect("a runtime");
    let threads = space.threads();
    let started =
        runtime.block_on(threads.start(request("team/work"), CancelSignal::default())).expect("started");
    until(space, &threads);
    runtime.shutdown_background();
    started.thread_id
}

/// The claim of a process that is gone is free; this one lives, so it is taken from it.
fn release_claim(threads: &Threads, id: &ThreadId) {
    match threads.store().claim(id, &current_owner(), ClaimPolicy::Forced, 1).expect("a claim") {
        ClaimOutcome::Claimed { claim, .. } => threads.store().release_claim(id, claim).expect("released"),
        held @ ClaimOutcome::Held { .. } => panic!("{held:?}"),
    }
}

fn resume_after_crash(threads: &Threads, id: &ThreadId) -> std::sync::Arc<FinishedThread> {
    release_claim(threads, id);
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(resume_to_end(threads, id, &resume_options(&json!({}))))
}

#[test]
fn crash_charges_only_in_flight_call() {
    let gate = Gate::closed();
    let gate_clone = gate.clone();
    let model = FakeModel::start(move |seen| match (seen.tool_results, seen.number) {
        (0, _) => bash_call("echo once >> log.txt"),
        (1, 2) => FakeReply::text("never heard").with_gate(&gate_clone),
        _ => FakeReply::text("done").with_usage(100, 0, 10),
    });
    let space = TestSpace::with_model(&model, "anthropic");
    space.directive("team/work", WORK_PERMISSIONS, "", "Work.");
    let id = start_and_crash(&space, |_, _| model.wait_for_requests(2));
    let threads = space.threads();
    let before = threads.store().ledger(&id).expect("a row");
    assert!(before.reserved_spend > Nanos(0), "the call in flight is reserved: {before:?}");
    let finished = resume_after_crash(&threads, &id);
    gate.open();
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    assert_eq!(finished.outcome.result.as_deref(), Some("done"));
    assert_eq!(space.world.text("project/log.txt"), "once\n");
    assert_eq!(model.count(), 3, "one was recorded, one was in flight, one came after");
    let row = threads.store().ledger(&id).expect("a row");
    // Its prompt: of an answer, nothing had arrived.
    assert!((1..before.reserved_spend.0).contains(&row.unknown_spend.0), "{row:?}");
    assert_eq!(row.reserved_spend, Nanos(0));
    assert_eq!(row.actual_spend, row.unknown_spend.plus(Nanos(2 * (100 * 1000 + 10 * 2000))));
    assert_eq!(finished.cost.spend, row.actual_spend);
    assert_valid(&space, &threads, &id);
}

#[test]
fn crash_charges_what_had_arrived() {
    let gate = Gate::closed();
    let gate_clone = gate.clone();
    let words = "word ".repeat(1000);
    let model = FakeModel::start(move |seen| match seen.number {
        1 => FakeReply::text(&words).with_gate_after(900, &gate_clone),
        _ => FakeReply::text("done").with_usage(100, 0, 10),
    });
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", WORK_PERMISSIONS, "", "Work.");
    let id = start_and_crash(&space, |_, threads| {
        let started = threads.store().threads(&ThreadFilter::default()).expect("threads");
        wait_for_text(&transcript::path(threads.folder(), &started[0].id), "cognition_out_delta");
    });
    let threads = space.threads();
    let before = threads.store().ledger(&id).expect("a row");
    let finished = resume_after_crash(&threads, &id);
    gate.open();
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    let charges = threads.store().charges(&id, ChargeScope::Thread).expect("charges");
    let output: u64 = charges.iter().map(|charge| charge.output_tokens).sum();
    let row = threads.store().ledger(&id).expect("a row");
    // Ten of the second answer, and what the transcript has of the first.
    assert!((11..3000).contains(&output), "{charges:?}");
    assert!((2000 * (output - 10)..before.reserved_spend.0).contains(&row.unknown_spend.0), "{row:?}");
    let input: u64 = charges.iter().map(|charge| charge.input_tokens).sum();
    assert_eq!((finished.cost.input_tokens, finished.cost.output_tokens), (input, output));
    let resumed = &space.payloads("thread_resumed")[0];
    assert_eq!(resumed["spend"], json!(row.unknown_spend.dollars()));
    assert_eq!(resumed["spend_at_most"], json!(before.reserved_spend.dollars()));
    assert_valid(&space, &threads, &id);
}

#[test]
fn crash_does_not_repeat_tool_call() {
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => bash_call("echo once >> log.txt"),
        1 => bash_call("echo begun >> log.txt; for _ in $(seq 600); do [ -e go ] && exit 0; sleep 0.1; done"),
        _ => FakeReply::text("done").with_usage(100, 0, 10),
    });
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", WORK_PERMISSIONS, "", "Work.");
    let log = space.world.project().join("log.txt");
    let id = start_and_crash(&space, |_, _| wait_for_text(&log, "begun"));
    let threads = space.threads();
    let finished = resume_after_crash(&threads, &id);
    assert_eq!(finished.outcome.status, ThreadStatus::Completed, "{:?}", finished.outcome);
    assert_eq!(space.world.text("project/log.txt"), "once\nbegun\n");
    assert_eq!(model.count(), 3, "no call was repeated: none was in flight");
    let results = space.payloads("tool_call_result");
    assert!(
        results.last().is_some_and(|results| results["error"].to_string().contains("unknown")),
        "{results:?}"
    );
    assert_eq!(finished.cost.spend, Nanos(3 * (100 * 1000 + 10 * 2000)));
    assert_valid(&space, &threads, &id);
    space.world.write("project/go", "");
}

#[test]
fn repeated_crashes_charge_everything() {
    let gate = Gate::closed();
    let gate_clone = gate.clone();
    let model = FakeModel::start(move |seen| match seen.number {
        1 => bash_call("echo once >> log.txt"),
        2..=4 => FakeReply::text("never heard").with_gate(&gate_clone),
        _ => FakeReply::text("done").with_usage(100, 0, 10),
    });
    let space = TestSpace::with_model(&model, "openai");
    space.directive("team/work", WORK_PERMISSIONS, "", "Work.");
    let id = start_and_crash(&space, |_, _| model.wait_for_requests(2));
    for requests in [3, 4] {
        let threads = space.threads();
        release_claim(&threads, &id);
        let runtime = Runtime::new().expect("a runtime");
        let started = runtime
            .block_on(threads.resume(&id, &resume_options(&json!({})), CancelSignal::default()))
            .expect("resumed");
        model.wait_for_requests(requests);
        runtime.shutdown_background();
        assert_eq!(started.thread_id, id);
    }
    let threads = space.threads();
    let finished = resume_after_crash(&threads, &id);
    gate.open();
    assert_eq!((finished.outcome.status, model.count()), (ThreadStatus::Completed, 5));
    assert_eq!(space.world.text("project/log.txt"), "once\n");
    let row = threads.store().ledger(&id).expect("a row");
    assert_eq!(row.actual_spend, row.unknown_spend.plus(Nanos(2 * (100 * 1000 + 10 * 2000))));
    assert_eq!(finished.cost.spend, row.actual_spend, "the thread knows what the ledger knows");
    assert_valid(&space, &threads, &id);
}

/// Waits until a file holds a text; bounded, and only as long as the other process takes.
fn wait_for_text(path: &Path, text: &str) {
    let started_at = std::time::Instant::now();
    loop {
        let read = lillux::file::read_bounded(path, 1 << 20).map(|(bytes, _)| bytes).unwrap_or_default();
        if String::from_utf8_lossy(&read).contains(text) {
            return;
        }
        assert!(
            started_at.elapsed() < crate::test_space::TEST_TIMEOUT,
            "what the test waits for did not happen"
        );
        std::thread::yield_now();
    }
}
