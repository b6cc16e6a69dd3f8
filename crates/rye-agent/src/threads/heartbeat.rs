//! What other processes ask of the threads that run here: to end, or to go on with a person's answer. And the heartbeat that
//! says which threads this process still runs.
//!
//! `rye` puts requests into the store. Other programs put a `.cancel` file into the thread's own folder; those folders are
//! checked in turns, a bounded number at a time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lillux::file;
use rye_engine::{Code, Result};
use serde_json::{Value, json};

use super::resume::{ResumeOptions, held_error};
use super::{ThreadRuntime, Threads};
use crate::driver::CancelSignal;
use crate::status::ThreadStatus;
use crate::store::{ClaimOutcome, ClaimPolicy, Owner, ThreadRow, is_owner_gone};
use crate::thread_id::ThreadId;

/// How often requests are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How many looks lie between two heartbeats.
const POLLS_PER_HEARTBEAT: u32 = 25;

/// How many folders of threads are looked into at one look.
const MAX_FOLDERS_PER_POLL: usize = 256;

/// The names that a file which cancels its thread has had.
const CANCEL_FILES: [&str; 3] = [".cancel", ".cancel_requested", "cancel.requested"];

impl Threads {
    /// Watches for requests of other processes, as long as this value lives.
    pub fn watch(&self) -> WatchGuard {
        let inner = Arc::downgrade(&self.runtime);
        let task = tokio::spawn(async move {
            let mut polls = 0_u32;
            let mut offset = 0_usize;
            let mut version = None;
            loop {
                tokio::time::sleep(POLL_INTERVAL).await;
                let Some(inner) = inner.upgrade() else { return };
                polls = polls.wrapping_add(1);
                if polls.is_multiple_of(POLLS_PER_HEARTBEAT) {
                    inner.heartbeat().await;
                }
                inner.cancel_requested().await;
                let poller = Arc::clone(&inner);
                offset = tokio::task::spawn_blocking(move || poller.poll_cancel_files(offset))
                    .await
                    .unwrap_or_default();
                inner.resume_answered(&mut version).await;
            }
        });
        WatchGuard(task.abort_handle())
    }
}

/// Ends the watching when dropped.
#[derive(Debug)]
pub struct WatchGuard(tokio::task::AbortHandle);

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How often it is looked whether an aborted task has ended, and how many times at most.
const ABORT_POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_ABORT_POLLS: u32 = 400;

impl ThreadRuntime {
    /// Says that the threads of this process are alive.
    async fn heartbeat(&self) {
        let claims = self.running.claims();
        if claims.is_empty() {
            return;
        }
        // One that another process took over by force is not this one's to run any more.
        let lost = self.store.heartbeat(claims, self.setup.clock.now_ms()).await.unwrap_or_default();
        for (id, claim) in lost {
            let Some(task) = self.running.abort(&id, claim) else { continue };
            wait_until_aborted(&task).await;
            let requests = self.store.shared().cancel_requests().await.unwrap_or_default();
            if requests.iter().any(|request| request.thread == id && request.reason == KILL_REASON) {
                // The process that kills it waits for this.
                let _ = self.store.shared().clear_cancel_request(&id).await;
            }
        }
    }

    /// Cancels the threads of this process that the store has requests for. A request stays until the thread has stopped:
    /// if this process dies before, the next one that takes the thread over finds it.
    async fn cancel_requested(&self) {
        if self.running.claims().is_empty() {
            return;
        }
        for request in self.store.shared().cancel_requests().await.unwrap_or_default() {
            self.running.cancel(&request.thread, &request.reason);
        }
    }

    /// A thread that was asked to end has stopped here: what asked for it is removed, unless another process has the thread
    /// and still has to end it.
    pub(super) async fn settle_cancel_request(&self, id: &ThreadId, signal: &CancelSignal) {
        if !signal.cancel_token.is_cancelled() {
            return;
        }
        let row = self.store.shared().thread(id).await.ok().flatten();
        let is_ended = row.is_none_or(|row| row.status.is_terminal());
        // A process that kills a thread ends it itself, and waits until this one has let go of it.
        if is_ended || signal.reason() == KILL_REASON {
            self.clear_cancel_request(id).await;
        }
    }

