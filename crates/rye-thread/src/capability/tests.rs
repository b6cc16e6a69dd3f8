use proptest::prelude::*;
use serde_json::json;

use super::*;

fn grants(list: &[&str]) -> Capabilities {
    Capabilities::parse(list).expect("grants")
}

fn action(value: impl std::borrow::Borrow<Value>) -> Action {
    Action::from_value(value.borrow()).expect("an action")
}

fn run(id: &str) -> Action {
    action(json!({"item_id": id}))
}

fn is_allowed(list: &[&str], value: Value) -> bool {
    permit(&grants(list), &action(value), Principal::Model).is_ok()
}

const HOOK: Principal = Principal::Hook { origin: HookOrigin::System };

#[test]
fn permissions_none_means_nothing_is_allowed() {
    let denied = permit(&Capabilities::none(), &run("team/deploy"), Principal::Model).expect_err("denied");
    assert_eq!(
        denied.to_value(),
        json!({
            "status": "error",
            "error": "Permission denied: 'rye.execute.tool.team.deploy' not covered by capabilities []",
            "code": "RYE1121",
            "denied_action": "execute",
            "denied_item_type": "tool",
            "denied_item_id": "team/deploy",
        })
    );
    assert!(!is_allowed(&[], json!({"primary": "search", "query": "x"})));
}

#[test]
fn permissions_wildcards_cross_dots_at_every_level() {
    let deploy = || json!({"item_id": "team/ops/deploy"});
    for grant in [
        "rye.*",
        "rye.execute.*",
        "rye.execute.tool.*",
        "rye.execute.tool.team.*",
        "rye.execute.tool.team/ops/deploy",
        "rye.execute.tool.team*deploy",
        " rye.execute.tool.team.ops.deploy ",
    ] {
        assert!(is_allowed(&[grant], deploy()), "{grant}");
    }
    for grant in [
        "rye.execute",
        "rye.execute.directive.*",
        "rye.execute.tool.team.op",
        "rye.execute.tool.team.ops.deploy.*x",
        "rye.execute.tool.Team.*",
        "rye.load.*",
        "rye.fetch.*",
        "rye.sign.*",
    ] {
        assert!(!is_allowed(&[grant], deploy()), "{grant}");
    }
}

#[test]
fn trailing_wildcard_grants_the_item_itself() {
    assert!(is_allowed(&["rye.execute.tool.rye.bash.*"], json!({"item_id": "rye/bash"})));
    assert!(!is_allowed(&["rye.execute.tool.rye.bash.*"], json!({"item_id": "rye/bashful"})));
}

#[test]
fn invalid_grants_are_rejected() {
    for invalid in [
        "",
        "*",
        "rye",
        "rye.",
        "rye..x",
        "rye.ex*",
        "rye.*.tool.x",
        "rye.delete.x",
        "net.*",
        "rye.execute.tool.a?",
        "rye.execute.tool.[a]",
        "rye.execute.tool.é",
        "rye.execute.tool.a b",
        "Rye.*",
    ] {
        assert!(Capabilities::parse([invalid]).is_err(), "{invalid}");
    }
    let error = Capabilities::parse(["rye.*", "a", "b"]).expect_err("refused").to_string();
    assert!(error.contains("`a`") && error.contains("`b`"), "{error}");
    assert!(Capabilities::parse(["rye.execute.tool.".to_owned() + &"a".repeat(700)]).is_err());
}

#[test]
fn the_permissions_of_a_directive_are_grants() {
    let parsed =
        json!([{"tag": "cap", "content": "rye.execute.tool.a/b"}, {"tag": "cap", "content": "rye.sign.*"}]);
    let capabilities = Capabilities::from_directive(Some(&parsed)).expect("grants");
    assert_eq!(capabilities.iter().collect::<Vec<_>>(), ["rye.execute.tool.a.b", "rye.sign.*"]);
    assert!(Capabilities::from_directive(None).expect("none").is_empty());
    assert!(Capabilities::from_directive(Some(&json!([{"tag": "cap"}]))).is_err());
    assert!(Capabilities::from_directive(Some(&json!("rye.*"))).is_err());
}

