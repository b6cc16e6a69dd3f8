//! Folders that tools never get as a writable root, by whatever path they are named.

use std::path::Path;

use serde_json::json;

use crate::mcp_client::Client;
use crate::running::{failure, function_with, result};
use crate::support::{Run, User, run};

/// Runs a tool of the system in `project`.
fn in_project(user: &User, project: &Path, words: &[&str]) -> Run {
    run(user.command().arg("--project").arg(project).args(words).arg("--json"))
}

#[test]
fn roots_homes_and_user_spaces_are_not_written() {
    let user = User::ready();
    let marker = user.world.path().join("stolen");
    let touch = format!("command=touch {} ; echo done", marker.display());
    let link = user.world.path().join("link");
    std::os::unix::fs::symlink("/", &link).expect("a link");
    for project in [Path::new("/"), &link, &user.world.path()] {
        let ran = in_project(&user, project, &["execute", "rye/bash", &touch]);
        assert_eq!(ran.exit, 0, "{ran}");
        assert!(ran.json()["warnings"].to_string().contains("tools do not write"), "{ran}");
        assert!(!marker.exists(), "{}", project.display());
    }
}

#[test]
fn a_home_is_not_written_when_user_space_is_elsewhere() {
    let user = User::ready();
    let space = user.world.path().join("space");
    let home = user.home();
    let mut command = user.command();
    command.env("USER_SPACE", &space).current_dir(&home);
    let ran = run(command.args(["execute", "rye/bash", "command=touch stolen; echo done", "--json"]));
    assert!(ran.json()["warnings"].to_string().contains("it is a home folder"), "{ran}");
    assert!(!home.join("stolen").exists());
}

#[test]
fn file_tools_write_to_no_home() {
    let user = User::ready();
    let words = ["execute", "rye/file-system/write", "path=stolen", "content=x"];
    in_project(&user, &user.world.path(), &words).error(5, "RYE0806");
    assert!(!user.world.path().join("stolen").exists());
    let ran = in_project(&user, &user.project(), &words);
    assert_eq!(ran.exit, 0, "{ran}");
    assert!(user.project().join("stolen").exists(), "an ordinary project is written");
}

#[test]
fn a_tool_cannot_declare_a_home() {
    let user = User::ready();
    std::fs::create_dir(user.home().join("reports")).expect("a folder");
    let world = user.world.path().display().to_string();
    for (index, path) in ["~", "/", &world, "~/", "~/."].iter().enumerate() {
        let name = format!("greedy{index}");
        function_with(&user, &name, &format!("SANDBOX = {{\"write\": [\"{path}\"]}}"), "return 1");
        let refused = failure(&user, &name, &[], 5, "RYE0806");
        assert!(refused.to_string().contains("no tool may"), "{path}: {refused}");
    }
    function_with(&user, "modest", "SANDBOX = {\"write\": [\"~/reports\"]}", "return 1");
    assert_eq!(result(&user, "modest", &[]), 1);
}

#[test]
fn a_declared_path_below_such_a_project_is_not_written() {
    let user = User::ready();
    let out = user.world.path().join("out");
    std::fs::create_dir(&out).expect("a folder");
    let text = crate::running::function_text(
        "SANDBOX = {\"write\": [\"{project_path}/out\"]}",
        "import os\ntry:\n    open(os.path.join(project_path, 'out', 'stolen'), 'w')\n    return 'written'\nexcept OSError:\n    return 'refused'",
    );
    user.write_user("tools/team/out.py", text);
    user.ok(["sign", "tool", "team/out", "--space", "user"]);
    let ran = in_project(&user, &user.world.path(), &["execute", "tool", "team/out"]);
    assert_eq!(ran.json()["data"], "refused", "{ran}");
    assert!(!out.join("stolen").exists());
}

#[test]
fn agents_choose_no_write_scope() {
    let user = User::ready();
    let marker = user.world.path().join("stolen");
    let touch = |project: &str| {
        json!({"item_id": "tool:rye/bash", "project_path": project,
               "parameters": {"command": format!("touch {}", marker.display())}})
    };
    let mut client = Client::ready(&user);
    let world = user.world.path().display().to_string();
    for project in ["/", world.as_str(), "/..", "/proc/self/root"] {
        let refused = client.fails("rye_execute", touch(project), "RYE0905");
        assert!(refused["hints"].to_string().contains("rye trust"), "{refused}");
    }
    assert!(!marker.exists());
    // Approved or not, it is never a write root.
    user.ok(["trust", &world]);
    let (ran, _) = client.outcome("rye_execute", touch(&world));
    assert!(ran["warnings"].to_string().contains("tools do not write"), "{ran}");
    assert!(!marker.exists());
}
