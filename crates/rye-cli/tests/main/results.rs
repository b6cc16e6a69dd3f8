//! What tools give: any JSON value, whatever they print; failures with what was there; parameters that stay parameters.

use serde_json::{Value, json};

use crate::running::{
    answer, attempt, failure, function, function_with, result, result_of, script, shell, signed,
};
use crate::support::{User, run, text};

#[test]
fn every_json_value_is_a_result_of_a_function() {
    let user = User::ready();
    function(&user, "echo", "print('noise', params)\nreturn params['value']");
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
        let answer = answer(&user, "echo", &["--params", &json!({ "value": value }).to_string()]);
        assert_eq!((&answer["status"], &answer["data"]), (&json!("success"), &value));
        assert!(text(&answer["logs"]["stdout"]).starts_with("noise "), "{answer}");
    }
}

#[test]
fn every_json_value_is_a_result_of_a_program() {
    let user = User::ready();
    script(
        &user,
        "echo",
        "import json, sys\nprint('before')\nprint(json.dumps(json.load(sys.stdin)['value']))\nprint('after')",
    );
    for value in [json!([1, [2]]), json!(7), json!(null), json!({}), json!("text"), json!(false)] {
        let answer = answer(&user, "echo", &["--params", &json!({ "value": value }).to_string()]);
        assert_eq!(answer["data"], value, "{answer}");
        assert_eq!(answer["logs"], json!({"stdout": "before\nafter\n"}));
    }
}

#[test]
fn prints_that_look_like_results_do_not_corrupt_a_function() {
    let user = User::ready();
    let body = r#"
import os, subprocess, sys
print('{"success": false, "error": "fake"}')
sys.stderr.write('{"evil": 1}\n')
os.write(1, b'{"evil": 2}\n')
subprocess.run(["echo", '{"evil": 3}'])
return {"good": True}
"#;
    function(&user, "prints", body);
    let answer = answer(&user, "prints", &[]);
    assert_eq!(answer["data"], json!({"good": true}));
    assert!(text(&answer["logs"]["stdout"]).contains("evil\": 3"), "{answer}");
    assert_eq!(answer["logs"]["stderr"], "{\"evil\": 1}\n");
}

#[test]
fn a_hundred_megabytes_and_binary_noise_before_the_result_do_not_hide_it() {
    let user = User::ready();
    let noise =
        "import os\nfor _ in range(100):\n    os.write(1, bytes(range(256)) * 4096)\nos.write(1, b'\\n')\n";
    function(&user, "loud", &format!("{noise}return {{'got': params['n']}}"));
    script(
        &user,
        "shout",
        &format!("import json, sys\nn = json.load(sys.stdin)['n']\n{noise}print(json.dumps({{'got': n}}))"),
    );
    for name in ["loud", "shout"] {
        let run = attempt(&user, name, &["n=3"]);
        assert_eq!(run.exit, 0, "{name}: {}", run.stderr);
        assert!(run.stdout.len() < 16 << 20, "{name}: {} bytes", run.stdout.len());
        let answer = run.json();
        assert_eq!((&answer["data"], &answer["truncated"]), (&json!({"got": 3}), &json!(true)));
    }
}

#[test]
fn a_result_larger_than_allowed_is_a_failure_that_says_so() {
    let user = User::ready();
    function(&user, "huge", "return 'x' * (9 << 20)");
    let answer = failure(&user, "huge", &[], 1, "RYE0801");
    assert_eq!(answer["error"], "the result is larger than allowed");
}

#[test]
fn a_failure_the_tool_reports_keeps_its_data() {
    let user = User::ready();
    let said = json!({"success": false, "error": "no such city", "tried": ["Oslo"]});
    function(&user, "says", "return {'success': False, 'error': 'no such city', 'tried': ['Oslo']}");
    script(
        &user,
        "prints",
        "import json\nprint(json.dumps({'success': False, 'error': 'no such city', 'tried': ['Oslo']}))",
    );
    for name in ["says", "prints"] {
        let answer = failure(&user, name, &[], 1, "RYE0801");
        assert_eq!((&answer["error"], &answer["data"]), (&json!("no such city"), &said));
    }
}

#[test]
fn exceptions_exit_codes_and_signals_are_failures() {
    let user = User::ready();
    function(&user, "raises", "print('got so far')\nraise ValueError('not today')");
    let answer = failure(&user, "raises", &[], 1, "RYE0801");
    assert_eq!(answer["error"], "ValueError: not today");
    assert_eq!(answer["logs"]["stdout"], "got so far\n");
    assert!(text(&answer["logs"]["stderr"]).contains("Traceback"), "{answer}");
    shell(&user, "ends", "", "echo '{\"kept\": 1}'; echo why >&2; exit 42");
    let answer = failure(&user, "ends", &[], 1, "RYE0801");
    assert_eq!((&answer["error"], &answer["data"]), (&json!("exit code 42: why"), &json!({"kept": 1})));
    shell(&user, "dies", "", "kill -SEGV $$");
    let answer = failure(&user, "dies", &[], 1, "RYE0801");
    assert!(text(&answer["error"]).starts_with("ended by signal 11"), "{answer}");
}

