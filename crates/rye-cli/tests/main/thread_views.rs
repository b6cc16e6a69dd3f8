//! `rye thread …`: looking at threads, following them, ending them, and whether what they wrote is still that.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::support::{User, differences, run, text};
use crate::thread_run::{
    FILES, command_with_model, newest_thread, spawn_with_model, threads, write_directive,
    write_note_directive,
};
use crate::tool_support::RYE;

#[test]
fn views_create_no_thread_store() {
    let user = User::initialized();
    let before = user.snapshot();
    assert_eq!(user.data(["thread", "list"]), json!({"threads": []}));
    assert_eq!(user.data(["thread", "tree"]), json!({"threads": []}));
    assert_eq!(user.data(["thread", "verify", "--all"])["checked"], 0);
    for verb in ["show", "tail", "transcript", "verify", "cancel", "kill", "resume", "wait"] {
        user.assert_refused(["thread", verb, "0a1b2c3d4e5f"], 3, "RYE1114");
        user.assert_refused(["thread", verb, "../../etc"], 2, "RYE0104");
    }
    user.assert_refused(["thread", "approve", "0a1b"], 3, "RYE1119");
    assert_eq!(user.data(["thread", "prune"])["pruned"], json!([]));
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn list_has_all_keys_and_filters() {
    let user = User::initialized();
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=1"]).exit, 6);
    user.ok(["run", "examples/greet", "name=Ada"]);
    let rows = threads(&user);
    let directives: Vec<String> = rows.iter().map(|row| text(&row["directive"])).collect();
    assert_eq!(directives, ["examples/greet", "team/note", "team/note"]);
    for row in &rows {
        for key in [
            "thread_id",
            "directive",
            "status",
            "parent_thread_id",
            "turns",
            "tokens",
            "spend",
            "subtree_spend",
            "reason",
            "started_at",
            "elapsed_ms",
        ] {
            assert!(row.get(key).is_some(), "{key}: {row}");
        }
    }
    let count = |words: &[&str]| {
        let all: Vec<&str> = ["thread", "list"].into_iter().chain(words.iter().copied()).collect();
        user.data(all)["threads"].as_array().expect("threads").len()
    };
    assert_eq!(count(&["--status", "suspended"]), 1);
    assert_eq!(count(&["--status", "interrupted"]), 0);
    assert_eq!(count(&["--status", "failed"]), count(&["--status", "error"]));
    assert_eq!(count(&["--directive", "team/note"]), 2);
    assert_eq!(count(&["--limit", "1"]), 1);
    user.assert_refused(["thread", "list", "--status", "asleep"], 2, "RYE0104");
    let output = user.ok(["thread", "list"]);
    let suspended = text(&rows[1]["thread_id"]);
    assert!(output.stdout.contains("suspended (limit)"), "{output}");
    assert!(
        output.stderr.contains(&format!("to continue: rye thread resume {suspended} --limit turns=+1\n")),
        "{output}"
    );
}

#[test]
fn thread_is_found_by_id_prefix() {
    let user = User::initialized();
    user.ok(["run", "examples/greet", "name=Ada"]);
    let id = newest_thread(&user);
    for word in [&id, &id[7..], &id[7..13], &id[..13]] {
        assert_eq!(user.data(["thread", "show", word])["thread_id"], id.as_str(), "{word}");
    }
    let data = user.data(["thread", "show", &id]);
    assert_eq!((&data["success"], &data["status"]), (&json!(true), &json!("completed")), "{data}");
    assert_eq!(data["outputs"]["greeting"], "Hello, Ada!", "{data}");
    assert_eq!(data["limits"]["turns"], 4, "{data}");
    let output = user.ok(["thread", "show", &id]);
    for part in ["✓ examples/greet completed", "turns      2 of 4", "Hello, Ada!"] {
        assert!(output.stdout.contains(part), "{part}: {output}");
    }
    assert!(!output.stdout.contains("--continue"), "no model could continue: {output}");
}

#[test]
fn resume_completes_only_stopped_threads() {
    let user = User::initialized();
    user.ok(["run", "examples/greet", "name=Ada"]);
    let ended = newest_thread(&user);
    user.run(["run", "examples/greet", "name=Ada", "--limit", "turns=1"]);
    let suspended = newest_thread(&user);
    let offered = |command: &str| {
        let mut completion = user.command();
        completion.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", "3").env("_CLAP_IFS", "\n");
        let listed = run(completion.args(["--", "rye", "thread", command, "thread-"]));
        listed.stdout.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(offered("show"), [suspended.clone(), ended]);
    for command in ["resume", "approve", "deny", "cancel"] {
        assert_eq!(offered(command), [suspended.as_str()], "{command}");
    }
}

#[test]
fn tail_follows_a_thread_to_its_end() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = std::sync::Mutex::new(receiver);
    let model = FakeModel::start(move |printed_lines| match printed_lines.tool_results {
        0 => FakeReply::calls([("rye_file_system_ls", json!({}))]),
        _ => {
            // Until the other process has seen the call.
            let _ = receiver.lock().expect("a lock").recv();
            FakeReply::text("Hello.")
        }
    });
    let mut running = spawn_with_model(&user, &model, &["run", "team/ask"]);
    model.wait_for_requests(1);
    let id = newest_thread(&user);
    let mut tail = user.program(RYE);
    tail.args(["thread", "tail", &id]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tail = tail.spawn().expect("started");
    let mut out = BufReader::new(tail.stdout.take().expect("a pipe"));
    let mut printed_lines = Vec::new();
    while !printed_lines.iter().any(|line: &String| line.starts_with("✓ rye_file_system_ls · ")) {
        let mut line = String::new();
        assert_ne!(out.read_line(&mut line).expect("a line"), 0, "{printed_lines:?}");
        printed_lines.push(line);
    }
    drop(sender);
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("✓ completed · 2 turns") && rest.contains("Hello."), "{rest}");
    assert!(tail.wait().expect("an end").success());
    assert!(running.wait().expect("an end").success());
    let events = user.ok(["--json", "thread", "tail", &id]);
    assert_eq!(user.ok(["--json", "thread", "tail"]).stdout, events.stdout, "the latest without an id");
    let kinds: Vec<String> = events
        .stdout
        .lines()
        .map(|line| text(&serde_json::from_str::<Value>(line).expect("an event")["event_type"]))
        .collect();
    assert_eq!(kinds.first().map(String::as_str), Some("thread_started"));
    assert!(kinds.contains(&"thread_completed".to_owned()), "{kinds:?}");
}

#[test]
fn tampered_transcript_exits_4_with_line() {
    let user = User::initialized();
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    let id = newest_thread(&user);
    let path = user.project().join(format!(".ai/threads/{id}/transcript.jsonl"));
    let whole = fs::read_to_string(&path).expect("a transcript");
    assert_eq!(user.data(["thread", "verify", &id])["valid"], 1);
    let edited = whole.replacen("Write a note.", "Write a nose.", 1);
    fs::write(&path, &edited).expect("written");
    let answer = user.assert_refused(["thread", "verify", "--all"], 4, "RYE1141");
    assert_eq!(answer["data"]["threads"][0]["state"], "tampered", "{answer}");
    let output = user.run(["thread", "verify", &id]);
    assert_eq!(output.exit, 4, "{output}");
    assert!(output.stdout.contains(&format!("✗ {id} · tampered")), "{output}");
    assert!(output.stdout.contains("  line "), "{output}");
    assert_eq!(fs::read_to_string(&path).expect("a transcript"), edited, "what was changed is left as it is");
    fs::write(&path, &whole).expect("written");
    user.ok(["thread", "verify", &id]);
}

#[test]
fn cancel_works_across_processes() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|_| FakeReply::hang());
    let mut running = spawn_with_model(&user, &model, &["run", "team/ask"]);
    model.wait_for_requests(1);
    let id = newest_thread(&user);
    let pending = run(command_with_model(&user, &model).args(["--json", "thread", "resume", &id]));
    pending.error(1, "RYE1115");
    let output = user.ok(["thread", "cancel", &id]);
    assert_eq!(output.stdout, format!("{id} cancel requested\n"), "{output}");
    assert_eq!(running.wait().expect("an end").code(), Some(7));
    assert_eq!(user.run(["thread", "wait", &id]).exit, 7);
    write_note_directive(&user);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=1"]).exit, 6);
    let id = newest_thread(&user);
    assert_eq!(user.run(["thread", "wait", &id]).exit, 6);
    let ended = user.ok(["thread", "cancel", &id]);
    assert_eq!(ended.stdout, format!("{id} cancelled\n"), "{ended}");
    user.assert_refused(["thread", "cancel", &id], 2, "RYE1131");
    user.assert_refused(["thread", "kill", &id], 2, "RYE1131");
}

