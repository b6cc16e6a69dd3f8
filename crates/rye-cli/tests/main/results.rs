//! What tools give: any JSON value, whatever they print; failures with what was there; parameters that stay parameters.

use serde_json::{Value, json};

use crate::support::{User, run, text};
use crate::tool_support::{
    execute, execute_data, execute_error, execute_with, try_execute, write_function, write_function_with,
    write_script, write_shell_tool, write_signed_tool,
};

#[test]
fn functions_return_any_json_value() {
    let user = User::initialized();
    write_function(&user, "echo", "print('noise', params)\nreturn params['value']");
    for value in [
        json!([1, [2]]),
        json!([]),
        json!(7),
        json!(-0.5),
        json!(null),
        json!({}),
        json!("text"),
        json!(false),
    ] {
        let answer = execute(&user, "echo", &["--params", &json!({ "value": value }).to_string()]);
        assert_eq!((&answer["status"], &answer["data"]), (&json!("success"), &value));
        assert!(text(&answer["logs"]["stdout"]).starts_with("noise "), "{answer}");
    }
}

#[test]
fn programs_return_any_json_value() {
    let user = User::initialized();
    write_script(
        &user,
        "echo",
        "import json, sys\nprint('before')\nprint(json.dumps(json.load(sys.stdin)['value']))\nprint('after')",
    );
    for value in [json!([1, [2]]), json!(7), json!(null), json!({}), json!("text"), json!(false)] {
        let answer = execute(&user, "echo", &["--params", &json!({ "value": value }).to_string()]);
        assert_eq!(answer["data"], value, "{answer}");
        assert_eq!(answer["logs"], json!({"stdout": "before\nafter\n"}));
    }
}

#[test]
fn printed_json_does_not_corrupt_the_result() {
    let user = User::initialized();
    let body = r#"
import os, subprocess, sys
print('{"success": false, "error": "fake"}')
sys.stderr.write('{"evil": 1}\n')
os.write(1, b'{"evil": 2}\n')
subprocess.run(["echo", '{"evil": 3}'])
return {"good": True}
"#;
    write_function(&user, "prints", body);
    let answer = execute(&user, "prints", &[]);
    assert_eq!(answer["data"], json!({"good": true}));
    assert!(text(&answer["logs"]["stdout"]).contains("evil\": 3"), "{answer}");
    assert_eq!(answer["logs"]["stderr"], "{\"evil\": 1}\n");
}

#[test]
fn result_is_found_after_noisy_output() {
    let user = User::initialized();
    let noise =
        "import os\nfor _ in range(100):\n    os.write(1, bytes(range(256)) * 4096)\nos.write(1, b'\\n')\n";
    write_function(&user, "loud", &format!("{noise}return {{'got': params['n']}}"));
    write_script(
        &user,
        "shout",
        &format!("import json, sys\nn = json.load(sys.stdin)['n']\n{noise}print(json.dumps({{'got': n}}))"),
    );
    for name in ["loud", "shout"] {
        let run = try_execute(&user, name, &["n=3"]);
        assert_eq!(run.exit, 0, "{name}: {}", run.stderr);
        assert!(run.stdout.len() < 16 << 20, "{name}: {} bytes", run.stdout.len());
        let answer = run.json();
        assert_eq!((&answer["data"], &answer["truncated"]), (&json!({"got": 3}), &json!(true)));
    }
}

#[test]
fn oversized_result_is_an_error() {
    let user = User::initialized();
    write_function(&user, "huge", "return 'x' * (9 << 20)");
    let answer = execute_error(&user, "huge", &[], 1, "RYE0801");
    assert_eq!(answer["error"], "the result is larger than allowed");
}

#[test]
fn a_failure_the_tool_reports_keeps_its_data() {
    let user = User::initialized();
    let output = json!({"success": false, "error": "no such city", "tried": ["Oslo"]});
    write_function(&user, "says", "return {'success': False, 'error': 'no such city', 'tried': ['Oslo']}");
    write_script(
        &user,
        "prints",
        "import json\nprint(json.dumps({'success': False, 'error': 'no such city', 'tried': ['Oslo']}))",
    );
    for name in ["says", "prints"] {
        let answer = execute_error(&user, name, &[], 1, "RYE0801");
        assert_eq!((&answer["error"], &answer["data"]), (&json!("no such city"), &output));
    }
}

