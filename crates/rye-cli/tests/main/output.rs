//! What is printed: one JSON object, no colour without a terminal, no control characters of others, a remedy for
//! every finding.

use std::process::Stdio;

use serde_json::json;

use crate::support::{User, copy_file, run, text};

const ESCAPES: &str = "\u{1b}[31m\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}\u{8}";

/// A user whose project and user space hold every kind of text with terminal sequences in it.
fn user_with_escapes() -> User {
    let user = User::initialized();
    let yaml = "\\e[31m\\e]0;owned\\a\\x9b2J\\u202e\\b";
    user.write(
        "knowledge/team/bad.md",
        format!("```yaml\nname: bad\ntitle: \"wicked {yaml}\"\ndescription: \"d{yaml}\"\nentry_type: reference\ncategory: team\nversion: \"1.0.0\"\n```\n\nwicked {ESCAPES} body\n"),
    );
    user.write(
        "tools/team/bad.py",
        "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__executor_id__ = \"evil\\x1b[31m/\\x9b2J\"\n__category__ = \"team\"\n__tool_description__ = \"wicked \\x1b]0;owned\\x07 \\x9b2J \\u202e\"\n",
    );
    user.write(
        "directives/team/bad.md",
        format!("# wicked {ESCAPES}\n\n```xml\n<directive name=\"bad\" version=\"1.0.0\">\n  <metadata>\n    <description>wicked &#x9b;2J &#x202e;</description>\n    <category>team</category>\n    <author>x</author>\n  </metadata>\n</directive>\n```\n\nDo it {ESCAPES}\n"),
    );
    user
}

#[test]
fn escapes_of_items_never_reach_the_terminal() {
    let user = user_with_escapes();
    for (item_type, id) in [("knowledge", "team/bad"), ("tool", "team/bad"), ("directive", "team/bad")] {
        let run = user.run(["sign", item_type, id]);
        run.assert_plain();
        for words in [
            vec!["load", item_type, id],
            vec!["load", item_type, id, "-v"],
            vec!["why", item_type, id],
            vec!["verify", item_type, id],
            vec!["verify", item_type, id, "-v"],
            vec!["search", "wicked", "--type", item_type],
        ] {
            user.run(&words).assert_plain();
        }
    }
    for words in [
        vec!["search", "wicked"],
        vec!["search", "wicke"],
        vec!["search", "wicked", "--all"],
        vec!["verify"],
        vec!["doctor"],
    ] {
        user.run(&words).assert_plain();
    }
    let found = user.ok(["search", "wicked"]);
    assert!(found.stdout.contains("team/bad"), "{found}");
    let loaded = user.ok(["load", "knowledge", "team/bad"]);
    assert!(loaded.stdout.contains("wicked  body"), "{loaded}");
}

#[test]
fn json_output_escapes_control_characters() {
    let user = user_with_escapes();
    user.ok(["sign", "knowledge", "team/bad"]);
    for words in [
        vec!["load", "knowledge", "team/bad"],
        vec!["search", "wicked"],
        vec!["verify", "--metadata"],
        vec!["search", "\u{1b}[31m\u{9b}2J\u{202e}"],
        vec!["load", "tool", "\u{1b}[31m\u{9b}2J\u{202e}"],
    ] {
        user.run(words.iter().chain(&["--json"])).assert_plain();
    }
    let loaded = user.data(["load", "knowledge", "team/bad"]);
    assert!(text(&loaded["raw"]).contains(ESCAPES), "the text itself is exact");
}

#[test]
fn escapes_in_errors_never_reach_the_terminal() {
    let user = User::initialized();
    let bad = format!("x{ESCAPES}y");
    user.write(
        "tools/team/odd.yaml",
        "version: \"1\\e[31m\\x9b2J\"\ntool_type: x\nexecutor_id: null\ncategory: \"\\e[31m\\x9b2J\\u202e\"\ndescription: x\n",
    );
    user.write("tools/team/worse.yaml", "\"a\\e[31m\\x9b2J\": 1\n\"a\\e[31m\\x9b2J\": 2\n");
    user.write(
        "config/config.yaml",
        "version: \"1.0.0\"\ncategory: \"\"\n\"k\\e[31m\\x9b2J\\u202e\": \"v\\e[31m\"\nsearch:\n  limit: \"\\e[31m\\x9b2J\"\n",
    );
    for words in [
        vec!["sign", "tool", "team/odd"],
        vec!["sign", "tool", "team/worse"],
        vec!["sign", "config", "config"],
        vec!["sign", "tool", &bad],
        vec!["sign", &bad, "x"],
        vec!["sign", ".ai/none/\u{1b}[31m\u{9b}2J"],
        vec!["load", &bad, "x"],
        vec!["load", "tool", &bad],
        vec!["fetch", &bad],
        vec!["explain", &bad],
        vec!["completions", &bad],
        vec!["config", "show"],
        vec!["config", "show", &bad],
        vec!["bundle", "trust", &bad],
        vec!["keys", "show", &bad],
        vec!["keys", "revoke", &bad],
        vec!["keys", "trust", &bad],
        vec!["trust", &bad],
        vec!["search", "(", &bad],
        vec!["search", "x", "--type", &bad],
        vec!["search", "x", "--scope", &bad],
        vec!["verify", "--root", &bad],
        vec!["doctor"],
    ] {
        user.run(&words).assert_plain();
    }
}

