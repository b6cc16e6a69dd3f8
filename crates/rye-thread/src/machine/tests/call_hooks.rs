//! Hooks around calls: what they change, what they block, and what stands in the record.

use serde_json::{Map, Value, json};

use super::harness::{Harness, TestSpec, call_response, text_response};
use crate::machine::{Effect, ThreadEvent, step};
use crate::model::ChatMessage;
use crate::status::ThreadStatus;

/// A hook that calls the tool `team/policy`, or `internal/control` with these params.
fn hook(id: &str, event: &str, condition: &Value, control: Option<Value>) -> Value {
    let action = match control {
        Some(params) => json!({"primary": "execute", "item_type": "tool",
            "item_id": "rye/agent/threads/internal/control", "params": params}),
        None => json!({"primary": "execute", "item_type": "tool", "item_id": "team/policy",
            "params": {"arguments": "${arguments}"}}),
    };
    json!({"id": id, "event": event, "condition": condition, "action": action})
}

fn start(hooks: Value) -> Harness {
    let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
    play.drain();
    play
}

/// The hook's tool answers.
fn answer(play: &mut Harness, data: &Value) {
    play.apply(ThreadEvent::HookDone { result: json!({"status": "success", "data": data}) });
}

fn call_with(name: &str, input: &Value) -> crate::model::ModelResponse {
    let mut response = call_response(&[name]);
    response.calls[0].input = input.as_object().cloned().unwrap_or_else(Map::new);
    response
}

fn dispatched(effects: &[Effect]) -> Vec<Value> {
    let actions = effects.iter().filter_map(|effect| match effect {
        Effect::Dispatch { action, .. } => Some(action.action().to_value()),
        _ => None,
    });
    actions.collect()
}

fn is_hook_running(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::RunHook { .. }))
}

/// What the model reads of the last turn's results.
fn results(play: &Harness) -> Vec<(String, bool)> {
    let texts = play.state.messages.iter().filter_map(|message| match &**message {
        ChatMessage::Tool { content, is_error, .. } => Some((content.clone(), *is_error)),
        _ => None,
    });
    texts.collect()
}

#[test]
fn hook_changes_arguments_before_call() {
    let mut play = start(json!([hook("guard", "before_tool", &Value::Null, None)]));
    play.respond(call_with("allowed", &json!({"path": "/etc"})));
    let effects = play.drain();
    assert!(is_hook_running(&effects) && dispatched(&effects).is_empty(), "nothing runs before the hook");
    answer(&mut play, &json!({"call": {"arguments": {"path": "/tmp"}, "note": "kept to /tmp"}}));
    assert_eq!(dispatched(&play.drain())[0]["params"], json!({"path": "/tmp"}));
    assert_eq!(play.payload("tool_call_start")["input"], json!({"path": "/etc"}), "the original stays");
    let changed = play.payload("tool_call_changed");
    assert_eq!(changed["original"], json!({"path": "/etc"}));
    assert_eq!((&changed["arguments"], &changed["hook"]), (&json!({"path": "/tmp"}), &json!("guard")));
    play.finish_tool(0, "done");
    assert_eq!(results(&play), [("done\n\nkept to /tmp".to_owned(), false)]);
    assert_eq!(play.replay().messages, play.state.messages);
}

#[test]
fn model_reads_why_call_is_blocked() {
    let condition = json!({"path": "arguments.command", "op": "regex", "value": "rm -rf"});
    let control = json!({"action": "block", "error": "no recursive deletes"});
    let mut play = start(json!([hook("guard", "before_tool", &condition, Some(control))]));
    let mut response = call_response(&["allowed", "other"]);
    response.calls[0].input = json!({"command": "rm -rf /"}).as_object().expect("a map").clone();
    play.respond(response);
    let ran = dispatched(&play.drain());
    assert_eq!(ran.len(), 1);
    assert_eq!(ran[0]["item_id"], "team/other", "the other call is made");
    play.finish_tool(1, "fine");
    let read = results(&play);
    assert!(read[0].1 && read[0].0.contains("blocked by the hook `guard`: no recursive deletes"), "{read:?}");
    assert_eq!(read[1], ("fine".to_owned(), false));
    assert_eq!(play.payload("tool_call_blocked")["reason"], "no recursive deletes");
    assert!(play.is_calling(), "the thread continues");
}

