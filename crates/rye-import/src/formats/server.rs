//! MCP servers of clients' files: server items. What looks like a credential does not come in; a variable does.

use lillux_hash::Digest;
use rye_item::ItemType;
use serde_json::{Map, Value, json};

use super::credentials::{CredentialFilter, variable_name};
use super::parse_json;
use super::references::{is_reference, variables, variables_without_defaults};
use crate::detect::SourceFormat;
use crate::names::segment;
use crate::plan::{ImportNote, NoteKind, PlannedItem, RefusedSource, UnitContext, UnitPlan};
use crate::render::{self, item_ref};

/// How many servers one file may list.
const MAX_SERVERS: usize = 200;
/// Keys of an entry that are read.
const READ_KEYS: [&str; 10] =
    ["type", "transport", "command", "args", "env", "cwd", "url", "headers", "description", "serverUrl"];
/// Keys that let a client call tools without asking.
const APPROVAL_KEYS: [&str; 4] = ["alwaysAllow", "autoApprove", "trust", "default_tools_approval_mode"];

/// Reads a file that lists servers.
pub(super) fn read(context: &UnitContext<'_>) -> Result<UnitPlan, String> {
    let text = context.text()?;
    let document = if context.unit.path.name().ends_with(".toml") {
        let table: toml::Table =
            toml::from_str(text).map_err(|error| format!("it is not TOML: {}", error.message()))?;
        serde_json::to_value(table).map_err(|error| error.to_string())?
    } else {
        parse_json(text)?
    };
    let keys = ["mcpServers", "mcp_servers", "servers", "context_servers"];
    let listed = keys.iter().find_map(|key| document.get(key)?.as_object());
    // A plugin's file may be the map itself.
    let is_entry = |entry: &Value| entry.get("command").is_some() || entry.get("url").is_some();
    let bare = document.as_object().filter(|map| !map.is_empty() && map.values().all(is_entry));
    let Some(servers) = listed.or(bare) else { return Ok(UnitPlan::default()) };
    read_servers(context, servers)
}

/// Plans servers by name.
pub(super) fn read_servers(
    context: &UnitContext<'_>,
    servers: &Map<String, Value>,
) -> Result<UnitPlan, String> {
    if servers.len() > MAX_SERVERS {
        return Err(format!("it lists {} servers, more than {MAX_SERVERS}", servers.len()));
    }
    let mut plan = UnitPlan::default();
    for (name, entry) in servers {
        let mut notes = Vec::new();
        if is_own(entry) {
            plan.notes
                .push(ImportNote::new(NoteKind::Warning, format!("`{name}` is rye itself: not imported")));
            continue;
        }
        let planned = server_config(name, entry, &mut notes).and_then(|config| {
            let id = format!("{}/{}", context.category("mcp/servers"), segment(name));
            let item = item_ref(ItemType::Tool, &id)?;
            let bytes = entry.to_string();
            let mut provenance =
                context.provenance(SourceFormat::McpServers, name, &context.unit.path, bytes.as_bytes());
            provenance.sha256 = Digest::of(bytes.as_bytes()).to_hex();
            let description =
                entry["description"].as_str().map_or_else(|| format!("MCP server {name}"), str::to_owned);
            let text = render::server(&item.id, &description, &config, &mut provenance);
            Ok(PlannedItem { item, extension: ".yaml", text, provenance, notes })
        });
        match planned {
            Ok(planned) => plan.items.push(planned),
            Err(reason) => plan.refused.push(RefusedSource {
                source: format!(
                    "{} ({})",
                    context.listing.display_path(context.unit.path.as_str()),
                    rye_item::text::one_line(name)
                ),
                reason,
            }),
        }
    }
    Ok(plan)
}

/// Whether an entry starts rye's own server.
fn is_own(entry: &Value) -> bool {
    let command = entry["command"].as_str().unwrap_or_default();
    let arguments = entry["args"].as_array().map(Vec::as_slice).unwrap_or_default();
    command.rsplit('/').next() == Some("rye") && arguments.first() == Some(&json!("mcp"))
}

/// The config of a server item, or why there is none.
fn server_config(name: &str, entry: &Value, notes: &mut Vec<ImportNote>) -> Result<Value, String> {
    let Some(map) = entry.as_object() else { return Err("its entry is not a map".to_owned()) };
    let text = entry.to_string();
    if let Some(found) = crate::findings::describe_hidden(&text) {
        return Err(format!("its entry has a {found}"));
    }
    for root in ["CLAUDE_PLUGIN_ROOT", "PLUGIN_ROOT", "PLUGIN_DATA", "extensionPath", "CURSOR_PLUGIN_ROOT"] {
        if text.contains(&format!("${{{root}}}")) {
            return Err(format!(
                "it runs a program of the plugin's own folder (${{{root}}}), which is not installed"
            ));
        }
    }
    for key in map.keys().filter(|key| !READ_KEYS.contains(&key.as_str())) {
        let kind = if APPROVAL_KEYS.contains(&key.as_str()) { NoteKind::Denied } else { NoteKind::Lost };
        notes.push(ImportNote::new(kind, format!("`{key}` has no meaning here")));
    }
    let kind = entry["type"].as_str().or(entry["transport"].as_str());
    let url = entry["url"].as_str().or(entry["serverUrl"].as_str());
    match (kind, url, &entry["command"]) {
        (Some("sse"), ..) => {
            Err("its transport is `sse`, which is the old one: ask for its `http` address".to_owned())
        }
        (Some("stdio" | "local") | None, _, Value::String(command)) => {
            stdio(name, command, None, entry, notes)
        }
        (Some("stdio" | "local") | None, _, Value::Array(words)) => {
            let mut words = words.iter().filter_map(Value::as_str);
            let command = words.next().ok_or("its command is empty")?;
            stdio(name, command, Some(words.map(str::to_owned).collect()), entry, notes)
        }
        (
            Some("http" | "streamable-http" | "streamable_http" | "streamableHttp" | "remote") | None,
            Some(url),
            _,
        ) => http(name, url, entry, notes),
        (Some(kind), ..)
            if !["stdio", "local", "http", "streamable-http", "streamable_http", "remote"]
                .contains(&kind) =>
        {
            Err(format!("its transport `{}` is not known", rye_item::text::one_line(kind)))
        }
        _ => Err("it names neither a command nor a url".to_owned()),
    }
}

