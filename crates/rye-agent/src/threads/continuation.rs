//! Continuing from a thread that has ended, or handing over: a new thread that knows what was said.

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::ChatMessage;
use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::availability::AvailabilityWait;
use super::needed_person::{Succession, check_succession, note_for_successor};
use super::responses::finished_response;
use super::resume::ResumeOptions;
use super::{StartedThread, ThreadRuntime, Threads};
use crate::cost::Cost;
use crate::driver::CancelSignal;
use crate::file_inputs::FileAccess;
use crate::machine::{ThreadState, newest_turns};
use crate::models::OFFLINE_PROVIDER;
use crate::prepare::{PreparedThread, ThreadRequest};
use crate::status::ThreadStatus;
use crate::store::{ClaimOutcome, ClaimPolicy, ThreadRow};
use crate::thread_id::ThreadId;

/// What the model is given when no message is given.
const CONTINUE_PROMPT: &str =
    "Pick up where the previous thread left off, and continue the directive's instructions.";

/// How much of its limits an old thread hands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitCarryover {
    /// All of them: a person has said so.
    Full,
    /// What it has not used.
    Remaining,
}

impl Threads {
    /// Starts a thread that continues from one that has ended.
    ///
    /// # Errors
    /// When the old one still runs, its record does not verify, or the new one may not start.
    pub async fn continue_from(
        &self,
        row: &ThreadRow,
        message: Option<String>,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        // A person who starts it again gives it as much as before.
        self.runtime.start_successor(row, message, (LimitCarryover::Full, false), signal).await
    }
}

