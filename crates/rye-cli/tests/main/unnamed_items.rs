//! A tool that states no name: signing says which line to add, and what the user signed counts under its id alone.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::support::{User, text};
use crate::tool_support::{execute_data, execute_error, function_text, write_signed_tool};

fn record_path(user: &User) -> PathBuf {
    user.home().join(".ai/config/trust/signed_ids.txt")
}

/// Two signed tools of one category that state no name, and their files.
fn write_pair(user: &User) -> (PathBuf, PathBuf) {
    let one = write_signed_tool(user, "team/one", "py", &function_text("", "return 1"));
    let two = write_signed_tool(user, "team/two", "py", &function_text("", "return 2"));
    (one, two)
}

#[test]
fn unnamed_tool_under_another_id_is_misplaced() {
    let user = User::initialized();
    let (one, two) = write_pair(&user);
    let original = fs::read(&two).expect("a tool");
    fs::copy(&one, &two).expect("copied");
    let refusal = execute_error(&user, "two", &[], 4, "RYE0403");
    assert!(text(&refusal["error"]).contains("`tool:team/one`"), "{refusal}");
    user.assert_refused(["load", "tool", "team/two"], 4, "RYE0403");
    fs::write(&two, original).expect("written");
    assert_eq!(execute_data(&user, "two", &[]), 2);
    // A shebang changes nothing of it.
    let bytes = fs::read(&one).expect("a tool");
    fs::write(&two, [b"#!/usr/bin/env python3\n", &bytes[..]].concat()).expect("written");
    execute_error(&user, "two", &[], 4, "RYE0403");
    user.ok(["sign", "tool", "team/two"]);
    assert_eq!(execute_data(&user, "two", &[]), 1);
    assert_eq!(execute_data(&user, "one", &[]), 1);
}

#[test]
fn every_signed_version_stays_bound() {
    let user = User::initialized();
    let (one, two) = write_pair(&user);
    let old = fs::read(&one).expect("a tool");
    write_signed_tool(&user, "team/one", "py", &function_text("", "return 11"));
    fs::write(&two, old).expect("written");
    execute_error(&user, "two", &[], 4, "RYE0403");
}

#[test]
fn copies_and_configs_are_bound_too() {
    let user = User::initialized();
    write_pair(&user);
    user.ok(["load", "tool", "team/one", "--to", "user"]);
    let copy = user.home().join(".ai/tools/team/one.py");
    fs::copy(&copy, user.home().join(".ai/tools/team/three.py")).expect("copied");
    execute_error(&user, "three", &[], 4, "RYE0403");
    user.write_user("config/agent/limits.yaml", "version: \"1.0.0\"\ncategory: agent\n");
    user.ok(["sign", "config", "agent/limits", "--space", "user"]);
    let config = user.home().join(".ai/config/agent");
    fs::copy(config.join("limits.yaml"), config.join("hooks.yaml")).expect("copied");
    let verified = user.run(["--json", "verify", "config", "agent/hooks"]);
    assert!(verified.stdout.contains("`config:agent/limits`"), "{verified}");
}

#[test]
fn sign_hint_shows_the_name_line() {
    let user = User::initialized();
    let lines = [
        ("py", "__tool_name__ = \"t\""),
        ("sh", "# name: t"),
        ("yaml", "name: \"t\""),
        ("toml", "name = \"t\""),
        ("js", "const __tool_name__ = \"t\";"),
        ("ts", "const __tool_name__ = \"t\";"),
    ];
    for (extension, line) in lines {
        let (_, source) = crate::support::TOOLS
            .into_iter()
            .find(|(known, _)| *known == format!(".{extension}"))
            .expect("a sample");
        let relative = format!("tools/team/t.{extension}");
        user.write(&relative, source);
        let run = user.ok(["sign", "tool", "team/t"]);
        assert!(run.stderr.contains(&format!("add the line: {line}")), "{extension}: {run}");
        user.write(&relative, format!("{line}\n{source}"));
        let run = user.ok(["sign", "tool", "team/t"]);
        assert!(!run.stderr.contains("it has no name"), "{extension}: {run}");
        fs::remove_file(user.project().join(".ai").join(&relative)).expect("removed");
    }
}

#[test]
fn unnamed_tools_run_without_the_record() {
    let user = User::initialized();
    let (one, two) = write_pair(&user);
    let mode = fs::metadata(record_path(&user)).expect("a record").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    fs::remove_file(record_path(&user)).expect("removed");
    assert_eq!(execute_data(&user, "one", &[]), 1);
    // What signed before there was a record is bound by signing it again.
    user.ok(["sign", "tool", "team/*"]);
    fs::copy(&one, &two).expect("copied");
    execute_error(&user, "two", &[], 4, "RYE0403");
}

#[test]
fn changed_record_is_reported_and_replaced() {
    let user = User::initialized();
    let (one, two) = write_pair(&user);
    let text = fs::read_to_string(record_path(&user)).expect("a record");
    for damaged in [text.replace("team/one", "team/two"), "\u{0}junk".to_owned(), String::new()] {
        fs::write(record_path(&user), damaged).expect("written");
        let run = user.ok(["execute", "tool", "team/one"]);
        assert!(run.stderr.contains("signed_ids.txt"), "{run}");
    }
    user.ok(["sign", "tool", "team/one"]);
    fs::copy(&one, &two).expect("copied");
    execute_error(&user, "two", &[], 4, "RYE0403");
}

#[test]
fn tools_of_others_need_no_record() {
    let (maker, user) = (User::initialized(), User::initialized());
    let (one, _) = write_pair(&maker);
    user.ok(["keys".as_ref(), "trust".as_ref(), maker.identity_document().as_os_str()]);
    let target = user.write("tools/team/one.py", fs::read(&one).expect("a tool"));
    fs::copy(&target, target.with_file_name("other.py")).expect("copied");
    assert_eq!(execute_data(&user, "one", &[]), 1);
    assert_eq!(execute_data(&user, "other", &[]), 1);
}
