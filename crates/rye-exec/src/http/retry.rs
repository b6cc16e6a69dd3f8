//! When to ask again, and how long to wait before.

use std::time::Duration;

use lillux::http::{HttpError, HttpMethod, HttpResponse};
use serde_json::Value;

/// How the pause grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Backoff {
    #[default]
    Exponential,
    Linear,
    Constant,
}

/// How often a request is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRetry {
    max_attempts: u32,
    backoff: Backoff,
    base_delay: Duration,
    max_delay: Duration,
    retries_unsafe_methods: bool,
}

impl Default for HttpRetry {
    fn default() -> Self {
        Self {
            max_attempts: 1,
            backoff: Backoff::default(),
            base_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(30),
            retries_unsafe_methods: false,
        }
    }
}

const MAX_ATTEMPTS: u64 = 10;

impl HttpRetry {
    /// Reads `config.retry`.
    ///
    /// # Errors
    /// In words, what is wrong with it.
    pub fn from_config(value: Option<&Value>) -> Result<Self, String> {
        let mut retry = Self::default();
        let Some(value) = value.filter(|value| !value.is_null()) else {
            return Ok(retry);
        };
        let map = value.as_object().ok_or("`retry` must be a map")?;
        let number = |name: &str| -> Result<Option<u64>, String> {
            match map.get(name) {
                None | Some(Value::Null) => Ok(None),
                Some(value) => value
                    .as_u64()
                    .map(Some)
                    .ok_or_else(|| format!("`retry.{name}` must be a whole number that is not negative")),
            }
        };
        if let Some(count) = number("max_attempts")? {
            retry.max_attempts = u32::try_from(count.clamp(1, MAX_ATTEMPTS)).unwrap_or(1);
        }
        if let Some(base) = number("base_ms")? {
            retry.base_delay = Duration::from_millis(base);
        }
        if let Some(max) = number("max_ms")? {
            retry.max_delay = Duration::from_millis(max);
        }
        retry.backoff = match map.get("backoff").and_then(Value::as_str) {
            None | Some("exponential") => Backoff::Exponential,
            Some("linear") => Backoff::Linear,
            Some("constant") => Backoff::Constant,
            Some(other) => {
                return Err(format!("`retry.backoff` is `{other}`; use exponential, linear or constant"));
            }
        };
        retry.retries_unsafe_methods = map.get("retry_unsafe").and_then(Value::as_bool).unwrap_or(false);
        Ok(retry)
    }

    /// How long to wait before asking again; `None` when this outcome stands. `jitter` is between 0 and 1.
    #[must_use]
    pub fn delay(
        &self,
        attempt: u32,
        method: HttpMethod,
        outcome: &Result<HttpResponse, HttpError>,
        jitter: f64,
    ) -> Option<Duration> {
        let may_repeat = method.is_idempotent() || self.retries_unsafe_methods;
        let is_retryable = match outcome {
            // The server says that it did not do it.
            Ok(response) if matches!(response.status, 429 | 503 | 529) => true,
            Ok(response) => matches!(response.status, 502 | 504) && may_repeat,
            // Nothing was sent yet.
            Err(HttpError::Resolve(_) | HttpError::Connect { .. }) => true,
            Err(error) => is_transport_error(error) && may_repeat,
        };
        if !is_retryable || attempt >= self.max_attempts {
            return None;
        }
        let server_delay = outcome.as_ref().ok().and_then(retry_after);
        Some(match server_delay {
            Some(server_delay) => {
                server_delay.saturating_add(self.base_delay.min(server_delay).mul_f64(0.1 * jitter))
            }
            None => self.backoff_delay(attempt).mul_f64(0.5 + 0.5 * jitter),
        })
    }

    fn backoff_delay(&self, attempt: u32) -> Duration {
        let factor = match self.backoff {
            Backoff::Exponential => 1_u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX),
            Backoff::Linear => attempt,
            Backoff::Constant => 1,
        };
        self.base_delay.saturating_mul(factor).min(self.max_delay)
    }
}

/// Whether the network failed, rather than a rule.
pub(super) fn is_transport_error(error: &HttpError) -> bool {
    matches!(
        error,
        HttpError::Resolve(_)
            | HttpError::Connect { .. }
            | HttpError::Transport { .. }
            | HttpError::Timeout(_)
    )
}

