//! Requests into parameters, results into answers: bounded, and in the envelope that `rye --json` prints.

use std::collections::BTreeMap;

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use rye_engine::{Code, Error, ErrorKind, Result, success_response};
use rye_item::json::find_duplicate_key;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// The largest request that is read.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Parameters of an address that are read.
const MAX_PARAMETERS: usize = 32;

/// JSON that was made before.
pub(super) fn json_response(status: StatusCode, body: impl Into<Body>) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body.into()).into_response()
}

/// What worked.
pub(super) fn success(item_type: Option<&str>, item_id: Option<&str>, data: Value) -> Response {
    json_response(StatusCode::OK, success_response(item_type, item_id, data).to_string())
}

/// What did not, with this status.
pub(super) fn error_response(status: StatusCode, error: &Error) -> Response {
    json_response(status, error.to_value(None).to_string())
}

/// The HTTP status of a failure.
pub(super) fn status_of(error: &Error) -> StatusCode {
    match error.code {
        Code::QuestionChanged | Code::ThreadHeld | Code::ThreadEnded => return StatusCode::CONFLICT,
        Code::SessionRefused => return StatusCode::UNAUTHORIZED,
        Code::ReadOnly => return StatusCode::FORBIDDEN,
        Code::TooLarge => return StatusCode::PAYLOAD_TOO_LARGE,
        _ => {}
    }
    match error.code.kind() {
        ErrorKind::Usage => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Integrity
        | ErrorKind::Denied
        | ErrorKind::Limit
        | ErrorKind::Lock
        | ErrorKind::Validation => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorKind::Failed | ErrorKind::Cancelled => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// A result as an answer.
pub(super) fn respond(result: Result<Response>) -> Response {
    result.unwrap_or_else(|error| error_response(status_of(&error), &error))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, message).hint("docs/ui/openapi.yaml describes each request")
}

/// The body of a request, as JSON of this type.
pub(super) async fn read_json<T: DeserializeOwned>(request: Request) -> Result<T> {
    let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let content_type =
        content_type.and_then(|value| value.split(';').next()).map(str::trim).map(str::to_owned);
    let too_large =
        || Error::new(Code::TooLarge, format!("the request is larger than {MAX_BODY_BYTES} bytes"));
    let bytes: Bytes = to_bytes(request.into_body(), MAX_BODY_BYTES).await.map_err(|_| too_large())?;
    let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
    // A form of another page can send text, and no JSON.
    if bytes != b"{}" && content_type.as_deref() != Some("application/json") {
        return Err(invalid("the request is not application/json"));
    }
    // An answer decides: of a key that is there twice, neither value is taken.
    if let Some(problem) = find_duplicate_key(bytes) {
        return Err(invalid(format!("invalid request: {problem}")));
    }
    serde_json::from_slice(bytes).map_err(|error| invalid(format!("invalid request: {error}")))
}

/// The parameters of an address; each once, and only those that are known.
pub(super) struct Parameters(BTreeMap<String, String>);

impl Parameters {
    pub(super) fn parse(query: Option<&str>, known: &[&str]) -> Result<Self> {
        let mut parameters = BTreeMap::new();
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for (index, pair) in pairs.enumerate() {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (name, value) = (decode(name)?, decode(value)?);
            if index >= MAX_PARAMETERS || !known.contains(&name.as_str()) {
                return Err(invalid(format!("unknown parameter `{}`", rye_item::text::one_line(&name))));
            }
            if parameters.insert(name, value).is_some() {
                return Err(invalid("a parameter is there twice"));
            }
        }
        Ok(Self(parameters))
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool> {
        match self.text(name) {
            None => Ok(default),
            Some("true" | "1") => Ok(true),
            Some("false" | "0") => Ok(false),
            Some(_) => Err(invalid(format!("`{name}` is true or false"))),
        }
    }

    pub(super) fn number(&self, name: &str, default: usize, max: usize) -> Result<usize> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| (1..=max).contains(number));
        number.ok_or_else(|| invalid(format!("`{name}` is a number from 1 to {max}")))
    }
}

/// Takes `%41` and `+` back.
fn decode(text: &str) -> Result<String> {
    let bad = || invalid("the address is not well formed");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().ok_or_else(bad)?, rest.next().ok_or_else(bad)?];
                let digits = std::str::from_utf8(&digits).map_err(|_| bad())?;
                u8::from_str_radix(digits, 16).map_err(|_| bad())?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_has_each_key_once() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let read = |body: &'static str| {
            let request = Request::post("/").header(header::CONTENT_TYPE, "application/json");
            runtime.block_on(read_json::<Value>(request.body(Body::from(body)).expect("a request")))
        };
        for body in [r#"{"approved":false,"approved":true}"#, r#"{"limits":{"turns":1,"turns":9}}"#] {
            let error = read(body).expect_err("refused").to_string();
            assert!(error.contains("duplicate key `"), "{error}");
        }
        assert_eq!(read(r#"{"approved":false}"#).expect("read"), serde_json::json!({"approved": false}));
    }
}
