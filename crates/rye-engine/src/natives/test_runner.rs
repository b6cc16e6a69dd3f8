//! `dev.test_runner`: runs the tests of a project's tools, `.ai/tests/**/*.test.yaml`.
//!
//! A file names a tool and cases; each case is an ordinary execution with the caller's rights, so what may not run, or
//! what the caller may not run, does not run here either. Test files are not signed: in a project that is not approved
//! none is read.
//! `assert` compares the whole answer (`status`, `data`, `error`, …): `path: value`, or `"path op value": true`.

use std::path::{Path, PathBuf};

use rye_exec::{NativeCall, NativeError, NativeTool};
use rye_item::condition::Condition;
use rye_item::{ItemId, ItemRef, ItemType, text, yaml};
use serde_json::{Map, Value, json};

use crate::engine::Engine;
use crate::verbs::execute::{self, Caller, Demand, Mode, Request};

const SUFFIX: &str = ".test.yaml";
const MOST_FILES: usize = 1000;
const MOST_BYTES: u64 = 1 << 20;
const MOST_DEPTH: usize = 16;

pub(super) struct TestRunner<'a> {
    pub(super) engine: &'a Engine,
    /// Who runs the tests.
    pub(super) request: &'a Request,
}

/// One case of a file.
struct Case {
    name: String,
    parameters: Map<String, Value>,
    tags: Vec<String>,
    conditions: Vec<(String, Condition, bool)>,
}

impl NativeTool for TestRunner<'_> {
    fn name(&self) -> &'static str {
        "dev.test_runner"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let parameter = |name: &str| call.parameters.get(name).and_then(Value::as_str);
        let root = call.project.join(rye_space::AI_FOLDER).join("tests");
        let mut files = Vec::new();
        find(&root, Path::new(""), 0, &mut files);
        files.sort();
        self.check(call, &files)?;
        let mut results = Vec::new();
        let (mut passed, mut failed) = (0_usize, 0_usize);
        for file in files {
            let shown = text::one_line(&file.display().to_string());
            if parameter("file").is_some_and(|wanted| !shown.contains(wanted)) {
                continue;
            }
            let (tool, cases) = match read(&root, &file) {
                Ok(read) => read,
                Err(problem) => {
                    failed += 1;
                    results.push(json!({"file": shown, "passed": false, "problems": [problem]}));
                    continue;
                }
            };
            if parameter("tool").is_some_and(|wanted| wanted != tool.id.as_str()) {
                continue;
            }
            for case in cases {
                if parameter("tag").is_some_and(|wanted| !case.tags.iter().any(|tag| tag == wanted)) {
                    continue;
                }
                if call.cancel.is_cancelled() {
                    return Err(NativeError::failed("cancelled").with(json!({"results": results})));
                }
                let problems = self.run(&tool, &case, call);
                if problems.is_empty() {
                    passed += 1
                } else {
                    failed += 1
                }
                results.push(json!({
                    "file": shown,
                    "tool": tool.id.to_string(),
                    "name": case.name,
                    "passed": problems.is_empty(),
                    "problems": problems,
                }));
            }
        }
        let summary =
            json!({"passed": passed, "failed": failed, "total": passed + failed, "results": results});
        if failed > 0 {
            return Err(
                NativeError::failed(format!("{failed} of {} tests failed", passed + failed)).with(summary)
            );
        }
        Ok(summary)
    }
}

impl TestRunner<'_> {
    /// Refuses tests of unapproved projects, and tests that run tests.
    fn check(&self, call: &NativeCall<'_>, files: &[PathBuf]) -> Result<(), NativeError> {
        if self.request.caller == Caller::Test {
            return Err(NativeError::denied("a test case cannot run the test runner"));
        }
        if !files.is_empty() && !self.engine.workspace.is_project_approved {
            let folder = text::one_line(&call.project.display().to_string());
            return Err(NativeError::denied(format!(
                "the project is not approved, and its test files are not signed: no test was run; \
                 a user who trusts its authors may approve it: rye trust '{folder}'"
            )));
        }
        Ok(())
    }

    /// Runs one case and says everything that is not as it should be.
    fn run(&self, tool: &ItemRef, case: &Case, call: &NativeCall<'_>) -> Vec<String> {
        let request = Request {
            item: tool.clone(),
            parameters: case.parameters.clone(),
            words: Vec::new(),
            mode: Mode::Run,
            wants_trace: false,
            demand: Demand::Frozen,
            cancel: call.cancel.clone(),
            progress: None,
            waits: None,
            // The file of tests is not signed: what it says has no one's consent.
            caller: Caller::Test,
            thread: None,
            door: None,
            grants: self.request.grants.clone(),
        };
        let allowed = match &self.request.grants {
            Some(grants) => grants.check_execute(tool, &case.parameters),
            None => Ok(()),
        };
        let executed = match allowed {
            Ok(()) => execute::execute(self.engine, &request),
            Err(reason) => return vec![text::one_line(&reason)],
        };
        let answer = match executed {
            Ok(answer) => answer.into_value(),
            Err(error) => {
                let mut object = error.details.as_ref().clone();
                object.insert("status".to_owned(), json!("error"));
                object.insert("error".to_owned(), json!(error.message));
                object.insert("code".to_owned(), json!(error.code.as_str()));
                Value::Object(object)
            }
        };
        let mut problems: Vec<String> = case
            .conditions
            .iter()
            .filter(|(_, condition, wanted)| condition.matches(&answer) != *wanted)
            .map(|(shown, ..)| format!("does not hold: {shown}"))
            .collect();
        // A case that asserts nothing asserts success.
        let is_success = answer.get("status") == Some(&json!("success"));
        if !is_success && (case.conditions.is_empty() || !problems.is_empty()) {
            let error = answer.get("error").and_then(Value::as_str).unwrap_or("it failed");
            problems.push(text::one_line(error));
        }
        problems
    }
}

