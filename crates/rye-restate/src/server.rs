//! The accept loop of the endpoint: HTTP/2 without TLS, `TCP_NODELAY`, bounded.
//!
//! A connection carries one call. So calls spread over the workers behind one address as connections do, also over a worker that
//! has just begun, and a call that is made again may reach another one, such as one that offers a missing label.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{Either, Full, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use restate_sdk::endpoint::Endpoint;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::endpoint::{DriveHandler, SERVICE, endpoint};
use crate::identity::{self, IdentityKey};

/// Connections at once: one for each thread at work, and those that wait.
const MAX_CONNECTIONS: usize = 4096;
/// Calls of one connection at once.
const MAX_STREAMS: u32 = 1;
/// The longest headers of a request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// The longest body of a request: Restate's own messages, and no input.
const MAX_BODY_BYTES: usize = 64 << 10;
/// How long a connection may be open without a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a quiet connection is asked whether the other side is there, and how long it may take to say so.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(20);
/// How long to wait after the system refused a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Connections that the system holds until they are accepted.
const BACKLOG: u32 = 1024;
/// How often refused requests are mentioned.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// An endpoint that is to be served.
pub struct EndpointSetup {
    /// Whose requests it takes; any, where none is listed.
    pub identity_keys: Vec<IdentityKey>,
    /// What runs threads.
    pub handler: Arc<dyn DriveHandler>,
    /// The time, in seconds since 1970.
    pub now_seconds: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Hears what is refused, a line each.
    pub log: Arc<dyn Fn(&str) + Send + Sync>,
}

type BodyError = Box<dyn std::error::Error + Send + Sync>;

struct EndpointServer {
    endpoint: Endpoint,
    setup: EndpointSetup,
    refusal_logged_at: Mutex<Option<Instant>>,
}

/// Serves until `drain` is cancelled, then answers what was asked before.
pub async fn serve(setup: EndpointSetup, listener: TcpListener, drain: CancellationToken) {
    let endpoint = endpoint(Arc::clone(&setup.handler));
    let server = Arc::new(EndpointServer { endpoint, setup, refusal_logged_at: Mutex::default() });
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    while !drain.is_cancelled() {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { break };
        let accepted = tokio::select! {
            () = drain.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (server, drain) = (Arc::clone(&server), drain.clone());
        connections.spawn(async move {
            server.serve_connection(stream, &drain).await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
    // Others get what is sent from now on.
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Listens at an address, which several workers of one user on one machine share: the system gives each connection to one.
///
/// # Errors
/// When the system refuses.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

impl EndpointServer {
    async fn serve_connection(self: &Arc<Self>, stream: TcpStream, drain: &CancellationToken) {
        // Frames are small, and each is waited for.
        if stream.set_nodelay(true).is_err() {
            return;
        }
        let requested = CancellationToken::new();
        let service = {
            let (server, requested) = (Arc::clone(self), requested.clone());
            service_fn(move |request| {
                requested.cancel();
                let response = server.answer(request);
                async move { Ok::<_, Infallible>(response) }
            })
        };
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEADER_BYTES)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_INTERVAL)
            .serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        tokio::select! {
            _ = connection.as_mut() => return,
            () = tokio::time::sleep(REQUEST_TIMEOUT) => return,
            () = drain.cancelled() => {}
            () = requested.cancelled() => {}
        }
        // The client hears at once that this connection takes no other call.
        connection.as_mut().graceful_shutdown();
        // A connection that breaks is the client's to open again.
        let _ = connection.await;
    }

    fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Response<impl Body<Data = Bytes, Error = BodyError> + Send + use<>> {
        let path = request.uri().path();
        if path != "/discover" && path != format!("/invoke/{SERVICE}/drive") {
            return refuse(StatusCode::NOT_FOUND, "no such handler");
        }
        let keys = &self.setup.identity_keys;
        if !keys.is_empty() {
            let now_seconds = (self.setup.now_seconds)();
            if let Err(refusal) = identity::verify(keys, request.headers(), path, now_seconds) {
                self.log_refusal(&refusal.to_string());
                return refuse(StatusCode::UNAUTHORIZED, "not signed by a listed identity key");
            }
        }
        let response = self.endpoint.handle(request.map(|body| Limited::new(body, MAX_BODY_BYTES)));
        response.map(Either::Left)
    }

    fn log_refusal(&self, reason: &str) {
        let mut logged_at = self.refusal_logged_at.lock().unwrap_or_else(PoisonError::into_inner);
        if logged_at.is_none_or(|at| at.elapsed() >= REFUSAL_LOG_INTERVAL) {
            *logged_at = Some(Instant::now());
            (self.setup.log)(&format!("refused a request to the endpoint of Restate: {reason}"));
        }
    }
}

fn refuse<B>(status: StatusCode, reason: &'static str) -> Response<Either<B, Full<Bytes>>> {
    let mut response = Response::new(Either::Right(Full::new(Bytes::from_static(reason.as_bytes()))));
    *response.status_mut() = status;
    response
}
