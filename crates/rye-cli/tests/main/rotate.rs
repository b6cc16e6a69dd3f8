//! `rye keys rotate`: a new key, and colleagues who keep working. What a replayed or forged hand-over cannot do.

use std::fs;
use std::path::PathBuf;

use serde_json::json;

use crate::support::{copy_tree, run, text};
use crate::team::Member;

/// A founder, and a colleague who has joined and has run the tool.
fn team() -> (Member, Member) {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    bob.assert_runs();
    (alice, bob)
}

/// Rotates the founder's key and commits. Gives the old and the new fingerprint.
fn rotate(alice: &Member) -> (String, String) {
    let old = alice.fingerprint();
    let rotated = alice.data(["keys", "rotate"]);
    assert_eq!(rotated["old"], old.as_str());
    assert_eq!(rotated["failed"], json!([]), "{rotated}");
    alice.commit();
    let new = alice.fingerprint();
    assert_ne!(old, new);
    (old, new)
}

fn handover(member: &Member, old: &str) -> PathBuf {
    member.user.project().join(format!(".ai/config/keys/handovers/{old}.toml"))
}

#[test]
fn rotated_key_keeps_the_colleague_working() {
    let (alice, bob) = team();
    let (old, new) = rotate(&alice);
    bob.pull(&alice);
    let first = bob.execute("hi");
    assert_eq!(first.exit, 0, "{first}");
    let line = first.stderr.lines().find(|line| line.contains(&new)).unwrap_or_else(|| panic!("{first}"));
    assert!(line.contains(&old) && line.contains("alice") && line.contains("signed by both"), "{line}");
    let second = bob.execute("hi");
    assert_eq!((second.exit, second.stderr.contains(&new)), (0, false), "{second}");

    let shown = bob.data(["keys", "show", &new]);
    assert_eq!((&shown["trust"], &shown["owner"]), (&json!("project"), &json!("alice")), "{shown}");
    bob.assert_refused(["keys", "show", &old], 3, "RYE0416");
    assert_eq!(bob.data(["verify"])["untrusted"], 0);
    bob.ok(["join"]);
    // A third who comes later sees the new key only.
    let carol = Member::clone_of(&alice, "carol");
    assert_eq!(carol.data(["join", "--yes"])["trusted"], json!([new]));
    carol.assert_runs();
}

#[test]
fn pins_of_imported_files_still_match() {
    let alice = Member::founder("alice");
    let module = |word: &str| format!("{}\nWORD = \"{word}\"\n", rye_test::tool("team", "A module"));
    alice.user.write("tools/team/__init__.py", module("package"));
    alice.user.write("tools/team/shared.py", module("hi"));
    let source =
        rye_test::tool("team", "Imports").replace("def execute", "from shared import WORD\n\n\ndef execute");
    let source = source.replace("return {}", "return {\"said\": WORD}");
    alice.user.write("tools/team/hi.py", source);
    alice.ok(["sign", "tool", "team/*", "--yes"]);
    alice.ok(["lock", "update", "team/hi", "--scope", "project"]);
    alice.commit();
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    bob.assert_runs();
    rotate(&alice);
    bob.pull(&alice);
    bob.assert_runs();
    alice.assert_runs();
    // A changed file is still found, however it is signed.
    let shared = alice.user.context.text("project/.ai/tools/team/shared.py");
    alice.user.write("tools/team/shared.py", shared.replace("\"hi\"", "\"ho\""));
    alice.ok(["sign", "tool", "team/shared"]);
    alice.commit();
    bob.pull(&alice);
    bob.assert_refused(["execute", "team/hi"], 8, "RYE0501");
}

#[test]
fn everything_is_signed_again() {
    let alice = Member::founder("alice");
    let friend = Member::new("friend");
    friend.ok(["init"]);
    alice.ok([
        "keys".as_ref(),
        "trust".as_ref(),
        friend.user.public_key().as_os_str(),
        "--owner".as_ref(),
        "friend".as_ref(),
        "--may-introduce".as_ref(),
    ]);
    alice.user.write_user("knowledge/notes/mine.md", rye_test::knowledge("notes", "mine", "Mine", "Text."));
    alice.ok(["sign", "knowledge", "notes/mine", "--space", "user"]);
    let old = alice.fingerprint();
    let rotated = alice.data(["keys", "rotate"]);
    let items = rotated["items"].to_string();
    for item in ["tool:team/hi", "tool:examples/hello", "knowledge:notes/mine"] {
        assert!(items.contains(item), "{item}: {rotated}");
    }
    let new = alice.fingerprint();
    assert!(!alice.published(&old).exists() && alice.published(&new).exists());
    // Nothing depends on the old key any more.
    alice.ok(["keys", "revoke", &old]);
    alice.assert_runs();
    alice.ok(["verify"]);
    let friend = alice.data(["keys", "show", &friend.fingerprint()]);
    assert_eq!((&friend["trust"], &friend["may_introduce"]), (&json!("user"), &json!(true)), "{friend}");
    let doctor = alice.run(["doctor", "--json"]).stdout;
    assert!(doctor.contains("the project is approved"), "{doctor}");
    assert_eq!(alice.data(["keys", "rotate", "--continue"])["items"], json!([]), "there is nothing left");
}

