//! The orchestrator tool: waiting for threads, looking at them, ending them.
//!
//! A thread sees its own tree and steers what is below it; a person sees and steers everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rye_engine::{Code, Error, Result};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::resume::Changes;
use super::{Inner, Threads};
use crate::config::Config;
use crate::spec::Spec;
use crate::status::{Status, SuspendReason};
use crate::store::{Change, ThreadRow};
use crate::thread_id::ThreadId;
use crate::transcript;

/// How often it is looked whether another process has changed something.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// How many looks there are until threads are read again all the same.
const MOST_LOOKS: usize = 20;

/// As good as for ever, and a moment that can still be named.
const VERY_LONG: Duration = Duration::from_secs(10 * 365 * 86_400);

/// How to wait.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// For whom.
    pub ids: Vec<ThreadId>,
    /// How many of them must have ended: all, one, or some.
    pub needed: usize,
    /// How long at most.
    pub timeout: Duration,
    /// Whether the first failure ends the waiting.
    pub fail_fast: bool,
    /// Whether a failure cancels those still at work.
    pub cancels_siblings: bool,
    /// Whether a thread that asks a person is waited for; else it counts as one that has stopped.
    pub waits_for_people: bool,
    /// Results of threads that ended longer ago than this are not repeated.
    pub result_ttl: Duration,
}

impl Threads {
    /// Waits for threads, wherever they run.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn wait(&self, waiting: &Waiting, ending: &CancellationToken) -> Result<Value> {
        self.inner.wait(waiting, false, ending).await
    }
}

impl Waiting {
    /// For all of these, with as much patience as there is, people's included.
    #[must_use]
    pub fn for_all(ids: Vec<ThreadId>) -> Self {
        Self {
            needed: ids.len(),
            ids,
            timeout: Duration::MAX,
            fail_fast: false,
            cancels_siblings: false,
            result_ttl: Duration::MAX,
            waits_for_people: true,
        }
    }
}

impl Inner {
    pub(super) fn row(&self, id: &ThreadId) -> Result<ThreadRow> {
        self.store
            .sealed_thread(id)?
            .ok_or_else(|| Error::from(crate::store::StoreError::NoThread(id.clone())))
    }

    /// One call of the orchestrator by a thread.
    pub(super) async fn coordinate(
        self: &Arc<Self>,
        asker: &Arc<Spec>,
        params: &Map<String, Value>,
        ending: &CancellationToken,
    ) -> Result<Value> {
        let wrong = |message: String| Error::new(Code::InvalidParameters, message);
        let text = |key: &str| params.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let operation = text("operation")
            .or_else(|| text("action"))
            .ok_or_else(|| wrong("`operation` is missing".to_owned()))?;
        let one = || -> Result<ThreadRow> {
            let id = text("thread_id").ok_or_else(|| wrong("`thread_id` is missing".to_owned()))?;
            let id = ThreadId::parse(id).map_err(|error| wrong(error.to_string()))?;
            self.visible(asker, &id)
        };
        match operation {
            "wait_threads" => {
                let waiting = self.waiting(asker, params)?;
                self.wait(&waiting, true, ending).await
            }
            "aggregate_results" => {
                let ids = self.ids(asker, params)?;
                let mut results = Map::new();
                for id in ids {
                    results.insert(id.to_string(), self.shown(&self.final_row(&id)?));
                }
                let is_all = results.values().all(|result| result["status"] == json!("completed"));
                Ok(json!({"success": is_all, "results": results}))
            }
            "cancel_thread" => {
                let row = self.below(asker, one()?)?;
                if row.status.is_terminal() {
                    return Ok(
                        json!({"success": false, "error": format!("{} has ended: {}", row.id, row.status)}),
                    );
                }
                self.end(&row.id, text("reason").unwrap_or("cancelled by its parent")).await?;
                Ok(json!({"success": true, "cancelled": row.id}))
            }
            "kill_thread" => {
                let row = self.below(asker, one()?)?;
                self.kill(&row).await
            }
            "get_status" => {
                let row = one()?;
                let mut answer = self.shown(&row);
                if let Value::Object(map) = &mut answer {
                    map.insert("success".to_owned(), json!(true));
                }
                Ok(answer)
            }
            "list_active" => {
                let tree = self.store.subtree(&self.root_of(&asker.own.thread_id)?)?;
                let active: Vec<Value> = tree
                    .iter()
                    .filter(|row| !row.status.is_terminal() && row.id != asker.own.thread_id)
                    .map(|row| json!(row.id))
                    .collect();
                Ok(json!({"success": true, "active_threads": active, "count": active.len()}))
            }
            "get_chain" => {
                let chain = self.store.chain(&one()?)?;
                let shown: Vec<Value> = chain
                    .iter()
                    .map(|row| json!({"thread_id": row.id, "status": row.status, "directive": row.directive}))
                    .collect();
                Ok(json!({"success": true, "chain_length": shown.len(), "chain": shown}))
            }
            "chain_search" => self.chain_search(asker, &one()?, params),
            "read_transcript" => {
                let row = one()?;
                let lines = params.get("tail_lines").and_then(Value::as_u64);
                self.read_transcript(asker, &row, lines)
            }
            "resume_thread" | "handoff_thread" => {
                let row = self.below(asker, one()?)?;
                let limits = crate::action::object(params.get("limit_overrides"))
                    .map_err(|error| wrong(format!("limit_overrides: {error}")))?;
                let changes = Changes {
                    limits,
                    message: text("message").map(str::to_owned),
                    by: format!("its parent {}", asker.own.thread_id),
                    within: Some(self.limits_of(&asker.own.thread_id)?),
                };
                self.go_on(&row, changes, operation == "handoff_thread").await
            }
            other => Err(wrong(format!(
                "unknown operation `{}`; there are wait_threads, cancel_thread, kill_thread, get_status, list_active, aggregate_results, get_chain, chain_search, read_transcript, resume_thread, handoff_thread",
                rye_item::text::one_line(other)
            ))),
        }
    }

