//! `thread cost`: what a thread and all below it have cost, from the ledger. A thread that others went on from is one with
//! them.

use std::collections::{BTreeMap, BTreeSet};

use rye_agent::money::Nanos;
use rye_agent::store::{Charge, Scope, ThreadRow};
use rye_agent::thread_id::ThreadId;
use serde_json::{Value, json};

use super::shelf::Shelf;
use crate::arguments::CostBy;
use crate::commands::{Context, Outcome};
use crate::live::words::{amount, count, short};
use crate::output::{CAUTION, DIM, STRONG, paint};

/// How many threads of a chain are followed: far more than any has.
const MOST_LINKS: usize = 1000;

/// `rye thread cost`
pub fn cost(context: &Context, word: &str, by: CostBy) -> Outcome {
    let (shelf, row) = Shelf::with(&context.settings, word)?;
    let chain = chain(&shelf, &row)?;
    let report = Report::of(&shelf, &chain, by)?;
    let most = chain.first().and_then(|first| first.limits.spend);
    if context.output.is_json {
        let data = json!({
            "thread_id": row.id,
            "chain": chain.iter().map(|row| &row.id).collect::<Vec<_>>(),
            "by": word_of(by),
            "rows": report.rows.iter().map(|(name, sum)| sum.value(name)).collect::<Vec<_>>(),
            "total": report.total().value("total"),
            "spend_limit": most.map(Nanos::dollars),
        });
        context.answered(Some("thread"), Some(row.id.as_str()), &data)?;
        return Ok(());
    }
    draw(context, &report, by, most)
}

fn word_of(by: CostBy) -> &'static str {
    match by {
        CostBy::Item => "item",
        CostBy::Tool => "tool",
        CostBy::Hook => "hook",
        CostBy::Model => "model",
        CostBy::Child => "child",
    }
}

/// The thread with those it went on from and those that went on from it, the first one first.
fn chain(shelf: &Shelf, row: &ThreadRow) -> Result<Vec<ThreadRow>, rye_engine::Error> {
    let first = match &row.chain_root_id {
        Some(root) => shelf.store.thread(root)?,
        None => None,
    };
    let mut chain = vec![first.unwrap_or_else(|| row.clone())];
    while chain.len() < MOST_LINKS {
        let next = chain.last().and_then(|last| last.continuation_thread_id.clone());
        let Some(next) = next.filter(|next| chain.iter().all(|row| row.id != *next)) else { break };
        let Some(next) = shelf.store.thread(&next)? else { break };
        chain.push(next);
    }
    Ok(chain)
}

/// What calls came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    calls: u64,
    input_tokens: u64,
    output_tokens: u64,
    spend: Nanos,
    unknown: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.calls += other.calls;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.spend = Nanos(self.spend.0.saturating_add(other.spend.0));
        self.unknown += other.unknown;
    }

    fn value(&self, name: &str) -> Value {
        json!({
            "name": name, "calls": self.calls, "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens, "spend": self.spend.dollars(), "unknown": self.unknown,
        })
    }
}

impl From<&Charge> for Sum {
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
struct Report {
    rows: Vec<(String, Sum)>,
}

impl Report {
    fn of(shelf: &Shelf, chain: &[ThreadRow], by: CostBy) -> Result<Self, rye_engine::Error> {
        let own: BTreeSet<&ThreadId> = chain.iter().map(|row| &row.id).collect();
        let mut below = BTreeMap::new();
        let mut charges: Vec<Charge> = Vec::new();
        let mut counted = BTreeSet::new();
        for member in chain {
            for row in shelf.store.subtree(&member.id)? {
                below.insert(row.id.clone(), row);
            }
            let found = shelf.store.charges(&member.id, Scope::Subtree)?;
            // A thread that went on below the same parent is in both trees.
            let new: BTreeSet<ThreadId> = found.iter().map(|charge| charge.thread.clone()).collect();
            charges.extend(found.into_iter().filter(|charge| !counted.contains(&charge.thread)));
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
                CostBy::Child => branch(&charge.thread, &own, &below),
            }
        };
        let mut sums: BTreeMap<String, Sum> = BTreeMap::new();
        for charge in &charges {
            sums.entry(name(charge)).or_default().add(charge.into());
        }
        let mut rows: Vec<(String, Sum)> = sums.into_iter().collect();
        rows.sort_by(|(_, one), (_, other)| other.spend.cmp(&one.spend).then(other.calls.cmp(&one.calls)));
        Ok(Self { rows })
    }

    fn total(&self) -> Sum {
        let mut total = Sum::default();
        self.rows.iter().for_each(|(_, sum)| total.add(*sum));
        total
    }
}

/// The child of one of `own` that this thread is or is below.
fn branch(id: &ThreadId, own: &BTreeSet<&ThreadId>, below: &BTreeMap<ThreadId, ThreadRow>) -> String {
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

fn draw(context: &Context, report: &Report, by: CostBy, most: Option<Nanos>) -> Outcome {
    let output = &context.output;
    let mut table = output.table(&[word_of(by), "calls", "in", "out", "spend"]);
    for (name, sum) in &report.rows {
        table.add_row([
            short(name, 60),
            count(sum.calls),
            count(sum.input_tokens),
            count(sum.output_tokens),
            amount(sum.spend),
        ]);
    }
    if report.rows.is_empty() {
        output.note("no model was asked");
    } else {
        output.result(table.trim_fmt())?;
    }
    let total = report.total();
    let limit = most.map(|most| format!(" of {}", amount(most))).unwrap_or_default();
    output.result(format_args!("{} {}{}", paint(STRONG, "total"), amount(total.spend), paint(DIM, limit)))?;
    if total.unknown > 0 {
        let calls = count(total.unknown);
        output.note(paint(
            CAUTION,
            format_args!("{calls} of the calls were charged what was set aside: nobody knows what they cost"),
        ));
    }
    Ok(())
}
