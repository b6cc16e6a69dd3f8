//! Taking an event in: redacted, stepped, journaled, told. Effects begin only afterwards.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rye_model::{Answer, ToolCall};
use serde_json::Value;

use super::begin::Start;
use super::{DriveError, Thread};
use crate::limits::Limits;
use crate::machine::{Effect, Event, Outcome, Question, Refusal, Scarce, Verdict, step};
use crate::money::Nanos;
use crate::redact::Redactor;
use crate::status::Status;
use crate::store::{
    Approval, Commit, Committed, Maxima, Record, Reserve, Resource, Settle, Shortage, StatusChange,
};

/// `state.json` is written at most this often while a thread is at work; one that ends sooner writes it once.
const SAVE_EVERY_MS: u64 = 1000;

/// For how long lines may wait for others before they are in the transcript.
const WRITE_WITHIN_MS: u64 = 250;

impl Thread {
    /// Takes an event in, and all that follows from it without waiting.
    pub(super) async fn take(&mut self, event: Event) -> Result<(), DriveError> {
        let mut event = Some(event);
        while let Some(next) = event.take() {
            let mut batch = Batch::default();
            self.absorb(next, &mut batch)?;
            event = self.write(batch).await?;
        }
        Ok(())
    }

    /// Steps through an event, and through what internal hooks and tools that touch nothing answer at once.
    fn absorb(&mut self, event: Event, batch: &mut Batch) -> Result<(), DriveError> {
        let mut queue = VecDeque::from([event]);
        let mut at_once = 0;
        while let Some(event) = queue.pop_front() {
            let event = redacted(event, &self.doors.redactor);
            if let Event::Resumed { limits, .. } = &event {
                let tokens = limits.tokens.filter(|_| self.state.spec.shared.price.is_none());
                batch.maxima = Some(Maxima { spend: limits.spend, tokens });
                batch.limits = Some(*limits);
            }
            batch.settle.append(&mut self.unsettled);
            batch.settle.extend(self.settlement(&event));
            let at_ms = self.doors.clock.now_ms();
            let body = serde_json::to_vec(&event).map_err(std::io::Error::other)?;
            batch.records.push(Record { at_ms, sequence: self.projection.next_sequence(), body });
            for effect in step(&mut self.state, at_ms, event) {
                match effect {
                    Effect::Emit { event_type, payload } => {
                        let events = &self.state.spec.shared.config.events;
                        self.projection.push(&event_type, payload, at_ms, events.criticality(&event_type));
                    }
                    Effect::Save(trigger) => {
                        let triggers = &self.state.spec.shared.config.resilience.triggers;
                        self.is_unsaved |= triggers.has(trigger);
                    }
                    Effect::RunHook { action, .. } if action.is_internal() => {
                        let result = self.doors.dispatch.dispatch(
                            &action,
                            &Arc::new(self.facts()),
                            &self.outstanding.cancel()?,
                        );
                        queue.push_back(Event::HookDone { result });
                    }
                    Effect::RunHook { hook, action } => batch.starts.push(Start::Hook { hook, action }),
                    Effect::CallModel { call, request, worst } => {
                        batch.reserve = Some(Reserve { call, spend: worst.spend, tokens: worst.tokens });
                        batch.starts.push(Start::Model { request, worst });
                    }
                    Effect::Sleep { ms } => batch.starts.push(Start::Sleep(ms)),
                    Effect::Dispatch { index, action } => {
                        at_once += 1;
                        match self.result_at_once(&action, at_once)? {
                            Some(result) => queue.push_back(Event::ToolDone { index, result }),
                            None => batch.starts.push(Start::Tool { index, action }),
                        }
                    }
                    Effect::ReadArtifact { index, params } => {
                        batch.starts.push(Start::Artifact { index, params })
                    }
                    Effect::Spawn { index, action, child } => {
                        batch.starts.push(Start::Spawn { index, action, child });
                    }
                    Effect::Orchestrate { index, action } => {
                        batch.starts.push(Start::Orchestrate { index, action });
                    }
                    Effect::Ask(question) => batch.asks.push(self.approval(question, at_ms)),
                    Effect::Suspend(outcome) | Effect::End(outcome) => batch.stop = Some(outcome),
                }
            }
        }
        Ok(())
    }

