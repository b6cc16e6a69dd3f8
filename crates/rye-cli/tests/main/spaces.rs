//! Three spaces: who wins, who is hidden, and copies between them.

use std::fs;

use serde_json::{Value, json};

use crate::support::{User, rows, text};

/// The knowledge `rye/core/items` in all three spaces.
fn user_with_shadowed_item() -> User {
    let user = User::initialized();
    user.ok(["load", "knowledge", "rye/core/items", "--to", "user"]);
    user.ok(["load", "knowledge", "rye/core/items", "--from", "system", "--to", "project"]);
    user
}

#[test]
fn project_shadows_user_shadows_system() {
    let user = user_with_shadowed_item();
    let why = user.data(["why", "knowledge", "rye/core/items"]);
    assert_eq!(why["item"]["space"], "project");
    assert_eq!(why["shadows"], json!(["user", "system:ryeos-core"]));
    let found: Vec<(String, bool)> = why["tiers"]
        .as_array()
        .expect("tiers")
        .iter()
        .map(|tier| (text(&tier["space"]), tier["found"] == true))
        .collect();
    assert_eq!(
        found,
        [
            ("project".to_owned(), true),
            ("user".to_owned(), true),
            ("system:ryeos-core".to_owned(), true),
            ("system:ryeos".to_owned(), false),
        ]
    );
    let loaded = user.data(["load", "knowledge", "rye/core/items"]);
    assert_eq!(
        (&loaded["space"], &loaded["shadows"]),
        (&json!("project"), &json!(["user", "system:ryeos-core"]))
    );

    fs::remove_file(user.project().join(".ai/knowledge/rye/core/items.md")).expect("removed");
    assert_eq!(user.data(["load", "knowledge", "rye/core/items"])["space"], "user");
    fs::remove_file(user.home().join(".ai/knowledge/rye/core/items.md")).expect("removed");
    assert_eq!(user.data(["load", "knowledge", "rye/core/items"])["space"], "system:ryeos-core");
}

#[test]
fn search_all_shows_shadowed_files() {
    let user = user_with_shadowed_item();
    let of = |data: &Value| -> Vec<(String, Value, Value)> {
        let mut found: Vec<_> = rows(data)
            .iter()
            .filter(|row| row["item_id"] == "rye/core/items")
            .map(|row| (text(&row["space"]), row["shadows"].clone(), row["shadowed_by"].clone()))
            .collect();
        found.sort_by_key(|(space, ..)| space.clone());
        found
    };
    let winner = ("project".to_owned(), json!(["user", "system:ryeos-core"]), Value::Null);
    assert_eq!(of(&user.data(["search", "shadowed"])), std::slice::from_ref(&winner));
    assert_eq!(
        of(&user.data(["search", "shadowed", "--all"])),
        [
            winner,
            ("system:ryeos-core".to_owned(), json!([]), json!("project")),
            ("user".to_owned(), json!(["system:ryeos-core"]), json!("project")),
        ]
    );
    let in_user = user.data(["search", "shadowed", "--space", "user"]);
    assert_eq!(of(&in_user).len(), 1, "{in_user}");
    assert_eq!(of(&in_user)[0].0, "user");
    let human = user.ok(["search", "shadowed"]);
    assert!(human.stdout.contains("hides user"), "{human}");
}

#[test]
fn a_copy_is_signed_with_the_own_key() {
    let user = User::initialized();
    let own = user.fingerprint();
    let original = user.data(["load", "knowledge", "rye/core/signing"]);
    assert_ne!(original["signer"]["fingerprint"], own.as_str());
    assert_eq!(original["signer"]["trusted_by"], "bundle");
    for (to, folder) in [("project", user.project()), ("user", user.home())] {
        let copied = user.data(["load", "knowledge", "rye/core/signing", "--from", "system", "--to", to]);
        assert_eq!(
            (&copied["signer"], &copied["from"], &copied["to"]),
            (&json!(own), &json!("system:ryeos-core"), &json!(to))
        );
        let path = folder.join(".ai/knowledge/rye/core/signing.md");
        assert_eq!(copied["path"], path.to_str().expect("text"));
        let loaded = user.data(["load", "knowledge", "rye/core/signing", "--from", to]);
        assert_eq!(loaded["signer"]["fingerprint"], own.as_str());
        assert_eq!(loaded["content"], original["content"]);
    }
}

#[test]
fn copy_does_not_overwrite() {
    let user = user_with_shadowed_item();
    user.assert_refused(
        ["load", "knowledge", "rye/core/items", "--from", "system", "--to", "user"],
        2,
        "RYE0104",
    );
    user.assert_refused(["load", "knowledge", "rye/core/items", "--to", "project"], 2, "RYE0104");
}

#[test]
fn refused_item_is_not_copied() {
    let user = User::initialized();
    user.write("tools/team/raw.py", rye_test::tool("team", "Unsigned"));
    user.assert_refused(["load", "tool", "team/raw", "--to", "user"], 4, "RYE0401");
}

#[test]
fn copy_follows_no_link_out_of_space() {
    let user = User::initialized();
    let outside = user.context.path().join("outside");
    fs::create_dir(&outside).expect("folder");
    std::os::unix::fs::symlink(&outside, user.project().join(".ai/knowledge/rye")).expect("link");
    user.assert_refused(["load", "knowledge", "rye/core/items", "--to", "project"], 4, "RYE0205");
    assert_eq!(fs::read_dir(&outside).expect("outside").count(), 0);
}

#[test]
fn a_system_item_cannot_be_signed() {
    let user = User::initialized();
    user.assert_refused(["sign", "knowledge", "rye/core/items"], 2, "RYE0417");
}

