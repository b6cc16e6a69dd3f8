//! Waiting: for the model, tools, hooks, children, a pause, the end of the thread's time, or a request to end it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use lillux::CancelToken;
use rye_model::{ModelError, ModelResponse, ResponseDelta};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::CancellationToken;

use super::budget_wait::BudgetWait;
use super::{BoxFuture, DriverError, ThreadDriver};
use crate::callback::CallbackEvent;
use crate::envelope::ResultEnvelope;
use crate::machine::{CostBound, ThreadEvent, ToolResult};
use crate::money::Nanos;
use crate::redact::{RedactStream, RedactionTally};
use crate::thread_id::ThreadId;

/// How long tools that were asked to end are waited for; they are killed well before.
const TOOL_STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// What was begun and has not come back.
pub(super) struct InFlight {
    pub(super) model_call: Option<ModelCall>,
    pub(super) tasks: JoinSet<TaskResult>,
    pub(super) sleep: Option<Pin<Box<Sleep>>>,
    /// A call that waits for its reservation.
    pub(super) budget_wait: Option<BudgetWait>,
    cancel: Option<CancelToken>,
    /// When the hook that runs has taken too long, and how a thread it started hears of that.
    hook_deadline: Option<(Instant, CancellationToken)>,
    /// Children that have begun.
    pub(super) child_started: LazyChannel<ChildStarted>,
    /// What tools ask for while they run.
    pub(super) callback_events: LazyChannel<CallbackEvent>,
    /// Who waits until that is written down.
    ack: Option<std::sync::mpsc::Sender<()>>,
}

type ChildStarted = (usize, ThreadId, String);

impl Default for InFlight {
    fn default() -> Self {
        Self {
            model_call: None,
            tasks: JoinSet::new(),
            sleep: None,
            budget_wait: None,
            cancel: None,
            hook_deadline: None,
            child_started: LazyChannel(None),
            callback_events: LazyChannel(None),
            ack: None,
        }
    }
}

/// A model call on its way.
pub(super) struct ModelCall {
    pub(super) cost_bound: CostBound,
    pub(super) future: BoxFuture<'static, Result<ModelResponse, ModelError>>,
    pub(super) deltas: DeltaQueue,
    pub(super) chunk: u64,
    /// What is said and thought, without secrets.
    pub(super) text: RedactStream,
    pub(super) reasoning: RedactStream,
    /// What was said so far, without secrets.
    pub(super) received: String,
}

impl ModelCall {
    /// The answer, or words on their way to it.
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<WakeReason> {
        if let Poll::Ready(result) = self.future.as_mut().poll(task) {
            return Poll::Ready(WakeReason::Model(Box::new(result)));
        }
        // They come while the answer is waited for, and from nowhere else.
        let deltas = self.deltas.drain();
        if deltas.is_empty() { Poll::Pending } else { Poll::Ready(WakeReason::Deltas(deltas)) }
    }
}

/// How many pieces of an answer are queued for listeners. When they do not keep up, the next pieces are merged.
const MAX_QUEUED_DELTAS: usize = 256;

/// Words of the model on their way.
#[derive(Clone, Debug, Default)]
pub(super) struct DeltaQueue(Arc<Mutex<Vec<ResponseDelta>>>);

impl DeltaQueue {
    pub(super) fn push(&self, delta: ResponseDelta) {
        let mut deltas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if deltas.len() < MAX_QUEUED_DELTAS {
            return deltas.push(delta);
        }
        for last in deltas.iter_mut().rev() {
            match (last, &delta) {
                (ResponseDelta::Text(last), ResponseDelta::Text(more))
                | (ResponseDelta::Reasoning(last), ResponseDelta::Reasoning(more)) => {
                    return last.push_str(more);
                }
                _ => {}
            }
        }
        deltas.push(delta);
    }

    fn drain(&self) -> Vec<ResponseDelta> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What others send to a thread; most threads are never sent any.
pub(super) struct LazyChannel<T>(Option<(UnboundedSender<T>, UnboundedReceiver<T>)>);

impl<T> LazyChannel<T> {
    pub(super) fn sender(&mut self) -> UnboundedSender<T> {
        self.0.get_or_insert_with(unbounded_channel).0.clone()
    }

    async fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            Some((_, receiver)) => receiver.recv().await,
            None => std::future::pending().await,
        }
    }
}

