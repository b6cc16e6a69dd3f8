//! What answers are counted as, where the provider says nothing or more than can be.

use super::harness::*;
use crate::machine::{Effect, ThreadEvent};
use crate::model::{ModelResponse, Usage, UsageSource};
use crate::money::Nanos;
use serde_json::json;

/// The longest answer that was asked for last.
fn max_output(play: &mut Harness) -> u64 {
    let asked = play.drain().into_iter().rev().find_map(|effect| match effect {
        Effect::CallModel { request, .. } => Some(request.max_output_tokens),
        _ => None,
    });
    asked.expect("a call")
}

fn response(text: &str, usage: Usage) -> ModelResponse {
    ModelResponse { usage, ..text_response(text) }
}

/// An answer as a driver takes it in.
fn respond(play: &mut Harness, mut response: ModelResponse) -> Usage {
    response.usage = play.state.counted_usage(&response);
    let usage = response.usage;
    play.respond(response);
    usage
}

/// A thread whose provider says more than can be.
pub(super) fn impossible_usage_thread() -> Harness {
    let mut play = Harness::start(TestSpec::default());
    respond(&mut play, response("hi", Usage { output_tokens: 1 << 50, ..Usage::default() }));
    play
}

#[test]
fn unreported_usage_is_estimated() {
    let mut play = Harness::start(TestSpec::default());
    let words = "All work and no play makes Jack a dull boy. ".repeat(100);
    let prompt = play.state.usage_with_output("").input_tokens;
    let usage = respond(&mut play, response(&words, Usage::default()));
    assert_eq!(usage.source, UsageSource::Estimate);
    assert!(prompt > 0 && usage.input_tokens == prompt, "{usage:?}");
    assert!((900..1500).contains(&usage.output_tokens), "{usage:?}");
    assert_eq!(play.state.cost.tokens(), usage.input_tokens + usage.output_tokens);
    let payload = play.payload("cognition_out");
    assert_eq!(payload["tokens_are_estimated"], json!(true));
    // The provider sent no count that an estimate could be compared with.
    assert_eq!(payload.get("actual"), None);
    assert_eq!(format!("{:?}", play.replay()), format!("{:?}", play.state));
}

#[test]
fn unreported_usage_reaches_the_token_limit() {
    let limits = json!({"turns": 25, "tokens": 6000, "spend": 1.0, "duration_seconds": 600});
    let mut play = Harness::start(TestSpec { limits, ..TestSpec::default() });
    let words = "All work and no play makes Jack a dull boy. ".repeat(100);
    let mut answers = 0;
    while play.state.is_calling_model() {
        let mut calls = call_response(&["allowed"]);
        calls.text.clone_from(&words);
        calls.usage = Usage::default();
        respond(&mut play, calls);
        answers += 1;
        assert!(answers < 10, "{:?}", play.state.cost);
        if !play.state.running_tools().is_empty() {
            play.finish_tool(0, "done");
        }
    }
    let outcome = play.state.outcome().expect("stopped");
    assert_eq!(outcome.detail["limit_code"], "tokens_exceeded", "{outcome:?}");
}

#[test]
fn impossible_usage_is_counted_as_its_bound() {
    const SAID: u64 = 1_000_000_000_000_000;
    let mut play = Harness::start(TestSpec::default());
    let asked = max_output(&mut play);
    let said =
        Usage { input_tokens: SAID, output_tokens: SAID, cached_input_tokens: SAID, ..Usage::default() };
    let usage = respond(&mut play, response("hi", said.clamp_counts()));
    assert_eq!(usage.source, UsageSource::Bound { input_tokens: SAID, output_tokens: SAID });
    assert_eq!((usage.output_tokens, usage.cached_input_tokens), (asked, 0));
    assert!((16_384..20_000).contains(&usage.input_tokens), "{usage:?}");
    assert_eq!(play.state.cost.tokens(), usage.input_tokens + usage.output_tokens);
    let payload = play.payload("impossible_usage").clone();
    assert_eq!(payload["reported_input_tokens"], json!(SAID));
    assert_eq!(payload["provider"], json!(play.state.spec.template.provider));
    assert_eq!(payload["spend"], json!(play.state.cost.spend.dollars()));
    assert!(payload["reported_spend"].as_f64() > Some(1000.0), "{payload}");
    // The conversation is not taken for that long.
    assert_eq!(format!("{:?}", play.replay()), format!("{:?}", play.state));
}

#[test]
fn possible_usage_is_counted() {
    let cases = [
        // A provider puts words of its own before a prompt.
        ("hi", Usage { input_tokens: 9000, output_tokens: 5, ..Usage::default() }),
        // Reasoning that is not shown is counted beside the limit.
        ("hi", Usage { input_tokens: 50, output_tokens: 1900, reasoning_tokens: 900, ..Usage::default() }),
        ("hi", Usage { input_tokens: 50, cached_input_tokens: 40, output_tokens: 5, ..Usage::default() }),
    ];
    for (text, said) in cases {
        let mut play = Harness::start(TestSpec::default());
        assert_eq!(max_output(&mut play), 1000);
        assert_eq!(respond(&mut play, response(text, said)), said);
        assert!(!play.event_types().contains(&"impossible_usage"));
    }
    // An answer costs no more than was reserved for it, however much of it arrived.
    let long = "word ".repeat(2000);
    let mut play = Harness::start(TestSpec::default());
    let said = Usage { input_tokens: 50, output_tokens: 2500, ..Usage::default() };
    let usage = respond(&mut play, response(&long, said));
    assert_eq!((usage.input_tokens, usage.output_tokens), (50, 1000));
    assert_eq!(play.payload("impossible_usage")["reported_output_tokens"], json!(2500));
    let many_cached = Usage { input_tokens: 5, cached_input_tokens: 1 << 40, ..Usage::default() };
    let many_hidden = Usage { output_tokens: 1 << 40, reasoning_tokens: 1 << 40, ..Usage::default() };
    for said in [many_cached, many_hidden] {
        let mut play = Harness::start(TestSpec::default());
        let usage = respond(&mut play, response("hi", said));
        assert!(
            !usage.source.is_provider() && usage.input_tokens + usage.output_tokens < 30_000,
            "{usage:?}"
        );
        assert!(play.state.cost.spend < Nanos(1_000_000_000), "{usage:?}");
    }
}

/// The same for what a call that broke off reports.
#[test]
fn broken_answers_are_bounded() {
    let mut play = Harness::start(TestSpec::default());
    let said = Usage { input_tokens: 1 << 50, output_tokens: 1 << 50, ..Usage::default() };
    let mut partial = response("hi", said);
    partial.usage = play.state.possible_usage(&partial);
    let error = crate::model::ModelError {
        partial: Some(partial),
        ..crate::model::ModelError::after_send("Broken", "it broke off".to_owned())
    };
    play.apply(ThreadEvent::ModelFailed { error, spend: Nanos(7), is_unknown: false, jitter: 0 });
    assert!(play.state.cost.tokens() < 30_000, "{:?}", play.state.cost);
    assert_eq!(play.payload("impossible_usage")["reported_output_tokens"], json!(1_u64 << 50));
}
