//! `rye run`: a directive in a thread, offline and against a model server on loopback.

use std::process::{Child, Stdio};

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::support::{Run, User, differences, run, text};
use crate::tool_support::{RYE, eventually};

/// The grant of all file tools.
pub const FILES: &str = "<permissions><execute><tool>rye.file-system.*</tool></execute></permissions>";

/// A signed directive `team/<name>`: what stands in its metadata, after it, and the prompt.
pub fn write_directive(user: &User, name: &str, metadata: &str, process: &str, prompt: &str) {
    let content = format!(
        "# {name}\n\n```xml\n<directive name=\"{name}\" version=\"1.0.0\">\n<metadata>\n<description>Is run</description>\n<category>team</category>\n<author>test</author>\n{metadata}\n</metadata>\n{process}\n</directive>\n```\n\n{prompt}\n"
    );
    user.write(&format!("directives/team/{name}.md"), content);
    user.ok(["sign", "directive", &format!("team/{name}")]);
}

/// A directive that writes a file and reads it back, by itself.
pub fn write_note_directive(user: &User) {
    let call = |tool: &str, params: &[(&str, &str)]| {
        let params: String = params
            .iter()
            .map(|(name, value)| format!("<param name=\"{name}\" value=\"{value}\"/>"))
            .collect();
        format!("<execute item_type=\"tool\" item_id=\"rye/file-system/{tool}\">{params}</execute>\n")
    };
    let process = format!(
        "<process>\n{}{}</process>",
        call("write", &[("path", "note.txt"), ("content", "hello")]),
        call("read", &[("path", "note.txt")])
    );
    write_directive(user, "note", FILES, &process, "Write a note.");
}

/// A command whose models are at this server.
pub fn command_with_model(user: &User, model: &FakeModel) -> assert_cmd::Command {
    let mut command = user.command();
    command.env("OPENAI_API_KEY", "sk-of-a-test-0123456789");
    command.env("OPENAI_BASE_URL", format!("{}/v1", model.url()));
    command
}

/// The same, left to run beside the test.
pub fn spawn_with_model(user: &User, model: &FakeModel, words: &[&str]) -> Child {
    let mut command = user.program(RYE);
    command.env("OPENAI_API_KEY", "sk-of-a-test-0123456789");
    command.env("OPENAI_BASE_URL", format!("{}/v1", model.url()));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("started")
}

fn wait_for_run(child: Child) -> Run {
    Run::from_output(&child.wait_with_output().expect("an end"))
}

/// The threads of the project, the newest first.
pub fn threads(user: &User) -> Vec<Value> {
    user.data(["thread", "list", "--all"])["threads"].as_array().expect("threads").clone()
}

/// The name of the newest thread.
pub fn newest_thread(user: &User) -> String {
    text(&threads(user).first().expect("a thread")["thread_id"])
}

fn json_lines(run: &Run) -> Vec<Value> {
    run.stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}\n{run}")))
        .collect()
}

#[test]
fn offline_run_prints_each_call() {
    let user = User::initialized();
    write_note_directive(&user);
    let run = user.ok(["run", "team/note"]);
    run.assert_plain();
    let output: Vec<&str> = run.stderr.lines().collect();
    assert!(output[0].starts_with("▶ team/note · offline · no model was asked · thread-"), "{run}");
    assert!(output[1].starts_with("✓ rye_file_system_write · path=note.txt content=hello · "), "{run}");
    assert!(output[2].starts_with("✓ rye_file_system_read · path=note.txt · "), "{run}");
    assert!(output[3].starts_with("✓ completed · 3 turns · 0 tokens · $0"), "{run}");
    assert_eq!(output.len(), 4, "{run}");
    assert!(run.stdout.contains("rye/file-system/read"), "{run}");
    assert_eq!(user.context.text("project/note.txt"), "hello");
    let quiet = user.ok(["-q", "run", "team/note"]);
    assert_eq!(quiet.stderr, "", "{quiet}");
    assert!(!quiet.stdout.is_empty(), "{quiet}");
}

