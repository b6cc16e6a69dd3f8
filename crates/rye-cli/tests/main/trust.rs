//! Whose signature counts: revocation, introduction, keys of one project, approvals.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::{User, copy_file, copy_tree, run, text};

/// Puts a tool that `author` signed into the project of `user`, as `team/<name>`.
fn copy_tool(author: &User, user: &User, name: &str) {
    let path = author.signed_tool(name, "A gift");
    copy_file(&path, &user.project().join(format!(".ai/tools/team/{name}.py")));
}

/// `user` trusts the key of `author`, with further options.
fn trust_author(user: &User, author: &User, options: &[&str]) {
    let key = author.public_key();
    let mut words = vec!["keys".as_ref(), "trust".as_ref(), key.as_os_str()];
    words.extend(options.iter().map(std::ffi::OsStr::new));
    user.ok(words);
}

fn assert_load_refused_in(user: &User, project: &Path, id: &str, code: &str) {
    user.assert_command_refused(
        user.command().current_dir(project).args(["load", "tool", id, "--json"]),
        4,
        code,
    );
}

#[test]
fn foreign_key_is_untrusted() {
    let (user, author) = (User::initialized(), User::initialized());
    copy_tool(&author, &user, "gift");
    let refusal = user.assert_refused(["load", "tool", "team/gift"], 4, "RYE0404");
    assert_eq!(
        (&refusal["verdict"], &refusal["fingerprint"]),
        (&json!("untrusted"), &json!(author.fingerprint()))
    );
    let verified = user.assert_refused(["verify", "tool", "team/gift"], 4, "RYE0404");
    assert_eq!(verified["data"]["untrusted"], 1);
    user.ok(["sign", "tool", "team/gift"]);
    user.ok(["load", "tool", "team/gift"]);
}

#[test]
fn revoked_key_is_refused_everywhere() {
    let (user, author) = (User::initialized(), User::initialized());
    copy_tool(&author, &user, "gift");
    trust_author(&user, &author, &[]);
    user.ok(["load", "tool", "team/gift", "--to", "user"]);
    copy_file(
        &author.project().join(".ai/tools/team/gift.py"),
        &user.home().join(".ai/tools/team/theirs.py"),
    );
    user.ok(["load", "tool", "team/theirs"]);

    let revoked = user.data(["keys", "revoke", &author.fingerprint(), "--reason", "stolen laptop"]);
    assert_eq!(revoked["fingerprint"], author.fingerprint().as_str());
    let refusal = user.assert_refused(["load", "tool", "team/gift"], 4, "RYE0405");
    assert!(text(&refusal["error"]).contains("stolen laptop"), "{refusal}");
    user.assert_refused(["load", "tool", "team/theirs"], 4, "RYE0405");
    user.assert_refused(["load", "tool", "team/theirs", "--to", "project"], 4, "RYE0405");
    let verified = user.assert_refused(["verify", "tool", "team/gift"], 4, "RYE0405");
    assert_eq!(verified["data"]["revoked"], 1);
    let found = user.data(["search", "gift", "--space", "project"]);
    assert_eq!(found["results"][0]["verdict"], "revoked", "{found}");
    assert_eq!(found["results"][0]["signed"], false);
    assert_eq!(user.data(["why", "tool", "team/gift"])["item"]["verdict"], "revoked");
    user.assert_refused(["keys".as_ref(), "trust".as_ref(), author.public_key().as_os_str()], 4, "RYE0405");
    let listed = user.data(["keys", "show", &author.fingerprint()]);
    assert_eq!(listed["trust"], "revoked");
}

#[test]
fn revoking_introducer_untrusts_introduced_keys() {
    let (user, author) = (User::initialized(), User::initialized());
    copy_tool(&author, &user, "gift");
    trust_author(&user, &author, &[]);
    user.ok(["load", "tool", "team/gift"]);
    user.ok(["keys", "revoke", &user.fingerprint()]);
    user.assert_refused(["load", "tool", "examples/hello"], 4, "RYE0405");
    user.assert_refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let run = user.run(["doctor", "--json"]);
    let answer = run.error(1, "RYE0701");
    let findings = answer["data"]["findings"].as_array().expect("findings");
    assert!(
        findings.iter().any(|finding| finding["check"] == "project" && finding["level"] != "ok"),
        "the approval was signed by the revoked key: {run}"
    );
}

#[test]
fn revoked_own_key_cannot_sign() {
    let user = User::initialized();
    user.write("tools/team/late.py", rye_test::tool("team", "Late"));
    user.ok(["keys", "revoke", &user.fingerprint()]);
    user.assert_refused(["sign", "tool", "team/late"], 4, "RYE0405");
    user.assert_refused(["sign", "tool", "team/*"], 4, "RYE0405");
    user.assert_refused(["sign", ".ai/tools/team/late.py"], 4, "RYE0405");
    user.assert_refused(["load", "knowledge", "rye/core/items", "--to", "project"], 4, "RYE0405");
    // Taking trust away needs none.
    user.ok(["keys", "revoke", "0123456789abcdef"]);
}

