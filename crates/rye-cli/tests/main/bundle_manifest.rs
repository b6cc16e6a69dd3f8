//! A project's manifest of bundles: `rye add`, `rye remove`, `rye sync`, `rye outdated` and `rye bundle upgrade`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::install::BundleAuthor;
use crate::support::{Run, copy_file, copy_tree, differences, snapshot, text};
use crate::team::Member;

const ARCHIVE: &str = "vendor/gifts.tar.zst";
const MANIFEST: &str = ".ai/bundles.toml";
const LOCK: &str = ".ai/bundles.lock";

/// A member with an empty project of their own, in a repository that leaves installed bundles out.
pub fn project_member(name: &'static str) -> Member {
    let member = Member::new(name);
    member.ok(["init"]);
    write(&member, ".gitignore", "/.ai/bundles/\n/.ai/tools/team/\n/.ai/knowledge/team/\n");
    member.git(["init", "--quiet", "--initial-branch", "main"]);
    member.commit();
    member
}

pub fn write(member: &Member, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = member.user.project().join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    fs::write(&path, content).expect("written");
    path
}

pub fn read(member: &Member, path: &str) -> String {
    fs::read_to_string(member.user.project().join(path)).expect("a file")
}

/// Puts an archive of this version into the project.
fn vendor(member: &Member, author: &BundleAuthor, version: &str) {
    let archive = author.create_as(version, &format!("{version}.tar.zst"));
    let target = member.user.project().join(ARCHIVE);
    fs::create_dir_all(target.parent().expect("a folder")).expect("folders");
    copy_file(&archive, &target);
}

/// Adds a source as a member who knows its maker.
pub fn add(member: &Member, author: &BundleAuthor, source: &str, more: &[&str]) -> Value {
    let fingerprint = author.fingerprint();
    let words = ["add", source, "--signer", &fingerprint, "--yes"];
    member.data(words.iter().chain(more))
}

/// A member whose project asks for version 1.0.0 of an archive in it, committed.
fn founder_with_archive() -> (Member, BundleAuthor) {
    let (alice, author) = (project_member("alice"), BundleAuthor::new());
    vendor(&alice, &author, "1.0.0");
    add(&alice, &author, ARCHIVE, &[]);
    alice.commit();
    (alice, author)
}

/// Runs the command, which must be refused like this and change neither the project nor what was approved.
fn refuse(member: &Member, words: &[&str], exit: i32, code: &str) -> Value {
    let config = member.user.home().join(".ai/config");
    let take = || (snapshot(&member.user.project()), config.exists().then(|| snapshot(&config)));
    let before = take();
    let run = member.run(words.iter().chain(&["--json"]));
    let after = take();
    assert_eq!(differences(&before.0, &after.0), Vec::<String>::new(), "{run}");
    assert_eq!(before.1, after.1, "{run}");
    run.error(exit, code)
}

fn assert_unchanged(member: &Member) {
    let before = snapshot(&member.user.project());
    let done = member.data(["sync"]);
    assert_eq!(done["status"], "unchanged", "{done}");
    assert_eq!(differences(&before, &snapshot(&member.user.project())), Vec::<String>::new());
    let human = member.ok(["sync"]);
    let expected = if done["unchanged"] == json!([]) { "asks for no bundles" } else { "up to date" };
    assert!(human.stdout.contains(expected), "{human}");
}

#[test]
fn install_of_a_managed_bundle_warns() {
    let (alice, author) = founder_with_archive();
    vendor(&alice, &author, "1.1.0");
    let installed = alice.ok(["install", ARCHIVE, "--yes"]);
    assert!(installed.stderr.contains("install it with rye add"), "{installed}");
}

