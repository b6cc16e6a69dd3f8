//! Refusals inside a tool end with the rule and the line to add.

use std::os::unix::net::UnixListener;

use crate::support::{Run, User, run, text};
use crate::tool_support::{write_function, write_function_with, write_shell_tool, write_signed_tool};

/// The hints of a failing tool, as one text.
fn hints(user: &User, name: &str) -> String {
    let run = user.run(["execute", &format!("team/{name}"), "--json"]);
    assert_eq!(run.exit, 1, "{run}");
    run.json()["hints"].to_string()
}

#[test]
fn refused_write_names_the_line_to_add() {
    let user = User::initialized();
    write_function(&user, "writer", "open('/etc/rye-test', 'w')");
    let hints = hints(&user, "writer");
    assert!(hints.contains("to let it write `/etc/rye-test`"), "{hints}");
    assert!(hints.contains(r#"SANDBOX = {\"write\": [\"/etc\"]}"#), "{hints}");
}

#[test]
fn hidden_path_names_the_line_to_add() {
    let user = User::initialized();
    let secret = user.context.write("home/.ssh/id_team", "key");
    write_function(&user, "peeker", &format!("return open('{}').read()", secret.display()));
    let hints = hints(&user, "peeker");
    let line = format!(r#"SANDBOX = {{\"read\": [\"{}\"]}}"#, secret.display());
    assert!(hints.contains("is closed to tools") && hints.contains(&line), "{hints}");
}

#[test]
fn missing_variable_names_the_line_to_add() {
    let user = User::initialized();
    write_function(&user, "reader", "import os\nreturn os.environ['TEAM_TOKEN']");
    let unset = hints(&user, "reader");
    assert!(unset.contains("`TEAM_TOKEN` is not set"), "{unset}");
    assert!(unset.contains(r#"ENV_CONFIG = {\"env\": {\"TEAM_TOKEN\": \"${TEAM_TOKEN}\"}}"#), "{unset}");
    let set = run(user.command().env("TEAM_TOKEN", "x").args(["execute", "team/reader", "--json"]));
    assert!(set.json()["hints"].to_string().contains("`TEAM_TOKEN` is set in your environment"), "{set}");
    write_shell_tool(&user, "strict", "", "set -u\necho \"$TEAM_TOKEN\"");
    let shell = hints(&user, "strict");
    assert!(shell.contains("`TEAM_TOKEN` is not set") && shell.contains("# env_config:"), "{shell}");
    // The line works.
    write_function_with(
        &user,
        "reader",
        "ENV_CONFIG = {\"env\": {\"TEAM_TOKEN\": \"${TEAM_TOKEN}\"}}",
        "import os\nreturn os.environ['TEAM_TOKEN']",
    );
    let allowed = run(user.command().env("TEAM_TOKEN", "x").args(["execute", "team/reader", "--json"]));
    assert_eq!(allowed.json()["data"], "x", "{allowed}");
}

#[test]
fn closed_network_and_sockets_are_explained() {
    let user = User::initialized();
    let connect = "import socket\nsocket.create_connection(('127.0.0.1', 9), 2)";
    write_function_with(&user, "caller", "SANDBOX = {\"network\": False}", connect);
    let network = hints(&user, "caller");
    assert!(network.contains("needs no network") && network.contains(r#"{\"network\": true}"#), "{network}");
    let path = user.context.path().join("service.sock");
    let _listener = UnixListener::bind(&path).expect("a socket");
    let body = format!(
        "import socket\npath = '{0}'\ntry:\n    socket.socket(socket.AF_UNIX).connect(path)\nexcept OSError as error:\n    raise OSError(str(error) + ': ' + path)",
        path.display()
    );
    write_function(&user, "client", &body);
    let socket = hints(&user, "client");
    assert!(socket.contains("is closed to tools") && socket.contains("allow_sockets"), "{socket}");
}

#[test]
fn sibling_import_names_the_file_to_add() {
    let user = User::initialized();
    user.write("tools/team/helper.py", "VALUE = 1\n");
    write_function(&user, "importer", "import helper\nreturn helper.VALUE");
    let hints = hints(&user, "importer");
    assert!(hints.contains("`helper` is beside the tool") && hints.contains("__init__.py"), "{hints}");
    write_function(&user, "relative", "from .helper import VALUE\nreturn VALUE");
    let relative = self::hints(&user, "relative");
    assert!(relative.contains("what it imports") && relative.contains("rye sign tool"), "{relative}");
    // What the hint says works.
    let head = "__version__ = \"1.0.0\"\n__category__ = \"team\"\n__tool_type__ = \"python\"\n__tool_description__ = \"d\"\n";
    user.write("tools/team/__init__.py", head);
    user.write("tools/team/helper.py", format!("{head}VALUE = 1\n"));
    user.ok(["sign", "tool", "team/*", "--yes"]);
    assert_eq!(user.data(["execute", "team/importer"]), 1);
    write_function(&user, "other", "import not_there_at_all");
    let run = user.run(["execute", "team/other", "--json"]);
    assert!(!run.json()["hints"].to_string().contains("beside"), "{run}");
}

#[test]
fn failure_of_a_tool_is_shown_once() {
    let user = User::initialized();
    write_function(&user, "failing", "raise ValueError('broken on purpose')");
    let run = user.run(["execute", "team/failing"]);
    let all = format!("{}{}", run.stdout, run.stderr);
    // Once in the traceback, once as the error.
    assert_eq!(all.matches("ValueError: broken on purpose").count(), 2, "{run}");
    write_function(&user, "facts", "return {'success': False, 'error': 'no', 'left': 3}");
    let run = user.run(["execute", "team/facts"]);
    assert!(run.stderr.contains("\"left\": 3"), "{run}");
    assert_eq!(text(&user.run(["execute", "team/facts", "--json"]).json()["error"]), "no");
}

/// A command whose PATH holds no program.
fn with_empty_path(user: &User, words: &[&str]) -> Run {
    let folder = user.context.path().join("no-programs");
    std::fs::create_dir_all(&folder).expect("a folder");
    run(user.command().env("PATH", folder).args(words))
}

#[test]
fn missing_interpreter_is_named() {
    let user = User::initialized();
    write_function(&user, "adder", "return 1");
    let error = with_empty_path(&user, &["execute", "team/adder", "--json"]).error(1, "RYE0807");
    let expected =
        "tool team/adder: `rye/core/runtimes/python/function` needs `python3`, which was not found";
    assert_eq!(text(&error["error"]), expected);
    let hints = error["hints"].to_string();
    assert!(hints.contains("install `python3`") && hints.contains("no-programs"), "{hints}");
    let doctor = with_empty_path(&user, &["doctor", "--json"]).json();
    let findings = doctor["data"]["findings"].as_array().expect("findings");
    let found = findings.iter().find(|found| found["check"] == "programs").expect("a finding");
    let message = text(&found["message"]);
    assert_eq!(found["level"], "warning");
    assert!(message.starts_with("`rye/core/runtimes/python/function` needs `python3`"), "{message}");
    assert!(message.contains("team/adder"), "{message}");
    let usual = user.run(["doctor", "--json"]).json();
    assert!(!usual["data"]["findings"].to_string().contains("team/adder"), "{usual}");
}

#[test]
fn missing_program_names_its_element() {
    let user = User::initialized();
    user.write(
        "tools/team/absent.yaml",
        "version: \"1.0.0\"\ntool_type: tool\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\nname: absent\n\
         description: Runs what is not there\nconfig: {command: no-such-program}\n",
    );
    user.ok(["sign", "tool", "team/absent"]);
    let error = user.run(["execute", "team/absent", "--json"]).error(1, "RYE0807");
    assert!(text(&error["error"]).contains("`no-such-program`"), "{error}");
    assert!(error["hints"].to_string().contains("`team/absent` names it; looked for in the PATH"), "{error}");
    let doctor = user.run(["doctor", "--json"]).json();
    assert!(doctor["data"]["findings"].to_string().contains("needs `no-such-program`"), "{doctor}");
}

#[test]
fn missing_package_names_the_line_to_add() {
    let user = User::initialized();
    write_function(&user, "fetcher", "import no_such_package_of_rye.part");
    let python = hints(&user, "fetcher");
    assert!(python.contains(r#"DEPENDENCIES = [\"no_such_package_of_rye\"]"#), "{python}");
    let script = "export const __version__ = \"1.0.0\";\nexport const __tool_type__ = \"javascript\";\n\
                  export const __executor_id__ = \"rye/core/runtimes/node/function\";\nexport const __category__ = \"team\";\n\
                  export const __tool_description__ = \"Is run\";\n\n\
                  export async function execute() {\n  await import(\"@rye-none/no-such-package/part.js\");\n}\n";
    write_signed_tool(&user, "team/padder", "js", script);
    let node = hints(&user, "padder");
    assert!(node.contains(r#"export const DEPENDENCIES = [\"@rye-none/no-such-package\"]"#), "{node}");
}

#[test]
fn time_limit_names_where_it_is_set() {
    let user = User::initialized();
    let sleep = "import time\ntime.sleep(600)";
    write_function_with(&user, "slow", "CONFIG = {\"timeout\": 1}", sleep);
    let own = hints(&user, "slow");
    assert!(own.contains("`timeout` in `CONFIG` of the tool `team/slow` itself"), "{own}");
    user.write(
        "tools/team/short.yaml",
        "version: \"1.0.0\"\ntool_type: runtime\nexecutor_id: rye/core/primitives/subprocess\ncategory: team\nname: short\n\
         description: Sleeps\nconfig: {command: /bin/sleep, args: [\"600\"], timeout: 1}\n",
    );
    user.ok(["sign", "tool", "team/short"]);
    let plain = "version: \"1.0.0\"\ntool_type: tool\nexecutor_id: team/short\ncategory: team\nname: plain\ndescription: Sleeps\n";
    write_signed_tool(&user, "team/plain", "yaml", plain);
    let runtime = hints(&user, "plain");
    assert!(runtime.contains("`timeout` of its runtime `team/short`"), "{runtime}");
    assert!(runtime.contains(r#"config: {\"timeout\": 600}"#), "{runtime}");
}

#[test]
fn traceback_names_the_own_file() {
    let user = User::initialized();
    let path = write_function(&user, "broken", "raise ValueError('broken on purpose')");
    let error = user.run(["execute", "team/broken", "--json"]).json();
    let stderr = text(&error["logs"]["stderr"]);
    assert!(stderr.contains(&format!("File \"{}\", line ", path.display())), "{stderr}");
    assert!(!stderr.contains(&user.context.cache().display().to_string()), "{stderr}");
}
