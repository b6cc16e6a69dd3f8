//! `rye lock` at the command line: what is shown, what is refused, and what signing does to a lockfile.

use serde_json::json;

use crate::support::{User, text};

fn tool(words: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: python\nexecutor_id: team/runtime\ncategory: team\ndescription: {words}\n"
    )
}

fn runtime(words: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\ndescription: {words}\n"
    )
}

/// A user with the signed tool `team/deploy` on the runtime `team/runtime`.
fn user_with_tool() -> User {
    let user = User::initialized();
    user.write("tools/team/deploy.yaml", tool("Deploys"));
    user.write("tools/team/runtime.yaml", runtime("Runs"));
    user.ok(["sign", "tool", "team/*", "--yes"]);
    user
}

#[test]
fn lock_list_show_and_verify_work() {
    let user = user_with_tool();
    assert_eq!(user.data(["lock", "list"]), json!({ "lockfiles": [] }));
    user.assert_refused(["lock", "show", "team/deploy"], 3, "RYE0504");
    user.assert_refused(["lock", "verify", "team/deploy"], 3, "RYE0504");
    user.assert_refused(["lock", "update", "team/none"], 3, "RYE0201");
    user.assert_refused(["lock", "update", "../evil"], 2, "RYE0101");
    assert_eq!(user.data(["lock", "verify"])["checked"], 0);

    let updated = user.data(["lock", "update", "team/deploy"]);
    let path = user.home().join(".ai/lockfiles/team/deploy@1.0.0.lock.json");
    let file = &updated["lockfiles"][0];
    assert_eq!((&file["change"], text(&file["path"])), (&json!("made"), path.display().to_string()));
    assert_eq!(user.data(["lock", "update", "tool:team/deploy"])["lockfiles"][0]["change"], "unchanged");
    let row = user.data(["lock", "list"])["lockfiles"][0].clone();
    assert_eq!(
        (&row["tool_id"], &row["version"], &row["scope"], &row["state"]),
        (&json!("team/deploy"), &json!("1.0.0"), &json!("user"), &json!("ok"))
    );
    let chain = user.data(["lock", "show", "team/deploy"])["lockfiles"][0]["chain"].clone();
    assert_eq!((&chain[0]["item_id"], &chain[1]["item_id"]), (&json!("team/deploy"), &json!("team/runtime")));
    let human = user.ok(["lock", "show", "team/deploy"]);
    assert!(human.stdout.contains("  └─ team/runtime project "), "{human}");
    assert_eq!(user.ok(["lock", "verify"]).stdout, "1 lockfile checked: 1 ok\n");
}

#[test]
fn lock_verify_exits_8_until_accepted() {
    let user = user_with_tool();
    user.ok(["lock", "update", "team/deploy", "--scope", "project"]);
    user.write("tools/team/runtime.yaml", runtime("Runs otherwise"));
    user.ok(["sign", "tool", "team/runtime"]);
    let refused = user.assert_refused(["lock", "verify"], 8, "RYE0501");
    let row = &refused["data"]["lockfiles"][0];
    assert_eq!((&row["state"], &row["scope"]), (&json!("mismatch"), &json!("project")));
    let difference = &row["differences"][0];
    assert_eq!((&difference["element"], &difference["what"]), (&json!("team/runtime"), &json!("hash")));
    let run = user.ok(["lock", "update", "team/deploy"]);
    assert!(run.stdout.contains("• `team/runtime` changed: pinned "), "{run}");
    user.ok(["lock", "verify"]);

    let path = user.project().join("lockfiles/team/deploy@1.0.0.lock.json");
    std::fs::write(&path, "{\"lockfile_version\": 1, \"note\": \"\\u001b[2J\"}").expect("damaged");
    let refused = user.assert_refused(["lock", "verify", "team/deploy"], 8, "RYE0503");
    assert!(text(&refused["data"]["lockfiles"][0]["why"]).contains("`root`"), "{refused}");
    user.run(["lock", "list"]).assert_plain();
}

#[test]
fn signing_updates_the_user_lockfile() {
    let user = user_with_tool();
    user.ok(["lock", "update", "team/deploy"]);
    user.write("tools/team/deploy.yaml", tool("Deploys better"));
    let run = user.ok(["sign", "tool", "team/deploy"]);
    assert!(run.stderr.contains("deploy@1.0.0.lock.json"), "{run}");
    user.ok(["lock", "verify"]);
    user.write("tools/team/deploy.yaml", tool("Deploys best"));
    let signed = user.data(["sign", "tool", "team/deploy"]);
    assert!(text(&signed["lockfile"]).ends_with("/.ai/lockfiles/team/deploy@1.0.0.lock.json"), "{signed}");

    user.write("tools/team/runtime.yaml", runtime("Runs otherwise"));
    user.ok(["sign", "tool", "team/*", "--yes"]);
    user.assert_refused(["lock", "verify"], 8, "RYE0501");
}

#[test]
fn prune_removes_stale_lockfiles() {
    let user = user_with_tool();
    user.ok(["lock", "update", "team/deploy"]);
    assert_eq!(user.data(["lock", "prune"]), json!({ "removed": [] }));
    std::fs::remove_file(user.project().join(".ai/tools/team/deploy.yaml")).expect("removed");
    let removed = user.data(["lock", "prune"]);
    assert_eq!(removed["removed"][0]["state"], "gone");
    assert!(!user.home().join(".ai/lockfiles/team/deploy@1.0.0.lock.json").exists());
}
