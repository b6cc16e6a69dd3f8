//! The `http_client` primitive: a tool's `config` → one request → what the tool answers.
//!
//! Strings in the config are final: variables and parameters were filled in before (URLs through [`fill_url`]). How a
//! request travels, and which addresses it may reach, is `lillux::http`'s business.

mod answer;
mod prepare;
mod redact;
mod retry;
mod target;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use lillux::Cancel;
use lillux::http::{Client, Event, HttpError, OnEvent, Policy, Proxies, Response, wait};
use serde_json::{Map, Value, json};

use crate::native::Access;
use crate::outcome::Failure;

pub use prepare::{Mode, Prepared};
pub use redact::{Secrets, is_secret_name, redacted};
pub use retry::Retry;
pub use target::{check_url, encode, fill_url};

/// What a call of the primitive came to.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpOutcome {
    /// Whether the status is 2xx or 3xx.
    pub is_success: bool,
    /// `status_code`, `body`, `headers` and more; null when nothing answered.
    pub data: Value,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// The request and every attempt, without secrets.
    pub trace: Value,
    /// How many requests were sent.
    pub attempts: u32,
    /// Whether the body was cut at its bound.
    pub truncated: bool,
}

impl HttpOutcome {
    /// Why it failed, in words.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.failure.as_ref().map(Failure::message)
    }

    fn failed(failure: Failure) -> Self {
        Self {
            is_success: false,
            data: Value::Null,
            failure: Some(failure),
            trace: Value::Null,
            attempts: 0,
            truncated: false,
        }
    }
}

/// A client for what a tool may reach; proxies and certificates come from the tool's environment.
///
/// # Errors
/// When the tool may not use the network, or its exceptions mean nothing.
pub fn client(environment: &BTreeMap<String, String>, access: &Access) -> Result<Client, String> {
    if !access.network {
        return Err("the tool may not use the network".to_owned());
    }
    let policy = Policy::new(&access.allowed_hosts).map_err(|error| error.to_string())?;
    let variable = |name: &str| environment.get(name).map(String::as_str);
    let client = Client::new(policy).with_proxies(Proxies::from_variables(variable));
    Ok(match variable("SSL_CERT_FILE").filter(|path| !path.is_empty()) {
        Some(path) => client.with_certificate_file(PathBuf::from(path)),
        None => client,
    })
}

/// Runs the primitive. `config` is merged and filled in; `environment` is what the tool was given.
#[must_use]
pub fn call(
    config: &Map<String, Value>,
    environment: &BTreeMap<String, String>,
    access: &Access,
    cancel: &Cancel,
) -> HttpOutcome {
    call_with(config, environment, access, cancel, &mut |_| {})
}

/// As [`call`]; in `mode: stream` each event is also handed out as it comes.
#[must_use]
pub fn call_with(
    config: &Map<String, Value>,
    environment: &BTreeMap<String, String>,
    access: &Access,
    cancel: &Cancel,
    on_event: OnEvent<'_>,
) -> HttpOutcome {
    let ready = client(environment, access)
        .and_then(|client| Ok((client, Prepared::from_config(config, environment)?)));
    match ready {
        Ok((client, prepared)) => run(&client, &prepared, cancel, on_event),
        Err(message) => {
            let message = Secrets::of(environment).hide(&message);
            HttpOutcome::failed(match access.network {
                true => Failure::Tool(message),
                false => Failure::Denied(message),
            })
        }
    }
}

fn run(client: &Client, prepared: &Prepared, cancel: &Cancel, on_event: OnEvent<'_>) -> HttpOutcome {
    let deadline = Instant::now() + prepared.request.timeout;
    let left = || deadline.saturating_duration_since(Instant::now());
    let mut attempts = Vec::new();
    loop {
        let mut request = prepared.request.clone();
        request.timeout = left();
        let mut events = Vec::new();
        let outcome = match prepared.mode {
            Mode::Sync => client.send(&request, cancel),
            Mode::Stream => client.stream(&request, cancel, &mut |event: &Event| {
                events.push(Value::from(event.data.clone()));
                on_event(event);
            }),
        };
        let number = u32::try_from(attempts.len() + 1).unwrap_or(u32::MAX);
        let delay = match events.is_empty() {
            true => prepared.retry.delay(number, request.method, &outcome, retry::jitter()),
            // What was handed out would be handed out again.
            false => None,
        };
        let delay = delay.filter(|delay| *delay < left());
        attempts.push(attempt_trace(&outcome, delay, &prepared.secrets));
        if delay.is_some_and(|delay| wait(delay, cancel)) {
            continue;
        }
        let is_cancelled_in_between = delay.is_some();
        let outcome = if is_cancelled_in_between { Err(HttpError::Cancelled) } else { outcome };
        return finish(prepared, outcome, events, &attempts);
    }
}

fn attempt_trace(outcome: &Result<Response, HttpError>, delay: Option<Duration>, secrets: &Secrets) -> Value {
    let mut attempt = match outcome {
        Ok(response) => json!({"status_code": response.status, "redirects": response.redirects}),
        Err(error) => json!({"error": secrets.hide(&error.to_string())}),
    };
    if let Some(delay) = delay {
        attempt["retried_after_ms"] = Value::from(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
    }
    attempt
}

fn finish(
    prepared: &Prepared,
    outcome: Result<Response, HttpError>,
    events: Vec<Value>,
    attempts: &[Value],
) -> HttpOutcome {
    let count = u32::try_from(attempts.len()).unwrap_or(u32::MAX);
    let trace = json!({"request": redacted(prepared), "attempts": attempts});
    match outcome {
        Ok(response) => {
            let is_success = (200..400).contains(&response.status);
            HttpOutcome {
                is_success,
                failure: (!is_success).then(|| Failure::Tool(answer::status_line(&response))),
                truncated: response.is_truncated,
                data: answer::data(&response, prepared, events),
                trace,
                attempts: count,
            }
        }
        Err(error) => {
            let error = match error {
                HttpError::Timeout(_) => HttpError::Timeout(prepared.request.timeout),
                other => other,
            };
            let times = if count == 1 { "attempt" } else { "attempts" };
            let text = match retry::is_transport(&error) {
                true => format!("Request failed after {count} {times}: {error}"),
                false => error.to_string(),
            };
            let text = rye_item::text::one_line(&prepared.secrets.hide(&text));
            let failure = match error {
                HttpError::Refused { .. } | HttpError::LocalName(_) => Failure::Denied(text),
                HttpError::Timeout(_) => Failure::TimedOut(text),
                _ => Failure::Tool(text),
            };
            HttpOutcome { trace, attempts: count, ..HttpOutcome::failed(failure) }
        }
    }
}

#[cfg(test)]
mod tests;
