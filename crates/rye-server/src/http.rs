//! Many clients over streamable HTTP: loopback unless told otherwise, a bearer token always, and bounds on everything.

mod listener;
mod open_requests;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use rmcp::model::ProtocolVersion;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rye_engine::{Code, Error, Result};
use tokio_util::sync::CancellationToken;

use crate::session::{ServerState, Session};
use crate::token::{self, Token};
pub(crate) use listener::{BoundedListener, ConnectionHandle};
use open_requests::OpenRequests;

/// The path clients are given.
const MCP_PATH: &str = "/mcp";
/// The largest request that is read.
const MAX_BODY_BYTES: usize = 16 << 20;
/// Clients with a session at once.
const MAX_SESSIONS: usize = 256;
/// A session that is silent for so long is over.
const SESSION_IDLE_TIMEOUT: Duration = Duration::from_secs(3600);
/// How long an answer can be picked up again after its connection broke.
const RESPONSE_CACHE_TTL: Duration = Duration::from_secs(5);
/// How long connections may take to end when the server does.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How to listen.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Where: `127.0.0.1:7433`, `[::1]:0`, or a port alone.
    pub address: String,
    /// A proxy with TLS stands in front: an address that others can reach is fine.
    pub behind_tls: bool,
    /// Further names that clients may know this server by.
    pub hosts: Vec<String>,
}

/// What a server that listens says about itself.
#[derive(Clone, Debug)]
pub struct HttpEndpoint {
    /// What clients connect to.
    pub url: String,
    /// The file that holds the token.
    pub token_file: PathBuf,
}

/// Serves until `stop` is cancelled.
pub(crate) async fn serve(
    shared: Arc<ServerState>,
    options: &HttpOptions,
    stop: CancellationToken,
    on_listen: impl FnOnce(&HttpEndpoint),
) -> Result<()> {
    let address = parse_address(options)?;
    let keys = shared.engines.setup().roots.signing_keys.clone();
    let token = Token::load_or_create(&keys)?;
    let listen_error = |error: std::io::Error| {
        Error::new(Code::Serving, format!("cannot listen on {address}: {error}"))
            .hint("choose another port; 0 takes any free one")
    };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(listen_error)?;
    let bound = listener.local_addr().map_err(listen_error)?;
    on_listen(&HttpEndpoint {
        url: format!("http://{bound}{MCP_PATH}"),
        token_file: token::token_path(&keys),
    });
    let router = router(shared, options, bound, token, stop.clone());
    let service = router.into_make_service_with_connect_info::<ConnectionHandle>();
    let served = axum::serve(BoundedListener::new(listener), service)
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    let shutdown = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    };
    tokio::select! {
        served = served.into_future() => served.map_err(listen_error),
        () = shutdown => Ok(()),
    }
}

/// The address to listen on, if it may be.
pub(crate) fn parse_address(options: &HttpOptions) -> Result<SocketAddr> {
    let text = options.address.trim();
    let port = text.strip_prefix(':').unwrap_or(text).parse::<u16>();
    let named = text.strip_prefix("localhost:").and_then(|port| port.parse::<u16>().ok());
    let address = match (port, named) {
        (Ok(port), _) | (Err(_), Some(port)) => SocketAddr::from(([127, 0, 0, 1], port)),
        (Err(_), None) => text.parse().map_err(|_| {
            let text = rye_item::text::one_line(text);
            Error::new(Code::InvalidArgument, format!("invalid listen address `{text}`"))
                .hint("such as 127.0.0.1:7433, [::1]:7433, or a port alone")
        })?,
    };
    if is_loopback(address.ip()) || options.behind_tls {
        return Ok(address);
    }
    Err(Error::new(Code::PublicAddress, format!("{address} can be reached from other computers"))
        .hint("listen on this computer alone: rye mcp --http 127.0.0.1:7433")
        .hint("behind a proxy with TLS: --behind-tls --allow-host NAME"))
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// What every request passes before the protocol sees it.
struct AuthLayer {
    token: Token,
    sessions: Arc<LocalSessionManager>,
    open_requests: OpenRequests,
}

fn router(
    shared: Arc<ServerState>,
    options: &HttpOptions,
    bound: SocketAddr,
    token: Token,
    stop: CancellationToken,
) -> Router {
    let mut sessions = LocalSessionManager::default();
    // An empty first event would let a client reconnect before the first message; clients of 2025-06-18 fail on it.
    sessions.session_config.sse_retry = None;
    sessions.session_config.keep_alive = Some(SESSION_IDLE_TIMEOUT);
    sessions.session_config.completed_cache_ttl = RESPONSE_CACHE_TTL;
    let sessions = Arc::new(sessions);
    let mut hosts = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    if !bound.ip().is_unspecified() {
        hosts.push(bound.ip().to_string());
    }
    hosts.extend(options.hosts.iter().cloned());
    // A page of another site has no business here, even if its user knows the token.
    let origins = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"].map(str::to_owned);
    let origins = origins.into_iter().chain(options.hosts.iter().map(|host| format!("https://{host}:*")));
    let config = StreamableHttpServerConfig::default()
        .with_sse_retry(None)
        .with_allowed_hosts(hosts)
        .with_allowed_origins(origins)
        .enforce_origin_validation()
        .with_max_request_body_bytes(MAX_BODY_BYTES)
        .with_cancellation_token(stop.clone());
    let service = StreamableHttpService::new(
        move || Ok(Session::new(Arc::clone(&shared), stop.child_token())),
        Arc::clone(&sessions),
        config,
    );
    let auth = Arc::new(AuthLayer { token, sessions, open_requests: OpenRequests::default() });
    Router::new().route_service(MCP_PATH, service).layer(middleware::from_fn_with_state(auth, authorize))
}

async fn authorize(State(auth): State<Arc<AuthLayer>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    if !has_valid_host_and_origin(headers) {
        return (StatusCode::FORBIDDEN, "invalid `Host` or `Origin` header: expected HOST or HOST:PORT\n")
            .into_response();
    }
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (first, second) = (values.next(), values.next());
    if second.is_some() || !auth.token.is_valid_header(first.map(header::HeaderValue::as_bytes)) {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer realm=\"rye\"")];
        return (StatusCode::UNAUTHORIZED, challenge, "a valid bearer token is needed\n").into_response();
    }
    if let Some(ConnectInfo(connection)) = request.extensions().get::<ConnectInfo<ConnectionHandle>>() {
        connection.authenticate();
    }
    if is_session_start(request.method(), headers)
        && auth.sessions.sessions.read().await.len() >= MAX_SESSIONS
    {
        let retry_after = [(header::RETRY_AFTER, "60")];
        return (StatusCode::SERVICE_UNAVAILABLE, retry_after, "too many sessions\n").into_response();
    }
    let is_delete = request.method() == Method::DELETE;
    let (request, open) = match auth.open_requests.admit(request).await {
        Ok(admitted) => admitted,
        Err(refusal) => return *refusal,
    };
    let mut response = next.run(request).await;
    if let Some(open) = open {
        response = open.until_sent(response);
    }
    if is_delete && response.status() == StatusCode::ACCEPTED {
        // The session is over, not about to be: some clients take anything else for a failure.
        *response.status_mut() = StatusCode::NO_CONTENT;
    }
    response
}

