//! `thread cost`: what a thread and all below it have cost.

use rye_agent::views::{CostGrouping, CostReport, EstimateSum, ThreadIndex};

use crate::arguments::CostBy;
use crate::commands::{CommandContext, CommandResult};
use crate::live::format::{format_count, format_money, truncate};
use crate::output::{DIM, HEADING, WARNING, paint};

/// `rye thread cost`
pub fn cost(context: &CommandContext, word: Option<&str>, by: CostBy) -> CommandResult {
    let (index, row) = match word {
        Some(word) => ThreadIndex::open_thread(&context.settings, word)?,
        None => ThreadIndex::open_latest(&context.settings)?,
    };
    let by = match by {
        CostBy::Item => CostGrouping::Item,
        CostBy::Tool => CostGrouping::Tool,
        CostBy::Hook => CostGrouping::Hook,
        CostBy::Model => CostGrouping::Model,
        CostBy::Child => CostGrouping::Child,
    };
    let report = CostReport::new(&index, &row, by)?;
    if context.print_if_json(Some("thread"), Some(row.id.as_str()), &report.to_value())? {
        return Ok(());
    }
    print_report(context, &report)?;
    if let Some(label) = index.fork_label(&row)? {
        context.output.note(paint(DIM, format_args!("{label}, whose cost is its own")));
    }
    Ok(())
}

fn print_report(context: &CommandContext, report: &CostReport) -> CommandResult {
    let output = &context.output;
    let mut table = output.table(&[report.by.as_str(), "calls", "in", "out", "spend"]);
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
    let limit = report.spend_limit.map(|limit| format!(" of {}", format_money(limit))).unwrap_or_default();
    output.print(format_args!(
        "{} {}{}",
        paint(HEADING, "total"),
        format_money(total.spend),
        paint(DIM, limit)
    ))?;
    if let Some(line) = estimates_line(report.estimates) {
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

/// How far the estimates of prompts were off; nothing where no call was compared.
fn estimates_line(estimates: EstimateSum) -> Option<String> {
    let percent = estimates.error_percent()?;
    let (estimated, actual) = (format_count(estimates.estimated), format_count(estimates.actual));
    Some(format!("prompts: {estimated} tokens estimated, {actual} counted ({percent:+} %)"))
}
