//! What a signature covers: the whole content, or only the part the original hashed.

use std::ops::Range;

use lillux::Digest;
use rye_item::ItemType;
use serde::Serialize;

use crate::signature::{FileLayout, ShebangError};

/// How much of a file its signature covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Coverage {
    /// Everything but the signature line (and a tool's shebang).
    Full,
    /// Only the part the original hashed: a directive's XML, a knowledge entry's body.
    Partial,
    /// Nothing.
    None,
}

impl Coverage {
    /// The coverage's word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Partial => "partial",
            Self::None => "none",
        }
    }
}

/// How a file's content compares with the hash in its signature line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentStatus {
    /// There is no signature line.
    Unsigned,
    /// Its first line begins with `#!` and is not a shebang.
    InvalidShebang(ShebangError),
    /// The hash holds.
    Intact {
        /// For how much of the file.
        coverage: Coverage,
        /// The byte ranges that the signature does not cover.
        uncovered: Vec<Range<usize>>,
    },
    /// The hash does not match.
    Changed {
        /// The hash of what is there now.
        actual: Digest,
        /// Only the line endings differ from what was signed.
        only_line_endings: bool,
    },
}

/// The hash of a whole content: what this implementation signs.
#[must_use]
pub fn content_hash(bytes: &[u8], layout: &FileLayout) -> Digest {
    Digest::of(&bytes[layout.content.clone()])
}

/// Compares a file with the hash in its signature line: whole content first, then the original's rule. The line's own
/// break must be the one that signing writes, or a change of it would go unseen.
#[must_use]
pub fn compare_content(item_type: ItemType, bytes: &[u8], layout: &FileLayout) -> ContentStatus {
    if let Some(error) = layout.shebang_error {
        return ContentStatus::InvalidShebang(error);
    }
    let Some(signature) = &layout.signature else {
        return ContentStatus::Unsigned;
    };
    let content = &bytes[layout.content.clone()];
    let actual = Digest::of(content);
    let covered = if actual == signature.hash {
        Some((Coverage::Full, layout.content.clone()))
    } else {
        original_range(item_type, content)
            .map(|part| layout.content.start + part.start..layout.content.start + part.end)
            .filter(|part| Digest::of(&bytes[part.clone()]) == signature.hash)
            .map(|part| (Coverage::Partial, part))
    };
    match covered {
        Some((coverage, part)) if layout.has_consistent_line_break(bytes) => {
            ContentStatus::Intact { coverage, uncovered: uncovered_ranges(bytes, layout, &part) }
        }
        Some(_) => ContentStatus::Changed { actual, only_line_endings: true },
        None => {
            let only_line_endings = differs_in_line_endings(item_type, content, &signature.hash);
            ContentStatus::Changed { actual, only_line_endings }
        }
    }
}

/// Everything outside `covered`: a shebang, the signature line's own words that no signature protects, and what the
/// original's rule leaves out. The hash, the signature and the fingerprint protect themselves.
fn uncovered_ranges(bytes: &[u8], layout: &FileLayout, covered: &Range<usize>) -> Vec<Range<usize>> {
    let mut ranges = vec![layout.shebang.clone()];
    let line = &bytes[layout.line.clone()];
    if let Some(signature) = &layout.signature {
        let mut push_word = |word: &str| {
            let start = line.windows(word.len()).position(|window| window == word.as_bytes());
            if let Some(start) = start {
                let start = layout.line.start + start;
                ranges.push(start..start + word.len());
            }
        };
        push_word(signature.timestamp.as_str());
        if let Some(registry) = &signature.registry {
            push_word(&format!("|{registry}"));
        }
    }
    ranges.push(layout.content.start..covered.start);
    ranges.push(covered.end..bytes.len());
    ranges.retain(|range| !range.is_empty());
    ranges
}

/// The part of a content that the original hashed, where that is not the whole.
fn original_range(item_type: ItemType, content: &[u8]) -> Option<Range<usize>> {
    match item_type {
        ItemType::Directive => {
            let start = find_directive_tag(content)?;
            let end = find_last(content, b"</directive>")? + b"</directive>".len();
            (start < end).then(|| trim_range(content, start..end))
        }
        ItemType::Knowledge => {
            let rest = content.strip_prefix(b"---")?;
            let second = find(rest, b"---")? + 6;
            let body = trim_range(content, second..content.len());
            // A body with metadata of its own was signed whole, as another entry; front matter was put before it.
            let has_own =
                [&b"---"[..], b"```yaml"].iter().any(|opener| content[body.clone()].starts_with(opener));
            (!has_own).then_some(body)
        }
        ItemType::Tool | ItemType::Config => None,
    }
}

/// The first `<directive` that has a `>` behind it.
fn find_directive_tag(content: &[u8]) -> Option<usize> {
    let start = find(content, b"<directive")?;
    content[start..].contains(&b'>').then_some(start)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

fn find_last(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).rposition(|window| window == needle)
}

/// `range` without outer white space, as the original's `str.strip` sees it.
fn trim_range(content: &[u8], range: Range<usize>) -> Range<usize> {
    let is_space = |character: char| character.is_whitespace() || matches!(character, '\u{1c}'..='\u{1f}');
    match std::str::from_utf8(&content[range.clone()]) {
        Ok(text) => {
            let start = range.start + (text.len() - text.trim_start_matches(is_space).len());
            start..start + text.trim_matches(is_space).len()
        }
        Err(_) => range,
    }
}

/// Whether the content would match after all if its line endings were other ones.
fn differs_in_line_endings(item_type: ItemType, content: &[u8], hash: &Digest) -> bool {
    let Ok(text) = std::str::from_utf8(content) else {
        return false;
    };
    let unix = text.replace("\r\n", "\n").replace('\r', "\n");
    let windows = unix.replace('\n', "\r\n");
    [unix, windows].iter().any(|variant| {
        let bytes = variant.as_bytes();
        let part = original_range(item_type, bytes).map(|part| Digest::of(&bytes[part]));
        Digest::of(bytes) == *hash || part.as_ref() == Some(hash)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directive_range_spans_first_to_last_tag() {
        let content = b"# T\n<directive a=\"1\">x</directive> y </directive>\nbody";
        let part = original_range(ItemType::Directive, content).expect("part");
        assert_eq!(&content[part], b"<directive a=\"1\">x</directive> y </directive>");
        assert_eq!(original_range(ItemType::Directive, b"no tags"), None);
        assert_eq!(original_range(ItemType::Directive, b"</directive> <directive>"), None);
    }

    #[test]
    fn knowledge_range_starts_after_front_matter() {
        let content = b"---\nname: k\n---\n\n  # Hi\n\n";
        let part = original_range(ItemType::Knowledge, content).expect("part");
        assert_eq!(&content[part], b"# Hi");
        assert_eq!(original_range(ItemType::Knowledge, b"```yaml\n```\n"), None);
        assert_eq!(original_range(ItemType::Knowledge, b"--- only one"), None);
    }
}
