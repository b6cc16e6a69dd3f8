//! `mcp.manager`: the servers a project knows. It writes items, never signs them, and changes a pin only with the user's
//! consent.

use rye_exec::NativeError;
use rye_item::ItemId;
use serde_json::{Map, Value, json};

use super::place::{Place, yaml_names};
use super::{World, native, pin_json};
use crate::error::shown;
use crate::items;
use crate::pins::{self, Check};
use crate::server::Server;

const SETTINGS: [&str; 9] =
    ["transport", "command", "args", "env", "cwd", "url", "headers", "auth", "timeout"];

/// Does what the parameter `action` says.
pub(super) fn manage(world: &World<'_>) -> Result<Value, NativeError> {
    match world.text("action")? {
        "list" => list(world),
        "add" => add(world),
        "remove" => remove(world),
        "refresh" | "generate" => refresh(world),
        "accept" => accept(world),
        "status" => status(world),
        other => Err(NativeError::failed(format!(
            "unknown action `{}`; known are list, add, remove, refresh, accept, status",
            shown(other, 60)
        ))),
    }
}

fn list(world: &World<'_>) -> Result<Value, NativeError> {
    let mut servers = Vec::new();
    for found in world.host.servers(world.call)? {
        let pin = match pins::load(&world.host.pin_path(world.call, &found.id), found.id.as_str()) {
            Ok(Some(pin)) => {
                json!({"digest": pin.digest.to_hex(), "pinned_at": pin.pinned_at, "tool_count": pin.tools.len()})
            }
            Ok(None) => Value::Null,
            Err(error) => json!({"error": error.to_string()}),
        };
        servers.push(json!({
            "id": found.id.as_str(),
            "space": found.space,
            "description": shown(&found.description, 500),
            "state": found.state,
            "pin": pin,
        }));
    }
    Ok(json!({"count": servers.len(), "servers": servers}))
}

fn add(world: &World<'_>) -> Result<Value, NativeError> {
    let id = own(world)?;
    let given = |key: &&str| world.call.parameters.get(*key).filter(|value| !value.is_null());
    let config: Map<String, Value> =
        SETTINGS.iter().filter_map(|key| Some(((*key).to_owned(), given(key)?.clone()))).collect();
    let config = Value::Object(config);
    Server::from_config(id.as_str(), &config).map_err(native)?;
    let description = match world.call.parameters.get("description").and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => format!("The MCP server {}", id.name()),
    };
    let place = Place::new(world.call, &server_path(&id))?;
    place.write_new(&items::server_item(&id, &description, &config))?;
    let mut next = vec![
        format!("ask the user to read the file and sign it: `rye sign tool {id}`"),
        format!("make its tools items: `rye execute rye/mcp/manager action=refresh server={id}`"),
    ];
    if has_plain_secret(&config) {
        next.insert(
            0,
            "a credential stands in the file; write `${NAME}` instead and set the variable".to_owned(),
        );
    }
    Ok(json!({"server": id.as_str(), "written": place.shown(), "signed": false, "next": next}))
}

/// Whether something that looks like a credential is written out.
fn has_plain_secret(config: &Value) -> bool {
    let is_plain = |value: &Value| match value {
        Value::String(text) => !text.contains("${"),
        Value::Object(map) => map.values().filter_map(Value::as_str).any(|text| !text.contains("${")),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => false,
    };
    config.get("auth").is_some_and(is_plain)
        || config.get("headers").and_then(|headers| headers.get("Authorization")).is_some_and(is_plain)
}

fn remove(world: &World<'_>) -> Result<Value, NativeError> {
    let id = own(world)?;
    let server = Place::new(world.call, &server_path(&id))?;
    let mut doomed: Vec<Place> = existing(world, &id)?
        .into_iter()
        .filter(|file| file.owner == Owner::Us)
        .map(|file| file.place)
        .collect();
    if server.read()?.is_some() {
        doomed.push(server);
    }
    for place in &doomed {
        place.remove()?;
    }
    let removed: Vec<Value> = doomed.iter().map(Place::shown).collect();
    Ok(json!({
        "server": id.as_str(),
        "removed": removed,
        "note": "the pin is kept: a server that comes back under this name has to offer the same tools",
    }))
}

