//! Making a bundle, and judging one: what goes in, what stays at home, and everything that can be wrong with one.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{User, copy_file, copy_tree, run, snapshot, text};

/// A user whose project has a tool, a directive, a knowledge entry and an asset in `team`, all signed.
fn author() -> User {
    let user = User::initialized();
    user.write("tools/team/x.py", rye_test::tool("team", "Bundled x"));
    user.write("directives/team/go.md", rye_test::directive("team", "go", "Goes"));
    user.write("knowledge/team/deep/lore.md", rye_test::knowledge("team/deep", "lore", "Lore", "Lore."));
    user.write("tools/team/data/logo.png", b"\x89PNG\xff\x00\xfe");
    user.write("tools/teamx/other.py", rye_test::tool("teamx", "Not bundled"));
    user.ok(["sign", "tool", "team*/*", "--yes"]);
    user.ok(["sign", "directive", "team/*", "--yes"]);
    user.ok(["sign", "knowledge", "team/**"]);
    user
}

/// The words of a `bundle create` that works.
const CREATE: [&str; 7] = ["bundle", "create", "gifts", "--version", "1.2.3", "--category", "team"];

fn create_bundle(user: &User) -> PathBuf {
    user.ok(CREATE);
    user.project().join("gifts-1.2.3")
}

fn files_in(folder: &std::path::Path) -> Vec<String> {
    let mut files: Vec<String> = snapshot(folder)
        .keys()
        .filter(|path| path.is_file())
        .map(|path| path.strip_prefix(folder).expect("below").to_str().expect("text").to_owned())
        .collect();
    files.sort();
    files
}

/// The report on a bundle that must fail, as `data` of the error.
fn verify_failure(user: &User, folder: &std::path::Path) -> Value {
    let error = user.assert_refused(["bundle", "verify", folder.to_str().expect("text")], 4, "RYE0603");
    assert_eq!(error["data"]["status"], "failed", "{error}");
    error["data"].clone()
}

#[test]
fn bundle_contains_items_assets_and_signer() {
    let user = author();
    let folder = create_bundle(&user);
    let key = user.fingerprint();
    assert_eq!(
        files_in(&folder),
        [
            ".ai/bundles/gifts/manifest.yaml".to_owned(),
            format!(".ai/config/keys/trusted/{key}.toml"),
            ".ai/directives/team/go.md".to_owned(),
            ".ai/knowledge/team/deep/lore.md".to_owned(),
            ".ai/tools/team/data/logo.png".to_owned(),
            ".ai/tools/team/x.py".to_owned(),
        ]
    );
    let report = user.data(["bundle", "verify", folder.to_str().expect("text")]);
    let keys: Vec<&str> = report.as_object().expect("a report").keys().map(String::as_str).take(7).collect();
    assert_eq!(
        keys,
        [
            "status",
            "manifest_valid",
            "files_checked",
            "files_ok",
            "files_missing",
            "files_tampered",
            "files_unlisted"
        ]
    );
    assert_eq!(
        (&report["status"], &report["manifest_valid"], &report["files_checked"], &report["files_ok"]),
        (&json!("verified"), &json!(true), &json!(4), &json!(4)),
        "{report}"
    );
    assert_eq!((&report["signer"]["fingerprint"], &report["approved"]), (&json!(key), &json!(true)));

    // To a user who does not know the maker it is whole, and a stranger's.
    let other = User::initialized();
    let report = other.data(["bundle", "verify", folder.to_str().expect("text")]);
    assert_eq!((&report["status"], &report["approved"]), (&json!("verified"), &json!(false)));
}

