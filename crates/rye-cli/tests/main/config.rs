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

fn ignored_keys(user: &User) -> Vec<String> {
    let data = user.data(["config", "show"]);
    data["ignored"].as_array().expect("ignored").iter().map(|row| text(&row["key"])).collect()
}

#[test]
fn project_overrides_user_overrides_system() {
    let user = User::initialized();
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
fn effective_setting_is_used() {
    let user = User::initialized();
    user.write("config/config.yaml", format!("{HEAD}search:\n  limit: 1\n"));
    assert_eq!(user.search_ids("hello"), ["examples/hello"]);
}

#[test]
fn an_unsigned_project_may_only_tighten_limits() {
    let user = User::initialized();
    user.write("config/config.yaml", format!("{HEAD}items:\n  max_bytes: 2048\n"));
    assert_eq!(setting(&user, "items.max_bytes"), (json!(2048), "project".to_owned()));
    user.write("tools/team/big.py", "#".repeat(4096));
    user.assert_refused(["sign", "tool", "team/big"], 9, "RYE0204");
    user.write("config/config.yaml", format!("{HEAD}items:\n  max_bytes: 99999999\n"));
    assert_eq!(setting(&user, "items.max_bytes").1, "system:ryeos-core");
    assert_eq!(ignored_keys(&user), ["items.max_bytes"]);
}

#[test]
fn signed_project_config_needs_approval() {
    let user = User::initialized();
    user.write("config/config.yaml", format!("{HEAD}integrity:\n  partial_coverage: allow\n"));
    assert_eq!(ignored_keys(&user), ["integrity.partial_coverage"]);
    user.ok(["sign", "config", "config"]);
    assert_eq!(setting(&user, "integrity.partial_coverage"), (json!("allow"), "project".to_owned()));
    user.ok(["trust", "--revoke"]);
    assert_eq!(setting(&user, "integrity.partial_coverage").0, json!("deny"));
}

#[test]
fn unsigned_user_config_cannot_change_trust() {
    let user = User::initialized();
    let bundle = user.context.path().join("none");
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
    let mut keys = ignored_keys(&user);
    keys.sort();
    assert_eq!(keys, ["dev_mode.projects", "integrity.partial_coverage"]);
    user.ok(["sign", "config", "config", "--space", "user"]);
    assert_eq!(setting(&user, "integrity.partial_coverage").0, json!("allow"));
    assert_eq!(ignored_keys(&user), Vec::<String>::new());
}

#[test]
fn ignored_settings_are_reported_with_location() {
    let user = User::initialized();
    user.write("config/config.yaml", format!("{HEAD}search:\n  limit: many\nnonsense: 1\n"));
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert!(
        run.stderr.contains("`search.limit` in project config is ignored")
            && run.stderr.contains("`nonsense` in project config is ignored"),
        "{run}"
    );
    let data = user.data(["config", "show"]);
    assert_eq!(data["ignored"][0]["position"], json!({"line": 4, "column": 10}), "{data}");
    let refusal = user.assert_refused(["sign", "config", "config"], 9, "RYE0301");
    assert_eq!((&refusal["line"], &refusal["column"]), (&json!(4), &json!(10)));
}

#[test]
fn broken_config_does_not_stop_commands() {
    let user = User::initialized();
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
fn missing_config_is_not_found() {
    let user = User::initialized();
    user.assert_refused(["config", "show", "no/such"], 3, "RYE0201");
    user.assert_refused(["config", "show", "../x"], 2, "RYE0101");
}

#[test]
fn color_option_overrides_the_setting() {
    let user = User::initialized();
    user.write_user("config/config.yaml", format!("{HEAD}display:\n  color: always\n"));
    assert!(user.ok(["why", "tool", "examples/hello"]).stdout.contains('\u{1b}'));
    assert!(!user.ok(["why", "tool", "examples/hello", "--color", "never"]).stdout.contains('\u{1b}'));
    let run = run(user.command().env("NO_COLOR", "1").args(["why", "tool", "examples/hello"]));
    assert!(!run.stdout.contains('\u{1b}'), "{run}");
}

#[test]
fn unreadable_config_is_reported_and_skipped() {
    let user = User::initialized();
    let path = user.project().join(".ai/config/config.yaml");
    let outside = user.context.write("outside.yaml", "search:\n  limit: 1\n");
    std::os::unix::fs::symlink(outside, &path).expect("link");
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert!(run.stderr.contains("project config is ignored"), "{run}");
    assert_eq!(setting(&user, "search.limit").0, json!(10));
    std::fs::remove_file(&path).expect("removed");
    std::fs::File::create(&path).expect("made").set_len(1 << 30).expect("a sparse file");
    let run = user.ok(["load", "tool", "examples/hello"]);
    assert!(run.stderr.contains("larger than"), "{run}");
}

#[test]
fn sign_error_locates_values_in_lists() {
    let user = User::initialized();
    let hook = "  - id: mine\n    event: after_stp\n    action: {primary: run}\n    colour: red\n";
    user.write(
        "config/agent/hooks.yaml",
        format!("version: \"1.0.0\"\ncategory: agent\nname: hooks\nhooks:\n{hook}"),
    );
    let refused = user.assert_refused(["sign", "config", "agent/hooks"], 9, "RYE0301");
    let locations: Vec<(String, u64, u64)> = refused["problems"]
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
        assert!(locations.contains(&expected), "{expected:?}: {locations:?}");
    }
}

#[test]
fn thread_settings_show_their_origin() {
    let user = User::initialized();
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