    /// A thread of the asker's own tree.
    fn visible(&self, asker: &Spec, id: &ThreadId) -> Result<ThreadRow> {
        let row = self.row(id)?;
        if self.root_of(id)? == self.root_of(&asker.own.thread_id)? {
            return Ok(row);
        }
        Err(Error::new(Code::PermissionDenied, format!("{id} is not of this thread's tree"))
            .detail("thread_id", id.as_str()))
    }

    /// A thread below the asker.
    pub(super) fn below(&self, asker: &Spec, row: ThreadRow) -> Result<ThreadRow> {
        let line = self.store.ancestors(&row.id)?;
        if line.iter().any(|ancestor| ancestor.id == asker.own.thread_id) {
            return Ok(row);
        }
        Err(Error::new(Code::PermissionDenied, format!("{} is not below this thread", row.id))
            .detail("thread_id", row.id.as_str()))
    }

    fn root_of(&self, id: &ThreadId) -> Result<ThreadId> {
        let line = self.store.ancestors(id)?;
        Ok(line.into_iter().find(|row| row.parent.is_none()).map_or_else(|| id.clone(), |row| row.id))
    }

    fn ids(&self, asker: &Spec, params: &Map<String, Value>) -> Result<Vec<ThreadId>> {
        let wrong = |message: String| Error::new(Code::InvalidParameters, message);
        let given = match params.get("thread_ids") {
            Some(Value::Array(list)) => list.clone(),
            // Models and directives also write a list as text.
            Some(Value::String(text)) => {
                serde_json::from_str(text).map_err(|_| wrong("`thread_ids` is no list".to_owned()))?
            }
            _ => return Err(wrong("`thread_ids` is missing".to_owned())),
        };
        let mut ids = Vec::new();
        for id in &given {
            let id = id.as_str().ok_or_else(|| wrong("a thread id is text".to_owned()))?;
            let id = ThreadId::parse(id).map_err(|error| wrong(error.to_string()))?;
            match self.visible(asker, &id) {
                Ok(_) => {}
                Err(error) if error.code == Code::NoThread => {}
                Err(error) => return Err(error),
            }
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let most = asker.shared.config.resilience.coordination.max_wait_thread_ids;
        if u64::try_from(ids.len()).unwrap_or(u64::MAX) > most {
            return Err(wrong(format!("{} threads at once; max_wait_thread_ids is {most}", ids.len())));
        }
        Ok(ids)
    }

    fn waiting(&self, asker: &Spec, params: &Map<String, Value>) -> Result<Waiting> {
        let wrong = |message: String| Error::new(Code::InvalidParameters, message);
        let ids = self.ids(asker, params)?;
        let flag = |key: &str, default: bool| params.get(key).and_then(Value::as_bool).unwrap_or(default);
        let coordination = &asker.shared.config.resilience.coordination;
        let needed = match params.get("mode").and_then(Value::as_str).unwrap_or("all") {
            "all" if flag("require_all", true) => ids.len(),
            "any" | "all" => ids.len().min(1),
            "quorum" => {
                let quorum = params.get("quorum").and_then(Value::as_u64).unwrap_or(0);
                usize::try_from(quorum)
                    .ok()
                    .filter(|quorum| (1..=ids.len()).contains(quorum))
                    .ok_or_else(|| wrong(format!("`quorum` is a number from 1 to {}", ids.len())))?
            }
            other => {
                let other = rye_item::text::one_line(other);
                return Err(wrong(format!("unknown mode `{other}`; there are all, any, quorum")));
            }
        };
        let timeout = match params.get("timeout") {
            None | Some(Value::Null) => default_wait(&asker.shared.config),
            Some(given) => {
                let seconds = given.as_f64().or_else(|| given.as_str()?.parse().ok());
                let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
                Duration::try_from_secs_f64(seconds.ok_or_else(|| wrong("`timeout` is a number".to_owned()))?)
                    .map_err(|error| wrong(error.to_string()))?
            }
        };
        Ok(Waiting {
            ids,
            needed,
            timeout: timeout.min(Duration::from_millis(asker.shared.config.coordination.max_timeout_ms)),
            fail_fast: flag("fail_fast", coordination.fail_fast),
            cancels_siblings: flag("cancel_siblings_on_failure", coordination.cancel_siblings_on_failure),
            result_ttl: Duration::from_millis(coordination.completion_event_ttl_ms),
            waits_for_people: true,
        })
    }

    /// Waits with one deadline for all; answers with what each came to.
    /// A thread that nobody works on goes on where it belongs; here, if those that wait are of its tree (`is_ours`).
    pub(super) async fn wait(
        self: &Arc<Self>,
        waiting: &Waiting,
        is_ours: bool,
        ending: &CancellationToken,
    ) -> Result<Value> {
        let deadline = Instant::now() + waiting.timeout.min(VERY_LONG);
        let mut changes = self.store.subscribe();
        let mut results: BTreeMap<ThreadId, Value> = BTreeMap::new();
        let mut has_failed = false;
        let mut is_late = false;
        loop {
            for id in &waiting.ids {
                if results.contains_key(id) {
                    continue;
                }
                let row = match self.final_row(id) {
                    Ok(row) => row,
                    Err(error) if error.code == Code::NoThread => {
                        results.insert(id.clone(), json!({"status": "not_found", "thread_id": id}));
                        has_failed = true;
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                // Somebody may answer what it asks, until the time is over.
                let is_asking =
                    row.status == Status::Suspended && row.reason == Some(SuspendReason::Approval);
                // One that somebody has taken up goes on in a moment.
                let is_taken = row.status == Status::Suspended
                    && row.owner.as_ref().is_some_and(|owner| !owner.is_gone(&self.owner));
                if (is_taken || (is_asking && waiting.waits_for_people)) && !is_late {
                    continue;
                }
                if row.status.is_terminal() || row.status == Status::Suspended {
                    has_failed |= row.status != Status::Completed;
                    results.insert(id.clone(), self.shown_within(&row, waiting.result_ttl));
                } else if self.is_abandoned(&row)
                    && let Err(why) = self.bring_back(&row, is_ours).await
                {
                    let hint = format!("rye thread resume {}", row.id);
                    let error = format!("interrupted: {why}");
                    let result =
                        json!({"status": "interrupted", "thread_id": id, "error": error, "hint": hint});
                    has_failed = true;
                    results.insert(id.clone(), result);
                }
            }
            if has_failed && waiting.cancels_siblings {
                for id in waiting.ids.iter().filter(|id| !results.contains_key(*id)) {
                    self.end(id, "a sibling failed").await?;
                }
            }
            let ended = results.len();
            if ended >= waiting.needed || (has_failed && waiting.fail_fast) || is_late {
                break;
            }
            tokio::select! {
                () = ending.cancelled() => break,
                () = tokio::time::sleep_until(deadline) => is_late = true,
                () = heard_of(&mut changes, &waiting.ids) => {}
                changed = self.changed_elsewhere() => changed?,
            }
        }
        let mut shown = Map::new();
        for id in &waiting.ids {
            let pending = if is_late { "timeout" } else { "running" };
            let result = results.remove(id).unwrap_or_else(|| json!({"status": pending, "thread_id": id}));
            shown.insert(id.to_string(), result);
        }
        let completed = shown.values().filter(|result| result["status"] == json!("completed")).count();
        Ok(json!({"success": completed >= waiting.needed, "results": shown}))
    }

    /// Ready when any process has changed something; after a while in any case, for those that died change nothing.
    async fn changed_elsewhere(&self) -> Result<()> {
        let before = self.store.data_version()?;
        for _ in 0..MOST_LOOKS {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.store.data_version()? != before {
                break;
            }
        }
        Ok(())
    }

    /// The row of a thread, or of the one it was handed over to, and so on.
    pub(super) fn final_row(&self, id: &ThreadId) -> Result<ThreadRow> {
        let mut row = self.row(id)?;
        // A chain cannot be longer than there are threads; this many is far beyond any.
        for _ in 0..1000 {
            match &row.continuation_thread_id {
                Some(next) if row.status == Status::Continued => row = self.row(next)?,
                _ => break,
            }
        }
        Ok(row)
    }

    fn shown_within(&self, row: &ThreadRow, ttl: Duration) -> Value {
        let now = self.setup.clock.now_ms();
        // Moments are written the same way everywhere: they compare as text.
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        let oldest = transcript::iso(now.saturating_sub(ttl_ms));
        let is_old = row.completed_at.as_ref().is_some_and(|at| *at < oldest);
        if !is_old {
            return self.shown(row);
        }
        json!({
            "thread_id": row.id,
            "status": row.status,
            "success": row.status == Status::Completed,
            "expired": true,
            "note": "it ended longer ago than completion_event_ttl_seconds; use get_status or read_transcript",
        })
    }

    /// A thread as others see it: status, result, outputs, cost.
    pub(super) fn shown(&self, row: &ThreadRow) -> Value {
        let mut map = match &row.result {
            Some(Value::Object(result)) => result.clone(),
            _ => Map::new(),
        };
        map.insert("success".to_owned(), json!(row.status == Status::Completed));
        map.insert("thread_id".to_owned(), json!(row.id));
        map.insert("directive".to_owned(), json!(row.directive));
        map.insert("status".to_owned(), json!(row.status));
        map.insert("cost".to_owned(), row.cost.to_value());
        if let Some(reason) = row.reason {
            map.insert("suspend_reason".to_owned(), json!(reason));
        }
        if row.status == Status::Suspended
            && map.get("detail").is_some_and(|detail| !detail["questions"].is_null())
        {
            map.insert("approve".to_owned(), json!(approving(&row.id)));
        }
        if let Some(error) = &row.error {
            map.insert("error".to_owned(), json!(error));
        }
        Value::Object(map)
    }
}

/// Ready when one of these threads may stand otherwise than before.
async fn heard_of(changes: &mut tokio::sync::broadcast::Receiver<Change>, ids: &[ThreadId]) {
    loop {
        match changes.recv().await {
            // A chain's later threads are found at the next look.
            Ok(change) if change.status.is_none() || !ids.contains(&change.thread) => {}
            Ok(_) | Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => return,
            Err(tokio::sync::broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

/// The command with which a person answers a thread.
pub(super) fn approving(id: &ThreadId) -> String {
    format!("rye thread approve {id}")
}

/// How long to wait when the call does not say.
pub(super) fn default_wait(config: &Config) -> Duration {
    Duration::from_millis(config.wait_timeout_ms())
}
