//! Folders that tools never get as a writable root, by whatever path they are named.

use std::path::Path;

use serde_json::json;

use crate::mcp_client::Client;
use crate::support::{Run, User, run};
use crate::tool_support::{execute_data, execute_error, write_function_with};

/// Runs a tool of the system in `project`.
fn in_project(user: &User, project: &Path, words: &[&str]) -> Run {
    run(user.command().arg("--project").arg(project).args(words).arg("--json"))
}

#[test]
fn protected_roots_are_read_only() {
    let user = User::initialized();
    let marker = user.context.path().join("stolen");
    let touch = format!("command=touch {} ; echo done", marker.display());
    let link = user.context.path().join("link");
    std::os::unix::fs::symlink("/", &link).expect("a link");
    for project in [Path::new("/"), &link, &user.context.path()] {
        let result = in_project(&user, project, &["execute", "rye/bash", &touch]);
        assert_eq!(result.exit, 0, "{result}");
        assert!(result.json()["warnings"].to_string().contains("tools do not write"), "{result}");
        assert!(!marker.exists(), "{}", project.display());
    }
}

#[test]
fn home_is_read_only_with_other_user_space() {
    let user = User::initialized();
    let space = user.context.path().join("space");
    let home = user.home();
    let mut command = user.command();
    command.env("USER_SPACE", &space).current_dir(&home);
    let result = run(command.args(["execute", "rye/bash", "command=touch stolen; echo done", "--json"]));
    assert!(result.json()["warnings"].to_string().contains("it is a home folder"), "{result}");
    assert!(!home.join("stolen").exists());
}

#[test]
fn file_tools_cannot_write_home() {
    let user = User::initialized();
    let words = ["execute", "rye/file-system/write", "path=stolen", "content=x"];
    in_project(&user, &user.context.path(), &words).error(5, "RYE0806");
    assert!(!user.context.path().join("stolen").exists());
    let result = in_project(&user, &user.project(), &words);
    assert_eq!(result.exit, 0, "{result}");
    assert!(user.project().join("stolen").exists(), "an ordinary project is written");
}

#[test]
fn a_tool_cannot_declare_a_home() {
    let user = User::initialized();
    std::fs::create_dir(user.home().join("reports")).expect("a folder");
    let world = user.context.path().display().to_string();
    for (index, path) in ["~", "/", &world, "~/", "~/."].iter().enumerate() {
        let name = format!("greedy{index}");
        write_function_with(&user, &name, &format!("SANDBOX = {{\"write\": [\"{path}\"]}}"), "return 1");
        let refused = execute_error(&user, &name, &[], 5, "RYE0806");
        assert!(refused.to_string().contains("no tool may"), "{path}: {refused}");
    }
    write_function_with(&user, "modest", "SANDBOX = {\"write\": [\"~/reports\"]}", "return 1");
    assert_eq!(execute_data(&user, "modest", &[]), 1);
}

#[test]
fn declared_path_below_home_is_read_only() {
    let user = User::initialized();
    let out = user.context.path().join("out");
    std::fs::create_dir(&out).expect("a folder");
    let text = crate::tool_support::function_text(
        "SANDBOX = {\"write\": [\"{project_path}/out\"]}",
        "import os\ntry:\n    open(os.path.join(project_path, 'out', 'stolen'), 'w')\n    return 'written'\nexcept OSError:\n    return 'refused'",
    );
    user.write_user("tools/team/out.py", text);
    user.ok(["sign", "tool", "team/out", "--space", "user"]);
    let result = in_project(&user, &user.context.path(), &["execute", "tool", "team/out"]);
    assert_eq!(result.json()["data"], "refused", "{result}");
    assert!(!out.join("stolen").exists());
}

#[test]
fn agents_choose_no_write_scope() {
    let user = User::initialized();
    let marker = user.context.path().join("stolen");
    let touch = |project: &str| {
        json!({"item_id": "tool:rye/bash", "project_path": project,
               "parameters": {"command": format!("touch {}", marker.display())}})
    };
    let mut client = Client::connect(&user);
    let world = user.context.path().display().to_string();
    for project in ["/", world.as_str(), "/..", "/proc/self/root"] {
        let refused = client.call_error("rye_execute", touch(project), "RYE0905");
        assert!(refused["hints"].to_string().contains("rye trust"), "{refused}");
    }
    assert!(!marker.exists());
    // Approved or not, it is never a write root.
    user.ok(["trust", &world]);
    let (result, _) = client.call_outcome("rye_execute", touch(&world));
    assert!(result["warnings"].to_string().contains("tools do not write"), "{result}");
    assert!(!marker.exists());
}