fn refresh(world: &World<'_>) -> Result<Value, NativeError> {
    let id = own(world)?;
    let server = world.open(&id)?;
    let found = world.list(&server)?;
    world.admit(&id, &found).map_err(native)?;
    let existing = existing(world, &id)?;
    let mut changed = Vec::new();
    let mut kept = Vec::new();
    let mut names = Vec::new();
    for (name, tool) in items::file_names(&found) {
        let text = items::tool_item(&id, &server.transport, &name, tool);
        let file = format!("{name}.yaml");
        match existing.iter().find(|existing| existing.name == file) {
            Some(existing) if existing.owner == Owner::Somebody => {
                return Err(NativeError::failed(format!(
                    "`{}` is not an item of this server; move it away first",
                    existing.place.path().display()
                )));
            }
            // A file that says the same keeps its signature.
            Some(existing) if without_signature(&existing.text) == text => kept.push(file.clone()),
            Some(_) | None => {
                changed.push((Place::new(world.call, &format!("{}/{file}", tools_folder(&id)))?, text))
            }
        }
        names.push(file);
    }
    let stale: Vec<&Existing> =
        existing.iter().filter(|file| file.owner == Owner::Us && !names.contains(&file.name)).collect();
    for (place, text) in &changed {
        place.write(text)?;
    }
    for file in &stale {
        file.place.remove()?;
    }
    let written: Vec<Value> = changed.iter().map(|(place, _)| place.shown()).collect();
    let removed: Vec<Value> = stale.iter().map(|file| file.place.shown()).collect();
    Ok(json!({
        "server": id.as_str(),
        "tool_count": names.len(),
        "written": written,
        "unchanged": kept,
        "removed": removed,
        "next": [format!("ask the user to read the files and sign them: `rye sign tool 'mcp/{}/*'`", id.name())],
    }))
}

fn accept(world: &World<'_>) -> Result<Value, NativeError> {
    let id = world.named()?;
    world.host.may_accept(world.call, &id)?;
    let server = world.open(&id)?;
    let found = world.list(&server)?;
    let before = match world.check(&id, &found) {
        Ok(check) => pin_json(&check),
        // A damaged pin is replaced like any other, but not in silence.
        Err(error) => json!({"state": "damaged", "error": error.to_string()}),
    };
    pins::accept(&world.host.pin_path(world.call, &id), id.as_str(), &found, world.call.now)
        .map_err(native)?;
    Ok(json!({
        "server": id.as_str(),
        "digest": found.digest.to_hex(),
        "tool_count": found.tools.len(),
        "before": before,
        "next": [format!("make its tools items again: `rye execute rye/mcp/manager action=refresh server={id}`")],
    }))
}

fn status(world: &World<'_>) -> Result<Value, NativeError> {
    let id = world.named()?;
    let server = world.open(&id)?;
    let found = world.list(&server)?;
    let check = world.check(&id, &found).map_err(native)?;
    let hint = match &check {
        Check::New => Some("its tools are pinned on first use".to_owned()),
        Check::Same => None,
        Check::Changed(_) => {
            Some(format!("accept the change with `rye execute rye/mcp/manager action=accept server={id}`"))
        }
    };
    let names: Vec<&str> = found.tools.iter().map(|tool| tool.name.as_str()).collect();
    Ok(json!({
        "server": id.as_str(),
        "transport": server.transport.as_str(),
        "digest": found.digest.to_hex(),
        "pin": pin_json(&check),
        "tools": names,
        "hint": hint,
    }))
}

/// The server named by the call, if its files are the manager's to write: `mcp/servers/<name>`.
fn own(world: &World<'_>) -> Result<ItemId, NativeError> {
    let id = world.named()?;
    if id.category() != "mcp/servers" || id.name() == "servers" {
        return Err(NativeError::failed(format!(
            "`{id}` is not managed here; a managed server is `mcp/servers/<name>`, and `<name>` is not `servers`"
        )));
    }
    Ok(id)
}

fn server_path(id: &ItemId) -> String {
    format!(".ai/tools/{id}.yaml")
}

fn tools_folder(id: &ItemId) -> String {
    format!(".ai/tools/mcp/{}", id.name())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Us,
    Somebody,
}

struct Existing {
    name: String,
    place: Place,
    text: String,
    owner: Owner,
}

/// The items in the folder of the server's tools, and whether they were made for it.
fn existing(world: &World<'_>, id: &ItemId) -> Result<Vec<Existing>, NativeError> {
    let folder = tools_folder(id);
    let mut found = Vec::new();
    for name in yaml_names(&world.call.project.join(&folder))? {
        let place = Place::new(world.call, &format!("{folder}/{name}"))?;
        let Some(text) = place.read()? else { continue };
        let owner = match rye_item::yaml::parse(&text) {
            Ok(item) if item.value["tool_type"] == "mcp" && item.value["config"]["server"] == id.as_str() => {
                Owner::Us
            }
            Ok(_) | Err(_) => Owner::Somebody,
        };
        found.push(Existing { name, place, text, owner });
    }
    Ok(found)
}

/// The text below a signature line.
fn without_signature(text: &str) -> &str {
    match text.split_once('\n') {
        Some((first, rest)) if first.starts_with("# rye:signed:") => rest,
        _ => text,
    }
}
