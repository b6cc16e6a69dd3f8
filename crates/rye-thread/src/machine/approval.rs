//! What a person is asked, and where a thread that stopped continues.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::SaveTrigger;
use super::ThreadState;
use super::call_hooks::CallHookRun;
use super::effect::{Effect, ThreadOutcome};
use super::hooks::HookRun;
use super::tools::ToolRun;
use crate::action::Action;
use crate::core_event::{Always, CoreEvent, Nullable};
use crate::limits::LimitReached;

/// A question to a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// Its name.
    pub id: String,
    /// What it is about.
    pub kind: ApprovalKind,
    /// What is asked for.
    #[serde(rename = "what")]
    pub prompt: String,
    /// Why.
    #[serde(rename = "why")]
    pub reason: String,
    /// Whether a no ends the thread; else the model gets the answer.
    #[serde(rename = "ends_on_no")]
    pub ends_on_deny: bool,
    /// Further facts.
    pub detail: Value,
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalKind {
    /// More of a limit.
    Limit,
    /// A call that needs a person's word.
    Tool,
    /// Whatever the model or a hook wants to know.
    Approval,
}

impl ApprovalKind {
    /// The word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Tool => "tool",
            Self::Approval => "approval",
        }
    }
}

/// What a yes to a call covers beyond the call itself, in the thread that asked and nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalScope {
    /// The same action on the same item, whatever the arguments.
    Item,
    /// The same action on the same item with the same arguments.
    Arguments,
}

impl ApprovalScope {
    /// Whether a yes to `approved` covers `action`. Options, such as a child's limits, must be the same for both scopes.
    #[must_use]
    pub fn covers(self, approved: &Action, action: &Action) -> bool {
        let is_same_item = approved.primary == action.primary
            && approved.item_type == action.item_type
            && approved.item_id == action.item_id
            && approved.options == action.options;
        match self {
            Self::Item => is_same_item && action.item_id.is_some(),
            Self::Arguments => is_same_item && approved.params == action.params,
        }
    }
}

/// A yes that a person gave for later calls of the thread.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApprovalGrant {
    pub(super) scope: ApprovalScope,
    pub(super) action: Action,
}

/// What a person said to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalAnswer {
    /// The question.
    #[serde(rename = "question")]
    pub request_id: String,
    /// Whether it is allowed.
    pub approved: bool,
    /// What else they said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Who.
    pub by: String,
    /// What a yes covers from now on, beyond the call it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub always: Option<ApprovalScope>,
}

impl ApprovalAnswer {
    /// A no, in words.
    pub(super) fn denial_message(&self, what: &str) -> String {
        let note = self.message.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        format!("{} denied this{note} ({what})", self.by)
    }
}

/// A thread that stopped: why, where it continues, and what it asks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Suspension {
    pub(super) outcome: ThreadOutcome,
    pub(super) resume_at: ResumeAt,
    pub(super) requests: Vec<ApprovalRequest>,
}

/// A person without whom a thread does not go on, nor one that continues from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NeededPerson {
    /// They are asked this, and have not answered yet.
    Asked {
        /// The question.
        prompt: String,
        /// Whether it is only about more of a limit.
        is_limit: bool,
    },
    /// They ended it with a no.
    Denied(String),
    /// It was ended while they were asked, with this reason: what they said, or what another process did.
    Unanswered {
        /// The question.
        prompt: String,
        /// Why it ended.
        reason: String,
    },
}

/// Where a thread that stopped continues.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ResumeAt {
    /// With the next turn.
    Turn,
    /// With what these hooks were run for.
    Hooks(Box<HookRun>),
    /// With the calls of a turn.
    Tools(ToolRun),
    /// With what these hooks around a call were run for.
    CallHooks(Box<CallHookRun>),
}

impl Suspension {
    /// Whether a question is open that only a person can answer.
    pub(super) fn has_open_requests(&self, answers: &[ApprovalAnswer]) -> bool {
        let is_answered =
            |question: &ApprovalRequest| answers.iter().any(|answer| answer.request_id == question.id);
        self.requests.iter().any(|question| question.kind != ApprovalKind::Limit && !is_answered(question))
    }