#[test]
fn every_bundle_change_is_reported() {
    let user = author();
    let folder = create_bundle(&user);
    let tool = folder.join(".ai/tools/team/x.py");
    let original = fs::read(&tool).expect("a tool");

    let mut bytes = original.clone();
    bytes.push(b'\n');
    fs::write(&tool, &bytes).expect("changed");
    let report = verify_failure(&user, &folder);
    assert_eq!(report["files_tampered"], json!([".ai/tools/team/x.py"]));
    assert!(text(&report["reasons"][".ai/tools/team/x.py"]).contains("object hash"), "{report}");
    assert_eq!((&report["files_checked"], &report["files_ok"]), (&json!(4), &json!(3)));
    fs::write(&tool, &original).expect("put back");

    let asset = folder.join(".ai/tools/team/data/logo.png");
    fs::write(&asset, b"\x89PNG\xff\x00\xff").expect("changed");
    assert_eq!(verify_failure(&user, &folder)["files_tampered"], json!([".ai/tools/team/data/logo.png"]));
    fs::remove_file(&asset).expect("removed");
    assert_eq!(verify_failure(&user, &folder)["files_missing"], json!([".ai/tools/team/data/logo.png"]));
    fs::write(&asset, b"\x89PNG\xff\x00\xfe").expect("put back");

    for extra in [
        ".ai/tools/team/evil.py",
        ".ai/knowledge/else/x.md",
        ".ai/bundles/gifts/more.yaml",
        ".ai/other.txt",
        ".ai/config/keys/trusted/0123456789abcdef.toml",
    ] {
        let path = folder.join(extra);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, "x").expect("added");
        assert_eq!(verify_failure(&user, &folder)["files_unlisted"], json!([extra]));
        fs::remove_file(&path).expect("removed");
    }
    user.ok(["bundle", "verify", folder.to_str().expect("text")]);
}

#[test]
fn symlink_in_place_of_file_is_refused() {
    let user = author();
    let folder = create_bundle(&user);
    let tool = folder.join(".ai/tools/team/x.py");
    for target in [user.project().join(".ai/tools/team/x.py"), folder.join(".ai/copy.py")] {
        copy_file(&user.project().join(".ai/tools/team/x.py"), &folder.join(".ai/copy.py"));
        fs::remove_file(&tool).expect("removed");
        std::os::unix::fs::symlink(&target, &tool).expect("linked");
        assert_eq!(verify_failure(&user, &folder)["files_tampered"], json!([".ai/tools/team/x.py"]));
    }
}

#[test]
fn changed_manifest_is_invalid() {
    let user = author();
    let folder = create_bundle(&user);
    let path = folder.join(".ai/bundles/gifts/manifest.yaml");
    let original = fs::read_to_string(&path).expect("a manifest");
    let (line, rest) = original.split_once('\n').expect("a signature line");

    fs::write(&path, rest).expect("stripped");
    let report = verify_failure(&user, &folder);
    assert_eq!((&report["manifest_valid"], &report["signer"]), (&json!(false), &Value::Null));
    assert!(text(&report["manifest_error"]).starts_with("unsigned"), "{report}");

    fs::write(&path, original.replace("1.2.3", "9.9.9")).expect("changed");
    assert!(text(&verify_failure(&user, &folder)["manifest_error"]).starts_with("tampered"));

    // Another bundle's manifest, signed by the same maker.
    fs::create_dir_all(folder.join(".ai/bundles/others")).expect("a folder");
    fs::rename(&path, folder.join(".ai/bundles/others/manifest.yaml")).expect("moved");
    fs::remove_dir(folder.join(".ai/bundles/gifts")).expect("removed");
    fs::write(folder.join(".ai/bundles/others/manifest.yaml"), &original).expect("put back");
    assert!(text(&verify_failure(&user, &folder)["manifest_error"]).starts_with("misplaced"));

    // Hostile text: nothing of it is used, and everything wrong is said.
    fs::create_dir_all(folder.join(".ai/bundles/gifts")).expect("a folder");
    fs::remove_dir_all(folder.join(".ai/bundles/others")).expect("removed");
    let escape = rest.replace(".ai/tools/team/x.py", ".ai/../../x.py");
    fs::write(&path, format!("{line}\n{escape}")).expect("changed");
    let report = verify_failure(&user, &folder);
    assert!(text(&report["manifest_error"]).contains("`.` or `..`"), "{report}");
    assert_eq!(report["files_checked"], 0);
}

