//! The API of `rye ui` from outside: every endpoint against its description, and what the actions do.

use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Value, json};

use crate::bundle_manifest::{add, project_member, publish_in_git};
use crate::install::BundleAuthor;
use crate::support::{User, run, text};
use crate::thread_approvals::write_gate;
use crate::thread_run::{
    FILES, command_with_model, newest_thread, spawn_with_model, threads, write_directive,
    write_note_directive,
};
use crate::tool_support::{RYE, eventually, write_function};
use crate::ui_support::{UiClient, UiServer};

const API: &str = include_str!("../../../../docs/ui/openapi.yaml");

fn description() -> Value {
    rye_item::yaml::parse(API).unwrap_or_else(|error| panic!("{error}")).value
}

fn resolve<'a>(api: &'a Value, schema: &'a Value) -> &'a Value {
    match schema.get("$ref").and_then(Value::as_str) {
        Some(path) => api.pointer(path.trim_start_matches('#')).unwrap_or_else(|| panic!("{path}")),
        None => schema,
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("unknown type {other}"),
    }
}

/// What of a value is not as its schema says.
fn problems(api: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let schema = resolve(api, schema);
    for part in schema["allOf"].as_array().into_iter().flatten() {
        problems(api, part, value, at, found);
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::String(name) => vec![name],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    if !types.is_empty() && !types.iter().any(|name| has_type(value, name)) {
        found.push(format!("{at}: {value} is not {types:?}"));
        return;
    }
    if let Some(words) = schema["enum"].as_array().filter(|words| !words.contains(value)) {
        found.push(format!("{at}: {value} is not one of {words:?}"));
    }
    if let Some(object) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                found.push(format!("{at}: {name} is missing"));
            }
        }
        for (name, part) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(value) = object.get(name) {
                problems(api, part, value, &format!("{at}.{name}"), found);
            }
        }
        if schema["additionalProperties"].is_object() {
            for (name, value) in object {
                problems(api, &schema["additionalProperties"], value, &format!("{at}.{name}"), found);
            }
        }
    }
    if let (Some(elements), true) = (value.as_array(), schema["items"].is_object()) {
        for (index, element) in elements.iter().enumerate() {
            problems(api, &schema["items"], element, &format!("{at}[{index}]"), found);
        }
    }
}

/// Compares an answer with what the description says of a request; `path` is as the description names it.
fn assert_described(api: &Value, method: &str, path: &str, answer: &Value) {
    let response = resolve(api, &api["paths"][path][method]["responses"]["200"]);
    let schema = &response["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{method} {path} is not described");
    let mut found = Vec::new();
    problems(api, schema, answer, path, &mut found);
    assert!(found.is_empty(), "{}\n{answer:#}", found.join("\n"));
}

fn row(list: &Value, thread: &str) -> Value {
    let columns = list["columns"].as_array().expect("columns");
    let rows = list["rows"].as_array().expect("rows");
    let row = rows.iter().find(|row| row[0] == thread).unwrap_or_else(|| panic!("{list}"));
    columns.iter().map(text).zip(row.as_array().expect("a row").iter().cloned()).collect()
}

#[test]
fn answers_are_as_described() {
    let user = User::initialized();
    write_gate(&user, "end");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let thread = newest_thread(&user);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let api = description();
    let mut checked = Vec::new();
    for (path, operations) in api["paths"].as_object().expect("paths") {
        if operations["get"].is_null() || path == "/events" {
            continue;
        }
        let question = path
            .replace("{thread}", &thread)
            .replace("{type}", "directive")
            .replace("{item}", "team/gate")
            .replace("{bundle}", "ryeos-core");
        let answer = client.get(&question);
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        checked.push(path.clone());
        if path.ends_with(".md") {
            assert!(answer.body.contains("team/gate"), "{answer:?}");
        } else if path.ends_with(".jsonl") {
            let lines = answer.body.lines().map(serde_json::from_str::<Value>);
            assert!(lines.collect::<Result<Vec<_>, _>>().expect("JSON").len() > 2);
        } else {
            assert_described(&api, "get", path, &answer.json());
        }
    }
    assert!(checked.len() >= 20, "{checked:?}");
    assert_described(&api, "post", "/session/code", &client.post("/session/code", &json!({})).json());
    for item in ["tool/rye/file-system/read", "tool/rye/code/nothing"] {
        let answer = client.get(&format!("/items/{item}"));
        if answer.status == 200 {
            assert_described(&api, "get", "/items/{type}/{item}", &answer.json());
            assert!(answer.data()["parameters"]["properties"]["path"].is_object(), "{answer:?}");
        } else {
            answer.assert_refused(404, "RYE0201");
        }
    }
    let unknown = client.get("/threads/thread-000000000000");
    let mut found = Vec::new();
    problems(&api, &api["components"]["schemas"]["Error"], &unknown.json(), "error", &mut found);
    assert_eq!((unknown.status, found), (404, Vec::new()));
}

