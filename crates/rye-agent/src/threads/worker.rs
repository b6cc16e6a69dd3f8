//! The threads of one submitted tree, as a worker has them: taken, renewed and given back from outside, because one look
//! at the store serves all trees of a worker.

use std::sync::Arc;

use lillux::Digest;
use rye_engine::{Code, Engine, Error, Result};

use super::resume::ResumeOptions;
use super::{StartedThread, Threads, run_blocking};
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

    /// Registers a thread for workers: its submission is the first of these blobs, and names the others.
    pub(crate) async fn register_submitted(&self, spec: &Arc<ThreadSpec>, blobs: &[Digest]) -> Result<()> {
        self.runtime.register_with(spec, None, blobs).await.map(drop)
    }

    /// Whether a thread runs here.
    pub(crate) fn runs(&self, id: &ThreadId) -> bool {
        self.runtime.running.claim(id).is_some()
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

    /// Takes a thread that waits for a worker and lets it run here; `None` when another worker was faster.
    ///
    /// # Errors
    /// When it cannot continue.
    pub(crate) async fn take_submitted(&self, row: &ThreadRow) -> Result<Option<StartedThread>> {
        let held = |error: Error| if error.code == Code::ThreadHeld { Ok(None) } else { Err(error) };
        let options = match row.status {
            ThreadStatus::Suspended => self.runtime.requested_options(row).await?,
            _ => ResumeOptions { by: "rye".to_owned(), ..ResumeOptions::default() },
        };
        let claim = match self.runtime.claim_thread(&row.id).await {
            Ok(claim) => claim,
            Err(error) => return held(error),
        };
        // Another worker may have had it meanwhile: what was requested is for the thread as it stood.
        let now = self.runtime.records.row(&row.id).await;
        if !now.is_ok_and(|now| (now.status, now.records) == (row.status, row.records)) {
            let _ = self.runtime.store.release_claim(&row.id, claim).await;
            return Ok(None);
        }
        if row.status == ThreadStatus::Suspended {
            self.runtime.control.clear_cancel_request(&row.id).await;
        }
        self.runtime.resume_claimed(&row.id, claim, &options, CancelSignal::default()).await.map(Some)
    }

    /// The threads that run here, with the right to each.
    pub(crate) fn claims(&self) -> Vec<(ThreadId, Claim)> {
        self.runtime.running.claims()
    }

    /// Ends the work on a thread that another process took.
    pub(crate) async fn drop_lost(&self, id: &ThreadId, claim: Claim) {
        self.runtime.drop_lost(id, claim).await;
    }

    /// Stops all threads where they stand and gives them back: another worker continues from there. Gives their names.
    pub(crate) async fn give_back(&self) -> Vec<ThreadId> {
        let mut given = Vec::new();
        for (id, claim) in self.runtime.running.claims() {
            if let Some(task) = self.runtime.running.abort(&id, claim) {
                super::control::wait_until_aborted(&task).await;
            }
            // A store that cannot be reached gives them to others when the leases end.
            let _ = self.runtime.store.release_claim(&id, claim).await;
            given.push(id);
        }
        given
    }
}
