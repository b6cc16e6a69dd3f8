//! What holds whatever the world does.

use crate::model::{FinishReason, Usage};
use proptest::prelude::*;
use serde_json::json;

use super::harness::{Harness, TestSpec, approval_response, call_response, model_error, text_response};
use crate::machine::{ApprovalAnswer, BudgetResource, Effect, ThreadEvent, ThreadOutcome, ToolResult, step};
use crate::money::Nanos;
use crate::status::ThreadStatus;

fn callback_event(index: usize) -> ThreadEvent {
    ThreadEvent::CallbackRequested {
        index,
        request: 1,
        action: json!({"primary": "execute"}),
        original: None,
        denied: None,
    }
}

/// One answer of the world to whatever is wanted most.
fn respond(play: &mut Harness, choice: u8) {
    let effects = play.drain();
    let pending = effects.iter().find(|effect| !matches!(effect, Effect::SaveState(_)));
    match pending {
        Some(Effect::CallModel { request, cost_bound, .. }) => {
            let cost_bound = *cost_bound;
            let max_output = request.max_output_tokens;
            // No server counts more than was planned for.
            let usage = Usage {
                input_tokens: play.state.planned.input.min(u64::from(choice)),
                output_tokens: max_output.min(u64::from(choice) * 9),
                ..Usage::default()
            };
            let mut response = match choice % 9 {
                0 => text_response("words"),
                8 => approval_response(&["allowed"]),
                1 => call_response(&["allowed"]),
                2 => call_response(&["allowed", "secret", "other"]),
                3 => call_response(&["directive_return"]),
                4 => text_response(""),
                5 => return play.fail(model_error(500)),
                6 => return play.fail(model_error(401)),
                _ => call_response(&["control", "nonsense"]),
            };
            response.usage = usage;
            if choice.is_multiple_of(16) {
                response.finish_reason = FinishReason::Length;
            }
            let price = play.state.spec.template.price.unwrap_or_default();
            let spend = Nanos(price.cost(&response.usage)).min(cost_bound.spend);
            play.apply(ThreadEvent::ModelResponded { response, spend });
        }
        Some(Effect::Sleep { .. }) => play.apply(ThreadEvent::BackoffElapsed),
        Some(Effect::RunHook { .. }) => {
            play.apply(ThreadEvent::HookDone { result: json!({"status": "success", "data": {}}) })
        }
        Some(Effect::Dispatch { .. }) => {
            let running = play.state.running_tools();
            let Some((index, _)) = running.get(usize::from(choice) % running.len().max(1)) else { return };
            if choice.is_multiple_of(4) {
                play.apply(callback_event(*index));
                let (index, request) = (*index, 1);
                let completed = ThreadEvent::CallbackCompleted {
                    index,
                    request,
                    is_error: false,
                    duration_ms: 1,
                    child: None,
                    child_status: None,
                };
                play.apply(completed);
            }
            let result = ToolResult {
                content: "ok".to_owned(),
                is_error: choice.is_multiple_of(3),
                duration_ms: 1,
                child: None,
                child_status: None,
                sandbox: None,
            };
            play.apply(ThreadEvent::ToolDone { index: *index, result });
        }
        Some(Effect::Suspend(_) | Effect::RequestApproval(_)) => {
            let limits = play.state.limits;
            let verdict = |question: &crate::machine::ApprovalRequest| ApprovalAnswer {
                request_id: question.id.clone(),
                approved: !choice.is_multiple_of(3),
                message: None,
                by: "a user".to_owned(),
                always: (choice % 7 == 1).then_some(crate::machine::ApprovalScope::Arguments),
            };
            let answers = play.state.pending_approvals().iter().map(verdict).collect();
            play.apply(ThreadEvent::Resumed { limits, message: None, by: "a user".to_owned(), answers });
        }
        _ => match (choice % 5, play.state.running_tools().first()) {
            (_, Some((index, _))) => {
                let index = *index;
                play.finish_tool(index, "late");
            }
            (0, None) => play.apply(ThreadEvent::CancelRequested {
                reason: "enough".to_owned(),
                spend: Nanos(0),
                partial: None,
            }),
            (1, None) => play.apply(ThreadEvent::Expired { spend: Nanos(0), partial: None }),
            (2, None) => play.apply(ThreadEvent::BudgetRefused(crate::machine::BudgetRefusal {
                refused_by: play.state.spec.instance.thread_id.clone(),
                resource: BudgetResource::Spend,
                limit: 1,
                used: 1,
                reserved: 0,
                requested: 1,
                rolling: None,
            })),
            _ => play.apply(ThreadEvent::BackoffElapsed),
        },
    }
}

