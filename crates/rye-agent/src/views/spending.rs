//! What the threads of a place that ran since a moment have cost: by day, directive, model and tree, and what is used of the
//! budgets of a day and a month.

use std::collections::BTreeMap;

use jiff::{Span, Timestamp, Zoned};
use rye_engine::{Code, Engine, Error, Result};
use rye_item::timestamp::{iso_timestamp, parse_iso_timestamp};
use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::money::Nanos;
use crate::rolling::{RollingBudget, RollingSettings, RollingUsage, TimeZone};
use crate::store::{ThreadFilter, ThreadRow, ThreadSecret, rolling_usage};
use crate::thread_id::ThreadId;

/// Days between the first and the last that are shown though nothing ran on them.
const MAX_DAYS: usize = 400;
/// Trees that are shown, the dearest.
const MAX_TREES: usize = 100;

/// What some threads have used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpendingSum {
    /// How many.
    pub threads: u64,
    /// Tokens of prompts.
    pub input_tokens: u64,
    /// Tokens of responses.
    pub output_tokens: u64,
    /// Money.
    pub spend: Nanos,
}

impl SpendingSum {
    /// What one thread has used itself.
    fn of_thread(row: &ThreadRow) -> Self {
        Self {
            threads: 1,
            input_tokens: row.cost.input_tokens,
            output_tokens: row.cost.output_tokens,
            spend: row.cost.spend,
        }
    }

    fn add(&mut self, other: Self) {
        self.threads += other.threads;
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.spend = self.spend.plus(other.spend);
    }

    /// As JSON, under a name.
    #[must_use]
    pub fn to_value(self, name: &str) -> Value {
        json!({
            "name": name, "threads": self.threads, "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens, "spend": self.spend.dollars(),
        })
    }
}

/// What was spent since a moment.
#[derive(Debug)]
pub struct SpendingReport {
    /// Since when.
    pub since_ms: u64,
    /// Directives, the dearest first.
    pub directives: Vec<(String, SpendingSum)>,
    /// Models, the dearest first.
    pub models: Vec<(String, SpendingSum)>,
    /// Days on which threads were started, in order.
    pub days: Vec<(String, SpendingSum)>,
    /// Trees, the dearest first, named by root and directive.
    pub trees: Vec<(String, SpendingSum)>,
    /// All of it.
    pub total: SpendingSum,
    /// Budgets of the day and the month, with what is used of each.
    pub budgets: Vec<(RollingBudget, RollingUsage)>,
    /// What of the budgets' settings was left out.
    pub notices: Vec<String>,
    /// The zone that budgets are counted in.
    pub zone: String,
}

