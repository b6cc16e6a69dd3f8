//! The single entry point for YAML: 1.2 core schema, duplicate keys are errors, anchors and depth have a budget.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, Options, Spanned};

use crate::diagnostic::{Diagnostic, SourcePosition};

/// How many levels of keys have their position remembered.
const POSITION_DEPTH: usize = 3;

/// A YAML document: its value, and where its keys stand (by dotted path).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct YamlDocument {
    /// The value.
    pub value: Value,
    /// Where the value of each key stands.
    pub positions: BTreeMap<String, SourcePosition>,
    /// Scalars that a YAML 1.1 reader would see differently.
    pub warnings: Vec<Diagnostic>,
}

/// Reads one YAML document. An empty text is `null`.
///
/// # Errors
/// One problem, with its position, for the first thing that is wrong.
pub fn parse(text: &str) -> Result<YamlDocument, Diagnostic> {
    parse_document(text, POSITION_DEPTH, false)
}

/// As [`parse`], with the position of every key (the key itself, not its value) and element however deep, to report
/// where a problem is.
///
/// # Errors
/// As [`parse`].
pub fn parse_with_key_positions(text: &str) -> Result<YamlDocument, Diagnostic> {
    parse_document(text, usize::MAX, true)
}

fn parse_document(text: &str, position_depth: usize, records_keys: bool) -> Result<YamlDocument, Diagnostic> {
    let node: Option<Spanned<Node>> =
        serde_saphyr::from_str_with_options(text, options()).map_err(|error| to_diagnostic(&error))?;
    let Some(node) = node else {
        return Ok(YamlDocument::default());
    };
    let mut reader = YamlReader { text, position_depth, records_keys, document: YamlDocument::default() };
    let value = reader.value(node, "", 0)?;
    Ok(YamlDocument { value, ..reader.document })
}

fn options() -> Options {
    serde_saphyr::options! {
        strict_booleans: true,
        reject_unsupported_tags: true,
        merge_keys: serde_saphyr::MergeKeyPolicy::Error,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_documents: 1,
            max_depth: 40,
            max_aliases: 1_000,
            max_anchors: 1_000,
            max_recorded_anchor_events: 20_000,
            max_recorded_anchor_bytes: 1_048_576,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: 20_000,
            max_replay_stack_depth: 16,
        },
    }
}

fn to_diagnostic(error: &serde_saphyr::Error) -> Diagnostic {
    let rendered = error.render_with_options(serde_saphyr::render_options! {
        snippets: serde_saphyr::SnippetMode::Off,
    });
    let first = rendered.lines().next().unwrap_or("it cannot be read");
    let message = first.rfind(" at line ").map_or(first, |cut| &first[..cut]);
    let problem =
        Diagnostic::new(format!("Invalid YAML: {}", crate::text::one_line(&plain_message(message))));
    match error.location().and_then(|location| position_of(&location)) {
        Some(position) => problem.with_position(position),
        None => problem,
    }
}

/// What the library says to programmers, said to people.
fn plain_message(message: &str) -> String {
    if let Some(rest) = message.strip_prefix("duplicate mapping key: ") {
        return format!("duplicate key `{}`", rest.split(", set ").next().unwrap_or(rest));
    }
    if message.starts_with("recursive references") {
        return "an alias refers to its own parent".to_owned();
    }
    match message.strip_prefix("budget breached: ") {
        Some(rest) if rest.starts_with("Documents") => "there is more than one document in it".to_owned(),
        Some(rest) if rest.starts_with("Depth") => "it is nested too deeply".to_owned(),
        Some(_) => "it is too large when its aliases are filled in".to_owned(),
        None => message.to_owned(),
    }
}

fn position_of(location: &Location) -> Option<SourcePosition> {
    let line = u32::try_from(location.line()).ok()?;
    let column = u32::try_from(location.column()).ok()?;
    (line > 0).then_some(SourcePosition { line, column: column.max(1) })
}

