//! What a worker's trees leave to others: threads that are not waited for, which any worker takes.

use std::collections::BTreeMap;

use rye_engine::Result;

use crate::thread_id::ThreadId;
use crate::threads::{BackgroundConnection, BackgroundHost, ResumeOptions, TakeoverReport};

/// Where threads of a tree that are not waited for are left: with all workers.
pub(super) struct WorkerPool;

impl BackgroundHost for WorkerPool {
    fn connect(&self) -> Result<Box<dyn BackgroundConnection>> {
        Ok(Box::new(WorkerPool))
    }

    fn has_threads(&self) -> bool {
        true
    }
}

impl BackgroundConnection for WorkerPool {
    fn take_over(self: Box<Self>, _: &[ThreadId]) -> Result<TakeoverReport> {
        Ok(TakeoverReport { pid: std::process::id(), refused: BTreeMap::new() })
    }

    fn resume(self: Box<Self>, _: &ThreadId, _: &ResumeOptions) -> Result<Option<u32>> {
        // Workers take what the store says, and nothing from a person.
        Ok(None)
    }
}
