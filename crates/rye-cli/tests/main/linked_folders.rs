//! A project that brings links where `rye` writes or removes: nothing happens where they lead.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::support::{Run, User, differences, run, snapshot, text};

/// A folder outside of the project, with something to lose.
fn outside(user: &User) -> PathBuf {
    let outside = user.context.path().join("outside");
    fs::create_dir_all(outside.join("thread-0123456789ab/kept")).expect("folders");
    user.context.write("outside/thread-0123456789ab/transcript.jsonl", "mine\n");
    outside
}

/// Replaces what lies at `relative` in the project by a link to a folder outside.
fn link(user: &User, relative: &str) -> PathBuf {
    let (outside, path) = (outside(user), user.project().join(relative));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
    symlink(&outside, &path).expect("a link");
    outside
}

/// Runs a command that must be refused for the link at `relative`, and change nothing outside.
fn refused(user: &User, relative: &str, words: &[&str]) -> Run {
    let outside = user.context.path().join("outside");
    let before = snapshot(&outside);
    let ran = run(user.command().arg("--json").args(words));
    assert_eq!(differences(&before, &snapshot(&outside)), Vec::<String>::new(), "{words:?} {ran}");
    let error = ran.error(4, "RYE0205");
    let shown = user.project().join(relative).display().to_string();
    assert!(text(&error["error"]).contains(&shown), "{error}");
    assert!(error["hints"].to_string().contains("ls -ld"), "{error}");
    ran
}

#[test]
fn linked_threads_folder_is_refused() {
    for is_approved in [true, false] {
        let user = User::initialized();
        if !is_approved {
            user.ok(["trust", ".", "--revoke"]);
        }
        link(&user, ".ai/threads");
        refused(&user, ".ai/threads", &["run", "examples/greet"]);
        refused(&user, ".ai/threads", &["run", "examples/greet", "--async"]);
        refused(&user, ".ai/threads", &["thread", "list"]);
        refused(&user, ".ai/threads", &["thread", "prune", "--yes", "--older-than", "0"]);
    }
}

#[test]
fn linked_archive_is_not_pruned() {
    for delete in [&["--delete"][..], &[]] {
        let user = User::initialized();
        user.ok(["run", "examples/greet"]);
        link(&user, ".ai/threads/archive");
        let words = [&["thread", "prune", "--yes", "--older-than", "0", "--max-megabytes", "0"], delete];
        refused(&user, ".ai/threads/archive", &words.concat());
    }
}

#[test]
fn linked_lockfiles_folder_is_not_written() {
    for (relative, inner) in [("lockfiles", false), ("lockfiles/examples", false), ("lockfiles", true)] {
        let user = User::initialized();
        link(&user, relative);
        if inner {
            // A link that stays in the project is refused as well.
            fs::remove_file(user.project().join(relative)).expect("removed");
            fs::create_dir(user.project().join("elsewhere")).expect("a folder");
            symlink("elsewhere", user.project().join(relative)).expect("a link");
        }
        refused(&user, relative, &["lock", "update", "examples/hello", "--scope", "project"]);
    }
}

#[test]
fn linked_item_folders_are_not_written() {
    let user = User::initialized();
    user.ok(["load", "tool", "examples/hello", "--to", "user"]);
    fs::remove_dir_all(user.project().join(".ai/tools/examples")).expect("removed");
    link(&user, ".ai/tools/examples");
    refused(&user, ".ai/tools/examples", &["load", "tool", "examples/hello", "--to", "project"]);
    refused(&user, ".ai/tools/examples", &["init"]);
    link(&user, ".ai/tools");
    refused(&user, ".ai/tools", &["init"]);
}

#[test]
fn linked_client_settings_are_not_written() {
    let user = User::initialized();
    link(&user, ".vscode");
    refused(&user, ".vscode", &["mcp", "install", "vscode"]);
    user.context.write("outside/settings.json", "{}\n");
    symlink(user.context.path().join("outside/settings.json"), user.project().join(".mcp.json"))
        .expect("a link");
    refused(&user, ".mcp.json", &["mcp", "install", "claude-code"]);
}

#[test]
fn linked_bundles_folder_is_not_written() {
    let user = User::initialized();
    user.signed_tool("one", "One");
    let out = user.context.path().join("made");
    let out = out.display().to_string();
    user.ok(["bundle", "create", "made", "--category", "team", "--version", "1.0.0", "--out", &out]);
    fs::remove_dir_all(user.project().join(".ai/tools/team")).expect("removed");
    let outside = link(&user, ".ai/bundles");
    let before = snapshot(&outside);
    let ran = run(user.command().args(["--json", "install", &out, "--yes"]));
    assert_ne!(ran.exit, 0, "{ran}");
    assert_eq!(differences(&before, &snapshot(&outside)), Vec::<String>::new(), "{ran}");
    assert!(!user.project().join(".ai/tools/team/one.py").exists());
}
