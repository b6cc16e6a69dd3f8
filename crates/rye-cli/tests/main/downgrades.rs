//! An older version of a tool, however well it is signed, does not run beside a pin of a newer one.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::install::{BundleAuthor, install};
use crate::support::{User, differences, text};
use crate::tool_support::{function_text, write_signed_tool};

fn at(version: &str) -> String {
    function_text("", &format!("return '{version}'")).replace("\"1.0.0\"", &format!("\"{version}\""))
}

/// The tool `team/x` as it was signed at each version, pinned at the newer.
struct Versions {
    user: User,
    path: PathBuf,
    old: Vec<u8>,
}

impl Versions {
    fn new(older_is_pinned: bool, settings: &str) -> Self {
        let user = User::initialized();
        if !settings.is_empty() {
            user.write_user("config/config.yaml", settings);
        }
        let path = write_signed_tool(&user, "team/x", "py", &at("1.9.0"));
        if older_is_pinned {
            user.ok(["execute", "team/x"]);
        }
        let old = fs::read(&path).expect("a tool");
        write_signed_tool(&user, "team/x", "py", &at("1.10.0"));
        user.ok(["execute", "team/x"]);
        Self { user, path, old }
    }

    fn put_back(&self) {
        fs::write(&self.path, &self.old).expect("written");
    }

    fn refused(&self) -> Value {
        for flag in ["--locked", "--frozen", "--dry-run"] {
            self.user.assert_refused(["execute", "team/x", flag], 8, "RYE0501");
        }
        self.user.assert_refused(["execute", "team/x"], 8, "RYE0501")
    }

    fn states(&self) -> Vec<(String, String)> {
        let list = self.user.data(["lock", "list"]);
        let rows = list["lockfiles"].as_array().expect("rows").iter();
        let mut states: Vec<_> = rows.map(|row| (text(&row["version"]), text(&row["state"]))).collect();
        states.sort();
        states
    }
}

fn pairs(rows: &[(&str, &str)]) -> Vec<(String, String)> {
    rows.iter().map(|(version, state)| ((*version).to_owned(), (*state).to_owned())).collect()
}

#[test]
fn older_signed_version_is_refused_beside_a_newer_pin() {
    for older_is_pinned in [false, true] {
        let versions = Versions::new(older_is_pinned, "");
        versions.put_back();
        let before = versions.user.snapshot();
        let refused = versions.refused();
        let error = text(&refused["error"]);
        assert!(error.contains("pinned 1.10.0, found 1.9.0"), "{refused}");
        assert!(refused["hints"].to_string().contains("rye lock update team/x"), "{refused}");
        assert_eq!((&refused["expected"], &refused["found"]), (&json!("1.10.0"), &json!("1.9.0")));
        assert_eq!(differences(&before, &versions.user.snapshot()), Vec::<String>::new());
    }
}

#[test]
fn lock_verify_names_a_downgrade() {
    let versions = Versions::new(true, "");
    versions.put_back();
    assert_eq!(versions.states(), pairs(&[("1.10.0", "downgrade"), ("1.9.0", "ok")]));
    for words in [vec!["lock", "verify"], vec!["lock", "verify", "team/x"]] {
        let run = versions.user.run(words);
        assert_eq!(run.exit, 8, "{run}");
        assert!(run.stdout.contains("downgrade team/x@1.10.0"), "{run}");
    }
    let check = versions.user.assert_refused(["lock", "check"], 8, "RYE0506");
    assert!(check.to_string().contains("is older than the pinned version"), "{check}");
    // Pruning does not remove it.
    versions.user.ok(["lock", "prune"]);
    versions.refused();
}

#[test]
fn lock_update_accepts_a_downgrade() {
    for older_is_pinned in [false, true] {
        let versions = Versions::new(older_is_pinned, "");
        versions.put_back();
        let updated = versions.user.data(["lock", "update", "team/x"]);
        let removed = updated["lockfiles"][1].clone();
        assert_eq!(
            (&removed["change"], &removed["changes"][0]["what"]),
            (&json!("removed"), &json!("downgraded"))
        );
        assert_eq!(versions.user.data(["execute", "team/x", "--locked"]), json!("1.9.0"));
        assert_eq!(versions.states(), pairs(&[("1.9.0", "ok")]));
        // The newer one is a new version again.
        write_signed_tool(&versions.user, "team/x", "py", &at("1.10.0"));
        versions.user.ok(["execute", "team/x"]);
        versions.put_back();
        versions.refused();
    }
}

