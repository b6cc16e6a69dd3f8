//! Continuing with a thread that stopped: suspended, or left behind by a process that died.
//!
//! The journal is read back through the machine; what was outstanding when the process died is charged or told as
//! unknown; nothing that was recorded happens again. A thread whose record does not verify is never resumed.

use std::sync::Arc;

use rye_engine::{Code, Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{StartedThread, ThreadRuntime, Threads};
use crate::driver::CancelSignal;
use crate::limits::{LIMIT_EXAMPLES, ThreadLimits};
use crate::machine::{ApprovalAnswer, ApprovalKind, ThreadEvent, ThreadState};
use crate::money::Nanos;
use crate::status::ThreadStatus;
use crate::store::{ApprovalDecision, Claim, ClaimOutcome, ClaimPolicy, Owner, SHARED_LEASE_MS, ThreadRow};
use crate::thread_id::ThreadId;
use crate::views::successor_command;

/// What happened to a thread, each with its time.
pub(super) type EventHistory = Vec<(u64, ThreadEvent)>;

/// What a person changes when they let a thread continue.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeOptions {
    /// Limits to set (`turns=30`) or to raise (`spend=+1`).
    pub limits: Map<String, Value>,
    /// Something to tell the model.
    pub message: Option<String>,
    /// Who it is.
    pub by: String,
    /// What a thread that lets another continue may itself use: no more is given.
    pub bounds: Option<ThreadLimits>,
    /// Whether a program resumes it whose user was not asked: it answers no question, not even that for more.
    pub is_unattended: bool,
}

impl Threads {
    /// Continues with a thread in this process.
    ///
    /// # Errors
    /// When it has ended, another process has it, its record does not verify, or the changes do not fit.
    pub async fn resume(
        &self,
        id: &ThreadId,
        options: &ResumeOptions,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        self.runtime.resume(id, options, signal).await
    }
}

impl ThreadRuntime {
    pub(super) async fn resume(
        self: &Arc<Self>,
        id: &ThreadId,
        options: &ResumeOptions,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        let row = self
            .store
            .verified_thread(id)
            .await?
            .ok_or_else(|| Error::from(crate::store::ThreadStoreError::NoThread(id.clone())))?;
        if row.status.is_terminal() {
            return Err(ended_error(&row));
        }
        // Before anything is written.
        self.store.ensure_current().await?;
        self.refuse_submitted(id).await?;
        let claim = self.claim_thread(id).await?;
        self.control.clear_cancel_request(id).await;
        self.resume_claimed(id, claim, options, signal).await
    }

    /// Whether a thread belongs to workers, and this process is none.
    pub(super) async fn is_left_to_workers(&self, id: &ThreadId) -> Result<bool> {
        Ok(self.setup.worker.is_none() && self.store.submission(id).await?.is_some())
    }

    async fn refuse_submitted(&self, id: &ThreadId) -> Result<()> {
        if !self.is_left_to_workers(id).await? {
            return Ok(());
        }
        // It may have been answered just now.
        self.hand_over(id).await?;
        Err(Error::new(Code::ThreadHeld, format!("{id} was submitted: workers run it"))
            .detail("thread_id", id.as_str())
            .hint(format!("have a worker resume it: rye thread resume {id}"))
            .hint(format!("watch it: rye thread tail {id}")))
    }

    /// Claims a thread that no process runs.
    pub(super) async fn claim_thread(&self, id: &ThreadId) -> Result<Claim> {
        let now = self.setup.clock.now_ms();
        match self.store.claim(id, &self.owner, self.claim_policy(), now).await? {
            ClaimOutcome::Claimed { claim, .. } => Ok(claim),
            ClaimOutcome::Held { by } => Err(held_error(id, &by)),
        }
    }

    /// Whom threads are taken from: those who are gone, or have been silent for too long.
    pub(super) fn claim_policy(&self) -> ClaimPolicy {
        let lease_ms = match self.is_shared {
            true => SHARED_LEASE_MS,
            false => self.orphans.stale_threshold_minutes.saturating_mul(60_000),
        };
        ClaimPolicy::Expired { now_ms: self.setup.clock.now_ms(), lease_ms }
    }

