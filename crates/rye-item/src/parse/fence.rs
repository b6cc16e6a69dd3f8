//! The metadata fence of a markdown text: which code block holds the metadata, what stands before it and after.
//!
//! A CommonMark-like walk over lines: everything inside another code block is skipped, so that a quoted example
//! is never taken for the metadata. What the block means is left to the parsers.

pub(crate) mod locator;
pub(crate) mod markup;

use std::ops::Range;

use crate::diagnostic::SourcePosition;

/// The metadata block of a text, as byte ranges of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Where the opening line starts.
    pub opener: usize,
    /// What stands inside the block, without its two fence lines.
    pub content: Range<usize>,
    /// What stands before the opening line.
    pub preamble: Range<usize>,
    /// What stands after the closing line.
    pub body: Range<usize>,
}

/// Why a text has no metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FenceError {
    /// No code block of that kind stands outside the other code blocks.
    #[error("code block not found")]
    Missing,
    /// A code block is opened and runs to the end of the text.
    #[error("unclosed code fence")]
    Unclosed {
        /// Where it is opened.
        position: SourcePosition,
    },
}

/// Finds the first code block whose info string is exactly `language`, opened at column 1 with three or more backticks.
///
/// It ends at the first line, again from column 1, of at least as many backticks and nothing else. In a
/// three-backtick `xml` block such a line has no effect inside CDATA or inside an opaque element, unless then no
/// end would be left.
///
/// # Errors
/// When there is no such block, or when it or a block before it is never closed.
pub fn find_block(text: &str, language: &str) -> Result<Fence, FenceError> {
    let mut open: Option<(usize, Marker<'_>)> = None;
    for line in lines(text, 0) {
        match open {
            Some((_, marker)) => {
                if marker.is_closed_by(strip_indent(line.text)) {
                    open = None;
                }
            }
            None => {
                let Some(marker) = strip_indent(line.text).and_then(Marker::parse) else {
                    continue;
                };
                let is_match =
                    line.text.starts_with('`') && marker.character == '`' && marker.info == language;
                if is_match {
                    return find_block_end(text, language, line.start, marker, line.end);
                }
                open = Some((line.start, marker));
            }
        }
    }
    match open {
        Some((start, _)) => Err(unclosed_error(text, start)),
        None => Err(FenceError::Missing),
    }
}

/// Finds the end of the block that opens at `opener` and whose content starts at `start`.
fn find_block_end(
    text: &str,
    language: &str,
    opener: usize,
    marker: Marker<'_>,
    start: usize,
) -> Result<Fence, FenceError> {
    let protects_markup = language == "xml" && marker.length == 3;
    let protected = if protects_markup { markup::protected_ranges(text, start) } else { Vec::new() };
    let mut ranges = protected.iter().peekable();
    let mut first = None;
    let mut found = None;
    for line in lines(text, start) {
        if !marker.is_closed_by(Some(line.text)) {
            continue;
        }
        let candidate = (line.start, line.end);
        while ranges.next_if(|range| range.end <= line.start).is_some() {}
        if ranges.peek().is_none_or(|range| line.start < range.start) {
            found = Some(candidate);
            break;
        }
        first = first.or(Some(candidate));
    }
    let (end, after) = found.or(first).ok_or_else(|| unclosed_error(text, opener))?;
    Ok(Fence { opener, content: start..end, preamble: 0..opener, body: after..text.len() })
}

fn unclosed_error(text: &str, opener: usize) -> FenceError {
    FenceError::Unclosed { position: SourcePosition::from_offset(text, opener) }
}

/// The run of characters that opens a code block, and the info string after it.
#[derive(Clone, Copy)]
struct Marker<'a> {
    character: char,
    length: usize,
    info: &'a str,
}