#[test]
fn user_can_rotate_a_revoked_key() {
    let user = User::initialized();
    user.ok(["keys", "revoke", &user.fingerprint()]);
    let keys = user.home().join(".ai/config/keys");
    fs::rename(keys.join("signing"), keys.join("old")).expect("moved");
    // What the old key approved counts no more; init begins a new record.
    user.ok(["init"]);
    user.assert_refused(["load", "tool", "examples/hello"], 4, "RYE0405");
    user.ok(["sign", "tool", "examples/hello"]);
    user.ok(["load", "tool", "examples/hello"]);
}

#[test]
fn damaged_revocation_is_enforced() {
    let (user, author) = (User::initialized(), User::initialized());
    copy_tool(&author, &user, "gift");
    trust_author(&user, &author, &[]);
    user.ok(["keys", "revoke", &author.fingerprint()]);
    let record = user.home().join(format!(".ai/config/keys/revoked/{}.toml", author.fingerprint()));
    fs::write(record, "\0garbage").expect("written");
    user.assert_refused(["load", "tool", "team/gift"], 4, "RYE0405");
}

#[test]
fn introductions_are_not_transitive() {
    let (user, lead, member, other_user) =
        (User::initialized(), User::initialized(), User::initialized(), User::initialized());
    copy_tool(&member, &user, "member");
    copy_tool(&other_user, &user, "stranger");
    // The lead signs the member's document, the member signs the stranger's.
    trust_author(&lead, &member, &[]);
    trust_author(&member, &other_user, &[]);
    for (signer, subject) in [(&lead, &member), (&member, &other_user)] {
        let name = format!(".ai/config/keys/trusted/{}.toml", subject.fingerprint());
        copy_file(&signer.home().join(&name), &user.project().join(&name));
    }
    trust_author(&user, &lead, &[]);
    user.assert_refused(["load", "tool", "team/member"], 4, "RYE0404");

    trust_author(&user, &lead, &["--may-introduce"]);
    let loaded = user.data(["load", "tool", "team/member"]);
    assert_eq!(loaded["signer"]["trusted_by"], "introduced");
    user.assert_refused(["load", "tool", "team/stranger"], 4, "RYE0404");

    // An introduced key counts in the project that holds its document, not in user space.
    copy_file(
        &user.project().join(".ai/tools/team/member.py"),
        &user.home().join(".ai/tools/team/elsewhere.py"),
    );
    user.assert_refused(["load", "tool", "team/elsewhere"], 4, "RYE0404");

    user.ok(["keys", "revoke", &lead.fingerprint()]);
    user.assert_refused(["load", "tool", "team/member"], 4, "RYE0404");
}

#[test]
fn key_cannot_make_itself_an_introducer() {
    let (user, lead, member) = (User::initialized(), User::initialized(), User::initialized());
    copy_tool(&member, &user, "member");
    trust_author(&lead, &member, &[]);
    let name = format!(".ai/config/keys/trusted/{}.toml", member.fingerprint());
    copy_file(&lead.home().join(&name), &user.project().join(&name));
    // The lead's own document says `may_introduce`, signed by the lead; the user trusts it without saying so.
    let document = lead.identity_document();
    let claimed = fs::read_to_string(&document)
        .expect("document")
        .replace("attestation = \"\"\n", "attestation = \"\"\nmay_introduce = true\n");
    let (_, text) = claimed.split_once('\n').expect("a signature line");
    let key = fs::read_to_string(lead.home().join(".ai/config/keys/signing/private_key.pem")).expect("key");
    let line = rye_test::signature(&key, text.as_bytes());
    fs::write(&document, format!("# {line}\n{text}")).expect("written");
    user.ok(["keys".as_ref(), "trust".as_ref(), document.as_os_str()]);
    assert_eq!(user.data(["keys", "show", &lead.fingerprint_in(&document)])["may_introduce"], false);
    user.assert_refused(["load", "tool", "team/member"], 4, "RYE0404");
}

#[test]
fn project_key_is_trusted_only_there() {
    let (user, author) = (User::initialized(), User::initialized());
    copy_tool(&author, &user, "gift");
    let other = user.context.path().join("other");
    copy_tree(&user.project(), &other);
    let key = author.public_key();
    let trusted = user.data([
        "keys".as_ref(),
        "trust".as_ref(),
        key.as_os_str(),
        "--space".as_ref(),
        "project".as_ref(),
    ]);
    assert_eq!(trusted["projects"], json!([user.project().to_str()]));
    let loaded = user.data(["load", "tool", "team/gift"]);
    assert_eq!(loaded["signer"]["trusted_by"], "project");
    assert_load_refused_in(&user, &other, "team/gift", "RYE0404");

    // A second project is added; the first stays.
    let run = run(user.command().current_dir(&other).args([
        "keys".as_ref(),
        "trust".as_ref(),
        key.as_os_str(),
        "--space".as_ref(),
        "project".as_ref(),
    ]));
    assert_eq!(run.exit, 0, "{run}");
    user.ok(["load", "tool", "team/gift"]);
    let run = crate::support::run(user.command().current_dir(&other).args(["load", "tool", "team/gift"]));
    assert_eq!(run.exit, 0, "{run}");
}

