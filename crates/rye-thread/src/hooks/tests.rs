use serde_json::json;

use super::*;

fn control(action: &str) -> Value {
    json!({"primary": "execute", "item_type": "tool", "item_id": "rye/agent/threads/internal/control",
           "params": {"action": action}})
}

fn config_hook(written: &Value, kind: HookKind, layer: Option<u8>) -> Hook {
    Hook::from_config(written, kind, layer).expect("a hook")
}

#[test]
fn hooks_are_ordered_by_layer_and_origin() {
    let config = [
        config_hook(
            &json!({"id": "project", "origin": "project", "event": "error", "action": control("fail")}),
            HookKind::Control,
            None,
        ),
        config_hook(
            &json!({"id": "pushy", "origin": "project", "layer": 0, "event": "error", "action": control("fail")}),
            HookKind::Control,
            None,
        ),
        config_hook(
            &json!({"id": "user", "origin": "user", "event": "error", "action": control("fail")}),
            HookKind::Control,
            None,
        ),
        config_hook(
            &json!({"id": "builtin", "event": "error", "layer": 2, "action": control("retry")}),
            HookKind::Control,
            Some(2),
        ),
        config_hook(
            &json!({"id": "infra", "event": "error", "layer": 3, "action": control("skip")}),
            HookKind::Infra,
            Some(3),
        ),
    ];
    let directive = json!([{"id": "own", "event": "error", "layer": "0", "action": control("abort")}]);
    let hooks = Hooks::merge(&config, Some(&directive)).expect("hooks");
    let order: Vec<&str> = hooks.all().iter().map(|hook| hook.id.as_str()).collect();
    assert_eq!(order, ["user", "pushy", "own", "builtin", "project", "infra"]);
    let own = &hooks.all()[2];
    assert_eq!((own.layer, own.origin, own.kind), (1, HookOrigin::Directive, HookKind::Control));
    assert_eq!(own.grants, Vec::<String>::new());
}

#[test]
fn only_params_are_interpolated() {
    let directive = json!([{"event": "error", "condition": {"path": "event.error.code", "op": "eq", "value": "x"},
        "actions": [{"primary": "load", "item_type": "knowledge", "item_id": "team/${error.code}", "source": "${error.code}",
                     "params": {"a": "${error.code}", "b": ["${event.error.code}!"], "c": "${missing}", "n": "${count}"}}]}]);
    let hooks = Hooks::merge(&[], Some(&directive)).expect("hooks");
    let matching = hooks.matching("error", json!({"error": {"code": "x"}, "count": 3}));
    assert_eq!(
        matching,
        [(
            0,
            vec![json!({"primary": "load", "item_type": "knowledge", "item_id": "team/${error.code}",
            "source": "${error.code}", "params": {"a": "x", "b": ["x!"], "c": "", "n": 3}})]
        )]
    );
    assert_eq!(hooks.matching("error", json!({"error": {"code": "y"}})), []);
    assert_eq!(hooks.matching("limit", json!({"error": {"code": "x"}})), []);
}

#[test]
fn invalid_hook_is_rejected() {
    for (hook, part) in [
        (json!({"event": "eror", "action": control("fail")}), "there is no event `eror`"),
        (json!({"action": control("fail")}), "no `event`"),
        (json!({"event": "error"}), "one `action`"),
        (json!({"event": "error", "action": {"primary": "run"}}), "there is no action `run`"),
        (json!({"event": "error", "position": "top", "action": control("fail")}), "before or after"),
        (
            json!({"event": "error", "condition": {"path": "a", "op": "is"}, "action": control("fail")}),
            "unknown operator `is`",
        ),
    ] {
        let error = Hooks::merge(&[], Some(&json!([hook]))).expect_err("refused");
        assert!(error.contains(part) && error.contains("directive_hook_0"), "{error}");
    }
    let error = Hooks::merge(&[], Some(&json!([{"event": "a"}, {"event": "b"}]))).expect_err("refused");
    assert!(error.contains("`a`") && error.contains("`b`"), "{error}");
}

#[test]
fn hooks_round_trip_through_json() {
    let directive = json!([{"id": "x", "event": "limit", "condition": {"path": "a", "op": "regex", "value": "^b"},
        "action": control("suspend"), "position": "after", "wrap": "true"}]);
    let hooks = Hooks::merge(&[], Some(&directive)).expect("hooks");
    let frozen = serde_json::to_value(&hooks).expect("JSON");
    let thawed: Hooks = serde_json::from_value(frozen).expect("hooks");
    assert_eq!(thawed, hooks);
    assert_eq!(thawed.matching("limit", json!({"a": "bc"})).len(), 1);
    assert!((thawed.all()[0].wrap, thawed.all()[0].position) == (true, ContextPosition::After));
}

#[test]
fn infra_hooks_cannot_be_suppressed() {
    let load = |id: &str| json!({"primary": "load", "item_type": "knowledge", "item_id": id});
    let config = [
        config_hook(
            &json!({"id": "a", "event": "thread_started", "action": load("team/rules")}),
            HookKind::Control,
            Some(2),
        ),
        config_hook(
            &json!({"id": "b", "event": "thread_started", "action": load("other/rules")}),
            HookKind::Control,
            Some(2),
        ),
        config_hook(
            &json!({"id": "c", "event": "thread_started", "action": load("team/rules")}),
            HookKind::Infra,
            Some(3),
        ),
    ];
    let remaining = |suppressed: &[&str]| {
        let suppressed: Vec<String> = suppressed.iter().map(|id| (*id).to_owned()).collect();
        let hooks = Hooks::merge(&config, None).expect("hooks").without(&suppressed);
        hooks.all().iter().map(|hook| hook.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(remaining(&["rules"]), ["a", "b", "c"]);
    assert_eq!(remaining(&["team/rules"]), ["b", "c"]);
    assert_eq!(remaining(&["b", "c"]), ["a", "c"]);
}