#[test]
fn exceptions_exit_codes_and_signals_are_failures() {
    let user = User::initialized();
    write_function(&user, "raises", "print('got so far')\nraise ValueError('not today')");
    let answer = execute_error(&user, "raises", &[], 1, "RYE0801");
    assert_eq!(answer["error"], "ValueError: not today");
    assert_eq!(answer["logs"]["stdout"], "got so far\n");
    assert!(text(&answer["logs"]["stderr"]).contains("Traceback"), "{answer}");
    write_shell_tool(&user, "ends", "", "echo '{\"kept\": 1}'; echo why >&2; exit 42");
    let answer = execute_error(&user, "ends", &[], 1, "RYE0801");
    assert_eq!((&answer["error"], &answer["data"]), (&json!("exit code 42: why"), &json!({"kept": 1})));
    write_shell_tool(&user, "dies", "", "kill -SEGV $$");
    let answer = execute_error(&user, "dies", &[], 1, "RYE0801");
    assert!(text(&answer["error"]).starts_with("ended by signal 11"), "{answer}");
}

#[test]
fn python_exit_handlers_run() {
    let user = User::initialized();
    let open = "global kept\nkept = open('kept.txt', 'w')\nkept.write('whole')";
    let source = "import atexit\natexit.register(lambda: open('asked.txt', 'w').write('called'))";
    let thread = "import threading\ndef late():\n    threading.main_thread().join()\n    with open('late.txt', 'w') as file:\n        file.write('joined')\nthreading.Thread(target=late).start()";
    for (name, file, output, body) in [
        ("open", "kept.txt", "whole", open),
        ("asked", "asked.txt", "called", source),
        ("thread", "late.txt", "joined", thread),
    ] {
        write_function(&user, name, &format!("{body}\nprint('no end of line', end='')\nreturn {{}}"));
        let program = format!("{name}_program");
        let body = body.trim_start_matches("global kept\n");
        write_script(&user, &program, &format!("{body}\nprint('no end of line', end='\\n{{}}')"));
        for tool in [name, &program] {
            let answer = execute(&user, tool, &[]);
            assert!(text(&answer["logs"]["stdout"]).starts_with("no end of line"), "{tool}: {answer}");
            let path = user.project().join(file);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), output, "{tool}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn reopened_python_streams_lose_no_output() {
    let user = User::initialized();
    for (name, body) in [
        (
            "reads",
            "import json\njson.load(open(0))\nkept = open('kept.txt', 'w')\nkept.write('whole')\nprint('{\"a\": 1}')",
        ),
        ("writes", "out = open(1, 'w', closefd=False)\nout.write('{\"a\": 1}\\n')"),
        ("closes", "import sys\nprint('{\"a\": 1}')\nsys.stdout.close()"),
        ("drops", "import sys\nprint('{\"a\": 1}')\nsys.stderr = None"),
    ] {
        write_script(&user, name, body);
        assert_eq!(execute(&user, name, &[])["data"], json!({"a": 1}), "{name}");
    }
    assert_eq!(std::fs::read_to_string(user.project().join("kept.txt")).unwrap(), "whole");
}

#[test]
fn python_error_names_file_and_line() {
    let user = User::initialized();
    let path = write_function(
        &user,
        "deep",
        "class Inner:\n    def fail(self):\n        return (lambda: 1 / 0)()\nInner().fail()",
    );
    let answer = execute_error(&user, "deep", &[], 1, "RYE0801");
    let output = text(&answer["logs"]["stderr"]);
    assert!(output.starts_with("Traceback") && !output.contains("<string>"), "{output}");
    let line =
        1 + std::fs::read_to_string(path).unwrap().lines().position(|line| line.contains("1 / 0")).unwrap();
    assert!(output.contains(&format!("deep.py\", line {line}, in <lambda>")), "{output}");
    write_function_with(&user, "broken", "break", "return {}");
    let answer = execute_error(&user, "broken", &[], 1, "RYE0801");
    let output = text(&answer["logs"]["stderr"]);
    assert!(text(&answer["error"]).contains("broken.py, line"), "{answer}");
    assert!(!output.contains("During handling"), "{output}");
}

#[test]
fn long_error_output_is_truncated_for_terminals() {
    let user = User::initialized();
    let output = |flags: &[&str]| {
        let words = ["execute", "rye/bash", "command=seq 100000; exit 3"].iter().chain(flags);
        run(user.command().args(words))
    };
    let printed = output(&[]);
    assert_eq!(printed.exit, 1, "{printed}");
    assert!(printed.stderr.len() < 12 << 10, "{} bytes", printed.stderr.len());
    assert!(printed.stderr.contains("bytes more: --json has all of it"), "{}", printed.stderr);
    let whole = output(&["--json"]).error(1, "RYE0801");
    assert!(text(&whole["data"]["stdout"]).ends_with("99999\n100000\n"));
}

#[test]
fn tool_timeout_is_enforced_and_reported() {
    let user = User::initialized();
    // How long Python takes to begin depends on the machine: it gets more time until it did.
    let printed = [1, 4, 16, 64].iter().find_map(|seconds| {
        let config = format!("CONFIG = {{'timeout': {seconds}}}");
        write_function_with(
            &user,
            "slow",
            &config,
            "import time\nprint('begun', flush=True)\ntime.sleep(600)",
        );
        user.run(["lock", "remove", "team/slow"]);
        let answer = execute_error(&user, "slow", &[], 1, "RYE0802");
        assert_eq!(answer["error"], format!("Command timed out after {seconds} seconds"));
        Some(answer["logs"]["stdout"].clone()).filter(|printed| *printed != "")
    });
    assert_eq!(printed, Some(json!("begun\n")));
}

#[test]
fn parameters_cannot_override_settings() {
    let user = User::initialized();
    let body = "import os\nreturn {'params': params, 'cwd': os.getcwd(), 'evil': os.environ.get('EVIL'), 'project': project_path}";
    write_function_with(&user, "named", "CONFIG = {'timeout': 30}", body);
    let input = json!({
        "timeout": 0, "cwd": "/", "env": {"EVIL": "1"}, "env_config": {"env": {"EVIL": "1"}}, "command": "/bin/false",
        "args": ["-c", "raise SystemExit(9)"], "stdin": "null", "input_data": "null", "tool_path": "/etc/passwd",
        "project_path": "/etc", "params_json": "{}", "sandbox": {"level": "off"}, "config": {"timeout": 0},
        "result": "text", "RYE_PYTHON": "/bin/false", "runtime_lib": "/", "anchor_path": "/"
    });
    let project = user.project().display().to_string();
    let expected = json!({"params": input, "cwd": project, "evil": null, "project": project});
    assert_eq!(execute_with(&user, "named", &input), expected);
    let words = ["timeout=0", "cwd=/", "command=/bin/false"];
    assert_eq!(
        execute_data(&user, "named", &words)["params"],
        json!({"timeout": 0, "cwd": "/", "command": "/bin/false"})
    );
}

#[test]
fn templates_inside_a_parameter_stay_text() {
    let user = User::initialized();
    write_function(&user, "echo", "return params");
    write_shell_tool(
        &user,
        "vars",
        "",
        "printf '%s' \"$RYE_PARAM_A\" | python3 -c 'import json, sys; print(json.dumps(sys.stdin.read()))'",
    );
    for text in [
        "${HOME}",
        "{tool_path}",
        "{params_json}",
        "${HOME:-x}",
        "$HOME",
        "{b}",
        "`id`",
        "$(id)",
        "a\nb\t\u{1b}[1m",
    ] {
        let input = json!({"a": text, "b": "{a}"});
        assert_eq!(execute_with(&user, "echo", &input), input);
        assert_eq!(execute_with(&user, "vars", &input), json!(text));
    }
}

const SCHEMA: &str = r#"CONFIG_SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 2},
        "times": {"type": "integer", "minimum": 1, "default": 2},
        "flags": {"type": "object", "properties": {"deep": {"type": "boolean", "default": True}}, "default": {}},
        "list": {"type": "array", "items": {"type": "number"}},
    },
