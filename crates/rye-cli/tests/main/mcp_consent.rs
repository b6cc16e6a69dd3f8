//! What agents may do only with a user's consent: signing, and trusting a key.

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, differences, text};
use crate::tool_support::{execute, write_function};

pub fn write_policy(user: &User, settings: &str) {
    user.write_user(
        "config/config.yaml",
        format!("version: \"1.0.0\"\ncategory: \"\"\nmcp:\n  {settings}\n"),
    );
    user.ok(["sign", "config", "config", "--space", "user"]);
}

fn consent() -> Value {
    json!({"action": "accept"})
}

fn write_unsigned_tool(user: &User) -> Value {
    user.write("tools/team/new.py", rye_test::tool("team", "A new one"));
    json!({"item_id": "tool:team/new"})
}

#[test]
fn policy_can_allow_signing() {
    let user = User::initialized();
    write_policy(&user, "sign: allow");
    let named = write_unsigned_tool(&user);
    let mut client = Client::connect(&user);
    client.call("rye_sign", named.clone());
    client.call("rye_load", named);
}

#[test]
fn signing_needs_approval_by_default() {
    let user = User::initialized();
    let named = write_unsigned_tool(&user);
    let before = user.snapshot();
    let refused = Client::connect(&user).call_error("rye_sign", named.clone(), "RYE0105");
    assert!(refused["hints"].to_string().contains("rye sign tool team/new"), "{refused}");
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
    let mut client = Client::connect_with_consent(&user, consent());
    client.call("rye_sign", named.clone());
    assert_eq!(client.questions.len(), 1);
    client.call("rye_load", named.clone());
    // Nothing would change: nothing is asked.
    client.call("rye_sign", named);
    assert_eq!(client.questions.len(), 1);
    client.call_error("rye_sign", json!({"item_type": "tool", "item_id": "team/*"}), "RYE0105");
}

#[test]
fn auto_accepting_client_is_refused() {
    let user = User::initialized();
    let named = write_unsigned_tool(&user);
    for name in ["codex-mcp-client", "Codex-MCP-Client", "codex-mcp-client ", "codex_mcp client\u{a0}"] {
        let mut client = Client::connect_as(&user, name, json!({"elicitation": {}}));
        client.consent = Some(consent());
        client.call_error("rye_sign", named.clone(), "RYE0105");
        assert!(client.questions.is_empty());
    }
    write_policy(&user, "accepting_clients: [other]");
    let mut client = Client::connect_as(&user, "other", json!({"elicitation": {}}));
    client.consent = Some(consent());
    client.call_error("rye_sign", named, "RYE0105");
}

#[test]
fn approval_prompt_shows_the_content() {
    let user = User::initialized();
    let metadata = "SANDBOX = {\"write\": [\"~/reports\"], \"network\": True}\nENV_CONFIG = {\"pass\": [\"DEPLOY_TOKEN\"]}\n";
    user.write("tools/team/new.py", format!("{metadata}{}", rye_test::tool("team", "First words")));
    user.ok(["sign", "tool", "team/new"]);
    let signed = String::from_utf8(user.read("tools/team/new.py")).expect("text");
    user.write("tools/team/new.py", signed.replace("return {}", "return {'evil': 1}"));
    let mut client = Client::connect_with_consent(&user, consent());
    client.call("rye_sign", json!({"item_id": "tool:team/new"}));
    let message = text(&client.questions[0]["message"]);
    for output in [
        "tool `team/new`",
        "+    return {'evil': 1}",
        "-    return {}",
        "write: ~/reports",
        "network: true",
        "DEPLOY_TOKEN",
    ] {
        assert!(message.contains(output), "{output}: {message}");
    }
    assert!(!message.contains("First words"), "only the change: {message}");
}

#[test]
fn the_question_shows_what_a_directive_may_spend() {
    let user = User::initialized();
    let metadata = "<metadata>\n    <model tier=\"high\"/>\n    <limits spend=\"1000\"/>\n    <context><system>team/lore</system></context>";
    let directive = rye_test::directive("team", "spend", "Spends").replace("<metadata>", metadata);
    user.write("directives/team/spend.md", &directive);
    let mut client = Client::connect_with_consent(&user, consent());
    client.call("rye_sign", json!({"item_id": "directive:team/spend"}));
    client.call("rye_sign", json!({"item_id": "directive:team/spend", "destination": "user"}));
    for question in &client.questions {
        let message = text(&question["message"]);
        for shown in
            ["field: limits.spend: 1000", "field: model.tier: high", "field: context.system: team/lore"]
        {
            assert!(message.contains(shown), "{shown}: {message}");
        }
    }
    assert_eq!(client.questions.len(), 2);
}

