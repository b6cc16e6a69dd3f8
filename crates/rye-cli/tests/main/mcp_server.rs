//! `rye mcp` from outside: what a client gets is what the command line gives, and no one vouched for is refused.

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, differences, rows, run, text};
use crate::tool_support::write_function;

/// An answer without what differs from run to run.
fn normalize_response(mut response: Value) -> Value {
    for path in ["duration_ms", "first_use", "lock", "sandbox", "notes"] {
        response.as_object_mut().expect("an object").remove(path);
    }
    if let Some(data) = response.get_mut("data").and_then(Value::as_object_mut) {
        data.remove("took_ms");
    }
    response
}

fn cli(user: &User, words: &[&str]) -> Value {
    normalize_response(run(user.command().arg("--json").args(words)).json())
}

#[test]
fn tools_match_the_command_line() {
    let user = User::initialized();
    crate::mcp_consent::write_policy(&user, "sign: allow");
    let mut client = Client::connect(&user);
    let pairs: [(&str, Value, &[&str]); 12] = [
        ("rye_search", json!({"query": "hello"}), &["search", "hello"]),
        (
            "rye_search",
            json!({"query": "*", "scope": "tool.rye.core.*", "source": "system", "limit": 3}),
            &["search", "*", "--scope", "tool.rye.core.*", "--space", "system", "--limit", "3"],
        ),
        (
            "rye_load",
            json!({"item_type": "knowledge", "item_id": "examples/style"}),
            &["load", "knowledge", "examples/style"],
        ),
        ("rye_load", json!({"item_id": "tool:examples/hello"}), &["load", "tool:examples/hello"]),
        ("rye_fetch", json!({"item_id": "examples/greet"}), &["fetch", "examples/greet"]),
        (
            "rye_fetch",
            json!({"query": "greet", "scope": "directive", "source": "local"}),
            &["fetch", "--query", "greet", "--scope", "directive", "--from", "local"],
        ),
        (
            "rye_execute",
            json!({"item_type": "tool", "item_id": "examples/hello", "parameters": {"name": "Ada"}}),
            &["execute", "tool", "examples/hello", "name=Ada"],
        ),
        (
            "rye_execute",
            json!({"item_id": "directive:examples/greet", "parameters": {"name": "Ada"}, "thread": "inline"}),
            &["execute", "directive", "examples/greet", "name=Ada"],
        ),
        (
            "rye_execute",
            json!({"item_id": "knowledge:examples/style"}),
            &["execute", "knowledge", "examples/style"],
        ),
        (
            "rye_execute",
            json!({"item_id": "tool:examples/hello", "parameters": {"name": "A"}, "dry_run": true}),
            &["execute", "examples/hello", "name=A", "--dry-run"],
        ),
        ("rye_sign", json!({"item_id": "tool:examples/hello"}), &["sign", "tool", "examples/hello"]),
        ("rye_sign", json!({"item_type": "tool", "item_id": "examples/*"}), &["sign", "tool", "examples/*"]),
    ];
    for (tool, arguments, words) in pairs {
        let answer = client.call(tool, arguments);
        assert_eq!(normalize_response(answer), cli(&user, words), "{words:?}");
    }
    let failures: [(&str, Value, &[&str], &str); 5] = [
        ("rye_load", json!({"item_id": "tool:no/such"}), &["load", "tool:no/such"], "RYE0201"),
        ("rye_load", json!({"item_id": "tool:../x"}), &["load", "tool:../x"], "RYE0101"),
        ("rye_search", json!({"query": "((("}), &["search", "((("], "RYE0103"),
        (
            "rye_execute",
            json!({"item_id": "directive:examples/greet", "parameters": {"nmae": "x"}}),
            &["execute", "directive", "examples/greet", "nmae=x"],
            "RYE0107",
        ),
        ("rye_sign", json!({"item_id": "tool:no/such"}), &["sign", "tool", "no/such"], "RYE0201"),
    ];
    for (tool, arguments, words, code) in failures {
        // Hints are in the caller's language: `hints_name_calls`.
        let without_hints = |mut answer: Value| {
            answer.as_object_mut().expect("an object").remove("hints");
            answer
        };
        let found = without_hints(client.call_error(tool, arguments, code));
        assert_eq!(found, without_hints(cli(&user, words)), "{words:?}");
    }
    assert!(client.close().success());
}

