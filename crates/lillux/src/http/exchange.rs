//! One request on the wire: resolve, check, connect to what was checked, read within bounds, follow by hand.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Name, Resolve, Resolving};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use tokio::time::{sleep, timeout};
use url::{Host, Url};

use super::events::EventParser;
use super::redirect::{self, Hop};
use super::{Client, HttpError, MAX_EVENTS, MAX_REDIRECTS, OnEvent, Request, Response, Taker, tls};
use crate::Cancel;

/// The scheme, host and port of a URL: what may be shown of it.
pub(super) fn shown_host(url: &Url) -> String {
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
        return Err(HttpError::Url("it names no host".to_owned()));
    }
    Ok(())
}

pub(super) fn run(
    client: &Client,
    request: &Request,
    cancel: &Cancel,
    taker: Taker<'_>,
) -> Result<Response, HttpError> {
    let url = Url::parse(&request.url).map_err(|error| HttpError::Url(error.to_string()))?;
    check_url(&url)?;
    for header in &request.headers {
        header_of(&header.name, &header.value)?;
    }
    let start = |error: std::io::Error| HttpError::Start(error.to_string());
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(start)?;
    let outcome = runtime.block_on(async {
        tokio::select! {
            biased;
            () = asked_to_stop(cancel) => Err(HttpError::Cancelled),
            outcome = timeout(request.timeout, exchange(client, request, url, taker)) => {
                outcome.unwrap_or(Err(HttpError::Timeout(request.timeout)))
            }
        }
    });
    // A name lookup that hangs sits in a thread of its own: nobody waits for it.
    runtime.shutdown_background();
    outcome
}

/// How often the request to stop is looked at: registering its descriptor with the runtime needs `unsafe`.
const LOOK: Duration = Duration::from_millis(20);

async fn asked_to_stop(cancel: &Cancel) {
    while !cancel.is_cancelled() {
        sleep(LOOK).await;
    }
}

async fn exchange(
    client: &Client,
    request: &Request,
    url: Url,
    taker: Taker<'_>,
) -> Result<Response, HttpError> {
    let mut hop =
        Hop { method: request.method, url, headers: request.headers.clone(), body: request.body.clone() };
    let allowed = request.max_redirects.min(MAX_REDIRECTS);
    let mut redirects = 0;
    loop {
        let answer = ask(client, request, &hop).await?;
        let location = answer.headers().get("location").and_then(|value| value.to_str().ok());
        let next = match allowed {
            0 => None,
            _ => redirect::next(&hop, answer.status().as_u16(), location)?,
        };
        let Some(next) = next else {
            let mut response = described(&answer, &hop, redirects);
            read(answer, request, &hop, &mut response, taker).await?;
            return Ok(response);
        };
        if redirects == allowed {
            return Err(HttpError::Redirects);
        }
        redirects += 1;
        hop = next;
    }
}

/// Sends one hop to addresses that were checked, and to no others.
async fn ask(client: &Client, request: &Request, hop: &Hop) -> Result<reqwest::Response, HttpError> {
    let mut builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .no_proxy()
        .http1_only()
        .pool_max_idle_per_host(0)
        .connect_timeout(request.connect_timeout)
        .dns_resolver(Arc::new(Nowhere))
        .tls_backend_preconfigured(tls_for(client, &hop.url)?);
    if let Some(idle) = request.idle_timeout {
        builder = builder.read_timeout(idle);
    }
    let proxy = client.proxies.choose(&hop.url)?;
    let (host, port, known) = place(&hop.url)?;
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
            client.policy.check_name_or_address(&host, port, known)?;
            if known.is_none()
                && let Ok(addresses) = resolve(&host, port, request).await
            {
                let all: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
                client.policy.check(&host, port, &all)?;
            }
            let (proxy_host, proxy_port, proxy_address) = place(proxy)?;
            if proxy_address.is_none() {
                let addresses = resolve(&proxy_host, proxy_port, request).await?;
                builder = builder.resolve_to_addrs(&proxy_host, &addresses);
            }
            let unusable = |_| HttpError::Proxy("its URL cannot be read".to_owned());
            builder = builder.proxy(reqwest::Proxy::all(proxy.clone()).map_err(unusable)?);
        }
    }
    let http = builder.build().map_err(|error| HttpError::Start(cause(&error)))?;
    let method = reqwest::Method::from_bytes(hop.method.as_str().as_bytes())
        .map_err(|_| HttpError::Method(hop.method.as_str().to_owned()))?;
    let mut headers = HeaderMap::new();
    for header in &hop.headers {
        let (name, value) = header_of(&header.name, &header.value)?;
        headers.append(name, value);
    }
    let mut call = http.request(method, hop.url.clone()).headers(headers);
    if let Some(body) = &hop.body {
        call = call.body(body.clone());
    }
    call.send().await.map_err(|error| translated(&error, hop, request))
}

pub(super) fn tls_for(client: &Client, url: &Url) -> Result<rustls::ClientConfig, HttpError> {
    let is_proxied_by_tls = client.proxies.https.is_some() || client.proxies.http.is_some();
    if url.scheme() == "http" && !is_proxied_by_tls {
        return tls::without_certificates().map_err(HttpError::Certificates);
    }
    let made = client.tls.get_or_init(|| tls::with_certificates(client.certificate_file.as_deref()));
    made.clone().map_err(HttpError::Certificates)
}

