//! What patches hold, which of them are refused, and what applying one does.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::collect::PatchSource;
use super::super::left_out::LeftOutFiles;
use super::*;
use crate::redact::Redactor;
use crate::thread_id::ThreadId;

fn write(root: &Path, path: &str, bytes: &[u8], is_executable: bool) {
    FileBytes { bytes: bytes.to_vec(), is_executable }.write(root, path).expect("written");
}

fn id() -> ThreadId {
    ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id")
}

struct World {
    base: tempfile::TempDir,
    project: tempfile::TempDir,
}

fn world() -> World {
    let world = World {
        base: tempfile::tempdir().expect("a folder"),
        project: tempfile::tempdir().expect("a folder"),
    };
    for root in [world.base.path(), world.project.path()] {
        write(root, "src/a.txt", b"one\ntwo\n", false);
        write(root, "src/gone.txt", b"x\n", false);
        write(root, "bin/run", b"#!/bin/sh\n", false);
        write(root, "logo.bin", &[0, 159, 146], false);
        write(root, ".gitignore", b"target/\n", false);
    }
    world
}

fn change_project(project: &Path) {
    write(project, "src/a.txt", b"one\n2\n", false);
    write(project, "new/deep/b.txt", b"new\n", false);
    write(project, "bin/run", b"#!/bin/sh\n", true);
    write(project, "logo.bin", &[0, 1], false);
    write(project, "target/out.o", b"built", false);
    write(project, ".env", b"TOKEN=1", false);
    write(project, ".git/hooks/post-checkout", b"#!/bin/sh\n", true);
    lillux::file::remove(&project.join("src/gone.txt")).expect("removed");
}

/// Rules as the shipped settings have them, for one name of each kind.
fn rules() -> CheckoutRules {
    let settings = json!({
        "protected": [".vscode/", ".envrc", ".cargo/"],
        "read_only": ["{project_path}/vendor"],
        "hidden": ["/project/private"],
    });
    CheckoutRules::from_settings(Path::new("/project"), &settings)
}

fn redactor() -> Redactor {
    let environment = BTreeMap::from([("A_TOKEN".to_owned(), "swordfish-1".to_owned())]);
    Redactor::new(&environment, |name| name == "A_TOKEN")
}

fn collect(world: &World) -> CheckoutPatch {
    let (thread, rules, redactor) = (id(), rules(), redactor());
    let source = PatchSource {
        thread: &thread,
        source: "snapshot",
        base: world.base.path(),
        project: world.project.path(),
        rules: &rules,
        redactor: &redactor,
        missing: &LeftOutFiles::default(),
    };
    source.collect().expect("collected")
}

fn changed(patch: &CheckoutPatch) -> Vec<&str> {
    patch.files().map(|(path, _)| path).collect()
}

fn reread(patch: &CheckoutPatch) -> Result<CheckoutPatch> {
    CheckoutPatch::from_bytes(&patch.to_bytes().expect("bytes"), &rules())
}

fn remove(root: &Path, path: &str) {
    lillux::file::remove(&root.join(path)).expect("removed");
}

/// The files below a folder, but for those that no patch changes.
fn files(root: &Path) -> Vec<(String, FileBytes)> {
    let listed = super::super::walk::list_files(root, &CheckoutRules::default(), None).expect("listed").files;
    let read = |path: String| {
        let file = FileBytes::read(root, &path).expect("read").expect("there");
        (path, file)
    };
    listed.into_iter().map(read).collect()
}

#[test]
fn patch_applies_to_the_same_files() {
    let world = world();
    change_project(world.project.path());
    let patch = collect(&world);
    let files: Vec<(&str, &str)> = patch.files().collect();
    assert_eq!(
        files,
        [
            ("bin/run", "changed"),
            ("logo.bin", "changed"),
            ("new/deep/b.txt", "added"),
            ("src/a.txt", "changed"),
            ("src/gone.txt", "removed"),
        ]
    );
    assert_eq!(patch.left_out, [(".env".to_owned(), "looks like a secret".to_owned())]);
    let patch = reread(&patch).expect("read");
    let diff = patch.to_diff().expect("a diff");
    assert!(
        diff.contains("diff --git a/src/a.txt b/src/a.txt\n--- a/src/a.txt\n+++ b/src/a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"),
        "{diff}"
    );
    assert!(
        diff.contains("new file mode 100644\n--- /dev/null\n+++ b/new/deep/b.txt\n@@ -0,0 +1 @@\n+new\n"),
        "{diff}"
    );
    assert!(diff.contains("old mode 100644\nnew mode 100755\n"), "{diff}");
    assert!(diff.contains("Binary files a/logo.bin and b/logo.bin differ\n"), "{diff}");
    let report = patch.apply(world.base.path(), &rules()).expect("applied");
    assert_eq!((report.changed.len(), report.unchanged.len()), (5, 0));
    assert_eq!(collect(&world).file_count(), 0, "the same files now");
    let again = patch.apply(world.base.path(), &rules()).expect("applied");
    assert_eq!((again.changed.len(), again.unchanged.len()), (0, 5));
}