#[test]
fn arguments_are_validated_strictly() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    for (tool, arguments) in [
        ("rye_search", json!({})),
        ("rye_search", json!({"query": "x", "limitt": 3})),
        ("rye_search", json!({"query": "x", "source": "registry"})),
        ("rye_search", json!({"query": "x", "limit": -1})),
        ("rye_load", json!({"item_id": 7})),
        ("rye_load", json!({"item_id": "examples/hello", "detail": "more"})),
        ("rye_fetch", json!({})),
        ("rye_fetch", json!({"item_id": "a", "query": "b"})),
        ("rye_execute", json!({"item_id": "tool:examples/hello", "parameters": "name=Ada"})),
        ("rye_execute", json!({"item_id": "tool:examples/hello", "thread": "fork"})),
        ("rye_execute", json!({"item_id": "directive:examples/greet", "async": true})),
        ("rye_execute", json!({"item_id": "directive:examples/greet", "limit_overrides": {"turns": 3}})),
        ("rye_sign", json!({"item_id": "examples/*"})),
    ] {
        client.call_error(tool, arguments, "RYE0104");
    }
    client.call_error("rye_load", json!({"item_id": "tool:a", "project_path": "/no/such/folder"}), "RYE0202");
    // What clients fill in by themselves does no harm.
    client.call(
        "rye_fetch",
        json!({"item_id": "tool:examples/hello", "limit": 10, "query": null, "scope": null}),
    );
    let refused = client.request_error("tools/call", json!({"name": "rye_delete", "arguments": {}}));
    assert_eq!(refused["code"], -32602);
}

#[test]
fn tools_are_described_and_annotated() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let tools = client.request("tools/list", json!({}));
    let tools = tools["tools"].as_array().expect("tools");
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(names, ["rye_search", "rye_load", "rye_fetch", "rye_execute", "rye_sign"]);
    for tool in tools {
        assert_eq!(tool["inputSchema"]["additionalProperties"], false);
        assert!(text(&tool["description"]).len() > 40);
    }
    let hint = |name: &str, hint: &str| {
        tools.iter().find(|tool| tool["name"] == name).expect("a tool")["annotations"][hint].clone()
    };
    assert_eq!(hint("rye_search", "readOnlyHint"), true);
    assert_eq!(hint("rye_execute", "destructiveHint"), true);
    assert_eq!(hint("rye_sign", "readOnlyHint"), false);
    assert_eq!(hint("rye_sign", "destructiveHint"), true);
    for name in ["rye_load", "rye_fetch"] {
        assert_eq!((hint(name, "readOnlyHint"), hint(name, "destructiveHint")), (json!(true), json!(false)));
    }
}

