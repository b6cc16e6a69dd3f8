//! Ending threads that may run anywhere, or nowhere: cancelled, killed, ended with their parent. And what users do to them.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use lillux::file;
use rye_engine::{Code, Error, Result};
use rye_model::offline::OfflineProvider;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::driver_setup::{DriverSetup, NoChildren};
use super::records::ThreadRecords;
use super::resume::{ResumeOptions, held_error};
use super::running::RunningThreads;
use super::wait::WaitRequest;
use super::{FinishedThread, Threads};
use crate::cluster::KeptPatch;
use crate::config::{ChildAction, ChildPolicy};
use crate::driver::{CancelSignal, DriverError, MillisClock, ThreadDriver};
use crate::machine::ThreadEvent;
use crate::status::ThreadStatus;
use crate::store::{
    Approval, ApprovalDecision, Claim, ClaimOutcome, ClaimPolicy, Owner, StatusChange, ThreadCommit,
    ThreadRow, ThreadStore, is_owner_gone,
};
use crate::thread_id::ThreadId;

/// Why a thread that is killed ends.
pub(super) const KILL_REASON: &str = "killed";

/// The names that a file which cancels its thread has had.
pub(super) const CANCEL_FILES: [&str; 3] = [".cancel", ".cancel_requested", "cancel.requested"];

/// How often it is looked whether an aborted task has ended, and how many times at most.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_ABORT_POLLS: u32 = 400;

/// How often it is looked whether another process has let go of a thread, and how many times at most: it may be frozen.
const RELEASE_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RELEASE_POLLS: u32 = 250;

/// How many children are ended at once.
const MAX_CANCELLED_AT_ONCE: usize = 64;

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
        let row = self.runtime.records.row(id).await?;
        if row.status.is_terminal() {
            return Err(ended_error(&row));
        }
        self.runtime.control.cancel(id, reason).await
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
    pub async fn open_approvals(&self, id: &ThreadId) -> Result<Vec<Approval>> {
        Ok(self.runtime.store.open_approvals(Some(id)).await?.approvals)
    }

    /// Gives a person's answer to these questions, which must be asked below `root`; with a yes limits grow by what is asked
    /// for.
    ///
    /// # Errors
    /// When one is not open any more.
    pub async fn answer_approvals(
        &self,
        root: &ThreadId,
        ids: &[String],
        approved: bool,
        by: &str,
    ) -> Result<()> {
        let open = self.open_approvals(root).await?;
        let mut approvals = Vec::new();
        for id in ids {
            let not_found =
                || Error::from(crate::store::ThreadStoreError::NoApproval(rye_item::text::one_line(id)));
            approvals.push(open.iter().find(|approval| approval.id == *id).ok_or_else(not_found)?);
        }
        // Nothing is recorded of threads that cannot be resumed.
        for approval in &approvals {
            self.runtime.records.refuse_unresumable(&approval.thread).await?;
        }
        for approval in approvals {
            let answer = ApprovalDecision {
                approved,
                message: None,
                changes: approval.detail.get("proposed").filter(|_| approved).cloned().unwrap_or_default(),
                at_ms: self.runtime.setup.clock.now_ms(),
                by: by.to_owned(),
                always: None,
            };
            self.runtime.store.answer_approval(&approval.id, &answer).await?;
        }
        Ok(())
    }

    /// Resumes a thread that was answered, unless another process has, and waits until it ends or stops.
    ///
    /// # Errors
    /// When it cannot continue.
    pub async fn resume_and_wait(
        &self,
        id: &ThreadId,
        cancel_token: &CancellationToken,
    ) -> Result<FinishedThread> {
        let row = self.runtime.records.row(id).await?;
        if row.status == ThreadStatus::Suspended && self.runtime.store.answered_threads().await?.contains(id)
        {
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
        self.runtime.orchestrator().wait(&request, false, cancel_token).await?;
        self.runtime.records.current_outcome(id).await
    }

    /// Ends a thread by force, whichever process runs it.
    ///
    /// # Errors
    /// When there is no such thread, or it has ended.
    pub async fn kill(&self, id: &ThreadId) -> Result<Value> {
        let row = self.runtime.records.row(id).await?;
        if row.status.is_terminal() {
            return Err(ended_error(&row));
        }
        self.runtime.control.kill(&row).await
    }
}

