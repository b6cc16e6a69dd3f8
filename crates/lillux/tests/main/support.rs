//! Commands to run, and counting what they leave behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lillux::Cancel;
use lillux::process::{Command, Finished, Launcher, Limits, run};

/// A variable that marks every process of one test.
pub const MARK: &str = "LILLUX_TEST_MARK";

/// Names the launcher where the built one cannot be reached.
pub const LAUNCHER: &str = "LILLUX_TEST_LAUNCHER";

pub fn launcher() -> Launcher {
    let copy = std::env::var_os(LAUNCHER).map(PathBuf::from);
    Launcher::new(copy.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_lillux-supervisor"))))
}

/// A mark nobody else has.
pub fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn command(program: &str, arguments: &[&str]) -> Command {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    Command {
        program: program.into(),
        arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
        environment: BTreeMap::from([("PATH".to_owned(), path.to_owned()), (MARK.to_owned(), mark())]),
        folder: PathBuf::from("/"),
        stdin: Vec::new(),
        timeout: Duration::from_secs(60),
        has_result_channel: false,
        limits: Limits::default(),
        log: None,
    }
}

pub fn bash(script: &str) -> Command {
    command("bash", &["-c", script])
}

pub fn python(script: &str) -> Command {
    command("/usr/bin/python3", &["-c", script])
}

pub fn run_free(command: &Command) -> Finished {
    run(&launcher(), command, None, &Cancel::new().expect("an event")).expect("it ran")
}

/// Processes that carry this command's mark.
pub fn left_behind(command: &Command) -> Vec<String> {
    let mark = format!("{MARK}={}", command.environment[MARK]);
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").expect("processes") {
        let folder = entry.expect("an entry").path();
        let Ok(environment) = std::fs::read(folder.join("environ")) else {
            continue;
        };
        if environment.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes()) {
            found.push(std::fs::read_to_string(folder.join("comm")).unwrap_or_default());
        }
    }
    found
}

/// Waits until `is_so`, which must come true; the tests have no other way to see another process move.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not happen");
}

pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
