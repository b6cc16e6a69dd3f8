//! What must hold at each commit, at each call, and at the end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rye_agent::driver;
use rye_agent::transcript::{self, TranscriptStatus};
use rye_store::{CommitOutcome, JournalRecord, LedgerRow, ThreadCommit, ThreadFilter, ThreadRow};
use rye_thread::machine::{ThreadEvent, ThreadState, step};
use rye_thread::spec::ThreadSpec;
use rye_thread::status::{SuspendReason, ThreadStatus};
use rye_thread::thread_id::ThreadId;

use super::journal::SimJournal;
use super::windows::Windows;
use super::world::{World, lock, public_key};

/// What the checker knows.
#[derive(Default)]
pub(super) struct Checker {
    threads: BTreeMap<ThreadId, CheckedThread>,
    model_calls: BTreeMap<(ThreadId, u64), u64>,
    effects: BTreeMap<String, u64>,
    windows: Windows,
    /// When a person asked for the end of a thread that continued.
    cancel_requests: BTreeMap<ThreadId, u64>,
    /// What hooks made of calls, by the effect each call has.
    hooked_calls: BTreeMap<String, HookedCall>,
}

/// What a hook made of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookedCall {
    /// It must not be made.
    Blocked,
    /// It is made with other arguments.
    Changed,
}

/// A thread, replayed beside its driver.
struct CheckedThread {
    spec: Arc<ThreadSpec>,
    state: ThreadState,
    records: u64,
    takeovers: u64,
    ended: Option<ThreadStatus>,
}

impl Checker {
    /// A thread exists from here on.
    pub(super) fn add_thread(&mut self, spec: &Arc<ThreadSpec>) {
        let thread = CheckedThread {
            spec: Arc::clone(spec),
            state: ThreadState::new(Arc::clone(spec)),
            records: 1,
            takeovers: 0,
            ended: None,
        };
        self.threads.insert(spec.instance.thread_id.clone(), thread);
    }

    /// What a thread is.
    pub(super) fn spec(&self, id: &ThreadId) -> Option<Arc<ThreadSpec>> {
        self.threads.get(id).map(|thread| Arc::clone(&thread.spec))
    }

    /// A person wants a thread ended that a host runs.
    pub(super) fn add_cancel_request(&mut self, id: &ThreadId, at_ms: u64) {
        self.cancel_requests.entry(id.clone()).or_insert(at_ms);
    }

    /// A person lets a thread continue all the same.
    pub(super) fn forget_cancel_request(&mut self, id: &ThreadId) {
        self.cancel_requests.remove(id);
    }

    /// A thread was taken over.
    pub(super) fn add_takeover(&mut self, id: &ThreadId) {
        if let Some(thread) = self.threads.get_mut(id) {
            thread.takeovers += 1;
        }
    }
}

/// Steps through a commit's records, and compares the state with what the store holds now.
pub(super) fn check_commit(world: &World, commit: &ThreadCommit, outcome: &CommitOutcome) {
    if commit.needs_reservation && matches!(outcome, CommitOutcome::Refused(_)) {
        // Nothing of it was kept.
        return;
    }
    let mut problems = Vec::new();
    {
        let mut checker = lock(&world.checker);
        checker.windows.count(commit, outcome);
        problems.extend(checker.windows.check(world, &commit.rolling));
        let Some(thread) = checker.threads.get_mut(&commit.thread) else {
            drop(checker);
            return world.violation(format!("{} was never made", commit.thread));
        };
        for record in &commit.records {
            match serde_json::from_slice::<ThreadEvent>(&record.body) {
                Ok(event) => {
                    count_event(world, &event);
                    let model = thread.state.model_index();
                    drop(step(&mut thread.state, record.at_ms, event));
                    if thread.state.model_index() > model {
                        world.count(|report| report.fallbacks += 1);
                    }
                }
                Err(error) => problems.push(format!("{}: unreadable record: {error}", commit.thread)),
            }
            thread.records += 1;
        }
        let id = &commit.thread;
        if commit.cost.is_some_and(|cost| cost != thread.state.cost) {
            problems.push(format!("{id}: its driver's cost is not its journal's"));
        }
        if commit.reservation.is_some_and(|request| request.call != thread.state.calls) {
            problems.push(format!("{id}: another call is reserved than its journal makes"));
        }
        if let (Some(change), CommitOutcome::Done | CommitOutcome::Refused(_)) = (&commit.status, outcome) {
            if let Some(ended) = thread.ended {
                problems.push(format!("{id}: {} after {ended}", change.to));
            }
            thread.ended = change.to.is_terminal().then_some(change.to);
            if change.reason == Some(SuspendReason::Provider) {
                world.count(|report| report.provider_suspensions += 1);
            }
        }
        let row = world.store.thread(id).ok().flatten();
        problems.extend(compare_row(row.as_ref(), thread));
        let ledger = world.store.ledger(id).ok();
        if ledger.as_ref().map(|ledger| ledger.actual_spend) != Some(thread.state.cost.spend) {
            problems.push(format!(
                "{id}: its ledger has {:?}, its journal {}",
                ledger.map(|ledger| ledger.actual_spend.0),
                thread.state.cost.spend.0
            ));
        }
    }
    problems.extend(check_caps(world, &commit.thread));
    problems.into_iter().for_each(|problem| world.violation(problem));
}

