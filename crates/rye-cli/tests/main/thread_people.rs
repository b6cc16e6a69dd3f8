//! Threads that ask people, people who end them, and waiting for several: from the command line.

use std::io::{BufRead, BufReader};
use std::process::Command;

use rye_test::fake_model::{FakeModel, Reply};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::running::{assert_none_left, eventually, processes_with, shell};
use crate::support::{Run, User, run, text};
use crate::thread_run::{FILES, asking, beside, directive, newest, threads};

const MAY: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool></execute></permissions>";

/// A directive that asks whether it may write a file, and writes it.
fn gate(user: &User, on_deny: &str) {
    let process = format!(
        "<process><execute item_type=\"tool\" item_id=\"rye/agent/threads/human_approval\"><param name=\"prompt\" value=\"May I write?\"/><param name=\"reason\" value=\"it is time\"/><param name=\"on_deny\" value=\"{on_deny}\"/></execute>\n<execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"out.txt\"/><param name=\"content\" value=\"hello\"/></execute></process>"
    );
    directive(user, "gate", MAY, &process, "Ask, then write.");
}

fn approvals(user: &User) -> Vec<Value> {
    user.data(["thread", "approvals"])["approvals"].as_array().expect("approvals").clone()
}

#[test]
fn a_gate_stops_with_exit_6_and_goes_on_when_it_is_approved() {
    let user = User::ready();
    gate(&user, "end");
    let stopped = user.run(["run", "team/gate"]);
    assert_eq!(stopped.exit, 6, "{stopped}");
    let id = newest(&user);
    assert!(stopped.stderr.contains(&format!("? May I write? · rye thread approve {id}")), "{stopped}");
    assert!(stopped.stderr.contains(&format!("to go on: rye thread approve {id}")), "{stopped}");
    assert!(!user.world.project().join("out.txt").exists());
    let open = approvals(&user);
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!((&open[0]["what"], &open[0]["why"]), (&json!("May I write?"), &json!("it is time")));
    assert_eq!(open[0]["chain"][0]["directive"], "team/gate");
    for words in [vec!["thread", "approvals"], vec!["thread", "tree"], vec!["thread", "show", &id]] {
        let shown = user.ok(words);
        assert!(shown.stdout.contains("? May I write?"), "{shown}");
    }
    assert!(user.ok(["thread", "list"]).stderr.contains("1 question to you: rye thread approvals"));
    user.run(["--json", "thread", "resume", &id]).error(5, "RYE1121");
    let approved = user.ok(["thread", "approve", &id]);
    assert!(approved.stderr.contains("approved May I write?"), "{approved}");
    assert_eq!(user.world.text("project/out.txt"), "hello");
    assert_eq!(approvals(&user), Vec::<Value>::new());
    user.run(["--json", "thread", "approve", &id]).error(3, "RYE1119");
}

#[test]
fn a_no_ends_the_thread_or_is_told_as_was_asked_for() {
    let user = User::ready();
    gate(&user, "end");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let denied = user.run(["thread", "deny", &newest(&user), "--message", "not today"]);
    assert_eq!(denied.exit, 1, "{denied}");
    assert!(denied.stderr.contains("denied this: not today"), "{denied}");
    assert!(!user.world.project().join("out.txt").exists());
    gate(&user, "tell");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let ended = user.ok(["thread", "deny", &newest(&user), "--end", "--message", "enough"]);
    assert!(ended.stdout.contains("cancelled"), "{ended}");
    assert_eq!(threads(&user)[0]["status"], "cancelled");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let told = user.ok(["thread", "deny", &newest(&user)]);
    assert_eq!(user.world.text("project/out.txt"), "hello", "a script does not listen: {told}");
}

#[test]
fn a_limit_is_raised_by_approving_it() {
    let user = User::ready();
    crate::thread_run::note(&user);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=2"]).exit, 6);
    let id = newest(&user);
    assert_eq!(approvals(&user)[0]["what"], "turns +2");
    user.ok(["thread", "approve", &id]);
    assert_eq!(user.data(["thread", "show", &id])["limits"]["turns"], 4);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=1"]).exit, 6);
    user.ok(["thread", "approve", &newest(&user), "--limit", "turns=+5"]);
    assert_eq!(user.data(["thread", "show", &newest(&user)])["limits"]["turns"], 6);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=1"]).exit, 6);
    let denied = user.run(["thread", "deny", &newest(&user)]);
    assert_eq!((denied.exit, &threads(&user)[0]["status"]), (1, &json!("error")), "{denied}");
}

