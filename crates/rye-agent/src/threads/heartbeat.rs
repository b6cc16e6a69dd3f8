//! What other processes ask of the threads that run here: to end, or to continue with a person's answer. And the heartbeat that
//! says which threads this process still runs.
//!
//! `rye` puts requests into the store. Other programs put a `.cancel` file into the thread's own folder; those folders are
//! checked in turns, a bounded number at a time.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lillux::file;
use rye_engine::Code;

use super::control::{CANCEL_FILES, KILL_REASON, wait_until_aborted};
use super::resume::ResumeOptions;
use super::{ThreadRuntime, Threads};
use crate::driver::CancelSignal;
use crate::store::Claim;
use crate::thread_id::ThreadId;

/// How often requests are looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// How many looks lie between two heartbeats.
const POLLS_PER_HEARTBEAT: u32 = 25;

/// How many looks lie between two questions to a shared store that has not said that it changed.
const POLLS_PER_LOOK: u32 = 10;

/// How many folders of threads are looked into at one look.
const MAX_FOLDERS_PER_POLL: usize = 256;

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
                inner.cancel_requested(polls).await;
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
            self.drop_lost(&id, claim).await;
        }
    }

    /// Ends the work on a thread that another process took.
    pub(super) async fn drop_lost(&self, id: &ThreadId, claim: Claim) {
        let Some(task) = self.running.abort(id, claim) else { return };
        wait_until_aborted(&task).await;
        let requests = self.store.cancel_requests().await.unwrap_or_default();
        if requests.iter().any(|request| request.thread == *id && request.reason == KILL_REASON) {
            // The process that kills it waits for this.
            let _ = self.store.clear_cancel_request(id).await;
        }
    }

    /// Cancels the threads of this process that the store has requests for. A request stays until the thread has stopped:
    /// if this process dies before, the next one that takes the thread over finds it.
    async fn cancel_requested(&self, polls: u32) {
        if self.running.claims().is_empty() {
            return;
        }
        // A server elsewhere is asked when it has changed, and now and then in any case.
        if self.is_shared && !polls.is_multiple_of(POLLS_PER_LOOK) && !self.has_changed().await {
            return;
        }
        for request in self.store.cancel_requests().await.unwrap_or_default() {
            self.running.cancel(&request.thread, &request.reason);
        }
    }

    /// Whether the store has changed since this was last asked.
    async fn has_changed(&self) -> bool {
        let Ok(version) = self.store.data_version().await else { return true };
        self.seen_version.swap(version, Ordering::Relaxed) != version
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

    /// Continues with threads that stopped here to ask a person, and were answered.
    async fn resume_answered(self: &Arc<Self>, seen: &mut Option<i64>) {
        if self.running.awaiting_approval().is_empty() {
            return;
        }
        let version = self.store.data_version().await.ok();
        if version.is_some() && *seen == version {
            return;
        }
        *seen = version;
        for id in self.store.answered_threads().await.unwrap_or_default() {
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
}

/// The reason in a file, if there is one.
fn read_reason(path: &Path) -> Option<String> {
    let (bytes, _) = file::read_bounded(path, 4096).ok()?;
    let reason = String::from_utf8_lossy(&bytes).trim().to_owned();
    Some(if reason.is_empty() { "cancelled".to_owned() } else { rye_item::text::one_line(&reason) })
}
