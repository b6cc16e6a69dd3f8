//! What a run gave: a result of any JSON value, or a failure with what was there.

use rye_item::json::parse_unique;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::invocation::ResultMode;

/// What a tool printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RunLogs {
    /// What it printed, its result aside.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stdout: String,
    /// What it printed on its error channel.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
}

/// How a run ended that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunFailure {
    /// The tool itself says so, or ended badly.
    Tool(String),
    /// It took too long.
    TimedOut(String),
    /// It was cancelled.
    Cancelled,
    /// The sandbox stopped it.
    StoppedBySandbox(String),
    /// Policy refused it before or while it ran.
    Denied(String),
}

impl RunFailure {
    /// What happened, in words.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::Tool(message)
            | Self::TimedOut(message)
            | Self::StoppedBySandbox(message)
            | Self::Denied(message) => message,
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    /// The tool's own result; of a failure, what was there.
    pub data: Value,
    /// Why it failed, if it did.
    pub failure: Option<RunFailure>,
    /// What it printed.
    pub logs: RunLogs,
    /// Whether anything was cut.
    pub is_truncated: bool,
}

/// What a process left behind, its end aside.
#[derive(Clone, Debug, Default)]
pub struct ProcessOutput {
    /// Its output.
    pub stdout: String,
    /// Its error output.
    pub stderr: String,
    /// Whether its output was cut in the middle.
    pub is_stdout_cut: bool,
    /// Whether its error output was cut in the middle.
    pub is_stderr_cut: bool,
    /// What it wrote to its result channel, and whether that was cut.
    pub channel: Option<(Vec<u8>, bool)>,
}

/// How a process ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessExit {
    /// With a code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// Reads the result of a process that ended by itself.
#[must_use]
pub fn from_process_output(mode: ResultMode, exit: ProcessExit, output: ProcessOutput) -> RunOutcome {
    let is_truncated = output.is_stdout_cut
        || output.is_stderr_cut
        || output.channel.as_ref().is_some_and(|(_, is_cut)| *is_cut);
    let code = match exit {
        ProcessExit::Code(code) => code,
        ProcessExit::Signal(_) => -1,
    };
    let raw = |output: &ProcessOutput| json!({"stdout": output.stdout, "stderr": output.stderr, "return_code": code});
    let (result, stdout) = match mode {
        ResultMode::Channel | ResultMode::UniqueChannel => {
            (parse_channel(&output, mode == ResultMode::UniqueChannel), output.stdout.clone())
        }
        ResultMode::LastJsonLine => parse_last_json_line(&output),
        ResultMode::WholeJsonObject => (parse_single_object(&output), output.stdout.clone()),
        ResultMode::Streams => {
            let streams = json!({
                "stdout": output.stdout,
                "stderr": output.stderr,
                "exit_code": code,
                "return_code": code,
                "truncated": is_truncated,
            });
            (ParsedResult::Result(streams), String::new())
        }
        ResultMode::Text => (ParsedResult::Result(Value::from(output.stdout.as_str())), String::new()),
    };
    let (data, unreadable) = match result {
        ParsedResult::Result(value) => (value, None),
        ParsedResult::Missing if matches!(mode, ResultMode::Channel | ResultMode::UniqueChannel) => {
            (Value::Null, None)
        }
        ParsedResult::Missing => (raw(&output), None),
        ParsedResult::Unreadable(why) => (raw(&output), Some(why)),
    };
    let failure = match exit {
        ProcessExit::Code(0) => reported_failure(&data, &output.stderr).or(unreadable),
        ProcessExit::Code(code) => Some(
            reported_error(&data)
                .unwrap_or_else(|| describe_exit(&format!("exit code {code}"), &output.stderr)),
        ),
        ProcessExit::Signal(signal) => {
            Some(describe_exit(&format!("ended by signal {signal}"), &output.stderr))
        }
    };
    RunOutcome {
        data,
        failure: failure.map(RunFailure::Tool),
        // What is the result itself is not told twice.
        logs: RunLogs {
            stdout,
            stderr: if mode == ResultMode::Streams { String::new() } else { output.stderr },
        },
        is_truncated,
    }
}

enum ParsedResult {
    Result(Value),
    Missing,
    Unreadable(String),
}

