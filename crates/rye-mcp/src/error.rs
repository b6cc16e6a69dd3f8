//! Why a foreign server could not be used. Every text that came from the server is bounded and on one line.

use rye_item::text::one_line;

/// Why a foreign server could not be listed or called.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum McpError {
    /// The server item's `config` is wrong.
    #[error("MCP server `{server}` is not configured well: {}", problems.join("; "))]
    Config {
        /// The server item.
        server: String,
        /// Everything that is wrong.
        problems: Vec<String>,
    },
    /// Policy forbids the address or the start.
    #[error("MCP server `{server}` may not be used: {reason}")]
    Denied {
        /// The server item.
        server: String,
        /// The rule.
        reason: String,
    },
    /// It could not be started or reached.
    #[error("failed to reach MCP server `{server}`: {reason}{}", stderr_suffix(stderr))]
    Unreachable {
        /// The server item.
        server: String,
        /// What the system or the server said.
        reason: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// It closed the connection before it answered.
    #[error("MCP server `{server}` ended before it answered{}", stderr_suffix(stderr))]
    Closed {
        /// The server item.
        server: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// It does not speak the protocol.
    #[error("MCP server `{server}` broke the protocol: {reason}{}", stderr_suffix(stderr))]
    Protocol {
        /// The server item.
        server: String,
        /// What was wrong.
        reason: String,
        /// The end of its stderr.
        stderr: String,
    },
    /// It did not answer in time.
    #[error("MCP server `{server}` did not answer within {seconds} s{}", stderr_suffix(stderr))]
    TimedOut {
        /// The server item.
        server: String,
        /// The time it had.
        seconds: u64,
        /// The end of its stderr.
        stderr: String,
    },
    /// The caller asked for the end.
    #[error("the call of MCP server `{server}` was cancelled")]
    Cancelled {
        /// The server item.
        server: String,
    },
    /// It answered with a JSON-RPC error.
    #[error("MCP server `{server}` answered with error {code}: {message}")]
    Refused {
        /// The server item.
        server: String,
        /// The JSON-RPC code.
        code: i32,
        /// Its message.
        message: String,
    },
    /// It wants a model's answer or a person's before it continues.
    #[error("MCP server `{server}` asks for {what} before it answers, which is not given to foreign servers")]
    InputRequired {
        /// The server item.
        server: String,
        /// What it asked for.
        what: String,
    },
    /// It has no such tool.
    #[error("MCP server `{server}` has no tool `{tool}`{}", known_tools_suffix(known))]
    ToolNotFound {
        /// The server item.
        server: String,
        /// The tool asked for.
        tool: String,
        /// Some tools it has.
        known: Vec<String>,
    },
    /// Its tools are not those that were pinned.
    #[error(
        "the tools of MCP server `{server}` are not those that were pinned: {}; if the change is wanted, accept it with `rye execute rye/mcp/manager action=accept server={server}`",
        changes.join("; ")
    )]
    Changed {
        /// The server item.
        server: String,
        /// The changes in words.
        changes: Vec<String>,
    },
    /// The pin file cannot be read or written.
    #[error("the pin of MCP server `{server}` cannot be used: {reason}")]
    Pin {
        /// The server item.
        server: String,
        /// What is wrong with it.
        reason: String,
    },
}

fn stderr_suffix(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; its stderr ends with: {stderr}") }
}

fn known_tools_suffix(known: &[String]) -> String {
    if known.is_empty() { String::new() } else { format!("; it has {}", known.join(", ")) }
}

/// `text` on one line, without controls, at most `limit` characters.
#[must_use]
pub(crate) fn truncate_line(text: &str, limit: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(limit) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}
