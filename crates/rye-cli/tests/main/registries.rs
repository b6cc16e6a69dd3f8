//! Bundles to and from OCI registries: what was verified goes out, what does not verify is not kept, and logins are those
//! of docker and podman.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{User, run, snapshot, text};

#[path = "../../../rye-bundle/src/registry/tests/fake.rs"]
pub mod fake;

use fake::{FakeRegistry, response};

/// A user who has made a bundle: its folder, in the project.
fn user_with_bundle() -> (User, String) {
    let user = User::initialized();
    user.signed_tool("hello", "Says hello");
    user.ok(["bundle", "create", "team-tools", "--version", "1.0.0", "--category", "team"]);
    (user, "team-tools-1.0.0".to_owned())
}

fn reference(registry: &FakeRegistry, rest: &str) -> String {
    format!("oci://{}", registry.reference_text(rest))
}

fn push(user: &User, bundle: &str, registry: &FakeRegistry, tag: &str) -> Value {
    user.data(["bundle", "push", bundle, &reference(registry, &format!("team/tools:{tag}"))])
}

/// A registry that wants a password: ada, hunter2.
fn registry_with_login() -> FakeRegistry {
    FakeRegistry::start(Box::new(|request, _| {
        let is_known = request.header("authorization") == Some("Basic YWRhOmh1bnRlcjI=");
        (!is_known).then(|| response("401 Unauthorized", &[("WWW-Authenticate", "Basic realm=\"x\"")], ""))
    }))
}

fn log_in(user: &User, login: &Value) -> PathBuf {
    user.context.write("home/.docker/config.json", login.to_string())
}

fn host(registry: &FakeRegistry) -> String {
    registry.address.to_string()
}

#[test]
fn pushed_bundle_pulls_back_identical() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let pushed = push(&user, &bundle, &registry, "1.0.0");
    assert_eq!(
        (&pushed["bundle_id"], &pushed["version"], &pushed["signer"]),
        (&json!("team-tools"), &json!("1.0.0"), &json!(user.fingerprint()))
    );
    assert_eq!(
        text(&pushed["pinned"]),
        reference(&registry, &format!("team/tools@{}", text(&pushed["digest"])))
    );
    let other_user = User::initialized();
    let saved = other_user.data(["bundle", "pull", &text(&pushed["pinned"]), "--out", "back"]);
    assert_eq!(
        snapshot(&other_user.project().join("back")).len(),
        snapshot(&user.project().join(&bundle)).len()
    );
    assert_eq!(
        fs::read(other_user.project().join("back/.ai/tools/team/hello.py")).expect("a tool"),
        user.read("tools/team/hello.py")
    );
    let verification = &saved["verification"];
    assert_eq!((&verification["status"], &verification["approved"]), (&json!("verified"), &json!(false)));
    other_user.ok(["bundle", "pull", &text(&pushed["reference"])]);
    assert!(other_user.project().join("team-tools-1.0.0.tar.zst").is_file());
    other_user.ok(["bundle", "push", "team-tools-1.0.0.tar.zst", &reference(&registry, "team/tools:copy")]);
    let inspected = other_user.data(["bundle", "inspect", &reference(&registry, "team/tools:copy")]);
    assert_eq!((&inspected["digest"], &inspected["approved"]), (&pushed["digest"], &json!(false)));
    assert_eq!(user.data(["bundle", "inspect", &text(&pushed["pinned"])])["approved"], true);
}

#[test]
fn existing_files_are_not_overwritten() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let pushed = push(&user, &bundle, &registry, "1.0.0");
    user.assert_refused(["bundle", "pull", &text(&pushed["reference"]), "--out", &bundle], 2, "RYE0104");
    user.ok(["bundle", "pull", &text(&pushed["reference"])]);
    user.assert_refused(["bundle", "pull", &text(&pushed["reference"])], 2, "RYE0104");
}

