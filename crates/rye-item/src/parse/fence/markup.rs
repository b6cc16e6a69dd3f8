//! A coarse walk over XML-like text: start tags, end tags, CDATA, and the opaque elements whose inside is not XML.
//!
//! It never fails and never looks back: what is malformed is left to the XML parser. It exists to find what has to
//! be hidden from that parser, and to refuse what would cost too much, before the parser runs.

use std::ops::Range;

/// The elements whose inside is kept as text and never read as XML.
pub(crate) const OPAQUE_TAGS: [&str; 3] = ["template", "example", "raw"];

/// One piece of markup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MarkupToken<'a> {
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
pub(crate) fn tokens(text: &str, start: usize) -> MarkupTokens<'_> {
    MarkupTokens { text, next: start, opaque: None, unclosed: [false; 3] }
}

/// The ranges in which a fence line is content: CDATA sections and the insides of opaque elements, in order.
pub(crate) fn protected_ranges(text: &str, start: usize) -> Vec<Range<usize>> {
    tokens(text, start)
        .filter_map(|token| match token {
            MarkupToken::Cdata { range } | MarkupToken::Opaque { inner: range, .. } => Some(range),
            MarkupToken::Open { .. } | MarkupToken::Close => None,
        })
        .collect()
}

/// The walk itself.
pub(crate) struct MarkupTokens<'a> {
    text: &'a str,
    next: usize,
    opaque: Option<MarkupToken<'a>>,
    /// Which opaque tags have no end tag any more: looking again for each start tag would take quadratic time.
    unclosed: [bool; 3],
}

impl<'a> Iterator for MarkupTokens<'a> {
    type Item = MarkupToken<'a>;

    fn next(&mut self) -> Option<MarkupToken<'a>> {
        if let Some(token) = self.opaque.take() {
            return Some(token);
        }
        loop {
            let start = self.next + self.text[self.next..].find('<')?;
            let rest = &self.text[start..];
            if rest.starts_with("<!--") {
                self.next = self.find_end(start + 4, "-->")?;
            } else if rest.starts_with("<![CDATA[") {
                self.next = self.find_end(start, "]]>")?;
                return Some(MarkupToken::Cdata { range: start..self.next });
            } else if rest.starts_with("<?") {
                self.next = self.find_end(start, "?>")?;
            } else if rest.starts_with("</") {
                self.next = self.find_end(start, ">")?;
                return Some(MarkupToken::Close);
            } else if rest[1..].starts_with(|character: char| character.is_alphabetic() || character == '_') {
                return self.read_open_tag(start);
            } else {
                self.next = start + 1;
            }
        }
    }
}

impl<'a> MarkupTokens<'a> {
    fn find_end(&self, from: usize, terminator: &str) -> Option<usize> {
        Some(from + self.text[from..].find(terminator)? + terminator.len())
    }

    fn read_open_tag(&mut self, start: usize) -> Option<MarkupToken<'a>> {
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
            self.opaque = self.read_opaque(name);
        }
        Some(MarkupToken::Open { start, is_empty, attributes, declares_namespace })
    }

    /// The inside of the opaque element `name`, whose start tag has just been read; the walk continues at its end tag.
    fn read_opaque(&mut self, name: &str) -> Option<MarkupToken<'a>> {
        let kind = OPAQUE_TAGS.iter().position(|tag| *tag == name)?;
        if self.unclosed[kind] {
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
                return Some(MarkupToken::Opaque { tag, inner });
            }
        }
        self.unclosed[kind] = true;
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
                MarkupToken::Opaque { tag, inner } => Some((tag, &text[inner])),
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
    fn comments_and_cdata_hide_opaque_elements() {
        let text = "<!-- <raw>a</raw> --><![CDATA[<raw>b</raw>]]><?x <raw>?><example><raw>c</raw></example>";
        assert_eq!(opaque(text), [("example", "<raw>c</raw>")]);
    }

    #[test]
    fn tags_count_attributes_and_namespaces() {
        let text = "<a x='>' y=\"'\"><b xmlns='u'/></a>";
        let found: Vec<_> = tokens(text, 0).collect();
        assert_eq!(
            found,
            [
                MarkupToken::Open { start: 0, is_empty: false, attributes: 2, declares_namespace: false },
                MarkupToken::Open { start: 15, is_empty: true, attributes: 1, declares_namespace: true },
                MarkupToken::Close,
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
        fn any_text_is_tokenized(text in "[<>/!\\[\\]a\"' \n-]{0,60}|.{0,60}") {
            let mut last = 0;
            for range in protected_ranges(&text, 0) {
                prop_assert!(range.start >= last && text.get(range.clone()).is_some());
                last = range.end;
            }
        }
    }
}
