//! What people are asked, and what their answers do.

use crate::model::{Answer, Message};
use serde_json::{Value, json};

use super::keys::with;
use super::world::{Plan, Play, asking, calls, says};
use crate::machine::{Effect, Event, Question, Verdict};
use crate::status::{Status, SuspendReason};

fn asked(play: &mut Play) -> Vec<Question> {
    let question = |effect: Effect| match effect {
        Effect::Ask(question) => Some(question),
        _ => None,
    };
    play.drain().into_iter().filter_map(question).collect()
}

fn answer(play: &mut Play, approved: bool) {
    let verdict = |question: &Question| Verdict {
        question: question.id.clone(),
        approved,
        message: Some("because".to_owned()),
        by: "Ada".to_owned(),
    };
    let answers = play.state.questions().iter().map(verdict).collect();
    let limits = play.state.limits;
    play.take(Event::Resumed { limits, message: None, by: "Ada".to_owned(), answers });
}

fn results(play: &Play) -> Vec<String> {
    let result = |message: &std::sync::Arc<Message>| match &**message {
        Message::Tool { content, .. } => Some(content.clone()),
        _ => None,
    };
    play.state.messages.iter().filter_map(result).collect()
}

fn dispatches(play: &mut Play) -> usize {
    play.drain().iter().filter(|effect| matches!(effect, Effect::Dispatch { .. })).count()
}

fn ends_on_no(mut answer: Answer) -> Answer {
    answer.calls[0].input.insert("on_deny".to_owned(), json!("end"));
    answer
}

#[test]
fn a_question_of_the_model_stops_the_thread_until_it_is_answered_and_the_answer_is_the_result() {
    for approved in [true, false] {
        let mut play = Play::started(Plan::default());
        play.answer(asking(&["allowed"]));
        assert_eq!(play.state.status(), Status::Running, "the other call of the turn runs first");
        play.drain();
        play.tool(1, "done");
        assert_eq!(play.state.outcome().and_then(|outcome| outcome.reason), Some(SuspendReason::Approval));
        let questions = asked(&mut play);
        assert_eq!((questions.len(), questions[0].what.as_str()), (1, "May I deploy?"));
        assert_eq!(questions[0].id, "ask-0123456789ab-1");
        assert_eq!(play.payload("human_approval_requested")["approval_id"], "ask-0123456789ab-1");
        answer(&mut play, approved);
        let told: Value = serde_json::from_str(&results(&play)[0]).expect("JSON");
        assert_eq!((&told["approved"], &told["message"]), (&json!(approved), &json!("because")));
        assert!(play.is_calling(), "the model hears of it");
        assert_eq!(play.payload("human_approval_response")["approved"], approved);
        assert_eq!(format!("{:?}", play.replayed().phase), format!("{:?}", play.state.phase));
    }
}

#[test]
fn a_no_ends_the_thread_where_that_was_asked_for() {
    let mut play = Play::started(Plan::default());
    play.answer(ends_on_no(asking(&[])));
    answer(&mut play, false);
    let outcome = play.state.outcome().expect("an end");
    assert_eq!(outcome.status, Status::Error);
    assert_eq!(outcome.error.as_deref(), Some("Ada denied this: because (May I deploy?)"));
    let mut play = Play::started(Plan::default());
    play.answer(ends_on_no(asking(&[])));
    answer(&mut play, true);
    assert!(play.is_calling());
}

#[test]
fn nobody_goes_on_in_a_persons_place() {
    let mut play = Play::started(Plan::default());
    play.answer(asking(&[]));
    play.drain();
    let limits = play.state.limits;
    let other = Verdict { question: "ask-0-1".into(), approved: true, message: None, by: "it".into() };
    for answers in [Vec::new(), vec![other]] {
        play.take(Event::Resumed { limits, message: None, by: "a parent".to_owned(), answers });
        assert_eq!((play.state.status(), play.drain().len()), (Status::Suspended, 0));
    }
}

#[test]
fn a_question_without_words_is_refused_and_nobody_is_asked() {
    let mut play = Play::started(Plan::default());
    let mut answer = asking(&[]);
    answer.calls[0].input.clear();
    play.answer(answer);
    assert!(asked(&mut play).is_empty());
    assert!(results(&play)[0].contains("`prompt` is missing"), "{:?}", results(&play));
}

