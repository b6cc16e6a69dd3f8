//! What hooks may do without a person, which of their answers count, and under which ids they see an item.

use serde_json::{Value, json};

use super::config_keys::config_with;
use super::harness::{Harness, TestSpec, call_response};
use crate::machine::{Effect, ThreadEvent};

fn tool_hook(event: &str, condition: &Value) -> Value {
    let action = json!({"primary": "execute", "item_type": "tool", "item_id": "team/policy"});
    json!({"id": "guard", "event": event, "condition": condition, "action": action})
}

/// Whether the call is made after the hook before it has answered with this.
fn is_made_after(answer: &Value, revision: u32) -> bool {
    let hooks = json!([tool_hook("before_tool", &Value::Null)]);
    let mut play = Harness::start(TestSpec { hooks, revision, ..TestSpec::default() });
    play.respond(call_response(&["allowed"]));
    play.drain();
    play.apply(ThreadEvent::HookDone { result: json!({"status": "success", "data": answer}) });
    let is_made = play.drain().iter().any(|effect| matches!(effect, Effect::Dispatch { .. }));
    assert_eq!(is_made, !play.event_types().contains(&"tool_call_blocked"), "{answer}");
    is_made
}

#[test]
fn answers_that_cannot_be_read_block() {
    let printed = |text: &str| json!({"stdout": text, "stderr": "", "return_code": 0});
    let unreadable = [
        Value::Null,
        json!([{"call": {"block": "no"}}]),
        json!("{\"call\": {\"block\": \"no\"}}"),
        json!(true),
        printed(""),
        printed("blocked"),
        printed("[{\"call\": {}}]"),
        printed("{\"call\": {\"block\": \"no\""),
    ];
    for answer in unreadable {
        assert!(!is_made_after(&answer, 3), "{answer}");
        assert!(is_made_after(&answer, 2), "recorded threads go on as they did: {answer}");
    }
    for answer in [json!({}), json!({"call": null}), json!({"rows": 3}), printed("{}")] {
        assert!(is_made_after(&answer, 3), "no opinion: {answer}");
    }
    assert!(!is_made_after(&printed("{\"call\": {\"block\": \"no\"}}"), 3), "what it printed is read");
}

#[test]
fn answers_that_report_a_failure_block() {
    let printed = |text: &str| json!({"stdout": text, "stderr": "", "return_code": 0});
    let failed = [
        json!({"status": "error", "error": "the rules cannot be read"}),
        json!({"status": "error", "call": {"note": "x"}}),
        json!({"success": false}),
        printed("{\"status\": \"error\"}"),
    ];
    for answer in failed {
        assert!(!is_made_after(&answer, 4), "{answer}");
        assert!(is_made_after(&answer, 3), "recorded threads go on as they did: {answer}");
    }
    for answer in [json!({"status": "ok"}), json!({"success": true}), json!({})] {
        assert!(is_made_after(&answer, 4), "{answer}");
    }
}

#[test]
fn printed_answers_with_duplicate_keys_block() {
    for text in [
        r#"{"call":{"block":"no"},"call":{}}"#,
        r#"{"call":{"block":"no","block":null}}"#,
        r#"{"call":{"arguments":{"a":{"b":1,"b":2}}}}"#,
        r#"{"rows":[{"a":1,"a":1}]}"#,
    ] {
        let printed = json!({"stdout": text, "stderr": "", "return_code": 0});
        assert!(!is_made_after(&printed, 6), "{text}");
        assert!(is_made_after(&printed, 5), "recorded threads go on as they did: {text}");
    }
}

#[test]
fn only_policies_before_calls_are_read_as_a_whole() {
    for (event, is_read_as_a_whole) in [("before_tool", true), ("before_model", true), ("after_step", false)]
    {
        let hooks = json!([tool_hook(event, &Value::Null)]);
        let mut play = Harness::start(TestSpec { hooks, ..TestSpec::default() });
        play.respond(call_response(&["control"]));
        let found = play.drain().into_iter().find_map(|effect| match effect {
            Effect::RunHook { action, .. } => Some(action.decides_call()),
            _ => None,
        });
        assert_eq!(found, Some(is_read_as_a_whole), "{event}");
    }
}

