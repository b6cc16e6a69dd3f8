//! Lockfiles and runs: the first pins, later ones must find what was pinned, and every other thing is refused.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::{Run, User, run, snapshot, text};
use crate::tool_support::{RYE, execute, execute_error, try_execute, write_signed_tool};

fn runtime(words: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\nname: shell\ndescription: {words}\nconfig:\n  command: /bin/bash\n  args: [\"{{tool_path}}\"]\n  result: last_json_line\n"
    )
}

fn tool(output: &str) -> String {
    format!(
        "# version: 1.0.0\n# tool_type: shell\n# executor_id: team/shell\n# category: team\n# description: Deploys\n\necho '{output}'\n"
    )
}

/// A user with the signed tool `team/deploy` on the runtime `team/shell`, both in the project.
fn user_with_tool() -> User {
    let user = User::initialized();
    write_signed_tool(&user, "team/shell", "yaml", &runtime("Runs"));
    write_signed_tool(&user, "team/deploy", "sh", &tool("1"));
    user
}

fn user_lockfile(user: &User) -> PathBuf {
    user.home().join(".ai/lockfiles/team/deploy@1.0.0.lock.json")
}

fn project_lockfile(user: &User) -> PathBuf {
    user.project().join("lockfiles/team/deploy@1.0.0.lock.json")
}

/// Every file below a `lockfiles` folder of the user and the project.
fn lockfiles(user: &User) -> Vec<PathBuf> {
    let folders = [
        user.home().join(".ai/lockfiles"),
        user.project().join("lockfiles"),
        user.project().join(".ai/lockfiles"),
    ];
    let files =
        folders.iter().filter(|folder| folder.is_dir()).flat_map(|folder| snapshot(folder).into_keys());
    files.filter(|path| path.is_file()).collect()
}

/// The refusal of a run because of a lockfile, which changes nothing and says how to continue.
fn execute_refused(user: &User) -> Value {
    user.assert_refused(["execute", "team/deploy"], 8, "RYE0501")
}

