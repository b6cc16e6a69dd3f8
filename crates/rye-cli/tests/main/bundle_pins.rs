//! Lockfiles that a bundle ships, commands inside a bundle's own folder, and bundles in registries that are only
//! looked at.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::install::{BundleAuthor, install};
use crate::support::{User, run, text};
use crate::tool_support::function_text;

/// Makes the bundle `gifts` with lockfiles.
fn create_pinned(maker: &BundleAuthor, version: &str) -> std::path::PathBuf {
    let out = maker.user.context.path().join(format!("pinned-{version}"));
    let words = ["bundle", "create", "gifts", "--version", version, "--category", "team", "--with-lockfiles"];
    // A `.json` file among the tools cannot be signed; the manifest covers it.
    maker.user.run(["sign", "tool", "team/*", "--yes"]);
    maker.user.ok(["sign", "knowledge", "team/*"]);
    maker.user.ok(words.into_iter().chain(["--out", out.to_str().expect("text")]));
    out
}

/// A user who has the bundle in `folder` as a part of the system space.
fn user_with_bundle(folder: &Path) -> User {
    let user = User::initialized();
    let config =
        format!("version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  paths: [\"{}\"]\n", folder.display());
    user.write_user("config/config.yaml", config);
    user.ok(["sign", "config", "config", "--space", "user"]);
    user.ok(["bundle", "trust", "gifts"]);
    user
}

const LOCKFILE: &str = ".ai/lockfiles/team/hi@1.0.0.lock.json";

#[test]
fn shipped_lockfile_pins_in_system_space() {
    let maker = BundleAuthor::new();
    let made = create_pinned(&maker, "1.0.0");
    let lockfile: Value = serde_json::from_slice(&fs::read(made.join(LOCKFILE)).expect("one")).expect("JSON");
    assert_eq!(lockfile["resolved_chain"][0]["space"], "system:gifts", "{lockfile}");
    assert_eq!(lockfile["resolved_chain"][0]["provider_version"], "1.0.0", "{lockfile}");
    let user = user_with_bundle(&made);
    assert_eq!(user.data(["bundle", "verify", "gifts"])["status"], "verified");
    let response = user.ok(["--json", "execute", "team/hi", "--locked"]).json();
    assert_eq!(
        response["lock"],
        json!({"state": "held", "paths": [made.join(LOCKFILE).display().to_string()]})
    );
    assert!(!user.home().join(".ai/lockfiles").exists());

    // Other bytes than the manifest lists are damaged; a file that it does not list does not exist.
    let good = fs::read(made.join(LOCKFILE)).expect("one");
    fs::write(made.join(LOCKFILE), String::from_utf8_lossy(&good).replace("\n", " ")).expect("changed");
    user.assert_refused(["execute", "team/hi"], 8, "RYE0503");
    fs::write(made.join(LOCKFILE), good).expect("as it was");
    user.ok(["execute", "team/hi", "--locked"]);
    let plain = maker.create("2.0.0");
    fs::create_dir_all(plain.join(".ai/lockfiles/team")).expect("folders");
    fs::write(plain.join(LOCKFILE), "{").expect("a stray file");
    let user = user_with_bundle(&plain);
    user.ok(["execute", "team/hi", "--frozen"]);
    user.assert_refused(["execute", "team/hi", "--locked"], 8, "RYE0502");
}

#[test]
fn shipped_lockfile_pins_imports() {
    let maker = BundleAuthor::new();
    maker.user.write("tools/team/__init__.py", rye_test::tool("team", "A package"));
    maker.user.write("tools/team/helper.py", format!("{}\nVALUE = 7\n", rye_test::tool("team", "Helps")));
    maker.user.write("tools/team/hi.py", function_text("", "from . import helper\nreturn helper.VALUE"));
    let made = create_pinned(&maker, "1.0.0");
    let lockfile: Value = serde_json::from_slice(&fs::read(made.join(LOCKFILE)).expect("one")).expect("JSON");
    assert!(lockfile["verified_deps"].to_string().contains("helper.py"), "{lockfile}");
    let user = user_with_bundle(&made);
    assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(7));
}

#[test]
fn install_skips_shipped_lockfiles() {
    let maker = BundleAuthor::new();
    let made = create_pinned(&maker, "1.0.0");
    let user = User::initialized();
    install(&user, &made, &maker, &[]);
    assert_eq!(user.data(["execute", "team/hi"]), json!(1));
    assert!(!user.project().join(LOCKFILE).exists());
    assert_eq!(user.data(["bundle", "verify", "gifts"])["status"], "verified");
}

#[test]
fn unrunnable_bundle_tool_is_not_pinned() {
    let maker = BundleAuthor::new();
    let runtime = "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: other\nname: shell\ndescription: Runs\nconfig:\n  command: /bin/bash\n  args: [\"{tool_path}\"]\n";
    maker.user.write("tools/other/shell.yaml", runtime);
    maker.user.ok(["sign", "tool", "other/shell"]);
    let tool = "# version: 1.0.0\n# tool_type: shell\n# executor_id: other/shell\n# category: team\n# description: Is run\n\necho 1\n";
    maker.user.write("tools/team/far.sh", tool);
    // A `.json` file among the tools cannot be signed; the manifest covers it.
    maker.user.run(["sign", "tool", "team/*", "--yes"]);
    maker.user.ok(["sign", "knowledge", "team/*"]);
    let words = ["bundle", "create", "gifts", "--version", "1.0.0", "--category", "team", "--with-lockfiles"];
    let refusal = maker.user.assert_refused(words, 4, "RYE0605");
    assert!(text(&refusal["error"]).contains("other/shell"), "{refusal}");
    assert!(!maker.user.project().join("gifts-1.0.0").exists());
}

#[test]
fn bundle_commands_work_inside_the_bundles_folder() {
    let maker = BundleAuthor::new();
    let made = maker.create("1.0.0");
    let user = &maker.user;
    let inside = |folder: &Path, words: &[&str]| {
        let run = run(user.command().current_dir(folder).arg("--json").args(words));
        assert_eq!(run.exit, 0, "{run}");
        run.json()["data"].clone()
    };
    for word in
        [".", "./", ".ai/bundles/gifts", ".ai/bundles/gifts/manifest.yaml", made.to_str().expect("text")]
    {
        let report = inside(&made, &["bundle", "verify", word]);
        assert_eq!(
            (&report["status"], &report["files_ok"]),
            (&json!("verified"), &json!(4)),
            "{word}: {report}"
        );
        assert_eq!(inside(&made, &["bundle", "inspect", word])["bundle"]["id"], "gifts", "{word}");
        assert_eq!(inside(&made, &["bundle", "sbom", word])["bomFormat"], "CycloneDX", "{word}");
    }
    assert_eq!(inside(&made.join(".ai/tools"), &["bundle", "verify", "../.."])["status"], "verified");
    // A project that holds no bundle still says so.
    user.assert_refused(["bundle", "verify", "."], 3, "RYE0604");
}
