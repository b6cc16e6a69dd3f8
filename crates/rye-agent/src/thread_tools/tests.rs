use std::path::Path;

use lillux::CancelToken;
use rye_exec::native::ToolAccess;
use rye_item::Space;

use super::*;
use crate::cost::Cost;
use crate::money::Nanos;
use crate::test_support::FixedConfig;
use crate::thread_id::ThreadId;
use crate::tool_context::BudgetAccess;

const OWN_THREAD: &str = "thread-0a1b2c3d4e5f";
const CHILD_THREAD: &str = "thread-111111111111";
const OTHER_THREAD: &str = "thread-222222222222";

/// A ledger with one parent of one dollar.
struct TestLedger;

impl BudgetAccess for TestLedger {
    fn is_within(&self, root: &ThreadId, thread: &ThreadId) -> bool {
        root.as_str() == OWN_THREAD && thread.as_str() == CHILD_THREAD
    }

    fn remaining(&self, _thread: &ThreadId) -> Result<Option<Nanos>, String> {
        Ok(Some(Nanos(1_000_000_000)))
    }
}

fn test_context() -> ThreadContext {
    ThreadContext {
        thread_id: ThreadId::parse(OWN_THREAD).expect("an id"),
        cost: Cost { turns: 2, ..Cost::default() },
        is_cancelled: false,
        config: Arc::new(FixedConfig),
        budget: Some(Arc::new(TestLedger)),
        callback: None,
        blocking_hook: None,
    }
}

fn call_with(name: &str, parameters: &Value, context: Option<&ThreadContext>) -> Value {
    let tools = native_tools();
    let tool = tools.iter().find(|tool| tool.name() == name).expect("a tool");
    let call = NativeCall {
        parameters: parameters.as_object().expect("an object"),
        config: &Map::new(),
        resolved_config: None,
        space: &Space::Project,
        project: Path::new("/"),
        cache: Path::new("/"),
        access: &ToolAccess::default(),
        cancel: &CancelToken::new().expect("an event"),
        now: 0,
        thread: context.map(|context| context as &dyn ThreadFunctions),
    };
    tool.call(&call).expect("an answer")
}

fn call(name: &str, parameters: impl std::borrow::Borrow<Value>) -> Value {
    call_with(name, parameters.borrow(), Some(&test_context()))
}

#[test]
fn control_supports_all_seven_actions() {
    let control = |parameters: Value| call("threads.control", parameters);
    assert_eq!(control(json!({"action": "continue"})), Value::Null);
    assert_eq!(control(json!({"action": "skip"})), Value::Null);
    assert_eq!(control(json!({"action": "retry"})), json!({"action": "retry"}));
    assert_eq!(
        control(json!({"action": "fail"})),
        json!({"success": false, "error": "Hook triggered failure"})
    );
    assert_eq!(control(json!({"action": "fail", "error": "no"})), json!({"success": false, "error": "no"}));
    assert_eq!(
        control(json!({"action": "abort"})),
        json!({"success": false, "aborted": true, "error": "Aborted by hook"})
    );
    assert_eq!(
        control(json!({"action": "suspend", "suspend_reason": "approval"})),
        json!({"success": false, "suspended": true, "error": "approval"})
    );
    assert_eq!(
        control(json!({"action": "suspend"})),
        json!({"success": false, "suspended": true, "error": "Suspended by hook"})
    );
    assert_eq!(
        control(json!({"action": "escalate", "limit_type": "turns_exceeded", "current_value": 25})),
        json!({
            "success": false, "suspended": true, "escalated": true, "error": "Escalation requested",
            "escalation": {"limit_type": "turns_exceeded", "current_value": 25},
        })
    );
    assert_eq!(control(json!({"action": "explode"}))["success"], false);
}

#[test]
fn emitter_uses_configured_criticality() {
    let emit = |parameters: Value| call("threads.emitter", parameters);
    assert_eq!(
        emit(json!({"event_type": "checkpoint_saved", "payload": {"turn": 1}})),
        json!({
            "success": true, "event_type": "checkpoint_saved", "emitted": true,
            "payload": {"turn": 1}, "criticality": "critical",
        })
    );
    assert_eq!(emit(json!({"event_type": "delta"}))["criticality"], "droppable");
    assert_eq!(emit(json!({"event_type": "delta", "criticality": "critical"}))["criticality"], "critical");
    for invalid in [
        json!({}),
        json!({"event_type": "with space"}),
        json!({"event_type": "a\nb"}),
        json!({"event_type": "x", "payload": []}),
        json!({"event_type": "x", "criticality": "important"}),
        json!({"event_type": "x", "thread_id": OTHER_THREAD}),
        json!({"event_type": "checkpoint_saved"}),
        json!({"event_type": "human_approval_response", "payload": {"approval_id": "ask-1", "approved": true}}),
        json!({"event_type": "thread_completed", "payload": {"cost": {}}}),
        json!({"event_type": "cognition_out", "payload": {"text": "I said so"}}),
    ] {
        assert_eq!(emit(invalid.clone())["success"], false, "{invalid}");
    }
}

#[test]
fn hook_tools_need_thread_context() {
    let is_internal = |name: &str| {
        !["thread_directive", "orchestrator", "directive_return", "read_artifact", "human_approval"]
            .iter()
            .any(|inside| name.ends_with(inside))
    };
    for tool in native_tools().into_iter().filter(|tool| is_internal(tool.name())) {
        let parameters =
            json!({"event_type": "x", "action": "retry", "operation": "release", "thread_id": OWN_THREAD});
        let response = call_with(tool.name(), &parameters, None);
        assert_eq!(response, json!({"success": false, "error": "Missing thread context"}), "{}", tool.name());
    }
}

