//! Going on from a thread that has ended, or handing over: a new thread that knows what was said.

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::{Value, json};

use super::answer::sync_answer;
use super::resume::Changes;
use super::{Inner, Started, Threads};
use crate::driver::Signal;
use crate::machine::newest_turns;
use crate::prepare::{Order, Parent};
use crate::spec::Spec;
use crate::status::{Status, SuspendReason};
use crate::store::{Claimed, Commit, StatusChange, Taking, ThreadRow};

/// What the model is told when nobody says more.
const GO_ON: &str = "Pick up where the previous thread left off, and continue the directive's instructions.";

impl Threads {
    /// Starts a thread that goes on from one that has ended.
    ///
    /// # Errors
    /// When the old one still runs, its record does not verify, or the new one may not start.
    pub async fn continue_from(
        &self,
        row: &ThreadRow,
        message: Option<String>,
        signal: Signal,
    ) -> Result<Started> {
        self.inner.successor(row, message, signal).await
    }
}

impl Inner {
    /// Lets a thread go on: in place if it is suspended, else in a new thread.
    pub(super) async fn go_on(
        self: &Arc<Self>,
        row: &ThreadRow,
        changes: Changes,
        is_handoff: bool,
    ) -> Result<Value> {
        let row = self.final_row(&row.id)?;
        if !is_handoff && row.status == Status::Suspended {
            if row.reason == Some(SuspendReason::Approval) {
                return Err(Error::new(Code::PermissionDenied, format!("{} waits for a person", row.id))
                    .detail("thread_id", row.id.as_str())
                    .hint(format!("rye thread approve {}", row.id)));
            }
            let started = self.resume(&row.id, &changes, Signal::default()).await?;
            let finished = started.finished().await;
            let result = finished.map(|finished| Value::Object(sync_answer(&finished)));
            return Ok(json!({"success": true, "resumed": true, "thread_id": row.id, "result": result}));
        }
        let started = self.successor(&row, changes.message, Signal::default()).await?;
        let (old, new, directive) = (row.id.clone(), started.thread_id.clone(), started.directive.clone());
        let finished = started.finished().await;
        let result = finished.map(|finished| Value::Object(sync_answer(&finished)));
        Ok(json!({
            "success": true,
            "resumed": !is_handoff,
            "old_thread_id": old,
            "new_thread_id": new,
            "resolved_thread_id": old,
            "directive": directive,
            "new_thread_result": result,
        }))
    }

    /// A thread with the same directive, inputs and parent, which knows the newest turns of the old one.
    async fn successor(
        self: &Arc<Self>,
        row: &ThreadRow,
        message: Option<String>,
        signal: Signal,
    ) -> Result<Started> {
        if matches!(row.status, Status::Created | Status::Running) {
            return Err(Error::new(Code::ThreadHeld, format!("{} is at work", row.id))
                .detail("thread_id", row.id.as_str())
                .hint(format!("wait for it: rye thread wait {}", row.id)));
        }
        let old = self.state_of(&row.id)?;
        let id = ItemId::new(&row.directive)?;
        let mut order = Order::new(ItemRef::new(ItemType::Directive, id), old.spec.own.inputs.clone());
        order.continues = Some(row.id.clone());
        order.model = Some(old.spec.shared.model.clone());
        order.provider = Some(old.spec.shared.provider.clone());
        order.parent = self.parent_of(&old.spec)?;
        let ceiling = old.spec.shared.config.coordination.continuation.resume_ceiling_tokens;
        order.history =
            old.messages.first().cloned().into_iter().chain(newest_turns(&old.messages, ceiling)).collect();
        order.message = Some(message.unwrap_or_else(|| GO_ON.to_owned()));
        // No more than the old one might: policy holds across the change.
        order.within = Some((old.spec.own.capabilities.clone(), old.limits));
        let prepared = self.prepared(order).await?;
        let started = self.begin(prepared, signal).await?;
        if row.status == Status::Suspended {
            self.hand_over(row).await?;
        }
        Ok(started)
    }

    fn parent_of(&self, spec: &Spec) -> Result<Option<Parent>> {
        let Some(parent) = &spec.own.parent else { return Ok(None) };
        let state = self.state_of(parent)?;
        Ok(Some(Parent { limits: state.limits, spec: state.spec }))
    }

    /// The old thread is `continued`: whoever waits for it waits for the new one.
    async fn hand_over(self: &Arc<Self>, row: &ThreadRow) -> Result<()> {
        let now = self.setup.clock.now_ms();
        let Claimed::Done { claim, .. } = self.store.claim(&row.id, &self.owner, Taking::Free, now)? else {
            return Ok(());
        };
        let status = Some(StatusChange::to(Status::Continued));
        self.store.commit(Commit { status, ..Commit::new(row.id.clone(), claim, now) }).await?;
        let _ = self.store.release_claim(&row.id, claim);
        Ok(())
    }
}
