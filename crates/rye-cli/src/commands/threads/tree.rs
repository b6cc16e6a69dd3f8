//! `thread tree`: threads with those they have started, drawn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rye_agent::limits::ThreadLimits;
use rye_agent::store::{ThreadFilter, ThreadRow};
use rye_agent::transcript::{self, TranscriptPosition};
use serde_json::{Value, json};

use super::thread_index::ThreadIndex;
use crate::commands::{CommandContext, CommandResult};
use crate::live::format::{format_duration, format_money, pluralize, truncate, truncate_question};
use crate::live::view::{status_label, status_mark};
use crate::output::{DIM, ERROR, NAME, WARNING, paint};

/// Trees that are drawn when none is named.
const DEFAULT_TREES: u64 = 10;
/// How often a live tree looks whether anything has changed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How much of a transcript's end is read to see what runs.
const TAIL_BYTES: u64 = 64 << 10;

/// `rye thread tree`
pub fn tree(context: &CommandContext, id: Option<&str>, is_live: bool) -> CommandResult {
    let scope = match id {
        Some(word) => {
            Some(ThreadIndex::open_thread(&context.settings, word).map(|(index, row)| (index, Some(row)))?)
        }
        None => ThreadIndex::open(&context.settings)?.map(|index| (index, None)),
    };
    let Some((index, root)) = scope else {
        if !context.print_if_json(Some("thread"), None, &json!({ "threads": [] }))? {
            context.output.note("no threads here yet: rye run DIRECTIVE starts one");
        }
        return Ok(());
    };
    if is_live {
        watch(context, &index, root.as_ref())?;
        if context.output.is_json {
            // Every thread was told when it changed.
            return Ok(());
        }
    }
    let rows = load_rows(&index, root.as_ref())?;
    if context.output.is_json {
        let asking_ids = approval_threads(&index)?;
        let threads = rows
            .iter()
            .map(|row| thread_value(&index, row, &asking_ids))
            .collect::<Result<Vec<Value>, _>>()?;
        context.print_if_json(Some("thread"), None, &json!({ "threads": threads }))?;
        return Ok(());
    }
    if rows.is_empty() {
        context.output.note("no threads here yet: rye run DIRECTIVE starts one");
        return Ok(());
    }
    context.output.print(render(&index, &rows)?)?;
    Ok(())
}

