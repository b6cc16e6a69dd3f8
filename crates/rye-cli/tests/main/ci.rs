//! `rye ci`: what a build machine runs, and how it says what is wrong.

use std::fs;

use serde_json::{Value, json};

use crate::support::{Entry, Snapshot, User, run, text};
use crate::team::Member;

const TESTS: &str =
    "tool: team/hi\ntests:\n  - name: says hi\n    assert:\n      status: success\n      data.said: hi\n";

/// A founder whose project is pinned and tested.
fn pinned_founder() -> Member {
    let alice = Member::founder("alice");
    alice.ok(["lock", "update", "--all", "--scope", "project"]);
    alice.user.write("tests/hi.test.yaml", TESTS);
    alice.commit();
    alice
}

/// The files of home and project. Folders that a sandbox protects may appear.
fn files(member: &Member) -> Snapshot {
    let all = member.user.snapshot();
    all.into_iter().filter(|(_, entry)| !matches!(entry, Entry::Folder { .. })).collect()
}

/// Runs `rye ci`, which must fail like this and write no file. Gives the error object.
fn ci_error(member: &Member, exit: i32, code: &str) -> Value {
    let before = files(member);
    let error = member.run(["ci", "--json"]).error(exit, code);
    assert_eq!(files(member), before, "no file is written");
    error
}

fn check(report: &Value, name: &str) -> Value {
    let checks = report["checks"].as_array().expect("checks");
    checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("{report}")).clone()
}

#[test]
fn ci_passes_in_a_joined_clone() {
    let alice = pinned_founder();
    let machine = Member::clone_of(&alice, "ci");
    machine.ok(["join", "--yes", "--only", &alice.fingerprint()]);
    let before = files(&machine);
    let report = machine.data(["ci"]);
    for name in ["identities", "items", "lockfiles", "tests"] {
        assert_eq!(check(&report, name)["status"], "passed", "{report}");
    }
    let table = machine.ok(["ci"]);
    for part in ["CHECK", "4 files signed and trusted", "2 tools pinned", "1 test passed"] {
        assert!(table.stdout.contains(part), "{part}: {table}");
    }
    assert_eq!(files(&machine), before, "no file is written");
}

#[test]
fn ci_exits_by_the_worst_check() {
    let alice = pinned_founder();
    let tests = alice.user.write("tests/hi.test.yaml", TESTS.replace("data.said: hi", "data.said: ho"));
    let failed = ci_error(&alice, 1, "RYE0801");
    let problems = check(&failed["data"], "tests")["problems"].to_string();
    assert!(problems.contains("says hi") && problems.contains("data.said"), "{failed}");
    assert_eq!(failed["hints"], serde_json::json!(["run them alone: rye test"]), "{failed}");

    alice.write_tool("new", "{}");
    alice.ok(["sign", "tool", "team/new"]);
    let failed = ci_error(&alice, 8, "RYE0506");
    assert!(
        check(&failed["data"], "lockfiles")["problems"].to_string().contains("team/new unpinned"),
        "{failed}"
    );
    assert_eq!(check(&failed["data"], "tests")["status"], "failed", "every check is made");

    alice.write_tool("loose", "{}");
    let failed = ci_error(&alice, 4, "RYE0401");
    assert!(check(&failed["data"], "items")["problems"].to_string().contains("tool:team/loose is unsigned"));
    assert!(text(&failed["error"]).contains("items, lockfiles, tests"), "{failed}");
    let human = alice.run(["ci"]);
    assert_eq!(human.exit, 4, "{human}");
    assert!(human.stdout.contains("✗ items: tool:team/loose is unsigned"), "{human}");
    fs::remove_file(tests).expect("removed");
}

