//! The rows of 003 §8 about `safety_harness`, `runner` and context, each as a test.

use crate::model::{Finish, Message};
use serde_json::{Value, json};

use super::world::{Plan, Play, calls, failure, says};
use crate::machine::{Effect, Event, Outcome, Refusal, Scarce};
use crate::money::Nanos;
use crate::status::{Status, SuspendReason};
use crate::thread_id::ThreadId;

fn outcome(play: &Play) -> &Outcome {
    play.state.outcome().unwrap_or_else(|| panic!("it waits for {}", play.state.waits_for()))
}

fn dispatched(effects: &[Effect]) -> Vec<usize> {
    let index = |effect: &Effect| match effect {
        Effect::Dispatch { index, .. } => Some(*index),
        _ => None,
    };
    effects.iter().filter_map(index).collect()
}

#[test]
fn runner_full_turn_cycle() {
    let mut play = Play::started(Plan::default());
    assert!(play.is_calling());
    play.drain();
    play.answer(calls(&["allowed"]));
    assert_eq!(dispatched(&play.drain()), [0]);
    play.tool(0, "done");
    assert!(play.is_calling());
    let Some(Effect::CallModel { request, call, .. }) =
        play.drain().into_iter().find(|effect| matches!(effect, Effect::CallModel { .. }))
    else {
        panic!("a call")
    };
    assert_eq!(call, 2);
    let roles: Vec<&str> = request
        .messages
        .iter()
        .map(|message| match &**message {
            Message::User { .. } => "user",
            Message::Assistant { calls, .. } if calls.len() == 1 => "assistant",
            Message::Assistant { .. } => "wrong",
            Message::Tool { .. } => "tool",
        })
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool"], "the call stands before its result");
    play.answer(says("All done."));
    assert_eq!(outcome(&play), &Outcome::completed(Some("All done.".to_owned()), None));
    assert_eq!(play.state.cost.turns, 2);
    let expected = [
        "thread_started",
        "cognition_in",
        "cognition_out",
        "tool_call_start",
        "tool_call_result",
        "checkpoint_saved",
        "cognition_out",
        "thread_completed",
    ];
    assert_eq!(play.types(), expected);
}

#[test]
fn runner_error_classification_and_retry() {
    let mut play = Play::started(Plan::default());
    play.drain();
    play.fail(failure(529));
    assert_eq!(play.payload("error_classified")["category"], "transient");
    let effects = play.drain();
    assert!(matches!(effects.last(), Some(Effect::Sleep { .. })), "{effects:?}");
    play.take(Event::Slept);
    assert!(play.is_calling());
    play.answer(says("fine"));
    assert_eq!(outcome(&play).status, Status::Completed);
    assert_eq!(play.state.cost.turns, 1, "only answers are turns");
}

#[test]
fn runner_gives_up_after_max_retries_in_a_row() {
    let mut play = Play::started(Plan::default());
    let most = play.state.spec.shared.config.resilience.retry.max_retries;
    for attempt in 0..=most {
        play.drain();
        play.fail(failure(500));
        if attempt < most {
            play.take(Event::Slept);
        }
    }
    assert_eq!(outcome(&play).status, Status::Error);
    assert!(outcome(&play).error.as_ref().is_some_and(|error| error.contains("gave up after 4 attempts")));
}

#[test]
fn runner_fails_on_a_permanent_error_with_its_message() {
    let mut play = Play::started(Plan::default());
    play.fail(failure(401));
    assert_eq!(outcome(&play), &Outcome::failed("status 401"));
    assert_eq!(play.payload("thread_error")["error"], "status 401");
}

#[test]
fn runner_stops_on_no_tool_calls() {
    let mut play = Play::started(Plan::default());
    play.answer(says("hello"));
    assert_eq!(outcome(&play).result.as_deref(), Some("hello"));
}

