//! A tool's `config` as a request, with every mistake named.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use lillux::http::{HttpError, HttpHeader, HttpMethod, HttpRequest};
use serde_json::{Map, Value};
use url::Url;

use super::redact::{Secrets, is_secret_name};
use super::retry::HttpRetry;
use super::url_template::check_url;

const DEFAULT_TIMEOUT_SECONDS: f64 = 30.0;
const MAX_TIMEOUT_SECONDS: f64 = 3600.0;
const DEFAULT_MAX_BODY_BYTES: u64 = 10 << 20;
const MAX_BODY_BYTES: u64 = 100 << 20;

/// How the answer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseMode {
    /// Whole.
    Sync,
    /// As server-sent events.
    Stream,
}

/// What kind of body is sent, for traces.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum BodyKind {
    None,
    Json(Value),
    Form,
    Text,
}

/// A request that is ready to be sent, with what must not be shown of it.
#[derive(Clone, Debug)]
pub struct PreparedRequest {
    /// The request; its timeout is that of the whole call.
    pub request: HttpRequest,
    /// How the answer is read.
    pub mode: ResponseMode,
    /// When to ask again.
    pub retry: HttpRetry,
    /// What must not be shown.
    pub secrets: Secrets,
    pub(super) body: BodyKind,
}

impl PreparedRequest {
    /// Reads a config whose strings are final.
    ///
    /// # Errors
    /// In words, what is missing or wrong.
    pub fn from_config(
        config: &Map<String, Value>,
        environment: &BTreeMap<String, String>,
    ) -> Result<Self, String> {
        let config = RequestConfig(config);
        let mut secrets = Secrets::from_environment(environment);
        let method = config.text("method")?.unwrap_or("GET");
        let method: HttpMethod = method.parse().map_err(|error: HttpError| error.to_string())?;
        let url = config.text("url")?.filter(|url| !url.is_empty()).ok_or("url is required in config")?;
        if let Some(template) = config.text("url_template")? {
            let is_open = config.0.get("url_from_parameter") == Some(&Value::Bool(true));
            check_url(template, url, is_open)?;
        }
        let mut url = Url::parse(url).map_err(|error| format!("the URL cannot be used: {error}"))?;
        let mut headers = config.headers()?;
        if let Some(header) = config.auth(&mut secrets)? {
            headers.retain(|own| !own.name.eq_ignore_ascii_case(&header.name));
            headers.push(header);
        }
        for header in &mut headers {
            header.is_secret |= is_secret_name(&header.name) || secrets.is_present_in(&header.value);
        }
        add_query(&mut url, config.0.get("query"), "query")?;
        let (body, bytes) = config.body(method, &mut url, &mut headers)?;
        add_default(&mut headers, "user-agent", concat!("rye/", env!("CARGO_PKG_VERSION")));
        let mode = match config.text("mode")? {
            None | Some("sync") => ResponseMode::Sync,
            Some("stream") => ResponseMode::Stream,
            Some(other) => return Err(format!("Unknown mode: {other}")),
        };
        if mode == ResponseMode::Stream {
            add_default(&mut headers, "accept", "text/event-stream");
        }
        let mut request = HttpRequest::new(method, url);
        request.timeout = config.timeout()?;
        request.connect_timeout = request.connect_timeout.min(request.timeout);
        request.max_body_bytes = match config.0.get("max_body_bytes") {
            None | Some(Value::Null) => DEFAULT_MAX_BODY_BYTES,
            Some(value) => {
                value.as_u64().ok_or("`max_body_bytes` must be a whole number")?.min(MAX_BODY_BYTES)
            }
        };
        request.headers = headers;
        request.body = bytes;
        Ok(Self { request, mode, retry: HttpRetry::from_config(config.0.get("retry"))?, secrets, body })
    }
}

fn add_default(headers: &mut Vec<HttpHeader>, name: &str, value: &str) {
    if !headers.iter().any(|own| own.name.eq_ignore_ascii_case(name)) {
        headers.push(HttpHeader { name: name.to_owned(), value: value.to_owned(), is_secret: false });
    }
}

/// A scalar as text; `None` for null.
fn scalar_text(value: &Value, name: &str) -> Result<Option<String>, String> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        Value::Bool(_) | Value::Number(_) => Ok(Some(value.to_string())),
        Value::Array(_) | Value::Object(_) => Err(format!("`{name}` must be text, a number or a boolean")),
    }
}

/// The pairs of a map; a list repeats its name, null leaves it out.
fn pairs(value: Option<&Value>, name: &str) -> Result<Vec<(String, String)>, String> {
    let Some(value) = value.filter(|value| !value.is_null()) else {
        return Ok(Vec::new());
    };
    let map = value.as_object().ok_or_else(|| format!("`{name}` must be a map"))?;
    let mut pairs = Vec::new();
    for (key, value) in map {
        let values = value.as_array().map_or_else(|| std::slice::from_ref(value), Vec::as_slice);
        for value in values {
            let text = scalar_text(value, &format!("{name}.{key}"))?;
            pairs.extend(text.map(|text| (key.clone(), text)));
        }
    }
    Ok(pairs)
}

