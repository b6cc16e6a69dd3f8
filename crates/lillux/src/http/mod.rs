//! The single entry point for HTTP: one request in, one bounded answer out.
//!
//! Every hop of a redirect is resolved here, its addresses are checked, and the connection is made to exactly the
//! addresses that were checked. There are no cookies, no referer, no proxies and no certificates but those passed in.
//! What to ask, what to retry and what an answer means is left to others.
//!
//! The interface is synchronous: each call makes its own small runtime. Call it from a plain thread, never from inside
//! an async task.

mod address_policy;
mod charset;
mod client_builder;
mod proxy;
mod redirect;
mod request;
mod sse;
mod tls;

pub use tls::{certificate_file, tls_client_config};

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use address_policy::{AddressKind, AddressPolicy, address_kind};
pub use charset::decode_text;
pub use client_builder::{TransportError, classify_error};
pub use proxy::ProxyConfig;
pub use request::parse_header;
pub use sse::{SseEvent, SseParser};

use crate::CancelToken;

/// How many redirects are followed at most.
pub const MAX_REDIRECTS: u32 = 10;

/// How many events of a stream are read at most.
pub const MAX_EVENTS: usize = 10_000;

/// Why there is no answer. No message holds a path, a query, a header or a body.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The URL cannot be read.
    #[error("the URL cannot be used: {0}")]
    Url(String),
    /// Neither http nor https.
    #[error("`{0}` is not a scheme that is fetched; use http or https")]
    Scheme(String),
    /// Credentials inside the URL.
    #[error("the URL holds a user name or password; pass credentials as a header instead")]
    Credentials,
    /// A header that cannot be sent.
    #[error("the header `{0}` cannot be sent")]
    Header(String),
    /// A method that is not known.
    #[error("`{0}` is not a method that is sent; use GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS")]
    Method(String),
    /// An exception that means nothing.
    #[error("`{0}` in `allowed_hosts` is not a host, host:port, address or network")]
    InvalidAllowedHost(String),
    /// An address that may not be reached.
    #[error(
        "`{host}` is at `{address}`, a {} address, which is refused; a signed tool or the user's config may name it in `allowed_hosts`",
        kind.as_str()
    )]
    AddressRefused {
        /// The host that was asked for.
        host: String,
        /// Where it is.
        address: IpAddr,
        /// What the address is for.
        kind: AddressKind,
    },
    /// A name of the local network, asked of a proxy.
    #[error(
        "`{0}` is a name of the local network, which is refused; a signed tool or the user's config may name it in `allowed_hosts`"
    )]
    LocalName(String),
    /// The name has no address.
    #[error("`{0}` has no address")]
    Resolve(String),
    /// No connection.
    #[error("no connection to `{host}`: {cause}")]
    Connect {
        /// The host.
        host: String,
        /// Why.
        cause: String,
    },
    /// The exchange broke off.
    #[error("the exchange with `{host}` failed: {cause}")]
    Transport {
        /// The host.
        host: String,
        /// Why.
        cause: String,
    },
    /// The certificates cannot be read.
    #[error("no certificates to check https with: {0}")]
    Certificates(String),
    /// A proxy that cannot be used.
    #[error("the proxy cannot be used: {0}")]
    Proxy(String),
    /// Too many redirects.
    #[error("more than {MAX_REDIRECTS} redirects")]
    TooManyRedirects,
    /// A redirect that cannot be followed.
    #[error("`{host}` redirects to something that is not followed: {cause}")]
    InvalidRedirect {
        /// The host that redirects.
        host: String,
        /// Why it is not followed.
        cause: String,
    },
    /// The time is over.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// It was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The consumer of the body wants no more of it.
    #[error("{0}")]
    BodyRejected(String),
    /// This machine is out of something.
    #[error("the request could not be started: {0}")]
    Start(String),
}

/// What to do with a resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HttpMethod {
    /// Read it.
    #[default]
    Get,
    /// Read its headers.
    Head,
    /// Hand something in.
    Post,
    /// Replace it.
    Put,
    /// Change it.
    Patch,
    /// Remove it.
    Delete,
    /// Ask what may be done.
    Options,
}

impl HttpMethod {
    const ALL: [Self; 7] =
        [Self::Get, Self::Head, Self::Post, Self::Put, Self::Patch, Self::Delete, Self::Options];

    /// The method as it is sent.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
        }
    }

    /// Whether doing it twice is the same as doing it once.
    #[must_use]
    pub fn is_idempotent(self) -> bool {
        match self {
            Self::Get | Self::Head | Self::Put | Self::Delete | Self::Options => true,
            Self::Post | Self::Patch => false,
        }
    }
}

impl std::str::FromStr for HttpMethod {
    type Err = HttpError;

    fn from_str(text: &str) -> Result<Self, HttpError> {
        let found = Self::ALL.into_iter().find(|method| method.as_str().eq_ignore_ascii_case(text));
        found.ok_or_else(|| HttpError::Method(text.to_owned()))
    }
}

/// One header of a request.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpHeader {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Whether it is a credential: never shown, never sent to another host than the first.
    pub is_secret: bool,
}

impl fmt::Debug for HttpHeader {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = if self.is_secret { "[redacted]" } else { &self.value };
        write!(formatter, "{}: {value}", self.name)
    }
}

