//! The process that runs threads in the background: being it, reaching it, having it take up what was abandoned.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lillux::process::{Launcher, start_session};
use rye_agent::store::ClaimPolicy;
use rye_agent::threads::BackgroundHost;
use rye_daemon::{DaemonClient, DaemonSetup, ThreadsLocation};
use rye_engine::Error;

use super::threads::{ThreadIndex, threads_dir};
use super::{CommandContext, CommandResult};
use crate::settings::{self, Settings, ThreadClock};

/// How long the process stays without anything to do.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long commands that only look at threads wait for the daemon.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// `rye background`: be that process. It ends by itself.
pub fn run(keys: &Path) -> CommandResult {
    // Without a session of its own the terminal's interrupts end it, and the next one continues.
    let _ = start_session();
    rye_daemon::serve(DaemonSetup {
        signing_keys: keys.to_owned(),
        launcher: Launcher::new("/proc/self/exe").with_pool(),
        engine_clock: settings::system_clock,
        clock: Arc::new(ThreadClock),
        idle_timeout: IDLE_TIMEOUT,
    })?;
    Ok(())
}

/// The program and the words that start it.
pub fn daemon_command(settings: &Settings) -> Option<(PathBuf, Vec<String>)> {
    let arguments = ["background", "--keys", settings.roots.signing_keys.to_str()?].map(str::to_owned);
    Some((settings::current_exe(), arguments.to_vec()))
}

/// The way to that process from here; `None` where it cannot be started.
pub fn daemon_client(settings: &Settings) -> Option<DaemonClient> {
    let roots = &settings.roots;
    let (program, arguments) = daemon_command(settings)?;
    let location = ThreadsLocation {
        threads: threads_dir(settings),
        project: roots.project.clone(),
        user: roots.user.clone(),
        cache: roots.cache.clone(),
        signing_keys: roots.signing_keys.clone(),
        bundle_paths: roots.bundle_paths.clone(),
        home: settings.home.clone(),
        folder: roots.project.clone().unwrap_or_else(|| settings.working_dir.clone()),
        wants_dev_mode: settings.wants_dev_mode,
    };
    let environment = settings.host().variables.into_iter().collect();
    Some(DaemonClient::new(location, environment, program, arguments))
}

/// Resumes detached threads of this location that have no owner. A cheap check unless there
/// are some; those that could not continue before are left alone.
pub fn resume_abandoned(context: &CommandContext) -> Result<(), Error> {
    let Some(client) = daemon_client(&context.settings).filter(DaemonClient::has_threads) else {
        return Ok(());
    };
    let Some(index) = ThreadIndex::open(&context.settings)? else { return Ok(()) };
    let mut abandoned = index.store.orphans(&index.observer, ClaimPolicy::Free)?;
    abandoned.retain(|row| row.is_detached && row.note.is_none());
    let is_enabled = || {
        rye_agent::config::load(&context.engine.workspace)
            .map(|config| config.coordination.orphan_detection.enabled)
    };
    if !abandoned.is_empty() && is_enabled()? {
        client.with_timeout(CONNECT_TIMEOUT).connect()?.take_over(&[])?;
    }
    Ok(())
}
