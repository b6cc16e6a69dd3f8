use rye_item::ItemType;
use rye_test::TestContext;

use super::*;
use crate::capability::{Capabilities, HookOrigin, Principal, permit};
use crate::test_support::{
    engine, init_world, item, signed_knowledge, signed_native, test_context, write_native,
};

const HOOK: Principal = Principal::Hook { origin: HookOrigin::System };

fn dispatch_as(world: &TestContext, principal: Principal, value: &Value) -> Value {
    let action = Action::from_value(value).expect("an action");
    let all = Capabilities::parse(["rye.*"]).expect("grants");
    let permitted = permit(&all, &action, principal).expect("allowed");
    EngineDispatcher::new(engine(world)).dispatch(
        &permitted,
        &test_context(),
        &CancelToken::new().expect("an event"),
    )
}

fn dispatch(world: &TestContext, value: impl std::borrow::Borrow<Value>) -> Value {
    dispatch_as(world, Principal::Model, value.borrow())
}

fn set_mcp_sign(world: &TestContext, word: &str) {
    world.write("home/.ai/config/config.yaml", format!("mcp:\n  sign: {word}\n"));
}

#[test]
fn dispatcher_runs_all_primaries() {
    let world = init_world();
    world.write("project/notes.txt", "one\ntwo\n");
    signed_knowledge(&world, "team/rules", "Be kind.");
    let read = dispatch(&world, json!({"item_id": "rye/file-system/read", "params": {"path": "notes.txt"}}));
    assert_eq!(
        (&read["status"], &read["type"], &read["item_id"]),
        (&json!("success"), &json!("tool"), &json!("rye/file-system/read"))
    );
    assert!(read["data"].to_string().contains("two"), "{read}");

    let found = dispatch(&world, json!({"primary": "search", "query": "kind", "item_type": "knowledge"}));
    assert_eq!(found["data"]["results"][0]["item_id"], "team/rules", "{found}");

    let loaded =
        dispatch(&world, json!({"primary": "load", "item_type": "knowledge", "item_id": "team/rules"}));
    assert!(loaded["data"]["content"].as_str().expect("text").contains("Be kind."));

    write_native(&world, "team/look", "file_system.ls", "{type: object}");
    set_mcp_sign(&world, "allow");
    let signed = dispatch(&world, json!({"primary": "sign", "item_id": "team/look"}));
    assert_eq!(signed["status"], "success", "{signed}");
    let run = dispatch(&world, json!({"item_id": "team/look", "params": {}}));
    assert_eq!(run["status"], "success", "{run}");
}

#[test]
fn fetch_loads_or_searches() {
    let world = init_world();
    signed_knowledge(&world, "team/rules", "About a zebra.");
    let by_id = dispatch(&world, json!({"primary": "fetch", "item_id": "team/rules"}));
    assert!(by_id["data"]["content"].as_str().expect("text").contains("About a zebra."));
    let by_words = dispatch(&world, json!({"primary": "fetch", "query": "zebra"}));
    assert_eq!(by_words["data"]["results"][0]["item_id"], "team/rules");
}

#[test]
fn tool_dispatcher_runs_everything_in_the_threads_project() {
    let world = init_world();
    world.write("project/only-here.txt", "x");
    let listed = dispatch(&world, json!({"item_id": "rye/file-system/ls", "project_path": "/"}));
    assert!(listed["data"].to_string().contains("only-here.txt"), "{listed}");
    let outside =
        dispatch(&world, json!({"item_id": "rye/file-system/read", "params": {"path": "/etc/hostname"}}));
    assert_eq!(outside["status"], "error");
}

