//! What an export would do: the files of the items, against those that are there, what exports wrote and what imports read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lillux::Digest;
use lillux::file;
use rye_engine::verbs::load::{self, LoadOptions, LoadedItem};
use rye_engine::{Code, Engine, Error};
use rye_import::export::{ExportRecord, ExportState, FileExport, compare_files, render_item};
use rye_import::{ExportClient, ExportFile, ExportItem, ImportedItem, RenderedItem};
use rye_item::text::{counted, one_line};
use rye_item::{ItemId, ItemRef, ItemType, Space};
use rye_server::clients::{self, ClientApp, EntryState};
use serde_json::{Value, json};

use super::own_exports::OwnExports;
use crate::output::{DIM, ERROR, NAME, Output, SUCCESS, WARNING, paint};

/// The largest file that is compared or exported.
pub const MAX_FILE_BYTES: u64 = 16 << 20;
/// The schema of an Agent Plugin's manifest.
const PLUGIN_SCHEMA: &str = "https://agent-plugins.org/schemas/1.0.0/plugin.schema.json";

/// What an export would do.
pub struct ExportPlan {
    pub client: ExportClient,
    pub files: Vec<ExportFile>,
    pub states: Vec<FileExport>,
    pub record: ExportRecord,
    /// Items that are not exported, with the reason.
    left_out: Vec<(String, String)>,
    /// Items that are not signed by a trusted key, or not as they were signed.
    pub refused: Vec<(String, String)>,
    /// Whether the client's own file has to name rye.
    pub needs_registration: bool,
    /// What exports on this machine wrote.
    own: OwnExports,
}

impl ExportPlan {
    /// Plans the export of the named items, or of all that are exported.
    ///
    /// # Errors
    /// When a record or a file that decides cannot be read.
    pub fn read(
        engine: &Engine,
        project: &Path,
        client: ExportClient,
        named: &[String],
    ) -> Result<Self, Error> {
        let mut plan = Self::read_files(engine, project, client, named)?;
        plan.needs_registration =
            client == ExportClient::ClaudeCode && !plan.files.is_empty() && !is_registered(project)?;
        Ok(plan)
    }

    fn read_files(
        engine: &Engine,
        project: &Path,
        client: ExportClient,
        named: &[String],
    ) -> Result<Self, Error> {
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
        // An item of which one file has no place is left out as a whole: its other files would join another item's.
        let left: BTreeSet<String> = plan.left_out.iter().map(|(item, _)| item.clone()).collect();
        plan.files.retain(|file| !left.contains(&file.item));
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
        Ok(plan)
    }

    /// Plans an export that was never done: no more than the files that items were imported from and that differ from what
    /// the items say. What `seen` has is named elsewhere.
    ///
    /// # Errors
    /// As [`ExportPlan::read`].
    pub fn read_sources(
        engine: &Engine,
        project: &Path,
        client: ExportClient,
        seen: &mut BTreeSet<String>,
    ) -> Result<Self, Error> {
        let mut plan = Self::read_files(engine, project, client, &[])?;
        let files = &plan.files;
        let is_source = |path: &str| files.iter().any(|file| file.path == path && file.is_at_source());
        plan.states.retain(|file| {
            matches!(file.state, ExportState::Stale | ExportState::Edited)
                && is_source(&file.path)
                && seen.insert(file.path.clone())
        });
        plan.left_out.clear();
        plan.refused.clear();
        Ok(plan)
    }

