//! One request on the wire: resolve, check, connect to what was checked, read within bounds, follow by hand.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{sleep, timeout};
use url::{Host, Url};

use super::redirect::{self, Hop};
use super::sse::SseParser;
use super::{
    HttpClient, HttpError, HttpRequest, HttpResponse, MAX_EVENTS, MAX_REDIRECTS, OnEvent, ResponseSink, tls,
};
use crate::CancelToken;

/// The scheme, host and port of a URL: what may be shown of it.
pub(super) fn display_origin(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
}

/// Only http and https, and no credentials in the URL, where logs and servers would see them.
pub(super) fn check_url(url: &Url) -> Result<(), HttpError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(HttpError::Scheme(url.scheme().to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(HttpError::Credentials);
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(HttpError::Url("it has no host".to_owned()));
    }
    Ok(())
}

pub(super) fn send(
    client: &HttpClient,
    request: &HttpRequest,
    cancel: &CancelToken,
    sink: ResponseSink<'_>,
) -> Result<HttpResponse, HttpError> {
    let url = Url::parse(&request.url).map_err(|error| HttpError::Url(error.to_string()))?;
    check_url(&url)?;
    for header in &request.headers {
        parse_header(&header.name, &header.value)?;
    }
    let to_error = |error: std::io::Error| HttpError::Start(error.to_string());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(to_error)?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            biased;
            () = wait_for_cancel(cancel) => Err(HttpError::Cancelled),
            outcome = timeout(request.timeout, follow_redirects(client, request, url, sink)) => {
                outcome.unwrap_or(Err(HttpError::Timeout(request.timeout)))
            }
        }
    });
    // A name lookup that hangs stays in its own thread and is not waited for.
    runtime.shutdown_background();
    outcome
}

/// How often the request to stop is looked at: registering its descriptor with the runtime needs `unsafe`.
const CANCEL_POLL_INTERVAL: Duration = Duration::from_millis(20);

async fn wait_for_cancel(cancel: &CancelToken) {
    while !cancel.is_cancelled() {
        sleep(CANCEL_POLL_INTERVAL).await;
    }
}

async fn follow_redirects(
    client: &HttpClient,
    request: &HttpRequest,
    url: Url,
    sink: ResponseSink<'_>,
) -> Result<HttpResponse, HttpError> {
    let mut hop =
        Hop { method: request.method, url, headers: request.headers.clone(), body: request.body.clone() };
    let allowed = request.max_redirects.min(MAX_REDIRECTS);
    let mut redirects = 0;
    loop {
        let reply = send_hop(client, request, &hop).await?;
        let location = reply.headers().get("location").and_then(|value| value.to_str().ok());
        let next = match allowed {
            0 => None,
            _ => redirect::next_hop(&hop, reply.status().as_u16(), location)?,
        };
        let Some(next) = next else {
            let mut response = response_head(&reply, &hop, redirects);
            read_body(reply, request, &hop, &mut response, sink).await?;
            return Ok(response);
        };
        if redirects == allowed {
            return Err(HttpError::TooManyRedirects);
        }
        redirects += 1;
        hop = next;
    }
}

/// Sends one hop to addresses that were checked, and to no others.
async fn send_hop(
    client: &HttpClient,
    request: &HttpRequest,
    hop: &Hop,
) -> Result<reqwest::Response, HttpError> {
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .http1_only()
        .pool_max_idle_per_host(0)
        .connect_timeout(request.connect_timeout)
        .dns_resolver(Arc::new(DenyResolver))
        .tls_backend_preconfigured(tls_for(client, &hop.url)?);
    if let Some(idle) = request.idle_timeout {
        builder = builder.read_timeout(idle);
    }
    let proxy = client.proxies.proxy_for(&hop.url)?;
    let (host, port, known) = split_host(&hop.url)?;
    match &proxy {
        None => {
            let addresses = match known {
                Some(address) => vec![SocketAddr::new(address, port)],
                None => resolve(&host, port, request).await?,
            };
            let all: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
            client.policy.check(&host, port, &all)?;
            builder = builder.resolve_to_addrs(&host, &addresses);
        }
        Some(proxy) => {
            // The proxy makes the connection. What can be known of its goal is checked all the same.
            client.policy.check_proxied(&host, port, known)?;
            if known.is_none()
                && let Ok(addresses) = resolve(&host, port, request).await
            {
                let all: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
                client.policy.check(&host, port, &all)?;
            }
            let (proxy_host, proxy_port, proxy_address) = split_host(proxy)?;
            if proxy_address.is_none() {
                let addresses = resolve(&proxy_host, proxy_port, request).await?;
                builder = builder.resolve_to_addrs(&proxy_host, &addresses);
            }
            let unusable = |_| HttpError::Proxy("its URL cannot be read".to_owned());
            builder = builder.proxy(reqwest::Proxy::all(proxy.clone()).map_err(unusable)?);
        }
    }
    let http = builder.build().map_err(|error| HttpError::Start(root_cause(&error)))?;
    let method = reqwest::Method::from_bytes(hop.method.as_str().as_bytes())
        .map_err(|_| HttpError::Method(hop.method.as_str().to_owned()))?;
    let mut headers = HeaderMap::new();
    for header in &hop.headers {
        let (name, value) = parse_header(&header.name, &header.value)?;
        headers.append(name, value);
    }
    let mut call = http.request(method, hop.url.clone()).headers(headers);
    if let Some(body) = &hop.body {
        call = call.body(body.clone());
    }
    call.send().await.map_err(|error| to_http_error(&error, hop, request))
}

