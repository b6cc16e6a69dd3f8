//! Lines whose indentation Python refuses. The grammar reads them all the same: it ends a block where a line stands
//! further left, and takes a line that stands further right for one more of the block.

use tree_sitter::{Language, Node};

use super::normalize_line_ends;
use crate::diagnostic::{Diagnostic, SourcePosition};
use crate::parse::syntax;

/// The parts of a statement that stand as far right as the statement itself.
const CLAUSES: [&str; 5] =
    ["elif_clause", "else_clause", "except_clause", "except_group_clause", "finally_clause"];

/// The distance of tab stops.
const TAB_WIDTH: usize = 8;

/// The first line whose indentation Python refuses; `None` if the source cannot be read at all.
#[must_use]
pub fn indentation_problem(text: &str) -> Option<Diagnostic> {
    let text = normalize_line_ends(text);
    let tree = syntax::parse_tree(&text, &Language::new(tree_sitter_python::LANGUAGE)).ok()?;
    let root = tree.root_node();
    if root.has_error() {
        return None;
    }
    let reader = IndentationReader { text: &text };
    let mut pending = vec![root];
    let mut first: Option<(usize, &'static str)> = None;
    while let Some(node) = pending.pop() {
        let found = reader.problem(node);
        first = first.into_iter().chain(found).min_by_key(|(offset, _)| *offset);
        pending.extend(syntax::children(node));
    }
    first.map(|(offset, reason)| {
        let position = SourcePosition::from_offset(&text, offset);
        Diagnostic::new(format!("Indentation error: {reason}")).with_position(position)
    })
}

/// How far right a line begins: with tabs of eight columns, and with tabs of one. Python compares both.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Indentation {
    wide: usize,
    narrow: usize,
}

impl Indentation {
    fn of(blank: &str) -> Self {
        blank.chars().fold(Self::default(), |before, character| match character {
            '\t' => Self { wide: (before.wide / TAB_WIDTH + 1) * TAB_WIDTH, narrow: before.narrow + 1 },
            '\x0c' => Self::default(),
            _ => Self { wide: before.wide + 1, narrow: before.narrow + 1 },
        })
    }

    fn is_deeper_than(self, other: Self) -> bool {
        self.wide > other.wide && self.narrow > other.narrow
    }
}

struct IndentationReader<'text> {
    text: &'text str,
}

impl IndentationReader<'_> {
    /// What is wrong with the lines that stand directly in `node`: where, and why.
    fn problem(&self, node: Node<'_>) -> Option<(usize, &'static str)> {
        match node.kind() {
            "module" => self.uneven_line(node, Some(Indentation::default())),
            "block" => self.block_problem(node),
            "decorated_definition" => self.uneven_line(node, self.indentation(node)),
            _ => self.uneven_clause(node),
        }
    }

    fn block_problem(&self, block: Node<'_>) -> Option<(usize, &'static str)> {
        let header = block.parent()?;
        let Some(first) = syntax::children(block).first().copied() else {
            return Some((header.start_byte(), "an indented block must follow this line"));
        };
        let expected = self.indentation(first);
        if let (Some(inner), Some(outer)) = (expected, self.indentation(header))
            && !inner.is_deeper_than(outer)
        {
            return Some((first.start_byte(), "tabs and spaces are mixed"));
        }
        self.uneven_line(block, expected)
    }

    /// The first line in `node` that does not stand where its other lines do.
    fn uneven_line(&self, node: Node<'_>, expected: Option<Indentation>) -> Option<(usize, &'static str)> {
        let expected = expected?;
        let mut lines = syntax::children(node).into_iter();
        let uneven = lines.find(|line| self.indentation(*line).is_some_and(|own| own != expected))?;
        Some((uneven.start_byte(), "the line does not begin where the lines of its block do"))
    }

    /// The first `else` or the like that does not stand where its statement does.
    fn uneven_clause(&self, statement: Node<'_>) -> Option<(usize, &'static str)> {
        let clauses = syntax::children(statement).into_iter().filter(|part| CLAUSES.contains(&part.kind()));
        let clauses: Vec<_> = clauses.collect();
        if clauses.is_empty() {
            return None;
        }
        let expected = self.indentation(statement)?;
        let mut clauses = clauses.into_iter();
        let uneven = clauses.find(|clause| self.indentation(*clause).is_some_and(|own| own != expected))?;
        Some((uneven.start_byte(), "the line does not begin where its statement does"))
    }

    /// How far right the line of a node begins; `None` if the node is not the first of its line, or the line continues
    /// the one before.
    fn indentation(&self, node: Node<'_>) -> Option<Indentation> {
        let before = self.text.get(..node.start_byte())?;
        // Only blanks are passed on the way back: a line may hold very many statements.
        let previous = before.trim_end_matches([' ', '\t', '\x0c', '\u{feff}']);
        let is_first = previous.is_empty() || previous.ends_with('\n');
        let is_continued = previous.trim_end_matches(['\r', '\n']).ends_with('\\');
        let blank = before.get(previous.len()..)?;
        (is_first && !is_continued).then(|| Indentation::of(blank.trim_start_matches('\u{feff}')))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(text: &str) -> Option<String> {
        indentation_problem(text).map(|problem| problem.to_string())
    }

    #[test]
    fn refused_indentation_is_found_with_its_line() {
        const UNEVEN: &str = "the line does not begin where the lines of its block do";
        const EMPTY: &str = "an indented block must follow this line";
        for (text, place, reason) in [
            ("def f():\n    x = 1\n      y = 2\n", "3:7", UNEVEN),
            ("def f(a):\n    if a:\n        x = 1\n      y = 2\n", "4:7", UNEVEN),
            ("x = 1\n  y = 2\n", "2:3", UNEVEN),
            ("def f(a):\nreturn 1\n", "1:1", EMPTY),
            ("def f(a):\n    if a:\n    return 1\n", "2:5", EMPTY),
            ("def f(a):\n    # only words\n", "1:1", EMPTY),
            ("def f(a):\n    if a:\n\treturn 1\n", "3:2", "tabs and spaces are mixed"),
            (
                "if a:\n    x = 1\n  else:\n    x = 2\n",
                "3:3",
                "the line does not begin where its statement does",
            ),
        ] {
            assert_eq!(problem(text), Some(format!("{place}: Indentation error: {reason}")), "{text:?}");
        }
    }

    #[test]
    fn indentation_that_python_takes_is_fine() {
        for text in [
            "",
            "# a\n\nx = 1; y = 2\n",
            "def f(): return 1\n",
            "class A:\n\n  # words\n  x = 1\n# words\n  y = 2\n",
            "if a:\n\tx = 1\n\tif x:\n\t\ty = 2\nelse:\n        x = 2\n",
            "x = [\n1,\n      2]\ny = '''\n  a\nb'''\n",
            "x = 1; \\\n  y = 2\n",
            "def f(\n        a):\n    return a\n",
            "@d\nclass A:\n    @d\n    def f(self):\n        ...\n",
            "try:\n    a\nexcept B:\n    c\nelse:\n    d\nfinally:\n    e\n",
            "match a:\n    case 1:\n        b\n    case _:\n        c\n",
            "if a:\r\n    x = 1\r\n    y = 2\r\n",
        ] {
            assert_eq!(problem(text), None, "{text:?}");
        }
    }

    #[test]
    fn unreadable_source_has_no_indentation_problem() {
        assert_eq!(problem("def f(\n  x = \n"), None);
    }
}