fn stdio(
    name: &str,
    command: &str,
    words: Option<Vec<String>>,
    entry: &Value,
    notes: &mut Vec<ImportNote>,
) -> Result<Value, String> {
    let listed = || -> Result<Vec<String>, String> {
        let Some(list) = entry.get("args").filter(|args| !args.is_null()) else { return Ok(Vec::new()) };
        let list = list.as_array().ok_or("its `args` is not a list")?;
        list.iter()
            .map(|word| match word {
                Value::String(text) => Ok(text.clone()),
                Value::Number(number) => Ok(number.to_string()),
                _ => Err("its `args` has something that is not text".to_owned()),
            })
            .collect()
    };
    let arguments = match words {
        Some(words) => words,
        None => listed()?,
    };
    if command.trim().is_empty() {
        return Err("its command is empty".to_owned());
    }
    let arguments = CredentialFilter::new(name, notes).arguments(&arguments);
    let line = format!("{command} {}", arguments.join(" "));
    notes.push(ImportNote::new(
        NoteKind::Script,
        format!("starts `{}` in the sandbox when it is used", line.trim()),
    ));
    if crate::findings::pipes_download(&line) {
        return Err(format!("its command runs a download: {}", rye_item::text::one_line(&line)));
    }
    let runner = command.rsplit('/').next().unwrap_or(command);
    let package = arguments.iter().find(|word| !word.starts_with('-'));
    let is_pinned = package.is_none_or(|package| {
        package.rfind('@').is_some_and(|at| at > 0 && !package.ends_with("@latest")) || package.contains("==")
    });
    if ["npx", "bunx", "uvx", "pipx"].contains(&runner) && !is_pinned {
        notes.push(ImportNote::new(
            NoteKind::Warning,
            "it names no fixed version: what is fetched can change",
        ));
    }
    let arguments = argument_variables(&arguments, notes);
    let command = variables("", command, notes);
    let mut config = json!({ "transport": "stdio", "command": command, "args": arguments });
    let env = secrets(name, entry.get("env"), notes)?;
    if !env.is_empty() {
        config["env"] = Value::Object(env);
    }
    if let Some(cwd) = entry["cwd"].as_str() {
        let cwd = rye_item::text::one_line(cwd);
        notes.push(ImportNote::new(NoteKind::Lost, format!("its folder `{cwd}`: it starts in the project")));
    }
    Ok(config)
}

/// Arguments with their variables as they are written here. An argument may be the value of the option before it.
fn argument_variables(arguments: &[String], notes: &mut Vec<ImportNote>) -> Vec<String> {
    let before = std::iter::once("").chain(arguments.iter().map(String::as_str));
    let pairs = before.zip(arguments);
    pairs
        .map(|(before, word)| {
            let option = if before.starts_with('-') { before } else { "" };
            variables(option, word, notes)
        })
        .collect()
}

fn http(name: &str, url: &str, entry: &Value, notes: &mut Vec<ImportNote>) -> Result<Value, String> {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let Some(rest) = rest else { return Err("its url is neither http nor https".to_owned()) };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if host.contains('@') {
        return Err("its url has a name or a password in it".to_owned());
    }
    let address = CredentialFilter::new(name, notes).address(url);
    notes.push(ImportNote::new(NoteKind::Address, format!("connects to {host} when it is used")));
    let mut config = json!({ "transport": "http", "url": variables("", &address, notes) });
    let headers = secrets(name, entry.get("headers"), notes)?;
    if !headers.is_empty() {
        config["headers"] = Value::Object(headers);
    }
    Ok(config)
}

/// Variables or headers, each value replaced by the name of a variable.
fn secrets(
    server: &str,
    values: Option<&Value>,
    notes: &mut Vec<ImportNote>,
) -> Result<Map<String, Value>, String> {
    let mut kept = Map::new();
    let Some(values) = values.filter(|values| !values.is_null()) else { return Ok(kept) };
    let values = values.as_object().ok_or("its `env` or `headers` is not a map")?;
    for (key, value) in values {
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(flag) => flag.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                return Err(format!("`{}` has no text", rye_item::text::one_line(key)));
            }
        };
        // A value would decide what runs, or be a secret: only references to variables come in.
        if is_reference(&text) {
            kept.insert(key.clone(), json!(variables_without_defaults(key, &text, notes)));
            continue;
        }
        let is_header = key.contains('-') || key.eq_ignore_ascii_case("authorization");
        let name = if is_header { format!("{server}_{key}") } else { key.clone() };
        let name = variable_name(&name);
        notes.push(ImportNote::new(
            NoteKind::AsksFor,
            format!("`{key}` held a value that is not imported: set {name} in your environment"),
        ));
        kept.insert(key.clone(), json!(format!("${{{name}}}")));
    }
    Ok(kept)
}