#[test]
fn invalid_bundle_is_not_pushed_or_pulled() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let pushed = push(&user, &bundle, &registry, "1.0.0");
    let tool = user.project().join(&bundle).join(".ai/tools/team/hello.py");
    let changed = format!("{}# more\n", fs::read_to_string(&tool).expect("a tool"));
    fs::write(&tool, changed).expect("changed");
    let before = registry.requests().len();
    user.assert_refused(["bundle", "push", &bundle, &reference(&registry, "team/tools:2")], 4, "RYE0603");
    assert_eq!(registry.requests().len(), before);
    // A user with access to the registry swaps the archive for one that they made.
    let other = User::initialized();
    other.signed_tool("hello", "Says something else");
    other.ok(["bundle", "create", "team-tools", "--version", "1.0.0", "--category", "team"]);
    let evil = FakeRegistry::new();
    push(&other, "team-tools-1.0.0", &evil, "1.0.0");
    let (stolen, theirs) = {
        let store = evil.store.lock().expect("the store");
        let index: Value = serde_json::from_slice(&store.manifests["1.0.0"]).expect("JSON");
        let archive = index["layers"][1].clone();
        (archive.clone(), store.blobs[archive["digest"].as_str().expect("a digest")].clone())
    };
    let mut store = registry.store.lock().expect("the store");
    let mut index: Value = serde_json::from_slice(&store.manifests["1.0.0"]).expect("JSON");
    index["layers"][1] = stolen.clone();
    store.blobs.insert(text(&stolen["digest"]), theirs);
    store.manifests.insert("1.0.0".to_owned(), index.to_string().into_bytes());
    drop(store);
    let other_user = User::initialized();
    let refusal = other_user.assert_refused(
        ["bundle", "pull", &text(&pushed["reference"]), "--out", "back"],
        4,
        "RYE0626",
    );
    assert!(text(&refusal["error"]).contains("has a different manifest"), "{refusal}");
    let install = ["install", &text(&pushed["reference"]), "--yes", "--trust", &other.fingerprint()];
    other_user.assert_refused(install, 4, "RYE0626");
    other_user.assert_refused(["bundle", "verify", &text(&pushed["reference"])], 4, "RYE0626");
    other_user.assert_refused(["bundle", "sbom", &text(&pushed["reference"])], 4, "RYE0626");
    // By the digest it is still the one that was pushed.
    other_user.ok(["bundle", "pull", &text(&pushed["pinned"]), "--out", "back"]);
}

#[test]
fn install_records_the_digest() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let pushed = push(&user, &bundle, &registry, "1.0.0");
    let other_user = User::initialized();
    let source = text(&pushed["reference"]);
    other_user.assert_refused(["install", &source, "--yes"], 4, "RYE0615");
    other_user.ok(["install", &source, "--yes", "--trust", &user.fingerprint()]);
    let lock: Value =
        serde_json::from_slice(&other_user.read("bundles/team-tools/.bundle-lock.json")).expect("JSON");
    assert_eq!((&lock["source"], &lock["source_digest"]), (&json!(source), &pushed["digest"]));
    other_user.data(["load", "tool", "team/hello"]);
}

#[test]
fn bundle_is_pushed_from_inside_its_folder() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let pushed = push(&user, &bundle, &registry, "1.0.0");
    let target = reference(&registry, "team/tools:inside");
    let inside = user.project().join(&bundle);
    let run = run(user.command().current_dir(inside).args(["--json", "bundle", "push", ".", &target]));
    assert_eq!(run.exit, 0, "{run}");
    assert_eq!(run.json()["data"]["digest"], pushed["digest"]);
}

