//! Tools that call `rye` while a thread runs them: bound to the thread's grants, depth and budget, and to nothing else.

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::support::{User, differences, run, text};
use crate::thread_run::{command_with_model, newest_thread, spawn_with_model, threads, write_directive};

/// A shell tool `team/<name>` that does this, and tells it in `<name>.txt`.
fn write_script(user: &User, name: &str, metadata: &str, body: &str) {
    let head = format!(
        "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n# description: Is a tool\n{metadata}\n\nexec >>{name}.txt 2>&1\n"
    );
    user.write(&format!("tools/team/{name}.sh"), format!("{head}{body}\n"));
    user.ok(["sign", "tool", &format!("team/{name}")]);
}

/// What a tool told.
fn output_of(user: &User, name: &str) -> String {
    user.context.text(&format!("project/{name}.txt"))
}

const RISK_ACKNOWLEDGEMENT: &str = "<acknowledge risk=\"elevated\">a test</acknowledge>";

/// A directive that may do this, and calls these tools, one after the other.
fn write_calling_directive(user: &User, name: &str, execute: &str, tools: &[&str]) {
    let permissions =
        format!("<permissions><execute>{execute}</execute>{RISK_ACKNOWLEDGEMENT}</permissions>");
    let calls: String = tools
        .iter()
        .map(|tool| format!("<execute item_type=\"tool\" item_id=\"{tool}\"></execute>\n"))
        .collect();
    write_directive(user, name, &permissions, &format!("<process>\n{calls}</process>"), "Call them.");
}

/// The payloads of a thread's events of one type.
fn events_of(user: &User, id: &str, event_type: &str) -> Vec<Value> {
    let run = user.run(["--json", "thread", "transcript", id]);
    let events = run.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    events.filter(|event| event["event_type"] == event_type).map(|event| event["payload"].clone()).collect()
}

fn events(user: &User, event_type: &str) -> Vec<Value> {
    events_of(user, &newest_thread(user), event_type)
}

/// The exit codes and error codes among what was told.
fn exit_and_error_codes(output: &str) -> Vec<&str> {
    output
        .lines()
        .filter_map(|line| line.strip_prefix("exit ").or_else(|| line.split("error[").nth(1)?.get(..7)))
        .collect()
}

#[test]
fn tools_do_nothing_a_person_is_asked_about() {
    let user = User::initialized();
    let rules = "version: \"1.0.0\"\ncategory: agent\nrisk_levels:\n  write: {policy: approval_required}\n";
    user.context.write("home/.ai/config/agent/capability_risk.yaml", rules);
    user.ok(["sign", "config", "agent/capability_risk", "--space", "user"]);
    let body = "rye execute rye/file-system/write path=made.txt content=x; echo \"exit $?\"
        rye execute rye/file-system/ls path=.; echo \"exit $?\"";
    write_script(&user, "outer", "", body);
    let granted = "<tool>team.outer</tool><tool>rye.file-system.*</tool>";
    write_calling_directive(&user, "go", granted, &["team/outer"]);
    // The model's own call is asked about.
    assert_eq!(user.run(["run", "team/go"]).exit, 6);
    user.ok(["thread", "approve", &newest_thread(&user)]);
    let outer = output_of(&user, "outer");
    assert_eq!(exit_and_error_codes(&outer), ["RYE1121", "5", "0"], "{outer}");
    assert!(outer.contains("let the model call it itself"), "{outer}");
    assert!(!user.project().join("made.txt").exists());
    assert_eq!(events(&user, "permission_denied").len(), 1);
}

