//! The functions that descriptors may name: those of `rye-tools`, of `rye-mcp` and of the caller that opened the engine, and
//! those that need the engine itself.

mod keys_tool;
mod mcp_servers;
pub(crate) mod test_runner;

use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::Value;

use crate::engine::Engine;
use crate::error::Result;
use crate::verbs::execute::ExecuteRequest;

pub(crate) use mcp_servers::is_server_item;

/// Whether a function may take long. Those that start servers and tests may.
pub(crate) fn may_block(engine: &Engine, name: &str) -> bool {
    engine.natives.iter().find(|tool| tool.name() == name).is_none_or(|tool| tool.may_block())
}

/// Calls the function of this name; `None` if the binary has none.
///
/// # Errors
/// When the engine refuses an item that the function needs.
pub(crate) fn call(
    engine: &Engine,
    name: &str,
    call: &NativeCall<'_>,
    request: &ExecuteRequest,
) -> Result<Option<std::result::Result<Value, NativeError>>> {
    if let Some(tool) = engine.natives.iter().find(|tool| tool.name() == name) {
        return Ok(Some(tool.call(call)));
    }
    let servers = mcp_servers::McpServers::new(engine, request.caller);
    let mcp_tools = rye_mcp::native::tools(&servers);
    let engine_tools: [&dyn NativeTool; 2] =
        [&keys_tool::KeysTool { engine }, &test_runner::TestRunner { engine, request }];
    let mcp_tools = mcp_tools.iter().map(|tool| tool as &dyn NativeTool);
    let found = engine_tools.into_iter().chain(mcp_tools).find(|tool| tool.name() == name);
    let result = found.map(|tool| tool.call(call));
    match servers.refusal() {
        Some(refusal) => Err(refusal),
        None => Ok(result),
    }
}
