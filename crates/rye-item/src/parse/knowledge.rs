//! Knowledge entries: markdown with a `yaml` block or `---` front matter, or plain YAML.
//!
//! Which fields an entry must have is the business of validation.

use std::ops::Range;

use serde_json::{Value, json};

use super::fence::{self, FenceError};
use crate::diagnostic::{Diagnostic, ParsedItem, SourcePosition};
use crate::yaml;

const NO_METADATA: &str = "No metadata found. Knowledge entries require a ```yaml fenced code block with name, \
                           title, version, entry_type, and category fields.";

/// Reads a markdown knowledge entry: the metadata's keys, then `body` (what follows the metadata) and `raw`.
///
/// Metadata is the `---` front matter that opens the text, or else the first `yaml` block.
#[must_use]
pub fn parse(text: &str) -> ParsedItem {
    let fence = fence::find_block(text, "yaml");
    let front = front_matter(text);
    let (metadata, body) = match (front, fence) {
        // Two rules around a block only look like front matter.
        (Some((metadata, body)), Ok(fence)) if !metadata.contains(&fence.opener) => (metadata, body),
        (Some((metadata, body)), Err(_)) => (metadata, body),
        (_, Ok(fence)) => (fence.content, fence.body),
        (None, Err(error)) => {
            let problem = match error {
                FenceError::Missing => Diagnostic::new(NO_METADATA),
                FenceError::Unclosed { position } => {
                    Diagnostic::new(error.to_string()).with_position(position)
                }
            };
            let mut parsed = ParsedItem::from_problem(problem);
            set_body(&mut parsed, text, fence::signature_end(text)..text.len());
            parsed.set("raw", json!(text), None);
            return parsed;
        }
    };
    let mut parsed = read_yaml(text, metadata, &["body", "raw"]);
    set_body(&mut parsed, text, body);
    parsed.set("raw", json!(text), None);
    parsed
}

/// Reads a knowledge entry that is YAML as a whole; its body is the text of its `body` or `content` key.
#[must_use]
pub fn parse_yaml(text: &str) -> ParsedItem {
    let mut parsed = read_yaml(text, after_comments(text)..text.len(), &["raw"]);
    if parsed.text("body").is_none() {
        let body = parsed.text("content").unwrap_or("").to_owned();
        let position = parsed.positions.get("content").copied();
        parsed.set("body", json!(body), position);
    }
    parsed.set("raw", json!(text), None);
    parsed
}

/// Reads the YAML at `range`, which begins a line of `text`; keys of `own` names are ours and left out.
fn read_yaml(text: &str, range: Range<usize>, own: &[&str]) -> ParsedItem {
    let start = SourcePosition::from_offset(text, range.start);
    let shift = |position: SourcePosition| SourcePosition {
        line: position.line.saturating_add(start.line - 1),
        ..position
    };
    let relocate = |mut problem: Diagnostic| {
        problem.position = problem.position.map(shift);
        problem
    };
    let document = match yaml::parse(&text[range]) {
        Ok(document) => document,
        Err(problem) => return ParsedItem::from_problem(relocate(problem)),
    };
    let mut parsed = ParsedItem {
        positions: document.positions.into_iter().map(|(key, place)| (key, shift(place))).collect(),
        warnings: document.warnings.into_iter().map(relocate).collect(),
        ..ParsedItem::default()
    };
    match document.value {
        Value::Object(fields) => parsed.fields = fields,
        Value::Null => parsed.problems.push(Diagnostic::new(NO_METADATA).with_position(start)),
        _ => parsed
            .problems
            .push(Diagnostic::new("Metadata must be a mapping of keys to values").with_position(start)),
    }
    for key in own {
        if parsed.fields.shift_remove(*key).is_some() {
            let problem = Diagnostic::new(format!("`{key}` in the metadata is ignored")).with_field(*key);
            parsed.warnings.push(match parsed.positions.remove(*key) {
                Some(position) => problem.with_position(position),
                None => problem,
            });
        }
    }
    parsed
}

fn set_body(parsed: &mut ParsedItem, text: &str, range: Range<usize>) {
    let part = &text[range.clone()];
    let trimmed = part.trim();
    let offset = range.start + (part.len() - part.trim_start().len());
    let position = (!trimmed.is_empty()).then(|| SourcePosition::from_offset(text, offset));
    parsed.set("body", json!(trimmed), position);
}

