//! `rye join`: two homes and one repository, and what a third with a forged identity cannot do.

use std::fs;

use serde_json::{Value, json};

use crate::install::BundleAuthor;
use crate::support::{User, copy_file, run, text};
use crate::team::{Member, document_with_owner};

fn hints(error: &Value) -> String {
    error["hints"].to_string()
}

#[test]
fn colleague_joins_a_clone_and_runs() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    let refused = bob.assert_refused(["execute", "team/hi"], 4, "RYE0404");
    assert!(hints(&refused).contains("rye join"), "{refused}");

    let shown = bob.ok(["join", "--yes"]);
    for part in ["alice", &alice.fingerprint(), "4 items", "1 directive", "made your key", "joined"] {
        assert!(shown.stderr.contains(part) || shown.stdout.contains(part), "{part}: {shown}");
    }
    bob.assert_runs();
    let again = bob.ok(["join"]);
    assert!(again.stdout.contains("already joined"), "{again}");
    assert_eq!(bob.git(["status", "--porcelain"]), "", "joining changes nothing in the repository");
}

#[test]
fn init_publishes_the_own_identity() {
    let alice = Member::new("alice");
    let made = alice.data(["init"]);
    let path = alice.published(&alice.fingerprint());
    assert_eq!(made["identity"], path.to_str().expect("text"));
    let document = fs::read_to_string(&path).expect("a document");
    assert!(document.contains("owner = \"alice\"") && document.starts_with("# rye:signed:"), "{document}");
    assert_eq!(alice.data(["init"])["created"], json!([]), "it is written once");
    let listed = alice.data(["keys", "list"]);
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(1), "{listed}");
    let renamed = alice.data(["keys", "publish", "--owner", "Alice A."]);
    assert_eq!((&renamed["changed"], &renamed["owner"]), (&json!(true), &json!("Alice A.")));
    assert_eq!(alice.data(["keys", "publish"])["changed"], false);
}

#[test]
fn join_without_a_yes_changes_nothing() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    let refused = bob.assert_refused(["join"], 2, "RYE0105");
    let signer = &refused["data"]["signers"][0];
    assert_eq!(
        (&signer["owner"], &signer["fingerprint"], &signer["items"], &signer["status"]),
        (&json!("alice"), &json!(alice.fingerprint()), &json!(4), &json!("new")),
        "{refused}"
    );
    assert_eq!(signer["by_type"], json!({"directive": 1, "knowledge": 1, "tool": 2}));
    assert!(text(&signer["since"]).starts_with("20"), "{signer}");
    assert!(!bob.user.home().join(".ai/config/keys/signing").exists(), "no key was made");
    let human = bob.run(["join"]);
    assert_eq!(human.exit, 2, "{human}");
    assert!(human.stderr.contains("alice") && human.stderr.contains("rye join --yes"), "{human}");
    bob.assert_refused(["execute", "team/hi"], 4, "RYE0404");
}

#[test]
fn joined_keys_are_trusted_in_one_project() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let other = bob.user.context.path().join("other");
    bob.git(["clone".as_ref(), "--quiet".as_ref(), alice.user.project().as_os_str(), other.as_os_str()]);
    let load = |folder: &std::path::Path| {
        run(bob.command().current_dir(folder).args(["--json", "load", "tool", "team/hi"]))
    };
    load(&other).error(4, "RYE0404");
    assert_eq!(load(&bob.user.project()).exit, 0);
    let shown = bob.data(["keys", "show", &alice.fingerprint()]);
    assert_eq!(shown["trust"], "project", "{shown}");
}

#[test]
fn later_signers_need_another_yes() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let carol = Member::clone_of(&alice, "carol");
    carol.ok(["join", "--yes"]);
    carol.write_tool("ho", "{}");
    carol.ok(["sign", "tool", "team/ho"]);
    carol.commit();
    bob.pull(&carol);
    // Without her identity there is nothing to trust.
    let refused = bob.assert_refused(["execute", "team/ho"], 4, "RYE0404");
    assert!(hints(&refused).contains("rye join"), "{refused}");
    let shown = bob.ok(["join"]);
    assert!(shown.stderr.contains("no identity") && shown.stderr.contains("rye keys publish"), "{shown}");

    carol.ok(["keys", "publish"]);
    carol.commit();
    bob.pull(&carol);
    let refused = bob.assert_refused(["join"], 2, "RYE0105");
    let new: Vec<&Value> = refused["data"]["signers"]
        .as_array()
        .expect("signers")
        .iter()
        .filter(|signer| signer["status"] == "new")
        .collect();
    assert_eq!(new.len(), 1, "{refused}");
    assert_eq!((&new[0]["owner"], &new[0]["items"]), (&json!("carol"), &json!(1)));
    bob.ok(["join", "--yes"]);
    assert_eq!(bob.execute("ho").exit, 0);
    bob.assert_runs();
}

