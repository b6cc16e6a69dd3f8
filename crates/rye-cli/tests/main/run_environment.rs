//! What surrounds a run: environment and secrets, interpreters, config, HTTP, the trace; and items that are not tools.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::support::{User, run, text};
use crate::tool_support::{execute, execute_data, write_function, write_function_with, write_signed_tool};

const ENVIRONMENT: &str = "import os\nreturn dict(os.environ)";

/// The variables a tool sees when the caller has these.
fn tool_environment(user: &User, name: &str, variables: &[(&str, &str)]) -> Value {
    let mut command = user.command();
    command.args(["--json", "execute", &format!("team/{name}")]).envs(variables.iter().copied());
    let run = run(&mut command);
    assert_eq!(run.exit, 0, "{run}");
    run.json()["data"].clone()
}

#[test]
fn secrets_reach_only_the_tool_that_declares_them() {
    let user = User::initialized();
    let caller = [
        ("API_TOKEN", "secret"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("OTHER", "x"),
        ("LANG", "C.UTF-8"),
        ("LD_PRELOAD", "/evil.so"),
        ("PYTHONPATH", "/evil"),
        ("RYE_PYTHON", "/bin/false"),
        ("SSH_AUTH_SOCK", "/evil"),
    ];
    write_function(&user, "plain", ENVIRONMENT);
    let variables = tool_environment(&user, "plain", &caller[..4]);
    assert_eq!(variables["LANG"], "C.UTF-8");
    for name in ["API_TOKEN", "AWS_SECRET_ACCESS_KEY", "OTHER"] {
        assert_eq!(variables[name], Value::Null, "{name}");
    }
    write_function_with(
        &user,
        "asks",
        "ENV_CONFIG = {'env': {'API_TOKEN': '${API_TOKEN}', 'HOST': '${API_HOST:-here}'}}",
        ENVIRONMENT,
    );
    let variables = tool_environment(&user, "asks", &[&caller[..4], &caller[5..]].concat());
    assert_eq!((&variables["API_TOKEN"], &variables["HOST"]), (&json!("secret"), &json!("here")));
    for name in ["AWS_SECRET_ACCESS_KEY", "LD_PRELOAD", "PYTHONPATH", "SSH_AUTH_SOCK"] {
        assert_eq!(variables[name], Value::Null, "{name}");
    }
}

#[test]
fn dotenv_needs_approval_and_loads_no_code() {
    let user = User::initialized();
    let project = user.project().display().to_string();
    user.context.write(
        "project/.env",
        format!("COLOUR=blue\nPATH={project}/evil\nLD_PRELOAD={project}/evil.so\nPYTHONPATH={project}\nPYTHONSTARTUP=x\nBASH_ENV={project}/evil.sh\nNODE_OPTIONS=--require=x\nRYE_PYTHON={project}/evil\nUSER_SPACE={project}\nOPENAI_BASE_URL=http://evil\nHOME={project}\n"),
    );
    write_function_with(&user, "asks", "ENV_CONFIG = {'env': {'TINT': '${COLOUR:-none}'}}", ENVIRONMENT);
    let caller_path = text(&tool_environment(&user, "asks", &[])["PATH"]);
    let variables = tool_environment(&user, "asks", &[]);
    assert_eq!(variables["TINT"], "blue");
    assert_eq!(text(&variables["HOME"]), user.home().display().to_string());
    assert!(!caller_path.contains(&project), "{variables}");
    for name in [
        "LD_PRELOAD",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "BASH_ENV",
        "NODE_OPTIONS",
        "USER_SPACE",
        "OPENAI_BASE_URL",
    ] {
        assert_eq!(variables[name], Value::Null, "{name}");
    }
    assert_ne!(variables["RYE_PYTHON"], format!("{project}/evil"));
    user.ok(["trust", "--revoke"]);
    let variables = tool_environment(&user, "asks", &[]);
    assert_eq!((&variables["TINT"], &variables["COLOUR"]), (&json!("none"), &Value::Null));
}

#[test]
fn tools_do_not_write_dotenv() {
    let user = User::initialized();
    write_function_with(&user, "asks", "ENV_CONFIG = {'env': {'HOST': '${API_HOST:-here}'}}", ENVIRONMENT);
    let evil = ["path=.env", "content=API_HOST=evil.example"];
    let words = [&["execute", "rye/file-system/write"][..], &evil].concat();
    let refused = user.assert_refused(words, 5, "RYE0806");
    assert!(refused.to_string().contains("`protected` in your execution/sandbox.yaml"), "{refused}");
    for command in ["echo API_HOST=evil > .env", "echo API_HOST=evil > x; mv -f x .env; cat .env"] {
        let run = user.run(["--json", "execute", "rye/bash", &format!("command={command}")]);
        assert!(!user.project().join(".env").exists(), "{run}");
    }
    assert_eq!(tool_environment(&user, "asks", &[])["HOST"], "here");
    // The user's own is read, and stays.
    user.context.write("project/.env", "API_HOST=mine.example\n");
    user.run(["execute", "rye/bash", "command=echo API_HOST=evil > .env; rm -f .env"]);
    assert_eq!(tool_environment(&user, "asks", &[])["HOST"], "mine.example");
}

#[test]
fn dotenv_that_others_may_write_is_ignored() {
    let user = User::initialized();
    write_function_with(&user, "asks", "ENV_CONFIG = {'env': {'HOST': '${API_HOST:-here}'}}", ENVIRONMENT);
    let file = user.context.write("project/.env", "API_HOST=file.example\n");
    let set_mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    let host = || text(&tool_environment(&user, "asks", &[])["HOST"]);
    assert_eq!(host(), "file.example");
    for (path, mode, closed) in [(&file, 0o646, 0o600), (&user.project(), 0o777, 0o755)] {
        set_mode(path, mode);
        let run = user.run(["execute", "team/asks"]);
        assert!(run.to_string().contains("chmod go-w"), "{run}");
        assert_eq!(host(), "here", "{mode:o}");
        set_mode(path, closed);
    }
    set_mode(&user.project(), 0o1777);
    assert_eq!(host(), "file.example");
    set_mode(&user.project(), 0o755);
    // Only root gives files away.
    if std::os::unix::fs::chown(&file, Some(4321), None).is_ok() {
        let run = user.run(["execute", "team/asks"]);
        assert!(run.to_string().contains("belongs to another user (uid 4321)"), "{run}");
        assert_eq!(host(), "here");
    }
}

#[test]
fn project_interpreter_needs_approval() {
    let user = User::initialized();
    let wrapper = user
        .context
        .write("project/.venv/bin/python", "#!/bin/sh\nexport FROM_VENV=1\nexec python3 \"$@\"\n");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("a program");
    write_function(&user, "which", "import os\nreturn os.environ.get('FROM_VENV')");
    assert_eq!(execute_data(&user, "which", &[]), Value::Null);
    user.ok(["trust", ".", "--yes"]);
    assert_eq!(execute_data(&user, "which", &[]), json!("1"));
    // A tool of the user is not run by what lies in a project.
    let text = String::from_utf8(user.read("tools/team/which.py")).expect("text");
    user.write_user("tools/team/mine.py", text.split_once('\n').expect("a signature").1);
    user.ok(["sign", "tool", "team/mine", "--space", "user"]);
    assert_eq!(execute_data(&user, "mine", &[]), Value::Null);
    user.ok(["trust", "--revoke"]);
    assert_eq!(execute_data(&user, "which", &[]), Value::Null);
}

#[test]
fn project_folder_is_not_importable() {
    let user = User::initialized();
    for name in ["json.py", "sitecustomize.py", "usercustomize.py", "helper.py"] {
        user.context.write(&format!("project/{name}"), "open('evil', 'w').close()\n");
    }
    write_function(
        &user,
        "imports",
        "import json\ntry:\n    import helper\n    return 'imported'\nexcept ImportError:\n    return json.dumps(1)",
    );
    assert_eq!(execute_data(&user, "imports", &[]), json!("1"));
    assert!(!user.project().join("evil").exists());
}

/// Python before 3.11 looks into the working folder first, and so does its `import site`.
#[test]
fn old_python_runs_no_file_of_the_working_folder() {
    let user = User::initialized();
    let plant = "import posix\nposix.close(posix.open('planted', posix.O_CREAT | posix.O_WRONLY))\n";
    std::fs::write(user.project().join("site.py"), plant).expect("a file");
    let tool = user.context.path().join("tool.py");
    std::fs::write(&tool, "def execute(params, project_path):\n    return 1\n").expect("a file");
    for runtime in ["function", "script"] {
        let item = format!("rye/core/runtimes/python/{runtime}");
        let loaded = user.ok(["--json", "load", "tool", &item]).json();
        let source = loaded["data"]["content"].as_str().expect("a source");
        let (_, program) = source.split_once("    - |\n").expect("a program");
        let lines = program.lines().take_while(|line| line.is_empty() || line.starts_with("      "));
        let program: String = lines.map(|line| format!("{}\n", line.get(6..).unwrap_or_default())).collect();
        // As before 3.10, when Python did not name its standard modules, and before 3.11, when it brought none of them along.
        let program = format!(
            "import sys\nif hasattr(sys, 'stdlib_module_names'): del sys.stdlib_module_names\n{program}"
        );
        let planted = user.project().join("planted");
        for (text, is_planted) in [("import site", true), (&program, false)] {
            let mut command = user.program("python3");
            command
                .args(["-X", "frozen_modules=off", "-S", "-c", text])
                .arg(&tool)
                .arg(user.project())
                .current_dir(user.project());
            command.env_remove("PYTHONSAFEPATH").stdin(std::process::Stdio::null());
            command.output().expect("python3");
            assert_eq!(planted.exists(), is_planted, "{runtime}: {text}");
            let _ = std::fs::remove_file(&planted);
        }
    }
}

#[test]
fn imports_need_all_files_signed() {
    let user = User::initialized();
    let tool = |text: &str| text.replace("\"team\"", "\"team/kit\"");
    user.write(
        "tools/team/kit/main.py",
        tool(&crate::tool_support::function_text("", "from . import helper\nreturn helper.VALUE")),
    );
    user.write("tools/team/kit/__init__.py", tool(&rye_test::tool("team", "A package")));
    user.write(
        "tools/team/kit/helper.py",
        format!("{}\nVALUE = 7\n", tool(&rye_test::tool("team", "Helps"))),
    );
    user.ok(["sign", "tool", "team/kit/main"]);
    user.ok(["sign", "tool", "team/kit/__init__"]);
    user.assert_refused(["execute", "team/kit/main"], 4, "RYE0401");
    user.ok(["sign", "tool", "team/kit/helper"]);
    assert_eq!(user.data(["execute", "team/kit/main"]), json!(7));
    let lock = std::fs::read_to_string(user.home().join(".ai/lockfiles/team/kit/main@1.0.0.lock.json"))
        .expect("a lockfile");
    assert!(lock.contains("helper.py"), "{lock}");
    user.write(
        "tools/team/kit/helper.py",
        format!("{}\nVALUE = 8\n", tool(&rye_test::tool("team", "Helps"))),
    );
    user.assert_refused(["execute", "team/kit/main"], 4, "RYE0401");
    user.ok(["sign", "tool", "team/kit/helper"]);
    user.assert_refused(["execute", "team/kit/main"], 8, "RYE0501");
}

fn config_text(colour: &str, more: &str) -> String {
    format!("version: \"1.0.0\"\ncategory: team\n{more}paint:\n  colour: {colour}\n")
}

#[test]
fn resolved_config_is_merged_or_first_match() {
    let user = User::initialized();
    user.write_user("config/team/paint.yaml", config_text("red", "size: 3\n"));
    user.ok(["sign", "config", "team/paint", "--space", "user"]);
    user.write("config/team/paint.yaml", config_text("blue", ""));
    user.ok(["sign", "config", "team/paint", "--space", "project"]);
    let body = "config = params['resolved_config']\nreturn [config['paint'], config.get('size')]";
    for (mode, expected) in
        [("deep_merge", json!([{"colour": "blue"}, 3])), ("first_match", json!([{"colour": "blue"}, null]))]
    {
        let metadata = format!("CONFIG_RESOLVE = {{'path': 'team/paint.yaml', 'mode': '{mode}'}}");
        write_function_with(&user, "paints", &metadata, body);
        assert_eq!(execute_data(&user, "paints", &[]), expected, "{mode}");
    }
    user.ok(["trust", "--revoke"]);
    assert_eq!(execute_data(&user, "paints", &[]), json!([{"colour": "red"}, 3]));
    write_function_with(
        &user,
        "paints",
        "CONFIG_RESOLVE = {'path': '../keys/x', 'mode': 'deep_merge'}",
        body,
    );
    user.assert_refused(["execute", "team/paints"], 9, "RYE0315");
}

#[test]
fn config_of_rye_itself_is_not_given() {
    let user = User::initialized();
    for mode in ["deep_merge", "first_match"] {
        for path in [
            "trust/projects.yaml",
            "keys/trusted/x.yaml",
            "config.yaml",
            "execution/sandbox.yaml",
            "other/x.yaml",
        ] {
            let metadata = format!("CONFIG_RESOLVE = {{'path': '{path}', 'mode': '{mode}'}}");
            write_function_with(&user, "reads", &metadata, "return params.get('resolved_config')");
            let refused = user.assert_refused(["execute", "team/reads"], 9, "RYE0315");
            assert!(refused["hints"].to_string().contains("team"), "{refused}");
        }
    }
}

#[test]
fn callers_give_no_resolved_config() {
    let user = User::initialized();
    for metadata in ["", "CONFIG_RESOLVE = {'path': 'team/none.yaml', 'mode': 'deep_merge'}"] {
        write_function_with(&user, "reads", metadata, "return params.get('resolved_config')");
        user.assert_refused(["execute", "team/reads", "resolved_config={\"a\": 1}"], 2, "RYE0106");
        let whole = "{\"resolved_config\": {\"a\": 1}}";
        user.assert_refused(["execute", "team/reads", "--params", whole], 2, "RYE0106");
        assert_eq!(execute_data(&user, "reads", &[]), json!(null));
    }
}

#[test]
fn dry_run_executes_no_tool() {
    let user = User::initialized();
    write_function(&user, "acts", "open('acted', 'w').close()\nreturn 1");
    let before = user.snapshot();
    let answer = execute(&user, "acts", &["--dry-run", "a=1"]);
    assert_eq!((&answer["status"], &answer["validated_pairs"]), (&json!("validation_passed"), &json!(2)));
    assert_eq!(answer["data"]["parameters"], json!({"a": 1}));
    assert!(answer["data"]["invocation"]["command"].is_string(), "{answer}");
    assert_eq!(user.snapshot(), before);
}

#[test]
fn trace_lists_every_step_in_order() {
    let user = User::initialized();
    write_function_with(&user, "traced", "ENV_CONFIG = {'env': {'API_TOKEN': '${API_TOKEN}'}}", "return 1");
    let mut command = user.command();
    let run =
        run(command.env("API_TOKEN", "very-secret").args(["--json", "execute", "team/traced", "--trace"]));
    assert_eq!(run.exit, 0, "{run}");
    assert!(!run.stdout.contains("very-secret") && !run.stderr.contains("very-secret"), "{run}");
    let answer = run.json();
    let mut steps: Vec<String> =
        answer["trace"].as_array().expect("a trace").iter().map(|row| text(&row["step"])).collect();
    let verify = answer["trace"]
        .as_array()
        .expect("a trace")
        .iter()
        .find(|row| row["step"] == "verify")
        .expect("verified");
    assert_eq!((&verify["verdict"], &verify["key"]), (&json!("full"), &json!(user.fingerprint())));
    let pairs = ["resolve", "verify"].repeat(3);
    assert_eq!(steps[..6], pairs);
    steps.drain(..6);
    steps.dedup();
    assert_eq!(steps, ["validate", "lock", "environment", "sandbox", "run"]);
    let human = user.ok(["execute", "team/traced", "--trace"]).stderr;
    for step in steps.iter().chain([&"resolve".to_owned(), &"verify".to_owned()]) {
        assert!(human.lines().any(|line| line.starts_with(step.as_str())), "{step}: {human}");
    }
    assert!(execute(&user, "traced", &[])["trace"].is_null());
}

#[test]
fn first_use_is_reported_once() {
    let user = User::initialized();
    write_function(&user, "once", "return 1");
    assert_eq!(execute(&user, "once", &[])["first_use"], true);
    assert_eq!(execute(&user, "once", &[])["first_use"], false);
}

/// Answers `count` requests with this status and body; gives the port, and the requests' text afterwards.
fn start_server(count: usize, body: &'static str) -> (u16, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
    let port = listener.local_addr().expect("an address").port();
    let serve = move || {
        let mut requests = Vec::new();
        for _ in 0..count {
            let (mut stream, _) = listener.accept().expect("a caller");
            let mut reader = BufReader::new(stream.try_clone().expect("a copy"));
            let (mut head, mut length) = (String::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).expect("a line");
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
                if line.trim().is_empty() {
                    break;
                }
                head.push_str(&line);
            }
            let mut sent = vec![0; length];
            reader.read_exact(&mut sent).expect("a body");
            requests.push(format!("{head}\n{}", String::from_utf8_lossy(&sent)));
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).expect("answered");
        }
        requests
    };
    (port, std::thread::spawn(serve))
}

