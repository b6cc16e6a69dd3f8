//! The engine over MCP: one signed workspace for every agent, over stdio and streamable HTTP.
//!
//! Together with `rye-mcp/src/sdk` the only room that knows the SDK. Nothing here decides what is trusted or run: every
//! request goes through the same verbs as the command line.

mod arguments;
mod calls;
mod changes;
mod consent;
mod execution;
mod http;
pub mod install;
mod offers;
mod pool;
mod projects;
mod redaction;
mod session;
mod stdio;
mod telling;
mod threads;
mod token;
mod tools;
mod verbs;

use std::path::PathBuf;
use std::sync::Arc;

use rye_agent::door::client::Visitor;
use rye_engine::{Clock, Code, Error, Host, Result};
use rye_space::Roots;
use tokio_util::sync::CancellationToken;

pub use http::{HttpOptions, Listening};

/// What the server must know of the process it lives in.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where the spaces begin; its project is the one that is meant when a client names none.
    pub roots: Roots,
    /// What is around the process.
    pub host: Host,
    /// Where the time comes from.
    pub clock: fn() -> Box<dyn Clock>,
    /// The version that clients are told.
    pub version: &'static str,
    /// Inside a tool: every call goes through this door, and nothing is done here.
    pub door: Option<Arc<Visitor>>,
    /// The program and the words that make it the process which runs threads in the background.
    pub background: Option<(PathBuf, Vec<String>)>,
}

/// A request to end, from another thread.
#[derive(Clone, Debug, Default)]
pub struct Stop(pub(crate) CancellationToken);

impl Stop {
    /// Nobody has asked yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the server to end: runs are cancelled, answers that are ready still go out.
    pub fn stop(&self) {
        self.0.cancel();
    }
}

/// Serves one client over standard input and output, until it leaves or `stop` is asked for.
///
/// # Errors
/// When the system gives no thread or descriptor.
pub fn serve_stdio(setup: Setup, stop: &Stop) -> Result<()> {
    let runtime = runtime()?;
    threads::revive(&setup);
    let shared = session::Shared::new(setup);
    runtime.block_on(stdio::serve(Arc::clone(&shared), stop.0.clone()));
    end(runtime);
    Ok(())
}

/// Serves many clients over HTTP until `stop` is asked for. `listening` is told the address once there is one.
///
/// # Errors
/// When the address is refused or taken, or the token cannot be used.
pub fn serve_http(
    setup: Setup,
    options: &HttpOptions,
    stop: &Stop,
    listening: impl FnOnce(&Listening),
) -> Result<()> {
    let runtime = runtime()?;
    threads::revive(&setup);
    let shared = session::Shared::new(setup);
    let served = runtime.block_on(http::serve(shared, options, stop.0.clone(), listening));
    end(runtime);
    served
}

/// One thread talks, others work: requests are small, verbs may take long.
fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(pool::MOST_THREADS)
        .build()
        .map_err(|error| Error::new(Code::Serving, format!("the server cannot start: {error}")))
}

/// Waits for what was cancelled to end its processes, but not forever.
fn end(runtime: tokio::runtime::Runtime) {
    runtime.shutdown_timeout(std::time::Duration::from_secs(10));
}
