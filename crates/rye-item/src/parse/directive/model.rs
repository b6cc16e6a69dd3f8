//! `<model>`: which model is asked, and how it is asked to answer.
//!
//! ```xml
//! <model tier="general" temperature="0.2" reasoning_effort="low" max_output_tokens="2000">
//!   <stop>END</stop>
//!   <response_format>{"type": "object", "properties": {"n": {"type": "integer"}}}</response_format>
//! </model>
//! ```
//!
//! A word that is not known is refused: left out, it would change the answers in silence.

use roxmltree::Node;
use serde_json::{Map, Value, json};

use super::placement::suggestion;
use super::xml::{elements, leading_text, tag};
use super::{DirectiveReader, attributes};
use crate::diagnostic::SourcePosition;

/// The attributes that choose a model.
const CHOICE_ATTRIBUTES: [&str; 6] = ["tier", "id", "provider", "fallback", "fallback_id", "parallel"];

/// The settings. Each may be an attribute or a tag.
const SETTINGS: [&str; 5] =
    ["temperature", "reasoning_effort", "max_output_tokens", "stop", "response_format"];

const EFFORTS: [&str; 4] = ["minimal", "low", "medium", "high"];

/// The highest temperature that any provider takes.
const MAX_TEMPERATURE: f64 = 2.0;

/// How many texts may end an answer.
const MAX_STOP_TEXTS: usize = 16;

/// How long a text that ends an answer may be.
const MAX_STOP_BYTES: usize = 256;

/// How large the schema of answers may be.
const MAX_SCHEMA_BYTES: usize = 64 << 10;

impl DirectiveReader<'_> {
    pub(super) fn read_model(&mut self, node: Node<'_, '_>) {
        let mut model = Map::new();
        let mut settings = Map::new();
        let mut known: Vec<&str> = CHOICE_ATTRIBUTES.to_vec();
        known.extend(SETTINGS);
        for attribute in attributes(node) {
            let name = attribute.name();
            if SETTINGS.contains(&name) {
                let position = self.attribute_position(node, name);
                self.read_setting(name, attribute.value(), position, &mut settings);
            } else if CHOICE_ATTRIBUTES.contains(&name) {
                model.insert(name.to_owned(), json!(attribute.value()));
            } else {
                let hint = suggestion(name, &known, |known| format!("`{known}`"));
                let message = format!("unknown attribute `{name}` of <{}>: {hint}", tag(node));
                self.push_problem_at(self.attribute_position(node, name), "model", message);
            }
        }
        for child in elements(node) {
            let name = tag(child);
            if SETTINGS.contains(&name) {
                let position = self.position_of(child);
                self.read_setting(name, &leading_text(child), position, &mut settings);
            } else {
                let hint = suggestion(name, &SETTINGS, |known| format!("<{known}>"));
                self.push_problem(
                    child,
                    Some("model"),
                    format!("unknown tag <{name}> inside <{}>: {hint}", tag(node)),
                );
            }
        }
        if !settings.is_empty() {
            model.insert("settings".to_owned(), Value::Object(settings));
        }
        self.set("model", Value::Object(model), node);
    }

    fn read_setting(
        &mut self,
        name: &str,
        text: &str,
        position: SourcePosition,
        settings: &mut Map<String, Value>,
    ) {
        let value = match parse_setting(name, text) {
            Ok(value) => value,
            Err(message) => return self.push_problem_at(position, "model", message),
        };
        match (name, settings.get_mut(name)) {
            ("stop", Some(Value::Array(list))) if list.len() < MAX_STOP_TEXTS => list.push(value),
            ("stop", Some(_)) => {
                let message = format!("More than {MAX_STOP_TEXTS} `stop` texts");
                self.push_problem_at(position, "model", message);
            }
            ("stop", None) => {
                settings.insert(name.to_owned(), json!([value]));
            }
            (_, Some(_)) => {
                self.push_problem_at(position, "model", format!("Setting `{name}` is set twice"));
            }
            (_, None) => {
                settings.insert(name.to_owned(), value);
            }
        }
    }
}

