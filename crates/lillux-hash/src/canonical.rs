//! Canonical JSON: one serialisation per value. Keys sorted by code point, no spaces, ASCII only; numbers as the
//! original's `json.dumps` writes them.

use std::fmt::Write as _;

use serde_json::{Number, Value};

use crate::digest::Digest;

/// The canonical text of `value`.
#[must_use]
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

/// The digest of the canonical text of `value`.
#[must_use]
pub fn digest(value: &Value) -> Digest {
    Digest::of(to_string(value).as_bytes())
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => write_number(number, out),
        Value::String(text) => write_text(text, out),
        Value::Array(list) => {
            out.push('[');
            for (index, element) in list.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(element, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_unstable_by(|left, right| left.0.cmp(right.0));
            out.push('{');
            for (index, (key, entry)) in entries.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_text(key, out);
                out.push(':');
                write_value(entry, out);
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            ' '..='~' => out.push(character),
            _ => {
                let mut units = [0; 2];
                for unit in character.encode_utf16(&mut units) {
                    // Writing to a String cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}

fn write_number(number: &Number, out: &mut String) {
    match number.as_f64() {
        Some(float) if number.is_f64() => write_float(float, out),
        _ => out.push_str(&number.to_string()),
    }
}

/// Writes the shortest digits that read back the same, in Python's notation: an exponent below 1e-4 and from 1e16.
fn write_float(float: f64, out: &mut String) {
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float == 0.0 || (-4..16).contains(&exponent) {
        let plain = format!("{float}");
        out.push_str(&plain);
        if !plain.contains('.') {
            out.push_str(".0");
        }
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let _ = write!(out, "{mantissa}e{sign}{:02}", exponent.abs());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1e16, "1e+16"),
            (1e-7, "1e-07"),
            (1.5, "1.5"),
            (100.0, "100.0"),
            (1e15, "1000000000000000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e300, "1.25e+300"),
            (-0.0, "-0.0"),
            (123456789012345680.0, "1.2345678901234568e+17"),
        ];
        for (float, expected) in cases {
            assert_eq!(to_string(&json!(float)), expected);
        }
    }

    #[test]
    fn delete_and_controls_are_escaped() {
        assert_eq!(to_string(&json!("\u{7f}\u{0}\u{1f}")), "\"\\u007f\\u0000\\u001f\"");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>().prop_filter("finite", |float| float.is_finite()).prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((any::<String>(), inner), 0..6)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn canonical_text_round_trips(value in any_json()) {
            let text = to_string(&value);
            prop_assert!(text.is_ascii());
            let back: Value = serde_json::from_str(&text).expect("canonical text is JSON");
            prop_assert_eq!(to_string(&back), text);
        }

        #[test]
        fn key_order_does_not_matter(entries in prop::collection::btree_map(any::<String>(), any::<i64>(), 0..8)) {
            let forward = Value::Object(entries.iter().map(|(key, value)| (key.clone(), json!(value))).collect());
            let backward = Value::Object(entries.iter().rev().map(|(key, value)| (key.clone(), json!(value))).collect());
            prop_assert_eq!(to_string(&forward), to_string(&backward));
        }
    }
}
