//! Handing threads that wait for a worker over to what calls workers, where the store has such a dispatch.

use rye_engine::Result;

use super::{ThreadRuntime, Threads, run_blocking};
use crate::thread_id::ThreadId;

impl Threads {
    /// Hands a submitted thread over that waits for a worker. Without a dispatch workers look for it.
    ///
    /// # Errors
    /// When the dispatch cannot be reached, named. The thread waits all the same.
    pub(crate) async fn hand_over(&self, id: &ThreadId) -> Result<()> {
        self.runtime.hand_over(id).await
    }
}

impl ThreadRuntime {
    /// As there. One that no worker could take now is left: its call would come to nothing, and not be made again.
    pub(super) async fn hand_over(&self, id: &ThreadId) -> Result<()> {
        let Some(dispatch) = self.dispatch.clone() else { return Ok(()) };
        let found = self.store.submitted(&self.owner, self.claim_policy(), Some(id)).await?;
        let Some(epoch) = found.first().map(|found| found.epoch) else { return Ok(()) };
        let id = id.clone();
        run_blocking(move || dispatch.hand_over(&id, epoch)).await
    }
}
