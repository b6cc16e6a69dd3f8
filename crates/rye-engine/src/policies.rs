//! The settings every run rests on, read once and again when a file that says them changes.

use std::sync::{Arc, Mutex, PoisonError};

use rye_exec::{environment, sandbox};
use rye_item::ItemId;
use rye_space::stamp::Watched;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What of the surroundings reaches a process, and what a process may touch.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    /// `execution/environment`.
    pub(crate) environment: Arc<environment::Policy>,
    /// `execution/sandbox`.
    pub(crate) sandbox: Arc<sandbox::Policy>,
}

/// The policies as they were read last, and what they were read from.
#[derive(Default)]
pub(crate) struct Read {
    last: Mutex<Option<(Watched, Policies)>>,
}

impl Read {
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
    pub(crate) fn policies(&self) -> Result<Policies> {
        let mut last = self.read_policies.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((watched, policies)) = last.as_ref()
            && watched.is_unchanged()
        {
            return Ok(policies.clone());
        }
        // Watched before it is read: a change in between is noticed next time.
        let watched = self.workspace.watched_configs(&["execution/environment", "execution/sandbox"]);
        let settings = self.workspace.config(&ItemId::new("execution/environment")?);
        let environment = environment::Policy::from_settings(&settings.value).map_err(|error| {
            Error::new(Code::Invalid, error.to_string()).hint("rye config show execution/environment")
        })?;
        let settings = self.workspace.config(&ItemId::new("execution/sandbox")?);
        let sandbox = sandbox::Policy::from_settings(&settings.value).map_err(|error| {
            Error::new(Code::Invalid, error.to_string()).hint("settings: rye config show execution/sandbox")
        })?;
        let policies = Policies { environment: Arc::new(environment), sandbox: Arc::new(sandbox) };
        *last = Some((watched, policies.clone()));
        Ok(policies)
    }

    /// Which variables may reach a tool, and which look like secrets.
    ///
    /// # Errors
    /// When a setting is not what it must be.
    pub fn environment_policy(&self) -> Result<Arc<environment::Policy>> {
        Ok(self.policies()?.environment)
    }
}
