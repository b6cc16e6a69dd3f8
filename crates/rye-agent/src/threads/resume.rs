//! Going on with a thread that stopped: suspended, or left behind by a process that died.
//!
//! The journal is read back through the machine; what was outstanding when the process died is charged or told as
//! unknown; nothing that was recorded happens again. A thread whose record does not verify is never resumed.

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::{Map, Value};

use super::{Inner, Started, Threads};
use crate::driver::{self, Signal, Standing};
use crate::journal::{JournalError, JournalHeader};
use crate::limits::Limits;
use crate::machine::{Event, Kind, State, Verdict};
use crate::models::{self, Chosen};
use crate::money::Nanos;
use crate::spec::Spec;
use crate::status::Status;
use crate::store::{Answer, Attribution, Claim, Claimed, Owner, Record, Settle, Taking};
use crate::thread_id::ThreadId;

/// What happened to a thread, each with its time.
pub(super) type History = Vec<(u64, Event)>;

/// What a person changes when they let a thread go on.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Limits to set (`turns=30`) or to raise (`spend=+1`).
    pub limits: Map<String, Value>,
    /// Something to tell the model.
    pub message: Option<String>,
    /// Who it is.
    pub by: String,
    /// What a thread that lets another go on may itself use: no more is given.
    pub within: Option<Limits>,
}

impl Threads {
    /// Goes on with a thread in this process.
    ///
    /// # Errors
    /// When it has ended, another process has it, its record does not verify, or the changes do not fit.
    pub async fn resume(&self, id: &ThreadId, changes: &Changes, signal: Signal) -> Result<Started> {
        self.inner.resume(id, changes, signal).await
    }
}

impl Inner {
    pub(super) async fn resume(
        self: &Arc<Self>,
        id: &ThreadId,
        changes: &Changes,
        signal: Signal,
    ) -> Result<Started> {
        let row = self
            .store
            .sealed_thread(id)?
            .ok_or_else(|| Error::from(crate::store::StoreError::NoThread(id.clone())))?;
        if row.status.is_terminal() {
            return Err(Error::new(Code::ThreadEnded, format!("{id} has ended: {}", row.status))
                .detail("thread_id", id.as_str())
                .hint(format!("see what it did: rye thread show {id}"))
                .hint(format!("go on from it in a new thread: rye run {} --continue {id}", row.directive)));
        }
        // Before anything is written.
        self.store.refuse_older()?;
        let claim = self.claimed(id)?;
        self.forget_wish(id);
        self.go_on_from(id, claim, changes, signal).await
    }

    /// Takes a thread that nobody runs.
    pub(super) fn claimed(&self, id: &ThreadId) -> Result<Claim> {
        match self.store.claim(id, &self.owner, self.taking(), self.setup.clock.now_ms())? {
            Claimed::Done { claim, .. } => Ok(claim),
            Claimed::Held { by } => Err(held(id, &by)),
        }
    }

    /// Whom threads are taken from: those who are gone, or have been silent for too long.
    pub(super) fn taking(&self) -> Taking {
        let stale_ms = self.orphans.stale_threshold_minutes.saturating_mul(60_000);
        Taking::Silent { since_ms: self.setup.clock.now_ms().saturating_sub(stale_ms) }
    }

    /// Lets a thread that is claimed here go on.
    pub(super) async fn go_on_from(
        self: &Arc<Self>,
        id: &ThreadId,
        claim: Claim,
        changes: &Changes,
        signal: Signal,
    ) -> Result<Started> {
        match self.taken_over(id, claim, changes, signal).await {
            Ok(started) => {
                self.asking().remove(id);
                Ok(started)
            }
            Err(error) => {
                // Nothing was begun: let others try.
                let _ = self.store.release_claim(id, claim);
                Err(error)
            }
        }
    }

