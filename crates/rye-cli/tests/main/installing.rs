//! Installing, upgrading, rolling back and uninstalling bundles, as a user does it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{User, copy_tree, differences, snapshot, text};

/// Somebody who makes bundles called `gifts` of the category `team`.
pub struct Maker {
    pub user: User,
}

impl Maker {
    pub fn new() -> Self {
        let maker = Self { user: User::ready() };
        maker.tool("hi", "1");
        maker.tool("ho", "1");
        maker.user.write("tools/team/data.json", "{\"a\": 1}\n");
        let lore = rye_test::knowledge("team", "lore", "Lore", "Old lore.");
        maker.user.write("knowledge/team/lore.md", lore);
        maker
    }

    /// Writes the tool `team/<name>`, which answers `result`.
    pub fn tool(&self, name: &str, result: &str) {
        let source = rye_test::tool("team", "A gift").replace("return {}", &format!("return {result}"));
        self.user.write(&format!("tools/team/{name}.py"), source);
    }

    /// Makes a version in the folder or archive `out`, signed anew.
    pub fn make_as(&self, version: &str, out: &str) -> PathBuf {
        let out = self.user.world.path().join(out);
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

    pub fn make(&self, version: &str) -> PathBuf {
        self.make_as(version, &format!("gifts-{version}"))
    }

    pub fn fingerprint(&self) -> String {
        self.user.fingerprint()
    }
}

/// Installs as somebody who agrees to everything and knows the maker.
pub fn install(user: &User, source: &Path, maker: &Maker, more: &[&str]) -> Value {
    let fingerprint = maker.fingerprint();
    let source = source.to_str().expect("text");
    let words = ["install", source, "--trust", &fingerprint, "--yes"];
    user.data(words.iter().chain(more))
}

/// What a project's `.ai` holds, without what `rye init` put there.
pub fn brought(user: &User) -> Vec<String> {
    let ai = user.project().join(".ai");
    let files = snapshot(&ai).into_keys().filter(|path| path.is_file());
    let mut names: Vec<String> = files
        .map(|path| path.strip_prefix(&ai).expect("below").display().to_string())
        .filter(|name| !name.contains("examples/") && !name.starts_with('.'))
        .collect();
    names.sort();
    names
}

/// Every path below a folder.
fn names(folder: &Path) -> Vec<PathBuf> {
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
fn an_installed_item_runs_and_the_lockfile_says_what_was_brought() {
    let maker = Maker::new();
    for source in [maker.make("1.0.0"), maker.make_as("1.0.0", "a.tar.zst"), maker.make_as("1.0.0", "a.zip")]
    {
        let user = User::ready();
        let spaces = ["tools", "knowledge", "directives"].map(|name| user.project().join(".ai").join(name));
        let before = spaces.clone().map(|folder| names(&folder));
        let done = install(&user, &source, &maker, &[]);
        assert_eq!(
            (&done["status"], &done["version"], &done["space"], &done["counts"]["added"]),
            (&json!("installed"), &json!("1.0.0"), &json!("project"), &json!(4)),
            "{done}"
        );
        assert_eq!(brought(&user), with_records(&FILES));
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
        assert_eq!(spaces.map(|folder| names(&folder)), before);
        assert!(!user.project().join(".ai/bundles").exists());
        user.refused(["load", "tool", "team/hi"], 3, "RYE0201");
        user.refused(["uninstall", "gifts"], 3, "RYE0601");
    }
}

#[test]
fn a_bundle_can_be_installed_for_the_user() {
    let (maker, user) = (Maker::new(), User::ready());
    let source = maker.make("1.0.0");
    let done = install(&user, &source, &maker, &["--space", "user"]);
    assert_eq!(done["space"], "user");
    assert_eq!(user.data(["load", "tool", "team/hi"])["space"], "user");
    install(&user, &source, &maker, &[]);
    user.refused(["uninstall", "gifts"], 2, "RYE0203");
    user.ok(["uninstall", "gifts", "--space", "user"]);
    assert_eq!(user.data(["load", "tool", "team/hi"])["space"], "project");
    user.ok(["uninstall", "gifts"]);
}

#[test]
fn nothing_is_installed_without_consent_and_a_signer_is_named() {
    let (maker, user) = (Maker::new(), User::ready());
    let source = maker.make("1.0.0");
    let source = source.to_str().expect("text");
    for words in [&["install", source][..], &["install", source, "--yes"]] {
        let refusal = user.refused(words, 4, "RYE0615");
        let hint = text(&refusal["hints"][1]);
        assert!(hint.contains(&format!("--trust {} --yes", maker.fingerprint())), "{refusal}");
        assert_eq!(refusal["data"]["signer"]["owner"], "tester");
        assert_eq!(refusal["data"]["files"].as_array().map(Vec::len), Some(4));
    }
    user.refused(["install", source, "--trust", &maker.fingerprint()], 5, "RYE0614");
    user.refused(["install", source, "--trust", &user.fingerprint(), "--yes"], 4, "RYE0615");
    user.refused(["install", source, "--trust", "x", "--yes"], 2, "RYE0104");
    user.ok(["install", source, "--trust", &maker.fingerprint(), "--yes"]);
    // The signer is known now, for this bundle.
    user.refused(["keys", "show", &maker.fingerprint()], 3, "RYE0416");
    user.ok(["uninstall", "gifts"]);
    user.refused(["install", source], 5, "RYE0614");
    user.ok(["install", source, "--yes"]);
    // What changes nothing needs no consent.
    assert_eq!(user.data(["install", source])["status"], "unchanged");
}

/// Runs `rye` at a terminal, giving one answer to each question; gives what was shown and the exit code.
fn at_a_terminal(user: &User, answers: &str, words: &[&str]) -> (String, i32) {
    const TERMINAL: &str = "
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
        .args(["-c", TERMINAL, answers, env!("CARGO_BIN_EXE_rye")])
        .args(words)
        .output()
        .expect("python3");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.is_empty(), "{errors}");
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1))
}