/// Counts what the report tells of.
fn count_event(world: &World, event: &ThreadEvent) {
    if let ThreadEvent::BudgetRefused(refusal) | ThreadEvent::BudgetWaitExpired(refusal) = event
        && refusal.rolling.is_some()
    {
        world.count(|report| report.rolling_refusals += 1);
    }
}

/// Registry and journal agree.
fn compare_row(row: Option<&ThreadRow>, thread: &CheckedThread) -> Vec<String> {
    let id = &thread.spec.instance.thread_id;
    let Some(row) = row else { return vec![format!("{id} is not in the registry")] };
    let mut problems = Vec::new();
    let state = &thread.state;
    if row.status != state.status() {
        problems.push(format!("{id}: the registry says {}, the journal {}", row.status, state.status()));
    }
    if (row.cost, row.records) != (state.cost, thread.records) {
        problems.push(format!("{id}: the registry's cost or length is not the journal's"));
    }
    problems
}

/// For the thread and every ancestor: spent and reserved are within the cap.
fn check_caps(world: &World, id: &ThreadId) -> Vec<String> {
    let above = world.store.ancestors(id).unwrap_or_default();
    let mut problems = Vec::new();
    for id in std::iter::once(id).chain(above.iter().map(|row| &row.id)) {
        let Ok(LedgerRow { caps, subtree_spend, subtree_reserved, .. }) = world.store.ledger(id) else {
            problems.push(format!("{id} has no ledger"));
            continue;
        };
        let used = subtree_spend.plus(subtree_reserved);
        if caps.spend.is_some_and(|cap| used > cap) {
            problems.push(format!("{id}: {used:?} spent and reserved, {:?} allowed", caps.spend));
        }
    }
    problems
}

/// A model is called once for each reservation that is durable, by the thread that it is the current model of, and not after
/// a request to end the thread was there to be seen.
pub(super) fn check_model_call(journal: &SimJournal, call: Option<u64>, model: usize) {
    let (world, thread) = (&journal.world, &journal.thread);
    world.count(|report| report.model_calls += 1);
    world.trace(format_args!("{} {thread} calls the model: {call:?}", journal.process.owner.host));
    let Some(call) = call else {
        return world.violation(format!("{thread}: a model call without a reservation"));
    };
    let open = world.store.open_reservations(thread).unwrap_or_default();
    if journal.is_current() && !open.iter().any(|reservation| reservation.call == call) {
        world.violation(format!("{thread}: call {call} was made before its reservation was durable"));
    }
    let (count, allowed) = {
        let mut checker = lock(&world.checker);
        let known = checker.threads.get(thread);
        let takeovers = known.map_or(0, |thread| thread.takeovers);
        let current = known.map_or(0, |thread| thread.state.model_index());
        let is_seen =
            |at: &u64| journal.process.polled_ms.load(Ordering::Relaxed) > (*at).max(journal.started_ms);
        let is_ignored = checker.cancel_requests.get(thread).is_some_and(is_seen);
        if journal.is_current() && current != model {
            world.violation(format!("{thread}: model {model} is called, its journal is at {current}"));
        }
        if is_ignored {
            world.violation(format!("{thread}: call {call} was made after its end was asked for"));
        }
        let count = checker.model_calls.entry((thread.clone(), call)).or_default();
        *count += 1;
        (*count, 1 + takeovers)
    };
    if count > allowed {
        world.violation(format!("{thread}: call {call} was made {count} times, {allowed} are allowed"));
    }
}

/// A hook has blocked or changed a call.
pub(super) fn add_hooked_call(world: &World, effect: &str, change: HookedCall) {
    world.count(|report| report.hooked_calls += 1);
    lock(&world.checker).hooked_calls.insert(effect.to_owned(), change);
}

