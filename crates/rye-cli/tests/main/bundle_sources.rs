//! Sources of a project's manifest that are elsewhere: git repositories, registries, archives behind URLs.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lillux::Digest;
use serde_json::json;

use crate::bundle_manifest::{add, project_member, publish_in_git, read, write};
use crate::install::BundleAuthor;
use crate::registries::fake::{FakeRegistry, response};
use crate::support::text;
use crate::team::Member;

const MANIFEST: &str = ".ai/bundles.toml";
const LOCK: &str = ".ai/bundles.lock";

/// The value of a key in the lock.
fn locked(member: &Member, key: &str) -> String {
    let lock = read(member, LOCK);
    let line =
        lock.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap_or_else(|| panic!("{lock}"));
    line.split('"').nth(1).expect("a text").to_owned()
}

#[test]
fn git_branch_is_locked_to_a_commit() {
    let (alice, author) = (project_member("alice"), BundleAuthor::new());
    let repository = author.user.context.path().join("repository");
    publish_in_git(&author, &repository, "1.0.0", None);
    let source = format!("git+file://{}", repository.display());
    add(&alice, &author, &source, &["--rev", "main", "--path", "bundle"]);
    let commit = locked(&alice, "commit");
    assert_eq!(commit.len(), 40, "{commit}");
    alice.commit();

    author.write_tool("hi", "2");
    publish_in_git(&author, &repository, "1.1.0", None);
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    let synced = bob.data(["sync", "--locked"]);
    assert_eq!(synced["installed"][0]["version"], "1.0.0", "the commit of the lock: {synced}");
    assert_eq!(bob.execute("hi").exit, 0);
    let row = &alice.data(["bundle", "outdated"])["bundles"][0];
    assert_eq!((&row["installed"], &row["wanted"]), (&json!("1.0.0"), &json!("1.1.0")), "{row}");
    let before = read(&alice, LOCK);
    alice.ok(["bundle", "upgrade", "--dry-run"]);
    assert_eq!(read(&alice, LOCK), before);
    let done = alice.data(["bundle", "upgrade", "gifts", "--yes"]);
    assert_eq!(done["installed"][0]["version"], "1.1.0", "{done}");
    assert_ne!(locked(&alice, "commit"), commit);
    assert_eq!(alice.data(["bundle", "upgrade", "--yes"])["status"], "unchanged");
}

#[test]
fn git_version_tags_are_chosen_by_range() {
    let (alice, author) = (project_member("alice"), BundleAuthor::new());
    let repository = author.user.context.path().join("repository");
    for (version, result) in [("1.0.0", "1"), ("1.1.0", "2"), ("2.0.0", "3")] {
        author.write_tool("hi", result);
        publish_in_git(&author, &repository, version, Some(&format!("v{version}")));
    }
    let source = format!("git+file://{}", repository.display());
    let done = add(&alice, &author, &source, &["--path", "bundle", "--version", "^1.0"]);
    assert_eq!(done["installed"][0]["version"], "1.1.0", "{done}");
    let row = &alice.data(["outdated"])["bundles"][0];
    assert_eq!((&row["wanted"], &row["latest"]), (&json!("1.1.0"), &json!("2.0.0")), "{row}");
    assert_eq!(alice.data(["bundle", "upgrade", "--yes"])["status"], "unchanged");
    // The tag is moved to other content of the same version.
    author.write_tool("hi", "4");
    publish_in_git(&author, &repository, "1.1.0", Some("v1.1.0"));
    let refused = alice.assert_refused(["bundle", "upgrade", "--yes"], 4, "RYE0633");
    assert!(refused["hints"].to_string().contains("its tag was moved"), "{refused}");
    alice.ok(["sync", "--locked"]);
    alice.assert_refused(["add", &source, "--path", "bundle", "--version", "^3"], 3, "RYE0635");
    alice.assert_refused(["add", &source, "--path", "bundle", "--rev", "none"], 3, "RYE0635");
    alice.assert_refused(["add", &source, "--path", "elsewhere"], 3, "RYE0604");
    alice.assert_refused(["add", "git+file:///nowhere", "--yes"], 1, "RYE0634");
}

#[test]
fn git_runs_nothing_of_a_repository() {
    let (alice, author) = (project_member("alice"), BundleAuthor::new());
    let repository = author.user.context.path().join("repository");
    publish_in_git(&author, &repository, "1.0.0", None);
    let marker = alice.user.context.path().join("ran");
    let script = format!("#!/bin/sh\ntouch {}\n", marker.display());
    let program = alice.user.context.write("home/evil.sh", &script);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("mode");
    let program = program.display();
    // Hooks, filters and helpers of the user's own settings and of the repository's.
    let settings = format!(
        "[core]\n\thooksPath = {0}\n\tfsmonitor = {1}\n[filter \"x\"]\n\tsmudge = {1}\n\tclean = {1}\n\tprocess = {1}\n[protocol \"ext\"]\n\tallow = always\n",
        alice.user.home().join("hooks").display(),
        program
    );
    alice.user.context.write("home/.gitconfig", &settings);
    for hook in ["post-checkout", "reference-transaction", "post-merge"] {
        let path = alice.user.context.write(&format!("home/hooks/{hook}"), &script);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("mode");
    }
    let config = repository.join(".git/config");
    let own = fs::read_to_string(&config).expect("settings");
    fs::write(&config, format!("{own}[uploadpack]\n\tpackObjectsHook = {program}\n")).expect("written");
    fs::write(repository.join("bundle/.ai/.gitattributes"), "* filter=x\n").expect("written");
    fs::write(repository.join(".gitattributes"), "* filter=x\n").expect("written");
    let source = format!("git+file://{}", repository.display());
    add(&alice, &author, &source, &["--path", "bundle"]);
    assert!(!marker.exists(), "nothing ran");
    assert_eq!(alice.execute("hi").exit, 0);
}