pub(super) fn tls_for(client: &HttpClient, url: &Url) -> Result<rustls::ClientConfig, HttpError> {
    let is_proxied_by_tls = client.proxies.https.is_some() || client.proxies.http.is_some();
    if url.scheme() == "http" && !is_proxied_by_tls {
        return tls::without_certificates().map_err(HttpError::Certificates);
    }
    let config = client.tls.get_or_init(|| tls::with_certificates(client.certificate_file.as_deref()));
    config.clone().map_err(HttpError::Certificates)
}

/// Host, port and, where the host is written as one, address.
pub(super) fn split_host(url: &Url) -> Result<(String, u16, Option<IpAddr>), HttpError> {
    let port = url.port_or_known_default().unwrap_or(80);
    match url.host() {
        Some(Host::Domain(name)) => Ok((name.to_owned(), port, None)),
        Some(Host::Ipv4(address)) => Ok((address.to_string(), port, Some(address.into()))),
        Some(Host::Ipv6(address)) => Ok((format!("[{address}]"), port, Some(address.into()))),
        None => Err(HttpError::Url("it has no host".to_owned())),
    }
}

async fn resolve(host: &str, port: u16, request: &HttpRequest) -> Result<Vec<SocketAddr>, HttpError> {
    let unresolved = || HttpError::Resolve(host.to_owned());
    let lookup = timeout(request.connect_timeout, tokio::net::lookup_host((host, port))).await;
    let addresses: Vec<SocketAddr> = match lookup {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    if addresses.is_empty() { Err(unresolved()) } else { Ok(addresses) }
}

/// Answers no name: every address that is used was checked before.
struct DenyResolver;

impl Resolve for DenyResolver {
    fn resolve(&self, _name: Name) -> Resolving {
        Box::pin(async { Err("only addresses that were checked are used".into()) })
    }
}

/// A header that can be sent; those that frame the message belong to the client.
///
/// # Errors
/// When it cannot be sent, or belongs to the client.
pub fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), HttpError> {
    const RESERVED_HEADERS: [&str; 9] = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "proxy-authorization",
    ];
    let invalid = || HttpError::Header(name.to_owned());
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
    if RESERVED_HEADERS.contains(&parsed.as_str()) {
        return Err(invalid());
    }
    Ok((parsed, HeaderValue::from_str(value).map_err(|_| invalid())?))
}

fn response_head(response: &reqwest::Response, hop: &Hop, redirects: u32) -> HttpResponse {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    HttpResponse {
        status: response.status().as_u16(),
        reason: response.status().canonical_reason().unwrap_or_default().to_owned(),
        headers: response.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        url: hop.url.to_string(),
        redirects,
        ..HttpResponse::default()
    }
}

/// How much of an unsuccessful answer is kept where its body would have been handed out in pieces.
const MAX_ERROR_BODY_BYTES: usize = 64 << 10;

/// Reads the body within its bound; a successful answer goes to its taker, any other is kept.
async fn read_body(
    mut reply: reqwest::Response,
    request: &HttpRequest,
    hop: &Hop,
    response: &mut HttpResponse,
    sink: ResponseSink<'_>,
) -> Result<(), HttpError> {
    let mut limit = usize::try_from(request.max_body_bytes).unwrap_or(usize::MAX);
    let mut sink = match sink {
        sink if reply.status().is_success() => sink,
        ResponseSink::Chunks(_) => {
            limit = limit.min(MAX_ERROR_BODY_BYTES);
            ResponseSink::Buffer
        }
        ResponseSink::Buffer | ResponseSink::Events(_) => ResponseSink::Buffer,
    };
    let (mut parser, mut ready, mut received) = (SseParser::default(), Vec::new(), 0);
    while let Some(chunk) = reply.chunk().await.map_err(|error| to_http_error(&error, hop, request))? {
        let accepted = &chunk[..chunk.len().min(limit - received)];
        received += accepted.len();
        response.is_truncated = accepted.len() < chunk.len();
        match &mut sink {
            ResponseSink::Buffer => response.body.extend_from_slice(accepted),
            ResponseSink::Chunks(on_piece) => on_piece(accepted).map_err(HttpError::BodyRejected)?,
            ResponseSink::Events(receiver) => {
                parser.feed(accepted, &mut ready);
                emit_events(&mut ready, receiver, response);
            }
        }
        if response.is_truncated {
            return Ok(());
        }
    }
    if let ResponseSink::Events(receiver) = &mut sink {
        parser.finish(&mut ready);
        emit_events(&mut ready, receiver, response);
    }
    Ok(())
}

fn emit_events(ready: &mut Vec<super::SseEvent>, receiver: &mut OnEvent<'_>, response: &mut HttpResponse) {
    for event in ready.drain(..) {
        if response.events == MAX_EVENTS {
            response.is_truncated = true;
            return;
        }
        response.events += 1;
        receiver(&event);
    }
}

fn to_http_error(error: &reqwest::Error, hop: &Hop, request: &HttpRequest) -> HttpError {
    let host = display_origin(&hop.url);
    if error.is_connect() {
        HttpError::Connect { host, cause: root_cause(error) }
    } else if error.is_timeout() {
        HttpError::Timeout(request.idle_timeout.unwrap_or(request.timeout))
    } else {
        HttpError::Transport { host, cause: root_cause(error) }
    }
}

/// The innermost reason: the outer ones repeat the URL, which may hold a secret.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut inner: Option<&(dyn Error + 'static)> = error.source();
    while let Some(next) = inner.and_then(Error::source) {
        inner = Some(next);
    }
    inner.map_or_else(|| "no reason was given".to_owned(), ToString::to_string)
}
