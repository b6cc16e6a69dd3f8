//! `rye mcp` with clients that misbehave, change their mind, vanish, or ask for very much at once.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::mcp_client::{Client, outcome_of};
use crate::running::{assert_none_left, eventually, function, processes_with};
use crate::support::{User, rows};

/// A tool with a child that wants to survive; it says that it has begun, and waits.
const WAITS: &str = r#"
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    open("begun", "w").close()
    time.sleep(600)
time.sleep(600)
"#;

fn begun(user: &User) -> Client {
    function(user, "waits", WAITS);
    let mut client = Client::ready(user);
    client.begin_call("rye_execute", json!({"item_id": "tool:team/waits"}));
    assert!(eventually(|| user.project().join("begun").exists()));
    client
}

fn marker(user: &User) -> String {
    user.home().display().to_string()
}

#[test]
fn what_is_no_message_is_answered_and_the_next_one_still_works() {
    let user = User::ready();
    let mut client = Client::ready(&user);
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
        let answer = client.next().expect("an answer");
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(answer["id"].is_null(), "{answer}");
    }
    client.send_line(b"");
    client.send_line(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/unheard_of\"}");
    client.send_line(b"{\"jsonrpc\":\"2.0\",\"id\":999,\"result\":{}}");
    assert_eq!(client.refused("no/such/method", json!({}))["code"], -32601);
    assert_eq!(client.refused("tools/call", json!({"arguments": {}}))["code"], -32602);
    assert_eq!(client.refused("tools/call", json!({"name": 7}))["code"], -32602);
    assert_eq!(client.refused("resources/read", json!({}))["code"], -32602);
    client.request("ping", json!({}));
    client.call("rye_load", json!({"item_id": "tool:examples/hello"}));
}

#[test]
fn a_message_that_is_too_large_is_refused_and_the_next_one_still_works() {
    let user = User::ready();
    let mut client = Client::ready(&user);
    let large = vec![b'x'; 17 << 20];
    client.send_line(&large);
    let answer = client.next().expect("an answer");
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
    assert!(client.next().expect("an answer")["error"]["code"].is_number());
    client.request("ping", json!({}));
}