/// The value of a setting, or what is wrong with it.
fn parse_setting(name: &str, text: &str) -> Result<Value, String> {
    let trimmed = text.trim();
    match name {
        "temperature" => {
            let number = super::metadata::parse_number(trimmed).and_then(|number| number.as_f64());
            match number.filter(|number| (0.0..=MAX_TEMPERATURE).contains(number)) {
                Some(number) => Ok(json!(number)),
                None => {
                    Err(format!("`temperature` is a number from 0 to {MAX_TEMPERATURE}, not `{trimmed}`"))
                }
            }
        }
        "max_output_tokens" => match trimmed.parse::<u64>().ok().filter(|number| *number > 0) {
            Some(number) => Ok(json!(number)),
            None => Err(format!("`max_output_tokens` is a whole number above 0, not `{trimmed}`")),
        },
        "reasoning_effort" => match EFFORTS.contains(&trimmed) {
            true => Ok(json!(trimmed)),
            false => Err(format!("`reasoning_effort` is one of {}, not `{trimmed}`", EFFORTS.join(", "))),
        },
        "stop" => match text {
            blank if blank.trim().is_empty() => Err("`stop` is blank: no answer would begin".to_owned()),
            long if long.len() > MAX_STOP_BYTES => {
                Err(format!("`stop` is longer than {MAX_STOP_BYTES} bytes"))
            }
            text => Ok(json!(text)),
        },
        _ => parse_schema(trimmed),
    }
}

/// The schema of answers, which must be one.
fn parse_schema(text: &str) -> Result<Value, String> {
    if text.len() > MAX_SCHEMA_BYTES {
        return Err(format!("`response_format` is larger than {MAX_SCHEMA_BYTES} bytes"));
    }
    let schema: Value = serde_json::from_str(text)
        .map_err(|error| format!("`response_format` is a JSON Schema, and this is not JSON: {error}"))?;
    if !schema.is_object() {
        return Err("`response_format` is a JSON Schema: an object".to_owned());
    }
    // Without the feature nothing is signed or run.
    #[cfg(feature = "schemas")]
    if let Some(violation) = crate::parameters::schema_problems(&schema).first() {
        return Err(format!(
            "`response_format` is not a JSON Schema: {}: {}",
            violation.path, violation.message
        ));
    }
    Ok(schema)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::diagnostic::ParsedItem;
    use crate::parse::directive::parse;

    fn directive(model: &str) -> ParsedItem {
        parse(&format!(
            "```xml\n<directive name='d' version='1.0.0'><metadata>\n{model}\n</metadata></directive>\n```\nDo it.\n"
        ))
    }

    #[test]
    fn settings_are_typed() {
        let parsed = directive(
            "<model tier='fast' temperature='0' reasoning_effort='low' max_output_tokens='500'>\
             <stop>END</stop><stop>##</stop><response_format>{\"type\": \"object\"}</response_format></model>",
        );
        assert_eq!((parsed.problems.len(), parsed.warnings.len()), (0, 0), "{parsed:?}");
        let expected = json!({"tier": "fast", "settings": {
            "temperature": 0.0, "reasoning_effort": "low", "max_output_tokens": 500, "stop": ["END", "##"],
            "response_format": {"type": "object"},
        }});
        assert_eq!(parsed.fields["model"], expected);
        assert_eq!(directive("<model tier='x'/>").fields["model"], json!({"tier": "x"}));
    }

    #[cfg(feature = "schemas")]
    #[test]
    fn wrong_settings_are_all_refused() {
        let parsed = directive(
            "<model temperature='hot' reasoning_effort='max' max_output_tokens='0' stop=' ' tempature='1'>\n\
             <response_format>{\"type\": 7}</response_format><top_k>1</top_k><temperature>1</temperature>\
             <temperature>2.5</temperature></model>",
        );
        let lines: Vec<String> = parsed.problems.iter().map(ToString::to_string).collect();
        let starts = [
            "3:8: `temperature` is a number from 0 to 2, not `hot`",
            "3:26: `reasoning_effort` is one of minimal, low, medium, high, not `max`",
            "3:49: `max_output_tokens` is a whole number above 0, not `0`",
            "3:71: `stop` is blank",
            "3:80: unknown attribute `tempature` of <model>: did you mean `temperature`?",
            "4:1: `response_format` is not a JSON Schema: $.type: ",
            "4:47: unknown tag <top_k> inside <model>: ",
            "4:91: `temperature` is a number from 0 to 2, not `2.5`",
        ];
        assert_eq!(lines.len(), starts.len(), "{lines:#?}");
        for (line, start) in lines.iter().zip(starts) {
            assert!(line.starts_with(start), "{line} {start}");
        }
    }
}
