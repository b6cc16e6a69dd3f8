//! Waiting for threads that may run anywhere.

use std::collections::BTreeMap;
use std::time::Duration;

use rye_engine::{Code, Result};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Threads;
use super::orchestrator::{MAX_WAIT, Orchestrator};
use crate::status::{SuspendReason, ThreadStatus};
use crate::store::{ChangeReceiver, ChangesLost, ThreadRow, is_owner_gone};
use crate::thread_id::ThreadId;
use crate::transcript;
use crate::views::thread_value;

/// How often it is looked whether another process has changed something.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// How many looks there are until threads are read again all the same.
const MAX_POLLS: usize = 20;

/// How to wait.
#[derive(Clone, Debug)]
pub struct WaitRequest {
    /// For whom.
    pub ids: Vec<ThreadId>,
    /// How many of them must have ended: all, one, or some.
    pub needed: usize,
    /// How long at most.
    pub timeout: Duration,
    /// Whether the first failure ends the waiting.
    pub fail_fast: bool,
    /// Whether a failure cancels those still at work.
    pub cancel_siblings: bool,
    /// Whether a thread that asks a person is waited for; else it counts as one that has stopped.
    pub waits_for_approval: bool,
    /// Results of threads that ended longer ago than this are not repeated.
    pub result_ttl: Duration,
}

impl Threads {
    /// Waits for threads, wherever they run.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn wait(&self, request: &WaitRequest, cancel_token: &CancellationToken) -> Result<Value> {
        self.runtime.orchestrator().wait(request, false, cancel_token).await
    }
}

impl WaitRequest {
    /// For all of these, with as much patience as there is, people's included.
    #[must_use]
    pub fn for_all(ids: Vec<ThreadId>) -> Self {
        Self {
            needed: ids.len(),
            ids,
            timeout: Duration::MAX,
            fail_fast: false,
            cancel_siblings: false,
            result_ttl: Duration::MAX,
            waits_for_approval: true,
        }
    }
}

impl Orchestrator {
    /// Waits with one deadline for all; answers with what each came to.
    /// A thread that no process runs is resumed where it belongs; here, if those that wait are of its tree (`is_ours`).
    pub(super) async fn wait(
        &self,
        request: &WaitRequest,
        is_ours: bool,
        cancel_token: &CancellationToken,
    ) -> Result<Value> {
        let deadline = Instant::now() + request.timeout.min(MAX_WAIT);
        let runtime = &self.runtime;
        let mut changes = runtime.store.subscribe();
        let mut results: BTreeMap<ThreadId, Value> = BTreeMap::new();
        let mut has_failed = false;
        let mut is_timed_out = false;
        loop {
            for id in &request.ids {
                if results.contains_key(id) {
                    continue;
                }
                let row = match runtime.records.final_row(id).await {
                    Ok(row) => row,
                    Err(error) if error.code == Code::NoThread => {
                        results.insert(id.clone(), json!({"status": "not_found", "thread_id": id}));
                        has_failed = true;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                // A person may answer what it asks, until the time is over.
                let is_asking =
                    row.status == ThreadStatus::Suspended && row.reason == Some(SuspendReason::Approval);
                // One that a process has claimed resumes in a moment.
                let is_resuming = row.status == ThreadStatus::Suspended
                    && row.owner.as_ref().is_some_and(|owner| !is_owner_gone(owner, &runtime.owner));
                if (is_resuming || (is_asking && request.waits_for_approval)) && !is_timed_out {
                    continue;
                }
                if row.status.is_terminal() || row.status == ThreadStatus::Suspended {
                    has_failed |= row.status != ThreadStatus::Completed;
                    results.insert(id.clone(), self.thread_value_within(&row, request.result_ttl));
                } else if runtime.is_abandoned(&row)
                    && let Err(reason) = runtime.recover(&row, is_ours).await
                {
                    let hint = format!("rye thread resume {}", row.id);
                    let error = format!("interrupted: {reason}");
                    let result =
                        json!({"status": "interrupted", "thread_id": id, "error": error, "hint": hint});
                    has_failed = true;
                    results.insert(id.clone(), result);
                }
            }
            if has_failed && request.cancel_siblings {
                for id in request.ids.iter().filter(|id| !results.contains_key(*id)) {
                    runtime.control.cancel(id, "a sibling failed").await?;
                }
            }
            let ended = results.len();
            if ended >= request.needed || (has_failed && request.fail_fast) || is_timed_out {
                break;
            }
            tokio::select! {
                () = cancel_token.cancelled() => break,
                () = tokio::time::sleep_until(deadline) => is_timed_out = true,
                () = wait_for_change(&mut changes, &request.ids) => {}
                changed = self.external_change() => changed?,
            }
        }
        let mut values = Map::new();
        for id in &request.ids {
            let pending = if is_timed_out { "timeout" } else { "running" };
            let result = results.remove(id).unwrap_or_else(|| json!({"status": pending, "thread_id": id}));
            values.insert(id.to_string(), result);
        }
        let is_completed = |result: &&Value| ThreadStatus::of_result(result) == Some(ThreadStatus::Completed);
        let completed = values.values().filter(is_completed).count();
        Ok(json!({"success": completed >= request.needed, "results": values}))
    }

    /// Ready when any process has changed something; after a while in any case, for those that died change nothing.
    async fn external_change(&self) -> Result<()> {
        let store = &self.runtime.store;
        let before = store.data_version().await?;
        for _ in 0..MAX_POLLS {
            tokio::time::sleep(POLL_INTERVAL).await;
            if store.data_version().await? != before {
                break;
            }
        }
        Ok(())
    }

    fn thread_value_within(&self, row: &ThreadRow, ttl: Duration) -> Value {
        let now = self.runtime.setup.clock.now_ms();
        // Moments are written the same way everywhere: they compare as text.
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let oldest = transcript::iso_timestamp(now.saturating_sub(ttl_ms));
        let is_old = row.completed_at.as_ref().is_some_and(|at| *at < oldest);
        if !is_old {
            return thread_value(row);
        }
        json!({
            "thread_id": row.id,
            "status": row.status,
            "success": row.status == ThreadStatus::Completed,
            "expired": true,
            "note": "it ended longer ago than completion_event_ttl_seconds; use get_status or read_transcript",
        })
    }
}

/// Ready when one of these threads may stand otherwise than before.
async fn wait_for_change(changes: &mut ChangeReceiver, ids: &[ThreadId]) {
    loop {
        match changes.recv().await {
            // A chain's later threads are found at the next look.
            Ok(change) if change.status.is_none() || !ids.contains(&change.thread) => {}
            Ok(_) | Err(ChangesLost::Lagged) => return,
            Err(ChangesLost::Closed) => return std::future::pending().await,
        }
    }
}