#[test]
fn example_runs_without_an_api_key() {
    let user = User::initialized();
    let run = user.ok(["run", "examples/greet", "name=Ada"]);
    assert_eq!(run.json()["greeting"], "Hello, Ada!", "{run}");
}

#[test]
fn json_output_ends_with_the_result() {
    let user = User::initialized();
    write_note_directive(&user);
    let run = user.run(["--json", "run", "team/note"]);
    assert_eq!((run.exit, run.stderr.as_str()), (0, ""), "{run}");
    let mut lines = json_lines(&run);
    let answer = lines.pop().expect("an answer");
    assert_eq!(
        (&answer["success"], &answer["status"], &answer["directive"]),
        (&json!(true), &json!("completed"), &json!("team/note")),
        "{run}"
    );
    assert_eq!(answer["cost"]["turns"], 3, "{run}");
    assert_eq!(lines[0]["event_type"], "thread_started", "{run}");
    assert!(lines.iter().all(|line| line["thread_id"] == answer["thread_id"]), "{run}");
    // Pieces of an answer on their way are not part of the transcript.
    lines.retain(|line| line["event_type"] != "model_delta");
    let sequences: Vec<u64> = lines.iter().filter_map(|line| line["sequence"].as_u64()).collect();
    assert!(sequences.len() == lines.len() && sequences.is_sorted(), "{run}");
}

#[test]
fn invalid_limit_comes_with_an_example() {
    let user = User::initialized();
    for (limit, example) in [
        ("turns=abc", "--limit turns=5;"),
        ("turns=1.5", "--limit turns=5;"),
        ("spend=much", "--limit spend=0.25;"),
        ("duration_seconds=10s", "--limit duration_seconds=600;"),
    ] {
        for command in [&["run", "examples/greet"][..], &["thread", "resume", "0a1b"]] {
            let words = [&["--json"], command, &["--limit", limit]].concat();
            let error = run(user.command().args(words)).error(2, "RYE0104");
            assert!(text(&error["hints"][0]).contains(example), "{limit}: {error}");
        }
    }
}

#[test]
fn failed_start_leaves_no_thread() {
    let user = User::initialized();
    write_note_directive(&user);
    let before = user.snapshot();
    let cases: [(&[&str], i32, &str); 6] = [
        (&["run", "team/missing"], 3, "RYE0201"),
        (&["run", "tool:examples/hello"], 2, "RYE0104"),
        (&["run", "team/note", "--limit", "turn=1"], 2, "RYE0104"),
        (&["run", "team/note", "--limit", "turns=+1"], 2, "RYE0104"),
        (&["run", "examples/greet", "nobody=1"], 2, "RYE0107"),
        (&["run", "team/note", "--continue", "0a1b"], 3, "RYE1114"),
    ];
    for (words, exit, code) in cases {
        run(user.command().arg("--json").args(words)).error(exit, code);
    }
    user.write("directives/team/unsigned.md", rye_test::directive("team", "unsigned", "Is not signed"));
    run(user.command().args(["--json", "run", "team/unsigned"])).error(4, "RYE0401");
    assert_eq!(threads(&user), Vec::<Value>::new());
    assert!(!user.project().join(".ai/threads/registry.db").exists(), "nothing was started");
    let changed = differences(&before, &user.snapshot());
    let foreign: Vec<&String> = changed
        .iter()
        .filter(|path| {
            !path.contains("/.ai/threads") && !path.contains("thread_secret") && !path.contains("unsigned")
        })
        .filter(|path| !path.ends_with("/.ai") && !path.ends_with("/signing") && !path.ends_with("/team"))
        .collect();
    assert_eq!(foreign, Vec::<&String>::new());
}