/// Any YAML value, with the places of its parts.
enum Node {
    Scalar(Value),
    List(Vec<Spanned<Node>>),
    Map(Vec<(String, Location, Spanned<Node>)>),
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a YAML value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Node, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("numbers must be finite"))?;
        Ok(Node::Scalar(Value::Number(number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(Value::String(value.to_owned())))
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Node::Scalar(Value::String(value)))
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_some<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = access.next_element()? {
            list.push(element);
        }
        Ok(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = access.next_key::<Spanned<Node>>()? {
            let location = key.referenced;
            let key = match key.value {
                Node::Scalar(Value::String(key)) => key,
                Node::Scalar(other @ (Value::Bool(_) | Value::Number(_) | Value::Null)) => other.to_string(),
                Node::Scalar(_) | Node::List(_) | Node::Map(_) => {
                    return Err(A::Error::custom("keys must be scalars"));
                }
            };
            entries.push((key, location, access.next_value()?));
        }
        Ok(Node::Map(entries))
    }
}

/// Turns nodes into values, noting positions and looking at how scalars were written.
struct YamlReader<'a> {
    text: &'a str,
    position_depth: usize,
    records_keys: bool,
    document: YamlDocument,
}

impl YamlReader<'_> {
    fn value(&mut self, node: Spanned<Node>, path: &str, depth: usize) -> Result<Value, Diagnostic> {
        let location = node.referenced;
        match node.value {
            Node::Scalar(value) => {
                self.check_scalar(&value, &location)?;
                Ok(value)
            }
            Node::List(list) => {
                let mut values = Vec::with_capacity(list.len());
                for (index, element) in list.into_iter().enumerate() {
                    let element_path =
                        if depth < self.position_depth { format!("{path}[{index}]") } else { String::new() };
                    self.record_position(&element_path, &element.referenced, depth);
                    values.push(self.value(element, &element_path, depth + 1)?);
                }
                Ok(Value::Array(values))
            }
            Node::Map(entries) => {
                let mut map = Map::with_capacity(entries.len());
                for (key, key_location, entry) in entries {
                    let entry_path = match (depth < self.position_depth, path) {
                        (false, _) => String::new(),
                        (true, "") => key.clone(),
                        (true, _) => format!("{path}.{key}"),
                    };
                    let recorded = if self.records_keys { &key_location } else { &entry.referenced };
                    self.record_position(&entry_path, recorded, depth);
                    let position = position_of(&entry.referenced);
                    let value = self.value(entry, &entry_path, depth + 1)?;
                    if map.insert(key.clone(), value).is_some() {
                        let problem = Diagnostic::new(format!("Invalid YAML: duplicate key `{key}`"));
                        return Err(
                            position.map_or(problem.clone(), |position| problem.with_position(position))
                        );
                    }
                }
                Ok(Value::Object(map))
            }
        }
    }

    fn record_position(&mut self, path: &str, location: &Location, depth: usize) {
        if depth < self.position_depth
            && let Some(position) = position_of(location)
        {
            self.document.positions.insert(path.to_owned(), position);
        }
    }

    fn check_scalar(&mut self, value: &Value, location: &Location) -> Result<(), Diagnostic> {
        let Some(written) = self.plain_scalar(location) else {
            return Ok(());
        };
        let at = |problem: Diagnostic| match position_of(location) {
            Some(position) => problem.with_position(position),
            None => problem,
        };
        if value.is_number() && has_leading_zero(written) {
            return Err(at(Diagnostic::new(format!(
                "Invalid YAML: `{written}` is read as an octal by some and as a decimal by others: quote it, or write `0o…`"
            ))));
        }
        if value.is_string() && reads_differently_in_yaml_1_1(written) {
            self.document.warnings.push(at(Diagnostic::new(format!(
                "`{written}` is a string here, but not to a YAML 1.1 reader: quote it"
            ))));
        }
        Ok(())
    }

    /// The text of an unquoted scalar of one line.
    fn plain_scalar(&self, location: &Location) -> Option<&str> {
        let start = usize::try_from(location.span().byte_offset()?).ok()?;
        let rest = self.text.get(start..)?;
        if rest.starts_with(['"', '\'', '|', '>', '&', '*', '!', '{', '[']) {
            return None;
        }
        let line = rest.lines().next().unwrap_or("");
        let end = line.find([',', '}', ']', '#']).unwrap_or(line.len());
        Some(line[..end].trim_end())
    }
}

fn has_leading_zero(written: &str) -> bool {
    let digits = written.trim_start_matches(['-', '+']).as_bytes();
    digits.len() > 1
        && digits[0] == b'0'
        && digits[1..].iter().all(|byte| byte.is_ascii_digit() || *byte == b'_')
}