#[test]
fn fetch_equals_search_and_load() {
    let load = || json!({"primary": "load", "item_type": "knowledge", "item_id": "a/b"});
    let fetch = || json!({"primary": "fetch", "item_type": "knowledge", "item_id": "a/b"});
    let find = || json!({"primary": "fetch", "item_type": "knowledge", "query": "b"});
    let search = || json!({"primary": "search", "item_type": "knowledge", "query": "b"});
    for value in [load(), fetch(), find(), search()] {
        assert!(is_allowed(&["rye.fetch.knowledge.*"], value));
    }
    assert!(
        is_allowed(&["rye.load.knowledge.a.b"], fetch()) && !is_allowed(&["rye.load.knowledge.*"], find())
    );
    assert!(
        is_allowed(&["rye.search.knowledge.*"], find()) && !is_allowed(&["rye.search.knowledge.*"], fetch())
    );
}

#[test]
fn untyped_fetch_needs_every_type() {
    let fetch = || json!({"primary": "fetch", "item_id": "a/b"});
    assert!(!is_allowed(&["rye.load.knowledge.*", "rye.load.tool.*"], fetch()));
    assert!(is_allowed(&["rye.fetch.*"], fetch()));
}

#[test]
fn search_needs_grant_for_its_scope() {
    let search = |scope: Option<&str>| json!({"primary": "search", "query": "q", "scope": scope});
    assert!(is_allowed(&["rye.search.*"], search(None)) && is_allowed(&["rye.*"], search(None)));
    assert!(!is_allowed(&["rye.search.tool.*"], search(None)));
    assert!(is_allowed(&["rye.search.tool.*"], search(Some("tool"))));
    assert!(is_allowed(&["rye.search.tool.team.*"], search(Some("tool.team.*"))));
    assert!(!is_allowed(&["rye.search.tool.team.*"], search(Some("tool"))));
    assert!(!is_allowed(&["rye.search.tool.team"], search(Some("tool.team.*"))));
    // `scope` overrules `item_type`, and hides in params as well as at the top.
    let hidden = json!({
        "primary": "search", "query": "q", "item_type": "tool", "params": {"scope": "directive"}
    });
    assert!(!is_allowed(&["rye.search.tool.*"], hidden));
}

#[test]
fn executing_grants_no_reading_and_no_signing() {
    let grant = ["rye.execute.*"];
    assert!(!is_allowed(&grant, json!({"primary": "load", "item_id": "a"})));
    assert!(!is_allowed(&grant, json!({"primary": "sign", "item_id": "a"})));
}

#[test]
fn copying_needs_the_rights_to_sign_and_load() {
    for copy in [
        json!({"primary": "sign", "item_id": "a/b", "destination": "project"}),
        json!({"primary": "sign", "item_id": "a/b", "params": {"destination": "user"}}),
        json!({"primary": "sign", "item_type": "tool", "item_id": "a/b", "destination": "user"}),
    ] {
        assert!(!is_allowed(&["rye.fetch.*"], copy.clone()), "{copy}");
        assert!(!is_allowed(&["rye.sign.tool.a.b"], copy.clone()), "{copy}");
        assert!(is_allowed(&["rye.fetch.*", "rye.sign.tool.a.b"], copy.clone()), "{copy}");
    }
}

#[test]
fn sign_pattern_needs_covering_grant() {
    let sign = |id: &str| json!({"primary": "sign", "item_id": id});
    let grant = ["rye.sign.tool.team.*"];
    for id in ["team/*", "team/**", "team/a?", "team/{a,b}", "team/x"] {
        assert!(is_allowed(&grant, sign(id)), "{id}");
    }
    for id in ["*", "**", "te*", "te*/x", "{team,rye}/*", "[t]eam/*", "deploy*", "teamwork/*"] {
        assert!(!is_allowed(&grant, sign(id)), "{id}");
    }
}

