//! What an agent cannot take over MCP: other projects, secrets, looser limits.

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, text};
use crate::tool_support::write_function;

fn consent() -> Value {
    json!({"action": "accept", "content": {"agree": true}})
}

#[test]
fn only_approved_projects_are_served() {
    let user = User::initialized();
    let other = user.context.path().join("with space");
    std::fs::create_dir_all(other.join(".ai/tools")).expect("folders");
    let there = other.display().to_string();
    let mut client = Client::connect(&user);
    let calls = [
        ("rye_search", json!({"query": "*"})),
        ("rye_load", json!({"item_id": "tool:rye/bash"})),
        ("rye_fetch", json!({"item_id": "tool:rye/bash"})),
        ("rye_execute", json!({"item_id": "tool:rye/bash", "parameters": {"command": "true"}})),
        ("rye_execute", json!({"item_id": "directive:examples/greet", "thread": "fork"})),
        ("rye_sign", json!({"item_id": "tool:team/x"})),
    ];
    for (tool, mut arguments) in calls {
        arguments["project_path"] = json!(there);
        let refused = client.call_error(tool, arguments, "RYE0905");
        assert!(refused["hints"].to_string().contains(&format!("rye trust '{there}'")), "{refused}");
    }
    let search = json!({"query": "*", "project_path": there});
    user.ok(["trust", &there]);
    client.call("rye_search", search.clone());
    let inside = json!({"query": "*", "project_path": other.join(".ai").display().to_string()});
    client.call_error("rye_search", inside, "RYE0905");
    client.call("rye_search", json!({"query": "*", "project_path": user.project().display().to_string()}));
    user.ok(["trust", &there, "--revoke"]);
    client.call_error("rye_search", search, "RYE0905");
    let home = json!({"query": "*", "project_path": user.home().display().to_string()});
    client.call_error("rye_search", home, "RYE0905");
}

#[test]
fn responses_contain_no_secrets() {
    let user = User::initialized();
    let secret = "hunter2hunter2";
    std::fs::write(user.project().join(".env"), format!("DEPLOY_TOKEN={secret}\nCOLOUR=blue\n"))
        .expect("a file");
    write_function(&user, "leak", "return {'env': open('.env').read()}");
    write_function(&user, "fail", "raise ValueError(open('.env').read())");
    let mut client = Client::connect(&user);
    let read = json!({"item_id": "tool:rye/file-system/read", "parameters": {"path": ".env"}});
    for arguments in [json!({"item_id": "tool:team/leak"}), read] {
        let answer = client.call("rye_execute", arguments);
        assert!(!answer.to_string().contains(secret), "{answer}");
        assert!(answer.to_string().contains("[redacted:DEPLOY_TOKEN]"), "{answer}");
        assert!(answer["redacted"].as_u64().is_some_and(|count| count >= 1), "{answer}");
    }
    let (failed, is_error) = client.call_outcome("rye_execute", json!({"item_id": "tool:team/fail"}));
    assert!(is_error && !failed.to_string().contains(secret), "{failed}");
    let answer = client.call("rye_search", json!({"query": "leak"}));
    assert!(answer.get("redacted").is_none(), "{answer}");
    // What was taken out is not written back.
    let write = |content: &str| json!({"item_id": "tool:rye/file-system/write", "parameters": {"path": ".env.new", "content": content}});
    client.call_error("rye_execute", write("DEPLOY_TOKEN=[redacted:DEPLOY_TOKEN]\n"), "RYE0806");
    client.call("rye_execute", write("redacted: [redacted:]\n"));
    // An unapproved project's file is a secret too.
    user.ok(["trust", ".", "--revoke"]);
    let bash = json!({"item_id": "tool:rye/bash", "parameters": {"command": "cat .env"}});
    let answer = client.call("rye_execute", bash);
    assert!(!answer.to_string().contains(secret), "{answer}");
}

#[test]
fn secrets_stay_secret_after_their_file_changes() {
    let user = User::initialized();
    let (plain, lines) = ("hunter2hunter2", "first-line-of-it\nsecond-line-of-it");
    std::fs::write(user.project().join(".env"), format!("DEPLOY_TOKEN={plain}\nOTHER_TOKEN=\"{lines}\"\n"))
        .expect("a file");
    let mut client = Client::connect(&user);
    let call =
        |id: &str, parameters: Value| json!({"item_id": format!("tool:{id}"), "parameters": parameters});
    for content in ["X=1\n", ""] {
        let arguments = call("rye/bash", json!({"command": format!("printf '%s' '{plain} {lines}'")}));
        let answer = client.call("rye_execute", arguments).to_string();
        std::fs::write(user.project().join(".env"), content).expect("a file");
        assert!(!answer.contains(plain) && !answer.contains("second-line-of-it"), "{answer}");
    }
}

#[test]
fn limits_are_only_lowered() {
    let user = User::initialized();
    let plain = rye_test::directive("team", "small", "Spends little");
    let limits = "<limits turns=\"3\" spend=\"0.05\"/>\n  </metadata>";
    user.write("directives/team/small.md", plain.replace("</metadata>", limits));
    user.ok(["sign", "directive", "team/small"]);
    let run = |limits: Value| {
        json!({"item_id": "directive:team/small", "thread": "fork", "dry_run": true,
               "limit_overrides": limits})
    };
    let mut client = Client::connect(&user);
    let lowered = client.call("rye_execute", run(json!({"spend": 0.01, "turns": 3})));
    assert_eq!(lowered["data"]["limits"]["spend"], 0.01, "{lowered}");
    for raised in [
        json!({"spend": 1000}),
        json!({"spend": "0.06"}),
        json!({"spend": null}),
        json!({"max_turns": 4}),
        json!({"turns": 1, "tokens": null}),
        json!({"duration_seconds": 100_000}),
    ] {
        let refused = client.call_error("rye_execute", run(raised.clone()), "RYE0105");
        assert!(text(&refused["error"]).contains("raising limits"), "{raised}: {refused}");
    }
    let mut asking_client = Client::connect_with_consent(&user, json!({"action": "decline"}));
    asking_client.call_error("rye_execute", run(json!({"spend": 1000})), "RYE1002");
    assert!(
        text(&asking_client.questions[0]["message"]).contains("spend from 0.05 to 1000"),
        "{:?}",
        asking_client.questions
    );
    let mut asking_client = Client::connect_with_consent(&user, consent());
    let raised = asking_client.call("rye_execute", run(json!({"spend": 1})));
    assert_eq!(raised["data"]["limits"]["spend"], 1.0, "{raised}");
}
