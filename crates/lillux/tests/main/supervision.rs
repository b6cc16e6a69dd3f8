//! Running to the end: output, input, codes, time, cancellation, descendants.

use std::time::Duration;

use lillux::CancelToken;
use lillux::process::{CapturedOutput, ExitReason, Launcher, RunError, run, spawn_detached};
use lillux::sandbox::EnforcementLevel;

use crate::support::{
    bash, command, exists, launcher, leftover_processes, python, run_unconfined, run_until_timeout,
    wait_until,
};

#[test]
fn output_and_code_come_back() {
    let finished = run_unconfined(&bash("echo out; echo err >&2; exit 7"));
    assert_eq!(
        (finished.exit, finished.stdout.to_text().as_str(), finished.stderr.to_text().as_str()),
        (ExitReason::Exited(7), "out\n", "err\n")
    );
    assert_eq!((finished.result, finished.receipt.level), (None, EnforcementLevel::Off));
}

#[test]
fn signal_exit_is_reported() {
    assert_eq!(run_unconfined(&bash("kill -SEGV $$")).exit, ExitReason::Signalled(11));
}

#[test]
fn environment_is_exactly_as_specified() {
    let mut command = command("env", &[]);
    command.environment.insert("X".to_owned(), "a b\nc".to_owned());
    let expected: Vec<String> =
        command.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(run_unconfined(&command).stdout.to_text(), expected.join("\n") + "\n");
}

#[test]
fn only_expected_descriptors_are_open() {
    let mut command = bash("echo $RYE_RESULT_FD; ls -l /proc/self/fd | grep -c -- '->'");
    command.has_result_channel = true;
    let text = run_unconfined(&command).stdout.to_text();
    // Input, output, error, the result, and the folder `ls` reads.
    assert!(text.ends_with("\n5\n"), "{text}");
}

#[test]
fn a_result_has_its_own_channel() {
    let mut command = bash("echo noise; printf '{\"a\":1}' >&$RYE_RESULT_FD");
    command.has_result_channel = true;
    let finished = run_unconfined(&command);
    assert_eq!(finished.stdout.to_text(), "noise\n");
    assert_eq!(finished.result, Some(CapturedOutput { head: b"{\"a\":1}".to_vec(), tail: vec![], total: 7 }));
    command.limits.result_bytes = 3;
    assert!(
        run_unconfined(&command).result.is_some_and(|result| result.is_truncated() && result.head == b"{\"a")
    );
}

#[test]
fn input_larger_than_a_pipe_arrives_whole() {
    let mut command = command("sha256sum", &["-"]);
    command.stdin = vec![b'x'; 3 << 20];
    let digest = lillux::Digest::of(&command.stdin).to_string();
    let text = run_unconfined(&command).stdout.to_text();
    assert!(digest.ends_with(text.split(' ').next().expect("a digest")), "{digest} {text}");
}

#[test]
fn unread_input_does_not_hang() {
    let mut command = command("true", &[]);
    command.stdin = vec![b'x'; 3 << 20];
    assert_eq!(run_unconfined(&command).exit, ExitReason::Exited(0));
}

#[test]
fn large_output_is_drained_and_truncated() {
    let mut command = command("head", &["-c", "300000000", "/dev/urandom"]);
    command.limits.output_bytes = 1000;
    let finished = run_unconfined(&command);
    assert_eq!(
        (finished.exit, finished.stdout.total, finished.stdout.head.len(), finished.stdout.tail.len()),
        (ExitReason::Exited(0), 300_000_000, 1000, 1000)
    );
}

#[test]
fn a_missing_program_is_named() {
    let result =
        run(&launcher(), &command("no-such-program", &[]), None, &CancelToken::new().expect("an event"));
    assert!(matches!(result, Err(RunError::NotFound { program }) if program == "no-such-program"));
    let mut command = command("true", &[]);
    command.current_dir = "/no/such/folder".into();
    let result = run(&launcher(), &command, None, &CancelToken::new().expect("an event"));
    assert!(matches!(result, Err(RunError::Failed { reason }) if reason.contains("/no/such/folder")));
}

#[test]
fn a_relative_path_in_path_is_not_searched() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy("/bin/true", folder.path().join("mine")).expect("a program");
    let mut command = command("mine", &[]);
    command.current_dir = folder.path().to_owned();
    command.environment.insert("PATH".to_owned(), ".:".to_owned());
    let result = run(&launcher(), &command, None, &CancelToken::new().expect("an event"));
    assert!(matches!(result, Err(RunError::NotFound { .. })));
}

#[test]
fn invalid_launcher_is_detected() {
    let launcher = Launcher::new("/bin/true");
    match run(&launcher, &bash("true"), None, &CancelToken::new().expect("an event")) {
        Ok(finished) => assert_eq!(finished.exit, ExitReason::SupervisorLost),
        Err(error) => assert!(matches!(error, RunError::Failed { .. }), "{error}"),
    }
}

