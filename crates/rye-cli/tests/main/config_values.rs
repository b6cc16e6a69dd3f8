//! `rye config get` and `rye config set`: checked values, kept comments, and whose signature a file gets.

use serde_json::json;

use crate::support::{User, text};

const HEAD: &str = "version: \"1.0.0\"\ncategory: \"\"\n";

#[test]
fn set_value_is_used_and_signed() {
    let user = User::initialized();
    assert_eq!(user.ok(["config", "get", "search.limit"]).stdout.trim(), "10");
    user.ok(["config", "set", "search.limit", "3"]);
    assert_eq!(user.ok(["config", "get", "search.limit"]).stdout.trim(), "3");
    assert_eq!(user.data(["config", "get", "search.limit"])["settings"][0]["origin"], "user");
    user.ok(["config", "set", "mcp.accepting_clients", "one, two"]);
    assert_eq!(
        user.data(["config", "get", "mcp.accepting_clients"])["settings"][0]["value"],
        json!(["one", "two"])
    );
    user.ok(["config", "set", "integrity.partial_coverage", "allow"]);
    user.ok(["config", "set", "display.color", "never", "--space", "project"]);
    assert_eq!(user.data(["config", "get", "display"])["settings"][0]["origin"], "project");
    assert_eq!(user.data(["config", "set", "search.limit", "3"])["changed"], false);
    assert_eq!(user.data(["verify"])["full"], user.data(["verify"])["checked"]);
}

#[test]
fn other_configs_are_found_by_key() {
    let user = User::initialized();
    user.ok(["config", "set", "limits.defaults.turns", "7"]);
    let setting = &user.data(["config", "get", "agent/resilience:limits.defaults.turns"])["settings"][0];
    assert_eq!((&setting["value"], &setting["config"]), (&json!(7), &json!("agent/resilience")));
}

#[test]
fn comments_stay_when_a_value_is_set() {
    let user = User::initialized();
    user.write_user("config/config.yaml", format!("{HEAD}# mine\nsearch:\n  limit: 5 # few\n"));
    user.ok(["sign", "config", "config", "--space", "user"]);
    user.ok(["config", "set", "search.limit", "6"]);
    let after = user.context.text("home/.ai/config/config.yaml");
    assert!(after.contains("# mine\nsearch:\n  limit: 6 # few\n"), "{after}");
}

#[test]
fn files_of_others_need_consent() {
    let user = User::initialized();
    user.write_user("config/config.yaml", format!("{HEAD}search:\n  limit: 5\n"));
    let error = user.assert_refused(["config", "set", "search.limit", "6"], 2, "RYE0105");
    assert!(text(&error["error"]).contains("unsigned"), "{error}");
    user.ok(["config", "set", "search.limit", "6", "--yes"]);
    assert_eq!(user.ok(["config", "get", "search.limit"]).stdout.trim(), "6");
    let mut edited = user.context.text("home/.ai/config/config.yaml");
    edited.push_str("display:\n  color: never\n");
    user.write_user("config/config.yaml", edited);
    let error = user.assert_refused(["config", "set", "search.limit", "7"], 2, "RYE0105");
    assert!(text(&error["error"]).contains("tampered"), "{error}");
}

#[test]
fn wrong_settings_are_refused_with_hints() {
    let user = User::initialized();
    for (words, exit, code, hint) in [
        (&["config", "set", "serch.limit", "3"][..], 3, "RYE0201", "search.limit"),
        (&["config", "get", "search.limits"], 3, "RYE0201", "search.limit"),
        (&["config", "set", "search.limit", "many"], 2, "RYE0104", "search.limit"),
        (&["config", "set", "search.limit", "0"], 2, "RYE0104", "search.limit"),
        (&["config", "set", "display.color", "sometimes"], 2, "RYE0104", "display.color"),
        (&["config", "set", "search", "3"], 2, "RYE0104", "search.limit"),
        (&["config", "set", "mcp.sign", "deny", "--space", "project"], 2, "RYE0104", "--space user"),
        (&["config", "get", "."], 2, "RYE0104", "search.limit"),
    ] {
        let error = user.assert_refused(words, exit, code);
        assert!(error["hints"].to_string().contains(hint), "{words:?}: {error}");
    }
    user.write_user("config/config.yaml", format!("{HEAD}search: {{limit: 5}}\n"));
    user.ok(["sign", "config", "config", "--space", "user"]);
    let error = user.assert_refused(["config", "set", "search.limit", "6"], 2, "RYE0104");
    assert!(error["hints"].to_string().contains("rye sign config config"), "{error}");
}
