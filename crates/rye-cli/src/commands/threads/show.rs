//! `thread show`: one thread, whole.

use rye_agent::limits::NAMES;
use rye_agent::machine::Outcome as Ending;
use rye_agent::money::Nanos;
use rye_agent::store::{Charge, Scope, ThreadRow};
use rye_agent::threads::{Finished, sync_answer};
use rye_agent::transcript::{self, Position};
use serde_json::{Map, Value, json};

use super::people::asked_below;
use super::shelf::Shelf;
use crate::commands::{Context, Outcome};
use crate::live::view::{Manner, View, status_mark, status_word};
use crate::live::words::{amount, count, duration, several, short};
use crate::output::{CAUTION, DIM, NAME, STRONG, paint};

/// The last lines of the view that are shown.
const LAST_LINES: usize = 8;
/// How much of a transcript's end they are taken from.
const END_BYTES: u64 = 256 << 10;
/// Rows of costs and children that are shown.
const MOST_ROWS: usize = 12;

/// `rye thread show`
pub fn show(context: &Context, word: &str) -> Outcome {
    let (shelf, row) = Shelf::with(&context.settings, word)?;
    shelf.store.sealed_thread(&row.id)?;
    let charges = shelf.store.charges(&row.id, Scope::Subtree)?;
    let children = shelf.store.children(&row.id)?;
    if context.output.is_json {
        let mut data = sync_answer(&finished(&row));
        data.extend(facts(&shelf, &row, &charges, &children)?);
        context.answered(Some("thread"), Some(row.id.as_str()), &data)?;
        return Ok(());
    }
    context.output.result(draw(&shelf, &row, &charges, &children)?)?;
    Ok(())
}

/// What a thread came to, as its row has it.
pub fn finished(row: &ThreadRow) -> Finished {
    let outcome =
        row.result.as_ref().and_then(|result| serde_json::from_value::<Ending>(result.clone()).ok());
    let plain = Ending { status: row.status, ..Ending::failed("") };
    let mut outcome = outcome.unwrap_or(plain);
    // Where it stands now counts: it may have gone on since.
    outcome.status = row.status;
    outcome.reason = row.reason;
    outcome.error = row.error.clone();
    Finished { thread_id: row.id.clone(), directive: row.directive.clone(), outcome, cost: row.cost }
}

fn facts(
    shelf: &Shelf,
    row: &ThreadRow,
    charges: &[Charge],
    children: &[ThreadRow],
) -> Result<Map<String, Value>, rye_engine::Error> {
    let mut facts = Map::new();
    if let Value::Object(common) = shelf.value(row)? {
        facts.extend(common);
    }
    let ledger = shelf.store.ledger(&row.id)?;
    let charges: Vec<Value> = charges
        .iter()
        .map(|charge| {
            json!({
                "thread_id": charge.thread,
                "item": charge.attribution.item,
                "model": charge.attribution.model,
                "tool": charge.attribution.tool,
                "hook": charge.attribution.hook,
                "calls": charge.calls,
                "spend": charge.spend.dollars(),
                "input_tokens": charge.input_tokens,
                "output_tokens": charge.output_tokens,
                "unknown": charge.unknown,
            })
        })
        .collect();
    facts.insert("title".to_owned(), json!(row.title));
    facts.insert("model".to_owned(), json!(row.model));
    facts.insert("provider".to_owned(), json!(row.provider));
    facts.insert("limits".to_owned(), row.limits.to_value());
    facts.insert("subtree_tokens".to_owned(), json!(ledger.subtree_tokens));
    facts.insert("charges".to_owned(), json!(charges));
    let children: Vec<&str> = children.iter().map(|child| child.id.as_str()).collect();
    facts.insert("children".to_owned(), json!(children));
    let chain = shelf.store.chain(row)?;
    let spent = chain.iter().fold(Nanos(0), |sum, row| sum.plus(row.cost.spend));
    let ids: Vec<&str> = chain.iter().map(|row| row.id.as_str()).collect();
    let total = json!({
        "threads": ids,
        "turns": chain.iter().map(|row| row.cost.turns).sum::<u64>(),
        "tokens": chain.iter().map(|row| row.cost.tokens()).sum::<u64>(),
        "spend": spent.dollars(),
    });
    facts.insert("chain".to_owned(), total);
    facts.insert("continuation_of".to_owned(), json!(row.continuation_of));
    facts.insert("continuation_thread_id".to_owned(), json!(row.continuation_thread_id));
    let asked: Vec<Value> = asked_below(shelf, row)?.into_iter().map(|(question, _)| question).collect();
    facts.insert("approvals".to_owned(), json!(asked));
    facts.insert("go_on".to_owned(), json!(shelf.way_on(row)));
    Ok(facts)
}

