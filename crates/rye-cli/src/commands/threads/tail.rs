//! `thread tail` and `thread transcript`: what threads do and did, read from their transcripts. Works from any process.

use std::collections::BTreeMap;
use std::time::Duration;

use rye_agent::status::ThreadStatus;
use rye_agent::store::ThreadRow;
use rye_agent::thread_id::ThreadId;
use rye_agent::transcript::{self, PageHeader, TranscriptEvent, TranscriptPosition};
use rye_engine::{Code, Error};
use serde_json::Value;

use super::thread_index::ThreadIndex;
use crate::commands::{CommandContext, CommandResult, background};
use crate::live::format::truncate;
use crate::live::view::{ThreadView, ViewOptions};
use crate::output::{DIM, WARNING, paint};

/// How often files and store are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Events that are read at a time.
const BATCH_SIZE: usize = 1000;

/// `rye thread tail`
pub fn tail(context: &CommandContext, word: Option<&str>, with_tree: bool) -> CommandResult {
    let (index, row) = match word {
        Some(word) => ThreadIndex::open_thread(&context.settings, word)?,
        None => ThreadIndex::open_latest(&context.settings)?,
    };
    let mut view = ThreadView::new(ViewOptions {
        stream: false,
        show_inner_calls: with_tree,
        is_verbose: context.output.is_verbose(),
        omit_reason: false,
        width: context.output.width(),
    });
    view.set_root(row.id.as_str(), 0, 0, rye_agent::money::Nanos(0));
    let mut positions: BTreeMap<ThreadId, TranscriptPosition> =
        BTreeMap::from([(row.id.clone(), TranscriptPosition::default())]);
    let mut version = None;
    loop {
        // Looked at before the files: whatever was written by the time it had ended is read below.
        let now = index.store.data_version()?;
        let mut has_stopped = false;
        if version != Some(now) {
            version = Some(now);
            if with_tree {
                for descendant in index.store.subtree(&row.id)? {
                    let depth =
                        usize::try_from(descendant.depth.saturating_sub(row.depth)).unwrap_or_default();
                    view.add_child(descendant.id.as_str(), &descendant.directive, depth);
                    positions.entry(descendant.id).or_default();
                }
            }
        }
        let mut current = index.store.thread(&row.id)?;
        if current.as_ref().is_some_and(|row| row.is_detached && index.is_interrupted(row)) {
            // The store knows whether it is resumed elsewhere.
            background::resume_abandoned(context)?;
            current = index.store.thread(&row.id)?;
        }
        has_stopped |= current.as_ref().is_none_or(|row| !index.is_active(row));
        if has_stopped && with_tree {
            // Detached children may still be running.
            has_stopped = !index.store.subtree(&row.id)?.iter().any(|descendant| index.is_active(descendant));
        }
        let mut is_quiet = true;
        let mut events = Vec::new();
        for (id, position) in &mut positions {
            if has_stopped && *position == TranscriptPosition::default() {
                index.rebuild_files(id, crate::settings::now_ms());
            }
            let path = index.transcript_path(id);
            let batch = transcript::read(&path, *position, BATCH_SIZE)?;
            is_quiet &= batch.next == *position;
            *position = batch.next;
            events.extend(batch.events);
        }
        // Each transcript is in order; among them the time tells.
        events.sort_by(|one, other| one.timestamp.cmp(&other.timestamp));
        print_events(context, &mut view, &events)?;
        if is_quiet && has_stopped {
            if let Some(row) = &current {
                ensure_lines(&index, row)?;
            }
            return print_end(context, &index, &mut view, current.as_ref());
        }
        if is_quiet {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

fn print_events(
    context: &CommandContext,
    view: &mut ThreadView,
    events: &[TranscriptEvent],
) -> CommandResult {
    for event in events {
        if context.output.is_json {
            context.output.print_json_line(&event.raw)?;
            continue;
        }
        for line in view.handle_event(&event.raw) {
            context.output.print(line)?;
        }
    }
    Ok(())
}

/// What is left to say: the last words, and how to continue.
fn print_end(
    context: &CommandContext,
    index: &ThreadIndex,
    view: &mut ThreadView,
    row: Option<&ThreadRow>,
) -> CommandResult {
    if context.output.is_json {
        return Ok(());
    }
    for line in view.flush() {
        context.output.print(line)?;
    }
    let Some(row) = row.filter(|row| !row.status.is_terminal()) else {
        return Ok(());
    };
    if index.is_interrupted(row) {
        let reason = truncate(row.note.as_deref().unwrap_or("its process is gone"), 200);
        context.output.note(paint(WARNING, format_args!("interrupted: {reason}")));
    }
    if let Some(command) = index.next_command(row) {
        context.output.note(format_args!("to continue: {command}"));
    }
    Ok(())
}

/// `rye thread transcript`: of a thread and of those it was continued by.
pub fn transcript(context: &CommandContext, word: &str, as_markdown: bool) -> CommandResult {
    let (index, row) = ThreadIndex::open_thread(&context.settings, word)?;
    let chain = index.store.chain(&row)?;
    let from = chain.iter().position(|one| one.id == row.id).unwrap_or(0);
    for row in &chain[from..] {
        print_transcript(context, &index, row, as_markdown)?;
    }
    Ok(())
}

fn print_transcript(
    context: &CommandContext,
    index: &ThreadIndex,
    row: &ThreadRow,
    as_markdown: bool,
) -> CommandResult {
    index.rebuild_files(&row.id, crate::settings::now_ms());
    ensure_lines(index, row)?;
    let path = index.transcript_path(&row.id);
    if as_markdown && !context.output.is_json {
        let events = transcript::read(&path, TranscriptPosition::default(), usize::MAX)?.events;
        let about = PageHeader { directive: &row.directive, status: row.status, cost: row.cost };
        let page = transcript::render_markdown(&about, &events);
        context.output.print_raw(&rye_item::text::strip_controls(&page))?;
        return Ok(());
    }
    let mut position = TranscriptPosition::default();
    loop {
        let batch = transcript::read(&path, position, BATCH_SIZE)?;
        for event in &batch.events {
            if context.output.is_json {
                context.output.print_json_line(&event.raw)?;
            } else if !event.is_droppable {
                print_event(context, event)?;
            }
        }
        for line in &batch.bad_lines {
            context.output.warn(format_args!("line {line} of the transcript is not an event"));
        }
        if batch.next == position {
            return Ok(());
        }
        position = batch.next;
    }
}

/// Refuses a transcript without a line, of a thread that has stopped and has written some: no lines would look like no events.
fn ensure_lines(index: &ThreadIndex, row: &ThreadRow) -> CommandResult {
    let path = index.transcript_path(&row.id);
    let is_empty = std::fs::metadata(&path).map_or(0, |metadata| metadata.len()) == 0;
    let has_stopped = row.status.is_terminal() || row.status == ThreadStatus::Suspended;
    if !is_empty || row.transcript_head.is_none() || !has_stopped {
        return Ok(());
    }
    let error = Error::new(Code::TranscriptTampered, format!("the transcript of {} is missing", row.id))
        .detail("thread_id", row.id.as_str())
        .detail("path", path.to_string_lossy())
        .hint(format!("see what the store has of it: rye thread show {}", row.id));
    Err(error.into())
}

/// One event: when, what, and its payload.
fn print_event(context: &CommandContext, event: &TranscriptEvent) -> CommandResult {
    let clean = rye_item::text::one_line;
    let time = event.timestamp.get(11..23).unwrap_or(&event.timestamp);
    context.output.print(format_args!("{} {}", paint(DIM, clean(time)), clean(&event.event_type)))?;
    for (name, value) in event.payload.as_object().into_iter().flatten() {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => rye_item::text::strip_controls(text).into_owned(),
            other => rye_item::text::strip_controls(&other.to_string()).into_owned(),
        };
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        context.output.print(format_args!("  {} {first}", paint(DIM, clean(name))))?;
        for line in lines {
            context.output.print(format_args!("    {line}"))?;
        }
    }
    Ok(())
}
