//! `thread_directive` and `orchestrator` for a caller that is not a thread: the user, at the command line or behind an MCP
//! client. They see and steer every thread of the project.

use std::sync::Arc;
use std::time::Duration;

use lillux::CancelToken;
use rye_engine::{Code, Error, Result};
use rye_exec::{NativeError, ThreadFunctions};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::children::parse_request;
use super::orchestrator::OperationCaller;
use super::{Threads, finished_response, started_response};
use crate::driver::CancelSignal;
use crate::prepare::ThreadRequest;
use crate::store::ThreadRow;

/// How often it is looked whether a call was cancelled.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What the user may do through this caller, and in whose name.
#[derive(Clone, Debug)]
pub struct UserPolicy {
    /// Who it is.
    pub by: String,
    /// Whether limits may be raised; else they are only lowered.
    pub can_raise_limits: bool,
}

/// What runs the two tools for a user.
pub trait UserThreadHost: Send + Sync {
    /// Runs a directive in a thread: `thread_directive`. It may block.
    ///
    /// # Errors
    /// When it cannot start.
    fn start(&self, params: &Map<String, Value>, cancel: &CancelToken) -> Result<Value>;

    /// One call of the `orchestrator`. It may block.
    ///
    /// # Errors
    /// When it cannot be done.
    fn operate(&self, params: &Map<String, Value>, cancel: &CancelToken) -> Result<Value>;
}

/// The host, as native tools reach it.
pub struct UserThreads(pub Arc<dyn UserThreadHost>);

impl std::fmt::Debug for UserThreads {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("UserThreads")
    }
}

impl ThreadFunctions for UserThreads {
    fn call_function(
        &self,
        name: &str,
        parameters: &Map<String, Value>,
        cancel: &CancelToken,
    ) -> Option<std::result::Result<Value, NativeError>> {
        let result = match name {
            "threads.thread_directive" => self.0.start(parameters, cancel),
            "threads.orchestrator" => self.0.operate(parameters, cancel),
            _ => return None,
        };
        let response = result.map_err(|error| {
            let is_denied = error.code == Code::PermissionDenied;
            let refused = if is_denied { NativeError::denied } else { NativeError::failed };
            refused(error.message.clone()).with_data(error.to_value(None))
        });
        Some(response.and_then(|response| match failure_message(&response) {
            Some(message) => Err(NativeError::failed(message).with_data(response)),
            None => Ok(response),
        }))
    }
}

impl Threads {
    /// Starts a directive as `thread_directive` would, for the user. Asked not to wait, it answers at once.
    ///
    /// # Errors
    /// When it may not start; then there is no thread.
    pub async fn start_for_user(
        &self,
        params: &Map<String, Value>,
        policy: &UserPolicy,
        cancel: &CancelToken,
    ) -> Result<Value> {
        if params.get("parent_thread_id").is_some_and(|id| !id.is_null()) {
            let message = "`parent_thread_id` is for threads: what the user starts has no parent";
            return Err(Error::new(Code::InvalidParameters, message).hint("leave parent_thread_id out"));
        }
        let (mut request, is_async) = parse_request(params)?;
        let previous = match params.get("previous_thread_id").and_then(Value::as_str) {
            Some(id) => {
                let is_unattended = !policy.can_raise_limits;
                Some(self.runtime.continue_for_user(id, &mut request, params, is_unattended).await?)
            }
            None => None,
        };
        if !policy.can_raise_limits {
            self.refuse_raised_limits(&request).await?;
        }
        if is_async {
            return self.start_detached(request, previous.as_ref()).await;
        }
        let signal = CancelSignal::default();
        let started = self.start(request, signal.clone()).await?;
        if let Some(row) = &previous {
            self.runtime.mark_continued(row, &started.thread_id).await?;
        }
        let finished = started.finished();
        tokio::pin!(finished);
        let finished = tokio::select! {
            finished = &mut finished => finished,
            () = cancelled(cancel) => {
                signal.cancel("the call was cancelled");
                finished.await
            }
        };
        let lost = || Error::new(Code::ThreadFailed, "the thread ended unexpectedly");
        Ok(Value::Object(finished_response(&*finished.ok_or_else(lost)?)))
    }

