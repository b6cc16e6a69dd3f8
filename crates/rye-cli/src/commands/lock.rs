//! `rye lock`.

use rye_engine::Code;
use rye_engine::lockfiles::Entry;
use rye_engine::programs::{NewProgram, ProgramReview, Recorded, review_tools};
use rye_engine::verbs::lock::{
    self, Change, CheckReport, CheckState, Reach, RemovedLockfiles, Row, Shown, Standing, Updated,
    UpdatedAll, Verified,
};
use rye_engine::verbs::sign;
use rye_item::ItemRef;
use rye_item::text::counted;
use serde_json::json;

use super::{Context, Failure, Outcome, failed_with, programs};
use crate::arguments::{LockCommand, WritableSpace};
use crate::output::{BAD, CAUTION, DIM, GOOD, NAME, paint, shown_path};

/// Runs a command of `rye lock`.
pub fn run(context: &Context, command: &LockCommand) -> Outcome {
    let engine = &context.engine;
    let resolve = |item: &ItemRef| rye_engine::resolved::resolved(engine, item);
    match command {
        LockCommand::List { all } => {
            let reach = if *all { Reach::All } else { Reach::Own };
            show_list(context, &lock::list(engine, reach, &resolve))
        }
        LockCommand::Show { id } => {
            let item = sign::parse_item(Some("tool"), id)?;
            show_pinned(context, &item, &lock::show(engine, &item, &resolve)?)
        }
        LockCommand::Verify { id } => {
            let item = id.as_deref().map(|id| sign::parse_item(Some("tool"), id)).transpose()?;
            show_verified(context, item.as_ref(), &lock::verify(engine, item.as_ref(), &resolve)?)
        }
        LockCommand::Check { scope } => {
            show_checked(context, &lock::check(engine, scope.map(WritableSpace::tier), &resolve)?)
        }
        LockCommand::Update { id: Some(id), scope, yes, .. } => {
            let item = sign::parse_item(Some("tool"), id)?;
            let scope = scope.map(WritableSpace::tier);
            let review = reviewed(context, std::slice::from_ref(&item), *yes, item.id.as_str())?;
            let updated = lock::update(engine, &item, scope, &resolve)?;
            show_updated(context, &updated, review)
        }
        LockCommand::Update { id: None, scope, yes, .. } => {
            let tools = lock::pinnable_tools(engine, &resolve)?;
            let review = reviewed(context, &tools, *yes, "--all")?;
            let all = lock::update_all(engine, scope.map(WritableSpace::tier), &resolve)?;
            show_all_updated(context, &all, review)
        }
        LockCommand::Remove { id, scope } => {
            let item = sign::parse_item(Some("tool"), id)?;
            let scope = scope.map(WritableSpace::tier);
            show_removed(context, &item, &lock::remove(engine, &item, scope, &resolve)?)
        }
        LockCommand::Prune => show_pruned(context, &lock::prune(engine, &resolve)?),
    }
}

/// The programs of the project that the tools run on, once the user has seen what is new.
fn reviewed(
    context: &Context,
    tools: &[ItemRef],
    is_agreed: bool,
    what: &str,
) -> Result<ProgramReview, Failure> {
    let review = review_tools(&context.engine, tools)?;
    match programs::has_consent(&context.settings, &context.output, &review, is_agreed)? {
        true => Ok(review),
        false => Err(programs::refusal(&review, &format!("rye lock update {what} --yes"))),
    }
}

fn painted(state: Standing) -> String {
    let style = match state {
        Standing::Ok => GOOD,
        Standing::Stale => CAUTION,
        Standing::Mismatch | Standing::Downgrade | Standing::Corrupt | Standing::Refused => BAD,
        Standing::Gone | Standing::Elsewhere => DIM,
    };
    paint(style, state.as_str())
}

