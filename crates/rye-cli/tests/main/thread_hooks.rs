//! Hooks around calls, from outside: in the thread, in its children, around what tools ask for, and after a kill.

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::support::{User, run, text};
use crate::thread_run::{command_with_model, newest_thread, spawn_with_model, threads, write_directive};
use crate::tool_support::{function_text, write_signed_tool};

const GRANTS: &str = "<permissions><execute><tool>rye.file-system.*</tool><tool>team.*</tool><tool>rye.agent.threads.thread_directive</tool><directive>team.*</directive></execute><acknowledge risk=\"elevated\">a test</acknowledge></permissions>";

/// A hook of a directive that asks the tool `team/policy` about every call of an item.
fn policy_hook(event: &str, item: &str) -> String {
    format!(
        "<hooks><hook id=\"policy\" event=\"{event}\"><condition path=\"item\" op=\"eq\" value=\"{item}\"/>\
         <action primary=\"execute\" item_type=\"tool\" item_id=\"team/policy\"><param name=\"call\">${{event}}</param></action></hook></hooks>"
    )
}

/// The tool `team/policy`, which counts its runs in `policy.txt` and does this.
fn write_policy(user: &User, body: &str) {
    let schema = "CONFIG_SCHEMA = {\"type\": \"object\", \"properties\": {\"call\": {\"type\": \"object\"}}}";
    let count = "open(project_path + '/policy.txt', 'a').write('ran\\n')\ncall = params.get('call') or {}\n";
    write_signed_tool(user, "team/policy", "py", &function_text(schema, &format!("{count}{body}")));
}

/// Gives hooks around calls ten minutes instead of half a minute: each starts a tool in a sandbox.
fn allow_slow_hooks(user: &User) {
    user.write_user(
        "config/agent/resilience.yaml",
        "version: \"1.0.0\"\ncategory: agent\nname: resilience\nhooks:\n  call_timeout_seconds: 600\n",
    );
    user.ok(["sign", "config", "agent/resilience", "--space", "user"]);
}

fn policy_runs(user: &User) -> usize {
    std::fs::read_to_string(user.project().join("policy.txt")).unwrap_or_default().lines().count()
}

fn events(user: &User, id: &str, event_type: &str) -> Vec<Value> {
    let run = user.run(["--json", "thread", "transcript", id]);
    let events = run.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
    events.filter(|event| event["event_type"] == event_type).map(|event| event["payload"].clone()).collect()
}

fn thread_of(user: &User, directive: &str) -> String {
    let row = threads(user).into_iter().find(|row| row["directive"] == directive).expect("a thread");
    text(&row["thread_id"])
}

fn write_call(path: &str) -> FakeReply {
    FakeReply::calls([("rye_file_system_write", json!({"path": path, "content": "x"}))])
}

#[test]
fn parent_hooks_hold_for_its_children() {
    let user = User::initialized();
    allow_slow_hooks(&user);
    write_policy(
        &user,
        "path = call['arguments']['path']\nif path == 'secret.txt':\n    return {'call': {'block': 'not at depth %d' % call['depth']}}\nreturn {'call': {'arguments': {'path': 'safe.txt', 'content': 'y'}}}",
    );
    // The child may not run the policy itself: it runs on what the parent may do.
    let child_grants = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>";
    write_directive(&user, "child", child_grants, "", "Be the child.");
    let hooks = policy_hook("before_tool", "rye/file-system/write");
    write_directive(&user, "parent", &format!("{GRANTS}{hooks}"), "", "Be the parent.");
    let model = FakeModel::start(|seen| {
        let results = seen.tool_result_texts();
        match (seen.body.to_string().contains("Be the child."), results.len()) {
            (false, 0) => FakeReply::calls([(
                "rye_agent_threads_thread_directive",
                json!({"directive_name": "team/child"}),
            )]),
            (false, _) => FakeReply::text("done"),
            (true, 0) => write_call("secret.txt"),
            (true, 1) => write_call("other.txt"),
            (true, _) => FakeReply::text("child done"),
        }
    });
    let output = run(command_with_model(&user, &model).args(["run", "team/parent"]));
    assert_eq!(output.exit, 0, "{output}");
    assert!(!user.project().join("secret.txt").exists() && !user.project().join("other.txt").exists());
    assert_eq!(user.context.text("project/safe.txt"), "y");
    let child = thread_of(&user, "team/child");
    let blocked = events(&user, &child, "tool_call_blocked");
    assert_eq!((&blocked[0]["hook"], &blocked[0]["reason"]), (&json!("policy"), &json!("not at depth 1")));
    let changed = events(&user, &child, "tool_call_changed");
    assert_eq!(changed[0]["original"]["path"], "other.txt");
    assert_eq!(changed[0]["arguments"]["path"], "safe.txt");
    let is_read = model
        .requests()
        .iter()
        .any(|request| request.body.to_string().contains("blocked by the hook `policy`: not at depth 1"));
    assert!(is_read, "the model reads the reason");
    assert_eq!(user.data(["thread", "verify", &child])["valid"], 1);
}