fn find(root: &Path, below: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs_err::read_dir(root.join(below)) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let relative = below.join(entry.file_name());
        if kind.is_dir() && depth < MOST_DEPTH {
            find(root, &relative, depth + 1, files);
        } else if kind.is_file() && relative.to_string_lossy().ends_with(SUFFIX) && files.len() < MOST_FILES {
            files.push(relative);
        }
    }
}

fn read(root: &Path, file: &Path) -> Result<(ItemRef, Vec<Case>), String> {
    let (bytes, _) = lillux::file::read_beneath(root, file, MOST_BYTES).map_err(|error| error.to_string())?;
    let source = std::str::from_utf8(&bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let document = yaml::parse(source).map_err(|problem| problem.to_string())?.value;
    let id = document.get("tool").and_then(Value::as_str).ok_or("it names no `tool`")?;
    let id = ItemId::new(id).map_err(|error| error.to_string())?;
    let tests = document.get("tests").and_then(Value::as_array).ok_or("it has no list `tests`")?;
    let cases = tests.iter().enumerate().map(|(index, test)| case(index, test)).collect::<Result<_, _>>()?;
    Ok((ItemRef::new(ItemType::Tool, id), cases))
}

fn case(index: usize, test: &Value) -> Result<Case, String> {
    let name =
        test.get("name").and_then(Value::as_str).map_or_else(|| format!("#{}", index + 1), text::one_line);
    let mut conditions = Vec::new();
    for (key, expected) in test.get("assert").and_then(Value::as_object).into_iter().flatten() {
        let (condition, wanted) = assertion(key, expected).map_err(|error| format!("{name}: {error}"))?;
        let shown = text::one_line(&format!("{key}: {expected}"));
        conditions.push((shown, condition, wanted));
    }
    let tags = test.get("tags").and_then(Value::as_array).into_iter().flatten();
    Ok(Case {
        name,
        parameters: test.get("params").and_then(Value::as_object).cloned().unwrap_or_default(),
        tags: tags.filter_map(|tag| tag.as_str().map(str::to_owned)).collect(),
        conditions,
    })
}

/// `path: value`, or `"path op value": bool`.
fn assertion(key: &str, expected: &Value) -> Result<(Condition, bool), String> {
    let compile = |condition: Value| Condition::compile(&condition).map_err(|error| error.to_string());
    let key = key.trim();
    let Some((path, rest)) = key.split_once(' ') else {
        return Ok((compile(json!({"path": key, "op": "eq", "value": expected}))?, true));
    };
    let (word, value) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
    let operator = match word {
        "==" => "eq",
        "!=" => "ne",
        ">" => "gt",
        ">=" => "gte",
        "<" => "lt",
        "<=" => "lte",
        "contains" | "regex" | "exists" | "in" => word,
        other => {
            return Err(format!("`{}` is no operator in `{}`", text::one_line(other), text::one_line(key)));
        }
    };
    let value = value.trim();
    let is_text = matches!(operator, "contains" | "regex");
    let value = match serde_json::from_str::<Value>(value) {
        Ok(value) if !is_text || value.is_string() => value,
        _ => json!(value.trim_matches('\'')),
    };
    let wanted =
        expected.as_bool().ok_or_else(|| format!("`{}` takes true or false", text::one_line(key)))?;
    let condition = if operator == "exists" {
        json!({"path": path, "op": operator})
    } else {
        json!({"path": path, "op": operator, "value": value})
    };
    Ok((compile(condition)?, wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(key: &str, expected: &Value, answer: &Value) -> bool {
        let (condition, wanted) = assertion(key, expected).expect("an assertion");
        condition.matches(answer) == wanted
    }

    #[test]
    fn assertions_compare_what_stands_at_a_path() {
        let answer = json!({"status": "success", "data": {"count": 3, "name": "Ada", "list": [1, 2]}});
        for (key, expected) in [
            ("status", json!("success")),
            ("data.count", json!(3)),
            ("data.list", json!([1, 2])),
            ("data.count > 2", json!(true)),
            ("data.count >= 4", json!(false)),
            ("data.name contains da", json!(true)),
            ("data.name regex ^A.a$", json!(true)),
            ("data.name == Ada", json!(true)),
            ("data.none exists", json!(false)),
            ("data.count in [1, 3]", json!(true)),
            ("data.count != 3", json!(false)),
        ] {
            assert!(holds(key, &expected, &answer), "{key}: {expected}");
            if let Value::Bool(wanted) = expected {
                assert!(!holds(key, &json!(!wanted), &answer), "{key} both ways");
            }
        }
        assert!(!holds("data.count", &json!(4), &answer));
        assert!(assertion("a ~ b", &json!(true)).is_err());
        assert!(assertion("a == b", &json!("yes")).is_err());
    }
}
