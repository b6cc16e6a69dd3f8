//! The way from one driver to the store: it dies before or after a commit, freezes, and has its planted bugs.

use std::sync::{Arc, Mutex};

use rye_agent::driver::{BoxFuture, ThreadJournal};
use rye_store::{Claim, CommitOutcome, ReserveRequest, Settlement, ThreadCommit, ThreadStoreError};
use rye_thread::spec::ThreadSpec;
use rye_thread::thread_id::ThreadId;

use super::host::Process;
use super::templates::ROOT_DIRECTIVE;
use super::world::{World, lock};
use super::{CrashPlan, PlantedBug};

/// No host dies after so many have.
const MAX_CRASHES: u64 = 6;

/// Where the records of one driver go.
pub(super) struct SimJournal {
    pub(super) world: Arc<World>,
    pub(super) process: Arc<Process>,
    pub(super) thread: ThreadId,
    pub(super) claim: Claim,
    /// The call that may be made: its reservation was accepted.
    pub(super) reserved_call: Mutex<Option<u64>>,
    /// The directives that its spending counts for.
    directives: Vec<String>,
    /// When its driver began.
    pub(super) started_ms: u64,
    /// A reservation that a planted bug holds back.
    held_back: Mutex<Option<ReserveRequest>>,
}

impl SimJournal {
    pub(super) fn new(world: &Arc<World>, process: &Arc<Process>, spec: &ThreadSpec, claim: Claim) -> Self {
        let above = spec.instance.parent.as_ref().map(|_| ROOT_DIRECTIVE.to_owned());
        Self {
            world: Arc::clone(world),
            process: Arc::clone(process),
            thread: spec.instance.thread_id.clone(),
            claim,
            directives: std::iter::once(spec.template.directive.clone()).chain(above).collect(),
            started_ms: world.now_ms(),
            reserved_call: Mutex::default(),
            held_back: Mutex::default(),
        }
    }

    /// Whether this driver's claim is still the thread's latest.
    pub(super) fn is_current(&self) -> bool {
        lock(&self.world.claims).get(&self.thread) == Some(&self.claim)
    }

    fn submit(&self, mut commit: ThreadCommit) -> Result<CommitOutcome, ThreadStoreError> {
        let reservation = commit.reservation;
        if commit.reservation.is_some() || !commit.settlements.is_empty() {
            commit.rolling = self.world.scenario.budgets(&self.directives, commit.at_ms);
        }
        match self.world.options.bug {
            PlantedBug::None | PlantedBug::LostCancelRequest => {}
            PlantedBug::MissingFence => {
                let latest = lock(&self.world.claims).get(&self.thread).copied();
                commit.claim = latest.unwrap_or(commit.claim);
            }
            PlantedBug::ReservationAfterCall => {
                if let Some(late) = lock(&self.held_back).take() {
                    let mut first = ThreadCommit::new(commit.thread.clone(), commit.claim, commit.at_ms);
                    first.reservation = Some(late);
                    // Refused or not: the call was made.
                    let _ = self.world.store.commit_blocking(first);
                }
                *lock(&self.held_back) = commit.reservation.take();
            }
            PlantedBug::DoubleSettlement => {
                let again = |settlement: &Settlement| Settlement {
                    call: settlement.call + 1_000_000,
                    is_unknown: false,
                    ..settlement.clone()
                };
                let twice: Vec<Settlement> = commit.settlements.iter().map(again).collect();
                commit.settlements.extend(twice);
            }
        }
        let outcome = self.world.store.commit_blocking(commit.clone());
        if let Ok(outcome) = &outcome {
            if commit.is_last {
                // The store has given the claim a later number.
                lock(&self.world.claims).remove(&self.thread);
            }
            if *outcome == CommitOutcome::Done {
                *lock(&self.reserved_call) = reservation.map(|request| request.call);
            }
            super::checker::check_commit(&self.world, &commit, outcome);
        }
        outcome
    }
}

impl ThreadJournal for SimJournal {
    fn commit(&self, commit: ThreadCommit) -> BoxFuture<'_, Result<CommitOutcome, ThreadStoreError>> {
        Box::pin(async move {
            self.process.freeze_by_chance(&self.world);
            self.process.wait_until_thawed(&self.world).await;
            let (records, status) = (commit.records.len(), commit.status.as_ref().map(|change| change.to));
            let crash = self.process.crash_point(&self.world);
            if crash == Some(true) {
                return self.process.die(&self.world).await;
            }
            let outcome = self.submit(commit);
            self.world.trace(format_args!(
                "{} {} commits {records} {status:?}: {outcome:?}",
                self.process.owner.host, self.thread
            ));
            if crash == Some(false) {
                return self.process.die(&self.world).await;
            }
            outcome
        })
    }
}

impl Process {
    /// Whether the host dies at the next write: before it, or after it.
    pub(super) fn crash_point(&self, world: &World) -> Option<bool> {
        let number = world.next_write();
        match world.options.crashes {
            CrashPlan::Never => None,
            CrashPlan::At { write, is_before } => (write == number).then_some(is_before),
            CrashPlan::Random => {
                let is_crash = world.rng.chance(25) && world.crashes() < MAX_CRASHES;
                is_crash.then(|| world.rng.chance(500))
            }
        }
    }
}