#[test]
fn only_hook_tools_get_thread_context() {
    let world = init_world();
    signed_native(&world, &format!("{HOOK_TOOLS_PREFIX}/emitter"), "threads.emitter", "{type: object}");
    signed_native(&world, "team/emitter", "threads.emitter", "{type: object}");
    let emit = |id: &str| json!({"item_id": id, "params": {"event_type": "note", "payload": {"n": 1}}});
    let internal = dispatch_as(&world, HOOK, &emit(&format!("{HOOK_TOOLS_PREFIX}/emitter")));
    assert_eq!(internal["data"]["emitted"], true, "{internal}");
    // The same function under another name, called by the model or by a hook, learns nothing.
    for principal in [Principal::Model, HOOK] {
        let other = dispatch_as(&world, principal, &emit("team/emitter"));
        assert_eq!(other["data"], json!({"success": false, "error": "Missing thread context"}));
    }
}

#[test]
fn hook_tools_are_the_systems_alone() {
    let world = init_world();
    let id = format!("{HOOK_TOOLS_PREFIX}/emitter");
    let action = Action::from_value(&json!({"item_id": id, "params": {"event_type": "note", "payload": {}}}));
    let all = Capabilities::parse(["rye.*"]).expect("grants");
    let permitted = permit(&all, &action.expect("an action"), HOOK).expect("allowed");
    let dispatcher = EngineDispatcher::new(engine(&world));
    let cancel = CancelToken::new().expect("an event");
    let run = || dispatcher.dispatch(&permitted, &test_context(), &cancel);
    let expected = json!({
        "status": "success", "type": "tool", "item_id": id,
        "data": {"success": true, "emitted": true, "event_type": "note", "payload": {}, "criticality": "critical"},
    });
    for _ in 0..5 {
        assert_eq!(run(), expected);
    }
    // However well it is signed, a project's tool of that id is not used.
    signed_native(&world, &id, "test.access", "{type: object}");
    assert_eq!(run(), expected);
}

#[test]
fn failed_control_result_is_a_success_envelope() {
    let world = init_world();
    signed_native(&world, &format!("{HOOK_TOOLS_PREFIX}/control"), "threads.control", "{type: object}");
    let control = |action: &str| {
        let value = json!({"item_id": format!("{HOOK_TOOLS_PREFIX}/control"), "params": {"action": action}});
        dispatch_as(&world, HOOK, &value)
    };
    let aborted = control("abort");
    assert_eq!(
        (&aborted["status"], &aborted["data"]["aborted"]),
        (&json!("success"), &json!(true)),
        "{aborted}"
    );
    assert_eq!(control("continue")["data"], Value::Null);
}

#[test]
fn search_limit_defaults_to_ten() {
    let world = init_world();
    for n in 0..12 {
        world.write(&format!("project/.ai/tools/many/t{n}.py"), rye_test::tool("many", "about a zebra"));
    }
    let rows = |value: Value| dispatch(&world, value)["data"]["results"].as_array().map(Vec::len);
    assert_eq!(rows(json!({"primary": "search", "query": "zebra"})), Some(10));
    assert_eq!(rows(json!({"primary": "search", "query": "zebra", "limit": "3"})), Some(3));
    assert_eq!(rows(json!({"primary": "search", "params": {"query": "zebra", "limit": 12}})), Some(12));
    let invalid = dispatch(&world, json!({"primary": "search", "query": "zebra", "source": "elsewhere"}));
    assert_eq!((&invalid["status"], &invalid["code"]), (&json!("error"), &json!("RYE0104")));
}

#[test]
fn project_precedes_system_without_source() {
    let world = init_world();
    let load = |source: Option<&str>| {
        dispatch(&world, json!({"primary": "load", "item_id": "rye/file-system/read", "source": source}))
    };
    assert_eq!(load(None)["data"]["space"], "system:ryeos");
    assert_eq!(load(Some("project"))["status"], "error");
    assert_eq!(load(Some("system"))["status"], "success");
}

