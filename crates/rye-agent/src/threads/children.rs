//! Children: a thread's call of `thread_directive`, and what becomes of children when their parent stops.
//!
//! A refused child is an answer to the model like any other: it costs nothing and starts nothing.

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::orchestrator::{OperationCaller, default_wait_timeout};
use super::responses::{finished_response, started_response};
use super::wait::WaitRequest;
use super::{FinishedThread, ThreadRuntime};
use crate::action::{Action, parse_params};
use crate::definitions::{ORCHESTRATOR, THREAD_DIRECTIVE};
use crate::driver::{BoxFuture, CancelSignal, ChildHandle, Children};
use crate::machine::ToolResult;
use crate::prepare::{ParentThread, ThreadRequest};
use crate::spec::{SpawnReason, ThreadSpec};
use crate::status::{SuspendReason, ThreadStatus};
use crate::store::{ThreadRow, ThreadStoreError};
use crate::thread_id::ThreadId;

/// What a child is for.
#[derive(Clone, Copy, Debug)]
enum SpawnPurpose<'a> {
    /// What its parent's model wants done.
    Task(&'a ChildHandle),
    /// What a hook of its parent wants done, to help it along.
    HookHelp(&'a str),
    /// A summary of its parent's conversation, which a hook wants.
    Summary(&'a str),
}

impl SpawnPurpose<'_> {
    fn spawn_reason(self) -> SpawnReason {
        match self {
            Self::Task(handle) => handle.spawn_reason(),
            Self::HookHelp(hook) | Self::Summary(hook) => SpawnReason::Hook(hook.to_owned()),
        }
    }

    /// The child exists.
    fn notify_started(self, directive: &str) {
        if let Self::Task(handle) = self {
            handle.notify_started(directive);
        }
    }
}

/// A child that was started.
enum SpawnedChild {
    /// Its parent waits for it.
    Awaited(BoxFuture<'static, Option<Arc<FinishedThread>>>),
    /// It continues by itself, in this process.
    Detached { directive: String, pid: u32 },
}

/// Starts the children of threads, and waits for them.
pub(super) struct ChildSpawner {
    pub(super) runtime: Arc<ThreadRuntime>,
}

impl Children for ChildSpawner {
    fn spawn(
        self: Arc<Self>,
        parent: Arc<ThreadSpec>,
        call: Action,
        cancel_token: CancellationToken,
        handle: ChildHandle,
    ) -> BoxFuture<'static, ToolResult> {
        Box::pin(async move {
            let started = std::time::Instant::now();
            let id = handle.child().clone();
            let child = self
                .spawn_child(&parent, &spawn_params(&call), SpawnPurpose::Task(&handle), &cancel_token)
                .await;
            let mut child_status = None;
            let (response, child, is_error) = match child {
                Ok(SpawnedChild::Awaited(finished)) => match finished.await {
                    Some(finished) => {
                        let response = Value::Object(finished_response(&finished));
                        child_status = Some(finished.outcome.status);
                        (response, Some(id), finished.outcome.status != ThreadStatus::Completed)
                    }
                    None => (
                        json!({"success": false, "thread_id": id, "error": "the child was lost"}),
                        Some(id),
                        true,
                    ),
                },
                Ok(SpawnedChild::Detached { directive, pid }) => {
                    (started_response(&id, &directive, pid), None, false)
                }
                Err(error) => (error.to_value(None), None, true),
            };
            let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            let result = ToolResult { is_error, duration_ms, ..ToolResult::failure(response.to_string()) };
            ToolResult { child, child_status, ..result }
        })
    }

    fn orchestrate(
        self: Arc<Self>,
        caller: Arc<ThreadSpec>,
        call: Action,
        cancel_token: CancellationToken,
    ) -> BoxFuture<'static, ToolResult> {
        Box::pin(async move {
            let started = std::time::Instant::now();
            let response = match self.runtime.preparer.check_params(&caller, ORCHESTRATOR, call.params) {
                Ok(params) => {
                    let caller = OperationCaller::Thread(caller);
                    self.runtime.orchestrator().run_operation(&caller, &params, &cancel_token).await
                }
                Err(error) => Err(error),
            };
            let duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
            let (content, is_error) = match response {
                Ok(response) => {
                    let is_error = response.get("success").and_then(Value::as_bool) == Some(false);
                    (response, is_error)
                }
                Err(error) => (error.to_value(None), true),
            };
            ToolResult { is_error, duration_ms, ..ToolResult::failure(content.to_string()) }
        })
    }

    fn run_for_hook(
        self: Arc<Self>,
        parent: Arc<ThreadSpec>,
        hook: String,
        call: Action,
        cancel_token: CancellationToken,
    ) -> BoxFuture<'static, Value> {
        Box::pin(async move {
            let request_params = |inputs: Map<String, Value>| {
                let mut params = Map::new();
                params.insert("directive_name".to_owned(), json!(call.item_id));
                params.insert("inputs".to_owned(), Value::Object(inputs));
                params
            };
            // What was said goes along, if the directive wants it.
            let conversation = call.options.get("transcript_content").cloned();
            let mut inputs = call.params.clone();
            inputs.extend(conversation.map(|text| ("transcript_content".to_owned(), text)));
            let purpose = match call.options.contains_key("transcript_content") {
                true => SpawnPurpose::Summary(&hook),
                false => SpawnPurpose::HookHelp(&hook),
            };
            let mut started =
                self.spawn_child(&parent, &request_params(inputs), purpose, &cancel_token).await;
            if matches!(&started, Err(error) if error.code == Code::InvalidInputs) {
                started = self
                    .spawn_child(&parent, &request_params(call.params.clone()), purpose, &cancel_token)
                    .await;
            }
            match started {
                // A hook's directive is never asked to run on its own.
                Ok(SpawnedChild::Detached { .. }) => json!({"status": "success", "data": {}}),
                Ok(SpawnedChild::Awaited(finished)) => match finished.await {
                    Some(finished) if finished.outcome.status == ThreadStatus::Completed => {
                        json!({"status": "success", "data": finished_response(&finished)})
                    }
                    Some(finished) => {
                        json!({"status": "error", "error": finished.outcome.error, "data": finished_response(&finished)})
                    }
                    None => json!({"status": "error", "error": "the child was lost"}),
                },
                Err(error) => error.to_value(None),
            }
        })
    }
}

