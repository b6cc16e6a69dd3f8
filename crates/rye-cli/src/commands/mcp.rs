//! `mcp`: serve agents, and tell their clients of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lillux::file::{self, Mode, TemporaryFolders};
use rye_agent::door::client::Visitor;
use rye_engine::{Error, Host};
use rye_server::install::{self, Client};
use rye_server::{HttpOptions, Setup, Stop};
use serde_json::json;

use super::{Failure, Outcome, background};
use crate::arguments::{McpArguments, McpCommand};
use crate::global::Global;
use crate::output::{DIM, GOOD, NAME, Output, STRONG, paint, shown_path};
use crate::settings::{self, Settings};

/// `rye mcp`
pub fn run(global: &Global, arguments: &McpArguments) -> Outcome {
    if let Some(McpCommand::Install { client, print }) = &arguments.command {
        return install(global, client.parse()?, *print);
    }
    // No engine yet: a client waits for the first answer, and most requests name their own project anyway.
    let settings = Settings::read(global)?;
    let setup = Setup {
        roots: settings.roots.clone(),
        host: Host {
            launcher: settings.launcher.clone().keeping_some(),
            temporaries: TemporaryFolders::keeping(2),
            ..settings.host()
        },
        clock: settings::system_clock,
        version: env!("CARGO_PKG_VERSION"),
        door: None,
        background: background::process(&settings),
    };
    let stop = Stop::new();
    settings::on_end_signals({
        let stop = stop.clone();
        move || stop.stop()
    });
    match &arguments.http {
        None => {
            if settings.is_interactive {
                let output = Output::new(global, None, false);
                output.note("waiting for a client to speak MCP on standard input; Ctrl-C ends");
                output.note("a client is told of this server with: rye mcp install CLIENT");
            }
            rye_server::serve_stdio(setup, &stop).map_err(Failure::from)
        }
        Some(address) => {
            let options = HttpOptions {
                address: address.clone(),
                behind_tls: arguments.behind_tls,
                hosts: arguments.allow_host.clone(),
            };
            let output = Output::new(global, None, false);
            let mut told = Ok(());
            rye_server::serve_http(setup, &options, &stop, |listening| {
                told = tell(output, listening);
            })?;
            told
        }
    }
}

/// `rye mcp` inside a tool: every call goes through the door.
pub fn through(global: &Global, visitor: Visitor) -> Outcome {
    let settings = Settings::read(global)?;
    let setup = Setup {
        roots: settings.roots.clone(),
        host: settings.host(),
        clock: settings::system_clock,
        version: env!("CARGO_PKG_VERSION"),
        door: Some(Arc::new(visitor)),
        background: None,
    };
    rye_server::serve_stdio(setup, &Stop::new()).map_err(Failure::from)
}

/// Where the server is and how to use it; never the token itself.
fn tell(output: Output, listening: &rye_server::Listening) -> Outcome {
    let token_file = shown_path(&listening.token_file);
    if output.is_json {
        let data = json!({"url": listening.url, "token_file": token_file});
        output.json(&rye_engine::success(None, None, data))?;
        return Ok(());
    }
    output.result(format_args!("serving {}", paint(STRONG, &listening.url)))?;
    output.note(format_args!(
        "clients send the header {}",
        paint(DIM, format_args!("Authorization: Bearer $(cat {token_file})"))
    ));
    Ok(())
}

/// The largest configuration that is changed.
const MOST_CONFIGURATION: u64 = 16 << 20;

/// `rye mcp install`
fn install(global: &Global, client: Client, only_print: bool) -> Outcome {
    let settings = Settings::read(global)?;
    let output = Output::new(global, None, false);
    let project = settings.roots.project.clone().unwrap_or_else(|| settings.folder.clone());
    let path = client.path(&settings.home, &project);
    let program = settings::own_program();
    if only_print {
        let entry = install::alone(client, &program)?;
        if output.is_json {
            let data = json!({"client": client.as_str(), "path": shown_path(&path), "entry": entry});
            output.json(&rye_engine::success(None, None, data))?;
            return Ok(());
        }
        output.note(format_args!("{} should hold:", paint(NAME, shown_path(&path))));
        output.raw(&entry)?;
        return Ok(());
    }
    let before = present(&path)?;
    let after = install::changed(client, &program, before.as_deref())?;
    let is_changed = before.as_deref() != Some(after.as_str());
    if is_changed {
        refuse_linked(&project, &path)?;
    }
    let backup = if is_changed { write(&path, before.as_deref(), &after)? } else { None };
    if output.is_json {
        let data = json!({
            "client": client.as_str(), "path": shown_path(&path), "changed": is_changed,
            "backup": backup.as_deref().map(shown_path),
        });
        output.json(&rye_engine::success(None, None, data))?;
        return Ok(());
    }
    if !is_changed {
        output.result(format_args!("{} already knows rye: {}", client.as_str(), shown_path(&path)))?;
        return Ok(());
    }
    output.note(rye_item::text::without_controls(&install::diff(
        before.as_deref().unwrap_or_default(),
        &after,
    )));
    output.result(format_args!("{} {}", paint(GOOD, "changed"), shown_path(&path)))?;
    if let Some(backup) = backup {
        output.note(format_args!("as it was: {}", paint(DIM, shown_path(&backup))));
    }
    output.note(format_args!("start {} anew to use it", client.as_str()));
    Ok(())
}

fn present(path: &Path) -> Result<Option<String>, Error> {
    match file::read_bounded(path, MOST_CONFIGURATION) {
        Ok((bytes, _)) => String::from_utf8(bytes).map(Some).map_err(|_| {
            Error::new(rye_engine::Code::ClientConfig, format!("`{}` is not text", path.display()))
                .hint("see what should be there: rye mcp install CLIENT --print")
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
fn write(path: &Path, before: Option<&str>, after: &str) -> Result<Option<PathBuf>, Error> {
    // The file itself is replaced, not a link to it.
    let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = target.parent() {
        file::create_folders(folder, false)?;
    }
    let backup = before.map(|before| {
        let mut name = target.clone().into_os_string();
        name.push(".before-rye");
        let backup = PathBuf::from(name);
        // It may hold secrets, as the file itself may.
        file::write_atomic(&backup, before.as_bytes(), Mode::Private).map(|()| backup)
    });
    let backup = backup.transpose()?;
    file::write_atomic(&target, after.as_bytes(), Mode::Kept)?;
    Ok(backup)
}