impl<'a> Marker<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let character = line.chars().next().filter(|character| matches!(character, '`' | '~'))?;
        let rest = line.trim_start_matches(character);
        let length = line.len() - rest.len();
        let info = rest.trim();
        let is_inline_code = character == '`' && info.contains('`');
        (length >= 3 && !is_inline_code).then_some(Self { character, length, info })
    }

    fn is_closed_by(&self, line: Option<&str>) -> bool {
        line.and_then(Marker::parse).is_some_and(|closer| {
            closer.character == self.character && closer.length >= self.length && closer.info.is_empty()
        })
    }
}

/// The line without its indent, or nothing where the indent makes it an indented code block.
fn strip_indent(line: &str) -> Option<&str> {
    let rest = line.trim_start_matches(' ');
    (line.len() - rest.len() <= 3).then_some(rest)
}

/// One line of a text: its words without the line break, and where it starts and where the next one does.
#[derive(Clone, Copy)]
pub(crate) struct TextLine<'a> {
    pub(crate) text: &'a str,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// The lines of `text` from the byte `start`, which begins a line.
pub(crate) fn lines(text: &str, start: usize) -> impl Iterator<Item = TextLine<'_>> {
    let mut next = start;
    text[start..].split_inclusive('\n').map(move |whole| {
        let start = next;
        next += whole.len();
        TextLine { text: whole.trim_end_matches(['\n', '\r']), start, end: next }
    })
}

/// Where the text starts once the comment lines of our own that may open it (`<!-- rye:… -->`) are skipped.
pub(crate) fn signature_end(text: &str) -> usize {
    let mut start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    for line in lines(text, start) {
        let trimmed = line.text.trim();
        if !trimmed.starts_with("<!-- rye:") || !trimmed.ends_with("-->") {
            break;
        }
        start = line.end;
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(text: &'a str, language: &str) -> (&'a str, &'a str, &'a str) {
        let fence = find_block(text, language).unwrap();
        (&text[fence.preamble], &text[fence.content], &text[fence.body])
    }

    #[test]
    fn text_before_inside_and_after_is_split() {
        assert_eq!(parts("a\n```xml  \n<x/>\n```\nb\n", "xml"), ("a\n", "<x/>\n", "b\n"));
        assert_eq!(parts("```xml\n```", "xml"), ("", "", ""));
        assert_eq!(parts("a\r\n```xml\r\n<x/>\r\n```\r\nb", "xml"), ("a\r\n", "<x/>\r\n", "b"));
    }

    #[test]
    fn quoted_blocks_before_the_metadata_are_skipped() {
        let quoted =
            "````markdown\n```xml\n<no/>\n```\n````\n\n~~~\n```xml\n<no/>\n```\n~~~\n```xml\n<yes/>\n```\n";
        assert_eq!(parts(quoted, "xml").1, "<yes/>\n");
        let nested = "  ```text\n  ```xml\n  ```\n```xml\n<yes/>\n```\n";
        assert_eq!(parts(nested, "xml").1, "<yes/>\n");
    }

    #[test]
    fn only_exact_info_string_matches() {
        for text in
            ["```xml foo\n```\n", " ```xml\n```\n", "~~~xml\n~~~\n", "```XML\n```\n", "``xml\n``\n", ""]
        {
            assert_eq!(find_block(text, "xml"), Err(FenceError::Missing), "{text:?}");
        }
    }

    #[test]
    fn longer_fences_contain_shorter_ones() {
        assert_eq!(parts("````xml\n<a>\n```\n</a>\n````\nb", "xml").1, "<a>\n```\n</a>\n");
        assert_eq!(parts("```xml\n<a/>\n`````\nb", "xml"), ("", "<a/>\n", "b"));
        assert_eq!(parts("```xml\n<a>\n  ```\n</a>\n```\nb", "xml").1, "<a>\n  ```\n</a>\n");
    }

    #[test]
    fn fences_inside_cdata_do_not_close() {
        let opaque = "```xml\n<d><example>\n```\nx\n```\n</example></d>\n```\nbody\n```\ncode\n```\n";
        assert_eq!(parts(opaque, "xml").2, "body\n```\ncode\n```\n");
        let cdata = "```xml\n<d><![CDATA[\n```\n]]></d>\n```\nbody";
        assert_eq!(parts(cdata, "xml").2, "body");
        let never_closed = "```xml\n<d><raw>\n```\nbody\n";
        assert_eq!(parts(never_closed, "xml").2, "body\n");
        let closed_in_the_body = "```xml\n<d><raw>\n```\nbody </raw>\n";
        assert_eq!(parts(closed_in_the_body, "xml").2, "body </raw>\n");
    }

    #[test]
    fn unclosed_fences_are_reported_where_they_open() {
        let position = SourcePosition { line: 2, column: 1 };
        assert_eq!(find_block("a\n```xml\n<x/>\n", "xml"), Err(FenceError::Unclosed { position }));
        assert_eq!(find_block("a\n~~~\n```xml\n```\n", "xml"), Err(FenceError::Unclosed { position }));
    }

    #[test]
    fn own_comment_lines_at_the_top_are_skipped() {
        let text = "\u{feff}<!-- rye:signed:x -->\r\n<!-- rye:unsigned -->\n<!-- note -->\n";
        assert_eq!(&text[signature_end(text)..], "<!-- note -->\n");
    }

    #[test]
    fn many_fence_lines_parse_quickly() {
        let text = "```xml\n<raw>".to_owned() + &"\n```".repeat(100_000);
        assert!(find_block(&text, "xml").is_ok());
        assert!(find_block(&"```\n".repeat(99_999), "xml").is_err());
    }
}