    /// The no that counts most, with its question: one that ends the thread goes first.
    pub(super) fn first_denial<'a>(
        &'a self,
        answers: &'a [ApprovalAnswer],
    ) -> Option<(&'a ApprovalRequest, &'a ApprovalAnswer)> {
        let find_denial = |question: &'a ApprovalRequest| {
            let is_denial = |answer: &&ApprovalAnswer| answer.request_id == question.id && !answer.approved;
            answers.iter().find(is_denial).map(|answer| (question, answer))
        };
        let mut denied: Vec<_> = self.requests.iter().filter_map(find_denial).collect();
        denied.sort_by_key(|(question, _)| !question.ends_on_deny);
        denied.into_iter().next()
    }
}

impl ThreadState {
    /// What it asks people, while it is suspended.
    #[must_use]
    pub fn pending_approvals(&self) -> &[ApprovalRequest] {
        match &self.phase {
            super::Phase::Suspended(pause) => &pause.requests,
            _ => &[],
        }
    }

    /// The person without whom it does not go on, if it waits for one, or ended because of one.
    #[must_use]
    pub fn needed_person(&self) -> Option<NeededPerson> {
        let requests = self.pending_approvals();
        if requests.is_empty() {
            return self.ended_by.clone();
        }
        let is_limit = requests.iter().all(|request| request.kind == ApprovalKind::Limit);
        Some(NeededPerson::Asked { prompt: self.pending_prompts(), is_limit })
    }

    fn pending_prompts(&self) -> String {
        let prompts: Vec<&str> =
            self.pending_approvals().iter().map(|request| request.prompt.as_str()).collect();
        prompts.join("; ")
    }

    /// It is ended from outside: no yes comes any more to what it asked.
    pub(super) fn give_up_questions(&mut self, reason: &str) {
        if !self.pending_approvals().is_empty() {
            let (prompt, reason) = (self.pending_prompts(), reason.to_owned());
            self.ended_by = Some(NeededPerson::Unanswered { prompt, reason });
        }
    }

    /// The name of the next question: each has one of its own, and a replay gives the same.
    pub(super) fn next_approval_id(&mut self) -> String {
        self.approval_count += 1;
        let thread = self.spec.instance.thread_id.as_str();
        format!("ask-{}-{}", thread.strip_prefix("thread-").unwrap_or(thread), self.approval_count)
    }

    /// The thread stops, with everything kept, and asks.
    pub(super) fn suspend_with(
        &mut self,
        mut outcome: ThreadOutcome,
        resume_at: ResumeAt,
        requests: Vec<ApprovalRequest>,
    ) -> Vec<Effect> {
        if self.spec.instance.cannot_suspend {
            let error = outcome.error.unwrap_or_else(|| "it cannot be suspended".to_owned());
            return self.finish(ThreadOutcome::failed(error));
        }
        let mut effects = Vec::new();
        if !requests.is_empty() {
            let listed: Vec<Value> = requests
                .iter()
                .map(|request| json!({"id": request.id, "kind": request.kind, "what": request.prompt, "why": request.reason}))
                .collect();
            if !outcome.detail.is_object() {
                outcome.detail = json!({});
            }
            outcome.detail["questions"] = Value::Array(listed);
        }
        for request in &requests {
            effects.push(Self::record(CoreEvent::HumanApprovalRequested {
                approval_id: request.id.clone(),
                kind: request.kind,
                prompt: request.prompt.clone(),
                detail: request.detail.clone(),
            }));
        }
        effects.push(Self::record(CoreEvent::ThreadSuspended {
            suspend_reason: Always(outcome.reason),
            error: Nullable(outcome.error.clone()),
            detail: outcome.detail.clone(),
            cost: self.cost,
            elapsed_ms: self.recorded_elapsed(),
        }));
        effects.push(Effect::SaveState(SaveTrigger::Always));
        effects.extend(requests.iter().cloned().map(Effect::RequestApproval));
        effects.push(Effect::Suspend(outcome.clone()));
        self.phase = super::Phase::Suspended(Box::new(Suspension { outcome, resume_at, requests }));
        effects
    }

