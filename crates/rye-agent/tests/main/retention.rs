//! Forgetting by itself, redaction of what `.env` holds, limits that the registry knows.

use std::sync::Arc;
use std::time::Instant;

use rye_agent::driver::{CancelSignal, MillisClock};
use rye_agent::status::ThreadStatus;
use rye_agent::store::ThreadFilter;
use rye_agent::threads::{ResumeOptions, Threads, ThreadsSetup};
use serde_json::{Map, json};

use crate::test_space::{TEST_TIMEOUT, TestSpace};

const FILE_PERMISSIONS: &str = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>";
const READ_ACTION: &str = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/read\"><param name=\"path\" value=\"told.txt\"/></execute></process>";

struct FutureClock;

impl MillisClock for FutureClock {
    fn now_ms(&self) -> u64 {
        1_767_323_045_000 + 40 * 24 * 60 * 60 * 1000
    }
}

fn threads_in_future(space: &TestSpace) -> Threads {
    let engine = space.engine();
    Threads::open(ThreadsSetup {
        engine: Arc::new(move || Ok(Arc::clone(&engine))),
        environment: space.environment.clone(),
        listener: None,
        clock: Arc::new(FutureClock),
        folder: space.world.project().join(".ai/threads"),
        background: None,
        worker: None,
    })
    .expect("threads")
}

#[tokio::test]
async fn automatic_cleanup_prunes_on_start() {
    let space = TestSpace::new();
    space.directive("team/note", FILE_PERMISSIONS, "", "Do nothing.");
    let old = space.run(&space.threads(), "team/note", Map::new()).await.thread_id.clone();
    let is_there = |threads: &Threads| threads.store().thread(&old).expect("read").is_some();
    space.config("budget_ledger_schema", "cleanup: {automatic: false}\n");
    let threads = threads_in_future(&space);
    space.run(&threads, "team/note", Map::new()).await;
    // No one has begun to: it would be noted now.
    assert!(threads.store().is_prune_due(FutureClock.now_ms()).expect("looked") && is_there(&threads));
    drop(threads);
    space.config("budget_ledger_schema", "cleanup: {automatic: true}\n");
    let threads = threads_in_future(&space);
    space.run(&threads, "team/note", Map::new()).await;
    let started_at = Instant::now();
    while is_there(&threads) {
        assert!(started_at.elapsed() < TEST_TIMEOUT, "it is not forgotten");
        tokio::task::yield_now().await;
    }
    assert_eq!(threads.store().threads(&ThreadFilter::default()).expect("read").len(), 2);
}

#[tokio::test]
async fn dotenv_values_are_redacted_after_change() {
    let space = TestSpace::new();
    space.world.write("project/.env", "DEPLOY_TOKEN=first-of-two-words\nPLAIN=not-a-secret-at-all\n");
    space.world.write("project/told.txt", "first-of-two-words second-of-two-words not-a-secret-at-all");
    space.directive("team/read", FILE_PERMISSIONS, READ_ACTION, "Read.");
    let threads = space.threads();
    let written = |id: &str| space.world.text(&format!("project/.ai/threads/{id}/transcript.jsonl"));
    let first = space.run(&threads, "team/read", Map::new()).await;
    let text = written(first.thread_id.as_str());
    assert!(text.contains("[redacted:DEPLOY_TOKEN] second-of-two-words not-a-secret-at-all"), "{text}");
    space.world.write("project/.env", "DEPLOY_TOKEN=second-of-two-words\n# longer\n");
    let second = space.run(&threads, "team/read", Map::new()).await;
    let text = written(second.thread_id.as_str());
    // There may be copies of what was in it before.
    assert!(text.contains("[redacted:DEPLOY_TOKEN] [redacted:DEPLOY_TOKEN]"), "{text}");
}

#[tokio::test]
async fn secrets_in_results_are_redacted() {
    let space = TestSpace::new();
    space.world.write("project/.env", "ODD_SECRET='quote\"back\\slash'\n");
    let lines = [
        "tokens:",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "\tsk-ant-abcdefghijklmnopqrstuv",
        "aws_secret_access_key = \"abcdefghijklmnopqrstuvwxyz0123456789/+AB\"",
        "quote\"back\\slash",
        "-----BEGIN PRIVATE KEY-----",
        "MC4CAQAwBQYDK2VwBCIEIHcFQX1vIx0nDq9aXtV2cBa1b2c3d4",
        "-----END PRIVATE KEY-----",
        "the end",
    ];
    space.world.write("project/told.txt", lines.join("\n"));
    space.directive("team/read", FILE_PERMISSIONS, READ_ACTION, "Read.");
    let threads = space.threads();
    let run = space.run(&threads, "team/read", Map::new()).await;
    let text = space.world.text(&format!("project/.ai/threads/{}/transcript.jsonl", run.thread_id));
    for secret in ["ghp_abc", "sk-ant-abc", "abcdefghijklmnopqrstuvwxyz0123456789", "back", "MC4CAQAw"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(text.contains("the end") && text.contains("[redacted:ODD_SECRET]"), "{text}");
}

#[tokio::test]
async fn raised_limits_are_stored() {
    let space = TestSpace::new();
    space.world.write("project/told.txt", "words");
    space.directive("team/read", &format!("{FILE_PERMISSIONS}<limits turns=\"1\"/>"), READ_ACTION, "Read.");
    let threads = space.threads();
    let stopped = space.run(&threads, "team/read", Map::new()).await;
    assert_eq!(stopped.outcome.status, ThreadStatus::Suspended);
    let limits = json!({"turns": "+4"}).as_object().cloned().unwrap_or_default();
    let options = ResumeOptions { limits, by: "test".to_owned(), ..ResumeOptions::default() };
    let resumed =
        threads.resume(&stopped.thread_id, &options, CancelSignal::default()).await.expect("resumed");
    assert_eq!(resumed.finished().await.expect("finished").outcome.status, ThreadStatus::Completed);
    let row = threads.store().thread(&stopped.thread_id).expect("read").expect("a thread");
    assert_eq!(row.limits.turns, Some(5));
}
