//! The process that starts what is due until it is stopped: at most one per user, with its number beside its lock.

use std::path::PathBuf;
use std::time::Duration;

use lillux::file::{self, FileMode, Lock};
use lillux::process::spawn_daemon;
use rye_agent::driver::MillisClock as _;
use rye_agent::schedule::{ScheduleStates, Schedules};
use rye_agent::store::{Owner, current_owner, is_owner_gone};
use serde_json::{Value, json};

use super::super::{CommandContext, CommandResult};
use super::runner::{error_text, tick};
use crate::global::GlobalArguments;
use crate::settings::{self, Settings, ThreadClock};

/// The file whose lock says that a process watches.
const WATCH_LOCK: &str = "schedule_watch.lock";

/// The file that says which process watches.
const WATCHER_FILE: &str = "schedule_watch.json";

/// Nothing longer is read of it.
const MAX_WATCHER_BYTES: u64 = 4096;

/// How often the lock is tried for while no watcher is known, and the pause in between.
const MAX_LOCK_ATTEMPTS: usize = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// How long a process that watches sleeps at most.
const MAX_SLEEP: Duration = Duration::from_secs(15);

/// `rye schedule watch`; with `until_none` it ends when there is no schedule.
pub fn watch(global: &GlobalArguments, until_none: bool) -> CommandResult {
    let context = CommandContext::open_without_project(global)?;
    let Some(mut lock) = take_lock(&context)? else {
        context.output.note(describe_watcher(&context));
        return Ok(());
    };
    record_watcher(&context.settings)?;
    drop(context);
    loop {
        // Opened each time: keys, schedules and bundles may have changed.
        let context = CommandContext::open_without_project(global)?;
        if let Err(error) = tick(global, &context) {
            context.output.warn(error_text(&error));
        }
        if until_none && has_no_schedules(&context) {
            drop(lock);
            // One that was added meanwhile was told that a process watches.
            if has_no_schedules(&CommandContext::open_without_project(global)?) {
                return Ok(());
            }
            let Some(taken) = take_lock(&context)? else { return Ok(()) };
            lock = taken;
            record_watcher(&context.settings)?;
        }
        let now_ms = ThreadClock.now_ms();
        let next_ms = next_due(&context).unwrap_or(u64::MAX);
        let until_next = Duration::from_millis(next_ms.saturating_sub(now_ms).max(200));
        drop(context);
        std::thread::sleep(until_next.min(MAX_SLEEP));
    }
}

/// `rye schedule watch --background`
pub fn watch_in_background(context: &CommandContext) -> CommandResult {
    if has_no_schedules(context) {
        context
            .output
            .note("no schedules: nothing to start; add one first: rye schedule add DIRECTIVE --every 1h");
        return Ok(());
    }
    // A process that only looks holds the lock for a moment.
    if watcher_pid(context).is_some() {
        context.output.note(describe_watcher(context));
        return Ok(());
    }
    let settings = &context.settings;
    let environment = settings.host().variables;
    let user_space = settings.roots.user.to_string_lossy().into_owned();
    let words = ["--user-space", &user_space, "--quiet", "schedule", "watch", "--until-none"];
    let arguments = words.map(str::to_owned);
    let child = spawn_daemon(&settings::current_exe(), &arguments, &environment, &settings.home, b"")?;
    child.detach();
    context.output.note(
        "schedules are started in the background until this machine is shut down or the last schedule is removed",
    );
    context.output.note("its process, and how to stop it: rye schedule list");
    Ok(())
}

/// Whether a process watches.
pub fn is_watched(context: &CommandContext) -> bool {
    let lock = lock_path(&context.settings);
    lock.exists() && matches!(Lock::try_acquire(&lock), Ok(None))
}

/// The number of the process that watches, if one does and it is known.
pub fn watcher_pid(context: &CommandContext) -> Option<u32> {
    if !is_watched(context) {
        return None;
    }
    let (bytes, _) = file::read_bounded(&watcher_path(&context.settings), MAX_WATCHER_BYTES).ok()?;
    let owner = owner_from_value(&serde_json::from_slice(&bytes).ok()?)?;
    let own = current_owner();
    (owner.host == own.host && !is_owner_gone(&owner, &own)).then_some(owner.pid)
}

/// Which process starts schedules, and how it is stopped.
pub fn describe_watcher(context: &CommandContext) -> String {
    match watcher_pid(context) {
        Some(pid) => format!("process {pid} starts them; to stop it: kill {pid}"),
        None => "a process starts them".to_owned(),
    }
}

/// Takes the lock, unless another process watches. One that only looks holds it for a moment.
fn take_lock(context: &CommandContext) -> std::io::Result<Option<Lock>> {
    let path = lock_path(&context.settings);
    for _ in 0..MAX_LOCK_ATTEMPTS {
        let lock = Lock::try_acquire(&path)?;
        // The number may be this process's own, from the last time it held the lock.
        if lock.is_some() || watcher_pid(context).is_some_and(|pid| pid != std::process::id()) {
            return Ok(lock);
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Lock::try_acquire(&path)
}

fn lock_path(settings: &Settings) -> PathBuf {
    settings.roots.signing_keys.join(WATCH_LOCK)
}

fn watcher_path(settings: &Settings) -> PathBuf {
    settings.roots.signing_keys.join(WATCHER_FILE)
}

fn record_watcher(settings: &Settings) -> std::io::Result<()> {
    let Owner { pid, pid_start, boot_id, host } = current_owner();
    let text = json!({"pid": pid, "pid_start": pid_start, "boot_id": boot_id, "host": host}).to_string();
    file::write_atomic(&watcher_path(settings), text.as_bytes(), FileMode::Private)
}

fn owner_from_value(value: &Value) -> Option<Owner> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
    let number = |key: &str| value.get(key).and_then(Value::as_u64);
    Some(Owner {
        pid: u32::try_from(number("pid")?).ok()?,
        pid_start: number("pid_start")?,
        boot_id: text("boot_id")?,
        host: text("host")?,
    })
}

/// Whether there is certainly no schedule: a file that cannot be used may hold some.
fn has_no_schedules(context: &CommandContext) -> bool {
    Schedules::load(&context.engine.workspace)
        .is_ok_and(|schedules| schedules.list.is_empty() && schedules.problems.is_empty())
}

/// When the next schedule is due.
fn next_due(context: &CommandContext) -> Option<u64> {
    let schedules = Schedules::load(&context.engine.workspace).ok()?;
    let states = ScheduleStates::read(&context.settings.roots.signing_keys).ok()?;
    let next = schedules.list.iter().filter(|schedule| !schedule.paused).filter_map(|schedule| {
        let served = states.get(&schedule.id).map_or(0, |state| state.served_ms).max(schedule.added_ms);
        schedule.times().ok()?.next_after(served)
    });
    next.min()
}