#[test]
fn runner_limit_exceeded_escalates_to_suspended_and_goes_on() {
    let mut play = Play::started(Plan { limits: json!({"turns": 1}), ..Plan::default() });
    play.drain();
    play.answer(calls(&["allowed"]));
    play.drain();
    play.tool(0, "done");
    assert_eq!(outcome(&play).status, Status::Suspended);
    assert_eq!(outcome(&play).reason, Some(SuspendReason::Limit));
    assert_eq!(play.payload("limit_escalation_requested")["limit_code"], "turns_exceeded");
    assert_eq!(play.payload("thread_suspended")["suspend_reason"], "limit");
    assert!(!play.is_calling());
    let limits = crate::limits::Limits { turns: Some(2), ..play.state.limits };
    play.take(Event::Resumed { limits, message: None, by: "me".to_owned(), answers: Vec::new() });
    assert!(play.is_calling());
    play.answer(says("done"));
    assert_eq!(outcome(&play).status, Status::Completed);
}

#[test]
fn runner_limit_exceeded_fails_where_a_hook_says_so() {
    let hook = json!([{"id": "strict", "event": "limit", "action": {
        "primary": "execute", "item_type": "tool", "item_id": "rye/agent/threads/internal/control",
        "params": {"action": "fail", "error": "no more ${limit_code}"}}}]);
    let mut play = Play::started(Plan { limits: json!({"turns": 1}), hooks: hook, ..Plan::default() });
    play.answer(calls(&["allowed"]));
    play.tool(0, "done");
    assert_eq!(outcome(&play), &Outcome::failed("no more turns_exceeded"));
}

#[test]
fn runner_cancellation_mid_loop() {
    let mut play = Play::started(Plan::default());
    play.answer(calls(&["allowed", "other"]));
    play.tool(0, "done");
    play.drain();
    play.take(Event::CancelRequested { reason: "enough".to_owned(), spend: Nanos(0) });
    assert_eq!(outcome(&play), &Outcome::cancelled("enough"));
    assert_eq!(play.payload("thread_cancelled")["reason"], "enough");
    assert!(!play.is_calling());
}

#[test]
fn safety_harness_checks_turns_tokens_and_spend() {
    for (limits, code) in [
        (json!({"turns": 1}), "turns_exceeded"),
        (json!({"tokens": 15}), "tokens_exceeded"),
        (json!({"spend": "0.00000035"}), "spend_exceeded"),
    ] {
        let plan = Plan { limits: limits.clone(), price: None, ..Plan::default() };
        let mut play = Play::new(plan.spec());
        play.take(Event::Started);
        if play.state.status() == Status::Running {
            let mut answer = calls(&["allowed"]);
            answer.usage.input_tokens = 10;
            play.take(Event::Answered { answer, spend: Nanos(350) });
            play.tool(0, "done");
        }
        assert_eq!(play.payload("limit_escalation_requested")["limit_code"], code, "{limits}");
    }
}

#[test]
fn safety_harness_layer_3_hooks_always_run_and_never_steer() {
    let mut config = super::world::shipped();
    let mut infra = config.hooks.iter().find(|hook| hook.id == "infra_save_state").expect("infra").clone();
    infra.id = "infra_that_wants_to_fail".to_owned();
    infra.actions = vec![json!({"primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/control", "params": {"action": "fail", "error": "no"}})];
    config.hooks.push(infra);
    let mut play = Play::started(Plan { config, ..Plan::default() });
    play.answer(calls(&["allowed"]));
    play.tool(0, "done");
    assert!(play.types().contains(&"checkpoint_saved"));
    assert!(play.is_calling(), "it goes on");
}

#[test]
fn safety_harness_first_control_result_of_layers_1_and_2_wins() {
    let control = |id: &str, action: Value| {
        json!({"id": id, "event": "error", "action": {"primary": "execute", "item_type": "tool",
            "item_id": "rye/agent/threads/internal/control", "params": action}})
    };
    let hooks = json!([
        control("watches", json!({"action": "continue"})),
        control("first", json!({"action": "fail", "error": "mine: ${error.message}"})),
        control("second", json!({"action": "abort"})),
    ]);
    let mut play = Play::started(Plan { hooks, ..Plan::default() });
    play.fail(failure(500));
    assert_eq!(outcome(&play), &Outcome::failed("mine: status 500"));
}

