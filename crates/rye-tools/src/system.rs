//! `system.facts`: where the tool works, what time it is, what it runs on. Nothing is read from the environment.

use jiff::{SignedDuration, civil};
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

    fn needs_no_access(&self, config: &Map<String, Value>) -> bool {
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
    let since_epoch = SignedDuration::from_secs(i64::try_from(now).unwrap_or(i64::MAX));
    let moment = civil::date(1970, 1, 1).at(0, 0, 0, 0).saturating_add(since_epoch);
    json!({
        "utc": format!("{moment}Z"),
        "date": moment.date().to_string(),
        "time": moment.time().to_string(),
        "weekday": moment.strftime("%A").to_string(),
        "unix": now,
        "timezone": "UTC",
    })
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
        for (days, date, weekday) in [
            (0, "1970-01-01", "Thursday"),
            (58, "1970-02-28", "Saturday"),
            (59, "1970-03-01", "Sunday"),
            (11_016, "2000-02-29", "Tuesday"),
            (20_543, "2026-03-31", "Tuesday"),
            (47_540, "2100-02-28", "Sunday"),
            (47_541, "2100-03-01", "Monday"),
        ] {
            let time = time(days * 86_400);
            assert_eq!((&time["date"], &time["weekday"]), (&json!(date), &json!(weekday)));
            assert_eq!(time["time"], "00:00:00");
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