#[test]
fn colleague_clones_joins_syncs_and_runs() {
    let (alice, author) = founder_with_archive();
    let manifest = read(&alice, MANIFEST);
    assert!(manifest.contains("[bundles.gifts]\nsource = \"vendor/gifts.tar.zst\"\n"), "{manifest}");
    assert!(manifest.contains(&format!("signer = \"{}\"", author.fingerprint())), "{manifest}");
    assert_eq!(alice.execute("hi").exit, 0);

    let bob = Member::clone_of(&alice, "bob");
    assert!(!bob.user.project().join(".ai/tools/team/hi.py").exists(), "the bundle is not committed");
    let missing = bob.run(["execute", "team/hi", "--json"]).error(3, "RYE0201");
    assert!(missing["hints"].to_string().contains("rye join && rye sync"), "{missing}");
    let refused = refuse(&bob, &["sync"], 5, "RYE0905");
    assert!(refused["hints"].to_string().contains("rye join"), "{refused}");
    refuse(&bob, &["outdated"], 5, "RYE0905");
    let shown = bob.run(["join"]);
    for part in ["bundle", "gifts", "1.0.0", "not installed yet", ARCHIVE, &author.fingerprint()] {
        assert!(shown.stderr.contains(part), "{part}: {shown}");
    }
    let joined = bob.ok(["join", "--yes"]);
    assert!(joined.stderr.contains("rye sync"), "{joined}");
    let synced = bob.data(["sync"]);
    assert_eq!((&synced["status"], &synced["lock_changed"]), (&json!("changed"), &json!(false)), "{synced}");
    assert_unchanged(&bob);
    assert_eq!(bob.git(["status", "--porcelain"]), "");
    bob.ok(["sync", "--locked"]);
    assert_eq!(bob.execute("hi").exit, 0);
}

#[test]
fn signers_must_be_trusted_by_each_member() {
    let (alice, author) = founder_with_archive();
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes", "--only", &alice.fingerprint()]);
    let refused = refuse(&bob, &["sync"], 4, "RYE0615");
    assert!(text(&refused["error"]).contains(&author.fingerprint()), "{refused}");
    assert!(refused["hints"].to_string().contains("rye join"), "{refused}");
    let (carol, stranger) = (project_member("carol"), BundleAuthor::new());
    vendor(&carol, &stranger, "1.0.0");
    refuse(&carol, &["add", ARCHIVE, "--yes"], 4, "RYE0615");
    refuse(&carol, &["add", ARCHIVE, "--signer", &stranger.fingerprint()], 5, "RYE0614");
    refuse(&carol, &["add", ARCHIVE, "--signer", &author.fingerprint(), "--yes"], 4, "RYE0615");
}

#[test]
fn replaced_archive_is_refused_by_name() {
    let (alice, author) = founder_with_archive();
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    // The same maker, the same version, other content.
    author.write_tool("hi", "2");
    let archive = author.create_as("1.0.0", "again.tar.zst");
    copy_file(&archive, &bob.user.project().join(ARCHIVE));
    let refused = refuse(&bob, &["sync"], 4, "RYE0633");
    assert!(text(&refused["error"]).contains("`gifts`"), "{refused}");
    // Another maker.
    let mallory = BundleAuthor::new();
    let archive = mallory.create_as("1.0.0", "theirs.tar.zst");
    copy_file(&archive, &bob.user.project().join(ARCHIVE));
    let refused = refuse(&bob, &["sync"], 4, "RYE0616");
    assert!(text(&refused["error"]).contains(&mallory.fingerprint()), "{refused}");
    // Not an archive any more.
    let mut bytes = fs::read(&archive).expect("an archive");
    bytes.truncate(bytes.len() / 2);
    fs::write(bob.user.project().join(ARCHIVE), bytes).expect("written");
    refuse(&bob, &["sync"], 4, "RYE0611");
    assert!(!bob.user.project().join(".ai/tools/team").exists());
}

#[test]
fn changed_signer_in_the_manifest_is_refused() {
    let (alice, author) = founder_with_archive();
    let other = BundleAuthor::new();
    let manifest = read(&alice, MANIFEST).replace(&author.fingerprint(), &other.fingerprint());
    write(&alice, MANIFEST, manifest);
    refuse(&alice, &["sync", "--locked"], 8, "RYE0632");
    let refused = refuse(&alice, &["sync", "--yes"], 4, "RYE0633");
    assert!(text(&refused["error"]).contains("the manifest names"), "{refused}");
}

