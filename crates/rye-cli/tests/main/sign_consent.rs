//! What `rye sign` signs without being told its name: what the user signed before, and nothing that asks for more.

use std::fs;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::support::{User, run, text};
use crate::tool_support::{RYE, eventually, function_text, write_shell_tool};

const WIDE: &str = "SANDBOX = {'write': ['~/.bashrc']}";

/// Answers the question of `rye sign` at a terminal of its own; prints what was seen.
const AT_A_TERMINAL: &str = r#"
import json, os, pty, select, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], *sys.argv[3:]])
seen, answered, end = b'', False, time.time() + 60
while time.time() < end:
    if select.select([terminal], [], [], 0.1)[0]:
        try:
            read = os.read(terminal, 65536)
        except OSError:
            break
        if not read:
            break
        seen += read
    if b'[y/N]' in seen and not answered:
        answered = True
        os.write(terminal, sys.argv[2].encode() + b'\n')
status = os.waitpid(pid, 0)[1]
print(json.dumps({'exit': os.waitstatus_to_exitcode(status), 'seen': seen.decode(), 'asked': answered}))
"#;

fn at_a_terminal(user: &User, answer: &str, words: &[&str]) -> Value {
    let mut command = user.program("python3");
    command.args(["-c", AT_A_TERMINAL, RYE, answer]).args(words).env("NO_COLOR", "1");
    let output = command.output().expect("python3");
    serde_json::from_slice(&output.stdout).expect("what was seen")
}

/// An unsigned tool, as another tool may have left it.
fn plant(user: &User, name: &str, metadata: &str) {
    user.write(&format!("tools/team/{name}.py"), function_text(metadata, "return 1"));
}

fn is_signed(user: &User, name: &str) -> bool {
    user.run(["verify", "tool", &format!("team/{name}")]).exit == 0
}

fn append(user: &User, name: &str, line: &str) {
    let mut source = user.read(&format!("tools/team/{name}.sh"));
    source.extend_from_slice(line.as_bytes());
    user.write(&format!("tools/team/{name}.sh"), source);
}

/// Adds rules to a Python tool, which keeps its signature line.
fn append_wide(user: &User, name: &str) {
    let path = format!("tools/team/{name}.py");
    let source = String::from_utf8(user.read(&path)).expect("text");
    user.write(&path, format!("{source}\n{WIDE}\n"));
}

struct Watch {
    child: Child,
    log: std::path::PathBuf,
}

impl Watch {
    fn start(user: &User) -> Self {
        let log = user.context.path().join("watch.log");
        let child = user
            .program(RYE)
            .args(["sign", "team/*", "--watch"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).expect("a log"))
            .spawn()
            .expect("started");
        let watch = Self { child, log };
        assert!(eventually(|| watch.said("press Ctrl-C")), "it watches");
        watch
    }

    fn said(&self, words: &str) -> bool {
        fs::read_to_string(&self.log).is_ok_and(|text| text.contains(words))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.child.kill().expect("ended");
        self.child.wait().expect("gone");
    }
}

#[test]
fn watch_signs_edits_of_signed_items_only() {
    let user = User::initialized();
    write_shell_tool(&user, "ok", "", "echo 1");
    let watch = Watch::start(&user);
    plant(&user, "evil", WIDE);
    plant(&user, "plain", "");
    for name in ["evil", "plain"] {
        assert!(eventually(|| watch.said(&format!("rye sign tool team/{name}"))), "{name} is named");
    }
    append(&user, "ok", "# an edit\n");
    assert!(eventually(|| is_signed(&user, "ok")));
    assert!(!is_signed(&user, "evil") && !is_signed(&user, "plain"));
    // What the user signs meanwhile is theirs, and is signed again after an edit.
    user.ok(["sign", "tool", "team/plain"]);
    assert!(eventually(|| watch.said("watching tool:team/plain")));
    plant(&user, "plain", "# an edit");
    assert!(eventually(|| is_signed(&user, "plain")));
    append_wide(&user, "plain");
    assert!(eventually(|| watch.said("tool:team/plain is not signed: it asks for more")));
    assert!(watch.said("write: ~/.bashrc") && !is_signed(&user, "plain"));
    assert!(!is_signed(&user, "evil"));
}

