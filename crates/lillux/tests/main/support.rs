//! Commands to run, and counting what they leave behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lillux::CancelToken;
use lillux::process::{Launcher, ProcessCommand, ProcessLimits, ProcessResult, run};

/// A variable that marks every process of one test.
pub const MARK: &str = "LILLUX_TEST_MARK";

/// Names the launcher where the built one cannot be reached.
pub const LAUNCHER: &str = "LILLUX_TEST_LAUNCHER";

pub fn launcher() -> Launcher {
    let copy = std::env::var_os(LAUNCHER).map(PathBuf::from);
    Launcher::new(copy.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_lillux-supervisor"))))
}

/// A mark no one else has.
pub fn mark() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn command(program: &str, arguments: &[&str]) -> ProcessCommand {
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    ProcessCommand {
        program: program.into(),
        arguments: arguments.iter().map(|text| (*text).to_owned()).collect(),
        environment: BTreeMap::from([("PATH".to_owned(), path.to_owned()), (MARK.to_owned(), mark())]),
        current_dir: PathBuf::from("/"),
        stdin: Vec::new(),
        timeout: WAIT_TIMEOUT,
        has_result_channel: false,
        limits: ProcessLimits::default(),
        log: None,
    }
}

pub fn bash(script: &str) -> ProcessCommand {
    command("bash", &["-c", script])
}

pub fn python(script: &str) -> ProcessCommand {
    command("/usr/bin/python3", &["-c", script])
}

pub fn run_unconfined(command: &ProcessCommand) -> ProcessResult {
    run(&launcher(), command, None, &CancelToken::new().expect("an event")).expect("it ran")
}

/// Processes that carry this command's mark.
pub fn leftover_processes(command: &ProcessCommand) -> Vec<String> {
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

/// How long a test waits for what must happen.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);
/// The longest pause between two looks.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// A run that ends because its time is up, and printed something before. How long it takes to begin depends on the machine,
/// so it gets more time until it did.
pub fn run_until_timeout(command: &mut ProcessCommand) -> ProcessResult {
    command.timeout = Duration::from_millis(500);
    loop {
        let finished = run_unconfined(command);
        if !finished.stdout.to_text().is_empty() || command.timeout >= WAIT_TIMEOUT {
            return finished;
        }
        command.timeout *= 2;
    }
}

/// Waits until `is_so`, which must come true; the tests have no other way to see another process move.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + WAIT_TIMEOUT;
    // Longer each time: a loaded machine gets the time it needs between two looks.
    let mut pause = Duration::from_millis(5);
    while !condition() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(pause);
        pause = (pause * 5 / 4).min(MAX_PAUSE);
    }
}

pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Waits until a process has made so many reads and writes, or has ended. They are moments of its life that do not depend on
/// how fast the machine is.
pub fn wait_for_io(child: &mut std::process::Child, calls: u64) {
    let path = format!("/proc/{}/io", child.id());
    let count = || -> Option<u64> {
        let text = std::fs::read_to_string(&path).ok()?;
        let value =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok();
        Some(value("syscr:")? + value("syscw:")?)
    };
    // What cannot be read belongs to a process that has ended; one that only waits makes no more of them.
    let (mut last, mut since) = (0, Instant::now());
    while let Some(count) = count().filter(|count| *count < calls) {
        if count != last {
            (last, since) = (count, Instant::now());
        }
        let is_idle = since.elapsed() > Duration::from_millis(200);
        if is_idle || !child.try_wait().is_ok_and(|status| status.is_none()) {
            return;
        }
        std::thread::yield_now();
    }
}
