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

fn allows(list: &[&str], value: Value) -> bool {
    permit(&grants(list), &action(value), Asker::Model).is_ok()
}

const HOOK: Asker = Asker::Hook { origin: Origin::System };

#[test]
fn permissions_none_means_nothing_is_allowed() {
    let denied = permit(&Capabilities::none(), &run("team/deploy"), Asker::Model).expect_err("denied");
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
    assert!(!allows(&[], json!({"primary": "search", "query": "x"})));
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
        assert!(allows(&[grant], deploy()), "{grant}");
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
        assert!(!allows(&[grant], deploy()), "{grant}");
    }
}

#[test]
fn a_grant_below_an_item_grants_the_item_itself() {
    assert!(allows(&["rye.execute.tool.rye.bash.*"], json!({"item_id": "rye/bash"})));
    assert!(!allows(&["rye.execute.tool.rye.bash.*"], json!({"item_id": "rye/bashful"})));
}

#[test]
fn only_grants_are_read_as_grants() {
    for wrong in [
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
        assert!(Capabilities::parse([wrong]).is_err(), "{wrong}");
    }
    let error = Capabilities::parse(["rye.*", "a", "b"]).expect_err("refused").to_string();
    assert!(error.contains("`a`") && error.contains("`b`"), "{error}");
    assert!(Capabilities::parse(["rye.execute.tool.".to_owned() + &"a".repeat(700)]).is_err());
}

#[test]
fn the_permissions_of_a_directive_are_grants() {
    let parsed =
        json!([{"tag": "cap", "content": "rye.execute.tool.a/b"}, {"tag": "cap", "content": "rye.sign.*"}]);
    let capabilities = Capabilities::of_directive(Some(&parsed)).expect("grants");
    assert_eq!(capabilities.iter().collect::<Vec<_>>(), ["rye.execute.tool.a.b", "rye.sign.*"]);
    assert!(Capabilities::of_directive(None).expect("none").is_empty());
    assert!(Capabilities::of_directive(Some(&json!([{"tag": "cap"}]))).is_err());
    assert!(Capabilities::of_directive(Some(&json!("rye.*"))).is_err());
}

#[test]
fn fetch_grants_searching_and_loading_and_is_satisfied_by_them() {
    let load = || json!({"primary": "load", "item_type": "knowledge", "item_id": "a/b"});
    let fetch = || json!({"primary": "fetch", "item_type": "knowledge", "item_id": "a/b"});
    let find = || json!({"primary": "fetch", "item_type": "knowledge", "query": "b"});
    let search = || json!({"primary": "search", "item_type": "knowledge", "query": "b"});
    for value in [load(), fetch(), find(), search()] {
        assert!(allows(&["rye.fetch.knowledge.*"], value));
    }
    assert!(allows(&["rye.load.knowledge.a.b"], fetch()) && !allows(&["rye.load.knowledge.*"], find()));
    assert!(allows(&["rye.search.knowledge.*"], find()) && !allows(&["rye.search.knowledge.*"], fetch()));
}

#[test]
fn a_fetch_that_leaves_the_type_open_needs_every_type() {
    let fetch = || json!({"primary": "fetch", "item_id": "a/b"});
    assert!(!allows(&["rye.load.knowledge.*", "rye.load.tool.*"], fetch()));
    assert!(allows(&["rye.fetch.*"], fetch()));
}

#[test]
fn a_search_needs_what_it_searches() {
    let search = |scope: Option<&str>| json!({"primary": "search", "query": "q", "scope": scope});
    assert!(allows(&["rye.search.*"], search(None)) && allows(&["rye.*"], search(None)));
    assert!(!allows(&["rye.search.tool.*"], search(None)));
    assert!(allows(&["rye.search.tool.*"], search(Some("tool"))));
    assert!(allows(&["rye.search.tool.team.*"], search(Some("tool.team.*"))));
    assert!(!allows(&["rye.search.tool.team.*"], search(Some("tool"))));
    assert!(!allows(&["rye.search.tool.team"], search(Some("tool.team.*"))));
    // `scope` overrules `item_type`, and hides in params as well as at the top.
    let hidden = json!({
        "primary": "search", "query": "q", "item_type": "tool", "params": {"scope": "directive"}
    });
    assert!(!allows(&["rye.search.tool.*"], hidden));
}

