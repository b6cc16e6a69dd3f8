//! What schedules did: kept beside the signing key, where no tool reaches, under a lock.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lillux::file::{self, FileMode, Lock};
use rye_engine::{Code, Error, Result};
use serde::{Deserialize, Serialize};

/// The file, in the folder of the signing key.
const STATE_FILE: &str = "schedule_state.json";

/// The file that is locked while something is decided.
const LOCK_FILE: &str = "schedule_state.lock";

/// Nothing larger is read.
const MAX_STATE_BYTES: u64 = 8 << 20;

/// How many runs of a schedule are remembered.
const MAX_RUNS: usize = 20;

/// What became of one time of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduledRun {
    /// The time, in milliseconds since 1970.
    pub due_ms: u64,
    /// When that was decided.
    pub at_ms: u64,
    /// `starting`, `started`, `failed`, `skipped`, `queued` or `missed`.
    pub outcome: String,
    /// The thread that was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Why, or how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What one schedule did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleState {
    /// The last time that was served, in milliseconds since 1970: no time up to it is served again.
    pub served_ms: u64,
    /// The last time that was served when the clock went back beyond it; it counts again once the clock is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead_ms: Option<u64>,
    /// A time whose thread starts when the last one has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_ms: Option<u64>,
    /// The last thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// What its last thread asked and was denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied: Vec<String>,
    /// The last runs, the newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<ScheduledRun>,
}

impl ScheduleState {
    /// Adds a run; the oldest are forgotten.
    pub fn add_run(&mut self, run: ScheduledRun) {
        self.runs.push(run);
        let extra = self.runs.len().saturating_sub(MAX_RUNS);
        self.runs.drain(..extra);
    }
}

/// What all schedules did. While this is held, no other process decides anything.
#[derive(Debug)]
pub struct ScheduleStates {
    path: PathBuf,
    /// By the schedule's name.
    pub schedules: BTreeMap<String, ScheduleState>,
    _lock: Lock,
}

impl ScheduleStates {
    /// Reads the states and keeps others from it.
    ///
    /// # Errors
    /// When they cannot be read: nothing is started as if nothing had been.
    pub fn lock(signing_keys: &Path) -> Result<Self> {
        file::create_dirs(signing_keys, true)?;
        let lock = Lock::acquire(&signing_keys.join(LOCK_FILE))?;
        let path = signing_keys.join(STATE_FILE);
        Ok(Self { schedules: read_states(&path)?, path, _lock: lock })
    }

    /// Reads the states to look at.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read(signing_keys: &Path) -> Result<BTreeMap<String, ScheduleState>> {
        read_states(&signing_keys.join(STATE_FILE))
    }

    /// Writes the states; durable when this returns.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn save(&self) -> Result<()> {
        let text = serde_json::to_string(&self.schedules).map_err(std::io::Error::other)?;
        Ok(file::write_atomic(&self.path, text.as_bytes(), FileMode::Private)?)
    }
}

fn read_states(path: &Path) -> Result<BTreeMap<String, ScheduleState>> {
    let damaged = |reason: String| {
        Error::new(
            Code::StoreDamaged,
            format!("what schedules did cannot be read: {}: {reason}", path.display()),
        )
        .hint("remove that file if it is damaged: schedules then start from now")
    };
    match file::read_bounded(path, MAX_STATE_BYTES) {
        Ok((bytes, _)) => serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string())),
        Err(error) if error.is_absent() => Ok(BTreeMap::new()),
        Err(error) => Err(damaged(error.to_string())),
    }
}