/// Host, port and, where the host is written as one, address.
pub(super) fn place(url: &Url) -> Result<(String, u16, Option<IpAddr>), HttpError> {
    let port = url.port_or_known_default().unwrap_or(80);
    match url.host() {
        Some(Host::Domain(name)) => Ok((name.to_owned(), port, None)),
        Some(Host::Ipv4(address)) => Ok((address.to_string(), port, Some(address.into()))),
        Some(Host::Ipv6(address)) => Ok((format!("[{address}]"), port, Some(address.into()))),
        None => Err(HttpError::Url("it names no host".to_owned())),
    }
}

async fn resolve(host: &str, port: u16, request: &Request) -> Result<Vec<SocketAddr>, HttpError> {
    let nowhere = || HttpError::Resolve(host.to_owned());
    let found = timeout(request.connect_timeout, tokio::net::lookup_host((host, port))).await;
    let addresses: Vec<SocketAddr> = match found {
        Ok(Ok(addresses)) => addresses.collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    };
    if addresses.is_empty() { Err(nowhere()) } else { Ok(addresses) }
}

/// Answers no name: every address that is used was checked before.
struct Nowhere;

impl Resolve for Nowhere {
    fn resolve(&self, _name: Name) -> Resolving {
        Box::pin(async { Err("only addresses that were checked are used".into()) })
    }
}

/// A header that can be sent; those that frame the message belong to the client.
///
/// # Errors
/// When it cannot be sent, or belongs to the client.
pub fn header_of(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), HttpError> {
    const OWN: [&str; 9] = [
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
    let refuse = || HttpError::Header(name.to_owned());
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse())?;
    if OWN.contains(&parsed.as_str()) {
        return Err(refuse());
    }
    Ok((parsed, HeaderValue::from_str(value).map_err(|_| refuse())?))
}

fn described(answer: &reqwest::Response, hop: &Hop, redirects: u32) -> Response {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Response {
        status: answer.status().as_u16(),
        reason: answer.status().canonical_reason().unwrap_or_default().to_owned(),
        headers: answer.headers().iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
        url: hop.url.to_string(),
        redirects,
        ..Response::default()
    }
}

/// How much of an unsuccessful answer is kept where its body would have been handed out in pieces.
const MAX_COMPLAINT_BYTES: usize = 64 << 10;

/// Reads the body within its bound; a successful answer goes to its taker, any other is kept.
async fn read(
    mut answer: reqwest::Response,
    request: &Request,
    hop: &Hop,
    response: &mut Response,
    taker: Taker<'_>,
) -> Result<(), HttpError> {
    let mut limit = usize::try_from(request.max_body_bytes).unwrap_or(usize::MAX);
    let mut taker = match taker {
        taker if answer.status().is_success() => taker,
        Taker::Pieces(_) => {
            limit = limit.min(MAX_COMPLAINT_BYTES);
            Taker::Keep
        }
        Taker::Keep | Taker::Events(_) => Taker::Keep,
    };
    let (mut parser, mut ready, mut seen) = (EventParser::default(), Vec::new(), 0);
    while let Some(chunk) = answer.chunk().await.map_err(|error| translated(&error, hop, request))? {
        let taken = &chunk[..chunk.len().min(limit - seen)];
        seen += taken.len();
        response.is_truncated = taken.len() < chunk.len();
        match &mut taker {
            Taker::Keep => response.body.extend_from_slice(taken),
            Taker::Pieces(on_piece) => on_piece(taken).map_err(HttpError::Unwanted)?,
            Taker::Events(receiver) => {
                parser.feed(taken, &mut ready);
                hand_out(&mut ready, receiver, response);
            }
        }
        if response.is_truncated {
            return Ok(());
        }
    }
    if let Taker::Events(receiver) = &mut taker {
        parser.finish(&mut ready);
        hand_out(&mut ready, receiver, response);
    }
    Ok(())
}

fn hand_out(ready: &mut Vec<super::Event>, receiver: &mut OnEvent<'_>, response: &mut Response) {
    for event in ready.drain(..) {
        if response.events == MAX_EVENTS {
            response.is_truncated = true;
            return;
        }
        response.events += 1;
        receiver(&event);
    }
}

fn translated(error: &reqwest::Error, hop: &Hop, request: &Request) -> HttpError {
    let host = shown_host(&hop.url);
    if error.is_connect() {
        HttpError::Connect { host, cause: cause(error) }
    } else if error.is_timeout() {
        HttpError::Timeout(request.idle_timeout.unwrap_or(request.timeout))
    } else {
        HttpError::Transport { host, cause: cause(error) }
    }
}

/// The innermost reason: the outer ones repeat the URL, which may hold a secret.
pub(super) fn cause(error: &reqwest::Error) -> String {
    let mut inner: Option<&(dyn Error + 'static)> = error.source();
    while let Some(next) = inner.and_then(Error::source) {
        inner = Some(next);
    }
    inner.map_or_else(|| "no reason was given".to_owned(), ToString::to_string)
}