#[test]
fn interrupted_thread_can_be_resumed() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model =
        FakeModel::start(
            |request| if request.number == 1 { FakeReply::hang() } else { FakeReply::text("Hello.") },
        );
    let mut running = spawn_with_model(&user, &model, &["run", "team/ask"]);
    model.wait_for_requests(1);
    running.kill().expect("killed");
    running.wait().expect("collected");
    let row = threads(&user).remove(0);
    assert_eq!((&row["status"], &row["reason"]), (&json!("running"), &json!("interrupted")), "{row}");
    let id = text(&row["thread_id"]);
    let output = user.ok(["thread", "list", "--status", "interrupted"]);
    assert!(output.stdout.contains("interrupted"), "{output}");
    assert!(output.stderr.contains(&format!("to continue: rye thread resume {id}")), "{output}");
    let tail = user.ok(["thread", "tail", &id]);
    assert!(tail.stderr.contains("its process is gone"), "{tail}");
    let resumed = run(command_with_model(&user, &model).args(["thread", "resume", &id]));
    assert_eq!((resumed.exit, resumed.stdout.as_str()), (0, "Hello.\n"), "{resumed}");
    assert_eq!(user.data(["thread", "verify", &id])["bad"], 0);
}

#[test]
fn prune_removes_ended_threads_on_consent() {
    let user = User::initialized();
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    let id = newest_thread(&user);
    assert_eq!(user.data(["thread", "prune", "--yes"])["pruned"], json!([]));
    assert_eq!(user.data(["thread", "prune", "--older-than", "0", "--yes"])["pruned"], json!([id]));
    assert_eq!(threads(&user), Vec::<Value>::new());
    assert!(user.project().join(format!(".ai/threads/archive/{id}/transcript.jsonl")).is_file());
}

