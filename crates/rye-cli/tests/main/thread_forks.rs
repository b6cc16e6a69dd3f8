//! `rye thread fork`: a new thread at a turn of an old one. What was said goes along, what was done is not done again, and
//! permissions and limits are those of the old one at most.

use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{Run, User, run, text};
use crate::thread_run::{
    FILES, command_with_model, newest_thread, spawn_with_model, threads, write_directive,
};

const ORCHESTRATOR: &str = "rye/agent/threads/orchestrator";
const WRITE: &str = "rye_file_system_write";
const SPAWN: &str = "rye_agent_threads_thread_directive";
const ORCHESTRATE: &str = "rye_agent_threads_orchestrator";
const SPAWNER: &str = "<permissions><execute><tool>rye.agent.threads.*</tool><tool>rye.file-system.*</tool><directive>team.*</directive></execute></permissions>";

fn write_call() -> FakeReply {
    FakeReply::calls_and_text("I write.", [(WRITE, json!({"path": "note.txt", "content": "hello"}))])
}

/// Answers the first request with a call that writes a file, and any other with words.
fn writing_model() -> FakeModel {
    FakeModel::start(|request| {
        let reply = if request.tool_results == 0 { write_call() } else { FakeReply::text("It is written.") };
        reply.with_usage(100, 0, 10)
    })
}

fn words(model: &FakeModel, index: usize) -> Vec<(String, String)> {
    let body = model.requests()[index].body.clone();
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    messages.iter().map(|message| (text(&message["role"]), message["content"].to_string())).collect()
}

fn roles(model: &FakeModel, index: usize) -> Vec<String> {
    words(model, index).into_iter().map(|(role, _)| role).collect()
}

fn fork_id(user: &User, source: &str) -> String {
    let rows = threads(user);
    let fork = rows.iter().find(|row| row["forked_from"]["thread_id"] == source).expect("a fork");
    text(&fork["thread_id"])
}

fn client(user: &User, model: &FakeModel) -> Client {
    let environment =
        [("OPENAI_API_KEY", "sk-of-a-test-0123456789"), ("OPENAI_BASE_URL", &*format!("{}/v1", model.url()))];
    Client::connect_with(user, &environment, json!({}))
}

#[test]
fn fork_copies_history_and_repeats_no_effect() {
    let user = User::initialized();
    let model = writing_model();
    write_directive(&user, "note", FILES, "", "Write a note.");
    assert_eq!(run(command_with_model(&user, &model).args(["run", "team/note"])).exit, 0);
    let source = newest_thread(&user);
    let note = user.project().join("note.txt");
    std::fs::remove_file(&note).expect("the note");
    let arguments = ["thread", "fork", &source, "--at", "1", "--message", "Now say it in Latin."];
    let forked = run(command_with_model(&user, &model).args(arguments));
    assert_eq!(forked.exit, 0, "{forked}");
    assert!(forked.stderr.contains(&format!("forked from {source} at turn 1")), "{forked}");
    assert!(!note.exists(), "the tool ran again");
    assert_eq!(roles(&model, 2), ["user", "assistant", "tool", "user"]);
    assert!(words(&model, 2)[3].1.contains("Now say it in Latin."));
    let id = fork_id(&user, &source);
    let shown = user.data(["thread", "show", &id]);
    let from = &shown["forked_from"];
    assert_eq!((&from["thread_id"], &from["turn"]), (&json!(source), &json!(1)), "{shown}");
    assert_eq!(text(&from["journal"]).len(), 64, "{shown}");
    assert_eq!((&shown["cost"]["turns"], &shown["status"]), (&json!(1), &json!("completed")), "{shown}");
    let label = format!("forked from {source} at turn 1");
    for command in [vec!["thread", "show", &id], vec!["thread", "tree", &id]] {
        assert!(user.ok(&command).stdout.contains(&label), "{command:?}");
    }
    assert!(user.ok(["thread", "list"]).stderr.contains(&label));
    let old = user.data(["thread", "show", &source]);
    assert_eq!((&old["status"], &old["cost"]["turns"]), (&json!("completed"), &json!(2)), "{old}");
    user.ok(["thread", "verify", "--all"]);
    assert_eq!(run(command_with_model(&user, &model).args(["thread", "replay", &id])).exit, 0);
}

#[test]
fn fork_asks_another_model_from_the_start() {
    let user = User::initialized();
    let model = writing_model();
    write_directive(&user, "note", FILES, "", "Write a note.");
    assert_eq!(
        run(command_with_model(&user, &model).args(["run", "team/note", "--model", "gpt-4.1"])).exit,
        0
    );
    let source = newest_thread(&user);
    let arguments = ["thread", "fork", &source, "--at", "0", "--model", "gpt-4o-mini", "--limit", "turns=3"];
    assert_eq!(run(command_with_model(&user, &model).args(arguments)).exit, 0);
    assert_eq!((roles(&model, 2), words(&model, 0)), (vec!["user".to_owned()], words(&model, 2)));
    assert_eq!(model.requests()[2].body["model"], "gpt-4o-mini");
    let shown = user.data(["thread", "show", &fork_id(&user, &source)]);
    assert_eq!((&shown["model"], &shown["limits"]["turns"]), (&json!("gpt-4o-mini"), &json!(3)), "{shown}");
}

