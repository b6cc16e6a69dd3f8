//! `mcp.manager`: the servers a project knows. It writes items, never signs them, and changes a pin only with the user's
//! consent.

use rye_exec::NativeError;
use rye_item::ItemId;
use serde_json::{Map, Value, json};

use super::project_file::{ProjectFile, yaml_names};
use super::{McpCall, pin_json, to_native_error};
use crate::error::truncate_line;
use crate::items;
use crate::pins::{self, PinCheck};
use crate::server::McpServer;

const SETTINGS: [&str; 9] =
    ["transport", "command", "args", "env", "cwd", "url", "headers", "auth", "timeout"];

/// Does what the parameter `action` says.
pub(super) fn manage(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    match mcp_call.text_parameter("action")? {
        "list" => list(mcp_call),
        "add" => add(mcp_call),
        "remove" => remove(mcp_call),
        "refresh" | "generate" => refresh(mcp_call),
        "accept" => accept(mcp_call),
        "status" => status(mcp_call),
        other => Err(NativeError::failed(format!(
            "unknown action `{}`; known are list, add, remove, refresh, accept, status",
            truncate_line(other, 60)
        ))),
    }
}

fn list(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let mut servers = Vec::new();
    for summary in mcp_call.host.servers(mcp_call.call)? {
        let pin = match pins::load(&mcp_call.host.pin_path(mcp_call.call, &summary.id), summary.id.as_str()) {
            Ok(Some(pin)) => {
                json!({"digest": pin.digest.to_hex(), "pinned_at": pin.pinned_at, "tool_count": pin.tools.len()})
            }
            Ok(None) => Value::Null,
            Err(error) => json!({"error": error.to_string()}),
        };
        servers.push(json!({
            "id": summary.id.as_str(),
            "space": summary.space,
            "description": truncate_line(&summary.description, 500),
            "state": summary.state,
            "pin": pin,
        }));
    }
    Ok(json!({"count": servers.len(), "servers": servers}))
}