#[test]
fn what_a_python_tool_left_for_its_end_happens() {
    let user = User::ready();
    let open = "global kept\nkept = open('kept.txt', 'w')\nkept.write('whole')";
    let asked = "import atexit\natexit.register(lambda: open('asked.txt', 'w').write('called'))";
    let thread = "import threading, time\ndef late():\n    time.sleep(0.2)\n    with open('late.txt', 'w') as file:\n        file.write('joined')\nthreading.Thread(target=late).start()";
    for (name, file, said, body) in [
        ("open", "kept.txt", "whole", open),
        ("asked", "asked.txt", "called", asked),
        ("thread", "late.txt", "joined", thread),
    ] {
        function(&user, name, &format!("{body}\nprint('no end of line', end='')\nreturn {{}}"));
        let program = format!("{name}_program");
        let body = body.trim_start_matches("global kept\n");
        script(&user, &program, &format!("{body}\nprint('no end of line', end='\\n{{}}')"));
        for tool in [name, &program] {
            let answer = answer(&user, tool, &[]);
            assert!(text(&answer["logs"]["stdout"]).starts_with("no end of line"), "{tool}: {answer}");
            let path = user.project().join(file);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), said, "{tool}");
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn streams_that_a_python_program_opened_anew_or_closed_lose_nothing() {
    let user = User::ready();
    for (name, body) in [
        (
            "reads",
            "import json\njson.load(open(0))\nkept = open('kept.txt', 'w')\nkept.write('whole')\nprint('{\"a\": 1}')",
        ),
        ("writes", "out = open(1, 'w', closefd=False)\nout.write('{\"a\": 1}\\n')"),
        ("closes", "import sys\nprint('{\"a\": 1}')\nsys.stdout.close()"),
        ("drops", "import sys\nprint('{\"a\": 1}')\nsys.stderr = None"),
    ] {
        script(&user, name, body);
        assert_eq!(answer(&user, name, &[])["data"], json!({"a": 1}), "{name}");
    }
    assert_eq!(std::fs::read_to_string(user.project().join("kept.txt")).unwrap(), "whole");
}

#[test]
fn python_names_the_file_and_the_line_that_failed() {
    let user = User::ready();
    let path = function(
        &user,
        "deep",
        "class Inner:\n    def fail(self):\n        return (lambda: 1 / 0)()\nInner().fail()",
    );
    let answer = failure(&user, "deep", &[], 1, "RYE0801");
    let said = text(&answer["logs"]["stderr"]);
    assert!(said.starts_with("Traceback") && !said.contains("<string>"), "{said}");
    let line =
        1 + std::fs::read_to_string(path).unwrap().lines().position(|line| line.contains("1 / 0")).unwrap();
    assert!(said.contains(&format!("deep.py\", line {line}, in <lambda>")), "{said}");
    function_with(&user, "broken", "break", "return {}");
    let answer = failure(&user, "broken", &[], 1, "RYE0801");
    let said = text(&answer["logs"]["stderr"]);
    assert!(text(&answer["error"]).contains("broken.py, line"), "{answer}");
    assert!(!said.contains("During handling"), "{said}");
}

#[test]
fn a_loud_failure_is_shown_in_part_and_given_whole() {
    let user = User::ready();
    let said = |flags: &[&str]| {
        let words = ["execute", "rye/bash", "command=seq 100000; exit 3"].iter().chain(flags);
        run(user.command().args(words))
    };
    let shown = said(&[]);
    assert_eq!(shown.exit, 1, "{shown}");
    assert!(shown.stderr.len() < 12 << 10, "{} bytes", shown.stderr.len());
    assert!(shown.stderr.contains("bytes more: --json has all of it"), "{}", shown.stderr);
    let whole = said(&["--json"]).error(1, "RYE0801");
    assert!(text(&whole["data"]["stdout"]).ends_with("99999\n100000\n"));
}

#[test]
fn a_tool_of_its_own_short_time_is_ended_and_says_so() {
    let user = User::ready();
    // How long Python takes to begin depends on the machine: it gets more time until it did.
    let printed = [1, 4, 16, 64].iter().find_map(|seconds| {
        let config = format!("CONFIG = {{'timeout': {seconds}}}");
        function_with(&user, "slow", &config, "import time\nprint('begun', flush=True)\ntime.sleep(600)");
        user.run(["lock", "remove", "team/slow"]);
        let answer = failure(&user, "slow", &[], 1, "RYE0802");
        assert_eq!(answer["error"], format!("Command timed out after {seconds} seconds"));
        Some(answer["logs"]["stdout"].clone()).filter(|printed| *printed != "")
    });
    assert_eq!(printed, Some(json!("begun\n")));
}

#[test]
fn parameters_named_like_settings_change_nothing_and_arrive_verbatim() {
    let user = User::ready();
    let body = "import os\nreturn {'params': params, 'cwd': os.getcwd(), 'evil': os.environ.get('EVIL'), 'project': project_path}";
    function_with(&user, "named", "CONFIG = {'timeout': 30}", body);
    let given = json!({
        "timeout": 0, "cwd": "/", "env": {"EVIL": "1"}, "env_config": {"env": {"EVIL": "1"}}, "command": "/bin/false",
        "args": ["-c", "raise SystemExit(9)"], "stdin": "null", "input_data": "null", "tool_path": "/etc/passwd",
        "project_path": "/etc", "params_json": "{}", "sandbox": {"level": "off"}, "config": {"timeout": 0},
        "result": "text", "RYE_PYTHON": "/bin/false", "runtime_lib": "/", "anchor_path": "/"
    });
    let project = user.project().display().to_string();
    let expected = json!({"params": given, "cwd": project, "evil": null, "project": project});
    assert_eq!(result_of(&user, "named", &given), expected);
    let words = ["timeout=0", "cwd=/", "command=/bin/false"];
    assert_eq!(
        result(&user, "named", &words)["params"],
        json!({"timeout": 0, "cwd": "/", "command": "/bin/false"})
    );
}

#[test]
fn templates_inside_a_parameter_stay_text() {
    let user = User::ready();
    function(&user, "echo", "return params");
    shell(
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
        let given = json!({"a": text, "b": "{a}"});
        assert_eq!(result_of(&user, "echo", &given), given);
        assert_eq!(result_of(&user, "vars", &given), json!(text));
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
fn defaults_are_filled_in_and_every_violation_is_listed() {
    let user = User::ready();
    function_with(&user, "open", &SCHEMA.replace("CLOSED", ""), "return params");
    assert_eq!(
        result(&user, "open", &["name=Ada", "more=1"]),
        json!({"name": "Ada", "times": 2, "flags": {"deep": true}, "more": 1})
    );
    let bad = json!({"name": "A", "times": 0, "list": [1, "x"]}).to_string();
    let answer = user.refused(["execute", "team/open", "--params", &bad], 2, "RYE0106");
    let mut paths: Vec<String> =
        answer["violations"].as_array().expect("violations").iter().map(|row| text(&row["path"])).collect();
    paths.sort();
    assert_eq!(paths, ["$.list[1]", "$.name", "$.times"]);
    for path in paths {
        assert!(text(&answer["error"]).contains(&path), "{answer}");
    }
    let answer = user.refused(["execute", "team/open"], 2, "RYE0106");
    assert_eq!(answer["violations"].as_array().map(Vec::len), Some(1), "{answer}");
}

#[test]
fn unknown_parameters_are_refused_where_the_schema_is_closed() {
    let user = User::ready();
    function_with(
        &user,
        "closed",
        &SCHEMA.replace("CLOSED", "    \"additionalProperties\": False,\n"),
        "return params",
    );
    let answer = user.refused(["execute", "team/closed", "name=Ada", "more=1"], 2, "RYE0106");
    assert!(text(&answer["error"]).contains("more"), "{answer}");
    result(&user, "closed", &["name=Ada"]);
}

#[test]
fn words_are_typed_by_the_schema() {
    let user = User::ready();
    function_with(&user, "typed", &SCHEMA.replace("CLOSED", ""), "return params");
    assert_eq!(
        result(
            &user,
            "typed",
            &["name=42", "times=3", "list=[1, 2.5]", "flags={\"deep\": false}", "free=true", "other=a=b"]
        ),
        json!({"name": "42", "times": 3, "list": [1, 2.5], "flags": {"deep": false}, "free": true, "other": "a=b"})
    );
    let answer = user.refused(["execute", "team/typed", "name=Ada", "times=many"], 2, "RYE0106");
    assert_eq!(answer["violations"][0]["path"], "$.times", "{answer}");
    user.refused(["execute", "team/typed", "name"], 2, "RYE0104");
}

#[test]
fn parameters_come_as_json_from_a_file_or_from_standard_input() {
    let user = User::ready();
    function(&user, "echo", "return params");
    let given = json!({"a": [1, {"b": null}], "ü": "→"});
    user.world.write("project/given.json", given.to_string());
    assert_eq!(result_of(&user, "echo", &given), given);
    assert_eq!(result(&user, "echo", &["--params", "@given.json"]), given);
    let words = ["--json", "execute", "team/echo", "--params", "-"];
    let run = run(user.command().args(words).write_stdin(given.to_string()));
    assert_eq!(run.json()["data"], given, "{run}");
    assert_eq!(result(&user, "echo", &["--params", "{\"a\": 1, \"b\": 2}", "a=3"]), json!({"a": 3, "b": 2}));
    for bad in ["[1]", "7", "{", "{\"a\": 1}x"] {
        user.refused(["execute", "team/echo", "--params", bad], 2, "RYE0106");
    }
    user.refused(["execute", "team/echo", "--params", "@missing.json"], 3, "RYE0202");
}

#[test]
fn a_shell_tool_gets_parameters_as_variables_and_as_json() {
    let user = User::ready();
    let body = "input=$(cat)\necho \"{\\\"name\\\": \\\"$RYE_PARAM_NAME\\\", \\\"list\\\": $RYE_PARAM_LIST, \\\"all\\\": $input, \\\"project\\\": \\\"$1\\\"}\"";
    shell(&user, "both", "", body);
    let given = json!({"name": "Ada", "list": [1, 2]});
    let project = user.project().display().to_string();
    assert_eq!(
        result_of(&user, "both", &given),
        json!({"name": "Ada", "list": [1, 2], "all": given, "project": project})
    );
}

#[test]
fn a_javascript_tool_gives_what_it_returns() {
    let user = User::ready();
    let head = "export const __version__ = \"1.0.0\";\nexport const __tool_type__ = \"javascript\";\nexport const __executor_id__ = \"rye/core/runtimes/node/RUNTIME\";\nexport const __category__ = \"team\";\nexport const __tool_description__ = \"Is run\";\n";
    let function = "export async function execute(params, project) { console.log('{\"evil\": 1}'); return [params, project]; }\n";
    signed(&user, "team/js", "js", &format!("{}{function}", head.replace("RUNTIME", "function")));
    let project = user.project().display().to_string();
    let answer = answer(&user, "js", &["a=1"]);
    assert_eq!(answer["data"], json!([{"a": 1}, project]));
    assert_eq!(answer["logs"]["stdout"], "{\"evil\": 1}\n");
    let program = "import { readFileSync } from 'node:fs';\nconst params = JSON.parse(readFileSync(0, 'utf8'));\nconsole.log('working');\nconsole.log(JSON.stringify(params.a));\n";
    signed(&user, "team/program", "mjs", &format!("{}{program}", head.replace("RUNTIME", "node")));
    assert_eq!(result(&user, "program", &["a=null"]), Value::Null);
}

/// The blocks of a page: language and text.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).filter_map(|rest| rest.split("```").next()).map(str::to_owned).collect()
}

#[test]
fn a_language_is_added_by_the_files_the_documentation_shows() {
    let user = User::ready();
    let page = include_str!("../../../../docs/writing-runtimes.md");
    let (yaml, perl) = (blocks(page, "yaml"), blocks(page, "perl"));
    user.write("tools/team/runtimes/perl.yaml", &yaml[0]);
    user.write("tools/rye/core/extractors/tool/tool_extractor.yaml", &yaml[1]);
    user.write("tools/team/count.pl", &perl[0]);
    for id in ["rye/core/extractors/tool/tool_extractor", "team/runtimes/perl", "team/count"] {
        user.ok(["sign", "tool", id]);
    }
    let answer = answer(&user, "count", &["text=one two three"]);
    assert_eq!((&answer["data"], &answer["logs"]), (&json!({"words": 3}), &json!({"stdout": "counting\n"})));
    user.refused(["execute", "team/count"], 2, "RYE0106");
}

#[test]
fn the_tools_the_documentation_shows_run() {
    let user = User::ready();
    let page = include_str!("../../../../docs/writing-tools.md");
    let python = blocks(page, "python");
    user.write("tools/team/greet.py", &python[0]);
    let lines = python.iter().find(|block| block.contains("Count the lines")).expect("lines");
    user.write("tools/team/lines.py", lines);
    user.write("tools/team/slug.js", &blocks(page, "javascript")[0]);
    user.write("tools/team/size.sh", &blocks(page, "bash")[0]);
    user.write("tools/team/run.yaml", &blocks(page, "yaml")[0]);
    user.ok(["sign", "tool", "team/*"]);
    assert_eq!(
        result(&user, "greet", &["name=Ada", "times=2"]),
        json!({"greeting": "Hello, Ada!Hello, Ada!"})
    );
    assert_eq!(result_of(&user, "lines", &json!({"text": "a\nb"})), json!({"lines": 2}));
    assert_eq!(result(&user, "slug", &["title=One Two"]), json!({"slug": "one-two"}));
    assert!(result(&user, "size", &["folder=.ai"])["kilobytes"].is_number());
    assert_eq!(result(&user, "run", &["command=echo '[1]'"]), json!([1]));
}
