//! `thread verify`: whether transcripts are what threads wrote; what a crash kept from an ended thread's transcript is
//! written again from the journal first, as by every command that reads it. `thread replay`: whether
//! the same answers lead to the same end.

use std::collections::BTreeSet;

use rye_agent::store::{ThreadFilter, ThreadRow, ThreadStoreError};
use rye_agent::thread_id::ThreadId;
use rye_agent::threads::ReplayedThread;
use rye_agent::views::{ThreadCheck, check_thread};
use rye_engine::Code;
use serde_json::{Value, json};

use super::runner;
use super::thread_index::ThreadIndex;
use crate::commands::{CommandContext, CommandResult, error_with_data};
use crate::live::format::{format_count, pluralize, truncate};
use crate::output::{DIM, ERROR, SUCCESS, WARNING, paint};

/// `rye thread verify`
pub fn verify(context: &CommandContext, word: Option<&str>) -> CommandResult {
    let (index, rows) = match word {
        Some(word) => {
            let (index, row) = ThreadIndex::open_thread(&context.settings, word)?;
            (Some(index), vec![row])
        }
        None => {
            let index = ThreadIndex::open(&context.settings)?;
            let rows =
                index.as_ref().map(|index| index.store.threads(&ThreadFilter::default())).transpose()?;
            (index, rows.unwrap_or_default())
        }
    };
    let mut all = Vec::new();
    if let Some(index) = &index {
        for row in &rows {
            all.push(check_thread(&context.engine, index, row, crate::settings::now_ms()));
        }
        if word.is_none() {
            all.extend(unregistered_threads(index, &rows));
        }
    }
    let age = index.as_ref().map(|index| index.store.freshness()).transpose()?.unwrap_or_default();
    let bad = all.iter().filter(|check| check.is_bad).count();
    let data = json!({
        "is_age_recorded": age.is_recorded,
        "is_other_store": age.is_replaced,
        "older": age.rolled_back,
        "missing": age.missing,
        "checked": all.len(),
        "valid": all.iter().filter(|check| check.state == "valid").count(),
        "bad": bad,
        "threads": all.iter().map(ThreadCheck::to_value).collect::<Vec<_>>(),
    });
    if !context.output.is_json {
        print_checks(context, &all)?;
    }
    if let (Some(index), false) = (&index, age.is_current()) {
        let what = age.problem().unwrap_or_default();
        let error = ThreadStoreError::Older { folder: index.dir.clone(), what };
        let hint = "if you restored this folder yourself: rye thread verify --accept-older";
        return Err(error_with_data(Code::StoreOlder, error.to_string(), hint, data));
    }
    if index.is_some() && !all.is_empty() && !age.is_recorded {
        context.output.note(
            "the latest position of these threads is not recorded: an older copy would not be detected",
        );
    }
    if bad > 0 {
        let message = format!("{} failed verification", pluralize(bad as u64, "transcript"));
        let hint = "the journal is intact unless the status is `forged`: rye thread show THREAD";
        return Err(error_with_data(Code::TranscriptTampered, message, hint, data));
    }
    context.print_if_json(Some("thread"), word, &data)?;
    Ok(())
}

/// `rye thread verify --accept-older`
pub fn accept_older(context: &CommandContext) -> CommandResult {
    let index = ThreadIndex::open(&context.settings)?;
    let count = match &index {
        Some(index) => {
            index.store.accept_older()?;
            index.store.threads(&ThreadFilter::default())?.len()
        }
        None => 0,
    };
    if !context.output.is_json {
        context.output.print(format_args!("{} accepted as the latest", pluralize(count as u64, "thread")))?;
    }
    context.print_if_json(Some("thread"), None, &json!({ "accepted": count }))?;
    Ok(())
}

