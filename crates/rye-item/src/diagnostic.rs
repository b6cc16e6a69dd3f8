//! What a parser gives back: fields, where they stand, and everything that is wrong, all at once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::text;

/// A place in a text: line and column, both from 1, columns counted in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct SourcePosition {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
}

impl SourcePosition {
    /// The place of the byte `offset` in `text`; an offset beyond the end gives the end.
    #[must_use]
    pub fn from_offset(text: &str, offset: usize) -> Self {
        let mut end = offset.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        Self { line: saturate(line), column: saturate(column) }
    }
}

fn saturate(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.line, self.column)
    }
}

/// One thing that is wrong with an item, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// What is wrong, in words for the author of the item.
    pub message: String,
    /// The field it concerns, if it concerns one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Where it stands, if it stands somewhere.
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    pub position: Option<SourcePosition>,
    /// The line it stands on, if it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snippet: Option<Snippet>,
}

/// A line of a text and the part of it that a diagnostic is about. Characters that do not show as themselves are
/// replaced one by one, so that columns stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snippet {
    /// The line, or the part of it around the place.
    pub text: String,
    /// How many characters of it stand before the place.
    pub offset: usize,
    /// How many characters the place has, at least one.
    pub length: usize,
}

/// Characters of a line that a snippet shows.
const MAX_SNIPPET_CHARS: usize = 100;
/// Characters of a long line that a snippet shows before the place.
const MAX_SNIPPET_LEAD: usize = 40;

impl Snippet {
    fn new(line: &str, column: usize) -> Self {
        let show = |character: char| match character {
            '\t' => ' ',
            _ if text::is_plainly_visible(character) => character,
            _ => char::REPLACEMENT_CHARACTER,
        };
        let line: Vec<char> = line.trim_end_matches(['\r', '\n']).chars().map(show).collect();
        let at = column.saturating_sub(1).min(line.len());
        let start = if line.len() <= MAX_SNIPPET_CHARS { 0 } else { at.saturating_sub(MAX_SNIPPET_LEAD) };
        let end = line.len().min(start + MAX_SNIPPET_CHARS);
        let is_word = |character: &char| character.is_alphanumeric() || "_-.".contains(*character);
        let rest = &line[at..end];
        let bracket = usize::from(rest.first() == Some(&'<'));
        let word = rest.iter().skip(bracket).take_while(|character| is_word(character)).count();
        Self { text: line[start..end].iter().collect(), offset: at - start, length: (bracket + word).max(1) }
    }
}

/// Adds to each diagnostic the line of `source` that it stands on.
pub fn attach_snippets(diagnostics: &mut [Diagnostic], source: &str) {
    if diagnostics.iter().all(|diagnostic| diagnostic.position.is_none()) {
        return;
    }
    let lines: Vec<&str> = source.split('\n').collect();
    for diagnostic in diagnostics {
        let line = |line: u32| lines.get(usize::try_from(line).ok()?.checked_sub(1)?).copied();
        diagnostic.snippet = diagnostic.position.and_then(|position| {
            let column = usize::try_from(position.column).unwrap_or(usize::MAX);
            line(position.line).filter(|line| !line.trim().is_empty()).map(|line| Snippet::new(line, column))
        });
    }
}

impl Diagnostic {
    /// A problem of the text as a whole. What the message quotes from an item is made safe to show, on one line.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: sanitize(message.into()), field: None, position: None, snippet: None }
    }

    /// The same problem, standing at `position`.
    #[must_use]
    pub fn with_position(mut self, position: SourcePosition) -> Self {
        self.position = Some(position);
        self
    }

    /// The same problem, of `field`.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(sanitize(field.into()));
        self
    }
}

fn sanitize(words: String) -> String {
    let is_safe = matches!(text::strip_controls(&words), Cow::Borrowed(_)) && !words.contains(['\n', '\t']);
    if is_safe { words } else { text::one_line(&words) }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(position) => write!(formatter, "{position}: {}", self.message),
            None => formatter.write_str(&self.message),
        }
    }
}

/// What a parser read from a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParsedItem {
    /// Fields in the order of the source.
    pub fields: Map<String, Value>,
    /// Where each field stands.
    pub positions: BTreeMap<String, SourcePosition>,
    /// Everything wrong: an item that has problems is neither signed nor run.
    pub problems: Vec<Diagnostic>,
    /// What works but should be changed.
    pub warnings: Vec<Diagnostic>,
    /// Whether every field was read in spite of the problems, so that a field that is not there is missing.
    pub is_complete: bool,
}

impl ParsedItem {
    /// A parse that came to nothing but one problem.
    #[must_use]
    pub fn from_problem(problem: Diagnostic) -> Self {
        Self { problems: vec![problem], ..Self::default() }
    }

    /// Sets a field and remembers where it stands.
    pub fn set(&mut self, field: &str, value: Value, position: Option<SourcePosition>) {
        self.fields.insert(field.to_owned(), value);
        if let Some(position) = position {
            self.positions.insert(field.to_owned(), position);
        }
    }

    /// A field's text, if it is a string.
    #[must_use]
    pub fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_text_is_sanitized() {
        let problem = Diagnostic::new("got 'a\u{1b}[31m\u{2}b\nc'").with_field("a\u{9b}2Jb\t\u{202e}");
        assert_eq!((problem.message.as_str(), problem.field.as_deref()), ("got 'ab c'", Some("ab")));
        assert_eq!(Diagnostic::new("got  'é'").message, "got  'é'");
    }

    #[test]
    fn snippets_show_the_line_and_the_word() {
        let snippet = |source: &str, line, column| {
            let problem = Diagnostic::new("x").with_position(SourcePosition { line, column });
            let mut problems = [problem];
            attach_snippets(&mut problems, source);
            problems[0].snippet.clone().map(|one| (one.text, one.offset, one.length))
        };
        assert_eq!(snippet("a\n\t<hooks x='1'>\r\n", 2, 2), Some((" <hooks x='1'>".to_owned(), 1, 6)));
        assert_eq!(snippet("é\u{202e}b c", 1, 3), Some(("é\u{fffd}b c".to_owned(), 2, 1)));
        assert_eq!(snippet("ab", 1, 90), Some(("ab".to_owned(), 2, 1)));
        assert_eq!((snippet("", 1, 1), snippet("a", 7, 1)), (None, None));
        let (text, offset, length) =
            snippet(&format!("{}word {}", "x".repeat(300), "y".repeat(300)), 1, 301).unwrap();
        assert_eq!((text.chars().count(), offset, length), (MAX_SNIPPET_CHARS, MAX_SNIPPET_LEAD, 4));
    }
}
