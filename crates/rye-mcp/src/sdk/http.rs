//! Streamable HTTP, with bounds the SDK's own client does not have: every body is cut at the largest message, every answer
//! must be to a question, nothing leaves the origin, and the server gets no stream of its own to ask things on.

use std::collections::{HashMap, HashSet};
use std::error::Error as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use reqwest::{RequestBuilder, Response, StatusCode, redirect};
use rmcp::model::{ClientJsonRpcMessage, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use sse_stream::{Sse, SseStream};

use super::MAX_MESSAGE_BYTES;
use super::fault::{Fault, Reason};
use super::stdio::read_message;
use crate::error::shown;
use crate::server::Endpoint;

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";
const SESSION: &str = "mcp-session-id";
const MAX_REDIRECTS: usize = 3;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The web is not as it should be; the reason is in the exchange's [`Fault`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Failed(String);

type Failure = StreamableHttpError<Failed>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// Asks one HTTP server.
#[derive(Clone)]
pub(super) struct Asker {
    client: reqwest::Client,
    headers: Vec<(HeaderName, HeaderValue)>,
    waiting: Arc<Mutex<HashSet<RequestId>>>,
    fault: Fault,
}

/// A client builder that follows only what keeps origin, method and body.
pub(super) fn builder() -> reqwest::ClientBuilder {
    let policy = redirect::Policy::custom(|attempt| {
        let keeps_body =
            matches!(attempt.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        let keeps_origin =
            attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
        if keeps_body && keeps_origin && attempt.previous().len() <= MAX_REDIRECTS {
            attempt.follow()
        } else {
            attempt.stop()
        }
    });
    reqwest::Client::builder().redirect(policy).connect_timeout(CONNECT_TIMEOUT).pool_max_idle_per_host(0)
}

impl Asker {
    pub(super) fn new(client: reqwest::Client, endpoint: &Endpoint, fault: Fault) -> Self {
        Self { client, headers: endpoint.headers.clone(), waiting: Arc::default(), fault }
    }

    fn protocol(&self, reason: String) -> Failure {
        self.fault.raise(Reason::Protocol(reason.clone()));
        StreamableHttpError::Client(Failed(reason))
    }

    fn unreachable(&self, reason: String) -> Failure {
        self.fault.raise(Reason::Unreachable(reason.clone()));
        StreamableHttpError::Client(Failed(reason))
    }

    fn read(&self, bytes: &[u8]) -> Result<ServerJsonRpcMessage, String> {
        read_message(bytes, &mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_waiting(&self, id: &RequestId) -> bool {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    async fn send(&self, mut request: RequestBuilder, headers: Headers) -> Result<Response, Failure> {
        for (name, value) in headers.into_iter().chain(self.headers.iter().cloned()) {
            request = request.header(name, value);
        }
        request.send().await.map_err(|error| self.unreachable(words(error)))
    }

    /// The body, if it is no larger than a message may be.
    async fn body(&self, mut response: Response) -> Result<Vec<u8>, Failure> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(words(error)))? {
            if bytes.len() + chunk.len() > MAX_MESSAGE_BYTES {
                return Err(self.protocol(format!("it sent a message larger than {MAX_MESSAGE_BYTES} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// The events of a response. `question` is what they have to answer; an end without answer is a fault unless the
    /// server gave an id to resume from.
    fn events(
        &self,
        response: Response,
        question: Option<RequestId>,
    ) -> BoxStream<'static, Result<Sse, SseError>> {
        let mut received = 0;
        let counting = self.clone();
        let bytes = response.bytes_stream().map(move |chunk| {
            let chunk = chunk.map_err(|error| Failed(words(error)))?;
            received += chunk.len();
            if received > MAX_MESSAGE_BYTES {
                let reason = format!("it sent a message larger than {MAX_MESSAGE_BYTES} bytes");
                counting.fault.raise(Reason::Protocol(reason.clone()));
                return Err(Failed(reason));
            }
            Ok(chunk)
        });
        let (reading, ending) = (self.clone(), self.clone());
        let is_resumable = Arc::new(Mutex::new(false));
        let saw_id = Arc::clone(&is_resumable);
        let events = SseStream::from_bytes_stream(bytes).map(move |event| {
            let event = event?;
            if event.id.is_some() {
                *saw_id.lock().unwrap_or_else(PoisonError::into_inner) = true;
            }
            if let Some(data) = event.data.as_deref().filter(|data| !data.trim().is_empty())
                && let Err(reason) = reading.read(data.as_bytes())
            {
                reading.fault.raise(Reason::Protocol(reason));
            }
            Ok(event)
        });
        let end = futures_util::stream::once(async move {
            let is_resumable = *is_resumable.lock().unwrap_or_else(PoisonError::into_inner);
            if question.is_some_and(|id| ending.is_waiting(&id)) && !is_resumable {
                ending.fault.raise(Reason::Protocol("its stream of events ended before the answer".into()));
            }
            None
        });
        events.map(Some).chain(end).filter_map(std::future::ready).boxed()
    }

    /// What a refusal means: a JSON-RPC error of the server, or words.
    async fn refusal(
        &self,
        response: Response,
        question: Option<&RequestId>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let status = response.status();
        if status.is_redirection() {
            return Err(self.unreachable(format!(
                "it redirects elsewhere (HTTP {}), which is not followed; use its final address",
                status.as_u16()
            )));
        }
        let is_json = kind(&response).starts_with(JSON);
        let body = self.body(response).await?;
        if is_json
            && let Ok(JsonRpcMessage::Error(mut error)) =
                serde_json::from_slice::<ServerJsonRpcMessage>(&body)
            && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        {
            error.id = question.cloned();
            return Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), None));
        }
        let advice = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; set `auth` in the server item",
            _ => "",
        };
        let excerpt = shown(&String::from_utf8_lossy(&body[..body.len().min(800)]), 200);
        let said = if excerpt.is_empty() { String::new() } else { format!(": `{excerpt}`") };
        Err(self.unreachable(format!("it answered HTTP {}{said}{advice}", status.as_u16())))
    }
}

impl StreamableHttpClient for Asker {
    type Error = Failed;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let question = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        if let Some(id) = &question {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        }
        let body = serde_json::to_vec(&message)?;
        let mut request = self
            .client
            .post(uri.as_ref())
            .header(ACCEPT, format!("{JSON}, {EVENTS}"))
            .header(CONTENT_TYPE, JSON)
            .body(body);
        if let Some(session) = session_id {
            request = request.header(SESSION, session.as_ref());
        }
        let response = self.send(request, custom_headers).await?;
        if !response.status().is_success() {
            return self.refusal(response, question.as_ref()).await;
        }
        let Some(question) = question else {
            // Nothing is expected here, and nothing is read.
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        let session =
            response.headers().get(SESSION).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let kind = kind(&response);
        if kind.starts_with(EVENTS) {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response, Some(question)), session));
        }
        if kind.starts_with(JSON) {
            let body = self.body(response).await?;
            let message = self.read(&body).map_err(|reason| self.protocol(reason))?;
            if self.is_waiting(&question) {
                return Err(self.protocol("it sent a message that is not the answer".into()));
            }
            return Ok(StreamableHttpPostResponse::Json(message, session));
        }
        Err(self.protocol(format!("it answered with content of type `{}`", shown(&kind, 60))))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), Failure> {
        let mut request = self.client.delete(uri.as_ref()).header(SESSION, session_id.as_ref());
        for (name, value) in custom_headers.into_iter().chain(self.headers.iter().cloned()) {
            request = request.header(name, value);
        }
        // The exchange is over: a server that will not forget its session is its own problem.
        let _ = request.send().await;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let Some(last_event_id) = last_event_id else {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        };
        let mut request =
            self.client.get(uri.as_ref()).header(ACCEPT, EVENTS).header("last-event-id", last_event_id);
        if let Some(session) = session_id {
            request = request.header(SESSION, session.as_ref());
        }
        let response = self.send(request, custom_headers).await?;
        if !(response.status().is_success() && kind(&response).starts_with(EVENTS)) {
            let status = response.status().as_u16();
            return Err(self.protocol(format!("it would not resume its stream of events (HTTP {status})")));
        }
        Ok(self.events(response, None))
    }
}

fn kind(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    String::from_utf8_lossy(value).to_ascii_lowercase()
}

/// An error with its causes, without the address, which may hold secrets.
fn words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    shown(&text, 300)
}
