//! `mcp install`, `uninstall` and `status`: the configuration of MCP clients.

use std::path::{Path, PathBuf};

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_engine::{Code, Error};
use rye_server::clients::{self, ClientApp, ClientDirs, EntryState};
use serde_json::{Value, json};

use super::CommandResult;
use crate::arguments::McpCommand;
use crate::global::GlobalArguments;
use crate::output::{DIM, NAME, Output, SUCCESS, display_path, paint};
use crate::settings::{self, Settings};

/// The largest configuration that is changed.
const MAX_CONFIG_SIZE: u64 = 16 << 20;

/// `rye mcp install`, `rye mcp uninstall`, `rye mcp status`
pub fn run(global: &GlobalArguments, command: &McpCommand) -> CommandResult {
    let settings = Settings::read(global)?;
    let output = Output::new(global, None, false);
    let clients = Clients { dirs: settings::client_dirs(&settings), settings, output };
    match command {
        McpCommand::Install { client: Some(client), print } => clients.install(client.parse()?, *print),
        McpCommand::Install { client: None, print } => clients.install(clients.only_one()?, *print),
        McpCommand::Uninstall { client } => clients.uninstall(client.parse()?),
        McpCommand::Status => clients.status(),
    }
}

/// The clients of this user, and where they are told of.
struct Clients {
    dirs: ClientDirs,
    settings: Settings,
    output: Output,
}

impl Clients {
    fn is_found(&self, client: ClientApp) -> bool {
        let (paths, programs) = client.traces(&self.dirs);
        paths.iter().any(|path| path.exists())
            || programs.iter().any(|program| settings::has_program(program))
    }