impl ChildSpawner {
    /// Starts a child as the call says. Where the call has begun one before a crash, that one is it.
    async fn spawn_child(
        self: &Arc<Self>,
        parent: &Arc<ThreadSpec>,
        params: &Map<String, Value>,
        purpose: SpawnPurpose<'_>,
        cancel_token: &CancellationToken,
    ) -> Result<SpawnedChild> {
        let params = self.runtime.preparer.check_params(parent, THREAD_DIRECTIVE, params.clone())?;
        let (mut request, is_async) = parse_request(&params)?;
        request.is_summary = matches!(purpose, SpawnPurpose::Summary(_));
        let own = parent.instance.thread_id.as_str();
        if let Some(other) = params.get("parent_thread_id").and_then(Value::as_str).filter(|id| *id != own) {
            let other = rye_item::text::one_line(other);
            return Err(Error::new(
                Code::PermissionDenied,
                format!("{other} is not the caller: a thread starts its own children"),
            )
            .hint("leave parent_thread_id out"));
        }
        if let SpawnPurpose::Task(handle) = purpose {
            if let Some(row) = self.runtime.store.verified_thread(handle.child()).await? {
                return self.rejoin_child(parent, row, is_async, handle, cancel_token).await;
            }
            request.thread_id = Some(handle.child().clone());
        }
        request.spawn_reason = Some(purpose.spawn_reason());
        request.parent = Some(ParentThread {
            spec: Arc::clone(parent),
            limits: self.runtime.current_limits(&parent.instance.thread_id).await?,
        });
        let previous = match params.get("previous_thread_id").and_then(Value::as_str) {
            Some(id) => Some(self.continue_previous(parent, id, &mut request, &params).await?),
            None => None,
        };
        let prepared = match purpose {
            SpawnPurpose::Task(_) => self.runtime.prepare(request).await?,
            SpawnPurpose::HookHelp(_) | SpawnPurpose::Summary(_) => {
                self.runtime.preparer.prepare_with_model_of(parent, request).await?
            }
        };
        let directive = prepared.spec.template.directive.clone();
        // Its parent does not wait: it runs whatever becomes of this process, in the background if there is such a process.
        if is_async && let Ok(connection) = self.runtime.connect_background().await {
            let background = self.runtime.hand_to_background(connection, prepared, |_| {}).await?;
            if let Some(row) = previous {
                self.runtime.mark_continued(&row, &background.thread_id).await?;
            }
            purpose.notify_started(&directive);
            return Ok(SpawnedChild::Detached { directive, pid: background.runner.unwrap_or_default() });
        }
        // A child that is waited for ends with its parent; for any other child_policy decides.
        let signal = CancelSignal::default();
        let started = self.runtime.start(prepared, signal.clone()).await?;
        if let Some(row) = previous {
            self.runtime.mark_continued(&row, &started.thread_id).await?;
        }
        purpose.notify_started(&directive);
        if is_async {
            return Ok(SpawnedChild::Detached { directive, pid: std::process::id() });
        }
        let (inner, parent, cancel_token) = (Arc::clone(self), Arc::clone(parent), cancel_token.clone());
        let (done, asked) = (started.wait_stopped(), cancel_token.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = asked.cancelled() => signal.cancel("its parent was cancelled"),
                () = done => {}
            }
        });
        // When the parent is cancelled the child is too, and is waited for all the same.
        Ok(SpawnedChild::Awaited(Box::pin(async move {
            let finished = started.finished().await?;
            inner.wait_for_approval(&parent, finished, &cancel_token).await
        })))
    }

    /// The child that a call had begun before its process died.
    async fn rejoin_child(
        self: &Arc<Self>,
        parent: &Arc<ThreadSpec>,
        row: ThreadRow,
        is_async: bool,
        handle: &ChildHandle,
        cancel_token: &CancellationToken,
    ) -> Result<SpawnedChild> {
        if row.parent.as_ref() != Some(&parent.instance.thread_id) {
            return Err(ThreadStoreError::Exists(row.id).into());
        }
        handle.notify_started(&row.directive);
        if is_async {
            if self.runtime.is_abandoned(&row) {
                // What stands in its way is reported to the thread that waits for it.
                let _ = self.runtime.recover(&row, true).await;
            }
            return Ok(SpawnedChild::Detached {
                directive: row.directive,
                pid: row.owner.map_or(0, |owner| owner.pid),
            });
        }
        let (inner, parent, cancel_token) = (Arc::clone(self), Arc::clone(parent), cancel_token.clone());
        Ok(SpawnedChild::Awaited(Box::pin(async move {
            let request =
                WaitRequest { waits_for_approval: false, ..WaitRequest::for_all(vec![row.id.clone()]) };
            let never = CancellationToken::new();
            let orchestrator = inner.runtime.orchestrator();
            let ended = orchestrator.wait(&request, true, &never);
            tokio::pin!(ended);
            let result = tokio::select! {
                result = &mut ended => result,
                () = cancel_token.cancelled() => {
                    let _ = inner.runtime.control.cancel(&row.id, "its parent was cancelled").await;
                    ended.await
                }
            };
            result.ok()?;
            let finished = Arc::new(inner.runtime.records.current_outcome(&row.id).await.ok()?);
            inner.wait_for_approval(&parent, finished, &cancel_token).await
        })))
    }

    /// Lets the order continue from a thread below its parent that is not at work any more.
    async fn continue_previous(
        self: &Arc<Self>,
        parent: &Arc<ThreadSpec>,
        id: &str,
        request: &mut ThreadRequest,
        params: &Map<String, Value>,
    ) -> Result<ThreadRow> {
        let id =
            ThreadId::parse(id).map_err(|error| Error::new(Code::InvalidParameters, error.to_string()))?;
        let caller = OperationCaller::Thread(Arc::clone(parent));
        let row = self.runtime.records.row(&id).await?;
        let row = self.runtime.orchestrator().descendant_row(&caller, row).await?;
        self.runtime.continue_row(&row, request, params, true).await
    }

    /// How a child that has stopped stands in the end: one that stopped to ask a person is waited for as long as
    /// `wait_threads` would, since a person may answer.
    async fn wait_for_approval(
        self: &Arc<Self>,
        parent: &ThreadSpec,
        finished: Arc<FinishedThread>,
        cancel_token: &CancellationToken,
    ) -> Option<Arc<FinishedThread>> {
        if finished.outcome.reason != Some(SuspendReason::Approval) {
            return Some(finished);
        }
        let id = &finished.thread_id;
        let timeout = default_wait_timeout(&parent.template.config);
        let request = WaitRequest { timeout, ..WaitRequest::for_all(vec![id.clone()]) };
        // However it went, the child's row says how it stands.
        let _ = self.runtime.orchestrator().wait(&request, true, cancel_token).await;
        if cancel_token.is_cancelled() {
            let _ = self.runtime.control.cancel(id, "its parent was cancelled").await;
        }
        self.runtime.records.current_outcome(id).await.ok().map(Arc::new)
    }
}