#[test]
fn untrusted_items_are_not_loaded_or_run() {
    let world = init_world();
    set_mcp_sign(&world, "allow");
    write_native(&world, "team/stranger", "file_system.ls", "{type: object}");
    for value in [
        json!({"primary": "load", "item_id": "team/stranger"}),
        json!({"primary": "load", "item_id": "team/stranger", "unverified": true}),
        json!({"primary": "execute", "item_id": "team/stranger"}),
        json!({"primary": "execute", "item_id": "team/stranger", "dry_run": true}),
        json!({"primary": "sign", "item_id": "team/stranger", "destination": "user"}),
    ] {
        let refused = dispatch(&world, value.clone());
        assert_eq!((&refused["status"], &refused["code"]), (&json!("error"), &json!("RYE0401")), "{value}");
        let hints = refused["hints"].to_string();
        assert!(hints.contains("tell the user") && !hints.contains("rye sign"), "{hints}");
    }
}

#[test]
fn missing_item_has_error_code() {
    let world = init_world();
    let missing = dispatch(&world, json!({"item_id": "rye_execute", "params": {"item_id": "rye/bash"}}));
    assert_eq!((&missing["status"], &missing["code"]), (&json!("error"), &json!("RYE0201")));
}

#[test]
fn agent_signing_follows_policy() {
    let world = init_world();
    write_native(&world, "team/look", "file_system.ls", "{type: object}");
    for (word, code) in [("deny", "RYE1001"), ("ask", "RYE0105")] {
        set_mcp_sign(&world, word);
        for value in [
            json!({"primary": "sign", "item_id": "team/look"}),
            json!({"primary": "sign", "item_id": "rye/file-system/read", "destination": "project"}),
        ] {
            let refused = dispatch(&world, value.clone());
            assert_eq!(refused["code"], code, "{word}: {value}: {refused}");
        }
    }
    set_mcp_sign(&world, "allow");
    for value in [
        json!({"primary": "load", "item_id": "rye/file-system/read", "destination": "project"}),
        json!({"primary": "fetch", "item_id": "tool:rye/file-system/read", "destination": "project"}),
    ] {
        assert_eq!(dispatch(&world, value.clone())["code"], "RYE0104", "{value}");
    }
    let copied = dispatch(
        &world,
        json!({"primary": "sign", "item_id": "rye/file-system/read", "destination": "project"}),
    );
    assert_eq!(copied["status"], "success", "{copied}");
    let again = engine(&world);
    let location =
        again.workspace.spaces.locate(&item(ItemType::Tool, "rye/file-system/read"), None).expect("found");
    assert!(location.path.starts_with(world.project()));
}

#[test]
fn sign_pattern_excludes_hook_tools() {
    let world = init_world();
    write_native(&world, "team/look", "file_system.ls", "{type: object}");
    set_mcp_sign(&world, "allow");
    let sign = |id: &str| dispatch(&world, json!({"primary": "sign", "item_id": id}));
    assert_eq!(sign("team/*")["status"], "success");
    write_native(&world, &format!("{HOOK_TOOLS_PREFIX}/control"), "file_system.ls", "{type: object}");
    for id in ["**", "rye/**", "control*"] {
        let refused = sign(id);
        assert_eq!(refused["code"], "RYE1001", "{refused}");
    }
}

#[test]
fn dispatcher_does_not_start_threads() {
    let world = init_world();
    let refused = dispatch(&world, json!({"item_type": "directive", "item_id": "a/b", "thread": "fork"}));
    assert_eq!(refused["status"], "error");
}

#[test]
fn cancellation_reaches_running_tool() {
    let world = init_world();
    signed_native(&world, "team/wait", "test.is_cancelled", "{type: object}");
    let cancel = CancelToken::new().expect("an event");
    let action = Action::from_value(&json!({"item_id": "team/wait"})).expect("an action");
    let all = Capabilities::parse(["rye.*"]).expect("grants");
    let permitted = permit(&all, &action, Principal::Model).expect("allowed");
    let dispatch = EngineDispatcher::new(engine(&world));
    assert_eq!(dispatch.dispatch(&permitted, &test_context(), &cancel)["data"], false);
    cancel.cancel();
    assert_eq!(dispatch.dispatch(&permitted, &test_context(), &cancel)["data"], true);
}

