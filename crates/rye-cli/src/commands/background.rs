//! The process that runs threads in the background: being it, reaching it, having it take up what was abandoned.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lillux::process::{Launcher, leave_session};
use rye_agent::store::Taking;
use rye_agent::threads::Background;
use rye_background::{Client, Place, Setup};
use rye_engine::Error;

use super::threads::{Shelf, folder};
use super::{Context, Outcome};
use crate::settings::{self, Settings, ThreadClock};

/// How long the process stays without anything to do.
const IDLE: Duration = Duration::from_secs(3);

/// How long somebody who only looks waits for it.
const LOOKS_WITHIN: Duration = Duration::from_secs(3);

/// `rye background`: be that process. It ends by itself.
pub fn run(keys: &Path) -> Outcome {
    // Without a session of its own the terminal's interrupts end it, and the next one goes on.
    let _ = leave_session();
    rye_background::serve(Setup {
        signing_keys: keys.to_owned(),
        launcher: Launcher::new("/proc/self/exe").keeping_some(),
        engine_clock: settings::system_clock,
        clock: Arc::new(ThreadClock),
        idle: IDLE,
    })?;
    Ok(())
}

/// The program and the words that start it.
pub fn process(settings: &Settings) -> Option<(PathBuf, Vec<String>)> {
    let words = ["background", "--keys", settings.roots.signing_keys.to_str()?].map(str::to_owned);
    Some((settings::own_program(), words.to_vec()))
}

/// The way to that process from here; `None` where it cannot be started.
pub fn client(settings: &Settings) -> Option<Client> {
    let roots = &settings.roots;
    let (program, words) = process(settings)?;
    let place = Place {
        threads: folder(settings),
        project: roots.project.clone(),
        user: roots.user.clone(),
        cache: roots.cache.clone(),
        signing_keys: roots.signing_keys.clone(),
        bundle_paths: roots.bundle_paths.clone(),
        home: settings.home.clone(),
        folder: roots.project.clone().unwrap_or_else(|| settings.folder.clone()),
        wants_dev_mode: settings.wants_dev_mode,
    };
    let environment = settings.host().environment.into_iter().collect();
    Some(Client::new(place, environment, program, words))
}

/// Has threads of this place that go on by themselves, and that nobody runs, taken up again. A cheap look unless there
/// are some; those that could not go on before are left alone.
pub fn revive(context: &Context) -> Result<(), Error> {
    let Some(client) = client(&context.settings).filter(Client::has_some) else { return Ok(()) };
    let Some(shelf) = Shelf::open(&context.settings)? else { return Ok(()) };
    let mut abandoned = shelf.store.orphans(&shelf.observer, Taking::Free)?;
    abandoned.retain(|row| row.is_detached && row.note.is_none());
    let is_wanted = || {
        rye_agent::config::load(&context.engine.workspace)
            .map(|config| config.coordination.orphan_detection.enabled)
    };
    if !abandoned.is_empty() && is_wanted()? {
        client.within(LOOKS_WITHIN).reach()?.take(&[])?;
    }
    Ok(())
}
