//! Threads for callers that are not threads: an MCP client and `rye execute` start, follow, read and cancel them.

use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, text};
use crate::thread_events::forbid_retries;
use crate::thread_run::{FILES, threads, write_directive, write_note_directive};

const ORCHESTRATOR: &str = "rye/agent/threads/orchestrator";
const THREAD_DIRECTIVE: &str = "rye/agent/threads/thread_directive";

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
/// A call that lists the files of the current folder.
const LIST: &str = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/ls\"><param name=\"path\" value=\".\"/></execute></process>";
/// A call that waits for a person.
const GATE: &str = "<process><execute item_type=\"tool\" item_id=\"rye/agent/threads/human_approval\"><param name=\"prompt\" value=\"May I?\"/></execute></process>";

fn tool(id: &str, parameters: Value) -> Value {
    json!({"item_type": "tool", "item_id": id, "parameters": parameters})
}

#[test]
fn async_answer_names_the_call_that_follows() {
    let user = User::initialized();
    write_note_directive(&user);
    let mut client = Client::connect(&user);
    let fork = json!({"item_type": "directive", "item_id": "team/note", "thread": "fork", "async": true});
    let started = client.call("rye_execute", fork);
    let (follow, uri) = (&started["data"]["follow"], &started["data"]["resource"]);
    let id = text(&started["data"]["thread_id"]);
    assert_eq!(*uri, json!(format!("rye://threads/{id}")), "{started}");
    let waited = client.call(&text(&follow["tool"]), follow["arguments"].clone());
    assert_eq!(waited["data"]["results"][&id]["status"], "completed", "{waited}");
    let read = client.request("resources/read", json!({"uri": uri}));
    let content: Value = serde_json::from_str(&text(&read["contents"][0]["text"])).expect("JSON");
    assert_eq!((&content["status"], &content["thread_id"]), (&json!("completed"), &json!(id)));
    let unknown = client.request_error("resources/read", json!({"uri": "rye://threads/thread-000000000000"}));
    assert!(text(&unknown["message"]).contains("thread-000000000000"), "{unknown}");
}

#[test]
fn thread_directive_works_for_an_mcp_client() {
    let user = User::initialized();
    write_note_directive(&user);
    let mut client = Client::connect(&user);
    client.call_error("rye_execute", tool(ORCHESTRATOR, json!({"operation": "list_active"})), "RYE1114");
    let done = client.call("rye_execute", tool(THREAD_DIRECTIVE, json!({"directive_name": "team/note"})));
    assert_eq!(done["data"]["status"], "completed", "{done}");
    let id = text(&done["data"]["thread_id"]);
    let status =
        client.call("rye_execute", tool(ORCHESTRATOR, json!({"operation": "get_status", "thread_id": id})));
    assert_eq!(status["data"]["status"], "completed", "{status}");
    let active = client.call("rye_execute", tool(ORCHESTRATOR, json!({"operation": "list_active"})));
    assert_eq!(active["data"]["count"], 0, "{active}");
    for refused in [
        json!({"directive_name": "team/note", "limit_overrides": {"turns": 5000}}),
        json!({"directive_name": "team/note", "parent_thread_id": id}),
    ] {
        let (response, is_error) = client.call_outcome("rye_execute", tool(THREAD_DIRECTIVE, refused));
        assert!(is_error, "{response}");
    }
}

/// A client of a project whose model answers `answer` once the gate is open.
fn client_with_model(user: &User, gate: &Gate, answer: &str) -> (FakeModel, Client) {
    let (pending, answer) = (gate.clone(), answer.to_owned());
    let model = FakeModel::start(move |_| FakeReply::text(&answer).with_gate(&pending));
    let environment =
        [("OPENAI_API_KEY", "sk-of-a-test-0123456789"), ("OPENAI_BASE_URL", &*format!("{}/v1", model.url()))];
    let client = Client::connect_with(user, &environment, json!({}));
    (model, client)
}

#[test]
fn waiting_reports_progress_and_gives_the_whole_result() {
    let user = User::initialized();
    write_directive(&user, "slow", FILES, "", "Take your time.");
    let (gate, answer) = (Gate::closed(), "a long answer. ".repeat(400));
    let (_model, mut client) = client_with_model(&user, &gate, &answer);
    let started = client.call(
        "rye_execute",
        tool(THREAD_DIRECTIVE, json!({"directive_name": "team/slow", "async_exec": true})),
    );
    let id = text(&started["data"]["thread_id"]);
    let wait = tool(ORCHESTRATOR, json!({"operation": "wait_threads", "thread_ids": [id], "timeout": 240}));
    let call = json!({"name": "rye_execute", "arguments": wait, "_meta": {"progressToken": "w"}});
    let request = client.send_request("tools/call", call);
    let is_progress = |message: &&Value| message["method"] == "notifications/progress";
    while client.notifications.iter().filter(is_progress).count() < 2 {
        assert!(client.handle_next(), "the server ended");
    }
    gate.open();
    let waited = client.wait_for_response(request)["result"]["structuredContent"]["data"].clone();
    assert_eq!(waited["results"][&id]["status"], "completed", "{waited}");
    let read = client.request("resources/read", json!({"uri": format!("rye://threads/{id}")}));
    let resource: Value = serde_json::from_str(&text(&read["contents"][0]["text"])).expect("JSON");
    let mut shown = user.data(["thread", "show", &id]);
    assert_eq!((&resource["result"], &shown["result_truncated"]), (&json!(answer), &json!(true)));
    // It is what `thread show` says, but for the result's length.
    let fields = shown.as_object_mut().expect("an object");
    fields.insert("result".to_owned(), resource["result"].clone());
    fields.remove("result_truncated");
    assert_eq!(resource, shown);
}

