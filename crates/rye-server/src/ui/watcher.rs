//! One look at the store for all who watch: a thread of its own reads what changed and sends it on, ready to be written to
//! every stream. While no stream is open it looks seldom, so that a page that opens finds the rows there.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use rye_agent::thread_id::ThreadId;
use rye_agent::transcript;
use rye_agent::views::{LiveChange, LiveThreads, ThreadIndex, ThreadsPlace};
use rye_engine::{Engine, Result};
use rye_space::Roots;
use serde_json::json;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use crate::project_engines::ProjectEngines;

/// How often it is looked whether anything changed.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The same while no stream is open.
const IDLE_INTERVAL: Duration = Duration::from_secs(2);
/// After something was sent: what happens close together is sent together.
const COALESCE_INTERVAL: Duration = Duration::from_millis(150);
/// How often it is looked whether there are threads yet.
const OPEN_INTERVAL: Duration = Duration::from_secs(1);
/// Rows in one frame; more are several frames.
const MAX_FRAME_ROWS: usize = 400;
/// Rows that are sent for one change; of more it is only said that everything is to be read again.
const MAX_SENT_ROWS: usize = 4000;
/// Frames that a slow stream may lag behind.
const MAX_BACKLOG: usize = 128;

/// The threads of the place, once there are any.
pub(super) type LiveGuard<'a> = MutexGuard<'a, Option<LiveThreads>>;

/// Watches the store of a place.
pub(super) struct Watcher {
    engines: Arc<ProjectEngines>,
    live: Mutex<Option<LiveThreads>>,
    opened_at: Mutex<Option<Instant>>,
    frames: broadcast::Sender<Bytes>,
    files: broadcast::Sender<ThreadId>,
    /// Transcripts that streams follow: how many streams, and how long the file was.
    followed: Mutex<HashMap<ThreadId, (usize, u64)>>,
}

/// As long as it is there, a transcript is followed.
pub(super) struct FollowGuard {
    watcher: Arc<Watcher>,
    thread: ThreadId,
}

