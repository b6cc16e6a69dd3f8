//! `rye export`: signed items as the files of a client. What an export did not write, or what was edited since, is never
//! overwritten.

mod own_exports;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_engine::verbs::load::{self, LoadOptions, LoadedItem};
use rye_engine::{Code, Engine, Error};
use rye_import::export::{ExportRecord, ExportState, ExportedFile, FileExport, compare_files, render_item};
use rye_import::{ExportClient, ExportFile, ExportItem, ImportedItem, RenderedItem};
use rye_item::text::{counted, one_line};
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_server::install::{self, ClientApp, EntryState};
use rye_space::search::SpaceWatcher;
use serde_json::{Value, json};

use self::own_exports::OwnExports;
use super::{CommandContext, CommandError, CommandResult, confirm};
use crate::arguments::ExportArguments;
use crate::output::{DIM, ERROR, NAME, Output, SUCCESS, WARNING, paint};
use crate::settings;

/// The largest file that is compared or exported.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// How long files must be left alone before they are exported again.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(150);
/// The schema of an Agent Plugin's manifest.
const PLUGIN_SCHEMA: &str = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json";

/// `rye export`
pub fn export(context: &CommandContext, arguments: &ExportArguments) -> CommandResult {
    let project = project_of(&context.engine)?;
    let clients: Vec<ExportClient> = match arguments.client {
        Some(client) => vec![client.client()],
        None => {
            let is_used = |client: &ExportClient| record_path(&project, *client).is_file();
            ExportClient::ALL.into_iter().filter(is_used).collect()
        }
    };
    if arguments.check {
        return check(context, &project, &clients, &arguments.items);
    }
    // Its record says which files are to be replaced and removed.
    if !context.engine.workspace.is_project_approved {
        let error =
            Error::new(Code::ProjectNotApproved, "this project is not approved, so nothing is exported");
        return Err(error.hint("see who made it and who signed what: rye join").into());
    }
    let Some(client) = clients.first().copied() else {
        return Err(Error::new(Code::InvalidArgument, "no client given")
            .hint("rye export claude-code")
            .into());
    };
    export_once(context, &project, client, arguments)?;
    if arguments.watch {
        return watch(context, &project, client, arguments);
    }
    Ok(())
}

fn project_of(engine: &Engine) -> Result<PathBuf, Error> {
    match &engine.workspace.roots.project {
        Some(project) if engine.workspace.roots.project_ai().is_some_and(|ai| ai.is_dir()) => {
            Ok(project.clone())
        }
        Some(_) | None => Err(rye_engine::verbs::new_item::no_project_error(engine)),
    }
}

fn record_path(project: &Path, client: ExportClient) -> PathBuf {
    project.join(format!(".ai/exports/{}.json", client.as_str()))
}

/// What an export would do.
struct ExportPlan {
    client: ExportClient,
    files: Vec<ExportFile>,
    states: Vec<FileExport>,
    record: ExportRecord,
    /// Items that are not exported, with the reason.
    left_out: Vec<(String, String)>,
    /// Items that are not signed by a trusted key, or not as they were signed.
    refused: Vec<(String, String)>,
    /// Whether the client's own file has to name rye.
    needs_registration: bool,
    /// What exports on this machine wrote.
    own: OwnExports,
}

impl ExportPlan {
    fn read(engine: &Engine, project: &Path, client: ExportClient, named: &[String]) -> Result<Self, Error> {
        let record = read_record(project, client)?;
        let own = OwnExports::read(&engine.workspace.roots.user, project)?;
        let mut plan = Self {
            client,
            files: Vec::new(),
            states: Vec::new(),
            record,
            left_out: Vec::new(),
            refused: Vec::new(),
            needs_registration: false,
            own,
        };
        for item in wanted_items(engine, named)? {
            plan.add_item(engine, &item, !named.is_empty());
        }
        if client == ExportClient::AgentPlugin && !plan.files.is_empty() {
            plan.files.push(plugin_manifest(project));
        }
        // What was exported from other items stays, if only some are named.
        if !named.is_empty() {
            let kept: Vec<String> = plan
                .record
                .files
                .keys()
                .filter(|path| !plan.files.iter().any(|file| file.path == **path))
                .cloned()
                .collect();
            plan.states =
                compare_files(&plan.files, &plan.record, &digests(project, &plan.files, &plan.record));
            plan.states.retain(|state| !kept.contains(&state.path));
        } else {
            plan.states =
                compare_files(&plan.files, &plan.record, &digests(project, &plan.files, &plan.record));
        }
        plan.needs_registration =
            client == ExportClient::ClaudeCode && !plan.files.is_empty() && !is_registered(project)?;
        Ok(plan)
    }