    /// The client that is found here, if it is one.
    fn only_one(&self) -> Result<ClientApp, Error> {
        let mut found: Vec<ClientApp> =
            ClientApp::ALL.into_iter().filter(|client| self.is_found(*client)).collect();
        let names = |clients: &[ClientApp]| {
            clients.iter().map(|client| client.as_str()).collect::<Vec<_>>().join(", ")
        };
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(Error::new(Code::InvalidArgument, "no MCP client was found here")
                .hint(format!("name one: rye mcp install CLIENT, with {}", names(&ClientApp::ALL)))),
            _ => Err(Error::new(
                Code::InvalidArgument,
                format!("several MCP clients were found: {}", names(&found)),
            )
            .hint(format!("name one: rye mcp install {}", found[0].as_str()))),
        }
    }

    /// `rye mcp install`
    fn install(&self, client: ClientApp, print_only: bool) -> CommandResult {
        let output = &self.output;
        let path = client.config_path(&self.dirs);
        let program = settings::started_as(&self.settings.working_dir);
        if print_only {
            let entry = clients::new_config(client, &program)?;
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
        let after = clients::update_config(client, &program, before.as_deref())?;
        let is_changed = self.change(client, &path, before.as_deref(), &after)?;
        if !output.is_json {
            match is_changed {
                true => output.note(format_args!("restart {} to use it", client.as_str())),
                false => output.print(format_args!(
                    "{} is already configured: {}",
                    client.as_str(),
                    display_path(&path)
                ))?,
            }
        }
        Ok(())
    }

    /// `rye mcp uninstall`
    fn uninstall(&self, client: ClientApp) -> CommandResult {
        let path = client.config_path(&self.dirs);
        let before = read_config(&path)?;
        let after = match before.as_deref() {
            Some(text) => clients::remove_entry(client, text)?,
            None => None,
        };
        let (before, after) = match (before, after) {
            (Some(before), Some(after)) => (Some(before), after),
            (before, _) => (before.clone(), before.unwrap_or_default()),
        };
        let is_changed = match before.as_deref() {
            // A link is the user's own and stays.
            Some(text) if text != after && clients::is_empty_config(client, &after) && !path.is_symlink() => {
                self.remove(client, &path, text)?;
                true
            }
            Some(text) => self.change(client, &path, Some(text), &after)?,
            None => {
                self.report(client, &path, false, None)?;
                false
            }
        };
        if !self.output.is_json {
            match is_changed {
                true => self.output.note(format_args!("restart {} to end it", client.as_str())),
                false => self.output.print(format_args!("rye is not registered with {}", client.as_str()))?,
            }
        }
        Ok(())
    }

    /// `rye mcp status`
    fn status(&self) -> CommandResult {
        let mut rows: Vec<Value> = Vec::new();
        for client in ClientApp::ALL {
            let path = client.config_path(&self.dirs);
            let state = match read_config(&path) {
                Ok(Some(text)) => clients::entry_state(client, &text),
                Ok(None) => Ok(EntryState::Absent),
                Err(error) => Err(error),
            };
            let (word, program) = match state {
                Ok(EntryState::Registered { program }) if is_missing(&program) => ("broken", Some(program)),
                Ok(EntryState::Registered { program }) => ("registered", Some(program)),
                Ok(EntryState::Absent) => ("not registered", None),
                Ok(EntryState::Other) => ("another entry", None),
                Err(_) => ("not readable", None),
            };
            rows.push(json!({
                "client": client.as_str(),
                "found": self.is_found(client),
                "state": word,
                "program": program,
                "path": display_path(&path),
            }));
        }
        if self.output.is_json {
            let data = json!({ "clients": rows });
            self.output.print_json(&rye_engine::success_response(None, None, data))?;
            return Ok(());
        }
        let mut table = self.output.table(&["client", "found", "state", "program", "file"]);
        let shown = |row: &&Value| row["found"] == json!(true) || row["state"] != json!("not registered");
        let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
        for row in rows.iter().filter(shown) {
            let found = if row["found"] == json!(true) { "yes" } else { "no" };
            table.add_row([
                text(row, "client"),
                found.to_owned(),
                text(row, "state"),
                text(row, "program"),
                text(row, "path"),
            ]);
        }
        if !rows.iter().any(|row| shown(&row)) {
            self.output.note("no MCP client was found here: rye mcp install CLIENT registers rye with one");
            return Ok(());
        }
        self.output.print(table.trim_fmt())?;
        if let Some(row) = rows.iter().find(|row| row["state"] == json!("broken")) {
            let client = text(row, "client");
            self.output.note(format_args!(
                "{} is gone: rye mcp uninstall {client}, then rye mcp install {client}",
                text(row, "program")
            ));
        }
        Ok(())
    }

    /// Writes a configuration if it differs, and shows the difference; whether it did.
    fn change(
        &self,
        client: ClientApp,
        path: &Path,
        before: Option<&str>,
        after: &str,
    ) -> Result<bool, super::CommandError> {
        let is_changed = before != Some(after);
        let mut backup = None;
        if is_changed {
            refuse_linked(&self.dirs.project, path)?;
            backup = self.write(client, path, before, after)?;
            if !self.output.is_json {
                let diff = clients::diff(before.unwrap_or_default(), after);
                self.output.note(rye_item::text::strip_controls(&diff));
            }
        }
        self.report(client, path, is_changed, backup.as_deref())?;
        Ok(is_changed)
    }

    /// Removes a configuration in which nothing is left.
    fn remove(&self, client: ClientApp, path: &Path, before: &str) -> Result<(), super::CommandError> {
        refuse_linked(&self.dirs.project, path)?;
        let backup = self.back_up(client, path, before)?;
        file::remove(path).map_err(Error::from)?;
        if !self.output.is_json {
            self.output.note(rye_item::text::strip_controls(&clients::diff(before, "")));
        }
        self.report(client, path, true, Some(&backup))?;
        Ok(())
    }

    fn report(
        &self,
        client: ClientApp,
        path: &Path,
        is_changed: bool,
        backup: Option<&Path>,
    ) -> std::io::Result<()> {
        if self.output.is_json {
            let data = json!({
                "client": client.as_str(), "path": display_path(path), "changed": is_changed,
                "backup": backup.map(display_path),
            });
            return self.output.print_json(&rye_engine::success_response(None, None, data));
        }
        if is_changed {
            self.output.print(format_args!("{} {}", paint(SUCCESS, "changed"), display_path(path)))?;
        }
        if let Some(backup) = backup {
            self.output.note(format_args!("backup: {}", paint(DIM, display_path(backup))));
        }
        Ok(())
    }

    /// Writes the configuration, and what it was into the cache: beside it, a backup would be one more file of a
    /// repository.
    fn write(
        &self,
        client: ClientApp,
        path: &Path,
        before: Option<&str>,
        after: &str,
    ) -> Result<Option<PathBuf>, Error> {
        // The file itself is replaced, not a link to it.
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        if let Some(folder) = target.parent() {
            file::create_dirs(folder, false)?;
        }
        let backup = before.map(|before| self.back_up(client, &target, before)).transpose()?;
        file::write_atomic(&target, after.as_bytes(), FileMode::Preserve)?;
        Ok(backup)
    }

    fn back_up(&self, client: ClientApp, target: &Path, before: &str) -> Result<PathBuf, Error> {
        let folder = self.settings.roots.cache.join("client-backups");
        file::create_dirs(&folder, true)?;
        let digest = Digest::of_pieces([target.as_os_str().as_encoded_bytes(), b"\0", before.as_bytes()]);
        let name = target.file_name().and_then(|name| name.to_str()).unwrap_or("config");
        let backup = folder.join(format!("{}-{}-{name}", client.as_str(), digest.short()));
        // It may hold secrets, as the file itself may.
        file::write_atomic(&backup, before.as_bytes(), FileMode::Private)?;
        Ok(backup)
    }
}

/// Whether a program that is named by its path is gone.
fn is_missing(program: &str) -> bool {
    Path::new(program).is_absolute() && !Path::new(program).exists()
}

fn read_config(path: &Path) -> Result<Option<String>, Error> {
    match file::read_bounded(path, MAX_CONFIG_SIZE) {
        Ok((bytes, _)) => String::from_utf8(bytes).map(Some).map_err(|_| {
            Error::new(Code::ClientConfig, format!("`{}` is not text", path.display()))
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
