//! Money and tokens: what is reserved for calls in flight and what was used, on each thread and on every ancestor.

use std::collections::BTreeMap;

use rye_thread::machine::{BudgetRefusal, BudgetResource};
use rye_thread::money::Nanos;
use rye_thread::thread_id::ThreadId;

use super::rolling::MemoryRolling;
use super::{MemoryTables, MemoryThread};
use crate::{
    Attribution, BudgetCaps, LedgerRow, LedgerRules, Reservation, ReserveRequest, RollingBudget, Settlement,
    ThreadStoreError,
};

/// A call of a model.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) reserved_spend: u64,
    pub(super) reserved_tokens: u64,
    /// What it did cost, once it is settled.
    pub(super) settled: Option<SettledCall>,
}

/// What a call did cost.
#[derive(Clone, Debug)]
pub(super) struct SettledCall {
    pub(super) is_unknown: bool,
    pub(super) spend: u64,
    /// What ancestors are charged.
    pub(super) charged_upwards: u64,
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) attribution: Attribution,
}

/// No number and no sum is larger.
fn check_size(number: u64, what: &'static str) -> Result<u64, ThreadStoreError> {
    if number <= i64::MAX.unsigned_abs() { Ok(number) } else { Err(ThreadStoreError::TooLarge(what)) }
}

fn add(sum: &mut u64, more: u64) -> Result<(), ThreadStoreError> {
    const WHAT: &str = "a sum in the ledger";
    *sum = check_size(sum.checked_add(more).ok_or(ThreadStoreError::TooLarge(WHAT))?, WHAT)?;
    Ok(())
}

/// The rows of a thread and its ancestors, changed apart from the store until a commit is known to hold.
pub(super) struct LedgerDraft {
    /// The thread's own row first, the root's last.
    rows: Vec<(i64, LedgerRow)>,
    calls: BTreeMap<u64, Call>,
    budgets: Vec<RollingBudget>,
    rolling: MemoryRolling,
}

impl LedgerDraft {
    /// The rows as they are.
    pub(super) fn load(tables: &MemoryTables, thread: i64, budgets: &[RollingBudget]) -> Self {
        let mut rows = Vec::new();
        let mut next = Some(thread);
        while let Some((number, found)) = next.and_then(|number| Some((number, tables.threads.get(&number)?)))
        {
            rows.push((number, found.ledger.clone()));
            next = found.parent;
        }
        let (calls, budgets) = (BTreeMap::new(), budgets.to_vec());
        Self { rows, calls, budgets, rolling: tables.rolling.clone() }
    }

    /// Sets other maxima for the thread.
    pub(super) fn set_caps(&mut self, caps: BudgetCaps) {
        if let Some((_, own)) = self.rows.first_mut() {
            own.caps = caps;
        }
    }

    /// Closes the thread's row, if the rules say so.
    pub(super) fn close(&mut self, status: &str, rules: &LedgerRules) {
        let is_kept_open =
            rules.release_on_status.as_ref().is_some_and(|words| !words.iter().any(|word| word == status));
        if let Some((_, own)) = self.rows.first_mut()
            && !is_kept_open
        {
            status.clone_into(&mut own.status);
        }
    }

    fn call<'a>(&'a self, thread: &'a MemoryThread, call: u64) -> Option<&'a Call> {
        self.calls.get(&call).or_else(|| thread.calls.get(&call))
    }

