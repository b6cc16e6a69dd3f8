//! What people are asked, and what their answers do.

use crate::model::{ChatMessage, ModelResponse};
use serde_json::{Value, json};

use super::config_keys::config_with;
use super::harness::{Harness, TestSpec, approval_response, call_response, text_response};
use crate::machine::{ApprovalAnswer, ApprovalRequest, ApprovalScope, Effect, NeededPerson, ThreadEvent};
use crate::status::{SuspendReason, ThreadStatus};

fn drain_approvals(play: &mut Harness) -> Vec<ApprovalRequest> {
    let question = |effect: Effect| match effect {
        Effect::RequestApproval(question) => Some(question),
        _ => None,
    };
    play.drain().into_iter().filter_map(question).collect()
}

fn answer_all(play: &mut Harness, approved: bool) {
    answer_with(play, approved, None);
}

fn answer_with(play: &mut Harness, approved: bool, always: Option<ApprovalScope>) {
    let verdict = |question: &ApprovalRequest| ApprovalAnswer {
        request_id: question.id.clone(),
        approved,
        message: Some("because".to_owned()),
        by: "Ada".to_owned(),
        always,
    };
    let answers = play.state.pending_approvals().iter().map(verdict).collect();
    let limits = play.state.limits;
    play.apply(ThreadEvent::Resumed { limits, message: None, by: "Ada".to_owned(), answers });
}

fn tool_results(play: &Harness) -> Vec<String> {
    let result = |message: &std::sync::Arc<ChatMessage>| match &**message {
        ChatMessage::Tool { content, .. } => Some(content.clone()),
        _ => None,
    };
    play.state.messages.iter().filter_map(result).collect()
}

fn dispatch_count(play: &mut Harness) -> usize {
    play.drain().iter().filter(|effect| matches!(effect, Effect::Dispatch { .. })).count()
}

fn ending_on_deny(mut response: ModelResponse) -> ModelResponse {
    response.calls[0].input.insert("on_deny".to_owned(), json!("end"));
    response
}

#[test]
fn approval_answer_becomes_tool_result() {
    for approved in [true, false] {
        let mut play = Harness::start(TestSpec::default());
        play.respond(approval_response(&["allowed"]));
        assert_eq!(play.state.status(), ThreadStatus::Running, "the other call of the turn runs first");
        play.drain();
        play.finish_tool(1, "done");
        assert_eq!(play.state.outcome().and_then(|outcome| outcome.reason), Some(SuspendReason::Approval));
        let questions = drain_approvals(&mut play);
        assert_eq!((questions.len(), questions[0].prompt.as_str()), (1, "May I deploy?"));
        assert_eq!(questions[0].id, "ask-0123456789ab-1");
        assert_eq!(play.payload("human_approval_requested")["approval_id"], "ask-0123456789ab-1");
        answer_all(&mut play, approved);
        let result: Value = serde_json::from_str(&tool_results(&play)[0]).expect("JSON");
        assert_eq!((&result["approved"], &result["message"]), (&json!(approved), &json!("because")));
        assert!(play.is_calling(), "the model hears of it");
        assert_eq!(play.payload("human_approval_response")["approved"], approved);
        assert_eq!(format!("{:?}", play.replay().phase), format!("{:?}", play.state.phase));
    }
}

#[test]
fn denial_ends_thread_when_requested() {
    let mut play = Harness::start(TestSpec::default());
    play.respond(ending_on_deny(approval_response(&[])));
    answer_all(&mut play, false);
    let outcome = play.state.outcome().expect("an end");
    assert_eq!(outcome.status, ThreadStatus::Error);
    assert_eq!(outcome.error.as_deref(), Some("Ada denied this: because (May I deploy?)"));
    let mut play = Harness::start(TestSpec::default());
    play.respond(ending_on_deny(approval_response(&[])));
    answer_all(&mut play, true);
    assert!(play.is_calling());
}

#[test]
fn ended_questions_still_need_their_person() {
    let asked = || {
        let mut play = Harness::start(TestSpec::default());
        play.respond(ending_on_deny(approval_response(&[])));
        play
    };
    let prompt = "May I deploy?".to_owned();
    let play = asked();
    assert_eq!(
        play.state.needed_person(),
        Some(NeededPerson::Asked { prompt: prompt.clone(), is_limit: false })
    );
    let mut play = asked();
    answer_all(&mut play, false);
    let denial = "Ada denied this: because (May I deploy?)".to_owned();
    assert_eq!(play.state.needed_person(), Some(NeededPerson::Denied(denial)));
    assert_eq!(play.replay().needed_person(), play.state.needed_person());
    let end = |status| {
        let mut play = asked();
        play.apply(ThreadEvent::Terminated {
            status,
            reason: "no".to_owned(),
            spend: crate::money::Nanos(0),
            tokens: crate::machine::InterruptedTokens::default(),
        });
        play.state.needed_person()
    };
    for status in [ThreadStatus::Cancelled, ThreadStatus::Killed] {
        let (prompt, reason) = (prompt.clone(), "no".to_owned());
        assert_eq!(end(status), Some(NeededPerson::Unanswered { prompt, reason }));
    }
    assert_eq!(end(ThreadStatus::Continued), None, "who continues it has asked");
    let mut play = asked();
    answer_all(&mut play, true);
    assert_eq!(play.state.needed_person(), None);
}

