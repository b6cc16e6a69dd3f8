//! What people and parents do to threads that may run anywhere, or nowhere.

use std::pin::Pin;
use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_model::offline::OfflineProvider;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::orchestrator::WaitRequest;
use super::resume::ResumeOptions;
use super::{FinishedThread, ThreadRuntime, Threads};
use crate::config::{ChildAction, ChildPolicy};
use crate::driver::{CancelSignal, DriverError, ThreadDriver};
use crate::machine::ThreadEvent;
use crate::money::Nanos;
use crate::status::ThreadStatus;
use crate::store::{
    Approval, ApprovalDecision, Claim, ClaimOutcome, ClaimPolicy, StatusChange, ThreadCommit, ThreadRow,
};
use crate::thread_id::ThreadId;

/// What became of a request to end a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelOutcome {
    /// No process ran it: it has ended.
    Cancelled,
    /// The process that runs it was asked, and ends it soon.
    Requested,
}

impl Threads {
    /// Ends a thread, wherever it runs; one that no process runs ends here and now, without another step.
    ///
    /// # Errors
    /// When there is no such thread, or it has ended.
    pub async fn cancel(&self, id: &ThreadId, reason: &str) -> Result<CancelOutcome> {
        let row = self.runtime.records.row(id)?;
        if row.status.is_terminal() {
            return Err(ended_error(&row));
        }
        self.runtime.cancel(id, reason).await
    }

    /// Whether a thread of this process stopped to ask a person.
    #[must_use]
    pub fn has_pending_approvals(&self) -> bool {
        !self.runtime.running.awaiting_approval().is_empty()
    }

    /// The open questions of a thread and of all threads below it.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn open_approvals(&self, id: &ThreadId) -> Result<Vec<Approval>> {
        Ok(self.runtime.store.open_approvals(Some(id))?.approvals)
    }

    /// Gives a person's answer to these questions, which must be asked below `root`; with a yes limits grow by what is asked
    /// for.
    ///
    /// # Errors
    /// When one is not open any more.
    pub fn answer_approvals(&self, root: &ThreadId, ids: &[String], approved: bool, by: &str) -> Result<()> {
        let open = self.open_approvals(root)?;
        for id in ids {
            let not_found =
                || Error::from(crate::store::ThreadStoreError::NoApproval(rye_item::text::one_line(id)));
            let approval = open.iter().find(|approval| approval.id == *id).ok_or_else(not_found)?;
            let answer = ApprovalDecision {
                approved,
                message: None,
                changes: approval.detail.get("proposed").filter(|_| approved).cloned().unwrap_or_default(),
                at_ms: self.runtime.setup.clock.now_ms(),
                by: by.to_owned(),
                always: None,
            };
            self.runtime.store.answer_approval(id, &answer)?;
        }
        Ok(())
    }

    /// Resumes a thread that was answered, unless another process has, and waits until it ends or stops.
    ///
    /// # Errors
    /// When it cannot go on.
    pub async fn resume_and_wait(
        &self,
        id: &ThreadId,
        cancel_token: &CancellationToken,
    ) -> Result<FinishedThread> {
        let row = self.runtime.records.row(id)?;
        if row.status == ThreadStatus::Suspended && self.runtime.store.answered_threads()?.contains(id) {
            match self.runtime.resume(id, &ResumeOptions::default(), CancelSignal::default()).await {
                // The process that watches for answers was faster.
                Err(error) if error.code == Code::ThreadHeld => {}
                Err(error) => return Err(error),
                Ok(started) => {
                    let lost = || Error::new(Code::ThreadFailed, format!("{id} was lost"));
                    return started.finished().await.map(|finished| (*finished).clone()).ok_or_else(lost);
                }
            }
        }
        let request = WaitRequest { waits_for_approval: false, ..WaitRequest::for_all(vec![id.clone()]) };
        self.runtime.wait(&request, false, cancel_token).await?;
        self.runtime.records.current_outcome(id)
    }

    /// Ends a thread by force, whichever process runs it.
    ///
    /// # Errors
    /// When there is no such thread, or it has ended.
    pub async fn kill(&self, id: &ThreadId) -> Result<Value> {
        let row = self.runtime.records.row(id)?;
        if row.status.is_terminal() {
            return Err(ended_error(&row));
        }
        self.runtime.kill(&row).await
    }
}

fn ended_error(row: &ThreadRow) -> Error {
    Error::new(Code::ThreadEnded, format!("{} has ended: {}", row.id, row.status))
        .detail("thread_id", row.id.as_str())
        .hint(format!("see what it did: rye thread show {}", row.id))
}