#[test]
fn permission_is_checked_on_changed_arguments() {
    // The primary tool names its item in the arguments: what the hook leaves is what must be granted.
    let mut play = start(json!([hook("guard", "before_tool", &Value::Null, None)]));
    play.respond(call_with("secret", &json!({})));
    play.drain();
    answer(&mut play, &json!({"call": {"arguments": {"x": 1}}}));
    assert!(dispatched(&play.drain()).iter().all(|action| action["item_id"] != "private/secret"));
    assert!(play.event_types().contains(&"permission_denied"));
}

#[test]
fn failing_hook_before_call_blocks_it() {
    for data in [json!({"call": {"argument": {}}}), json!({"call": "no"})] {
        let mut play = start(json!([hook("guard", "before_tool", &Value::Null, None)]));
        play.respond(call_response(&["allowed"]));
        play.drain();
        answer(&mut play, &data);
        assert!(dispatched(&play.drain()).is_empty(), "{data}");
        assert!(play.event_types().contains(&"hook_failed"));
        assert!(results(&play)[0].0.contains("it failed"));
    }
    let mut play = start(json!([hook("guard", "before_tool", &Value::Null, None)]));
    play.respond(call_response(&["allowed"]));
    play.drain();
    play.apply(ThreadEvent::HookDone {
        result: json!({"status": "error", "error": "it took longer than 30 s"}),
    });
    assert!(dispatched(&play.drain()).is_empty());
    assert!(results(&play)[0].0.contains("it took longer than 30 s"));
}

#[test]
fn hook_that_may_not_run_blocks() {
    let action = json!({"primary": "execute", "item_type": "tool", "item_id": "private/policy"});
    let mut play = start(json!([{"id": "guard", "event": "before_tool", "action": action}]));
    play.respond(call_response(&["allowed"]));
    assert!(dispatched(&play.drain()).is_empty());
    assert!(results(&play)[0].0.contains("blocked by the hook `guard`"));
}

#[test]
fn hook_replaces_and_withholds_results() {
    let mut play = start(json!([hook("mask", "after_tool", &Value::Null, None)]));
    play.respond(call_response(&["allowed", "other"]));
    play.drain();
    play.finish_tool(0, "card 4111");
    play.finish_tool(1, "secret");
    answer(&mut play, &json!({"call": {"result": "card ****", "note": "masked"}}));
    answer(&mut play, &json!({"call": {"block": "not for you"}}));
    let read = results(&play);
    assert_eq!(read[0], ("card ****\n\nmasked".to_owned(), false));
    assert!(read[1].1 && read[1].0.contains("not for you") && !read[1].0.contains("secret"), "{read:?}");
    let originals: Vec<&Value> = play
        .emitted
        .iter()
        .filter(|(name, _)| name == "tool_call_result")
        .map(|(_, payload)| payload)
        .collect();
    assert_eq!((&originals[0]["output"], &originals[1]["output"]), (&json!("card 4111"), &json!("secret")));
    let changes = play.event_types().iter().filter(|name| **name == "tool_result_changed").count();
    assert_eq!(changes, 2);
    assert_eq!(play.replay().messages, play.state.messages);
}

#[test]
fn hooks_see_what_earlier_ones_left() {
    // The user's hook runs last, whatever its place in the file: no other changes what it has seen.
    let user = json!({"id": "user", "event": "before_tool", "origin": "user",
        "condition": {"path": "arguments.path", "op": "eq", "value": "/etc"},
        "action": {"primary": "execute", "item_type": "tool",
            "item_id": "rye/agent/threads/internal/control",
            "params": {"action": "block", "error": "not ${arguments.path}"}}});
    let mut config = super::harness::shipped_config();
    config.hooks.extend(
        crate::config::hooks::parse_hooks(
            &json!({"action_primaries": ["execute"], "action_item_types": ["tool"]}),
            &json!({"hooks": [user]}),
        )
        .expect("hooks"),
    );
    let hooks = json!([hook("directive", "before_tool", &Value::Null, None)]);
    let mut play = Harness::start(TestSpec { hooks, config, ..TestSpec::default() });
    play.drain();
    play.respond(call_with("allowed", &json!({"path": "/tmp"})));
    answer(&mut play, &json!({"call": {"arguments": {"path": "/etc"}}}));
    assert!(dispatched(&play.drain()).is_empty());
    assert!(results(&play)[0].0.contains("not /etc"), "{:?}", results(&play));
}