#[test]
fn tool_calls_only_granted_tools() {
    let user = User::initialized();
    write_script(
        &user,
        "inner",
        "# config_schema: {\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}}",
        "echo \"inner $RYE_PARAM_N\"",
    );
    write_script(&user, "other", "", "echo ran");
    let body = "rye --json execute team/inner n=7; echo \"exit $?\"
        rye execute team/other; echo \"exit $?\"
        rye search anything; echo \"exit $?\"
        rye keys list; echo \"exit $?\"
        rye --project / execute team/inner; echo \"exit $?\"
        rye explain RYE1126 >/dev/null; echo \"exit $?\"";
    write_script(&user, "outer", "", body);
    write_calling_directive(&user, "go", "<tool>team.outer</tool><tool>team.inner</tool>", &["team/outer"]);
    user.ok(["run", "team/go"]);
    let outer = output_of(&user, "outer");
    let expected = ["0", "RYE1121", "5", "RYE1121", "5", "RYE1126", "5", "RYE1126", "5", "0"];
    assert_eq!(exit_and_error_codes(&outer), expected, "{outer}");
    assert_eq!(output_of(&user, "inner"), "inner 7\n");
    assert!(!user.project().join("other.txt").exists());
    let requests = events(&user, "tool_request");
    let items: Vec<&Value> = requests.iter().map(|requests| &requests["action"]["item_id"]).collect();
    assert_eq!(items, [&json!("team/inner"), &json!("team/other"), &Value::Null], "{requests:?}");
    let denied = events(&user, "permission_denied");
    assert_eq!(denied.len(), 2, "{denied:?}");
    assert_eq!((&denied[0]["asker"], &denied[0]["denied_item_id"]), (&json!("tool"), &json!("team/other")));
    assert_eq!(events(&user, "tool_request_result").len(), 1);
    let verified = user.data(["thread", "verify", &newest_thread(&user)]);
    assert!(verified.to_string().contains("valid"), "{verified}");
}

#[test]
fn model_called_tool_has_a_callback() {
    let user = User::initialized();
    write_script(&user, "inner", "", "echo inner");
    write_script(&user, "outer", "", "rye execute team/inner; rye execute team/other");
    write_calling_directive(&user, "go", "<tool>team.outer</tool><tool>team.inner</tool>", &[]);
    let model = FakeModel::start(|request| match request.tool_results {
        0 => FakeReply::calls([("team_outer", json!({}))]),
        _ => FakeReply::text("done"),
    });
    let result = run(command_with_model(&user, &model).args(["run", "team/go"]));
    assert_eq!(result.exit, 0, "{result}");
    assert_eq!(output_of(&user, "inner"), "inner\n");
    assert_eq!(events(&user, "permission_denied")[0]["denied_item_id"], "team/other");
}

#[test]
fn declared_grants_limit_nested_calls() {
    let user = User::initialized();
    write_script(&user, "leaf", "", "echo leaf");
    write_script(&user, "middle", "", "rye execute team/leaf; echo \"exit $?\"");
    let declared =
        "# sandbox: {\"grants\": [\"rye.execute.tool.team.middle\", \"rye.execute.tool.elsewhere.*\"]}";
    write_script(
        &user,
        "outer",
        declared,
        "rye execute team/middle; rye execute team/leaf; echo \"exit $?\"",
    );
    write_calling_directive(&user, "go", "<tool>team.*</tool>", &["team/outer", "team/middle"]);
    user.ok(["run", "team/go"]);
    assert_eq!(exit_and_error_codes(&output_of(&user, "outer")).last(), Some(&"5"));
    // Below `outer` it may not, called by the thread itself it may.
    assert_eq!(
        exit_and_error_codes(&output_of(&user, "middle")),
        ["RYE1121", "5", "0"],
        "{}",
        output_of(&user, "middle")
    );
    assert_eq!(output_of(&user, "leaf"), "leaf\n");
}

#[test]
fn invalid_grants_refuse_the_tool() {
    let user = User::initialized();
    write_script(&user, "outer", "# sandbox: {\"grants\": [\"everything\"]}", "echo ran");
    write_calling_directive(&user, "go", "<tool>team.*</tool>", &["team/outer"]);
    user.run(["run", "team/go"]);
    assert!(!user.project().join("outer.txt").exists());
    let result = events(&user, "tool_call_result").remove(0);
    assert!(text(&result["error"]).contains("sandbox.grants"), "{result}");
}

