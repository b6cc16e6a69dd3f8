//! How much a thread may use.
//!
//! Resolution: defaults of `resilience.yaml`, then the directive's `<limits>`, then the caller's overrides, then capped by
//! the parent. A limit that is absent is none: `null` says so.

pub use rye_item::parse::directive::LIMIT_NAMES;
use rye_item::timestamp::iso_timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::cost::Cost;
use crate::money::Nanos;
use crate::rolling::RollingRefusal;

/// What limits look like, for those that cannot be read.
pub const LIMIT_EXAMPLES: &str = "limits are whole numbers, spend an amount of dollars, such as turns=5, spend=0.25 or duration_seconds=600";

/// How much a thread may use; `None` is as much as it likes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadLimits {
    /// Answers of the model.
    pub turns: Option<u64>,
    /// Tokens in and out together, over the whole thread.
    pub tokens: Option<u64>,
    /// Money, children included.
    pub spend: Option<Nanos>,
    /// Children it may start itself.
    pub spawns: Option<u64>,
    /// Levels of children below it.
    pub depth: Option<u64>,
    /// Seconds at work.
    pub duration_seconds: Option<u64>,
}

/// A limit that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct LimitError(pub String);

/// A limit that is looser than another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaisedLimit {
    /// Its name: `turns`.
    pub name: &'static str,
    /// What it was.
    pub from: String,
    /// What it is to be.
    pub to: String,
}

/// A limit that is reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LimitReached {
    /// `turns_exceeded`, ….
    pub limit_code: String,
    /// What is used.
    #[serde(default)]
    pub current_value: Value,
    /// What is allowed.
    pub current_max: Value,
    /// What the next call may need, where that is more than is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needed: Option<Value>,
    /// The budget of a day or a month, if it is one: `day budget of user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<String>,
    /// When that budget's period ends, in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees_at: Option<String>,
    /// The tools of calls that it stopped before they had ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<String>,
}

/// The least that is suggested where a call was stopped before it had ended: how long it needs is not known.
const MIN_SECONDS_FOR_STOPPED_CALLS: f64 = 60.0;

impl LimitReached {
    /// Of the limit `name`.
    #[must_use]
    pub fn new(name: &str, current_value: Value, current_max: Value) -> Self {
        Self {
            limit_code: format!("{name}_exceeded"),
            current_value,
            current_max,
            needed: None,
            budget: None,
            frees_at: None,
            stopped: Vec::new(),
        }
    }

    /// The same, and what the next call may need.
    #[must_use]
    pub fn with_needed(self, needed: Value) -> Self {
        Self { needed: Some(needed), ..self }
    }

    /// The same, and the tools of calls that it stopped.
    #[must_use]
    pub fn with_stopped(self, stopped: Vec<String>) -> Self {
        Self { stopped, ..self }
    }

    /// The same, of the budget of a day or a month.
    #[must_use]
    pub fn of_rolling(self, refusal: &RollingRefusal) -> Self {
        let frees_at = Some(iso_timestamp(refusal.frees_ms));
        Self { budget: Some(refusal.budget.clone()), frees_at, ..self }
    }

    /// How much more lets the thread continue: as much again, and no less than the next call may need.
    #[must_use]
    pub fn suggested_raise(&self) -> String {
        let number = |value: &Value| value.as_f64().filter(|number| *number > 0.0).unwrap_or(0.0);
        let (used, max) = (number(&self.current_value), number(&self.current_max));
        let shortfall = self.needed.as_ref().map_or(0.0, |needed| number(needed) + used - max);
        let (is_money, default) = if self.name() == "spend" { (true, 1.0) } else { (false, 10.0) };
        let doubled = if max > 0.0 { max } else { default };
        let least = if self.stopped.is_empty() { 0.0 } else { MIN_SECONDS_FOR_STOPPED_CALLS };
        let more = shortfall.max(doubled + (used - max).max(0.0)).max(least);
        match is_money {
            true => format!("+{}", (more * 1e6).ceil() / 1e6),
            false => format!("+{:.0}", more.ceil()),
        }
    }

    /// What to tell a person.
    #[must_use]
    pub fn message(&self) -> String {
        let name = self.budget.clone().unwrap_or_else(|| self.name().replace('_', " "));
        let (used, max) = (&self.current_value, &self.current_max);
        let message = match &self.needed {
            Some(needed) if used.as_f64() < max.as_f64() => {
                format!("{name} would be exceeded: {used} of {max} used, and the next call may need {needed}")
            }
            _ => format!("{name} reached: {used} of {max}"),
        };
        let message = match self.stopped.as_slice() {
            [] => message,
            [one] => format!("{message}; `{one}` was stopped and needs more time"),
            several => {
                format!("{message}; {} calls were stopped and need more time", several.len())
            }
        };
        match &self.frees_at {
            Some(frees_at) => format!("{message}; a new period begins at {frees_at}"),
            None => message,
        }
    }

