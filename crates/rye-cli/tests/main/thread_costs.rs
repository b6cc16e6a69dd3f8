//! What trees of threads cost, how they look while they run, and what is forgotten of them.

use std::io::Read;

use rye_test::fake_model::{FakeModel, FakeReply, Gate};
use serde_json::{Value, json};

use crate::support::{Run, User, run, text};
use crate::thread_run::{
    command_with_model, newest_thread, spawn_with_model, threads, write_directive, write_note_directive,
};

const SPAWNER: &str = "<permissions><execute><tool>rye.agent.threads.thread_directive</tool><directive>team.*</directive></execute></permissions>";

/// A parent that starts one child; each asks the model once or twice, for 1,100 tokens each time.
fn write_parent_and_child(user: &User) -> FakeModel {
    write_directive(user, "child", "", "", "Be the child.");
    write_directive(user, "parent", SPAWNER, "", "Be the parent.");
    FakeModel::start(|request| {
        match (request.body.to_string().contains("Be the child"), request.tool_results) {
            (false, 0) => {
                let call = json!({"directive_name": "team/child"});
                FakeReply::calls([("rye_agent_threads_thread_directive", call)]).with_usage(1000, 0, 100)
            }
            (true, 0) => FakeReply::text("small").with_usage(1000, 0, 100),
            _ => FakeReply::text("done").with_usage(1000, 0, 100),
        }
    })
}

fn row_named<'a>(report: &'a Value, start: &str) -> &'a Value {
    let rows = report["rows"].as_array().expect("rows");
    let found = rows.iter().find(|row| text(&row["name"]).starts_with(start));
    found.unwrap_or_else(|| panic!("{start}: {report}"))
}

#[test]
fn cost_report_groups_add_up() {
    let user = User::initialized();
    let model = write_parent_and_child(&user);
    let result = run(command_with_model(&user, &model).args(["run", "team/parent"]));
    assert_eq!(result.exit, 0, "{result}");
    let rows = threads(&user);
    let of = |name: &str| rows.iter().find(|row| row["directive"] == name).expect("a thread").clone();
    let (parent, child) = (of("team/parent"), of("team/child"));
    let id = text(&parent["thread_id"]);
    let report = |by: &str| user.data(["thread", "cost", &id, "--by", by]);
    for by in ["item", "tool", "hook", "model", "child"] {
        let report = report(by);
        assert_eq!((&report["by"], &report["total"]["calls"]), (&json!(by), &json!(3)), "{report}");
        assert_eq!(report["total"]["spend"], parent["subtree_spend"], "{report}");
    }
    assert_eq!(row_named(&report("item"), "team/parent")["calls"], 2);
    assert_eq!(row_named(&report("item"), "team/child")["input_tokens"], 1000);
    assert_eq!(row_named(&report("tool"), "rye/agent/threads/thread_directive")["spend"], child["spend"]);
    assert_eq!(row_named(&report("tool"), "-")["spend"], parent["spend"]);
    assert_eq!(row_named(&report("child"), &text(&child["thread_id"]))["spend"], child["spend"]);
    assert_eq!(row_named(&report("child"), "itself")["spend"], parent["spend"]);
    let output = user.ok(["thread", "cost", &id, "--by", "child"]);
    assert!(output.stdout.contains("team/child") && output.stdout.contains("total $"), "{output}");
    user.assert_refused(["thread", "cost", "0a1b"], 3, "RYE1114");
}

#[test]
fn hook_directive_cost_is_charged_to_hook() {
    let user = User::initialized();
    write_directive(&user, "child", "", "", "Be the child.");
    let hook = "<hooks><hook id=\"review\" event=\"after_complete\"><action primary=\"execute\" item_type=\"directive\" item_id=\"team/child\"/></hook></hooks>";
    let grants = "<permissions><execute><directive>team.*</directive></execute></permissions>";
    write_directive(&user, "parent", &format!("{grants}{hook}"), "", "Be the parent.");
    let model = FakeModel::start(|_| FakeReply::text("done").with_usage(1000, 0, 100));
    let result = run(command_with_model(&user, &model).args(["run", "team/parent"]));
    assert_eq!(result.exit, 0, "{result}");
    let rows = threads(&user);
    let parent = rows.iter().find(|row| row["directive"] == "team/parent").expect("a thread");
    let report = user.data(["thread", "cost", &text(&parent["thread_id"]), "--by", "hook"]);
    assert_eq!((rows.len(), &row_named(&report, "review")["calls"]), (2, &json!(1)), "{report}");
}