    async fn taken_over(
        self: &Arc<Self>,
        id: &ThreadId,
        claim: Claim,
        changes: &Changes,
        signal: Signal,
    ) -> Result<Started> {
        self.store.refuse_older()?;
        let standing = self.standing(id)?;
        let state = &standing.state;
        let spend = standing.unsettled.iter().fold(Nanos(0), |sum, settled| sum.plus(settled.spend));
        let first = match state.status() {
            Status::Suspended => {
                let (answers, allowed) = self.heard(id, state, changes)?;
                let limits = changed(&allowed, &changes.limits)?;
                let said = answers.last().map(|verdict| verdict.by.clone()).unwrap_or_default();
                Event::Resumed {
                    limits: changes.within.map_or(limits, |bounds| limits.capped_by(&bounds)),
                    message: changes.message.clone(),
                    by: if changes.by.is_empty() { said } else { changes.by.clone() },
                    answers,
                }
            }
            _ => Event::Interrupted { spend, repeatable: self.repeatable(state)? },
        };
        let chosen = self.chosen_again(&state.spec)?;
        let provider = self.provider(&chosen, &state.spec)?;
        Ok(self.run(standing, claim, provider, signal, first, Vec::new()))
    }

    /// What people said to what a suspended thread asks, as far as the store vouches for it, and the limits they allowed.
    fn heard(&self, id: &ThreadId, state: &State, changes: &Changes) -> Result<(Vec<Verdict>, Limits)> {
        let mut limits = state.limits;
        let mut answers = Vec::new();
        for question in state.questions() {
            let asked = self.store.approval(&question.id)?.filter(|asked| asked.question.thread == *id);
            let answer = match (asked.and_then(|asked| asked.answer), question.kind) {
                (Some(answer), _) => answer,
                // Whoever lets it go on with more, or without, has answered.
                (None, Kind::Limit) => {
                    let answer = Answer {
                        approved: true,
                        message: None,
                        changes: Value::Object(changes.limits.clone()),
                        at_ms: self.setup.clock.now_ms(),
                        by: changes.by.clone(),
                    };
                    // A question that was tampered with is not answered; nothing depends on it.
                    let _ = self.store.answer(&question.id, &answer);
                    Answer { changes: Value::Null, ..answer }
                }
                (None, Kind::Tool | Kind::Approval) => return Err(waits_for_person(id, &question.what)),
            };
            if let (true, Value::Object(allowed)) = (answer.approved, &answer.changes) {
                limits = changed(&limits, allowed)?;
            }
            let question = question.id.clone();
            let (approved, message, by) = (answer.approved, answer.message, answer.by);
            answers.push(Verdict { question, approved, message, by });
        }
        Ok((answers, limits))
    }

    /// What a thread is, and everything that happened to it.
    pub(super) fn history(&self, id: &ThreadId) -> Result<(Arc<Spec>, History)> {
        let (spec, records) = self.recorded(id)?;
        let read = |record: &Record| Ok((record.at_ms, serde_json::from_slice(&record.body)?));
        let events: std::result::Result<_, serde_json::Error> = records.iter().map(read).collect();
        Ok((spec, events.map_err(|error| damaged(id, &format!("its journal cannot be read: {error}")))?))
    }

    /// What a thread is, and what happened to it.
    pub(super) fn recorded(&self, id: &ThreadId) -> Result<(Arc<Spec>, Vec<Record>)> {
        let mut records = self.store.journal(id)?;
        if records.is_empty() {
            return Err(damaged(id, "its journal is empty"));
        }
        let first = records.remove(0);
        let header = JournalHeader::parse(&first.body).map_err(|error| unreadable(id, &error))?;
        Ok((Arc::new(Spec { own: header.own, shared: self.shared(&header.template)? }), records))
    }

    /// The thread as its journal tells it. Whoever runs it is not disturbed.
    pub(super) fn state_of(&self, id: &ThreadId) -> Result<State> {
        let (spec, records) = self.recorded(id)?;
        driver::replay(spec, &records)
            .map_err(|error| damaged(id, &format!("its journal cannot be read: {error}")))
    }

    /// The same for a thread that is claimed here, its transcript brought up to where the journal ends.
    fn standing(&self, id: &ThreadId) -> Result<Standing> {
        let (spec, records) = self.recorded(id)?;
        let (state, projection) = driver::replay_with_transcript(spec, &records, &self.setup.folder)
            .map_err(|error| damaged(id, &format!("its journal cannot be read: {error}")))?;
        let shared = &state.spec.shared;
        let mut unsettled = self.unknown_calls(id, &shared.directive, &shared.model)?;
        unsettled.iter_mut().for_each(|settle| settle.attribution = state.spec.attribution());
        Ok(Standing { state, projection, unsettled })
    }