#[test]
fn escapes_in_names_never_reach_the_terminal() {
    let (user, other_user) = (User::initialized(), User::initialized());
    let original = std::fs::read_to_string(other_user.identity_document()).expect("document");
    let fingerprint = other_user.fingerprint();
    let evil = original
        .replace("owner = \"tester\"", "owner = \"\\u001B[31m\\u009B2J\\u202E\"")
        .replace("[public_key]", "[scope]\nprojects = [\"\\u001B[31m\\u009B2J\\u202E\"]\n\n[public_key]");
    assert_ne!(evil, original);
    let name = format!("config/keys/trusted/{fingerprint}.toml");
    let document = user.write(&name, evil);
    user.write("config/keys/trusted/0123456789abcdef.toml", original.replace(&fingerprint, "\u{9b}2J"));
    // Files whose names are sequences, where a walk finds them.
    user.write("tools/team/x\u{1b}[31m\u{9b}2J.py", rye_test::tool("team", "x"));
    std::os::unix::fs::symlink("/etc/passwd", user.project().join(".ai/tools/team/y\u{1b}[31m.py"))
        .expect("link");
    for words in [
        vec!["keys", "list"],
        vec!["keys", "show", &fingerprint],
        vec!["doctor"],
        vec!["doctor", "-v"],
        vec!["verify"],
        vec!["verify", "--root", "."],
        vec!["search", "x", "--all"],
        vec!["sign", ".ai/tools/team/x\u{1b}[31m\u{9b}2J.py"],
        vec!["sign", "tool", "team/*"],
    ] {
        user.run(&words).assert_plain();
    }
    user.run(["keys".as_ref(), "trust".as_ref(), document.as_os_str()]).assert_plain();
    user.run(["keys", "list"]).assert_plain();
}

#[test]
fn escapes_in_a_bundle_never_reach_the_terminal() {
    let (user, author) = (User::initialized(), user_with_escapes());
    let folder = user.context.path().join("gifts");
    crate::support::copy_tree(&author.project(), &folder);
    let name = format!(".ai/config/keys/trusted/{}.toml", author.fingerprint());
    copy_file(&author.home().join(&name), &folder.join(&name));
    std::fs::create_dir_all(folder.join(".ai/bundles/gifts")).expect("folder");
    std::fs::write(
        folder.join(".ai/bundles/gifts/manifest.yaml"),
        "bundle:\n  id: \"\\e[31m\\x9b2J\"\n  version: \"\\e[31m\\x9b2J\"\n  categories: [\"\\e[31m\\x9b2J\"]\n",
    )
    .expect("written");
    user.write_user(
        "config/config.yaml",
        format!("version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  paths: [\"{}\"]\n", folder.display()),
    );
    for words in [
        vec!["bundle", "list"],
        vec!["verify", "--root", folder.to_str().expect("text")],
        vec!["bundle", "trust", "gifts"],
        vec!["bundle", "list"],
        vec!["doctor"],
        vec!["search", "wicked"],
    ] {
        user.run(&words).assert_plain();
    }
}

#[test]
fn usage_error_is_json_with_json_flag() {
    let user = User::new();
    for words in [
        vec!["--json"],
        vec!["--json", "nonsense"],
        vec!["load", "--json"],
        vec!["load", "tool", "a", "b", "--json"],
        vec!["search", "--json"],
        vec!["search", "x", "--limit", "many", "--json"],
        vec!["--json", "--color", "purple", "doctor"],
        vec!["keys", "--json"],
        vec!["verify", "tool", "x", "--root", ".", "--json"],
        vec!["--json", "-v", "-q", "doctor"],
    ] {
        let run = user.run(&words);
        let answer = run.error(2, "RYE0104");
        assert_eq!(run.stdout.lines().count(), 1, "{run}");
        assert_eq!(run.stderr, "", "{run}");
        let message = text(&answer["error"]);
        assert!(!message.contains("A signed, portable") && !message.ends_with(':'), "{message}");
    }
    let human = user.run(["nonsense"]);
    assert_eq!((human.exit, human.stdout.as_str()), (2, ""), "{human}");
    assert!(human.stderr.contains("Usage"), "{human}");
}

