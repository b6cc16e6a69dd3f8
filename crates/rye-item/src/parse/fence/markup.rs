//! A coarse walk over XML-like text: start tags, end tags, CDATA, and the opaque elements whose inside is not XML.
//!
//! It never fails and never looks back: what is malformed is left to the XML parser. It exists to find what has to
//! be hidden from that parser, and to refuse what would cost too much, before the parser runs.

use std::ops::Range;

/// The elements whose inside is kept as text and never read as XML.
pub(crate) const OPAQUE_TAGS: [&str; 3] = ["template", "example", "raw"];

/// One piece of markup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// `<name …>` or `<name …/>`.
    Open { start: usize, is_empty: bool, attributes: usize, declares_namespace: bool },
    /// `</name>`.
    Close,
    /// `<![CDATA[…]]>`, all of it.
    Cdata { range: Range<usize> },
    /// What stands inside an opaque element; follows its `Open`, and its `Close` follows.
    Opaque { tag: &'a str, inner: Range<usize> },
}

/// Walks over the markup of `text` from the byte `start`; all offsets are offsets of `text`.
pub(crate) fn tokens(text: &str, start: usize) -> Tokens<'_> {
    Tokens { text, next: start, opaque: None, without_end: [false; 3] }
}

/// The ranges in which a fence line is content: CDATA sections and the insides of opaque elements, in order.
pub(crate) fn protected_ranges(text: &str, start: usize) -> Vec<Range<usize>> {
    tokens(text, start)
        .filter_map(|token| match token {
            Token::Cdata { range } | Token::Opaque { inner: range, .. } => Some(range),
            Token::Open { .. } | Token::Close => None,
        })
        .collect()
}

/// The walk itself.
pub(crate) struct Tokens<'a> {
    text: &'a str,
    next: usize,
    opaque: Option<Token<'a>>,
    /// Which opaque tags have no end tag any more: looking again for each start tag would take quadratic time.
    without_end: [bool; 3],
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        if let Some(token) = self.opaque.take() {
            return Some(token);
        }
        loop {
            let start = self.next + self.text[self.next..].find('<')?;
            let rest = &self.text[start..];
            if rest.starts_with("<!--") {
                self.next = self.end_of(start + 4, "-->")?;
            } else if rest.starts_with("<![CDATA[") {
                self.next = self.end_of(start, "]]>")?;
                return Some(Token::Cdata { range: start..self.next });
            } else if rest.starts_with("<?") {
                self.next = self.end_of(start, "?>")?;
            } else if rest.starts_with("</") {
                self.next = self.end_of(start, ">")?;
                return Some(Token::Close);
            } else if rest[1..].starts_with(|character: char| character.is_alphabetic() || character == '_') {
                return self.open(start);
            } else {
                self.next = start + 1;
            }
        }
    }
}

impl<'a> Tokens<'a> {
    fn end_of(&self, from: usize, mark: &str) -> Option<usize> {
        Some(from + self.text[from..].find(mark)? + mark.len())
    }

    fn open(&mut self, start: usize) -> Option<Token<'a>> {
        let text = self.text;
        let bytes = text.as_bytes();
        let mut quote = None;
        let mut attributes = 0;
        let mut declares_namespace = false;
        let mut end = start + 1;
        loop {
            let byte = *bytes.get(end)?;
            match quote {
                Some(open) if byte == open => quote = None,
                Some(_) => {}
                None if matches!(byte, b'"' | b'\'') => {
                    quote = Some(byte);
                    attributes += 1;
                }
                None if byte == b'>' => break,
                None if byte == b'x' && bytes[end - 1].is_ascii_whitespace() => {
                    declares_namespace |= bytes[end..].starts_with(b"xmlns");
                }
                None => {}
            }
            end += 1;
        }
        self.next = end + 1;
        let is_empty = bytes[end - 1] == b'/';
        if !is_empty {
            let name_end = bytes[start + 1..end].iter().position(u8::is_ascii_whitespace);
            let name = &text[start + 1..name_end.map_or(end, |length| start + 1 + length)];
            self.opaque = self.opaque_inside(name);
        }
        Some(Token::Open { start, is_empty, attributes, declares_namespace })
    }

    /// The inside of the opaque element `name`, whose start tag has just been read; the walk goes on at its end tag.
    fn opaque_inside(&mut self, name: &str) -> Option<Token<'a>> {
        let kind = OPAQUE_TAGS.iter().position(|tag| *tag == name)?;
        if self.without_end[kind] {
            return None;
        }
        let tag = OPAQUE_TAGS[kind];
        let mut from = self.next;
        while let Some(found) = self.text[from..].find("</") {
            let end = from + found;
            from = end + 2;
            let is_end_tag = self.text[from..].strip_prefix(tag).is_some_and(|rest| {
                rest.trim_start_matches(|character: char| character.is_ascii_whitespace()).starts_with('>')
            });
            if is_end_tag {
                let inner = self.next..end;
                self.next = end;
                return Some(Token::Opaque { tag, inner });
            }
        }
        self.without_end[kind] = true;
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn opaque(text: &str) -> Vec<(&str, &str)> {
        tokens(text, 0)
            .filter_map(|token| match token {
                Token::Opaque { tag, inner } => Some((tag, &text[inner])),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn opaque_elements_are_found_in_document_order() {
        let text = "<d><raw a='>'>1 < 2</raw><template>t</template ><rawx>no</rawx><example/><raw></raw></d>";
        assert_eq!(opaque(text), [("raw", "1 < 2"), ("template", "t"), ("raw", "")]);
    }

    #[test]
    fn comments_cdata_and_outer_opaque_elements_hide_inner_ones() {
        let text = "<!-- <raw>a</raw> --><![CDATA[<raw>b</raw>]]><?x <raw>?><example><raw>c</raw></example>";
        assert_eq!(opaque(text), [("example", "<raw>c</raw>")]);
    }

    #[test]
    fn tags_tell_what_the_parser_will_have_to_carry() {
        let text = "<a x='>' y=\"'\"><b xmlns='u'/></a>";
        let found: Vec<_> = tokens(text, 0).collect();
        assert_eq!(
            found,
            [
                Token::Open { start: 0, is_empty: false, attributes: 2, declares_namespace: false },
                Token::Open { start: 15, is_empty: true, attributes: 1, declares_namespace: true },
                Token::Close,
            ]
        );
    }

    #[test]
    fn opaque_tags_without_an_end_cost_linear_time() {
        let text = "<raw>".repeat(200_000) + &"<template></raw".repeat(10);
        assert!(opaque(&text).is_empty());
    }

    proptest! {
        #[test]
        fn any_text_is_walked(text in "[<>/!\\[\\]a\"' \n-]{0,60}|.{0,60}") {
            let mut last = 0;
            for range in protected_ranges(&text, 0) {
                prop_assert!(range.start >= last && text.get(range.clone()).is_some());
                last = range.end;
            }
        }
    }
}
