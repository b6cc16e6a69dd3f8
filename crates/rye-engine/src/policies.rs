//! The settings every run rests on, read once and again when a file that says them changes.

use std::sync::{Arc, Mutex, PoisonError};

use rye_exec::environment::Policy;
use rye_item::{ItemId, ItemType};
use rye_space::stamp::Watched;
use serde_json::Value;

use crate::engine::Engine;
use crate::error::{Code, Error, Result};

/// What of the surroundings reaches a process, and what a process may touch.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    /// `execution/environment`.
    pub(crate) environment: Arc<Policy>,
    /// `execution/sandbox`.
    pub(crate) sandbox: Arc<Value>,
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
        let watched = self.watched_configs(&["execution/environment", "execution/sandbox"]);
        let settings = self.workspace.config(&ItemId::new("execution/environment")?);
        let environment = Policy::from_settings(&settings.value).map_err(|error| {
            Error::new(Code::Invalid, error.to_string()).hint("rye config show execution/environment")
        })?;
        let sandbox = self.workspace.config(&ItemId::new("execution/sandbox")?).value;
        let policies = Policies { environment: Arc::new(environment), sandbox: Arc::new(sandbox) };
        *last = Some((watched, policies.clone()));
        Ok(policies)
    }

    /// Every file outside the binary that could say something in these configs.
    fn watched_configs(&self, ids: &[&str]) -> Watched {
        let workspace = &self.workspace;
        let extensions = &workspace.spaces.extractors().of(ItemType::Config).extensions;
        let mut watched = Watched::default();
        for folder in workspace.spaces.order().filter_map(|space| workspace.spaces.folder(&space)) {
            for id in ids {
                let flat = id.rsplit('/').next().unwrap_or(id);
                for extension in extensions {
                    watched.add(folder.join(format!("config/{id}{extension}")));
                    watched.add(folder.join(format!("config/{flat}{extension}")));
                }
            }
        }
        watched
    }
}
