//! What every request passes before anything of it is used: the name it calls the server by, the page it comes from, its
//! session, and what that may do. And the headers of every answer.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use rye_engine::{Code, Error};

use super::UiState;
use super::answers::error_response;
use crate::http::ConnectionHandle;

/// Names a page is allowed to be reached by.
pub(super) struct AllowedHosts {
    /// `127.0.0.1:7434`: the names of this computer with the port.
    own: Vec<String>,
    /// Names that a proxy with TLS is known by.
    proxied: Vec<String>,
}

impl AllowedHosts {
    pub(super) fn new(bound: SocketAddr, proxied: &[String]) -> Self {
        let port = bound.port();
        let mut own = vec![format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("[::1]:{port}")];
        if !bound.ip().is_unspecified() {
            own.push(bound.to_string());
        }
        if port == 80 {
            own.extend(["localhost", "127.0.0.1", "[::1]"].map(str::to_owned));
        }
        Self { own, proxied: proxied.iter().map(|name| name.to_ascii_lowercase()).collect() }
    }

    fn is_proxied(&self, host: &str) -> bool {
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            Some(_) | None => host,
        };
        self.proxied.iter().any(|known| known == name)
    }

    fn allows_host(&self, host: &str) -> bool {
        let host = host.to_ascii_lowercase();
        self.own.contains(&host) || self.is_proxied(&host)
    }

    /// Whether a page of this origin was served by this server under the name that the request calls it by.
    fn allows_origin(&self, origin: &str, host: &str) -> bool {
        let (origin, host) = (origin.to_ascii_lowercase(), host.to_ascii_lowercase());
        match origin.strip_prefix("http://") {
            Some(name) => name == host && self.own.contains(&host),
            None => {
                origin.strip_prefix("https://").is_some_and(|name| name == host && self.is_proxied(&host))
            }
        }
    }
}

/// Why a request is refused before its session is looked at.
fn check_source(
    hosts: &AllowedHosts,
    uri: &Uri,
    headers: &HeaderMap,
    method: &Method,
) -> Result<(), &'static str> {
    let single = |name: header::HeaderName| -> Result<Option<&str>, &'static str> {
        let mut values = headers.get_all(&name).iter();
        let first = values.next();
        if values.next().is_some() {
            return Err("a header is there twice");
        }
        first.map(HeaderValue::to_str).transpose().map_err(|_| "a header is not text")
    };
    let host = single(header::HOST)?.ok_or("the Host header is missing")?;
    let is_other = uri.authority().is_some_and(|authority| authority.as_str() != host);
    if is_other || !hosts.allows_host(host) {
        return Err("this server is not known by that name");
    }
    if let Some(origin) = single(header::ORIGIN)?
        && !hosts.allows_origin(origin, host)
    {
        return Err("the request comes from another page");
    }
    let site = headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or("?"));
    let is_navigation = headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
        && *method == Method::GET
        && !uri.path().starts_with(super::API_PATH);
    match site {
        None | Some("none" | "same-origin") => Ok(()),
        // A link on another page may lead here; nothing of the page depends on who follows it.
        Some("cross-site" | "same-site") if is_navigation => Ok(()),
        Some(_) => Err("the request comes from another page"),
    }
}

/// The token in the header, if there is exactly one.
fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    (values.next().is_none() && scheme.eq_ignore_ascii_case("bearer")).then_some(token)
}

/// Refuses what may not be, and adds the headers that every answer has.
pub(super) async fn guard(State(state): State<UiState>, mut request: Request, next: Next) -> Response {
    let mut response = match admit(&state, &mut request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => *refusal,
    };
    add_headers(response.headers_mut());
    response
}