impl Drop for FollowGuard {
    fn drop(&mut self) {
        let mut followed = lock(&self.watcher.followed);
        if let Some((count, _)) = followed.get_mut(&self.thread) {
            *count -= 1;
            if *count == 0 {
                followed.remove(&self.thread);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A frame of the stream.
pub(super) fn frame(event: &str, id: Option<u64>, data: &str) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    Bytes::from(format!("event: {event}\n{id}data: {data}\n\n"))
}

/// Rows and sums as a page reads them.
fn rows_frame(live: &LiveThreads, ids: &[ThreadId]) -> Bytes {
    let rows: Vec<&str> = ids.iter().filter_map(|id| live.row(id)).map(|row| row.json.as_str()).collect();
    let mut data = String::from("{\"rows\":[");
    data.push_str(&rows.join(","));
    // Writing to text cannot fail.
    let _ =
        write!(data, "],\"counts\":{},\"open_approvals\":{}}}", json!(live.counts()), live.questions().len());
    frame("threads", Some(live.position()), &data)
}

/// All frames that show these threads as they stand.
pub(super) fn row_frames(live: &LiveThreads, ids: &[ThreadId]) -> Vec<Bytes> {
    ids.chunks(MAX_FRAME_ROWS).map(|ids| rows_frame(live, ids)).collect()
}

impl ThreadsPlace for Watcher {
    fn roots(&self) -> &Roots {
        &self.engines.setup().roots
    }

    fn engine(&self) -> Result<Arc<Engine>> {
        Ok(self.engines.engine(None)?.engine)
    }
}

impl Watcher {
    /// Begins to watch, on a thread of its own, until `stop` is cancelled.
    pub(super) fn start(engines: Arc<ProjectEngines>, stop: CancellationToken) -> Result<Arc<Self>> {
        let watcher = Arc::new(Self {
            engines,
            live: Mutex::new(None),
            opened_at: Mutex::new(None),
            frames: broadcast::channel(MAX_BACKLOG).0,
            files: broadcast::channel(MAX_BACKLOG).0,
            followed: Mutex::default(),
        });
        let watching = Arc::clone(&watcher);
        std::thread::Builder::new().name("ui-watch".to_owned()).spawn(move || watching.run(&stop))?;
        Ok(watcher)
    }

    fn run(&self, stop: &CancellationToken) {
        let mut looked_at: Option<Instant> = None;
        while !stop.is_cancelled() {
            std::thread::sleep(POLL_INTERVAL);
            let is_idle = self.frames.receiver_count() == 0;
            if is_idle && looked_at.is_some_and(|at| at.elapsed() < IDLE_INTERVAL) {
                continue;
            }
            looked_at = Some(Instant::now());
            self.look_at_files();
            // What fails now is tried again; a caller gets the reason.
            if self.refresh().is_ok_and(|has_changed| has_changed) {
                std::thread::sleep(COALESCE_INTERVAL);
            }
        }
    }

    fn refresh(&self) -> Result<bool> {
        let is_open = lock(&self.live).is_some();
        if !is_open && lock(&self.opened_at).is_some_and(|at| at.elapsed() < OPEN_INTERVAL) {
            return Ok(false);
        }
        self.current().map(|(_, has_changed)| has_changed)
    }

    /// The threads as they stand now, opened if there were none before. What changed is sent to all streams. It blocks.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(super) fn live(&self) -> Result<LiveGuard<'_>> {
        self.current().map(|(live, _)| live)
    }

    fn current(&self) -> Result<(LiveGuard<'_>, bool)> {
        let mut guard = lock(&self.live);
        if let Some(live) = guard.as_mut() {
            let change = live.refresh();
            return match change {
                Ok(change) => {
                    let has_changed = self.send(live, &change);
                    Ok((guard, has_changed))
                }
                Err(error) => {
                    // The store may have been replaced: it is opened again.
                    *guard = None;
                    let _ = self.frames.send(frame("reset", None, "{}"));
                    Err(error)
                }
            };
        }
        *lock(&self.opened_at) = Some(Instant::now());
        if let Some(index) = ThreadIndex::open(self)? {
            *guard = Some(LiveThreads::load(index)?);
            let _ = self.frames.send(frame("reset", None, "{}"));
            return Ok((guard, true));
        }
        Ok((guard, false))
    }

    fn send(&self, live: &LiveThreads, change: &LiveChange) -> bool {
        if change.is_empty() {
            return false;
        }
        // No stream is open: there is none to send to.
        let send = |frame: Bytes| drop(self.frames.send(frame));
        if change.is_reload || change.threads.len() > MAX_SENT_ROWS {
            send(frame("reset", Some(live.position()), "{}"));
        } else {
            row_frames(live, &change.threads).into_iter().for_each(send);
        }
        if !change.asked.is_empty() || !change.answered.is_empty() {
            let data = json!({
                "open": live.questions().keys().collect::<Vec<_>>(),
                "added": change.asked,
                "removed": change.answered,
            });
            send(frame("approvals", Some(live.position()), &data.to_string()));
        }
        true
    }

    /// Frames from now on.
    pub(super) fn frames(&self) -> broadcast::Receiver<Bytes> {
        self.frames.subscribe()
    }

    /// Names of transcripts that have grown, of those that are followed.
    pub(super) fn files(&self) -> broadcast::Receiver<ThreadId> {
        self.files.subscribe()
    }

    /// Follows a transcript.
    pub(super) fn follow(self: &Arc<Self>, thread: &ThreadId) -> FollowGuard {
        lock(&self.followed).entry(thread.clone()).or_insert((0, 0)).0 += 1;
        FollowGuard { watcher: Arc::clone(self), thread: thread.clone() }
    }

    /// The file of a thread's transcript, brought up to what the store keeps. It may block.
    pub(super) fn transcript_path(&self, thread: &ThreadId) -> PathBuf {
        match lock(&self.live).as_ref().map(LiveThreads::index) {
            Some(index) => index.transcript_path(thread),
            None => transcript::path(&self.roots().threads_dir(), thread),
        }
    }

    fn look_at_files(&self) {
        let mut grown = BTreeMap::new();
        for (thread, (_, known)) in lock(&self.followed).iter_mut() {
            let length = std::fs::metadata(self.transcript_path(thread)).map_or(0, |file| file.len());
            if *known != length {
                *known = length;
                grown.insert(thread.clone(), ());
            }
        }
        grown.into_keys().for_each(|thread| drop(self.files.send(thread)));
    }
}
