//! Requests to the endpoint as Restate and as strangers make them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rye_restate::{DriveHandler, DriveReply, EndpointSetup, IdentityKey, listen, serve};
use rye_thread::thread_id::ThreadId;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const KEY: &str = "publickeyv1_ChjENKeMvCtRnqG2mrBK1HmPKufgFUc98K8B3ononQvp";
const MANIFEST: &str = "application/vnd.restate.endpointmanifest.v4+json";

/// Counts calls.
#[derive(Default)]
struct CountingHandler(AtomicUsize);

impl DriveHandler for CountingHandler {
    fn drive(&self, _: ThreadId) -> BoxFuture<'static, DriveReply> {
        self.0.fetch_add(1, Ordering::Relaxed);
        async { DriveReply::Done }.boxed()
    }
}

struct RunningEndpoint {
    address: SocketAddr,
    handler: Arc<CountingHandler>,
    drain: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl RunningEndpoint {
    fn start(identity_keys: Vec<IdentityKey>) -> Self {
        let listener = listen("127.0.0.1:0".parse().expect("an address")).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let (handler, drain) = (Arc::new(CountingHandler::default()), CancellationToken::new());
        let setup = EndpointSetup {
            identity_keys,
            handler: Arc::clone(&handler) as Arc<dyn DriveHandler>,
            now_seconds: Arc::new(|| 1_800_000_000),
            log: Arc::new(|_| {}),
        };
        let task = tokio::spawn(serve(setup, listener, drain.clone()));
        Self { address, handler, drain, task }
    }

    async fn request(&self, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> (StatusCode, Bytes) {
        let stream = TcpStream::connect(self.address).await.expect("connected");
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        tokio::spawn(connection);
        let mut request = Request::post(format!("http://{}{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = match body.is_empty() {
            true => Empty::new().boxed(),
            false => Full::new(Bytes::from(body)).boxed(),
        };
        let response = sender.send_request(request.body(body).expect("a request")).await.expect("answered");
        let status = response.status();
        let bytes = response.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        (status, bytes)
    }

    async fn end(self) -> usize {
        self.drain.cancel();
        self.task.await.expect("it ends");
        self.handler.0.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn discovery_names_one_handler() {
    let endpoint = RunningEndpoint::start(Vec::new());
    let (status, body) = endpoint.request("/discover", &[("accept", MANIFEST)], Vec::new()).await;
    assert_eq!(status, StatusCode::OK);
    let manifest: Value = serde_json::from_slice(&body).expect("JSON");
    let services = manifest["services"].as_array().expect("services");
    let names: Vec<&Value> = services.iter().map(|service| &service["name"]).collect();
    assert_eq!(names, ["Thread"]);
    assert_eq!(services[0]["ty"], "VIRTUAL_OBJECT");
    let handlers = services[0]["handlers"].as_array().expect("handlers");
    assert_eq!(handlers.iter().map(|handler| &handler["name"]).collect::<Vec<_>>(), ["drive"]);
    // A quiet call is not ended, and one that fails is made again until it does not.
    let day = 86_400_000;
    assert!(services[0]["inactivityTimeout"].as_u64() > Some(100 * day), "{services:?}");
    assert!(services[0]["retryPolicyMaxAttempts"].as_u64() > Some(1_000_000), "{services:?}");
    assert_eq!(services[0]["journalRetention"], 0);
    assert_eq!(endpoint.end().await, 0);
}

#[tokio::test]
async fn other_paths_are_not_found() {
    let endpoint = RunningEndpoint::start(Vec::new());
    for path in
        ["/", "/health", "/invoke/Thread", "/invoke/Thread/other", "/x/invoke/Thread/drive", "/x/discover"]
    {
        assert_eq!(endpoint.request(path, &[], Vec::new()).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(endpoint.end().await, 0);
}

#[tokio::test]
async fn unsigned_requests_are_refused() {
    let endpoint = RunningEndpoint::start(vec![IdentityKey::parse(KEY).expect("a key")]);
    let forged = [("x-restate-signature-scheme", "v1"), ("x-restate-jwt-v1", "e30.e30.AAAA")];
    for path in ["/discover", "/invoke/Thread/drive"] {
        for headers in [&[][..], &forged] {
            let (status, body) = endpoint.request(path, headers, Vec::new()).await;
            assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
            assert!(!body.is_empty());
        }
    }
    assert_eq!(endpoint.end().await, 0);
}

#[tokio::test]
async fn malformed_calls_reach_no_handler() {
    let endpoint = RunningEndpoint::start(Vec::new());
    let kind = [("content-type", "application/vnd.restate.invocation.v5")];
    for body in [vec![0; 64], vec![0xff; 1 << 20]] {
        let _ = endpoint.request("/invoke/Thread/drive", &kind, body).await;
    }
    assert_eq!(endpoint.end().await, 0);
}
