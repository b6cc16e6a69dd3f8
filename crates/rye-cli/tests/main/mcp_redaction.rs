//! Every way from the server to a client: none carries a secret, and a question shows all that a yes would mean.

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, differences, text};

const SECRET: &str = "correct-horse-battery-staple";

fn yes() -> Value {
    json!({"action": "accept", "content": {"agree": true}})
}

/// A project whose items say a secret of its `.env` wherever they can.
fn leaky() -> User {
    let user = User::initialized();
    std::fs::write(user.project().join(".env"), format!("DEPLOY_TOKEN={SECRET}\n")).expect("written");
    user.write(
        "knowledge/team/note.md",
        format!(
            "---\nname: note\ntitle: Uses {SECRET}\ncategory: team\nentry_type: note\nversion: \"1.0.0\"\n---\nSay {SECRET}.\n"
        ),
    );
    user.ok(["sign", "knowledge", "team/note"]);
    user.write(
        "directives/team/ask.md",
        format!(
            "# ask\n\n```xml\n<directive name=\"ask\" version=\"1.0.0\">\n<metadata>\n<description>Uses {SECRET}</description>\n\
             <category>team</category>\n<author>test</author>\n</metadata>\n<inputs>\n\
             <input name=\"token\" type=\"string\" required=\"false\" default=\"{SECRET}\">Such as {SECRET}</input>\n\
             </inputs>\n</directive>\n```\n\nSay {SECRET}.\n"
        ),
    );
    user.ok(["sign", "directive", "team/ask"]);
    user
}

#[test]
fn lists_prompts_and_completions_are_redacted() {
    let user = leaky();
    let mut client = Client::connect(&user);
    let reference = json!({"type": "ref/prompt", "name": "team/ask"});
    let asked = [
        ("resources/list", json!({})),
        ("resources/read", json!({"uri": "rye://knowledge/team/note"})),
        ("prompts/list", json!({})),
        ("prompts/get", json!({"name": "team/ask"})),
        ("completion/complete", json!({"ref": reference, "argument": {"name": "token", "value": ""}})),
    ];
    for (method, params) in asked {
        let answer = client.request(method, params).to_string();
        assert!(!answer.contains(SECRET), "{method}: {answer}");
        assert!(answer.contains("[redacted:DEPLOY_TOKEN]"), "{method}: {answer}");
    }
}

#[test]
fn protocol_errors_and_warnings_are_redacted() {
    let user = leaky();
    user.write(
        "config/config.yaml",
        format!("version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  {SECRET}: 1\n"),
    );
    let mut client = Client::connect(&user);
    let named = json!({"item_id": format!("tool:team/{SECRET}")});
    for tool in ["rye_load", "rye_sign", "rye_execute"] {
        let (answer, is_error) = client.call_outcome(tool, named.clone());
        assert!(is_error && !answer.to_string().contains(SECRET), "{tool}: {answer}");
    }
    let refused = client.request_error("prompts/get", json!({"name": format!("team/{SECRET}")}));
    assert!(!refused.to_string().contains(SECRET), "{refused}");
    let refused = client.request_error("resources/read", json!({"uri": format!("rye://knowledge/{SECRET}")}));
    assert!(!refused.to_string().contains(SECRET), "{refused}");
    let notifications = format!("{:?}", client.notifications);
    assert!(notifications.contains("bundles") && !notifications.contains(SECRET), "{notifications}");
}

#[test]
fn questions_that_hide_text_cannot_be_agreed_to() {
    let plain = rye_test::tool("team", "New");
    let long: String = (0..300).map(|number| format!("# line {number}\n")).collect();
    for (text_of_item, reason) in [
        (format!("{plain}{long}"), "does not fit"),
        (format!("{plain}# {}\n", "x".repeat(20_000)), "does not fit"),
        (format!("{plain}# harmless\rimport os\n"), "control characters"),
        (format!("{plain}# \u{1b}]0;\nimport os\n# \u{7}\n"), "control characters"),
        (format!("{plain}HIDDEN = \"\u{e0069}\u{e006d}\"\n"), "may be invisible"),
        (format!("{plain}# \u{200b}\n"), "may be invisible"),
        (format!("{plain}# \u{3164}\n"), "may be invisible"),
        (format!("{plain}x = 1{}; import os\n", " ".repeat(300)), "long runs of spaces"),
        (format!("{plain}x = 1{}import os\n", "\n".repeat(100)), "long runs of spaces"),
        (
            format!("{plain}# -----BEGIN PRIVATE KEY-----\nimport os\n# -----END PRIVATE KEY-----\n"),
            "looks like a secret",
        ),
    ] {
        let user = User::initialized();
        user.write("tools/team/new.py", &text_of_item);
        let before = user.snapshot();
        let mut client = Client::connect_with_consent(&user, yes());
        let refused = client.call_error("rye_sign", json!({"item_id": "tool:team/new"}), "RYE0105");
        assert!(client.questions.is_empty(), "{:?}", client.questions);
        assert!(text(&refused["error"]).contains(reason), "{refused}");
        assert!(refused["hints"].to_string().contains("rye sign tool team/new"), "{refused}");
        assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
    }
}

