//! `dev.test_runner`: runs the tests of a project's tools, `.ai/tests/**/*.test.yaml`.
//!
//! A file names a tool and cases; each case is an ordinary execution with the caller's rights, so what may not run, or
//! what the caller may not run, does not run here either. Test files are not signed: in a project that is not approved
//! none is read, and one whose tool asks for more than the default runs for a person only after they agreed to it
//! (`verbs/test_files.rs`).
//! `assert` compares the whole answer (`status`, `data`, `error`, …): `path: value`, or `"path op value": true`.

use std::path::{Path, PathBuf};

use lillux::Digest;
use rye_exec::{NativeCall, NativeError, NativeTool};
use rye_item::condition::Condition;
use rye_item::{ItemId, ItemRef, ItemType, text, yaml};
use rye_thread::envelope::ResultEnvelope;
use serde_json::{Map, Value, json};

use crate::engine::Engine;
use crate::error::ErrorKind;
use crate::verbs::execute::{self, Caller, ExecuteRequest, LockMode};
use crate::verbs::test_files::TestRecord;

const TEST_FILE_SUFFIX: &str = ".test.yaml";
const MAX_FILES: usize = 1000;
const MAX_BYTES: u64 = 1 << 20;
const MAX_DEPTH: usize = 16;

pub(super) struct TestRunner<'a> {
    pub(super) engine: &'a Engine,
    /// Who runs the tests.
    pub(super) request: &'a ExecuteRequest,
}

/// A test file as it was read.
pub(crate) struct TestFile {
    pub(crate) tool: ItemRef,
    cases: Vec<TestCase>,
    pub(crate) digest: Digest,
}

/// One case of a file.
struct TestCase {
    name: String,
    parameters: Map<String, Value>,
    tags: Vec<String>,
    assertions: Vec<Assertion>,
}

/// What a case expects of the answer.
struct Assertion {
    condition: Condition,
    /// Whether the condition is to hold.
    wanted: bool,
    path: String,
    /// What is expected at the path, in words.
    expected: String,
}

impl Assertion {
    /// What is wrong with an answer: what was expected, and what was found.
    fn problem(&self, response: &Value) -> Option<String> {
        if self.condition.matches(response) == self.wanted {
            return None;
        }
        let found = match rye_item::condition::resolve_path(response, &self.path) {
            Some(found) => shorten(&text::one_line(&found.to_string())),
            None => "nothing".to_owned(),
        };
        Some(format!("{}: expected {}, found {found}", self.path, self.expected))
    }
}

/// How much of a value is shown.
const MAX_FOUND_CHARS: usize = 200;

fn shorten(text: &str) -> String {
    match text.char_indices().nth(MAX_FOUND_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.to_owned(),
    }
}

