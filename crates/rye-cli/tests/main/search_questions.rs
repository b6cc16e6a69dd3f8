//! Searching as people ask: a held set of questions over the items that ship with rye, of `rye init` and of `examples/`.

use std::path::Path;

use crate::support::{User, copy_tree, rows, text};

/// One question a line: `QUESTION => ITEM …`.
const QUESTIONS: &str = include_str!("search_questions.txt");
/// The answer has to be among so many.
const MAX_RANK: usize = 3;

/// A user whose project has the items of all examples, with every built-in bundle on.
fn user_with_examples() -> User {
    let user = User::initialized();
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    for entry in std::fs::read_dir(examples).expect("examples") {
        let items = entry.expect("an entry").path().join(".ai");
        for folder in ["directives", "tools", "knowledge"].map(|folder| (items.join(folder), folder)) {
            if folder.0.is_dir() {
                copy_tree(&folder.0, &user.project().join(".ai").join(folder.1));
            }
        }
    }
    for bundle in ["ryeos-web", "ryeos-code"] {
        user.ok(["bundle", "enable", bundle]);
    }
    user
}

/// The best items for a question, as `type:id`.
fn found(user: &User, question: &str) -> Vec<String> {
    let data = user.data(["search", question, "--limit", "10"]);
    rows(&data).iter().map(|row| format!("{}:{}", text(&row["type"]), text(&row["item_id"]))).collect()
}

#[test]
fn questions_find_their_items_early() {
    let user = user_with_examples();
    let lines = QUESTIONS.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let (mut hits, mut misses) = (0, Vec::new());
    for line in lines {
        let (question, answers) = line.split_once(" => ").expect("a question and its answers");
        let found = found(&user, question);
        let best = &found[..found.len().min(MAX_RANK)];
        if answers.split(' ').any(|answer| best.iter().any(|item| item == answer)) {
            hits += 1;
        } else {
            misses.push(format!("{question}: wanted {answers}, found {found:?}"));
        }
    }
    let asked = hits + misses.len();
    assert!(asked >= 60, "{asked} questions");
    assert!(hits * 10 >= asked * 9, "{hits} of {asked}:\n{}", misses.join("\n"));
}

#[test]
fn forms_of_a_word_find_the_same() {
    let user = user_with_examples();
    for question in ["how do I deploy the shop to production", "deployment", "deploying", "Deployed?"] {
        assert_eq!(found(&user, question)[0], "directive:release/deploy", "{question}");
    }
}
