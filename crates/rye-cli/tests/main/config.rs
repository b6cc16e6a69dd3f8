//! Layered config: where each setting comes from, and what a layer may not say.

use serde_json::{Value, json};

use crate::support::{User, run, text};

const HEAD: &str = "version: \"1.0.0\"\ncategory: \"\"\n";

fn setting(user: &User, key: &str) -> (Value, String) {
    let data = user.data(["config", "show", "config", "--origin"]);
    let row = data["settings"]
        .as_array()
        .expect("settings")
        .iter()
        .find(|row| row["key"] == key)
        .unwrap_or_else(|| panic!("no `{key}` in {data}"));
    (row["value"].clone(), text(&row["origin"]))
}

fn ignored(user: &User) -> Vec<String> {
    let data = user.data(["config", "show"]);
    data["ignored"].as_array().expect("ignored").iter().map(|row| text(&row["key"])).collect()
}

#[test]
fn the_project_goes_over_the_user_and_the_user_over_the_system() {
    let user = User::ready();
    let system = "system:ryeos-core".to_owned();
    assert_eq!(setting(&user, "search.limit"), (json!(10), system.clone()));
    user.write_user("config/config.yaml", format!("{HEAD}search:\n  limit: 5\ndisplay:\n  color: never\n"));
    assert_eq!(setting(&user, "search.limit"), (json!(5), "user".to_owned()));
    user.write("config/config.yaml", format!("{HEAD}search:\n  limit: 3\n"));
    assert_eq!(setting(&user, "search.limit"), (json!(3), "project".to_owned()));
    assert_eq!(setting(&user, "display.color"), (json!("never"), "user".to_owned()));
    assert_eq!(setting(&user, "lockfiles.scope"), (json!("user"), system));

    let human = user.ok(["config", "show", "--origin"]).stdout;
    let row = human.lines().find(|line| line.contains("search.limit")).expect("a row");
    assert!(row.contains('3') && row.contains("project"), "{human}");
    let plain = user.ok(["config", "show"]).stdout;
    assert!(!plain.contains("system:ryeos-core"), "{plain}");
}

#[test]
fn the_setting_in_force_is_the_one_that_counts() {
    let user = User::ready();
    user.write("config/config.yaml", format!("{HEAD}search:\n  limit: 1\n"));
    assert_eq!(user.found("hello"), ["examples/hello"]);
}

#[test]
fn an_unsigned_project_may_only_tighten_limits() {
    let user = User::ready();
    user.write("config/config.yaml", format!("{HEAD}items:\n  max_bytes: 2048\n"));
    assert_eq!(setting(&user, "items.max_bytes"), (json!(2048), "project".to_owned()));
    user.write("tools/team/big.py", "#".repeat(4096));
    user.refused(["sign", "tool", "team/big"], 9, "RYE0204");
    user.write("config/config.yaml", format!("{HEAD}items:\n  max_bytes: 99999999\n"));
    assert_eq!(setting(&user, "items.max_bytes").1, "system:ryeos-core");
    assert_eq!(ignored(&user), ["items.max_bytes"]);
}

#[test]
fn signed_config_of_an_approved_project_counts_and_of_another_does_not() {
    let user = User::ready();
    user.write("config/config.yaml", format!("{HEAD}integrity:\n  partial_coverage: allow\n"));
    assert_eq!(ignored(&user), ["integrity.partial_coverage"]);
    user.ok(["sign", "config", "config"]);
    assert_eq!(setting(&user, "integrity.partial_coverage"), (json!("allow"), "project".to_owned()));
    user.ok(["trust", "--revoke"]);
    assert_eq!(setting(&user, "integrity.partial_coverage").0, json!("deny"));
}

#[test]
fn unsigned_user_config_counts_except_for_trust_and_integrity() {
    let user = User::ready();
    let bundle = user.world.path().join("none");
    user.write_user(
        "config/config.yaml",
        format!(
            "{HEAD}integrity:\n  partial_coverage: allow\nbundles:\n  paths: [\"{}\"]\ndev_mode:\n  projects: [\"{}\"]\n",
            bundle.display(),
            user.project().display()
        ),
    );
    let data = user.data(["config", "show", "config"]);
    assert_eq!(setting(&user, "bundles.paths").1, "user");
    assert_eq!(data["unsigned"][0]["key"], "bundles.paths", "{data}");
    let mut keys = ignored(&user);
    keys.sort();
    assert_eq!(keys, ["dev_mode.projects", "integrity.partial_coverage"]);
    user.ok(["sign", "config", "config", "--space", "user"]);
    assert_eq!(setting(&user, "integrity.partial_coverage").0, json!("allow"));
    assert_eq!(ignored(&user), Vec::<String>::new());
}

