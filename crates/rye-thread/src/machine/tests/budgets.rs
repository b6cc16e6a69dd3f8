//! Calls that are planned to fit: estimated prompts, shortened answers, waiting for what is only reserved.

use serde_json::json;

use super::harness::*;
use crate::machine::{BudgetRefusal, BudgetResource, Effect, ThreadEvent};
use crate::model::Usage;
use crate::status::{SuspendReason, ThreadStatus};
use crate::thread_id::ThreadId;

fn refusal(limit: u64, used: u64, reserved: u64, requested: u64) -> BudgetRefusal {
    let refused_by = ThreadId::parse("thread-ffffffffffff").expect("an id");
    BudgetRefusal {
        refused_by,
        resource: BudgetResource::Spend,
        limit,
        used,
        reserved,
        requested,
        rolling: None,
    }
}

/// What the last call asks for: the longest answer, and the money reserved.
fn last_call(play: &mut Harness) -> Option<(u64, u64)> {
    play.drain().into_iter().rev().find_map(|effect| match effect {
        Effect::CallModel { request, cost_bound, .. } => {
            Some((request.max_output_tokens, cost_bound.spend.0))
        }
        _ => None,
    })
}

fn awaits(play: &mut Harness) -> Option<(u64, u64)> {
    play.drain().into_iter().find_map(|effect| match effect {
        Effect::AwaitBudget { cost_bound, deadline_ms, .. } => Some((cost_bound.spend.0, deadline_ms)),
        _ => None,
    })
}

#[test]
fn refused_bound_is_estimated_first() {
    let mut play = Harness::start(TestSpec::default());
    let (_, bound) = last_call(&mut play).expect("a call");
    play.apply(ThreadEvent::BudgetRefused(refusal(bound, 1, 0, bound)));
    let (output, estimate) = last_call(&mut play).expect("a smaller call");
    assert!(estimate < bound && output == 1000, "{estimate} {bound} {output}");
    // An estimate may be a twentieth too low: that much more is reserved.
    let likely = play.state.usage_with_output("").input_tokens;
    assert_eq!(estimate, PRICE.max_cost(likely + likely / 20 + 1, 1000));
    assert!(!play.event_types().contains(&"budget_waiting"));
}

#[test]
fn call_waits_only_for_reserved_money() {
    let mut play = waiting_thread();
    let (needed, deadline_ms) = awaits(&mut play).expect("waits");
    assert_eq!(deadline_ms, play.at_ms + 300_000);
    assert_eq!((play.state.waits_for(), play.state.status()), ("budget", ThreadStatus::Running));
    assert_eq!(play.payload("budget_waiting")["reserved"], json!(0.000_099));
    let elapsed = play.state.cost.elapsed_ms;
    play.at_ms += 60_000;
    play.apply(ThreadEvent::BudgetGranted);
    assert_eq!(last_call(&mut play).map(|(_, spend)| spend), Some(needed));
    assert_eq!(play.state.cost.elapsed_ms, elapsed, "waiting is not work");
    assert_eq!(format!("{:?}", play.replay()), format!("{:?}", play.state));
    play.respond(text_response("done"));
    assert_eq!(play.state.status(), ThreadStatus::Completed);
}

#[test]
fn late_budget_suspends_as_before() {
    let mut play = Harness::start(TestSpec::default());
    play.apply(ThreadEvent::BudgetRefused(refusal(100_000, 0, 99_000, 60_000)));
    play.apply(ThreadEvent::BudgetWaitExpired(refusal(100_000, 0, 99_000, 60_000)));
    let outcome = play.state.outcome().expect("suspended");
    assert_eq!(outcome.reason, Some(SuspendReason::Budget));
    assert_eq!(play.payload("budget_exhausted")["reserved"], json!(0.000_099));
}