fn parse_channel(output: &ProcessOutput, is_unique: bool) -> ParsedResult {
    let bytes = match &output.channel {
        None => return ParsedResult::Missing,
        Some((bytes, _)) if bytes.is_empty() => return ParsedResult::Missing,
        Some((_, true)) => {
            return ParsedResult::Unreadable("the result is larger than allowed".to_owned());
        }
        Some((bytes, false)) => bytes,
    };
    let parsed = if is_unique { parse_unique(bytes) } else { serde_json::from_slice(bytes) };
    match parsed {
        Ok(value) => ParsedResult::Result(value),
        Err(error) if error.is_data() => ParsedResult::Unreadable(format!("the result has a {error}")),
        Err(error) => ParsedResult::Unreadable(format!("the result is not JSON: {error}")),
    }
}

/// The output as one JSON object. Whatever else stands there may be the rest of an answer that says the opposite.
fn parse_single_object(output: &ProcessOutput) -> ParsedResult {
    let printed = output.stdout.trim();
    match parse_unique(printed.as_bytes()) {
        Ok(value @ Value::Object(_)) if !output.is_stdout_cut => ParsedResult::Result(value),
        _ if printed.is_empty() => ParsedResult::Missing,
        Err(error) if error.is_data() => ParsedResult::Unreadable(format!("what it printed has a {error}")),
        _ => ParsedResult::Unreadable(
            "what it printed isn't exactly one JSON object: `{}` has no opinion, logs belong on stderr"
                .to_owned(),
        ),
    }
}

/// The last line that is JSON, and the output without it. An output that is JSON as a whole counts as one line.
fn parse_last_json_line(output: &ProcessOutput) -> (ParsedResult, String) {
    let stdout = &output.stdout;
    if !output.is_stdout_cut
        && !stdout.trim().is_empty()
        && let Ok(value) = serde_json::from_str(stdout.trim())
    {
        return (ParsedResult::Result(value), String::new());
    }
    let mut end = stdout.len();
    for line in stdout.rsplit('\n') {
        let start = end - line.len();
        if !line.trim().is_empty()
            && let Ok(value) = serde_json::from_str(line.trim())
        {
            let rest = format!("{}{}", &stdout[..start], stdout.get(end + 1..).unwrap_or_default());
            return (ParsedResult::Result(value), rest);
        }
        end = start.saturating_sub(1);
    }
    (ParsedResult::Missing, stdout.clone())
}

fn reported_error(data: &Value) -> Option<String> {
    let text = |key: &str| data.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    text("error").map(rye_item::text::one_line)
}

/// An object that says `success: false` is a failure, whatever the exit code.
fn reported_failure(data: &Value, stderr: &str) -> Option<String> {
    let success = data.as_object().and_then(|map: &Map<String, Value>| map.get("success"))?;
    let is_false = match success {
        Value::Bool(success) => !success,
        Value::Null => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    };
    is_false
        .then(|| reported_error(data).unwrap_or_else(|| describe_exit("the tool reports a failure", stderr)))
}