impl SpendingReport {
    /// Sums threads; `None` as index where there has never been one.
    ///
    /// # Errors
    /// When settings or store cannot be read.
    pub fn new(
        engine: &Engine,
        index: Option<&ThreadIndex>,
        since_ms: u64,
        now_ms: u64,
        zone: &TimeZone,
    ) -> Result<Self> {
        let rolling = RollingSettings::load(&engine.workspace)?;
        let directives: Vec<String> = rolling.caps.directives.keys().cloned().collect();
        let budgets = rolling.budgets(&directives, now_ms, || zone.clone())?;
        let keys = &engine.workspace.roots.signing_keys;
        let (rows, usage) = match index {
            Some(index) => {
                (index.store.threads(&ThreadFilter::default())?, index.store.rolling_usage(&budgets)?)
            }
            // Other projects may have used them.
            None if ThreadSecret::load(keys)?.is_some() => (Vec::new(), rolling_usage(keys, &budgets)?),
            None => (Vec::new(), vec![RollingUsage::default(); budgets.len()]),
        };
        let names: BTreeMap<&ThreadId, &ThreadRow> = rows.iter().map(|row| (&row.id, row)).collect();
        let mut sums = [(); 4].map(|()| BTreeMap::<String, SpendingSum>::new());
        let mut total = SpendingSum::default();
        for row in &rows {
            let is_recent = parse_iso_timestamp(&row.updated_at).is_none_or(|updated| updated >= since_ms);
            if !is_recent || row.is_forged {
                continue;
            }
            let sum = SpendingSum::of_thread(row);
            total.add(sum);
            let root = root_of(&names, row);
            let day = local_day(&row.created_at, zone);
            let tree = format!("{} {}", root.id, root.directive);
            for (sums, name) in sums.iter_mut().zip([row.directive.clone(), row.model.clone(), day, tree]) {
                sums.entry(name).or_default().add(sum);
            }
        }
        let [directives, models, days, trees] = sums;
        let dearest = |sums: BTreeMap<String, SpendingSum>| -> Vec<(String, SpendingSum)> {
            let mut sums: Vec<(String, SpendingSum)> = sums.into_iter().collect();
            sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.spend));
            sums
        };
        let mut trees = dearest(trees);
        trees.truncate(MAX_TREES);
        Ok(Self {
            since_ms,
            directives: dearest(directives),
            models: dearest(models),
            days: fill_days(days),
            trees,
            total,
            zone: rolling.zone_name(zone),
            budgets: budgets.into_iter().zip(usage).collect(),
            notices: rolling.notices,
        })
    }

    /// The budgets as JSON.
    #[must_use]
    pub fn budget_values(&self) -> Vec<Value> {
        self.budgets.iter().map(|(budget, usage)| budget_value(budget, *usage)).collect()
    }

    /// As JSON, with everything in it; `project` is the folder.
    #[must_use]
    pub fn to_value(&self, project: Option<&str>) -> Value {
        let values = |sums: &[(String, SpendingSum)]| -> Vec<Value> {
            sums.iter().map(|(name, sum)| sum.to_value(name)).collect()
        };
        json!({
            "since": iso_timestamp(self.since_ms),
            "project": project,
            "zone": self.zone,
            "total": self.total.to_value("total"),
            "days": values(&self.days),
            "directives": values(&self.directives),
            "models": values(&self.models),
            "children": values(&self.trees),
            "projects": [self.total.to_value(project.unwrap_or("user"))],
            "budgets": self.budget_values(),
            "notices": self.notices,
        })
    }
}

fn root_of<'a>(rows: &BTreeMap<&ThreadId, &'a ThreadRow>, row: &'a ThreadRow) -> &'a ThreadRow {
    let mut at = row;
    // As many steps as there are threads: a forged tree may go in a circle.
    for _ in 0..rows.len() {
        match at.parent.as_ref().and_then(|parent| rows.get(parent)) {
            Some(parent) => at = parent,
            None => break,
        }
    }
    at
}

fn local_day(timestamp: &str, zone: &TimeZone) -> String {
    let moment = parse_iso_timestamp(timestamp).and_then(|ms| i64::try_from(ms).ok());
    let moment = moment.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    moment.map_or_else(String::new, |moment| moment.to_zoned(zone.clone()).date().to_string())
}

/// The days between the first and the last, also those on which nothing ran.
fn fill_days(mut days: BTreeMap<String, SpendingSum>) -> Vec<(String, SpendingSum)> {
    let ends = days.keys().next().cloned().zip(days.keys().next_back().cloned());
    let ends = ends.and_then(|(first, last)| {
        Some((first.parse::<jiff::civil::Date>().ok()?, last.parse::<jiff::civil::Date>().ok()?))
    });
    if let Some((first, last)) = ends {
        let mut day = first;
        for _ in 0..MAX_DAYS {
            if day > last {
                break;
            }
            days.entry(day.to_string()).or_default();
            let Ok(next) = day.tomorrow() else { break };
            day = next;
        }
    }
    days.into_iter().collect()
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

/// The moment that `today`, `month`, `7d`, `12h`, `30m` or `2026-11-01` means.
///
/// # Errors
/// When it is none of these.
pub fn parse_since(text: &str, now_ms: u64, zone: &TimeZone) -> Result<u64> {
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