#[test]
fn client_cancels_a_thread_by_id() {
    let user = User::initialized();
    write_directive(&user, "slow", FILES, "", "Take your time.");
    let gate = Gate::closed();
    let pending = gate.clone();
    let model = FakeModel::start(move |_| FakeReply::text("Hello.").with_gate(&pending));
    let environment =
        [("OPENAI_API_KEY", "sk-of-a-test-0123456789"), ("OPENAI_BASE_URL", &*format!("{}/v1", model.url()))];
    let mut client = Client::connect_with(&user, &environment, json!({}));
    let started = client.call(
        "rye_execute",
        tool(THREAD_DIRECTIVE, json!({"directive_name": "team/slow", "async_exec": true})),
    );
    let id = text(&started["data"]["thread_id"]);
    let running = client.call("rye_execute", tool(ORCHESTRATOR, json!({"operation": "list_active"})));
    assert_eq!(running["data"]["active_threads"], json!([id]), "{running}");
    client.call("rye_execute", tool(ORCHESTRATOR, json!({"operation": "cancel_thread", "thread_id": id})));
    let follow = started["data"]["follow"]["arguments"].clone();
    let (waited, _) = client.call_outcome("rye_execute", follow);
    assert!(waited.to_string().contains("\"cancelled\""), "{waited}");
}

#[test]
fn threads_outside_a_project_are_the_users() {
    let user = User::initialized();
    write_directive(&user, "plain", FILES, LIST, "List the files.");
    user.ok(["load", "directive", "team/plain", "--to", "user"]);
    lillux::file::remove_tree(&user.project().join(".ai")).expect("removed");
    user.ok(["run", "team/plain"]);
    let [first] = &threads(&user)[..] else { panic!("one thread") };
    let mut client = Client::connect(&user);
    let status = json!({"operation": "get_status", "thread_id": first["thread_id"]});
    assert_eq!(client.call("rye_execute", tool(ORCHESTRATOR, status))["data"]["status"], "completed");
    let fork = json!({"item_type": "directive", "item_id": "team/plain", "thread": "fork"});
    let forked = client.call("rye_execute", fork.clone());
    let listed: Vec<Value> = threads(&user).iter().map(|row| row["thread_id"].clone()).collect();
    assert_eq!(listed, [forked["data"]["thread_id"].clone(), first["thread_id"].clone()]);
    assert!(!user.project().join(".ai").exists());
    // A project that is made later has its own.
    user.ok(["init"]);
    let inside = client.call("rye_execute", fork);
    let [only] = &threads(&user)[..] else { panic!("one thread of the project") };
    assert_eq!(only["thread_id"], inside["data"]["thread_id"]);
}

#[test]
fn execute_starts_and_follows_threads() {
    let user = User::initialized();
    write_note_directive(&user);
    let done = user.data(["execute", "tool", THREAD_DIRECTIVE, "directive_name=team/note"]);
    assert_eq!(done["status"], "completed", "{done}");
    let id = text(&done["thread_id"]);
    let status =
        user.data(["execute", "tool", ORCHESTRATOR, "operation=get_status", &format!("thread_id={id}")]);
    assert_eq!(status["status"], "completed", "{status}");
    let started = user.data(["execute", "tool", THREAD_DIRECTIVE, "directive_name=team/note", "async=true"]);
    assert_eq!(started["follow"], json!(format!("rye thread wait {}", text(&started["thread_id"]))));
    user.ok(["thread", "wait", &text(&started["thread_id"])]);
    write_directive(&user, "asks", PERMISSIONS, GATE, "Ask.");
    let words = ["--json", "execute", "tool", THREAD_DIRECTIVE, "directive_name=team/asks"];
    let error = user.run(words).error(1, "RYE0801");
    assert_eq!(error["data"]["status"], "suspended", "{error}");
}

#[test]
fn client_resumes_when_a_provider_answers() {
    let user = User::initialized();
    forbid_retries(&user);
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|request| match request.number {
        1..=3 => FakeReply::status(503, &json!({"error": {"message": "down"}}), &[]),
        _ => FakeReply::text("Back again."),
    });
    let environment =
        [("OPENAI_API_KEY", "sk-of-a-test-0123456789"), ("OPENAI_BASE_URL", &*format!("{}/v1", model.url()))];
    let mut client = Client::connect_with(&user, &environment, json!({}));
    let start = tool(THREAD_DIRECTIVE, json!({"directive_name": "team/ask"}));
    let (suspended, _) = client.call_outcome("rye_execute", start);
    assert!(suspended.to_string().contains("suspended"), "{suspended}");
    let id = crate::thread_run::newest_thread(&user);
    let resume = |timeout: u64| {
        tool(
            ORCHESTRATOR,
            json!({"operation": "resume_thread", "thread_id": id, "when_available": true, "timeout": timeout}),
        )
    };
    let unanswered = client.call("rye_execute", resume(0));
    assert_eq!(unanswered["data"]["result"]["status"], "suspended", "{unanswered}");
    let done = client.call("rye_execute", resume(240));
    assert_eq!(done["data"]["result"]["status"], "completed", "{done}");
    assert_eq!((&done["data"]["attempts"], model.count()), (&json!(2), 4), "{done}");
}
