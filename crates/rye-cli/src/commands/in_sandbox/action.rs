//! What a command line asks for, as an action that a thread can be asked for.

use rye_agent::definitions::ORCHESTRATOR;
use rye_engine::{Code, Error, Result};
use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value, json};

use crate::arguments::{
    CliCommand, ExecuteArguments, FetchArguments, LoadArguments, RunArguments, SearchArguments,
    SignArguments, SpaceName, ThreadCommand, WaitArguments, WritableSpace,
};
use crate::commands::threads::control;
use crate::commands::{execute, items, parse_item_ref};

/// The action; nothing for `mcp`, which asks for one after the other.
///
/// # Errors
/// When the command is for people.
pub(super) fn from_command(command: &CliCommand) -> Result<Option<Value>> {
    Ok(Some(match command {
        CliCommand::Execute(arguments) => execute_action(arguments)?,
        CliCommand::Search(arguments) => search_action(arguments)?,
        CliCommand::Load(arguments) => load_action(arguments)?,
        CliCommand::Fetch(arguments) => fetch_action(arguments),
        CliCommand::Sign(arguments) => sign_action(arguments)?,
        CliCommand::Run(arguments) => run_action(arguments)?,
        CliCommand::Thread(command) => thread_action(command)?,
        CliCommand::Mcp(arguments) if arguments.http.is_none() && arguments.command.is_none() => {
            return Ok(None);
        }
        _ => return Err(unavailable_in_sandbox("this command")),
    }))
}

/// Something only people do.
fn unavailable_in_sandbox(what: &str) -> Error {
    Error::new(Code::NoToken, format!("not available inside a tool's sandbox: {what}"))
        .hint("a tool can execute, search, load, fetch, sign and run, and look at its own threads")
}

fn reject_if(is_set: bool, what: &str) -> Result<()> {
    if is_set { Err(unavailable_in_sandbox(what)) } else { Ok(()) }
}