/// The parameters of a call that starts a thread. `rye_execute` of a directive with `thread: fork` is another way to say it.
fn spawn_params(call: &Action) -> Map<String, Value> {
    if call.item_type != Some(ItemType::Directive) {
        return call.params.clone();
    }
    let mut params = Map::new();
    params.insert("directive_name".to_owned(), json!(call.item_id));
    params.insert("inputs".to_owned(), Value::Object(call.params.clone()));
    for name in ["async", "model", "limit_overrides"] {
        // What the directive itself calls so stays an input.
        params.extend(call.options.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    params
}

/// What a call of `thread_directive` asks for; both spellings of its parameters.
///
/// # Errors
/// When it does not say what to run.
pub(super) fn parse_request(params: &Map<String, Value>) -> Result<(ThreadRequest, bool)> {
    let invalid = |message: String| Error::new(Code::InvalidParameters, message);
    let text = |key: &str| params.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let name = text("directive_name")
        .or_else(|| text("directive_id"))
        .ok_or_else(|| invalid("`directive_name` is missing".to_owned()))?;
    let name = name.strip_prefix("directive:").unwrap_or(name);
    let id = ItemId::new(name).map_err(|error| invalid(error.to_string()))?;
    let inputs = parse_params(params.get("inputs")).map_err(|error| invalid(format!("inputs: {error}")))?;
    let mut request = ThreadRequest::new(ItemRef::new(ItemType::Directive, id), inputs);
    request.model = text("model").map(str::to_owned);
    request.provider = text("provider").map(str::to_owned);
    request.limits = parse_params(params.get("limit_overrides"))
        .map_err(|error| invalid(format!("limit_overrides: {error}")))?;
    let is_true = |key: &str| match params.get(key) {
        Some(Value::Bool(is)) => *is,
        Some(Value::String(word)) => word == "true",
        _ => false,
    };
    Ok((request, is_true("async_exec") || is_true("async")))
}