/// `retry-after` in seconds, or as a date: then against the server's own clock.
fn retry_after(response: &HttpResponse) -> Option<Duration> {
    let text = response.header("retry-after")?.trim();
    if let Ok(seconds) = text.parse::<u32>() {
        return Some(Duration::from_secs(seconds.into()));
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let now = httpdate::parse_http_date(response.header("date")?).ok()?;
    Some(until.duration_since(now).unwrap_or_default())
}

/// A number between 0 and 1; without a source of chance, the middle.
pub(super) fn jitter() -> f64 {
    getrandom::u32().map_or(0.5, |number| f64::from(number) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn retry(value: &Value) -> HttpRetry {
        HttpRetry::from_config(Some(value)).expect("a retry")
    }

    fn response(status: u16, headers: &[(&str, &str)]) -> Result<HttpResponse, HttpError> {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Ok(HttpResponse { status, headers: headers.collect(), ..HttpResponse::default() })
    }

    #[test]
    fn backoff_grows_up_to_the_maximum() {
        let pauses = |backoff: &str| {
            let retry = retry(&json!({"max_attempts": 9, "backoff": backoff, "base_ms": 100, "max_ms": 350}));
            let delay = |attempt| retry.delay(attempt, HttpMethod::Get, &response(503, &[]), 1.0);
            (1..5).map(|attempt| delay(attempt).expect("a delay").as_millis()).collect::<Vec<_>>()
        };
        assert_eq!(pauses("exponential"), [100, 200, 350, 350]);
        assert_eq!(pauses("linear"), [100, 200, 300, 350]);
        assert_eq!(pauses("constant"), [100, 100, 100, 100]);
        let hundred = retry(&json!({"max_attempts": 2, "base_ms": 100}));
        let lowest = hundred.delay(1, HttpMethod::Get, &response(503, &[]), 0.0);
        assert_eq!(lowest, Some(Duration::from_millis(50)));
    }

    #[test]
    fn retry_after_is_seconds_or_date() {
        let retry = retry(&json!({"max_attempts": 2}));
        let delay = |headers: &[(&str, &str)]| retry.delay(1, HttpMethod::Post, &response(429, headers), 0.0);
        assert_eq!(delay(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        let (date, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:50:07 GMT");
        assert_eq!(delay(&[("retry-after", later), ("date", date)]), Some(Duration::from_secs(30)));
        assert_eq!(delay(&[("retry-after", date), ("date", later)]), Some(Duration::ZERO));
        let plain = Some(Duration::from_millis(500));
        assert_eq!(delay(&[("retry-after", later)]), plain);
        assert_eq!(delay(&[("retry-after", "soon")]), plain);
    }

    #[test]
    fn unsafe_requests_are_not_retried_by_default() {
        let broken = Err(HttpError::Transport { host: "h".into(), cause: "c".into() });
        let unreached = Err(HttpError::Connect { host: "h".into(), cause: "c".into() });
        let careful = retry(&json!({"max_attempts": 3}));
        let bold = retry(&json!({"max_attempts": 3, "retry_unsafe": true}));
        let repeats = |retry: &HttpRetry, method, outcome: &Result<HttpResponse, HttpError>| {
            retry.delay(1, method, outcome, 0.5).is_some()
        };
        for (outcome, by_post) in [
            (&broken, false),
            (&unreached, true),
            (&response(502, &[]), false),
            (&response(504, &[]), false),
            (&response(429, &[]), true),
            (&response(503, &[]), true),
            (&response(529, &[]), true),
        ] {
            assert!(repeats(&careful, HttpMethod::Get, outcome) && repeats(&bold, HttpMethod::Post, outcome));
            assert_eq!(repeats(&careful, HttpMethod::Post, outcome), by_post, "{outcome:?}");
        }
        let denied = Err(HttpError::LocalName("h".into()));
        for outcome in [&response(200, &[]), &response(500, &[]), &denied, &Err(HttpError::Cancelled)] {
            assert!(!repeats(&bold, HttpMethod::Get, outcome), "{outcome:?}");
        }
        assert_eq!(bold.delay(3, HttpMethod::Get, &response(503, &[]), 0.5), None);
        assert_eq!(HttpRetry::default().delay(1, HttpMethod::Get, &response(503, &[]), 0.5), None);
    }

    #[test]
    fn invalid_retry_config_is_refused() {
        for (value, message) in [
            (json!([]), "`retry` must be a map"),
            (json!({"backoff": "x"}), "`retry.backoff` is `x`; use exponential, linear or constant"),
            (json!({"base_ms": -1}), "`retry.base_ms` must be a whole number that is not negative"),
        ] {
            assert_eq!(HttpRetry::from_config(Some(&value)), Err(message.to_owned()));
        }
        assert_eq!(retry(&json!({"max_attempts": 99999})).max_attempts, 10);
    }
}
