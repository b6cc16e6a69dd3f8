//! A thread from turn to turn: limits, errors, retries, full contexts and crashes.

use crate::model::{ChatMessage, FinishReason};
use serde_json::{Value, json};

use super::harness::{Harness, TestSpec, call_response, model_error, text_response};
use crate::limits::LimitReached;
use crate::machine::{BudgetRefusal, BudgetResource, Effect, ThreadEvent, ThreadOutcome};
use crate::money::Nanos;
use crate::spec::MACHINE_REVISION;
use crate::status::{SuspendReason, ThreadStatus};
use crate::thread_id::ThreadId;

fn outcome(play: &Harness) -> &ThreadOutcome {
    play.state.outcome().unwrap_or_else(|| panic!("it waits for {}", play.state.waits_for()))
}

fn dispatched_calls(effects: &[Effect]) -> Vec<usize> {
    let index = |effect: &Effect| match effect {
        Effect::Dispatch { index, .. } => Some(*index),
        _ => None,
    };
    effects.iter().filter_map(index).collect()
}

#[test]
fn runner_full_turn_cycle() {
    let mut play = Harness::start(TestSpec::default());
    assert!(play.is_calling());
    play.drain();
    play.respond(call_response(&["allowed"]));
    assert_eq!(dispatched_calls(&play.drain()), [0]);
    play.finish_tool(0, "done");
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
            ChatMessage::User { .. } => "user",
            ChatMessage::Assistant { calls, .. } if calls.len() == 1 => "assistant",
            ChatMessage::Assistant { .. } => "wrong",
            ChatMessage::Tool { .. } => "tool",
        })
        .collect();
    assert_eq!(roles, ["user", "assistant", "tool"], "the call stands before its result");
    play.respond(text_response("All done."));
    assert_eq!(outcome(&play), &ThreadOutcome::completed(Some("All done.".to_owned()), None));
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
    assert_eq!(play.event_types(), expected);
}

#[test]
fn runner_error_classification_and_retry() {
    let mut play = Harness::start(TestSpec::default());
    play.drain();
    play.fail(model_error(529));
    assert_eq!(play.payload("error_classified")["category"], "transient");
    let effects = play.drain();
    assert!(matches!(effects.last(), Some(Effect::Sleep { .. })), "{effects:?}");
    play.apply(ThreadEvent::BackoffElapsed);
    assert!(play.is_calling());
    play.respond(text_response("fine"));
    assert_eq!(outcome(&play).status, ThreadStatus::Completed);
    assert_eq!(play.state.cost.turns, 1, "only answers are turns");
}

#[test]
fn thread_suspends_after_max_retries() {
    let exhaust = |revision: u32| {
        let mut play = Harness::start(TestSpec { revision, ..TestSpec::default() });
        let max_retries = play.state.spec.template.config.resilience.retry.max_retries;
        for attempt in 0..=max_retries {
            play.drain();
            play.fail(model_error(500));
            if attempt < max_retries {
                play.apply(ThreadEvent::BackoffElapsed);
            }
        }
        play
    };
    let mut play = exhaust(2);
    assert_eq!(outcome(&play).reason, Some(SuspendReason::Provider));
    assert!(outcome(&play).error.as_ref().is_some_and(|error| error.contains("gave up after 4 attempts")));
    play.drain();
    let limits = play.state.limits;
    play.apply(ThreadEvent::Resumed { limits, message: None, by: "ada".to_owned(), answers: Vec::new() });
    assert!(play.is_calling());
    // A thread that an older release started replays as it ran.
    assert_eq!(outcome(&exhaust(1)).status, ThreadStatus::Error);
}

#[test]
fn permanent_error_fails_with_its_message() {
    let mut play = Harness::start(TestSpec::default());
    play.fail(model_error(401));
    assert_eq!(outcome(&play), &ThreadOutcome::failed("status 401"));
    assert_eq!(play.payload("thread_error")["error"], "status 401");
}

#[test]
fn runner_stops_on_no_tool_calls() {
    let mut play = Harness::start(TestSpec::default());
    play.respond(text_response("hello"));
    assert_eq!(outcome(&play).result.as_deref(), Some("hello"));
}

