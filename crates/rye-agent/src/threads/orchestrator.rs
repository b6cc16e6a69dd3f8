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

use super::availability::AvailabilityWait;
use super::resume::ResumeOptions;
use super::user::UserPolicy;
use super::{ThreadRuntime, Threads};
use crate::config::ThreadConfig;
use crate::spec::ThreadSpec;
use crate::status::{SuspendReason, ThreadStatus};
use crate::store::{ChangeReceiver, ChangesLost, ThreadFilter, ThreadRow, is_owner_gone};
use crate::thread_id::ThreadId;
use crate::transcript;
use crate::views::approve_command;

/// How often it is looked whether another process has changed something.
const POLL_INTERVAL: Duration = Duration::from_millis(25);
/// How many looks there are until threads are read again all the same.
const MAX_POLLS: usize = 20;

/// As good as for ever, and a moment that can still be named.
const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Who calls the orchestrator.
pub(super) enum OperationCaller {
    /// A thread: it sees its own tree, and steers what is below it.
    Thread(Arc<ThreadSpec>),
    /// The user: every thread of the project.
    User {
        /// The configuration of the project.
        config: Box<ThreadConfig>,
        /// What they may do.
        policy: UserPolicy,
    },
}

impl OperationCaller {
    fn config(&self) -> &ThreadConfig {
        match self {
            Self::Thread(spec) => &spec.template.config,
            Self::User { config, .. } => config,
        }
    }
}

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
        self.runtime.wait(request, false, cancel_token).await
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

impl ThreadRuntime {
    /// One call of the orchestrator.
    pub(super) async fn run_operation(
        self: &Arc<Self>,
        caller: &OperationCaller,
        params: &Map<String, Value>,
        cancel_token: &CancellationToken,
    ) -> Result<Value> {
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let text = |key: &str| params.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let operation = text("operation")
            .or_else(|| text("action"))
            .ok_or_else(|| invalid("`operation` is missing".to_owned()))?;
        let requested_row = || -> Result<ThreadRow> {
            let id = text("thread_id").ok_or_else(|| invalid("`thread_id` is missing".to_owned()))?;
            let id = ThreadId::parse(id).map_err(|error| invalid(error.to_string()))?;
            self.visible_row(caller, &id)
        };
        match operation {
            "wait_threads" => {
                let request = self.parse_wait(caller, params)?;
                self.wait(&request, true, cancel_token).await
            }
            "aggregate_results" => {
                let ids = self.parse_ids(caller, params)?;
                let mut results = Map::new();
                for id in ids {
                    results.insert(id.to_string(), thread_value(&self.records.final_row(&id)?));
                }
                let is_all = results.values().all(|result| result["status"] == json!("completed"));
                Ok(json!({"success": is_all, "results": results}))
            }
            "cancel_thread" => {
                let row = self.descendant_row(caller, requested_row()?)?;
                if row.status.is_terminal() {
                    return Ok(
                        json!({"success": false, "error": format!("{} has ended: {}", row.id, row.status)}),
                    );
                }
                let default = match caller {
                    OperationCaller::Thread(_) => "cancelled by its parent".to_owned(),
                    OperationCaller::User { policy, .. } => format!("cancelled by {}", policy.by),
                };
                self.cancel(&row.id, text("reason").unwrap_or(&default)).await?;
                Ok(json!({"success": true, "cancelled": row.id}))
            }
            "kill_thread" => {
                let row = self.descendant_row(caller, requested_row()?)?;
                self.kill(&row).await
            }
            "get_status" => {
                let row = requested_row()?;
                let mut response = thread_value(&row);
                if let Value::Object(map) = &mut response {
                    map.insert("success".to_owned(), json!(true));
                }
                Ok(response)
            }
            "list_active" => {
                let (rows, own) = match caller {
                    OperationCaller::Thread(spec) => {
                        let own = &spec.instance.thread_id;
                        (self.store.subtree(&self.records.root_of(own)?)?, Some(own))
                    }
                    OperationCaller::User { .. } => (self.store.threads(&ThreadFilter::default())?, None),
                };
                let active: Vec<Value> = rows
                    .iter()
                    .filter(|row| !row.status.is_terminal() && Some(&row.id) != own)
                    .map(|row| json!(row.id))
                    .collect();
                Ok(json!({"success": true, "active_threads": active, "count": active.len()}))
            }
            "get_chain" => {
                let chain = self.store.chain(&requested_row()?)?;
                let entries: Vec<Value> = chain
                    .iter()
                    .map(|row| json!({"thread_id": row.id, "status": row.status, "directive": row.directive}))
                    .collect();
                Ok(json!({"success": true, "chain_length": entries.len(), "chain": entries}))
            }
            "chain_search" => self.records.chain_search(caller.config(), &requested_row()?, params),
            "read_transcript" => {
                let row = requested_row()?;
                let lines = params.get("tail_lines").and_then(Value::as_u64);
                self.records.read_transcript(caller.config(), &row, lines)
            }
            "resume_thread" | "handoff_thread" => {
                let row = self.descendant_row(caller, requested_row()?)?;
                let limits = crate::action::parse_params(params.get("limit_overrides"))
                    .map_err(|error| invalid(format!("limit_overrides: {error}")))?;
                let (by, bounds) = match caller {
                    OperationCaller::Thread(spec) => {
                        let own = &spec.instance.thread_id;
                        (format!("its parent {own}"), Some(self.current_limits(own)?))
                    }
                    OperationCaller::User { policy, .. } if policy.can_raise_limits => {
                        (policy.by.clone(), None)
                    }
                    OperationCaller::User { policy, .. } => {
                        (policy.by.clone(), Some(self.current_limits(&row.id)?))
                    }
                };
                let message = text("message").map(str::to_owned);
                let options = ResumeOptions { limits, message, by, bounds };
                let is_handoff = operation == "handoff_thread";
                let wait = self.parse_availability(caller, params)?;
                self.continue_thread(&row, options, is_handoff, wait, cancel_token).await
            }
            "fork_thread" => self.fork_operation(caller, requested_row()?, params, cancel_token).await,
            other => Err(invalid(format!(
                "unknown operation `{}`; there are wait_threads, cancel_thread, kill_thread, get_status, list_active, aggregate_results, get_chain, chain_search, read_transcript, resume_thread, handoff_thread, fork_thread",
                rye_item::text::one_line(other)
            ))),
        }
    }

