//! Asking threads of other processes to end, and hearing of such wishes here: the `.cancel` file in a thread's folder.
//! And the heartbeat that says which threads this process still runs.

use std::sync::Arc;
use std::time::Duration;

use lillux::file::{self, Mode};
use rye_engine::Result;
use serde_json::{Value, json};

use super::resume::held;
use super::{Inner, Threads};
use crate::status::Status;
use crate::store::{Claim, Claimed, Commit, StatusChange, Taking, ThreadRow};
use crate::thread_id::ThreadId;

/// How often wishes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How many looks lie between two heartbeats.
const BEAT_EVERY: u32 = 25;

/// The names such a file has had.
const SENTINELS: [&str; 3] = [".cancel", ".cancel_requested", "cancel.requested"];

impl Threads {
    /// Watches for wishes of other processes, as long as this value lives.
    pub fn watch(&self) -> Watching {
        let inner = Arc::downgrade(&self.inner);
        let task = tokio::spawn(async move {
            let mut looks = 0_u32;
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(inner) = inner.upgrade() else { return };
                looks = looks.wrapping_add(1);
                let is_beat = looks.is_multiple_of(BEAT_EVERY);
                let held: Vec<(ThreadId, Claim)> =
                    inner.live().iter().map(|(id, live)| (id.clone(), live.claim)).collect();
                let ids: Vec<ThreadId> = held.iter().map(|(id, _)| id.clone()).collect();
                if is_beat && !held.is_empty() {
                    // One that another process took over by force is not this one's to run any more.
                    let lost =
                        inner.store.heartbeat(held, inner.setup.clock.now_ms()).await.unwrap_or_default();
                    for (id, claim) in lost {
                        inner.drop_thread(&id, claim);
                    }
                }
                let look = move || {
                    for id in ids {
                        if let Some(reason) = inner.wish(&id) {
                            inner.cancel_here(&id, &reason);
                        }
                    }
                };
                let _ = tokio::task::spawn_blocking(look).await;
            }
        });
        Watching(task.abort_handle())
    }
}

/// Ends the watching when dropped.
#[derive(Debug)]
pub struct Watching(tokio::task::AbortHandle);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Inner {
    /// Whether somebody left a wish for this thread to end.
    fn wish(&self, id: &ThreadId) -> Option<String> {
        let folder = self.setup.folder.join(id.as_str());
        SENTINELS.iter().find_map(|name| {
            let (bytes, _) = file::read_bounded(&folder.join(name), 4096).ok()?;
            let reason = String::from_utf8_lossy(&bytes).trim().to_owned();
            Some(if reason.is_empty() { "cancelled".to_owned() } else { rye_item::text::one_line(&reason) })
        })
    }

    /// Asks a thread to end: at once if it runs here, else by a file its process looks for; one that nobody runs is
    /// settled here.
    pub(super) fn request_cancel(&self, id: &ThreadId, reason: &str) {
        if self.cancel_here(id, reason) {
            return;
        }
        let folder = self.setup.folder.join(id.as_str());
        if folder.is_dir() {
            let _ = file::write_atomic(&folder.join(SENTINELS[0]), reason.as_bytes(), Mode::Kept);
        }
    }

    /// Takes a wish back that was left for a thread which now goes on.
    pub(super) fn forget_wish(&self, id: &ThreadId) {
        let folder = self.setup.folder.join(id.as_str());
        for name in SENTINELS {
            let _ = file::remove(&folder.join(name));
        }
    }

    /// A thread is not this process's any more, unless it was taken up here anew since.
    fn drop_thread(&self, id: &ThreadId, claim: Claim) {
        let mut live = self.live();
        if live.get(id).is_some_and(|live| live.claim == claim)
            && let Some(task) = live.remove(id).and_then(|live| live.task)
        {
            task.abort();
        }
    }

    /// Ends a thread by force.
    pub(super) async fn kill(self: &Arc<Self>, row: &ThreadRow) -> Result<Value> {
        if row.status.is_terminal() {
            return Ok(json!({"success": false, "error": format!("{} has ended: {}", row.id, row.status)}));
        }
        let here = self.live().get(&row.id).map(|live| (live.claim, live.task.clone()));
        if let Some((_, Some(task))) = &here {
            task.abort();
        }
        let status =
            StatusChange { to: Status::Killed, reason: None, result: None, error: Some("killed".to_owned()) };
        // Whoever ran it finds out at its next record, which is refused.
        let now = self.setup.clock.now_ms();
        let claim = match self.store.claim(&row.id, &self.owner, Taking::Forced, now)? {
            Claimed::Done { claim, .. } => claim,
            Claimed::Held { by } => return Err(held(&row.id, &by)),
        };
        let settle = self.unknown_calls(&row.id, &row.directive, &row.model)?;
        let commit = Commit { settle, status: Some(status), ..Commit::new(row.id.clone(), claim, now) };
        self.store.commit(commit).await?;
        let _ = self.store.release_claim(&row.id, claim);
        if let Some((claim, _)) = here {
            self.drop_thread(&row.id, claim);
        }
        for child in self.store.children(&row.id)? {
            if !child.status.is_terminal() {
                self.request_cancel(&child.id, "its parent was killed");
            }
        }
        Ok(json!({"success": true, "killed": row.id, "pid": std::process::id()}))
    }
}
