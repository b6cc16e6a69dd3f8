//! The end of `rye` in the middle of a run: nothing continues, nothing is half written, nothing piles up.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde_json::json;

use crate::support::{Snapshot, User, snapshot};
use crate::tool_support::{
    RYE, assert_no_processes, eventually, execute, processes_with, wait_for_io, write_function,
    write_signed_tool,
};

/// A tool that has a child in a session of its own, says that it has begun, and waits.
const WAITING_TOOL: &str = r#"
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

/// How many reads and writes later each kill comes.
const CALLS_PER_ROUND: u64 = 12;

/// Starts `rye execute team/<name>` with a temporary folder of the world's own.
fn start(user: &User, name: &str) -> Child {
    let mut command = user.program(RYE);
    command.env("TMPDIR", temporary_dir(user)).args(["--json", "execute", &format!("team/{name}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("started")
}

fn temporary_dir(user: &User) -> PathBuf {
    let path = user.context.path().join("temporary");
    fs::create_dir_all(&path).expect("a folder");
    path
}

fn marker(user: &User) -> String {
    user.home().display().to_string()
}

fn start_and_wait(user: &User) -> Child {
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
fn killed_command_leaves_no_trace() {
    let user = User::initialized();
    write_function(&user, "waits", WAITING_TOOL);
    let mut child = start_and_wait(&user);
    assert!(processes_with(&marker(&user)).len() > 2);
    child.kill().expect("killed");
    assert_eq!(child.wait().expect("collected").signal(), Some(9));
    assert_no_processes(&marker(&user));
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
}

#[test]
fn interrupt_ends_all_processes() {
    let user = User::initialized();
    write_function(&user, "waits", WAITING_TOOL);
    // Under `nohup` a hangup is ignored, here and in what is started from here.
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("a mask");
    let is_hangup_ignored = u64::from_str_radix(ignored.trim(), 16).expect("a mask") & 1 == 1;
    for signal in ["-INT", "-TERM", "-HUP"].iter().filter(|signal| !is_hangup_ignored || **signal != "-HUP") {
        let _ = fs::remove_file(user.project().join("begun"));
        let mut child = start_and_wait(&user);
        let sent = std::process::Command::new("kill").args([*signal, &child.id().to_string()]).status();
        assert!(sent.expect("sent").success());
        assert_eq!(child.wait().expect("ended").code(), Some(7), "{signal}");
        assert_no_processes(&marker(&user));
        assert_eq!(fs::read_dir(temporary_dir(&user)).expect("the folder").count(), 0);
    }
    assert_eq!(lockfiles(&user), Vec::<PathBuf>::new());
}

#[test]
fn next_run_removes_leftovers() {
    let user = User::initialized();
    write_function(&user, "waits", WAITING_TOOL);
    write_function(&user, "quick", "return 1");
    for _ in 0..3 {
        let _ = fs::remove_file(user.project().join("begun"));
        let mut child = start_and_wait(&user);
        child.kill().expect("killed");
        child.wait().expect("collected");
        assert_no_processes(&marker(&user));
    }
    // Another user's folder and a file of that name are left alone.
    fs::create_dir(temporary_dir(&user).join("others")).expect("a folder");
    fs::write(temporary_dir(&user).join("rye-run-file"), "x").expect("a file");
    assert!(start(&user, "quick").wait().expect("ended").success());
    let mut left: Vec<_> = fs::read_dir(temporary_dir(&user))
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    left.sort();
    assert_eq!(left, ["others", "rye-run-file"]);
}

#[test]
fn cleanup_keeps_dirs_of_running_tools() {
    let user = User::initialized();
    write_function(&user, "waits", WAITING_TOOL);
    write_function(&user, "quick", "return 1");
    let mut child = start_and_wait(&user);
    let entries = |folder: PathBuf| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).expect("the folder");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    };
    let of_user = entries(temporary_dir(&user));
    assert_eq!(of_user.len(), 1);
    let pending = entries(of_user[0].clone());
    assert_eq!(pending.len(), 1);
    assert!(start(&user, "quick").wait().expect("ended").success());
    assert!(pending[0].join("left").exists());
    child.kill().expect("killed");
    child.wait().expect("collected");
    assert_no_processes(&marker(&user));
}

#[test]
fn kill_never_leaves_a_partial_lockfile() {
    let user = User::initialized();
    for round in 0..24_u64 {
        let name = format!("tool{round}");
        let text = crate::tool_support::function_text("", &format!("return {round}"));
        user.write(&format!("tools/team/{name}.py"), text);
    }
    user.ok(["sign", "tool", "team/*", "--yes"]);
    for round in 0..24_u64 {
        let mut child = start(&user, &format!("tool{round}"));
        wait_for_io(&mut child, round * CALLS_PER_ROUND);
        child.kill().expect("killed");
        child.wait().expect("collected");
    }
    assert_no_processes(&marker(&user));
    for path in lockfiles(&user) {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        // What a killed writer had begun has another name, which no one reads.
        if name.ends_with(".lock.json") {
            let text = fs::read(&path).expect("a lockfile");
            serde_json::from_slice::<serde_json::Value>(&text)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
    user.ok(["lock", "verify"]);
    for round in 0..24_u64 {
        assert_eq!(execute(&user, &format!("tool{round}"), &[])["data"], json!(round));
    }
}

#[test]
fn kill_without_sandbox_leaves_no_process() {
    let user = User::initialized();
    crate::tool_support::sandbox_settings(&user, "level: \"off\"\n");
    write_function(&user, "waits", WAITING_TOOL);
    let mut child = start_and_wait(&user);
    child.kill().expect("killed");
    child.wait().expect("collected");
    assert_no_processes(&marker(&user));
    write_signed_tool(
        &user,
        "team/waits",
        "py",
        &crate::tool_support::function_text("CONFIG = {'timeout': 1}", WAITING_TOOL),
    );
    assert_eq!(start(&user, "waits").wait().expect("ended").code(), Some(1));
    assert_no_processes(&marker(&user));
}
