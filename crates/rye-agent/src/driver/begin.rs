//! Beginning effects: a model call, a tool, a hook, a child, a pause.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lillux::Cancel;
use rye_engine::verbs::execute::Waits;
use rye_item::ItemType;
use rye_model::Request;
use serde_json::{Map, Value, json};

use super::next::{Call, Deltas, Done};
use super::{Began, DriveError, Thread};
use crate::capability::Permitted;
use crate::dispatch::Dispatch;
use crate::door::{DEEPEST, Ground, Way};
use crate::facts::{Rules, ThreadFacts};
use crate::machine::{ToolResult, Worst};
use crate::redact::{Flow, Redactor};
use crate::shape::{self, Artifacts};
use crate::thread_id::ThreadId;

/// How long work waits for its turn at most.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How many calls of one answer are made at once.
const MOST_AT_ONCE: usize = 16;

/// Something to begin.
pub(super) enum Start {
    /// Ask the model.
    Model { request: Request, worst: Worst },
    /// Run a hook's action.
    Hook { hook: String, action: Permitted },
    /// Make a tool call.
    Tool { index: usize, action: Permitted },
    /// Read on in a long result.
    Artifact { index: usize, params: Map<String, Value> },
    /// Start a child.
    Spawn { index: usize, action: Permitted, child: ThreadId },
    /// Look at or steer other threads.
    Orchestrate { index: usize, action: Permitted },
    /// Wait.
    Sleep(u64),
}

impl Thread {
    pub(super) fn begin(&mut self, start: Start) -> Result<(), DriveError> {
        let spec = Arc::clone(&self.state.spec);
        let ending = self.signal.ending.child_token();
        match start {
            Start::Model { request, worst } => {
                let (provider, deltas) = (Arc::clone(&self.provider), Deltas::default());
                let heard = deltas.clone();
                let future = Box::pin(async move {
                    let tell = move |delta| heard.push(delta);
                    provider.complete(&request, &tell).await
                });
                let flow = || Flow::new(Arc::clone(&self.doors.redactor));
                let (words, thoughts) = (flow(), flow());
                self.outstanding.call = Some(Call { worst, future, deltas, chunk: 0, words, thoughts });
            }
            Start::Hook { hook, action } if is_directive(&action) && !self.state.is_starting() => {
                let mut call = action.action().clone();
                if let Some(text) = self.state.conversation_to_summarise() {
                    call.options.insert("transcript_content".to_owned(), Value::from(text));
                }
                let running = Arc::clone(&self.doors.children).run_for_hook(spec, hook, call, ending);
                self.outstanding.tasks.spawn(async move { Done::Hook(running.await) });
            }
            Start::Hook { action, .. } => {
                let (dispatch, facts, cancel) =
                    (Arc::clone(&self.doors.dispatch), self.facts(), self.outstanding.cancel()?);
                self.in_turn(move |waits| {
                    let facts = Arc::new(ThreadFacts { waits: Some(waits), ..facts });
                    Done::Hook(dispatched(&*dispatch, &action, &facts, &cancel))
                });
            }
            Start::Tool { index, action } => {
                let artifacts = self.doors.artifacts.clone();
                let most = self.state.most_characters();
                let cancel = self.outstanding.cancel()?;
                let dispatch = Arc::clone(&self.doors.dispatch);
                let facts = self.facts_with_door(index);
                let redactor = Arc::clone(&self.doors.redactor);
                self.in_turn(move |waits| {
                    let facts = Arc::new(ThreadFacts { waits: Some(waits), ..facts });
                    let began = Instant::now();
                    let envelope = dispatched(&*dispatch, &action, &facts, &cancel);
                    let artifacts = artifacts.as_deref();
                    Done::Tool(index, result(&action, &redactor, envelope, most, artifacts, began))
                });
            }
            Start::Artifact { index, params } => {
                let artifacts = self.doors.artifacts.clone();
                self.outstanding.tasks.spawn_blocking(move || {
                    let slice = match artifacts {
                        Some(artifacts) => shape::read_artifact(&*artifacts, &params),
                        None => json!({"status": "error", "error": "no artifacts are kept"}),
                    };
                    let is_error = slice.get("status").and_then(Value::as_str) == Some("error");
                    Done::Tool(
                        index,
                        ToolResult { content: slice.to_string(), is_error, duration_ms: 0, child: None },
                    )
                });
            }
            Start::Spawn { index, action, child } => {
                let by = action.action().item_id.clone().filter(|_| !is_directive(&action));
                let began = self.began(index, by.unwrap_or_else(|| "rye_execute".to_owned()), child);
                let running =
                    Arc::clone(&self.doors.children).spawn(spec, action.action().clone(), ending, began);
                self.outstanding.tasks.spawn(async move { Done::Tool(index, running.await) });
            }
            Start::Orchestrate { index, action } => {
                let running =
                    Arc::clone(&self.doors.children).orchestrate(spec, action.action().clone(), ending);
                self.outstanding.tasks.spawn(async move { Done::Tool(index, running.await) });
            }
            Start::Sleep(ms) => {
                self.outstanding.sleep = Some(Box::pin(tokio::time::sleep(Duration::from_millis(ms))));
            }
        }
        Ok(())
    }