/// A task that came back.
pub(super) enum TaskResult {
    Tool(usize, ToolResult),
    /// A tool's result, and the secrets that were taken out of it.
    Dispatched(usize, ToolResult, RedactionTally),
    Hook(Value),
}

/// What woke the thread.
enum WakeReason {
    Cancelled,
    Expired,
    Model(Box<Result<ModelResponse, ModelError>>),
    Deltas(Vec<ResponseDelta>),
    Child(ChildStarted),
    Callback(Box<CallbackEvent>),
    Task(Option<Result<TaskResult, tokio::task::JoinError>>),
    SleepDone,
    /// A hook took too long.
    HookExpired,
    /// It is time to try again to reserve.
    ReservationDue,
    /// Files have been behind for long enough.
    FilesDue,
}

impl InFlight {
    /// How tools of this thread are asked to end; made when the first one needs it.
    pub(super) fn cancel(&mut self) -> std::io::Result<CancelToken> {
        if self.cancel.is_none() {
            self.cancel = Some(CancelToken::new()?);
        }
        self.cancel.clone().ok_or_else(|| std::io::Error::other("no cancel"))
    }

    /// A hook begins, which may take this long.
    pub(super) fn watch_hook(&mut self, timeout_ms: Option<u64>, cancel_token: &CancellationToken) {
        self.hook_deadline =
            timeout_ms.map(|ms| (Instant::now() + Duration::from_millis(ms), cancel_token.clone()));
    }

    /// Tells what runs to end, and waits for it.
    async fn stop_tasks(&mut self) {
        if let Some((_, cancel_token)) = self.hook_deadline.take() {
            cancel_token.cancel();
        }
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
        let tasks = &mut self.tasks;
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(TOOL_STOP_TIMEOUT, ended).await.is_err() {
            self.tasks.abort_all();
        }
        self.cancel = None;
    }

    /// What a tool asked for is written down.
    pub(super) fn ack_written(&mut self) {
        if let Some(waiting) = self.ack.take() {
            // It may have ended meanwhile.
            let _ = waiting.send(());
        }
    }
}

impl Drop for InFlight {
    /// A thread that is ended by force leaves no tool running.
    fn drop(&mut self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
    }
}

impl ThreadDriver {
    /// What happens next.
    pub(super) async fn next_event(&mut self) -> Result<ThreadEvent, DriverError> {
        loop {
            match self.wait().await {
                WakeReason::Cancelled => {
                    let (spend, partial) = self.stop_in_flight().await;
                    return Ok(ThreadEvent::CancelRequested { reason: self.signal.reason(), spend, partial });
                }
                WakeReason::Expired => return Ok(self.expire().await),
                WakeReason::Deltas(deltas) => {
                    deltas.iter().for_each(|delta| self.handle_delta(delta));
                    // Words may come so quickly that nothing else gets its turn.
                    self.write_due_files(false)?;
                    if self.time_left() == Some(Duration::ZERO) {
                        return Ok(self.expire().await);
                    }
                }
                WakeReason::Child((index, child, directive)) => {
                    return Ok(ThreadEvent::ChildStarted { index, child, directive });
                }
                WakeReason::Callback(callback) => {
                    self.in_flight.ack = Some(callback.ack);
                    return Ok(callback.event);
                }
                WakeReason::Model(result) => {
                    let call = self.in_flight.model_call.as_ref();
                    let deltas = call.map(|call| call.deltas.drain()).unwrap_or_default();
                    deltas.iter().for_each(|delta| self.handle_delta(delta));
                    self.flush_streams();
                    self.transcript.flush_deltas(self.deps.clock.now_ms(), true);
                    let call = self.in_flight.model_call.take();
                    let cost_bound =
                        call.map_or(CostBound { spend: Nanos(0), tokens: 0 }, |call| call.cost_bound);
                    return Ok(self.model_event(*result, cost_bound));
                }
                WakeReason::Task(Some(Ok(TaskResult::Tool(index, result)))) => {
                    return Ok(ThreadEvent::ToolDone { index, result });
                }
                WakeReason::Task(Some(Ok(TaskResult::Dispatched(index, result, redacted)))) => {
                    self.redacted.merge(redacted);
                    return Ok(ThreadEvent::ToolDone { index, result });
                }
                WakeReason::Task(Some(Ok(TaskResult::Hook(result)))) => {
                    self.in_flight.hook_deadline = None;
                    return Ok(ThreadEvent::HookDone { result });
                }
                // A call is never aborted alone: the whole process is ending, and what came of the call is not known.
                WakeReason::Task(Some(Err(error))) if error.is_cancelled() => std::future::pending().await,
                WakeReason::Task(Some(Err(error))) => return Ok(self.failed_task_event(&error.to_string())),
                WakeReason::Task(None) => {}
                WakeReason::SleepDone => {
                    self.in_flight.sleep = None;
                    return Ok(ThreadEvent::BackoffElapsed);
                }
                WakeReason::HookExpired => {
                    self.in_flight.stop_tasks().await;
                    let seconds = self.state.spec.template.config.resilience.call_hook_timeout_ms / 1000;
                    let error = format!("it took longer than {seconds} s");
                    return Ok(ThreadEvent::HookDone { result: json!({"status": "error", "error": error}) });
                }
                WakeReason::ReservationDue => {
                    if let Some(event) = self.retry_reservation().await? {
                        return Ok(event);
                    }
                }
                WakeReason::FilesDue => self.write_due_files(false)?,
            }
        }
    }