#[test]
fn help_and_version_go_to_stdout() {
    let user = User::new();
    for words in [vec!["--help"], vec!["--version"], vec!["search", "--help"], vec!["keys", "--help"]] {
        let run = user.ok(&words);
        assert!(run.stdout.contains("rye") && run.stderr.is_empty(), "{run}");
    }
}

#[test]
fn every_json_response_is_one_line() {
    let user = User::initialized();
    for (words, item_type, item_id) in [
        (vec!["search", "hello"], json!(null), json!(null)),
        (vec!["load", "tool", "examples/hello"], json!("tool"), json!("examples/hello")),
        (vec!["why", "tool", "examples/hello"], json!("tool"), json!("examples/hello")),
        (vec!["sign", "tool", "examples/hello"], json!("tool"), json!("examples/hello")),
        (vec!["verify"], json!(null), json!(null)),
        (vec!["keys", "list"], json!(null), json!(null)),
        (vec!["config", "show"], json!(null), json!(null)),
        (vec!["bundle", "list"], json!(null), json!(null)),
        (vec!["doctor"], json!(null), json!(null)),
        (vec!["explain", "RYE0404"], json!("error"), json!("RYE0404")),
    ] {
        let run = user.ok(words.iter().chain(&["--json"]));
        assert_eq!(run.stdout.lines().count(), 1, "{run}");
        assert_eq!(run.stderr, "", "{run}");
        let answer = run.json();
        assert_eq!(
            (&answer["status"], &answer["type"], &answer["item_id"]),
            (&json!("success"), &item_type, &item_id),
            "{run}"
        );
        assert!(answer["data"].is_object(), "{run}");
    }
    let search = user.data(["search", "hello"]);
    for key in [
        "type",
        "item_id",
        "space",
        "score",
        "title",
        "description",
        "version",
        "signed",
        "coverage",
        "shadows",
    ] {
        assert!(!search["results"][0][key].is_null(), "{key}: {search}");
    }
    assert!(search["took_ms"].is_number());
    let verify = user.data(["verify"]);
    for key in ["checked", "full", "partial", "unsigned", "tampered", "misplaced", "untrusted", "revoked"] {
        assert!(verify[key].is_u64(), "{key}: {verify}");
    }
    for key in ["path", "type", "item_id", "verdict", "coverage", "fingerprint"] {
        assert!(verify["items"][0][key].is_string(), "{key}: {verify}");
    }
}

#[test]
fn color_needs_a_terminal_or_a_flag() {
    let user = User::initialized();
    let words = ["why", "tool", "examples/hello"];
    assert!(!user.ok(words).stdout.contains('\u{1b}'));
    assert!(user.ok(["--color", "always"].iter().chain(&words)).stdout.contains('\u{1b}'));
    assert!(!user.ok(["--color", "never"].iter().chain(&words)).stdout.contains('\u{1b}'));
    let refused = run(user.command().env("NO_COLOR", "1").args(["--color", "auto"]).args(words));
    assert!(!refused.stdout.contains('\u{1b}'), "{refused}");
    let json = user.ok(["--color", "always", "--json"].iter().chain(&words));
    assert!(!json.stdout.contains('\u{1b}'), "{json}");
    let error = user.run(["--color", "always", "load", "tool", "no/such"]);
    assert!(error.stderr.contains('\u{1b}') && error.stdout.is_empty(), "{error}");
    run(user.command().env("NO_COLOR", "1").args(["load", "tool", "no/such"])).assert_plain();
}

#[test]
fn closed_pipe_is_not_an_error() {
    let user = User::initialized();
    user.write(
        "knowledge/team/long.md",
        rye_test::knowledge("team", "long", "Long", &"line\n".repeat(200_000)),
    );
    user.ok(["sign", "knowledge", "team/long"]);
    for line in [
        "load knowledge team/long",
        "load knowledge team/long --json",
        "search '*' --all",
        "doctor",
        "config show",
        "explain RYE0404",
        "completions bash",
        "--help",
    ] {
        let script = format!("set -o pipefail; {} {line} | true", env!("CARGO_BIN_EXE_rye"));
        let output = user.program("bash").arg("-c").arg(script).output().expect("bash");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""), "{line}");
    }
    // No one reads errors either.
    let mut command = user.program("bash");
    let script = format!("exec 2>&-; {} load tool no/such", env!("CARGO_BIN_EXE_rye"));
    let status = command.arg("-c").arg(script).stdin(Stdio::null()).status().expect("bash");
    assert_eq!(status.code(), Some(3));
}

