//! What people and parents do to threads that may run anywhere, or nowhere.

use std::pin::Pin;
use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::coordinate::Waiting;
use super::resume::Changes;
use super::{Finished, Inner, Threads};
use crate::config::{ChildFate, ChildPolicy};
use crate::driver::Signal;
use crate::status::Status;
use crate::store::{Answer, Approval, Claimed, Commit, StatusChange, Taking, ThreadRow};
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
            return Err(has_ended(&row));
        }
        self.inner.end(id, reason).await
    }

    /// Whether a thread of this process stopped to ask somebody.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        !self.inner.asking().is_empty()
    }

    /// What is asked by a thread or anybody below it, and nobody has answered.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn asked_below(&self, id: &ThreadId) -> Result<Vec<Approval>> {
        Ok(self.inner.store.open_approvals(Some(id))?.questions)
    }

    /// Gives a person's answer to these questions, which must be asked below `root`; with a yes limits grow by what is asked
    /// for.
    ///
    /// # Errors
    /// When one is not open any more.
    pub fn answer(&self, root: &ThreadId, questions: &[String], approved: bool, by: &str) -> Result<()> {
        let open = self.asked_below(root)?;
        for id in questions {
            let none = || Error::from(crate::store::StoreError::NoQuestion(rye_item::text::one_line(id)));
            let question = open.iter().find(|question| question.id == *id).ok_or_else(none)?;
            let answer = Answer {
                approved,
                message: None,
                changes: question.detail.get("proposed").filter(|_| approved).cloned().unwrap_or_default(),
                at_ms: self.inner.setup.clock.now_ms(),
                by: by.to_owned(),
            };
            self.inner.store.answer(id, &answer)?;
        }
        Ok(())
    }

    /// Goes on with a thread that was answered, if nobody does yet, and waits until it ends or stops.
    ///
    /// # Errors
    /// When it cannot go on.
    pub async fn finish(&self, id: &ThreadId, ending: &CancellationToken) -> Result<Finished> {
        let row = self.inner.row(id)?;
        if row.status == Status::Suspended && self.inner.store.answered()?.contains(id) {
            match self.inner.resume(id, &Changes::default(), Signal::default()).await {
                // Whoever watches for answers was faster.
                Err(error) if error.code == Code::ThreadHeld => {}
                Err(error) => return Err(error),
                Ok(started) => {
                    let lost = || Error::new(Code::ThreadFailed, format!("{id} was lost"));
                    return started.finished().await.map(|finished| (*finished).clone()).ok_or_else(lost);
                }
            }
        }
        let waiting = Waiting { waits_for_people: false, ..Waiting::for_all(vec![id.clone()]) };
        self.inner.wait(&waiting, false, ending).await?;
        self.inner.stands(id)
    }

    /// Ends a thread by force, whoever runs it.
    ///
    /// # Errors
    /// When there is no such thread, or it has ended.
    pub async fn kill(&self, id: &ThreadId) -> Result<Value> {
        let row = self.inner.row(id)?;
        if row.status.is_terminal() {
            return Err(has_ended(&row));
        }
        self.inner.kill(&row).await
    }
}

fn has_ended(row: &ThreadRow) -> Error {
    Error::new(Code::ThreadEnded, format!("{} has ended: {}", row.id, row.status))
        .detail("thread_id", row.id.as_str())
        .hint(format!("see what it did: rye thread show {}", row.id))
}

impl Inner {
    /// Has a thread end: at once if it runs here; by a wish if another process runs it; settled here if nobody does.
    pub(super) async fn end(self: &Arc<Self>, id: &ThreadId, reason: &str) -> Result<Ended> {
        if self.cancel_here(id, reason) {
            return Ok(Ended::Asked);
        }
        let row = self.row(id)?;
        if row.status.is_terminal() {
            return Ok(Ended::Now);
        }
        let now = self.setup.clock.now_ms();
        let Claimed::Done { claim, .. } = self.store.claim(id, &self.owner, Taking::Free, now)? else {
            self.leave_wish(id, reason);
            return Ok(Ended::Asked);
        };
        let status = StatusChange {
            to: Status::Cancelled,
            reason: None,
            result: None,
            error: Some(reason.to_owned()),
        };
        let settle = self.unknown_calls(id, &row.directive, &row.model)?;
        let commit = Commit { settle, status: Some(status), ..Commit::new(id.clone(), claim, now) };
        let committed = self.store.commit(commit).await;
        // Whatever came of it, the thread is not held from here.
        let _ = self.store.release_claim(id, claim);
        committed?;
        self.parent_ended(id, Status::Cancelled, self.child_policy(id)).await;
        Ok(Ended::Now)
    }

    /// What becomes of the children of a thread that ended like this.
    pub(super) fn parent_ended<'a>(
        self: &'a Arc<Self>,
        id: &'a ThreadId,
        status: Status,
        policy: ChildPolicy,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            let (fate, reason) = match status {
                Status::Cancelled | Status::Killed => (policy.on_parent_cancel, "its parent was cancelled"),
                Status::Completed => (policy.on_parent_complete, "its parent has completed"),
                Status::Error => (policy.on_parent_error, "its parent has failed"),
                Status::Created | Status::Running | Status::Suspended | Status::Continued => return,
            };
            if fate == ChildFate::Allow {
                return;
            }
            let children = self.store.children(id).unwrap_or_default();
            for child in children.iter().filter(|child| !child.status.is_terminal()) {
                // One that cannot be ended does not keep the others alive.
                let _ = self.end(&child.id, reason).await;
            }
        })
    }
}
