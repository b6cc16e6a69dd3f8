//! Paths from outside: nothing is read or written beyond the project, or where policy says no.

use std::sync::atomic::{AtomicBool, Ordering};

use rye_exec::NativeError;
use serde_json::{Value, json};

use crate::support::TestProject;

fn reader_calls(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("file_system.read", json!({"path": path})),
        ("file_system.ls", json!({"path": path})),
        ("file_system.glob", json!({"path": path, "pattern": "*"})),
        ("file_system.grep", json!({"path": path, "pattern": "secret"})),
    ]
}

fn writer_calls(path: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("file_system.write", json!({"path": path, "content": "broken"})),
        (
            "file_system.edit_lines",
            json!({"path": path, "changes": [{"insert_after": "start", "new_content": "broken"}]}),
        ),
    ]
}

fn world_with_secret() -> TestProject {
    let project = TestProject::new();
    project.write("../secret", "secret\n");
    project.write("../folder/secret", "secret\n");
    project.write("inside/f", "fine\n");
    project
}

fn assert_secret_is_untouched(project: &TestProject) {
    assert_eq!(project.read("../secret"), "secret\n");
    assert_eq!(project.read("../folder/secret"), "secret\n");
    assert_eq!(std::fs::read_dir(project.outside().join("folder")).expect("list").count(), 1);
}

#[test]
fn paths_outside_the_project_are_denied() {
    let fixture = world_with_secret();
    let outside = fixture.outside().join("secret").to_string_lossy().into_owned();
    let beside = format!("{}x/f", fixture.project().display());
    for path in
        ["../secret", "inside/../../secret", "/etc/passwd", "~/x", "~", "/", &outside, &beside, "a/../.."]
    {
        for (tool, parameters) in reader_calls(path).into_iter().chain(writer_calls(path)) {
            let error = fixture.call(tool, parameters).expect_err(path);
            assert!(error.is_denied(), "{tool} {path}: {error}");
            assert!(!format!("{error:?}").contains("secret\\n"));
        }
    }
    for path in ["a\0b", "\0"] {
        for (tool, parameters) in reader_calls(path).into_iter().chain(writer_calls(path)) {
            let error = fixture.call(tool, parameters).expect_err(path);
            assert_eq!(error, NativeError::failed("the path holds a NUL character"), "{tool}");
        }
    }
    assert_secret_is_untouched(&fixture);
}

#[test]
fn absolute_paths_inside_the_project_work() {
    let fixture = world_with_secret();
    let path = fixture.project().join("inside/f").to_string_lossy().into_owned();
    assert_eq!(fixture.ok("file_system.read", json!({"path": path}))["path"], "inside/f");
    fixture.ok("file_system.write", json!({"path": path, "content": "new\n"}));
    assert_eq!(fixture.read("inside/f"), "new\n");
    let pattern = fixture.project().join("inside/*").to_string_lossy().into_owned();
    assert_eq!(fixture.ok("file_system.glob", json!({"pattern": pattern}))["files"], json!(["inside/f"]));
    let denied = fixture.call("file_system.glob", json!({"pattern": "/etc/*"})).expect_err("outside");
    assert!(denied.is_denied());
    let denied = fixture.call("file_system.glob", json!({"pattern": "inside/../../*"})).expect_err("outside");
    assert!(denied.is_denied());
}

#[test]
fn links_that_leave_the_project_are_denied() {
    let project = world_with_secret();
    project.symlink("../secret", "out");
    project.symlink(project.outside().join("folder"), "away");
    project.symlink("/proc/self/root", "root");
    for path in ["out", "away/secret", "away", "root/etc/passwd"] {
        for (tool, parameters) in reader_calls(path).into_iter().chain(writer_calls(path)) {
            let error = project.call(tool, parameters).expect_err(path);
            assert!(error.is_denied(), "{tool} {path}: {error}");
        }
    }
    for path in ["away/new", "away/deep/new"] {
        let error = project.call("file_system.write", json!({"path": path, "content": "x"})).expect_err(path);
        assert!(error.is_denied(), "{path}: {error}");
    }
    // Walks do not go through links either.
    assert_eq!(project.ok("file_system.grep", json!({"pattern": "secret"}))["files"], json!([]));
    let found = project.ok("file_system.glob", json!({"pattern": "**/secret"}));
    assert_eq!(found["files"], json!([]));
    assert_secret_is_untouched(&project);
}