/// A forger's commit to the founder's project: their tool, and an identity they made.
fn forge(alice: &Member, mallory: &Member, file: &str, document: &str) {
    mallory.write_tool("evil", "{}");
    mallory.ok(["sign", "tool", "team/evil"]);
    copy_file(
        &mallory.user.project().join(".ai/tools/team/evil.py"),
        &alice.user.project().join(".ai/tools/team/evil.py"),
    );
    alice.user.write(&format!("config/keys/trusted/{file}.toml"), document);
    alice.commit();
}

#[test]
fn forged_identities_are_refused_by_name() {
    let mallory = Member::new("mallory");
    mallory.ok(["init"]);
    let (own, key) = (mallory.fingerprint(), mallory.private_key());
    let genuine = mallory.published(&own);
    let document = fs::read_to_string(&genuine).expect("a document");
    let stranger = Member::new("stranger");
    stranger.ok(["init"]);
    let with_owner = |owner: &str| document_with_owner(&genuine, owner, &key);
    let cases = [
        ("edited", own.clone(), document.replace("\"mallory\"", "\"alice\""), "changed since it was signed"),
        ("renamed", "0123456789abcdef".to_owned(), document.clone(), "is named `0123456789abcdef`"),
        (
            "unsigned",
            own.clone(),
            document.split_once('\n').expect("a line").1.to_owned(),
            "it is not signed",
        ),
        (
            "signed by another",
            own.clone(),
            document_with_owner(&genuine, "alice2", &stranger.private_key()),
            "signed by the key",
        ),
        ("same name", own.clone(), with_owner("alice"), "looks like `alice`"),
        ("look-alike", own.clone(), with_owner("A1ice"), "looks like `alice`"),
        ("other script", own.clone(), with_owner("\u{430}lice"), "mixes letters of several scripts"),
        ("hidden", own.clone(), with_owner("ali\u{200b}ce"), "U+200B"),
        ("right to left", own.clone(), with_owner("\u{202e}ecila"), "U+202E"),
    ];
    for (case, file, document, reason) in cases {
        let alice = Member::founder("alice");
        forge(&alice, &mallory, &file, &document);
        let bob = Member::clone_of(&alice, "bob");
        for words in [&["join"][..], &["join", "--yes"]] {
            let refused = bob.assert_refused(words, 4, "RYE0415");
            let message = text(&refused["error"]);
            assert!(
                message.contains(reason) && message.contains(&format!("{file}.toml")),
                "{case}: {message}"
            );
        }
        bob.run(["join"]).assert_plain();
        bob.assert_refused(["execute", "team/evil"], 4, "RYE0404");
    }
}

#[test]
fn look_alike_of_a_trusted_key_is_refused() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let mallory = Member::new("mallory");
    mallory.ok(["init"]);
    let own = mallory.fingerprint();
    let document = document_with_owner(&mallory.published(&own), "Alice", &mallory.private_key());
    // The genuine identity is gone from the project, but the user still knows it.
    fs::remove_file(alice.published(&alice.fingerprint())).expect("removed");
    forge(&alice, &mallory, &own, &document);
    bob.pull(&alice);
    let refused = bob.assert_refused(["join", "--yes"], 4, "RYE0415");
    assert!(text(&refused["error"]).contains(&alice.fingerprint()), "{refused}");
    bob.assert_runs();
}

#[test]
fn names_with_hidden_characters_are_refused() {
    let user = User::new();
    for name in ["ali\u{200b}ce", "\u{430}lice", "", " alice", "a\u{1b}[31m"] {
        user.assert_refused(["keys", "generate", "--owner", name], 2, "RYE0104");
    }
    let author = User::initialized();
    user.ok(["init"]);
    let key = author.context.text("home/.ai/config/keys/signing/private_key.pem");
    let file = author
        .context
        .write("hidden.toml", document_with_owner(&author.identity_document(), "a\u{2060}b", &key));
    let words = ["keys".as_ref(), "trust".as_ref(), file.as_os_str()];
    let refused = user.assert_refused(words, 4, "RYE0415");
    assert!(hints(&refused).contains("--owner NAME"), "{refused}");
    user.ok(words.into_iter().chain(["--owner".as_ref(), "Ann".as_ref()]));
}

