//! A web page as markdown or text. Pages come from strangers: size, number of tags and depth are bounded.

use std::collections::HashMap;
use std::rc::Rc;

use htmd::{HtmlToMarkdown, Node};
use markup5ever_rcdom::NodeData;
use url::Url;

/// How much of a page is read.
pub(super) const MAX_BYTES: u64 = 4 << 20;

/// More tags than this are cut off: some parts of the parser grow with the square of the depth.
const MAX_TAGS: usize = 40_000;

/// More elements than this open at once are cut off, for the same reason.
const MAX_OPEN_ELEMENTS: usize = 1000;

/// Deeper pages are given as text: the markdown writer calls itself for each level.
const MAX_DEPTH: usize = 200;

/// What a reader does not read.
const SKIPPED_TAGS: [&str; 10] =
    ["script", "style", "noscript", "template", "svg", "iframe", "object", "canvas", "head", "title"];

/// A page that was parsed.
pub(super) struct Page {
    tree: Rc<Node>,
    depth: usize,
    /// Whether a part of it was cut off before parsing.
    pub(super) is_truncated: bool,
}

impl Page {
    /// Parses HTML; whatever it is, there is a tree.
    pub(super) fn parse(html: &str) -> Option<Self> {
        let html = &*rye_item::text::strip_controls(html);
        let end = truncation_point(html);
        let tree = converter().html_to_tree(&html[..end.unwrap_or(html.len())]).ok()?;
        let mut depth = 0;
        visit(&tree, |_, level| {
            depth = depth.max(level);
            true
        });
        Some(Self { tree, depth, is_truncated: end.is_some() })
    }

    /// The page's title.
    pub(super) fn title(&self) -> Option<String> {
        let mut title = None;
        visit(&self.tree, |node, _| {
            if title.is_none() && tag(node) == Some("title") {
                title = Some(one_line(&inner_text(node)));
            }
            title.is_none() && tag(node) != Some("svg")
        });
        title.filter(|title| !title.is_empty())
    }

    /// The page as markdown, links made whole; a page that is nested too deeply as text.
    pub(super) fn markdown(&self, address: &str) -> String {
        if self.depth > MAX_DEPTH {
            return self.text();
        }
        self.resolve_links(address);
        let text = converter().tree_to_markdown(&self.tree);
        rye_item::text::strip_controls(text.trim()).into_owned()
    }

    /// The page as text: one line per block.
    pub(super) fn text(&self) -> String {
        rye_item::text::strip_controls(&inner_text(&self.tree)).into_owned()
    }

    /// Every element, in order.
    pub(super) fn elements(&self) -> Vec<Rc<Node>> {
        let mut elements = Vec::new();
        visit(&self.tree, |node, _| {
            if tag(node).is_some() {
                elements.push(Rc::clone(node));
            }
            true
        });
        elements
    }

    /// Makes links absolute, and empties those that are not web addresses.
    fn resolve_links(&self, address: &str) {
        let Ok(mut base) = Url::parse(address) else {
            return;
        };
        let elements = self.elements();
        let base_element = elements.iter().find(|node| tag(node) == Some("base"));
        if let Some(declared) =
            base_element.and_then(|node| attribute(node, "href")).and_then(|href| base.join(&href).ok())
        {
            base = declared;
        }
        for node in &elements {
            let NodeData::Element { attrs, .. } = &node.data else {
                continue;
            };
            for attribute in attrs.borrow_mut().iter_mut() {
                if !matches!(&*attribute.name.local, "href" | "src") || attribute.value.starts_with('#') {
                    continue;
                }
                let absolute = base.join(attribute.value.trim()).ok();
                let absolute = absolute.filter(|url| matches!(url.scheme(), "http" | "https" | "mailto"));
                attribute.value = absolute.map_or_else(String::new, String::from).as_str().into();
            }
        }
    }
}

/// Where a page becomes too much to parse; `None` when it is bearable. A guess from the tags alone: elements that are
/// opened and not closed again, by name.
fn truncation_point(html: &str) -> Option<usize> {
    #[rustfmt::skip]
    const SELF_CLOSING: [&str; 22] = [
        "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta", "option", "p",
        "source", "td", "th", "tr", "track", "wbr", "tbody",
    ];
    let mut open: HashMap<String, usize> = HashMap::new();
    let mut count = 0;
    for (number, (at, _)) in html.match_indices('<').enumerate() {
        let rest = &html[at + 1..];
        let (is_end, rest) = rest.strip_prefix('/').map_or((false, rest), |rest| (true, rest));
        let length = rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'-').count();
        let is_tag = length > 0 && rest[length..].starts_with([' ', '\n', '\t', '\u{c}', '/', '>']);
        let name = rest[..length].to_ascii_lowercase();
        if is_tag && !SELF_CLOSING.contains(&name.as_str()) {
            let of_name = open.entry(name).or_default();
            if !is_end {
                *of_name += 1;
                count += 1;
            } else if *of_name > 0 {
                *of_name -= 1;
                count -= 1;
            }
        }
        if number == MAX_TAGS || count > MAX_OPEN_ELEMENTS {
            return Some(at);
        }
    }
    None
}