#[test]
fn conflicting_patch_changes_nothing() {
    let world = world();
    change_project(world.project.path());
    let patch = collect(&world);
    write(world.base.path(), "src/a.txt", b"mine\n", false);
    std::os::unix::fs::symlink("/tmp", world.base.path().join("new")).expect("a link");
    let refused = patch.apply(world.base.path(), &rules()).expect_err("refused").message;
    let expected = "the patch does not apply: `new/deep/b.txt`, `src/a.txt` changed since the thread had them; nothing was written";
    assert_eq!(refused, expected);
    assert!(world.base.path().join("src/gone.txt").exists());
}

#[test]
fn patches_that_leave_the_project_are_refused() {
    let world = world();
    change_project(world.project.path());
    let whole: Value = serde_json::from_slice(&collect(&world).to_bytes().expect("bytes")).expect("JSON");
    for path in
        ["../x", "/etc/x", ".git/hooks/pre-commit", "a/.Git/config", ".ai/tools/x.py", ".env", "lockfiles/x"]
    {
        let mut changed = whole.clone();
        changed["changes"][0]["path"] = json!(path);
        let refused =
            CheckoutPatch::from_bytes(changed.to_string().as_bytes(), &rules()).expect_err("refused").message;
        assert!(refused.starts_with(&format!("the patch changes `{path}`, which ")), "{refused}");
    }
    let mut twice = whole.clone();
    twice["changes"][0]["path"] = json!("SRC/A.t\u{200d}xt");
    let refused =
        CheckoutPatch::from_bytes(twice.to_string().as_bytes(), &rules()).expect_err("refused").message;
    assert!(refused.ends_with("twice"), "{refused}");
}

#[test]
fn links_made_by_tools_are_left_out() {
    let world = world();
    lillux::file::remove(&world.project.path().join("src/a.txt")).expect("removed");
    std::os::unix::fs::symlink("/etc/passwd", world.project.path().join("src/a.txt")).expect("a link");
    let patch = collect(&world);
    assert_eq!(patch.file_count(), 0);
    assert!(patch.left_out.iter().any(|(path, _)| path == "src/a.txt"), "{:?}", patch.left_out);
}

#[test]
fn changes_no_tool_may_make_are_left_out() {
    let world = world();
    let project = world.project.path();
    for path in [
        ".vscode/tasks.json",
        "inner/.VSCode/tasks.json",
        ".cargo/config.toml",
        "vendor/a.c",
        "private/x",
        "inner/.git",
        "bare/HEAD",
        "bare/objects/x",
        "bare/refs/x",
        "bare/hooks/post-checkout",
        "new.txt",
    ] {
        write(project, path, b"x\n", false);
    }
    let patch = collect(&world);
    assert_eq!(changed(&patch), ["new.txt"]);
    let reason = |path: &str| {
        let found = patch.left_out.iter().find(|(left_out, _)| left_out == path);
        found.map(|(_, reason)| reason.as_str())
    };
    for (path, expected) in [
        (".vscode/tasks.json", "is protected by the sandbox settings"),
        ("inner/.VSCode/tasks.json", "is protected by the sandbox settings"),
        ("vendor/a.c", "is read-only by the sandbox settings"),
        ("private", "is hidden from tools by the sandbox settings"),
        ("bare/hooks/post-checkout", "belongs to a folder that git takes for a repository"),
    ] {
        assert_eq!(reason(path), Some(expected), "{path}: {:?}", patch.left_out);
    }
}

/// A patch with another first path, as a worker or a store could write it.
fn forged(path: &str) -> CheckoutPatch {
    let world = world();
    write(world.project.path(), "new.txt", b"x\n", false);
    let mut patch = collect(&world);
    path.clone_into(&mut patch.changes[0].path);
    patch
}

