//! People: they let suspended threads continue, answer what threads ask, allow more a day, want threads ended, and fork them.

use std::sync::Arc;
use std::time::Duration;

use rye_agent::driver::ResumePoint;
use rye_store::{ApprovalDecision, ClaimPolicy, ThreadFilter};
use rye_thread::machine::{ApprovalAnswer, ThreadEvent, ThreadOutcome, ThreadState, fork_point};
use rye_thread::money::Nanos;
use rye_thread::spec::{ForkSource, ThreadSpec};
use rye_thread::status::{SuspendReason, ThreadStatus};
use rye_thread::thread_id::ThreadId;
use serde_json::Value;

use super::host::{PersonRequest, Process};
use super::world::{World, lock};

/// No one waits longer for a provider than this.
const MAX_PROVIDER_WAIT: Duration = Duration::from_secs(25);

impl Process {
    /// A thread has ended, or waits for a person; sometimes that person allows more, waits for the provider, or forks it.
    pub(super) async fn on_stopped(
        self: &Arc<Self>,
        world: &Arc<World>,
        id: &ThreadId,
        outcome: &ThreadOutcome,
        state: &ThreadState,
    ) {
        world.trace(format_args!("{} {id} stops: {}", self.owner.host, outcome.status));
        self.fork_by_chance(world, id, state).await;
        if outcome.status != ThreadStatus::Suspended {
            return;
        }
        let is_unanswered = outcome.reason == Some(SuspendReason::Provider);
        if !world.rng.chance(if is_unanswered { 800 } else { 400 }) {
            return;
        }
        if is_unanswered {
            let delay = lock(&world.backoffs).entry(id.clone()).or_default().next_delay();
            if delay > MAX_PROVIDER_WAIT {
                return;
            }
            tokio::time::sleep(delay).await;
        } else {
            world.pause(100, 20_000).await;
        }
        for request in state.pending_approvals() {
            let answer = ApprovalDecision {
                approved: true,
                message: None,
                changes: Value::Null,
                always: None,
                at_ms: world.now_ms(),
                by: "a person".to_owned(),
            };
            let _ = world.store.answer_approval(&request.id, &answer);
        }
        let more = Nanos(world.rng.range(50_000, 500_000));
        if outcome.reason == Some(SuspendReason::Budget) && world.rng.chance(700) {
            world.scenario.raise_budgets(more);
        }
        self.resume(world, id, ClaimPolicy::Free, Some(PersonRequest::Resume { more })).await;
    }

    /// Sometimes a thread that has stopped is forked at one of its turns.
    async fn fork_by_chance(self: &Arc<Self>, world: &Arc<World>, id: &ThreadId, state: &ThreadState) {
        if *lock(&world.scenario.forks_left) == 0 || !world.rng.chance(400) {
            return;
        }
        *lock(&world.scenario.forks_left) -= 1;
        let records = world.store.journal(id).unwrap_or_default();
        let events = records.iter().skip(1).filter_map(|record| {
            let event: ThreadEvent = serde_json::from_slice(&record.body).ok()?;
            Some((record.at_ms, event))
        });
        let turn = world.rng.chance(500).then(|| world.rng.range(0, state.cost.turns));
        let Ok(point) = fork_point(Arc::clone(&state.spec), events, turn) else { return };
        let mut spec: ThreadSpec = (*world.new_spec(world.new_id(), None)).clone();
        let source = ForkSource { thread_id: id.clone(), turn: point.turn, journal: String::new() };
        spec.instance.message = point.needs_message().then(|| "Go on.".to_owned());
        spec.instance.history = point.messages;
        spec.instance.forked_from = Some(source);
        if self.start_thread(world, &Arc::new(spec)).await {
            world.count(|report| report.forks += 1);
        }
    }

    /// Ends a thread that no host runs; one that a host runs is asked for in the store.
    async fn cancel(self: &Arc<Self>, world: &Arc<World>, id: &ThreadId) {
        if self.resume(world, id, ClaimPolicy::Free, Some(PersonRequest::Cancel)).await {
            return;
        }
        let is_ended = world.store.thread(id).ok().flatten().is_none_or(|row| row.status.is_terminal());
        if !is_ended && world.store.request_cancel(id, "no longer needed", world.now_ms()).is_ok() {
            world.trace(format_args!("{} asks for the end of {id}", self.owner.host));
            world.count(|report| report.cancel_requests += 1);
            lock(&world.checker).add_cancel_request(id, world.now_ms());
        }
    }
}

/// People who want threads ended, at moments of their own.
pub(super) fn ask_for_ends(world: &Arc<World>) {
    for _ in 0..world.scenario.cancel_count {
        let delay = Duration::from_millis(world.rng.range(100, 60_000));
        let world = Arc::clone(world);
        tokio::spawn(async move {
            tokio::time::sleep(delay).await;
            let live: Vec<Arc<Process>> =
                lock(&world.processes).iter().filter(|process| process.is_alive()).cloned().collect();
            let rows = world.store.threads(&ThreadFilter::default()).unwrap_or_default();
            if live.is_empty() || rows.is_empty() {
                return;
            }
            let pick = |count: usize| usize::try_from(world.rng.below(count as u64)).unwrap_or(0);
            let (process, row) = (Arc::clone(&live[pick(live.len())]), &rows[pick(rows.len())]);
            if !row.status.is_terminal() {
                // The command runs on that host, and ends with it.
                let (id, shared, host) = (row.id.clone(), Arc::clone(&world), Arc::clone(&process));
                process.spawn(async move { host.cancel(&shared, &id).await });
            }
        });
    }
}

/// The end of a thread that no host ran.
pub(super) fn terminated(point: &ResumePoint) -> ThreadEvent {
    let spend = point.interrupted.spend();
    let (reason, tokens) = ("no longer needed".to_owned(), point.interrupted.tokens());
    ThreadEvent::Terminated { status: ThreadStatus::Cancelled, reason, spend, tokens }
}

/// A person lets a thread continue with more.
pub(super) fn resumed(world: &World, state: &ThreadState, more: Nanos) -> ThreadEvent {
    let mut limits = state.limits;
    limits.spend = limits.spend.map(|spend| spend.plus(more));
    limits.turns = limits.turns.map(|turns| turns + world.rng.range(1, 5));
    let answers = state.pending_approvals().iter().map(|request| ApprovalAnswer {
        request_id: request.id.clone(),
        approved: true,
        message: None,
        by: "a person".to_owned(),
        always: None,
    });
    ThreadEvent::Resumed { limits, message: None, by: "a person".to_owned(), answers: answers.collect() }
}