    fn add_item(&mut self, engine: &Engine, item: &ItemRef, is_named: bool) {
        let rendered = load_item(engine, item)
            .map_err(|error| error.message)
            .and_then(|source| render_item(self.client, &source));
        match rendered {
            Ok(RenderedItem::Files(files)) => {
                for file in files {
                    let same = self.files.iter().find(|other| other.path.eq_ignore_ascii_case(&file.path));
                    match same {
                        Some(other) if other.bytes == file.bytes => {}
                        Some(other) => self
                            .left_out
                            .push((item.to_string(), format!("{} has `{}` already", other.item, file.path))),
                        None => self.files.push(file),
                    }
                }
            }
            Ok(RenderedItem::Nothing) if is_named => {
                self.left_out
                    .push((item.to_string(), "it is part of another item, or reached over MCP".to_owned()));
            }
            Ok(RenderedItem::Nothing) => {}
            Ok(RenderedItem::NoPlace(reason)) => self.left_out.push((item.to_string(), reason)),
            Err(reason) => self.refused.push((item.to_string(), one_line(&reason))),
        }
    }

    fn in_state(&self, wanted: &[ExportState]) -> impl Iterator<Item = &FileExport> {
        self.states.iter().filter(move |file| wanted.contains(&file.state))
    }

    /// Files to be replaced or removed that only the project's record says an export wrote.
    fn written_elsewhere(&self) -> Vec<&str> {
        let changed = self.in_state(&[ExportState::Stale, ExportState::Obsolete]);
        let is_known = |path: &str| {
            self.record.files.get(path).is_some_and(|recorded| self.own.knows(path, &recorded.sha256))
        };
        changed.map(|file| file.path.as_str()).filter(|path| !is_known(path)).collect()
    }

    /// Enters what is there as this export would have it into the record of this machine.
    fn record_own(&mut self, removed: &[String]) -> Result<(), Error> {
        let mut is_changed = !removed.is_empty();
        for file in &self.files {
            is_changed |= self.own.insert(&file.path, &Digest::of(&file.bytes).to_hex());
        }
        removed.iter().for_each(|path| self.own.remove(path));
        if is_changed { self.own.write() } else { Ok(()) }
    }

    /// Whether everything is as it should be.
    fn is_current(&self) -> bool {
        self.states.iter().all(|file| file.state == ExportState::Current)
            && self.refused.is_empty()
            && !self.needs_registration
            && !self.is_unrecorded()
    }

    fn is_unrecorded(&self) -> bool {
        self.files.iter().any(|file| !self.record.files.contains_key(&file.path))
    }

    fn to_value(&self) -> Value {
        let pairs = |list: &[(String, String)]| -> Vec<Value> {
            list.iter().map(|(item, reason)| json!({"item": item, "reason": reason})).collect()
        };
        json!({
            "client": self.client.as_str(), "files": self.states, "left_out": pairs(&self.left_out),
            "refused": pairs(&self.refused), "registers": self.needs_registration,
        })
    }

    fn show(&self, output: &Output) {
        for file in self.states.iter().filter(|file| file.state != ExportState::Current) {
            let style = match file.state {
                ExportState::Current => DIM,
                ExportState::Missing | ExportState::Stale => SUCCESS,
                ExportState::Obsolete => WARNING,
                ExportState::Edited | ExportState::Foreign => ERROR,
            };
            output.ask(format_args!(
                "{} {} {}",
                paint(style, format_args!("{:9}", file.state.as_str())),
                paint(NAME, one_line(&file.path)),
                paint(DIM, format_args!("from {}", file.item))
            ));
        }
        if self.needs_registration {
            output.ask(format_args!(
                "{} {} {}",
                paint(SUCCESS, "register "),
                paint(NAME, ".mcp.json"),
                paint(DIM, "with rye's MCP server")
            ));
        }
        for (item, reason) in &self.left_out {
            output.ask(format_args!("{} {item}: {}", paint(DIM, "left out "), one_line(reason)));
        }
        for (item, reason) in &self.refused {
            output.ask(format_args!("{} {item}: {}", paint(ERROR, "refused  "), one_line(reason)));
        }
    }
}

