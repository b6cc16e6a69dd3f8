//! Budgets of a day and a month: shared by trees and projects, never raised by a project, and resumed when more is allowed.

use rye_test::fake_model::{FakeModel, FakeReply};
use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, run, text};
use crate::thread_run::{command_with_model, threads, write_directive};

/// A model whose calls cost a known amount: 1,000 tokens in, 1,000 out.
fn model() -> FakeModel {
    FakeModel::start(|_| FakeReply::text("done").with_usage(1000, 0, 1000))
}

fn write_budgets(user: &User, place: &str, settings: &str) {
    let path = format!("{place}/.ai/config/agent/budgets.yaml");
    user.context.write(&path, format!("version: \"1.0.0\"\ncategory: agent\n{settings}"));
}

fn sign_user_budgets(user: &User, settings: &str) {
    write_budgets(user, "home", settings);
    user.ok(["sign", "config", "agent/budgets", "--space", "user"]);
}

fn budgets(user: &User) -> Vec<Value> {
    let report = user.data(["thread", "cost", "--since", "today"]);
    report["budgets"].as_array().cloned().unwrap_or_default()
}

/// The price of a call of [`model`] with gpt-4.1: 2 and 8 dollars a million tokens.
const CALL: f64 = 0.01;

#[test]
fn day_budget_suspends_and_raise_resumes() {
    let user = User::initialized();
    write_directive(&user, "work", "", "", "Do it.");
    let model = model();
    // A call of gpt-4.1 may need 0.13 dollars and costs 0.01.
    sign_user_budgets(&user, "user: {day: 0.02}\n");
    let start = || run(command_with_model(&user, &model).args(["run", "team/work", "--model", "gpt-4.1"]));
    assert_eq!(start().exit, 0);
    let stopped = start();
    // What is left pays for a shorter answer, until it does not.
    assert_eq!(stopped.exit, 0, "{stopped}");
    let stopped = start();
    assert_eq!(stopped.exit, 6, "{stopped}");
    assert!(stopped.stderr.contains("day budget of user"), "{stopped}");
    assert!(stopped.stderr.contains("a new period begins at"), "{stopped}");
    let row = threads(&user)[0].clone();
    let id = text(&row["thread_id"]);
    assert_eq!((&row["status"], &row["reason"]), (&json!("suspended"), &json!("budget")), "{row}");
    let shown = user.data(["thread", "show", &id]);
    assert!(shown.to_string().contains("rolling_budget_exceeded"), "{shown}");
    assert_eq!(budgets(&user)[0]["used"], json!(2.0 * CALL));
    let again = run(command_with_model(&user, &model).args(["thread", "resume", &id]));
    assert_eq!(again.exit, 6, "{again}");
    sign_user_budgets(&user, "user: {day: 1}\n");
    let resumed = run(command_with_model(&user, &model).args(["thread", "resume", &id]));
    assert_eq!(resumed.exit, 0, "{resumed}");
    assert_eq!(budgets(&user)[0]["used"], json!(0.03));
}

#[test]
fn lost_sums_are_not_forgotten() {
    let user = User::initialized();
    write_directive(&user, "work", "", "", "Do it.");
    let model = model();
    sign_user_budgets(&user, "user: {day: 5}\n");
    let start = || run(command_with_model(&user, &model).args(["run", "team/work", "--model", "gpt-4.1"]));
    assert_eq!(start().exit, 0);
    let folder = user.context.home().join(".ai/config/keys/signing");
    let database = folder.join("rolling_budgets.db");
    for replacement in [None, Some("")] {
        for name in ["rolling_budgets.db", "rolling_budgets.db-wal", "rolling_budgets.db-shm"] {
            let _ = std::fs::remove_file(folder.join(name));
        }
        if let Some(text) = replacement {
            std::fs::write(&database, text).expect("written");
        }
        let stopped = start();
        assert_ne!(stopped.exit, 0, "{stopped}");
        assert!(
            stopped.stderr.contains("rm ") && stopped.stderr.contains("rolling_budgets.kept"),
            "{stopped}"
        );
        let shown = user.run(["thread", "cost", "--since", "today"]);
        assert_ne!(shown.exit, 0, "{shown}");
        let checked = user.run(["doctor"]);
        assert!(checked.exit != 0 && checked.stdout.contains("✗ budgets"), "{checked}");
    }
    assert_eq!(model.count(), 1);
    let _ = std::fs::remove_file(&database);
    std::fs::remove_file(folder.join("rolling_budgets.kept")).expect("removed");
    assert_eq!(start().exit, 0);
    assert_eq!(budgets(&user)[0]["used"], json!(CALL));
}

