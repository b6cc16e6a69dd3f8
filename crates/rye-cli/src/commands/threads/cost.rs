//! `thread cost`: what a thread and all below it have cost, from the ledger. A thread that others went on from is one with
//! them.

use std::collections::{BTreeMap, BTreeSet};

use rye_agent::money::Nanos;
use rye_agent::store::{Charge, ChargeScope, ThreadRow};
use rye_agent::thread_id::ThreadId;
use serde_json::{Value, json};

use super::estimates::EstimateSum;
use super::thread_index::ThreadIndex;
use crate::arguments::CostBy;
use crate::commands::{CommandContext, CommandResult};
use crate::live::format::{format_count, format_money, truncate};
use crate::output::{DIM, HEADING, WARNING, paint};

/// How many threads of a chain are followed: far more than any has.
const MAX_CHAIN_LENGTH: usize = 1000;

/// `rye thread cost`
pub fn cost(context: &CommandContext, word: &str, by: CostBy) -> CommandResult {
    let (index, row) = ThreadIndex::open_thread(&context.settings, word)?;
    let chain = continuation_chain(&index, &row)?;
    let report = CostReport::new(&index, &chain, by)?;
    let max = chain.first().and_then(|first| first.limits.spend);
    if context.output.is_json {
        let data = json!({
            "thread_id": row.id,
            "chain": chain.iter().map(|row| &row.id).collect::<Vec<_>>(),
            "by": cost_by_name(by),
            "rows": report.rows.iter().map(|(name, sum)| sum.to_value(name)).collect::<Vec<_>>(),
            "total": report.total().to_value("total"),
            "spend_limit": max.map(Nanos::dollars),
            "estimates": report.estimates.to_value(),
            "forked_from": index.fork_source(&row)?,
        });
        context.print_if_json(Some("thread"), Some(row.id.as_str()), &data)?;
        return Ok(());
    }
    print_report(context, &report, by, max)?;
    if let Some(label) = index.fork_label(&row)? {
        context.output.note(paint(DIM, format_args!("{label}, whose cost is its own")));
    }
    Ok(())
}

fn cost_by_name(by: CostBy) -> &'static str {
    match by {
        CostBy::Item => "item",
        CostBy::Tool => "tool",
        CostBy::Hook => "hook",
        CostBy::Model => "model",
        CostBy::Child => "child",
    }
}

/// The thread with those it went on from and those that went on from it, the first one first.
fn continuation_chain(index: &ThreadIndex, row: &ThreadRow) -> Result<Vec<ThreadRow>, rye_engine::Error> {
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

/// What calls came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CostSum {
    calls: u64,
    input_tokens: u64,
    output_tokens: u64,
    spend: Nanos,
    unknown: u64,
}

impl CostSum {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.spend = Nanos(self.spend.0.saturating_add(other.spend.0));
        self.unknown += other.unknown;
    }

    fn to_value(self, name: &str) -> Value {
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
struct CostReport {
    rows: Vec<(String, CostSum)>,
    estimates: EstimateSum,
}

impl CostReport {
    fn new(index: &ThreadIndex, chain: &[ThreadRow], by: CostBy) -> Result<Self, rye_engine::Error> {
        let own: BTreeSet<&ThreadId> = chain.iter().map(|row| &row.id).collect();
        let mut below = BTreeMap::new();
        let mut charges: Vec<Charge> = Vec::new();
        let mut counted = BTreeSet::new();
        for member in chain {
            for row in index.store.subtree(&member.id)? {
                below.insert(row.id.clone(), row);
            }
            let subtree_charges = index.store.charges(&member.id, ChargeScope::Subtree)?;
            // A thread that went on below the same parent is in both trees.
            let new: BTreeSet<ThreadId> =
                subtree_charges.iter().map(|charge| charge.thread.clone()).collect();
            charges.extend(subtree_charges.into_iter().filter(|charge| !counted.contains(&charge.thread)));
            counted.extend(new);
        }
        let name = |charge: &Charge| -> String {
            let attribution = &charge.attribution;
            let or_none = |word: &Option<String>| word.clone().unwrap_or_else(|| "-".to_owned());
            match by {
                CostBy::Item => attribution.item.clone(),
                CostBy::Tool => or_none(&attribution.tool),
                CostBy::Hook => or_none(&attribution.hook),
                CostBy::Model => attribution.model.clone(),
                CostBy::Child => child_name(&charge.thread, &own, &below),
            }
        };
        let mut sums: BTreeMap<String, CostSum> = BTreeMap::new();
        for charge in &charges {
            sums.entry(name(charge)).or_default().add(charge.into());
        }
        let mut rows: Vec<(String, CostSum)> = sums.into_iter().collect();
        rows.sort_by(|(_, one), (_, other)| other.spend.cmp(&one.spend).then(other.calls.cmp(&one.calls)));
        Ok(Self { rows, estimates: EstimateSum::of_threads(index, &counted) })
    }

    fn total(&self) -> CostSum {
        let mut total = CostSum::default();
        self.rows.iter().for_each(|(_, sum)| total.add(*sum));
        total
    }
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

fn print_report(
    context: &CommandContext,
    report: &CostReport,
    by: CostBy,
    spend_limit: Option<Nanos>,
) -> CommandResult {
    let output = &context.output;
    let mut table = output.table(&[cost_by_name(by), "calls", "in", "out", "spend"]);
    for (name, sum) in &report.rows {
        table.add_row([
            truncate(name, 60),
            format_count(sum.calls),
            format_count(sum.input_tokens),
            format_count(sum.output_tokens),
            format_money(sum.spend),
        ]);
    }
    if report.rows.is_empty() {
        output.note("no model was called");
    } else {
        output.print(table.trim_fmt())?;
    }
    let total = report.total();
    let limit =
        spend_limit.map(|spend_limit| format!(" of {}", format_money(spend_limit))).unwrap_or_default();
    output.print(format_args!(
        "{} {}{}",
        paint(HEADING, "total"),
        format_money(total.spend),
        paint(DIM, limit)
    ))?;
    if let Some(line) = report.estimates.to_line() {
        output.note(paint(DIM, line));
    }
    if total.unknown > 0 {
        let calls = format_count(total.unknown);
        output.note(paint(
            WARNING,
            format_args!("{calls} of the calls broke off: charged are the prompt and what arrived, the actual cost is unknown"),
        ));
    }
    Ok(())
}