/// The items that are named, or those that were imported or say that they are to be exported.
fn wanted_items(engine: &Engine, named: &[String]) -> Result<Vec<ItemRef>, Error> {
    if !named.is_empty() {
        return named.iter().map(|name| load::find_by_id(engine, name, None)).collect();
    }
    let spaces = &engine.workspace.spaces;
    let mut items = Vec::new();
    let walk = spaces.scan_strict(&Space::Project, &[ItemType::Directive, ItemType::Knowledge]);
    for entry in walk.map_err(|folder| Error::unreadable_folder(&folder))?.entries {
        let located = engine.locate(&entry.item, None)?;
        if ExportItem::is_marked(entry.item.item_type, &located.text()) {
            items.push(entry.item);
        }
    }
    items.sort();
    Ok(items)
}

/// An item that a trusted key signed, with what belongs to it.
fn load_item(engine: &Engine, item: &ItemRef) -> Result<ExportItem, Error> {
    let load = |item: &ItemRef| -> Result<LoadedItem, Error> {
        let loaded = load::load(engine, item, LoadOptions::default())?;
        if loaded.verdict.as_str() != "full" {
            let message = format!("{item} is {}: only signed items are exported", loaded.verdict.as_str());
            return Err(Error::new(Code::Unsigned, message).hint("read it, then sign it: rye sign TYPE ID"));
        }
        Ok(loaded)
    };
    let loaded = load(item)?;
    let ai = engine.workspace.spaces.folder(&loaded.space);
    let mut export =
        ExportItem { item: item.clone(), text: loaded.raw, pages: BTreeMap::new(), assets: BTreeMap::new() };
    let Some(imported) = ImportedItem::read(item.item_type, &export.text) else { return Ok(export) };
    for file in imported.provenance.files.values() {
        if let Some(id) = &file.item {
            let page = ItemRef::new(ItemType::Knowledge, ItemId::new(id.as_str())?);
            export.pages.insert(id.clone(), load(&page)?.raw);
        } else if let (Some(path), Some(ai)) = (&file.path, &ai) {
            let (bytes, _) = file::read_beneath_no_symlinks(ai, Path::new(path), MAX_FILE_BYTES)
                .map_err(|error| Error::read(&error))?;
            export.assets.insert(path.clone(), bytes);
        }
    }
    Ok(export)
}

/// The manifest of a project's Agent Plugin.
fn plugin_manifest(project: &Path) -> ExportFile {
    let name = project.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    let mut clean = String::new();
    for character in name.chars() {
        match character {
            'a'..='z' | '0'..='9' => clean.push(character),
            _ if clean.ends_with('-') || clean.is_empty() => {}
            _ => clean.push('-'),
        }
    }
    let clean: String = clean.trim_matches('-').chars().take(64).collect();
    let name = if clean.is_empty() { "plugin" } else { clean.trim_end_matches('-') };
    let text = format!(
        "{{\n  \"$schema\": \"{PLUGIN_SCHEMA}\",\n  \"name\": \"{name}\",\n  \"version\": \"1.0.0\"\n}}\n"
    );
    ExportFile {
        path: "agent-plugin/plugin.json".to_owned(),
        bytes: text.into_bytes(),
        is_executable: false,
        item: "the project".to_owned(),
    }
}

/// The digests of all files that exports wrote to a project, by path.
pub(super) fn exported_digests(project: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut digests = BTreeMap::new();
    for client in ExportClient::ALL {
        let files = read_record(project, client)?.files;
        digests.extend(files.into_iter().map(|(path, file)| (path, file.sha256)));
    }
    Ok(digests)
}

fn read_record(project: &Path, client: ExportClient) -> Result<ExportRecord, Error> {
    let relative = format!(".ai/exports/{}.json", client.as_str());
    match file::read_beneath_no_symlinks(project, Path::new(&relative), MAX_FILE_BYTES) {
        Ok((bytes, _)) => {
            let damaged = |reason: &str| {
                Error::new(Code::Invalid, format!("`{relative}` is damaged: {}", one_line(reason)))
                    .hint("restore it from your repository, or remove it together with the exported files")
            };
            let record: ExportRecord =
                serde_json::from_slice(&bytes).map_err(|error| damaged(&error.to_string()))?;
            match record.files.keys().find(|path| !client.may_write(path)) {
                Some(path) => Err(damaged(&format!("`{path}` is not a file that an export writes"))),
                None => Ok(record),
            }
        }
        Err(error) if error.is_absent() => Ok(ExportRecord::default()),
        Err(error) => Err(Error::read(&error)),
    }
}

