//! Which model is asked: provider items, what is wanted, and which keys are at hand.
//!
//! Wanted is what the caller says, else the directive's model, else its tier, else `general`. A provider counts when its
//! key is set, or when it is named. Of several, the configured one is asked, else the first by name. Nothing named and no key set: the offline provider answers, at no cost.

mod key_hint;
mod key_names;

use std::collections::BTreeMap;

use rye_engine::{Code, Error, Result};
use rye_item::text::one_line;
use rye_item::{ItemId, ItemRef, ItemType};
use rye_model::provider_file::Pricing;
use rye_model::{ModelSettings, ProviderFile, TokenPrice};
use rye_space::{ItemFile, Workspace};
use rye_trust::{Subject, verify};

use crate::config::{AgentConfig, TierModel};
use crate::spec::FallbackModel;

/// Where provider items live.
pub const PROVIDERS_PREFIX: &str = "rye/agent/providers";
/// The provider that asks no model.
pub const OFFLINE_PROVIDER: &str = "offline";
/// The tier of who says nothing.
const DEFAULT_TIER: &str = "general";

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct ModelQuery<'a> {
    /// A model or tier, as the caller says it.
    pub model: Option<&'a str>,
    /// A provider, as the caller says it.
    pub provider: Option<&'a str>,
    /// The directive's model.
    pub directive_model: Option<&'a str>,
    /// The directive's tier.
    pub directive_tier: Option<&'a str>,
    /// The directive's provider.
    pub directive_provider: Option<&'a str>,
    /// Whether money is limited: then what has no price is refused.
    pub is_spend_limited: bool,
    /// How the directive wants to be answered.
    pub settings: Option<&'a ModelSettings>,
}

/// The model that will be asked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelChoice {
    /// The provider's name: the last part of its id.
    pub provider_id: String,
    /// The model.
    pub model: String,
    /// The provider's file.
    pub file: ProviderFile,
    /// What it costs; `None` where nothing is charged, or the price is unknown and money is not limited.
    pub price: Option<TokenPrice>,
    /// How many tokens it can look at.
    pub context_window: u64,
    /// How many tokens one answer may have.
    pub max_output_tokens: u64,
    /// What the user should know: variables that look like a key that was not found.
    pub notices: Vec<String>,
    /// The providers that could serve the tier when there were several, in order: the first one is chosen.
    pub candidates: Vec<String>,
    /// The models that are asked, in order, when this one fails for good.
    pub fallbacks: Vec<ModelChoice>,
}

impl ModelChoice {
    /// The same, as a thread keeps a fallback.
    pub(crate) fn to_fallback(&self) -> FallbackModel {
        FallbackModel {
            provider: self.provider_id.clone(),
            model: self.model.clone(),
            price: self.price,
            context_window: self.context_window,
            max_output_tokens: self.max_output_tokens,
        }
    }
}

/// A provider, by the item that wins.
#[derive(Clone, Debug)]
pub struct ProviderItem {
    /// The item.
    pub id: ItemId,
    /// Its file, or why it is not used.
    pub file: std::result::Result<ProviderFile, Error>,
    /// The file of a farther space that this one hides though it is not used.
    shadowed: Option<ProviderFile>,
}

impl ProviderItem {
    /// Its name: the last part of its id.
    #[must_use]
    pub fn name(&self) -> &str {
        self.id.name()
    }

    fn is_named(&self, name: &str) -> bool {
        let id = self.id.as_str();
        name == self.name() || id == name || id.strip_suffix(name).is_some_and(|front| front.ends_with('/'))
    }

    fn is_configured(&self, model: Option<&str>, environment: &BTreeMap<String, String>) -> bool {
        self.file.as_ref().is_ok_and(|file| is_configured(file, model, environment))
    }
}

/// Whether the key of a provider is set.
fn is_configured(file: &ProviderFile, model: Option<&str>, environment: &BTreeMap<String, String>) -> bool {
    let model = model.or_else(|| file.tiers().values().next().map(String::as_str)).unwrap_or_default();
    file.needs_key(model) && file.missing_variable(model, environment).is_none()
}

/// All providers, by id; of several files of one id, the one of the nearest space.
#[derive(Clone, Debug)]
pub struct Providers(Vec<ProviderItem>);

impl Providers {
    /// Finds and verifies the provider items of a workspace. What is wrong with a file is kept with its provider: it matters
    /// when that one is asked for.
    #[must_use]
    pub fn discover(workspace: &Workspace) -> Self {
        let mut ids: Vec<ItemId> = Vec::new();
        for space in workspace.spaces.order() {
            if !workspace.spaces.may_have_category(&space, ItemType::Tool, PROVIDERS_PREFIX) {
                continue;
            }
            for entry in workspace.spaces.scan(&space, &[ItemType::Tool]).entries {
                let is_data = [".yaml", ".yml"].contains(&entry.extension.as_str());
                if is_data && entry.item.id.is_within(PROVIDERS_PREFIX) && !ids.contains(&entry.item.id) {
                    ids.push(entry.item.id);
                }
            }
        }
        ids.sort_by(|left, right| left.as_str().cmp(right.as_str()));
        Self(ids.into_iter().map(|id| load_provider(workspace, id)).collect())
    }