    /// Reserves what a call may cost, on the thread and every ancestor, or on none of them.
    pub(super) fn reserve(
        &mut self,
        tables: &MemoryTables,
        number: i64,
        request: ReserveRequest,
        at_ms: u64,
    ) -> Result<Option<BudgetRefusal>, ThreadStoreError> {
        check_size(request.spend.0, "a reservation")?;
        check_size(request.tokens, "a reservation")?;
        for (level, row) in &self.rows {
            let spend_max = row.caps.spend.map(|spend| spend.0);
            // What those who came first wait for counts as theirs.
            let ahead = tables.ahead(number, *level, at_ms);
            let spend_used = (row.subtree_spend.0, row.subtree_reserved.0.saturating_add(ahead.0));
            let token_used = (row.subtree_tokens, row.subtree_reserved_tokens.saturating_add(ahead.1));
            let checks = [
                (BudgetResource::Spend, spend_max, spend_used, request.spend.0),
                (BudgetResource::Tokens, row.caps.tokens, token_used, request.tokens),
            ];
            for (resource, max, (used, reserved), requested) in checks {
                let Some(limit) = max else { continue };
                if u128::from(used) + u128::from(reserved) + u128::from(requested) > u128::from(limit) {
                    let refused_by = row.thread.clone();
                    return Ok(Some(BudgetRefusal {
                        refused_by,
                        resource,
                        limit,
                        used,
                        reserved,
                        requested,
                        rolling: None,
                    }));
                }
            }
        }
        check_size(request.call, "a call's number")?;
        let Some(thread) = tables.threads.get(&number) else { return Ok(None) };
        if self.call(thread, request.call).is_some() {
            let what = format!("call {} was made before", request.call);
            return Err(ThreadStoreError::Conflict { thread: thread.row.id.clone(), what });
        }
        if let Some(refusal) = self.rolling.reserve(&thread.row.id, request, &self.budgets) {
            return Ok(Some(refusal));
        }
        let call = Call { reserved_spend: request.spend.0, reserved_tokens: request.tokens, settled: None };
        self.calls.insert(request.call, call);
        for (index, (_, row)) in self.rows.iter_mut().enumerate() {
            if index == 0 {
                add(&mut row.reserved_spend.0, request.spend.0)?;
                add(&mut row.reserved_tokens, request.tokens)?;
            }
            add(&mut row.subtree_reserved.0, request.spend.0)?;
            add(&mut row.subtree_reserved_tokens, request.tokens)?;
        }
        Ok(None)
    }

    /// Records what a call did cost, exactly once, and gives back what was reserved.
    pub(super) fn settle(
        &mut self,
        thread: &MemoryThread,
        settlement: &Settlement,
        rules: &LedgerRules,
    ) -> Result<(), ThreadStoreError> {
        let number = check_size(settlement.call, "a call's number")?;
        let conflict = |what: String| ThreadStoreError::Conflict { thread: thread.row.id.clone(), what };
        let found = self.call(thread, number);
        let is_reserved = found.is_some();
        let (reserved, reserved_tokens) = match found {
            Some(call) if call.settled.is_some() => {
                return Err(conflict(format!("call {number} is settled already")));
            }
            Some(call) => (call.reserved_spend, call.reserved_tokens),
            None if settlement.is_unknown => {
                return Err(conflict(format!("nothing was reserved for call {number}")));
            }
            None => (0, 0),
        };
        let spend = check_size(settlement.spend.0, "what a call cost")?;
        // What was reserved is the most that an estimate can come to.
        let spend = if settlement.is_unknown { spend.min(reserved) } else { spend };
        let input_tokens = check_size(settlement.input_tokens, "the tokens of a call")?;
        let output_tokens = check_size(settlement.output_tokens, "the tokens of a call")?;
        let tokens = check_size(input_tokens.saturating_add(output_tokens), "the tokens of a call")?;
        self.rolling.settle(&thread.row.id, number, spend, &self.budgets);
        let is_clamped = rules.clamp_to_reserved && is_reserved;
        let charged_upwards = if is_clamped { spend.min(reserved) } else { spend };
        for (index, (_, row)) in self.rows.iter_mut().enumerate() {
            if index == 0 {
                add(&mut row.actual_spend.0, spend)?;
                add(&mut row.actual_tokens, tokens)?;
                add(&mut row.unknown_spend.0, if settlement.is_unknown { spend } else { 0 })?;
                row.reserved_spend.0 = row.reserved_spend.0.saturating_sub(reserved);
                row.reserved_tokens = row.reserved_tokens.saturating_sub(reserved_tokens);
            }
            add(&mut row.subtree_spend.0, if index == 0 { spend } else { charged_upwards })?;
            add(&mut row.subtree_tokens, tokens)?;
            row.subtree_reserved.0 = row.subtree_reserved.0.saturating_sub(reserved);
            row.subtree_reserved_tokens = row.subtree_reserved_tokens.saturating_sub(reserved_tokens);
        }
        let settled = SettledCall {
            is_unknown: settlement.is_unknown,
            spend,
            charged_upwards,
            input_tokens,
            output_tokens,
            attribution: settlement.attribution.clone(),
        };
        let call = Call { reserved_spend: reserved, reserved_tokens, settled: Some(settled) };
        self.calls.insert(number, call);
        Ok(())
    }