    async fn wait(&mut self) -> WakeReason {
        let (time_left, due_in) = (self.time_left(), self.next_write_in());
        let hook_deadline = self.in_flight.hook_deadline.as_ref().map(|(deadline, _)| *deadline);
        let in_flight = &mut self.in_flight;
        let has_tasks = !in_flight.tasks.is_empty();
        let has_call = in_flight.model_call.is_some();
        let response = std::future::poll_fn(|task| match &mut in_flight.model_call {
            Some(call) => call.poll(task),
            None => Poll::Pending,
        });
        tokio::select! {
            biased;
            () = self.signal.cancel_token.cancelled() => WakeReason::Cancelled,
            Some(child) = in_flight.child_started.next() => WakeReason::Child(child),
            Some(callback) = in_flight.callback_events.next() => WakeReason::Callback(Box::new(callback)),
            reason = response, if has_call => reason,
            done = in_flight.tasks.join_next(), if has_tasks => WakeReason::Task(done),
            () = sleep_or_pending(in_flight.sleep.as_mut()) => WakeReason::SleepDone,
            () = pause_or_pending(in_flight.budget_wait.as_mut()) => WakeReason::ReservationDue,
            () = tokio::time::sleep(time_left.unwrap_or_default()), if time_left.is_some() => WakeReason::Expired,
            () = tokio::time::sleep_until(hook_deadline.unwrap_or_else(Instant::now)), if hook_deadline.is_some() => {
                WakeReason::HookExpired
            }
            () = tokio::time::sleep(due_in.unwrap_or_default()), if due_in.is_some() => WakeReason::FilesDue,
        }
    }

    /// How long it may still be at work.
    fn time_left(&self) -> Option<Duration> {
        // Waiting for others' money does not use up its own time.
        if self.state.is_waiting_for_budget() {
            return None;
        }
        let max_ms = self.state.limits.duration_seconds?.saturating_mul(1000);
        Some(Duration::from_millis(
            max_ms.saturating_sub(self.timer.elapsed_ms(&self.state, &*self.deps.clock)),
        ))
    }

    /// Its time is over.
    async fn expire(&mut self) -> ThreadEvent {
        let (spend, partial) = self.stop_in_flight().await;
        ThreadEvent::Expired { spend, partial }
    }

    /// Ends what is outstanding. A model call that was on its way is charged its prompt and what had arrived of its
    /// answer, which is kept.
    async fn stop_in_flight(&mut self) -> (Nanos, Option<String>) {
        let call = self.in_flight.model_call.as_ref();
        let deltas = call.map(|call| call.deltas.drain()).unwrap_or_default();
        deltas.iter().for_each(|delta| self.handle_delta(delta));
        self.flush_streams();
        self.transcript.flush_deltas(self.deps.clock.now_ms(), true);
        let call = self.in_flight.model_call.take();
        let spend = call.as_ref().map_or(Nanos(0), |call| {
            self.state.spend_so_far(&self.state.charged_usage(&call.received), call.cost_bound.spend)
        });
        let partial = call.map(|call| call.received).filter(|text| !text.is_empty());
        self.in_flight.sleep = None;
        self.in_flight.budget_wait = None;
        self.in_flight.stop_tasks().await;
        (spend, partial)
    }