impl NativeTool for TestRunner<'_> {
    fn name(&self) -> &'static str {
        "dev.test_runner"
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        let parameter = |name: &str| call.parameters.get(name).and_then(Value::as_str);
        let root = call.project.join(rye_space::AI_FOLDER).join("tests");
        let files = test_files(&root);
        self.check_allowed(call, &files)?;
        // A thread's cases are held to its grants, and an agent may run the tool itself.
        let record = (self.request.caller == Caller::Person).then(|| TestRecord::read(self.engine));
        let mut results = Vec::new();
        let (mut passed, mut failed) = (0_usize, 0_usize);
        for file in files {
            let file_text = text::one_line(&file.display().to_string());
            if parameter("file").is_some_and(|filter| !file_text.contains(filter)) {
                continue;
            }
            let TestFile { tool, cases, digest } = match read_test_file(&root, &file) {
                Ok(read) => read,
                Err(problem) => {
                    failed += 1;
                    results.push(json!({"file": file_text, "passed": false, "problems": [problem]}));
                    continue;
                }
            };
            if parameter("tool").is_some_and(|filter| filter != tool.id.as_str()) {
                continue;
            }
            let new = record.as_ref().and_then(|record| record.find_new(self.engine, &file, &tool, &digest));
            let refusal = new.filter(|new| !new.asks.is_empty()).map(|new| new.refusal());
            for case in cases {
                if parameter("tag").is_some_and(|filter| !case.tags.iter().any(|tag| tag == filter)) {
                    continue;
                }
                if call.cancel.is_cancelled() {
                    return Err(NativeError::failed("cancelled").with_data(json!({"results": results})));
                }
                let problems = match &refusal {
                    Some(refusal) => vec![refusal.clone()],
                    None => self.run_case(&tool, &case, call),
                };
                if problems.is_empty() {
                    passed += 1
                } else {
                    failed += 1
                }
                results.push(json!({
                    "file": file_text,
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
            return Err(NativeError::failed(format!("{failed} of {} tests failed", passed + failed))
                .with_data(summary));
        }
        Ok(summary)
    }
}

impl TestRunner<'_> {
    /// Refuses tests of unapproved projects, and tests that run tests.
    fn check_allowed(&self, call: &NativeCall<'_>, files: &[PathBuf]) -> Result<(), NativeError> {
        if self.request.caller == Caller::Test {
            return Err(NativeError::denied("a test case cannot run the test runner"));
        }
        if !files.is_empty() && !self.engine.workspace.is_project_approved {
            let folder = text::one_line(&call.project.display().to_string());
            return Err(NativeError::denied(format!(
                "the project is not approved, and its test files are not signed: no test was run; \
                 a user who trusts its authors may approve it: rye join, or rye trust '{folder}'"
            )));
        }
        Ok(())
    }

    /// Runs one case and says everything that is not as it should be.
    fn run_case(&self, tool: &ItemRef, case: &TestCase, call: &NativeCall<'_>) -> Vec<String> {
        let request = ExecuteRequest::new(tool.clone(), call.cancel.clone())
            .with_parameters(case.parameters.clone())
            .with_lock_mode(LockMode::Frozen)
            // The file of tests is not signed: nothing in it is a person's consent.
            .with_caller(Caller::Test)
            .with_grants(self.request.grants.clone());
        let allowed = match &self.request.grants {
            Some(grants) => grants.check_execute(tool, &case.parameters),
            None => Ok(()),
        };
        let executed = match allowed {
            Ok(()) => execute::execute(self.engine, &request),
            Err(reason) => return vec![text::one_line(&reason)],
        };
        let (response, is_refused) = match executed {
            Ok(response) => (response.into_value(), false),
            Err(error) => (error.to_value(None), error.code.kind() == ErrorKind::Lock),
        };
        let mut problems: Vec<String> =
            case.assertions.iter().filter_map(|assertion| assertion.problem(&response)).collect();
        // A case that asserts nothing asserts success.
        let failure = match ResultEnvelope::parse(&response) {
            ResultEnvelope::Success { .. } => None,
            ResultEnvelope::Failure { error, .. } => Some(error),
            ResultEnvelope::Plain(_) => Some("it failed"),
        };
        if let Some(error) = failure.filter(|_| case.assertions.is_empty() || !problems.is_empty()) {
            if is_refused {
                // It did not run: what it should have answered is not what is wrong.
                problems.clear();
            }
            problems.push(text::one_line(error));
        }
        problems
    }
}

/// The test files below `root`, in order.
pub(crate) fn test_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    find_test_files(root, Path::new(""), 0, &mut files);
    files.sort();
    files
}

fn find_test_files(root: &Path, below: &Path, depth: usize, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs_err::read_dir(root.join(below)) else { return };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let relative = below.join(entry.file_name());
        if kind.is_dir() && depth < MAX_DEPTH {
            find_test_files(root, &relative, depth + 1, files);
        } else if kind.is_file()
            && relative.to_string_lossy().ends_with(TEST_FILE_SUFFIX)
            && files.len() < MAX_FILES
        {
            files.push(relative);
        }
    }
}