#[test]
fn watch_does_not_sign_wider_edits() {
    let user = User::initialized();
    write_shell_tool(&user, "ok", "", "echo 1");
    let watch = Watch::start(&user);
    for (number, wider) in [
        "sandbox: {\"read\": [\"~/notes\"]}",
        "env_config: {\"env\": {\"TOKEN\": \"${TOKEN}\"}}",
        "env_config: {\"secrets\": [\"KEY\"]}",
        "dependencies: [\"left==1.0\"]",
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("wide{number}");
        write_shell_tool(&user, &name, "", "echo 1");
        let source = String::from_utf8(user.read(&format!("tools/team/{name}.sh"))).expect("text");
        let wide =
            source.replacen("# description: Is run\n", &format!("# description: Is run\n# {wider}\n"), 1);
        assert_ne!(source, wide);
        user.write(&format!("tools/team/{name}.sh"), wide);
        assert!(eventually(|| watch.said(&format!("rye sign tool team/{name}"))), "{wider}");
        assert!(!is_signed(&user, &name), "{wider}");
    }
}

#[test]
fn globs_sign_nothing_new_that_asks_for_more() {
    let user = User::initialized();
    write_shell_tool(&user, "ok", "", "echo 1");
    append(&user, "ok", "# an edit\n");
    plant(&user, "plain", "");
    plant(&user, "evil", WIDE);
    for words in [&["sign", "tool", "team/*"][..], &["sign", "team/*"]] {
        let refused = run(user.command().arg("--json").args(words)).error(2, "RYE0105");
        let held = &refused["data"]["held"];
        assert_eq!((held.as_array().map(Vec::len), &held[0]["item"]), (Some(1), &json!("tool:team/evil")));
        assert_eq!(held[0]["asks"], json!(["sandbox: write: ~/.bashrc"]));
        assert_eq!(held[0]["command"], "rye sign tool team/evil");
    }
    assert!(is_signed(&user, "ok") && is_signed(&user, "plain") && !is_signed(&user, "evil"));
    // A shell that expands a pattern names what is there, too.
    let folder = user.project().join(".ai/tools/team");
    let paths = ["evil.py", "plain.py"].map(|name| folder.join(name).display().to_string());
    user.assert_refused(["sign", &paths[0], &paths[1]], 2, "RYE0105");

    // By its name it is signed, and what that means is said.
    let named = user.ok(["sign", "tool", "team/evil"]);
    assert!(named.stdout.contains("asks for sandbox: write: ~/.bashrc"), "{named}");
    plant(&user, "evil", "SANDBOX = {'write': ['~/.bashrc', '~/.profile']}");
    let refused = user.assert_refused(["sign", "tool", "team/*"], 2, "RYE0105");
    assert!(refused["data"]["held"][0]["asks"].to_string().contains("~/.profile"), "{refused}");
    let signed = user.ok(["sign", "tool", "team/*", "--yes"]);
    assert!(signed.stdout.contains("tool:team/evil") && signed.stdout.contains("~/.profile"), "{signed}");
    assert!(is_signed(&user, "evil"));
}

#[test]
fn foreign_lines_make_no_earlier_version() {
    let user = User::initialized();
    write_shell_tool(&user, "ok", "sandbox: {\"write\": [\"~/.bashrc\"]}", "echo 1");
    let line = String::from_utf8(user.read("tools/team/ok.sh")).expect("text");
    let line = line.lines().find(|line| line.contains("rye:signed")).expect("a signature").to_owned();
    // The user's own line of another item, before a text that it does not fit.
    plant(&user, "evil", WIDE);
    let evil = String::from_utf8(user.read("tools/team/evil.py")).expect("text");
    user.write("tools/team/evil.py", format!("{line}\n{evil}"));
    user.assert_refused(["sign", "tool", "team/*"], 2, "RYE0105");
    assert!(!is_signed(&user, "evil"));
}

