//! Paths from outside: nothing is read or written beyond the project, or where policy says no.

use std::sync::atomic::{AtomicBool, Ordering};

use rye_exec::NativeError;
use serde_json::{Value, json};

use crate::support::World;

fn every_reader(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("file_system.read", json!({"path": path})),
        ("file_system.ls", json!({"path": path})),
        ("file_system.glob", json!({"path": path, "pattern": "*"})),
        ("file_system.grep", json!({"path": path, "pattern": "secret"})),
    ]
}

fn every_writer(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("file_system.write", json!({"path": path, "content": "broken"})),
        (
            "file_system.edit_lines",
            json!({"path": path, "changes": [{"insert_after": "start", "new_content": "broken"}]}),
        ),
    ]
}

fn world_with_secret() -> World {
    let world = World::new();
    world.put("../secret", "secret\n");
    world.put("../folder/secret", "secret\n");
    world.put("inside/f", "fine\n");
    world
}

fn secret_is_untouched(world: &World) {
    assert_eq!(world.get("../secret"), "secret\n");
    assert_eq!(world.get("../folder/secret"), "secret\n");
    assert_eq!(std::fs::read_dir(world.outside().join("folder")).expect("list").count(), 1);
}

#[test]
fn paths_outside_the_project_are_denied() {
    let world = world_with_secret();
    let outside = world.outside().join("secret").to_string_lossy().into_owned();
    let beside = format!("{}x/f", world.project().display());
    for path in
        ["../secret", "inside/../../secret", "/etc/passwd", "~/x", "~", "/", &outside, &beside, "a/../.."]
    {
        for (tool, parameters) in every_reader(path).into_iter().chain(every_writer(path)) {
            let error = world.call(tool, parameters).expect_err(path);
            assert!(error.is_denied(), "{tool} {path}: {error}");
            assert!(!format!("{error:?}").contains("secret\\n"));
        }
    }
    for path in ["a\0b", "\0"] {
        for (tool, parameters) in every_reader(path).into_iter().chain(every_writer(path)) {
            let error = world.call(tool, parameters).expect_err(path);
            assert_eq!(error, NativeError::failed("the path holds a NUL character"), "{tool}");
        }
    }
    secret_is_untouched(&world);
}

#[test]
fn absolute_paths_inside_the_project_are_fine() {
    let world = world_with_secret();
    let path = world.project().join("inside/f").to_string_lossy().into_owned();
    assert_eq!(world.ok("file_system.read", json!({"path": path}))["path"], "inside/f");
    world.ok("file_system.write", json!({"path": path, "content": "new\n"}));
    assert_eq!(world.get("inside/f"), "new\n");
    let pattern = world.project().join("inside/*").to_string_lossy().into_owned();
    assert_eq!(world.ok("file_system.glob", json!({"pattern": pattern}))["files"], json!(["inside/f"]));
    let denied = world.call("file_system.glob", json!({"pattern": "/etc/*"})).expect_err("outside");
    assert!(denied.is_denied());
    let denied = world.call("file_system.glob", json!({"pattern": "inside/../../*"})).expect_err("outside");
    assert!(denied.is_denied());
}

#[test]
fn links_that_leave_the_project_are_denied() {
    let world = world_with_secret();
    world.link("../secret", "out");
    world.link(world.outside().join("folder"), "away");
    world.link("/proc/self/root", "root");
    for path in ["out", "away/secret", "away", "root/etc/passwd"] {
        for (tool, parameters) in every_reader(path).into_iter().chain(every_writer(path)) {
            let error = world.call(tool, parameters).expect_err(path);
            assert!(error.is_denied(), "{tool} {path}: {error}");
        }
    }
    for path in ["away/new", "away/deep/new"] {
        let error = world.call("file_system.write", json!({"path": path, "content": "x"})).expect_err(path);
        assert!(error.is_denied(), "{path}: {error}");
    }
    // Walks do not go through links either.
    assert_eq!(world.ok("file_system.grep", json!({"pattern": "secret"}))["files"], json!([]));
    let found = world.ok("file_system.glob", json!({"pattern": "**/secret"}));
    assert_eq!(found["files"], json!([]));
    secret_is_untouched(&world);
}

#[test]
fn links_inside_the_project_are_read_but_not_written_through() {
    let world = world_with_secret();
    world.link("inside", "folder-link");
    world.link("inside/f", "file-link");
    assert_eq!(world.ok("file_system.read", json!({"path": "folder-link/f"}))["total_lines"], 1);
    assert_eq!(world.ok("file_system.read", json!({"path": "file-link"}))["total_lines"], 1);
    world.ok("file_system.write", json!({"path": "folder-link/f", "content": "new\n"}));
    assert_eq!(world.get("inside/f"), "new\n");
    for (tool, parameters) in every_writer("file-link") {
        let error = world.call(tool, parameters).expect_err("a link");
        assert!(error.is_denied() && error.message.contains("is a link"), "{error}");
    }
    assert_eq!(world.get("inside/f"), "new\n");
}

