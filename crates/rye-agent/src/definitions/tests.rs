use rye_item::ItemType;
use rye_model::{ToolCall, ToolDefinition};
use serde_json::{Value, json};

use super::*;
use crate::action::{Action, PrimaryAction};
use crate::capability::{Capabilities, HOOK_TOOLS_PREFIX, Principal, permit};
use crate::definitions;
use crate::test_support::{engine, init_world, signed_native, write_native};

const UNLIMITED: PreloadOptions = PreloadOptions { enabled: true, max_tokens: 100_000 };

fn grants(list: &[&str]) -> Capabilities {
    Capabilities::parse(list).expect("grants")
}

fn build(list: &[&str], outputs: &Value, preload: PreloadOptions) -> ToolDefinitions {
    let world = init_world();
    definitions::build(&engine(&world), &grants(list), &OutputField::from_directive(Some(outputs)), preload)
}

fn call(name: &str, input: Value) -> ToolCall {
    let Value::Object(input) = input else { panic!("arguments are a map") };
    ToolCall { id: "c1".to_owned(), name: name.to_owned(), input, malformed: None }
}

fn names(definitions: &ToolDefinitions) -> Vec<&str> {
    definitions.tools.iter().map(|tool| tool.name.as_str()).collect()
}

fn action(target: Result<CallTarget, InvalidCall>) -> Action {
    match target {
        Ok(CallTarget::Action(action)) => action,
        other => panic!("{other:?}"),
    }
}

