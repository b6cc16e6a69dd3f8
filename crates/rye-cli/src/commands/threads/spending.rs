//! `thread cost --since`: what the threads of this place that ran since then have cost, and what is left of the budgets of
//! the day and the month.

use std::collections::BTreeMap;

use jiff::{Span, Timestamp, Zoned};
use rye_agent::driver::MillisClock as _;
use rye_agent::money::Nanos;
use rye_agent::rolling::{RollingBudget, RollingSettings, RollingUsage, TimeZone};
use rye_agent::store::{ThreadFilter, ThreadSecret};
use rye_engine::{Code, Error};
use rye_item::timestamp::{iso_timestamp, parse_iso_timestamp};
use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::commands::{CommandContext, CommandResult};
use crate::live::format::{format_count, format_money, truncate};
use crate::output::{DIM, HEADING, WARNING, paint};
use crate::settings::ThreadClock;

/// What the threads of a directive have used.
#[derive(Clone, Copy, Debug, Default)]
struct DirectiveSum {
    threads: u64,
    input_tokens: u64,
    output_tokens: u64,
    spend: Nanos,
}

impl DirectiveSum {
    fn add(&mut self, other: Self) {
        self.threads += other.threads;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.spend = self.spend.plus(other.spend);
    }

    fn to_value(self, name: &str) -> Value {
        json!({
            "name": name, "threads": self.threads, "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens, "spend": self.spend.dollars(),
        })
    }
}