#[test]
fn classifier_uses_configuration() {
    let response = call("threads.classifier", json!({"error": {"type": "X"}, "status_code": 500}));
    assert_eq!(response["category"], "transient");
    assert_eq!(response["asked"], json!({"error": {"type": "X"}, "status_code": 500, "headers": {}}));
}

#[test]
fn limit_checker_reports_configured_action() {
    for limit in crate::limits::LIMIT_NAMES {
        let check = |current: f64| {
            call(
                "threads.limit_checker",
                json!({"limit_type": limit, "current_value": current, "max_value": 1.0}),
            )
        };
        assert_eq!(check(0.5), json!({"success": true, "exceeded": false}));
        let exceeded = json!({
            "success": true, "exceeded": true, "limit_type": limit, "current": 1.0, "max": 1.0, "action": "escalate"
        });
        assert_eq!(check(1.0), exceeded);
    }
    assert_eq!(call("threads.limit_checker", json!({"limit_type": "turns"}))["success"], false);
}

#[test]
fn budget_ops_report_spend_and_tell_remaining() {
    let ops = |parameters: Value| call("threads.budget_ops", parameters);
    let remaining = ops(json!({"operation": "check_remaining", "thread_id": OWN_THREAD}));
    assert_eq!(remaining, json!({"success": true, "remaining": 1.0}));
    let report = json!({"operation": "report_actual", "thread_id": OWN_THREAD, "amount": 0.5});
    assert_eq!(ops(report), json!({"success": true, "reported": 0.5, "added": {"spend": "0.500000000"}}));
    let huge = json!({"operation": "report_actual", "thread_id": OWN_THREAD, "amount": 9_000_000_000_u64});
    assert_eq!(ops(huge)["success"], false);
    let report = json!({"operation": "report_actual", "thread_id": CHILD_THREAD, "amount": 0.5});
    assert_eq!(ops(report)["success"], false);
    for operation in ["reserve", "release"] {
        let refused = ops(json!({"operation": operation, "thread_id": OWN_THREAD, "amount": 0.5}));
        assert_eq!(refused["success"], false, "{refused}");
        assert!(refused["error"].as_str().is_some_and(|error| error.contains("check_remaining")));
    }
    assert_eq!(ops(json!({"operation": "mint", "thread_id": OWN_THREAD}))["success"], false);
}

/// Every call of a tool of hooks that a hook of a directive may make leaves the ledger as it is.
#[test]
fn permitted_directive_hooks_add_no_cost() {
    use crate::action::Action;
    use crate::capability::{Capabilities, HookOrigin, Principal, permit};
    let operations = [None, Some("report"), Some("add"), Some("check_remaining"), Some("report_actual")];
    for tool in HOOK_TOOLS {
        let name = tool.name.trim_start_matches("threads.");
        for operation in operations {
            let mut params =
                json!({"turns": 1, "input_tokens": 1, "spend": 1, "amount": 1, "event_type": "x"});
            params["operation"] = json!(operation);
            let id = format!("rye/agent/threads/internal/{name}");
            let action = Action::from_value(&json!({"item_id": id, "params": params})).expect("an action");
            let principal = Principal::Hook { origin: HookOrigin::Directive };
            let is_permitted = permit(&Capabilities::none(), &action, principal).is_ok();
            let adds = call(tool.name, &params).get("added").is_some();
            assert!(!(is_permitted && adds), "{name} {operation:?}");
        }
        let report = json!({"item_id": format!("rye/agent/threads/internal/{name}"),
            "params": {"operation": if name == "budget_ops" { "check_remaining" } else { "report" }}});
        let action = Action::from_value(&report).expect("an action");
        let principal = Principal::Hook { origin: HookOrigin::Project };
        assert!(permit(&Capabilities::none(), &action, principal).is_ok(), "{name} is listed");
    }
}

#[test]
fn budget_ops_reject_unrelated_threads() {
    for parameters in [
        json!({"operation": "release", "thread_id": OTHER_THREAD}),
        json!({"operation": "check_remaining", "thread_id": OTHER_THREAD}),
        json!({"operation": "reserve", "thread_id": CHILD_THREAD, "parent_thread_id": OTHER_THREAD, "amount": 0.1}),
        json!({"operation": "release", "thread_id": "../thread-0a1b2c3d4e5f"}),
        json!({"operation": "reserve", "thread_id": CHILD_THREAD, "amount": -1}),
    ] {
        assert_eq!(call("threads.budget_ops", parameters.clone())["success"], false, "{parameters}");
    }
}

#[test]
fn tools_report_cost_state_and_cancellation() {
    assert_eq!(call("threads.cost_tracker", json!({}))["cost"]["turns"], 2);
    let add = call("threads.cost_tracker", json!({"operation": "add", "input_tokens": 3, "spend": 0.1}));
    assert_eq!(add["added"], json!({"input_tokens": 3, "spend": 0.1}));
    for invalid in [
        json!({"operation": "add", "turns": -1}),
        json!({"operation": "add", "spend": "much"}),
        json!({"operation": "add", "input_tokens": u64::MAX}),
        json!({"operation": "add", "output_tokens": u64::MAX}),
        json!({"operation": "add", "spend": 9_000_000_000_u64}),
    ] {
        let answer = call("threads.cost_tracker", &invalid);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.starts_with("invalid parameters: "), "{invalid}: {answer}");
    }
    assert_eq!(call("threads.state_persister", json!({"state": {}}))["persisted"], true);
    assert_eq!(call("threads.cancel_checker", json!({})), json!({"success": true, "cancelled": false}));
    let cancelled = ThreadContext { is_cancelled: true, ..test_context() };
    assert_eq!(call_with("threads.cancel_checker", &json!({}), Some(&cancelled))["cancelled"], true);
}
