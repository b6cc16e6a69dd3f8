//! `mcp`: serve agents, and tell their clients of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file::{self, FileMode, TempDirPool};
use rye_agent::callback::client::CallbackClient;
use rye_engine::{Error, HostEnvironment};
use rye_server::install::{self, ClientApp};
use rye_server::{HttpOptions, ServerSetup, ShutdownHandle};
use serde_json::json;

use super::{CommandError, CommandResult, background};
use crate::arguments::{McpArguments, McpCommand};
use crate::global::GlobalArguments;
use crate::output::{DIM, HEADING, NAME, Output, SUCCESS, display_path, paint};
use crate::settings::{self, Settings};

/// `rye mcp`
pub fn run(global: &GlobalArguments, arguments: &McpArguments) -> CommandResult {
    if let Some(McpCommand::Install { client, print }) = &arguments.command {
        return install(global, client.parse()?, *print);
    }
    // No engine yet: a client waits for the first answer, and most requests name their own project anyway.
    let settings = Settings::read(global)?;
    let setup = ServerSetup {
        roots: settings.roots.clone(),
        host: HostEnvironment {
            launcher: settings.launcher.clone().with_pool(),
            temporary_folders: TempDirPool::with_capacity(2),
            ..settings.host()
        },
        clock: settings::system_clock,
        version: env!("CARGO_PKG_VERSION"),
        callback: None,
        expose: arguments.expose.clone(),
        daemon_command: background::daemon_command(&settings),
    };
    let stop = ShutdownHandle::new();
    settings::on_termination_signals({
        let stop = stop.clone();
        move || stop.shutdown()
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

/// `rye mcp` inside a tool: every call goes through the door.
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

/// The largest configuration that is changed.
const MAX_CONFIG_SIZE: u64 = 16 << 20;

/// `rye mcp install`
fn install(global: &GlobalArguments, client: ClientApp, print_only: bool) -> CommandResult {
    let settings = Settings::read(global)?;
    let output = Output::new(global, None, false);
    let project = settings.roots.project.clone().unwrap_or_else(|| settings.working_dir.clone());
    let path = client.config_path(&settings.home, &project);
    let program = settings::current_exe();
    if print_only {
        let entry = install::new_config(client, &program)?;
        if output.is_json {
            let data = json!({"client": client.as_str(), "path": display_path(&path), "entry": entry});
            output.print_json(&rye_engine::success_response(None, None, data))?;
            return Ok(());
        }
        output.note(format_args!("{} should hold:", paint(NAME, display_path(&path))));
        output.print_raw(&entry)?;
        return Ok(());
    }
    let before = read_config(&path)?;
    let after = install::update_config(client, &program, before.as_deref())?;
    let is_changed = before.as_deref() != Some(after.as_str());
    if is_changed {
        refuse_linked(&project, &path)?;
    }
    let backup = if is_changed { write_config(&path, before.as_deref(), &after)? } else { None };
    if output.is_json {
        let data = json!({
            "client": client.as_str(), "path": display_path(&path), "changed": is_changed,
            "backup": backup.as_deref().map(display_path),
        });
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    if !is_changed {
        output.print(format_args!("{} is already configured: {}", client.as_str(), display_path(&path)))?;
        return Ok(());
    }
    output
        .note(rye_item::text::strip_controls(&install::diff(before.as_deref().unwrap_or_default(), &after)));
    output.print(format_args!("{} {}", paint(SUCCESS, "changed"), display_path(&path)))?;
    if let Some(backup) = backup {
        output.note(format_args!("backup: {}", paint(DIM, display_path(&backup))));
    }
    output.note(format_args!("restart {} to use it", client.as_str()));
    Ok(())
}

fn read_config(path: &Path) -> Result<Option<String>, Error> {
    match file::read_bounded(path, MAX_CONFIG_SIZE) {
        Ok((bytes, _)) => String::from_utf8(bytes).map(Some).map_err(|_| {
            Error::new(rye_engine::Code::ClientConfig, format!("`{}` is not text", path.display()))
                .hint("show the expected configuration: rye mcp install CLIENT --print")
        }),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(Error::read(&error)),
    }
}

/// A file of the project is the project's own: a link that came with a clone would have another file changed.
fn refuse_linked(project: &Path, path: &Path) -> Result<(), Error> {
    let Ok(relative) = path.strip_prefix(project) else { return Ok(()) };
    file::folder_beneath(project, relative.parent().unwrap_or(Path::new("")))?;
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => {
            Err(Error::linked_folder(&file::LinkedFolder { path: path.to_owned() }))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Writes the configuration, and what it was beside it.
fn write_config(path: &Path, before: Option<&str>, after: &str) -> Result<Option<PathBuf>, Error> {
    // The file itself is replaced, not a link to it.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = target.parent() {
        file::create_dirs(folder, false)?;
    }
    let backup = before.map(|before| {
        let mut name = target.clone().into_os_string();
        name.push(".before-rye");
        let backup = PathBuf::from(name);
        // It may hold secrets, as the file itself may.
        file::write_atomic(&backup, before.as_bytes(), FileMode::Private).map(|()| backup)
    });
    let backup = backup.transpose()?;
    file::write_atomic(&target, after.as_bytes(), FileMode::Preserve)?;
    Ok(backup)
}
