//! The `http_client` primitive: a tool's `config` → one request → what the tool answers.
//!
//! Strings in the config are final: variables and parameters were filled in before (URLs through [`fill_url`]). How a
//! request travels, and which addresses it may reach, is `lillux::http`'s business.

mod prepare;
mod redact;
mod response;
mod retry;
mod url_template;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lillux::CancelToken;
use lillux::http::{
    AddressPolicy, HttpClient, HttpError, HttpResponse, OnEvent, ProxyConfig, SseEvent,
    sleep_unless_cancelled,
};
use serde_json::{Map, Value, json};

use crate::native::ToolAccess;
use crate::outcome::RunFailure;

pub use prepare::{PreparedRequest, ResponseMode};
pub use redact::{Secrets, is_secret_name, redact_request};
pub use retry::HttpRetry;
pub use url_template::{check_url, fill_url, percent_encode};

/// What a call of the primitive came to.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpOutcome {
    /// Whether the status is 2xx or 3xx.
    pub is_success: bool,
    /// `status_code`, `body`, `headers` and more; null when nothing answered.
    pub data: Value,
    /// Why it failed.
    pub failure: Option<RunFailure>,
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
        self.failure.as_ref().map(RunFailure::message)
    }

    fn from_failure(failure: RunFailure) -> Self {
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
pub fn build_client(
    environment: &BTreeMap<String, String>,
    access: &ToolAccess,
) -> Result<HttpClient, String> {
    if !access.network {
        return Err("the tool may not use the network".to_owned());
    }
    let policy = AddressPolicy::new(&access.allowed_hosts).map_err(|error| error.to_string())?;
    let variable = |name: &str| environment.get(name).map(String::as_str);
    let client = HttpClient::new(policy).with_proxies(ProxyConfig::from_variables(variable));
    Ok(client.with_certificates_of(variable))
}

/// Runs the primitive. `config` is merged and filled in; `environment` is what the tool was given.
#[must_use]
pub fn call(
    config: &Map<String, Value>,
    environment: &BTreeMap<String, String>,
    access: &ToolAccess,
    cancel: &CancelToken,
) -> HttpOutcome {
    call_streaming(config, environment, access, cancel, &mut |_| {})
}

/// As [`call`]; in `mode: stream` each event is also handed out as it comes.
#[must_use]
pub fn call_streaming(
    config: &Map<String, Value>,
    environment: &BTreeMap<String, String>,
    access: &ToolAccess,
    cancel: &CancelToken,
    on_event: OnEvent<'_>,
) -> HttpOutcome {
    let ready = build_client(environment, access)
        .and_then(|client| Ok((client, PreparedRequest::from_config(config, environment)?)));
    match ready {
        Ok((client, prepared)) => run(&client, &prepared, cancel, on_event),
        Err(message) => {
            let message = Secrets::from_environment(environment).redact(&message);
            HttpOutcome::from_failure(match access.network {
                true => RunFailure::Tool(message),
                false => RunFailure::Denied(message),
            })
        }
    }
}

fn run(
    client: &HttpClient,
    prepared: &PreparedRequest,
    cancel: &CancelToken,
    on_event: OnEvent<'_>,
) -> HttpOutcome {
    let deadline = Instant::now() + prepared.request.timeout;
    let time_left = || deadline.saturating_duration_since(Instant::now());
    let mut attempts = Vec::new();
    loop {
        let mut request = prepared.request.clone();
        request.timeout = time_left();
        let mut events = Vec::new();
        let outcome = match prepared.mode {
            ResponseMode::Sync => client.send(&request, cancel),
            ResponseMode::Stream => client.stream_events(&request, cancel, &mut |event: &SseEvent| {
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
        let delay = delay.filter(|delay| *delay < time_left());
        attempts.push(trace_attempt(&outcome, delay, &prepared.secrets));
        if delay.is_some_and(|delay| sleep_unless_cancelled(delay, cancel)) {
            continue;
        }
        let is_cancelled_in_between = delay.is_some();
        let outcome = if is_cancelled_in_between { Err(HttpError::Cancelled) } else { outcome };
        return build_outcome(prepared, outcome, events, &attempts);
    }
}

fn trace_attempt(
    outcome: &Result<HttpResponse, HttpError>,
    delay: Option<Duration>,
    secrets: &Secrets,
) -> Value {
    let mut attempt = match outcome {
        Ok(response) => json!({"status_code": response.status, "redirects": response.redirects}),
        Err(error) => json!({"error": secrets.redact(&error.to_string())}),
    };
    if let Some(delay) = delay {
        attempt["retried_after_ms"] = Value::from(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
    }
    attempt
}

fn build_outcome(
    prepared: &PreparedRequest,
    outcome: Result<HttpResponse, HttpError>,
    events: Vec<Value>,
    attempts: &[Value],
) -> HttpOutcome {
    let count = u32::try_from(attempts.len()).unwrap_or(u32::MAX);
    let trace = json!({"request": redact_request(prepared), "attempts": attempts});
    match outcome {
        Ok(response) => {
            let is_success = (200..400).contains(&response.status);
            HttpOutcome {
                is_success,
                failure: (!is_success).then(|| RunFailure::Tool(response::status_line(&response))),
                truncated: response.is_truncated,
                data: response::response_data(&response, prepared, events),
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
            let text = match retry::is_transport_error(&error) {
                true => format!("Request failed after {count} {times}: {error}"),
                false => error.to_string(),
            };
            let text = rye_item::text::one_line(&prepared.secrets.redact(&text));
            let failure = match error {
                HttpError::AddressRefused { .. } | HttpError::LocalName(_) => RunFailure::Denied(text),
                HttpError::Timeout(_) => RunFailure::TimedOut(text),
                _ => RunFailure::Tool(text),
            };
            HttpOutcome { trace, attempts: count, ..HttpOutcome::from_failure(failure) }
        }
    }
}

#[cfg(test)]
mod tests;
