//! The head of a markdown file of another client: `---`, keys, `---`. Read as YAML where it is YAML, else by line.

use rye_item::yaml;
use serde_json::{Map, Value};

use crate::findings;

/// The largest head that is read.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Why a head was not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrontMatterError {
    #[error("its front matter is larger than {} KiB", MAX_HEAD_BYTES >> 10)]
    TooLarge,
    #[error("its front matter is opened and never closed")]
    Unclosed,
    #[error("its front matter has YAML anchors or aliases (line {0})")]
    Alias(usize),
    #[error("its front matter has a {0}")]
    Hidden(String),
    #[error("its front matter is not YAML: {0}")]
    Invalid(String),
}

/// A text split at the end of its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SplitText<'a> {
    /// Everything up to the body, with both `---` lines; empty without a head.
    pub head: &'a str,
    /// The keys, without the `---` lines.
    pub keys: &'a str,
    /// Everything after.
    pub body: &'a str,
}

/// The keys of a head.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FrontMatter {
    pub fields: Map<String, Value>,
    /// Why the keys were read by line, if they were.
    pub by_line: Option<String>,
}

impl FrontMatter {
    /// A text; numbers and booleans as they are written.
    pub(crate) fn text(&self, key: &str) -> Option<String> {
        match self.fields.get(key)? {
            Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        }
    }

    /// A list, or a text of words between commas. Commas inside parentheses do not separate.
    pub(crate) fn list(&self, key: &str) -> Option<Vec<String>> {
        match self.fields.get(key)? {
            Value::Array(list) => Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect()),
            Value::String(text) => Some(split_words(text)),
            Value::Null => Some(Vec::new()),
            Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
        }
    }
}

/// Words between commas, or between spaces where there is no comma; parentheses and brackets keep them together.
pub(crate) fn split_words(text: &str) -> Vec<String> {
    let text = text.trim().trim_start_matches('[').trim_end_matches(']');
    let has_commas = split_outside(text, |character| character == ',').len() > 1;
    let parts = split_outside(text, |character| match has_commas {
        true => character == ',',
        false => character.is_whitespace(),
    });
    let clean = parts.into_iter().map(|part| part.trim().trim_matches(['"', '\'']).to_owned());
    clean.filter(|part| !part.is_empty()).collect()
}

fn split_outside(text: &str, is_separator: impl Fn(char) -> bool) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (index, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 && is_separator(character) => {
                parts.push(&text[start..index]);
                start = index + character.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// Splits a text at the end of its head. A byte order mark belongs to the head.
pub(crate) fn split(text: &str) -> Result<SplitText<'_>, FrontMatterError> {
    let mark = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let mut lines = text[mark..].split_inclusive('\n');
    let mut offset = mark;
    match lines.next() {
        Some(line) if line.trim_end() == "---" => offset += line.len(),
        _ => return Ok(SplitText { head: &text[..mark], keys: "", body: &text[mark..] }),
    }
    let start = offset;
    for line in lines {
        let end = offset + line.len();
        if matches!(line.trim_end(), "---" | "...") && !line.starts_with([' ', '\t']) {
            return Ok(SplitText { head: &text[..end], keys: &text[start..offset], body: &text[end..] });
        }
        offset = end;
        if offset - start > MAX_HEAD_BYTES {
            return Err(FrontMatterError::TooLarge);
        }
    }
    Err(FrontMatterError::Unclosed)
}

/// The first hidden character of any text in a value.
fn hidden_in(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => findings::describe_hidden(text),
        Value::Array(values) => values.iter().find_map(hidden_in),
        Value::Object(fields) => {
            fields.iter().find_map(|(key, value)| findings::describe_hidden(key).or_else(|| hidden_in(value)))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Reads the keys as YAML. Where they are not YAML, by line: a line that begins with one of `known` keys begins its value, every
/// other line continues with it, as the clients that wrote such files read them.
pub(crate) fn read(keys: &str, known: &[&str]) -> Result<FrontMatter, FrontMatterError> {
    if let Some(line) = alias_line(keys) {
        return Err(FrontMatterError::Alias(line));
    }
    match yaml::parse(keys) {
        Ok(document) => match document.value {
            Value::Object(fields) => {
                // Escapes can write what the file itself does not show.
                let hidden = fields
                    .iter()
                    .find_map(|(key, value)| findings::describe_hidden(key).or_else(|| hidden_in(value)));
                match hidden.filter(|_| !findings::has_hidden(keys)) {
                    Some(what) => Err(FrontMatterError::Hidden(format!("{what} of a value"))),
                    None => Ok(FrontMatter { fields, by_line: None }),
                }
            }
            Value::Null => Ok(FrontMatter::default()),
            _ => Err(FrontMatterError::Invalid("it is not a map of keys".to_owned())),
        },
        Err(problem) => {
            let fields = read_lines(keys, known);
            let problem = problem.to_string();
            match fields.is_empty() {
                true => Err(FrontMatterError::Invalid(problem)),
                false => Ok(FrontMatter { fields, by_line: Some(problem) }),
            }
        }
    }
}

/// Reads keys by line, never as YAML: `globs: **/*` is an alias there.
pub(crate) fn read_lines(keys: &str, known: &[&str]) -> Map<String, Value> {
    let mut raw: Vec<(&str, String)> = Vec::new();
    for line in keys.lines() {
        let key = known.iter().find(|key| {
            line.strip_prefix(**key).is_some_and(|rest| rest.trim_start_matches([' ', '\t']).starts_with(':'))
        });
        match (key, raw.last_mut()) {
            (Some(key), _) => {
                let value = line[key.len()..].trim_start_matches([' ', '\t', ':']).to_owned();
                raw.push((key, value));
            }
            (None, Some((_, value))) => {
                value.push('\n');
                value.push_str(line);
            }
            (None, None) => {}
        }
    }
    let mut fields = Map::new();
    for (key, value) in raw {
        // The first counts, so that a line of a long description cannot replace a key before it.
        fields.entry(key).or_insert_with(|| line_value(&value));
    }
    fields
}

fn line_value(raw: &str) -> Value {
    let text = raw.trim();
    let is_list = !text.is_empty()
        && text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with("- "));
    if is_list {
        let elements = text.lines().filter_map(|line| line.trim_start().strip_prefix("- "));
        return elements.map(|line| line.trim().trim_matches(['"', '\''])).collect();
    }
    let quoted = ['"', '\''].into_iter().find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote));
    let text = quoted.unwrap_or(text).trim_start_matches(['|', '>']).trim();
    match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "" => Value::Null,
        text => Value::from(text),
    }
}

