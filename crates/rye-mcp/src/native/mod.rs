//! The native functions behind `rye/mcp/*` and the MCP runtimes. Which server items exist, whether they are verified, and
//! how processes and addresses are confined is the host's business; the host is the engine.

mod manager;
mod project_file;

use std::path::PathBuf;
use std::time::Duration;

use rye_exec::{NativeCall, NativeError, NativeTool};
use rye_item::ItemId;
use serde_json::{Map, Value, json};
use url::Url;

use crate::error::{McpError, truncate_line};
use crate::host::{HttpAccess, McpHost, ProcessSpawner, ServerProcess};
use crate::pins::{self, PinCheck};
use crate::sdk;
use crate::server::{DEFAULT_TIMEOUT, McpServer, ServerCommand, parse_timeout};
use crate::tools::{CallOutcome, ToolList};

/// A server item as `rye/mcp/manager` lists it, verified or not.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSummary {
    /// Its id.
    pub id: ItemId,
    /// Where it lies: `project`, `user`, `system`.
    pub space: String,
    /// What it says it is for.
    pub description: String,
    /// `verified`, or why it is not: `unsigned`, `untrusted`, `tampered`.
    pub state: String,
}

/// What the engine does for these tools.
pub trait ServerHost: Send + Sync {
    /// The `config` of the server item `id`, templates filled in, only if the item is verified and of type `mcp-server`
    /// (or `mcp_server`).
    ///
    /// # Errors
    /// When there is no such item or it is not to be trusted.
    fn server(&self, call: &NativeCall<'_>, id: &ItemId) -> Result<Value, NativeError>;

    /// All server items that can be found.
    ///
    /// # Errors
    /// When the spaces cannot be read.
    fn servers(&self, call: &NativeCall<'_>) -> Result<Vec<ServerSummary>, NativeError>;

    /// Starts a stdio server, confined.
    ///
    /// # Errors
    /// When policy forbids it or the system fails, in words.
    fn spawn(
        &self,
        call: &NativeCall<'_>,
        server: &McpServer,
        command: &ServerCommand,
    ) -> Result<ServerProcess, String>;

    /// Whether `url` of `server` may be asked.
    ///
    /// # Errors
    /// The rule that forbids it.
    fn allow(&self, call: &NativeCall<'_>, server: &McpServer, url: &Url) -> Result<(), String>;

    /// Finishes an HTTP client for the host of `url`: TLS, and a resolver that refuses forbidden addresses.
    ///
    /// # Errors
    /// When no client can be made.
    fn build_client(
        &self,
        call: &NativeCall<'_>,
        server: &McpServer,
        url: &Url,
        builder: reqwest::ClientBuilder,
    ) -> Result<reqwest::Client, String>;

    /// Where the pin of the server `id` lies.
    fn pin_path(&self, call: &NativeCall<'_>, id: &ItemId) -> PathBuf;

    /// Whether this call carries the user's consent to pin other tools for `id`: a person at the command line does, a
    /// model or a foreign client does not.
    ///
    /// # Errors
    /// The refusal.
    fn may_accept(&self, call: &NativeCall<'_>, id: &ItemId) -> Result<(), NativeError>;
}

/// The tools to register: `mcp.call`, `mcp.discover`, `mcp.connect`, `mcp.manager`.
#[must_use]
pub fn tools(host: &dyn ServerHost) -> [impl NativeTool; 4] {
    let functions: [(&'static str, ToolFunction); 4] = [
        ("mcp.call", call),
        ("mcp.discover", discover),
        ("mcp.connect", connect),
        ("mcp.manager", manager::manage),
    ];
    functions.map(|(name, function)| McpTool { name, function, host })
}

/// How long one exchange with `server` may take in a call with this `config`: what the server item says, else what the
/// tool or its runtime says.
#[must_use]
pub fn exchange_timeout(server: &McpServer, config: &Map<String, Value>) -> Duration {
    server.timeout.or_else(|| config.get("timeout").and_then(parse_timeout)).unwrap_or(DEFAULT_TIMEOUT)
}

type ToolFunction = fn(&McpCall<'_>) -> Result<Value, NativeError>;

struct McpTool<'a> {
    name: &'static str,
    function: ToolFunction,
    host: &'a dyn ServerHost,
}

impl NativeTool for McpTool<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn call(&self, call: &NativeCall<'_>) -> Result<Value, NativeError> {
        (self.function)(&McpCall { host: self.host, call })
    }
}

/// One call, with the host that serves it.
struct McpCall<'a> {
    host: &'a dyn ServerHost,
    call: &'a NativeCall<'a>,
}

impl ProcessSpawner for McpCall<'_> {
    fn spawn(&self, server: &McpServer, command: &ServerCommand) -> Result<ServerProcess, String> {
        self.host.spawn(self.call, server, command)
    }
}

impl HttpAccess for McpCall<'_> {
    fn allow(&self, server: &McpServer, url: &Url) -> Result<(), String> {
        if !self.call.access.network {
            return Err("this tool may not use the network".to_owned());
        }
        self.host.allow(self.call, server, url)
    }

    fn build_client(
        &self,
        server: &McpServer,
        url: &Url,
        builder: reqwest::ClientBuilder,
    ) -> Result<reqwest::Client, String> {
        self.host.build_client(self.call, server, url, builder)
    }
}

impl McpCall<'_> {
    fn load_server(&self, id: &ItemId) -> Result<McpServer, NativeError> {
        let config = self.host.server(self.call, id)?;
        McpServer::from_config(id.as_str(), &config).map_err(to_native_error)
    }

    fn mcp_host(&self, server: &McpServer) -> McpHost<'_> {
        let timeout = exchange_timeout(server, self.call.config);
        McpHost { spawner: self, http: self, cancel: self.call.cancel, timeout, progress: None }
    }

