//! Threads that ask people, people who end them, and waiting for several: from the command line.

use std::io::{BufRead, BufReader};
use std::process::Command;

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{Run, User, run, text};
use crate::thread_run::{
    FILES, command_with_model, newest_thread, spawn_with_model, threads, write_directive,
};
use crate::tool_support::{RYE, assert_no_processes, eventually, processes_with, write_shell_tool};

const PERMISSIONS: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool></execute></permissions>";

/// How long a command waits for threads that must end.
const WAIT_SECONDS: &str = "240";

/// A directive that asks whether it may write a file, and writes it.
pub fn write_gate(user: &User, on_deny: &str) {
    let process = format!(
        "<process><execute item_type=\"tool\" item_id=\"rye/agent/threads/human_approval\"><param name=\"prompt\" value=\"May I write?\"/><param name=\"reason\" value=\"it is time\"/><param name=\"on_deny\" value=\"{on_deny}\"/></execute>\n<execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"out.txt\"/><param name=\"content\" value=\"hello\"/></execute></process>"
    );
    write_directive(user, "gate", PERMISSIONS, &process, "Ask, then write.");
}

fn approvals(user: &User) -> Vec<Value> {
    user.data(["thread", "approvals"])["approvals"].as_array().expect("approvals").clone()
}

#[test]
fn approved_gate_resumes_after_exit_6() {
    let user = User::initialized();
    write_gate(&user, "end");
    let stopped = user.run(["run", "team/gate"]);
    assert_eq!(stopped.exit, 6, "{stopped}");
    let id = newest_thread(&user);
    assert!(stopped.stderr.contains(&format!("? May I write? · rye thread approve {id}")), "{stopped}");
    assert!(stopped.stderr.contains(&format!("to continue: rye thread approve {id}")), "{stopped}");
    assert!(!user.context.project().join("out.txt").exists());
    let open = approvals(&user);
    assert_eq!(open.len(), 1, "{open:?}");
    assert_eq!((&open[0]["what"], &open[0]["why"]), (&json!("May I write?"), &json!("it is time")));
    assert_eq!(open[0]["chain"][0]["directive"], "team/gate");
    for words in [vec!["thread", "approvals"], vec!["thread", "tree"], vec!["thread", "show", &id]] {
        let output = user.ok(words);
        assert!(output.stdout.contains("? May I write?"), "{output}");
    }
    assert!(user.ok(["thread", "list"]).stderr.contains("1 question pending: rye thread approvals"));
    user.run(["--json", "thread", "resume", &id]).error(5, "RYE1121");
    let approved = user.ok(["thread", "approve", &id]);
    assert!(approved.stderr.contains("approved May I write?"), "{approved}");
    assert_eq!(user.context.text("project/out.txt"), "hello");
    assert_eq!(approvals(&user), Vec::<Value>::new());
    user.run(["--json", "thread", "approve", &id]).error(3, "RYE1119");
}

/// Changes the registry as a process without the user's secret would.
fn change_database(user: &User, sql: &str) {
    let script = "import sqlite3, sys\nbase = sqlite3.connect(sys.argv[1], timeout=120)\n\
                  base.execute(sys.argv[2])\nbase.commit()";
    let database = user.project().join(".ai/threads/registry.db");
    let status = Command::new("python3").args(["-c", script]).arg(database).arg(sql).status();
    assert!(status.expect("python3 runs").success(), "{sql}");
}

#[test]
fn forged_thread_is_not_answered() {
    let user = User::initialized();
    write_gate(&user, "tell");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let id = newest_thread(&user);
    let open = approvals(&user);
    change_database(&user, &format!("UPDATE threads SET turns = turns + 1 WHERE thread_id = '{id}'"));
    for answer in ["approve", "deny"] {
        let refused = user.run(["thread", answer, &id]);
        assert_eq!(refused.exit, 4, "{refused}");
        assert!(refused.stderr.contains("error[RYE1113]"), "{refused}");
        assert!(!refused.stderr.contains("approved ") && !refused.stderr.contains("denied "), "{refused}");
    }
    assert_eq!(approvals(&user), open, "the question is still open");
}

#[test]
fn changed_question_names_the_way_out() {
    let user = User::initialized();
    write_gate(&user, "tell");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let id = newest_thread(&user);
    change_database(&user, "UPDATE approvals SET what = 'May I read?'");
    let refused = user.run(["--json", "thread", "approve", &id]).error(4, "RYE1113");
    let hints = refused["hints"].to_string();
    assert!(hints.contains(&format!("rye thread cancel {id}")), "{refused}");
    assert!(!hints.contains("rye thread approve"), "{refused}");
    user.ok(["thread", "cancel", &id]);
}

