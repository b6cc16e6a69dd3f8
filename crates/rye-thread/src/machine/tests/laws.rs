//! What holds whatever the world does.

use crate::model::{Finish, Usage};
use proptest::prelude::*;
use serde_json::json;

use super::world::{Plan, Play, asking, calls, failure, says};
use crate::machine::{Effect, Event, Outcome, Scarce, ToolResult, Verdict, step};
use crate::money::Nanos;
use crate::status::Status;

fn asked(index: usize) -> Event {
    Event::ToolAsked { index, request: 1, action: json!({"primary": "execute"}), denied: None }
}

/// One answer of the world to whatever is wanted most.
fn reply(play: &mut Play, choice: u8) {
    let effects = play.drain();
    let wanted = effects.iter().find(|effect| !matches!(effect, Effect::Save(_)));
    match wanted {
        Some(Effect::CallModel { request, worst, .. }) => {
            let worst = *worst;
            let most = request.max_output_tokens;
            // No server counts more than there can be.
            let usage = Usage {
                input_tokens: play.state.context.input_of(request).min(u64::from(choice)),
                output_tokens: most.min(u64::from(choice) * 9),
                ..Usage::default()
            };
            let mut answer = match choice % 9 {
                0 => says("words"),
                8 => asking(&["allowed"]),
                1 => calls(&["allowed"]),
                2 => calls(&["allowed", "secret", "other"]),
                3 => calls(&["directive_return"]),
                4 => says(""),
                5 => return play.fail(failure(500)),
                6 => return play.fail(failure(401)),
                _ => calls(&["control", "nonsense"]),
            };
            answer.usage = usage;
            if choice.is_multiple_of(16) {
                answer.finish = Finish::Length;
            }
            let price = play.state.spec.shared.price.unwrap_or_default();
            let spend = Nanos(price.of(&answer.usage)).min(worst.spend);
            play.take(Event::Answered { answer, spend });
        }
        Some(Effect::Sleep { .. }) => play.take(Event::Slept),
        Some(Effect::RunHook { .. }) => {
            play.take(Event::HookDone { result: json!({"status": "success", "data": {}}) })
        }
        Some(Effect::Dispatch { .. }) => {
            let running = play.state.running_tools();
            let Some((index, _)) = running.get(usize::from(choice) % running.len().max(1)) else { return };
            if choice.is_multiple_of(4) {
                play.take(asked(*index));
                let (index, request) = (*index, 1);
                let answered =
                    Event::ToolAnswered { index, request, is_error: false, duration_ms: 1, child: None };
                play.take(answered);
            }
            let result = ToolResult {
                content: "ok".to_owned(),
                is_error: choice.is_multiple_of(3),
                duration_ms: 1,
                child: None,
            };
            play.take(Event::ToolDone { index: *index, result });
        }
        Some(Effect::Suspend(_) | Effect::Ask(_)) => {
            let limits = play.state.limits;
            let verdict = |question: &crate::machine::Question| Verdict {
                question: question.id.clone(),
                approved: !choice.is_multiple_of(3),
                message: None,
                by: "somebody".to_owned(),
            };
            let answers = play.state.questions().iter().map(verdict).collect();
            play.take(Event::Resumed { limits, message: None, by: "somebody".to_owned(), answers });
        }
        _ => match (choice % 5, play.state.running_tools().first()) {
            (_, Some((index, _))) => {
                let index = *index;
                play.tool(index, "late");
            }
            (0, None) => play.take(Event::CancelRequested { reason: "enough".to_owned(), spend: Nanos(0) }),
            (1, None) => play.take(Event::Expired { spend: Nanos(0) }),
            (2, None) => play.take(Event::Refused(crate::machine::Refusal {
                by: play.state.spec.own.thread_id.clone(),
                what: Scarce::Spend,
                most: 1,
                used: 1,
                reserved: 0,
                asked: 1,
            })),
            _ => play.take(Event::Slept),
        },
    }
}

fn plan(turns: u64, tokens: u64, spend: u64, has_outputs: bool) -> Plan {
    let outputs = if has_outputs { json!([{"name": "x", "required": true}]) } else { json!([]) };
    let spend = Nanos(spend).plain_dollars();
    Plan { limits: json!({"turns": turns, "tokens": tokens, "spend": spend}), outputs, ..Plan::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn replay_equals_the_original(choices in prop::collection::vec(any::<u8>(), 1..60), turns in 1_u64..8, has_outputs: bool) {
        let mut play = Play::started(plan(turns, 1_000_000, 1_000_000_000, has_outputs));
        for choice in choices {
            reply(&mut play, choice);
        }
        let replayed = play.replayed();
        prop_assert_eq!(format!("{:?}", replayed.phase), format!("{:?}", play.state.phase));
        prop_assert_eq!(&replayed.messages, &play.state.messages);
        prop_assert_eq!(replayed.cost, play.state.cost);
        prop_assert_eq!(replayed.calls, play.state.calls);
    }

    #[test]
    fn nothing_happens_after_the_end(choices in prop::collection::vec(any::<u8>(), 1..60)) {
        let mut play = Play::started(plan(4, 1_000_000, 1_000_000_000, false));
        for choice in choices {
            let was_ended = play.state.status().is_terminal();
            let before = play.told.len();
            reply(&mut play, choice);
            if was_ended {
                prop_assert!(play.effects.is_empty());
                prop_assert_eq!(play.told.len(), before);
            }
        }
        if play.state.status().is_terminal() {
            let events = [
                Event::Started,
                asked(0),
                Event::Slept,
                Event::Interrupted { spend: Nanos(1), repeatable: Vec::new() },
                Event::CancelRequested { reason: String::new(), spend: Nanos(1) },
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
        let mut play = Play::started(plan(turns, tokens, spend, false));
        for choice in choices {
            reply(&mut play, choice);
            prop_assert!(play.state.cost.turns <= turns);
            prop_assert!(play.state.cost.tokens() <= tokens, "{} of {tokens}", play.state.cost.tokens());
            prop_assert!(play.state.cost.spend <= Nanos(spend));
        }
    }

    #[test]
    fn a_denied_call_is_never_dispatched(choices in prop::collection::vec(any::<u8>(), 1..60)) {
        let mut play = Play::started(plan(8, 1_000_000, 1_000_000_000, false));
        for choice in choices {
            for effect in &play.effects {
                if let Effect::Dispatch { action, .. } = effect {
                    let id = action.action().item_id.clone().unwrap_or_default();
                    prop_assert!(id.starts_with("team/"), "{id}");
                }
            }
            reply(&mut play, choice);
        }
    }

    #[test]
    fn every_end_is_told_once(choices in prop::collection::vec(any::<u8>(), 1..80)) {
        let mut play = Play::started(plan(4, 1_000_000, 1_000_000_000, true));
        for choice in choices {
            reply(&mut play, choice);
        }
        let ends = ["thread_completed", "thread_error", "thread_cancelled"];
        let told = play.types().iter().filter(|told| ends.contains(told)).count();
        let has_ended = matches!(play.state.outcome(), Some(Outcome { status, .. }) if *status != Status::Suspended);
        prop_assert_eq!(told, usize::from(has_ended));
    }
}