#[test]
fn dry_run_creates_no_thread() {
    let user = User::initialized();
    write_note_directive(&user);
    let before = user.snapshot();
    let data = user.data(["run", "team/note", "--dry-run", "--limit", "turns=7"]);
    assert_eq!(data["limits"]["turns"], 7, "{data}");
    assert_eq!((&data["provider"], &data["prompt"]), (&json!("offline"), &json!("Write a note.")), "{data}");
    assert_eq!(data["capabilities"], json!(["rye.execute.tool.rye.file-system.*"]), "{data}");
    let tools = data["tools"].as_array().expect("tools");
    assert!(tools.contains(&json!("rye_file_system_read")), "{data}");
    let output = user.ok(["run", "team/note", "--dry-run"]);
    for part in ["offline", "turns 25", "rye.execute.tool.rye.file-system.*", "Write a note."] {
        assert!(output.stdout.contains(part), "{part}: {output}");
    }
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn limit_suspends_and_resume_command_works() {
    let user = User::initialized();
    write_note_directive(&user);
    let stopped = user.run(["run", "team/note", "--limit", "turns=2"]);
    assert_eq!(stopped.exit, 6, "{stopped}");
    let id = newest_thread(&user);
    let command = format!("rye thread resume {id} --limit turns=+2");
    assert!(stopped.stderr.contains(&command), "{stopped}");
    assert!(stopped.stderr.contains("turns reached: 2 of 2"), "{stopped}");
    let json = user.run(["--json", "run", "team/note", "--limit", "turns=1"]);
    let answer = json_lines(&json).pop().expect("an answer");
    assert_eq!(
        (json.exit, &answer["status"], &answer["suspend_reason"]),
        (6, &json!("suspended"), &json!("limit"))
    );
    let resumed = user.ok(command.split(' ').skip(1));
    assert!(resumed.stderr.starts_with(&format!("▶ resumed · team/note · {id}")), "{resumed}");
    assert!(resumed.stderr.contains("✓ completed · 3 turns"), "{resumed}");
    assert_eq!(user.data(["thread", "show", &id])["limits"]["turns"], 4);
    let again = user.run(["--json", "thread", "resume", &id]);
    again.error(2, "RYE1131");
}

#[test]
fn model_text_is_the_result() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|request| match request.tool_results {
        0 => FakeReply::calls_and_text("I look around.", [("rye_file_system_ls", json!({}))]),
        _ => FakeReply::text("Hello,\nworld."),
    });
    let run = run(command_with_model(&user, &model).args(["run", "team/ask"]));
    assert_eq!((run.exit, run.stdout.as_str()), (0, "Hello,\nworld.\n"), "{run}");
    assert!(run.stderr.contains("I look around.\n✓ rye_file_system_ls · "), "{run}");
    assert!(run.stderr.contains("· openai ·"), "{run}");
    assert_eq!(model.count(), 2, "{run}");
    let row = threads(&user).remove(0);
    assert!(
        row["tokens"].as_u64().expect("tokens") > 0 && row["spend"].as_f64().expect("spend") > 0.0,
        "{row}"
    );
}

#[test]
fn model_failure_exits_1_with_reason() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model =
        FakeModel::start(|_| FakeReply::status(401, &json!({"error": {"message": "who are you"}}), &[]));
    let failed = run(command_with_model(&user, &model).args(["run", "team/ask"]));
    assert_eq!(failed.exit, 1, "{failed}");
    assert!(
        failed.stderr.contains("error[RYE1134]: failed: ") && failed.stderr.contains("who are you"),
        "{failed}"
    );
    let json = run(command_with_model(&user, &model).args(["--json", "run", "team/ask"]));
    let answer = json_lines(&json).pop().expect("an answer");
    assert_eq!(
        (json.exit, &answer["success"], &answer["status"]),
        (1, &json!(false), &json!("error")),
        "{json}"
    );
}

