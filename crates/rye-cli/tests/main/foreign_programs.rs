//! Programs that tools can write do not stand in for others: neither those of another project, nor those of this one.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use crate::support::{User, run};
use crate::tool_support::write_function;

fn write_program(path: &Path, script: &str) {
    let folder = path.parent().expect("a folder");
    lillux::file::create_dirs(folder, false).expect("folders");
    lillux::file::write_atomic(path, script.as_bytes(), lillux::file::FileMode::Preserve).expect("a program");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("a mode");
}

fn path_with(folder: &Path) -> String {
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn interpreter_of_another_project_is_not_used() {
    let user = User::initialized();
    write_function(&user, "which", "import os\nreturn os.environ.get('FROM_OTHER')");
    let other = user.context.path().join("other");
    lillux::file::create_dirs(&other.join(".ai"), false).expect("a project");
    let bin = other.join(".venv/bin");
    write_program(
        &bin.join("python3"),
        "#!/bin/sh\nexport FROM_OTHER=1\nexec /usr/bin/env -i PATH=/usr/bin:/bin python3 \"$@\"\n",
    );
    let ran = run(user.command().env("PATH", path_with(&bin)).args(["--json", "execute", "team/which"]));
    assert_eq!(ran.exit, 0, "{ran}");
    assert_eq!(ran.json()["data"], json!(null), "{ran}");
}

#[test]
fn planted_program_does_not_hide_the_system() {
    let user = User::initialized();
    let bin = user.project().join(".venv/bin");
    write_program(&bin.join("own-tool"), "#!/bin/sh\necho own\n");
    user.ok(["trust", ".", "--yes"]);
    let execute = |command: &str| {
        let words = ["--json", "execute", "rye/bash", &format!("command={command}")].map(str::to_owned);
        run(user.command().env("PATH", path_with(&bin)).args(words))
    };
    assert_eq!(execute("own-tool").json()["data"]["stdout"], "own\n");
    // A tool of this project writes it.
    execute("printf '#!/bin/sh\\necho planted\\n' > .venv/bin/basename; chmod +x .venv/bin/basename");
    let ran = execute("basename /a/b; own-tool");
    assert_eq!(ran.json()["data"]["stdout"], "b\nown\n", "{ran}");
    assert!(ran.json()["warnings"].to_string().contains("comes last on the PATH"), "{ran}");
}

#[test]
fn damaged_sandbox_settings_stop_every_run() {
    let user = User::initialized();
    let settings = "version: \"1.0.0\"\ncategory: execution\nnetwork: false\n";
    let path = user.write_user("config/execution/sandbox.yaml", settings);
    user.ok(["sign", "config", "execution/sandbox", "--space", "user"]);
    assert_eq!(user.data(["execute", "rye/bash", "command=true"])["exit_code"], 0);
    let signed = lillux::file::read_bounded(&path, 1 << 16).expect("a file").0;
    let mut damaged = signed.clone();
    damaged.extend_from_slice(b"\tx\n");
    for content in [damaged, [&signed[..], b"level: loose\n"].concat(), b"network: maybe\n".to_vec()] {
        user.write_user("config/execution/sandbox.yaml", content);
        let refused = run(user.command().args(["--json", "execute", "rye/bash", "command=true"]));
        assert_ne!(refused.exit, 0, "{refused}");
        assert!(refused.json()["error"].to_string().contains("nothing runs without them"), "{refused}");
    }
    user.write_user("config/execution/sandbox.yaml", signed);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    assert_eq!(user.data(["execute", "rye/bash", "command=true"])["exit_code"], 0);
}