/// The effects of a turn with one call, and the events, in a thread whose own hook runs a tool after it.
fn after_step(policy: &str, revision: u32) -> (bool, bool) {
    let hooks = json!([tool_hook("after_step", &Value::Null)]);
    let config = config_with("capability_risk", &["risk_levels", "write", "policy"], json!(policy));
    let mut play = Harness::start(TestSpec { hooks, config, revision, ..TestSpec::default() });
    play.respond(call_response(&["control"]));
    let is_run = play.drain().iter().any(|effect| matches!(effect, Effect::RunHook { .. }));
    (is_run, play.event_types().contains(&"hook_failed"))
}

#[test]
fn directive_hooks_obey_the_rules_of_risk() {
    assert_eq!(after_step("allow", 3), (true, false));
    assert_eq!(after_step("approval_required", 3), (false, true), "no question was asked");
    assert_eq!(after_step("approval_required", 2), (true, false), "recorded threads go on as they did");
}

/// Whether a hook with this condition on the call blocks it.
fn is_blocked(condition: &Value, tool: &str, revision: u32) -> bool {
    let action = json!({"primary": "execute", "item_type": "tool",
        "item_id": "rye/agent/threads/internal/control", "params": {"action": "block", "error": "no"}});
    let hooks = json!([{"id": "guard", "event": "before_tool", "condition": condition, "action": action}]);
    let mut play = Harness::start(TestSpec { hooks, revision, ..TestSpec::default() });
    play.respond(call_response(&[tool]));
    play.event_types().contains(&"tool_call_blocked")
}

#[test]
fn conditions_mean_both_ids_of_a_tool() {
    let is = |path: &str, op: &str, value: &str| json!({"path": path, "op": op, "value": value});
    for id in ["rye/bash", "rye/bash/bash"] {
        let grant = format!("rye.execute.tool.{}", id.replace('/', "."));
        for condition in [
            is("item", "eq", id),
            is("event.item", "eq", id),
            is("item", "regex", &format!("^{id}$")),
            is("capability", "eq", &grant),
            json!({"path": "item", "op": "in", "value": ["x", id]}),
            json!({"not": is("item", "ne", id)}),
            json!({"path": "capabilities", "op": "eq", "value": [grant]}),
        ] {
            for tool in ["bash", "other_bash"] {
                assert!(is_blocked(&condition, tool, 3), "{condition} {tool}");
            }
            assert!(!is_blocked(&condition, "allowed", 3), "{condition}");
        }
        for tool in ["bash", "other_bash"] {
            assert!(!is_blocked(&is("item", "ne", id), tool, 3), "a list of what is allowed names both");
        }
    }
    assert!(
        !is_blocked(&is("item", "eq", "rye/bash"), "other_bash", 2),
        "recorded threads go on as they did"
    );
}

#[test]
fn risk_of_one_id_holds_for_the_other() {
    let class = json!([
        {"risk": "elevated", "patterns": ["rye.execute.tool.rye.bash"], "description": "a shell"},
        {"risk": "write", "patterns": ["rye.execute.*"], "description": "tools"},
    ]);
    let config = config_with("capability_risk", &["classifications"], class);
    let mut values = config.values().clone();
    values["capability_risk"]["risk_levels"]["elevated"]["policy"] = json!("approval_required");
    let config = crate::config::ThreadConfig::from_values(&values).expect("a configuration");
    for (tool, revision, is_asked) in
        [("bash", 3, true), ("other_bash", 3, true), ("other_bash", 2, false), ("allowed", 3, false)]
    {
        let mut play = Harness::start(TestSpec { config: config.clone(), revision, ..TestSpec::default() });
        play.respond(call_response(&[tool]));
        assert_eq!(!play.state.pending_approvals().is_empty(), is_asked, "{tool} {revision}");
    }
}