/// The metadata and the body of a text that opens with `---`, as byte ranges.
fn front_matter(text: &str) -> Option<(Range<usize>, Range<usize>)> {
    let mut lines = fence::lines(text, after_comments(text)).skip_while(|line| line.text.trim().is_empty());
    let opener = lines.next().filter(|line| line.text.trim_end() == "---")?;
    let closer = lines.find(|line| matches!(line.text.trim_end(), "---" | "..."))?;
    Some((opener.end..closer.start, closer.end..text.len()))
}

/// Where the text starts once the one-line comments and blank lines that open it are skipped.
fn after_comments(text: &str) -> usize {
    let mut start = fence::signature_end(text);
    for line in fence::lines(text, start) {
        let trimmed = line.text.trim();
        let is_comment = trimmed.starts_with("<!--") && trimmed.ends_with("-->") && trimmed.len() >= 7;
        if !is_comment && !trimmed.is_empty() {
            break;
        }
        start = line.end;
    }
    start
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn yaml_block_splits_fields_and_body() {
        let text = "<!-- rye:signed:x -->\n# Title\n\n```yaml\nname: a\ntags: [x, y]\n```\n\nBody\n```yaml\nno: 1\n```\n";
        let parsed = parse(text);
        assert_eq!(parsed.problems, []);
        let body = "Body\n```yaml\nno: 1\n```";
        let expected = json!({ "name": "a", "tags": ["x", "y"], "body": body, "raw": text });
        assert_eq!(Value::Object(parsed.fields), expected);
        assert_eq!(parsed.positions["name"].line, 5);
        assert_eq!(parsed.positions["body"], SourcePosition { line: 9, column: 1 });
    }

    #[test]
    fn front_matter_opens_the_text() {
        let text =
            "<!-- rye:signed:x -->\r\n\r\n---\r\nname: a\r\n---\r\nBody\r\n```yaml\r\nname: b\r\n```\r\n";
        let parsed = parse(text);
        assert_eq!(parsed.problems, []);
        assert_eq!(parsed.text("name"), Some("a"));
        assert_eq!(parsed.positions["name"].line, 4);
        assert!(parsed.text("body").unwrap().starts_with("Body"));
    }

    #[test]
    fn rules_around_block_are_not_front_matter() {
        assert_eq!(parse("---\n\n```yaml\nname: a\n```\n---\nBody").text("name"), Some("a"));
        assert_eq!(parse("# Title\n---\nname: a\n---\n").problems, [Diagnostic::new(NO_METADATA)]);
    }

    #[test]
    fn plain_yaml_contains_its_body() {
        let parsed = parse_yaml("<!-- rye:signed:x -->\nname: a\ncontent: words\nraw: mine\n");
        assert_eq!((parsed.text("name"), parsed.text("body")), (Some("a"), Some("words")));
        assert!(parsed.text("raw").unwrap().starts_with("<!--"));
        assert_eq!(parsed.positions["name"].line, 2);
        assert_eq!(parse_yaml("body: b\ncontent: c\n").text("body"), Some("b"));
        assert_eq!(parse_yaml("body: [1]\n").text("body"), Some(""));
    }

    #[test]
    fn metadata_cannot_replace_body_and_raw() {
        let text = "```yaml\nname: a\nbody: fake\nraw: fake\n```\nreal";
        let parsed = parse(text);
        assert_eq!((parsed.text("body"), parsed.text("raw")), (Some("real"), Some(text)));
        assert_eq!(parsed.warnings.len(), 2);
        assert_eq!(parsed.warnings[0].position.map(|position| position.line), Some(3));
    }

    #[test]
    fn problems_have_file_positions() {
        let line = |text: &str| {
            let parsed = parse(text);
            assert_eq!(parsed.problems.len(), 1, "{parsed:?}");
            parsed.problems[0].position.map(|position| position.line)
        };
        assert_eq!(line("# T\n```yaml\n- a\n```\n"), Some(3));
        assert_eq!(line("# T\n```yaml\n```\n"), Some(3));
        assert_eq!(line("# T\n```yaml\na: 1\na: 2\n```\n"), Some(4));
        assert_eq!(line("# T\n```yaml\na: 1\n"), Some(2));
        assert_eq!(line("# T\n"), None);
    }

    #[test]
    fn attacks_give_problems() {
        for attack in ["[".repeat(100_000), "- ".repeat(100_000), "a: \u{0}".to_owned(), "a: *x".to_owned()] {
            assert_eq!(parse(&format!("```yaml\n{attack}\n```\n")).problems.len(), 1);
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(---|```yaml|```|<!-- |-->|a: 1|\n|é|.){0,20}") {
            for parsed in [parse(&text), parse_yaml(&text)] {
                prop_assert_eq!(parsed.text("raw"), Some(text.as_str()));
            }
        }
    }
}
