//! `rye lock`.

use rye_engine::lockfiles::LockedElement;
use rye_engine::programs::{NewProgram, ProgramRecordReport, ProgramReview, review_tools};
use rye_engine::verbs::load;
use rye_engine::verbs::lock::{
    self, LockCheckReport, LockListScope, LockUpdate, LockUpdateReport, LockVerifyReport, LockfileChange,
    LockfileDetails, LockfileRow, LockfileStatus, RemovedLockfiles, ToolLockState, UpdatedLockfile,
};
use rye_engine::{Code, Error};
use rye_item::space::SpaceTier;
use rye_item::text::counted;
use rye_item::{ItemRef, ItemType};
use serde_json::json;

use super::given_command::given_command_with;
use super::{CommandContext, CommandError, CommandResult, error_with_data, programs};
use crate::arguments::{LockCommand, WritableSpace};
use crate::output::{DIM, ERROR, NAME, SUCCESS, WARNING, display_path, paint};

/// Runs a command of `rye lock`.
pub fn run(context: &CommandContext, command: &LockCommand) -> CommandResult {
    let engine = &context.engine;
    let resolve = |item: &ItemRef| rye_engine::resolve::resolve_tool(engine, item);
    match command {
        LockCommand::List { all } => {
            let reach = if *all { LockListScope::All } else { LockListScope::ProjectAndUser };
            show_list(context, &lock::list(engine, reach, &resolve))
        }
        LockCommand::Show { id } => {
            let item = find_tool(context, id)?;
            let shown = lock::show(engine, &item, &resolve);
            show_lockfiles(context, &item, &shown.map_err(|error| hint_meant(context, &item, error))?)
        }
        LockCommand::Verify { id } => {
            let item = (!id.is_empty()).then(|| find_tool(context, id)).transpose()?;
            show_verification(context, item.as_ref(), &lock::verify(engine, item.as_ref(), &resolve)?)
        }
        LockCommand::Check { scope } => {
            show_check(context, &lock::check(engine, scope.map(WritableSpace::tier), &resolve)?)
        }
        LockCommand::Update { id, scope, yes, .. } if !id.is_empty() => {
            let item = find_tool(context, id)?;
            let scope = scope.map(WritableSpace::tier);
            let review = reviewed(context, std::slice::from_ref(&item), *yes)?;
            let updated = lock::update(engine, &item, scope, &resolve)?;
            show_update(context, &updated, review)
        }
        LockCommand::Update { scope, yes, .. } => {
            let tools = lock::pinnable_tools(engine, &resolve)?;
            let review = reviewed(context, &tools, *yes)?;
            let all = lock::update_all(engine, scope.map(WritableSpace::tier), &resolve)?;
            show_update_all(context, &all, review)
        }
        LockCommand::Remove { id, scope } => {
            let item = find_tool(context, id)?;
            let scope = scope.map(WritableSpace::tier);
            let removed = lock::remove(engine, &item, scope, &resolve);
            show_removal(context, &item, &removed.map_err(|error| hint_meant(context, &item, error))?)
        }
        LockCommand::Prune => show_prune(context, &lock::prune(engine, &resolve)?),
    }
}

/// The tool that is named: `ID`, `tool ID` or `tool:ID`. Its file need not be there any more.
fn find_tool(context: &CommandContext, words: &[String]) -> Result<ItemRef, Error> {
    let item = match words {
        [id] if id.contains(':') => ItemRef::parse(None, id)?,
        // Only what is something else alone is not taken for a tool.
        [id] => match load::find_by_id(&context.engine, id, None) {
            Ok(found) => found,
            Err(_) => ItemRef::parse(Some("tool"), id)?,
        },
        [item_type, id] => ItemRef::parse(Some(item_type), id)?,
        _ => {
            return Err(Error::new(Code::InvalidArgument, "no tool given").hint("rye list tool"));
        }
    };
    match item.item_type {
        ItemType::Tool => Ok(item),
        ItemType::Directive | ItemType::Knowledge | ItemType::Config => {
            let message = format!("{item} has no lockfile: only tools are pinned");
            Err(Error::new(Code::InvalidArgument, message).hint("tools are listed by: rye list tool"))
        }
    }
}

/// The failure to find a lockfile; if there is no such tool either, with the tool that was likely meant.
fn hint_meant(context: &CommandContext, item: &ItemRef, mut error: Error) -> Error {
    let candidates = context.engine.workspace.spaces.candidate_paths(item);
    if !candidates.iter().any(|candidate| candidate.is_found) {
        error.hints = context.engine.missing_item(item).hints;
        error.hints.push("what is pinned: rye lock list".to_owned());
    }
    error
}

