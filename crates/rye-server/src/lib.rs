//! The engine over MCP: one signed workspace for every agent, over stdio and streamable HTTP.
//!
//! Together with `rye-mcp/src/sdk` the only room that knows the SDK. Nothing here decides what is trusted or run: every
//! request goes through the same verbs as the command line.

mod answer;
mod answer_size;
mod arguments;
mod catalog;
mod changes;
pub mod clients;
mod consent;
mod consent_gate;
mod execution;
mod exposed;
mod http;
mod notifications;
mod project_engines;
mod redaction;
mod session;
mod stdio;
mod threads;
mod token;
mod tool_calls;
mod tools;
mod ui;
mod worker_pool;
mod worker_status;

use std::path::PathBuf;
use std::sync::Arc;

use rye_agent::callback::client::CallbackClient;
use rye_engine::{Code, Error, HostEnvironment, Result, WallClock};
use rye_space::Roots;
use tokio_util::sync::CancellationToken;

pub use http::{HttpEndpoint, HttpOptions};
pub use ui::{UiEndpoint, UiOptions};
pub use worker_status::{StatusSource, serve_worker_status};

/// What the server must know of the process it lives in.
#[derive(Clone, Debug)]
pub struct ServerSetup {
    /// Where the spaces begin; its project is the one that is meant when a client names none.
    pub roots: Roots,
    /// What is around the process.
    pub host: HostEnvironment,
    /// Where the time comes from.
    pub clock: fn() -> Box<dyn WallClock>,
    /// The version that clients are told.
    pub version: &'static str,
    /// Inside a tool: every call goes through this channel, and nothing is done here.
    pub callback: Option<Arc<CallbackClient>>,
    /// Tools that clients see by their own names, as patterns of ids; `mcp.expose` adds to them.
    pub expose: Vec<String>,
    /// The program and the words that make it the process which runs threads in the background.
    pub daemon_command: Option<(PathBuf, Vec<String>)>,
}

/// A request to end, from another thread.
#[derive(Clone, Debug, Default)]
pub struct ShutdownHandle(pub(crate) CancellationToken);

impl ShutdownHandle {
    /// Not requested yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the server to end: runs are cancelled, answers that are ready still go out.
    pub fn shutdown(&self) {
        self.0.cancel();
    }
}

/// Serves one client over standard input and output, until it leaves or `stop` is asked for.
///
/// # Errors
/// When the system gives no thread or descriptor.
pub fn serve_stdio(setup: ServerSetup, stop: &ShutdownHandle) -> Result<()> {
    let runtime = build_runtime()?;
    threads::resume_abandoned(&setup);
    let shared = session::ServerState::new(setup);
    runtime.block_on(stdio::serve(Arc::clone(&shared), stop.0.clone()));
    shutdown_runtime(runtime);
    Ok(())
}

/// Serves many clients over HTTP until `stop` is requested. `on_listen` is called with the address.
///
/// # Errors
/// When the address is refused or taken, or the token cannot be used.
pub fn serve_http(
    setup: ServerSetup,
    options: &HttpOptions,
    stop: &ShutdownHandle,
    on_listen: impl FnOnce(&HttpEndpoint),
) -> Result<()> {
    let runtime = build_runtime()?;
    threads::resume_abandoned(&setup);
    let shared = session::ServerState::new(setup);
    let result = runtime.block_on(http::serve(shared, options, stop.0.clone(), on_listen));
    shutdown_runtime(runtime);
    result
}

/// Serves the page for people over HTTP until `stop` is requested. `on_listen` is called with the address.
///
/// # Errors
/// When the address is refused or taken, or sessions cannot be kept.
pub fn serve_ui(
    setup: ServerSetup,
    options: &UiOptions,
    stop: &ShutdownHandle,
    on_listen: impl FnOnce(UiEndpoint),
) -> Result<()> {
    let runtime = build_runtime()?;
    if !options.is_read_only {
        threads::resume_abandoned(&setup);
    }
    let shared = session::ServerState::new(setup);
    let result = runtime.block_on(ui::serve(shared, options, stop.0.clone(), on_listen));
    shutdown_runtime(runtime);
    result
}

/// One thread talks, others work: requests are small, verbs may take long.
fn build_runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(worker_pool::MAX_THREADS)
        .build()
        .map_err(|error| Error::new(Code::Serving, format!("the server cannot start: {error}")))
}

/// Waits for what was cancelled to end its processes, but not forever.
fn shutdown_runtime(runtime: tokio::runtime::Runtime) {
    runtime.shutdown_timeout(std::time::Duration::from_secs(10));
}
