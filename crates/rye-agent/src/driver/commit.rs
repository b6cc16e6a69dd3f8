//! Taking an event in: redacted, stepped, journaled, told. Effects begin only afterwards.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rye_model::{ModelResponse, ToolCall};
use serde_json::Value;

use super::effects::PendingEffect;
use super::{DriverError, ThreadDriver};
use crate::cost::Attribution;
use crate::limits::ThreadLimits;
use crate::machine::{ApprovalRequest, Effect, ThreadEvent, ThreadOutcome, step};
use crate::money::Nanos;
use crate::redact::{RedactionTally, Redactor};
use crate::status::ThreadStatus;
use crate::store::{
    Approval, BudgetCaps, CommitOutcome, JournalRecord, ReserveRequest, Settlement, StatusChange,
    ThreadCommit,
};

/// `state.json` is written at most this often while a thread is at work; one that ends sooner writes it once.
const STATE_SAVE_INTERVAL_MS: u64 = 5000;

/// For how long lines may wait for others before they are in the transcript.
const TRANSCRIPT_WRITE_INTERVAL_MS: u64 = 250;

impl ThreadDriver {
    /// Takes an event in, and all that follows from it without waiting.
    pub(super) async fn handle(&mut self, event: ThreadEvent) -> Result<(), DriverError> {
        let mut event = Some(event);
        while let Some(next) = event.take() {
            let mut batch = CommitBatch::default();
            self.apply(next, &mut batch)?;
            event = self.commit_batch(batch).await?;
        }
        Ok(())
    }

    /// Steps through an event, and through what internal hooks and tools that touch nothing answer at once.
    fn apply(&mut self, event: ThreadEvent, batch: &mut CommitBatch) -> Result<(), DriverError> {
        let mut queue = VecDeque::from([(event, std::mem::take(&mut self.redacted))]);
        let mut inline_calls = 0;
        // An event whose secrets were removed follows the record of that.
        let mut held = None;
        loop {
            let event = match held.take() {
                Some(event) => event,
                None => {
                    let Some((event, mut redacted)) = queue.pop_front() else { break };
                    let event = redact_event(event, &self.deps.redactor, &mut redacted);
                    match self.redaction_event(redacted) {
                        Some(redaction) => {
                            held = Some(event);
                            redaction
                        }
                        None => event,
                    }
                }
            };
            if let ThreadEvent::Resumed { limits, .. } = &event {
                let tokens = limits.tokens.filter(|_| self.state.spec.template.price.is_none());
                batch.caps = Some(BudgetCaps { spend: limits.spend, tokens });
                batch.limits = Some(*limits);
            }
            batch.settle.append(&mut self.unsettled);
            batch.settle.extend(self.settlement(&event));
            let at_ms = self.deps.clock.now_ms();
            if let Some(change) = self.clock_change(at_ms) {
                let body = serde_json::to_vec(&change).map_err(std::io::Error::other)?;
                batch.records.push(JournalRecord { at_ms, sequence: self.transcript.next_sequence(), body });
                let _ = step(&mut self.state, at_ms, change);
            }
            let body = serde_json::to_vec(&event).map_err(std::io::Error::other)?;
            batch.records.push(JournalRecord { at_ms, sequence: self.transcript.next_sequence(), body });
            for effect in step(&mut self.state, at_ms, event) {
                match effect {
                    Effect::Emit { event_type, payload } => {
                        let events = &self.state.spec.template.config.events;
                        let criticality = events.criticality(&event_type);
                        self.transcript.push(&event_type, payload, at_ms, criticality)?;
                    }
                    Effect::EmitAs { event_type, payload, criticality } => {
                        self.transcript.push(&event_type, payload, at_ms, criticality)?;
                    }
                    Effect::RecordSpend { call, used, hook } => batch.settle.push(Settlement {
                        call,
                        spend: used.spend,
                        input_tokens: used.input_tokens,
                        output_tokens: used.output_tokens,
                        is_unknown: false,
                        attribution: Attribution { hook: Some(hook), ..self.state.attribution() },
                    }),
                    Effect::SaveState(trigger) => {
                        let triggers = &self.state.spec.template.config.resilience.triggers;
                        self.is_state_dirty |= triggers.is_enabled(trigger);
                    }
                    Effect::RunHook { action, .. } if action.is_hook_tool() => {
                        let result = self.deps.dispatcher.dispatch(
                            &action,
                            &Arc::new(self.tool_context()),
                            &self.in_flight.cancel()?,
                        );
                        queue.push_back((ThreadEvent::HookDone { result }, RedactionTally::default()));
                    }
                    Effect::RunHook { hook, action, timeout_ms } => {
                        batch.effects.push(PendingEffect::Hook { hook, action, timeout_ms });
                    }
                    Effect::CallModel { call, request, cost_bound } => {
                        batch.reserve = Some(ReserveRequest {
                            call,
                            spend: cost_bound.spend,
                            tokens: cost_bound.tokens,
                            can_wait: self.state.can_wait_for_budget(),
                        });
                        batch.effects.push(PendingEffect::Model { request, cost_bound });
                    }
                    Effect::AwaitBudget { call, cost_bound, deadline_ms } => {
                        batch.effects.push(PendingEffect::AwaitBudget { call, cost_bound, deadline_ms });
                    }
                    Effect::Sleep { ms } => batch.effects.push(PendingEffect::Sleep(ms)),
                    Effect::Dispatch { index, action } => {
                        inline_calls += 1;
                        match self.try_inline_result(&action, inline_calls)? {
                            Some((result, redacted)) => {
                                queue.push_back((ThreadEvent::ToolDone { index, result }, redacted));
                            }
                            None => batch.effects.push(PendingEffect::Tool { index, action }),
                        }
                    }
                    Effect::ReadArtifact { index, params } => {
                        batch.effects.push(PendingEffect::Artifact { index, params })
                    }
                    Effect::Spawn { index, action, child } => {
                        batch.effects.push(PendingEffect::Spawn { index, action, child });
                    }
                    Effect::Orchestrate { index, action } => {
                        batch.effects.push(PendingEffect::Orchestrate { index, action });
                    }
                    Effect::RequestApproval(question) => batch.approvals.push(self.approval(question, at_ms)),
                    Effect::Suspend(outcome) | Effect::End(outcome) => batch.outcome = Some(outcome),
                }
            }
        }
        Ok(())
    }