#[test]
fn a_tree_in_another_terminal_goes_on_there_when_its_child_is_approved() {
    let user = User::ready();
    directive(&user, "top", MAY, "", "I am the top.");
    directive(&user, "asker", MAY, "", "I am the asker.");
    let model = FakeModel::start(|seen| {
        let is_asker = seen.body.to_string().contains("I am the asker.");
        match (is_asker, seen.results().last()) {
            (true, None) => Reply::calls([("rye_agent_threads_human_approval", json!({"prompt": "May I?"}))]),
            (false, None) => Reply::calls([(
                "rye_agent_threads_thread_directive",
                json!({"directive_name": "team/asker"}),
            )]),
            (true, Some(_)) => Reply::text("I did."),
            (false, Some(_)) => Reply::text("It did."),
        }
    });
    let running = beside(&user, &model, &["run", "team/top"]);
    assert!(eventually(|| !approvals(&user).is_empty()), "it asks");
    let open = approvals(&user);
    let who: Vec<&str> = open[0]["chain"]
        .as_array()
        .expect("a chain")
        .iter()
        .filter_map(|one| one["directive"].as_str())
        .collect();
    assert_eq!(who, ["team/asker", "team/top"]);
    let approved = run(asking(&user, &model).args(["thread", "approve", &text(&open[0]["id"])]));
    assert_eq!(approved.exit, 0, "{approved}");
    assert!(approved.stderr.contains("it goes on where it was"), "{approved}");
    let ended = Run::of(&running.wait_with_output().expect("an end"));
    assert_eq!((ended.exit, ended.stdout.as_str()), (0, "It did.\n"), "{ended}");
    assert!(ended.stderr.contains("? May I? · rye thread approve"), "{ended}");
    assert_eq!(model.count(), 4);
}

#[test]
fn waiting_for_any_and_for_some_of_several() {
    let user = User::ready();
    directive(&user, "quick", FILES, "", "I am quick.");
    directive(&user, "slow", FILES, "", "I am slow.");
    let model = FakeModel::start(|seen| match seen.body.to_string().contains("I am quick.") {
        true => Reply::text("done"),
        false => Reply::hang(),
    });
    let start = |name: &str| {
        let started = run(asking(&user, &model).args(["--json", "run", name, "--async"]));
        text(&started.json()["thread_id"])
    };
    let (one, two, slow) = (start("team/quick"), start("team/quick"), start("team/slow"));
    let any = user.ok(["thread", "wait", &slow, &one, "--any", "--timeout", "60"]);
    assert!(any.stdout.contains(&format!("✓ {one} completed")), "{any}");
    let some = user.ok(["thread", "wait", &one, &two, &slow, "--quorum", "2", "--timeout", "60"]);
    assert!(some.stdout.contains(&format!("✓ {two} completed")), "{some}");
    let late = user.run(["thread", "wait", &slow, &one, "--timeout", "0.1"]);
    assert_eq!(late.exit, 1, "{late}");
    user.run(["--json", "thread", "wait", &one, "--quorum", "2"]).error(2, "RYE0104");
    user.ok(["thread", "cancel", &slow]);
    let waited = user.run(["thread", "wait", &slow, "--timeout", "60"]);
    assert_eq!(waited.exit, 7, "the process that runs it heard of it: {waited}");
    model.wait_for_abandoned(1);
}

/// A tool that does not listen to anybody and goes on for long, under a name of its own; and a directive that uses it.
fn stubborn(user: &User, marker: &str) {
    shell(user, "stubborn", "", &format!("trap '' TERM INT\nexec sleep {marker}"));
    let may = "<permissions><execute><tool>team.*</tool></execute></permissions>";
    directive(user, "work", may, "", "Work.");
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.expect("sent").success());
}

