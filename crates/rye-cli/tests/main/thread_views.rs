//! `rye thread …`: looking at threads, following them, ending them, and whether what they wrote is still that.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;

use rye_test::fake_model::{FakeModel, Reply};
use serde_json::{Value, json};

use crate::running::RYE;
use crate::support::{User, differences, run, text};
use crate::thread_run::{FILES, asking, beside, directive, newest, note, threads};

#[test]
fn looking_where_no_thread_has_been_makes_nothing() {
    let user = User::ready();
    let before = user.snapshot();
    assert_eq!(user.data(["thread", "list"]), json!({"threads": []}));
    assert_eq!(user.data(["thread", "tree"]), json!({"threads": []}));
    assert_eq!(user.data(["thread", "verify", "--all"])["checked"], 0);
    for verb in ["show", "tail", "transcript", "verify", "cancel", "kill", "resume", "wait"] {
        user.refused(["thread", verb, "0a1b2c3d4e5f"], 3, "RYE1114");
        user.refused(["thread", verb, "../../etc"], 2, "RYE0104");
    }
    user.refused(["thread", "approve", "0a1b"], 3, "RYE1119");
    user.refused(["thread", "prune"], 2, "RYE0105");
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn a_list_has_every_key_of_the_contract_and_can_be_narrowed() {
    let user = User::ready();
    note(&user);
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
    assert_eq!(count(&["--directive", "team/note"]), 2);
    assert_eq!(count(&["--limit", "1"]), 1);
    user.refused(["thread", "list", "--status", "asleep"], 2, "RYE0104");
    let shown = user.ok(["thread", "list"]);
    let suspended = text(&rows[1]["thread_id"]);
    assert!(shown.stdout.contains("suspended (limit)"), "{shown}");
    assert!(
        shown.stderr.contains(&format!("to go on: rye thread resume {suspended} --limit turns=+10")),
        "{shown}"
    );
}

#[test]
fn a_thread_is_shown_by_the_beginning_of_its_name() {
    let user = User::ready();
    user.ok(["run", "examples/greet", "name=Ada"]);
    let id = newest(&user);
    for word in [&id, &id[7..], &id[7..13], &id[..13]] {
        assert_eq!(user.data(["thread", "show", word])["thread_id"], id.as_str(), "{word}");
    }
    let data = user.data(["thread", "show", &id]);
    assert_eq!((&data["success"], &data["status"]), (&json!(true), &json!("completed")), "{data}");
    assert_eq!(data["outputs"]["greeting"], "Hello, Ada!", "{data}");
    assert_eq!(data["limits"]["turns"], 4, "{data}");
    let shown = user.ok(["thread", "show", &id]);
    for part in ["✓ examples/greet completed", "turns      2 of 4", "Hello, Ada!", "--continue"] {
        assert!(shown.stdout.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_second_process_follows_a_thread_to_its_end() {
    let user = User::ready();
    directive(&user, "ask", FILES, "", "Say hello.");
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = std::sync::Mutex::new(receiver);
    let model = FakeModel::start(move |seen| match seen.tool_results {
        0 => Reply::calls([("rye_file_system_ls", json!({}))]),
        _ => {
            // Until the other process has seen the call.
            let _ = receiver.lock().expect("a lock").recv();
            Reply::text("Hello.")
        }
    });
    let mut running = beside(&user, &model, &["run", "team/ask"]);
    model.wait_for_requests(1);
    let id = newest(&user);
    let mut tail = user.program(RYE);
    tail.args(["thread", "tail", &id]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tail = tail.spawn().expect("started");
    let mut out = BufReader::new(tail.stdout.take().expect("a pipe"));
    let mut seen = Vec::new();
    while !seen.iter().any(|line: &String| line.starts_with("✓ rye_file_system_ls · ")) {
        let mut line = String::new();
        assert_ne!(out.read_line(&mut line).expect("a line"), 0, "{seen:?}");
        seen.push(line);
    }
    drop(sender);
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("✓ completed · 2 turns") && rest.contains("Hello."), "{rest}");
    assert!(tail.wait().expect("an end").success());
    assert!(running.wait().expect("an end").success());
    let events = user.ok(["--json", "thread", "tail", &id]);
    let kinds: Vec<String> = events
        .stdout
        .lines()
        .map(|line| text(&serde_json::from_str::<Value>(line).expect("an event")["event_type"]))
        .collect();
    assert_eq!(kinds.first().map(String::as_str), Some("thread_started"));
    assert!(kinds.contains(&"thread_completed".to_owned()), "{kinds:?}");
}

#[test]
fn an_edited_or_cut_transcript_is_told_with_its_line_and_exit_4() {
    let user = User::ready();
    note(&user);
    user.ok(["run", "team/note"]);
    let id = newest(&user);
    let path = user.project().join(format!(".ai/threads/{id}/transcript.jsonl"));
    let whole = fs::read_to_string(&path).expect("a transcript");
    assert_eq!(user.data(["thread", "verify", &id])["valid"], 1);
    let edited = whole.replacen("Write a note.", "Write a nose.", 1);
    let cut: String = whole.lines().take(4).map(|line| format!("{line}\n")).collect();
    for (content, state) in [(edited, "tampered"), (cut, "cut"), (String::new(), "cut")] {
        fs::write(&path, &content).expect("written");
        let answer = user.refused(["thread", "verify", "--all"], 4, "RYE1141");
        assert_eq!(answer["data"]["threads"][0]["state"], state, "{answer}");
        let shown = user.run(["thread", "verify", &id]);
        assert_eq!(shown.exit, 4, "{shown}");
        assert!(shown.stdout.contains(&format!("✗ {id} · {state}")), "{shown}");
        assert!(shown.stdout.contains("  line "), "{shown}");
        assert_eq!(fs::read_to_string(&path).expect("a transcript"), content, "nothing is mended");
    }
    fs::write(&path, &whole).expect("written");
    user.ok(["thread", "verify", &id]);
}

#[test]
fn a_thread_of_another_process_is_cancelled_and_one_that_nobody_runs_ends_at_once() {
    let user = User::ready();
    directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|_| Reply::hang());
    let mut running = beside(&user, &model, &["run", "team/ask"]);
    model.wait_for_requests(1);
    let id = newest(&user);
    let held = run(asking(&user, &model).args(["--json", "thread", "resume", &id]));
    held.error(1, "RYE1115");
    let asked = user.ok(["thread", "cancel", &id]);
    assert_eq!(asked.stdout, format!("{id} asked to end\n"), "{asked}");
    assert_eq!(running.wait().expect("an end").code(), Some(7));
    assert_eq!(user.run(["thread", "wait", &id]).exit, 7);
    note(&user);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=1"]).exit, 6);
    let id = newest(&user);
    assert_eq!(user.run(["thread", "wait", &id]).exit, 6);
    let ended = user.ok(["thread", "cancel", &id]);
    assert_eq!(ended.stdout, format!("{id} cancelled\n"), "{ended}");
    user.refused(["thread", "cancel", &id], 2, "RYE1131");
    user.refused(["thread", "kill", &id], 2, "RYE1131");
}

#[test]
fn a_thread_whose_process_was_killed_is_interrupted_and_goes_on() {
    let user = User::ready();
    directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|seen| if seen.n == 1 { Reply::hang() } else { Reply::text("Hello.") });
    let mut running = beside(&user, &model, &["run", "team/ask"]);
    model.wait_for_requests(1);
    running.kill().expect("killed");
    running.wait().expect("collected");
    let row = threads(&user).remove(0);
    assert_eq!((&row["status"], &row["reason"]), (&json!("running"), &json!("interrupted")), "{row}");
    let id = text(&row["thread_id"]);
    let shown = user.ok(["thread", "list", "--status", "interrupted"]);
    assert!(shown.stdout.contains("interrupted"), "{shown}");
    assert!(shown.stderr.contains(&format!("to go on: rye thread resume {id}")), "{shown}");
    let tail = user.ok(["thread", "tail", &id]);
    assert!(tail.stderr.contains("its process is gone"), "{tail}");
    let resumed = run(asking(&user, &model).args(["thread", "resume", &id]));
    assert_eq!((resumed.exit, resumed.stdout.as_str()), (0, "Hello.\n"), "{resumed}");
    assert_eq!(user.data(["thread", "verify", &id])["bad"], 0);
}

#[test]
fn what_ended_is_forgotten_when_somebody_agrees() {
    let user = User::ready();
    note(&user);
    user.ok(["run", "team/note"]);
    let id = newest(&user);
    assert_eq!(user.data(["thread", "prune", "--yes"])["pruned"], json!([]));
    assert_eq!(user.data(["thread", "prune", "--older-than", "0", "--yes"])["pruned"], json!([id]));
    assert_eq!(threads(&user), Vec::<Value>::new());
    assert!(user.project().join(format!(".ai/threads/archive/{id}/transcript.jsonl")).is_file());
}

#[test]
fn a_page_holds_prompt_calls_and_cost() {
    let user = User::ready();
    note(&user);
    user.ok(["run", "team/note"]);
    let page = user.ok(["thread", "transcript", "--markdown", &newest(&user)]);
    for part in
        ["# team/note", "Write a note.", "### Tool: rye_file_system_write", "**Completed** -- 3 turns"]
    {
        assert!(page.stdout.contains(part), "{part}: {page}");
    }
}

#[test]
fn a_replay_gives_the_same_end_without_a_model_and_says_where_it_differs() {
    let user = User::ready();
    directive(&user, "ask", FILES, "", "Say hello.");
    let model = FakeModel::start(|_| Reply::text("Hello."));
    assert_eq!(run(asking(&user, &model).args(["run", "team/ask"])).exit, 0);
    let id = newest(&user);
    let again = user.ok(["thread", "replay", &id]);
    assert_eq!(again.stdout, "Hello.\n", "{again}");
    assert_ne!(newest(&user), id);
    directive(&user, "ask", FILES, "", "Say goodbye.");
    let other = user.run(["thread", "replay", &id]);
    assert_eq!(other.exit, 1, "{other}");
    assert!(other.stderr.contains("differ from what was recorded"), "{other}");
    assert_eq!(model.count(), 1);
}

#[test]
fn children_are_seen_under_their_parent() {
    let user = User::ready();
    note(&user);
    let grants = "<permissions><execute><tool>rye.file-system.*</tool><tool>rye.agent.threads.thread_directive</tool><directive>team.*</directive></execute></permissions>";
    let process = "<process><execute item_type=\"tool\" item_id=\"rye/agent/threads/thread_directive\"><param name=\"directive_name\" value=\"team/note\"/></execute></process>";
    directive(&user, "parent", grants, process, "Let another write a note.");
    let shown = user.ok(["run", "team/parent"]);
    let told: Vec<&str> = shown.stderr.lines().collect();
    assert!(told[1].starts_with("  ↳ team/note · thread-"), "{shown}");
    assert!(told[2].starts_with("  ✓ completed · team/note · 3 turns"), "{shown}");
    assert!(
        told[3].starts_with("✓ rye_agent_threads_thread_directive · directive_name=team/note"),
        "{shown}"
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
    let place = |start: &str| {
        lines.iter().position(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {tail}"))
    };
    assert_eq!(place("▶ team/parent"), 0, "{tail}");
    assert!(place("  ✓ rye_file_system_write") < place("  ✓ completed · team/note"), "{tail}");
    assert!(place("  ✓ completed · team/note") < place("✓ completed · 2 turns"), "{tail}");
    assert_eq!(
        user.data(["thread", "list"])["threads"].as_array().map(Vec::len),
        Some(1),
        "children are not listed"
    );
}