#[test]
fn inner_links_are_readable_but_not_writable() {
    let project = world_with_secret();
    project.symlink("inside", "folder-link");
    project.symlink("inside/f", "file-link");
    assert_eq!(project.ok("file_system.read", json!({"path": "folder-link/f"}))["total_lines"], 1);
    assert_eq!(project.ok("file_system.read", json!({"path": "file-link"}))["total_lines"], 1);
    project.ok("file_system.write", json!({"path": "folder-link/f", "content": "new\n"}));
    assert_eq!(project.read("inside/f"), "new\n");
    for (tool, parameters) in writer_calls("file-link") {
        let error = project.call(tool, parameters).expect_err("a link");
        assert!(error.is_denied() && error.message.contains("is a link"), "{error}");
    }
    assert_eq!(project.read("inside/f"), "new\n");
}

#[test]
fn hidden_paths_are_inaccessible() {
    let mut fixture = world_with_secret();
    fixture.write("keys/private", "secret\n");
    fixture.write(".env", "secret=1\n");
    fixture.symlink("keys/private", "key-link");
    fixture.symlink("keys", "keys-link");
    fixture.access.hidden = vec![fixture.project().join("keys"), fixture.project().join(".env")];
    for path in [
        "keys/private",
        ".env",
        "key-link",
        "keys-link/private",
        "keys/../keys/private",
        "keys/none",
        "keys-link/none",
    ] {
        for (tool, parameters) in reader_calls(path).into_iter().take(1).chain(writer_calls(path)) {
            let error = fixture.call(tool, parameters).expect_err(path);
            assert!(error.is_denied(), "{tool} {path}: {error}");
            let reason = match (tool, path) {
                ("file_system.write", "key-link") => "is a link and is not written through",
                ("file_system.write", _) => "may not be written: it is hidden",
                _ => "",
            };
            assert!(error.to_string().contains(reason), "{tool} {path}: {error}");
        }
    }
    for path in ["keys", "keys-link"] {
        for (tool, parameters) in reader_calls(path) {
            assert!(fixture.call(tool, parameters).expect_err(path).is_denied());
        }
    }
    let everything = [
        fixture.ok("file_system.ls", json!({"depth": 5, "include_hidden": true})),
        fixture.ok("file_system.glob", json!({"pattern": "**/*", "include_hidden": true})),
        fixture.ok("file_system.grep", json!({"pattern": "secret", "include_hidden": true})),
        fixture.ok("file_system.grep", json!({"pattern": "secret", "path": ".", "output_mode": "count"})),
    ];
    for answer in everything {
        // The links themselves may be seen, with what is written in them.
        let text = answer.to_string();
        for hidden in ["\"keys/private\",\"type", "\"keys\",\"type", ".env", "secret=", "secret\\n"] {
            assert!(!text.contains(hidden), "{hidden}: {text}");
        }
        assert!(!answer["files"].as_array().is_some_and(|files| files.contains(&json!("keys/private"))));
    }
    assert_eq!(fixture.read("keys/private"), "secret\n");
}

#[test]
fn writes_need_an_allowed_folder() {
    let mut fixture = world_with_secret();
    fixture.write("work/f", "fine\n");
    fixture.write("work/fixed/f", "fine\n");
    fixture.write("work/lock.json", "fine\n");
    fixture.symlink("../inside", "work/up");
    fixture.access.write = vec![fixture.project().join("work")];
    fixture.access.read_only =
        vec![fixture.project().join("work/fixed"), fixture.project().join("work/lock.json")];
    for path in [
        "inside/f",
        "new",
        "work/fixed/f",
        "work/fixed/new/deep",
        "work/lock.json",
        "work/up/f",
        "work/up/new",
    ] {
        for (tool, parameters) in writer_calls(path) {
            let error = fixture.call(tool, parameters).expect_err(path);
            assert!(error.is_denied(), "{tool} {path}: {error}");
        }
    }
    assert!(!fixture.project().join("work/fixed/new").exists());
    fixture.ok("file_system.write", json!({"path": "work/deep/er/f", "content": "x"}));
    assert_eq!(fixture.ok("file_system.read", json!({"path": "work/fixed/f"}))["total_lines"], 1);
    fixture.access.write.clear();
    assert!(
        fixture
            .call("file_system.write", json!({"path": "work/f", "content": "x"}))
            .expect_err("none")
            .is_denied()
    );
}