#[test]
fn git_links_and_lost_commits_are_refused() {
    let (alice, author) = (project_member("alice"), BundleAuthor::new());
    let repository = author.user.context.path().join("repository");
    publish_in_git(&author, &repository, "1.0.0", None);
    let source = format!("git+file://{}", repository.display());
    add(&alice, &author, &source, &["--path", "bundle"]);
    alice.commit();
    let lost = read(&alice, LOCK).replace(&locked(&alice, "commit"), &"1".repeat(40));
    let bob = Member::clone_of(&alice, "bob");
    write(&bob, LOCK, lost);
    bob.ok(["join", "--yes"]);
    let refused = bob.assert_refused(["sync"], 4, "RYE0633");
    assert!(text(&refused["error"]).contains("has no commit"), "{refused}");
    std::os::unix::fs::symlink("/etc/passwd", repository.join("bundle/.ai/tools/team/link.py"))
        .expect("a link");
    for words in
        [&["add", "--all"][..], &["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-qm", "x"]]
    {
        assert!(
            author.user.program("git").current_dir(&repository).args(words).status().expect("git").success()
        );
    }
    let refused = alice.assert_refused(["bundle", "upgrade", "--yes"], 5, "RYE0612");
    assert!(text(&refused["error"]).contains("symbolic link"), "{refused}");
}

#[test]
fn registry_versions_are_chosen_by_range() {
    let (alice, author, registry) = (project_member("alice"), BundleAuthor::new(), FakeRegistry::new());
    let push = |version: &str, result: &str| {
        author.write_tool("hi", result);
        let made = author.create(version);
        let tag = format!("oci://{}", registry.reference_text(&format!("team/tools:{version}")));
        author.user.data(["bundle", "push", made.to_str().expect("text"), &tag])
    };
    let first = push("1.0.0", "1");
    let source = format!("oci://{}", registry.reference_text("team/tools"));
    add(&alice, &author, &source, &[]);
    assert!(read(&alice, MANIFEST).contains("version = \"^1.0.0\""), "{}", read(&alice, MANIFEST));
    assert_eq!(locked(&alice, "digest"), text(&first["digest"]));
    alice.commit();
    push("1.2.0", "2");
    push("2.0.0", "3");
    let row = &alice.data(["outdated"])["bundles"][0];
    assert_eq!(
        (&row["installed"], &row["wanted"], &row["latest"]),
        (&json!("1.0.0"), &json!("1.2.0"), &json!("2.0.0")),
        "{row}"
    );
    let table = alice.ok(["outdated"]);
    for part in ["BUNDLE", "WANTED", "1.2.0", "2.0.0", "rye bundle upgrade"] {
        assert!(table.stdout.contains(part) || table.stderr.contains(part), "{part}: {table}");
    }
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    assert_eq!(bob.data(["sync"])["installed"][0]["version"], "1.0.0");
    let done = alice.data(["bundle", "upgrade", "--yes"]);
    assert_eq!(done["installed"][0]["version"], "1.2.0", "{done}");
    assert_eq!(alice.data(["bundle", "upgrade", "--yes"])["status"], "unchanged");
    alice.commit();
    bob.pull(&alice);
    assert_eq!(bob.data(["sync", "--locked"])["installed"][0]["version"], "1.2.0");
}

#[test]
fn urls_need_the_digest_of_their_archive() {
    let (alice, author) = (project_member("alice"), BundleAuthor::new());
    let archive = fs::read(author.create_as("1.0.0", "gifts.tar.zst")).expect("an archive");
    let digest = Digest::of(&archive).to_string();
    let bytes = archive.clone();
    let server = FakeRegistry::start(Box::new(move |request, _| {
        (request.path == "/gifts.tar.zst").then(|| response("200 OK", &[], bytes.clone()))
    }));
    let url = format!("http://{}/gifts.tar.zst", server.address);
    let fingerprint = author.fingerprint();
    let words = |digest: &str| {
        ["add", &url, "--sha256", digest, "--signer", &fingerprint, "--yes"].map(str::to_owned)
    };
    let refused = alice.assert_refused(["add", &url, "--signer", &fingerprint, "--yes"], 2, "RYE0104");
    assert!(text(&refused["error"]).contains("`sha256` is missing"), "{refused}");
    let refused = alice.assert_refused(words(&"a".repeat(64)), 4, "RYE0633");
    assert_eq!(refused["found"], json!(digest), "{refused}");
    alice.data(words(&digest));
    assert!(read(&alice, MANIFEST).contains(&digest));
    alice.commit();
    let bob = Member::clone_of(&alice, "bob");
    bob.ok(["join", "--yes"]);
    bob.ok(["sync"]);
    assert_eq!(bob.execute("hi").exit, 0);
    let gone = format!("http://{}/gone.tar.zst", server.address);
    alice.assert_refused(["add", &gone, "--sha256", &digest, "--yes"], 1, "RYE0634");
}
