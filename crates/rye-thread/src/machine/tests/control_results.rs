//! Where the control results of hooks count.

use serde_json::{Value, json};

use super::harness::{Harness, TestSpec, call_response, model_error, shipped_config};
use crate::config::OnExceed;
use crate::machine::{ApprovalAnswer, ApprovalKind, ThreadEvent};
use crate::status::{SuspendReason, ThreadStatus};

fn control(event: &str, params: &Value) -> Value {
    json!([{"id": "own", "event": event, "action": {
        "primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/control", "params": params,
    }}])
}

fn returned(params: &Value, revision: u32) -> Harness {
    let hooks = control("directive_return", params);
    let outputs = json!([{"name": "sum", "type": "integer"}]);
    let mut play = Harness::start(TestSpec { hooks, outputs, revision, ..TestSpec::default() });
    let mut response = call_response(&["directive_return"]);
    response.calls[0].input.insert("sum".to_owned(), json!(7));
    play.respond(response);
    play
}

fn answer(play: &mut Harness, approved: bool) {
    let request_id = play.state.pending_approvals()[0].id.clone();
    let answers =
        vec![ApprovalAnswer { request_id, approved, message: None, by: "ada".to_owned(), always: None }];
    let limits = play.state.limits;
    play.apply(ThreadEvent::Resumed { limits, message: None, by: "ada".to_owned(), answers });
}

#[test]
fn directive_return_hook_steers_the_thread() {
    let fail = json!({"action": "fail", "error": "the sum is wrong"});
    let play = returned(&fail, 1);
    let outcome = play.state.outcome().expect("an end");
    assert_eq!((outcome.status, outcome.error.as_deref()), (ThreadStatus::Error, Some("the sum is wrong")));
    assert_eq!(returned(&json!({"action": "abort"}), 1).state.status(), ThreadStatus::Cancelled);
    let escalated = returned(&json!({"action": "escalate"}), 1);
    assert_eq!(escalated.state.pending_approvals()[0].kind, ApprovalKind::Limit);
    // A thread that an older release started replays as it ran.
    assert_eq!(returned(&fail, 0).state.status(), ThreadStatus::Completed);
}

#[test]
fn person_decides_about_returned_outputs() {
    let suspend = json!({"action": "suspend", "suspend_reason": "approval", "prompt": "Is 7 right?"});
    let mut play = returned(&suspend, 1);
    assert_eq!(play.state.status(), ThreadStatus::Suspended);
    answer(&mut play, true);
    let outcome = play.state.outcome().expect("an end");
    assert_eq!(
        (outcome.status, &outcome.outputs.as_ref().expect("outputs")["sum"]),
        (ThreadStatus::Completed, &json!(7))
    );
    let mut play = returned(&suspend, 1);
    play.drain();
    answer(&mut play, false);
    assert!(play.is_calling(), "the model is told: {:?}", play.state.status());
    assert_eq!(play.replay().messages, play.state.messages);
}

#[test]
fn context_pressure_hook_steers_the_thread() {
    let hooks = control("context_window_pressure", &json!({"action": "fail", "error": "too much"}));
    let mut play = Harness::start(TestSpec { hooks, context_window: 1000, ..TestSpec::default() });
    let mut response = call_response(&["allowed"]);
    response.usage.input_tokens = 950;
    play.respond(response);
    play.finish_tool(0, "ok");
    // The builtin hook asks for a summary, and gets none.
    play.apply(ThreadEvent::HookDone { result: json!({"status": "error", "error": "no summary"}) });
    assert_eq!(play.state.outcome().and_then(|outcome| outcome.error.as_deref()), Some("too much"));
}

#[test]
fn suspend_on_error_asks_a_person() {
    let suspend = json!({"action": "suspend", "suspend_reason": "approval", "prompt": "Try again?"});
    let fail = |params: &Value| {
        let mut play = Harness::start(TestSpec { hooks: control("error", params), ..TestSpec::default() });
        play.fail(model_error(400));
        play
    };
    let mut play = fail(&suspend);
    assert_eq!(play.state.pending_approvals()[0].prompt, "Try again?");
    assert!(play.state.pending_approvals()[0].reason.contains("status 400"));
    play.drain();
    answer(&mut play, true);
    assert!(play.is_calling());
    let mut play = fail(&suspend);
    answer(&mut play, false);
    assert_eq!(play.state.status(), ThreadStatus::Error);
    let plain = fail(&json!({"action": "suspend", "suspend_reason": "error"}));
    let reason = plain.state.outcome().and_then(|outcome| outcome.reason);
    assert_eq!((plain.state.pending_approvals().len(), reason), (0, Some(SuspendReason::Error)));
}

#[test]
fn suspend_on_limit_asks_for_more() {
    let params = json!({"action": "suspend", "suspend_reason": "approval", "prompt": "One more turn?"});
    let hooks = control("limit", &params);
    let limits = json!({"turns": 1});
    let mut play = Harness::start(TestSpec { hooks, limits, ..TestSpec::default() });
    play.respond(call_response(&["allowed"]));
    play.finish_tool(0, "ok");
    let request = &play.state.pending_approvals()[0];
    assert_eq!(request.kind, ApprovalKind::Limit);
    assert!(request.prompt.starts_with("One more turn? ("), "{}", request.prompt);
}

#[test]
fn on_exceed_holds_without_replacing_a_hook() {
    for (on_exceed, status, asked) in [
        (OnExceed::Fail, ThreadStatus::Error, 0),
        (OnExceed::Suspend, ThreadStatus::Suspended, 0),
        (OnExceed::Escalate, ThreadStatus::Suspended, 1),
    ] {
        let mut config = shipped_config();
        config.resilience.on_exceed = on_exceed;
        let limits = json!({"turns": 1});
        let mut play = Harness::start(TestSpec { config, limits, ..TestSpec::default() });
        play.respond(call_response(&["allowed"]));
        play.finish_tool(0, "ok");
        let pending = play.state.pending_approvals().len();
        assert_eq!((play.state.status(), pending), (status, asked), "{on_exceed:?}");
    }
}