fn spec_with_limits(turns: u64, tokens: u64, spend: u64, has_outputs: bool) -> TestSpec {
    let outputs = if has_outputs { json!([{"name": "x", "required": true}]) } else { json!([]) };
    let spend = Nanos(spend).to_decimal();
    TestSpec {
        limits: json!({"turns": turns, "tokens": tokens, "spend": spend}),
        outputs,
        ..TestSpec::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn replay_equals_the_original(choices in prop::collection::vec(any::<u8>(), 1..60), turns in 1_u64..8, has_outputs: bool) {
        let mut play = Harness::start(spec_with_limits(turns, 1_000_000, 1_000_000_000, has_outputs));
        for choice in choices {
            respond(&mut play, choice);
        }
        let replayed = play.replay();
        prop_assert_eq!(format!("{:?}", replayed.phase), format!("{:?}", play.state.phase));
        prop_assert_eq!(&replayed.messages, &play.state.messages);
        prop_assert_eq!(replayed.cost, play.state.cost);
        prop_assert_eq!(replayed.calls, play.state.calls);
    }

    #[test]
    fn nothing_happens_after_the_end(choices in prop::collection::vec(any::<u8>(), 1..60)) {
        let mut play = Harness::start(spec_with_limits(4, 1_000_000, 1_000_000_000, false));
        for choice in choices {
            let was_ended = play.state.status().is_terminal();
            let before = play.emitted.len();
            respond(&mut play, choice);
            if was_ended {
                prop_assert!(play.effects.is_empty());
                prop_assert_eq!(play.emitted.len(), before);
            }
        }
        if play.state.status().is_terminal() {
            let events = [
                ThreadEvent::Started,
                callback_event(0),
                ThreadEvent::BackoffElapsed,
                ThreadEvent::Interrupted { spend: Nanos(1), spend_at_most: Nanos(1), tokens: crate::machine::InterruptedTokens::default(), repeatable: Vec::new() },
                ThreadEvent::CancelRequested { reason: String::new(), spend: Nanos(1), partial: None },
            ];
            let cost = play.state.cost;
            for event in events {
                prop_assert!(step(&mut play.state, 9_999_999, event).is_empty());
            }
            prop_assert_eq!(cost, play.state.cost);
        }
    }

    #[test]
    fn limits_are_never_exceeded(
        choices in prop::collection::vec(any::<u8>(), 1..80),
        turns in 1_u64..6,
        tokens in 500_u64..20_000,
        spend in 1_000_u64..2_000_000,
    ) {
        let mut play = Harness::start(spec_with_limits(turns, tokens, spend, false));
        for choice in choices {
            respond(&mut play, choice);
            prop_assert!(play.state.cost.turns <= turns);
            prop_assert!(play.state.cost.tokens() <= tokens, "{} of {tokens}", play.state.cost.tokens());
            prop_assert!(play.state.cost.spend <= Nanos(spend));
        }
    }

    #[test]
    fn a_denied_call_is_never_dispatched(choices in prop::collection::vec(any::<u8>(), 1..60)) {
        let mut play = Harness::start(spec_with_limits(8, 1_000_000, 1_000_000_000, false));
        for choice in choices {
            for effect in &play.effects {
                if let Effect::Dispatch { action, .. } = effect {
                    let id = action.action().item_id.clone().unwrap_or_default();
                    prop_assert!(id.starts_with("team/"), "{id}");
                }
            }
            respond(&mut play, choice);
        }
    }

    #[test]
    fn every_end_is_emitted_once(choices in prop::collection::vec(any::<u8>(), 1..80)) {
        let mut play = Harness::start(spec_with_limits(4, 1_000_000, 1_000_000_000, true));
        for choice in choices {
            respond(&mut play, choice);
        }
        let ends = ["thread_completed", "thread_error", "thread_cancelled"];
        let told = play.event_types().iter().filter(|told| ends.contains(told)).count();
        let has_ended = matches!(play.state.outcome(), Some(ThreadOutcome { status, .. }) if *status != ThreadStatus::Suspended);
        prop_assert_eq!(told, usize::from(has_ended));
    }
}
