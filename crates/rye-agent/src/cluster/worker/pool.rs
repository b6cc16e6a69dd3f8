//! What a worker's trees leave to others: threads that are not waited for, which any worker takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use rye_engine::{Error, Result};
use rye_item::text::one_line;

use crate::driver::MillisClock;
use crate::store::{ClaimPolicy, SHARED_LEASE_MS, SubmittedThread, ThreadStoreError};
use crate::thread_id::ThreadId;
use crate::threads::{BackgroundConnection, BackgroundHost, ResumeOptions, TakeoverReport, WorkerPlace};

/// Where threads of a tree that are not waited for are left: with all workers.
#[derive(Clone)]
pub(super) struct WorkerPool {
    pub(super) place: WorkerPlace,
    pub(super) clock: Arc<dyn MillisClock>,
    /// Hears what could not be handed over.
    pub(super) log: Arc<dyn Fn(&str) + Send + Sync>,
}

impl WorkerPool {
    /// Hands threads over that wait, if there is something that calls workers for them. It blocks.
    pub(super) fn hand_over(&self, threads: &[ThreadId]) {
        if self.place.store.dispatch.is_none() {
            return;
        }
        let policy = ClaimPolicy::Expired { now_ms: self.clock.now_ms(), lease_ms: SHARED_LEASE_MS };
        for id in threads {
            self.hand_over_found(self.place.store.store.submitted(&self.place.owner, policy, Some(id)));
        }
    }

    /// Hands over what no worker has. It blocks.
    #[cfg(feature = "restate")]
    pub(super) fn hand_over_all(&self) {
        // What a worker had that died is being called for.
        self.hand_over_found(self.place.store.store.submitted(&self.place.owner, ClaimPolicy::Free, None));
    }

    fn hand_over_found(&self, found: std::result::Result<Vec<SubmittedThread>, ThreadStoreError>) {
        let Some(dispatch) = &self.place.store.dispatch else { return };
        let handed = found.map_err(Error::from).and_then(|found| {
            found.iter().try_for_each(|found| dispatch.hand_over(&found.row.id, found.epoch))
        });
        if let Err(error) = handed {
            (self.log)(&one_line(&error.to_string()));
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
