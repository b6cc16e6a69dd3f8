//! One config of a warm process: read again when a file that could set something has changed, come or gone.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rye_engine::Result;
use rye_space::Workspace;
use rye_space::file_stamp::WatchSet;

/// How long a config is taken to be as it was found.
const CONFIG_TTL: Duration = Duration::from_millis(100);

/// What was read from one config, as long as it is current.
#[derive(Debug)]
pub(crate) struct WatchedConfig<T> {
    id: &'static str,
    last: Mutex<Option<WatchedValue<T>>>,
}

#[derive(Debug)]
struct WatchedValue<T> {
    checked_at: Instant,
    files: WatchSet,
    opened_from: WatchSet,
    value: Arc<T>,
}

impl<T> WatchedConfig<T> {
    /// Of the config `id`, which is not read yet.
    pub(crate) fn new(id: &'static str) -> Self {
        Self { id, last: Mutex::default() }
    }

    /// What the config says now; `load` reads it.
    pub(crate) fn current(
        &self,
        workspace: &Workspace,
        load: impl FnOnce(&Workspace) -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = last.as_mut() {
            if cached.checked_at.elapsed() < CONFIG_TTL {
                return Ok(Arc::clone(&cached.value));
            }
            if cached.opened_from == *workspace.watch_set_at_open() && cached.files.is_unchanged() {
                cached.checked_at = Instant::now();
                return Ok(Arc::clone(&cached.value));
            }
        }
        // Watched before it is read: a change in between is noticed next time.
        let files = workspace.watch_configs(&[self.id]);
        let value = Arc::new(load(workspace)?);
        let opened_from = workspace.watch_set_at_open().clone();
        let checked_at = Instant::now();
        *last = Some(WatchedValue { checked_at, files, opened_from, value: Arc::clone(&value) });
        Ok(value)
    }

    /// What the config said when it was last read.
    pub(crate) fn last(&self) -> Option<Arc<T>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|cached| Arc::clone(&cached.value))
    }
}