    /// The providers.
    pub fn iter(&self) -> impl Iterator<Item = &ProviderItem> {
        self.0.iter()
    }

    /// Chooses provider and model. `environment` holds the variables that keys are looked up in.
    ///
    /// # Errors
    /// When a name is unknown or means several, a key is missing, a file is not trusted, or money is limited and the
    /// price is not known.
    pub fn choose(
        &self,
        query: &ModelQuery<'_>,
        agent: &AgentConfig,
        environment: &BTreeMap<String, String>,
    ) -> Result<ModelChoice> {
        let requested =
            query.model.or(query.directive_model).or(query.directive_tier).unwrap_or(DEFAULT_TIER);
        let mapped = agent.tier_mapping.get(requested).map(String::as_str);
        let (model, is_model) = (mapped.unwrap_or(requested), mapped.is_some() || self.is_model(requested));
        let provider_name = query.provider.or(query.directive_provider);
        if let (None, Some(list)) = (provider_name, agent.tiers.get(requested)) {
            return self.choose_listed(list, requested, query, agent, environment);
        }
        if let Some(name) = provider_name {
            return self.choose_from(self.by_name(name)?, model, is_model, query, agent, environment);
        }
        let owners: Vec<&ProviderItem> = self.0.iter().filter(|provider| provider.can_serve(model)).collect();
        let preferred = agent.default_provider.as_deref().map(|name| self.by_name(name)).transpose()?;
        if let Some(preferred) = preferred {
            // A model that only others serve is theirs; anything else is the preferred one's.
            let is_theirs = is_model && !preferred.can_serve(model) && !owners.is_empty();
            if !is_theirs {
                return self.choose_from(preferred, model, is_model, query, agent, environment);
            }
        }
        self.check_shadowing(environment)?;
        let ready: Vec<&ProviderItem> = owners
            .iter()
            .copied()
            .filter(|provider| provider.is_configured(Some(provider.model_for(model)), environment))
            .collect();
        match ready.as_slice() {
            [one] => self.choose_from(one, model, is_model, query, agent, environment),
            [] => {
                let is_unconfigured =
                    !self.0.iter().any(|provider| provider.is_configured(None, environment));
                // The caller's own word for a model is a wish that offline cannot fill.
                let asks_for_model = query.model.is_some() && is_model;
                let is_known = is_model || self.is_tier(requested) || query.model.is_none();
                if is_unconfigured && is_known && !asks_for_model && preferred.is_none() {
                    let offline = self.by_name(OFFLINE_PROVIDER)?;
                    let choice =
                        self.choose_from(offline, OFFLINE_PROVIDER, true, query, agent, environment)?;
                    return Ok(ModelChoice { notices: self.misspelt_keys(environment), ..choice });
                }
                Err(self.unserved_error(model, &owners, environment))
            }
            // By name, so that it is the same on every machine.
            [first, ..] => {
                let choice = self.choose_from(first, model, is_model, query, agent, environment)?;
                let candidates = ready.iter().map(|provider| provider.name().to_owned()).collect();
                Ok(ModelChoice { candidates, ..choice })
            }
        }
    }