#[test]
fn safety_harness_a_failing_hook_is_reported_and_changes_nothing() {
    let hooks = json!([{"id": "broken", "event": "after_step", "action": {
        "primary": "execute", "item_type": "tool", "item_id": "private/secret"}}]);
    let mut play = Play::started(Plan { hooks, ..Plan::default() });
    play.answer(calls(&["allowed"]));
    play.tool(0, "done");
    assert_eq!(play.payload("hook_failed")["hook"], "broken");
    assert!(play.is_calling());
}

#[test]
fn after_step_hooks_may_suspend() {
    let hooks = json!([{"id": "gate", "event": "after_step", "condition": {"path": "cost.turns", "op": "gte", "value": 1},
        "action": {"primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/control", "params": {"action": "suspend", "suspend_reason": "approval"}}}]);
    let mut play = Play::started(Plan { hooks, ..Plan::default() });
    play.answer(calls(&["allowed"]));
    play.tool(0, "done");
    assert_eq!(outcome(&play).reason, Some(SuspendReason::Approval));
}

#[test]
fn context_injection_texts_stand_before_the_prompt_in_one_message() {
    let hooks = json!([{"id": "rules", "event": "thread_started", "action": {
        "primary": "execute", "item_type": "tool", "item_id": "team/allowed"}}]);
    let mut play = Play::started(Plan { hooks, ..Plan::default() });
    assert!(matches!(play.drain()[..], [Effect::RunHook { .. }]));
    play.take(Event::HookDone {
        result: json!({"status": "success", "data": {"content": " Follow the rules. "}}),
    });
    assert_eq!(play.payload("cognition_in")["text"], "Follow the rules.\n\nDo it.");
}

#[test]
fn context_injection_stops_at_an_item_nobody_vouches_for() {
    let hooks = json!([{"id": "rules", "event": "thread_started", "action": {
        "primary": "execute", "item_type": "tool", "item_id": "team/allowed"}}]);
    let mut play = Play::started(Plan { hooks, ..Plan::default() });
    play.take(Event::HookDone {
        result: json!({"status": "error", "kind": "integrity", "error": "tampered"}),
    });
    assert_eq!(outcome(&play).status, Status::Error);
    assert!(outcome(&play).error.as_ref().is_some_and(|error| error.contains("`rules`")));
}

#[test]
fn a_denied_call_is_told_and_not_made() {
    let mut play = Play::started(Plan::default());
    play.drain();
    play.answer(calls(&["allowed", "secret", "control", "nonsense"]));
    assert_eq!(dispatched(&play.drain()), [0]);
    let denied: Vec<&Value> = play
        .told
        .iter()
        .filter(|(told, _)| told == "permission_denied")
        .map(|(_, payload)| payload)
        .collect();
    assert_eq!(denied.len(), 2, "{denied:?}");
    play.tool(0, "done");
    assert!(play.is_calling(), "the thread goes on");
}

#[test]
fn what_a_tool_asks_itself_is_told_and_changes_nothing() {
    let mut play = Play::started(Plan::default());
    play.drain();
    let asked =
        |index, denied| Event::ToolAsked { index, request: 3, action: json!({"item_id": "a/b"}), denied };
    play.take(asked(0, None));
    play.answer(calls(&["allowed"]));
    play.drain();
    let before = play.state.clone();
    let denied = json!({"status": "error", "error": "no", "code": "RYE1121"});
    play.take(asked(0, Some(denied)));
    play.take(asked(7, None));
    let told: Vec<&(String, Value)> = play.told.iter().filter(|(told, _)| told == "tool_request").collect();
    assert_eq!(told.len(), 1, "only for a call that runs: {told:?}");
    assert_eq!((&told[0].1["request"], &told[0].1["action"]["item_id"]), (&json!(3), &json!("a/b")));
    let (last, payload) = play.told.last().expect("told");
    assert_eq!((last.as_str(), &payload["asker"]), ("permission_denied", &json!("tool")));
    assert_eq!(play.state.messages, before.messages);
    assert_eq!(play.state.running_tools(), before.running_tools());
    play.tool(0, "done");
    assert!(play.is_calling(), "the thread goes on");
}