/// `rye thread cost --since`
pub fn spending(context: &CommandContext, since: &str) -> CommandResult {
    let (now_ms, zone) = (ThreadClock.now_ms(), ThreadClock.time_zone());
    let since_ms = parse_since(since, now_ms, &zone)?;
    let rolling = RollingSettings::load(&context.engine.workspace)?;
    let directives: Vec<String> = rolling.caps.directives.keys().cloned().collect();
    let budgets = rolling.budgets(&directives, now_ms, || zone.clone())?;
    let index = ThreadIndex::open(&context.settings)?;
    let (sums, usage) = match &index {
        Some(index) => (sum_by_directive(index, since_ms)?, index.store.rolling_usage(&budgets)?),
        None => (Vec::new(), user_usage(context, &budgets)?),
    };
    let mut total = DirectiveSum::default();
    sums.iter().for_each(|(_, sum)| total.add(*sum));
    let output = &context.output;
    if output.is_json {
        let budgets = budgets.iter().zip(&usage).map(|(budget, usage)| budget_value(budget, *usage));
        let data = json!({
            "since": iso_timestamp(since_ms),
            "rows": sums.iter().map(|(name, sum)| sum.to_value(name)).collect::<Vec<_>>(),
            "total": total.to_value("total"),
            "budgets": budgets.collect::<Vec<_>>(),
            "notices": rolling.notices,
        });
        context.print_if_json(Some("thread"), None, &data)?;
        return Ok(());
    }
    rolling.notices.iter().for_each(|notice| output.warn(rye_item::text::one_line(notice)));
    if sums.is_empty() {
        output.note("no thread ran here since then");
    } else {
        let mut table = output.table(&["directive", "threads", "in", "out", "spend"]);
        for (name, sum) in &sums {
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
    output.print(format_args!("{} {}", paint(HEADING, "total"), format_money(total.spend)))?;
    let zone_name = rolling.zone_name(&zone);
    for (budget, usage) in budgets.iter().zip(usage) {
        output.print(format_args!("{}", budget_line(budget, usage, &zone_name)))?;
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

/// What is used of budgets where there has never been a thread: other projects may have used it.
fn user_usage(context: &CommandContext, budgets: &[RollingBudget]) -> Result<Vec<RollingUsage>, Error> {
    let keys = &context.settings.roots.signing_keys;
    match ThreadSecret::load(keys)? {
        Some(_) => Ok(rye_agent::store::rolling_usage(keys, budgets)?),
        None => Ok(vec![RollingUsage::default(); budgets.len()]),
    }
}

fn sum_by_directive(index: &ThreadIndex, since_ms: u64) -> Result<Vec<(String, DirectiveSum)>, Error> {
    let mut sums: BTreeMap<String, DirectiveSum> = BTreeMap::new();
    for row in index.store.threads(&ThreadFilter::default())? {
        let is_recent = parse_iso_timestamp(&row.updated_at).is_none_or(|updated| updated >= since_ms);
        if is_recent && !row.is_forged {
            sums.entry(row.directive).or_default().add(DirectiveSum {
                threads: 1,
                input_tokens: row.cost.input_tokens,
                output_tokens: row.cost.output_tokens,
                spend: row.cost.spend,
            });
        }
    }
    let mut sums: Vec<(String, DirectiveSum)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.spend));
    Ok(sums)
}

fn budget_value(budget: &RollingBudget, usage: RollingUsage) -> Value {
    json!({
        "budget": budget.to_string(),
        "scope": budget.scope.to_string(),
        "period": budget.period.as_str(),
        "limit": budget.limit.dollars(),
        "used": usage.used.dollars(),
        "reserved": usage.reserved.dollars(),
        "ahead": usage.ahead.dollars(),
        "starts_at": iso_timestamp(budget.starts_ms),
        "ends_at": iso_timestamp(budget.ends_ms),
    })
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

/// The moment that `today`, `month`, `7d`, `12h`, `30m` or `2026-11-01` means.
fn parse_since(text: &str, now_ms: u64, zone: &TimeZone) -> Result<u64, Error> {
    let invalid = || {
        let shown = rye_item::text::one_line(text);
        Error::new(Code::InvalidArgument, format!("invalid time `{shown}`"))
            .hint("use today, month, 7d, 12h, 30m or a date such as 2026-11-01")
    };
    let now = Timestamp::from_millisecond(i64::try_from(now_ms).map_err(|_| invalid())?);
    let now = now.map_err(|_| invalid())?.to_zoned(zone.clone());
    let moment = match text {
        "today" => now.start_of_day(),
        "month" => now.first_of_month().and_then(|first| first.start_of_day()),
        _ => match text.split_at_checked(text.len().saturating_sub(1)) {
            Some((number, unit @ ("d" | "h" | "m"))) => {
                let number: i64 = number.parse().map_err(|_| invalid())?;
                let span = match unit {
                    "d" => Span::new().try_days(number),
                    "h" => Span::new().try_hours(number),
                    _ => Span::new().try_minutes(number),
                };
                span.and_then(|span| now.checked_sub(span))
            }
            _ => text.parse::<jiff::civil::Date>().and_then(|date| date.to_zoned(zone.clone())),
        },
    };
    let ms = |moment: Zoned| u64::try_from(moment.timestamp().as_millisecond()).unwrap_or(0);
    moment.map(ms).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_takes_words_spans_and_dates() {
        let now = parse_iso_timestamp("2026-11-18T12:30:00.000Z").expect("a moment");
        let parse = |text: &str| parse_since(text, now, &TimeZone::UTC).map(iso_timestamp);
        for (text, expected) in [
            ("today", "2026-11-18T00:00:00.000Z"),
            ("month", "2026-11-01T00:00:00.000Z"),
            ("7d", "2026-11-11T12:30:00.000Z"),
            ("12h", "2026-11-18T00:30:00.000Z"),
            ("30m", "2026-11-18T12:00:00.000Z"),
            ("2026-10-31", "2026-10-31T00:00:00.000Z"),
        ] {
            assert_eq!(parse(text).ok().as_deref(), Some(expected), "{text}");
        }
        for text in ["", "d", "7", "7y", "yesterday", "2026-13-01", "99999999999999999999d", "é"] {
            assert_eq!(parse(text).map_err(|error| error.code), Err(Code::InvalidArgument), "{text}");
        }
    }
}
