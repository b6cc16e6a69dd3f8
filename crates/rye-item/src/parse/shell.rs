//! Shell source to fields: `# key: value` in the comment lines the script begins with.
//!
//! Only known keys count, everything else is prose for the reader. Structured values are JSON and may continue over
//! several comment lines.

use std::iter::Peekable;
use std::str::Lines;

use serde_json::Value;

use crate::diagnostic::{Diagnostic, ParsedItem, SourcePosition};

/// Keys whose value is text.
const TEXT_KEYS: [&str; 7] =
    ["version", "tool_type", "executor_id", "category", "description", "name", "timeout"];

/// Keys whose value is JSON.
const JSON_KEYS: [&str; 8] = [
    "config_schema",
    "env_config",
    "config",
    "config_resolve",
    "sandbox",
    "anchor",
    "verify_deps",
    "requires",
];

/// Reads the metadata of a shell script.
#[must_use]
pub fn parse(text: &str) -> ParsedItem {
    if let Some(offset) = text.find('\0') {
        return ParsedItem::from_problem(
            Diagnostic::new("Syntax error: NUL byte")
                .with_position(SourcePosition::from_offset(text, offset)),
        );
    }
    let mut comments = Comments::new(text);
    let mut parsed = ParsedItem::default();
    while let Some(comment) = comments.next() {
        let Some(entry) = Entry::parse(&comment) else {
            continue;
        };
        if parsed.positions.contains_key(entry.key) {
            let problem = Diagnostic::new(format!("`{}` is given more than once", entry.key));
            parsed.problems.push(problem.with_field(entry.key).with_position(entry.key_position));
            continue;
        }
        // Also where the value is refused: a second one would not be looked at either.
        parsed.positions.insert(entry.key.to_owned(), entry.key_position);
        let value = if JSON_KEYS.contains(&entry.key) {
            parse_json(&entry, &mut comments)
        } else {
            Ok(parse_text(entry.key, entry.value))
        };
        match value {
            Ok(value) => parsed.set(entry.key, value, Some(entry.key_position)),
            Err(problem) => parsed.problems.push(problem.with_field(entry.key)),
        }
    }
    parsed.positions.retain(|key, _| parsed.fields.contains_key(key));
    parsed
}

fn parse_text(key: &str, value: &str) -> Value {
    if key == "executor_id" && value == "null" {
        return Value::Null;
    }
    let unquoted = ['"', '\'']
        .into_iter()
        .find_map(|quote| value.strip_prefix(quote).and_then(|inner| inner.strip_suffix(quote)));
    Value::from(unquoted.unwrap_or(value))
}

/// Reads a JSON value that begins in `entry` and continues over as many comments as it needs.
fn parse_json(entry: &Entry<'_>, comments: &mut Comments<'_>) -> Result<Value, Diagnostic> {
    let mut lines = vec![(entry.value, entry.value_position)];
    let mut balance = JsonBalance::default();
    balance.push_line(entry.value);
    while !balance.is_complete() {
        let Some(comment) = comments.next_if(|comment| Entry::parse(comment).is_none()) else {
            let problem = Diagnostic::new(format!("`{}` is not complete JSON", entry.key));
            return Err(problem.with_position(entry.key_position));
        };
        balance.push_line(comment.content);
        lines.push((comment.content, comment.position));
    }
    let text = lines.iter().map(|(line, _)| *line).collect::<Vec<_>>().join("\n");
    serde_json::from_str(&text).map_err(|error| {
        let message = error.to_string();
        let reason = message.split(" at line ").next().unwrap_or_default();
        let problem = Diagnostic::new(format!("`{}` is not valid JSON: {reason}", entry.key));
        match lines.get(error.line().saturating_sub(1)) {
            Some((line, position)) => {
                let before = line.get(..error.column().saturating_sub(1)).unwrap_or(line);
                problem.with_position(advance(*position, before))
            }
            None => problem.with_position(entry.value_position),
        }
    })
}

/// `position` moved over `text`, which stands on the same line.
fn advance(position: SourcePosition, text: &str) -> SourcePosition {
    let columns = u32::try_from(text.chars().count()).unwrap_or(u32::MAX);
    SourcePosition { column: position.column.saturating_add(columns), ..position }
}