fn http_tool_text(port: u16, more: &str) -> String {
    format!(
        "version: \"1.0.0\"\ntool_type: http\nexecutor_id: rye/core/primitives/http_client\ncategory: team\ndescription: Asks\nconfig_schema:\n  type: object\n  required: [city]\n  properties:\n    city: {{type: string}}\nenv_config:\n  env:\n    WEATHER_TOKEN: \"${{WEATHER_TOKEN:-}}\"\nconfig:\n  method: POST\n  url: http://127.0.0.1:{port}/weather/{{city}}\n  body: {{city: \"{{city}}\"}}\n  auth: {{type: bearer, token: \"${{WEATHER_TOKEN}}\"}}\n  timeout: 20\n{more}"
    )
}

#[test]
fn http_tool_must_allow_private_hosts() {
    let user = User::initialized();
    let (port, served) = start_server(1, "{\"degrees\": 7}");
    write_signed_tool(&user, "team/weather", "yaml", &http_tool_text(port, ""));
    let words = ["--json", "execute", "team/weather", "city=Oslo"];
    let refused = run(user.command().env("WEATHER_TOKEN", "very-secret").args(words)).error(5, "RYE0806");
    assert!(text(&refused["error"]).contains("127.0.0.1"), "{refused}");
    write_signed_tool(
        &user,
        "team/weather",
        "yaml",
        &http_tool_text(port, "sandbox:\n  allowed_hosts: [\"127.0.0.1\"]\n"),
    );
    let words = ["--json", "execute", "team/weather", "city=../a b?c#d", "--trace"];
    let run = run(user.command().env("WEATHER_TOKEN", "very-secret").args(words));
    assert_eq!(run.exit, 0, "{run}");
    assert!(!run.stdout.contains("very-secret"), "{run}");
    assert_eq!(run.json()["data"]["body"], json!({"degrees": 7}), "{run}");
    let requests = served.join().expect("served");
    assert!(requests[0].starts_with("POST /weather/..%2Fa%20b%3Fc%23d HTTP/1.1"), "{requests:?}");
    assert!(requests[0].contains("Bearer very-secret"), "{requests:?}");
    assert!(requests[0].ends_with("{\"city\":\"../a b?c#d\"}"), "{requests:?}");
}