#[test]
fn the_second_interrupt_ends_the_process_at_once_and_leaves_nothing_running() {
    let user = User::ready();
    let marker = "5991.25";
    stubborn(&user, marker);
    let model = FakeModel::start(|_| Reply::calls([("team_stubborn", json!({}))]));
    let mut running = beside(&user, &model, &["run", "team/work"]);
    assert!(eventually(|| !processes_with(marker).is_empty()), "the tool runs");
    signal(running.id(), "-INT");
    let mut told = BufReader::new(running.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("once more ends at once") {
        line.clear();
        assert_ne!(told.read_line(&mut line).expect("a line"), 0, "it says what the second does");
    }
    signal(running.id(), "-INT");
    assert_eq!(running.wait().expect("an end").code(), Some(7));
    assert_none_left(marker);
}

#[test]
fn a_cancelled_threads_tool_ends_in_whatever_process_it_runs() {
    let user = User::ready();
    let marker = "5993.25";
    stubborn(&user, marker);
    let model = FakeModel::start(|_| Reply::calls([("team_stubborn", json!({}))]));
    let running = beside(&user, &model, &["run", "team/work"]);
    assert!(eventually(|| !processes_with(marker).is_empty()), "the tool runs");
    let asked = user.ok(["thread", "cancel", &newest(&user), "--reason", "no need"]);
    assert!(asked.stdout.contains("asked to end"), "{asked}");
    let ended = Run::of(&running.wait_with_output().expect("an end"));
    assert_eq!(ended.exit, 7, "{ended}");
    assert!(ended.stderr.contains("cancelled: no need"), "{ended}");
    assert_none_left(marker);
}

#[test]
fn a_killed_thread_is_dead_and_so_is_its_tool() {
    let user = User::ready();
    let marker = "5992.25";
    stubborn(&user, marker);
    let model = FakeModel::start(|_| Reply::calls([("team_stubborn", json!({}))]));
    let running = beside(&user, &model, &["run", "team/work"]);
    assert!(eventually(|| !processes_with(marker).is_empty()), "the tool runs");
    let id = newest(&user);
    user.ok(["thread", "kill", &id]);
    assert_eq!(threads(&user)[0]["status"], "killed");
    let ended = Run::of(&running.wait_with_output().expect("an end"));
    assert_ne!(ended.exit, 0, "{ended}");
    assert_none_left(marker);
    assert_eq!(threads(&user)[0]["status"], "killed", "and nothing settles it again");
    user.run(["--json", "thread", "kill", &id]).error(2, "RYE1131");
}

const YES: &str = r#"{"action": "accept", "content": {"agree": true}}"#;

fn forked(directive: &str) -> Value {
    json!({"item_id": format!("directive:{directive}"), "thread": "fork"})
}

fn yes() -> Value {
    serde_json::from_str(YES).expect("JSON")
}

#[test]
fn over_mcp_the_user_is_asked_or_the_command_is_named() {
    let user = User::ready();
    gate(&user, "end");
    let error = Client::ready(&user).fails("rye_execute", forked("team/gate"), "RYE1133");
    let id = newest(&user);
    assert!(error["hints"].to_string().contains(&format!("rye thread approve {id}")), "{error}");
    let mut declining = Client::asking(&user, json!({"action": "decline"}));
    declining.fails("rye_execute", forked("team/gate"), "RYE1002");
    assert_eq!(approvals(&user).len(), 2, "a user who does not answer has not answered");
    assert!(!user.world.project().join("out.txt").exists());
    let mut refusing = Client::asking(&user, json!({"action": "accept", "content": {"agree": false}}));
    let refused = refusing.fails("rye_execute", forked("team/gate"), "RYE1134");
    assert!(text(&refused["error"]).contains("denied this"), "{refused}");
    assert_eq!(approvals(&user).len(), 2, "one who said no has answered");
    assert!(!user.world.project().join("out.txt").exists());
    let mut client = Client::asking(&user, yes());
    let done = client.call("rye_execute", forked("team/gate"));
    assert_eq!(
        (&done["status"], &done["data"]["status"]),
        (&json!("success"), &json!("completed")),
        "{done}"
    );
    assert_eq!(client.questions.len(), 1, "{:?}", client.questions);
    let message = text(&client.questions[0]["message"]);
    assert!(message.contains("`team/gate`") && message.contains("May I write? (it is time)"), "{message}");
    assert_eq!(user.world.text("project/out.txt"), "hello");
}

#[test]
fn over_mcp_a_childs_question_reaches_the_user_while_its_parent_waits() {
    let user = User::ready();
    gate(&user, "end");
    let process = "<process><execute item_type=\"tool\" item_id=\"rye/agent/threads/thread_directive\"><param name=\"directive_name\" value=\"team/gate\"/></execute></process>";
    directive(&user, "top", MAY, process, "Start it.");
    let mut client = Client::asking(&user, yes());
    let done = client.call("rye_execute", forked("team/top"));
    assert_eq!(done["data"]["status"], "completed", "{done}");
    assert!(text(&client.questions[0]["message"]).contains("`team/gate`"), "{:?}", client.questions);
    assert_eq!((client.questions.len(), user.world.text("project/out.txt").as_str()), (1, "hello"));
    assert_eq!(threads(&user).len(), 2, "nothing was started twice");
}

#[test]
fn over_the_newer_protocol_the_same_thread_goes_on_when_the_call_comes_again() {
    let user = User::ready();
    gate(&user, "end");
    let mut client = Client::silent(&user, &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let call = |more: Value| {
        let mut params = json!({"name": "rye_execute", "arguments": forked("team/gate"), "_meta": meta});
        params.as_object_mut().expect("params").extend(more.as_object().expect("more").clone());
        params
    };
    let asked = client.request("tools/call", call(json!({})));
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let state = text(&asked["requestState"]);
    let foreign = state.replace(&newest(&user), "thread-000000000000");
    let wrong = json!({"inputResponses": {"consent": yes()}, "requestState": foreign});
    assert_eq!(client.request("tools/call", call(wrong))["isError"], true);
    let agreed = json!({"inputResponses": {"consent": yes()}, "requestState": state});
    let done = client.request("tools/call", call(agreed.clone()));
    assert_eq!(done["structuredContent"]["data"]["status"], "completed", "{done}");
    assert_eq!(threads(&user).len(), 1);
    assert_eq!(client.request("tools/call", call(agreed))["isError"], true, "a yes counts once");
}
