//! The background process itself: takes threads up when it is asked to, and ends when it has had none for a while.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lillux::process::Launcher;
use rye_agent::driver::{CancelSignal, MillisClock};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::TakeoverReport;
use rye_engine::{Code, Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::protocol::{self, DaemonResponse, ResumeCommand, ResumeFailure, TakeoverRequest};
use crate::runtime_dir::{OwnedRuntimeDir, RuntimeDir};
use crate::space_pool::{SpacePool, ThreadSpace, has_no_threads};

/// How often it is looked whether there is anything to do.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a line may take to arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How many may talk at a time; others wait.
const MAX_CONNECTIONS: usize = 256;

/// What the process must know.
pub struct DaemonSetup {
    /// Where the user's key is: the process is the user's of that key.
    pub signing_keys: PathBuf,
    /// Starts the processes of tools.
    pub launcher: Launcher,
    /// The clock of engines.
    pub engine_clock: fn() -> Box<dyn rye_engine::WallClock>,
    /// The clock of threads.
    pub clock: Arc<dyn MillisClock>,
    /// How long it stays without anything to do.
    pub idle_timeout: Duration,
}

/// Runs threads until there are none. Where there is such a process already, this one has nothing to do.
///
/// # Errors
/// When its folder cannot be used, or the system gives no thread or socket.
pub fn serve(setup: DaemonSetup) -> Result<()> {
    let runtime_dir = RuntimeDir::for_keys(&setup.signing_keys);
    let failed = |error: std::io::Error| Error::new(Code::NoBackground, error.to_string());
    let Some(mut owned) = runtime_dir.acquire().map_err(failed)? else { return Ok(()) };
    let listener = owned.listener().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let daemon = Arc::new(Daemon {
        uid: rustix::process::geteuid().as_raw(),
        signing_keys: lillux::canonicalize_existing(&setup.signing_keys),
        runtime_dir,
        spaces: SpacePool::new(setup.launcher, setup.engine_clock, setup.clock),
        connection_count: AtomicUsize::new(0),
        has_scanned: AtomicBool::new(false),
    });
    let result = runtime.block_on(daemon.listen(listener, &owned, setup.idle_timeout));
    // Threads that were not waited for are none, or their place is gone.
    runtime.shutdown_background();
    result.map_err(failed)
}

struct Daemon {
    uid: u32,
    signing_keys: PathBuf,
    runtime_dir: RuntimeDir,
    spaces: SpacePool,
    connection_count: AtomicUsize,
    has_scanned: AtomicBool,
}

/// Something is being done: the process does not end meanwhile.
struct ConnectionGuard(Arc<Daemon>);

impl ConnectionGuard {
    fn new(daemon: &Arc<Daemon>) -> Self {
        daemon.connection_count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(daemon))
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.connection_count.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Daemon {
    /// Answers clients until there is nothing to do, or the runtime folder is no longer this daemon's.
    async fn listen(
        self: &Arc<Self>,
        listener: StdListener,
        owned: &OwnedRuntimeDir,
        idle_timeout: Duration,
    ) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let mut last_busy = Instant::now();
        loop {
            let is_full = self.connection_count.load(Ordering::SeqCst) >= MAX_CONNECTIONS;
            tokio::select! {
                accepted = listener.accept(), if !is_full => {
                    // Who went away before being heard wants nothing.
                    let Ok((stream, _)) = accepted else { continue };
                    let guard = ConnectionGuard::new(self);
                    tokio::spawn(async move { guard.0.handle_connection(stream).await });
                }
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
            if !owned.is_current() {
                return Ok(());
            }
            if self.connection_count.load(Ordering::SeqCst) > 0 || self.spaces.running_count() > 0 {
                last_busy = Instant::now();
            } else if last_busy.elapsed() >= idle_timeout {
                let runtime_dir = self.runtime_dir.clone();
                // What is not forgotten now is looked at again next time.
                let _ =
                    tokio::task::spawn_blocking(move || runtime_dir.remove_locations(has_no_threads)).await;
                return Ok(());
            }
        }
    }

    /// One conversation: a line, and its answer.
    async fn handle_connection(self: &Arc<Self>, mut stream: UnixStream) {
        // Only this user may enter the folder; connections of other users are refused all the same.
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == self.uid) {
            return;
        }
        let response = match tokio::time::timeout(REQUEST_TIMEOUT, read_line(&mut stream)).await {
            Err(_) => DaemonResponse::Refused("the request did not come in time".to_owned()),
            Ok(Err(_)) => return,
            Ok(Ok(None)) => DaemonResponse::Refused("a request is one line of bounded length".to_owned()),
            Ok(Ok(Some(line))) => match serde_json::from_slice::<TakeoverRequest>(&line) {
                Err(error) => DaemonResponse::Refused(format!("the request is not understood: {error}")),
                Ok(request) => self.respond(request).await,
            },
        };
        if let Ok(line) = protocol::encode_line(&response) {
            // Who does not wait for the answer does not get it.
            let _ = stream.write_all(&line).await;
        }
    }

    async fn respond(self: &Arc<Self>, mut request: TakeoverRequest) -> DaemonResponse {
        if lillux::canonicalize_existing(&request.location.signing_keys) != self.signing_keys {
            return DaemonResponse::Refused("this is another user's place".to_owned());
        }
        match request.resume.take() {
            Some(command) => match self.resume(Arc::new(request), command).await {
                Ok(pid) => DaemonResponse::Resumed(pid),
                Err(error) => DaemonResponse::NotResumed(ResumeFailure::new(&error)),
            },
            None => match self.take_over(Arc::new(request)).await {
                Ok(report) => DaemonResponse::TakenOver(report),
                Err(error) => DaemonResponse::Refused(error.to_string()),
            },
        }
    }

    /// Resumes a stopped thread; from here on it is this process's.
    async fn resume(self: &Arc<Self>, request: Arc<TakeoverRequest>, command: ResumeCommand) -> Result<u32> {
        let space = self.open_space(&request, None).await?;
        space.threads.resume(&command.thread, &command.options, CancelSignal::default()).await?;
        Ok(std::process::id())
    }

    async fn take_over(self: &Arc<Self>, request: Arc<TakeoverRequest>) -> Result<TakeoverReport> {
        let space = self.open_space(&request, None).await?;
        let threads = match request.threads.as_slice() {
            [] => space.threads.abandoned_threads().await?,
            listed => listed.to_vec(),
        };
        let refused = space.threads.resume_abandoned(&threads).await;
        drop(space);
        if !self.has_scanned.swap(true, Ordering::SeqCst) {
            let guard = ConnectionGuard::new(self);
            let tried = refused.clone();
            tokio::spawn(async move { guard.0.resume_all(&request, &tried).await });
        }
        Ok(TakeoverReport { pid: std::process::id(), refused })
    }

    /// What an earlier process has left, in all places that are remembered: it resumes in the environment of the client that came
    /// first. What was `tried` just now is not tried again.
    async fn resume_all(
        self: &Arc<Self>,
        request: &Arc<TakeoverRequest>,
        tried: &BTreeMap<ThreadId, String>,
    ) {
        for location in self.runtime_dir.locations() {
            // A place that cannot be opened, or whose threads cannot continue, stays as it is; the reason is with its threads.
            let Ok(space) = self.open_space(request, Some(location)).await else { continue };
            if space.threads.is_startup_scan_enabled()
                && let Ok(mut abandoned) = space.threads.abandoned_threads().await
            {
                abandoned.retain(|id| !tried.contains_key(id));
                let _ = space.threads.resume_abandoned(&abandoned).await;
            }
        }
    }

    /// The threads of the request's place or of another one, in the request's environment.
    async fn open_space(
        self: &Arc<Self>,
        request: &Arc<TakeoverRequest>,
        location: Option<crate::ThreadsLocation>,
    ) -> Result<Arc<ThreadSpace>> {
        let (daemon, request) = (Arc::clone(self), Arc::clone(request));
        let open = move || {
            daemon.spaces.get_or_open(location.as_ref().unwrap_or(&request.location), &request.environment)
        };
        match tokio::task::spawn_blocking(open).await {
            Ok(space) => space,
            Err(error) => Err(Error::new(Code::Io, format!("it broke off: {error}"))),
        }
    }
}

async fn read_line(stream: &mut UnixStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    BufReader::new(stream.take(protocol::MAX_LINE_BYTES)).read_until(b'\n', &mut bytes).await?;
    Ok((bytes.pop() == Some(b'\n')).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct ZeroClock;

    impl MillisClock for ZeroClock {
        fn now_ms(&self) -> u64 {
            0
        }
    }

    #[tokio::test]
    async fn other_users_are_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = rustix::process::geteuid().as_raw();
        for (uid, is_answered) in [(own, true), (own + 1, false)] {
            let daemon = Arc::new(Daemon {
                uid,
                signing_keys: folder.path().to_owned(),
                runtime_dir: RuntimeDir::for_keys(folder.path()),
                spaces: SpacePool::new(
                    Launcher::new("/nowhere"),
                    || unreachable!("nothing is opened"),
                    Arc::new(ZeroClock),
                ),
                connection_count: AtomicUsize::new(0),
                has_scanned: AtomicBool::new(false),
            });
            let (mut client, server) = UnixStream::pair().expect("a pair");
            client.write_all(b"nonsense\n").await.expect("written");
            daemon.handle_connection(server).await;
            let mut response = String::new();
            // What was said and not read is not a reason to complain.
            let _ = client.read_to_string(&mut response).await;
            assert_eq!(response.contains("refused"), is_answered, "{response}");
        }
    }

    #[test]
    fn only_one_daemon_owns_runtime_dir() {
        let folder = tempfile::tempdir().expect("a folder");
        let runtime_dir = RuntimeDir::for_keys(folder.path());
        let first = runtime_dir.acquire().expect("a folder").expect("the first");
        assert!(runtime_dir.acquire().expect("a folder").is_none());
        assert!(first.is_current() && runtime_dir.connect().is_ok());
        drop(first);
        assert!(runtime_dir.connect().is_err(), "no daemon is there");
        let second = runtime_dir.acquire().expect("a folder").expect("the second");
        lillux::file::remove_tree(&folder.path().join("background")).expect("removed");
        assert!(!second.is_current(), "its folder is gone");
    }
}
