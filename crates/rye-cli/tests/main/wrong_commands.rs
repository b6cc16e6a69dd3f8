//! Twenty-five wrong commands of a newcomer, as snapshots: each answer names what was wrong and the next command.

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