#[test]
fn directive_renders_its_prompt_with_inputs() {
    let user = User::initialized();
    let data = user.data(["execute", "directive", "examples/greet", "name=Ada"]);
    assert!(text(&data["body"]).contains("then greet Ada with the tool"), "{data}");
    assert_eq!(data["given_inputs"], json!({"name": "Ada"}));
    assert_eq!(data["actions"][0]["params"]["name"], "Ada", "{data}");
    let data = user.data(["execute", "directive", "examples/greet"]);
    assert!(text(&data["body"]).contains("then greet world with"), "{data}");
    // A value is put in as it is.
    let data = user.data(["execute", "directive", "examples/greet", "name={input:name}${HOME}"]);
    assert!(text(&data["body"]).contains("then greet {input:name}${HOME} with"), "{data}");
    let human = user.ok(["execute", "directive", "examples/greet", "name=Ada"]);
    assert!(human.stdout.contains("greet Ada"), "{human}");
    let path = user.project().join(".ai/directives/examples/greet.md");
    let needs = std::fs::read_to_string(&path)
        .expect("a directive")
        .replace("required=\"false\" default=\"world\"", "required=\"true\"");
    std::fs::write(&path, needs).expect("written");
    user.assert_refused(["execute", "directive", "examples/greet", "name=Ada"], 4, "RYE0402");
    user.ok(["sign", "directive", "examples/greet"]);
    let refusal = user.assert_refused(["execute", "directive", "examples/greet"], 2, "RYE0107");
    assert_eq!(refusal["missing"], json!(["name"]), "{refusal}");
}