    /// The record of secrets that were removed from an event, if there were any.
    fn redaction_event(&self, redacted: RedactionTally) -> Option<ThreadEvent> {
        let is_recorded = self.state.spec.template.revision >= 2 && redacted.count > 0;
        is_recorded.then(|| ThreadEvent::Redacted {
            count: redacted.count,
            names: redacted.names.into_iter().collect(),
        })
    }

    /// Makes a batch durable, tells of it, begins what it asks for. A refused reservation is the next event.
    async fn commit_batch(&mut self, batch: CommitBatch) -> Result<Option<ThreadEvent>, DriverError> {
        let turn = self.state.cost.turns;
        let is_stop = batch.outcome.is_some();
        let is_turn_over = is_stop || batch.reserve.is_some();
        if is_turn_over {
            self.transcript.seal(turn, is_stop, self.deps.clock.now_ms(), &self.deps.signer);
        }
        let status = match &batch.outcome {
            Some(outcome) => Some(self.stop_change(outcome).await),
            None if self.is_marked_running => None,
            None => Some(StatusChange::to(ThreadStatus::Running)),
        };
        self.is_marked_running = true;
        let id = self.state.spec.instance.thread_id.clone();
        let commit = ThreadCommit {
            records: batch.records,
            settlements: batch.settle,
            reservation: batch.reserve,
            cost: Some(self.state.cost),
            caps: batch.caps,
            approvals: batch.approvals,
            limits: batch.limits,
            status,
            is_last: is_stop,
            transcript_head: self.transcript.head(),
            transcript: self.transcript.unstored_part(),
            ..ThreadCommit::new(id, self.claim, self.deps.clock.now_ms())
        };
        let committed = self.deps.journal.commit(commit).await?;
        if matches!(committed, CommitOutcome::Ended { .. }) {
            self.transcript.discard();
        }
        self.notify_released();
        self.transcript.mark_stored();
        match self.write_due_files(is_stop) {
            // It has ended or stopped, and the journal says so: its files are written again by the next command that reads them.
            Err(_) if is_stop => {}
            written => written?,
        }
        let refused = match committed {
            CommitOutcome::Done => None,
            CommitOutcome::Refused(refusal) => Some(ThreadEvent::BudgetRefused(refusal)),
            // It was ended by force: nothing of this was written.
            CommitOutcome::Ended { status, .. } => return Err(DriverError::EndedElsewhere(status)),
        };
        for start in batch.effects {
            if refused.is_none() || !matches!(start, PendingEffect::Model { .. }) {
                self.start_effect(start)?;
            }
        }
        Ok(refused)
    }

