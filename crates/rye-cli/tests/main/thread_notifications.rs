//! Notifications: the user's own commands and webhooks hear of threads, a project's never do, and no thread fails for them.

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, run, text};
use crate::thread_approvals::write_gate;
use crate::thread_run::{command_with_model, newest_thread, write_directive, write_note_directive};
use crate::tool_support::eventually;

/// Writes each notification as a line, and the names of the variables it sees.
const TELL: &str =
    "[sh, -c, 'cat >> \"$HOME/received.jsonl\"; env | cut -d= -f1 | sort > \"$HOME/variables\"']";

fn write_config(user: &User, settings: &str) {
    let content = format!("version: \"1.0.0\"\ncategory: agent\n{settings}");
    user.write_user("config/agent/notifications.yaml", content);
    user.ok(["sign", "config", "agent/notifications", "--space", "user"]);
}

fn received(user: &User) -> Vec<Value> {
    let path = user.home().join("received.jsonl");
    let lines = std::fs::read_to_string(path).unwrap_or_default();
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn command_hears_of_completed_thread() {
    let user = User::initialized();
    write_note_directive(&user);
    write_config(&user, &format!("notifications:\n  - {{id: desk, on: [completed], command: {TELL}}}\n"));
    let mut command = user.command();
    command.env("OPENAI_API_KEY", "sk-of-a-test-0123456789").env("TEAM_SECRET", "hidden-value-1234567");
    let result = run(command.args(["run", "team/note", "--provider", "offline"]));
    assert_eq!(result.exit, 0, "{result}");
    let received = received(&user);
    assert_eq!(received.len(), 1, "{received:?}");
    let id = newest_thread(&user);
    assert_eq!(received[0]["event"], "completed");
    assert_eq!(received[0]["thread_id"], json!(id));
    assert_eq!(received[0]["directive"], "team/note");
    assert_eq!(received[0]["next_command"], json!(format!("rye thread show {id}")));
    assert!(text(&received[0]["id"]).starts_with(&id), "{received:?}");
    let variables = std::fs::read_to_string(user.home().join("variables")).expect("variables");
    assert!(variables.contains("HOME") && !variables.contains("KEY") && !variables.contains("SECRET"));
    let shown = user.data(["thread", "show", &id]);
    assert_eq!(shown["notifications"][0]["target"], "desk", "{shown}");
    let output = user.ok(["thread", "show", &id]);
    assert!(output.stdout.contains("notified"), "{output}");
    assert_eq!(run(user.command().args(["thread", "notify", &id])).exit, 0);
    let again = crate::thread_notifications::received(&user);
    assert_eq!(again[1]["id"], again[0]["id"], "the id tells a repeated notification");
}

#[test]
fn threads_of_mcp_clients_are_reported() {
    let user = User::initialized();
    write_note_directive(&user);
    write_config(&user, &format!("notifications:\n  - {{id: desk, on: [completed], command: {TELL}}}\n"));
    let mut client = Client::connect(&user);
    let fork = json!({"item_type": "directive", "item_id": "team/note", "thread": "fork"});
    let done = client.call("rye_execute", fork);
    assert!(eventually(|| received(&user).len() == 1), "{done}");
    assert_eq!(received(&user)[0]["thread_id"], done["data"]["thread_id"], "{done}");
}

#[test]
fn webhook_hears_of_failure_and_approval() {
    let user = User::initialized();
    write_directive(&user, "work", "", "", "Do it.");
    let hook = FakeModel::start(|_| {
        FakeReply::raw(b"HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n".to_vec())
    });
    write_config(
        &user,
        &format!(
            "notifications:\n  - id: chat\n    webhook: {}/hook/chat/completions\n    headers: {{Authorization: 'Bearer ${{CHAT_TOKEN}}'}}\n    on: [failed, approval]\n",
            hook.url()
        ),
    );
    let model = FakeModel::start(|_| FakeReply::status(400, &json!({"error": {"message": "no"}}), &[]));
    let mut command = command_with_model(&user, &model);
    command.env("CHAT_TOKEN", "token-of-a-chat-12345");
    assert_eq!(run(command.args(["run", "team/work"])).exit, 1);
    hook.wait_for_requests(1);
    let requests = hook.requests();
    assert_eq!(requests[0].path, "/hook/chat/completions");
    assert_eq!(requests[0].header("authorization"), Some("Bearer token-of-a-chat-12345"));
    assert_eq!(requests[0].header("x-rye-notification-id"), requests[0].body["id"].as_str());
    assert_eq!(requests[0].body["event"], "failed");
    let mut command = command_with_model(&user, &model);
    command.env("CHAT_TOKEN", "token-of-a-chat-12345");
    assert_eq!(run(command.args(["run", "team/work", "--limit", "turns=0"])).exit, 6);
    hook.wait_for_requests(2);
    assert_eq!(hook.requests()[1].body["event"], "approval");
    assert_eq!(hook.requests()[1].body["status"], "suspended");
}

#[test]
fn command_hears_of_pending_approval() {
    let user = User::initialized();
    write_gate(&user, "end");
    write_config(&user, &format!("notifications:\n  - {{id: desk, on: [approval], command: {TELL}}}\n"));
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let received = received(&user);
    assert_eq!((received.len(), &received[0]["event"]), (1, &json!("approval")), "{received:?}");
    assert_eq!(received[0]["approvals"][0]["prompt"], "May I write?");
    let id = newest_thread(&user);
    assert_eq!(received[0]["next_command"], json!(format!("rye thread approvals {id}")));
}

#[test]
fn failing_notification_fails_no_thread() {
    let user = User::initialized();
    write_note_directive(&user);
    let redirecting = FakeModel::start(|_| {
        FakeReply::raw(
            b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/elsewhere\r\ncontent-length: 0\r\n\r\n"
                .to_vec(),
        )
    });
    let settings = format!(
        "notifications:\n  - {{id: gone, command: [no-such-program-here]}}\n  - {{id: bad, command: [sh, -c, 'exit 3']}}\n  - {{id: moved, webhook: '{}/x/chat/completions'}}\n",
        redirecting.url()
    );
    write_config(&user, &settings);
    let result = run(user.command().args(["run", "team/note", "--provider", "offline"]));
    assert_eq!(result.exit, 0, "{result}");
    let shown = user.data(["thread", "show", &newest_thread(&user)]);
    let errors: Vec<String> =
        shown["notifications"].as_array().expect("a list").iter().map(|sent| text(&sent["error"])).collect();
    assert!(errors[0].contains("was not found"), "{errors:?}");
    assert!(errors[1].contains("exit code 3"), "{errors:?}");
    assert!(errors[2].contains("redirects are not followed"), "{errors:?}");
    assert_eq!(redirecting.count(), 1);
}

#[test]
fn unsigned_or_project_notifications_are_ignored() {
    let user = User::initialized();
    write_note_directive(&user);
    let settings =
        format!("version: \"1.0.0\"\ncategory: agent\nnotifications:\n  - {{id: desk, command: {TELL}}}\n");
    user.write("config/agent/notifications.yaml", &settings);
    user.ok(["sign", "config", "agent/notifications", "--space", "project"]);
    let result = run(user.command().args(["run", "team/note", "--provider", "offline"]));
    assert_eq!(result.exit, 0, "{result}");
    assert!(result.stderr.contains("only user space may set this"), "{result}");
    user.write_user("config/agent/notifications.yaml", &settings);
    let result = run(user.command().args(["run", "team/note", "--provider", "offline"]));
    assert!(result.stderr.contains("only used in a signed file"), "{result}");
    assert_eq!(received(&user), Vec::<Value>::new());
}

/// A process that is killed after its thread stopped leaves a note of what it owed, and the next one tells it.
#[test]
fn killed_process_leaves_its_notification_owed() {
    let user = User::initialized();
    write_note_directive(&user);
    let result = run(user.command().args(["run", "team/note", "--provider", "offline"]));
    assert_eq!(result.exit, 0, "{result}");
    let id = newest_thread(&user);
    write_config(&user, &format!("notifications:\n  - {{id: desk, command: {TELL}}}\n"));
    // What such a process leaves: its thread has ended, and the file names a process that is gone.
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a host");
    let owner = json!({"pid": 1_999_999_999, "pid_start": 1, "boot_id": "another", "host": host.trim()});
    user.write(&format!("threads/.notifications/{id}.json"), owner.to_string());
    let next = run(user.command().args(["thread", "notify", "ffffffffffff"]));
    assert_ne!(next.exit, 0, "{next}");
    assert_eq!(received(&user), Vec::<Value>::new(), "a command that opens no threads tells nothing");
    let result = run(user.command().args(["run", "team/note", "--provider", "offline"]));
    assert_eq!(result.exit, 0, "{result}");
    assert!(
        eventually(|| received(&user).iter().any(|one| one["thread_id"] == json!(id))),
        "{:?}",
        received(&user)
    );
    let owed = user.project().join(format!(".ai/threads/.notifications/{id}.json"));
    assert!(eventually(|| !owed.exists()));
}
