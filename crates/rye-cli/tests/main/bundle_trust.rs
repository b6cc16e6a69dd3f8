//! Bundles installed into project or user space: an approved signer counts for exactly what lockfile and signed manifest
//! both name, as the manifest says it is, and for nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::install;
use crate::support::{User, copy_file, copy_tree, text};

/// A maker and the bundle they made: a tool `team/x`, a tool without a signature `team/plain`, a config.
struct BundleAuthor {
    user: User,
    folder: PathBuf,
}

impl BundleAuthor {
    fn new() -> Self {
        let user = User::initialized();
        user.write("tools/team/x.py", rye_test::tool("team", "Bundled x"));
        user.write(
            "tools/team/plain.json",
            r#"{"version": "1.0.0", "tool_type": "runtime", "executor_id": null, "category": "team", "description": "Plain"}"#,
        );
        user.write("config/team/extra.yaml", "version: \"1.0.0\"\ncategory: team\nname: extra\n");
        user.ok(["sign", "tool", "team/x"]);
        user.ok(["sign", "config", "team/extra"]);
        Self::create_bundle(user, "1.0.0")
    }

    fn create_bundle(user: User, version: &str) -> Self {
        user.ok(["bundle", "create", "gifts", "--version", version, "--category", "team"]);
        let folder = user.project().join(format!("gifts-{version}"));
        Self { user, folder }
    }

    /// Puts the bundle where an installation would put it.
    fn install(&self, root: &Path) {
        for part in ["tools", "config/team"] {
            copy_tree(&self.folder.join(".ai").join(part), &root.join(".ai").join(part));
        }
        let manifest = root.join(".ai/bundles/gifts/manifest.yaml");
        copy_file(&self.folder.join(".ai/bundles/gifts/manifest.yaml"), &manifest);
        copy_file(
            &self.folder.join(format!(".ai/config/keys/trusted/{}.toml", self.user.fingerprint())),
            &root.join(".ai/bundles/gifts/signer.toml"),
        );
        write_lock(
            root,
            "gifts",
            &[".ai/tools/team/x.py", ".ai/tools/team/plain.json", ".ai/config/team/extra.yaml"],
        );
    }
}

fn write_lock(root: &Path, id: &str, files: &[&str]) {
    let folder = root.join(".ai/bundles").join(id);
    let hash = lillux::Digest::of(&fs::read(folder.join("manifest.yaml")).expect("a manifest"));
    let lock = json!({
        "bundle_id": id, "version": "1.0.0", "manifest_hash": hash,
        "installed_at": "2026-01-02T03:04:05Z", "files": files, "something": "else",
    });
    fs::write(folder.join(".bundle-lock.json"), lock.to_string()).expect("written");
}

fn bundle_row(user: &User) -> Value {
    let data = user.data(["bundle", "list"]);
    let rows = data["bundles"].as_array().expect("bundles");
    rows.iter().find(|row| row["bundle_id"] == "gifts").unwrap_or_else(|| panic!("none: {data}")).clone()
}

#[test]
fn approved_signer_covers_its_installed_items() {
    let maker = BundleAuthor::new();
    for is_project in [true, false] {
        let user = User::initialized();
        let root = if is_project { user.project() } else { user.home() };
        maker.install(&root);
        // Being there is not enough, however well it is signed.
        let error = user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
        assert!(error["hints"].to_string().contains("rye bundle trust gifts"), "{error}");
        user.assert_refused(["load", "tool", "team/plain"], 4, "RYE0401");
        assert_eq!(bundle_row(&user)["standing"], "not approved");
        let report = user.data(["bundle", "verify", "gifts"]);
        assert_eq!((&report["status"], &report["approved"]), (&json!("verified"), &json!(false)), "{report}");

        let approved = user.data(["bundle", "trust", "gifts"]);
        assert_eq!(approved["fingerprint"], json!(maker.user.fingerprint()));
        let loaded = user.data(["load", "tool", "team/x"]);
        let space = if is_project { "project" } else { "user" };
        assert_eq!((&loaded["space"], &loaded["signer"]["trusted_by"]), (&json!(space), &json!("bundle")));
        user.ok(["execute", "tool", "team/x"]);
        // A file that cannot carry a signature is covered by the manifest.
        user.ok(["load", "tool", "team/plain"]);
        assert_eq!(
            (&bundle_row(&user)["standing"], &bundle_row(&user)["space"]),
            (&json!("installed"), &json!(space))
        );
        let report = user.data(["bundle", "verify", "gifts"]);
        assert_eq!((&report["status"], &report["approved"]), (&json!("verified"), &json!(true)), "{report}");
        user.ok(["bundle", "inspect", "gifts"]);
    }
}

