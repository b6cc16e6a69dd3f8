//! Filling in a signed config: `${VAR}` from the environment, `{name}` from the context, the parameters and the config
//! itself. One pass: what is put in is never looked at again, so a parameter's text stays text.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::environment::TemplateContext;

/// Where names come from.
#[derive(Clone, Copy, Debug)]
pub struct TemplateValues<'a> {
    /// `${VAR}`.
    pub environment: &'a BTreeMap<String, String>,
    /// `{tool_path}` and the like: set by the engine, and not overridable.
    pub context: &'a TemplateContext,
    /// The caller's parameters.
    pub parameters: &'a Map<String, Value>,
    /// The names of parameters the tool declares; `None` if it declares no schema.
    pub declared: Option<&'a Map<String, Value>>,
    /// The config's own values.
    pub config: &'a Map<String, Value>,
    /// The text of `{params_json}`.
    pub params_json: &'a str,
    /// Whether only variables are filled in.
    pub fills_variables_only: bool,
}

impl TemplateValues<'_> {
    /// What a name stands for: the engine's word first, then the caller's, then the config's.
    pub(crate) fn get(&self, name: &str) -> Option<Value> {
        if self.fills_variables_only {
            return None;
        }
        if name == "params_json" {
            return Some(Value::from(self.params_json));
        }
        if let Some(text) = self.context.get(name) {
            return Some(Value::from(text));
        }
        let is_declared = self.declared.is_none_or(|declared| declared.contains_key(name));
        if is_declared
            && !name.starts_with("__")
            && let Some(value) = self.parameters.get(name)
        {
            return Some(value.clone());
        }
        // A declared parameter that was not given is absent; the config's value of that name is something else.
        if self.declared.is_some_and(|declared| declared.contains_key(name)) {
            return None;
        }
        self.config.get(name).filter(|value| !value.is_object() && !value.is_array()).cloned()
    }

    fn variable(&self, inner: &str) -> Option<String> {
        let (name, default) = match inner.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        let is_name = !name.is_empty()
            && !name.starts_with(|first: char| first.is_ascii_digit())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        if !is_name {
            return None;
        }
        let found = self.environment.get(name).filter(|value| !value.is_empty());
        Some(found.map_or_else(|| default.unwrap_or_default().to_owned(), Clone::clone))
    }
}