    /// Makes a batch durable, tells of it, begins what it asks for. A refused reservation is the next event.
    async fn write(&mut self, batch: Batch) -> Result<Option<Event>, DriveError> {
        let turn = self.state.cost.turns;
        let is_stop = batch.stop.is_some();
        let is_turn_over = is_stop || batch.reserve.is_some();
        if is_turn_over {
            self.projection.seal(turn, is_stop, self.doors.clock.now_ms(), &self.doors.signer);
        }
        let status = match &batch.stop {
            Some(outcome) => Some(status_change(outcome)),
            None if self.is_marked_running => None,
            None => Some(StatusChange::to(Status::Running)),
        };
        self.is_marked_running = true;
        let id = self.state.spec.own.thread_id.clone();
        let commit = Commit {
            records: batch.records,
            settle: batch.settle,
            reserve: batch.reserve,
            cost: Some(self.state.cost),
            maxima: batch.maxima,
            asks: batch.asks,
            limits: batch.limits,
            status,
            is_last: is_stop,
            transcript_head: self.projection.head(),
            ..Commit::new(id, self.claim, self.doors.clock.now_ms())
        };
        let committed = self.doors.journal.commit(commit).await?;
        self.tell_released();
        self.catch_up(is_stop)?;
        let refusal = match committed {
            Committed::Done => None,
            Committed::Refused(shortage) => Some(Event::Refused(refusal(shortage))),
            // Somebody ended it by force: nothing of this was written.
            Committed::Ended { status, .. } => return Err(DriveError::EndedElsewhere(status)),
        };
        for start in batch.starts {
            if refusal.is_none() || !matches!(start, Start::Model { .. }) {
                self.begin(start)?;
            }
        }
        Ok(refusal)
    }

    /// What is durable is told to whoever listens.
    fn tell_released(&mut self) {
        let lines = self.projection.release();
        if let Some(listener) = &self.doors.listener {
            let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            lines
                .filter_map(|line| serde_json::from_slice(line).ok())
                .for_each(|envelope| listener.event(&envelope));
        }
    }

    fn approval(&self, question: Question, at_ms: u64) -> Approval {
        Approval {
            id: question.id,
            thread: self.state.spec.own.thread_id.clone(),
            kind: question.kind.as_str().to_owned(),
            what: question.what,
            why: question.why,
            at_ms,
            detail: question.detail,
        }
    }

    /// What an event says of the money that was set aside for a call.
    fn settlement(&mut self, event: &Event) -> Option<Settle> {
        let (spend, usage, is_unknown) = match event {
            Event::Answered { answer, spend } => (*spend, answer.usage, false),
            Event::Failed { failure, spend, is_unknown, .. } => (
                *spend,
                failure.partial.as_ref().map(|partial| partial.usage).unwrap_or_default(),
                *is_unknown,
            ),
            Event::CancelRequested { spend, .. } | Event::Expired { spend } if self.state.is_calling() => {
                (*spend, rye_model::Usage::default(), *spend > Nanos(0))
            }
            _ => return None,
        };
        Some(Settle {
            call: self.state.calls,
            spend,
            input_tokens: usage.input_tokens,
            output_tokens: usage.output_tokens,
            is_unknown,
            attribution: self.state.spec.attribution(),
        })
    }

    /// How long until the files of the thread are to be written, if they are behind.
    pub(super) fn files_due_in(&self) -> Option<Duration> {
        let now = self.doors.clock.now_ms();
        let due =
            |since: u64, most: u64| Duration::from_millis(most.saturating_sub(now.saturating_sub(since)));
        let lines = self.projection.is_behind().then(|| due(self.written_ms, WRITE_WITHIN_MS));
        let state = self.is_unsaved.then(|| due(self.saved_ms, SAVE_EVERY_MS));
        lines.into_iter().chain(state).min()
    }