/// Whether JSON read line by line has come to its end. Sees each line once, however many there are.
#[derive(Default)]
struct JsonBalance {
    has_begun: bool,
    depth: usize,
    is_broken: bool,
}

impl JsonBalance {
    fn push_line(&mut self, line: &str) {
        let mut is_in_string = false;
        let mut is_escaped = false;
        for character in line.chars() {
            self.has_begun |= !character.is_whitespace();
            match character {
                _ if is_escaped => is_escaped = false,
                '\\' if is_in_string => is_escaped = true,
                '"' => is_in_string = !is_in_string,
                _ if is_in_string => {}
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        // A string cannot continue over a line end: reading on would not make it right.
        self.is_broken |= is_in_string;
    }

    fn is_complete(&self) -> bool {
        self.is_broken || (self.has_begun && self.depth == 0)
    }
}

/// A comment line: what follows `#` and one space, and where that stands.
struct Comment<'text> {
    content: &'text str,
    position: SourcePosition,
}

/// The comments a script begins with; blank lines between them are passed over.
struct Comments<'text> {
    lines: Peekable<Lines<'text>>,
    line: u32,
}

impl<'text> Comments<'text> {
    fn new(text: &'text str) -> Self {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Self { lines: text.lines().peekable(), line: 1 }
    }

    fn next(&mut self) -> Option<Comment<'text>> {
        self.next_if(|_| true)
    }

    /// The next comment if it is wanted, else it stays.
    fn next_if(&mut self, is_wanted: impl Fn(&Comment<'text>) -> bool) -> Option<Comment<'text>> {
        while self.lines.next_if(|line| line.trim().is_empty()).is_some() {
            self.line = self.line.saturating_add(1);
        }
        let after = self.lines.peek()?.strip_prefix('#')?;
        let content = after.strip_prefix(' ');
        let column = if content.is_some() { 3 } else { 2 };
        let position = SourcePosition { line: self.line, column };
        let comment = Comment { content: content.unwrap_or(after), position };
        if !is_wanted(&comment) {
            return None;
        }
        self.lines.next();
        self.line = self.line.saturating_add(1);
        Some(comment)
    }
}

/// A comment that is metadata.
struct Entry<'text> {
    key: &'text str,
    key_position: SourcePosition,
    value: &'text str,
    value_position: SourcePosition,
}

