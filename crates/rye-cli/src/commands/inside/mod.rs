//! `rye` inside a tool's sandbox: it does nothing itself. What it is asked to do goes through the door to the thread that
//! runs the tool, and what comes back is printed as anywhere else.

mod action;

use rye_agent::door::client::Visitor;
use rye_agent::status::Status;
use rye_engine::verbs::execute::Answer;
use rye_engine::{Code, Error};
use rye_item::text::{one_line, without_controls};
use rye_item::{ItemId, ItemRef, ItemType};
use serde_json::{Map, Value};

use super::run::failure;
use super::threads::work;
use super::{Failure, Outcome, execute, explain_code, mcp, print_completions};
use crate::arguments::{Arguments, Command};
use crate::global::Global;
use crate::output::Output;
use crate::settings::Inside;

/// Runs a command inside a tool.
pub fn run(arguments: &Arguments, inside: &Inside) -> Outcome {
    let global = &arguments.global;
    match &arguments.command {
        Command::Explain { code } => return explain_code(global, code),
        Command::Completions { shell } => return print_completions(global, shell),
        _ => {}
    }
    let Inside::Door { token, door } = inside else {
        let message = "this is a tool's sandbox: without a thread's token `rye` does nothing in here";
        return Err(Error::new(Code::NoToken, message)
            .hint("only tools that a thread runs are given one: rye run DIRECTIVE")
            .into());
    };
    if global.project.is_some() || global.user_space.is_some() {
        let message = "a tool acts where its thread does: --project and --user-space are not for it";
        return Err(Error::new(Code::NoToken, message).hint("leave them out").into());
    }
    let action = action::of(&arguments.command)?;
    let visitor = Visitor::new(token, door)?;
    let Some(action) = action else {
        return mcp::through(global, visitor);
    };
    let answer = visitor.ask(&action)?;
    show(global, &arguments.command, &answer)
}

/// What came back, as the command would have shown it.
fn show(global: &Global, command: &Command, answer: &Value) -> Outcome {
    let output = Output::new(global, None, false);
    let is_thread = answer.get("thread_id").is_some();
    if !is_thread && answer["status"] == "error" {
        let error = failure(answer);
        return Err(match command {
            Command::Execute(_) => execute::failure(&output, error),
            _ => error.into(),
        });
    }
    if output.is_json {
        output.json(answer)?;
        return ended(answer);
    }
    let data = &answer["data"];
    match command {
        Command::Execute(_) => {
            if let Some(answer) = executed(answer) {
                return execute::draw(&output, &answer);
            }
            pretty(&output, answer)?;
        }
        Command::Search(_) => rows(&output, data)?,
        Command::Fetch(_) if data.get("results").is_some() => rows(&output, data)?,
        Command::Load(_) | Command::Fetch(_) => match data["content"].as_str() {
            Some(content) => output.raw(&without_controls(content))?,
            None => pretty(&output, data)?,
        },
        Command::Run(_) => ran(&output, answer)?,
        _ if data.is_null() => pretty(&output, answer)?,
        _ => pretty(&output, data)?,
    }
    ended(answer)
}

/// The exit code of a thread that was waited for.
fn ended(answer: &Value) -> Outcome {
    let status = answer.get("thread_id").and_then(|_| answer["status"].as_str()).and_then(Status::parse);
    let has_failed = answer.get("success").and_then(Value::as_bool) == Some(false);
    match status.filter(|_| has_failed).map(work::exit_code) {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::Ended(code)),
        None if has_failed => Err(Failure::Ended(1)),
        None => Ok(()),
    }
}

fn executed(answer: &Value) -> Option<Answer> {
    let map = answer.as_object()?;
    let item_type: ItemType = map.get("type")?.as_str()?.parse().ok()?;
    let id = ItemId::new(map.get("item_id")?.as_str()?).ok()?;
    let status = match map.get("status")?.as_str()? {
        "success" => "success",
        _ => "validation_passed",
    };
    let is_fact = |key: &str| !["status", "type", "item_id", "data"].contains(&key);
    let facts: Map<String, Value> =
        map.iter().filter(|(key, _)| is_fact(key)).map(|(key, value)| (key.clone(), value.clone())).collect();
    Some(Answer {
        item: ItemRef::new(item_type, id),
        status,
        data: map.get("data").cloned().unwrap_or_default(),
        facts,
    })
}

fn rows(output: &Output, data: &Value) -> Outcome {
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
        output.result(table.trim_fmt())?;
    }
    Ok(())
}

/// What a thread gave; one that nobody waits for, its name.
fn ran(output: &Output, answer: &Value) -> Outcome {
    if let Some(outputs) = answer.get("outputs").filter(|outputs| outputs.is_object()) {
        pretty(output, outputs)?;
    } else if let Some(result) = answer["result"].as_str() {
        output.raw(&without_controls(result))?;
    } else if let Some(id) = answer["thread_id"].as_str() {
        output.result(one_line(id))?;
    }
    if let Some(error) = answer["error"].as_str() {
        output.warn(one_line(error));
    }
    Ok(())
}

fn pretty(output: &Output, value: &Value) -> Outcome {
    let pretty = serde_json::to_string_pretty(value).map_err(std::io::Error::from)?;
    output.result(without_controls(&pretty))?;
    Ok(())
}
