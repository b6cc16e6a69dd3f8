//! `rye keys`: the own key pair, and the keys of others.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use crate::support::{User, run, text};

#[test]
fn key_is_generated_once() {
    let user = User::new();
    let made = user.data(["keys", "generate", "--owner", "Ann"]);
    let fingerprint = text(&made["fingerprint"]);
    assert_eq!(fingerprint.len(), 16);
    user.assert_refused(["keys", "generate"], 2, "RYE0414");
    user.assert_refused(
        [
            "keys".as_ref(),
            "import".as_ref(),
            user.home().join(".ai/config/keys/signing/private_key.pem").as_os_str(),
        ],
        2,
        "RYE0414",
    );
    let output = user.data(["keys", "show"]);
    assert_eq!(
        (&output["fingerprint"], &output["owner"], &output["own"], &output["trust"]),
        (&json!(fingerprint), &json!("Ann"), &json!(true), &json!("user"))
    );
}

#[test]
fn keys_are_listed_with_their_trust() {
    let (user, other) = (User::initialized(), User::initialized());
    user.ok([
        "keys".as_ref(),
        "trust".as_ref(),
        other.public_key().as_os_str(),
        "--owner".as_ref(),
        "Bob".as_ref(),
    ]);
    let list = user.data(["keys", "list"]);
    let mut keys: Vec<(String, bool, String)> = list["keys"]
        .as_array()
        .expect("keys")
        .iter()
        .map(|key| (text(&key["owner"]), key["own"] == true, text(&key["trust"])))
        .collect();
    keys.sort();
    assert_eq!(
        keys,
        [("Bob".to_owned(), false, "user".to_owned()), ("tester".to_owned(), true, "user".to_owned())]
    );
    let human = user.ok(["keys", "list"]);
    assert!(human.stdout.contains(&other.fingerprint()) && human.stdout.contains("yours"), "{human}");
    assert_eq!(user.data(["keys", "show", &other.fingerprint()])["owner"], "Bob");
    user.assert_refused(["keys", "show", "0000000000000000"], 3, "RYE0416");
}

#[test]
fn key_commands_need_a_key() {
    let user = User::new();
    user.write("tools/team/a.py", rye_test::tool("team", "A"));
    user.assert_refused(["keys", "show"], 3, "RYE0416");
    user.assert_refused(["keys", "export"], 4, "RYE0411");
    user.assert_refused(["sign", "tool", "team/a"], 4, "RYE0411");
    user.assert_refused(["sign", "tool", "team/*"], 4, "RYE0411");
    user.assert_refused(["sign", ".ai/tools/team/a.py"], 4, "RYE0411");
    user.assert_refused(["trust", "."], 4, "RYE0411");
    user.assert_refused(["keys", "revoke", "0123456789abcdef"], 4, "RYE0411");
    assert_eq!(user.data(["keys", "list"])["keys"], json!([]));
}

#[test]
fn an_exported_identity_is_trusted_by_another_user() {
    let (alice, bob) = (User::initialized(), User::initialized());
    let file = bob.context.path().join("bob.toml");
    bob.ok(["keys".as_ref(), "export".as_ref(), "--output".as_ref(), file.as_os_str()]);
    let printed = bob.ok(["keys", "export"]).stdout;
    assert_eq!(printed, fs::read_to_string(&file).expect("document"));

    bob.signed_tool("gift", "From Bob");
    crate::support::copy_file(
        &bob.project().join(".ai/tools/team/gift.py"),
        &alice.project().join(".ai/tools/team/gift.py"),
    );
    alice.assert_refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let trusted = alice.data(["keys".as_ref(), "trust".as_ref(), file.as_os_str()]);
    assert_eq!(
        (&trusted["fingerprint"], &trusted["owner"], &trusted["projects"]),
        (&json!(bob.fingerprint()), &json!("tester"), &json!(null))
    );
    let loaded = alice.data(["load", "tool", "team/gift"]);
    assert_eq!(loaded["signer"]["fingerprint"], bob.fingerprint().as_str());
    let exported = alice.data(["keys", "export", &bob.fingerprint()]);
    assert_eq!(exported["fingerprint"], bob.fingerprint().as_str());
}

#[test]
fn imported_private_key_becomes_your_own() {
    let (old, new) = (User::initialized(), User::new());
    let file = old.home().join(".ai/config/keys/signing/private_key.pem");
    let imported = new.data(["keys".as_ref(), "import".as_ref(), file.as_os_str()]);
    assert_eq!(imported["fingerprint"], old.fingerprint().as_str());
    let folder = new.home().join(".ai/config/keys/signing");
    let mode = |path: &std::path::Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&folder.join("private_key.pem"))), (0o700, 0o600));
    new.signed_tool("mine", "Signed with it");
    new.ok(["load", "tool", "team/mine"]);
}

#[test]
fn invalid_key_file_is_refused() {
    let user = User::initialized();
    let junk = user.context.write("junk.pem", "hello");
    let public = user.public_key();
    let private = user.home().join(".ai/config/keys/signing/private_key.pem");
    user.assert_refused(["keys".as_ref(), "trust".as_ref(), junk.as_os_str()], 4, "RYE0415");
    user.assert_refused(["keys".as_ref(), "trust".as_ref(), private.as_os_str()], 4, "RYE0415");
    user.assert_refused(["keys", "trust", "no/such/file"], 3, "RYE0202");
    user.assert_refused(["keys", "revoke", "nonsense"], 2, "RYE0104");
    let fresh = User::new();
    for file in [&junk, &public] {
        fresh.assert_refused(["keys".as_ref(), "import".as_ref(), file.as_os_str()], 4, "RYE0413");
    }
    fresh.assert_refused(["keys", "import", "no/such/file"], 3, "RYE0202");
}