#[test]
fn internal_tools_are_for_hooks_in_every_spelling() {
    let control = format!("{HOOK_TOOLS_PREFIX}/control");
    let none = Capabilities::none();
    for origin in [HookOrigin::Directive, HookOrigin::Project, HookOrigin::User, HookOrigin::System] {
        let permitted = permit(&none, &run(&control), Principal::Hook { origin }).expect("allowed");
        assert!(permitted.is_hook_tool());
    }
    let all = grants(&["rye.*"]);
    for principal in [Principal::Model, Principal::Directive] {
        for id in [
            control.clone(),
            format!("tool:{control}"),
            control.to_uppercase(),
            format!("{HOOK_TOOLS_PREFIX}/deeper/x"),
            HOOK_TOOLS_PREFIX.to_owned(),
            "Rye/Agent/threads/Internal/emitter".to_owned(),
        ] {
            for primary in ["execute", "load", "sign"] {
                let action = action(json!({"primary": primary, "item_id": id}));
                let denied = permit(&all, &action, principal).expect_err("denied");
                assert!(denied.message.contains("is for hooks"), "{}", denied.message);
            }
        }
    }
    // A neighbour is not a relative, and a hook may not do more than run the tool.
    assert!(permit(&all, &run("rye/agent/threads/internals/x"), Principal::Model).is_ok());
    assert!(permit(&all, &action(json!({"primary": "load", "item_id": control})), HOOK).is_err());
}

#[test]
fn directive_hook_cannot_change_ledger() {
    let ledger = |operation: &str| {
        action(
            json!({"item_id": format!("{HOOK_TOOLS_PREFIX}/budget_ops"), "params": {"operation": operation}}),
        )
    };
    let try_operation = |operation: &str, origin: HookOrigin| {
        permit(&grants(&["rye.*"]), &ledger(operation), Principal::Hook { origin })
    };
    for origin in [HookOrigin::Directive, HookOrigin::Project] {
        assert!(try_operation("check_remaining", origin).is_ok());
        for operation in ["reserve", "report_actual", "release", ""] {
            assert!(try_operation(operation, origin).is_err(), "{operation}");
        }
    }
    assert!(
        try_operation("release", HookOrigin::System).is_ok()
            && try_operation("reserve", HookOrigin::User).is_ok()
    );
}

#[test]
fn unlisted_hook_tools_may_change_ledger() {
    let try_call = |id: &str, params: Value, origin: HookOrigin| {
        let call = action(json!({"item_id": format!("{HOOK_TOOLS_PREFIX}/{id}"), "params": params}));
        permit(&grants(&["rye.*"]), &call, Principal::Hook { origin })
            .map(|_| ())
            .map_err(|denied| denied.message)
    };
    let refused = [
        ("cost_tracker", json!({"operation": "add", "spend": 1000})),
        ("cost_tracker", json!({"operation": "report_all"})),
        ("cost_tracker", json!({"operation": ["add"]})),
        ("Cost_Tracker", json!({"operation": "add"})),
        ("budget_ops", json!({})),
        ("a_new_one", json!({})),
        ("a_new_one", json!({"operation": "report"})),
        ("deeper/control", json!({})),
    ];
    for origin in [HookOrigin::Directive, HookOrigin::Project] {
        for (id, params) in &refused {
            let answer = try_call(id, params.clone(), origin);
            assert_eq!(answer, Err(LEDGER_REFUSAL.to_owned()), "{id} {params}");
        }
        for (id, params) in [
            ("cost_tracker", json!({})),
            ("cost_tracker", json!({"operation": null})),
            ("cost_tracker", json!({"operation": "report"})),
            ("emitter", json!({"operation": "add"})),
        ] {
            assert_eq!(try_call(id, params.clone(), origin), Ok(()), "{id} {params}");
        }
    }
    for origin in [HookOrigin::User, HookOrigin::System] {
        for (id, params) in &refused {
            assert_eq!(try_call(id, params.clone(), origin), Ok(()), "{id} {params}");
        }
    }
}

#[test]
fn recorded_threads_keep_their_ledger_rules() {
    let add = json!({"item_id": format!("{HOOK_TOOLS_PREFIX}/cost_tracker"), "params": {"operation": "add"}});
    let principal = Principal::Hook { origin: HookOrigin::Directive };
    let is_permitted = |revision: u32| {
        permit_as_of(&Capabilities::none(), &action(add.clone()), principal, revision).is_ok()
    };
    assert_eq!([5, 6].map(is_permitted), [true, false]);
}

#[test]
fn constructed_action_is_validated() {
    let all = grants(&["rye.*"]);
    for id in
        ["../x", "rye/agent/threads//internal/control", "rye/agent/threads/./internal/control", "rye/bash/"]
    {
        let mut action = run("a");
        action.item_id = Some(id.to_owned());
        assert!(permit(&all, &action, Principal::Model).is_err(), "{id}");
    }
    let mut action = run("a");
    action.item_type = Some(ItemType::Config);
    assert!(permit(&all, &action, HOOK).is_err());
}

