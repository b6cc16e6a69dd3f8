//! `thread tree`: threads with those they have started, drawn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rye_agent::limits::Limits;
use rye_agent::store::{Filter, ThreadRow};
use rye_agent::transcript::{self, Position};
use serde_json::{Value, json};

use super::shelf::Shelf;
use crate::commands::{Context, Outcome};
use crate::live::view::{status_mark, status_word};
use crate::live::words::{amount, duration, several, short};
use crate::output::{BAD, CAUTION, DIM, NAME, paint};

/// Trees that are drawn when none is named.
const USUAL: u64 = 10;
/// How often a live tree looks whether anything has changed.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How much of a transcript's end is read to see what runs.
const END_BYTES: u64 = 64 << 10;

/// `rye thread tree`
pub fn tree(context: &Context, id: Option<&str>, is_live: bool) -> Outcome {
    let opened = match id {
        Some(word) => Some(Shelf::with(&context.settings, word).map(|(shelf, row)| (shelf, Some(row)))?),
        None => Shelf::open(&context.settings)?.map(|shelf| (shelf, None)),
    };
    let Some((shelf, root)) = opened else {
        if !context.answered(Some("thread"), None, &json!({ "threads": [] }))? {
            context.output.note("no threads here yet: rye run DIRECTIVE starts one");
        }
        return Ok(());
    };
    if is_live {
        watch(context, &shelf, root.as_ref())?;
        if context.output.is_json {
            // Every thread was told when it changed.
            return Ok(());
        }
    }
    let rows = rows(&shelf, root.as_ref())?;
    if context.output.is_json {
        let asking = asking(&shelf)?;
        let threads =
            rows.iter().map(|row| value(&shelf, row, &asking)).collect::<Result<Vec<Value>, _>>()?;
        context.answered(Some("thread"), None, &json!({ "threads": threads }))?;
        return Ok(());
    }
    if rows.is_empty() {
        context.output.note("no threads here yet: rye run DIRECTIVE starts one");
        return Ok(());
    }
    context.output.result(draw(&shelf, &rows)?)?;
    Ok(())
}

