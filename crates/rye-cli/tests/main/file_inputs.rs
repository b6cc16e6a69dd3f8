//! Inputs that are files: read once, kept by digest, shown in each protocol's own form, and only if the caller may read them.

use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, run, text};
use crate::thread_run::{command_with_model, newest_thread, spawn_with_model, threads, write_directive};

const INPUT: &str = "<inputs><input name=\"doc\" type=\"file\" required=\"true\">A file</input></inputs>";
const SPAWNER: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><directive>team.*</directive></execute></permissions>";
const READER: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool><directive>team.*</directive></execute></permissions>";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const THREAD_DIRECTIVE: &str = "rye/agent/threads/thread_directive";

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nnot a picture";
/// The same in base64.
const PNG_BASE64: &str = "iVBORw0KGgpub3QgYSBwaWN0dXJl";
const PDF: &[u8] = b"%PDF-1.4\n1 0 obj <</Type /Pages /Count 2>> endobj\n2 0 obj <</Type /Page>> endobj\n";

fn talking_model() -> FakeModel {
    FakeModel::start(|_| FakeReply::text("I see it.").with_usage(100, 0, 10))
}

fn project_with_reader() -> User {
    let user = User::initialized();
    write_directive(&user, "see", "", INPUT, "Look at {input:doc}.");
    std::fs::write(user.project().join("a.png"), PNG).expect("a file");
    std::fs::write(user.project().join("a.pdf"), PDF).expect("a file");
    user
}

#[test]
fn files_reach_both_protocols() {
    let user = project_with_reader();
    let model = talking_model();
    let openai = run(command_with_model(&user, &model).args(["run", "team/see", "doc=@a.png"]));
    assert_eq!(openai.exit, 0, "{openai}");
    let content = model.requests()[0].body["messages"][0]["content"].clone();
    let url = format!("data:image/png;base64,{PNG_BASE64}");
    assert_eq!(content[0], json!({"type": "image_url", "image_url": {"url": url}}), "{content}");
    assert_eq!(content[1], json!({"type": "text", "text": "Look at @a.png."}), "{content}");

    let mut anthropic = user.command();
    anthropic.env("ANTHROPIC_API_KEY", "sk-ant-of-a-test-0123456789").env("ANTHROPIC_BASE_URL", model.url());
    let result = run(anthropic.args(["run", "team/see", "doc=a.pdf"]));
    assert_eq!(result.exit, 0, "{result}");
    let block = model.requests()[1].body["messages"][0]["content"][0].clone();
    assert_eq!(
        (&block["type"], &block["source"]["media_type"]),
        (&json!("document"), &json!("application/pdf"))
    );
    let shown = user.data(["thread", "show", &newest_thread(&user)]);
    assert_eq!(shown["status"], "completed", "{shown}");
    let lines = user.context.text(&format!("project/.ai/threads/{}/transcript.jsonl", newest_thread(&user)));
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let asked = events.into_iter().find(|event| event["event_type"] == "cognition_in").expect("an event");
    let file = &asked["payload"]["files"][0];
    assert_eq!((&file["pages"], &file["bytes"]), (&json!(2), &json!(PDF.len())), "{asked}");
    assert_eq!(text(&file["digest"]).len(), 64, "{asked}");
    user.ok(["thread", "verify", "--all"]);
}

/// The bytes that were read are shown after a crash and in a fork, whatever became of the file.
#[test]
fn same_bytes_are_shown_after_kill_and_fork() {
    let user = project_with_reader();
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |request| match request.number {
        1 => FakeReply::text("late").with_gate(&held),
        _ => FakeReply::text("done").with_usage(100, 0, 10),
    });
    let mut running = spawn_with_model(&user, &model, &["run", "team/see", "doc=a.png"]);
    model.wait_for_requests(1);
    running.kill().expect("kill -9");
    running.wait().expect("an end");
    gate.open();
    std::fs::write(user.project().join("a.png"), "another file").expect("a file");
    let id = newest_thread(&user);
    let resumed = run(command_with_model(&user, &model).args(["thread", "resume", &id]));
    assert_eq!(resumed.exit, 0, "{resumed}");
    let forked = run(command_with_model(&user, &model).args(["thread", "fork", &id, "--at", "0"]));
    assert_eq!(forked.exit, 0, "{forked}");
    let first = |index: usize| model.requests()[index].body["messages"][0].clone();
    assert_eq!((first(1), first(2)), (first(0), first(0)));
    assert!(first(0).to_string().contains(PNG_BASE64));
    assert_eq!(run(command_with_model(&user, &model).args(["thread", "replay", &id])).exit, 0);
}

