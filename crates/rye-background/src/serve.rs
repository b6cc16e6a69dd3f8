//! The background process itself: takes threads up when it is asked to, and ends when it has had none for a while.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener as StdListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lillux::file::TemporaryFolders;
use lillux::process::Launcher;
use rye_agent::driver::Clock;
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::Taken;
use rye_engine::{Code, Error, Result};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::den::{Den, Owned};
use crate::spaces::{Space, Spaces, is_over};
use crate::wire::{self, Answer, Request};

/// How often it is looked whether there is anything to do.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a line may take to arrive.
const SAYS_WITHIN: Duration = Duration::from_secs(10);
/// How many may talk at a time; others wait.
const MOST_TALKING: usize = 256;

/// What the process must know.
pub struct Setup {
    /// Where the user's key is: the process is the user's of that key.
    pub signing_keys: PathBuf,
    /// Starts the processes of tools.
    pub launcher: Launcher,
    /// The clock of engines.
    pub engine_clock: fn() -> Box<dyn rye_engine::Clock>,
    /// The clock of threads.
    pub clock: Arc<dyn Clock>,
    /// How long it stays without anything to do.
    pub idle: Duration,
}

/// Runs threads until there are none. Where there is such a process already, this one has nothing to do.
///
/// # Errors
/// When its folder cannot be used, or the system gives no thread or socket.
pub fn serve(setup: Setup) -> Result<()> {
    let den = Den::beside(&setup.signing_keys);
    let failed = |error: std::io::Error| Error::new(Code::NoBackground, error.to_string());
    let Some(mut owned) = den.own().map_err(failed)? else { return Ok(()) };
    let listener = owned.listener().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(failed)?;
    let keeper = Arc::new(Keeper {
        uid: rustix::process::geteuid().as_raw(),
        signing_keys: lillux::real(&setup.signing_keys),
        den,
        spaces: Spaces {
            launcher: setup.launcher,
            temporaries: TemporaryFolders::keeping(2),
            engine_clock: setup.engine_clock,
            clock: setup.clock,
            open: Default::default(),
        },
        talking: AtomicUsize::new(0),
        has_scanned: AtomicBool::new(false),
    });
    let served = runtime.block_on(keeper.listen(listener, &owned, setup.idle));
    // Threads that were not waited for are none, or their place is gone.
    runtime.shutdown_background();
    served.map_err(failed)
}

struct Keeper {
    uid: u32,
    signing_keys: PathBuf,
    den: Den,
    spaces: Spaces,
    talking: AtomicUsize,
    has_scanned: AtomicBool,
}

/// Something is being done: the process does not end meanwhile.
struct Talk(Arc<Keeper>);