fn add(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let id = managed_server(mcp_call)?;
    let parameter = |key: &&str| mcp_call.call.parameters.get(*key).filter(|value| !value.is_null());
    let config: Map<String, Value> =
        SETTINGS.iter().filter_map(|key| Some(((*key).to_owned(), parameter(key)?.clone()))).collect();
    let config = Value::Object(config);
    McpServer::from_config(id.as_str(), &config).map_err(to_native_error)?;
    let description = match mcp_call.call.parameters.get("description").and_then(Value::as_str) {
        Some(text) => text.to_owned(),
        None => format!("The MCP server {}", id.name()),
    };
    let place = ProjectFile::new(mcp_call.call, &server_path(&id))?;
    place.write_new(&items::server_item(&id, &description, &config))?;
    let mut next = vec![
        format!("ask the user to read the file and sign it: `rye sign tool {id}`"),
        format!("make its tools items: `rye execute rye/mcp/manager action=refresh server={id}`"),
    ];
    if has_plain_secret(&config) {
        next.insert(
            0,
            "the file contains a credential; write `${NAME}` instead and set the variable".to_owned(),
        );
    }
    Ok(json!({"server": id.as_str(), "written": place.to_value(), "signed": false, "next": next}))
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

fn remove(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let id = managed_server(mcp_call)?;
    let server = ProjectFile::new(mcp_call.call, &server_path(&id))?;
    let mut to_remove: Vec<ProjectFile> = list_existing(mcp_call, &id)?
        .into_iter()
        .filter(|file| file.owner == FileOwner::Manager)
        .map(|file| file.file)
        .collect();
    if server.read()?.is_some() {
        to_remove.push(server);
    }
    for place in &to_remove {
        place.remove()?;
    }
    let removed: Vec<Value> = to_remove.iter().map(ProjectFile::to_value).collect();
    Ok(json!({
        "server": id.as_str(),
        "removed": removed,
        "note": "the pin is kept: a server that comes back under this name has to offer the same tools",
    }))
}

fn refresh(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let id = managed_server(mcp_call)?;
    let server = mcp_call.load_server(&id)?;
    let tool_list = mcp_call.list_tools(&server)?;
    mcp_call.enforce_pin(&id, &tool_list).map_err(to_native_error)?;
    let existing = list_existing(mcp_call, &id)?;
    let mut changed = Vec::new();
    let mut kept = Vec::new();
    let mut names = Vec::new();
    let mut unsigned = Vec::new();
    for (name, tool) in items::file_names(&tool_list) {
        let text = items::tool_item(&id, &server.transport, &name, tool);
        let file = format!("{name}.yaml");
        match existing.iter().find(|existing| existing.name == file) {
            Some(existing) if existing.owner == FileOwner::Other => {
                return Err(NativeError::failed(format!(
                    "`{}` is not an item of this server; move it away first",
                    existing.file.path().display()
                )));
            }
            // A file that says the same keeps its signature.
            Some(existing) if without_signature(&existing.text) == text => {
                if existing.text == text {
                    unsigned.push(name);
                }
                kept.push(file.clone());
            }
            Some(_) | None => {
                unsigned.push(name);
                changed.push((ProjectFile::new(mcp_call.call, &format!("{}/{file}", tools_dir(&id)))?, text))
            }
        }
        names.push(file);
    }
    let stale: Vec<&ExistingFile> = existing
        .iter()
        .filter(|file| file.owner == FileOwner::Manager && !names.contains(&file.name))
        .collect();
    for (target, text) in &changed {
        target.write(text)?;
    }
    for file in &stale {
        file.file.remove()?;
    }
    let written: Vec<Value> = changed.iter().map(|(target, _)| target.to_value()).collect();
    // By their ids: a pattern would also name what others put into the folder.
    let next: Vec<String> = unsigned
        .iter()
        .map(|name| {
            format!("ask the user to read the file and sign it: `rye sign tool mcp/{}/{name}`", id.name())
        })
        .collect();
    let removed: Vec<Value> = stale.iter().map(|file| file.file.to_value()).collect();
    Ok(json!({
        "server": id.as_str(),
        "tool_count": names.len(),
        "written": written,
        "unchanged": kept,
        "removed": removed,
        "next": next,
    }))
}

fn accept(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let id = mcp_call.server_id()?;
    mcp_call.host.may_accept(mcp_call.call, &id)?;
    let server = mcp_call.load_server(&id)?;
    let tool_list = mcp_call.list_tools(&server)?;
    let before = match mcp_call.check_pin(&id, &tool_list) {
        Ok(check) => pin_json(&check),
        // A damaged pin is replaced like any other, but not in silence.
        Err(error) => json!({"state": "damaged", "error": error.to_string()}),
    };
    pins::accept(&mcp_call.host.pin_path(mcp_call.call, &id), id.as_str(), &tool_list, mcp_call.call.now)
        .map_err(to_native_error)?;
    Ok(json!({
        "server": id.as_str(),
        "digest": tool_list.digest.to_hex(),
        "tool_count": tool_list.tools.len(),
        "before": before,
        "next": [format!("make its tools items again: `rye execute rye/mcp/manager action=refresh server={id}`")],
    }))
}

fn status(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let id = mcp_call.server_id()?;
    let server = mcp_call.load_server(&id)?;
    let tool_list = mcp_call.list_tools(&server)?;
    let check = mcp_call.check_pin(&id, &tool_list).map_err(to_native_error)?;
    let hint = match &check {
        PinCheck::New => Some("its tools are pinned on first use".to_owned()),
        PinCheck::Same => None,
        PinCheck::Changed(_) => {
            Some(format!("accept the change with `rye execute rye/mcp/manager action=accept server={id}`"))
        }
    };
    let names: Vec<&str> = tool_list.tools.iter().map(|tool| tool.name.as_str()).collect();
    Ok(json!({
        "server": id.as_str(),
        "transport": server.transport.as_str(),
        "digest": tool_list.digest.to_hex(),
        "pin": pin_json(&check),
        "tools": names,
        "hint": hint,
    }))
}

/// The server named by the call, if its files are the manager's to write: `mcp/servers/<name>`.
fn managed_server(mcp_call: &McpCall<'_>) -> Result<ItemId, NativeError> {
    let id = mcp_call.server_id()?;
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

fn tools_dir(id: &ItemId) -> String {
    format!(".ai/tools/mcp/{}", id.name())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileOwner {
    Manager,
    Other,
}

struct ExistingFile {
    name: String,
    file: ProjectFile,
    text: String,
    owner: FileOwner,
}

/// The items in the folder of the server's tools, and whether they were made for it.
fn list_existing(mcp_call: &McpCall<'_>, id: &ItemId) -> Result<Vec<ExistingFile>, NativeError> {
    let folder = tools_dir(id);
    let mut files = Vec::new();
    for name in yaml_names(&mcp_call.call.project.join(&folder))? {
        let file = ProjectFile::new(mcp_call.call, &format!("{folder}/{name}"))?;
        let Some(text) = file.read()? else { continue };
        let owner = match rye_item::yaml::parse(&text) {
            Ok(item) if item.value["tool_type"] == "mcp" && item.value["config"]["server"] == id.as_str() => {
                FileOwner::Manager
            }
            Ok(_) | Err(_) => FileOwner::Other,
        };
        files.push(ExistingFile { name, file, text, owner });
    }
    Ok(files)
}

/// The text below a signature line.
fn without_signature(text: &str) -> &str {
    match text.split_once('\n') {
        Some((first, rest)) if first.starts_with("# rye:signed:") => rest,
        _ => text,
    }
}
