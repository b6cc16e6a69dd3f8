//! The threads at work in this process, and those that stopped here to ask a person.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::CancelSignal;
use crate::limits::ThreadLimits;
use crate::store::Claim;
use crate::thread_id::ThreadId;

/// A thread at work in this process.
pub(super) struct RunningThread {
    /// How much it may use: a person may have allowed more since it began.
    pub(super) limits: ThreadLimits,
    pub(super) signal: CancelSignal,
    /// What says that it is this process's.
    pub(super) claim: Claim,
    /// How it is ended by force.
    pub(super) task: Option<tokio::task::AbortHandle>,
}

/// All of them.
#[derive(Default)]
pub(super) struct RunningThreads {
    running: Mutex<HashMap<ThreadId, RunningThread>>,
    awaiting_approval: Mutex<HashSet<ThreadId>>,
}

impl RunningThreads {
    fn lock(&self) -> MutexGuard<'_, HashMap<ThreadId, RunningThread>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Threads that stopped here to ask a person.
    pub(super) fn awaiting_approval(&self) -> MutexGuard<'_, HashSet<ThreadId>> {
        self.awaiting_approval.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread begins to run here.
    pub(super) fn add(&self, id: &ThreadId, limits: ThreadLimits, signal: &CancelSignal, claim: Claim) {
        let running = RunningThread { limits, signal: signal.clone(), claim, task: None };
        self.lock().insert(id.clone(), running);
    }

    /// How a thread that began to run is ended by force.
    pub(super) fn set_task(&self, id: &ThreadId, task: tokio::task::AbortHandle) {
        if let Some(running) = self.lock().get_mut(id) {
            running.task = Some(task);
        }
    }

    /// A thread runs here no more.
    pub(super) fn remove(&self, id: &ThreadId) {
        self.lock().remove(id);
    }

    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// How much a thread may use now, if it runs here.
    pub(super) fn limits(&self, id: &ThreadId) -> Option<ThreadLimits> {
        self.lock().get(id).map(|running| running.limits)
    }

    /// The claim of a thread that runs here, and how it is ended by force.
    pub(super) fn claim(&self, id: &ThreadId) -> Option<(Claim, Option<tokio::task::AbortHandle>)> {
        self.lock().get(id).map(|running| (running.claim, running.task.clone()))
    }

    /// The claims of all.
    pub(super) fn claims(&self) -> Vec<(ThreadId, Claim)> {
        self.lock().iter().map(|(id, running)| (id.clone(), running.claim)).collect()
    }

    /// Asks a thread to end; whether it runs here.
    pub(super) fn cancel(&self, id: &ThreadId, reason: &str) -> bool {
        let running = self.lock();
        let Some(thread) = running.get(id) else { return false };
        thread.signal.cancel(reason);
        true
    }

    /// Asks every thread to end.
    pub(super) fn cancel_all(&self, reason: &str) {
        self.lock().values().for_each(|thread| thread.signal.cancel(reason));
    }

    /// A thread is not this process's any more, unless it was taken up here again since. Gives the task that was aborted.
    pub(super) fn abort(&self, id: &ThreadId, claim: Claim) -> Option<tokio::task::AbortHandle> {
        let mut running = self.lock();
        running.get(id).filter(|thread| thread.claim == claim)?;
        let task = running.remove(id)?.task?;
        task.abort();
        Some(task)
    }
}