#[test]
fn nothing_is_listed_before_the_first_thread() {
    let user = User::initialized();
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let api = description();
    for path in ["/threads", "/trees", "/approvals", "/cost"] {
        let answer = client.get(path);
        assert_described(&api, "get", path, &answer.json());
    }
    assert_eq!(client.data("/threads")["rows"], json!([]));
    client.get("/threads/thread-000000000000").assert_refused(404, "RYE1114");
    let mut stream = client.stream("");
    assert_eq!(stream.next().expect("a frame").event, "hello");
    // The first thread of the place is seen by streams that were open before.
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    stream.wait_for(|frame| frame.event == "reset" || frame.event == "threads");
    assert_eq!(client.data("/threads")["total"], 1);
}

#[test]
fn list_is_filtered_and_paged() {
    let user = User::initialized();
    write_note_directive(&user);
    for _ in 0..3 {
        user.ok(["run", "team/note"]);
    }
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=2"]).exit, 6);
    let stopped = newest_thread(&user);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let all = client.data("/threads");
    assert_eq!((&all["total"], &all["next"]), (&json!(4), &Value::Null));
    let row = row(&all, &stopped);
    assert_eq!((&row["status"], &row["attention"]), (&json!("suspended"), &json!(["approval"])), "{row}");
    assert_eq!(
        (&row["turns"], &row["max_turns"], &row["directive"]),
        (&json!(2), &json!(2), &json!("team/note"))
    );
    let first = client.data("/threads?limit=3");
    assert_eq!(first["rows"].as_array().map(Vec::len), Some(3));
    let second = client.data(&format!("/threads?limit=3&after={}", text(&first["next"])));
    assert_eq!((second["rows"].as_array().map(Vec::len), &second["next"]), (Some(1), &Value::Null));
    for (query, count) in [
        ("status=completed", 3),
        ("status=completed,suspended", 4),
        ("attention=true", 1),
        ("q=TEAM%2Fnote", 4),
        ("q=nothing", 0),
        ("directive=team/note", 4),
        ("roots=true", 4),
    ] {
        assert_eq!(client.data(&format!("/threads?{query}"))["total"], count, "{query}");
    }
    client.get("/threads?status=completed,asleep").assert_refused(400, "RYE0104");
}

fn question(client: &UiClient) -> Value {
    let open = client.data("/approvals")["approvals"].clone();
    assert_eq!(open.as_array().map(Vec::len), Some(1), "{open}");
    open[0].clone()
}

#[test]
fn answers_name_what_was_shown() {
    let user = User::initialized();
    write_gate(&user, "end");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let thread = newest_thread(&user);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let asked = question(&client);
    assert_eq!((&asked["what"], &asked["directive"]), (&json!("May I write?"), &json!("team/gate")));
    let path = format!("/approvals/{}", text(&asked["id"]));
    for digest in ["", "0", &"0".repeat(64)] {
        let answer = json!({"digest": digest, "approved": true});
        client.post(&path, &answer).assert_refused(409, "RYE1010");
    }
    assert_eq!(client.post(&path, &json!({"approved": true})).status, 400);
    client
        .post("/approvals/nothing", &json!({"digest": asked["digest"], "approved": true}))
        .assert_refused(404, "RYE1119");
    assert!(!user.context.project().join("out.txt").exists());
    let answer = json!({"digest": asked["digest"], "approved": true});
    let done = client.post(&path, &answer);
    assert_eq!(done.data()["resumed"], true, "{done:?}");
    assert_described(&description(), "post", "/approvals/{approval}", &done.json());
    // The same answer again, and another one, come too late.
    client.post(&path, &answer).assert_refused(409, "RYE1010");
    client.post(&path, &json!({"digest": asked["digest"], "approved": false})).assert_refused(409, "RYE1010");
    assert!(eventually(|| threads(&user)[0]["status"] == "completed"), "{:?}", threads(&user));
    assert_eq!(user.context.text("project/out.txt"), "hello");
    let detail = client.data(&format!("/threads/{thread}"));
    assert_eq!((&detail["status"], &detail["approvals"]), (&json!("completed"), &json!([])));
}

