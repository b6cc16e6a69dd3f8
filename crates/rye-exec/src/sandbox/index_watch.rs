//! Watches the indexes of a project's repositories while a run lasts. An index that names a repository which could run a
//! program is a trap for every `git status` outside the sandbox: editors and prompts run one all the time. Such a repository
//! is moved aside as soon as it appears, and the run ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use lillux::CancelToken;
use lillux::name_watch::NameWatch;

use super::repositories::{PlantedRepository, RepositoryRecord};

/// How often the folders that an index names are looked at for a `.git`.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Watches for as long as it lives.
#[derive(Debug)]
pub(super) struct IndexWatch {
    run: CancelToken,
    stop: CancelToken,
    thread: Option<JoinHandle<Vec<PlantedRepository>>>,
}

impl IndexWatch {
    /// Begins to watch. `cancel` ends the run, and so does what is found.
    ///
    /// # Errors
    /// When the process has no descriptor or thread left.
    pub(super) fn start(record: RepositoryRecord, cancel: &CancelToken) -> io::Result<Self> {
        let (run, stop) = (CancelToken::new()?, CancelToken::new()?);
        let watched = WatchedRun { record, cancel: cancel.clone(), run: run.clone(), stop: stop.clone() };
        let thread =
            std::thread::Builder::new().name("git-index".to_owned()).spawn(move || watched.watch())?;
        Ok(Self { run, stop, thread: Some(thread) })
    }

    /// What ends the run.
    pub(super) fn cancel_token(&self) -> &CancelToken {
        &self.run
    }

    /// Ends the watch; gives what was found.
    pub(super) fn finish(mut self) -> Vec<PlantedRepository> {
        self.stop_thread()
    }

    fn stop_thread(&mut self) -> Vec<PlantedRepository> {
        self.stop.cancel();
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for IndexWatch {
    fn drop(&mut self) {
        self.stop_thread();
    }
}

struct WatchedRun {
    record: RepositoryRecord,
    cancel: CancelToken,
    run: CancelToken,
    stop: CancelToken,
}

impl WatchedRun {
    fn watch(self) -> Vec<PlantedRepository> {
        let mut planted = Vec::new();
        let folders: Vec<&Path> = self.record.index_folders().collect();
        // Without a watch the indexes are looked at again and again.
        let watch = NameWatch::new("index", folders.iter().copied()).ok();
        let mut stamps = self.record.index_stamps();
        let mut empty_links = self.record.empty_links.clone();
        loop {
            let mut others: Vec<BorrowedFd<'_>> = vec![self.stop.as_fd()];
            if !self.run.is_cancelled() {
                others.push(self.cancel.as_fd());
            }
            let timeout = (watch.is_none() || !empty_links.is_empty()).then_some(POLL_INTERVAL);
            NameWatch::wait(watch.as_ref(), &others, timeout);
            if self.stop.is_cancelled() {
                return planted;
            }
            if self.cancel.is_cancelled() {
                self.run.cancel();
            }
            let found = self.record.index_stamps();
            let is_filled = empty_links.iter().any(|link| link.join(".git").symlink_metadata().is_ok());
            if found == stamps && !is_filled {
                continue;
            }
            stamps = found;
            let check = self.record.check();
            empty_links = check.new_links;
            if !check.planted.is_empty() {
                planted.extend(check.planted);
                self.run.cancel();
            }
        }
    }
}