#[test]
fn hooks_around_the_model_add_and_block() {
    let mut play = Harness::start(TestSpec {
        hooks: json!([hook("prompt", "before_model", &Value::Null, None)]),
        ..TestSpec::default()
    });
    assert!(!play.is_calling(), "the hook first");
    answer(&mut play, &json!({"call": {"note": "Today is Friday."}}));
    let request = play.drain().into_iter().find_map(|effect| match effect {
        Effect::CallModel { request, .. } => Some(request),
        _ => None,
    });
    let last = request.expect("asked").messages.last().cloned();
    assert_eq!(last.as_deref(), Some(&ChatMessage::user("Today is Friday.".to_owned())));
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "ok");
    answer(&mut play, &json!({"call": {"block": "enough"}}));
    assert_eq!(play.state.status(), ThreadStatus::Error);
    assert_eq!(play.payload("model_call_blocked")["event"], "before_model");
    let error = play.state.outcome().and_then(|outcome| outcome.error.clone()).unwrap_or_default();
    assert_eq!(error, "blocked by the hook `prompt`: enough");
}

#[test]
fn hook_after_model_turns_answers_down() {
    let mut play = start(json!([hook("review", "after_model", &Value::Null, None)]));
    play.respond(text_response("all done"));
    assert_eq!(play.state.status(), ThreadStatus::Running);
    answer(&mut play, &json!({"call": {"block": "the tests fail"}}));
    assert!(play.is_calling(), "the thread continues, and the model reads why");
    let last = play.state.messages.last().expect("a message");
    assert!(matches!(&**last, ChatMessage::User { text, .. } if text.contains("the tests fail")));
    play.drain();
    play.respond(call_response(&["allowed"]));
    answer(&mut play, &json!({"call": {"block": "no tools now"}}));
    assert!(dispatched(&play.drain()).is_empty(), "no call of it is made");
    assert!(results(&play)[0].0.contains("no tools now"));
    play.respond(text_response("really done"));
    answer(&mut play, &json!({}));
    assert_eq!(play.state.status(), ThreadStatus::Completed);
    assert_eq!(play.replay().messages, play.state.messages);
}

#[test]
fn committed_hook_results_are_not_repeated() {
    let mut play = start(json!([hook("guard", "before_tool", &Value::Null, None)]));
    play.respond(call_response(&["allowed"]));
    answer(&mut play, &json!({"call": {"arguments": {"a": 1}}}));
    let mut state = play.replay();
    let effects = step(
        &mut state,
        9_000,
        ThreadEvent::Interrupted {
            spend: crate::money::Nanos(0),
            spend_at_most: crate::money::Nanos(0),
            tokens: crate::machine::InterruptedTokens::default(),
            repeatable: vec![0],
        },
    );
    assert!(!is_hook_running(&effects), "its answer is in the record");
    assert_eq!(dispatched(&effects)[0]["params"], json!({"a": 1}));
    let mut play = start(json!([hook("prompt", "before_model", &Value::Null, None)]));
    answer(&mut play, &json!({"call": {"note": "once"}}));
    let mut state = play.replay();
    let effects = step(
        &mut state,
        9_000,
        ThreadEvent::Interrupted {
            spend: crate::money::Nanos(0),
            spend_at_most: crate::money::Nanos(0),
            tokens: crate::machine::InterruptedTokens::default(),
            repeatable: vec![],
        },
    );
    assert!(
        !is_hook_running(&effects) && effects.iter().any(|effect| matches!(effect, Effect::CallModel { .. }))
    );
}

