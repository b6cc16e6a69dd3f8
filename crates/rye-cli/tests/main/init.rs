//! `rye init`: the first thing a user runs.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use crate::support::{User, differences, run, text};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("there").permissions().mode() & 0o777
}

#[test]
fn init_creates_key_and_signed_examples() {
    let user = User::new();
    let made = user.data(["init"]);
    assert_eq!(made["key_created"], true);
    assert_eq!(made["approved"], true);
    assert_eq!(made["created"].as_array().map(Vec::len), Some(7), "{made}");

    let verified = user.data(["verify"]);
    assert_eq!(verified["full"], verified["checked"]);
    for (item_type, id) in
        [("tool", "examples/hello"), ("directive", "examples/greet"), ("knowledge", "examples/style")]
    {
        let data = user.data(["verify", item_type, id]);
        assert_eq!((&data["full"], &data["checked"]), (&1.into(), &1.into()));
        assert_eq!(data["items"][0]["fingerprint"], made["fingerprint"]);
    }
    let again = user.data(["trust", "."]);
    assert_eq!((&again["approved"], &again["changed"]), (&true.into(), &false.into()));
}

#[test]
fn new_key_is_private() {
    let user = User::initialized();
    let folder = user.home().join(".ai/config/keys/signing");
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("private_key.pem")), 0o600);
    let pem = fs::read_to_string(folder.join("private_key.pem")).expect("key");
    assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----"));
}

#[test]
fn init_disables_git_line_ending_conversion() {
    let user = User::initialized();
    let attributes = String::from_utf8(user.read(".gitattributes")).expect("text");
    assert!(attributes.lines().any(|line| line == "* -text"), "{attributes}");
}

#[test]
fn init_adds_threads_to_gitignore() {
    let user = User::initialized();
    let ignored = || String::from_utf8(user.read(".gitignore")).expect("text");
    assert!(ignored().lines().any(|line| line == "/threads/"), "{}", ignored());
    user.write(".gitignore", "mine\n# not threads");
    user.ok(["init"]);
    assert!(
        ignored().starts_with("mine\n# not threads\n") && ignored().ends_with("\n/threads/\n"),
        "{}",
        ignored()
    );
    for own in ["threads/\n", "!/threads\nx\n", "*\n"] {
        user.write(".gitignore", own);
        user.ok(["init"]);
        assert_eq!(ignored(), own);
    }
}