/// Fills in every text of a value. A text that is exactly `{name}` becomes the value itself, typed.
#[must_use]
pub fn fill(value: &Value, names: &TemplateValues<'_>) -> Value {
    match value {
        Value::String(text) => fill_typed(text, names),
        Value::Array(list) => Value::Array(list.iter().map(|value| fill(value, names)).collect()),
        Value::Object(map) => {
            Value::Object(map.iter().map(|(key, value)| (key.clone(), fill(value, names))).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

fn fill_typed(text: &str, names: &TemplateValues<'_>) -> Value {
    if let Some(name) = placeholder_name(text)
        && let Some(value) = names.get(name)
    {
        return value;
    }
    Value::String(fill_text(text, names))
}

/// The name in a text that is exactly `{name}`.
#[must_use]
pub fn placeholder_name(text: &str) -> Option<&str> {
    let name = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    is_placeholder_name(name).then_some(name)
}

fn is_placeholder_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

/// Fills in a text. What stands for nothing stays as it is.
#[must_use]
pub fn fill_text(text: &str, names: &TemplateValues<'_>) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['$', '{']) {
        filled.push_str(&rest[..at]);
        rest = &rest[at..];
        let (open, is_variable) = if rest.starts_with("${") { (2, true) } else { (1, false) };
        let inner = if rest.starts_with('$') && !is_variable {
            None
        } else {
            rest[open..].find('}').map(|end| &rest[open..open + end])
        };
        let value = match inner {
            Some(inner) if is_variable => names.variable(inner),
            Some(inner) if is_placeholder_name(inner) => names.get(inner).map(|value| to_text(&value)),
            Some(_) | None => None,
        };
        match (value, inner) {
            (Some(value), Some(inner)) => {
                filled.push_str(&value);
                rest = &rest[open + inner.len() + 1..];
            }
            _ => {
                filled.push_str(&rest[..1]);
                rest = &rest[1..];
            }
        }
    }
    filled.push_str(rest);
    filled
}

/// A value as text: texts as they are, everything else as JSON.
#[must_use]
pub fn to_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Fills in variables only: what is in braces alone stays.
#[must_use]
pub fn fill_variables(text: &str, names: &TemplateValues<'_>) -> String {
    let nothing = Map::new();
    let context = TemplateContext::default();
    let names = TemplateValues {
        parameters: &nothing,
        config: &nothing,
        declared: None,
        fills_variables_only: true,
        context: &context,
        ..*names
    };
    fill_text(text, &names)
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "values are written in place")]
mod tests {
    use super::*;
    use serde_json::json;

    struct World {
        environment: BTreeMap<String, String>,
        context: TemplateContext,
        parameters: Map<String, Value>,
        declared: Option<Map<String, Value>>,
        config: Map<String, Value>,
    }

    impl World {
        fn new(parameters: Value) -> Self {
            let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
            Self {
                environment: [("HOME", "/home/u"), ("EMPTY", "")].map(text).into(),
                context: TemplateContext {
                    project_path: "/p".to_owned(),
                    tool_path: "/t.py".to_owned(),
                    ..TemplateContext::default()
                },
                parameters: parameters.as_object().expect("an object").clone(),
                declared: None,
                config: json!({"command": "/bin/bash", "timeout": 3}).as_object().expect("an object").clone(),
            }
        }

        fn fill(&self, template: Value) -> Value {
            fill(&template, &self.names())
        }

        fn names(&self) -> TemplateValues<'_> {
            TemplateValues {
                environment: &self.environment,
                context: &self.context,
                parameters: &self.parameters,
                declared: self.declared.as_ref(),
                config: &self.config,
                params_json: r#"{"x":"${HOME} {tool_path}"}"#,
                fills_variables_only: false,
            }
        }
    }

    #[test]
    fn variables_and_placeholders_are_filled_once() {
        let world = World::new(json!({"text": "${HOME} {project_path}", "count": 3, "list": [1]}));
        assert_eq!(
            world.fill(json!([
                "${HOME}/x",
                "${NONE:-d}",
                "${EMPTY:-e}",
                "${NONE}",
                "a{count}b",
                "{count}",
                "{list}",
                "x{list}"
            ])),
            json!(["/home/u/x", "d", "e", "", "a3b", 3, [1], "x[1]"])
        );
        assert_eq!(
            world.fill(json!(["{text}", "<{text}>", "{params_json}", "<{params_json}>"])),
            json!([
                "${HOME} {project_path}",
                "<${HOME} {project_path}>",
                r#"{"x":"${HOME} {tool_path}"}"#,
                r#"<{"x":"${HOME} {tool_path}"}>"#
            ])
        );
    }

    #[test]
    fn unknown_placeholders_stay_unchanged() {
        let world = World::new(json!({}));
        for text in ["{unknown}", "{a b}", "$", "${", "{", "}{", "${1X}", "${a-b}", "{}", "é{x}", "$$"] {
            assert_eq!(world.fill(json!(text)), json!(text));
        }
    }

    #[test]
    fn engine_names_cannot_be_overridden() {
        let mut world = World::new(json!({"project_path": "/evil", "command": "ls", "__hidden": "x"}));
        assert_eq!(world.fill(json!("{project_path} {__hidden}")), json!("/p {__hidden}"));
        world.declared = Some(Map::new());
        assert_eq!(world.fill(json!("{command}")), json!("/bin/bash"), "not declared: the config's");
        world.declared = json!({"command": {}}).as_object().cloned();
        assert_eq!(world.fill(json!("{command}")), json!("ls"));
        world.parameters.clear();
        assert_eq!(world.fill(json!("{command}")), json!("{command}"), "declared, not given");
    }

    #[test]
    fn fill_variables_leaves_placeholders() {
        let world = World::new(json!({"city": "x"}));
        let filled = fill_variables("${HOME}/{city}/{tool_path}", &world.names());
        assert_eq!(filled, "/home/u/{city}/{tool_path}");
    }
}
