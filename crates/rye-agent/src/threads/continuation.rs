//! Going on from a thread that has ended, or handing over: a new thread that knows what was said.

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::Message;
use serde_json::{Value, json};

use super::answer::sync_answer;
use super::resume::Changes;
use super::{Inner, Started, Threads};
use crate::cost::Cost;
use crate::driver::Signal;
use crate::machine::{State, newest_turns};
use crate::prepare::{Order, Parent, Prepared};
use crate::spec::Spec;
use crate::status::Status;
use crate::store::{Claimed, Commit, StatusChange, Taking, ThreadRow};

/// What the model is told when nobody says more.
const GO_ON: &str = "Pick up where the previous thread left off, and continue the directive's instructions.";

/// How much of its limits an old thread hands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// All of them: a person has said so.
    Whole,
    /// What it has not used.
    Rest,
}

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
        // A person who starts it anew gives it as much as before.
        self.inner.successor(row, message, Carried::Whole, signal).await
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
            let started = self.resume(&row.id, &changes, Signal::default()).await?;
            let finished = started.finished().await;
            let result = finished.map(|finished| Value::Object(sync_answer(&finished)));
            return Ok(json!({"success": true, "resumed": true, "thread_id": row.id, "result": result}));
        }
        let started = self.successor(&row, changes.message, Carried::Rest, Signal::default()).await?;
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

    async fn successor(
        self: &Arc<Self>,
        row: &ThreadRow,
        message: Option<String>,
        carried: Carried,
        signal: Signal,
    ) -> Result<Started> {
        let prepared = self.prepared_successor(row, message, carried).await?;
        let started = self.begin(prepared, signal).await?;
        self.hand_over(row).await?;
        Ok(started)
    }

    /// A thread with the same directive, inputs and parent, which knows what the old one said.
    pub(super) async fn prepared_successor(
        self: &Arc<Self>,
        row: &ThreadRow,
        message: Option<String>,
        carried: Carried,
    ) -> Result<Prepared> {
        let old = self.ended_state(row)?;
        let id = ItemId::new(&row.directive)?;
        let mut order = Order::new(ItemRef::new(ItemType::Directive, id), old.spec.own.inputs.clone());
        order.model = Some(old.spec.shared.model.clone());
        order.provider = Some(old.spec.shared.provider.clone());
        order.parent = self.parent_of(&old.spec)?;
        self.carry(&mut order, &old, message, carried).await?;
        self.prepared(order).await
    }

    /// The state of a thread that is not at work.
    pub(super) fn ended_state(&self, row: &ThreadRow) -> Result<State> {
        if matches!(row.status, Status::Created | Status::Running) {
            return Err(Error::new(Code::ThreadHeld, format!("{} is at work", row.id))
                .detail("thread_id", row.id.as_str())
                .hint(format!("wait for it: rye thread wait {}", row.id)));
        }
        self.state_of(&row.id)
    }

    /// What goes along from an old thread: what was said, as far as there is room; a summary of the rest; its rights; its
    /// limits, or what is left of them.
    pub(super) async fn carry(
        self: &Arc<Self>,
        order: &mut Order,
        old: &State,
        message: Option<String>,
        carried: Carried,
    ) -> Result<()> {
        let limits = match carried {
            Carried::Whole => old.limits,
            Carried::Rest => old.limits.less(&old.cost),
        };
        if let Some(reached) = limits.reached(&Cost::default()) {
            let name = reached.name();
            return Err(Error::new(Code::SpawnRefused, format!("nothing is left of {name} to go on with"))
                .detail("limit", name)
                .hint(format!("a person may allow more: rye thread resume {}", old.spec.own.thread_id)));
        }
        let ceiling = old.spec.shared.config.coordination.continuation.resume_ceiling_tokens;
        let newest = newest_turns(&old.messages, ceiling);
        order.history = old.messages.first().cloned().into_iter().collect();
        // What does not go along is summarised; without a summary it is said that something is missing.
        if old.messages.len() > newest.len() + 1 {
            let text = match self.summary(order, old).await {
                Some(summary) => {
                    format!("Summary of the work so far (older turns were removed):\n\n{summary}")
                }
                None => "Older turns were removed to make room.".to_owned(),
            };
            order.history.push(Arc::new(Message::User { text }));
        }
        order.history.extend(newest);
        order.continues = Some(old.spec.own.thread_id.clone());
        order.message = Some(message.unwrap_or_else(|| GO_ON.to_owned()));
        // No more than the old one might: policy holds across the change.
        order.within = Some((old.spec.own.capabilities.clone(), limits));
        Ok(())
    }

    /// What a summary directive makes of a conversation; nothing if it cannot.
    async fn summary(self: &Arc<Self>, order: &Order, old: &State) -> Option<String> {
        let continuation = &old.spec.shared.config.coordination.continuation;
        let id = ItemId::new(&continuation.summary_directive).ok()?;
        let inputs = json!({
            "transcript_content": old.conversation(),
            "directive_name": old.spec.shared.directive,
            "max_summary_tokens": continuation.summary_max_tokens,
        });
        let mut wanted = Order::new(ItemRef::new(ItemType::Directive, id), inputs.as_object()?.clone());
        wanted.model = Some(continuation.summary_model.clone());
        wanted.limits = continuation.summary_limit_overrides.clone();
        wanted.parent = order.parent.clone();
        let prepared = self.prepared_like(&old.spec, wanted).await;
        let started = self.begin(prepared.ok()?, Signal::default()).await.ok()?;
        let outcome = started.finished().await?.outcome.clone();
        let told =
            outcome.outputs.as_ref().and_then(|outputs| outputs.get("summary")).and_then(Value::as_str);
        let told = told.map(str::to_owned).or(outcome.result)?;
        Some(told).filter(|told| outcome.status == Status::Completed && !told.trim().is_empty())
    }

    fn parent_of(&self, spec: &Spec) -> Result<Option<Parent>> {
        let Some(parent) = &spec.own.parent else { return Ok(None) };
        let state = self.state_of(parent)?;
        Ok(Some(Parent { limits: state.limits, spec: state.spec }))
    }

    /// The old thread, if it was suspended, is `continued`: whoever waits for it waits for the new one.
    pub(super) async fn hand_over(self: &Arc<Self>, row: &ThreadRow) -> Result<()> {
        if row.status != Status::Suspended {
            return Ok(());
        }
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