    /// The first model of a tier's list whose key is set; those behind it are its fallbacks.
    fn choose_listed(
        &self,
        list: &[TierModel],
        tier: &str,
        query: &ModelQuery<'_>,
        agent: &AgentConfig,
        environment: &BTreeMap<String, String>,
    ) -> Result<ModelChoice> {
        let mut choices = Vec::new();
        let mut missing = None;
        for entry in list {
            let (model, is_model) = (entry.model.as_deref().unwrap_or(tier), entry.model.is_some());
            let provider = self.by_name(&entry.provider)?;
            match self.choose_from(provider, model, is_model, query, agent, environment) {
                Ok(choice) => choices.push(choice),
                Err(error) if matches!(error.code, Code::ProviderKeyMissing | Code::SettingUnsupported) => {
                    missing.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        let mut choices = choices.into_iter();
        match (choices.next(), missing) {
            (Some(first), missing) => {
                let left_out = missing.map(|error| format!("left out of `{tier}`: {}", error.message));
                let notices = first.notices.iter().cloned().chain(left_out).collect();
                Ok(ModelChoice { fallbacks: choices.collect(), notices, ..first })
            }
            (None, Some(error)) => Err(error),
            (None, None) => {
                let message = format!("the tier `{}` of agent/agent.yaml lists no model", one_line(tier));
                Err(Error::new(Code::ModelNotFound, message))
            }
        }
    }

    fn by_name(&self, name: &str) -> Result<&ProviderItem> {
        let found: Vec<&ProviderItem> = self.0.iter().filter(|provider| provider.is_named(name)).collect();
        match found.as_slice() {
            [one] => Ok(one),
            [] => {
                let known: Vec<&str> = self.0.iter().map(ProviderItem::name).collect();
                Err(Error::new(Code::ModelNotFound, format!("there is no provider `{}`", one_line(name)))
                    .hint(format!("there are {}", known.join(", ")))
                    .hint("rye search providers --type tool"))
            }
            several => {
                let ids: Vec<String> = several.iter().map(|provider| provider.id.to_string()).collect();
                Err(Error::new(
                    Code::ModelAmbiguous,
                    format!("`{}` is {}", one_line(name), ids.join(" and ")),
                )
                .hint("name it by its whole id"))
            }
        }
    }

    /// Of one provider that was named or is the only one.
    fn choose_from(
        &self,
        provider: &ProviderItem,
        model: &str,
        is_model: bool,
        query: &ModelQuery<'_>,
        agent: &AgentConfig,
        environment: &BTreeMap<String, String>,
    ) -> Result<ModelChoice> {
        let file = provider.file.as_ref().map_err(Clone::clone)?;
        let name = provider.name();
        let model = match file.tiers().get(model) {
            Some(mapped) => mapped.as_str(),
            // A named provider may serve models that its file does not list.
            None if is_model || !self.is_tier(model) => model,
            None => {
                let tiers: Vec<&str> = file.tiers().keys().map(String::as_str).collect();
                return Err(Error::new(
                    Code::ModelNotFound,
                    format!("`{name}` has no model for the tier `{}`", one_line(model)),
                )
                .hint(format!("its tiers are: {}", tiers.join(", ")))
                .hint("name a model: --model NAME"));
            }
        };
        if let Some(variable) = file.missing_variable(model, environment) {
            return Err(key_missing_error(name, &variable, environment));
        }
        let price = match file.pricing(model) {
            Pricing::Known(price) => Some(price),
            Pricing::Unpriced => None,
            Pricing::Unknown if query.is_spend_limited => {
                let model = one_line(model);
                return Err(Error::new(
                    Code::PriceUnknown,
                    format!("no price is known for `{model}`, and spend is limited"),
                )
                .hint(format!("write its price into your own copy: rye load tool {} --to user", provider.id))
                .hint(
                    "or `priced: false` there, if it costs nothing; or lift the limit: --limit spend=none",
                ));
            }
            Pricing::Unknown => None,
        };
        let (max_output_tokens, notices) = check_settings(name, file, model, query, agent)?;
        Ok(ModelChoice {
            provider_id: name.to_owned(),
            model: model.to_owned(),
            price,
            context_window: file.context_window(model),
            max_output_tokens,
            file: file.clone(),
            notices,
            candidates: Vec::new(),
            fallbacks: Vec::new(),
        })
    }

    fn is_tier(&self, word: &str) -> bool {
        self.files().any(|file| file.tiers().contains_key(word))
    }

    fn is_model(&self, word: &str) -> bool {
        !self.is_tier(word) && self.0.iter().any(|provider| provider.can_serve(word))
    }

    fn files(&self) -> impl Iterator<Item = &ProviderFile> {
        self.0.iter().filter_map(|provider| provider.file.as_ref().ok())
    }

    /// A file that is not used must not quietly take away the provider that it hides.
    fn check_shadowing(&self, environment: &BTreeMap<String, String>) -> Result<()> {
        let is_shadowing = |provider: &&ProviderItem| {
            provider.shadowed.as_ref().is_some_and(|hidden| is_configured(hidden, None, environment))
        };
        match self.0.iter().find(is_shadowing).map(|provider| &provider.file) {
            Some(Err(error)) => Err(error.clone()),
            Some(Ok(_)) | None => Ok(()),
        }
    }

    fn unserved_error(
        &self,
        model: &str,
        owners: &[&ProviderItem],
        environment: &BTreeMap<String, String>,
    ) -> Error {
        for owner in owners {
            let Ok(file) = &owner.file else { continue };
            if let Some(variable) = file.missing_variable(owner.model_for(model), environment) {
                return key_missing_error(owner.name(), &variable, environment);
            }
        }
        if let [owner, ..] = owners {
            let message = format!("`{}` is asked only when it is named", owner.name());
            return Error::new(Code::ModelNotFound, message).hint(format!("--provider {}", owner.name()));
        }
        let mut tiers: Vec<&str> =
            self.files().flat_map(|file| file.tiers().keys().map(String::as_str)).collect();
        tiers.sort_unstable();
        tiers.dedup();
        Error::new(Code::ModelNotFound, format!("no provider knows the model or tier `{}`", one_line(model)))
            .hint(format!("tiers are: {}", tiers.join(", ")))
            .hint("a model that no file lists needs its provider's name: --provider NAME --model NAME")
    }
}

impl ProviderItem {
    /// Whether its file lists the model, or has one for the tier.
    fn can_serve(&self, model: &str) -> bool {
        self.file.as_ref().is_ok_and(|file| {
            file.tiers().iter().any(|(tier, own)| tier == model || own == model)
                || file.priced_models().any(|own| own == model)
        }) && self.name() != OFFLINE_PROVIDER
    }

    /// The model that a tier means here; a model means itself.
    fn model_for<'a>(&'a self, model: &'a str) -> &'a str {
        let tiers = self.file.as_ref().ok().map(ProviderFile::tiers);
        tiers.and_then(|tiers| tiers.get(model)).map_or(model, String::as_str)
    }
}

fn load_provider(workspace: &Workspace, id: ItemId) -> ProviderItem {
    let item = ItemRef::new(ItemType::Tool, id.clone());
    let file = workspace
        .spaces
        .locate(&item, None)
        .map_err(Error::from)
        .and_then(|located| read_provider_file(workspace, &item, located));
    let hidden = match &file {
        Ok(_) => None,
        Err(_) => {
            let farther = workspace
                .spaces
                .candidate_paths(&item)
                .into_iter()
                .filter(|candidate| candidate.is_found)
                .skip(1);
            farther
                .filter_map(|candidate| workspace.spaces.read(&item, &candidate).ok())
                .find_map(|located| read_provider_file(workspace, &item, located).ok())
        }
    };
    ProviderItem { id, file, shadowed: hidden }
}

fn read_provider_file(workspace: &Workspace, item: &ItemRef, located: ItemFile) -> Result<ProviderFile> {
    let verified = verify(located, &workspace.keys).map_err(|refusal| {
        Error::refused(workspace, item, refusal.subject.space(), &refusal.subject.path, &refusal.report)
    })?;
    if workspace.is_signed_for_bundle_only(&verified) {
        let signer = verified.report().fingerprint().map(|key| key.to_string()).unwrap_or_default();
        return Err(Error::new(
            Code::ProviderInvalid,
            format!("{item} came with a bundle whose signer {signer} is trusted for that bundle only"),
        )
        .for_item(item)
        .detail("path", verified.path.display().to_string())
        .hint(format!(
            "a provider gets your API keys: read it, then sign a copy of your own: rye load tool {} --to user",
            item.id
        ))
        .hint(
            "or trust its signer for everything, in every project: rye keys trust FILE --space user",
        ));
    }
    ProviderFile::from_fields(&verified.parsed().fields).map_err(|problems| {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Error::new(Code::ProviderInvalid, format!("{item} is not a provider: {}", lines.join("; ")))
            .for_item(item)
            .detail("path", verified.path.display().to_string())
            .hint(format!("correct {} and sign it again", verified.path.display()))
    })
}

/// The longest answer to ask for, if the model takes the directive's settings.
fn check_settings(
    provider: &str,
    file: &ProviderFile,
    model: &str,
    query: &ModelQuery<'_>,
    agent: &AgentConfig,
) -> Result<(u64, Vec<String>)> {
    let allowed = file.max_output_tokens(model).min(agent.max_output_tokens);
    let Some(settings) = query.settings else { return Ok((allowed, Vec::new())) };
    let max_output_tokens = settings.max_output_tokens.map_or(allowed, |own| own.min(allowed));
    let requested = settings.max_output_tokens.filter(|own| *own > allowed);
    let notices = requested.map(|own| {
        format!(
            "answers have at most {allowed} tokens, not {own}: `{provider}` or agent/agent.yaml allow no more"
        )
    });
    match file.check_settings(model, settings, max_output_tokens) {
        Ok(()) => Ok((max_output_tokens, notices.into_iter().collect())),
        Err(problem) => {
            let message =
                format!("`{}` of `{provider}` cannot be asked like this: {problem}", one_line(model));
            Err(Error::new(Code::SettingUnsupported, message)
                .hint("change the directive's <model>, or ask another model: --model NAME"))
        }
    }
}

fn key_missing_error(provider: &str, variable: &str, environment: &BTreeMap<String, String>) -> Error {
    let message = format!("`{provider}` needs the environment variable `{variable}`");
    key_names::similar_key_hints(provider, variable, environment)
        .into_iter()
        .fold(Error::new(Code::ProviderKeyMissing, message), Error::hint)
        .hint(format!("export {variable}=…"))
        .hint("or run without a model: --provider offline")
}

#[cfg(test)]
mod tests;