    fn list_tools(&self, server: &McpServer) -> Result<ToolList, NativeError> {
        sdk::list_tools(server, &self.mcp_host(server)).map_err(to_native_error)
    }

    fn check_pin(&self, id: &ItemId, tool_list: &ToolList) -> Result<PinCheck, McpError> {
        let pin = pins::load(&self.host.pin_path(self.call, id), id.as_str())?;
        Ok(pins::compare_pin(pin.as_ref(), tool_list))
    }

    /// Refuses changed tools; pins them on first use.
    fn enforce_pin(&self, id: &ItemId, tool_list: &ToolList) -> Result<(), McpError> {
        let check = self.check_pin(id, tool_list)?;
        pins::require_unchanged(&check, id.as_str())?;
        if check == PinCheck::New {
            pins::pin_new(&self.host.pin_path(self.call, id), id.as_str(), tool_list, self.call.now)?;
        }
        Ok(())
    }

    fn call_tool(
        &self,
        id: &ItemId,
        tool: &str,
        arguments: &Map<String, Value>,
    ) -> Result<CallOutcome, NativeError> {
        let server = self.load_server(id)?;
        let outcome = sdk::call_tool(&server, &self.mcp_host(&server), tool, arguments, &|tool_list| {
            self.enforce_pin(id, tool_list)
        })
        .map_err(to_native_error)?;
        if outcome.is_error {
            let message = match truncate_line(&outcome.content, 2000) {
                text if text.is_empty() => {
                    format!("tool `{}` failed without an error message", truncate_line(tool, 128))
                }
                text => text,
            };
            return Err(NativeError::failed(message).with_data(outcome.value()));
        }
        Ok(outcome)
    }

    fn text_parameter(&self, name: &str) -> Result<&str, NativeError> {
        self.call
            .parameters
            .get(name)
            .and_then(Value::as_str)
            .ok_or_else(|| NativeError::failed(format!("parameter `{name}` must be a text")))
    }

    /// The server named by the parameter `server`.
    fn server_id(&self) -> Result<ItemId, NativeError> {
        parse_item_id(self.text_parameter("server")?).map_err(NativeError::failed)
    }
}

/// `mcp.call`: what a tool item of a foreign server runs.
fn call(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let id = parse_server_id(mcp_call.call.config).map_err(NativeError::failed)?;
    let tool = mcp_call
        .call
        .config
        .get("tool_name")
        .and_then(Value::as_str)
        .ok_or_else(|| NativeError::failed("`config.tool_name` must name the server's tool"))?;
    mcp_call.call_tool(&id, tool, mcp_call.call.parameters).map(|outcome| outcome.value())
}

/// `mcp.discover`: what a server offers, and whether that is what was pinned. Pins nothing.
fn discover(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let id = mcp_call.server_id()?;
    let server = mcp_call.load_server(&id)?;
    let tool_list = mcp_call.list_tools(&server)?;
    let check = mcp_call.check_pin(&id, &tool_list).map_err(to_native_error)?;
    let tools: Vec<Value> = tool_list.tools.iter().map(crate::tools::RemoteTool::to_json).collect();
    Ok(json!({
        "server": id.as_str(),
        "transport": server.transport.as_str(),
        "digest": tool_list.digest.to_hex(),
        "pin": pin_json(&check),
        "tool_count": tools.len(),
        "tools": tools,
    }))
}

/// `mcp.connect`: calls one tool without an item for it.
fn connect(mcp_call: &McpCall<'_>) -> Result<Value, NativeError> {
    let id = mcp_call.server_id()?;
    let tool = mcp_call.text_parameter("tool")?;
    let empty = Map::new();
    let arguments = match mcp_call.call.parameters.get("arguments") {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(map)) => map,
        Some(_) => return Err(NativeError::failed("parameter `arguments` must be a map")),
    };
    let outcome = mcp_call.call_tool(&id, tool, arguments)?;
    Ok(json!({
        "server": id.as_str(),
        "tool": tool,
        "digest": outcome.tool_digest.to_hex(),
        "content": outcome.content,
        "structured": outcome.structured,
        "refused": outcome.refused,
    }))
}