#[test]
fn at_a_terminal_the_signer_and_the_plan_are_asked_about() {
    let (maker, user) = (Maker::new(), User::ready());
    let source = maker.make("1.0.0");
    let source = source.to_str().expect("text");
    let before = brought(&user);
    let (shown, exit) = at_a_terminal(&user, "n", &["install", source]);
    assert!(exit == 4 && shown.contains(&maker.fingerprint()) && shown.contains("vouch"), "{shown}");
    let (shown, exit) = at_a_terminal(&user, "yn", &["install", source]);
    assert!(exit == 5 && shown.contains("install it?"), "{shown}");
    assert_eq!(brought(&user), before);
    let (shown, exit) = at_a_terminal(&user, "yy", &["install", source]);
    assert!(exit == 0 && shown.contains("installed"), "{shown}");
    assert_eq!(brought(&user), with_records(&FILES));
    // From now on the signer is known; naming the bundle is the consent to remove it.
    let (shown, exit) = at_a_terminal(&user, "", &["uninstall", "gifts"]);
    assert_eq!(exit, 0, "{shown}");
    let (shown, exit) = at_a_terminal(&user, "y", &["install", source]);
    assert_eq!(exit, 0, "{shown}");
}

#[test]
fn an_archive_can_be_judged_and_looked_into() {
    let (maker, user) = (Maker::new(), User::ready());
    for name in ["a.tar.zst", "a.zip"] {
        let archive = maker.make_as("1.0.0", name);
        let archive = archive.to_str().expect("text");
        let verified = user.data(["bundle", "verify", archive]);
        assert_eq!(
            (&verified["status"], &verified["path"]),
            (&json!("verified"), &json!(archive)),
            "{verified}"
        );
        assert_eq!(user.data(["bundle", "inspect", archive])["bundle"]["version"], "1.0.0");
    }
    user.refused(["bundle", "verify", user.public_key().to_str().expect("text")], 4, "RYE0611");
}

#[test]
fn what_was_changed_here_does_not_look_like_something_new_that_is_asked_for() {
    let (maker, user) = (Maker::new(), User::ready());
    let (first, second) = versions(&maker);
    install(&user, &first, &maker, &[]);
    user.write("tools/team/hi.py", "# mine\n");
    let shown = user.data(["install", second.to_str().expect("text"), "--dry-run"]);
    let expected = "executor rye/core/runtimes/python/function";
    assert_eq!(shown["capabilities_added"], json!([format!("{expected} (tool:team/new)")]), "{shown}");
    assert_eq!(shown["capabilities_removed"], json!([format!("{expected} (tool:team/ho)")]), "{shown}");
}

