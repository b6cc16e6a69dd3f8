//! `rye mcp` with clients that misbehave, change their mind, vanish, or ask for very much at once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::mcp_client::{Client, parse_outcome};
use crate::support::{User, rows};
use crate::tool_support::{assert_no_processes, eventually, processes_with, write_function};

/// A tool with a child that wants to survive; it says that it has begun, and waits.
const WAITING_TOOL: &str = r#"
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    open("begun", "w").close()
    time.sleep(600)
time.sleep(600)
"#;

fn client_with_running_tool(user: &User) -> Client {
    write_function(user, "waits", WAITING_TOOL);
    let mut client = Client::connect(user);
    client.send_call("rye_execute", json!({"item_id": "tool:team/waits"}));
    assert!(eventually(|| user.project().join("begun").exists()));
    client
}

fn marker(user: &User) -> String {
    user.home().display().to_string()
}

#[test]
fn invalid_message_gets_an_error() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    for (line, code) in [
        (&b"{"[..], -32700),
        (b"nonsense", -32700),
        (b"\xff\xfe\x00", -32700),
        (b"[]", -32600),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
        (b"7", -32600),
        (b"{}", -32600),
    ] {
        client.send_line(line);
        let answer = client.next_message().expect("an answer");
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(answer["id"].is_null(), "{answer}");
    }
    client.send_line(b"");
    client.send_line(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/unheard_of\"}");
    client.send_line(b"{\"jsonrpc\":\"2.0\",\"id\":999,\"result\":{}}");
    assert_eq!(client.request_error("no/such/method", json!({}))["code"], -32601);
    assert_eq!(client.request_error("tools/call", json!({"arguments": {}}))["code"], -32602);
    assert_eq!(client.request_error("tools/call", json!({"name": 7}))["code"], -32602);
    assert_eq!(client.request_error("resources/read", json!({}))["code"], -32602);
    client.request("ping", json!({}));
    client.call("rye_load", json!({"item_id": "tool:examples/hello"}));
}

#[test]
fn oversized_message_gets_an_error() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let large = vec![b'x'; 17 << 20];
    client.send_line(&large);
    let answer = client.next_message().expect("an answer");
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    // Large but allowed: it reaches the tool's own rules.
    let name = "y".repeat(1 << 20);
    let answer =
        client.call("rye_execute", json!({"item_id": "tool:examples/hello", "parameters": {"name": name}}));
    assert_eq!(answer["data"]["greeting"].as_str().map(str::len), Some((1 << 20) + 8));
    let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
    client.send_line(
        format!("{{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"ping\",\"params\":{deep}}}").as_bytes(),
    );
    assert!(client.next_message().expect("an answer")["error"]["code"].is_number());
    client.request("ping", json!({}));
}

#[test]
fn requests_before_initialize_are_refused() {
    let user = User::initialized();
    let mut client = Client::spawn(&user, &[]);
    client.request_error("tools/list", json!({}));
    client.send_line(b"nonsense");
    assert_eq!(client.next_message().expect("an answer")["error"]["code"], -32700);
    let hello = json!({"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let info = client.request("initialize", hello);
    assert!(info["protocolVersion"].as_str().expect("a version") >= "2024-11-05");
    client.request("tools/list", json!({}));
    assert!(client.close().success());
}

#[test]
fn disconnected_client_ends_its_run() {
    let user = User::initialized();
    let mut client = client_with_running_tool(&user);
    client.process.stdout.take();
    assert!(!processes_with(&marker(&user)).is_empty());
    client.disconnect();
    assert_no_processes(&marker(&user));
}

#[test]
fn killed_server_ends_its_run() {
    let user = User::initialized();
    let mut client = client_with_running_tool(&user);
    client.process.kill().expect("killed");
    client.process.wait().expect("an end");
    assert_no_processes(&marker(&user));
}

#[test]
fn terminated_server_cancels_its_runs() {
    let user = User::initialized();
    let mut client = client_with_running_tool(&user);
    let status =
        user.program("kill").arg("-TERM").arg(client.process.id().to_string()).status().expect("asked");
    assert!(status.success());
    while client.handle_next() {}
    client.process.wait().expect("an end");
    assert_no_processes(&marker(&user));
}

#[test]
fn cancelled_call_ends_only_its_run() {
    let user = User::initialized();
    let mut client = client_with_running_tool(&user);
    client.send(&json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2, "reason": "enough"},
    }));
    let server = client.process.id();
    assert!(eventually(|| processes_with(&marker(&user)) == [server]));
    client.call("rye_execute", json!({"item_id": "tool:examples/hello", "parameters": {"name": "Ada"}}));
    assert!(!client.has_response(2), "a cancelled call is not answered");
}