#[test]
fn a_copy_is_signed_only_with_consent() {
    let user = User::initialized();
    let copy = json!({"item_id": "tool:examples/hello", "destination": "user"});
    let before = user.snapshot();
    let mut client = Client::connect_with_consent(&user, consent());
    for reader in ["rye_load", "rye_fetch"] {
        client.call_error(reader, copy.clone(), "RYE0104");
    }
    Client::connect(&user).call_error("rye_sign", copy.clone(), "RYE0105");
    let config = json!({"item_id": "config:config", "source": "system", "destination": "user"});
    client.call_error("rye_sign", config, "RYE1001");
    assert!(client.questions.is_empty());
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
    client.call("rye_sign", copy);
    assert!(text(&client.questions[0]["message"]).contains("copy tool `examples/hello` into user space"));
    assert!(user.home().join(".ai/tools/examples/hello.py").is_file());
}

#[test]
fn refused_item_stays_refused() {
    let user = User::initialized();
    let named = write_unsigned_tool(&user);
    let mut client = Client::connect(&user);
    for tool in ["rye_load", "rye_execute"] {
        let refused = client.call_error(tool, named.clone(), "RYE0401");
        let hints = refused["hints"].to_string();
        assert!(hints.contains("tell the user") && !hints.contains("rye sign"), "{hints}");
        // Its author may ask; what others changed stays refused.
        assert!(hints.contains(r#"rye_sign {\"item_id\":\"team/new\"}"#), "{hints}");
    }
    user.ok(["sign", "tool", "team/new"]);
    let mut bytes = user.read("tools/team/new.py");
    bytes.extend_from_slice(b"\n# changed\n");
    user.write("tools/team/new.py", bytes);
    let hints = client.call_error("rye_execute", named, "RYE0402")["hints"].to_string();
    assert!(hints.contains("tell the user") && !hints.contains("rye_sign"), "{hints}");
}

#[test]
fn declined_signature_is_not_asked_again() {
    let user = User::initialized();
    let named = write_unsigned_tool(&user);
    let mut client = Client::connect_with_consent(&user, json!({"action": "decline"}));
    let refused = client.call_error("rye_sign", named, "RYE1002");
    assert_eq!(text(&refused["error"]), "the user was asked and declined");
    let hints = refused["hints"].to_string();
    assert!(hints.contains("leave it unsigned") && !hints.contains("rye sign"), "{hints}");
}

#[test]
fn deny_policy_stops_signing_and_copies() {
    let user = User::initialized();
    write_policy(&user, "sign: deny");
    let named = write_unsigned_tool(&user);
    let mut client = Client::connect_with_consent(&user, consent());
    let before = user.snapshot();
    client.call_error("rye_sign", named, "RYE1001");
    client.call_error("rye_sign", json!({"item_type": "tool", "item_id": "**"}), "RYE1001");
    client.call_error(
        "rye_sign",
        json!({"item_id": "tool:examples/hello", "destination": "user"}),
        "RYE1001",
    );
    assert!(client.questions.is_empty());
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn ask_policy_needs_explicit_consent() {
    let user = User::initialized();
    write_policy(&user, "sign: ask");
    let named = write_unsigned_tool(&user);
    let before = user.snapshot();
    Client::connect(&user).call_error("rye_sign", named.clone(), "RYE0105");
    for no in [
        json!({"action": "decline"}),
        json!({"action": "cancel"}),
        json!({"action": "accept", "content": {"agree": false}}),
    ] {
        let mut client = Client::connect_with_consent(&user, no);
        client.call_error("rye_sign", named.clone(), "RYE1002");
        assert_eq!(client.questions.len(), 1);
    }
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
    let mut client = Client::connect_with_consent(&user, consent());
    client.call("rye_sign", named.clone());
    assert!(text(&client.questions[0]["message"]).contains("team/new"), "{:?}", client.questions);
    client.call("rye_load", named);
}

#[test]
fn a_project_cannot_change_the_policy() {
    let user = User::initialized();
    write_policy(&user, "sign: deny");
    user.write("config/config.yaml", "version: \"1.0.0\"\ncategory: \"\"\nmcp:\n  sign: allow\n");
    user.ok(["sign", "config", "config", "--space", "project"]);
    let named = write_unsigned_tool(&user);
    let mut client = Client::connect(&user);
    client.call_error("rye_sign", named, "RYE1001");
    client.wait_for_notification("notifications/message");
}

#[test]
fn config_and_identities_are_never_signed() {
    let user = User::initialized();
    user.write("config/config.yaml", "search:\n  limit: 3\n");
    let other_user = User::initialized();
    let document = std::fs::read_to_string(other_user.identity_document()).expect("a document");
    let unsigned: String = document.lines().skip(1).map(|line| format!("{line}\n")).collect();
    let path = format!("config/keys/trusted/{}.toml", other_user.fingerprint());
    user.write(&path, unsigned);
    let mut client = Client::connect_with_consent(&user, consent());
    let before = user.snapshot();
    let identity = format!("keys/trusted/{}", other_user.fingerprint());
    for id in ["config", "*", "**", identity.as_str()] {
        client.call_error("rye_sign", json!({"item_type": "config", "item_id": id}), "RYE1001");
        client.call_error("rye_sign", json!({"item_id": format!("config:{id}")}), "RYE1001");
    }
    for (kind, id) in [("tool", "../config/config"), ("knowledge", "../config/keys/trusted/x")] {
        client.call_error("rye_sign", json!({"item_type": kind, "item_id": id}), "RYE0101");
    }
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn signing_over_mcp_refreshes_no_lockfile() {
    let user = User::initialized();
    write_function(&user, "pinned", "return 1");
    execute(&user, "pinned", &[]);
    let text = crate::tool_support::function_text("", "return 2");
    user.write("tools/team/pinned.py", text);
    let mut client = Client::connect_with_consent(&user, consent());
    client.call("rye_sign", json!({"item_id": "tool:team/pinned"}));
    client.call_error("rye_execute", json!({"item_id": "tool:team/pinned"}), "RYE0501");
}

/// A project with a tool signed by a stranger, whose document lies in the project.
fn user_with_foreign_tool() -> (User, String) {
    let other_user = User::initialized();
    write_function(&other_user, "foreign", "return 7");
    let user = User::initialized();
    user.write("tools/team/foreign.py", other_user.read("tools/team/foreign.py"));
    let fingerprint = other_user.fingerprint();
    let document = std::fs::read(other_user.identity_document()).expect("a document");
    user.write(&format!("config/keys/trusted/{fingerprint}.toml"), document);
    (user, fingerprint)
}

#[test]
fn trusting_a_project_key_needs_approval() {
    let (user, fingerprint) = user_with_foreign_tool();
    let named = json!({"item_id": "tool:team/foreign"});
    let before = user.snapshot();
    Client::connect(&user).call_error("rye_execute", named.clone(), "RYE0404");
    Client::connect_with_consent(&user, json!({"action": "decline"})).call_error(
        "rye_execute",
        named.clone(),
        "RYE1002",
    );
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());

    let mut client = Client::connect_with_consent(&user, consent());
    assert_eq!(client.call("rye_execute", named.clone())["data"], 7);
    assert_eq!(client.questions.len(), 1);
    assert!(text(&client.questions[0]["message"]).contains(&fingerprint));
    client.call("rye_load", named);
    assert_eq!(client.questions.len(), 1, "asked once");
    // For this project alone.
    let output = user.data(["keys", "show", &fingerprint]);
    assert_eq!(output["projects"], json!([user.project().display().to_string()]), "{output}");
}

#[test]
fn denied_or_unnamed_key_is_not_prompted() {
    let (user, fingerprint) = user_with_foreign_tool();
    let named = json!({"item_id": "tool:team/foreign"});
    write_policy(&user, "trust: deny");
    let mut client = Client::connect_with_consent(&user, consent());
    client.call_error("rye_execute", named.clone(), "RYE0404");
    write_policy(&user, "trust: ask");
    std::fs::remove_file(user.project().join(format!(".ai/config/keys/trusted/{fingerprint}.toml")))
        .expect("gone");
    client.call_error("rye_execute", named, "RYE0404");
    assert!(client.questions.is_empty());
}

#[test]
fn newer_protocol_elicits_by_retry() {
    let user = User::initialized();
    write_policy(&user, "sign: ask");
    let named = write_unsigned_tool(&user);
    let mut client = Client::spawn(&user, &[]);
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
    });
    let call = |more: Value| {
        let mut params = json!({"name": "rye_sign", "arguments": named, "_meta": meta});
        params.as_object_mut().expect("params").extend(more.as_object().expect("more").clone());
        params
    };
    let response = client.request("tools/call", call(json!({})));
    assert_eq!(response["resultType"], "input_required", "{response}");
    let state = text(&response["requestState"]);
    let no = json!({"inputResponses": {"consent": {"action": "decline"}}, "requestState": state});
    let refused = client.request("tools/call", call(no));
    assert_eq!(
        (refused["isError"].as_bool(), &refused["structuredContent"]["code"]),
        (Some(true), &json!("RYE1002"))
    );
    // A yes to something else is not a yes.
    let other = json!({"inputResponses": {"consent": consent()}, "requestState": "0".repeat(64)});
    assert_eq!(client.request("tools/call", call(other))["resultType"], "input_required");
    let agreed = json!({"inputResponses": {"consent": consent()}, "requestState": state});
    let signed = client.request("tools/call", call(agreed));
    assert_eq!(signed["structuredContent"]["status"], "success", "{signed}");
}
