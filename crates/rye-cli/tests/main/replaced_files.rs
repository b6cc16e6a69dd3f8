//! A protected file that the user replaces while a tool runs is not protected from then on: the receipt says so.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Run, User, text};
use crate::tool_support::eventually;

/// `O_NONBLOCK`: a pipe without a reader is not opened.
const NO_WAIT: i32 = 0o4000;

/// Runs a tool that waits, does `meanwhile` while it runs, and gives the answer.
fn run_while(user: &User, meanwhile: impl FnOnce()) -> Value {
    let pipe = user.project().join("pipe");
    let made = user.program("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let mut command = user.program(env!("CARGO_BIN_EXE_rye"));
    command.args(["--json", "execute", "rye/bash", "command=cat pipe"]).stdin(Stdio::null());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("rye");
    // It can be opened once the tool has opened its end.
    let mut end = None;
    let is_open = eventually(|| {
        end = std::fs::OpenOptions::new().write(true).custom_flags(NO_WAIT).open(&pipe).ok();
        end.is_some()
    });
    assert!(is_open, "the tool did not begin");
    let mut open = end.expect("a pipe");
    meanwhile();
    open.write_all(b"go").expect("written");
    drop(open);
    let run = Run::from_output(&child.wait_with_output().expect("an end"));
    assert_eq!(run.exit, 0, "{run}");
    std::fs::remove_file(pipe).expect("removed");
    run.json()
}

#[test]
fn replaced_protected_file_is_named_in_the_receipt() {
    let user = User::initialized();
    let file = user.context.write("project/.mcp.json", "{}\n");
    let answer = run_while(&user, || {});
    assert_eq!(answer["sandbox"]["replaced"], Value::Null, "{answer}");
    // Written again in place, it is the same file under the same mount.
    let answer = run_while(&user, || std::fs::write(&file, "{}\n\n").expect("written"));
    assert_eq!(answer["sandbox"]["replaced"], Value::Null, "{answer}");

    let answer = run_while(&user, || {
        let new = user.context.write("project/new.json", "{}\n");
        std::fs::rename(new, &file).expect("replaced");
    });
    assert_eq!(text(&answer["sandbox"]["level"]), "partial", "{answer}");
    assert_eq!(text(&answer["sandbox"]["replaced"][0]), file.display().to_string(), "{answer}");
    assert!(answer["warnings"].to_string().contains(".mcp.json` was replaced"), "{answer}");
    // The next run protects the new file.
    let answer = run_while(&user, || {});
    assert_eq!(answer["sandbox"]["replaced"], Value::Null, "{answer}");
}

#[test]
fn name_taken_during_a_run_is_named() {
    let user = User::initialized();
    let file = user.project().join(".envrc");
    let answer = run_while(&user, || {
        let new = user.context.write("project/new", "export A=1\n");
        std::fs::rename(new, &file).expect("taken");
    });
    assert_eq!(text(&answer["sandbox"]["replaced"][0]), file.display().to_string(), "{answer}");
    assert_eq!(std::fs::read_to_string(&file).expect("kept"), "export A=1\n");
}
