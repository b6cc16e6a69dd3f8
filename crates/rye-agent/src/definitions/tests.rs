use rye_item::ItemType;
use rye_model::{ToolCall, ToolDefinition};
use serde_json::{Value, json};

use super::*;
use crate::action::{Action, Primary};
use crate::capability::{Asker, Capabilities, INTERNAL, permit};
use crate::test_world::{engine, native, world, write_native};

const PLENTY: Preload = Preload { enabled: true, max_tokens: 100_000 };

fn grants(list: &[&str]) -> Capabilities {
    Capabilities::parse(list).expect("grants")
}

fn built(list: &[&str], outputs: &Value, preload: Preload) -> Definitions {
    let world = world();
    build(&engine(&world), &grants(list), &Output::of_directive(Some(outputs)), preload)
}

fn call(name: &str, input: Value) -> ToolCall {
    let Value::Object(input) = input else { panic!("arguments are a map") };
    ToolCall { id: "c1".to_owned(), name: name.to_owned(), input, malformed: None }
}

fn names(definitions: &Definitions) -> Vec<&str> {
    definitions.tools.iter().map(|tool| tool.name.as_str()).collect()
}

fn action(target: Result<Target, Refusal>) -> Action {
    match target {
        Ok(Target::Action(action)) => action,
        other => panic!("{other:?}"),
    }
}

#[test]
fn preload_offers_the_primaries_and_the_tools_that_are_granted() {
    let definitions =
        built(&["rye.execute.tool.rye.file-system.*", "rye.search.knowledge.*"], &json!([]), PLENTY);
    let names = names(&definitions);
    assert_eq!(names[..3], ["rye_search", "rye_execute", "read_artifact"]);
    assert!(names.contains(&"rye_file_system_read") && names.contains(&"rye_file_system_write"), "{names:?}");
    assert!(!names.contains(&"rye_load") && !names.contains(&"rye_sign") && !names.contains(&"rye_bash"));
    assert!(!names.contains(&"directive_return"));
    let read = definitions.definition("rye_file_system_read").expect("offered");
    assert_eq!(read.schema["required"], json!(["path"]));
    assert_eq!(read.target["item_id"], "rye/file-system/read");
    let execute = definitions.definition("rye_execute").expect("offered");
    assert_eq!(execute.schema["properties"]["item_type"]["enum"], json!(["tool"]));
    assert!(execute.schema["properties"].get("project_path").is_none(), "a thread stays in its project");
    assert!(execute.schema["properties"].get("thread").is_none(), "no directive is granted");
}

#[test]
fn everything_that_is_granted_includes_tools_and_no_machinery() {
    for grant in ["rye.*", "rye.execute.*", "rye.execute.tool.*"] {
        let definitions = built(&[grant], &json!([]), PLENTY);
        let names = names(&definitions);
        assert!(names.contains(&"rye_execute") && names.contains(&"rye_bash"), "{grant}: {names:?}");
        let is_machinery = |tool: &ToolDefinition| {
            let id = tool.target["item_id"].as_str().unwrap_or_default();
            id.contains("primitives") || id.contains("runtimes") || id.contains("internal")
        };
        assert!(!definitions.tools.iter().any(is_machinery), "{names:?}");
    }
}

#[test]
fn nothing_granted_offers_nothing_but_the_way_out() {
    assert_eq!(names(&built(&[], &json!([]), PLENTY)), Vec::<&str>::new());
    assert_eq!(names(&built(&[], &json!([{"name": "a"}]), PLENTY)), ["directive_return"]);
}

#[test]
fn preload_what_does_not_fit_is_left_out_and_said() {
    let preload = Preload { enabled: true, max_tokens: 1500 };
    let definitions =
        built(&["rye.execute.tool.rye.*", "rye.execute.tool.rye.file-system.grep"], &json!([]), preload);
    assert!(names(&definitions).contains(&"rye_file_system_grep"), "named tools come first");
    assert!(!definitions.skipped.is_empty());
    assert!(definitions.skipped.iter().all(|skipped| skipped.reason.contains("no room")));
    let none = built(
        &["rye.execute.tool.rye.file-system.read"],
        &json!([]),
        Preload { enabled: false, max_tokens: 9 },
    );
    assert_eq!(names(&none), ["rye_execute", "read_artifact"]);
}

#[test]
fn tools_that_nobody_vouches_for_are_not_offered_and_said() {
    let world = world();
    write_native(&world, "team/stranger", "file_system.ls", "{type: object}");
    let definitions = build(&engine(&world), &grants(&["rye.execute.tool.team.*"]), &[], PLENTY);
    assert!(!names(&definitions).contains(&"team_stranger"));
    assert_eq!(definitions.skipped[0].item_id, "team/stranger");
}

