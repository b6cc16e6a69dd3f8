//! Text to fields. Nothing is run, nothing is guessed: what cannot be read is a problem with a position.

pub mod dialects;
pub mod directive;
pub mod fence;
pub mod javascript;
pub mod knowledge;
pub mod python;
pub mod shell;
mod syntax;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::diagnostic::{Diagnostic, ParsedItem, SourcePosition};
use crate::extractor::Parser;
use crate::yaml;

/// Parses the bytes of a file with `extension`.
#[must_use]
pub fn parse(parser: Parser, extension: &str, bytes: &[u8]) -> ParsedItem {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let position = SourcePosition::from_offset(&valid, valid.len());
            return ParsedItem::from_problem(
                Diagnostic::new("the file is not valid UTF-8").with_position(position),
            );
        }
    };
    match parser {
        Parser::MarkdownXml => directive::parse(text),
        Parser::MarkdownFrontmatter if matches!(extension, ".yaml" | ".yml") => knowledge::parse_yaml(text),
        Parser::MarkdownFrontmatter => knowledge::parse(text),
        Parser::Python => python::parse(text),
        Parser::JavaScript if extension == ".ts" => javascript::parse_typescript(text),
        Parser::JavaScript => javascript::parse_javascript(text),
        Parser::TypeScript => javascript::parse_typescript(text),
        Parser::Shell => shell::parse(text),
        Parser::Yaml => parse_yaml(text),
        Parser::Toml => parse_toml(text),
        Parser::Json => parse_json(text),
    }
}

/// The first line of a Python source whose indentation Python refuses; in other languages there is no such line. It is
/// checked before signing.
#[must_use]
pub fn indentation_problem(parser: Parser, bytes: &[u8]) -> Option<Diagnostic> {
    match parser {
        Parser::Python => python::indentation_problem(std::str::from_utf8(bytes).ok()?),
        Parser::MarkdownXml
        | Parser::MarkdownFrontmatter
        | Parser::JavaScript
        | Parser::TypeScript
        | Parser::Shell
        | Parser::Yaml
        | Parser::Toml
        | Parser::Json => None,
    }
}

/// Whether a tool is a function: source that defines `execute` at its top level, in JavaScript exported.
#[must_use]
pub fn defines_execute(parser: Parser, extension: &str, bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    // Most tools that are not functions are told apart without reading their syntax.
    if !text.contains("execute") {
        return false;
    }
    match parser {
        Parser::Python => python::defines_function(text, "execute"),
        Parser::JavaScript | Parser::TypeScript => {
            let is_typed = parser == Parser::TypeScript || extension == ".ts";
            javascript::exports_function(text, is_typed, "execute")
        }
        Parser::MarkdownXml
        | Parser::MarkdownFrontmatter
        | Parser::Shell
        | Parser::Yaml
        | Parser::Toml
        | Parser::Json => false,
    }
}