#[test]
fn directives_are_prompts_and_knowledge_is_resources() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let prompts = client.request("prompts/list", json!({}));
    let prompts = prompts["prompts"].as_array().expect("prompts").clone();
    let greet = prompts.iter().find(|prompt| prompt["name"] == "examples/greet").expect("the example");
    assert_eq!(greet["arguments"][0]["name"], "name");
    let got = client.request("prompts/get", json!({"name": "examples/greet", "arguments": {"name": "Ada"}}));
    let output = cli(&user, &["execute", "directive", "examples/greet", "name=Ada"]);
    assert_eq!(got["messages"][0]["content"]["text"], output["your_directions"]);
    assert_eq!(got["messages"][0]["role"], "user");

    let resources = client.request("resources/list", json!({}));
    let resources = resources["resources"].as_array().expect("resources").clone();
    assert!(resources.iter().any(|resource| resource["uri"] == "rye://knowledge/examples/style"));
    let read = client.request("resources/read", json!({"uri": "rye://knowledge/examples/style"}));
    let body = cli(&user, &["load", "knowledge", "examples/style"])["data"]["content"].clone();
    assert_eq!(read["contents"][0]["text"], body);
    assert_eq!(read["contents"][0]["mimeType"], "text/markdown");
    let templates = client.request("resources/templates/list", json!({}));
    assert_eq!(templates["resourceTemplates"][0]["uriTemplate"], "rye://knowledge/{+id}");

    let of = |reference: Value, name: &str, value: &str| json!({"ref": reference, "argument": {"name": name, "value": value}});
    let template = json!({"type": "ref/resource", "uri": "rye://knowledge/{+id}"});
    let completed = client.request("completion/complete", of(template, "id", "examples/"));
    assert_eq!(completed["completion"]["values"], json!(["examples/style"]));
    let threads = json!({"type": "ref/resource", "uri": "rye://threads/{id}"});
    let completed = client.request("completion/complete", of(threads, "id", ""));
    assert_eq!(completed["completion"]["values"], json!([]), "threads have no ids of knowledge");
    let prompt = json!({"type": "ref/prompt", "name": "examples/greet"});
    let completed = client.request("completion/complete", of(prompt, "name", "zzz"));
    assert_eq!(completed["completion"]["values"], json!([]));

    assert_eq!(client.request_error("prompts/get", json!({"name": "no/such"}))["code"], -32002);
    assert_eq!(
        client.request_error("resources/read", json!({"uri": "rye://knowledge/no/such"}))["code"],
        -32002
    );
    for uri in ["file:///etc/passwd", "rye://knowledge/../keys/x", "rye://tool/examples/hello"] {
        assert_eq!(client.request_error("resources/read", json!({"uri": uri}))["code"], -32602, "{uri}");
    }
}

#[test]
fn long_lists_are_paginated() {
    let user = User::initialized();
    for number in 0..250 {
        let name = format!("entry_{number:03}");
        user.write(
            &format!("knowledge/many/{name}.md"),
            rye_test::knowledge("many", &name, "An entry", "Text."),
        );
    }
    user.ok(["sign", "knowledge", "many/*"]);
    let mut client = Client::connect(&user);
    let mut found = Vec::new();
    let mut cursor = Value::Null;
    let mut pages = 0;
    loop {
        let params = if cursor.is_null() { json!({}) } else { json!({"cursor": cursor}) };
        let page = client.request("resources/list", params);
        pages += 1;
        found.extend(page["resources"].as_array().expect("resources").iter().map(|row| text(&row["name"])));
        match page.get("nextCursor") {
            Some(next) if pages < 10 => cursor = next.clone(),
            _ => break,
        }
    }
    assert!(pages >= 2, "{pages}");
    assert_eq!(found.iter().filter(|name| name.starts_with("many/")).count(), 250);
    let mut unique = found.clone();
    unique.dedup();
    assert_eq!(unique.len(), found.len());
}

/// A project in which nothing but the examples may be used: unsigned, changed, and signed by a stranger.
fn foreign_project() -> User {
    let other_user = User::initialized();
    for (kind, extension) in [("tools", "py"), ("directives", "md"), ("knowledge", "md")] {
        other_user.write(&format!("{kind}/team/foreign.{extension}"), item(kind, "foreign"));
    }
    for kind in ["tool", "directive", "knowledge"] {
        other_user.ok(["sign", kind, "team/foreign"]);
    }
    let user = User::initialized();
    for (kind, extension) in [("tools", "py"), ("directives", "md"), ("knowledge", "md")] {
        let foreign = other_user.read(&format!("{kind}/team/foreign.{extension}"));
        user.write(&format!("{kind}/team/foreign.{extension}"), foreign);
        user.write(&format!("{kind}/team/changed.{extension}"), item(kind, "changed"));
    }
    for kind in ["tool", "directive", "knowledge"] {
        user.ok(["sign", kind, "team/changed"]);
    }
    for (kind, extension) in [("tools", "py"), ("directives", "md"), ("knowledge", "md")] {
        let path = format!("{kind}/team/changed.{extension}");
        let mut bytes = user.read(&path);
        bytes.extend_from_slice(b"\n# and something else\n");
        user.write(&path, bytes);
        user.write(&format!("{kind}/team/unsigned.{extension}"), item(kind, "unsigned"));
    }
    user
}

