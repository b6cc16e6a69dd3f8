//! `rye export`: signed items as the files of a client. What an export did not write, or what was edited since, is never
//! overwritten.

mod own_exports;
mod plan;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use lillux::Digest;
use lillux::file::{self, FileMode};
use rye_engine::{Code, Engine, Error};
use rye_import::export::{ExportState, ExportedFile};
use rye_import::{ExportClient, SourcePath};
use rye_item::ItemType;
use rye_item::text::{counted, shell_word};
use rye_server::clients::{self, ClientApp};
use rye_space::search::SpaceWatcher;
use serde_json::json;

use self::own_exports::OwnExports;
pub use self::plan::exported_digests;
use self::plan::{ExportPlan, MAX_FILE_BYTES, record_path};
use super::given_command::given_command_with;
use super::{CommandContext, CommandError, CommandResult, confirm, declined};
use crate::arguments::ExportArguments;
use crate::output::{DIM, SUCCESS, paint, shell_path};
use crate::settings;

/// How long files must be left alone before they are exported again.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(150);

/// `rye export`
pub fn export(context: &CommandContext, arguments: &ExportArguments) -> CommandResult {
    let project = project_of(&context.engine)?;
    let client = arguments.client.map(|client| client.client());
    if arguments.check {
        return check(context, &project, client, &arguments.items);
    }
    // Its record says which files are to be replaced and removed.
    if !context.engine.workspace.is_project_approved {
        let error =
            Error::new(Code::ProjectNotApproved, "this project is not approved, so nothing is exported");
        return Err(error.hint("see who made it and who signed what: rye join").into());
    }
    let Some(client) = client else {
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

/// Enters files that an import read into the record of this machine, if they are still what it read: an export of their
/// items may replace them.
///
/// # Errors
/// When the record cannot be read or written.
pub fn record_sources<'a>(
    engine: &Engine,
    project: &Path,
    sources: impl Iterator<Item = (String, &'a str)>,
) -> Result<(), Error> {
    let mut own = OwnExports::read(&engine.workspace.roots.user, project)?;
    let mut is_changed = false;
    for (path, sha256) in sources.filter(|(path, _)| SourcePath::new(path).is_ok()) {
        let found = file::read_beneath_no_symlinks(project, Path::new(&path), MAX_FILE_BYTES);
        let is_same = found.is_ok_and(|(bytes, _)| Digest::of(&bytes).to_hex() == sha256);
        is_changed |= is_same && own.insert_imported(&path, sha256);
    }
    if is_changed { own.write() } else { Ok(()) }
}

/// A path of the project as a word of a command that is given where this one was.
fn shown_path(context: &CommandContext, project: &Path, path: &str) -> String {
    match context.settings.working_dir == project {
        true => shell_word(path),
        false => shell_path(&project.join(path)),
    }
}

/// Why a plan is not carried out, whatever is answered.
fn refusal(context: &CommandContext, project: &Path, plan: &ExportPlan) -> Option<Error> {
    if let Some((item, reason)) = plan.refused.first() {
        let error =
            Error::new(Code::Untrusted, format!("nothing was written: {item} may not be exported: {reason}"));
        let (item_type, id) = item.split_once(':').unwrap_or(("TYPE", item));
        return Some(error.hint(format!("read it, then sign it: rye sign {item_type} {}", shell_word(id))));
    }
    if let Some((file, why)) = plan.first_conflict() {
        let error = Error::new(Code::InvalidArgument, format!("nothing was written: `{}` {why}", file.path));
        let hints = plan.conflict_hints(file, |path| shown_path(context, project, path));
        return Some(hints.into_iter().fold(error, Error::hint));
    }
    if plan.files.is_empty() && plan.states.is_empty() {
        let error = Error::new(Code::NotFound, "there is nothing to export");
        return Some(error.hint("import something, name an item, or mark one with `export: true`"));
    }
    None
}

/// How many files of a plan are written, removed and left as they are.
fn file_counts(plan: &ExportPlan) -> String {
    let count = |states: &[ExportState]| plan.in_state(states).count();
    let written = count(&[ExportState::Missing, ExportState::Stale]);
    let mut parts = vec![format!("{} written", counted(written, "file"))];
    for (word, number) in
        [("removed", count(&[ExportState::Obsolete])), ("already current", count(&[ExportState::Current]))]
    {
        if number > 0 {
            parts.push(format!("{number} {word}"));
        }
    }
    parts.join(", ")
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
        plan.show(output, arguments.dry_run);
    }
    let mut data = plan.to_value();
    let fail = |error: Error| CommandError::Engine(error, Some(Box::new(data.clone())));
    if let Some(error) = refusal(context, project, &plan) {
        return Err(fail(error));
    }
    let elsewhere: Vec<String> = plan.written_elsewhere().into_iter().map(str::to_owned).collect();
    let asks = context.settings.is_interactive && !output.is_json && !arguments.yes;
    if let Some(first) = elsewhere.first().filter(|_| !asks && !arguments.take_over && !arguments.dry_run) {
        let count = counted(elsewhere.len(), "file");
        let (was, and_first) = if elsewhere.len() == 1 { ("was", ":") } else { ("were", ", first") };
        let error = Error::new(
            Code::ConsentNeeded,
            format!(
                "nothing was written: {count} that would change {was} neither exported nor imported \
                 on this machine{and_first} `{first}`"
            ),
        );
        return Err(fail(error.hint(format!(
            "only the project's own record says otherwise: look at them, then: {}",
            given_command_with(&["--take-over"])
        ))));
    }
    let is_changed = !plan.is_current();
    if is_changed && !arguments.dry_run {
        let has_consent = arguments.yes || (asks && ask(context, &plan, elsewhere.len())?);
        if asks && !has_consent {
            return Err(declined(output, Code::ConsentNeeded));
        }
        if !has_consent {
            let error = Error::new(Code::ConsentNeeded, "nothing was written: exporting needs a yes");
            let hint = format!("read the plan, then: {}", given_command_with(&["--yes"]));
            return Err(fail(error.hint(hint)));
        }
        write(context, project, &mut plan)?;
    } else if !arguments.dry_run {
        plan.record_own(&[])?;
    }
    data["written"] = json!(is_changed && !arguments.dry_run);
    if output.is_json {
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    if arguments.dry_run && !elsewhere.is_empty() && !arguments.take_over {
        let count = counted(elsewhere.len(), "file");
        output.note(format_args!(
            "{count} not written or imported on this machine would change only with --take-over"
        ));
    }
    let counts = file_counts(&plan);
    let (word, counts) = match (is_changed, arguments.dry_run) {
        (true, true) => ("would export", counts),
        (true, false) => ("exported", counts),
        (false, _) => ("nothing changed", format!("{} current", counted(plan.files.len(), "file"))),
    };
    output.print(format_args!("{}: {counts} for {}", paint(SUCCESS, word), client.as_str()))?;
    if !arguments.dry_run
        && matches!(client, ExportClient::Codex | ExportClient::Cursor | ExportClient::Gemini)
    {
        output.note(format_args!(
            "tools and servers are reached over MCP: rye mcp install {}",
            client.as_str()
        ));
    }
    Ok(())
}

fn ask(context: &CommandContext, plan: &ExportPlan, elsewhere: usize) -> std::io::Result<bool> {
    let changes = plan.in_state(&[ExportState::Missing, ExportState::Stale, ExportState::Obsolete]).count();
    let removed = match plan.in_state(&[ExportState::Obsolete]).count() {
        0 => String::new(),
        count => format!(", {} of them deleted", counted(count, "file")),
    };
    let elsewhere = match elsewhere {
        0 => String::new(),
        count => format!(", {} not written or imported on this machine", counted(count, "file")),
    };
    let changes = counted(changes, "file");
    context.output.ask(format_args!("change {changes}{removed}{elsewhere}? [y/N]"));
    confirm()
}

fn write(context: &CommandContext, project: &Path, plan: &mut ExportPlan) -> Result<(), Error> {
    let obsolete: Vec<String> =
        plan.in_state(&[ExportState::Obsolete]).map(|file| file.path.clone()).collect();
    let written: Vec<String> =
        plan.in_state(&[ExportState::Missing, ExportState::Stale]).map(|file| file.path.clone()).collect();
    for file in &plan.files {
        if written.contains(&file.path) {
            let path = create_parents(project, &file.path)?;
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
    let record = create_parents(project, &record_path(plan.client))?;
    file::write_atomic(&record, plan.record.to_text().as_bytes(), FileMode::Preserve)?;
    if plan.needs_registration {
        let path = project.join(".mcp.json");
        let before = match file::read_beneath_no_symlinks(project, Path::new(".mcp.json"), MAX_FILE_BYTES) {
            Ok((bytes, _)) => Some(String::from_utf8_lossy(&bytes).into_owned()),
            Err(error) if error.is_absent() => None,
            Err(error) => return Err(Error::read(&error)),
        };
        let program = settings::started_as(&context.settings.working_dir);
        let after = clients::update_config(ClientApp::ClaudeCode, &program, before.as_deref())?;
        file::write_atomic(&path, after.as_bytes(), FileMode::Preserve)?;
    }
    Ok(())
}

/// Makes the folders of a file of the project, and gives its full path.
fn create_parents(project: &Path, relative: &str) -> Result<PathBuf, Error> {
    let relative = Path::new(relative);
    let folder = file::create_folders_beneath(project, relative.parent().unwrap_or(Path::new("")), false)?;
    Ok(folder.join(relative.file_name().unwrap_or_default()))
}

/// `rye export --check`
fn check(
    context: &CommandContext,
    project: &Path,
    client: Option<ExportClient>,
    named: &[String],
) -> CommandResult {
    let plans = check_plans(context, project, client, named)?;
    let output = &context.output;
    if !output.is_json {
        plans.iter().for_each(|plan| plan.show(output, true));
    }
    let data = json!({ "clients": plans.iter().map(ExportPlan::to_value).collect::<Vec<_>>() });
    let stale: Vec<&ExportPlan> = plans.iter().filter(|plan| !plan.is_current()).collect();
    if let Some(first) = stale.first() {
        let names: Vec<&str> = stale.iter().map(|plan| plan.client.as_str()).collect();
        let error = Error::new(Code::StaleExport, format!("stale exports: {}", names.join(", ")));
        let conflict = stale.iter().find_map(|plan| Some((plan, plan.first_conflict()?.0)));
        let hints = match conflict {
            Some((plan, file)) => plan.conflict_hints(file, |path| shown_path(context, project, path)),
            None => vec![format!("write them: rye export {}", first.client.as_str())],
        };
        let error = hints.into_iter().fold(error, Error::hint);
        return Err(CommandError::Engine(error, Some(Box::new(data))));
    }
    if output.is_json {
        output.print_json(&rye_engine::success_response(None, None, data))?;
        return Ok(());
    }
    let files: usize = plans.iter().map(|plan| plan.files.len()).sum();
    output.print(format_args!("{}: {}", paint(SUCCESS, "current"), counted(files, "file")))?;
    if plans.is_empty() {
        output.note("nothing was exported here yet: rye export CLIENT, such as rye export claude-code");
    }
    Ok(())
}

/// The plans that a check compares: of the client that is named; else of each that was exported for, and of the others
/// the files that items were imported from and that differ from what the items say.
fn check_plans(
    context: &CommandContext,
    project: &Path,
    client: Option<ExportClient>,
    named: &[String],
) -> Result<Vec<ExportPlan>, Error> {
    let engine = &context.engine;
    if let Some(client) = client {
        return Ok(vec![ExportPlan::read(engine, project, client, named)?]);
    }
    let is_used = |client: &ExportClient| project.join(record_path(*client)).is_file();
    let (used, others): (Vec<ExportClient>, Vec<ExportClient>) =
        ExportClient::ALL.into_iter().partition(is_used);
    let mut plans = Vec::new();
    for client in used {
        plans.push(ExportPlan::read(engine, project, client, named)?);
    }
    let mut seen: BTreeSet<String> =
        plans.iter().flat_map(|plan| &plan.states).map(|file| file.path.clone()).collect();
    for client in others {
        let plan = ExportPlan::read_sources(engine, project, client, &mut seen)?;
        if !plan.states.is_empty() {
            plans.push(plan);
        }
    }
    Ok(plans)
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
