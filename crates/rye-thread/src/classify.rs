//! What kind of failure it was, and how long to wait before trying again: `error_classification.yaml`.

use std::collections::BTreeMap;

use rye_item::condition::Condition;
use rye_item::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::duration::milliseconds;

/// Failures by kind; the first pattern that matches decides.
#[derive(Clone, Debug)]
pub struct ErrorClassifier {
    patterns: Vec<Pattern>,
    fallback: ErrorClass,
}

#[derive(Clone, Debug)]
struct Pattern {
    condition: Condition,
    class: ErrorClass,
}

/// What kind of failure it was.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorClass {
    /// `transient`, `rate_limited`, `permanent`, `cancelled`, ….
    pub category: String,
    /// Whether trying again may help.
    pub retryable: bool,
    /// The pattern's id; `default` when none matched.
    pub code: String,
    /// How long to wait.
    pub policy: RetryPolicy,
}

impl ErrorClass {
    /// As hooks and the classifier's callers see it.
    #[must_use]
    pub fn to_value(&self) -> Value {
        json!({
            "category": self.category, "retryable": self.retryable, "code": self.code,
            "retry_policy": self.policy.to_value(),
        })
    }
}

/// How long to wait before trying again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RetryPolicy {
    /// Longer each time.
    Exponential {
        /// At first.
        base_ms: u64,
        /// At most.
        max_ms: u64,
    },
    /// The same each time.
    Fixed {
        /// That long.
        delay_ms: u64,
    },
    /// What the server says.
    UseHeader {
        /// In this header, lower case; in milliseconds where there is one of that name with `-ms` behind it.
        header: String,
        /// When it says nothing that can be read.
        fallback: Box<RetryPolicy>,
    },
    /// Not at all.
    None,
}

/// No wait is longer: an hour.
const MAX_DELAY_MS: u64 = 3_600_000;

impl RetryPolicy {
    /// How long to wait, in milliseconds.
    ///
    /// `attempt` is the number of failures in a row before this one: nought at the first. `headers` are those of the
    /// answer, names in lower case; `now_ms` is the time a date in a header is held against. `jitter_permille` (0 to
    /// 1000) is the caller's dice: it takes up to a quarter off a computed delay, and adds up to a tenth to what a server
    /// asked for, which is never undercut.
    #[must_use]
    pub fn delay_ms(
        &self,
        attempt: u32,
        headers: &BTreeMap<String, String>,
        now_ms: u64,
        jitter_permille: u32,
    ) -> u64 {
        let jitter = u64::from(jitter_permille.min(1000));
        let shortened = |delay: u64| delay - (delay / 4).saturating_mul(jitter) / 1000;
        match self {
            Self::Exponential { base_ms, max_ms } => {
                let factor = 1_u64.checked_shl(attempt).unwrap_or(u64::MAX);
                shortened(base_ms.saturating_mul(factor).min(*max_ms).min(MAX_DELAY_MS))
            }
            Self::Fixed { delay_ms } => shortened((*delay_ms).min(MAX_DELAY_MS)),
            Self::UseHeader { header, fallback } => {
                let exact = headers.get(&format!("{header}-ms")).and_then(|value| value.trim().parse().ok());
                match exact
                    .or_else(|| headers.get(header).and_then(|value| parse_retry_after_ms(value, now_ms)))
                {
                    Some(requested) => {
                        let requested = requested.min(MAX_DELAY_MS);
                        requested + (requested / 10).saturating_mul(jitter) / 1000
                    }
                    None => fallback.delay_ms(attempt, headers, now_ms, jitter_permille),
                }
            }
            Self::None => 0,
        }
    }

    /// As files write it: seconds.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match self {
            Self::Exponential { base_ms, max_ms } => {
                json!({"type": "exponential", "base": as_seconds(*base_ms), "max": as_seconds(*max_ms)})
            }
            Self::Fixed { delay_ms } => json!({"type": "fixed", "delay": as_seconds(*delay_ms)}),
            Self::UseHeader { header, fallback } => {
                json!({"type": "use_header", "header": header, "fallback": fallback.to_value()})
            }
            Self::None => json!({"type": "none"}),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "at most a day in milliseconds")]
fn as_seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// What a header asks for: seconds, or an HTTP date.
fn parse_retry_after_ms(value: &str, now_ms: u64) -> Option<u64> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<f64>() {
        return (seconds.is_finite() && seconds >= 0.0).then(|| milliseconds(seconds));
    }
    let at_ms = parse_http_date(value)?.checked_mul(1000)?;
    Some(at_ms.saturating_sub(now_ms))
}

/// Seconds since 1970 of `Sun, 06 Nov 1994 08:49:37 GMT`.
fn parse_http_date(text: &str) -> Option<u64> {
    let parser = jiff::fmt::rfc2822::DateTimeParser::new().relaxed_weekday(true);
    let moment = parser.parse_timestamp(text.strip_suffix("GMT").map(|rest| format!("{rest}+0000"))?).ok()?;
    u64::try_from(moment.as_second()).ok()
}