#[test]
fn a_key_that_is_trusted_everywhere_needs_no_naming() {
    let (maker, user) = (Maker::new(), User::ready());
    let source = maker.make("1.0.0");
    user.ok(["keys".as_ref(), "trust".as_ref(), maker.user.identity().as_os_str()]);
    let source = source.to_str().expect("text");
    user.refused(["install", source], 5, "RYE0614");
    user.ok(["install", source, "--yes"]);
}

#[test]
fn a_dry_run_shows_everything_and_changes_nothing() {
    let (maker, user) = (Maker::new(), User::ready());
    let source = maker.make("1.0.0");
    let source = source.to_str().expect("text");
    let before = user.snapshot();
    let shown = user.data(["install", source, "--dry-run"]);
    assert_eq!(
        (&shown["bundle_id"], &shown["counts"]["added"], &shown["signer"]["needs_trust"], &shown["items"]),
        (&json!("gifts"), &json!(4), &json!(true), &json!({"knowledge": 1, "tool": 3})),
        "{shown}"
    );
    let asked = shown["capabilities_added"].to_string();
    assert!(asked.contains("rye/core/runtimes/python/function"), "{shown}");
    let human = user.ok(["install", source, "--dry-run"]);
    for part in ["gifts 1.0.0 into project space", ".ai/tools/team/hi.py", &maker.fingerprint(), "asks for"] {
        assert!(human.stdout.contains(part), "{part}: {human}");
    }
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

/// Two versions: one tool changed, one came, one went.
fn versions(maker: &Maker) -> (PathBuf, PathBuf) {
    let first = maker.make("1.0.0");
    maker.tool("hi", "2");
    maker.tool("new", "2");
    fs::remove_file(maker.user.project().join(".ai/tools/team/ho.py")).expect("removed");
    (first, maker.make("2.0.0"))
}

#[test]
fn an_upgrade_replaces_adds_and_removes_and_a_rollback_returns() {
    let (maker, user) = (Maker::new(), User::ready());
    let (first, second) = versions(&maker);
    install(&user, &first, &maker, &[]);
    let after_first = names(&user.project().join(".ai/tools"));
    let shown = user.data(["install", second.to_str().expect("text"), "--dry-run"]);
    assert_eq!(shown["previous_version"], "1.0.0");
    let done = user.data(["install", second.to_str().expect("text"), "--yes"]);
    assert_eq!(
        (&done["status"], &done["previous_version"], &done["counts"]),
        (
            &json!("upgraded"),
            &json!("1.0.0"),
            &json!({"added": 1, "replaced": 1, "unchanged": 2, "removed": 1, "kept": 0, "overwritten": 0})
        ),
        "{done}"
    );
    assert_eq!(user.data(["execute", "team/hi"]), json!(2));
    user.refused(["load", "tool", "team/ho"], 3, "RYE0201");
    assert_eq!(user.data(["bundle", "verify", "gifts"])["version"], "2.0.0");

    let back = user.data(["bundle", "rollback", "gifts"]);
    assert_eq!((&back["status"], &back["version"]), (&json!("rolled back"), &json!("1.0.0")), "{back}");
    assert_eq!(user.data(["load", "tool", "team/hi"])["signer"]["fingerprint"], maker.fingerprint());
    assert_eq!(user.data(["bundle", "verify", "gifts"])["status"], "verified");
    assert_eq!(names(&user.project().join(".ai/tools")), after_first);
    user.refused(["bundle", "rollback", "gifts"], 3, "RYE0617");
    user.refused(["bundle", "rollback", "other"], 3, "RYE0601");
}

#[test]
fn agreeing_to_an_upgrade_pins_the_new_tools_for_the_user() {
    let (maker, user) = (Maker::new(), User::ready());
    let (first, second) = versions(&maker);
    install(&user, &first, &maker, &[]);
    assert_eq!(user.data(["execute", "team/hi"]), json!(1));
    let done = install(&user, &second, &maker, &[]);
    assert_eq!(done["lockfiles"].as_array().map(Vec::len), Some(1), "{done}");
    assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(2));
    let back = user.data(["bundle", "rollback", "gifts"]);
    assert_eq!(back["lockfiles"].as_array().map(Vec::len), Some(1), "{back}");
    assert_eq!(user.data(["execute", "team/hi", "--locked"]), json!(1));
}

