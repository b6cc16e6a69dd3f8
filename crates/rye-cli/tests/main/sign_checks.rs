//! What `rye sign` checks before it signs: every problem and warning in one go, with the line it stands on.

use serde_json::{Value, json};

use crate::support::{User, text};

const MISPLACED: &str = r#"# Deploy

```xml
<directive name="deploy" version="1.0.0">
  <metadata>
    <description>Deploys</description>
    <category>team</category>
    <model teir="fast"/>
    <permisions><execute>*</execute></permisions>
    <hooks>
      <hook event="after_stepp"><condition path="a" op="is" value="1"/><action primary="execute" item_id="x"/></hook>
    </hooks>
  </metadata>
  <limits turns="3"/>
  <process><hooks/></process>
</directive>
```

Deploy it.
"#;

fn tool(executor: &str, rest: &str) -> String {
    format!(
        "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__executor_id__ = \"{executor}\"\n\
         __category__ = \"team\"\n__tool_description__ = \"Deploys\"\n{rest}"
    )
}

fn places(list: &Value) -> Vec<(u64, String)> {
    let rows = list.as_array().expect("a list").iter();
    rows.map(|row| (row["line"].as_u64().unwrap_or(0), text(&row["message"]))).collect()
}

#[test]
fn misplaced_tags_and_bad_hooks_are_refused() {
    let user = User::initialized();
    let path = user.write("directives/team/deploy.md", MISPLACED);
    let error = user.assert_refused(["sign", "directive", "team/deploy"], 9, "RYE0301");
    let expected = [
        (8, "unknown attribute `teir` of <model>: did you mean `tier`?"),
        (11, "unknown event `after_stepp`: did you mean `after_step`?"),
        (14, "<limits> belongs inside <metadata>"),
        (15, "<hooks> belongs inside <metadata>"),
        (0, "Missing required field: author"),
    ];
    let problems = places(&error["problems"]);
    for (line, message) in expected {
        assert!(problems.contains(&(line, message.to_owned())), "{message}: {problems:?}");
    }
    assert_eq!(problems.len(), 6, "{problems:?}");
    let warnings = places(&error["warnings"]);
    assert_eq!(
        warnings,
        [(9, "unknown tag <permisions> inside <metadata>: did you mean <permissions>?".to_owned())]
    );
    assert_eq!(std::fs::read_to_string(path).expect("read"), MISPLACED);
}

#[test]
fn problems_show_their_line_and_caret() {
    let user = User::initialized();
    user.write("directives/team/deploy.md", MISPLACED);
    let run = user.run(["sign", "directive", "team/deploy"]);
    assert!(
        run.stderr.contains("\n       |\n    14 |   <limits turns=\"3\"/>\n       |   ^^^^^^^\n"),
        "{}",
        run.stderr
    );
    assert!(
        run.stderr.contains("    8 |     <model teir=\"fast\"/>\n      |            ^^^^\n"),
        "{}",
        run.stderr
    );
}

#[test]
fn invalid_schema_and_missing_function_are_refused() {
    let user = User::initialized();
    let schema =
        "CONFIG_SCHEMA = {\"type\": \"objct\", \"required\": \"a\"}\n\ndef run(params):\n    return {}\n";
    user.write("tools/team/deploy.py", tool("rye/core/runtimes/python/function", schema));
    let error = user.assert_refused(["sign", "tool", "team/deploy"], 9, "RYE0301");
    let problems = places(&error["problems"]);
    let lines: Vec<u64> = problems.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 6, 6], "{problems:?}");
    assert!(problems[0].1.contains("calls the function `execute`"), "{problems:?}");
    assert!(problems[1].1.starts_with("the schema of its parameters is not valid: $."), "{problems:?}");
    let pattern =
        "CONFIG_SCHEMA = {\"properties\": {\"a\": {\"pattern\": \"(\"}}}\n\ndef execute(params): pass\n";
    user.write("tools/team/deploy.py", tool("rye/core/runtimes/python/function", pattern));
    user.assert_refused(["sign", "tool", "team/deploy"], 9, "RYE0301");
}

