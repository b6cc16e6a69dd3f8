//! The user's tools as MCP tools of their own.

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::mcp_consent::write_policy;
use crate::support::User;

const ECHO: &str = r#""""Echoes."""
__version__ = "1.0.0"
__tool_type__ = "python"
__executor_id__ = "rye/core/runtimes/python/function"
__category__ = "team"
__tool_description__ = "Echo a text"

CONFIG_SCHEMA = {
    "type": "object",
    "properties": {"detail": {"type": "string", "description": "What to echo"}},
    "required": ["detail"],
}


def execute(params, project_path):
    return {"echo": params["detail"]}
"#;

fn names(client: &mut Client) -> Vec<String> {
    let listed = client.request("tools/list", json!({}));
    let tools = listed["tools"].as_array().expect("tools");
    tools.iter().map(|tool| tool["name"].as_str().expect("a name").to_owned()).collect()
}

fn has_tool(client: &mut Client, name: &str) -> bool {
    names(client).iter().any(|known| known == name)
}

#[test]
fn exposed_tool_has_its_own_schema() {
    let user = User::initialized();
    user.write("tools/team/echo.py", ECHO);
    user.ok(["sign", "tool", "team/echo"]);
    user.write("tools/team/unsigned.py", rye_test::tool("team", "Unsigned"));
    write_policy(&user, "expose: [\"team/*\"]");
    let mut client = Client::connect(&user);
    let listed = client.request("tools/list", json!({}));
    let tools = listed["tools"].as_array().expect("tools");
    let echo = tools.iter().find(|tool| tool["name"] == "team_echo").expect("the tool");
    assert_eq!(echo["description"], "Echo a text");
    assert_eq!(echo["inputSchema"]["properties"]["detail"]["description"], "What to echo");
    assert_eq!(echo["annotations"]["destructiveHint"], true);
    assert!(!tools.iter().any(|tool| tool["name"] == "team_unsigned"), "{listed}");
    assert!(!tools.iter().any(|tool| tool["name"] == "examples_hello"), "{listed}");
    // All arguments are the tool's own.
    let answer = client.request("tools/call", json!({"name": "team_echo", "arguments": {"detail": "full"}}));
    assert_eq!(answer["structuredContent"], json!({"status": "success", "data": {"echo": "full"}}));
    let refused = client.request("tools/call", json!({"name": "team_echo", "arguments": {}}));
    assert_eq!(refused["isError"], true, "{refused}");
    client.request_error("tools/call", json!({"name": "team_unsigned", "arguments": {}}));
}

#[test]
fn changed_exposed_tool_does_not_run() {
    let user = User::initialized();
    user.write("tools/team/echo.py", ECHO);
    user.ok(["sign", "tool", "team/echo"]);
    write_policy(&user, "expose: [team/echo]");
    let mut client = Client::connect(&user);
    assert!(has_tool(&mut client, "team_echo"));
    let path = user.project().join(".ai/tools/team/echo.py");
    let text = std::fs::read_to_string(&path).expect("the tool").replace("Echo a text", "Echo any text");
    std::fs::write(&path, text).expect("written");
    let refused = client.request("tools/call", json!({"name": "team_echo", "arguments": {"detail": "x"}}));
    assert_eq!(refused["isError"], true, "{refused}");
    assert!(!has_tool(&mut client, "team_echo"));
}

#[test]
fn project_config_exposes_nothing() {
    let user = User::initialized();
    let config = "version: \"1.0.0\"\ncategory: \"\"\nmcp:\n  expose: [\"examples/*\"]\n";
    user.write("config/config.yaml", config);
    user.run(["sign", "config", "config"]);
    assert!(!has_tool(&mut Client::connect(&user), "examples_hello"));
}

#[test]
fn clients_hear_of_changed_exposed_tools() {
    let user = User::initialized();
    write_policy(&user, "expose: [\"team/*\", examples/hello]");
    let mut client = Client::connect(&user);
    assert!(has_tool(&mut client, "examples_hello"));
    // The first look of the watcher is over once it has told of something: write until it does.
    let is_changed = |message: &Value| message["method"] == "notifications/tools/list_changed";
    let mut written = 0;
    while !client.notifications.iter().any(is_changed) {
        written += 1;
        user.write(&format!("tools/team/warm_{written}.py"), rye_test::tool("team", "Warms up"));
        client.request("ping", json!({}));
        assert!(written < 2000);
    }
    user.write("tools/team/echo.py", ECHO);
    user.ok(["sign", "tool", "team/echo"]);
    client.notifications.clear();
    client.wait_for_notification("notifications/tools/list_changed");
    assert!(has_tool(&mut client, "team_echo"));
}

/// The placeholders that a confined run needs in `.ai` are no change of the items there.
#[test]
fn runs_change_no_list() {
    let user = User::initialized();
    write_policy(&user, "expose: [rye/bash]");
    let mut client = Client::connect(&user);
    assert!(has_tool(&mut client, "rye_bash"));
    for _ in 0..3 {
        let arguments =
            json!({"item_type": "tool", "item_id": "rye/bash", "parameters": {"command": "true"}});
        let answer = client.request("tools/call", json!({"name": "rye_execute", "arguments": arguments}));
        assert_eq!(answer["structuredContent"]["status"], "success", "{answer}");
    }
    client.request("ping", json!({}));
    let is_news = |message: &&Value| message["method"].as_str().is_some_and(|name| name.contains("changed"));
    let news: Vec<&Value> = client.notifications.iter().filter(is_news).collect();
    assert_eq!(news, Vec::<&Value>::new());
}

#[test]
fn prompts_are_the_users_own() {
    let user = User::initialized();
    let mut client = Client::connect(&user);
    let prompts = client.request("prompts/list", json!({}));
    let prompts = prompts["prompts"].as_array().expect("prompts");
    assert_eq!(prompts.iter().map(|prompt| &prompt["name"]).collect::<Vec<_>>(), ["examples/greet"]);
    assert_eq!(prompts[0]["arguments"][0]["description"], "Whom to greet");
    let resources = client.request("resources/list", json!({}));
    let style = &resources["resources"].as_array().expect("resources").iter();
    let style = style.clone().find(|resource| resource["name"] == "examples/style").expect("the style");
    assert_eq!(style["description"], "The tone of everything this project says to people");
}