/// Folders of threads that the registry does not know.
fn unregistered_threads(index: &ThreadIndex, rows: &[ThreadRow]) -> Vec<ThreadCheck> {
    let known: BTreeSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    let entries = std::fs::read_dir(&index.dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let unknown = names.filter(|name| !known.contains(name.as_str()));
    // A thread that began since the rows were read has a row meanwhile.
    let is_registered = |id: &ThreadId| index.store.thread(id).is_ok_and(|row| row.is_some());
    let mut unregistered: Vec<String> =
        unknown.filter(|name| ThreadId::parse(name).is_ok_and(|id| !is_registered(&id))).collect();
    unregistered.sort();
    unregistered
        .into_iter()
        .map(|id| ThreadCheck {
            id,
            directive: String::new(),
            state: "unknown",
            is_bad: true,
            report: None,
            problem: Some("the registry has no such thread".to_owned()),
        })
        .collect()
}

fn print_checks(context: &CommandContext, all: &[ThreadCheck]) -> CommandResult {
    if all.is_empty() {
        context.output.note("no threads here yet");
    }
    for check in all {
        let (mark, style) = match (check.is_bad, check.state) {
            (true, _) => ("✗", ERROR),
            (false, "valid") => ("✓", SUCCESS),
            (false, _) => ("◐", WARNING),
        };
        let state = check.state.replace('_', " ");
        let mut parts = vec![
            format!("{} {}", paint(style, mark), check.id),
            paint(style, state),
            truncate(&check.directive, 60),
        ];
        if let Some(report) = &check.report {
            parts.push(pluralize(report.events, "event"));
            parts.push(pluralize(report.checkpoints, "signature"));
            parts.extend(
                report.signed_until.map(|last| paint(DIM, format_args!("signed to {}", format_count(last)))),
            );
        }
        parts.retain(|part| !part.is_empty());
        context.output.print(parts.join(" · "))?;
        if let Some(problem) = &check.problem {
            context.output.print(format_args!("  {}", truncate(problem, 200)))?;
        }
        for problem in check.report.iter().flat_map(|report| &report.problems) {
            let what = truncate(&problem.what, 200);
            context.output.print(format_args!("  line {}: {what}", problem.line))?;
        }
    }
    Ok(())
}

/// `rye thread replay`
pub fn replay(context: CommandContext, word: &str) -> CommandResult {
    let (_, row) = ThreadIndex::open_thread(&context.settings, word)?;
    let CommandContext { settings, engine, output } = context;
    let runtime = runner::build_runtime()?;
    let threads = runner::open_threads(&settings, engine, None)?;
    let report = runtime.block_on(threads.replay(&row.id))?;
    let data = json!({
        "thread_id": row.id,
        "is_same": report.different().next().is_none(),
        "threads": report.threads.iter().map(replayed_value).collect::<Vec<_>>(),
    });
    for thread in &report.threads {
        let (id, directive) = (&thread.thread_id, &thread.directive);
        match &thread.difference {
            None => output.note(format_args!(
                "{} {directive} · {id} · {}",
                paint(SUCCESS, "✓"),
                pluralize(thread.turns, "turn")
            )),
            Some(difference) => {
                output.note(format_args!(
                    "{} {directive} · {id} · after {}: {}",
                    paint(ERROR, "✗"),
                    pluralize(difference.turn, "turn"),
                    difference.what
                ));
                for line in &difference.lines {
                    output.note(format_args!("    {}", rye_item::text::one_line(line)));
                }
            }
        }
    }
    let different = report.different().count();
    if different > 0 {
        let verb = if different == 1 { "differs" } else { "differ" };
        let message = format!("{} {verb} from what was recorded", pluralize(different as u64, "thread"));
        let hint = "no model was asked and no tool ran: `-` is the record, `+` what it is now";
        return Err(error_with_data(Code::ThreadFailed, message, hint, data));
    }
    if output.is_json {
        output.print_json(&rye_engine::success_response(Some("thread"), Some(word), data))?;
        return Ok(());
    }
    let outcome = report.threads.first().and_then(|thread| thread.outcome.as_ref());
    if let Some(result) = outcome.and_then(|outcome| outcome.result.as_deref()) {
        output.print(rye_item::text::strip_controls(result))?;
    }
    Ok(())
}

fn replayed_value(thread: &ReplayedThread) -> Value {
    json!({
        "thread_id": thread.thread_id,
        "directive": thread.directive,
        "turns": thread.turns,
        "status": thread.outcome.as_ref().map(|outcome| outcome.status),
        "difference": thread.difference.as_ref().map(|difference| {
            json!({"turn": difference.turn, "what": difference.what, "lines": difference.lines})
        }),
    })
}
