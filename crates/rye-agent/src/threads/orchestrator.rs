//! The orchestrator tool: looking at threads, steering and ending them. Waiting for them is in `wait`.
//!
//! A thread sees its own tree and steers what is below it; a person sees and steers everything.

use std::sync::Arc;
use std::time::Duration;

use rye_engine::{Code, Error, Result};
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::ThreadRuntime;
use super::availability::AvailabilityWait;
use super::fork::refuse_raise;
use super::resume::{ResumeOptions, apply_limit_changes};
use super::user::UserPolicy;
use super::wait::WaitRequest;
use crate::config::ThreadConfig;
use crate::spec::ThreadSpec;
use crate::status::ThreadStatus;
use crate::store::{ThreadFilter, ThreadRow};
use crate::thread_id::ThreadId;
use crate::views::thread_value;

/// As good as for ever, and a moment that can still be named.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(10 * 365 * 86_400);

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
    /// Whether it is a program that does not speak with the user's voice: a thread, or an MCP client.
    pub(super) fn is_unattended(&self) -> bool {
        match self {
            Self::Thread(_) => true,
            Self::User { policy, .. } => !policy.can_raise_limits,
        }
    }

    fn config(&self) -> &ThreadConfig {
        match self {
            Self::Thread(spec) => &spec.template.config,
            Self::User { config, .. } => config,
        }
    }
}

/// The operations of the orchestrator on the threads of a space.
pub(super) struct Orchestrator {
    pub(super) runtime: Arc<ThreadRuntime>,
}

