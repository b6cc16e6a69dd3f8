//! One thread by its name: taken if it waits, run until it ends or stops. What a dispatch calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{POLL_INTERVAL, Worker};
use crate::status::ThreadStatus;
use crate::store::{ClaimPolicy, SHARED_LEASE_MS};
use crate::thread_id::ThreadId;

/// How long a call waits for a free place before another worker may have it.
const PLACE_TIMEOUT: Duration = Duration::from_secs(3);

/// How much of another's lease is waited for.
const MAX_LEASE_WAIT_MS: u64 = 5_000;
/// How long after its end a lease has certainly ended.
const LEASE_MARGIN_MS: u64 = 100;

/// What became of a call to run a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DriveOutcome {
    /// The thread has ended, or waits for a person.
    Done,
    /// Another process has it, or it does not fit here, or not now; and why.
    Later(String),
    /// It is not a submitted thread of this store, and why.
    Refused(String),
}

/// What is found of a thread before it runs.
enum DriveStep {
    Finished(DriveOutcome),
    /// It ran here and stopped, or its lease ends now.
    Again,
}

impl Worker {
    /// Takes a thread that waits and runs it until it ends or stops. Once called, it must be awaited to its end.
    pub async fn drive(self: &Arc<Self>, id: &ThreadId) -> DriveOutcome {
        loop {
            match self.drive_once(id).await {
                Ok(DriveStep::Finished(outcome)) => return outcome,
                Ok(DriveStep::Again) => {}
                Err(error) => return DriveOutcome::Later(error.to_string()),
            }
        }
    }

    async fn drive_once(self: &Arc<Self>, id: &ThreadId) -> rye_engine::Result<DriveStep> {
        let later = |reason: &str| Ok(DriveStep::Finished(DriveOutcome::Later(reason.to_owned())));
        if self.runs(id) {
            // It was taken without a call, or the call that took it broke off.
            while self.runs(id) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            return Ok(DriveStep::Again);
        }
        let store = self.store().shared();
        let Some(row) = store.thread(id).await?.filter(|row| row.is_submitted) else {
            let reason = format!("{id} is not a submitted thread of this store");
            return Ok(DriveStep::Finished(DriveOutcome::Refused(reason)));
        };
        if row.is_forged {
            return later(row.error.as_deref().unwrap_or("its row is not signed by a listed key"));
        }
        if row.status.is_terminal() {
            return Ok(DriveStep::Finished(DriveOutcome::Done));
        }
        if self.is_draining.load(Ordering::Relaxed) {
            return later("it is ending");
        }
        let policy = ClaimPolicy::Expired { now_ms: self.setup.clock.now_ms(), lease_ms: SHARED_LEASE_MS };
        let found = store.submitted(&self.place.owner, policy, Some(id)).await?.into_iter().next();
        let Some(found) = found else {
            if row.status == ThreadStatus::Suspended && row.owner.is_none() {
                return Ok(DriveStep::Finished(DriveOutcome::Done));
            }
            let now_ms = self.setup.clock.now_ms();
            let left_ms = row.heartbeat_ms.saturating_add(SHARED_LEASE_MS).saturating_sub(now_ms);
            if row.owner.is_none() || left_ms == 0 || left_ms > MAX_LEASE_WAIT_MS {
                return later("another process has it");
            }
            // Its holder has not renewed the lease for long: it is waited for, because the next call may come seconds after.
            tokio::time::sleep(Duration::from_millis(left_ms.saturating_add(LEASE_MARGIN_MS))).await;
            return Ok(DriveStep::Again);
        };
        if self.is_refused(id) {
            return later("it was refused here not long ago");
        }
        let deadline = Instant::now() + PLACE_TIMEOUT;
        while !self.reserve_place(id, found.row.depth) {
            if Instant::now() >= deadline {
                return later("no place is free");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        match self.consider(found).await {
            Ok(stopped) => {
                stopped.await;
                Ok(DriveStep::Again)
            }
            Err(reason) => later(&reason),
        }
    }

    fn runs(&self, id: &ThreadId) -> bool {
        self.open_trees().iter().any(|tree| tree.threads.runs(id))
    }
}