fn converter() -> HtmlToMarkdown {
    HtmlToMarkdown::builder().skip_tags(SKIPPED_TAGS.to_vec()).scripting_enabled(false).build()
}

/// Walks the tree without calling itself; where `enter` says no, what lies below is left out.
fn visit(root: &Rc<Node>, mut enter: impl FnMut(&Rc<Node>, usize) -> bool) {
    let mut waiting = vec![(Rc::clone(root), 0)];
    while let Some((node, level)) = waiting.pop() {
        if enter(&node, level) {
            let children = node.children.borrow();
            waiting.extend(children.iter().rev().map(|child| (Rc::clone(child), level + 1)));
        }
    }
}

/// The element's name.
pub(super) fn tag(node: &Node) -> Option<&str> {
    match &node.data {
        NodeData::Element { name, .. } => Some(&*name.local),
        _ => None,
    }
}

/// The element's attribute.
pub(super) fn attribute(node: &Node, name: &str) -> Option<String> {
    let NodeData::Element { attrs, .. } = &node.data else {
        return None;
    };
    let attributes = attrs.borrow();
    let found = attributes.iter().find(|attribute| &*attribute.name.local == name)?;
    Some(found.value.to_string())
}

/// Whether the element has this class.
pub(super) fn has_class(node: &Node, class: &str) -> bool {
    attribute(node, "class").is_some_and(|own| own.split_whitespace().any(|word| word == class))
}

/// The text below a node, without what is never shown.
pub(super) fn inner_text(root: &Rc<Node>) -> String {
    const BLOCKS: [&str; 26] = [
        "address",
        "article",
        "aside",
        "blockquote",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "p",
        "pre",
        "section",
        "table",
        "tr",
    ];
    let mut text = String::new();
    visit(root, |node, level| {
        if let NodeData::Text { contents } = &node.data {
            text.push_str(&contents.borrow());
        }
        let Some(name) = tag(node) else {
            return true;
        };
        if level > 0 && SKIPPED_TAGS.contains(&name) {
            return false;
        }
        if BLOCKS.contains(&name) {
            text.push('\n');
        } else if matches!(name, "td" | "th") {
            text.push(' ');
        }
        true
    });
    let lines = text.lines().map(one_line).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("\n")
}

/// Text on one line, without control characters.
pub(super) fn one_line(text: &str) -> String {
    rye_item::text::one_line(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(html: &str) -> Page {
        Page::parse(html).expect("a page")
    }

    #[test]
    fn page_becomes_markdown_with_absolute_links() {
        let html = "<html><head><title> A\n title </title><style>p{}</style></head><body><h1>Hi</h1>\
                    <script>alert(1)</script><p>See <a href='/x?y#z'>this</a>, <a href='javascript:evil()'>that</a> \
                    &amp; <b>bold\u{1b}[31m</b></p><ul><li>one<li>two</ul><noscript>enable it</noscript></body></html>";
        let page = page(html);
        assert_eq!(page.title().as_deref(), Some("A title"));
        assert_eq!(
            page.markdown("https://a.example/dir/page"),
            "# Hi\n\nSee [this](https://a.example/x?y#z), [that]() & **bold**\n\n*   one\n*   two"
        );
        assert_eq!(page.text(), "Hi\nSee this, that & bold\none\ntwo");
    }

    #[test]
    fn base_element_is_respected() {
        let page = page("<base href='//b.example/c/'><a href=d>x</a>");
        assert_eq!(page.markdown("https://a.example/"), "[x](https://b.example/c/d)");
    }

    #[test]
    fn deeply_nested_page_is_truncated() {
        for open in ["<div>", "<b>", "<ul><li>", "<table><tr><td>", "<blockquote>", "<div></x>"] {
            let page = page(&format!("start{}deep", open.repeat(30_000)));
            assert!(page.is_truncated && page.depth > MAX_DEPTH, "{open}");
            assert_eq!(page.markdown("https://a.example/"), "start", "{open}");
        }
        // Tags that look closed and are not.
        let page = page(&format!("{}deep", "<div><table></div></table>".repeat(500)));
        assert!(!page.is_truncated && page.depth > MAX_DEPTH);
        assert_eq!(page.markdown("https://a.example/"), "deep");
    }

    #[test]
    fn normally_nested_page_is_markdown() {
        let shallow = format!("{}<b>deep</b>", "<div>".repeat(150));
        assert_eq!(page(&shallow).markdown("https://a.example/"), "**deep**");
    }

    #[test]
    fn page_with_too_many_tags_is_truncated() {
        let long = page(&"<p>a".repeat(MAX_TAGS + 5));
        assert!(long.is_truncated);
        assert_eq!(long.text().lines().count(), MAX_TAGS);
        assert!(!page("<p>a").is_truncated);
    }
}
