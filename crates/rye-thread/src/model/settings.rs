//! How a model is asked to answer: what a directive sets on `<model>`. What is not set is left to the provider.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The settings of a directive's model calls. An unknown one is refused: to leave one out would change the answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// How freely the next word is chosen: 0 is the likeliest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// How much the model reasons before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<ReasoningEffort>,
    /// The most tokens of one answer, reasoning included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u64>,
    /// Texts that end an answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
    /// The JSON Schema of an answer's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_format: Option<Value>,
}

/// How much a model reasons before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningEffort {
    /// As little as possible.
    Minimal,
    /// A little.
    Low,
    /// As the provider would without being asked.
    Medium,
    /// Much.
    High,
}

impl ReasoningEffort {
    /// As directives write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

/// One of [`ModelSettings`], as directives and provider files name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelSetting {
    /// `temperature`.
    Temperature,
    /// `reasoning_effort`.
    ReasoningEffort,
    /// `stop`.
    Stop,
    /// `response_format`.
    ResponseFormat,
}

impl ModelSetting {
    /// Those that a provider may not know. Every provider bounds its answers.
    pub const ALL: [Self; 4] = [Self::Temperature, Self::ReasoningEffort, Self::Stop, Self::ResponseFormat];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::ReasoningEffort => "reasoning_effort",
            Self::Stop => "stop",
            Self::ResponseFormat => "response_format",
        }
    }
}

impl ModelSettings {
    /// The settings in the `model` field of a parsed directive.
    ///
    /// # Errors
    /// When one is unknown or of another type.
    pub fn from_directive(model: Option<&Value>) -> Result<Self, serde_json::Error> {
        match model.and_then(|model| model.get("settings")) {
            Some(settings) => serde_json::from_value(settings.clone()),
            None => Ok(Self::default()),
        }
    }

    /// Whether none is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this one is set.
    #[must_use]
    pub fn has(&self, setting: ModelSetting) -> bool {
        match setting {
            ModelSetting::Temperature => self.temperature.is_some(),
            ModelSetting::ReasoningEffort => self.reasoning_effort.is_some(),
            ModelSetting::Stop => !self.stop.is_empty(),
            ModelSetting::ResponseFormat => self.response_format.is_some(),
        }
    }

    /// Those that are set, as an object.
    #[must_use]
    pub fn to_map(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(map)) => map,
            // Numbers, words and JSON are always JSON.
            Ok(_) | Err(_) => Map::new(),
        }
    }

    /// What is wrong with an answer's text, if it must have a format.
    #[must_use]
    pub fn format_problem(&self, text: &str) -> Option<String> {
        let schema = self.response_format.as_ref()?;
        let answer: Value = match serde_json::from_str(text.trim()) {
            Ok(answer) => answer,
            Err(error) => return Some(format!("it is not JSON: {error}")),
        };
        match rye_item::parameters::violations(&answer, schema) {
            Ok(found) if found.is_empty() => None,
            Ok(found) => {
                let lines: Vec<String> =
                    found.iter().take(5).map(|one| format!("{}: {}", one.path, one.message)).collect();
                Some(lines.join("; "))
            }
            // Signing checks that it is a schema.
            Err(error) => Some(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_read_back_as_written() {
        let model = json!({"tier": "fast", "settings": {
            "temperature": 0.2, "reasoning_effort": "high", "max_output_tokens": 500, "stop": ["END"],
            "response_format": {"type": "object"},
        }});
        let settings = ModelSettings::from_directive(Some(&model)).expect("settings");
        assert_eq!(Value::Object(settings.to_map()), model["settings"]);
        assert!(ModelSetting::ALL.into_iter().all(|setting| settings.has(setting)));
        assert!(ModelSettings::from_directive(Some(&json!({"tier": "fast"}))).expect("none").is_default());
        let unknown = json!({"settings": {"top_k": 1}});
        assert!(ModelSettings::from_directive(Some(&unknown)).is_err());
    }

    #[test]
    fn format_problem_names_the_place() {
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
        let settings = ModelSettings { response_format: Some(schema), ..ModelSettings::default() };
        assert_eq!(settings.format_problem(" {\"n\": 1}\n"), None);
        let wrong = settings.format_problem("{\"n\": \"x\"}").expect("a problem");
        assert!(wrong.starts_with("$.n: "), "{wrong}");
        assert!(settings.format_problem("one").expect("a problem").starts_with("it is not JSON: "));
        assert_eq!(ModelSettings::default().format_problem("one"), None);
    }
}