fn admit(state: &UiState, request: &mut Request<Body>) -> Result<(), Box<Response>> {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    if let Err(reason) = check_source(&state.hosts, uri, headers, method) {
        let error = Error::new(Code::SessionRefused, reason)
            .hint("use the address that `rye ui` printed; for another name: --behind-tls --allow-host NAME");
        return Err(Box::new(error_response(StatusCode::FORBIDDEN, &error)));
    }
    let path = uri.path();
    let is_exchange = path == "/api/v1/session" && *method == Method::POST;
    if !path.starts_with(super::API_PATH) || is_exchange {
        return Ok(());
    }
    let Some(session) = bearer_token(headers).and_then(|token| state.sessions.find(token)) else {
        let error = Error::new(Code::SessionRefused, "a valid session is needed")
            .hint("open the address that `rye ui` prints; Enter there prints a new one");
        let mut response = error_response(StatusCode::UNAUTHORIZED, &error);
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"rye ui\""));
        return Err(Box::new(response));
    };
    let is_own = path == "/api/v1/session" || path == "/api/v1/session/code";
    let is_reading = *method == Method::GET || *method == Method::HEAD;
    if session.is_read_only && !is_reading && !is_own {
        let error =
            Error::new(Code::ReadOnly, "this page may only look: `rye ui` was started with --read-only")
                .hint("start it without --read-only, and open the new address");
        return Err(Box::new(error_response(StatusCode::FORBIDDEN, &error)));
    }
    if let Some(ConnectInfo(connection)) = request.extensions().get::<ConnectInfo<ConnectionHandle>>() {
        connection.authenticate();
    }
    request.extensions_mut().insert(session);
    Ok(())
}

const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types 'none'";

fn add_headers(headers: &mut HeaderMap) {
    for (name, value) in [
        ("content-security-policy", CONTENT_SECURITY_POLICY),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("referrer-policy", "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-embedder-policy", "require-corp"),
        ("cross-origin-resource-policy", "same-origin"),
        ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// What is not there.
pub(super) async fn not_found(uri: Uri) -> Response {
    if uri.path().starts_with(super::API_PATH) {
        let error =
            Error::new(Code::PathNotFound, "the API has no such path").hint("docs/ui/openapi.yaml lists all");
        return error_response(StatusCode::NOT_FOUND, &error);
    }
    (StatusCode::NOT_FOUND, "not found\n").into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(&str, &str)]) -> bool {
        let bound: SocketAddr = "127.0.0.1:7434".parse().expect("an address");
        let hosts = AllowedHosts::new(bound, &["rye.example".to_owned()]);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().expect("a name");
            map.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        check_source(&hosts, &Uri::from_static("/api/v1/threads"), &map, &Method::GET).is_ok()
    }

    #[test]
    fn other_names_and_pages_are_refused() {
        for good in [
            vec![("host", "127.0.0.1:7434")],
            vec![("host", "LOCALHOST:7434"), ("origin", "http://localhost:7434")],
            vec![("host", "[::1]:7434"), ("sec-fetch-site", "same-origin")],
            vec![("host", "rye.example"), ("origin", "https://rye.example")],
            vec![("host", "rye.example:8443"), ("origin", "https://rye.example:8443")],
        ] {
            assert!(check(&good), "{good:?}");
        }
        for bad in [
            vec![],
            vec![("host", "evil.example:7434")],
            vec![("host", "127.0.0.1:7435")],
            vec![("host", "127.0.0.1")],
            vec![("host", "127.0.0.1:7434"), ("host", "127.0.0.1:7434")],
            vec![("host", "127.0.0.1:7434"), ("origin", "http://127.0.0.1:9999")],
            vec![("host", "127.0.0.1:7434"), ("origin", "http://localhost:7434")],
            vec![("host", "127.0.0.1:7434"), ("origin", "https://127.0.0.1:7434")],
            vec![("host", "127.0.0.1:7434"), ("origin", "null")],
            vec![("host", "127.0.0.1:7434"), ("origin", "https://rye.example")],
            vec![("host", "rye.example"), ("origin", "http://rye.example")],
            vec![("host", "rye.example.evil"), ("origin", "https://rye.example.evil")],
            vec![("host", "127.0.0.1:7434"), ("sec-fetch-site", "cross-site")],
            vec![("host", "127.0.0.1:7434"), ("sec-fetch-site", "same-site")],
        ] {
            assert!(!check(&bad), "{bad:?}");
        }
    }
}