#[test]
fn executing_grants_no_reading_and_no_signing() {
    let grant = ["rye.execute.*"];
    assert!(!allows(&grant, json!({"primary": "load", "item_id": "a"})));
    assert!(!allows(&grant, json!({"primary": "sign", "item_id": "a"})));
}

#[test]
fn copying_needs_the_rights_to_sign_and_load() {
    for copy in [
        json!({"primary": "sign", "item_id": "a/b", "destination": "project"}),
        json!({"primary": "sign", "item_id": "a/b", "params": {"destination": "user"}}),
        json!({"primary": "sign", "item_type": "tool", "item_id": "a/b", "destination": "user"}),
    ] {
        assert!(!allows(&["rye.fetch.*"], copy.clone()), "{copy}");
        assert!(!allows(&["rye.sign.tool.a.b"], copy.clone()), "{copy}");
        assert!(allows(&["rye.fetch.*", "rye.sign.tool.a.b"], copy.clone()), "{copy}");
    }
}

#[test]
fn a_pattern_to_sign_needs_a_grant_for_all_it_could_match() {
    let sign = |id: &str| json!({"primary": "sign", "item_id": id});
    let grant = ["rye.sign.tool.team.*"];
    for id in ["team/*", "team/**", "team/a?", "team/{a,b}", "team/x"] {
        assert!(allows(&grant, sign(id)), "{id}");
    }
    for id in ["*", "**", "te*", "te*/x", "{team,rye}/*", "[t]eam/*", "deploy*", "teamwork/*"] {
        assert!(!allows(&grant, sign(id)), "{id}");
    }
}

#[test]
fn internal_tools_are_for_hooks_in_every_spelling() {
    let control = format!("{INTERNAL}/control");
    let none = Capabilities::none();
    for origin in [Origin::Directive, Origin::Project, Origin::User, Origin::System] {
        let permitted = permit(&none, &run(&control), Asker::Hook { origin }).expect("allowed");
        assert!(permitted.is_internal());
    }
    let all = grants(&["rye.*"]);
    for asker in [Asker::Model, Asker::Directive] {
        for id in [
            control.clone(),
            format!("tool:{control}"),
            control.to_uppercase(),
            format!("{INTERNAL}/deeper/x"),
            INTERNAL.to_owned(),
            "Rye/Agent/threads/Internal/emitter".to_owned(),
        ] {
            for primary in ["execute", "load", "sign"] {
                let action = action(json!({"primary": primary, "item_id": id}));
                let denied = permit(&all, &action, asker).expect_err("denied");
                assert!(denied.message.contains("is for hooks"), "{}", denied.message);
            }
        }
    }
    // A neighbour is no relative, and a hook may not do more than run the tool.
    assert!(permit(&all, &run("rye/agent/threads/internals/x"), Asker::Model).is_ok());
    assert!(permit(&all, &action(json!({"primary": "load", "item_id": control})), HOOK).is_err());
}

#[test]
fn a_directives_hook_reads_the_ledger_and_changes_nothing_in_it() {
    let ledger = |operation: &str| {
        action(json!({"item_id": format!("{INTERNAL}/budget_ops"), "params": {"operation": operation}}))
    };
    let asked = |operation: &str, origin: Origin| {
        permit(&grants(&["rye.*"]), &ledger(operation), Asker::Hook { origin })
    };
    for origin in [Origin::Directive, Origin::Project] {
        assert!(asked("check_remaining", origin).is_ok());
        for operation in ["reserve", "report_actual", "release", ""] {
            assert!(asked(operation, origin).is_err(), "{operation}");
        }
    }
    assert!(asked("release", Origin::System).is_ok() && asked("reserve", Origin::User).is_ok());
}

