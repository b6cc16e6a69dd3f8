//! The only module that knows the SDK. It holds one exchange with one server: start or reach it, agree on a version, list
//! its tools, let the caller judge them, call one, end it. Nothing outlives the exchange.

mod client_handler;
mod exchange;
mod fault;
mod http;
mod stderr;
mod stdio;

use std::time::Duration;

use serde_json::{Map, Value};

use crate::error::McpError;
use crate::host::McpHost;
use crate::server::McpServer;
use crate::tools::{CallOutcome, ToolList};

/// The largest message a server may send.
pub(crate) const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// All a server may send in one exchange.
pub(crate) const MAX_EXCHANGE_BYTES: usize = 64 * 1024 * 1024;
/// How long a server may take to end by itself once it has nothing more to do.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Judges what a server offers before one of its tools is called.
pub type ToolListValidator<'a> = &'a (dyn Fn(&ToolList) -> Result<(), McpError> + Sync);

/// Lists the tools of `server`.
///
/// # Errors
/// When it cannot be reached, breaks the protocol, takes too long, or the caller cancels.
pub fn list_tools(server: &McpServer, host: &McpHost<'_>) -> Result<ToolList, McpError> {
    exchange::run_exchange(server, host, None).map(|(list, _)| list)
}

/// Calls `tool_name` with `arguments`, after `validate` accepted the tools the server offers in the same exchange.
///
/// # Errors
/// As [`list_tools`]; the error of `validate`; [`McpError::ToolNotFound`]; a JSON-RPC error of the server. A tool that says
/// it failed is not an error here but an outcome.
pub fn call_tool(
    server: &McpServer,
    host: &McpHost<'_>,
    tool_name: &str,
    arguments: &Map<String, Value>,
    validate: ToolListValidator<'_>,
) -> Result<CallOutcome, McpError> {
    let call = exchange::ToolCall { tool_name, arguments, validate };
    let (_, outcome) = exchange::run_exchange(server, host, Some(&call))?;
    outcome.ok_or_else(|| McpError::Protocol {
        server: server.id.clone(),
        reason: "it gave no answer".to_owned(),
        stderr: String::new(),
    })
}
