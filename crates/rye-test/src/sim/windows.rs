//! The checker's own account of budgets of a day: what is spent and reserved in each, from the commits alone.

use std::collections::BTreeMap;

use rye_store::{CommitOutcome, RollingBudget, ThreadCommit};
use rye_thread::thread_id::ThreadId;

use super::world::World;

/// A budget's scope, and the beginning of its day.
type WindowKey = (String, u64);

/// What counts in one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WindowSum {
    spent: u64,
    reserved: u64,
}

/// All windows in which anything was spent, and the calls in flight.
#[derive(Default)]
pub(super) struct Windows {
    sums: BTreeMap<WindowKey, WindowSum>,
    in_flight: BTreeMap<(ThreadId, u64), (u64, Vec<WindowKey>)>,
}

fn window_key(budget: &RollingBudget) -> WindowKey {
    (budget.scope.key(), budget.starts_ms)
}

impl Windows {
    /// Counts what a commit that was accepted has settled and reserved.
    pub(super) fn count(&mut self, commit: &ThreadCommit, outcome: &CommitOutcome) {
        let keys = || commit.rolling.iter().map(window_key).collect::<Vec<_>>();
        for settlement in &commit.settlements {
            let known = self.in_flight.remove(&(commit.thread.clone(), settlement.call));
            let (reserved, keys) = known.unwrap_or_else(|| (0, keys()));
            let spend = match settlement.is_unknown {
                true => settlement.spend.0.min(reserved),
                false => settlement.spend.0,
            };
            for key in keys {
                let sum = self.sums.entry(key).or_default();
                sum.reserved = sum.reserved.saturating_sub(reserved);
                sum.spent += spend;
            }
        }
        let accepted = commit.reservation.filter(|_| *outcome == CommitOutcome::Done);
        if let Some(request) = accepted.filter(|request| request.spend.0 > 0) {
            for key in keys() {
                self.sums.entry(key).or_default().reserved += request.spend.0;
            }
            self.in_flight.insert((commit.thread.clone(), request.call), (request.spend.0, keys()));
        }
    }

    /// What must hold of these budgets: spent and reserved are within the limit, and are what the store says.
    pub(super) fn check(&self, world: &World, budgets: &[RollingBudget]) -> Vec<String> {
        let mut problems = Vec::new();
        if budgets.is_empty() {
            return problems;
        }
        let usages = world.store.rolling_usage(budgets).unwrap_or_default();
        if usages.len() != budgets.len() {
            problems.push("the store does not know its rolling budgets".to_owned());
        }
        for (budget, usage) in budgets.iter().zip(usages) {
            let sum = self.sums.get(&window_key(budget)).copied().unwrap_or_default();
            if sum.spent + sum.reserved > budget.limit.0 {
                problems.push(format!("{budget}: {sum:?}, {} allowed", budget.limit.0));
            }
            if (usage.used.0, usage.reserved.0) != (sum.spent, sum.reserved) {
                problems.push(format!("{budget}: the store has {usage:?}, its calls come to {sum:?}"));
            }
        }
        problems
    }
}
