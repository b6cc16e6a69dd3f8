//! Text to fields. Nothing is run, nothing is guessed: what cannot be read is a problem with a position.

pub mod directive;
pub mod fence;
pub mod javascript;
pub mod knowledge;
pub mod python;
pub mod shell;
mod syntax;

use serde_json::Value;

use crate::extractor::Parser;
use crate::problem::{Parsed, Position, Problem};
use crate::yaml;

/// Parses the bytes of a file with `extension`.
#[must_use]
pub fn parse(parser: Parser, extension: &str, bytes: &[u8]) -> Parsed {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
            let position = Position::of_offset(&valid, valid.len());
            return Parsed::failed(Problem::new("the file is not valid UTF-8").at(position));
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

fn parse_yaml(text: &str) -> Parsed {
    match yaml::parse(text) {
        Ok(document) => {
            Parsed { positions: document.positions, warnings: document.warnings, ..mapping(document.value) }
        }
        Err(problem) => Parsed::failed(problem),
    }
}

fn parse_toml(text: &str) -> Parsed {
    match toml::from_str::<toml::Table>(text) {
        Ok(table) => match serde_json::to_value(table) {
            Ok(value) => mapping(value),
            Err(error) => Parsed::failed(Problem::new(format!("Invalid TOML: {error}"))),
        },
        Err(error) => {
            let problem = Problem::new(format!("Invalid TOML: {}", crate::text::one_line(error.message())));
            Parsed::failed(match error.span() {
                Some(span) => problem.at(Position::of_offset(text, span.start)),
                None => problem,
            })
        }
    }
}

fn parse_json(text: &str) -> Parsed {
    match serde_json::from_str(text) {
        Ok(value) => mapping(value),
        Err(error) => {
            let line = u32::try_from(error.line()).unwrap_or(u32::MAX);
            let column = u32::try_from(error.column().max(1)).unwrap_or(u32::MAX);
            let message = error.to_string();
            let message = message.rfind(" at line ").map_or(message.as_str(), |cut| &message[..cut]);
            Parsed::failed(Problem::new(format!("Invalid JSON: {message}")).at(Position { line, column }))
        }
    }
}

fn mapping(value: Value) -> Parsed {
    match value {
        Value::Object(fields) => Parsed { fields, ..Parsed::default() },
        Value::Null => Parsed::default(),
        _ => Parsed::failed(Problem::new("the document must be a mapping of keys to values")),
    }
}
