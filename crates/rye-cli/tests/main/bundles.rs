//! Configured bundles: refused until the user approves their signer, for that bundle alone. Opt-in bundles: no part of
//! the workspace until the user enables them.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{User, copy_file, copy_tree, rows, run, text};

/// A user's bundle: a folder with signed items and the identity document of its signer.
struct Bundle {
    author: User,
    folder: PathBuf,
}

impl Bundle {
    fn new() -> Self {
        let author = User::initialized();
        for (file, source) in [
            ("tools/team/x.py", rye_test::tool("team", "Bundled x")),
            ("tools/teamx/y.py", rye_test::tool("teamx", "Bundled y")),
            ("knowledge/team/lore.md", rye_test::knowledge("team", "lore", "Bundled lore", "Lore.")),
        ] {
            author.write(file, source);
        }
        author.ok(["sign", "tool", "team*/*", "--yes"]);
        author.ok(["sign", "knowledge", "team/*"]);
        let folder = author.context.path().join("gifts");
        copy_tree(&author.project(), &folder);
        fs::remove_dir_all(folder.join(".ai/tools/examples")).expect("removed");
        let name = format!(".ai/config/keys/trusted/{}.toml", author.fingerprint());
        copy_file(&author.home().join(&name), &folder.join(&name));
        Self { author, folder }
    }

    /// A user who has configured this bundle with these further settings of the entry.
    fn user(&self, more: &str) -> User {
        let user = User::initialized();
        user.write_user(
            "config/config.yaml",
            format!(
                "version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  paths:\n    - path: \"{}\"\n{more}",
                self.folder.display()
            ),
        );
        user.ok(["sign", "config", "config", "--space", "user"]);
        user
    }
}

fn bundle_row(user: &User) -> Value {
    let data = user.data(["bundle", "list"]);
    let list = data["bundles"].as_array().expect("bundles").clone();
    list.into_iter().find(|row| row["bundle_id"] == "gifts").unwrap_or_else(|| panic!("no bundle: {data}"))
}

#[test]
fn bundle_is_used_once_signer_is_approved() {
    let bundle = Bundle::new();
    let user = bundle.user("");
    assert_eq!(bundle_row(&user)["standing"], "not approved");
    let refusal = user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    assert!(text(&refusal["hints"][0]).contains("rye bundle trust gifts"), "{refusal}");
    user.assert_refused(["load", "tool", "team/x", "--to", "project"], 4, "RYE0404");
    let found: Vec<Value> = rows(&user.data(["search", "Bundled"]))
        .into_iter()
        .filter(|row| row["space"] == "system:gifts")
        .collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found.iter().all(|row| row["verdict"] == "untrusted" && row["signed"] == false));

    let approved = user.data(["bundle", "trust", "gifts"]);
    assert_eq!(
        (&approved["bundle_id"], &approved["fingerprint"]),
        (&json!("gifts"), &json!(bundle.author.fingerprint()))
    );
    let row = bundle_row(&user);
    assert_eq!((&row["standing"], &row["items"]), (&json!("approved"), &json!(5)), "{row}");
    let loaded = user.data(["load", "tool", "team/x"]);
    assert_eq!(
        (&loaded["space"], &loaded["signer"]["trusted_by"]),
        (&json!("system:gifts"), &json!("bundle"))
    );
    user.ok(["load", "tool", "team/x", "--to", "project"]);
    assert_eq!(user.data(["load", "tool", "team/x"])["signer"]["fingerprint"], user.fingerprint().as_str());
    let human = user.ok(["bundle", "list"]);
    assert!(human.stdout.contains("gifts") && human.stdout.contains("ryeos-core"), "{human}");
}

#[test]
fn bundle_key_covers_only_its_bundle() {
    let bundle = Bundle::new();
    let user = bundle.user("");
    user.ok(["bundle", "trust", "gifts"]);
    let source = bundle.folder.join(".ai/tools/team/x.py");
    copy_file(&source, &user.project().join(".ai/tools/team/x.py"));
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    fs::remove_file(user.project().join(".ai/tools/team/x.py")).expect("removed");
    copy_file(&source, &user.home().join(".ai/tools/team/x.py"));
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
}