#[test]
fn knowledge_returns_its_body() {
    let user = User::initialized();
    let data = user.data(["execute", "knowledge", "examples/style"]);
    assert!(text(&data["body"]).trim_start().starts_with("# How we write"), "{data}");
    assert!(!text(&data["body"]).contains("rye:signed"), "{data}");
    user.assert_refused(["execute", "knowledge", "examples/style", "a=1"], 2, "RYE0107");
    user.assert_refused(["execute", "config", "config"], 2, "RYE0108");
}

#[test]
fn partly_signed_knowledge_is_refused() {
    let user = User::initialized();
    let key =
        std::fs::read_to_string(user.home().join(".ai/config/keys/signing/private_key.pem")).expect("key");
    let line = format!("<!-- {} -->", rye_test::signature(&key, b"Text"));
    let front =
        "---\nname: part\ntitle: Part\nentry_type: reference\ncategory: team\nversion: \"1.0.0\"\n---\n";
    user.write("knowledge/team/part.md", format!("{line}\n{front}\nText\n"));
    let refusal = user.assert_refused(["execute", "knowledge", "team/part"], 4, "RYE0406");
    assert!(!refusal["uncovered"].as_array().expect("ranges").is_empty(), "{refusal}");
    user.ok(["sign", "knowledge", "team/part"]);
    assert_eq!(text(&user.data(["execute", "knowledge", "team/part"])["body"]).trim(), "Text");
}
