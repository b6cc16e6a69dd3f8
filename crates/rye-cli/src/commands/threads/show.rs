//! `thread show`: one thread, whole.

use rye_agent::cluster::{PatchSummary, placement_reason};
use rye_agent::limits::LIMIT_NAMES;
use rye_agent::money::Nanos;
use rye_agent::store::{Charge, ChargeScope, ThreadRow};
use rye_agent::threads::sent_notifications;
use rye_agent::transcript::{self, TranscriptEvent, TranscriptPosition};
use rye_agent::views::detail_value;
use serde_json::Value;

use super::approvals::question_lines;
use super::notify;
use super::thread_index::{ThreadIndex, thread_age};
use crate::commands::{CommandContext, CommandResult};
use crate::live::format::{format_count, format_duration, format_money, pluralize, truncate};
use crate::live::view::{ThreadView, ViewOptions, status_label, status_mark};
use crate::output::{DIM, HEADING, NAME, WARNING, paint};
use crate::settings;

/// The last lines of the view that are shown.
const LAST_LINES: usize = 8;
/// How much of a transcript's end they are taken from.
const TAIL_BYTES: u64 = 256 << 10;
/// Rows of costs and children that are shown.
const MAX_ROWS: usize = 12;

/// `rye thread show`
pub fn show(context: &CommandContext, word: Option<&str>) -> CommandResult {
    let (index, row) = match word {
        Some(word) => ThreadIndex::open_thread(&context.settings, word)?,
        None => ThreadIndex::open_latest(&context.settings)?,
    };
    index.store.verified_thread(&row.id)?;
    let charges = index.store.charges(&row.id, ChargeScope::Subtree)?;
    let children = index.store.children(&row.id)?;
    if context.output.is_json {
        let data = detail_value(&index, &row, &charges, &children)?;
        context.print_if_json(Some("thread"), Some(row.id.as_str()), &data)?;
        return Ok(());
    }
    context.output.print(render(&index, &row, &charges, &children)?)?;
    Ok(())
}

fn render(
    index: &ThreadIndex,
    row: &ThreadRow,
    charges: &[Charge],
    children: &[ThreadRow],
) -> Result<String, rye_engine::Error> {
    let status = index.effective_status(row);
    let (mark, style) = status_mark(status);
    let reason = index.status_reason(row);
    let mut lines = vec![format!(
        "{} {} {}",
        paint(style, mark),
        paint(HEADING, truncate(&row.directive, 80)),
        paint(style, format_args!("{}{reason}", status_label(status)))
    )];
    let mut add_field = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("  {} {value}", paint(DIM, format_args!("{name:<10}"))));
        }
    };
    add_field("thread", row.id.to_string());
    add_field("title", truncate(&row.title, 100));
    let mut model = vec![truncate(&row.provider, 60), truncate(&row.model, 60)];
    model.dedup();
    add_field("model", model.join(" · "));
    add_field("started", format!("{} · {}", row.created_at, thread_age(row)));
    add_field("parent", row.parent.as_ref().map(ToString::to_string).unwrap_or_default());
    let chain = index.store.chain(row)?;
    if chain.len() > 1 {
        let spend = chain.iter().fold(Nanos(0), |sum, row| sum.plus(row.cost.spend));
        let turns = chain.iter().map(|row| row.cost.turns).sum();
        let count = pluralize(chain.len() as u64, "thread");
        add_field("chain", format!("{count} · {} · {}", pluralize(turns, "turn"), format_money(spend)));
    }
    add_field("fork", index.fork_label(row)?.unwrap_or_default());
    for sent in sent_notifications(&index.dir, &row.id) {
        add_field("notified", notify::describe(&sent));
    }
    add_field("continues", row.continuation_of.as_ref().map(|id| format!("from {id}")).unwrap_or_default());
    add_field(
        "continued",
        row.continuation_thread_id.as_ref().map(|id| format!("in {id}")).unwrap_or_default(),
    );
    if let Some(owner) = row.owner.as_ref().filter(|_| status == "running") {
        let suffix = if row.is_detached { " · in the background" } else { "" };
        add_field("process", format!("{}{suffix}", owner.pid));
    }
    let error = row.error.as_deref().or(row.note.as_deref()).unwrap_or_default();
    add_field("reason", paint(WARNING, truncate(error, 400)).repeat(usize::from(!error.is_empty())));
    if index.waits_for_worker(row) {
        add_field("waits", placement_reason(&index.store, row).unwrap_or_default());
    }
    if let Some(patch) = PatchSummary::of_row(row) {
        let gap = match (patch.is_outdated, patch.is_incomplete) {
            (true, _) => " · when it last stopped",
            (false, true) => " · incomplete",
            (false, false) => "",
        };
        let text = match &patch.error {
            Some(error) => format!("none: {}", truncate(error, 200)),
            None => {
                let files = pluralize(patch.files as u64, "file");
                format!("{files}{gap} · rye thread patch {}", row.id)
            }
        };
        add_field("patch", text);
    }
    let approvals = index.store.open_approvals(Some(&row.id))?.approvals;
    if !approvals.is_empty() {
        lines.push(String::new());
        lines.push(paint(HEADING, "asks"));
        lines.extend(approvals.iter().flat_map(question_lines).map(|line| format!("  {line}")));
    }
    lines.push(String::new());
    lines.extend(usage_lines(index, row)?);
    lines.extend(cost_lines(row, charges));
    if !children.is_empty() {
        lines.push(String::new());
        lines.push(paint(HEADING, "children"));
        for child in children.iter().take(MAX_ROWS) {
            let (mark, style) = status_mark(index.effective_status(child));
            let name = paint(NAME, truncate(&child.directive, 60));
            let cost = format_money(index.store.ledger(&child.id)?.subtree_spend);
            lines.push(format!("  {} {name} · {cost} · {}", paint(style, mark), paint(DIM, &child.id)));
        }
        lines.extend(more_line(children.len()));
    }
    let last = last_lines(index, row);
    if !last.is_empty() {
        lines.push(String::new());
        lines.push(paint(HEADING, "last"));
        lines.extend(last.iter().map(|line| format!("  {line}")));
    }
    lines.extend(result_lines(row));
    if let Some(command) = index.next_command(row) {
        lines.push(String::new());
        lines.push(format!("{} {command}", paint(HEADING, "next")));
    }
    Ok(lines.join("\n"))
}