#[test]
fn rotation_continues_in_another_project() {
    let alice = Member::founder("alice");
    let other = alice.user.context.path().join("other");
    fs::create_dir(&other).expect("a folder");
    let at_other = |words: &[&str]| {
        let run = run(alice.command().current_dir(&other).arg("--json").args(words));
        assert_eq!(run.exit, 0, "{run}");
        run.json()["data"].clone()
    };
    at_other(&["init"]);
    let old = alice.fingerprint();
    rotate(&alice);
    at_other(&["execute", "examples/hello"]);
    let continued = at_other(&["keys", "rotate", "--continue"]);
    assert_eq!(continued["items"].as_array().map(Vec::len), Some(3), "{continued}");
    assert!(other.join(format!(".ai/config/keys/handovers/{old}.toml")).exists());
    alice.ok(["keys", "revoke", &old]);
    at_other(&["execute", "examples/hello"]);
}

#[test]
fn handover_of_an_unknown_key_is_refused() {
    let alice = Member::founder("alice");
    rotate(&alice);
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["keys", "generate"]);
    bob.assert_refused(["execute", "team/hi"], 4, "RYE0404");
    let keys = bob.data(["keys", "list"]).to_string();
    assert!(!keys.contains("\"project\""), "{keys}");
}

#[test]
fn handover_of_a_revoked_key_is_refused() {
    let (alice, bob) = team();
    bob.ok(["keys", "revoke", &alice.fingerprint(), "--reason", "stolen"]);
    let (old, new) = rotate(&alice);
    bob.pull(&alice);
    let refused = bob.execute("hi");
    refused.error(4, "RYE0404");
    assert!(refused.stderr.contains(&old) && refused.stderr.contains("is ignored"), "{refused}");
    // The new key is a stranger's until the user says otherwise.
    let shown = bob.run(["join"]);
    assert!(shown.stderr.contains(&new) && shown.exit == 2, "{shown}");
}

#[test]
fn replayed_handover_brings_no_key_back() {
    let (alice, bob) = team();
    let (first, second) = rotate(&alice);
    let before = alice.git(["rev-parse", "HEAD"]);
    bob.pull(&alice);
    bob.assert_runs();
    let (_, third) = rotate(&alice);
    bob.pull(&alice);
    bob.assert_runs();
    let list = bob.data(["keys", "list"]).to_string();
    assert!(list.contains(&third) && !list.contains(&second) && !list.contains(&first), "{list}");
    // The state between the rotations: the first hand-over, and items that the second key signed.
    bob.git(["rm", "--quiet", "-r", ".ai"]);
    bob.git(["checkout", before.trim(), "--", ".ai"]);
    bob.assert_refused(["execute", "team/hi"], 4, "RYE0404");
    let joined = bob.data(["join", "--yes"]);
    assert_eq!(joined["signers"][0]["status"], "retired", "{joined}");
    bob.assert_refused(["execute", "team/hi"], 4, "RYE0404");
}

#[test]
fn forged_handover_has_no_effect() {
    let (alice, bob) = team();
    let mallory = Member::new("mallory");
    mallory.ok(["init"]);
    let mallory_old = mallory.fingerprint();
    mallory.write_tool("hi", "{\"said\": \"evil\"}");
    mallory.ok(["sign", "tool", "team/hi"]);
    let genuine = mallory.data(["keys", "rotate"]);
    let document = fs::read_to_string(handover(&mallory, &mallory_old)).expect("a hand-over");
    let old = alice.fingerprint();
    // Her own hand-over under the name of the key that is trusted; and one that claims to be from it.
    let key = fs::read_to_string(alice.user.public_key()).expect("a key");
    let own_key =
        document.split("[old_key]\npem = \"\"\"\n").nth(1).and_then(|rest| rest.split("\"\"\"").next());
    let claimed = document.replace(own_key.expect("a key"), &key).replace(&mallory_old, &old);
    copy_tree(&mallory.user.project().join(".ai/tools"), &bob.user.project().join(".ai/tools"));
    for forged in [document.clone(), claimed] {
        bob.user.write(&format!("config/keys/handovers/{old}.toml"), &forged);
        let refused = bob.execute("hi");
        refused.error(4, "RYE0404");
        let keys = bob.data(["keys", "list"]).to_string();
        assert!(keys.contains(&old) && !keys.contains(&text(&genuine["fingerprint"])), "{keys}");
    }
}

#[test]
fn rotation_needs_a_valid_key() {
    let member = Member::new("alice");
    member.assert_refused(["keys", "rotate"], 4, "RYE0411");
    member.ok(["init"]);
    member.ok(["keys", "revoke", &member.fingerprint()]);
    member.assert_refused(["keys", "rotate"], 4, "RYE0405");
}
