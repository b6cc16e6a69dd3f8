//! Filling values into texts: `${path}` from a context, `{input:name}` from a directive's inputs.
//!
//! Both walk the text once, and what is filled in is never looked at again: a value cannot smuggle in a reference.

use serde_json::{Map, Value};

use crate::condition::{resolve_path, text_of};

/// Fills `${path.to.value}` into every string of `template`, through maps and lists; keys stay as they are.
///
/// A string that is one reference and nothing else becomes the value itself, with its type; inside other text a
/// value is written as text (compact JSON where it is not a string). What is missing or null becomes the empty string.
/// `${a || b}` takes the first that is there. `$$` is a literal `$`.
#[must_use]
pub fn interpolate(template: &Value, context: &Value) -> Value {
    match template {
        Value::String(text) => match sole_reference(text) {
            Some(expression) => {
                resolve(expression, context).cloned().unwrap_or_else(|| Value::String(String::new()))
            }
            None => Value::String(interpolate_text(text, context)),
        },
        Value::Array(list) => list.iter().map(|element| interpolate(element, context)).collect(),
        Value::Object(map) => {
            map.iter().map(|(key, value)| (key.clone(), interpolate(value, context))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => template.clone(),
    }
}

/// As [`interpolate`], for one text; the result is always text.
#[must_use]
pub fn interpolate_text(text: &str, context: &Value) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('$') {
        filled.push_str(&rest[..start]);
        rest = &rest[start..];
        if let Some(after) = rest.strip_prefix("$$") {
            filled.push('$');
            rest = after;
        } else if let Some((expression, after)) = parse_reference(rest) {
            if let Some(value) = resolve(expression, context) {
                filled.push_str(&text_of(value));
            }
            rest = after;
        } else {
            filled.push('$');
            rest = &rest[1..];
        }
    }
    filled.push_str(rest);
    filled
}

/// The expression of the `${…}` that opens `text`, and what follows. It stays on the brace's side of the next `${`.
fn parse_reference(text: &str) -> Option<(&str, &str)> {
    let inside = text.strip_prefix("${")?;
    let end = inside.find(['}', '$'])?;
    let is_reference = inside[end..].starts_with('}') && !inside[..end].trim().is_empty();
    is_reference.then(|| (&inside[..end], &inside[end + 1..]))
}

fn sole_reference(text: &str) -> Option<&str> {
    parse_reference(text).filter(|(_, after)| after.is_empty()).map(|(expression, _)| expression)
}

fn resolve<'a>(expression: &str, context: &'a Value) -> Option<&'a Value> {
    expression
        .split("||")
        .filter_map(|path| resolve_path(context, path.trim()))
        .find(|value| !value.is_null())
}

