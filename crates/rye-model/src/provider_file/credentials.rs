//! Whether a provider can be asked here: is its key at hand?

use std::collections::BTreeMap;

use super::{Auth, ConnectError, ProviderFile, Variables};

impl ProviderFile {
    /// Whether asking this model takes a key.
    #[must_use]
    pub fn needs_key(&self, model: &str) -> bool {
        self.settings(model).auth != Auth::None
    }

    /// The variable that has to be set before this model can be asked, if one is missing.
    #[must_use]
    pub fn missing_variable(&self, model: &str, environment: &BTreeMap<String, String>) -> Option<String> {
        let settings = self.settings(model);
        let variables = Variables { own: &settings.variables, environment };
        let key = match &settings.auth {
            Auth::None => None,
            Auth::Bearer(template) | Auth::Header { value: template, .. } => Some(template),
        };
        let templates = key.into_iter().chain([&settings.url]).chain(settings.headers.values());
        templates.into_iter().find_map(|template| match variables.interpolate(template) {
            Err(ConnectError::Variable(name)) => Some(name),
            Err(ConnectError::Offline | ConnectError::Http(_)) | Ok(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn provider_needs_its_variables() {
        let read = |file: serde_json::Value| {
            ProviderFile::from_fields(file.as_object().expect("a map")).expect("a provider")
        };
        let file = read(json!({
            "protocol": "openai", "url": "${BASE:-https://a.example}/v1",
            "auth": {"type": "bearer", "variable": "KEY"},
        }));
        assert!(file.needs_key("m"));
        assert_eq!(file.missing_variable("m", &BTreeMap::new()).as_deref(), Some("KEY"));
        let set = |value: &str| BTreeMap::from([("KEY".to_owned(), value.to_owned())]);
        assert_eq!(file.missing_variable("m", &set("")).as_deref(), Some("KEY"));
        assert_eq!(file.missing_variable("m", &set("k")), None);
        let local = read(json!({"protocol": "ollama", "url": "http://127.0.0.1:11434/api/chat"}));
        assert!(!local.needs_key("m"));
        assert_eq!(local.missing_variable("m", &BTreeMap::new()), None);
    }
}
