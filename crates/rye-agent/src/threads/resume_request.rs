//! Resuming a suspended thread that workers run: a person asks for it, signed, and any worker that fits does it.

use rye_engine::{Code, Error, Result};
use serde_json::{Map, Value};

use super::resume::{ResumeOptions, apply_limit_changes, approval_needed_error};
use super::{ThreadRuntime, Threads};
use crate::machine::{ApprovalKind, ThreadState};
use crate::status::{SuspendReason, ThreadStatus};
use crate::store::{ApprovalDecision, RESUME_KIND, ThreadRow, resume_request_id};
use crate::thread_id::ThreadId;

impl Threads {
    /// Asks workers to resume a suspended thread of theirs; whether it is one of theirs. The changes are signed with the
    /// user's key, and count where the worker's own settings list it.
    ///
    /// # Errors
    /// When it is not suspended, the changes do not fit, or it waits for another answer.
    pub async fn request_resume(&self, id: &ThreadId, options: &ResumeOptions) -> Result<bool> {
        if !self.runtime.is_left_to_workers(id).await? {
            return Ok(false);
        }
        self.runtime.request_resume(id, options).await?;
        self.runtime.hand_over(id).await?;
        Ok(true)
    }
}

impl ThreadRuntime {
    async fn request_resume(&self, id: &ThreadId, options: &ResumeOptions) -> Result<()> {
        let row = self.store.verified_thread(id).await?;
        let row = row.ok_or_else(|| Error::from(crate::store::ThreadStoreError::NoThread(id.clone())))?;
        if row.status.is_terminal() {
            return Err(super::resume::ended_error(&row));
        }
        if row.status != ThreadStatus::Suspended {
            // It may wait only because it was not handed over.
            self.hand_over(id).await?;
            return Err(Error::new(Code::ThreadHeld, format!("{id} was submitted: workers run it"))
                .detail("thread_id", id.as_str())
                .hint(format!("watch it: rye thread tail {id}"))
                .hint(format!("end it: rye thread cancel {id}")));
        }
        let thread = id.clone();
        let point = self.records.run_blocking(move |records| records.resume_point(&thread)).await?;
        let question = self.check_request(id, &point.state, options).await?;
        // More of a limit that was asked for is the answer to that question.
        let changes = Value::Object(options.limits.clone());
        let decision = |changes: Value, message: Option<String>| ApprovalDecision {
            approved: true,
            message,
            changes,
            at_ms: self.setup.clock.now_ms(),
            by: options.by.clone(),
            always: None,
        };
        let requested = if question.is_some() { Value::Null } else { changes.clone() };
        self.store.request_resume(id, &decision(requested, options.message.clone())).await?;
        if let Some(question) = question {
            self.store.answer_approval(&question, &decision(changes, None)).await?;
        }
        Ok(())
    }

    /// Refuses changes that do not fit; gives the question about a limit that they answer.
    async fn check_request(
        &self,
        id: &ThreadId,
        state: &ThreadState,
        options: &ResumeOptions,
    ) -> Result<Option<String>> {
        let (mut limits, mut question) = (state.limits, None);
        for request in state.pending_approvals() {
            let record = self.store.approval(&request.id).await?;
            let record = record.filter(|record| record.approval.thread == *id);
            match (record.and_then(|record| record.answer), request.kind) {
                (Some(answer), _) => {
                    if let (true, Value::Object(allowed)) = (answer.approved, &answer.changes) {
                        limits = apply_limit_changes(&limits, allowed)?;
                    }
                }
                (None, ApprovalKind::Limit) => question = Some(request.id.clone()),
                (None, ApprovalKind::Tool | ApprovalKind::Approval) => {
                    return Err(approval_needed_error(id, &request.prompt));
                }
            }
        }
        apply_limit_changes(&limits, &options.limits)?;
        Ok(question)
    }

    /// What a person who asked to resume a suspended thread changes. Without a request that a listed key signed, only answers
    /// to its questions let it continue.
    ///
    /// # Errors
    /// When neither does.
    pub(super) async fn requested_options(&self, row: &ThreadRow) -> Result<ResumeOptions> {
        let request = self.store.approval(&resume_request_id(&row.id, row.records)).await?;
        let request = request
            .filter(|request| request.approval.kind == RESUME_KIND && request.approval.thread == row.id);
        let decision = request.and_then(|request| request.answer).filter(|decision| decision.approved);
        let unattended = ResumeOptions { is_unattended: true, ..ResumeOptions::default() };
        let Some(decision) = decision else {
            if row.reason.is_some_and(SuspendReason::is_answerable) {
                return Ok(unattended);
            }
            let message =
                format!("{} cannot be resumed: the request is not signed by a key in `users`", row.id);
            return Err(Error::new(Code::SubmissionRefused, message)
                .hint("list the key of the person in threads.stores.NAME.users on the worker")
                .hint(format!("ask again: rye thread resume {}", row.id)));
        };
        let limits = match decision.changes {
            Value::Object(limits) => limits,
            _ => Map::new(),
        };
        Ok(ResumeOptions { limits, message: decision.message, by: decision.by, ..unattended })
    }
}
