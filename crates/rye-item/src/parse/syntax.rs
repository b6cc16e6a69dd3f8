//! What the parsers of program text share: the syntax tree within limits, the place of its first error, and the
//! turning of a read literal into a field or a problem.
//!
//! What counts as a literal is each language's own business.

use std::ops::ControlFlow;
use std::time::Duration;

use serde_json::Value;
use tree_sitter::{Language, Node, ParseOptions, ParseState, Parser, Tree};

use crate::diagnostic::{Diagnostic, ParsedItem, SourcePosition};

/// How deep a literal may be nested: enough for any schema written by hand, little for the stack.
pub(super) const MAX_DEPTH: usize = 64;

/// The longest text that is given to a grammar, in bytes: its tree takes many times the room.
const MAX_SOURCE_BYTES: usize = 2 * 1024 * 1024;

/// How much of the processor's time a grammar may take, without waiting for the processor. Text without errors is
/// read in linear time and far from this limit; only the recovery from errors can take longer, so running out of time
/// never turns a good text into a bad one.
const PARSE_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 300 } else { 5 });

/// Names by which the engine knows a tool: a value that cannot be read is an error, not an unrelated variable.
const METADATA_NAMES: [&str; 7] = [
    "__version__",
    "__tool_type__",
    "__executor_id__",
    "__category__",
    "__tool_description__",
    "__tool_name__",
    // A restriction that cannot be read must not count as none.
    "SANDBOX",
];

/// Names that may well be computed, but then do nothing.
const SETTING_NAMES: [&str; 4] = ["CONFIG_SCHEMA", "ENV_CONFIG", "CONFIG", "CONFIG_RESOLVE"];

/// Why an expression did not become a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LiteralError {
    /// It is not a literal, or not one that JSON can hold.
    NotLiteral,
    /// It is nested too deep, from this byte on.
    TooDeep(usize),
    /// The language itself would refuse it, at this byte and for this reason.
    Malformed(usize, &'static str),
}

/// Parses `text` with `language`; fails if the text is beyond the limits.
pub(super) fn parse_tree(text: &str, language: &Language) -> Result<Tree, Diagnostic> {
    parse_tree_within(text, language, PARSE_TIMEOUT)
}

