//! Schedules: when each starts next, and what its last runs came to.

use rye_engine::Result;
use rye_item::timestamp::iso_timestamp;
use rye_space::Workspace;
use serde_json::{Value, json};

use crate::schedule::{Schedule, ScheduleState, ScheduleStates, Schedules};

/// A schedule and what it did.
#[derive(Clone, Debug)]
pub struct ScheduleRow {
    /// What the user's settings say.
    pub schedule: Schedule,
    /// What became of its runs.
    pub state: ScheduleState,
    /// When it starts next; none while it is paused.
    pub next_ms: Option<u64>,
}

impl ScheduleRow {
    /// All of it, for programs.
    #[must_use]
    pub fn to_value(&self) -> Value {
        json!({"schedule": self.schedule, "next_at": self.next_ms.map(iso_timestamp), "runs": self.state.runs})
    }
}

/// The user's schedules that can be used, and what is wrong with the others.
///
/// # Errors
/// When what they did cannot be read.
pub fn schedule_rows(workspace: &Workspace) -> Result<(Vec<ScheduleRow>, Vec<String>)> {
    let schedules = Schedules::load(workspace)?;
    let states = ScheduleStates::read(&workspace.roots.signing_keys)?;
    let mut rows = Vec::new();
    for schedule in schedules.list {
        let state = states.get(&schedule.id).cloned().unwrap_or_default();
        let served_ms = state.served_ms.max(schedule.added_ms);
        let next_ms = schedule.times()?.next_after(served_ms).filter(|_| !schedule.paused);
        rows.push(ScheduleRow { schedule, state, next_ms });
    }
    Ok((rows, schedules.problems))
}