#[test]
fn what_was_changed_here_is_kept_or_replaced_as_told() {
    let (maker, user) = (Maker::new(), User::ready());
    let (first, second) = versions(&maker);
    install(&user, &first, &maker, &[]);
    // Both are changed here; the second version changes one and drops the other.
    for name in ["hi", "ho"] {
        user.write(&format!("tools/team/{name}.py"), rye_test::tool("team", "Mine"));
        user.ok(["sign", "tool", &format!("team/{name}")]);
    }
    let mine = [user.read("tools/team/hi.py"), user.read("tools/team/ho.py")];
    let second = second.to_str().expect("text");
    let shown = user.data(["install", second, "--dry-run", "--theirs"]);
    assert_eq!(shown["counts"]["overwritten"], 2, "{shown}");
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
    assert_eq!(brought(&user), ["tools/team/ho.py"]);
}

#[test]
fn uninstalling_keeps_what_was_changed_unless_told() {
    let (maker, user) = (Maker::new(), User::ready());
    let source = maker.make("1.0.0");
    for force in [false, true] {
        install(&user, &source, &maker, &["--force"]);
        user.write("tools/team/hi.py", "# mine\n");
        let words: &[&str] = if force { &["uninstall", "gifts", "--force"] } else { &["uninstall", "gifts"] };
        let gone = user.data(words);
        if force {
            assert_eq!(brought(&user), Vec::<String>::new());
            let backup = Path::new(&text(&gone["backups"])).join(".ai/tools/team/hi.py");
            assert_eq!(fs::read(backup).expect("a backup"), b"# mine\n");
        } else {
            assert_eq!(gone["kept"], json!([".ai/tools/team/hi.py"]));
            assert_eq!(brought(&user), ["tools/team/hi.py"]);
        }
    }
}

#[test]
fn a_file_nobody_installed_is_not_overwritten_unless_told() {
    let (maker, user) = (Maker::new(), User::ready());
    let source = maker.make("1.0.0");
    let mine = user.signed_tool("hi", "Mine");
    let bytes = fs::read(&mine).expect("read");
    let fingerprint = maker.fingerprint();
    let words = ["install", source.to_str().expect("text"), "--trust", &fingerprint, "--yes"];
    let refusal = user.refused(words, 5, "RYE0613");
    assert_eq!(refusal["paths"], json!([".ai/tools/team/hi.py"]), "{refusal}");
    assert_eq!(fs::read(&mine).expect("read"), bytes);
    let done = user.data(words.iter().chain(&["--force"]));
    let backup = Path::new(&text(&done["backups"])).join(".ai/tools/team/hi.py");
    assert_eq!(fs::read(backup).expect("a backup"), bytes);
    assert_eq!(user.data(["execute", "team/hi"]), json!(1));
}

#[test]
fn two_bundles_do_not_share_a_file() {
    let (maker, user) = (Maker::new(), User::ready());
    let source = maker.make("1.0.0");
    install(&user, &source, &maker, &[]);
    let out = maker.user.world.path().join("presents");
    let out = out.to_str().expect("text");
    maker.user.ok(["bundle", "create", "presents", "--version", "1.0.0", "--category", "team", "--out", out]);
    for more in [&[][..], &["--force"]] {
        let fingerprint = maker.fingerprint();
        let words = ["install", out, "--trust", &fingerprint, "--yes"];
        let refusal = user.refused(words.iter().chain(more), 5, "RYE0613");
        assert_eq!(refusal["owner"], "gifts", "{refusal}");
        assert!(text(&refusal["hints"][0]).contains("rye uninstall gifts"), "{refusal}");
    }
}

#[test]
fn an_older_version_and_another_signer_are_refused_until_accepted() {
    let (maker, user) = (Maker::new(), User::ready());
    let (first, second) = versions(&maker);
    install(&user, &second, &maker, &[]);
    let first = first.to_str().expect("text");
    let refusal = user.refused(["install", first, "--yes"], 4, "RYE0616");
    assert!(text(&refusal["hints"][1]).contains("--allow-downgrade"), "{refusal}");
    assert_eq!(user.data(["install", first, "--yes", "--allow-downgrade"])["status"], "downgraded");

    let other = Maker::new();
    let theirs = other.make("3.0.0");
    let theirs = theirs.to_str().expect("text");
    let refusal = user.refused(["install", theirs, "--yes"], 4, "RYE0616");
    assert!(text(&refusal["hints"][1]).contains(&format!("--trust {}", other.fingerprint())), "{refusal}");
    install(&user, Path::new(theirs), &other, &[]);
    assert_eq!(user.data(["load", "tool", "team/hi"])["signer"]["fingerprint"], other.fingerprint());
}

