//! The client side of MCP: talks to foreign servers. A server is a signed item whose config comes in verified; its tools
//! are pinned on first use; it is given nothing but the arguments of a call. How a process is confined and which
//! addresses are reachable is decided by whoever opens the doors.

pub mod doors;
pub mod error;
pub mod items;
pub mod native;
pub mod pins;
pub mod sdk;
pub mod server;
pub mod tools;

pub use doors::{Doors, Progress, Start, Started, Stderr, Web};
pub use error::McpError;
pub use native::{ServerHost, ServerSummary};
pub use sdk::{Judge, call_tool, list_tools};
pub use server::{Endpoint, Server, ServerCommand, Transport};
pub use tools::{CallOutcome, RemoteTool, ToolList};
