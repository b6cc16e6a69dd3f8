//! Threads that continue without the command that started them: registered here, left to a process that outlives this one,
//! and found again when that process dies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rye_engine::{Code, Error, Result};
use serde::{Deserialize, Serialize};

use super::continuation::LimitCarryover;
use super::resume::ResumeOptions;
use super::{ThreadRuntime, Threads, run_blocking};
use crate::driver::CancelSignal;
use crate::prepare::{PreparedThread, ThreadRequest};
use crate::status::ThreadStatus;
use crate::store::{SystemProbe, ThreadRow};
use crate::thread_id::ThreadId;

/// How long a process that runs a thread above may take to resume one that was answered.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(3);
/// How often it is looked whether it has.
const TAKEOVER_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Who runs threads that outlive this process.
pub trait BackgroundHost: Send + Sync {
    /// Reaches that process, which is started if need be. Threads that are registered from now on until the answer is
    /// used are found again, whatever dies meanwhile. It blocks.
    ///
    /// # Errors
    /// When there is no such process and none can be started.
    fn connect(&self) -> Result<Box<dyn BackgroundConnection>>;

    /// Whether threads of this space were ever left to it, and have not all ended: a cheap look.
    fn has_threads(&self) -> bool;
}

/// Such a process, ready to take threads.
pub trait BackgroundConnection: Send {
    /// Has it run these threads; where none is named, all of this space that no process runs. It blocks.
    ///
    /// # Errors
    /// When it does not answer. It may have taken them all the same.
    fn take_over(self: Box<Self>, threads: &[ThreadId]) -> Result<TakeoverReport>;

    /// Has it resume a stopped thread with what a person changes; gives the process that runs it, or `None` when that
    /// process does not take such requests and did nothing. It blocks.
    ///
    /// # Errors
    /// Why the thread is not resumed, or that the process does not answer. It may have resumed the thread all the same.
    fn resume(self: Box<Self>, id: &ThreadId, options: &ResumeOptions) -> Result<Option<u32>>;
}

/// What became of threads that were left to another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeoverReport {
    /// The process that has them.
    pub pid: u32,
    /// Those it does not run, and why.
    #[serde(rename = "left")]
    pub refused: BTreeMap<ThreadId, String>,
}

/// A thread that was left to another process.
#[derive(Clone, Debug)]
pub struct BackgroundThread {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// What its user should know.
    pub notices: Vec<String>,
    /// The process that runs it, or why it is not run yet.
    pub runner: std::result::Result<u32, String>,
}

impl Threads {
    /// Starts a thread that continues without this process: it is there for good when this returns.
    ///
    /// # Errors
    /// When it may not start, or no process can run it; then there is no thread.
    pub async fn start_in_background(&self, request: ThreadRequest) -> Result<BackgroundThread> {
        self.start_in_background_with(request, |_| {}).await
    }

    /// The same; `on_registered` is called with the thread's name before the other process is asked to run it.
    ///
    /// # Errors
    /// As there.
    pub async fn start_in_background_with(
        &self,
        request: ThreadRequest,
        on_registered: impl FnOnce(&ThreadId),
    ) -> Result<BackgroundThread> {
        let prepared = self.runtime.prepare(request).await?;
        let connection = self.runtime.connect_background().await?;
        self.runtime.hand_to_background(connection, prepared, on_registered).await
    }

    /// As [`Threads::continue_from`], in the background.
    ///
    /// # Errors
    /// As there.
    pub async fn continue_in_background(
        &self,
        row: &ThreadRow,
        message: Option<String>,
        on_registered: impl FnOnce(&ThreadId),
    ) -> Result<BackgroundThread> {
        let prepared = self.runtime.prepare_successor(row, message, (LimitCarryover::Full, false)).await?;
        let connection = self.runtime.connect_background().await?;
        let thread = self.runtime.hand_to_background(connection, prepared, on_registered).await?;
        self.runtime.mark_continued(row, &thread.thread_id).await?;
        Ok(thread)
    }