/// Draws it anew whenever something has changed, until nothing runs any more. Where nothing can be drawn over, each line
/// that has changed is told again.
fn watch(context: &Context, shelf: &Shelf, root: Option<&ThreadRow>) -> Outcome {
    let output = &context.output;
    let status = (output.is_live() && !output.is_json).then(|| output.status_line());
    let mut seen = None;
    let mut told = BTreeMap::new();
    loop {
        let version = shelf.store.data_version()?;
        let rows = rows(shelf, root)?;
        let is_over = !rows.iter().any(|row| !row.status.is_terminal() && !is_idle(shelf, row));
        let is_news = seen != Some(version);
        if let Some(status) = status.as_ref().filter(|_| is_news && !is_over) {
            status.show(&draw(shelf, &rows)?);
        }
        // At the end the whole tree is drawn; of what is read by programs, each thread is told as it ended.
        if status.is_none() && (is_news || is_over) && (output.is_json || !is_over) {
            tell_changes(context, shelf, &rows, &mut told)?;
        }
        if is_over {
            return Ok(());
        }
        seen = Some(version);
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Tells of each thread that stands otherwise than it was told. That time has passed is no news.
fn tell_changes(
    context: &Context,
    shelf: &Shelf,
    rows: &[ThreadRow],
    told: &mut BTreeMap<String, Value>,
) -> Outcome {
    let asking = asking(shelf)?;
    for row in rows {
        let asks = asking.contains(row.id.as_str());
        let now =
            json!([shelf.standing(row), row.cost.turns, row.cost.spend, current_tool(shelf, row), asks]);
        if told.get(row.id.as_str()) == Some(&now) {
            continue;
        }
        told.insert(row.id.to_string(), now);
        match context.output.is_json {
            true => context.output.json_line(&value(shelf, row, &asking)?)?,
            false => context.output.result(line(shelf, row, &asking)?)?,
        }
    }
    Ok(())
}

/// The threads that ask something.
fn asking(shelf: &Shelf) -> Result<BTreeSet<String>, rye_engine::Error> {
    let questions = shelf.store.open_approvals(None)?.questions;
    Ok(questions.into_iter().map(|question| question.thread.to_string()).collect())
}

/// A thread of a tree as JSON.
fn value(shelf: &Shelf, row: &ThreadRow, asking: &BTreeSet<String>) -> Result<Value, rye_engine::Error> {
    let mut value = shelf.value(row)?;
    let ledger = shelf.store.ledger(&row.id)?;
    let is_running = shelf.standing(row) == "running";
    value["title"] = json!(row.title);
    value["depth"] = json!(row.depth);
    value["limits"] = row.limits.to_value();
    value["current_tool"] = json!(current_tool(shelf, row).filter(|_| is_running));
    value["attention"] = json!(shelf.attention(row, &ledger, asking.contains(row.id.as_str())));
    Ok(value)
}

/// Whether nothing happens to a thread unless somebody does something.
fn is_idle(shelf: &Shelf, row: &ThreadRow) -> bool {
    row.status == rye_agent::status::Status::Suspended || shelf.is_interrupted(row)
}

/// The threads of the tree, or of the newest trees, parents before children.
fn rows(shelf: &Shelf, root: Option<&ThreadRow>) -> Result<Vec<ThreadRow>, rye_engine::Error> {
    let roots = match root {
        Some(root) => vec![root.clone()],
        None => shelf.store.threads(&Filter { is_root: true, limit: Some(USUAL), ..Filter::default() })?,
    };
    let mut rows = Vec::new();
    for root in roots {
        rows.extend(shelf.store.subtree(&root.id)?);
    }
    Ok(rows)
}

fn draw(shelf: &Shelf, rows: &[ThreadRow]) -> Result<String, rye_engine::Error> {
    let mut asked: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for question in shelf.store.open_approvals(None)?.questions {
        asked.entry(question.thread.to_string()).or_default().push(format!(
            "{} {} {}",
            paint(CAUTION, "?"),
            short(&question.what, 80),
            paint(DIM, format_args!("· rye thread approve {}", short(&question.id, 40)))
        ));
    }
    let asking: BTreeSet<String> = asked.keys().cloned().collect();
    let mut nodes = Vec::new();
    for row in rows {
        nodes.push(Node {
            id: row.id.to_string(),
            parent: row.parent.as_ref().map(ToString::to_string),
            line: line(shelf, row, &asking)?,
            below: asked.remove(row.id.as_str()).unwrap_or_default(),
        });
    }
    Ok(branches(&nodes).join("\n"))
}

/// One thread: state, turn, cost of itself and of its tree, what it does, why it stopped, why to look at it.
fn line(shelf: &Shelf, row: &ThreadRow, asking: &BTreeSet<String>) -> Result<String, rye_engine::Error> {
    let standing = shelf.standing(row);
    let (mark, style) = status_mark(standing);
    let ledger = shelf.store.ledger(&row.id)?;
    let reason = row.reason.map(|reason| format!(" ({})", reason.as_str())).unwrap_or_default();
    let limits = if row.status.is_terminal() { Limits::default() } else { row.limits };
    let turns = match limits.turns {
        Some(most) => format!("turn {}/{most}", row.cost.turns),
        None => several(row.cost.turns, "turn"),
    };
    let mut parts = vec![
        format!("{} {}", paint(style, mark), paint(NAME, short(&row.directive, 60))),
        paint(style, format_args!("{}{reason}", status_word(standing))),
        turns,
        amount(row.cost.spend),
    ];
    if ledger.subtree_spend != row.cost.spend {
        parts.push(format!("tree {}", amount(ledger.subtree_spend)));
    }
    parts.push(duration(row.cost.elapsed_ms));
    if standing == "running" {
        parts.extend(current_tool(shelf, row).map(|tool| paint(DIM, tool)));
    }
    let marks = shelf.attention(row, &ledger, asking.contains(row.id.as_str()));
    if marks.contains(&"approval") {
        parts.push(paint(CAUTION, "asks you"));
    }
    if marks.contains(&"budget") {
        parts.push(paint(
            CAUTION,
            format_args!("of {} allowed", amount(ledger.maxima.spend.unwrap_or_default())),
        ));
    }
    if let Some(error) = row.error.as_deref().filter(|error| !error.is_empty()) {
        parts.push(paint(if row.status.is_terminal() { BAD } else { CAUTION }, short(error, 80)));
    }
    parts.push(paint(DIM, &row.id));
    Ok(parts.join(" · "))
}

/// The call that has not come back, if there is one.
fn current_tool(shelf: &Shelf, row: &ThreadRow) -> Option<String> {
    let path = transcript::path(&shelf.folder, &row.id);
    let length = std::fs::metadata(&path).ok()?.len();
    let from = Position { bytes: length.saturating_sub(END_BYTES), ..Position::default() };
    let events = transcript::read(&path, from, usize::MAX).ok()?.events;
    let text = |event: &transcript::Event, key: &str| {
        event.payload.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let of = |kind: &'static str| events.iter().filter(move |event| event.event_type == kind);
    let done: Vec<String> = of("tool_call_result").map(|event| text(event, "call_id")).collect();
    let running = of("tool_call_start").rfind(|event| !done.contains(&text(event, "call_id")))?;
    Some(short(&text(running, "tool"), 40))
}

/// A thread in a tree.
struct Node {
    id: String,
    parent: Option<String>,
    line: String,
    below: Vec<String>,
}

/// The nodes as lines with branches; one whose parent is not among them is a root.
fn branches(nodes: &[Node]) -> Vec<String> {
    let mut lines = Vec::new();
    let known: BTreeSet<&str> = nodes.iter().map(|node| node.id.as_str()).collect();
    let mut children: BTreeMap<&str, Vec<&Node>> = BTreeMap::new();
    for node in nodes {
        if let Some(parent) = &node.parent {
            children.entry(parent).or_default().push(node);
        }
    }
    // Depth first, with what stands before the node and before its children.
    let mut pending: Vec<(&Node, String, String)> = nodes
        .iter()
        .rev()
        .filter(|node| !node.parent.as_ref().is_some_and(|parent| known.contains(parent.as_str())))
        .map(|node| (node, String::new(), String::new()))
        .collect();
    while let Some((node, before, inner)) = pending.pop() {
        lines.push(format!("{before}{}", node.line));
        let children = children.remove(node.id.as_str()).unwrap_or_default();
        let bar = if children.is_empty() { "   " } else { "│  " };
        lines.extend(node.below.iter().map(|line| format!("{inner}{bar}{line}")));
        for (index, child) in children.iter().enumerate().rev() {
            let (branch, beyond) =
                if index + 1 == children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            pending.push((child, format!("{inner}{branch}"), format!("{inner}{beyond}")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, parent: Option<&str>, below: &[&str]) -> Node {
        Node {
            id: id.to_owned(),
            parent: parent.map(str::to_owned),
            line: id.to_owned(),
            below: below.iter().map(|line| (*line).to_owned()).collect(),
        }
    }

    #[test]
    fn a_tree_is_drawn_depth_first_with_its_questions() {
        let nodes = [
            node("a", None, &[]),
            node("b", Some("a"), &["?"]),
            node("c", Some("a"), &[]),
            node("d", Some("b"), &[]),
            node("e", Some("gone"), &["!"]),
        ];
        let expected = ["a", "├─ b", "│  │  ?", "│  └─ d", "└─ c", "e", "   !"];
        assert_eq!(branches(&nodes), expected);
    }
}
