//! `rye mcp install`: clients are told of the server, and nothing else in their files changes.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::support::{User, differences, run, text};
use crate::tool_support::RYE;

const CLIENTS: [&str; 9] =
    ["claude-code", "claude-desktop", "codex", "cursor", "vscode", "opencode", "gemini", "goose", "zed"];

/// The backups of changed files: none is in the project or beside the file.
fn backups(user: &User) -> Vec<String> {
    let folder = user.context.cache().join("rye/client-backups");
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("a backup")).collect()
}

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
    assert_eq!(backups(&user), [before]);
    assert_eq!(fs::read_dir(user.home().join(".codex")).expect("a folder").count(), 1);
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

/// What an installation made is gone again; what is the user's own stays.
#[test]
fn uninstall_removes_a_file_it_empties() {
    let user = User::initialized();
    for client in ["claude-code", "codex", "goose"] {
        user.ok(["mcp", "install", client]);
        assert!(path(&user, client).is_file(), "{client}");
        user.ok(["mcp", "uninstall", client]);
        assert!(!path(&user, client).exists(), "{client}");
    }
    let other = "{\n  \"mcpServers\": {\n    \"other\": {\n      \"command\": \"other\"\n    }\n  }\n}\n";
    user.context.write("project/.mcp.json", other);
    user.ok(["mcp", "install", "claude-code"]);
    user.ok(["mcp", "uninstall", "claude-code"]);
    assert_eq!(fs::read_to_string(path(&user, "claude-code")).expect("a file"), other);
}

#[test]
fn other_names_of_clients_are_accepted() {
    let user = User::initialized();
    for (word, client) in [("claude", "claude-code"), ("gemini-cli", "gemini"), ("code", "vscode")] {
        assert_eq!(user.data(["mcp", "install", word, "--print"])["client"], client);
    }
    let error = user.assert_refused(["mcp", "install", "cluade-code"], 2, "RYE0104");
    assert!(error["hints"].to_string().contains("did you mean `claude-code`?"), "{error}");
}

#[test]
fn client_folders_of_the_environment_are_used() {
    let user = User::initialized();
    let folder = user.context.path().join("elsewhere");
    for (variable, client, file) in [
        ("CODEX_HOME", "codex", "config.toml"),
        ("XDG_CONFIG_HOME", "opencode", "opencode/opencode.json"),
        ("XDG_CONFIG_HOME", "goose", "goose/config.yaml"),
        ("XDG_CONFIG_HOME", "zed", "zed/settings.json"),
    ] {
        let run = run(user.command().env(variable, &folder).args(["mcp", "install", client]));
        assert_eq!(run.exit, 0, "{run}");
        assert!(fs::read_to_string(folder.join(file)).expect("a file").contains("mcp"), "{client}");
    }
    // A relative folder would depend on where the command runs.
    let run =
        run(user.command().env("CODEX_HOME", "codex").args(["--json", "mcp", "install", "codex", "--print"]));
    assert_eq!(
        text(&run.json()["data"]["path"]),
        user.home().join(".codex/config.toml").display().to_string()
    );
}

#[test]
fn links_to_the_binary_are_kept() {
    let user = User::initialized();
    let bin = user.context.path().join("bin");
    fs::create_dir_all(&bin).expect("a folder");
    let link = bin.join("rye");
    std::os::unix::fs::symlink(RYE, &link).expect("a link");
    let by_path = user.program(link.to_str().expect("text")).args(["mcp", "install", "cursor"]).output();
    assert!(by_path.expect("started").status.success());
    let entry = fs::read_to_string(path(&user, "cursor")).expect("a file");
    assert!(entry.contains(&link.display().to_string()), "{entry}");
    let search = std::env::join_paths([bin.clone(), PathBuf::from("/usr/bin"), PathBuf::from("/bin")])
        .expect("a PATH");
    let mut by_name = user.program("rye");
    let by_name = by_name.env("PATH", &search).args(["mcp", "install", "gemini"]).output();
    assert!(by_name.expect("started").status.success());
    let entry = fs::read_to_string(path(&user, "gemini")).expect("a file");
    assert!(entry.contains(&link.display().to_string()), "{entry}");
}

#[test]
fn uninstall_restores_the_config() {
    let user = User::initialized();
    let before = "# mine\nmodel = \"o9\"\n";
    user.context.write("home/.codex/config.toml", before);
    for client in CLIENTS {
        user.ok(["mcp", "install", client]);
        assert_eq!(user.data(["mcp", "uninstall", client])["changed"], true, "{client}");
        assert_eq!(user.data(["mcp", "uninstall", client])["changed"], false, "{client}");
        let left = fs::read_to_string(path(&user, client)).unwrap_or_default();
        assert!(!left.contains("rye"), "{client}: {left}");
    }
    assert_eq!(user.context.text("home/.codex/config.toml"), before);
    user.context.write("home/.cursor/mcp.json", "{\"mcpServers\": {\"rye\": {\"command\": \"another\"}}}");
    user.assert_refused(["mcp", "uninstall", "cursor"], 1, "RYE1005");
}

#[test]
fn status_tells_found_and_registered_clients() {
    let user = User::initialized();
    let state = |client: &str| {
        let data =
            run(user.command().env("PATH", "/nowhere").args(["--json", "mcp", "status"])).json()["data"]
                .clone();
        let rows = data["clients"].as_array().expect("clients").clone();
        let row = rows.iter().find(|row| row["client"] == client).expect("a row").clone();
        (row["found"].clone(), text(&row["state"]))
    };
    assert_eq!(state("codex"), (json!(false), "not registered".to_owned()));
    // The only client that is found needs no name.
    fs::create_dir_all(user.home().join(".codex")).expect("a folder");
    let installed = run(user.command().env("PATH", "/nowhere").args(["mcp", "install"]));
    assert_eq!(installed.exit, 0, "{installed}");
    assert_eq!(state("codex"), (json!(true), "registered".to_owned()));
    let moved = user.context.text("home/.codex/config.toml").replace("/rye\"", "/gone/rye\"");
    user.context.write("home/.codex/config.toml", moved);
    assert_eq!(state("codex"), (json!(true), "broken".to_owned()));
    fs::create_dir_all(user.home().join(".gemini")).expect("a folder");
    let several = run(user.command().env("PATH", "/nowhere").args(["--json", "mcp", "install"]));
    let error = several.error(2, "RYE0104");
    assert!(text(&error["error"]).contains("codex, gemini"), "{error}");
}
