//! Bundles in Python packages: found where user config names an interpreter, listed with their package, and refused until
//! their signer is approved. Nothing of a package is run.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{User, copy_file, copy_tree, text};

/// A package in a virtual environment, made by another user.
struct Package {
    author: User,
    environment: PathBuf,
}

impl Package {
    fn new(categories: &str) -> Self {
        let author = User::initialized();
        author.write("tools/team/x.py", rye_test::tool("team", "Packaged x"));
        author.write("tools/other/y.py", rye_test::tool("other", "Packaged y"));
        author.ok(["sign", "tool", "team/x"]);
        author.ok(["sign", "tool", "other/y"]);
        let environment = author.context.path().join("venv");
        let library = environment.join("lib/python3.12/site-packages");
        let package = library.join("team_tools");
        copy_tree(&author.project(), &package);
        let name = format!(".ai/config/keys/trusted/{}.toml", author.fingerprint());
        copy_file(&author.home().join(&name), &package.join(&name));
        let module = format!(
            "from importlib.metadata import version\nfrom pathlib import Path\n\nopen('/proc/self/cwd/was-run', 'w')\n\n\ndef get_bundle():\n    return {{\n        \"bundle_id\": \"team-tools\",\n        \"version\": version(\"team-tools\"),\n        \"root_path\": Path(__file__).parent,\n        \"categories\": {categories},\n    }}\n"
        );
        fs::write(package.join("bundle.py"), module).expect("a module");
        let described = library.join("team_tools-2.1.0.dist-info");
        fs::create_dir_all(&described).expect("a folder");
        fs::write(described.join("METADATA"), "Metadata-Version: 2.4\nName: team-tools\nVersion: 2.1.0\n")
            .expect("metadata");
        let points = "[rye.bundles]\nteam-tools = team_tools.bundle:get_bundle\n";
        fs::write(described.join("entry_points.txt"), points).expect("entry points");
        Self { author, environment }
    }

    /// A user whose config names the environment.
    fn user(&self) -> User {
        let user = User::initialized();
        let config = format!(
            "version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  python: [\"{}\"]\n",
            self.environment.display()
        );
        user.write_user("config/config.yaml", config);
        user.ok(["sign", "config", "config", "--space", "user"]);
        user
    }
}

fn bundle_row(user: &User) -> Option<Value> {
    let data = user.data(["bundle", "list"]);
    data["bundles"].as_array().expect("bundles").iter().find(|row| row["bundle_id"] == "team-tools").cloned()
}

#[test]
fn packaged_bundle_needs_an_approved_signer() {
    let package = Package::new("[\"team\"]");
    let user = package.user();
    let found = bundle_row(&user).expect("a row");
    assert_eq!(
        (&found["standing"], &found["version"], &found["package"], &found["categories"]),
        (&json!("not approved"), &json!("2.1.0"), &json!("team-tools 2.1.0"), &json!(["team"])),
    );
    assert!(user.ok(["bundle", "list"]).stderr.contains("from the Python package team-tools 2.1.0"));
    user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    let approved = user.data(["bundle", "trust", "team-tools"]);
    assert_eq!(approved["fingerprint"], json!(package.author.fingerprint()));
    assert_eq!(user.data(["load", "tool", "team/x"])["space"], "system:team-tools");
    // Outside its categories.
    user.assert_refused(["load", "tool", "other/y"], 3, "RYE0201");
    assert!(!user.project().join("was-run").exists());
}

#[test]
fn only_user_space_names_interpreters() {
    let package = Package::new("[\"team\"]");
    let user = User::initialized();
    let config = format!(
        "version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  python: [\"{}\"]\n",
        package.environment.display()
    );
    user.write("config/config.yaml", config);
    user.ok(["sign", "config", "config", "--space", "project"]);
    assert_eq!(bundle_row(&user), None);
    assert!(user.ok(["bundle", "list"]).stderr.contains("`bundles.python` in project config is ignored"));
}

#[test]
fn invalid_package_is_reported_and_skipped() {
    let package = Package::new("os.listdir('/')");
    let user = package.user();
    assert_eq!(bundle_row(&user), None);
    let stderr = user.ok(["bundle", "list"]).stderr;
    let module = package.environment.join("lib/python3.12/site-packages/team_tools/bundle.py");
    let expected = format!(
        "a Python bundle is left out: `{}:12`: the value of `categories` is not understood",
        module.display()
    );
    assert!(stderr.contains(&expected), "{stderr}");
    assert!(!text(&user.data(["bundle", "list"])["bundles"][0]["bundle_id"]).is_empty());
}
