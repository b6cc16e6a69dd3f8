//! The rows of `rye top`: threads in their trees, in as many columns as the screen is wide.

use std::collections::HashMap;

use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Row, Table};
use rye_agent::thread_id::ThreadId;
use rye_agent::views::{LiveFilter, LiveRow, LiveThreads};
use rye_item::text::one_line;

use crate::live::format::{format_count, format_money, truncate};
use crate::live::view::{status_label, status_mark};

/// Rows that are worked out; more are not worth scrolling.
pub const MAX_ROWS: usize = 2000;
/// Columns of a screen from which on threads are shown with all that is known.
const MIN_WIDE_COLUMNS: u16 = 110;

/// One line of the list of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopThread {
    /// Its name.
    pub id: String,
    directive: String,
    status: String,
    turns: String,
    spend: String,
    tool: String,
    attention: String,
}

fn thread_line(row: &LiveRow) -> TopThread {
    let thread = &row.row;
    let depth = usize::try_from(thread.depth).unwrap_or(0).min(12);
    let turns = match thread.limits.turns {
        Some(max) => format!("{}/{max}", thread.cost.turns),
        None => format_count(thread.cost.turns),
    };
    let spend = match row.ledger.caps.spend {
        Some(max) => format!("{} of {}", format_money(row.ledger.subtree_spend), format_money(max)),
        None => format_money(row.ledger.subtree_spend),
    };
    let tool = row.current_tool.as_deref().map(one_line);
    let worker = row.worker.as_deref().map(|name| format!("on {}", one_line(name)));
    TopThread {
        id: thread.id.to_string(),
        directive: format!("{}{}", "  ".repeat(depth), truncate(&thread.directive, 40)),
        status: format!("{} {}", status_mark(row.status).0, status_label(row.status)),
        turns,
        spend,
        tool: tool.into_iter().chain(worker).collect::<Vec<_>>().join(" "),
        attention: row.attention.join(", "),
    }
}

/// Threads with those they started below them; trees with something that needs attention first.
pub fn list_by_tree(live: &LiveThreads) -> Vec<TopThread> {
    let all = LiveFilter::default();
    let rows: Vec<&LiveRow> = live.rows(&all).take(MAX_ROWS).collect();
    let parents: Vec<Option<&ThreadId>> = rows.iter().map(|row| row.row.parent.as_ref()).collect();
    let ids: Vec<&ThreadId> = rows.iter().map(|row| &row.row.id).collect();
    let is_urgent = |at: usize| {
        let row: &LiveRow = rows[at];
        row.status == "running" || row.attention.iter().any(|word| *word != "failed")
    };
    tree_order(&ids, &parents, is_urgent).into_iter().map(|at| thread_line(rows[at])).collect()
}

/// The places of threads, the newest first, so that each stands below the one that started it, in the order they were made, and
/// trees with something urgent stand first.
fn tree_order(
    ids: &[&ThreadId],
    parents: &[Option<&ThreadId>],
    is_urgent: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let places: HashMap<&ThreadId, usize> = ids.iter().enumerate().map(|(at, id)| (*id, at)).collect();
    let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
    let mut roots = Vec::new();
    for (at, parent) in parents.iter().enumerate() {
        match parent.and_then(|parent| places.get(parent)) {
            Some(above) => children.entry(*above).or_default().push(at),
            None => roots.push(at),
        }
    }
    let mut trees: Vec<(bool, Vec<usize>)> = Vec::new();
    for root in roots {
        let mut tree = Vec::new();
        let mut open = vec![root];
        while let Some(at) = open.pop() {
            tree.push(at);
            // The newest first: what is taken from the end is the oldest.
            open.extend(children.get(&at).into_iter().flatten());
        }
        trees.push((tree.iter().any(|at| is_urgent(*at)), tree));
    }
    trees.sort_by_key(|(is_first, _)| !is_first);
    trees.into_iter().flat_map(|(_, tree)| tree).collect()
}

