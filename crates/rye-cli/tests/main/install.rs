//! Installing, upgrading, rolling back and uninstalling bundles, as a user does it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::install_upgrades::create_two_versions;
use crate::support::{User, copy_tree, differences, snapshot, text};

/// A user who makes bundles called `gifts` of the category `team`.
pub struct BundleAuthor {
    pub user: User,
}

impl BundleAuthor {
    pub fn new() -> Self {
        let maker = Self { user: User::initialized() };
        maker.write_tool("hi", "1");
        maker.write_tool("ho", "1");
        maker.user.write("tools/team/data.json", "{\"a\": 1}\n");
        let note = rye_test::knowledge("team", "lore", "Lore", "Old lore.");
        maker.user.write("knowledge/team/lore.md", note);
        maker
    }

    /// Writes the tool `team/<name>`, which answers `result`.
    pub fn write_tool(&self, name: &str, result: &str) {
        let source = rye_test::tool("team", "A gift").replace("return {}", &format!("return {result}"));
        self.user.write(&format!("tools/team/{name}.py"), source);
    }

    /// Makes a version in the folder or archive `out`, signed again.
    pub fn create_as(&self, version: &str, out: &str) -> PathBuf {
        let out = self.user.context.path().join(out);
        let out_text = out.to_str().expect("text");
        for (item_type, pattern) in [("tool", "team/*"), ("knowledge", "team/*")] {
            self.user.run(["sign", item_type, pattern]);
        }
        self.user.ok([
            "bundle",
            "create",
            "gifts",
            "--version",
            version,
            "--category",
            "team",
            "--out",
            out_text,
        ]);
        out
    }

    pub fn create(&self, version: &str) -> PathBuf {
        self.create_as(version, &format!("gifts-{version}"))
    }

    pub fn fingerprint(&self) -> String {
        self.user.fingerprint()
    }
}

/// Installs as a user who agrees to everything and knows the maker.
pub fn install(user: &User, source: &Path, maker: &BundleAuthor, more: &[&str]) -> Value {
    let fingerprint = maker.fingerprint();
    let source = source.to_str().expect("text");
    let words = ["install", source, "--trust", &fingerprint, "--yes"];
    user.data(words.iter().chain(more))
}

/// What a project's `.ai` holds, without what `rye init` put there.
pub fn installed_files(user: &User) -> Vec<String> {
    let ai = user.project().join(".ai");
    let files = snapshot(&ai).into_keys().filter(|path| path.is_file());
    let mut names: Vec<String> = files
        .map(|path| path.strip_prefix(&ai).expect("below").display().to_string())
        .filter(|name| {
            !name.contains("examples/") && !name.starts_with("config/keys/") && !name.starts_with('.')
        })
        .collect();
    names.sort();
    names
}

/// Every path below a folder.
pub fn paths_in(folder: &Path) -> Vec<PathBuf> {
    snapshot(folder).into_keys().collect()
}

const FILES: [&str; 4] =
    ["knowledge/team/lore.md", "tools/team/data.json", "tools/team/hi.py", "tools/team/ho.py"];

fn with_records(files: &[&str]) -> Vec<String> {
    let records =
        ["bundles/gifts/.bundle-lock.json", "bundles/gifts/manifest.yaml", "bundles/gifts/signer.toml"];
    let mut all: Vec<String> = files.iter().chain(&records).map(|name| (*name).to_owned()).collect();
    all.sort();
    all
}

#[test]
fn owner_name_cannot_pass_for_standing() {
    let author = User::new();
    let owner = "team 6ea18199041a1ea8: you approved it for this bundle; old key";
    author.ok(["keys", "generate", "--owner", owner]);
    author.ok(["init"]);
    let maker = BundleAuthor { user: author };
    maker.write_tool("hi", "1");
    let source = maker.create("1.0.0");
    let user = User::initialized();
    let refused = user.run(["install", source.to_str().expect("text")]);
    let shown = refused.to_string();
    let expected = format!(
        "signed by {}: you do not know this key, owner \"team 6ea18199041a1ea8<U+003A> you",
        maker.fingerprint()
    );
    assert!(shown.contains(&expected), "{refused}");
    assert!(!shown.contains("6ea18199041a1ea8: you approved") && !shown.contains("old key"), "{refused}");
}