#[test]
fn forged_changes_are_neither_read_nor_applied() {
    for path in [".vscode/tasks.json", "a/.CARGO/config.toml", "vendor/a.c", "private/x"] {
        let read = reread(&forged(path)).expect("read");
        assert_eq!((changed(&read), read.left_out.len()), (vec![], 1), "{path}");
    }
    for path in [".vscode/tasks.json", "vendor/a.c", "a/.git", ".git/hooks/x", ".env", ".ai/x", "../x"] {
        let project = tempfile::tempdir().expect("a folder");
        let refused = forged(path).apply(project.path(), &rules()).expect_err("refused").message;
        assert!(refused.starts_with(&format!("the patch changes `{path}`, which ")), "{refused}");
        assert_eq!(files(project.path()), []);
    }
    // The rest of a repository is here already.
    let project = tempfile::tempdir().expect("a folder");
    write(project.path(), "bare/HEAD", b"ref: refs/heads/x\n", false);
    write(project.path(), "bare/refs/x", b"", false);
    let refused = forged("bare/objects/x").apply(project.path(), &rules()).expect_err("refused").message;
    assert!(refused.ends_with("belongs to a folder that git takes for a repository"), "{refused}");
}

#[test]
fn patch_that_makes_a_repository_is_refused() {
    let mut patch = forged("bare/HEAD");
    let change = patch.changes[0].clone();
    for path in ["bare/objects/x", "bare/refs/x"] {
        let mut other = change.clone();
        path.clone_into(&mut other.path);
        patch.changes.push(other);
    }
    let refused = reread(&patch).expect_err("refused").message;
    assert!(refused.ends_with("belongs to a folder that git takes for a repository"), "{refused}");
}

#[test]
fn files_with_values_of_secrets_are_left_out() {
    let world = world();
    let project = world.project.path();
    write(world.base.path(), "known.txt", b"swordfish-1\n", false);
    write(project, "known.txt", b"swordfish-1\nmore\n", false);
    write(project, "leak.txt", b"token: swordfish-1\n", false);
    write(project, "leak.bin", b"\xff\x00swordfish-1", false);
    write(project, "swordfish-1.txt", b"", false);
    let patch = collect(&world);
    assert_eq!(changed(&patch), ["known.txt"]);
    let expected = ["leak.bin", "leak.txt", "[redacted:A_TOKEN].txt"];
    let left_out: Vec<&str> = patch.left_out.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(left_out, expected);
    assert!(patch.left_out.iter().all(|(_, reason)| reason == "holds the value of a secret of the worker"));
}

#[test]
fn files_and_folders_change_places() {
    let world = world();
    let (base, project) = (world.base.path(), world.project.path());
    for root in [base, project] {
        write(root, "folder/deep/x", b"x\n", false);
        write(root, "folder/y", b"y\n", true);
        write(root, "file", b"f\n", false);
    }
    lillux::file::remove_tree(&project.join("folder")).expect("removed");
    write(project, "folder", b"a file now\n", false);
    remove(project, "file");
    write(project, "file/inner/z", b"z\n", false);
    let patch = collect(&world);
    assert_eq!(changed(&patch), ["file", "file/inner/z", "folder", "folder/deep/x", "folder/y"]);
    let patch = reread(&patch).expect("read");
    let report = patch.apply(base, &rules()).expect("applied");
    assert_eq!((report.changed.len(), report.unchanged.len()), (5, 0));
    assert_eq!(files(base), files(project));
    let again = patch.apply(base, &rules()).expect("applied");
    assert_eq!((again.changed.len(), again.unchanged.len()), (0, 5));
}

#[test]
fn folder_with_own_files_gives_way_to_nothing() {
    let world = world();
    let (base, project) = (world.base.path(), world.project.path());
    for root in [base, project] {
        write(root, "folder/x", b"x\n", false);
        write(root, "file", b"f\n", false);
    }
    lillux::file::remove_tree(&project.join("folder")).expect("removed");
    write(project, "folder", b"a file now\n", false);
    write(project, "other/z", b"z\n", false);
    let patch = collect(&world);
    write(base, "folder/mine", b"mine\n", false);
    write(base, "other", b"mine\n", false);
    let before = files(base);
    let refused = patch.apply(base, &rules()).expect_err("refused").message;
    assert!(refused.contains("`folder`, `other/z` changed since"), "{refused}");
    assert_eq!(files(base), before);
}

#[test]
fn lines_end_at_line_feeds_only() {
    let world = world();
    write(world.base.path(), "src/a.txt", b"one\rtwo\r\nthree\n", false);
    write(world.project.path(), "src/a.txt", b"one\rtwo\r\n3\n", false);
    write(world.base.path(), "src/gone.txt", b"ends\r", false);
    let diff = collect(&world).to_diff().expect("a diff");
    assert!(diff.contains("Binary files a/src/gone.txt and b/src/gone.txt differ\n"), "{diff:?}");
    let (diff, _) = diff.split_once("diff --git a/src/gone.txt").expect("two files");
    assert!(diff.ends_with("@@ -1,2 +1,2 @@\n one\rtwo\r\n-three\n+3\n"), "{diff:?}");
}
