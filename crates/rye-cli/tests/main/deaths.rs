//! The end of `rye` in the middle of a run: nothing goes on, nothing is half written, nothing piles up.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::running::{RYE, answer, assert_none_left, eventually, function, processes_with, signed};
use crate::support::{Snapshot, User, snapshot};

/// A tool that has a child in a session of its own, says that it has begun, and waits.
const WAITS: &str = r#"
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid() if os.getsid(0) != os.getpid() else None
        open(os.environ["TMPDIR"] + "/left", "w").close()
        open("begun", "w").close()
    time.sleep(600)
time.sleep(600)
"#;

/// Starts `rye execute team/<name>` with a temporary folder of the world's own.
fn start(user: &User, name: &str) -> Child {
    let mut command = user.program(RYE);
    command.env("TMPDIR", temporary(user)).args(["--json", "execute", &format!("team/{name}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started")
}

fn temporary(user: &User) -> PathBuf {
    let path = user.world.path().join("temporary");
    fs::create_dir_all(&path).expect("a folder");
    path
}

fn marker(user: &User) -> String {
    user.home().display().to_string()
}

fn begin(user: &User) -> Child {
    let child = start(user, "waits");
    assert!(eventually(|| user.project().join("begun").exists()));
    child
}

fn lockfiles(user: &User) -> Vec<PathBuf> {
    let folder = user.home().join(".ai/lockfiles");
    let files = if folder.is_dir() { snapshot(&folder) } else { Snapshot::new() };
    files.into_keys().filter(|path| path.is_file()).collect()
}

#[test]
fn a_killed_command_leaves_no_process_and_no_lockfile() {
    let user = User::ready();
    function(&user, "waits", WAITS);
    let mut child = begin(&user);
    assert!(processes_with(&marker(&user)).len() > 2);
    child.kill().expect("killed");
    assert_eq!(child.wait().expect("collected").signal(), Some(9));
    assert_none_left(&marker(&user));
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
}

#[test]
fn an_interrupted_command_ends_everything_and_says_so() {
    let user = User::ready();
    function(&user, "waits", WAITS);
    // Under `nohup` a hangup is ignored, here and in what is started from here.
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    let is_hangup_ignored = u64::from_str_radix(ignored.trim(), 16).expect("a mask") & 1 == 1;
    for signal in ["-INT", "-TERM", "-HUP"].iter().filter(|signal| !is_hangup_ignored || **signal != "-HUP") {
        let _ = fs::remove_file(user.project().join("begun"));
        let mut child = begin(&user);
        let sent = std::process::Command::new("kill").args([*signal, &child.id().to_string()]).status();
        assert!(sent.expect("sent").success());
        assert_eq!(child.wait().expect("ended").code(), Some(7), "{signal}");
        assert_none_left(&marker(&user));
        assert_eq!(fs::read_dir(temporary(&user)).expect("the folder").count(), 0);
    }
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
}

#[test]
fn the_next_run_removes_what_a_killed_one_left() {
    let user = User::ready();
    function(&user, "waits", WAITS);
    function(&user, "quick", "return 1");
    for _ in 0..3 {
        let _ = fs::remove_file(user.project().join("begun"));
        let mut child = begin(&user);
        child.kill().expect("killed");
        child.wait().expect("collected");
        assert_none_left(&marker(&user));
    }
    // Somebody else's folder and a file of that name are left alone.
    fs::create_dir(temporary(&user).join("others")).expect("a folder");
    fs::write(temporary(&user).join("rye-run-file"), "x").expect("a file");
    assert!(start(&user, "quick").wait().expect("ended").success());
    let mut left: Vec<_> = fs::read_dir(temporary(&user))
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["others", "rye-run-file"]);
}

#[test]
fn a_run_does_not_remove_the_folder_of_another_that_goes_on() {
    let user = User::ready();
    function(&user, "waits", WAITS);
    function(&user, "quick", "return 1");
    let mut child = begin(&user);
    let held: Vec<PathBuf> = fs::read_dir(temporary(&user))
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(held.len(), 1);
    assert!(start(&user, "quick").wait().expect("ended").success());
    assert!(held[0].join("left").exists());
    child.kill().expect("killed");
    child.wait().expect("collected");
    assert_none_left(&marker(&user));
}

#[test]
fn a_command_killed_at_any_moment_leaves_no_half_written_lockfile() {
    let user = User::ready();
    for round in 0..24_u64 {
        let name = format!("tool{round}");
        let text = crate::running::function_text("", &format!("return {round}"));
        user.write(&format!("tools/team/{name}.py"), text);
    }
    user.ok(["sign", "tool", "team/*"]);
    for round in 0..24_u64 {
        let mut child = start(&user, &format!("tool{round}"));
        std::thread::sleep(Duration::from_millis(round * 15));
        child.kill().expect("killed");
        child.wait().expect("collected");
    }
    assert_none_left(&marker(&user));
    for path in lockfiles(&user) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        // What a killed writer had begun has another name, which nobody reads.
        if name.ends_with(".lock.json") {
            let text = fs::read(&path).expect("a lockfile");
            serde_json::from_slice::<serde_json::Value>(&text)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    user.ok(["lock", "verify"]);
    for round in 0..24_u64 {
        assert_eq!(answer(&user, &format!("tool{round}"), &[])["data"], json!(round));
    }
}

#[test]
fn a_command_killed_while_nothing_confines_the_tool_leaves_no_process() {
    let user = User::ready();
    crate::running::sandbox_settings(&user, "level: \"off\"\n");
    function(&user, "waits", WAITS);
    let mut child = begin(&user);
    child.kill().expect("killed");
    child.wait().expect("collected");
    assert_none_left(&marker(&user));
    signed(&user, "team/waits", "py", &crate::running::function_text("CONFIG = {'timeout': 1}", WAITS));
    assert_eq!(start(&user, "waits").wait().expect("ended").code(), Some(1));
    assert_none_left(&marker(&user));
}
