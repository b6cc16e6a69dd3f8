//! `thread tail` and `thread transcript`: what threads do and did, read from their transcripts. Works from any process.

use std::collections::BTreeMap;
use std::time::Duration;

use rye_agent::store::ThreadRow;
use rye_agent::thread_id::ThreadId;
use rye_agent::transcript::{self, About, Event, Position};
use serde_json::Value;

use super::shelf::Shelf;
use crate::commands::{Context, Outcome, background};
use crate::live::view::{Manner, View};
use crate::live::words::short;
use crate::output::{CAUTION, DIM, paint};

/// How often files and store are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Events that are read at a time.
const AT_A_TIME: usize = 1000;

/// `rye thread tail`
pub fn tail(context: &Context, word: &str, with_tree: bool) -> Outcome {
    let (shelf, row) = Shelf::with(&context.settings, word)?;
    let mut view = View::new(Manner {
        streams: false,
        shows_inner_calls: with_tree,
        is_verbose: context.output.is_verbose(),
        leaves_reason: false,
        width: context.output.width(),
    });
    view.begin(row.id.as_str(), 0, 0, rye_agent::money::Nanos(0));
    let mut places: BTreeMap<ThreadId, Position> = BTreeMap::from([(row.id.clone(), Position::default())]);
    let mut version = None;
    loop {
        // Looked at before the files: whatever was written by the time it had ended is read below.
        let now = shelf.store.data_version()?;
        let mut has_stopped = false;
        if version != Some(now) {
            version = Some(now);
            if with_tree {
                for below in shelf.store.subtree(&row.id)? {
                    let depth = usize::try_from(below.depth.saturating_sub(row.depth)).unwrap_or_default();
                    view.know(below.id.as_str(), &below.directive, depth);
                    places.entry(below.id).or_default();
                }
            }
        }
        let mut current = shelf.store.thread(&row.id)?;
        if current.as_ref().is_some_and(|row| row.is_detached && shelf.is_interrupted(row)) {
            // Whether or not somebody goes on with it, the store knows.
            background::revive(context)?;
            current = shelf.store.thread(&row.id)?;
        }
        has_stopped |= current.as_ref().is_none_or(|row| !is_at_work(&shelf, row));
        if has_stopped && with_tree {
            // Those that nobody waited for may still be at work.
            has_stopped = !shelf.store.subtree(&row.id)?.iter().any(|below| is_at_work(&shelf, below));
        }
        let mut is_quiet = true;
        let mut events = Vec::new();
        for (id, place) in &mut places {
            let path = transcript::path(&shelf.folder, id);
            let batch = transcript::read(&path, *place, AT_A_TIME)?;
            is_quiet &= batch.next == *place;
            *place = batch.next;
            events.extend(batch.events);
        }
        // Each transcript is in order; among them the time tells.
        events.sort_by(|one, other| one.timestamp.cmp(&other.timestamp));
        show(context, &mut view, &events)?;
        if is_quiet && has_stopped {
            return end(context, &shelf, &mut view, current.as_ref());
        }
        if is_quiet {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

fn is_at_work(shelf: &Shelf, row: &ThreadRow) -> bool {
    use rye_agent::status::Status;
    matches!(row.status, Status::Created | Status::Running) && !shelf.is_interrupted(row)
}

fn show(context: &Context, view: &mut View, events: &[Event]) -> Outcome {
    for event in events {
        if context.output.is_json {
            context.output.json_line(&event.raw)?;
            continue;
        }
        for line in view.event(&event.raw) {
            context.output.result(line)?;
        }
    }
    Ok(())
}

/// What is left to say: the last words, and how to go on.
fn end(context: &Context, shelf: &Shelf, view: &mut View, row: Option<&ThreadRow>) -> Outcome {
    if context.output.is_json {
        return Ok(());
    }
    for line in view.rest() {
        context.output.result(line)?;
    }
    let Some(row) = row.filter(|row| !row.status.is_terminal()) else {
        return Ok(());
    };
    if shelf.is_interrupted(row) {
        let why = short(row.note.as_deref().unwrap_or("its process is gone"), 200);
        context.output.note(paint(CAUTION, format_args!("interrupted: {why}")));
    }
    if let Some(way) = shelf.way_on(row) {
        context.output.note(format_args!("to go on: {way}"));
    }
    Ok(())
}

/// `rye thread transcript`: of a thread and of those it was continued by.
pub fn transcript(context: &Context, word: &str, as_page: bool) -> Outcome {
    let (shelf, row) = Shelf::with(&context.settings, word)?;
    let chain = shelf.store.chain(&row)?;
    let from = chain.iter().position(|one| one.id == row.id).unwrap_or(0);
    for row in &chain[from..] {
        one_transcript(context, &shelf, row, as_page)?;
    }
    Ok(())
}

fn one_transcript(context: &Context, shelf: &Shelf, row: &ThreadRow, as_page: bool) -> Outcome {
    let path = transcript::path(&shelf.folder, &row.id);
    if as_page && !context.output.is_json {
        let events = transcript::read(&path, Position::default(), usize::MAX)?.events;
        let about = About { directive: &row.directive, status: row.status, cost: row.cost };
        let page = transcript::render_markdown(&about, &events);
        context.output.raw(&rye_item::text::without_controls(&page))?;
        return Ok(());
    }
    let mut place = Position::default();
    loop {
        let batch = transcript::read(&path, place, AT_A_TIME)?;
        for event in &batch.events {
            if context.output.is_json {
                context.output.json_line(&event.raw)?;
            } else if !event.is_droppable {
                print(context, event)?;
            }
        }
        for line in &batch.bad_lines {
            context.output.warn(format_args!("line {line} of the transcript is no event"));
        }
        if batch.next == place {
            return Ok(());
        }
        place = batch.next;
    }
}

/// One event: when, what, and its payload.
fn print(context: &Context, event: &Event) -> Outcome {
    let clean = rye_item::text::one_line;
    let time = event.timestamp.get(11..23).unwrap_or(&event.timestamp);
    context.output.result(format_args!("{} {}", paint(DIM, clean(time)), clean(&event.event_type)))?;
    for (name, value) in event.payload.as_object().into_iter().flatten() {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => rye_item::text::without_controls(text).into_owned(),
            other => rye_item::text::without_controls(&other.to_string()).into_owned(),
        };
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        context.output.result(format_args!("  {} {first}", paint(DIM, clean(name))))?;
        for line in lines {
            context.output.result(format_args!("    {line}"))?;
        }
    }
    Ok(())
}
