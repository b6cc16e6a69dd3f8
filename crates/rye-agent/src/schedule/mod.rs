//! Schedules: directives that start by themselves, at times of a calendar or at intervals.
//!
//! ```text
//! schedules.yaml (signed by the user) → Schedule → plan(schedule, state, now) → PlannedRun → a thread
//! ```
//!
//! A schedule starts code without a person: it is read only from the user's own signed file. What was started when is
//! kept beside the signing key ([`ScheduleStates`]), so that no time is served twice.

mod calendar;
mod plan;
mod state;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use rye_engine::{Code, Error, Result};
use rye_item::ItemId;
use rye_space::Workspace;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use calendar::{MIN_INTERVAL_MS, ScheduleTimes, parse_interval};
pub use plan::{LATE_AFTER_MS, PlannedRun, follow_clock, format_missed_count, plan};
pub use state::{ScheduleState, ScheduleStates, ScheduledRun};

/// The config that holds the schedules.
pub const SCHEDULES_CONFIG: &str = "agent/schedules";

/// The most schedules of one user.
pub const MAX_SCHEDULES: usize = 256;

/// What a schedule's times look like.
const CRON_EXAMPLE: &str = "minute, hour, day of the month, month, day of the week, such as --cron '0 7 * * mon-fri'; a time zone: --time-zone Europe/Vienna";

/// What a schedule's interval looks like.
const INTERVAL_EXAMPLE: &str = "a minute or longer, such as --every 15m, --every 2h or --every 1d";

/// What happens at a time whose predecessor's thread has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlapPolicy {
    /// Nothing; it is said.
    #[default]
    Skip,
    /// The next thread starts when that one has ended; one waits at most.
    Queue,
    /// The next thread starts beside it.
    Allow,
}

/// Who answers what a scheduled thread asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalsPolicy {
    /// It is denied: the run is unattended.
    #[default]
    Deny,
    /// The thread waits for a person.
    Wait,
}

/// What happens to times at which nothing was there to start a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedPolicy {
    /// Nothing; they are said.
    #[default]
    Skip,
    /// One thread starts for all of them.
    RunOnce,
}

/// A directive that starts by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Schedule {
    /// Its name.
    pub id: String,
    /// The directive.
    pub directive: String,
    /// The project's folder.
    pub project: PathBuf,
    /// Times of a calendar: minute, hour, day, month, weekday.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// An interval: `15m`, `2h`, `1d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<String>,
    /// The time zone of `cron`; none is the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// What happens while its last thread has not ended.
    #[serde(default)]
    pub overlap: OverlapPolicy,
    /// Who answers what its threads ask.
    #[serde(default)]
    pub approvals: ApprovalsPolicy,
    /// What happens to missed times.
    #[serde(default)]
    pub missed: MissedPolicy,
    /// Inputs of the directive.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inputs: Map<String, Value>,
    /// Limits, as `rye run --limit` takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<String>,
    /// A model or tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// A provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Whether it starts nothing for now.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// When it was added, in milliseconds since 1970: intervals count from here, and earlier times are not missed.
    pub added_ms: u64,
}

impl Schedule {
    /// Checks what a schedule says and reads its times.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn times(&self) -> Result<ScheduleTimes> {
        let invalid =
            |message: String| Error::new(Code::InvalidArgument, format!("schedule `{}`: {message}", self.id));
        ItemId::new(self.id.as_str())?;
        ItemId::new(self.directive.as_str())?;
        if !self.project.is_absolute() {
            return Err(invalid("the project's folder must be absolute".to_owned()));
        }
        match (&self.cron, &self.every) {
            (Some(cron), None) => ScheduleTimes::cron(cron, self.time_zone.as_deref())
                .map_err(|message| invalid(message).hint(CRON_EXAMPLE)),
            (None, Some(_)) if self.time_zone.is_some() => {
                Err(invalid("an interval has no time zone".to_owned()))
            }
            (None, Some(every)) => ScheduleTimes::every(every, self.added_ms)
                .map_err(|message| invalid(message).hint(INTERVAL_EXAMPLE)),
            _ => Err(invalid("it needs either `cron` or `every`".to_owned())),
        }
    }
}

/// The user's schedules.
#[derive(Clone, Debug, Default)]
pub struct Schedules {
    /// Those that can be used, in the file's order.
    pub list: Vec<Schedule>,
    /// What was left out, and why.
    pub problems: Vec<String>,
}

impl Schedules {
    /// Reads the user's schedules. What is wrong with one leaves out that one.
    ///
    /// # Errors
    /// Never in practice: the config's id is valid.
    pub fn load(workspace: &Workspace) -> Result<Self> {
        let merged = workspace.config(&ItemId::new(SCHEDULES_CONFIG)?);
        let mut problems: Vec<String> = merged
            .ignored
            .iter()
            .chain(&merged.flat_files)
            .map(|ignored| format!("{}: {}: {}", ignored.path.display(), ignored.key, ignored.reason))
            .collect();
        let mut list: Vec<Schedule> = Vec::new();
        let entries = merged.get("schedules").and_then(Value::as_array);
        for (index, entry) in entries.into_iter().flatten().take(MAX_SCHEDULES).enumerate() {
            let parsed = serde_json::from_value::<Schedule>(entry.clone())
                .map_err(|error| format!("schedule {}: {error}", index + 1))
                .and_then(|schedule| match schedule.times() {
                    Ok(_) if list.iter().any(|known| known.id == schedule.id) => {
                        Err(format!("schedule `{}`: there are two of this name", schedule.id))
                    }
                    Ok(_) => Ok(schedule),
                    Err(error) => Err(error.to_string()),
                });
            match parsed {
                Ok(schedule) => list.push(schedule),
                Err(problem) => problems.push(problem),
            }
        }
        Ok(Self { list, problems })
    }

    /// The file as it is written before it is signed.
    ///
    /// # Errors
    /// When a schedule cannot be written as JSON.
    pub fn to_yaml(&self) -> std::result::Result<String, serde_json::Error> {
        let mut text = String::from(
            "version: \"1.0.0\"\ncategory: agent\ndescription: Directives that start by themselves; written by `rye schedule`\nschedules:",
        );
        if self.list.is_empty() {
            text.push_str(" []");
        }
        text.push('\n');
        for schedule in &self.list {
            text.push_str("  - ");
            text.push_str(&serde_json::to_string(schedule)?);
            text.push('\n');
        }
        Ok(text)
    }
}