#[test]
fn nested_tool_calls_stop_at_depth_limit() {
    let user = User::initialized();
    write_script(&user, "again", "", "echo again; rye execute team/again");
    write_calling_directive(&user, "go", "<tool>team.again</tool>", &["team/again"]);
    // The innermost call is refused, and so each of them fails.
    let result = user.run(["run", "team/go", "--limit", "depth=3"]);
    assert_eq!(result.exit, 1, "{result}");
    let again = output_of(&user, "again");
    assert_eq!(again.matches("again\n").count(), 3, "{again}");
    assert!(again.contains("RYE1132") && again.contains("at most 3 deep"), "{again}");
}

#[test]
fn tool_started_thread_is_a_charged_child() {
    let user = User::initialized();
    write_script(
        &user,
        "outer",
        "",
        "rye run team/child word=hello; echo \"exit $?\"; rye run team/unknown; echo \"exit $?\"",
    );
    let inputs = "<inputs><input name=\"word\" type=\"string\" required=\"true\">A word</input></inputs>";
    write_directive(&user, "child", "", inputs, "Say {input:word}.");
    let execute = "<tool>team.outer</tool><directive>team.child</directive>";
    write_calling_directive(&user, "go", execute, &[]);
    let model = FakeModel::start(|request| {
        match (request.body.to_string().contains("Say hello"), request.tool_results) {
            (true, _) => FakeReply::text("from the child").with_usage(1000, 0, 100),
            (false, 0) => FakeReply::calls([("team_outer", json!({}))]).with_usage(1000, 0, 100),
            (false, _) => FakeReply::text("done").with_usage(1000, 0, 100),
        }
    });
    let result = run(command_with_model(&user, &model).args(["run", "team/go"]));
    assert_eq!(result.exit, 0, "{result}");
    let outer = output_of(&user, "outer");
    assert!(outer.starts_with("from the child\nexit 0\n"), "{outer}");
    assert_eq!(exit_and_error_codes(&outer), ["0", "RYE1121", "5"], "{outer}");
    let rows = threads(&user);
    assert_eq!(rows.len(), 2, "{rows:?}");
    let of = |name: &str| rows.iter().find(|row| row["directive"] == name).expect("a thread").clone();
    let (parent, child) = (of("team/go"), of("team/child"));
    assert_eq!(child["parent_thread_id"], parent["thread_id"]);
    let spend = |row: &Value, key: &str| row[key].as_f64().expect("money");
    assert!(spend(&child, "spend") > 0.0, "{child}");
    let sum = spend(&parent, "spend") + spend(&child, "spend");
    assert!((spend(&parent, "subtree_spend") - sum).abs() < 1e-9, "{parent} {child}");
    let id = text(&parent["thread_id"]);
    let started = events_of(&user, &id, "child_thread_started");
    assert_eq!(started[0]["child_thread_id"], child["thread_id"]);
    assert_eq!(events_of(&user, &id, "child_thread_finished")[0]["child_thread_id"], child["thread_id"]);
    // A spawn that the limits refuse is an answer, and no thread.
    let result = run(command_with_model(&user, &model).args(["run", "team/go", "--limit", "spawns=0"]));
    assert_eq!(result.exit, 0, "{result}");
    assert_eq!(threads(&user).len(), 3);
    assert!(output_of(&user, "outer").contains("RYE1132"), "{}", output_of(&user, "outer"));
}

