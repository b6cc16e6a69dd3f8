//! What threads have cost, from the ledger, by item, tool, hook, model or child.

use std::collections::{BTreeMap, BTreeSet};

use rye_engine::Result;
use serde_json::{Value, json};

use super::estimates::EstimateSum;
use super::thread_index::ThreadIndex;
use crate::money::Nanos;
use crate::spec::ForkSource;
use crate::store::{Charge, ChargeScope, ThreadRow};
use crate::thread_id::ThreadId;

/// How many threads of a chain are followed: far more than any has.
const MAX_CHAIN_LENGTH: usize = 1000;

/// What costs are summed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostGrouping {
    /// Directives.
    Item,
    /// Tools whose results were asked about.
    Tool,
    /// Hooks.
    Hook,
    /// Models.
    Model,
    /// Children.
    Child,
}

impl CostGrouping {
    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Item => "item",
            Self::Tool => "tool",
            Self::Hook => "hook",
            Self::Model => "model",
            Self::Child => "child",
        }
    }
}

/// What calls came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CostSum {
    /// How many.
    pub calls: u64,
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of responses.
    pub output_tokens: u64,
    /// Money.
    pub spend: Nanos,
    /// How many broke off, so that their cost is not known.
    pub unknown: u64,
}

impl CostSum {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.spend = Nanos(self.spend.0.saturating_add(other.spend.0));
        self.unknown += other.unknown;
    }

    /// As JSON, under a name.
    #[must_use]
    pub fn to_value(self, name: &str) -> Value {
        json!({
            "name": name, "calls": self.calls, "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens, "spend": self.spend.dollars(), "unknown": self.unknown,
        })
    }
}

impl From<&Charge> for CostSum {
    fn from(charge: &Charge) -> Self {
        Self {
            calls: charge.calls,
            input_tokens: charge.input_tokens,
            output_tokens: charge.output_tokens,
            spend: charge.spend,
            unknown: charge.unknown,
        }
    }
}

/// Sums by name, the dearest first.
#[derive(Clone, Debug)]
pub struct CostReport {
    /// The thread.
    pub thread: ThreadId,
    /// What is summed by.
    pub by: CostGrouping,
    /// The thread with those it continued from and those that continued from it.
    pub chain: Vec<ThreadId>,
    /// The sums.
    pub rows: Vec<(String, CostSum)>,
    /// How much the chain may spend.
    pub spend_limit: Option<Nanos>,
    /// How far the estimates of prompts were off.
    pub estimates: EstimateSum,
    /// Where the thread was forked, if it was. What that one cost is its own.
    pub forked_from: Option<ForkSource>,
}

impl CostReport {
    /// What a thread and all below it have cost. A thread that others continued from is one with them.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn new(index: &ThreadIndex, row: &ThreadRow, by: CostGrouping) -> Result<Self> {
        let chain = continuation_chain(index, row)?;
        let own: BTreeSet<&ThreadId> = chain.iter().map(|row| &row.id).collect();
        let mut below = BTreeMap::new();
        let mut charges: Vec<Charge> = Vec::new();
        let mut counted = BTreeSet::new();
        for member in &chain {
            for row in index.store.subtree(&member.id)? {
                below.insert(row.id.clone(), row);
            }
            let subtree_charges = index.store.charges(&member.id, ChargeScope::Subtree)?;
            // A thread that continued below the same parent is in both trees.
            let new: BTreeSet<ThreadId> =
                subtree_charges.iter().map(|charge| charge.thread.clone()).collect();
            charges.extend(subtree_charges.into_iter().filter(|charge| !counted.contains(&charge.thread)));
            counted.extend(new);
        }
        let name = |charge: &Charge| -> String {
            let attribution = &charge.attribution;
            let or_none = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
            match by {
                CostGrouping::Item => attribution.item.clone(),
                CostGrouping::Tool => or_none(&attribution.tool),
                CostGrouping::Hook => or_none(&attribution.hook),
                CostGrouping::Model => attribution.model.clone(),
                CostGrouping::Child => child_name(&charge.thread, &own, &below),
            }
        };
        let mut sums: BTreeMap<String, CostSum> = BTreeMap::new();
        for charge in &charges {
            sums.entry(name(charge)).or_default().add(charge.into());
        }
        let mut rows: Vec<(String, CostSum)> = sums.into_iter().collect();
        rows.sort_by(|(_, one), (_, other)| other.spend.cmp(&one.spend).then(other.calls.cmp(&one.calls)));
        let spend_limit = chain.first().and_then(|first| first.limits.spend);
        let chain = chain.iter().map(|row| row.id.clone()).collect();
        let estimates = EstimateSum::of_threads(index, &counted);
        let forked_from = index.fork_source(row)?;
        Ok(Self { thread: row.id.clone(), by, chain, rows, spend_limit, estimates, forked_from })
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> CostSum {
        let mut total = CostSum::default();
        self.rows.iter().for_each(|(_, sum)| total.add(*sum));
        total
    }

    /// As JSON.
    #[must_use]
    pub fn to_value(&self) -> Value {
        json!({
            "thread_id": self.thread,
            "chain": self.chain,
            "by": self.by.as_str(),
            "rows": self.rows.iter().map(|(name, sum)| sum.to_value(name)).collect::<Vec<_>>(),
            "total": self.total().to_value("total"),
            "spend_limit": self.spend_limit.map(Nanos::dollars),
            "estimates": self.estimates.to_value(),
            "forked_from": self.forked_from,
        })
    }
}

/// The thread with those it continued from and those that continued from it, the first one first.
fn continuation_chain(index: &ThreadIndex, row: &ThreadRow) -> Result<Vec<ThreadRow>> {
    let first = match &row.chain_root_id {
        Some(root) => index.store.thread(root)?,
        None => None,
    };
    let mut chain = vec![first.unwrap_or_else(|| row.clone())];
    while chain.len() < MAX_CHAIN_LENGTH {
        let next = chain.last().and_then(|last| last.continuation_thread_id.clone());
        let Some(next) = next.filter(|next| chain.iter().all(|row| row.id != *next)) else { break };
        let Some(next) = index.store.thread(&next)? else { break };
        chain.push(next);
    }
    Ok(chain)
}

/// The child of one of `own` that this thread is or is below.
fn child_name(id: &ThreadId, own: &BTreeSet<&ThreadId>, below: &BTreeMap<ThreadId, ThreadRow>) -> String {
    if own.contains(id) {
        return "itself".to_owned();
    }
    let mut at = id;
    // As many steps as there are threads: a forged tree may go in a circle.
    for _ in 0..below.len() {
        match below.get(at).and_then(|row| row.parent.as_ref()) {
            Some(parent) if own.contains(parent) => break,
            Some(parent) => at = parent,
            None => break,
        }
    }
    let directive = below.get(at).map(|row| row.directive.as_str()).unwrap_or_default();
    format!("{at} {directive}")
}