#[test]
fn open_approval_blocks_resume() {
    let mut play = Harness::start(TestSpec::default());
    play.respond(approval_response(&[]));
    play.drain();
    let limits = play.state.limits;
    let other = ApprovalAnswer {
        request_id: "ask-0-1".into(),
        approved: true,
        message: None,
        by: "it".into(),
        always: None,
    };
    for answers in [Vec::new(), vec![other]] {
        play.apply(ThreadEvent::Resumed { limits, message: None, by: "a parent".to_owned(), answers });
        assert_eq!((play.state.status(), play.drain().len()), (ThreadStatus::Suspended, 0));
    }
}

#[test]
fn approval_without_prompt_is_rejected() {
    let mut play = Harness::start(TestSpec::default());
    let mut response = approval_response(&[]);
    response.calls[0].input.clear();
    play.respond(response);
    assert!(drain_approvals(&mut play).is_empty());
    assert!(tool_results(&play)[0].contains("`prompt` is missing"), "{:?}", tool_results(&play));
}

/// A call of the tool `allowed` with this argument.
fn call_with(argument: u64) -> ModelResponse {
    let mut response = call_response(&["allowed"]);
    response.calls[0].input.insert("n".to_owned(), json!(argument));
    response
}

#[test]
fn always_covers_its_scope_and_nothing_else() {
    let config =
        || config_with("capability_risk", &["risk_levels", "write", "policy"], json!("approval_required"));
    for (always, same, other) in
        [(None, 1, 1), (Some(ApprovalScope::Item), 0, 0), (Some(ApprovalScope::Arguments), 0, 1)]
    {
        for (argument, asked) in [(1, same), (2, other)] {
            let mut play = Harness::start(TestSpec { config: config(), ..TestSpec::default() });
            play.respond(call_with(1));
            assert_eq!(drain_approvals(&mut play).len(), 1);
            answer_with(&mut play, true, always);
            let scope = serde_json::to_value(always).expect("JSON");
            assert_eq!(
                play.payload("human_approval_response").get("always").cloned().unwrap_or_default(),
                scope
            );
            play.drain();
            play.finish_tool(0, "done");
            play.respond(call_with(argument));
            assert_eq!(drain_approvals(&mut play).len(), asked, "{always:?} {argument}");
        }
    }
}

#[test]
fn denial_grants_nothing_for_later() {
    let config =
        config_with("capability_risk", &["risk_levels", "write", "policy"], json!("approval_required"));
    let mut play = Harness::start(TestSpec { config, ..TestSpec::default() });
    play.respond(call_with(1));
    play.drain();
    answer_with(&mut play, false, Some(ApprovalScope::Item));
    play.drain();
    play.respond(call_with(1));
    assert_eq!(drain_approvals(&mut play).len(), 1);
}

#[test]
fn answers_without_scope_read_as_before() {
    let recorded = r#"{"question":"ask-0-1","approved":true,"by":"Ada"}"#;
    let answer: ApprovalAnswer = serde_json::from_str(recorded).expect("an answer");
    assert_eq!((answer.always, serde_json::to_string(&answer).expect("JSON").as_str()), (None, recorded));
}

#[test]
fn risky_call_needs_approval_first() {
    let config =
        || config_with("capability_risk", &["risk_levels", "write", "policy"], json!("approval_required"));
    for (approved, dispatched) in [(true, 1), (false, 0)] {
        let mut play = Harness::start(TestSpec { config: config(), ..TestSpec::default() });
        play.respond(call_response(&["allowed"]));
        let questions = drain_approvals(&mut play);
        assert_eq!(questions.len(), 1, "{:?}", play.state.waits_for());
        assert_eq!(questions[0].prompt, "execute tool:team/allowed");
        assert!(questions[0].reason.starts_with("write needs a person's word"), "{}", questions[0].reason);
        answer_all(&mut play, approved);
        assert_eq!(dispatch_count(&mut play), dispatched);
        if !approved {
            assert!(tool_results(&play)[0].contains("Ada denied this: because"), "{:?}", tool_results(&play));
        }
    }
    let mut play = Harness::start(TestSpec::default());
    play.respond(call_response(&["allowed"]));
    assert_eq!(dispatch_count(&mut play), 1, "no one is asked where the rules do not say so");
}

