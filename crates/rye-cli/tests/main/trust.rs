//! Whose signature counts: revocation, introduction, keys of one project, approvals.

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::{User, copy_file, copy_tree, run, text};

/// Puts a tool that `author` signed into the project of `user`, as `team/<name>`.
fn gift(author: &User, user: &User, name: &str) {
    let path = author.signed_tool(name, "A gift");
    copy_file(&path, &user.project().join(format!(".ai/tools/team/{name}.py")));
}

/// `user` trusts the key of `author`, with further options.
fn trust(user: &User, author: &User, options: &[&str]) {
    let key = author.public_key();
    let mut words = vec!["keys".as_ref(), "trust".as_ref(), key.as_os_str()];
    words.extend(options.iter().map(std::ffi::OsStr::new));
    user.ok(words);
}

fn load_is_refused_in(user: &User, project: &Path, id: &str, code: &str) {
    user.refused_by(user.command().current_dir(project).args(["load", "tool", id, "--json"]), 4, code);
}

#[test]
fn a_foreign_key_does_not_count() {
    let (user, author) = (User::ready(), User::ready());
    gift(&author, &user, "gift");
    let refusal = user.refused(["load", "tool", "team/gift"], 4, "RYE0404");
    assert_eq!(
        (&refusal["verdict"], &refusal["fingerprint"]),
        (&json!("untrusted"), &json!(author.fingerprint()))
    );
    let verified = user.refused(["verify", "tool", "team/gift"], 4, "RYE0404");
    assert_eq!(verified["data"]["untrusted"], 1);
    user.ok(["sign", "tool", "team/gift"]);
    user.ok(["load", "tool", "team/gift"]);
}

#[test]
fn a_revoked_key_fails_everywhere() {
    let (user, author) = (User::ready(), User::ready());
    gift(&author, &user, "gift");
    trust(&user, &author, &[]);
    user.ok(["load", "tool", "team/gift", "--to", "user"]);
    copy_file(
        &author.project().join(".ai/tools/team/gift.py"),
        &user.home().join(".ai/tools/team/theirs.py"),
    );
    user.ok(["load", "tool", "team/theirs"]);

    let revoked = user.data(["keys", "revoke", &author.fingerprint(), "--reason", "stolen laptop"]);
    assert_eq!(revoked["fingerprint"], author.fingerprint().as_str());
    let refusal = user.refused(["load", "tool", "team/gift"], 4, "RYE0405");
    assert!(text(&refusal["error"]).contains("stolen laptop"), "{refusal}");
    user.refused(["load", "tool", "team/theirs"], 4, "RYE0405");
    user.refused(["load", "tool", "team/theirs", "--to", "project"], 4, "RYE0405");
    let verified = user.refused(["verify", "tool", "team/gift"], 4, "RYE0405");
    assert_eq!(verified["data"]["revoked"], 1);
    let found = user.data(["search", "gift", "--space", "project"]);
    assert_eq!(found["results"][0]["verdict"], "revoked", "{found}");
    assert_eq!(found["results"][0]["signed"], false);
    assert_eq!(user.data(["why", "tool", "team/gift"])["item"]["verdict"], "revoked");
    user.refused(["keys".as_ref(), "trust".as_ref(), author.public_key().as_os_str()], 4, "RYE0405");
    let listed = user.data(["keys", "show", &author.fingerprint()]);
    assert_eq!(listed["trust"], "revoked");
}

#[test]
fn what_a_revoked_key_vouched_for_falls_with_it() {
    let (user, author) = (User::ready(), User::ready());
    gift(&author, &user, "gift");
    trust(&user, &author, &[]);
    user.ok(["load", "tool", "team/gift"]);
    user.ok(["keys", "revoke", &user.fingerprint()]);
    user.refused(["load", "tool", "examples/hello"], 4, "RYE0405");
    user.refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let run = user.run(["doctor", "--json"]);
    let answer = run.error(1, "RYE0701");
    let findings = answer["data"]["findings"].as_array().expect("findings");
    assert!(
        findings.iter().any(|finding| finding["check"] == "project" && finding["level"] != "ok"),
        "the approval was signed by the revoked key: {run}"
    );
}