    /// Puts the rows back into the store.
    pub(super) fn save(self, tables: &mut MemoryTables) {
        tables.rolling = self.rolling;
        let mut calls = Some(self.calls);
        for (number, row) in self.rows {
            if let Some(thread) = tables.threads.get_mut(&number) {
                thread.ledger = row;
                thread.calls.extend(calls.take().unwrap_or_default());
            }
        }
    }
}

/// The row of a new thread.
pub(super) fn new_row(thread: &ThreadId, caps: BudgetCaps) -> Result<LedgerRow, ThreadStoreError> {
    check_size(caps.spend.unwrap_or_default().0, "the most a thread may spend")?;
    check_size(caps.tokens.unwrap_or_default(), "the most tokens a thread may use")?;
    Ok(LedgerRow {
        thread: thread.clone(),
        caps,
        actual_spend: Nanos(0),
        reserved_spend: Nanos(0),
        subtree_spend: Nanos(0),
        subtree_reserved: Nanos(0),
        actual_tokens: 0,
        reserved_tokens: 0,
        subtree_tokens: 0,
        subtree_reserved_tokens: 0,
        unknown_spend: Nanos(0),
        status: "active".to_owned(),
    })
}

/// The calls that are not settled.
pub(super) fn open_reservations(calls: &BTreeMap<u64, Call>) -> Vec<Reservation> {
    let open = calls.iter().filter(|(_, call)| call.settled.is_none());
    open.map(|(number, call)| Reservation {
        call: *number,
        spend: Nanos(call.reserved_spend),
        tokens: call.reserved_tokens,
    })
    .collect()
}

/// What a thread's calls come to.
#[derive(Clone, Copy, Default)]
struct CallSums {
    spend: u128,
    charged_upwards: u128,
    reserved: u128,
    tokens: u128,
    reserved_tokens: u128,
    unknown: u128,
}

impl CallSums {
    fn of(calls: &BTreeMap<u64, Call>) -> Self {
        let mut sums = Self::default();
        for call in calls.values() {
            match &call.settled {
                Some(settled) => {
                    sums.spend += u128::from(settled.spend);
                    sums.charged_upwards += u128::from(settled.charged_upwards);
                    sums.tokens += u128::from(settled.input_tokens) + u128::from(settled.output_tokens);
                    sums.unknown += u128::from(if settled.is_unknown { settled.spend } else { 0 });
                }
                None => {
                    sums.reserved += u128::from(call.reserved_spend);
                    sums.reserved_tokens += u128::from(call.reserved_tokens);
                }
            }
        }
        sums
    }
}

/// What is wrong with the ledger; nothing, when all sums are those of its calls.
pub(super) fn audit(tables: &MemoryTables) -> Vec<String> {
    let mut problems = Vec::new();
    // Children are younger than parents, so they come first.
    let mut below: BTreeMap<i64, CallSums> = BTreeMap::new();
    for (number, thread) in tables.threads.iter().rev() {
        let own = CallSums::of(&thread.calls);
        let subtree = below.remove(number).unwrap_or_default();
        let row = &thread.ledger;
        let sums = [
            ("actual_spend", row.actual_spend.0, own.spend),
            ("reserved_spend", row.reserved_spend.0, own.reserved),
            ("actual_tokens", row.actual_tokens, own.tokens),
            ("reserved_tokens", row.reserved_tokens, own.reserved_tokens),
            ("unknown_spend", row.unknown_spend.0, own.unknown),
            ("subtree_spend", row.subtree_spend.0, own.spend + subtree.charged_upwards),
            ("subtree_reserved", row.subtree_reserved.0, own.reserved + subtree.reserved),
            ("subtree_tokens", row.subtree_tokens, own.tokens + subtree.tokens),
            (
                "subtree_reserved_tokens",
                row.subtree_reserved_tokens,
                own.reserved_tokens + subtree.reserved_tokens,
            ),
        ];
        for (name, found, expected) in sums {
            if u128::from(found) != expected {
                problems.push(format!("{}: {name} is {found}, its calls come to {expected}", thread.row.id));
            }
        }
        if let Some(parent) = thread.parent {
            let sums = below.entry(parent).or_default();
            sums.charged_upwards += own.charged_upwards + subtree.charged_upwards;
            sums.reserved += own.reserved + subtree.reserved;
            sums.tokens += own.tokens + subtree.tokens;
            sums.reserved_tokens += own.reserved_tokens + subtree.reserved_tokens;
        }
    }
    problems.extend(below.keys().map(|number| format!("row {number} has children and is not there")));
    problems
}