impl Talk {
    fn begin(keeper: &Arc<Keeper>) -> Self {
        keeper.talking.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(keeper))
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        self.0.talking.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Keeper {
    /// Answers whoever connects, until there is nothing to do, or the folder is somebody else's.
    async fn listen(
        self: &Arc<Self>,
        listener: StdListener,
        owned: &Owned,
        idle: Duration,
    ) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = UnixListener::from_std(listener)?;
        let mut busy = Instant::now();
        loop {
            let is_full = self.talking.load(Ordering::SeqCst) >= MOST_TALKING;
            tokio::select! {
                accepted = listener.accept(), if !is_full => {
                    // Who went away before being heard wants nothing.
                    let Ok((stream, _)) = accepted else { continue };
                    let talk = Talk::begin(self);
                    tokio::spawn(async move { talk.0.hear(stream).await });
                }
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            if !owned.is_own() {
                return Ok(());
            }
            if self.talking.load(Ordering::SeqCst) > 0 || self.spaces.live_count() > 0 {
                busy = Instant::now();
            } else if busy.elapsed() >= idle {
                let den = self.den.clone();
                // What is not forgotten now is looked at again next time.
                let _ = tokio::task::spawn_blocking(move || den.forget(is_over)).await;
                return Ok(());
            }
        }
    }

    /// One conversation: a line, and its answer.
    async fn hear(self: &Arc<Self>, mut stream: UnixStream) {
        // Nobody else may enter the folder; whoever got in all the same is not heard.
        if !stream.peer_cred().is_ok_and(|peer| peer.uid() == self.uid) {
            return;
        }
        let answer = match tokio::time::timeout(SAYS_WITHIN, read_line(&mut stream)).await {
            Err(_) => Answer::Refused("the request did not come in time".to_owned()),
            Ok(Err(_)) => return,
            Ok(Ok(None)) => Answer::Refused("a request is one line of bounded length".to_owned()),
            Ok(Ok(Some(line))) => match serde_json::from_slice::<Request>(&line) {
                Err(error) => Answer::Refused(format!("the request is not understood: {error}")),
                Ok(request) => match self.take(request).await {
                    Ok(taken) => Answer::Taken(taken),
                    Err(error) => Answer::Refused(error.to_string()),
                },
            },
        };
        if let Ok(line) = wire::line(&answer) {
            // Who does not wait for the answer does not get it.
            let _ = stream.write_all(&line).await;
        }
    }

    async fn take(self: &Arc<Self>, request: Request) -> Result<Taken> {
        if lillux::real(&request.place.signing_keys) != self.signing_keys {
            return Err(Error::new(Code::InvalidArgument, "this is another user's place"));
        }
        let request = Arc::new(request);
        let space = self.space(&request, None).await?;
        let threads = match request.threads.as_slice() {
            [] => space.threads.abandoned()?,
            some => some.to_vec(),
        };
        let left = space.threads.take_up(&threads).await;
        drop(space);
        if !self.has_scanned.swap(true, Ordering::SeqCst) {
            let talk = Talk::begin(self);
            let tried = left.clone();
            tokio::spawn(async move { talk.0.scan(&request, &tried).await });
        }
        Ok(Taken { pid: std::process::id(), left })
    }

    /// What an earlier process has left, in all places that are remembered: it goes on in the environment of whoever came
    /// first. What was `tried` just now is not tried again.
    async fn scan(self: &Arc<Self>, request: &Arc<Request>, tried: &BTreeMap<ThreadId, String>) {
        for place in self.den.remembered() {
            // A place that cannot be opened, or whose threads cannot go on, stays as it is; the reason is with its threads.
            let Ok(space) = self.space(request, Some(place)).await else { continue };
            if space.threads.scans_on_startup()
                && let Ok(mut abandoned) = space.threads.abandoned()
            {
                abandoned.retain(|id| !tried.contains_key(id));
                let _ = space.threads.take_up(&abandoned).await;
            }
        }
    }

    /// The threads of the request's place or of another one, in the request's environment.
    async fn space(
        self: &Arc<Self>,
        request: &Arc<Request>,
        place: Option<crate::Place>,
    ) -> Result<Arc<Space>> {
        let (keeper, request) = (Arc::clone(self), Arc::clone(request));
        let opening =
            move || keeper.spaces.space(place.as_ref().unwrap_or(&request.place), &request.environment);
        match tokio::task::spawn_blocking(opening).await {
            Ok(space) => space,
            Err(error) => Err(Error::new(Code::Io, format!("it broke off: {error}"))),
        }
    }
}

async fn read_line(stream: &mut UnixStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    BufReader::new(stream.take(wire::MOST_BYTES)).read_until(b'\n', &mut bytes).await?;
    Ok((bytes.pop() == Some(b'\n')).then_some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Never;

    impl Clock for Never {
        fn now_ms(&self) -> u64 {
            0
        }
    }

    #[tokio::test]
    async fn another_users_process_is_not_heard() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = rustix::process::geteuid().as_raw();
        for (uid, is_heard) in [(own, true), (own + 1, false)] {
            let keeper = Arc::new(Keeper {
                uid,
                signing_keys: folder.path().to_owned(),
                den: Den::beside(folder.path()),
                spaces: Spaces {
                    launcher: Launcher::new("/nowhere"),
                    temporaries: TemporaryFolders::default(),
                    engine_clock: || unreachable!("nothing is opened"),
                    clock: Arc::new(Never),
                    open: Default::default(),
                },
                talking: AtomicUsize::new(0),
                has_scanned: AtomicBool::new(false),
            });
            let (mut client, server) = UnixStream::pair().expect("a pair");
            client.write_all(b"nonsense\n").await.expect("written");
            keeper.hear(server).await;
            let mut answer = String::new();
            // What was said and not read is no reason to complain.
            let _ = client.read_to_string(&mut answer).await;
            assert_eq!(answer.contains("refused"), is_heard, "{answer}");
        }
    }

    #[test]
    fn one_process_owns_the_folder_and_the_next_when_it_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let den = Den::beside(folder.path());
        let first = den.own().expect("a folder").expect("the first");
        assert!(den.own().expect("a folder").is_none());
        assert!(first.is_own() && den.connect().is_ok());
        drop(first);
        assert!(den.connect().is_err(), "nobody is there");
        let second = den.own().expect("a folder").expect("the second");
        lillux::file::remove_tree(&folder.path().join("background")).expect("removed");
        assert!(!second.is_own(), "its folder is gone");
    }
}