#[test]
fn locked_sync_refuses_a_stale_lock() {
    let (alice, author) = founder_with_archive();
    let (manifest, lock) = (read(&alice, MANIFEST), read(&alice, LOCK));
    write(&alice, MANIFEST, manifest.replace("signer", "version = \"^1.0\"\nsigner"));
    let refused = refuse(&alice, &["sync", "--locked"], 8, "RYE0632");
    assert!(text(&refused["error"]).contains("the range of `gifts` changed"), "{refused}");
    // The locked version is still in the range: only the lock is written.
    let done = alice.data(["sync"]);
    assert_eq!((&done["lock_changed"], &done["installed"]), (&json!(true), &json!([])), "{done}");
    alice.ok(["sync", "--locked"]);
    write(&alice, MANIFEST, manifest.replace("signer", "version = \"^2.0\"\nsigner"));
    refuse(&alice, &["sync", "--yes"], 3, "RYE0635");
    write(&alice, MANIFEST, &manifest);
    fs::remove_file(alice.user.project().join(LOCK)).expect("removed");
    let refused = refuse(&alice, &["sync", "--locked"], 8, "RYE0632");
    assert!(text(&refused["error"]).contains("`gifts` is not locked"), "{refused}");
    alice.ok(["sync", "--yes"]);
    assert_eq!(read(&alice, LOCK), lock, "the same is resolved again");
    // A bundle that nothing asks for.
    write(&alice, MANIFEST, "");
    let refused = refuse(&alice, &["sync", "--locked"], 8, "RYE0632");
    assert!(text(&refused["error"]).contains("not asked for"), "{refused}");
    let done = alice.data(["sync"]);
    assert_eq!(done["removed"][0]["bundle_id"], "gifts", "{done}");
    assert!(!alice.user.project().join(".ai/tools/team").exists());
    write(&alice, MANIFEST, "");
    vendor(&alice, &author, "1.1.0");
    write(&alice, MANIFEST, manifest);
    refuse(&alice, &["sync"], 5, "RYE0614");
    alice.ok(["sync", "--yes"]);
    assert!(read(&alice, LOCK).contains("version = \"1.1.0\""));
}

#[test]
fn removed_bundles_leave_edited_files() {
    let (alice, _) = founder_with_archive();
    let manifest = read(&alice, MANIFEST);
    write(&alice, MANIFEST, format!("# Ours.\n{manifest}"));
    let edited = write(&alice, ".ai/tools/team/hi.py", "# mine\n");
    assert_eq!(alice.data(["sync"])["unchanged"][0]["kept"], json!([".ai/tools/team/hi.py"]));
    refuse(&alice, &["remove", "other"], 3, "RYE0601");
    let done = alice.ok(["remove", "gifts"]);
    assert!(done.stderr.contains("kept") && done.stderr.contains(".ai/tools/team/hi.py"), "{done}");
    assert!(edited.exists() && !alice.user.project().join(".ai/tools/team/ho.py").exists());
    assert!(!alice.user.project().join(".ai/bundles").exists());
    let left = read(&alice, MANIFEST);
    assert!(left.starts_with("# Ours.") && !left.contains("gifts"), "{left}");
    assert!(!read(&alice, LOCK).contains("gifts"));
    let done = alice.ok(["sync"]);
    assert!(done.stdout.contains("asks for no bundles"), "{done}");
    let outside = Member::new("carol");
    let refused = refuse(&outside, &["sync"], 3, "RYE0202");
    assert!(refused["hints"].to_string().contains("rye init"), "{refused}");
}