    /// Writes those files whose time has come; all of them when the thread stops.
    pub(super) fn catch_up(&mut self, is_stop: bool) -> Result<(), DriveError> {
        let now = self.doors.clock.now_ms();
        if is_stop || now.saturating_sub(self.written_ms) >= WRITE_WITHIN_MS {
            self.projection.write()?;
            self.written_ms = now;
        }
        if self.is_unsaved && (is_stop || now.saturating_sub(self.saved_ms) >= SAVE_EVERY_MS) {
            self.projection.write_state(&self.state, now)?;
            self.is_unsaved = false;
            self.saved_ms = now;
        }
        Ok(())
    }
}

/// What one event led to.
#[derive(Default)]
struct Batch {
    records: Vec<Record>,
    /// New maxima for the ledger: a person allowed more.
    maxima: Option<Maxima>,
    limits: Option<Limits>,
    settle: Vec<Settle>,
    reserve: Option<Reserve>,
    starts: Vec<Start>,
    asks: Vec<Approval>,
    stop: Option<Outcome>,
}

fn refusal(shortage: Shortage) -> Refusal {
    let what = match shortage.what {
        Resource::Spend => Scarce::Spend,
        Resource::Tokens => Scarce::Tokens,
    };
    let Shortage { by, most, used, reserved, asked, .. } = shortage;
    Refusal { by, what, most, used, reserved, asked }
}

fn status_change(outcome: &Outcome) -> StatusChange {
    StatusChange {
        to: outcome.status,
        reason: outcome.reason,
        result: serde_json::to_value(outcome).ok(),
        error: outcome.error.clone(),
    }
}

/// The event without secrets: what is written, what the model sees and what is replayed are the same.
fn redacted(event: Event, redactor: &Redactor) -> Event {
    let text = |text: String| redactor.cleaned(text);
    let value = |mut value: Value| {
        redactor.clean_value(&mut value);
        value
    };
    let answer = |mut answer: Answer| {
        answer.text = text(answer.text);
        answer.reasoning = text(answer.reasoning);
        answer.calls = answer.calls.into_iter().map(|call| redacted_call(call, redactor)).collect();
        // A provider's own blocks are signed: whole, or not at all.
        let is_secret =
            answer.replay.iter_mut().fold(false, |found, block| redactor.clean_value(block) | found);
        if is_secret {
            answer.replay.clear();
        }
        answer
    };
    match event {
        Event::HookDone { result } => Event::HookDone { result: value(result) },
        Event::Answered { answer: given, spend } => Event::Answered { answer: answer(given), spend },
        Event::Failed { mut failure, spend, is_unknown, jitter } => {
            failure.message = text(failure.message);
            failure.partial = failure.partial.map(answer);
            Event::Failed { failure, spend, is_unknown, jitter }
        }
        Event::ToolDone { index, mut result } => {
            result.content = text(result.content);
            Event::ToolDone { index, result }
        }
        Event::ToolAsked { index, request, action, denied } => {
            Event::ToolAsked { index, request, action: value(action), denied: denied.map(value) }
        }
        Event::Resumed { limits, message, by, answers } => {
            let clean = |verdict: Verdict| Verdict { message: verdict.message.map(text), ..verdict };
            let answers = answers.into_iter().map(clean).collect();
            Event::Resumed { limits, message: message.map(text), by, answers }
        }
        other => other,
    }
}

fn redacted_call(mut call: ToolCall, redactor: &Redactor) -> ToolCall {
    redactor.clean_map(&mut call.input);
    // One that is a secret is none; it gets another.
    call.id =
        if matches!(redactor.redact_text(&call.id), Cow::Borrowed(_)) { call.id } else { String::new() };
    call.name = redactor.cleaned(call.name);
    call.malformed = call.malformed.map(|raw| redactor.cleaned(raw));
    call
}