/// A program before a call says yes with one object and nothing else: what it prints besides may be the rest of a no.
#[test]
fn answers_of_programs_are_read_as_a_whole() {
    let user = User::initialized();
    allow_slow_hooks(&user);
    let hooks = policy_hook("before_tool", "rye/file-system/write")
        .replace("<param name=\"call\">${event}</param>", "");
    write_directive(&user, "go", &format!("{GRANTS}{hooks}"), "", "Write a file.");
    let model = FakeModel::start(|seen| match seen.tool_result_texts().len() {
        0 => write_call("a.txt"),
        _ => FakeReply::text("done"),
    });
    let block = "{\"call\": {\"block\": \"no\"}}";
    let cases = [
        ("{}".to_owned(), true),
        ("{}\nTraceback: cannot read the rules".to_owned(), false),
        ("warning: x\n{}".to_owned(), false),
        (format!("{{}}\n{block}"), false),
        (format!("{block}\n{{}}"), false),
        (format!("{block}\nbye"), false),
        ("{}\n{\"call\": {\"block\": \"n".to_owned(), false),
        ("{\"status\": \"error\", \"error\": \"x\"}".to_owned(), false),
    ];
    for (printed, is_made) in cases {
        let text = format!(
            "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n\
             # description: p\n\ncat <<'END'\n{printed}\nEND\n"
        );
        write_signed_tool(&user, "team/policy", "sh", &text);
        user.run(["lock", "update", "team/policy"]);
        let output = run(command_with_model(&user, &model).args(["run", "team/go"]));
        let file = user.project().join("a.txt");
        assert_eq!(file.exists(), is_made, "{printed}: {output}");
        if is_made {
            std::fs::remove_file(&file).expect("removed");
        }
    }
}

#[test]
fn killed_thread_repeats_no_committed_hook() {
    let user = User::initialized();
    allow_slow_hooks(&user);
    write_policy(&user, "return {'call': {'note': 'seen'}}");
    let hooks = policy_hook("before_tool", "rye/file-system/write");
    write_directive(&user, "go", &format!("{GRANTS}{hooks}"), "", "Write a file.");
    let model = FakeModel::start(|seen| match seen.number {
        1 => write_call("a.txt"),
        2 => FakeReply::hang(),
        _ => FakeReply::text("done"),
    });
    let mut running = spawn_with_model(&user, &model, &["run", "team/go"]);
    model.wait_for_requests(2);
    running.kill().expect("killed");
    running.wait().expect("an end");
    let id = newest_thread(&user);
    let output = run(command_with_model(&user, &model).args(["thread", "resume", &id]));
    assert_eq!(output.exit, 0, "{output}");
    assert_eq!(policy_runs(&user), 1);
    let last = model.requests().pop().expect("a request").body.to_string();
    assert!(last.contains("seen"), "the note is part of what was said: {last}");
    assert_eq!(events(&user, &id, "hook_note").len(), 1);
}

#[test]
fn slow_hook_before_call_blocks_it() {
    let user = User::initialized();
    user.write(
        "config/agent/resilience.yaml",
        "version: \"1.0.0\"\ncategory: agent\nname: resilience\nhooks:\n  call_timeout_seconds: 0.5\n",
    );
    user.ok(["sign", "config", "agent/resilience"]);
    write_policy(&user, "import time\ntime.sleep(600)");
    let hooks = policy_hook("before_tool", "rye/file-system/write");
    write_directive(&user, "go", &format!("{GRANTS}{hooks}"), "", "Write a file.");
    let model = FakeModel::start(|seen| match seen.number {
        1 => write_call("a.txt"),
        _ => FakeReply::text("done"),
    });
    let output = run(command_with_model(&user, &model).args(["run", "team/go"]));
    assert_eq!(output.exit, 0, "{output}");
    assert!(!user.project().join("a.txt").exists());
    let failed = events(&user, &newest_thread(&user), "hook_failed");
    assert!(text(&failed[0]["error"]).contains("it took longer than"), "{failed:?}");
}