#[test]
fn world_readable_key_is_refused() {
    let user = User::initialized();
    user.write("tools/team/a.py", rye_test::tool("team", "A"));
    let folder = user.home().join(".ai/config/keys/signing");
    for (path, bits) in [
        (folder.join("private_key.pem"), 0o644),
        (folder.join("private_key.pem"), 0o660),
        (folder.clone(), 0o755),
        (folder.clone(), 0o710),
    ] {
        let good = fs::metadata(&path).expect("there").permissions();
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).expect("mode");
        let refusal = user.assert_refused(["sign", "tool", "team/a"], 4, "RYE0412");
        assert_eq!(refusal["path"], path.to_str().expect("text"));
        assert!(text(&refusal["hints"][0]).contains("chmod"), "{refusal}");
        user.assert_refused(["trust", "--revoke"], 4, "RYE0412");
        fs::set_permissions(&path, good).expect("mode");
    }
    user.ok(["sign", "tool", "team/a"]);
}

#[test]
fn broken_key_file_is_reported_and_kept() {
    let user = User::initialized();
    user.write("tools/team/a.py", rye_test::tool("team", "A"));
    let key = user.home().join(".ai/config/keys/signing/private_key.pem");
    fs::write(&key, "-----BEGIN PRIVATE KEY-----\ngarbage\n").expect("written");
    user.assert_refused(["sign", "tool", "team/a"], 4, "RYE0413");
    user.assert_refused(["init"], 4, "RYE0413");
}

#[test]
fn key_dir_variable_is_used() {
    let user = User::new();
    let folder = user.context.path().join("keys");
    let made = run(user.command().env("RYE_SIGNING_KEY_DIR", &folder).args(["init", "--json"]));
    assert_eq!(made.exit, 0, "{made}");
    assert!(folder.join("private_key.pem").is_file());
    assert!(!user.home().join(".ai/config/keys/signing").exists());
}

#[test]
fn world_accessible_key_dir_is_refused() {
    let user = User::new();
    let folder = user.home().join("shared");
    fs::create_dir(&folder).expect("folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("mode");
    user.assert_command_refused(
        user.command().env("RYE_SIGNING_KEY_DIR", &folder).args(["keys", "generate", "--json"]),
        4,
        "RYE0412",
    );
}

#[test]
fn embedded_key_cannot_be_revoked() {
    let user = User::initialized();
    let sealed = user.data(["load", "knowledge", "rye/core/items"]);
    user.assert_refused(["keys", "revoke", &text(&sealed["signer"]["fingerprint"])], 2, "RYE0104");
}

#[test]
fn edited_identity_document_is_not_trusted() {
    let (alice, bob) = (User::initialized(), User::initialized());
    let document = fs::read_to_string(bob.identity_document()).expect("a document");
    let trust = |content: &str| {
        let file = alice.context.write("bob.toml", content);
        run(alice.command().args(["--json", "keys", "trust"]).arg(&file))
    };
    let before = alice.snapshot();
    for changed in [
        document.replace("owner = \"tester\"", "owner = \"root\""),
        document.replace("attestation = \"\"\n", "attestation = \"\"\nmay_introduce = true\n"),
        document.replace('\n', "\r\n"),
        format!("{document}\n# more\n"),
    ] {
        assert_ne!(changed, document);
        trust(&changed).error(4, "RYE0402");
    }
    let unsigned = document.split_once('\n').expect("a signature line").1;
    let refusal = trust(unsigned).error(4, "RYE0401");
    assert!(refusal["hints"].to_string().contains("--owner NAME"), "{refusal}");
    let misread = document.replacen("# rye:signed", "# rye: signed", 1);
    trust(&misread).error(4, "RYE0401");
    assert_eq!(alice.snapshot(), before, "nothing was changed");
    assert_eq!(trust(&document).json()["status"], "success");
}

#[test]
fn identity_document_needs_a_signer_you_trust() {
    let (alice, bob, carol) = (User::initialized(), User::initialized(), User::initialized());
    bob.ok(["keys".as_ref(), "trust".as_ref(), carol.identity_document().as_os_str()]);
    let carols = bob.home().join(format!(".ai/config/keys/trusted/{}.toml", carol.fingerprint()));
    let trust = ["keys".as_ref(), "trust".as_ref(), carols.as_os_str()];
    let refusal = alice.assert_refused(trust, 4, "RYE0404");
    assert!(refusal["error"].to_string().contains(&bob.fingerprint()), "{refusal}");
    alice.ok(["keys".as_ref(), "trust".as_ref(), bob.identity_document().as_os_str()]);
    alice.ok(trust);
}

#[test]
fn edited_identity_document_is_listed_as_changed() {
    let (alice, bob) = (User::initialized(), User::initialized());
    alice.ok(["keys".as_ref(), "trust".as_ref(), bob.identity_document().as_os_str()]);
    let path = alice.home().join(format!(".ai/config/keys/trusted/{}.toml", bob.fingerprint()));
    let document = fs::read_to_string(&path).expect("a document");
    fs::write(&path, document.replace("tester", "root")).expect("written");
    let listing = alice.data(["keys", "list"]);
    let row =
        listing["keys"].as_array().expect("rows").iter().find(|row| row["fingerprint"] == bob.fingerprint());
    let row = row.expect("its row");
    assert_eq!((&row["trust"], &row["owner"]), (&json!("none"), &json!("unknown")), "{row}");
    assert!(text(&row["reason"]).contains("changed since it was signed"), "{row}");
    alice.assert_refused(["keys", "export", &bob.fingerprint()], 3, "RYE0416");
}
