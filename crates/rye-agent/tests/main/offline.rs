//! The offline provider: a directive's own action tags, through permissions, hooks and budget like any model's calls.

use rye_agent::status::Status;
use serde_json::Map;

use crate::space::Space;

#[tokio::test]
async fn a_directive_runs_its_own_actions_without_a_model() {
    let space = Space::new();
    space.directive(
        "team/note",
        "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>",
        "<process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"note.txt\"/><param name=\"content\" value=\"hello\"/></execute></process>",
        "Write a note.",
    );
    let threads = space.threads();
    let finished = space.run(&threads, "team/note", Map::new()).await;
    assert_eq!(finished.outcome.status, Status::Completed, "{:?} {:?}", finished.outcome, space.heard.0);
    assert_eq!(space.world.text("project/note.txt"), "hello");
    assert_eq!(space.told()[..3], ["thread_started", "cognition_in", "cognition_out"]);
    assert_eq!(space.told().last().map(String::as_str), Some("checkpoint"));
}
