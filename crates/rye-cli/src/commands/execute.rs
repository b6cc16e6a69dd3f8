//! `execute`: run an item and show what it gave.

use std::io::Read;
use std::path::Path;

use lillux::CancelToken;
use rye_engine::verbs::execute::{self, Caller, ExecuteRequest, ExecuteResponse, LockMode, ProgressListener};
use rye_engine::{Code, Error};
use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value};

use super::threads::user_threads;
use super::{CommandContext, CommandError, CommandResult};
use crate::arguments::ExecuteArguments;
use crate::output::{DIM, ERROR, NAME, Output, SUCCESS, WARNING, paint};
use crate::settings;

/// The largest parameters that are read from a file or a pipe.
const MAX_PARAMETERS_SIZE: u64 = 64 << 20;

/// How much of what a failing tool gave is shown to a person.
const MAX_PRINTED_BYTES: usize = 8 << 10;

/// `rye execute`
pub fn execute(context: &CommandContext, arguments: &ExecuteArguments) -> CommandResult {
    let output = context.output;
    let print = move |line: &str| output.note(paint(DIM, rye_item::text::one_line(line)));
    let cancel = CancelToken::new().map_err(Error::from)?;
    settings::cancel_on_signals(&cancel);
    let request = build_request(context, arguments, cancel)?
        .with_progress(Some(ProgressListener::new(print)))
        .with_thread(Some(user_threads(&context.settings)));
    let output = &context.output;
    let answer = execute::execute(&context.engine, &request).map_err(|error| report_error(output, error))?;
    if output.is_json {
        output.print_json(&answer.into_value())?;
        return Ok(());
    }
    print_result(output, &answer)
}

fn build_request(
    context: &CommandContext,
    arguments: &ExecuteArguments,
    cancel: CancelToken,
) -> Result<ExecuteRequest, Error> {
    let (item, rest) = split_item(&arguments.words)?;
    let is_typed = arguments.words.first().is_some_and(|word| word.contains(':'))
        || rest.len() + 2 == arguments.words.len();
    let item = if is_typed { item } else { infer_type(context, item) };
    let parameters = arguments.params.as_deref().map(parse_parameters).transpose()?.unwrap_or_default();
    let lock_mode = match (arguments.locked, arguments.frozen) {
        (true, _) => LockMode::Locked,
        (false, true) => LockMode::Frozen,
        (false, false) => LockMode::Enforce,
    };
    Ok(ExecuteRequest::new(item, cancel)
        .with_parameters(parameters)
        .with_words(parse_pairs(rest)?)
        .with_dry_run(arguments.dry_run)
        .with_trace(arguments.trace)
        .with_lock_mode(lock_mode)
        .with_caller(Caller::Person))
}

/// A tool unless only a page of knowledge has the id. A directive is not run by a command that was meant for a tool: the
/// error says how.
fn infer_type(context: &CommandContext, item: ItemRef) -> ItemRef {
    let has = |item: &ItemRef| {
        let candidates = context.engine.workspace.spaces.candidate_paths(item);
        candidates.iter().any(|candidate| candidate.is_found)
    };
    let of_type = |item_type| ItemRef::new(item_type, item.id.clone());
    match has(&item) || has(&of_type(ItemType::Directive)) {
        false if has(&of_type(ItemType::Knowledge)) => of_type(ItemType::Knowledge),
        _ => item,
    }
}

/// `tool ID …`, `tool:ID …` or just `ID …`, which is a tool.
pub(super) fn split_item(words: &[String]) -> Result<(ItemRef, &[String]), Error> {
    let parse = ItemRef::parse;
    match words {
        [item_type, id, rest @ ..] if item_type.parse::<ItemType>().is_ok() && !id.contains('=') => {
            Ok((parse(Some(item_type), id)?, rest))
        }
        [id, rest @ ..] if ItemRef::split_canonical(id).is_some() => Ok((parse(None, id)?, rest)),
        [id, rest @ ..] => Ok((parse(Some("tool"), id)?, rest)),
        [] => Err(Error::new(Code::InvalidArgument, "no item id given")
            .hint("rye search '*' --type tool lists tools")),
    }
}

