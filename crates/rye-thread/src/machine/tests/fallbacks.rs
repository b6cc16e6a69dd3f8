//! Models of a tier's list, one after the other.

use serde_json::json;

use super::harness::{Harness, TestSpec, model_error, text_response};
use crate::machine::{Effect, ThreadEvent};
use crate::model::{ChatMessage, ModelResponse, TokenPrice};
use crate::money::Nanos;
use crate::spec::FallbackModel;
use crate::status::{SuspendReason, ThreadStatus};

/// A thread with these models behind its own.
pub(super) fn spec_with(fallbacks: &[&str]) -> TestSpec {
    let fallback = |model: &&str| FallbackModel {
        provider: "other".to_owned(),
        model: (*model).to_owned(),
        price: Some(TokenPrice { input: 7, cached_input: 7, cache_write: 7, output: 7 }),
        context_window: 50_000,
        max_output_tokens: 64,
    };
    TestSpec { fallbacks: fallbacks.iter().map(fallback).collect(), ..TestSpec::default() }
}

fn start(fallbacks: &[&str]) -> Harness {
    Harness::start(spec_with(fallbacks))
}

fn asked(play: &mut Harness) -> (String, u64, Nanos) {
    let effects = play.drain();
    let call = effects.iter().rev().find_map(|effect| match effect {
        Effect::CallModel { request, cost_bound, .. } => {
            Some((request.model.clone(), request.max_output_tokens, cost_bound.spend))
        }
        _ => None,
    });
    call.unwrap_or_else(|| panic!("a call: {effects:?}"))
}

#[test]
fn permanent_failure_asks_next_model() {
    let mut play = start(&["second"]);
    let (first, _, _) = asked(&mut play);
    play.fail(model_error(401));
    let (model, max_tokens, bound) = asked(&mut play);
    assert_eq!((model.as_str(), max_tokens), ("second", 64));
    assert!(bound >= Nanos(7 * 64), "{bound:?}");
    let event = play.payload("provider_fallback");
    assert_eq!(event["failed_model"], json!(first));
    assert_eq!((&event["provider"], &event["model"]), (&json!("other"), &json!("second")));
    assert_eq!(play.state.active_model().price.map(|price| price.output), Some(7));
    assert_eq!(play.state.attribution().model, "second");
    play.respond(text_response("done"));
    assert_eq!(play.payload("cognition_out")["model"], "second");
    assert_eq!(play.state.status(), ThreadStatus::Completed);
    assert_eq!(play.replay().model_index(), 1);
}

#[test]
fn exhausted_retries_ask_next_model() {
    let mut play = start(&["second"]);
    let retries = play.state.spec.template.config.resilience.retry.max_retries;
    let exhaust = |play: &mut Harness| {
        for attempt in 0..=retries {
            play.fail(model_error(503));
            if attempt < retries {
                play.apply(ThreadEvent::BackoffElapsed);
            }
        }
    };
    exhaust(&mut play);
    assert_eq!(asked(&mut play).0, "second");
    exhaust(&mut play);
    let outcome = play.state.outcome().expect("an outcome");
    assert_eq!(outcome.reason, Some(SuspendReason::Provider));
    // Resumed, it begins with the first model again.
    play.drain();
    let limits = play.state.limits;
    play.apply(ThreadEvent::Resumed { limits, message: None, by: "ada".to_owned(), answers: Vec::new() });
    assert_ne!(asked(&mut play).0, "second");
}

#[test]
fn last_permanent_failure_ends_thread() {
    let mut play = start(&["second"]);
    play.fail(model_error(401));
    play.fail(model_error(401));
    assert_eq!(play.state.status(), ThreadStatus::Error);
    assert_eq!(play.event_types().iter().filter(|name| **name == "provider_fallback").count(), 1);
}

#[test]
fn provider_blocks_stay_with_their_provider() {
    let mut play = start(&["second"]);
    let response = ModelResponse {
        replay: vec![json!({"type": "thinking", "signature": "x"})],
        ..super::harness::call_response(&["allowed"])
    };
    play.respond(response);
    play.finish_tool(0, "done");
    play.fail(model_error(401));
    let has_blocks = |message: &std::sync::Arc<ChatMessage>| matches!(&**message, ChatMessage::Assistant { replay, .. } if !replay.is_empty());
    assert!(!play.state.messages.iter().any(has_blocks));
}
