//! What a run gave: a result of any JSON value, or a failure with what was there.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::invocation::ResultMode;

/// What a tool printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Logs {
    /// What it printed, its result aside.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stdout: String,
    /// What it printed on its error channel.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stderr: String,
}

/// How a run ended that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The tool itself says so, or ended badly.
    Tool(String),
    /// It took too long.
    TimedOut(String),
    /// Somebody asked for the end.
    Cancelled,
    /// The sandbox stopped it.
    Stopped(String),
    /// Policy refused it before or while it ran.
    Denied(String),
}

impl Failure {
    /// What happened, in words.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Self::Tool(message)
            | Self::TimedOut(message)
            | Self::Stopped(message)
            | Self::Denied(message) => message,
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The tool's own result; of a failure, what was there.
    pub data: Value,
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// What it printed.
    pub logs: Logs,
    /// Whether anything was cut.
    pub is_truncated: bool,
}

/// What a process left behind, its end aside.
#[derive(Clone, Debug, Default)]
pub struct Printed {
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
pub enum Exit {
    /// With a code.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

/// Reads the result of a process that ended by itself.
#[must_use]
pub fn of_process(mode: ResultMode, exit: Exit, printed: Printed) -> Outcome {
    let is_truncated = printed.is_stdout_cut
        || printed.is_stderr_cut
        || printed.channel.as_ref().is_some_and(|(_, is_cut)| *is_cut);
    let code = match exit {
        Exit::Code(code) => code,
        Exit::Signal(_) => -1,
    };
    let raw =
        |printed: &Printed| json!({"stdout": printed.stdout, "stderr": printed.stderr, "return_code": code});
    let (result, stdout) = match mode {
        ResultMode::Channel => (from_channel(&printed), printed.stdout.clone()),
        ResultMode::LastJsonLine => from_output(&printed),
        ResultMode::Streams => {
            let streams = json!({
                "stdout": printed.stdout,
                "stderr": printed.stderr,
                "exit_code": code,
                "return_code": code,
                "truncated": is_truncated,
            });
            (Found::Result(streams), String::new())
        }
        ResultMode::Text => (Found::Result(Value::from(printed.stdout.as_str())), String::new()),
    };
    let (data, unreadable) = match result {
        Found::Result(value) => (value, None),
        Found::Nothing if mode == ResultMode::Channel => (Value::Null, None),
        Found::Nothing => (raw(&printed), None),
        Found::Unreadable(why) => (raw(&printed), Some(why)),
    };
    let failure = match exit {
        Exit::Code(0) => said_failure(&data, &printed.stderr).or(unreadable),
        Exit::Code(code) => {
            Some(said_error(&data).unwrap_or_else(|| ended(&format!("exit code {code}"), &printed.stderr)))
        }
        Exit::Signal(signal) => Some(ended(&format!("ended by signal {signal}"), &printed.stderr)),
    };
    Outcome {
        data,
        failure: failure.map(Failure::Tool),
        // What is the result itself is not told twice.
        logs: Logs {
            stdout,
            stderr: if mode == ResultMode::Streams { String::new() } else { printed.stderr },
        },
        is_truncated,
    }
}

enum Found {
    Result(Value),
    Nothing,
    Unreadable(String),
}

fn from_channel(printed: &Printed) -> Found {
    match &printed.channel {
        None => Found::Nothing,
        Some((bytes, _)) if bytes.is_empty() => Found::Nothing,
        Some((_, true)) => Found::Unreadable("the result is larger than allowed".to_owned()),
        Some((bytes, false)) => match serde_json::from_slice(bytes) {
            Ok(value) => Found::Result(value),
            Err(error) => Found::Unreadable(format!("the result is not JSON: {error}")),
        },
    }
}

/// The last line that is JSON, and the output without it. An output that is JSON as a whole counts as one line.
fn from_output(printed: &Printed) -> (Found, String) {
    let stdout = &printed.stdout;
    if !printed.is_stdout_cut
        && !stdout.trim().is_empty()
        && let Ok(value) = serde_json::from_str(stdout.trim())
    {
        return (Found::Result(value), String::new());
    }
    let mut end = stdout.len();
    for line in stdout.rsplit('\n') {
        let start = end - line.len();
        if !line.trim().is_empty()
            && let Ok(value) = serde_json::from_str(line.trim())
        {
            let rest = format!("{}{}", &stdout[..start], stdout.get(end + 1..).unwrap_or_default());
            return (Found::Result(value), rest);
        }
        end = start.saturating_sub(1);
    }
    (Found::Nothing, stdout.clone())
}

fn said_error(data: &Value) -> Option<String> {
    let text = |key: &str| data.get(key).and_then(Value::as_str).filter(|text| !text.trim().is_empty());
    text("error").map(rye_item::text::one_line)
}

/// An object that says `success: false` is a failure, whatever the exit code.
fn said_failure(data: &Value, stderr: &str) -> Option<String> {
    let success = data.as_object().and_then(|map: &Map<String, Value>| map.get("success"))?;
    let is_false = match success {
        Value::Bool(success) => !success,
        Value::Null => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    };
    is_false.then(|| said_error(data).unwrap_or_else(|| ended("the tool reports a failure", stderr)))
}

/// What happened, with the last line the tool said about it.
fn ended(what: &str, stderr: &str) -> String {
    match stderr.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(line) => format!("{what}: {}", rye_item::text::one_line(line.trim())),
        None => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(stdout: &str) -> Printed {
        Printed { stdout: stdout.to_owned(), ..Printed::default() }
    }

    fn result(stdout: &str) -> (Value, String) {
        let outcome = of_process(ResultMode::LastJsonLine, Exit::Code(0), printed(stdout));
        assert_eq!(outcome.failure, None);
        (outcome.data, outcome.logs.stdout)
    }

    #[test]
    fn any_json_value_is_a_result() {
        for value in [json!([1]), json!(7), json!(null), json!({}), json!([]), json!("x"), json!(false)] {
            assert_eq!(result(&format!("{value}\n")), (value.clone(), String::new()));
            let channel = Some((value.to_string().into_bytes(), false));
            let outcome =
                of_process(ResultMode::Channel, Exit::Code(0), Printed { channel, ..printed("hi\n") });
            assert_eq!(
                (outcome.data, outcome.failure, outcome.logs.stdout),
                (value, None, "hi\n".to_owned())
            );
        }
    }

    #[test]
    fn the_last_json_line_counts_and_the_rest_are_logs() {
        assert_eq!(result("a\n{\"x\":1}\nb\n"), (json!({"x": 1}), "a\nb\n".to_owned()));
        assert_eq!(result("{\n \"x\": 1\n}\n"), (json!({"x": 1}), String::new()));
        assert_eq!(result("1\n2\n"), (json!(2), "1\n".to_owned()));
        let (data, logs) = result("plain\n");
        assert_eq!(data, json!({"stdout": "plain\n", "stderr": "", "return_code": 0}));
        assert_eq!(logs, "plain\n");
    }

    #[test]
    fn failures_keep_their_data_and_say_why() {
        let check = |exit, stdout: &str, stderr: &str| {
            let left = Printed { stderr: stderr.to_owned(), ..printed(stdout) };
            let outcome = of_process(ResultMode::LastJsonLine, exit, left);
            (outcome.data, outcome.failure.map(|failure| failure.message().to_owned()))
        };
        let said = json!({"success": false, "error": "no such city"});
        assert_eq!(
            check(Exit::Code(0), &said.to_string(), ""),
            (said.clone(), Some("no such city".to_owned()))
        );
        assert_eq!(check(Exit::Code(1), &said.to_string(), "").1, Some("no such city".to_owned()));
        assert_eq!(
            check(Exit::Code(3), "", "a\nValueError: b\n").1,
            Some("exit code 3: ValueError: b".to_owned())
        );
        assert_eq!(check(Exit::Signal(9), "", "").1, Some("ended by signal 9".to_owned()));
        assert_eq!(check(Exit::Code(0), "{\"success\": true, \"error\": \"x\"}", "").1, None);
        let cut = Printed { channel: Some((b"[1".to_vec(), true)), ..Printed::default() };
        let outcome = of_process(ResultMode::Channel, Exit::Code(0), cut);
        assert_eq!(outcome.failure, Some(Failure::Tool("the result is larger than allowed".to_owned())));
        assert!(outcome.is_truncated);
    }
}