    /// Asks for as much again of what ran out.
    pub(super) fn limit_approval(&mut self, reached: &LimitReached, message: &str) -> ApprovalRequest {
        let name = reached.name();
        let more = reached.suggested_raise();
        let mut proposed = serde_json::Map::new();
        proposed.insert(name.to_owned(), json!(more));
        ApprovalRequest {
            id: self.next_approval_id(),
            kind: ApprovalKind::Limit,
            prompt: format!("{} {more}", name.replace('_', " ")),
            reason: message.to_owned(),
            ends_on_deny: true,
            detail: json!({
                "limit_code": reached.limit_code,
                "current_value": reached.current_value,
                "current_max": reached.current_max,
                "proposed": proposed,
                "cost": self.cost.to_value(),
            }),
        }
    }

    /// A suspended thread continues, as people said.
    pub(super) fn on_resumed(
        &mut self,
        limits: crate::limits::ThreadLimits,
        message: Option<String>,
        by: &str,
        answers: &[ApprovalAnswer],
    ) -> Vec<Effect> {
        let super::Phase::Suspended(suspension) = &self.phase else { return Vec::new() };
        // Only a person's answer resumes it.
        if suspension.has_open_requests(answers) {
            return Vec::new();
        }
        let suspension = suspension.as_ref().clone();
        let reason = suspension.outcome.reason.map(crate::status::SuspendReason::as_str);
        self.limits = limits;
        self.failures = 0;
        // After an outage every model of the list gets another chance.
        if suspension.outcome.reason == Some(crate::status::SuspendReason::Provider) {
            self.model_index = 0;
        }
        let mut effects: Vec<Effect> = answers
            .iter()
            .map(|answer| {
                Self::record(CoreEvent::HumanApprovalResponse {
                    approval_id: answer.request_id.clone(),
                    approved: answer.approved,
                    message: Nullable(answer.message.clone()),
                    by: answer.by.clone(),
                    always: answer.always.filter(|_| answer.approved),
                })
            })
            .collect();
        effects.push(Self::record(CoreEvent::ThreadResumed {
            directive: self.spec.template.directive.clone(),
            limits,
            by: Some(by.to_owned()),
            was: Nullable(reason.map(str::to_owned)),
            turn: None,
            spend: None,
            spend_at_most: None,
        }));
        let denied = suspension.first_denial(answers);
        let denial = denied.map(|(request, answer)| answer.denial_message(&request.prompt));
        // Before the first message there is no model to tell.
        let is_early = matches!(&suspension.resume_at, ResumeAt::Hooks(run) if run.is_collecting_context());
        if let (Some((request, _)), Some(denial)) = (denied, &denial)
            && (request.ends_on_deny || is_early)
        {
            self.ended_by = Some(NeededPerson::Denied(denial.clone()));
            let result = self.last_text();
            effects.extend(self.finish(ThreadOutcome { result, ..ThreadOutcome::failed(denial.clone()) }));
            return effects;
        }
        let notes =
            answers.iter().filter(|answer| answer.approved).filter_map(|answer| answer.message.clone());
        let message = message.or_else(|| notes.reduce(|all, next| format!("{all}\n\n{next}")));
        match suspension.resume_at {
            ResumeAt::Turn => {
                self.push_user_messages(denial, message);
                effects.extend(self.before_turn());
            }
            // Outputs that a person turned down are not the end: the model gets the reason.
            ResumeAt::Hooks(run) if run.is_returning() && denial.is_some() => {
                self.push_user_messages(denial, message);
                effects.extend(self.before_turn());
            }
            ResumeAt::Hooks(mut run) => {
                if is_early {
                    run.add_after(message);
                } else {
                    self.push_user_messages(denial, message);
                }
                effects.extend(self.resume_after_hooks(*run));
            }
            ResumeAt::CallHooks(run) => effects.extend(self.resume_call_hooks(run, denial, message)),
            ResumeAt::Tools(run) => effects.extend(self.apply_answers(run, answers)),
        }
        effects
    }

    fn push_user_messages(&mut self, denial: Option<String>, message: Option<String>) {
        for text in denial.into_iter().chain(message) {
            self.push_user_message(text);
        }
    }

    /// What the model last said.
    fn last_text(&self) -> Option<String> {
        self.messages.iter().rev().find_map(|message| match &**message {
            crate::model::ChatMessage::Assistant { text, .. } if !text.is_empty() => Some(text.clone()),
            _ => None,
        })
    }
}