/// Whether loading the source may leave a name `execute` behind: as [`defines_execute`], or assigned, imported, defined
/// under a condition, or made at run time. A file that is not a source has none.
#[must_use]
pub fn may_define_execute(parser: Parser, extension: &str, bytes: &[u8]) -> bool {
    if defines_execute(parser, extension, bytes) {
        return true;
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    match parser {
        Parser::Python => python::may_bind(text, "execute"),
        Parser::JavaScript | Parser::TypeScript => javascript::may_export(text, "execute"),
        Parser::MarkdownXml
        | Parser::MarkdownFrontmatter
        | Parser::Shell
        | Parser::Yaml
        | Parser::Toml
        | Parser::Json => false,
    }
}

fn parse_yaml(text: &str) -> ParsedItem {
    match yaml::parse(text) {
        Ok(document) => ParsedItem {
            positions: document.positions,
            warnings: document.warnings,
            ..from_mapping(document.value)
        },
        Err(problem) => ParsedItem::from_problem(problem),
    }
}

fn parse_toml(text: &str) -> ParsedItem {
    match toml::from_str::<toml::Table>(text) {
        Ok(table) => match serde_json::to_value(table) {
            Ok(value) => ParsedItem { positions: toml_positions(text), ..from_mapping(value) },
            Err(error) => ParsedItem::from_problem(Diagnostic::new(format!("Invalid TOML: {error}"))),
        },
        Err(error) => {
            let problem =
                Diagnostic::new(format!("Invalid TOML: {}", crate::text::one_line(error.message())));
            ParsedItem::from_problem(match error.span() {
                Some(span) => problem.with_position(SourcePosition::from_offset(text, span.start)),
                None => problem,
            })
        }
    }
}

/// Where the values of a TOML document stand, by dotted path, as far down as YAML remembers them.
fn toml_positions(text: &str) -> BTreeMap<String, SourcePosition> {
    const MAX_DEPTH: usize = 3;
    let mut positions = BTreeMap::new();
    let Ok(document) = toml::de::DeTable::parse(text) else { return positions };
    let mut pending: Vec<(String, &toml::de::DeTable<'_>, usize)> =
        vec![(String::new(), document.get_ref(), 1)];
    while let Some((prefix, table, depth)) = pending.pop() {
        for (key, value) in table {
            let path = format!("{prefix}{}", key.get_ref());
            positions.insert(path.clone(), SourcePosition::from_offset(text, value.span().start));
            if let Some(inner) = value.get_ref().as_table().filter(|_| depth < MAX_DEPTH) {
                pending.push((format!("{path}."), inner, depth + 1));
            }
        }
    }
    positions
}

fn parse_json(text: &str) -> ParsedItem {
    match serde_json::from_str(text) {
        Ok(value) => from_mapping(value),
        Err(error) => {
            // The reader counts columns in bytes, and one past the end.
            let lines = text.split_inclusive('\n').take(error.line().saturating_sub(1));
            let start: usize = lines.map(str::len).sum();
            let position = SourcePosition::from_offset(text, start + error.column().saturating_sub(1));
            let message = error.to_string();
            let message = message.rfind(" at line ").map_or(message.as_str(), |cut| &message[..cut]);
            ParsedItem::from_problem(
                Diagnostic::new(format!("Invalid JSON: {message}")).with_position(position),
            )
        }
    }
}

fn from_mapping(value: Value) -> ParsedItem {
    match value {
        Value::Object(fields) => ParsedItem { fields, ..ParsedItem::default() },
        Value::Null => ParsedItem::default(),
        _ => ParsedItem::from_problem(Diagnostic::new("the document must be a mapping of keys to values")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_names_count_as_functions() {
        for (source, expected) in [
            ("def execute(params, project_path): pass\n", true),
            ("def run(params):\n    execute = 1\n# execute\n'execute'\n", false),
            ("execute = run\n", true),
            ("from run import main as execute\n", true),
            ("from run import *\n", true),
            ("if True:\n    def execute(): pass\n", true),
            ("globals()['execu' + 'te'] = 1\n", true),
            ("class Tool:\n    def execute(self): pass\n", false),
            ("", false),
        ] {
            assert_eq!(may_define_execute(Parser::Python, ".py", source.as_bytes()), expected, "{source}");
        }
        for (source, expected) in [
            ("export async function execute() {}\n", true),
            ("export function run() {}\n", false),
            ("export * from './run.js';\n", true),
            ("module.exports = require('./run');\n", true),
            ("module.exports = { run };\n", false),
        ] {
            assert_eq!(
                may_define_execute(Parser::JavaScript, ".js", source.as_bytes()),
                expected,
                "{source}"
            );
        }
        assert!(!may_define_execute(Parser::Yaml, ".yaml", b"execute: 1\n"));
    }

    #[test]
    fn toml_keys_have_positions() {
        let parsed = parse(Parser::Toml, ".toml", b"a = 1\n\n[b]\nc = \"x\"\n");
        assert_eq!(parsed.positions.get("b.c"), Some(&SourcePosition { line: 4, column: 5 }));
        assert_eq!(parsed.problems, []);
    }

    #[test]
    fn json_columns_are_counted_in_characters() {
        let parsed = parse(Parser::Json, ".json", "{\n  \"éé\": x".as_bytes());
        assert_eq!(parsed.problems[0].position, Some(SourcePosition { line: 2, column: 9 }));
    }

    #[test]
    fn a_document_must_be_a_mapping() {
        for (parser, text) in [(Parser::Yaml, "- a\n"), (Parser::Json, "[1]")] {
            assert_eq!(parse(parser, "", text.as_bytes()).problems.len(), 1);
        }
    }

    #[test]
    fn non_utf8_is_a_problem_with_position() {
        for parser in [Parser::Python, Parser::MarkdownXml, Parser::Yaml] {
            let parsed = parse(parser, ".x", b"ok\n \xff");
            assert_eq!(parsed.problems[0].position, Some(SourcePosition { line: 2, column: 2 }));
        }
    }
}