impl Orchestrator {
    /// One call of the orchestrator.
    pub(super) async fn run_operation(
        &self,
        caller: &OperationCaller,
        params: &Map<String, Value>,
        cancel_token: &CancellationToken,
    ) -> Result<Value> {
        let runtime = &self.runtime;
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let text = |key: &str| params.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let operation = text("operation")
            .or_else(|| text("action"))
            .ok_or_else(|| invalid("`operation` is missing".to_owned()))?;
        match operation {
            "wait_threads" => {
                let request = self.parse_wait(caller, params).await?;
                self.wait(&request, true, cancel_token).await
            }
            "aggregate_results" => {
                let ids = self.parse_ids(caller, params).await?;
                let mut results = Map::new();
                for id in ids {
                    results.insert(id.to_string(), thread_value(&runtime.records.final_row(&id).await?));
                }
                let is_completed = |result| ThreadStatus::of_result(result) == Some(ThreadStatus::Completed);
                let is_all = results.values().all(is_completed);
                Ok(json!({"success": is_all, "results": results}))
            }
            "cancel_thread" => {
                let row = self.descendant_row(caller, self.requested_row(caller, params).await?).await?;
                if row.status.is_terminal() {
                    return Ok(
                        json!({"success": false, "error": format!("{} has ended: {}", row.id, row.status)}),
                    );
                }
                let default = match caller {
                    OperationCaller::Thread(_) => "cancelled by its parent".to_owned(),
                    OperationCaller::User { policy, .. } => format!("cancelled by {}", policy.by),
                };
                runtime.control.cancel(&row.id, text("reason").unwrap_or(&default)).await?;
                Ok(json!({"success": true, "cancelled": row.id}))
            }
            "kill_thread" => {
                let row = self.descendant_row(caller, self.requested_row(caller, params).await?).await?;
                runtime.control.kill(&row).await
            }
            "get_status" => {
                let row = self.requested_row(caller, params).await?;
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
                        let root = runtime.records.root_of(own).await?;
                        (runtime.store.subtree(&root).await?, Some(own))
                    }
                    OperationCaller::User { .. } => {
                        (runtime.store.threads(&ThreadFilter::default()).await?, None)
                    }
                };
                let active: Vec<Value> = rows
                    .iter()
                    .filter(|row| !row.status.is_terminal() && Some(&row.id) != own)
                    .map(|row| json!(row.id))
                    .collect();
                Ok(json!({"success": true, "active_threads": active, "count": active.len()}))
            }
            "get_chain" => {
                let chain = runtime.store.chain(&self.requested_row(caller, params).await?).await?;
                let entries: Vec<Value> = chain
                    .iter()
                    .map(|row| json!({"thread_id": row.id, "status": row.status, "directive": row.directive}))
                    .collect();
                Ok(json!({"success": true, "chain_length": entries.len(), "chain": entries}))
            }
            "chain_search" => {
                let row = self.requested_row(caller, params).await?;
                let (config, params) = (caller.config().clone(), params.clone());
                runtime
                    .records
                    .run_blocking(move |records| records.chain_search(&config, &row, &params))
                    .await
            }
            "read_transcript" => {
                let row = self.requested_row(caller, params).await?;
                let lines = params.get("tail_lines").and_then(Value::as_u64);
                let config = caller.config().clone();
                runtime
                    .records
                    .run_blocking(move |records| records.read_transcript(&config, &row, lines))
                    .await
            }
            "resume_thread" | "handoff_thread" => {
                let row = self.descendant_row(caller, self.requested_row(caller, params).await?).await?;
                let limits = crate::action::parse_params(params.get("limit_overrides"))
                    .map_err(|error| invalid(format!("limit_overrides: {error}")))?;
                let (by, bounds) = match caller {
                    OperationCaller::Thread(spec) => {
                        let own = &spec.instance.thread_id;
                        (format!("its parent {own}"), Some(runtime.current_limits(own).await?))
                    }
                    OperationCaller::User { policy, .. } if policy.can_raise_limits => {
                        (policy.by.clone(), None)
                    }
                    OperationCaller::User { policy, .. } => {
                        let old = runtime.current_limits(&row.id).await?;
                        refuse_raise(&row, "resume", &apply_limit_changes(&old, &limits)?, &old)?;
                        (policy.by.clone(), None)
                    }
                };
                let message = text("message").map(str::to_owned);
                let is_unattended = caller.is_unattended();
                let options = ResumeOptions { limits, message, by, bounds, is_unattended };
                let is_handoff = operation == "handoff_thread";
                let wait = self.parse_availability(caller, params)?;
                runtime.continue_thread(&row, options, is_handoff, wait, cancel_token).await
            }
            "fork_thread" => {
                let row = self.descendant_row(caller, self.requested_row(caller, params).await?).await?;
                runtime.fork_operation(caller, row, params, cancel_token).await
            }
            other => Err(invalid(format!(
                "unknown operation `{}`; there are wait_threads, cancel_thread, kill_thread, get_status, list_active, aggregate_results, get_chain, chain_search, read_transcript, resume_thread, handoff_thread, fork_thread",
                rye_item::text::one_line(other)
            ))),
        }
    }

    /// The thread that an operation names.
    async fn requested_row(
        &self,
        caller: &OperationCaller,
        params: &Map<String, Value>,
    ) -> Result<ThreadRow> {
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let id = params.get("thread_id").and_then(Value::as_str).filter(|id| !id.is_empty());
        let id = id.ok_or_else(|| invalid("`thread_id` is missing".to_owned()))?;
        let id = ThreadId::parse(id).map_err(|error| invalid(error.to_string()))?;
        self.visible_row(caller, &id).await
    }

    /// A thread of the asker's own tree; any thread, if the user asks.
    async fn visible_row(&self, caller: &OperationCaller, id: &ThreadId) -> Result<ThreadRow> {
        let records = &self.runtime.records;
        let row = records.row(id).await?;
        let OperationCaller::Thread(spec) = caller else { return Ok(row) };
        if records.root_of(id).await? == records.root_of(&spec.instance.thread_id).await? {
            return Ok(row);
        }
        Err(Error::new(Code::PermissionDenied, format!("{id} is not of this thread's tree"))
            .detail("thread_id", id.as_str()))
    }

    /// A thread below the asker; any thread, if the user asks.
    pub(super) async fn descendant_row(&self, caller: &OperationCaller, row: ThreadRow) -> Result<ThreadRow> {
        let OperationCaller::Thread(spec) = caller else { return Ok(row) };
        let ancestors = self.runtime.store.ancestors(&row.id).await?;
        if ancestors.iter().any(|ancestor| ancestor.id == spec.instance.thread_id) {
            return Ok(row);
        }
        Err(Error::new(Code::PermissionDenied, format!("{} is not below this thread", row.id))
            .detail("thread_id", row.id.as_str()))
    }

    async fn parse_ids(
        &self,
        caller: &OperationCaller,
        params: &Map<String, Value>,
    ) -> Result<Vec<ThreadId>> {
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let given = match params.get("thread_ids") {
            Some(Value::Array(list)) => list.clone(),
            // Models and directives also write a list as text.
            Some(Value::String(text)) => {
                serde_json::from_str(text).map_err(|_| invalid("`thread_ids` is not a list".to_owned()))?
            }
            _ => return Err(invalid("`thread_ids` is missing".to_owned())),
        };
        let mut ids = Vec::new();
        for id in &given {
            let id = id.as_str().ok_or_else(|| invalid("a thread id is text".to_owned()))?;
            let id = ThreadId::parse(id).map_err(|error| invalid(error.to_string()))?;
            match self.visible_row(caller, &id).await {
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

    async fn parse_wait(&self, caller: &OperationCaller, params: &Map<String, Value>) -> Result<WaitRequest> {
        let invalid = |message: String| Error::new(Code::InvalidParameters, message);
        let ids = self.parse_ids(caller, params).await?;
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
                    .ok_or_else(|| invalid(quorum_message(ids.len())))?
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

/// How long to wait when the call does not say.
pub(super) fn default_wait_timeout(config: &ThreadConfig) -> Duration {
    Duration::from_millis(config.wait_timeout_ms())
}

fn quorum_message(count: usize) -> String {
    match count {
        1 => "`quorum` is 1 where one thread is waited for".to_owned(),
        _ => format!("`quorum` is a number from 1 to {count}"),
    }
}