#[test]
fn only_a_few_earlier_versions_are_kept() {
    let (maker, user) = (Maker::new(), User::ready());
    for version in 1..=6 {
        maker.tool("hi", &version.to_string());
        install(&user, &maker.make(&format!("{version}.0.0")), &maker, &[]);
    }
    for version in [5, 4, 3] {
        let back = user.data(["bundle", "rollback", "gifts"]);
        assert_eq!(back["version"], format!("{version}.0.0"), "{back}");
        assert_eq!(user.data(["execute", "team/hi", "--frozen"]), json!(version));
    }
    user.refused(["bundle", "rollback", "gifts"], 3, "RYE0617");
    user.ok(["uninstall", "gifts"]);
    let left: Vec<_> =
        snapshot(&user.home().join(".ai/installs")).into_keys().filter(|path| path.is_file()).collect();
    assert!(left.iter().all(|path| path.ends_with("lock")), "{left:?}");
}

#[test]
fn a_rollback_keeps_what_was_changed_here() {
    let (maker, user) = (Maker::new(), User::ready());
    let (first, second) = versions(&maker);
    install(&user, &first, &maker, &[]);
    install(&user, &second, &maker, &[]);
    user.write("tools/team/hi.py", "# mine\n");
    let back = user.data(["bundle", "rollback", "gifts"]);
    assert_eq!(back["kept"], json!([".ai/tools/team/hi.py"]), "{back}");
    assert_eq!(user.read("tools/team/hi.py"), b"# mine\n");
    user.ok(["load", "tool", "team/ho"]);
}

#[test]
fn an_item_that_hides_another_is_said() {
    let maker = Maker::new();
    let source = rye_test::tool("rye/file-system", "Not what you think");
    maker.user.write("tools/rye/file-system/read.py", source);
    maker.user.ok(["sign", "tool", "rye/file-system/read"]);
    let out = maker.user.world.path().join("sly");
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
    let user = User::ready();
    let shown = user.data(["install", out, "--dry-run"]);
    assert_eq!(shown["hides"], json!(["tool:rye/file-system/read of system:ryeos"]), "{shown}");
}

#[test]
fn what_is_no_bundle_is_refused_by_name() {
    let (maker, user) = (Maker::new(), User::ready());
    let world = user.world.path();
    user.refused(["install", "nowhere"], 3, "RYE0202");
    fs::create_dir(world.join("empty")).expect("a folder");
    user.refused(["install".as_ref(), world.join("empty").as_os_str()], 3, "RYE0604");
    user.refused(["install".as_ref(), maker.user.project().as_os_str()], 3, "RYE0604");
    fs::write(world.join("text.zip"), "not a zip").expect("written");
    user.refused(["install".as_ref(), world.join("text.zip").as_os_str()], 4, "RYE0611");
    // Outside any project there is only user space.
    let source = maker.make("1.0.0");
    let outside = world.join("outside");
    fs::create_dir(&outside).expect("a folder");
    let mut command = user.command();
    command.current_dir(&outside).arg("--json").arg("install").arg(&source);
    user.refused_by(&mut command, 3, "RYE0202");
}

#[test]
fn a_user_without_a_key_installs_nothing() {
    let maker = Maker::new();
    let source = maker.make("1.0.0");
    let user = User::new();
    fs::create_dir_all(user.project().join(".ai")).expect("a folder");
    let fingerprint = maker.fingerprint();
    user.refused(["install", source.to_str().expect("text"), "--trust", &fingerprint, "--yes"], 4, "RYE0411");
}

#[test]
fn a_copied_project_does_not_bring_its_bundles_trust_along() {
    let (maker, user) = (Maker::new(), User::ready());
    install(&user, &maker.make("1.0.0"), &maker, &[]);
    let other = User::ready();
    copy_tree(&user.project().join(".ai/bundles"), &other.project().join(".ai/bundles"));
    copy_tree(&user.project().join(".ai/tools/team"), &other.project().join(".ai/tools/team"));
    other.refused(["load", "tool", "team/hi"], 4, "RYE0404");
    // Who signed it came along too, so that one command approves it.
    let approved = other.data(["bundle", "trust", "gifts"]);
    assert_eq!(approved["fingerprint"], maker.fingerprint(), "{approved}");
    assert_eq!(other.data(["execute", "team/hi"]), json!(1));
}
