//! From the text of an `xml` block to a tree: opaque elements hidden, costs bounded, errors placed.
//!
//! Hiding keeps every byte offset: an offset of the masked text is an offset of the original.

use roxmltree::{Document, Error, Node, TextPos};

use crate::parse::fence::markup::{self, MarkupToken};

/// Elements may stand this deep inside each other.
const MAX_DEPTH: usize = 256;

/// A tag may carry this many attributes: the parser compares each with all others.
const MAX_ATTRIBUTES: usize = 256;

/// Why the text cannot be read, and at which byte.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct XmlError {
    pub(super) message: String,
    pub(super) offset: usize,
}

/// The text with the insides of opaque elements blanked out, and those insides by key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MaskedXml {
    pub(super) text: String,
    pub(super) templates: Vec<(String, String)>,
}

/// Blanks opaque elements, numbered in document order, and refuses what would cost too much to parse.
pub(super) fn mask(content: &str) -> Result<MaskedXml, XmlError> {
    let mut text = String::with_capacity(content.len());
    let mut templates = Vec::new();
    let mut copied = 0;
    let mut depth = 0_usize;
    for token in markup::tokens(content, 0) {
        match token {
            MarkupToken::Open { start, is_empty, attributes, declares_namespace } => {
                let fail = |message: String| Err(XmlError { message, offset: start });
                if attributes > MAX_ATTRIBUTES {
                    return fail(format!("Invalid XML: a tag with more than {MAX_ATTRIBUTES} attributes"));
                }
                if declares_namespace {
                    return fail("Invalid XML: namespaces are not supported".to_owned());
                }
                depth += usize::from(!is_empty);
                if depth > MAX_DEPTH {
                    return fail(format!("Invalid XML: elements nested deeper than {MAX_DEPTH}"));
                }
            }
            MarkupToken::Close => depth = depth.saturating_sub(1),
            MarkupToken::Cdata { .. } => {}
            MarkupToken::Opaque { tag, inner } => {
                text.push_str(&content[copied..inner.start]);
                text.extend(content[inner.clone()].bytes().map(|byte| match byte {
                    b'\n' | b'\r' => char::from(byte),
                    _ => ' ',
                }));
                copied = inner.end;
                let key = format!("__opaque_{tag}_{}__", templates.len());
                templates.push((key, content[inner].to_owned()));
            }
        }
    }
    text.push_str(&content[copied..]);
    Ok(MaskedXml { text, templates })
}

/// Parses the masked text.
pub(super) fn parse(masked: &str) -> Result<Document<'_>, XmlError> {
    Document::parse(masked).map_err(|error| {
        let position = error.pos();
        let reason = match error {
            Error::DtdDetected => "document type declarations are not allowed".to_owned(),
            ref other => other.to_string().replace(&format!(" at {position}"), ""),
        };
        let offset = match error {
            Error::DtdDetected => masked.find("<!DOCTYPE").unwrap_or(0),
            Error::UnexpectedEndOfStream => masked.len(),
            _ => offset_of(masked, position),
        };
        XmlError { message: format!("Invalid XML: {reason}"), offset }
    })
}

fn offset_of(text: &str, position: TextPos) -> usize {
    let row = usize::try_from(position.row).unwrap_or(usize::MAX).saturating_sub(1);
    let column = usize::try_from(position.col).unwrap_or(usize::MAX).saturating_sub(1);
    let line_start = match row.checked_sub(1) {
        None => 0,
        Some(breaks) => text.match_indices('\n').nth(breaks).map_or(text.len(), |(offset, _)| offset + 1),
    };
    text[line_start..].char_indices().nth(column).map_or(text.len(), |(offset, _)| line_start + offset)
}

/// The element's own name.
pub(super) fn tag<'n>(node: Node<'n, '_>) -> &'n str {
    node.tag_name().name()
}

/// The elements right below.
pub(super) fn elements<'n, 'i: 'n>(node: Node<'n, 'i>) -> impl Iterator<Item = Node<'n, 'i>> {
    node.children().filter(Node::is_element)
}

/// The text before the first element inside, without the blanks around it.
pub(super) fn leading_text(node: Node<'_, '_>) -> String {
    collect_text(node.children().take_while(|child| !child.is_element()))
}

/// The text right inside the element, wherever it stands between the elements there.
pub(super) fn own_text(node: Node<'_, '_>) -> String {
    collect_text(node.children())
}

fn collect_text<'n, 'i: 'n>(nodes: impl Iterator<Item = Node<'n, 'i>>) -> String {
    let text: String = nodes.filter(Node::is_text).filter_map(|node| node.text()).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masking_keeps_offsets_and_lines() {
        let content = "<d><raw>é < &\n😀</raw><a/></d>";
        let masked = mask(content).unwrap();
        assert_eq!(masked.text.len(), content.len());
        assert_eq!(masked.text.find("<a/>"), content.find("<a/>"));
        assert_eq!(masked.text.find('\n'), content.find('\n'));
        assert_eq!(masked.templates, [("__opaque_raw_0__".to_owned(), "é < &\n😀".to_owned())]);
    }

    #[test]
    fn error_positions_become_offsets() {
        let text = "<é>\n<ü>&</ü></é>";
        let error = parse(text).unwrap_err();
        assert_eq!((&*error.message, error.offset), ("Invalid XML: malformed entity reference", 9));
    }

    #[test]
    fn text_continues_after_comments_and_cdata() {
        let document = Document::parse("<a> x<!-- c -->y<![CDATA[<z>]]> <b/> tail</a>").unwrap();
        assert_eq!(leading_text(document.root_element()), "xy<z>");
        assert_eq!(own_text(document.root_element()), "xy<z>  tail");
    }
}