fn reads_differently_in_yaml_1_1(written: &str) -> bool {
    let is_boolean_word =
        matches!(written.to_ascii_lowercase().as_str(), "yes" | "no" | "on" | "off" | "y" | "n");
    let is_sexagesimal = written.contains(':')
        && written.split(':').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
    is_boolean_word || is_sexagesimal
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(text: &str) -> Value {
        parse(text).expect("valid YAML").value
    }

    fn problem(text: &str) -> Diagnostic {
        parse(text).expect_err("invalid YAML")
    }

    #[test]
    fn schema_is_yaml_1_2_core() {
        assert_eq!(
            value(
                "a: yes\nb: on\nc: true\nd: 0o17\ne: ~\nf: 1.5\ng: 2026-01-01T00:00:00Z\nh: 1.0.0\ni: 12\n"
            ),
            json!({"a": "yes", "b": "on", "c": true, "d": 15, "e": null, "f": 1.5,
                   "g": "2026-01-01T00:00:00Z", "h": "1.0.0", "i": 12})
        );
        assert_eq!(value(""), Value::Null);
        assert_eq!(value("# only a comment\n"), Value::Null);
    }

    #[test]
    fn errors_use_plain_messages() {
        let message = |text: &str| problem(text).message;
        assert_eq!(message("a: 1\na: 2\n"), "Invalid YAML: duplicate key `a`");
        assert_eq!(message("a: 1\n---\nb: 2\n"), "Invalid YAML: there is more than one document in it");
        assert_eq!(message("a: &x [*x]\n"), "Invalid YAML: an alias refers to its own parent");
        let bomb: String = (1..9)
            .map(|n| format!("a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 9].join(", ")))
            .collect();
        let bomb = format!("a0: &a0 [1]\n{bomb}");
        assert_eq!(message(&bomb), "Invalid YAML: it is too large when its aliases are filled in");
    }

    #[test]
    fn every_key_has_its_own_position() {
        let document =
            parse_with_key_positions("a:\n  b:\n    - c:\n        d:\n          e: 1\n").expect("valid YAML");
        let position = |path: &str| document.positions.get(path).map(ToString::to_string);
        assert_eq!(position("a").as_deref(), Some("1:1"));
        assert_eq!(position("a.b[0].c").as_deref(), Some("3:7"));
        assert_eq!(position("a.b[0].c.d.e").as_deref(), Some("5:11"));
    }

    #[test]
    fn duplicate_keys_are_errors_with_a_position() {
        let problem = problem("a: 1\nb:\n  c: 1\n  c: 2\n");
        assert_eq!(problem.position.map(|position| position.line), Some(4));
        assert!(problem.message.contains("duplicate key `c`"), "{problem}");
    }

    #[test]
    fn numbers_with_a_leading_zero_are_refused() {
        assert!(problem("mode: 0777\n").message.contains("octal"));
        assert_eq!(
            value("mode: '0777'\nzero: 0\nhalf: 0.5\n"),
            json!({"mode": "0777", "zero": 0, "half": 0.5})
        );
    }

    #[test]
    fn alias_bombs_and_deep_nesting_are_refused() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..9 {
            let alias = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", vec![alias; 9].join(", ")));
        }
        problem(&bomb);
        for deep in ["[", "- ", "{a: ", "? "] {
            problem(&deep.repeat(100_000));
        }
    }

    #[test]
    fn small_anchors_work() {
        assert_eq!(value("a: &x {k: 1}\nb: *x\n"), json!({"a": {"k": 1}, "b": {"k": 1}}));
    }

    #[test]
    fn words_of_yaml_1_1_are_warned_about() {
        let document = parse("a: yes\nb: \"no\"\nc: [off, x]\nd: 1:30\n").expect("valid YAML");
        let lines: Vec<_> =
            document.warnings.iter().filter_map(|warning| warning.position).map(|at| at.line).collect();
        assert_eq!(lines, [1, 3, 4]);
    }

    #[test]
    fn keys_have_positions() {
        let document = parse("a: 1\nb:\n  c: x\n").expect("valid YAML");
        assert_eq!(document.positions.get("b.c"), Some(&SourcePosition { line: 3, column: 6 }));
    }

    #[test]
    fn broken_text_is_an_error_with_a_position() {
        assert!(problem("a: [1\nb: 2\n").position.is_some());
        assert!(problem("a: b: c\n").position.is_some());
        problem("a: 1\n--- \nb: 2\n");
    }
}