#[test]
fn approval_records_version_and_manifest() {
    let maker = BundleAuthor::new();
    let user = User::initialized();
    maker.install(&user.project());
    user.ok(["bundle", "trust", "gifts"]);
    let record = user.context.text("home/.ai/config/trust/bundles.yaml");
    let manifest = fs::read(user.project().join(".ai/bundles/gifts/manifest.yaml")).expect("a manifest");
    let hash = lillux::Digest::of(&manifest).to_hex();
    assert!(record.contains("version: \"1.0.0\"") && record.contains(&hash), "{record}");
}

/// A user who has the bundle installed in their project and approved its signer.
fn approved_user(maker: &BundleAuthor) -> User {
    let user = User::initialized();
    maker.install(&user.project());
    user.ok(["bundle", "trust", "gifts"]);
    user.ok(["load", "tool", "team/x"]);
    user
}

#[test]
fn bundle_key_covers_no_other_items() {
    let maker = BundleAuthor::new();
    let other = maker.user.signed_tool("other", "Another of the same maker");
    let user = approved_user(&maker);
    copy_file(&other, &user.project().join(".ai/tools/team/other.py"));
    user.assert_refused(["load", "tool", "team/other"], 4, "RYE0404");
    // Neither the lockfile alone nor the manifest alone is enough.
    write_lock(&user.project(), "gifts", &[".ai/tools/team/x.py", ".ai/tools/team/other.py"]);
    user.assert_refused(["load", "tool", "team/other"], 4, "RYE0404");
    user.assert_refused(["load", "tool", "team/plain"], 4, "RYE0401");
    user.ok(["load", "tool", "team/x"]);
    write_lock(&user.project(), "gifts", &[]);
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
}

#[test]
fn bundle_key_is_untrusted_in_other_spaces() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    copy_file(&user.project().join(".ai/tools/team/x.py"), &user.home().join(".ai/tools/team/x.py"));
    fs::remove_file(user.project().join(".ai/tools/team/x.py")).expect("removed");
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
}

#[test]
fn replaced_content_by_same_key_is_refused() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    // The maker's own later, properly signed tool at the same place.
    let later = maker.user.signed_tool("x", "Bundled x, later");
    copy_file(&later, &user.project().join(".ai/tools/team/x.py"));
    let error = user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    assert!(text(&error["error"]).contains("lists other content"), "{error}");
    // A changed file that cannot carry a signature.
    fs::write(user.project().join(".ai/tools/team/plain.json"), "{}").expect("changed");
    user.assert_refused(["load", "tool", "team/plain"], 4, "RYE0401");
    // The same id with another extension, which would be looked at first.
    copy_file(
        &user.project().join(".ai/tools/team/plain.json"),
        &user.project().join(".ai/tools/team/plain.yaml"),
    );
    user.assert_refused(["load", "tool", "team/plain"], 4, "RYE0401");
}

#[test]
fn manifest_by_another_key_is_ignored() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    let other_user = BundleAuthor::new();
    other_user.install(&user.project());
    let run = user.run(["load", "tool", "team/x", "--json"]);
    run.error(4, "RYE0404");
    assert!(run.stderr.contains("the bundle `gifts` in project space is ignored"), "{run}");
    let row = bundle_row(&user);
    assert_eq!(row["standing"], "not approved");
    assert!(text(&row["note"]).contains("not signed by the key you approved"), "{row}");
    // The report is on the manifest, and it is not valid.
    let error = user.assert_refused(["bundle", "verify", "gifts"], 4, "RYE0603");
    assert_eq!(error["data"]["manifest_valid"], false);
}

