//! Keys whose effect is only seen from outside: what is written when, and what is read.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Map, Value, json};

use crate::test_space::TestSpace;

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool></execute></permissions>";

#[tokio::test]
async fn throttle_limits_delta_writes() {
    let pieces = |throttle: &'static str| async move {
        let model = FakeModel::start(|_| FakeReply::text("one two three four five six seven eight"));
        let space = TestSpace::with_model(&model, "openai");
        space.directive("team/work", "", "", "Speak.");
        space.config(
            "events",
            &format!(
                "event_types:\n  cognition_out_delta:\n    category: cognition\n    criticality: droppable\n    emit_config:\n      throttle_seconds: {throttle}\n"
            ),
        );
        let finished = space.run(&space.threads(), "team/work", Map::new()).await;
        let path = format!("project/.ai/threads/{}/transcript.jsonl", finished.thread_id);
        let text = space.world.text(&path);
        let events = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let written: Vec<String> = events
            .filter(|event| event["event_type"] == "cognition_out_delta")
            .filter_map(|event| event["payload"]["text"].as_str().map(str::to_owned))
            .collect();
        assert_eq!(written.concat(), "one two three four five six seven eight");
        written.len()
    };
    let (often, seldom) = (pieces("0").await, pieces("3600").await);
    assert!(often > seldom && seldom <= 2, "{often} {seldom}");
}

#[tokio::test]
async fn transcript_integrity_controls_tampered_reads() {
    for (word, is_read) in [("strict", false), ("lenient", true)] {
        let folder: Arc<OnceLock<PathBuf>> = Arc::default();
        let threads_dir = Arc::clone(&folder);
        let model = FakeModel::start(move |seen| {
            if !seen.body.to_string().contains("I am the worker.") {
                return FakeReply::text("the truth");
            }
            let result: Vec<Value> = seen
                .tool_result_texts()
                .iter()
                .filter_map(|result| serde_json::from_str(result).ok())
                .collect();
            let id = || result[0]["thread_id"].as_str().unwrap_or_default().to_owned();
            match result.len() {
                0 => FakeReply::calls([(
                    "rye_agent_threads_thread_directive",
                    json!({"directive_name": "team/child"}),
                )]),
                1 => {
                    let path = threads_dir.get().expect("a folder").join(id()).join("transcript.jsonl");
                    let (bytes, _) = lillux::file::read_bounded(&path, 1 << 20).expect("a transcript");
                    let text = String::from_utf8(bytes).expect("a text");
                    lillux::file::replace_unsynced(&path, text.replace("the truth", "a lie").as_bytes())
                        .expect("a change");
                    let read = json!({"operation": "read_transcript", "thread_id": id()});
                    FakeReply::calls([("rye_agent_threads_orchestrator", read)])
                }
                _ => FakeReply::text(&result[1].to_string()),
            }
        });
        let space = TestSpace::with_model(&model, "openai");
        space.directive("team/work", PERMISSIONS, "", "I am the worker.");
        space.directive("team/child", "", "", "I am the child.");
        space.config("coordination", &format!("coordination:\n  transcript_integrity: {word}\n"));
        folder.set(space.world.project().join(".ai/threads")).expect("once");
        let finished = space.run(&space.threads(), "team/work", Map::new()).await;
        let result: Value =
            serde_json::from_str(finished.outcome.result.as_deref().unwrap_or_default()).expect("JSON");
        let message = if is_read { &result["warning"] } else { &result["error"] };
        assert!(message.to_string().contains("was changed"), "{result}");
        assert_eq!(result["content"].to_string().contains("a lie"), is_read, "{result}");
    }
}
