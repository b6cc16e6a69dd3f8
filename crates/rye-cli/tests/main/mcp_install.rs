//! `rye mcp install`: clients are told of the server, and nothing else in their files changes.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{User, differences, text};
use crate::tool_support::RYE;

const CLIENTS: [&str; 8] = ["claude-code", "codex", "cursor", "vscode", "opencode", "gemini", "goose", "zed"];

fn path(user: &User, client: &str) -> PathBuf {
    PathBuf::from(text(&user.data(["mcp", "install", client, "--print"])["path"]))
}

#[test]
fn print_writes_no_files() {
    let user = User::initialized();
    let before = user.snapshot();
    for client in CLIENTS {
        let printed = user.ok(["mcp", "install", client, "--print"]);
        assert!(printed.stdout.contains("rye") && printed.stdout.contains("mcp"), "{printed}");
    }
    assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
}

#[test]
fn second_install_is_a_no_op() {
    let user = User::initialized();
    for client in CLIENTS {
        let first = user.data(["mcp", "install", client]);
        assert_eq!((&first["changed"], &first["backup"]), (&json!(true), &Value::Null), "{client}");
        let written = path(&user, client);
        assert!(
            written.starts_with(user.home()) || written.starts_with(user.project()),
            "{}",
            written.display()
        );
        let before = user.snapshot();
        assert_eq!(user.data(["mcp", "install", client])["changed"], false, "{client}");
        assert_eq!(differences(&before, &user.snapshot()), Vec::<String>::new());
    }
    let cursor: Value =
        serde_json::from_slice(&fs::read(path(&user, "cursor")).expect("a file")).expect("JSON");
    let program = fs::canonicalize(RYE).expect("the binary").display().to_string();
    assert_eq!(cursor["mcpServers"]["rye"], json!({"command": program, "args": ["mcp"]}));
    // A file that is shared with others does not name a place on this computer.
    let shared = fs::read_to_string(path(&user, "claude-code")).expect("a file");
    assert!(!shared.contains(&program) && shared.contains("\"command\": \"rye\""), "{shared}");
}

#[test]
fn existing_config_is_kept_and_backed_up() {
    let user = User::initialized();
    let file = path(&user, "codex");
    let before = "# mine\nmodel = \"o9\"\n";
    user.context.write("home/.codex/config.toml", before);
    let run = user.ok(["mcp", "install", "codex"]);
    assert!(run.stderr.contains("+[mcp_servers.rye]"), "{run}");
    let after = fs::read_to_string(&file).expect("a file");
    assert!(after.starts_with(before) && after.contains("args = [\"mcp\"]"), "{after}");
    assert_eq!(user.context.text("home/.codex/config.toml.before-rye"), before);
}

#[test]
fn unparsable_config_is_left_alone() {
    let user = User::initialized();
    user.context.write("home/.config/zed/settings.json", "{\n  // mine\n  \"theme\": \"x\",\n}\n");
    user.context.write("home/.cursor/mcp.json", "{\"mcpServers\": {\"rye\": {\"command\": \"another\"}}}");
    user.context.write("home/.config/goose/config.yaml", "extensions: [\n");
    for client in ["zed", "cursor", "goose"] {
        user.assert_refused(["mcp", "install", client], 1, "RYE1005");
    }
    user.assert_refused(["mcp", "install", "emacs"], 2, "RYE0104");
}

#[test]
fn symlinked_config_stays_a_link() {
    let user = User::initialized();
    let real = user.context.write("home/dotfiles/cursor.json", "{}");
    fs::create_dir_all(user.home().join(".cursor")).expect("a folder");
    let link = user.home().join(".cursor/mcp.json");
    std::os::unix::fs::symlink(&real, &link).expect("a link");
    user.ok(["mcp", "install", "cursor"]);
    assert!(link.is_symlink());
    assert!(fs::read_to_string(&real).expect("a file").contains("mcpServers"));
}