    /// The result of the `nth` call of an answer, if it has one at once: of a tool that touches nothing, which may be
    /// called before the call is written down, since to call it again changes nothing.
    pub(super) fn result_at_once(
        &mut self,
        action: &Permitted,
        nth: usize,
    ) -> Result<Option<ToolResult>, DriveError> {
        // Many of them would keep others from going on.
        if nth > MOST_AT_ONCE {
            return Ok(None);
        }
        let began = Instant::now();
        let (facts, cancel) = (Arc::new(self.facts()), self.outstanding.cancel()?);
        let envelope = self.doors.dispatch.dispatch_at_once(action, &facts, &cancel);
        let artifacts = self.doors.artifacts.as_deref();
        let most = self.state.most_characters();
        let redactor = &self.doors.redactor;
        Ok(envelope.map(|envelope| result(action, redactor, envelope, most, artifacts, began)))
    }

    /// Does work that blocks when it is its turn: many threads do not get in each other's way, and those that wait for
    /// others do not count.
    fn in_turn(&mut self, work: impl FnOnce(Waits) -> Done + Send + 'static) {
        let turns = Arc::clone(&self.doors.turns);
        self.outstanding.tasks.spawn(async move {
            // Turns keep order, nothing more: those who do not end are passed by.
            let turn = tokio::time::timeout(PATIENCE, turns.acquire_owned()).await;
            let turn = Arc::new(Mutex::new(turn.ok().and_then(Result::ok)));
            let waits = Waits::new(move || drop(turn.lock().unwrap_or_else(PoisonError::into_inner).take()));
            match tokio::task::spawn_blocking(move || work(waits)).await {
                Ok(done) => done,
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // The process ends.
                Err(_) => std::future::pending().await,
            }
        });
    }

    fn began(&mut self, index: usize, by: String, child: ThreadId) -> Began {
        Began { index, by, child, sender: self.outstanding.began.sender() }
    }

    /// The same, with a door for the tool of this call.
    fn facts_with_door(&mut self, index: usize) -> ThreadFacts {
        let facts = self.facts();
        let ground = Ground {
            spec: Arc::clone(&self.state.spec),
            index,
            call: format!("{}.{index}", self.state.calls),
            deepest: self.state.limits.depth.unwrap_or(DEEPEST),
            facts: facts.clone(),
            dispatch: Arc::clone(&self.doors.dispatch),
            children: Arc::clone(&self.doors.children),
            issuer: Arc::clone(&self.doors.tokens),
            clock: Arc::clone(&self.doors.clock),
            redactor: Arc::clone(&self.doors.redactor),
            began: self.began(index, String::new(), self.state.spec.own.thread_id.clone()),
            asked: self.outstanding.asked.sender(),
            workers: tokio::runtime::Handle::current(),
            requests: AtomicU64::new(0),
        };
        ThreadFacts { door: Some(Arc::new(Way::new(ground))), ..facts }
    }

    /// What tools of this thread may know of it.
    pub(super) fn facts(&self) -> ThreadFacts {
        let spec = &self.state.spec;
        ThreadFacts {
            thread_id: spec.own.thread_id.clone(),
            cost: self.state.cost,
            is_cancelled: self.signal.ending.is_cancelled(),
            rules: Arc::clone(spec) as Arc<dyn Rules>,
            budget: self.doors.budget.clone(),
            door: None,
            waits: None,
        }
    }
}

/// Does it, unless it was asked to end before it was its turn.
fn dispatched(
    dispatch: &dyn Dispatch,
    action: &Permitted,
    facts: &Arc<ThreadFacts>,
    cancel: &Cancel,
) -> Value {
    match cancel.is_cancelled() {
        true => json!({"status": "error", "error": "cancelled before it began"}),
        false => dispatch.dispatch(action, facts, cancel),
    }
}

/// What the model sees of an envelope.
fn result(
    action: &Permitted,
    redactor: &Redactor,
    envelope: Value,
    most: usize,
    artifacts: Option<&dyn Artifacts>,
    began: Instant,
) -> ToolResult {
    let shaped = shape::for_model(action.action(), envelope, most, artifacts, redactor);
    let duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    ToolResult { content: shaped.content, is_error: shaped.is_error, duration_ms, child: None }
}

fn is_directive(permitted: &Permitted) -> bool {
    permitted.action().item_type == Some(ItemType::Directive)
}
