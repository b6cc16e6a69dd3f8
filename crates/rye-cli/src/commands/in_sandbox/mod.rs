//! `rye` inside a tool's sandbox: it does nothing itself. What it is asked to do goes through the callback channel to the thread that
//! runs the tool, and what comes back is printed as anywhere else.

mod action;

use rye_agent::callback::client::CallbackClient;
use rye_agent::envelope::ResultEnvelope;
use rye_agent::status::ThreadStatus;
use rye_engine::verbs::execute::ExecuteResponse;
use rye_engine::{Code, Error};
use rye_item::text::{one_line, strip_controls};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::{Map, Value};

use super::run::error_from_value;
use super::threads::runner;
use super::{CommandError, CommandResult, execute, explain_code, mcp, print_completions};
use crate::arguments::{Arguments, CliCommand};
use crate::global::GlobalArguments;
use crate::output::Output;
use crate::settings::SandboxContext;

/// Runs a command inside a tool.
pub fn run(arguments: &Arguments, sandbox: &SandboxContext) -> CommandResult {
    let global = &arguments.global;
    match &arguments.command {
        CliCommand::Explain { code } => return explain_code(global, code),
        CliCommand::Completions { shell } => return print_completions(global, shell),
        _ => {}
    }
    let SandboxContext::Callback { token, channel } = sandbox else {
        let message = "rye is not available inside a tool sandbox without a thread's token";
        return Err(Error::new(Code::NoToken, message)
            .hint("only tools that a thread runs get a token: rye run DIRECTIVE")
            .into());
    };
    if global.project.is_some() || global.user_space.is_some() {
        let message = "--project and --user-space are not available inside a tool sandbox";
        return Err(Error::new(Code::NoToken, message).hint("leave them out").into());
    }
    let action = action::from_command(&arguments.command)?;
    let client = CallbackClient::new(token, channel)?;
    let Some(action) = action else {
        return mcp::serve_in_sandbox(global, client);
    };
    let response = client.request(&action)?;
    show(global, &arguments.command, &response)
}

/// What came back, as the command would have shown it.
fn show(global: &GlobalArguments, command: &CliCommand, response: &Value) -> CommandResult {
    let output = Output::new(global, None, false);
    let is_thread = response.get("thread_id").is_some();
    if !is_thread && ResultEnvelope::parse(response).is_failure() {
        let error = error_from_value(response);
        return Err(match command {
            CliCommand::Execute(_) => execute::report_error(&output, error),
            _ => error.into(),
        });
    }
    if output.is_json {
        output.print_json(response)?;
        return check_exit(response);
    }
    let data = &response["data"];
    match command {
        CliCommand::Execute(_) => {
            if let Some(response) = parse_response(response) {
                return execute::print_result(&output, &response);
            }
            print_pretty(&output, response)?;
        }
        CliCommand::Search(_) => print_rows(&output, data)?,
        CliCommand::Fetch(_) if data.get("results").is_some() => print_rows(&output, data)?,
        CliCommand::Load(_) | CliCommand::Fetch(_) => match data["content"].as_str() {
            Some(content) => output.print_raw(&strip_controls(content))?,
            None => print_pretty(&output, data)?,
        },
        CliCommand::Run(_) => print_thread_result(&output, response)?,
        _ if data.is_null() => print_pretty(&output, response)?,
        _ => print_pretty(&output, data)?,
    }
    check_exit(response)
}

/// The exit code of a thread that was waited for.
fn check_exit(response: &Value) -> CommandResult {
    let status = response.get("thread_id").and_then(|_| ThreadStatus::of_result(response));
    let has_failed = response.get("success").and_then(Value::as_bool) == Some(false);
    match status.filter(|_| has_failed).map(runner::exit_code) {
        Some(0) => Ok(()),
        Some(code) => Err(CommandError::Exit(code)),
        None if has_failed => Err(CommandError::Exit(1)),
        None => Ok(()),
    }
}

fn parse_response(response: &Value) -> Option<ExecuteResponse> {
    let map = response.as_object()?;
    let item_type: ItemType = map.get("type")?.as_str()?.parse().ok()?;
    let id = ItemId::new(map.get("item_id")?.as_str()?).ok()?;
    let status = match map.get("status")?.as_str()? {
        "success" => "success",
        _ => "validation_passed",
    };
    let is_fact = |key: &str| !["status", "type", "item_id", "data"].contains(&key);
    let facts: Map<String, Value> =
        map.iter().filter(|(key, _)| is_fact(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    Some(ExecuteResponse {
        item: ItemRef::new(item_type, id),
        status,
        data: map.get("data").cloned().unwrap_or_default(),
        extra: facts,
    })
}

fn print_rows(output: &Output, data: &Value) -> CommandResult {
    let results = data["results"].as_array().map(Vec::as_slice).unwrap_or_default();
    if results.is_empty() {
        output.note("nothing found");
    }
    let mut table = output.table(&["type", "id", "space", "description"]);
    for row in results {
        let text = |key: &str| one_line(row[key].as_str().unwrap_or_default());
        table.add_row(["type", "item_id", "space", "description"].map(text));
    }
    if !results.is_empty() {
        output.print(table.trim_fmt())?;
    }
    Ok(())
}

/// A thread's result; of one that is not waited for, its id.
fn print_thread_result(output: &Output, response: &Value) -> CommandResult {
    if let Some(outputs) = response.get("outputs").filter(|outputs| outputs.is_object()) {
        print_pretty(output, outputs)?;
    } else if let Some(result) = response["result"].as_str() {
        output.print_raw(&strip_controls(result))?;
    } else if let Some(id) = response["thread_id"].as_str() {
        output.print(one_line(id))?;
    }
    if let Some(error) = response["error"].as_str() {
        output.warn(one_line(error));
    }
    Ok(())
}

fn print_pretty(output: &Output, value: &Value) -> CommandResult {
    let pretty = serde_json::to_string_pretty(value).map_err(std::io::Error::from)?;
    output.print(strip_controls(&pretty))?;
    Ok(())
}
