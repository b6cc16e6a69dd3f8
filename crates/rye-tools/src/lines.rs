//! A text file as lines that can be put together again to the byte: endings, a missing final newline and a byte order
//! mark are kept.

use std::fmt::Write as _;

use crate::line_id::LineId;
use crate::show::{LINE_LIMIT, push_cut};

/// How a line ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// `\n`
    Feed,
    /// `\r\n`
    Return,
    /// The end of the file.
    None,
}

impl Ending {
    fn as_str(self) -> &'static str {
        match self {
            Self::Feed => "\n",
            Self::Return => "\r\n",
            Self::None => "",
        }
    }
}

/// One line: its text without its ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a str,
    pub(crate) ending: Ending,
}

/// The lines of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lines<'a> {
    has_mark: bool,
    pub(crate) list: Vec<Line<'a>>,
}

const MARK: &str = "\u{feff}";

impl<'a> Lines<'a> {
    pub(crate) fn of(text: &'a str) -> Self {
        let (has_mark, text) = match text.strip_prefix(MARK) {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let list = text
            .split_inclusive('\n')
            .map(|line| match line.strip_suffix('\n') {
                None => Line { text: line, ending: Ending::None },
                Some(bare) => match bare.strip_suffix('\r') {
                    None => Line { text: bare, ending: Ending::Feed },
                    Some(bare) => Line { text: bare, ending: Ending::Return },
                },
            })
            .collect();
        Self { has_mark, list }
    }

    /// The ending most lines have; `\n` for a file without any.
    pub(crate) fn usual_ending(&self) -> Ending {
        let returns = self.list.iter().filter(|line| line.ending == Ending::Return).count();
        let feeds = self.list.iter().filter(|line| line.ending == Ending::Feed).count();
        if returns > feeds { Ending::Return } else { Ending::Feed }
    }

    /// `lf`, `crlf` or `mixed`.
    pub(crate) fn ending_name(&self) -> &'static str {
        let has = |ending| self.list.iter().any(|line| line.ending == ending);
        match (has(Ending::Feed), has(Ending::Return)) {
            (true, true) => "mixed",
            (false, true) => "crlf",
            (true | false, false) => "lf",
        }
    }

    /// Whether the last line has an ending, as it should. An empty file lacks nothing.
    pub(crate) fn has_final_newline(&self) -> bool {
        self.list.last().is_none_or(|line| line.ending != Ending::None)
    }

    /// The same file with other lines: only the last may lack an ending, and it does if this file's last does.
    pub(crate) fn with(&self, mut list: Vec<Line<'a>>) -> Self {
        let usual = self.usual_ending();
        let last = list.len().saturating_sub(1);
        let has_final_newline = self.has_final_newline();
        for (index, line) in list.iter_mut().enumerate() {
            if index == last && !has_final_newline {
                line.ending = Ending::None;
            } else if line.ending == Ending::None {
                line.ending = usual;
            }
        }
        Self { has_mark: self.has_mark, list }
    }

    pub(crate) fn to_text(&self) -> String {
        let mut out = String::with_capacity(self.list.iter().map(|line| line.text.len() + 2).sum());
        if self.has_mark {
            out.push_str(MARK);
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
    push_cut(out, text, LINE_LIMIT);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lines_put_together_are_the_file(text in "\u{feff}?([ab\u{e9}\r\n]|\r\n){0,40}") {
            let lines = Lines::of(&text);
            prop_assert_eq!(lines.to_text(), text.as_str());
            prop_assert_eq!(lines.with(lines.list.clone()).to_text(), text.as_str());
        }
    }

    #[test]
    fn endings_are_told_apart() {
        let lines = Lines::of("a\r\nb\nc\r\nd");
        assert_eq!(
            lines.list.iter().map(|line| (line.text, line.ending)).collect::<Vec<_>>(),
            [("a", Ending::Return), ("b", Ending::Feed), ("c", Ending::Return), ("d", Ending::None)]
        );
        assert_eq!((lines.usual_ending(), lines.ending_name()), (Ending::Return, "mixed"));
        assert!(!lines.has_final_newline() && Lines::of("").has_final_newline());
    }
}
