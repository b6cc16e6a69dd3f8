//! Waiting: for the model, tools, hooks, children, a pause, the end of the thread's time, or somebody who wants it to
//! end.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use lillux::Cancel;
use rye_model::{Answer, Delta, Failure};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use super::{DriveError, Later, Thread};
use crate::door::Asked;
use crate::machine::{Event, ToolResult, Worst};
use crate::money::Nanos;
use crate::redact::Flow;
use crate::thread_id::ThreadId;

/// How long tools that were asked to end are waited for; they are killed well before.
const TOOLS_END_WITHIN: Duration = Duration::from_secs(10);

/// What was begun and has not come back.
pub(super) struct Outstanding {
    pub(super) call: Option<Call>,
    pub(super) tasks: JoinSet<Done>,
    pub(super) sleep: Option<Pin<Box<Sleep>>>,
    cancel: Option<Cancel>,
    /// Children that have begun.
    pub(super) began: Post<Birth>,
    /// What tools ask for while they run.
    pub(super) asked: Post<Asked>,
    /// Who waits until that is written down.
    waiting: Option<std::sync::mpsc::Sender<()>>,
}

type Birth = (usize, ThreadId, String);

impl Default for Outstanding {
    fn default() -> Self {
        Self {
            call: None,
            tasks: JoinSet::new(),
            sleep: None,
            cancel: None,
            began: Post(None),
            asked: Post(None),
            waiting: None,
        }
    }
}

/// A model call on its way.
pub(super) struct Call {
    pub(super) worst: Worst,
    pub(super) future: Later<'static, Result<Answer, Failure>>,
    pub(super) deltas: Deltas,
    pub(super) chunk: u64,
    /// What is said and thought, without secrets.
    pub(super) words: Flow,
    pub(super) thoughts: Flow,
}

impl Call {
    /// The answer, or words on their way to it.
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Woken> {
        if let Poll::Ready(result) = self.future.as_mut().poll(task) {
            return Poll::Ready(Woken::Model(Box::new(result)));
        }
        // They come while the answer is waited for, and from nowhere else.
        let deltas = self.deltas.take();
        if deltas.is_empty() { Poll::Pending } else { Poll::Ready(Woken::Deltas(deltas)) }
    }
}

/// How many pieces on their way are kept apart for whoever hears them. When nobody keeps up, the next are put together.
const MOST_DELTAS: usize = 256;

/// Words of the model on their way.
#[derive(Clone, Debug, Default)]
pub(super) struct Deltas(Arc<Mutex<Vec<Delta>>>);

impl Deltas {
    pub(super) fn push(&self, delta: Delta) {
        let mut deltas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if deltas.len() < MOST_DELTAS {
            return deltas.push(delta);
        }
        for last in deltas.iter_mut().rev() {
            match (last, &delta) {
                (Delta::Text(last), Delta::Text(more)) | (Delta::Reasoning(last), Delta::Reasoning(more)) => {
                    return last.push_str(more);
                }
                _ => {}
            }
        }
        deltas.push(delta);
    }

    fn take(&self) -> Vec<Delta> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What others send to a thread; most threads are never sent any.
pub(super) struct Post<T>(Option<(UnboundedSender<T>, UnboundedReceiver<T>)>);

impl<T> Post<T> {
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
pub(super) enum Done {
    Tool(usize, ToolResult),
    Hook(Value),
}

/// What woke the thread.
enum Woken {
    Cancelled,
    Expired,
    Model(Box<Result<Answer, Failure>>),
    Deltas(Vec<Delta>),
    Child(Birth),
    Asked(Box<Asked>),
    Task(Option<Result<Done, tokio::task::JoinError>>),
    Slept,
    /// Files have been behind for long enough.
    Behind,
}

impl Outstanding {
    /// How tools of this thread are asked to end; made when the first one needs it.
    pub(super) fn cancel(&mut self) -> std::io::Result<Cancel> {
        if self.cancel.is_none() {
            self.cancel = Some(Cancel::new()?);
        }
        self.cancel.clone().ok_or_else(|| std::io::Error::other("no cancel"))
    }

