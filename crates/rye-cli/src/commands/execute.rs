//! `execute`: run an item and show what it gave.

use std::io::Read;
use std::path::Path;

use lillux::Cancel;
use rye_engine::verbs::execute::{self, Answer, Caller, Demand, Mode, Progress, Request};
use rye_engine::{Code, Error};
use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value};

use super::{Context, Failure, Outcome};
use crate::arguments::ExecuteArguments;
use crate::output::{BAD, CAUTION, DIM, GOOD, NAME, Output, paint};
use crate::settings;

/// The largest parameters that are read from a file or a pipe.
const MOST_PARAMETERS: u64 = 64 << 20;

/// How much of what a failing tool gave is shown to a person.
const MOST_SHOWN: usize = 8 << 10;

/// `rye execute`
pub fn execute(context: &Context, arguments: &ExecuteArguments) -> Outcome {
    let output = context.output;
    let tell = move |line: &str| output.note(paint(DIM, rye_item::text::one_line(line)));
    let request = Request { progress: Some(Progress::new(tell)), ..request(arguments)? };
    settings::cancel_on_signals(&request.cancel);
    let output = &context.output;
    let answer = execute::execute(&context.engine, &request).map_err(|error| failure(output, error))?;
    if output.is_json {
        output.json(&answer.into_value())?;
        return Ok(());
    }
    draw(output, &answer)
}

fn request(arguments: &ExecuteArguments) -> Result<Request, Error> {
    let (item, rest) = item_and_rest(&arguments.words)?;
    Ok(Request {
        item,
        parameters: arguments.params.as_deref().map(parameters).transpose()?.unwrap_or_default(),
        words: pairs(rest)?,
        mode: if arguments.dry_run { Mode::DryRun } else { Mode::Run },
        wants_trace: arguments.trace,
        demand: match (arguments.locked, arguments.frozen) {
            (true, _) => Demand::Locked,
            (false, true) => Demand::Frozen,
            (false, false) => Demand::Hold,
        },
        cancel: Cancel::new()?,
        progress: None,
        waits: None,
        caller: Caller::Person,
        thread: None,
        door: None,
        grants: None,
    })
}

/// `tool ID …`, `tool:ID …` or just `ID …`, which is a tool.
pub(super) fn item_and_rest(words: &[String]) -> Result<(ItemRef, &[String]), Error> {
    let parse = rye_engine::verbs::sign::parse_item;
    match words {
        [kind, id, rest @ ..] if kind.parse::<ItemType>().is_ok() && !id.contains('=') => {
            Ok((parse(Some(kind), id)?, rest))
        }
        [id, rest @ ..] if ItemRef::split_canonical(id).is_some() => Ok((parse(None, id)?, rest)),
        [id, rest @ ..] => Ok((parse(Some("tool"), id)?, rest)),
        [] => Err(Error::new(Code::InvalidArgument, "which item? an id is missing")
            .hint("rye search '*' --type tool lists what can be run")),
    }
}

/// `key=value`, several times.
pub(super) fn pairs(words: &[String]) -> Result<Vec<(String, String)>, Error> {
    let pair = |word: &String| match word.split_once('=').filter(|(name, _)| !name.is_empty()) {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => {
            let word = rye_item::text::one_line(word);
            Err(Error::new(Code::InvalidArgument, format!("`{word}` is not of the form key=value"))
                .hint("parameters are given as key=value, or all together with --params JSON"))
        }
    };
    words.iter().map(pair).collect()
}