#[test]
fn exceeded_limit_suspends_and_resumes() {
    let mut play = Harness::start(TestSpec { limits: json!({"turns": 1}), ..TestSpec::default() });
    play.drain();
    play.respond(call_response(&["allowed"]));
    play.drain();
    play.finish_tool(0, "done");
    assert_eq!(outcome(&play).status, ThreadStatus::Suspended);
    assert_eq!(outcome(&play).reason, Some(SuspendReason::Limit));
    assert_eq!(play.payload("limit_escalation_requested")["limit_code"], "turns_exceeded");
    assert_eq!(play.payload("thread_suspended")["suspend_reason"], "limit");
    assert!(!play.is_calling());
    let limits = crate::limits::ThreadLimits { turns: Some(2), ..play.state.limits };
    play.apply(ThreadEvent::Resumed { limits, message: None, by: "me".to_owned(), answers: Vec::new() });
    assert!(play.is_calling());
    play.respond(text_response("done"));
    assert_eq!(outcome(&play).status, ThreadStatus::Completed);
}

#[test]
fn hook_can_fail_at_limit() {
    let hook = json!([{"id": "strict", "event": "limit", "action": {
        "primary": "execute", "item_type": "tool", "item_id": "rye/agent/threads/internal/control",
        "params": {"action": "fail", "error": "no more ${limit_code}"}}}]);
    let mut play =
        Harness::start(TestSpec { limits: json!({"turns": 1}), hooks: hook, ..TestSpec::default() });
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "done");
    assert_eq!(outcome(&play), &ThreadOutcome::failed("no more turns_exceeded"));
}

#[test]
fn runner_cancellation_mid_loop() {
    let mut play = Harness::start(TestSpec::default());
    play.respond(call_response(&["allowed", "other"]));
    play.finish_tool(0, "done");
    play.drain();
    play.apply(ThreadEvent::CancelRequested { reason: "enough".to_owned(), spend: Nanos(0), partial: None });
    assert_eq!(outcome(&play), &ThreadOutcome::cancelled("enough"));
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
        let plan = TestSpec { limits: limits.clone(), price: None, ..TestSpec::default() };
        let mut play = Harness::new(plan.build());
        play.apply(ThreadEvent::Started);
        if play.state.status() == ThreadStatus::Running {
            let mut response = call_response(&["allowed"]);
            response.usage.input_tokens = 10;
            play.apply(ThreadEvent::ModelResponded { response, spend: Nanos(350) });
            play.finish_tool(0, "done");
        }
        assert_eq!(play.payload("limit_escalation_requested")["limit_code"], code, "{limits}");
    }
}

#[test]
fn infra_hooks_run_and_never_control() {
    let mut config = super::harness::shipped_config();
    let mut infra = config.hooks.iter().find(|hook| hook.id == "infra_save_state").expect("infra").clone();
    infra.id = "infra_that_wants_to_fail".to_owned();
    infra.actions = vec![json!({"primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/control", "params": {"action": "fail", "error": "no"}})];
    config.hooks.push(infra);
    let mut play = Harness::start(TestSpec { config, ..TestSpec::default() });
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "done");
    assert!(play.event_types().contains(&"checkpoint_saved"));
    assert!(play.is_calling(), "it continues");
}

#[test]
fn first_control_result_wins() {
    let control = |id: &str, action: Value| {
        json!({"id": id, "event": "error", "action": {"primary": "execute", "item_type": "tool",
            "item_id": "rye/agent/threads/internal/control", "params": action}})
    };
    let hooks = json!([
        control("watches", json!({"action": "continue"})),
        control("first", json!({"action": "fail", "error": "mine: ${error.message}"})),
        control("second", json!({"action": "abort"})),
    ]);
    let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
    play.fail(model_error(500));
    assert_eq!(outcome(&play), &ThreadOutcome::failed("mine: status 500"));
}

#[test]
fn failing_hook_is_only_reported() {
    let hooks = json!([{"id": "broken", "event": "after_step", "action": {
        "primary": "execute", "item_type": "tool", "item_id": "private/secret"}}]);
    let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "done");
    assert_eq!(play.payload("hook_failed")["hook"], "broken");
    assert!(play.is_calling());
}

#[test]
fn after_step_hooks_may_suspend() {
    let hooks = json!([{"id": "gate", "event": "after_step", "condition": {"path": "cost.turns", "op": "gte", "value": 1},
        "action": {"primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/control", "params": {"action": "suspend", "suspend_reason": "approval"}}}]);
    let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "done");
    assert_eq!(outcome(&play).reason, Some(SuspendReason::Approval));
}