#[test]
fn second_init_is_a_no_op() {
    let user = User::initialized();
    let before = user.snapshot();
    let again = user.data(["init"]);
    assert_eq!(again["key_created"], false);
    assert_eq!(again["created"], serde_json::json!([]));
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn init_does_not_sign_existing_files() {
    let user = User::new();
    let foreign = rye_test::tool("examples", "Not the example");
    user.write("tools/examples/hello.py", &foreign);
    user.ok(["init"]);
    assert_eq!(user.read("tools/examples/hello.py"), foreign.as_bytes());
    user.assert_refused(["load", "tool", "examples/hello"], 4, "RYE0401");
}

#[test]
fn init_restores_a_lost_identity_document() {
    let user = User::initialized();
    let document = user.identity_document();
    fs::remove_file(&document).expect("removed");
    user.assert_refused(["load", "tool", "examples/hello"], 4, "RYE0404");
    user.ok(["init"]);
    user.ok(["load", "tool", "examples/hello"]);
}

#[test]
fn init_at_home_creates_only_user_space() {
    let user = User::new();
    let made = run(user.command().current_dir(user.home()).args(["init", "--json"])).json();
    assert_eq!(made["data"]["project"], serde_json::Value::Null);
    assert!(user.home().join(".ai/tools").is_dir());
    assert!(!user.home().join(".ai/tools/examples").exists());
}

#[test]
fn init_uses_current_folder_below_another_project() {
    let user = User::initialized();
    let inner = user.project().join("inner");
    fs::create_dir(&inner).expect("folder");
    let made = run(user.command().current_dir(&inner).args(["init", "--json"])).json();
    assert_eq!(text(&made["data"]["project"]), inner.to_str().expect("text"));
    assert!(inner.join(".ai/tools/examples/hello.py").is_file());
}

#[test]
fn init_follows_no_link_out_of_project() {
    for (link, target) in
        [(".ai", "../outside"), (".ai/tools", "../../outside"), (".ai/tools/examples", "../../../outside")]
    {
        let user = User::initialized();
        let clone = user.context.path().join("clone");
        let outside = user.context.path().join("outside");
        let link = clone.join(link);
        fs::create_dir_all(link.parent().expect("a folder")).expect("folders");
        fs::create_dir(&outside).expect("folder");
        symlink(target, &link).expect("link");
        let refusal = user.assert_command_refused(
            user.command().current_dir(&clone).args(["init", "--json"]),
            4,
            "RYE0205",
        );
        assert_eq!(fs::read_dir(&outside).expect("outside").count(), 0, "{refusal}");
    }
}

#[test]
fn init_refuses_a_world_readable_key() {
    let user = User::initialized();
    let key = user.home().join(".ai/config/keys/signing/private_key.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("mode");
    user.assert_refused(["init"], 4, "RYE0412");
}

#[test]
fn init_reports_a_revoked_key() {
    let user = User::initialized();
    user.ok(["keys", "revoke", &user.fingerprint()]);
    user.assert_refused(["init"], 4, "RYE0405");
}

#[test]
fn a_project_may_have_any_name() {
    for name in ["a\nb: [c", "quo\"te' \\slash", "日本語 ${HOME} *", "-p"] {
        let user = User::new();
        let project = user.context.path().join(name);
        fs::create_dir(&project).expect("folder");
        let at = |words: &[&str]| run(user.command().current_dir(&project).args(words).arg("--json"));
        assert_eq!(at(&["init"]).exit, 0, "{name:?}");
        let approved = at(&["trust", "."]);
        assert_eq!(approved.json()["data"]["changed"], false, "{name:?}: {approved}");
        let other_user = User::initialized();
        let key = other_user.public_key();
        let trusted = at(&["keys", "trust", key.to_str().expect("text"), "--space", "project"]);
        assert_eq!(trusted.exit, 0, "{trusted}");
        let output = at(&["keys", "show", &other_user.fingerprint()]);
        assert_eq!(output.json()["data"]["trust"], "project", "{name:?}: {output}");
        assert_eq!(at(&["search", "hello"]).json()["data"]["total"], 2, "{name:?}");
    }
}

#[test]
fn non_utf8_project_path_is_refused() {
    let user = User::initialized();
    let name = std::ffi::OsString::from_vec(b"\xff".to_vec());
    let project = user.project().join(name);
    fs::create_dir(&project).expect("folder");
    user.assert_command_refused(user.command().current_dir(&project).args(["init", "--json"]), 2, "RYE0104");
}

#[test]
fn example_runs_without_python() {
    let user = User::new();
    let rye = |words: &[&str]| run(user.command().env("PATH", "/nonexistent").args(words));
    let made = rye(&["init"]);
    assert_eq!(made.exit, 0, "{made}");
    assert!(user.project().join(".ai/tools/examples/hello.yaml").is_file(), "{made}");
    let ran = rye(&["execute", "examples/hello", "name=A \"b\" \\c", "--json"]);
    assert_eq!(ran.json()["data"]["greeting"], "Hello, A \"b\" \\c!", "{ran}");
    let greeted = rye(&["run", "examples/greet", "name=Ada"]);
    assert!(greeted.exit == 0 && greeted.stdout.contains("Hello, Ada!"), "{greeted}");
    // A second time, with Python, nothing is added beside it.
    user.ok(["init"]);
    assert!(!user.project().join(".ai/tools/examples/hello.py").exists());
}
