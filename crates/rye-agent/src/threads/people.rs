//! What people do to threads that may run anywhere, or nowhere.

use rye_engine::{Code, Error, Result};
use serde_json::Value;

use super::Threads;
use crate::status::Status;
use crate::store::{Claimed, Commit, StatusChange, Taking};
use crate::thread_id::ThreadId;

/// What became of the wish that a thread ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nobody ran it: it has ended.
    Now,
    /// Whoever runs it was asked, and ends it soon.
    Asked,
}

impl Threads {
    /// Has a thread end, wherever it runs; one that nobody runs ends here and now, without another step.
    ///
    /// # Errors
    /// When there is no such thread, or it has ended.
    pub async fn end(&self, id: &ThreadId, reason: &str) -> Result<Ended> {
        let row = self.inner.row(id)?;
        if row.status.is_terminal() {
            return Err(Error::new(Code::ThreadEnded, format!("{id} has ended: {}", row.status))
                .detail("thread_id", id.as_str())
                .hint(format!("see what it did: rye thread show {id}")));
        }
        let store = &self.inner.store;
        let now = self.inner.setup.clock.now_ms();
        let Claimed::Done { claim, .. } = store.claim(id, &self.inner.owner, Taking::Free, now)? else {
            self.inner.request_cancel(id, reason);
            return Ok(Ended::Asked);
        };
        let status = StatusChange {
            to: Status::Cancelled,
            reason: None,
            result: None,
            error: Some(reason.to_owned()),
        };
        let settle = self.inner.unknown_calls(id, &row.directive, &row.model)?;
        let commit = Commit { settle, status: Some(status), ..Commit::new(id.clone(), claim, now) };
        let committed = store.commit(commit).await;
        // Whatever came of it, the thread is not held from here.
        let _ = store.release_claim(id, claim);
        committed?;
        for child in store.children(id)?.iter().filter(|child| !child.status.is_terminal()) {
            self.inner.request_cancel(&child.id, "its parent was cancelled");
        }
        Ok(Ended::Now)
    }

    /// Ends a thread by force, whoever runs it.
    ///
    /// # Errors
    /// When there is no such thread, or it has ended.
    pub async fn kill(&self, id: &ThreadId) -> Result<Value> {
        let row = self.inner.row(id)?;
        if row.status.is_terminal() {
            return Err(Error::new(Code::ThreadEnded, format!("{id} has ended: {}", row.status))
                .detail("thread_id", id.as_str())
                .hint(format!("see what it did: rye thread show {id}")));
        }
        self.inner.kill(&row).await
    }
}