/// Threads in the columns that there is room for.
pub fn threads_table(threads: &[TopThread], area: Rect) -> Table<'_> {
    let common = [Constraint::Fill(3), Constraint::Length(13), Constraint::Length(7), Constraint::Length(17)];
    let (more, titles): (&[Constraint], &[&str]) = match is_wide(area) {
        true => (
            &[Constraint::Fill(2), Constraint::Length(12), Constraint::Length(19)],
            &["directive", "status", "turns", "spend", "tool", "attention", "thread"],
        ),
        false => (&[Constraint::Fill(2)], &["directive", "status", "turns", "spend", "now"]),
    };
    let rows = threads.iter().map(|thread| {
        let common = [&thread.directive, &thread.status, &thread.turns, &thread.spend];
        let more = match (is_wide(area), thread.attention.is_empty()) {
            (true, _) => vec![&thread.tool, &thread.attention, &thread.id],
            (false, true) => vec![&thread.tool],
            (false, false) => vec![&thread.attention],
        };
        Row::new(common.into_iter().chain(more).map(String::as_str).collect::<Vec<_>>())
    });
    let widths = common.iter().chain(more).copied();
    selectable(Table::new(rows, widths).header(header(titles)))
}

/// Whether there is room for all columns.
pub fn is_wide(area: Rect) -> bool {
    area.width >= MIN_WIDE_COLUMNS
}

/// The names of columns.
pub fn header<'a>(names: &[&'a str]) -> Row<'a> {
    Row::new(names.to_vec()).style(Style::new().add_modifier(Modifier::BOLD))
}

/// A table of which one row is selected.
pub fn selectable(table: Table<'_>) -> Table<'_> {
    table.row_highlight_style(Style::new().add_modifier(Modifier::REVERSED)).highlight_symbol("> ")
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn screen(threads: &[TopThread], columns: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, 4)).expect("a terminal");
        let draw = |frame: &mut ratatui::Frame<'_>| {
            frame.render_widget(threads_table(threads, frame.area()), frame.area());
        };
        terminal.draw(draw).expect("drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn children_stand_below_their_parents() {
        let ids: Vec<ThreadId> = (0..6)
            .map(|number| ThreadId::parse(&format!("thread-00000000000{number}")).expect("an id"))
            .collect();
        // 0 started 1 and 2, 1 started 3; 4 and 5 are on their own. The newest come first.
        let above = [None, Some(0), Some(0), Some(1), None, None];
        let newest: Vec<usize> = (0..6).rev().collect();
        let names: Vec<&ThreadId> = newest.iter().map(|at| &ids[*at]).collect();
        let parents: Vec<Option<&ThreadId>> =
            newest.iter().map(|at| above[*at].map(|parent: usize| &ids[parent])).collect();
        let order = |urgent: usize| {
            let places = tree_order(&names, &parents, |at| newest[at] == urgent);
            places.into_iter().map(|at| newest[at]).collect::<Vec<_>>()
        };
        assert_eq!(order(9), [5, 4, 0, 1, 3, 2]);
        assert_eq!(order(3), [0, 1, 3, 2, 5, 4]);
    }

    #[test]
    fn narrow_screens_name_directives_and_attention() {
        let word = str::to_owned;
        let mut threads = [TopThread {
            id: word("thread-000000000001"),
            directive: word("  team/release-notes"),
            status: word("❚❚ suspended"),
            turns: word("12/40"),
            spend: word("$0.0016 of $5.00"),
            tool: word("rye_file_system_write"),
            attention: word("approval"),
        }];
        let everywhere = ["team/release-notes", "suspended", "12/40", "$0.0016 of $5.00", "approval"];
        for columns in [80, 120] {
            let shown = screen(&threads, columns);
            for word in everywhere {
                assert!(shown.contains(word), "{word} in {columns} columns:\n{shown}");
            }
        }
        let wide = screen(&threads, 120);
        assert!(wide.contains("thread-000000000001") && wide.contains("rye_file_sys"), "{wide}");
        threads[0].attention.clear();
        assert!(screen(&threads, 80).contains("rye_file_sys"));
    }
}
