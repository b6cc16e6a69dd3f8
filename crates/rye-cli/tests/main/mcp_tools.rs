//! Tools of foreign MCP servers, from the server item to the answer: signed, pinned, confined, ended.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::support::{Run, User, run, text};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../rye-mcp/tests/fixtures/server.py");

/// The item of the stdio server `mcp/servers/fake`, whose mode is in a variable that the item names; `more` is YAML
/// below `config`, `whole` YAML beside it.
fn item(mode: &str, more: &str, whole: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: mcp-server\nexecutor_id: null\ncategory: mcp/servers\nname: fake\n\
         description: A fake\n{whole}config:\n  transport: stdio\n  command: python3\n  \
         args: [\"{SCRIPT}\", \"${{FAKE_MODE:-{mode}}}\"]\n{more}"
    )
}

/// A user with this server item, not signed yet.
fn user_with_unsigned_server(item: &str) -> (User, PathBuf) {
    let user = User::initialized();
    let path = user.write("tools/mcp/servers/fake.yaml", item);
    (user, path)
}

/// A user with this server item, signed.
fn user_with_server(item: &str) -> User {
    let (user, _) = user_with_unsigned_server(item);
    user.ok(["sign", "tool", "mcp/servers/fake"]);
    user
}

/// A call of the server's tool without an item for it.
fn connect(user: &User, tool: &str, arguments: &Value, variables: &[(&str, &str)]) -> Run {
    let mut command = user.command();
    command.envs(variables.iter().copied()).args(["--json", "execute", "rye/mcp/connect", "server=fake"]);
    run(command.arg(format!("tool={tool}")).arg(format!("arguments={arguments}")))
}

/// What a tool answered that must have worked.
fn expect_data(run: &Run) -> Value {
    assert_eq!(run.exit, 0, "{run}");
    run.json()["data"].clone()
}

/// A server on the loopback network, ended when dropped.
struct HttpServer {
    port: u16,
    child: Child,
}