/// The first line that has an anchor or an alias, outside quotes.
fn alias_line(keys: &str) -> Option<usize> {
    let is_name = |rest: &str| rest.chars().next().is_some_and(|next| next.is_alphanumeric() || next == '_');
    let is_mark = |text: &str| text.strip_prefix(['&', '*']).is_some_and(is_name);
    let mut block: Option<usize> = None;
    for (index, line) in keys.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        if block.is_some_and(|outer| indent > outer || line.trim().is_empty()) {
            continue;
        }
        block = None;
        let mut value = line.trim_start();
        while let Some(rest) = value.strip_prefix("- ") {
            value = rest.trim_start();
        }
        let after_key = value.split_once(": ").map_or("", |(_, rest)| rest.trim_start());
        if line.trim_end().ends_with(['|', '>']) || after_key.starts_with(['|', '>']) {
            block = Some(indent);
        }
        let is_flow = |text: &str| text.starts_with(['[', '{']);
        let has_flow_mark = |text: &str| {
            is_flow(text)
                && text.match_indices(['&', '*']).any(|(at, _)| {
                    is_mark(&text[at..]) && text[..at].trim_end().ends_with(['[', ',', ':', '{'])
                })
        };
        if [value, after_key].iter().any(|text| is_mark(text) || has_flow_mark(text)) {
            return Some(index + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn head_and_body_join_to_the_text() {
        for text in [
            "---\na: 1\n---\nbody",
            "\u{feff}---\r\na: 1\r\n---\r\n\r\nbody\r\n",
            "no head",
            "",
            "---\n---\n",
        ] {
            let parts = split(text).expect("parts");
            assert_eq!(format!("{}{}", parts.head, parts.body), text);
        }
        assert_eq!(split("---\na: 1\n"), Err(FrontMatterError::Unclosed));
        assert_eq!(
            split(&format!("---\na: {}\n---\n", "x\n".repeat(99_999))),
            Err(FrontMatterError::TooLarge)
        );
    }

    #[test]
    fn aliases_are_refused() {
        for bad in ["a: &x 1\nb: *x", "a: [*x, *x]", "- &a b", "a: {b: &c 1}", "x:\n  - *y"] {
            assert!(matches!(read(bad, &[]), Err(FrontMatterError::Alias(_))), "{bad}");
        }
        for good in ["a: x & y", "a: \"*x\"", "a: |\n  *bold* words\n  &and\nb: 1", "a: 2 * 3"] {
            assert!(read(good, &[]).is_ok(), "{good} {:?}", read(good, &[]));
        }
    }

    #[test]
    fn broken_yaml_is_read_by_line() {
        let keys = "name: a\ndescription: Use: this\n\n<example>\nuser: \"x\"\n</example>\ntools: Read, Bash(git log:*, x)\nmodel: opus";
        let read = read(keys, &["name", "description", "tools", "model"]).expect("fields");
        assert!(read.by_line.is_some());
        assert_eq!(read.list("tools"), Some(vec!["Read".to_owned(), "Bash(git log:*, x)".to_owned()]));
        assert!(read.text("description").is_some_and(|text| text.contains("user:")));
        let listed = read_lines("tools:\n  - Read\n  - \"Grep\"\nname: b", &["name", "tools"]);
        assert_eq!(listed["tools"], json!(["Read", "Grep"]));
    }

    #[test]
    fn globs_are_read_by_line() {
        let fields = read_lines(
            "description: x\nglobs: **/*.ts,*.js\nalwaysApply: true",
            &["description", "globs", "alwaysApply"],
        );
        assert_eq!(
            fields,
            json!({"description": "x", "globs": "**/*.ts,*.js", "alwaysApply": true})
                .as_object()
                .cloned()
                .unwrap_or_default()
        );
    }

    proptest! {
        #[test]
        fn any_text_is_split_or_refused(text in "(---\n|a: 1\n|&x|\\*x|\n|é|.){0,20}") {
            if let Ok(parts) = split(&text) {
                prop_assert_eq!(format!("{}{}", parts.head, parts.body), text.clone());
                let _ = read(parts.keys, &["a", "b"]);
            }
        }
    }
}
