//! What a person is asked, and where a thread that stopped goes on from.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::State;
use super::Trigger;
use super::effect::{Effect, Outcome};
use super::hooks::HookRun;
use super::tools::ToolRun;
use crate::limits::Reached;

/// A question to a person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// Its name.
    pub id: String,
    /// What it is about.
    pub kind: Kind,
    /// What is asked for.
    pub what: String,
    /// Why.
    pub why: String,
    /// Whether a no ends the thread; else the model is told.
    pub ends_on_no: bool,
    /// Further facts.
    pub detail: Value,
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// More of a limit.
    Limit,
    /// A call that needs a person's word.
    Tool,
    /// Whatever the model or a hook wants to know.
    Approval,
}

impl Kind {
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

/// What a person said to a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// The question.
    pub question: String,
    /// Whether it is allowed.
    pub approved: bool,
    /// What else they said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Who.
    pub by: String,
}

impl Verdict {
    /// A no, in words.
    pub(super) fn denial(&self, what: &str) -> String {
        let said = self.message.as_ref().map(|said| format!(": {said}")).unwrap_or_default();
        format!("{} denied this{said} ({what})", self.by)
    }
}

/// A thread that stopped: why, where it goes on, and what it asks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pause {
    pub(super) outcome: Outcome,
    pub(super) back: Back,
    pub(super) questions: Vec<Question>,
}

/// Where a thread that stopped goes on.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Back {
    /// With the next turn.
    Turn,
    /// With what these hooks were run for.
    Hooks(Box<HookRun>),
    /// With the calls of a turn.
    Tools(ToolRun),
}

impl Pause {
    /// Whether a question is open that only a person can answer.
    pub(super) fn is_open(&self, answers: &[Verdict]) -> bool {
        let is_answered = |question: &Question| answers.iter().any(|verdict| verdict.question == question.id);
        self.questions.iter().any(|question| question.kind != Kind::Limit && !is_answered(question))
    }

    /// The no that counts most, with its question: one that ends the thread goes first.
    pub(super) fn denied<'a>(&'a self, answers: &'a [Verdict]) -> Option<(&'a Question, &'a Verdict)> {
        let no = |question: &'a Question| {
            let of = |verdict: &&Verdict| verdict.question == question.id && !verdict.approved;
            answers.iter().find(of).map(|verdict| (question, verdict))
        };
        let mut denied: Vec<_> = self.questions.iter().filter_map(no).collect();
        denied.sort_by_key(|(question, _)| !question.ends_on_no);
        denied.into_iter().next()
    }
}

impl State {
    /// What it asks people, while it is suspended.
    #[must_use]
    pub fn questions(&self) -> &[Question] {
        match &self.phase {
            super::Phase::Suspended(pause) => &pause.questions,
            _ => &[],
        }
    }

    /// The name of the next question: each has one of its own, and a replay gives the same.
    pub(super) fn question_id(&mut self) -> String {
        self.asked += 1;
        let thread = self.spec.own.thread_id.as_str();
        format!("ask-{}-{}", thread.strip_prefix("thread-").unwrap_or(thread), self.asked)
    }

    /// The thread stops, with everything kept, and asks.
    pub(super) fn pause(
        &mut self,
        mut outcome: Outcome,
        back: Back,
        questions: Vec<Question>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if !questions.is_empty() {
            let asked: Vec<Value> = questions
                .iter()
                .map(|question| json!({"id": question.id, "kind": question.kind, "what": question.what, "why": question.why}))
                .collect();
            if !outcome.detail.is_object() {
                outcome.detail = json!({});
            }
            outcome.detail["questions"] = Value::Array(asked);
        }
        for question in &questions {
            effects.push(Self::emit(
                "human_approval_requested",
                json!({
                    "approval_id": question.id,
                    "kind": question.kind,
                    "prompt": question.what,
                    "detail": question.detail,
                }),
            ));
        }
        effects.push(Self::emit(
            "thread_suspended",
            json!({
                "suspend_reason": outcome.reason,
                "error": outcome.error,
                "detail": outcome.detail,
                "cost": self.cost.to_value(),
            }),
        ));
        effects.push(Effect::Save(Trigger::Always));
        effects.extend(questions.iter().cloned().map(Effect::Ask));
        effects.push(Effect::Suspend(outcome.clone()));
        self.phase = super::Phase::Suspended(Box::new(Pause { outcome, back, questions }));
        effects
    }