#[test]
fn rollback_keeps_source_and_digest() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let first = push(&user, &bundle, &registry, "1.0.0");
    user.signed_tool("hello", "Says hello twice");
    user.ok(["bundle", "create", "team-tools", "--version", "2.0.0", "--category", "team"]);
    let second = push(&user, "team-tools-2.0.0", &registry, "2.0.0");
    let other_user = User::initialized();
    let lock = || -> Value {
        serde_json::from_slice(&other_user.read("bundles/team-tools/.bundle-lock.json")).expect("JSON")
    };
    for pushed in [&first, &second] {
        other_user.ok(["install", &text(&pushed["reference"]), "--yes", "--trust", &user.fingerprint()]);
        let lock = lock();
        assert_eq!((&lock["source"], &lock["source_digest"]), (&pushed["reference"], &pushed["digest"]));
    }
    other_user.ok(["bundle", "rollback", "team-tools"]);
    let lock = lock();
    assert_eq!((&lock["source"], &lock["source_digest"]), (&first["reference"], &first["digest"]), "{lock}");
}

#[test]
fn bundle_in_a_registry_is_verified_and_listed() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let pushed = push(&user, &bundle, &registry, "1.0.0");
    let (source, other_user) = (text(&pushed["reference"]), User::initialized());
    let report = other_user.data(["bundle", "verify", &source]);
    assert_eq!((&report["status"], &report["approved"]), (&json!("verified"), &json!(false)), "{report}");
    assert_eq!(report["path"], pushed["pinned"]);
    let bill = other_user.data(["bundle", "sbom", &source]);
    assert_eq!(bill, user.data(["bundle", "sbom", &bundle]));
    other_user.assert_refused(["bundle", "verify", &reference(&registry, "team/tools:2")], 3, "RYE0624");
    let staging = other_user.context.cache().join("rye/registry");
    assert_eq!(fs::read_dir(staging).expect("the staging folder").count(), 0);
}

#[test]
fn docker_and_podman_logins_are_used() {
    let ((user, bundle), registry) = (user_with_bundle(), registry_with_login());
    let target = reference(&registry, "team/tools:1");
    let refusal = user.assert_refused(["bundle", "push", &bundle, &target], 5, "RYE0622");
    assert_eq!(text(&refusal["hints"][0]), format!("log in first: docker login {}", registry.address));
    let file = log_in(&user, &json!({"auths": {host(&registry): {"auth": "YWRhOndyb25n"}}}));
    let refusal = user.assert_refused(["bundle", "push", &bundle, &target], 5, "RYE0622");
    assert!(text(&refusal["hints"][0]).starts_with("your login is not accepted there"), "{refusal}");
    assert!(!refusal.to_string().contains("wrong"), "{refusal}");
    log_in(&user, &json!({"auths": {host(&registry): {"auth": "YWRhOmh1bnRlcjI="}}}));
    user.ok(["bundle", "push", &bundle, &target]);
    fs::remove_file(file).expect("removed");
    let auth = json!({"auths": {host(&registry): {"auth": "YWRhOmh1bnRlcjI="}}});
    user.context.write("home/.config/containers/auth.json", auth.to_string());
    user.ok(["bundle", "pull", &target]);
    let elsewhere = user.context.write("elsewhere/config.json", "not JSON");
    let mut command = user.command();
    command.env("DOCKER_CONFIG", elsewhere.parent().expect("a folder"));
    user.assert_command_refused(
        command.args(["--json", "bundle", "pull", &target, "--out", "x"]),
        1,
        "RYE0623",
    );
}

fn write_helper(folder: &Path, name: &str, script: &str) {
    fs::create_dir_all(folder).expect("a folder");
    let path = folder.join(format!("docker-credential-{name}"));
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).expect("a helper");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a program");
}