fn pin_json(check: &PinCheck) -> Value {
    match check {
        PinCheck::New => json!({"state": "new"}),
        PinCheck::Same => json!({"state": "same"}),
        PinCheck::Changed(changes) => {
            let changes: Vec<String> = changes
                .iter()
                .map(|change| format!("tool `{}` {}", change.tool, change.description))
                .collect();
            json!({"state": "changed", "changes": changes})
        }
    }
}

/// The server a tool item names: `server: mcp/servers/x`, `server: x`, or the older `server_config_path`, of which only
/// the item id counts. The path is never opened.
///
/// # Errors
/// When neither is there, they disagree, or one is not an item id.
pub fn parse_server_id(config: &Map<String, Value>) -> Result<ItemId, String> {
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    let path_id = text("server_config_path").map(parse_item_path).transpose()?;
    match (text("server").map(parse_item_id).transpose()?, path_id) {
        (Some(id), Some(other)) if id != other => {
            Err(format!("`config.server` means `{id}`, but `config.server_config_path` means `{other}`"))
        }
        (Some(id), _) | (None, Some(id)) => Ok(id),
        (None, None) => {
            Err("`config.server` must name the server item, such as `mcp/servers/github`".to_owned())
        }
    }
}

fn parse_item_id(text: &str) -> Result<ItemId, String> {
    let full = if text.contains('/') { text.to_owned() } else { format!("mcp/servers/{text}") };
    ItemId::new(full).map_err(|error| error.to_string())
}

fn parse_item_path(path: &str) -> Result<ItemId, String> {
    let inner = path.rsplit_once(".ai/tools/").map(|(_, inner)| inner);
    let id = inner.and_then(|inner| inner.strip_suffix(".yaml").or_else(|| inner.strip_suffix(".yml")));
    match id {
        Some(id) => ItemId::new(id).map_err(|error| error.to_string()),
        None => Err(format!("`config.server_config_path` is not a tool: `{}`", truncate_line(path, 200))),
    }
}

fn to_native_error(error: McpError) -> NativeError {
    let message = error.to_string();
    match error {
        McpError::Changed { server, changes } => {
            NativeError::denied(message).with_data(json!({"server": server, "changes": changes}))
        }
        McpError::TimedOut { .. } => NativeError::timed_out(message),
        McpError::Denied { .. } | McpError::InputRequired { .. } => NativeError::denied(message),
        McpError::Config { server, problems } => {
            NativeError::failed(message).with_data(json!({"server": server, "problems": problems}))
        }
        McpError::Unreachable { .. }
        | McpError::Closed { .. }
        | McpError::Protocol { .. }
        | McpError::Cancelled { .. }
        | McpError::Refused { .. }
        | McpError::ToolNotFound { .. }
        | McpError::Pin { .. } => NativeError::failed(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(config: &Value) -> Result<String, String> {
        parse_server_id(config.as_object().expect("map")).map(|id| id.to_string())
    }

    #[test]
    fn server_timeout_overrides_tool_timeout() {
        let limit = |server: Value, config: Value| {
            let mut whole = json!({"transport": "stdio", "command": "x"});
            whole["timeout"] = server;
            let server = McpServer::from_config("x", &whole).expect("a server");
            exchange_timeout(&server, config.as_object().expect("map")).as_secs()
        };
        assert_eq!(limit(json!(5), json!({"timeout": 60})), 5);
        assert_eq!(limit(json!(500), json!({"timeout": 60})), 500);
        assert_eq!(limit(Value::Null, json!({"timeout": 7})), 7);
        assert_eq!(limit(Value::Null, json!({})), 60);
    }

    #[test]
    fn old_and_new_config_name_same_item() {
        let path = "/home/me/p/.ai/tools/mcp/servers/x.yaml";
        for config in [
            json!({"server": "mcp/servers/x"}),
            json!({"server": "x"}),
            json!({"server": "x", "server_config_path": path}),
            json!({"server_config_path": path}),
        ] {
            assert_eq!(server(&config), Ok("mcp/servers/x".to_owned()), "{config}");
        }
    }

    #[test]
    fn config_path_is_only_an_id() {
        for path in
            ["/etc/passwd", "/p/.ai/tools/../../etc/x.yaml", "/p/.ai/tools/x.py", "/p/.ai/tools//x.yaml"]
        {
            assert!(server(&json!({"server_config_path": path})).is_err(), "{path}");
        }
        assert_eq!(
            server(&json!({"server": "y", "server_config_path": "/p/.ai/tools/mcp/servers/x.yaml"})),
            Err("`config.server` means `mcp/servers/y`, but `config.server_config_path` means `mcp/servers/x`".into())
        );
        assert!(server(&json!({})).is_err());
    }
}
