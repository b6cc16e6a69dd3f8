//! The offline provider: a directive's own action tags, through permissions, hooks and budget like any model's calls.

use rye_agent::status::ThreadStatus;
use serde_json::Map;

use crate::test_space::TestSpace;

#[tokio::test]
async fn offline_provider_runs_directive_actions() {
    let space = TestSpace::new();
    space.directive(
        "team/note",
        "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>",
        "<process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"note.txt\"/><param name=\"content\" value=\"hello\"/></execute></process>",
        "Write a note.",
    );
    let threads = space.threads();
    let finished = space.run(&threads, "team/note", Map::new()).await;
    assert_eq!(
        finished.outcome.status,
        ThreadStatus::Completed,
        "{:?} {:?}",
        finished.outcome,
        space.events.0
    );
    assert_eq!(space.world.text("project/note.txt"), "hello");
    assert_eq!(space.critical_event_types()[..3], ["thread_started", "cognition_in", "cognition_out"]);
    assert_eq!(space.critical_event_types().last().map(String::as_str), Some("checkpoint"));
}