#[test]
fn hook_capabilities_follow_origin() {
    let (thread, granted) = (grants(&["rye.execute.tool.a"]), grants(&["rye.load.knowledge.*"]));
    for (origin, expected) in [
        (HookOrigin::Directive, &thread),
        (HookOrigin::Project, &thread),
        (HookOrigin::User, &granted),
        (HookOrigin::System, &granted),
    ] {
        assert_eq!(origin.effective_capabilities(&thread, &granted), expected);
    }
}

#[test]
fn attenuation_narrows_execute_to_parent_grant() {
    let parent = grants(&["rye.execute.tool.rye.file-system.*", "rye.fetch.knowledge.*"]);
    let child = grants(&["rye.execute.*"]).attenuate(&parent);
    assert_eq!(child, grants(&["rye.execute.tool.rye.file-system.*"]));
    // A broad child over several narrow grants keeps them all.
    let all = grants(&["rye.*"]).attenuate(&parent);
    assert!(parent.is_within(&all) && all.is_within(&parent));
    // Nothing in common: nothing.
    assert!(grants(&["rye.sign.*"]).attenuate(&parent).is_empty());
    assert!(grants(&["rye.*"]).attenuate(&Capabilities::none()).is_empty());
}

#[test]
fn grants_round_trip_through_json() {
    let capabilities = grants(&["rye.fetch.tool.*", "rye.execute.tool.a/b", "rye.execute.tool.a.b"]);
    let text = serde_json::to_string(&capabilities).expect("text");
    assert_eq!(text, r#"["rye.search.tool.*","rye.load.tool.*","rye.execute.tool.a.b"]"#);
    assert_eq!(serde_json::from_str::<Capabilities>(&text).expect("grants"), capabilities);
    assert!(serde_json::from_str::<Capabilities>(r#"["everything"]"#).is_err());
}

#[test]
fn denial_lists_bounded_grants() {
    let many: Vec<String> = (0..100).map(|n| format!("rye.execute.tool.t{n}")).collect();
    let denied = permit(&Capabilities::parse(&many).expect("grants"), &run("x"), Principal::Model);
    let message = denied.expect_err("denied").message;
    assert!(message.ends_with(", and 80 more]") && message.len() < 1000, "{message}");
}

fn arb_grant() -> impl Strategy<Value = String> {
    (
        "(execute|search|load|sign|fetch)",
        "(\\*|tool\\.[ab*]{1,3}|tool\\.[ab]\\.[ab*]{1,2}|directive\\.\\*|tool)",
    )
        .prop_map(|(primary, rest)| format!("rye.{primary}.{rest}"))
}

fn arb_capabilities() -> impl Strategy<Value = Capabilities> {
    prop::collection::vec(prop_oneof![arb_grant(), Just("rye.*".to_owned())], 0..5)
        .prop_map(|list| Capabilities::parse(list).expect("grants"))
}

fn arb_action() -> impl Strategy<Value = Action> {
    ("(execute|load|sign|fetch)", "(tool|directive|knowledge)", "[ab]{1,3}(/[ab]{1,2})?")
        .prop_map(|(primary, kind, id)| action(json!({"primary": primary, "item_type": kind, "item_id": id})))
}

proptest! {
    #[test]
    fn attenuated_grants_are_within_both(child in arb_capabilities(), parent in arb_capabilities(), action in arb_action()) {
        let both = child.attenuate(&parent);
        prop_assert!(both.is_within(&child) && both.is_within(&parent));
        if permit(&both, &action, Principal::Model).is_ok() {
            prop_assert!(permit(&child, &action, Principal::Model).is_ok());
            prop_assert!(permit(&parent, &action, Principal::Model).is_ok());
        }
    }

    #[test]
    fn grandchildren_never_exceed_ancestors(a in arb_capabilities(), b in arb_capabilities(), c in arb_capabilities()) {
        let last = c.attenuate(&b.attenuate(&a));
        prop_assert!(last.is_within(&a) && last.is_within(&b) && last.is_within(&c));
    }

    #[test]
    fn required_capabilities_are_sufficient(action in arb_action()) {
        let enough = Capabilities::parse(required_capabilities(&action)).expect("grants");
        prop_assert!(permit(&enough, &action, Principal::Model).is_ok());
    }
}