    /// Starts a thread that outlives the call; where no other process runs it, it runs here as long as this one does.
    ///
    /// # Errors
    /// When it may not start; then there is no thread.
    pub async fn start_detached(
        &self,
        request: ThreadRequest,
        previous: Option<&ThreadRow>,
    ) -> Result<Value> {
        let (id, response) = match self.start_in_background(request.clone()).await {
            Ok(background) => {
                let runner = background.runner;
                let pid = *runner.as_ref().unwrap_or(&0);
                let mut response = started_response(&background.thread_id, &background.directive, pid);
                if let Err(reason) = runner {
                    response["status"] = json!("created");
                    response["note"] = json!(reason);
                }
                (background.thread_id, response)
            }
            Err(error) if error.code == Code::NoBackground => {
                let started = self.start(request, CancelSignal::default()).await?;
                let response = started_response(&started.thread_id, &started.directive, std::process::id());
                (started.thread_id.clone(), response)
            }
            Err(error) => return Err(error),
        };
        if let Some(row) = previous {
            self.runtime.mark_continued(row, &id).await?;
        }
        Ok(response)
    }

    /// One call of the orchestrator, for the user.
    ///
    /// # Errors
    /// When it cannot be done.
    pub async fn operate_for_user(
        &self,
        params: &Map<String, Value>,
        policy: &UserPolicy,
        cancel: &CancelToken,
    ) -> Result<Value> {
        let engine = (self.runtime.setup.engine)()?;
        let config = Box::new(crate::config::load_lenient(&engine.workspace)?);
        let caller = OperationCaller::User { config, policy: policy.clone() };
        let cancel_token = CancellationToken::new();
        let orchestrator = self.runtime.orchestrator();
        let operation = orchestrator.run_operation(&caller, params, &cancel_token);
        tokio::pin!(operation);
        tokio::select! {
            response = &mut operation => response,
            () = cancelled(cancel) => {
                cancel_token.cancel();
                operation.await
            }
        }
    }

    async fn refuse_raised_limits(&self, request: &ThreadRequest) -> Result<()> {
        if request.limits.is_empty() {
            return Ok(());
        }
        let plain = self.prepare(ThreadRequest { limits: Map::new(), ..request.clone() }).await?;
        let requested = self.prepare(request.clone()).await?;
        let raised = requested.spec.instance.limits.raised_limits(&plain.spec.instance.limits);
        if raised.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = raised.iter().map(|limit| limit.name).collect();
        let message = format!("limits are only lowered here; {} would be raised", names.join(", "));
        Err(Error::new(Code::PermissionDenied, message)
            .for_item(&request.directive)
            .hint(format!("the user may raise them: rye run {} --limit NAME=VALUE", request.directive.id)))
    }
}

/// What `thread_directive` is asked to run.
///
/// # Errors
/// When it does not say.
pub fn thread_directive_request(params: &Map<String, Value>) -> Result<ThreadRequest> {
    parse_request(params).map(|(request, _)| request)
}

/// Why an answer is a failure: a thread or an operation came to nothing. Threads that are still at work when the time is over
/// have not failed.
pub(crate) fn failure_message(response: &Value) -> Option<String> {
    if response.get("success").and_then(Value::as_bool) != Some(false) {
        return None;
    }
    if let Some(Value::Object(results)) = response.get("results") {
        let is_good = |status: &str| matches!(status, "completed" | "timeout" | "running");
        let status = |result: &Value| result["status"].as_str().unwrap_or_default().to_owned();
        let failed = results.iter().map(|(id, result)| (id, status(result)));
        let failed: Vec<String> = failed
            .filter(|(_, status)| !is_good(status))
            .map(|(id, status)| format!("{id} is {}", status.replace('_', " ")))
            .collect();
        return (!failed.is_empty()).then(|| failed.join(", "));
    }
    let text = |key: &str| response.get(key).and_then(Value::as_str);
    let (id, status) = (text("thread_id").unwrap_or("the thread"), text("status").unwrap_or("not done"));
    let message = match text("error") {
        Some(error) if text("status").is_some() => format!("{id} is {status}: {error}"),
        Some(error) => error.to_owned(),
        None => format!("{id} is {status}"),
    };
    Some(rye_item::text::one_line(&message))
}

/// Ready when the call was cancelled.
async fn cancelled(cancel: &CancelToken) {
    while !cancel.is_cancelled() {
        tokio::time::sleep(CANCEL_POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_to_nothing_is_a_failure() {
        let table = [
            (json!({"success": true, "status": "completed"}), None),
            (json!({"thread_id": "t", "status": "running"}), None),
            (
                json!({"success": false, "results": {"a": {"status": "timeout"}, "b": {"status": "completed"}}}),
                None,
            ),
            (
                json!({"success": false, "results": {"a": {"status": "error"}, "b": {"status": "running"}}}),
                Some("a is error"),
            ),
            (
                json!({"success": false, "thread_id": "t", "status": "suspended", "error": "May I?"}),
                Some("t is suspended: May I?"),
            ),
            (json!({"success": false, "error": "t has ended"}), Some("t has ended")),
        ];
        for (response, expected) in table {
            assert_eq!(failure_message(&response).as_deref(), expected, "{response}");
        }
    }
}