#[test]
fn pulled_changes_move_and_remove_bundles() {
    let (alice, author) = founder_with_archive();
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    bob.ok(["sync"]);
    author.write_tool("hi", "2");
    vendor(&alice, &author, "1.1.0");
    let outdated = alice.data(["outdated"]);
    assert_eq!(
        (&outdated["bundles"][0]["installed"], &outdated["bundles"][0]["wanted"]),
        (&json!("1.0.0"), &json!("1.1.0")),
        "{outdated}"
    );
    refuse(&alice, &["bundle", "upgrade"], 5, "RYE0614");
    alice.ok(["bundle", "upgrade", "--yes"]);
    alice.commit();
    bob.pull(&alice);
    let moved = bob.data(["sync", "--locked"]);
    assert_eq!(moved["installed"][0]["status"], "upgraded", "{moved}");
    alice.ok(["remove", "gifts"]);
    alice.commit();
    bob.pull(&alice);
    let removed = bob.data(["sync"]);
    assert_eq!(removed["removed"][0]["bundle_id"], "gifts", "{removed}");
    // What was installed without the manifest stays.
    let fingerprint = author.fingerprint();
    let own = author.create_as("2.0.0", "own.tar.zst");
    bob.ok(["install", own.to_str().expect("text"), "--trust", &fingerprint, "--yes"]);
    assert_unchanged(&bob);
    assert!(bob.user.project().join(".ai/tools/team/hi.py").exists());
}

#[test]
fn failed_adds_change_nothing() {
    let (alice, author) = (project_member("alice"), BundleAuthor::new());
    author.write_tool("large", &format!("\"{}\"", "x".repeat(40_000)));
    vendor(&alice, &author, "1.0.0");
    let fingerprint = author.fingerprint();
    let line = format!("add {ARCHIVE} --signer {fingerprint} --yes --json");
    let before = snapshot(&alice.user.project());
    for blocks in [0, 4, 16] {
        let script = format!("ulimit -f {blocks}; exec {} {line}", env!("CARGO_BIN_EXE_rye"));
        let output = alice.user.program("bash").arg("-c").arg(script).output().expect("bash");
        let run = Run::from_output(&output);
        assert_ne!(run.exit, 0, "{run}");
        assert_eq!(differences(&before, &snapshot(&alice.user.project())), Vec::<String>::new(), "{run}");
    }
    write(&alice, ".ai/tools/team/hi.py", "# mine\n");
    refuse(&alice, &["add", ARCHIVE, "--signer", &fingerprint, "--yes"], 5, "RYE0613");
    add(&alice, &author, ARCHIVE, &["--force"]);
    assert_unchanged(&alice);
}

#[test]
fn hostile_manifests_are_refused_by_line() {
    let (alice, _) = founder_with_archive();
    let signer = "signer = \"5423d3b7c06f7594\"\n";
    let digest = format!("sha256 = \"{}\"\n", "a".repeat(64));
    for (entry, line) in [
        ("source = \"../other\"\n".to_owned(), 2),
        ("source = \"/etc\"\n".to_owned(), 2),
        ("source = \"--upload-pack=touch x\"\n".to_owned(), 2),
        ("source = \"git+ext::sh -c 'touch x'\"\n".to_owned(), 2),
        ("source = \"git+ssh://-oProxyCommand=touch/x\"\n".to_owned(), 2),
        ("source = \"git+https://a:b@example.org/x\"\n".to_owned(), 2),
        ("source = \"https://example.org/a.tar.zst\"\n".to_owned(), 2),
        (format!("{digest}source = \"http://example.org/a.tar.zst\"\n"), 3),
        ("source = \"git+https://example.org/a\"\nrev = \"--all\"\n".to_owned(), 2),
        ("source = \"git+https://example.org/a\"\npath = \"../x\"\n".to_owned(), 2),
        ("source = \"vendor/a\"\nhooks = \"touch x\"\n".to_owned(), 3),
    ] {
        write(&alice, MANIFEST, format!("[bundles.evil]\n{entry}{signer}"));
        for words in [&["sync", "--yes"][..], &["outdated"], &["bundle", "upgrade", "--yes"], &["join"]] {
            let refused = refuse(&alice, words, 9, "RYE0631");
            assert_eq!(refused["line"], line, "{entry}: {refused}");
        }
    }
    write(&alice, MANIFEST, "#".repeat(2 << 20));
    refuse(&alice, &["sync"], 9, "RYE0631");
    fs::remove_file(alice.user.project().join(MANIFEST)).expect("removed");
    std::os::unix::fs::symlink("/etc/hostname", alice.user.project().join(MANIFEST)).expect("a link");
    refuse(&alice, &["sync"], 9, "RYE0631");
    fs::remove_file(alice.user.project().join(MANIFEST)).expect("removed");
    let outside = alice.user.context.path().join("outside");
    fs::create_dir_all(outside.join(".ai")).expect("a folder");
    std::os::unix::fs::symlink(&outside, alice.user.project().join("inside")).expect("a link");
    write(&alice, MANIFEST, format!("[bundles.evil]\nsource = \"inside\"\n{signer}"));
    refuse(&alice, &["sync", "--yes"], 4, "RYE0205");
    refuse(&alice, &["add", "inside", "--yes"], 2, "RYE0104");
    for source in ["-x", "ext::sh", "git+git://example.org/a", "https://example.org/a.tar.zst"] {
        let refused = refuse(&alice, &["add", source, "--yes"], 2, "RYE0104");
        assert!(refused["hints"].as_array().is_some_and(|hints| !hints.is_empty()), "{refused}");
    }
}

