//! A text file as lines that can be put together again to the byte: endings, a missing final newline and a byte order
//! mark are kept.

use std::fmt::Write as _;

use crate::display::{MAX_LINE_CHARS, push_truncated};
use crate::line_id::LineId;

/// How a line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineEnding {
    /// `\n`
    Lf,
    /// `\r\n`
    CrLf,
    /// The end of the file.
    None,
}

impl LineEnding {
    fn as_str(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::CrLf => "\r\n",
            Self::None => "",
        }
    }
}

/// One line: its text without its ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a str,
    pub(crate) ending: LineEnding,
}

/// The lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lines<'a> {
    has_bom: bool,
    pub(crate) list: Vec<Line<'a>>,
}

const BYTE_ORDER_MARK: &str = "\u{feff}";

impl<'a> Lines<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let (has_bom, text) = match text.strip_prefix(BYTE_ORDER_MARK) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let list = text
            .split_inclusive('\n')
            .map(|line| match line.strip_suffix('\n') {
                None => Line { text: line, ending: LineEnding::None },
                Some(bare) => match bare.strip_suffix('\r') {
                    None => Line { text: bare, ending: LineEnding::Lf },
                    Some(bare) => Line { text: bare, ending: LineEnding::CrLf },
                },
            })
            .collect();
        Self { has_bom, list }
    }

    /// The ending most lines have; `\n` for a file without any.
    pub(crate) fn dominant_ending(&self) -> LineEnding {
        let returns = self.list.iter().filter(|line| line.ending == LineEnding::CrLf).count();
        let feeds = self.list.iter().filter(|line| line.ending == LineEnding::Lf).count();
        if returns > feeds { LineEnding::CrLf } else { LineEnding::Lf }
    }

    /// `lf`, `crlf` or `mixed`.
    pub(crate) fn ending_name(&self) -> &'static str {
        let has = |ending| self.list.iter().any(|line| line.ending == ending);
        match (has(LineEnding::Lf), has(LineEnding::CrLf)) {
            (true, true) => "mixed",
            (false, true) => "crlf",
            (true | false, false) => "lf",
        }
    }

    /// Whether the last line has an ending, as it should. An empty file lacks nothing.
    pub(crate) fn has_final_newline(&self) -> bool {
        self.list.last().is_none_or(|line| line.ending != LineEnding::None)
    }

    /// The same file with other lines: only the last may lack an ending, and it does if this file's last does.
    pub(crate) fn with_lines(&self, mut list: Vec<Line<'a>>) -> Self {
        let dominant = self.dominant_ending();
        let last = list.len().saturating_sub(1);
        let has_final_newline = self.has_final_newline();
        for (index, line) in list.iter_mut().enumerate() {
            if index == last && !has_final_newline {
                line.ending = LineEnding::None;
            } else if line.ending == LineEnding::None {
                line.ending = dominant;
            }
        }
        Self { has_bom: self.has_bom, list }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut out = String::with_capacity(self.list.iter().map(|line| line.text.len() + 2).sum());
        if self.has_bom {
            out.push_str(BYTE_ORDER_MARK);
        }
        for line in &self.list {
            out.push_str(line.text);
            out.push_str(line.ending.as_str());
        }
        out
    }
}

/// Writes one line as tools show it: `12 Lk3f9x2q|text`, or `12|text` without an id.
pub(crate) fn push_numbered(out: &mut String, number: usize, id: Option<LineId>, text: &str) {
    // Writing to a string cannot fail.
    let _ = match id {
        Some(id) => write!(out, "{number} {id}|"),
        None => write!(out, "{number}|"),
    };
    push_truncated(out, text, MAX_LINE_CHARS);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_round_trip(text in "\u{feff}?([ab\u{e9}\r\n]|\r\n){0,40}") {
            let lines = Lines::parse(&text);
            prop_assert_eq!(lines.to_text(), text.as_str());
            prop_assert_eq!(lines.with_lines(lines.list.clone()).to_text(), text.as_str());
        }
    }

    #[test]
    fn line_endings_are_detected() {
        let lines = Lines::parse("a\r\nb\nc\r\nd");
        assert_eq!(
            lines.list.iter().map(|line| (line.text, line.ending)).collect::<Vec<_>>(),
            [
                ("a", LineEnding::CrLf),
                ("b", LineEnding::Lf),
                ("c", LineEnding::CrLf),
                ("d", LineEnding::None)
            ]
        );
        assert_eq!((lines.dominant_ending(), lines.ending_name()), (LineEnding::CrLf, "mixed"));
        assert!(!lines.has_final_newline() && Lines::parse("").has_final_newline());
    }
}
