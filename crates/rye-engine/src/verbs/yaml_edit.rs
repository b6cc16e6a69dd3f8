//! Changing one setting in the text of a YAML file: every other line stays as it is, comments included. What came of it
//! is parsed and compared, so that a text this cannot change is refused, never damaged.

use rye_item::yaml;
use serde_json::{Map, Value};

/// The text with the setting at `path` set to `value`; `None` if the text is written in a way that cannot be changed
/// line by line.
pub(crate) fn set(text: &str, path: &[String], value: &Value) -> Option<String> {
    let before = parse(text)?;
    let mut wanted = before.clone();
    insert(&mut wanted, path, value)?;
    if wanted == before {
        return Some(text.to_owned());
    }
    let changed = edit(text, path, value)?;
    (parse(&changed)? == wanted).then_some(changed)
}

fn parse(text: &str) -> Option<Value> {
    match yaml::parse(text).ok()?.value {
        Value::Null => Some(Value::Object(Map::new())),
        object @ Value::Object(_) => Some(object),
        _ => None,
    }
}

fn insert(document: &mut Value, path: &[String], value: &Value) -> Option<()> {
    let (last, parents) = path.split_last()?;
    let mut node = document;
    for key in parents {
        if node.is_null() {
            *node = Value::Object(Map::new());
        }
        node = node.as_object_mut()?.entry(key.clone()).or_insert(Value::Null);
    }
    if node.is_null() {
        *node = Value::Object(Map::new());
    }
    node.as_object_mut()?.insert(last.clone(), value.clone());
    Some(())
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

/// Whether a line says nothing: it is empty or a comment.
fn is_silent(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

fn edit(text: &str, path: &[String], value: &Value) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    // The lines in which the next key is looked for, and how far they are indented.
    let (mut from, mut to) = (0, lines.len());
    let mut indent = 0;
    for (depth, key) in path.iter().enumerate() {
        let present = (from..to).find(|at| {
            let line = &lines[*at];
            !is_silent(line) && indent_of(line) == indent && key_rest(line, key).is_some()
        });
        let Some(at) = present else {
            let place = end_of_block(&lines, from, to);
            let new_lines = nested_lines(&path[depth..], value, indent);
            lines.splice(place..place, new_lines);
            return Some(joined(&lines));
        };
        let end = block_end(&lines, at + 1, to, indent);
        let rest = key_rest(&lines[at], key)?;
        if depth + 1 == path.len() {
            let comment = comment_of(rest);
            let new_line = format!("{}{}: {}{comment}", " ".repeat(indent), yaml_key(key), scalar(value));
            lines.splice(at..end, [new_line]);
            return Some(joined(&lines));
        }
        // A value on the line itself is not a block to look into.
        if !(rest.trim().is_empty() || rest.trim_start().starts_with('#')) {
            return None;
        }
        let inner = lines[at + 1..end].iter().find(|line| !is_silent(line)).map(|line| indent_of(line));
        let inner = inner.filter(|inner| *inner > indent).unwrap_or(indent + 2);
        (from, to, indent) = (at + 1, end, inner);
    }
    None
}

/// What follows `key:` on a line.
fn key_rest<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let line = line.trim_start();
    let quoted = [format!("\"{key}\""), format!("'{key}'"), key.to_owned()];
    let rest = quoted.iter().find_map(|written| line.strip_prefix(written.as_str()))?;
    let rest = rest.trim_start().strip_prefix(':')?;
    (rest.is_empty() || rest.starts_with(' ')).then_some(rest)
}

/// Where the block that begins at `from` ends: before the next line that is not indented further. Silent lines before
/// that line belong to it.
fn block_end(lines: &[String], from: usize, to: usize, indent: usize) -> usize {
    let is_item = |line: &str| indent_of(line) == indent && line.trim_start().starts_with("- ");
    let next = (from..to).find(|at| {
        let line = &lines[*at];
        !is_silent(line) && indent_of(line) <= indent && !is_item(line)
    });
    end_of_block(lines, from, next.unwrap_or(to))
}

/// The end of the last line of a range that says something.
fn end_of_block(lines: &[String], from: usize, to: usize) -> usize {
    (from..to).rev().find(|at| !is_silent(&lines[*at])).map_or(from, |at| at + 1)
}

fn nested_lines(keys: &[String], value: &Value, indent: usize) -> Vec<String> {
    let last = keys.len().saturating_sub(1);
    keys.iter()
        .enumerate()
        .map(|(depth, key)| {
            let space = " ".repeat(indent + 2 * depth);
            match depth == last {
                true => format!("{space}{}: {}", yaml_key(key), scalar(value)),
                false => format!("{space}{}:", yaml_key(key)),
            }
        })
        .collect()
}

fn joined(lines: &[String]) -> String {
    lines.join("\n") + "\n"
}

/// The comment at the end of a line, with the blank before it.
fn comment_of(rest: &str) -> String {
    match (rest.contains(['"', '\'']), rest.find(" #")) {
        // A number sign in a quoted text is none of a comment: the comment is given up rather than the value.
        (false, Some(at)) => rest[at..].to_owned(),
        _ => String::new(),
    }
}

fn yaml_key(key: &str) -> String {
    if is_plain(key) { key.to_owned() } else { Value::from(key).to_string() }
}

/// A value on one line. JSON is YAML.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Whether a text is the same text in YAML without quotes.
fn is_plain(text: &str) -> bool {
    let is_word = matches!(
        text.to_ascii_lowercase().as_str(),
        "true" | "false" | "null" | "yes" | "no" | "on" | "off" | "y" | "n"
    );
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "_-./".contains(character))
        && !is_word
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set_key(text: &str, key: &str, value: &Value) -> Option<String> {
        set(text, &key.split('.').map(str::to_owned).collect::<Vec<_>>(), value)
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        let text =
            "# mine\nversion: \"1.0.0\"\nsearch:\n  # few\n  limit: 10 # rows\n\ndisplay:\n  color: auto\n";
        let changed = set_key(text, "search.limit", &json!(3));
        assert_eq!(changed, Some(text.replace("limit: 10", "limit: 3")));
        let changed = set_key(text, "search.fuzzy", &json!(true)).expect("changed");
        assert_eq!(changed, text.replace("# rows\n", "# rows\n  fuzzy: true\n"));
        let changed = set_key(text, "mcp.sign", &json!("deny")).expect("changed");
        assert_eq!(changed, format!("{text}mcp:\n  sign: deny\n"));
        assert_eq!(set_key("", "a.b", &json!("on")), Some("a:\n  b: \"on\"\n".to_owned()));
    }

    #[test]
    fn lists_are_replaced_whole() {
        let text = "mcp:\n  clients:\n  - a\n  - b\n  sign: ask\n";
        let changed = set_key(text, "mcp.clients", &json!(["c"]));
        assert_eq!(changed, Some("mcp:\n  clients: [\"c\"]\n  sign: ask\n".to_owned()));
        let text = "mcp:\n  clients:\n    - a\n  sign: ask\n";
        let changed = set_key(text, "mcp.clients", &json!(["c"]));
        assert_eq!(changed, Some("mcp:\n  clients: [\"c\"]\n  sign: ask\n".to_owned()));
    }

    #[test]
    fn texts_that_cannot_be_changed_are_refused() {
        for text in ["search: {limit: 10}\n", "search: &x\n  limit: 1\n", "- a\n", "a: [\n"] {
            assert_eq!(set_key(text, "search.limit", &json!(3)), None, "{text}");
        }
        assert_eq!(set_key("search: 3\n", "search.limit", &json!(3)), None);
    }
}