#[test]
fn ci_compares_manifest_lock_and_project() {
    let (alice, _) = founder_with_archive();
    alice.ok(["lock", "update", "--all", "--scope", "project"]);
    alice.commit();
    let check = |report: &Value| {
        let checks = report["checks"].as_array().expect("checks").clone();
        checks.into_iter().find(|check| check["check"] == "bundles").expect("a check")
    };
    let passed = alice.run(["ci", "--json"]).json();
    assert_eq!(check(&passed["data"])["summary"], "1 bundle as locked", "{passed}");
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let failed = bob.run(["ci", "--json"]).json();
    assert!(check(&failed["data"])["problems"].to_string().contains("`gifts` is not installed"), "{failed}");
    bob.ok(["sync", "--locked"]);
    assert_eq!(check(&bob.run(["ci", "--json"]).json()["data"])["status"], "passed");
    write(&bob, ".ai/tools/team/data.json", "{}");
    let failed = bob.run(["ci", "--json"]).json();
    let problems = check(&failed["data"]);
    assert!(problems["problems"].to_string().contains("was changed here"), "{failed}");
    assert_eq!(problems["code"], "RYE0632", "{failed}");
    let founder = project_member("carol");
    assert_eq!(check(&founder.run(["ci", "--json"]).json()["data"])["status"], "empty");
}

/// Commits a version of the bundle to a repository, and tags it.
pub fn publish_in_git(author: &BundleAuthor, repository: &Path, version: &str, tag: Option<&str>) {
    let made = author.create_as(
        version,
        &format!("made-{}", fs::read_dir(author.user.context.path()).expect("a folder").count()),
    );
    let git = |words: &[&str]| {
        let mut command = author.user.program("git");
        command.current_dir(repository).env("GIT_CONFIG_NOSYSTEM", "1");
        command.args(["-c", "user.name=a", "-c", "user.email=a@example.org"]).args(words);
        let output = command.output().expect("git");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    if !repository.exists() {
        fs::create_dir_all(repository).expect("a folder");
        git(&["init", "--quiet", "--initial-branch", "main"]);
    }
    let target = repository.join("bundle");
    if target.exists() {
        fs::remove_dir_all(&target).expect("removed");
    }
    copy_tree(&made, &target);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", version]);
    if let Some(tag) = tag {
        git(&["tag", "--force", "--annotate", "--message", tag, tag]);
    }
}

#[test]
fn locked_bundle_that_hides_items_needs_a_yes() {
    let (alice, _) = founder_with_archive();
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let own = bob.user.home().join(".ai/tools/team/hi.py");
    fs::create_dir_all(own.parent().expect("a folder")).expect("folders");
    fs::write(&own, rye_test::tool("team", "Mine")).expect("written");
    bob.ok(["sign", "tool", "team/hi", "--space", "user"]);
    let refused = refuse(&bob, &["sync"], 5, "RYE0614");
    assert!(refused["data"]["plans"][0]["hides"].to_string().contains("team/hi"), "{refused}");
    bob.ok(["sync", "--yes"]);
}
