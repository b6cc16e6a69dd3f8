//! Budgets of a day or a month, read from `agent/budgets.yaml`: which of them a thread's calls count against.
//!
//! They are not frozen with a thread: what the user allows now counts for the next call, so a thread that stopped for
//! want of money can be resumed when more is allowed or the next period has begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, Space};
use rye_space::Workspace;
pub use rye_thread::rolling::{
    BudgetPeriod, BudgetScope, PeriodCaps, RollingBudget, RollingCaps, RollingUsage, TimeZone,
};

use crate::config::WatchedConfig;
use crate::store::ThreadStore;
use crate::thread_id::ThreadId;

/// The config that names the budgets.
const BUDGETS_CONFIG: &str = "agent/budgets";

/// How many threads' directives are remembered.
const MAX_KNOWN_THREADS: usize = 4096;

/// The budgets of a workspace.
#[derive(Clone, Debug, Default)]
pub struct RollingSettings {
    /// What may be spent.
    pub caps: RollingCaps,
    /// The project's folder; `None` outside of any.
    pub project: Option<String>,
    /// The time zone that the settings name.
    zone: Option<TimeZone>,
    /// What was left out, and why.
    pub notices: Vec<String>,
}

impl RollingSettings {
    /// Reads the budgets of a workspace.
    ///
    /// # Errors
    /// When the user's file has a mistake: threads do not run as if it were empty.
    pub fn load(workspace: &Workspace) -> Result<Self> {
        let merged = workspace.config(&ItemId::new(BUDGETS_CONFIG)?);
        let describe = |ignored: &rye_space::config::IgnoredSetting| {
            let place = ignored.position.map(|position| format!(":{position}")).unwrap_or_default();
            format!("{}{place}: {}: {}", ignored.path.display(), ignored.key, ignored.reason)
        };
        if let Some(mistake) = merged.ignored.iter().find(|ignored| ignored.space == Space::User) {
            return Err(config_error(describe(mistake)));
        }
        let notices =
            merged.ignored.iter().chain(&merged.unsigned).chain(&merged.flat_files).map(describe).collect();
        let caps = RollingCaps::from_value(&merged.value).map_err(config_error)?;
        let zone = caps.time_zone.as_deref().map(|name| {
            let unknown = |error| config_error(format!("budgets.yaml: time_zone: {error}"));
            TimeZone::get(name).map_err(unknown)
        });
        let project = workspace.roots.project.as_ref().map(|project| project.display().to_string());
        Ok(Self { caps, project, zone: zone.transpose()?, notices })
    }

    /// The budgets that spending by `directives` counts against, at a moment; `local` is the machine's time zone.
    ///
    /// # Errors
    /// When the moment lies outside of what a calendar knows.
    pub fn budgets(
        &self,
        directives: &[String],
        at_ms: u64,
        local: impl FnOnce() -> TimeZone,
    ) -> Result<Vec<RollingBudget>> {
        if self.caps.is_empty() {
            return Ok(Vec::new());
        }
        let zone = self.zone.clone().unwrap_or_else(local);
        let budgets = self.caps.budgets(self.project.as_deref(), directives, at_ms, &zone);
        budgets.map_err(|error| config_error(format!("the clock cannot be used for budgets: {error}")))
    }

    /// The time zone's name, for people.
    #[must_use]
    pub fn zone_name(&self, local: &TimeZone) -> String {
        let zone = self.zone.as_ref().unwrap_or(local);
        zone.iana_name().unwrap_or("local time").to_owned()
    }
}

fn config_error(message: String) -> Error {
    Error::new(Code::ThreadConfig, message).hint("rye config show agent/budgets")
}

/// The budgets of a warm process.
#[derive(Debug, Default)]
pub(crate) struct RollingBudgets {
    settings: WatchedConfig<RollingSettings>,
    /// The directives of threads and of those above them: they never change.
    directives: Mutex<HashMap<ThreadId, Arc<[String]>>>,
}

impl RollingBudgets {
    /// The budgets as they are now.
    pub(crate) fn current(&self, workspace: &Workspace) -> Result<Arc<RollingSettings>> {
        self.settings.current(workspace, RollingSettings::load)
    }

    /// The budgets as they were last read.
    pub(crate) fn last(&self) -> Option<Arc<RollingSettings>> {
        self.settings.last()
    }

    /// The directives that a thread's spending counts for: its own and those above it.
    pub(crate) async fn directives(
        &self,
        store: &dyn ThreadStore,
        settings: &RollingSettings,
        thread: &ThreadId,
    ) -> Result<Arc<[String]>> {
        if settings.caps.directives.is_empty() {
            return Ok(Arc::from([]));
        }
        if let Some(found) = self.known().get(thread) {
            return Ok(Arc::clone(found));
        }
        let own = store.thread(thread).await?;
        let above = store.ancestors(thread).await?;
        let found: Arc<[String]> = own.into_iter().chain(above).map(|row| row.directive).collect();
        let mut known = self.known();
        if known.len() >= MAX_KNOWN_THREADS {
            known.clear();
        }
        known.insert(thread.clone(), Arc::clone(&found));
        Ok(found)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<ThreadId, Arc<[String]>>> {
        self.directives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