fn draw(
    shelf: &Shelf,
    row: &ThreadRow,
    charges: &[Charge],
    children: &[ThreadRow],
) -> Result<String, rye_engine::Error> {
    let standing = shelf.standing(row);
    let (mark, style) = status_mark(standing);
    let reason = row.reason.map(|reason| format!(" ({})", reason.as_str())).unwrap_or_default();
    let mut lines = vec![format!(
        "{} {} {}",
        paint(style, mark),
        paint(STRONG, short(&row.directive, 80)),
        paint(style, format_args!("{}{reason}", status_word(standing)))
    )];
    let mut fact = |name: &str, value: String| {
        if !value.is_empty() {
            lines.push(format!("  {} {value}", paint(DIM, format_args!("{name:<10}"))));
        }
    };
    fact("thread", row.id.to_string());
    fact("title", short(&row.title, 100));
    let mut model = vec![short(&row.provider, 60), short(&row.model, 60)];
    model.dedup();
    fact("model", model.join(" · "));
    fact("started", format!("{} · {}", row.created_at, Shelf::age(row)));
    fact("parent", row.parent.as_ref().map(ToString::to_string).unwrap_or_default());
    let chain = shelf.store.chain(row)?;
    if chain.len() > 1 {
        let spent = chain.iter().fold(Nanos(0), |sum, row| sum.plus(row.cost.spend));
        let turns = chain.iter().map(|row| row.cost.turns).sum();
        let count = several(chain.len() as u64, "thread");
        fact("chain", format!("{count} · {} · {}", several(turns, "turn"), amount(spent)));
    }
    fact("goes on", row.continuation_of.as_ref().map(|id| format!("from {id}")).unwrap_or_default());
    fact("went on", row.continuation_thread_id.as_ref().map(|id| format!("in {id}")).unwrap_or_default());
    if let Some(owner) = row.owner.as_ref().filter(|_| standing == "running") {
        let place = if row.is_detached { " · in the background" } else { "" };
        fact("process", format!("{}{place}", owner.pid));
    }
    let error = row.error.as_deref().or(row.note.as_deref()).unwrap_or_default();
    fact("reason", paint(CAUTION, short(error, 400)).repeat(usize::from(!error.is_empty())));
    let asked = asked_below(shelf, row)?;
    if !asked.is_empty() {
        lines.push(String::new());
        lines.push(paint(STRONG, "asks"));
        lines.extend(asked.into_iter().map(|(_, line)| format!("  {line}")));
    }
    lines.push(String::new());
    lines.extend(used(shelf, row)?);
    lines.extend(costs(row, charges));
    if !children.is_empty() {
        lines.push(String::new());
        lines.push(paint(STRONG, "children"));
        for child in children.iter().take(MOST_ROWS) {
            let (mark, style) = status_mark(shelf.standing(child));
            let name = paint(NAME, short(&child.directive, 60));
            let cost = amount(shelf.store.ledger(&child.id)?.subtree_spend);
            lines.push(format!("  {} {name} · {cost} · {}", paint(style, mark), paint(DIM, &child.id)));
        }
        lines.extend(more(children.len()));
    }
    let last = last_lines(shelf, row);
    if !last.is_empty() {
        lines.push(String::new());
        lines.push(paint(STRONG, "last"));
        lines.extend(last.iter().map(|line| format!("  {line}")));
    }
    lines.extend(result(row));
    if let Some(way) = shelf.way_on(row) {
        lines.push(String::new());
        lines.push(format!("{} {way}", paint(STRONG, "go on")));
    }
    Ok(lines.join("\n"))
}