#[test]
fn forged_or_reused_token_is_refused() {
    let user = User::initialized();
    write_script(&user, "inner", "", "echo ran");
    let keeps = "cat /dev/fd/$RYE_TOKEN_FD > kept; sed 's/\"expires_ms\":[0-9]*/\"expires_ms\":9999999999999/' kept > longer
        with() { exec 9<\"$1\"; RYE_TOKEN_FD=9 rye execute team/inner; echo \"exit $?\"; }
        with longer; with /dev/null; echo nonsense > nonsense; with nonsense
        cp kept first";
    write_script(&user, "keeps", "", keeps);
    write_script(&user, "uses", "", "exec 9<first; RYE_TOKEN_FD=9 rye execute team/inner; echo \"exit $?\"");
    write_calling_directive(&user, "go", "<tool>team.*</tool>", &["team/keeps", "team/uses"]);
    write_calling_directive(&user, "later", "<tool>team.*</tool>", &["team/uses"]);
    user.ok(["run", "team/go"]);
    let keeps = output_of(&user, "keeps");
    assert!(keeps.contains("it was changed or forged"), "{keeps}");
    assert_eq!(exit_and_error_codes(&keeps), ["RYE1127", "5", "RYE1126", "5", "RYE1127", "5"], "{keeps}");
    assert!(
        output_of(&user, "uses").contains("it was given to another call"),
        "{}",
        output_of(&user, "uses")
    );
    let denied = events(&user, "permission_denied");
    assert_eq!(denied.iter().filter(|denied| denied["code"] == "RYE1127").count(), 3, "{denied:?}");
    user.ok(["run", "team/later"]);
    assert!(
        output_of(&user, "uses").contains("it belongs to another thread"),
        "{}",
        output_of(&user, "uses")
    );
    assert!(!user.project().join("inner.txt").exists());
}

#[test]
fn rye_in_sandbox_needs_a_token() {
    let user = User::initialized();
    write_script(&user, "inner", "", "echo inner");
    let rye = crate::tool_support::RYE;
    let commands = [
        "sign tool team/inner",
        "run team/child",
        "keys generate",
        "keys revoke 0000000000000000",
        "init",
        "trust /",
        "trust --revoke .",
        "lock update team/inner",
        "thread prune --yes --older-than 0",
        "thread approve 0a1b",
        "load tool rye/bash --to user",
        "bundle disable ryeos",
    ];
    let each: String = commands.iter().map(|words| format!("\"$RYE\" {words}\n")).collect();
    write_script(
        &user,
        "plain",
        "",
        &format!(
            "RYE={rye}; \"$RYE\" execute team/inner; echo \"exit $?\"; \"$RYE\" --help >/dev/null; echo \"exit $?\""
        ),
    );
    let hides = format!(
        "RYE={rye}; unset RYE_SANDBOX RYE_TOKEN_FD RYE_DOOR_FD\n{each}cat ~/.ai/config/keys/signing/private_key.pem; echo told"
    );
    write_script(&user, "hides", "", &hides);
    write_directive(&user, "child", "", "", "Say hello.");
    write_calling_directive(&user, "go", "<tool>team.hides</tool>", &["team/hides"]);
    user.ok(["execute", "team/plain"]);
    assert_eq!(
        exit_and_error_codes(&output_of(&user, "plain")),
        ["RYE1126", "5", "0"],
        "{}",
        output_of(&user, "plain")
    );
    assert!(!user.project().join("inner.txt").exists());
    // Once before: what a first run pins and makes is there.
    user.ok(["run", "team/go"]);
    let before = user.snapshot();
    user.ok(["run", "team/go"]);
    let changed = differences(&before, &user.snapshot());
    let foreign: Vec<&String> = changed
        .iter()
        .filter(|path| {
            !path.contains("/.ai/threads") && !path.ends_with("/project") && !path.contains("hides.txt")
        })
        .filter(|path| !path.ends_with("/.ai"))
        // How far the store has come is the thread's own record.
        .filter(|path| !path.contains("/signing/thread_heads"))
        .collect();
    assert_eq!(foreign, Vec::<&String>::new(), "{}", output_of(&user, "hides"));
    let hides = output_of(&user, "hides");
    assert!(hides.ends_with("told\n") && !hides.contains("PRIVATE KEY"), "{hides}");
    assert_eq!(threads(&user).len(), 2, "no thread but its own");
}

#[test]
fn strict_offline_tool_reaches_its_thread() {
    let user = User::initialized();
    write_script(&user, "inner", "", "echo inner");
    let strict = "# sandbox: {\"level\": \"strict\", \"network\": false, \"read\": [\"{project_path}\"], \"write\": [\"{project_path}\"]}";
    write_script(&user, "outer", strict, "\"$RYE_PROGRAM\" execute team/inner; echo \"exit $?\"");
    write_calling_directive(&user, "go", "<tool>team.*</tool>", &["team/outer"]);
    user.ok(["run", "team/go"]);
    assert_eq!(
        (output_of(&user, "outer").contains("exit 0"), output_of(&user, "inner").as_str()),
        (true, "inner\n"),
        "{}",
        output_of(&user, "outer")
    );
}

#[test]
fn concurrent_callbacks_are_served() {
    let user = User::initialized();
    write_script(
        &user,
        "inner",
        "# config_schema: {\"type\": \"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}}",
        "echo inner",
    );
    let body = "for n in $(seq 1 6); do rye execute team/inner n=$n & done; wait
        python3 -c \"import subprocess; subprocess.run(['rye', 'execute', 'team/inner'])\"
        python3 -c \"import subprocess; subprocess.run(['rye', 'execute', 'team/inner'], close_fds=False)\"";
    write_script(&user, "outer", "", body);
    write_calling_directive(&user, "go", "<tool>team.*</tool>", &["team/outer"]);
    user.ok(["run", "team/go"]);
    assert_eq!(output_of(&user, "inner").lines().count(), 7, "{}", output_of(&user, "outer"));
    let outer = output_of(&user, "outer");
    assert!(outer.contains("RYE1126") && outer.contains("close_fds=False"), "{outer}");
}

#[test]
fn disconnected_callback_client_cancels_its_call() {
    let user = User::initialized();
    write_script(&user, "inner", "", "echo began; sleep 600; echo ended");
    write_script(
        &user,
        "outer",
        "",
        "rye execute team/inner & until grep -q began inner.txt 2>/dev/null; do :; done; kill $!; wait; echo over",
    );
    write_calling_directive(&user, "go", "<tool>team.*</tool>", &["team/outer"]);
    user.ok(["run", "team/go"]);
    assert_eq!(output_of(&user, "inner"), "began\n");
    assert!(output_of(&user, "outer").ends_with("over\n"));
    assert_eq!(events(&user, "tool_request_result")[0]["is_error"], true);
}

#[test]
fn tool_uses_mcp_through_the_callback() {
    let user = User::initialized();
    write_script(&user, "inner", "", "echo '{\"said\": \"inner\"}'");
    let lines = [
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}),
        json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "rye_execute", "arguments": {"item_id": "tool:team/inner"}}}),
        json!({"jsonrpc": "2.0", "id": 3, "method": "tools/call", "params": {"name": "rye_execute", "arguments": {"item_id": "tool:team/other"}}}),
        json!({"jsonrpc": "2.0", "id": 4, "method": "prompts/list"}),
    ];
    // One request after the other: answers may overtake each other.
    let script_of = "import json, subprocess, sys
