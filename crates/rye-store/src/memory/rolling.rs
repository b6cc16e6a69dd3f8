//! Budgets of a day or a month: what is spent and reserved in each period.

use std::collections::BTreeMap;

use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

use crate::{BudgetPeriod, BudgetRefusal, ReserveRequest, RollingBudget, RollingUsage};

/// A period of a budget: its scope, its length, its start and its end.
type PeriodKey = (String, BudgetPeriod, u64, u64);

/// What counts in one period.
#[derive(Clone, Copy, Debug, Default)]
struct PeriodSum {
    spent: u64,
    reserved: u64,
}

/// A call that counts in a period.
#[derive(Clone, Copy, Debug)]
struct CountedCall {
    reserved: u64,
    is_settled: bool,
}

/// All periods in which anything was spent.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryRolling {
    periods: BTreeMap<PeriodKey, PeriodSum>,
    calls: BTreeMap<(ThreadId, u64), BTreeMap<PeriodKey, CountedCall>>,
}

fn period_key(budget: &RollingBudget) -> PeriodKey {
    (budget.scope.key(), budget.period, budget.starts_ms, budget.ends_ms)
}

impl MemoryRolling {
    /// What is spent and reserved of a budget. A period that ends after the budget's start counts with it: the clock was
    /// set back, or the time zone is another.
    pub(super) fn usage(&self, budget: &RollingBudget) -> RollingUsage {
        let key = budget.scope.key();
        let mut usage = RollingUsage::default();
        for ((scope, period, starts_ms, ends_ms), sum) in &self.periods {
            if *scope == key && *period == budget.period && *ends_ms > budget.starts_ms {
                usage.used = usage.used.plus(Nanos(sum.spent));
                usage.reserved = usage.reserved.plus(Nanos(sum.reserved));
                if *starts_ms >= budget.ends_ms {
                    usage.ahead = usage.ahead.plus(Nanos(sum.spent.saturating_add(sum.reserved)));
                }
            }
        }
        usage
    }

    /// Reserves for a call in every budget, or in none.
    pub(super) fn reserve(
        &mut self,
        thread: &ThreadId,
        request: ReserveRequest,
        budgets: &[RollingBudget],
    ) -> Option<BudgetRefusal> {
        if request.spend == Nanos(0) {
            return None;
        }
        for budget in budgets {
            let usage = self.usage(budget);
            if usage.used.plus(usage.reserved).plus(request.spend) > budget.limit {
                return Some(BudgetRefusal::by_rolling(thread, request.spend, budget, usage));
            }
        }
        let counted = self.calls.entry((thread.clone(), request.call)).or_default();
        for budget in budgets {
            let key = period_key(budget);
            self.periods.entry(key.clone()).or_default().reserved += request.spend.0;
            counted.insert(key, CountedCall { reserved: request.spend.0, is_settled: false });
        }
        None
    }

    /// Records what a call did cost where it was reserved; one that was reserved nowhere counts in `budgets`.
    pub(super) fn settle(&mut self, thread: &ThreadId, call: u64, spend: u64, budgets: &[RollingBudget]) {
        let counted = self.calls.entry((thread.clone(), call)).or_default();
        if counted.is_empty() {
            let unreserved = CountedCall { reserved: 0, is_settled: false };
            counted.extend(budgets.iter().map(|budget| (period_key(budget), unreserved)));
        }
        for (key, call) in counted.iter_mut().filter(|(_, call)| !call.is_settled) {
            let sum = self.periods.entry(key.clone()).or_default();
            sum.reserved = sum.reserved.saturating_sub(call.reserved);
            sum.spent = sum.spent.saturating_add(spend);
            call.is_settled = true;
        }
    }
}
