//! Dependencies injected into the client: starting a process, HTTP, and cancellation. The caller that runs the
//! engine hands these in, so that sandbox and address policy stay in one place.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use lillux::CancelToken;
use url::Url;

use crate::server::{McpServer, ServerCommand};

/// A started stdio server.
pub struct ServerProcess {
    /// The writing end of a pipe to its stdin.
    pub stdin: OwnedFd,
    /// The reading end of a pipe from its stdout.
    pub stdout: OwnedFd,
    /// What it says on stderr.
    pub stderr: StderrSource,
    /// Ends the process and every descendant when dropped.
    pub guard: Box<dyn Send>,
}

/// Where a server's stderr goes.
pub enum StderrSource {
    /// The reading end of a pipe; it is drained here and its end kept for messages.
    Pipe(OwnedFd),
    /// The spawner drains it, and returns its end on request.
    Tail(Box<dyn Fn() -> Vec<u8> + Send>),
}

/// Starts stdio servers, confined.
pub trait ProcessSpawner: Sync {
    /// Starts `command` for `server`.
    ///
    /// # Errors
    /// When policy forbids it or the system fails, in words.
    fn spawn(&self, server: &McpServer, command: &ServerCommand) -> Result<ServerProcess, String>;
}

/// Reaches the web under the engine's policy.
pub trait HttpAccess: Sync {
    /// Whether `url` of `server` may be asked at all.
    ///
    /// # Errors
    /// The rule that forbids it.
    fn allow(&self, server: &McpServer, url: &Url) -> Result<(), String>;

    /// Finishes a client whose redirects, which keep the origin of `url`, and timeouts are set already: adds TLS and the
    /// resolver that refuses addresses policy forbids.
    ///
    /// # Errors
    /// When no client can be made.
    fn build_client(
        &self,
        server: &McpServer,
        url: &Url,
        builder: reqwest::ClientBuilder,
    ) -> Result<reqwest::Client, String>;
}

/// Hears of progress a server reports.
pub type ProgressHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// The world as one exchange sees it.
pub struct McpHost<'a> {
    /// Starts processes.
    pub spawner: &'a dyn ProcessSpawner,
    /// Reaches the web.
    pub http: &'a dyn HttpAccess,
    /// Ends the exchange early.
    pub cancel: &'a CancelToken,
    /// How long the exchange may take, start and end of the server aside.
    pub timeout: Duration,
    /// Receives progress, if set.
    pub progress: Option<ProgressHandler>,
}