#[test]
fn requests_before_hello_are_refused_and_hello_still_works() {
    let user = User::ready();
    let mut client = Client::silent(&user, &[]);
    client.refused("tools/list", json!({}));
    client.send_line(b"nonsense");
    assert_eq!(client.next().expect("an answer")["error"]["code"], -32700);
    let hello = json!({"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let info = client.request("initialize", hello);
    assert!(info["protocolVersion"].as_str().expect("a version") >= "2024-11-05");
    client.request("tools/list", json!({}));
    assert!(client.end().success());
}

#[test]
fn a_client_that_vanishes_takes_its_run_with_it() {
    let user = User::ready();
    let mut client = begun(&user);
    client.process.stdout.take();
    assert!(!processes_with(&marker(&user)).is_empty());
    client.vanish();
    assert_none_left(&marker(&user));
}

#[test]
fn a_server_that_is_killed_takes_its_run_with_it() {
    let user = User::ready();
    let mut client = begun(&user);
    client.process.kill().expect("killed");
    client.process.wait().expect("an end");
    assert_none_left(&marker(&user));
}

#[test]
fn a_server_that_is_asked_to_end_cancels_its_runs() {
    let user = User::ready();
    let mut client = begun(&user);
    let asked =
        user.program("kill").arg("-TERM").arg(client.process.id().to_string()).status().expect("asked");
    assert!(asked.success());
    while client.take() {}
    client.process.wait().expect("an end");
    assert_none_left(&marker(&user));
}

#[test]
fn a_cancelled_call_ends_its_run_and_only_that() {
    let user = User::ready();
    let mut client = begun(&user);
    client.send(&json!({
        "jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2, "reason": "enough"},
    }));
    let server = client.process.id();
    assert!(eventually(|| processes_with(&marker(&user)) == [server]));
    client.call("rye_execute", json!({"item_id": "tool:examples/hello", "parameters": {"name": "Ada"}}));
    assert!(!client.has_answer(2), "a cancelled call is not answered");
}

#[test]
fn calls_that_wait_are_answered_after_the_input_ends() {
    let user = User::ready();
    let mut client = Client::ready(&user);
    let ids: Vec<u64> =
        (0..20).map(|_| client.begin_call("rye_load", json!({"item_id": "tool:examples/hello"}))).collect();
    assert!(client.end().success());
    for id in ids {
        let answer = client.answer(id);
        assert!(!outcome_of(&answer).1);
    }
}

#[test]
fn a_long_run_tells_its_progress() {
    let user = User::ready();
    // It ends when it is told to, however long that takes.
    let body = "import os, time\nwhile not os.path.exists('enough'):\n    time.sleep(0.01)\nreturn 1";
    function(&user, "slow", body);
    let mut client = Client::ready(&user);
    let call = json!({"name": "rye_execute", "arguments": {"item_id": "tool:team/slow"}, "_meta": {"progressToken": "p"}});
    let id = client.begin("tools/call", call);
    let is_progress = |told: &&Value| told["method"] == "notifications/progress";
    while client.told.iter().filter(is_progress).count() < 2 {
        assert!(client.take(), "the server ended");
    }
    user.world.write("project/enough", "");
    let result = client.answer(id)["result"].clone();
    assert_eq!(result["structuredContent"]["data"], 1);
    let told: Vec<&Value> =
        client.told.iter().filter(|told| told["method"] == "notifications/progress").collect();
    assert!(told.len() >= 2, "{:?}", client.told);
    let steps: Vec<f64> = told.iter().filter_map(|told| told["params"]["progress"].as_f64()).collect();
    assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "{steps:?}");
    assert!(told.iter().all(|told| told["params"]["progressToken"] == "p"));
}

#[test]
fn a_thousand_calls_in_flight_are_all_answered_once() {
    let user = User::ready();
    let mut client = Client::ready(&user);
    let mut waiting = BTreeSet::new();
    for number in 0..1000 {
        waiting.insert(match number % 4 {
            0 => client.begin_call("rye_load", json!({"item_id": "tool:examples/hello"})),
            1 => client.begin_call("rye_search", json!({"query": "hello"})),
            2 => client.begin_call("rye_fetch", json!({"item_id": "no/such"})),
            _ => client.begin("ping", json!({})),
        });
    }
    for id in waiting {
        let answer = client.answer(id);
        assert!(answer.get("result").is_some(), "{answer}");
    }
    assert!(client.told.is_empty());
    assert!(client.end().success());
}

#[test]
fn many_runs_at_once_take_turns() {
    let user = User::ready();
    let mut client = Client::ready(&user);
    let calls: Vec<(u64, usize)> = (0..60)
        .map(|number| {
            let parameters = json!({"name": number.to_string()});
            (
                client.begin_call(
                    "rye_execute",
                    json!({"item_id": "tool:examples/hello", "parameters": parameters}),
                ),
                number,
            )
        })
        .collect();
    for (id, number) in calls {
        let (object, is_error) = outcome_of(&client.answer(id));
        assert!(!is_error, "{object}");
        assert_eq!(object["data"]["greeting"], format!("Hello, {number}!"));
    }
    assert!(client.end().success());
    assert_none_left(&marker(&user));
}

#[test]
fn clients_hear_of_items_that_appear_change_and_vanish() {
    let user = User::ready();
    let mut client = Client::ready(&user);
    client.request("prompts/list", json!({}));
    client.request("resources/list", json!({}));
    // The first look of the watcher is over once it has told of something: write until it does.
    let mut written = 0;
    while !client.told.iter().any(|told| told["method"] == "notifications/prompts/list_changed") {
        written += 1;
        let name = format!("warm_{written}");
        user.write(&format!("directives/team/{name}.md"), rye_test::directive("team", &name, "Warms up"));
        client.request("ping", json!({}));
        assert!(written < 2000);
    }
    client.told.clear();
    user.write("knowledge/team/rule.md", rye_test::knowledge("team", "rule", "A rule", "Be kind."));
    client.wait_for("notifications/resources/list_changed");
    user.ok(["sign", "knowledge", "team/rule"]);
    client.wait_for("notifications/resources/list_changed");
    let uri = "rye://knowledge/team/rule";
    let read = client.request("resources/read", json!({"uri": uri}));
    assert!(read["contents"][0]["text"].as_str().expect("a text").contains("Be kind."));
    client.request("resources/subscribe", json!({"uri": uri}));
    user.write("knowledge/team/rule.md", rye_test::knowledge("team", "rule", "A rule", "Be brief."));
    assert_eq!(client.wait_for("notifications/resources/updated")["params"]["uri"], uri);
    std::fs::remove_file(user.project().join(".ai/knowledge/team/rule.md")).expect("removed");
    assert_eq!(client.wait_for("notifications/resources/updated")["params"]["uri"], uri);
    client.request("resources/unsubscribe", json!({"uri": uri}));
    assert_eq!(client.refused("resources/subscribe", json!({"uri": "file:///etc/passwd"}))["code"], -32602);
}

#[test]
fn the_newer_protocol_listens() {
    let user = User::ready();
    let mut client = Client::silent(&user, &[]);
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
    client.begin("subscriptions/listen", json!({"notifications": wanted, "_meta": meta}));
    let accepted = client.wait_for("notifications/subscriptions/acknowledged");
    assert_eq!(accepted["params"]["notifications"]["resourceSubscriptions"], json!([uri]), "{accepted}");
    let mut written = 0;
    while !client.told.iter().any(|told| told["method"] == "notifications/prompts/list_changed") {
        written += 1;
        let name = format!("warm_{written}");
        user.write(&format!("directives/team/{name}.md"), rye_test::directive("team", &name, "Warms up"));
        client.request("tools/list", json!({"_meta": meta}));
        assert!(written < 2000);
    }
    user.write("knowledge/team/rule.md", rye_test::knowledge("team", "rule", "A rule", "Be kind."));
    assert_eq!(client.wait_for("notifications/resources/updated")["params"]["uri"], uri);
}

#[test]
fn a_folder_that_appears_later_is_searched_too() {
    let user = User::ready();
    std::fs::remove_dir_all(user.project().join(".ai/knowledge")).expect("removed");
    let mut client = Client::ready(&user);
    let finds = |client: &mut Client, wanted: usize| {
        let found = client.call("rye_search", json!({"query": "okapi", "item_type": "knowledge"}));
        rows(&found["data"]).len() == wanted
    };
    assert!(finds(&mut client, 0));
    user.write("knowledge/team/one.md", rye_test::knowledge("team", "one", "An okapi", "Text."));
    assert!(eventually(|| finds(&mut client, 1)));
    assert!(finds(&mut client, 1));
    user.write("knowledge/team/two.md", rye_test::knowledge("team", "two", "Another okapi", "Text."));
    assert!(eventually(|| finds(&mut client, 2)));
}
