//! Beginning effects: a model call, a tool, a hook, a child, a pause.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use lillux::CancelToken;
use rye_engine::verbs::execute::BlockingHook;
use rye_item::ItemType;
use rye_model::{ModelError, ModelRequest};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::budget_wait::BudgetWait;
use super::wait::{DeltaQueue, ModelCall, TaskResult};
use super::{ChildHandle, DriverError, ThreadDriver};
use crate::callback::{CallContext, CallbackFactory, DEFAULT_MAX_CALL_DEPTH};
use crate::capability::PermittedAction;
use crate::dispatch::Dispatcher;
use crate::envelope::ResultEnvelope;
use crate::file_inputs::attach_files;
use crate::machine::{CostBound, ToolResult};
use crate::receipt_summary::receipt_summary;
use crate::redact::{RedactStream, RedactionTally, Redactor};
use crate::result_format::{self, ArtifactStore};
use crate::thread_id::ThreadId;
use crate::tool_context::{FrozenConfig, ThreadContext};

/// How many calls of one answer are made at once.
const MAX_INLINE_CALLS: usize = 16;

/// Something to begin.
pub(super) enum PendingEffect {
    /// Ask the model.
    Model { request: ModelRequest, cost_bound: CostBound },
    /// Reserve for a call as soon as that is possible.
    AwaitBudget { call: u64, cost_bound: CostBound, deadline_ms: u64 },
    /// Run a hook's action.
    Hook { hook: String, action: PermittedAction, timeout_ms: Option<u64> },
    /// Make a tool call.
    Tool { index: usize, action: PermittedAction },
    /// Read on in a long result.
    Artifact { index: usize, params: Map<String, Value> },
    /// Start a child.
    Spawn { index: usize, action: PermittedAction, child: ThreadId },
    /// Look at or steer other threads.
    Orchestrate { index: usize, action: PermittedAction },
    /// Wait.
    Sleep(u64),
}