#[test]
fn long_lines_of_a_change_are_shown() {
    let user = User::initialized();
    let path = user.signed_tool("new", "New");
    let signed = std::fs::read_to_string(&path).expect("text");
    let hidden = format!("x = '{}'; import os\n", "y".repeat(600));
    std::fs::write(&path, format!("{signed}{hidden}")).expect("written");
    let mut client = Client::connect_with_consent(&user, yes());
    client.call("rye_sign", json!({"item_id": "tool:team/new"}));
    let message = text(&client.questions[0]["message"]);
    assert!(message.contains("; import os"), "{message}");
}

#[test]
fn copies_show_their_text_and_what_they_hide() {
    let user = User::initialized();
    let mut client = Client::connect_with_consent(&user, yes());
    client.call("rye_sign", json!({"item_id": "tool:examples/hello", "destination": "user"}));
    let message = text(&client.questions[0]["message"]);
    assert!(message.contains("def execute") && message.contains("It hides no other item."), "{message}");
    // A copy of a system item takes its place.
    let copy = json!({"item_id": "tool:rye/file-system/read", "source": "system", "destination": "project"});
    client.call("rye_sign", copy);
    let message = text(&client.questions[1]["message"]);
    assert!(message.contains("It hides tool:rye/file-system/read of: system"), "{message}");
    assert!(message.contains("| "), "{message}");
}

#[test]
fn foreign_signatures_do_not_stand_for_text() {
    let (user, other) = (User::initialized(), User::initialized());
    other.write("tools/team/new.py", rye_test::tool("team", "Words of another"));
    other.ok(["sign", "tool", "team/new"]);
    user.write("tools/team/new.py", other.read("tools/team/new.py"));
    let mut client = Client::connect_with_consent(&user, yes());
    client.call("rye_sign", json!({"item_id": "tool:team/new"}));
    let message = text(&client.questions[0]["message"]);
    assert!(message.contains("Words of another"), "{message}");
}

#[test]
fn signatures_of_other_items_are_no_earlier_version() {
    let user = User::initialized();
    let body = "# words that must be shown\n".repeat(8);
    user.write("tools/team/base.py", format!("{}{body}", rye_test::tool("team", "Base")));
    user.ok(["sign", "tool", "team/base"]);
    let base = String::from_utf8(user.read("tools/team/base.py")).expect("a text");
    let line = base.lines().next().expect("a signature line");
    user.write("tools/team/new.py", format!("{line}\n{}{body}", rye_test::tool("team", "New")));
    let mut client = Client::connect_with_consent(&user, yes());
    client.call("rye_sign", json!({"item_id": "tool:team/new"}));
    let message = text(&client.questions[0]["message"]);
    assert!(message.contains("No earlier signed version is known"), "{message}");
    assert_eq!(message.matches("words that must be shown").count(), 8, "{message}");
}

#[test]
fn unreadable_dotenv_is_still_redacted() {
    let (first, second) = ("zq-secret-7788", "zq-secret-9900");
    let padding = "# padding\n".repeat(10_000);
    for content in [
        format!("API_TOKEN={first}\nAPI_TOKEN={second}\n").into_bytes(),
        [format!("API_TOKEN={first}\nOTHER_TOKEN={second}\n").as_bytes(), b"#\xff\n"].concat(),
        format!("API_TOKEN={first}\nOTHER_TOKEN={second}\n{padding}").into_bytes(),
        format!("API-TOKEN={first}\nOTHER_TOKEN: {second}\n").into_bytes(),
    ] {
        let user = User::initialized();
        std::fs::write(user.project().join(".env"), content).expect("written");
        let mut client = Client::connect(&user);
        let command = format!("printf '%s %s' {first} {second}");
        let answer = client
            .call("rye_execute", json!({"item_id": "tool:rye/bash", "parameters": {"command": command}}));
        let answer = answer.to_string();
        assert!(!answer.contains(first) && !answer.contains(second), "{answer}");
    }
}
