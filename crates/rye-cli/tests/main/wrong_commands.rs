//! Wrong commands of a newcomer, as snapshots: each answer names what was wrong and the next command.

use crate::support::User;
use crate::texts::{assert_text, transcript};

/// What is typed in a folder before `rye init`.
const OUTSIDE: [&str; 4] =
    ["execute examples/hello", "new tool team/greet", "run examples/greet", "load examples/hello"];

/// What is typed in a project.
const INSIDE: [&str; 21] = [
    "serach hello",
    "mcp instal claude-code",
    "ls",
    "create tool team/greet",
    "start examples/greet",
    "run examples/hello",
    "execute examples/greet",
    "execute exampels/hello",
    "execute hello",
    "execute examples/hello Ada",
    "execute examples/hello nmae=Ada",
    "run examples/greet nam=Ada",
    "load hello",
    "load tools examples/helo",
    "why examples/nothing",
    "sign examples/helo",
    "verify examples/helo",
    "config set serch.limit 5",
    "config set search.limit many",
    "mcp install cluade-code",
    "thread show",
];

#[test]
fn wrong_commands_name_the_next_one() {
    let user = User::new();
    let outside = transcript(&user, &OUTSIDE);
    user.ok(["init"]);
    let inside = transcript(&user, &INSIDE);
    let all = format!("{outside}{inside}");
    assert_eq!(all.matches("\n[exit ").count(), 25, "{all}");
    for answer in all.split("$ rye ").skip(1) {
        let names_next = ["hint:", "tip:", "did you mean"].iter().any(|word| answer.contains(word));
        assert!(names_next, "no next step: {answer}");
    }
    assert_text(&user, "wrong_commands", &all);
}

/// Other names, forgotten words, options of other programs and paths in place of ids.
const MORE: [&str; 34] = [
    "help excute",
    "rye init",
    "examples/hello",
    "update",
    "approve",
    "whoami",
    "login",
    "delete examples/hello",
    "execute",
    "execute .ai/tools/examples/hello.py",
    "execute examples/hello --name Ada",
    "run .ai/directives/examples/greet.md",
    "run examples/greet --budget 5",
    "new team/greet",
    "new skill team/greet",
    "new tool --lang python",
    "init myproject",
    "sign",
    "sign --all",
    "load",
    "search",
    "thread logs",
    "thread kill",
    "config list",
    "config set search.limit",
    "keys add bob.pem",
    "keys trust",
    "mcp add claude",
    "mcp serve",
    "bundle install gifts",
    "lock examples/hello",
    "schedule examples/greet",
    "doctor --fix",
    "import --dry-run",
];

#[test]
fn other_wrong_commands_name_the_next_one() {
    let user = User::new();
    user.ok(["init"]);
    let all = transcript(&user, &MORE);
    assert_eq!(all.matches("\n[exit ").count(), MORE.len(), "{all}");
    for answer in all.split("$ rye ").skip(1).filter(|answer| answer.contains("[exit ")) {
        assert!(answer.contains("hint: "), "no next step: {answer}");
    }
    assert_text(&user, "more_wrong_commands", &all);
}

#[test]
fn several_ids_are_signed_at_once() {
    let user = User::new();
    user.ok(["init"]);
    for id in ["team/a", "team/b"] {
        user.ok(["new", "tool", id, "--lang", "bash"]);
        let relative = format!(".ai/tools/{id}.sh");
        let text = std::fs::read_to_string(user.project().join(&relative)).expect("a tool");
        user.write(relative.trim_start_matches(".ai/"), text + "# edited\n");
    }
    assert!(user.run(["verify", "team/a", "team/b"]).exit != 0);
    user.ok(["sign", "team/a", "tool:team/b"]);
    user.ok(["verify", "team/a", "team/b"]);
    let missing = user.run(["sign", "team/a", "team/c"]);
    assert!(missing.exit == 3 && missing.stderr.contains("team/c"), "{missing}");
}