/// What is used, of what is allowed.
fn used(shelf: &Shelf, row: &ThreadRow) -> Result<Vec<String>, rye_engine::Error> {
    let ledger = shelf.store.ledger(&row.id)?;
    let now = row.limits;
    let limits = now.to_value();
    let of = |name: &str| limits.get(name).and_then(Value::as_u64).map(count);
    let mut lines = vec![paint(STRONG, "used")];
    for name in NAMES {
        let (used, most) = match name {
            "turns" => (count(row.cost.turns), of(name)),
            "tokens" => (count(row.cost.tokens()), of(name)),
            "spend" => (amount(ledger.subtree_spend), now.spend.map(amount)),
            "spawns" => (count(row.spawn_count), of(name)),
            "duration_seconds" => {
                let most = now.duration_seconds.map(|most| duration(most.saturating_mul(1000)));
                (duration(row.cost.elapsed_ms), most)
            }
            _ => continue,
        };
        let name = name.trim_end_matches("_seconds");
        let most = most.map(|most| format!(" of {most}")).unwrap_or_default();
        lines.push(format!("  {} {used}{most}", paint(DIM, format_args!("{name:<10}"))));
    }
    if ledger.unknown_spend > Nanos(0) {
        let unknown = amount(ledger.unknown_spend);
        lines.push(format!("  {unknown} of it was charged for calls whose outcome nobody knows"));
    }
    Ok(lines)
}

/// What the money went for, the dearest first.
fn costs(row: &ThreadRow, charges: &[Charge]) -> Vec<String> {
    let mut lines = Vec::new();
    if charges.is_empty() {
        return lines;
    }
    lines.push(String::new());
    lines.push(paint(STRONG, "cost"));
    for charge in charges.iter().take(MOST_ROWS) {
        let what = &charge.attribution;
        let mut parts = vec![
            amount(charge.spend),
            several(charge.calls, "call"),
            several(charge.input_tokens.saturating_add(charge.output_tokens), "token"),
            short(&what.item, 60),
            short(&what.model, 40),
        ];
        parts.extend(what.tool.as_deref().map(|tool| format!("tool {}", short(tool, 40))));
        parts.extend(what.hook.as_deref().map(|hook| format!("hook {}", short(hook, 40))));
        if charge.thread != row.id {
            parts.push(paint(DIM, &charge.thread));
        }
        lines.push(format!("  {}", parts.join(" · ")));
    }
    lines.extend(more(charges.len()));
    lines
}

fn more(total: usize) -> Option<String> {
    let left = total.saturating_sub(MOST_ROWS);
    (left > 0).then(|| paint(DIM, format_args!("  … and {left} more, with --json")))
}

/// What was last to be seen of it.
fn last_lines(shelf: &Shelf, row: &ThreadRow) -> Vec<String> {
    let path = transcript::path(&shelf.folder, &row.id);
    let length = std::fs::metadata(&path).map_or(0, |metadata| metadata.len());
    let from = Position { bytes: length.saturating_sub(END_BYTES), ..Position::default() };
    let Ok(batch) = transcript::read(&path, from, usize::MAX) else {
        return vec![paint(CAUTION, "its transcript cannot be read")];
    };
    let mut view = View::new(Manner {
        streams: false,
        shows_inner_calls: false,
        is_verbose: false,
        leaves_reason: true,
        width: usize::MAX,
    });
    let mut lines: Vec<String> = batch
        .events
        .iter()
        .filter(|event| event.event_type != "thread_completed")
        .flat_map(|event| view.event(&event.raw))
        .map(|line| if line.contains('\u{1b}') { line } else { short(&line, 120) })
        .collect();
    lines.drain(..lines.len().saturating_sub(LAST_LINES));
    lines
}

fn result(row: &ThreadRow) -> Vec<String> {
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
        lines.push(paint(STRONG, if outputs.is_some() { "outputs" } else { "result" }));
        let text = rye_item::text::without_controls(&text);
        lines.extend(text.lines().map(|line| format!("  {line}")));
    }
    lines
}