#[test]
fn denial_ends_or_informs_the_thread() {
    let user = User::initialized();
    write_gate(&user, "end");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let denied = user.run(["thread", "deny", &newest_thread(&user), "--message", "not today"]);
    assert_eq!(denied.exit, 1, "{denied}");
    assert!(denied.stderr.contains("denied this: not today"), "{denied}");
    assert!(!user.context.project().join("out.txt").exists());
    write_gate(&user, "tell");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let ended = user.ok(["thread", "deny", &newest_thread(&user), "--end", "--message", "enough"]);
    assert!(ended.stdout.contains("cancelled"), "{ended}");
    assert_eq!(threads(&user)[0]["status"], "cancelled");
    assert_eq!(user.run(["run", "team/gate"]).exit, 6);
    let output = user.ok(["thread", "deny", &newest_thread(&user)]);
    assert_eq!(user.context.text("project/out.txt"), "hello", "a script does not listen: {output}");
}

#[test]
fn a_limit_is_raised_by_approving_it() {
    let user = User::initialized();
    crate::thread_run::write_note_directive(&user);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=2"]).exit, 6);
    let id = newest_thread(&user);
    assert_eq!(approvals(&user)[0]["what"], "turns +2");
    user.ok(["thread", "approve", &id]);
    assert_eq!(user.data(["thread", "show", &id])["limits"]["turns"], 4);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=1"]).exit, 6);
    user.ok(["thread", "approve", &newest_thread(&user), "--limit", "turns=+5"]);
    assert_eq!(user.data(["thread", "show", &newest_thread(&user)])["limits"]["turns"], 6);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=1"]).exit, 6);
    let denied = user.run(["thread", "deny", &newest_thread(&user)]);
    assert_eq!((denied.exit, &threads(&user)[0]["status"]), (1, &json!("error")), "{denied}");
}

#[test]
fn approved_child_resumes_in_its_process() {
    let user = User::initialized();
    write_directive(&user, "top", PERMISSIONS, "", "I am the top.");
    write_directive(&user, "asker", PERMISSIONS, "", "I am the asker.");
    let model = FakeModel::start(|request| {
        let is_asker = request.body.to_string().contains("I am the asker.");
        match (is_asker, request.tool_result_texts().last()) {
            (true, None) => {
                FakeReply::calls([("rye_agent_threads_human_approval", json!({"prompt": "May I?"}))])
            }
            (false, None) => FakeReply::calls([(
                "rye_agent_threads_thread_directive",
                json!({"directive_name": "team/asker"}),
            )]),
            (true, Some(_)) => FakeReply::text("I did."),
            (false, Some(_)) => FakeReply::text("It did."),
        }
    });
    let running = spawn_with_model(&user, &model, &["run", "team/top"]);
    assert!(eventually(|| !approvals(&user).is_empty()), "it asks");
    let open = approvals(&user);
    let who: Vec<&str> = open[0]["chain"]
        .as_array()
        .expect("a chain")
        .iter()
        .filter_map(|one| one["directive"].as_str())
        .collect();
    assert_eq!(who, ["team/asker", "team/top"]);
    let approved = run(command_with_model(&user, &model).args(["thread", "approve", &text(&open[0]["id"])]));
    assert_eq!(approved.exit, 0, "{approved}");
    assert!(approved.stderr.contains("resumed where it was running"), "{approved}");
    let ended = Run::from_output(&running.wait_with_output().expect("an end"));
    assert_eq!((ended.exit, ended.stdout.as_str()), (0, "It did.\n"), "{ended}");
    assert!(ended.stderr.contains("? May I? · rye thread approve"), "{ended}");
    assert_eq!(model.count(), 4);
}

#[test]
fn wait_supports_any_and_quorum() {
    let user = User::initialized();
    write_directive(&user, "quick", FILES, "", "I am quick.");
    write_directive(&user, "slow", FILES, "", "I am slow.");
    let model = FakeModel::start(|request| match request.body.to_string().contains("I am quick.") {
        true => FakeReply::text("done"),
        false => FakeReply::hang(),
    });
    let start = |name: &str| {
        let started = run(command_with_model(&user, &model).args(["--json", "run", name, "--async"]));
        text(&started.json()["thread_id"])
    };
    let (one, two, slow) = (start("team/quick"), start("team/quick"), start("team/slow"));
    let any = user.ok(["thread", "wait", &slow, &one, "--any", "--timeout", WAIT_SECONDS]);
    assert!(any.stdout.contains(&format!("✓ {one} completed")), "{any}");
    let some = user.ok(["thread", "wait", &one, &two, &slow, "--quorum", "2", "--timeout", WAIT_SECONDS]);
    assert!(some.stdout.contains(&format!("✓ {two} completed")), "{some}");
    let late = user.run(["thread", "wait", &slow, &one, "--timeout", "0.1"]);
    assert_eq!(late.exit, 1, "{late}");
    user.run(["--json", "thread", "wait", &one, "--quorum", "2"]).error(2, "RYE0104");
    user.ok(["thread", "cancel", &slow]);
    let waited = user.run(["thread", "wait", &slow, "--timeout", WAIT_SECONDS]);
    assert_eq!(waited.exit, 7, "the process that runs it heard of it: {waited}");
    model.wait_for_abandoned(1);
}

