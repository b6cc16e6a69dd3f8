//! The threads of one submitted tree, as a worker has them: taken, renewed and given back from outside, because one look
//! at the store serves all trees of a worker.

use std::sync::Arc;

use lillux::Digest;
use rye_engine::{Code, Engine, Error, Result};

use super::resume::ResumeOptions;
use super::{Threads, run_blocking};
use crate::driver::CancelSignal;
use crate::prepare::{PreparedThread, ThreadRequest};
use crate::spec::ThreadSpec;
use crate::status::ThreadStatus;
use crate::store::{Claim, JournalRecord, ThreadRow};
use crate::thread_id::ThreadId;

impl Threads {
    /// The engine as it is now.
    pub(crate) fn engine(&self) -> Result<Arc<Engine>> {
        (self.runtime.setup.engine)()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.runtime.setup.clock.now_ms()
    }

    /// Keeps the shared part of a prepared thread.
    pub(crate) async fn store_template(&self, prepared: &PreparedThread) -> Result<Digest> {
        self.runtime.records.store_template(&prepared.spec.template).await
    }

    /// Registers a thread for workers.
    pub(crate) async fn register_submitted(
        &self,
        spec: &Arc<ThreadSpec>,
        submission: Digest,
        archive: Digest,
    ) -> Result<()> {
        self.runtime.register_with(spec, None, Some((submission, archive))).await.map(drop)
    }

    /// What a thread is, and the first record of its journal.
    pub(crate) async fn submitted_spec(&self, id: &ThreadId) -> Result<(Arc<ThreadSpec>, JournalRecord)> {
        let (records, id) = (Arc::clone(self.runtime.records.reader()), id.clone());
        run_blocking(move || {
            let (spec, _) = records.load_record(&id)?;
            let first = records.store.journal(&id)?.into_iter().next();
            let first =
                first.ok_or_else(|| Error::new(Code::StoreDamaged, format!("{id} has no journal")))?;
            Ok((spec, first))
        })
        .await
    }

    /// What this worker would make of a request.
    pub(crate) async fn prepare_alike(&self, request: ThreadRequest) -> Result<PreparedThread> {
        self.runtime.preparer.prepare(request).await
    }

    /// Takes a thread that waits for a worker and lets it run here; whether it does. Another worker may have been faster.
    ///
    /// # Errors
    /// When it cannot continue.
    pub(crate) async fn take_submitted(&self, row: &ThreadRow) -> Result<bool> {
        let held = |error: Error| if error.code == Code::ThreadHeld { Ok(false) } else { Err(error) };
        if row.status == ThreadStatus::Suspended {
            let options = ResumeOptions { is_unattended: true, ..ResumeOptions::default() };
            let resumed = self.runtime.resume(&row.id, &options, CancelSignal::default()).await;
            return resumed.map(|_| true).or_else(held);
        }
        let claim = match self.runtime.claim_thread(&row.id).await {
            Ok(claim) => claim,
            Err(error) => return held(error),
        };
        let options = ResumeOptions { by: "rye".to_owned(), ..ResumeOptions::default() };
        self.runtime.resume_claimed(&row.id, claim, &options, CancelSignal::default()).await.map(|_| true)
    }

    /// The threads that run here, with the right to each.
    pub(crate) fn claims(&self) -> Vec<(ThreadId, Claim)> {
        self.runtime.running.claims()
    }

    /// Ends the work on a thread that another process took.
    pub(crate) async fn drop_lost(&self, id: &ThreadId, claim: Claim) {
        self.runtime.drop_lost(id, claim).await;
    }

    /// Stops all threads where they stand and gives them back: another worker continues from there.
    pub(crate) async fn give_back(&self) {
        for (id, claim) in self.runtime.running.claims() {
            if let Some(task) = self.runtime.running.abort(&id, claim) {
                super::control::wait_until_aborted(&task).await;
            }
            // A store that cannot be reached gives them to others when the leases end.
            let _ = self.runtime.store.release_claim(&id, claim).await;
        }
    }
}