impl ThreadDriver {
    pub(super) fn start_effect(&mut self, start: PendingEffect) -> Result<(), DriverError> {
        let spec = Arc::clone(&self.state.spec);
        let cancel_token = self.signal.cancel_token.child_token();
        match start {
            PendingEffect::Model { mut request, cost_bound: worst } => {
                let (provider, deltas) = (self.providers.at(self.state.model_index()), DeltaQueue::default());
                let sink = deltas.clone();
                let artifacts = self.deps.artifacts.clone();
                let future = Box::pin(async move {
                    let on_delta = move |delta| sink.push(delta);
                    if request.messages.iter().any(|message| !message.files().is_empty()) {
                        request = with_files(request, artifacts).await?;
                    }
                    provider.complete(&request, &on_delta).await
                });
                let stream = || RedactStream::new(Arc::clone(&self.deps.redactor));
                let (words, reasoning) = (stream(), stream());
                self.in_flight.model_call = Some(ModelCall {
                    cost_bound: worst,
                    future,
                    deltas,
                    chunk: 0,
                    text: words,
                    reasoning,
                    received: String::new(),
                });
            }
            PendingEffect::AwaitBudget { call, cost_bound, deadline_ms } => {
                let timeout = Duration::from_millis(deadline_ms.saturating_sub(self.deps.clock.now_ms()));
                self.in_flight.budget_wait = Some(BudgetWait::new(call, cost_bound, timeout));
            }
            PendingEffect::Hook { hook, action, timeout_ms }
                if is_directive(&action) && !self.state.is_starting() =>
            {
                self.in_flight.watch_hook(timeout_ms, &cancel_token);
                let mut call = action.action().clone();
                if let Some(text) = self.state.conversation_to_summarise() {
                    call.options.insert("transcript_content".to_owned(), Value::from(text));
                }
                let running = Arc::clone(&self.deps.children).run_for_hook(spec, hook, call, cancel_token);
                self.in_flight.tasks.spawn(async move { TaskResult::Hook(running.await) });
            }
            PendingEffect::Hook { action, timeout_ms, .. } => {
                self.in_flight.watch_hook(timeout_ms, &cancel_token);
                let (dispatch, context, cancel) =
                    (Arc::clone(&self.deps.dispatcher), self.tool_context(), self.in_flight.cancel()?);
                self.spawn_blocking(move |blocking_hook| {
                    let context = Arc::new(ThreadContext { blocking_hook: Some(blocking_hook), ..context });
                    TaskResult::Hook(dispatch_unless_cancelled(&*dispatch, &action, &context, &cancel))
                });
            }
            PendingEffect::Tool { index, action } => {
                let artifacts = self.deps.artifacts.clone();
                let max_chars = self.state.max_result_chars();
                let cancel = self.in_flight.cancel()?;
                let dispatch = Arc::clone(&self.deps.dispatcher);
                let context = self.context_with_callback(index);
                let redactor = Arc::clone(&self.deps.redactor);
                self.spawn_blocking(move |blocking_hook| {
                    let context = Arc::new(ThreadContext { blocking_hook: Some(blocking_hook), ..context });
                    let started_at = Instant::now();
                    let envelope = dispatch_unless_cancelled(&*dispatch, &action, &context, &cancel);
                    let artifacts = artifacts.as_deref();
                    let (result, redacted) =
                        to_tool_result(&action, &redactor, envelope, max_chars, artifacts, started_at);
                    TaskResult::Dispatched(index, result, redacted)
                });
            }
            PendingEffect::Artifact { index, params } => {
                let artifacts = self.deps.artifacts.clone();
                self.in_flight.tasks.spawn_blocking(move || {
                    let slice = match artifacts {
                        Some(artifacts) => result_format::read_artifact(&*artifacts, &params),
                        None => ResultEnvelope::failure("no artifacts are kept"),
                    };
                    let is_error = ResultEnvelope::parse(&slice).is_failure();
                    TaskResult::Tool(index, ToolResult { is_error, ..ToolResult::failure(slice.to_string()) })
                });
            }
            PendingEffect::Spawn { index, action, child } => {
                let spawned_by = action.action().item_id.clone().filter(|_| !is_directive(&action));
                let started_at =
                    self.child_handle(index, spawned_by.unwrap_or_else(|| "rye_execute".to_owned()), child);
                let running = Arc::clone(&self.deps.children).spawn(
                    spec,
                    action.action().clone(),
                    cancel_token,
                    started_at,
                );
                self.in_flight.tasks.spawn(async move { TaskResult::Tool(index, running.await) });
            }
            PendingEffect::Orchestrate { index, action } => {
                let running =
                    Arc::clone(&self.deps.children).orchestrate(spec, action.action().clone(), cancel_token);
                self.in_flight.tasks.spawn(async move { TaskResult::Tool(index, running.await) });
            }
            PendingEffect::Sleep(ms) => {
                self.in_flight.sleep = Some(Box::pin(tokio::time::sleep(Duration::from_millis(ms))));
            }
        }
        Ok(())
    }

    /// The result of the `nth` call of an answer, if it has one at once: of a tool that touches nothing, which may be
    /// called before the call is written down, since to call it again changes nothing.
    pub(super) fn try_inline_result(
        &mut self,
        action: &PermittedAction,
        nth: usize,
    ) -> Result<Option<(ToolResult, RedactionTally)>, DriverError> {
        // Many of them would keep others from continuing.
        if nth > MAX_INLINE_CALLS {
            return Ok(None);
        }
        let started_at = Instant::now();
        let (context, cancel) = (Arc::new(self.tool_context()), self.in_flight.cancel()?);
        let envelope = self.deps.dispatcher.try_dispatch_inline(action, &context, &cancel);
        let artifacts = self.deps.artifacts.as_deref();
        let max_chars = self.state.max_result_chars();
        let redactor = &self.deps.redactor;
        Ok(envelope
            .map(|envelope| to_tool_result(action, redactor, envelope, max_chars, artifacts, started_at)))
    }