fn show_list(context: &Context, rows: &[Row]) -> Outcome {
    if context.answered(None, None, &json!({ "lockfiles": rows }))? {
        return Ok(());
    }
    if rows.is_empty() {
        context.output.note("no lockfiles yet: the first run of a tool that works makes one");
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
    context.output.result(table.trim_fmt())?;
    Ok(())
}

fn show_pinned(context: &Context, item: &ItemRef, lockfiles: &[Shown]) -> Outcome {
    let data = json!({ "lockfiles": lockfiles });
    if context.answered(Some("tool"), Some(item.id.as_str()), &data)? {
        return Ok(());
    }
    for shown in lockfiles {
        let row = &shown.row;
        context.output.result(format_args!(
            "{}@{} {} {}",
            paint(NAME, &row.tool_id),
            row.version,
            painted(row.state),
            paint(DIM, shown_path(&row.path))
        ))?;
        for (depth, entry) in shown.chain.iter().enumerate() {
            context.output.result(branch(depth, entry))?;
        }
        for (count, noun, place) in [(shown.files, "file", " beside it"), (shown.packages, "package", "")] {
            if count > 0 {
                context.output.result(format_args!("  and {}{place}", counted(count, noun)))?;
            }
        }
        if let Some(why) = &row.why {
            context.output.result(format_args!("  {}", rye_item::text::one_line(why)))?;
        }
    }
    Ok(())
}

/// One element of a pinned chain, one step further in than what runs on it.
fn branch(depth: usize, entry: &Entry) -> String {
    let stem = if depth == 0 { String::new() } else { format!("{}└─ ", "   ".repeat(depth - 1)) };
    format!(
        "  {stem}{} {} {}",
        rye_item::text::one_line(&entry.item_id),
        paint(DIM, rye_item::text::one_line(&entry.space)),
        paint(DIM, entry.integrity.chars().take(16).collect::<String>())
    )
}

fn show_verified(context: &Context, item: Option<&ItemRef>, answer: &Verified) -> Outcome {
    if !context.output.is_json {
        for row in &answer.lockfiles {
            let why = row.why.as_deref().map(|why| format!(": {}", rye_item::text::one_line(why)));
            let line = format!(
                "{} {}@{} {}{}",
                painted(row.state),
                paint(NAME, &row.tool_id),
                row.version,
                paint(DIM, shown_path(&row.path)),
                why.unwrap_or_default()
            );
            match row.state {
                Standing::Ok | Standing::Elsewhere => context.output.detail(line),
                Standing::Stale
                | Standing::Mismatch
                | Standing::Downgrade
                | Standing::Corrupt
                | Standing::Refused
                | Standing::Gone => context.output.result(line)?,
            }
        }
        context.output.result(summary(answer))?;
    }
    if answer.is_good() {
        let item_id = item.map(|item| item.id.as_str());
        context.answered(item.map(|_| "tool"), item_id, answer)?;
        return Ok(());
    }
    let differing = answer.mismatch + answer.downgrade + answer.refused;
    let bad = differing + answer.corrupt;
    let code = if differing > 0 { Code::LockMismatch } else { Code::LockCorrupt };
    let lockfiles = counted(answer.checked, "lockfile");
    let verb = if bad == 1 { "doesn't" } else { "don't" };
    let message = format!("{bad} of {lockfiles} {verb} match what would run now");
    let data = serde_json::to_value(answer).map_err(std::io::Error::from)?;
    let hint = "look at what changed; if it is right: rye lock update ID";
    match failed_with(code, message, hint, data) {
        Failure::Verb(mut error, data) => {
            error.item = item.map(|item| item.id.to_string());
            Err(Failure::Verb(error, data))
        }
        other @ (Failure::Output(_) | Failure::Ended(_)) => Err(other),
    }
}

fn summary(answer: &Verified) -> String {
    let parts = [
        ("ok", answer.ok),
        ("stale", answer.stale),
        ("mismatch", answer.mismatch),
        ("downgrade", answer.downgrade),
        ("corrupt", answer.corrupt),
        ("refused", answer.refused),
        ("gone", answer.gone),
        ("elsewhere", answer.elsewhere),
    ];
    let parts = parts.iter().filter(|(word, count)| *count > 0 || *word == "ok");
    let parts = parts.map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ");
    format!("{} checked: {parts}", counted(answer.checked, "lockfile"))
}

fn show_checked(context: &Context, report: &CheckReport) -> Outcome {
    if !context.output.is_json {
        for tool in &report.tools {
            let style = match tool.state {
                CheckState::Ok => GOOD,
                CheckState::Unpinned | CheckState::Stale => CAUTION,
                CheckState::Mismatch | CheckState::Corrupt | CheckState::Refused => BAD,
            };
            let why = tool.why.as_deref().map(|why| format!(": {}", rye_item::text::one_line(why)));
            let version = tool.version.as_deref().map(|version| format!("@{version}")).unwrap_or_default();
            let line = format!(
                "{} {}{version}{}",
                paint(style, tool.state.as_str()),
                paint(NAME, &tool.tool_id),
                why.unwrap_or_default()
            );
            match tool.state {
                CheckState::Ok => context.output.detail(line),
                CheckState::Unpinned
                | CheckState::Stale
                | CheckState::Mismatch
                | CheckState::Corrupt
                | CheckState::Refused => context.output.result(line)?,
            }
        }
        let tools = counted(report.checked, "tool");
        context.output.result(format_args!("{tools} checked: {} ok", report.ok))?;
    }
    match report.failure() {
        None => {
            context.answered(None, None, report)?;
            Ok(())
        }
        Some(error) => {
            let data = serde_json::to_value(report).map_err(std::io::Error::from)?;
            Err(Failure::Verb(error, Some(Box::new(data))))
        }
    }
}

/// What `rye lock update` answers as JSON.
#[derive(serde::Serialize)]
struct UpdateAnswer<'a, T> {
    #[serde(flatten)]
    updated: &'a T,
    /// The project's programs that the tools may run on.
    recorded: Recorded,
    new_programs: Vec<NewProgram>,
}

