//! An older copy of a project's threads, and a registry that was edited from outside, are named and not built on.

#![expect(clippy::disallowed_methods, reason = "tests stand where users stand")]

use std::fs;
use std::path::Path;

use serde_json::json;

use crate::support::{User, text};
use crate::thread_run::{newest_thread, threads, write_note_directive};

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a type") {
            kind if kind.is_dir() => copy(&entry.path(), &target),
            kind if kind.is_file() => drop(fs::copy(entry.path(), target).expect("copied")),
            _ => {}
        }
    }
}

#[test]
fn older_store_copy_is_not_resumed() {
    let user = User::initialized();
    write_note_directive(&user);
    assert_eq!(user.run(["run", "team/note", "--limit", "turns=1"]).exit, 6);
    let id = newest_thread(&user);
    let folder = user.project().join(".ai/threads");
    let backup = user.project().join("backup");
    copy(&folder, &backup);
    user.ok(["thread", "resume", &id, "--limit", "turns=+10"]);
    assert_eq!(user.data(["thread", "verify", "--all"])["older"], json!([]));
    fs::remove_dir_all(&folder).expect("removed");
    copy(&backup, &folder);
    let answer = user.assert_refused(["thread", "verify", &id], 4, "RYE1156");
    assert_eq!(answer["data"]["older"], json!([id]), "{answer}");
    assert_eq!(answer["data"]["threads"][0]["state"], "older", "{answer}");
    user.run(["--json", "thread", "resume", &id, "--limit", "turns=+10"]).error(4, "RYE1156");
    user.ok(["thread", "verify", "--accept-older"]);
    user.ok(["thread", "verify", "--all"]);
    user.ok(["thread", "resume", &id, "--limit", "turns=+10"]);
}

#[test]
fn forged_row_is_reported() {
    let user = User::initialized();
    write_note_directive(&user);
    user.ok(["run", "team/note"]);
    let id = newest_thread(&user);
    let database = user.project().join(".ai/threads/registry.db");
    let mut bytes = fs::read(&database).expect("a database");
    let (word, other) = (b"completed", b"cancelled");
    let locations: Vec<usize> =
        (0..bytes.len() - word.len()).filter(|at| bytes[*at..].starts_with(word)).collect();
    // Names of columns begin so, too.
    let locations = locations.into_iter().filter(|at| bytes[at + word.len()] != b'_');
    let locations: Vec<usize> = locations.collect();
    assert!(!locations.is_empty(), "the status is in the database");
    for location in locations {
        bytes[location..location + word.len()].copy_from_slice(other);
    }
    fs::write(&database, bytes).expect("written");
    let row = threads(&user).remove(0);
    assert_eq!(
        (text(&row["status"]), row["is_forged"].as_bool()),
        ("forged".to_owned(), Some(true)),
        "{row}"
    );
    let listed = user.ok(["thread", "list"]);
    assert!(listed.stderr.contains("rye thread verify --all"), "{listed}");
    user.assert_refused(["thread", "show", &id], 4, "RYE1113");
    let answer = user.assert_refused(["thread", "verify", &id], 4, "RYE1141");
    assert_eq!(answer["data"]["threads"][0]["state"], "forged", "{answer}");
}