/// The programs of the project that the tools run on, once the user has seen what is new.
fn reviewed(
    context: &CommandContext,
    tools: &[ItemRef],
    is_agreed: bool,
) -> Result<ProgramReview, CommandError> {
    let review = review_tools(&context.engine, tools)?;
    match programs::has_consent(&context.settings, &context.output, &review, is_agreed)? {
        true => Ok(review),
        false => Err(programs::refusal(&review, &given_command_with(&["--yes"]))),
    }
}

fn paint_state(state: LockfileStatus) -> String {
    let style = match state {
        LockfileStatus::Ok => SUCCESS,
        LockfileStatus::Stale => WARNING,
        LockfileStatus::Mismatch
        | LockfileStatus::Downgrade
        | LockfileStatus::Corrupt
        | LockfileStatus::Refused => ERROR,
        LockfileStatus::Gone | LockfileStatus::Elsewhere => DIM,
    };
    paint(style, state.as_str())
}

fn show_list(context: &CommandContext, rows: &[LockfileRow]) -> CommandResult {
    if context.print_if_json(None, None, &json!({ "lockfiles": rows }))? {
        return Ok(());
    }
    if rows.is_empty() {
        context.output.note("no lockfiles yet: a tool's first successful run creates one");
        return Ok(());
    }
    let mut table = context.output.table(&["tool", "version", "scope", "generated", "state", "why"]);
    for row in rows {
        let generated = row.generated_at.as_deref().map(|moment| moment.chars().take(10).collect::<String>());
        table.add_row([
            row.tool_id.clone(),
            row.version.clone(),
            row.scope.to_string(),
            generated.unwrap_or_default(),
            row.state.as_str().to_owned(),
            row.why.as_deref().map(rye_item::text::one_line).unwrap_or_default(),
        ]);
    }
    context.output.print(table.trim_fmt())?;
    Ok(())
}

fn show_lockfiles(context: &CommandContext, item: &ItemRef, lockfiles: &[LockfileDetails]) -> CommandResult {
    let data = json!({ "lockfiles": lockfiles });
    if context.print_if_json(Some("tool"), Some(item.id.as_str()), &data)? {
        return Ok(());
    }
    for lockfile in lockfiles {
        let row = &lockfile.row;
        context.output.print(format_args!(
            "{}@{} {} {}",
            paint(NAME, &row.tool_id),
            row.version,
            paint_state(row.state),
            paint(DIM, display_path(&row.path))
        ))?;
        for (depth, entry) in lockfile.chain.iter().enumerate() {
            context.output.print(format_element(depth, entry))?;
        }
        for (count, noun, place) in
            [(lockfile.files, "file", " beside it"), (lockfile.packages, "package", "")]
        {
            if count > 0 {
                context.output.print(format_args!("  and {}{place}", counted(count, noun)))?;
            }
        }
        if let Some(reason) = &row.why {
            context.output.print(format_args!("  {}", rye_item::text::one_line(reason)))?;
        }
    }
    Ok(())
}

/// One element of a pinned chain, one step further in than what runs on it.
fn format_element(depth: usize, entry: &LockedElement) -> String {
    let stem = if depth == 0 { String::new() } else { format!("{}└─ ", "   ".repeat(depth - 1)) };
    format!(
        "  {stem}{} {} {}",
        rye_item::text::one_line(&entry.item_id),
        paint(DIM, rye_item::text::one_line(&entry.space)),
        paint(DIM, entry.integrity.chars().take(16).collect::<String>())
    )
}

