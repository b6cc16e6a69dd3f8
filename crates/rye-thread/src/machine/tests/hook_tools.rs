//! What the answers of the thread's own tools do.

use serde_json::{Value, json};

use super::config_keys::config_with;
use super::harness::{Harness, TestSpec, call_response, text_response};
use crate::config::Criticality;
use crate::machine::Effect;
use crate::machine::hooks::QueuedAction;
use crate::money::Nanos;

/// A run whose hook at `after_step` calls an internal tool.
fn run_with(tool: &str, params: &Value, revision: u32) -> Harness {
    let action = json!({
        "primary": "execute", "item_type": "tool",
        "item_id": format!("rye/agent/threads/internal/{tool}"), "params": params,
    });
    let hooks = json!([{"id": "own", "event": "after_step", "action": action}]);
    let mut play = Harness::start(TestSpec { hooks, revision, ..TestSpec::default() });
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "ok");
    play
}

#[test]
fn reported_cost_is_added_and_booked() {
    let added = json!({"turns": 1, "input_tokens": 7, "output_tokens": 3, "spend": "0.25"});
    let mut play = run_with("cost_tracker", &json!({"added": added}), 1);
    let before = Nanos(10 * 10 + 5 * 50);
    assert_eq!(play.state.cost.spend, before.plus(Nanos(250_000_000)));
    assert_eq!((play.state.cost.turns, play.state.cost.tokens()), (2, 15 + 10));
    let booked = play.drain().into_iter().find_map(|effect| match effect {
        Effect::RecordSpend { call, used, hook } => Some((call, used.spend, used.tokens(), hook)),
        _ => None,
    });
    assert_eq!(booked, Some((2, Nanos(250_000_000), 10, "own".to_owned())));
    assert_eq!(play.state.calls, 3, "the next model call has a number of its own");
    play.respond(text_response("done"));
    assert_eq!(play.replay().cost, play.state.cost);
}

/// What the machine takes of a reported cost, whatever tool of this name answered: what is booked, and why not.
fn booked(origin: &str, params: &Value, revision: u32) -> (Option<Nanos>, Vec<Value>) {
    let action = json!({
        "primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/cost_tracker", "params": params,
    });
    let hook = json!({"id": "own", "event": "after_step", "action": action});
    let mut spec = TestSpec { revision, ..TestSpec::default() };
    match origin {
        "directive" => spec.hooks = json!([hook]),
        _ => {
            let mut hook = hook;
            hook["origin"] = json!(origin);
            spec.config = config_with("hook_conditions", &["builtin_hooks"], json!([hook]));
        }
    }
    let mut play = Harness::start(spec);
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "ok");
    let failed = play.emitted.iter().filter(|(event, _)| event == "hook_failed");
    let failed = failed.map(|(_, payload)| payload["error"].clone()).collect();
    let spend = play.drain().into_iter().find_map(|effect| match effect {
        Effect::RecordSpend { used, .. } => Some(used.spend),
        _ => None,
    });
    (spend, failed)
}

#[test]
fn directive_hook_books_no_reported_cost() {
    // The answer of a tool that stands in the place of the built-in one, to a call that only asks.
    let answer = json!({"added": {"spend": "1000"}});
    let refusal = json!(crate::capability::LEDGER_REFUSAL);
    assert_eq!(booked("directive", &answer, 6), (None, vec![refusal.clone()]));
    assert_eq!(booked("project", &answer, 6), (None, vec![refusal]));
    assert_eq!(booked("directive", &answer, 5), (Some(Nanos(1_000_000_000_000)), Vec::new()));
    assert_eq!(booked("user", &answer, 6), (Some(Nanos(1_000_000_000_000)), Vec::new()));
}

#[test]
fn huge_reported_cost_fails_its_hook() {
    for added in [
        json!({"input_tokens": u64::MAX}),
        json!({"turns": u64::MAX, "spend": 1}),
        json!({"spend": 9_000_000_000_u64}),
        json!({"spend": "much"}),
    ] {
        let (spend, failed) = booked("user", &json!({"added": added}), 6);
        assert_eq!((spend, failed.len()), (None, 1), "{added}: {failed:?}");
    }
}

#[test]
fn hook_event_keeps_its_criticality() {
    let emit = |criticality: &str| {
        let params = json!({"event_type": "note", "payload": {"a": 1}, "criticality": criticality});
        let mut play = run_with("emitter", &params, 1);
        let is_emitted = play.emitted.iter().any(|(event, _)| event == "note");
        let changed = play.drain().into_iter().find_map(|effect| match effect {
            Effect::EmitAs { event_type, criticality, .. } => Some((event_type, criticality)),
            _ => None,
        });
        (is_emitted, changed)
    };
    assert_eq!(emit("droppable"), (false, Some(("note".to_owned(), Criticality::Droppable))));
    assert_eq!(emit("critical"), (true, None));
}

#[test]
fn hook_cannot_emit_core_events() {
    for event in ["human_approval_response", "cognition_out", "thread_completed", "tool_call_result"] {
        let params = json!({"event_type": event, "payload": {"approval_id": "ask-1", "approved": true}});
        let count = |play: &Harness| play.emitted.iter().filter(|(name, _)| name == event).count();
        let plain = run_with("emitter", &json!({"event_type": "note"}), 1);
        assert_eq!(count(&run_with("emitter", &params, 1)), count(&plain), "{event}");
    }
    // A thread that an older release started replays as it ran.
    let params = json!({"event_type": "human_approval_response", "payload": {}});
    let old = run_with("emitter", &params, 0);
    assert!(old.emitted.iter().any(|(event, _)| event == "human_approval_response"));
}

#[test]
fn only_hook_tools_run_again_after_a_crash() {
    let action = |id: &str| QueuedAction { hook: 0, action: json!({"primary": "execute", "item_id": id}) };
    let copied = action("team/rye/agent/threads/internal/deploy");
    assert!(copied.is_repeatable(6), "as journals of older releases are replayed");
    assert!(!copied.is_repeatable(7));
    for id in ["rye/agent/threads/internal/emitter", "tool:rye/agent/threads/internal/emitter"] {
        assert!(action(id).is_repeatable(7), "{id}");
    }
    for id in ["Rye/agent/threads/internal/emitter", "rye/agent/threads/internals/emitter", "team/deploy"] {
        assert!(!action(id).is_repeatable(7), "{id}");
    }
}
