//! How the value of a secret is written in files, listings and messages.

use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Every form the value may have: as it is, line by line, and escaped as JSON (also twice, and in ASCII alone), in Python, a
/// URL or HTML. A value of plain letters and digits has one form.
pub(super) fn encodings(value: &str) -> BTreeSet<String> {
    let mut forms = BTreeSet::from([value.to_owned()]);
    if value.contains('\n') {
        forms.insert(value.replace('\n', "\\n"));
        forms.extend(value.lines().map(|line| line.trim().to_owned()));
    }
    for once in json_forms(value) {
        forms.extend(json_forms(&once));
        forms.insert(once);
    }
    forms.insert(escape(value, python));
    forms.insert(escape(value, python_ascii));
    forms.insert(escape(value, form));
    forms.insert(escape(value, |character| percent(character, false)));
    forms.insert(escape(value, |character| percent(character, true)));
    forms.insert(escape(value, html));
    forms
}

/// What JSON writers make of the value: only what must be escaped, everything that is not ASCII (in both cases of the
/// hexadecimal digits), and what HTML or old JavaScript would read.
fn json_forms(value: &str) -> BTreeSet<String> {
    let ascii = |upper: bool| escape(value, move |character| json_ascii(character, upper));
    BTreeSet::from([
        escape(value, json),
        escape(&escape(value, json), |character| (character == '/').then(|| "\\/".to_owned())),
        ascii(false),
        ascii(true),
        escape(value, |character| match character {
            '<' | '>' | '&' | '\'' | '\u{2028}' | '\u{2029}' => {
                Some(format!("\\u{:04x}", u32::from(character)))
            }
            _ => json(character),
        }),
    ])
}

/// The value with each character replaced that `replacement` has a text for.
fn escape(value: &str, replacement: impl Fn(char) -> Option<String>) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        match replacement(character) {
            Some(text) => escaped.push_str(&text),
            None => escaped.push(character),
        }
    }
    escaped
}

fn json(character: char) -> Option<String> {
    match character {
        '"' => Some("\\\"".to_owned()),
        '\\' => Some("\\\\".to_owned()),
        '\n' => Some("\\n".to_owned()),
        '\r' => Some("\\r".to_owned()),
        '\t' => Some("\\t".to_owned()),
        '\u{8}' => Some("\\b".to_owned()),
        '\u{c}' => Some("\\f".to_owned()),
        '\0'..='\x1f' => Some(format!("\\u{:04x}", u32::from(character))),
        _ => None,
    }
}

fn json_ascii(character: char, upper: bool) -> Option<String> {
    if character.is_ascii() {
        return json(character);
    }
    let mut text = String::new();
    for unit in character.encode_utf16(&mut [0; 2]) {
        // Writing to a text cannot fail.
        let _ = if upper { write!(text, "\\u{unit:04X}") } else { write!(text, "\\u{unit:04x}") };
    }
    Some(text)
}

/// As `repr` of Python writes it between single quotes.
fn python(character: char) -> Option<String> {
    match character {
        '\'' => Some("\\'".to_owned()),
        '\\' | '\n' | '\r' | '\t' => json(character),
        '\0'..='\x1f' | '\x7f' => Some(format!("\\x{:02x}", u32::from(character))),
        _ => None,
    }
}

/// As `ascii` of Python writes it.
fn python_ascii(character: char) -> Option<String> {
    match u32::from(character) {
        code @ 0x80..=0xff => Some(format!("\\x{code:02x}")),
        code @ 0x100..=0xffff => Some(format!("\\u{code:04x}")),
        code @ 0x1_0000.. => Some(format!("\\U{code:08x}")),
        _ => python(character),
    }
}

/// As a URL writes it, with a space as `%20`.
fn percent(character: char, lower: bool) -> Option<String> {
    if character.is_ascii_alphanumeric() || "-._~".contains(character) {
        return None;
    }
    let mut text = String::new();
    for byte in character.encode_utf8(&mut [0; 4]).bytes() {
        let _ = if lower { write!(text, "%{byte:02x}") } else { write!(text, "%{byte:02X}") };
    }
    Some(text)
}

/// As a web form sends it.
fn form(character: char) -> Option<String> {
    match character {
        ' ' => Some("+".to_owned()),
        '*' => None,
        '~' => Some("%7E".to_owned()),
        _ => percent(character, false),
    }
}

fn html(character: char) -> Option<String> {
    match character {
        '&' => Some("&amp;".to_owned()),
        '<' => Some("&lt;".to_owned()),
        '>' => Some("&gt;".to_owned()),
        '"' => Some("&quot;".to_owned()),
        '\'' => Some("&#x27;".to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_value_has_one_form() {
        assert_eq!(encodings("sk-Ab_12.z"), BTreeSet::from(["sk-Ab_12.z".to_owned()]));
    }

    #[test]
    fn usual_escapes_are_known() {
        let forms = encodings("é\"\\<😀'\t/ x");
        for form in [
            "é\\\"\\\\<😀'\\t/ x",
            "\\u00e9\\\"\\\\<\\ud83d\\ude00'\\t/ x",
            "\\u00E9\\\"\\\\<\\uD83D\\uDE00'\\t/ x",
            "é\\\"\\\\<😀'\\t\\/ x",
            "é\\\"\\\\\\u003c😀\\u0027\\t/ x",
            "\\\\u00e9\\\\\\\"\\\\\\\\<\\\\ud83d\\\\ude00'\\\\t/ x",
            "é\"\\\\<😀\\'\\t/ x",
            "\\xe9\"\\\\<\\U0001f600\\'\\t/ x",
            "%C3%A9%22%5C%3C%F0%9F%98%80%27%09%2F%20x",
            "%c3%a9%22%5c%3c%f0%9f%98%80%27%09%2f%20x",
            "%C3%A9%22%5C%3C%F0%9F%98%80%27%09%2F+x",
            "é&quot;\\&lt;😀&#x27;\t/ x",
        ] {
            assert!(forms.contains(form), "{form} in {forms:#?}");
        }
    }
}