#[test]
fn teams_pin_of_a_newer_version_refuses_too() {
    let settings = "version: \"1.0.0\"\ncategory: \"\"\nlockfiles: {scope: project}\n";
    let versions = Versions::new(false, settings);
    versions.put_back();
    let refused = versions.refused();
    assert!(text(&refused["error"]).contains("the team's lockfile"), "{refused}");
    versions.user.ok(["lock", "update", "team/x", "--scope", "user"]);
    versions.refused();
    versions.user.ok(["lock", "update", "team/x"]);
    versions.user.ok(["execute", "team/x", "--locked"]);
    assert!(!versions.user.project().join("lockfiles/team/x@1.10.0.lock.json").exists());
}

#[test]
fn other_projects_pins_are_no_downgrade() {
    let versions = Versions::new(false, "");
    let elsewhere = versions.user.context.path().join("elsewhere");
    fs::create_dir_all(elsewhere.join(".ai/tools/team")).expect("made");
    fs::write(elsewhere.join(".ai/tools/team/x.py"), &versions.old).expect("written");
    let elsewhere = elsewhere.to_str().expect("text");
    versions.user.ok(["--project", elsewhere, "init"]);
    assert_eq!(versions.user.data(["--project", elsewhere, "execute", "team/x"]), json!("1.9.0"));
    // Nor is the damaged pin of another project in the way.
    versions.user.ok(["execute", "team/x", "--locked"]);
}

#[test]
fn newer_tool_of_project_hides_no_pinned_one() {
    let user = User::initialized();
    user.write_user("tools/team/x.py", at("1.0.0"));
    user.ok(["sign", "tool", "team/x", "--space", "user"]);
    assert_eq!(user.data(["execute", "team/x"]), "1.0.0");
    write_signed_tool(&user, "team/x", "py", &at("2.0.0"));
    let refused = user.assert_refused(["execute", "team/x"], 8, "RYE0501");
    assert!(text(&refused["error"]).contains("hidden by a new one in project space"), "{refused}");
    user.assert_refused(["execute", "team/x", "--locked"], 8, "RYE0501");
    // Accepted once, it runs, and so do its own new versions; the user's own pin stays.
    user.ok(["lock", "update", "team/x"]);
    assert_eq!(user.data(["execute", "team/x"]), "2.0.0");
    write_signed_tool(&user, "team/x", "py", &at("2.1.0"));
    assert_eq!(user.data(["execute", "team/x"]), "2.1.0");
    assert!(user.home().join(".ai/lockfiles/team/x@1.0.0.lock.json").is_file());
}

#[test]
fn hidden_tools_newer_pin_counts_until_accepted() {
    let user = User::initialized();
    user.write_user("tools/team/x.py", at("2.0.0"));
    user.ok(["sign", "tool", "team/x", "--space", "user"]);
    user.ok(["execute", "team/x"]);
    let path = write_signed_tool(&user, "team/x", "py", &at("1.0.0"));
    user.assert_refused(["execute", "team/x"], 8, "RYE0501");
    user.ok(["lock", "update", "team/x"]);
    assert_eq!(user.data(["execute", "team/x", "--locked"]), json!("1.0.0"));
    // The user's own pin was kept.
    fs::remove_file(path).expect("removed");
    assert_eq!(user.data(["execute", "team/x", "--locked"]), json!("2.0.0"));
}

#[test]
fn damaged_pin_of_a_newer_version_is_not_absent() {
    let versions = Versions::new(false, "");
    versions.put_back();
    let pin = versions.user.home().join(".ai/lockfiles/team/x@1.10.0.lock.json");
    fs::write(&pin, "{}").expect("written");
    versions.user.assert_refused(["execute", "team/x"], 8, "RYE0503");
    versions.user.ok(["lock", "update", "team/x"]);
    versions.user.ok(["execute", "team/x", "--locked"]);
    assert!(!pin.exists());
}

#[test]
fn rolled_back_bundle_runs_as_agreed() {
    let maker = BundleAuthor::new();
    maker.user.write("tools/team/x.py", at("1.0.0"));
    let old = maker.create("1.0.0");
    maker.user.write("tools/team/x.py", at("2.0.0"));
    let new = maker.create("2.0.0");
    let user = User::initialized();
    install(&user, &old, &maker, &[]);
    install(&user, &new, &maker, &[]);
    user.ok(["execute", "team/x"]);
    user.ok(["bundle", "rollback", "gifts"]);
    assert_eq!(user.data(["execute", "team/x", "--locked"]), json!("1.0.0"));
    // Put back by hand, without that consent, it is refused.
    install(&user, &new, &maker, &[]);
    user.ok(["execute", "team/x"]);
    fs::copy(old.join(".ai/tools/team/x.py"), user.project().join(".ai/tools/team/x.py")).expect("copied");
    assert!(user.run(["execute", "team/x"]).exit != 0);
}