#[test]
fn denial_carries_its_reason() {
    let user = User::initialized();
    write_gate(&user, "end");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let thread = newest_thread(&user);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let asked = question(&client);
    let path = format!("/approvals/{}", text(&asked["id"]));
    let answer = json!({"digest": asked["digest"], "approved": false, "message": "not today", "end": true});
    let done = client.post(&path, &answer).data();
    assert_eq!((&done["approved"], &done["resumed"]), (&json!(false), &json!(false)));
    let detail = client.data(&format!("/threads/{thread}"));
    assert_eq!(detail["status"], "cancelled", "{detail}");
    let events = client.data(&format!("/threads/{thread}/transcript"))["events"].clone();
    assert!(events.to_string().contains("not today"), "{events}");
}

#[test]
fn suspended_threads_resume_fork_and_end() {
    let user = User::initialized();
    write_note_directive(&user);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=2"]).exit, 6);
    let thread = newest_thread(&user);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let detail = client.data(&format!("/threads/{thread}"));
    assert_eq!(detail["actions"], json!(["resume", "cancel", "fork"]));
    assert_eq!(detail["usage"][0], json!({"limit": "turns", "used": 2, "reserved": 0, "max": 2}));
    let path = |action: &str| format!("/threads/{thread}/{action}");
    client.post(&path("resume"), &json!({"limits": {"nothing": "1"}})).assert_refused(400, "RYE0104");
    let resumed = client.post(&path("resume"), &json!({"limits": {"turns": "+10"}}));
    assert_described(&description(), "post", "/threads/{thread}/resume", &resumed.json());
    let status = |id: &str| text(&client.data(&format!("/threads/{id}"))["status"]);
    assert!(eventually(|| status(&thread) == "completed"), "{}", status(&thread));
    client.post(&path("cancel"), &json!({})).assert_refused(409, "RYE1131");
    let forked = client.post(&path("fork"), &json!({"turn": 1}));
    assert_described(&description(), "post", "/threads/{thread}/fork", &forked.json());
    let fork = text(&forked.data()["thread_id"]);
    assert!(eventually(|| client.data("/threads")["total"] == 2));
    assert_eq!(client.data(&format!("/threads/{fork}"))["forked_from"]["thread_id"], json!(thread));
}

#[test]
fn resumed_threads_outlive_the_page() {
    let user = User::initialized();
    let gate = Gate::closed();
    let held = gate.clone();
    let model = FakeModel::start(move |seen| match seen.tool_results {
        0 => FakeReply::calls([("rye_file_system_write", json!({"path": "a.txt", "content": "a"}))]),
        _ => FakeReply::text("done").with_gate(&held),
    });
    write_directive(&user, "work", &format!("{FILES}<limits turns=\"1\"/>"), "", "Work.");
    assert_eq!(run(command_with_model(&user, &model).args(["run", "team/work"])).exit, 6);
    let thread = newest_thread(&user);
    let mut command = user.program(RYE);
    command.env("OPENAI_API_KEY", "sk-of-a-test-0123456789");
    command.env("OPENAI_BASE_URL", format!("{}/v1", model.url()));
    let mut server = UiServer::from_command(command, 0, &[]);
    let client = server.log_in();
    let path = format!("/threads/{thread}/resume");
    client
        .post(&path, &json!({"limits": {"turns": "none", "spend": "+much"}}))
        .assert_refused(400, "RYE0104");
    let resumed = client.post(&path, &json!({"limits": {"turns": "+5"}})).data();
    assert_ne!(resumed["pid"], json!(server.process.id()));
    model.wait_for_requests(2);
    server.stop();
    gate.open();
    assert!(eventually(|| threads(&user)[0]["status"] == "completed"), "{:?}", threads(&user));
}

