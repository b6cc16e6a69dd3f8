//! Waiting for money that other calls of the tree have reserved, and for a place among a parent's children.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use rye_store::{ReserveRequest, SpawnCaps, ThreadStore};
use tokio::time::{Instant, Sleep};

use super::effects::PendingEffect;
use super::{CancelSignal, DriverError, MillisClock, ThreadDriver};
use crate::machine::{CostBound, Effect, ThreadEvent, step};
use crate::store::{Claim, CommitOutcome, JournalRecord, ThreadCommit, ThreadStoreError};
use crate::thread_id::ThreadId;

/// How long it is until the first attempt, and at most between two.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(320)];

/// Attempts with growing pauses between them.
pub(super) struct RetryTimer {
    delay: Duration,
    sleep: Pin<Box<Sleep>>,
}

impl RetryTimer {
    fn new() -> Self {
        Self { delay: RETRY_DELAYS[0], sleep: Box::pin(tokio::time::sleep(RETRY_DELAYS[0])) }
    }

    /// Sets out on the next, longer pause.
    fn restart(&mut self) {
        self.delay = (self.delay * 2).min(RETRY_DELAYS[1]);
        self.sleep = Box::pin(tokio::time::sleep(self.delay));
    }
}

/// A call that waits for its reservation.
pub(super) struct BudgetWait {
    request: ReserveRequest,
    deadline: Instant,
    timer: RetryTimer,
}

impl BudgetWait {
    pub(super) fn new(call: u64, cost_bound: CostBound, timeout: Duration) -> Self {
        let request =
            ReserveRequest { call, spend: cost_bound.spend, tokens: cost_bound.tokens, can_wait: true };
        Self { request, deadline: Instant::now() + timeout, timer: RetryTimer::new() }
    }

    /// The end of the pause before the next attempt.
    pub(super) fn pause(&mut self) -> Pin<&mut Sleep> {
        self.timer.sleep.as_mut()
    }
}

impl ThreadDriver {
    /// Tries to reserve for the call that waits: its record and its reservation are kept together, or neither. What the
    /// machine has to decide comes back as an event.
    pub(super) async fn retry_reservation(&mut self) -> Result<Option<ThreadEvent>, DriverError> {
        let Some(mut wait) = self.in_flight.budget_wait.take() else { return Ok(None) };
        let at_ms = self.deps.clock.now_ms();
        let event = ThreadEvent::BudgetGranted;
        let body = serde_json::to_vec(&event).map_err(std::io::Error::other)?;
        let record = JournalRecord { at_ms, sequence: self.transcript.next_sequence(), body };
        let id = self.state.spec.instance.thread_id.clone();
        let commit = ThreadCommit {
            records: vec![record],
            reservation: Some(wait.request),
            needs_reservation: true,
            transcript_head: self.transcript.head(),
            ..ThreadCommit::new(id, self.claim, at_ms)
        };
        match self.deps.journal.commit(commit).await? {
            CommitOutcome::Done => {
                for effect in step(&mut self.state, at_ms, event) {
                    if let Effect::CallModel { request, cost_bound, .. } = effect {
                        self.start_effect(PendingEffect::Model { request, cost_bound })?;
                    }
                }
                Ok(None)
            }
            CommitOutcome::Refused(refusal) if !refusal.is_only_reserved() => {
                Ok(Some(ThreadEvent::BudgetRefused(refusal)))
            }
            CommitOutcome::Refused(refusal) if Instant::now() >= wait.deadline => {
                Ok(Some(ThreadEvent::BudgetWaitExpired(refusal)))
            }
            CommitOutcome::Refused(_) => {
                wait.timer.restart();
                self.in_flight.budget_wait = Some(wait);
                Ok(None)
            }
            CommitOutcome::Ended { status, .. } => Err(DriverError::EndedElsewhere(status)),
        }
    }
}

/// A child that waits for its place.
pub struct PlaceRequest<'a> {
    /// The child.
    pub thread: &'a ThreadId,
    /// The right to it.
    pub claim: Claim,
    /// How many may be at work.
    pub caps: SpawnCaps,
    /// How long it waits at most.
    pub timeout_ms: u64,
}

/// Waits until a child has its place among its siblings, and gives the event with which it begins then: `first`, or its
/// end if it is cancelled before or waits too long.
///
/// # Errors
/// When the store fails, or another process has the thread.
pub async fn wait_for_place(
    store: &Arc<dyn ThreadStore>,
    clock: &dyn MillisClock,
    request: &PlaceRequest<'_>,
    signal: &CancelSignal,
    first: ThreadEvent,
) -> Result<ThreadEvent, ThreadStoreError> {
    // Time of this process: another clock may be set back meanwhile.
    let deadline = Instant::now() + Duration::from_millis(request.timeout_ms);
    let mut timer = RetryTimer::new();
    let cancelled = |reason: String| ThreadEvent::CancelRequested {
        reason,
        spend: crate::money::Nanos(0),
        partial: None,
    };
    loop {
        if store.admit(request.thread, request.claim, request.caps, clock.now_ms()).await? {
            return Ok(first);
        }
        if Instant::now() >= deadline {
            let seconds = request.timeout_ms / 1000;
            return Ok(cancelled(format!(
                "no place among its parent's children after {seconds} s: max_concurrent_children is reached"
            )));
        }
        tokio::select! {
            biased;
            () = signal.cancel_token.cancelled() => return Ok(cancelled(signal.reason())),
            () = timer.sleep.as_mut() => timer.restart(),
        }
    }
}