/// Signs a changed manifest with the maker's own key.
fn sign_manifest(user: &User, folder: &std::path::Path, rest: &str) {
    let pem = fs::read_to_string(user.home().join(".ai/config/keys/signing/private_key.pem")).expect("a key");
    let signed = format!("# {}\n{rest}", rye_test::signature(&pem, rest.as_bytes()));
    fs::write(folder.join(".ai/bundles/gifts/manifest.yaml"), signed).expect("written");
}

/// The manifest's text without signature, its hashes in the older form and of the files as they are now.
fn older_manifest(folder: &std::path::Path) -> String {
    let text = fs::read_to_string(folder.join(".ai/bundles/gifts/manifest.yaml")).expect("a manifest");
    let mut rest = text.split_once('\n').expect("a line").1.to_owned();
    for file in files_in(folder) {
        let Some(start) = rest.find(&format!("\"{file}\"")) else { continue };
        let digest = lillux::Digest::of(&fs::read(folder.join(&file)).expect("a file"));
        let at = start + rest[start..].find("object_hash: \"").expect("a hash");
        rest.replace_range(at..at + "object_hash: \"".len() + 64, &format!("sha256: \"{digest}"));
    }
    assert!(!rest.contains("object_hash"));
    rest
}

#[test]
fn listed_item_needs_a_valid_signature() {
    let user = author();
    let folder = create_bundle(&user);
    let tool = folder.join(".ai/tools/team/x.py");
    let other_user = User::initialized();
    let foreign = fs::read(other_user.signed_tool("x", "Foreign")).expect("a tool");
    user.write("tools/other/x.py", rye_test::tool("other", "Of elsewhere"));
    user.ok(["sign", "tool", "other/x"]);
    let edited = [fs::read(&tool).expect("a tool"), b"# more\n".to_vec()].concat();
    for (bytes, reason) in [
        (foreign, "untrusted"),
        (user.read("tools/other/x.py"), "misplaced"),
        (edited, "tampered"),
        (rye_test::tool("team", "Unsigned").into_bytes(), "unsigned"),
    ] {
        fs::write(&tool, bytes).expect("changed");
        let original = fs::read(folder.join(".ai/bundles/gifts/manifest.yaml")).expect("a manifest");
        sign_manifest(&user, &folder, &older_manifest(&folder));
        let report = verify_failure(&user, &folder);
        assert_eq!((&report["manifest_valid"], &report["files_ok"]), (&json!(true), &json!(3)), "{reason}");
        let output = text(&report["reasons"][".ai/tools/team/x.py"]);
        assert!(output.starts_with(reason), "{reason}: {output}");
        fs::write(folder.join(".ai/bundles/gifts/manifest.yaml"), original).expect("put back");
    }
    // A file that cannot carry a signature is not said to have one.
    fs::write(&tool, user.read("tools/team/x.py")).expect("put back");
    let rest = older_manifest(&folder);
    let asset = rest.find("logo.png").expect("an asset");
    let at = asset + rest[asset..].find("inline_signed: false").expect("unsigned");
    let mut lying = rest.clone();
    lying.replace_range(at..at + "inline_signed: false".len(), "inline_signed: true");
    sign_manifest(&user, &folder, &lying);
    assert_eq!(verify_failure(&user, &folder)["files_tampered"], json!([".ai/tools/team/data/logo.png"]));
    sign_manifest(&user, &folder, &rest);
    user.ok(["bundle", "verify", "gifts-1.2.3"]);
}