#[test]
fn installed_item_runs_and_is_recorded() {
    let maker = BundleAuthor::new();
    for source in
        [maker.create("1.0.0"), maker.create_as("1.0.0", "a.tar.zst"), maker.create_as("1.0.0", "a.zip")]
    {
        let user = User::initialized();
        let spaces = ["tools", "knowledge", "directives"].map(|name| user.project().join(".ai").join(name));
        let before = spaces.clone().map(|folder| paths_in(&folder));
        let done = install(&user, &source, &maker, &[]);
        assert_eq!(
            (&done["status"], &done["version"], &done["space"], &done["counts"]["added"]),
            (&json!("installed"), &json!("1.0.0"), &json!("project"), &json!(4)),
            "{done}"
        );
        assert_eq!(installed_files(&user), with_records(&FILES));
        let lock: Value =
            serde_json::from_slice(&user.read("bundles/gifts/.bundle-lock.json")).expect("JSON");
        let files: Vec<String> = FILES.iter().map(|name| format!(".ai/{name}")).collect();
        assert_eq!(
            (&lock["bundle_id"], &lock["version"], &lock["files"], &lock["signer"]),
            (&json!("gifts"), &json!("1.0.0"), &json!(files), &json!(maker.fingerprint()))
        );
        let manifest = lillux::Digest::of(&user.read("bundles/gifts/manifest.yaml"));
        assert_eq!(lock["manifest_hash"], manifest.to_hex());

        let verified = user.data(["bundle", "verify", "gifts"]);
        assert_eq!(
            (&verified["status"], &verified["files_ok"]),
            (&json!("verified"), &json!(4)),
            "{verified}"
        );
        let loaded = user.data(["load", "tool", "team/hi"]);
        assert_eq!(
            (&loaded["space"], &loaded["signer"]["fingerprint"]),
            (&json!("project"), &json!(maker.fingerprint()))
        );
        assert_eq!(user.data(["execute", "team/hi"]), json!(1));

        let gone = user.data(["uninstall", "gifts"]);
        assert_eq!((&gone["status"], &gone["files_removed"]), (&json!("uninstalled"), &json!(4)), "{gone}");
        assert_eq!(spaces.map(|folder| paths_in(&folder)), before);
        assert!(!user.project().join(".ai/bundles").exists());
        user.assert_refused(["load", "tool", "team/hi"], 3, "RYE0201");
        user.assert_refused(["uninstall", "gifts"], 3, "RYE0601");
    }
}

#[test]
fn a_bundle_can_be_installed_for_the_user() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = maker.create("1.0.0");
    let done = install(&user, &source, &maker, &["--space", "user"]);
    assert_eq!(done["space"], "user");
    assert_eq!(user.data(["load", "tool", "team/hi"])["space"], "user");
    install(&user, &source, &maker, &[]);
    user.assert_refused(["uninstall", "gifts"], 2, "RYE0203");
    user.ok(["uninstall", "gifts", "--space", "user"]);
    assert_eq!(user.data(["load", "tool", "team/hi"])["space"], "project");
    user.ok(["uninstall", "gifts"]);
}

#[test]
fn install_needs_consent_and_a_signer() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = maker.create("1.0.0");
    let source = source.to_str().expect("text");
    for words in [&["install", source][..], &["install", source, "--yes"]] {
        let refusal = user.assert_refused(words, 4, "RYE0615");
        let hint = text(&refusal["hints"][1]);
        assert!(hint.contains(&format!("--trust {} --yes", maker.fingerprint())), "{refusal}");
        assert_eq!(refusal["data"]["signer"]["owner"], "tester");
        assert_eq!(refusal["data"]["files"].as_array().map(Vec::len), Some(4));
    }
    user.assert_refused(["install", source, "--trust", &maker.fingerprint()], 5, "RYE0614");
    user.assert_refused(["install", source, "--trust", &user.fingerprint(), "--yes"], 4, "RYE0615");
    user.assert_refused(["install", source, "--trust", "x", "--yes"], 2, "RYE0104");
    user.ok(["install", source, "--trust", &maker.fingerprint(), "--yes"]);
    // The signer is known now, for this bundle.
    user.assert_refused(["keys", "show", &maker.fingerprint()], 3, "RYE0416");
    user.ok(["uninstall", "gifts"]);
    user.assert_refused(["install", source], 5, "RYE0614");
    user.ok(["install", source, "--yes"]);
    // What changes nothing needs no consent.
    assert_eq!(user.data(["install", source])["status"], "unchanged");
}

