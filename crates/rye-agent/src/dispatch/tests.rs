use rye_item::ItemType;
use rye_test::World;

use super::*;
use crate::capability::{Asker, Capabilities, Origin, permit};
use crate::test_world::{engine, facts, item, knowledge, native, world, write_native};

const HOOK: Asker = Asker::Hook { origin: Origin::System };

fn dispatch_as(world: &World, asker: Asker, value: &Value) -> Value {
    let action = Action::from_value(value).expect("an action");
    let all = Capabilities::parse(["rye.*"]).expect("grants");
    let permitted = permit(&all, &action, asker).expect("allowed");
    EngineDispatch::new(engine(world)).dispatch(&permitted, &facts(), &Cancel::new().expect("an event"))
}

fn dispatch(world: &World, value: impl std::borrow::Borrow<Value>) -> Value {
    dispatch_as(world, Asker::Model, value.borrow())
}

fn set_mcp_sign(world: &World, word: &str) {
    world.write("home/.ai/config/config.yaml", format!("mcp:\n  sign: {word}\n"));
}

#[test]
fn tool_dispatcher_dispatches_all_four_primaries_and_params_become_parameters() {
    let world = world();
    world.write("project/notes.txt", "one\ntwo\n");
    knowledge(&world, "team/rules", "Be kind.");
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
    let world = world();
    knowledge(&world, "team/rules", "About a zebra.");
    let by_id = dispatch(&world, json!({"primary": "fetch", "item_id": "team/rules"}));
    assert!(by_id["data"]["content"].as_str().expect("text").contains("About a zebra."));
    let by_words = dispatch(&world, json!({"primary": "fetch", "query": "zebra"}));
    assert_eq!(by_words["data"]["results"][0]["item_id"], "team/rules");
}

#[test]
fn tool_dispatcher_runs_everything_in_the_threads_project() {
    let world = world();
    world.write("project/only-here.txt", "x");
    let listed = dispatch(&world, json!({"item_id": "rye/file-system/ls", "project_path": "/"}));
    assert!(listed["data"].to_string().contains("only-here.txt"), "{listed}");
    let outside =
        dispatch(&world, json!({"item_id": "rye/file-system/read", "params": {"path": "/etc/hostname"}}));
    assert_eq!(outside["status"], "error");
}

#[test]
fn tool_dispatcher_gives_the_thread_to_internal_tools_and_to_nobody_else() {
    let world = world();
    native(&world, &format!("{INTERNAL}/emitter"), "threads.emitter", "{type: object}");
    native(&world, "team/emitter", "threads.emitter", "{type: object}");
    let given = |id: &str| json!({"item_id": id, "params": {"event_type": "note", "payload": {"n": 1}}});
    let internal = dispatch_as(&world, HOOK, &given(&format!("{INTERNAL}/emitter")));
    assert_eq!(internal["data"]["emitted"], true, "{internal}");
    // The same function under another name, called by the model or by a hook, learns nothing.
    for asker in [Asker::Model, HOOK] {
        let other = dispatch_as(&world, asker, &given("team/emitter"));
        assert_eq!(other["data"], json!({"success": false, "error": "Missing thread context"}));
    }
}