    /// Asks for as much again of what ran out.
    pub(super) fn limit_question(&mut self, reached: &Reached, message: &str) -> Question {
        let name = reached.name();
        let more = reached.more();
        let mut proposed = serde_json::Map::new();
        proposed.insert(name.to_owned(), json!(more));
        Question {
            id: self.question_id(),
            kind: Kind::Limit,
            what: format!("{} {more}", name.replace('_', " ")),
            why: message.to_owned(),
            ends_on_no: true,
            detail: json!({
                "limit_code": reached.limit_code,
                "current_value": reached.current_value,
                "current_max": reached.current_max,
                "proposed": proposed,
                "cost": self.cost.to_value(),
            }),
        }
    }

    /// A suspended thread goes on, as people said.
    pub(super) fn resumed(
        &mut self,
        limits: crate::limits::Limits,
        message: Option<String>,
        by: &str,
        answers: &[Verdict],
    ) -> Vec<Effect> {
        let super::Phase::Suspended(pause) = &self.phase else { return Vec::new() };
        // Nobody goes on in a person's place.
        if pause.is_open(answers) {
            return Vec::new();
        }
        let pause = pause.as_ref().clone();
        let reason = pause.outcome.reason.map(crate::status::SuspendReason::as_str);
        self.limits = limits;
        self.failures = 0;
        let mut effects: Vec<Effect> = answers
            .iter()
            .map(|verdict| {
                Self::emit(
                    "human_approval_response",
                    json!({
                        "approval_id": verdict.question,
                        "approved": verdict.approved,
                        "message": verdict.message,
                        "by": verdict.by,
                    }),
                )
            })
            .collect();
        effects.push(Self::emit(
            "thread_resumed",
            json!({"directive": self.spec.shared.directive, "limits": limits.to_value(), "by": by, "was": reason}),
        ));
        let denied = pause.denied(answers);
        let denial = denied.map(|(question, verdict)| verdict.denial(&question.what));
        // Before the first message there is no model to tell.
        let is_early = matches!(&pause.back, Back::Hooks(run) if run.is_gathering());
        if let (Some((question, _)), Some(denial)) = (denied, &denial)
            && (question.ends_on_no || is_early)
        {
            let result = self.last_words();
            effects.extend(self.finish(Outcome { result, ..Outcome::failed(denial.clone()) }));
            return effects;
        }
        let said =
            answers.iter().filter(|verdict| verdict.approved).filter_map(|verdict| verdict.message.clone());
        let message = message.or_else(|| said.reduce(|all, next| format!("{all}\n\n{next}")));
        match pause.back {
            Back::Turn => {
                self.told_by_person(denial, message);
                effects.extend(self.before_turn());
            }
            Back::Hooks(mut run) => {
                if is_early {
                    run.add_after(message);
                } else {
                    self.told_by_person(denial, message);
                }
                effects.extend(self.after_hooks(*run));
            }
            Back::Tools(run) => effects.extend(self.decided(run, answers)),
        }
        effects
    }

    fn told_by_person(&mut self, denial: Option<String>, message: Option<String>) {
        for text in denial.into_iter().chain(message) {
            self.say(text);
        }
    }

    /// What the model last said.
    fn last_words(&self) -> Option<String> {
        self.messages.iter().rev().find_map(|message| match &**message {
            crate::model::Message::Assistant { text, .. } if !text.is_empty() => Some(text.clone()),
            _ => None,
        })
    }
}