/// Git takes a folder with these for a repository, whatever its name, and runs what its config names.
#[test]
fn writes_make_no_folder_a_repository() {
    let parts = ["HEAD", "objects/x", "refs/x", "config"];
    for first in 0..parts.len() {
        let fixture = TestProject::new();
        let written = (0..parts.len()).filter(|number| {
            let path = format!("docs/{}", parts[(first + number) % parts.len()]);
            let written = fixture
                .call("file_system.write", json!({"path": path, "content": "x", "create_folders": true}));
            written.map_err(|error| assert!(error.is_denied(), "{error}")).is_ok()
        });
        assert!(written.count() >= 2, "the parts themselves are ordinary names");
        let has = |name: &str| fixture.project().join("docs").join(name).exists();
        assert!(!(has("HEAD") && has("objects") && has("refs")), "from {first}");
    }
    let fixture = TestProject::new();
    for (before, path) in [
        (&["work/commondir"][..], "work/HEAD"),
        (&["work/HEAD"], "work/commondir"),
        (&["bare/HEAD", "bare/objects/x", "bare/refs/x", "bare/config"], "bare/config"),
        (&["bare/HEAD", "bare/objects/x", "bare/refs/x"], "bare/hooks/post-checkout"),
        (&["HEAD", "objects/x"], "refs/heads/main"),
    ] {
        before.iter().for_each(|path| fixture.write(path, "x"));
        let refused =
            fixture.call("file_system.write", json!({"path": path, "content": "y", "create_folders": true}));
        assert!(refused.expect_err(path).message.contains("git repository"), "{path}");
    }
}

#[test]
fn special_files_are_refused() {
    let fixture = world_with_secret();
    let pipe = fixture.project().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a pipe");
    let socket = std::os::unix::net::UnixListener::bind(fixture.project().join("socket")).expect("a socket");
    std::fs::create_dir(fixture.project().join(".gitignore")).expect("folder");
    for path in ["pipe", "socket", "inside"] {
        for (tool, parameters) in reader_calls(path).into_iter().take(1).chain(writer_calls(path)) {
            assert!(fixture.call(tool, parameters).is_err(), "{tool} {path}");
        }
    }
    // A rule file that is a pipe does not hang a walk.
    std::fs::remove_dir(fixture.project().join(".gitignore")).expect("removed");
    std::fs::rename(&pipe, fixture.project().join(".gitignore")).expect("renamed");
    assert_eq!(fixture.ok("file_system.grep", json!({"pattern": "fine"}))["matches"], 1);
    drop(socket);
}

#[test]
fn folder_swapped_for_link_never_escapes() {
    let fixture = world_with_secret();
    fixture.write("swap/f", "inside\n");
    let (here, aside) = (fixture.project().join("swap"), fixture.project().join("aside"));
    let target = fixture.outside().join("folder");
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
            let _ = fixture.call("file_system.write", json!({"path": "swap/f", "content": content}));
            let _ = fixture.call("file_system.write", json!({"path": "swap/secret", "content": content}));
            let _ = fixture.call("file_system.write", json!({"path": "swap/new/deep", "content": content}));
            if let Ok(answer) = fixture.call("file_system.read", json!({"path": "swap/secret"})) {
                assert!(!answer.to_string().contains("|secret"), "{answer}");
            }
            if let Ok(answer) = fixture.call("file_system.grep", json!({"path": "swap", "pattern": "secret"}))
            {
                assert_eq!(answer["matches"], 0);
            }
        }
        is_done.store(true, Ordering::SeqCst);
    });
    assert_secret_is_untouched(&fixture);
}

#[test]
fn a_cancelled_call_stops() {
    let project = world_with_secret();
    project.cancel.cancel();
    for (tool, parameters) in writer_calls("inside/f").into_iter().chain(reader_calls("").into_iter().skip(1))
    {
        assert_eq!(project.call(tool, parameters), Err(NativeError::failed("cancelled")), "{tool}");
    }
}