#[test]
fn interrupted_hook_before_call_blocks_it() {
    let mut play = start(json!([hook("guard", "before_tool", &Value::Null, None)]));
    play.respond(call_response(&["allowed"]));
    play.drain();
    play.apply(ThreadEvent::Interrupted {
        spend: crate::money::Nanos(0),
        spend_at_most: crate::money::Nanos(0),
        tokens: crate::machine::InterruptedTokens::default(),
        repeatable: vec![0],
    });
    assert!(dispatched(&play.drain()).is_empty());
    assert!(results(&play)[0].0.contains("whether it was done is unknown"));
}

#[test]
fn hook_asks_a_person_about_a_call() {
    let control = json!({"action": "suspend", "suspend_reason": "approval", "prompt": "May it?"});
    for approved in [true, false] {
        let mut play = start(json!([hook("ask", "before_tool", &Value::Null, Some(control.clone()))]));
        play.respond(call_response(&["allowed"]));
        assert_eq!(play.state.status(), ThreadStatus::Suspended);
        let request_id = play.state.pending_approvals()[0].id.clone();
        play.drain();
        let answer = crate::machine::ApprovalAnswer {
            request_id,
            approved,
            message: None,
            by: "user".to_owned(),
            always: None,
        };
        let limits = play.state.limits;
        play.apply(ThreadEvent::Resumed {
            limits,
            message: None,
            by: "user".to_owned(),
            answers: vec![answer],
        });
        assert_eq!(dispatched(&play.drain()).len(), usize::from(approved));
        if !approved {
            assert!(results(&play)[0].0.contains("user denied this"));
        }
    }
}

#[test]
fn expired_thread_withholds_unseen_results() {
    let mut play = start(json!([hook("mask", "after_tool", &Value::Null, None)]));
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "secret");
    play.apply(ThreadEvent::Expired { spend: crate::money::Nanos(0), partial: None });
    assert_eq!(play.state.status(), ThreadStatus::Suspended);
    assert!(results(&play)[0].0.contains("withheld"), "{:?}", results(&play));
}

#[test]
fn threads_of_earlier_revisions_run_no_call_hooks() {
    let hooks = json!([hook("guard", "before_tool", &Value::Null, None)]);
    let mut play = Harness::start(TestSpec { hooks, revision: 1, ..TestSpec::default() });
    play.respond(call_response(&["allowed"]));
    assert_eq!(dispatched(&play.drain()).len(), 1);
}

#[test]
fn thread_that_cannot_suspend_fails() {
    let mut spec = (*TestSpec { limits: json!({"turns": 1}), ..TestSpec::default() }.build()).clone();
    spec.instance.cannot_suspend = true;
    let mut play = Harness::new(std::sync::Arc::new(spec));
    play.apply(ThreadEvent::Started);
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "ok");
    assert_eq!(play.state.status(), ThreadStatus::Error);
    assert!(
        play.drain().iter().all(|effect| !matches!(effect, Effect::RequestApproval(_) | Effect::Suspend(_)))
    );
}

#[test]
fn summary_source_keeps_call_arguments() {
    let mut play = start(json!([]));
    play.respond(call_with("allowed", &json!({"path": "src/lib.rs", "line": 7})));
    play.finish_tool(0, "ok");
    let text = play.state.conversation();
    assert!(text.contains(r#"Calls allowed with {"path":"src/lib.rs","line":7}"#), "{text}");
}

/// Threads in which hooks change, block and annotate what they run around: every event of theirs is in one of them.
pub(super) fn hooked_threads() -> Vec<Harness> {
    let plays = [
        ("before_tool", json!({"call": {"arguments": {"path": "/tmp"}, "note": "kept to /tmp"}})),
        ("before_tool", json!({"call": {"block": "not now"}})),
        ("before_model", json!({"call": {"block": "enough"}})),
        ("after_tool", json!({"call": {"result": "masked"}})),
    ];
    let run = |(event, data): (&str, Value)| {
        let mut play = start(json!([hook("guard", event, &Value::Null, None)]));
        play.respond(call_with("allowed", &json!({"path": "/etc"})));
        if event == "after_tool" {
            play.finish_tool(0, "plain");
        }
        answer(&mut play, &data);
        play
    };
    plays.into_iter().map(run).collect()
}