#[test]
fn hooks_replace_results_and_review_answers() {
    let user = User::initialized();
    user.write("../numbers.txt", "card 4111");
    let control = |params: &str| {
        format!(
            "action: {{primary: execute, item_type: tool, item_id: rye/agent/threads/internal/control, params: {{{params}}}}}"
        )
    };
    let hooks = format!(
        "version: \"1.0.0\"\ncategory: agent\nname: hooks\nhooks:\n  - id: mask\n    event: after_tool\n    condition: {{path: result, op: contains, value: \"4111\"}}\n    {}\n  - id: review\n    event: after_model\n    condition: {{all: [{{path: is_final, op: eq, value: true}}, {{path: text, op: eq, value: early}}]}}\n    {}\n  - id: date\n    event: before_model\n    condition: {{path: cost.turns, op: eq, value: 0}}\n    {}\n",
        control("action: continue, result: masked"),
        control("action: block, error: not yet"),
        control("action: continue, note: It is Friday."),
    );
    user.write("config/agent/hooks.yaml", hooks);
    user.ok(["sign", "config", "agent/hooks"]);
    write_directive(&user, "go", GRANTS, "", "Read a file.");
    let model = FakeModel::start(|seen| match seen.number {
        1 => FakeReply::calls([("rye_file_system_read", json!({"path": "numbers.txt"}))]),
        2 => FakeReply::text("early"),
        _ => FakeReply::text("late"),
    });
    let output = run(command_with_model(&user, &model).args(["run", "team/go"]));
    assert_eq!((output.exit, output.stdout.as_str()), (0, "late\n"), "{output}");
    let requests: Vec<String> = model.requests().iter().map(|request| request.body.to_string()).collect();
    assert!(requests[0].contains("It is Friday."), "{}", requests[0]);
    assert!(requests.iter().all(|request| !request.contains("4111")) && requests[1].contains("masked"));
    assert!(requests[2].contains("blocked by the hook `review`: not yet"), "{}", requests[2]);
    let id = newest_thread(&user);
    assert!(
        text(&events(&user, &id, "tool_call_result")[0]["output"]).contains("4111"),
        "the original stays"
    );
    assert_eq!(events(&user, &id, "tool_result_changed")[0]["output"], "masked");
}

#[test]
fn hooks_hold_for_what_tools_ask_for() {
    let user = User::initialized();
    allow_slow_hooks(&user);
    let head = "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n# description: Is a tool\n";
    for (name, body) in
        [("inner", "echo ran >inner.txt"), ("outer", "rye execute team/inner >outer.txt 2>&1; true")]
    {
        user.write(&format!("tools/team/{name}.sh"), format!("{head}\n{body}\n"));
        user.ok(["sign", "tool", &format!("team/{name}")]);
    }
    write_policy(&user, "return {'call': {'block': 'asked by a ' + call['caller']}}");
    let hooks = policy_hook("before_tool", "team/inner");
    let process = "<process><execute item_type=\"tool\" item_id=\"team/outer\"></execute></process>";
    write_directive(&user, "go", &format!("{GRANTS}{hooks}"), process, "Call it.");
    user.ok(["run", "team/go"]);
    let outer = user.context.text("project/outer.txt");
    assert!(outer.contains("blocked by the hook `policy`: asked by a tool"), "{outer}");
    assert!(!user.project().join("inner.txt").exists());
    let denied = events(&user, &newest_thread(&user), "permission_denied");
    assert_eq!(denied.len(), 1, "{denied:?}");
}

#[test]
fn hooks_see_words_of_tools_requests() {
    let user = User::initialized();
    allow_slow_hooks(&user);
    let head = "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# category: team\n# description: Is a tool\n";
    let schema =
        "# config_schema: {\"type\": \"object\", \"properties\": {\"text\": {\"type\": \"string\"}}}\n";
    let calls = ["text=secret", "text=fine", "--params '{\"text\": \"fine\"}' text=secret"]
        .map(|words| format!("rye execute team/inner {words} >>outer.txt 2>&1"));
    for (name, text) in [
        ("inner", format!("{head}{schema}\necho \"$RYE_PARAM_TEXT\" >>inner.txt\n")),
        ("outer", format!("{head}\n{}\ntrue\n", calls.join("\n"))),
    ] {
        user.write(&format!("tools/team/{name}.sh"), text);
        user.ok(["sign", "tool", &format!("team/{name}")]);
    }
    write_policy(
        &user,
        "return {'call': {'block': 'off limits'} if call['arguments'].get('text') == 'secret' else {}}",
    );
    let hooks = policy_hook("before_tool", "team/inner");
    let process = "<process><execute item_type=\"tool\" item_id=\"team/outer\"></execute></process>";
    write_directive(&user, "go", &format!("{GRANTS}{hooks}"), process, "Call it.");
    user.ok(["run", "team/go"]);
    let outer = user.context.text("project/outer.txt");
    assert_eq!(outer.matches("off limits").count(), 2, "{outer}");
    assert_eq!(user.context.text("project/inner.txt"), "fine\n");
}