    /// Resumes a thread that outlives this process; where no other process can run it, it runs here as long as this one
    /// does. Gives the process that runs it; none when workers do.
    ///
    /// # Errors
    /// As [`Threads::resume`].
    pub async fn resume_detached(&self, id: &ThreadId, options: &ResumeOptions) -> Result<Option<u32>> {
        if self.request_resume(id, options).await? {
            return Ok(None);
        }
        let runner = match self.runtime.connect_background().await {
            Ok(connection) => {
                let (id, options) = (id.clone(), options.clone());
                run_blocking(move || connection.resume(&id, &options)).await?
            }
            Err(error) if error.code == Code::NoBackground => None,
            Err(error) => return Err(error),
        };
        if runner.is_some() {
            return Ok(runner);
        }
        self.resume(id, options, CancelSignal::default()).await?;
        Ok(Some(std::process::id()))
    }

    /// Resumes a thread whose question was answered: where a thread above it runs, or in the background. Whether it
    /// runs again; if not, it needs another answer.
    ///
    /// # Errors
    /// As [`Threads::resume`].
    pub async fn resume_answered(&self, id: &ThreadId, by: String) -> Result<bool> {
        let store = &self.runtime.store;
        let Some(row) = store.thread(id).await?.filter(|row| row.status == ThreadStatus::Suspended) else {
            return Ok(true);
        };
        let open = store.open_approvals(Some(id)).await?.approvals;
        if open.iter().any(|question| question.thread == row.id) {
            return Ok(false);
        }
        // A worker that sees the answer resumes it.
        if self.runtime.is_left_to_workers(id).await? {
            self.runtime.hand_over(id).await?;
            return Ok(true);
        }
        let is_running = |row: &ThreadRow| row.status == ThreadStatus::Running;
        if store.ancestors(id).await?.iter().any(is_running) {
            let end = Instant::now() + TAKEOVER_TIMEOUT;
            while Instant::now() < end {
                let is_waiting =
                    |row: ThreadRow| row.status == ThreadStatus::Suspended && row.owner.is_none();
                if !store.thread(id).await?.is_some_and(is_waiting) {
                    return Ok(true);
                }
                tokio::time::sleep(TAKEOVER_POLL_INTERVAL).await;
            }
        }
        match self.resume_detached(id, &ResumeOptions { by, ..ResumeOptions::default() }).await {
            Ok(_) => Ok(true),
            // The process that has it resumes it.
            Err(error) if error.code == Code::ThreadHeld => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Threads that should continue by themselves, and that no process runs. None where settings do not want them found.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn abandoned_threads(&self) -> Result<Vec<ThreadId>> {
        self.runtime.abandoned_threads().await
    }

    /// Whether they are looked for without a request, when the process that runs them starts.
    #[must_use]
    pub fn is_startup_scan_enabled(&self) -> bool {
        self.runtime.orphans.enabled && self.runtime.orphans.scan_on_startup
    }

    /// Runs abandoned threads in this process; gives the reason for each that cannot run.
    pub async fn resume_abandoned(&self, ids: &[ThreadId]) -> BTreeMap<ThreadId, String> {
        let mut refused = BTreeMap::new();
        for id in ids {
            if let Err(error) = self.runtime.resume_abandoned(id).await {
                refused.insert(id.clone(), error.to_string());
            }
        }
        refused
    }
}

impl ThreadRuntime {
    async fn orphans(&self) -> Result<Vec<ThreadRow>> {
        if !self.orphans.enabled {
            return Ok(Vec::new());
        }
        let mut orphans = self.store.orphans(&self.owner, self.claim_policy()).await?;
        orphans.retain(|row| row.is_detached);
        Ok(orphans)
    }

    async fn abandoned_threads(&self) -> Result<Vec<ThreadId>> {
        Ok(self.orphans().await?.into_iter().map(|row| row.id).collect())
    }

    /// The process that threads are left to.
    pub(super) async fn connect_background(&self) -> Result<Box<dyn BackgroundConnection>> {
        let unavailable = || {
            Error::new(Code::NoBackground, "no background process is available to run a thread")
                .hint("run it in the foreground")
        };
        let background = self.setup.background.clone().ok_or_else(unavailable)?;
        run_blocking(move || background.connect()).await
    }

    /// Registers a thread, and leaves it to another process.
    pub(super) async fn hand_to_background(
        self: &Arc<Self>,
        connection: Box<dyn BackgroundConnection>,
        prepared: PreparedThread,
        on_registered: impl FnOnce(&ThreadId),
    ) -> Result<BackgroundThread> {
        // What would fail there fails here, where the caller gets the error.
        drop(self.preparer.providers(&prepared.model_choice, &prepared.spec)?);
        let PreparedThread { spec, notices, .. } = prepared;
        self.register(&spec, None).await?;
        let id = spec.instance.thread_id.clone();
        on_registered(&id);
        let runner = self.transfer(connection, &id).await;
        Ok(BackgroundThread { thread_id: id, directive: spec.template.directive.clone(), notices, runner })
    }

    async fn transfer(
        &self,
        connection: Box<dyn BackgroundConnection>,
        id: &ThreadId,
    ) -> std::result::Result<u32, String> {
        let thread_id = id.clone();
        let report = run_blocking(move || connection.take_over(&[thread_id]))
            .await
            .map_err(|error| error.to_string())?;
        report.refused.get(id).map_or(Ok(report.pid), |reason| Err(reason.clone()))
    }

    /// Runs an abandoned thread here. One that a process runs now, or that has ended, is left as it is.
    ///
    /// # Errors
    /// When it cannot continue; the reason is written down.
    pub(super) async fn resume_abandoned(self: &Arc<Self>, id: &ThreadId) -> Result<()> {
        let row = self.records.row(id).await?;
        if !matches!(row.status, ThreadStatus::Created | ThreadStatus::Running) {
            return Ok(());
        }
        if self.is_left_to_workers(id).await? {
            return Ok(());
        }
        let claim = match self.claim_thread(id).await {
            Ok(claim) => claim,
            Err(error) if error.code == Code::ThreadHeld => return Ok(()),
            Err(error) => return Err(error),
        };
        let options = ResumeOptions { by: "rye".to_owned(), ..ResumeOptions::default() };
        let Err(error) = self.resume_claimed(id, claim, &options, CancelSignal::default()).await else {
            return Ok(());
        };
        // Best effort: what was tried is not worth more.
        let _ = self.store.set_note(id, &error.to_string()).await;
        Err(error)
    }

    /// Whether a thread is recorded as running, and no process runs it.
    pub(super) fn is_abandoned(&self, row: &ThreadRow) -> bool {
        matches!(row.status, ThreadStatus::Created | ThreadStatus::Running)
            && row.owner.as_ref().is_none_or(|owner| {
                self.claim_policy().can_take(owner, &self.owner, row.heartbeat_ms, &SystemProbe)
            })
    }

    /// Resumes a thread that no process runs: where it belongs, or here if `is_ours`, or not at all.
    ///
    /// # Errors
    /// Why it is not resumed.
    pub(super) async fn recover(
        self: &Arc<Self>,
        row: &ThreadRow,
        is_ours: bool,
    ) -> std::result::Result<(), String> {
        if self.is_left_to_workers(&row.id).await.map_err(|error| error.to_string())? {
            // Who waits for it does not decide what becomes of it.
            let _ = self.hand_over(&row.id).await;
            return Ok(());
        }
        // Where nothing was ever left to another process, it is a copy: it resumes where it was left, or when a person
        // says so.
        let has_threads = self.setup.background.as_ref().is_some_and(|background| background.has_threads());
        if row.is_detached && self.orphans.enabled && has_threads {
            let connection = self.connect_background().await.map_err(|error| error.to_string())?;
            return self.transfer(connection, &row.id).await.map(drop);
        }
        if is_ours {
            return self.resume_abandoned(&row.id).await.map_err(|error| error.to_string());
        }
        Err("its process is gone".to_owned())
    }
}