    /// Calls in flight, as charges of what was set aside for them.
    pub(super) fn unknown_calls(&self, id: &ThreadId, directive: &str, model: &str) -> Result<Vec<Settle>> {
        let open = self.store.unsettled(id)?;
        let settled = open.iter().map(|reservation| Settle {
            call: reservation.call,
            spend: reservation.spend,
            input_tokens: reservation.tokens,
            output_tokens: 0,
            is_unknown: true,
            attribution: Attribution {
                item: directive.to_owned(),
                model: model.to_owned(),
                tool: None,
                hook: None,
            },
        });
        Ok(settled.collect())
    }

    /// The provider and model the thread was started with; its price and window stay as they were.
    pub(super) fn chosen_again(&self, spec: &Spec) -> Result<Chosen> {
        let engine = (self.setup.engine)()?;
        let wanted = models::Wanted {
            model: Some(&spec.shared.model),
            provider: Some(&spec.shared.provider),
            ..models::Wanted::default()
        };
        models::Providers::find(&engine.workspace).choose(
            &wanted,
            &spec.shared.config.agent,
            &self.setup.environment,
        )
    }

    /// Tool calls in flight whose tools say that doing them twice does no harm.
    fn repeatable(&self, state: &State) -> Result<Vec<usize>> {
        let engine = (self.setup.engine)()?;
        let running = state.running_tools().into_iter();
        let is_harmless = |item: &str| {
            let id = item.strip_prefix("execute tool:").and_then(|id| ItemId::new(id).ok());
            id.is_some_and(|id| engine.is_idempotent(&ItemRef::new(ItemType::Tool, id)))
        };
        Ok(running.filter(|(_, item)| is_harmless(item)).map(|(index, _)| index).collect())
    }
}

fn damaged(id: &ThreadId, message: &str) -> Error {
    Error::new(Code::StoreDamaged, format!("{id}: {message}"))
}

/// A journal in a format of another release, or without a header.
fn unreadable(id: &ThreadId, error: &JournalError) -> Error {
    match error {
        JournalError::UnknownFormat { .. } => Error::new(Code::StoreNewer, format!("{id}: {error}"))
            .detail("thread_id", id.as_str())
            .hint("resume it with the rye that wrote it, or a newer one"),
        JournalError::Invalid(_) => damaged(id, &error.to_string()),
    }
}

/// Only a person lets it go on.
fn waits_for_person(id: &ThreadId, what: &str) -> Error {
    let what = rye_item::text::one_line(what);
    Error::new(Code::PermissionDenied, format!("{id} waits for a person: {what}"))
        .detail("thread_id", id.as_str())
        .hint(format!("allow it: rye thread approve {id}"))
        .hint(format!("refuse it: rye thread deny {id}"))
}

/// Another process has it.
pub(super) fn held(id: &ThreadId, by: &Owner) -> Error {
    Error::new(Code::ThreadHeld, format!("{id} is run by process {} on {}", by.pid, by.host))
        .detail("thread_id", id.as_str())
        .detail("pid", by.pid)
        .hint(format!("watch it: rye thread tail {id}"))
        .hint(format!("end it: rye thread cancel {id}"))
}

/// Limits with a person's changes: `30` sets, `+5` raises what there is.
fn changed(limits: &Limits, changes: &Map<String, Value>) -> Result<Limits> {
    let wrong = |message: String| Error::new(Code::InvalidArgument, message);
    let mut plain = Map::new();
    for (name, value) in changes {
        let Some(more) = value.as_str().and_then(|text| text.strip_prefix('+')) else {
            plain.insert(name.clone(), value.clone());
            continue;
        };
        let now = limits.to_value().get(name).cloned();
        let raised = match name.as_str() {
            "spend" => {
                let more =
                    Nanos::from_dollars(more).ok_or_else(|| wrong(format!("`+{more}` is no amount")))?;
                limits.spend.map(|spend| Value::from(spend.plus(more).plain_dollars()))
            }
            _ => {
                let more: u64 = more.parse().map_err(|_| wrong(format!("`+{more}` is no whole number")))?;
                now.as_ref().and_then(Value::as_u64).map(|now| Value::from(now.saturating_add(more)))
            }
        };
        // What has no limit needs none raised.
        if let Some(raised) = raised {
            plain.insert(name.clone(), raised);
        }
    }
    limits.with(&plain).map_err(|error| wrong(error.to_string()))
}