#[test]
fn a_control_result_that_says_no_is_still_an_answer() {
    let world = world();
    native(&world, &format!("{INTERNAL}/control"), "threads.control", "{type: object}");
    let control = |action: &str| {
        let value = json!({"item_id": format!("{INTERNAL}/control"), "params": {"action": action}});
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
fn a_search_gives_ten_rows_and_takes_text_for_a_number() {
    let world = world();
    for n in 0..12 {
        world.write(&format!("project/.ai/tools/many/t{n}.py"), rye_test::tool("many", "about a zebra"));
    }
    let rows = |value: Value| dispatch(&world, value)["data"]["results"].as_array().map(Vec::len);
    assert_eq!(rows(json!({"primary": "search", "query": "zebra"})), Some(10));
    assert_eq!(rows(json!({"primary": "search", "query": "zebra", "limit": "3"})), Some(3));
    assert_eq!(rows(json!({"primary": "search", "params": {"query": "zebra", "limit": 12}})), Some(12));
    let wrong = dispatch(&world, json!({"primary": "search", "query": "zebra", "source": "elsewhere"}));
    assert_eq!((&wrong["status"], &wrong["code"]), (&json!("error"), &json!("RYE0104")));
}

#[test]
fn without_a_source_the_project_comes_first_and_the_system_last() {
    let world = world();
    let load = |source: Option<&str>| {
        dispatch(&world, json!({"primary": "load", "item_id": "rye/file-system/read", "source": source}))
    };
    assert_eq!(load(None)["data"]["space"], "system:ryeos");
    assert_eq!(load(Some("project"))["status"], "error");
    assert_eq!(load(Some("system"))["status"], "success");
}

#[test]
fn what_nobody_vouches_for_is_neither_loaded_nor_run() {
    let world = world();
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
fn an_item_that_is_nowhere_is_an_error_with_a_code() {
    let world = world();
    let missing = dispatch(&world, json!({"item_id": "rye_execute", "params": {"item_id": "rye/bash"}}));
    assert_eq!((&missing["status"], &missing["code"]), (&json!("error"), &json!("RYE0201")));
}

#[test]
fn agents_sign_and_copy_as_policy_says() {
    let world = world();
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
    let place =
        again.workspace.spaces.locate(&item(ItemType::Tool, "rye/file-system/read"), None).expect("found");
    assert!(place.path.starts_with(world.project()));
}

#[test]
fn a_pattern_signs_no_tools_of_hooks() {
    let world = world();
    write_native(&world, "team/look", "file_system.ls", "{type: object}");
    set_mcp_sign(&world, "allow");
    let sign = |id: &str| dispatch(&world, json!({"primary": "sign", "item_id": id}));
    assert_eq!(sign("team/*")["status"], "success");
    write_native(&world, &format!("{INTERNAL}/control"), "file_system.ls", "{type: object}");
    for id in ["**", "rye/**", "control*"] {
        let refused = sign(id);
        assert_eq!(refused["code"], "RYE1001", "{refused}");
    }
}

#[test]
fn a_thread_is_not_started_by_the_dispatcher() {
    let world = world();
    let refused = dispatch(&world, json!({"item_type": "directive", "item_id": "a/b", "thread": "fork"}));
    assert_eq!(refused["status"], "error");
}

#[test]
fn a_request_to_end_reaches_what_runs() {
    let world = world();
    native(&world, "team/wait", "test.is_cancelled", "{type: object}");
    let cancel = Cancel::new().expect("an event");
    let action = Action::from_value(&json!({"item_id": "team/wait"})).expect("an action");
    let all = Capabilities::parse(["rye.*"]).expect("grants");
    let permitted = permit(&all, &action, Asker::Model).expect("allowed");
    let dispatch = EngineDispatch::new(engine(&world));
    assert_eq!(dispatch.dispatch(&permitted, &facts(), &cancel)["data"], false);
    cancel.cancel();
    assert_eq!(dispatch.dispatch(&permitted, &facts(), &cancel)["data"], true);
}

#[test]
fn a_function_that_touches_nothing_is_given_no_access() {
    let world = world();
    native(&world, "team/access", "test.access", "{type: object}");
    let answer = dispatch(&world, json!({"item_id": "team/access"}));
    assert_eq!(answer["data"], json!({"write": 0, "network": false}), "{answer}");
}

#[test]
fn only_what_touches_nothing_is_done_at_once() {
    let world = world();
    native(&world, "team/access", "test.access", "{type: object}");
    native(&world, "team/wait", "test.is_cancelled", "{type: object}");
    let dispatch = EngineDispatch::new(engine(&world));
    let at_once = |value: Value| {
        let action = Action::from_value(&value).expect("an action");
        let all = Capabilities::parse(["rye.*"]).expect("grants");
        let permitted = permit(&all, &action, Asker::Model).expect("allowed");
        dispatch.dispatch_at_once(&permitted, &facts(), &Cancel::new().expect("an event"))
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
fn test_runner_has_no_more_rights_than_its_caller() {
    let world = world();
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
    for asker in [Asker::Model, HOOK] {
        let permitted = permit(&grants, &action, asker).expect("allowed");
        let dispatch = EngineDispatch::new(engine(&world));
        let answer = dispatch.dispatch(&permitted, &facts(), &Cancel::new().expect("an event"));
        let problem = |file: &str| {
            let rows = answer["data"]["results"].as_array().expect("results");
            let row = rows.iter().find(|row| row["file"] == json!(file)).expect("a row");
            row["problems"].to_string()
        };
        assert!(!problem("look.test.yaml").contains("Permission denied"), "{answer}");
        assert!(problem("shell.test.yaml").contains("'rye.execute.tool.rye.bash' not covered"), "{answer}");
        assert!(problem("risky.test.yaml").contains("risky needs approval"), "{answer}");
    }
}
