//! Making foreign text safe to show: terminal control sequences never reach a terminal.

use std::borrow::Cow;

/// `text` without control characters and escape sequences; line breaks and tabs stay.
#[must_use]
pub fn without_controls(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            '\u{1b}' => skip_escape(&mut rest),
            '\u{9b}' => skip_control_sequence(&mut rest),
            '\u{9d}' | '\u{90}' | '\u{98}' | '\u{9e}' | '\u{9f}' => skip_string(&mut rest),
            other if is_unsafe(other) => {}
            other => clean.push(other),
        }
    }
    Cow::Owned(clean)
}

/// As [`without_controls`], on one line: line breaks and tabs become single spaces.
#[must_use]
pub fn one_line(text: &str) -> String {
    without_controls(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a terminal could obey the character, or be misled by it, instead of showing it.
#[must_use]
pub fn is_unsafe(character: char) -> bool {
    let is_kept = matches!(character, '\n' | '\t');
    let is_bidirectional_override =
        matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
    (character.is_control() && !is_kept) || is_bidirectional_override
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn skip_escape(rest: &mut Characters<'_>) {
    match rest.peek() {
        Some('[') => {
            rest.next();
            skip_control_sequence(rest);
        }
        Some(']' | 'P' | 'X' | '^' | '_') => {
            rest.next();
            skip_string(rest);
        }
        Some(' '..='~') => {
            rest.next();
        }
        _ => {}
    }
}

fn skip_control_sequence(rest: &mut Characters<'_>) {
    while let Some(character) = rest.peek() {
        if !matches!(character, ' '..='~') {
            return;
        }
        let is_final = matches!(character, '@'..='~');
        rest.next();
        if is_final {
            return;
        }
    }
}

/// Skips to the string terminator (`ESC \`, BEL or ST); a line break ends a string that has none.
fn skip_string(rest: &mut Characters<'_>) {
    while let Some(character) = rest.peek().copied() {
        if character == '\n' {
            return;
        }
        rest.next();
        match character {
            '\u{7}' | '\u{9c}' => return,
            '\u{1b}' => {
                if rest.peek() == Some(&'\\') {
                    rest.next();
                }
                return;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_sequences_disappear_whole() {
        assert_eq!(without_controls("a\u{1b}[31mred\u{1b}[0m b"), "ared b");
        assert_eq!(without_controls("x\u{1b}]0;title\u{7}y"), "xy");
        assert_eq!(without_controls("x\u{1b}]8;;http://a\u{1b}\\link"), "xlink");
        assert_eq!(without_controls("\u{9b}2Jq\u{7f}\r\u{8}"), "q");
        assert_eq!(without_controls("\u{202e}abc"), "abc");
        assert_eq!(without_controls("a\tb\nc é😀"), "a\tb\nc é😀");
        assert_eq!(without_controls("end\u{1b}"), "end");
    }

    #[test]
    fn one_line_has_no_breaks() {
        assert_eq!(one_line(" a\n\n b\tc "), "a b c");
    }
}
