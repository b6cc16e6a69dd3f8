//! The projects under `examples/` do offline what their pages say.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::User;
use crate::thread_run::{newest_thread, threads};

fn collect_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_files(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// The project of an example, as a user has it who copied it and signed what is in it.
fn example(name: &str) -> User {
    let user = User::initialized();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    let mut found = Vec::new();
    collect_files(&from, &mut found);
    assert!(found.iter().any(|path| path.ends_with("README.md")), "{found:?}");
    let mut items = Vec::new();
    for path in found {
        let below = path.strip_prefix(&from).expect("below");
        let bytes = std::fs::read(&path).expect("a file");
        user.context.write(&format!("project/{}", below.display()), bytes);
        if below.starts_with(".ai") {
            items.push(below.display().to_string());
        }
    }
    let words: Vec<&str> =
        std::iter::once("sign").chain(items.iter().map(String::as_str)).chain(["--yes"]).collect();
    user.ok(words);
    user
}

/// Each thread's directive and status, parents first.
fn tree(user: &User) -> Vec<(String, String)> {
    let data = user.data(["thread", "tree"]);
    let rows = data["threads"].as_array().expect("threads");
    let word = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    rows.iter().map(|row| (word(&row["directive"]), word(&row["status"]))).collect()
}

#[test]
fn every_example_has_a_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let entries = std::fs::read_dir(folder).expect("examples").flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort();
    assert_eq!(names, ["approval-gate", "cluster", "map-reduce", "pipeline", "supervisor"]);
}

#[test]
fn pipeline_publishes_reviewed_draft() {
    let user = example("pipeline");
    user.ok(["run", "pipeline/publish", "topic=bees"]);
    assert_eq!(user.context.text("project/published.md"), "All about bees. Reviewed.");
    for aspect in ["facts", "style"] {
        let review = user.context.text(&format!("project/review-{aspect}.md"));
        assert_eq!(review, format!("The {aspect} are fine."));
    }
    let done = |name: &str| (format!("pipeline/{name}"), "completed".to_owned());
    assert_eq!(tree(&user), [done("publish"), done("draft"), done("review"), done("review")]);
}

/// Its script shares the threads between workers; here one process runs them.
#[test]
fn scenes_are_joined_to_film() {
    let user = example("cluster");
    user.context.write(
        "home/.ai/config/agent/resilience.yaml",
        "version: \"1.0.0\"\ncategory: agent\nname: resilience\nconcurrency: {max_concurrent_children: 8}\n",
    );
    user.ok(["sign", "config", "agent/resilience", "--space", "user"]);
    assert_eq!(user.ok(["run", "render/film"]).json(), json!({"scenes": 8, "frames": 576}));
    assert_eq!(tree(&user).len(), 9);
}

#[test]
fn word_counts_of_chapters_are_summed() {
    let user = example("map-reduce");
    assert_eq!(user.ok(["run", "words/all"]).json(), json!({"total": 16}));
    assert_eq!(tree(&user).len(), 4);
}

#[test]
fn supervisor_restarts_failed_children() {
    let user = example("supervisor");
    user.ok(["run", "work/supervise"]);
    let row = |name: &str, status: &str| (format!("work/{name}"), status.to_owned());
    let expected = [
        row("supervise", "completed"),
        row("steady", "completed"),
        row("hasty", "error"),
        row("hasty", "completed"),
    ];
    assert_eq!(tree(&user), expected);
    assert_eq!(user.context.text("project/hasty-2.txt"), "done");
}

#[test]
fn deploy_waits_for_approval() {
    let user = example("approval-gate");
    let deployed = || user.context.project().join("deployed.txt").exists();
    assert_eq!(user.run(["run", "release/deploy", "version=1.2"]).exit, 6);
    assert_eq!(user.run(["thread", "deny", &newest_thread(&user), "--message", "not on a Friday"]).exit, 1);
    assert_eq!((deployed(), &threads(&user)[0]["status"]), (false, &json!("error")));
    assert_eq!(user.run(["run", "release/deploy", "version=1.3"]).exit, 6);
    assert!(!deployed());
    user.ok(["thread", "approve", &newest_thread(&user)]);
    assert_eq!(user.context.text("project/deployed.txt"), "1.3");
}
