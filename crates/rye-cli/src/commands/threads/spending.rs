//! `thread cost --since`: what the threads of this place that ran since then have cost, and what is left of the budgets of
//! the day and the month.

use rye_agent::driver::MillisClock as _;
use rye_agent::money::Nanos;
use rye_agent::rolling::{RollingBudget, RollingUsage};
use rye_agent::views::{SpendingReport, parse_since};
use rye_item::timestamp::iso_timestamp;
use serde_json::json;

use super::thread_index::ThreadIndex;
use crate::commands::{CommandContext, CommandResult};
use crate::live::format::{format_count, format_money, truncate};
use crate::output::{DIM, HEADING, WARNING, paint};
use crate::settings::ThreadClock;

/// `rye thread cost --since`
pub fn spending(context: &CommandContext, since: &str) -> CommandResult {
    let (now_ms, zone) = (ThreadClock.now_ms(), ThreadClock.time_zone());
    let since_ms = parse_since(since, now_ms, &zone)?;
    let index = ThreadIndex::open(&context.settings)?;
    let report = SpendingReport::new(&context.engine, index.as_ref(), since_ms, now_ms, &zone)?;
    let output = &context.output;
    if output.is_json {
        let data = json!({
            "since": iso_timestamp(since_ms),
            "rows": report.directives.iter().map(|(name, sum)| sum.to_value(name)).collect::<Vec<_>>(),
            "total": report.total.to_value("total"),
            "budgets": report.budget_values(),
            "notices": report.notices,
        });
        context.print_if_json(Some("thread"), None, &data)?;
        return Ok(());
    }
    report.notices.iter().for_each(|notice| output.warn(rye_item::text::one_line(notice)));
    if report.directives.is_empty() {
        output.note("no thread ran here since then");
    } else {
        let mut table = output.table(&["directive", "threads", "in", "out", "spend"]);
        for (name, sum) in &report.directives {
            table.add_row([
                truncate(name, 60),
                format_count(sum.threads),
                format_count(sum.input_tokens),
                format_count(sum.output_tokens),
                format_money(sum.spend),
            ]);
        }
        output.print(table.trim_fmt())?;
    }
    output.print(format_args!("{} {}", paint(HEADING, "total"), format_money(report.total.spend)))?;
    for (budget, usage) in &report.budgets {
        output.print(format_args!("{}", budget_line(budget, *usage, &report.zone)))?;
        if usage.ahead > Nanos(0) {
            let ahead = format_money(usage.ahead);
            output.note(paint(
                WARNING,
                format_args!(
                    "{ahead} of it was spent while the clock was ahead; raise the budget if that is wrong"
                ),
            ));
        }
    }
    Ok(())
}

fn budget_line(budget: &RollingBudget, usage: RollingUsage, zone: &str) -> String {
    let reserved = match usage.reserved {
        Nanos(0) => String::new(),
        reserved => format!(", {} reserved", format_money(reserved)),
    };
    let used = format!("{} of {} used{reserved}", format_money(usage.used), format_money(budget.limit));
    let end = paint(DIM, format_args!("until {} ({zone})", iso_timestamp(budget.ends_ms)));
    format!("{} {used} {end}", paint(HEADING, budget))
}