#[test]
fn plain_modules_stay_signable() {
    let user = User::initialized();
    let module = "__version__ = \"1.0.0\"\n__tool_type__ = \"python\"\n__category__ = \"team\"\n\
                  __tool_description__ = \"Helpers\"\n__tool_name__ = \"helpers\"\n\ndef add(a, b):\n    return a + b\n";
    user.write("tools/team/helpers.py", module);
    let signed = user.data(["sign", "tool", "team/helpers"]);
    assert_eq!(signed.get("warnings"), None, "{signed}");
}

#[test]
fn missing_executor_warns_and_does_not_run() {
    let user = User::initialized();
    user.write("tools/team/deploy.py", tool("team/no_such_runtime", "__tool_name__ = \"deploy\"\n"));
    let signed = user.data(["sign", "tool", "team/deploy"]);
    assert_eq!(
        signed["warnings"],
        json!([{
            "message": "it cannot run yet: Executor not found: team/no_such_runtime (chain: team/deploy → \
                        team/no_such_runtime)",
            "field": "executor_id", "line": 3, "column": 1,
            "snippet": {"text": "__executor_id__ = \"team/no_such_runtime\"", "offset": 0, "length": 15},
        }])
    );
    user.assert_refused(["execute", "tool", "team/deploy"], 9, "RYE0313");
}

#[test]
fn syntax_errors_point_at_their_line() {
    let user = User::initialized();
    let first_problem = |body: &str| {
        user.write("tools/team/deploy.py", tool("rye/core/runtimes/python/function", body));
        let error = user.assert_refused(["sign", "tool", "team/deploy"], 9, "RYE0301");
        assert_eq!(error.get("warnings"), None, "{error}");
        places(&error["problems"]).remove(0)
    };
    let name = "__tool_name__ = \"deploy\"\n\n";
    let colon = format!("{name}def execute(params, project_path)\n    x = 1\n    return {{\"a\": x}}\n");
    assert_eq!(first_problem(&colon), (8, "Syntax error".to_owned()));
    let deep = format!("{name}def execute(params):\n    x = 1\n      y = 2\n");
    let reason = "Indentation error: the line does not begin where the lines of its block do";
    assert_eq!(first_problem(&deep), (10, reason.to_owned()));
    // What names it has is not known.
    assert_eq!(first_problem("def execute(:\n").1, "Syntax error");
}

#[test]
fn misspelled_executor_names_the_nearest() {
    let user = User::initialized();
    let meant = "did you mean `rye/core/runtimes/python/function`?";
    let source =
        tool("rye/core/runtimes/pyton/function", "__tool_name__ = \"deploy\"\n\ndef execute(params): pass\n");
    user.write("tools/team/deploy.py", source);
    let signed = user.data(["sign", "tool", "team/deploy"]);
    assert!(text(&signed["warnings"][0]["message"]).ends_with(meant), "{signed}");
    let error = user.assert_refused(["execute", "tool", "team/deploy"], 9, "RYE0313");
    assert_eq!(error["hints"][0], meant, "{error}");
    user.write("tools/team/deploy.py", tool("python_runtme", "__tool_name__ = \"deploy\"\n"));
    user.ok(["sign", "tool", "team/deploy"]);
    let error = user.assert_refused(["execute", "tool", "team/deploy"], 9, "RYE0313");
    assert_eq!(error["hints"][0], "did you mean `python_runtime`?", "{error}");
}

#[test]
fn knowledge_without_metadata_names_every_field() {
    let user = User::initialized();
    user.write("knowledge/team/faq.md", "# Questions\n");
    let error = user.assert_refused(["sign", "knowledge", "team/faq"], 9, "RYE0301");
    let problem = text(&error["problems"][0]["message"]);
    for field in ["name", "title", "version", "entry_type", "category"] {
        assert!(problem.contains(field), "{problem}");
    }
}