#[test]
fn spent_money_shortens_then_stops() {
    let mut play = Harness::start(TestSpec::default());
    let (_, bound) = last_call(&mut play).expect("a call");
    // A thousand tokens of answer cost 50,000: half of them fit.
    play.apply(ThreadEvent::BudgetRefused(refusal(100_000, 65_000, 0, bound)));
    let (output, spend) = last_call(&mut play).expect("a shorter call");
    assert!((128..1000).contains(&output) && spend <= 35_000, "{output} {spend}");
    play.apply(ThreadEvent::BudgetRefused(refusal(100_000, 99_000, 0, spend)));
    assert_eq!(play.state.outcome().and_then(|outcome| outcome.reason), Some(SuspendReason::Budget));
}

#[test]
fn older_threads_suspend_at_reserved_money() {
    let mut play = Harness::start(TestSpec { revision: 1, ..TestSpec::default() });
    play.apply(ThreadEvent::BudgetRefused(refusal(100_000, 0, 99_000, 60_000)));
    assert_eq!(play.state.status(), ThreadStatus::Suspended);
}

#[test]
fn interrupted_waiting_call_is_planned_again() {
    let mut play = Harness::start(TestSpec::default());
    play.apply(ThreadEvent::BudgetRefused(refusal(100_000, 0, 99_000, 60_000)));
    play.drain();
    play.apply(ThreadEvent::Interrupted {
        spend: crate::money::Nanos(0),
        spend_at_most: crate::money::Nanos(0),
        tokens: crate::machine::InterruptedTokens::default(),
        repeatable: Vec::new(),
    });
    assert!(last_call(&mut play).is_some());
}

/// The provider's counts correct the next estimate, and each answer says how far off the last one was.
#[test]
fn provider_counts_correct_estimates() {
    let mut play = Harness::start(TestSpec::default());
    let counted = |tokens| {
        let mut response = call_response(&["allowed"]);
        response.usage = Usage { input_tokens: tokens, output_tokens: 5, ..Usage::default() };
        response
    };
    let estimate = |play: &Harness| play.state.usage_with_output("").input_tokens;
    // A quarter was added, because nothing is known of the model.
    let first = estimate(&play);
    let base = first * 1000 / 1250;
    play.respond(counted(base));
    let payload = play.payload("cognition_out");
    assert_eq!((&payload["estimated"], &payload["actual"]), (&json!(first), &json!(base)));
    let words = "All work and no play makes Jack a dull boy. ".repeat(100);
    play.finish_tool(0, &words);
    let learned = estimate(&play) - (base + 5);
    assert!((900..1500).contains(&learned), "{learned}");
    // Twice as many were counted as were estimated: so the next text is estimated.
    play.respond(counted(base + 5 + 2 * learned));
    play.finish_tool(0, &words);
    let next = estimate(&play) - (base + 10 + 2 * learned);
    assert!(next > 19 * learned / 10 && next < 23 * learned / 10, "{next} {learned}");
}

#[test]
fn small_token_limit_leaves_a_short_answer() {
    let limits = json!({"turns": 25, "tokens": 1400, "spend": 1.0, "duration_seconds": 600});
    let mut play = Harness::start(TestSpec { limits, ..TestSpec::default() });
    let (output, _) = last_call(&mut play).expect("a call");
    assert!((128..1000).contains(&output), "{output}");
    let limits = json!({"turns": 25, "tokens": 1400, "spend": 1.0, "duration_seconds": 600});
    let mut old = Harness::start(TestSpec { limits, revision: 1, ..TestSpec::default() });
    assert_eq!(last_call(&mut old), None, "one token for each byte did not fit");
}

/// A thread whose call waits for money that others have reserved.
pub(super) fn waiting_thread() -> Harness {
    let mut play = Harness::start(TestSpec::default());
    let (_, bound) = last_call(&mut play).expect("a call");
    play.apply(ThreadEvent::BudgetRefused(refusal(100_000, 0, 99_000, bound)));
    play
}