impl ErrorClassifier {
    /// Reads the merged file; `policies` are the named ones of `resilience.yaml`.
    ///
    /// # Errors
    /// All patterns that cannot be used.
    pub fn from_value(value: &Value, policies: &BTreeMap<String, Value>) -> Result<Self, String> {
        let entries = value.get("patterns").and_then(Value::as_array).ok_or("`patterns` is missing")?;
        let parser = ClassifierParser { value, policies };
        let mut errors = Vec::new();
        let mut patterns = Vec::new();
        for (at, pattern) in entries.iter().enumerate() {
            match parser.parse_pattern(pattern) {
                Ok(pattern) => patterns.push(pattern),
                Err(message) => errors.push(format!("patterns[{at}]: {message}")),
            }
        }
        let default = parser.parse_class(value.get("default").unwrap_or(&Value::Null), "default");
        match default {
            Ok(default) if errors.is_empty() => Ok(Self { patterns, fallback: default }),
            Ok(_) => Err(errors.join("; ")),
            Err(message) => {
                errors.push(format!("default: {message}"));
                Err(errors.join("; "))
            }
        }
    }

    /// What kind of failure `{error: {type, message, code}, status_code, headers, cancelled}` is.
    #[must_use]
    pub fn classify(&self, failure: &Value) -> ErrorClass {
        let matching = self.patterns.iter().find(|pattern| pattern.condition.matches(failure));
        matching.map_or(&self.fallback, |pattern| &pattern.class).clone()
    }
}

struct ClassifierParser<'a> {
    value: &'a Value,
    policies: &'a BTreeMap<String, Value>,
}

/// A policy that names a policy that names a policy …
const MAX_POLICY_DEPTH: usize = 8;

impl ClassifierParser<'_> {
    fn parse_pattern(&self, written: &Value) -> Result<Pattern, String> {
        let id = written.get("id").and_then(Value::as_str).ok_or("it has no `id`")?;
        let condition = Condition::compile(written.get("match").unwrap_or(&Value::Null));
        let condition = condition.map_err(|error| format!("`{}`: {error}", one_line(id)))?;
        if matches!(condition, Condition::Always) {
            return Err(format!("`{}` matches everything: leave that to `default`", one_line(id)));
        }
        let classified =
            self.parse_class(written, id).map_err(|message| format!("`{}`: {message}", one_line(id)))?;
        Ok(Pattern { condition, class: classified })
    }

    fn parse_class(&self, written: &Value, code: &str) -> Result<ErrorClass, String> {
        let category = written.get("category").and_then(Value::as_str).unwrap_or("permanent").to_owned();
        let retryable = written.get("retryable").and_then(Value::as_bool).unwrap_or(false);
        let policy = match written.get("retry_policy") {
            Some(policy) => self.parse_policy(policy, 0)?,
            // Retrying without a delay does not help.
            None if retryable => self.parse_policy(&json!({"type": "exponential"}), 0)?,
            None => RetryPolicy::None,
        };
        Ok(ErrorClass { category, retryable, code: code.to_owned(), policy })
    }

    fn parse_policy(&self, written: &Value, depth: usize) -> Result<RetryPolicy, String> {
        if depth > MAX_POLICY_DEPTH {
            return Err("its policies name each other in a circle".to_owned());
        }
        let mut map = written.as_object().ok_or("a retry policy is a map")?.clone();
        if let Some(name) = map.remove("policy") {
            let name = name.as_str().unwrap_or_default();
            let Some(Value::Object(named)) = self.policies.get(name) else {
                return Err(format!("there is no policy `{}` in resilience.yaml", one_line(name)));
            };
            // What is written here goes over what is named.
            let mut merged = named.clone();
            if map.contains_key("max") || map.contains_key("max_delay") {
                merged.retain(|key, _| key != "max" && key != "max_delay");
            }
            merged.extend(map);
            return self.parse_policy(&Value::Object(merged), depth + 1);
        }
        let kind = map.get("type").and_then(Value::as_str).unwrap_or("none");
        match kind {
            "exponential" => Ok(RetryPolicy::Exponential {
                base_ms: self.parse_ms(&map, kind, &["base"])?,
                max_ms: self.parse_ms(&map, kind, &["max_delay", "max"])?,
            }),
            "fixed" => Ok(RetryPolicy::Fixed { delay_ms: self.parse_ms(&map, kind, &["delay"])? }),
            "use_header" => {
                let header = map.get("header").or_else(|| self.default_for(kind, "header"));
                let header =
                    header.and_then(Value::as_str).ok_or("it names no `header`")?.to_ascii_lowercase();
                let fallback = match map.get("fallback") {
                    Some(fallback) => self.parse_policy(fallback, depth + 1)?,
                    None => self.parse_policy(&json!({"type": "exponential"}), depth + 1)?,
                };
                Ok(RetryPolicy::UseHeader { header, fallback: Box::new(fallback) })
            }
            "none" => Ok(RetryPolicy::None),
            other => Err(format!("there is no retry policy `{}`", one_line(other))),
        }
    }

    fn parse_ms(&self, map: &Map<String, Value>, kind: &str, names: &[&str]) -> Result<u64, String> {
        let written = names.iter().find_map(|name| map.get(*name));
        let value = written.or_else(|| names.iter().find_map(|name| self.default_for(kind, name)));
        let seconds = value.and_then(Value::as_f64).filter(|seconds| seconds.is_finite() && *seconds >= 0.0);
        seconds
            .map(milliseconds)
            .ok_or_else(|| format!("`{}` is not a number of seconds", names.join("` or `")))
    }

    /// What the file says a policy that leaves a number out gets.
    fn default_for(&self, kind: &str, name: &str) -> Option<&Value> {
        self.value.get("retry_policy_types")?.get(kind)?.get("parameters")?.get(name)?.get("default")
    }
}

#[cfg(test)]
mod tests;
