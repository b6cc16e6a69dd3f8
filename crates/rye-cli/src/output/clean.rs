//! What is left of a text before a terminal gets it: what people read, and our own styles.

use std::borrow::Cow;

use rye_item::text::{is_unsafe, strip_controls};

/// What begins a style.
const STYLE_START: &str = "\u{1b}[";

/// The length of the style that a text begins with: bold, dim, italic, underlined, a colour of the letters, or the end of
/// these. What hides letters is none.
fn style_length(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix(STYLE_START)?;
    let end = parameters.find(|character: char| !character.is_ascii_digit() && character != ';')?;
    let is_known = |parameter: &str| {
        matches!(parameter.parse::<u8>(), Ok(0..=4 | 22..=24 | 30..=37 | 39 | 90..=97))
            || parameter.is_empty()
    };
    let is_style = parameters[end..].starts_with('m') && parameters[..end].split(';').all(is_known);
    is_style.then_some(STYLE_START.len() + end + 1)
}

/// A text without anything that a terminal obeys, but for styles.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let (mut cleaned, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = next_style(rest) {
        let (before, styled) = rest.split_at(start);
        cleaned.push_str(&strip_controls(before));
        let (style, after) = styled.split_at(style_length(styled).unwrap_or_default());
        cleaned.push_str(style);
        rest = after;
    }
    cleaned.push_str(&strip_controls(rest));
    Cow::Owned(cleaned)
}

/// Where the first style of a text is.
fn next_style(text: &str) -> Option<usize> {
    let mut starts = text.match_indices(STYLE_START).map(|(start, _)| start);
    starts.find(|start| style_length(&text[*start..]).is_some())
}

#[cfg(test)]
mod tests {
    use super::super::{DIM, ERROR, HEADING, NAME, SUCCESS, WARNING, paint};
    use super::*;

    #[test]
    fn own_styles_stay() {
        for style in [SUCCESS, WARNING, ERROR, DIM, HEADING, NAME] {
            let text = format!("{} é\n\tb", paint(style, "a"));
            assert_eq!(clean(&text), text);
        }
    }

    #[test]
    fn commands_to_terminals_are_removed() {
        for (text, left) in [
            ("a\u{1b}]52;c;aGk=\u{7}b", "ab"),
            ("a\u{1b}]0;title\u{1b}\\b", "ab"),
            ("a\u{1b}[2J\u{1b}[1;1Hb", "ab"),
            ("a\u{9b}2Jb\u{202e}c\r\u{8}", "abc"),
            // Letters that are not shown, and the colour of their ground.
            ("a\u{1b}[8mb\u{1b}[7;41mc", "abc"),
            ("a\u{1b}]0;\u{1b}[31mb", "a\u{1b}[31mb"),
            ("a\u{1b}Pq\u{1b}\\b\u{1b}", "ab"),
            ("a\u{1b}[31", "a"),
        ] {
            assert_eq!(clean(text), left, "{text:?}");
        }
    }

    /// Every text of up to six of these pieces.
    #[test]
    fn only_styles_are_left() {
        const PIECES: [&str; 8] = ["\u{1b}", "[", "]", "1", "8", "m", "\u{7}", "\u{9b}"];
        let mut texts = vec![String::new()];
        for _ in 0..6 {
            let longer =
                texts.iter().flat_map(|text| PIECES.iter().map(move |piece| format!("{text}{piece}")));
            texts = longer.collect();
            for text in &texts {
                let cleaned = clean(text).into_owned();
                let mut rest = cleaned.as_str();
                while let Some(start) = rest.find(is_unsafe) {
                    let length = style_length(&rest[start..]);
                    assert!(length.is_some(), "{cleaned:?} of {text:?}");
                    rest = &rest[start + length.unwrap_or_default()..];
                }
            }
        }
    }
}