#[test]
fn turns_that_cannot_be_forked_are_named() {
    let user = User::initialized();
    let model = writing_model();
    write_directive(&user, "note", FILES, "", "Write a note.");
    assert_eq!(run(command_with_model(&user, &model).args(["run", "team/note"])).exit, 0);
    let source = newest_thread(&user);
    let fork = command_with_model(&user, &model)
        .args(["--json", "thread", "fork", &source, "--at", "9"])
        .output()
        .expect("a run");
    let error = Run::from_output(&fork).error(2, "RYE0104");
    assert!(text(&error["error"]).contains("it has 2 turns, not 9"), "{error}");
    let fork = command_with_model(&user, &model)
        .args(["--json", "thread", "fork", &source])
        .output()
        .expect("a run");
    let error = Run::from_output(&fork).error(2, "RYE0104");
    assert!(text(&error["error"]).contains("the model spoke last in turn 2"), "{error}");

    let gate = "<permissions><execute><tool>rye.agent.threads.*</tool></execute></permissions>";
    write_directive(&user, "ask", gate, "", "Ask first.");
    let asking = FakeModel::start(|_| {
        FakeReply::calls([("rye_agent_threads_human_approval", json!({"prompt": "May I?"}))])
            .with_usage(100, 0, 10)
    });
    assert_eq!(run(command_with_model(&user, &asking).args(["run", "team/ask"])).exit, 6);
    let waiting = newest_thread(&user);
    let fork = command_with_model(&user, &asking)
        .args(["--json", "thread", "fork", &waiting, "--at", "1"])
        .output()
        .expect("a run");
    let error = Run::from_output(&fork).error(2, "RYE0104");
    assert!(text(&error["error"]).contains("turn 1 is not over"), "{error}");
    let talking = FakeModel::start(|_| FakeReply::text("I do not ask.").with_usage(100, 0, 10));
    let forked = run(command_with_model(&user, &talking).args(["thread", "fork", &waiting]));
    assert_eq!((forked.exit, roles(&talking, 0)), (0, vec!["user".to_owned()]), "{forked}");
    assert_eq!(user.data(["thread", "show", &waiting])["status"], "suspended");
}

/// A thread that failed, was cancelled or stopped at a limit can be forked like one that is done.
#[test]
fn fork_works_for_threads_that_did_not_end_well() {
    let user = User::initialized();
    write_directive(&user, "note", FILES, "", "Write a note.");
    let failing = FakeModel::start(|request| match request.tool_results {
        0 => write_call().with_usage(100, 0, 10),
        _ => {
            FakeReply::status(400, &json!({"error": {"type": "invalid_request_error", "message": "no"}}), &[])
        }
    });
    assert_eq!(run(command_with_model(&user, &failing).args(["run", "team/note"])).exit, 1);
    let failed = newest_thread(&user);
    let limited = writing_model();
    let arguments = ["run", "team/note", "--limit", "turns=1"];
    assert_eq!(run(command_with_model(&user, &limited).args(arguments)).exit, 6);
    let suspended = newest_thread(&user);
    let gate = Gate::closed();
    let held = gate.clone();
    let slow = FakeModel::start(move |request| match request.tool_results {
        0 => write_call().with_usage(100, 0, 10),
        _ => FakeReply::text("late").with_gate(&held),
    });
    let running = spawn_with_model(&user, &slow, &["run", "team/note"]);
    slow.wait_for_requests(2);
    let cancelled = newest_thread(&user);
    user.ok(["thread", "cancel", &cancelled]);
    assert_eq!(running.wait_with_output().expect("an end").status.code(), Some(7));
    gate.open();
    for source in [&failed, &suspended, &cancelled] {
        let model = writing_model();
        let arguments = ["thread", "fork", source, "--at", "1", "--limit", "turns=5"];
        let forked = run(command_with_model(&user, &model).args(arguments));
        assert_eq!(forked.exit, 0, "{source} {forked}");
        assert_eq!(roles(&model, 0), ["user", "assistant", "tool"], "{source}");
    }
}