    /// How a thread stands that stops, with what else is recorded of that.
    async fn stop_change(&mut self, outcome: &ThreadOutcome) -> StatusChange {
        let mut change = status_change(outcome);
        let instance = &self.state.spec.instance;
        if let Some(recorder) = self.deps.stop_recorder.as_ref().filter(|_| instance.parent.is_none()) {
            let at_ms = self.deps.clock.now_ms();
            let (name, value) = recorder.record(&instance.thread_id, at_ms, &self.deps.redactor).await;
            if let Some(Value::Object(result)) = &mut change.result {
                result.insert(name.to_owned(), value);
            }
        }
        change
    }

    /// Tells listeners what is durable.
    pub(super) fn notify_released(&mut self) {
        let lines = self.transcript.release();
        if let Some(listener) = &self.deps.listener {
            let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            lines
                .filter_map(|line| serde_json::from_slice(line).ok())
                .for_each(|envelope| listener.event(&envelope));
        }
    }

    fn approval(&self, question: ApprovalRequest, at_ms: u64) -> Approval {
        Approval {
            id: question.id,
            thread: self.state.spec.instance.thread_id.clone(),
            kind: question.kind.as_str().to_owned(),
            prompt: question.prompt,
            reason: question.reason,
            at_ms,
            detail: question.detail,
        }
    }

    /// What an event says of the money that was reserved for a call.
    fn settlement(&mut self, event: &ThreadEvent) -> Option<Settlement> {
        let (spend, usage, is_unknown) = match event {
            ThreadEvent::ModelResponded { response: answer, spend } => (*spend, answer.usage, false),
            ThreadEvent::ModelFailed { error: failure, spend, is_unknown: true, .. } => {
                (*spend, self.state.charged_usage_so_far(failure.partial.as_ref()), true)
            }
            ThreadEvent::ModelFailed { error: failure, spend, .. } => {
                let usage = failure.partial.as_ref().map(|partial| partial.usage);
                (*spend, usage.unwrap_or_default(), false)
            }
            ThreadEvent::CancelRequested { spend, partial, .. } | ThreadEvent::Expired { spend, partial }
                if self.state.is_calling_model() =>
            {
                let is_unknown = *spend > Nanos(0);
                let text = partial.as_deref().unwrap_or_default();
                let usage = is_unknown.then(|| self.state.charged_usage(text));
                (*spend, usage.unwrap_or_default(), is_unknown)
            }
            _ => return None,
        };
        Some(Settlement {
            call: self.state.calls,
            spend,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            is_unknown,
            attribution: self.state.attribution(),
        })
    }

    /// How long until the files of the thread are to be written, if they are behind.
    pub(super) fn next_write_in(&self) -> Option<Duration> {
        let now = self.deps.clock.monotonic_ms();
        let due = |since: u64, interval: u64| {
            Duration::from_millis(interval.saturating_sub(now.saturating_sub(since)))
        };
        let lines =
            self.transcript.has_unwritten().then(|| due(self.written_ms, TRANSCRIPT_WRITE_INTERVAL_MS));
        let state = self.is_state_dirty.then(|| due(self.saved_ms, STATE_SAVE_INTERVAL_MS));
        lines.into_iter().chain(state).min()
    }