/// The words of the command a refusal gives to accept the change.
fn accept_command(refusal: &Value) -> Vec<String> {
    let hints = refusal["hints"].as_array().expect("hints").iter().map(text).collect::<Vec<_>>();
    let command = hints.iter().find_map(|hint| {
        hint.split_once("if it is intended: rye ").or(hint.split_once("if the change is intended: rye "))
    });
    let (_, words) = command.unwrap_or_else(|| panic!("no command: {refusal}"));
    words.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn second_run_verifies_lockfile() {
    let user = user_with_tool();
    let first = execute(&user, "deploy", &[]);
    let path = user_lockfile(&user);
    assert_eq!(first["lock"], json!({"state": "none", "paths": [], "created": path.display().to_string()}));
    let written = fs::read(&path).expect("a lockfile");
    let pinned: Value = serde_json::from_slice(&written).expect("JSON");
    let ids: Vec<&Value> =
        pinned["resolved_chain"].as_array().expect("a chain").iter().map(|row| &row["item_id"]).collect();
    assert_eq!(json!(ids), json!(["team/deploy", "team/shell", "rye/core/primitives/subprocess"]));
    assert_eq!(pinned["lockfile_version"], 1);
    let before = snapshot(&user.home().join(".ai/lockfiles"));
    let second = execute(&user, "deploy", &[]);
    assert_eq!(second["lock"], json!({"state": "held", "paths": [path.display().to_string()]}));
    assert_eq!(snapshot(&user.home().join(".ai/lockfiles")), before);
    assert_eq!(lockfiles(&user), [path]);
}

#[test]
fn own_signed_edit_runs_at_user_scope() {
    let user = user_with_tool();
    execute(&user, "deploy", &[]);
    write_signed_tool(&user, "team/deploy", "sh", &tool("2"));
    let again = execute(&user, "deploy", &["--locked"]);
    assert_eq!((&again["data"], &again["lock"]["state"]), (&json!(2), &json!("held")));
}

#[test]
fn own_signed_edit_needs_team_lockfile_update() {
    let user = user_with_tool();
    user.ok(["lock", "update", "team/deploy", "--scope", "project"]);
    execute(&user, "deploy", &[]);
    write_signed_tool(&user, "team/deploy", "sh", &tool("2"));
    let refusal = execute_refused(&user);
    assert_eq!((&refusal["scope"], &refusal["element"]), (&json!("project"), &json!("team/deploy")));
    user.ok(accept_command(&refusal));
    assert_eq!(execute(&user, "deploy", &["--locked"])["data"], 2);
}

#[test]
fn changed_runtime_is_refused_until_accepted() {
    let user = user_with_tool();
    execute(&user, "deploy", &[]);
    write_signed_tool(&user, "team/shell", "yaml", &runtime("Runs otherwise"));
    let refusal = execute_refused(&user);
    assert_eq!(refusal["element"], "team/shell");
    let (pinned, found) = (text(&refusal["expected"]), text(&refusal["found"]));
    assert!(pinned.len() == 64 && found.len() == 64 && pinned != found, "{refusal}");
    assert!(
        text(&refusal["error"]).contains(&pinned[..16]) && text(&refusal["error"]).contains(&found[..16]),
        "{refusal}"
    );
    // A dry run tells the same; asking twice does not wear it down.
    user.assert_refused(["execute", "team/deploy", "--dry-run"], 8, "RYE0501");
    assert_eq!(accept_command(&execute_refused(&user)), ["lock", "update", "team/deploy"]);
    user.ok(accept_command(&refusal));
    assert_eq!(execute(&user, "deploy", &["--locked"])["lock"]["state"], "held");
}

#[test]
fn restored_older_version_is_refused() {
    let user = user_with_tool();
    let path = user.project().join(".ai/tools/team/deploy.sh");
    let old = fs::read(&path).expect("the tool");
    execute(&user, "deploy", &[]);
    write_signed_tool(&user, "team/deploy", "sh", &tool("2"));
    fs::write(&path, old).expect("put back");
    assert_eq!(execute_refused(&user)["element"], "team/deploy");
}

#[test]
fn shadowing_runtime_is_refused() {
    let user = User::initialized();
    user.write_user("tools/team/shell.yaml", runtime("Runs"));
    user.ok(["sign", "tool", "team/shell", "--space", "user"]);
    write_signed_tool(&user, "team/deploy", "sh", &tool("1"));
    execute(&user, "deploy", &[]);
    let shadow = write_signed_tool(&user, "team/shell", "yaml", &runtime("Runs"));
    let refusal = execute_refused(&user);
    assert_eq!((&refusal["element"], &refusal["found"]), (&json!("team/shell"), &json!("project")));
    // No one signed it: that is reported first.
    fs::write(&shadow, runtime("Runs")).expect("unsigned");
    user.assert_refused(["execute", "team/deploy"], 4, "RYE0401");
    fs::remove_file(shadow).expect("removed");
    execute(&user, "deploy", &["--locked"]);
}

#[test]
fn corrupt_lockfile_is_refused_and_unchanged() {
    let user = user_with_tool();
    execute(&user, "deploy", &[]);
    let whole = fs::read(user_lockfile(&user)).expect("a lockfile");
    let half = &whole[..whole.len() / 2];
    for content in [&b""[..], b"{}", b"null", b"[]", b"\xff\xfe", half, br#"{"lockfile_version": 2}"#] {
        fs::write(user_lockfile(&user), content).expect("damaged");
        let refusal = user.assert_refused(["execute", "team/deploy"], 8, "RYE0503");
        assert_eq!(text(&refusal["path"]), user_lockfile(&user).display().to_string());
    }
    fs::remove_file(user_lockfile(&user)).expect("removed");
    fs::create_dir_all(project_lockfile(&user).parent().expect("a folder")).expect("folders");
    fs::write(project_lockfile(&user), "{").expect("damaged");
    user.assert_refused(["execute", "team/deploy"], 8, "RYE0503");
}

#[test]
fn project_scope_pins_for_the_team() {
    let user = user_with_tool();
    user.write_user(
        "config/config.yaml",
        "version: \"1.0.0\"\ncategory: \"\"\nlockfiles:\n  scope: project\n",
    );
    let first = execute(&user, "deploy", &[]);
    assert_eq!(text(&first["lock"]["created"]), project_lockfile(&user).display().to_string());
    assert_eq!(lockfiles(&user), [project_lockfile(&user)]);
    assert_eq!(execute(&user, "deploy", &["--locked"])["lock"]["state"], "held");
}

#[test]
fn cloned_lockfile_does_not_replace_user_lockfile() {
    let user = user_with_tool();
    execute(&user, "deploy", &[]);
    write_signed_tool(&user, "team/shell", "yaml", &runtime("Runs otherwise"));
    let own = fs::read(user_lockfile(&user)).expect("the own");
    user.ok(["lock", "update", "team/deploy", "--scope", "project"]);
    fs::write(user_lockfile(&user), own).expect("as it was");
    assert_eq!(execute_refused(&user)["scope"], "user");
}

#[test]
fn locked_needs_a_lockfile_frozen_writes_none() {
    let user = user_with_tool();
    user.assert_refused(["execute", "team/deploy", "--locked"], 8, "RYE0502");
    let frozen = execute(&user, "deploy", &["--frozen"]);
    assert_eq!(frozen["lock"], json!({"state": "none", "paths": []}));
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
    execute(&user, "deploy", &[]);
    assert_eq!(execute(&user, "deploy", &["--locked"])["lock"]["state"], "held");
    assert_eq!(execute(&user, "deploy", &["--frozen"])["lock"]["state"], "held");
}

#[test]
fn only_successful_runs_are_pinned() {
    let user = user_with_tool();
    execute(&user, "deploy", &["--dry-run"]);
    write_signed_tool(&user, "team/deploy", "sh", &tool("{\"success\": false}"));
    execute_error(&user, "deploy", &[], 1, "RYE0801");
    write_signed_tool(&user, "team/deploy", "sh", &format!("{}exit 3\n", tool("1")));
    execute_error(&user, "deploy", &[], 1, "RYE0801");
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
}

#[test]
fn dev_mode_items_are_not_pinned() {
    let user = user_with_tool();
    let config = format!(
        "version: \"1.0.0\"\ncategory: \"\"\ndev_mode:\n  projects: [\"{}\"]\n",
        user.project().display()
    );
    user.write_user("config/config.yaml", config);
    user.ok(["sign", "config", "config", "--space", "user"]);
    user.write("tools/team/deploy.sh", tool("3"));
    let words = ["--json", "execute", "team/deploy"];
    let run = run(user.command().env("RYE_DEV_MODE", "1").args(words));
    assert_eq!((run.exit, &run.json()["data"]), (0, &json!(3)), "{run}");
    assert!(run.stdout.contains("development mode: team/deploy is unsigned"), "{run}");
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
    user.assert_refused(["execute", "team/deploy"], 4, "RYE0401");
}

#[test]
fn concurrent_first_runs_leave_one_lockfile() {
    let user = user_with_tool();
    let children: Vec<Child> = (0..8)
        .map(|_| {
            let mut command = user.program(RYE);
            command.args(["--json", "execute", "team/deploy"]).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
        })
        .collect();
    let runs: Vec<Run> = children
        .into_iter()
        .map(|child| Run::from_output(&child.wait_with_output().expect("ended")))
        .collect();
    for run in &runs {
        assert_eq!((run.exit, &run.json()["data"]), (0, &json!(1)), "{run}");
    }
    assert!(runs.iter().any(|run| run.json()["lock"]["created"].is_string()));
    assert_eq!(lockfiles(&user), [user_lockfile(&user)]);
    assert_eq!(user.ok(["lock", "verify"]).stdout, "1 lockfile checked: 1 ok\n");
    assert_eq!(execute(&user, "deploy", &["--locked"])["lock"]["state"], "held");
}

#[test]
fn embedded_tools_are_pinned_in_system_tier() {
    let user = User::initialized();
    let words = ["execute", "rye/core/system/time", "--locked", "--json"];
    let lock_state = user.ok(words).json()["lock"].clone();
    assert_eq!(lock_state["state"], "held", "{lock_state}");
    let path = PathBuf::from(text(&lock_state["paths"][0]));
    assert!(path.starts_with(user.context.cache().join("rye/bundles")), "{lock_state}");
    assert!(path.ends_with("rye/core/system/time@1.0.0.lock.json"), "{lock_state}");
    assert!(fs::metadata(&path).expect("a lockfile").permissions().readonly());
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
    // The user's own tool in its place is the user's business.
    let own = "version: \"1.0.0\"\ntool_type: native\nexecutor_id: rye/core/primitives/native\ncategory: rye/core/system\nname: time\ndescription: The time\nconfig:\n  function: system.facts\n  item: time\n";
    write_signed_tool(&user, "rye/core/system/time", "yaml", own);
    user.ok(["execute", "rye/core/system/time"]);
}

#[test]
fn lockfiles_are_separate_per_project() {
    let user = user_with_tool();
    execute(&user, "deploy", &[]);
    let other = user.context.path().join("other");
    crate::support::copy_tree(&user.project(), &other);
    let words = ["--json", "execute", "team/deploy"];
    let result = run(user.command().current_dir(&other).args(words));
    assert_eq!(result.exit, 0, "{result}");
    assert_eq!(lockfiles(&user).len(), 2);
    assert_eq!(try_execute(&user, "deploy", &["--locked"]).exit, 0);
}