#[test]
fn policy_answer_with_duplicate_key_blocks() {
    let schema =
        "# config_schema: {\"type\": \"object\", \"properties\": {\"call\": {\"type\": \"object\"}}}\n";
    let head = format!(
        "# version: 1.0.0\n# tool_type: shell\n# executor_id: rye/core/runtimes/bash/bash\n# name: policy\n# category: team\n# description: Is a policy\n{schema}\n"
    );
    for (answer, is_made) in [
        (r#"{"call":{}}"#, true),
        (r#"{"call":{"block":"no"},"call":{}}"#, false),
        (r#"{"call":{"note":"a"},"rows":[{"a":1,"a":1}]}"#, false),
    ] {
        let user = User::initialized();
        allow_slow_hooks(&user);
        user.write("tools/team/policy.sh", format!("{head}printf '%s\\n' '{answer}'\n"));
        user.ok(["sign", "tool", "team/policy"]);
        let hooks = policy_hook("before_tool", "rye/file-system/write");
        let process = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"out.txt\"/><param name=\"content\" value=\"x\"/></execute></process>";
        write_directive(&user, "go", &format!("{GRANTS}{hooks}"), process, "Call it.");
        let run = user.run(["run", "team/go"]);
        assert_eq!(user.project().join("out.txt").exists(), is_made, "{answer}: {run}");
        let blocked = events(&user, &newest_thread(&user), "tool_call_blocked");
        let reasons: Vec<String> = blocked.iter().map(|event| text(&event["reason"])).collect();
        assert_eq!(reasons.is_empty(), is_made, "{answer}: {run}");
        assert!(reasons.iter().all(|reason| reason.contains("duplicate key `")), "{answer}: {reasons:?}");
    }
}

#[test]
fn project_items_replace_none_of_users_hooks() {
    for (item, space_of_hook) in [("rye/agent/threads/internal/control", "system"), ("team/policy", "user")] {
        let user = User::initialized();
        allow_slow_hooks(&user);
        let params = "{action: block, error: MINE}";
        user.write_user(
            "config/agent/hooks.yaml",
            format!(
                "version: \"1.0.0\"\ncategory: agent\nname: hooks\nhooks:\n  - id: guard\n    event: before_tool\n    \
                 action: {{primary: execute, item_type: tool, item_id: {item}, params: {params}}}\n    \
                 grants: [rye.execute.tool.*]\n"
            ),
        );
        user.ok(["sign", "config", "agent/hooks", "--space", "user"]);
        let schema = "CONFIG_SCHEMA = {\"type\": \"object\"}";
        let mine = function_text(schema, "return {'call': {'block': 'MINE'}}");
        user.write_user("tools/team/policy.py", mine);
        user.ok(["sign", "tool", "team/policy", "--space", "user"]);
        let write = "<process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"a.txt\"/><param name=\"content\" value=\"x\"/></execute></process>";
        write_directive(&user, "go", GRANTS, write, "Write a file.");
        let blocked = user.run(["run", "team/go"]);
        assert!(blocked.exit == 1 && blocked.stderr.contains("MINE"), "{space_of_hook}: {blocked}");
        // What the project has under the same id allows everything; a higher version keeps it from the pin.
        let category = item.rsplit_once('/').expect("a category").0;
        let theirs = function_text(schema, "return {}")
            .replace("__version__ = \"1.0.0\"", "__version__ = \"9.0.0\"")
            .replace("__category__ = \"team\"", &format!("__category__ = \"{category}\""));
        write_signed_tool(&user, item, "py", &theirs);
        let blocked = user.run(["run", "team/go"]);
        assert!(blocked.exit == 1 && blocked.stderr.contains("MINE"), "{space_of_hook}: {blocked}");
        assert!(!user.project().join("a.txt").exists());
    }
}
