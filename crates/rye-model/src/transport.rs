//! One request to one endpoint: sent, read within bounds, and what went wrong put into a [`Failure`].

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lillux::http::{Client, HttpError, Policy, Trouble, header_of, trouble};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use rye_item::text::one_line;
use tokio::time::timeout;
use url::Url;

use crate::draft::{ApiError, Draft, Fault, Reader, api_error};
use crate::said::Said;
use crate::wire::{Options, Wire};
use crate::{Answer, Completion, Delta, Failure, Provider, Request};

/// How large an answer may be.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// How much of a complaint is read.
const MAX_COMPLAINT_BYTES: usize = 64 << 10;

/// How much of a complaint is shown.
const MAX_MESSAGE_CHARACTERS: usize = 2000;

/// What is shorter is no key: a placeholder, or a word that any message may hold.
const MIN_SECRET_BYTES: usize = 6;

/// How long the end of a stream is waited for, once all has been said: it frees the connection for the next request.
const LINGER: Duration = Duration::from_millis(500);

/// How long finding and reaching the server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const KEPT_HEADERS: [&str; 4] = ["retry-after", "retry-after-ms", "request-id", "x-request-id"];

const MODEL: &str = "{model}";

/// What an endpoint is made of, all filled in.
pub(crate) struct Parts {
    pub wire: Wire,
    /// Where requests go; `{model}` stands for the model.
    pub url: String,
    pub headers: Vec<(String, String)>,
    /// What must never be shown.
    pub secrets: Vec<String>,
    pub timeout: Duration,
    pub streams: bool,
    pub options: Options,
}

/// A server that answers for models, with its pool of connections. Must be used within one runtime.
pub struct Endpoint {
    http: reqwest::Client,
    headers: HeaderMap,
    parts: Parts,
    /// Where the last request went, and for which model: mostly the next one goes there too.
    last: Mutex<Option<(String, Url)>>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let host = url_for(&self.parts.url, "model").ok().and_then(|url| url.host_str().map(str::to_owned));
        write!(formatter, "Endpoint {{ {:?}, {} }}", self.parts.wire, host.unwrap_or_default())
    }
}

/// The URL for a model, which can be nothing but a part of the path.
fn url_for(template: &str, model: &str) -> Result<Url, HttpError> {
    if matches!(model, "" | "." | "..") {
        return Err(HttpError::Url(format!("`{model}` is no model")));
    }
    let encoded: String = url::form_urlencoded::byte_serialize(model.as_bytes()).collect();
    let encoded = encoded.replace('+', "%20");
    let read = |text: &str| Url::parse(text).map_err(|error| HttpError::Url(error.to_string()));
    let url = read(&template.replace(MODEL, &encoded))?;
    // A model in the place of the host would choose who gets the key.
    if url.origin() != read(&template.replace(MODEL, "model"))?.origin() {
        return Err(HttpError::Url("the model stands in place of the host".to_owned()));
    }
    Ok(url)
}

