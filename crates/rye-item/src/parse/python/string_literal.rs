//! The value of a Python string literal: raw and plain, one line and several, with every escape.

use crate::parse::syntax::{self, LiteralError};

/// The value of what stands between the quotes; `start` is where that begins in the source.
pub(super) fn decode(
    content: &str,
    start: usize,
    is_raw: bool,
    is_triple: bool,
) -> Result<String, LiteralError> {
    let mut decoded = String::with_capacity(content.len());
    let mut rest = content;
    while let Some(index) = rest.find(['\\', '\r', '\n']) {
        decoded.push_str(&rest[..index]);
        rest = &rest[index..];
        let offset = start + content.len() - rest.len();
        if let Some(after) = rest.strip_prefix('\\') {
            rest =
                if is_raw { keep_escape(after, &mut decoded) } else { escape(after, offset, &mut decoded)? };
        } else if is_triple {
            rest = after_line_end(rest).unwrap_or_default();
            decoded.push('\n');
        } else {
            return Err(LiteralError::Malformed(offset, "unterminated string"));
        }
    }
    decoded.push_str(rest);
    Ok(decoded)
}

/// What follows the line end that `rest` begins with, if it begins with one.
fn after_line_end(rest: &str) -> Option<&str> {
    rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix(['\r', '\n']))
}

/// In a raw string a backslash stays, and keeps what follows from ending the string or the line.
fn keep_escape<'text>(after: &'text str, decoded: &mut String) -> &'text str {
    decoded.push('\\');
    if let Some(rest) = after_line_end(after) {
        decoded.push('\n');
        return rest;
    }
    let mut characters = after.chars();
    decoded.extend(characters.next());
    characters.as_str()
}

/// Decodes the escape whose backslash stands at `offset`, and gives back what follows it.
fn escape<'text>(after: &'text str, offset: usize, decoded: &mut String) -> Result<&'text str, LiteralError> {
    if let Some(rest) = after_line_end(after) {
        return Ok(rest);
    }
    let mut characters = after.chars();
    let Some(kind) = characters.next() else {
        return Err(LiteralError::Malformed(offset, "unterminated string"));
    };
    let rest = characters.as_str();
    let digits = match kind {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        'N' => return Err(LiteralError::NotLiteral),
        '0'..='7' => {
            let length = after.bytes().take(3).take_while(|byte| matches!(byte, b'0'..=b'7')).count();
            let (octal, rest) = after.split_at(length);
            decoded.extend(u32::from_str_radix(octal, 8).ok().and_then(char::from_u32));
            return Ok(rest);
        }
        _ => {
            match simple_escape(kind) {
                Some(character) => decoded.push(character),
                None => decoded.extend(['\\', kind]),
            }
            return Ok(rest);
        }
    };
    match syntax::hexadecimal(rest, digits) {
        Some(code) if code <= 0x0010_ffff => {
            // Python strings hold lone surrogates, JSON text does not.
            decoded.push(char::from_u32(code).ok_or(LiteralError::NotLiteral)?);
            Ok(&rest[digits..])
        }
        _ => Err(LiteralError::Malformed(offset, "invalid escape in a string")),
    }
}

fn simple_escape(kind: char) -> Option<char> {
    let character = match kind {
        '\\' | '\'' | '"' => kind,
        'a' => '\x07',
        'b' => '\x08',
        'f' => '\x0c',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\x0b',
        _ => return None,
    };
    Some(character)
}