rye = subprocess.Popen(['rye', 'mcp'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, close_fds=False)
for line in open('lines.jsonl'):
    rye.stdin.write(line); rye.stdin.flush()
    if '\"id\"' in line: print(rye.stdout.readline().strip(), flush=True)
rye.stdin.close(); rye.wait()";
    user.context.write("project/talk.py", script_of);
    let text_of: String = lines.iter().map(|line| format!("{line}\n")).collect();
    user.context.write("project/lines.jsonl", text_of);
    write_script(&user, "outer", "", "python3 talk.py");
    write_calling_directive(&user, "go", "<tool>team.outer</tool><tool>team.inner</tool>", &["team/outer"]);
    user.ok(["run", "team/go"]);
    let outer = output_of(&user, "outer");
    let answers: Vec<Value> = outer.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(answers.len(), 4, "{outer}");
    assert_eq!(answers[0]["result"]["capabilities"], json!({"tools": {}}), "{outer}");
    assert_eq!(answers[1]["result"]["structuredContent"]["status"], "success", "{outer}");
    assert_eq!(answers[2]["result"]["structuredContent"]["code"], "RYE1121", "{outer}");
    assert_eq!(answers[2]["result"]["isError"], true, "{outer}");
    assert!(answers[3]["error"].is_object(), "{outer}");
}