impl<'a, T> UpdateAnswer<'a, T> {
    fn new(context: &Context, updated: &'a T, review: ProgramReview) -> Result<Self, Failure> {
        let new_programs = review.new.clone();
        Ok(Self { updated, new_programs, recorded: review.record(&context.engine)? })
    }
}

fn show_all_updated(context: &Context, all: &UpdatedAll, review: ProgramReview) -> Outcome {
    let answer = UpdateAnswer::new(context, all, review)?;
    if !context.output.is_json {
        programs::show_recorded(&context.output, &answer.recorded);
        for updated in &all.tools {
            draw_updated(context, updated, false)?;
        }
        for failed in &all.failed {
            let error = rye_item::text::one_line(&failed.error);
            let word = paint(BAD, "refused");
            context.output.result(format_args!("{word} {}: {error}", paint(NAME, &failed.tool_id)))?;
            for hint in &failed.hints {
                context.output.note(format_args!("  {}", rye_item::text::one_line(hint)));
            }
        }
        if all.tools.is_empty() && all.failed.is_empty() {
            context.output.note("no tools to pin");
        }
    }
    match all.failure() {
        None => {
            context.answered(None, None, &answer)?;
            Ok(())
        }
        Some(error) => {
            let data = serde_json::to_value(&answer).map_err(std::io::Error::from)?;
            Err(Failure::Verb(error, Some(Box::new(data))))
        }
    }
}

fn show_removed(context: &Context, item: &ItemRef, answer: &RemovedLockfiles) -> Outcome {
    if context.answered(Some("tool"), Some(item.id.as_str()), answer)? {
        return Ok(());
    }
    for (rows, word) in [(&answer.removed, paint(CAUTION, "removed")), (&answer.kept, paint(DIM, "kept"))] {
        for row in rows {
            let why = row.why.as_deref().map(|why| format!(": {}", rye_item::text::one_line(why)));
            context.output.result(format_args!(
                "{word} {}@{} {}{}",
                paint(NAME, &row.tool_id),
                row.version,
                paint(DIM, shown_path(&row.path)),
                why.unwrap_or_default()
            ))?;
        }
    }
    Ok(())
}

fn show_updated(context: &Context, updated: &Updated, review: ProgramReview) -> Outcome {
    let answer = UpdateAnswer::new(context, updated, review)?;
    if context.answered(Some("tool"), Some(&updated.tool_id), &answer)? {
        warn_remaining(context, updated);
        return Ok(());
    }
    programs::show_recorded(&context.output, &answer.recorded);
    draw_updated(context, updated, true)
}

fn warn_remaining(context: &Context, updated: &Updated) {
    if let Some(remaining) = &updated.remaining {
        let remaining = rye_item::text::one_line(remaining);
        context.output.warn(format_args!(
            "it would still be refused: {remaining}; if that is right too: rye lock update {}",
            updated.tool_id
        ));
    }
}

fn draw_updated(context: &Context, updated: &Updated, with_chain: bool) -> Outcome {
    warn_remaining(context, updated);
    for file in &updated.lockfiles {
        let word = match file.change {
            Change::Made => paint(GOOD, "pinned"),
            Change::Replaced => paint(GOOD, "updated"),
            Change::Unchanged => paint(DIM, "unchanged"),
            Change::Removed => paint(CAUTION, "removed"),
        };
        context.output.result(format_args!(
            "{word} {}@{} {}",
            paint(NAME, &updated.tool_id),
            rye_item::text::one_line(&updated.version),
            paint(DIM, shown_path(&file.path))
        ))?;
        for change in &file.changes {
            context.output.result(format_args!("  • {change}"))?;
        }
        if let Some(why) = &file.why {
            context.output.result(format_args!("  • {}", rye_item::text::one_line(why)))?;
        }
        if file.change == Change::Made && with_chain {
            for (depth, entry) in updated.chain.iter().enumerate() {
                context.output.result(branch(depth, entry))?;
            }
        }
    }
    Ok(())
}

fn show_pruned(context: &Context, removed: &[Row]) -> Outcome {
    if context.answered(None, None, &json!({ "removed": removed }))? {
        return Ok(());
    }
    for row in removed {
        context.output.result(format_args!(
            "{} {}@{} {}: {}",
            paint(CAUTION, "removed"),
            paint(NAME, &row.tool_id),
            row.version,
            paint(DIM, shown_path(&row.path)),
            row.why.as_deref().map(rye_item::text::one_line).unwrap_or_default()
        ))?;
    }
    if removed.is_empty() {
        context.output.note("nothing to remove");
    }
    Ok(())
}
