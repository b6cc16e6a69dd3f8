//! Development mode: asked for by the environment, allowed by the user's signed config, for an approved project.

use serde_json::json;

use crate::support::{Run, User, copy_file, run};

fn with_dev_mode(user: &User, words: &[&str]) -> Run {
    run(user.command().env("RYE_DEV_MODE", "1").args(words))
}

/// The user lists their project for development mode.
fn list_project(user: &User) {
    user.write_user(
        "config/config.yaml",
        format!(
            "version: \"1.0.0\"\ncategory: \"\"\ndev_mode:\n  projects: [\"{}\"]\n",
            user.project().display()
        ),
    );
}

fn write_unsigned_tool(user: &User) {
    user.write("tools/team/draft.py", rye_test::tool("team", "A draft"));
}

fn assert_ignored(user: &User) {
    let before = user.snapshot();
    let run = with_dev_mode(user, &["load", "tool", "team/draft", "--json"]);
    run.error(4, "RYE0401");
    assert!(run.stderr.contains("RYE_DEV_MODE is ignored"), "{run}");
    assert_eq!(before, user.snapshot());
}

#[test]
fn dev_mode_needs_an_approved_listed_project() {
    // Not approved and not listed.
    let user = User::initialized();
    write_unsigned_tool(&user);
    user.ok(["trust", "--revoke"]);
    assert_ignored(&user);
    // Approved, not listed.
    user.ok(["trust", "."]);
    assert_ignored(&user);
    // Listed in a file no one signed.
    list_project(&user);
    assert_ignored(&user);
    // Listed in signed config, but not approved.
    user.ok(["sign", "config", "config", "--space", "user"]);
    user.ok(["trust", "--revoke"]);
    assert_ignored(&user);
}

#[test]
fn a_project_cannot_list_itself() {
    let user = User::initialized();
    write_unsigned_tool(&user);
    let config = format!(
        "version: \"1.0.0\"\ncategory: \"\"\ndev_mode:\n  projects: [\"{}\"]\n",
        user.project().display()
    );
    user.write("config/config.yaml", config);
    user.ok(["sign", "config", "config"]);
    assert_ignored(&user);
}

#[test]
fn listed_project_loads_unsigned_items_with_warning() {
    let user = User::initialized();
    write_unsigned_tool(&user);
    let path = user.signed_tool("edited", "Before");
    let edited = std::fs::read_to_string(&path).expect("read").replace("Before", "Behind");
    std::fs::write(&path, edited).expect("written");
    list_project(&user);
    user.ok(["sign", "config", "config", "--space", "user"]);

    for (id, verdict) in [("team/draft", "unsigned"), ("team/edited", "tampered")] {
        let run = with_dev_mode(&user, &["load", "tool", id, "--json"]);
        assert_eq!(run.exit, 0, "{run}");
        assert_eq!(run.json()["data"]["verdict"], verdict);
        assert!(run.stderr.contains("development mode is on"), "{run}");
        assert!(run.stderr.contains("development mode: "), "{run}");
    }
    // Every command says that it is on, whatever it does.
    let run = with_dev_mode(&user, &["search", "draft"]);
    assert!(run.stderr.contains("development mode is on"), "{run}");
    // Without the variable nothing is forgiven; another value is not the variable.
    user.assert_refused(["load", "tool", "team/draft"], 4, "RYE0401");
    user.assert_command_refused(
        user.command().env("RYE_DEV_MODE", "0").args(["load", "tool", "team/draft", "--json"]),
        4,
        "RYE0401",
    );
}

#[test]
fn dev_mode_covers_only_own_unsigned_items() {
    let (user, other_user) = (User::initialized(), User::initialized());
    list_project(&user);
    user.ok(["sign", "config", "config", "--space", "user"]);
    let theirs = other_user.signed_tool("theirs", "Signed by a stranger");
    copy_file(&theirs, &user.project().join(".ai/tools/team/theirs.py"));
    user.write_user("tools/team/mine.py", rye_test::tool("team", "Unsigned in user space"));
    let moved = user.signed_tool("moved", "Moved");
    copy_file(&moved, &user.project().join(".ai/tools/other/moved.py"));
    for (id, code) in [("team/theirs", "RYE0404"), ("team/mine", "RYE0401"), ("other/moved", "RYE0403")] {
        user.assert_command_refused(
            user.command().env("RYE_DEV_MODE", "1").args(["load", "tool", id, "--json"]),
            4,
            code,
        );
    }
    user.ok(["keys", "revoke", &other_user.fingerprint()]);
    user.assert_command_refused(
        user.command().env("RYE_DEV_MODE", "1").args(["load", "tool", "team/theirs", "--json"]),
        4,
        "RYE0405",
    );
    // A copy leaves the project, so it needs a signature.
    write_unsigned_tool(&user);
    user.assert_command_refused(
        user.command().env("RYE_DEV_MODE", "1").args([
            "load",
            "tool",
            "team/draft",
            "--to",
            "user",
            "--json",
        ]),
        4,
        "RYE0401",
    );
    let doctor = with_dev_mode(&user, &["doctor", "--json"]).json();
    let findings = doctor["data"]["findings"].as_array().expect("findings").clone();
    assert!(
        findings.iter().any(|finding| finding["check"] == "dev_mode" && finding["level"] == json!("warning")),
        "{doctor}"
    );
}

#[test]
fn edited_tool_runs_despite_its_pin() {
    let user = User::initialized();
    user.ok(["new", "tool", "team/greet", "--lang", "bash"]);
    user.ok(["execute", "team/greet"]);
    list_project(&user);
    user.ok(["sign", "config", "config", "--space", "user"]);
    let edited = String::from_utf8(user.read("tools/team/greet.sh")).expect("text").replace("Hello,", "Hi,");
    user.write("tools/team/greet.sh", edited);
    let run = with_dev_mode(&user, &["execute", "team/greet", "--json"]);
    assert_eq!(run.exit, 0, "{run}");
    assert_eq!(run.json()["data"]["greeting"], "Hi, world!");
    assert!(run.json()["warnings"].to_string().contains("doesn't match its lockfile"), "{run}");
    with_dev_mode(&user, &["execute", "team/greet", "--locked", "--json"]).error(8, "RYE0501");
    // The pin itself is unchanged: without development mode the edit does not run.
    user.assert_refused(["execute", "team/greet"], 4, "RYE0402");
    user.ok(["sign", "team/greet"]);
    assert_eq!(user.data(["execute", "team/greet"])["greeting"], "Hi, world!");
}
