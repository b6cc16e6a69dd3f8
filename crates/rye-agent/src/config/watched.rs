//! One config of a warm process: read again when a file that could set something has changed, come or gone.

use std::sync::{Arc, Mutex, PoisonError};

use rye_engine::Result;
use rye_space::Workspace;
use rye_space::file_stamp::{FileGeneration, MonitoredSet, record_reads};

/// What was read from one config, as long as it is current.
#[derive(Debug)]
pub(crate) struct WatchedConfig<T>(Mutex<Option<WatchedValue<T>>>);

#[derive(Debug)]
struct WatchedValue<T> {
    generation: FileGeneration,
    files: MonitoredSet,
    value: Arc<T>,
}

impl<T> Default for WatchedConfig<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> WatchedConfig<T> {
    /// What the config says now; `load` reads it.
    pub(crate) fn current(
        &self,
        workspace: &Workspace,
        load: impl FnOnce(&Workspace) -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = last.as_ref()
            && cached.generation == workspace.generation()
            && cached.files.is_unchanged()
        {
            return Ok(Arc::clone(&cached.value));
        }
        let (value, files) = record_reads(|| load(workspace));
        let value = Arc::new(value?);
        let (generation, files) = (workspace.generation(), MonitoredSet::new(files));
        *last = Some(WatchedValue { generation, files, value: Arc::clone(&value) });
        Ok(value)
    }

    /// What the config said when it was last read.
    pub(crate) fn last(&self) -> Option<Arc<T>> {
        let last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().map(|cached| Arc::clone(&cached.value))
    }
}