#[test]
fn internal_tools_are_never_offered_nor_reached() {
    let world = world();
    native(&world, &format!("{INTERNAL}/control"), "threads.control", "{type: object}");
    let definitions = build(
        &engine(&world),
        &grants(&["rye.*", "rye.execute.tool.rye.agent.threads.internal.control"]),
        &[],
        PLENTY,
    );
    assert!(!definitions.tools.iter().any(|tool| tool.target["item_id"].to_string().contains("internal")));
    for id in [
        format!("{INTERNAL}/control"),
        format!("tool:{INTERNAL}/control"),
        "RYE/agent/threads/internal/control".to_owned(),
    ] {
        let target = definitions
            .target(&call("rye_execute", json!({"item_id": id, "parameters": {"action": "abort"}})));
        let denied = permit(&grants(&["rye.*"]), &action(target), Asker::Model);
        assert!(denied.is_err(), "{id}");
    }
    for id in [
        "rye/agent/threads//internal/control",
        "rye/agent/threads/internal/../internal/control",
        "rye/agent/threads/internal/control/",
        "rye\u{2215}agent/threads/internal/control",
    ] {
        let refused = definitions.target(&call("rye_execute", json!({"item_type": "tool", "item_id": id})));
        assert!(refused.is_err(), "{id}");
    }
}

#[test]
fn a_name_that_was_not_offered_is_refused_with_those_that_were() {
    let definitions = built(&["rye.execute.tool.rye.file-system.read"], &json!([]), PLENTY);
    for name in ["rye_bash", "rye/file-system/read", "RYE_EXECUTE", "rye_sign", "", "x\u{1b}[31m"] {
        let refusal = definitions
            .target(&call(name, json!({"item_id": format!("{INTERNAL}/emitter")})))
            .expect_err("refused");
        assert!(
            refusal.message.contains("there are: ") && refusal.message.contains("rye_file_system_read"),
            "{refusal}"
        );
        assert!(!refusal.message.contains('\u{1b}'));
        assert_eq!(refusal.to_value()["code"], "RYE1125");
    }
}

#[test]
fn another_items_id_in_a_direct_call_is_only_a_parameter() {
    let definitions = built(&["rye.execute.tool.rye.file-system.read"], &json!([]), PLENTY);
    let input = json!({"path": "a", "item_id": "rye/bash", "item_type": "tool", "primary": "sign"});
    let action = action(definitions.target(&call("rye_file_system_read", input.clone())));
    assert_eq!((action.primary, action.item_id.as_deref()), (Primary::Execute, Some("rye/file-system/read")));
    assert_eq!(Value::Object(action.params.clone()), input);
    assert!(action.options.is_empty());
}

#[test]
fn what_is_executed_through_the_primary_is_what_is_checked() {
    let capabilities = ["rye.execute.tool.rye.file-system.read"];
    let definitions = built(&capabilities, &json!([]), PLENTY);
    let check = |input: Value| {
        permit(&grants(&capabilities), &action(definitions.target(&call("rye_execute", input))), Asker::Model)
    };
    assert!(
        check(
            json!({"item_type": "tool", "item_id": "rye/file-system/read", "parameters": "{\"path\": \"a\"}"})
        )
        .is_ok()
    );
    assert!(
        check(json!({"item_id": "rye/bash", "parameters": {"item_id": "rye/file-system/read"}})).is_err()
    );
    assert!(check(json!({"item_id": "tool:rye/bash"})).is_err());
    assert!(
        check(json!({"item_id": "rye_execute", "parameters": {"item_id": "rye/bash"}})).is_err(),
        "nested"
    );
    assert!(check(json!({"item_type": "directive", "item_id": "rye/file-system/read"})).is_err());
}

#[test]
fn arguments_that_the_primary_does_not_have_are_refused() {
    let definitions = built(&["rye.*"], &json!([]), PLENTY);
    for (name, input) in [
        ("rye_execute", json!({"item_id": "a", "params": {"x": 1}})),
        ("rye_execute", json!({"item_id": "a", "primary": "sign"})),
        ("rye_execute", json!({"item_id": "a", "project_path": "/etc"})),
        ("rye_execute", json!({"item_id": "a", "parameters": "[]"})),
        ("rye_execute", json!({"item_id": 7})),
        ("rye_execute", json!({})),
        ("rye_load", json!({"item_type": "config", "item_id": "config"})),
        ("rye_search", json!({})),
    ] {
        assert!(definitions.target(&call(name, input.clone())).is_err(), "{name} {input}");
    }
    let mut broken = call("rye_execute", json!({}));
    broken.malformed = Some("{\"item_id\": ".to_owned());
    assert!(definitions.target(&broken).expect_err("refused").message.contains("no JSON object"));
}

