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
}

impl Diagnostic {
    /// A problem of the text as a whole. What the message quotes from an item is made safe to show, on one line.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: sanitize(message.into()), field: None, position: None }
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
}