/// `key=value`, several times.
pub(super) fn parse_pairs(words: &[String]) -> Result<Vec<(String, String)>, Error> {
    let pair = |word: &String| match word.split_once('=').filter(|(name, _)| !name.is_empty()) {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => {
            let word = rye_item::text::one_line(word);
            Err(Error::new(Code::InvalidArgument, format!("invalid parameter `{word}`: expected KEY=VALUE"))
                .hint("give parameters as KEY=VALUE, or as one object with --params JSON"))
        }
    };
    words.iter().map(pair).collect()
}

/// `--params`: JSON, `@file` or `-` for standard input.
pub(super) fn parse_parameters(argument: &str) -> Result<Map<String, Value>, Error> {
    let text = match argument.strip_prefix('@') {
        Some(path) => {
            let (bytes, _) = lillux::file::read_bounded(Path::new(path), MAX_PARAMETERS_SIZE)
                .map_err(|error| Error::read(&error))?;
            String::from_utf8_lossy(&bytes).into_owned()
        }
        None if argument == "-" => {
            let mut text = String::new();
            std::io::stdin().lock().take(MAX_PARAMETERS_SIZE).read_to_string(&mut text)?;
            text
        }
        None => argument.to_owned(),
    };
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::new(Code::InvalidParameters, "parameters must be a JSON object")
            .hint("for example: --params '{\"name\": \"world\"}'")),
        Err(error) => Err(Error::new(Code::InvalidParameters, format!("invalid JSON parameters: {error}"))
            .hint("for example: --params '{\"name\": \"world\"}'")),
    }
}

/// A failure, with what the tool printed shown to a person.
pub(super) fn report_error(output: &Output, mut error: Error) -> CommandError {
    if !output.is_json {
        print_details(output, &error.details);
        let logs = logged_text(&error.details);
        let data = error.details.get("data").filter(|data| !data.is_null());
        // A failing tool may have said a lot before it failed.
        let data = data.filter(|data| !is_repeated(data, &error.message, &logs));
        if let Some(pretty) = data.and_then(|data| serde_json::to_string_pretty(data).ok()) {
            let cut = pretty.floor_char_boundary(MAX_PRINTED_BYTES);
            output.note(rye_item::text::strip_controls(&pretty[..cut]));
            if cut < pretty.len() {
                let rest = pretty.len() - cut;
                output.note(paint(WARNING, format_args!("… and {rest} bytes more: --json has all of it")));
            }
        }
        // What it printed stands above.
        if let Some(at) = error.hints.iter().position(|hint| hint == execute::OUTPUT_HINT) {
            error.hints.remove(at);
            if error.hints.is_empty() {
                error.hints.push("see every step: --trace".to_owned());
            }
        }
    }
    error.into()
}

/// What a program printed, on both channels.
fn logged_text(facts: &Map<String, Value>) -> String {
    let logs = facts.get("logs");
    let channel =
        |name: &str| logs.and_then(|logs| logs.get(name)).and_then(Value::as_str).unwrap_or_default();
    format!("{}\n{}", channel("stdout"), channel("stderr"))
}

/// Whether a result says no more than the error and the output that are shown anyway.
fn is_repeated(data: &Value, message: &str, logs: &str) -> bool {
    let Some(fields) = data.as_object() else { return false };
    fields.iter().all(|(key, value)| match (key.as_str(), value) {
        ("success" | "truncated", Value::Bool(false)) => true,
        ("error", Value::String(text)) => text == message,
        ("stdout" | "stderr", Value::String(text)) => logs.contains(text.trim()),
        ("exit_code" | "return_code", Value::Number(_)) => true,
        _ => false,
    })
}