#[test]
fn markdown_transcript_has_prompt_calls_and_cost() {
    let user = User::initialized();
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    let page = user.ok(["thread", "transcript", "--markdown", &newest_thread(&user)]);
    for part in
        ["# team/note", "Write a note.", "### Tool: rye_file_system_write", "**Completed** -- 3 turns"]
    {
        assert!(page.stdout.contains(part), "{part}: {page}");
    }
}

#[test]
fn replay_needs_no_model_and_reports_divergence() {
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|_| FakeReply::text("Hello."));
    assert_eq!(run(command_with_model(&user, &model).args(["run", "team/ask"])).exit, 0);
    let id = newest_thread(&user);
    let again = user.ok(["thread", "replay", &id]);
    assert_eq!(again.stdout, "Hello.\n", "{again}");
    assert_eq!(newest_thread(&user), id, "no thread is started");
    write_directive(&user, "ask", FILES, "", "Say goodbye.");
    let other = user.run(["thread", "replay", &id]);
    assert_eq!(other.exit, 1, "{other}");
    assert!(other.stderr.contains("differs from what was recorded"), "{other}");
    assert!(other.stderr.contains("- Say hello.") && other.stderr.contains("+ Say goodbye."), "{other}");
    assert_eq!(model.count(), 1);
}

/// What a terminal obeys is taken out of a model's words wherever they are shown, styles of our own or not.
#[test]
fn words_of_models_cannot_command_terminals() {
    const WORDS: &str = "\u{1b}]52;c;aGk=\u{7}\u{1b}[2J\u{9b}31m\u{1b}[8mhid\u{202e}den\r\u{8}";
    let user = User::initialized();
    write_directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|seen| match seen.tool_results {
        0 => FakeReply::calls_and_text(WORDS, [("rye_file_system_ls", json!({"path": WORDS}))]),
        _ => FakeReply::text(WORDS),
    });
    let shown = run(command_with_model(&user, &model).args(["--color", "always", "run", "team/ask"]));
    let id = newest_thread(&user);
    let mut all = vec![shown];
    for words in [
        vec!["thread", "show", &id],
        vec!["thread", "tail", &id],
        vec!["thread", "transcript", &id],
        vec!["thread", "transcript", "--markdown", &id],
        vec!["thread", "replay", &id],
        vec!["thread", "wait", &id],
        vec!["thread", "list"],
        vec!["thread", "cost", &id],
    ] {
        let mut arguments = vec!["--color", "always"];
        arguments.extend(words);
        all.push(run(command_with_model(&user, &model).args(arguments)));
    }
    for run in all {
        assert_eq!(run.exit, 0, "{run}");
        let text = format!("{}{}", run.stdout, run.stderr);
        for forbidden in ["\u{1b}]", "\u{1b}[2J", "\u{1b}[8m", "\u{9b}", "\u{7}", "\u{8}", "\r", "\u{202e}"] {
            assert!(!text.contains(forbidden), "{forbidden:?}: {text:?}");
        }
    }
    let replayed =
        run(command_with_model(&user, &model).args(["--color", "always", "thread", "replay", &id]));
    assert_eq!(replayed.stdout, "hidden\n", "{replayed}");
}

