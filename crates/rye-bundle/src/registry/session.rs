//! Talking to one registry: which scheme, who asks, what is tried again, and what an answer means.
//!
//! Credentials go to the registry's own origin, and to the place it names for giving out tokens; to nowhere else. Only
//! public addresses are reached, but for the registry itself and what the user names.

use std::time::Duration;

use lillux::http::{
    AddressPolicy, HttpClient, HttpError, HttpHeader, HttpMethod, HttpRequest, HttpResponse,
    sleep_unless_cancelled,
};
use rye_item::text::one_line;
use serde::Deserialize;
use url::Url;

use super::auth_challenge::AuthChallenge;
use super::credentials::{RegistryCredentials, basic_auth};
use super::{Reference, RegistryAccess, RegistryError};

/// Where the registry behind `docker.io` is.
const DOCKER_HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");
/// How often a question that changes nothing is asked again.
const MAX_RETRIES: u32 = 2;
const MAX_TOKEN_RESPONSE_BYTES: u64 = 1 << 20;
/// How long one short exchange may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Takes the body of an answer; it may be begun again when an exchange breaks off.
pub(super) trait BodySink {
    /// Forgets what was taken.
    fn restart(&mut self) -> Result<(), String>;
    /// Takes the next piece.
    fn write(&mut self, piece: &[u8]) -> Result<(), String>;
}

/// One registry, as this reference reaches it.
pub(super) struct RegistrySession<'a> {
    access: &'a RegistryAccess<'a>,
    reference: &'a Reference,
    client: HttpClient,
    base: Url,
    /// What the registry may be asked to allow.
    scope: String,
    authorization: Option<String>,
    has_credentials: bool,
}

impl<'a> RegistrySession<'a> {
    pub(super) fn open(
        reference: &'a Reference,
        access: &'a RegistryAccess<'a>,
        may_write: bool,
    ) -> Result<Self, RegistryError> {
        let host = match reference.host() {
            host if host == DOCKER_HUB.0 => DOCKER_HUB.1,
            host => host,
        };
        let at = |scheme: &str| {
            let port = reference.port().map(|port| format!(":{port}")).unwrap_or_default();
            Url::parse(&format!("{scheme}://{host}{port}/v2/"))
                .map_err(|error| RegistryError::Unreachable(HttpError::Url(error.to_string())))
        };
        let client = |base: &Url| -> Result<HttpClient, RegistryError> {
            let port = base.port_or_known_default().unwrap_or(443);
            let mut allowed = vec![format!("{host}:{port}")];
            allowed.extend(access.allowed_hosts.iter().cloned());
            let mut client =
                HttpClient::new(AddressPolicy::new(&allowed).map_err(RegistryError::Unreachable)?);
            if !reference.is_loopback() {
                client = client.with_proxies(access.proxies.clone());
            }
            Ok(match &access.certificate_file {
                Some(path) => client.with_certificate_file(path.clone()),
                None => client,
            })
        };
        let actions = if may_write { "pull,push" } else { "pull" };
        let mut session = Self {
            access,
            reference,
            base: at(if access.allows_plain_http { "http" } else { "https" })?,
            client: HttpClient::default(),
            scope: format!("repository:{}:{actions}", reference.repository()),
            authorization: None,
            has_credentials: false,
        };
        session.client = client(&session.base)?;
        // On this machine many registries use plain HTTP, and there is no network in between.
        if reference.is_loopback() && !access.allows_plain_http {
            let mut probe = short_request(HttpMethod::Get, &session.base);
            probe.max_redirects = 0;
            match session.client.send(&probe, access.cancel) {
                Ok(_) => {}
                Err(HttpError::Cancelled) => return Err(RegistryError::Cancelled),
                Err(_) => {
                    session.base = at("http")?;
                    session.client = client(&session.base)?;
                }
            }
        }
        Ok(session)
    }

    /// The address of something in the repository.
    pub(super) fn url(&self, kind: &str, name: &str) -> Result<Url, RegistryError> {
        let path = format!("{}/{kind}/{name}", self.reference.repository());
        self.base.join(&path).map_err(|error| RegistryError::Unreachable(HttpError::Url(error.to_string())))
    }