/// A call is made as the hook before it left it.
pub(super) fn check_hooked_call(world: &World, effect: &str, is_changed: bool) {
    let change = lock(&world.checker).hooked_calls.get(effect).copied();
    let is_right = match change {
        None => !is_changed,
        Some(HookedCall::Changed) => is_changed,
        Some(HookedCall::Blocked) => false,
    };
    if !is_right {
        world.violation(format!("{effect} was done, a hook had it {change:?}"));
    }
}

/// A tool that is not idempotent has its effect at most once.
pub(super) fn check_effect(world: &World, thread: &ThreadId, key: &str, is_idempotent: bool) {
    world.count(|report| report.tool_effects += 1);
    world.trace(format_args!("{thread} has an effect: {key}"));
    let (count, takeovers) = {
        let mut checker = lock(&world.checker);
        let takeovers = checker.threads.get(thread).map_or(0, |thread| thread.takeovers);
        let count = checker.effects.entry(key.to_owned()).or_default();
        *count += 1;
        (*count, takeovers)
    };
    let allowed = if is_idempotent { 1 + takeovers } else { 1 };
    if count > allowed {
        world.violation(format!("{key} had its effect {count} times, {allowed} are allowed"));
    }
}

/// What must hold when all is done: every thread has stopped, a replay of its journal is its state, its transcript is
/// whole, and the ledger's sums are those of its calls.
pub(super) fn finish(world: &World) {
    let rows = world.store.threads(&ThreadFilter::default()).unwrap_or_default();
    world.count(|report| report.threads = rows.len() as u64);
    let mut problems = world.store.audit().unwrap_or_else(|error| vec![error.to_string()]);
    let checker = lock(&world.checker);
    for row in &rows {
        let Some(thread) = checker.threads.get(&row.id) else { continue };
        problems.extend(compare_row(Some(row), thread));
        if !row.status.is_terminal() && row.status != ThreadStatus::Suspended {
            problems.push(format!("{} never stopped: {}", row.id, row.status));
        }
        problems.extend(check_journal(world, row, thread));
        problems.extend(check_transcript(world, row, thread));
    }
    drop(checker);
    problems.into_iter().for_each(|problem| world.violation(problem));
}

fn check_journal(world: &World, row: &ThreadRow, thread: &CheckedThread) -> Option<String> {
    let records: Vec<JournalRecord> = match world.store.journal(&row.id) {
        Ok(records) => records,
        Err(error) => return Some(error.to_string()),
    };
    let replayed = match driver::replay(Arc::clone(&thread.spec), records.get(1..).unwrap_or_default()) {
        Ok(state) => state,
        Err(error) => return Some(format!("{}: {error}", row.id)),
    };
    let is_same = format!("{replayed:?}") == format!("{:?}", thread.state);
    (!is_same).then(|| format!("{}: a replay of its journal is another state", row.id))
}

/// Transcript, registry and journal agree. The file of a thread whose process died after its last commit may be behind: it
/// follows from the journal, and is whole once it was brought up to it.
fn check_transcript(world: &World, row: &ThreadRow, thread: &CheckedThread) -> Option<String> {
    let path = transcript::path(&world.threads_dir, &row.id);
    let key = public_key();
    let keys = |fingerprint: &lillux::Fingerprint| (key.fingerprint() == *fingerprint).then(|| key.clone());
    let verify = || transcript::verify(&path, &row.id, row.transcript_head, &keys);
    let mut report = match verify() {
        Ok(report) => report,
        Err(error) => return Some(format!("{}: its transcript: {error}", row.id)),
    };
    let mut is_repaired = false;
    if report.status == TranscriptStatus::Truncated {
        let records = world.store.journal(&row.id).unwrap_or_default();
        let records = records.get(1..).unwrap_or_default();
        let (spec, expected) = (Arc::clone(&thread.spec), row.transcript_head);
        drop(driver::replay_with_transcript(spec, records, &world.threads_dir, expected));
        report = verify().unwrap_or(report);
        is_repaired = true;
        world.count(|report| report.repaired_transcripts += 1);
    }
    // The signature at the end is not in the journal.
    let is_whole = match report.status {
        TranscriptStatus::Valid => true,
        TranscriptStatus::UnsignedTail | TranscriptStatus::Unsigned => is_repaired,
        TranscriptStatus::Tampered | TranscriptStatus::Truncated => false,
    };
    (!is_whole).then(|| format!("{}: its transcript is {:?}: {:?}", row.id, report.status, report.problems))
}