    /// Lets a thread that is claimed here continue.
    pub(super) async fn resume_claimed(
        self: &Arc<Self>,
        id: &ThreadId,
        claim: Claim,
        options: &ResumeOptions,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        match self.take_over(id, claim, options, signal).await {
            Ok(started) => {
                self.running.awaiting_approval().remove(id);
                Ok(started)
            }
            Err(error) => {
                // Nothing was begun: let others try.
                let _ = self.store.release_claim(id, claim).await;
                Err(error)
            }
        }
    }

    async fn take_over(
        self: &Arc<Self>,
        id: &ThreadId,
        claim: Claim,
        options: &ResumeOptions,
        signal: CancelSignal,
    ) -> Result<StartedThread> {
        self.store.ensure_current().await?;
        let thread = id.clone();
        let resume_point = self.records.run_blocking(move |records| records.resume_point(&thread)).await?;
        let state = &resume_point.state;
        let first = match state.status() {
            ThreadStatus::Suspended => {
                let given = self.collect_answers(id, state, options).await?;
                let limits = apply_limit_changes(&given.limits, &options.limits)?;
                let answered_by = given.answers.last().map(|answer| answer.by.clone()).unwrap_or_default();
                match given.end {
                    // The command that was to end it was cut short.
                    Some(reason) => {
                        let (spend, tokens) =
                            (resume_point.interrupted.spend(), resume_point.interrupted.tokens());
                        ThreadEvent::Terminated { status: ThreadStatus::Cancelled, reason, spend, tokens }
                    }
                    None => ThreadEvent::Resumed {
                        limits: options.bounds.map_or(limits, |bounds| limits.clamp_to_parent(&bounds)),
                        message: options.message.clone(),
                        by: if options.by.is_empty() { answered_by } else { options.by.clone() },
                        answers: given.answers,
                    },
                }
            }
            _ => ThreadEvent::Interrupted {
                spend: resume_point.interrupted.spend(),
                spend_at_most: resume_point.interrupted.reserved,
                tokens: resume_point.interrupted.tokens(),
                repeatable: self.preparer.repeatable_calls(state)?,
            },
        };
        let providers = self.preparer.reopen_providers(&state.spec)?;
        Ok(self.spawn_driver(resume_point, claim, providers, signal, first, Vec::new()))
    }

    /// What people said to what a suspended thread asks, as far as the store vouches for it, and the limits they allowed.
    async fn collect_answers(
        &self,
        id: &ThreadId,
        state: &ThreadState,
        options: &ResumeOptions,
    ) -> Result<GivenAnswers> {
        let mut limits = state.limits;
        let (mut answers, mut end) = (Vec::new(), None);
        for request in state.pending_approvals() {
            let record =
                self.store.approval(&request.id).await?.filter(|record| record.approval.thread == *id);
            let is_answerable = record.is_some();
            let answer = match (record.and_then(|record| record.answer), request.kind) {
                (Some(answer), _) => answer,
                // The person who resumes it, with more or without, has answered.
                (None, ApprovalKind::Limit) => {
                    if options.is_unattended {
                        return Err(approval_needed_error(id, &request.prompt));
                    }
                    // An answer that cannot be used is not recorded: it would stand in the way of every later one.
                    apply_limit_changes(&limits, &options.limits)?;
                    let answer = ApprovalDecision {
                        approved: true,
                        message: None,
                        changes: Value::Object(options.limits.clone()),
                        at_ms: self.setup.clock.now_ms(),
                        by: options.by.clone(),
                        always: None,
                    };
                    // A question that was tampered with is not answered; nothing depends on it.
                    let _ = self.store.answer_approval(&request.id, &answer).await;
                    ApprovalDecision { changes: Value::Null, ..answer }
                }
                (None, ApprovalKind::Tool | ApprovalKind::Approval) if !is_answerable => {
                    return Err(changed_question_error(id));
                }
                (None, ApprovalKind::Tool | ApprovalKind::Approval) => {
                    return Err(approval_needed_error(id, &request.prompt));
                }
            };
            if let (true, Value::Object(allowed)) = (answer.approved, &answer.changes) {
                limits = apply_limit_changes(&limits, allowed)?;
            }
            if !answer.approved && answer.changes.get(END_THREAD) == Some(&Value::Bool(true)) {
                end = Some(denial_reason(&answer.by, answer.message.as_deref()));
            }
            let request = request.id.clone();
            let ApprovalDecision { approved, message, by, always, .. } = answer;
            answers.push(ApprovalAnswer { request_id: request, approved, message, by, always });
        }
        Ok(GivenAnswers { answers, limits, end })
    }
}