/// Runs `rye` at a terminal, giving one answer to each question; gives what was shown and the exit code.
fn run_in_terminal(user: &User, answers: &str, words: &[&str]) -> (String, i32) {
    const TERMINAL_SCRIPT: &str = "
import os, pty, sys
answers, words = sys.argv[1], sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.execv(words[0], words)
shown, asked = b'', 0
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    shown += part
    while shown.count(b'[y/N]') > asked:
        os.write(terminal, (answers[asked] + '\\n').encode())
        asked += 1
sys.stdout.buffer.write(shown)
sys.stdout.flush()
assert asked == len(answers), 'not every question was asked'
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
";
    let output = user
        .program("python3")
        .args(["-c", TERMINAL_SCRIPT, answers, env!("CARGO_BIN_EXE_rye")])
        .args(words)
        .output()
        .expect("python3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{errors}");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
}

#[test]
fn terminal_install_confirms_signer_and_plan() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = maker.create("1.0.0");
    let source = source.to_str().expect("text");
    let before = installed_files(&user);
    let (output, exit) = run_in_terminal(&user, "n", &["install", source]);
    assert!(
        exit == 4 && output.contains(&maker.fingerprint()) && output.contains("for this bundle only"),
        "{output}"
    );
    let (output, exit) = run_in_terminal(&user, "yn", &["install", source]);
    assert!(exit == 5 && output.contains("install it?"), "{output}");
    assert_eq!(installed_files(&user), before);
    let (output, exit) = run_in_terminal(&user, "yy", &["install", source]);
    assert!(exit == 0 && output.contains("installed"), "{output}");
    assert_eq!(installed_files(&user), with_records(&FILES));
    // From now on the signer is known; naming the bundle is the consent to remove it.
    let (output, exit) = run_in_terminal(&user, "", &["uninstall", "gifts"]);
    assert_eq!(exit, 0, "{output}");
    let (output, exit) = run_in_terminal(&user, "y", &["install", source]);
    assert_eq!(exit, 0, "{output}");
}

#[test]
fn archive_can_be_verified_and_inspected() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    for name in ["a.tar.zst", "a.zip"] {
        let archive = maker.create_as("1.0.0", name);
        let archive = archive.to_str().expect("text");
        let verified = user.data(["bundle", "verify", archive]);
        assert_eq!(
            (&verified["status"], &verified["path"]),
            (&json!("verified"), &json!(archive)),
            "{verified}"
        );
        assert_eq!(user.data(["bundle", "inspect", archive])["bundle"]["version"], "1.0.0");
    }
    user.assert_refused(["bundle", "verify", user.public_key().to_str().expect("text")], 4, "RYE0611");
}

#[test]
fn local_edits_add_no_capabilities_to_plan() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let (first, second) = create_two_versions(&maker);
    install(&user, &first, &maker, &[]);
    user.write("tools/team/hi.py", "# mine\n");
    let output = user.data(["install", second.to_str().expect("text"), "--dry-run"]);
    let expected = "executor rye/core/runtimes/python/function";
    assert_eq!(output["capabilities_added"], json!([format!("{expected} (tool:team/new)")]), "{output}");
    assert_eq!(output["capabilities_removed"], json!([format!("{expected} (tool:team/ho)")]), "{output}");
}

#[test]
fn trusted_key_needs_no_trust_flag() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = maker.create("1.0.0");
    user.ok(["keys".as_ref(), "trust".as_ref(), maker.user.identity_document().as_os_str()]);
    let source = source.to_str().expect("text");
    user.assert_refused(["install", source], 5, "RYE0614");
    user.ok(["install", source, "--yes"]);
}

