//! Another version of an installed bundle: upgraded, rolled back, downgraded, accepted.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::install::{BundleAuthor, install, paths_in};
use crate::support::{User, snapshot, text};

/// Two versions: one tool changed, one came, one went.
pub fn create_two_versions(maker: &BundleAuthor) -> (PathBuf, PathBuf) {
    let first = maker.create("1.0.0");
    maker.write_tool("hi", "2");
    maker.write_tool("new", "2");
    fs::remove_file(maker.user.project().join(".ai/tools/team/ho.py")).expect("removed");
    (first, maker.create("2.0.0"))
}

#[test]
fn upgrade_and_rollback_change_all_files() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let (first, second) = create_two_versions(&maker);
    install(&user, &first, &maker, &[]);
    let after_first = paths_in(&user.project().join(".ai/tools"));
    let output = user.data(["install", second.to_str().expect("text"), "--dry-run"]);
    assert_eq!(output["previous_version"], "1.0.0");
    let done = user.data(["install", second.to_str().expect("text"), "--yes"]);
    assert_eq!(
        (&done["status"], &done["previous_version"], &done["counts"]),
        (
            &json!("upgraded"),
            &json!("1.0.0"),
            &json!({"added": 1, "replaced": 1, "unchanged": 2, "removed": 1, "kept": 0, "overwritten": 0})
        ),
        "{done}"
    );
    assert_eq!(user.data(["execute", "team/hi"]), json!(2));
    user.assert_refused(["load", "tool", "team/ho"], 3, "RYE0201");
    assert_eq!(user.data(["bundle", "verify", "gifts"])["version"], "2.0.0");

    let restored = user.data(["bundle", "rollback", "gifts"]);
    assert_eq!(
        (&restored["status"], &restored["version"]),
        (&json!("rolled back"), &json!("1.0.0")),
        "{restored}"
    );
    assert_eq!(user.data(["load", "tool", "team/hi"])["signer"]["fingerprint"], maker.fingerprint());
    assert_eq!(user.data(["bundle", "verify", "gifts"])["status"], "verified");
    assert_eq!(paths_in(&user.project().join(".ai/tools")), after_first);
    user.assert_refused(["bundle", "rollback", "gifts"], 3, "RYE0617");
    user.assert_refused(["bundle", "rollback", "other"], 3, "RYE0601");
}

#[test]
fn accepted_upgrade_updates_user_pins() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let (first, second) = create_two_versions(&maker);
    install(&user, &first, &maker, &[]);
    assert_eq!(user.data(["execute", "team/hi"]), json!(1));
    let done = install(&user, &second, &maker, &[]);
    assert_eq!(done["lockfiles"].as_array().map(Vec::len), Some(1), "{done}");
    assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(2));
    let restored = user.data(["bundle", "rollback", "gifts"]);
    assert_eq!(restored["lockfiles"].as_array().map(Vec::len), Some(1), "{restored}");
    assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(1));
}

#[test]
fn downgrade_and_new_signer_need_acceptance() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let (first, second) = create_two_versions(&maker);
    install(&user, &second, &maker, &[]);
    let first = first.to_str().expect("text");
    let refusal = user.assert_refused(["install", first, "--yes"], 4, "RYE0616");
    assert!(text(&refusal["hints"][1]).contains("--allow-downgrade"), "{refusal}");
    assert_eq!(user.data(["install", first, "--yes", "--allow-downgrade"])["status"], "downgraded");

    let other = BundleAuthor::new();
    let theirs = other.create("3.0.0");
    let theirs = theirs.to_str().expect("text");
    let refusal = user.assert_refused(["install", theirs, "--yes"], 4, "RYE0616");
    assert!(text(&refusal["hints"][1]).contains(&format!("--trust {}", other.fingerprint())), "{refusal}");
    install(&user, Path::new(theirs), &other, &[]);
    assert_eq!(user.data(["load", "tool", "team/hi"])["signer"]["fingerprint"], other.fingerprint());
}

#[test]
fn earlier_versions_are_limited() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    for version in 1..=6 {
        maker.write_tool("hi", &version.to_string());
        install(&user, &maker.create(&format!("{version}.0.0")), &maker, &[]);
    }
    for version in [5, 4, 3] {
        let restored = user.data(["bundle", "rollback", "gifts"]);
        assert_eq!(restored["version"], format!("{version}.0.0"), "{restored}");
        assert_eq!(user.data(["execute", "team/hi", "--frozen"]), json!(version));
    }
    user.assert_refused(["bundle", "rollback", "gifts"], 3, "RYE0617");
    user.ok(["uninstall", "gifts"]);
    let left: Vec<_> =
        snapshot(&user.home().join(".ai/installs")).into_keys().filter(|path| path.is_file()).collect();
    assert!(left.iter().all(|path| path.ends_with("lock")), "{left:?}");
}

#[test]
fn rollback_keeps_local_changes() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let (first, second) = create_two_versions(&maker);
    install(&user, &first, &maker, &[]);
    install(&user, &second, &maker, &[]);
    user.write("tools/team/hi.py", "# mine\n");
    let restored = user.data(["bundle", "rollback", "gifts"]);
    assert_eq!(restored["kept"], json!([".ai/tools/team/hi.py"]), "{restored}");
    assert_eq!(user.read("tools/team/hi.py"), b"# mine\n");
    user.ok(["load", "tool", "team/ho"]);
}