#[test]
fn day_budget_holds_for_mcp_clients() {
    let user = User::initialized();
    write_directive(&user, "work", "", "", "Do it.");
    let model = model();
    sign_user_budgets(&user, "user: {day: 0.02}\n");
    let environment =
        [("OPENAI_API_KEY", "sk-of-a-test-0123456789"), ("OPENAI_BASE_URL", &*format!("{}/v1", model.url()))];
    let mut client = Client::connect_with(&user, &environment, json!({}));
    let work =
        json!({"item_type": "directive", "item_id": "team/work", "thread": "fork", "model": "gpt-4.1"});
    for _ in 0..2 {
        assert_eq!(client.call("rye_execute", work.clone())["data"]["status"], "completed");
    }
    let (stopped, is_error) = client.call_outcome("rye_execute", work);
    let row = threads(&user)[0].clone();
    assert!(is_error, "{stopped}");
    assert_eq!((&row["status"], &row["reason"]), (&json!("suspended"), &json!("budget")), "{row}");
    assert!(stopped.to_string().contains(&text(&row["thread_id"])), "{stopped}");
}

#[test]
fn children_count_for_their_parents_directive() {
    let user = User::initialized();
    write_directive(&user, "child", "", "", "Be the child.");
    let spawner = "<permissions><execute><tool>rye.agent.threads.*</tool><directive>team.*</directive></execute></permissions>";
    write_directive(&user, "parent", spawner, "", "Be the parent.");
    let model = FakeModel::start(|request| {
        let is_child = request.body.to_string().contains("Be the child");
        match (is_child, request.tool_results) {
            (false, 0) => {
                let call = json!({"directive_name": "team/child"});
                let call = ("rye_agent_threads_thread_directive", call);
                FakeReply::calls([call]).with_usage(1000, 0, 1000)
            }
            _ => FakeReply::text("done").with_usage(1000, 0, 1000),
        }
    });
    sign_user_budgets(
        &user,
        "directives: {team/parent: {month: 5}, team/child: {day: 5}}\nproject: {day: 7}\n",
    );
    let result = run(command_with_model(&user, &model).args(["run", "team/parent", "--model", "gpt-4.1"]));
    assert_eq!(result.exit, 0, "{result}");
    let total: f64 = threads(&user).iter().filter_map(|row| row["spend"].as_f64()).sum();
    let used = |name: &str| {
        let found = budgets(&user).into_iter().find(|row| text(&row["budget"]) == name);
        found.expect("a budget")["used"].as_f64().expect("dollars")
    };
    let child = threads(&user).into_iter().find(|row| row["directive"] == "team/child").expect("a child");
    let is_same = |one: f64, other: f64| (one - other).abs() < 1e-9;
    assert!(is_same(used("month budget of directive team/parent"), total), "{total}");
    assert!(is_same(used("day budget of project"), total), "{total}");
    assert!(is_same(used("day budget of directive team/child"), child["spend"].as_f64().expect("dollars")));
    let output = user.ok(["thread", "cost", "--since", "today"]);
    assert!(output.stdout.contains("month budget of directive team/parent"), "{output}");
    assert!(output.stdout.contains("of $5.00 used"), "{output}");
}

#[test]
fn project_never_raises_users_budget() {
    let user = User::initialized();
    write_directive(&user, "work", "", "", "Do it.");
    sign_user_budgets(&user, "user: {day: 3}\nproject: {day: 2}\n");
    let raised = "user: {day: 100}\nproject: {day: 50, month: 40}\ndirectives: {team/work: {day: 1}}\ntime_zone: UTC\n";
    write_budgets(&user, "project", raised);
    user.ok(["sign", "config", "agent/budgets", "--space", "project"]);
    let report = user.data(["thread", "cost", "--since", "today"]);
    let limits: Vec<_> =
        budgets(&user).iter().map(|row| (text(&row["budget"]), row["limit"].clone())).collect();
    let expected = [
        ("day budget of user", json!(3.0)),
        ("day budget of project", json!(2.0)),
        ("month budget of project", json!(40.0)),
        ("day budget of directive team/work", json!(1.0)),
    ];
    assert_eq!(limits, expected.map(|(name, limit)| (name.to_owned(), limit)), "{report}");
    let notices = report["notices"].to_string();
    assert!(notices.contains("only user space may set this"), "{report}");
    assert!(notices.contains("a project may only lower this"), "{report}");
    write_budgets(&user, "project", "project: {day: 0.5}\n");
    assert_eq!(budgets(&user)[1]["limit"], json!(0.5), "an unsigned project file may lower it");
}

#[test]
fn mistake_in_budgets_starts_no_thread() {
    let user = User::initialized();
    write_directive(&user, "work", "", "", "Do it.");
    write_budgets(&user, "home", "user: {day: lots}\n");
    let model = model();
    let result = run(command_with_model(&user, &model).args(["run", "team/work"]));
    assert_ne!(result.exit, 0, "{result}");
    assert!(result.stderr.contains("user.day"), "{result}");
    assert_eq!(model.count(), 0);
    write_budgets(&user, "home", "user: {day: 1}\ntime_zone: Mars/Olympus\n");
    let result = run(command_with_model(&user, &model).args(["run", "team/work"]));
    assert!(result.stderr.contains("time_zone"), "{result}");
}