#[test]
fn escape_codes_of_a_model_reach_no_terminal() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|request| match request.tool_results {
        0 => FakeReply::calls_and_text(
            "\u{1b}[2Jgone\u{1b}]0;title\u{7}",
            [("evil\u{1b}[1A", json!({"k\u{1b}[A": "\u{9b}3J"}))],
        ),
        _ => FakeReply::text("done \u{1b}[31mred\u{1b}[0m \u{202e}txt\r"),
    });
    let output = run(command_with_model(&user, &model).args(["run", "team/ask"]));
    assert_eq!(output.exit, 0, "{output}");
    output.assert_plain();
    assert_eq!(output.stdout, "done red txt\n");
    let id = newest_thread(&user);
    for words in [
        vec!["thread", "show", &id],
        vec!["thread", "tail", &id],
        vec!["thread", "tree"],
        vec!["thread", "list"],
        vec!["thread", "transcript", &id],
        vec!["thread", "transcript", "--markdown", &id],
        vec!["--json", "thread", "transcript", &id],
    ] {
        user.ok(words).assert_plain();
    }
}

#[test]
fn interrupt_during_model_call_cancels_cleanly() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    for (signal, words) in [("-INT", vec!["run", "team/ask"]), ("-TERM", vec!["--json", "run", "team/ask"])] {
        let model = FakeModel::start(|_| FakeReply::hang());
        let child = spawn_with_model(&user, &model, &words);
        model.wait_for_requests(1);
        let sent = std::process::Command::new("kill").args([signal, &child.id().to_string()]).status();
        assert!(sent.expect("sent").success());
        let run = wait_for_run(child);
        assert_eq!(run.exit, 7, "{run}");
        model.wait_for_abandoned(1);
        let row = threads(&user).remove(0);
        assert_eq!(row["status"], "cancelled", "{row}");
        if words[0] == "--json" {
            assert_eq!(json_lines(&run).pop().expect("an answer")["status"], "cancelled", "{run}");
        } else {
            assert!(run.stderr.contains("stopping; press Ctrl-C again to force"), "{run}");
            assert!(run.stderr.contains("error[RYE1135]: cancelled: interrupted"), "{run}");
        }
    }
}

#[test]
fn an_asynchronous_thread_outlives_its_command() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = std::sync::Mutex::new(receiver);
    // The model answers only once the command that started the thread has ended.
    let model = FakeModel::start(move |_| {
        let _ = receiver.lock().expect("a lock").recv();
        FakeReply::text("Hello.")
    });
    let started = run(command_with_model(&user, &model).args(["--json", "run", "team/ask", "--async"]));
    let answer = started.json();
    assert_eq!(
        (started.exit, &answer["success"], &answer["status"]),
        (0, &json!(true), &json!("running")),
        "{started}"
    );
    let id = text(&answer["thread_id"]);
    let row = threads(&user).remove(0);
    assert_eq!((&row["status"], &row["is_interrupted"]), (&json!("running"), &json!(false)), "{row}");
    drop(sender);
    let waited = user.ok(["thread", "wait", &id, "--timeout", "240"]);
    assert_eq!(waited.stdout, format!("✓ {id} completed\n"), "{waited}");
    let refused = run(user.command().args(["--json", "run", "team/missing", "--async"]));
    refused.error(3, "RYE0201");
    let pid = answer["pid"].as_u64().expect("a process");
    assert!(
        eventually(|| !std::path::Path::new(&format!("/proc/{pid}/exe")).exists()),
        "it ends with its thread"
    );
}

#[test]
fn finished_thread_continues_in_a_new_one() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|request| FakeReply::text(&format!("{} messages", request.message_count)));
    run(command_with_model(&user, &model).args(["run", "team/ask"]));
    let old = newest_thread(&user);
    let words = ["run", "team/ask", "--continue", &old, "--message", "And now?"];
    let continued = run(command_with_model(&user, &model).args(words));
    assert_eq!((continued.exit, continued.stdout.as_str()), (0, "3 messages\n"), "{continued}");
    let other = run(command_with_model(&user, &model).args([
        "--json",
        "run",
        "examples/greet",
        "name=x",
        "--continue",
        &old,
    ]));
    other.error(2, "RYE0104");
}
