//! Talking to a process while it runs, and ending it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use lillux::process::{InteractiveProcess, RunError, spawn_interactive};
use lillux::sandbox::{Confinement, MissingRulePolicy};

use crate::support::{bash, command, launcher, leftover_processes, python};

/// Sends each line and gives what came back for it.
fn converse(process: InteractiveProcess, lines: &[&str]) -> (Vec<String>, InteractiveProcess) {
    let InteractiveProcess { stdin, stdout, stderr, guard } = process;
    let mut writer = File::from(stdin);
    let mut reader = BufReader::new(File::from(stdout));
    let mut replies = Vec::new();
    for line in lines {
        writeln!(writer, "{line}").expect("it listens");
        let mut reply = String::new();
        reader.read_line(&mut reply).expect("it answers");
        replies.push(reply.trim_end().to_owned());
    }
    (replies, InteractiveProcess { stdin: writer.into(), stdout: reader.into_inner().into(), stderr, guard })
}

const ECHO: &str = "import sys\nfor line in sys.stdin: print('<' + line.strip() + '>', flush=True)";

#[test]
fn interactive_process_answers_while_running() {
    let command = python(ECHO);
    let process = spawn_interactive(&launcher(), &command, None).expect("it began");
    let (replies, process) = converse(process, &["one", "two"]);
    assert_eq!(replies, ["<one>", "<two>"]);
    // It ends by itself when no one can say anything more.
    drop(process.stdin);
    let mut rest = String::new();
    File::from(process.stdout).read_to_string(&mut rest).expect("its end");
    assert_eq!(rest, "");
    drop(process.guard);
    assert_eq!(leftover_processes(&command), Vec::<String>::new());
}

#[test]
fn dropping_the_guard_ends_every_descendant() {
    let command = bash(
        "trap '' TERM HUP PIPE; setsid sleep 1000 & (setsid sleep 1000 & sleep 1000) & echo ready; cat; sleep 1000",
    );
    let process = spawn_interactive(&launcher(), &command, None).expect("it began");
    let mut line = String::new();
    let mut reader = BufReader::new(File::from(process.stdout));
    reader.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    assert!(leftover_processes(&command).len() > 2, "{:?}", leftover_processes(&command));
    drop(process.guard);
    assert_eq!(leftover_processes(&command), Vec::<String>::new());
}

#[test]
fn interactive_process_times_out() {
    let mut command = bash("echo why >&2; sleep 1000");
    // How long it takes to begin depends on the machine.
    let printed = (0..10).map(|step| {
        command.timeout = Duration::from_millis(200 << step);
        let InteractiveProcess { stdin, stdout, stderr, guard } =
            spawn_interactive(&launcher(), &command, None).expect("it began");
        let mut text = String::new();
        File::from(stdout).read_to_string(&mut text).expect("its end");
        File::from(stderr).read_to_string(&mut text).expect("its end");
        drop((stdin, guard));
        assert_eq!(leftover_processes(&command), Vec::<String>::new());
        text
    });
    assert_eq!(printed.into_iter().find(|text| !text.is_empty()).as_deref(), Some("why\n"));
}

#[test]
fn immediate_exit_counts_as_started() {
    for _ in 0..10 {
        let process = spawn_interactive(&launcher(), &command("true", &[]), None).expect("it began");
        let mut text = String::new();
        File::from(process.stdout).read_to_string(&mut text).expect("its end");
        assert_eq!(text, "");
    }
}

#[test]
fn interactive_process_is_confined() {
    let folder = tempfile::tempdir().expect("a folder");
    let mine = folder.path().join("mine");
    std::fs::create_dir(&mine).expect("a folder");
    let script = format!(
        "import socket, sys\n\
         for line in sys.stdin:\n\
         \x20   try:\n\
         \x20       if line.strip() == 'net': socket.create_connection(('127.0.0.1', 1))\n\
         \x20       else: open('{}' + line.strip(), 'w').close()\n\
         \x20       print('done', flush=True)\n\
         \x20   except ConnectionRefusedError: print('reached', flush=True)\n\
         \x20   except OSError: print('refused', flush=True)",
        folder.path().display()
    );
    let confinement = Confinement {
        write: vec![mine.clone()],
        on_missing: MissingRulePolicy::Refuse,
        ..Confinement::new()
    };
    let process = spawn_interactive(&launcher(), &python(&script), Some(&confinement)).expect("it began");
    let (replies, process) = converse(process, &["/mine/a", "/other", "net"]);
    assert_eq!(replies, ["done", "refused", "refused"]);
    drop(process);
    assert!(mine.join("a").exists() && !folder.path().join("other").exists());
}

#[test]
fn start_failures_are_reported() {
    let missing = spawn_interactive(&launcher(), &command("no-such-program", &[]), None);
    assert!(matches!(missing, Err(RunError::NotFound { .. })), "{missing:?}");
    let mut nowhere = command("true", &[]);
    nowhere.current_dir = "/no/such/folder".into();
    let failed = spawn_interactive(&launcher(), &nowhere, None);
    assert!(
        matches!(&failed, Err(RunError::Failed { reason }) if reason.contains("/no/such/folder")),
        "{failed:?}"
    );
    let mut fed = command("true", &[]);
    fed.stdin = b"x".to_vec();
    assert!(matches!(spawn_interactive(&launcher(), &fed, None), Err(RunError::Invalid { .. })));
}