    /// The limit's name: `turns`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.limit_code.strip_suffix("_exceeded").unwrap_or(&self.limit_code)
    }
}

impl ThreadLimits {
    /// These limits with `over` on top: what it names counts, `null` lifts a limit, the rest stays.
    ///
    /// # Errors
    /// When a name is unknown or a value is none, all of them named.
    pub fn with_overrides(mut self, overrides: &Map<String, Value>) -> Result<Self, LimitError> {
        let mut errors = Vec::new();
        for (key, value) in overrides {
            // The older spelling; the reader of directives warns of it.
            let name = key.strip_prefix("max_").unwrap_or(key);
            if name == "spend_currency" {
                if value.as_str() != Some("USD") {
                    errors.push(format!("spend_currency {value}: only USD is counted"));
                }
                continue;
            }
            if let Err(message) = self.set(name, value) {
                errors.push(message);
            }
        }
        if errors.is_empty() { Ok(self) } else { Err(LimitError(errors.join("; "))) }
    }

    fn set(&mut self, name: &str, value: &Value) -> Result<(), String> {
        if value.as_str().is_some_and(|text| text.trim_start().starts_with('+')) {
            return Err(format!("{name} {value}: a new thread has none to raise; say how much it may use"));
        }
        if name == "spend" {
            self.spend = match value {
                Value::Null => None,
                _ => Some(Nanos::from_value(value).ok_or_else(|| {
                    format!("spend {value} is not an amount of dollars with at most nine places")
                })?),
            };
            return Ok(());
        }
        let place = match name {
            "turns" => &mut self.turns,
            "tokens" => &mut self.tokens,
            "spawns" => &mut self.spawns,
            "depth" => &mut self.depth,
            "duration_seconds" => &mut self.duration_seconds,
            _ => {
                let name = rye_item::text::one_line(name);
                return Err(format!("unknown limit `{name}`; there are {}", LIMIT_NAMES.join(", ")));
            }
        };
        *place = match value {
            Value::Null => None,
            _ => Some(parse_whole(value).ok_or_else(|| format!("{name} {value} is not a whole number"))?),
        };
        Ok(())
    }

    /// No more than `bounds` has.
    #[must_use]
    pub fn clamp_to(self, bounds: &Self) -> Self {
        let depth = min_limit(self.depth, bounds.depth);
        Self { depth, ..self.clamp_to_parent(bounds) }
    }

    /// The limits of a child: no more than its parent has, and one level less.
    #[must_use]
    pub fn clamp_to_parent(self, parent: &Self) -> Self {
        Self {
            turns: min_limit(self.turns, parent.turns),
            tokens: min_limit(self.tokens, parent.tokens),
            spend: min_limit(self.spend, parent.spend),
            spawns: min_limit(self.spawns, parent.spawns),
            depth: min_limit(self.depth, parent.depth.map(|depth| depth.saturating_sub(1))),
            duration_seconds: min_limit(self.duration_seconds, parent.duration_seconds),
        }
    }

    /// The limits that are looser here than in `bounds`, with both values, for people.
    #[must_use]
    pub fn raised_limits(&self, bounds: &Self) -> Vec<RaisedLimit> {
        let (own, bounds) = (self.to_value(), bounds.to_value());
        let is_raised = |name: &str| match (own[name].as_f64(), bounds[name].as_f64()) {
            (Some(own), Some(bound)) => own > bound,
            (None, Some(_)) => true,
            (_, None) => false,
        };
        let text = |value: &Value| if value.is_null() { "no limit".to_owned() } else { value.to_string() };
        let raised = LIMIT_NAMES.into_iter().filter(|name| is_raised(name));
        raised.map(|name| RaisedLimit { name, from: text(&bounds[name]), to: text(&own[name]) }).collect()
    }

    /// What is left of them after this was used.
    #[must_use]
    pub fn remaining_after(self, cost: &Cost) -> Self {
        let remaining = |max: Option<u64>, used: u64| max.map(|max| max.saturating_sub(used));
        Self {
            turns: remaining(self.turns, cost.turns),
            tokens: remaining(self.tokens, cost.tokens()),
            spend: self.spend.map(|spend| spend.minus(cost.spend)),
            duration_seconds: remaining(self.duration_seconds, cost.elapsed_ms / 1000),
            ..self
        }
    }

