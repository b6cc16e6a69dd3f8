//! Hearing of wishes that other processes have: that a thread ends, or what a person answered. And the heartbeat that says
//! which threads this process still runs.
//!
//! `rye` leaves a wish in one folder for all threads, which is empty nearly always: one look finds everything. Anybody else
//! puts a `.cancel` file into the thread's own folder; those are looked at in turns, so many at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use lillux::file::{self, Mode};
use rye_engine::{Code, Result};
use serde_json::{Value, json};

use super::resume::{Changes, held};
use super::{Inner, Threads};
use crate::driver::Signal;
use crate::status::Status;
use crate::store::{Claim, Claimed, Commit, StatusChange, Taking, ThreadRow};
use crate::thread_id::ThreadId;

/// How often wishes are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// How many looks lie between two heartbeats.
const BEAT_EVERY: u32 = 25;

/// How many folders of threads are looked into at one look.
const MOST_FOLDERS: usize = 256;

/// The folder of wishes.
const WISHES: &str = ".wishes";

/// The names such a file has had.
const SENTINELS: [&str; 3] = [".cancel", ".cancel_requested", "cancel.requested"];

/// Where a wish for a thread is left, below the folder of threads.
fn wish_path(id: &ThreadId) -> PathBuf {
    Path::new(WISHES).join(id.as_str())
}

impl Threads {
    /// Watches for wishes of other processes, as long as this value lives.
    pub fn watch(&self) -> Watching {
        let inner = Arc::downgrade(&self.inner);
        let task = tokio::spawn(async move {
            let mut looks = 0_u32;
            let mut turn = 0_usize;
            let mut version = None;
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(inner) = inner.upgrade() else { return };
                looks = looks.wrapping_add(1);
                if looks.is_multiple_of(BEAT_EVERY) {
                    inner.beat().await;
                }
                let looking = Arc::clone(&inner);
                turn = tokio::task::spawn_blocking(move || looking.look(turn)).await.unwrap_or_default();
                inner.take_up_answered(&mut version).await;
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
    /// Says that the threads of this process are alive.
    async fn beat(&self) {
        let held: Vec<(ThreadId, Claim)> =
            self.live().iter().map(|(id, live)| (id.clone(), live.claim)).collect();
        if held.is_empty() {
            return;
        }
        // One that another process took over by force is not this one's to run any more.
        let lost = self.store.heartbeat(held, self.setup.clock.now_ms()).await.unwrap_or_default();
        for (id, claim) in lost {
            self.drop_thread(&id, claim);
        }
    }

    /// Looks for wishes: all that `rye` left, and the folders of the threads whose turn it is. Gives the next turn.
    fn look(&self, turn: usize) -> usize {
        for (id, reason) in self.wishes() {
            if self.cancel_here(&id, &reason) {
                // It is heard; left to lie, it would end the thread again when that is resumed.
                let _ = file::remove_beneath(&self.setup.folder, &wish_path(&id));
            }
        }
        let mut ids: Vec<ThreadId> = self.live().keys().cloned().collect();
        ids.sort_unstable();
        let from = if turn < ids.len() { turn } else { 0 };
        let next = from + MOST_FOLDERS.min(ids.len() - from);
        for id in &ids[from..next] {
            if let Some(reason) = self.wish(id) {
                self.cancel_here(id, &reason);
            }
        }
        next
    }

    fn wishes_folder(&self) -> PathBuf {
        self.setup.folder.join(WISHES)
    }

    /// What other processes of `rye` wish.
    fn wishes(&self) -> Vec<(ThreadId, String)> {
        let Ok(entries) = std::fs::read_dir(self.wishes_folder()) else { return Vec::new() };
        let wish = |entry: std::fs::DirEntry| {
            let id = ThreadId::parse(entry.file_name().to_str()?).ok()?;
            Some((id, reason_in(&entry.path())?))
        };
        entries.flatten().filter_map(wish).collect()
    }

    /// Whether somebody left a wish for this thread to end.
    fn wish(&self, id: &ThreadId) -> Option<String> {
        let folder = self.setup.folder.join(id.as_str());
        SENTINELS.iter().find_map(|name| reason_in(&folder.join(name)))
    }

    /// Leaves a wish for whoever runs a thread; whether it is left.
    pub(super) fn leave_wish(&self, id: &ThreadId, reason: &str) -> bool {
        let folder = file::create_folders_beneath(&self.setup.folder, Path::new(WISHES), true);
        folder.is_ok_and(|folder| {
            file::write_atomic(&folder.join(id.as_str()), reason.as_bytes(), Mode::Kept).is_ok()
        })
    }

    /// Takes a wish back that was left for a thread which now goes on, or has ended.
    pub(super) fn forget_wish(&self, id: &ThreadId) {
        let own = SENTINELS.iter().map(|name| Path::new(id.as_str()).join(name));
        for relative in own.chain([wish_path(id)]) {
            let _ = file::remove_beneath(&self.setup.folder, &relative);
        }
    }

    /// Goes on with threads that stopped here to ask a person, and were answered.
    async fn take_up_answered(self: &Arc<Self>, seen: &mut Option<i64>) {
        if self.asking().is_empty() {
            return;
        }
        let version = self.store.data_version().ok();
        if version.is_some() && *seen == version {
            return;
        }
        *seen = version;
        for id in self.store.answered().unwrap_or_default() {
            if self.asking().remove(&id) {
                let resumed = self.resume(&id, &Changes::default(), Signal::default()).await;
                // Whoever has it may give it back; an answer that is none is not asked for again.
                if resumed.is_err_and(|error| error.code == Code::ThreadHeld) {
                    self.asking().insert(id);
                    *seen = None;
                }
            }
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
        let now = self.setup.clock.now_ms();
        let claim = match self.store.claim(&row.id, &self.owner, Taking::Forced, now)? {
            Claimed::Done { claim, .. } => claim,
            Claimed::Held { by } => return Err(held(&row.id, &by)),
        };
        let settle = self.unknown_calls(&row.id, &row.directive, &row.model)?;
        let commit = Commit { settle, status: Some(status), ..Commit::new(row.id.clone(), claim, now) };
        self.store.commit(commit).await?;
        let _ = self.store.release_claim(&row.id, claim);
        let is_elsewhere =
            here.is_none() && row.owner.as_ref().is_some_and(|owner| !owner.is_gone(&self.owner));
        if let Some((claim, _)) = here {
            self.drop_thread(&row.id, claim);
        }
        if is_elsewhere {
            // Its records are refused from now on; this is so that what it began ends at once.
            self.leave_wish(&row.id, "killed");
        }
        self.parent_ended(&row.id, Status::Killed, self.child_policy(&row.id)).await;
        Ok(json!({"success": true, "killed": row.id, "pid": std::process::id()}))
    }
}

/// The wish in a file, if there is one.
fn reason_in(path: &Path) -> Option<String> {
    let (bytes, _) = file::read_bounded(path, 4096).ok()?;
    let reason = String::from_utf8_lossy(&bytes).trim().to_owned();
    Some(if reason.is_empty() { "cancelled".to_owned() } else { rye_item::text::one_line(&reason) })
}
