//! Forgetting by itself, redaction of what `.env` holds, limits that the registry knows.

use std::sync::Arc;
use std::time::Instant;

use rye_agent::driver::{Clock, Signal};
use rye_agent::status::Status;
use rye_agent::store::Filter;
use rye_agent::threads::{Changes, Setup, Threads};
use serde_json::{Map, json};

use crate::space::{PATIENCE, Space};

const WRITER: &str = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>";
const READ: &str = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/read\"><param name=\"path\" value=\"told.txt\"/></execute></process>";

struct Later;

impl Clock for Later {
    fn now_ms(&self) -> u64 {
        1_767_323_045_000 + 40 * 24 * 60 * 60 * 1000
    }
}

fn opened_later(space: &Space) -> Threads {
    let engine = space.engine();
    Threads::open(Setup {
        engine: Arc::new(move || Ok(Arc::clone(&engine))),
        environment: space.environment.clone(),
        listener: None,
        clock: Arc::new(Later),
        folder: space.world.project().join(".ai/threads"),
        background: None,
    })
    .expect("threads")
}

#[tokio::test]
async fn automatic_forgets_once_a_day_when_threads_are_started() {
    let space = Space::new();
    space.directive("team/note", WRITER, "", "Do nothing.");
    let old = space.run(&space.threads(), "team/note", Map::new()).await.thread_id.clone();
    let is_there = |threads: &Threads| threads.store().thread(&old).expect("read").is_some();
    space.config("budget_ledger_schema", "cleanup: {automatic: false}\n");
    let threads = opened_later(&space);
    space.run(&threads, "team/note", Map::new()).await;
    // Nobody has begun to: it would be noted by now.
    assert!(threads.store().is_prune_due(Later.now_ms()).expect("looked") && is_there(&threads));
    drop(threads);
    space.config("budget_ledger_schema", "cleanup: {automatic: true}\n");
    let threads = opened_later(&space);
    space.run(&threads, "team/note", Map::new()).await;
    let began = Instant::now();
    while is_there(&threads) {
        assert!(began.elapsed() < PATIENCE, "it is not forgotten");
        tokio::task::yield_now().await;
    }
    assert_eq!(threads.store().threads(&Filter::default()).expect("read").len(), 2);
}

#[tokio::test]
async fn values_of_the_projects_dotenv_are_not_written_and_a_changed_one_is_noticed() {
    let space = Space::new();
    space.world.write("project/.env", "DEPLOY_TOKEN=first-of-two-words\nPLAIN=not-a-secret-at-all\n");
    space.world.write("project/told.txt", "first-of-two-words second-of-two-words not-a-secret-at-all");
    space.directive("team/read", WRITER, READ, "Read.");
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
async fn secrets_in_results_are_out_whatever_stands_before_and_in_them() {
    let space = Space::new();
    space.world.write("project/.env", "ODD_SECRET='quote\"back\\slash'\n");
    let told = [
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
    space.world.write("project/told.txt", told.join("\n"));
    space.directive("team/read", WRITER, READ, "Read.");
    let threads = space.threads();
    let run = space.run(&threads, "team/read", Map::new()).await;
    let text = space.world.text(&format!("project/.ai/threads/{}/transcript.jsonl", run.thread_id));
    for secret in ["ghp_abc", "sk-ant-abc", "abcdefghijklmnopqrstuvwxyz0123456789", "back", "MC4CAQAw"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert!(text.contains("the end") && text.contains("[redacted:ODD_SECRET]"), "{text}");
}

#[tokio::test]
async fn limits_that_a_person_raised_are_in_the_registry() {
    let space = Space::new();
    space.world.write("project/told.txt", "words");
    space.directive("team/read", &format!("{WRITER}<limits turns=\"1\"/>"), READ, "Read.");
    let threads = space.threads();
    let stopped = space.run(&threads, "team/read", Map::new()).await;
    assert_eq!(stopped.outcome.status, Status::Suspended);
    let limits = json!({"turns": "+4"}).as_object().cloned().unwrap_or_default();
    let changes = Changes { limits, by: "test".to_owned(), ..Changes::default() };
    let resumed = threads.resume(&stopped.thread_id, &changes, Signal::default()).await.expect("resumed");
    assert_eq!(resumed.finished().await.expect("finished").outcome.status, Status::Completed);
    let row = threads.store().thread(&stopped.thread_id).expect("read").expect("a thread");
    assert_eq!(row.limits.turns, Some(5));
}