/// A tool that does not listen to any process and continues for long, under a name of its own; and a directive that uses it.
fn write_stubborn_tool(user: &User, marker: &str) {
    write_shell_tool(user, "stubborn", "", &format!("trap '' TERM INT\nexec sleep {marker}"));
    let may = "<permissions><execute><tool>team.*</tool></execute></permissions>";
    write_directive(user, "work", may, "", "Work.");
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.expect("sent").success());
}

#[test]
fn second_interrupt_kills_immediately() {
    let user = User::initialized();
    let marker = "5991.25";
    write_stubborn_tool(&user, marker);
    let model = FakeModel::start(|_| FakeReply::calls([("team_stubborn", json!({}))]));
    let mut running = spawn_with_model(&user, &model, &["run", "team/work"]);
    assert!(eventually(|| !processes_with(marker).is_empty()), "the tool runs");
    signal(running.id(), "-INT");
    let mut output = BufReader::new(running.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("press Ctrl-C again to force") {
        line.clear();
        assert_ne!(output.read_line(&mut line).expect("a line"), 0, "it says what the second does");
    }
    signal(running.id(), "-INT");
    assert_eq!(running.wait().expect("an end").code(), Some(7));
    assert_no_processes(marker);
}

#[test]
fn cancel_ends_tools_in_other_processes() {
    let user = User::initialized();
    let marker = "5993.25";
    write_stubborn_tool(&user, marker);
    let model = FakeModel::start(|_| FakeReply::calls([("team_stubborn", json!({}))]));
    let running = spawn_with_model(&user, &model, &["run", "team/work"]);
    assert!(eventually(|| !processes_with(marker).is_empty()), "the tool runs");
    let output = user.ok(["thread", "cancel", &newest_thread(&user), "--reason", "no need"]);
    assert!(output.stdout.contains("cancel requested"), "{output}");
    let ended = Run::from_output(&running.wait_with_output().expect("an end"));
    assert_eq!(ended.exit, 7, "{ended}");
    assert!(ended.stderr.contains("cancelled: no need"), "{ended}");
    assert_no_processes(marker);
}

#[test]
fn kill_ends_thread_and_tool() {
    let user = User::initialized();
    let marker = "5992.25";
    write_stubborn_tool(&user, marker);
    let model = FakeModel::start(|_| FakeReply::calls([("team_stubborn", json!({}))]));
    let running = spawn_with_model(&user, &model, &["run", "team/work"]);
    assert!(eventually(|| !processes_with(marker).is_empty()), "the tool runs");
    let id = newest_thread(&user);
    user.ok(["thread", "kill", &id]);
    assert_eq!(threads(&user)[0]["status"], "killed");
    let ended = Run::from_output(&running.wait_with_output().expect("an end"));
    assert_ne!(ended.exit, 0, "{ended}");
    assert_no_processes(marker);
    assert_eq!(threads(&user)[0]["status"], "killed", "and nothing settles it again");
    user.run(["--json", "thread", "kill", &id]).error(2, "RYE1131");
}

const CONSENT: &str = r#"{"action": "accept"}"#;

fn fork_arguments(directive: &str) -> Value {
    json!({"item_id": format!("directive:{directive}"), "thread": "fork"})
}

fn consent() -> Value {
    serde_json::from_str(CONSENT).expect("JSON")
}

#[test]
fn mcp_elicits_or_names_the_command() {
    let user = User::initialized();
    write_gate(&user, "end");
    let error = Client::connect(&user).call_error("rye_execute", fork_arguments("team/gate"), "RYE1133");
    let id = newest_thread(&user);
    assert!(error["hints"].to_string().contains(&format!("rye thread approve {id}")), "{error}");
    let mut closing = Client::connect_with_consent(&user, json!({"action": "cancel"}));
    closing.call_error("rye_execute", fork_arguments("team/gate"), "RYE1002");
    assert_eq!(approvals(&user).len(), 2, "a user who does not answer has not answered");
    assert!(!user.context.project().join("out.txt").exists());
    let mut refusing = Client::connect_with_consent(&user, json!({"action": "decline"}));
    let refused = refusing.call_error("rye_execute", fork_arguments("team/gate"), "RYE1134");
    assert!(text(&refused["error"]).contains("denied this"), "{refused}");
    assert_eq!(approvals(&user).len(), 2, "one who said no has answered");
    assert!(!user.context.project().join("out.txt").exists());
    let mut client = Client::connect_with_consent(&user, consent());
    let done = client.call("rye_execute", fork_arguments("team/gate"));
    assert_eq!(
        (&done["status"], &done["data"]["status"]),
        (&json!("success"), &json!("completed")),
        "{done}"
    );
    assert_eq!(client.questions.len(), 1, "{:?}", client.questions);
    let message = text(&client.questions[0]["message"]);
    for part in ["asks: May I write?", "why      it is time", "who      team/gate", "cost     $0"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(user.context.text("project/out.txt"), "hello");
}

#[test]
fn mcp_forwards_child_approvals() {
    let user = User::initialized();
    write_gate(&user, "end");
    let process = "<process><execute item_type=\"tool\" item_id=\"rye/agent/threads/thread_directive\"><param name=\"directive_name\" value=\"team/gate\"/></execute></process>";
    write_directive(&user, "top", PERMISSIONS, process, "Start it.");
    let mut client = Client::connect_with_consent(&user, consent());
    let done = client.call("rye_execute", fork_arguments("team/top"));
    assert_eq!(done["data"]["status"], "completed", "{done}");
    let message = text(&client.questions[0]["message"]);
    assert!(message.contains("who      team/gate ← team/top"), "{message}");
    assert_eq!((client.questions.len(), user.context.text("project/out.txt").as_str()), (1, "hello"));
    assert_eq!(threads(&user).len(), 2, "nothing was started twice");
}

#[test]
fn newer_protocol_retry_resumes_the_thread() {
    let user = User::initialized();
    write_gate(&user, "end");
    let mut client = Client::spawn(&user, &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let call = |more: Value| {
        let mut params =
            json!({"name": "rye_execute", "arguments": fork_arguments("team/gate"), "_meta": meta});
        params.as_object_mut().expect("params").extend(more.as_object().expect("more").clone());
        params
    };
    let response = client.request("tools/call", call(json!({})));
    assert_eq!(response["resultType"], "input_required", "{response}");
    let state = text(&response["requestState"]);
    let foreign = state.replace(&newest_thread(&user), "thread-000000000000");
    let wrong = json!({"inputResponses": {"consent": consent()}, "requestState": foreign});
    assert_eq!(client.request("tools/call", call(wrong))["isError"], true);
    let agreed = json!({"inputResponses": {"consent": consent()}, "requestState": state});
    let done = client.request("tools/call", call(agreed.clone()));
    assert_eq!(done["structuredContent"]["data"]["status"], "completed", "{done}");
    assert_eq!(threads(&user).len(), 1);
    assert_eq!(client.request("tools/call", call(agreed))["isError"], true, "a yes counts once");
}

/// Every write waits for the user, and a directive writes these files.
fn write_risky(user: &User, paths: &[&str]) {
    write_risky_lines(user, paths, 100);
}

fn write_risky_lines(user: &User, paths: &[&str], lines: usize) {
    let config = "version: \"1.0.0\"\ncategory: agent\nname: capability_risk\ndescription: Mine\nschema_version: \"1.0.0\"\nrisk_levels:\n  write:\n    description: Changes files\n    policy: approval_required\n";
    user.write_user("config/agent/capability_risk.yaml", config);
    user.ok(["sign", "config", "agent/capability_risk", "--space", "user"]);
    let write = |path: &&str| {
        format!(
            "<execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"{path}\"/><param name=\"content\" value=\"{}\"/></execute>\n",
            format!("to \u{202e}{path} ").repeat(lines)
        )
    };
    let process: String = paths.iter().map(write).collect();
    write_directive(user, "risky", FILES, &format!("<process>{process}</process>"), "Write.");
}

#[test]
fn approvals_show_every_argument() {
    let user = User::initialized();
    write_risky(&user, &["a.txt"]);
    let stopped = user.run(["run", "team/risky"]);
    assert_eq!(stopped.exit, 6, "{stopped}");
    let id = newest_thread(&user);
    let shown =
        [stopped.stderr, user.ok(["thread", "approvals"]).stdout, user.ok(["thread", "show", &id]).stdout];
    for output in shown {
        for part in [
            "path     a.txt",
            "content  to \\u{202e}a.txt",
            "more characters",
            "who      team/risky",
            "cost     $0",
        ] {
            assert!(output.contains(part), "{part}: {output}");
        }
        assert!(!output.contains('\u{202e}'), "{output}");
    }
    let full = user.ok(["thread", "approvals", &id, "--full"]).stdout;
    assert!(
        full.contains("to \\u{202e}a.txt ".repeat(100).trim_end()) && !full.contains("more characters"),
        "{full}"
    );
}

#[test]
fn mcp_shows_arguments_to_their_end() {
    let user = User::initialized();
    write_risky(&user, &["a.txt"]);
    let mut client = Client::connect_with_consent(&user, consent());
    client.call("rye_execute", fork_arguments("team/risky"));
    let message = text(&client.questions[0]["message"]);
    assert!(message.contains("to \\u{202e}a.txt ".repeat(100).trim_end()), "{message}");
    assert!(user.context.project().join("a.txt").exists());
    // What is too long to be read there is not asked there.
    write_risky_lines(&user, &["b.txt"], 1000);
    let refused = client.call_error("rye_execute", fork_arguments("team/risky"), "RYE1133");
    assert!(refused["hints"].to_string().contains("--full"), "{refused}");
    assert_eq!(client.questions.len(), 1);
    // Nor is it waited for without a word while the thread above it runs.
    let process = "<process><execute item_type=\"tool\" item_id=\"rye/agent/threads/thread_directive\"><param name=\"directive_name\" value=\"team/risky\"/></execute></process>";
    write_directive(&user, "top", PERMISSIONS, process, "Start it.");
    let refused = client.call_error("rye_execute", fork_arguments("team/top"), "RYE1133");
    assert!(refused["hints"].to_string().contains("--full"), "{refused}");
    let asked = format!("{:?}", client.questions);
    assert!(!asked.contains("b.txt"), "{asked}");
    assert!(!user.context.project().join("b.txt").exists());
}

#[test]
fn always_covers_later_calls_of_the_thread() {
    let user = User::initialized();
    write_risky(&user, &["a.txt", "b.txt", "c.txt"]);
    assert_eq!(user.run(["run", "team/risky"]).exit, 6);
    let id = newest_thread(&user);
    // The same arguments do not come again: the next call is asked about.
    assert_eq!(user.run(["thread", "approve", &id, "--always", "arguments"]).exit, 6);
    user.ok(["thread", "approve", &id, "--always", "item"]);
    assert!(user.context.project().join("c.txt").exists());
    user.ok(["thread", "verify", &id]);
    // Another thread asks for itself.
    assert_eq!(user.run(["run", "team/risky"]).exit, 6);
    assert_eq!(approvals(&user).len(), 1);
}

/// Runs a program at a terminal of its own, and types an answer whenever it asks.
const TERMINAL: &str = r#"
import os, pty, sys
answers, words = sys.argv[1].split("|"), sys.argv[2:]
pid, terminal = pty.fork()
if pid == 0:
    os.execv(words[0], words)
output, typed = b"", 0
while True:
    try:
        data = os.read(terminal, 65536)
    except OSError:
        break
    if not data:
        break
    output += data
    while typed < len(answers) and output.count(b"[l] later") > typed:
        os.write(terminal, answers[typed].encode() + b"\n")
        typed += 1
sys.stdout.buffer.write(output)
sys.stdout.flush()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

fn run_at_terminal(user: &User, answers: &str, words: &[&str]) -> Run {
    let mut command = user.program("python3");
    command.args(["-c", TERMINAL, answers, RYE, "--color", "never"]).args(words).env("TERM", "xterm");
    Run::from_output(&command.output().expect("python3"))
}

#[test]
fn terminal_is_asked_and_thread_goes_on() {
    let user = User::initialized();
    write_risky(&user, &["a.txt", "b.txt", "c.txt"]);
    let left = run_at_terminal(&user, "y|l", &["run", "team/risky"]);
    assert_eq!(left.exit, 6, "{left}");
    assert!(left.stdout.contains("path     a.txt") && !left.stdout.contains("error["), "{left}");
    assert!(user.context.project().join("a.txt").exists() && !user.context.project().join("b.txt").exists());
    let done = run_at_terminal(&user, "a", &["thread", "resume", &newest_thread(&user)]);
    assert_eq!(done.exit, 0, "{done}");
    assert!(user.context.project().join("c.txt").exists(), "{done}");
}