    /// Where an upload continues, as the registry says.
    pub(super) fn upload_location(
        &self,
        request_url: &Url,
        response: &HttpResponse,
    ) -> Result<Url, RegistryError> {
        let next = response.header("location").and_then(|location| request_url.join(location).ok());
        let next =
            next.ok_or_else(|| self.unexpected(response, "it does not say where the upload continues"))?;
        if self.base.scheme() == "https" && next.scheme() != "https" {
            return Err(self.unexpected(response, "it sends the upload from https to http"));
        }
        Ok(next)
    }

    /// One exchange: authorized when required, retried when that is safe. With a sink, the body of a
    /// successful answer goes there.
    pub(super) fn send(
        &mut self,
        request: &HttpRequest,
        url: &Url,
        mut sink: Option<&mut dyn BodySink>,
    ) -> Result<HttpResponse, RegistryError> {
        let is_own = url.origin() == self.base.origin();
        let (mut has_authorized, mut retries) = (false, 0);
        loop {
            let mut call = request.clone();
            if let Some(authorization) = self.authorization.as_ref().filter(|_| is_own) {
                call.headers.push(secret_header("Authorization", authorization));
            }
            let outcome = match &mut sink {
                None => self.client.send(&call, self.access.cancel),
                Some(sink) => {
                    sink.restart().map_err(RegistryError::LocalIo)?;
                    self.client.stream_body(&call, self.access.cancel, &mut |piece| sink.write(piece))
                }
            };
            let is_transient = match &outcome {
                Ok(response) => matches!(response.status, 408 | 429 | 500 | 502 | 503 | 504),
                Err(error) => matches!(
                    error,
                    HttpError::Connect { .. } | HttpError::Transport { .. } | HttpError::Timeout(_)
                ),
            };
            if is_transient
                && matches!(request.method, HttpMethod::Get | HttpMethod::Head)
                && retries < MAX_RETRIES
            {
                retries += 1;
                if !sleep_unless_cancelled(self.access.retry_interval * retries, self.access.cancel) {
                    return Err(RegistryError::Cancelled);
                }
                continue;
            }
            let response = outcome.map_err(RegistryError::from)?;
            match response.status {
                401 if is_own && !has_authorized => {
                    has_authorized = true;
                    self.authorization = Some(self.authorize(&response)?);
                }
                401 | 403 => return Err(self.access_denied(&response)),
                _ => return Ok(response),
            }
        }
    }

    /// What to send so that the registry knows who asks.
    fn authorize(&mut self, refusal: &HttpResponse) -> Result<String, RegistryError> {
        let headers = refusal.headers.iter().filter(|(name, _)| name == "www-authenticate");
        let challenge = AuthChallenge::parse(headers.map(|(_, value)| value.as_str()));
        let Some(challenge) = challenge else {
            return Err(self.access_denied(refusal));
        };
        let credentials = (self.access.credentials)(self.reference)?;
        self.has_credentials = credentials.is_some();
        match (challenge, credentials) {
            (_, Some(RegistryCredentials::RegistryToken(token))) => Ok(format!("Bearer {token}")),
            (AuthChallenge::Basic, Some(RegistryCredentials::Password { user, password })) => {
                Ok(basic_auth(&user, &password))
            }
            (AuthChallenge::Basic, Some(RegistryCredentials::IdentityToken(_)) | None) => {
                Err(self.access_denied(refusal))
            }
            (AuthChallenge::Bearer { realm, service }, credentials) => {
                self.fetch_token(&realm, service.as_deref(), credentials.as_ref())
            }
        }
    }

