//! Git folders that are not a plain `.git`: submodules, separate folders, links. Tools run, and what git obeys stays.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::json;

use crate::support::{User, differences, run, snapshot};

/// Runs git as the user, in a folder of the world.
fn git(user: &User, folder: &str, words: &[&str]) {
    let ran = user
        .program("git")
        .current_dir(user.context.path().join(folder))
        .args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"])
        .args(words)
        .output()
        .expect("git");
    assert!(ran.status.success(), "{words:?} {}", String::from_utf8_lossy(&ran.stderr));
}

/// What `rye/bash` prints.
fn bash(user: &User, command: &str) -> String {
    let params = json!({"command": command}).to_string();
    let ran = run(user.command().args(["--json", "execute", "rye/bash", "--params", &params]));
    assert_eq!(ran.exit, 0, "{ran}");
    ran.json()["data"].to_string()
}

/// A command that tries to change each of these, and prints what it could.
fn attempts(names: &[String]) -> String {
    let all: Vec<String> = names
        .iter()
        .map(|name| {
            format!(
                "(echo evil >> '{name}') 2>/dev/null && echo 'changed {name}'; rm -rf '{name}' 2>/dev/null"
            )
        })
        .collect();
    format!("{}; true", all.join("; "))
}

/// What names a program or another folder in a git folder.
fn named(folder: &str) -> Vec<String> {
    ["config", "hooks/post-commit", "commondir", "gitdir", "config.worktree", "info/attributes"]
        .map(|name| format!("{folder}/{name}"))
        .to_vec()
}

const COMMIT: &str = "echo 1 > made && git add made && git -c user.name=a -c user.email=a@b commit -qm made && git log --oneline";

#[test]
fn submodules_are_committed_to_and_protected() {
    let user = User::initialized();
    let other = user.context.path().join("other");
    fs::create_dir(&other).expect("a folder");
    git(&user, "other", &["init", "-q", "."]);
    git(&user, "other", &["commit", "-q", "--allow-empty", "-m", "first"]);
    git(&user, "project", &["init", "-q", "."]);
    git(&user, "project", &["submodule", "--quiet", "add", &other.display().to_string(), "libs/sub"]);
    let printed = bash(&user, &format!("cd libs/sub && {COMMIT}"));
    assert!(printed.contains("made") && printed.contains("first"), "{printed}");
    let module = ".git/modules/libs/sub";
    let path = user.project().join(module);
    let is_watched = |path: &std::path::PathBuf| {
        ["config", "hooks", "info", "commondir", "gitdir", "config.worktree"]
            .iter()
            .any(|name| path.ends_with(name))
    };
    let watched = || -> Vec<_> { snapshot(&path).into_iter().filter(|(path, _)| is_watched(path)).collect() };
    let before = watched();
    // What git needs and a tool may remove is gone: the rest stays protected.
    bash(
        &user,
        &format!("rm -rf {module}/HEAD {module}/objects {module}/refs; touch .git/modules/libs/config; true"),
    );
    let printed = bash(
        &user,
        &format!(
            "mv {module} .git/modules/old 2>/dev/null && echo renamed; mv libs/sub libs/old 2>/dev/null && echo renamed; \
             git -C libs/sub config core.fsmonitor evil 2>/dev/null && echo renamed; {}",
            attempts(&named(module))
        ),
    );
    assert!(!printed.contains("renamed") && !printed.contains("changed"), "{printed}");
    assert_eq!(watched(), before);
    let printed = bash(&user, &attempts(&["libs/sub/.git".to_owned()]));
    assert!(!printed.contains("changed") && user.project().join("libs/sub/.git").is_file(), "{printed}");
}

#[test]
fn separate_git_folders_are_protected() {
    let user = User::initialized();
    git(&user, "project", &["init", "-q", "--separate-git-dir=inner", "."]);
    let printed = bash(&user, COMMIT);
    assert!(printed.contains("made"), "{printed}");
    bash(&user, "rm -rf inner/HEAD inner/objects inner/refs inner/logs inner/index; true");
    let before = snapshot(&user.project().join("inner"));
    let mut names = named("inner");
    names.push(".git".to_owned());
    let printed = bash(&user, &format!("mv inner other 2>/dev/null && echo renamed; {}", attempts(&names)));
    assert!(!printed.contains("renamed") && !printed.contains("changed"), "{printed}");
    assert_eq!(differences(&before, &snapshot(&user.project().join("inner"))), Vec::<String>::new());
    assert!(user.project().join(".git").is_file());
}

#[test]
fn linked_git_folders_are_protected() {
    for (target, is_made) in
        [("inner", true), ("../outer", true), ("stuff", false), ("nowhere", false), ("no/where", false)]
    {
        let user = User::initialized();
        let project = user.project();
        if is_made {
            git(&user, "project", &["init", "-q", "."]);
            fs::rename(project.join(".git"), project.join(target)).expect("moved");
        } else if target == "stuff" {
            fs::create_dir(project.join(target)).expect("a folder");
        }
        symlink(target, project.join(".git")).expect("a link");
        let folder = project.join(target);
        let all = || if folder.exists() { snapshot(&folder) } else { std::collections::BTreeMap::new() };
        let before = all();
        user.ok(["execute", "examples/hello", "name=Ada"]);
        let mut names = named(target);
        names.push(format!("{target}/HEAD"));
        let command = format!(
            "mkdir -p {target}/objects {target}/refs 2>/dev/null; rm -f .git 2>/dev/null && echo changed; ln -sfn /tmp .git 2>/dev/null && echo changed; {}",
            attempts(&names)
        );
        let printed = bash(&user, &command);
        assert!(!printed.contains("changed"), "{target}: {printed}");
        assert_eq!(differences(&before, &all()), Vec::<String>::new(), "{target}");
        assert_eq!(folder.exists(), is_made || target == "stuff", "{target}");
        assert_eq!(fs::read_link(project.join(".git")).expect("a link"), std::path::Path::new(target));
        if is_made {
            git(&user, "project", &["status"]);
            let printed = bash(&user, "git status 2>&1");
            assert!(printed.contains("branch"), "{target}: {printed}");
        }
    }
}
