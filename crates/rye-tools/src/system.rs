//! `system.facts`: where the tool works, what time it is, what it runs on. Nothing is read from the environment.

use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::{Map, Value, json};

use crate::parameters;

/// Tells facts about the system.
#[derive(Clone, Copy, Debug)]
pub struct SystemFacts;

impl NativeTool for SystemFacts {
    fn name(&self) -> &'static str {
        "system.facts"
    }

    fn is_pure(&self, config: &Map<String, Value>) -> bool {
        // What is writable is a matter of what the tool is given.
        matches!(config.get("item").and_then(Value::as_str), Some("time" | "runtime" | "versions"))
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        // A descriptor may be about one thing only; it then has no parameter.
        let fixed = parameters::optional_text(call.config, "item")?;
        let item = match fixed {
            Some(item) => item,
            None => parameters::optional_text(call.parameters, "item")?.unwrap_or("all"),
        };
        let mut response = json!({"item": item});
        match item {
            "paths" => response["paths"] = paths(call),
            "time" => response["time"] = time(call.now),
            "runtime" | "versions" => response["runtime"] = runtime(),
            "all" => {
                response["paths"] = paths(call);
                response["time"] = time(call.now);
                response["runtime"] = runtime();
            }
            _ => {
                return Err(NativeError::failed("`item` must be `paths`, `time`, `runtime` or `all`"));
            }
        }
        Ok(response)
    }
}

fn paths(call: &NativeCall<'_>) -> Value {
    json!({
        "project": call.project.to_string_lossy(),
        "items": call.project.join(".ai").to_string_lossy(),
        "cache": call.cache.to_string_lossy(),
        "writable": call.access.write.iter().map(|path| path.to_string_lossy()).collect::<Vec<_>>(),
    })
}

fn time(now: u64) -> Value {
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, seconds) = (now / 86_400, now % 86_400);
    let (year, month, day) = civil_from_days(days);
    let date = format!("{year:04}-{month:02}-{day:02}");
    let clock = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    json!({
        "utc": format!("{date}T{clock}Z"),
        "date": date,
        "time": clock,
        "weekday": DAYS[usize::try_from(days % 7).unwrap_or(0)],
        "unix": now,
        "timezone": "UTC",
    })
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    // Years that begin in March have the leap day at their end.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

fn runtime() -> Value {
    let kernel = rustix::system::uname();
    json!({
        "rye": env!("CARGO_PKG_VERSION"),
        "os": std::env::consts::OS,
        "architecture": std::env::consts::ARCH,
        "kernel": format!("{} {}", kernel.sysname().to_string_lossy(), kernel.release().to_string_lossy()),
        "cpus": std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (20_543, (2026, 3, 31)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil_from_days(days), date);
        }
    }

    #[test]
    fn time_comes_from_the_call() {
        assert_eq!(
            time(1_774_961_999),
            json!({"utc": "2026-03-31T12:59:59Z", "date": "2026-03-31", "time": "12:59:59",
                   "weekday": "Tuesday", "unix": 1_774_961_999_u64, "timezone": "UTC"})
        );
    }
}
