//! Variables that look like a provider's key and are not: `OPENAI_KEY` where `OPENAI_API_KEY` is read.

use std::collections::BTreeMap;

use rye_item::{ItemRef, ItemType, Space};
use rye_space::Workspace;
use rye_trust::Subject;

use super::{ProviderItem, Providers};

/// How many letters a name may differ by to be taken for a misspelling.
const MAX_TYPOS: usize = 2;

/// What marks a variable as holding a key.
const KEY_WORDS: [&str; 3] = ["KEY", "TOKEN", "SECRET"];

impl Providers {
    /// What is set and is probably meant to be the key of a provider, in one sentence each.
    pub(super) fn misspelt_keys(&self, environment: &BTreeMap<String, String>) -> Vec<String> {
        let all: Vec<(&ProviderItem, String)> =
            self.0.iter().filter_map(|provider| Some((provider, provider.key_variable()?))).collect();
        let is_read = |name: &str| all.iter().any(|(_, variable)| variable == name);
        let mut notices = Vec::new();
        for (provider, variable) in &all {
            notices.extend(
                similar_variables(variable, environment)
                    .filter(|name| !is_read(name))
                    .map(|name| misspelt_text(name, provider.name(), variable)),
            );
        }
        notices
    }
}

impl Providers {
    /// The variables that hold keys and are not set, of all providers.
    #[must_use]
    pub fn missing_variables(&self, environment: &BTreeMap<String, String>) -> Vec<String> {
        let variables = self.0.iter().filter_map(ProviderItem::key_variable);
        variables.filter(|name| environment.get(name).is_none_or(String::is_empty)).collect()
    }

    /// The variable that holds the key of a provider which the project brings itself; `None` for any other.
    #[must_use]
    pub fn project_key(&self, workspace: &Workspace, name: &str) -> Option<String> {
        let provider = self.0.iter().find(|provider| provider.is_named(name))?;
        let item = ItemRef::new(ItemType::Tool, provider.id.clone());
        let located = workspace.spaces.locate(&item, None).ok()?;
        if *located.space() == Space::Project { provider.key_variable() } else { None }
    }

    /// The names of those whose keys are set.
    #[must_use]
    pub fn configured(&self, environment: &BTreeMap<String, String>) -> Vec<String> {
        let configured = self.0.iter().filter(|provider| provider.is_configured(None, environment));
        configured.map(|provider| provider.name().to_owned()).collect()
    }

    /// Whether a provider needs a key for a model. One that is not known may.
    #[must_use]
    pub fn needs_key(&self, name: &str, model: &str) -> bool {
        let found = self.0.iter().find(|provider| provider.is_named(name));
        found.and_then(|provider| provider.file.as_ref().ok()).is_none_or(|file| file.needs_key(model))
    }
}

impl ProviderItem {
    /// The variable its key is read from.
    fn key_variable(&self) -> Option<String> {
        let file = self.file.as_ref().ok()?;
        let model = file.tiers().values().next().map(String::as_str).unwrap_or_default();
        file.needs_key(model).then(|| file.missing_variable(model, &BTreeMap::new()))?
    }
}

/// What to say about the variables that may be meant to be `variable`.
pub(super) fn similar_key_hints(
    provider: &str,
    variable: &str,
    environment: &BTreeMap<String, String>,
) -> Vec<String> {
    similar_variables(variable, environment).map(|name| misspelt_text(name, provider, variable)).collect()
}

fn misspelt_text(name: &str, provider: &str, variable: &str) -> String {
    let name = rye_item::text::one_line(name);
    match name == variable {
        true => format!("`{variable}` is set, but empty"),
        false => format!("`{name}` is set, but `{provider}` reads its key from `{variable}`"),
    }
}

/// The variables whose name is close to `expected`, and `expected` itself if it is empty.
fn similar_variables<'a>(
    expected: &'a str,
    environment: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = &'a str> {
    let is_similar = move |name: &str| {
        let name = name.to_uppercase();
        let vendor = expected.split('_').next().unwrap_or(expected);
        let is_of_vendor = name.split(['_', '-']).any(|part| part == vendor);
        let is_key = name.split(['_', '-']).any(|part| KEY_WORDS.iter().any(|word| part.ends_with(word)));
        (is_of_vendor && is_key) || distance(&name, expected) <= MAX_TYPOS
    };
    environment.iter().filter_map(move |(name, value)| {
        let is_found = match name == expected {
            true => value.trim().is_empty(),
            false => !value.trim().is_empty() && is_similar(name),
        };
        is_found.then_some(name.as_str())
    })
}

/// How many letters have to be changed, added or removed to turn one name into the other.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (line, letter) in left.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], line + 1);
        for (column, other) in right.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn similar(names: &[(&str, &str)]) -> Vec<String> {
        let environment =
            names.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        similar_variables("OPENAI_API_KEY", &environment).map(str::to_owned).collect()
    }

    #[test]
    fn misspelt_key_names_are_found() {
        for name in [
            "OPENAI_KEY",
            "OPENAI_APIKEY",
            "openai_api_key",
            "OPENAI_TOKEN",
            "OPEANI_API_KEY",
            "OPEN_AI_API_KEY",
        ] {
            assert_eq!(similar(&[(name, "sk-1")]), [name]);
            assert_eq!(similar(&[(name, " ")]), Vec::<String>::new());
        }
        for name in ["OPENAI_BASE_URL", "OPENAI_ORG", "API_KEY", "AZURE_API_KEY", "HOME", ""] {
            assert_eq!(similar(&[(name, "x")]), Vec::<String>::new(), "{name}");
        }
        assert_eq!(similar(&[("OPENAI_API_KEY", "")]), ["OPENAI_API_KEY"]);
        assert_eq!(similar(&[("OPENAI_API_KEY", "sk-1")]), Vec::<String>::new());
    }

    #[test]
    fn distance_counts_single_edits() {
        for (left, right, expected) in
            [("", "", 0), ("abc", "", 3), ("", "ab", 2), ("kitten", "sitting", 3), ("same", "same", 0)]
        {
            assert_eq!(distance(left, right), expected, "{left} {right}");
        }
    }
}
