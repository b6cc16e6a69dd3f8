//! The settings every run rests on, read once and again when a file that says them changes.

use std::sync::{Arc, Mutex, PoisonError};

use rye_exec::{environment, sandbox};
use rye_item::ItemId;
use rye_space::file_stamp::WatchSet;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What of the surroundings reaches a process, and what a process may touch.
#[derive(Clone, Debug)]
pub(crate) struct RunPolicies {
    /// `execution/environment`.
    pub(crate) environment: Arc<environment::EnvironmentPolicy>,
    /// `execution/sandbox`.
    pub(crate) sandbox: Arc<sandbox::SandboxPolicy>,
}

/// The policies as they were read last, and what they were read from.
#[derive(Default)]
pub(crate) struct PolicyCache {
    last: Mutex<Option<(WatchSet, RunPolicies)>>,
}

impl PolicyCache {
    /// Forgets everything: keys or settings have changed.
    pub(crate) fn clear(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Engine {
    /// The policies of this workspace.
    ///
    /// # Errors
    /// When a setting is not what it must be.
    pub(crate) fn policies(&self) -> Result<RunPolicies> {
        let mut last = self.policy_cache.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((watched, policies)) = last.as_ref()
            && watched.is_unchanged()
        {
            return Ok(policies.clone());
        }
        // Watched before it is read: a change in between is noticed next time.
        let watched = self.workspace.watch_configs(&["execution/environment", "execution/sandbox"]);
        let settings = self.workspace.config(&ItemId::new("execution/environment")?);
        let environment =
            environment::EnvironmentPolicy::from_settings(&settings.value).map_err(|error| {
                Error::new(Code::Invalid, error.to_string()).hint("rye config show execution/environment")
            })?;
        let settings = self.workspace.config(&ItemId::new("execution/sandbox")?);
        let sandbox = sandbox::SandboxPolicy::from_settings(&settings.value).map_err(|error| {
            Error::new(Code::Invalid, error.to_string()).hint("settings: rye config show execution/sandbox")
        })?;
        let policies = RunPolicies { environment: Arc::new(environment), sandbox: Arc::new(sandbox) };
        *last = Some((watched, policies.clone()));
        Ok(policies)
    }

    /// Which variables may reach a tool, and which look like secrets.
    ///
    /// # Errors
    /// When a setting is not what it must be.
    pub fn environment_policy(&self) -> Result<Arc<environment::EnvironmentPolicy>> {
        Ok(self.policies()?.environment)
    }
}