#[test]
fn fetch_with_id_loads() {
    let user = User::initialized();
    for words in [
        vec!["fetch", "tool", "examples/hello"],
        vec!["fetch", "tool:examples/hello"],
        vec!["fetch", "examples/hello"],
    ] {
        let data = user.data(&words);
        assert_eq!(data["metadata"]["category"], "examples", "{words:?}");
    }
    let copied =
        user.data(["fetch", "knowledge", "rye/core/items", "--source", "system", "--destination", "user"]);
    assert_eq!(copied["to"], "user");
}

#[test]
fn fetch_with_query_searches() {
    let user = User::initialized();
    let ids = |data: Value| -> Vec<String> { rows(&data).iter().map(|row| text(&row["item_id"])).collect() };
    assert_eq!(ids(user.data(["fetch", "--query", "hello"])), ["examples/hello", "examples/greet"]);
    assert_eq!(ids(user.data(["fetch", "tool", "--query", "hello"])), ["examples/hello"]);
    assert_eq!(
        ids(user.data(["fetch", "--query", "hello", "--scope", "directive.examples.*"])),
        ["examples/greet"]
    );
    assert_eq!(
        ids(user.data(["fetch", "--query", "hello", "--scope", "tool.other.*"])),
        Vec::<String>::new()
    );
    assert_eq!(ids(user.data(["fetch", "--query", "hello", "--limit", "1"])), ["examples/hello"]);
}

#[test]
fn fetch_error_names_missing_arguments() {
    let user = User::initialized();
    user.assert_refused(["fetch"], 2, "RYE0104");
    user.assert_refused(["fetch", "tool", "x", "--query", "y"], 2, "RYE0104");
    user.assert_refused(["fetch", "--query", "x", "--scope", "nonsense.*"], 2, "RYE0104");
    user.assert_refused(["fetch", "examples/none"], 3, "RYE0201");
    user.write("tools/team/twice.py", rye_test::tool("team", "Twice"));
    user.write("knowledge/team/twice.md", rye_test::knowledge("team", "twice", "Twice", "x"));
    user.assert_refused(["fetch", "team/twice"], 2, "RYE0203");
}

#[test]
fn first_extension_wins() {
    let user = User::initialized();
    user.write("tools/team/duplex.py", rye_test::tool("team", "Python"));
    user.write(
        "tools/team/duplex.yaml",
        "version: \"1.0.0\"\ntool_type: x\nexecutor_id: null\ncategory: team\ndescription: Yaml\n",
    );
    user.ok(["sign", "tool", "team/duplex"]);
    user.ok(["sign", ".ai/tools/team/duplex.yaml"]);
    assert_eq!(user.data(["load", "tool", "team/duplex"])["metadata"]["description"], "Python");
    let found = user.data(["search", "duplex"]);
    assert_eq!(rows(&found).len(), 1, "{found}");
    assert_eq!(rows(&found)[0]["description"], "Python");
    let findings = user.data(["doctor"]);
    assert!(
        findings["findings"].as_array().expect("findings").iter().any(|finding| finding["check"]
            == "duplicates"
            && text(&finding["message"]).contains("duplex.py")),
        "{findings}"
    );
}

#[test]
fn nearest_parent_project_is_used() {
    let user = User::initialized();
    let deep = user.project().join("a/b/c");
    fs::create_dir_all(&deep).expect("folders");
    let run = crate::support::run(user.command().current_dir(&deep).args([
        "load",
        "tool",
        "examples/hello",
        "--json",
    ]));
    assert_eq!(run.json()["data"]["space"], "project", "{run}");
    let outside = user.home().join("sub");
    fs::create_dir_all(&outside).expect("folders");
    user.assert_command_refused(
        user.command().current_dir(&outside).args(["load", "tool", "examples/hello", "--json"]),
        3,
        "RYE0201",
    );
    let by_option = crate::support::run(user.command().current_dir(&outside).args([
        "load".as_ref(),
        "tool".as_ref(),
        "examples/hello".as_ref(),
        "--json".as_ref(),
        "-p".as_ref(),
        user.project().as_os_str(),
    ]));
    assert_eq!(by_option.exit, 0, "{by_option}");
}

#[test]
fn user_space_is_set_by_variable_or_option() {
    let user = User::initialized();
    let other = user.context.path().join("other");
    fs::create_dir(&other).expect("folder");
    for by_option in [false, true] {
        let mut command = user.command();
        if by_option {
            command.arg("--user-space").arg(&other);
        } else {
            command.env("USER_SPACE", &other);
        }
        let run = crate::support::run(command.args(["keys", "list", "--json"]));
        let keys = run.json()["data"]["keys"].as_array().cloned().expect("keys");
        // The project's copy of the identity is trusted by no other user space.
        assert!(keys.iter().all(|key| key["own"] == false && key["trust"] == "none"), "{run}");
    }
    let run = crate::support::run(user.command().env("USER_SPACE", &other).args(["keys", "generate"]));
    assert_eq!(run.exit, 0, "{run}");
    assert!(other.join(".ai/config/keys/signing/private_key.pem").is_file());
}

#[test]
fn refused_item_does_not_fall_back() {
    let user = User::initialized();
    user.write_user("tools/team/both.py", rye_test::tool("team", "Good"));
    user.ok(["sign", "tool", "team/both"]);
    user.ok(["load", "tool", "team/both"]);
    user.write("tools/team/both.py", rye_test::tool("team", "No one signed this"));
    user.assert_refused(["load", "tool", "team/both"], 4, "RYE0401");
    user.ok(["load", "tool", "team/both", "--from", "user"]);
}