#[test]
fn pending_calls_finish_after_input_closes() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let ids: Vec<u64> =
        (0..20).map(|_| client.send_call("rye_load", json!({"item_id": "tool:examples/hello"}))).collect();
    assert!(client.close().success());
    for id in ids {
        let answer = client.wait_for_response(id);
        assert!(!parse_outcome(&answer).1);
    }
}

#[test]
fn long_run_reports_progress() {
    let user = User::initialized();
    // It ends when it is asked to, however long that takes.
    let body = "import os, time\nwhile not os.path.exists('enough'):\n    time.sleep(0.01)\nreturn 1";
    write_function(&user, "slow", body);
    let mut client = Client::connect(&user);
    let call = json!({"name": "rye_execute", "arguments": {"item_id": "tool:team/slow"}, "_meta": {"progressToken": "p"}});
    let id = client.send_request("tools/call", call);
    let is_progress = |progress: &&Value| progress["method"] == "notifications/progress";
    while client.notifications.iter().filter(is_progress).count() < 2 {
        assert!(client.handle_next(), "the server ended");
    }
    user.context.write("project/enough", "");
    let result = client.wait_for_response(id)["result"].clone();
    assert_eq!(result["structuredContent"]["data"], 1);
    let progress: Vec<&Value> = client
        .notifications
        .iter()
        .filter(|progress| progress["method"] == "notifications/progress")
        .collect();
    assert!(progress.len() >= 2, "{:?}", client.notifications);
    let steps: Vec<f64> =
        progress.iter().filter_map(|progress| progress["params"]["progress"].as_f64()).collect();
    assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "{steps:?}");
    assert!(progress.iter().all(|progress| progress["params"]["progressToken"] == "p"));
}

#[test]
fn thousand_concurrent_calls_are_answered_once() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let mut waiting = BTreeSet::new();
    for number in 0..1000 {
        waiting.insert(match number % 4 {
            0 => client.send_call("rye_load", json!({"item_id": "tool:examples/hello"})),
            1 => client.send_call("rye_search", json!({"query": "hello"})),
            2 => client.send_call("rye_fetch", json!({"item_id": "no/such"})),
            _ => client.send_request("ping", json!({})),
        });
    }
    for id in waiting {
        let answer = client.wait_for_response(id);
        assert!(answer.get("result").is_some(), "{answer}");
    }
    assert!(client.notifications.is_empty());
    assert!(client.close().success());
}

#[test]
fn concurrent_runs_are_queued() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let calls: Vec<(u64, usize)> = (0..60)
        .map(|number| {
            let parameters = json!({"name": number.to_string()});
            (
                client.send_call(
                    "rye_execute",
                    json!({"item_id": "tool:examples/hello", "parameters": parameters}),
                ),
                number,
            )
        })
        .collect();
    for (id, number) in calls {
        let (object, is_error) = parse_outcome(&client.wait_for_response(id));
        assert!(!is_error, "{object}");
        assert_eq!(object["data"]["greeting"], format!("Hello, {number}!"));
    }
    assert!(client.close().success());
    assert_no_processes(&marker(&user));
}