impl<'text> Entry<'text> {
    /// The entry in a comment, if there is one: a known key, a colon, and nothing or a space after it.
    fn parse(comment: &Comment<'text>) -> Option<Self> {
        let content = comment.content.trim_start();
        let indent = &comment.content[..comment.content.len() - content.len()];
        let (key, after) = content.split_once(':')?;
        let is_known = TEXT_KEYS.contains(&key) || JSON_KEYS.contains(&key);
        if !is_known || !(after.is_empty() || after.starts_with(char::is_whitespace)) {
            return None;
        }
        let key_position = advance(comment.position, indent);
        let value = after.trim();
        let leading = after.len() - after.trim_start().len();
        let value_position = advance(key_position, &content[..key.len() + 1 + leading]);
        Some(Self { key, key_position, value, value_position })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(text: &str) -> Value {
        let parsed = parse(text);
        assert_eq!(parsed.problems, [], "{text:?}");
        Value::Object(parsed.fields)
    }

    fn problems(text: &str) -> Vec<String> {
        parse(text).problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn tool_metadata_and_positions_are_read() {
        let text = "#!/bin/bash\n# rye:signed:2026-01-01T00:00:00Z:ab:cd:ef\n# Echo tool: says: things\n\n# version: 1.0.0\n\
                    # tool_type: bash\n#   executor_id: rye/core/runtimes/bash/bash\n#category: bench\n# description: Echo: from \"bash\"  \n\
                    # config_schema: {\n#   \"type\": \"object\",\n#\n#   \"pattern\": \"{[\\\"#\"\n# }\n# requires: []\n# timeout: 30\n\
                    echo hi\n# name: late\n";
        let parsed = parse(text);
        assert_eq!(parsed.problems, []);
        assert_eq!(
            Value::Object(parsed.fields),
            json!({
                "version": "1.0.0",
                "tool_type": "bash",
                "executor_id": "rye/core/runtimes/bash/bash",
                "category": "bench",
                "description": "Echo: from \"bash\"",
                "config_schema": {"type": "object", "pattern": "{[\"#"},
                "requires": [],
                "timeout": "30",
            })
        );
        assert_eq!(parsed.positions["version"].to_string(), "5:3");
        assert_eq!(parsed.positions["executor_id"].to_string(), "7:5");
        assert_eq!(parsed.positions["category"].to_string(), "8:2");
        assert_eq!(parsed.positions["requires"].to_string(), "15:3");
    }

    #[test]
    fn sandbox_and_config_are_read() {
        assert_eq!(
            fields("# sandbox: {\"level\": \"strict\"}\n# config_resolve: {\"path\": \"a/b.yaml\"}\n"),
            json!({"sandbox": {"level": "strict"}, "config_resolve": {"path": "a/b.yaml"}})
        );
        assert_eq!(problems("# sandbox: strict\n").len(), 1);
    }

    #[test]
    fn carriage_returns_and_byte_order_marks_work() {
        let text = "\u{feff}# version: 1.0\r\n\r\n# config:\r\n#   {\"a\":\r\n#   1}\r\n# executor_id: null\r\nexit\r\n";
        assert_eq!(fields(text), json!({"version": "1.0", "config": {"a": 1}, "executor_id": null}));
    }

    #[test]
    fn quotes_around_a_text_are_removed() {
        assert_eq!(fields("# name: \"a'b\"\n# version: '1'\n"), json!({"name": "a'b", "version": "1"}));
        assert_eq!(fields("# name: \"a'\n# version: \"\n"), json!({"name": "\"a'", "version": "\""}));
        assert_eq!(
            fields("# executor_id: \"null\"\n# name: null"),
            json!({"executor_id": "null", "name": "null"})
        );
    }

    #[test]
    fn other_comments_are_prose() {
        for text in [
            "# Version: 1\n",
            "# author: me\n",
            "## version: 1\n",
            "# config://x\n",
            " # version: 1\n",
            "version: 1\n",
            "# the version: 1\n",
            "",
        ] {
            assert_eq!(fields(text), json!({}), "{text:?}");
        }
    }

    #[test]
    fn json_may_be_a_scalar() {
        assert_eq!(
            fields("# verify_deps: true\n# requires: \"a\"\n"),
            json!({"verify_deps": true, "requires": "a"})
        );
    }

    #[test]
    fn duplicate_key_is_a_problem() {
        let parsed = parse("# version: 1\n# version: 2\n");
        assert_eq!(
            parsed.problems.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["2:3: `version` is given more than once"]
        );
        assert_eq!(parsed.text("version"), Some("1"));
    }

    #[test]
    fn invalid_json_is_reported_with_position() {
        assert_eq!(problems("# config: {\"a\": é}\n"), ["1:17: `config` is not valid JSON: expected value"]);
        assert_eq!(
            problems("# config: {\n#  \"é\": 1,\n#  é\": x }\n"),
            ["3:4: `config` is not valid JSON: key must be a string"]
        );
        assert_eq!(
            problems("# config: {\n#  \"a\": 1,\n# version: 1\n# config: 1\necho"),
            ["1:3: `config` is not complete JSON", "4:3: `config` is given more than once"]
        );
        assert_eq!(problems("# config: {\"a\": 1}}\n# version: 1").len(), 1);
        assert_eq!(problems("# config: {\"a: 1}\n# prose\n# version: 1").len(), 1);
        let parsed = parse("# config: nope\n# version: 1\n");
        assert_eq!(Value::Object(parsed.fields), json!({"version": "1"}));
        assert!(!parsed.positions.contains_key("config"));
    }

    #[test]
    fn attack_inputs_end_in_problems() {
        let count = 100_000;
        assert_eq!(problems(&format!("# config: {}{}\n", "[".repeat(count), "]".repeat(count))).len(), 1);
        assert_eq!(problems(&format!("# config: {}", "[\n# ".repeat(count))).len(), 1);
        assert_eq!(problems(&"# config: [\n".repeat(count)).len(), count);
        assert_eq!(problems(&format!("# config: \"{}", "a".repeat(1 << 20))).len(), 1);
        assert_eq!(problems("# version: 1\n# name: \0\n"), ["2:9: Syntax error: NUL byte"]);
        let long = "a".repeat(1 << 20);
        assert_eq!(fields(&format!("# name: {long}\n")), json!({ "name": long }));
    }
}
