//! What a command line asks for, as an action that a thread can be asked for.

use rye_engine::{Code, Error, Result};
use rye_item::{ItemRef, ItemType};
use serde_json::{Map, Value, json};

use crate::arguments::{
    Command, ExecuteArguments, FetchArguments, LoadArguments, RunArguments, SearchArguments, SignArguments,
    SpaceName, ThreadCommand, WaitArguments, WritableSpace,
};
use crate::commands::threads::steer;
use crate::commands::{execute, item_of, items};

/// The tool that looks at and steers threads.
const ORCHESTRATOR: &str = "rye/agent/threads/orchestrator";

/// The action; nothing for `mcp`, which asks for one after the other.
///
/// # Errors
/// When the command is for people.
pub(super) fn of(command: &Command) -> Result<Option<Value>> {
    Ok(Some(match command {
        Command::Execute(arguments) => executing(arguments)?,
        Command::Search(arguments) => searching(arguments)?,
        Command::Load(arguments) => loading(arguments)?,
        Command::Fetch(arguments) => fetching(arguments),
        Command::Sign(arguments) => signing(arguments)?,
        Command::Run(arguments) => running(arguments)?,
        Command::Thread(command) => orchestrating(command)?,
        Command::Mcp(arguments) if arguments.http.is_none() && arguments.command.is_none() => {
            return Ok(None);
        }
        _ => return Err(for_people("this command")),
    }))
}

/// Something only people do.
fn for_people(what: &str) -> Error {
    Error::new(Code::NoToken, format!("{what} is for people: a tool cannot ask for it"))
        .hint("a tool can execute, search, load, fetch, sign and run, and look at its own threads")
}

fn refuse(is_given: bool, what: &str) -> Result<()> {
    if is_given { Err(for_people(what)) } else { Ok(()) }
}

/// An action of these fields, without those that are not given.
fn action(primary: &str, fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let mut map = Map::from_iter([("primary".to_owned(), json!(primary))]);
    let given = fields.into_iter().filter(|(_, value)| !value.is_null());
    map.extend(given.map(|(key, value)| (key.to_owned(), value)));
    Value::Object(map)
}

fn item(item: &ItemRef) -> [(&'static str, Value); 2] {
    [("item_type", json!(item.item_type)), ("item_id", json!(item.id.to_string()))]
}

fn source(space: Option<SpaceName>) -> (&'static str, Value) {
    let word = space.map(|space| match space {
        SpaceName::Project => "project",
        SpaceName::User => "user",
        SpaceName::System => "system",
        SpaceName::All => "all",
    });
    ("source", json!(word))
}

fn writable(space: Option<WritableSpace>) -> Value {
    json!(space.map(|space| match space {
        WritableSpace::Project => "project",
        WritableSpace::User => "user",
    }))
}

fn executing(arguments: &ExecuteArguments) -> Result<Value> {
    refuse(arguments.trace || arguments.locked || arguments.frozen, "--trace, --locked and --frozen")?;
    let (of, rest) = execute::item_and_rest(&arguments.words)?;
    let params = arguments.params.as_deref().map(execute::parameters).transpose()?.unwrap_or_default();
    let words: Map<String, Value> =
        execute::pairs(rest)?.into_iter().map(|(name, word)| (name, json!(word))).collect();
    let further = [
        ("params", Value::Object(params)),
        ("words", if words.is_empty() { Value::Null } else { Value::Object(words) }),
        ("dry_run", if arguments.dry_run { json!(true) } else { Value::Null }),
    ];
    Ok(action("execute", item(&of).into_iter().chain(further)))
}

fn searching(arguments: &SearchArguments) -> Result<Value> {
    refuse(arguments.all, "--all")?;
    let fields = [
        ("query", json!(items::join_words(&arguments.query))),
        ("item_type", json!(arguments.item_type)),
        ("scope", json!(arguments.scope)),
        ("limit", json!(arguments.limit)),
        source(arguments.space),
    ];
    Ok(action("search", fields))
}

fn loading(arguments: &LoadArguments) -> Result<Value> {
    refuse(arguments.unverified, "--unverified")?;
    let of = item_of(&arguments.item)?;
    let further = [source(arguments.from), ("destination", writable(arguments.to))];
    Ok(action("load", item(&of).into_iter().chain(further)))
}

fn fetching(arguments: &FetchArguments) -> Value {
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
        source(arguments.from),
        ("destination", writable(arguments.to)),
    ];
    action("fetch", fields)
}

fn signing(arguments: &SignArguments) -> Result<Value> {
    let (item_type, id) = match arguments.what.as_slice() {
        [id] if ItemRef::split_canonical(id).is_some() => (None, id),
        [item_type, id] if item_type.parse::<ItemType>().is_ok() => (Some(item_type), id),
        _ => return Err(for_people("signing by path")),
    };
    let fields =
        [("item_type", json!(item_type)), ("item_id", json!(id)), ("source", writable(arguments.space))];
    Ok(action("sign", fields))
}

fn running(arguments: &RunArguments) -> Result<Value> {
    refuse(arguments.continues.is_some() || arguments.message.is_some(), "--continue")?;
    refuse(arguments.dry_run, "--dry-run")?;
    let order = crate::commands::run::order(arguments)?;
    let further = [
        ("thread", json!("fork")),
        ("params", Value::Object(order.inputs)),
        ("async", if arguments.is_async { json!(true) } else { Value::Null }),
        ("model", json!(order.model)),
        ("provider", json!(order.provider)),
        ("limit_overrides", if order.limits.is_empty() { Value::Null } else { Value::Object(order.limits) }),
    ];
    Ok(action("execute", item(&order.directive).into_iter().chain(further)))
}

fn orchestrating(command: &ThreadCommand) -> Result<Value> {
    let one = |operation: &str, id: &str| json!({"operation": operation, "thread_id": whole(id)});
    let params = match command {
        ThreadCommand::List(_) | ThreadCommand::Tree { .. } => json!({"operation": "list_active"}),
        ThreadCommand::Show { id } => one("get_status", id),
        ThreadCommand::Transcript { id, .. } => one("read_transcript", id),
        ThreadCommand::Wait(arguments) => waiting(arguments),
        ThreadCommand::Cancel { ids, reason } => match ids.as_slice() {
            [id] => json!({"operation": "cancel_thread", "thread_id": whole(id), "reason": reason}),
            _ => return Err(for_people("cancelling several threads at once")),
        },
        ThreadCommand::Kill { id } => one("kill_thread", id),
        ThreadCommand::Resume(arguments) => json!({
            "operation": "resume_thread", "thread_id": whole(&arguments.id), "message": arguments.message,
            "limit_overrides": steer::limits(&arguments.limits, true)?,
        }),
        _ => return Err(for_people("this command")),
    };
    Ok(action(
        "execute",
        [("item_type", json!("tool")), ("item_id", json!(ORCHESTRATOR)), ("params", params)],
    ))
}

fn waiting(arguments: &WaitArguments) -> Value {
    let ids: Vec<String> = arguments.ids.iter().map(|id| whole(id)).collect();
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
fn whole(id: &str) -> String {
    if id.starts_with("thread-") { id.to_owned() } else { format!("thread-{id}") }
}
