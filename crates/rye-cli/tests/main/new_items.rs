//! `rye new`, `rye list`, `rye test` and `rye sign --watch`: items that run as soon as they are made.

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::{User, run, text};
use crate::tool_support::{RYE, eventually};

/// A folder with links to the programs of these names, to be the only one on the PATH.
fn path_with(user: &User, programs: &[&str]) -> std::path::PathBuf {
    let folder = user.context.path().join(format!("bin-{}", programs.join("-")));
    fs::create_dir_all(&folder).expect("a folder");
    let path = std::env::var_os("PATH").unwrap_or_default();
    for program in programs {
        let found =
            std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file());
        let found = fs::canonicalize(found.expect("the program")).expect("its file");
        std::os::unix::fs::symlink(found, folder.join(program)).expect("a link");
    }
    folder
}

#[test]
fn new_tools_run_and_pass_tests() {
    let user = User::initialized();
    for language in ["python", "js", "bash"] {
        let id = format!("team/greet-{language}");
        let made = user.data(["new", "tool", &id, "--lang", language]);
        assert_eq!(made["language"], language);
        assert_eq!(user.data(["execute", &id, "name=Ada"])["greeting"], "Hello, Ada!", "{language}");
        let tested = user.data(["test", &id]);
        assert_eq!((&tested["passed"], &tested["failed"]), (&json!(1), &json!(0)), "{tested}");
    }
    let quoted = user.data(["execute", "team/greet-bash", r#"name=A"\d"#]);
    assert_eq!(quoted["greeting"], r#"Hello, A"\d!"#);
    assert_eq!(user.data(["test"])["total"], 3);
    let human = user.ok(["test"]);
    assert!(human.stdout.contains("✓ team/greet-bash greets by name"), "{human}");
    assert!(human.stdout.contains("3 passed, 0 failed"), "{human}");
    assert_eq!(user.data(["verify"])["full"], user.data(["verify"])["checked"]);
}

#[test]
fn new_directive_and_knowledge_are_usable() {
    let user = User::initialized();
    user.ok(["new", "directive", "team/report"]);
    let ran = user.ok(["run", "team/report"]);
    assert!(ran.stdout.contains("date") || ran.stderr.contains("rye_core_system_time"), "{ran}");
    user.ok(["new", "knowledge", "team/naming"]);
    assert!(user.ok(["load", "team/naming"]).stdout.contains("# Naming"));
    user.ok(["new", "tool", "alone"]);
    assert_eq!(user.data(["execute", "alone"])["greeting"], "Hello, world!");
}

#[test]
fn new_bundle_items_can_be_packed() {
    let user = User::initialized();
    let made = user.ok(["new", "bundle", "team-tools", "--lang", "bash"]);
    let command =
        made.stderr.split(" · ").find(|part| part.contains("bundle create")).expect("a command").trim();
    user.ok(command.split(' ').skip(1));
    user.ok(["bundle", "verify", "./team-tools-0.1.0"]);
    assert_eq!(user.data(["execute", "team-tools/hello"])["greeting"], "Hello, world!");
}

#[test]
fn every_new_item_passes_its_own_check() {
    let user = User::initialized();
    // Each type and language, each depth of folders, and names that YAML would read as something else.
    let made = [
        "tool t-python --lang python",
        "tool team/t-js --lang js",
        "tool team/deep/er/t-ts --lang ts",
        "tool 12/t-bash --lang bash",
        "tool 7 --lang bash",
        "directive flow",
        "directive 12/flow",
        "directive team/deep/er/flow",
        "knowledge faq",
        "knowledge 12/12",
        "knowledge team/on",
        "knowledge team/deep/er/Null",
        "knowledge 1.5",
        "knowledge _a-b",
    ];
    for words in made.iter().chain(&["bundle 12-b --lang bash"]) {
        user.ok(["new"].into_iter().chain(words.split(' ')));
    }
    // What is made is signed: to sign it again checks it, and changes nothing.
    let report = user.data(["sign", "*"]);
    let signed = report["signed"].as_array().expect("items");
    for words in made {
        let mut words = words.split(' ');
        let (item_type, id) = (words.next(), words.next());
        let is_item = |row: &&Value| (row["type"].as_str(), row["item_id"].as_str()) == (item_type, id);
        let row = signed.iter().find(is_item).unwrap_or_else(|| panic!("{id:?}: {report}"));
        assert_eq!((&row["unchanged"], row.get("warnings")), (&json!(true), None), "{row}");
    }
    assert_eq!(user.data(["test", "7"])["passed"], 1);
    let verified = user.data(["verify"]);
    assert_eq!(verified["full"], verified["checked"], "{verified}");
}

#[test]
fn refused_new_items_leave_no_file() {
    let user = User::initialized();
    for (id, meant) in [
        ("team-x/my-flow", "rye new directive team-x/my_flow"),
        ("Team/Foo", "rye new directive Team/foo"),
        ("9nine", "rye new directive nine"),
    ] {
        let error = user.assert_refused(["new", "directive", id], 2, "RYE0101");
        assert_eq!(error["hints"], json!([format!("did you mean: {meant}")]), "{error}");
        user.ok(meant.split(' ').skip(1));
    }
    user.assert_refused(["new", "directive", "team/12"], 2, "RYE0101");
    // Of a bundle's items, none is made if one cannot be.
    user.write("knowledge/gifts/readme.md", "taken\n");
    user.assert_refused(["new", "bundle", "gifts", "--lang", "bash"], 2, "RYE0104");
}

#[test]
fn new_never_overwrites() {
    let user = User::initialized();
    user.ok(["new", "tool", "team/greet"]);
    for words in [
        &["new", "tool", "team/greet"][..],
        &["new", "tool", "team/greet", "--lang", "bash"],
        &["new", "tool", "examples/hello"],
        &["new", "knowledge", "examples/style"],
        &["new", "tool", "team/x", "--lang", "cobol"],
        &["new", "directive", "team/x", "--lang", "python"],
        &["new", "gizmo", "team/x"],
    ] {
        user.assert_refused(words, 2, "RYE0104");
    }
    user.assert_refused(["new", "tool", "../x"], 2, "RYE0101");
    user.write("tests/team/other.test.yaml", "tool: team/other\ntests: []\n");
    user.assert_refused(["new", "tool", "team/other"], 2, "RYE0104");
}

#[test]
fn language_is_chosen_from_programs() {
    let user = User::initialized();
    for (programs, id, expected) in [
        (&["python3", "node"][..], "team/one", "python"),
        (&["node"], "team/two", "js"),
        (&["bash"], "team/three", "bash"),
    ] {
        let path = path_with(&user, programs);
        let made = run(user.command().env("PATH", path).args(["--json", "new", "tool", id]));
        assert_eq!(made.json()["data"]["language"], expected, "{made}");
    }
    let empty = path_with(&user, &[]);
    let none = run(user.command().env("PATH", &empty).args(["--json", "new", "tool", "team/none"]));
    none.error(1, "RYE0807");
    let noted = run(user.command().env("PATH", empty).args(["new", "tool", "team/js", "--lang", "js"]));
    assert!(noted.exit == 0 && noted.stderr.contains("node is not on your PATH"), "{noted}");
}

#[test]
fn new_outside_a_project_says_init() {
    let user = User::new();
    let error = user.assert_refused(["new", "tool", "team/greet"], 3, "RYE0202");
    assert!(error["hints"].to_string().contains("rye init"), "{error}");
}

#[test]
fn list_shows_space_and_signature() {
    let user = User::initialized();
    user.ok(["new", "tool", "team/greet"]);
    user.write_user("tools/team/greet.py", rye_test::tool("team", "Hidden"));
    user.write("tools/team/draft.py", rye_test::tool("team", "Not signed"));
    let data = user.data(["list", "tool", "team/*"]);
    let rows: Vec<_> = data["items"].as_array().expect("items").clone();
    let brief: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}", text(&row["item_id"]), text(&row["space"]), text(&row["verdict"])))
        .collect();
    assert_eq!(
        brief,
        ["team/draft project unsigned", "team/greet project full", "team/greet user unsigned"],
        "{data}"
    );
    assert_eq!((&rows[1]["shadows"], &rows[2]["shadowed_by"]), (&json!(["user"]), &json!("project")));
    let human = user.ok(["list", "greet"]);
    assert!(human.stdout.contains("hides user") && human.stdout.contains("by tester"), "{human}");
    let all = user.data(["list", "knowledge", "--space", "all"]);
    assert!(all["items"].as_array().expect("items").len() > 5, "{all}");
    assert_eq!(user.data(["list", "nothing-like-it"])["items"], json!([]));
    user.assert_refused(["list", "gizmo", "x"], 2, "RYE0102");
    user.assert_refused(["list", "team/["], 2, "RYE0104");
}

#[test]
fn failing_test_says_expected_and_found() {
    let user = User::initialized();
    user.ok(["new", "tool", "team/greet", "--lang", "bash"]);
    user.write(
        "tests/team/greet.test.yaml",
        "tool: team/greet\ntests:\n  - name: says goodbye\n    params: {name: Ada}\n    assert:\n      data.greeting: Goodbye\n",
    );
    let run = user.run(["test", "team/greet"]);
    assert_eq!(run.exit, 1, "{run}");
    let expected = r#"data.greeting: expected "Goodbye", found "Hello, Ada!""#;
    assert!(run.stdout.contains("✗ team/greet says goodbye") && run.stdout.contains(expected), "{run}");
    assert_eq!(run.stdout.matches(expected).count() + run.stderr.matches(expected).count(), 1, "{run}");
    user.run(["test", "team/greet", "--json"]).error(1, "RYE0801");
    user.assert_refused(["test", "examples/hello"], 3, "RYE0201");
    let missing = user.assert_refused(["test", "team/gret"], 3, "RYE0201");
    assert!(missing["hints"].to_string().contains("team/greet"), "{missing}");
}

#[test]
fn watched_items_are_signed_after_edits() {
    let user = User::initialized();
    user.ok(["new", "tool", "team/greet", "--lang", "bash"]);
    let mut child = user
        .program(RYE)
        .args(["sign", "team/*", "--watch"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let is_signed = || user.run(["verify", "tool", "team/greet"]).exit == 0;
    let edit = |round: usize| {
        let mut source = user.read("tools/team/greet.sh");
        source.extend_from_slice(format!("# edit {round}\n").as_bytes());
        user.write("tools/team/greet.sh", source);
    };
    // The first edit may come before the folders are watched: it is then signed at the start.
    let are_signed: Vec<bool> = (0..2)
        .map(|round| {
            edit(round);
            eventually(is_signed)
        })
        .collect();
    child.kill().expect("ended");
    child.wait().expect("gone");
    assert_eq!(are_signed, [true, true]);
}

#[test]
fn watched_config_is_signed_after_edits() {
    let user = User::initialized();
    let write = |value: usize| {
        user.write("config/team/deploy.yaml", format!("version: \"1.0.0\"\ncategory: team\nround: {value}\n"))
    };
    write(0);
    user.ok(["sign", "config", "team/deploy"]);
    let mut child = user
        .program(RYE)
        .args(["sign", "config", "team/*", "--watch"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let are_signed: Vec<bool> = (1..3)
        .map(|round| {
            write(round);
            eventually(|| user.run(["verify", "config", "team/deploy"]).exit == 0)
        })
        .collect();
    child.kill().expect("ended");
    child.wait().expect("gone");
    assert_eq!(are_signed, [true, true]);
}

#[test]
fn types_are_inferred_from_ids() {
    let user = User::initialized();
    for words in [vec!["tool:examples/hello"], vec!["tool", "examples/hello"], vec!["examples/hello"]] {
        user.ok([&["lock", "update"], words.as_slice()].concat());
        user.ok([&["lock", "show"], words.as_slice()].concat());
    }
    for words in
        [vec!["directive:examples/greet"], vec!["examples/greet"], vec!["knowledge", "examples/style"]]
    {
        let refused = user.run([&["lock", "update"], words.as_slice()].concat());
        assert!(refused.exit == 2 && refused.stderr.contains("only tools are pinned"), "{refused}");
    }
    user.ok(["load", "examples/style"]);
    user.ok(["why", "examples/hello"]);
    user.ok(["sign", "examples/hello"]);
    user.ok(["sign", "examples/*"]);
    user.ok(["verify", "examples/greet"]);
    assert!(user.ok(["execute", "examples/style"]).stdout.contains("Short sentences"));
    user.write("knowledge/examples/hello.md", rye_test::knowledge("examples", "hello", "Hello", "x"));
    for words in [
        ["load", "examples/hello"],
        ["why", "examples/hello"],
        ["sign", "examples/hello"],
        ["verify", "examples/hello"],
    ] {
        let error = user.assert_refused(words, 2, "RYE0203");
        assert!(error["hints"].to_string().contains("tool examples/hello"), "{error}");
    }
}
