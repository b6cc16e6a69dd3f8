//! Where verbs run: they block, so they run beside the thread that talks, a bounded number at a time.

use rye_engine::{Code, Error, Result};
use tokio::sync::Semaphore;

/// Reading, searching, signing at once.
const MAX_QUICK: usize = 4;
/// Tools running at once; further ones wait their turn.
const MAX_LONG: usize = 32;
/// Threads for both, and for standard input and output where they are not pipes.
pub(crate) const MAX_THREADS: usize = MAX_QUICK + MAX_LONG + 4;

/// How long something takes: what is quick never waits for what is long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Quick,
    Long,
}

/// Bounds on what runs at once.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    quick: Semaphore,
    long: Semaphore,
}

impl WorkerPool {
    pub(crate) fn new() -> Self {
        Self { quick: Semaphore::new(MAX_QUICK), long: Semaphore::new(MAX_LONG) }
    }

    /// Runs `work` on a thread of its own, when it is its turn.
    ///
    /// # Errors
    /// What the work fails with; or when it panics, or the server is ending.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        lane: Lane,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let permits = match lane {
            Lane::Quick => &self.quick,
            Lane::Long => &self.long,
        };
        let _permit = permits.acquire().await.map_err(|_| shutting_down_error())?;
        tokio::task::spawn_blocking(work).await.map_err(|_| shutting_down_error())?
    }
}

fn shutting_down_error() -> Error {
    Error::new(Code::Serving, "the request was not finished: the server is ending, or failed")
        .hint("start the server again; if it happens again, run: rye doctor")
}