#[test]
fn changed_manifest_is_ignored() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    let path = user.project().join(".ai/bundles/gifts/manifest.yaml");
    let original = fs::read_to_string(&path).expect("a manifest");
    for changed in [
        original.replace("1.0.0", "1.0.1"),
        original.split_once('\n').expect("a line").1.to_owned(),
        String::new(),
        "\u{0}".to_owned(),
    ] {
        fs::write(&path, changed).expect("changed");
        write_lock(&user.project(), "gifts", &[".ai/tools/team/x.py"]);
        user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    }
    fs::write(&path, &original).expect("put back");
    // A lockfile that was written for another manifest.
    let lock = user.project().join(".ai/bundles/gifts/.bundle-lock.json");
    let text = fs::read_to_string(&lock).expect("a lockfile");
    for broken in [text.clone(), text.replace("gifts", "other"), "{}".to_owned(), "[".to_owned()] {
        fs::write(&lock, broken).expect("changed");
        user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    }
    fs::remove_file(&lock).expect("removed");
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    write_lock(&user.project(), "gifts", &[".ai/tools/team/x.py"]);
    user.ok(["load", "tool", "team/x"]);
}

#[test]
fn symlinked_manifest_or_lockfile_is_ignored() {
    let maker = BundleAuthor::new();
    for file in ["manifest.yaml", ".bundle-lock.json"] {
        let user = approved_user(&maker);
        let path = user.project().join(".ai/bundles/gifts").join(file);
        let elsewhere = user.project().join(".ai/elsewhere");
        fs::rename(&path, &elsewhere).expect("moved");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("linked");
        user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    }
}

#[test]
fn an_approval_is_for_one_bundle_id() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    // The same maker's bundle of another name, which the user did not approve.
    fs::rename(user.project().join(".ai/bundles/gifts"), user.project().join(".ai/bundles/other"))
        .expect("renamed");
    write_lock(&user.project(), "other", &[".ai/tools/team/x.py"]);
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
}

#[test]
fn bundle_config_is_limited_to_its_categories() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    user.ok(["verify", "config", "team/extra"]);
    // The same file elsewhere belongs to another user.
    let project = user.project();
    copy_file(&project.join(".ai/config/team/extra.yaml"), &project.join(".ai/config/other/extra.yaml"));
    let report = user.assert_refused(["verify", "config", "other/extra"], 4, "RYE0404");
    assert_eq!(report["data"]["untrusted"], 1, "{report}");
}

#[test]
fn revoking_signer_disables_installed_items() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    user.ok(["keys", "revoke", &maker.user.fingerprint()]);
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0405");
    user.assert_refused(["load", "tool", "team/plain"], 4, "RYE0401");
    user.assert_refused(["bundle", "verify", "gifts"], 4, "RYE0603");
}

#[test]
fn forged_signer_document_is_refused() {
    let maker = BundleAuthor::new();
    let user = User::initialized();
    maker.install(&user.project());
    let other_user = User::initialized();
    copy_file(&other_user.identity_document(), &user.project().join(".ai/bundles/gifts/signer.toml"));
    user.assert_refused(["bundle", "trust", "gifts"], 4, "RYE0602");
    fs::remove_file(user.project().join(".ai/bundles/gifts/signer.toml")).expect("removed");
    user.assert_refused(["bundle", "trust", "gifts"], 4, "RYE0602");
    assert!(!user.home().join(".ai/config/trust/bundles.yaml").exists());
}

#[test]
fn bundle_items_are_not_repackaged() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    let error = user.assert_refused(
        ["bundle", "create", "mine", "--version", "1.0.0", "--category", "team"],
        4,
        "RYE0605",
    );
    assert!(error["unfit"].to_string().contains("another bundle"), "{error}");
}

