//! Talking to a process while it runs, and ending it.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::time::Duration;

use lillux::confine::{Confinement, OnMissing};
use lillux::process::{Opened, RunError, open};

use crate::support::{bash, command, launcher, left_behind, python};

/// Sends each line and gives what came back for it.
fn converse(opened: Opened, lines: &[&str]) -> (Vec<String>, Opened) {
    let Opened { stdin, stdout, stderr, guard } = opened;
    let mut writer = File::from(stdin);
    let mut reader = BufReader::new(File::from(stdout));
    let mut answers = Vec::new();
    for line in lines {
        writeln!(writer, "{line}").expect("it listens");
        let mut answer = String::new();
        reader.read_line(&mut answer).expect("it answers");
        answers.push(answer.trim_end().to_owned());
    }
    (answers, Opened { stdin: writer.into(), stdout: reader.into_inner().into(), stderr, guard })
}

const ECHO: &str = "import sys\nfor line in sys.stdin: print('<' + line.strip() + '>', flush=True)";

#[test]
fn a_process_is_talked_to_while_it_runs() {
    let command = python(ECHO);
    let opened = open(&launcher(), &command, None).expect("it began");
    let (answers, opened) = converse(opened, &["one", "two"]);
    assert_eq!(answers, ["<one>", "<two>"]);
    // It ends by itself when nobody can say anything more.
    drop(opened.stdin);
    let mut rest = String::new();
    File::from(opened.stdout).read_to_string(&mut rest).expect("its end");
    assert_eq!(rest, "");
    drop(opened.guard);
    assert_eq!(left_behind(&command), Vec::<String>::new());
}

#[test]
fn dropping_the_guard_ends_every_descendant() {
    let command = bash(
        "trap '' TERM HUP PIPE; setsid sleep 1000 & (setsid sleep 1000 & sleep 1000) & echo ready; cat; sleep 1000",
    );
    let opened = open(&launcher(), &command, None).expect("it began");
    let mut line = String::new();
    let mut reader = BufReader::new(File::from(opened.stdout));
    reader.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    assert!(left_behind(&command).len() > 2, "{:?}", left_behind(&command));
    drop(opened.guard);
    assert_eq!(left_behind(&command), Vec::<String>::new());
}

#[test]
fn its_time_is_bounded() {
    let mut command = bash("echo why >&2; sleep 1000");
    // How long it takes to begin depends on the machine.
    let printed = (0..10).map(|step| {
        command.timeout = Duration::from_millis(200 << step);
        let Opened { stdin, stdout, stderr, guard } = open(&launcher(), &command, None).expect("it began");
        let mut text = String::new();
        File::from(stdout).read_to_string(&mut text).expect("its end");
        File::from(stderr).read_to_string(&mut text).expect("its end");
        drop((stdin, guard));
        assert_eq!(left_behind(&command), Vec::<String>::new());
        text
    });
    assert_eq!(printed.into_iter().find(|text| !text.is_empty()).as_deref(), Some("why\n"));
}

#[test]
fn a_process_that_ends_at_once_was_begun() {
    for _ in 0..10 {
        let opened = open(&launcher(), &command("true", &[]), None).expect("it began");
        let mut text = String::new();
        File::from(opened.stdout).read_to_string(&mut text).expect("its end");
        assert_eq!(text, "");
    }
}

#[test]
fn confinement_holds() {
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
    let confinement =
        Confinement { write: vec![mine.clone()], on_missing: OnMissing::Refuse, ..Confinement::new() };
    let opened = open(&launcher(), &python(&script), Some(&confinement)).expect("it began");
    let (answers, opened) = converse(opened, &["/mine/a", "/other", "net"]);
    assert_eq!(answers, ["done", "refused", "refused"]);
    drop(opened);
    assert!(mine.join("a").exists() && !folder.path().join("other").exists());
}

#[test]
fn what_cannot_begin_is_told() {
    let missing = open(&launcher(), &command("no-such-program", &[]), None);
    assert!(matches!(missing, Err(RunError::NotFound { .. })), "{missing:?}");
    let mut nowhere = command("true", &[]);
    nowhere.folder = "/no/such/folder".into();
    let failed = open(&launcher(), &nowhere, None);
    assert!(
        matches!(&failed, Err(RunError::Failed { reason }) if reason.contains("/no/such/folder")),
        "{failed:?}"
    );
    let mut fed = command("true", &[]);
    fed.stdin = b"x".to_vec();
    assert!(matches!(open(&launcher(), &fed, None), Err(RunError::Invalid { .. })));
}