    /// Looks for cancel files in the folders of the threads whose turn it is. Gives the next turn.
    fn poll_cancel_files(&self, offset: usize) -> usize {
        let mut ids: Vec<ThreadId> = self.running.claims().into_iter().map(|(id, _)| id).collect();
        ids.sort_unstable();
        let from = if offset < ids.len() { offset } else { 0 };
        let next = from + MAX_FOLDERS_PER_POLL.min(ids.len() - from);
        for id in &ids[from..next] {
            if let Some(reason) = self.cancel_file(id) {
                self.running.cancel(id, &reason);
            }
        }
        next
    }

    /// The reason in the thread's cancel file, if it has one.
    fn cancel_file(&self, id: &ThreadId) -> Option<String> {
        let folder = self.setup.folder.join(id.as_str());
        CANCEL_FILES.iter().find_map(|name| read_reason(&folder.join(name)))
    }

    /// Asks the process that runs a thread to end it.
    pub(super) async fn request_cancel(&self, id: &ThreadId, reason: &str) -> Result<()> {
        let reason = rye_item::text::one_line(reason);
        Ok(self.store.shared().request_cancel(id, &reason, self.setup.clock.now_ms()).await?)
    }

    /// Removes what asks for the end of a thread that now goes on, or has ended.
    pub(super) async fn clear_cancel_request(&self, id: &ThreadId) {
        for name in CANCEL_FILES {
            let _ = file::remove_beneath(&self.setup.folder, &Path::new(id.as_str()).join(name));
        }
        let requests = self.store.shared().cancel_requests().await.unwrap_or_default();
        if requests.iter().any(|request| request.thread == *id) {
            let _ = self.store.shared().clear_cancel_request(id).await;
        }
    }

    /// Goes on with threads that stopped here to ask a person, and were answered.
    async fn resume_answered(self: &Arc<Self>, seen: &mut Option<i64>) {
        if self.running.awaiting_approval().is_empty() {
            return;
        }
        let version = self.store.data_version().ok();
        if version.is_some() && *seen == version {
            return;
        }
        *seen = version;
        for id in self.store.answered_threads().unwrap_or_default() {
            if self.running.awaiting_approval().remove(&id) {
                let resumed = self.resume(&id, &ResumeOptions::default(), CancelSignal::default()).await;
                // The process that has it may give it back; an answer that is none is not asked for again.
                if resumed.is_err_and(|error| error.code == Code::ThreadHeld) {
                    self.running.awaiting_approval().insert(id);
                    *seen = None;
                }
            }
        }
    }

    /// Ends a thread by force.
    pub(super) async fn kill(self: &Arc<Self>, row: &ThreadRow) -> Result<Value> {
        if row.status.is_terminal() {
            return Ok(json!({"success": false, "error": format!("{} has ended: {}", row.id, row.status)}));
        }
        let local_thread = self.running.claim(&row.id);
        if let Some((_, Some(task))) = &local_thread {
            task.abort();
        }
        let now = self.setup.clock.now_ms();
        let claim = match self.store.shared().claim(&row.id, &self.owner, ClaimPolicy::Forced, now).await? {
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
        self.apply_child_policy(&row.id, ThreadStatus::Killed, self.records.child_policy(&row.id)).await;
        Ok(json!({"success": true, "killed": row.id, "pid": std::process::id()}))
    }
}

/// Why a thread that is killed ends.
const KILL_REASON: &str = "killed";

/// How often it is looked whether another process has let go of a thread, and how many times at most: it may be frozen.
const RELEASE_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_RELEASE_POLLS: u32 = 250;

impl ThreadRuntime {
    /// Waits until the process that ran a thread has stopped working on it, or is gone.
    async fn wait_until_released(&self, id: &ThreadId, owner: &Owner) {
        for _ in 0..MAX_RELEASE_POLLS {
            let requests = self.store.shared().cancel_requests().await.unwrap_or_default();
            if !requests.iter().any(|request| request.thread == *id) || is_owner_gone(owner, &self.owner) {
                return;
            }
            tokio::time::sleep(RELEASE_POLL_INTERVAL).await;
        }
    }
}

/// Waits until a task that was aborted has let go of its thread's files.
async fn wait_until_aborted(task: &tokio::task::AbortHandle) {
    for _ in 0..MAX_ABORT_POLLS {
        if task.is_finished() {
            return;
        }
        tokio::time::sleep(ABORT_POLL_INTERVAL).await;
    }
}

/// The reason in a file, if there is one.
fn read_reason(path: &Path) -> Option<String> {
    let (bytes, _) = file::read_bounded(path, 4096).ok()?;
    let reason = String::from_utf8_lossy(&bytes).trim().to_owned();
    Some(if reason.is_empty() { "cancelled".to_owned() } else { rye_item::text::one_line(&reason) })
}