#[test]
fn running_threads_are_cancelled() {
    let user = User::initialized();
    write_note_directive(&user);
    let model = FakeModel::start(|_| FakeReply::hang());
    let mut run = spawn_with_model(&user, &model, &["run", "team/note"]);
    model.wait_for_requests(1);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let thread = newest_thread(&user);
    assert_eq!(row(&client.data("/threads"), &thread)["status"], "running");
    let done = client.post(&format!("/threads/{thread}/cancel"), &json!({"reason": "enough"}));
    assert_described(&description(), "post", "/threads/{thread}/cancel", &done.json());
    assert_eq!(run.wait().expect("an end").code(), Some(7));
    assert_eq!(client.data(&format!("/threads/{thread}"))["status"], "cancelled");
}

#[test]
fn tools_run_with_parameters() {
    let user = User::initialized();
    write_function(&user, "double", "return {'twice': params['n'] * 2}");
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let done = client.post("/run", &json!({"type": "tool", "item_id": "rye/file-system/read", "parameters": {"path": ".ai/tools/team/double.py"}}));
    assert_described(&description(), "post", "/run", &done.json());
    assert!(done.body.contains("params"), "{done:?}");
    let wrong =
        client.post("/run", &json!({"type": "tool", "item_id": "rye/file-system/read", "parameters": {}}));
    assert_eq!(wrong.json()["status"], "error", "{wrong:?}");
    client.post("/run", &json!({"type": "tool", "item_id": "team/nothing"})).assert_refused(404, "RYE0201");
    client
        .post("/run", &json!({"type": "config", "item_id": "agent/budgets"}))
        .assert_refused(400, "RYE0108");
}

#[test]
fn directives_start_in_the_background() {
    let user = User::initialized();
    write_note_directive(&user);
    let server = UiServer::start(&user, &[]);
    let client = server.log_in();
    let started = client.post("/run", &json!({"type": "directive", "item_id": "team/note"}));
    let thread = text(&started.data()["thread_id"]);
    assert!(eventually(|| client.data(&format!("/threads/{thread}"))["status"] == "completed"));
}

#[test]
fn upgrades_show_what_they_would_change() {
    let (member, author) = (project_member("alice"), BundleAuthor::new());
    let repository = author.user.context.path().join("repository");
    publish_in_git(&author, &repository, "1.0.0", None);
    let source = format!("git+file://{}", repository.display());
    add(&member, &author, &source, &["--rev", "main", "--path", "bundle"]);
    author.write_tool("hi", "2");
    author.write_tool("new", "1");
    publish_in_git(&author, &repository, "1.1.0", None);
    let server = UiServer::start(&member.user, &[]);
    let client = server.log_in();
    let nothing = json!({"plans": [], "removals": [], "unchanged": []});
    assert_eq!(client.data("/upgrades"), nothing, "no source is asked");
    let rows = client.data("/bundles/outdated?ask=true")["bundles"].clone();
    assert_eq!((&rows[0]["installed"], &rows[0]["wanted"]), (&json!("1.0.0"), &json!("1.1.0")), "{rows}");
    let id = text(&rows[0]["bundle_id"]);
    let answer = client.get(&format!("/upgrades?ask=true&bundle={id}"));
    assert_described(&description(), "get", "/upgrades", &answer.json());
    let plan = answer.data()["plans"][0].clone();
    assert_eq!((&plan["previous_version"], &plan["version"]), (&json!("1.0.0"), &json!("1.1.0")), "{plan}");
    assert_eq!((&plan["counts"]["added"], &plan["counts"]["replaced"]), (&json!(1), &json!(1)), "{plan}");
    client.get("/upgrades?ask=true&bundle=none").assert_refused(404, "RYE0601");
    assert_eq!(member.data(["outdated"])["bundles"][0]["installed"], "1.0.0", "nothing was changed");
}