#[test]
fn ci_trusts_only_named_keys() {
    let alice = pinned_founder();
    let carol = Member::clone_of(&alice, "carol");
    carol.ok(["join", "--yes"]);
    carol.ok(["keys", "publish"]);
    carol.write_tool("ho", "{}");
    carol.ok(["sign", "tool", "team/ho"]);
    carol.ok(["lock", "update", "--all", "--scope", "project"]);
    carol.commit();
    let machine = Member::clone_of(&carol, "ci");
    let joined = machine.data(["join", "--yes", "--only", &alice.fingerprint()]);
    assert_eq!(joined["trusted"], json!([alice.fingerprint()]), "{joined}");
    let failed = ci_error(&machine, 4, "RYE0404");
    assert!(check(&failed["data"], "items")["problems"].to_string().contains("tool:team/ho is not trusted"));
    let both = format!("{},{}", alice.fingerprint(), carol.fingerprint());
    machine.ok(["join", "--yes", "--only", &both]);
    machine.ok(["ci"]);
    machine.assert_refused(["join", "--yes", "--only", "alice"], 2, "RYE0104");
}

#[test]
fn ci_refuses_forged_identities() {
    let alice = pinned_founder();
    let path = alice.published(&alice.fingerprint());
    let document = fs::read_to_string(&path).expect("a document");
    fs::write(&path, document.replace("\"alice\"", "\"root\"")).expect("changed");
    let failed = ci_error(&alice, 4, "RYE0415");
    assert!(
        check(&failed["data"], "identities")["problems"].to_string().contains("changed since it was signed")
    );
}

#[test]
fn ci_without_trust_says_how() {
    let alice = pinned_founder();
    let machine = Member::clone_of(&alice, "ci");
    let failed = ci_error(&machine, 4, "RYE0404");
    assert!(failed["hints"].to_string().contains("rye join --yes --only FINGERPRINT"), "{failed}");
    assert_eq!(
        check(&failed["data"], "tests")["code"],
        "RYE0806",
        "unsigned test files are not run: {failed}"
    );
    let user = User::new();
    let empty = user.context.path().join("empty");
    fs::create_dir(&empty).expect("a folder");
    run(user.command().current_dir(&empty).args(["--json", "ci"])).error(3, "RYE0202");
}

#[test]
fn ci_needs_the_identities_of_signers() {
    let alice = pinned_founder();
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    bob.write_tool("bobs", "{}");
    bob.ok(["sign", "tool", "team/bobs"]);
    bob.ok(["lock", "update", "--all", "--scope", "project"]);
    let error = ci_error(&bob, 4, "RYE0404");
    let identities = check(&error["data"], "identities");
    assert!(text(&identities["summary"]).contains(&bob.fingerprint()), "{error}");
    assert!(identities["hints"].to_string().contains("rye keys publish"), "{error}");
    let joined = bob.ok(["join"]);
    assert!(joined.stderr.contains("rye keys publish"), "{joined}");
    bob.ok(["keys", "publish"]);
    assert_eq!(check(&bob.data(["ci"]), "identities")["status"], "passed");
    assert!(!bob.ok(["join"]).stderr.contains("rye keys publish"));
}

#[test]
fn ci_compares_the_lockfiles_of_the_project() {
    let alice = pinned_founder();
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    bob.ok(["execute", "team/hi"]);
    bob.ok(["lock", "update", "team/hi", "--scope", "user"]);
    alice.write_tool("hi", "{'said': 'hi again'}");
    alice.ok(["sign", "tool", "team/hi"]);
    alice.ok(["lock", "update", "--all", "--scope", "project"]);
    alice.commit();
    bob.pull(&alice);
    bob.assert_refused(["execute", "team/hi"], 8, "RYE0501");
    bob.ok(["lock", "check", "--scope", "project"]);
    let error = bob.assert_refused(["lock", "check"], 8, "RYE0506");
    let hints = error["hints"].to_string();
    assert!(hints.contains("rye lock update ID") && !hints.contains("--all"), "{error}");
    bob.ok(["lock", "update", "team/hi"]);
    bob.ok(["lock", "check"]);
    bob.ok(["execute", "team/hi"]);
}
