//! Stores of threads that are lost, and what a killed `init` or `sign` leaves: told apart by `doctor`, never made new in
//! silence, and brought back by the command that is named.

use std::path::PathBuf;

use serde_json::Value;

use crate::support::{Run, User};

const GREET: [&str; 2] = ["run", "examples/greet"];

/// A user with one thread that has ended.
fn user_with_thread() -> User {
    let user = User::initialized();
    user.ok(GREET);
    user
}

fn database(user: &User) -> PathBuf {
    user.project().join(".ai/threads/registry.db")
}

fn secret(user: &User) -> PathBuf {
    user.home().join(".ai/config/keys/signing/thread_secret")
}

/// What `doctor` says of the store: its level and all of its text.
fn store_finding(user: &User) -> (String, String) {
    let report = user.run(["--json", "doctor"]).json();
    let findings = report.pointer("/findings").or_else(|| report.pointer("/data/findings")).cloned();
    let findings = findings.unwrap_or_else(|| panic!("{report}"));
    let found = findings.as_array().expect("findings").iter().find(|finding| finding["check"] == "threads");
    let found = found.unwrap_or_else(|| panic!("no finding about threads: {report}"));
    (found["level"].as_str().unwrap_or_default().to_owned(), found.to_string())
}

fn statuses(user: &User) -> Vec<String> {
    listed(user, "status")
}

/// A field of all threads, the newest first.
fn listed(user: &User, field: &str) -> Vec<String> {
    let listed = user.ok(["--json", "thread", "list", "--all"]).json();
    let threads = listed.pointer("/threads").or_else(|| listed.pointer("/data/threads")).cloned();
    let threads = threads.unwrap_or_else(|| panic!("{listed}"));
    let value = |thread: &Value| thread[field].as_str().unwrap_or_default().to_owned();
    threads.as_array().expect("threads").iter().map(value).collect()
}

fn assert_refused(run: &Run, code: &str) {
    assert_eq!(run.exit, 4, "{run}");
    assert!(run.stderr.contains(code) && run.stderr.contains("rye thread rebuild"), "{run}");
}

#[test]
fn lost_database_is_refused_and_rebuilt() {
    for is_emptied in [true, false] {
        let user = user_with_thread();
        assert_eq!(store_finding(&user).0, "ok");
        match is_emptied {
            true => std::fs::write(database(&user), "").expect("emptied"),
            false => std::fs::remove_file(database(&user)).expect("removed"),
        }
        let (level, text) = store_finding(&user);
        assert!(level == "error" && text.contains("rye thread rebuild"), "{text}");
        assert_refused(&user.run(["thread", "list"]), "RYE1157");
        assert_refused(&user.run(GREET), "RYE1157");
        let rebuilt = user.ok(["thread", "rebuild"]);
        assert!(rebuilt.stdout.contains("listed 1 thread again"), "{rebuilt}");
        assert_eq!(statuses(&user), ["completed"]);
        user.ok(["thread", "verify", "--all"]);
        assert_eq!(store_finding(&user).0, "ok");
        user.ok(GREET);
        assert_eq!(statuses(&user).len(), 2);
        assert!(user.ok(["thread", "rebuild"]).stdout.contains("nothing is lost"));
    }
}

#[test]
fn rebuilt_threads_keep_their_order() {
    let user = user_with_thread();
    for _ in 0..5 {
        user.ok(GREET);
    }
    let before = listed(&user, "thread_id");
    std::fs::remove_file(database(&user)).expect("removed");
    user.ok(["thread", "rebuild"]);
    assert_eq!(listed(&user, "thread_id"), before);
}

#[test]
fn damaged_database_is_kept_beside_the_rebuilt() {
    let user = user_with_thread();
    // What is still in the log would heal the first pages.
    for companion in ["registry.db-wal", "registry.db-shm"] {
        let _ = std::fs::remove_file(database(&user).with_file_name(companion));
    }
    std::fs::write(database(&user), [7_u8; 8192]).expect("damaged");
    let (level, text) = store_finding(&user);
    assert!(level == "error" && text.contains("damaged"), "{text}");
    assert_refused(&user.run(["thread", "list"]), "RYE1111");
    user.ok(["thread", "rebuild"]);
    assert_eq!(statuses(&user), ["completed"]);
    let names = std::fs::read_dir(user.project().join(".ai/threads")).expect("a folder");
    let names: Vec<String> =
        names.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    assert!(names.iter().any(|name| name.starts_with("registry.db.lost-")), "{names:?}");
}

#[test]
fn lost_secret_is_refused_and_replaced() {
    let user = user_with_thread();
    std::fs::remove_file(secret(&user)).expect("removed");
    let (level, text) = store_finding(&user);
    assert!(level == "error" && text.contains("thread_secret"), "{text}");
    for command in [&["thread", "list"][..], &GREET] {
        assert_refused(&user.run(command), "RYE1117");
    }
    assert!(!secret(&user).exists());
    user.ok(["thread", "rebuild"]);
    assert_eq!(statuses(&user), ["completed"]);
    user.ok(["thread", "verify", "--all"]);
    user.ok(GREET);
}

#[test]
fn rebuild_leaves_changed_transcripts_out() {
    let user = user_with_thread();
    let threads = user.project().join(".ai/threads");
    let folder = std::fs::read_dir(&threads).expect("a folder").flatten();
    let folder = folder.map(|entry| entry.path()).find(|path| path.join("transcript.jsonl").is_file());
    let transcript = folder.expect("a thread").join("transcript.jsonl");
    let text = std::fs::read_to_string(&transcript).expect("a transcript");
    std::fs::write(&transcript, text.replace("Hello, world!", "Hello, forger")).expect("changed");
    std::fs::remove_file(database(&user)).expect("removed");
    let rebuilt = user.ok(["thread", "rebuild"]);
    assert!(rebuilt.stdout.contains("listed 0 threads again"), "{rebuilt}");
    assert!(rebuilt.stderr.contains("was left out: its transcript was changed"), "{rebuilt}");
}

#[test]
fn init_signs_what_a_killed_init_left() {
    let user = User::initialized();
    let path = user.project().join(".ai/tools/examples/hello.py");
    let signed = std::fs::read_to_string(&path).expect("an example");
    let unsigned: String =
        signed.lines().filter(|line| !line.contains("rye:signed:")).map(|line| format!("{line}\n")).collect();
    assert_ne!(signed, unsigned);
    std::fs::write(&path, &unsigned).expect("as a killed init leaves it");
    user.ok(["init"]);
    user.ok(["verify", "tool", "examples/hello"]);
    // What a person wrote is theirs to sign.
    std::fs::write(&path, format!("{unsigned}# mine\n")).expect("changed");
    user.ok(["init"]);
    assert_ne!(user.run(["verify", "tool", "examples/hello"]).exit, 0);
}