#[test]
fn dry_run_shows_the_whole_plan() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = maker.create("1.0.0");
    let source = source.to_str().expect("text");
    let before = user.snapshot();
    let output = user.data(["install", source, "--dry-run"]);
    assert_eq!(
        (
            &output["bundle_id"],
            &output["counts"]["added"],
            &output["signer"]["needs_trust"],
            &output["items"]
        ),
        (&json!("gifts"), &json!(4), &json!(true), &json!({"knowledge": 1, "tool": 3})),
        "{output}"
    );
    let asked = output["capabilities_added"].to_string();
    assert!(asked.contains("rye/core/runtimes/python/function"), "{output}");
    let human = user.ok(["install", source, "--dry-run"]);
    for part in ["gifts 1.0.0 into project space", ".ai/tools/team/hi.py", &maker.fingerprint(), "asks for"] {
        assert!(human.stdout.contains(part), "{part}: {human}");
    }
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn local_changes_follow_ours_or_theirs() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let (first, second) = create_two_versions(&maker);
    install(&user, &first, &maker, &[]);
    // Both are changed here; the second version changes one and drops the other.
    for name in ["hi", "ho"] {
        user.write(&format!("tools/team/{name}.py"), rye_test::tool("team", "Mine"));
        user.ok(["sign", "tool", &format!("team/{name}")]);
    }
    let mine = [user.read("tools/team/hi.py"), user.read("tools/team/ho.py")];
    let second = second.to_str().expect("text");
    let output = user.data(["install", second, "--dry-run", "--theirs"]);
    assert_eq!(output["counts"]["overwritten"], 2, "{output}");
    let done = user.data(["install", second, "--yes", "--ours"]);
    assert_eq!(done["kept"], json!([".ai/tools/team/hi.py", ".ai/tools/team/ho.py"]), "{done}");
    assert_eq!([user.read("tools/team/hi.py"), user.read("tools/team/ho.py")], mine);
    assert_eq!(user.data(["load", "tool", "team/hi"])["signer"]["fingerprint"], user.fingerprint());

    let done = user.data(["install", second, "--yes", "--theirs"]);
    assert_eq!(done["counts"]["overwritten"], 1, "{done}");
    assert_eq!(user.data(["execute", "team/hi"]), json!(2));
    let backup = Path::new(&text(&done["backups"])).join(".ai/tools/team/hi.py");
    assert_eq!(fs::read(backup).expect("a backup"), mine[0]);
    // What the new version has no more, and was changed here, is the user's own now.
    user.ok(["uninstall", "gifts"]);
    assert_eq!(installed_files(&user), ["tools/team/ho.py"]);
}

#[test]
fn uninstall_keeps_changed_files_without_force() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = maker.create("1.0.0");
    for force in [false, true] {
        install(&user, &source, &maker, &["--force"]);
        user.write("tools/team/hi.py", "# mine\n");
        let words: &[&str] = if force { &["uninstall", "gifts", "--force"] } else { &["uninstall", "gifts"] };
        let gone = user.data(words);
        if force {
            assert_eq!(installed_files(&user), Vec::<String>::new());
            let backup = Path::new(&text(&gone["backups"])).join(".ai/tools/team/hi.py");
            assert_eq!(fs::read(backup).expect("a backup"), b"# mine\n");
        } else {
            assert_eq!(gone["kept"], json!([".ai/tools/team/hi.py"]));
            assert_eq!(installed_files(&user), ["tools/team/hi.py"]);
        }
    }
}

#[test]
fn foreign_file_needs_force_to_overwrite() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = maker.create("1.0.0");
    let mine = user.signed_tool("hi", "Mine");
    let bytes = fs::read(&mine).expect("read");
    let fingerprint = maker.fingerprint();
    let words = ["install", source.to_str().expect("text"), "--trust", &fingerprint, "--yes"];
    let refusal = user.assert_refused(words, 5, "RYE0613");
    assert_eq!(refusal["paths"], json!([".ai/tools/team/hi.py"]), "{refusal}");
    assert_eq!(fs::read(&mine).expect("read"), bytes);
    let done = user.data(words.iter().chain(&["--force"]));
    let backup = Path::new(&text(&done["backups"])).join(".ai/tools/team/hi.py");
    assert_eq!(fs::read(backup).expect("a backup"), bytes);
    assert_eq!(user.data(["execute", "team/hi"]), json!(1));
}

#[test]
fn two_bundles_do_not_share_a_file() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let source = maker.create("1.0.0");
    install(&user, &source, &maker, &[]);
    let out = maker.user.context.path().join("presents");
    let out = out.to_str().expect("text");
    maker.user.ok(["bundle", "create", "presents", "--version", "1.0.0", "--category", "team", "--out", out]);
    for more in [&[][..], &["--force"]] {
        let fingerprint = maker.fingerprint();
        let words = ["install", out, "--trust", &fingerprint, "--yes"];
        let refusal = user.assert_refused(words.iter().chain(more), 5, "RYE0613");
        assert_eq!(refusal["owner"], "gifts", "{refusal}");
        assert!(text(&refusal["hints"][0]).contains("rye uninstall gifts"), "{refusal}");
    }
}