/// What happened, with the last line the tool said about it.
fn describe_exit(what: &str, stderr: &str) -> String {
    match stderr.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{what}: {}", rye_item::text::one_line(line.trim())),
        None => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stdout: &str) -> ProcessOutput {
        ProcessOutput { stdout: stdout.to_owned(), ..ProcessOutput::default() }
    }

    fn parse_stdout(stdout: &str) -> (Value, String) {
        let outcome = from_process_output(ResultMode::LastJsonLine, ProcessExit::Code(0), output(stdout));
        assert_eq!(outcome.failure, None);
        (outcome.data, outcome.logs.stdout)
    }

    #[test]
    fn any_json_value_is_a_result() {
        for value in [json!([1]), json!(7), json!(null), json!({}), json!([]), json!("x"), json!(false)] {
            assert_eq!(parse_stdout(&format!("{value}\n")), (value.clone(), String::new()));
            let channel = Some((value.to_string().into_bytes(), false));
            let outcome = from_process_output(
                ResultMode::Channel,
                ProcessExit::Code(0),
                ProcessOutput { channel, ..output("hi\n") },
            );
            assert_eq!(
                (outcome.data, outcome.failure, outcome.logs.stdout),
                (value, None, "hi\n".to_owned())
            );
        }
    }

    #[test]
    fn last_json_line_is_the_result() {
        assert_eq!(parse_stdout("a\n{\"x\":1}\nb\n"), (json!({"x": 1}), "a\nb\n".to_owned()));
        assert_eq!(parse_stdout("{\n \"x\": 1\n}\n"), (json!({"x": 1}), String::new()));
        assert_eq!(parse_stdout("1\n2\n"), (json!(2), "1\n".to_owned()));
        let (data, logs) = parse_stdout("plain\n");
        assert_eq!(data, json!({"stdout": "plain\n", "stderr": "", "return_code": 0}));
        assert_eq!(logs, "plain\n");
    }

    #[test]
    fn whole_output_is_one_object() {
        let parse = |output: ProcessOutput| {
            let outcome = from_process_output(ResultMode::WholeJsonObject, ProcessExit::Code(0), output);
            (outcome.data, outcome.failure.map(|failure| failure.message().to_owned()))
        };
        for printed in ["{}", " {\"call\": {\"block\": \"no\"}}\n", "{\n}\n\n"] {
            let value: Value = serde_json::from_str(printed).expect("JSON");
            assert_eq!(parse(output(printed)), (value, None));
        }
        let rest = [
            "{}\n{}",
            "{} {}",
            "{}\nbye",
            "hi\n{}",
            "{}\n{\"call\": {\"block",
            "[]",
            "[{}]",
            "7",
            "\"{}\"",
            "{}\0",
        ];
        for printed in rest {
            let failure = parse(output(printed)).1;
            assert_eq!(
                failure.as_deref(),
                Some(
                    "what it printed isn't exactly one JSON object: `{}` has no opinion, logs belong on stderr"
                ),
                "{printed}"
            );
        }
        assert!(parse(ProcessOutput { is_stdout_cut: true, ..output("{}") }).1.is_some());
        assert_eq!(parse(output("\n")).1, None, "silence is judged by who asked");
    }

    #[test]
    fn policy_answer_has_each_key_once() {
        for text in [
            r#"{"call":{"block":"no"},"call":{}}"#,
            r#"{"call":{"block":"no","block":null}}"#,
            r#"{"call":{"arguments":{"path":"a","p\u0061th":"b"}}}"#,
            r#"{"rows":[{"a":1,"a":1}]}"#,
        ] {
            let printed =
                from_process_output(ResultMode::WholeJsonObject, ProcessExit::Code(0), output(text));
            let channel = Some((text.as_bytes().to_vec(), false));
            let channel = ProcessOutput { channel, ..ProcessOutput::default() };
            let returned =
                from_process_output(ResultMode::UniqueChannel, ProcessExit::Code(0), channel.clone());
            for outcome in [printed, returned] {
                let failure = outcome.failure.as_ref().map(RunFailure::message).unwrap_or_default();
                assert!(failure.contains("duplicate key `"), "{text}: {failure}");
                assert_eq!(outcome.data.get("call"), None, "{text}");
            }
            // What decides nothing is read as before.
            let other = from_process_output(ResultMode::Channel, ProcessExit::Code(0), channel);
            assert_eq!(other.failure, None, "{text}");
        }
        let silent = ProcessOutput::default();
        let outcome = from_process_output(ResultMode::UniqueChannel, ProcessExit::Code(0), silent);
        assert_eq!((outcome.data, outcome.failure), (Value::Null, None));
    }

    #[test]
    fn failures_keep_data_and_reason() {
        let check = |exit, stdout: &str, stderr: &str| {
            let left = ProcessOutput { stderr: stderr.to_owned(), ..output(stdout) };
            let outcome = from_process_output(ResultMode::LastJsonLine, exit, left);
            (outcome.data, outcome.failure.map(|failure| failure.message().to_owned()))
        };
        let reported = json!({"success": false, "error": "no such city"});
        assert_eq!(
            check(ProcessExit::Code(0), &reported.to_string(), ""),
            (reported.clone(), Some("no such city".to_owned()))
        );
        assert_eq!(check(ProcessExit::Code(1), &reported.to_string(), "").1, Some("no such city".to_owned()));
        assert_eq!(
            check(ProcessExit::Code(3), "", "a\nValueError: b\n").1,
            Some("exit code 3: ValueError: b".to_owned())
        );
        assert_eq!(check(ProcessExit::Signal(9), "", "").1, Some("ended by signal 9".to_owned()));
        assert_eq!(check(ProcessExit::Code(0), "{\"success\": true, \"error\": \"x\"}", "").1, None);
        let cut = ProcessOutput { channel: Some((b"[1".to_vec(), true)), ..ProcessOutput::default() };
        let outcome = from_process_output(ResultMode::Channel, ProcessExit::Code(0), cut);
        assert_eq!(outcome.failure, Some(RunFailure::Tool("the result is larger than allowed".to_owned())));
        assert!(outcome.is_truncated);
    }
}