#[test]
fn failed_write_is_an_error() {
    let user = User::initialized();
    for line in ["load tool examples/hello", "search hello --json", "load tool no/such --json", "doctor"] {
        let script = format!("{} {line} >/dev/full", env!("CARGO_BIN_EXE_rye"));
        let output = user.program("bash").arg("-c").arg(script).output().expect("bash");
        assert_eq!(output.status.code(), Some(1), "{line}");
    }
}

#[test]
fn every_doctor_problem_has_a_remedy() {
    let (user, other_user) = (user_with_escapes(), User::initialized());
    // As much trouble as fits into one setup.
    user.signed_tool("gone", "x");
    let path = user.signed_tool("edited", "x");
    std::fs::write(&path, std::fs::read_to_string(&path).expect("read") + "#\n").expect("written");
    copy_file(&path, &user.project().join(".ai/tools/other/edited.py"));
    copy_file(
        &user.project().join(".ai/tools/team/gone.py"),
        &user.project().join(".ai/tools/other/gone.py"),
    );
    copy_file(&other_user.signed_tool("theirs", "x"), &user.project().join(".ai/tools/team/theirs.py"));
    copy_file(
        &other_user.identity_document(),
        &user.project().join(format!(".ai/config/keys/trusted/{}.toml", other_user.fingerprint())),
    );
    user.write("config/keys/trusted/0123456789abcdef.toml", "x");
    user.write("config/config.yaml", "nonsense: 1\n");
    user.write_user(
        "config/config.yaml",
        "version: \"1.0.0\"\ncategory: \"\"\nbundles:\n  paths: [/no/such, relative]\n",
    );
    user.write_user("config/trust/bundles.yaml", "bundles: []\n");
    user.write("tools/team/two.py", rye_test::tool("team", "x"));
    user.write("tools/team/two.sh", "# x\n");
    user.write_user("tools/team/two.py", rye_test::tool("team", "x"));
    std::os::unix::fs::symlink("/etc/passwd", user.project().join(".ai/tools/team/link.py")).expect("link");
    let revoked = User::initialized();
    user.ok(["keys".as_ref(), "trust".as_ref(), revoked.public_key().as_os_str()]);
    user.ok(["keys", "revoke", &revoked.fingerprint()]);
    let run = run(user.command().env("RYE_DEV_MODE", "1").args(["doctor", "--json"]));
    let answer = run.error(1, "RYE0701");
    let findings = answer["data"]["findings"].as_array().expect("findings");
    assert!(findings.len() > 15, "{answer}");
    for finding in findings {
        let has_remedy = finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty());
        assert!(has_remedy || finding["level"] == "ok", "{finding}");
    }
    let errors = findings.iter().filter(|finding| finding["level"] == "error").count();
    assert_eq!(answer["data"]["errors"], errors);
}

#[test]
fn healthy_setup_has_no_problems() {
    let user = User::initialized();
    let data = user.data(["doctor"]);
    assert_eq!((&data["errors"], &data["warnings"]), (&json!(0), &json!(0)), "{data}");
    let human = user.ok(["doctor"]);
    assert!(human.stdout.contains("0 errors, 0 warnings"), "{human}");
}

#[test]
fn doctor_works_without_setup() {
    let user = User::new();
    let before = user.snapshot();
    let data = user.data(["doctor"]);
    assert!(data["warnings"].as_u64() > Some(0), "{data}");
    assert_eq!(before, user.snapshot());
}

#[test]
fn every_error_code_is_explained() {
    let user = User::new();
    for code in ["RYE0101", "rye0205", "404", "0901"] {
        let run = user.ok(["explain", code]);
        assert!(run.stdout.starts_with("# RYE0"), "{run}");
    }
    user.assert_refused(["explain", "RYE9999"], 3, "RYE0201");
}

#[test]
fn completions_include_live_ids() {
    let user = User::initialized();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(user.ok(["completions", shell]).stdout.contains("rye"), "{shell}");
    }
    user.assert_refused(["completions", "tcsh"], 2, "RYE0104");
    let run = run(user
        .command()
        .env("COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "3")
        .env("_CLAP_IFS", "\n")
        .args(["--", "rye", "load", "tool", "exam"]));
    assert!(run.stdout.lines().any(|line| line == "examples/hello"), "{run}");
}

#[test]
fn quiet_and_verbose_affect_only_stderr() {
    let user = User::initialized();
    let plain = user.ok(["load", "tool", "examples/hello"]);
    let quiet = user.ok(["load", "tool", "examples/hello", "-q"]);
    let verbose = user.ok(["load", "tool", "examples/hello", "-v"]);
    assert_eq!((&plain.stdout, &plain.stdout), (&quiet.stdout, &verbose.stdout));
    assert!(verbose.stderr.contains("full") && quiet.stderr.is_empty(), "{verbose}");
}