#[test]
fn categories_match_whole_segments() {
    let bundle = Bundle::new();
    let user = bundle.user("      categories: [team]\n");
    user.ok(["bundle", "trust", "gifts"]);
    user.ok(["load", "tool", "team/x"]);
    user.assert_refused(["load", "tool", "teamx/y"], 3, "RYE0201");
    user.assert_refused(["why", "tool", "teamx/y"], 3, "RYE0201");
    let mut found = user.search_ids("Bundled");
    found.retain(|id| !id.starts_with("rye/"));
    found.sort();
    assert_eq!(found, ["team/lore", "team/x"]);
}

#[test]
fn an_approval_is_pinned_to_one_key() {
    let bundle = Bundle::new();
    let user = bundle.user("");
    user.ok(["bundle", "trust", "gifts"]);
    // The folder is replaced by another user's, under the same name.
    let other = Bundle::new();
    fs::remove_dir_all(&bundle.folder).expect("removed");
    copy_tree(&other.folder, &bundle.folder);
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
}

#[test]
fn revoked_signer_disables_its_bundle() {
    let bundle = Bundle::new();
    let user = bundle.user("");
    user.ok(["bundle", "trust", "gifts"]);
    user.ok(["keys", "revoke", &bundle.author.fingerprint()]);
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0405");
    user.assert_refused(["bundle", "trust", "gifts"], 4, "RYE0405");
}

#[test]
fn trust_error_names_missing_input() {
    let bundle = Bundle::new();
    let user = bundle.user("");
    user.assert_refused(["bundle", "trust", "nowhere"], 3, "RYE0601");
    user.assert_refused(["bundle", "trust", "ryeos-core"], 3, "RYE0601");
    user.assert_refused(["bundle", "trust", "gifts", "--signer", "0123456789abcdef"], 4, "RYE0602");
    fs::remove_dir_all(bundle.folder.join(".ai/config/keys")).expect("removed");
    user.assert_refused(["bundle", "trust", "gifts"], 4, "RYE0602");
}

#[test]
fn several_signers_need_a_choice() {
    let (bundle, other) = (Bundle::new(), User::initialized());
    copy_file(
        &other.identity_document(),
        &bundle.folder.join(format!(".ai/config/keys/trusted/{}.toml", other.fingerprint())),
    );
    let user = bundle.user("");
    user.assert_refused(["bundle", "trust", "gifts"], 4, "RYE0602");
    user.ok(["bundle", "trust", "gifts", "--signer", &other.fingerprint()]);
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    user.ok(["bundle", "trust", "gifts", "--signer", &bundle.author.fingerprint()]);
    user.ok(["load", "tool", "team/x"]);
}

#[test]
fn unapproved_bundle_shadows_no_items() {
    let bundle = Bundle::new();
    copy_file(
        &bundle.folder.join(".ai/knowledge/team/lore.md"),
        &bundle.folder.join(".ai/knowledge/rye/core/items.md"),
    );
    let user = bundle.user("");
    let loaded = user.data(["load", "knowledge", "rye/core/items"]);
    assert_eq!(loaded["space"], "system:ryeos-core");
    let config = "version: \"1.0.0\"\ncategory: \"\"\nsearch:\n  limit: 1\n";
    fs::write(bundle.folder.join(".ai/config/config.yaml"), config).expect("written");
    let output = user.data(["config", "show", "config"]);
    assert_eq!(output["config"]["config"]["search"]["limit"], 10);
}

#[test]
fn bundle_path_variable_needs_approval() {
    let bundle = Bundle::new();
    let user = User::initialized();
    let with_path =
        |words: &[&str]| run(user.command().env("RYE_BUNDLE_PATH", &bundle.folder).args(words).arg("--json"));
    with_path(&["load", "tool", "team/x"]).error(4, "RYE0404");
    assert_eq!(with_path(&["bundle", "trust", "gifts"]).exit, 0);
    assert_eq!(with_path(&["load", "tool", "team/x"]).exit, 0);
    user.assert_refused(["load", "tool", "team/x"], 3, "RYE0201");
}

#[test]
fn invalid_bundle_folder_is_reported_and_skipped() {
    let user = User::initialized();
    user.write_user(
        "config/config.yaml",
        "version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  paths: [/no/such/folder, relative/path]\n",
    );
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert_eq!(run.stderr.matches("a configured bundle is left out").count(), 2, "{run}");
}