#[test]
fn pure_function_gets_no_access() {
    let world = init_world();
    signed_native(&world, "team/access", "test.access", "{type: object}");
    let response = dispatch(&world, json!({"item_id": "team/access"}));
    assert_eq!(response["data"], json!({"write": 0, "network": false}), "{response}");
}

#[test]
fn only_tools_without_access_run_inline() {
    let world = init_world();
    signed_native(&world, "team/access", "test.access", "{type: object}");
    signed_native(&world, "team/wait", "test.is_cancelled", "{type: object}");
    let dispatch = EngineDispatcher::new(engine(&world));
    let at_once = |value: Value| {
        let action = Action::from_value(&value).expect("an action");
        let all = Capabilities::parse(["rye.*"]).expect("grants");
        let permitted = permit(&all, &action, Principal::Model).expect("allowed");
        dispatch.try_dispatch_inline(&permitted, &test_context(), &CancelToken::new().expect("an event"))
    };
    let pure = at_once(json!({"item_id": "team/access"})).expect("an answer");
    assert_eq!(pure["data"], json!({"write": 0, "network": false}), "{pure}");
    let time = at_once(json!({"item_id": "rye/core/system/time"})).expect("an answer");
    assert_eq!(time["status"], "success", "{time}");
    let refused = at_once(json!({"item_id": "team/absent"})).expect("an answer");
    assert_eq!(refused["status"], "error", "{refused}");
    let invalid = at_once(json!({"item_id": "rye/core/system/time", "params": {"other": 1}}));
    assert_eq!(invalid.expect("an answer")["status"], "error");

    for later in [
        json!({"item_id": "team/wait"}),
        json!({"item_id": "rye/core/system/paths"}),
        json!({"item_id": "rye/file-system/write", "params": {"path": "new", "content": "x"}}),
        json!({"item_id": "rye/bash", "params": {"command": "touch new"}}),
        json!({"primary": "search", "query": "x"}),
        json!({"item_type": "knowledge", "item_id": "team/rules"}),
    ] {
        assert_eq!(at_once(later.clone()), None, "{later}");
    }
    assert!(!world.project().join("new").exists());
}

#[test]
fn test_runner_is_limited_to_callers_capabilities() {
    let world = init_world();
    write_native(&world, "team/risky", "test.tell_access", "{type: object}");
    for (name, tool) in [("look", "rye/file-system/ls"), ("shell", "rye/bash"), ("risky", "team/risky")] {
        world.write(
            &format!("project/.ai/tests/{name}.test.yaml"),
            format!("tool: {tool}\ntests:\n  - name: case\n    params: {{path: ., command: \"true\"}}\n"),
        );
    }
    let action = Action::execute(&item(ItemType::Tool, "rye/dev/test_runner"), Map::new());
    let grants = [
        "rye.execute.tool.rye.dev.test_runner",
        "rye.execute.tool.rye.file-system.*",
        "rye.execute.tool.team.*",
    ];
    let grants = Capabilities::parse(grants).expect("grants");
    for principal in [Principal::Model, HOOK] {
        let permitted = permit(&grants, &action, principal).expect("allowed");
        let dispatch = EngineDispatcher::new(engine(&world));
        let response = dispatch.dispatch(&permitted, &test_context(), &CancelToken::new().expect("an event"));
        let problem = |file: &str| {
            let rows = response["data"]["results"].as_array().expect("results");
            let row = rows.iter().find(|row| row["file"] == json!(file)).expect("a row");
            row["problems"].to_string()
        };
        assert!(!problem("look.test.yaml").contains("Permission denied"), "{response}");
        assert!(problem("shell.test.yaml").contains("'rye.execute.tool.rye.bash' not covered"), "{response}");
        assert!(problem("risky.test.yaml").contains("risky needs approval"), "{response}");
    }
}
