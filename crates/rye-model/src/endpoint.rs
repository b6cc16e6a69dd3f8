//! Sends one request to one endpoint and reads the response within bounds. Failures become a [`ModelError`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lillux::http::{AddressPolicy, HttpClient, HttpError, TransportError, classify_error, parse_header};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use rye_item::text::one_line;
use tokio::time::timeout;
use url::Url;

use crate::json_ref::JsonRef;
use crate::protocol::{BodyOptions, WireProtocol, write_body};
use crate::response_builder::{ApiError, ResponseBuilder, ResponseParseError, ResponseParser, api_error};
use crate::{Completion, ModelError, ModelProvider, ModelRequest, ModelResponse, ResponseDelta};

/// How large an answer may be.
const MAX_RESPONSE_BYTES: usize = 32 << 20;

/// How much of a complaint is read.
const MAX_ERROR_BODY_BYTES: usize = 64 << 10;

/// How much of a complaint is shown.
const MAX_MESSAGE_CHARS: usize = 2000;

/// What is shorter is not a key: a placeholder, or a word that any message may hold.
const MIN_SECRET_BYTES: usize = 6;

/// How long the end of a stream is waited for, once all has been said: it frees the connection for the next request.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// How long finding and reaching the server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const REPORTED_HEADERS: [&str; 4] = ["retry-after", "retry-after-ms", "request-id", "x-request-id"];

const MODEL_PLACEHOLDER: &str = "{model}";

/// What an endpoint is made of, all filled in.
pub(crate) struct EndpointParts {
    pub protocol: &'static dyn WireProtocol,
    /// Where requests go; `{model}` stands for the model.
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// What must never be shown.
    pub secrets: Vec<String>,
    pub timeout: Duration,
    pub can_stream: bool,
    pub options: BodyOptions,
}

/// A server that answers for models, with its pool of connections. Must be used within one runtime.
pub struct ModelEndpoint {
    http: reqwest::Client,
    headers: HeaderMap,
    parts: EndpointParts,
    /// Where the last request went, and for which model: mostly the next one goes there too.
    last: Mutex<Option<(String, Url)>>,
}

impl std::fmt::Debug for ModelEndpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = url_for(&self.parts.url, "model").ok().and_then(|url| url.host_str().map(str::to_owned));
        write!(formatter, "Endpoint {{ {:?}, {} }}", self.parts.protocol, host.unwrap_or_default())
    }
}

/// The URL for a model, which can be nothing but a part of the path.
fn url_for(template: &str, model: &str) -> Result<Url, HttpError> {
    if matches!(model, "" | "." | "..") {
        return Err(HttpError::Url(format!("invalid model name `{model}`")));
    }
    let encoded: String = url::form_urlencoded::byte_serialize(model.as_bytes()).collect();
    let encoded = encoded.replace('+', "%20");
    let read = |text: &str| Url::parse(text).map_err(|error| HttpError::Url(error.to_string()));
    let url = read(&template.replace(MODEL_PLACEHOLDER, &encoded))?;
    // A model in the place of the host would choose who gets the key.
    if url.origin() != read(&template.replace(MODEL_PLACEHOLDER, "model"))?.origin() {
        return Err(HttpError::Url("the model is in place of the host".to_owned()));
    }
    Ok(url)
}