    /// Writes those files whose time has come; all of them when the thread stops.
    pub(super) fn write_due_files(&mut self, is_stop: bool) -> Result<(), DriverError> {
        let now = self.deps.clock.monotonic_ms();
        if is_stop || now.saturating_sub(self.written_ms) >= TRANSCRIPT_WRITE_INTERVAL_MS {
            self.transcript.write()?;
            self.written_ms = now;
        }
        if self.is_state_dirty && (is_stop || now.saturating_sub(self.saved_ms) >= STATE_SAVE_INTERVAL_MS) {
            self.transcript.write_state(&self.state, self.deps.clock.now_ms())?;
            self.is_state_dirty = false;
            self.saved_ms = now;
        }
        Ok(())
    }
}

/// What one event led to.
#[derive(Default)]
struct CommitBatch {
    records: Vec<JournalRecord>,
    /// New maxima for the ledger: a person allowed more.
    caps: Option<BudgetCaps>,
    limits: Option<ThreadLimits>,
    settle: Vec<Settlement>,
    reserve: Option<ReserveRequest>,
    effects: Vec<PendingEffect>,
    approvals: Vec<Approval>,
    outcome: Option<ThreadOutcome>,
}

fn status_change(outcome: &ThreadOutcome) -> StatusChange {
    StatusChange {
        to: outcome.status,
        reason: outcome.reason,
        result: serde_json::to_value(outcome).ok(),
        error: outcome.error.clone(),
    }
}

/// The event without secrets: what is written, what the model sees and what is replayed are the same. What it held is
/// added to `tally`.
fn redact_event(event: ThreadEvent, redactor: &Redactor, tally: &mut RedactionTally) -> ThreadEvent {
    match event {
        ThreadEvent::HookDone { mut result } => {
            redactor.redact_value_with(&mut result, tally);
            ThreadEvent::HookDone { result }
        }
        ThreadEvent::ModelResponded { response, spend } => {
            ThreadEvent::ModelResponded { response: redact_response(response, redactor, tally), spend }
        }
        ThreadEvent::ModelFailed { error: mut failure, spend, is_unknown, jitter } => {
            failure.message = redactor.redact_with(failure.message, tally);
            failure.partial = failure.partial.map(|partial| redact_response(partial, redactor, tally));
            ThreadEvent::ModelFailed { error: failure, spend, is_unknown, jitter }
        }
        ThreadEvent::ToolDone { index, mut result } => {
            result.content = redactor.redact_with(result.content, tally);
            ThreadEvent::ToolDone { index, result }
        }
        ThreadEvent::CallbackRequested { index, request, mut action, mut original, mut denied } => {
            redactor.redact_value_with(&mut action, tally);
            for value in original.iter_mut().chain(&mut denied) {
                redactor.redact_value_with(value, tally);
            }
            ThreadEvent::CallbackRequested { index, request, action, original, denied }
        }
        ThreadEvent::Resumed { limits, message, by, mut answers } => {
            for answer in &mut answers {
                answer.message = answer.message.take().map(|text| redactor.redact_with(text, tally));
            }
            let message = message.map(|text| redactor.redact_with(text, tally));
            ThreadEvent::Resumed { limits, message, by, answers }
        }
        other => other,
    }
}

fn redact_response(
    mut response: ModelResponse,
    redactor: &Redactor,
    tally: &mut RedactionTally,
) -> ModelResponse {
    response.text = redactor.redact_with(response.text, tally);
    response.reasoning = redactor.redact_with(response.reasoning, tally);
    response.calls = response.calls.into_iter().map(|call| redact_call(call, redactor, tally)).collect();
    // A provider's own blocks are signed: whole, or not at all. They repeat the words, so their secrets count once.
    let is_secret =
        response.replay.iter_mut().fold(false, |found, block| redactor.redact_value(block) | found);
    if is_secret {
        response.replay.clear();
    }
    response
}

fn redact_call(mut call: ToolCall, redactor: &Redactor, tally: &mut RedactionTally) -> ToolCall {
    redactor.redact_map_with(&mut call.input, tally);
    // One that is a secret is none; it gets another.
    call.id = match redactor.redact_text_with(&call.id, tally) {
        Cow::Borrowed(_) => call.id,
        Cow::Owned(_) => String::new(),
    };
    call.name = redactor.redact_with(call.name, tally);
    call.malformed = call.malformed.map(|raw| redactor.redact_with(raw, tally));
    call
}