fn ended_error(row: &ThreadRow) -> Error {
    Error::new(Code::ThreadEnded, format!("{} has ended: {}", row.id, row.status))
        .detail("thread_id", row.id.as_str())
        .hint(format!("see what it did: rye thread show {}", row.id))
}

/// Ends threads of a space.
pub(super) struct ThreadControl {
    pub(super) store: Arc<dyn ThreadStore>,
    pub(super) records: Arc<ThreadRecords>,
    pub(super) running: Arc<RunningThreads>,
    pub(super) drivers: Arc<DriverSetup>,
    /// This process.
    pub(super) owner: Owner,
    pub(super) clock: Arc<dyn MillisClock>,
    /// `.ai/threads` of the space.
    pub(super) folder: PathBuf,
}

impl ThreadControl {
    /// Ends a thread: at once if it runs here or nowhere; by a request if another process runs it.
    pub(super) async fn cancel(&self, id: &ThreadId, reason: &str) -> Result<CancelOutcome> {
        if self.running.cancel(id, reason) {
            return Ok(CancelOutcome::Requested);
        }
        let row = self.records.row(id).await?;
        if row.status.is_terminal() {
            return Ok(CancelOutcome::Cancelled);
        }
        let now = self.clock.now_ms();
        let ClaimOutcome::Claimed { claim, .. } =
            self.store.claim(id, &self.owner, ClaimPolicy::Free, now).await?
        else {
            self.request_cancel(id, reason).await?;
            return Ok(CancelOutcome::Requested);
        };
        self.terminate(&row, claim, ThreadStatus::Cancelled, reason).await?;
        self.apply_child_policy(id, ThreadStatus::Cancelled, self.records.child_policy(id).await).await;
        Ok(CancelOutcome::Cancelled)
    }

    /// Ends a thread by force.
    pub(super) async fn kill(&self, row: &ThreadRow) -> Result<Value> {
        if row.status.is_terminal() {
            return Ok(json!({"success": false, "error": format!("{} has ended: {}", row.id, row.status)}));
        }
        let local_thread = self.running.claim(&row.id);
        if let Some((_, Some(task))) = &local_thread {
            task.abort();
        }
        let now = self.clock.now_ms();
        let claim = match self.store.claim(&row.id, &self.owner, ClaimPolicy::Forced, now).await? {
            ClaimOutcome::Claimed { claim, .. } => claim,
            ClaimOutcome::Held { by } => return Err(held_error(&row.id, &by)),
        };
        match (&local_thread, &row.owner) {
            (Some((_, task)), _) => {
                if let Some(task) = task {
                    wait_until_aborted(task).await;
                }
            }
            // Its records are refused from now on. What it began ends at once, and it must not write the thread's files
            // after they say how it ended.
            (None, Some(owner)) if *owner != self.owner && !is_owner_gone(owner, &self.owner) => {
                if self.request_cancel(&row.id, KILL_REASON).await.is_ok() {
                    self.wait_until_released(&row.id, owner).await;
                }
            }
            (None, _) => {}
        }
        self.terminate(row, claim, ThreadStatus::Killed, KILL_REASON).await?;
        if let Some((claim, _)) = local_thread {
            self.running.abort(&row.id, claim);
        }
        let policy = self.records.child_policy(&row.id).await;
        self.apply_child_policy(&row.id, ThreadStatus::Killed, policy).await;
        Ok(json!({"success": true, "killed": row.id, "pid": std::process::id()}))
    }