CLOSED}"#;

#[test]
fn defaults_apply_and_violations_are_listed() {
    let user = User::initialized();
    write_function_with(&user, "open", &SCHEMA.replace("CLOSED", ""), "return params");
    assert_eq!(
        execute_data(&user, "open", &["name=Ada", "more=1"]),
        json!({"name": "Ada", "times": 2, "flags": {"deep": true}, "more": 1})
    );
    let bad = json!({"name": "A", "times": 0, "list": [1, "x"]}).to_string();
    let answer = user.assert_refused(["execute", "team/open", "--params", &bad], 2, "RYE0106");
    let mut paths: Vec<String> =
        answer["violations"].as_array().expect("violations").iter().map(|row| text(&row["path"])).collect();
    paths.sort();
    assert_eq!(paths, ["$.list[1]", "$.name", "$.times"]);
    for path in paths {
        assert!(text(&answer["error"]).contains(&path), "{answer}");
    }
    let answer = user.assert_refused(["execute", "team/open"], 2, "RYE0106");
    assert_eq!(answer["violations"].as_array().map(Vec::len), Some(1), "{answer}");
}

#[test]
fn closed_schema_refuses_unknown_parameters() {
    let user = User::initialized();
    write_function_with(
        &user,
        "closed",
        &SCHEMA.replace("CLOSED", "    \"additionalProperties\": False,\n"),
        "return params",
    );
    let answer = user.assert_refused(["execute", "team/closed", "name=Ada", "more=1"], 2, "RYE0106");
    assert!(text(&answer["error"]).contains("more"), "{answer}");
    execute_data(&user, "closed", &["name=Ada"]);
}

