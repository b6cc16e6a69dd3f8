//! Threads that go on without the command that started them: registered here, left to a process that outlives this one,
//! and found again when that process dies.

use std::collections::BTreeMap;
use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use serde::{Deserialize, Serialize};

use super::continuation::Carried;
use super::resume::Changes;
use super::{Inner, Threads};
use crate::driver::Signal;
use crate::prepare::{Order, Prepared};
use crate::status::Status;
use crate::store::ThreadRow;
use crate::thread_id::ThreadId;

/// Who runs threads that outlive this process.
pub trait Background: Send + Sync {
    /// Reaches that process, which is started if need be. Threads that are registered from now on until the answer is
    /// used are found again, whatever dies meanwhile. It blocks.
    ///
    /// # Errors
    /// When there is no such process to be had; then nobody is left to.
    fn reach(&self) -> Result<Box<dyn Reached>>;

    /// Whether threads of this space were ever left to it, and have not all ended: a cheap look.
    fn has_some(&self) -> bool;
}

/// Such a process, ready to take threads.
pub trait Reached: Send {
    /// Has it run these threads; where none is named, all of this space that nobody runs. It blocks.
    ///
    /// # Errors
    /// When it does not answer. It may have taken them all the same.
    fn take(self: Box<Self>, threads: &[ThreadId]) -> Result<Taken>;
}

/// What became of threads that were left to another process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Taken {
    /// The process that has them.
    pub pid: u32,
    /// Those it does not run, and why.
    pub left: BTreeMap<ThreadId, String>,
}

/// A thread that was left to another process.
#[derive(Clone, Debug)]
pub struct Left {
    /// Its name.
    pub thread_id: ThreadId,
    /// Its directive.
    pub directive: String,
    /// What its user should know.
    pub notices: Vec<String>,
    /// The process that runs it, or why it is not run yet.
    pub with: std::result::Result<u32, String>,
}

impl Threads {
    /// Starts a thread that goes on without this process: it is there for good when this returns.
    ///
    /// # Errors
    /// When it may not start, or nobody is there to run it; then there is no thread.
    pub async fn start_in_background(&self, order: Order) -> Result<Left> {
        let prepared = self.inner.prepared(order).await?;
        let reached = self.inner.reached().await?;
        self.inner.leave_to(reached, prepared).await
    }

    /// As [`Threads::continue_from`], in the background.
    ///
    /// # Errors
    /// As there.
    pub async fn continue_in_background(&self, row: &ThreadRow, message: Option<String>) -> Result<Left> {
        let prepared = self.inner.prepared_successor(row, message, Carried::Whole).await?;
        let reached = self.inner.reached().await?;
        let left = self.inner.leave_to(reached, prepared).await?;
        self.inner.hand_over(row).await?;
        Ok(left)
    }

    /// Threads that should go on by themselves, and that nobody runs. None where settings do not want them found.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn abandoned(&self) -> Result<Vec<ThreadId>> {
        self.inner.abandoned()
    }

    /// Whether they are looked for without anybody asking, when the process that runs them starts.
    #[must_use]
    pub fn scans_on_startup(&self) -> bool {
        self.inner.orphans.enabled && self.inner.orphans.scan_on_startup
    }

    /// Runs threads that nobody runs in this process; why not, where that cannot be.
    pub async fn take_up(&self, ids: &[ThreadId]) -> BTreeMap<ThreadId, String> {
        let mut left = BTreeMap::new();
        for id in ids {
            if let Err(error) = self.inner.take_up(id).await {
                left.insert(id.clone(), error.to_string());
            }
        }
        left
    }
}

impl Inner {
    fn orphans(&self) -> Result<Vec<ThreadRow>> {
        if !self.orphans.enabled {
            return Ok(Vec::new());
        }
        let mut orphans = self.store.orphans(&self.owner, self.taking())?;
        orphans.retain(|row| row.is_detached);
        Ok(orphans)
    }

