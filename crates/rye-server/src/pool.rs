//! Where verbs run: they block, so they run beside the thread that talks, a bounded number at a time.

use rye_engine::{Code, Error, Result};
use tokio::sync::Semaphore;

/// Reading, searching, signing at once.
const QUICK: usize = 4;
/// Tools running at once; further ones wait their turn.
const LONG: usize = 32;
/// Threads for both, and for standard input and output where they are no pipes.
pub(crate) const MOST_THREADS: usize = QUICK + LONG + 4;

/// How long something takes: what is quick never waits for what is long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Quick,
    Long,
}

/// Bounds on what runs at once.
#[derive(Debug)]
pub(crate) struct Pool {
    quick: Semaphore,
    long: Semaphore,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Self { quick: Semaphore::new(QUICK), long: Semaphore::new(LONG) }
    }

    /// Runs `work` on a thread of its own, when it is its turn.
    ///
    /// # Errors
    /// What the work fails with; or when it panics, or the server is ending.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        pace: Pace,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let turns = match pace {
            Pace::Quick => &self.quick,
            Pace::Long => &self.long,
        };
        let _turn = turns.acquire().await.map_err(|_| ending())?;
        tokio::task::spawn_blocking(work).await.map_err(|_| ending())?
    }
}

fn ending() -> Error {
    Error::new(Code::Serving, "the request was not finished: the server is ending, or failed")
        .hint("start the server again; if it happens again, run: rye doctor")
}
