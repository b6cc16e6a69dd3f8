//! What a tool gets of an answer.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lillux::http::{self, HttpResponse};
use serde_json::{Map, Value, json};

use super::prepare::{PreparedRequest, ResponseMode};

/// `HTTP 404: Not Found`.
pub(super) fn status_line(response: &HttpResponse) -> String {
    let reason = match (response.reason.as_str(), response.status) {
        ("", 529) => "Overloaded",
        ("", _) => "no reason given",
        (reason, _) => reason,
    };
    format!("HTTP {}: {reason}", response.status)
}

/// The `data` of the outcome.
pub(super) fn response_data(
    response: &HttpResponse,
    prepared: &PreparedRequest,
    events: Vec<Value>,
) -> Value {
    let is_stream = prepared.mode == ResponseMode::Stream && (200..300).contains(&response.status);
    let mut data = Map::new();
    data.insert("status_code".to_owned(), response.status.into());
    if is_stream {
        data.insert("body".to_owned(), Value::Array(events));
        data.insert("stream_events_count".to_owned(), response.events.into());
        data.insert("stream_destinations".to_owned(), json!(["return"]));
    } else {
        match decode_body(response) {
            Ok(value) => data.insert("body".to_owned(), value),
            Err(encoded) => {
                data.insert("body".to_owned(), Value::Null);
                data.insert("body_base64".to_owned(), encoded.into())
            }
        };
    }
    data.insert("headers".to_owned(), Value::Object(response_headers(response)));
    if response.redirects > 0 {
        data.insert("url".to_owned(), prepared.secrets.redact_url(&response.url).into());
    }
    if response.is_truncated {
        data.insert("truncated".to_owned(), true.into());
    }
    Value::Object(data)
}

/// JSON where it is JSON, else text; bytes that are neither come back encoded.
fn decode_body(response: &HttpResponse) -> Result<Value, String> {
    let kind = response.header("content-type").unwrap_or_default();
    let Some(text) = http::decode_text(&response.body, kind) else {
        return Err(STANDARD.encode(&response.body));
    };
    match serde_json::from_str(&text) {
        Ok(value) if !response.is_truncated => Ok(value),
        _ => Ok(Value::from(text)),
    }
}

/// Names in lower case, repeated ones joined; cookies are for browsers.
fn response_headers(response: &HttpResponse) -> Map<String, Value> {
    let mut headers = Map::new();
    for (name, value) in response.headers.iter().filter(|(name, _)| name != "set-cookie") {
        let joined = match headers.get(name).and_then(Value::as_str) {
            Some(before) => format!("{before}, {value}"),
            None => value.clone(),
        };
        headers.insert(name.clone(), joined.into());
    }
    headers
}