#[test]
fn clients_are_notified_of_item_changes() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    client.request("prompts/list", json!({}));
    client.request("resources/list", json!({}));
    // The first look of the watcher is over once it has told of something: write until it does.
    let mut written = 0;
    while !client
        .notifications
        .iter()
        .any(|notification| notification["method"] == "notifications/prompts/list_changed")
    {
        written += 1;
        let name = format!("warm_{written}");
        user.write(&format!("directives/team/{name}.md"), rye_test::directive("team", &name, "Warms up"));
        client.request("ping", json!({}));
        assert!(written < 2000);
    }
    client.notifications.clear();
    user.write("knowledge/team/rule.md", rye_test::knowledge("team", "rule", "A rule", "Be kind."));
    client.wait_for_notification("notifications/resources/list_changed");
    user.ok(["sign", "knowledge", "team/rule"]);
    client.wait_for_notification("notifications/resources/list_changed");
    let uri = "rye://knowledge/team/rule";
    let read = client.request("resources/read", json!({"uri": uri}));
    assert!(read["contents"][0]["text"].as_str().expect("a text").contains("Be kind."));
    client.request("resources/subscribe", json!({"uri": uri}));
    user.write("knowledge/team/rule.md", rye_test::knowledge("team", "rule", "A rule", "Be brief."));
    assert_eq!(client.wait_for_notification("notifications/resources/updated")["params"]["uri"], uri);
    std::fs::remove_file(user.project().join(".ai/knowledge/team/rule.md")).expect("removed");
    assert_eq!(client.wait_for_notification("notifications/resources/updated")["params"]["uri"], uri);
    client.request("resources/unsubscribe", json!({"uri": uri}));
    assert_eq!(
        client.request_error("resources/subscribe", json!({"uri": "file:///etc/passwd"}))["code"],
        -32602
    );
}

#[test]
fn newer_protocol_subscribes() {
    let user = User::initialized();
    let mut client = Client::spawn(&user, &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    client.request("prompts/list", json!({"_meta": meta}));
    let uri = "rye://knowledge/team/rule";
    let wanted = json!({
        "promptsListChanged": true, "resourcesListChanged": true,
        "resourceSubscriptions": [uri, "file:///etc/passwd"],
    });
    client.send_request("subscriptions/listen", json!({"notifications": wanted, "_meta": meta}));
    let accepted = client.wait_for_notification("notifications/subscriptions/acknowledged");
    assert_eq!(accepted["params"]["notifications"]["resourceSubscriptions"], json!([uri]), "{accepted}");
    let mut written = 0;
    while !client
        .notifications
        .iter()
        .any(|notification| notification["method"] == "notifications/prompts/list_changed")
    {
        written += 1;
        let name = format!("warm_{written}");
        user.write(&format!("directives/team/{name}.md"), rye_test::directive("team", &name, "Warms up"));
        client.request("tools/list", json!({"_meta": meta}));
        assert!(written < 2000);
    }
    user.write("knowledge/team/rule.md", rye_test::knowledge("team", "rule", "A rule", "Be kind."));
    assert_eq!(client.wait_for_notification("notifications/resources/updated")["params"]["uri"], uri);
}

#[test]
fn a_folder_that_appears_later_is_searched_too() {
    let user = User::initialized();
    std::fs::remove_dir_all(user.project().join(".ai/knowledge")).expect("removed");
    let mut client = Client::connect(&user);
    let finds = |client: &mut Client, expected: usize| {
        let found = client.call("rye_search", json!({"query": "okapi", "item_type": "knowledge"}));
        rows(&found["data"]).len() == expected
    };
    assert!(finds(&mut client, 0));
    user.write("knowledge/team/one.md", rye_test::knowledge("team", "one", "An okapi", "Text."));
    assert!(eventually(|| finds(&mut client, 1)));
    assert!(finds(&mut client, 1));
    user.write("knowledge/team/two.md", rye_test::knowledge("team", "two", "Another okapi", "Text."));
    assert!(eventually(|| finds(&mut client, 2)));
}
