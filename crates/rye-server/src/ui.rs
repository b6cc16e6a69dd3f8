//! `rye ui`: a page for people, and its JSON API. Loopback, a session for every request, and the same verbs and views as
//! the command line; `docs/ui/openapi.yaml` describes it.

mod access;
mod actions;
mod answers;
mod assets;
mod events;
mod items;
mod sessions;
mod threads;
mod watcher;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Extension, Router, middleware};
use rye_agent::prepare::ThreadRequest;
use rye_agent::threads::Threads;
use rye_agent::views::ThreadsPlace;
use rye_engine::{Code, Engine, Error, Result};
use rye_space::Roots;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::http::{self, BoundedListener, ConnectionHandle, HttpOptions};
use crate::session::ServerState;
use crate::worker_pool::Lane;
use answers::{error_response, read_json, respond, success};
use sessions::{SessionHandle, Sessions};
use watcher::Watcher;

/// Where the API begins.
const API_PATH: &str = "/api/";
/// Event streams at once.
const MAX_STREAMS: usize = 128;
/// How long connections may take to end when the server does.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// How to serve the page.
#[derive(Clone, Debug)]
pub struct UiOptions {
    /// The address to listen on, the names of a proxy, and whether there is one.
    pub http: HttpOptions,
    /// Whether nothing may be changed.
    pub is_read_only: bool,
    /// How long a session is good without being used.
    pub idle_timeout: Duration,
    /// In whose name questions are answered.
    pub owner: String,
    /// Milliseconds since 1970.
    pub now_ms: fn() -> u64,
}

/// A page that is served.
#[derive(Clone)]
pub struct UiEndpoint {
    /// Its address, without a code.
    pub url: String,
    /// How long a code is good.
    pub code_ttl: Duration,
    sessions: Arc<Sessions>,
}

impl UiEndpoint {
    /// A code that opens the page once.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn new_code(&self) -> Result<String> {
        self.sessions.new_code()
    }

    /// The address that opens the page with a code.
    #[must_use]
    pub fn url_with_code(&self, code: &str) -> String {
        format!("{}#code={code}", self.url)
    }
}

/// What all requests share.
type UiState = Arc<UiInner>;

struct UiInner {
    shared: Arc<ServerState>,
    sessions: Arc<Sessions>,
    hosts: access::AllowedHosts,
    watcher: Arc<Watcher>,
    streams: Arc<Semaphore>,
    stop: CancellationToken,
    threads_dir: PathBuf,
    owner: String,
    is_read_only: bool,
    url: String,
    clock: fn() -> u64,
}

impl ThreadsPlace for UiInner {
    fn roots(&self) -> &Roots {
        &self.shared.engines.setup().roots
    }

    fn engine(&self) -> Result<Arc<Engine>> {
        Ok(self.shared.engines.engine(None)?.engine)
    }
}