#[test]
fn doctor_never_suggests_signing_for_others() {
    let alice = Member::founder("alice");
    alice.user.write(
        "config/config.yaml",
        "version: \"1.0.0\"\ncategory: \"\"\nintegrity:\n  partial_coverage: allow\n",
    );
    alice.ok(["sign", "config", "config"]);
    alice.commit();
    let bob = Member::clone_of(&alice, "bob");
    let check = |stage: &str| {
        let report = bob.run(["doctor", "--json"]).json();
        let findings = report["data"]["findings"].as_array().expect("findings").clone();
        assert!(findings.iter().any(|finding| finding["level"] != "ok"), "{stage}: {report}");
        for finding in &findings {
            let remedy = finding["remedy"].as_str().unwrap_or_default();
            assert!(!remedy.contains("rye sign"), "{stage}: {finding}");
        }
        report.to_string()
    };
    assert!(check("clone").contains("rye join"));
    bob.ok(["join", "--yes"]);
    let tool = bob.user.project().join(".ai/tools/team/hi.py");
    let source = fs::read_to_string(&tool).expect("a tool");
    fs::write(&tool, format!("{source}# more\n")).expect("changed");
    assert!(check("changed").contains("restore the version that its author signed"));
    fs::write(&tool, &source).expect("restored");
    bob.ok(["keys", "revoke", &alice.fingerprint()]);
    check("revoked");
}

#[test]
fn bundles_of_a_clone_are_joined_too() {
    let alice = Member::founder("alice");
    let maker = BundleAuthor::new();
    let bundle = maker.create_as("1.0.0", "out");
    fs::remove_file(alice.user.project().join(".ai/tools/team/hi.py")).expect("removed");
    alice.ok(["install", bundle.to_str().expect("text"), "--trust", &maker.fingerprint(), "--yes"]);
    alice.commit();
    let bob = Member::clone_of(&alice, "bob");
    let refused = bob.assert_refused(["join"], 2, "RYE0105");
    let row = &refused["data"]["bundles"][0];
    assert_eq!(
        (&row["bundle_id"], &row["version"], &row["signer"], &row["status"]),
        (&json!("gifts"), &json!("1.0.0"), &json!(maker.fingerprint()), &json!("new")),
        "{refused}"
    );
    let signers = refused["data"]["signers"].to_string();
    assert!(
        !signers.contains(&maker.fingerprint()),
        "a bundle's key is trusted for the bundle only: {signers}"
    );
    bob.ok(["join", "--yes"]);
    let ran = bob.execute("hi");
    assert_eq!(ran.exit, 0, "{ran}");
    // In another project of the same user the bundle's signer is trusted again or not at all.
    let other = bob.user.context.path().join("other");
    let copied = std::process::Command::new("cp").arg("-r").arg(bob.user.project()).arg(&other).status();
    assert!(copied.expect("cp").success());
    let in_other = |words: &[&str]| run(bob.user.command().current_dir(&other).args(words));
    let approved = in_other(&["trust", ".", "--yes"]);
    assert_eq!(approved.exit, 0, "{approved}");
    let refused = in_other(&["--json", "execute", "team/hi"]);
    assert!(refused.exit != 0 && refused.stdout.contains("rye join"), "{refused}");
    let joined = in_other(&["join", "--yes"]);
    assert_eq!(joined.exit, 0, "{joined}");
    let ran = in_other(&["execute", "team/hi"]);
    assert_eq!(ran.exit, 0, "{ran}");
}

#[test]
fn only_signers_of_items_are_trusted() {
    let alice = Member::founder("alice");
    let idle = Member::clone_of(&alice, "idle");
    idle.ok(["join", "--yes"]);
    idle.ok(["keys", "publish"]);
    idle.commit();
    let bob = Member::clone_of(&idle, "bob");
    let answer = bob.data(["join", "--yes"]);
    assert_eq!(answer["trusted"], json!([alice.fingerprint()]), "{answer}");
    assert_eq!((&answer["key_created"], &answer["newly_approved"]), (&json!(true), &json!(true)));
}