#[test]
fn plan_reports_shadowed_items() {
    let maker = BundleAuthor::new();
    let source = rye_test::tool("rye/file-system", "Not what you think");
    maker.user.write("tools/rye/file-system/read.py", source);
    maker.user.ok(["sign", "tool", "rye/file-system/read"]);
    let out = maker.user.context.path().join("sly");
    let out = out.to_str().expect("text");
    maker.user.ok([
        "bundle",
        "create",
        "sly",
        "--version",
        "1.0.0",
        "--category",
        "rye/file-system",
        "--out",
        out,
    ]);
    let user = User::initialized();
    let output = user.data(["install", out, "--dry-run"]);
    assert_eq!(output["hides"], json!(["tool:rye/file-system/read of system:ryeos"]), "{output}");
}

#[test]
fn invalid_bundle_source_is_refused() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    let world = user.context.path();
    user.assert_refused(["install", "nowhere"], 3, "RYE0202");
    fs::create_dir(world.join("empty")).expect("a folder");
    user.assert_refused(["install".as_ref(), world.join("empty").as_os_str()], 3, "RYE0604");
    user.assert_refused(["install".as_ref(), maker.user.project().as_os_str()], 3, "RYE0604");
    fs::write(world.join("text.zip"), "not a zip").expect("written");
    user.assert_refused(["install".as_ref(), world.join("text.zip").as_os_str()], 4, "RYE0611");
    // Outside any project there is only user space.
    let source = maker.create("1.0.0");
    let outside = world.join("outside");
    fs::create_dir(&outside).expect("a folder");
    let mut command = user.command();
    command.current_dir(&outside).arg("--json").arg("install").arg(&source);
    user.assert_command_refused(&mut command, 3, "RYE0202");
}

#[test]
fn install_needs_a_key() {
    let maker = BundleAuthor::new();
    let source = maker.create("1.0.0");
    let user = User::new();
    fs::create_dir_all(user.project().join(".ai")).expect("a folder");
    let fingerprint = maker.fingerprint();
    user.assert_refused(
        ["install", source.to_str().expect("text"), "--trust", &fingerprint, "--yes"],
        4,
        "RYE0411",
    );
}

#[test]
fn copied_project_needs_new_bundle_trust() {
    let (maker, user) = (BundleAuthor::new(), User::initialized());
    install(&user, &maker.create("1.0.0"), &maker, &[]);
    let other = User::initialized();
    copy_tree(&user.project().join(".ai/bundles"), &other.project().join(".ai/bundles"));
    copy_tree(&user.project().join(".ai/tools/team"), &other.project().join(".ai/tools/team"));
    other.assert_refused(["load", "tool", "team/hi"], 4, "RYE0404");
    // Who signed it came along too, so that one command approves it.
    let approved = other.data(["bundle", "trust", "gifts"]);
    assert_eq!(approved["fingerprint"], maker.fingerprint(), "{approved}");
    assert_eq!(other.data(["execute", "team/hi"]), json!(1));
}

#[test]
fn uninstall_keeps_files_that_were_there_before() {
    let user = User::initialized();
    let tool = user.project().join(".ai/tools/mine/own.py");
    user.ok(["new", "tool", "mine/own", "--lang", "python"]);
    let before = fs::read(&tool).expect("a tool");
    let out = user.project().join("own.tar.zst");
    let out = out.to_str().expect("text");
    user.ok(["bundle", "create", "own", "--version", "1.0.0", "--category", "mine", "--out", out]);
    user.ok(["install", out, "--yes"]);
    let gone = user.data(["uninstall", "own"]);
    assert_eq!(gone["files_removed"], 0, "{gone}");
    assert!(gone["found"].to_string().contains("own.py"), "{gone}");
    assert_eq!(fs::read(&tool).expect("it stayed"), before);
    // Brought by the bundle, it goes with it.
    fs::remove_dir_all(user.project().join(".ai/tools/mine")).expect("removed");
    user.ok(["install", out, "--yes"]);
    assert!(tool.exists());
    user.ok(["uninstall", "own"]);
    assert!(!tool.exists());
}