impl UiInner {
    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    async fn run_quick<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.pool.run(Lane::Quick, work).await
    }

    /// Does something with the threads of the place.
    async fn with_threads<T, F>(&self, work: impl FnOnce(Threads) -> F + Send + 'static) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send,
    {
        self.with_threads_for(None, work).await
    }

    /// The same, where `request` may start the first thread.
    async fn with_threads_for<T, F>(
        &self,
        request: Option<ThreadRequest>,
        work: impl FnOnce(Threads) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send,
    {
        let (service, engines) = (Arc::clone(&self.shared.threads), Arc::clone(&self.shared.engines));
        service.with_threads(engines, request, work).await
    }
}

/// Serves until `stop` is cancelled.
pub(crate) async fn serve(
    shared: Arc<ServerState>,
    options: &UiOptions,
    stop: CancellationToken,
    on_listen: impl FnOnce(UiEndpoint),
) -> Result<()> {
    let address = http::parse_address(&options.http)?;
    let listen_error = |error: std::io::Error| {
        Error::new(Code::Serving, format!("cannot listen on {address}: {error}"))
            .hint("choose another port: rye ui --port 0 takes any free one")
    };
    let listener = tokio::net::TcpListener::bind(address).await.map_err(listen_error)?;
    let bound: SocketAddr = listener.local_addr().map_err(listen_error)?;
    let roots = shared.engines.setup().roots.clone();
    let threads_dir = roots.threads_dir();
    let sessions = Sessions::load(
        &roots.signing_keys,
        &threads_dir,
        options.is_read_only,
        options.idle_timeout,
        options.now_ms,
    )?;
    let url = match options.http.hosts.first().filter(|_| options.http.behind_tls) {
        Some(host) => format!("https://{host}/"),
        None => format!("http://{bound}/"),
    };
    let state = Arc::new(UiInner {
        hosts: access::AllowedHosts::new(bound, &options.http.hosts),
        watcher: Watcher::start(Arc::clone(&shared.engines), stop.clone())?,
        streams: Arc::new(Semaphore::new(MAX_STREAMS)),
        stop: stop.clone(),
        threads_dir,
        owner: options.owner.clone(),
        is_read_only: options.is_read_only,
        url: url.clone(),
        clock: options.now_ms,
        sessions: Arc::clone(&sessions),
        shared,
    });
    on_listen(UiEndpoint { url, code_ttl: sessions::CODE_TTL, sessions: Arc::clone(&sessions) });
    let service = router(state).into_make_service_with_connect_info::<ConnectionHandle>();
    let served = axum::serve(BoundedListener::new(listener), service)
        .with_graceful_shutdown(stop.clone().cancelled_owned());
    let shutdown = async {
        stop.cancelled().await;
        tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
    };
    let result = tokio::select! {
        served = served.into_future() => served.map_err(listen_error),
        () = shutdown => Ok(()),
    };
    sessions.save();
    result
}

fn router(state: UiState) -> Router {
    let api = Router::new()
        .route("/session", get(session).post(start_session).delete(end_session))
        .route("/session/code", post(new_code))
        .route("/threads", get(threads::list))
        .route("/trees", get(threads::trees))
        .route("/threads/{thread}", get(threads::thread))
        .route("/threads/{thread}/tree", get(threads::tree))
        .route("/threads/{thread}/timeline", get(threads::timeline))
        .route("/threads/{thread}/verify", get(threads::verify))
        .route("/threads/{thread}/cost", get(threads::thread_cost))
        .route("/threads/{thread}/transcript", get(threads::transcript_events))
        .route("/threads/{thread}/transcript.md", get(threads::transcript_markdown))
        .route("/threads/{thread}/transcript.jsonl", get(threads::transcript_file))
        .route("/threads/{thread}/resume", post(actions::resume))
        .route("/threads/{thread}/cancel", post(actions::cancel))
        .route("/threads/{thread}/fork", post(actions::fork))
        .route("/approvals", get(actions::approvals))
        .route("/approvals/{approval}", post(actions::answer))
        .route("/cost", get(threads::cost))
        .route("/workers", get(threads::workers))
        .route("/items", get(items::items))
        .route("/items/{type}/{*item}", get(items::item))
        .route("/run", post(items::run))
        .route("/bundles", get(items::bundle_list))
        .route("/bundles/outdated", get(items::outdated))
        .route("/bundles/{bundle}", get(items::bundle))
        .route("/upgrades", get(items::upgrades))
        .route("/keys", get(items::key_list))
        .route("/config", get(items::config_list))
        .route("/doctor", get(items::doctor_report))
        .route("/events", get(events::events));
    Router::new()
        .nest("/api/v1", api)
        .merge(assets::routes())
        .fallback(access::not_found)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), access::guard))
        .with_state(state)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StartSession {
    code: String,
}

fn session_value(state: &UiInner, session: &SessionHandle) -> Value {
    json!({
        "read_only": session.is_read_only,
        "version": state.shared.engines.setup().version,
        "owner": state.owner,
        "project": state.roots().project.as_ref().map(|project| project.display().to_string()),
        "threads_dir": state.threads_dir.display().to_string(),
        "idle_timeout_seconds": state.sessions.idle_timeout().as_secs(),
    })
}

/// `POST /api/v1/session`
async fn start_session(State(state): State<UiState>, request: Request) -> Response {
    let body: StartSession = match read_json(request).await {
        Ok(body) => body,
        Err(error) => return respond(Err(error)),
    };
    match state.sessions.exchange(&body.code) {
        Ok((token, session)) => {
            let mut value = session_value(&state, &session);
            value["token"] = json!(token);
            success(None, None, value)
        }
        Err(Some(error)) => respond(Err(error)),
        Err(None) => {
            let error = Error::new(Code::SessionRefused, "too many wrong codes; try again in a minute");
            error_response(StatusCode::TOO_MANY_REQUESTS, &error)
        }
    }
}

/// `GET /api/v1/session`
async fn session(State(state): State<UiState>, Extension(session): Extension<SessionHandle>) -> Response {
    success(None, None, session_value(&state, &session))
}

/// `DELETE /api/v1/session`
async fn end_session(State(state): State<UiState>, Extension(session): Extension<SessionHandle>) -> Response {
    state.sessions.end(&session);
    success(None, None, json!({"ended": true}))
}

/// `POST /api/v1/session/code`
async fn new_code(State(state): State<UiState>, Extension(session): Extension<SessionHandle>) -> Response {
    let made = state.sessions.new_code_of(&session).map(|code| {
        let data = json!({
            "code": code,
            "url": format!("{}#code={code}", state.url),
            "expires_in_seconds": sessions::CODE_TTL.as_secs(),
        });
        success(None, None, data)
    });
    respond(made)
}
