//! The search index: lost, damaged, replaced or locked, it is rebuilt and never an error.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::support::{Run, User, rows, text};

/// A user with an index, and the index's file.
fn user_with_index() -> (User, PathBuf) {
    let user = User::initialized();
    assert_hello_is_found(&user);
    let folder = user.context.cache().join("rye/index");
    let mut databases: Vec<PathBuf> = fs::read_dir(folder)
        .expect("the index folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "db"))
        .collect();
    assert_eq!(databases.len(), 1);
    (user, databases.remove(0))
}

fn assert_hello_is_found(user: &User) {
    assert_eq!(user.search_ids("hello"), ["examples/hello", "examples/greet"]);
}

fn remove(path: &Path) {
    for suffix in ["", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let _ = fs::remove_file(PathBuf::from(name));
    }
}

#[test]
fn deleted_index_is_rebuilt() {
    let (user, database) = user_with_index();
    remove(&database);
    assert_hello_is_found(&user);
    assert!(database.is_file());
    fs::remove_dir_all(user.context.cache()).expect("removed");
    assert_hello_is_found(&user);
}

#[test]
fn truncated_index_is_rebuilt() {
    let (user, database) = user_with_index();
    let whole = fs::read(&database).expect("read");
    for length in [0, 1, 100, 4096, whole.len() / 2, whole.len() - 1] {
        remove(&database);
        fs::write(&database, &whole[..length]).expect("written");
        assert_hello_is_found(&user);
    }
}

#[test]
fn garbage_index_is_rebuilt() {
    let (user, database) = user_with_index();
    let whole = fs::read(&database).expect("read");
    let noise: Vec<u8> = (0..whole.len()).map(|location| (location * 131 % 251) as u8).collect();
    fs::write(&database, &noise).expect("written");
    assert_hello_is_found(&user);
    // A good head over a rotten body, and a good body under a rotten head.
    for cut in [100, 4096, 8192] {
        let mut mixed = whole.clone();
        mixed[cut..].copy_from_slice(&noise[cut..]);
        remove(&database);
        fs::write(&database, &mixed).expect("written");
        assert_hello_is_found(&user);
    }
    let mut mixed = whole.clone();
    mixed[..4096].copy_from_slice(&noise[..4096]);
    remove(&database);
    fs::write(&database, &mixed).expect("written");
    assert_hello_is_found(&user);
    // A log beside it that belongs to nothing.
    remove(&database);
    fs::write(&database, &whole).expect("written");
    fs::write(database.with_extension("db-wal"), &noise[..8192]).expect("written");
    assert_hello_is_found(&user);
}

#[test]
fn index_with_old_schema_is_rebuilt() {
    let (user, database) = user_with_index();
    let mut bytes = fs::read(&database).expect("read");
    // The user version is at offset 60 of the header.
    bytes[60..64].copy_from_slice(&999_u32.to_be_bytes());
    remove(&database);
    fs::write(&database, bytes).expect("written");
    assert_hello_is_found(&user);
    let bytes = fs::read(&database).expect("read");
    assert_ne!(bytes[60..64], 999_u32.to_be_bytes());
}

#[test]
fn folder_as_index_does_not_stop_search() {
    let (user, database) = user_with_index();
    remove(&database);
    fs::create_dir(&database).expect("folder");
    fs::write(database.join("x"), "x").expect("written");
    assert_hello_is_found(&user);
    let file = user.context.path().join("cache-as-file");
    fs::write(&file, "x").expect("written");
    let run =
        crate::support::run(user.command().env("XDG_CACHE_HOME", &file).args(["search", "hello", "--json"]));
    assert_eq!(run.json()["data"]["total"], 2, "{run}");
}

#[test]
fn doctor_reports_a_damaged_index() {
    let (user, database) = user_with_index();
    remove(&database);
    fs::write(&database, "garbage").expect("written");
    assert_eq!(user.data(["doctor"])["errors"], 0);
    remove(&database);
    assert_eq!(user.data(["doctor"])["errors"], 0);
}

#[test]
fn concurrent_cold_searches_find_everything() {
    let user = User::initialized();
    for number in 0..40 {
        user.write(
            &format!("knowledge/many/k{number}.md"),
            rye_test::knowledge("many", &format!("k{number}"), "Crowd", "crowded"),
        );
    }
    for _ in 0..3 {
        fs::remove_dir_all(user.context.cache()).expect("removed");
        let children: Vec<Child> = (0..8)
            .map(|_| {
                user.program(env!("CARGO_BIN_EXE_rye"))
                    .args(["search", "crowded", "--json", "--limit", "100"])
                    .stdin(Stdio::null())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("started")
            })
            .collect();
        for child in children {
            let run = Run::from_output(&child.wait_with_output().expect("finished"));
            assert_eq!(run.exit, 0, "{run}");
            let data = &run.json()["data"];
            assert_eq!(data["total"], 40, "{run}");
            assert_eq!(rows(data).len(), 40, "{run}");
        }
    }
}

#[test]
fn file_changes_are_noticed() {
    let (user, _) = user_with_index();
    user.signed_tool("late", "Wanders late");
    assert_eq!(user.search_ids("wanders"), ["team/late"]);
    let path = user.project().join(".ai/tools/team/late.py");
    // As long as before, and signed again.
    let edited = fs::read_to_string(&path).expect("read").replace("Wanders", "Strolls");
    fs::write(&path, edited).expect("written");
    assert_eq!(user.search_ids("wanders"), Vec::<String>::new());
    let found = user.data(["search", "strolls"]);
    assert_eq!(found["results"][0]["verdict"], "tampered", "{found}");
    fs::remove_file(&path).expect("removed");
    assert_eq!(user.search_ids("strolls"), Vec::<String>::new());
    fs::remove_dir_all(user.project().join(".ai/tools")).expect("removed");
    assert_eq!(user.search_ids("hello"), ["examples/greet"]);
}

#[test]
fn edit_with_restored_mtime_is_noticed() {
    let (user, _) = user_with_index();
    let path = user.signed_tool("sly", "Wanders late");
    assert_eq!(user.search_ids("wanders"), ["team/sly"]);
    let metadata = fs::metadata(&path).expect("there");
    let edited = fs::read_to_string(&path).expect("read").replace("Wanders", "Strolls");
    fs::write(&path, edited).expect("written");
    let file = fs::File::options().write(true).open(&path).expect("opened");
    file.set_modified(metadata.modified().expect("a time")).expect("set");
    drop(file);
    assert_eq!(user.search_ids("strolls"), ["team/sly"]);
}

#[test]
fn a_new_shadowing_file_is_noticed() {
    let user = User::initialized();
    user.write_user("tools/team/both.py", rye_test::tool("team", "Lower twin"));
    user.ok(["sign", "tool", "team/both"]);
    let winner = |user: &User| {
        let data = user.data(["search", "twin"]);
        let all = rows(&data);
        assert_eq!(all.len(), 1, "{data}");
        (text(&all[0]["space"]), text(&all[0]["description"]))
    };
    assert_eq!(winner(&user), ("user".to_owned(), "Lower twin".to_owned()));
    let path = user.write("tools/team/both.py", rye_test::tool("team", "Upper twin"));
    assert_eq!(winner(&user), ("project".to_owned(), "Upper twin".to_owned()));
    fs::remove_file(path).expect("removed");
    assert_eq!(winner(&user), ("user".to_owned(), "Lower twin".to_owned()));
}

#[test]
fn trust_is_evaluated_at_search_time() {
    let (user, other_user) = (User::initialized(), User::initialized());
    let path = other_user.signed_tool("theirs", "Foreign wonder");
    crate::support::copy_file(&path, &user.project().join(".ai/tools/team/theirs.py"));
    let verdict = |user: &User| text(&user.data(["search", "wonder"])["results"][0]["verdict"]);
    assert_eq!(verdict(&user), "untrusted");
    user.ok(["keys".as_ref(), "trust".as_ref(), other_user.public_key().as_os_str()]);
    assert_eq!(verdict(&user), "full");
    user.ok(["keys", "revoke", &other_user.fingerprint()]);
    assert_eq!(verdict(&user), "revoked");
}

#[test]
fn each_project_has_its_own_index() {
    let (user, _) = user_with_index();
    let other = user.context.path().join("other");
    fs::create_dir(&other).expect("folder");
    let run = crate::support::run(user.command().current_dir(&other).args(["search", "hello", "--json"]));
    assert_eq!(run.json()["data"]["total"], 0, "{run}");
    assert_hello_is_found(&user);
}
