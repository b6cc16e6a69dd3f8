//! Web pages and web search, through the single entry point for HTTP and under its address policy.

mod fetch;
mod page;
mod search;

use std::collections::BTreeMap;
use std::time::Duration;

use lillux::http::{HttpClient, HttpError, HttpHeader, HttpMethod, HttpRequest, HttpResponse};
use rye_exec::native::{NativeCall, NativeError, NativeTool};
use serde_json::{Value, json};

/// Every function of this room.
#[must_use]
pub fn all() -> Vec<Box<dyn NativeTool>> {
    vec![Box::new(fetch::Fetch), Box::new(search::Search)]
}

const MAX_TIMEOUT_SECONDS: f64 = 120.0;

/// The variables the signed descriptor hands to its function, in `config.environment`. An empty one is not set.
fn variables(call: &NativeCall<'_>) -> BTreeMap<String, String> {
    let map = call.config.get("environment").and_then(Value::as_object);
    let text = |(name, value): (&String, &Value)| {
        // What is still a template was not filled in.
        let value = value.as_str().filter(|value| !value.is_empty() && !value.starts_with("${"))?;
        Some((name.clone(), value.to_owned()))
    };
    map.into_iter().flatten().filter_map(text).collect()
}

fn client(call: &NativeCall<'_>, variables: &BTreeMap<String, String>) -> Result<HttpClient, NativeError> {
    rye_exec::http::build_client(variables, call.access).map_err(NativeError::denied)
}

fn timeout(call: &NativeCall<'_>) -> Result<Duration, NativeError> {
    let invalid = || NativeError::failed("`timeout` must be a number of seconds above 0");
    let seconds = match call.parameters.get("timeout") {
        None | Some(Value::Null) => 30.0,
        Some(value) => value.as_f64().filter(|seconds| *seconds > 0.0).ok_or_else(invalid)?,
    };
    Duration::try_from_secs_f64(seconds.min(MAX_TIMEOUT_SECONDS)).map_err(|_| invalid())
}

fn text_parameter<'a>(call: &'a NativeCall<'_>, name: &str) -> Option<&'a str> {
    call.parameters.get(name).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty())
}

fn request(url: &str, accept: &str, timeout: Duration) -> HttpRequest {
    let mut request = HttpRequest::new(HttpMethod::Get, url);
    let header =
        |name: &str, value: &str| HttpHeader { name: name.into(), value: value.into(), is_secret: false };
    let agent = concat!("rye/", env!("CARGO_PKG_VERSION"));
    request.headers = vec![header("accept", accept), header("user-agent", agent)];
    request.timeout = timeout;
    request.connect_timeout = request.connect_timeout.min(timeout);
    request.max_body_bytes = page::MAX_BYTES;
    request
}

/// Sends a request; an answer that is not a success is a failure with its facts.
fn send(
    client: &HttpClient,
    request: &HttpRequest,
    call: &NativeCall<'_>,
) -> Result<HttpResponse, NativeError> {
    let response = client.send(request, call.cancel).map_err(|error| {
        let text = rye_item::text::one_line(&error.to_string());
        match error {
            HttpError::AddressRefused { .. } | HttpError::LocalName(_) => NativeError::denied(text),
            _ => NativeError::failed(text),
        }
    })?;
    if (200..300).contains(&response.status) {
        return Ok(response);
    }
    let text = format!("HTTP {}: {}", response.status, response.reason);
    let facts = json!({"status_code": response.status, "host": host(&response.url)});
    Err(NativeError::failed(text.trim_end_matches([' ', ':'])).with_data(facts))
}

fn host(url: &str) -> String {
    let parsed = url::Url::parse(url).ok();
    parsed.and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}

/// The first `limit` characters, and whether more were there.
fn truncate(text: &str, limit: usize) -> (String, bool) {
    match text.char_indices().nth(limit) {
        Some((at, _)) => (text[..at].to_owned(), true),
        None => (text.to_owned(), false),
    }
}

#[cfg(test)]
mod tests;
