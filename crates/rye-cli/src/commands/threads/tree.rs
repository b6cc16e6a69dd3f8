//! `thread tree`: threads with those they have started, drawn.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rye_agent::limits::ThreadLimits;
use rye_agent::store::{Approval, ThreadRow};
use rye_agent::views::{TreeRow, tree_rows};
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
    let rows = tree_rows(&index, &index.load_trees(root.as_ref(), DEFAULT_TREES)?)?;
    if context.output.is_json {
        let threads: Vec<Value> = rows.iter().map(TreeRow::to_value).collect();
        context.print_if_json(Some("thread"), None, &json!({ "threads": threads }))?;
        return Ok(());
    }
    if rows.is_empty() {
        context.output.note("no threads here yet: rye run DIRECTIVE starts one");
        return Ok(());
    }
    context.output.print(render(&rows))?;
    Ok(())
}

/// Draws it again whenever something has changed, until nothing runs any more. Where nothing can be drawn over, each line
/// that has changed is reported again.
fn watch(context: &CommandContext, index: &ThreadIndex, root: Option<&ThreadRow>) -> CommandResult {
    let output = &context.output;
    let status = (output.is_live() && !output.is_json).then(|| output.status_line());
    let mut last_version = None;
    let mut printed = BTreeMap::new();
    loop {
        let version = index.store.data_version()?;
        let rows = index.load_trees(root, DEFAULT_TREES)?;
        let is_done = !rows.iter().any(|row| !row.status.is_terminal() && !index.is_idle(row));
        let has_changed = last_version != Some(version);
        if let Some(status) = status.as_ref().filter(|_| has_changed && !is_done) {
            status.set_text(&render(&tree_rows(index, &rows)?));
        }
        // At the end the whole tree is drawn; of what is read by programs, each thread is printed as it ended.
        if status.is_none() && (has_changed || is_done) && (output.is_json || !is_done) {
            print_changes(context, &tree_rows(index, &rows)?, &mut printed)?;
        }
        if is_done {
            return Ok(());
        }
        last_version = Some(version);
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Tells of each thread that stands otherwise than it was told.
fn print_changes(
    context: &CommandContext,
    rows: &[TreeRow],
    printed: &mut BTreeMap<String, Value>,
) -> CommandResult {
    for row in rows {
        let (id, now) = (row.row.id.as_str(), row.change_key());
        if printed.get(id) == Some(&now) {
            continue;
        }
        printed.insert(id.to_owned(), now);
        match context.output.is_json {
            true => context.output.print_json_line(&row.to_value())?,
            false => context.output.print(format_line(row))?,
        }
    }
    Ok(())
}

fn render(rows: &[TreeRow]) -> String {
    let node = |view: &TreeRow| Node {
        id: view.row.id.to_string(),
        parent: view.row.parent.as_ref().map(ToString::to_string),
        line: format_line(view),
        notes: view.questions.iter().map(question_note).collect(),
    };
    let nodes: Vec<Node> = rows.iter().map(node).collect();
    draw_branches(&nodes).join("\n")
}

/// What a thread asks, below its line.
fn question_note(question: &Approval) -> String {
    format!(
        "{} {} {}",
        paint(WARNING, "?"),
        truncate_question(&question.prompt, 80),
        paint(DIM, format_args!("· rye thread approve {}", truncate(&question.id, 40)))
    )
}

/// One thread: state, turn, cost of itself and of its tree, what it does, why it stopped, why to look at it.
fn format_line(view: &TreeRow) -> String {
    let TreeRow { row, status, reason, ledger, .. } = view;
    let (mark, style) = status_mark(status);
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
    if view.is_running() {
        parts.extend(view.current_tool.as_ref().map(|tool| paint(DIM, tool)));
    }
    if view.attention.contains(&"approval") {
        parts.push(paint(WARNING, "asks you"));
    }
    if view.attention.contains(&"budget") {
        parts.push(paint(
            WARNING,
            format_args!("of {} allowed", format_money(ledger.caps.spend.unwrap_or_default())),
        ));
    }
    if let Some(error) = row.error.as_deref().filter(|error| !error.is_empty()) {
        parts.push(paint(if row.status.is_terminal() { ERROR } else { WARNING }, truncate(error, 80)));
    }
    parts.push(paint(DIM, &row.id));
    parts.extend(view.fork_label.as_ref().map(|label| paint(DIM, label)));
    parts.join(" · ")
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