fn add_query(url: &mut Url, value: Option<&Value>, name: &str) -> Result<(), String> {
    let pairs = pairs(value, name)?;
    if !pairs.is_empty() {
        url.query_pairs_mut().extend_pairs(pairs);
    }
    Ok(())
}

struct RequestConfig<'a>(&'a Map<String, Value>);

impl RequestConfig<'_> {
    fn text(&self, name: &str) -> Result<Option<&str>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(format!("`{name}` must be text")),
        }
    }

    fn timeout(&self) -> Result<Duration, String> {
        let wrong = || "`timeout` must be a number of seconds above 0".to_owned();
        let seconds = match self.0.get("timeout") {
            None | Some(Value::Null) => DEFAULT_TIMEOUT_SECONDS,
            Some(value) => value.as_f64().filter(|seconds| *seconds > 0.0).ok_or_else(wrong)?,
        };
        Duration::try_from_secs_f64(seconds.min(MAX_TIMEOUT_SECONDS)).map_err(|_| wrong())
    }

    fn headers(&self) -> Result<Vec<HttpHeader>, String> {
        let pairs = pairs(self.0.get("headers"), "headers")?;
        Ok(pairs.into_iter().map(|(name, value)| HttpHeader { name, value, is_secret: false }).collect())
    }

    fn auth(&self, secrets: &mut Secrets) -> Result<Option<HttpHeader>, String> {
        let Some(value) = self.0.get("auth").filter(|value| !value.is_null()) else {
            return Ok(None);
        };
        let auth = value.as_object().ok_or("`auth` must be a map")?;
        let field = |name: &str| auth.get(name).and_then(Value::as_str);
        let needed = |name: &str| {
            let found = field(name).filter(|text| !text.is_empty());
            found.ok_or_else(|| {
                format!("`auth.{name}` is missing or empty; is the variable it comes from set?")
            })
        };
        let (name, value) = match field("type") {
            Some("bearer") => {
                let token = needed("token")?;
                secrets.add(token);
                ("Authorization", format!("Bearer {token}"))
            }
            Some("api_key") => {
                let key = needed("key")?;
                secrets.add(key);
                (field("header").unwrap_or("X-API-Key"), key.to_owned())
            }
            Some("basic") => {
                let password = field("password").unwrap_or_default();
                secrets.add(password);
                let encoded = STANDARD.encode(format!("{}:{password}", needed("username")?));
                secrets.add(&encoded);
                ("Authorization", format!("Basic {encoded}"))
            }
            Some(other) => return Err(format!("`auth.type` is `{other}`; use bearer, api_key or basic")),
            None => return Err("`auth.type` is missing; use bearer, api_key or basic".to_owned()),
        };
        Ok(Some(HttpHeader { name: name.to_owned(), value, is_secret: true }))
    }

    /// The body by `body_type` (json, form, text, query), or by what it is: text is text, all else JSON. Without a
    /// `body_type`, GET, HEAD and OPTIONS send none.
    fn body(
        &self,
        method: HttpMethod,
        url: &mut Url,
        headers: &mut Vec<HttpHeader>,
    ) -> Result<(BodyKind, Option<Vec<u8>>), String> {
        let Some(body) = self.0.get("body").filter(|body| !body.is_null()) else {
            return Ok((BodyKind::None, None));
        };
        let has_body = match method {
            HttpMethod::Post | HttpMethod::Put | HttpMethod::Patch | HttpMethod::Delete => true,
            HttpMethod::Get | HttpMethod::Head | HttpMethod::Options => false,
        };
        let kind = match self.text("body_type")? {
            Some(kind) => kind,
            None if !has_body => return Ok((BodyKind::None, None)),
            None if body.is_string() => "text",
            None => "json",
        };
        if kind != "query" && !has_body {
            return Err(format!("a {} request has no body; use `query`", method.as_str()));
        }
        match kind {
            "query" => {
                add_query(url, Some(body), "body")?;
                Ok((BodyKind::None, None))
            }
            "json" => {
                add_default(headers, "content-type", "application/json");
                Ok((BodyKind::Json(body.clone()), Some(body.to_string().into_bytes())))
            }
            "form" => {
                add_default(headers, "content-type", "application/x-www-form-urlencoded");
                let pairs = pairs(Some(body), "body")?;
                let text = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
                Ok((BodyKind::Form, Some(text.into_bytes())))
            }
            "text" => {
                let text = scalar_text(body, "body")?.unwrap_or_default();
                add_default(headers, "content-type", "text/plain; charset=utf-8");
                Ok((BodyKind::Text, Some(text.into_bytes())))
            }
            other => Err(format!("`body_type` is `{other}`; use json, form, text or query")),
        }
    }
}