#[test]
fn untrusted_items_are_not_packed() {
    let user = author();
    user.write("tools/team/unsigned.py", rye_test::tool("team", "Unsigned"));
    let edited = user.signed_tool("edited", "Edited");
    fs::write(&edited, [fs::read(&edited).expect("a tool"), b"# more\n".to_vec()].concat()).expect("edited");
    let other_user = User::initialized();
    let foreign = other_user.signed_tool("foreign", "Foreign");
    copy_file(&foreign, &user.project().join(".ai/tools/team/foreign.py"));
    std::os::unix::fs::symlink("/etc/hostname", user.project().join(".ai/tools/team/data/link.txt"))
        .expect("linked");
    user.write("tools/team/data/note.txt", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n");
    let error = user.assert_refused(CREATE, 4, "RYE0605");
    let invalid = error["unfit"].as_array().expect("unfit");
    let named: Vec<String> = invalid.iter().map(|row| text(&row["path"])).collect();
    for path in ["unsigned.py", "edited.py", "foreign.py", "data/link.txt", "data/note.txt"] {
        assert!(named.contains(&format!(".ai/tools/team/{path}")), "{path}: {error}");
    }
    assert_eq!(named.len(), 5, "{error}");
    std::os::unix::fs::symlink("team", user.project().join(".ai/tools/linked")).expect("linked");
    let linked = ["bundle", "create", "gifts", "--version", "1.2.3", "--category", "linked"];
    user.assert_refused(linked, 4, "RYE0605");
    // Signing is not a way around what was changed or is a stranger's, and then nothing at all is signed.
    let error = user.assert_refused([&CREATE[..], &["--sign"]].concat(), 4, "RYE0605");
    assert_eq!(error["unfit"].as_array().map(Vec::len), Some(5));
}

#[test]
fn unsigned_items_are_signed_on_request() {
    let user = author();
    user.write("tools/team/new.py", rye_test::tool("team", "New"));
    user.assert_refused(CREATE, 4, "RYE0605");
    let created = user.data([&CREATE[..], &["--sign"]].concat());
    assert_eq!(created["signed"], json!(["tool:team/new"]));
    assert_eq!(created["files_by_type"], json!({"asset": 1, "directive": 1, "knowledge": 1, "tool": 2}));
    user.ok(["bundle", "verify", "gifts-1.2.3"]);
    user.ok(["verify", "tool", "team/new"]);
    // What cannot be valid cannot be signed.
    user.write("tools/team/bad.py", "x = 1\n");
    let run = user.run([&CREATE[..], &["--sign", "--out", "again", "--json"]].concat());
    run.error(9, "RYE0301");
    assert!(!user.project().join("again").exists());
}

#[test]
fn secrets_and_keys_are_not_packed() {
    let user = author();
    for file in [
        ".env",
        ".env.local",
        ".git/config",
        "__pycache__/x.pyc",
        "node_modules/a/index.js",
        "private_key.pem",
        "prod.secrets",
        "id_rsa",
        "x.py~",
    ] {
        user.write(&format!("tools/team/{file}"), "SECRET=1");
    }
    let created = user.data(CREATE);
    assert_eq!(created["left_out"].as_array().map(Vec::len), Some(9), "{created}");
    let folder = user.project().join("gifts-1.2.3");
    let everything: Vec<u8> =
        files_in(&folder).iter().flat_map(|file| fs::read(folder.join(file)).expect("a file")).collect();
    assert!(!String::from_utf8_lossy(&everything).contains("SECRET"));
    // Not even when they are asked for by name.
    user.write("config/keys/mine.yaml", "version: \"1.0.0\"\ncategory: keys\n");
    user.assert_refused(
        ["bundle", "create", "k", "--version", "1.0.0", "--category", "keys", "--category", "trust"],
        3,
        "RYE0201",
    );
}

#[test]
fn failed_create_leaves_no_bundle() {
    let user = author();
    fs::create_dir(user.project().join("gifts-1.2.3")).expect("taken");
    user.assert_refused(CREATE, 2, "RYE0104");
    fs::remove_dir(user.project().join("gifts-1.2.3")).expect("removed");
    for (words, exit, code) in [
        (["bundle", "create", "../x", "--version", "1.0.0", "--category", "team"], 2, "RYE0101"),
        (["bundle", "create", "gifts", "--version", "one", "--category", "team"], 2, "RYE0104"),
        (["bundle", "create", "gifts", "--version", "1.0.0", "--category", "a//b"], 2, "RYE0101"),
        (["bundle", "create", "gifts", "--version", "1.0.0", "--category", "nothing"], 3, "RYE0201"),
    ] {
        user.assert_refused(words, exit, code);
    }
    user.assert_refused([&CREATE[..], &["--entrypoint", "team/none"]].concat(), 2, "RYE0104");
    // `team` is a whole segment.
    assert!(!files_in(&create_bundle(&user)).iter().any(|file| file.contains("teamx")));
    let left: Vec<_> =
        fs::read_dir(user.project()).expect("a folder").map(|e| e.expect("one").file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn create_needs_a_signing_key() {
    let user = User::new();
    user.write("tools/team/x.py", rye_test::tool("team", "x"));
    user.assert_refused(CREATE, 4, "RYE0411");
}

#[test]
fn foreign_items_need_their_identity_document() {
    let (user, colleague) = (author(), User::initialized());
    let theirs = colleague.signed_tool("theirs", "Theirs");
    copy_file(&theirs, &user.project().join(".ai/tools/team/theirs.py"));
    // Trusted through a document the user signed: inside a bundle that vouches for nothing.
    user.ok(["keys", "trust", colleague.public_key().to_str().expect("text")]);
    user.assert_refused(CREATE, 4, "RYE0605");
    // With the colleague's own document it does.
    let document = user.home().join(format!(".ai/config/keys/trusted/{}.toml", colleague.fingerprint()));
    copy_file(&colleague.identity_document(), &document);
    let folder = create_bundle(&user);
    assert!(files_in(&folder).contains(&format!(".ai/config/keys/trusted/{}.toml", colleague.fingerprint())));
    let other = User::initialized();
    let path = folder.to_str().expect("text");
    other.ok(["bundle", "verify", path]);
    // Installed, its items would be refused without that key.
    let install = ["install", path, "--trust", &user.fingerprint(), "--yes"];
    let refused = other.assert_refused(install, 4, "RYE0615");
    assert!(text(&refused["error"]).contains(&colleague.fingerprint()), "{refused}");
    other.ok(["keys", "trust", colleague.identity_document().to_str().expect("text")]);
    other.ok(install);
    other.ok(["execute", "team/theirs"]);
}

#[test]
fn inspect_shows_contents_and_capabilities() {
    let user = author();
    let source = rye_test::tool("team", "Asks").replace(
        "\n\ndef",
        "\nSANDBOX = {\"network\": True, \"write\": [\"~/reports\"]}\nDEPENDENCIES = [\"six==1.17.0\", \"attrs>=20\"]\n\ndef",
    );
    user.write("tools/team/asks.py", source);
    user.ok(["sign", "tool", "team/asks"]);
    user.ok([&CREATE[..], &["--entrypoint", "team/x", "--description", "Small gifts"]].concat());
    let output = user.data(["bundle", "inspect", "./gifts-1.2.3"]);
    assert_eq!(
        output["bundle"],
        json!({
            "id": "gifts", "version": "1.2.3", "entrypoint": "tool:team/x", "description": "Small gifts",
            "created_at": output["bundle"]["created_at"], "categories": ["team"],
            "manifest_hash": output["bundle"]["manifest_hash"],
        })
    );
    assert_eq!(output["file_count"], 5);
    let asked = &output["capabilities"];
    assert_eq!(
        asked["sandbox"],
        json!({"network: true": ["tool:team/asks"], "write: ~/reports": ["tool:team/asks"]})
    );
    assert_eq!(asked["packages"].as_object().map(serde_json::Map::len), Some(2), "{asked}");
    assert_eq!(output["verification"]["status"], "verified");
    let human = user.ok(["bundle", "inspect", "gifts-1.2.3"]);
    assert!(human.stdout.contains("sandbox network: true"), "{human}");

    let bill = user.data(["bundle", "sbom", "gifts-1.2.3"]);
    assert_eq!((&bill["bomFormat"], &bill["specVersion"]), (&json!("CycloneDX"), &json!("1.6")));
    let components = bill["components"].as_array().expect("components");
    let purls: Vec<&str> = components.iter().filter_map(|component| component["purl"].as_str()).collect();
    assert_eq!(purls, ["pkg:pypi/six@1.17.0"]);
    assert_eq!(components.len(), 7, "five files and two packages");
    let plain = user.ok(["bundle", "sbom", "gifts-1.2.3"]);
    user.ok(["bundle", "sbom", "gifts-1.2.3", "--out", "bill.json"]);
    assert_eq!(user.context.text("project/bill.json"), plain.stdout, "the same bundle gives the same bill");

    fs::write(user.project().join("gifts-1.2.3/.ai/tools/team/x.py"), "x").expect("changed");
    user.assert_refused(["bundle", "sbom", "gifts-1.2.3"], 4, "RYE0603");
    let output = user.data(["bundle", "inspect", "gifts-1.2.3"]);
    assert_eq!((&output["file_count"], &output["verification"]["status"]), (&json!(4), &json!("failed")));
}

#[test]
fn the_entrypoint_of_a_configured_bundle_is_executed() {
    let author = author();
    author.ok([&CREATE[..], &["--entrypoint", "team/go"]].concat());
    let user = User::initialized();
    let folder = user.context.path().join("gifts");
    copy_tree(&author.project().join("gifts-1.2.3"), &folder);
    let with_path =
        |words: &[&str]| run(user.command().env("RYE_BUNDLE_PATH", &folder).args(words).arg("--json"));
    with_path(&["bundle", "run", "gifts"]).error(4, "RYE0404");
    assert_eq!(with_path(&["bundle", "trust", "gifts"]).exit, 0);
    let result = with_path(&["bundle", "run", "gifts"]);
    assert_eq!((result.exit, &result.json()["item_id"]), (0, &json!("team/go")), "{result}");
    with_path(&["bundle", "run", "nowhere"]).error(3, "RYE0601");
    with_path(&["bundle", "run", "ryeos-core"]).error(2, "RYE0104");
    // An item of the project in its place is not what the bundle's maker meant.
    user.write("directives/team/go.md", rye_test::directive("team", "go", "Mine"));
    user.ok(["sign", "directive", "team/go"]);
    with_path(&["bundle", "run", "gifts"]).error(2, "RYE0203");
}

#[test]
fn embedded_bundles_match_their_manifests() {
    let user = User::initialized();
    for id in ["ryeos-core", "ryeos", "ryeos-web", "ryeos-code"] {
        let report = user.data(["bundle", "verify", id]);
        assert_eq!(
            (&report["status"], &report["files_ok"], &report["approved"]),
            (&json!("verified"), &report["files_checked"], &json!(true)),
            "{report}"
        );
    }
    user.assert_refused(["bundle", "verify", "nowhere"], 3, "RYE0601");
    user.assert_refused(["bundle", "verify", "./nowhere"], 3, "RYE0202");
    user.assert_refused(["bundle", "verify", "."], 3, "RYE0604");
}

#[test]
fn older_manifest_format_verifies() {
    let user = author();
    let folder = create_bundle(&user);
    sign_manifest(&user, &folder, &older_manifest(&folder));
    assert_eq!(user.data(["bundle", "verify", "gifts-1.2.3"])["files_ok"], 4);
    fs::write(folder.join(".ai/tools/team/data/logo.png"), "x").expect("changed");
    let report = verify_failure(&user, &folder);
    assert!(text(&report["reasons"][".ai/tools/team/data/logo.png"]).contains("SHA-256"), "{report}");
}