    fn model_event(&self, result: Result<ModelResponse, ModelError>, cost_bound: CostBound) -> ThreadEvent {
        let shared = self.state.active_model();
        let price = |response: &ModelResponse| shared.price.map_or(0, |price| price.cost(&response.usage));
        match result {
            Ok(mut response) => {
                // A server that does not say what was used has used what was reserved.
                let is_unreported =
                    shared.price.is_some() && !shared.is_free() && !response.usage.is_reported();
                response.usage = self.state.counted_usage(&response);
                let spend =
                    if is_unreported { cost_bound.spend } else { Nanos(price(&response)).min(Nanos::MAX) };
                ThreadEvent::ModelResponded { response, spend }
            }
            Err(mut error) => {
                if let Some(partial) = &mut error.partial {
                    partial.usage = self.state.possible_usage(partial);
                }
                // What was used is said at the end: before it, the numbers are those of the beginning.
                let known = error.partial.as_ref().filter(|partial| partial.is_complete());
                let known = known.filter(|partial| partial.usage.output_tokens > 0);
                let is_unknown = error.reached_server
                    && !error.is_refusal()
                    && known.is_none()
                    && cost_bound.spend > Nanos(0);
                let spend = match known {
                    Some(partial) => Nanos(price(partial)).min(Nanos::MAX),
                    None if is_unknown => {
                        let usage = self.state.charged_usage_so_far(error.partial.as_ref());
                        if let Some(partial) = &mut error.partial {
                            partial.usage = usage;
                        }
                        self.state.spend_so_far(&usage, cost_bound.spend)
                    }
                    None => Nanos(0),
                };
                ThreadEvent::ModelFailed { error, spend, is_unknown, jitter: (self.deps.jitter)() }
            }
        }
    }

    /// A task that ended without an answer: the tool's code is at fault, the thread continues.
    fn failed_task_event(&self, error: &str) -> ThreadEvent {
        let message = format!("the call broke off: {error}");
        match self.state.running_tools().first() {
            Some((index, _)) => {
                let content = ResultEnvelope::failure(&message).to_string();
                ThreadEvent::ToolDone { index: *index, result: ToolResult::failure(content) }
            }
            None => ThreadEvent::HookDone { result: ResultEnvelope::failure(&message) },
        }
    }

    /// Words on their way: told at once, written now and then, both without secrets.
    fn handle_delta(&mut self, delta: &ResponseDelta) {
        let Some(call) = &mut self.in_flight.model_call else { return };
        match delta {
            ResponseDelta::Text(text) => {
                let shown = call.text.push(text);
                self.emit_text(shown);
            }
            ResponseDelta::Reasoning(text) => {
                let shown = call.reasoning.push(text);
                self.notify_delta(&ResponseDelta::Reasoning(shown));
            }
            ResponseDelta::CallStarted { .. } => self.notify_delta(delta),
        }
    }

    /// What was held back of the words, once no more come.
    fn flush_streams(&mut self) {
        let Some(call) = &mut self.in_flight.model_call else { return };
        let (text, reasoning) = (call.text.finish(), call.reasoning.finish());
        self.notify_delta(&ResponseDelta::Reasoning(reasoning));
        self.emit_text(text);
    }

    fn emit_text(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        let events = &self.state.spec.template.config.events;
        let throttle = events.event("cognition_out_delta").map_or(100, |event| event.throttle_ms);
        let now = self.deps.clock.now_ms();
        let chunk = self.in_flight.model_call.as_mut().map_or(0, |call| {
            call.chunk += 1;
            call.received.push_str(&text);
            call.chunk - 1
        });
        let is_written = self.transcript.push_delta(&text, chunk, now, throttle);
        self.notify_delta(&ResponseDelta::Text(text));
        if is_written {
            self.notify_released();
        }
    }

    fn notify_delta(&self, delta: &ResponseDelta) {
        let is_empty =
            matches!(delta, ResponseDelta::Text(text) | ResponseDelta::Reasoning(text) if text.is_empty());
        if let Some(listener) = self.deps.listener.as_ref().filter(|_| !is_empty) {
            listener.delta(self.state.spec.instance.thread_id.as_str(), delta);
        }
    }
}

/// The pause before the next attempt to reserve, if a call waits for it.
async fn pause_or_pending(wait: Option<&mut BudgetWait>) {
    match wait {
        Some(wait) => wait.pause().await,
        None => std::future::pending().await,
    }
}

async fn sleep_or_pending<F: Future<Output = ()> + Unpin>(sleep: Option<F>) {
    match sleep {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}