#[test]
fn dev_mode_does_not_cover_bundle_items() {
    let maker = BundleAuthor::new();
    let user = approved_user(&maker);
    let config = format!(
        "version: \"1.0.0\"\ncategory: \"\"\ndev_mode:\n  projects: [\"{}\"]\n",
        user.project().display()
    );
    user.write_user("config/config.yaml", config);
    user.ok(["sign", "config", "config", "--space", "user"]);
    let tool = user.project().join(".ai/tools/team/x.py");
    let edited = [fs::read(&tool).expect("a tool"), b"# more\n".to_vec()].concat();
    fs::write(&tool, edited).expect("edited");
    let mut command = user.command();
    command.env("RYE_DEV_MODE", "1").args(["execute", "tool", "team/x", "--dry-run", "--json"]);
    crate::support::run(&mut command).error(4, "RYE0402");
}

#[test]
fn manifest_covers_unsigned_system_files() {
    let maker = BundleAuthor::new();
    let user = User::initialized();
    let folder = user.context.path().join("gifts");
    copy_tree(&maker.folder, &folder);
    let with_path = |words: &[&str]| {
        crate::support::run(user.command().env("RYE_BUNDLE_PATH", &folder).args(words).arg("--json"))
    };
    with_path(&["load", "tool", "team/plain"]).error(4, "RYE0401");
    assert_eq!(with_path(&["bundle", "trust", "gifts"]).exit, 0);
    let loaded = with_path(&["load", "tool", "team/plain"]);
    assert_eq!((loaded.exit, &loaded.json()["data"]["space"]), (0, &json!("system:gifts")), "{loaded}");
    fs::write(folder.join(".ai/tools/team/plain.json"), "{\"version\": \"1.0.0\"}").expect("changed");
    with_path(&["load", "tool", "team/plain"]).error(4, "RYE0401");
}

#[test]
fn verify_says_for_what_a_signer_is_trusted() {
    let maker = install::BundleAuthor::new();
    let source = maker.create("1.0.0");
    let verify = |user: &User| user.ok(["bundle", "verify", source.to_str().expect("text")]).stdout;
    let user = User::initialized();
    assert!(verify(&user).contains("not trusted by you"));
    install::install(&user, &source, &maker, &[]);
    assert!(verify(&user).contains("approved by you for this bundle only"));
    assert_eq!(user.data(["bundle", "verify", "gifts"])["trust"], "bundle_only");
    user.ok(["keys", "trust", maker.user.identity_document().to_str().expect("text"), "--space", "user"]);
    assert!(verify(&user).contains("trusted by you for everything it signs"));
    assert!(user.ok(["bundle", "verify", "ryeos-core"]).stdout.contains("part of rye"));
}

#[test]
fn uninstall_names_the_approval_that_stays() {
    let maker = install::BundleAuthor::new();
    let source = maker.create("1.0.0");
    let user = User::initialized();
    install::install(&user, &source, &maker, &[]);
    let gone = user.ok(["uninstall", "gifts"]);
    let line = format!("{} is still approved for the bundle gifts", maker.fingerprint());
    assert!(gone.stderr.contains(&line), "{gone}");
    assert!(gone.stderr.contains("withdraw that: rye bundle trust gifts --revoke\n"), "{gone}");
    // The command works, and afterwards nothing is said.
    user.ok(["bundle", "trust", "gifts", "--revoke"]);
    let refused = user.assert_refused(["install", source.to_str().expect("text"), "--yes"], 4, "RYE0615");
    assert!(text(&refused["error"]).contains("do not trust"), "{refused}");
    install::install(&user, &source, &maker, &[]);
    let signers = user.data(["uninstall", "gifts"])["approved_signers"].clone();
    assert_eq!(signers[0]["fingerprint"], maker.fingerprint());
    assert_eq!(signers[0]["revoke"], "rye bundle trust gifts --revoke");
}