impl HttpServer {
    fn start(mode: &str) -> Self {
        let mut child = Command::new("python3")
            .args([SCRIPT, mode, "--http"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut line).expect("a port");
        Self { port: line.trim().parse().expect("a port"), child }
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Processes that have this in their environment.
fn processes_with_mark(mark: &str) -> Vec<PathBuf> {
    let processes =
        std::fs::read_dir("/proc").expect("processes").map(|entry| entry.expect("an entry").path());
    processes
        .filter(|folder| {
            let environment = std::fs::read(folder.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|pair| pair == format!("MARK={mark}").as_bytes())
        })
        .collect()
}

#[test]
fn server_tools_become_items() {
    let user = User::initialized();
    let arguments = format!("args=[\"{SCRIPT}\", \"plain\"]");
    let added = user.data([
        "execute",
        "rye/mcp/manager",
        "action=add",
        "server=fake",
        "transport=stdio",
        "command=python3",
        &arguments,
    ]);
    assert_eq!(
        (&added["written"], &added["signed"]),
        (&json!(".ai/tools/mcp/servers/fake.yaml"), &json!(false))
    );
    user.ok(["sign", "tool", "mcp/servers/fake"]);

    let found = user.data(["execute", "rye/mcp/discover", "server=fake"]);
    assert_eq!((&found["tool_count"], &found["pin"]), (&json!(8), &json!({"state": "new"})));
    let answer = expect_data(&connect(&user, "add", &json!({"a": 1, "b": 2}), &[]));
    assert_eq!(answer["structured"], json!({"sum": 3}));
    let listed = user.data(["execute", "rye/mcp/manager", "action=list"]);
    let row = &listed["servers"][0];
    assert_eq!(
        (&listed["count"], &row["id"], &row["space"], &row["state"], &row["pin"]["tool_count"]),
        (&json!(1), &json!("mcp/servers/fake"), &json!("project"), &json!("verified"), &json!(8))
    );

    let made = user.data(["execute", "rye/mcp/manager", "action=generate", "server=fake"]);
    assert_eq!(made["tool_count"], 8);
    user.assert_refused(["execute", "mcp/fake/add", "a=1", "b=2"], 4, "RYE0401");
    user.ok(["sign", "tool", "mcp/fake/*", "--yes"]);
    assert_eq!(user.data(["execute", "mcp/fake/add", "a=1", "b=2"]), json!({"sum": 3}));
    let wrong = user.assert_refused(["execute", "mcp/fake/add", "a=1", "b=two"], 2, "RYE0106");
    assert_eq!(wrong["violations"][0]["path"], "$.b");
    let failed = run(user.command().args(["--json", "execute", "mcp/fake/fails"])).error(1, "RYE0801");
    assert_eq!(failed["error"], "no such row");

    // What is already there and says the same keeps its signature.
    let again = user.data(["execute", "rye/mcp/manager", "action=refresh", "server=fake"]);
    assert_eq!((&again["written"], again["unchanged"].as_array().map(Vec::len)), (&json!([]), Some(8)));
    let removed = user.data(["execute", "rye/mcp/manager", "action=remove", "server=fake"]);
    assert_eq!(removed["removed"].as_array().map(Vec::len), Some(9));
}

#[test]
fn project_cannot_replace_the_server_of_a_user_tool() {
    let (user, server) = user_with_unsigned_server(&item("plain", "", ""));
    user.ok(["sign", "tool", "mcp/servers/fake"]);
    user.data(["execute", "rye/mcp/manager", "action=generate", "server=fake"]);
    for path in ["tools/mcp/servers/fake.yaml", "tools/mcp/fake/add.yaml"] {
        user.write_user(path, user.read(path));
    }
    for id in ["mcp/servers/fake", "mcp/fake/add"] {
        user.ok(["sign", "tool", id, "--space", "user", "--yes"]);
    }
    std::fs::remove_dir_all(user.project().join(".ai/tools/mcp/fake")).expect("removed");
    std::fs::write(&server, item("plain", "", "").replace("command: python3", "command: \"false\""))
        .expect("changed");
    user.ok(["sign", "tool", "mcp/servers/fake"]);
    assert_eq!(user.data(["execute", "mcp/fake/add", "a=1", "b=2"]), json!({"sum": 3}));
    // The caller names the project's.
    assert_ne!(connect(&user, "add", &json!({"a": 1, "b": 2}), &[]).exit, 0);
}

#[test]
fn unsigned_or_changed_server_is_not_started() {
    let (user, path) = user_with_unsigned_server(&item("plain", "", ""));
    let refused = user.assert_refused(["execute", "rye/mcp/discover", "server=fake"], 4, "RYE0401");
    assert_eq!(refused["path"], json!(path.display().to_string()));
    user.assert_refused(["execute", "rye/mcp/manager", "action=status", "server=fake"], 4, "RYE0401");
    user.ok(["sign", "tool", "mcp/servers/fake"]);
    let signed = std::fs::read_to_string(&path).expect("the item");
    std::fs::write(&path, signed.replace("command: python3", "command: sh")).expect("changed");
    user.assert_refused(["execute", "rye/mcp/discover", "server=fake"], 4, "RYE0402");
    user.assert_refused(["execute", "rye/mcp/discover", "server=none"], 3, "RYE0201");
    // A tool is not a server.
    user.assert_refused(["execute", "rye/mcp/discover", "server=examples/hello"], 9, "RYE0315");
}

#[test]
fn changed_tools_are_refused_until_accepted() {
    let user = user_with_server(&item("plain", "", ""));
    let sum = |run: &Run| expect_data(run)["structured"].clone();
    let arguments = json!({"a": 1, "b": 2});
    assert_eq!(sum(&connect(&user, "add", &arguments, &[])), json!({"sum": 3}));

    let changed = [("FAKE_MODE", "changed")];
    let refused = connect(&user, "add", &arguments, &changed).error(5, "RYE0806");
    assert!(text(&refused["error"]).contains("tool `add` has another description"), "{refused}");
    assert!(text(&refused["error"]).contains("action=accept server=mcp/servers/fake"), "{refused}");

    // A file that a test reads cannot accept it.
    user.write(
        "tests/accept.test.yaml",
        "tool: rye/mcp/manager\ntests:\n  - name: accepts\n    params: {action: accept, server: fake}\n",
    );
    user.write(
        "tools/team/tests.yaml",
        "version: \"1.0.0\"\ntool_type: native\nexecutor_id: rye/core/primitives/native\ncategory: team\nname: tests\n\
         description: Runs tests\nconfig: {function: dev.test_runner}\n",
    );
    user.ok(["sign", "tool", "team/tests"]);
    let mut command = user.command();
    let tests = run(command.envs(changed).args(["--json", "execute", "team/tests"]));
    assert_eq!(tests.exit, 1, "{tests}");
    assert!(tests.stdout.contains("you have not run this file as it is"), "{tests}");
    connect(&user, "add", &arguments, &changed).error(5, "RYE0806");

    let mut command = user.command();
    let accept = ["--json", "execute", "rye/mcp/manager", "action=accept", "server=fake"];
    let accepted = expect_data(&run(command.envs(changed).args(accept)));
    assert_eq!(accepted["before"]["state"], "changed");
    assert_eq!(sum(&connect(&user, "add", &arguments, &changed)), json!({"sum": 3}));
    connect(&user, "add", &arguments, &[]).error(5, "RYE0806");
}

#[test]
fn http_server_needs_an_allowed_address() {
    let web = HttpServer::start("plain");
    let (user, path) = user_with_unsigned_server("");
    let server = |sandbox: &str| {
        let item = format!(
            "version: \"1.0.0\"\ntool_type: mcp_server\nexecutor_id: null\ncategory: mcp/servers\nname: fake\n\
             description: A fake\n{sandbox}config:\n  transport: http\n  url: http://127.0.0.1:{}/mcp\n",
            web.port
        );
        std::fs::write(&path, item).expect("an item");
        user.ok(["sign", "tool", "mcp/servers/fake"]);
    };
    let arguments = json!({"a": 1, "b": 2});
    server("");
    let refused = connect(&user, "add", &arguments, &[]).error(5, "RYE0806");
    assert!(text(&refused["error"]).contains("a loopback address, which is refused"), "{refused}");
    server("sandbox: {allowed_hosts: [\"127.0.0.1:1\"]}\n");
    connect(&user, "add", &arguments, &[]).error(5, "RYE0806");
    server(&format!("sandbox: {{allowed_hosts: [\"127.0.0.1:{}\"], network: false}}\n", web.port));
    let closed = connect(&user, "add", &arguments, &[]).error(5, "RYE0806");
    assert!(text(&closed["error"]).contains("may not use the network"), "{closed}");

    server(&format!("sandbox: {{allowed_hosts: [\"127.0.0.1:{}\"]}}\n", web.port));
    assert_eq!(expect_data(&connect(&user, "add", &arguments, &[]))["structured"], json!({"sum": 3}));
    user.ok(["execute", "rye/mcp/manager", "action=refresh", "server=fake"]);
    let item = String::from_utf8(user.read("tools/mcp/fake/add.yaml")).expect("text");
    assert!(item.contains("executor_id: \"rye/core/runtimes/mcp/http\""), "{item}");
    user.ok(["sign", "tool", "mcp/fake/*", "--yes"]);
    assert_eq!(user.data(["execute", "mcp/fake/add", "a=1", "b=2"]), json!({"sum": 3}));
}

#[test]
fn named_variables_fill_arguments_and_address() {
    let web = HttpServer::start("plain");
    let port = web.port.to_string();
    let user = user_with_server(&format!(
        "version: \"1.0.0\"\ntool_type: mcp-server\nexecutor_id: null\ncategory: mcp/servers\nname: fake\n\
         description: A fake\nsandbox: {{allowed_hosts: [\"127.0.0.1:{port}\"]}}\nconfig:\n  transport: http\n  \
         url: \"http://127.0.0.1:${{FAKE_PORT}}/mcp\"\n"
    ));
    let arguments = json!({"a": 1, "b": 2});
    let unset = connect(&user, "add", &arguments, &[]).error(9, "RYE0315");
    assert!(text(&unset["error"]).contains("`FAKE_PORT`"), "{unset}");
    assert!(text(&unset["hints"][0]).contains("export FAKE_PORT="), "{unset}");
    let answer = expect_data(&connect(&user, "add", &arguments, &[("FAKE_PORT", &port)]));
    assert_eq!(answer["structured"], json!({"sum": 3}));

    let stdio = item("plain", "", "").replace("${FAKE_MODE:-plain}", "${FAKE_MODE}");
    let user = user_with_server(&stdio);
    connect(&user, "add", &arguments, &[]).error(9, "RYE0315");
    let answer = expect_data(&connect(&user, "add", &arguments, &[("FAKE_MODE", "plain")]));
    assert_eq!(answer["structured"], json!({"sum": 3}));
}

#[test]
fn hanging_server_and_children_are_killed() {
    let mark = format!("hangs-{}", std::process::id());
    let item = format!(
        "version: \"1.0.0\"\ntool_type: mcp-server\nexecutor_id: null\ncategory: mcp/servers\nname: fake\n\
         description: A fake\nconfig:\n  transport: stdio\n  command: bash\n  args: [\"-c\", \"trap '' TERM; setsid \
         sleep 1000 & exec python3 {SCRIPT} silent\"]\n  env: {{MARK: {mark}}}\n  timeout: 2\n"
    );
    let user = user_with_server(&item);
    let hung = connect(&user, "add", &json!({}), &[]).error(1, "RYE0802");
    assert!(text(&hung["error"]).contains("did not answer within 2 s"), "{hung}");
    assert_eq!(processes_with_mark(&mark), Vec::<PathBuf>::new());
}

#[test]
fn server_gets_only_declared_secrets() {
    let variables = [("FAKE_API_KEY", "s3cret"), ("SOMETHING_ELSE", "x")];
    let probe_output = |user: &User| {
        expect_data(&connect(user, "environment", &json!({}), &variables))["structured"].clone()
    };
    let quiet = probe_output(&user_with_server(&item("probe", "", "")));
    assert_eq!((&quiet["FAKE_API_KEY"], &quiet["SOMETHING_ELSE"]), (&Value::Null, &Value::Null));
    assert!(!quiet.to_string().contains("s3cret"), "{quiet}");
    let named = probe_output(&user_with_server(&item("probe", "  env: {TOKEN: \"${FAKE_API_KEY}\"}\n", "")));
    assert_eq!((&named["TOKEN"], &named["FAKE_API_KEY"]), (&json!("s3cret"), &Value::Null));
    let passed =
        probe_output(&user_with_server(&item("probe", "", "env_config: {secrets: [FAKE_API_KEY]}\n")));
    assert_eq!(passed["FAKE_API_KEY"], "s3cret");
    let greedy = user_with_server(&item("probe", "  env: {LD_PRELOAD: /tmp/x.so}\n", ""));
    connect(&greedy, "environment", &json!({}), &[]).error(9, "RYE0315");
}

#[test]
fn server_runs_in_the_sandbox() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = json!({"port": listener.local_addr().expect("an address").port()});
    let content = |user: &User, tool: &str, arguments: &Value| {
        text(&expect_data(&connect(user, tool, arguments, &[]))["content"])
    };
    let user = user_with_server(&item("probe", "", ""));
    assert_eq!(content(&user, "reach", &port), "reached");
    let inside = user.project().join("inside");
    let outside = user.home().join("outside");
    assert_eq!(content(&user, "scribble", &json!({"path": inside})), "written");
    assert_eq!(content(&user, "scribble", &json!({"path": outside})), "not written");
    assert!(inside.exists() && !outside.exists());
    let closed = user_with_server(&item("probe", "", "sandbox: {network: false}\n"));
    assert_eq!(content(&closed, "reach", &port), "not reached");
}
