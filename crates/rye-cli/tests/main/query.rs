//! The query language, as typed in a shell.

use std::collections::BTreeSet;

use crate::support::{User, rows, text};

fn user_with_library() -> User {
    let user = User::initialized();
    for (name, title, body) in [
        ("apples", "Red apples", "sweet fruit from the north"),
        ("pears", "Green pears", "sweet fruit from the south"),
        ("onions", "Red onions", "sharp bulbs from the north"),
        ("northern", "Northern lights", "green lights over the fruit trees"),
    ] {
        user.write(&format!("knowledge/garden/{name}.md"), rye_test::knowledge("garden", name, title, body));
    }
    user
}

fn names(user: &User, words: &[&str]) -> BTreeSet<String> {
    let data = user.data(["search", "--scope", "knowledge.garden.*"].iter().chain(words));
    rows(&data).iter().map(|row| text(&row["item_id"]).trim_start_matches("garden/").to_owned()).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn query_syntax_is_supported() {
    let user = user_with_library();
    for (query, expected) in [
        ("sweet", &["apples", "pears"][..]),
        ("sweet north", &["apples", "onions", "pears"]),
        ("sweet AND north", &["apples"]),
        ("sweet and north", &["apples", "onions", "pears"]),
        ("sweet NOT red and north", &[]),
        ("bulbs OR south", &["onions", "pears"]),
        ("red NOT sweet", &["onions"]),
        ("NOT red", &["pears", "northern"]),
        ("north*", &["apples", "onions", "northern"]),
        ("\"fruit from the south\"", &["pears"]),
        ("\"from fruit\"", &[]),
        ("(red OR green) AND sweet", &["apples", "pears"]),
        ("red OR green sweet", &["apples", "onions", "pears"]),
        ("sweet (north OR (south green))", &["apples", "pears"]),
        ("SWEET", &["apples", "pears"]),
        ("*", &["apples", "pears", "onions", "northern"]),
        ("", &["apples", "pears", "onions", "northern"]),
        ("title:red", &[]),
        ("facets:any", &[]),
    ] {
        assert_eq!(names(&user, &[query]), set(expected), "{query}");
    }
    // Several words of the shell are one query; a quoted one is a phrase.
    assert_eq!(names(&user, &["sweet", "AND", "north"]), set(&["apples"]));
    assert_eq!(names(&user, &["sweet", "from the south"]), set(&["pears"]));
    assert_eq!(names(&user, &["bulbs", "OR", "south"]), set(&["onions", "pears"]));
}

#[test]
fn invalid_query_is_refused() {
    let user = User::initialized();
    for query in ["(red", "red)", "((a)", "a OR (b AND", ")("] {
        user.assert_refused(["search", query], 2, "RYE0103");
    }
    user.assert_refused(["search", &"(".repeat(1000)], 2, "RYE0103");
    user.assert_refused(["search", &"a ".repeat(5000)], 2, "RYE0103");
    user.assert_refused(["fetch", "--query", "(red"], 2, "RYE0103");
}

#[test]
fn odd_queries_return_results() {
    let user = User::initialized();
    for query in [
        "\"",
        "\"\"",
        "'",
        "; DROP TABLE items",
        "NEAR(a b)",
        "a\" OR \"b",
        "^a",
        "-a",
        "a:b",
        "{a b}:c",
        "AND",
        "NOT",
        "OR OR",
        "*a",
        "a**",
        "\u{1b}[31m",
        "é",
        "日本語",
        "\\",
        "%",
        "()",
        "NOT ()",
        "a + b",
        "\u{0}1".trim_start_matches('\0'),
    ] {
        let run = user.run(["search", "--json", "--", query]);
        assert_eq!(run.exit, 0, "{query:?}: {run}");
        run.json();
    }
    user.run(["search", "--", "\u{1b}[31m"]).assert_plain();
}

#[test]
fn a_near_miss_is_suggested() {
    let user = User::initialized();
    user.write("directives/team/zeppelin.md", rye_test::directive("team", "zeppelin", "x"));
    let data = user.data(["search", "zeppelinride"]);
    assert_eq!(data["total"], 0);
    let suggestions = data["suggestions"].as_array().expect("suggestions");
    assert!(suggestions.contains(&"team/zeppelin".into()), "{data}");
    let human = user.ok(["search", "zeppelinride"]);
    assert_eq!(human.stdout, "");
    assert!(human.stderr.contains("did you mean: ") && human.stderr.contains("team/zeppelin"), "{human}");
    assert_eq!(user.data(["search", "zzzzzzzz"])["suggestions"], serde_json::json!([]));
}

#[test]
fn typing_errors_find_what_was_meant() {
    let user = User::initialized();
    let path = user.write("directives/team/zeppelin.md", rye_test::directive("team", "zeppelin", "x"));
    let data = user.data(["search", "zepelin"]);
    assert_eq!(user.search_ids("zepelin"), ["team/zeppelin"]);
    assert_eq!(data["corrections"], serde_json::json!([{"word": "zepelin", "searched": ["zeppelin"]}]));
    let human = user.ok(["search", "zepelin"]);
    assert!(human.stderr.contains("no item has `zepelin`; searched for zeppelin"), "{human}");
    // A word that something has is taken as it is.
    user.write("directives/team/zepelin.md", rye_test::directive("team", "zepelin", "x"));
    assert_eq!(user.search_ids("zepelin"), ["team/zepelin"]);
    std::fs::remove_file(path).expect("removed");
    assert_eq!(user.search_ids("zeppelin"), ["team/zepelin"]);
}

#[test]
fn all_words_come_before_any_word() {
    let user = user_with_library();
    let ids = user.search_ids("sharp bulbs from the north in gardens nobody knows");
    assert_eq!(ids[0], "garden/onions", "{ids:?}");
    let data = user.data(["search", "sweet bulbs", "--scope", "knowledge.garden.*"]);
    let scores: Vec<f64> = rows(&data).iter().map(|row| row["score"].as_f64().expect("a score")).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|left, right| left >= right), "{data}");
    assert_eq!(user.search_ids("not a red onion")[0], "garden/onions");
}