#[test]
fn files_that_cannot_be_shown_are_refused() {
    let user = project_with_reader();
    let model = talking_model();
    let large = vec![b'a'; (8 << 20) + 1];
    for (name, bytes, why) in [
        ("a.elf", &b"\x7fELF\x02\x01"[..], "it is not a PNG"),
        ("a.txt", &b""[..], "it is empty"),
        ("b.txt", &large[..], "it is larger than 8 MiB"),
        ("b.pdf", &b"%PDF-1.7\ncompressed"[..], "how many pages"),
    ] {
        std::fs::write(user.project().join(name), bytes).expect("a file");
        let input = format!("doc={name}");
        let arguments = ["--json", "run", "team/see", &input];
        let error = run(command_with_model(&user, &model).args(arguments)).error(9, "RYE1162");
        assert!(text(&error["error"]).contains(why), "{error}");
    }
    let words = ["--json", "run", "team/see", "doc=a.png", "--provider", "ollama", "--model", "llama3.2"];
    let error = run(command_with_model(&user, &model).args(words)).error(9, "RYE1162");
    assert!(text(&error["error"]).contains("takes no image files"), "{error}");
    let missing = ["--json", "run", "team/see", "doc=missing.png"];
    run(command_with_model(&user, &model).args(missing)).error(3, "RYE0202");
    assert_eq!((model.count(), threads(&user).len()), (0, 0));
}

#[test]
fn secrets_are_removed_from_text_files() {
    let user = project_with_reader();
    let model = talking_model();
    let secret = "sk-of-a-test-0123456789";
    std::fs::write(user.project().join("notes.txt"), format!("the key is {secret}\n")).expect("a file");
    let result = run(command_with_model(&user, &model).args(["run", "team/see", "doc=notes.txt"]));
    assert_eq!(result.exit, 0, "{result}");
    let body = model.requests()[0].body.to_string();
    assert!(body.contains("the key is") && !body.contains(secret), "{body}");
}

#[test]
fn client_reads_files_of_the_project_only() {
    let user = project_with_reader();
    let model = talking_model();
    let outside = user.context.path().join("outside.png");
    std::fs::write(&outside, PNG).expect("a file");
    std::os::unix::fs::symlink(&outside, user.project().join("link.png")).expect("a link");
    std::fs::write(user.project().join(".env"), "A=1\n").expect("a file");
    let environment =
        [("OPENAI_API_KEY", "sk-of-a-test-0123456789"), ("OPENAI_BASE_URL", &*format!("{}/v1", model.url()))];
    let mut client = Client::connect_with(&user, &environment, json!({}));
    let call = |path: &str| {
        let inputs = json!({"doc": path});
        let parameters = json!({"directive_name": "team/see", "inputs": inputs});
        json!({"item_type": "tool", "item_id": THREAD_DIRECTIVE, "parameters": parameters})
    };
    let absolute = outside.to_string_lossy().into_owned();
    for path in ["link.png", "../outside.png", ".env", ".ai/threads/x", &absolute] {
        let (refused, is_error) = client.call_outcome("rye_execute", call(path));
        assert!(is_error && refused.to_string().contains("cannot be"), "{path} {refused}");
    }
    assert_eq!(model.count(), 0);
    let done = client.call("rye_execute", call("a.png"));
    assert_eq!(done["data"]["status"], "completed", "{done}");
    assert!(model.requests()[0].body.to_string().contains(PNG_BASE64));
}

#[test]
fn thread_needs_a_grant_to_give_files() {
    let user = project_with_reader();
    for (permissions, is_given) in [(SPAWNER, false), (READER, true)] {
        write_directive(&user, "parent", permissions, "", "Be the parent.");
        let model = FakeModel::start(|request| {
            let is_child = request.body.to_string().contains("Look at");
            match (is_child, request.tool_result_texts().first()) {
                (true, _) => FakeReply::text("the child saw it"),
                (false, None) => {
                    let call = json!({"directive_name": "team/see", "inputs": {"doc": "a.png"}});
                    FakeReply::calls([(SPAWN, call)])
                }
                (false, Some(result)) => FakeReply::text(result),
            }
            .with_usage(100, 0, 10)
        });
        let result = run(command_with_model(&user, &model).args(["run", "team/parent"]));
        let sent = model.requests().iter().any(|request| request.body.to_string().contains(PNG_BASE64));
        assert_eq!((result.exit, sent), (0, is_given), "{result}");
        assert_eq!(result.stdout.contains("the child saw it"), is_given, "{result}");
    }
}