    /// Ends a thread that is claimed here, without another step of its own: its event, its status, its transcript and
    /// `state.json` say so. The claim is given back.
    pub(super) async fn terminate(
        &self,
        row: &ThreadRow,
        claim: Claim,
        status: ThreadStatus,
        reason: &str,
    ) -> Result<()> {
        let thread = row.id.clone();
        let point = self.records.run_blocking(move |records| records.resume_point(&thread)).await;
        let ended = match point {
            Ok(point) => {
                let spend = point.interrupted.spend();
                let tokens = point.interrupted.tokens();
                let event = ThreadEvent::Terminated { status, reason: reason.to_owned(), spend, tokens };
                let no_model = Arc::new(OfflineProvider::new(Vec::new(), Vec::new(), Map::new()));
                let mut deps = self.drivers.deps(&row.id, Arc::new(NoChildren));
                if deps.stop_recorder.is_none() {
                    deps.stop_recorder = KeptPatch::of_row(row).map(|kept| Arc::new(kept) as _);
                }
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
        let _ = self.store.release_claim(&row.id, claim).await;
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
        let result = KeptPatch::of_row(row).map(KeptPatch::into_result);
        let status = StatusChange { to: status, reason: None, result, error: Some(reason.to_owned()) };
        let ended = row.clone();
        let settlements = self.records.run_blocking(move |records| {
            records.unknown_settlements(&ended.id, &ended.directive, &ended.model)
        });
        let commit = ThreadCommit {
            settlements: settlements.await?,
            status: Some(status),
            ..ThreadCommit::new(row.id.clone(), claim, self.clock.now_ms())
        };
        self.store.commit(commit).await?;
        Ok(())
    }

    /// Asks the process that runs a thread to end it.
    async fn request_cancel(&self, id: &ThreadId, reason: &str) -> Result<()> {
        let reason = rye_item::text::one_line(reason);
        Ok(self.store.request_cancel(id, &reason, self.clock.now_ms()).await?)
    }

    /// Removes what asks for the end of a thread that now continues, or has ended.
    pub(super) async fn clear_cancel_request(&self, id: &ThreadId) {
        for name in CANCEL_FILES {
            let _ = file::remove_beneath(&self.folder, &Path::new(id.as_str()).join(name));
        }
        let requests = self.store.cancel_requests().await.unwrap_or_default();
        if requests.iter().any(|request| request.thread == *id) {
            let _ = self.store.clear_cancel_request(id).await;
        }
    }

    /// A thread that was asked to end has stopped here: what asked for it is removed, unless another process has the thread
    /// and still has to end it.
    pub(super) async fn settle_cancel_request(&self, id: &ThreadId, signal: &CancelSignal) {
        if !signal.cancel_token.is_cancelled() {
            return;
        }
        let row = self.store.thread(id).await.ok().flatten();
        let is_ended = row.is_none_or(|row| row.status.is_terminal());
        // A process that kills a thread ends it itself, and waits until this one has let go of it.
        if is_ended || signal.reason() == KILL_REASON {
            self.clear_cancel_request(id).await;
        }
    }

    /// Waits until the process that ran a thread has stopped working on it, or is gone.
    async fn wait_until_released(&self, id: &ThreadId, owner: &Owner) {
        for _ in 0..MAX_RELEASE_POLLS {
            let requests = self.store.cancel_requests().await.unwrap_or_default();
            if !requests.iter().any(|request| request.thread == *id) || is_owner_gone(owner, &self.owner) {
                return;
            }
            tokio::time::sleep(RELEASE_POLL_INTERVAL).await;
        }
    }

    /// What becomes of the children of a thread that ended like this.
    pub(super) fn apply_child_policy<'a>(
        &'a self,
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
            let children = self.store.children(id).await.unwrap_or_default();
            let live = children.into_iter().filter(|child| !child.status.is_terminal());
            // Together: what they write goes into few transactions.
            futures_util::stream::iter(live)
                .for_each_concurrent(MAX_CANCELLED_AT_ONCE, |child| async move {
                    // One that cannot be ended does not keep the others alive.
                    let _ = self.cancel(&child.id, reason).await;
                })
                .await;
        })
    }
}

/// Waits until a task that was aborted has let go of its thread's files.
pub(super) async fn wait_until_aborted(task: &tokio::task::AbortHandle) {
    for _ in 0..MAX_ABORT_POLLS {
        if task.is_finished() {
            return;
        }
        tokio::time::sleep(ABORT_POLL_INTERVAL).await;
    }
}