    /// What a tool asked for is written down.
    pub(super) fn tell_written(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            // It may have ended meanwhile.
            let _ = waiting.send(());
        }
    }
}

impl Drop for Outstanding {
    /// A thread that is ended by force leaves no tool running.
    fn drop(&mut self) {
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
    }
}

impl Thread {
    /// What happens next.
    pub(super) async fn next(&mut self) -> Result<Event, DriveError> {
        loop {
            match self.wait().await {
                Woken::Cancelled => {
                    let spend = self.stop_outstanding().await;
                    return Ok(Event::CancelRequested { reason: self.signal.reason(), spend });
                }
                Woken::Expired => return Ok(self.expired().await),
                Woken::Deltas(deltas) => {
                    deltas.iter().for_each(|delta| self.delta(delta));
                    // Words may come so quickly that nothing else gets its turn.
                    self.catch_up(false)?;
                    if self.time_left() == Some(Duration::ZERO) {
                        return Ok(self.expired().await);
                    }
                }
                Woken::Child((index, child, directive)) => {
                    return Ok(Event::ChildStarted { index, child, directive });
                }
                Woken::Asked(asked) => {
                    self.outstanding.waiting = Some(asked.written);
                    return Ok(asked.event);
                }
                Woken::Model(result) => {
                    let call = self.outstanding.call.as_ref();
                    let deltas = call.map(|call| call.deltas.take()).unwrap_or_default();
                    deltas.iter().for_each(|delta| self.delta(delta));
                    self.last_words();
                    self.projection.flush_deltas(self.doors.clock.now_ms(), true);
                    let call = self.outstanding.call.take();
                    let worst = call.map_or(Worst { spend: Nanos(0), tokens: 0 }, |call| call.worst);
                    return Ok(self.model_event(*result, worst));
                }
                Woken::Task(Some(Ok(Done::Tool(index, result)))) => {
                    return Ok(Event::ToolDone { index, result });
                }
                Woken::Task(Some(Ok(Done::Hook(result)))) => return Ok(Event::HookDone { result }),
                // Nobody ends a call alone: the whole process is ending, and what came of the call is not known.
                Woken::Task(Some(Err(error))) if error.is_cancelled() => std::future::pending().await,
                Woken::Task(Some(Err(error))) => return Ok(self.broken_task(&error.to_string())),
                Woken::Task(None) => {}
                Woken::Slept => {
                    self.outstanding.sleep = None;
                    return Ok(Event::Slept);
                }
                Woken::Behind => self.catch_up(false)?,
            }
        }
    }

    async fn wait(&mut self) -> Woken {
        let (left, due_in) = (self.time_left(), self.files_due_in());
        let outstanding = &mut self.outstanding;
        let has_tasks = !outstanding.tasks.is_empty();
        let has_call = outstanding.call.is_some();
        let answer = std::future::poll_fn(|task| match &mut outstanding.call {
            Some(call) => call.poll(task),
            None => Poll::Pending,
        });
        tokio::select! {
            biased;
            () = self.signal.ending.cancelled() => Woken::Cancelled,
            Some(birth) = outstanding.began.next() => Woken::Child(birth),
            Some(asked) = outstanding.asked.next() => Woken::Asked(Box::new(asked)),
            woken = answer, if has_call => woken,
            done = outstanding.tasks.join_next(), if has_tasks => Woken::Task(done),
            () = pause(outstanding.sleep.as_mut()) => Woken::Slept,
            () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => Woken::Expired,
            () = tokio::time::sleep(due_in.unwrap_or_default()), if due_in.is_some() => Woken::Behind,
        }
    }

    /// How long it may still be at work.
    fn time_left(&self) -> Option<Duration> {
        let most = self.state.limits.duration_seconds?.saturating_mul(1000);
        Some(Duration::from_millis(most.saturating_sub(self.state.elapsed_at(self.doors.clock.now_ms()))))
    }

    /// Its time is over.
    async fn expired(&mut self) -> Event {
        Event::Expired { spend: self.stop_outstanding().await }
    }

    /// Ends what is outstanding. A model call that was on its way is charged its reservation: nobody knows better.
    async fn stop_outstanding(&mut self) -> Nanos {
        let spend = self.outstanding.call.take().map_or(Nanos(0), |call| call.worst.spend);
        self.outstanding.sleep = None;
        if let Some(cancel) = &self.outstanding.cancel {
            cancel.cancel();
        }
        let tasks = &mut self.outstanding.tasks;
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(TOOLS_END_WITHIN, ended).await.is_err() {
            self.outstanding.tasks.abort_all();
        }
        self.outstanding.cancel = None;
        spend
    }