#[test]
fn preload_offers_granted_tools() {
    let definitions =
        build(&["rye.execute.tool.rye.file-system.*", "rye.search.knowledge.*"], &json!([]), UNLIMITED);
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
fn wildcard_grant_excludes_infrastructure_tools() {
    for grant in ["rye.*", "rye.execute.*", "rye.execute.tool.*"] {
        let definitions = build(&[grant], &json!([]), UNLIMITED);
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
fn no_grants_offer_only_directive_return() {
    assert_eq!(names(&build(&[], &json!([]), UNLIMITED)), Vec::<&str>::new());
    assert_eq!(names(&build(&[], &json!([{"name": "a"}]), UNLIMITED)), ["directive_return"]);
}

#[test]
fn preload_skips_tools_beyond_budget() {
    let preload = PreloadOptions { enabled: true, max_tokens: 1500 };
    let definitions =
        build(&["rye.execute.tool.rye.*", "rye.execute.tool.rye.file-system.grep"], &json!([]), preload);
    assert!(names(&definitions).contains(&"rye_file_system_grep"), "named tools come first");
    assert!(!definitions.skipped.is_empty());
    assert!(definitions.skipped.iter().all(|skipped| skipped.reason.contains("no room")));
    let none = build(
        &["rye.execute.tool.rye.file-system.read"],
        &json!([]),
        PreloadOptions { enabled: false, max_tokens: 9 },
    );
    assert_eq!(names(&none), ["rye_execute", "read_artifact"]);
}

#[test]
fn untrusted_tools_are_skipped_with_reason() {
    let world = init_world();
    write_native(&world, "team/stranger", "file_system.ls", "{type: object}");
    let definitions =
        definitions::build(&engine(&world), &grants(&["rye.execute.tool.team.*"]), &[], UNLIMITED);
    assert!(!names(&definitions).contains(&"team_stranger"));
    assert_eq!(definitions.skipped[0].item_id, "team/stranger");
}

#[test]
fn internal_tools_are_never_offered_nor_reached() {
    let world = init_world();
    signed_native(&world, &format!("{HOOK_TOOLS_PREFIX}/control"), "threads.control", "{type: object}");
    let definitions = definitions::build(
        &engine(&world),
        &grants(&["rye.*", "rye.execute.tool.rye.agent.threads.internal.control"]),
        &[],
        UNLIMITED,
    );
    assert!(!definitions.tools.iter().any(|tool| tool.target["item_id"].to_string().contains("internal")));
    for id in [
        format!("{HOOK_TOOLS_PREFIX}/control"),
        format!("tool:{HOOK_TOOLS_PREFIX}/control"),
        "RYE/agent/threads/internal/control".to_owned(),
    ] {
        let target = definitions
            .target(&call("rye_execute", json!({"item_id": id, "parameters": {"action": "abort"}})));
        let denied = permit(&grants(&["rye.*"]), &action(target), Principal::Model);
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
fn unknown_tool_error_lists_offered_tools() {
    let definitions = build(&["rye.execute.tool.rye.file-system.read"], &json!([]), UNLIMITED);
    for name in ["rye_bash", "rye/file-system/read", "RYE_EXECUTE", "rye_sign", "", "x\u{1b}[31m"] {
        let refusal = definitions
            .target(&call(name, json!({"item_id": format!("{HOOK_TOOLS_PREFIX}/emitter")})))
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
fn item_id_in_direct_call_is_a_parameter() {
    let definitions = build(&["rye.execute.tool.rye.file-system.read"], &json!([]), UNLIMITED);
    let input = json!({"path": "a", "item_id": "rye/bash", "item_type": "tool", "primary": "sign"});
    let action = action(definitions.target(&call("rye_file_system_read", input.clone())));
    assert_eq!(
        (action.primary, action.item_id.as_deref()),
        (PrimaryAction::Execute, Some("rye/file-system/read"))
    );
    assert_eq!(Value::Object(action.params.clone()), input);
    assert!(action.options.is_empty());
}

#[test]
fn primary_call_checks_the_executed_item() {
    let capabilities = ["rye.execute.tool.rye.file-system.read"];
    let definitions = build(&capabilities, &json!([]), UNLIMITED);
    let check = |input: Value| {
        permit(
            &grants(&capabilities),
            &action(definitions.target(&call("rye_execute", input))),
            Principal::Model,
        )
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
fn unknown_primary_arguments_are_rejected() {
    let definitions = build(&["rye.*"], &json!([]), UNLIMITED);
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
fn thread_tools_map_to_thread_targets() {
    let definitions = build(&["rye.*"], &json!([]), UNLIMITED);
    let target = |input: Value| definitions.target(&call("rye_execute", input)).expect("a target");
    assert!(matches!(target(json!({"item_id": THREAD_DIRECTIVE, "parameters": {}})), CallTarget::Spawn(_)));
    assert!(matches!(target(json!({"item_id": "directive:a/b", "thread": "fork"})), CallTarget::Spawn(_)));
    assert!(matches!(target(json!({"item_id": "directive:a/b"})), CallTarget::Action(_)));
    assert!(matches!(target(json!({"item_id": ORCHESTRATOR})), CallTarget::Orchestrate(_)));
    assert!(matches!(target(json!({"item_id": READ_ARTIFACT})), CallTarget::ReadArtifact(_)));
    assert!(definitions.target(&call("rye_execute", json!({"item_id": DIRECTIVE_RETURN}))).is_err());
}

#[test]
fn directive_return_accepts_declared_outputs_only() {
    let outputs = json!([
        {"name": "path", "type": "string", "required": true, "description": "the file"},
        {"name": "count", "type": "integer", "required": true},
        {"name": "note", "type": "text"},
    ]);
    let definitions = build(&["rye.execute.*"], &outputs, UNLIMITED);
    let returned = |input: Value| definitions.target(&call("directive_return", input));
    let fine = json!({"path": "", "count": 0});
    assert_eq!(
        returned(fine.clone()),
        Ok(CallTarget::DirectiveReturn(fine.as_object().expect("a map").clone())),
        "falsy is there"
    );
    let through =
        definitions.target(&call("rye_execute", json!({"item_id": DIRECTIVE_RETURN, "parameters": fine})));
    assert!(matches!(through, Ok(CallTarget::DirectiveReturn(_))));
    assert!(matches!(
        returned(json!({"status": "error", "error_detail": "blocked"})),
        Ok(CallTarget::DirectiveReturn(_))
    ));
    for invalid in [
        json!({}),
        json!({"path": "x"}),
        json!({"path": "x", "count": "many"}),
        json!({"path": "x", "count": 1, "extra": 1}),
        json!({"path": null, "count": 1}),
        json!({"path": "x", "count": 1, "status": "wonderful"}),
    ] {
        let refusal = returned(invalid.clone()).expect_err("refused");
        assert!(refusal.message.contains("again"), "{invalid}: {refusal}");
    }
}

#[test]
fn definitions_round_trip_through_json() {
    let definitions = build(&["rye.*"], &json!([{"name": "a", "required": true}]), UNLIMITED);
    let text = serde_json::to_string(&definitions).expect("text");
    assert_eq!(serde_json::from_str::<ToolDefinitions>(&text).expect("definitions"), definitions);
}

#[test]
fn schemas_are_found_under_all_keys() {
    let world = init_world();
    let tool = |id: &str, schema: &str| {
        let text = format!(
            "version: \"1.0.0\"\ntool_type: native\nexecutor_id: rye/core/primitives/native\ncategory: team\n\
             name: {id}\ndescription: A tool\n{schema}\nconfig:\n  function: file_system.ls\n"
        );
        world.write(&format!("project/.ai/tools/team/{id}.yaml"), text);
        let item = crate::test_support::item(ItemType::Tool, &format!("team/{id}"));
        rye_engine::verbs::sign::sign_item(&engine(&world), &item, None).expect("signed");
    };
    tool("foreign", "input_schema:\n  type: object\n  properties:\n    a: {type: string}\n  required: [a]");
    tool("older", "parameters:\n  - name: a\n    type: string\n    required: true");
    tool("silent", "");
    let definitions =
        definitions::build(&engine(&world), &grants(&["rye.execute.tool.team.*"]), &[], UNLIMITED);
    let schema = |name: &str| definitions.definition(name).expect("offered").schema.clone();
    for name in ["team_foreign", "team_older"] {
        assert_eq!(
            schema(name),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
        );
    }
    assert_eq!(schema("team_silent"), json!({"type": "object", "properties": {}}));
}
