//! Reads tables of a TOML text strictly: every problem is collected, with the line it stands on.

use rye_item::{Diagnostic, SourcePosition};
use toml_edit::{Document, Item, TableLike};

use super::source::SourceFields;

/// Collects what is wrong with a text.
pub(super) struct TableReader<'a> {
    text: &'a str,
    pub(super) problems: Vec<Diagnostic>,
}

impl<'a> TableReader<'a> {
    /// Reads the text of a file; `None` if it is not TOML.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<(Self, Document<&'a str>), Vec<Diagnostic>> {
        let text = std::str::from_utf8(bytes).map_err(|_| vec![Diagnostic::new("it is not UTF-8")])?;
        match Document::parse(text) {
            Ok(document) => Ok((Self { text, problems: Vec::new() }, document)),
            Err(error) => {
                let problem = Diagnostic::new(error.message());
                let position = error.span().map(|span| SourcePosition::from_offset(text, span.start));
                Err(vec![position.into_iter().fold(problem, Diagnostic::with_position)])
            }
        }
    }

    /// Notes a problem at a place of the text.
    pub(super) fn problem(&mut self, span: Option<std::ops::Range<usize>>, message: impl Into<String>) {
        let problem = Diagnostic::new(message);
        let position = span.map(|span| SourcePosition::from_offset(self.text, span.start));
        self.problems.push(position.into_iter().fold(problem, Diagnostic::with_position));
    }

    /// Notes each key of `table` that is not allowed.
    pub(super) fn check_keys(&mut self, table: &dyn TableLike, allowed: &[&str]) {
        for (name, _) in table.iter().filter(|(name, _)| !allowed.contains(name)) {
            let span = table.key(name).and_then(toml_edit::Key::span);
            self.problem(span, format!("unknown key `{name}`; known: {}", allowed.join(", ")));
        }
    }

    /// The text under `key`; a missing one is a problem if it is required.
    pub(super) fn text(
        &mut self,
        table: &dyn TableLike,
        key: &str,
        required_at: Option<std::ops::Range<usize>>,
    ) -> Option<String> {
        match table.get(key) {
            None => {
                if required_at.is_some() {
                    self.problem(required_at, format!("`{key}` is missing"));
                }
                None
            }
            Some(item) => match item.as_str() {
                Some(text) => Some(text.to_owned()),
                None => {
                    self.problem(item.span(), format!("`{key}` is not a text"));
                    None
                }
            },
        }
    }

    /// The text under `key`, read by `parse`.
    pub(super) fn parsed<T, E: std::fmt::Display>(
        &mut self,
        table: &dyn TableLike,
        key: &str,
        required_at: Option<std::ops::Range<usize>>,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(table, key, required_at)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.problem(table.get(key).and_then(Item::span), format!("`{key}`: {error}"));
                None
            }
        }
    }

    /// What is written beside the address of a source.
    pub(super) fn source_fields(&mut self, table: &dyn TableLike) -> SourceFields {
        SourceFields {
            sha256: self.text(table, "sha256", None),
            rev: self.text(table, "rev", None),
            path: self.text(table, "path", None),
        }
    }
}