fn parse_tree_within(text: &str, language: &Language, timeout: Duration) -> Result<Tree, Diagnostic> {
    if text.len() > MAX_SOURCE_BYTES {
        let mebibytes = MAX_SOURCE_BYTES / (1024 * 1024);
        return Err(Diagnostic::new(format!("source text is longer than {mebibytes} MiB")));
    }
    if let Some(offset) = text.find('\0') {
        return Err(Diagnostic::new("Syntax error: NUL byte")
            .with_position(SourcePosition::from_offset(text, offset)));
    }
    let mut parser = Parser::new();
    parser
        .set_language(language)
        .map_err(|error| Diagnostic::new(format!("cannot use the grammar of the language: {error}")))?;

    let bytes = text.as_bytes();
    let start = processor_time();
    let mut reached = 0;
    let mut check_time = |state: &ParseState| {
        reached = state.current_byte_offset();
        if processor_time().saturating_sub(start) >= timeout {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let tree = parser.parse_with_options(
        &mut |offset, _| bytes.get(offset..).unwrap_or_default(),
        None,
        Some(ParseOptions::new().progress_callback(&mut check_time)),
    );
    tree.ok_or_else(|| {
        Diagnostic::new("Syntax error: too tangled to be read in time")
            .with_position(SourcePosition::from_offset(text, reached))
    })
}

/// How long this thread has run on a processor.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// The statements of a tree that hold no errors, without comments.
pub(super) fn valid_statements(root: Node<'_>) -> Vec<Node<'_>> {
    if root.is_error() {
        // What stands directly in an error may come from within a block.
        return Vec::new();
    }
    children(root).into_iter().filter(|statement| !statement.has_error()).collect()
}

/// The named children of a node, without comments.
pub(super) fn children(node: Node<'_>) -> Vec<Node<'_>> {
    let mut cursor = node.walk();
    node.named_children(&mut cursor).filter(|child| !child.is_extra() || child.is_error()).collect()
}

/// The source text of a node.
pub(super) fn text_of<'a>(node: Node<'_>, text: &'a str) -> &'a str {
    text.get(node.byte_range()).unwrap_or_default()
}

/// Refuses a literal that would stand below `depth` others.
pub(super) fn check_depth(node: Node<'_>, depth: usize) -> Result<(), LiteralError> {
    if depth < MAX_DEPTH { Ok(()) } else { Err(LiteralError::TooDeep(node.start_byte())) }
}

/// A JSON integer, if the number fits one.
pub(super) fn integer(number: i128) -> Result<Value, LiteralError> {
    i64::try_from(number)
        .map(Value::from)
        .or_else(|_| u64::try_from(number).map(Value::from))
        .map_err(|_| LiteralError::NotLiteral)
}

/// A JSON number, if the number is finite.
pub(super) fn float(number: f64) -> Result<Value, LiteralError> {
    serde_json::Number::from_f64(number).map(Value::Number).ok_or(LiteralError::NotLiteral)
}

/// The number that `rest` begins with, of exactly `digits` hexadecimal digits.
pub(super) fn hexadecimal(rest: &str, digits: usize) -> Option<u32> {
    let digits = rest.get(..digits)?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_number { u32::from_str_radix(digits, 16).ok() } else { None }
}

/// What has been read so far from one text.
pub(super) struct FieldCollector<'text> {
    locator: ForwardLocator<'text>,
    parsed: ParsedItem,
}

impl<'text> FieldCollector<'text> {
    /// Nothing yet but the first syntax error of the tree, if it has one.
    pub(super) fn new(text: &'text str, root: Node<'_>) -> Self {
        let mut parsed = ParsedItem::default();
        if root.has_error() {
            let position = SourcePosition::from_offset(text, first_error(root));
            parsed.problems.push(Diagnostic::new("Syntax error").with_position(position));
        }
        Self { locator: ForwardLocator { text, offset: 0, line: 1, column: 1 }, parsed }
    }

    /// Takes what was assigned to `name` at `offset`: a value as a field, a refusal as the problem it may be.
    pub(super) fn record(&mut self, name: &str, offset: usize, result: Result<Value, LiteralError>) {
        let (message, problem_offset) = match result {
            Ok(value) => {
                let position = self.locator.position(offset);
                self.parsed.set(name, value, Some(position));
                return;
            }
            Err(LiteralError::NotLiteral) if METADATA_NAMES.contains(&name) => {
                (format!("`{name}` must be a plain literal"), offset)
            }
            Err(LiteralError::NotLiteral) => {
                if SETTING_NAMES.contains(&name) {
                    let message = format!("`{name}` is not a plain literal: it is ignored");
                    let position = self.locator.position(offset);
                    self.parsed
                        .warnings
                        .push(Diagnostic::new(message).with_field(name).with_position(position));
                    self.parsed.fields.shift_remove(name);
                }
                return;
            }
            Err(LiteralError::TooDeep(error_offset)) => {
                (format!("`{name}` is nested deeper than {MAX_DEPTH} levels"), error_offset)
            }
            Err(LiteralError::Malformed(error_offset, reason)) => {
                (format!("Syntax error: {reason}"), error_offset)
            }
        };
        let position = self.locator.position(problem_offset);
        self.parsed.problems.push(Diagnostic::new(message).with_field(name).with_position(position));
    }

    /// All that was read.
    pub(super) fn finish(self) -> ParsedItem {
        self.parsed
    }
}

/// Finds positions one after the other without counting from the start each time.
struct ForwardLocator<'text> {
    text: &'text str,
    offset: usize,
    line: u32,
    column: u32,
}

impl ForwardLocator<'_> {
    fn position(&mut self, offset: usize) -> SourcePosition {
        if offset < self.offset {
            (self.offset, self.line, self.column) = (0, 1, 1);
        }
        for character in self.text.get(self.offset..offset).unwrap_or_default().chars() {
            if character == '\n' {
                self.line = self.line.saturating_add(1);
                self.column = 1;
            } else {
                self.column = self.column.saturating_add(1);
            }
        }
        self.offset = offset;
        SourcePosition { line: self.line, column: self.column }
    }
}

/// Where the first error of a tree stands.
pub(super) fn first_error(root: Node<'_>) -> usize {
    let mut node = root;
    loop {
        let found = first_error_node(node);
        if !found.is_error() {
            return found.start_byte();
        }
        // Recovery may put the whole statements before the mistake into the error as well: the first thing that is not
        // one is where it went wrong.
        let mut cursor = found.walk();
        let is_comment = |child: &Node<'_>| child.is_extra() && !child.is_error();
        let is_whole =
            |child: &Node<'_>| !child.has_error() && (is_comment(child) || is_statement(child.kind()));
        match found.children(&mut cursor).find(|child| !is_whole(child)) {
            Some(broken) if broken.has_error() => node = broken,
            Some(broken) => return broken.start_byte(),
            None if found.child_count() == 0 => return found.start_byte(),
            None => return found.end_byte(),
        }
    }
}

/// The first node of a tree that is an error or missing.
fn first_error_node(root: Node<'_>) -> Node<'_> {
    let mut cursor = root.walk();
    loop {
        let node = cursor.node();
        if node.is_error() || node.is_missing() {
            return node;
        }
        let has_moved = (node.has_error() && cursor.goto_first_child()) || cursor.goto_next_sibling();
        if !has_moved {
            return node;
        }
    }
}

fn is_statement(kind: &str) -> bool {
    ["_statement", "_definition", "_declaration", "hash_bang_line"]
        .iter()
        .any(|suffix| kind.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python() -> Language {
        Language::new(tree_sitter_python::LANGUAGE)
    }

    fn parse_error(text: &str, time_limit: Duration) -> Option<String> {
        parse_tree_within(text, &python(), time_limit).err().map(|problem| problem.to_string())
    }

    #[test]
    fn parse_timeout_is_a_problem() {
        let text = "x = 1\n".repeat(1000);
        assert_eq!(parse_error(&text, PARSE_TIMEOUT), None);
        let problem = parse_error(&text, Duration::ZERO);
        assert!(
            problem
                .is_some_and(|problem| problem.ends_with(": Syntax error: too tangled to be read in time"))
        );
    }

    #[test]
    fn nul_bytes_and_huge_texts_are_refused() {
        assert_eq!(parse_error("a\n\0", PARSE_TIMEOUT), Some("2:1: Syntax error: NUL byte".to_owned()));
        assert_eq!(
            parse_error(&" ".repeat(3 << 20), PARSE_TIMEOUT),
            Some("source text is longer than 2 MiB".to_owned())
        );
    }

    #[test]
    fn positions_are_found_forwards_and_backwards() {
        let text = "é1\r\n345\n";
        let mut locator = ForwardLocator { text, offset: 0, line: 1, column: 1 };
        for offset in [0, 2, 3, 5, 6, 9, 2, 0] {
            assert_eq!(locator.position(offset), SourcePosition::from_offset(text, offset), "{offset}");
        }
    }

    #[test]
    fn first_error_is_in_the_broken_line() {
        let head = "a = 1\nb = 2\n\n";
        for (broken, expected_line) in [
            ("def f(x)\n    y = x\n    return y\n", 4),
            ("def f(x, y)\n    z = 1\n    return {\"a\": z}\n", 4),
            ("def f(x):\n    if x\n        return 1\n    return 2\n", 5),
            ("def f(x):\n    y = g(1,\n    return y\n", 5),
            ("def f(x):\n    return = 1\n", 5),
            ("class A\n    b = 1\n", 4),
        ] {
            let text = format!("{head}{broken}");
            let tree = parse_tree(&text, &python()).map_err(|problem| problem.to_string());
            let line =
                tree.map(|tree| SourcePosition::from_offset(&text, first_error(tree.root_node())).line);
            assert_eq!(line, Ok(expected_line), "{broken:?}");
        }
    }

    #[test]
    fn first_error_is_earliest_in_text() {
        for (text, expected) in
            [("a = = 1\nb = = 2\n", 4), ("a = 1\nb = (\n", 6), ("if x:\n    a = = 1\n", 14)]
        {
            let tree = parse_tree(text, &python()).map_err(|problem| problem.to_string());
            assert_eq!(tree.map(|tree| first_error(tree.root_node())), Ok(expected), "{text:?}");
        }
    }
}
