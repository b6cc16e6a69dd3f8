//! Hints name the narrowest command that makes an item work, and say what it grants.

use serde_json::{Value, json};

use crate::mcp_client::Client;
use crate::support::{User, copy_file, text};

/// A user whose project holds a tool that another one signed.
fn with_foreign_tool() -> (User, User) {
    let (user, author) = (User::initialized(), User::initialized());
    let tool = author.signed_tool("x", "By another");
    copy_file(&tool, &user.project().join(".ai/tools/team/x.py"));
    (user, author)
}

fn hints(error: &Value) -> Vec<String> {
    error["hints"].as_array().expect("hints").iter().map(text).collect()
}

/// The command at the end of a hint, as words of this user.
fn command(hint: &str) -> Vec<String> {
    let (_, command) = hint.rsplit_once(": rye ").expect("a command");
    command.split(' ').map(str::to_owned).collect()
}

fn works(user: &User) -> bool {
    user.run(["load", "tool", "team/x"]).exit == 0
}

#[test]
fn untrusted_item_names_three_ways() {
    let (user, author) = with_foreign_tool();
    let error = user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    let hints = hints(&error);
    assert!(hints[0].contains("rye keys publish") && hints[0].ends_with(": rye join"), "{hints:?}");
    assert!(
        hints[1].contains(&author.fingerprint()) && hints[1].contains("in this project only"),
        "{hints:?}"
    );
    assert!(
        hints[2].contains("for this item alone") && hints[2].contains("rye sign tool team/x"),
        "{hints:?}"
    );
    assert!(hints.iter().all(|hint| !hint.contains("--space user")), "{hints:?}");
    user.ok(command(&hints[2]));
    assert!(works(&user));
    let listed = user.data(["keys", "list"]);
    assert!(!listed.to_string().contains(&author.fingerprint()), "{listed}");
}

#[test]
fn key_in_the_project_is_trusted_there_alone() {
    let (user, author) = with_foreign_tool();
    let document = user.project().join(format!(".ai/config/keys/trusted/{}.toml", author.fingerprint()));
    copy_file(&author.identity_document(), &document);
    let error = user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    let hint = hints(&error)[1].clone();
    assert!(hint.contains("--space project"), "{hint}");
    user.ok(command(&hint));
    assert!(works(&user));
    let listed = user.data(["keys", "show", &author.fingerprint()]);
    assert_eq!(listed["trust"], "project", "{listed}");
}

#[test]
fn key_of_another_project_stays_narrow() {
    let (user, author) = with_foreign_tool();
    let other = user.context.path().join("other");
    std::fs::create_dir_all(&other).expect("a folder");
    let at_other = |words: &[&str]| {
        let run = crate::support::run(user.command().current_dir(&other).args(words));
        assert_eq!(run.exit, 0, "{run}");
    };
    at_other(&["init"]);
    at_other(&["keys", "trust", author.public_key().to_str().expect("text"), "--space", "project"]);
    let error = user.assert_refused(["load", "tool", "team/x"], 4, "RYE0404");
    let hint = hints(&error)[1].clone();
    assert!(hint.contains("trusted in other projects only"), "{hint}");
    let doctor = user.run(["doctor", "--json"]).json();
    let findings = doctor["data"]["findings"].as_array().expect("findings").clone();
    let of_key = |finding: &&Value| text(&finding["message"]).contains(&author.fingerprint());
    let remedy = text(&findings.iter().find(of_key).expect("a finding of the key")["remedy"]);
    assert!(remedy.contains("--space project") && remedy.contains("in this project only"), "{remedy}");
    user.ok(command(&hint));
    assert!(works(&user));
    let shown = user.data(["keys", "show", &author.fingerprint()]);
    assert_eq!(shown["trust"], "project", "{shown}");
}

#[test]
fn tampered_item_is_compared_before_it_is_signed() {
    let user = User::initialized();
    let tool = user.signed_tool("x", "Mine");
    let text = std::fs::read_to_string(&tool).expect("text");
    std::fs::write(&tool, format!("{text}# more\n")).expect("changed");
    let hints = hints(&user.assert_refused(["load", "tool", "team/x"], 4, "RYE0402"));
    assert!(
        hints[0].contains("see what changed") && hints[0].contains("restore the signed version"),
        "{hints:?}"
    );
    assert!(hints[1].starts_with("read it, then sign this item"), "{hints:?}");
}

/// Makes a program of the project.
fn program(user: &User, path: &str) {
    let program = user.context.write(&format!("project/{path}"), "#!/bin/sh\n");
    std::fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
}

#[test]
fn agent_hints_address_the_user() {
    let user = User::initialized();
    program(&user, "node_modules/.bin/lint");
    let item = "version: \"1.0.0\"\ntool_type: script\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\n\
                name: lint\ndescription: Runs\nconfig: {command: \"{project_path}/node_modules/.bin/lint\"}\n";
    user.write("tools/team/lint.yaml", item);
    user.ok(["sign", "tool", "team/lint"]);
    let mut client = Client::connect(&user);
    let refused = client.call_error("rye_execute", json!({"item_id": "tool:team/lint"}), "RYE0809");
    let commands: Vec<String> = hints(&refused).into_iter().filter(|hint| hint.contains("rye ")).collect();
    assert!(!commands.is_empty(), "{refused}");
    assert!(commands.iter().all(|hint| hint.starts_with("ask the user")), "{commands:?}");
    // What only warns is for the user as well.
    program(&user, ".venv/bin/python");
    user.signed_tool("x", "Mine");
    let answer = client.call("rye_execute", json!({"item_id": "tool:team/x"}));
    let warning = text(&answer["warnings"][0]);
    assert!(warning.starts_with("ask the user") && warning.contains("rye trust"), "{answer}");
}
