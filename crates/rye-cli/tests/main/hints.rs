//! Hints that name what is wrong and the next command: caches, names, bundle ids, revoked signers, flat config.

use std::fs;

use rye_engine::{Code, Error};
use serde_json::{Value, json};

use crate::install::{BundleAuthor, install};
use crate::support::{Run, User, run, text};

fn with_cache(user: &User, cache: &std::path::Path, words: &[&str]) -> Run {
    run(user.command().env("XDG_CACHE_HOME", cache).args(words).arg("--json"))
}

#[test]
fn unwritable_cache_is_named_with_its_variable() {
    let user = User::initialized();
    let cache = user.context.path().join("cache-file");
    fs::write(&cache, "").expect("written");
    let maker = BundleAuthor::new();
    let bundle = maker.create("1.0.0");
    let bundle = bundle.to_str().expect("text");
    for words in [&["execute", "tool", "examples/hello"][..], &["install", bundle][..]] {
        let error = with_cache(&user, &cache, words).error(1, "RYE0901");
        let hints = error["hints"].to_string();
        assert!(hints.contains("XDG_CACHE_HOME") && !hints.contains("rye sign"), "{error}");
    }
    let doctor = with_cache(&user, &cache, &["doctor"]).json();
    let findings = doctor["data"]["findings"].as_array().expect("findings").clone();
    assert!(findings.iter().any(|found| found["check"] == "cache" && found["level"] == "error"), "{doctor}");
}

#[test]
fn errors_say_bundle_id() {
    let user = User::initialized();
    for words in [
        &["bundle", "create", "My Bundle", "--version", "1.0.0", "--category", "examples"][..],
        &["bundle", "trust", "a/b"][..],
        &["bundle", "trust", "a b", "--revoke"][..],
        &["uninstall", "a/b"][..],
    ] {
        let error = user.assert_refused(words, 2, "RYE0101");
        assert!(text(&error["error"]).starts_with("invalid bundle id"), "{error}");
        assert!(error["hints"].to_string().contains("team-tools"), "{error}");
    }
}

#[test]
fn non_ascii_names_are_refused() {
    let user = User::initialized();
    user.write("tools/team/Grüße.txt", "x");
    let words = ["bundle", "create", "gifts", "--version", "1.0.0", "--category", "team"];
    let error = user.assert_refused(words, 4, "RYE0605");
    assert!(text(&error["unfit"][0]["reason"]).contains("a-z and A-Z"), "{error}");
}

#[test]
fn bundle_list_names_a_revoked_signer() {
    let maker = BundleAuthor::new();
    let bundle = maker.create("1.0.0");
    let user = User::initialized();
    install(&user, &bundle, &maker, &[]);
    let listed = |command: &mut assert_cmd::Command| -> Value {
        let list = run(command.args(["bundle", "list", "--json"])).json();
        let rows = list["data"]["bundles"].as_array().expect("rows").clone();
        rows.into_iter().find(|row| row["bundle_id"] == "gifts").expect("a row")
    };
    assert_eq!(listed(&mut user.command())["standing"], "installed");
    let other = User::initialized();
    run(other.command().env("RYE_BUNDLE_PATH", &bundle).args(["bundle", "trust", "gifts"]));
    for (user, command) in [(&user, user.command()), (&other, other.command())] {
        let mut command = command;
        command.env("RYE_BUNDLE_PATH", &bundle);
        user.ok(["keys", "revoke", &maker.fingerprint()]);
        let row = listed(&mut command);
        assert_eq!(row["standing"], "revoked", "{row}");
        assert!(text(&row["note"]).contains("is revoked"), "{row}");
    }
}

#[test]
fn quiet_init_prints_no_output() {
    let user = User::new();
    let quiet = user.ok(["-q", "init"]);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    user.ok(["verify", "tool", "examples/hello"]);
}

#[test]
fn flat_config_is_reported() {
    let user = User::initialized();
    user.write("config/resilience.yaml", "limits:\n  defaults:\n    turns: 7\n");
    user.write_user("config/coordination.yaml", "wait_threads:\n  default_timeout: 1\n");
    let all = user.data(["config", "show"]);
    assert_eq!(all["config"]["agent/resilience"]["limits"]["defaults"]["turns"], 7, "{all}");
    assert_eq!((&all["config"]["resilience"], &all["config"]["coordination"]), (&Value::Null, &Value::Null));
    assert_eq!(all["ignored"], json!([]), "{}", all["ignored"]);
    let one = user.data(["config", "show", "resilience"]);
    assert_eq!(one["config"]["agent/resilience"], all["config"]["agent/resilience"]);
    let flat: Vec<String> =
        all["flat"].as_array().expect("a list").iter().map(|row| text(&row["reason"])).collect();
    assert!(
        flat.iter().any(|reason| reason.contains("move it to `.ai/config/agent/resilience.yaml`")),
        "{flat:?}"
    );
    assert!(flat.iter().any(|reason| reason.contains("not read in user space")), "{flat:?}");
    let doctor = user.run(["doctor", "--json"]).json();
    let output: Vec<String> = doctor["data"]["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter(|found| found["check"] == "config")
        .map(|found| text(&found["message"]))
        .collect();
    assert_eq!(output.len(), 2, "{output:?}");
    assert!(
        output.iter().all(|message| !message.contains("ignored") && !message.contains("signed")),
        "{output:?}"
    );
    // What a thread is held to is what is shown.
    user.write("directives/demo/go.md", rye_test::directive("demo", "go", "Goes"));
    user.ok(["sign", "directive", "demo/go"]);
    let planned = user.data(["run", "demo/go", "--dry-run", "--provider", "offline"]);
    assert!(planned.to_string().contains("\"turns\":7"), "{planned}");
}

#[test]
fn agents_learn_which_commands_users_run() {
    let help = User::new().ok(["--help"]).stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names: Vec<&str> = listed
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() > 30 && names.contains(&"store"), "{help}");
    for name in names {
        let hint = format!("see rye {name} something");
        let error = Error::new(Code::NotFound, "not here").hint(hint.clone());
        let said = rye_engine::agent_actions::with_agent_hints(error).hints;
        assert_ne!(said, [hint], "an agent would take `rye {name}` for its own to run");
    }
}
