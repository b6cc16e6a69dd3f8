//! Transcript events from outside: what is written, what `--json` streams, and what happens when a provider fails.

use std::fs;

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::support::User;
use crate::support::run;
use crate::thread_run::{FILES, command_with_model, newest_thread, write_directive};

/// The events of the newest thread's transcript with this name.
fn payloads(user: &User, event_type: &str) -> Vec<Value> {
    let id = newest_thread(user);
    let path = user.project().join(format!(".ai/threads/{id}/transcript.jsonl"));
    let lines = fs::read_to_string(path).expect("a transcript");
    let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let named = events.filter(|event| event["event_type"] == event_type);
    named.map(|event| event["payload"].clone()).collect()
}

#[test]
fn removed_secrets_are_recorded_with_their_names() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Read the note.");
    fs::write(user.project().join("note.txt"), "the password is correct horse battery").expect("written");
    let model = FakeModel::start(|request| match request.number {
        1 => FakeReply::calls([("rye_file_system_read", json!({"path": "note.txt"}))]),
        _ => FakeReply::text("I have read it."),
    });
    let mut command = command_with_model(&user, &model);
    command.env("DB_PASSWORD", "correct horse battery");
    let run = run(command.args(["run", "team/ask"]));
    assert_eq!(run.exit, 0, "{run}");
    assert_eq!(payloads(&user, "content_redacted"), [json!({"count": 1, "names": ["DB_PASSWORD"]})]);
    assert!(payloads(&user, "tool_call_result")[0]["output"].to_string().contains("[redacted:DB_PASSWORD]"));
    assert_eq!(user.data(["thread", "verify", &newest_thread(&user)])["valid"], 1);
}
