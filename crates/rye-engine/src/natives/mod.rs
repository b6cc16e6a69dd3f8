//! The functions that descriptors may name: those of `rye-tools`, of `rye-mcp` and of whoever opened the engine, and
//! those that need the engine itself.

mod keys;
mod mcp;
mod test_runner;

use rye_exec::{NativeCall, NativeError, NativeTool};
use serde_json::Value;

use crate::engine::Engine;
use crate::error::Result;
use crate::verbs::execute::Request;

/// Whether a function may take long. Those that start servers and tests may.
pub(crate) fn may_take_long(engine: &Engine, name: &str) -> bool {
    engine.natives.iter().find(|tool| tool.name() == name).is_none_or(|tool| tool.may_take_long())
}

/// Calls the function of this name; `None` if the binary has none.
///
/// # Errors
/// When the engine refuses an item that the function needs.
pub(crate) fn call(
    engine: &Engine,
    name: &str,
    call: &NativeCall<'_>,
    request: &Request,
) -> Result<Option<std::result::Result<Value, NativeError>>> {
    if let Some(tool) = engine.natives.iter().find(|tool| tool.name() == name) {
        return Ok(Some(tool.call(call)));
    }
    let servers = mcp::Servers::new(engine, request.caller);
    let foreign = rye_mcp::native::tools(&servers);
    let own: [&dyn NativeTool; 2] = [&keys::Keys { engine }, &test_runner::TestRunner { engine, request }];
    let foreign = foreign.iter().map(|tool| tool as &dyn NativeTool);
    let found = own.into_iter().chain(foreign).find(|tool| tool.name() == name);
    let answer = found.map(|tool| tool.call(call));
    match servers.refusal() {
        Some(refusal) => Err(refusal),
        None => Ok(answer),
    }
}
