//! Rolling budgets: what may be spent in a day and in a month, whichever tree of threads spends it.

use std::collections::BTreeMap;
use std::fmt;

pub use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _, Zoned};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::money::Nanos;

/// How long a rolling budget lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BudgetPeriod {
    /// From midnight to midnight.
    Day,
    /// From the first day of a month to the first of the next.
    Month,
}

impl BudgetPeriod {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
        }
    }

    /// The period that a moment lies in: its start and its end, in milliseconds since 1970.
    fn bounds(self, at_ms: u64, zone: &TimeZone) -> Result<(u64, u64), jiff::Error> {
        let moment = Timestamp::from_millisecond(i64::try_from(at_ms).unwrap_or(i64::MAX))?;
        let local = moment.to_zoned(zone.clone());
        let (start, end) = match self {
            Self::Day => (local.start_of_day()?, local.tomorrow()?.start_of_day()?),
            Self::Month => {
                let first = local.first_of_month()?;
                (first.start_of_day()?, first.checked_add(1.month())?.start_of_day()?)
            }
        };
        let ms = |at: &Zoned| u64::try_from(at.timestamp().as_millisecond()).unwrap_or(0);
        Ok((ms(&start), ms(&end)))
    }
}

/// Whose spending a rolling budget limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BudgetScope {
    /// The user's, in all projects.
    User,
    /// That of one project, by its folder.
    Project(String),
    /// That of one directive and all threads below it, in all projects.
    Directive(String),
}

impl BudgetScope {
    /// What a store calls it.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::User => "user".to_owned(),
            Self::Project(folder) => format!("project {folder}"),
            Self::Directive(id) => format!("directive {id}"),
        }
    }
}

impl fmt::Display for BudgetScope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User => formatter.write_str("user"),
            Self::Project(_) => formatter.write_str("project"),
            Self::Directive(id) => write!(formatter, "directive {id}"),
        }
    }
}

/// A budget of the day or month that a moment lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollingBudget {
    /// Whose spending it limits.
    pub scope: BudgetScope,
    /// How long it lasts.
    pub period: BudgetPeriod,
    /// When the period began, in milliseconds since 1970.
    pub starts_ms: u64,
    /// When it ends.
    pub ends_ms: u64,
    /// The most that may be spent in it.
    pub limit: Nanos,
}

impl fmt::Display for RollingBudget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} budget of {}", self.period.as_str(), self.scope)
    }
}

/// What is spent and reserved of a rolling budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RollingUsage {
    /// Spent in its period, and in any that ends after the period's start.
    pub used: Nanos,
    /// Reserved for calls in flight.
    pub reserved: Nanos,
    /// Of both, what belongs to periods that begin later: the clock was ahead then.
    pub ahead: Nanos,
}

/// Which rolling budget refused a call, and when its period ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RollingRefusal {
    /// The budget's name: `day budget of user`.
    pub budget: String,
    /// When its period ends, in milliseconds since 1970.
    pub frees_ms: u64,
}

/// The most that may be spent in each period; `None` is any amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeriodCaps {
    /// In a day.
    pub day: Option<Nanos>,
    /// In a month.
    pub month: Option<Nanos>,
}

/// The rolling budgets that settings name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RollingCaps {
    /// The user's.
    pub user: PeriodCaps,
    /// Each project's.
    pub project: PeriodCaps,
    /// Directives', by id.
    pub directives: BTreeMap<String, PeriodCaps>,
    /// The time zone whose midnight counts; `None` is the machine's.
    pub time_zone: Option<String>,
}

/// The word in settings for the machine's time zone.
const LOCAL_ZONE: &str = "local";

impl RollingCaps {
    /// Reads the settings in `budgets.yaml`.
    ///
    /// # Errors
    /// The first amount that is none, with its key.
    pub fn from_value(value: &Value) -> Result<Self, String> {
        let directives = value.get("directives").and_then(Value::as_object).into_iter().flatten();
        let directives: Result<_, String> = directives
            .map(|(id, caps)| Ok((id.clone(), period_caps(Some(caps), &format!("directives.{id}"))?)))
            .collect();
        let zone = value.get("time_zone").and_then(Value::as_str);
        Ok(Self {
            user: period_caps(value.get("user"), "user")?,
            project: period_caps(value.get("project"), "project")?,
            directives: directives?,
            time_zone: zone.filter(|zone| *zone != LOCAL_ZONE).map(str::to_owned),
        })
    }

