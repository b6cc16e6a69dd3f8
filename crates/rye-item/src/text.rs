//! Making foreign text safe to show: terminal control sequences never reach a terminal.

use std::borrow::Cow;
use std::fmt;

/// `text` without control characters and escape sequences; line breaks and tabs stay.
#[must_use]
pub fn strip_controls(text: &str) -> Cow<'_, str> {
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

/// As [`strip_controls`], on one line: line breaks and tabs become single spaces.
#[must_use]
pub fn one_line(text: &str) -> String {
    strip_controls(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A number with its noun: `1 item`, `2 items`.
#[must_use]
pub fn counted(count: impl Copy + fmt::Display + PartialEq + From<u8>, noun: &str) -> String {
    let plural = if count == 1.into() { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Whether a terminal could obey the character, or be misled by it, instead of showing it.
#[must_use]
pub fn is_unsafe(character: char) -> bool {
    let is_allowed = matches!(character, '\n' | '\t');
    let is_bidirectional_override =
        matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
    (character.is_control() && !is_allowed) || is_bidirectional_override
}

/// The word of `known` that `word` is likely a misspelling of: the nearest one, at most a third of its letters away.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Longer than any word there is to know: comparing takes the product of both lengths.
    const MAX_WORD_BYTES: usize = 64;
    if word.len() > MAX_WORD_BYTES {
        return None;
    }
    let candidates = known.into_iter().map(|known| (edit_distance(word, known), known));
    let near = candidates.filter(|(distance, known)| *distance <= (known.len() / 3).max(1));
    near.min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// How many letters must be added, removed, replaced, or swapped with the next, to make one word the other.
pub fn edit_distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut previous: Vec<usize> = (0..=right.len()).collect();
    for (row, from) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, to) in right.iter().enumerate() {
            let replaced = previous[column] + usize::from(from != to);
            let mut least = replaced.min(previous[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *from == right[column - 1] && left[row - 1] == *to {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut previous, current);
    }
    previous.last().copied().unwrap_or_default()
}

type Characters<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// `text` in double quotes, readable as YAML, TOML and by people: everything unusual is escaped.
#[must_use]
pub fn quote(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            other => {
                let number = u32::from(other);
                out.push_str(&if number > 0xffff {
                    format!("\\U{number:08x}")
                } else {
                    format!("\\u{number:04x}")
                });
            }
        }
    }
    out.push('"');
    out
}

/// `text` as one word of a POSIX shell, for commands that are printed to be copied. What a terminal could obey is
/// escaped, in the `$'…'` form.
#[must_use]
pub fn shell_word(text: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "_./:@%+=,-".contains(character);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        return text.to_owned();
    }
    // A word that begins with a dash would be read as an option.
    let dash = if text.starts_with('-') { "./" } else { "" };
    if !text.chars().any(|character| is_unsafe(character) || matches!(character, '\n' | '\t')) {
        return format!("'{dash}{}'", text.replace('\'', "'\\''"));
    }
    let mut out = format!("$'{dash}");
    for character in text.chars() {
        match character {
            '\'' | '\\' => out.extend(['\\', character]),
            other if is_unsafe(other) || matches!(other, '\n' | '\t') => {
                let mut buffer = [0; 4];
                for byte in other.encode_utf8(&mut buffer).bytes() {
                    out.push_str(&format!("\\x{byte:02x}"));
                }
            }
            other => out.push(other),
        }
    }
    out.push('\'');
    out
}

/// What begins the marker that stands where a secret was taken out: `[redacted:NAME]`.
pub const REDACTION_PREFIX: &str = "[redacted:";

/// Whether `text` holds a marker that stands for a secret.
#[must_use]
pub fn has_redaction(text: &str) -> bool {
    text.match_indices(REDACTION_PREFIX).any(|(start, _)| {
        let rest = &text[start + REDACTION_PREFIX.len()..];
        rest.find(']').is_some_and(|end| end > 0 && !rest[..end].contains(['\n', '[']))
    })
}

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

/// The first of these, separated by commas, and how many more there are.
#[must_use]
pub fn join_first(texts: &[String], most: usize) -> String {
    let named: Vec<String> = texts.iter().take(most).map(|text| one_line(text)).collect();
    let named = named.join(", ");
    match texts.len().saturating_sub(most) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Whether a character shows as itself wherever it stands: what is on this list cannot hide text, join or split lines, or stand
/// for nothing. Some scripts need characters that are not on it.
#[must_use]
pub fn is_plainly_visible(character: char) -> bool {
    /// Letters of their script that show as nothing.
    const FILLERS: [char; 6] = ['\u{115F}', '\u{1160}', '\u{17B4}', '\u{17B5}', '\u{3164}', '\u{FFA0}'];
    match character {
        ' '..='~' | '\n' | '\t' => true,
        _ if FILLERS.contains(&character) => false,
        // Punctuation and symbols of many scripts, arrows, shapes, pictures.
        '\u{A1}'..='\u{AC}'
        | '\u{AE}'..='\u{BF}'
        | '\u{2010}'..='\u{2027}'
        | '\u{2030}'..='\u{205E}'
        | '\u{20A0}'..='\u{20C0}'
        | '\u{2100}'..='\u{214F}'
        | '\u{2190}'..='\u{2426}'
        | '\u{2460}'..='\u{27FF}'
        | '\u{2900}'..='\u{2B73}'
        | '\u{3001}'..='\u{3003}'
        | '\u{3008}'..='\u{301F}'
        | '\u{FF01}'..='\u{FF5E}'
        | '\u{1F300}'..='\u{1F64F}'
        | '\u{1F680}'..='\u{1F6C5}'
        | '\u{1F900}'..='\u{1F9FF}' => true,
        _ => character.is_alphanumeric(),
    }
}

/// The text with every character that does not show as itself written as its number: `<U+E0041>`. For questions, in which
/// nothing may be hidden.
#[must_use]
pub fn reveal_hidden(text: &str) -> Cow<'_, str> {
    reveal_all_but(text, is_plainly_visible)
}

/// What another person calls themselves, in quotes that it cannot close: letters, digits and a few marks are shown as they are,
/// everything else as its number.
#[must_use]
pub fn quote_name(name: &str) -> String {
    const MARKS: &str = " .,-_@+'()&/";
    const MAX_CHARACTERS: usize = 40;
    let name = one_line(name);
    let begin: String = name.chars().take(MAX_CHARACTERS).collect();
    let is_plain = |character: char| character.is_alphanumeric() && is_plainly_visible(character);
    let shown = reveal_all_but(&begin, |character| is_plain(character) || MARKS.contains(character));
    format!("\"{shown}{}\"", if begin.len() < name.len() { "…" } else { "" })
}

/// What another person says of their work, in quotes that it cannot close: on one line, cut, with everything that does not show
/// as itself written as its number.
#[must_use]
pub fn quote_description(text: &str) -> String {
    const MAX_CHARACTERS: usize = 100;
    let text = one_line(text);
    let begin: String = text.chars().take(MAX_CHARACTERS).collect();
    let is_quote = |character: char| {
        matches!(character, '"' | '\u{AB}' | '\u{BB}' | '\u{2018}'..='\u{201F}' | '\u{FF02}')
    };
    let shown = reveal_all_but(&begin, |character| is_plainly_visible(character) && !is_quote(character));
    format!("\"{shown}{}\"", if begin.len() < text.len() { "…" } else { "" })
}

fn reveal_all_but(text: &str, is_shown: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.chars().all(&is_shown) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match is_shown(character) {
            true => shown.push(character),
            false => shown.push_str(&format!("<U+{:04X}>", u32::from(character))),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_texts_are_named_and_the_others_counted() {
        let names = ["a", "b\nc", "d"].map(str::to_owned);
        assert_eq!(join_first(&names, 2), "a, b c and 1 more");
        assert_eq!(join_first(&names, 3), "a, b c, d");
        assert_eq!(join_first(&[], 3), "");
    }

    #[test]
    fn hidden_characters_are_revealed() {
        assert_eq!(reveal_hidden("plain: é ü 漢"), "plain: é ü 漢");
        assert_eq!(reveal_hidden("a\u{e0041}b\u{200b}"), "a<U+E0041>b<U+200B>");
    }

    #[test]
    fn quoted_name_stays_in_its_quotes() {
        assert_eq!(quote_name("Ada O'Neil <ada@x.org>"), "\"Ada O'Neil <U+003C>ada@x.org<U+003E>\"");
        let name = quote_name("me\". You trust it. “Yes”\n\u{e0041}");
        assert_eq!(name, "\"me<U+0022>. You trust it. <U+201C>Yes<U+201D> <U+E0041>\"");
        let description = quote_description("Gifts\". You trust it. “Yes”\nnext");
        assert_eq!(description, "\"Gifts<U+0022>. You trust it. <U+201C>Yes<U+201D> next\"");
        assert_eq!(quote_description(&"a".repeat(200)).chars().count(), 103);
        assert_eq!(quote_name(&"a".repeat(200)).chars().count(), 43);
    }

    #[test]
    fn escape_sequences_are_removed_completely() {
        assert_eq!(strip_controls("a\u{1b}[31mred\u{1b}[0m b"), "ared b");
        assert_eq!(strip_controls("x\u{1b}]0;title\u{7}y"), "xy");
        assert_eq!(strip_controls("x\u{1b}]8;;http://a\u{1b}\\link"), "xlink");
        assert_eq!(strip_controls("\u{9b}2Jq\u{7f}\r\u{8}"), "q");
        assert_eq!(strip_controls("\u{202e}abc"), "abc");
        assert_eq!(strip_controls("a\tb\nc é😀"), "a\tb\nc é😀");
        assert_eq!(strip_controls("end\u{1b}"), "end");
    }

    #[test]
    fn quoted_text_round_trips_yaml_and_toml() {
        let odd = "a\"b\\c\n\t\u{7f}\u{85}\u{fffe}\u{feff}\u{2028}é😀";
        let document = format!("k: {}\n", quote(odd));
        assert_eq!(crate::yaml::parse(&document).expect("YAML").value["k"], odd);
        let document: toml::Table = toml::from_str(&format!("k = {}\n", quote(odd))).expect("TOML");
        assert_eq!(document["k"].as_str(), Some(odd));
    }

    #[test]
    fn shell_words_are_quoted_where_needed() {
        for (text, word) in [
            ("/a/b-c.toml", "/a/b-c.toml"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("$(x)`y`", "'$(x)`y`'"),
            ("", "''"),
            ("~/x", "'~/x'"),
            ("-rf", "'./-rf'"),
            ("a;b&c*", "'a;b&c*'"),
            ("é", "'é'"),
            ("a\nb\u{1b}[0m'", r"$'a\x0ab\x1b[0m\''"),
            ("\u{202e}x", r"$'\xe2\x80\xaex'"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }

    #[test]
    fn nouns_agree_with_their_number() {
        let texts = [0_usize, 1, 2].map(|count| counted(count, "item"));
        assert_eq!(texts, ["0 items", "1 item", "2 items"]);
    }

    #[test]
    fn one_line_has_no_breaks() {
        assert_eq!(one_line(" a\n\n b\tc "), "a b c");
    }

    #[test]
    fn misspelt_words_find_the_nearest_known() {
        let known = ["permissions", "limits", "model", "id"];
        for (word, expected) in [
            ("permisions", Some("permissions")),
            ("limit", Some("limits")),
            ("modle", Some("model")),
            ("di", Some("id")),
            ("colour", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), expected, "{word}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), known), None);
    }

    #[test]
    fn invisible_characters_are_not_plainly_visible() {
        let hidden = [
            '\u{E0041}',
            '\u{200B}',
            '\u{200D}',
            '\u{2060}',
            '\u{2028}',
            '\u{2029}',
            '\u{AD}',
            '\u{FEFF}',
            '\u{34F}',
            '\u{180E}',
            '\u{115F}',
            '\u{3164}',
            '\u{FFA0}',
            '\u{17B4}',
            '\u{2800}',
            '\u{FE0F}',
            '\u{E0100}',
            '\u{FFF9}',
            '\u{1D173}',
            '\u{E000}',
            '\u{A0}',
            '\u{3000}',
            '\u{202E}',
            '\u{85}',
            '\u{0}',
            '\u{1B}',
            '\r',
            '\u{61C}',
        ];
        for character in hidden {
            assert!(!is_plainly_visible(character), "{:x}", u32::from(character));
        }
        for character in "aZ0 ~\t\né߀漢字…–“”→✓│█🙂".chars() {
            assert!(is_plainly_visible(character), "{character}");
        }
    }
}
