//! `rye mcp`.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use crate::completion;

// `rye mcp`
#[derive(Debug, Args)]
#[command(
    after_help = "rye mcp                          serve over stdio, as MCP clients start it\nrye mcp --http 7433              serve http://127.0.0.1:7433/mcp, with a token\nrye mcp install claude-code      register rye with a client"
)]
#[command(args_conflicts_with_subcommands = true)]
pub struct McpArguments {
    /// Instead of serving.
    #[command(subcommand)]
    pub command: Option<McpCommand>,
    /// Show clients these tools by their own names: an id or a pattern such as 'team/*'; can be repeated
    #[arg(long, value_name = "PATTERN", add = ArgValueCompleter::new(completion::tools))]
    pub expose: Vec<String>,
    /// Serve over HTTP on this address, such as 127.0.0.1:7433, or a port alone
    #[arg(long, value_name = "ADDR")]
    pub http: Option<String>,
    /// Allow an address that other machines can reach, because a TLS proxy is in front
    #[arg(long, requires = "http")]
    pub behind_tls: bool,
    /// Accept this name in the Host header too; can be repeated
    #[arg(long, value_name = "NAME", requires = "http")]
    pub allow_host: Vec<String>,
}

// `rye mcp install` and its like
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum McpCommand {
    /// Register rye with an MCP client: changes its configuration, shows the difference, keeps a backup
    Install {
        /// claude-code, claude-desktop, codex, cursor, vscode, opencode, gemini, goose or zed [default: the one found here]
        #[arg(add = ArgValueCompleter::new(completion::clients))]
        client: Option<String>,
        /// Print the configuration instead of changing it
        #[arg(long)]
        print: bool,
    },
    /// Remove rye from an MCP client's configuration
    Uninstall {
        /// The client
        #[arg(add = ArgValueCompleter::new(completion::clients))]
        client: String,
    },
    /// Show the MCP clients found here, and whether rye is registered with them
    Status,
}
