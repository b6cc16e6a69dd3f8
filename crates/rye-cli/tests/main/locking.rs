//! Lockfiles and runs: the first pins, later ones must find what was pinned, and every other thing is refused.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::running::{RYE, answer, attempt, failure, signed};
use crate::support::{Run, User, run, snapshot, text};

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
fn ready() -> User {
    let user = User::ready();
    signed(&user, "team/shell", "yaml", &runtime("Runs"));
    signed(&user, "team/deploy", "sh", &tool("1"));
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

/// The refusal of a run because of a lockfile, which changes nothing and says how to go on.
fn refused(user: &User) -> Value {
    user.refused(["execute", "team/deploy"], 8, "RYE0501")
}

/// The words of the command a refusal gives to accept the change.
fn accepting(refusal: &Value) -> Vec<String> {
    let hints = refusal["hints"].as_array().expect("hints").iter().map(text).collect::<Vec<_>>();
    let command = hints.iter().find_map(|hint| {
        hint.split_once("if it is right: rye ").or(hint.split_once("if the change is right: rye "))
    });
    let (_, words) = command.unwrap_or_else(|| panic!("no command: {refusal}"));
    words.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_first_run_pins_and_the_second_holds() {
    let user = ready();
    let first = answer(&user, "deploy", &[]);
    let path = user_lockfile(&user);
    assert_eq!(first["lock"], json!({"state": "none", "paths": [], "created": path.display().to_string()}));
    let written = fs::read(&path).expect("a lockfile");
    let pinned: Value = serde_json::from_slice(&written).expect("JSON");
    let ids: Vec<&Value> =
        pinned["resolved_chain"].as_array().expect("a chain").iter().map(|row| &row["item_id"]).collect();
    assert_eq!(json!(ids), json!(["team/deploy", "team/shell", "rye/core/primitives/subprocess"]));
    assert_eq!(pinned["lockfile_version"], 1);
    let before = snapshot(&user.home().join(".ai/lockfiles"));
    let second = answer(&user, "deploy", &[]);
    assert_eq!(second["lock"], json!({"state": "held", "paths": [path.display().to_string()]}));
    assert_eq!(snapshot(&user.home().join(".ai/lockfiles")), before);
    assert_eq!(lockfiles(&user), [path]);
}

#[test]
fn the_authors_own_signed_edit_goes_on_at_user_scope() {
    let user = ready();
    answer(&user, "deploy", &[]);
    signed(&user, "team/deploy", "sh", &tool("2"));
    let again = answer(&user, "deploy", &["--locked"]);
    assert_eq!((&again["data"], &again["lock"]["state"]), (&json!(2), &json!("held")));
}

#[test]
fn the_authors_own_signed_edit_is_refused_under_the_teams_lockfile() {
    let user = ready();
    user.ok(["lock", "update", "team/deploy", "--scope", "project"]);
    answer(&user, "deploy", &[]);
    signed(&user, "team/deploy", "sh", &tool("2"));
    let refusal = refused(&user);
    assert_eq!((&refusal["scope"], &refusal["element"]), (&json!("project"), &json!("team/deploy")));
    user.ok(accepting(&refusal));
    assert_eq!(answer(&user, "deploy", &["--locked"])["data"], 2);
}

#[test]
fn an_edited_and_signed_runtime_is_refused_until_it_is_accepted() {
    let user = ready();
    answer(&user, "deploy", &[]);
    signed(&user, "team/shell", "yaml", &runtime("Runs otherwise"));
    let refusal = refused(&user);
    assert_eq!(refusal["element"], "team/shell");
    let (pinned, found) = (text(&refusal["expected"]), text(&refusal["found"]));
    assert!(pinned.len() == 64 && found.len() == 64 && pinned != found, "{refusal}");
    assert!(
        text(&refusal["error"]).contains(&pinned[..16]) && text(&refusal["error"]).contains(&found[..16]),
        "{refusal}"
    );
    // A dry run tells the same; asking twice does not wear it down.
    user.refused(["execute", "team/deploy", "--dry-run"], 8, "RYE0501");
    assert_eq!(accepting(&refused(&user)), ["lock", "update", "team/deploy"]);
    user.ok(accepting(&refusal));
    assert_eq!(answer(&user, "deploy", &["--locked"])["lock"]["state"], "held");
}

#[test]
fn an_older_signed_version_put_back_is_refused() {
    let user = ready();
    let path = user.project().join(".ai/tools/team/deploy.sh");
    let old = fs::read(&path).expect("the tool");
    answer(&user, "deploy", &[]);
    signed(&user, "team/deploy", "sh", &tool("2"));
    fs::write(&path, old).expect("put back");
    assert_eq!(refused(&user)["element"], "team/deploy");
}

#[test]
fn a_runtime_dropped_into_the_project_over_the_pinned_one_is_refused() {
    let user = User::ready();
    user.write_user("tools/team/shell.yaml", runtime("Runs"));
    user.ok(["sign", "tool", "team/shell", "--space", "user"]);
    signed(&user, "team/deploy", "sh", &tool("1"));
    answer(&user, "deploy", &[]);
    let shadow = signed(&user, "team/shell", "yaml", &runtime("Runs"));
    let refusal = refused(&user);
    assert_eq!((&refusal["element"], &refusal["found"]), (&json!("team/shell"), &json!("project")));
    // Nobody signed it: that is told first.
    fs::write(&shadow, runtime("Runs")).expect("unsigned");
    user.refused(["execute", "team/deploy"], 4, "RYE0401");
    fs::remove_file(shadow).expect("removed");
    answer(&user, "deploy", &["--locked"]);
}

#[test]
fn a_corrupt_lockfile_is_refused_and_left_alone() {
    let user = ready();
    answer(&user, "deploy", &[]);
    let whole = fs::read(user_lockfile(&user)).expect("a lockfile");
    let half = &whole[..whole.len() / 2];
    for content in [&b""[..], b"{}", b"null", b"[]", b"\xff\xfe", half, br#"{"lockfile_version": 2}"#] {
        fs::write(user_lockfile(&user), content).expect("damaged");
        let refusal = user.refused(["execute", "team/deploy"], 8, "RYE0503");
        assert_eq!(text(&refusal["path"]), user_lockfile(&user).display().to_string());
    }
    fs::remove_file(user_lockfile(&user)).expect("removed");
    fs::create_dir_all(project_lockfile(&user).parent().expect("a folder")).expect("folders");
    fs::write(project_lockfile(&user), "{").expect("damaged");
    user.refused(["execute", "team/deploy"], 8, "RYE0503");
}

#[test]
fn at_project_scope_runs_pin_for_the_team() {
    let user = ready();
    user.write_user(
        "config/config.yaml",
        "version: \"1.0.0\"\ncategory: \"\"\nlockfiles:\n  scope: project\n",
    );
    let first = answer(&user, "deploy", &[]);
    assert_eq!(text(&first["lock"]["created"]), project_lockfile(&user).display().to_string());
    assert_eq!(lockfiles(&user), [project_lockfile(&user)]);
    assert_eq!(answer(&user, "deploy", &["--locked"])["lock"]["state"], "held");
}

#[test]
fn a_cloned_lockfile_does_not_replace_the_users_own() {
    let user = ready();
    answer(&user, "deploy", &[]);
    signed(&user, "team/shell", "yaml", &runtime("Runs otherwise"));
    let own = fs::read(user_lockfile(&user)).expect("the own");
    user.ok(["lock", "update", "team/deploy", "--scope", "project"]);
    fs::write(user_lockfile(&user), own).expect("as it was");
    assert_eq!(refused(&user)["scope"], "user");
}

#[test]
fn locked_demands_a_lockfile_and_frozen_writes_none() {
    let user = ready();
    user.refused(["execute", "team/deploy", "--locked"], 8, "RYE0502");
    let frozen = answer(&user, "deploy", &["--frozen"]);
    assert_eq!(frozen["lock"], json!({"state": "none", "paths": []}));
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
    answer(&user, "deploy", &[]);
    assert_eq!(answer(&user, "deploy", &["--locked"])["lock"]["state"], "held");
    assert_eq!(answer(&user, "deploy", &["--frozen"])["lock"]["state"], "held");
}

#[test]
fn what_fails_is_not_run_or_only_tried_pins_nothing() {
    let user = ready();
    answer(&user, "deploy", &["--dry-run"]);
    signed(&user, "team/deploy", "sh", &tool("{\"success\": false}"));
    failure(&user, "deploy", &[], 1, "RYE0801");
    signed(&user, "team/deploy", "sh", &format!("{}exit 3\n", tool("1")));
    failure(&user, "deploy", &[], 1, "RYE0801");
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
}

#[test]
fn what_development_mode_forgives_is_not_pinned() {
    let user = ready();
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
    assert!(run.stdout.contains("development mode forgives that team/deploy is unsigned"), "{run}");
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
    user.refused(["execute", "team/deploy"], 4, "RYE0401");
}

#[test]
fn first_runs_at_once_leave_one_whole_lockfile() {
    let user = ready();
    let children: Vec<Child> = (0..8)
        .map(|_| {
            let mut command = user.program(RYE);
            command.args(["--json", "execute", "team/deploy"]).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started")
        })
        .collect();
    let runs: Vec<Run> =
        children.into_iter().map(|child| Run::of(&child.wait_with_output().expect("ended"))).collect();
    for run in &runs {
        assert_eq!((run.exit, &run.json()["data"]), (0, &json!(1)), "{run}");
    }
    assert!(runs.iter().any(|run| run.json()["lock"]["created"].is_string()));
    assert_eq!(lockfiles(&user), [user_lockfile(&user)]);
    assert_eq!(user.ok(["lock", "verify"]).stdout, "1 lockfile checked: 1 ok\n");
    assert_eq!(answer(&user, "deploy", &["--locked"])["lock"]["state"], "held");
}

#[test]
fn the_binarys_own_tools_are_pinned_in_the_system_tier() {
    let user = User::ready();
    let words = ["execute", "rye/core/system/time", "--locked", "--json"];
    let held = user.ok(words).json()["lock"].clone();
    assert_eq!(held["state"], "held", "{held}");
    let path = PathBuf::from(text(&held["paths"][0]));
    assert!(path.starts_with(user.world.cache().join("rye/bundles")), "{held}");
    assert!(path.ends_with("rye/core/system/time@1.0.0.lock.json"), "{held}");
    assert!(fs::metadata(&path).expect("a lockfile").permissions().readonly());
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
    // The user's own tool in its place is the user's business.
    let own = "version: \"1.0.0\"\ntool_type: native\nexecutor_id: rye/core/primitives/native\ncategory: rye/core/system\nname: time\ndescription: The time\nconfig:\n  function: system.facts\n  item: time\n";
    signed(&user, "rye/core/system/time", "yaml", own);
    user.ok(["execute", "rye/core/system/time"]);
}

#[test]
fn another_projects_tool_of_the_same_name_has_a_lockfile_of_its_own() {
    let user = ready();
    answer(&user, "deploy", &[]);
    let other = user.world.path().join("other");
    crate::support::copy_tree(&user.project(), &other);
    let words = ["--json", "execute", "team/deploy"];
    let ran = run(user.command().current_dir(&other).args(words));
    assert_eq!(ran.exit, 0, "{ran}");
    assert_eq!(lockfiles(&user).len(), 2);
    assert_eq!(attempt(&user, "deploy", &["--locked"]).exit, 0);
}