/// Whether `Host` and `Origin` name hosts and nothing more, so that all who read them read the same.
fn has_valid_host_and_origin(headers: &HeaderMap) -> bool {
    let are_all = |name: header::HeaderName, is_plain: fn(&str) -> bool| {
        headers.get_all(name).iter().all(|value| value.to_str().is_ok_and(is_plain))
    };
    are_all(header::HOST, is_host)
        && are_all(header::ORIGIN, |origin| origin.split_once("://").is_none_or(|(_, host)| is_host(host)))
}

/// Whether it is a name or an address, with a port if there is a colon: `[::1].example` and `localhost:1.example` are not.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        Some(_) | None => (text, None),
    };
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
    };
    let is_known = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => is_name(host),
    };
    is_known && port.is_none_or(is_port)
}

/// Whether a request may make a session: it has none, and speaks a protocol that has some.
fn is_session_start(method: &Method, headers: &HeaderMap) -> bool {
    let version = headers.get("mcp-protocol-version").and_then(|version| version.to_str().ok());
    let is_sessionless = version.is_some_and(|version| version >= ProtocolVersion::V_2026_07_28.as_str());
    *method == Method::POST && !headers.contains_key("mcp-session-id") && !is_sessionless
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(address: &str, behind_tls: bool) -> Result<SocketAddr> {
        parse_address(&HttpOptions { address: address.to_owned(), behind_tls, hosts: Vec::new() })
    }

    #[test]
    fn host_header_is_name_or_address_with_optional_port() {
        for host in
            ["localhost", "localhost:7433", "127.0.0.1:1", "[::1]", "[::1]:7433", "rye.example-host.org"]
        {
            assert!(is_host(host), "{host}");
        }
        for host in [
            "",
            ":1",
            "[::1].evil.com",
            "[::1]evil",
            "localhost:1.evil.com",
            "localhost:",
            "localhost:+1",
            "localhost/evil.com",
            "user@localhost",
            "localhost:70000",
            "[localhost]",
            "::1",
            "a b",
            "localhost\\evil",
        ] {
            assert!(!is_host(host), "{host}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, header::HeaderValue::from_static("http://localhost/evil.com"));
        assert!(!has_valid_host_and_origin(&headers));
        headers.insert(header::ORIGIN, header::HeaderValue::from_static("http://localhost:3000"));
        assert!(has_valid_host_and_origin(&headers));
    }

    #[test]
    fn only_loopback_is_allowed_by_default() {
        for (text, expected) in [
            ("7433", "127.0.0.1:7433"),
            (":0", "127.0.0.1:0"),
            ("localhost:1", "127.0.0.1:1"),
            ("127.0.0.1:7433", "127.0.0.1:7433"),
            ("127.9.9.9:1", "127.9.9.9:1"),
            ("[::1]:7433", "[::1]:7433"),
        ] {
            assert_eq!(parse(text, false).expect(text).to_string(), expected);
        }
        for public in
            ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "192.168.1.2:80", "[2001:db8::1]:1", "[::ffff:8.8.8.8]:1"]
        {
            assert_eq!(parse(public, false).expect_err(public).code, Code::PublicAddress);
            assert!(parse(public, true).is_ok(), "{public}");
        }
        for wrong in ["", "example.com:80", "127.0.0.1", "70000", "1.2.3.4:x"] {
            assert_eq!(parse(wrong, true).expect_err(wrong).code, Code::InvalidArgument);
        }
    }
}