/// `--params`: JSON, `@file` or `-` for standard input.
pub(super) fn parameters(given: &str) -> Result<Map<String, Value>, Error> {
    let text = match given.strip_prefix('@') {
        Some(path) => {
            let (bytes, _) = lillux::file::read_bounded(Path::new(path), MOST_PARAMETERS)
                .map_err(|error| Error::read(&error))?;
            String::from_utf8_lossy(&bytes).into_owned()
        }
        None if given == "-" => {
            let mut text = String::new();
            std::io::stdin().lock().take(MOST_PARAMETERS).read_to_string(&mut text)?;
            text
        }
        None => given.to_owned(),
    };
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::new(Code::InvalidParameters, "parameters are one JSON object")
            .hint("for example: --params '{\"name\": \"world\"}'")),
        Err(error) => {
            Err(Error::new(Code::InvalidParameters, format!("the parameters are not JSON: {error}"))
                .hint("for example: --params '{\"name\": \"world\"}'"))
        }
    }
}

/// A failure, with what the tool printed shown to a person.
pub(super) fn failure(output: &Output, error: Error) -> Failure {
    if !output.is_json {
        show_beside(output, &error.details);
        // A failing tool may have said a lot before it failed.
        if let Some(data) = error.details.get("data").filter(|data| !data.is_null())
            && let Ok(pretty) = serde_json::to_string_pretty(data)
        {
            let cut = pretty.floor_char_boundary(MOST_SHOWN);
            output.note(rye_item::text::without_controls(&pretty[..cut]));
            if cut < pretty.len() {
                let rest = pretty.len() - cut;
                output.note(paint(CAUTION, format_args!("… and {rest} bytes more: --json has all of it")));
            }
        }
    }
    error.into()
}

/// The result of a run, for people.
pub(super) fn draw(output: &Output, answer: &Answer) -> Outcome {
    show_beside(output, &answer.facts);
    if let Some(message) = answer.facts.get("message").and_then(Value::as_str) {
        output.note(paint(GOOD, message));
        return Ok(());
    }
    let text = match answer.item.item_type {
        ItemType::Directive | ItemType::Knowledge => answer.data.get("body").and_then(Value::as_str),
        ItemType::Tool | ItemType::Config => answer.data.as_str(),
    };
    match text {
        Some(text) => output.raw(&rye_item::text::without_controls(text))?,
        None => {
            let pretty = serde_json::to_string_pretty(&answer.data).map_err(std::io::Error::from)?;
            output.result(rye_item::text::without_controls(&pretty))?;
        }
    }
    Ok(())
}

/// What stands beside a result, on stderr: the trace, warnings, and what the tool printed.
fn show_beside(output: &Output, facts: &Map<String, Value>) {
    for row in facts.get("trace").and_then(Value::as_array).into_iter().flatten() {
        show_step(output, row);
    }
    for warning in facts.get("warnings").and_then(Value::as_array).into_iter().flatten() {
        output.warn(rye_item::text::one_line(warning.as_str().unwrap_or_default()));
    }
    for note in facts.get("notes").and_then(Value::as_array).into_iter().flatten() {
        output.note(paint(DIM, rye_item::text::one_line(note.as_str().unwrap_or_default())));
    }
    let logs = facts.get("logs");
    for (channel, style) in [("stdout", DIM), ("stderr", CAUTION)] {
        let text = logs.and_then(|logs| logs.get(channel)).and_then(Value::as_str).unwrap_or_default();
        for line in text.lines() {
            output.note(format_args!("{} {}", paint(style, "│"), rye_item::text::without_controls(line)));
        }
    }
    if facts.get("truncated") == Some(&Value::Bool(true)) {
        output.note(paint(CAUTION, "output was cut: only its beginning and end are kept"));
    }
}

fn show_step(output: &Output, row: &Value) {
    let step = row.get("step").and_then(Value::as_str).unwrap_or_default();
    let facts: Vec<String> = row
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| *key != "step" && !value.is_null())
        .map(|(key, value)| match value {
            Value::String(text) => format!("{} {}", paint(DIM, key), rye_item::text::one_line(text)),
            Value::Bool(false) => format!("{} {}", paint(DIM, key), paint(BAD, "false")),
            other => format!("{} {}", paint(DIM, key), rye_item::text::one_line(&other.to_string())),
        })
        .collect();
    output.note(format_args!("{} {}", paint(NAME, format_args!("{step:<11}")), facts.join("  ")));
}