#[test]
fn filters_and_limits_narrow_results() {
    let user = user_with_library();
    user.write("tools/garden/apples.py", rye_test::tool("garden", "Counts red apples"));
    let total = |words: &[&str]| user.data(["search"].iter().chain(words))["total"].clone();
    assert_eq!(total(&["apples"]), 2);
    assert_eq!(total(&["apples", "--type", "tool"]), 1);
    assert_eq!(total(&["apples", "--space", "user"]), 0);
    assert_eq!(total(&["apples", "--space", "all"]), 2);
    assert_eq!(total(&["apples", "--scope", "tool.garden.*"]), 1);
    assert_eq!(total(&["apples", "--scope", "tool.gard.*"]), 0);
    let limited = user.data(["search", "red OR green", "--limit", "2"]);
    assert_eq!((rows(&limited).len(), &limited["total"]), (2, &5.into()), "{limited}");
    let human = user.ok(["search", "red OR green", "--limit", "2"]);
    assert!(human.stderr.contains("2 of 5 shown"), "{human}");
    user.assert_refused(["search", "x", "--scope", "nonsense"], 2, "RYE0104");
    user.assert_refused(["search", "x", "--limit", "-1"], 2, "RYE0104");
    user.assert_refused(["search", "x", "--space", "nowhere"], 2, "RYE0104");
    user.assert_refused(["search"], 2, "RYE0104");
}

#[test]
fn titles_outrank_bodies() {
    let user = user_with_library();
    user.write(
        "knowledge/garden/notes.md",
        rye_test::knowledge(
            "garden",
            "notes",
            "Notes",
            "somebody once mentioned pears in passing, and much else besides",
        ),
    );
    assert_eq!(user.search_ids("pears")[0], "garden/pears");
}