#[test]
fn globs_ask_at_a_terminal() {
    let user = User::initialized();
    write_shell_tool(&user, "ok", "", "echo 1");
    plant(&user, "plain", "");
    plant(&user, "evil", WIDE);
    let seen = at_a_terminal(&user, "n", &["sign", "tool", "team/*"]);
    assert_eq!((&seen["asked"], &seen["exit"]), (&json!(true), &json!(2)), "{seen}");
    for words in ["tool:team/evil", "tool:team/plain", "write: ~/.bashrc", "sign 2 items"] {
        assert!(text(&seen["seen"]).contains(words), "{words}: {seen}");
    }
    assert!(!is_signed(&user, "plain") && !is_signed(&user, "evil"));
    let seen = at_a_terminal(&user, "y", &["sign", "tool", "team/*"]);
    assert_eq!((&seen["asked"], &seen["exit"]), (&json!(true), &json!(0)), "{seen}");
    assert!(is_signed(&user, "plain") && is_signed(&user, "evil"));
    // Nothing is asked about what is signed, or edited and asks for no more.
    append(&user, "ok", "# an edit\n");
    let seen = at_a_terminal(&user, "n", &["sign", "tool", "team/*"]);
    assert_eq!((&seen["asked"], &seen["exit"]), (&json!(false), &json!(0)), "{seen}");
    assert!(is_signed(&user, "ok"));
}

/// A test file that another tool may have left.
fn plant_test(user: &User, parameters: &str) {
    let tests = format!("tool: team/deploy\ntests:\n  - name: case\n    params: {parameters}\n");
    user.write("tests/z.test.yaml", tests);
}

fn has_deployed(user: &User) -> bool {
    let file = user.project().join("deployed.txt");
    let has_deployed = file.exists();
    if has_deployed {
        fs::remove_file(file).expect("removed");
    }
    has_deployed
}

#[test]
fn planted_test_files_run_after_a_yes_only() {
    let user = User::initialized();
    let secret = "# env_config: {\"env\": {\"DEPLOY_TOKEN\": \"${DEPLOY_TOKEN:-none}\"}}";
    write_shell_tool(&user, "deploy", secret, "echo x > deployed.txt; echo '{}'");
    plant_test(&user, "{}");
    for words in [&["test"][..], &["test", "team/deploy"], &["execute", "rye/dev/test_runner"], &["ci"]] {
        let refused = run(user.command().arg("--json").args(words));
        assert!(
            refused.exit != 0 && refused.stdout.contains("rye test --file z.test.yaml --yes"),
            "{refused}"
        );
        assert!(!has_deployed(&user), "{words:?}");
    }
    let seen = at_a_terminal(&user, "n", &["test"]);
    assert!(text(&seen["seen"]).contains("new test file z.test.yaml"), "{seen}");
    assert!(seen["asked"] == true && !has_deployed(&user), "{seen}");
    user.ok(["test", "--yes"]);
    assert!(has_deployed(&user));
    // The user has run it as it is.
    user.ok(["test"]);
    assert!(has_deployed(&user));
    plant_test(&user, "{to: production}");
    let seen = at_a_terminal(&user, "n", &["test"]);
    assert!(text(&seen["seen"]).contains("changed test file z.test.yaml"), "{seen}");
    assert!(!has_deployed(&user));
}

#[test]
fn test_files_of_plain_tools_are_named() {
    let user = User::initialized();
    write_shell_tool(&user, "deploy", "", "echo x > deployed.txt; echo '{}'");
    plant_test(&user, "{}");
    let first = user.ok(["test"]);
    assert!(
        first.stderr.contains("new test file z.test.yaml (team/deploy)") && has_deployed(&user),
        "{first}"
    );
    let second = user.ok(["test"]);
    assert!(!second.stderr.contains("test file"), "{second}");
    plant_test(&user, "{a: 1}");
    assert!(user.ok(["test"]).stderr.contains("changed test file"));
}