    /// Asks the place the registry names for a token.
    fn fetch_token(
        &self,
        realm: &str,
        service: Option<&str>,
        credentials: Option<&RegistryCredentials>,
    ) -> Result<String, RegistryError> {
        let invalid_realm = |reason: &str| RegistryError::UnexpectedResponse {
            registry: self.reference.authority(),
            detail: format!("it sends those who ask for a token to {reason}"),
        };
        let mut url = Url::parse(realm).map_err(|_| invalid_realm("an invalid URL"))?;
        // Without TLS the password may go where the registry itself is asked without, and nowhere else.
        let is_plain = self.base.scheme() != "https" && url.host() == self.base.host();
        if url.scheme() != "https" && !is_plain {
            return Err(invalid_realm("a place without https"));
        }
        let mut parameters = vec![("scope", self.scope.as_str())];
        parameters.extend(service.map(|service| ("service", service)));
        let mut request = short_request(HttpMethod::Get, &url);
        match credentials {
            Some(RegistryCredentials::IdentityToken(token)) => {
                parameters.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "rye"),
                    ("refresh_token", token),
                ]);
                let form =
                    url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
                request.method = HttpMethod::Post;
                request.headers.push(plain_header("Content-Type", "application/x-www-form-urlencoded"));
                request.body = Some(form.into_bytes());
            }
            Some(RegistryCredentials::Password { user, password }) => {
                url.query_pairs_mut().extend_pairs(parameters);
                request.headers.push(secret_header("Authorization", &basic_auth(user, password)));
            }
            Some(RegistryCredentials::RegistryToken(_)) | None => {
                url.query_pairs_mut().extend_pairs(parameters);
            }
        }
        request.url = url.to_string();
        request.max_body_bytes = MAX_TOKEN_RESPONSE_BYTES;
        let response = self.client.send(&request, self.access.cancel).map_err(RegistryError::from)?;
        match response.status {
            200 => {}
            400 | 401 | 403 => return Err(self.access_denied(&response)),
            _ => return Err(self.unexpected(&response, "it gives out no token")),
        }
        #[derive(Deserialize)]
        struct TokenResponse {
            token: Option<String>,
            access_token: Option<String>,
        }
        let token_response: Option<TokenResponse> = serde_json::from_slice(&response.body).ok();
        let token = token_response
            .and_then(|token_response| token_response.token.or(token_response.access_token))
            .unwrap_or_default();
        let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_token {
            return Err(self.unexpected(&response, "it returned an invalid token"));
        }
        Ok(format!("Bearer {token}"))
    }

    fn access_denied(&self, response: &HttpResponse) -> RegistryError {
        RegistryError::AccessDenied {
            registry: self.reference.authority(),
            repository: self.reference.repository().to_owned(),
            detail: error_text(response),
            has_credentials: self.has_credentials,
        }
    }

    /// An answer that is none of those the protocol knows.
    pub(super) fn unexpected(&self, response: &HttpResponse, what: &str) -> RegistryError {
        RegistryError::UnexpectedResponse {
            registry: self.reference.authority(),
            detail: format!("{what} ({})", error_text(response)),
        }
    }
}

/// The status, and what the registry says about it.
fn error_text(response: &HttpResponse) -> String {
    #[derive(Deserialize)]
    struct RegistryErrorEntry {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    #[derive(Deserialize)]
    struct RegistryErrorList {
        errors: Vec<RegistryErrorEntry>,
    }
    let error_list: Option<RegistryErrorList> = serde_json::from_slice(&response.body).ok();
    let first = error_list.and_then(|error_list| error_list.errors.into_iter().next());
    let words = first.map(|entry| {
        let text = one_line(&format!("{} {}", entry.code, entry.message));
        text.trim().chars().take(200).collect::<String>()
    });
    match words.filter(|words| !words.is_empty()) {
        Some(words) => format!("HTTP {}: {words}", response.status),
        None => format!("HTTP {} {}", response.status, response.reason).trim_end().to_owned(),
    }
}

/// A short exchange with small answers.
pub(super) fn short_request(method: HttpMethod, url: &Url) -> HttpRequest {
    let mut request = HttpRequest::new(method, url.as_str());
    request.timeout = REQUEST_TIMEOUT;
    request.max_body_bytes = 64 << 10;
    request
}

pub(super) fn plain_header(name: &str, value: &str) -> HttpHeader {
    HttpHeader { name: name.to_owned(), value: value.to_owned(), is_secret: false }
}

fn secret_header(name: &str, value: &str) -> HttpHeader {
    HttpHeader { name: name.to_owned(), value: value.to_owned(), is_secret: true }
}