    /// Does work that blocks; its result comes back as that of a task.
    fn spawn_blocking(&mut self, work: impl FnOnce(BlockingHook) -> TaskResult + Send + 'static) {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let done = self.deps.blocking.run(Box::new(move |hook| drop(sender.send(work(hook)))));
        self.in_flight.tasks.spawn(async move {
            done.await;
            match receiver.await {
                Ok(result) => result,
                // The process ends.
                Err(_) => std::future::pending().await,
            }
        });
    }

    fn child_handle(&mut self, index: usize, spawned_by: String, child: ThreadId) -> ChildHandle {
        ChildHandle { index, spawned_by, child, sender: self.in_flight.child_started.sender() }
    }

    /// The same, with a callback channel for the tool of this call.
    fn context_with_callback(&mut self, index: usize) -> ThreadContext {
        let thread = self.tool_context();
        let context = CallContext {
            spec: Arc::clone(&self.state.spec),
            index,
            call: format!("{}.{index}", self.state.calls),
            max_depth: self.state.limits.depth.unwrap_or(DEFAULT_MAX_CALL_DEPTH),
            thread: thread.clone(),
            dispatcher: Arc::clone(&self.deps.dispatcher),
            children: Arc::clone(&self.deps.children),
            token_issuer: Arc::clone(&self.deps.token_issuer),
            clock: Arc::clone(&self.deps.clock),
            redactor: Arc::clone(&self.deps.redactor),
            child_handle: self.child_handle(index, String::new(), self.state.spec.instance.thread_id.clone()),
            events: self.in_flight.callback_events.sender(),
            runtime: tokio::runtime::Handle::current(),
            request_count: AtomicU64::new(0),
        };
        ThreadContext { callback: Some(Arc::new(CallbackFactory::new(context))), ..thread }
    }

    /// What tools of this thread may know of it.
    pub(super) fn tool_context(&self) -> ThreadContext {
        let spec = &self.state.spec;
        ThreadContext {
            thread_id: spec.instance.thread_id.clone(),
            cost: self.state.cost,
            is_cancelled: self.signal.cancel_token.is_cancelled(),
            config: Arc::clone(spec) as Arc<dyn FrozenConfig>,
            budget: self.deps.budget.clone(),
            callback: None,
            blocking_hook: None,
        }
    }
}

/// The request with the bytes of its files, which are read where blocking does no harm.
async fn with_files(
    mut request: ModelRequest,
    artifacts: Option<Arc<dyn ArtifactStore>>,
) -> Result<ModelRequest, ModelError> {
    let read = tokio::task::spawn_blocking(move || {
        attach_files(&mut request, artifacts.as_deref())?;
        Ok::<_, String>(request)
    });
    let read = read.await.unwrap_or_else(|error| Err(format!("reading a file broke off: {error}")));
    read.map_err(|message| ModelError::before_send("FileMissing", message))
}

/// Does it, unless it was asked to end before it was its turn.
fn dispatch_unless_cancelled(
    dispatch: &dyn Dispatcher,
    action: &PermittedAction,
    context: &Arc<ThreadContext>,
    cancel: &CancelToken,
) -> Value {
    match cancel.is_cancelled() {
        true => ResultEnvelope::failure("cancelled before it began"),
        false => dispatch.dispatch(action, context, cancel),
    }
}

/// What the model sees of an envelope.
fn to_tool_result(
    action: &PermittedAction,
    redactor: &Redactor,
    envelope: Value,
    max_chars: usize,
    artifacts: Option<&dyn ArtifactStore>,
    started_at: Instant,
) -> (ToolResult, RedactionTally) {
    let sandbox = envelope.get("sandbox").and_then(|receipt| receipt_summary(receipt, redactor));
    let formatted =
        result_format::format_for_model(action.action(), envelope, max_chars, artifacts, redactor);
    let duration_ms = u64::try_from(started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
    let result = ToolResult {
        is_error: formatted.is_error,
        duration_ms,
        sandbox,
        ..ToolResult::failure(formatted.content)
    };
    (result, formatted.redacted)
}

fn is_directive(permitted: &PermittedAction) -> bool {
    permitted.action().item_type == Some(ItemType::Directive)
}