/// What is used, of what is allowed.
fn usage_lines(index: &ThreadIndex, row: &ThreadRow) -> Result<Vec<String>, rye_engine::Error> {
    let ledger = index.store.ledger(&row.id)?;
    let now = row.limits;
    let limits = now.to_value();
    let of = |name: &str| limits.get(name).and_then(Value::as_u64).map(format_count);
    let mut lines = vec![paint(HEADING, "used")];
    for name in LIMIT_NAMES {
        let (used, max) = match name {
            "turns" => (format_count(row.cost.turns), of(name)),
            "tokens" => (format_count(row.cost.tokens()), of(name)),
            "spend" => (format_money(ledger.subtree_spend), now.spend.map(format_money)),
            "spawns" => (format_count(row.spawn_count), of(name)),
            "duration_seconds" => {
                let max = now.duration_seconds.map(|max| format_duration(max.saturating_mul(1000)));
                (format_duration(row.cost.elapsed_ms), max)
            }
            _ => continue,
        };
        let name = name.trim_end_matches("_seconds");
        let max = max.map(|max| format!(" of {max}")).unwrap_or_default();
        lines.push(format!("  {} {used}{max}", paint(DIM, format_args!("{name:<10}"))));
    }
    if ledger.unknown_spend > Nanos(0) {
        let unknown = format_money(ledger.unknown_spend);
        lines.push(format!("  {unknown} of it was charged for calls with unknown outcome"));
    }
    Ok(lines)
}

/// What the money went for, the dearest first.
fn cost_lines(row: &ThreadRow, charges: &[Charge]) -> Vec<String> {
    let mut lines = Vec::new();
    if charges.is_empty() {
        return lines;
    }
    lines.push(String::new());
    lines.push(paint(HEADING, "cost"));
    for charge in charges.iter().take(MAX_ROWS) {
        let attribution = &charge.attribution;
        let mut parts = vec![
            format_money(charge.spend),
            pluralize(charge.calls, "call"),
            pluralize(charge.input_tokens.saturating_add(charge.output_tokens), "token"),
            truncate(&attribution.item, 60),
            truncate(&attribution.model, 40),
        ];
        parts.extend(attribution.tool.as_deref().map(|tool| format!("tool {}", truncate(tool, 40))));
        parts.extend(attribution.hook.as_deref().map(|hook| format!("hook {}", truncate(hook, 40))));
        if charge.thread != row.id {
            parts.push(paint(DIM, &charge.thread));
        }
        lines.push(format!("  {}", parts.join(" · ")));
    }
    lines.extend(more_line(charges.len()));
    lines
}

fn more_line(total: usize) -> Option<String> {
    let left = total.saturating_sub(MAX_ROWS);
    (left > 0).then(|| paint(DIM, format_args!("  … and {left} more, with --json")))
}

/// The last events of a transcript.
pub fn transcript_end(
    index: &ThreadIndex,
    row: &ThreadRow,
) -> Result<Vec<TranscriptEvent>, rye_engine::Error> {
    index.rebuild_files(&row.id, settings::now_ms());
    let path = index.transcript_path(&row.id);
    let length = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
    let from =
        TranscriptPosition { bytes: length.saturating_sub(TAIL_BYTES), ..TranscriptPosition::default() };
    Ok(transcript::read(&path, from, usize::MAX)?.events)
}

/// What was last to be seen of it.
fn last_lines(index: &ThreadIndex, row: &ThreadRow) -> Vec<String> {
    let Ok(events) = transcript_end(index, row) else {
        return vec![paint(WARNING, "its transcript cannot be read")];
    };
    let mut view = ThreadView::new(ViewOptions {
        stream: false,
        show_inner_calls: false,
        is_verbose: false,
        omit_reason: true,
        width: usize::MAX,
    });
    let mut lines: Vec<String> = events
        .iter()
        .filter(|event| event.event_type != "thread_completed")
        .flat_map(|event| view.handle_event(&event.raw))
        .map(|line| if line.contains('\u{1b}') { line } else { truncate(&line, 120) })
        .collect();
    lines.drain(..lines.len().saturating_sub(LAST_LINES));
    lines
}

fn result_lines(row: &ThreadRow) -> Vec<String> {
    let Some(result) = &row.result else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    let outputs = result.get("outputs").filter(|outputs| !outputs.is_null());
    let text = match outputs {
        Some(outputs) => serde_json::to_string_pretty(outputs).unwrap_or_default(),
        None => result.get("result").and_then(Value::as_str).unwrap_or_default().to_owned(),
    };
    if !text.trim().is_empty() {
        lines.push(String::new());
        lines.push(paint(HEADING, if outputs.is_some() { "outputs" } else { "result" }));
        let text = rye_item::text::strip_controls(&text);
        lines.extend(text.lines().map(|line| format!("  {line}")));
    }
    lines
}