    /// Whether nothing is limited.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let is_any = |caps: &PeriodCaps| *caps == PeriodCaps::default();
        is_any(&self.user) && is_any(&self.project) && self.directives.values().all(is_any)
    }

    /// The budgets that spending in `project` by `directives` counts against, at a moment.
    ///
    /// # Errors
    /// When the moment lies outside of what a calendar knows.
    pub fn budgets(
        &self,
        project: Option<&str>,
        directives: &[String],
        at_ms: u64,
        zone: &TimeZone,
    ) -> Result<Vec<RollingBudget>, jiff::Error> {
        let project = project.map(|folder| (BudgetScope::Project(folder.to_owned()), self.project));
        let directives = directives
            .iter()
            .filter_map(|id| Some((BudgetScope::Directive(id.clone()), *self.directives.get(id)?)));
        let scopes = std::iter::once((BudgetScope::User, self.user)).chain(project).chain(directives);
        let mut budgets: Vec<RollingBudget> = Vec::new();
        for (scope, caps) in scopes {
            for (period, limit) in [(BudgetPeriod::Day, caps.day), (BudgetPeriod::Month, caps.month)] {
                let Some(limit) = limit else { continue };
                if budgets.iter().any(|known| known.scope == scope && known.period == period) {
                    continue;
                }
                let (starts_ms, ends_ms) = period.bounds(at_ms, zone)?;
                budgets.push(RollingBudget { scope: scope.clone(), period, starts_ms, ends_ms, limit });
            }
        }
        Ok(budgets)
    }
}

fn period_caps(value: Option<&Value>, key: &str) -> Result<PeriodCaps, String> {
    let amount = |name: &str| match value.and_then(|value| value.get(name)) {
        None | Some(Value::Null) => Ok(None),
        Some(found) => Nanos::from_value(found)
            .map(Some)
            .ok_or_else(|| format!("{key}.{name}: expected dollars with at most nine places, found {found}")),
    };
    Ok(PeriodCaps { day: amount("day")?, month: amount("month")? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(text: &str) -> u64 {
        let moment: Timestamp = text.parse().expect("a moment");
        u64::try_from(moment.as_millisecond()).expect("after 1970")
    }

    #[test]
    fn periods_follow_the_time_zone() {
        let zone = TimeZone::fixed(jiff::tz::offset(-5));
        let day = BudgetPeriod::Day.bounds(at("2026-03-01T03:30:00Z"), &zone).expect("a day");
        assert_eq!(day, (at("2026-02-28T05:00:00Z"), at("2026-03-01T05:00:00Z")));
        let month = BudgetPeriod::Month.bounds(at("2026-03-01T03:30:00Z"), &zone).expect("a month");
        assert_eq!(month, (at("2026-02-01T05:00:00Z"), at("2026-03-01T05:00:00Z")));
        let utc = BudgetPeriod::Month.bounds(at("2026-12-31T23:59:59Z"), &TimeZone::UTC).expect("a month");
        assert_eq!(utc, (at("2026-12-01T00:00:00Z"), at("2027-01-01T00:00:00Z")));
    }

    #[test]
    fn each_scope_has_its_budgets() {
        let caps = RollingCaps::from_value(&json!({
            "user": {"day": 5, "month": 60.5}, "project": {"day": 2},
            "directives": {"team/report": {"month": "10"}, "team/other": {"day": 1}},
        }))
        .expect("settings");
        let directives = ["team/report".to_owned(), "team/child".to_owned(), "team/report".to_owned()];
        let budgets = caps
            .budgets(Some("/srv/site"), &directives, at("2026-05-05T12:00:00Z"), &TimeZone::UTC)
            .expect("budgets");
        let names: Vec<_> =
            budgets.iter().map(|budget| (budget.to_string(), budget.limit.dollars())).collect();
        let expected = [
            ("day budget of user".to_owned(), 5.0),
            ("month budget of user".to_owned(), 60.5),
            ("day budget of project".to_owned(), 2.0),
            ("month budget of directive team/report".to_owned(), 10.0),
        ];
        assert_eq!(names, expected);
        assert_eq!(caps.budgets(None, &[], 0, &TimeZone::UTC).expect("budgets").len(), 2);
    }

    #[test]
    fn invalid_amounts_are_named() {
        let error =
            RollingCaps::from_value(&json!({"directives": {"a/b": {"day": -1}}})).expect_err("refused");
        assert!(error.starts_with("directives.a/b.day:"), "{error}");
        assert!(RollingCaps::from_value(&json!({"time_zone": "local"})).expect("settings").is_empty());
    }
}