#[test]
fn cancel_ends_tool_and_awaited_child() {
    let user = User::initialized();
    write_script(&user, "outer", "", "rye run team/child; echo over");
    write_directive(&user, "child", "", "", "Be the child.");
    write_calling_directive(&user, "go", "<tool>team.outer</tool><directive>team.child</directive>", &[]);
    let model = FakeModel::start(|request| match request.body.to_string().contains("Be the child") {
        true => FakeReply::hang(),
        false => FakeReply::calls([("team_outer", json!({}))]),
    });
    let mut parent = spawn_with_model(&user, &model, &["run", "team/go"]);
    model.wait_for_requests(2);
    let rows = threads(&user);
    let row = rows.iter().find(|row| row["directive"] == "team/go").expect("a thread");
    user.ok(["thread", "cancel", &text(&row["thread_id"])]);
    assert_eq!(parent.wait().expect("an end").code(), Some(7));
    let ends: Vec<Value> = threads(&user).iter().map(|row| row["status"].clone()).collect();
    assert_eq!(ends, ["cancelled", "cancelled"]);
    assert_eq!(output_of(&user, "outer"), "");
}

/// Writes to the callback channel itself, with the right token and the wrong words.
const HOSTILE_CLIENT: &str = r#"
import json, os, socket, struct
token = os.pread(int(os.environ['RYE_TOKEN_FD']), 4096, 0)
channel = socket.socket(fileno=os.dup(int(os.environ['RYE_DOOR_FD'])))
def connect(words, fds):
    socket.send_fds(channel, [words], fds)
def visit():
    own, other = socket.socketpair()
    connect(token, [other.fileno()])
    other.close()
    own.settimeout(60)
    return own
def ask(own, value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    own.sendall(struct.pack('>I', len(text)) + text)
    head = own.recv(4)
    if len(head) < 4: return 'closed'
    size, body = struct.unpack('>I', head)[0], b''
    while len(body) < size: body += own.recv(size - len(body))
    return json.loads(body).get('code') or json.loads(body)['status']
null = os.open('/dev/null', os.O_RDONLY)
for fds in [[], [null], [null, null, null]]: connect(token, fds)
connect(b'x' * 100, [null])
for raw in [b'\xff\xff\xff\xff', b'\0\0', b'\0\0\0\7{']:
    own = visit(); own.sendall(raw); own.shutdown(socket.SHUT_WR); print('raw', own.recv(10))
for bad in [b'nonsense', b'[' * 5000]: print('bad', ask(visit(), bad))
one = visit()
internal = 'rye/agent/threads/internal/control'
for action in [1, [], {}, {'primary': 'delete'}, {'item_id': '../../etc/passwd'}, {'item_id': internal}, {'item_id': 'team/other'},
               {'item_id': 'team/inner', 'thread': 'fork'}, {'item_type': 'config', 'item_id': 'config'}]:
    print('ask', ask(one, {'action': action}))
print('kept', [ask(one, {'action': 1}) for _ in range(1000)][-1])
"#;

#[test]
fn thread_survives_a_hostile_callback_client() {
    let user = User::initialized();
    write_script(&user, "inner", "", "echo inner");
    user.context.write("project/hostile.py", HOSTILE_CLIENT);
    write_script(&user, "outer", "", "python3 hostile.py");
    write_script(&user, "after", "", "rye execute team/inner");
    write_calling_directive(
        &user,
        "go",
        "<tool>team.outer</tool><tool>team.after</tool><tool>team.inner</tool>",
        &["team/outer", "team/after"],
    );
    user.ok(["run", "team/go"]);
    let outer = output_of(&user, "outer");
    let of = |word: &str| -> Vec<String> {
        let lines = outer.lines().filter_map(|line| line.strip_prefix(word));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    assert_eq!(of("raw"), ["b''"; 3], "{outer}");
    assert_eq!(of("bad"), ["closed"; 2], "{outer}");
    let expected =
        ["RYE1125", "RYE1125", "RYE1125", "RYE1125", "RYE1125", "RYE1121", "RYE1121", "RYE0104", "RYE1125"];
    assert_eq!(of("ask"), expected, "{outer}");
    assert_eq!(of("kept"), ["RYE1132"], "one call asks so often, and no more: {outer}");
    assert_eq!(output_of(&user, "inner"), "inner\n");
}