#[test]
fn words_are_parsed_by_schema_type() {
    let user = User::initialized();
    write_function_with(&user, "typed", &SCHEMA.replace("CLOSED", ""), "return params");
    assert_eq!(
        execute_data(
            &user,
            "typed",
            &["name=42", "times=3", "list=[1, 2.5]", "flags={\"deep\": false}", "free=true", "other=a=b"]
        ),
        json!({"name": "42", "times": 3, "list": [1, 2.5], "flags": {"deep": false}, "free": true, "other": "a=b"})
    );
    let answer = user.assert_refused(["execute", "team/typed", "name=Ada", "times=many"], 2, "RYE0106");
    assert_eq!(answer["violations"][0]["path"], "$.times", "{answer}");
    user.assert_refused(["execute", "team/typed", "name"], 2, "RYE0104");
}

#[test]
fn parameters_are_read_from_file_or_stdin() {
    let user = User::initialized();
    write_function(&user, "echo", "return params");
    let input = json!({"a": [1, {"b": null}], "ü": "→"});
    user.context.write("project/given.json", input.to_string());
    assert_eq!(execute_with(&user, "echo", &input), input);
    assert_eq!(execute_data(&user, "echo", &["--params", "@given.json"]), input);
    let words = ["--json", "execute", "team/echo", "--params", "-"];
    let run = run(user.command().args(words).write_stdin(input.to_string()));
    assert_eq!(run.json()["data"], input, "{run}");
    assert_eq!(
        execute_data(&user, "echo", &["--params", "{\"a\": 1, \"b\": 2}", "a=3"]),
        json!({"a": 3, "b": 2})
    );
    for bad in ["[1]", "7", "{", "{\"a\": 1}x"] {
        user.assert_refused(["execute", "team/echo", "--params", bad], 2, "RYE0106");
    }
    user.assert_refused(["execute", "team/echo", "--params", "@missing.json"], 3, "RYE0202");
}

