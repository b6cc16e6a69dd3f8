//! Where a thread can be forked, and how a fork begins.

use std::sync::Arc;

use super::harness::{Harness, TestSpec, approval_response, call_response, text_response};
use crate::machine::{Effect, ForkError, ThreadEvent, fork_point};
use crate::model::ModelSettings;
use crate::spec::{ForkSource, ThreadSpec};
use crate::status::ThreadStatus;
use crate::thread_id::ThreadId;
use serde_json::json;

fn at(play: &Harness, turn: Option<u64>) -> Result<(u64, usize, bool), ForkError> {
    let events = play.records.clone();
    let point = fork_point(Arc::clone(&play.state.spec), events, turn)?;
    Ok((point.turn, point.messages.len(), point.needs_message()))
}

#[test]
fn turns_that_are_over_can_be_forked() {
    let mut play = Harness::start(TestSpec::default());
    assert_eq!(at(&play, None), Ok((0, 1, false)));
    play.respond(call_response(&["allowed", "other"]));
    assert_eq!(at(&play, Some(1)), Err(ForkError::Unfinished { turn: 1 }));
    assert_eq!(at(&play, None), Ok((0, 1, false)));
    play.finish_tool(0, "a");
    play.finish_tool(1, "b");
    assert_eq!(at(&play, Some(1)), Ok((1, 4, false)));
    play.respond(text_response("done"));
    assert_eq!(at(&play, None), Ok((2, 5, true)));
    assert_eq!(at(&play, Some(1)), Ok((1, 4, false)));
    assert_eq!(at(&play, Some(3)), Err(ForkError::NoTurn { turn: 3, turns: 2 }));
}

#[test]
fn turn_that_waits_for_a_person_is_not_over() {
    let mut play = Harness::start(TestSpec::default());
    play.respond(approval_response(&[]));
    assert_eq!(play.state.status(), ThreadStatus::Suspended);
    assert_eq!(at(&play, Some(1)), Err(ForkError::Unfinished { turn: 1 }));
    assert_eq!(at(&play, None), Ok((0, 1, false)));
}

/// A thread that begins with what another said: it asks at once, with nothing but that.
pub(super) fn forked_thread() -> Harness {
    let mut source = Harness::start(TestSpec::default());
    source.respond(call_response(&["allowed"]));
    source.finish_tool(0, "a");
    let events = source.records.clone();
    let point = fork_point(Arc::clone(&source.state.spec), events, Some(1)).expect("a point");
    let mut spec = ThreadSpec::clone(&TestSpec::default().build());
    spec.instance.history = point.messages;
    spec.instance.forked_from = Some(ForkSource {
        thread_id: ThreadId::parse("thread-0a1b2c3d4e5f").expect("an id"),
        turn: 1,
        journal: "ab".repeat(32),
    });
    let mut play = Harness::new(Arc::new(spec));
    play.apply(ThreadEvent::Started);
    play
}

#[test]
fn fork_asks_with_the_copied_history() {
    let play = forked_thread();
    assert_eq!(play.payload("thread_forked")["source_turn"], 1);
    let request = play.effects.iter().find_map(|effect| match effect {
        Effect::CallModel { request, .. } => Some(request),
        _ => None,
    });
    assert_eq!(request.expect("a call").messages, play.state.spec.instance.history);
    assert_eq!((play.state.cost.turns, play.state.cost.tokens()), (0, 0));
}

fn formatted() -> Harness {
    let mut spec = ThreadSpec::clone(&TestSpec::default().build());
    let schema = json!({"type": "object", "required": ["n"]});
    Arc::make_mut(&mut spec.template).settings =
        Arc::new(ModelSettings { response_format: Some(schema), ..ModelSettings::default() });
    let mut play = Harness::new(Arc::new(spec));
    play.apply(ThreadEvent::Started);
    play
}

#[test]
fn answer_must_have_its_format() {
    let mut play = formatted();
    play.respond(text_response("one"));
    assert_eq!(play.state.status(), ThreadStatus::Running);
    play.respond(text_response("{\"n\": 1}"));
    let outcome = play.state.outcome().expect("an end").clone();
    assert_eq!((outcome.status, outcome.result.as_deref()), (ThreadStatus::Completed, Some("{\"n\": 1}")));
    let mut play = formatted();
    for _ in 0..3 {
        play.respond(text_response("{}"));
    }
    let outcome = play.state.outcome().expect("an end").clone();
    assert_eq!(outcome.status, ThreadStatus::Error);
    assert!(outcome.error.expect("a reason").contains("response_format"));
}