#[test]
fn project_key_file_defaults_to_project_trust() {
    let (user, author) = (User::initialized(), User::initialized());
    copy_tool(&author, &user, "gift");
    let document = user.project().join(format!(".ai/config/keys/trusted/{}.toml", author.fingerprint()));
    copy_file(&author.identity_document(), &document);
    user.assert_refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let trusted = user.data(["keys".as_ref(), "trust".as_ref(), document.as_os_str()]);
    assert_eq!(trusted["projects"], json!([user.project().to_str()]));
    user.ok(["load", "tool", "team/gift"]);
}

#[test]
fn edited_identity_document_is_untrusted() {
    let (user, author) = (User::initialized(), User::initialized());
    copy_tool(&author, &user, "gift");
    trust_author(&user, &author, &["--owner", "Bob", "--space", "project"]);
    let document = user.home().join(format!(".ai/config/keys/trusted/{}.toml", author.fingerprint()));
    let signed = fs::read_to_string(&document).expect("document");
    // Wider than the user said.
    let scope = format!("\n[scope]\nprojects = [\"{}\"]\n", user.project().display());
    assert!(signed.contains(&scope), "{signed}");
    fs::write(&document, signed.replace(&scope, "")).expect("written");
    user.assert_refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let output = user.data(["keys", "show", &author.fingerprint()]);
    assert_eq!(output["trust"], "none");
    assert!(text(&output["reason"]).contains("changed"), "{output}");
    fs::write(&document, signed).expect("written");
    user.ok(["load", "tool", "team/gift"]);
}

#[test]
fn invalid_identity_document_is_ignored() {
    let (user, author) = (User::initialized(), User::initialized());
    copy_tool(&author, &user, "gift");
    let folder = user.home().join(".ai/config/keys/trusted");
    let document = fs::read_to_string(author.identity_document()).expect("document");
    let unsigned = document.split_once('\n').expect("a signature line").1.to_owned();
    let path = folder.join(format!("{}.toml", author.fingerprint()));
    fs::write(&path, unsigned).expect("written");
    user.assert_refused(["load", "tool", "team/gift"], 4, "RYE0404");
    fs::remove_file(&path).expect("removed");
    fs::write(folder.join("0123456789abcdef.toml"), &document).expect("written");
    user.assert_refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let listed = user.data(["keys", "list"]);
    assert!(text(&listed["broken"][0]).contains("0123456789abcdef"), "{listed}");
}

#[test]
fn project_approval_can_be_revoked() {
    let user = User::initialized();
    let revoked = user.data(["trust", "--revoke"]);
    assert_eq!(
        (&revoked["approved"], &revoked["changed"], &revoked["project"]),
        (&json!(false), &json!(true), &json!(user.project().to_str()))
    );
    assert_eq!(user.data(["trust", "--revoke"])["changed"], false);
    // No one can be asked here: the folder is named, or `--yes` is said.
    user.assert_refused(["trust"], 2, "RYE0105");
    let run = user.ok(["trust", "--yes"]);
    assert!(run.stdout.contains("approved"), "{run}");
    user.ok(["trust", "--revoke"]);
    let run = user.ok(["trust", "."]);
    assert!(run.stdout.contains("approved"), "{run}");
    let record = fs::read_to_string(user.home().join(".ai/config/trust/projects.yaml")).expect("record");
    assert!(record.starts_with("# rye:signed:"), "{record}");
    assert_eq!(user.data(["trust", "."])["changed"], false);
    user.assert_refused(["trust", "no/such/folder"], 3, "RYE0202");
    user.assert_refused(["trust".as_ref(), user.home().as_os_str()], 2, "RYE0104");
}

#[test]
fn tampered_approval_is_ignored_and_reported() {
    let user = User::initialized();
    user.write("config/config.yaml", "version: \"1.0.0\"\ncategory: \"\"\nitems:\n  max_bytes: 16777216\n");
    user.ok(["sign", "config", "config"]);
    let limit = |user: &User| {
        user.data(["config", "show", "config"])["config"]["config"]["items"]["max_bytes"].clone()
    };
    assert_eq!(limit(&user), 16_777_216);

    let record = user.home().join(".ai/config/trust/projects.yaml");
    let signed = fs::read_to_string(&record).expect("record");
    fs::write(&record, format!("{signed}  - path: \"/\"\n")).expect("written");
    assert_eq!(limit(&user), 8_388_608);
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert!(run.stderr.contains("projects.yaml"), "{run}");
    user.assert_refused(["trust", "."], 4, "RYE0419");
    user.assert_refused(["trust", "--revoke"], 4, "RYE0419");

    // The same record, signed by a user the user does not trust.
    let other_user = User::initialized();
    let forged = signed.split_once('\n').expect("a signature line").1;
    fs::write(&record, forged).expect("written");
    copy_file(&record, &other_user.home().join(".ai/config/trust/projects.yaml"));
    other_user.ok(["sign", "config", "trust/projects", "--space", "user"]);
    copy_file(&other_user.home().join(".ai/config/trust/projects.yaml"), &record);
    assert_eq!(limit(&user), 8_388_608);
}