#[test]
fn replay_covers_the_tree_without_effects() {
    let user = User::initialized();
    let grants = "<permissions><execute><tool>rye.file-system.*</tool><tool>rye.agent.threads.*</tool><directive>team.*</directive></execute></permissions>";
    write_directive(&user, "child", FILES, "", "Be the child.");
    write_directive(&user, "parent", grants, "", "Be the parent.");
    let model =
        FakeModel::start(|seen| match (seen.body.to_string().contains("Be the child."), seen.tool_results) {
            (false, 0) => FakeReply::calls([(
                "rye_agent_threads_thread_directive",
                json!({"directive_name": "team/child", "async_exec": true}),
            )]),
            (false, 1) => {
                let id = seen.tool_result_texts().concat();
                let at = id.find("thread-").unwrap_or(0);
                let ids = [&id[at..(at + 19).min(id.len())]];
                FakeReply::calls([(
                    "rye_agent_threads_orchestrator",
                    json!({"operation": "wait_threads", "thread_ids": ids}),
                )])
            }
            (true, 0) => {
                FakeReply::calls([("rye_file_system_write", json!({"path": "once.txt", "content": "x"}))])
            }
            _ => FakeReply::text("done"),
        });
    let output = run(command_with_model(&user, &model).args(["run", "team/parent"]));
    assert_eq!(output.exit, 0, "{output}");
    let (asked, rows) = (model.count(), threads(&user));
    assert_eq!(rows.len(), 2, "{rows:?}");
    let parent = rows.iter().find(|row| row["directive"] == "team/parent").expect("a thread");
    let id = text(&parent["thread_id"]);
    fs::remove_file(user.project().join("once.txt")).expect("removed");
    let replayed = run(command_with_model(&user, &model).args(["--json", "thread", "replay", &id]));
    assert_eq!(replayed.exit, 0, "{replayed}");
    assert_eq!(model.count(), asked, "no model is asked");
    assert!(!user.project().join("once.txt").exists(), "no tool runs");
    assert_eq!(threads(&user), rows, "nothing is written or charged");
    write_directive(&user, "child", FILES, "", "Be another child.");
    let other = user.run(["thread", "replay", &id]);
    assert_eq!(other.exit, 1, "{other}");
    assert!(other.stderr.contains("✓ team/parent") && other.stderr.contains("✗ team/child"), "{other}");
    assert!(other.stderr.contains("+ Be another child."), "{other}");
}

#[test]
fn children_are_listed_under_their_parent() {
    let user = User::initialized();
    write_note_directive(&user);
    let grants = "<permissions><execute><tool>rye.file-system.*</tool><tool>rye.agent.threads.thread_directive</tool><directive>team.*</directive></execute></permissions>";
    let process = "<process><execute item_type=\"tool\" item_id=\"rye/agent/threads/thread_directive\"><param name=\"directive_name\" value=\"team/note\"/></execute></process>";
    write_directive(&user, "parent", grants, process, "Let another write a note.");
    let output = user.ok(["run", "team/parent"]);
    let printed_lines: Vec<&str> = output.stderr.lines().collect();
    assert!(printed_lines[1].starts_with("  ↳ team/note · thread-"), "{output}");
    assert!(printed_lines[2].starts_with("  ✓ completed · team/note · 3 turns"), "{output}");
    assert!(
        printed_lines[3].starts_with("✓ rye_agent_threads_thread_directive · directive_name=team/note"),
        "{output}"
    );
    let rows = user.data(["thread", "tree"])["threads"].as_array().expect("threads").clone();
    let (parent, child) = (&rows[0], &rows[1]);
    assert_eq!(child["parent_thread_id"], parent["thread_id"], "{rows:?}");
    let parent = text(&parent["thread_id"]);
    let tree = user.ok(["thread", "tree", &parent, "--live"]);
    assert!(tree.stdout.starts_with("✓ team/parent · completed · 2 turns"), "{tree}");
    assert!(tree.stdout.contains("\n└─ ✓ team/note · completed · 3 turns"), "{tree}");
    let tail = user.ok(["thread", "tail", "--tree", &parent]);
    let lines: Vec<&str> = tail.stdout.lines().collect();
    let line_index = |start: &str| {
        lines.iter().position(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {tail}"))
    };
    assert_eq!(line_index("▶ team/parent"), 0, "{tail}");
    assert!(line_index("  ✓ rye_file_system_write") < line_index("  ✓ completed · team/note"), "{tail}");
    assert!(line_index("  ✓ completed · team/note") < line_index("✓ completed · 2 turns"), "{tail}");
    assert_eq!(
        user.data(["thread", "list"])["threads"].as_array().map(Vec::len),
        Some(1),
        "children are not listed"
    );
}

#[test]
fn show_without_an_id_shows_the_latest() {
    let user = User::initialized();
    user.run(["thread", "show", "--json"]).error(3, "RYE1114");
    for name in ["Ada", "Grace"] {
        user.ok(["run", "examples/greet", &format!("name={name}")]);
    }
    let latest = newest_thread(&user);
    let shown = user.run(["thread", "show", "--json"]).json();
    assert_eq!(shown["item_id"], latest.as_str(), "{shown}");
    assert_eq!(user.ok(["thread", "show"]).stdout, user.ok(["thread", "show", &latest]).stdout);
}
