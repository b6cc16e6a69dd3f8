//! `mcp`: serve agents.

use std::sync::Arc;

use lillux::file::TempDirPool;
use rye_agent::callback::client::CallbackClient;
use rye_engine::HostEnvironment;
use rye_server::{HttpOptions, ServerSetup, ShutdownHandle};
use serde_json::json;

use super::{CommandError, CommandResult, background, mcp_clients};
use crate::arguments::McpArguments;
use crate::global::GlobalArguments;
use crate::output::{self, DIM, HEADING, Output, display_path, paint};
use crate::settings::{self, Settings};

/// `rye mcp`
pub fn run(global: &GlobalArguments, arguments: &McpArguments) -> CommandResult {
    if let Some(command) = &arguments.command {
        return mcp_clients::run(global, command);
    }
    // No engine yet: a client waits for the first answer, and most requests name their own project anyway.
    let settings = Settings::read(global)?;
    let setup = ServerSetup { expose: arguments.expose.clone(), ..server_setup(&settings) };
    let stop = ShutdownHandle::new();
    settings::on_termination_signals({
        let stop = stop.clone();
        move || {
            output::end_interrupted_line();
            stop.shutdown();
        }
    });
    match &arguments.http {
        None => {
            if settings.is_interactive {
                let output = Output::new(global, None, false);
                output.note("waiting for an MCP client on standard input; press Ctrl-C to stop");
                output.note("to register this server with a client: rye mcp install CLIENT");
            }
            rye_server::serve_stdio(setup, &stop).map_err(CommandError::from)
        }
        Some(address) => {
            let options = HttpOptions {
                address: address.clone(),
                behind_tls: arguments.behind_tls,
                hosts: arguments.allow_host.clone(),
            };
            let output = Output::new(global, None, false);
            let mut printed = Ok(());
            rye_server::serve_http(setup, &options, &stop, |listening| {
                printed = print_listening(output, listening);
            })?;
            printed
        }
    }
}

/// What a server needs that stays: launchers and temporary folders are made in advance.
pub fn server_setup(settings: &Settings) -> ServerSetup {
    ServerSetup {
        roots: settings.roots.clone(),
        host: HostEnvironment {
            launcher: settings.launcher.clone().with_pool(),
            temporary_folders: TempDirPool::with_capacity(2),
            ..settings.host()
        },
        clock: settings::system_clock,
        version: env!("CARGO_PKG_VERSION"),
        callback: None,
        expose: Vec::new(),
        daemon_command: background::daemon_command(settings),
    }
}

/// `rye mcp` inside a tool: every call goes through the callback channel.
pub fn serve_in_sandbox(global: &GlobalArguments, client: CallbackClient) -> CommandResult {
    let settings = Settings::read(global)?;
    let setup = ServerSetup {
        roots: settings.roots.clone(),
        host: settings.host(),
        clock: settings::system_clock,
        version: env!("CARGO_PKG_VERSION"),
        callback: Some(Arc::new(client)),
        expose: Vec::new(),
        daemon_command: None,
    };
    rye_server::serve_stdio(setup, &ShutdownHandle::new()).map_err(CommandError::from)
}

/// Where the server is and how to use it; never the token itself.
fn print_listening(output: Output, listening: &rye_server::HttpEndpoint) -> CommandResult {
    let token_file = display_path(&listening.token_file);
    if output.is_json {
        let data = json!({"url": listening.url, "token_file": token_file});
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    output.print(format_args!("serving {}", paint(HEADING, &listening.url)))?;
    output.note(format_args!(
        "clients send the header {}",
        paint(DIM, format_args!("Authorization: Bearer $(cat {token_file})"))
    ));
    Ok(())
}