fn show_verification(
    context: &CommandContext,
    item: Option<&ItemRef>,
    report: &LockVerifyReport,
) -> CommandResult {
    if !context.output.is_json {
        for row in &report.lockfiles {
            let reason = row.why.as_deref().map(|reason| format!(": {}", rye_item::text::one_line(reason)));
            let line = format!(
                "{} {}@{} {}{}",
                paint_state(row.state),
                paint(NAME, &row.tool_id),
                row.version,
                paint(DIM, display_path(&row.path)),
                reason.unwrap_or_default()
            );
            match row.state {
                LockfileStatus::Ok | LockfileStatus::Elsewhere => context.output.detail(line),
                LockfileStatus::Stale
                | LockfileStatus::Mismatch
                | LockfileStatus::Downgrade
                | LockfileStatus::Corrupt
                | LockfileStatus::Refused
                | LockfileStatus::Gone => context.output.print(line)?,
            }
        }
        context.output.print(summary(report))?;
    }
    if report.is_ok() {
        let item_id = item.map(|item| item.id.as_str());
        context.print_if_json(item.map(|_| "tool"), item_id, report)?;
        return Ok(());
    }
    let differing = report.mismatch + report.downgrade + report.refused;
    let bad = differing + report.corrupt;
    let code = if differing > 0 { Code::LockMismatch } else { Code::LockCorrupt };
    let lockfiles = counted(report.checked, "lockfile");
    let verb = if bad == 1 { "doesn't" } else { "don't" };
    let message = format!("{bad} of {lockfiles} {verb} match what would run now");
    let data = serde_json::to_value(report).map_err(std::io::Error::from)?;
    let hint = "review what changed; if it is intended: rye lock update ID";
    match error_with_data(code, message, hint, data) {
        CommandError::Engine(mut error, data) => {
            error.item = item.map(|item| item.id.to_string());
            Err(CommandError::Engine(error, data))
        }
        other @ (CommandError::Output(_) | CommandError::Exit(_)) => Err(other),
    }
}

fn summary(report: &LockVerifyReport) -> String {
    let parts = [
        ("ok", report.ok),
        ("stale", report.stale),
        ("mismatch", report.mismatch),
        ("downgrade", report.downgrade),
        ("corrupt", report.corrupt),
        ("refused", report.refused),
        ("gone", report.gone),
        ("elsewhere", report.elsewhere),
    ];
    let parts = parts.iter().filter(|(word, count)| *count > 0 || *word == "ok");
    let parts = parts.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ");
    format!("{} checked: {parts}", counted(report.checked, "lockfile"))
}

fn show_check(context: &CommandContext, report: &LockCheckReport) -> CommandResult {
    if !context.output.is_json {
        for tool in &report.tools {
            let style = match tool.state {
                ToolLockState::Ok => SUCCESS,
                ToolLockState::Unpinned | ToolLockState::Stale => WARNING,
                ToolLockState::Mismatch | ToolLockState::Corrupt | ToolLockState::Refused => ERROR,
            };
            let reason = tool.why.as_deref().map(|reason| format!(": {}", rye_item::text::one_line(reason)));
            let version = tool.version.as_deref().map(|version| format!("@{version}")).unwrap_or_default();
            let line = format!(
                "{} {}{version}{}",
                paint(style, tool.state.as_str()),
                paint(NAME, &tool.tool_id),
                reason.unwrap_or_default()
            );
            match tool.state {
                ToolLockState::Ok => context.output.detail(line),
                ToolLockState::Unpinned
                | ToolLockState::Stale
                | ToolLockState::Mismatch
                | ToolLockState::Corrupt
                | ToolLockState::Refused => context.output.print(line)?,
            }
        }
        let tools = counted(report.checked, "tool");
        context.output.print(format_args!("{tools} checked: {} ok", report.ok))?;
    }
    match report.failure() {
        None => {
            context.print_if_json(None, None, report)?;
            Ok(())
        }
        Some(error) => {
            let data = serde_json::to_value(report).map_err(std::io::Error::from)?;
            Err(CommandError::Engine(error, Some(Box::new(data))))
        }
    }
}

/// What `rye lock update` answers as JSON.
#[derive(serde::Serialize)]
struct UpdateAnswer<'a, T> {
    #[serde(flatten)]
    updated: &'a T,
    /// The project's programs that the tools may run on.
    recorded: ProgramRecordReport,
    new_programs: Vec<NewProgram>,
}

impl<'a, T> UpdateAnswer<'a, T> {
    fn new(context: &CommandContext, updated: &'a T, review: ProgramReview) -> Result<Self, CommandError> {
        let new_programs = review.new.clone();
        Ok(Self { updated, new_programs, recorded: review.record(&context.engine)? })
    }
}

/// Says that a lockfile of the project is for others too.
fn note_commit(context: &CommandContext, updates: &[LockUpdate]) {
    let is_new =
        |file: &UpdatedLockfile| file.scope == SpaceTier::Project && file.change != LockfileChange::Unchanged;
    if updates.iter().flat_map(|update| &update.lockfiles).any(is_new) {
        context.output.note("commit lockfiles/ with .ai: it pins them for the team");
    }
}