fn approval_hook(event: &str, params: &Value) -> Value {
    let mut action = json!({"action": "suspend"});
    action.as_object_mut().expect("params").extend(params.as_object().expect("params").clone());
    json!([{"id": "gate", "event": event, "action": {"primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/control", "params": action}}])
}

#[test]
fn hook_approval_resumes_where_it_stopped() {
    let first = |play: &Harness| match play.state.messages.first().map(AsRef::as_ref) {
        Some(ChatMessage::User { text, .. }) => text.clone(),
        _ => String::new(),
    };
    let hooks =
        approval_hook("thread_started", &json!({"suspend_reason": "approval", "prompt": "May it begin?"}));
    let mut play = Harness::start(TestSpec { hooks: hooks.clone(), ..TestSpec::default() });
    assert_eq!(drain_approvals(&mut play)[0].prompt, "May it begin?");
    answer_all(&mut play, true);
    assert_eq!(
        (first(&play).as_str(), play.is_calling()),
        ("Do it.\n\nbecause", true),
        "the prompt is not lost"
    );
    let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
    answer_all(&mut play, false);
    assert_eq!(play.state.status(), ThreadStatus::Error, "nothing has begun: no one can be asked");
    for (on_deny, status) in [("tell", ThreadStatus::Running), ("end", ThreadStatus::Error)] {
        let hooks = approval_hook("after_step", &json!({"suspend_reason": "too dear", "on_deny": on_deny}));
        let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
        play.respond(call_response(&["allowed"]));
        play.finish_tool(0, "done");
        assert_eq!(drain_approvals(&mut play)[0].prompt, "too dear");
        answer_all(&mut play, false);
        assert_eq!(play.state.status(), status, "{on_deny}");
        if status == ThreadStatus::Running {
            let is_notified = matches!(play.state.messages.last().map(AsRef::as_ref), Some(ChatMessage::User { text, .. }) if text.contains("Ada denied this"));
            assert!(is_notified, "the model is told");
        }
    }
}

#[test]
fn limit_approval_doubles_limit_or_ends() {
    let stopped = || {
        let mut play = Harness::start(TestSpec { limits: json!({"turns": 1}), ..TestSpec::default() });
        let mut response = call_response(&["allowed"]);
        response.text = "half of it".to_owned();
        play.respond(response);
        play.finish_tool(0, "done");
        play
    };
    let mut play = stopped();
    let questions = drain_approvals(&mut play);
    assert_eq!(
        (questions[0].prompt.as_str(), questions[0].reason.as_str()),
        ("turns +1", "turns reached: 1 of 1")
    );
    assert_eq!(questions[0].detail["proposed"], json!({"turns": "+1"}));
    answer_all(&mut play, false);
    let outcome = play.state.outcome().expect("an end");
    assert_eq!((outcome.status, outcome.result.as_deref()), (ThreadStatus::Error, Some("half of it")));
    let mut play = stopped();
    let limits = crate::limits::ThreadLimits { turns: Some(2), ..play.state.limits };
    play.drain();
    play.apply(ThreadEvent::Resumed { limits, message: None, by: "Ada".to_owned(), answers: Vec::new() });
    assert!(play.is_calling(), "the user who resumes it has answered");
    play.respond(text_response("all of it"));
    assert_eq!(play.state.status(), ThreadStatus::Completed);
}

#[test]
fn on_exceed_suspend_needs_no_approval() {
    for (word, questions) in [("escalate", 1), ("suspend", 0)] {
        let mut config = config_with("resilience", &["limits", "enforcement", "on_exceed"], json!(word));
        // Without the hook that always asks.
        config.hooks = Vec::new();
        let mut play =
            Harness::start(TestSpec { config, limits: json!({"turns": 0}), ..TestSpec::default() });
        assert_eq!(
            (play.state.status(), drain_approvals(&mut play).len()),
            (ThreadStatus::Suspended, questions),
            "{word}"
        );
    }
}

#[test]
fn suspended_thread_can_be_cancelled() {
    let mut play = Harness::start(TestSpec::default());
    play.respond(approval_response(&[]));
    play.apply(ThreadEvent::CancelRequested {
        reason: "no need".to_owned(),
        spend: crate::money::Nanos(0),
        partial: None,
    });
    assert_eq!(play.state.status(), ThreadStatus::Cancelled);
}