#[test]
fn a_revoked_own_key_signs_nothing_more() {
    let user = User::ready();
    user.write("tools/team/late.py", rye_test::tool("team", "Late"));
    user.ok(["keys", "revoke", &user.fingerprint()]);
    user.refused(["sign", "tool", "team/late"], 4, "RYE0405");
    user.refused(["sign", "tool", "team/*"], 4, "RYE0405");
    user.refused(["sign", ".ai/tools/team/late.py"], 4, "RYE0405");
    user.refused(["load", "knowledge", "rye/core/items", "--to", "project"], 4, "RYE0405");
    // Taking trust away needs none.
    user.ok(["keys", "revoke", "0123456789abcdef"]);
}

#[test]
fn after_a_revocation_a_user_starts_anew_with_another_key() {
    let user = User::ready();
    user.ok(["keys", "revoke", &user.fingerprint()]);
    let keys = user.home().join(".ai/config/keys");
    fs::rename(keys.join("signing"), keys.join("old")).expect("moved");
    // What the old key approved counts no more; init begins a new record.
    user.ok(["init"]);
    user.refused(["load", "tool", "examples/hello"], 4, "RYE0405");
    user.ok(["sign", "tool", "examples/hello"]);
    user.ok(["load", "tool", "examples/hello"]);
}

#[test]
fn a_damaged_revocation_still_revokes() {
    let (user, author) = (User::ready(), User::ready());
    gift(&author, &user, "gift");
    trust(&user, &author, &[]);
    user.ok(["keys", "revoke", &author.fingerprint()]);
    let record = user.home().join(format!(".ai/config/keys/revoked/{}.toml", author.fingerprint()));
    fs::write(record, "\0garbage").expect("written");
    user.refused(["load", "tool", "team/gift"], 4, "RYE0405");
}

#[test]
fn an_introducer_introduces_one_step_and_no_further() {
    let (user, lead, member, stranger) = (User::ready(), User::ready(), User::ready(), User::ready());
    gift(&member, &user, "member");
    gift(&stranger, &user, "stranger");
    // The lead signs the member's document, the member signs the stranger's.
    trust(&lead, &member, &[]);
    trust(&member, &stranger, &[]);
    for (signer, subject) in [(&lead, &member), (&member, &stranger)] {
        let name = format!(".ai/config/keys/trusted/{}.toml", subject.fingerprint());
        copy_file(&signer.home().join(&name), &user.project().join(&name));
    }
    trust(&user, &lead, &[]);
    user.refused(["load", "tool", "team/member"], 4, "RYE0404");

    trust(&user, &lead, &["--may-introduce"]);
    let loaded = user.data(["load", "tool", "team/member"]);
    assert_eq!(loaded["signer"]["trusted_by"], "introduced");
    user.refused(["load", "tool", "team/stranger"], 4, "RYE0404");

    // An introduced key counts in the project that holds its document, not in user space.
    copy_file(
        &user.project().join(".ai/tools/team/member.py"),
        &user.home().join(".ai/tools/team/elsewhere.py"),
    );
    user.refused(["load", "tool", "team/elsewhere"], 4, "RYE0404");

    user.ok(["keys", "revoke", &lead.fingerprint()]);
    user.refused(["load", "tool", "team/member"], 4, "RYE0404");
}

#[test]
fn a_document_cannot_make_its_own_key_an_introducer() {
    let (user, lead, member) = (User::ready(), User::ready(), User::ready());
    gift(&member, &user, "member");
    trust(&lead, &member, &[]);
    let name = format!(".ai/config/keys/trusted/{}.toml", member.fingerprint());
    copy_file(&lead.home().join(&name), &user.project().join(&name));
    // The lead's own document says `may_introduce`, signed by the lead; the user trusts it without saying so.
    let document = lead.identity();
    let claimed = fs::read_to_string(&document)
        .expect("document")
        .replace("attestation = \"\"\n", "attestation = \"\"\nmay_introduce = true\n");
    let (_, text) = claimed.split_once('\n').expect("a signature line");
    let key = fs::read_to_string(lead.home().join(".ai/config/keys/signing/private_key.pem")).expect("key");
    let line = rye_test::signature(&key, text.as_bytes());
    fs::write(&document, format!("# {line}\n{text}")).expect("written");
    user.ok(["keys".as_ref(), "trust".as_ref(), document.as_os_str()]);
    assert_eq!(user.data(["keys", "show", &lead.fingerprint_in(&document)])["may_introduce"], false);
    user.refused(["load", "tool", "team/member"], 4, "RYE0404");
}