/// Draws it anew whenever something has changed, until nothing runs any more. Where nothing can be drawn over, each line
/// that has changed is told again.
fn watch(context: &CommandContext, index: &ThreadIndex, root: Option<&ThreadRow>) -> CommandResult {
    let output = &context.output;
    let status = (output.is_live() && !output.is_json).then(|| output.status_line());
    let mut last_version = None;
    let mut printed = BTreeMap::new();
    loop {
        let version = index.store.data_version()?;
        let rows = load_rows(index, root)?;
        let is_done = !rows.iter().any(|row| !row.status.is_terminal() && !is_idle(index, row));
        let has_changed = last_version != Some(version);
        if let Some(status) = status.as_ref().filter(|_| has_changed && !is_done) {
            status.set_text(&render(index, &rows)?);
        }
        // At the end the whole tree is drawn; of what is read by programs, each thread is told as it ended.
        if status.is_none() && (has_changed || is_done) && (output.is_json || !is_done) {
            print_changes(context, index, &rows, &mut printed)?;
        }
        if is_done {
            return Ok(());
        }
        last_version = Some(version);
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Tells of each thread that stands otherwise than it was told. That time has passed is no news.
fn print_changes(
    context: &CommandContext,
    index: &ThreadIndex,
    rows: &[ThreadRow],
    printed: &mut BTreeMap<String, Value>,
) -> CommandResult {
    let asking_ids = approval_threads(index)?;
    for row in rows {
        let has_approval = asking_ids.contains(row.id.as_str());
        let now = json!([
            index.effective_status(row),
            index.status_reason(row),
            row.cost.turns,
            row.cost.spend,
            current_tool(index, row),
            has_approval
        ]);
        if printed.get(row.id.as_str()) == Some(&now) {
            continue;
        }
        printed.insert(row.id.to_string(), now);
        match context.output.is_json {
            true => context.output.print_json_line(&thread_value(index, row, &asking_ids)?)?,
            false => context.output.print(format_line(index, row, &asking_ids)?)?,
        }
    }
    Ok(())
}

/// The threads that ask something.
fn approval_threads(index: &ThreadIndex) -> Result<BTreeSet<String>, rye_engine::Error> {
    let questions = index.store.open_approvals(None)?.approvals;
    Ok(questions.into_iter().map(|question| question.thread.to_string()).collect())
}

/// A thread of a tree as JSON.
fn thread_value(
    index: &ThreadIndex,
    row: &ThreadRow,
    asking_ids: &BTreeSet<String>,
) -> Result<Value, rye_engine::Error> {
    let mut value = index.to_value(row)?;
    let ledger = index.store.ledger(&row.id)?;
    let is_running = index.effective_status(row) == "running";
    value["title"] = json!(row.title);
    value["depth"] = json!(row.depth);
    value["limits"] = row.limits.to_value();
    value["current_tool"] = json!(current_tool(index, row).filter(|_| is_running));
    value["attention"] = json!(index.alerts(row, &ledger, asking_ids.contains(row.id.as_str())));
    Ok(value)
}

/// Whether a thread waits for a person.
fn is_idle(index: &ThreadIndex, row: &ThreadRow) -> bool {
    row.status == rye_agent::status::ThreadStatus::Suspended || index.is_interrupted(row)
}

/// The threads of the tree, or of the newest trees, parents before children.
fn load_rows(index: &ThreadIndex, root: Option<&ThreadRow>) -> Result<Vec<ThreadRow>, rye_engine::Error> {
    let roots = match root {
        Some(root) => vec![root.clone()],
        None => index.store.threads(&ThreadFilter {
            is_root: true,
            limit: Some(DEFAULT_TREES),
            ..ThreadFilter::default()
        })?,
    };
    let mut rows = Vec::new();
    for root in roots {
        rows.extend(index.store.subtree(&root.id)?);
    }
    Ok(rows)
}

fn render(index: &ThreadIndex, rows: &[ThreadRow]) -> Result<String, rye_engine::Error> {
    let mut approvals: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for question in index.store.open_approvals(None)?.approvals {
        approvals.entry(question.thread.to_string()).or_default().push(format!(
            "{} {} {}",
            paint(WARNING, "?"),
            truncate_question(&question.prompt, 80),
            paint(DIM, format_args!("· rye thread approve {}", truncate(&question.id, 40)))
        ));
    }
    let asking_ids: BTreeSet<String> = approvals.keys().cloned().collect();
    let mut nodes = Vec::new();
    for row in rows {
        nodes.push(Node {
            id: row.id.to_string(),
            parent: row.parent.as_ref().map(ToString::to_string),
            line: format_line(index, row, &asking_ids)?,
            notes: approvals.remove(row.id.as_str()).unwrap_or_default(),
        });
    }
    Ok(draw_branches(&nodes).join("\n"))
}

/// One thread: state, turn, cost of itself and of its tree, what it does, why it stopped, why to look at it.
fn format_line(
    index: &ThreadIndex,
    row: &ThreadRow,
    asking_ids: &BTreeSet<String>,
) -> Result<String, rye_engine::Error> {
    let status = index.effective_status(row);
    let (mark, style) = status_mark(status);
    let ledger = index.store.ledger(&row.id)?;
    let reason = index.status_reason(row);
    let limits = if row.status.is_terminal() { ThreadLimits::default() } else { row.limits };
    let turns = match limits.turns {
        Some(max) => format!("turn {}/{max}", row.cost.turns),
        None => pluralize(row.cost.turns, "turn"),
    };
    let mut parts = vec![
        format!("{} {}", paint(style, mark), paint(NAME, truncate(&row.directive, 60))),
        paint(style, format_args!("{}{reason}", status_label(status))),
        turns,
        format_money(row.cost.spend),
    ];
    if ledger.subtree_spend != row.cost.spend {
        parts.push(format!("tree {}", format_money(ledger.subtree_spend)));
    }
    parts.push(format_duration(row.cost.elapsed_ms));
    if status == "running" {
        parts.extend(current_tool(index, row).map(|tool| paint(DIM, tool)));
    }
    let marks = index.alerts(row, &ledger, asking_ids.contains(row.id.as_str()));
    if marks.contains(&"approval") {
        parts.push(paint(WARNING, "asks you"));
    }
    if marks.contains(&"budget") {
        parts.push(paint(
            WARNING,
            format_args!("of {} allowed", format_money(ledger.caps.spend.unwrap_or_default())),
        ));
    }
    if let Some(error) = row.error.as_deref().filter(|error| !error.is_empty()) {
        parts.push(paint(if row.status.is_terminal() { ERROR } else { WARNING }, truncate(error, 80)));
    }
    parts.push(paint(DIM, &row.id));
    parts.extend(index.fork_label(row)?.map(|label| paint(DIM, label)));
    Ok(parts.join(" · "))
}

/// The call that has not come back, if there is one.
fn current_tool(index: &ThreadIndex, row: &ThreadRow) -> Option<String> {
    let path = transcript::path(&index.dir, &row.id);
    let length = std::fs::metadata(&path).ok()?.len();
    let from =
        TranscriptPosition { bytes: length.saturating_sub(TAIL_BYTES), ..TranscriptPosition::default() };
    let events = transcript::read(&path, from, usize::MAX).ok()?.events;
    let text = |event: &transcript::TranscriptEvent, key: &str| {
        event.payload.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let of = |event_type: &'static str| events.iter().filter(move |event| event.event_type == event_type);
    let done: Vec<String> = of("tool_call_result").map(|event| text(event, "call_id")).collect();
    let running = of("tool_call_start").rfind(|event| !done.contains(&text(event, "call_id")))?;
    Some(truncate(&text(running, "tool"), 40))
}

/// A thread in a tree.
struct Node {
    id: String,
    parent: Option<String>,
    line: String,
    notes: Vec<String>,
}

/// The nodes as lines with branches; one whose parent is not among them is a root.
fn draw_branches(nodes: &[Node]) -> Vec<String> {
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
        lines.extend(node.notes.iter().map(|line| format!("{inner}{bar}{line}")));
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
            notes: below.iter().map(|line| (*line).to_owned()).collect(),
        }
    }

    #[test]
    fn tree_is_drawn_depth_first() {
        let nodes = [
            node("a", None, &[]),
            node("b", Some("a"), &["?"]),
            node("c", Some("a"), &[]),
            node("d", Some("b"), &[]),
            node("e", Some("gone"), &["!"]),
        ];
        let expected = ["a", "├─ b", "│  │  ?", "│  └─ d", "└─ c", "e", "   !"];
        assert_eq!(draw_branches(&nodes), expected);
    }
}