impl ThreadRuntime {
    /// Ends a thread: at once if it runs here or nowhere; by a request if another process runs it.
    pub(super) async fn cancel(self: &Arc<Self>, id: &ThreadId, reason: &str) -> Result<CancelOutcome> {
        if self.running.cancel(id, reason) {
            return Ok(CancelOutcome::Requested);
        }
        let row = self.records.row(id)?;
        if row.status.is_terminal() {
            return Ok(CancelOutcome::Cancelled);
        }
        let now = self.setup.clock.now_ms();
        let ClaimOutcome::Claimed { claim, .. } =
            self.store.shared().claim(id, &self.owner, ClaimPolicy::Free, now).await?
        else {
            self.request_cancel(id, reason).await?;
            return Ok(CancelOutcome::Requested);
        };
        self.terminate(&row, claim, ThreadStatus::Cancelled, reason).await?;
        self.apply_child_policy(id, ThreadStatus::Cancelled, self.records.child_policy(id)).await;
        Ok(CancelOutcome::Cancelled)
    }

    /// Ends a thread that is claimed here, without another step of its own: its event, its status, its transcript and
    /// `state.json` say so. The claim is given back.
    pub(super) async fn terminate(
        self: &Arc<Self>,
        row: &ThreadRow,
        claim: Claim,
        status: ThreadStatus,
        reason: &str,
    ) -> Result<()> {
        let thread = row.id.clone();
        let point = self.records.run_blocking(move |records| records.resume_point(&thread)).await;
        let ended = match point {
            Ok(point) => {
                let spend = point.unsettled.iter().fold(Nanos(0), |sum, one| sum.plus(one.spend));
                let event = ThreadEvent::Terminated { status, reason: reason.to_owned(), spend };
                let no_model = Arc::new(OfflineProvider::new(Vec::new(), Vec::new(), Map::new()));
                let deps = self.driver_deps(&row.id);
                let driver = ThreadDriver::new(deps, point, claim, no_model, CancelSignal::default());
                match driver.run(event).await {
                    Ok(_) | Err(DriverError::EndedElsewhere(_)) => Ok(()),
                    Err(DriverError::Store(error)) => Err(Error::from(error)),
                    Err(DriverError::Files(error)) => Err(Error::new(Code::Io, error.to_string())),
                    Err(error @ DriverError::InvalidEvent(_)) => {
                        Err(Error::new(Code::ThreadFailed, error.to_string()))
                    }
                }
            }
            // A record that cannot be read must not keep a thread from being ended.
            Err(_) => self.set_ended(row, claim, status, reason).await,
        };
        // Whatever came of it, the thread is not held from here.
        let _ = self.store.shared().release_claim(&row.id, claim).await;
        ended
    }

    /// Sets the status of a thread whose journal cannot be read.
    async fn set_ended(
        &self,
        row: &ThreadRow,
        claim: Claim,
        status: ThreadStatus,
        reason: &str,
    ) -> Result<()> {
        let status = StatusChange { to: status, reason: None, result: None, error: Some(reason.to_owned()) };
        let settlements = self.records.unknown_settlements(&row.id, &row.directive, &row.model)?;
        let now = self.setup.clock.now_ms();
        let commit = ThreadCommit {
            settlements,
            status: Some(status),
            ..ThreadCommit::new(row.id.clone(), claim, now)
        };
        self.store.commit(commit).await?;
        Ok(())
    }

    /// What becomes of the children of a thread that ended like this.
    pub(super) fn apply_child_policy<'a>(
        self: &'a Arc<Self>,
        id: &'a ThreadId,
        status: ThreadStatus,
        policy: ChildPolicy,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let (action, reason) = match status {
                ThreadStatus::Cancelled | ThreadStatus::Killed => {
                    (policy.on_parent_cancel, "its parent was cancelled")
                }
                ThreadStatus::Completed => (policy.on_parent_complete, "its parent has completed"),
                ThreadStatus::Error => (policy.on_parent_error, "its parent has failed"),
                ThreadStatus::Created
                | ThreadStatus::Running
                | ThreadStatus::Suspended
                | ThreadStatus::Continued => return,
            };
            if action == ChildAction::Allow {
                return;
            }
            let children = self.store.children(id).unwrap_or_default();
            for child in children.iter().filter(|child| !child.status.is_terminal()) {
                // One that cannot be ended does not keep the others alive.
                let _ = self.cancel(&child.id, reason).await;
            }
        })
    }
}