#[test]
fn a_key_trusted_for_a_project_counts_only_there() {
    let (user, author) = (User::ready(), User::ready());
    gift(&author, &user, "gift");
    let other = user.world.path().join("other");
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
    load_is_refused_in(&user, &other, "team/gift", "RYE0404");

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
fn a_key_file_inside_the_project_is_trusted_for_that_project_by_default() {
    let (user, author) = (User::ready(), User::ready());
    gift(&author, &user, "gift");
    let document = user.project().join(format!(".ai/config/keys/trusted/{}.toml", author.fingerprint()));
    copy_file(&author.identity(), &document);
    user.refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let trusted = user.data(["keys".as_ref(), "trust".as_ref(), document.as_os_str()]);
    assert_eq!(trusted["projects"], json!([user.project().to_str()]));
    user.ok(["load", "tool", "team/gift"]);
}

#[test]
fn an_edited_identity_document_no_longer_counts() {
    let (user, author) = (User::ready(), User::ready());
    gift(&author, &user, "gift");
    trust(&user, &author, &["--owner", "Bob", "--space", "project"]);
    let document = user.home().join(format!(".ai/config/keys/trusted/{}.toml", author.fingerprint()));
    let signed = fs::read_to_string(&document).expect("document");
    // Wider than the user said.
    let scope = format!("\n[scope]\nprojects = [\"{}\"]\n", user.project().display());
    assert!(signed.contains(&scope), "{signed}");
    fs::write(&document, signed.replace(&scope, "")).expect("written");
    user.refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let shown = user.data(["keys", "show", &author.fingerprint()]);
    assert_eq!(shown["trust"], "none");
    assert!(text(&shown["reason"]).contains("changed"), "{shown}");
    fs::write(&document, signed).expect("written");
    user.ok(["load", "tool", "team/gift"]);
}

#[test]
fn an_unsigned_or_misnamed_identity_document_does_not_count() {
    let (user, author) = (User::ready(), User::ready());
    gift(&author, &user, "gift");
    let folder = user.home().join(".ai/config/keys/trusted");
    let document = fs::read_to_string(author.identity()).expect("document");
    let unsigned = document.split_once('\n').expect("a signature line").1.to_owned();
    let place = folder.join(format!("{}.toml", author.fingerprint()));
    fs::write(&place, unsigned).expect("written");
    user.refused(["load", "tool", "team/gift"], 4, "RYE0404");
    fs::remove_file(&place).expect("removed");
    fs::write(folder.join("0123456789abcdef.toml"), &document).expect("written");
    user.refused(["load", "tool", "team/gift"], 4, "RYE0404");
    let listed = user.data(["keys", "list"]);
    assert!(text(&listed["broken"][0]).contains("0123456789abcdef"), "{listed}");
}

#[test]
fn a_project_is_approved_and_approval_is_taken_back() {
    let user = User::ready();
    let taken = user.data(["trust", "--revoke"]);
    assert_eq!(
        (&taken["approved"], &taken["changed"], &taken["project"]),
        (&json!(false), &json!(true), &json!(user.project().to_str()))
    );
    assert_eq!(user.data(["trust", "--revoke"])["changed"], false);
    // Nobody can be asked here: the folder is named, or `--yes` is said.
    user.refused(["trust"], 2, "RYE0105");
    let run = user.ok(["trust", "--yes"]);
    assert!(run.stdout.contains("approved"), "{run}");
    user.ok(["trust", "--revoke"]);
    let run = user.ok(["trust", "."]);
    assert!(run.stdout.contains("approved"), "{run}");
    let record = fs::read_to_string(user.home().join(".ai/config/trust/projects.yaml")).expect("record");
    assert!(record.starts_with("# rye:signed:"), "{record}");
    assert_eq!(user.data(["trust", "."])["changed"], false);
    user.refused(["trust", "no/such/folder"], 3, "RYE0202");
    user.refused(["trust".as_ref(), user.home().as_os_str()], 2, "RYE0104");
}

#[test]
fn a_tampered_approval_is_not_honoured_and_that_is_said() {
    let user = User::ready();
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
    user.refused(["trust", "."], 4, "RYE0419");
    user.refused(["trust", "--revoke"], 4, "RYE0419");

    // The same record, signed by somebody the user does not trust.
    let stranger = User::ready();
    let forged = signed.split_once('\n').expect("a signature line").1;
    fs::write(&record, forged).expect("written");
    copy_file(&record, &stranger.home().join(".ai/config/trust/projects.yaml"));
    stranger.ok(["sign", "config", "trust/projects", "--space", "user"]);
    copy_file(&stranger.home().join(".ai/config/trust/projects.yaml"), &record);
    assert_eq!(limit(&user), 8_388_608);
}
