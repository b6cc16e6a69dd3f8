//! Runs without a model: a directive's own actions, and nothing invented.

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, run};
use crate::thread_run::{FILES, newest_thread, threads, write_directive};

#[test]
fn directive_without_actions_needs_a_model() {
    let user = User::initialized();
    let head = "<outputs><output name=\"words\" type=\"integer\">How many</output></outputs>";
    write_directive(&user, "count", "", head, "Count the words.");
    let run = user.run(["run", "team/count"]);
    assert_eq!((run.exit, run.stdout.as_str()), (1, ""), "{run}");
    assert!(run.stderr.lines().next().is_some_and(|line| line.contains("no model was asked")), "{run}");
    assert!(run.stderr.contains("the directive has no actions of its own"), "{run}");
    let run = user.run(["--json", "run", "team/count"]);
    let line = run.stdout.lines().last().expect("an answer");
    let answer: Value = serde_json::from_str(line).expect("JSON");
    assert_eq!((run.exit, &answer["success"], &answer["outputs"]), (1, &json!(false), &json!(null)), "{run}");
    assert_eq!(answer["note"], "no model was asked", "{run}");
}

#[test]
fn failed_action_fails_an_offline_run() {
    let user = User::initialized();
    let grant = "<permissions><execute><tool>rye.file-system.read</tool></execute></permissions>";
    let read = |path: &str| {
        format!(
            "<process><execute item_type=\"tool\" item_id=\"rye/file-system/read\"><param name=\"path\" value=\"{path}\"/></execute></process>"
        )
    };
    write_directive(&user, "read", grant, &read("missing.txt"), "Read.");
    let run = user.run(["run", "team/read"]);
    assert_eq!(run.exit, 1, "{run}");
    assert!(run.stderr.contains("action 1 (`execute rye/file-system/read`) failed"), "{run}");
    // Nothing is granted: there is no tool to call.
    write_directive(&user, "denied", "", &read("missing.txt"), "Read.");
    let run = user.run(["run", "team/denied"]);
    assert_eq!(run.exit, 1, "{run}");
    assert!(run.stderr.contains("no model was asked what to do instead"), "{run}");
    let other = grant.replace("read", "write");
    write_directive(&user, "denied", &other, &read("missing.txt"), "Read.");
    let run = user.run(["run", "team/denied"]);
    assert_eq!(run.exit, 1, "{run}");
    assert!(run.stderr.contains("`execute tool rye/file-system/read` was denied"), "{run}");
}

#[test]
fn changed_tool_of_a_run_names_the_command() {
    let user = User::initialized();
    // A grant of this tool alone would have it checked before the thread starts.
    let grant = "<permissions><execute><tool>examples.*</tool></execute></permissions>";
    let body = "<process><execute item_type=\"tool\" item_id=\"examples/hello\"/></process>";
    write_directive(&user, "hello", grant, body, "Say hello.");
    let path = user.project().join(".ai/tools/examples/hello.py");
    let mut tool = std::fs::read_to_string(&path).expect("a tool");
    tool.push_str("\n# changed\n");
    std::fs::write(&path, tool).expect("written");
    let failed = user.run(["run", "team/hello"]);
    assert_eq!(failed.exit, 1, "{failed}");
    assert!(failed.stderr.contains("tool:examples/hello: rye verify tool examples/hello;"), "{failed}");
    assert!(!failed.stderr.contains("rye sign"), "nothing is to be signed unread: {failed}");
}

#[test]
fn thread_without_model_is_not_continued() {
    let user = User::initialized();
    user.ok(["run", "examples/greet", "name=Ada"]);
    let id = newest_thread(&user);
    let refused = user.run(["--json", "run", "examples/greet", "--continue", &id]).error(2, "RYE0104");
    assert!(refused["error"].to_string().contains("ran without a model"), "{refused}");
    assert_eq!(threads(&user).len(), 1, "no thread was made");
}

#[test]
fn required_output_is_never_invented() {
    let user = User::initialized();
    let body = |required: &str| {
        format!(
            "<outputs><output name=\"words\" type=\"integer\" required=\"{required}\">How many</output></outputs>\
             <process><execute item_type=\"tool\" item_id=\"rye/file-system/write\"><param name=\"path\" value=\"a.txt\"/><param name=\"content\" value=\"a b\"/></execute></process>"
        )
    };
    write_directive(&user, "count", FILES, &body("true"), "Count.");
    let run = user.run(["run", "team/count"]);
    assert_eq!((run.exit, run.stdout.as_str()), (1, ""), "{run}");
    assert!(run.stderr.contains("no action produced the required output `words`"), "{run}");
    write_directive(&user, "count", FILES, &body("false"), "Count.");
    assert_eq!(user.ok(["run", "team/count"]).json(), json!({}));
}

#[test]
fn misspelt_key_variable_is_pointed_out() {
    let user = User::initialized();
    let run_with = |words: &[&str]| run(user.command().env("OPENAI_KEY", "sk-1").args(words));
    let run = run_with(&["run", "examples/greet", "name=Ada"]);
    assert_eq!(run.exit, 0, "{run}");
    assert!(
        run.stderr.contains("`OPENAI_KEY` is set, but `openai` reads its key from `OPENAI_API_KEY`"),
        "{run}"
    );
    let run = run_with(&["run", "examples/greet", "--provider", "openai"]);
    assert!(run.stderr.contains("`OPENAI_KEY` is set, but"), "{run}");
}

#[test]
fn forked_thread_without_model_is_an_error() {
    let user = User::initialized();
    write_directive(&user, "count", "", "", "Count the words.");
    let mut client = Client::connect(&user);
    let order = json!({"item_id": "directive:team/count", "thread": "fork"});
    let answer = client.call_error("rye_execute", order, "RYE1134");
    assert_eq!(answer["status"], "error", "{answer}");
    assert!(answer["error"].as_str().is_some_and(|error| error.contains("no model was asked")), "{answer}");
    let order =
        json!({"item_id": "directive:examples/greet", "thread": "fork", "parameters": {"name": "Ada"}});
    let answer = client.call("rye_execute", order);
    assert_eq!(answer["data"]["outputs"]["greeting"], "Hello, Ada!", "{answer}");
    assert_eq!(answer["data"]["note"], "no model was asked", "{answer}");
}