#[test]
fn shell_tool_gets_variables_and_json() {
    let user = User::initialized();
    let body = "input=$(cat)\necho \"{\\\"name\\\": \\\"$RYE_PARAM_NAME\\\", \\\"list\\\": $RYE_PARAM_LIST, \\\"all\\\": $input, \\\"project\\\": \\\"$1\\\"}\"";
    write_shell_tool(&user, "both", "", body);
    let parameters = json!({"name": "Ada", "list": [1, 2]});
    let project = user.project().display().to_string();
    assert_eq!(
        execute_with(&user, "both", &parameters),
        json!({"name": "Ada", "list": [1, 2], "all": parameters, "project": project})
    );
}

#[test]
fn javascript_tool_returns_its_value() {
    let user = User::initialized();
    let head = "export const __version__ = \"1.0.0\";\nexport const __tool_type__ = \"javascript\";\nexport const __executor_id__ = \"rye/core/runtimes/node/RUNTIME\";\nexport const __category__ = \"team\";\nexport const __tool_description__ = \"Is run\";\n";
    let function = "export async function execute(params, project) { console.log('{\"evil\": 1}'); return [params, project]; }\n";
    write_signed_tool(&user, "team/js", "js", &format!("{}{function}", head.replace("RUNTIME", "function")));
    let project = user.project().display().to_string();
    let answer = execute(&user, "js", &["a=1"]);
    assert_eq!(answer["data"], json!([{"a": 1}, project]));
    assert_eq!(answer["logs"]["stdout"], "{\"evil\": 1}\n");
    let program = "import { readFileSync } from 'node:fs';\nconst params = JSON.parse(readFileSync(0, 'utf8'));\nconsole.log('working');\nconsole.log(JSON.stringify(params.a));\n";
    write_signed_tool(&user, "team/program", "mjs", &format!("{}{program}", head.replace("RUNTIME", "node")));
    assert_eq!(execute_data(&user, "program", &["a=null"]), Value::Null);
}

/// The blocks of a page: language and text.
fn code_blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}

#[test]
fn documented_files_add_a_language() {
    let user = User::initialized();
    let page = include_str!("../../../../docs/writing-runtimes.md");
    let (yaml, perl) = (code_blocks(page, "yaml"), code_blocks(page, "perl"));
    user.write("tools/team/runtimes/perl.yaml", &yaml[0]);
    user.write("tools/rye/core/extractors/tool/tool_extractor.yaml", &yaml[1]);
    user.write("tools/team/count.pl", &perl[0]);
    for id in ["rye/core/extractors/tool/tool_extractor", "team/runtimes/perl", "team/count"] {
        user.ok(["sign", "tool", id]);
    }
    let answer = execute(&user, "count", &["text=one two three"]);
    assert_eq!((&answer["data"], &answer["logs"]), (&json!({"words": 3}), &json!({"stdout": "counting\n"})));
    user.assert_refused(["execute", "team/count"], 2, "RYE0106");
}

#[test]
fn documented_tools_run() {
    let user = User::initialized();
    let page = include_str!("../../../../docs/writing-tools.md");
    let python = code_blocks(page, "python");
    user.write("tools/team/greet.py", &python[0]);
    let lines = python.iter().find(|block| block.contains("Count the lines")).expect("lines");
    user.write("tools/team/lines.py", lines);
    user.write("tools/team/slug.js", &code_blocks(page, "javascript")[0]);
    user.write("tools/team/size.sh", &code_blocks(page, "bash")[0]);
    user.write("tools/team/run.yaml", &code_blocks(page, "yaml")[0]);
    user.ok(["sign", "tool", "team/*", "--yes"]);
    assert_eq!(
        execute_data(&user, "greet", &["name=Ada", "times=2"]),
        json!({"greeting": "Hello, Ada!Hello, Ada!"})
    );
    assert_eq!(execute_with(&user, "lines", &json!({"text": "a\nb"})), json!({"lines": 2}));
    assert_eq!(execute_data(&user, "slug", &["title=One Two"]), json!({"slug": "one-two"}));
    assert!(execute_data(&user, "size", &["folder=.ai"])["kilobytes"].is_number());
    assert_eq!(execute_data(&user, "run", &["command=echo '[1]'"]), json!([1]));
}