/// The digests of the files that are there. What cannot be read counts as another file.
fn digests(project: &Path, wanted: &[ExportFile], record: &ExportRecord) -> BTreeMap<String, Digest> {
    let mut all = BTreeMap::new();
    for path in wanted.iter().map(|file| &file.path).chain(record.files.keys()) {
        match file::read_beneath_no_symlinks(project, Path::new(path), MAX_FILE_BYTES) {
            Ok((bytes, _)) => all.insert(path.clone(), Digest::of(&bytes)),
            Err(error) if error.is_absent() => None,
            Err(_) => all.insert(path.clone(), Digest::of(b"unreadable")),
        };
    }
    all
}

fn is_registered(project: &Path) -> Result<bool, Error> {
    match file::read_beneath_no_symlinks(project, Path::new(".mcp.json"), MAX_FILE_BYTES) {
        Ok((bytes, _)) => {
            let state = install::entry_state(ClientApp::ClaudeCode, &String::from_utf8_lossy(&bytes))?;
            Ok(!matches!(state, EntryState::Absent))
        }
        Err(error) if error.is_absent() => Ok(false),
        Err(error) => Err(Error::read(&error)),
    }
}

fn export_once(
    context: &CommandContext,
    project: &Path,
    client: ExportClient,
    arguments: &ExportArguments,
) -> CommandResult {
    // A fresh one: while it is watched, items change.
    let engine = context.settings.engine()?;
    let mut plan = ExportPlan::read(&engine, project, client, &arguments.items)?;
    let output = &context.output;
    if !output.is_json {
        plan.show(output);
    }
    let data = plan.to_value();
    let fail = |error: Error| CommandError::Engine(error, Some(Box::new(data.clone())));
    if let Some((item, reason)) = plan.refused.first() {
        let error =
            Error::new(Code::Untrusted, format!("nothing was written: {item} may not be exported: {reason}"));
        return Err(fail(error.hint("read it, then sign it: rye sign TYPE ID")));
    }
    if let Some(file) = plan.in_state(&[ExportState::Edited, ExportState::Foreign]).next() {
        let why = match file.state {
            ExportState::Foreign => "was not written by an export",
            _ => "was changed after it was exported",
        };
        let error = Error::new(Code::InvalidArgument, format!("nothing was written: `{}` {why}", file.path));
        return Err(fail(error.hint("import it first (rye import PATH), or move it away")));
    }
    if plan.files.is_empty() && plan.states.is_empty() {
        let error = Error::new(Code::NotFound, "there is nothing to export");
        return Err(fail(error.hint("import something, name an item, or mark one with `export: true`")));
    }
    let elsewhere = plan.written_elsewhere();
    let asks = context.settings.is_interactive && !output.is_json && !arguments.yes;
    if let Some(first) = elsewhere.first().filter(|_| !asks && !arguments.take_over) {
        let count = counted(elsewhere.len(), "file");
        let error = Error::new(
            Code::ConsentNeeded,
            format!(
                "nothing was written: no export on this machine wrote {count} that would change, first `{first}`"
            ),
        );
        let error =
            error.hint("look at them, then add --take-over: the record in .ai/exports came with the project");
        return Err(fail(error));
    }
    let is_changed = !plan.is_current();
    let changes = plan.in_state(&[ExportState::Missing, ExportState::Stale, ExportState::Obsolete]).count();
    if is_changed {
        let has_consent = arguments.yes
            || (asks && {
                let removed = plan.in_state(&[ExportState::Obsolete]).count();
                let removed = match removed {
                    0 => String::new(),
                    count => format!(", {} of them deleted", counted(count, "file")),
                };
                let elsewhere = match elsewhere.len() {
                    0 => String::new(),
                    count => format!(", {} not written on this machine", counted(count, "file")),
                };
                output.ask(format_args!("change {}{removed}{elsewhere}? [y/N]", counted(changes, "file")));
                confirm()?
            });
        if !has_consent {
            let error = Error::new(Code::ConsentNeeded, "nothing was written: exporting needs a yes");
            return Err(fail(error.hint("read the plan, then add --yes")));
        }
        write(context, project, &mut plan)?;
    } else {
        plan.record_own(&[])?;
    }
    if output.is_json {
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    let word = if is_changed { "exported" } else { "nothing changed" };
    output.print(format_args!(
        "{}: {} for {}",
        paint(SUCCESS, word),
        counted(plan.files.len(), "file"),
        client.as_str()
    ))?;
    if matches!(client, ExportClient::Codex | ExportClient::Cursor | ExportClient::Gemini) {
        output.note(format_args!(
            "tools and servers are reached over MCP: rye mcp install {}",
            client.as_str()
        ));
    }
    Ok(())
}

fn write(context: &CommandContext, project: &Path, plan: &mut ExportPlan) -> Result<(), Error> {
    let obsolete: Vec<String> =
        plan.in_state(&[ExportState::Obsolete]).map(|file| file.path.clone()).collect();
    let written: Vec<String> =
        plan.in_state(&[ExportState::Missing, ExportState::Stale]).map(|file| file.path.clone()).collect();
    for file in &plan.files {
        if written.contains(&file.path) {
            let relative = Path::new(&file.path);
            let folder = relative.parent().unwrap_or(Path::new(""));
            let path = file::create_folders_beneath(project, folder, false)?
                .join(relative.file_name().unwrap_or_default());
            file::write_atomic(&path, &file.bytes, FileMode::Preserve)?;
            if file.is_executable {
                file::set_mode(&path, 0o755)?;
            }
        }
        let exported = ExportedFile { sha256: Digest::of(&file.bytes).to_hex(), item: file.item.clone() };
        plan.record.files.insert(file.path.clone(), exported);
    }
    for path in &obsolete {
        file::remove_beneath(project, Path::new(path))?;
        plan.record.files.remove(path);
    }
    plan.record_own(&obsolete)?;
    let folder = file::create_folders_beneath(project, Path::new(".ai/exports"), false)?;
    let name = format!("{}.json", plan.client.as_str());
    file::write_atomic(&folder.join(name), plan.record.to_text().as_bytes(), FileMode::Preserve)?;
    if plan.needs_registration {
        let path = project.join(".mcp.json");
        let before = match file::read_beneath_no_symlinks(project, Path::new(".mcp.json"), MAX_FILE_BYTES) {
            Ok((bytes, _)) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.is_absent() => None,
            Err(error) => return Err(Error::read(&error)),
        };
        let program = settings::started_as(&context.settings.working_dir);
        let after = install::update_config(ClientApp::ClaudeCode, &program, before.as_deref())?;
        file::write_atomic(&path, after.as_bytes(), FileMode::Preserve)?;
    }
    Ok(())
}

/// `rye export --check`
fn check(
    context: &CommandContext,
    project: &Path,
    clients: &[ExportClient],
    named: &[String],
) -> CommandResult {
    let mut plans = Vec::new();
    for client in clients {
        plans.push(ExportPlan::read(&context.engine, project, *client, named)?);
    }
    let output = &context.output;
    if !output.is_json {
        plans.iter().for_each(|plan| plan.show(output));
    }
    let data = json!({ "clients": plans.iter().map(ExportPlan::to_value).collect::<Vec<_>>() });
    let stale: Vec<&str> =
        plans.iter().filter(|plan| !plan.is_current()).map(|plan| plan.client.as_str()).collect();
    if let Some(first) = stale.first() {
        let error = Error::new(Code::StaleExport, format!("stale exports: {}", stale.join(", ")));
        let error = error
            .hint(format!("rye export {first} writes them again; import what was edited: rye import PATH"));
        return Err(CommandError::Engine(error, Some(Box::new(data))));
    }
    if output.is_json {
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    let files: usize = plans.iter().map(|plan| plan.files.len()).sum();
    Ok(output.print(format_args!("{}: {}", paint(SUCCESS, "current"), counted(files, "file")))?)
}

/// Exports again after each change of items, until it is interrupted.
fn watch(
    context: &CommandContext,
    project: &Path,
    client: ExportClient,
    arguments: &ExportArguments,
) -> CommandResult {
    let (sender, changes) = mpsc::channel();
    let watcher = SpaceWatcher::start_with_callback(
        &context.engine.workspace.spaces,
        &ItemType::SEARCHABLE,
        move || {
            // The other end is there as long as this runs.
            let _ = sender.send(());
        },
    );
    let Some(_watcher) = watcher else {
        return Err(Error::new(Code::Io, "the folders of items cannot be watched")
            .hint("raise fs.inotify.max_user_watches, or export without --watch")
            .into());
    };
    context.output.note(paint(DIM, "watching; press Ctrl-C to stop"));
    while changes.recv().is_ok() {
        while changes.recv_timeout(SETTLE_TIMEOUT).is_ok() {}
        match export_once(context, project, client, arguments) {
            Ok(()) => {}
            // An item that is being edited is not signed yet: it is exported once it is.
            Err(CommandError::Engine(error, _)) => {
                context.output.print_error(&error, None)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