#[test]
fn verify_root_uses_the_bundles_own_keys() {
    let bundle = Bundle::new();
    let user = User::initialized();
    let folder = bundle.folder.to_str().expect("text").to_owned();
    let data = user.data(["verify", "--root", &folder]);
    assert_eq!(data["full"], data["checked"], "{data}");
    assert_eq!(
        data["signers"],
        json!([{"fingerprint": bundle.author.fingerprint(), "owner": "tester", "approved": false, "trust": "none"}])
    );
    let with_metadata = user.data(["verify", "--root", &folder, "--metadata"]);
    let items = with_metadata["items"].as_array().expect("items");
    let row = items.iter().find(|row| row["item_id"] == "team/lore").expect("a row");
    assert_eq!(row["metadata"]["title"], "Bundled lore");

    fs::write(bundle.folder.join(".ai/tools/team/x.py"), "x = 1\n").expect("written");
    let tampered = user.assert_refused(["verify", "--root", &folder], 4, "RYE0401");
    assert_eq!(tampered["data"]["unsigned"], 1);
    user.assert_refused(["verify", "--root", "/no/such/folder"], 3, "RYE0202");
}

/// An item of the opt-in bundle `ryeos-code`.
const GIT: &str = "rye/code/git/git";

fn bundle_trust(user: &User, id: &str) -> String {
    let data = user.data(["bundle", "list"]);
    let list = data["bundles"].as_array().expect("bundles");
    let row = list.iter().find(|row| row["bundle_id"] == id).unwrap_or_else(|| panic!("no bundle: {data}"));
    text(&row["standing"])
}

#[test]
fn opt_in_bundle_is_used_while_enabled() {
    let user = User::initialized();
    assert_eq!(bundle_trust(&user, "ryeos-code"), "available");
    assert!(!user.search_ids("git").contains(&GIT.to_owned()));
    user.assert_refused(["load", "tool", GIT], 3, "RYE0201");

    let answer = user.data(["bundle", "enable", "ryeos-code"]);
    assert_eq!(
        (&answer["bundle_id"], &answer["enabled"], &answer["changed"]),
        (&json!("ryeos-code"), &json!(true), &json!(true))
    );
    assert_eq!(bundle_trust(&user, "ryeos-code"), "enabled");
    assert!(user.search_ids("git").contains(&GIT.to_owned()));
    let loaded = user.data(["load", "tool", GIT]);
    assert_eq!(
        (&loaded["space"], &loaded["signer"]["trusted_by"]),
        (&json!("system:ryeos-code"), &json!("bundle"))
    );
    assert_eq!(user.data(["bundle", "enable", "ryeos-code"])["changed"], false);

    assert_eq!(user.data(["bundle", "disable", "ryeos-code"])["changed"], true);
    assert_eq!(bundle_trust(&user, "ryeos-code"), "available");
    assert!(!user.search_ids("git").contains(&GIT.to_owned()));
    user.assert_refused(["load", "tool", GIT], 3, "RYE0201");
    assert_eq!(user.data(["bundle", "disable", "ryeos-code"])["changed"], false);
}

#[test]
fn enabling_and_approving_are_independent() {
    let bundle = Bundle::new();
    let user = bundle.user("");
    user.ok(["bundle", "enable", "ryeos-code"]);
    user.ok(["bundle", "trust", "gifts"]);
    assert_eq!(bundle_trust(&user, "ryeos-code"), "enabled");
    user.ok(["bundle", "disable", "ryeos-code"]);
    assert_eq!(bundle_trust(&user, "gifts"), "approved");
}

#[test]
fn only_opt_in_bundles_are_enabled() {
    let user = User::initialized();
    user.assert_refused(["bundle", "enable", "nowhere"], 3, "RYE0601");
    user.assert_refused(["bundle", "disable", "../x"], 3, "RYE0601");
    user.assert_refused(["bundle", "enable", "ryeos-core"], 2, "RYE0104");
    user.assert_refused(["bundle", "disable", "ryeos-core"], 2, "RYE0104");
}

#[test]
fn enabling_needs_a_key() {
    let user = User::new();
    user.assert_refused(["bundle", "enable", "ryeos-code"], 4, "RYE0411");
    assert_eq!(bundle_trust(&user, "ryeos-code"), "available");
}

#[test]
fn unsigned_record_enables_no_bundle() {
    let user = User::initialized();
    let record = "version: \"1.0.0\"\ncategory: trust\nbundles: []\nenabled:\n  - id: ryeos-code\n";
    user.write_user("config/trust/bundles.yaml", record);
    assert_eq!(bundle_trust(&user, "ryeos-code"), "available");
    user.assert_refused(["load", "tool", GIT], 3, "RYE0201");
    user.assert_refused(["bundle", "enable", "ryeos-code"], 4, "RYE0419");
}