/// An action of these fields, without those that are not given.
fn build_action(primary: &str, fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let mut map = Map::from_iter([("primary".to_owned(), json!(primary))]);
    let present = fields.into_iter().filter(|(_, value)| !value.is_null());
    map.extend(present.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(map)
}

fn item_fields(item: &ItemRef) -> [(&'static str, Value); 2] {
    [("item_type", json!(item.item_type)), ("item_id", json!(item.id.to_string()))]
}

fn source_field(space: Option<SpaceName>) -> (&'static str, Value) {
    let word = space.map(|space| match space {
        SpaceName::Project => "project",
        SpaceName::User => "user",
        SpaceName::System => "system",
        SpaceName::All => "all",
    });
    ("source", json!(word))
}

fn space_value(space: Option<WritableSpace>) -> Value {
    json!(space.map(|space| match space {
        WritableSpace::Project => "project",
        WritableSpace::User => "user",
    }))
}

fn execute_action(arguments: &ExecuteArguments) -> Result<Value> {
    reject_if(arguments.trace || arguments.locked || arguments.frozen, "--trace, --locked and --frozen")?;
    let (item_ref, rest) = execute::split_item(&arguments.words)?;
    let params = arguments.params.as_deref().map(execute::parse_parameters).transpose()?.unwrap_or_default();
    let words: Map<String, Value> =
        execute::parse_pairs(rest)?.into_iter().map(|(name, word)| (name, json!(word))).collect();
    let options = [
        ("params", Value::Object(params)),
        ("words", if words.is_empty() { Value::Null } else { Value::Object(words) }),
        ("dry_run", if arguments.dry_run { json!(true) } else { Value::Null }),
    ];
    Ok(build_action("execute", item_fields(&item_ref).into_iter().chain(options)))
}

fn search_action(arguments: &SearchArguments) -> Result<Value> {
    reject_if(arguments.all, "--all")?;
    let fields = [
        ("query", json!(items::join_words(&arguments.query))),
        ("item_type", json!(arguments.item_type)),
        ("scope", json!(arguments.scope)),
        ("limit", json!(arguments.limit)),
        source_field(arguments.space),
    ];
    Ok(build_action("search", fields))
}

fn load_action(arguments: &LoadArguments) -> Result<Value> {
    reject_if(arguments.unverified, "--unverified")?;
    let item_ref = parse_item_ref(&arguments.item)?;
    let options = [source_field(arguments.from), ("destination", space_value(arguments.to))];
    Ok(build_action("load", item_fields(&item_ref).into_iter().chain(options)))
}

fn fetch_action(arguments: &FetchArguments) -> Value {
    let (item_type, id) = match (&arguments.first, &arguments.second) {
        (Some(first), Some(id)) => (Some(first), Some(id)),
        (Some(word), None) if arguments.query.is_some() => (Some(word), None),
        (word, None) => (None, word.as_ref()),
        (None, Some(id)) => (None, Some(id)),
    };
    let fields = [
        ("item_type", json!(item_type)),
        ("item_id", json!(id)),
        ("query", json!(arguments.query)),
        ("scope", json!(arguments.scope)),
        ("limit", json!(arguments.limit)),
        source_field(arguments.from),
        ("destination", space_value(arguments.to)),
    ];
    build_action("fetch", fields)
}

fn sign_action(arguments: &SignArguments) -> Result<Value> {
    let (item_type, id) = match arguments.what.as_slice() {
        [id] if ItemRef::split_canonical(id).is_some() => (None, id),
        [item_type, id] if item_type.parse::<ItemType>().is_ok() => (Some(item_type), id),
        _ => return Err(unavailable_in_sandbox("signing by path")),
    };
    let fields =
        [("item_type", json!(item_type)), ("item_id", json!(id)), ("source", space_value(arguments.space))];
    Ok(build_action("sign", fields))
}

fn run_action(arguments: &RunArguments) -> Result<Value> {
    reject_if(arguments.continues.is_some() || arguments.message.is_some(), "--continue")?;
    reject_if(arguments.dry_run, "--dry-run")?;
    let request = crate::commands::run::thread_request(arguments)?;
    let options = [
        ("thread", json!("fork")),
        ("params", Value::Object(request.inputs)),
        ("async", if arguments.is_async { json!(true) } else { Value::Null }),
        ("model", json!(request.model)),
        ("provider", json!(request.provider)),
        (
            "limit_overrides",
            if request.limits.is_empty() { Value::Null } else { Value::Object(request.limits) },
        ),
    ];
    Ok(build_action("execute", item_fields(&request.directive).into_iter().chain(options)))
}

fn thread_action(command: &ThreadCommand) -> Result<Value> {
    let one = |operation: &str, id: &str| json!({"operation": operation, "thread_id": full_thread_id(id)});
    let params = match command {
        ThreadCommand::List(_) | ThreadCommand::Tree { .. } => json!({"operation": "list_active"}),
        ThreadCommand::Show { id: Some(id) } => one("get_status", id),
        ThreadCommand::Transcript { id, .. } => one("read_transcript", id),
        ThreadCommand::Wait(arguments) => wait_params(arguments),
        ThreadCommand::Cancel { ids, reason } => match ids.as_slice() {
            [id] => json!({"operation": "cancel_thread", "thread_id": full_thread_id(id), "reason": reason}),
            _ => return Err(unavailable_in_sandbox("cancelling several threads at once")),
        },
        ThreadCommand::Kill { id } => one("kill_thread", id),
        ThreadCommand::Resume(arguments) => json!({
            "operation": "resume_thread", "thread_id": full_thread_id(&arguments.id), "message": arguments.message,
            "limit_overrides": control::parse_limits(&arguments.limits, true)?,
        }),
        _ => return Err(unavailable_in_sandbox("this command")),
    };
    Ok(build_action(
        "execute",
        [("item_type", json!("tool")), ("item_id", json!(ORCHESTRATOR)), ("params", params)],
    ))
}

fn wait_params(arguments: &WaitArguments) -> Value {
    let ids: Vec<String> = arguments.ids.iter().map(|id| full_thread_id(id)).collect();
    let mut params = json!({"operation": "wait_threads", "thread_ids": ids});
    match arguments.quorum {
        _ if arguments.any => params["mode"] = json!("any"),
        Some(quorum) => (params["mode"], params["quorum"]) = (json!("quorum"), json!(quorum)),
        None => {}
    }
    if let Some(timeout) = arguments.timeout {
        params["timeout"] = json!(timeout);
    }
    params
}

/// A thread's name, also where its first word was left out.
fn full_thread_id(id: &str) -> String {
    if id.starts_with("thread-") { id.to_owned() } else { format!("thread-{id}") }
}