fn show_update_all(context: &CommandContext, all: &LockUpdateReport, review: ProgramReview) -> CommandResult {
    let answer = UpdateAnswer::new(context, all, review)?;
    if !context.output.is_json {
        programs::show_recorded(&context.output, &answer.recorded);
        for updated in &all.tools {
            print_update(context, updated, false)?;
        }
        for failed in &all.failed {
            let error = rye_item::text::one_line(&failed.error);
            let word = paint(ERROR, "refused");
            context.output.print(format_args!("{word} {}: {error}", paint(NAME, &failed.tool_id)))?;
            for hint in &failed.hints {
                context.output.note(format_args!("  {}", rye_item::text::one_line(hint)));
            }
        }
        if all.tools.is_empty() && all.failed.is_empty() {
            context.output.note("no tools to pin");
        }
        note_commit(context, &all.tools);
    }
    match all.failure() {
        None => {
            context.print_if_json(None, None, &answer)?;
            Ok(())
        }
        Some(error) => {
            let data = serde_json::to_value(&answer).map_err(std::io::Error::from)?;
            Err(CommandError::Engine(error, Some(Box::new(data))))
        }
    }
}

fn show_removal(context: &CommandContext, item: &ItemRef, report: &RemovedLockfiles) -> CommandResult {
    if context.print_if_json(Some("tool"), Some(item.id.as_str()), report)? {
        return Ok(());
    }
    for (rows, word) in [(&report.removed, paint(WARNING, "removed")), (&report.kept, paint(DIM, "kept"))] {
        for row in rows {
            let reason = row.why.as_deref().map(|reason| format!(": {}", rye_item::text::one_line(reason)));
            context.output.print(format_args!(
                "{word} {}@{} {}{}",
                paint(NAME, &row.tool_id),
                row.version,
                paint(DIM, display_path(&row.path)),
                reason.unwrap_or_default()
            ))?;
        }
    }
    Ok(())
}

fn show_update(context: &CommandContext, updated: &LockUpdate, review: ProgramReview) -> CommandResult {
    let answer = UpdateAnswer::new(context, updated, review)?;
    if context.print_if_json(Some("tool"), Some(&updated.tool_id), &answer)? {
        warn_remaining(context, updated);
        return Ok(());
    }
    programs::show_recorded(&context.output, &answer.recorded);
    print_update(context, updated, true)?;
    note_commit(context, std::slice::from_ref(updated));
    Ok(())
}

fn warn_remaining(context: &CommandContext, updated: &LockUpdate) {
    if let Some(remaining) = &updated.remaining {
        let remaining = rye_item::text::one_line(remaining);
        context.output.warn(format_args!(
            "it would still be refused: {remaining}; if that is intended too: rye lock update {}",
            updated.tool_id
        ));
    }
}

fn print_update(context: &CommandContext, updated: &LockUpdate, with_chain: bool) -> CommandResult {
    warn_remaining(context, updated);
    for file in &updated.lockfiles {
        let word = match file.change {
            LockfileChange::Created => paint(SUCCESS, "pinned"),
            LockfileChange::Replaced => paint(SUCCESS, "updated"),
            LockfileChange::Unchanged => paint(DIM, "unchanged"),
            LockfileChange::Removed => paint(WARNING, "removed"),
        };
        context.output.print(format_args!(
            "{word} {}@{} {}",
            paint(NAME, &updated.tool_id),
            rye_item::text::one_line(&updated.version),
            paint(DIM, display_path(&file.path))
        ))?;
        for change in &file.changes {
            context.output.print(format_args!("  • {change}"))?;
        }
        if let Some(reason) = &file.why {
            context.output.print(format_args!("  • {}", rye_item::text::one_line(reason)))?;
        }
        if file.change == LockfileChange::Created && with_chain {
            for (depth, entry) in updated.chain.iter().enumerate() {
                context.output.print(format_element(depth, entry))?;
            }
        }
    }
    Ok(())
}

fn show_prune(context: &CommandContext, removed: &[LockfileRow]) -> CommandResult {
    if context.print_if_json(None, None, &json!({ "removed": removed }))? {
        return Ok(());
    }
    for row in removed {
        context.output.print(format_args!(
            "{} {}@{} {}: {}",
            paint(WARNING, "removed"),
            paint(NAME, &row.tool_id),
            row.version,
            paint(DIM, display_path(&row.path)),
            row.why.as_deref().map(rye_item::text::one_line).unwrap_or_default()
        ))?;
    }
    if removed.is_empty() {
        context.output.note("nothing to remove");
    }
    Ok(())
}
