//! The client side of MCP: talks to foreign servers. A server is a signed item whose config comes in verified; its tools
//! are pinned on first use; it is given nothing but the arguments of a call. How a process is confined and which
//! addresses are reachable is decided by the caller's `McpHost`.

pub mod error;
pub mod host;
pub mod items;
pub mod native;
pub mod pins;
pub mod sdk;
pub mod server;
pub mod tools;

pub use error::McpError;
pub use host::{HttpAccess, McpHost, ProcessSpawner, ProgressHandler, ServerProcess, StderrSource};
pub use native::{ServerHost, ServerSummary};
pub use sdk::{ToolListValidator, call_tool, list_tools};
pub use server::{McpEndpoint, McpServer, McpTransport, ServerCommand};
pub use tools::{CallOutcome, RemoteTool, ToolList};