#[test]
fn timeout_kills_grandchildren() {
    let mut command =
        bash("trap '' TERM; (trap '' TERM; setsid sleep 600) & (sleep 600 &) ; echo begun; wait");
    let finished = run_until_timeout(&mut command);
    assert_eq!((finished.exit, finished.stdout.to_text().as_str()), (ExitReason::TimedOut, "begun\n"));
    assert_eq!(leftover_processes(&command), Vec::<String>::new());
}

#[test]
fn tool_may_clean_up_on_timeout() {
    let script = "trap 'echo tidied; exit 0' TERM; echo begun; while :; do sleep 0.01; done";
    // The time it gets to tidy up is short: on a loaded machine not every try is enough.
    wait_until("it tidied up", || {
        let finished = run_until_timeout(&mut bash(script));
        assert_eq!(finished.exit, ExitReason::TimedOut);
        finished.stdout.to_text() == "begun\ntidied\n"
    });
}

#[test]
fn a_daemon_ends_with_the_run() {
    let script = "
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(3): os.close(number)
        time.sleep(600)
    os._exit(0)
os.wait()
print('daemon', flush=True)
";
    let command = python(script);
    let finished = run_unconfined(&command);
    assert_eq!((finished.exit, finished.stdout.to_text().as_str()), (ExitReason::Exited(0), "daemon\n"));
    assert_eq!(leftover_processes(&command), Vec::<String>::new());
}

#[test]
fn cancel_kills_all_processes() {
    let command = bash("sleep 600 & sleep 600");
    let cancel = CancelToken::new().expect("an event");
    let other = cancel.clone();
    let observed = command.clone();
    let canceller = std::thread::spawn(move || {
        wait_until("the run", || {
            leftover_processes(&observed).iter().filter(|name| *name == "sleep\n").count() == 2
        });
        other.cancel();
    });
    let finished = run(&launcher(), &command, None, &cancel).expect("it ran");
    canceller.join().expect("cancelled");
    assert_eq!(finished.exit, ExitReason::Cancelled);
    assert_eq!(leftover_processes(&command), Vec::<String>::new());
}

#[test]
fn fork_bomb_is_stopped() {
    // Bounded by itself, at 512 processes in 512 sessions, so that a failure of this test spares the machine.
    let script = "
import os, time
for level in range(9):
    if os.fork() == 0:
        os.setsid()
time.sleep(600)
";
    let mut command = python(script);
    command.limits.processes = 50;
    assert_eq!(run_unconfined(&command).exit, ExitReason::TooManyProcesses { limit: 50 });
    assert_eq!(leftover_processes(&command), Vec::<String>::new());
}

#[test]
fn file_size_limit_is_enforced() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = command("dd", &["if=/dev/zero", "of=big", "bs=1M", "count=10"]);
    command.current_dir = folder.path().to_owned();
    command.limits.file_bytes = 2 << 20;
    assert_eq!(run_unconfined(&command).exit, ExitReason::Signalled(25));
    assert_eq!(std::fs::metadata(folder.path().join("big")).expect("a file").len(), 2 << 20);
}

#[test]
fn killing_launcher_ends_detached_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log");
    let mut command = bash("cat; echo begun; (setsid sleep 600 &) ; sleep 600");
    command.stdin = b"input ".to_vec();
    command.log = Some(log.clone());
    let detached = spawn_detached(&launcher(), &command, None).expect("it started");
    wait_until("the log", || std::fs::read_to_string(&log).is_ok_and(|text| text == "input begun\n"));
    let pid = i32::try_from(detached.pid).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
    wait_until("the end of all", || leftover_processes(&command).is_empty());
    assert!(exists(&log));
}

#[test]
fn detached_run_times_out() {
    let mut command = bash("sleep 600 & sleep 600");
    command.timeout = Duration::from_millis(300);
    spawn_detached(&launcher(), &command, None).expect("it started");
    wait_until("the end", || leftover_processes(&command).is_empty());
}

#[test]
fn detached_start_failure_is_reported() {
    let mut command = command("true", &[]);
    command.current_dir = "/no/such/folder".into();
    assert!(matches!(spawn_detached(&launcher(), &command, None), Err(RunError::Failed { .. })));
}

#[test]
fn many_runs_at_once_share_nothing() {
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..50)
            .map(|number| {
                scope.spawn(move || {
                    let mut command = bash(&format!("echo {number}; ls -l /proc/self/fd | grep -c -- '->'"));
                    command.stdin = vec![b'x'; 100];
                    let finished = run_unconfined(&command);
                    assert_eq!(
                        (finished.exit, finished.stdout.to_text()),
                        (ExitReason::Exited(0), format!("{number}\n4\n")),
                        "{}",
                        finished.stderr.to_text()
                    );
                })
            })
            .collect();
        for run in runs {
            run.join().expect("a run");
        }
    });
    let open = || -> Vec<String> {
        let entries = std::fs::read_dir("/proc/self/fd").expect("descriptors");
        entries
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .map(|target| target.display().to_string())
            .filter(|target| target.contains("memfd:stdin"))
            .collect()
    };
    // Other tests of this process have inputs of their own for a moment.
    wait_until("no input is open", || open().is_empty());
}
