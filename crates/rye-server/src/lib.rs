//! The engine over MCP, for any agent that speaks it: standard input and output, and streamable HTTP.
//!
//! It translates between messages and verbs of `rye-engine`, and holds warm engines; what may be done is decided below.
