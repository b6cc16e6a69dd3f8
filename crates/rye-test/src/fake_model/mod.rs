//! A model server on loopback that says what a test wants to hear, in the protocol it is asked in: Anthropic's
//! messages, OpenAI's chat completions, Gemini's generateContent and Ollama's chat, streamed or not.
//!
//! ```no_run
//! use rye_test::fake_model::{FakeModel, FakeReply};
//!
//! let model = FakeModel::start(|seen| match seen.tool_results {
//!     0 => FakeReply::calls([("add", serde_json::json!({"a": 1, "b": 2}))]),
//!     _ => FakeReply::text("done"),
//! });
//! let url = format!("{}/v1/messages", model.url());
//! ```

mod body;
mod reply;
mod request;
mod server;

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use reply::{FakeReply, Gate};
pub use request::{FakeProtocol, FakeRequest, LoggedRequest};
pub use server::serve;

/// How long a test waits for what must happen.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// What the server remembers.
#[derive(Default)]
struct RequestLog {
    requests: Vec<LoggedRequest>,
    /// Requests whose client went away before the answer.
    abandoned: usize,
}

/// What the server and its test share.
#[derive(Default)]
pub(crate) struct SharedLog {
    log: Mutex<RequestLog>,
    changed: Condvar,
}

impl SharedLog {
    fn log(&self) -> MutexGuard<'_, RequestLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, change: impl FnOnce(&mut RequestLog)) {
        change(&mut self.log());
        self.changed.notify_all();
    }
}

/// A model server, stopped when dropped.
pub struct FakeModel {
    address: SocketAddr,
    log: Arc<SharedLog>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl std::fmt::Debug for FakeModel {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "FakeModel {{ {} }}", self.address)
    }
}

impl FakeModel {
    /// Starts a server that answers each request as `script` says.
    ///
    /// # Panics
    /// When there is no port.
    pub fn start(script: impl Fn(&FakeRequest<'_>) -> FakeReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port on loopback");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(SharedLog::default());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server_log = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let server = server::Server::new(Arc::new(script), Some(server_log));
            runtime.block_on(async {
                tokio::select! {
                    () = server.accept(listener) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { address, log: shared, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens: `http://127.0.0.1:<port>`, without a path.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Every request so far, in the order of arrival.
    #[must_use]
    pub fn requests(&self) -> Vec<LoggedRequest> {
        self.log.log().requests.clone()
    }

    /// How many requests came so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.log.log().requests.len()
    }

    /// Waits until this many requests have come.
    ///
    /// # Panics
    /// When they do not come.
    pub fn wait_for_requests(&self, count: usize) {
        self.wait(|log| log.requests.len() >= count);
    }

    /// Waits until this many clients have gone away before their answer.
    ///
    /// # Panics
    /// When they do not go away.
    pub fn wait_for_abandoned(&self, count: usize) {
        self.wait(|log| log.abandoned >= count);
    }

    fn wait(&self, condition: impl Fn(&RequestLog) -> bool) {
        let waited = self
            .log
            .changed
            .wait_timeout_while(self.log.log(), WAIT_TIMEOUT, |log| !condition(log))
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.1.timed_out(), "what the test waits for did not happen");
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A script that panicked has failed its test already, by the answer that did not come.
            let _ = thread.join();
        }
    }
}