#[test]
fn tree_shows_turns_limits_costs_and_alerts() {
    let user = User::initialized();
    let model = write_parent_and_child(&user);
    let result = run(command_with_model(&user, &model).args(["run", "team/parent", "--limit", "turns=1"]));
    assert_eq!(result.exit, 6, "{result}");
    let id = newest_root(&user);
    let rows = user.data(["thread", "tree", &id])["threads"].as_array().expect("threads").clone();
    assert_eq!(rows.len(), 2, "{rows:?}");
    assert_eq!((&rows[0]["status"], &rows[0]["attention"]), (&json!("suspended"), &json!(["approval"])));
    assert_eq!((&rows[0]["limits"]["turns"], &rows[0]["depth"]), (&json!(1), &json!(0)));
    assert_eq!((&rows[1]["attention"], &rows[1]["depth"]), (&json!([]), &json!(1)));
    // What a person allowed since is in the registry, whatever the state file says.
    let resumed =
        run(command_with_model(&user, &model).args(["thread", "resume", &id, "--limit", "turns=+9"]));
    assert_eq!(resumed.exit, 0, "{resumed}");
    user.write(&format!("threads/{id}/state.json"), "{\"limits\": {\"turns\": 999}}");
    assert_eq!(user.data(["thread", "tree", &id])["threads"][0]["limits"]["turns"], 10);
    assert_eq!(user.data(["thread", "show", &id])["limits"]["turns"], 10);
}

fn newest_root(user: &User) -> String {
    text(&user.data(["thread", "list"])["threads"][0]["thread_id"])
}

#[test]
fn live_tree_prints_changes_until_done() {
    let user = User::initialized();
    write_directive(&user, "ask", "", "", "Say hello.");
    let gate = Gate::closed();
    let pending = gate.clone();
    let model = FakeModel::start(move |_| FakeReply::text("hello").with_gate(&pending));
    let mut thread = spawn_with_model(&user, &model, &["run", "team/ask"]);
    model.wait_for_requests(1);
    let id = newest_thread(&user);
    let mut live = spawn_with_model(&user, &model, &["--json", "thread", "tree", &id, "--live"]);
    let mut first = [0; 1];
    let stdout = live.stdout.as_mut().expect("output");
    stdout.read_exact(&mut first).expect("a line begins while it runs");
    gate.open();
    assert!(thread.wait().expect("an end").success());
    let rest = Run::from_output(&live.wait_with_output().expect("an end"));
    let output = format!("{}{}", char::from(first[0]), rest.stdout);
    let lines: Vec<Value> = output.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let statuses: Vec<String> = lines.iter().map(|line| text(&line["status"])).collect();
    assert_eq!(statuses.first().map(String::as_str), Some("running"), "{output}");
    assert_eq!(statuses.last().map(String::as_str), Some("completed"), "{output}");
}

#[test]
fn prune_confirms_and_keeps_active_threads() {
    let user = User::initialized();
    write_note_directive(&user);
    for _ in 0..3 {
        user.ok(["run", "team/note"]);
    }
    let stopped = user.run(["run", "team/note", "--limit", "turns=1"]);
    assert_eq!(stopped.exit, 6, "{stopped}");
    let suspended = newest_thread(&user);
    let would = user.data(["thread", "prune", "--keep", "1", "--dry-run"])["would_prune"].clone();
    assert_eq!(would.as_array().map(Vec::len), Some(2), "{would}");
    assert_eq!(threads(&user).len(), 4);
    let refusal = user.assert_refused(["thread", "prune", "--keep", "1", "--delete"], 2, "RYE0105");
    let hints = json!([
        "if you agree: rye thread prune --keep 1 --delete --yes",
        "to see which: rye thread prune --keep 1 --delete --dry-run",
    ]);
    assert_eq!(refusal["hints"], hints, "{refusal}");
    let gone = user.data(["thread", "prune", "--keep", "1", "--yes"])["pruned"].clone();
    assert_eq!(gone, would);
    let gone = user.data(["thread", "prune", "--older-than", "0", "--delete", "--yes"])["pruned"].clone();
    assert_eq!(gone.as_array().map(Vec::len), Some(1));
    let left = threads(&user);
    assert_eq!((left.len(), text(&left[0]["thread_id"])), (1, suspended.clone()));
    let archive = user.project().join(".ai/threads/archive");
    assert_eq!(archive.read_dir().expect("an archive").count(), 2, "the last was removed");
    user.ok(["thread", "resume", &suspended, "--limit", "turns=+9"]);
}