/// What people answered to what a suspended thread asked.
struct GivenAnswers {
    answers: Vec<ApprovalAnswer>,
    /// Its limits, with what they allowed.
    limits: ThreadLimits,
    /// Why it is to end, if one of them said so.
    end: Option<String>,
}

/// What a no says in its changes where the thread is to end with it.
pub const END_THREAD: &str = "end_thread";

/// Why a thread ended that a person denied something.
#[must_use]
pub fn denial_reason(by: &str, message: Option<&str>) -> String {
    match message {
        Some(message) => format!("denied by {by}: {}", rye_item::text::one_line(message)),
        None => format!("denied by {by}"),
    }
}

/// It has ended, and does not continue itself.
pub(super) fn ended_error(row: &ThreadRow) -> Error {
    let ThreadRow { id, status, directive, provider, .. } = row;
    let error = Error::new(Code::ThreadEnded, format!("{id} has ended: {status}"))
        .detail("thread_id", id.as_str())
        .hint(format!("see what it did: rye thread show {id}"));
    match successor_command(id, directive, provider) {
        Some(command) => error.hint(format!("continue from it in a new thread: {command}")),
        None => error,
    }
}

/// Only a person lets it continue.
pub(super) fn approval_needed_error(id: &ThreadId, prompt: &str) -> Error {
    let prompt = rye_item::text::one_line(prompt);
    Error::new(Code::PermissionDenied, format!("{id} waits for a person: {prompt}"))
        .detail("thread_id", id.as_str())
        .hint(format!("allow it: rye thread approve {id}"))
        .hint(format!("refuse it: rye thread deny {id}"))
}

/// It waits for an answer to a question that is no longer what it asked.
fn changed_question_error(id: &ThreadId) -> Error {
    let message = format!("the question of {id} cannot be answered: its row in the registry was changed");
    Error::new(Code::ThreadForged, message)
        .detail("thread_id", id.as_str())
        .hint(format!("end the thread: rye thread cancel {id}"))
        .hint(format!("see what it did: rye thread show {id}"))
}

/// Another process has it.
pub(super) fn held_error(id: &ThreadId, owner: &Owner) -> Error {
    Error::new(Code::ThreadHeld, format!("{id} is run by process {} on {}", owner.pid, owner.host))
        .detail("thread_id", id.as_str())
        .detail("pid", owner.pid)
        .hint(format!("watch it: rye thread tail {id}"))
        .hint(format!("end it: rye thread cancel {id}"))
}

/// Limits with a person's changes: `30` sets, `+5` raises what there is.
pub(super) fn apply_limit_changes(
    limits: &ThreadLimits,
    changes: &Map<String, Value>,
) -> Result<ThreadLimits> {
    let invalid = |message: String| Error::new(Code::InvalidArgument, message).hint(LIMIT_EXAMPLES);
    let mut resolved = Map::new();
    for (name, value) in changes {
        let Some(more) = value.as_str().and_then(|text| text.strip_prefix('+')) else {
            resolved.insert(name.clone(), value.clone());
            continue;
        };
        let current = limits.to_value().get(name).cloned();
        let raised = match name.as_str() {
            "spend" => {
                let more = Nanos::from_dollars(more)
                    .ok_or_else(|| invalid(format!("`+{more}` is not an amount")))?;
                limits.spend.map(|spend| Value::from(spend.plus(more).to_decimal()))
            }
            _ => {
                let more: u64 =
                    more.parse().map_err(|_| invalid(format!("`+{more}` is not a whole number")))?;
                current
                    .as_ref()
                    .and_then(Value::as_u64)
                    .map(|current| Value::from(current.saturating_add(more)))
            }
        };
        // What has no limit needs none raised.
        if let Some(raised) = raised {
            resolved.insert(name.clone(), raised);
        }
    }
    limits.with_overrides(&resolved).map_err(|error| invalid(error.to_string()))
}