    /// A thread of the asker's own tree; any thread, if the user asks.
    fn visible_row(&self, caller: &OperationCaller, id: &ThreadId) -> Result<ThreadRow> {
        let row = self.records.row(id)?;
        let OperationCaller::Thread(spec) = caller else { return Ok(row) };
        if self.records.root_of(id)? == self.records.root_of(&spec.instance.thread_id)? {
            return Ok(row);
        }
        Err(Error::new(Code::PermissionDenied, format!("{id} is not of this thread's tree"))
            .detail("thread_id", id.as_str()))
    }

    /// A thread below the asker; any thread, if the user asks.
    pub(super) fn descendant_row(&self, caller: &OperationCaller, row: ThreadRow) -> Result<ThreadRow> {
        let OperationCaller::Thread(spec) = caller else { return Ok(row) };
        let ancestors = self.store.ancestors(&row.id)?;
        if ancestors.iter().any(|ancestor| ancestor.id == spec.instance.thread_id) {
            return Ok(row);
        }
        Err(Error::new(Code::PermissionDenied, format!("{} is not below this thread", row.id))
            .detail("thread_id", row.id.as_str()))
    }

    fn parse_ids(&self, caller: &OperationCaller, params: &Map<String, Value>) -> Result<Vec<ThreadId>> {
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let given = match params.get("thread_ids") {
            Some(Value::Array(list)) => list.clone(),
            // Models and directives also write a list as text.
            Some(Value::String(text)) => {
                serde_json::from_str(text).map_err(|_| invalid("`thread_ids` is no list".to_owned()))?
            }
            _ => return Err(invalid("`thread_ids` is missing".to_owned())),
        };
        let mut ids = Vec::new();
        for id in &given {
            let id = id.as_str().ok_or_else(|| invalid("a thread id is text".to_owned()))?;
            let id = ThreadId::parse(id).map_err(|error| invalid(error.to_string()))?;
            match self.visible_row(caller, &id) {
                Ok(_) => {}
                Err(error) if error.code == Code::NoThread => {}
                Err(error) => return Err(error),
            }
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        let max = caller.config().resilience.coordination.max_wait_thread_ids;
        if u64::try_from(ids.len()).unwrap_or(u64::MAX) > max {
            return Err(invalid(format!("{} threads at once; max_wait_thread_ids is {max}", ids.len())));
        }
        Ok(ids)
    }

    fn parse_wait(&self, caller: &OperationCaller, params: &Map<String, Value>) -> Result<WaitRequest> {
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let ids = self.parse_ids(caller, params)?;
        let flag = |key: &str, default: bool| params.get(key).and_then(Value::as_bool).unwrap_or(default);
        let config = caller.config();
        let coordination = &config.resilience.coordination;
        let needed = match params.get("mode").and_then(Value::as_str).unwrap_or("all") {
            "all" if flag("require_all", true) => ids.len(),
            "any" | "all" => ids.len().min(1),
            "quorum" => {
                let quorum = params.get("quorum").and_then(Value::as_u64).unwrap_or(0);
                usize::try_from(quorum)
                    .ok()
                    .filter(|quorum| (1..=ids.len()).contains(quorum))
                    .ok_or_else(|| invalid(format!("`quorum` is a number from 1 to {}", ids.len())))?
            }
            other => {
                let other = rye_item::text::one_line(other);
                return Err(invalid(format!("unknown mode `{other}`; there are all, any, quorum")));
            }
        };
        let timeout = parse_timeout(params)?.unwrap_or_else(|| default_wait_timeout(config));
        Ok(WaitRequest {
            ids,
            needed,
            timeout: timeout.min(Duration::from_millis(config.coordination.max_timeout_ms)),
            fail_fast: flag("fail_fast", coordination.fail_fast),
            cancel_siblings: flag("cancel_siblings_on_failure", coordination.cancel_siblings_on_failure),
            result_ttl: match caller {
                OperationCaller::Thread(_) => Duration::from_millis(coordination.completion_event_ttl_ms),
                OperationCaller::User { .. } => Duration::MAX,
            },
            // The user is the one who answers: they are told at once.
            waits_for_approval: matches!(caller, OperationCaller::Thread(_)),
        })
    }

    /// For how long a thread is resumed again while no provider answers, if at all.
    fn parse_availability(
        &self,
        caller: &OperationCaller,
        params: &Map<String, Value>,
    ) -> Result<Option<AvailabilityWait>> {
        if params.get("when_available").and_then(Value::as_bool) != Some(true) {
            return Ok(None);
        }
        let config = caller.config();
        let timeout = parse_timeout(params)?.unwrap_or_else(|| default_wait_timeout(config));
        let timeout = timeout.min(Duration::from_millis(config.coordination.max_timeout_ms)).min(MAX_WAIT);
        Ok(Some(AvailabilityWait { deadline: Instant::now() + timeout }))
    }

    /// Waits with one deadline for all; answers with what each came to.
    /// A thread that no process runs is resumed where it belongs; here, if those that wait are of its tree (`is_ours`).
    pub(super) async fn wait(
        self: &Arc<Self>,
        request: &WaitRequest,
        is_ours: bool,
        cancel_token: &CancellationToken,
    ) -> Result<Value> {
        let deadline = Instant::now() + request.timeout.min(MAX_WAIT);
        let mut changes = self.store.subscribe();
        let mut results: BTreeMap<ThreadId, Value> = BTreeMap::new();
        let mut has_failed = false;
        let mut is_timed_out = false;
        loop {
            for id in &request.ids {
                if results.contains_key(id) {
                    continue;
                }
                let row = match self.records.final_row(id) {
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
                    && row.owner.as_ref().is_some_and(|owner| !is_owner_gone(owner, &self.owner));
                if (is_resuming || (is_asking && request.waits_for_approval)) && !is_timed_out {
                    continue;
                }
                if row.status.is_terminal() || row.status == ThreadStatus::Suspended {
                    has_failed |= row.status != ThreadStatus::Completed;
                    results.insert(id.clone(), self.thread_value_within(&row, request.result_ttl));
                } else if self.is_abandoned(&row)
                    && let Err(reason) = self.recover(&row, is_ours).await
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
                    self.cancel(id, "a sibling failed").await?;
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
        let completed = values.values().filter(|result| result["status"] == json!("completed")).count();
        Ok(json!({"success": completed >= request.needed, "results": values}))
    }

    /// Ready when any process has changed something; after a while in any case, for those that died change nothing.
    async fn external_change(&self) -> Result<()> {
        let before = self.store.data_version()?;
        for _ in 0..MAX_POLLS {
            tokio::time::sleep(POLL_INTERVAL).await;
            if self.store.data_version()? != before {
                break;
            }
        }
        Ok(())
    }

    fn thread_value_within(&self, row: &ThreadRow, ttl: Duration) -> Value {
        let now = self.setup.clock.now_ms();
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

/// The `timeout` of an operation, if it has one.
fn parse_timeout(params: &Map<String, Value>) -> Result<Option<Duration>> {
    let invalid = |message: String| Error::new(Code::InvalidParameters, message);
    let Some(value) = params.get("timeout").filter(|value| !value.is_null()) else { return Ok(None) };
    let seconds = value.as_f64().or_else(|| value.as_str()?.parse().ok());
    let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
    let seconds = seconds.ok_or_else(|| invalid("`timeout` is a number".to_owned()))?;
    Duration::try_from_secs_f64(seconds).map(Some).map_err(|error| invalid(error.to_string()))
}

/// A thread as others see it: status, result, outputs, cost.
#[must_use]
pub fn thread_value(row: &ThreadRow) -> Value {
    let mut map = match &row.result {
        Some(Value::Object(result)) => result.clone(),
        _ => Map::new(),
    };
    map.insert("success".to_owned(), json!(row.status == ThreadStatus::Completed));
    map.insert("thread_id".to_owned(), json!(row.id));
    map.insert("directive".to_owned(), json!(row.directive));
    map.insert("status".to_owned(), json!(row.status));
    map.insert("cost".to_owned(), row.cost.to_value());
    if let Some(reason) = row.reason {
        map.insert("suspend_reason".to_owned(), json!(reason));
    }
    if row.status == ThreadStatus::Suspended
        && map.get("detail").is_some_and(|detail| !detail["questions"].is_null())
    {
        map.insert("approve".to_owned(), json!(approve_command(&row.id)));
    }
    if let Some(error) = &row.error {
        map.insert("error".to_owned(), json!(error));
    }
    Value::Object(map)
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

/// How long to wait when the call does not say.
pub(super) fn default_wait_timeout(config: &ThreadConfig) -> Duration {
    Duration::from_millis(config.wait_timeout_ms())
}
