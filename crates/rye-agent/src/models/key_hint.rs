//! What to set so that a model can be asked, by the providers that are there.

use std::collections::BTreeMap;

use super::{OFFLINE_PROVIDER, ProviderItem, Providers};

impl Providers {
    /// The names of the providers whose key is set.
    #[must_use]
    pub fn with_key(&self, environment: &BTreeMap<String, String>) -> Vec<&str> {
        self.iter()
            .filter(|provider| provider.is_configured(None, environment))
            .map(ProviderItem::name)
            .collect()
    }

    /// What to set where no key is: the variable of each provider, or the name of one that needs none.
    #[must_use]
    pub fn key_hint(&self, environment: &BTreeMap<String, String>) -> Option<String> {
        if !self.with_key(environment).is_empty() {
            return None;
        }
        let (mut variables, mut names) = (Vec::new(), Vec::new());
        for provider in self.iter().filter(|provider| provider.name() != OFFLINE_PROVIDER) {
            let Ok(file) = &provider.file else { continue };
            let model = file.tiers().values().next().map(String::as_str).unwrap_or_default();
            match file.missing_variable(model, &BTreeMap::new()) {
                Some(variable) if !variables.contains(&variable) => variables.push(variable),
                Some(_) => {}
                None => names.push(format!("--provider {}", provider.name())),
            }
        }
        let export = match variables.as_slice() {
            [] => None,
            [one] => Some(format!("export {one}=…")),
            [first, others @ ..] => Some(format!("export {first}=… (or {})", others.join(", "))),
        };
        let ways: Vec<String> = export.into_iter().chain(names).collect();
        (!ways.is_empty()).then(|| format!("to ask a model: {}", ways.join(", or ")))
    }
}