impl ModelEndpoint {
    /// Makes the pool of connections. The endpoint's own host may be anywhere, on this machine too; nothing else that is
    /// private may.
    pub(crate) fn new(parts: EndpointParts, client: &HttpClient) -> Result<Self, HttpError> {
        let url = url_for(&parts.url, "model")?;
        let port = url.port_or_known_default().unwrap_or(443);
        let own_host = format!("{}:{port}", url.host_str().unwrap_or_default());
        let builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT.min(parts.timeout));
        let http =
            client.clone().with_policy(AddressPolicy::new(&[own_host])?).build_client(builder, &url)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &parts.headers {
            let (name, mut value) = parse_header(name, value)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Self { http, headers, parts, last: Mutex::default() })
    }

    #[cfg(test)]
    pub(crate) fn into_parts(self) -> EndpointParts {
        self.parts
    }

    fn url(&self, model: &str) -> Result<Url, HttpError> {
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, url)) = last().as_ref().filter(|(known, _)| known == model) {
            return Ok(url.clone());
        }
        let url = url_for(&self.parts.url, model)?;
        *last() = Some((model.to_owned(), url.clone()));
        Ok(url)
    }

    async fn send(
        &self,
        request: &ModelRequest,
        deltas: &(dyn Fn(ResponseDelta) + Send + Sync),
    ) -> Result<ModelResponse, ModelError> {
        let is_stream = request.wants_stream && self.parts.can_stream;
        let unsent = |message: String| ModelError::before_send("ProtocolError", message);
        let body = write_body(self.parts.protocol, request, &self.parts.options, is_stream);
        let body = body.map_err(|error| unsent(format!("the request cannot be written: {error}")))?;
        let url = self.url(&request.model).map_err(|error| unsent(error.to_string()))?;
        let url = if is_stream { self.parts.protocol.stream_url(url) } else { url };
        let sent = self.http.post(url).headers(self.headers.clone()).body(body).send();
        let response = match timeout(self.parts.timeout, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.transport_error(&error)),
            Err(_) => return Err(self.timeout_error()),
        };
        let headers = self.reported_headers(response.headers());
        let result = if response.status().is_success() {
            self.read_response(response, request, deltas, is_stream).await
        } else {
            Err(self.read_error(response).await)
        };
        result.map_err(|mut failure| {
            failure.headers.extend(headers);
            failure
        })
    }

    /// Reads a successful answer.
    async fn read_response(
        &self,
        mut response: reqwest::Response,
        request: &ModelRequest,
        deltas: &(dyn Fn(ResponseDelta) + Send + Sync),
        is_stream: bool,
    ) -> Result<ModelResponse, ModelError> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        // A server that cannot stream answers in one piece.
        let is_stream = is_stream && !kind.is_some_and(|kind| kind.trim().starts_with("application/json"));
        if kind.is_some_and(|kind| kind.trim_start().starts_with("text/html")) {
            let message = "the server answers with a web page: is this its address?";
            let error = ModelError::after_send("ProtocolError", message.to_owned());
            return Err(ModelError { is_declined: true, ..error });
        }
        let mut parser = self.parts.protocol.parser();
        let mut builder = ResponseBuilder::new(request, deltas);
        let result = match is_stream {
            true => self.parse_stream(&mut response, parser.as_mut(), &mut builder).await,
            false => self.parse_whole(&mut response, parser.as_mut(), &mut builder).await,
        };
        match result {
            Ok(()) => Ok(builder.build(parser.as_mut())),
            Err(error) if builder.is_empty() => Err(error),
            Err(error) => Err(ModelError { partial: Some(builder.build_partial(parser.as_mut())), ..error }),
        }
    }

    async fn parse_whole(
        &self,
        response: &mut reqwest::Response,
        parser: &mut dyn ResponseParser,
        builder: &mut ResponseBuilder<'_>,
    ) -> Result<(), ModelError> {
        let (bytes, is_more) = self.read_body(response, MAX_RESPONSE_BYTES).await?;
        if is_more {
            return Err(too_large_error());
        }
        let no_json = |error| {
            ModelError::after_send("ProtocolError", format!("the response is not valid JSON: {error}"))
        };
        let whole: JsonRef<'_> = serde_json::from_slice(&bytes).map_err(no_json)?;
        parser.parse_response(&whole, builder).map_err(|fault| self.parse_error(fault))?;
        builder.length_error().map_or(Ok(()), Err)
    }

    async fn parse_stream(
        &self,
        response: &mut reqwest::Response,
        parser: &mut dyn ResponseParser,
        builder: &mut ResponseBuilder<'_>,
    ) -> Result<(), ModelError> {
        let mut framing = self.parts.protocol.framing();
        let (mut received, mut ready, mut is_end, mut is_first) = (0, Vec::new(), false, true);
        while !is_end && !builder.is_done {
            match timeout(self.parts.timeout, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    received += chunk.len();
                    if received > MAX_RESPONSE_BYTES || framing.feed(&chunk, &mut ready).is_err() {
                        return Err(too_large_error());
                    }
                }
                Ok(Ok(None)) => {
                    framing.finish(&mut ready);
                    is_end = true;
                }
                // All that matters has been said.
                Ok(Err(_)) | Err(_) if builder.finish_reason.is_some() => return Ok(()),
                Ok(Err(error)) => return Err(self.transport_error(&error)),
                Err(_) => return Err(self.timeout_error()),
            }
            for data in ready.drain(..) {
                if !builder.is_done && !data.trim().is_empty() {
                    let result = parser.parse_event(&data, builder).map_err(|fault| self.parse_error(fault));
                    // After that the model was at work, and may have been for long.
                    result.map_err(|failure| ModelError {
                        is_declined: failure.is_declined && is_first,
                        ..failure
                    })?;
                    if let Some(error) = builder.length_error() {
                        return Err(error);
                    }
                    is_first = false;
                }
            }
        }
        if !builder.is_done && builder.finish_reason.is_none() {
            return Err(truncated_stream_error());
        }
        // What comes after the end means nothing; not getting it costs a connection, no more.
        let rest = async { while let Ok(Some(_)) = response.chunk().await {} };
        let _ = timeout(DRAIN_TIMEOUT, rest).await;
        Ok(())
    }

    /// Reads a body as far as `limit`, and whether there was more.
    async fn read_body(
        &self,
        response: &mut reqwest::Response,
        limit: usize,
    ) -> Result<(Vec<u8>, bool), ModelError> {
        let mut body = Vec::new();
        loop {
            match timeout(self.parts.timeout, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    let available = limit - body.len();
                    body.extend_from_slice(&chunk[..chunk.len().min(available)]);
                    if chunk.len() > available {
                        return Ok((body, true));
                    }
                }
                Ok(Ok(None)) => return Ok((body, false)),
                Ok(Err(error)) => return Err(self.transport_error(&error)),
                Err(_) => return Err(self.timeout_error()),
            }
        }
    }

    /// What an unsuccessful answer says.
    async fn read_error(&self, mut response: reqwest::Response) -> ModelError {
        let status = response.status();
        // A complaint that breaks off is a complaint all the same: the status says most of it.
        let body = self
            .read_body(&mut response, MAX_ERROR_BODY_BYTES)
            .await
            .map(|(body, _)| body)
            .unwrap_or_default();
        let reported = serde_json::from_slice::<JsonRef<'_>>(&body).ok().as_ref().and_then(api_error);
        let mut failure = match reported {
            Some(error) => {
                let failure = self.to_model_error(error);
                ModelError { message: format!("{} ({})", failure.message, format_status(status)), ..failure }
            }
            None => {
                let reason = status.canonical_reason().unwrap_or("an unknown status");
                let text = self.sanitize(&String::from_utf8_lossy(&body));
                let colon = if text.is_empty() { "" } else { ": " };
                let number = status.as_u16();
                ModelError::after_send(
                    "ProtocolError",
                    format!("the server answers {number} {reason}{colon}{text}"),
                )
            }
        };
        failure.code = failure.code.filter(|code| *code != status.as_u16().to_string());
        failure.status_code = Some(status.as_u16());
        failure
    }

    fn parse_error(&self, fault: ResponseParseError) -> ModelError {
        match fault {
            ResponseParseError::Protocol(message) => {
                ModelError::after_send("ProtocolError", self.sanitize(&message))
            }
            ResponseParseError::Api(error) => self.to_model_error(error),
        }
    }

    fn to_model_error(&self, error: ApiError) -> ModelError {
        let headers =
            error.retry_after.map(|seconds| ("retry-after".to_owned(), seconds)).into_iter().collect();
        // Some say inside a success what they would have said as a status.
        let status = error.code.as_deref().and_then(|code| code.parse().ok());
        ModelError {
            status_code: status.filter(|status| (400..600).contains(status)),
            is_declined: true,
            code: error.code.map(|code| self.sanitize(&code)),
            headers,
            ..ModelError::after_send(&self.sanitize(&error.kind), self.sanitize(&error.message))
        }
    }

    fn transport_error(&self, error: &reqwest::Error) -> ModelError {
        match classify_error(error) {
            TransportError::Connect(cause) => ModelError::before_send(
                "ConnectionError",
                format!("no connection: {}", self.sanitize(&cause)),
            ),
            TransportError::Timeout => self.timeout_error(),
            TransportError::Reset(cause) => ModelError::after_send(
                "ConnectionResetError",
                format!("the connection broke: {}", self.sanitize(&cause)),
            ),
            TransportError::Malformed(cause) => ModelError::after_send(
                "ProtocolError",
                format!("the server speaks no HTTP: {}", self.sanitize(&cause)),
            ),
        }
    }

    fn timeout_error(&self) -> ModelError {
        let waited = self.parts.timeout;
        ModelError::after_send(
            "TimeoutError",
            format!("timed out: no response from the server for {waited:?}"),
        )
    }

    /// Text of the server, safe to show: one line, bounded, without our keys.
    fn sanitize(&self, text: &str) -> String {
        let mut shown = one_line(text);
        for secret in self.parts.secrets.iter().filter(|secret| secret.len() >= MIN_SECRET_BYTES) {
            shown = shown.replace(secret.as_str(), "[redacted]");
        }
        match shown.char_indices().nth(MAX_MESSAGE_CHARS) {
            Some((end, _)) => format!("{}…", &shown[..end]),
            None => shown,
        }
    }

    fn reported_headers(&self, headers: &HeaderMap) -> BTreeMap<String, String> {
        let reported = REPORTED_HEADERS.iter().filter_map(|name| {
            let value = headers.get(*name)?.to_str().ok()?;
            Some(((*name).to_owned(), self.sanitize(value)))
        });
        reported.collect()
    }
}

impl ModelProvider for ModelEndpoint {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        deltas: &'a (dyn Fn(ResponseDelta) + Send + Sync),
    ) -> Completion<'a> {
        Box::pin(self.send(request, deltas))
    }
}

fn format_status(status: reqwest::StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("HTTP {} {reason}", status.as_u16()),
        None => format!("HTTP {}", status.as_u16()),
    }
}

fn too_large_error() -> ModelError {
    ModelError::after_send("ProtocolError", "the answer is larger than an answer may be".to_owned())
}

fn truncated_stream_error() -> ModelError {
    ModelError::after_send("StreamError", "the stream ended before the answer did".to_owned())
}