/// One request.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpRequest {
    /// What to do.
    pub method: HttpMethod,
    /// With what: an absolute http or https URL.
    pub url: String,
    /// The headers, in order.
    pub headers: Vec<HttpHeader>,
    /// The body, if there is one.
    pub body: Option<Vec<u8>>,
    /// How long everything may take, redirects and body included.
    pub timeout: Duration,
    /// How long finding and reaching one host may take.
    pub connect_timeout: Duration,
    /// How long the other side may say nothing, if less than everything may take.
    pub idle_timeout: Option<Duration>,
    /// How much of the body is read at most.
    pub max_body_bytes: u64,
    /// How many redirects are followed, at most [`MAX_REDIRECTS`]; with 0 the redirect itself is the answer.
    pub max_redirects: u32,
}

impl HttpRequest {
    /// A request with the usual bounds: 30 seconds, 10 of them to connect, 10 MiB.
    #[must_use]
    pub fn new(method: HttpMethod, url: impl Into<String>) -> Self {
        Self {
            method,
            url: url.into(),
            headers: Vec::new(),
            body: None,
            timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            idle_timeout: None,
            max_body_bytes: 10 << 20,
            max_redirects: MAX_REDIRECTS,
        }
    }
}

impl fmt::Debug for HttpRequest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = url::Url::parse(&self.url).map(|url| request::display_origin(&url)).unwrap_or_default();
        let body = self.body.as_ref().map_or(0, Vec::len);
        write!(formatter, "{} {origin}… {:?}, {body} bytes", self.method.as_str(), self.headers)
    }
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    /// The status code.
    pub status: u16,
    /// What the status code means.
    pub reason: String,
    /// The headers, names in lower case, in order.
    pub headers: Vec<(String, String)>,
    /// The body, as far as it was read. Empty where events or pieces were handed out.
    pub body: Vec<u8>,
    /// Whether body or events were cut at their bound.
    pub is_truncated: bool,
    /// Where the answer came from after all redirects.
    pub url: String,
    /// How many redirects were followed.
    pub redirects: u32,
    /// How many events were handed out.
    pub events: usize,
}

impl HttpResponse {
    /// The first header of this name, in lower case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// Takes each event of a stream as it comes.
pub type OnEvent<'a> = &'a mut dyn FnMut(&SseEvent);

/// Takes each piece of a body as it comes; the reason it will not have more ends the exchange.
pub type OnChunk<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), String>;

/// What becomes of the body of a successful answer.
enum ResponseSink<'a> {
    Buffer,
    Events(OnEvent<'a>),
    Chunks(OnChunk<'a>),
}

/// Sends requests under one policy. Certificates are read once, when they are first needed; clones share them.
#[derive(Clone, Debug, Default)]
pub struct HttpClient {
    policy: AddressPolicy,
    proxies: ProxyConfig,
    certificate_file: Option<PathBuf>,
    tls: Arc<OnceLock<Result<rustls::ClientConfig, String>>>,
}

impl HttpClient {
    /// A client that reaches what the policy admits, without a proxy, with the system's certificates.
    #[must_use]
    pub fn new(policy: AddressPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// The same client, with the same proxies and certificates, under another policy.
    #[must_use]
    pub fn with_policy(mut self, policy: AddressPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The same client behind proxies.
    #[must_use]
    pub fn with_proxies(mut self, proxies: ProxyConfig) -> Self {
        self.proxies = proxies;
        self
    }

    /// The same client, with the certificates of this PEM file instead of the system's.
    #[must_use]
    pub fn with_certificate_file(mut self, path: PathBuf) -> Self {
        self.certificate_file = Some(path);
        self.tls = Arc::default();
        self
    }

    /// The same client, with the certificates that `SSL_CERT_FILE` names, if it names some.
    #[must_use]
    pub fn with_certificates_of<'a>(self, variable: impl Fn(&str) -> Option<&'a str>) -> Self {
        match certificate_file(variable) {
            Some(path) => self.with_certificate_file(path),
            None => self,
        }
    }

    /// Sends one request and reads the whole answer, as far as its bound.
    ///
    /// # Errors
    /// When there is no answer: refused by policy, not reached, too slow, cancelled.
    pub fn send(&self, request: &HttpRequest, cancel: &CancelToken) -> Result<HttpResponse, HttpError> {
        request::send(self, request, cancel, ResponseSink::Buffer)
    }

    /// As [`HttpClient::send`], but a successful answer is read as server-sent events, each handed out as it comes.
    ///
    /// # Errors
    /// As [`HttpClient::send`]; events handed out before stay handed out.
    pub fn stream_events(
        &self,
        request: &HttpRequest,
        cancel: &CancelToken,
        on_event: OnEvent<'_>,
    ) -> Result<HttpResponse, HttpError> {
        request::send(self, request, cancel, ResponseSink::Events(on_event))
    }

    /// As [`HttpClient::send`], but the body of a successful answer is handed out piece by piece and not kept.
    ///
    /// # Errors
    /// As [`HttpClient::send`], and when the taker will not have more; pieces handed out before stay handed out.
    pub fn stream_body(
        &self,
        request: &HttpRequest,
        cancel: &CancelToken,
        on_chunk: OnChunk<'_>,
    ) -> Result<HttpResponse, HttpError> {
        request::send(self, request, cancel, ResponseSink::Chunks(on_chunk))
    }
}

/// Waits until the time is over (`true`) or the token is cancelled (`false`).
#[must_use]
pub fn sleep_unless_cancelled(duration: Duration, cancel: &CancelToken) -> bool {
    let deadline = std::time::Instant::now() + duration;
    loop {
        if cancel.is_cancelled() {
            return false;
        }
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return true;
        }
        let Ok(timeout) = Timespec::try_from(left) else {
            return true;
        };
        // A signal wakes early: the loop asks again.
        let _ = poll(&mut [PollFd::new(cancel, PollFlags::IN)], Some(&timeout));
    }
}

#[cfg(test)]
mod tests;