#[test]
fn risk_that_needs_a_persons_word_is_asked_for_before_the_call_is_made() {
    let config = || with("capability_risk", &["risk_levels", "write", "policy"], json!("approval_required"));
    for (approved, made) in [(true, 1), (false, 0)] {
        let mut play = Play::started(Plan { config: config(), ..Plan::default() });
        play.answer(calls(&["allowed"]));
        let questions = asked(&mut play);
        assert_eq!(questions.len(), 1, "{:?}", play.state.waits_for());
        assert_eq!(questions[0].what, "execute tool:team/allowed");
        assert!(questions[0].why.starts_with("write needs a person's word"), "{}", questions[0].why);
        answer(&mut play, approved);
        assert_eq!(dispatches(&mut play), made);
        if !approved {
            assert!(results(&play)[0].contains("Ada denied this: because"), "{:?}", results(&play));
        }
    }
    let mut play = Play::started(Plan::default());
    play.answer(calls(&["allowed"]));
    assert_eq!(dispatches(&mut play), 1, "nobody is asked where the rules do not say so");
}

fn gate(event: &str, params: &Value) -> Value {
    let mut action = json!({"action": "suspend"});
    action.as_object_mut().expect("params").extend(params.as_object().expect("params").clone());
    json!([{"id": "gate", "event": event, "action": {"primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/control", "params": action}}])
}

#[test]
fn a_hook_asks_a_person_and_the_thread_goes_on_where_it_stopped() {
    let first = |play: &Play| match play.state.messages.first().map(AsRef::as_ref) {
        Some(Message::User { text }) => text.clone(),
        _ => String::new(),
    };
    let hooks = gate("thread_started", &json!({"suspend_reason": "approval", "prompt": "May it begin?"}));
    let mut play = Play::started(Plan { hooks: hooks.clone(), ..Plan::default() });
    assert_eq!(asked(&mut play)[0].what, "May it begin?");
    answer(&mut play, true);
    assert_eq!(
        (first(&play).as_str(), play.is_calling()),
        ("Do it.\n\nbecause", true),
        "the prompt is not lost"
    );
    let mut play = Play::started(Plan { hooks, ..Plan::default() });
    answer(&mut play, false);
    assert_eq!(play.state.status(), Status::Error, "nothing has begun: nobody can be told");
    for (on_deny, status) in [("tell", Status::Running), ("end", Status::Error)] {
        let hooks = gate("after_step", &json!({"suspend_reason": "too dear", "on_deny": on_deny}));
        let mut play = Play::started(Plan { hooks, ..Plan::default() });
        play.answer(calls(&["allowed"]));
        play.tool(0, "done");
        assert_eq!(asked(&mut play)[0].what, "too dear");
        answer(&mut play, false);
        assert_eq!(play.state.status(), status, "{on_deny}");
        if status == Status::Running {
            let told = matches!(play.state.messages.last().map(AsRef::as_ref), Some(Message::User { text }) if text.contains("Ada denied this"));
            assert!(told, "the model is told");
        }
    }
}

#[test]
fn a_limit_asks_for_as_much_again_and_a_no_ends_the_thread_with_what_there_is() {
    let stopped = || {
        let mut play = Play::started(Plan { limits: json!({"turns": 1}), ..Plan::default() });
        let mut said = calls(&["allowed"]);
        said.text = "half of it".to_owned();
        play.answer(said);
        play.tool(0, "done");
        play
    };
    let mut play = stopped();
    let questions = asked(&mut play);
    assert_eq!(
        (questions[0].what.as_str(), questions[0].why.as_str()),
        ("turns +1", "turns reached: 1 of 1")
    );
    assert_eq!(questions[0].detail["proposed"], json!({"turns": "+1"}));
    answer(&mut play, false);
    let outcome = play.state.outcome().expect("an end");
    assert_eq!((outcome.status, outcome.result.as_deref()), (Status::Error, Some("half of it")));
    let mut play = stopped();
    let limits = crate::limits::Limits { turns: Some(2), ..play.state.limits };
    play.drain();
    play.take(Event::Resumed { limits, message: None, by: "Ada".to_owned(), answers: Vec::new() });
    assert!(play.is_calling(), "whoever lets it go on has answered");
    play.answer(says("all of it"));
    assert_eq!(play.state.status(), Status::Completed);
}

#[test]
fn on_exceed_suspend_stops_without_asking() {
    for (word, questions) in [("escalate", 1), ("suspend", 0)] {
        let mut config = with("resilience", &["limits", "enforcement", "on_exceed"], json!(word));
        // Without the hook that always asks.
        config.hooks = Vec::new();
        let mut play = Play::started(Plan { config, limits: json!({"turns": 0}), ..Plan::default() });
        assert_eq!((play.state.status(), asked(&mut play).len()), (Status::Suspended, questions), "{word}");
    }
}

#[test]
fn a_thread_that_asks_can_be_cancelled() {
    let mut play = Play::started(Plan::default());
    play.answer(asking(&[]));
    play.take(Event::CancelRequested { reason: "no need".to_owned(), spend: crate::money::Nanos(0) });
    assert_eq!(play.state.status(), Status::Cancelled);
}