    fn add_item(&mut self, engine: &Engine, item: &ItemRef, is_named: bool) {
        let rendered = load_item(engine, item)
            .map_err(|error| error.message)
            .and_then(|source| render_item(self.client, &source));
        match rendered {
            Ok(RenderedItem::Files(files)) => {
                files.into_iter().for_each(|file| self.add_file(file));
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

    /// Adds a file. Of two with one path the one that was imported from there stays, else the first.
    fn add_file(&mut self, file: ExportFile) {
        let same = self.files.iter_mut().find(|other| other.path.eq_ignore_ascii_case(&file.path));
        let Some(other) = same else { return self.files.push(file) };
        let is_same = other.bytes == file.bytes;
        let left = match file.is_at_source() && !other.is_at_source() {
            true => std::mem::replace(other, file),
            false => file,
        };
        if !is_same {
            let reason = format!("{} has `{}` already", other.item, other.path);
            self.left_out.push((left.item, reason));
        }
    }

    /// The files in these states.
    pub fn in_state(&self, wanted: &[ExportState]) -> impl Iterator<Item = &FileExport> {
        self.states.iter().filter(move |file| wanted.contains(&file.state))
    }

    /// Files to be replaced or removed that only the project's record says an export wrote.
    pub fn written_elsewhere(&self) -> Vec<&str> {
        let changed = self.in_state(&[ExportState::Stale, ExportState::Obsolete]);
        let is_known = |file: &FileExport| {
            let present = file.present.map(|digest| digest.to_hex()).unwrap_or_default();
            self.own.knows(&file.path, &present)
                || (file.is_as_imported && self.own.has_imported(&file.path, &present))
        };
        changed.filter(|file| !is_known(file)).map(|file| file.path.as_str()).collect()
    }

    /// The first file that stands in the way, and why it does.
    pub fn first_conflict(&self) -> Option<(&FileExport, &'static str)> {
        let file = self.in_state(&[ExportState::Edited, ExportState::Foreign]).next()?;
        let why = match file.state {
            ExportState::Foreign => "was not written by an export",
            _ if self.record.files.contains_key(&file.path) => "was changed after it was exported",
            _ => "was changed after it was imported",
        };
        Some((file, why))
    }

    /// What helps against a file in the way, `place` giving a path as a word of a command.
    pub fn conflict_hints(&self, file: &FileExport, place: impl Fn(&str) -> String) -> Vec<String> {
        let wanted = self.files.iter().find(|wanted| wanted.path == file.path);
        let import = wanted.and_then(|wanted| wanted.imported.as_ref()?.import.as_deref());
        let import = import.map(|path| {
            format!("to keep what the file says, read it, then: rye import {} --theirs", place(path))
        });
        let aside = format!("{}.old", file.path);
        let move_away = format!("to keep what the item says: mv -n {} {}", place(&file.path), place(&aside));
        import.into_iter().chain([move_away]).collect()
    }

    /// Enters what is there as this export would have it into the record of this machine.
    ///
    /// # Errors
    /// When the user space cannot be written.
    pub fn record_own(&mut self, removed: &[String]) -> Result<(), Error> {
        let mut is_changed = !removed.is_empty();
        for file in &self.files {
            is_changed |= self.own.insert(&file.path, &Digest::of(&file.bytes).to_hex());
        }
        removed.iter().for_each(|path| self.own.remove(path));
        if is_changed { self.own.write() } else { Ok(()) }
    }

    /// Whether everything is as it should be.
    pub fn is_current(&self) -> bool {
        self.states.iter().all(|file| file.state == ExportState::Current)
            && self.refused.is_empty()
            && !self.needs_registration
            && !self.is_unrecorded()
    }

    /// What an import has to do with a file that would be replaced or is in the way.
    fn source_words(&self, file: &FileExport) -> &'static str {
        match file.state {
            ExportState::Stale if file.is_as_imported => ", which was imported from it",
            ExportState::Edited if !self.record.files.contains_key(&file.path) => {
                ", changed after it was imported"
            }
            _ => "",
        }
    }

    fn is_unrecorded(&self) -> bool {
        self.files.iter().any(|file| !self.record.files.contains_key(&file.path))
    }

    /// The plan as a value.
    pub fn to_value(&self) -> Value {
        let pairs = |list: &[(String, String)]| -> Vec<Value> {
            list.iter().map(|(item, reason)| json!({"item": item, "reason": reason})).collect()
        };
        json!({
            "client": self.client.as_str(), "files": self.states, "left_out": pairs(&self.left_out),
            "refused": pairs(&self.refused), "registers": self.needs_registration,
        })
    }

    /// Shows everything that is not as it should be; as a result, if nothing else is done.
    pub fn show(&self, output: &Output, is_result: bool) {
        for file in self.states.iter().filter(|file| file.state != ExportState::Current) {
            let style = match file.state {
                ExportState::Current => DIM,
                ExportState::Missing | ExportState::Stale => SUCCESS,
                ExportState::Obsolete => WARNING,
                ExportState::Edited | ExportState::Foreign => ERROR,
            };
            output.plan(
                is_result,
                format_args!(
                    "{} {} {}",
                    paint(style, format_args!("{:9}", file.state.as_str())),
                    paint(NAME, one_line(&file.path)),
                    paint(DIM, format_args!("from {}{}", file.item, self.source_words(file)))
                ),
            );
        }
        if self.is_unrecorded() && self.states.iter().all(|file| file.state == ExportState::Current) {
            output.plan(
                is_result,
                format_args!(
                    "{} {} {}",
                    paint(SUCCESS, "record   "),
                    paint(NAME, record_path(self.client)),
                    paint(DIM, format_args!("with {} that are current", counted(self.files.len(), "file")))
                ),
            );
        }
        if self.needs_registration {
            output.plan(
                is_result,
                format_args!(
                    "{} {} {}",
                    paint(SUCCESS, "register "),
                    paint(NAME, ".mcp.json"),
                    paint(DIM, "with rye's MCP server")
                ),
            );
        }
        for (item, reason) in &self.left_out {
            output.plan(is_result, format_args!("{} {item}: {}", paint(DIM, "left out "), one_line(reason)));
        }
        for (item, reason) in &self.refused {
            output
                .plan(is_result, format_args!("{} {item}: {}", paint(ERROR, "refused  "), one_line(reason)));
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
        imported: None,
    }
}

/// The digests of all files that exports wrote to a project, by path.
///
/// # Errors
/// When a record is damaged.
pub fn exported_digests(project: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut digests = BTreeMap::new();
    for client in ExportClient::ALL {
        let files = read_record(project, client)?.files;
        digests.extend(files.into_iter().map(|(path, file)| (path, file.sha256)));
    }
    Ok(digests)
}

/// Where a project keeps the record of its exports for a client, below its folder.
pub fn record_path(client: ExportClient) -> String {
    format!(".ai/exports/{}.json", client.as_str())
}

fn read_record(project: &Path, client: ExportClient) -> Result<ExportRecord, Error> {
    let relative = record_path(client);
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
            let state = clients::entry_state(ClientApp::ClaudeCode, &String::from_utf8_lossy(&bytes))?;
            Ok(!matches!(state, EntryState::Absent))
        }
        Err(error) if error.is_absent() => Ok(false),
        Err(error) => Err(Error::read(&error)),
    }
}