/// Fills a directive's inputs into a text.
///
/// | form | without a value |
/// |---|---|
/// | `{input:name}` | stays as it is |
/// | `{input:name?}` | nothing |
/// | `{input:name:default}`, <code>{input:name\|default}</code> | the default |
/// | `${inputs.name}` | stays as it is |
#[must_use]
pub fn interpolate_inputs(text: &str, inputs: &Map<String, Value>) -> String {
    // Behind the last closing brace nothing can be a reference; looking there each time would be quadratic.
    let (text, tail) = text.split_at(text.rfind('}').map_or(0, |last| last + 1));
    let mut filled = String::with_capacity(text.len() + tail.len());
    let mut rest = text;
    while let Some(start) = rest.find(['{', '$']) {
        filled.push_str(&rest[..start]);
        rest = &rest[start..];
        match parse_input_reference(rest) {
            Some(reference) => {
                match (inputs.get(reference.name), reference.default) {
                    (Some(value), _) => filled.push_str(&text_of(value)),
                    (None, Some(default)) => filled.push_str(default),
                    (None, None) => filled.push_str(reference.whole),
                }
                rest = &rest[reference.whole.len()..];
            }
            None => {
                filled.push_str(&rest[..1]);
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled.push_str(tail);
    filled
}

/// The inputs that a text refers to: the place of each reference, and the input's name.
#[must_use]
pub fn input_references(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut at = 0;
    // Behind the last closing brace nothing can be a reference; looking there each time would be quadratic.
    let text = &text[..text.rfind('}').map_or(0, |last| last + 1)];
    while let Some(start) = text[at..].find(['{', '$']) {
        at += start;
        match parse_input_reference(&text[at..]) {
            Some(reference) => {
                found.push((at, reference.name));
                at += reference.whole.len();
            }
            None => at += 1,
        }
    }
    found
}

struct InputReference<'a> {
    whole: &'a str,
    name: &'a str,
    default: Option<&'a str>,
}

/// The input reference that opens `text`; a default ends at the first closing brace.
fn parse_input_reference(text: &str) -> Option<InputReference<'_>> {
    let (inside, takes_default) = match text.strip_prefix("{input:") {
        Some(inside) => (inside, true),
        None => (text.strip_prefix("${inputs.")?, false),
    };
    let name_end = inside
        .find(|character: char| !character.is_alphanumeric() && !matches!(character, '_' | '-'))
        .filter(|end| *end > 0)?;
    let (name, tail) = inside.split_at(name_end);
    let (default, after) = match tail.chars().next()? {
        '}' => (None, &tail[1..]),
        '?' if takes_default => (Some(""), tail[1..].strip_prefix('}')?),
        ':' | '|' if takes_default => {
            let end = tail.find('}')?;
            (Some(&tail[1..end]), &tail[end + 1..])
        }
        _ => return None,
    };
    Some(InputReference { whole: &text[..text.len() - after.len()], name, default })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn fill(text: &str, context: &Value) -> Value {
        interpolate(&json!(text), context)
    }

    #[test]
    fn references_are_found_with_their_place() {
        let text = "{input:a} {input: b} ${inputs.c} {input:d?} {{input:e:f}} {input:g";
        let names: Vec<_> =
            input_references(text).into_iter().map(|(at, name)| (&text[at..=at], name)).collect();
        assert_eq!(names, [("{", "a"), ("$", "c"), ("{", "d"), ("{", "e")]);
    }

    #[test]
    fn paths_are_filled_in_as_text() {
        let context = json!({ "a": { "b": ["x", 2] }, "n": 1.5, "t": true, "z": null, "o": { "k": [1] } });
        assert_eq!(fill("<${a.b.0}> ${n} ${t} ${o}", &context), "<x> 1.5 true {\"k\":[1]}");
        assert_eq!(fill("[${missing}${z}${a.b.9}]", &context), "[]");
        assert_eq!(fill("${z || missing || a.b.1}!", &context), "2!");
        assert_eq!(fill("${missing||z}", &context), "");
    }

    #[test]
    fn a_sole_reference_keeps_its_type() {
        let context = json!({ "o": { "k": [1] }, "n": 3, "z": null });
        assert_eq!(fill("${o}", &context), json!({ "k": [1] }));
        assert_eq!(fill("${ n }", &context), json!(3));
        assert_eq!(fill("${z}", &context), json!(""));
        assert_eq!(fill(" ${n}", &context), json!(" 3"));
    }

    #[test]
    fn dollars_are_escaped_by_doubling() {
        let context = json!({ "a": "1" });
        assert_eq!(fill("$$ $${a} $$$${a} $$${a} $ $a", &context), "$ ${a} $${a} $1 $ $a");
    }

    #[test]
    fn non_references_stay_unchanged() {
        let context = json!({ "b": "v" });
        for text in ["${", "${}", "${  }", "$", "a${b", "{b}"] {
            assert_eq!(fill(text, &context), text);
        }
        assert_eq!(fill("${a${b}}", &context), "${av}");
    }

    #[test]
    fn interpolation_recurses_into_maps_and_lists() {
        let template = json!({ "${a}": ["${a}", 1, null, { "k": "-${a}-" }] });
        let expected = json!({ "${a}": ["v", 1, null, { "k": "-v-" }] });
        assert_eq!(interpolate(&template, &json!({ "a": "v" })), expected);
    }

    #[test]
    fn values_are_never_expanded_again() {
        let context = json!({ "a": "${b} $$ {input:x}", "b": "secret" });
        assert_eq!(fill("-${a}-", &context), "-${b} $$ {input:x}-");
        let inputs = json!({ "x": "{input:y} ${inputs.y}", "y": "secret" });
        let inputs = inputs.as_object().unwrap();
        assert_eq!(interpolate_inputs("{input:x}", inputs), "{input:y} ${inputs.y}");
    }

    #[test]
    fn inputs_have_five_forms() {
        let inputs = json!({ "x": "v", "n": 3, "l": [1, "a"], "my-name": "m", "z": null });
        let table = [
            ("{input:x}{input:x?}{input:x:d}{input:x|d}${inputs.x}", "vvvvv"),
            ("{input:n} {input:l} {input:my-name} {input:z}", "3 [1,\"a\"] m "),
            (
                "{input:q} {input:q?} {input:q:a b} {input:q|c:d} ${inputs.q}",
                "{input:q}  a b c:d ${inputs.q}",
            ),
            ("{input:q:}{input:q:{}}", "{}"),
            ("{input:}{input:x y}{input:x?y}{input:x", "{input:}{input:x y}{input:x?y}{input:x"),
            ("${inputs.x?}${inputs.}{{input:x}} $${inputs.x}", "${inputs.x?}${inputs.}{v} $v"),
        ];
        for (text, expected) in table {
            assert_eq!(interpolate_inputs(text, inputs.as_object().unwrap()), expected, "{text}");
        }
    }

    #[test]
    fn hostile_texts_take_linear_time() {
        for part in ["${", "{input:", "{input:a:", "${a", "$", "{input:a?", "${inputs.a"] {
            let text = part.repeat(300_000);
            assert_eq!(interpolate_inputs(&text, &Map::new()), text);
            assert!(!interpolate_text(&text, &Value::Null).is_empty());
        }
    }

    proptest! {
        #[test]
        fn texts_without_references_stay(text in "[^${]{0,40}") {
            prop_assert_eq!(interpolate_text(&text, &Value::Null), text.clone());
            prop_assert_eq!(interpolate_inputs(&text, &Map::new()), text);
        }

        #[test]
        fn doubling_dollars_escapes_any_text(text in "[${}a|é]{0,40}") {
            let escaped = text.replace('$', "$$");
            prop_assert_eq!(interpolate_text(&escaped, &json!({ "a": "x" })), text);
        }
    }
}