#[test]
fn client_forks_and_never_widens() {
    let user = User::initialized();
    let model = writing_model();
    write_directive(&user, "note", FILES, "", "Write a note.");
    let arguments = ["run", "team/note", "--limit", "turns=4"];
    assert_eq!(run(command_with_model(&user, &model).args(arguments)).exit, 0);
    let source = newest_thread(&user);
    // Wider permissions of today are not the fork's: it has those of the source at most.
    let wide = "<permissions><execute><tool>*</tool></execute></permissions>";
    write_directive(&user, "note", wide, "", "Write a note.");
    let mut client = client(&user, &model);
    let fork = |more: Value| {
        let mut parameters =
            json!({"operation": "fork_thread", "thread_id": source, "turn": 1, "message": "Again."});
        parameters.as_object_mut().expect("a map").extend(more.as_object().expect("a map").clone());
        json!({"item_type": "tool", "item_id": ORCHESTRATOR, "parameters": parameters})
    };
    let (refused, is_error) =
        client.call_outcome("rye_execute", fork(json!({"limit_overrides": {"turns": 5}})));
    assert!(is_error && refused.to_string().contains("turns would be raised"), "{refused}");
    let done = client.call("rye_execute", fork(json!({"limit_overrides": {"turns": 3}})));
    assert_eq!(done["data"]["status"], "completed", "{done}");
    assert_eq!(done["data"]["forked_from"]["thread_id"], json!(source), "{done}");
    let offered = model.requests().last().expect("a request").body["tools"].to_string();
    assert!(offered.contains(WRITE) && !offered.contains("rye_bash"), "{offered}");
    let id = text(&done["data"]["thread_id"]);
    assert_eq!(user.data(["thread", "show", &id])["limits"]["turns"], 3);
    let started = client.call("rye_execute", fork(json!({"async_exec": true})));
    let id = text(&started["data"]["thread_id"]);
    let wait = json!({"operation": "wait_threads", "thread_ids": [id]});
    let waited =
        client.call("rye_execute", json!({"item_type": "tool", "item_id": ORCHESTRATOR, "parameters": wait}));
    assert_eq!(waited["data"]["results"][&id]["status"], "completed", "{waited}");
}

/// A thread forks its own child: the fork is its child too, and no thread of another tree.
#[test]
fn thread_forks_only_what_is_below_it() {
    let user = User::initialized();
    let model = FakeModel::start(|request| {
        let body = request.body.to_string();
        let results = request.tool_result_texts();
        let thread_of = |text: &String| -> Value {
            serde_json::from_str::<Value>(text).map(|result| result["thread_id"].clone()).unwrap_or_default()
        };
        let reply = if body.contains("Be the child") {
            FakeReply::text("a child's words")
        } else {
            match results.len() {
                0 => FakeReply::calls([(SPAWN, json!({"directive_name": "team/child"}))]),
                1 => {
                    let fork = json!({
                        "operation": "fork_thread", "thread_id": thread_of(&results[0]), "turn": 1, "message": "Go on.",
                    });
                    FakeReply::calls([(ORCHESTRATE, fork)])
                }
                _ => FakeReply::text(&results[1]),
            }
        };
        reply.with_usage(100, 0, 10)
    });
    write_directive(&user, "child", "", "", "Be the child.");
    write_directive(&user, "parent", SPAWNER, "", "Be the parent.");
    let result = run(command_with_model(&user, &model).args(["run", "team/parent"]));
    assert_eq!(result.exit, 0, "{result}");
    let rows = threads(&user);
    let parent = rows.iter().find(|row| row["directive"] == "team/parent").expect("the parent");
    let fork = rows.iter().find(|row| !row["forked_from"].is_null()).expect("the fork");
    assert_eq!(fork["parent_thread_id"], parent["thread_id"], "{rows:?}");
    assert!(result.stdout.contains("a child's words"), "{result}");

    let other = text(&parent["thread_id"]);
    let stranger = FakeModel::start(move |request| {
        let fork = json!({"operation": "fork_thread", "thread_id": other, "turn": 1});
        match request.tool_result_texts().first() {
            None => FakeReply::calls([(ORCHESTRATE, fork)]),
            Some(answer) => FakeReply::text(answer),
        }
        .with_usage(100, 0, 10)
    });
    let result = run(command_with_model(&user, &stranger).args(["run", "team/parent"]));
    assert!(result.stdout.contains("is not of this thread's tree"), "{result}");
}

#[test]
fn killed_fork_resumes_with_its_history() {
    let user = User::initialized();
    let model = writing_model();
    write_directive(&user, "note", FILES, "", "Write a note.");
    assert_eq!(run(command_with_model(&user, &model).args(["run", "team/note"])).exit, 0);
    let source = newest_thread(&user);
    let gate = Gate::closed();
    let held = gate.clone();
    let slow = FakeModel::start(move |request| match request.number {
        1 => FakeReply::text("late").with_gate(&held),
        _ => FakeReply::text("done").with_usage(100, 0, 10),
    });
    let arguments = ["thread", "fork", &source, "--at", "1", "--message", "Go on."];
    let mut running = spawn_with_model(&user, &slow, &arguments);
    slow.wait_for_requests(1);
    running.kill().expect("kill -9");
    running.wait().expect("an end");
    gate.open();
    let id = fork_id(&user, &source);
    let resumed = run(command_with_model(&user, &slow).args(["thread", "resume", &id]));
    assert_eq!(resumed.exit, 0, "{resumed}");
    assert_eq!(words(&slow, 0), words(&slow, 1));
    user.ok(["thread", "verify", "--all"]);
}