/// The result of a run, for people.
pub(super) fn print_result(output: &Output, answer: &ExecuteResponse) -> CommandResult {
    print_details(output, &answer.extra);
    if output.is_verbose() {
        print_run(output, &answer.extra);
    }
    if let Some(message) = answer.extra.get("message").and_then(Value::as_str) {
        output.note(paint(SUCCESS, message));
        return Ok(());
    }
    let text = match answer.item.item_type {
        ItemType::Directive | ItemType::Knowledge => answer.data.get("body").and_then(Value::as_str),
        ItemType::Tool | ItemType::Config => answer.data.as_str(),
    };
    match text {
        Some(text) => output.print_raw(&rye_item::text::strip_controls(text))?,
        None => {
            let pretty = serde_json::to_string_pretty(&answer.data).map_err(std::io::Error::from)?;
            output.print(rye_item::text::strip_controls(&pretty))?;
        }
    }
    Ok(())
}

/// For `--verbose`: where each element came from, what confined the run, and how long it took.
fn print_run(output: &Output, facts: &Map<String, Value>) {
    let text = |value: &Value| rye_item::text::one_line(value.as_str().unwrap_or_default());
    let rows = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    for element in rows(facts.get("chain")) {
        let digest: String = text(&element["integrity"]).chars().take(12).collect();
        let place = format!("{} · {digest}", text(&element["space"]));
        output.detail(format_args!("{} {}", paint(NAME, text(&element["item_id"])), paint(DIM, place)));
    }
    let rules = rows(facts.get("sandbox").and_then(|sandbox| sandbox.get("rows")));
    if !rules.is_empty() {
        let enforced = rules.iter().filter(|rule| rule["is_enforced"] == Value::Bool(true)).count();
        let level = text(&facts["sandbox"]["level"]);
        output.detail(format_args!("sandbox {level}: {enforced} of {} rules enforced", rules.len()));
    }
    if let Some(milliseconds) = facts.get("duration_ms").and_then(Value::as_f64) {
        output.detail(format_args!("took {milliseconds:.0} ms; every step: --trace"));
    }
}

/// What stands beside a result, on stderr: the trace, warnings, and what the tool printed.
fn print_details(output: &Output, facts: &Map<String, Value>) {
    for row in facts.get("trace").and_then(Value::as_array).into_iter().flatten() {
        print_step(output, row);
    }
    for warning in facts.get("warnings").and_then(Value::as_array).into_iter().flatten() {
        output.warn(rye_item::text::one_line(warning.as_str().unwrap_or_default()));
    }
    for note in facts.get("notes").and_then(Value::as_array).into_iter().flatten() {
        output.note(paint(DIM, rye_item::text::one_line(note.as_str().unwrap_or_default())));
    }
    let logs = facts.get("logs");
    for (channel, style) in [("stdout", DIM), ("stderr", WARNING)] {
        let text = logs.and_then(|logs| logs.get(channel)).and_then(Value::as_str).unwrap_or_default();
        for line in text.lines() {
            output.note(format_args!("{} {}", paint(style, "│"), rye_item::text::strip_controls(line)));
        }
    }
    if facts.get("truncated") == Some(&Value::Bool(true)) {
        output.note(paint(WARNING, "output was truncated: only its beginning and end are shown"));
    }
}

fn print_step(output: &Output, row: &Value) {
    let step = row.get("step").and_then(Value::as_str).unwrap_or_default();
    let facts: Vec<String> = row
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, value)| *key != "step" && !value.is_null())
        .map(|(key, value)| match value {
            Value::String(text) => format!("{} {}", paint(DIM, key), rye_item::text::one_line(text)),
            Value::Bool(false) => format!("{} {}", paint(DIM, key), paint(ERROR, "false")),
            other => format!("{} {}", paint(DIM, key), rye_item::text::one_line(&other.to_string())),
        })
        .collect();
    output.note(format_args!("{} {}", paint(NAME, format_args!("{step:<11}")), facts.join("  ")));
}
