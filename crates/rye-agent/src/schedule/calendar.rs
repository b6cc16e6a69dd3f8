//! The times of a schedule: of a calendar, or at intervals.

use cronexpr::{Crontab, FallbackTimezoneOption, ParseOptions};
use jiff::Timestamp;

/// The shortest interval.
pub const MIN_INTERVAL_MS: u64 = 60_000;

/// The times at which a schedule starts a thread.
#[derive(Debug)]
pub enum ScheduleTimes {
    /// Those of a calendar.
    Cron(Box<Crontab>),
    /// Those of an interval.
    Every {
        /// The interval.
        interval_ms: u64,
        /// Where it counts from.
        anchor_ms: u64,
    },
}

impl ScheduleTimes {
    /// Reads five fields: minute, hour, day of the month, month, day of the week; in this time zone, or the machine's.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn cron(text: &str, time_zone: Option<&str>) -> Result<Self, String> {
        let fields = text.split_whitespace().count();
        if fields != 5 {
            return Err(format!("invalid cron expression `{text}`: expected 5 fields, found {fields}"));
        }
        let mut options = ParseOptions::default();
        options.fallback_timezone_option = FallbackTimezoneOption::System;
        let text = match time_zone {
            Some(zone) if zone.split_whitespace().count() != 1 => {
                return Err(format!("invalid time zone `{zone}`"));
            }
            Some(zone) => format!("{text} {zone}"),
            None => text.to_owned(),
        };
        let parsed = cronexpr::parse_crontab_with(&text, options);
        let crontab = parsed.map_err(|error| {
            let reason = error.to_string();
            let reason = reason.lines().last().unwrap_or_default();
            let reason = reason.trim_start_matches([' ', '^']);
            format!("invalid cron expression `{text}`: {reason}")
        })?;
        Ok(Self::Cron(Box::new(crontab)))
    }

    /// Reads an interval: `15m`, `2h`, `1d`.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn every(text: &str, anchor_ms: u64) -> Result<Self, String> {
        Ok(Self::Every { interval_ms: parse_interval(text)?, anchor_ms })
    }

    /// The first time after a moment; none when there is no further one.
    #[must_use]
    pub fn next_after(&self, at_ms: u64) -> Option<u64> {
        match self {
            Self::Every { interval_ms, anchor_ms } => {
                let passed = at_ms.saturating_sub(*anchor_ms) / interval_ms;
                let first = if at_ms < *anchor_ms { 0 } else { passed + 1 };
                interval_ms.checked_mul(first.max(1))?.checked_add(*anchor_ms)
            }
            Self::Cron(crontab) => {
                let moment = Timestamp::from_millisecond(i64::try_from(at_ms).ok()?).ok()?;
                let next = crontab.find_next(moment).ok()?;
                u64::try_from(next.timestamp().as_millisecond()).ok()
            }
        }
    }
}

/// Milliseconds of an interval: `90s`, `15m`, `2h`, `1d`.
///
/// # Errors
/// What is wrong, in words.
pub fn parse_interval(text: &str) -> Result<u64, String> {
    let invalid = || format!("invalid interval `{text}`; use minutes, hours or days such as 15m, 2h, 1d");
    let (number, unit) = text.split_at_checked(text.len().saturating_sub(1)).ok_or_else(invalid)?;
    let number: u64 = number.parse().map_err(|_| invalid())?;
    let unit_ms = match unit {
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(invalid()),
    };
    let interval = number.checked_mul(unit_ms).filter(|ms| *ms <= 366 * 86_400_000).ok_or_else(invalid)?;
    if interval < MIN_INTERVAL_MS {
        return Err(format!("`{text}` is too short: the shortest interval is 1m"));
    }
    Ok(interval)
}
