//! `test`: runs `rye/dev/test_runner` and shows what it found, case by case.

use lillux::CancelToken;
use rye_engine::verbs::execute::{self, Caller, ExecuteRequest};
use rye_engine::verbs::test_files::{self, NewTestFile};
use rye_engine::{Code, Error};
use rye_item::text::{counted, one_line};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::{Map, Value};

use super::threads::user_threads;
use super::{CommandContext, CommandError, CommandResult, confirm};
use crate::arguments::TestArguments;
use crate::output::{DIM, ERROR, NAME, SUCCESS, paint};
use crate::settings;

/// The tool that runs tests.
const TEST_RUNNER: &str = "rye/dev/test_runner";

/// `rye test`
pub fn test(context: &CommandContext, arguments: &TestArguments) -> CommandResult {
    let tool = arguments.id.as_deref().map(|id| ItemRef::parse(Some("tool"), id)).transpose()?;
    if let Some(tool) = &tool {
        // A tool that is not there is named as such, instead of having no tests.
        context.engine.locate(tool, None)?;
    }
    let mut parameters = Map::new();
    let filters = [
        ("tool", tool.as_ref().map(|tool| tool.id.to_string())),
        ("tag", arguments.tag.clone()),
        ("file", arguments.file.clone()),
    ];
    for (name, value) in filters {
        if let Some(value) = value {
            parameters.insert(name.to_owned(), Value::from(value));
        }
    }
    review_files(context, arguments)?;
    let cancel = CancelToken::new().map_err(Error::from)?;
    settings::cancel_on_signals(&cancel);
    let runner = ItemRef::new(ItemType::Tool, ItemId::new(TEST_RUNNER).map_err(Error::from)?);
    let request = ExecuteRequest::new(runner, cancel)
        .with_parameters(parameters)
        .with_caller(Caller::Person)
        .with_thread(Some(user_threads(&context.settings)));
    let (data, failure) = match execute::execute(&context.engine, &request) {
        Ok(response) => (response.data, None),
        Err(error) if error.details.get("data").is_some_and(|data| data.get("results").is_some()) => {
            (error.details["data"].clone(), Some(error))
        }
        Err(error) => return Err(error.into()),
    };
    let total = data.get("total").and_then(Value::as_u64).unwrap_or(0);
    if let Some(tool) = tool.as_ref().filter(|_| total == 0 && failure.is_none()) {
        return Err(Error::new(Code::NotFound, format!("no test of {} was found", tool.id))
            .for_item(tool)
            .hint(format!("write .ai/tests/{}.test.yaml; how: rye load knowledge rye/dev/tests", tool.id))
            .into());
    }
    if context.output.is_json {
        return match failure {
            None => {
                context.print_if_json(None, None, &data)?;
                Ok(())
            }
            Some(error) => Err(CommandError::Engine(summary_error(&error), Some(Box::new(data)))),
        };
    }
    for result in data.get("results").and_then(Value::as_array).into_iter().flatten() {
        print_case(context, result)?;
    }
    if total == 0 && failure.is_none() {
        context.output.note("no tests yet: rye new tool ID makes a tool with one");
        return Ok(());
    }
    let count = |key: &str| data.get(key).and_then(Value::as_u64).unwrap_or(0);
    context.output.print(format_args!("{} passed, {} failed", count("passed"), count("failed")))?;
    match failure {
        None => Ok(()),
        Some(error) => Err(summary_error(&error).into()),
    }
}

/// Names the files that the user has not run as they are, and asks about those whose tool asks for more than the default.
/// Without a yes the runner holds these back.
fn review_files(context: &CommandContext, arguments: &TestArguments) -> CommandResult {
    let (engine, output) = (&context.engine, &context.output);
    let files = test_files::new_test_files(engine, arguments.id.as_deref(), arguments.file.as_deref());
    let (mut asking, mut agreed): (Vec<_>, Vec<_>) =
        files.into_iter().partition(|file| !file.asks.is_empty());
    for file in &agreed {
        output.note(format_args!("{} {} ({})", describe_state(file), paint(NAME, &file.file), file.tool));
    }
    let can_ask = context.settings.is_interactive && !output.is_json;
    if !asking.is_empty() && (can_ask || arguments.yes) {
        for file in &asking {
            output.ask(format_args!("{} {} ({})", describe_state(file), paint(NAME, &file.file), file.tool));
            file.asks
                .iter()
                .for_each(|request| output.ask(format_args!("  {} asks for {request}", file.tool)));
        }
        let is_agreed = arguments.yes || {
            output.ask(format_args!("run {} with your rights? [y/N]", counted(asking.len(), "file")));
            confirm()?
        };
        if is_agreed {
            agreed.append(&mut asking);
        }
    }
    // Without the record they are named again, or held back.
    if let Err(error) = test_files::record_test_files(engine, &agreed) {
        output.warn(format_args!("what was run is not recorded: {}", one_line(&error.message)));
    }
    Ok(())
}

fn describe_state(file: &NewTestFile) -> &'static str {
    if file.is_changed { "changed test file" } else { "new test file" }
}

/// The failure without what was shown already.
fn summary_error(error: &Error) -> Error {
    Error::new(error.code, error.message.clone())
        .hint("correct the tool or its test, then run rye test again")
}

fn print_case(context: &CommandContext, result: &Value) -> std::io::Result<()> {
    let text = |key: &str| one_line(result.get(key).and_then(Value::as_str).unwrap_or_default());
    let is_passed = result.get("passed") == Some(&Value::Bool(true));
    let mark = if is_passed { paint(SUCCESS, "✓") } else { paint(ERROR, "✗") };
    let subject = match text("tool") {
        tool if tool.is_empty() => text("file"),
        tool => format!("{} {}", paint(NAME, tool), text("name")),
    };
    let place = if is_passed { String::new() } else { format!("  {}", paint(DIM, text("file"))) };
    context.output.print(format_args!("{mark} {subject}{place}"))?;
    for problem in result.get("problems").and_then(Value::as_array).into_iter().flatten() {
        context.output.print(format_args!("    {}", one_line(problem.as_str().unwrap_or_default())))?;
    }
    Ok(())
}
