//! Requests to a Restate server: a thread that waits is sent, the workers' endpoint is registered. All of them block.

use std::time::Duration;

use lillux::CancelToken;
use lillux::http::{AddressPolicy, HttpClient, HttpError, HttpHeader, HttpMethod, HttpRequest, HttpResponse};
use rye_item::text::one_line;
use rye_thread::thread_id::ThreadId;
use serde_json::{Value, json};
use url::Url;

use crate::endpoint::SERVICE;
use crate::settings::RestateSettings;

/// How long a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long reaching the server may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How much of an answer is read.
const MAX_RESPONSE_BYTES: u64 = 256 << 10;
/// How much of an answer is shown.
const MAX_SHOWN_CHARS: usize = 300;

/// Why a request to Restate failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestateError {
    /// It does not answer.
    #[error("Restate at {server} cannot be reached: {cause}")]
    Unreachable {
        /// Where it should be.
        server: String,
        /// Why.
        cause: String,
    },
    /// It does not know the service.
    #[error("Restate at {server} does not know the service `{SERVICE}`: no worker has registered yet")]
    NotRegistered {
        /// Where it is.
        server: String,
    },
    /// The settings do not say where endpoints are registered.
    #[error("the settings of Restate have no `admin`")]
    NoAdmin,
    /// It refuses.
    #[error("Restate at {server} answers with {status}: {message}")]
    Refused {
        /// Where it is.
        server: String,
        /// The status code.
        status: u16,
        /// What it says.
        message: String,
    },
}

/// A Restate server, as senders and workers use it.
#[derive(Clone, Debug)]
pub struct RestateClient {
    http: HttpClient,
    settings: RestateSettings,
}

impl RestateClient {
    /// A client for the servers in the settings. `certificates` names a file to check theirs against.
    ///
    /// # Errors
    /// When an address in the settings cannot be used.
    pub fn new(settings: RestateSettings) -> Result<Self, HttpError> {
        let servers = [Some(&settings.ingress), settings.admin.as_ref()];
        let allowed: Vec<String> = servers.into_iter().flatten().map(host_and_port).collect();
        Ok(Self { http: HttpClient::new(AddressPolicy::new(&allowed)?), settings })
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &RestateSettings {
        &self.settings
    }

    /// Sends a thread that waits. Sent again with the same epoch, nothing more comes of it. It blocks.
    ///
    /// # Errors
    /// When the server cannot be reached, or refuses.
    pub fn send(&self, thread: &ThreadId, epoch: u64) -> Result<(), RestateError> {
        let server = &self.settings.ingress;
        let url = join(server, &[SERVICE, thread.as_str(), "drive", "send"]);
        let key = HttpHeader {
            name: "idempotency-key".to_owned(),
            value: format!("{thread}:{epoch}"),
            is_secret: false,
        };
        let request = HttpRequest { headers: vec![key], ..request(HttpMethod::Post, url) };
        let response = self.exchange(server, &request)?;
        match response.status {
            200..=299 => Ok(()),
            404 => Err(RestateError::NotRegistered { server: server.to_string() }),
            _ => Err(refusal(server, &response)),
        }
    }

    /// Whether the ingress answers. It blocks.
    ///
    /// # Errors
    /// When it does not.
    pub fn check_ingress(&self) -> Result<(), RestateError> {
        let server = &self.settings.ingress;
        let response =
            self.exchange(server, &request(HttpMethod::Get, join(server, &["restate", "health"])))?;
        if is_success(&response) { Ok(()) } else { Err(refusal(server, &response)) }
    }

    /// Registers the workers' endpoint; nothing changes if it is registered already. It blocks.
    ///
    /// # Errors
    /// When the settings name no server for that, it cannot be reached, or cannot reach the endpoint.
    pub fn register(&self) -> Result<(), RestateError> {
        let server = self.admin()?;
        let endpoint = self.settings.endpoint.as_str();
        // What another release registered is replaced: no invocation has a journal that could not continue.
        let body = json!({"uri": endpoint, "force": true});
        let content_type = HttpHeader {
            name: "content-type".to_owned(),
            value: "application/json".to_owned(),
            is_secret: false,
        };
        let request = HttpRequest {
            headers: vec![content_type],
            body: Some(body.to_string().into_bytes()),
            ..request(HttpMethod::Post, join(server, &["deployments"]))
        };
        let response = self.exchange(server, &request)?;
        if is_success(&response) { Ok(()) } else { Err(refusal(server, &response)) }
    }

    /// Whether the server knows the workers' service. It blocks.
    ///
    /// # Errors
    /// As [`RestateClient::register`].
    pub fn knows_service(&self) -> Result<bool, RestateError> {
        let server = self.admin()?;
        let response =
            self.exchange(server, &request(HttpMethod::Get, join(server, &["services", SERVICE])))?;
        match response.status {
            404 => Ok(false),
            _ if is_success(&response) => Ok(true),
            _ => Err(refusal(server, &response)),
        }
    }

    fn admin(&self) -> Result<&Url, RestateError> {
        self.settings.admin.as_ref().ok_or(RestateError::NoAdmin)
    }

    fn exchange(&self, server: &Url, request: &HttpRequest) -> Result<HttpResponse, RestateError> {
        let unreachable =
            |cause: String| RestateError::Unreachable { server: server.to_string(), cause: one_line(&cause) };
        let cancel = CancelToken::new().map_err(|error| unreachable(error.to_string()))?;
        self.http.send(request, &cancel).map_err(|error| unreachable(error.to_string()))
    }
}

fn is_success(response: &HttpResponse) -> bool {
    (200..300).contains(&response.status)
}

fn request(method: HttpMethod, url: String) -> HttpRequest {
    HttpRequest {
        timeout: REQUEST_TIMEOUT,
        connect_timeout: CONNECT_TIMEOUT,
        max_body_bytes: MAX_RESPONSE_BYTES,
        max_redirects: 0,
        ..HttpRequest::new(method, url)
    }
}

/// Settings are signed: what they name may be reached, whichever address it has.
fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    format!("{host}:{}", url.port_or_known_default().unwrap_or_default())
}

fn join(base: &Url, path: &[&str]) -> String {
    format!("{}/{}", base.as_str().trim_end_matches('/'), path.join("/"))
}

fn refusal(server: &Url, response: &HttpResponse) -> RestateError {
    let text = String::from_utf8_lossy(&response.body);
    let parsed = serde_json::from_str::<Value>(&text).ok();
    let message = parsed.as_ref().and_then(|value| value.get("message")).and_then(Value::as_str);
    let message = one_line(message.unwrap_or(&text)).chars().take(MAX_SHOWN_CHARS).collect();
    RestateError::Refused { server: server.to_string(), status: response.status, message }
}