#[test]
fn credential_helper_errors_contain_no_secret() {
    let ((user, bundle), registry) = (user_with_bundle(), registry_with_login());
    let target = reference(&registry, "team/tools:1");
    let programs = user.context.path().join("programs");
    let expected = host(&registry);
    write_helper(
        &programs,
        "good",
        &format!(
            "read server; [ \"$1 $server\" = \"get {expected}\" ] && echo '{{\"Username\":\"ada\",\"Secret\":\"hunter2\"}}'"
        ),
    );
    write_helper(&programs, "empty", "echo 'credentials not found in native keychain'; exit 1");
    write_helper(&programs, "bad", "echo 'hunter2'; echo hunter2 >&2; exit 3");
    // Tools can write there: what they plant is not run, although the PATH leads to it.
    let (planted, mark) = (user.project().join(".venv/bin"), user.project().join("planted"));
    write_helper(&planted, "planted", &format!("touch {}", mark.display()));
    let path = format!("{}:{}:/usr/bin:/bin", planted.display(), programs.display());
    let with = |name: &str, out: &str| {
        log_in(&user, &json!({"credHelpers": {host(&registry): name}}));
        let mut command = user.command();
        command.env("PATH", &path).args(["--json", "bundle", "push", &bundle, &target]);
        let run = run(&mut command);
        assert!(!format!("{run}").contains("hunter2"), "{run}");
        assert!(format!("{run}").contains(out), "{run}");
    };
    with("good", "\"status\":\"success\"");
    with("empty", "log in first: docker login");
    with("bad", "ended with exit code 3");
    with("absent", "`docker-credential-absent` was not found");
    with("../bad", "its name is not a valid program name");
    with("planted", "`docker-credential-planted` was not found");
    assert!(!mark.exists());
}

#[test]
fn registry_failures_have_specific_codes() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    push(&user, &bundle, &registry, "1");
    user.assert_refused(["bundle", "pull", &reference(&registry, "team/tools:2")], 3, "RYE0624");
    user.assert_refused(["bundle", "pull", "https://a.example/b"], 2, "RYE0104");
    user.assert_refused(["bundle", "pull", "oci://../x"], 2, "RYE0104");
    user.assert_refused(["install", "oci://a/b", "--yes"], 2, "RYE0104");
    let pinned = reference(&registry, &format!("team/tools@sha256:{}", "0".repeat(64)));
    user.assert_refused(["bundle", "push", &bundle, &pinned], 2, "RYE0104");
    user.assert_refused(["bundle", "push", "absent", &reference(&registry, "team/tools:2")], 3, "RYE0601");
    let address = registry.address;
    registry.store.lock().expect("the store").manifests.insert("1".to_owned(), b"{}".to_vec());
    user.assert_refused(["bundle", "pull", &reference(&registry, "team/tools:1")], 9, "RYE0625");
    drop(registry);
    let refusal =
        user.assert_refused(["bundle", "pull", &format!("oci://{address}/team/tools:1")], 1, "RYE0621");
    assert!(text(&refusal["error"]).contains("no connection to `http://127.0.0.1"), "{refusal}");
}

#[test]
fn transfer_leaves_the_cache_empty() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let pushed = push(&user, &bundle, &registry, "1");
    user.ok(["bundle", "pull", &text(&pushed["reference"])]);
    user.run(["bundle", "pull", &reference(&registry, "team/tools:2")]);
    let staging = user.context.cache().join("rye/registry");
    assert_eq!(fs::read_dir(staging).expect("the staging folder").count(), 0);
}

#[test]
fn configured_bundle_is_pushed_by_id() {
    let ((user, bundle), registry) = (user_with_bundle(), FakeRegistry::new());
    let folder = user.project().join(&bundle);
    let config =
        format!("version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  paths: [\"{}\"]\n", folder.display());
    user.write_user("config/config.yaml", config);
    let by_path = push(&user, &format!("./{bundle}"), &registry, "1");
    let by_id = push(&user, "team-tools", &registry, "2");
    assert_eq!(by_id["digest"], by_path["digest"]);
    let other_user = User::initialized();
    let source = text(&by_path["reference"]);
    other_user.ok(["install", &source, "--yes", "--trust", &user.fingerprint()]);
    let refusal = other_user.assert_refused(
        ["bundle", "push", "team-tools", &reference(&registry, "team/tools:3")],
        2,
        "RYE0104",
    );
    assert!(text(&refusal["error"]).contains("is among other files"), "{refusal}");
}