fn item(kind: &str, name: &str) -> String {
    match kind {
        "tools" => rye_test::tool("team", "Is a zebra"),
        "directives" => rye_test::directive("team", name, "Is a zebra"),
        _ => rye_test::knowledge("team", name, "Is a zebra", "Stripes."),
    }
}

#[test]
fn untrusted_items_are_flagged_and_refused() {
    let user = foreign_project();
    let mut client = Client::connect_with(&user, &[("RYE_DEV_MODE", "1")], json!({}));
    let found = client.call("rye_search", json!({"query": "zebra", "limit": 50}));
    let found = rows(&found["data"]);
    assert_eq!(found.len(), 9, "{found:?}");
    for row in &found {
        let expected = match text(&row["item_id"]).as_str() {
            "team/foreign" => "untrusted",
            "team/changed" => "tampered",
            _ => "unsigned",
        };
        assert_eq!(
            (row["signed"].as_bool(), row["verdict"].as_str()),
            (Some(false), Some(expected)),
            "{row}"
        );
    }
    let before = user.snapshot();
    for (name, code) in [("foreign", "RYE0404"), ("changed", "RYE0402"), ("unsigned", "RYE0401")] {
        for kind in ["tool", "directive", "knowledge"] {
            let named = json!({"item_type": kind, "item_id": format!("team/{name}")});
            client.call_error("rye_load", named.clone(), code);
            client.call_error("rye_fetch", named.clone(), code);
            client.call_error("rye_execute", named.clone(), code);
            let mut copied = named;
            copied["destination"] = json!("user");
            client.call_error("rye_sign", copied, code);
        }
        let refused = client.request_error("prompts/get", json!({"name": format!("team/{name}")}));
        assert_eq!(refused["data"]["code"], code, "{refused}");
        let uri = format!("rye://knowledge/team/{name}");
        assert_eq!(client.request_error("resources/read", json!({"uri": uri}))["data"]["code"], code);
    }
    for (method, list) in [("prompts/list", "prompts"), ("resources/list", "resources")] {
        let listed = client.request(method, json!({}));
        let names: Vec<String> =
            listed[list].as_array().expect("a list").iter().map(|row| text(&row["name"])).collect();
        assert!(names.iter().any(|name| name.starts_with("examples/")), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("team/")), "{names:?}");
    }
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn dev_mode_never_applies() {
    let user = User::initialized();
    let project = user.project().display().to_string();
    user.write_user(
        "config/config.yaml",
        format!("version: \"1.0.0\"\ncategory: \"\"\ndev_mode:\n  projects:\n    - {project}\n"),
    );
    user.ok(["sign", "config", "config", "--space", "user"]);
    write_function(&user, "edited", "return 1");
    let path = user.project().join(".ai/tools/team/edited.py");
    let text = std::fs::read_to_string(&path).expect("a tool").replace("return 1", "return 2");
    std::fs::write(&path, text).expect("edited");
    let mut command = user.command();
    command.env("RYE_DEV_MODE", "1").args(["--json", "execute", "team/edited"]);
    assert_eq!(run(&mut command).json()["data"], 2);
    let mut client = Client::connect_with(&user, &[("RYE_DEV_MODE", "1")], json!({}));
    client.call_error("rye_execute", json!({"item_id": "tool:team/edited"}), "RYE0402");
}

#[test]
fn partly_signed_directive_is_no_prompt() {
    let user = User::initialized();
    let plain = rye_test::directive("team", "half", "Is half covered");
    let start = plain.find("<directive").expect("a tag");
    let end = plain.find("</directive>").expect("a tag") + "</directive>".len();
    let key = user.context.text("home/.ai/config/keys/signing/private_key.pem");
    let line = rye_test::signature(&key, &plain.as_bytes()[start..end]);
    user.write("directives/team/half.md", format!("<!-- {line} -->\n{plain}"));
    let mut client = Client::connect(&user);
    assert_eq!(
        client.call("rye_load", json!({"item_id": "directive:team/half"}))["data"]["coverage"],
        "partial"
    );
    client.call_error("rye_execute", json!({"item_id": "directive:team/half"}), "RYE0406");
    assert_eq!(client.request_error("prompts/get", json!({"name": "team/half"}))["data"]["code"], "RYE0406");
    let listed = client.request("prompts/list", json!({}));
    assert!(!listed.to_string().contains("team/half"));
}