#[test]
fn what_is_left_out_is_said_with_its_place() {
    let user = User::ready();
    user.write("config/config.yaml", format!("{HEAD}search:\n  limit: many\nnonsense: 1\n"));
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert!(
        run.stderr.contains("`search.limit` in project config is ignored")
            && run.stderr.contains("`nonsense` in project config is ignored"),
        "{run}"
    );
    let data = user.data(["config", "show"]);
    assert_eq!(data["ignored"][0]["position"], json!({"line": 4, "column": 10}), "{data}");
    let refusal = user.refused(["sign", "config", "config"], 9, "RYE0301");
    assert_eq!((&refusal["line"], &refusal["column"]), (&json!(4), &json!(10)));
}

#[test]
fn broken_config_stops_nothing() {
    let user = User::ready();
    for broken in ["a: [", "- list\n", "\u{0}", "a: &x [*x]\n", "a: 1\na: 2\n"] {
        user.write("config/config.yaml", broken);
        user.write_user("config/config.yaml", broken);
        let run = user.ok(["load", "tool", "examples/hello"]);
        assert!(run.stderr.contains("project config is ignored"), "{broken:?}: {run}");
        assert!(run.stderr.contains("user config is ignored"), "{broken:?}: {run}");
    }
    user.write("config/config.yaml", b"\xff\xfe");
    user.ok(["load", "tool", "examples/hello"]);
}

#[test]
fn a_config_that_is_not_there_is_not_found() {
    let user = User::ready();
    user.refused(["config", "show", "no/such"], 3, "RYE0201");
    user.refused(["config", "show", "../x"], 2, "RYE0101");
}

#[test]
fn a_colour_setting_is_honoured_and_the_option_goes_over_it() {
    let user = User::ready();
    user.write_user("config/config.yaml", format!("{HEAD}display:\n  color: always\n"));
    assert!(user.ok(["why", "tool", "examples/hello"]).stdout.contains('\u{1b}'));
    assert!(!user.ok(["why", "tool", "examples/hello", "--color", "never"]).stdout.contains('\u{1b}'));
    let run = run(user.command().env("NO_COLOR", "1").args(["why", "tool", "examples/hello"]));
    assert!(!run.stdout.contains('\u{1b}'), "{run}");
}

#[test]
fn config_that_cannot_be_read_is_said_and_stops_nothing() {
    let user = User::ready();
    let place = user.project().join(".ai/config/config.yaml");
    let outside = user.world.write("outside.yaml", "search:\n  limit: 1\n");
    std::os::unix::fs::symlink(outside, &place).expect("link");
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert!(run.stderr.contains("project config is ignored"), "{run}");
    assert_eq!(setting(&user, "search.limit").0, json!(10));
    std::fs::remove_file(&place).expect("removed");
    std::fs::File::create(&place).expect("made").set_len(1 << 30).expect("a sparse file");
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert!(run.stderr.contains("larger than"), "{run}");
}

#[test]
fn signing_looks_into_lists_and_tells_the_place() {
    let user = User::ready();
    let hook = "  - id: mine\n    event: after_stp\n    action: {primary: run}\n    colour: red\n";
    user.write(
        "config/agent/hooks.yaml",
        format!("version: \"1.0.0\"\ncategory: agent\nname: hooks\nhooks:\n{hook}"),
    );
    let refused = user.refused(["sign", "config", "agent/hooks"], 9, "RYE0301");
    let places: Vec<(String, u64, u64)> = refused["problems"]
        .as_array()
        .expect("problems")
        .iter()
        .map(|problem| {
            let number = |key: &str| problem[key].as_u64().unwrap_or_default();
            (text(&problem["field"]), number("line"), number("column"))
        })
        .collect();
    for expected in [("hooks[0].event", 6, 5), ("hooks[0].action.primary", 7, 14), ("hooks[0].colour", 8, 5)]
    {
        let expected = (expected.0.to_owned(), expected.1, expected.2);
        assert!(places.contains(&expected), "{expected:?}: {places:?}");
    }
}

#[test]
fn the_settings_of_threads_are_shown_with_their_origin() {
    let user = User::ready();
    let origin = |key: &str| {
        let data = user.data(["config", "show", "agent/resilience", "--origin"]);
        let rows = data["settings"].as_array().expect("settings").clone();
        let row = rows.into_iter().find(|row| row["key"] == key).expect("a row");
        (row["value"].clone(), text(&row["origin"]))
    };
    assert_eq!(origin("limits.defaults.turns"), (json!(25), "system:ryeos".to_owned()));
    user.write("config/agent/resilience.yaml", "limits:\n  defaults:\n    turns: 5\n    tokens: 999999999\n");
    assert_eq!(origin("limits.defaults.turns"), (json!(5), "project".to_owned()));
    assert_eq!(origin("limits.defaults.tokens"), (json!(200_000), "system:ryeos".to_owned()));
}