impl ThreadRuntime {
    /// Lets a thread continue: in place if it is suspended, else in a new thread.
    pub(super) async fn continue_thread(
        self: &Arc<Self>,
        row: &ThreadRow,
        options: ResumeOptions,
        is_handoff: bool,
        wait: Option<AvailabilityWait>,
        cancel_token: &CancellationToken,
    ) -> Result<Value> {
        let row = self.records.final_row(&row.id).await?;
        if !is_handoff && row.status == ThreadStatus::Suspended {
            let (finished, attempts) =
                self.resume_until_available(&row.id, &options, wait, cancel_token).await?;
            let result = finished.map(|finished| Value::Object(finished_response(&finished)));
            let mut response =
                json!({"success": true, "resumed": true, "thread_id": row.id, "result": result});
            if wait.is_some() {
                response["attempts"] = json!(attempts);
            }
            return Ok(response);
        }
        let started = self
            .start_successor(
                &row,
                options.message,
                (LimitCarryover::Remaining, options.is_unattended),
                CancelSignal::default(),
            )
            .await?;
        let (old, new, directive) = (row.id.clone(), started.thread_id.clone(), started.directive.clone());
        let finished = started.finished().await;
        let result = finished.map(|finished| Value::Object(finished_response(&finished)));
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

    async fn start_successor(
        self: &Arc<Self>,
        row: &ThreadRow,
        message: Option<String>,
        terms: (LimitCarryover, bool),
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        let prepared = self.prepare_successor(row, message, terms).await?;
        let started = self.start(prepared, signal).await?;
        self.mark_continued(row, &started.thread_id).await?;
        Ok(started)
    }

    /// A thread with the same directive, inputs and parent, which knows what the old one said; with so much of its limits,
    /// and whether a person is there to ask.
    pub(super) async fn prepare_successor(
        self: &Arc<Self>,
        row: &ThreadRow,
        message: Option<String>,
        (carryover, is_unattended): (LimitCarryover, bool),
    ) -> Result<PreparedThread> {
        let ended = row.clone();
        let old = self.records.run_blocking(move |records| records.ended_state(&ended)).await?;
        check_succession(&old, Succession::Replaced, is_unattended)?;
        check_has_more(&old)?;
        let id = ItemId::new(&row.directive)?;
        let mut request =
            ThreadRequest::new(ItemRef::new(ItemType::Directive, id), old.spec.instance.inputs.clone());
        request.model = Some(old.spec.template.model.clone());
        request.provider = Some(old.spec.template.provider.clone());
        let spec = Arc::clone(&old.spec);
        request.parent = self.records.run_blocking(move |records| records.parent_of(&spec)).await?;
        self.carry_over(&mut request, &old, message, carryover).await?;
        self.prepare(request).await
    }

    /// What goes along from an old thread: what was said, as far as there is room; a summary of the rest; its rights and
    /// hooks; its limits, or what is left of them.
    pub(super) async fn carry_over(
        self: &Arc<Self>,
        request: &mut ThreadRequest,
        old: &ThreadState,
        message: Option<String>,
        carryover: LimitCarryover,
    ) -> Result<()> {
        let limits = match carryover {
            LimitCarryover::Full => old.limits,
            LimitCarryover::Remaining => old.limits.remaining_after(&old.cost),
        };
        if let Some(reached) = limits.first_reached(&Cost::default()) {
            let name = reached.name();
            return Err(Error::new(
                Code::SpawnRefused,
                format!("nothing is left of {name} to continue with"),
            )
            .detail("limit", name)
            .hint(format!("a person may allow more: rye thread resume {}", old.spec.instance.thread_id)));
        }
        let ceiling = old.spec.template.config.coordination.continuation.resume_ceiling_tokens;
        let recent = newest_turns(&old.messages, ceiling);
        request.files = FileAccess::Recorded(old.spec.instance.files.clone());
        request.history = old.messages.first().cloned().into_iter().collect();
        // What does not go along is summarised; without a summary it is said that something is missing.
        if old.messages.len() > recent.len() + 1 {
            let text = match self.summarize(request, old).await {
                Some(summary) => {
                    format!("Summary of the work so far (older turns were removed):\n\n{summary}")
                }
                None => "Older turns were removed to make room.".to_owned(),
            };
            request.history.push(Arc::new(ChatMessage::user(text)));
        }
        request.history.extend(recent);
        request.continues = Some(old.spec.instance.thread_id.clone());
        let message = message.unwrap_or_else(|| CONTINUE_PROMPT.to_owned());
        request.message = Some(match note_for_successor(old) {
            Some(note) => format!("{note}\n\n{message}"),
            None => message,
        });
        request.continued_spec = Some(Arc::clone(&old.spec));
        // No more than the old one might: policy holds across the change.
        request.bounds = Some((old.spec.instance.capabilities.clone(), limits));
        Ok(())
    }

    /// Lets the order continue from a thread that the user names.
    pub(super) async fn continue_for_user(
        self: &Arc<Self>,
        id: &str,
        request: &mut ThreadRequest,
        params: &Map<String, Value>,
        is_unattended: bool,
    ) -> Result<ThreadRow> {
        let id =
            ThreadId::parse(id).map_err(|error| Error::new(Code::InvalidParameters, error.to_string()))?;
        self.continue_row(&self.records.row(&id).await?, request, params, is_unattended).await
    }

    pub(super) async fn continue_row(
        self: &Arc<Self>,
        row: &ThreadRow,
        request: &mut ThreadRequest,
        params: &Map<String, Value>,
        is_unattended: bool,
    ) -> Result<ThreadRow> {
        let row = self.records.final_row(&row.id).await?;
        let ended = row.clone();
        let old = self.records.run_blocking(move |records| records.ended_state(&ended)).await?;
        check_succession(&old, Succession::Replaced, is_unattended)?;
        // One that names a model itself can continue from there.
        if request.provider.as_deref().is_none_or(|provider| provider == OFFLINE_PROVIDER) {
            check_has_more(&old)?;
        }
        if !params.contains_key("inputs") && row.directive == request.directive.id.as_str() {
            request.inputs.clone_from(&old.spec.instance.inputs);
        }
        self.carry_over(request, &old, None, LimitCarryover::Remaining).await?;
        Ok(row)
    }

    /// What a summary directive makes of a conversation; nothing if it cannot.
    async fn summarize(self: &Arc<Self>, request: &ThreadRequest, old: &ThreadState) -> Option<String> {
        let continuation = &old.spec.template.config.coordination.continuation;
        let id = ItemId::new(&continuation.summary_directive).ok()?;
        let inputs = json!({
            "transcript_content": old.conversation(),
            "directive_name": old.spec.template.directive,
            "max_summary_tokens": continuation.summary_max_tokens,
        });
        let mut summary_request =
            ThreadRequest::new(ItemRef::new(ItemType::Directive, id), inputs.as_object()?.clone());
        summary_request.model = Some(continuation.summary_model.clone());
        summary_request.limits = continuation.summary_limit_overrides.clone();
        summary_request.parent = request.parent.clone();
        summary_request.is_summary = true;
        let prepared = self.preparer.prepare_with_model_of(&old.spec, summary_request).await;
        let started = self.start(prepared.ok()?, CancelSignal::default()).await.ok()?;
        let outcome = started.finished().await?.outcome.clone();
        let text =
            outcome.outputs.as_ref().and_then(|outputs| outputs.get("summary")).and_then(Value::as_str);
        let text = text.map(str::to_owned).or(outcome.result)?;
        Some(text).filter(|text| outcome.status == ThreadStatus::Completed && !text.trim().is_empty())
    }

    /// The old thread, if it was suspended, is `continued`: those that wait for it wait for the new one.
    pub(super) async fn mark_continued(
        self: &Arc<Self>,
        row: &ThreadRow,
        successor: &ThreadId,
    ) -> Result<()> {
        if row.status != ThreadStatus::Suspended {
            return Ok(());
        }
        let now = self.setup.clock.now_ms();
        let ClaimOutcome::Claimed { claim, .. } =
            self.store.claim(&row.id, &self.owner, ClaimPolicy::Free, now).await?
        else {
            return Ok(());
        };
        self.control.terminate(row, claim, ThreadStatus::Continued, successor.as_str()).await
    }
}

/// Refuses to continue from the end of a thread without a model: its actions were made, or one of them failed, and no model
/// is there to do something else.
fn check_has_more(old: &ThreadState) -> Result<()> {
    let template = &old.spec.template;
    if template.provider != OFFLINE_PROVIDER || !old.status().is_terminal() {
        return Ok(());
    }
    let id = &old.spec.instance.thread_id;
    let message = format!("{id} ran without a model, which would be needed to continue from its end");
    Err(Error::new(Code::InvalidArgument, message)
        .detail("thread_id", id.as_str())
        .hint(format!("to start it again, with its inputs: rye run {}", template.directive)))
}