    fn model_event(&self, result: Result<Answer, Failure>, worst: Worst) -> Event {
        let shared = &self.state.spec.shared;
        let price = |answer: &Answer| shared.price.map_or(0, |price| price.of(&answer.usage));
        match result {
            Ok(mut answer) => {
                if shared.price.is_none() && !shared.is_free() && !answer.usage.is_reported() {
                    answer.usage = self.state.estimated(&answer);
                }
                // A server that does not say what was used has used what was set aside.
                let is_silent = shared.price.is_some() && !shared.is_free() && !answer.usage.is_reported();
                let spend = if is_silent { worst.spend } else { Nanos(price(&answer)).min(Nanos::MOST) };
                Event::Answered { answer, spend }
            }
            Err(failure) => {
                // What was used is said at the end: before it, the numbers are those of the beginning.
                let known = failure.partial.as_ref().filter(|partial| partial.is_ended());
                let known = known.filter(|partial| partial.usage.output_tokens > 0);
                let is_unknown = failure.reached_server
                    && !failure.is_refusal()
                    && known.is_none()
                    && worst.spend > Nanos(0);
                let spend = match known {
                    Some(partial) => Nanos(price(partial)).min(Nanos::MOST),
                    None if is_unknown => worst.spend,
                    None => Nanos(0),
                };
                Event::Failed { failure, spend, is_unknown, jitter: luck() }
            }
        }
    }

    /// A task that ended without an answer: the tool's code is at fault, the thread goes on.
    fn broken_task(&self, error: &str) -> Event {
        let message = format!("the call broke off: {error}");
        match self.state.running_tools().first() {
            Some((index, _)) => {
                let content = json!({"status": "error", "error": message}).to_string();
                Event::ToolDone { index: *index, result: ToolResult::refused(content) }
            }
            None => Event::HookDone { result: json!({"status": "error", "error": message}) },
        }
    }

    /// Words on their way: told at once, written now and then, both without secrets.
    fn delta(&mut self, delta: &Delta) {
        let Some(call) = &mut self.outstanding.call else { return };
        match delta {
            Delta::Text(text) => {
                let shown = call.words.push(text);
                self.say(shown);
            }
            Delta::Reasoning(text) => {
                let shown = call.thoughts.push(text);
                self.tell(&Delta::Reasoning(shown));
            }
            Delta::CallBegan { .. } => self.tell(delta),
        }
    }

    /// What was held back of the words, once no more come.
    fn last_words(&mut self) {
        let Some(call) = &mut self.outstanding.call else { return };
        let (words, thoughts) = (call.words.finish(), call.thoughts.finish());
        self.tell(&Delta::Reasoning(thoughts));
        self.say(words);
    }

    fn say(&mut self, text: String) {
        if text.is_empty() {
            return;
        }
        let events = &self.state.spec.shared.config.events;
        let throttle = events.event("cognition_out_delta").map_or(100, |event| event.throttle_ms);
        let now = self.doors.clock.now_ms();
        let chunk = self.outstanding.call.as_mut().map_or(0, |call| {
            call.chunk += 1;
            call.chunk - 1
        });
        self.projection.delta(&text, chunk, now, throttle);
        self.tell(&Delta::Text(text));
    }

    fn tell(&self, delta: &Delta) {
        let is_empty = matches!(delta, Delta::Text(text) | Delta::Reasoning(text) if text.is_empty());
        if let Some(listener) = self.doors.listener.as_ref().filter(|_| !is_empty) {
            listener.delta(self.state.spec.own.thread_id.as_str(), delta);
        }
    }
}

async fn pause<F: Future<Output = ()> + Unpin>(sleep: Option<F>) {
    match sleep {
        Some(sleep) => sleep.await,
        None => std::future::pending().await,
    }
}

/// Where in a spread of delays one falls, in thousandths.
fn luck() -> u32 {
    let mut bytes = [0; 4];
    match getrandom::fill(&mut bytes) {
        Ok(()) => u32::from_le_bytes(bytes) % 1001,
        Err(_) => 500,
    }
}