#[test]
fn an_action_made_by_hand_is_checked_like_one_that_was_read() {
    let all = grants(&["rye.*"]);
    for id in
        ["../x", "rye/agent/threads//internal/control", "rye/agent/threads/./internal/control", "rye/bash/"]
    {
        let mut action = run("a");
        action.item_id = Some(id.to_owned());
        assert!(permit(&all, &action, Asker::Model).is_err(), "{id}");
    }
    let mut action = run("a");
    action.item_type = Some(ItemType::Config);
    assert!(permit(&all, &action, HOOK).is_err());
}

#[test]
fn hooks_run_on_what_their_origin_gives_them() {
    let (thread, given) = (grants(&["rye.execute.tool.a"]), grants(&["rye.load.knowledge.*"]));
    for (origin, expected) in [
        (Origin::Directive, &thread),
        (Origin::Project, &thread),
        (Origin::User, &given),
        (Origin::System, &given),
    ] {
        assert_eq!(origin.rights(&thread, &given), expected);
    }
}

#[test]
fn parent_attenuation_narrows_execute_to_the_parents_file_system_grant() {
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
fn grants_are_the_same_after_they_were_written_down() {
    let capabilities = grants(&["rye.fetch.tool.*", "rye.execute.tool.a/b", "rye.execute.tool.a.b"]);
    let text = serde_json::to_string(&capabilities).expect("text");
    assert_eq!(text, r#"["rye.search.tool.*","rye.load.tool.*","rye.execute.tool.a.b"]"#);
    assert_eq!(serde_json::from_str::<Capabilities>(&text).expect("grants"), capabilities);
    assert!(serde_json::from_str::<Capabilities>(r#"["everything"]"#).is_err());
}

#[test]
fn a_refusal_lists_so_many_grants_and_no_more() {
    let many: Vec<String> = (0..100).map(|n| format!("rye.execute.tool.t{n}")).collect();
    let denied = permit(&Capabilities::parse(&many).expect("grants"), &run("x"), Asker::Model);
    let message = denied.expect_err("denied").message;
    assert!(message.ends_with(", and 80 more]") && message.len() < 1000, "{message}");
}

fn grant() -> impl Strategy<Value = String> {
    (
        "(execute|search|load|sign|fetch)",
        "(\\*|tool\\.[ab*]{1,3}|tool\\.[ab]\\.[ab*]{1,2}|directive\\.\\*|tool)",
    )
        .prop_map(|(primary, rest)| format!("rye.{primary}.{rest}"))
}

fn some_grants() -> impl Strategy<Value = Capabilities> {
    prop::collection::vec(prop_oneof![grant(), Just("rye.*".to_owned())], 0..5)
        .prop_map(|list| Capabilities::parse(list).expect("grants"))
}

fn some_action() -> impl Strategy<Value = Action> {
    ("(execute|load|sign|fetch)", "(tool|directive|knowledge)", "[ab]{1,3}(/[ab]{1,2})?")
        .prop_map(|(primary, kind, id)| action(json!({"primary": primary, "item_type": kind, "item_id": id})))
}

proptest! {
    #[test]
    fn attenuated_grants_are_within_both(child in some_grants(), parent in some_grants(), action in some_action()) {
        let both = child.attenuate(&parent);
        prop_assert!(both.is_within(&child) && both.is_within(&parent));
        if permit(&both, &action, Asker::Model).is_ok() {
            prop_assert!(permit(&child, &action, Asker::Model).is_ok());
            prop_assert!(permit(&parent, &action, Asker::Model).is_ok());
        }
    }

    #[test]
    fn grandchildren_have_no_more_than_anybody_above(a in some_grants(), b in some_grants(), c in some_grants()) {
        let last = c.attenuate(&b.attenuate(&a));
        prop_assert!(last.is_within(&a) && last.is_within(&b) && last.is_within(&c));
    }

    #[test]
    fn what_is_required_is_exactly_enough(action in some_action()) {
        let enough = Capabilities::parse(required(&action)).expect("grants");
        prop_assert!(permit(&enough, &action, Asker::Model).is_ok());
    }
}