#[test]
fn hidden_places_are_neither_read_nor_listed_nor_written() {
    let mut world = world_with_secret();
    world.put("keys/private", "secret\n");
    world.put(".env", "secret=1\n");
    world.link("keys/private", "key-link");
    world.link("keys", "keys-link");
    world.access.hidden = vec![world.project().join("keys"), world.project().join(".env")];
    for path in [
        "keys/private",
        ".env",
        "key-link",
        "keys-link/private",
        "keys/../keys/private",
        "keys/none",
        "keys-link/none",
    ] {
        for (tool, parameters) in every_reader(path).into_iter().take(1).chain(every_writer(path)) {
            let error = world.call(tool, parameters).expect_err(path);
            assert!(error.is_denied(), "{tool} {path}: {error}");
        }
    }
    for path in ["keys", "keys-link"] {
        for (tool, parameters) in every_reader(path) {
            assert!(world.call(tool, parameters).expect_err(path).is_denied());
        }
    }
    let everything = [
        world.ok("file_system.ls", json!({"depth": 5, "include_hidden": true})),
        world.ok("file_system.glob", json!({"pattern": "**/*", "include_hidden": true})),
        world.ok("file_system.grep", json!({"pattern": "secret", "include_hidden": true})),
        world.ok("file_system.grep", json!({"pattern": "secret", "path": ".", "output_mode": "count"})),
    ];
    for answer in everything {
        // The links themselves may be seen, with what is written in them.
        let text = answer.to_string();
        for hidden in ["\"keys/private\",\"type", "\"keys\",\"type", ".env", "secret=", "secret\\n"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
        assert!(!answer["files"].as_array().is_some_and(|files| files.contains(&json!("keys/private"))));
    }
    assert_eq!(world.get("keys/private"), "secret\n");
}

#[test]
fn only_what_may_be_written_is_written() {
    let mut world = world_with_secret();
    world.put("work/f", "fine\n");
    world.put("work/fixed/f", "fine\n");
    world.put("work/lock.json", "fine\n");
    world.link("../inside", "work/up");
    world.access.write = vec![world.project().join("work")];
    world.access.read_only = vec![world.project().join("work/fixed"), world.project().join("work/lock.json")];
    for path in [
        "inside/f",
        "new",
        "work/fixed/f",
        "work/fixed/new/deep",
        "work/lock.json",
        "work/up/f",
        "work/up/new",
    ] {
        for (tool, parameters) in every_writer(path) {
            let error = world.call(tool, parameters).expect_err(path);
            assert!(error.is_denied(), "{tool} {path}: {error}");
        }
    }
    assert!(!world.project().join("work/fixed/new").exists());
    world.ok("file_system.write", json!({"path": "work/deep/er/f", "content": "x"}));
    assert_eq!(world.ok("file_system.read", json!({"path": "work/fixed/f"}))["total_lines"], 1);
    world.access.write.clear();
    assert!(
        world
            .call("file_system.write", json!({"path": "work/f", "content": "x"}))
            .expect_err("none")
            .is_denied()
    );
}

#[test]
fn what_is_not_a_regular_file_is_refused() {
    let world = world_with_secret();
    let pipe = world.project().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a pipe");
    let socket = std::os::unix::net::UnixListener::bind(world.project().join("socket")).expect("a socket");
    std::fs::create_dir(world.project().join(".gitignore")).expect("folder");
    for path in ["pipe", "socket", "inside"] {
        for (tool, parameters) in every_reader(path).into_iter().take(1).chain(every_writer(path)) {
            assert!(world.call(tool, parameters).is_err(), "{tool} {path}");
        }
    }
    // A rule file that is a pipe does not hang a walk.
    std::fs::remove_dir(world.project().join(".gitignore")).expect("removed");
    std::fs::rename(&pipe, world.project().join(".gitignore")).expect("renamed");
    assert_eq!(world.ok("file_system.grep", json!({"pattern": "fine"}))["matches"], 1);
    drop(socket);
}

#[test]
fn a_folder_that_is_swapped_for_a_link_never_leads_outside() {
    let world = world_with_secret();
    world.put("swap/f", "inside\n");
    let (here, aside) = (world.project().join("swap"), world.project().join("aside"));
    let target = world.outside().join("folder");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                // Each step may meet a half-made state; only where writes land matters.
                let _ = std::fs::rename(&here, &aside);
                let _ = std::os::unix::fs::symlink(&target, &here);
                let _ = std::fs::remove_file(&here);
                let _ = std::fs::rename(&aside, &here);
            }
        });
        for round in 0..400 {
            let content = format!("{round}\n");
            let _ = world.call("file_system.write", json!({"path": "swap/f", "content": content}));
            let _ = world.call("file_system.write", json!({"path": "swap/secret", "content": content}));
            let _ = world.call("file_system.write", json!({"path": "swap/new/deep", "content": content}));
            if let Ok(answer) = world.call("file_system.read", json!({"path": "swap/secret"})) {
                assert!(!answer.to_string().contains("|secret"), "{answer}");
            }
            if let Ok(answer) = world.call("file_system.grep", json!({"path": "swap", "pattern": "secret"})) {
                assert_eq!(answer["matches"], 0);
            }
        }
        is_done.store(true, Ordering::SeqCst);
    });
    secret_is_untouched(&world);
}

#[test]
fn a_cancelled_call_stops() {
    let world = world_with_secret();
    world.cancel.cancel();
    for (tool, parameters) in every_writer("inside/f").into_iter().chain(every_reader("").into_iter().skip(1))
    {
        assert_eq!(world.call(tool, parameters), Err(NativeError::failed("cancelled")), "{tool}");
    }
}