#[test]
fn projects_are_served_separately() {
    let (first, second) = (User::initialized(), User::initialized());
    second.signed_tool("only_there", "A quagga");
    let mut client = Client::connect(&first);
    let there = second.project().display().to_string();
    client.call_error("rye_search", json!({"query": "quagga", "project_path": there}), "RYE0905");
    first.ok(["trust", &there]);
    assert_eq!(rows(&client.call("rye_search", json!({"query": "quagga"}))["data"]).len(), 0);
    let found = client.call("rye_search", json!({"query": "quagga", "project_path": there}));
    assert_eq!(rows(&found["data"]).len(), 1);
    // The second user's key means nothing to the first.
    let named = json!({"item_id": "tool:team/only_there", "project_path": there});
    client.call_error("rye_load", named, "RYE0404");
}

#[test]
fn disk_changes_apply_immediately() {
    let user = User::initialized();
    let mut client =
        Client::connect_with_consent(&user, json!({"action": "accept", "content": {"agree": true}}));
    let named = json!({"item_id": "tool:team/new"});
    client.call_error("rye_load", named.clone(), "RYE0201");
    user.write("tools/team/new.py", rye_test::tool("team", "A new one"));
    client.call_error("rye_load", named.clone(), "RYE0401");
    client.call("rye_sign", json!({"item_id": "tool:team/new"}));
    client.call("rye_load", named.clone());
    // Another process revokes the key.
    user.ok(["keys", "revoke", &user.fingerprint()]);
    client.call_error("rye_load", named, "RYE0405");
}

/// A plain answer is its result; the rest comes on request.
#[test]
fn plain_answers_are_short() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let mut brief = |name: &str, mut arguments: Value| {
        arguments["detail"] = json!("brief");
        client.call(name, arguments)
    };
    let ran = brief("rye_execute", json!({"item_id": "examples/hello"}));
    assert_eq!(ran, json!({"status": "success", "data": {"greeting": "Hello, world!"}}));
    let directed = brief("rye_execute", json!({"item_id": "examples/greet"}));
    assert_eq!(directed.as_object().map(serde_json::Map::len), Some(3), "{directed}");
    assert!(directed["your_directions"].is_string(), "{directed}");
    let loaded = brief("rye_load", json!({"item_id": "examples/hello"}));
    assert!(loaded["data"]["content"].is_string() && loaded["data"]["raw"].is_null(), "{loaded}");
    assert!(!loaded.to_string().contains("rye:signed:"), "{loaded}");
    let checked = brief("rye_execute", json!({"item_id": "examples/hello", "dry_run": true}));
    assert!(checked.to_string().len() < 700, "{checked}");
    let full = client.call("rye_execute", json!({"item_id": "examples/hello"}));
    assert!(full["chain"].is_array() && full["sandbox"]["rows"].is_array(), "{full}");
}

/// An agent cannot type commands: what it can do itself is named as a call, the rest is for its user.
#[test]
fn hints_name_calls() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    for (name, arguments, expected) in [
        ("rye_load", json!({"item_id": "examples/nothing"}), r#"rye_search {"query":"nothing"}"#),
        (
            "rye_load",
            json!({"item_id": "tool:examples/greet"}),
            r#"rye_execute {"item_id":"examples/greet"}"#,
        ),
        (
            "rye_execute",
            json!({"item_id": "examples/hello", "parameters": {"nam": "x"}}),
            r#"rye_load {"item_id":"tool:examples/hello"}"#,
        ),
    ] {
        let (answer, is_error) = client.call_outcome(name, arguments);
        assert!(is_error, "{answer}");
        let hints: Vec<String> =
            answer["hints"].as_array().expect("hints").iter().map(|hint| text(hint)).collect();
        assert!(hints.iter().any(|hint| hint.contains(expected)), "{hints:?}");
        let commands = ["rye search", "rye load", "rye execute", "rye run", "rye explain"];
        assert!(!hints.iter().any(|hint| commands.iter().any(|word| hint.contains(word))), "{hints:?}");
    }
}