    /// The first limit that `cost` has reached.
    #[must_use]
    pub fn first_reached(&self, cost: &Cost) -> Option<LimitReached> {
        let check = |name, current: u64, max: Option<u64>| {
            max.filter(|max| current >= *max).map(|max| LimitReached::new(name, json!(current), json!(max)))
        };
        check("turns", cost.turns, self.turns)
            .or_else(|| check("tokens", cost.tokens(), self.tokens))
            .or_else(|| {
                let max = self.spend.filter(|max| cost.spend >= *max)?;
                Some(LimitReached::new("spend", json!(cost.spend.dollars()), json!(max.dollars())))
            })
            .or_else(|| check("duration_seconds", cost.elapsed_ms / 1000, self.duration_seconds))
    }

    /// As hooks, transcripts and answers show them: spend in dollars, absent limits left out.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                map.insert(name.to_owned(), value);
            }
        };
        put("turns", self.turns.map(Value::from));
        put("tokens", self.tokens.map(Value::from));
        put("spend", self.spend.map(|spend| json!(spend.dollars())));
        put("spawns", self.spawns.map(Value::from));
        put("depth", self.depth.map(Value::from));
        put("duration_seconds", self.duration_seconds.map(Value::from));
        Value::Object(map)
    }
}

fn min_limit<T: Ord>(own: Option<T>, parents: Option<T>) -> Option<T> {
    match (own, parents) {
        (Some(own), Some(parents)) => Some(own.min(parents)),
        (own, parents) => own.or(parents),
    }
}

/// A whole number, also where a directive or a command line wrote it as text.
fn parse_whole(value: &Value) -> Option<u64> {
    let number = match value {
        Value::String(text) => text.trim().parse().ok()?,
        Value::Number(number) => number.as_u64()?,
        _ => return None,
    };
    (number <= i64::MAX.unsigned_abs()).then_some(number)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{LIMIT_NAMES, ThreadLimits};
    use crate::cost::Cost;
    use crate::money::Nanos;

    fn limits(value: &Value) -> ThreadLimits {
        ThreadLimits::default().with_overrides(value.as_object().expect("an object")).expect("limits")
    }

    #[test]
    fn overrides_replace_lift_or_fail() {
        let base = limits(&json!({"turns": 25, "spend": 1.0, "spend_currency": "USD"}));
        let over = json!({"max_turns": "5", "spend": null});
        let result = base.with_overrides(over.as_object().expect("an object")).expect("limits");
        assert_eq!((result.turns, result.spend), (Some(5), None));
        let invalid = json!({"turn": 1, "tokens": -1, "spend": "much", "spend_currency": "EUR"});
        let message =
            base.with_overrides(invalid.as_object().expect("an object")).expect_err("refused").to_string();
        for part in ["unknown limit `turn`", "tokens -1", "spend \"much\"", "only USD"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn every_limit_name_can_be_set() {
        for name in LIMIT_NAMES {
            let value = limits(&json!({name: 3})).to_value();
            assert_eq!(value[name].as_f64(), Some(3.0), "{name}");
        }
    }

    #[test]
    fn child_limits_are_clamped_to_parent() {
        let parent = limits(&json!({"turns": 5, "depth": 2, "spend": 0.5}));
        let child = limits(&json!({"turns": 25, "tokens": 10, "depth": 10})).clamp_to_parent(&parent);
        assert_eq!((child.turns, child.tokens, child.depth), (Some(5), Some(10), Some(1)));
        assert_eq!(child.spend, Some(Nanos(500_000_000)));
    }

    #[test]
    fn each_exhausted_limit_is_reached() {
        let used = Cost { turns: 2, input_tokens: 6, output_tokens: 4, spend: Nanos(5), elapsed_ms: 3999 };
        let first = |value: Value| limits(&value).first_reached(&used).map(|reached| reached.limit_code);
        assert_eq!(first(json!({"turns": 2})).as_deref(), Some("turns_exceeded"));
        assert_eq!(first(json!({"turns": 3, "tokens": 10})).as_deref(), Some("tokens_exceeded"));
        assert_eq!(first(json!({"spend": "0.000000005"})).as_deref(), Some("spend_exceeded"));
        assert_eq!(first(json!({"duration_seconds": 3})).as_deref(), Some("duration_seconds_exceeded"));
        assert_eq!(first(json!({"turns": 3, "tokens": 11, "spend": 1, "duration_seconds": 4})), None);
    }
}