#[test]
fn results_are_told_in_the_order_of_the_calls() {
    let mut play = Play::started(Plan::default());
    play.drain();
    play.answer(calls(&["allowed", "other", "allowed"]));
    assert_eq!(dispatched(&play.drain()), [0, 1], "calls of one item one after the other");
    play.tool(1, "second");
    assert_eq!(dispatched(&play.drain()), Vec::<usize>::new());
    play.tool(0, "first");
    assert_eq!(dispatched(&play.drain()), [2]);
    play.tool(2, "third");
    let contents: Vec<String> = play
        .state
        .messages
        .iter()
        .filter_map(|message| match &**message {
            Message::Tool { content, .. } => Some(content.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(contents, ["first", "second", "third"]);
}

#[test]
fn declared_outputs_are_asked_for_and_checked() {
    let outputs = json!([{"name": "path", "type": "string", "required": true}]);
    let mut play = Play::started(Plan { outputs: outputs.clone(), ..Plan::default() });
    play.answer(says("I am done."));
    assert!(
        play.payload("cognition_in")["text"].as_str().is_some_and(|text| text.contains("directive_return"))
    );
    let mut answer = calls(&["directive_return"]);
    answer.calls[0].input.insert("path".to_owned(), json!("a.txt"));
    play.answer(answer);
    assert_eq!(outcome(&play).status, Status::Completed, "{:?}", outcome(&play));
    assert_eq!(outcome(&play).outputs.as_ref().map(|outputs| outputs["path"].clone()), Some(json!("a.txt")));

    let mut play = Play::started(Plan { outputs, ..Plan::default() });
    for _ in 0..3 {
        play.answer(says("I am done."));
    }
    assert_eq!(outcome(&play).status, Status::Error, "never returned");
}

#[test]
fn a_returned_error_fails_the_thread() {
    let outputs = json!([{"name": "path", "type": "string", "required": true}]);
    let mut play = Play::started(Plan { outputs, ..Plan::default() });
    let mut answer = calls(&["directive_return"]);
    answer.calls[0].input.insert("status".to_owned(), json!("error"));
    answer.calls[0].input.insert("error_detail".to_owned(), json!("blocked"));
    play.answer(answer);
    assert_eq!(outcome(&play).error.as_deref(), Some("blocked"));
    assert_eq!(outcome(&play).status, Status::Error);
}

#[test]
fn an_empty_answer_is_an_error_and_a_cut_one_goes_on() {
    let mut play = Play::started(Plan::default());
    play.answer(says(""));
    assert!(play.types().contains(&"error_classified"));
    let mut play = Play::started(Plan::default());
    let mut cut = says("first half, ");
    cut.finish = Finish::Length;
    play.answer(cut);
    play.answer(says("second half"));
    assert_eq!(outcome(&play).result.as_deref(), Some("first half, second half"));
}

#[test]
fn a_refused_answer_is_an_error_and_none_of_its_calls_is_made() {
    let mut play = Play::started(Plan::default());
    let mut refused = calls(&["allowed"]);
    refused.text = "I would rather not".to_owned();
    refused.finish = Finish::Refused("refusal".to_owned());
    play.answer(refused);
    assert!(!play.types().contains(&"tool_call_start"), "{:?}", play.types());
    assert_eq!(play.payload("cognition_out")["finish"], "refusal");
    assert!(
        play.payload("error_classified")["error"].as_str().is_some_and(|error| error.contains("refusal"))
    );
    assert_eq!(outcome(&play).status, Status::Error);
}

#[test]
fn a_paused_answer_goes_on_and_one_that_is_cut_for_ever_fails() {
    let mut play = Play::started(Plan::default());
    let mut paused = says("first, ");
    paused.finish = Finish::Paused;
    play.answer(paused);
    play.answer(says("then"));
    assert_eq!(outcome(&play).result.as_deref(), Some("first, then"));
    let mut play = Play::started(Plan::default());
    for _ in 0..3 {
        let mut cut = says("a ");
        cut.finish = Finish::Length;
        play.answer(cut);
    }
    assert_eq!(outcome(&play).status, Status::Error);
    assert_eq!(outcome(&play).result.as_deref(), Some("a a a "));
}

#[test]
fn a_call_that_would_cost_too_much_says_what_it_needs_and_more_is_enough() {
    let mut play = Play::started(Plan::default());
    let own = ThreadId::parse("thread-0123456789ab").expect("an id");
    let refusal = Refusal { by: own, what: Scarce::Tokens, most: 100, used: 40, reserved: 0, asked: 5_000 };
    play.take(Event::Refused(refusal));
    let reached: crate::limits::Reached =
        serde_json::from_value(outcome(&play).detail.clone()).expect("what ran out");
    assert_eq!(reached.more(), "+4940");
    assert!(outcome(&play).error.as_deref().is_some_and(|why| why.contains("the next call may need 5000")));
    let spend = crate::limits::Reached::new("spend", json!(0.0004), json!(0.001)).needing(json!(0.01234567));
    assert_eq!(spend.more(), "+0.011746");
    assert_eq!(crate::limits::Reached::new("spend", json!(0.05), json!(0.05)).more(), "+0.05");
    // One that went past it needs what it is over, too.
    assert_eq!(crate::limits::Reached::new("tokens", json!(900), json!(300)).more(), "+900");
}

#[test]
fn a_pause_that_is_longer_than_the_thread_has_is_not_waited_for() {
    let mut play = Play::started(Plan::default());
    play.state.limits.duration_seconds = Some(30);
    let mut late = failure(429);
    late.headers.insert("retry-after".to_owned(), "3600".to_owned());
    play.fail(late);
    assert_eq!(outcome(&play).reason, Some(SuspendReason::Limit));
    assert!(!play.types().contains(&"retry_scheduled"));
}

#[test]
fn a_budget_that_cannot_cover_a_call_suspends() {
    let ancestor = ThreadId::parse("thread-ffffffffffff").expect("an id");
    let own = ThreadId::parse("thread-0123456789ab").expect("an id");
    for (by, reason) in [(ancestor, SuspendReason::Budget), (own, SuspendReason::Limit)] {
        let mut play = Play::started(Plan::default());
        let refusal = Refusal { by, what: Scarce::Spend, most: 10, used: 4, reserved: 5, asked: 3 };
        play.take(Event::Refused(refusal));
        assert_eq!(outcome(&play).reason, Some(reason));
        assert_eq!(play.state.cost.turns, 0);
    }
}

#[test]
fn a_crash_makes_outcomes_unknown_unless_a_tool_may_be_run_again() {
    let mut play = Play::started(Plan::default());
    play.answer(calls(&["allowed", "other"]));
    play.drain();
    let mut state = play.replayed();
    let effects =
        crate::machine::step(&mut state, 5_000, Event::Interrupted { spend: Nanos(7), repeatable: vec![1] });
    assert_eq!(dispatched(&effects), [1]);
    let told: Vec<&Effect> = effects.iter().filter(|effect| matches!(effect, Effect::Emit { .. })).collect();
    assert!(format!("{told:?}").contains("unknown"), "{told:?}");
    assert_eq!(state.cost.spend, play.state.cost.spend.plus(Nanos(7)));
}

#[test]
fn the_context_makes_room_and_keeps_the_first_message() {
    let mut play = Play::started(Plan { context_window: 100, ..Plan::default() });
    for turn in 0..3 {
        let mut answer = calls(&["allowed"]);
        answer.usage.input_tokens = 95;
        play.answer(answer);
        play.tool(0, &"x".repeat(40_000));
        if let Some(Effect::RunHook { .. }) =
            play.drain().iter().find(|effect| matches!(effect, Effect::RunHook { .. }))
        {
            play.take(Event::HookDone {
                result: json!({"status": "success", "data": {"result": "a summary"}}),
            });
        }
        assert!(play.state.messages.len() <= 2 + 2 * 2, "turn {turn}: {}", play.state.messages.len());
    }
    assert!(
        matches!(&**play.state.messages.first().expect("a message"), Message::User { text } if text == "Do it.")
    );
    assert!(play.types().contains(&"context_compacted"), "{:?}", play.types());
}