    fn abandoned(&self) -> Result<Vec<ThreadId>> {
        Ok(self.orphans()?.into_iter().map(|row| row.id).collect())
    }

    /// The process that threads are left to.
    pub(super) async fn reached(&self) -> Result<Box<dyn Reached>> {
        let nobody = || {
            Error::new(Code::NoBackground, "there is nobody to run a thread in the background")
                .hint("run it in the foreground")
        };
        let background = self.setup.background.clone().ok_or_else(nobody)?;
        blocking(move || background.reach()).await
    }

    /// Registers a thread, and leaves it to another process.
    pub(super) async fn leave_to(
        self: &Arc<Self>,
        reached: Box<dyn Reached>,
        prepared: Prepared,
    ) -> Result<Left> {
        // What would fail there fails here, where somebody hears of it.
        drop(self.provider(&prepared.chosen, &prepared.spec)?);
        let Prepared { spec, notices, .. } = prepared;
        self.register(&spec, None).await?;
        let id = spec.own.thread_id.clone();
        let with = self.handed_to(reached, &id).await;
        Ok(Left { thread_id: id, directive: spec.shared.directive.clone(), notices, with })
    }

    async fn handed_to(&self, reached: Box<dyn Reached>, id: &ThreadId) -> std::result::Result<u32, String> {
        let wanted = id.clone();
        let taken = blocking(move || reached.take(&[wanted])).await.map_err(|error| error.to_string())?;
        taken.left.get(id).map_or(Ok(taken.pid), |why| Err(why.clone()))
    }

    /// Runs a thread here that nobody runs. One that somebody runs by now, or that has ended, is fine as it is.
    ///
    /// # Errors
    /// When it cannot go on; the reason is written down.
    pub(super) async fn take_up(self: &Arc<Self>, id: &ThreadId) -> Result<()> {
        let row = self.row(id)?;
        if !matches!(row.status, Status::Created | Status::Running) {
            return Ok(());
        }
        let (inner, wanted) = (Arc::clone(self), id.clone());
        let claim = match blocking(move || inner.claimed(&wanted)).await {
            Ok(claim) => claim,
            Err(error) if error.code == Code::ThreadHeld => return Ok(()),
            Err(error) => return Err(error),
        };
        let changes = Changes { by: "rye".to_owned(), ..Changes::default() };
        let Err(error) = self.go_on_from(id, claim, &changes, Signal::default()).await else {
            return Ok(());
        };
        // Best effort: what was tried is not worth more.
        let _ = self.store.note(id, &error.to_string());
        Err(error)
    }

    /// Whether a thread is said to be at work, and nobody works on it.
    pub(super) fn is_abandoned(&self, row: &ThreadRow) -> bool {
        matches!(row.status, Status::Created | Status::Running)
            && row
                .owner
                .as_ref()
                .is_none_or(|owner| self.taking().is_free(owner, &self.owner, row.heartbeat_ms))
    }

    /// Has a thread that nobody works on go on: where it belongs, or here if `is_ours`, or not at all.
    ///
    /// # Errors
    /// Why nobody goes on with it.
    pub(super) async fn bring_back(
        self: &Arc<Self>,
        row: &ThreadRow,
        is_ours: bool,
    ) -> std::result::Result<(), String> {
        // Where nothing was ever left to anybody, it is a copy: it goes on where it was left, or when a person says so.
        let has_some = self.setup.background.as_ref().is_some_and(|background| background.has_some());
        if row.is_detached && self.orphans.enabled && has_some {
            let reached = self.reached().await.map_err(|error| error.to_string())?;
            return self.handed_to(reached, &row.id).await.map(drop);
        }
        if is_ours {
            return self.take_up(&row.id).await.map_err(|error| error.to_string());
        }
        Err("its process is gone".to_owned())
    }
}

/// Does what blocks where that does no harm.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(Error::new(Code::Io, format!("it broke off: {error}"))),
    }
}
