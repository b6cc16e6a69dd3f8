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
fn init_makes_a_key_and_three_examples_that_verify_full() {
    let user = User::new();
    let made = user.data(["init"]);
    assert_eq!(made["key_created"], true);
    assert_eq!(made["approved"], true);
    assert_eq!(made["created"].as_array().map(Vec::len), Some(6), "{made}");

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
fn the_new_key_is_closed_to_others() {
    let user = User::ready();
    let folder = user.home().join(".ai/config/keys/signing");
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(mode(&folder.join("private_key.pem")), 0o600);
    let pem = fs::read_to_string(folder.join("private_key.pem")).expect("key");
    assert!(pem.starts_with("-----BEGIN PRIVATE KEY-----"));
}

#[test]
fn init_keeps_line_endings_out_of_gits_hands() {
    let user = User::ready();
    let attributes = String::from_utf8(user.read(".gitattributes")).expect("text");
    assert!(attributes.lines().any(|line| line == "* -text"), "{attributes}");
}

#[test]
fn init_keeps_threads_out_of_git_and_a_users_own_lines_as_they_are() {
    let user = User::ready();
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
fn a_second_init_changes_nothing() {
    let user = User::ready();
    let before = user.snapshot();
    let again = user.data(["init"]);
    assert_eq!(again["key_created"], false);
    assert_eq!(again["created"], serde_json::json!([]));
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn init_does_not_sign_what_somebody_else_put_in_an_examples_place() {
    let user = User::new();
    let foreign = rye_test::tool("examples", "Not the example");
    user.write("tools/examples/hello.py", &foreign);
    user.ok(["init"]);
    assert_eq!(user.read("tools/examples/hello.py"), foreign.as_bytes());
    user.refused(["load", "tool", "examples/hello"], 4, "RYE0401");
}

#[test]
fn init_mends_a_lost_identity_document() {
    let user = User::ready();
    let document = user.identity();
    fs::remove_file(&document).expect("removed");
    user.refused(["load", "tool", "examples/hello"], 4, "RYE0404");
    user.ok(["init"]);
    user.ok(["load", "tool", "examples/hello"]);
}

#[test]
fn init_in_the_home_makes_a_user_space_and_no_project() {
    let user = User::new();
    let made = run(user.command().current_dir(user.home()).args(["init", "--json"])).json();
    assert_eq!(made["data"]["project"], serde_json::Value::Null);
    assert!(user.home().join(".ai/tools").is_dir());
    assert!(!user.home().join(".ai/tools/examples").exists());
}

#[test]
fn init_takes_the_current_folder_even_below_another_project() {
    let user = User::ready();
    let inner = user.project().join("inner");
    fs::create_dir(&inner).expect("folder");
    let made = run(user.command().current_dir(&inner).args(["init", "--json"])).json();
    assert_eq!(text(&made["data"]["project"]), inner.to_str().expect("text"));
    assert!(inner.join(".ai/tools/examples/hello.py").is_file());
}

#[test]
fn init_writes_nothing_through_a_link_that_leaves_the_project() {
    for (link, target) in
        [(".ai", "../outside"), (".ai/tools", "../../outside"), (".ai/tools/examples", "../../../outside")]
    {
        let user = User::ready();
        let clone = user.world.path().join("clone");
        let outside = user.world.path().join("outside");
        let link = clone.join(link);
        fs::create_dir_all(link.parent().expect("a folder")).expect("folders");
        fs::create_dir(&outside).expect("folder");
        symlink(target, &link).expect("link");
        let refusal =
            user.refused_by(user.command().current_dir(&clone).args(["init", "--json"]), 4, "RYE0205");
        assert_eq!(fs::read_dir(&outside).expect("outside").count(), 0, "{refusal}");
    }
}

#[test]
fn init_refuses_a_loose_key_and_leaves_it() {
    let user = User::ready();
    let key = user.home().join(".ai/config/keys/signing/private_key.pem");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).expect("mode");
    user.refused(["init"], 4, "RYE0412");
}

#[test]
fn init_with_a_revoked_key_says_so() {
    let user = User::ready();
    user.ok(["keys", "revoke", &user.fingerprint()]);
    user.refused(["init"], 4, "RYE0405");
}

#[test]
fn a_project_may_have_any_name() {
    for name in ["a\nb: [c", "quo\"te' \\slash", "日本語 ${HOME} *", "-p"] {
        let user = User::new();
        let project = user.world.path().join(name);
        fs::create_dir(&project).expect("folder");
        let at = |words: &[&str]| run(user.command().current_dir(&project).args(words).arg("--json"));
        assert_eq!(at(&["init"]).exit, 0, "{name:?}");
        let approved = at(&["trust", "."]);
        assert_eq!(approved.json()["data"]["changed"], false, "{name:?}: {approved}");
        let stranger = User::ready();
        let key = stranger.public_key();
        let trusted = at(&["keys", "trust", key.to_str().expect("text"), "--space", "project"]);
        assert_eq!(trusted.exit, 0, "{trusted}");
        let shown = at(&["keys", "show", &stranger.fingerprint()]);
        assert_eq!(shown.json()["data"]["trust"], "project", "{name:?}: {shown}");
        assert_eq!(at(&["search", "hello"]).json()["data"]["total"], 2, "{name:?}");
    }
}

#[test]
fn a_project_whose_path_is_no_text_is_refused_before_anything_is_made() {
    let user = User::ready();
    let name = std::ffi::OsString::from_vec(b"\xff".to_vec());
    let project = user.project().join(name);
    fs::create_dir(&project).expect("folder");
    user.refused_by(user.command().current_dir(&project).args(["init", "--json"]), 2, "RYE0104");
}