#[test]
fn injected_context_precedes_prompt() {
    let hooks = json!([{"id": "rules", "event": "thread_started", "action": {
        "primary": "execute", "item_type": "tool", "item_id": "team/allowed"}}]);
    let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
    assert!(matches!(play.drain()[..], [Effect::RunHook { .. }]));
    play.apply(ThreadEvent::HookDone {
        result: json!({"status": "success", "data": {"content": " Follow the rules. "}}),
    });
    assert_eq!(play.payload("cognition_in")["text"], "Follow the rules.\n\nDo it.");
}

#[test]
fn untrusted_context_item_fails_the_thread() {
    let hooks = json!([{"id": "rules", "event": "thread_started", "action": {
        "primary": "execute", "item_type": "tool", "item_id": "team/allowed"}}]);
    let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
    play.apply(ThreadEvent::HookDone {
        result: json!({"status": "error", "kind": "integrity", "error": "tampered"}),
    });
    assert_eq!(outcome(&play).status, ThreadStatus::Error);
    assert!(outcome(&play).error.as_ref().is_some_and(|error| error.contains("`rules`")));
}

#[test]
fn denied_call_is_reported_and_not_made() {
    let mut play = Harness::start(TestSpec::default());
    play.drain();
    play.respond(call_response(&["allowed", "secret", "control", "nonsense"]));
    assert_eq!(dispatched_calls(&play.drain()), [0]);
    let denied: Vec<&Value> = play
        .emitted
        .iter()
        .filter(|(event_type, _)| event_type == "permission_denied")
        .map(|(_, payload)| payload)
        .collect();
    assert_eq!(denied.len(), 2, "{denied:?}");
    play.finish_tool(0, "done");
    assert!(play.is_calling(), "the thread continues");
}

#[test]
fn callback_request_is_only_recorded() {
    let mut play = Harness::start(TestSpec::default());
    play.drain();
    let callback = |index, denied| ThreadEvent::CallbackRequested {
        index,
        request: 3,
        action: json!({"item_id": "a/b"}),
        original: None,
        denied,
    };
    play.apply(callback(0, None));
    play.respond(call_response(&["allowed"]));
    play.drain();
    let before = play.state.clone();
    let denied = json!({"status": "error", "error": "no", "code": "RYE1121"});
    play.apply(callback(0, Some(denied)));
    play.apply(callback(7, None));
    let events: Vec<&(String, Value)> =
        play.emitted.iter().filter(|(events, _)| events == "tool_request").collect();
    assert_eq!(events.len(), 1, "only for a call that runs: {events:?}");
    assert_eq!((&events[0].1["request"], &events[0].1["action"]["item_id"]), (&json!(3), &json!("a/b")));
    let (last, payload) = play.emitted.last().expect("told");
    assert_eq!((last.as_str(), &payload["asker"]), ("permission_denied", &json!("tool")));
    assert_eq!(play.state.messages, before.messages);
    assert_eq!(play.state.running_tools(), before.running_tools());
    play.finish_tool(0, "done");
    assert!(play.is_calling(), "the thread continues");
}