pub(crate) fn read_test_file(root: &Path, file: &Path) -> Result<TestFile, String> {
    let (bytes, _) = lillux::file::read_beneath(root, file, MAX_BYTES).map_err(|error| error.to_string())?;
    let source = std::str::from_utf8(&bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let document = yaml::parse(source).map_err(|problem| problem.to_string())?.value;
    let id = document.get("tool").and_then(Value::as_str).ok_or("it has no `tool`")?;
    let id = ItemId::new(id).map_err(|error| error.to_string())?;
    let tests = document.get("tests").and_then(Value::as_array).ok_or("it has no list `tests`")?;
    let cases =
        tests.iter().enumerate().map(|(index, test)| parse_case(index, test)).collect::<Result<_, _>>()?;
    Ok(TestFile { tool: ItemRef::new(ItemType::Tool, id), cases, digest: Digest::of(&bytes) })
}

fn parse_case(index: usize, test: &Value) -> Result<TestCase, String> {
    let name =
        test.get("name").and_then(Value::as_str).map_or_else(|| format!("#{}", index + 1), text::one_line);
    let mut assertions = Vec::new();
    for (key, expected) in test.get("assert").and_then(Value::as_object).into_iter().flatten() {
        assertions.push(parse_assertion(key, expected).map_err(|error| format!("{name}: {error}"))?);
    }
    let tags = test.get("tags").and_then(Value::as_array).into_iter().flatten();
    Ok(TestCase {
        name,
        parameters: test.get("params").and_then(Value::as_object).cloned().unwrap_or_default(),
        tags: tags.filter_map(|tag| tag.as_str().map(str::to_owned)).collect(),
        assertions,
    })
}

/// `path: value`, or `"path op value": bool`.
fn parse_assertion(key: &str, expected: &Value) -> Result<Assertion, String> {
    let compile = |condition: Value| Condition::compile(&condition).map_err(|error| error.to_string());
    let key = key.trim();
    let Some((path, rest)) = key.split_once(' ') else {
        return Ok(Assertion {
            condition: compile(json!({"path": key, "op": "eq", "value": expected}))?,
            wanted: true,
            path: text::one_line(key),
            expected: text::one_line(&expected.to_string()),
        });
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
            return Err(format!("unknown operator `{}` in `{}`", text::one_line(other), text::one_line(key)));
        }
    };
    let value = value.trim();
    let is_text = matches!(operator, "contains" | "regex");
    let value = match serde_json::from_str::<Value>(value) {
        Ok(value) if !is_text || value.is_string() => value,
        _ => json!(value.trim_matches('\'')),
    };
    let value_text = value.to_string();
    let expected_result =
        expected.as_bool().ok_or_else(|| format!("`{}` takes true or false", text::one_line(key)))?;
    let condition = if operator == "exists" {
        json!({"path": path, "op": operator})
    } else {
        json!({"path": path, "op": operator, "value": value})
    };
    let not = if expected_result { "" } else { "not " };
    let expected = match operator {
        "exists" => format!("{not}to exist"),
        _ => format!("{not}{word} {value_text}"),
    };
    Ok(Assertion {
        condition: compile(condition)?,
        wanted: expected_result,
        path: text::one_line(path),
        expected: text::one_line(&expected),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_satisfied(key: &str, expected: &Value, response: &Value) -> bool {
        parse_assertion(key, expected).expect("an assertion").problem(response).is_none()
    }

    #[test]
    fn assertions_compare_values_at_a_path() {
        let response = json!({"status": "success", "data": {"count": 3, "name": "Ada", "list": [1, 2]}});
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
            assert!(is_satisfied(key, &expected, &response), "{key}: {expected}");
            if let Value::Bool(wanted) = expected {
                assert!(!is_satisfied(key, &json!(!wanted), &response), "{key} both ways");
            }
        }
        assert!(!is_satisfied("data.count", &json!(4), &response));
        assert!(parse_assertion("a ~ b", &json!(true)).is_err());
        assert!(parse_assertion("a == b", &json!("yes")).is_err());
    }

    #[test]
    fn problems_say_expected_and_found() {
        let response = json!({"data": {"count": 3}});
        let problem = |key: &str, expected: Value| {
            parse_assertion(key, &expected).expect("an assertion").problem(&response)
        };
        assert_eq!(problem("data.count", json!(4)), Some("data.count: expected 4, found 3".to_owned()));
        assert_eq!(
            problem("data.count > 5", json!(true)),
            Some("data.count: expected > 5, found 3".to_owned())
        );
        let not_less = problem("data.count < 5", json!(false));
        assert_eq!(not_less, Some("data.count: expected not < 5, found 3".to_owned()));
        let missing = problem("data.name exists", json!(true));
        assert_eq!(missing, Some("data.name: expected to exist, found nothing".to_owned()));
    }
}
