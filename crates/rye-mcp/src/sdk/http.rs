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
use super::fault::{Fault, FaultReason};
use super::stdio::parse_message;
use crate::error::truncate_line;
use crate::server::McpEndpoint;

const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";
const SESSION_HEADER: &str = "mcp-session-id";
const MAX_REDIRECTS: usize = 3;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The web is not as it should be; the reason is in the exchange's [`Fault`].
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct HttpClientError(String);

type PostError = StreamableHttpError<HttpClientError>;
type Headers = HashMap<HeaderName, HeaderValue>;

/// Asks one HTTP server.
#[derive(Clone)]
pub(super) struct HttpTransport {
    client: reqwest::Client,
    headers: Vec<(HeaderName, HeaderValue)>,
    pending: Arc<Mutex<HashSet<RequestId>>>,
    fault: Fault,
}

/// A client builder that follows only what keeps origin, method and body.
pub(super) fn client_builder() -> reqwest::ClientBuilder {
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

impl HttpTransport {
    pub(super) fn new(client: reqwest::Client, endpoint: &McpEndpoint, fault: Fault) -> Self {
        Self { client, headers: endpoint.headers.clone(), pending: Arc::default(), fault }
    }

    fn protocol_error(&self, reason: String) -> PostError {
        self.fault.raise(FaultReason::Protocol(reason.clone()));
        StreamableHttpError::Client(HttpClientError(reason))
    }

    fn unreachable_error(&self, reason: String) -> PostError {
        self.fault.raise(FaultReason::Unreachable(reason.clone()));
        StreamableHttpError::Client(HttpClientError(reason))
    }

    fn parse_message(&self, bytes: &[u8]) -> Result<ServerJsonRpcMessage, String> {
        parse_message(bytes, &mut self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_pending(&self, id: &RequestId) -> bool {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    async fn send(&self, mut request: RequestBuilder, headers: Headers) -> Result<Response, PostError> {
        for (name, value) in headers.into_iter().chain(self.headers.iter().cloned()) {
            request = request.header(name, value);
        }
        request.send().await.map_err(|error| self.unreachable_error(error_chain(error)))
    }

    /// The body, if it is no larger than a message may be.
    async fn read_body(&self, mut response: Response) -> Result<Vec<u8>, PostError> {
        let mut bytes = Vec::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|error| self.unreachable_error(error_chain(error)))?
        {
            if bytes.len() + chunk.len() > MAX_MESSAGE_BYTES {
                return Err(
                    self.protocol_error(format!("it sent a message larger than {MAX_MESSAGE_BYTES} bytes"))
                );
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// The events of a response to `request_id`; an end without that response is an error unless the
    /// server gave an id to resume from.
    fn event_stream(
        &self,
        response: Response,
        request_id: Option<RequestId>,
    ) -> BoxStream<'static, Result<Sse, SseError>> {
        let mut received = 0;
        let counting = self.clone();
        let bytes = response.bytes_stream().map(move |chunk| {
            let chunk = chunk.map_err(|error| HttpClientError(error_chain(error)))?;
            received += chunk.len();
            if received > MAX_MESSAGE_BYTES {
                let reason = format!("it sent a message larger than {MAX_MESSAGE_BYTES} bytes");
                counting.fault.raise(FaultReason::Protocol(reason.clone()));
                return Err(HttpClientError(reason));
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
                && let Err(reason) = reading.parse_message(data.as_bytes())
            {
                reading.fault.raise(FaultReason::Protocol(reason));
            }
            Ok(event)
        });
        let end = futures_util::stream::once(async move {
            let is_resumable = *is_resumable.lock().unwrap_or_else(PoisonError::into_inner);
            if request_id.is_some_and(|id| ending.is_pending(&id)) && !is_resumable {
                ending
                    .fault
                    .raise(FaultReason::Protocol("its stream of events ended before the answer".into()));
            }
            None
        });
        events.map(Some).chain(end).filter_map(std::future::ready).boxed()
    }

    /// What a refusal means: a JSON-RPC error of the server, or words.
    async fn error_response(
        &self,
        response: Response,
        request_id: Option<&RequestId>,
    ) -> Result<StreamableHttpPostResponse, PostError> {
        let status = response.status();
        if status.is_redirection() {
            return Err(self.unreachable_error(format!(
                "it redirects elsewhere (HTTP {}), which is not followed; use its final address",
                status.as_u16()
            )));
        }
        let is_json = content_type(&response).starts_with(JSON);
        let body = self.read_body(response).await?;
        if is_json
            && let Ok(JsonRpcMessage::Error(mut error)) =
                serde_json::from_slice::<ServerJsonRpcMessage>(&body)
            && !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        {
            error.id = request_id.cloned();
            return Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::Error(error), None));
        }
        let advice = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; set `auth` in the server item",
            _ => "",
        };
        let excerpt = truncate_line(&String::from_utf8_lossy(&body[..body.len().min(800)]), 200);
        let body_text = if excerpt.is_empty() { String::new() } else { format!(": `{excerpt}`") };
        Err(self.unreachable_error(format!("it answered HTTP {}{body_text}{advice}", status.as_u16())))
    }
}

impl StreamableHttpClient for HttpTransport {
    type Error = HttpClientError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<StreamableHttpPostResponse, PostError> {
        let request_id = match &message {
            ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        if let Some(id) = &request_id {
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        }
        let body = serde_json::to_vec(&message)?;
        let mut request = self
            .client
            .post(uri.as_ref())
            .header(ACCEPT, format!("{JSON}, {EVENT_STREAM}"))
            .header(CONTENT_TYPE, JSON)
            .body(body);
        if let Some(session) = session_id {
            request = request.header(SESSION_HEADER, session.as_ref());
        }
        let response = self.send(request, custom_headers).await?;
        if !response.status().is_success() {
            return self.error_response(response, request_id.as_ref()).await;
        }
        let Some(request_id) = request_id else {
            // Nothing is expected here, and nothing is read.
            return Ok(StreamableHttpPostResponse::Accepted);
        };
        let session =
            response.headers().get(SESSION_HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let response_type = content_type(&response);
        if response_type.starts_with(EVENT_STREAM) {
            return Ok(StreamableHttpPostResponse::Sse(
                self.event_stream(response, Some(request_id)),
                session,
            ));
        }
        if response_type.starts_with(JSON) {
            let body = self.read_body(response).await?;
            let message = self.parse_message(&body).map_err(|reason| self.protocol_error(reason))?;
            if self.is_pending(&request_id) {
                return Err(self.protocol_error("it sent a message that is not the answer".into()));
            }
            return Ok(StreamableHttpPostResponse::Json(message, session));
        }
        Err(self.protocol_error(format!(
            "it answered with content of type `{}`",
            truncate_line(&response_type, 60)
        )))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: Headers,
    ) -> Result<(), PostError> {
        let mut request = self.client.delete(uri.as_ref()).header(SESSION_HEADER, session_id.as_ref());
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
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, PostError> {
        let Some(last_event_id) = last_event_id else {
            return Err(StreamableHttpError::ServerDoesNotSupportSse);
        };
        let mut request =
            self.client.get(uri.as_ref()).header(ACCEPT, EVENT_STREAM).header("last-event-id", last_event_id);
        if let Some(session) = session_id {
            request = request.header(SESSION_HEADER, session.as_ref());
        }
        let response = self.send(request, custom_headers).await?;
        if !(response.status().is_success() && content_type(&response).starts_with(EVENT_STREAM)) {
            let status = response.status().as_u16();
            return Err(
                self.protocol_error(format!("it would not resume its stream of events (HTTP {status})"))
            );
        }
        Ok(self.event_stream(response, None))
    }
}

fn content_type(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    String::from_utf8_lossy(value).to_ascii_lowercase()
}

/// An error with its causes, without the address, which may hold secrets.
fn error_chain(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    truncate_line(&text, 300)
}