#[test]
fn join_needs_a_project() {
    let user = User::initialized();
    let empty = user.context.path().join("empty");
    fs::create_dir(&empty).expect("a folder");
    let refused = run(user.command().current_dir(&empty).args(["--json", "join"])).error(3, "RYE0202");
    assert!(hints(&refused).contains("rye init"), "{refused}");
}

#[test]
fn name_of_another_key_is_not_published() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let refused = bob.assert_refused(["keys", "publish", "--owner", "Alice"], 2, "RYE0104");
    assert!(text(&refused["error"]).contains(&alice.fingerprint()), "{refused}");
    assert!(!bob.published(&bob.fingerprint()).exists());
    bob.ok(["keys", "publish"]);
}

#[test]
fn glob_leaves_what_others_signed() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["keys", "generate"]);
    let before = bob.git(["status", "--porcelain"]);
    let signed = bob.data(["sign", "tool", "team/*"]);
    let left = signed["left"].as_array().expect("what was left").clone();
    assert_eq!((signed["signed"].as_array().map(Vec::len), left.len()), (Some(0), 1), "{signed}");
    assert_eq!(left[0]["fingerprint"], json!(alice.fingerprint()));
    assert_eq!(bob.git(["status", "--porcelain"]), before, "nothing was written");
    bob.assert_refused(["execute", "team/hi"], 4, "RYE0404");
    // What was changed here is one's own to sign.
    bob.write_tool("hi", "2");
    assert_eq!(bob.data(["sign", "tool", "team/*"])["signed"][0]["item_id"], "team/hi");
    let taken = bob.data(["sign", "**", "--take-over", "--yes"]);
    assert!(taken.get("left").is_none(), "{taken}");
}

#[test]
fn glob_leaves_changed_items_of_others() {
    let alice = Member::founder("alice");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let path = bob.user.project().join(".ai/tools/team/hi.py");
    let changed = format!("{}\n# a change\n", fs::read_to_string(&path).expect("the tool"));
    fs::write(&path, &changed).expect("written");
    let left = bob.data(["sign", "team/*"])["left"].clone();
    assert_eq!(left[0]["changed"], json!(true), "{left}");
    let held = bob.assert_refused(["sign", "team/*", "--take-over"], 2, "RYE0105");
    assert_eq!(held["data"]["held"][0]["state"], "other", "{held}");
    assert_eq!(fs::read_to_string(&path).expect("the tool"), changed, "nothing was written");
    let signed = bob.data(["sign", "tool", "team/hi"]);
    assert_eq!(signed["replaced"], json!(alice.fingerprint()), "{signed}");
}

#[test]
fn hidden_items_and_providers_are_shown() {
    let alice = Member::founder("alice");
    let provider = "version: \"1.0.0\"\ntool_type: provider\nexecutor_id: null\ncategory: rye/agent/providers/openai\n\
                    name: openai\ndescription: Ours\nprotocol: openai\nurl: https://models.example/v1\n\
                    auth: {type: bearer, variable: OPENAI_API_KEY}\ntier_mapping: {general: x}\n";
    alice.write("tools/rye/agent/providers/openai/openai.yaml", provider);
    alice.ok(["sign", "tool", "rye/agent/providers/openai/openai"]);
    alice.commit();
    let bob = Member::clone_of(&alice, "bob");
    bob.write_user("tools/team/hi.py", alice.read("tools/team/hi.py"));
    let review = bob.assert_refused(["join"], 2, "RYE0105")["data"].clone();
    let expected = json!([
        {"item": "tool:rye/agent/providers/openai/openai", "space": "system:ryeos"},
        {"item": "tool:team/hi", "space": "user"},
    ]);
    assert_eq!(review["hidden"], expected, "{review}");
    let expected = json!([{
        "item_id": "rye/agent/providers/openai/openai",
        "url": "https://models.example/v1",
        "key_variable": "OPENAI_API_KEY",
    }]);
    assert_eq!(review["providers"], expected, "{review}");
    let shown = run(bob.command().arg("join"));
    for part in ["tool:team/hi (yours)", "asks https://models.example/v1, with your key in `OPENAI_API_KEY`"]
    {
        assert!(shown.stderr.contains(part), "{part}: {shown}");
    }
}