impl Endpoint {
    /// Makes the pool of connections. The endpoint's own host may be anywhere, on this machine too; nothing else that is
    /// private may.
    pub(crate) fn new(parts: Parts, door: &Client) -> Result<Self, HttpError> {
        let url = url_for(&parts.url, "model")?;
        let port = url.port_or_known_default().unwrap_or(443);
        let own = format!("{}:{port}", url.host_str().unwrap_or_default());
        let builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT.min(parts.timeout));
        let http = door.clone().with_policy(Policy::new(&[own])?).finish(builder, &url)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &parts.headers {
            let (name, mut value) = header_of(name, value)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Self { http, headers, parts, last: Mutex::default() })
    }

    #[cfg(test)]
    pub(crate) fn into_parts(self) -> Parts {
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

    async fn ask(
        &self,
        request: &Request,
        deltas: &(dyn Fn(Delta) + Send + Sync),
    ) -> Result<Answer, Failure> {
        let is_stream = request.wants_stream && self.parts.streams;
        let unsent = |message: String| Failure::here("ProtocolError", message);
        let body = self.parts.wire.body(request, &self.parts.options, is_stream);
        let body = body.map_err(|error| unsent(format!("the request cannot be written: {error}")))?;
        let url = self.url(&request.model).map_err(|error| unsent(error.to_string()))?;
        let url = if is_stream { self.parts.wire.stream_url(url) } else { url };
        let sent = self.http.post(url).headers(self.headers.clone()).body(body).send();
        let response = match timeout(self.parts.timeout, sent).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.broken(&error)),
            Err(_) => return Err(self.silent()),
        };
        let headers = self.kept_headers(response.headers());
        let answered = if response.status().is_success() {
            self.answer(response, request, deltas, is_stream).await
        } else {
            Err(self.complaint(response).await)
        };
        answered.map_err(|mut failure| {
            failure.headers.extend(headers);
            failure
        })
    }

    /// Reads a successful answer.
    async fn answer(
        &self,
        mut response: reqwest::Response,
        request: &Request,
        deltas: &(dyn Fn(Delta) + Send + Sync),
        is_stream: bool,
    ) -> Result<Answer, Failure> {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        // A server that cannot stream answers in one piece.
        let is_stream = is_stream && !kind.is_some_and(|kind| kind.trim().starts_with("application/json"));
        if kind.is_some_and(|kind| kind.trim_start().starts_with("text/html")) {
            let message = "the server answers with a web page: is this its address?";
            let failure = Failure::there("ProtocolError", message.to_owned());
            return Err(Failure { is_declined: true, ..failure });
        }
        let mut reader = self.parts.wire.reader();
        let mut draft = Draft::new(request, deltas);
        let taken = match is_stream {
            true => self.take_stream(&mut response, reader.as_mut(), &mut draft).await,
            false => self.take_whole(&mut response, reader.as_mut(), &mut draft).await,
        };
        match taken {
            Ok(()) => Ok(draft.answer(reader.as_mut())),
            Err(failure) if draft.is_untouched() => Err(failure),
            Err(failure) => Err(Failure { partial: Some(draft.partial(reader.as_mut())), ..failure }),
        }
    }

    async fn take_whole(
        &self,
        response: &mut reqwest::Response,
        reader: &mut dyn Reader,
        draft: &mut Draft<'_>,
    ) -> Result<(), Failure> {
        let (bytes, is_more) = self.read(response, MAX_ANSWER_BYTES).await?;
        if is_more {
            return Err(too_large());
        }
        let no_json = |error| Failure::there("ProtocolError", format!("the answer is no JSON: {error}"));
        let whole: Said<'_> = serde_json::from_slice(&bytes).map_err(no_json)?;
        reader.take_whole(&whole, draft).map_err(|fault| self.fault(fault))
    }

    async fn take_stream(
        &self,
        response: &mut reqwest::Response,
        reader: &mut dyn Reader,
        draft: &mut Draft<'_>,
    ) -> Result<(), Failure> {
        let mut framing = self.parts.wire.framing();
        let (mut seen, mut ready, mut is_end, mut is_first) = (0, Vec::new(), false, true);
        while !is_end && !draft.is_done {
            match timeout(self.parts.timeout, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    seen += chunk.len();
                    if seen > MAX_ANSWER_BYTES || framing.feed(&chunk, &mut ready).is_err() {
                        return Err(too_large());
                    }
                }
                Ok(Ok(None)) => {
                    framing.finish(&mut ready);
                    is_end = true;
                }
                // All that matters has been said.
                Ok(Err(_)) | Err(_) if draft.finish.is_some() => return Ok(()),
                Ok(Err(error)) => return Err(self.broken(&error)),
                Err(_) => return Err(self.silent()),
            }
            for data in ready.drain(..) {
                if !draft.is_done && !data.trim().is_empty() {
                    let taken = reader.take(&data, draft).map_err(|fault| self.fault(fault));
                    // After that the model was at work, and may have been for long.
                    taken.map_err(|failure| Failure {
                        is_declined: failure.is_declined && is_first,
                        ..failure
                    })?;
                    is_first = false;
                }
            }
        }
        if !draft.is_done && draft.finish.is_none() {
            return Err(cut_off());
        }
        // What comes after the end means nothing; not getting it costs a connection, no more.
        let rest = async { while let Ok(Some(_)) = response.chunk().await {} };
        let _ = timeout(LINGER, rest).await;
        Ok(())
    }

    /// Reads a body as far as `limit`, and whether there was more.
    async fn read(&self, response: &mut reqwest::Response, limit: usize) -> Result<(Vec<u8>, bool), Failure> {
        let mut body = Vec::new();
        loop {
            match timeout(self.parts.timeout, response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    let room = limit - body.len();
                    body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                    if chunk.len() > room {
                        return Ok((body, true));
                    }
                }
                Ok(Ok(None)) => return Ok((body, false)),
                Ok(Err(error)) => return Err(self.broken(&error)),
                Err(_) => return Err(self.silent()),
            }
        }
    }

    /// What an unsuccessful answer says.
    async fn complaint(&self, mut response: reqwest::Response) -> Failure {
        let status = response.status();
        // A complaint that breaks off is a complaint all the same: the status says most of it.
        let body =
            self.read(&mut response, MAX_COMPLAINT_BYTES).await.map(|(body, _)| body).unwrap_or_default();
        let said = serde_json::from_slice::<Said<'_>>(&body).ok().as_ref().and_then(api_error);
        let mut failure = match said {
            Some(error) => {
                let failure = self.api_failure(error);
                Failure { message: format!("{} ({})", failure.message, shown_status(status)), ..failure }
            }
            None => {
                let reason = status.canonical_reason().unwrap_or("an unknown status");
                let words = self.shown(&String::from_utf8_lossy(&body));
                let colon = if words.is_empty() { "" } else { ": " };
                let number = status.as_u16();
                Failure::there("ProtocolError", format!("the server answers {number} {reason}{colon}{words}"))
            }
        };
        failure.code = failure.code.filter(|code| *code != status.as_u16().to_string());
        failure.status_code = Some(status.as_u16());
        failure
    }

    fn fault(&self, fault: Fault) -> Failure {
        match fault {
            Fault::Protocol(message) => Failure::there("ProtocolError", self.shown(&message)),
            Fault::Api(error) => self.api_failure(error),
        }
    }

    fn api_failure(&self, error: ApiError) -> Failure {
        let headers =
            error.retry_after.map(|seconds| ("retry-after".to_owned(), seconds)).into_iter().collect();
        // Some say inside a success what they would have said as a status.
        let status = error.code.as_deref().and_then(|code| code.parse().ok());
        Failure {
            status_code: status.filter(|status| (400..600).contains(status)),
            is_declined: true,
            code: error.code.map(|code| self.shown(&code)),
            headers,
            ..Failure::there(&self.shown(&error.kind), self.shown(&error.message))
        }
    }

    fn broken(&self, error: &reqwest::Error) -> Failure {
        match trouble(error) {
            Trouble::Connect(cause) => {
                Failure::here("ConnectionError", format!("no connection: {}", self.shown(&cause)))
            }
            Trouble::Timeout => self.silent(),
            Trouble::Reset(cause) => Failure::there(
                "ConnectionResetError",
                format!("the connection broke: {}", self.shown(&cause)),
            ),
            Trouble::Nonsense(cause) => {
                Failure::there("ProtocolError", format!("the server speaks no HTTP: {}", self.shown(&cause)))
            }
        }
    }

    fn silent(&self) -> Failure {
        let waited = self.parts.timeout;
        Failure::there("TimeoutError", format!("timed out: the server said nothing for {waited:?}"))
    }

    /// Text of the server, safe to show: one line, bounded, without our keys.
    fn shown(&self, text: &str) -> String {
        let mut shown = one_line(text);
        for secret in self.parts.secrets.iter().filter(|secret| secret.len() >= MIN_SECRET_BYTES) {
            shown = shown.replace(secret.as_str(), "[redacted]");
        }
        match shown.char_indices().nth(MAX_MESSAGE_CHARACTERS) {
            Some((end, _)) => format!("{}…", &shown[..end]),
            None => shown,
        }
    }

    fn kept_headers(&self, headers: &HeaderMap) -> BTreeMap<String, String> {
        let kept = KEPT_HEADERS.iter().filter_map(|name| {
            let value = headers.get(*name)?.to_str().ok()?;
            Some(((*name).to_owned(), self.shown(value)))
        });
        kept.collect()
    }
}

impl Provider for Endpoint {
    fn complete<'a>(
        &'a self,
        request: &'a Request,
        deltas: &'a (dyn Fn(Delta) + Send + Sync),
    ) -> Completion<'a> {
        Box::pin(self.ask(request, deltas))
    }
}

fn shown_status(status: reqwest::StatusCode) -> String {
    match status.canonical_reason() {
        Some(reason) => format!("HTTP {} {reason}", status.as_u16()),
        None => format!("HTTP {}", status.as_u16()),
    }
}

fn too_large() -> Failure {
    Failure::there("ProtocolError", "the answer is larger than an answer may be".to_owned())
}

fn cut_off() -> Failure {
    Failure::there("StreamError", "the stream ended before the answer did".to_owned())
}
