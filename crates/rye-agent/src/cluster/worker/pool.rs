//! What a worker's trees leave to others: threads that are not waited for, which any worker takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rye_engine::{Error, Result};
use rye_item::text::one_line;

use crate::store::OpenedStore;
use crate::thread_id::ThreadId;
use crate::threads::{BackgroundConnection, BackgroundHost, ResumeOptions, TakeoverReport};

/// Where threads of a tree that are not waited for are left: with all workers.
#[derive(Clone)]
pub(super) struct WorkerPool {
    /// What has them, and what is to know of them.
    pub(super) store: Arc<OpenedStore>,
    /// Hears what could not be handed over.
    pub(super) log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl WorkerPool {
    /// Hands threads that wait over to what calls workers, if the store has that.
    pub(super) fn hand_over(&self, threads: &[ThreadId]) {
        let Some(dispatch) = &self.store.dispatch else { return };
        for id in threads {
            let epoch = self.store.store.epoch(id).map_err(Error::from);
            if let Err(error) = epoch.and_then(|epoch| dispatch.hand_over(id, epoch)) {
                (self.log)(&one_line(&error.to_string()));
            }
        }
    }
}

impl BackgroundHost for WorkerPool {
    fn connect(&self) -> Result<Box<dyn BackgroundConnection>> {
        Ok(Box::new(self.clone()))
    }

    fn has_threads(&self) -> bool {
        true
    }
}

impl BackgroundConnection for WorkerPool {
    fn take_over(self: Box<Self>, threads: &[ThreadId]) -> Result<TakeoverReport> {
        self.hand_over(threads);
        Ok(TakeoverReport { pid: std::process::id(), refused: BTreeMap::new() })
    }

    fn resume(self: Box<Self>, _: &ThreadId, _: &ResumeOptions) -> Result<Option<u32>> {
        // Workers take what the store says, and nothing from a person.
        Ok(None)
    }
}