#[test]
fn threads_are_started_and_led_by_the_thread_that_asks() {
    let definitions = built(&["rye.*"], &json!([]), PLENTY);
    let target = |input: Value| definitions.target(&call("rye_execute", input)).expect("a target");
    assert!(matches!(target(json!({"item_id": THREAD_DIRECTIVE, "parameters": {}})), Target::Spawn(_)));
    assert!(matches!(target(json!({"item_id": "directive:a/b", "thread": "fork"})), Target::Spawn(_)));
    assert!(matches!(target(json!({"item_id": "directive:a/b"})), Target::Action(_)));
    assert!(matches!(target(json!({"item_id": ORCHESTRATOR})), Target::Orchestrate(_)));
    assert!(matches!(target(json!({"item_id": READ_ARTIFACT})), Target::ReadArtifact(_)));
    assert!(definitions.target(&call("rye_execute", json!({"item_id": DIRECTIVE_RETURN}))).is_err());
}

#[test]
fn directive_return_takes_the_declared_outputs_and_nothing_else() {
    let outputs = json!([
        {"name": "path", "type": "string", "required": true, "description": "the file"},
        {"name": "count", "type": "integer", "required": true},
        {"name": "note", "type": "text"},
    ]);
    let definitions = built(&["rye.execute.*"], &outputs, PLENTY);
    let returned = |input: Value| definitions.target(&call("directive_return", input));
    let fine = json!({"path": "", "count": 0});
    assert_eq!(
        returned(fine.clone()),
        Ok(Target::DirectiveReturn(fine.as_object().expect("a map").clone())),
        "falsy is there"
    );
    let through =
        definitions.target(&call("rye_execute", json!({"item_id": DIRECTIVE_RETURN, "parameters": fine})));
    assert!(matches!(through, Ok(Target::DirectiveReturn(_))));
    assert!(matches!(
        returned(json!({"status": "error", "error_detail": "blocked"})),
        Ok(Target::DirectiveReturn(_))
    ));
    for wrong in [
        json!({}),
        json!({"path": "x"}),
        json!({"path": "x", "count": "many"}),
        json!({"path": "x", "count": 1, "extra": 1}),
        json!({"path": null, "count": 1}),
        json!({"path": "x", "count": 1, "status": "wonderful"}),
    ] {
        let refusal = returned(wrong.clone()).expect_err("refused");
        assert!(refusal.message.contains("again"), "{wrong}: {refusal}");
    }
}

#[test]
fn definitions_are_the_same_after_they_were_written_down() {
    let definitions = built(&["rye.*"], &json!([{"name": "a", "required": true}]), PLENTY);
    let text = serde_json::to_string(&definitions).expect("text");
    assert_eq!(serde_json::from_str::<Definitions>(&text).expect("definitions"), definitions);
}

#[test]
fn schemas_are_read_whatever_the_tool_calls_them() {
    let world = world();
    let tool = |id: &str, schema: &str| {
        let text = format!(
            "version: \"1.0.0\"\ntool_type: native\nexecutor_id: rye/core/primitives/native\ncategory: team\n\
             name: {id}\ndescription: A tool\n{schema}\nconfig:\n  function: file_system.ls\n"
        );
        world.write(&format!("project/.ai/tools/team/{id}.yaml"), text);
        let item = crate::test_world::item(ItemType::Tool, &format!("team/{id}"));
        rye_engine::verbs::sign::sign_item(&engine(&world), &item, None).expect("signed");
    };
    tool("foreign", "input_schema:\n  type: object\n  properties:\n    a: {type: string}\n  required: [a]");
    tool("older", "parameters:\n  - name: a\n    type: string\n    required: true");
    tool("silent", "");
    let definitions = build(&engine(&world), &grants(&["rye.execute.tool.team.*"]), &[], PLENTY);
    let schema = |name: &str| definitions.definition(name).expect("offered").schema.clone();
    for name in ["team_foreign", "team_older"] {
        assert_eq!(
            schema(name),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
        );
    }
    assert_eq!(schema("team_silent"), json!({"type": "object", "properties": {}}));
}