#[test]
fn results_keep_call_order() {
    let mut play = Harness::start(TestSpec::default());
    play.drain();
    play.respond(call_response(&["allowed", "other", "allowed"]));
    assert_eq!(dispatched_calls(&play.drain()), [0, 1], "calls of one item one after the other");
    play.finish_tool(1, "second");
    assert_eq!(dispatched_calls(&play.drain()), Vec::<usize>::new());
    play.finish_tool(0, "first");
    assert_eq!(dispatched_calls(&play.drain()), [2]);
    play.finish_tool(2, "third");
    let contents: Vec<String> = play
        .state
        .messages
        .iter()
        .filter_map(|message| match &**message {
            ChatMessage::Tool { content, .. } => Some(content.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(contents, ["first", "second", "third"]);
}

#[test]
fn missing_outputs_are_requested() {
    let outputs = json!([{"name": "path", "type": "string", "required": true}]);
    let mut play = Harness::start(TestSpec { outputs: outputs.clone(), ..TestSpec::default() });
    play.respond(text_response("I am done."));
    assert!(
        play.payload("cognition_in")["text"].as_str().is_some_and(|text| text.contains("directive_return"))
    );
    let mut response = call_response(&["directive_return"]);
    response.calls[0].input.insert("path".to_owned(), json!("a.txt"));
    play.respond(response);
    assert_eq!(outcome(&play).status, ThreadStatus::Completed, "{:?}", outcome(&play));
    assert_eq!(outcome(&play).outputs.as_ref().map(|outputs| outputs["path"].clone()), Some(json!("a.txt")));

    let ended = |revision: u32| {
        let outputs = outputs.clone();
        let mut play = Harness::start(TestSpec { outputs, revision, ..TestSpec::default() });
        for text in ["I am done.", "Done, I said.", "Done!"] {
            play.respond(text_response(text));
        }
        outcome(&play).clone()
    };
    assert_eq!(ended(MACHINE_REVISION).status, ThreadStatus::Error, "never returned");
    assert_eq!(ended(MACHINE_REVISION).result.as_deref(), Some("Done!"));
    // A thread that an older release started replays as it ran.
    assert_eq!(ended(5).result.as_deref(), Some("I am done.Done, I said.Done!"));
}

#[test]
fn reached_duration_names_stopped_calls() {
    let expired = |revision: u32| {
        let limits = json!({"duration_seconds": 2});
        let mut play = Harness::start(TestSpec { limits, revision, ..TestSpec::default() });
        play.respond(call_response(&["allowed"]));
        play.drain();
        play.apply(ThreadEvent::Expired { spend: Nanos(0), partial: None });
        let reached = serde_json::from_value::<LimitReached>(outcome(&play).detail.clone());
        (reached.expect("a limit"), outcome(&play).error.clone().unwrap_or_default())
    };
    let (reached, message) = expired(MACHINE_REVISION);
    assert_eq!((reached.stopped.len(), reached.suggested_raise().as_str()), (1, "+60"));
    assert!(message.contains("team/allowed` was stopped and needs more time"), "{message}");
    let (reached, message) = expired(5);
    assert_eq!((reached.stopped.len(), reached.suggested_raise().as_str()), (0, "+2"));
    assert!(!message.contains("was stopped"), "{message}");
}

#[test]
fn a_returned_error_fails_the_thread() {
    let outputs = json!([{"name": "path", "type": "string", "required": true}]);
    let mut play = Harness::start(TestSpec { outputs, ..TestSpec::default() });
    let mut response = call_response(&["directive_return"]);
    response.calls[0].input.insert("status".to_owned(), json!("error"));
    response.calls[0].input.insert("error_detail".to_owned(), json!("blocked"));
    play.respond(response);
    assert_eq!(outcome(&play).error.as_deref(), Some("blocked"));
    assert_eq!(outcome(&play).status, ThreadStatus::Error);
}

#[test]
fn truncated_response_continues_empty_one_fails() {
    let mut play = Harness::start(TestSpec::default());
    play.respond(text_response(""));
    assert!(play.event_types().contains(&"error_classified"));
    let mut play = Harness::start(TestSpec::default());
    let mut cut = text_response("first half, ");
    cut.finish_reason = FinishReason::Length;
    play.respond(cut);
    play.respond(text_response("second half"));
    assert_eq!(outcome(&play).result.as_deref(), Some("first half, second half"));
}

#[test]
fn refused_response_makes_no_calls() {
    let mut play = Harness::start(TestSpec::default());
    let mut refused = call_response(&["allowed"]);
    refused.text = "I would rather not".to_owned();
    refused.finish_reason = FinishReason::Refused("refusal".to_owned());
    play.respond(refused);
    assert!(!play.event_types().contains(&"tool_call_start"), "{:?}", play.event_types());
    assert_eq!(play.payload("cognition_out")["finish"], "refusal");
    assert!(
        play.payload("error_classified")["error"].as_str().is_some_and(|error| error.contains("refusal"))
    );
    assert_eq!(outcome(&play).status, ThreadStatus::Error);
}

#[test]
fn paused_response_continues() {
    let mut play = Harness::start(TestSpec::default());
    let mut paused = text_response("first, ");
    paused.finish_reason = FinishReason::Paused;
    play.respond(paused);
    play.respond(text_response("then"));
    assert_eq!(outcome(&play).result.as_deref(), Some("first, then"));
    let mut play = Harness::start(TestSpec::default());
    for _ in 0..3 {
        let mut cut = text_response("a ");
        cut.finish_reason = FinishReason::Length;
        play.respond(cut);
    }
    assert_eq!(outcome(&play).status, ThreadStatus::Error);
    assert_eq!(outcome(&play).result.as_deref(), Some("a a a "));
}

#[test]
fn refused_call_reports_needed_raise() {
    let mut play = Harness::start(TestSpec::default());
    let own = ThreadId::parse("thread-0123456789ab").expect("an id");
    let refusal = BudgetRefusal {
        refused_by: own,
        resource: BudgetResource::Tokens,
        limit: 100,
        used: 40,
        reserved: 0,
        requested: 5_000,
        rolling: None,
    };
    play.apply(ThreadEvent::BudgetRefused(refusal));
    let reached: LimitReached = serde_json::from_value(outcome(&play).detail.clone()).expect("what ran out");
    assert_eq!(reached.suggested_raise(), "+4940");
    assert!(outcome(&play).error.as_deref().is_some_and(|why| why.contains("the next call may need 5000")));
    let spend = LimitReached::new("spend", json!(0.0004), json!(0.001)).with_needed(json!(0.01234567));
    assert_eq!(spend.suggested_raise(), "+0.011746");
    assert_eq!(LimitReached::new("spend", json!(0.05), json!(0.05)).suggested_raise(), "+0.05");
    // One that went past it needs what it is over, too.
    assert_eq!(LimitReached::new("tokens", json!(900), json!(300)).suggested_raise(), "+900");
}

#[test]
fn backoff_beyond_deadline_suspends() {
    let mut play = Harness::start(TestSpec::default());
    play.state.limits.duration_seconds = Some(30);
    let mut late = model_error(429);
    late.headers.insert("retry-after".to_owned(), "3600".to_owned());
    play.fail(late);
    assert_eq!(outcome(&play).reason, Some(SuspendReason::Limit));
    assert!(!play.event_types().contains(&"retry_scheduled"));
}

#[test]
fn insufficient_budget_suspends() {
    let ancestor = ThreadId::parse("thread-ffffffffffff").expect("an id");
    let own = ThreadId::parse("thread-0123456789ab").expect("an id");
    for (by, reason) in [(ancestor, SuspendReason::Budget), (own, SuspendReason::Limit)] {
        let mut play = Harness::start(TestSpec::default());
        let refusal = BudgetRefusal {
            refused_by: by,
            resource: BudgetResource::Spend,
            limit: 10,
            used: 4,
            reserved: 5,
            requested: 3,
            rolling: None,
        };
        play.apply(ThreadEvent::BudgetRefused(refusal));
        assert_eq!(outcome(&play).reason, Some(reason));
        assert_eq!(play.state.cost.turns, 0);
    }
}

#[test]
fn crash_repeats_only_repeatable_calls() {
    let mut play = Harness::start(TestSpec::default());
    play.respond(call_response(&["allowed", "other"]));
    play.drain();
    let mut state = play.replay();
    let effects = crate::machine::step(
        &mut state,
        5_000,
        ThreadEvent::Interrupted {
            spend: Nanos(7),
            spend_at_most: Nanos(7),
            tokens: crate::machine::InterruptedTokens::default(),
            repeatable: vec![1],
        },
    );
    assert_eq!(dispatched_calls(&effects), [1]);
    let events: Vec<&Effect> =
        effects.iter().filter(|effect| matches!(effect, Effect::Emit { .. })).collect();
    assert!(format!("{events:?}").contains("unknown"), "{events:?}");
    assert_eq!(state.cost.spend, play.state.cost.spend.plus(Nanos(7)));
}

#[test]
fn compaction_keeps_first_message() {
    let mut play = Harness::start(TestSpec { context_window: 100, ..TestSpec::default() });
    for turn in 0..3 {
        let mut response = call_response(&["allowed"]);
        response.usage.input_tokens = 95;
        play.respond(response);
        play.finish_tool(0, &"x".repeat(40_000));
        if let Some(Effect::RunHook { .. }) =
            play.drain().iter().find(|effect| matches!(effect, Effect::RunHook { .. }))
        {
            play.apply(ThreadEvent::HookDone {
                result: json!({"status": "success", "data": {"result": "a summary"}}),
            });
        }
        assert!(play.state.messages.len() <= 2 + 2 * 2, "turn {turn}: {}", play.state.messages.len());
    }
    assert!(
        matches!(&**play.state.messages.first().expect("a message"), ChatMessage::User { text, .. } if text == "Do it.")
    );
    assert!(play.event_types().contains(&"context_compacted"), "{:?}", play.event_types());
}
